//! `scripts/book.py`: what becomes of the documents in a book.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/book.py");

#[test]
fn links_that_leave_the_book_become_words() {
    let chapter = |path: &str, content: &str, below: Value| json!({"Chapter": {"name": format!("About {path}"), "path": path, "content": content, "sub_items": below}});
    let text = "[a page](servers/nginx.md#start), [here](#it), [there](https://example.org/),\n\
                [the project](../README.md), [README](../README.md), [`Makefile`](../Makefile), [what a session made](raw/),\n\
                [servers/nginx.md](servers/nginx.md#start)\n\
                ```\n[kept](../README.md)\n```\n";
    let below = chapter("servers/nginx.md", "[up](../start.md) [out](../../README.md)", json!([]));
    let book = json!({"sections": [chapter("start.md", text, json!([below])), "Separator"]});
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("input");
    fs::write(&input, json!([{"renderer": "html"}, book]).to_string()).unwrap();
    let output = Command::new(SCRIPT).stdin(fs::File::open(input).unwrap()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let made: Value = serde_json::from_slice(&output.stdout).unwrap();
    let first = &made["sections"][0]["Chapter"];
    assert_eq!(
        first["content"],
        "[a page](servers/nginx.md#start), [here](#it), [there](https://example.org/),\n\
         the project (`README.md`), `README.md`, `Makefile`, what a session made,\n\
         [About servers/nginx.md](servers/nginx.md#start)\n\
         ```\n[kept](../README.md)\n```\n"
    );
    assert_eq!(first["sub_items"][0]["Chapter"]["content"], "[up](../start.md) out (`README.md`)");
    assert_eq!(made["sections"][1], "Separator");
}

#[test]
fn a_link_of_the_book_that_leads_nowhere_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let check = |text: &str| {
        fs::write(&page, text).unwrap();
        let output =
            Command::new(SCRIPT).arg("check").arg(folder.path()).stdin(Stdio::null()).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (is_right, said) = check(
        "<h1 id=\"it\"></h1> <a href=\"#it\">a</a> <a href=\"page.html\">b</a> <a href=\"https://example.org/\">c</a>",
    );
    assert!(is_right, "{said}");
    for link in ["#other", "page.html#other", "../README.html"] {
        let (is_right, said) = check(&format!("<h1 id=\"it\"></h1> <a href=\"{link}\">a</a>"));
        assert!(!is_right && said.contains(link), "{link}: {said}");
    }
}

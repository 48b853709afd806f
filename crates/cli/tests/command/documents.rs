//! The documents: their links, and the book that they make.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/links.py");

fn links(folder: &Path) -> Output {
    Command::new("/usr/bin/python3").arg(SCRIPT).arg(folder).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_link_leads_somewhere_and_every_page_is_in_the_book() {
    let output = links(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")));
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn a_link_that_leads_nowhere_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("docs")).unwrap();
    for (name, text) in [
        (
            "README.md",
            "[a](docs/one.md#part-one) [b](docs/none.md) `[c](code)` [d](https://example.org/x)\n```\n[e](f)\n```\n",
        ),
        ("docs/one.md", "# Part: *one*\n[g](#part-two)\n"),
        ("docs/two.md", ""),
        ("docs/SUMMARY.md", "- [One](one.md)\n"),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let git = Command::new("git").args(["init", "-q"]).current_dir(folder.path()).status().unwrap();
    assert!(git.success());
    let output = links(folder.path());
    assert_eq!(output.status.code(), Some(1));
    let lines = said(&output);
    let mut lines: Vec<&str> = lines.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "README.md: docs/none.md: there is no such file",
            "docs/one.md: #part-two: there is no such heading",
            "docs/two.md is not in docs/SUMMARY.md",
        ]
    );
}

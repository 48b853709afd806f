//! Keeps docs/tcp.md true.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every file under `folder` whose name ends so.
fn sources(folder: &Path, ends: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, ends, found);
        } else if path.extension().is_some_and(|extension| extension == ends) {
            found.push(path);
        }
    }
}

/// The names of all functions under `#[test]`, and `FILE NAME` of those under `@case` in the programs that run on both stacks.
fn tests() -> BTreeSet<String> {
    let mut files = Vec::new();
    for folder in [
        "crates/engine/src",
        "crates/engine/tests",
        "crates/wire",
        "crates/sockets/src",
        "crates/sockets/tests",
        "tests/tests",
    ] {
        sources(&root().join(folder), "rs", &mut files);
    }
    let mut programs = Vec::new();
    sources(&root().join("crates/sockets/tests/programs"), "py", &mut programs);
    let mut names = BTreeSet::new();
    for file in programs {
        let text = fs::read_to_string(&file).expect("a program");
        let program = file.file_name().and_then(|name| name.to_str()).expect("a name");
        let mut lines = text.lines();
        while lines.by_ref().any(|line| line == "@case") {
            let name = lines.next().and_then(|line| line.strip_prefix("def ")?.split('(').next());
            names.extend(name.map(|name| format!("{program} {name}")));
        }
    }
    for file in files {
        let text = fs::read_to_string(&file).expect("a source file");
        let mut lines = text.lines().map(str::trim);
        while lines.by_ref().any(|line| line == "#[test]") {
            let name = lines.by_ref().find_map(|line| line.strip_prefix("fn ")?.split('(').next());
            names.extend(name.map(str::to_owned));
        }
    }
    names
}

/// Whether `text` cites the section, alone or in a list ("sections 2.2 and 2.3").
fn cites(text: &str, rfc: &str, section: &str) -> bool {
    // A citation may go on in the next line of a comment.
    let words: Vec<&str> = text
        .split(|c: char| c.is_whitespace() || "(),;:/".contains(c))
        .filter(|word| !word.is_empty())
        .collect();
    let is = |word: &str, number: &str| word.trim_end_matches('.').trim_end_matches("'s") == number;
    words.windows(2).enumerate().any(|(at, pair)| {
        pair[0] == "RFC"
            && is(pair[1], rfc)
            && (section.is_empty() || words[at + 2..].iter().take(7).any(|word| is(word, section)))
    })
}

#[test]
fn every_row_names_what_is_there() {
    let text = fs::read_to_string(root().join("docs/tcp.md")).expect("docs/tcp.md");
    let (table, different) = text.split_once("\n## Different from Linux by choice\n").expect("both tables");
    let (_, mended) = different.split_once("\n## Before and after\n").expect("what was different");
    let different = different.split("\n## ").next().expect("a part");
    let tests = tests();
    let mut wrong = Vec::new();
    let mut rows = 0;
    for row in mended.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| subject |")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, _, what, before, now, named, _] = cells[..] else {
            wrong.push(format!("not five cells: {row}"));
            continue;
        };
        if before == now {
            wrong.push(format!("{what}: no difference"));
        }
        for test in named.split(',').map(str::trim).filter(|test| !tests.contains(*test)) {
            wrong.push(format!("{what}: no test {test}"));
        }
    }
    for row in different.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| what |")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, what, _, _, why, named, _] = cells[..] else {
            wrong.push(format!("not five cells: {row}"));
            continue;
        };
        if why.is_empty() {
            wrong.push(format!("{what}: no reason"));
        }
        for test in named.split(',').map(str::trim).filter(|test| !tests.contains(*test)) {
            wrong.push(format!("{what}: no test {test}"));
        }
    }
    for row in table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| RFC")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, rfc, section, _, file, item, named, _] = cells[..] else {
            wrong.push(format!("not six cells: {row}"));
            continue;
        };
        rows += 1;
        let Ok(text) = fs::read_to_string(root().join("crates/engine/src").join(file)) else {
            wrong.push(format!("RFC {rfc}: no file {file}"));
            continue;
        };
        if !cites(&text, rfc, section) {
            wrong.push(format!("{file} does not cite RFC {rfc} section {section}"));
        }
        let declared = ["fn ", "struct ", "enum ", "const ", "pub "]
            .iter()
            .any(|kind| text.contains(&format!("{kind}{item}")));
        if !declared {
            wrong.push(format!("RFC {rfc}: {file} has no {item}"));
        }
        for test in named.split(',').map(str::trim) {
            if !tests.contains(test) {
                wrong.push(format!("RFC {rfc} section {section}: no test {test}"));
            }
        }
    }
    assert!(rows > 50, "{rows} rows");
    assert!(wrong.is_empty(), "docs/tcp.md is not true:\n{}", wrong.join("\n"));
}

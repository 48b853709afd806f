//! What is judged of a Rust file: how long it and its functions are, what it takes from elsewhere, how it names times.

use std::collections::BTreeMap;

use super::{
    FILE_LINES_MAX, FUNCTION_LINES_MAX, File, Finding, Rule, SOCKETS, SOCKETS_FILE_LINES_MAX, Tree,
    folder_of, resolve,
};

/// Words at whose end a time is named, and must have its unit after it.
const TIMES: [&str; 12] = [
    "age", "deadline", "delay", "duration", "elapsed", "interval", "lag", "latency", "lifetime", "rtt",
    "timeout", "uptime",
];
/// Types that have no unit of their own.
const NUMBERS: [&str; 14] =
    ["u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize", "f32", "f64"];

/// Judges one file.
pub(super) fn judge(tree: &Tree, file: &File, findings: &mut Vec<Finding>) {
    let File { path, text } = file;
    let lines = text.lines().count();
    let most = if path.starts_with(SOCKETS) { SOCKETS_FILE_LINES_MAX } else { FILE_LINES_MAX };
    if lines > most {
        findings.push(Finding {
            rule: Rule::FileLines,
            key: path.clone(),
            lines,
            message: format!("{path}: {lines} lines, {most} at most: split it by idea"),
        });
    }
    let code = code(text);
    let line_of = |at: usize| 1 + code[..at].matches('\n').count();
    long_functions(path, &code, &line_of, findings);
    for (at, name) in times(&code) {
        findings.push(Finding {
            rule: Rule::Units,
            key: format!("{path}: {name}"),
            lines: 0,
            message: format!(
                "{path}:{}: {name} is a number: end its name in its unit (_us, _ms, _s, …)",
                line_of(at)
            ),
        });
    }
    for (at, target) in path_attributes(text, &code) {
        findings.push(Finding {
            rule: Rule::PathAttributes,
            key: format!("{path}: {target}"),
            lines: 0,
            message: format!(
                "{path}:{}: #[path = \"{target}\"]: put what is shared into a crate",
                line_of(at)
            ),
        });
    }
    let own = tree.crate_of(path);
    for (at, from_crate, target) in includes(text, &code) {
        let place = resolve(if from_crate { own } else { folder_of(path) }, target.trim_start_matches('/'));
        let inside = place.is_some_and(|place| own.is_empty() || place.starts_with(&format!("{own}/")));
        if !inside {
            findings.push(Finding {
                rule: Rule::Includes,
                key: format!("{path}: {target}"),
                lines: 0,
                message: format!(
                    "{path}:{}: {target} is not of this crate: a test reads it when it runs",
                    line_of(at)
                ),
            });
        }
    }
}

/// Notes the functions that are too long; of several with one name in a file, each further one has its number.
fn long_functions(path: &str, code: &str, line_of: &dyn Fn(usize) -> usize, findings: &mut Vec<Finding>) {
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, name, end) in functions(code) {
        let lines = 1 + code[at..end].matches('\n').count();
        if lines <= FUNCTION_LINES_MAX {
            continue;
        }
        let count = names.entry(name).or_default();
        *count += 1;
        let name = if *count == 1 { name.to_owned() } else { format!("{name} #{count}") };
        findings.push(Finding {
            rule: Rule::FunctionLines,
            key: format!("{path}: {name}"),
            lines,
            message: format!(
                "{path}:{}: {name} has {lines} lines, {FUNCTION_LINES_MAX} at most: let it do one thing",
                line_of(at)
            ),
        });
    }
}

/// A Rust file with blanks in place of what its comments and literals say, so that what is left is code, where it was.
fn code(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let (from, to, next) = passage(bytes, at);
        for byte in code[from..to].iter_mut().filter(|byte| **byte != b'\n') {
            *byte = b' ';
        }
        at = next;
    }
    // Passages begin and end at ASCII characters.
    String::from_utf8_lossy(&code).into_owned()
}

/// What begins at a byte: from where to where it says nothing as code, and where the next thing begins.
fn passage(bytes: &[u8], at: usize) -> (usize, usize, usize) {
    let rest = &bytes[at..];
    let find = |from: usize, what: &[u8]| {
        let place =
            bytes.get(from..).unwrap_or_default().windows(what.len()).position(|window| window == what);
        place.map_or(bytes.len(), |place| from + place)
    };
    match rest {
        [b'/', b'/', ..] => {
            let end = find(at, b"\n");
            (at, end, end)
        }
        [b'/', b'*', ..] => {
            let end = comment_end(bytes, at);
            (at, end, end)
        }
        [b'"', ..] => {
            let end = string_end(bytes, at + 1);
            (at + 1, end, end + 1)
        }
        [b'r', b'"' | b'#', ..] | [b'b' | b'c', b'r', b'"' | b'#', ..] if !continues_a_name(bytes, at) => {
            let marks = at + rest.iter().position(|&byte| byte == b'r').unwrap_or(0) + 1;
            let hashes = bytes[marks..].iter().take_while(|&&byte| byte == b'#').count();
            if bytes.get(marks + hashes) != Some(&b'"') {
                // A raw name.
                return (at, at, marks + hashes);
            }
            let end = find(marks + hashes + 1, &[&b"\""[..], &b"#".repeat(hashes)].concat());
            (marks + hashes + 1, end.min(bytes.len()), (end + 1 + hashes).min(bytes.len()))
        }
        [b'\'', b'\\', _, ..] => {
            let end = find(at + 3, b"'");
            (at + 1, end, (end + 1).min(bytes.len()))
        }
        // One character, of up to four bytes; else it is a lifetime.
        [b'\'', first, ..] if *first != b'\'' => {
            let length = match first {
                0xf0.. => 4,
                0xe0.. => 3,
                0xc0.. => 2,
                _ => 1,
            };
            let end = at + 1 + length;
            if bytes.get(end) == Some(&b'\'') { (at + 1, end, end + 1) } else { (at, at, at + 1) }
        }
        _ => (at, at, at + 1),
    }
}

fn continues_a_name(bytes: &[u8], at: usize) -> bool {
    at > 0 && is_name(bytes[at - 1])
}

const fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The end of a comment of the other kind, which can hold comments.
fn comment_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] if depth == 1 => return at + 2,
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    at
}

/// Where the quote is that ends a string.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at.min(bytes.len())
}

/// Where names are, and what they are.
fn names(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let bytes = code.as_bytes();
        while at < bytes.len() && !is_name(bytes[at]) {
            at += 1;
        }
        let from = at;
        while at < bytes.len() && is_name(bytes[at]) {
            at += 1;
        }
        (from < at).then(|| (from, &code[from..at]))
    })
}

/// Functions with a body: where each begins, its name, and where its last brace is.
fn functions(code: &str) -> Vec<(usize, &str, usize)> {
    let mut functions = Vec::new();
    let mut all = names(code).peekable();
    while let Some((at, word)) = all.next() {
        let Some(&(place, name)) = all.peek() else { break };
        // `fn(u8)` is a type.
        if word != "fn" || !code[at + 2..place].bytes().all(|byte| byte.is_ascii_whitespace()) {
            continue;
        }
        if let Some(end) = body_end(&code.as_bytes()[place..]) {
            functions.push((at, name, place + end));
        }
    }
    functions
}

/// Where the brace is that ends the body of a function, whose name begins here; `None` if it has no body.
fn body_end(code: &[u8]) -> Option<usize> {
    let mut depth = 0_usize;
    let mut inside = false;
    for (at, byte) in code.iter().enumerate() {
        match byte {
            b';' if depth == 0 => return None,
            b'{' if depth == 0 => (depth, inside) = (1, true),
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 && inside {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// Fields, variables and constants that name a time, and are a number.
fn times(code: &str) -> Vec<(usize, &str)> {
    let mut times = Vec::new();
    let mut before: Option<(usize, &str)> = None;
    for (at, name) in names(code) {
        if let Some((place, its)) = before
            && code[place + its.len()..at].trim() == ":"
            && NUMBERS.contains(&name)
            && !code[at + name.len()..].starts_with("::")
            && its.to_ascii_lowercase().rsplit('_').next().is_some_and(|last| TIMES.contains(&last))
        {
            times.push((place, its));
        }
        before = Some((at, name));
    }
    times
}

/// Where `#[path = "…"]` is, and what it says.
fn path_attributes<'a>(text: &'a str, code: &str) -> Vec<(usize, &'a str)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("#[path") {
        if let Some(said) = literals(text, code, at).next()
            && code[at + 6..].trim_start().starts_with('=')
        {
            found.push((at, said));
        }
    }
    found
}

/// Where something is included when the crate is built, whether its path begins at the crate's folder, and the path.
fn includes<'a>(text: &'a str, code: &str) -> Vec<(usize, bool, &'a str)> {
    let mut found = Vec::new();
    for (at, name) in names(code) {
        let after = at + name.len();
        if !matches!(name, "include" | "include_str" | "include_bytes" | "include_bytes_aligned")
            || !code[after..].starts_with("!(")
        {
            continue;
        }
        let end = after + 1 + body_of_parentheses(&code[after + 1..]);
        let mut said = literals(text, &code[..end], at);
        match said.next() {
            Some("OUT_DIR") | None => {}
            Some("CARGO_MANIFEST_DIR") => found.extend(said.next().map(|path| (at, true, path))),
            Some(path) => found.push((at, false, path)),
        }
    }
    found
}

/// How long a pair of parentheses is with what is in it.
fn body_of_parentheses(code: &str) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' if depth <= 1 => return at + 1,
            b')' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

/// What strings say, from a place on.
fn literals<'a>(text: &'a str, code: &str, from: usize) -> impl Iterator<Item = &'a str> {
    let quotes: Vec<usize> = code[from..].match_indices('"').map(|(at, _)| from + at).collect();
    let pairs: Vec<&str> = quotes.chunks_exact(2).map(|pair| &text[pair[0] + 1..pair[1]]).collect();
    pairs.into_iter()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{found, tree};
    use super::*;

    #[test]
    fn comments_and_literals_are_no_code() {
        let blank = |text: &str| code(text).replace(' ', "");
        assert_eq!(blank("a // b\nc /* d /* e */ f */ g"), "a\ncg");
        assert_eq!(blank(r#"a("b\"c"), b'{', '}', '\'', '\u{7d}', 'ä', x"#), r#"a(""),b'','','','','',x"#);
        assert_eq!(blank(r###"r#"a"b"#, br"c\", r#type, 'a: 'b"###), r###"r#""#,br"",r#type,'a:'b"###);
        assert_eq!(code("\"ä\nb\"").len(), "\"ä\nb\"".len(), "places stay");
    }

    fn function(lines: usize) -> String {
        format!("impl A {{\n    fn long(a: [u8; 2]) {{\n{}    }}\n}}\n", "        // }\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_is_too_long_from_81_lines_on() {
        assert_eq!(found(&[("a.rs", &function(81))], Rule::FunctionLines), ["a.rs: long"]);
        assert_eq!(found(&[("a.rs", &function(80))], Rule::FunctionLines), [""; 0]);
        let twice = [function(90), function(100)].concat();
        let findings = tree(&[("a.rs", &twice)]).findings();
        let long: Vec<_> = findings.iter().filter(|finding| finding.rule == Rule::FunctionLines).collect();
        assert_eq!((long[0].key.as_str(), long[0].lines), ("a.rs: long", 90));
        assert_eq!((long[1].key.as_str(), long[1].lines), ("a.rs: long #2", 100));
    }

    #[test]
    fn a_function_without_a_body_has_no_lines() {
        let text = format!(
            "trait A {{\n    fn short(&self);\n}}\ntype B = fn(u8);\nstruct C {{\n{}}}\n",
            "\n".repeat(90)
        );
        assert_eq!(found(&[("a.rs", &text)], Rule::FunctionLines), [""; 0]);
    }

    #[test]
    fn a_time_that_is_a_number_has_its_unit() {
        let bad = "struct A {\n    reset_delay: u64,\n}\nconst TIMEOUT: u32 = 3;\nfn b(rtt: f64) {}\n";
        assert_eq!(found(&[("a.rs", bad)], Rule::Units), ["a.rs: reset_delay", "a.rs: TIMEOUT", "a.rs: rtt"]);
        let good = "struct A {\n    delay_us: u64,\n    timeout: Duration,\n    flag: u8,\n    // delay: u64\n    delays: u32,\n}\n\
                    const A: A = A { delay: u64::MAX };\n";
        assert_eq!(found(&[("a.rs", good)], Rule::Units), [""; 0]);
    }

    #[test]
    fn modules_are_where_their_names_say() {
        let bad = "#[path = \"../b.rs\"]\nmod b;\n";
        assert_eq!(found(&[("a/c.rs", bad)], Rule::PathAttributes), ["a/c.rs: ../b.rs"]);
        let good = "// #[path = \"../b.rs\"]\nmod b;\nconst A: &str = \"#[path = \";\n";
        assert_eq!(found(&[("a/c.rs", good)], Rule::PathAttributes), [""; 0]);
    }

    #[test]
    fn what_is_included_lies_in_the_crate() {
        let found = |text: &str| found(&[("c/a/Cargo.toml", ""), ("c/a/src/b.rs", text)], Rule::Includes);
        assert_eq!(found("const A: &str = include_str!(\"../../x.md\");"), ["c/a/src/b.rs: ../../x.md"]);
        let manifest = "include_bytes!(concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/../x\"))";
        assert_eq!(found(manifest), ["c/a/src/b.rs: /../x"]);
        for good in [
            "include_str!(\"../x.md\")",
            "include_str!(\"x.md\")",
            "include_bytes!(concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/x\"))",
            "include!(concat!(env!(\"OUT_DIR\"), \"/../../x\"))",
            "// include_str!(\"../../x.md\")",
            "std::fs::read(concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/../x\"))",
        ] {
            assert_eq!(found(good), [""; 0], "{good}");
        }
    }
}

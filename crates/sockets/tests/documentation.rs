//! The tables of docs/sockets.md say what the code does.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The names in backticks in the first column of the table under that heading.
fn first_column(heading: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("../../docs/sockets.md")).unwrap();
    let rows = text.lines().skip_while(|line| !line.starts_with(heading)).skip(2);
    let mut names = BTreeSet::new();
    for row in rows.take_while(|line| line.starts_with('|')) {
        let cell = row.trim_start_matches('|').split('|').next().unwrap();
        for name in cell.split('`').skip(1).step_by(2) {
            assert!(names.insert(name.to_owned()), "{name} stands twice under {heading}");
        }
    }
    names
}

/// Whether it is a C identifier.
fn is_name(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

#[test]
fn every_hook_is_in_the_table_and_the_other_way_round() {
    let mut hooks = BTreeSet::new();
    for file in fs::read_dir(root().join("src/hooks")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let mut exported = false;
        for line in text.lines() {
            exported |= line.trim() == "#[unsafe(no_mangle)]";
            if let Some((_, after)) =
                line.split_once("extern \"C\" fn ").or_else(|| line.split_once("extern \"C-unwind\" fn "))
                && std::mem::take(&mut exported)
            {
                hooks.insert(after.split('(').next().unwrap().to_owned());
            }
        }
        // Those that a macro makes: `name: what_it_calls;`
        if let Some((_, made)) = text.split_once("\nvariadic! {\n") {
            let lines = made.lines().take_while(|line| *line != "}");
            hooks.extend(lines.map(|line| line.trim().split(':').next().unwrap().to_owned()));
        }
    }
    hooks.retain(|name| is_name(name));
    assert!(hooks.len() > 70, "{hooks:?}");
    let table = first_column("| call |");
    let (undocumented, unhooked): (Vec<_>, Vec<_>) =
        (hooks.difference(&table).collect(), table.difference(&hooks).collect());
    assert!(undocumented.is_empty() && unhooked.is_empty(), "hooks {undocumented:?}, table {unhooked:?}");
}

/// The names of libc's, or of the kernel's, that stand in a piece of code.
fn options_in(code: &str) -> BTreeSet<String> {
    code.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
        .filter(|word| ["SO_", "IP_", "IPV6_", "TCP_", "UDP_"].iter().any(|prefix| word.starts_with(prefix)))
        .map(str::to_owned)
        .collect()
}

fn code(file: &str, from: &str, to: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join(file)).unwrap();
    let (_, body) = text.split_once(from).unwrap();
    options_in(body.split_once(to).unwrap().0)
}

#[test]
fn options_are_kept_where_the_table_says() {
    let kept = code("src/calls/options.rs", "const fn shape(", "\n}\n");
    assert!(kept.len() > 20, "{kept:?}");
    assert_eq!(first_column("| option of a connection |"), kept);
}

#[test]
fn options_make_a_socket_the_kernels_as_the_table_says() {
    let given_up = code("src/calls/options.rs", "const FOR_THE_KERNEL: ", "\n];\n");
    assert!(given_up.len() > 20, "{given_up:?}");
    assert_eq!(first_column("| option that only the kernel follows |"), given_up);
}

#[test]
fn options_leave_udp_sockets_as_the_table_says() {
    let mut kept = code("src/calls/datagram.rs", "pub(crate) fn option_was_set(", "\n}\n");
    kept.extend(code("src/stack/datagram.rs", "pub(crate) mod wants {", "\n}\n"));
    assert!(kept.len() > 20, "{kept:?}");
    assert_eq!(first_column("| option of a UDP socket |"), kept);
}

#[test]
fn options_of_listeners_are_those_of_the_table() {
    let mut read = code("src/kernel.rs", "pub(crate) fn defer_accept(", "\n}\n");
    read.extend(code("src/kernel.rs", "pub(crate) fn fast_open_max(", "\n}\n"));
    assert_eq!(first_column("| option of a listener |"), read);
}

//! The tables of docs/sockets.md say what the code does, and those of docs/differences.md name tests that there are.

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
            exported |= line.trim() == "#[cfg_attr(not(test), unsafe(no_mangle))]";
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

/// Rust files under `folder`, with their text up to their tests.
fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.file_stem() == Some("tests".as_ref()) {
            continue;
        }
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let name = path.strip_prefix(root().join("src")).unwrap().to_str().unwrap().to_owned();
            found.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
}

/// Options that code outside of the table names, by file, and why.
const BESIDE_THE_TABLE: [(&str, &[&str], &str); 11] = [
    ("calls/options.rs", &["SO_SNDTIMEO"], "which of two time-outs the kernel's socket says too little of"),
    (
        "hooks/ancillary.rs",
        &[
            "IPV6_HOPLIMIT",
            "IPV6_PKTINFO",
            "IPV6_RECVERR",
            "IPV6_TCLASS",
            "IP_PKTINFO",
            "IP_RECVERR",
            "IP_TOS",
            "IP_TTL",
            "UDP_GRO",
            "UDP_SEGMENT",
        ],
        "names of control messages",
    ),
    ("hooks/options.rs", &["SO_ERROR"], "a UDP socket may have an error of its own, else the kernel's"),
    ("kernel.rs", &["SO_BINDTOIFINDEX", "TCP_INFO"], "what the library itself asks the kernel's socket"),
    ("kernel/ports.rs", &["IP_BIND_ADDRESS_NO_PORT"], "which ports the kernel may choose"),
    (
        "kernel/connection.rs",
        &["IP_RECVOPTS", "IP_RETOPTS", "TCP_INFO", "TCP_REPAIR"],
        "what the library itself asks the kernel's socket, and keeps in it",
    ),
    (
        "options/backing.rs",
        &[
            "IPV6_UNICAST_HOPS",
            "IP_TTL",
            "SO_RCVBUF",
            "SO_SNDBUF",
            "TCP_CONGESTION",
            "TCP_MAXSEG",
            "TCP_SYNCNT",
        ],
        "a fresh socket's",
    ),
    (
        "options.rs",
        &["IPV6_TCLASS", "IPV6_UNICAST_HOPS", "IP_TOS", "IP_TTL"],
        "what the packets of a UDP socket are marked with: two options, read together",
    ),
    ("options/info.rs", &["TCP_INFO"], "how long the kernel's is"),
    (
        "options/access.rs",
        &["SO_RCVBUF", "TCP_MAXSEG"],
        "what the kernel's socket says where the connection does not",
    ),
    ("process/datagram.rs", &["SO_REUSEPORT"], "whether others may have the port as well"),
];

/// An option stands in one place: who adds one cannot forget another.
#[test]
fn options_stand_in_the_table_alone() {
    let mut found = Vec::new();
    sources(&root().join("src"), &mut found);
    let mut beside = BTreeSet::new();
    for (file, text) in found.iter().filter(|(file, _)| file != "options/table.rs") {
        for after in text.split("libc::").skip(1) {
            let name: String =
                after.chars().take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '_').collect();
            if ["SO_", "IP_", "IPV6_", "TCP_", "UDP_"].iter().any(|prefix| name.starts_with(prefix)) {
                beside.insert((file.as_str(), name));
            }
        }
    }
    let explained = BESIDE_THE_TABLE
        .iter()
        .flat_map(|&(file, names, _)| names.iter().map(move |&name| (file, name.to_owned())))
        .collect();
    let missing: Vec<_> = beside.difference(&explained).collect();
    let idle: Vec<_> = explained.difference(&beside).collect();
    assert!(missing.is_empty() && idle.is_empty(), "not explained {missing:?}, no more there {idle:?}");
}

/// tests/errnos.rs holds every option of a TCP socket that the tables name against the kernel's, in each state.
#[test]
fn the_walk_through_states_leaves_no_option_out() {
    let script = fs::read_to_string(root().join("tests/programs/errnos.py")).unwrap();
    let tables =
        ["| option of a connection |", "| option of a listener |", "| option that only the kernel follows |"];
    for name in tables.into_iter().flat_map(first_column) {
        // As a key of what is asked for in a row, or in a call of its own.
        let walked = [format!("\"{name}\""), format!("get {name}\""), format!("set {name}\"")]
            .iter()
            .any(|key| script.contains(key));
        assert!(walked, "{name}");
    }
}

/// The names of all functions under `#[test]` of a folder.
fn tests_of(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tests_of(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let mut lines = text.lines().map(str::trim);
            while lines.by_ref().any(|line| line == "#[test]") {
                let name = lines.by_ref().find_map(|line| line.strip_prefix("fn ")?.split('(').next());
                found.extend(name.map(str::to_owned));
            }
        }
    }
}

/// Every row about a cause names a test or a program that uses it, and whatever it names is there.
#[test]
fn every_difference_names_a_test() {
    let repository = root().join("../..");
    let mut tests = BTreeSet::new();
    tests_of(&repository.join("tests/tests"), &mut tests);
    for package in fs::read_dir(repository.join("crates")).unwrap() {
        for folder in ["src", "tests"].map(|name| package.as_ref().unwrap().path().join(name)) {
            if folder.is_dir() {
                tests_of(&folder, &mut tests);
            }
        }
    }
    let mut functions = BTreeSet::new();
    for script in fs::read_dir(root().join("tests/programs")).unwrap() {
        let text = fs::read_to_string(script.unwrap().path()).unwrap();
        let defined = text.lines().filter_map(|line| line.trim().strip_prefix("def ")?.split('(').next());
        functions.extend(defined.map(str::to_owned));
    }
    let text = fs::read_to_string(repository.join("docs/differences.md")).unwrap();
    let rows = text.lines().skip_while(|line| !line.starts_with("| what |")).skip(2);
    let rows: Vec<&str> = rows.take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() > 30, "{} rows", rows.len());
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, _, cause, before, now, named, _] = cells[..] else { panic!("not five cells: {row}") };
        assert!(![cause, before, now].contains(&""), "{row}");
        let words: Vec<&str> = named.split('`').collect();
        let mut any = false;
        for pair in words.windows(2).step_by(2) {
            let (before, name) = (pair[0], pair[1]);
            let program = before.ends_with("program ");
            let is_there = if program {
                repository.join("workloads/programs").join(name).is_dir()
            } else {
                tests.contains(name) || functions.contains(name)
            };
            assert!(is_there, "no {name}: {row}");
            any |= program || tests.contains(name);
        }
        assert!(any, "no test: {row}");
    }
}

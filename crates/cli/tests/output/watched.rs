//! `overfly top`, `sockets` and `dump`, looking at somebody who would harm who looks.

use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use overfly_bench::lab::Lab;
use serde_json::Value;

use crate::inside;
use crate::stranger::{ATTACK, Manner, PROGRAM, Stranger, assert_harmless};

fn look(lab: &Lab, words: &[&str]) -> Output {
    inside(lab).args(words).stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn harmless(lab: &Lab, words: &[&str]) -> String {
    let output = look(lab, words);
    assert_harmless(&format!("{words:?}"), &output.stdout);
    assert_harmless(&format!("{words:?}, standard error"), &output.stderr);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn names_and_numbers_of_strangers_steer_no_terminal() {
    let lab = Lab::new(crate::OVERFLY).unwrap();
    let interface = format!("{ATTACK}0");
    let _stranger = Stranger::at(&lab, &interface, 0, Manner::Polite);
    let top = harmless(&lab, &["top", "-n", "1", "--interval", "0.05"]);
    assert!(
        top.contains(r"\x1b[2J") && top.contains(r"\u{202e}") && top.contains("left to the kernel"),
        "{top}"
    );
    assert!(!top.contains(&"x".repeat(100)), "{top}");
    // One line for the head, one for the process, two for what is to be said of it, and an empty one.
    assert_eq!(top.lines().count(), 5, "{top}");

    let json = harmless(&lab, &["top", "--json", "-n", "1", "--interval", "0.05"]);
    let value: Value = serde_json::from_str(&json).unwrap();
    let stack = &value["stacks"][0];
    assert_eq!(stack["program"].as_str(), PROGRAM.get(..15).or(Some(PROGRAM)), "{json}");
    assert_eq!(stack["interface"], *interface, "{json}");
    assert_eq!(stack["counters"][format!("engine.drop_{ATTACK}")], 8, "{json}");

    let sockets = harmless(&lab, &["sockets"]);
    assert!(sockets.contains(r"\x1b[2J") && sockets.contains("10.0.0.2:9"), "{sockets}");
    assert_eq!(sockets.lines().count(), 3, "{sockets}");
    let json = harmless(&lab, &["sockets", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["interface"], *interface);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dump.pcapng");
    let file = file.to_str().unwrap();
    harmless(&lab, &["dump", "-w", file, "--count", "3", "--snaplen", "60"]);
    let bytes = std::fs::read(file).unwrap();
    assert!(!bytes.windows(4).any(|window| window == b"\x1b[2J"), "a name in the file");
    let tcpdump = std::process::Command::new("tcpdump").args(["-nr", file]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&tcpdump.stdout).matches("length 100").count(), 3, "{tcpdump:?}");
}

#[test]
fn who_says_nothing_and_who_never_ends_take_nobodys_time() {
    let lab = Lab::new(crate::OVERFLY).unwrap();
    let strangers: Vec<Stranger> =
        (0..20).map(|index| Stranger::at(&lab, &format!("a{index}"), 0, Manner::Silent)).collect();
    let endless = Stranger::at(&lab, "b", 0, Manner::Endless);
    let polite = Stranger::at(&lab, "z", 0, Manner::Polite);
    let began = Instant::now();
    let sockets = harmless(&lab, &["sockets"]);
    assert!(sockets.contains("10.0.0.2:9"), "{sockets}");
    // One after the other they took ten seconds each.
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    drop((strangers, endless, polite));
}

#[test]
fn a_user_speaks_of_its_own_processes_only() {
    let lab = Lab::new(crate::OVERFLY).unwrap();
    // It says that the process is root's.
    let _stranger = Stranger::at(&lab, "eth0", 65534, Manner::Polite);
    let output = look(&lab, &["sockets"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("no program"), "{output:?}");
}

#[test]
fn names_in_messages_are_escaped() {
    let lab = Lab::new(crate::OVERFLY).unwrap();
    let name = format!("./{ATTACK}\nall is well");
    for (words, status) in [
        (vec!["run", "--", name.as_str()], 127),
        (vec!["run", "-p", &name, "--", "true"], 2),
        (vec!["bench", &name], 2),
        (vec!["profile", "show", &name], 2),
        (vec!["load", "http", &name], 2),
        (vec!["load", "merge", &name], 2),
        (vec![name.as_str()], 2),
        (vec!["top", "-i", &name, "--interval", "0"], 2),
    ] {
        let output = look(&lab, &words);
        assert_harmless(&format!("{words:?}"), &output.stderr);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {output:?}");
    }
}

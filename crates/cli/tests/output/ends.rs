//! Every subcommand with a full disk, a closed descriptor and a reader that has gone at each of its three ends.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use overfly_bench::lab::Lab;

use crate::server::Server;
use crate::stranger::{Manner, Stranger};
use crate::{OVERFLY, inside};

/// What `overfly bench` writes, as far as `overfly report diff` reads it.
const SUMMARY: &str = r#"{
    "title": "t",
    "environment": { "cpu_model": "c", "cores": 2, "kernel": "k", "server_version": "s" },
    "cells": [{
        "payload_bytes": 0, "connection": "close", "link": "xdp",
        "overfly": { "points": [1, 2, 3], "disturbed": [], "errors": 0 }
    }]
}"#;

/// What a descriptor of the command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// A device that has no room.
    Full,
    /// A pipe that nobody has the other end of.
    Gone,
    /// Nothing at all.
    Closed,
}

/// A command line, and the status that it ends with when all is well.
struct Case {
    words: Vec<String>,
    status: i32,
    /// Something goes to standard output.
    prints: bool,
    /// Another process that it needs.
    partner: Option<Vec<String>>,
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

fn prints(text: impl AsRef<str>) -> Case {
    Case { words: words(text.as_ref()), status: 0, prints: true, partner: None }
}

fn quiet(text: impl AsRef<str>, status: i32) -> Case {
    Case { status, prints: false, ..prints(text) }
}

/// The names under `Commands:` in a page of help.
fn listed(path: &[&str]) -> Vec<String> {
    let output = Command::new(OVERFLY).args(path).arg("--help").output().unwrap();
    let page = String::from_utf8(output.stdout).unwrap();
    let Some((_, commands)) = page.split_once("\nCommands:\n") else { return Vec::new() };
    let commands = commands.split("\n\n").next().unwrap_or_default();
    let names = commands.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !name.is_empty() && *name != "help").map(str::to_owned).collect()
}

/// Every subcommand that there is, as it is typed.
fn subcommands() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for name in listed(&[]) {
        match listed(&[&name]).as_slice() {
            [] => _ = all.insert(name),
            under => all.extend(under.iter().map(|its| format!("{name} {its}"))),
        }
    }
    all
}

/// Where the commands are tried.
struct Stage {
    lab: Lab,
    server: Server,
    folder: tempfile::TempDir,
    _stranger: Stranger,
}

impl Stage {
    fn new() -> Stage {
        let lab = Lab::new(OVERFLY).unwrap();
        let server = lab.within("server", || Server::new(4, Duration::from_millis(1))).unwrap();
        let stranger = Stranger::at(&lab, "eth0", 0, Manner::Polite);
        let folder = tempfile::tempdir().unwrap();
        let stage = Stage { lab, server, folder, _stranger: stranger };
        stage.write_plan();
        let report =
            stage.command(&words(&format!("load http -c 2 -n 20 --json {}", stage.url()))).output().unwrap();
        fs::write(stage.file("report.json"), report.stdout).unwrap();
        fs::write(stage.file("summary.json"), SUMMARY).unwrap();
        fs::create_dir(stage.file("root")).unwrap();
        let profile = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/tests/profiles/http_by_program.py");
        fs::copy(profile, stage.file("profile.py")).unwrap();
        stage
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn url(&self) -> String {
        format!("http://{}/", self.server.address)
    }

    fn write_plan(&self) {
        let template = concat!(env!("CARGO_MANIFEST_DIR"), "/../../workloads/nginx/nginx.conf");
        fs::copy(template, self.file("nginx.conf")).unwrap();
        let plan = r#"
title = "ends"
modes = ["kernel"]
links = ["kernel"]
payload_bytes = [1024]
connections = ["keepalive"]
repeats = 1
warmup_s = 0.05
duration_s = 0.5
[server]
program = "nginx"
arguments = ["-e", "stderr", "-p", "@ROOT@", "-c", "@CONFIG@"]
config = "nginx.conf"
cpu = 0
[client]
connections = 2
cpu = 0
"#;
        fs::write(self.file("plan.toml"), plan).unwrap();
    }

    fn command(&self, words: &[String]) -> Command {
        let mut command = inside(&self.lab);
        command.args(words).current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    /// Those of a group one after the other.
    fn cases(&self) -> Vec<Vec<Case>> {
        let url = self.url();
        let place = self.file("gather");
        let mut gather = prints(format!("load gather -g 1 -l {place}"));
        gather.partner = Some(words(&format!("load http -c 1 -n 20 --join {place} {url}")));
        let lab = "--prefix ends-";
        let machine = vec![
            quiet("run --interface none0 -- true", 0),
            prints("profile list"),
            prints("profile show"),
            prints("profile options"),
            prints("top -n 1 --interval 0.05"),
            prints("top --json -n 1 --interval 0.05"),
            prints("sockets"),
            prints("sockets --json"),
            prints("dump --count 5"),
            prints(format!("lab up {lab}")),
            quiet(format!("lab exec {lab} server -- true"), 0),
            prints(format!("lab down {lab}")),
            prints("report diff summary.json summary.json"),
            prints("report diff --json summary.json summary.json"),
            prints("tune check --json --root root"),
            prints("tune hold --help"),
            quiet("tune apply --root root", 0),
            quiet("tune revert --root root", 0),
            prints("completions bash"),
            prints("man man1"),
            prints("--help"),
            prints("--version"),
            prints("run --help"),
            prints("broker --help"),
            quiet("fly", 2),
        ];
        let load = vec![
            prints(format!("load http -c 2 -n 20 {url}")),
            prints(format!("load http -c 2 -n 20 --json {url}")),
            prints(format!("load http -c 1:2 -d 100ms --find-max p99<1s {url}")),
            prints(format!("load http -c 1:2 -d 100ms --find-max p99<1s --json {url}")),
            prints("load serve -p 0 -d 100ms"),
            prints("load serve -p 0 -d 100ms --json"),
            prints("load merge report.json"),
            prints("load merge --json report.json"),
            prints("load astf profile.py -m 1 -d 0.2"),
            prints("load astf profile.py -m 1 -d 0.2 --json"),
            gather,
        ];
        let dialects = vec![
            prints(format!("load wrk -t 1 -c 2 -d 1 {url}")),
            prints(format!("load wrk2 -t 1 -c 2 -d 1 -R 50 {url}")),
            prints(format!("load ab -n 20 -c 2 {url}")),
            prints(format!("load ab -n 20 -c 2 -v 2 {url}")),
            prints("load ab -V"),
            prints("load wrk -v"),
            prints(format!(
                "load vod --streams 2 --initial 2 --hold 100ms --buffer 10 --drain-rate 8 -t 1 {url}"
            )),
        ];
        vec![machine, load, dialects, vec![prints("bench plan.toml")]]
    }

    /// Runs a case with one of its ends as it is said; the other two are as they should be.
    fn run(&self, case: &Case, bad: Option<(i32, End)>) -> Output {
        let _ = fs::remove_file(self.file("gather"));
        let mut command = match bad {
            Some((number, End::Closed)) => {
                // A shell in the lab closes it: std gives children an open one.
                let mut shell = self.lab.command("server", "sh");
                let close = if number == 0 { "<&-".to_owned() } else { format!("{number}>&-") };
                shell.args(["-c", &format!("exec \"$@\" {close}"), "sh", OVERFLY]).args(&case.words);
                shell.current_dir(self.folder.path());
                shell
            }
            _ => self.command(&case.words),
        };
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        match bad {
            Some((0, End::Gone)) => _ = command.stdin(std::io::pipe().unwrap().0),
            Some((number @ (1 | 2), end @ (End::Full | End::Gone))) => {
                let to = match end {
                    End::Full => Stdio::from(File::options().write(true).open("/dev/full").unwrap()),
                    _ => Stdio::from(std::io::pipe().unwrap().1),
                };
                _ = if number == 1 { command.stdout(to) } else { command.stderr(to) };
            }
            _ => {}
        }
        let child = command.spawn().unwrap();
        // What holds the pipe's end here goes with it.
        drop(command);
        let partner = case.partner.as_ref().map(|words| self.partner(words));
        let output = child.wait_with_output().unwrap();
        if let Some(mut partner) = partner {
            let _ = partner.kill();
            let _ = partner.wait();
        }
        output
    }

    /// Once there is somebody to join.
    fn partner(&self, words: &[String]) -> Child {
        let place = self.file("gather");
        for _ in 0..2000 {
            if fs::exists(&place).unwrap() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.command(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    #[track_caller]
    fn check(&self, case: &Case) {
        let usual = self.run(case, None);
        let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(usual.status.code(), Some(case.status), "{:?}: {}", case.words, said(&usual));
        assert_eq!(!usual.stdout.is_empty(), case.prints, "{:?}: {:?}", case.words, usual);
        for number in 0..3 {
            for end in [End::Full, End::Gone, End::Closed] {
                if (number, end) == (0, End::Full) {
                    continue;
                }
                let output = self.run(case, Some((number, end)));
                let printed = String::from_utf8_lossy(&output.stdout).into_owned();
                let what = format!(
                    "{:?}, {end:?} {number}: {} {}{printed}",
                    case.words,
                    output.status,
                    said(&output)
                );
                assert_eq!(output.status.signal(), None, "{what}");
                let expected = match (number, end, case.prints) {
                    (1, End::Full, true) => 1,
                    (1, End::Gone, true) => 141,
                    _ => case.status,
                };
                assert_eq!(output.status.code(), Some(expected), "{what}");
                match (number, end) {
                    (1, End::Full) if case.prints => {
                        assert!(said(&output).contains("standard output: No space left"), "{what}");
                    }
                    (1, End::Gone) if case.prints => {
                        assert!(
                            !said(&output).contains("output") && !said(&output).contains("pipe"),
                            "{what}"
                        );
                    }
                    _ => {}
                }
                assert!(!said(&output).contains("panicked"), "{what}");
            }
        }
    }
}

#[test]
fn every_subcommand_ends_well_whatever_its_ends_are() {
    let stage = Stage::new();
    let groups = stage.cases();
    for name in subcommands() {
        // What a machine can do is asked of the machine below.
        let tried = groups.iter().flatten().any(|case| case.words.join(" ").starts_with(&name));
        assert!(tried || name == "doctor", "`overfly {name}` has no case here");
    }
    std::thread::scope(|scope| {
        for group in groups {
            scope.spawn(|| group.into_iter().for_each(|case| stage.check(&case)));
        }
        for text in ["doctor", "doctor --json"] {
            let able = stage.run(&prints(text), None).status.code().unwrap();
            stage.check(&Case { status: able, ..prints(text) });
        }
    });
}

#[test]
fn files_that_cannot_be_written_are_said_and_are_no_success() {
    let stage = Stage::new();
    let url = stage.url();
    for text in [
        format!("load http -c 2 -d 1200ms --csv /dev/full {url}"),
        format!("load http -c 2 -n 4 --csv /dev/full {url}"),
        format!("load http -c 2 -d 1200ms --hdr /dev/full {url}"),
        format!("load http -c 2 -n 4 --hdr /dev/full {url}"),
        format!("load ab -n 20 -c 2 -e /dev/full {url}"),
        format!("load ab -n 20 -c 2 -g /dev/full {url}"),
        "dump -w /dev/full --count 5".to_owned(),
        "dump -w /dev/full --seconds 0.2".to_owned(),
    ] {
        let output = stage.command(&words(&text)).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}: {said}");
        assert!(said.contains("/dev/full: No space left on device"), "{text}: {said}");
    }
}

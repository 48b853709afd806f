//! The command as people use it: `overfly` is run as a process. Needs root.

#![forbid(unsafe_code)]

mod bench;
mod book;
mod install;
mod lab;
mod run;
mod tune;

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use overfly_testing::process::{alive, descendants};

/// The command under test.
fn overfly() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_overfly"));
    command.stdin(Stdio::null());
    // What the machine's user may have set is no part of a test.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("EF_") || name == "OVERFLY_LAB_PREFIX" {
            command.env_remove(name);
        }
    }
    command
}

/// Exit status, and what was said on standard error.
fn outcome(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Fails unless the command was refused with `status` and one line that holds every one of `words`.
#[track_caller]
fn assert_refused(command: &mut Command, status: i32, words: &[&str]) {
    let output = command.output().unwrap();
    let (code, said) = outcome(&output);
    assert_eq!(code, Some(status), "{said}");
    assert_eq!(said.lines().count(), 1, "expected one line: {said}");
    for word in words {
        assert!(said.contains(word), "{word} is not in: {said}");
    }
}

/// Makes a script that can be started at once. A child writes it: what this process has open for writing, another test's fork may
/// have open a moment longer, and nobody could start it meanwhile (ETXTBSY).
fn write_script(path: &Path, text: &str) {
    let mut command = Command::new("install");
    let mut child =
        command.args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// Waits until `condition` holds.
#[track_caller]
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "not within 20 s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The network namespace that a process is in.
fn network_of(id: u32) -> Option<u64> {
    fs::metadata(format!("/proc/{id}/ns/net")).ok().map(|metadata| metadata.ino())
}

/// Sends a signal by name.
fn signal(id: u32, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &id.to_string()]).status().unwrap();
    assert!(status.success());
}

/// A child that does not outlive the test.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

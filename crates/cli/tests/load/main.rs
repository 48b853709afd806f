//! `overfly load` as people use it, over kernel sockets on loopback, against servers in this process. Needs no root.

#![forbid(unsafe_code)]

mod docs;
mod files;
mod search;
mod server;
mod step;
mod terminal;

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use overfly_load::http::Report;
use tempfile::TempDir;

/// `overfly load http` and more words.
fn load(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_overfly"));
    command.arg("load").args(words.split(' ')).stdin(Stdio::null());
    command
}

/// The output of a command that ends well.
#[track_caller]
fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

#[track_caller]
fn report(stdout: &[u8]) -> Report {
    serde_json::from_slice(stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(stdout)))
}

/// A child that does not outlive the test.
struct Guard(Child);

impl Guard {
    fn spawn(command: &mut Command) -> Guard {
        Guard(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// The first line that begins so, without that beginning.
    #[track_caller]
    fn told(lines: &mut impl BufRead, beginning: &str) -> String {
        let mut line = String::new();
        while lines.read_line(&mut line).unwrap() > 0 {
            if let Some(rest) = line.trim_end().strip_prefix(beginning) {
                return rest.to_string();
            }
            line.clear();
        }
        panic!("it never said: {beginning}");
    }

    fn errors(&mut self) -> BufReader<ChildStderr> {
        BufReader::new(self.0.stderr.take().unwrap())
    }

    fn output(mut self) -> Output {
        let child = std::mem::replace(&mut self.0, Command::new("true").spawn().unwrap());
        child.wait_with_output().unwrap()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder that is gone after the test.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}

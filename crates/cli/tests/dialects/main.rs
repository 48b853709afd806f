//! `overfly load wrk`, `wrk2` and `ab` beside the real wrk and ab: the same requests, the same pages; and what other people
//! wrote to read those pages reads ours.

#![forbid(unsafe_code)]

mod ab;
#[cfg(feature = "lua")]
mod docs;
#[cfg(feature = "lua")]
mod readers;
#[cfg(feature = "lua")]
mod scripts;
mod server;
mod shape;
mod wrk;

use std::process::{Command, Output, Stdio};

/// A tool's output, whatever its exit status.
fn run(command: &mut Command) -> Output {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    output.unwrap_or_else(|error| panic!("{name} is needed here ({error}): type scripts/install.sh"))
}

/// `overfly load DIALECT WORDS`.
fn overfly(dialect: &str, words: &[&str]) -> Output {
    run(Command::new(env!("CARGO_BIN_EXE_overfly")).args(["load", dialect]).args(words))
}

/// The tool itself.
fn real(tool: &str, words: &[&str]) -> Output {
    run(Command::new(tool).args(words))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Standard output of a run that has succeeded.
#[track_caller]
fn page(output: &Output) -> String {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

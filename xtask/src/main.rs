//! `cargo xtask`: see README.md.

#![forbid(unsafe_code)]

mod fuzz;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask fuzz [--seconds N] [--target NAME]";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let done = match words.next().as_deref() {
        Some("fuzz") => fuzz::Plan::parse(words).and_then(|plan| plan.run()),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(code) => code,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::from(2)
        }
    }
}

//! `cargo xtask`: see README.md.

#![forbid(unsafe_code)]

mod compare_calls;
mod compare_load;
mod coverage;
mod example;
mod fuzz;
mod instructions;
mod miri;
mod results;
mod sanitize;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask compare-load [--quick] [--rounds N] [--seconds N] [--connections N] [--only GENERATOR]
       cargo xtask compare-calls [--sequences N] [--seed N] [--players N] [--enough N] [--with CALL] [--script FILE]
       cargo xtask coverage [CRATE…]
       cargo xtask fuzz [--seconds N] [--target NAME]
       cargo xtask instructions [--write]
       cargo xtask miri
       cargo xtask sanitize [TEST-OPTION…]
       cargo xtask tidy [--write]
       cargo xtask apps [--seconds N] [--repeats N] [--profile NAME] [--kernel-only] [PROGRAM…]
       cargo xtask bulk [--row TEXT] [--repeats N] [--seconds N]
       cargo xtask calls [--requests N]
       cargo xtask costs [--repeats N] [--seconds N]
       cargo xtask results [--cookbooks] [PLAN…]
       cargo xtask soak [--kills N] [--stops N] [--link xdp|memif|tap] [--seed N]
       cargo xtask suites [--on kernel|overfly|both] [--test PATTERN] [--list] [--jobs N] [--minutes N] [--again N] [SUITE…]
       cargo xtask within-host [--repeats N] [--seconds N]
       cargo xtask workers [nginx|haproxy|memcached…] [--link memif|xdp] [--repeats N] [--seconds N]";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let done = match words.next().as_deref() {
        Some("compare-load") => compare_load::Plan::parse(words).and_then(|plan| plan.run()),
        Some("compare-calls") => compare_calls::Plan::parse(words).and_then(|plan| plan.run()),
        Some("coverage") => coverage::run(words),
        Some("fuzz") => fuzz::Plan::parse(words).and_then(|plan| plan.run()),
        Some("instructions") => instructions::Plan::parse(words).and_then(|plan| plan.run()),
        Some("miri") => miri::run(words),
        Some("sanitize") => sanitize::Plan::parse(words).run(),
        Some("tidy") => tidy::run(words),
        Some("results") => results::Plan::parse(words).and_then(|plan| plan.run()),
        Some(
            name @ ("apps" | "bulk" | "calls" | "costs" | "soak" | "suites" | "within-host" | "workers"),
        ) => example::run(name, words),
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

/// The workspace.
fn root() -> Result<&'static Path, String> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or_else(|| "xtask lies in the workspace".to_owned())
}

/// The cargo that runs us.
fn cargo() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from)
}

//! Runs the tests of `overfly-link` that make no system calls under Miri, which finds undefined behaviour and data races.

use std::process::{Command, ExitCode, Stdio};

/// What Miri can run: it has no shared memory, no sockets and no eventfds.
const TESTS: [&str; 4] = ["memif::ring::", "memif::message::", "memif::address::", "finish::"];

/// Runs them, or says what is missing.
pub(crate) fn run(mut words: impl Iterator<Item = String>) -> Result<ExitCode, String> {
    if let Some(word) = words.next() {
        return Err(format!("{word} is not known: `cargo xtask miri` takes no options"));
    }
    let mut version = miri();
    let there = version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !there.is_ok_and(|status| status.success()) {
        return Err(
            "there is no Miri here: `rustup toolchain install nightly --component miri,rust-src`".to_owned()
        );
    }
    let status = miri()
        .args(["test", "--package", "overfly-link", "--lib", "--"])
        .args(TESTS)
        // Seeds come from the environment.
        .env("MIRIFLAGS", "-Zmiri-disable-isolation")
        .current_dir(crate::root()?)
        .status();
    let status = status.map_err(|error| format!("cannot start cargo: {error}"))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn miri() -> Command {
    let mut command = Command::new("cargo");
    command.args(["+nightly", "miri"]);
    // This cargo's toolchain must not decide for the other.
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
    command
}

//! Commands whose work an example of `tests` does, with real programs and the command as it is built for release.

use std::process::{Command, ExitCode};

use crate::cargo;

/// `words` are the example's own arguments.
pub(crate) fn run(name: &str, words: impl Iterator<Item = String>) -> Result<ExitCode, String> {
    let root = crate::root()?;
    let built = Command::new(cargo())
        .args(["build", "--release", "--locked", "--quiet"])
        .current_dir(root)
        .status()
        .map_err(|error| format!("cargo build: {error}"))?;
    if !built.success() {
        return Err("the command could not be built: see above".to_owned());
    }
    let status = Command::new(cargo())
        .args(["run", "--locked", "--quiet", "--package", "overfly-tests", "--example", name, "--"])
        .args(words)
        .current_dir(root)
        .status()
        .map_err(|error| format!("cargo run: {error}"))?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

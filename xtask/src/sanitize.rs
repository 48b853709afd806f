//! Runs the tests of the sockets with a library that AddressSanitizer has instrumented, in real programs.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::cargo;

/// Where rustc's own sanitizers and gcc's agree, so that gcc's runtime, which can be preloaded, serves rustc's code.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// What to run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Words for `cargo test` after `--package overfly-sockets`.
    tests: Vec<String>,
}

impl Plan {
    /// Reads the words after `sanitize`.
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Plan {
        Plan { tests: words.collect() }
    }

    /// Builds the library, and runs the tests with it. Reports of the sanitizer end a program, and so fail its test.
    pub(crate) fn run(&self) -> Result<ExitCode, String> {
        let root = crate::root()?;
        let runtime = runtime()?;
        let folder = root.join("target/sanitize");
        let mut build = Command::new(cargo());
        build.args(["build", "--locked", "--package", "overfly-sockets", "--target", TARGET, "--target-dir"]);
        // Sanitizers of a stable compiler are its own tests' (-Z sanitizer).
        build.arg(&folder).env("RUSTC_BOOTSTRAP", "1").current_dir(root);
        build.env("RUSTFLAGS", "-Zsanitizer=address -Cforce-frame-pointers=yes");
        if !succeeds(&mut build)? {
            return Err("the library cannot be built with AddressSanitizer: rustc must bring its runtime \
                        (librustc-*_rt.asan.a in its rustlib folder; rustup's toolchains do)"
                .to_owned());
        }
        let library = folder.join(TARGET).join("debug/liboverfly.so");
        println!("sanitize: {} under {}", library.display(), runtime.display());
        let mut test = Command::new(cargo());
        test.args(["test", "--locked", "--package", "overfly-sockets"]).args(&self.tests).current_dir(root);
        test.env("OVERFLY_TEST_LIBRARY", &library).env("OVERFLY_TEST_SANITIZER", &runtime);
        Ok(if succeeds(&mut test)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// gcc's AddressSanitizer as a shared library.
fn runtime() -> Result<PathBuf, String> {
    const INSTALL: &str =
        "no AddressSanitizer to preload: install gcc and its libasan (apt install gcc libasan8)";
    let output =
        Command::new("gcc").arg("-print-file-name=libasan.so").output().map_err(|_| INSTALL.to_owned())?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    // gcc answers with the bare name where it has none.
    path.canonicalize().ok().filter(|path| path.is_absolute()).ok_or_else(|| INSTALL.to_owned())
}

fn succeeds(command: &mut Command) -> Result<bool, String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_for_the_tests() {
        let plan = Plan::parse(["--test", "threads"].map(str::to_owned).into_iter());
        assert_eq!(plan.tests, ["--test", "threads"]);
    }
}

//! Plays generated sequences of socket calls on the kernel and on Overfly, and compares what they say: the sockets' own test, for long.

use std::process::{Command, ExitCode};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::cargo;

const USAGE: &str = "usage: cargo xtask compare-calls [--sequences N] [--seed N] [--players N] [--enough N] [--with CALL] \
     [--script FILE [--times N]]";

/// What is played.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The test's environment.
    settings: Vec<(&'static str, String)>,
}

impl Plan {
    /// Reads the words after `compare-calls`.
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Plan, String> {
        let mut settings = Vec::new();
        while let Some(word) = words.next() {
            let name = match word.as_str() {
                "--sequences" => "OVERFLY_SEQUENCES",
                "--seed" => "OVERFLY_SEED",
                "--players" => "OVERFLY_PLAYERS",
                "--enough" => "OVERFLY_ENOUGH",
                "--with" => "OVERFLY_WITH",
                "--script" => "OVERFLY_SCRIPT",
                "--times" => "OVERFLY_TIMES",
                _ => return Err(format!("{word} is not known: {USAGE}")),
            };
            let value = words.next().ok_or_else(|| format!("{word} is followed by nothing: {USAGE}"))?;
            let is_number = !matches!(name, "OVERFLY_SCRIPT" | "OVERFLY_WITH");
            if is_number && !value.parse::<u64>().is_ok_and(|number| number > 0) {
                return Err(format!("{word} {value} is no number: {USAGE}"));
            }
            settings.push((name, value));
        }
        Ok(Plan { settings })
    }

    /// With the library as it is built for release, and a seed of this moment's unless one is given.
    pub(crate) fn run(&self) -> Result<ExitCode, String> {
        let mut test = Command::new(cargo());
        test.args([
            "test",
            "--release",
            "--locked",
            "--package",
            "overfly-sockets",
            "--test",
            "sequences",
            "--",
        ]);
        test.args(["--ignored", "--nocapture", "many_sequences"]).current_dir(crate::root()?);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs());
        test.env("OVERFLY_SEED", now.to_string());
        for (name, value) in &self.settings {
            // The test runs in the package's folder.
            let path = || std::path::absolute(value).map(|path| path.display().to_string());
            let value = if *name == "OVERFLY_SCRIPT" {
                path().map_err(|e| format!("{value}: {e}"))?
            } else {
                value.clone()
            };
            test.env(name, value);
        }
        let status = test.status().map_err(|error| format!("cargo test: {error}"))?;
        Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Plan, String> {
        Plan::parse(words.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_become_settings() {
        let plan = parse("--sequences 7 --with fork --script x").unwrap();
        let wanted = [("OVERFLY_SEQUENCES", "7"), ("OVERFLY_WITH", "fork"), ("OVERFLY_SCRIPT", "x")];
        let wanted = wanted.map(|(name, value)| (name, value.to_owned()));
        assert_eq!(plan.settings, wanted);
        for wrong in ["--seed", "--seed x", "--sequences 0", "--else 1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}

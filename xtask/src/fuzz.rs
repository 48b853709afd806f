//! Runs the fuzz drivers: with cargo-fuzz, which looks for new paths, or on stable with random bytes.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use crate::{USAGE, cargo};

/// The targets of `fuzz/`, each with the crate whose `tests/drivers` has its driver.
const TARGETS: [(&str, &str); 7] = [
    ("frames", "engine"),
    ("tcp_options", "engine"),
    ("segments", "engine"),
    ("operations", "engine"),
    ("memif_messages", "link"),
    ("memif_rings", "link"),
    ("broker_messages", "broker"),
];

/// What to run, and for how long.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    seconds: u64,
    targets: Vec<(&'static str, &'static str)>,
}

impl Plan {
    /// Reads the words after `fuzz`.
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Plan, String> {
        let mut plan = Plan { seconds: 60, targets: TARGETS.to_vec() };
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("{word} wants a value\n{USAGE}"))?;
            match word.as_str() {
                "--seconds" => {
                    plan.seconds = value
                        .parse()
                        .ok()
                        .filter(|seconds| (1..=86_400).contains(seconds))
                        .ok_or_else(|| format!("--seconds is {value}: expected 1 to 86400"))?;
                }
                "--target" => {
                    let known = TARGETS.into_iter().find(|(target, _)| *target == value);
                    let known = known.ok_or_else(|| {
                        format!("--target is {value}: expected one of {}", names(&TARGETS).join(", "))
                    })?;
                    plan.targets = vec![known];
                }
                _ => return Err(format!("{word} is not known\n{USAGE}")),
            }
        }
        Ok(plan)
    }

    /// Runs it, and says in one line with what.
    pub(crate) fn run(&self) -> Result<ExitCode, String> {
        let root = crate::root()?;
        let passed = if has_cargo_fuzz() { self.run_cargo_fuzz(root)? } else { self.run_on_stable(root)? };
        Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// cargo-fuzz prints its executions (`Done N runs`) and the file of an input that failed.
    fn run_cargo_fuzz(&self, root: &Path) -> Result<bool, String> {
        let share = (self.seconds / self.targets.len() as u64).max(1);
        println!("fuzz: cargo-fuzz on nightly, {share} s for each of {}", names(&self.targets).join(", "));
        for (target, _) in &self.targets {
            let passed = succeeds(
                Command::new("cargo")
                    .args(["+nightly", "fuzz", "run", target, "--"])
                    .arg(format!("-max_total_time={share}"))
                    .args(["-max_len=4096", "-print_final_stats=1", "-timeout=10"])
                    .current_dir(root),
            )?;
            if !passed {
                println!("fuzz: {target} failed; its input is in fuzz/artifacts/{target}");
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The test binary prints executions, and the seed of a case that failed.
    fn run_on_stable(&self, root: &Path) -> Result<bool, String> {
        let share_ms = self.seconds * 1000 / self.targets.len() as u64;
        println!(
            "fuzz: no cargo-fuzz with nightly here, so the drivers on stable with random seeds on all cores, {} s for each of {}",
            share_ms as f64 / 1000.0,
            names(&self.targets).join(", ")
        );
        for name in ["engine", "link", "broker"] {
            let of_crate = self.targets.iter().filter(|(_, of)| *of == name).map(|(target, _)| target);
            let package = format!("overfly-{name}");
            let mut command = Command::new(cargo());
            command.args(["test", "--quiet", "--package", &package, "--test", "fuzz_drivers", "--"]);
            let before = command.get_args().count();
            command.args(of_crate);
            if command.get_args().count() == before {
                continue;
            }
            command.args(["--nocapture", "--test-threads=1", "--exact"]);
            command.env("OVERFLY_FUZZ_MS", share_ms.to_string()).env_remove("OVERFLY_SEED").current_dir(root);
            if !succeeds(&mut command)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn names(targets: &[(&'static str, &'static str)]) -> Vec<&'static str> {
    targets.iter().map(|(name, _)| *name).collect()
}

fn has_cargo_fuzz() -> bool {
    let mut command = Command::new("cargo");
    command.args(["+nightly", "fuzz", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    // This cargo's toolchain must not decide for the other.
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
    command.status().is_ok_and(|status| status.success())
}

fn succeeds(command: &mut Command) -> Result<bool, String> {
    let program = command.get_program().to_owned();
    command
        .env_remove("RUSTUP_TOOLCHAIN")
        .status()
        .map(|status| status.success())
        .map_err(|error| format!("cannot start {}: {error}", program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Plan, String> {
        Plan::parse(words.iter().map(|word| (*word).to_owned()))
    }

    #[test]
    fn says_what_is_wrong_with_its_words() {
        assert_eq!(parse(&[]), Ok(Plan { seconds: 60, targets: TARGETS.to_vec() }));
        assert_eq!(
            parse(&["--seconds", "5", "--target", "frames"]).map(|plan| plan.targets),
            Ok(vec![("frames", "engine")])
        );
        assert!(parse(&["--seconds", "0"]).is_err_and(|message| message.contains("1 to 86400")));
        assert!(parse(&["--target", "x"]).is_err_and(|message| message.contains("segments")));
        assert!(parse(&["--seconds"]).is_err_and(|message| message.contains("wants a value")));
    }

    /// A target for each driver, a driver for each target.
    #[test]
    fn targets_are_those_of_the_folder() {
        let root = crate::root().expect("the workspace");
        let mut files: Vec<String> = std::fs::read_dir(root.join("fuzz/fuzz_targets"))
            .expect("the folder of targets")
            .filter_map(|entry| entry.ok()?.path().file_stem()?.to_str().map(str::to_owned))
            .collect();
        files.sort();
        let mut targets = names(&TARGETS);
        targets.sort_unstable();
        assert_eq!(files, targets);
        let manifest = std::fs::read_to_string(root.join("fuzz/Cargo.toml")).expect("the manifest");
        for (target, name) in TARGETS {
            let runs = ["drivers/mod.rs", "fuzz_drivers.rs"].map(|file| {
                std::fs::read_to_string(root.join(format!("crates/{name}/tests/{file}")))
                    .expect("the drivers")
            });
            assert!(manifest.contains(&format!("name = \"{target}\"")), "{target} in fuzz/Cargo.toml");
            // In the engine's list of drivers, or as a test of its own.
            let call = format!("(\"{target}\", ");
            assert!(runs.iter().any(|text| text.contains(&call)), "{target} runs on stable");
        }
    }
}

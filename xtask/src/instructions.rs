//! Counts what the engine's benchmark executes, under valgrind, and compares with what it executed before.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use crate::{USAGE, cargo};

/// The counts that are compared with.
const BASELINE: &str = "crates/engine/benches/instructions.txt";
/// The scenarios of `crates/engine/benches/exchange.rs`, each in a run of its own.
const SCENARIOS: [&str; 8] = [
    "exchange-100",
    "exchange-32k",
    "connections",
    "bulk",
    "bulk-offload",
    "loss",
    "bulk-loss-1",
    "bulk-loss-5",
];
/// Percent that a scenario may cost more.
const TOLERANCE: f64 = 3.0;

/// What to do with the counts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    write: bool,
}

/// A scenario and its instructions per packet.
type Count = (String, f64);

impl Plan {
    /// Reads the words after `instructions`.
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Plan, String> {
        let mut plan = Plan { write: false };
        for word in words {
            match word.as_str() {
                "--write" => plan.write = true,
                _ => return Err(format!("{word} is not known\n{USAGE}")),
            }
        }
        Ok(plan)
    }

    /// Counts, prints, and compares or writes.
    pub(crate) fn run(&self) -> Result<ExitCode, String> {
        let root = crate::root()?;
        let valgrind = version("valgrind")
            .ok_or("there is no valgrind here: install it (apt-get install valgrind) and try again")?;
        let compiler = version("rustc").unwrap_or_else(|| "rustc of an unknown version".to_owned());
        let made_with = format!("# {compiler}, {valgrind}");
        let bench = build(root)?;
        let path = root.join(BASELINE);
        let before = fs::read_to_string(&path).unwrap_or_default();
        let baseline = parse_counts(&before)?;
        let mut counts = Vec::new();
        println!("{:<14} {:>14}", "", "instructions a packet, sent and received");
        for scenario in SCENARIOS {
            let now = count(&bench, scenario)?;
            let then = baseline.iter().find(|(name, _)| name == scenario).map(|&(_, then)| then);
            println!("{scenario:<14} {now:>14.1}  {}", change(then, now));
            counts.push((scenario.to_owned(), now));
        }
        if self.write {
            fs::write(&path, render(&made_with, &counts))
                .map_err(|error| format!("cannot write {BASELINE}: {error}"))?;
            println!("instructions: wrote {BASELINE}");
            return Ok(ExitCode::SUCCESS);
        }
        if !before.contains(&made_with) {
            println!(
                "instructions: {BASELINE} was made with another compiler or valgrind: differences may be theirs"
            );
        }
        let worse = costlier(&baseline, &counts);
        if worse.is_empty() {
            println!("instructions: nothing costs {TOLERANCE} % more than in {BASELINE}");
            return Ok(ExitCode::SUCCESS);
        }
        println!(
            "instructions: {} more than {TOLERANCE} % dearer than in {BASELINE}. If the change is worth it, say why in its \
             commit and renew the file: cargo xtask instructions --write",
            worse.join(", ") + if worse.len() == 1 { " is" } else { " are" }
        );
        Ok(ExitCode::FAILURE)
    }
}

/// The first line of what `program --version` says, if the program is there.
fn version(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next()?.to_owned())
}

/// Builds the benchmark; returns its executable.
fn build(root: &Path) -> Result<PathBuf, String> {
    let mut command = Command::new(cargo());
    command.args(["bench", "--package", "overfly-engine", "--bench", "exchange", "--no-run", "--locked"]);
    command.args(["--message-format", "json-render-diagnostics"]).current_dir(root);
    command.stderr(std::process::Stdio::inherit());
    let output = output(&mut command)?;
    if !output.status.success() {
        return Err("the benchmark does not build".to_owned());
    }
    executable(&String::from_utf8_lossy(&output.stdout))
        .ok_or_else(|| "cargo did not say where the benchmark is".to_owned())
}

/// The last executable that cargo's messages name.
fn executable(messages: &str) -> Option<PathBuf> {
    let (_, after) = messages.rsplit_once("\"executable\":\"")?;
    Some(after.split_once('"')?.0.into())
}

/// Instructions per packet of one scenario.
fn count(bench: &Path, scenario: &str) -> Result<f64, String> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*measured*"]);
    command.arg(bench).args(["--once", scenario]);
    let output = output(&mut command)?;
    let (said, counted) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(format!("{scenario} failed under valgrind:\n{counted}"));
    }
    let packets = number_after(&said, &format!("{scenario}: "));
    let instructions = number_after(&counted, "Collected : ");
    match (instructions, packets) {
        (Some(instructions), Some(packets)) if instructions > 0.0 && packets > 0.0 => {
            Ok(instructions / packets)
        }
        _ => Err(format!("{scenario} was not counted:\n{said}{counted}")),
    }
}

fn output(command: &mut Command) -> Result<Output, String> {
    let program = command.get_program().to_owned();
    command.output().map_err(|error| format!("cannot start {}: {error}", program.display()))
}

fn number_after(text: &str, words: &str) -> Option<f64> {
    let (_, after) = text.split_once(words)?;
    after.split_whitespace().next()?.parse().ok()
}

/// In words, how a count stands to the one before.
fn change(then: Option<f64>, now: f64) -> String {
    match then {
        Some(then) => format!("{:+.1} % against {then:.1}", percent(then, now)),
        None => "new".to_owned(),
    }
}

fn percent(then: f64, now: f64) -> f64 {
    (now / then - 1.0) * 100.0
}

/// The scenarios that cost more than they may, with how much.
fn costlier(baseline: &[Count], counts: &[Count]) -> Vec<String> {
    let more = |(name, now): &Count| {
        let (_, then) = baseline.iter().find(|(other, _)| other == name)?;
        let more = percent(*then, *now);
        (more > TOLERANCE).then(|| format!("{name} ({more:+.1} %)"))
    };
    counts.iter().filter_map(more).collect()
}

fn render(made_with: &str, counts: &[Count]) -> String {
    let mut text = "# Instructions of both ends for a packet that is sent and received: cargo xtask instructions --write\n"
        .to_owned();
    let _ = writeln!(text, "{made_with}");
    for (name, count) in counts {
        let _ = writeln!(text, "{name} {count:.1}");
    }
    text
}

fn parse_counts(text: &str) -> Result<Vec<Count>, String> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (name, count) = line.split_once(' ').unwrap_or((line, ""));
            let count = count.parse().ok().filter(|count| *count > 0.0);
            let count = count.ok_or_else(|| {
                format!("{BASELINE} has the line {line:?}: expected a name and a count above 0")
            })?;
            Ok((name.to_owned(), count))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: &[(&str, f64)]) -> Vec<Count> {
        of.iter().map(|&(name, count)| (name.to_owned(), count)).collect()
    }

    #[test]
    fn more_than_three_percent_is_said() {
        let baseline = counts(&[("a", 1000.0), ("b", 1000.0), ("c", 1000.0)]);
        let now = counts(&[("a", 1029.0), ("b", 1031.0), ("c", 500.0), ("new", 9000.0)]);
        assert_eq!(costlier(&baseline, &now), ["b (+3.1 %)"]);
        assert_eq!(change(Some(1000.0), 980.0), "-2.0 % against 1000.0");
    }

    #[test]
    fn what_is_written_is_read() {
        let some = counts(&[("a", 1234.5), ("b-32k", 9.0)]);
        assert_eq!(parse_counts(&render("# rustc 1, valgrind-3", &some)), Ok(some));
        for wrong in ["a", "a b", "a -1", "a 0"] {
            assert!(parse_counts(wrong).is_err_and(|message| message.contains(wrong)));
        }
    }

    #[test]
    fn tools_are_understood() {
        let cargo = r#"{"reason":"compiler-artifact","executable":null}
{"reason":"compiler-artifact","executable":"/target/release/deps/exchange-1","fresh":true}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(cargo), Some("/target/release/deps/exchange-1".into()));
        assert_eq!(
            number_after("==7== Events    : Ir\n==7== Collected : 5197\n", "Collected : "),
            Some(5197.0)
        );
        assert_eq!(number_after("loss: 58459 packets\n", "loss: "), Some(58_459.0));
        assert_eq!(number_after("", "loss: "), None);
    }

    /// A scenario for each name here, and a count for each scenario.
    #[test]
    fn scenarios_are_those_of_the_benchmark() {
        let root = crate::root().expect("the workspace");
        let bench =
            fs::read_to_string(root.join("crates/engine/benches/exchange.rs")).expect("the benchmark");
        let baseline = parse_counts(&fs::read_to_string(root.join(BASELINE)).expect("the counts"));
        let names: Vec<String> = baseline.expect("counts").into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, SCENARIOS);
        for scenario in SCENARIOS {
            assert!(bench.contains(&format!("(\"{scenario}\", ")), "{scenario} in ONCE");
        }
    }
}

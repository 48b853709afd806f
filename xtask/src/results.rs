//! `cargo xtask results`: measures what documents quote, and keeps the reports under `docs/results/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::SystemTime;

use serde_json::Value;

use crate::cargo;

/// Where the reports are kept, from the workspace.
const PLACE: &str = "docs/results";

/// What to measure.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    cookbooks: Vec<PathBuf>,
    /// The ends of their axes only.
    quick: bool,
}

/// Where a table says what each came to, from the workspace.
const TABLE: &str = "cookbooks/README.md";
/// Those that are measurements of the seeds, or of what the seeds leave out: each has a line in the table.
const SEEDS: [&str; 10] = [
    "nginx-cps",
    "nginx-cps-max",
    "nginx-web",
    "netty",
    "netty-rates",
    "vod",
    "astf-vs-nginx",
    "latency",
    "local",
    "idle",
];

impl Plan {
    /// Reads the words after `results`: plans, or none for the quickstart's.
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Plan, String> {
        let (quick, words): (Vec<String>, Vec<String>) = words.partition(|word| word == "--cookbooks");
        let quick = !quick.is_empty();
        let mut cookbooks: Vec<PathBuf> = words.into_iter().map(PathBuf::from).collect();
        if quick {
            cookbooks.extend(SEEDS.map(|name| PathBuf::from(format!("cookbooks/{name}.toml"))));
        }
        if let Some(option) = cookbooks.iter().find(|word| word.to_string_lossy().starts_with('-')) {
            return Err(format!("{} is not known\n{}", option.display(), crate::USAGE));
        }
        if cookbooks.is_empty() {
            cookbooks =
                ["cookbooks/quickstart.toml", "cookbooks/quickstart-memif.toml"].map(PathBuf::from).into();
        }
        Ok(Plan { cookbooks, quick })
    }

    /// Builds, measures each plan, and keeps its report.
    pub(crate) fn run(&self) -> Result<ExitCode, String> {
        let root = crate::root()?;
        let changed = said(
            root,
            "git",
            &["status", "--porcelain", "--", ".", &format!(":!{PLACE}"), &format!(":!{TABLE}")],
        )?;
        if !changed.is_empty() {
            return Err(format!(
                "commit first, since a figure belongs to a commit; this is not committed:\n{changed}"
            ));
        }
        let commit = said(root, "git", &["rev-parse", "--short=12", "HEAD"])?;
        let date = said(root, "date", &["-u", "+%Y-%m-%d %H:%M UTC"])?;
        let built = Command::new(cargo()).args(["build", "--release", "--locked"]).current_dir(root).status();
        if !built.map_err(|error| format!("cargo build: {error}"))?.success() {
            return Err("the command could not be built: see above".to_owned());
        }
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let mut failed = Vec::new();
        for cookbook in &self.cookbooks {
            let name = cookbook.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let output = target.join("results").join(&name);
            let begin = SystemTime::now();
            let status = Command::new(target.join("release/overfly"))
                .arg("bench")
                .args(self.quick.then_some("--quick"))
                .arg(cookbook)
                .arg("--output")
                .arg(&output)
                .current_dir(root)
                .status()
                .map_err(|error| format!("overfly bench: {error}"))?;
            // Requests that failed and rules that were missed are results, too: a report is kept whatever it says, if it is whole.
            let written = fs::metadata(output.join("summary.json")).and_then(|file| file.modified());
            if !written.is_ok_and(|time| time >= begin) {
                failed.push(format!("{}: {status}; nothing of it was kept", cookbook.display()));
                continue;
            }
            if !status.success() {
                failed.push(format!("{}: {status}, for what its report says", cookbook.display()));
            }
            let note = format!("Measured {date} at commit {commit}.");
            keep(&output, &root.join(PLACE), &name, &note, &format!("{}/", root.display()))?;
            tabulate(root, &name)?;
            println!("Kept: {PLACE}/{name}.md and {PLACE}/{name}.json");
        }
        // README's picture is of the quickstart's.
        said(root, "python3", &["scripts/chart.py", "write"])?;
        match failed.is_empty() {
            true => Ok(ExitCode::SUCCESS),
            false => Err(failed.join("; ")),
        }
    }
}

/// Copies the report, with `note` under its heading, and every figure of it. Paths in them begin after `here`.
fn keep(output: &Path, place: &Path, name: &str, note: &str, here: &str) -> Result<(), String> {
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let report = output.join("report.md");
    let read = |path: &Path| {
        fs::read_to_string(path).map(|text| text.replace(here, "")).map_err(|error| failed(path, error))
    };
    let text = read(&report)?;
    let (heading, rest) = text.split_once("\n\n").ok_or("the report has no heading")?;
    fs::create_dir_all(place).map_err(|error| failed(place, error))?;
    let kept = place.join(format!("{name}.md"));
    fs::write(&kept, format!("{heading}\n\n{note}\n\n{rest}")).map_err(|error| failed(&kept, error))?;
    let (from, to) = (output.join("summary.json"), place.join(format!("{name}.json")));
    fs::write(&to, read(&from)?).map_err(|error| failed(&to, error))
}

/// Writes what a kept report says into its line of the table, if it has one.
fn tabulate(root: &Path, name: &str) -> Result<(), String> {
    let read = |path: &Path| fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    let table = root.join(TABLE);
    let summary = read(&root.join(PLACE).join(format!("{name}.json")))?;
    let text = with_figure(&read(&table)?, name, &in_words(&summary, name)?);
    fs::write(&table, text).map_err(|error| format!("{}: {error}", table.display()))
}

/// A table whose line of `name` has this figure: it is the fourth column.
fn with_figure(table: &str, name: &str, figure: &str) -> String {
    let line = |line: &str| {
        if !line.starts_with(&format!("| `{name}.toml` |")) {
            return line.to_owned();
        }
        let mut columns: Vec<&str> = line.split(" | ").collect();
        match columns.get_mut(3) {
            Some(column) => *column = figure,
            None => return line.to_owned(),
        }
        columns.join(" | ")
    };
    table.lines().map(line).collect::<Vec<_>>().join("\n") + "\n"
}

/// What a summary says in one line: the gains of each link and profile, from the least to the greatest, and where the greatest is.
fn in_words(summary: &str, name: &str) -> Result<String, String> {
    let summary: Value = serde_json::from_str(summary).map_err(|error| format!("{name}.json: {error}"))?;
    let unit = summary["measure"]["unit"].as_str().unwrap_or_default();
    let places = summary["measure"]["places"].as_u64().unwrap_or(0) as usize;
    let mut groups: Vec<(String, Vec<&Value>)> = Vec::new();
    for cell in summary["cells"].as_array().into_iter().flatten().filter(|cell| cell["gain"].is_number()) {
        let of =
            format!("{}, {}", cell["link"].as_str().unwrap_or("?"), cell["profile"].as_str().unwrap_or("?"));
        match groups.iter_mut().find(|(its, _)| *its == of) {
            Some((_, cells)) => cells.push(cell),
            None => groups.push((of, vec![cell])),
        }
    }
    let gain = |cell: &&Value| cell["gain"].as_f64().unwrap_or(0.0);
    let group = |(of, cells): (String, Vec<&Value>)| {
        let by_gain = |one: &&Value, other: &&Value| gain(one).total_cmp(&gain(other));
        let (Some(least), Some(most)) =
            (cells.iter().copied().min_by(by_gain), cells.iter().copied().max_by(by_gain))
        else {
            return of;
        };
        let mark = if cells.iter().any(|cell| cell["gain_disturbed"] == true) { "~" } else { "" };
        let range = match cells.len() {
            1 => format!("{mark}{:.2} ×", gain(&most)),
            _ => format!("{mark}{:.2} to {:.2} ×", gain(&least), gain(&most)),
        };
        let figure = |mode: &str| {
            most[mode]["median"].as_f64().map(|value| format!("{value:.places$}")).unwrap_or_default()
        };
        format!("{of}: {range} ({} against {} {unit} at most)", figure("overfly"), figure("kernel"))
    };
    let groups: Vec<String> = groups.into_iter().map(group).collect();
    let date = summary["date"].as_str().unwrap_or_default().split(' ').next().unwrap_or_default().to_owned();
    Ok(format!("{} ([report](../docs/results/{name}.md), {date})", groups.join("; ")))
}

/// What a command says, if it ends well.
fn said(root: &Path, program: &str, words: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(words).current_dir(root).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_kept_with_its_commit() {
        let folder = std::env::temp_dir().join(format!("overfly-results-{}", std::process::id()));
        let (output, place) = (folder.join("output"), folder.join("place"));
        fs::create_dir_all(&output).unwrap();
        fs::write(output.join("report.md"), "# A title\n\nRequests\n\n| table |\n").unwrap();
        fs::write(output.join("summary.json"), "{\"a\": \"/here/a\"}\n").unwrap();
        let kept = keep(&output, &place, "one", "Measured today at commit abc.", "/here/");
        let report = fs::read_to_string(place.join("one.md"));
        let summary = fs::read_to_string(place.join("one.json"));
        fs::remove_dir_all(&folder).unwrap();
        kept.unwrap();
        assert_eq!(report.unwrap(), "# A title\n\nMeasured today at commit abc.\n\nRequests\n\n| table |\n");
        assert_eq!(summary.unwrap(), "{\"a\": \"a\"}\n");
    }

    #[test]
    fn a_table_says_what_a_report_says() {
        let cell = |link: &str, gain: f64, disturbed: bool| {
            serde_json::json!({"link": link, "profile": "balanced", "gain": gain, "gain_disturbed": disturbed,
                "kernel": {"median": 100.0}, "overfly": {"median": 100.0 * gain}})
        };
        let summary = serde_json::json!({
            "date": "2026-11-24 09:20", "measure": {"unit": "requests/s", "places": 0},
            "cells": [cell("xdp", 1.5, false), cell("xdp", 2.0, false), cell("memif", 3.0, true), {"link": "memory"}],
        });
        let words = in_words(&summary.to_string(), "one").unwrap();
        assert_eq!(
            words,
            "xdp, balanced: 1.50 to 2.00 × (200 against 100 requests/s at most); \
             memif, balanced: ~3.00 × (300 against 100 requests/s at most) ([report](../docs/results/one.md), 2026-11-24)"
        );
        let table = "| plan | a | b | c | d |\n| `one.toml` | m | s | not yet | w |\n| `two.toml` | m | s | not yet | w |\n";
        let kept = with_figure(table, "one", "1.5");
        assert_eq!(kept, table.replacen("not yet", "1.5", 1));
        // Each of the seeds' measurements has its line.
        let table = fs::read_to_string(crate::root().unwrap().join(TABLE)).unwrap();
        for name in SEEDS {
            assert_ne!(with_figure(&table, name, "FIGURE"), table, "{name}");
            assert!(crate::root().unwrap().join(format!("cookbooks/{name}.toml")).is_file(), "{name}");
        }
    }

    #[test]
    fn without_words_it_is_the_quickstart() {
        let plan = Plan::parse(std::iter::empty()).unwrap();
        assert_eq!(plan.cookbooks.len(), 2);
        let one = Plan::parse(["a.toml".to_owned()].into_iter()).unwrap();
        assert_eq!(one.cookbooks, [PathBuf::from("a.toml")]);
        assert!(Plan::parse(["--quick".to_owned()].into_iter()).is_err());
        let all = Plan::parse(["--cookbooks".to_owned()].into_iter()).unwrap();
        assert!(all.quick && all.cookbooks.len() == SEEDS.len());
    }
}

//! `cargo xtask results`: measures what documents quote, and keeps the reports under `docs/results/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::cargo;

/// Where the reports are kept, from the workspace.
const PLACE: &str = "docs/results";

/// What to measure.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    cookbooks: Vec<PathBuf>,
}

impl Plan {
    /// Reads the words after `results`: plans, or none for the quickstart's.
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Plan, String> {
        let mut cookbooks: Vec<PathBuf> = words.map(PathBuf::from).collect();
        if let Some(option) = cookbooks.iter().find(|word| word.to_string_lossy().starts_with('-')) {
            return Err(format!("{} is not known\n{}", option.display(), crate::USAGE));
        }
        if cookbooks.is_empty() {
            cookbooks =
                ["cookbooks/quickstart.toml", "cookbooks/quickstart-memif.toml"].map(PathBuf::from).into();
        }
        Ok(Plan { cookbooks })
    }

    /// Builds, measures each plan, and keeps its report.
    pub(crate) fn run(&self) -> Result<ExitCode, String> {
        let root = crate::root()?;
        let changed = said(root, "git", &["status", "--porcelain", "--", ".", &format!(":!{PLACE}")])?;
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
        for cookbook in &self.cookbooks {
            let name = cookbook.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let output = target.join("results").join(&name);
            let status = Command::new(target.join("release/overfly"))
                .arg("bench")
                .arg(cookbook)
                .arg("--output")
                .arg(&output)
                .current_dir(root)
                .status()
                .map_err(|error| format!("overfly bench: {error}"))?;
            if !status.success() {
                return Err(format!("{}: {status}; nothing of it was kept", cookbook.display()));
            }
            let note = format!("Measured {date} at commit {commit}.");
            keep(&output, &root.join(PLACE), &name, &note, &format!("{}/", root.display()))?;
            println!("Kept: {PLACE}/{name}.md and {PLACE}/{name}.json");
        }
        Ok(ExitCode::SUCCESS)
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
    fn without_words_it_is_the_quickstart() {
        let plan = Plan::parse(std::iter::empty()).unwrap();
        assert_eq!(plan.cookbooks.len(), 2);
        let one = Plan::parse(["a.toml".to_owned()].into_iter()).unwrap();
        assert_eq!(one.cookbooks, [PathBuf::from("a.toml")]);
        assert!(Plan::parse(["--quick".to_owned()].into_iter()).is_err());
    }
}

//! Medians, gains, the table, and what is written.

mod cell;
mod figure;
mod judgement;
mod page;
#[cfg(test)]
mod tests;
mod text;

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::environment::Environment;
use crate::plan::{Case, Described, Plan};
use crate::schedule::Account;
use crate::statistics::median;
use crate::trial::Trial;

pub use self::cell::CellReport;
pub use self::figure::{Figure, Limit};
pub use self::judgement::Judgement;

/// To two places; what is not known is 0.
fn rounded(percent: f64) -> f64 {
    if percent.is_finite() { (percent * 100.0).round() / 100.0 } else { 0.0 }
}

/// What a session came to. Its JSON form is `summary.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    title: String,
    /// When it was made, UTC: `2026-11-24 03:20`.
    date: String,
    /// The plan's path, as it was given.
    plan_file: String,
    plan: Plan,
    /// What a point is.
    #[serde(default)]
    measure: Described,
    seed: u64,
    /// Of all runs together.
    duration_s: f64,
    environment: Environment,
    /// What the bench itself had of a core while generators ran: the median of the runs, %.
    #[serde(default)]
    harness_percent: f64,
    /// How steady the machine was.
    yardstick: Account,
    /// Somebody ended it: runs are missing.
    interrupted: bool,
    /// Only whether the plan works was to be seen: the figures say nothing.
    smoke: bool,
    /// The ends of the plan's axes, with few repeats.
    #[serde(default)]
    quick: bool,
    /// In the order of the plan.
    pub cells: Vec<CellReport>,
    /// What the plan's rules say of each cell.
    pub judgements: Vec<Judgement>,
}

impl Report {
    pub(crate) fn new(
        plan: &Plan,
        seed: u64,
        environment: Environment,
        duration: Duration,
        account: Account,
        trials: &[(Case, Trial)],
    ) -> Report {
        let cells = plan.cells().into_iter().enumerate();
        let cells: Vec<CellReport> = cells
            .map(|(index, cell)| CellReport::new(plan, index, cell, trials, &account.standings))
            .collect();
        let rules = plan.rules.iter();
        let judgements = rules.flat_map(|rule| cells.iter().filter_map(|cell| cell.judged(rule))).collect();
        Report {
            judgements,
            title: plan.title.clone(),
            date: crate::environment::now(),
            plan_file: plan.source.file.display().to_string(),
            plan: plan.clone(),
            measure: plan.measure().described(),
            seed,
            duration_s: (duration.as_secs_f64() * 10.0).round() / 10.0,
            environment,
            harness_percent: rounded(median(trials.iter().map(|(_, trial)| trial.harness_percent))),
            yardstick: account,
            interrupted: crate::interruption::interrupted(),
            smoke: plan.source.smoke,
            quick: plan.source.quick,
            cells,
        }
    }

    /// Failed runs and failed requests of all cells.
    pub fn errors(&self) -> u64 {
        self.cells.iter().flat_map(CellReport::figures).map(|figure| figure.errors).sum()
    }

    /// Whether somebody ended the session before its end.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    /// What a reader has to know before all else.
    fn warning(&self) -> Option<&'static str> {
        match (self.interrupted, self.smoke) {
            (true, _) => Some("The session was interrupted: runs are missing. `--resume` goes on with it."),
            (_, true) => Some("A smoke run: it shows that the plan works; its figures say nothing."),
            _ => None,
        }
    }

    /// Rules of the plan that were missed, over all cells.
    pub fn missed(&self) -> usize {
        self.judgements.iter().filter(|judgement| judgement.is_missed()).count()
    }

    /// What an earlier session came to: `folder` has its `summary.json`.
    ///
    /// # Errors
    /// [`Error::Plan`] if there is none, or it is of another version.
    pub fn read(folder: &Path) -> Result<Report, Error> {
        let path = folder.join("summary.json");
        let wrong = |message: String| Error::Plan { file: path.display().to_string(), line: None, message };
        let text = fs::read_to_string(&path)
            .map_err(|error| wrong(format!("{error}; expected the folder that `overfly bench` wrote")))?;
        serde_json::from_str(&text).map_err(|error| {
            wrong(format!("{error}; expected a summary.json of this version's `overfly bench`"))
        })
    }

    /// Writes every form of the report to `folder`; each takes the place of an earlier one only when it is whole.
    ///
    /// # Errors
    /// If one of them cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), Error> {
        for (name, text) in [
            ("summary.json", self.to_json()),
            ("report.md", self.to_markdown()),
            ("report.html", self.to_html()),
            ("points.csv", self.to_csv()),
        ] {
            let path = folder.join(name);
            let part = folder.join(format!("{name}.part"));
            let written = fs::write(&part, text).and_then(|()| fs::rename(&part, &path));
            if written.is_err() {
                let _ = fs::remove_file(&part);
            }
            written.map_err(Error::kernel(format!("write {}", path.display())))?;
        }
        Ok(())
    }

    /// `summary.json`
    pub fn to_json(&self) -> String {
        // Numbers, strings and string keys only: there is nothing that JSON cannot hold.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

//! What changed between two sessions of a plan, beyond noise.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::plan::Described;
use crate::statistics::{Interval, median, ratio_interval};

/// Three runs a side allow 90 %; of an interval that is less sure nothing is concluded.
const LEAST_CONFIDENCE: f64 = 0.9 - 1e-9;

/// A session, as `summary.json` has it.
#[derive(Debug, Deserialize)]
struct Summary {
    title: String,
    #[serde(default)]
    measure: Described,
    environment: Machine,
    cells: Vec<Cell>,
}

#[derive(Debug, Deserialize)]
struct Machine {
    cpu_model: String,
    cores: usize,
    kernel: String,
    server_version: String,
}

#[derive(Debug, Deserialize)]
struct Cell {
    payload_bytes: u64,
    connection: String,
    link: String,
    #[serde(default)]
    varied: String,
    #[serde(default)]
    shares_kernel: bool,
    kernel_as_found: Option<Figure>,
    kernel_busy_poll: Option<Figure>,
    null_server: Option<Figure>,
    gain: Option<f64>,
    kernel: Option<Figure>,
    kernel_xdp: Option<Figure>,
    kernel_sockets: Option<Figure>,
    overfly: Option<Figure>,
}

#[derive(Debug, Deserialize)]
struct Figure {
    points: Vec<f64>,
    #[serde(default)]
    disturbed: Vec<usize>,
    errors: u64,
}

/// What became of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Of a better figure, beyond noise and tolerance: more of what is better the more there is, less of the rest.
    Better,
    /// Of a worse one, or errors that were not there.
    Worse,
    /// No difference that these runs show.
    Same,
    /// Too few runs, or only ones that the machine disturbed.
    Unknown,
}

/// A figure of both sessions.
#[derive(Debug, Serialize)]
pub struct Change {
    /// What was measured: `1024 B close over xdp, overfly`.
    pub what: String,
    /// Median of the first session, of what the plan's load comes to.
    pub before: f64,
    /// Of the second.
    pub after: f64,
    /// Where the factor by which it became greater lies ([`ratio_interval`]).
    pub interval: Option<Interval>,
    /// What is concluded.
    pub verdict: Verdict,
    /// Failed requests and runs of the second session, if it had more of them.
    pub more_errors: Option<u64>,
}

/// Two runs of a plan whose gains differ by more than this were made on a machine that was too noisy, or on two machines.
const AGREEMENT: f64 = 0.1;

/// What Overfly gained over the kernel, in both sessions.
#[derive(Debug, Serialize)]
pub struct Gains {
    /// The cell: `1024 B close over xdp`.
    pub what: String,
    /// In the first session.
    pub before: f64,
    /// In the second.
    pub after: f64,
}

impl Gains {
    /// As a share of the smaller.
    fn differ(&self) -> f64 {
        let Gains { before, after, .. } = *self;
        before.max(after) / before.min(after) - 1.0
    }
}

/// Two sessions side by side.
#[derive(Debug, Serialize)]
pub struct Diff {
    /// What is compared.
    pub measure: Described,
    /// Shares smaller than this are no difference.
    pub tolerance: f64,
    /// Every figure that both have.
    pub changes: Vec<Change>,
    /// The gains that both have.
    pub gains: Vec<Gains>,
    /// The greatest difference between two gains, as a share of the smaller; none where they have no gain in common.
    pub gains_differ: Option<f64>,
    /// What else differs: the machine, the server, figures that one of them lacks.
    pub remarks: Vec<String>,
}

impl Diff {
    /// Compares two sessions: folders that `overfly bench` wrote, or the `summary.json` of each.
    ///
    /// # Errors
    /// [`Error::Plan`] if one of them is no session, or they have no figure in common.
    pub fn of(before: &Path, after: &Path, tolerance: f64) -> Result<Diff, Error> {
        let (first, second) = (Summary::read(before)?, Summary::read(after)?);
        if first.measure.key != second.measure.key {
            let (one, other) = (&first.measure.key, &second.measure.key);
            let message =
                format!("it has {other}, and {} has {one}: are they of one plan?", before.display());
            return Err(Error::Plan { file: after.display().to_string(), line: None, message });
        }
        let (figures, mut others) = (first.figures(), second.figures());
        let mut remarks = first.differences(&second);
        let mut changes = Vec::new();
        for (what, figure) in figures {
            match others.iter().position(|(its, _)| *its == what) {
                Some(index) => {
                    let better_below = first.measure.smaller_is_better;
                    changes.push(Change::of(what, figure, others.remove(index).1, tolerance, better_below));
                }
                None => remarks.push(format!("only the first has {what}")),
            }
        }
        remarks.extend(others.into_iter().map(|(what, _)| format!("only the second has {what}")));
        if changes.is_empty() {
            let message =
                format!("it has no figure in common with {}: are they of one plan?", before.display());
            return Err(Error::Plan { file: after.display().to_string(), line: None, message });
        }
        let gains = first.common_gains(&second);
        let gains_differ = gains.iter().map(Gains::differ).reduce(f64::max);
        let measure = first.measure.clone();
        Ok(Diff { measure, tolerance, changes, gains, gains_differ, remarks })
    }

    /// How many figures have become worse.
    #[must_use]
    pub fn worse(&self) -> usize {
        self.changes.iter().filter(|change| change.verdict == Verdict::Worse).count()
    }

    /// One JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }

    /// A table, and what it means.
    #[must_use]
    pub fn to_text(&self) -> String {
        let width = self.changes.iter().map(|change| change.what.chars().count()).max().unwrap_or(0);
        let measure = &self.measure;
        let mut text =
            format!("{:<width$}  {:>10}  {:>10}  {:>6}  within\n", measure.unit, "before", "after", "factor");
        for change in &self.changes {
            let Change { what, before, after, interval, .. } = change;
            let within = interval.map_or("too few runs".to_owned(), |interval| {
                let Interval { low, high, confidence } = interval;
                format!("{low:.3} to {high:.3} ({:.0} %)", confidence * 100.0)
            });
            let factor = if *before > 0.0 { format!("{:.3}", after / before) } else { "-".to_owned() };
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{what:<width$}  {:>10}  {:>10}  {factor:>6}  {within}{}",
                measure.shown(*before),
                measure.shown(*after),
                change.conclusion()
            );
        }
        for Gains { what, before, after } in &self.gains {
            let _ = writeln!(text, "gain, {what}: {before:.2}, then {after:.2}");
        }
        if let Some(differ) = self.gains_differ {
            let percent = differ * 100.0;
            let _ = if differ <= AGREEMENT {
                writeln!(text, "The two agree: gains differ by {percent:.0} % at most.")
            } else {
                writeln!(
                    text,
                    "The two do not agree: gains differ by {percent:.0} %, where 10 % is the most. The machine was too noisy, or changed."
                )
            };
        }
        for remark in &self.remarks {
            let _ = writeln!(text, "! {remark}");
        }
        let share = self.tolerance * 100.0;
        let _ = match self.worse() {
            0 => {
                writeln!(text, "Nothing became worse by more than {share} %, as far as these runs can tell.")
            }
            worse => writeln!(text, "{worse} of {} became worse by more than {share} %.", self.changes.len()),
        };
        text
    }
}

impl Change {
    fn of(what: String, before: &Figure, after: &Figure, tolerance: f64, better_below: bool) -> Change {
        // Like is compared with like, as in the report.
        let steady = !before.steady().is_empty() && !after.steady().is_empty();
        let points = |figure: &Figure| if steady { figure.steady() } else { figure.points.clone() };
        let (first, second) = (points(before), points(after));
        let interval = ratio_interval(second.iter().copied(), first.iter().copied());
        let more_errors = (after.errors > before.errors).then_some(after.errors);
        let verdict = match interval.filter(|interval| steady && interval.confidence >= LEAST_CONFIDENCE) {
            _ if more_errors.is_some() => Verdict::Worse,
            None => Verdict::Unknown,
            Some(interval) if interval.high < 1.0 - tolerance => {
                if better_below {
                    Verdict::Better
                } else {
                    Verdict::Worse
                }
            }
            Some(interval) if interval.low > 1.0 + tolerance => {
                if better_below {
                    Verdict::Worse
                } else {
                    Verdict::Better
                }
            }
            Some(_) => Verdict::Same,
        };
        let middle = |points: Vec<f64>| median(points.into_iter());
        Change { what, before: middle(first), after: middle(second), interval, verdict, more_errors }
    }

    fn conclusion(&self) -> String {
        match (self.verdict, self.more_errors) {
            (_, Some(errors)) => format!("  worse: {errors} errors"),
            (Verdict::Better, _) => "  better".to_owned(),
            (Verdict::Worse, _) => "  worse".to_owned(),
            (Verdict::Same, _) => String::new(),
            (Verdict::Unknown, _) => "  unknown: too few undisturbed runs".to_owned(),
        }
    }
}

impl Cell {
    fn name(&self) -> String {
        let Cell { payload_bytes, connection, link, varied, .. } = self;
        let comma = if varied.is_empty() { "" } else { ", " };
        format!("{payload_bytes} B {connection} over {link}{comma}{varied}")
    }
}

impl Figure {
    /// Points of runs that the machine did not disturb.
    fn steady(&self) -> Vec<f64> {
        let points = self.points.iter().enumerate();
        points.filter(|(index, _)| !self.disturbed.contains(index)).map(|(_, &point)| point).collect()
    }
}

impl Summary {
    fn read(given: &Path) -> Result<Summary, Error> {
        let path: PathBuf = if given.is_dir() { given.join("summary.json") } else { given.to_owned() };
        let wrong = |message: String| Error::Plan { file: path.display().to_string(), line: None, message };
        let text = fs::read_to_string(&path)
            .map_err(|error| wrong(format!("{error}; expected what `overfly bench` wrote")))?;
        serde_json::from_str(&text)
            .map_err(|error| wrong(format!("{error}; expected a summary.json of `overfly bench`")))
    }

    /// Every figure once, by what it is of.
    fn figures(&self) -> Vec<(String, &Figure)> {
        let mut figures = Vec::new();
        for cell in &self.cells {
            // With two looks at the kernel, `kernel` is the better of them, which may change sides.
            let kernel = if cell.kernel_xdp.is_some() { &cell.kernel_xdp } else { &cell.kernel };
            let named = [
                ("kernel", kernel),
                ("kernel (sockets)", &cell.kernel_sockets),
                ("kernel, as found", &cell.kernel_as_found),
                ("kernel, busy polling", &cell.kernel_busy_poll),
                ("null server", &cell.null_server),
                ("overfly", &cell.overfly),
            ];
            let named = named.into_iter().filter(|(name, _)| !cell.shares_kernel || *name == "overfly");
            for (name, figure) in named {
                let what = format!("{}, {name}", cell.name());
                figures.extend(figure.as_ref().map(|figure| (what, figure)));
            }
        }
        figures
    }

    fn common_gains(&self, other: &Summary) -> Vec<Gains> {
        let named = |summary: &Summary| -> Vec<(String, f64)> {
            let gain = |cell: &Cell| Some((cell.name(), cell.gain.filter(|gain| *gain > 0.0)?));
            summary.cells.iter().filter_map(gain).collect()
        };
        let others = named(other);
        let pair = |(what, before): (String, f64)| {
            let after = others.iter().find(|(its, _)| *its == what)?.1;
            Some(Gains { what, before, after })
        };
        named(self).into_iter().filter_map(pair).collect()
    }

    /// What makes a comparison say less, or something else.
    fn differences(&self, other: &Summary) -> Vec<String> {
        let (here, there) = (&self.environment, &other.environment);
        let cores = |machine: &Machine| machine.cores.to_string();
        [
            ("plan", self.title.clone(), other.title.clone()),
            ("CPU", here.cpu_model.clone(), there.cpu_model.clone()),
            ("cores", cores(here), cores(there)),
            ("kernel", here.kernel.clone(), there.kernel.clone()),
            ("server", here.server_version.clone(), there.server_version.clone()),
        ]
        .into_iter()
        .filter(|(_, first, second)| first != second)
        .map(|(name, first, second)| format!("{name}: {first}, then {second}"))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn summary(kernel: &str, points: &[f64], disturbed: &[usize], errors: u64) -> serde_json::Value {
        json!({
            "title": "t",
            "environment": {"cpu_model": "c", "cores": 2, "kernel": kernel, "server_version": "nginx"},
            "cells": [{
                "payload_bytes": 0, "connection": "close", "link": "xdp",
                "overfly": {"points": points, "disturbed": disturbed, "errors": errors},
            }],
        })
    }

    fn diff(before: &serde_json::Value, after: &serde_json::Value) -> Result<Diff, Error> {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = ["a", "b"].map(|name| folder.path().join(name));
        for (path, value) in [(&one, before), (&other, after)] {
            fs::create_dir(path).unwrap();
            fs::write(path.join("summary.json"), value.to_string()).unwrap();
        }
        Diff::of(&one, &other.join("summary.json"), 0.05)
    }

    const USUAL: [f64; 4] = [100.0, 101.0, 99.0, 102.0];

    #[test]
    fn only_what_is_beyond_noise_and_tolerance_is_a_change() {
        let before = summary("6.1", &USUAL, &[], 0);
        for (points, disturbed, errors, verdict) in [
            (&[80.0, 81.0, 79.0, 82.0][..], &[][..], 0, Verdict::Worse),
            (&[120.0, 121.0, 119.0, 122.0], &[], 0, Verdict::Better),
            (&[98.0, 97.0, 99.0, 98.5], &[], 0, Verdict::Same),
            (&[80.0, 120.0, 79.0, 121.0], &[], 0, Verdict::Same),
            (&[80.0, 81.0], &[], 0, Verdict::Unknown),
            (&[80.0, 81.0, 79.0, 82.0], &[0, 1, 2, 3], 0, Verdict::Unknown),
            (&[100.0, 20.0, 101.0, 99.0, 21.0], &[1, 4], 0, Verdict::Same),
            (&USUAL, &[], 2, Verdict::Worse),
        ] {
            let found = diff(&before, &summary("6.1", points, disturbed, errors)).unwrap();
            assert_eq!(found.changes[0].verdict, verdict, "{points:?}: {}", found.to_text());
            assert_eq!(found.worse(), usize::from(verdict == Verdict::Worse));
            assert!(found.remarks.is_empty());
            let value: serde_json::Value = serde_json::from_str(&found.to_json()).unwrap();
            assert_eq!(value["changes"][0]["what"], "0 B close over xdp, overfly");
        }
    }

    #[test]
    fn less_of_a_time_is_better_and_figures_of_two_kinds_are_not_compared() {
        let of = |points: &[f64]| {
            let mut summary = summary("6.1", points, &[], 0);
            summary["measure"] =
                serde_json::to_value(crate::plan::Measure::HalfRoundTripUs.described()).unwrap();
            summary
        };
        let slow = of(&[12.0, 12.1, 11.9, 12.2]);
        let found = diff(&of(&[6.0, 6.1, 5.9, 6.2]), &slow).unwrap();
        assert_eq!(found.changes[0].verdict, Verdict::Worse, "{}", found.to_text());
        assert!(found.to_text().contains("µs") && found.to_text().contains("12.05"), "{}", found.to_text());
        assert_eq!(diff(&slow, &of(&[6.0, 6.1, 5.9, 6.2])).unwrap().changes[0].verdict, Verdict::Better);
        let error = diff(&summary("6.1", &USUAL, &[], 0), &slow).unwrap_err().to_string();
        assert!(error.contains("half_round_trip_us"), "{error}");
    }

    #[test]
    fn it_is_said_how_far_two_runs_agreed() {
        let with = |gain: f64| {
            let mut summary = summary("6.1", &USUAL, &[], 0);
            summary["cells"][0]["gain"] = gain.into();
            summary
        };
        let found = diff(&with(2.0), &with(2.1)).unwrap();
        assert!((found.gains_differ.unwrap() - 0.05).abs() < 1e-9);
        assert!(
            found.to_text().contains("The two agree: gains differ by 5 % at most"),
            "{}",
            found.to_text()
        );
        let found = diff(&with(2.6), &with(2.0)).unwrap();
        assert!(
            found.to_text().contains("gains differ by 30 %, where 10 % is the most"),
            "{}",
            found.to_text()
        );
        assert_eq!(diff(&summary("6.1", &USUAL, &[], 0), &with(2.0)).unwrap().gains_differ, None);
    }

    #[test]
    fn what_else_differs_is_said() {
        let before = summary("6.1", &USUAL, &[], 0);
        let found = diff(&before, &summary("6.12", &USUAL, &[], 0)).unwrap();
        assert_eq!(found.remarks, ["kernel: 6.1, then 6.12"]);
        let mut other = before.clone();
        other["cells"][0]["link"] = "memif".into();
        let error = diff(&before, &other).unwrap_err();
        assert!(error.to_string().contains("no figure in common") && error.exit_status() == 2, "{error}");
        assert!(diff(&before, &json!({})).unwrap_err().to_string().contains("summary.json"));
    }
}

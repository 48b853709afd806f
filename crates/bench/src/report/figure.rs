//! What the repeats of one mode in one cell come to.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::plan::{Described, Link};
use crate::schedule::Standing;
use crate::statistics::{self, Interval};
use crate::trial::Trial;

/// The repeats of one mode in one cell. All but `points` and the errors are medians: over the points that are not
/// disturbed, if both sides of the comparison have such, else over all.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Figure {
    /// Of what the plan's load comes to ([`crate::plan::Measure`]).
    pub median: f64,
    /// Where the median of many more runs would lie ([`statistics::median_interval`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median_interval: Option<Interval>,
    /// The same of every run, in the order of the repeats; 0 where a run failed.
    pub points: Vec<f64>,
    /// Indices into `points` of those that stand although the machine was slow during the run.
    pub disturbed: Vec<usize>,
    /// Indices into `points` of those that lie far from the others ([`statistics::outliers`]); they count all the same.
    pub outliers: Vec<usize>,
    /// What the median is of, and µs of the server's CPU for each.
    #[serde(skip)]
    counted: Vec<(f64, f64)>,
    /// Of runs that another run at the same point has replaced, or failed to.
    pub set_aside: Vec<f64>,
    /// Failed requests of all runs, also of those set aside, and one for each run that failed.
    pub errors: u64,
    /// What went wrong, in words.
    pub problems: Vec<String>,
    /// Why runs failed that worked at the second try: these are no errors.
    pub tried_again: Vec<String>,
    /// What a reader should know of the figure, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// What carried the generator's connections.
    pub link: Link,
    /// Of all processes of the server, µs; for each of what the load is a rate of, else 0.
    pub server_cpu_us_per_request: f64,
    /// µs.
    pub client_cpu_us_per_request: f64,
    /// µs.
    pub latency_p50_us: f64,
    /// µs.
    pub latency_p99_us: f64,
    /// Every percentile that the generator reports, µs: `p99_9`.
    pub latency_us: BTreeMap<String, f64>,
    /// %.
    pub server_core_busy_percent: f64,
    /// %.
    pub server_core_softirq_percent: f64,
    /// %.
    pub client_core_busy_percent: f64,
    /// %.
    pub client_core_softirq_percent: f64,
    /// Share of the time that the generator had something to do, %.
    pub generator_busy_percent: f64,
    /// Which side could not do more.
    pub limit: Limit,
    /// As it is typed inside the server's namespace, if it had one.
    pub server_command: String,
    /// As it is typed inside the client's namespace, if it had one.
    pub client_command: String,
}

/// Which side could not do more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// The server's core had no time left, the generator had.
    Server,
    /// The generator had no time left: the server might have done more.
    Generator,
    /// Both had time left, and waited for each other.
    Neither,
    /// Nobody looked at the server: a search is many runs, and one of streams may end at once.
    Unknown,
}

impl Limit {
    /// A side that is busy for more than this has no time left.
    const BUSY_PERCENT: f64 = 95.0;

    pub(super) fn of(server_percent: f64, generator_percent: f64) -> Limit {
        if generator_percent > Limit::BUSY_PERCENT {
            Limit::Generator
        } else if server_percent <= 0.0 {
            Limit::Unknown
        } else if server_percent > Limit::BUSY_PERCENT {
            Limit::Server
        } else {
            Limit::Neither
        }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Limit::Server => "server",
            Limit::Generator => "generator",
            Limit::Neither => "neither",
            Limit::Unknown => "-",
        })
    }
}

impl Figure {
    pub(super) fn new(link: Link, attempts: &[(&Trial, Standing)], steady: bool) -> Figure {
        // What went wrong did so even in a run that does not count otherwise.
        let all = || attempts.iter().map(|&(trial, _)| trial);
        let mut problems: Vec<String> = all().flat_map(|trial| trial.problems.clone()).collect();
        problems.extend(all().filter(|trial| trial.failed_requests > 0).map(failures));
        let mut remarks: Vec<String> = all().flat_map(|trial| trial.remarks.clone()).collect();
        remarks.sort();
        remarks.dedup();
        let (set_aside, standing): (Vec<_>, Vec<_>) =
            attempts.iter().partition(|(_, standing)| *standing == Standing::SetAside);
        let counted = |standing: Standing| !steady || standing == Standing::Stands;
        let trials: Vec<&Trial> =
            standing.iter().filter(|(_, standing)| counted(*standing)).map(|&(trial, _)| trial).collect();
        let disturbed =
            standing.iter().enumerate().filter(|(_, (_, standing))| *standing == Standing::Disturbed);
        // Only runs that worked say something about CPU and latency.
        let of = |value: fn(&Trial) -> f64| {
            median(trials.iter().filter(|trial| trial.value > 0.0).map(|trial| value(trial)))
        };
        let first = trials.first();
        let points: Vec<f64> = standing.iter().map(|(trial, _)| tenths(trial.value)).collect();
        let values = || trials.iter().map(|trial| trial.value);
        let counted = trials.iter().filter(|trial| trial.value > 0.0);
        let (server_core_busy_percent, generator_busy_percent) =
            (of(|trial| trial.server_core_busy_percent), of(|trial| trial.generator_busy_percent));
        Figure {
            median: median(values()),
            median_interval: statistics::median_interval(values()),
            outliers: statistics::outliers(&points),
            counted: counted.map(|trial| (trial.value, trial.server_cpu_us_per_request)).collect(),
            points,
            disturbed: disturbed.map(|(index, _)| index).collect(),
            set_aside: set_aside.iter().map(|(trial, _)| tenths(trial.value)).collect(),
            errors: all().map(|trial| trial.failed_requests + trial.problems.len() as u64).sum(),
            problems,
            remarks,
            tried_again: all()
                .filter(|trial| trial.value > 0.0)
                .filter_map(|trial| trial.first_try.clone())
                .collect(),
            link,
            server_cpu_us_per_request: of(|trial| trial.server_cpu_us_per_request),
            client_cpu_us_per_request: of(|trial| trial.client_cpu_us_per_request),
            latency_p50_us: of(|trial| trial.latency_p50_us),
            latency_p99_us: of(|trial| trial.latency_p99_us),
            latency_us: percentiles(&trials),
            server_core_busy_percent,
            generator_busy_percent,
            limit: Limit::of(server_core_busy_percent, generator_busy_percent),
            server_core_softirq_percent: of(|trial| trial.server_core_softirq_percent),
            client_core_busy_percent: of(|trial| trial.client_core_busy_percent),
            client_core_softirq_percent: of(|trial| trial.client_core_softirq_percent),
            server_command: first.map(|trial| trial.server_command.clone()).unwrap_or_default(),
            client_command: first.map(|trial| trial.client_command.clone()).unwrap_or_default(),
        }
    }
}

impl Figure {
    pub(super) fn values(&self) -> impl Iterator<Item = f64> {
        self.counted.iter().map(|&(value, _)| value)
    }

    pub(super) fn server_us(&self) -> impl Iterator<Item = f64> {
        self.counted.iter().map(|&(_, us)| us)
    }

    /// Every point; those of a slow machine with a `~`, those far from the others with a `?`.
    pub(super) fn points_in_words(&self, measure: &Described) -> String {
        let point = |(index, &point): (usize, &f64)| {
            let mark = if self.disturbed.contains(&index) { "~" } else { "" };
            let doubt = if self.outliers.contains(&index) { "?" } else { "" };
            format!("{mark}{}{doubt}", measure.shown(point))
        };
        self.points.iter().enumerate().map(point).collect::<Vec<_>>().join(" ")
    }
}

/// The median over the runs of each percentile that all of them report.
fn percentiles(trials: &[&Trial]) -> BTreeMap<String, f64> {
    let reported = |trial: &Trial| trial.load.get("latency_us").and_then(|its| its.as_object().cloned());
    let all: Vec<_> = trials.iter().filter_map(|trial| reported(trial)).collect();
    let Some(first) = all.first() else { return BTreeMap::new() };
    let names = first.keys().filter(|name| name.starts_with('p'));
    let values = names.map(|name| {
        let each = all.iter().filter_map(|its| its.get(name)?.as_f64());
        (name.clone(), median(each))
    });
    values.collect()
}

/// To a tenth of what is large, and to a thousandth of what is small.
fn tenths(value: f64) -> f64 {
    let places = if value.abs() < 1000.0 { 1000.0 } else { 10.0 };
    (value * places).round() / places
}

/// How many requests of a run failed, by kind.
fn failures(trial: &Trial) -> String {
    let kinds = trial.load.get("failed").and_then(serde_json::Value::as_object);
    let kinds: Vec<String> = kinds
        .into_iter()
        .flatten()
        .filter(|(_, count)| count.as_u64() != Some(0))
        .map(|(kind, count)| format!("{} {count}", kind.replace('_', " ")))
        .collect();
    let kinds = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
    format!("{} requests failed{kinds}", trial.failed_requests)
}

/// To three places; 0 of nothing.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let value = statistics::median(values);
    if value.is_nan() { 0.0 } else { (value * 1000.0).round() / 1000.0 }
}

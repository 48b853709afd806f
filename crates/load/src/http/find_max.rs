//! `overfly load http --find-max`: one run after the other, until the largest load that holds is known.

use std::time::Duration;

use serde::Serialize;

use super::command::{length, show, subject};
use super::{HttpArgs, Report, run};
use overfly_terminal::tell;

use crate::error::Error;
use crate::output::watch::{INTERVAL, Watch};
use crate::output::{print, print_json, units, verdict};
use crate::search::{Bounds, Edge, Evidence, Goal, Range, Search};

/// More connections than this no machine has.
const CONNECTIONS_MAX: u64 = 10_000_000;
/// Requests/s that no machine sends.
const RATE_MAX: u64 = 1_000_000_000;
/// Between two runs of a search, for the server to finish what an overload has left behind.
const PAUSE: Duration = Duration::from_millis(300);

/// What a search changes from run to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Over {
    Connections,
    Rate,
}

impl Over {
    /// Whichever of -c and -R has a range; where none has, -R if it is given at all.
    fn of(args: &HttpArgs) -> Result<(Over, Range), Error> {
        let connections = Range::parse("-c", &args.connections, CONNECTIONS_MAX);
        match &args.rate {
            Some(rate) if rate.contains(':') && args.connections.contains(':') => {
                Err(Error::usage("-R", rate, "a range for one of -c and -R, and a number for the other"))
            }
            Some(rate) if !args.connections.contains(':') => {
                Range::parse("-R", rate, RATE_MAX).map(|range| (Over::Rate, range))
            }
            _ => connections.map(|range| (Over::Connections, range)),
        }
    }

    fn option(self) -> &'static str {
        match self {
            Over::Connections => "-c",
            Over::Rate => "-R",
        }
    }

    /// The arguments of a run at this load.
    fn at(self, args: &HttpArgs, load: u64) -> HttpArgs {
        let mut args = args.clone();
        match self {
            Over::Connections => args.connections = load.to_string(),
            Over::Rate => args.rate = Some(load.to_string()),
        }
        args
    }
}

/// One run of a search.
#[derive(Debug, Serialize)]
struct Probe {
    load: u64,
    holds: bool,
    /// What did not hold.
    why: Option<String>,
    /// Without `record`; nothing if there was no run, for the reason in `why`.
    report: Option<serde_json::Value>,
}

/// A load of the answer.
#[derive(Debug, Serialize)]
struct Found {
    load: u64,
    runs: u32,
    held: u32,
    confidence: f64,
}

impl Found {
    fn of(edge: Edge) -> Found {
        Found { load: edge.load, runs: edge.runs, held: edge.held, confidence: edge.confidence() }
    }
}

/// What a search says as JSON.
#[derive(Debug, Serialize)]
struct SearchReport {
    find_max: String,
    over: Over,
    low: u64,
    high: u64,
    precision: f64,
    /// The largest load that holds.
    holds: Option<Found>,
    /// The smallest one above it that was tried and fails.
    fails: Option<Found>,
    remarks: Vec<String>,
    /// What ended the search before its answer: `holds` and `fails` are what the runs until then show.
    ended: Option<String>,
    probes: Vec<Probe>,
}

/// Whether any load holds.
pub(super) fn find_max(args: &HttpArgs) -> Result<bool, Error> {
    refuse_what_needs_one_run(args)?;
    let mut finder = Finder::new(args)?;
    let search = finder.search;
    finder.say(&finder.opening()?)?;
    let (answer, ended) = match search.run(|load| finder.probe(load)) {
        Ok(answer) => (answer, None),
        Err(error) if finder.probes.is_empty() => return Err(error),
        Err(error) => (Bounds::of(finder.probes.iter().map(|run| (run.load, run.holds))), Some(error)),
    };
    finder.watch.end();
    finder.watch.finish()?;
    let json = args.output.json;
    let remarks = finder.remarks();
    if json {
        print_json(&finder.into_json(&answer, remarks, ended.as_ref()))?;
    } else {
        let remarks: String = remarks.iter().map(|remark| format!("  {remark}\n")).collect();
        print(&(finder.conclusion(&answer, ended.is_some()) + &remarks))?;
    }
    ended.map_or(Ok(answer.holds.is_some()), Err)
}

/// A search under way.
struct Finder<'a> {
    args: &'a HttpArgs,
    over: Over,
    goal: Goal,
    search: Search,
    watch: Watch,
    probes: Vec<Probe>,
    last: Option<Report>,
}

impl<'a> Finder<'a> {
    fn new(args: &'a HttpArgs) -> Result<Finder<'a>, Error> {
        let goal = Goal::parse(args.search.find_max.as_deref().unwrap_or_default())?;
        let (over, range) = Over::of(args)?;
        let search = args.search.search(range)?;
        let first = over.at(args, range.low).settings()?;
        let watch = Watch::new(&args.output, subject(&first))?;
        Ok(Finder { args, over, goal, search, watch, probes: Vec::new(), last: None })
    }

    /// On standard output, unless JSON goes there.
    fn say(&self, line: &str) -> Result<(), Error> {
        if self.args.output.json {
            tell(line);
            return Ok(());
        }
        print(&format!("{line}\n"))
    }

    fn opening(&self) -> Result<String, Error> {
        let Range { low, high } = self.search.range;
        let first = self.over.at(self.args, low).settings()?;
        Ok(format!(
            "Looking for the largest {} from {low} to {high} with {}, {} a run @ {}",
            self.over.option(),
            self.goal,
            length(&first),
            first.targets[0].url()
        ))
    }

    /// One run: whether it held.
    fn probe(&mut self, load: u64) -> Result<bool, Error> {
        if !self.probes.is_empty() {
            std::thread::sleep(PAUSE);
        }
        let report = match self.run(load) {
            Ok(report) => report,
            // A load that this machine or these options do not allow does not hold, whatever the server may do.
            Err(error) if error.is_usage() => {
                self.say(&format!("  {error}"))?;
                self.probes.push(Probe { load, holds: false, why: Some(error.to_string()), report: None });
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let why = self.goal.broken_by(&Evidence {
            latency_ns: &report.record.latency_ns,
            failed: report.failed_total,
            short_of_load: verdict::short_of_load(&report),
        });
        self.say(&line(self.over.option(), load, &report, why.as_deref()))?;
        let mut shown = serde_json::to_value(&report).unwrap_or_default();
        if let Some(fields) = shown.as_object_mut() {
            fields.remove("record");
        }
        let holds = why.is_none();
        self.probes.push(Probe { load, holds, why, report: Some(shown) });
        self.last = Some(report);
        Ok(holds)
    }

    fn run(&mut self, load: u64) -> Result<Report, Error> {
        let mut settings = self.over.at(self.args, load).settings()?;
        settings.interval = self.watch.wants_intervals().then_some(INTERVAL);
        let result = run(&settings, |progress| show(&mut self.watch, progress));
        match self.watch.end_before_another() {
            Some(by) => Err(Error::machine("the search was ended", format!("by {by}, before its answer"))),
            None => result,
        }
    }

    /// What to know of the answer: the last run was at one of its edges.
    fn remarks(&self) -> Vec<String> {
        let Some(last) = &self.last else { return Vec::new() };
        let limited = verdict::generator_was_the_limit(last).then(|| {
            "The generator was the limit in the last run: the server may hold more than this answer."
                .to_string()
        });
        self.goal.doubt(last.requests).into_iter().chain(limited).collect()
    }

    fn into_json(self, answer: &Bounds, remarks: Vec<String>, ended: Option<&Error>) -> String {
        let report = SearchReport {
            find_max: self.goal.to_string(),
            over: self.over,
            low: self.search.range.low,
            high: self.search.range.high,
            precision: self.search.precision,
            holds: answer.holds.map(Found::of),
            fails: answer.fails.map(Found::of),
            remarks,
            ended: ended.map(Error::to_string),
            probes: self.probes,
        };
        // Numbers and strings under string keys: serde_json has nothing to refuse.
        serde_json::to_string(&report).unwrap_or_default()
    }

    fn conclusion(&self, answer: &Bounds, ended: bool) -> String {
        let lead = if ended { "So far" } else { "Answer" };
        let option = self.over.option();
        let edge = |edge: Edge, ended: u32, word: &str| {
            let sure = units::percent(edge.confidence());
            format!("{option} {} {word} in {ended} of {} runs ({sure} sure)", edge.load, edge.runs)
        };
        let holds = answer.holds.map(|found| edge(found, found.held, "holds"));
        let fails = answer.fails.map(|found| edge(found, found.runs - found.held, "fails"));
        match (holds, fails) {
            (Some(holds), Some(fails)) => format!("{lead}: {holds}; {fails}.\n"),
            (Some(holds), None) if ended => format!("{lead}: {holds}.\n"),
            (Some(holds), None) => {
                format!("{lead}: {holds}, the end of the range: the server may hold more.\n")
            }
            (None, Some(fails)) => format!("{lead}: none. {fails}.\n"),
            (None, None) => format!("{lead}: none.\n"),
        }
    }
}

/// A search is many runs: what belongs to one run has no place in it.
fn refuse_what_needs_one_run(args: &HttpArgs) -> Result<(), Error> {
    let given = [
        ("--csv", args.output.csv.is_some()),
        ("--hdr", args.output.hdr.is_some()),
        ("--tui", args.output.tui),
        ("--join", args.step.join.is_some()),
        ("--start-at", args.step.start_at.is_some()),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(Error::usage(option, "", "a single run, without --find-max")),
        None => Ok(()),
    }
}

fn line(option: &str, load: u64, report: &Report, why: Option<&str>) -> String {
    let failed = report.failed_total as f64 / report.requests.max(1) as f64;
    format!(
        "  {option} {load:<9}{:>12.1}/s{:>12} p50{:>12} p99{:>9} errors  {}",
        report.requests_per_s,
        units::time(report.latency_us.p50),
        units::time(report.latency_us.p99),
        units::percent(failed),
        why.map_or("holds".to_string(), |why| format!("fails: {why}"))
    )
}

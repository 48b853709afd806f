//! `overfly load merge`: adds up what generators left in files.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use serde::Serialize;

use crate::error::Error;
use crate::http::{Latency, Report};
use crate::output::{histogram, page, print_report};
use crate::record::Record;

/// Adds up reports, or HdrHistogram logs, of generators that ran at the same time.
///
/// Counts and histograms are added, nothing is averaged: the percentiles are exact.
#[derive(Debug, Clone, clap::Args)]
pub struct MergeArgs {
    /// What `overfly load http --json` printed, or what `--hdr` wrote: one kind or the other
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// The distributions of interval logs, µs.
#[derive(Debug, Serialize)]
struct Distributions {
    requests: u64,
    latency_us: Latency,
    service_us: Latency,
    first_byte_us: Latency,
    connect_us: Latency,
    send_lag_us: Latency,
    record: Record,
}

/// Merges as the arguments say: 0 there was a success in it, 1 none, 2 a wrong file.
#[must_use]
pub fn main_merge(args: &MergeArgs) -> ExitCode {
    Error::exit("overfly load merge", merge(args))
}

/// Whether there was a success in it.
fn merge(args: &MergeArgs) -> Result<bool, Error> {
    let (mut reports, mut logs) = (Vec::new(), Record::new());
    let mut log_files = 0;
    for path in &args.files {
        let wrong = |expected: String| Error::usage("FILE", path.display(), expected);
        let text = fs::read_to_string(path).map_err(|error| wrong(format!("a file to read ({error})")))?;
        if text.trim_start().starts_with('{') {
            let report = serde_json::from_str::<Report>(&text)
                .map_err(|error| wrong(format!("one report of `overfly load http --json` ({error})")))?;
            reports.push(report);
        } else {
            read_log(&text, &mut logs).map_err(wrong)?;
            log_files += 1;
        }
    }
    let count = args.files.len();
    match (Report::merge(reports), log_files) {
        (Some(report), 0) => {
            let text = format!("{count} reports merged @ {}\n{report}", report.url);
            print_report(args.json, || report.to_json(), &text)?;
            Ok(report.succeeded > 0)
        }
        (None, _) => {
            let text =
                format!("{count} logs merged, {} requests\n{}", logs.latency_ns.len(), page::Times(&logs));
            print_report(args.json, || distributions(logs.clone()), &text)?;
            Ok(!logs.latency_ns.is_empty())
        }
        (Some(_), _) => Err(Error::usage("FILE", "", "reports, or HdrHistogram logs, not both")),
    }
}

fn distributions(record: Record) -> String {
    let distributions = Distributions {
        requests: record.latency_ns.len(),
        latency_us: Latency::of(&record.latency_ns),
        service_us: Latency::of(&record.service_ns),
        first_byte_us: Latency::of(&record.first_byte_ns),
        connect_us: Latency::of(&record.connect_ns),
        send_lag_us: Latency::of(&record.send_lag_ns),
        record,
    };
    // Numbers and strings under string keys: serde_json has nothing to refuse.
    serde_json::to_string(&distributions).unwrap_or_default()
}

/// Adds the histograms of a log, ours or another tool's in ns. The error says what was expected.
fn read_log(text: &str, sum: &mut Record) -> Result<(), String> {
    // Its line of column names has no place in the reader's grammar.
    let lines: String =
        text.lines().filter(|line| !line.starts_with('"')).flat_map(|line| [line, "\n"]).collect();
    let mut intervals = 0;
    for entry in IntervalLogIterator::new(lines.as_bytes()) {
        let entry = entry.map_err(|_| "a HdrHistogram log or a JSON report".to_string())?;
        let LogEntry::Interval(interval) = entry else { continue };
        let read = histogram::decode(interval.encoded_histogram())
            .ok_or_else(|| format!("histograms in V2 encoding (interval {intervals} is not)"))?;
        match interval.tag().map(|tag| tag.as_str()) {
            None | Some("latency") => sum.latency_ns += &read,
            Some("service") => sum.service_ns += &read,
            Some("first_byte") => sum.first_byte_ns += &read,
            Some("connect") => sum.connect_ns += &read,
            Some("send_lag") => sum.send_lag_ns += &read,
            Some(_) => {}
        }
        intervals += 1;
    }
    if intervals == 0 { Err("at least one interval, or a JSON report".to_string()) } else { Ok(()) }
}

//! The page that wrk and wrk2 print, line by line as theirs.

use std::fmt::{self, Write};

use hdrhistogram::Histogram;

use crate::dialect::spectrum::write_spectrum;
use crate::dialect::units::{binary, column, metric, time_of_run, time_s, time_us};

const NS_PER_US: f64 = 1e3;
/// wrk's percentiles.
const FEW: [f64; 4] = [50.0, 75.0, 90.0, 99.0];
/// wrk2's.
const MANY: [f64; 8] = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0];
const RULE: &str = "----------------------------------------------------------";

/// The two lines that stand there while the run goes on.
pub(super) fn opening(url: &str, duration_s: f64, threads: usize, connections: usize) -> String {
    format!(
        "Running {} test @ {url}\n  {threads} threads and {connections} connections\n",
        time_s(duration_s)
    )
}

/// What a run found out, counted as wrk counts.
#[derive(Debug)]
pub(super) struct Results {
    /// Latency as the dialect defines it, ns: wrk from the request's start, wrk2 from its due time.
    pub(super) latency_ns: Histogram<u64>,
    /// From the request's start, ns.
    pub(super) service_ns: Histogram<u64>,
    /// Requests/s, a value for each thread and sampling interval.
    pub(super) rates: Histogram<u64>,
    /// Complete responses, whatever their status.
    pub(super) completed: u64,
    /// Length of the run, s.
    pub(super) runtime_s: f64,
    /// Bytes received, heads included.
    pub(super) bytes: u64,
    /// What went wrong.
    pub(super) errors: Errors,
}

/// wrk's kinds of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Errors {
    /// Connections that could not be made.
    pub(super) connect: u64,
    /// Connections that broke, closed early or spoke no HTTP.
    pub(super) read: u64,
    /// Requests that could not be sent.
    pub(super) write: u64,
    /// Requests that took longer than `--timeout`.
    pub(super) timeout: u64,
    /// Responses with a status above 399.
    pub(super) status: u64,
}

impl std::ops::AddAssign for Errors {
    fn add_assign(&mut self, more: Errors) {
        self.connect += more.connect;
        self.read += more.read;
        self.write += more.write;
        self.timeout += more.timeout;
        self.status += more.status;
    }
}

/// Which latencies are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    /// Mean and maximum only.
    Summary,
    /// wrk's `--latency`.
    Percentiles,
    /// wrk2's `--latency` (`recorded`) and `--u_latency`.
    Spectrum { recorded: bool, uncorrected: bool },
}

/// Everything after the opening.
pub(super) fn closing(results: &Results, shown: Shown) -> String {
    let mut page = String::new();
    write_closing(&mut page, results, shown).expect("a String takes whatever is written to it");
    page
}

fn write_closing(page: &mut String, results: &Results, shown: Shown) -> fmt::Result {
    writeln!(page, "  Thread Stats{:>6}{:>11}{:>8}{:>12}", "Avg", "Stdev", "Max", "+/- Stdev")?;
    write_spread(page, "Latency", &results.latency_ns, |ns| time_us(ns / NS_PER_US))?;
    write_spread(page, "Req/Sec", &results.rates, metric)?;
    match shown {
        Shown::Summary => {}
        Shown::Percentiles => {
            writeln!(page, "  Latency Distribution")?;
            write_percentiles(page, &results.latency_ns, &FEW, 7, 0)?;
        }
        Shown::Spectrum { recorded, uncorrected } => {
            if recorded {
                write_distribution(page, "Recorded Latency", &results.latency_ns)?;
            }
            if uncorrected {
                writeln!(page)?;
                let what = "Uncorrected Latency (measured without taking delayed starts into account)";
                write_distribution(page, what, &results.service_ns)?;
            }
        }
    }
    let runtime = time_of_run(results.runtime_s);
    writeln!(page, "  {} requests in {runtime}, {}B read", results.completed, binary(results.bytes as f64))?;
    let Errors { connect, read, write, timeout, status } = results.errors;
    if connect + read + write + timeout > 0 {
        writeln!(page, "  Socket errors: connect {connect}, read {read}, write {write}, timeout {timeout}")?;
    }
    if status > 0 {
        writeln!(page, "  Non-2xx or 3xx responses: {status}")?;
    }
    let per_s = |count: u64| if results.runtime_s > 0.0 { count as f64 / results.runtime_s } else { 0.0 };
    writeln!(page, "Requests/sec: {:>9.2}", per_s(results.completed))?;
    writeln!(page, "Transfer/sec: {:>10}B", binary(per_s(results.bytes)))
}

/// Mean, standard deviation, maximum, and how much of it all lies within one deviation of the mean.
fn write_spread(
    page: &mut String,
    name: &str,
    histogram: &Histogram<u64>,
    quantity: impl Fn(f64) -> String,
) -> fmt::Result {
    let (mean, deviation) = (histogram.mean(), histogram.stdev());
    let low = (mean - deviation).max(0.0).ceil() as u64;
    let within = histogram.count_between(low, (mean + deviation) as u64);
    let within_percent =
        if histogram.is_empty() { 0.0 } else { 100.0 * within as f64 / histogram.len() as f64 };
    writeln!(
        page,
        "    {name:<10}{}{}{}{within_percent:>8.2}%",
        column(&quantity(mean), 8),
        column(&quantity(deviation), 10),
        column(&quantity(histogram.max() as f64), 9),
    )
}

fn write_percentiles(
    page: &mut String,
    latency_ns: &Histogram<u64>,
    percentiles: &[f64],
    width: usize,
    decimals: usize,
) -> fmt::Result {
    for percentile in percentiles {
        let us = latency_ns.value_at_percentile(*percentile) as f64 / NS_PER_US;
        writeln!(page, "{percentile:>width$.decimals$}%{}", column(&time_us(us), 10))?;
    }
    Ok(())
}

fn write_distribution(page: &mut String, what: &str, latency_ns: &Histogram<u64>) -> fmt::Result {
    writeln!(page, "  Latency Distribution (HdrHistogram - {what})")?;
    write_percentiles(page, latency_ns, &MANY, 7, 3)?;
    writeln!(page, "\n  Detailed Percentile spectrum:")?;
    write_spectrum(page, latency_ns)?;
    writeln!(page, "{RULE}")
}

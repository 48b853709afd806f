//! What a run found out, for people and as JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::tally::Summary;
use super::{Rate, Settings};
use crate::record::{Failure, Record};
use crate::response::Malformed;

/// A distribution of times, in µs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Latency {
    /// Smallest.
    pub min: f64,
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub stdev: f64,
    /// Median.
    pub p50: f64,
    /// 75th percentile.
    pub p75: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p99_9: f64,
    /// 99.99th percentile.
    pub p99_99: f64,
    /// 99.999th percentile.
    pub p99_999: f64,
    /// 99.9999th percentile.
    pub p99_9999: f64,
    /// Largest.
    pub max: f64,
}

impl Latency {
    /// Of a histogram in ns. All zero if it is empty.
    #[must_use]
    pub fn of(histogram: &Histogram<u64>) -> Latency {
        let us = |ns: u64| (ns as f64 / 10.0).round() / 100.0;
        let at = |quantile| us(histogram.value_at_quantile(quantile));
        Latency {
            min: us(histogram.min()),
            mean: us(histogram.mean() as u64),
            stdev: us(histogram.stdev() as u64),
            p50: at(0.5),
            p75: at(0.75),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            p99_999: at(0.99999),
            p99_9999: at(0.999_999),
            max: us(histogram.max()),
        }
    }
}

/// What was asked of an open loop and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OpenLoop {
    /// Requests per second asked for, on average over the measured part.
    pub asked_per_s: f64,
    /// Requests per second that were sent.
    pub sent_per_s: f64,
    /// Requests that were due in the measured part and never sent: no connection was free.
    pub unsent: u64,
    /// `even` or `poisson`.
    pub arrivals: &'static str,
    /// Seed of Poisson arrivals: the same one makes the same arrivals.
    pub seed: u64,
    /// How late the generator itself was, µs: from the moment that a request was due and had a connection to the moment
    /// that it was sent.
    pub send_lag_us: Latency,
}

/// The result of one run. Counts and times are of the measured part, without the warm-up.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// What was asked for.
    pub url: String,
    /// `xdp` or `kernel`.
    pub link: &'static str,
    /// Generator threads.
    pub threads: usize,
    /// Connections asked for.
    pub connections: usize,
    /// A new connection for each request.
    pub close: bool,
    /// Requests that ended, either way.
    pub requests: u64,
    /// Requests with a complete and expected response.
    pub succeeded: u64,
    /// Requests that failed.
    pub failed_total: u64,
    /// Requests that failed, by kind; every kind is there.
    pub failed: BTreeMap<&'static str, u64>,
    /// Malformed responses, by kind; only kinds that came up.
    pub malformed: BTreeMap<&'static str, u64>,
    /// Length of the measured part, s.
    pub duration_s: f64,
    /// Successes per second.
    pub requests_per_s: f64,
    /// Stream bytes received, heads included, per second.
    pub bytes_in_per_s: f64,
    /// Intended start of a request (in a closed loop its start; with `close` that of its connection) to the end of its
    /// response, µs.
    pub latency_us: Latency,
    /// The request handed over to the end of its response, µs: what the server took, whatever waited before it.
    pub service_us: Latency,
    /// The request handed over to the first byte of its response, µs.
    pub first_byte_us: Latency,
    /// The open loop's rate; nothing in a closed loop.
    pub open_loop: Option<OpenLoop>,
    /// What a reader should know before believing the figures, in sentences: the rate was missed and why, the generator
    /// was the limit, fewer connections than asked for. Empty where there is nothing to say.
    pub remarks: Vec<String>,
    /// All that was counted, for other layouts and for merging with other generators'.
    #[serde(skip)]
    pub record: Record,
    /// SYN to established, µs, over the connections made in the measured part.
    pub connect_us: Latency,
    /// Connections made in the measured part.
    pub connections_made: u64,
    /// Stream bytes received.
    pub bytes_in: u64,
    /// Stream bytes sent.
    pub bytes_out: u64,
    /// The generator threads' processor time, s.
    pub cpu_s: f64,
    /// Its part in user mode, s.
    pub cpu_user_s: f64,
    /// Its part in the kernel, s.
    pub cpu_system_s: f64,
    /// Processor time over requests, µs.
    pub cpu_us_per_request: f64,
    /// Most connections open at once, warm-up included.
    pub connections_open_max: u64,
    /// Counters of the user-level stack and its link, whole run; empty over kernel sockets.
    pub counters: BTreeMap<String, u64>,
}

impl OpenLoop {
    fn new(rate: &Rate, record: &Record, duration_s: f64) -> OpenLoop {
        let per_s = |count: f64| if duration_s > 0.0 { count / duration_s } else { 0.0 };
        OpenLoop {
            asked_per_s: per_s(rate.due(Duration::from_secs_f64(duration_s))),
            sent_per_s: per_s(record.sent as f64),
            unsent: record.unsent,
            arrivals: rate.arrivals.name(),
            seed: rate.seed,
            send_lag_us: Latency::of(&record.send_lag_ns),
        }
    }
}

impl Report {
    pub(crate) fn new(settings: &Settings, summary: Summary) -> Report {
        let Summary { record, duration, counters } = summary;
        let duration_s = duration.as_secs_f64();
        let per_s = |count: u64| if duration_s > 0.0 { count as f64 / duration_s } else { 0.0 };
        let requests = record.requests();
        let cpu_s = record.cpu.total_s();
        Report {
            url: settings.target.url().to_string(),
            link: settings.link.name(),
            threads: settings.threads,
            connections: settings.connections,
            close: settings.close,
            requests,
            succeeded: record.succeeded,
            failed_total: record.failed(),
            failed: Failure::ALL.map(|kind| (kind.name(), record.failures(kind))).into(),
            malformed: Malformed::ALL
                .into_iter()
                .map(|kind| (kind.name(), record.malformed(kind)))
                .filter(|(_, count)| *count > 0)
                .collect(),
            duration_s,
            requests_per_s: per_s(record.succeeded),
            bytes_in_per_s: per_s(record.bytes_in),
            latency_us: Latency::of(&record.latency_ns),
            service_us: Latency::of(&record.service_ns),
            first_byte_us: Latency::of(&record.first_byte_ns),
            open_loop: settings.rate.as_ref().map(|rate| OpenLoop::new(rate, &record, duration_s)),
            remarks: Vec::new(),
            connect_us: Latency::of(&record.connect_ns),
            connections_made: record.connect_ns.len(),
            bytes_in: record.bytes_in,
            bytes_out: record.bytes_out,
            cpu_s,
            cpu_user_s: record.cpu.user_s,
            cpu_system_s: record.cpu.system_s,
            cpu_us_per_request: if requests > 0 { cpu_s * 1e6 / requests as f64 } else { 0.0 },
            connections_open_max: record.open_max,
            counters,
            record,
        }
    }

    /// One line of JSON with the fields of this struct.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Numbers and strings under string keys: serde_json has nothing to refuse.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// `1.50ms`, from µs.
fn time(us: f64) -> String {
    match us {
        _ if us < 1e3 => format!("{us:.2}us"),
        _ if us < 1e6 => format!("{:.2}ms", us / 1e3),
        _ => format!("{:.2}s", us / 1e6),
    }
}

/// `1.50MB`, from bytes, in powers of 1024 as wrk has it.
fn size(bytes: f64) -> String {
    let units = ["B", "KB", "MB", "GB", "TB"];
    let mut scaled = bytes;
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < units.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes:.0}B") } else { format!("{scaled:.2}{}", units[unit]) }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = if self.close { "a new connection for each request" } else { "keep-alive" };
        writeln!(
            f,
            "  {} threads and {} connections over {}, {each}; most open at once: {}",
            self.threads, self.connections, self.link, self.connections_open_max
        )?;
        let head = ["", "p50", "p90", "p99", "p99.9", "max", "mean"];
        let row = |f: &mut fmt::Formatter<'_>, cells: &[String]| {
            write!(f, "  {:<9}", cells[0])?;
            for cell in &cells[1..] {
                write!(f, "{cell:>11}")?;
            }
            writeln!(f)
        };
        row(f, &head.map(String::from))?;
        let mut times = |name: &str, l: &Latency| {
            let cells = [l.p50, l.p90, l.p99, l.p99_9, l.max, l.mean].map(time);
            row(f, &[&[name.to_string()], &cells[..]].concat())
        };
        times("Latency", &self.latency_us)?;
        if self.close {
            times("Connect", &self.connect_us)?;
        }
        writeln!(
            f,
            "  {} requests in {:.2}s, {} read, {} written",
            self.requests,
            self.duration_s,
            size(self.bytes_in as f64),
            size(self.bytes_out as f64)
        )?;
        if self.failed_total > 0 {
            let name = |(kind, count): (&&str, &u64)| format!("{} {count}", kind.replace('_', " "));
            let kinds: Vec<String> = self.failed.iter().filter(|(_, count)| **count > 0).map(name).collect();
            writeln!(f, "  Failed requests: {} ({})", self.failed_total, kinds.join(", "))?;
        }
        if !self.malformed.is_empty() {
            let name = |(kind, count): (&&str, &u64)| format!("{} {count}", kind.replace('_', " "));
            let kinds: Vec<String> = self.malformed.iter().map(name).collect();
            writeln!(f, "  Malformed responses: {}", kinds.join(", "))?;
        }
        writeln!(
            f,
            "  Generator CPU: {:.2}s user, {:.2}s system, {:.2}us a request",
            self.cpu_user_s, self.cpu_system_s, self.cpu_us_per_request
        )?;
        if !self.close && self.connections_open_max < self.connections as u64 {
            writeln!(f, "  Fewer connections were ever open at once than -c asked for")?;
        }
        writeln!(f, "Requests/sec: {:>12.2}", self.requests_per_s)?;
        writeln!(f, "Transfer/sec: {:>12}", size(self.bytes_in_per_s))
    }
}

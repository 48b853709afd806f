//! The report as one page for a person.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;

use super::{units, verdict};
use crate::http::Report;
use crate::record::Record;

const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999)];
/// Text is broken at this column.
const WIDTH: usize = 90;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        head(f, self)?;
        Times(&self.record).fmt(f)?;
        writeln!(
            f,
            "  {} requests in {:.2}s, {} read, {} written",
            units::grouped(self.requests),
            self.duration_s,
            units::size(self.bytes_in as f64),
            units::size(self.bytes_out as f64)
        )?;
        kinds(f, "Failed requests", &self.failed)?;
        kinds(f, "Malformed responses", &self.malformed)?;
        writeln!(
            f,
            "  Generator: busy {} of the time; {:.2}s user, {:.2}s system, {:.2}us a request",
            units::percent(verdict::busy(self)),
            self.cpu_user_s,
            self.cpu_system_s,
            self.cpu_us_per_request
        )?;
        for remark in &self.remarks {
            paragraph(f, remark)?;
        }
        writeln!(f, "Requests/sec: {:>12.2}", self.requests_per_s)?;
        writeln!(f, "Transfer/sec: {:>12}", units::size(self.bytes_in_per_s))
    }
}

fn head(f: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
    let each = if report.close { "a new connection for each request" } else { "keep-alive" };
    paragraph(
        f,
        &format!(
            "{} {} and {} {} ({} open at most) over {}, {each}; {:.1} requests under way",
            report.threads,
            if report.threads == 1 { "thread" } else { "threads" },
            units::grouped(report.connections as u64),
            if report.connections == 1 { "connection" } else { "connections" },
            units::grouped(report.connections_open_max),
            report.link,
            report.under_way()
        ),
    )?;
    match &report.open_loop {
        Some(open_loop) => writeln!(
            f,
            "  Open loop, {} arrivals: {:.1}/s sent of {:.1}/s asked for",
            open_loop.arrivals, open_loop.sent_per_s, open_loop.asked_per_s
        ),
        None => Ok(()),
    }
}

/// The distributions as a table, each quantile only where at least one value lies beyond it.
pub(crate) struct Times<'a>(pub(crate) &'a Record);

impl fmt::Display for Times<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [
            ("Latency", &self.0.latency_ns),
            ("Service", &self.0.service_ns),
            ("First byte", &self.0.first_byte_ns),
            ("Connect", &self.0.connect_ns),
            ("Send lag", &self.0.send_lag_ns),
        ];
        let columns = QUANTILES.iter().map(|(name, _)| *name).chain(["max", "mean"]);
        row(f, "", columns.map(String::from))?;
        for (name, histogram) in rows.into_iter().filter(|(_, histogram)| !histogram.is_empty()) {
            let quantiles = QUANTILES.iter().map(|(_, quantile)| at(histogram, *quantile));
            let ends = [histogram.max() as f64, histogram.mean()].map(|ns| units::time(ns / 1e3));
            row(f, name, quantiles.chain(ends))?;
        }
        Ok(())
    }
}

fn at(histogram: &Histogram<u64>, quantile: f64) -> String {
    // 1 - 0.999 is a little less than a thousandth.
    if (1.0 - quantile) * (histogram.len() as f64) < 1.0 - 1e-6 {
        return "-".to_string();
    }
    units::time(histogram.value_at_quantile(quantile) as f64 / 1e3)
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, cells: impl Iterator<Item = String>) -> fmt::Result {
    write!(f, "  {name:<10}")?;
    for cell in cells {
        write!(f, "{cell:>9}")?;
    }
    writeln!(f)
}

fn kinds(f: &mut fmt::Formatter<'_>, title: &str, counts: &BTreeMap<String, u64>) -> fmt::Result {
    let total: u64 = counts.values().sum();
    if total == 0 {
        return Ok(());
    }
    let each = counts.iter().filter(|(_, count)| **count > 0);
    let each: Vec<String> =
        each.map(|(kind, count)| format!("{} {}", kind.replace('_', " "), units::grouped(*count))).collect();
    writeln!(f, "  {title}: {} ({})", units::grouped(total), each.join(", "))
}

/// Indented, and broken between words.
fn paragraph(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    let mut column = 0;
    for word in text.split(' ') {
        if column > 0 && column + 1 + word.len() > WIDTH {
            writeln!(f)?;
            column = 0;
        }
        let before = if column == 0 { "  " } else { " " };
        write!(f, "{before}{word}")?;
        column += before.len() + word.len();
    }
    writeln!(f)
}

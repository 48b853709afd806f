//! The report as one page for a person.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;

use super::{units, verdict};
use crate::http::Report;
use crate::record::Record;

const QUANTILES: [(&str, f64); 7] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
    ("p99.999", 0.99999),
    ("p99.9999", 0.999_999),
];
/// So many columns are there even if they are empty: pages of one length are easier to compare.
const COLUMNS_LEAST: usize = 5;
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
        let most = rows.iter().map(|(_, histogram)| histogram.len()).max().unwrap_or(0);
        let known = QUANTILES.iter().filter(|(_, quantile)| is_known(*quantile, most)).count();
        let columns = &QUANTILES[..known.max(COLUMNS_LEAST)];
        row(f, "", columns.iter().map(|(name, _)| *name).chain(["max", "mean"]).map(String::from))?;
        for (name, histogram) in rows.into_iter().filter(|(_, histogram)| !histogram.is_empty()) {
            let quantiles = columns.iter().map(|(_, quantile)| at(histogram, *quantile));
            let ends = [histogram.max() as f64, histogram.mean()].map(|ns| units::time(ns / 1e3));
            row(f, name, quantiles.chain(ends))?;
        }
        Ok(())
    }
}

/// Whether one of `count` values lies beyond the quantile.
fn is_known(quantile: f64, count: u64) -> bool {
    // 1 - 0.999 is a little less than a thousandth.
    (1.0 - quantile) * (count as f64) >= 1.0 - 1e-6
}

fn at(histogram: &Histogram<u64>, quantile: f64) -> String {
    if !is_known(quantile, histogram.len()) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The heading, and the row of latencies.
    fn table(count: u64) -> (String, String) {
        let mut record = Record::new();
        record.latency_ns.record_n(1_000, count).unwrap();
        let text = Times(&record).to_string();
        let mut lines = text.lines().map(str::to_owned);
        (lines.next().unwrap(), lines.next().unwrap())
    }

    #[test]
    fn quantiles_are_shown_as_far_as_values_lie_beyond_them() {
        let (heading, row) = table(999);
        assert!(heading.contains("p99.99 ") && !heading.contains("p99.999"), "{heading}");
        assert_eq!(row.matches(" -").count(), 2, "{row}");
        let (heading, row) = table(1_000_000);
        assert!(heading.contains(" p99.9999 ") && !row.contains(" -"), "{heading}\n{row}");
        assert_eq!(heading.len(), row.len());
    }
}

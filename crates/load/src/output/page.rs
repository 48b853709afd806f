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
/// Text is broken at this column, where the room (a format's width) is not less.
const WIDTH: usize = 90;
/// Cells of a table's first column, and of each other one.
const NAME: usize = 12;
const CELL: usize = 9;

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
        let shown = fitting(columns.len(), f.width());
        let heads: Vec<String> =
            columns.iter().map(|(name, _)| *name).chain(["max", "mean"]).map(String::from).collect();
        row(f, "", shown.iter().map(|&column| &heads[column]))?;
        for (name, histogram) in rows.into_iter().filter(|(_, histogram)| !histogram.is_empty()) {
            let quantiles = columns.iter().map(|(_, quantile)| at(histogram, *quantile));
            let ends = [histogram.max() as f64, histogram.mean()].map(|ns| units::time(ns / 1e3));
            let cells: Vec<String> = quantiles.chain(ends).collect();
            row(f, name, shown.iter().map(|&column| &cells[column]))?;
        }
        Ok(())
    }
}

/// Which of the quantiles, the maximum and the mean there is room for: none is cut. The first and the last that are known say most.
fn fitting(quantiles: usize, room: Option<usize>) -> Vec<usize> {
    let [p50, p90, p99, max, mean] = [0, 1, 2, quantiles, quantiles + 1];
    let importance: Vec<usize> = [p50, p99, max, mean, p90].into_iter().chain(3..quantiles).collect();
    // Between two columns there is one cell, which is in the cells here.
    let widths = vec![CELL - 1; quantiles + 2];
    overfly_terminal::columns(&widths, &importance, room.unwrap_or(usize::MAX).saturating_sub(NAME + 1))
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

fn row<'a>(f: &mut fmt::Formatter<'_>, name: &str, cells: impl Iterator<Item = &'a String>) -> fmt::Result {
    let indented = format!("  {name}");
    write!(f, "{indented:<NAME$}")?;
    for cell in cells {
        write!(f, "{cell:>CELL$}")?;
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
    let room = f.width().unwrap_or(WIDTH).min(WIDTH);
    let mut column = 0;
    for word in text.split(' ') {
        if column > 0 && column + 1 + word.len() > room {
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
    fn a_page_on_a_terminal_cuts_no_number() {
        let mut record = Record::new();
        record.latency_ns.record_n(1_000, 999_999).unwrap();
        record.latency_ns.record(3_599_999_999_999).unwrap();
        for room in [40, 60, 80, 120] {
            let text = format!("{:room$}", Times(&record));
            assert!(text.lines().all(|line| line.chars().count() <= room), "{room}:\n{text}");
            let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
            assert!(lines[0].starts_with(&["p50"]) && lines[0].contains(&"max"), "{room}:\n{text}");
            // "Latency" has no head.
            assert_eq!(lines[0].len() + 1, lines[1].len(), "{room}:\n{text}");
            let max = lines[0].iter().position(|head| *head == "max").unwrap();
            assert_eq!(lines[1][max + 1], units::time(record.latency_ns.max() as f64 / 1e3), "{text}");
            assert_eq!(room >= 93, lines[0].len() == QUANTILES.len() + 2, "{room}:\n{text}");
        }
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

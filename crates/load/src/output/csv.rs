//! `--csv FILE`: one line for each second of a run.

use std::io::{self, Write};
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::record::{Failure, Record};

const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p75", 0.75), ("p90", 0.9), ("p99", 0.99), ("p99_9", 0.999)];

/// A time series that is being written. Columns are only ever added, at the end.
#[derive(Debug)]
pub(crate) struct Series<W> {
    out: W,
}

impl<W: Write> Series<W> {
    /// Writes the line of names.
    pub(crate) fn new(mut out: W) -> io::Result<Series<W>> {
        let mut names: Vec<String> =
            ["elapsed_s", "length_s", "requests", "succeeded", "failed"].map(String::from).into();
        names.extend(Failure::ALL.iter().map(|kind| kind.name().to_string()));
        for distribution in ["latency", "service"] {
            names.extend(QUANTILES.iter().map(|(name, _)| format!("{distribution}_{name}_us")));
            names.push(format!("{distribution}_max_us"));
        }
        names.extend(["connections_open", "connections_made", "bytes_in", "bytes_out"].map(String::from));
        writeln!(out, "{}", names.join(","))?;
        Ok(Series { out })
    }

    /// One interval that ended `elapsed` after the measured part began.
    pub(crate) fn interval(
        &mut self,
        elapsed: Duration,
        length: Duration,
        record: &Record,
        open: u64,
    ) -> io::Result<()> {
        write!(
            self.out,
            "{:.3},{:.3},{},{},{}",
            elapsed.as_secs_f64(),
            length.as_secs_f64(),
            record.requests(),
            record.succeeded,
            record.failed()
        )?;
        for kind in Failure::ALL {
            write!(self.out, ",{}", record.failures(kind))?;
        }
        self.distribution(&record.latency_ns)?;
        self.distribution(&record.service_ns)?;
        writeln!(self.out, ",{open},{},{},{}", record.connect_ns.len(), record.bytes_in, record.bytes_out)?;
        self.out.flush()
    }

    /// What a run without a whole interval has written is its line of names.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Quantiles in µs; empty cells where nothing succeeded, since 0 would be a time.
    fn distribution(&mut self, histogram: &Histogram<u64>) -> io::Result<()> {
        let quantiles = QUANTILES.iter().map(|(_, quantile)| histogram.value_at_quantile(*quantile));
        for value_ns in quantiles.chain([histogram.max()]) {
            if histogram.is_empty() {
                write!(self.out, ",")?;
            } else {
                write!(self.out, ",{:.2}", value_ns as f64 / 1e3)?;
            }
        }
        Ok(())
    }
}

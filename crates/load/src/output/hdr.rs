//! `--hdr FILE`: the interval log of HdrHistogram, format 1.3, that its own tools and plotters read.
//!
//! Values are ns. Lines without a tag are latency from the intended start; those with `Tag=service`, `Tag=first_byte`,
//! `Tag=connect` and `Tag=send_lag` are the other distributions of the same interval, where they have any value.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;

use super::histogram;
use crate::record::Record;

/// HistogramLogProcessor's own default: values in ns, the column of maxima in ms.
const MAX_DIVISOR: f64 = 1e6;

/// A log that is being written.
#[derive(Debug)]
pub(crate) struct HdrLog<W> {
    out: W,
}

impl<W: Write> HdrLog<W> {
    /// Begins the log of a run whose measured part began at `start`.
    pub(crate) fn new(mut out: W, start: SystemTime) -> io::Result<HdrLog<W>> {
        let start_s = start.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        writeln!(out, "#[Latency of overfly load, ns, from the intended start of each request]")?;
        writeln!(out, "#[Histogram log format version 1.3]")?;
        // Interval timestamps count from BaseTime.
        writeln!(out, "#[BaseTime: {start_s:.3} (seconds since epoch)]")?;
        writeln!(out, "#[StartTime: {start_s:.3} (seconds since epoch)]")?;
        writeln!(
            out,
            r#""StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram""#
        )?;
        Ok(HdrLog { out })
    }

    /// One interval, `start` after the measured part began.
    pub(crate) fn interval(&mut self, start: Duration, length: Duration, record: &Record) -> io::Result<()> {
        self.line(None, start, length, &record.latency_ns)?;
        for (tag, histogram) in [
            ("service", &record.service_ns),
            ("first_byte", &record.first_byte_ns),
            ("connect", &record.connect_ns),
            ("send_lag", &record.send_lag_ns),
        ] {
            if !histogram.is_empty() {
                self.line(Some(tag), start, length, histogram)?;
            }
        }
        self.out.flush()
    }

    /// What a run without a whole interval has written is the log's head.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn line(
        &mut self,
        tag: Option<&str>,
        start: Duration,
        length: Duration,
        histogram: &Histogram<u64>,
    ) -> io::Result<()> {
        if let Some(tag) = tag {
            write!(self.out, "Tag={tag},")?;
        }
        writeln!(
            self.out,
            "{:.3},{:.3},{:.3},{}",
            start.as_secs_f64(),
            length.as_secs_f64(),
            histogram.max() as f64 / MAX_DIVISOR,
            histogram::encode(histogram)
        )
    }
}

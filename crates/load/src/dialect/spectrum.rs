//! The percentile spectrum that HdrHistogram's own tools write and plotters read.

use std::fmt::{self, Write};

use hdrhistogram::Histogram;

/// Lines for each halving of the distance to 100 %.
const TICKS_PER_HALF_DISTANCE: u32 = 5;
const NS_PER_MS: f64 = 1e6;

/// Writes `Value Percentile TotalCount 1/(1-Percentile)` and the three `#[…]` lines of a histogram
/// in ns; values are in ms.
pub(super) fn write_spectrum(out: &mut String, histogram: &Histogram<u64>) -> fmt::Result {
    writeln!(out, "{:>12} {:>12} {:>12} {:>12}\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)")?;
    let mut total = 0;
    for step in histogram.iter_quantiles(TICKS_PER_HALF_DISTANCE) {
        total += step.count_since_last_iteration();
        let value_ms = histogram.highest_equivalent(step.value_iterated_to()) as f64 / NS_PER_MS;
        let quantile = step.quantile_iterated_to();
        write!(out, "{value_ms:>12.3} {quantile:>12.6} {total:>12} ")?;
        if quantile < 1.0 {
            writeln!(out, "{:>12.2}", 1.0 / (1.0 - quantile))?;
        } else {
            writeln!(out, "{:>12}", "inf")?;
        }
    }
    let (mean, deviation) = (histogram.mean() / NS_PER_MS, histogram.stdev() / NS_PER_MS);
    writeln!(out, "#[Mean    = {mean:>12.3}, StdDeviation   = {deviation:>12.3}]")?;
    let max_ms = histogram.max() as f64 / NS_PER_MS;
    writeln!(out, "#[Max     = {max_ms:>12.3}, Total count    = {:>12}]", histogram.len())?;
    let buckets = usize::from(histogram.buckets());
    // Each bucket but the first adds half of its sub-buckets: the lower half is in the one before.
    let sub_buckets = 2 * histogram.distinct_values() / (buckets + 1);
    writeln!(out, "#[Buckets = {buckets:>12}, SubBuckets     = {sub_buckets:>12}]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spectrum_ends_at_all_values_and_infinity() {
        let mut histogram = Histogram::<u64>::new_with_bounds(1, 3_600_000_000_000, 3).unwrap();
        for ms in 1..=1000u64 {
            histogram.record(ms * 1_000_000).unwrap();
        }
        let mut text = String::new();
        write_spectrum(&mut text, &histogram).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "       Value   Percentile   TotalCount 1/(1-Percentile)");
        assert_eq!(lines[1], "");
        assert_eq!(lines[2], "       1.000     0.000000            1         1.00");
        assert_eq!(lines[7], "     500.171     0.500000          500         2.00");
        let footer = lines.iter().position(|line| line.starts_with("#[Mean")).unwrap();
        assert_eq!(lines[footer - 1], "    1000.342     1.000000         1000          inf");
        assert_eq!(lines[footer], "#[Mean    =      500.500, StdDeviation   =      288.675]");
        assert_eq!(lines[footer + 1], "#[Max     =     1000.342, Total count    =         1000]");
        assert!(lines[footer + 2].ends_with("SubBuckets     =         2048]"));
    }
}

//! A distribution of times: exact sums and extremes, percentiles from a histogram.

use hdrhistogram::Histogram;

/// Longest time told apart, in ns: one hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Times in ns.
#[derive(Debug, Clone)]
pub(super) struct Distribution {
    histogram: Histogram<u64>,
    sum: f64,
    sum_of_squares: f64,
    min: u64,
    max: u64,
}

impl Distribution {
    pub(super) fn new() -> Distribution {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3)
            .expect("bounds and digits are constants that hdrhistogram accepts");
        Distribution { histogram, sum: 0.0, sum_of_squares: 0.0, min: u64::MAX, max: 0 }
    }

    pub(super) fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
        self.sum += ns as f64;
        self.sum_of_squares += ns as f64 * ns as f64;
        self.min = self.min.min(ns);
        self.max = self.max.max(ns);
    }

    pub(super) fn merge(&mut self, other: &Distribution) {
        self.histogram += &other.histogram;
        self.sum += other.sum;
        self.sum_of_squares += other.sum_of_squares;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    pub(super) fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Smallest, ms. 0 if there is none.
    pub(super) fn min_ms(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { ms(self.min) }
    }

    /// Largest, ms.
    pub(super) fn max_ms(&self) -> f64 {
        ms(self.max)
    }

    /// Mean, ms.
    pub(super) fn mean_ms(&self) -> f64 {
        self.sum / self.count().max(1) as f64 / 1e6
    }

    /// Standard deviation of the sample (its sum of squares over n − 1), ms.
    pub(super) fn deviation_ms(&self) -> f64 {
        let n = self.count() as f64;
        if n < 2.0 {
            return 0.0;
        }
        ((self.sum_of_squares - self.sum * self.sum / n).max(0.0) / (n - 1.0)).sqrt() / 1e6
    }

    /// The time within which `percent` of all lie, ms; never outside of the extremes.
    pub(super) fn percentile_ms(&self, percent: f64) -> f64 {
        let ns = match percent {
            _ if self.count() == 0 => 0,
            100.0.. => self.max,
            _ if percent <= 0.0 => self.min,
            _ => self.histogram.value_at_percentile(percent).clamp(self.min, self.max),
        };
        ms(ns)
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_extremes_are_exact_and_parts_add_up() {
        let (mut odd, mut even) = (Distribution::new(), Distribution::new());
        for ms in 1..=101u64 {
            if ms % 2 == 1 { &mut odd } else { &mut even }.record(ms * 1_000_000 + 1);
        }
        odd.merge(&even);
        assert_eq!((odd.count(), odd.min_ms(), odd.max_ms()), (101, 1.000_001, 101.000_001));
        assert!((odd.mean_ms() - 51.000_001).abs() < 1e-9);
        assert!((odd.deviation_ms() - 29.300_17).abs() < 1e-4);
        assert!((odd.percentile_ms(50.0) - 51.0).abs() < 0.1);
        assert_eq!(odd.percentile_ms(100.0), 101.000_001);
        assert_eq!(Distribution::new().percentile_ms(50.0), 0.0);
    }
}

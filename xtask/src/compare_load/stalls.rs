//! What a core does to a program that has it to itself: the host of a virtual machine, interrupts and the kernel's own threads
//! take it away now and then, and no generator can send meanwhile.

use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

/// How long a core is watched.
const WATCH: Duration = Duration::from_millis(500);
/// Shorter gaps are the reading of the clock.
const GAP_LEAST: Duration = Duration::from_nanos(500);

/// The times for which a thread that only reads the clock was away.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stalls {
    gaps: Vec<Duration>,
    watched: Duration,
}

impl Stalls {
    /// Watches a core from a thread of its own.
    pub(crate) fn measure(core: usize) -> Stalls {
        std::thread::scope(|scope| scope.spawn(|| watch(core)).join())
            .unwrap_or(Stalls { gaps: Vec::new(), watched: WATCH })
    }

    /// So late is this share of requests that are due at any time, if stalls are all that delays them: in a gap of `g`, those
    /// due more than `t` before its end are later than `t`.
    pub(crate) fn lag_us(&self, quantile: f64) -> f64 {
        let late = |t: f64| -> f64 {
            self.gaps.iter().map(|gap| (gap.as_secs_f64() - t).max(0.0)).sum::<f64>()
                / self.watched.as_secs_f64()
        };
        let (mut low, mut high) = (0.0, self.watched.as_secs_f64());
        for _ in 0..40 {
            let middle = f64::midpoint(low, high);
            if late(middle) > 1.0 - quantile { low = middle } else { high = middle }
        }
        high * 1e6
    }
}

fn watch(core: usize) -> Stalls {
    let mut cores = CpuSet::new();
    cores.set(core);
    // On another core it would say something of that one; there is none to be had then.
    let _ = sched_setaffinity(None, &cores);
    let begun = Instant::now();
    let mut gaps = Vec::new();
    let mut last = begun;
    while last - begun < WATCH {
        let now = Instant::now();
        if now - last >= GAP_LEAST {
            gaps.push(now - last);
        }
        last = now;
    }
    Stalls { gaps, watched: last - begun }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_requests_is_as_late_as_the_gaps_are_long() {
        let gaps = vec![Duration::from_micros(100); 200];
        let stalls = Stalls { gaps, watched: Duration::from_secs(1) };
        // 2 % of the time is in gaps: half of it more than 50 µs before their end.
        assert!((stalls.lag_us(0.99) - 50.0).abs() < 0.1, "{}", stalls.lag_us(0.99));
        assert!(stalls.lag_us(0.97) < 0.1);
        let none = Stalls { gaps: Vec::new(), watched: Duration::from_secs(1) };
        assert!(none.lag_us(0.99) < 0.1);
    }
}

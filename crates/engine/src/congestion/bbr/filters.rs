//! What the model remembers for a while, in two halves each, as Linux's BBR of the later versions: the older half is forgotten when
//! the younger one is full, so that a value counts for between one and two halves.

/// The largest of the last two periods.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Maximum {
    older: u64,
    younger: u64,
}

impl Maximum {
    pub(super) fn update(&mut self, value: u64) {
        self.younger = self.younger.max(value);
    }

    /// A period ends. One without a value is as if it had not been.
    pub(super) fn advance(&mut self) {
        if self.younger > 0 {
            (self.older, self.younger) = (self.younger, 0);
        }
    }

    /// As [`Maximum::advance`], and an empty period counts.
    pub(super) fn forget_older(&mut self) {
        (self.older, self.younger) = (self.younger, 0);
    }

    pub(super) fn value(&self) -> u64 {
        self.older.max(self.younger)
    }
}

/// Draft-ietf-ccwg-bbr-05 section 5.3.4.3: the least round trip, and when it is time to look for it with an empty queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct MinRtt {
    /// Of the last ten seconds, in microseconds; all ones without a sample.
    pub(super) min_us: u32,
    min_at_us: u64,
    /// Since the queue was last known to be empty.
    probe_us: u32,
    probe_at_us: u64,
}

impl MinRtt {
    /// BBR.MinRTTFilterLen and ProbeRTTInterval.
    const LENGTH_US: u64 = 10_000_000;
    const PROBE_INTERVAL_US: u64 = 5_000_000;

    /// `rtt_us` is 0 without a sample.
    pub(super) fn new(now_us: u64, rtt_us: u32) -> Self {
        let rtt_us = if rtt_us == 0 { u32::MAX } else { rtt_us };
        Self { min_us: rtt_us, min_at_us: now_us, probe_us: rtt_us, probe_at_us: now_us }
    }

    /// A round trip, or 0. True when the last five seconds had none as short as before.
    pub(super) fn update(&mut self, now_us: u64, rtt_us: u32) -> bool {
        let is_due = now_us > self.probe_at_us + Self::PROBE_INTERVAL_US;
        if rtt_us > 0 && (rtt_us < self.probe_us || is_due) {
            (self.probe_us, self.probe_at_us) = (rtt_us, now_us);
        }
        if self.probe_us < self.min_us || now_us > self.min_at_us + Self::LENGTH_US {
            (self.min_us, self.min_at_us) = (self.probe_us, self.probe_at_us);
        }
        is_due
    }

    /// The queue was empty just now.
    pub(super) fn probed(&mut self, now_us: u64) {
        self.probe_at_us = now_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maximum_lasts_for_two_periods() {
        let mut maximum = Maximum::default();
        maximum.update(10);
        maximum.update(7);
        assert_eq!(maximum.value(), 10);
        maximum.advance();
        maximum.update(5);
        assert_eq!(maximum.value(), 10);
        maximum.advance();
        assert_eq!(maximum.value(), 5);
        // Nothing was measured: what is known stays.
        maximum.advance();
        assert_eq!(maximum.value(), 5);
        maximum.forget_older();
        assert_eq!(maximum.value(), 0);
    }

    #[test]
    fn a_minimum_is_forgotten_after_ten_seconds_and_looked_for_after_five() {
        let mut rtt = MinRtt::new(0, 0);
        assert!(!rtt.update(1_000_000, 20_000));
        assert!(!rtt.update(5_900_000, 30_000));
        assert_eq!(rtt.min_us, 20_000);
        assert!(rtt.update(6_100_000, 30_000), "five seconds without one as short");
        assert_eq!(rtt.min_us, 20_000, "but it is still believed");
        assert!(!rtt.update(10_900_000, 31_000));
        assert_eq!(rtt.min_us, 20_000);
        rtt.update(11_100_000, 32_000);
        assert_eq!(rtt.min_us, 30_000);
        rtt.update(11_200_000, 8_000);
        assert_eq!(rtt.min_us, 8_000, "a shorter one counts at once");
        rtt.update(11_300_000, 0);
        assert_eq!(rtt.min_us, 8_000);
    }
}

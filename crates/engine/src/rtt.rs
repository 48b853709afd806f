//! Round-trip time and retransmission timeout (RFC 6298).

use crate::time::Micros;

/// The estimator of one flow; times in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtt {
    /// Zero until the first sample.
    smoothed: u32,
    /// The timeout itself until the first sample.
    variation: u32,
    /// The least sample (RFC 8985 section 6.2 step 1); zero until the first.
    least: u32,
}

/// RFC 6298 section 2.1: until there is a sample.
const INITIAL_RTO: u32 = 1_000_000;
/// RFC 6298 section 5.7: when the SYN's timer expired.
const RTO_AFTER_SYN_TIMEOUT: u32 = 3_000_000;
/// What stands for four times the variation where that is less: as Linux's tcp_rto_min, which keeps the timeout above a round
/// trip and a delayed acknowledgment, below RFC 6298 section 2.4's one second (__tcp_set_rto() in net/ipv4/tcp_input.c).
const MIN_VARIATION: u32 = 200_000;
/// RFC 6298 section 2.5.
const MAX_RTO: u32 = 60_000_000;

impl Rtt {
    pub(crate) const fn new() -> Self {
        Self { smoothed: 0, variation: INITIAL_RTO, least: 0 }
    }

    /// RFC 6298 sections 2.2 and 2.3.
    pub(crate) fn sample(&mut self, measured: Micros) {
        let rtt = measured.number().clamp(1, MAX_RTO);
        if self.smoothed == 0 {
            self.smoothed = rtt;
            self.variation = rtt / 2;
            self.least = rtt;
        } else {
            self.variation = self.variation - self.variation / 4 + self.smoothed.abs_diff(rtt) / 4;
            self.smoothed = (self.smoothed - self.smoothed / 8 + rtt / 8).max(1);
            self.least = self.least.min(rtt);
        }
    }

    /// The SYN was acknowledged after it had to be sent again, so that it measured nothing.
    pub(crate) fn syn_timed_out(&mut self) {
        if self.smoothed == 0 {
            self.variation = RTO_AFTER_SYN_TIMEOUT;
        }
    }

    /// The timeout after `backoff` doublings (RFC 6298 section 5.5).
    pub(crate) fn timeout(&self, backoff: u8) -> Micros {
        let timeout = if self.smoothed == 0 {
            self.variation
        } else {
            (self.smoothed + (4 * self.variation).max(MIN_VARIATION)).min(MAX_RTO)
        };
        Micros::new((u64::from(timeout) << backoff.min(10)).min(u64::from(MAX_RTO)) as u32)
    }

    pub(crate) const fn smoothed(&self) -> Micros {
        Micros::new(self.smoothed)
    }

    /// Zero without a sample.
    pub(crate) const fn variation(&self) -> Micros {
        Micros::new(if self.smoothed == 0 { 0 } else { self.variation })
    }

    pub(crate) const fn least(&self) -> Micros {
        Micros::new(self.least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_sample_sets_three_times_the_rtt() {
        let mut rtt = Rtt::new();
        assert_eq!(rtt.timeout(0), Micros::new(1_000_000));
        rtt.sample(Micros::new(100_000));
        assert_eq!(rtt.timeout(0), Micros::new(300_000));
        assert_eq!(rtt.smoothed(), Micros::new(100_000));
    }

    #[test]
    fn timeout_doubles_up_to_a_minute() {
        let mut rtt = Rtt::new();
        rtt.sample(Micros::new(50));
        assert_eq!(rtt.timeout(0), Micros::new(200_050));
        assert_eq!(rtt.timeout(1), Micros::new(400_100));
        assert_eq!(rtt.timeout(200), Micros::new(60_000_000));
    }

    #[test]
    fn the_least_timeout_is_a_round_trip_and_a_fifth_of_a_second() {
        let mut rtt = Rtt::new();
        for _ in 0..100 {
            rtt.sample(Micros::new(80_000));
        }
        assert_eq!(rtt.timeout(0), Micros::new(280_000), "a delayed acknowledgment comes before it");
    }

    #[test]
    fn absurd_samples_stay_in_range() {
        let mut rtt = Rtt::new();
        rtt.sample(Micros::new(u32::MAX));
        rtt.sample(Micros::new(0));
        rtt.sample(Micros::new(u32::MAX));
        assert!(rtt.timeout(0) <= Micros::new(60_000_000));
    }
}

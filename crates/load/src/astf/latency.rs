//! How long the parts of flows took, by template group.

use hdrhistogram::Histogram;

use crate::output::histogram;

/// Of one group, on the client side.
#[derive(Debug, Clone)]
pub(crate) struct Latency {
    /// SYN to established, ns.
    pub(crate) connect_ns: Histogram<u64>,
    /// First send to the first byte (or datagram) that came, ns.
    pub(crate) first_byte_ns: Histogram<u64>,
    /// Begun to the end of its program, ns.
    pub(crate) flow_ns: Histogram<u64>,
    /// RFC 3550 section 6.4.1's estimate over the times to the first byte, µs.
    pub(crate) jitter_us: f64,
    last_us: Option<u32>,
}

impl Latency {
    pub(crate) fn new() -> Latency {
        Latency {
            connect_ns: histogram::of_times(),
            first_byte_ns: histogram::of_times(),
            flow_ns: histogram::of_times(),
            jitter_us: 0.0,
            last_us: None,
        }
    }

    /// A flow was established after so many µs.
    #[inline]
    pub(crate) fn connected(&mut self, us: u64) {
        self.connect_ns.saturating_record((us * 1000).max(1));
    }

    /// The first byte came so many µs after the first send.
    #[inline]
    pub(crate) fn first_byte(&mut self, us: u32) {
        self.first_byte_ns.saturating_record((u64::from(us) * 1000).max(1));
        if let Some(last) = self.last_us.replace(us) {
            self.jitter_us += (f64::from(us.abs_diff(last)) - self.jitter_us) / 16.0;
        }
    }

    /// A program ended so many µs after its flow was begun.
    #[inline]
    pub(crate) fn ended(&mut self, us: u64) {
        self.flow_ns.saturating_record((us * 1000).max(1));
    }

    /// Adds another thread's. Jitter is the larger one.
    pub(crate) fn merge(&mut self, other: &Latency) {
        for (sum, more) in [
            (&mut self.connect_ns, &other.connect_ns),
            (&mut self.first_byte_ns, &other.first_byte_ns),
            (&mut self.flow_ns, &other.flow_ns),
        ] {
            *sum += more;
        }
        self.jitter_us = self.jitter_us.max(other.jitter_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_follows_what_differs() {
        let mut latency = Latency::new();
        for _ in 0..100 {
            latency.first_byte(500);
        }
        assert_eq!(latency.jitter_us, 0.0);
        for round in 0..1000 {
            latency.first_byte(if round % 2 == 0 { 600 } else { 400 });
        }
        assert!((latency.jitter_us - 200.0).abs() < 1.0, "{}", latency.jitter_us);
        let mut sum = Latency::new();
        sum.connected(7);
        sum.merge(&latency);
        assert_eq!((sum.first_byte_ns.len(), sum.connect_ns.count_at(7000)), (1100, 1));
        assert!(sum.jitter_us > 190.0);
    }
}

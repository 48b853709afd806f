//! Reno (RFC 5681), with appropriate byte counting (RFC 3465).

use super::{Ack, CongestionControl, Windows};
use crate::time::Tick;

/// One flow's Reno.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reno {
    windows: Windows,
    /// Bytes acknowledged since the window last grew by a segment.
    counted: u32,
}

impl Reno {
    /// `initial` is the initial window in bytes (RFC 6928).
    pub(crate) fn new(initial: u32) -> Self {
        Self { windows: Windows::new(initial), counted: 0 }
    }
}

impl CongestionControl for Reno {
    fn window(&self) -> u32 {
        self.windows.window
    }

    fn threshold(&self) -> u32 {
        self.windows.threshold
    }

    fn acknowledged(&mut self, ack: &Ack) {
        if !self.windows.is_used(ack.flight, ack.mss) {
            return;
        }
        let mut acked = ack.acked;
        if self.windows.in_slow_start() {
            acked = self.windows.slow_start(acked, ack.mss, 1);
        }
        // RFC 5681 section 3.1: a segment for each window acknowledged (RFC 3465 section 2.1).
        self.counted = self.counted.saturating_add(acked);
        if self.counted >= self.windows.window {
            self.counted = (self.counted - self.windows.window).min(self.windows.window);
            self.windows.grow(ack.mss);
        }
    }

    /// RFC 5681 section 3.1, equation 4: half of what is in flight.
    fn loss(&mut self, flight: u32, mss: u32, _now: Tick) {
        self.windows.reduce(flight / 2, mss);
        self.windows.set_window(self.windows.threshold);
        self.counted = 0;
    }

    /// RFC 5681 section 3.1: the loss window is one segment.
    fn timeout(&mut self, first: bool, flight: u32, mss: u32, _now: Tick) {
        if first {
            self.windows.reduce(flight / 2, mss);
        }
        self.windows.set_window(mss);
        self.counted = 0;
    }

    fn undo(&mut self) {
        if self.windows.undo() {
            self.counted = 0;
        }
    }

    fn idle(&mut self, initial: u32, _now: Tick) {
        self.windows.idle(initial);
        self.counted = 0;
    }

    fn set_window(&mut self, window: u32) {
        self.windows.set_window(window);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MSS, Path};
    use super::super::{Algorithm, Congestion};
    use super::*;

    #[test]
    fn window_grows_by_a_segment_each_round_and_halves() {
        let mut path = Path::new(Congestion::new(Algorithm::Reno, 100 * MSS), 20_000);
        for sawtooth in 0..3 {
            path.lose();
            let half = path.congestion.window() / MSS;
            assert_eq!(half, if sawtooth == 0 { 50 } else { [0, 50, 45][sawtooth] });
            for round in 1..=if sawtooth == 0 { 50 } else { 40 } {
                path.round();
                assert_eq!(path.congestion.window() / MSS, half + round);
            }
        }
    }

    /// Mathis et al. 1997: the mean window is sqrt(3 / 2p) segments when every segment is acknowledged.
    #[test]
    fn mean_window_follows_the_square_root_of_the_loss() {
        for (period, rtt_us) in [(500, 1_000), (5_000, 20_000), (50_000, 100_000)] {
            let mean =
                Path::new(Congestion::new(Algorithm::Reno, 10 * MSS), rtt_us).mean_window(period, |_| {});
            let theory = (1.5 * f64::from(period)).sqrt();
            assert!((mean / theory - 1.0).abs() < 0.05, "1/p={period}: {mean:.1}, theory {theory:.1}");
        }
    }

    #[test]
    fn slow_start_ends_at_the_threshold() {
        let mut path = Path::new(Congestion::new(Algorithm::Reno, 100 * MSS), 20_000);
        let now = path.now();
        path.congestion.timeout(true, 100 * MSS, MSS, now);
        for expected in [2, 4, 8, 16, 32] {
            path.round();
            assert_eq!(path.congestion.window(), expected * MSS);
        }
        path.round();
        assert_eq!(path.congestion.window(), 50 * MSS);
        path.round();
        assert_eq!(path.congestion.window(), 51 * MSS);
    }
}

//! The receive window's size: as large as what the owner consumes in a round trip asks for (dynamic right-sizing, Fisk and
//! Feng 2001; Linux's `tcp_rcv_space_adjust`).
//!
//! A flow begins with a small window. Once in a round trip the bytes consumed in it are looked at: if the window leaves the
//! sender less than twice as much, it grows. Data that arrives and is not consumed never makes it grow.

use crate::sequence::{Sequence, at_or_before};
use crate::time::{Instant, Micros, TICK_SHIFT, Ticks};

/// One flow's receive window. Times are the low 32 bits of microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Autotune {
    /// What an owner may hold, in bytes: never shrinks (RFC 9293 section 3.8.6).
    window: u32,
    /// The round trip in microseconds, seen from the receiver; 0 without a sample.
    rtt_us: u32,
    /// Bytes consumed since `round_at`.
    consumed: u32,
    round_at: u32,
    /// The right edge that was first offered at `mark_at`: nothing beyond an edge comes back within a round trip of its offer.
    mark: Sequence,
    /// 0: there is no mark.
    mark_at: u32,
}

const _: () = assert!(size_of::<Autotune>() <= 24, "a control block holds it");

/// Below this the timestamps option measures nothing (RFC 7323 section 4.1): its clock is a tick.
const COARSE_US: u32 = 2 << TICK_SHIFT;

impl Autotune {
    /// `window` bytes to begin with; `rtt` is what the handshake measured, or 0.
    pub(crate) fn new(now: Instant, window: u32, rtt: Micros) -> Self {
        let round_at = now.as_micros() as u32;
        Self { window, rtt_us: rtt.number(), consumed: 0, round_at, mark: Sequence::default(), mark_at: 0 }
    }

    /// Bytes that an owner may hold.
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// The round trip in microseconds, seen from the receiver; 0 without a sample (`tcpi_rcv_rtt`).
    pub(crate) fn rtt_us(&self) -> u32 {
        self.rtt_us
    }

    /// A data segment echoed a timestamp that was sent `ticks` before. The peer may have waited before it sent, so that this is
    /// a mean, not the least.
    pub(crate) fn echoed(&mut self, Ticks(ticks): Ticks) {
        let sample = ticks.clamp(1, 60_000) << TICK_SHIFT;
        if self.rtt_us == 0 {
            self.rtt_us = sample;
        } else if sample >= COARSE_US || self.rtt_us >= COARSE_US {
            self.rtt_us = (self.rtt_us - self.rtt_us / 8 + sample / 8).max(1);
        }
    }

    /// An acknowledgment offers `edge`, RCV.NXT + RCV.WND, for the first time.
    pub(crate) fn offered(&mut self, now: Instant, edge: Sequence) {
        if self.mark_at == 0 {
            self.mark = edge;
            self.mark_at = (now.as_micros() as u32).max(1);
        }
    }

    /// RCV.NXT moved to `next`. A window of data takes a round trip if the sender fills it, and longer if not: the least counts.
    pub(crate) fn received(&mut self, now: Instant, next: Sequence) {
        if self.mark_at == 0 || !at_or_before(self.mark, next) {
            return;
        }
        let sample = (now.as_micros() as u32).wrapping_sub(self.mark_at).max(1);
        if self.rtt_us == 0 || sample < self.rtt_us {
            self.rtt_us = sample;
        }
        self.mark_at = 0;
    }

    /// The owner consumed `bytes`. True if the window grew, to `max` at most.
    pub(crate) fn consumed(&mut self, now: Instant, bytes: u32, max: u32) -> bool {
        self.consumed = self.consumed.saturating_add(bytes);
        let elapsed = (now.as_micros() as u32).wrapping_sub(self.round_at);
        if self.rtt_us == 0 || elapsed < self.rtt_us {
            return false;
        }
        // An owner that takes much at once after a long while took it in all of that while.
        let per_rtt = u64::from(self.consumed) * u64::from(self.rtt_us) / u64::from(elapsed);
        self.consumed = 0;
        self.round_at = now.as_micros() as u32;
        // Twice what was consumed: in slow start the next round brings as much. If the window was what held the sender back, it
        // may have more than that ready.
        let held_back = per_rtt >= u64::from(self.window) / 4 * 3;
        let target = if held_back { 4 * per_rtt } else { 2 * per_rtt }.min(u64::from(max)) as u32;
        if target <= self.window {
            return false;
        }
        self.window = target;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const INITIAL: u32 = 64 * 1024;
    const MAX: u32 = 512 << 20;

    /// A transfer in steps of a hundredth of a round trip: slow start from ten segments over a path of `rate` bytes per
    /// second, no loss.
    struct Transfer {
        autotune: Autotune,
        now_us: u64,
        rtt_us: u64,
        rate: f64,
        /// The window has this many round trips to be used in, whatever the owner does.
        congestion_window: f64,
        sent: u64,
        received: u64,
        taken: u64,
        /// The right edge and the acknowledgments on their way to the sender: when, acknowledged, edge.
        to_sender: VecDeque<(u64, u64, u64)>,
        to_receiver: VecDeque<(u64, u64)>,
        acknowledged: u64,
        edge: u64,
        offered: u64,
        timestamps: bool,
    }

    impl Transfer {
        fn new(rtt_us: u64, rate: f64, timestamps: bool) -> Self {
            let autotune = Autotune::new(Instant::from_micros(0), INITIAL, Micros::ZERO);
            Self {
                autotune,
                now_us: 0,
                rtt_us,
                rate,
                congestion_window: 14_600.0,
                sent: 0,
                received: 0,
                taken: 0,
                to_sender: VecDeque::new(),
                to_receiver: VecDeque::new(),
                acknowledged: 0,
                edge: u64::from(INITIAL),
                offered: u64::from(INITIAL),
                timestamps,
            }
        }

        /// A hundredth of a round trip, in which the owner takes `take` bytes at most.
        fn step(&mut self, take: u64) {
            let step_us = self.rtt_us / 100;
            self.now_us += step_us;
            let now = Instant::from_micros(self.now_us);
            while self.to_sender.front().is_some_and(|front| front.0 <= self.now_us) {
                let (_, acknowledged, edge) = self.to_sender.pop_front().unwrap();
                self.congestion_window += (acknowledged - self.acknowledged) as f64;
                (self.acknowledged, self.edge) = (acknowledged, edge);
            }
            let limit = (self.acknowledged + self.congestion_window as u64).min(self.edge);
            let most = (self.rate * step_us as f64 / 1e6) as u64;
            let bytes = limit.saturating_sub(self.sent).min(most);
            if bytes > 0 {
                self.sent += bytes;
                self.to_receiver.push_back((self.now_us + self.rtt_us / 2, self.sent));
            }
            let mut arrived = false;
            while self.to_receiver.front().is_some_and(|front| front.0 <= self.now_us) {
                self.received = self.to_receiver.pop_front().unwrap().1;
                arrived = true;
            }
            let held = self.received - self.taken;
            if arrived {
                if self.timestamps {
                    self.autotune.echoed(Ticks((self.rtt_us >> TICK_SHIFT) as u32));
                }
                self.autotune.received(now, Sequence::new(self.received as u32));
            }
            let taking = take.min(held);
            if taking > 0 {
                self.taken += taking;
                self.autotune.consumed(now, taking as u32, MAX);
            }
            let edge = self.taken + u64::from(self.autotune.window());
            if edge > self.offered {
                self.offered = edge;
                self.autotune.offered(now, Sequence::new(edge as u32));
            }
            self.to_sender.push_back((self.now_us + self.rtt_us / 2, self.received, edge));
        }

        fn rounds(&self) -> u64 {
            self.now_us / self.rtt_us
        }
    }

    #[test]
    fn fast_reader_on_a_long_path_gets_its_window_as_slow_start_goes() {
        let product = 125_000_000_u32;
        // Slow start alone takes log2(125 MB / 14.6 KB), 13 round trips.
        for (timestamps, limit) in [(true, 18), (false, 20)] {
            let mut transfer = Transfer::new(100_000, 1.25e9, timestamps);
            while transfer.autotune.window() < product {
                transfer.step(u64::MAX);
                assert!(transfer.rounds() <= limit, "{:?}", transfer.autotune);
            }
            println!("{} rounds", transfer.rounds());
            println!("{} rounds", transfer.rounds());
            for _ in 0..1000 {
                transfer.step(u64::MAX);
            }
            let before = transfer.taken;
            for _ in 0..1000 {
                transfer.step(u64::MAX);
            }
            assert!(transfer.taken - before > u64::from(product) * 10 * 95 / 100);
        }
    }

    #[test]
    fn window_stays_near_twice_the_product() {
        for timestamps in [true, false] {
            let mut transfer = Transfer::new(20_000, 12.5e6, timestamps);
            for _ in 0..20_000 {
                transfer.step(u64::MAX);
            }
            let product = 250_000;
            let window = transfer.autotune.window();
            assert!((product..=5 * product).contains(&window), "{window}, product {product}");
        }
    }

    #[test]
    fn slow_reader_never_grows_the_window() {
        for timestamps in [true, false] {
            let mut transfer = Transfer::new(50_000, 125e6, timestamps);
            // A quarter of the initial window in a round trip.
            for _ in 0..10_000 {
                transfer.step(u64::from(INITIAL) / 400);
            }
            assert_eq!(transfer.autotune.window(), INITIAL);
        }
    }

    #[test]
    fn reader_that_takes_all_at_once_after_a_while_is_slow_too() {
        let mut transfer = Transfer::new(50_000, 125e6, true);
        for step in 0..20_000 {
            transfer.step(if step % 1000 == 0 { u64::MAX } else { 0 });
        }
        assert_eq!(transfer.autotune.window(), INITIAL);
    }

    #[test]
    fn window_of_data_measures_what_timestamps_cannot() {
        let mut autotune = Autotune::new(Instant::from_micros(0), INITIAL, Micros::ZERO);
        autotune.echoed(Ticks(0));
        assert_eq!(autotune.rtt_us(), 1 << TICK_SHIFT);
        for window in 1..10 {
            autotune.offered(Instant::from_micros(u64::from(window) * 80), Sequence::new(window * INITIAL));
            autotune.offered(
                Instant::from_micros(u64::from(window) * 80 + 5),
                Sequence::new(window * INITIAL + 5),
            );
            autotune.received(
                Instant::from_micros(u64::from(window) * 80 + 40),
                Sequence::new(window * INITIAL - 1),
            );
            autotune
                .received(Instant::from_micros(u64::from(window) * 80 + 80), Sequence::new(window * INITIAL));
            autotune.echoed(Ticks(0));
        }
        assert_eq!(autotune.rtt_us(), 80);
    }

    #[test]
    fn longer_path_is_noticed() {
        let mut autotune = Autotune::new(Instant::from_micros(0), INITIAL, Micros::new(10_000));
        for _ in 0..50 {
            autotune.echoed(Ticks(98));
        }
        assert!((90_000..=101_000).contains(&autotune.rtt_us()));
    }

    #[test]
    fn absurd_input_is_harmless() {
        let mut autotune = Autotune::new(Instant::from_micros(u64::MAX), INITIAL, Micros::new(u32::MAX));
        for micros in [0, u64::MAX, 1, 1 << 33, u64::MAX / 3] {
            let now = Instant::from_micros(micros);
            autotune.echoed(Ticks(u32::MAX));
            autotune.offered(now, Sequence::new(u32::MAX / 2));
            autotune.received(now, Sequence::new(5));
            autotune.received(now, Sequence::new(u32::MAX / 2));
            autotune.consumed(now, u32::MAX, MAX);
            autotune.consumed(now, u32::MAX, MAX);
            assert!((INITIAL..=MAX).contains(&autotune.window()));
        }
    }
}

//! Congestion control: how much a flow may have in flight.
//!
//! A [`Congestion`] holds the window, the slow-start threshold, and what an algorithm needs to move them. Which segments are
//! lost, how much is sent during recovery (RFC 6675, RFC 6937), and that a window of data reduces the window once are the
//! caller's: it reports what happened and reads [`CongestionControl::window`].

mod bbr;
mod cubic;
mod reno;

pub use bbr::BbrInfo;
pub(crate) use bbr::{Bbr, Delivered, Governor, Newest, Transmission};
pub(crate) use cubic::Cubic;
pub(crate) use reno::Reno;

use crate::time::Tick;

/// The largest window in bytes, and the threshold of a flow that has seen no congestion. RFC 7323 section 2.3 lets a receiver
/// offer no more.
pub(crate) const MAX_WINDOW: u32 = 1 << 30;
/// Segments by which one acknowledgment opens the window in slow start at most. RFC 3465 section 2.2 says two; receivers that
/// merge segments before they look at them acknowledge many at once, and RFC 9406 section 4.3 takes 8 without pacing.
const MAX_GROWTH: u32 = 8;

/// An acknowledgment of new data, as congestion control sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack {
    /// Bytes that it newly acknowledges, selectively acknowledged ones included.
    pub(crate) acked: u32,
    /// Bytes outstanding before it arrived.
    pub(crate) flight: u32,
    /// Payload of a full segment in bytes.
    pub(crate) mss: u32,
    /// When it arrived.
    pub(crate) now: Tick,
    /// The smoothed round-trip time in microseconds; 0 when unknown.
    pub(crate) rtt_us: u32,
    /// The round trip that this acknowledgment measured, in microseconds; 0 without a sample.
    pub(crate) sample_us: u32,
}

/// What every algorithm does. Sizes are bytes.
pub(crate) trait CongestionControl {
    /// The congestion window (RFC 5681's cwnd). At least 1.
    fn window(&self) -> u32;

    /// The slow-start threshold (ssthresh); [`MAX_WINDOW`] before the first congestion.
    fn threshold(&self) -> u32;

    /// The window is below the threshold (RFC 5681 section 3.1).
    #[cfg(test)]
    fn in_slow_start(&self) -> bool {
        self.window() < self.threshold()
    }

    /// Data was acknowledged outside fast recovery: the window may grow.
    fn acknowledged(&mut self, ack: &Ack);

    /// A segment of a window not yet reduced was lost: lowers the threshold, and the window to it. The caller governs the
    /// window during recovery with [`CongestionControl::set_window`] and leaves it at the threshold.
    fn loss(&mut self, flight: u32, mss: u32, now: Tick);

    /// The peer echoed a congestion mark (RFC 3168 section 6.1.2: as a single loss). Once a window is the caller's duty.
    fn congestion_experienced(&mut self, flight: u32, mss: u32, now: Tick) {
        self.loss(flight, mss, now);
    }

    /// The retransmission timer expired. `first` is false when the window was already reduced for this loss: the same segment
    /// timed out before (RFC 5681 section 3.1, below equation 4), or was lost in the recovery that goes on.
    fn timeout(&mut self, first: bool, flight: u32, mss: u32, now: Tick);

    /// The last reduction was for nothing (RFC 3522, RFC 3708, RFC 5682): window and threshold are what they were before it,
    /// or stay if they are larger by now. Nothing happens a second time.
    fn undo(&mut self);

    /// Nothing was sent for a retransmission timeout: the window falls back to `initial` (RFC 5681 section 4.1).
    fn idle(&mut self, initial: u32, now: Tick);

    /// Sets the window, in recovery.
    fn set_window(&mut self, window: u32);

    /// Recovery from losses for which the window was reduced has ended (RFC 6937 section 3.1).
    fn recovered(&mut self) {
        let threshold = self.threshold();
        self.set_window(threshold);
    }
}

/// Which algorithm governs a flow's congestion window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// RFC 9438.
    Cubic,
    /// RFC 5681.
    Reno,
    /// draft-ietf-ccwg-bbr-05, and paced.
    Bbr,
}

/// What Linux calls them (tcp(7), TCP_CONGESTION).
const NAMES: [(&str, Algorithm); 3] =
    [("cubic", Algorithm::Cubic), ("reno", Algorithm::Reno), ("bbr", Algorithm::Bbr)];

impl Algorithm {
    /// The one of that name, if there is one.
    #[must_use]
    pub fn named(name: &[u8]) -> Option<Algorithm> {
        NAMES.iter().find(|(known, _)| known.as_bytes() == name).map(|&(_, algorithm)| algorithm)
    }

    /// What Linux calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|&&(_, known)| known == self).map_or("", |&(name, _)| name)
    }
}

/// One flow's congestion control.
#[derive(Debug)]
pub(crate) enum Congestion {
    /// RFC 5681.
    Reno(Reno),
    /// RFC 9438.
    Cubic(Cubic),
    /// draft-ietf-ccwg-bbr-05.
    Bbr { window: u32, bbr: Bbr },
}

const _: () = assert!(size_of::<Congestion>() <= 32, "a control block holds it");

impl Congestion {
    /// `initial` is the window in bytes.
    pub(crate) fn new(algorithm: Algorithm, initial: u32) -> Self {
        match algorithm {
            Algorithm::Cubic => Self::Cubic(Cubic::new(initial)),
            Algorithm::Reno => Self::Reno(Reno::new(initial)),
            Algorithm::Bbr => Self::Bbr { window: initial.clamp(1, MAX_WINDOW), bbr: Bbr::default() },
        }
    }

    /// Which one it is.
    pub(crate) const fn algorithm(&self) -> Algorithm {
        match self {
            Self::Reno(_) => Algorithm::Reno,
            Self::Cubic(_) => Algorithm::Cubic,
            Self::Bbr { .. } => Algorithm::Bbr,
        }
    }

    /// The one that models the path, if it is that: it hears more of what happens, and paces.
    #[inline]
    pub(crate) const fn bbr(&self) -> Option<&Bbr> {
        match self {
            Self::Bbr { bbr, .. } => Some(bbr),
            _ => None,
        }
    }

    #[inline]
    pub(crate) const fn bbr_mut(&mut self) -> Option<Governor<'_>> {
        match self {
            Self::Bbr { window, bbr } => Some(Governor { window, bbr }),
            _ => None,
        }
    }

    /// Gives back the memory of a flow that will send no data again.
    pub(crate) fn forget(&mut self) {
        if let Self::Bbr { bbr, .. } = self {
            bbr.forget();
        }
    }
}

macro_rules! each {
    ($congestion:expr, $algorithm:ident => $call:expr) => {
        match $congestion {
            Congestion::Reno($algorithm) => $call,
            Congestion::Cubic($algorithm) => $call,
            Congestion::Bbr { window, bbr } => {
                let $algorithm = &mut Governor { window, bbr };
                $call
            }
        }
    };
}

impl CongestionControl for Congestion {
    #[inline]
    fn window(&self) -> u32 {
        match self {
            Self::Reno(reno) => reno.window(),
            Self::Cubic(cubic) => cubic.window(),
            Self::Bbr { window, .. } => *window,
        }
    }

    #[inline]
    fn threshold(&self) -> u32 {
        match self {
            Self::Reno(reno) => reno.threshold(),
            Self::Cubic(cubic) => cubic.threshold(),
            Self::Bbr { .. } => MAX_WINDOW,
        }
    }

    #[inline]
    fn acknowledged(&mut self, ack: &Ack) {
        each!(self, algorithm => algorithm.acknowledged(ack));
    }

    fn loss(&mut self, flight: u32, mss: u32, now: Tick) {
        each!(self, algorithm => algorithm.loss(flight, mss, now));
    }

    fn congestion_experienced(&mut self, flight: u32, mss: u32, now: Tick) {
        each!(self, algorithm => algorithm.congestion_experienced(flight, mss, now));
    }

    fn timeout(&mut self, first: bool, flight: u32, mss: u32, now: Tick) {
        each!(self, algorithm => algorithm.timeout(first, flight, mss, now));
    }

    fn undo(&mut self) {
        each!(self, algorithm => algorithm.undo());
    }

    fn idle(&mut self, initial: u32, now: Tick) {
        each!(self, algorithm => algorithm.idle(initial, now));
    }

    #[inline]
    fn set_window(&mut self, window: u32) {
        each!(self, algorithm => algorithm.set_window(window));
    }

    fn recovered(&mut self) {
        each!(self, algorithm => algorithm.recovered());
    }
}

/// RFC 6928 section 2: ten segments, 14,600 bytes at most unless two segments are more.
pub(crate) fn initial_window(mss: u32) -> u32 {
    mss.saturating_mul(10).min(mss.saturating_mul(2).max(14_600))
}

/// The window, the threshold, and both before the last reduction: what the algorithms share.
#[derive(Clone, Copy, Debug)]
struct Windows {
    /// 1 to [`MAX_WINDOW`].
    window: u32,
    /// At most [`MAX_WINDOW`].
    threshold: u32,
    /// The window before the last reduction (RFC 9438's cwnd_prior); 0 when there was none, or it was undone.
    prior_window: u32,
    prior_threshold: u32,
}

impl Windows {
    fn new(initial: u32) -> Self {
        Self {
            window: initial.clamp(1, MAX_WINDOW),
            threshold: MAX_WINDOW,
            prior_window: 0,
            prior_threshold: MAX_WINDOW,
        }
    }

    fn in_slow_start(&self) -> bool {
        self.window < self.threshold
    }

    /// RFC 7661's concern in its simplest form: a window that is not used does not grow. Half of it counts as used, since
    /// several acknowledgments may arrive before anything is sent.
    fn is_used(&self, flight: u32, mss: u32) -> bool {
        flight.saturating_add(mss) >= self.window / 2
    }

    /// Slow start (RFC 5681 section 3.1, equation 2, by the bytes that an acknowledgment covers as RFC 3465 has it). Returns
    /// the bytes that are left for congestion avoidance.
    fn slow_start(&mut self, acked: u32, mss: u32, divisor: u32) -> u32 {
        let step = acked.min(mss.saturating_mul(MAX_GROWTH)) / divisor;
        let room = self.threshold - self.window;
        self.window += step.min(room);
        step.saturating_sub(room)
    }

    fn grow(&mut self, bytes: u32) {
        self.window = self.window.saturating_add(bytes).min(MAX_WINDOW);
    }

    fn set_window(&mut self, window: u32) {
        self.window = window.clamp(1, MAX_WINDOW);
    }

    /// Lowers the threshold, not below two segments (RFC 5681 section 3.1, equation 4), and remembers what was.
    fn reduce(&mut self, threshold: u32, mss: u32) {
        self.prior_window = self.window;
        self.prior_threshold = self.threshold;
        self.threshold = threshold.max(mss.saturating_mul(2)).clamp(1, MAX_WINDOW);
    }

    /// RFC 9438 section 4.9.2: a window that is larger by now stays. True if there was something to undo.
    fn undo(&mut self) -> bool {
        if self.prior_window == 0 {
            return false;
        }
        self.window = self.window.max(self.prior_window);
        self.threshold = self.threshold.max(self.prior_threshold);
        self.prior_window = 0;
        true
    }

    /// RFC 5681 section 4.1. That the path carried the window is remembered in the threshold (RFC 7661 section 4.4.3), so that
    /// slow start leads back.
    fn idle(&mut self, initial: u32) {
        self.threshold = self.threshold.max(self.window - self.window / 4);
        self.window = self.window.min(initial.max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const MSS: u32 = 1460;

    /// splitmix64 (Steele, Lea and Flood 2014).
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        }

        /// Any magnitude is as likely as any other.
        fn absurd(&mut self) -> u32 {
            match self.next() % 8 {
                0 => 0,
                1 => u32::MAX,
                _ => (self.next() as u32) >> (self.next() % 32),
            }
        }
    }

    /// A flow over a path that never queues: every round trip the whole window is acknowledged, segment by segment.
    pub(super) struct Path {
        pub(super) congestion: Congestion,
        pub(super) now_ns: u64,
        pub(super) rtt_us: u32,
    }

    impl Path {
        pub(super) fn new(congestion: Congestion, rtt_us: u32) -> Self {
            Self { congestion, now_ns: 1 << 50, rtt_us }
        }

        pub(super) fn now(&self) -> Tick {
            Tick(((self.now_ns / 1000) >> crate::time::TICK_SHIFT) as u32)
        }

        pub(super) fn segments(&self) -> f64 {
            f64::from(self.congestion.window()) / f64::from(MSS)
        }

        /// One segment's acknowledgment, after its share of a round trip.
        pub(super) fn acknowledge(&mut self) {
            let flight = self.congestion.window() / MSS * MSS;
            self.now_ns += 1000 * u64::from(self.rtt_us) * u64::from(MSS) / u64::from(flight.max(MSS));
            self.congestion.acknowledged(&Ack {
                acked: MSS,
                flight,
                mss: MSS,
                now: self.now(),
                rtt_us: self.rtt_us,
                sample_us: self.rtt_us,
            });
        }

        pub(super) fn round(&mut self) {
            for _ in 0..self.congestion.window() / MSS {
                self.acknowledge();
            }
        }

        pub(super) fn lose(&mut self) {
            let (flight, now) = (self.congestion.window(), self.now());
            self.congestion.loss(flight, MSS, now);
        }

        /// The mean window in segments when every `period`-th segment is lost, after the start has been forgotten.
        pub(super) fn mean_window(&mut self, period: u32, before_loss: impl Fn(&mut Congestion)) -> f64 {
            self.lose();
            let (mut area, mut time) = (0.0, 0.0);
            for sawtooth in 0..40 {
                for _ in 0..period {
                    let before = self.now_ns;
                    self.acknowledge();
                    if sawtooth >= 20 {
                        area += self.segments() * (self.now_ns - before) as f64;
                        time += (self.now_ns - before) as f64;
                    }
                }
                before_loss(&mut self.congestion);
                self.lose();
            }
            area / time
        }
    }

    fn both(initial: u32) -> [Congestion; 2] {
        [Congestion::new(Algorithm::Reno, initial), Congestion::new(Algorithm::Cubic, initial)]
    }

    #[test]
    fn initial_window_is_ten_segments() {
        assert_eq!(initial_window(1460), 14_600);
        assert_eq!(initial_window(536), 5_360);
        assert_eq!(initial_window(9_000), 18_000);
        assert_eq!(initial_window(u32::MAX), u32::MAX);
    }

    #[test]
    fn slow_start_doubles_the_window_each_round() {
        for congestion in both(10 * MSS) {
            let mut path = Path::new(congestion, 50_000);
            for expected in [20, 40, 80, 160] {
                path.round();
                assert_eq!(path.congestion.window(), expected * MSS);
            }
            assert!(path.congestion.in_slow_start());
        }
    }

    #[test]
    fn one_acknowledgment_opens_the_window_by_eight_segments_at_most() {
        for mut congestion in both(100 * MSS) {
            let ack =
                Ack { acked: 100 * MSS, flight: 100 * MSS, mss: MSS, now: Tick(0), rtt_us: 0, sample_us: 0 };
            congestion.acknowledged(&ack);
            assert_eq!(congestion.window(), 108 * MSS);
        }
    }

    #[test]
    fn window_that_is_not_used_does_not_grow() {
        for in_slow_start in [true, false] {
            for congestion in both(100 * MSS) {
                let mut path = Path::new(congestion, 50_000);
                if !in_slow_start {
                    path.lose();
                }
                let window = path.congestion.window();
                for _ in 0..10_000 {
                    path.now_ns += 10_000_000;
                    let now = path.now();
                    path.congestion.acknowledged(&Ack {
                        acked: 10 * MSS,
                        flight: 10 * MSS,
                        mss: MSS,
                        now,
                        rtt_us: 50_000,
                        sample_us: 50_000,
                    });
                }
                assert_eq!(path.congestion.window(), window);
            }
        }
    }

    #[test]
    fn mark_reduces_as_a_loss_does() {
        for (mut marked, mut lost) in both(100 * MSS).into_iter().zip(both(100 * MSS)) {
            marked.congestion_experienced(100 * MSS, MSS, Tick(7));
            lost.loss(100 * MSS, MSS, Tick(7));
            assert_eq!(marked.window(), lost.window());
            assert_eq!(marked.threshold(), lost.threshold());
        }
    }

    #[test]
    fn timeouts_of_one_segment_lower_the_threshold_once() {
        for mut congestion in both(100 * MSS) {
            congestion.timeout(true, 100 * MSS, MSS, Tick(0));
            let threshold = congestion.threshold();
            assert_eq!(congestion.window(), MSS);
            assert!((50 * MSS..100 * MSS).contains(&threshold));
            congestion.timeout(false, MSS, MSS, Tick(300));
            assert_eq!((congestion.window(), congestion.threshold()), (MSS, threshold));
            congestion.undo();
            assert_eq!((congestion.window(), congestion.threshold()), (100 * MSS, MAX_WINDOW));
        }
    }

    #[test]
    fn undo_restores_window_and_threshold_once() {
        for congestion in both(100 * MSS) {
            let mut path = Path::new(congestion, 50_000);
            path.lose();
            for _ in 0..10 {
                path.round();
            }
            let (window, threshold) = (path.congestion.window(), path.congestion.threshold());
            path.lose();
            path.congestion.set_window(MSS);
            path.congestion.undo();
            assert_eq!((path.congestion.window(), path.congestion.threshold()), (window, threshold));
            path.congestion.set_window(window / 2);
            path.congestion.undo();
            assert_eq!(path.congestion.window(), window / 2);
        }
    }

    #[test]
    fn late_undo_keeps_a_window_that_has_outgrown_the_old_one() {
        for congestion in both(10 * MSS) {
            let mut path = Path::new(congestion, 50_000);
            path.lose();
            while path.congestion.window() < 30 * MSS {
                path.round();
            }
            let window = path.congestion.window();
            path.congestion.undo();
            assert_eq!(path.congestion.window(), window);
        }
    }

    #[test]
    fn idle_flow_starts_again_slowly_and_finds_its_way_back() {
        for congestion in both(400 * MSS) {
            let mut path = Path::new(congestion, 50_000);
            path.lose();
            let window = path.congestion.window();
            path.now_ns += 3_600_000_000_000;
            let now = path.now();
            path.congestion.idle(10 * MSS, now);
            assert_eq!(path.congestion.window(), 10 * MSS);
            assert!(path.congestion.threshold() >= window / 4 * 3);
            for _ in 0..6 {
                path.round();
            }
            assert!(path.congestion.window() >= window / 4 * 3);
            assert!(path.congestion.window() <= window + window / 10);
        }
    }

    #[test]
    fn threshold_is_two_segments_at_least() {
        for mut congestion in both(MSS) {
            congestion.loss(MSS, MSS, Tick(0));
            assert_eq!((congestion.threshold(), congestion.window()), (2 * MSS, 2 * MSS));
        }
    }

    /// Whatever is reported, in whatever order, the window stays in its range and nothing overflows.
    #[test]
    fn absurd_reports_leave_a_sane_window() {
        let seed = std::env::var("OVERFLY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
        println!("OVERFLY_SEED={seed}");
        let mut random = Random(seed);
        for _ in 0..2_000 {
            for mut congestion in both(random.absurd()) {
                for _ in 0..100 {
                    let (a, b, c, d) = (random.absurd(), random.absurd(), random.absurd(), random.absurd());
                    let now = Tick(random.absurd());
                    match random.next() % 12 {
                        0 => congestion.loss(a, b, now),
                        1 => congestion.congestion_experienced(a, b, now),
                        2 => congestion.timeout(a % 2 == 0, b, c, now),
                        3 => congestion.undo(),
                        4 => congestion.idle(a, now),
                        5 => congestion.set_window(a),
                        _ => congestion.acknowledged(&Ack {
                            acked: a,
                            flight: b,
                            mss: c,
                            now,
                            rtt_us: d,
                            sample_us: random.absurd(),
                        }),
                    }
                    assert!((1..=MAX_WINDOW).contains(&congestion.window()));
                    assert!((1..=MAX_WINDOW).contains(&congestion.threshold()));
                }
            }
        }
    }
}

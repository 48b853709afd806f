//! CUBIC (RFC 9438), leaving its first slow start as HyStart++ does (RFC 9406).

use super::{Ack, CongestionControl, MAX_WINDOW, Windows};
use crate::time::Tick;

/// RFC 9438 section 5.1: C, in segments per cubic second.
const C: f32 = 0.4;
/// The growth of RFC 9438 section 4.3's Reno-like estimate, 3 (1 - β) / (1 + β) with β = 0.7, as a fraction.
const ALPHA: (u64, u64) = (9, 17);
/// log2 of a step of CUBIC's clock in ticks: 8.192 ms. The window moves by much less than a segment in it, or is so large that
/// it does not matter.
const STEP_SHIFT: u32 = 3;
/// log2 of a step in microseconds.
const STEP_SHIFT_US: u32 = STEP_SHIFT + crate::time::TICK_SHIFT;
/// A step in seconds.
const STEP_S: f32 = (1_u32 << STEP_SHIFT_US) as f32 / 1e6;

/// One flow's CUBIC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cubic {
    stage: Stage,
    windows: Windows,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// No congestion so far.
    First(HyStart),
    Later(Curve),
}

impl Cubic {
    /// `initial` is the initial window in bytes (RFC 6928).
    pub(crate) fn new(initial: u32) -> Self {
        Self { stage: Stage::First(HyStart::new()), windows: Windows::new(initial) }
    }

    /// The curve for the window being left, which the next epoch aims at.
    fn reduced(&self, window: u32) -> Curve {
        let aim = match self.stage {
            // RFC 9438 section 4.7, fast convergence: a flow that lost below the last maximum makes room for others.
            Stage::Later(curve) if window < curve.max => (u64::from(window) * 17 / 20) as u32,
            _ => window,
        };
        Curve::new(aim)
    }
}

impl CongestionControl for Cubic {
    fn window(&self) -> u32 {
        self.windows.window
    }

    fn threshold(&self) -> u32 {
        self.windows.threshold
    }

    fn acknowledged(&mut self, ack: &Ack) {
        let mut acked = ack.acked;
        let is_used = self.windows.is_used(ack.flight, ack.mss);
        if self.windows.in_slow_start() {
            let pace = match &mut self.stage {
                Stage::First(start) => start.acknowledged(ack),
                Stage::Later(_) => Pace::Full,
            };
            if pace == Pace::Over {
                // RFC 9406 section 4.2: congestion avoidance from here.
                self.windows.threshold = self.windows.window;
            } else if is_used {
                acked = self.windows.slow_start(acked, ack.mss, pace.divisor());
            }
            if self.windows.in_slow_start() {
                return;
            }
        }
        if let Stage::First(_) = self.stage {
            self.stage = Stage::Later(Curve::new(0));
        }
        if let Stage::Later(curve) = &mut self.stage {
            curve.acknowledged(&mut self.windows, acked, ack, is_used);
        }
    }

    /// RFC 9438 section 4.6 with β = 0.7 of the window, as it allows where an unused window does not grow: what is in flight
    /// when a loss is noticed says little of what the path carried.
    fn loss(&mut self, _flight: u32, mss: u32, _now: Tick) {
        self.stage = Stage::Later(self.reduced(self.windows.window));
        self.windows.reduce(seven_tenths(self.windows.window), mss);
        self.windows.set_window(self.windows.threshold);
    }

    /// RFC 9438 section 4.8: the curve begins where the next congestion avoidance does.
    fn timeout(&mut self, first: bool, _flight: u32, mss: u32, _now: Tick) {
        if first {
            self.windows.reduce(seven_tenths(self.windows.window), mss);
        }
        self.stage = Stage::Later(Curve::new(0));
        self.windows.set_window(mss);
    }

    /// RFC 9438 section 4.9. Of the curve only its plateau is known still: the window that is restored.
    fn undo(&mut self) {
        if self.windows.undo() {
            self.stage = if self.windows.threshold == MAX_WINDOW {
                Stage::First(HyStart::new())
            } else {
                Stage::Later(Curve::new(self.windows.window))
            };
        }
    }

    fn idle(&mut self, initial: u32, _now: Tick) {
        self.windows.idle(initial);
        if let Stage::Later(curve) = &mut self.stage {
            // RFC 9438 section 4.2: idle time is not time. Another epoch begins after slow start, with the same aim.
            curve.is_running = false;
        }
    }

    fn set_window(&mut self, window: u32) {
        self.windows.set_window(window);
    }
}

/// β (RFC 9438 section 4.6).
fn seven_tenths(window: u32) -> u32 {
    (u64::from(window) * 7 / 10) as u32
}

/// The cubic function of an epoch, and the Reno-like estimate beside it.
#[derive(Clone, Copy, Debug)]
struct Curve {
    /// W_max: the window at the plateau, in bytes. 0: the window with which the next epoch begins.
    max: u32,
    /// Bytes acknowledged since the estimate last grew by a segment.
    counted: u32,
    /// t - K in steps.
    since_plateau: i16,
    /// W_est less the threshold, in segments. Saturates where CUBIC is far ahead.
    estimate: u16,
    /// The clock's low bits when the last acknowledgment came.
    last: u16,
    /// There is an epoch.
    is_running: bool,
}

impl Curve {
    const fn new(max: u32) -> Self {
        Self { max, counted: 0, since_plateau: 0, estimate: 0, last: 0, is_running: false }
    }

    /// RFC 9438 section 4.2: K, and where the window starts.
    fn begin(&mut self, windows: &Windows, mss: u32) {
        self.is_running = true;
        let window = windows.window;
        if self.max > window {
            let k = cube_root((self.max - window) as f32 / mss as f32 / C);
            self.since_plateau = (-k / STEP_S - 0.5) as i16;
        } else {
            self.max = window;
            self.since_plateau = 0;
        }
        self.counted = 0;
        let beyond = window.saturating_sub(windows.threshold) / mss;
        self.estimate = u16::try_from(beyond).unwrap_or(u16::MAX);
    }

    /// W_cubic (RFC 9438 section 4.2) in bytes at `later_s` from now. Casts saturate.
    fn at(&self, later_s: f32, mss: u32) -> u32 {
        let t = f32::from(self.since_plateau) * STEP_S + later_s;
        (self.max as f32 + C * mss as f32 * t * t * t) as u32
    }

    /// Congestion avoidance.
    fn acknowledged(&mut self, windows: &mut Windows, acked: u32, ack: &Ack, is_used: bool) {
        let mss = ack.mss.max(1);
        let clock = (ack.now.0 >> STEP_SHIFT) as u16;
        if !self.is_running {
            self.begin(windows, mss);
            self.last = clock;
        }
        let elapsed = clock.wrapping_sub(self.last);
        self.last = clock;
        if !is_used {
            return;
        }
        // RFC 9438 section 4.2: t leaves out the time in which the window was not used. A flow that sends all the time hears
        // something every round trip; a longer silence was the application's.
        let steps = u32::from(elapsed).min(2 * (ack.rtt_us >> STEP_SHIFT_US) + 2);
        self.since_plateau = self.since_plateau.saturating_add(i16::try_from(steps).unwrap_or(i16::MAX));

        // RFC 9438 section 4.3: α is 1 once the estimate is back at the window before the reduction.
        let window = windows.window;
        let estimate = self.estimate(windows.threshold, mss);
        let (numerator, denominator) = if estimate < windows.prior_window { ALPHA } else { (1, 1) };
        self.counted = self.counted.saturating_add(acked);
        if u64::from(self.counted) * numerator >= u64::from(window) * denominator {
            let used = (u64::from(window) * denominator).div_ceil(numerator);
            self.counted = (u64::from(self.counted).saturating_sub(used) as u32).min(window);
            self.estimate = self.estimate.saturating_add(1);
        }
        let estimate = self.estimate(windows.threshold, mss);

        if self.at(0.0, mss) < estimate {
            // Section 4.3: the Reno-friendly region.
            windows.set_window(window.max(estimate));
            return;
        }
        // Sections 4.2, 4.4 and 4.5: toward where the curve is in a round trip, by half of the window in one at most. What
        // rounding takes is made up for, since the curve does not wait.
        let target = self.at(ack.rtt_us as f32 / 1e6, mss).clamp(window, window + window / 2);
        let growth = u64::from(target - window) * u64::from(acked.min(window)) / u64::from(window);
        windows.grow(growth as u32);
    }

    /// W_est in bytes.
    fn estimate(&self, threshold: u32, mss: u32) -> u32 {
        threshold.saturating_add(u32::from(self.estimate).saturating_mul(mss)).min(MAX_WINDOW)
    }
}

/// The cube root of a number that is not negative, by Halley's method from a third of the exponent. Core has none, and std's
/// is the C library's.
fn cube_root(x: f32) -> f32 {
    if x <= 0.0 {
        return 0.0;
    }
    let mut root = f32::from_bits(x.to_bits() / 3 + 0x2a51_37a0);
    for _ in 0..2 {
        let cube = root * root * root;
        root *= (cube + 2.0 * x) / (2.0 * cube + x);
    }
    root
}

/// How fast slow start goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pace {
    Full,
    /// RFC 9406's Conservative Slow Start.
    Conservative,
    /// Congestion avoidance is due.
    Over,
}

impl Pace {
    /// RFC 9406 section 4.3: CSS_GROWTH_DIVISOR.
    const fn divisor(self) -> u32 {
        match self {
            Self::Conservative => 4,
            Self::Full | Self::Over => 1,
        }
    }
}

/// HyStart++: slow start slows down when round trips get longer, and ends if they stay so (RFC 9406 section 4.2).
#[derive(Clone, Copy, Debug)]
struct HyStart {
    /// Bytes whose acknowledgment ends the round.
    rest: u32,
    /// The least round trip of the last round, of this round, and of this one when conservative slow start began; in units.
    last_min: u16,
    min: u16,
    baseline: u16,
    /// Round trips measured in this round.
    samples: u8,
    /// Rounds of conservative slow start begun; 0 outside it.
    conservative: u8,
}

impl HyStart {
    /// log2 of a round trip's unit in microseconds: 64 µs.
    const UNIT_SHIFT: u32 = 6;
    const UNKNOWN: u16 = u16::MAX;
    /// RFC 9406 section 4.3: MIN_RTT_THRESH and MAX_RTT_THRESH, 4 and 16 ms; MIN_RTT_DIVISOR; N_RTT_SAMPLE; CSS_ROUNDS.
    const MIN_RISE: u16 = 4_000 >> Self::UNIT_SHIFT;
    const MAX_RISE: u16 = 16_000 >> Self::UNIT_SHIFT;
    const RISE_DIVISOR: u16 = 8;
    const SAMPLES: u8 = 8;
    const ROUNDS: u8 = 5;

    const fn new() -> Self {
        Self {
            rest: 0,
            last_min: Self::UNKNOWN,
            min: Self::UNKNOWN,
            baseline: Self::UNKNOWN,
            samples: 0,
            conservative: 0,
        }
    }

    fn acknowledged(&mut self, ack: &Ack) -> Pace {
        if ack.sample_us > 0 {
            let sample = (ack.sample_us >> Self::UNIT_SHIFT).min(u32::from(Self::UNKNOWN) - 1) as u16;
            self.min = self.min.min(sample);
            self.samples = self.samples.saturating_add(1);
        }
        if self.samples >= Self::SAMPLES {
            let rise = (self.last_min / Self::RISE_DIVISOR).clamp(Self::MIN_RISE, Self::MAX_RISE);
            if self.conservative > 0 {
                if self.min < self.baseline {
                    // It was jitter.
                    self.conservative = 0;
                }
            } else if self.last_min != Self::UNKNOWN && self.min >= self.last_min.saturating_add(rise) {
                self.baseline = self.min;
                self.conservative = 1;
            }
        }
        if ack.acked < self.rest {
            self.rest -= ack.acked;
        } else {
            // Section 4.2: the next round ends when what is outstanding now is acknowledged.
            self.rest = ack.flight.saturating_sub(ack.acked);
            self.last_min = self.min;
            self.min = Self::UNKNOWN;
            self.samples = 0;
            if self.conservative > 0 {
                self.conservative += 1;
            }
        }
        match self.conservative {
            0 => Pace::Full,
            rounds if rounds <= Self::ROUNDS => Pace::Conservative,
            _ => Pace::Over,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MSS, Path};
    use super::super::{Algorithm, Congestion};
    use super::*;

    /// W_cubic in segments, `t` seconds into an epoch that began after a loss at `max` segments.
    fn curve(t: f64, max: f64) -> f64 {
        let k = (max * 0.3 / 0.4).cbrt();
        0.4 * (t - k).powi(3) + max
    }

    #[test]
    fn cube_roots_are_right() {
        for exponent in -20..30 {
            let x = 1.7 * 2_f32.powi(exponent);
            assert!((cube_root(x) / x.cbrt() - 1.0).abs() < 1e-5, "{x}");
        }
        assert_eq!(cube_root(0.0), 0.0);
    }

    #[test]
    fn window_follows_the_curve() {
        for (segments, rtt_us) in [(1_000, 100_000), (10_000, 100_000), (30_000, 50_000), (100_000, 200_000)]
        {
            let mut path = Path::new(Congestion::new(Algorithm::Cubic, segments * MSS), rtt_us);
            path.lose();
            let start_ns = path.now_ns;
            let k = (f64::from(segments) * 0.3 / 0.4).cbrt();
            loop {
                path.round();
                let t = (path.now_ns - start_ns) as f64 / 1e9;
                let expected = curve(t, f64::from(segments)).min(f64::from(MAX_WINDOW / MSS));
                let error = path.segments() / expected - 1.0;
                assert!(
                    error.abs() < 0.01,
                    "{segments} at {t:.2} s: {:.0}, not {expected:.0}",
                    path.segments()
                );
                if t > 1.5 * k {
                    break;
                }
            }
        }
    }

    /// RFC 9438 section 5, the mean window in segments: (C (3 + β) / (4 (1 - β)))^(1/4) (RTT / p)^(3/4).
    #[test]
    fn mean_window_follows_the_response_function() {
        let factor = (0.4 * 3.7 / (4.0 * 0.3_f64)).powf(0.25);
        // The formula leaves fast convergence out, which a window that ends a byte below the last one sets off.
        let forget = |congestion: &mut Congestion| {
            if let Congestion::Cubic(Cubic { stage: Stage::Later(curve), .. }) = congestion {
                curve.max = 0;
            }
        };
        for (period, rtt_us) in [(10_000, 200_000), (100_000, 100_000), (300_000, 100_000)] {
            let theory = factor * (f64::from(rtt_us) / 1e6 * f64::from(period)).powf(0.75);
            // From the formula's own maximum: at its plateau the curve leads back there only slowly.
            let start = (theory * 4.0 / 3.7) as u32 * MSS;
            let mean =
                Path::new(Congestion::new(Algorithm::Cubic, start), rtt_us).mean_window(period, forget);
            assert!((mean / theory - 1.0).abs() < 0.05, "1/p={period}: {mean:.1}, theory {theory:.1}");
        }
    }

    /// RFC 9438 section 4.3: where the curve is slower than Reno, the mean window is Reno's.
    #[test]
    fn small_paths_are_shared_with_reno_fairly() {
        for (period, rtt_us) in [(500, 1_000), (5_000, 5_000), (5_000, 10_000)] {
            let mean =
                Path::new(Congestion::new(Algorithm::Cubic, 10 * MSS), rtt_us).mean_window(period, |_| {});
            let theory = (1.5 * f64::from(period)).sqrt();
            assert!((mean / theory - 1.0).abs() < 0.06, "1/p={period}: {mean:.1}, theory {theory:.1}");
        }
    }

    #[test]
    fn estimate_grows_by_nine_seventeenths_then_by_one() {
        let mut path = Path::new(Congestion::new(Algorithm::Cubic, 100 * MSS), 1_000);
        path.lose();
        assert_eq!(path.congestion.window(), 70 * MSS);
        for _ in 0..34 {
            path.round();
        }
        assert!((87..=88).contains(&(path.congestion.window() / MSS)));
        while path.congestion.window() < 101 * MSS {
            path.round();
        }
        let window = path.congestion.window();
        for _ in 0..10 {
            path.round();
        }
        assert!((9..=10).contains(&((path.congestion.window() - window) / MSS)));
    }

    #[test]
    fn loss_below_the_last_maximum_lowers_the_aim() {
        let mut cubic = Cubic::new(1_000 * MSS);
        let aim = |cubic: &Cubic| match cubic.stage {
            Stage::Later(curve) => curve.max / MSS,
            Stage::First(_) => 0,
        };
        cubic.loss(0, MSS, Tick(0));
        assert_eq!((aim(&cubic), cubic.window() / MSS), (1_000, 700));
        cubic.set_window(800 * MSS);
        cubic.loss(0, MSS, Tick(0));
        assert_eq!((aim(&cubic), cubic.window() / MSS), (680, 560));
        cubic.set_window(900 * MSS);
        cubic.loss(0, MSS, Tick(0));
        assert_eq!((aim(&cubic), cubic.window() / MSS), (900, 630));
    }

    #[test]
    fn pauses_do_not_count() {
        let rtt_us = 50_000;
        let mut busy = Path::new(Congestion::new(Algorithm::Cubic, 1_000 * MSS), rtt_us);
        let mut pausing = Path::new(Congestion::new(Algorithm::Cubic, 1_000 * MSS), rtt_us);
        busy.lose();
        pausing.lose();
        for _ in 0..60 {
            busy.round();
            pausing.round();
            pausing.now_ns += 10_000_000_000;
        }
        // Each pause counts for two round trips at most.
        let start = 700.0;
        let (slow, fast) = (busy.segments() - start, curve(60.0 * 0.15, 1_000.0) - start);
        let seen = pausing.segments() - start;
        assert!(seen >= slow && seen <= fast * 1.02, "{slow} {seen} {fast}");
    }

    #[test]
    fn first_epoch_after_a_timeout_starts_at_the_plateau() {
        let mut path = Path::new(Congestion::new(Algorithm::Cubic, 1_000 * MSS), 50_000);
        let now = path.now();
        path.congestion.timeout(true, 1_000 * MSS, MSS, now);
        while path.congestion.in_slow_start() {
            path.round();
        }
        assert!(path.congestion.window() < 702 * MSS);
        let start_ns = path.now_ns;
        let start = path.segments();
        for _ in 0..200 {
            path.round();
        }
        let t = (path.now_ns - start_ns) as f64 / 1e9;
        let expected = start + 0.4 * t.powi(3);
        assert!((path.segments() / expected - 1.0).abs() < 0.02, "{} {expected}", path.segments());
    }

    /// A path with a queue: returns the window at which slow start ended, in multiples of the bandwidth-delay product.
    fn slow_start_over(rate_segments_per_s: f64, base_us: u32) -> f64 {
        let product = rate_segments_per_s * f64::from(base_us) / 1e6;
        let mut congestion = Congestion::new(Algorithm::Cubic, 10 * MSS);
        let mut now_us = 0_u64;
        while congestion.in_slow_start() && f64::from(congestion.window() / MSS) < 20.0 * product {
            let flight = congestion.window() / MSS;
            for acked in 0..flight {
                // Acknowledgments come at the path's rate; what is beyond the product queues.
                now_us += (1e6 / rate_segments_per_s) as u64;
                let outstanding = f64::from(congestion.window() / MSS).min(f64::from(flight + acked));
                let sample_us = f64::from(base_us).max(outstanding / rate_segments_per_s * 1e6) as u32;
                congestion.acknowledged(&Ack {
                    acked: MSS,
                    flight: flight * MSS,
                    mss: MSS,
                    now: Tick((now_us >> 10) as u32),
                    rtt_us: sample_us,
                    sample_us,
                });
            }
        }
        f64::from(congestion.window() / MSS) / product
    }

    #[test]
    fn slow_start_ends_before_the_queue_is_long() {
        for (rate, base_us) in [(10_000.0, 50_000), (80_000.0, 20_000), (80_000.0, 100_000)] {
            let multiple = slow_start_over(rate, base_us);
            assert!((1.0..4.5).contains(&multiple), "{rate} {base_us}: {multiple:.2} products");
        }
    }

    #[test]
    fn jitter_does_not_end_slow_start() {
        let mut path = Path::new(Congestion::new(Algorithm::Cubic, 10 * MSS), 20_000);
        path.round();
        path.round();
        // Two rounds of longer round trips, then the old ones again.
        path.rtt_us = 30_000;
        path.round();
        path.round();
        let Congestion::Cubic(Cubic { stage: Stage::First(start), .. }) = path.congestion else {
            panic!("still the first slow start");
        };
        assert!(start.conservative > 0);
        path.rtt_us = 20_000;
        path.round();
        path.round();
        let window = path.congestion.window();
        path.round();
        assert!(path.congestion.in_slow_start());
        assert!((2 * window - path.congestion.window()) <= MSS);
    }

    #[test]
    fn undo_of_the_first_loss_goes_on_with_slow_start() {
        let mut path = Path::new(Congestion::new(Algorithm::Cubic, 10 * MSS), 20_000);
        path.round();
        path.lose();
        path.congestion.undo();
        assert!(path.congestion.in_slow_start());
        path.round();
        assert_eq!(path.congestion.window(), 40 * MSS);
    }
}

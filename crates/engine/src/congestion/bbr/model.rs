//! The model of the path and the states that it goes through (draft-ietf-ccwg-bbr-05 section 5). Names in backquotes are the draft's.

mod losses;
mod probes;

use core::num::NonZeroU64;

use losses::is_too_much;

use super::delivery::{Delivery, MOST_RATE, Sample};
use super::filters::{Maximum, MinRtt};
use super::pacer::Pacer;
use super::{BbrInfo, Delivered, MAX_WINDOW, Transmission};

/// `BBR.Beta`, in percent.
const BETA: u64 = 70;
/// `BBR.Headroom`, in percent.
const HEADROOM: u64 = 15;
/// `BBR.MinPipeCwnd`, in segments.
const LEAST_WINDOW: u32 = 4;
/// `BBR.PacingMarginPercent`.
const MARGIN: u64 = 1;
/// `BBRStartupFullLossCnt`.
const STARTUP_LOSSES: u32 = 6;
/// Rounds without a quarter more bandwidth that mean a full pipe (section 5.3.1.2).
const FULL_ROUNDS: u8 = 3;
/// `BBRExtraAckedFilterLen` is ten rounds: two halves of five.
const AGGREGATION_ROUNDS: u64 = 5;
/// Section 5.6.3: what goes at once is a millisecond's worth, and no more than this.
const MOST_AT_ONCE: u64 = 64 << 10;

/// `BBR.state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Startup,
    Drain,
    /// ProbeBW's four.
    Down,
    Cruise,
    Refill,
    Up,
    ProbeRtt,
}

impl Phase {
    /// In hundredths (section 5.6.1).
    const fn pacing_gain(self) -> u64 {
        match self {
            Self::Startup => 277,
            Self::Drain => 50,
            Self::Down => 90,
            Self::Cruise | Self::Refill | Self::ProbeRtt => 100,
            Self::Up => 125,
        }
    }

    const fn window_gain(self) -> u64 {
        match self {
            Self::Up => 225,
            Self::ProbeRtt => 50,
            _ => 200,
        }
    }

    const fn probes_bandwidth(self) -> bool {
        matches!(self, Self::Down | Self::Cruise | Self::Refill | Self::Up)
    }

    /// `BBRIsProbingBW`.
    const fn accelerates(self) -> bool {
        matches!(self, Self::Startup | Self::Refill | Self::Up)
    }
}

/// What a spurious loss brings back (section 5.5.11).
#[derive(Clone, Copy, Debug)]
struct Undo {
    phase: Phase,
    short_bandwidth: u64,
    short_inflight: u64,
    long_inflight: u64,
}

const INFINITE: u64 = u64::MAX;

/// One flow's model. Sizes in bytes, rates in bytes a second, times in microseconds.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) delivery: Delivery,
    pub(super) pacer: Pacer,
    /// When the flow has asked to be woken.
    pub(super) wakes_us: Option<NonZeroU64>,
    pub(super) phase: Phase,
    /// `C.cwnd`.
    pub(super) window: u32,
    /// `C.pacing_rate`.
    pub(super) rate: u64,
    initial_window: u32,
    mss: u32,
    /// The rate comes from a round trip that was measured.
    has_rtt: bool,
    random: u64,

    /// `BBR.max_bw`'s filter, by cycles of probes.
    pub(super) max_bandwidth: Maximum,
    /// `BBR.bw`.
    bandwidth: u64,
    /// `BBR.bw_shortterm`, `BBR.inflight_shortterm`, `BBR.inflight_longterm`.
    pub(super) short_bandwidth: u64,
    pub(super) short_inflight: u64,
    pub(super) long_inflight: u64,
    /// `BBR.bw_latest`, `BBR.inflight_latest`: of the last round.
    latest_bandwidth: u64,
    latest_inflight: u64,
    pub(super) rtt: MinRtt,
    last: Sample,

    /// Section 5.5.1.
    next_round: u64,
    rounds: u64,
    round_starts: bool,
    /// Section 5.5.10.3.
    loss_round: u64,
    loss_round_starts: bool,
    loss_in_round: bool,
    ranges_lost: u32,
    is_recovering: bool,

    full_bandwidth: u64,
    full_rounds: u8,
    is_full_now: bool,
    /// `BBR.full_bw_reached`.
    pub(super) was_full: bool,

    drain_since: u64,
    rounds_since_probe: u64,
    probe_wait_us: u64,
    cycle_since_us: u64,
    /// `BBR.ack_phase`: the next round has nothing of the last probe any more.
    probe_ends: bool,
    /// `BBR.bw_probe_samples`: a probe's losses have not been answered yet.
    is_probed: bool,
    up_rounds: u32,
    up_acked: u64,
    up_count: u64,

    probe_rtt_until_us: Option<u64>,
    probe_rtt_round_done: bool,
    prior_window: u32,
    restarts: bool,

    /// `BBR.extra_acked`'s filter (section 5.5.9).
    aggregation: Maximum,
    aggregation_rounds: u64,
    aggregated: u64,
    aggregation_since_us: u64,
    undo: Undo,
}

impl Model {
    /// Section 5.2.1. The first data is about to be accounted for.
    pub(super) fn new(first: &Transmission, window: u32) -> Self {
        let now_us = first.now.as_micros();
        let mut model = Self {
            delivery: Delivery::new(now_us),
            pacer: Pacer::default(),
            wakes_us: None,
            phase: Phase::Startup,
            window,
            rate: 0,
            initial_window: window,
            mss: first.mss,
            has_rtt: false,
            random: now_us ^ u64::from(first.start.number()) << 32,
            max_bandwidth: Maximum::default(),
            bandwidth: 0,
            short_bandwidth: INFINITE,
            short_inflight: INFINITE,
            long_inflight: INFINITE,
            latest_bandwidth: 0,
            latest_inflight: 0,
            rtt: MinRtt::new(now_us, first.rtt_us),
            last: Sample::default(),
            next_round: 0,
            rounds: 0,
            round_starts: false,
            loss_round: 0,
            loss_round_starts: false,
            loss_in_round: false,
            ranges_lost: 0,
            is_recovering: false,
            full_bandwidth: 0,
            full_rounds: 0,
            is_full_now: false,
            was_full: false,
            drain_since: 0,
            rounds_since_probe: 0,
            probe_wait_us: 0,
            cycle_since_us: now_us,
            probe_ends: false,
            is_probed: false,
            up_rounds: 0,
            up_acked: 0,
            up_count: INFINITE,
            probe_rtt_until_us: None,
            probe_rtt_round_done: false,
            prior_window: 0,
            restarts: false,
            aggregation: Maximum::default(),
            aggregation_rounds: 0,
            aggregated: 0,
            aggregation_since_us: now_us,
            undo: Undo {
                phase: Phase::Startup,
                short_bandwidth: INFINITE,
                short_inflight: INFINITE,
                long_inflight: INFINITE,
            },
        };
        model.init_rate(first.rtt_us);
        model
    }

    /// Section 5.6.2: `BBRInitPacingRate`.
    fn init_rate(&mut self, rtt_us: u32) {
        self.has_rtt = rtt_us > 0;
        let rtt_us = if rtt_us > 0 { u64::from(rtt_us) } else { 1000 };
        let nominal = u64::from(self.initial_window) * 1_000_000 / rtt_us;
        self.rate = (nominal * Phase::Startup.pacing_gain() / 100).min(MOST_RATE);
    }

    /// Section 5.6.3: `C.send_quantum`.
    pub(super) fn quantum(&self, mss: u32) -> u32 {
        (self.rate / 1000).min(MOST_AT_ONCE).max(2 * u64::from(mss)) as u32
    }

    pub(super) fn info(&self) -> BbrInfo {
        BbrInfo {
            bandwidth: self.bandwidth,
            min_rtt_us: self.rtt.min_us,
            pacing_gain: self.phase.pacing_gain() as u32,
            window_gain: self.phase.window_gain() as u32,
            pacing_rate: self.rate,
            delivery_rate: self.last.rate,
            is_limited: self.last.is_limited,
        }
    }

    /// Sections 5.2.2 and 4.1.2.2.
    pub(super) fn sent(&mut self, sent: &Transmission) {
        let now_us = sent.now.as_micros();
        let bytes = sent.end.since(sent.start);
        if sent.in_flight <= bytes && self.delivery.is_limited() {
            // Section 5.4.1: `BBRHandleRestartFromIdle`.
            self.restarts = true;
            self.aggregation_since_us = now_us;
            if self.phase.probes_bandwidth() {
                self.set_rate(100);
            } else if self.phase == Phase::ProbeRtt {
                self.check_probe_rtt_done(now_us);
            }
        }
        self.delivery.sent(now_us, sent.start, sent.end, sent.is_new, sent.in_flight);
        self.pacer.sent(bytes, self.rate);
    }

    /// Section 5.2.3: `BBRUpdateOnACK`.
    pub(super) fn acknowledged(&mut self, news: &Delivered) {
        let now_us = news.now.as_micros();
        self.mss = news.mss;
        self.is_recovering = news.is_recovering;
        let before = news.in_flight.saturating_add(news.bytes);
        if news.is_drained && before < self.window {
            self.delivery.limit(before);
        }
        if news.bytes == 0 {
            return;
        }
        let is_window_limited = before.saturating_add(news.mss) > self.window;
        let sample = self.delivery.delivered(now_us, news.una, news.bytes, news.newest, news.least_rtt_us);
        if !self.has_rtt && sample.rtt_us > 0 {
            self.init_rate(sample.rtt_us);
        }
        self.last = sample;
        self.update_latest(&sample);
        self.update_round(&sample);
        self.update_bandwidth(&sample);
        self.adapt_short_term();
        self.update_aggregation(now_us, news.bytes);
        self.check_full(&sample);
        self.check_startup_done(&sample, news.has_sack);
        self.check_drain_done(now_us, news.in_flight);
        self.update_cycle(now_us, &sample, news, is_window_limited);
        self.check_probe_rtt(now_us, &sample, news.in_flight);
        self.advance_latest(&sample);
        self.bandwidth = self.max_bandwidth.value().min(self.short_bandwidth);
        self.set_rate(self.phase.pacing_gain());
        self.set_window(news.bytes);
    }

    // --- rounds, and what the last one delivered -------------------------------------------------

    fn update_latest(&mut self, sample: &Sample) {
        self.loss_round_starts = false;
        if !sample.is_known {
            return;
        }
        self.latest_bandwidth = self.latest_bandwidth.max(sample.rate);
        self.latest_inflight = self.latest_inflight.max(sample.delivered);
        if sample.prior_delivered >= self.loss_round {
            self.loss_round = self.delivery.delivered;
            self.loss_round_starts = true;
        }
    }

    fn advance_latest(&mut self, sample: &Sample) {
        if self.loss_round_starts {
            (self.latest_bandwidth, self.latest_inflight) = (sample.rate, sample.delivered);
        }
    }

    fn update_round(&mut self, sample: &Sample) {
        self.round_starts = sample.is_known && sample.prior_delivered >= self.next_round;
        if self.round_starts {
            self.start_round();
            self.rounds += 1;
            self.rounds_since_probe += 1;
        }
    }

    fn start_round(&mut self) {
        self.next_round = self.delivery.delivered;
    }

    /// Section 5.5.5.
    fn update_bandwidth(&mut self, sample: &Sample) {
        if sample.rate > 0 && (sample.rate >= self.max_bandwidth.value() || !sample.is_limited) {
            self.max_bandwidth.update(sample.rate);
        }
    }

    /// Section 5.5.10.3: once a round that lost something, outside of probes, to what the last round delivered.
    fn adapt_short_term(&mut self) {
        if !self.loss_round_starts {
            return;
        }
        if self.loss_in_round && !self.phase.accelerates() {
            if self.short_bandwidth == INFINITE {
                self.short_bandwidth = self.max_bandwidth.value();
            }
            if self.short_inflight == INFINITE {
                self.short_inflight = self.window.into();
            }
            self.short_bandwidth = self.latest_bandwidth.max(self.short_bandwidth * BETA / 100);
            self.short_inflight = self.latest_inflight.max(self.short_inflight * BETA / 100);
        }
        // Startup looks at the round's losses after this.
        if self.phase != Phase::Startup {
            self.ranges_lost = 0;
        }
        self.loss_in_round = false;
    }

    fn reset_short_term(&mut self) {
        (self.short_bandwidth, self.short_inflight) = (INFINITE, INFINITE);
    }

    /// Section 5.5.9.
    fn update_aggregation(&mut self, now_us: u64, bytes: u32) {
        if self.round_starts {
            self.aggregation_rounds += 1;
            let length = if self.was_full { AGGREGATION_ROUNDS } else { 1 };
            if self.aggregation_rounds >= length {
                self.aggregation_rounds = 0;
                self.aggregation.forget_older();
            }
        }
        let interval_us = now_us.saturating_sub(self.aggregation_since_us);
        let mut expected = volume(self.bandwidth, interval_us);
        if self.aggregated <= expected {
            (self.aggregated, self.aggregation_since_us, expected) = (0, now_us, 0);
        }
        self.aggregated += u64::from(bytes);
        self.aggregation.update((self.aggregated - expected).min(self.window.into()));
    }

    // --- Startup and Drain -----------------------------------------------------------------------

    /// Section 5.3.1.2.
    fn check_full(&mut self, sample: &Sample) {
        if self.is_full_now || !self.round_starts || sample.is_limited || sample.rate == 0 {
            return;
        }
        if sample.rate >= self.full_bandwidth.saturating_mul(5) / 4 {
            self.reset_full(sample.rate);
            return;
        }
        self.full_rounds += 1;
        self.is_full_now = self.full_rounds >= FULL_ROUNDS;
        self.was_full |= self.is_full_now;
    }

    fn reset_full(&mut self, bandwidth: u64) {
        (self.full_bandwidth, self.full_rounds, self.is_full_now) = (bandwidth, 0, false);
    }

    /// Section 5.3.1.3: losses say that the pipe is full.
    fn check_startup_done(&mut self, sample: &Sample, has_sack: bool) {
        if self.phase != Phase::Startup {
            return;
        }
        if self.loss_round_starts {
            let many = self.ranges_lost >= STARTUP_LOSSES || (!has_sack && self.ranges_lost > 0);
            if self.is_recovering && many && is_too_much(sample.lost, sample.in_flight, has_sack) {
                self.leave_startup_lossy();
            }
            self.ranges_lost = 0;
        }
        if self.was_full {
            self.phase = Phase::Drain;
            self.drain_since = self.rounds;
        }
    }

    fn leave_startup_lossy(&mut self) {
        self.was_full = true;
        self.long_inflight = self.bdp().max(self.latest_inflight);
    }

    /// Section 5.3.2.
    fn check_drain_done(&mut self, now_us: u64, in_flight: u32) {
        if self.phase == Phase::Drain
            && (u64::from(in_flight) <= self.inflight(100) || self.rounds > self.drain_since + 3)
        {
            self.start_down(now_us);
        }
    }

    // --- what follows from the model -------------------------------------------------------------

    /// `BBR.bdp`.
    fn bdp(&self) -> u64 {
        match self.rtt.min_us {
            u32::MAX => self.initial_window.into(),
            rtt_us => volume(self.bandwidth, rtt_us.into()),
        }
    }

    /// `BBRTargetInflight`.
    fn target(&self) -> u64 {
        self.bdp().min(self.window.into())
    }

    /// `BBRInflight`; `gain` in hundredths.
    fn inflight(&self, gain: u64) -> u64 {
        self.with_budget(self.bdp() * gain / 100)
    }

    /// `BBRQuantizationBudget` (sections 5.5.8.1 and 5.6.4.2).
    fn with_budget(&self, bytes: u64) -> u64 {
        let more = if self.phase == Phase::Up { 2 * u64::from(self.mss) } else { 0 };
        bytes.max(3 * u64::from(self.quantum(self.mss))).max(self.least_window()) + more
    }

    fn with_headroom(&self) -> u64 {
        if self.long_inflight == INFINITE {
            return INFINITE;
        }
        let headroom = (self.long_inflight * HEADROOM / 100).max(self.mss.into());
        self.long_inflight.saturating_sub(headroom).max(self.least_window())
    }

    fn least_window(&self) -> u64 {
        u64::from(LEAST_WINDOW * self.mss)
    }

    fn probe_rtt_window(&self) -> u64 {
        (self.bdp() * Phase::ProbeRtt.window_gain() / 100).max(self.least_window())
    }

    /// Section 5.6.2; `gain` in hundredths.
    fn set_rate(&mut self, gain: u64) {
        let rate = self.bandwidth.saturating_mul(gain) / 100 * (100 - MARGIN) / 100;
        if rate > 0 && (self.was_full || rate > self.rate) {
            self.rate = rate;
        }
    }

    /// Section 5.6.4.6.
    fn set_window(&mut self, acked: u32) {
        let most = self.bdp() * self.phase.window_gain() / 100 + self.aggregation.value();
        let most = self.with_budget(most);
        let mut window = u64::from(self.window);
        if self.was_full {
            window = (window + u64::from(acked)).min(most);
        } else if window < most || self.delivery.delivered < u64::from(self.initial_window) {
            window += u64::from(acked);
        }
        window = window.max(self.least_window());
        if self.phase == Phase::ProbeRtt {
            window = window.min(self.probe_rtt_window());
        }
        self.window = window.min(self.bound()).min(MAX_WINDOW.into()) as u32;
    }

    /// Section 5.6.4.7.
    fn bound(&self) -> u64 {
        let long = match self.phase {
            Phase::Down | Phase::Refill | Phase::Up => self.long_inflight,
            Phase::Cruise | Phase::ProbeRtt => self.with_headroom(),
            Phase::Startup | Phase::Drain => INFINITE,
        };
        long.min(self.short_inflight).max(self.least_window())
    }
}

/// Bytes that `rate` makes in that time.
fn volume(rate: u64, time_us: u64) -> u64 {
    (u128::from(rate) * u128::from(time_us) / 1_000_000).min(u128::from(u64::MAX)) as u64
}

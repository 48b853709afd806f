//! The states of a path that is known: probes for more bandwidth (section 5.3.3), and for the round trip of an empty queue (5.3.4).

use super::losses::is_too_much;
use super::{Delivered, INFINITE, Model, Phase, Sample};

/// `BBR.ProbeRTTDuration`.
const PROBE_RTT_US: u64 = 200_000;
/// Section 5.3.3.5: seconds between probes of the bandwidth, and rounds at most.
const PROBE_WAIT_US: u64 = 2_000_000;
const PROBE_ROUNDS: u64 = 63;

impl Model {
    pub(super) fn start_down(&mut self, now_us: u64) {
        // `BBRResetCongestionSignals`
        (self.loss_in_round, self.latest_bandwidth, self.latest_inflight) = (false, 0, 0);
        self.up_count = INFINITE;
        self.rounds_since_probe = self.random() % 2;
        self.probe_wait_us = PROBE_WAIT_US + self.random() % 1_000_000;
        self.cycle_since_us = now_us;
        self.probe_ends = true;
        self.start_round();
        self.phase = Phase::Down;
    }

    fn start_refill(&mut self) {
        self.reset_short_term();
        (self.up_rounds, self.up_acked) = (0, 0);
        self.probe_ends = false;
        self.start_round();
        self.phase = Phase::Refill;
    }

    pub(super) fn start_up(&mut self) {
        self.probe_ends = false;
        self.start_round();
        self.reset_full(self.last.rate);
        self.phase = Phase::Up;
        self.raise_slope();
    }

    /// SplitMix64 (Steele, Lea and Flood 2014).
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Section 5.3.3.6.
    pub(super) fn update_cycle(
        &mut self,
        now_us: u64,
        sample: &Sample,
        news: &Delivered,
        is_window_limited: bool,
    ) {
        if !self.was_full {
            return;
        }
        self.adapt_long_term(sample, news, is_window_limited);
        let phase = self.phase;
        match phase {
            Phase::Down | Phase::Cruise if self.is_time_to_probe(now_us) => self.start_refill(),
            Phase::Down if self.is_time_to_cruise(news.in_flight) => self.phase = Phase::Cruise,
            Phase::Refill if self.round_starts => {
                self.is_probed = true;
                self.start_up();
            }
            Phase::Up if self.is_time_to_go_down(is_window_limited) => self.start_down(now_us),
            _ => {}
        }
    }

    /// Section 5.3.3.5: a probe costs those who share the path, so it comes seldom.
    fn is_time_to_probe(&self, now_us: u64) -> bool {
        let rounds = self.target() / u64::from(self.mss.max(1));
        now_us > self.cycle_since_us + self.probe_wait_us
            || self.rounds_since_probe >= rounds.clamp(1, PROBE_ROUNDS)
    }

    fn is_time_to_cruise(&self, in_flight: u32) -> bool {
        let in_flight = u64::from(in_flight);
        in_flight <= self.with_headroom() && in_flight <= self.inflight(100)
    }

    fn is_time_to_go_down(&mut self, is_window_limited: bool) -> bool {
        if is_window_limited && u64::from(self.window) >= self.long_inflight {
            // What is in flight is held down: the bandwidth cannot grow.
            self.reset_full(self.last.rate);
            return false;
        }
        self.is_full_now
    }

    fn adapt_long_term(&mut self, sample: &Sample, news: &Delivered, is_window_limited: bool) {
        if self.probe_ends && self.round_starts {
            // All that was sent in the probe has been answered (as Linux's later versions; the draft does not say).
            (self.probe_ends, self.is_probed) = (false, false);
            if self.phase.probes_bandwidth() && !sample.is_limited {
                self.max_bandwidth.advance();
            }
        }
        if is_too_much(sample.lost, sample.in_flight, news.has_sack) {
            return;
        }
        if self.long_inflight == INFINITE {
            return;
        }
        self.long_inflight = self.long_inflight.max(sample.in_flight.into());
        if self.phase == Phase::Up {
            self.raise_long_term(news.bytes, is_window_limited);
        }
    }

    fn raise_slope(&mut self) {
        let growth = u64::from(self.mss) << self.up_rounds;
        self.up_rounds = (self.up_rounds + 1).min(30);
        self.up_count = (u64::from(self.window) / growth).max(1);
    }

    fn raise_long_term(&mut self, bytes: u32, is_window_limited: bool) {
        if is_window_limited && u64::from(self.window) >= self.long_inflight {
            self.up_acked += u64::from(bytes);
            self.long_inflight += self.up_acked / self.up_count;
            self.up_acked %= self.up_count;
        }
        if self.round_starts {
            self.raise_slope();
        }
    }

    /// Section 5.3.4.3.
    pub(super) fn check_probe_rtt(&mut self, now_us: u64, sample: &Sample, in_flight: u32) {
        let is_due = self.rtt.update(now_us, sample.rtt_us);
        if self.phase != Phase::ProbeRtt && is_due && !self.restarts {
            self.save_window();
            self.phase = Phase::ProbeRtt;
            self.probe_rtt_until_us = None;
            self.probe_ends = true;
            self.start_round();
        }
        if self.phase == Phase::ProbeRtt {
            self.handle_probe_rtt(now_us, in_flight);
        }
        if sample.delivered > 0 {
            self.restarts = false;
        }
    }

    fn handle_probe_rtt(&mut self, now_us: u64, in_flight: u32) {
        // What is sent now says nothing of the path's rate.
        self.delivery.limit(in_flight);
        if self.probe_rtt_until_us.is_none() {
            if u64::from(in_flight) <= self.probe_rtt_window() {
                self.probe_rtt_until_us = Some(now_us + PROBE_RTT_US);
                self.probe_rtt_round_done = false;
                self.start_round();
            }
            return;
        }
        self.probe_rtt_round_done |= self.round_starts;
        if self.probe_rtt_round_done {
            self.check_probe_rtt_done(now_us);
        }
    }

    pub(super) fn check_probe_rtt_done(&mut self, now_us: u64) {
        if self.probe_rtt_until_us.is_none_or(|until| now_us <= until) {
            return;
        }
        self.rtt.probed(now_us);
        self.restore_window();
        // Section 5.3.4.4.
        self.reset_short_term();
        if self.was_full {
            self.start_down(now_us);
            self.phase = Phase::Cruise;
        } else {
            self.phase = Phase::Startup;
        }
    }
}

//! What happens when time has passed: retransmission, loss probes, the persist timer, keep-alive, and the last states.

use crate::congestion::CongestionControl;
use crate::flow::{Flags, State};
use crate::owner::{Act, Failure, Owner};
use crate::recovery::{CongestionState, Recovery};
use crate::shared::{Turn, Verdict};
use crate::time::{Deadline, Micros, Tick, Ticks};

/// RFC 8985 section 7.2's WCDelAckT: how long a peer may delay the acknowledgment of a single segment.
const WORST_DELAYED_ACK: Micros = Micros::new(200_000);
/// What a probe waits besides two round trips: acknowledgments are late by as much on a busy host.
const PROBE_SLACK: Micros = Micros::new(8_000);

/// As often as this nothing has been answered before somebody looks where the peer is.
const UNHEARD: u8 = 2;

impl<O: Owner> Turn<'_, O> {
    /// Runs the timers of the flow that are due.
    pub(crate) fn timers(&mut self) -> Verdict {
        let tick = self.tick();
        if self.flow.ack_at.is_due(tick) {
            self.flow.ack_at = Deadline::NEVER;
            self.flow.flags.set(Flags::ACK_NOW);
            // As tcp_delack_timer_handler() in Linux's net/ipv4/tcp_timer.c: nothing answers, after all.
            self.flow.flags.clear(Flags::PINGPONG);
            self.owner.acted(self.id, Act::DelayedAck);
        }
        if self.flow.retransmit_at.is_due(tick) {
            self.flow.retransmit_at = Deadline::NEVER;
            let verdict = if self.flow.flags.take(Flags::LOSS_PROBE_TIMER) {
                self.flow.flags.set(Flags::LOSS_PROBE_WANTED);
                Verdict::Keep
            } else if self.flow.flags.take(Flags::REORDERING_TIMER) {
                self.reordering_timeout();
                Verdict::Keep
            } else {
                self.retransmission_timeout()
            };
            if verdict != Verdict::Keep {
                return verdict;
            }
        }
        if self.flow.linger_at.is_due(tick) {
            self.flow.linger_at = Deadline::NEVER;
            return self.linger_timeout(tick);
        }
        Verdict::Keep
    }

    /// RFC 5681 section 4.1: a flow that was silent for a timeout begins again slowly.
    #[inline]
    pub(crate) fn restart_after_idle(&mut self) {
        let idle = self.now.moment().since(self.flow.sent_at);
        if self.flow.all_acknowledged()
            && idle > self.flow.rtt.timeout(0)
            && self.shared.config.slow_start_after_idle
        {
            let initial = self.shared.initial_window(&self.flow.tuple, u32::from(self.flow.mss));
            self.flow.congestion.idle(initial, self.now.tick());
        }
    }

    /// Starts the persist timer where nothing is on its way that could bring news of a window that is closed, or too small to use.
    #[inline]
    pub(crate) fn start_persisting(&mut self) {
        let flow = &mut *self.flow;
        if !flow.retransmit_at.is_set() && flow.flight() == 0 && flow.unsent() > 0 && !flow.waits_for_turn() {
            flow.flags.set(Flags::PERSIST);
            let timeout = flow.rtt.timeout(flow.backoff);
            self.flow.retransmit_at = self.deadline_in(timeout);
        }
    }

    /// RFC 6298 section 5.4 to 5.7, and the persist timer.
    fn retransmission_timeout(&mut self) -> Verdict {
        let tick = self.tick();
        let flow = &mut *self.flow;
        let handshake = matches!(flow.state, State::SynSent | State::SynReceived);
        let orphan_probe = flow.flags.has(Flags::PERSIST) && flow.flags.has(Flags::DETACHED);
        let config = &self.shared.config;
        let limit = match flow.state {
            State::SynSent => {
                let own = flow.settings().map_or(0, |settings| settings.syn_retries);
                let retries = if own > 0 { own } else { config.syn_retries };
                syn_retries(retries, config.syn_linear_timeouts)
            }
            State::SynReceived => config.syn_ack_retries,
            _ => config.data_retries,
        };
        let ran = Ticks::from(flow.rtt.timeout(flow.backoff));
        let user_timeout =
            flow.extra.as_mut().and_then(|extra| extra.settings.as_mut()).and_then(|settings| {
                let began = settings.unanswered_since.tick().unwrap_or(tick.ago(ran));
                settings.unanswered_since = Deadline::at(began);
                (settings.user_timeout > Ticks::ZERO).then_some(began.after(settings.user_timeout))
            });
        let over = match user_timeout {
            Some(end) => !tick.is_before(end),
            None => flow.retries >= limit && !flow.flags.has(Flags::PERSIST),
        };
        if over || (orphan_probe && flow.backoff >= self.shared.config.orphan_probes) {
            if !flow.flags.has(Flags::HALF_OPEN) {
                let persists = flow.flags.has(Flags::PERSIST);
                self.owner.acted(self.id, Act::GaveUp { keep_alive: false, persists });
            }
            return self.timed_out();
        }
        if !flow.flags.has(Flags::HALF_OPEN) {
            let persists = flow.flags.has(Flags::PERSIST);
            self.owner.acted(self.id, if persists { Act::Persisted } else { Act::TimedOut { handshake } });
        }
        flow.retries = flow.retries.saturating_add(1);
        if flow.state != State::SynSent || flow.retries > config.syn_linear_timeouts {
            flow.backoff = flow.backoff.saturating_add(1);
        }
        self.look_for_peer();
        if handshake {
            self.flow.flags.set(Flags::SYN_WANTED);
            return Verdict::Keep;
        }
        let flow = &mut *self.flow;
        flow.flags.set(Flags::SEND_WANTED);
        if flow.flags.has(Flags::PERSIST) {
            if flow.send_window == 0 {
                self.shared.counters.window_probes += 1;
                flow.flags.set(Flags::PROBE_WANTED);
            } else {
                flow.flags.set(Flags::FORCE);
            }
            self.flow.retransmit_at = self.deadline_in(self.flow.rtt.timeout(self.flow.backoff));
        } else {
            self.shared.counters.timeouts += 1;
            let first = flow.retries == 1;
            let (una, next, flight) = (flow.send_una, flow.send_next, flow.flight());
            let lost = flow.recovery().map_or(0, Recovery::lost);
            let recovery = flow.recovery_or_new(self.shared.config.bounds());
            recovery.timed_out(una, next, first);
            let lost = recovery.lost().saturating_sub(lost);
            flow.congestion.timeout(first, flight, u32::from(flow.mss), tick);
            if let Some(mut bbr) = flow.congestion.bbr_mut() {
                bbr.lost_to_timeout(lost, self.now);
            }
            flow.flags.clear(Flags::TIMED);
            self.suspect_path();
            self.start_retransmission();
        }
        if let Some(end) = user_timeout {
            self.flow.retransmit_at = self.flow.retransmit_at.earlier(Deadline::at(end));
        }
        Verdict::Keep
    }

    /// What is sent may go to where the peer no longer is (RFC 1122 section 3.3.1.4): asks where it is, and goes by what was known of that
    /// when it asked the last time.
    fn look_for_peer(&mut self) {
        let (retries, tuple) = (self.flow.retries, self.flow.tuple);
        let remote = tuple.remote.ip();
        // A SYN may have had a false source, and what those make us send is not worth a question.
        if retries < UNHEARD || self.shared.config.loopback || self.flow.flags.has(Flags::HALF_OPEN) {
            return;
        }
        if retries > UNHEARD
            && let Some(mac) = self.shared.neighbors.find(&self.shared.config, remote)
        {
            self.flow.next_hop = mac;
        }
        if self.shared.config.alone {
            self.shared.ask_again(self.now, tuple.local.ip(), remote);
        } else {
            self.owner.unheard(remote);
        }
    }

    /// The peer has been silent for too long: what ICMP said of the path says more, if it said something (tcp_write_err() in
    /// Linux's net/ipv4/tcp_timer.c).
    fn timed_out(&self) -> Verdict {
        let why = self.flow.extra.as_ref().and_then(|extra| extra.soft_error);
        Verdict::End(Some(why.map_or(Failure::TimedOut, Failure::Unreachable)))
    }

    fn linger_timeout(&mut self, tick: Tick) -> Verdict {
        match self.flow.state {
            State::TimeWait => Verdict::End(None),
            State::FinWait2 if self.flow.flags.has(Flags::DETACHED) => Verdict::End(None),
            State::Established | State::CloseWait if self.flow.flags.has(Flags::KEEP_ALIVE) => {
                let Some(settings) = self.flow.settings().copied() else { return Verdict::Keep };
                if !self.flow.all_acknowledged() {
                    // The retransmission timer watches.
                    self.flow.restart_keep_alive(tick);
                    return Verdict::Keep;
                }
                if self.flow.retries >= settings.keep_alive.probes {
                    self.owner.acted(self.id, Act::GaveUp { keep_alive: true, persists: false });
                    return self.timed_out();
                }
                self.flow.retries += 1;
                self.look_for_peer();
                self.shared.counters.keep_alive_probes += 1;
                self.owner.acted(self.id, Act::Probed);
                self.flow.flags.set(Flags::PROBE_WANTED);
                self.flow.linger_at = Deadline::at(tick.after(settings.keep_alive.interval));
                Verdict::Keep
            }
            _ => Verdict::Keep,
        }
    }

    /// RFC 6298 section 5.1: the timer of what is in flight, as a probe timer where one may run.
    pub(crate) fn start_retransmission(&mut self) {
        if !self.start_probe() {
            self.flow.flags.clear(Flags::LOSS_PROBE_TIMER);
            self.flow.retransmit_at = self.deadline_in(self.flow.rtt.timeout(self.flow.backoff));
        }
    }

    /// RFC 8985 section 7.2: starts the probe timer anew. False if none may run.
    pub(crate) fn start_probe(&mut self) -> bool {
        let flow = &*self.flow;
        let smoothed = flow.rtt.smoothed();
        if !self.shared.config.loss_probes
            || !flow.flags.has(Flags::SACK)
            || flow.backoff > 0
            || smoothed == Micros::ZERO
        {
            return false;
        }
        let calm = flow.recovery().is_none_or(|recovery| {
            recovery.state() == CongestionState::Open && !recovery.is_probing() && recovery.sacked() == 0
        });
        let single = flow.flight() <= u32::from(flow.mss);
        let slack = if single { WORST_DELAYED_ACK } else { PROBE_SLACK };
        // Not later than the retransmission timer, in whose place it then runs.
        let probe = smoothed.saturating_add(smoothed).saturating_add(slack).min(flow.rtt.timeout(0));
        if !calm {
            return false;
        }
        self.flow.flags.set(Flags::LOSS_PROBE_TIMER);
        self.flow.retransmit_at = self.deadline_in(probe);
        true
    }
}

/// How often a SYN goes again: `retries` times more than `linear`, but not once so much time has passed that `retries` would have
/// been used up without those (tcp_write_timeout() and retransmits_timed_out() in Linux's net/ipv4/tcp_timer.c).
fn syn_retries(retries: u8, linear: u8) -> u8 {
    let doublings = |times: u32| 1_u64 << times.min(60);
    let most = retries.saturating_add(linear);
    let (retries, linear) = (u32::from(retries), u32::from(linear));
    let end_s = doublings(retries + 1) - 1;
    // When the timer runs out for the nth time.
    let time_s = |timeout: u32| match timeout.checked_sub(linear + 1) {
        None => u64::from(timeout),
        Some(more) => u64::from(linear) + doublings(more + 1) - 1,
    };
    (0..most).find(|&done| time_s(u32::from(done) + 1) >= end_s).unwrap_or(most)
}

#[cfg(test)]
mod tests {
    use super::syn_retries;

    #[test]
    fn a_syn_goes_again_as_often_as_a_kernel_was_seen_to_send_it() {
        // net.ipv4.tcp_syn_retries and tcp_syn_linear_timeouts of Linux 6.18.
        for (retries, linear, seen) in
            [(1, 0, 1), (2, 0, 2), (1, 1, 2), (1, 2, 2), (2, 2, 4), (2, 4, 5), (6, 4, 10), (6, 0, 6)]
        {
            assert_eq!(syn_retries(retries, linear), seen, "{retries} {linear}");
        }
        assert_eq!(syn_retries(255, 255), 255);
        assert_eq!(syn_retries(0, 4), 0);
    }
}

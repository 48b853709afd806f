//! What an acknowledgment means for what was sent: windows, losses and their repair.

use overfly_wire::tcp::Flags as TcpFlags;

use crate::congestion::{Ack, CongestionControl, Newest};
use crate::flow::{Flags, State};
use crate::owner::{Act, Event, Owner};
use crate::receive::Arrival;
use crate::recovery::{CongestionState, Delivered, Losses, RANGE_BYTES, Recovery};
use crate::sequence::{Sequence, at_or_before, before};
use crate::shared::{Turn, Verdict};
use crate::time::{Deadline, Micros};

/// An acknowledgment that needs a closer look.
#[derive(Clone, Copy)]
struct News {
    /// SND.UNA before it.
    una: Sequence,
    /// FlightSize before it (RFC 5681 section 2).
    flight: u32,
    /// It is a duplicate as RFC 5681 section 2 has it.
    duplicate: bool,
    /// It echoes an ECN mark.
    echo: bool,
    /// It has measured a round trip already.
    sampled: bool,
}

impl<O: Owner> Turn<'_, O> {
    /// The acknowledgment and the window of a segment. A verdict, if the flow does not go on.
    pub(crate) fn acknowledge(&mut self, arrival: &Arrival<'_>) -> Option<Verdict> {
        let segment = &arrival.segment;
        let acknowledgment = arrival.acknowledgment();
        // The answer to a SYN with data: its window is not scaled (RFC 7323 section 2.2), its ECE agrees to ECN (RFC 3168
        // section 6.1.1).
        let answer = segment.flags().contains(TcpFlags::SYN);
        let window = u32::from(segment.window()) << if answer { 0 } else { self.flow.send_shift };
        let flow = &mut *self.flow;
        let echo = flow.flags.has(Flags::ECN) && segment.flags().contains(TcpFlags::ECE) && !answer;
        let sacks = flow.flags.has(Flags::SACK) && !arrival.options.sack.is_empty();
        let advance = before(flow.send_una, acknowledgment);
        let troubled = sacks || echo || flow.recovery().is_some();
        // RFC 5681 section 2: what makes an acknowledgment a duplicate.
        let duplicate = acknowledgment == flow.send_una
            && segment.payload().is_empty()
            && !segment.flags().contains(TcpFlags::FIN)
            && !flow.all_acknowledged()
            && window == flow.send_window;
        if duplicate {
            self.shared.counters.duplicate_acks += 1;
            self.owner.acted(self.id, Act::DuplicateAck);
        }

        let before_una = flow.send_una;
        let flight = flow.flight();
        let mut sample = Micros::ZERO;
        let mut fin_acknowledged = flow.state == State::FinWait2;
        if advance {
            let acked = acknowledgment.since(flow.send_una);
            fin_acknowledged = flow.state.fin_was_sent() && acknowledgment == flow.data_end() + 1;
            let data = acked - u32::from(fin_acknowledged);
            flow.una_offset += u64::from(data);
            flow.send_una = acknowledgment;
            flow.retries = 0;
            flow.backoff = 0;
            flow.flags.clear_all(&[Flags::PERSIST, Flags::LOSS_PROBE_WANTED]);
            if let Some(extra) = &mut flow.extra {
                // The path carries something after all. Whoever set it made the box, which goes when it is next trimmed.
                extra.soft_error = None;
            }
            if flow.flags.has(Flags::TIMED) && at_or_before(flow.timed_sequence, acknowledgment) {
                flow.flags.clear(Flags::TIMED);
                sample = self.now.moment().since(flow.timed_at).max(Micros::new(1));
                flow.rtt.sample(sample);
                self.owner.acted(self.id, Act::Measured);
            }
            self.owner.acted(self.id, Act::Acked { bytes: data, fin: fin_acknowledged });
            flow.flags.set(Flags::SEND_WANTED);
            if data > 0 && !flow.flags.has(Flags::RELEASED) {
                self.owner.event(self.id, Event::Acknowledged { offset: flow.una_offset });
            }
        }
        let mut look_again = None;
        if troubled || (duplicate && !self.flow.flags.has(Flags::SACK)) {
            let news = News { una: before_una, flight, duplicate, echo, sampled: sample > Micros::ZERO };
            look_again = self.repair(arrival, news);
        } else if advance {
            let acked = acknowledgment.since(before_una);
            if self.flow.congestion.bbr().is_some() {
                self.model_delivery(acked, Newest::InOrder);
            } else {
                let ack = self.ack(acked, flight, sample);
                self.flow.congestion.acknowledged(&ack);
            }
        }
        if advance {
            self.restart_retransmission();
            if self.flow.extra.is_some() {
                self.trust_path(acknowledgment.since(before_una));
            }
        }
        if look_again.is_some() {
            self.watch(look_again);
        } else if troubled && self.flow.flags.has(Flags::LOSS_PROBE_TIMER) {
            // RFC 8985 section 7.2: no probe while there are holes; the retransmission timer if so.
            self.start_retransmission();
        }
        self.update_window(arrival, window, advance);
        if fin_acknowledged { self.fin_acknowledged() } else { None }
    }

    /// What congestion control wants to know of an acknowledgment.
    fn ack(&self, acked: u32, flight: u32, sample: Micros) -> Ack {
        Ack {
            acked,
            flight,
            mss: u32::from(self.flow.mss),
            now: self.tick(),
            rtt_us: self.flow.rtt.smoothed().number(),
            sample_us: sample.number(),
        }
    }

    /// An acknowledgment while something is wrong, or that says so.
    /// Returns after what time to look for losses again.
    fn repair(&mut self, arrival: &Arrival<'_>, news: News) -> Option<Micros> {
        self.begin_board(news.una);
        let una = self.flow.send_una;
        let recovery = self.flow.recovery()?;
        let was_reducing = recovery.is_reducing();
        let was_lossy = recovery.state() == CongestionState::Loss;
        let delivered = self.take_delivered(arrival, news)?;
        self.undo_if_spurious(arrival, news, delivered)?;
        let recovery = self.flow.recovery_mut()?;
        let repaired = recovery.probe_repaired(una, delivered.duplicate, news.duplicate);
        let losses = self.find_losses(news)?;
        self.end_recovery(was_lossy)?;
        self.react(losses.bytes > 0, news.echo, repaired)?;
        if self.flow.congestion.bbr().is_some() {
            self.model_losses(&losses);
            let newest = self.flow.recovery_mut().and_then(Recovery::take_latest);
            self.model_delivery(delivered.bytes, newest.map_or(Newest::Unknown, Newest::Of));
        } else {
            self.govern(delivered.bytes, news.una, news.flight, was_reducing);
        }
        if let Some(recovery) = self.flow.recovery_mut() {
            recovery.note_disorder();
        }
        self.flow.flags.set(Flags::SEND_WANTED);
        self.shared.sack_ranges -= self.flow.trim();
        losses.again_after
    }

    /// Makes the scoreboard if there is none. It begins at `una`, where SND.UNA was: what the acknowledgment in hand covers must
    /// leave it as it came.
    fn begin_board(&mut self, una: Sequence) {
        if self.flow.recovery().is_none() {
            let new_una = core::mem::replace(&mut self.flow.send_una, una);
            self.flow.recovery_or_new(self.shared.config.bounds());
            self.flow.send_una = new_una;
        }
    }

    /// RFC 8985 section 6.2, steps 1 to 3: what the acknowledgment says has arrived.
    fn take_delivered(&mut self, arrival: &Arrival<'_>, news: News) -> Option<Delivered> {
        let now = self.now.moment();
        let (min_rtt, mss) = (self.flow.rtt.least(), u32::from(self.flow.mss));
        let (una, next, flight) = (self.flow.send_una, self.flow.send_next, self.flow.flight());
        let has_sack = self.flow.flags.has(Flags::SACK);
        let recovery = self.flow.recovery_mut()?;
        let mut delivered = recovery.acknowledged(news.una, una, now, min_rtt);
        if has_sack {
            let budget = self.shared.config.scoreboard_budget / RANGE_BYTES;
            recovery.allow(budget.saturating_sub(self.shared.sack_ranges));
            let sacked = recovery.sacks(arrival.options.sack.as_slice(), una, next, now, min_rtt);
            delivered = Delivered {
                bytes: delivered.bytes + sacked.bytes,
                duplicate: sacked.duplicate,
                // What is acknowledged cumulatively measures the path; a SACK may be a lie.
                rtt: delivered.rtt,
            };
        } else if news.duplicate {
            delivered.bytes += recovery.duplicate_without_sack(flight, mss);
        }
        self.shared.sack_ranges -= recovery.counted();
        self.shared.sack_ranges += recovery.count();
        self.shared.counters.duplicates_reported += u64::from(delivered.duplicate);
        if let Some(rtt) = delivered.rtt
            && !news.sampled
        {
            self.flow.rtt.sample(rtt);
        }
        Some(delivered)
    }

    /// RFC 4015 section 3.2, RFC 9438 section 4.9: takes a reduction back for which there was no reason.
    fn undo_if_spurious(&mut self, arrival: &Arrival<'_>, news: News, delivered: Delivered) -> Option<()> {
        let advanced = news.una != self.flow.send_una;
        let recovery = self.flow.recovery_mut()?;
        let by_echo = arrival.options.timestamps.is_some_and(|timestamps| {
            advanced
                && recovery.state() >= CongestionState::Recovery
                && recovery.echo_shows_spurious(timestamps.echo)
        });
        if by_echo || (delivered.duplicate && recovery.was_spurious()) {
            recovery.undo();
            self.shared.counters.spurious_recoveries += 1;
            self.flow.congestion.undo();
        }
        Some(())
    }

    /// Which segments are lost: by RACK, or by the rules of a peer without SACK.
    fn find_losses(&mut self, news: News) -> Option<Losses> {
        let (now, rtt) = (self.now.moment(), self.flow.rtt);
        let (una, mss) = (self.flow.send_una, u32::from(self.flow.mss));
        let has_sack = self.flow.flags.has(Flags::SACK);
        let recovery = self.flow.recovery_mut()?;
        let mut losses = if has_sack {
            recovery.detect(una, now, &rtt, mss)
        } else {
            // RFC 6582 section 3.2 step 3: a partial acknowledgment points at the next hole.
            let partial =
                recovery.state() == CongestionState::Recovery && news.una != una && !recovery.may_end(una);
            let third = news.duplicate && recovery.duplicates_mean_loss(mss) && recovery.is_new_loss(una - 1);
            let bytes = if partial || third { recovery.lose_first(una, mss) } else { 0 };
            Losses { bytes, ranges: u32::from(bytes > 0), ..Losses::default() }
        };
        self.shared.counters.lost_bytes += u64::from(losses.bytes);
        if losses.bytes > 0 && self.lost_only_a_probe() {
            losses.bytes = 0;
        }
        Some(losses)
    }

    /// Ends recovery once all that was in flight when it began has arrived; `was_lossy`: it began with a timeout.
    fn end_recovery(&mut self, was_lossy: bool) -> Option<()> {
        let una = self.flow.send_una;
        let recovery = self.flow.recovery_mut()?;
        let reduced = recovery.is_reducing();
        if (reduced || was_lossy) && recovery.state() != CongestionState::Open && recovery.may_end(una) {
            recovery.end();
            if reduced || self.flow.congestion.bbr().is_some() {
                self.flow.congestion.recovered();
            }
        }
        Some(())
    }

    /// Reduces the window for a new loss, for an echoed mark, or for a loss that only a probe `repaired`.
    fn react(&mut self, lost: bool, echo: bool, repaired: bool) -> Option<()> {
        let (tick, mss) = (self.tick(), u32::from(self.flow.mss));
        let (flight, next) = (self.flow.flight(), self.flow.send_next);
        let recovery = self.flow.recovery_mut()?;
        if lost && recovery.state() < CongestionState::Recovery {
            self.recover();
        } else if (echo || repaired) && recovery.state() < CongestionState::Reduced {
            // Once a window (RFC 3168 section 6.1.2); a loss that only a probe repaired is one too (RFC 8985 section 7.4.2).
            recovery.enter(CongestionState::Reduced, flight, next);
            if echo {
                self.shared.counters.ecn_reductions += 1;
                self.flow.flags.set(Flags::ECN_REDUCED);
            } else {
                self.shared.counters.loss_probes_repaired += 1;
            }
            match self.flow.congestion.bbr_mut() {
                Some(mut bbr) if echo => bbr.marked(self.now),
                Some(mut bbr) => {
                    bbr.lost(&Losses { bytes: mss, ranges: 1, ..Losses::default() }, true, self.now);
                }
                None => self.flow.congestion.congestion_experienced(flight, mss, tick),
            }
        }
        Some(())
    }

    /// Fast recovery begins: the window is reduced (RFC 5681 section 3.2, RFC 6582 section 3.2, RFC 8985 section 8).
    fn recover(&mut self) {
        let (flight, next) = (self.flow.flight(), self.flow.send_next);
        let tick = self.tick();
        let Some(recovery) = self.flow.recovery_mut() else { return };
        let reduced_already = recovery.state() == CongestionState::Reduced;
        recovery.enter(CongestionState::Recovery, flight, next);
        self.shared.counters.fast_retransmits += 1;
        if !reduced_already {
            self.flow.congestion.loss(flight, u32::from(self.flow.mss), tick);
        }
    }

    /// RFC 8985 section 6.3: segments that were a little late have had their time.
    pub(crate) fn reordering_timeout(&mut self) {
        let (now, rtt) = (self.now.moment(), self.flow.rtt);
        let (una, mss) = (self.flow.send_una, u32::from(self.flow.mss));
        let Some(recovery) = self.flow.recovery_mut() else {
            // The reduction was undone meanwhile.
            self.watch(None);
            return;
        };
        let losses = recovery.detect(una, now, &rtt, mss);
        let begins = losses.bytes > 0 && recovery.state() < CongestionState::Recovery;
        self.shared.counters.lost_bytes += u64::from(losses.bytes);
        if begins {
            self.recover();
            let sacked = self.flow.recovery().map_or(0, Recovery::sacked);
            // What the peer has already has left the network, and let nothing go yet that was waited for (RFC 6937 section 3.1's
            // DeliveredData): the holes need not wait for acknowledgments of each other.
            if self.flow.congestion.bbr().is_none() {
                self.govern(sacked, una, 0, false);
            }
        }
        self.model_losses(&losses);
        self.flow.flags.set(Flags::SEND_WANTED);
        self.watch(losses.again_after);
    }

    /// Sets the timer that looks for losses again, or the retransmission timer.
    fn watch(&mut self, after: Option<Micros>) {
        match after {
            Some(after) => {
                self.flow.flags.clear(Flags::LOSS_PROBE_TIMER);
                self.flow.flags.set(Flags::REORDERING_TIMER);
                self.flow.retransmit_at = self.deadline_in(after);
            }
            None if !self.flow.retransmit_at.is_set() && !self.flow.all_acknowledged() => {
                self.start_retransmission();
            }
            None => {}
        }
    }

    /// How the window follows an acknowledgment that delivered so many bytes.
    fn govern(&mut self, delivered: u32, una: Sequence, flight: u32, was_reducing: bool) {
        let mss = u32::from(self.flow.mss);
        let threshold = self.flow.congestion.threshold();
        let new_flight = self.flow.flight();
        let acked = self.flow.send_una.since(una);
        let Some(recovery) = self.flow.recovery_mut() else { return };
        if recovery.is_reducing() {
            let window = recovery.proportional_window(delivered, recovery.pipe(new_flight), threshold, mss);
            self.flow.congestion.set_window(window.max(mss));
        } else if acked > 0 && !was_reducing {
            let ack = self.ack(acked, flight, Micros::ZERO);
            self.flow.congestion.acknowledged(&ack);
        }
    }

    /// RFC 9293 section 3.10.7.4: only newer segments move the window, and as in Linux, one at the same place that opens it.
    fn update_window(&mut self, arrival: &Arrival<'_>, window: u32, advance: bool) {
        let (flow, sequence) = (&mut *self.flow, arrival.sequence());
        let newer = advance
            || before(flow.window_sequence, sequence)
            || (flow.window_sequence == sequence && window > flow.send_window)
            || (flow.window_sequence == sequence && arrival.acknowledgment() == flow.send_una);
        if !newer {
            return;
        }
        if window > flow.send_window {
            flow.flags.set(Flags::SEND_WANTED);
        }
        flow.send_window = window;
        flow.send_window_max = flow.send_window_max.max(window);
        flow.window_sequence = sequence;
        if window > 0 && flow.flags.take(Flags::PERSIST) {
            flow.backoff = 0;
            flow.flags.set(Flags::SEND_WANTED);
            self.restart_retransmission();
        }
    }

    /// RFC 6298 sections 5.2 and 5.3; RFC 8985 section 7.2.
    pub(crate) fn restart_retransmission(&mut self) {
        self.flow.flags.clear_all(&[Flags::LOSS_PROBE_TIMER, Flags::REORDERING_TIMER]);
        if let Some(settings) = self.flow.extra.as_mut().and_then(|extra| extra.settings.as_mut()) {
            settings.unanswered_since = Deadline::NEVER;
        }
        self.flow.retransmit_at = Deadline::NEVER;
        if !self.flow.all_acknowledged() {
            self.start_retransmission();
        }
    }

    fn fin_acknowledged(&mut self) -> Option<Verdict> {
        match self.flow.state {
            State::FinWait1 => {
                self.flow.state = State::FinWait2;
                if self.flow.flags.has(Flags::DETACHED) {
                    self.flow.linger_at = self.deadline_in(self.shared.config.fin_timeout);
                }
                None
            }
            State::Closing => Some(Verdict::TimeWait),
            State::LastAck => Some(Verdict::End(None)),
            _ => None,
        }
    }
}

//! A segment for a connection, in the order of RFC 9293 section 3.10.7.4, and its text.

use overfly_wire::tcp::Flags as TcpFlags;

use crate::autotune::Autotune;
use crate::flow::{CHALLENGE_TICKS, Flags, State};
use crate::owner::{Act, Event, Failure, Owner, REFUSED, UNWANTED};
use crate::reassembly::{Held, Reassembly};
use crate::receive::Arrival;
use crate::sequence::{Sequence, at_or_before, before, distance, later};
use crate::shared::{NO_LISTENER, Turn, Verdict};
use crate::time::{Deadline, Ticks, is_older};

/// RFC 7323 section 5.5: older than this, TS.Recent says nothing.
const TIMESTAMP_VALID: Ticks = Ticks::from_micros(24 * 24 * 3_600_000_000);

/// Segments of a connection's beginning that are acknowledged at once (TCP_MAX_QUICKACKS in Linux's include/net/tcp.h).
const QUICK_SEGMENTS: u32 = 16;

/// An echo that is younger than this was read lately.
const ECHO_FRESH: Ticks = Ticks::from_micros(16_000_000);

impl<O: Owner> Turn<'_, O> {
    /// One segment for a flow.
    pub(crate) fn segment_arrives(&mut self, arrival: &Arrival<'_>) -> Verdict {
        match self.flow.state {
            State::SynSent => self.syn_sent(arrival),
            State::TimeWait if self.may_give_way(arrival) => {
                self.shared.counters.time_wait_reuses += 1;
                Verdict::GiveWay
            }
            _ => self.synchronized(arrival),
        }
    }

    /// RFC 6191 section 2, RFC 9293 section 3.10.7.4: a SYN that cannot be of the old connection opens a new one.
    fn may_give_way(&self, arrival: &Arrival<'_>) -> bool {
        let flow = &self.flow;
        let flags = arrival.segment.flags();
        let is_syn =
            flags.contains(TcpFlags::SYN) && !flags.intersects(TcpFlags::ACK | TcpFlags::RST | TcpFlags::FIN);
        let newer = match arrival.options.timestamps {
            Some(timestamps) if flow.flags.has(Flags::TIMESTAMPS) => {
                is_older(flow.timestamp_recent, timestamps.value)
                    || (timestamps.value == flow.timestamp_recent
                        && before(flow.receive_next, arrival.sequence()))
            }
            _ => before(flow.receive_next, arrival.sequence()),
        };
        is_syn && newer && self.shared.listeners.find(arrival.tuple.local()).is_some()
    }

    /// RFC 9293 section 3.10.7.4, in its order.
    fn synchronized(&mut self, arrival: &Arrival<'_>) -> Verdict {
        let segment = &arrival.segment;
        let flags = segment.flags();
        let sequence = arrival.sequence();
        let length = arrival.length();
        let end = sequence + length;
        let tick = self.tick();
        let flow = &mut *self.flow;

        // RFC 7323 section 3.2: once agreed on, every segment but RST carries timestamps.
        if arrival.options.timestamps.is_none()
            && flow.flags.has(Flags::TIMESTAMPS)
            && !flags.contains(TcpFlags::RST)
        {
            self.shared.counters.drop_no_timestamps += 1;
            return Verdict::Keep;
        }
        // RFC 7323 section 5.3 R1: PAWS comes first.
        if let Some(timestamps) = arrival.options.timestamps
            && flow.flags.has(Flags::TIMESTAMPS)
            && !flags.contains(TcpFlags::RST)
            && is_older(timestamps.value, flow.timestamp_recent)
            && tick.since(flow.timestamp_recent_at) < TIMESTAMP_VALID
        {
            self.shared.counters.drop_paws += 1;
            self.report_old(sequence, end);
            self.challenge();
            return Verdict::Keep;
        }

        // First: the sequence number. The test is Linux's: an acknowledgment at the right edge is good.
        if before(end, flow.receive_next) || before(flow.receive_edge, sequence) {
            self.shared.counters.drop_window += 1;
            if flow.state == State::SynReceived
                && flags.contains(TcpFlags::SYN)
                && sequence == flow.window_sequence
            {
                flow.flags.set(Flags::SYN_WANTED);
            } else if !flags.contains(TcpFlags::RST) {
                self.beside_window(arrival, sequence, end);
            }
            return Verdict::Keep;
        }

        // Second: RST (RFC 5961 section 3.2: only the exact sequence number ends the connection).
        if flags.contains(TcpFlags::RST) {
            if flow.state == State::TimeWait {
                // RFC 9293 has it end; RFC 1337 warns of strays, and RFC 5961's exact number is what keeps them out. A peer that
                // uses the tuple again with older timestamps (its clock began anew) says so by this RST alone.
                return if sequence == flow.receive_next { Verdict::End(None) } else { Verdict::Keep };
            }
            if sequence == flow.receive_next {
                self.shared.counters.resets_received += 1;
                return Verdict::End(Some(match flow.state {
                    State::SynReceived if flow.listener == NO_LISTENER => Failure::Refused,
                    _ => Failure::Reset,
                }));
            }
            self.challenge();
            return Verdict::Keep;
        }

        // Fourth: SYN. The same SYN again asks for the same answer; others get a challenge (RFC 5961 section 4.2).
        if flags.contains(TcpFlags::SYN) {
            let same = flow.state == State::SynReceived && sequence == flow.window_sequence;
            if same && flow.listener == NO_LISTENER && flags.contains(TcpFlags::ACK) {
                return self.both_opened(arrival);
            }
            if same {
                flow.flags.set(Flags::SYN_WANTED);
            } else {
                self.challenge();
            }
            return Verdict::Keep;
        }

        // Fifth: ACK.
        if !flags.contains(TcpFlags::ACK) {
            self.shared.counters.drop_bad_ack += 1;
            return Verdict::Keep;
        }
        let acknowledgment = arrival.acknowledgment();
        if flow.state == State::SynReceived {
            if !before(flow.send_una, acknowledgment) || before(flow.send_next, acknowledgment) {
                self.shared.counters.drop_bad_ack += 1;
                self.shared.answer_with_reset(arrival);
                return Verdict::Keep;
            }
            if let Some(verdict) = self.handshake_done() {
                return verdict;
            }
        }
        let flow = &mut *self.flow;
        if before(flow.send_next, acknowledgment)
            // RFC 5961 section 5.2: too old to be of this connection's recent past.
            || before(acknowledgment, flow.send_una - flow.send_window_max)
        {
            self.shared.counters.drop_bad_ack += 1;
            self.challenge();
            return Verdict::Keep;
        }
        if let Some(timestamps) = arrival.options.timestamps
            && flow.flags.has(Flags::TIMESTAMPS)
            && at_or_before(sequence, flow.acked_next)
            && !is_older(timestamps.value, flow.timestamp_recent)
        {
            // RFC 7323 section 4.3: only a segment that covers the last ACK sent moves TS.Recent.
            flow.timestamp_recent = timestamps.value;
            flow.timestamp_recent_at = tick;
        }
        if flow.retries > 0 {
            // What was sent does not arrive: the way back may have changed (a gateway that failed over).
            flow.next_hop = arrival.next_hop;
        }
        if flow.flags.has(Flags::PERSIST) || flow.all_acknowledged() {
            // The probe was answered: the peer lives (RFC 9293 section 3.8.6.1).
            flow.retries = 0;
        }
        if flow.flags.has(Flags::KEEP_ALIVE) && matches!(flow.state, State::Established | State::CloseWait) {
            flow.restart_keep_alive(tick);
        }
        if flow.flags.has(Flags::ECN) {
            self.note_marks(arrival, length);
        }

        if let Some(verdict) = self.acknowledge(arrival) {
            return verdict;
        }
        // Sixth: URG, for an owner that can do something about it.
        if flags.contains(TcpFlags::URG) && length > 0 && self.owner.urgent(self.id) {
            self.shared.counters.drop_urgent += 1;
            return Verdict::Keep;
        }
        // Seventh and eighth: the text, then FIN. Urgent data is in-band (RFC 6093 section 6).
        if length > 0 {
            return self.text(arrival, sequence);
        }
        Verdict::Keep
    }

    /// A segment without anything that is wanted, which is answered: it says that ours did not arrive, or asks what the window is.
    fn beside_window(&mut self, arrival: &Arrival<'_>, sequence: Sequence, end: Sequence) {
        if sequence != end && !arrival.segment.flags().contains(TcpFlags::SYN) {
            self.flow.flags.set(Flags::ACK_NOW);
            self.flow.flags.clear(Flags::PINGPONG);
            self.report_old(sequence, end);
            self.asked_again(arrival);
        } else {
            self.probed(arrival);
            self.challenge();
        }
    }

    /// The peer sends what it sent before, because our acknowledgments do not arrive, perhaps: then they go where this came from.
    /// Only if it echoes what it can but have read in a segment of ours, so that nobody beside the path moves a flow by guessing.
    fn asked_again(&mut self, arrival: &Arrival<'_>) {
        if arrival.next_hop == self.flow.next_hop || !self.flow.flags.has(Flags::TIMESTAMPS) {
            return;
        }
        let clock = self.shared.clock(self.now.tick(), self.flow);
        let flow = &mut *self.flow;
        let acknowledgment = arrival.acknowledgment();
        let is_fresh = arrival
            .options
            .timestamps
            .is_some_and(|timestamps| Ticks(clock.wrapping_sub(timestamps.echo)) < ECHO_FRESH);
        let knows_us = at_or_before(acknowledgment, flow.send_next)
            && !before(acknowledgment, flow.send_una - flow.send_window_max);
        if is_fresh && knows_us && arrival.segment.flags().contains(TcpFlags::ACK) {
            flow.next_hop = arrival.next_hop;
        }
    }

    /// The peer asks whether the window is open, or whether we live (RFC 9293 section 3.8.4), by an acknowledgment with the number before
    /// the next one: it is answered where the peer is by now. Only the peer knows both numbers.
    fn probed(&mut self, arrival: &Arrival<'_>) {
        let flow = &mut *self.flow;
        let acknowledgment = arrival.acknowledgment();
        let knows_us =
            at_or_before(flow.send_una, acknowledgment) && at_or_before(acknowledgment, flow.send_next);
        if arrival.sequence() + 1 == flow.receive_next
            && knows_us
            && arrival.segment.flags().contains(TcpFlags::ACK)
        {
            flow.next_hop = arrival.next_hop;
        }
    }

    /// The SYN and ACK of a peer that opened at the same time (RFC 9293 section 3.5, figure 7): the handshake is done. Both sent
    /// it, so that neither needs another, but for one that asks again because ours was lost.
    fn both_opened(&mut self, arrival: &Arrival<'_>) -> Verdict {
        let acknowledgment = arrival.acknowledgment();
        let flow = &*self.flow;
        if !before(flow.send_una, acknowledgment) || before(flow.send_next, acknowledgment) {
            self.shared.counters.drop_bad_ack += 1;
            self.shared.answer_with_reset(arrival);
            return Verdict::Keep;
        }
        self.flow.flags.set(Flags::ACK_NOW);
        self.handshake_done().or_else(|| self.acknowledge(arrival)).unwrap_or(Verdict::Keep)
    }

    /// The receiver's half of RFC 3168 section 6.1.3.
    fn note_marks(&mut self, arrival: &Arrival<'_>, length: u32) {
        if arrival.segment.flags().contains(TcpFlags::CWR) {
            self.flow.flags.clear(Flags::ECN_ECHO);
        }
        if arrival.marked && length > 0 {
            self.shared.counters.ecn_marks += 1;
            self.flow.flags.set(Flags::ECN_ECHO);
            self.flow.flags.set(Flags::ACK_NOW);
        }
    }

    /// The text and the FIN that the answer to our SYN brings behind its own SYN (RFC 9293 section 3.10.7.3).
    #[cold]
    pub(crate) fn text_of_answer(&mut self, arrival: &Arrival<'_>) -> Verdict {
        self.text(arrival, arrival.sequence() + 1)
    }

    /// The text and the FIN of an acceptable segment, from `sequence` on.
    fn text(&mut self, arrival: &Arrival<'_>, mut sequence: Sequence) -> Verdict {
        let segment = &arrival.segment;
        let mut data = segment.payload();
        let mut fin = segment.flags().contains(TcpFlags::FIN);
        let flow = &mut *self.flow;

        if !flow.state.may_receive() {
            // The peer's FIN was here: this is an old segment. RFC 9293 section 3.10.7.4 restarts TIME-WAIT for a FIN.
            self.shared.counters.drop_duplicate += 1;
            flow.flags.set(Flags::ACK_NOW);
            return if fin && flow.state == State::TimeWait { Verdict::TimeWait } else { Verdict::Keep };
        }

        let known = distance(sequence, flow.receive_next) as usize;
        if known > 0 {
            flow.flags.set(Flags::ACK_NOW);
            // The peer has waited for an acknowledgment in vain (tcp_enter_quickack_mode() in tcp_data_queue()).
            flow.flags.clear(Flags::PINGPONG);
            let bytes = known.min(data.len());
            let end = sequence + bytes as u32;
            self.report_duplicate(sequence, end);
            self.owner.acted(self.id, Act::Duplicate { bytes: bytes as u32, part: known < data.len() });
            if known >= data.len() + usize::from(fin) {
                self.shared.counters.drop_duplicate += 1;
                self.asked_again(arrival);
                return Verdict::Keep;
            }
            data = &data[known..];
            sequence = self.flow.receive_next;
        }
        let flow = &mut *self.flow;
        let room = distance(sequence, flow.receive_edge) as usize;
        if data.len() > room {
            self.shared.counters.drop_window += 1;
            flow.flags.set(Flags::ACK_NOW);
            self.owner.acted(self.id, Act::AfterWindow { bytes: (data.len() - room) as u32 });
            // A probe of a window may be a byte behind it.
            self.asked_again(arrival);
            data = &data[..room];
            fin = false;
        }
        let flow = &mut *self.flow;
        if !data.is_empty() && flow.flags.has(Flags::DETACHED) {
            // RFC 9293 section 3.6.1: data that nobody will read.
            self.shared.counters.drop_no_owner += 1;
            flow.flags.set(Flags::RESET_WANTED);
            return Verdict::Keep;
        }

        if data.is_empty() && !fin {
            return Verdict::Keep;
        }
        if sequence != flow.receive_next {
            self.hold(sequence, data, fin);
            return Verdict::Keep;
        }
        if !data.is_empty() {
            self.note_echo(arrival);
            if !self.deliver(data) {
                return Verdict::Keep;
            }
            fin |= self.drain();
            self.schedule_ack(segment.flags().contains(TcpFlags::PSH));
        }
        if fin {
            return self.remote_closed();
        }
        Verdict::Keep
    }

    /// False if the owner has no memory for it, or will have none of it: then it never came, nor does the FIN behind it.
    pub(crate) fn deliver(&mut self, data: &[u8]) -> bool {
        let consumed = self.owner.deliver(self.id, data);
        if consumed == REFUSED {
            self.shared.counters.drop_no_memory += 1;
            return false;
        }
        if consumed == UNWANTED {
            // As data behind a close() (tcp_rcv_state_process() in Linux's net/ipv4/tcp_input.c).
            self.shared.counters.drop_no_owner += 1;
            self.flow.flags.set(Flags::DETACHED);
            self.flow.flags.set(Flags::RESET_WANTED);
            return false;
        }
        let consumed = consumed.min(data.len());
        let flow = &mut *self.flow;
        flow.receive_next += data.len() as u32;
        flow.received = flow.received.wrapping_add(data.len() as u32);
        flow.held += (data.len() - consumed) as u32;
        self.shared.counters.rx_bytes += data.len() as u64;
        if flow.received >= flow.receive_limit / 2
            && flow.receive_limit < flow.largest_window(self.shared.config.receive_window)
        {
            self.tune(consumed as u32);
        }
        true
    }

    /// The receiver's round trip, for a flow whose window is being tuned.
    fn note_echo(&mut self, arrival: &Arrival<'_>) {
        let clock = self.shared.clock(self.now.tick(), self.flow);
        if let Some(tuning) = self.flow.extra.as_mut().and_then(|extra| extra.tuning.as_mut())
            && let Some(timestamps) = arrival.options.timestamps
            && timestamps.echo != 0
        {
            tuning.echoed(Ticks(clock.wrapping_sub(timestamps.echo)));
        }
    }

    /// A flow that receives much: its window follows what the owner consumes.
    fn tune(&mut self, consumed: u32) {
        let (now, flow) = (self.now, &mut *self.flow);
        if flow.flags.has(Flags::FIXED_WINDOW) {
            return;
        }
        let largest = flow.largest_window(self.shared.config.receive_window);
        let (next, window, rtt) = (flow.receive_next, flow.receive_limit, flow.rtt.smoothed());
        let tuning =
            flow.extra.get_or_insert_default().tuning.get_or_insert_with(|| Autotune::new(now, window, rtt));
        tuning.received(now, next);
        if tuning.consumed(now, consumed, largest) {
            flow.receive_limit = tuning.window();
        }
    }

    /// As [`Turn::report_duplicate`], for what was dropped unread: a duplicate only if it was delivered before.
    fn report_old(&mut self, left: Sequence, right: Sequence) {
        if at_or_before(right, self.flow.receive_next) {
            self.report_duplicate(left, right);
        }
    }

    /// RFC 2883 section 4: the next acknowledgment says what arrived twice.
    fn report_duplicate(&mut self, left: Sequence, right: Sequence) {
        let reports = self.flow.flags.has(Flags::SACK) && self.shared.config.duplicate_sack;
        if reports && before(left, right) && self.flow.state.is_synchronized() {
            self.flow.extra.get_or_insert_default().duplicate = Some((left, right));
        }
    }

    /// Holds an out-of-order segment, and asks for what is missing with a duplicate ACK (RFC 5681 section 4.2).
    fn hold(&mut self, sequence: Sequence, data: &[u8], fin: bool) {
        self.flow.flags.set(Flags::ACK_NOW);
        let room = self.shared.config.reassembly_budget.saturating_sub(self.shared.reassembly_bytes);
        let end = sequence + data.len() as u32;
        let reassembly =
            self.flow.extra.get_or_insert_default().reassembly.get_or_insert_with(Reassembly::default);
        let most_blocks = self.shared.config.max_reassembly_blocks.into();
        let overlap = reassembly.overlap(sequence, end);
        match reassembly.insert(sequence, data, room, most_blocks) {
            Held::Added { before } => {
                self.shared.counters.out_of_order += 1;
                self.owner.acted(self.id, Act::OutOfOrder { bytes: data.len() as u32 });
                self.shared.reassembly_bytes += reassembly.cost();
                self.shared.reassembly_bytes -= before;
                if let Some((left, right)) = overlap {
                    self.report_duplicate(left, right);
                }
            }
            Held::Known if !data.is_empty() => {
                self.shared.counters.drop_duplicate += 1;
                self.report_duplicate(sequence, end);
                return;
            }
            Held::Known => {}
            Held::Refused => {
                self.shared.counters.drop_reassembly_budget += 1;
                self.flow.trim_reassembly();
                return;
            }
        }
        if fin && let Some(reassembly) = self.flow.reassembly_mut() {
            reassembly.set_fin(end);
        }
    }

    /// Delivers what was held and is now in order. True if the FIN is next.
    fn drain(&mut self) -> bool {
        let Some(held) = self.flow.reassembly_mut() else { return false };
        self.shared.reassembly_bytes -= held.cost();
        // RFC 5681 section 4.2: a segment that fills a gap is acknowledged at once.
        self.flow.flags.set(Flags::ACK_NOW);
        loop {
            let next = self.flow.receive_next;
            let taken = self.flow.reassembly_mut().and_then(|held| held.take(next));
            let Some((data, known)) = taken else { break };
            // What is refused has been reported as held: the peer has it until it is acknowledged (RFC 2018 section 8).
            if known < data.len() && !self.deliver(&data[known..]) {
                break;
            }
        }
        let next = self.flow.receive_next;
        let Some(held) = self.flow.reassembly_mut() else { return false };
        self.shared.reassembly_bytes += held.cost();
        let fin = held.fin_is_at(next);
        if fin {
            // Nothing can be behind the FIN: whatever claims to be is not of this stream.
            self.shared.forget_reassembly(self.flow);
        }
        self.flow.trim_reassembly();
        fin
    }

    /// RFC 9293 section 3.8.6.3, stretched as by a kernel that merges segments before it looks at them: two or more
    /// segments that end with PSH, or many, are acknowledged at once; a burst that seems to go on, after a tick; one
    /// segment, after a while.
    ///
    /// While the exchange is not interactive, its first segments and the end of what the peer writes are acknowledged as soon as
    /// the owner has not answered when it comes back: tcp_incr_quickack() and tcp_cleanup_rbuf() of Linux.
    fn schedule_ack(&mut self, push: bool) {
        let flow = &mut *self.flow;
        let waiting = flow.receive_next.since(flow.acked_next);
        let mss = u32::from(flow.mss);
        let stretch = u32::from(self.shared.config.ack_stretch);
        let several = waiting >= 2 * mss;
        let many = several && waiting >= (stretch * mss).min(flow.receive_limit / 2);
        if flow.flags.has(Flags::QUICK_ACK) || stretch < 2 || many || (several && push) {
            flow.flags.set(Flags::ACK_NOW);
            return;
        }
        let at = if several {
            self.now.tick().after(Ticks::ONE)
        } else {
            self.now.tick().after(Ticks::from(self.shared.config.delayed_ack).max(Ticks::ONE))
        };
        if !flow.flags.has(Flags::PINGPONG)
            && !flow.ack_at.is_set()
            && (push || flow.received < QUICK_SEGMENTS * mss)
            // In SYN-RECEIVED (data of a Fast Open) the answer to the SYN is on its way.
            && flow.state.is_synchronized()
            && self.shared.config.quick_acks
        {
            self.shared.quick.push_back((self.now, self.id.0));
        }
        flow.ack_at = flow.ack_at.earlier(Deadline::at(at));
    }

    /// The peer's FIN is next in order.
    fn remote_closed(&mut self) -> Verdict {
        let flow = &mut *self.flow;
        flow.receive_next += 1;
        flow.receive_edge = later(flow.receive_edge, flow.receive_next);
        flow.flags.set(Flags::ACK_NOW);
        if !flow.flags.has(Flags::DETACHED) {
            self.owner.event(self.id, Event::RemoteClosed);
        }
        match self.flow.state {
            State::Established => {
                self.flow.state = State::CloseWait;
                Verdict::Keep
            }
            State::FinWait1 => {
                self.flow.state = State::Closing;
                Verdict::Keep
            }
            _ => Verdict::TimeWait,
        }
    }

    /// Answers what looks wrong with an ACK (RFC 5961), within the rate limits: of the engine, and of the flow, so that two ends
    /// that challenge each other fall silent.
    pub(crate) fn challenge(&mut self) {
        let limit = self.shared.config.challenge_acks_per_s;
        let tick = self.tick();
        let period = (tick.0 / CHALLENGE_TICKS) as u8;
        if self.flow.challenged == period {
            return;
        }
        self.flow.challenged = period;
        // In TIME-WAIT it is RFC 9293's plain answer to a SYN that cannot be told from an old one. A shared limit would make clients
        // wait whose clock began anew, and nobody learns anything from it.
        if self.flow.state == State::TimeWait
            || self.shared.challenges.allow(tick, limit, &self.shared.secret)
        {
            self.shared.counters.challenge_acks += 1;
            self.flow.flags.set(Flags::ACK_NOW);
        }
    }
}

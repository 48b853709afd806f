//! What a flow sends in its turn.

use overfly_wire::checksum::Sum;
use overfly_wire::tcp::{Flags as TcpFlags, Header, Options, Sacks};
use overfly_wire::{FrameSink, Promised, Unfinished, ip, tcp};

use crate::congestion::CongestionControl;
use crate::flow::{Flags, State};
use crate::headers::{Full, Lengths, headers_len};
use crate::next_segment::next_segment;
use crate::owner::{Act, FlowId, Owner};
use crate::sequence::{Sequence, before, later};
use crate::shared::{Turn, Verdict};
use crate::time::Deadline;

/// What became of a flow's turn to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    /// It has nothing more to send now.
    Done(Verdict),
    /// It has, and others have their turn first.
    More,
    /// The link is full.
    Full,
}

/// One segment to write.
pub(crate) struct Outgoing {
    pub(crate) sequence: Sequence,
    pub(crate) flags: TcpFlags,
    pub(crate) options: Options,
    /// Bytes of the stream from `sequence` on.
    pub(crate) length: u32,
    pub(crate) window: u16,
    pub(crate) ecn: ip::Ecn,
}

impl<O: Owner> Turn<'_, O> {
    /// Sends what the flow has to send.
    pub(crate) fn send<S: FrameSink>(&mut self, sink: &mut S) -> Sent {
        let result = if self.flow.flags.has(Flags::RESET_WANTED) {
            self.send_last(sink)
        } else {
            match self.flow.state {
                State::SynReceived if self.flow.flags.has(Flags::FAST_OPEN) => {
                    // RFC 7413 section 4.2.2: the answer need not wait for the handshake.
                    self.send_syn(sink).and_then(|_| self.send_stream(sink))
                }
                State::SynSent | State::SynReceived => self.send_syn(sink),
                State::Closed if self.flow.flags.has(Flags::DETACHED) => Ok(Sent::Done(Verdict::End(None))),
                State::Closed => {
                    self.flow.flags.clear_all(&[Flags::ACK_NOW, Flags::SEND_WANTED]);
                    Ok(Sent::Done(Verdict::Keep))
                }
                State::CloseWait if self.flow.flags.has(Flags::NO_NEXT_HOP) => Ok(self.send_to_nobody()),
                _ => self.send_stream(sink),
            }
        };
        result.unwrap_or(Sent::Full)
    }

    /// What was promised, as far as the windows let it go, then RST. Linux has sent that much by the time tcp_close() resets
    /// (net/ipv4/tcp.c); here it may have waited for company.
    #[cold]
    fn send_last<S: FrameSink>(&mut self, sink: &mut S) -> Result<Sent, Full> {
        let flow = &mut *self.flow;
        if flow.state.is_synchronized() && !flow.flags.has(Flags::NO_NEXT_HOP) && flow.unsent() > 0 {
            // RST acknowledges, too.
            flow.flags.clear_all(&[Flags::ACK_NOW, Flags::PROBE_WANTED, Flags::LOSS_PROBE_WANTED]);
            if self.send_stream(sink)? == Sent::More {
                return Ok(Sent::More);
            }
        }
        if self.shared.send_reset(self.now, self.flow, sink)? {
            let act = Act::Sent { payload: 0, control: true, acknowledges: false, again: false };
            self.owner.acted(self.id, act);
        }
        Ok(Sent::Done(Verdict::End(None)))
    }

    /// What there is to send is for a peer that has gone ([`crate::Engine::peer_gone`]).
    fn send_to_nobody(&mut self) -> Sent {
        let flow = &mut *self.flow;
        if flow.flags.has(Flags::DETACHED) {
            return Sent::Done(Verdict::End(None));
        }
        let sends = flow.promised > flow.una_offset;
        if sends || flow.flags.has_any(&[Flags::FIN_WANTED, Flags::PROBE_WANTED]) {
            return Sent::Done(Verdict::End(Some(crate::Failure::Reset)));
        }
        flow.flags.clear_all(&[Flags::ACK_NOW, Flags::SEND_WANTED]);
        Sent::Done(Verdict::Keep)
    }

    fn send_syn<S: FrameSink>(&mut self, sink: &mut S) -> Result<Sent, Full> {
        let flow = &mut *self.flow;
        if flow.flags.has(Flags::DETACHED) && flow.state == State::SynSent {
            // RFC 9293 section 3.10.4.
            return Ok(Sent::Done(Verdict::End(None)));
        }
        let answers = flow.flags.has_any(&[Flags::SYN_WANTED, Flags::NO_NEXT_HOP]);
        if flow.state == State::SynReceived && flow.flags.has(Flags::ACK_NOW) && !answers {
            // A challenge (RFC 5961 section 3.2).
            self.send_ack(self.flow.send_next, sink)?;
        }
        let flow = &mut *self.flow;
        if !flow.flags.has(Flags::SYN_WANTED) || flow.flags.has(Flags::NO_NEXT_HOP) {
            flow.flags.clear_all(&[Flags::SYN_WANTED, Flags::ACK_NOW, Flags::SEND_WANTED]);
            return Ok(Sent::Done(Verdict::Keep));
        }
        let outgoing = self.shared.syn(self.now, flow);
        self.write_segment(&outgoing, sink)?;
        self.shared.counters.fast_opens_sent += u64::from(outgoing.length > 0);
        self.shared.counters.tx_bytes += u64::from(outgoing.length);
        let flow = &mut *self.flow;
        if flow.all_acknowledged() {
            flow.flags.set(Flags::TIMED);
            flow.timed_at = self.now.moment();
            if !flow.flags.has(Flags::HALF_OPEN) {
                self.owner.acted(self.id, Act::Timed);
            }
        } else {
            // Karn's algorithm (RFC 6298 section 3).
            flow.flags.clear(Flags::TIMED);
        }
        flow.send_next = later(flow.send_next, flow.send_una + (1 + outgoing.length));
        flow.acked_next = flow.receive_next;
        self.flow.flags.clear_all(&[Flags::SYN_WANTED, Flags::ACK_NOW, Flags::SEND_WANTED]);
        if !self.flow.retransmit_at.is_set() {
            self.flow.retransmit_at = self.deadline_in(self.flow.rtt.timeout(self.flow.backoff));
        }
        Ok(Sent::Done(Verdict::Keep))
    }

    /// Sends data, FIN and acknowledgments of a flow past its handshake.
    fn send_stream<S: FrameSink>(&mut self, sink: &mut S) -> Result<Sent, Full> {
        if self.flow.state == State::FinWait2
            && self.flow.flags.has(Flags::DETACHED)
            && !self.flow.linger_at.is_set()
        {
            self.flow.linger_at = self.deadline_in(self.shared.config.fin_timeout);
        }
        if self.flow.flags.has(Flags::ACK_NOW)
            && self.flow.extra.as_ref().is_some_and(|extra| extra.has_sacks())
        {
            // SACK blocks need room that a segment full of data has not.
            self.send_ack(self.flow.send_next, sink)?;
        }
        if self.flow.flags.has(Flags::LOSS_PROBE_WANTED) {
            self.send_loss_probe(sink)?;
        }
        self.restart_after_idle();
        for burst in 0.. {
            if burst == self.shared.config.max_burst {
                return Ok(Sent::More);
            }
            if self.repeat_lost(sink)? {
                continue;
            }
            if self.flow.extra.is_some()
                && let Some(payload) = self.path_probe()
            {
                self.send_data(self.flow.send_next, payload, false, sink)?;
                self.path_probed(payload);
                continue;
            }
            let Some((wanted, fin)) = next_segment(self.flow, self.shared.config.segment_offload) else {
                break;
            };
            let Some(length) = self.allowed(wanted) else { break };
            self.send_data(self.flow.send_next, length, fin && length == wanted, sink)?;
            if self.flow.flags.has(Flags::FORCE)
                && (length < u32::from(self.flow.mss) || self.flow.unsent() == 0)
            {
                self.flow.flags.clear(Flags::FORCE);
            }
        }
        if self.flow.flags.has(Flags::PROBE_WANTED) {
            // An old sequence number makes the peer answer with its window (RFC 9293 sections 3.8.4 and 3.8.6.1).
            self.send_ack(self.flow.send_una - 1, sink)?;
            self.flow.flags.clear(Flags::PROBE_WANTED);
        }
        if self.flow.flags.has(Flags::ACK_NOW) {
            self.send_ack(self.flow.send_next, sink)?;
        }
        self.flow.flags.clear(Flags::SEND_WANTED);
        self.start_persisting();
        Ok(Sent::Done(Verdict::Keep))
    }

    /// Sends the first lost bytes again, if there are any and the window lets them go. True if it did.
    fn repeat_lost<S: FrameSink>(&mut self, sink: &mut S) -> Result<bool, Full> {
        let flow = &*self.flow;
        let Some(recovery) = flow.recovery() else { return Ok(false) };
        let Some((sequence, length)) = recovery.next_lost(flow.send_una, u32::from(flow.mss)) else {
            return Ok(false);
        };
        // The first hole goes whatever the window (RFC 6582 section 3.2 step 3, RFC 5681 section 3.2 step 3).
        let first = sequence == flow.send_una;
        if !first && recovery.pipe(flow.flight()) + length > flow.congestion.window() {
            return Ok(false);
        }
        if self.allowed(length).is_none() {
            return Ok(false);
        }
        self.send_again(sequence, length, sink)?;
        Ok(true)
    }

    /// Sends `[sequence, sequence + length)` again; the last of it may be the FIN.
    fn send_again<S: FrameSink>(
        &mut self,
        sequence: Sequence,
        length: u32,
        sink: &mut S,
    ) -> Result<(), Full> {
        let promised = self.flow.promised - self.flow.offset(sequence);
        let data = u64::from(length).min(promised) as u32;
        self.send_data(sequence, data, data < length, sink)?;
        if self.flow.extra.is_some() {
            self.repeats_probe(sequence, sequence + length);
        }
        Ok(())
    }

    /// RFC 8985 section 7.3: new data if there is any, else the last segment again.
    fn send_loss_probe<S: FrameSink>(&mut self, sink: &mut S) -> Result<(), Full> {
        let flow = &mut *self.flow;
        let mss = u32::from(flow.mss);
        let room = flow.send_window.saturating_sub(flow.flight());
        let new = flow.unsent().min(u64::from(mss.min(room))) as u32;
        if flow.all_acknowledged() {
            flow.flags.clear(Flags::LOSS_PROBE_WANTED);
            return Ok(());
        }
        let repeated = new == 0 || flow.state.fin_was_sent();
        if repeated {
            let length = flow.flight().min(mss);
            self.send_again(self.flow.send_next - length, length, sink)?;
        } else {
            self.send_data(self.flow.send_next, new, false, sink)?;
        }
        self.shared.counters.loss_probes += 1;
        let next = self.flow.send_next;
        self.flow.recovery_or_new(self.shared.config.bounds()).probed(next, repeated);
        self.flow.flags.clear_all(&[Flags::LOSS_PROBE_WANTED, Flags::LOSS_PROBE_TIMER]);
        self.flow.retransmit_at = self.deadline_in(self.flow.rtt.timeout(self.flow.backoff));
        Ok(())
    }

    /// Sends data, for the first time (from SND.NXT) or again.
    fn send_data<S: FrameSink>(
        &mut self,
        sequence: Sequence,
        length: u32,
        fin: bool,
        sink: &mut S,
    ) -> Result<(), Full> {
        let flow = &mut *self.flow;
        let new = sequence == flow.send_next;
        let end = sequence + length;
        let mut flags = TcpFlags::ACK;
        if length > 0 && flow.offset(end) == flow.promised {
            flags |= TcpFlags::PSH;
        }
        if fin {
            flags |= TcpFlags::FIN;
        }
        let mut ecn = ip::Ecn::NotEct;
        if new && length > 0 && flow.flags.has(Flags::ECN) {
            // RFC 3168 section 6.1.5: what is sent again is not marked as capable.
            ecn = ip::Ecn::Ect0;
            if flow.flags.take(Flags::ECN_REDUCED) {
                flags |= TcpFlags::CWR;
            }
        }
        self.send_segment(sequence, length, flags, ecn, sink)?;
        let end = end + u32::from(fin);
        let now = self.now.moment();
        let timestamp = self.shared.clock(self.now.tick(), self.flow);
        self.shared.counters.tx_bytes += u64::from(length);
        let flow = &mut *self.flow;
        if new {
            flow.send_next = end;
            if length > 0 && flow.received > 0 && flow.state.is_synchronized() {
                // inet_csk_inc_pingpong_cnt(), without its look at the clock.
                flow.flags.set(Flags::PINGPONG);
            }
            if !flow.flags.has(Flags::TIMED) && flow.state.is_synchronized() {
                flow.flags.set(Flags::TIMED);
                flow.timed_sequence = end;
                flow.timed_at = now;
                self.owner.acted(self.id, Act::Timed);
            }
            if let Some(recovery) = flow.recovery_mut() {
                recovery.sent_new(end, now, length);
            }
        } else {
            self.shared.counters.retransmits += 1;
            // Karn's algorithm (RFC 6298 section 3).
            flow.flags.clear(Flags::TIMED);
            let una = flow.send_una;
            let bounds = self.shared.config.bounds();
            flow.recovery_or_new(bounds).sent_again(una, sequence, end, now, timestamp);
            let extra = flow.extra.get_or_insert_default();
            extra.repeated = extra.repeated.saturating_add(1);
        }
        flow.sent_at = now;
        self.model_transmission(sequence, end, new);
        let flow = &mut *self.flow;
        if fin {
            flow.state = match flow.state {
                State::Established => State::FinWait1,
                State::CloseWait => State::LastAck,
                state => state,
            };
            if flow.state == State::FinWait1 {
                flow.linger_at = Deadline::NEVER;
            }
        }
        if flow.flags.take(Flags::PERSIST) {
            flow.retransmit_at = Deadline::NEVER;
        }
        if !flow.retransmit_at.is_set() {
            self.start_retransmission();
        } else if new && !flow.flags.has(Flags::REORDERING_TIMER) {
            // RFC 8985 section 7.2; the retransmission timer goes on as it was (RFC 6298 section 5.1).
            self.start_probe();
        }
        Ok(())
    }

    fn send_ack<S: FrameSink>(&mut self, sequence: Sequence, sink: &mut S) -> Result<(), Full> {
        self.send_segment(sequence, 0, TcpFlags::ACK, ip::Ecn::NotEct, sink)
    }

    /// Sends a segment that carries an acknowledgment.
    fn send_segment<S: FrameSink>(
        &mut self,
        sequence: Sequence,
        length: u32,
        mut flags: TcpFlags,
        ecn: ip::Ecn,
        sink: &mut S,
    ) -> Result<(), Full> {
        let options = Options {
            timestamps: self.shared.timestamps(self.now.tick(), self.flow),
            sack: if length == 0 { self.sacks() } else { Sacks::EMPTY },
            ..Options::NONE
        };
        if self.flow.flags.has(Flags::ECN_ECHO) {
            flags |= TcpFlags::ECE;
        }
        let edge = self.flow.receive_edge;
        let window = self.flow.advertise();
        self.write_segment(&Outgoing { sequence, flags, options, length, window, ecn }, sink)?;
        let flow = &mut *self.flow;
        flow.flags.clear(Flags::ACK_NOW);
        flow.ack_at = Deadline::NEVER;
        let acknowledged = flow.receive_next.since(flow.acked_next);
        self.shared.acknowledged = self.shared.acknowledged.saturating_add(acknowledged);
        flow.acked_next = flow.receive_next;
        if edge != flow.receive_edge
            && let Some(tuning) = flow.extra.as_mut().and_then(|extra| extra.tuning.as_mut())
        {
            tuning.offered(self.now, flow.receive_edge);
        }
        if length == 0
            && let Some(extra) = &mut flow.extra
            && extra.duplicate.take().is_some()
        {
            self.shared.sack_ranges -= flow.trim();
        }
        Ok(())
    }

    /// RFC 2018 section 4, RFC 2883 section 4.
    fn sacks(&self) -> Sacks {
        let mut sacks = Sacks::EMPTY;
        if self.flow.flags.has(Flags::SACK)
            && let Some(extra) = &self.flow.extra
        {
            if let Some((left, right)) = extra.duplicate {
                sacks.push(left.number(), right.number());
            }
            if let Some(reassembly) = &extra.reassembly {
                reassembly.report(&mut sacks);
            }
        }
        sacks
    }

    /// Writes a segment of the flow, its payload straight from the owner.
    // Always: its options are 76 bytes, and would be copied for the call.
    #[inline(always)]
    fn write_segment<S: FrameSink>(&mut self, outgoing: &Outgoing, sink: &mut S) -> Result<(), Full> {
        let flow = &*self.flow;
        // A probe of the path's MTU is longer than a segment and must stay whole: it is never as long as two.
        let cut = self.shared.config.segment_offload > 0 && outgoing.length >= 2 * u32::from(flow.mss);
        let unfinished = cut || self.shared.config.checksum_offload;
        let headers = headers_len(flow.tuple.is_v4());
        let may_promise = cut && sink.takes_promises();
        let frame = match cut {
            false => sink.frame(),
            true => sink.long_frame(headers + tcp::MAX_HEADER_LEN + outgoing.length as usize),
        };
        let frame = frame.ok_or(Full)?;
        let has_ack = outgoing.flags.contains(TcpFlags::ACK);
        let header = Header {
            source_port: flow.tuple.local_port,
            destination_port: flow.tuple.remote_port,
            sequence: outgoing.sequence.number(),
            acknowledgment: if has_ack { flow.receive_next.number() } else { 0 },
            flags: outgoing.flags,
            window: outgoing.window,
            options: outgoing.options,
        };
        let header_len = header.emit(&mut frame[headers..]);
        let segment_len = header_len + outgoing.length as usize;
        let (mut sum, mut promised) = (Sum::new(), None);
        if outgoing.length > 0 {
            let payload = &mut frame[headers + header_len..headers + segment_len];
            // A SYN's data follows its own sequence number.
            let offset =
                if outgoing.flags.contains(TcpFlags::SYN) { 0 } else { flow.offset(outgoing.sequence) };
            if may_promise && self.owner.promise(self.id, offset, payload.len()) {
                promised = Some(Promised { flow: self.id.index(), offset, length: payload.len() });
            } else if unfinished {
                self.owner.fill(self.id, offset, payload);
            } else {
                sum = fill_and_sum(self.owner, self.id, offset, payload);
            }
        }
        let length = self.shared.finish_tcp(
            frame,
            flow.next_hop,
            &flow.tuple,
            Lengths { header: header_len, segment: segment_len },
            (!unfinished).then_some(sum),
            (outgoing.ecn.in_traffic_class(flow.traffic_class), flow.hop_limit),
        );
        if unfinished {
            let left = Unfinished {
                checksum_from: headers as u16,
                segment_len: if cut { flow.mss } else { 0 },
                headers_len: (headers + header_len) as u16,
            };
            match promised {
                Some(payload) => sink.commit_promised(left, payload),
                None => sink.commit_unfinished(length, left),
            }
        } else {
            sink.commit(length);
        }
        self.shared.counters.tx_frames += 1;
        let flow = &*self.flow;
        if flow.flags.has(Flags::HALF_OPEN) {
            if outgoing.flags.contains(TcpFlags::SYN) {
                self.owner.acted(self.id, Act::Answered { again: !flow.all_acknowledged() });
            }
        } else {
            self.owner.acted(
                self.id,
                Act::Sent {
                    payload: outgoing.length,
                    control: outgoing.flags.intersects(TcpFlags::SYN | TcpFlags::FIN),
                    acknowledges: flow.flags.has(Flags::ACK_NOW),
                    again: before(outgoing.sequence, flow.send_next),
                },
            );
        }
        Ok(())
    }
}

/// Writes payload, and returns its sum.
#[inline(always)]
fn fill_and_sum<O: Owner>(owner: &mut O, flow: FlowId, offset: u64, payload: &mut [u8]) -> Sum {
    let known = owner.fill_and_sum(flow, offset, payload);
    debug_assert!(
        known.is_none_or(|sum| sum.finish() == Sum::new().bytes(payload).finish()),
        "an owner's sum is that of the bytes it wrote"
    );
    known.unwrap_or_else(|| Sum::new().bytes(payload))
}

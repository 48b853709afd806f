//! What is sent, and the timers that send it.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use overfly_wire::checksum::Sum;
use overfly_wire::tcp::{FastOpen, Flags as TcpFlags, Header, Options, Sacks, Timestamps};
use overfly_wire::{
    FrameSink, MacAddr, Promised, Unfinished, arp, checksum, ethernet, icmpv4, icmpv6, ip, ipv4, ipv6, tcp,
};

use crate::config::Ecn;
use crate::congestion::CongestionControl;
use crate::engine::{Shared, Turn, Verdict};
use crate::fastopen::Opening;
use crate::flow::{Flags, Flow, State};
use crate::owner::{Act, FlowId, Owner};
use crate::sequence::{Sequence, before, distance, later};
use crate::time::{Deadline, Instant, Tick};
use crate::tuple::{Ends, Tuple};
use crate::udp::Held;

/// RFC 9293 section 3.1: what the data offset leaves room for.
const MAX_OPTIONS_LEN: u16 = 40;

/// An answer that belongs to no flow (any more).
pub(crate) enum Answer {
    Tcp {
        next_hop: MacAddr,
        tuple: Tuple,
        sequence: Sequence,
        acknowledgment: Sequence,
        flags: TcpFlags,
        window: u16,
        options: Options,
    },
    Arp {
        operation: arp::Operation,
        sender_ip: Ipv4Addr,
        target_mac: MacAddr,
        target_ip: Ipv4Addr,
    },
    /// A neighbour solicitation for an address on the link.
    Solicit {
        source: Ipv6Addr,
        target: Ipv6Addr,
    },
    /// Our neighbour advertisement; to all nodes if `to` is unspecified.
    Advertise {
        target: Ipv6Addr,
        to: Ipv6Addr,
    },
    Echo {
        next_hop: MacAddr,
        local: IpAddr,
        remote: IpAddr,
        identifier: u16,
        sequence: u16,
        data: Box<[u8]>,
    },
    /// Nobody is at the port that a UDP packet came to; its beginning is quoted.
    PortUnreachable {
        next_hop: MacAddr,
        local: IpAddr,
        remote: IpAddr,
        quote: Box<[u8]>,
    },
    /// A datagram whose next hop was asked for.
    Datagram(Box<Held>),
}

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

/// From where to where a packet goes.
pub(crate) struct Path {
    pub(crate) next_hop: MacAddr,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
}

/// The sink has no frame.
struct Full;

/// One segment to write.
struct Outgoing {
    sequence: Sequence,
    flags: TcpFlags,
    options: Options,
    /// Bytes of the stream from `sequence` on.
    length: u32,
    window: u16,
    ecn: ip::Ecn,
}

/// Bytes of a TCP segment.
#[derive(Clone, Copy)]
struct Lengths {
    header: usize,
    /// With its payload.
    segment: usize,
}

/// Bytes of the headers before the transport header.
pub(crate) const fn headers_len(is_v4: bool) -> usize {
    ethernet::HEADER_LEN + if is_v4 { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN }
}

/// The multicast group's hardware address (RFC 2464 section 7).
const fn multicast_mac(group: Ipv6Addr) -> MacAddr {
    let [.., a, b, c, d] = group.octets();
    MacAddr([0x33, 0x33, a, b, c, d])
}

/// ff02::1
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

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
        let header = Header {
            source_port: flow.tuple.local_port,
            destination_port: flow.tuple.remote_port,
            sequence: outgoing.sequence.number(),
            acknowledgment: if outgoing.flags.contains(TcpFlags::ACK) {
                flow.receive_next.number()
            } else {
                0
            },
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

impl Shared {
    /// The RST of RFC 9293 section 3.10.5. False if the flow's state wants none.
    fn send_reset<S: FrameSink>(&mut self, now: Instant, flow: &Flow, sink: &mut S) -> Result<bool, Full> {
        let Some(answer) = self.reset_of(now, flow) else { return Ok(false) };
        self.write_answer(&answer, sink)?;
        self.counters.resets_sent += 1;
        Ok(true)
    }

    /// A SYN offers every option; its answer those that were offered (RFC 7323 sections 2.2 and 3.2, RFC 2018 section 2).
    fn syn(&mut self, now: Instant, flow: &mut Flow) -> Outgoing {
        let passive = flow.state == State::SynReceived;
        let mut flags = if passive { TcpFlags::SYN | TcpFlags::ACK } else { TcpFlags::SYN };
        if passive {
            if flow.flags.has(Flags::ECN) {
                flags |= TcpFlags::ECE;
            }
        } else {
            // RFC 3168 section 6.1.1.1: a SYN that may have been lost because of its flags goes without them.
            let ask = self.config.ecn == Ecn::Ask && flow.all_acknowledged();
            flow.flags.put(Flags::ECN, ask);
            if ask {
                flags |= TcpFlags::ECE | TcpFlags::CWR;
            }
        }
        let wants_timestamps =
            if passive { flow.flags.has(Flags::TIMESTAMPS) } else { self.config.timestamps };
        let mut options = Options {
            mss: Some(self.offered_segment(flow)),
            window_scale: (flow.receive_shift > 0).then_some(flow.receive_shift),
            sack_permitted: if passive { flow.flags.has(Flags::SACK) } else { self.config.sack },
            timestamps: wants_timestamps
                .then(|| Timestamps { value: self.clock(now.tick(), flow), echo: flow.timestamp_recent }),
            ..Options::NONE
        };
        // Never scaled (RFC 7323 section 2.2).
        let window = match passive {
            true => distance(flow.receive_next, flow.receive_edge),
            false => flow.receive_limit,
        };
        let window = window.min(0xffff) as u16;
        let mut length = 0;
        if passive && flow.flags.has(Flags::FAST_OPEN_COOKIE) {
            options.fast_open =
                FastOpen::with_cookie(&self.fast_open.make(flow.tuple.remote.ip(), flow.tuple.local.ip()));
        } else if !passive && flow.flags.has(Flags::FAST_OPEN) {
            length = self.fast_open_syn(now, flow, &mut options);
        }
        Outgoing { sequence: flow.send_una, flags, options, length, window, ecn: ip::Ecn::NotEct }
    }

    /// What our MSS option says (RFC 6691 section 2, RFC 9293 section 3.7.1): what the link takes, or less if the owner wants.
    fn offered_segment(&self, flow: &Flow) -> u16 {
        let wanted = match flow.state {
            State::SynSent => flow.mss,
            // The flow's own is by now what the peer takes.
            _ => self.listeners.inherited(flow.listener).max_segment,
        };
        let advertised = self.config.route(&flow.tuple).map_or(0, |route| route.advertised_segment);
        let least = self.largest_segment(&flow.tuple).min(wanted);
        if advertised == 0 { least } else { least.min(advertised) }
    }

    /// The Fast Open option of our SYN, and how much data goes with it (RFC 7413 section 4.2.1).
    fn fast_open_syn(&mut self, now: Instant, flow: &mut Flow, options: &mut Options) -> u32 {
        let (client, server) = (flow.tuple.local.ip(), flow.tuple.remote());
        if !flow.all_acknowledged() {
            // Section 4.1.3.1: what was lost may have been lost because of the option.
            self.servers.refused(now, client, server);
            flow.flags.clear(Flags::FAST_OPEN);
            return 0;
        }
        match self.servers.opening(now, client, server) {
            Opening::Request if self.config.fast_open_client_without_cookie => {
                let segment = self.largest_segment(&flow.tuple);
                let room = u64::from(segment.saturating_sub(MAX_OPTIONS_LEN).min(flow.mss));
                flow.promised.min(room) as u32
            }
            Opening::Data { cookie, mss } => {
                options.fast_open = FastOpen::with_cookie(cookie.as_bytes());
                let segment = mss.min(self.largest_segment(&flow.tuple));
                // Nor more than the owner's largest segment: a link must not cut a SYN.
                let room = u64::from(segment.saturating_sub(MAX_OPTIONS_LEN).min(flow.mss));
                flow.promised.min(room) as u32
            }
            Opening::Request => {
                options.fast_open = Some(FastOpen::REQUEST);
                0
            }
            Opening::Plain => {
                flow.flags.clear(Flags::FAST_OPEN);
                0
            }
        }
    }

    /// Our timestamp for a flow (RFC 7323 section 5.4).
    pub(crate) fn clock(&self, tick: Tick, flow: &Flow) -> u32 {
        tick.0.wrapping_add(flow.timestamp_offset)
    }

    pub(crate) fn timestamps(&self, tick: Tick, flow: &Flow) -> Option<Timestamps> {
        flow.flags
            .has(Flags::TIMESTAMPS)
            .then(|| Timestamps { value: self.clock(tick, flow), echo: flow.timestamp_recent })
    }

    /// The ACK of a flow that is about to go, as an answer.
    pub(crate) fn acknowledgment(&self, now: Instant, flow: &mut Flow) -> Answer {
        Answer::Tcp {
            next_hop: flow.next_hop,
            tuple: flow.tuple,
            sequence: flow.send_next,
            acknowledgment: flow.receive_next,
            flags: TcpFlags::ACK,
            window: flow.advertise(),
            options: Options { timestamps: self.timestamps(now.tick(), flow), ..Options::NONE },
        }
    }

    /// Completes a frame whose TCP segment is written, with the sum of its payload unless the link is to complete checksums; returns
    /// the frame's length.
    #[inline]
    fn finish_tcp(
        &self,
        frame: &mut [u8],
        next_hop: MacAddr,
        tuple: &Tuple,
        lengths: Lengths,
        payload: Option<Sum>,
        (traffic_class, hop_limit): (u8, u8),
    ) -> usize {
        let length = lengths.segment;
        match tuple.ends() {
            Ends::V4(local, remote) => {
                self.write_checksum(
                    &mut frame[headers_len(true)..][..length],
                    lengths,
                    payload,
                    local,
                    remote,
                );
                self.write_ipv4(
                    frame,
                    next_hop,
                    (local, remote),
                    ipv4::PROTOCOL_TCP,
                    length,
                    traffic_class,
                    hop_limit,
                )
            }
            Ends::V6(local, remote) => {
                self.write_checksum(
                    &mut frame[headers_len(false)..][..length],
                    lengths,
                    payload,
                    local,
                    remote,
                );
                self.write_ipv6(
                    frame,
                    next_hop,
                    (local, remote),
                    ipv4::PROTOCOL_TCP,
                    length,
                    traffic_class,
                    hop_limit,
                )
            }
        }
    }

    #[inline]
    fn write_checksum<A: checksum::Address>(
        &self,
        segment: &mut [u8],
        lengths: Lengths,
        payload: Option<Sum>,
        local: A,
        remote: A,
    ) {
        match payload {
            None => tcp::write_partial_checksum(segment, local, remote),
            Some(payload) => {
                let payload_len = lengths.segment - lengths.header;
                tcp::write_checksum_of(&mut segment[..lengths.header], payload, payload_len, local, remote);
            }
        }
    }

    /// Writes the headers before a payload of `length` bytes; returns the frame's length.
    #[inline]
    pub(crate) fn write_headers(
        &self,
        frame: &mut [u8],
        path: &Path,
        protocol: u8,
        length: usize,
        traffic_class: u8,
        hop_limit: u8,
    ) -> usize {
        match (path.source, path.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => self.write_ipv4(
                frame,
                path.next_hop,
                (source, destination),
                protocol,
                length,
                traffic_class,
                hop_limit,
            ),
            (IpAddr::V6(source), IpAddr::V6(destination)) => self.write_ipv6(
                frame,
                path.next_hop,
                (source, destination),
                protocol,
                length,
                traffic_class,
                hop_limit,
            ),
            _ => unreachable!("both ends of a path are of one family"),
        }
    }

    #[inline]
    #[expect(clippy::too_many_arguments, reason = "a packet's fields")]
    fn write_ipv4(
        &self,
        frame: &mut [u8],
        next_hop: MacAddr,
        (source, destination): (Ipv4Addr, Ipv4Addr),
        protocol: u8,
        length: usize,
        traffic_class: u8,
        hop_limit: u8,
    ) -> usize {
        let ethertype = ethernet::ETHERTYPE_IPV4;
        ethernet::Header { destination: next_hop, source: self.config.mac, ethertype }.emit(frame);
        ipv4::Header {
            source,
            destination,
            protocol,
            ttl: hop_limit,
            tos: traffic_class,
            // RFC 6864 section 4.1: meaningless in a datagram that may not be fragmented.
            identification: 0,
            dont_fragment: true,
            payload_len: length as u16,
        }
        .emit(&mut frame[ethernet::HEADER_LEN..]);
        headers_len(true) + length
    }

    #[inline]
    #[expect(clippy::too_many_arguments, reason = "a packet's fields")]
    fn write_ipv6(
        &self,
        frame: &mut [u8],
        next_hop: MacAddr,
        (source, destination): (Ipv6Addr, Ipv6Addr),
        protocol: u8,
        length: usize,
        traffic_class: u8,
        hop_limit: u8,
    ) -> usize {
        let ethertype = ethernet::ETHERTYPE_IPV6;
        ethernet::Header { destination: next_hop, source: self.config.mac, ethertype }.emit(frame);
        ipv6::Header {
            source,
            destination,
            protocol,
            hop_limit,
            traffic_class,
            flow_label: 0,
            payload_len: length as u16,
        }
        .emit(&mut frame[ethernet::HEADER_LEN..]);
        headers_len(false) + length
    }

    /// Sends the answers that belong to no flow. False when the link is full.
    pub(crate) fn send_answers<S: FrameSink>(&mut self, sink: &mut S) -> bool {
        while let Some(answer) = self.answers.pop_front() {
            if self.write_answer(&answer, sink).is_err() {
                self.answers.push_front(answer);
                return false;
            }
        }
        true
    }

    fn write_answer<S: FrameSink>(&mut self, answer: &Answer, sink: &mut S) -> Result<(), Full> {
        let frame = sink.frame().ok_or(Full)?;
        let length = match answer {
            &Answer::Tcp { next_hop, tuple, sequence, acknowledgment, flags, window, options } => {
                let header = Header {
                    source_port: tuple.local_port,
                    destination_port: tuple.remote_port,
                    sequence: sequence.number(),
                    acknowledgment: acknowledgment.number(),
                    flags,
                    window,
                    options,
                };
                let length = header.emit(&mut frame[headers_len(tuple.is_v4())..]);
                let lengths = Lengths { header: length, segment: length };
                let sum = (!self.config.checksum_offload).then(Sum::new);
                let marks = (0, self.config.hop_limit_to(tuple.remote().ip()));
                self.finish_tcp(frame, next_hop, &tuple, lengths, sum, marks)
            }
            &Answer::Arp { operation, sender_ip, target_mac, target_ip } => {
                let destination =
                    if operation == arp::Operation::Request { MacAddr::BROADCAST } else { target_mac };
                ethernet::Header { destination, source: self.config.mac, ethertype: ethernet::ETHERTYPE_ARP }
                    .emit(frame);
                let packet =
                    arp::Packet { operation, sender_mac: self.config.mac, sender_ip, target_mac, target_ip };
                ethernet::HEADER_LEN + packet.emit(&mut frame[ethernet::HEADER_LEN..])
            }
            &Answer::Solicit { source, target } => {
                let group = ipv6::solicited_node(target);
                let asked =
                    icmpv6::NeighborSolicitation { target, source_link_address: Some(self.config.mac) };
                let length = asked.emit(&mut frame[headers_len(false)..], source, group);
                self.write_neighbor(frame, source, group, multicast_mac(group), length)
            }
            &Answer::Advertise { target, to } => {
                // RFC 4861 section 7.2.4.
                let solicited = !to.is_unspecified();
                let to = if solicited { to } else { ALL_NODES };
                let next_hop = match self.neighbors.find(&self.config, to.into()) {
                    Some(mac) if solicited => mac,
                    _ => multicast_mac(ALL_NODES),
                };
                let answer = icmpv6::NeighborAdvertisement {
                    target,
                    target_link_address: Some(self.config.mac),
                    router: false,
                    solicited,
                    overrides: true,
                };
                let length = answer.emit(&mut frame[headers_len(false)..], target, to);
                self.write_neighbor(frame, target, to, next_hop, length)
            }
            Answer::PortUnreachable { next_hop, local, remote, quote } => {
                self.write_refusal(frame, *next_hop, (*local, *remote), quote)
            }
            Answer::Datagram(held) => self.write_held(frame, held),
            Answer::Echo { next_hop, local, remote, identifier, sequence, data } => {
                let buffer = &mut frame[headers_len(local.is_ipv4())..];
                let (identifier, sequence) = (*identifier, *sequence);
                let kind = icmpv4::Kind::Reply;
                let (length, protocol) = match (*local, *remote) {
                    (IpAddr::V6(local), IpAddr::V6(remote)) => {
                        let echo = icmpv6::Echo { kind, identifier, sequence, data };
                        (echo.emit(buffer, local, remote), ipv6::PROTOCOL_ICMPV6)
                    }
                    _ => {
                        let echo = icmpv4::Echo { kind, identifier, sequence, data };
                        (echo.emit(buffer), ipv4::PROTOCOL_ICMP)
                    }
                };
                let path = Path { next_hop: *next_hop, source: *local, destination: *remote };
                self.write_headers(frame, &path, protocol, length, 0, self.config.hop_limit_to(*remote))
            }
        };
        match answer {
            Answer::Tcp { tuple, .. } if self.config.checksum_offload => {
                let checksum_from = headers_len(tuple.is_v4()) as u16;
                sink.commit_unfinished(length, Unfinished { checksum_from, ..Unfinished::default() });
            }
            _ => sink.commit(length),
        }
        self.counters.tx_frames += 1;
        Ok(())
    }

    fn write_neighbor(
        &self,
        frame: &mut [u8],
        source: Ipv6Addr,
        destination: Ipv6Addr,
        next_hop: MacAddr,
        length: usize,
    ) -> usize {
        let path = Path { next_hop, source: source.into(), destination: destination.into() };
        let hop_limit = icmpv6::NEIGHBOR_HOP_LIMIT;
        self.write_headers(frame, &path, ipv6::PROTOCOL_ICMPV6, length, 0, hop_limit)
    }
}

/// Length of the next segment that may be sent, and whether it carries FIN. A link that cuts segments (`offload` bytes at most)
/// gets several full ones at once.
fn next_segment(flow: &Flow, offload: u32) -> Option<(u32, bool)> {
    if flow.state.fin_was_sent() {
        // SND.NXT is beyond the stream.
        return None;
    }
    let unsent = flow.unsent();
    // A FIN waits for the end of the handshake, and the SYN's sequence number is not of the window.
    let syn = u32::from(flow.state == State::SynReceived);
    let fin_pending = flow.flags.has(Flags::FIN_WANTED) && syn == 0;
    if unsent == 0 {
        return fin_pending.then_some((0, true));
    }
    let mss = u32::from(flow.mss);
    // RFC 5681 section 3.1 and RFC 9293 section 3.8.6; RFC 3042's limited transmit follows from the pipe, which duplicates
    // make smaller.
    let congestion = (flow.congestion.window() + syn).saturating_sub(flow.pipe());
    let offered = (flow.send_window + syn).saturating_sub(flow.flight());
    let room = unsent.min(u64::from(congestion.min(offered))) as u32;
    // RFC 9293 section 3.7.4 (Nagle): whether the stream's last, small segment may go.
    let end_may_go = || {
        fin_pending
            || (!flow.flags.has(Flags::CORK)
                && (flow.flags.has(Flags::NO_DELAY) || !has_small_in_flight(flow, syn, mss)))
    };
    if room >= 2 * mss && offload >= 2 * mss {
        let most = room.min(offload);
        // The small segment at the end goes with the full ones before it: those are on their way, and all of one size.
        let length = if u64::from(most) == unsent && end_may_go() { most } else { most / mss * mss };
        return Some((length, u64::from(length) == unsent && fin_pending));
    }
    let length = room.min(mss);
    if length == 0 {
        return None;
    }
    let last = u64::from(length) == unsent;
    // RFC 9293 section 3.8.6.2.1 (silly-window avoidance).
    let send = length == mss
        || (last && end_may_go())
        || (!last && length >= flow.send_window_max / 2)
        || (flow.flags.has(Flags::FORCE) && (last || flow.flight() == syn));
    send.then_some((length, last && fin_pending))
}

/// Minshall's rule, as tcp_minshall_check() in Linux's net/ipv4/tcp_output.c: only a small segment in flight holds the next one
/// back. What is in flight begins where a segment did, so that it is full segments exactly if their length divides it. After
/// `mss` has changed it seldom does: then Nagle's own rule holds until all is acknowledged.
fn has_small_in_flight(flow: &Flow, syn: u32, mss: u32) -> bool {
    let flight = flow.flight().saturating_sub(syn);
    flight != 0 && !flight.is_multiple_of(mss)
}

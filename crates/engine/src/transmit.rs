//! What is sent, and the timers that send it.

use core::net::{Ipv4Addr, SocketAddrV4};

use overfly_wire::tcp::{Flags as TcpFlags, Header, Options, Timestamps, write_checksum};
use overfly_wire::{FrameSink, MacAddr, arp, ethernet, icmpv4, ipv4};

use crate::engine::{Shared, Verdict};
use crate::flow::{Flags, Flow, State};
use crate::neighbor::next_hop;
use crate::owner::{Failure, FlowId, Owner};
use crate::sequence::{at_or_before, before, distance};
use crate::time::{Instant, Tick, ticks};

/// Segments that one flow sends before others have their turn.
const MAX_BURST: usize = 64;
/// Probes of a closed window that a flow without an owner sends (a peer could hold it for ever).
const MAX_ORPHAN_PROBES: u8 = 8;
/// Keep-alive probes without an answer that end a flow.
const MAX_KEEP_ALIVE_PROBES: u8 = 9;

/// An answer that belongs to no flow (any more).
pub(crate) enum Answer {
    Tcp {
        next_hop: MacAddr,
        local: SocketAddrV4,
        remote: SocketAddrV4,
        sequence: u32,
        acknowledgment: u32,
        flags: TcpFlags,
        window: u16,
        timestamps: Option<Timestamps>,
    },
    Arp {
        operation: arp::Operation,
        target_mac: MacAddr,
        target_ip: Ipv4Addr,
    },
    Echo {
        next_hop: MacAddr,
        remote: Ipv4Addr,
        identifier: u16,
        sequence: u16,
        data: Box<[u8]>,
    },
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

/// The sink has no frame.
struct Full;

/// One segment to write.
struct Outgoing {
    sequence: u32,
    flags: TcpFlags,
    options: Options,
    /// Bytes of the stream from `sequence` on.
    length: u32,
    window: u16,
}

const FRAME_HEADERS: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN;

impl Shared {
    /// Gives one flow its turn to send.
    pub(crate) fn send<O: Owner, S: FrameSink>(
        &mut self,
        now: Instant,
        id: FlowId,
        flow: &mut Flow,
        owner: &mut O,
        sink: &mut S,
    ) -> Sent {
        let result = if flow.flags.has(Flags::RESET_WANTED) {
            self.send_reset(flow, sink).map(|()| Sent::Done(Verdict::End(None)))
        } else {
            match flow.state {
                State::SynSent | State::SynReceived => self.send_syn(now, id, flow, owner, sink),
                State::Closed if flow.flags.has(Flags::DETACHED) => Ok(Sent::Done(Verdict::End(None))),
                State::Closed => {
                    flow.flags.clear(Flags::ACK_NOW);
                    flow.flags.clear(Flags::SEND_WANTED);
                    Ok(Sent::Done(Verdict::Keep))
                }
                _ => self.send_stream(now, id, flow, owner, sink),
            }
        };
        result.unwrap_or(Sent::Full)
    }

    fn send_reset<S: FrameSink>(&mut self, flow: &Flow, sink: &mut S) -> Result<(), Full> {
        // RFC 9293 section 3.10.5: a SYN-SENT flow just goes.
        if matches!(flow.state, State::SynSent | State::Closed | State::TimeWait) {
            return Ok(());
        }
        let answer = Answer::Tcp {
            next_hop: flow.next_hop,
            local: flow.local,
            remote: flow.remote,
            sequence: flow.send_max,
            acknowledgment: flow.receive_next,
            flags: TcpFlags::RST | TcpFlags::ACK,
            window: 0,
            timestamps: None,
        };
        self.write_answer(&answer, sink)?;
        self.counters.resets_sent += 1;
        Ok(())
    }

    fn send_syn<O: Owner, S: FrameSink>(
        &mut self,
        now: Instant,
        id: FlowId,
        flow: &mut Flow,
        owner: &mut O,
        sink: &mut S,
    ) -> Result<Sent, Full> {
        if flow.flags.has(Flags::DETACHED) && flow.state == State::SynSent {
            // RFC 9293 section 3.10.4.
            return Ok(Sent::Done(Verdict::End(None)));
        }
        if !flow.flags.has(Flags::SYN_WANTED) {
            flow.flags.clear(Flags::ACK_NOW);
            flow.flags.clear(Flags::SEND_WANTED);
            return Ok(Sent::Done(Verdict::Keep));
        }
        if !flow.flags.has(Flags::NO_NEXT_HOP) {
            let passive = flow.state == State::SynReceived;
            // A SYN offers every option; its answer those that were offered (RFC 7323 sections 2.2 and 3.2).
            let options = Options {
                mss: Some(self.config.mtu - 40),
                window_scale: (!passive || flow.receive_shift > 0).then_some(flow.receive_shift),
                timestamps: (!passive || flow.flags.has(Flags::TIMESTAMPS))
                    .then(|| self.timestamps(now.tick(), flow)),
                ..Options::NONE
            };
            let flags = if passive { TcpFlags::SYN | TcpFlags::ACK } else { TcpFlags::SYN };
            let window = self.config.receive_window.min(0xffff) as u16;
            let outgoing = Outgoing { sequence: flow.send_una, flags, options, length: 0, window };
            self.write_segment(id, flow, &outgoing, owner, sink)?;
            if flow.send_max == flow.send_una {
                flow.flags.set(Flags::TIMED);
                flow.timed_at = now;
            } else {
                // Karn's algorithm (RFC 6298 section 3).
                flow.flags.clear(Flags::TIMED);
            }
            flow.send_next = flow.send_una.wrapping_add(1);
            flow.send_max = flow.send_next;
        }
        flow.flags.clear(Flags::SYN_WANTED);
        flow.flags.clear(Flags::ACK_NOW);
        flow.flags.clear(Flags::SEND_WANTED);
        if flow.retransmit_at.is_none() {
            flow.retransmit_at = Some(now.tick().after(ticks(flow.rtt.timeout_us(flow.backoff))));
        }
        Ok(Sent::Done(Verdict::Keep))
    }

    /// Sends data, FIN and acknowledgments of a flow past its handshake.
    fn send_stream<O: Owner, S: FrameSink>(
        &mut self,
        now: Instant,
        id: FlowId,
        flow: &mut Flow,
        owner: &mut O,
        sink: &mut S,
    ) -> Result<Sent, Full> {
        let tick = now.tick();
        if flow.state == State::FinWait2 && flow.flags.has(Flags::DETACHED) && flow.linger_at.is_none() {
            flow.linger_at = Some(tick.after(ticks(self.config.fin_timeout.as_micros() as u64)));
        }
        if flow.flags.has(Flags::RETRANSMIT) {
            let length = distance(flow.send_una, flow.data_end()).min(u32::from(flow.mss));
            let fin = flow.state.fin_was_sent() && flow.send_una.wrapping_add(length) == flow.data_end();
            if !flow.all_acknowledged() {
                self.send_data(now, id, flow, flow.send_una, length, fin, owner, sink)?;
            }
            flow.flags.clear(Flags::RETRANSMIT);
        }
        if flow.all_acknowledged() && tick.since(flow.sent_at) > ticks(flow.rtt.timeout_us(0)) {
            flow.congestion.idle(self.initial_window(u32::from(flow.mss)));
        }
        let mut burst = 0;
        while let Some((length, fin)) = next_segment(flow) {
            if burst == MAX_BURST {
                return Ok(Sent::More);
            }
            self.send_data(now, id, flow, flow.send_next, length, fin, owner, sink)?;
            flow.flags.clear(Flags::FORCE);
            burst += 1;
        }
        if flow.flags.has(Flags::PROBE_WANTED) {
            // An old sequence number makes the peer answer with its window (RFC 9293 sections 3.8.4 and 3.8.6.1).
            self.send_ack(tick, id, flow, flow.send_una.wrapping_sub(1), owner, sink)?;
            flow.flags.clear(Flags::PROBE_WANTED);
        }
        if flow.flags.has(Flags::ACK_NOW) {
            // SND.MAX: after a timeout SND.NXT is a number that the peer may have left behind, and would not accept.
            self.send_ack(tick, id, flow, flow.send_max, owner, sink)?;
        }
        flow.flags.clear(Flags::SEND_WANTED);
        if flow.retransmit_at.is_none()
            && flow.in_flight() == 0
            && distance(flow.send_next, flow.data_end()) > 0
        {
            // Nothing is on its way that could bring news of a window that is closed, or too small to use.
            flow.flags.set(Flags::PERSIST);
            flow.retransmit_at = Some(tick.after(ticks(flow.rtt.timeout_us(flow.backoff))));
        }
        Ok(Sent::Done(Verdict::Keep))
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the segment's three fields would only be wrapped and unwrapped"
    )]
    fn send_data<O: Owner, S: FrameSink>(
        &mut self,
        now: Instant,
        id: FlowId,
        flow: &mut Flow,
        sequence: u32,
        length: u32,
        fin: bool,
        owner: &mut O,
        sink: &mut S,
    ) -> Result<(), Full> {
        let end = sequence.wrapping_add(length);
        let mut flags = TcpFlags::ACK;
        if length > 0 && end == flow.data_end() {
            flags |= TcpFlags::PSH;
        }
        if fin {
            flags |= TcpFlags::FIN;
        }
        self.send_segment(now.tick(), id, flow, sequence, length, flags, owner, sink)?;
        let end = end.wrapping_add(u32::from(fin));
        self.counters.tx_bytes += u64::from(length);
        if sequence == flow.send_next {
            flow.send_next = end;
        }
        if before(flow.send_max, end) {
            flow.send_max = end;
            if !flow.flags.has(Flags::TIMED) {
                flow.flags.set(Flags::TIMED);
                flow.timed_sequence = end;
                flow.timed_at = now;
            }
        } else {
            self.counters.retransmits += 1;
            flow.flags.clear(Flags::TIMED);
        }
        flow.sent_at = now.tick();
        if flow.flags.take(Flags::PERSIST) || flow.retransmit_at.is_none() {
            // RFC 6298 section 5.1.
            flow.retransmit_at = Some(now.tick().after(ticks(flow.rtt.timeout_us(flow.backoff))));
        }
        if fin {
            flow.state = match flow.state {
                State::Established => State::FinWait1,
                State::CloseWait => State::LastAck,
                state => state,
            };
            if flow.state == State::FinWait1 {
                flow.linger_at = None;
            }
        }
        Ok(())
    }

    fn send_ack<O: Owner, S: FrameSink>(
        &mut self,
        tick: Tick,
        id: FlowId,
        flow: &mut Flow,
        sequence: u32,
        owner: &mut O,
        sink: &mut S,
    ) -> Result<(), Full> {
        self.send_segment(tick, id, flow, sequence, 0, TcpFlags::ACK, owner, sink)
    }

    /// Sends a segment that carries an acknowledgment.
    #[expect(
        clippy::too_many_arguments,
        reason = "the segment's three fields would only be wrapped and unwrapped"
    )]
    fn send_segment<O: Owner, S: FrameSink>(
        &mut self,
        tick: Tick,
        id: FlowId,
        flow: &mut Flow,
        sequence: u32,
        length: u32,
        flags: TcpFlags,
        owner: &mut O,
        sink: &mut S,
    ) -> Result<(), Full> {
        let options = Options {
            timestamps: flow.flags.has(Flags::TIMESTAMPS).then(|| self.timestamps(tick, flow)),
            ..Options::NONE
        };
        let window = self.advertise(flow);
        self.write_segment(id, flow, &Outgoing { sequence, flags, options, length, window }, owner, sink)?;
        flow.flags.clear(Flags::ACK_NOW);
        flow.ack_at = None;
        flow.acked_next = flow.receive_next;
        Ok(())
    }

    /// The window field of a segment sent now (RFC 9293 section 3.8.6.2.2): the right edge moves by worthwhile steps.
    fn advertise(&self, flow: &mut Flow) -> u16 {
        let limit = self.config.receive_window;
        let possible = flow.possible_edge(limit);
        let gain = distance(flow.receive_edge, possible);
        if gain >= u32::from(flow.mss).min(limit / 2) || flow.held == 0 {
            flow.receive_edge =
                if before(flow.receive_edge, possible) { possible } else { flow.receive_edge };
        }
        let open = distance(flow.receive_next, flow.receive_edge);
        (open >> flow.receive_shift).min(0xffff) as u16
    }

    fn timestamps(&self, tick: Tick, flow: &Flow) -> Timestamps {
        Timestamps { value: tick.0.wrapping_add(flow.timestamp_offset), echo: flow.timestamp_recent }
    }

    /// The ACK of a flow that is about to go, as an answer.
    pub(crate) fn acknowledgment(&self, now: Instant, flow: &mut Flow) -> Answer {
        Answer::Tcp {
            next_hop: flow.next_hop,
            local: flow.local,
            remote: flow.remote,
            sequence: flow.send_max,
            acknowledgment: flow.receive_next,
            flags: TcpFlags::ACK,
            window: self.advertise(flow),
            timestamps: flow.flags.has(Flags::TIMESTAMPS).then(|| self.timestamps(now.tick(), flow)),
        }
    }

    /// Writes a segment of a flow, its payload straight from the owner.
    fn write_segment<O: Owner, S: FrameSink>(
        &mut self,
        id: FlowId,
        flow: &Flow,
        outgoing: &Outgoing,
        owner: &mut O,
        sink: &mut S,
    ) -> Result<(), Full> {
        let frame = sink.frame().ok_or(Full)?;
        let header = Header {
            source_port: flow.local.port(),
            destination_port: flow.remote.port(),
            sequence: outgoing.sequence,
            acknowledgment: if outgoing.flags.contains(TcpFlags::ACK) { flow.receive_next } else { 0 },
            flags: outgoing.flags,
            window: outgoing.window,
            options: outgoing.options,
        };
        let header_len = header.emit(&mut frame[FRAME_HEADERS..]);
        let segment_len = header_len + outgoing.length as usize;
        let segment = &mut frame[FRAME_HEADERS..FRAME_HEADERS + segment_len];
        if outgoing.length > 0 {
            owner.fill(id, flow.offset(outgoing.sequence), &mut segment[header_len..]);
        }
        write_checksum(segment, *flow.local.ip(), *flow.remote.ip());
        self.write_headers(
            frame,
            flow.next_hop,
            *flow.local.ip(),
            *flow.remote.ip(),
            ipv4::PROTOCOL_TCP,
            segment_len,
        );
        sink.commit(FRAME_HEADERS + segment_len);
        self.counters.tx_frames += 1;
        Ok(())
    }

    /// Writes the Ethernet and IPv4 headers before a payload of `length` bytes.
    fn write_headers(
        &self,
        frame: &mut [u8],
        next_hop: MacAddr,
        source: Ipv4Addr,
        destination: Ipv4Addr,
        protocol: u8,
        length: usize,
    ) {
        ethernet::Header {
            destination: next_hop,
            source: self.config.mac,
            ethertype: ethernet::ETHERTYPE_IPV4,
        }
        .emit(frame);
        ipv4::Header {
            source,
            destination,
            protocol,
            ttl: 64,
            tos: 0,
            // RFC 6864 section 4.1: meaningless in a datagram that may not be fragmented.
            identification: 0,
            dont_fragment: true,
            payload_len: length as u16,
        }
        .emit(&mut frame[ethernet::HEADER_LEN..]);
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
            &Answer::Tcp { next_hop, local, remote, sequence, acknowledgment, flags, window, timestamps } => {
                let header = Header {
                    source_port: local.port(),
                    destination_port: remote.port(),
                    sequence,
                    acknowledgment,
                    flags,
                    window,
                    options: Options { timestamps, ..Options::NONE },
                };
                let length = header.emit(&mut frame[FRAME_HEADERS..]);
                write_checksum(&mut frame[FRAME_HEADERS..FRAME_HEADERS + length], *local.ip(), *remote.ip());
                self.write_headers(frame, next_hop, *local.ip(), *remote.ip(), ipv4::PROTOCOL_TCP, length);
                FRAME_HEADERS + length
            }
            &Answer::Arp { operation, target_mac, target_ip } => {
                let destination =
                    if operation == arp::Operation::Request { MacAddr::BROADCAST } else { target_mac };
                ethernet::Header { destination, source: self.config.mac, ethertype: ethernet::ETHERTYPE_ARP }
                    .emit(frame);
                let packet = arp::Packet {
                    operation,
                    sender_mac: self.config.mac,
                    sender_ip: self.config.address,
                    target_mac,
                    target_ip,
                };
                ethernet::HEADER_LEN + packet.emit(&mut frame[ethernet::HEADER_LEN..])
            }
            Answer::Echo { next_hop, remote, identifier, sequence, data } => {
                let echo = icmpv4::Echo {
                    kind: icmpv4::Kind::Reply,
                    identifier: *identifier,
                    sequence: *sequence,
                    data,
                };
                let length = echo.emit(&mut frame[FRAME_HEADERS..]);
                let source = self.config.address;
                self.write_headers(frame, *next_hop, source, *remote, ipv4::PROTOCOL_ICMP, length);
                FRAME_HEADERS + length
            }
        };
        sink.commit(length);
        self.counters.tx_frames += 1;
        Ok(())
    }

    /// Asks for the hardware address of the next hop to `destination`.
    pub(crate) fn ask_next_hop(&mut self, destination: Ipv4Addr) {
        self.answer(Answer::Arp {
            operation: arp::Operation::Request,
            target_mac: MacAddr([0; 6]),
            target_ip: next_hop(&self.config, destination),
        });
    }

    /// Runs the timers of one flow that are due.
    pub(crate) fn timers(&mut self, now: Instant, flow: &mut Flow) -> Verdict {
        let tick = now.tick();
        let due = |at: Option<Tick>| at.is_some_and(|at| !tick.is_before(at));
        if due(flow.ack_at) {
            flow.ack_at = None;
            flow.flags.set(Flags::ACK_NOW);
        }
        if due(flow.retransmit_at) {
            flow.retransmit_at = None;
            let verdict = self.retransmission_timeout(flow);
            if verdict != Verdict::Keep {
                return verdict;
            }
        }
        if due(flow.linger_at) {
            flow.linger_at = None;
            return self.linger_timeout(tick, flow);
        }
        Verdict::Keep
    }

    fn retransmission_timeout(&mut self, flow: &mut Flow) -> Verdict {
        let handshake = matches!(flow.state, State::SynSent | State::SynReceived);
        let orphan_probe = flow.flags.has(Flags::PERSIST) && flow.flags.has(Flags::DETACHED);
        let limit = if handshake { self.config.syn_retries } else { self.config.data_retries };
        if flow.retries >= limit || (orphan_probe && flow.backoff >= MAX_ORPHAN_PROBES) {
            return Verdict::End(Some(Failure::TimedOut));
        }
        flow.retries += 1;
        flow.backoff = flow.backoff.saturating_add(1);
        if handshake {
            if flow.flags.has(Flags::NO_NEXT_HOP) {
                self.ask_next_hop(*flow.remote.ip());
            }
            flow.flags.set(Flags::SYN_WANTED);
            return Verdict::Keep;
        }
        flow.flags.set(Flags::SEND_WANTED);
        if flow.flags.has(Flags::PERSIST) {
            if flow.send_window == 0 {
                self.counters.window_probes += 1;
                flow.flags.set(Flags::PROBE_WANTED);
            } else {
                flow.flags.set(Flags::FORCE);
            }
            return Verdict::Keep;
        }
        self.counters.timeouts += 1;
        let first = flow.retries == 1;
        flow.congestion.timed_out(first, flow.send_max, flow.in_flight(), u32::from(flow.mss));
        flow.duplicate_acks = 0;
        flow.flags.clear(Flags::TIMED);
        flow.flags.clear(Flags::RETRANSMIT);
        flow.send_next = flow.send_una;
        // A window that shrank over data in flight must not hold the retransmission back: silly or closed, it goes.
        flow.flags.set(if flow.send_window == 0 { Flags::RETRANSMIT } else { Flags::FORCE });
        Verdict::Keep
    }

    fn linger_timeout(&mut self, tick: Tick, flow: &mut Flow) -> Verdict {
        match flow.state {
            State::TimeWait => Verdict::End(None),
            State::FinWait2 if flow.flags.has(Flags::DETACHED) => Verdict::End(None),
            State::Established | State::CloseWait if flow.keep_alive > 0 => {
                if flow.all_acknowledged() {
                    if flow.retries >= MAX_KEEP_ALIVE_PROBES {
                        return Verdict::End(Some(Failure::TimedOut));
                    }
                    flow.retries += 1;
                    self.counters.keep_alive_probes += 1;
                    flow.flags.set(Flags::PROBE_WANTED);
                }
                flow.linger_at = Some(tick.after(flow.keep_alive));
                Verdict::Keep
            }
            _ => Verdict::Keep,
        }
    }
}

/// Length of the next segment that may be sent, and whether it carries FIN.
fn next_segment(flow: &Flow) -> Option<(u32, bool)> {
    if matches!(flow.state, State::FinWait2 | State::TimeWait) {
        // Our FIN was acknowledged: SND.UNA is beyond the stream.
        return None;
    }
    let end = flow.data_end();
    let unsent = distance(flow.send_next, end);
    let fin_pending = flow.flags.has(Flags::FIN_WANTED) && at_or_before(flow.send_next, end);
    if unsent == 0 {
        return fin_pending.then_some((0, true));
    }
    let mss = u32::from(flow.mss);
    // RFC 3042: the first two duplicates each let a new segment go.
    let limited_transmit = match flow.duplicate_acks {
        count @ 1..=2 if !flow.congestion.is_in_recovery() => u32::from(count) * mss,
        _ => 0,
    };
    let window = (flow.congestion.window() + limited_transmit).min(flow.send_window);
    let length = unsent.min(mss).min(window.saturating_sub(flow.in_flight()));
    if length == 0 {
        return None;
    }
    let last = length == unsent;
    // RFC 9293 section 3.8.6.2.1 (silly-window avoidance) and 3.7.4 (Nagle).
    let send = length == mss
        || (last && fin_pending)
        || (last
            && !flow.flags.has(Flags::CORK)
            && (flow.flags.has(Flags::NO_DELAY) || flow.in_flight() == 0))
        || (!last && length >= flow.send_window_max / 2)
        || flow.flags.has(Flags::FORCE);
    send.then_some((length, last && fin_pending))
}

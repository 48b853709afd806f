//! Frames that arrive (RFC 9293 section 3.10.7).

use core::net::SocketAddrV4;

use overfly_wire::checksum::ChecksumState;
use overfly_wire::tcp::{Flags as TcpFlags, Options, Segment};
use overfly_wire::{MacAddr, arp, ethernet, icmpv4, ipv4};

use crate::congestion::{Reaction, Reno};
use crate::engine::{Engine, NO_LISTENER, SEQUENCE_GAP, Shared, Verdict};
use crate::flow::{Flags, Flow, State};
use crate::owner::{Event, Failure, FlowId, ListenerId, Owner};
use crate::reassembly::Reassembly;
use crate::sequence::{at_or_before, before, distance, later};
use crate::time::{Instant, ticks};
use crate::transmit::Answer;

/// The least MSS that is believed: less would make every byte a segment.
const MIN_MSS: u16 = 64;
/// RFC 9293 section 3.7.1: without the option.
const DEFAULT_MSS: u16 = 536;
/// Bytes of the timestamps option with its padding.
const TIMESTAMPS_LEN: u16 = 12;
/// Full segments that one acknowledgment covers at most.
const STRETCH: u32 = 8;
/// RFC 7323 section 5.5: older than this, TS.Recent says nothing.
const TIMESTAMP_VALID_TICKS: u32 = ticks(24 * 24 * 3_600_000_000);

impl Engine {
    /// Takes one frame.
    pub fn receive<O: Owner>(&mut self, now: Instant, frame: &[u8], owner: &mut O) {
        self.tell(now);
        self.shared.counters.rx_frames += 1;
        let Ok((link, packet)) = ethernet::Header::parse(frame) else {
            self.shared.counters.drop_malformed += 1;
            return;
        };
        match link.ethertype {
            ethernet::ETHERTYPE_IPV4 => self.receive_ipv4(now, link.source, packet, owner),
            ethernet::ETHERTYPE_ARP if self.shared.config.arp => self.receive_arp(packet),
            _ => self.shared.counters.drop_ethertype += 1,
        }
    }

    fn receive_arp(&mut self, packet: &[u8]) {
        let Ok(packet) = arp::Packet::parse(packet) else {
            self.shared.counters.drop_malformed += 1;
            return;
        };
        // RFC 826: merge what the sender says of itself, if the packet is for us.
        if packet.target_ip != self.shared.config.address {
            return;
        }
        self.set_neighbor(packet.sender_ip, packet.sender_mac);
        if packet.operation == arp::Operation::Request {
            self.shared.answer(Answer::Arp {
                operation: arp::Operation::Reply,
                target_mac: packet.sender_mac,
                target_ip: packet.sender_ip,
            });
        }
    }

    fn receive_ipv4<O: Owner>(&mut self, now: Instant, next_hop: MacAddr, packet: &[u8], owner: &mut O) {
        let Ok(packet) = ipv4::Packet::parse(packet) else {
            self.shared.counters.drop_malformed += 1;
            return;
        };
        if packet.is_fragment() {
            self.shared.counters.drop_fragment += 1;
            return;
        }
        match packet.protocol() {
            ipv4::PROTOCOL_TCP => self.receive_tcp(now, next_hop, &packet, owner),
            ipv4::PROTOCOL_ICMP
                if self.shared.config.arp && packet.destination() == self.shared.config.address =>
            {
                self.receive_icmp(next_hop, &packet);
            }
            _ => self.shared.counters.drop_protocol += 1,
        }
    }

    fn receive_icmp(&mut self, next_hop: MacAddr, packet: &ipv4::Packet<'_>) {
        match icmpv4::Echo::parse(packet.payload()) {
            Ok(echo) if echo.kind == icmpv4::Kind::Request => {
                self.shared.answer(Answer::Echo {
                    next_hop,
                    remote: packet.source(),
                    identifier: echo.identifier,
                    sequence: echo.sequence,
                    data: echo.data.into(),
                });
            }
            Ok(_) => self.shared.counters.drop_protocol += 1,
            Err(_) => self.shared.counters.drop_malformed += 1,
        }
    }

    fn receive_tcp<O: Owner>(
        &mut self,
        now: Instant,
        next_hop: MacAddr,
        packet: &ipv4::Packet<'_>,
        owner: &mut O,
    ) {
        let (source, destination) = (packet.source(), packet.destination());
        let Ok(segment) = Segment::parse(packet.payload()) else {
            self.shared.counters.drop_malformed += 1;
            return;
        };
        let valid = if self.shared.config.partial_checksums {
            segment.verify(source, destination) != ChecksumState::Invalid
        } else {
            segment.checksum_holds(source, destination)
        };
        if !valid {
            self.shared.counters.drop_checksum += 1;
            return;
        }
        let Ok(options) = segment.options() else {
            self.shared.counters.drop_malformed += 1;
            return;
        };
        let local = SocketAddrV4::new(destination, segment.destination_port());
        let remote = SocketAddrV4::new(source, segment.source_port());
        let arrival = Arrival { segment, options, local, remote, next_hop };
        let Some(index) = self.flows.find(local, remote) else {
            self.without_flow(now, &arrival, None);
            return;
        };
        let flow = self.flows.get_mut(index);
        let verdict = self.shared.segment_arrives(now, FlowId(index), flow, &arrival, owner);
        let beyond = flow.send_max.wrapping_add(SEQUENCE_GAP);
        self.conclude(now, index, verdict, owner);
        if verdict == Verdict::GiveWay {
            self.without_flow(now, &arrival, Some(beyond));
        }
    }

    /// A segment for no flow: a SYN to a listener makes one, others are answered with RST (RFC 9293 section 3.10.7.1 and
    /// 3.10.7.2). `iss` is given when the tuple was used just before.
    fn without_flow(&mut self, now: Instant, arrival: &Arrival<'_>, iss: Option<u32>) {
        let flags = arrival.segment.flags();
        if flags.contains(TcpFlags::RST) {
            self.shared.counters.drop_no_flow += 1;
            return;
        }
        let listener = if flags.contains(TcpFlags::SYN) && !flags.intersects(TcpFlags::ACK | TcpFlags::FIN) {
            self.shared.listeners.find(arrival.local)
        } else {
            None
        };
        let Some(listener) = listener else {
            self.shared.counters.drop_no_flow += 1;
            // Beside a kernel, a SYN for no listener was steered here just before its listener closed: sent again, it
            // finds another stack's listener, or the kernel, which knows whether to refuse.
            if self.shared.config.arp || !flags.contains(TcpFlags::SYN) || flags.contains(TcpFlags::ACK) {
                self.shared.answer_with_reset(arrival);
            }
            return;
        };
        if !self.shared.listeners.has_room(listener) {
            self.shared.counters.drop_backlog += 1;
            return;
        }
        let iss = iss
            .unwrap_or_else(|| self.shared.initial_sequence(&self.flows, now, arrival.local, arrival.remote));
        let mut flow = self.shared.new_flow(now, arrival.local, arrival.remote, iss);
        flow.state = State::SynReceived;
        flow.next_hop = arrival.next_hop;
        flow.listener = listener;
        flow.flags.set(Flags::HALF_OPEN);
        // The owner does not know the flow until it is established.
        flow.flags.set(Flags::RELEASED);
        self.shared.learn_from_syn(now, &mut flow, arrival);
        flow.flags.set(Flags::SYN_WANTED);
        match self.flows.insert(flow) {
            Some(index) => {
                self.shared.listeners.half_opened(listener);
                self.enqueue(index);
            }
            None => self.shared.counters.drop_no_flows += 1,
        }
    }
}

/// A TCP segment with what surrounds it.
pub(crate) struct Arrival<'a> {
    segment: Segment<'a>,
    options: Options,
    local: SocketAddrV4,
    remote: SocketAddrV4,
    next_hop: MacAddr,
}

impl Shared {
    /// RFC 9293 section 3.10.7.1: the RST that answers a segment without a flow.
    fn answer_with_reset(&mut self, arrival: &Arrival<'_>) {
        let segment = &arrival.segment;
        let flags = segment.flags();
        let (sequence, acknowledgment, answer_flags) = if flags.contains(TcpFlags::ACK) {
            (segment.acknowledgment(), 0, TcpFlags::RST)
        } else {
            let length = segment.payload().len() as u32
                + u32::from(flags.contains(TcpFlags::SYN))
                + u32::from(flags.contains(TcpFlags::FIN));
            (0, segment.sequence().wrapping_add(length), TcpFlags::RST | TcpFlags::ACK)
        };
        self.counters.resets_sent += 1;
        self.answer(Answer::Tcp {
            next_hop: arrival.next_hop,
            local: arrival.local,
            remote: arrival.remote,
            sequence,
            acknowledgment,
            flags: answer_flags,
            window: 0,
            timestamps: None,
        });
    }

    /// Takes the options and the initial sequence number of a SYN (RFC 9293 section 3.7.1, RFC 7323).
    fn learn_from_syn(&self, now: Instant, flow: &mut Flow, arrival: &Arrival<'_>) {
        let (segment, options) = (&arrival.segment, &arrival.options);
        flow.receive_next = segment.sequence().wrapping_add(1);
        flow.acked_next = flow.receive_next;
        // The SYN's answer offers an unscaled window (RFC 7323 section 2.2).
        flow.receive_edge = flow.receive_next.wrapping_add(self.config.receive_window.min(0xffff));
        let mut mss = options.mss.unwrap_or(DEFAULT_MSS).max(MIN_MSS).min(self.config.mtu - 40);
        if let Some(timestamps) = options.timestamps {
            flow.flags.set(Flags::TIMESTAMPS);
            flow.timestamp_recent = timestamps.value;
            flow.timestamp_recent_at = now.tick();
            // RFC 6691: the option's bytes are not in the MSS.
            mss = mss.saturating_sub(TIMESTAMPS_LEN).max(MIN_MSS - TIMESTAMPS_LEN);
        }
        flow.mss = mss;
        flow.send_shift = options.window_scale.unwrap_or(0);
        if options.window_scale.is_none() {
            flow.receive_shift = 0;
        }
        flow.send_window = u32::from(segment.window());
        flow.send_window_max = flow.send_window;
        flow.window_sequence = segment.sequence();
        flow.window_ack = segment.acknowledgment();
        flow.congestion = Reno::new(self.initial_window(u32::from(mss)), flow.send_una);
    }

    /// One segment for a flow.
    fn segment_arrives<O: Owner>(
        &mut self,
        now: Instant,
        id: FlowId,
        flow: &mut Flow,
        arrival: &Arrival<'_>,
        owner: &mut O,
    ) -> Verdict {
        match flow.state {
            State::SynSent => self.syn_sent(now, id, flow, arrival, owner),
            State::TimeWait if self.may_give_way(flow, arrival) => {
                self.counters.time_wait_reuses += 1;
                Verdict::GiveWay
            }
            _ => self.synchronized(now, id, flow, arrival, owner),
        }
    }

    /// RFC 6191 section 2, RFC 9293 section 3.10.7.4: a SYN that cannot be of the old connection opens a new one.
    fn may_give_way(&self, flow: &Flow, arrival: &Arrival<'_>) -> bool {
        let flags = arrival.segment.flags();
        let is_syn =
            flags.contains(TcpFlags::SYN) && !flags.intersects(TcpFlags::ACK | TcpFlags::RST | TcpFlags::FIN);
        let newer = match arrival.options.timestamps {
            Some(timestamps) if flow.flags.has(Flags::TIMESTAMPS) => {
                before(flow.timestamp_recent, timestamps.value)
                    || (timestamps.value == flow.timestamp_recent
                        && before(flow.receive_next, arrival.segment.sequence()))
            }
            _ => before(flow.receive_next, arrival.segment.sequence()),
        };
        is_syn && newer && self.listeners.find(arrival.local).is_some()
    }

    /// RFC 9293 section 3.10.7.3.
    fn syn_sent<O: Owner>(
        &mut self,
        now: Instant,
        id: FlowId,
        flow: &mut Flow,
        arrival: &Arrival<'_>,
        owner: &mut O,
    ) -> Verdict {
        let segment = &arrival.segment;
        let flags = segment.flags();
        let has_ack = flags.contains(TcpFlags::ACK);
        if has_ack && segment.acknowledgment() != flow.send_una.wrapping_add(1) {
            self.counters.drop_bad_ack += 1;
            if !flags.contains(TcpFlags::RST) {
                self.answer_with_reset(arrival);
            }
            return Verdict::Keep;
        }
        if flags.contains(TcpFlags::RST) {
            if has_ack && flow.send_max != flow.send_una {
                self.counters.resets_received += 1;
                return Verdict::End(Some(Failure::Refused));
            }
            self.counters.drop_bad_ack += 1;
            return Verdict::Keep;
        }
        if !flags.contains(TcpFlags::SYN) || flow.send_max == flow.send_una {
            self.counters.drop_bad_ack += 1;
            return Verdict::Keep;
        }
        self.learn_from_syn(now, flow, arrival);
        flow.next_hop = arrival.next_hop;
        if !has_ack {
            // Simultaneous open (RFC 9293 section 3.5, figure 7).
            flow.state = State::SynReceived;
            flow.flags.set(Flags::SYN_WANTED);
            flow.send_next = flow.send_una;
            return Verdict::Keep;
        }
        self.establish(now, flow);
        flow.flags.set(Flags::ACK_NOW);
        flow.flags.set(Flags::SEND_WANTED);
        self.counters.connects += 1;
        if !flow.flags.has(Flags::DETACHED) {
            owner.event(id, Event::Connected);
        }
        // Data or FIN on the SYN and ACK come again: the ACK just sent does not cover them.
        Verdict::Keep
    }

    /// The SYN was acknowledged.
    fn establish(&self, now: Instant, flow: &mut Flow) {
        flow.state = State::Established;
        flow.send_una = flow.send_una.wrapping_add(1);
        flow.send_next = flow.send_una;
        if flow.flags.take(Flags::TIMED) {
            flow.rtt.sample((now - flow.timed_at).as_micros() as u64);
        }
        flow.retries = 0;
        flow.backoff = 0;
        flow.retransmit_at = None;
        flow.flags.clear(Flags::SYN_WANTED);
        if flow.keep_alive > 0 {
            flow.linger_at = Some(now.tick().after(flow.keep_alive));
        }
        let edge = flow.possible_edge(self.config.receive_window);
        flow.receive_edge = later(flow.receive_edge, edge);
    }

    /// RFC 9293 section 3.10.7.4, in its order.
    fn synchronized<O: Owner>(
        &mut self,
        now: Instant,
        id: FlowId,
        flow: &mut Flow,
        arrival: &Arrival<'_>,
        owner: &mut O,
    ) -> Verdict {
        let segment = &arrival.segment;
        let flags = segment.flags();
        let sequence = segment.sequence();
        let length = segment.payload().len() as u32
            + u32::from(flags.contains(TcpFlags::SYN))
            + u32::from(flags.contains(TcpFlags::FIN));
        let end = sequence.wrapping_add(length);

        // RFC 7323 section 5.3 R1: PAWS comes first.
        if let Some(timestamps) = arrival.options.timestamps
            && flow.flags.has(Flags::TIMESTAMPS)
            && !flags.contains(TcpFlags::RST)
            && before(timestamps.value, flow.timestamp_recent)
            && now.tick().since(flow.timestamp_recent_at) < TIMESTAMP_VALID_TICKS
        {
            self.counters.drop_paws += 1;
            self.challenge(now, flow);
            return Verdict::Keep;
        }

        // First: the sequence number. The test is Linux's: an acknowledgment at the right edge is good.
        if before(end, flow.receive_next) || before(flow.receive_edge, sequence) {
            self.counters.drop_window += 1;
            if flow.state == State::SynReceived && flags.contains(TcpFlags::SYN) && end == flow.receive_next {
                flow.flags.set(Flags::SYN_WANTED);
            } else if !flags.contains(TcpFlags::RST) {
                if length > 0 {
                    flow.flags.set(Flags::ACK_NOW);
                } else {
                    self.challenge(now, flow);
                }
            }
            return Verdict::Keep;
        }

        // Second: RST (RFC 5961 section 3.2: only the exact sequence number ends the connection).
        if flags.contains(TcpFlags::RST) {
            if flow.state == State::TimeWait {
                // RFC 1337: TIME-WAIT is not ended by a stray RST.
                return Verdict::Keep;
            }
            if sequence == flow.receive_next {
                self.counters.resets_received += 1;
                return Verdict::End(Some(match flow.state {
                    State::SynReceived => Failure::Refused,
                    _ => Failure::Reset,
                }));
            }
            self.challenge(now, flow);
            return Verdict::Keep;
        }

        // Fourth: SYN. The same SYN again asks for the same answer; others get a challenge (RFC 5961 section 4.2).
        if flags.contains(TcpFlags::SYN) {
            if flow.state == State::SynReceived && sequence.wrapping_add(1) == flow.receive_next {
                flow.flags.set(Flags::SYN_WANTED);
            } else {
                self.challenge(now, flow);
            }
            return Verdict::Keep;
        }

        // Fifth: ACK.
        if !flags.contains(TcpFlags::ACK) {
            self.counters.drop_bad_ack += 1;
            return Verdict::Keep;
        }
        let acknowledgment = segment.acknowledgment();
        if flow.state == State::SynReceived {
            if !before(flow.send_una, acknowledgment) || before(flow.send_max, acknowledgment) {
                self.counters.drop_bad_ack += 1;
                self.answer_with_reset(arrival);
                return Verdict::Keep;
            }
            if let Some(verdict) = self.handshake_done(now, id, flow, owner) {
                return verdict;
            }
        }
        if before(flow.send_max, acknowledgment) {
            self.counters.drop_bad_ack += 1;
            self.challenge(now, flow);
            return Verdict::Keep;
        }
        if before(acknowledgment, flow.send_una.wrapping_sub(flow.send_window_max)) {
            // RFC 5961 section 5.2: too old to be of this connection's recent past.
            self.counters.drop_bad_ack += 1;
            self.challenge(now, flow);
            return Verdict::Keep;
        }
        if let Some(timestamps) = arrival.options.timestamps
            && flow.flags.has(Flags::TIMESTAMPS)
            && at_or_before(sequence, flow.acked_next)
            && !before(timestamps.value, flow.timestamp_recent)
        {
            // RFC 7323 section 4.3: only a segment that covers the last ACK sent moves TS.Recent.
            flow.timestamp_recent = timestamps.value;
            flow.timestamp_recent_at = now.tick();
        }
        // The way back may have changed (a gateway that failed over).
        flow.next_hop = arrival.next_hop;
        if flow.flags.has(Flags::PERSIST) || flow.all_acknowledged() {
            // The probe was answered: the peer lives (RFC 9293 section 3.8.6.1).
            flow.retries = 0;
        }
        if flow.keep_alive > 0 && matches!(flow.state, State::Established | State::CloseWait) {
            flow.linger_at = Some(now.tick().after(flow.keep_alive));
        }

        let closed = self.acknowledge(now, id, flow, arrival, owner);
        if let Some(verdict) = closed {
            return verdict;
        }

        // Seventh and eighth: the text, then FIN.
        if length > 0 {
            return self.text(now, id, flow, arrival, owner);
        }
        Verdict::Keep
    }

    /// SYN-RECEIVED became ESTABLISHED. A verdict, if the flow does not go on.
    fn handshake_done<O: Owner>(
        &mut self,
        now: Instant,
        id: FlowId,
        flow: &mut Flow,
        owner: &mut O,
    ) -> Option<Verdict> {
        if flow.listener == NO_LISTENER {
            // A simultaneous open.
            self.establish(now, flow);
            self.counters.connects += 1;
            if !flow.flags.has(Flags::DETACHED) {
                owner.event(id, Event::Connected);
            }
            return None;
        }
        if !self.listeners.is_open(flow.listener) {
            flow.flags.set(Flags::RESET_WANTED);
            return Some(Verdict::Keep);
        }
        if flow.flags.take(Flags::HALF_OPEN) {
            self.listeners.half_open_ended(flow.listener);
        }
        self.establish(now, flow);
        self.listeners.established(flow.listener);
        flow.flags.set(Flags::UNACCEPTED);
        flow.flags.clear(Flags::RELEASED);
        self.counters.accepts += 1;
        owner.event(id, Event::Incoming { listener: ListenerId(flow.listener) });
        None
    }

    /// The acknowledgment and the window of a segment. A verdict, if the flow does not go on.
    fn acknowledge<O: Owner>(
        &mut self,
        now: Instant,
        id: FlowId,
        flow: &mut Flow,
        arrival: &Arrival<'_>,
        owner: &mut O,
    ) -> Option<Verdict> {
        let segment = &arrival.segment;
        let acknowledgment = segment.acknowledgment();
        let window = u32::from(segment.window()) << flow.send_shift;
        let mss = u32::from(flow.mss);
        let flight = flow.in_flight();

        if acknowledgment == flow.send_una {
            // RFC 5681 section 2: what makes an acknowledgment a duplicate.
            let duplicate = segment.payload().is_empty()
                && !segment.flags().contains(TcpFlags::FIN)
                && !flow.all_acknowledged()
                && window == flow.send_window;
            if duplicate {
                self.counters.duplicate_acks += 1;
                flow.duplicate_acks = flow.duplicate_acks.saturating_add(1);
                let una = flow.send_una;
                let reaction =
                    flow.congestion.duplicate(flow.duplicate_acks, una, flow.send_max, flight, mss);
                if reaction == Reaction::Retransmit {
                    self.counters.fast_retransmits += 1;
                    flow.flags.set(Flags::RETRANSMIT);
                }
                flow.flags.set(Flags::SEND_WANTED);
            }
        }

        let mut fin_acknowledged = flow.state == State::FinWait2;
        if before(flow.send_una, acknowledgment) {
            if flow.flags.has(Flags::TIMED) && at_or_before(flow.timed_sequence, acknowledgment) {
                flow.flags.clear(Flags::TIMED);
                flow.rtt.sample((now - flow.timed_at).as_micros() as u64);
            }
            let acked = acknowledgment.wrapping_sub(flow.send_una);
            fin_acknowledged = flow.state.fin_was_sent() && acknowledgment == flow.data_end().wrapping_add(1);
            let data = acked - u32::from(fin_acknowledged);
            flow.una_offset += u64::from(data);
            flow.send_una = acknowledgment;
            flow.send_next = later(flow.send_next, acknowledgment);
            flow.duplicate_acks = 0;
            flow.retries = 0;
            flow.backoff = 0;
            flow.flags.clear(Flags::PERSIST);
            flow.flags.clear(Flags::RETRANSMIT);
            let rest = flow.in_flight();
            if flow.congestion.acknowledged(acked, acknowledgment, flight, rest, mss) == Reaction::Retransmit
            {
                flow.flags.set(Flags::RETRANSMIT);
            }
            // RFC 6298 sections 5.2 and 5.3.
            flow.retransmit_at =
                (!flow.all_acknowledged()).then(|| now.tick().after(ticks(flow.rtt.timeout_us(0))));
            flow.flags.set(Flags::SEND_WANTED);
            if data > 0 && !flow.flags.has(Flags::RELEASED) {
                owner.event(id, Event::Acknowledged { offset: flow.una_offset });
            }
        }

        // RFC 9293 section 3.10.7.4: only newer segments move the window.
        let newer = before(flow.window_sequence, segment.sequence())
            || (flow.window_sequence == segment.sequence() && at_or_before(flow.window_ack, acknowledgment));
        if newer {
            if window > flow.send_window {
                flow.flags.set(Flags::SEND_WANTED);
            }
            if window > 0 && flow.flags.take(Flags::PERSIST) {
                flow.backoff = 0;
                flow.flags.set(Flags::SEND_WANTED);
                flow.retransmit_at =
                    (!flow.all_acknowledged()).then(|| now.tick().after(ticks(flow.rtt.timeout_us(0))));
            }
            flow.send_window = window;
            flow.send_window_max = flow.send_window_max.max(window);
            flow.window_sequence = segment.sequence();
            flow.window_ack = acknowledgment;
        }

        if fin_acknowledged {
            match flow.state {
                State::FinWait1 => {
                    flow.state = State::FinWait2;
                    if flow.flags.has(Flags::DETACHED) {
                        let timeout = self.config.fin_timeout.as_micros() as u64;
                        flow.linger_at = Some(now.tick().after(ticks(timeout)));
                    }
                }
                State::Closing => return Some(Verdict::TimeWait),
                State::LastAck => return Some(Verdict::End(None)),
                _ => {}
            }
        }
        None
    }

    /// The text and the FIN of an acceptable segment.
    fn text<O: Owner>(
        &mut self,
        now: Instant,
        id: FlowId,
        flow: &mut Flow,
        arrival: &Arrival<'_>,
        owner: &mut O,
    ) -> Verdict {
        let segment = &arrival.segment;
        let mut sequence = segment.sequence();
        let mut data = segment.payload();
        let mut fin = segment.flags().contains(TcpFlags::FIN);

        if !flow.state.may_receive() {
            // The peer's FIN was here: this is an old segment. RFC 9293 section 3.10.7.4 restarts TIME-WAIT for a FIN.
            self.counters.drop_duplicate += 1;
            flow.flags.set(Flags::ACK_NOW);
            return if fin && flow.state == State::TimeWait { Verdict::TimeWait } else { Verdict::Keep };
        }

        let known = distance(sequence, flow.receive_next) as usize;
        if known > 0 {
            flow.flags.set(Flags::ACK_NOW);
            if known >= data.len() + usize::from(fin) {
                self.counters.drop_duplicate += 1;
                return Verdict::Keep;
            }
            data = &data[known..];
            sequence = flow.receive_next;
        }
        let room = distance(sequence, flow.receive_edge) as usize;
        if data.len() > room {
            self.counters.drop_window += 1;
            flow.flags.set(Flags::ACK_NOW);
            data = &data[..room];
            fin = false;
        }
        if !data.is_empty() && flow.flags.has(Flags::DETACHED) {
            // RFC 9293 section 3.6.1: data that nobody will read.
            self.counters.drop_no_owner += 1;
            flow.flags.set(Flags::RESET_WANTED);
            return Verdict::Keep;
        }

        if sequence != flow.receive_next {
            self.hold(flow, sequence, data, fin);
            return Verdict::Keep;
        }
        if !data.is_empty() {
            self.deliver(id, flow, data, owner);
            fin |= self.drain(id, flow, owner);
            self.schedule_ack(now, flow, segment.flags().contains(TcpFlags::PSH));
        }
        if fin {
            return self.remote_closed(id, flow, owner);
        }
        Verdict::Keep
    }

    fn deliver<O: Owner>(&mut self, id: FlowId, flow: &mut Flow, data: &[u8], owner: &mut O) {
        let consumed = owner.deliver(id, data).min(data.len());
        flow.receive_next = flow.receive_next.wrapping_add(data.len() as u32);
        flow.held += (data.len() - consumed) as u32;
        self.counters.rx_bytes += data.len() as u64;
    }

    /// Holds an out-of-order segment, and asks for what is missing with a duplicate ACK (RFC 5681 section 4.2).
    fn hold(&mut self, flow: &mut Flow, sequence: u32, data: &[u8], fin: bool) {
        flow.flags.set(Flags::ACK_NOW);
        let room = self.config.reassembly_budget.saturating_sub(self.reassembly_bytes);
        let reassembly = flow.reassembly.get_or_insert_with(|| Box::new(Reassembly::default()));
        match reassembly.insert(sequence, data, room) {
            Some(added) => {
                self.counters.out_of_order += 1;
                self.reassembly_bytes += added;
                if fin {
                    reassembly.set_fin(sequence.wrapping_add(data.len() as u32));
                }
            }
            None => self.counters.drop_reassembly_budget += 1,
        }
    }

    /// Delivers what was held and is now in order. True if the FIN is next.
    fn drain<O: Owner>(&mut self, id: FlowId, flow: &mut Flow, owner: &mut O) -> bool {
        let Some(mut reassembly) = flow.reassembly.take() else {
            return false;
        };
        // RFC 5681 section 4.2: a segment that fills a gap is acknowledged at once.
        flow.flags.set(Flags::ACK_NOW);
        while let Some((data, known)) = reassembly.take(flow.receive_next) {
            self.reassembly_bytes -= data.len();
            if known < data.len() {
                self.deliver(id, flow, &data[known..], owner);
            }
        }
        let fin = reassembly.fin_is_at(flow.receive_next);
        if !fin && !reassembly.is_empty() {
            flow.reassembly = Some(reassembly);
        }
        fin
    }

    /// RFC 9293 section 3.8.6.3, stretched as by a kernel that merges segments before it looks at them: two or more
    /// segments that end with PSH, or many, are acknowledged at once; a burst that seems to go on, after a tick; one
    /// segment, after a while.
    fn schedule_ack(&self, now: Instant, flow: &mut Flow, push: bool) {
        let waiting = flow.receive_next.wrapping_sub(flow.acked_next);
        let mss = u32::from(flow.mss);
        let at = if waiting < 2 * mss {
            now.tick().after(ticks(self.config.delayed_ack.as_micros() as u64).max(1))
        } else if push || waiting >= (STRETCH * mss).min(self.config.receive_window / 2) {
            flow.flags.set(Flags::ACK_NOW);
            return;
        } else {
            now.tick().after(1)
        };
        if flow.ack_at.is_none_or(|due| at.is_before(due)) {
            flow.ack_at = Some(at);
        }
    }

    /// The peer's FIN is next in order.
    fn remote_closed<O: Owner>(&self, id: FlowId, flow: &mut Flow, owner: &mut O) -> Verdict {
        flow.receive_next = flow.receive_next.wrapping_add(1);
        flow.receive_edge = later(flow.receive_edge, flow.receive_next);
        flow.flags.set(Flags::ACK_NOW);
        if !flow.flags.has(Flags::DETACHED) {
            owner.event(id, Event::RemoteClosed);
        }
        match flow.state {
            State::Established => {
                flow.state = State::CloseWait;
                Verdict::Keep
            }
            State::FinWait1 => {
                flow.state = State::Closing;
                Verdict::Keep
            }
            _ => Verdict::TimeWait,
        }
    }

    /// Answers what looks wrong with an ACK (RFC 5961), within the rate limit.
    fn challenge(&mut self, now: Instant, flow: &mut Flow) {
        if self.challenges.allow(now.tick()) {
            self.counters.challenge_acks += 1;
            flow.flags.set(Flags::ACK_NOW);
        }
    }
}

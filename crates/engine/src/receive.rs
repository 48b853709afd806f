//! Frames that arrive (RFC 9293 section 3.10.7).

use overfly_wire::checksum::{self, ChecksumState};
use overfly_wire::ip::Ecn;
use overfly_wire::tcp::{Flags as TcpFlags, Options, Segment, Timestamps};
use overfly_wire::{MacAddr, arp, ethernet, ipv4, ipv6};

use crate::autotune::Autotune;
use crate::config::{self, SynCookies};
use crate::congestion::{Ack, CongestionControl};
use crate::cookies::{self, Offer};
use crate::engine::{Engine, NO_LISTENER, SEQUENCE_GAP, Shared, Turn, Verdict, window_shift};
use crate::flow::{Flags, Flow, State};
use crate::owner::{Event, Failure, ListenerId, Owner};
use crate::reassembly::{Held, Reassembly};
use crate::recovery::{CongestionState, Delivered};
use crate::sequence::{at_or_before, before, distance, later};
use crate::time::{Deadline, Instant, ticks};
use crate::transmit::Answer;
use crate::tuple::{Address, Tuple};

/// The least MSS that is believed: less would make every byte a segment.
pub(crate) const MIN_MSS: u16 = 64;
/// RFC 9293 section 3.7.1: without the option.
const DEFAULT_MSS: u16 = 536;
const DEFAULT_MSS_V6: u16 = 1220;
/// Bytes of the timestamps option with its padding.
const TIMESTAMPS_LEN: u16 = 12;
/// Full segments that one acknowledgment covers at most.
const STRETCH: u32 = 8;
/// RFC 7323 section 5.5: older than this, TS.Recent says nothing.
const TIMESTAMP_VALID_TICKS: u32 = ticks(24 * 24 * 3_600_000_000);

/// A TCP segment with what surrounds it.
pub(crate) struct Arrival<'a> {
    pub(crate) segment: Segment<'a>,
    pub(crate) options: Options,
    pub(crate) tuple: Tuple,
    pub(crate) next_hop: MacAddr,
    /// The packet carried an ECN mark (CE, RFC 3168 section 5).
    pub(crate) marked: bool,
}

impl Arrival<'_> {
    /// Sequence numbers that the segment takes: RFC 9293's SEG.LEN.
    #[inline]
    fn length(&self) -> u32 {
        let flags = self.segment.flags();
        self.segment.payload().len() as u32
            + u32::from(flags.contains(TcpFlags::SYN))
            + u32::from(flags.contains(TcpFlags::FIN))
    }
}

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
            ethernet::ETHERTYPE_IPV6 => self.receive_ipv6(now, link.source, packet, owner),
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
            ipv4::PROTOCOL_TCP => {
                let (source, destination) = (packet.source(), packet.destination());
                if let Some(segment) = self.shared.check_tcp(packet.payload(), source, destination) {
                    let marked = Ecn::of_traffic_class(packet.tos()) == Ecn::Ce;
                    let (local, remote) = (Address::v4(destination), Address::v4(source));
                    self.receive_tcp(now, next_hop, segment, (local, remote), marked, owner);
                }
            }
            ipv4::PROTOCOL_ICMP => self.receive_icmpv4(now, next_hop, &packet, owner),
            _ => self.shared.counters.drop_protocol += 1,
        }
    }

    fn receive_ipv6<O: Owner>(&mut self, now: Instant, next_hop: MacAddr, packet: &[u8], owner: &mut O) {
        let Ok(packet) = ipv6::Packet::parse(packet) else {
            self.shared.counters.drop_malformed += 1;
            return;
        };
        if packet.is_fragment() {
            self.shared.counters.drop_fragment += 1;
            return;
        }
        match packet.protocol() {
            ipv6::PROTOCOL_TCP => {
                let (source, destination) = (packet.source(), packet.destination());
                if let Some(segment) = self.shared.check_tcp(packet.payload(), source, destination) {
                    let marked = packet.ecn() == Ecn::Ce;
                    let (local, remote) = (Address::v6(destination), Address::v6(source));
                    self.receive_tcp(now, next_hop, segment, (local, remote), marked, owner);
                }
            }
            ipv6::PROTOCOL_ICMPV6 => self.receive_icmpv6(now, next_hop, &packet, owner),
            _ => self.shared.counters.drop_protocol += 1,
        }
    }

    fn receive_tcp<O: Owner>(
        &mut self,
        now: Instant,
        next_hop: MacAddr,
        segment: Segment<'_>,
        (local, remote): (Address, Address),
        marked: bool,
        owner: &mut O,
    ) {
        let Ok(options) = segment.options() else {
            self.shared.counters.drop_malformed += 1;
            return;
        };
        let tuple = Tuple {
            local,
            remote,
            local_port: segment.destination_port(),
            remote_port: segment.source_port(),
        };
        let arrival = Arrival { segment, options, tuple, next_hop, marked };
        match self.flows.find(&tuple) {
            Some(index) => self.with_flow(now, index, &arrival, owner),
            None => self.without_flow(now, &arrival, None, owner),
        }
    }

    fn with_flow<O: Owner>(&mut self, now: Instant, index: u32, arrival: &Arrival<'_>, owner: &mut O) {
        let mut turn = self.turn(now, index, owner);
        let verdict = turn.segment_arrives(arrival);
        let beyond = turn.flow.send_next.wrapping_add(SEQUENCE_GAP);
        self.conclude(now, index, verdict, owner);
        if verdict == Verdict::GiveWay {
            self.without_flow(now, arrival, Some(beyond), owner);
        }
    }

    /// A segment for no flow: a SYN to a listener makes one, others are answered with RST (RFC 9293 section 3.10.7.1 and
    /// 3.10.7.2). `iss` is given when the tuple was used just before.
    fn without_flow<O: Owner>(
        &mut self,
        now: Instant,
        arrival: &Arrival<'_>,
        iss: Option<u32>,
        owner: &mut O,
    ) {
        let flags = arrival.segment.flags();
        if flags.contains(TcpFlags::RST) {
            self.shared.counters.drop_no_flow += 1;
            return;
        }
        let bare_syn = flags.contains(TcpFlags::SYN) && !flags.intersects(TcpFlags::ACK | TcpFlags::FIN);
        let listener = self.shared.listeners.find(arrival.tuple.local());
        match listener {
            Some(listener) if bare_syn => self.syn_arrives(now, arrival, listener, iss),
            Some(listener)
                if flags.contains(TcpFlags::ACK)
                    && !flags.contains(TcpFlags::SYN)
                    && self.shared.cookies.are_out(now) =>
            {
                self.cookie_arrives(now, arrival, listener, owner);
            }
            _ => {
                self.shared.counters.drop_no_flow += 1;
                // Beside a kernel, a SYN for no listener was steered here just before its listener closed: sent again, it
                // finds another stack's listener, or the kernel, which knows whether to refuse.
                if self.shared.config.arp || !flags.contains(TcpFlags::SYN) || flags.contains(TcpFlags::ACK) {
                    self.shared.answer_with_reset(arrival);
                }
            }
        }
    }

    /// RFC 9293 section 3.10.7.2, second and third.
    fn syn_arrives(&mut self, now: Instant, arrival: &Arrival<'_>, listener: u32, iss: Option<u32>) {
        if self.shared.listeners.accept_queue_is_full(listener) {
            self.shared.counters.drop_backlog += 1;
            return;
        }
        let policy = self.shared.config.syn_cookies;
        if policy == SynCookies::Always || self.shared.listeners.syn_queue_is_full(listener) {
            if policy == SynCookies::Off {
                self.shared.counters.drop_backlog += 1;
            } else {
                self.shared.answer_with_cookie(now, arrival);
            }
            return;
        }
        let iss = iss.unwrap_or_else(|| self.shared.initial_sequence(now, &arrival.tuple));
        let mut flow = self.shared.new_flow(now, arrival.tuple, iss);
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

    /// An acknowledgment for no flow, while cookies are out (RFC 4987 section 3.6): the third segment of a handshake, perhaps.
    fn cookie_arrives<O: Owner>(
        &mut self,
        now: Instant,
        arrival: &Arrival<'_>,
        listener: u32,
        owner: &mut O,
    ) {
        let Some(mut flow) = self.shared.flow_from_cookie(now, arrival) else {
            self.shared.counters.drop_bad_cookie += 1;
            self.shared.answer_with_reset(arrival);
            return;
        };
        if self.shared.listeners.accept_queue_is_full(listener) {
            self.shared.counters.drop_backlog += 1;
            return;
        }
        flow.listener = listener;
        match self.flows.insert(flow) {
            Some(index) => {
                self.shared.counters.syn_cookies_accepted += 1;
                self.with_flow(now, index, arrival, owner);
            }
            None => self.shared.counters.drop_no_flows += 1,
        }
    }
}

impl Shared {
    /// A segment that is well-formed and whose checksum holds.
    #[inline]
    fn check_tcp<'a, A: checksum::Address>(
        &mut self,
        bytes: &'a [u8],
        source: A,
        destination: A,
    ) -> Option<Segment<'a>> {
        let Ok(segment) = Segment::parse(bytes) else {
            self.counters.drop_malformed += 1;
            return None;
        };
        let valid = if self.config.partial_checksums {
            segment.verify(source, destination) != ChecksumState::Invalid
        } else {
            segment.checksum_holds(source, destination)
        };
        if !valid {
            self.counters.drop_checksum += 1;
            return None;
        }
        Some(segment)
    }

    /// RFC 9293 section 3.10.7.1: the RST that answers a segment without a flow.
    pub(crate) fn answer_with_reset(&mut self, arrival: &Arrival<'_>) {
        let segment = &arrival.segment;
        let (sequence, acknowledgment, flags) = if segment.flags().contains(TcpFlags::ACK) {
            (segment.acknowledgment(), 0, TcpFlags::RST)
        } else {
            (0, segment.sequence().wrapping_add(arrival.length()), TcpFlags::RST | TcpFlags::ACK)
        };
        self.counters.resets_sent += 1;
        self.answer(Answer::Tcp {
            next_hop: arrival.next_hop,
            tuple: arrival.tuple,
            sequence,
            acknowledgment,
            flags,
            window: 0,
            options: Options::NONE,
        });
    }

    /// Answers a SYN without keeping anything of it (RFC 4987 section 3.6): the cookie holds the MSS, the timestamp the other
    /// options.
    fn answer_with_cookie(&mut self, now: Instant, arrival: &Arrival<'_>) {
        let (tuple, options) = (arrival.tuple, &arrival.options);
        let default = if tuple.is_v4() { DEFAULT_MSS } else { DEFAULT_MSS_V6 };
        let mss = options.mss.unwrap_or(default);
        let syn = arrival.segment.sequence();
        let cookie = self.cookies.make(now, tuple.local(), tuple.remote(), syn, mss);
        let asked = arrival.segment.flags().contains(TcpFlags::ECE | TcpFlags::CWR);
        let mut flags = TcpFlags::SYN | TcpFlags::ACK;
        let mut answer = Options { mss: Some(self.largest_segment(&tuple)), ..Options::NONE };
        if let Some(timestamps) = options.timestamps
            && self.config.timestamps
        {
            let offer = Offer {
                window_scale: options.window_scale,
                sack_permitted: options.sack_permitted && self.config.sack,
                ecn: asked && self.config.ecn != config::Ecn::Off,
            };
            let clock = now.tick().0.wrapping_add(self.secret.addresses(&tuple));
            answer.timestamps =
                Some(Timestamps { value: cookies::encode_timestamp(clock, offer), echo: timestamps.value });
            answer.sack_permitted = offer.sack_permitted;
            answer.window_scale = options.window_scale.map(|_| window_shift(self.config.receive_window));
            if offer.ecn {
                flags |= TcpFlags::ECE;
            }
        }
        self.counters.syn_cookies_sent += 1;
        self.answer(Answer::Tcp {
            next_hop: arrival.next_hop,
            tuple,
            sequence: cookie,
            acknowledgment: syn.wrapping_add(1),
            flags,
            window: self.config.initial_receive_window.min(0xffff) as u16,
            options: answer,
        });
    }

    /// The control block of a handshake whose third segment this is, if its acknowledgment is a cookie of ours.
    fn flow_from_cookie(&mut self, now: Instant, arrival: &Arrival<'_>) -> Option<Flow> {
        let (tuple, segment) = (arrival.tuple, &arrival.segment);
        let (sequence, acknowledgment) = (segment.sequence(), segment.acknowledgment());
        let mss = self.cookies.check(now, tuple.local(), tuple.remote(), sequence, acknowledgment)?;
        let mut flow = self.new_flow(now, tuple, acknowledgment.wrapping_sub(1));
        flow.state = State::SynReceived;
        flow.next_hop = arrival.next_hop;
        flow.flags.set(Flags::RELEASED);
        flow.send_next = acknowledgment;
        flow.receive_next = sequence;
        flow.acked_next = sequence;
        flow.receive_edge = sequence.wrapping_add(flow.receive_limit.min(0xffff));
        flow.window_sequence = sequence;
        let mut mss = mss.min(self.largest_segment(&tuple));
        let mut offer = Offer::default();
        if let Some(timestamps) = arrival.options.timestamps {
            offer = cookies::decode_timestamp(timestamps.echo);
            flow.flags.set(Flags::TIMESTAMPS);
            flow.timestamp_recent = timestamps.value;
            mss = mss.saturating_sub(TIMESTAMPS_LEN).max(MIN_MSS - TIMESTAMPS_LEN);
        }
        flow.mss = mss;
        flow.flags.put(Flags::SACK, offer.sack_permitted);
        flow.flags.put(Flags::ECN, offer.ecn);
        flow.send_shift = offer.window_scale.unwrap_or(0);
        if offer.window_scale.is_none() {
            flow.receive_shift = 0;
        }
        flow.congestion.set_window(self.initial_window(u32::from(mss)));
        Some(flow)
    }

    /// Takes the options and the initial sequence number of a SYN (RFC 9293 section 3.7.1, RFC 7323, RFC 2018, RFC 3168).
    fn learn_from_syn(&self, now: Instant, flow: &mut Flow, arrival: &Arrival<'_>) {
        let (segment, options) = (&arrival.segment, &arrival.options);
        flow.receive_next = segment.sequence().wrapping_add(1);
        flow.acked_next = flow.receive_next;
        // The SYN's answer offers an unscaled window (RFC 7323 section 2.2).
        flow.receive_edge = flow.receive_next.wrapping_add(flow.receive_limit.min(0xffff));
        let default = if flow.tuple.is_v4() { DEFAULT_MSS } else { DEFAULT_MSS_V6 };
        let mut mss = options.mss.unwrap_or(default).max(MIN_MSS).min(self.largest_segment(&flow.tuple));
        if let Some(timestamps) = options.timestamps
            && self.config.timestamps
        {
            flow.flags.set(Flags::TIMESTAMPS);
            flow.timestamp_recent = timestamps.value;
            flow.timestamp_recent_at = now.tick();
            // RFC 6691: the option's bytes are not in the MSS.
            mss = mss.saturating_sub(TIMESTAMPS_LEN).max(MIN_MSS - TIMESTAMPS_LEN);
        }
        flow.mss = mss;
        flow.flags.put(Flags::SACK, self.config.sack && options.sack_permitted);
        flow.send_shift = options.window_scale.unwrap_or(0);
        if options.window_scale.is_none() {
            flow.receive_shift = 0;
        }
        // RFC 3168 section 6.1.1: a SYN asks with ECE and CWR, its answer agrees with ECE alone.
        let flags = segment.flags();
        let asked = flags.contains(TcpFlags::ECE | TcpFlags::CWR) && self.config.ecn != config::Ecn::Off;
        let agreed = flags.contains(TcpFlags::ECE) && !flags.contains(TcpFlags::CWR);
        flow.flags.put(
            Flags::ECN,
            if flags.contains(TcpFlags::ACK) {
                agreed && self.config.ecn == config::Ecn::Ask && flow.flags.has(Flags::ECN)
            } else {
                asked
            },
        );
        flow.send_window = u32::from(segment.window());
        flow.send_window_max = flow.send_window;
        flow.window_sequence = segment.sequence();
        flow.congestion.set_window(self.initial_window(u32::from(mss)));
    }
}

impl<O: Owner> Turn<'_, O> {
    /// One segment for a flow.
    fn segment_arrives(&mut self, arrival: &Arrival<'_>) -> Verdict {
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
                before(flow.timestamp_recent, timestamps.value)
                    || (timestamps.value == flow.timestamp_recent
                        && before(flow.receive_next, arrival.segment.sequence()))
            }
            _ => before(flow.receive_next, arrival.segment.sequence()),
        };
        is_syn && newer && self.shared.listeners.find(arrival.tuple.local()).is_some()
    }

    /// RFC 9293 section 3.10.7.3.
    fn syn_sent(&mut self, arrival: &Arrival<'_>) -> Verdict {
        let segment = &arrival.segment;
        let flags = segment.flags();
        let has_ack = flags.contains(TcpFlags::ACK);
        let flow = &mut *self.flow;
        if has_ack && segment.acknowledgment() != flow.send_una.wrapping_add(1) {
            self.shared.counters.drop_bad_ack += 1;
            if !flags.contains(TcpFlags::RST) {
                self.shared.answer_with_reset(arrival);
            }
            return Verdict::Keep;
        }
        if flags.contains(TcpFlags::RST) {
            if has_ack && !flow.all_acknowledged() {
                self.shared.counters.resets_received += 1;
                return Verdict::End(Some(Failure::Refused));
            }
            self.shared.counters.drop_bad_ack += 1;
            return Verdict::Keep;
        }
        if !flags.contains(TcpFlags::SYN) || flow.all_acknowledged() {
            self.shared.counters.drop_bad_ack += 1;
            return Verdict::Keep;
        }
        self.shared.learn_from_syn(self.now, flow, arrival);
        flow.next_hop = arrival.next_hop;
        if !has_ack {
            // Simultaneous open (RFC 9293 section 3.5, figure 7).
            flow.state = State::SynReceived;
            flow.flags.set(Flags::SYN_WANTED);
            return Verdict::Keep;
        }
        self.establish();
        self.flow.flags.set(Flags::ACK_NOW);
        self.flow.flags.set(Flags::SEND_WANTED);
        self.shared.counters.connects += 1;
        if !self.flow.flags.has(Flags::DETACHED) {
            self.owner.event(self.id, Event::Connected);
        }
        // Data or FIN on the SYN and ACK come again: the ACK just sent does not cover them.
        Verdict::Keep
    }

    /// The SYN was acknowledged.
    fn establish(&mut self) {
        let tick = self.tick();
        let flow = &mut *self.flow;
        flow.state = State::Established;
        flow.send_una = flow.send_una.wrapping_add(1);
        if flow.flags.take(Flags::TIMED) {
            flow.rtt.sample(self.now.micros32().wrapping_sub(flow.timed_at_us));
        } else if flow.retries > 0 {
            flow.rtt.syn_timed_out();
        }
        flow.retries = 0;
        flow.backoff = 0;
        flow.retransmit_at = Deadline::NEVER;
        flow.flags.clear(Flags::SYN_WANTED);
        if flow.flags.has(Flags::KEEP_ALIVE) {
            flow.restart_keep_alive(tick);
        }
        flow.receive_edge = later(flow.receive_edge, flow.possible_edge());
    }

    /// RFC 9293 section 3.10.7.4, in its order.
    fn synchronized(&mut self, arrival: &Arrival<'_>) -> Verdict {
        let segment = &arrival.segment;
        let flags = segment.flags();
        let sequence = segment.sequence();
        let length = arrival.length();
        let end = sequence.wrapping_add(length);
        let tick = self.tick();
        let flow = &mut *self.flow;

        // RFC 7323 section 5.3 R1: PAWS comes first.
        if let Some(timestamps) = arrival.options.timestamps
            && flow.flags.has(Flags::TIMESTAMPS)
            && !flags.contains(TcpFlags::RST)
            && before(timestamps.value, flow.timestamp_recent)
            && tick.since(flow.timestamp_recent_at) < TIMESTAMP_VALID_TICKS
        {
            self.shared.counters.drop_paws += 1;
            self.report_old(sequence, end);
            self.challenge();
            return Verdict::Keep;
        }

        // First: the sequence number. The test is Linux's: an acknowledgment at the right edge is good.
        if before(end, flow.receive_next) || before(flow.receive_edge, sequence) {
            self.shared.counters.drop_window += 1;
            if flow.state == State::SynReceived && flags.contains(TcpFlags::SYN) && end == flow.receive_next {
                flow.flags.set(Flags::SYN_WANTED);
            } else if !flags.contains(TcpFlags::RST) {
                if length > 0 {
                    flow.flags.set(Flags::ACK_NOW);
                    self.report_old(sequence, end);
                } else {
                    self.challenge();
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
                self.shared.counters.resets_received += 1;
                return Verdict::End(Some(match flow.state {
                    State::SynReceived => Failure::Refused,
                    _ => Failure::Reset,
                }));
            }
            self.challenge();
            return Verdict::Keep;
        }

        // Fourth: SYN. The same SYN again asks for the same answer; others get a challenge (RFC 5961 section 4.2).
        if flags.contains(TcpFlags::SYN) {
            if flow.state == State::SynReceived && sequence.wrapping_add(1) == flow.receive_next {
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
        let acknowledgment = segment.acknowledgment();
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
            || before(acknowledgment, flow.send_una.wrapping_sub(flow.send_window_max))
        {
            self.shared.counters.drop_bad_ack += 1;
            self.challenge();
            return Verdict::Keep;
        }
        if let Some(timestamps) = arrival.options.timestamps
            && flow.flags.has(Flags::TIMESTAMPS)
            && at_or_before(sequence, flow.acked_next)
            && !before(timestamps.value, flow.timestamp_recent)
        {
            // RFC 7323 section 4.3: only a segment that covers the last ACK sent moves TS.Recent.
            flow.timestamp_recent = timestamps.value;
            flow.timestamp_recent_at = tick;
        }
        // The way back may have changed (a gateway that failed over).
        flow.next_hop = arrival.next_hop;
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
        // Seventh and eighth: the text, then FIN. Urgent data is in-band (RFC 6093 section 6): URG changes nothing.
        if length > 0 {
            return self.text(arrival);
        }
        Verdict::Keep
    }

    /// A router says that it takes packets of `mtu` bytes (RFC 1191, RFC 8201).
    pub(crate) fn packet_too_big(&mut self, mtu: u32) {
        let is_v4 = self.flow.tuple.is_v4();
        let Some(mss) =
            segment_of_reported(mtu, is_v4, self.flow.mss, self.flow.flags.has(Flags::TIMESTAMPS))
        else {
            self.shared.counters.drop_icmp += 1;
            return;
        };
        self.flow.mss = mss;
        // RFC 1191 section 6.4: what was too big is sent again at once, and the window is not reduced.
        let una = self.flow.send_una;
        self.flow.recovery_or_new().lose_all_flying(una);
        self.flow.flags.set(Flags::SEND_WANTED);
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

    /// SYN-RECEIVED became ESTABLISHED. A verdict, if the flow does not go on.
    fn handshake_done(&mut self) -> Option<Verdict> {
        if self.flow.listener == NO_LISTENER {
            // A simultaneous open.
            self.establish();
            self.shared.counters.connects += 1;
            if !self.flow.flags.has(Flags::DETACHED) {
                self.owner.event(self.id, Event::Connected);
            }
            return None;
        }
        if !self.shared.listeners.is_open(self.flow.listener) {
            self.flow.flags.set(Flags::RESET_WANTED);
            return Some(Verdict::Keep);
        }
        if self.flow.flags.take(Flags::HALF_OPEN) {
            self.shared.listeners.half_open_ended(self.flow.listener);
        }
        self.establish();
        self.shared.listeners.established(self.flow.listener);
        self.flow.flags.set(Flags::UNACCEPTED);
        self.flow.flags.clear(Flags::RELEASED);
        self.shared.counters.accepts += 1;
        self.owner.event(self.id, Event::Incoming { listener: ListenerId(self.flow.listener) });
        None
    }

    /// The acknowledgment and the window of a segment. A verdict, if the flow does not go on.
    fn acknowledge(&mut self, arrival: &Arrival<'_>) -> Option<Verdict> {
        let segment = &arrival.segment;
        let acknowledgment = segment.acknowledgment();
        let window = u32::from(segment.window()) << self.flow.send_shift;
        let flow = &mut *self.flow;
        let echo = flow.flags.has(Flags::ECN) && segment.flags().contains(TcpFlags::ECE);
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
        }

        let before_una = flow.send_una;
        let flight = flow.flight();
        let mut sample_us = 0;
        let mut fin_acknowledged = flow.state == State::FinWait2;
        if advance {
            let acked = acknowledgment.wrapping_sub(flow.send_una);
            fin_acknowledged = flow.state.fin_was_sent() && acknowledgment == flow.data_end().wrapping_add(1);
            let data = acked - u32::from(fin_acknowledged);
            flow.una_offset += u64::from(data);
            flow.send_una = acknowledgment;
            flow.retries = 0;
            flow.backoff = 0;
            flow.flags.clear_all(&[Flags::PERSIST, Flags::LOSS_PROBE_WANTED]);
            if flow.flags.has(Flags::TIMED) && at_or_before(flow.timed_sequence, acknowledgment) {
                flow.flags.clear(Flags::TIMED);
                sample_us = self.now.micros32().wrapping_sub(flow.timed_at_us).max(1);
                flow.rtt.sample(sample_us);
            }
            flow.flags.set(Flags::SEND_WANTED);
            if data > 0 && !flow.flags.has(Flags::RELEASED) {
                self.owner.event(self.id, Event::Acknowledged { offset: flow.una_offset });
            }
        }
        let mut look_again = None;
        if troubled || (duplicate && !self.flow.flags.has(Flags::SACK)) {
            look_again = self.repair(arrival, before_una, flight, duplicate, echo);
        } else if advance {
            let ack = self.ack(acknowledgment.wrapping_sub(before_una), flight, sample_us);
            self.flow.congestion.acknowledged(&ack);
        }
        if advance {
            self.restart_retransmission();
        }
        if look_again.is_some() {
            self.watch(look_again);
        }
        self.update_window(segment, window, advance);
        if fin_acknowledged { self.fin_acknowledged() } else { None }
    }

    /// What congestion control wants to know of an acknowledgment.
    fn ack(&self, acked: u32, flight: u32, sample_us: u32) -> Ack {
        Ack {
            acked,
            flight,
            mss: u32::from(self.flow.mss),
            now: self.tick(),
            rtt_us: self.flow.rtt.smoothed_us(),
            sample_us,
        }
    }

    /// An acknowledgment while something is wrong, or that says so. `una` and `flight` are from before it.
    /// Returns after how many microseconds to look for losses again.
    fn repair(
        &mut self,
        arrival: &Arrival<'_>,
        una: u32,
        flight: u32,
        duplicate: bool,
        echo: bool,
    ) -> Option<u32> {
        let now_us = self.now.micros32();
        let tick = self.tick();
        let mss = u32::from(self.flow.mss);
        let min_rtt = self.flow.rtt.least_us();
        let smoothed = self.flow.rtt.smoothed_us();
        let has_sack = self.flow.flags.has(Flags::SACK);
        let (new_una, next) = (self.flow.send_una, self.flow.send_next);
        if self.flow.recovery().is_none() {
            // The board begins where SND.UNA was: what this acknowledgment covers must leave it as it came.
            self.flow.send_una = una;
            self.flow.recovery_or_new();
            self.flow.send_una = new_una;
        }
        let new_flight = self.flow.flight();
        let Some(recovery) = self.flow.recovery_mut() else { return None };
        let was_reducing = recovery.is_reducing();
        let was_lossy = recovery.state() == CongestionState::Loss;

        // RFC 8985 section 6.2, steps 1 to 3.
        let mut delivered = recovery.acknowledged(una, new_una, now_us, min_rtt);
        if has_sack {
            let sacked = recovery.sacks(arrival.options.sack.as_slice(), new_una, next, now_us, min_rtt);
            delivered = Delivered {
                bytes: delivered.bytes + sacked.bytes,
                duplicate: sacked.duplicate,
                // What is acknowledged cumulatively measures the path; a SACK may be a lie.
                rtt_us: delivered.rtt_us,
            };
        } else if duplicate {
            delivered.bytes += recovery.duplicate_without_sack(new_flight, mss);
        }
        self.shared.counters.duplicates_reported += u64::from(delivered.duplicate);
        if let Some(rtt_us) = delivered.rtt_us {
            self.flow.rtt.sample(rtt_us);
        }
        let Some(recovery) = self.flow.recovery_mut() else { return None };

        let spurious = arrival.options.timestamps.is_some_and(|timestamps| {
            una != new_una
                && recovery.state() >= CongestionState::Recovery
                && recovery.echo_shows_spurious(timestamps.echo)
        }) || (delivered.duplicate && recovery.was_spurious());
        if spurious {
            // RFC 4015 section 3.2, RFC 9438 section 4.9.
            recovery.undo();
            self.shared.counters.spurious_recoveries += 1;
            self.flow.congestion.undo();
        }
        let Some(recovery) = self.flow.recovery_mut() else { return None };
        let repaired = recovery.probe_repaired(new_una, delivered.duplicate, duplicate);

        // Which segments are lost.
        let mut lost = 0;
        let mut look_again = None;
        if has_sack {
            let losses = recovery.detect(new_una, now_us, min_rtt, smoothed, mss);
            (lost, look_again) = (losses.bytes, losses.again_after_us);
        } else if recovery.state() == CongestionState::Recovery
            && una != new_una
            && !recovery.may_end(new_una)
        {
            // RFC 6582 section 3.2 step 3: a partial acknowledgment points at the next hole.
            lost = recovery.lose_first(new_una, mss);
        } else if duplicate
            && recovery.duplicates_mean_loss(mss)
            && recovery.is_new_loss(new_una.wrapping_sub(1))
        {
            lost = recovery.lose_first(new_una, mss);
        }
        self.shared.counters.lost_bytes += u64::from(lost);

        if (recovery.is_reducing() || was_lossy)
            && recovery.state() != CongestionState::Open
            && recovery.may_end(new_una)
        {
            let reduced = recovery.is_reducing();
            recovery.end();
            if reduced {
                // RFC 6937 section 3.1: at the end of recovery.
                let threshold = self.flow.congestion.threshold();
                self.flow.congestion.set_window(threshold);
            }
        }
        let Some(recovery) = self.flow.recovery_mut() else { return None };
        if lost > 0 && recovery.state() < CongestionState::Recovery {
            self.recover();
        } else if (echo || repaired) && recovery.state() < CongestionState::Reduced {
            // Once a window (RFC 3168 section 6.1.2); a loss that only a probe repaired is one too (RFC 8985 section 7.4.2).
            recovery.enter(CongestionState::Reduced, new_flight, next);
            if echo {
                self.shared.counters.ecn_reductions += 1;
                self.flow.flags.set(Flags::ECN_REDUCED);
            } else {
                self.shared.counters.loss_probes_repaired += 1;
            }
            self.flow.congestion.congestion_experienced(new_flight, mss, tick);
        }
        self.govern(delivered.bytes, una, flight, was_reducing);
        self.flow.flags.set(Flags::SEND_WANTED);
        self.flow.trim();
        look_again
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
        let now_us = self.now.micros32();
        let (una, mss) = (self.flow.send_una, u32::from(self.flow.mss));
        let (least, smoothed) = (self.flow.rtt.least_us(), self.flow.rtt.smoothed_us());
        let Some(recovery) = self.flow.recovery_mut() else {
            // The reduction was undone meanwhile.
            self.watch(None);
            return;
        };
        let losses = recovery.detect(una, now_us, least, smoothed, mss);
        self.shared.counters.lost_bytes += u64::from(losses.bytes);
        if losses.bytes > 0 && recovery.state() < CongestionState::Recovery {
            self.recover();
            self.govern(0, una, 0, false);
        }
        self.flow.flags.set(Flags::SEND_WANTED);
        self.watch(losses.again_after_us);
    }

    /// Sets the timer that looks for losses again, or the retransmission timer.
    fn watch(&mut self, after_us: Option<u32>) {
        match after_us {
            Some(after_us) => {
                self.flow.flags.clear(Flags::LOSS_PROBE_TIMER);
                self.flow.flags.set(Flags::REORDERING_TIMER);
                self.flow.retransmit_at = self.in_us(u64::from(after_us));
            }
            None if !self.flow.retransmit_at.is_set() && !self.flow.all_acknowledged() => {
                self.start_retransmission()
            }
            None => {}
        }
    }

    /// How the window follows an acknowledgment that delivered so many bytes.
    fn govern(&mut self, delivered: u32, una: u32, flight: u32, was_reducing: bool) {
        let mss = u32::from(self.flow.mss);
        let threshold = self.flow.congestion.threshold();
        let new_flight = self.flow.flight();
        let acked = self.flow.send_una.wrapping_sub(una);
        let Some(recovery) = self.flow.recovery_mut() else { return };
        if recovery.is_reducing() {
            let window = recovery.proportional_window(delivered, recovery.pipe(new_flight), threshold, mss);
            self.flow.congestion.set_window(window.max(mss));
        } else if acked > 0 && !was_reducing {
            let ack = self.ack(acked, flight, 0);
            self.flow.congestion.acknowledged(&ack);
        }
    }

    /// RFC 9293 section 3.10.7.4: only newer segments move the window, and as in Linux, one at the same place that opens it.
    fn update_window(&mut self, segment: &Segment<'_>, window: u32, advance: bool) {
        let flow = &mut *self.flow;
        let newer = advance
            || before(flow.window_sequence, segment.sequence())
            || (flow.window_sequence == segment.sequence() && window > flow.send_window)
            || (flow.window_sequence == segment.sequence() && segment.acknowledgment() == flow.send_una);
        if !newer {
            return;
        }
        if window > flow.send_window {
            flow.flags.set(Flags::SEND_WANTED);
        }
        flow.send_window = window;
        flow.send_window_max = flow.send_window_max.max(window);
        flow.window_sequence = segment.sequence();
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
                    self.flow.linger_at = self.in_us(self.shared.config.fin_timeout.as_micros() as u64);
                }
                None
            }
            State::Closing => Some(Verdict::TimeWait),
            State::LastAck => Some(Verdict::End(None)),
            _ => None,
        }
    }

    /// The text and the FIN of an acceptable segment.
    fn text(&mut self, arrival: &Arrival<'_>) -> Verdict {
        let segment = &arrival.segment;
        let mut sequence = segment.sequence();
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
            let end = sequence.wrapping_add(known.min(data.len()) as u32);
            self.report_duplicate(sequence, end);
            if known >= data.len() + usize::from(fin) {
                self.shared.counters.drop_duplicate += 1;
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
            data = &data[..room];
            fin = false;
        }
        if !data.is_empty() && flow.flags.has(Flags::DETACHED) {
            // RFC 9293 section 3.6.1: data that nobody will read.
            self.shared.counters.drop_no_owner += 1;
            flow.flags.set(Flags::RESET_WANTED);
            return Verdict::Keep;
        }

        if sequence != flow.receive_next {
            self.hold(sequence, data, fin);
            return Verdict::Keep;
        }
        if !data.is_empty() {
            self.note_echo(arrival);
            self.deliver(data);
            fin |= self.drain();
            self.schedule_ack(segment.flags().contains(TcpFlags::PSH));
        }
        if fin {
            return self.remote_closed();
        }
        Verdict::Keep
    }

    fn deliver(&mut self, data: &[u8]) {
        let consumed = self.owner.deliver(self.id, data).min(data.len());
        let flow = &mut *self.flow;
        flow.receive_next = flow.receive_next.wrapping_add(data.len() as u32);
        flow.received = flow.received.wrapping_add(data.len() as u32);
        flow.held += (data.len() - consumed) as u32;
        self.shared.counters.rx_bytes += data.len() as u64;
        if flow.received >= flow.receive_limit / 2 && flow.receive_limit < self.shared.config.receive_window {
            self.tune(consumed as u32);
        }
    }

    /// The receiver's round trip, for a flow whose window is being tuned.
    fn note_echo(&mut self, arrival: &Arrival<'_>) {
        let clock = self.shared.clock(self.now.tick(), self.flow);
        if let Some(tuning) = self.flow.extra.as_mut().and_then(|extra| extra.tuning.as_mut())
            && let Some(timestamps) = arrival.options.timestamps
            && timestamps.echo != 0
        {
            tuning.echoed(clock.wrapping_sub(timestamps.echo));
        }
    }

    /// A flow that receives much: its window follows what the owner consumes.
    fn tune(&mut self, consumed: u32) {
        let (now, flow) = (self.now, &mut *self.flow);
        if flow.flags.has(Flags::FIXED_WINDOW) {
            return;
        }
        let (next, window, rtt_us) = (flow.receive_next, flow.receive_limit, flow.rtt.smoothed_us());
        let tuning = flow
            .extra
            .get_or_insert_default()
            .tuning
            .get_or_insert_with(|| Autotune::new(now, window, rtt_us));
        tuning.received(now, next);
        if tuning.consumed(now, consumed, self.shared.config.receive_window) {
            flow.receive_limit = tuning.window();
        }
    }

    /// As [`Turn::report_duplicate`], for what was dropped unread: a duplicate only if it was delivered before.
    fn report_old(&mut self, left: u32, right: u32) {
        if at_or_before(right, self.flow.receive_next) {
            self.report_duplicate(left, right);
        }
    }

    /// RFC 2883 section 4: the next acknowledgment says what arrived twice.
    fn report_duplicate(&mut self, left: u32, right: u32) {
        if self.flow.flags.has(Flags::SACK) && before(left, right) && self.flow.state.is_synchronized() {
            self.flow.extra.get_or_insert_default().duplicate = Some((left, right));
        }
    }

    /// Holds an out-of-order segment, and asks for what is missing with a duplicate ACK (RFC 5681 section 4.2).
    fn hold(&mut self, sequence: u32, data: &[u8], fin: bool) {
        self.flow.flags.set(Flags::ACK_NOW);
        let room = self.shared.config.reassembly_budget.saturating_sub(self.shared.reassembly_bytes);
        let end = sequence.wrapping_add(data.len() as u32);
        let reassembly =
            self.flow.extra.get_or_insert_default().reassembly.get_or_insert_with(Reassembly::default);
        match reassembly.insert(sequence, data, room) {
            Held::Added(cost) => {
                self.shared.counters.out_of_order += 1;
                self.shared.reassembly_bytes += cost;
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
        if self.flow.reassembly_mut().is_none() {
            return false;
        }
        // RFC 5681 section 4.2: a segment that fills a gap is acknowledged at once.
        self.flow.flags.set(Flags::ACK_NOW);
        loop {
            let next = self.flow.receive_next;
            let Some((data, known, cost)) = self.flow.reassembly_mut().and_then(|held| held.take(next))
            else {
                break;
            };
            self.shared.reassembly_bytes -= cost;
            if known < data.len() {
                self.deliver(&data[known..]);
            }
        }
        let next = self.flow.receive_next;
        let fin = self.flow.reassembly_mut().is_some_and(|held| held.fin_is_at(next));
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
    fn schedule_ack(&mut self, push: bool) {
        let flow = &mut *self.flow;
        let waiting = flow.receive_next.wrapping_sub(flow.acked_next);
        let mss = u32::from(flow.mss);
        let at = if flow.flags.has(Flags::QUICK_ACK) {
            flow.flags.set(Flags::ACK_NOW);
            return;
        } else if waiting < 2 * mss {
            self.now.tick().after(ticks(self.shared.config.delayed_ack.as_micros() as u64).max(1))
        } else if push || waiting >= (STRETCH * mss).min(flow.receive_limit / 2) {
            flow.flags.set(Flags::ACK_NOW);
            return;
        } else {
            self.now.tick().after(1)
        };
        flow.ack_at = flow.ack_at.earlier(Deadline::at(at));
    }

    /// The peer's FIN is next in order.
    fn remote_closed(&mut self) -> Verdict {
        let flow = &mut *self.flow;
        flow.receive_next = flow.receive_next.wrapping_add(1);
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

    /// Answers what looks wrong with an ACK (RFC 5961), within the rate limit.
    fn challenge(&mut self) {
        let limit = self.shared.config.challenge_acks_per_s;
        if self.shared.challenges.allow(self.tick(), limit) {
            self.shared.counters.challenge_acks += 1;
            self.flow.flags.set(Flags::ACK_NOW);
        }
    }
}

/// The payload of a full segment on a path that takes packets of `mtu` bytes, if it is less than `mss`. Less than every path
/// must take is not believed (RFC 8201 section 4, and Linux's net.ipv4.route.min_pmtu).
fn segment_of_reported(mtu: u32, is_v4: bool, mss: u16, timestamps: bool) -> Option<u16> {
    let (floor, headers) = if is_v4 { (552, 40) } else { (1280, 60) };
    let room = mtu.max(floor) - headers - if timestamps { u32::from(TIMESTAMPS_LEN) } else { 0 };
    (room < u32::from(mss)).then_some(room as u16)
}

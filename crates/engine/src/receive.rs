//! Frames that arrive (RFC 9293 section 3.10.7).

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use overfly_wire::checksum::{self, ChecksumState};
use overfly_wire::ip::{Ecn, Packet};
use overfly_wire::tcp::{Flags as TcpFlags, Options, Segment};
use overfly_wire::{MacAddr, arp, ethernet, ipv4, ipv6};

use crate::answers::StatelessReply;
use crate::engine::Engine;
use crate::flow::Flags;
use crate::owner::{Act, FlowId, Owner};
use crate::sequence::Sequence;
use crate::shared::{SEQUENCE_GAP, Shared, Verdict};
use crate::time::Instant;
use crate::tuple::{Address, Tuple};

/// A TCP segment with what surrounds it.
pub(crate) struct Arrival<'a> {
    pub(crate) segment: Segment<'a>,
    pub(crate) options: &'a Options,
    pub(crate) tuple: Tuple,
    pub(crate) next_hop: MacAddr,
    /// The packet carried an ECN mark (CE, RFC 3168 section 5).
    pub(crate) marked: bool,
}

impl Arrival<'_> {
    /// SEG.SEQ.
    #[inline]
    pub(crate) fn sequence(&self) -> Sequence {
        Sequence::new(self.segment.sequence())
    }

    /// SEG.ACK.
    #[inline]
    pub(crate) fn acknowledgment(&self) -> Sequence {
        Sequence::new(self.segment.acknowledgment())
    }

    /// Sequence numbers that the segment takes: RFC 9293's SEG.LEN.
    #[inline]
    pub(crate) fn length(&self) -> u32 {
        let flags = self.segment.flags();
        self.segment.payload().len() as u32
            + u32::from(flags.contains(TcpFlags::SYN))
            + u32::from(flags.contains(TcpFlags::FIN))
    }
}

impl Engine {
    /// Brings the memory of flows near that are about to be needed, for callers that know several beforehand: where there are many
    /// flows, the processor then waits for all of them at once, not for one after the other. Costs a few nanoseconds a flow.
    pub fn prepare(&self, flows: impl Iterator<Item = FlowId>) {
        core::hint::black_box(flows.fold(0, |sum, flow| sum ^ self.flows.touch(flow.0)));
    }

    /// As [`Engine::prepare`], for connections that [`Engine::connect`] will be asked for next, by their local and remote ends.
    pub fn prepare_tuples(&self, ends: impl Iterator<Item = (SocketAddr, SocketAddr)>) {
        let found = ends.map(|(local, remote)| self.flows.probe(&Tuple::new(local, remote)));
        core::hint::black_box(found.fold(0, |sum, index| sum ^ index.unwrap_or(0)));
    }

    /// As [`Engine::prepare`], for TCP segments over IPv4 that [`Engine::receive`] will be given next, 64 at most. `each` is told
    /// whose they seem to be.
    pub fn prepare_frames<'a>(&self, frames: impl Iterator<Item = &'a [u8]>, mut each: impl FnMut(FlowId)) {
        let mut found = [u32::MAX; 64];
        let mut count = 0;
        for (frame, place) in frames.zip(&mut found) {
            *place = plain_tuple(frame).and_then(|tuple| self.flows.probe(&tuple)).unwrap_or(u32::MAX);
            count += 1;
        }
        let mut sum = 0;
        for index in found[..count].iter().copied().filter(|index| *index != u32::MAX) {
            sum ^= self.flows.touch(index);
            each(FlowId(index));
        }
        core::hint::black_box(sum);
    }

    /// Takes one frame.
    pub fn receive<O: Owner>(&mut self, now: Instant, frame: &[u8], owner: &mut O) {
        self.tell(now);
        self.shared.counters.rx_frames += 1;
        let Ok((link, bytes)) = ethernet::Header::parse(frame) else {
            self.shared.counters.drop_malformed += 1;
            return;
        };
        // A multicast or broadcast address of Ethernet's.
        let to_group = link.destination.0[0] & 1 != 0;
        match link.ethertype {
            ethernet::ETHERTYPE_IPV4 => match ipv4::Packet::parse(bytes) {
                Ok(packet) => self.receive_ip(now, link.source, to_group, &Packet::V4(packet), bytes, owner),
                Err(_) => self.shared.counters.drop_malformed += 1,
            },
            ethernet::ETHERTYPE_IPV6 => match ipv6::Packet::parse(bytes) {
                Ok(packet) => self.receive_ip(now, link.source, to_group, &Packet::V6(packet), bytes, owner),
                Err(_) => self.shared.counters.drop_malformed += 1,
            },
            ethernet::ETHERTYPE_ARP if self.shared.config.alone => self.receive_arp(bytes),
            _ => self.shared.counters.drop_ethertype += 1,
        }
    }

    fn receive_arp(&mut self, packet: &[u8]) {
        let Ok(packet) = arp::Packet::parse(packet) else {
            self.shared.counters.drop_malformed += 1;
            return;
        };
        // RFC 826: merge what the sender says of itself, if it is known, or the packet is for us.
        let is_ours = self.shared.config.is_own(packet.target_ip.into());
        if !is_ours && !self.shared.neighbors.knows(packet.sender_ip.into()) {
            return;
        }
        self.set_neighbor(packet.sender_ip, packet.sender_mac);
        if is_ours && packet.operation == arp::Operation::Request {
            self.shared.answer(StatelessReply::Arp {
                operation: arp::Operation::Reply,
                sender_ip: packet.target_ip,
                target_mac: packet.sender_mac,
                target_ip: packet.sender_ip,
            });
        }
    }

    /// A well-formed packet of either family; `bytes` are it from its IP header on.
    // Always: who calls it knows the family.
    #[inline(always)]
    fn receive_ip<O: Owner>(
        &mut self,
        now: Instant,
        next_hop: MacAddr,
        to_group: bool,
        packet: &Packet<'_>,
        bytes: &[u8],
        owner: &mut O,
    ) {
        if packet.is_fragment() {
            self.shared.counters.drop_fragment += 1;
            return;
        }
        match (packet, packet.protocol()) {
            (_, ipv4::PROTOCOL_TCP) => {
                let (local, remote, segment) = self.shared.check_tcp(packet);
                if let Some(segment) = segment {
                    let marked = packet.ecn() == Ecn::Ce;
                    self.receive_tcp(now, next_hop, segment, (local, remote), marked, owner);
                }
            }
            (_, ipv4::PROTOCOL_UDP) => self.receive_udp(next_hop, to_group, packet, bytes, owner),
            (Packet::V4(packet), ipv4::PROTOCOL_ICMP) => self.receive_icmpv4(now, next_hop, packet, owner),
            (Packet::V6(packet), ipv6::PROTOCOL_ICMPV6) => {
                self.receive_icmpv6(now, next_hop, packet, owner);
            }
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
        let arrival = Arrival { segment, options: &options, tuple, next_hop, marked };
        match self.flows.find(&tuple) {
            Some(index) => self.with_flow(now, index, &arrival, owner),
            None => self.without_flow(now, &arrival, None, owner),
        }
    }

    pub(crate) fn with_flow<O: Owner>(
        &mut self,
        now: Instant,
        index: u32,
        arrival: &Arrival<'_>,
        owner: &mut O,
    ) {
        let mut turn = self.turn(now, index, owner);
        let verdict = turn.segment_arrives(arrival);
        let beyond = turn.flow.send_next + SEQUENCE_GAP;
        if !turn.flow.flags.has(Flags::HALF_OPEN) && verdict != Verdict::GiveWay {
            turn.owner.acted(turn.id, Act::Arrived);
        }
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
        iss: Option<Sequence>,
        owner: &mut O,
    ) {
        let flags = arrival.segment.flags();
        if flags.contains(TcpFlags::RST) {
            self.shared.counters.drop_no_flow += 1;
            return;
        }
        if !self.shared.may_connect(&arrival.tuple) {
            self.shared.counters.drop_address += 1;
            return;
        }
        let bare_syn = flags.contains(TcpFlags::SYN) && !flags.intersects(TcpFlags::ACK | TcpFlags::FIN);
        if self.shared.departed.holds(&arrival.tuple, bare_syn) {
            self.shared.counters.drop_departed += 1;
            return;
        }
        let listener = self.shared.listeners.find(arrival.tuple.local());
        match listener {
            Some(listener) if bare_syn => self.syn_arrives(now, arrival, listener, iss, owner),
            Some(listener)
                if flags.contains(TcpFlags::ACK)
                    && !flags.contains(TcpFlags::SYN)
                    && self.shared.cookies.are_out(now) =>
            {
                self.cookie_arrives(now, arrival, listener, owner);
            }
            // RFC 9293 section 3.10.7.2, fourth; as Linux, whoever asks for a connection and its end at once gets neither.
            Some(_) if !flags.contains(TcpFlags::ACK) => self.shared.counters.drop_no_flow += 1,
            _ => {
                self.shared.counters.drop_no_flow += 1;
                // Beside a kernel, a SYN for no listener was steered here just before its listener closed: sent again, it
                // finds another stack's listener, or the kernel, which knows whether to refuse.
                if self.shared.config.alone || !flags.contains(TcpFlags::SYN) || flags.contains(TcpFlags::ACK)
                {
                    self.shared.answer_with_reset(arrival);
                }
            }
        }
    }
}

/// The tuple of a frame with TCP over IPv4 without options; others have none.
#[inline]
fn plain_tuple(frame: &[u8]) -> Option<Tuple> {
    let head: &[u8; 38] = frame.first_chunk()?;
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let half = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let is_plain = half(12) == ethernet::ETHERTYPE_IPV4 && head[14] == 0x45 && head[23] == ipv4::PROTOCOL_TCP;
    is_plain.then(|| Tuple {
        local: Address::v4(Ipv4Addr::from_bits(word(30))),
        remote: Address::v4(Ipv4Addr::from_bits(word(26))),
        local_port: half(36),
        remote_port: half(34),
    })
}

impl Shared {
    /// Our address, the peer's, and the segment, if it is well-formed and its checksum holds.
    #[inline(always)]
    fn check_tcp<'a>(&mut self, packet: &Packet<'a>) -> (Address, Address, Option<Segment<'a>>) {
        match packet {
            Packet::V4(packet) => {
                let (source, destination) = (packet.source(), packet.destination());
                let segment = self.check_segment(packet.payload(), source, destination);
                (Address::v4(destination), Address::v4(source), segment)
            }
            Packet::V6(packet) => {
                let (source, destination) = (packet.source(), packet.destination());
                let segment = self.check_segment(packet.payload(), source, destination);
                (Address::v6(destination), Address::v6(source), segment)
            }
        }
    }

    #[inline]
    fn check_segment<'a, A: checksum::Address>(
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

    /// Whether a connection between these addresses can be: neither many nor nobody nor ourselves, if peers are not on this
    /// host, at the other end (RFC 1122 section 4.2.3.10), and where no kernel knows better, one of our own at this end.
    fn may_connect(&self, tuple: &Tuple) -> bool {
        let broadcast = self.config.broadcast();
        let is_one = |address: IpAddr| match address {
            IpAddr::V4(address) => {
                !address.is_multicast()
                    && !address.is_broadcast()
                    && !address.is_unspecified()
                    && Some(address) != broadcast
            }
            IpAddr::V6(address) => !address.is_multicast() && !address.is_unspecified(),
        };
        let (local, remote) = (tuple.local.ip(), tuple.remote.ip());
        let is_ours = || self.config.is_own(local) || self.listeners.has_exact(tuple.local());
        let is_another = local != remote || self.config.loopback;
        is_one(local) && is_one(remote) && is_another && (!self.config.alone || is_ours())
    }
}

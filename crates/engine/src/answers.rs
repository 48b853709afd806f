//! What is sent that belongs to no flow (any more), or to one that is about to go.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use overfly_wire::checksum::Sum;
use overfly_wire::tcp::{Flags as TcpFlags, Header, Options};
use overfly_wire::{FrameSink, MacAddr, Unfinished, arp, ethernet, icmpv4, icmpv6, ipv4, ipv6};

use crate::flow::{Flow, State};
use crate::headers::{Full, Lengths, Path, headers_len};
use crate::receive::Arrival;
use crate::sequence::Sequence;
use crate::shared::Shared;
use crate::time::Instant;
use crate::tuple::Tuple;
use crate::udp::Held;

/// An answer that belongs to no flow (any more).
pub(crate) enum StatelessReply {
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

/// The multicast group's hardware address (RFC 2464 section 7).
const fn multicast_mac(group: Ipv6Addr) -> MacAddr {
    let [.., a, b, c, d] = group.octets();
    MacAddr([0x33, 0x33, a, b, c, d])
}

/// ff02::1
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

impl Shared {
    /// Queues an answer that belongs to no flow.
    pub(crate) fn answer(&mut self, answer: StatelessReply) {
        if self.answers.len() < self.config.max_answers as usize {
            self.answers.push_back(answer);
        } else {
            self.counters.drop_control_queue += 1;
        }
    }

    /// RFC 9293 section 3.10.7.1: the RST that answers a segment without a flow.
    pub(crate) fn answer_with_reset(&mut self, arrival: &Arrival<'_>) {
        let (sequence, acknowledgment, flags) = if arrival.segment.flags().contains(TcpFlags::ACK) {
            (arrival.acknowledgment(), Sequence::default(), TcpFlags::RST)
        } else {
            (Sequence::default(), arrival.sequence() + arrival.length(), TcpFlags::RST | TcpFlags::ACK)
        };
        self.counters.resets_sent += 1;
        self.answer(StatelessReply::Tcp {
            next_hop: arrival.next_hop,
            tuple: arrival.tuple,
            sequence,
            acknowledgment,
            flags,
            window: 0,
            options: Options::NONE,
        });
    }

    /// What tells the flow's peer that it has ended, if there is anything to tell.
    pub(crate) fn reset_of(&self, now: Instant, flow: &Flow) -> Option<StatelessReply> {
        // A SYN-SENT flow just goes.
        if matches!(flow.state, State::SynSent | State::Closed | State::TimeWait) {
            return None;
        }
        Some(StatelessReply::Tcp {
            next_hop: flow.next_hop,
            tuple: flow.tuple,
            sequence: flow.send_next,
            acknowledgment: flow.receive_next,
            flags: TcpFlags::RST | TcpFlags::ACK,
            window: 0,
            // RFC 7323 section 3.2: SHOULD.
            options: Options { timestamps: self.timestamps(now.tick(), flow), ..Options::NONE },
        })
    }

    /// The RST of RFC 9293 section 3.10.5. False if the flow's state wants none.
    pub(crate) fn send_reset<S: FrameSink>(
        &mut self,
        now: Instant,
        flow: &Flow,
        sink: &mut S,
    ) -> Result<bool, Full> {
        let Some(answer) = self.reset_of(now, flow) else { return Ok(false) };
        self.write_answer(&answer, sink)?;
        self.counters.resets_sent += 1;
        Ok(true)
    }

    /// The ACK of a flow that is about to go, as an answer.
    pub(crate) fn acknowledgment(&self, now: Instant, flow: &mut Flow) -> StatelessReply {
        StatelessReply::Tcp {
            next_hop: flow.next_hop,
            tuple: flow.tuple,
            sequence: flow.send_next,
            acknowledgment: flow.receive_next,
            flags: TcpFlags::ACK,
            window: flow.advertise(),
            options: Options { timestamps: self.timestamps(now.tick(), flow), ..Options::NONE },
        }
    }

    /// Sends the answers that belong to no flow. False when the link is full.
    #[inline]
    pub(crate) fn send_answers<S: FrameSink>(&mut self, sink: &mut S) -> bool {
        // Mostly there is none.
        self.answers.is_empty() || self.send_those_waiting(sink)
    }

    fn send_those_waiting<S: FrameSink>(&mut self, sink: &mut S) -> bool {
        while let Some(answer) = self.answers.pop_front() {
            if self.write_answer(&answer, sink).is_err() {
                self.answers.push_front(answer);
                return false;
            }
        }
        true
    }

    fn write_answer<S: FrameSink>(&mut self, answer: &StatelessReply, sink: &mut S) -> Result<(), Full> {
        let frame = sink.frame().ok_or(Full)?;
        let length = match answer {
            &StatelessReply::Tcp { next_hop, tuple, sequence, acknowledgment, flags, window, options } => {
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
            &StatelessReply::Arp { operation, sender_ip, target_mac, target_ip } => {
                let destination =
                    if operation == arp::Operation::Request { MacAddr::BROADCAST } else { target_mac };
                ethernet::Header { destination, source: self.config.mac, ethertype: ethernet::ETHERTYPE_ARP }
                    .emit(frame);
                let packet =
                    arp::Packet { operation, sender_mac: self.config.mac, sender_ip, target_mac, target_ip };
                ethernet::HEADER_LEN + packet.emit(&mut frame[ethernet::HEADER_LEN..])
            }
            &StatelessReply::Solicit { source, target } => {
                let group = ipv6::solicited_node(target);
                let asked =
                    icmpv6::NeighborSolicitation { target, source_link_address: Some(self.config.mac) };
                let length = asked.emit(&mut frame[headers_len(false)..], source, group);
                self.write_neighbor(frame, source, group, multicast_mac(group), length)
            }
            &StatelessReply::Advertise { target, to } => {
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
            StatelessReply::PortUnreachable { next_hop, local, remote, quote } => {
                self.write_refusal(frame, *next_hop, (*local, *remote), quote)
            }
            StatelessReply::Datagram(held) => self.write_held(frame, held),
            StatelessReply::Echo { next_hop, local, remote, identifier, sequence, data } => {
                let path = Path { next_hop: *next_hop, source: *local, destination: *remote };
                self.write_echo(frame, &path, (*identifier, *sequence), data)
            }
        };
        match answer {
            StatelessReply::Tcp { tuple, .. } if self.config.checksum_offload => {
                let checksum_from = headers_len(tuple.is_v4()) as u16;
                sink.commit_unfinished(length, Unfinished { checksum_from, ..Unfinished::default() });
            }
            _ => sink.commit(length),
        }
        self.counters.tx_frames += 1;
        Ok(())
    }

    fn write_echo(
        &self,
        frame: &mut [u8],
        path: &Path,
        (identifier, sequence): (u16, u16),
        data: &[u8],
    ) -> usize {
        let buffer = &mut frame[headers_len(path.source.is_ipv4())..];
        let kind = icmpv4::Kind::Reply;
        let (length, protocol) = match (path.source, path.destination) {
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                let echo = icmpv6::Echo { kind, identifier, sequence, data };
                (echo.emit(buffer, local, remote), ipv6::PROTOCOL_ICMPV6)
            }
            _ => {
                let echo = icmpv4::Echo { kind, identifier, sequence, data };
                (echo.emit(buffer), ipv4::PROTOCOL_ICMP)
            }
        };
        self.write_headers(frame, path, protocol, length, 0, self.config.hop_limit_to(path.destination))
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

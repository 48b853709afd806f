//! ICMP and neighbour discovery: pings and solicitations where no kernel shares the link, and errors about flows.

use core::net::{Ipv6Addr, SocketAddr};

use overfly_wire::ip::{Packet, Quote, Quoted};
use overfly_wire::{MacAddr, Malformed, icmpv4, icmpv6, ipv4, ipv6};

use crate::answers::StatelessReply;
use crate::engine::Engine;
use crate::flow::State;
use crate::owner::{Failure, Owner};
use crate::path_mtu;
use crate::sequence::Sequence;
use crate::shared::Verdict;
use crate::time::Instant;
use crate::tuple::Tuple;
use crate::udp::Unreachable;

/// What an ICMP error says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    /// The packet was too big for the next hop, which takes so many bytes; 0 is a router that does not say.
    TooBig(u32),
    /// It did not arrive.
    Lost(Unreachable),
}

impl Engine {
    pub(crate) fn receive_icmpv4<O: Owner>(
        &mut self,
        now: Instant,
        next_hop: MacAddr,
        packet: &ipv4::Packet<'_>,
        owner: &mut O,
    ) {
        match icmpv4::Message::parse(packet.payload()) {
            Ok(message) if self.datagram_error_v4(now, &Packet::V4(*packet), &message, owner) => {}
            Ok(icmpv4::Message::Echo(echo)) => {
                // RFC 1122 section 3.2.2.6 would have it whole: what the link does not take at once gets no answer.
                if self.shared.config.alone
                    && echo.kind == icmpv4::Kind::Request
                    && echo.data.len() + ipv4::HEADER_LEN + icmpv4::HEADER_LEN
                        <= self.shared.config.mtu.into()
                    && self.shared.config.is_own(packet.destination().into())
                {
                    self.shared.answer(StatelessReply::Echo {
                        next_hop,
                        local: packet.destination().into(),
                        remote: packet.source().into(),
                        identifier: echo.identifier,
                        sequence: echo.sequence,
                        data: echo.data.into(),
                    });
                } else {
                    self.shared.counters.drop_protocol += 1;
                }
            }
            Ok(icmpv4::Message::DestinationUnreachable { code, next_hop_mtu, quote }) => {
                let trouble = match code {
                    icmpv4::CODE_FRAGMENTATION_NEEDED => Trouble::TooBig(next_hop_mtu.unwrap_or(0).into()),
                    _ => Trouble::Lost(Unreachable::of_icmpv4(code)),
                };
                self.trouble(now, &quote, trouble, owner);
            }
            Ok(icmpv4::Message::TimeExceeded { quote, .. }) => {
                self.trouble(now, &quote, Trouble::Lost(Unreachable::Expired), owner);
            }
            Ok(icmpv4::Message::ParameterProblem { quote, .. }) => {
                self.trouble(now, &quote, Trouble::Lost(Unreachable::Header), owner);
            }
            Err(why) => self.drop_icmp(why),
        }
    }

    /// A message of a type that is not spoken here is nothing wrong: a router's advertisement, who listens to which group.
    fn drop_icmp(&mut self, why: Malformed) {
        match why {
            Malformed::IcmpKind | Malformed::Icmpv6Kind => self.shared.counters.drop_protocol += 1,
            _ => self.shared.counters.drop_malformed += 1,
        }
    }

    pub(crate) fn receive_icmpv6<O: Owner>(
        &mut self,
        now: Instant,
        next_hop: MacAddr,
        packet: &ipv6::Packet<'_>,
        owner: &mut O,
    ) {
        let (source, destination) = (packet.source(), packet.destination());
        let message = match icmpv6::Message::parse(packet.payload(), source, destination) {
            Ok(message) => message,
            Err(why) => return self.drop_icmp(why),
        };
        let alone = self.shared.config.alone;
        // RFC 4861 section 7.1: neighbour discovery that crossed a router is not genuine.
        let from_link = packet.hop_limit() == icmpv6::NEIGHBOR_HOP_LIMIT;
        match message {
            message if self.datagram_error_v6(now, &Packet::V6(*packet), &message, owner) => {}
            icmpv6::Message::Echo(echo)
                if alone
                    && echo.kind == icmpv4::Kind::Request
                    && echo.data.len() + ipv6::HEADER_LEN + icmpv6::HEADER_LEN
                        <= self.shared.config.mtu.into()
                    && self.shared.config.is_own(destination.into()) =>
            {
                self.shared.answer(StatelessReply::Echo {
                    next_hop,
                    local: destination.into(),
                    remote: source.into(),
                    identifier: echo.identifier,
                    sequence: echo.sequence,
                    data: echo.data.into(),
                });
            }
            icmpv6::Message::NeighborSolicitation(asked) if alone && from_link => {
                self.solicited(source, &asked);
            }
            icmpv6::Message::NeighborAdvertisement(answer) if alone && from_link => {
                if let Some(mac) = answer.target_link_address {
                    self.set_neighbor(answer.target, mac);
                }
            }
            icmpv6::Message::DestinationUnreachable { code, quote } => {
                self.trouble(now, &quote, Trouble::Lost(Unreachable::of_icmpv6(code)), owner);
            }
            icmpv6::Message::PacketTooBig { mtu, quote } => {
                self.trouble(now, &quote, Trouble::TooBig(mtu), owner);
            }
            icmpv6::Message::TimeExceeded { quote, .. } => {
                self.trouble(now, &quote, Trouble::Lost(Unreachable::Expired), owner);
            }
            icmpv6::Message::ParameterProblem { quote, .. } => {
                self.trouble(now, &quote, Trouble::Lost(Unreachable::Header), owner);
            }
            _ => self.shared.counters.drop_protocol += 1,
        }
    }

    /// RFC 4861 section 7.2.3.
    fn solicited(&mut self, source: Ipv6Addr, asked: &icmpv6::NeighborSolicitation) {
        if !self.shared.config.is_own(asked.target.into()) {
            return;
        }
        if let Some(mac) = asked.source_link_address
            && !source.is_unspecified()
        {
            self.set_neighbor(source, mac);
        }
        self.shared.answer(StatelessReply::Advertise { target: asked.target, to: source });
    }

    /// An ICMP error about a packet that we may have sent.
    fn trouble<O: Owner>(&mut self, now: Instant, quote: &Quote, trouble: Trouble, owner: &mut O) {
        let Quoted::Tcp { source_port, destination_port, sequence } = quote.transport else {
            self.shared.counters.drop_icmp += 1;
            return;
        };
        if quote.source.is_ipv4() != quote.destination.is_ipv4() {
            self.shared.counters.drop_icmp += 1;
            return;
        }
        let tuple = Tuple::new(
            SocketAddr::new(quote.source, source_port),
            SocketAddr::new(quote.destination, destination_port),
        );
        let Some(index) = self.flows.find(&tuple) else {
            self.shared.counters.drop_icmp += 1;
            return;
        };
        let flow = self.flows.at_mut(index);
        // RFC 5927 section 4.1: only what is in flight can have met trouble.
        if !path_mtu::is_plausible(Sequence::new(sequence), flow.send_una, flow.send_next) {
            self.shared.counters.drop_icmp += 1;
            return;
        }
        self.shared.counters.icmp_errors += 1;
        match trouble {
            // RFC 5461 section 4.1: an attempt ends, with the soft errors of RFC 1122 section 4.2.3.9 too, as in Linux: there
            // may be another address to try. What is established does not (RFC 5927 section 5.2).
            Trouble::Lost(why) if flow.state == State::SynSent => {
                self.conclude(now, index, Verdict::End(Some(Failure::Unreachable(why))), owner);
            }
            Trouble::TooBig(mtu) => {
                self.turn(now, index, owner).packet_too_big(mtu);
                self.conclude(now, index, Verdict::Keep, owner);
            }
            // As tcp_v4_err() in Linux's net/ipv4/tcp_ipv4.c: kept for the day on which it times out.
            Trouble::Lost(why) if flow.state.is_synchronized() && flow.state != State::TimeWait => {
                flow.extra.get_or_insert_default().soft_error = Some(why);
            }
            Trouble::Lost(_) => {}
        }
    }
}

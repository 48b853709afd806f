//! What is heard of datagrams that did not arrive.

use core::net::{IpAddr, SocketAddr};

use overfly_wire::ip::{Packet, Quote, Quoted, quoted_transport};
use overfly_wire::udp::HEADER_LEN;
use overfly_wire::{icmpv4, icmpv6, ipv6};

use super::{Held, UdpId};
use crate::engine::Engine;
use crate::owner::Owner;
use crate::time::Instant;
use crate::tuple::Tuple;

/// Linux's net.ipv4.route.min_pmtu: what claims less of an IPv4 path is more likely an attack than a path.
const IPV4_MIN_MTU: u16 = 552;
// ICMP's types (RFC 792).
const TYPE_DESTINATION_UNREACHABLE: u8 = 3;
const TYPE_PARAMETER_PROBLEM: u8 = 12;

/// Why a datagram, or a SYN, did not arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unreachable {
    /// Nobody is at that port.
    Port,
    /// The host does not speak UDP.
    Protocol,
    /// A router cannot reach the host, or no neighbour answers for it.
    Host,
    /// A router has no route.
    Network,
    /// The network is not known, or closed to us: Linux's ENETUNREACH too, but for good.
    NetworkUnknown,
    /// The host is not known (Linux's EHOSTDOWN).
    HostUnknown,
    /// The host is cut off from its network (Linux's ENONET).
    HostIsolated,
    /// The way that its source prescribed cannot be gone.
    SourceRoute,
    /// A filter forbids it.
    Prohibited,
    /// It went in circles.
    Expired,
    /// Something is wrong with its headers.
    Header,
    /// The path takes IP packets of so many bytes only; [`Engine::udp_send`] refuses larger ones from now on.
    TooBig(u16),
}

impl Unreachable {
    /// What a code of "destination unreachable" means (RFC 792, RFC 1122 section 3.2.2.1, RFC 1812 section 5.2.7.1), told apart
    /// as icmp_err_convert[] in Linux's net/ipv4/icmp.c does.
    pub(crate) const fn of_icmpv4(code: u8) -> Self {
        match code {
            0 | 11 => Self::Network,
            6 | 9 => Self::NetworkUnknown,
            2 => Self::Protocol,
            5 => Self::SourceRoute,
            7 => Self::HostUnknown,
            8 => Self::HostIsolated,
            icmpv4::CODE_PORT_UNREACHABLE => Self::Port,
            10 | 13..=15 => Self::Prohibited,
            _ => Self::Host,
        }
    }

    /// As [`Unreachable::of_icmpv4`], for IPv6 (RFC 4443 section 3.1).
    pub(crate) const fn of_icmpv6(code: u8) -> Self {
        match code {
            1 | 5 | 6 => Self::Prohibited,
            2 | 3 => Self::Host,
            icmpv6::CODE_PORT_UNREACHABLE => Self::Port,
            _ => Self::Network,
        }
    }
}

/// What an ICMP error says itself, for owners that tell programs (Linux's `struct sock_extended_err`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report<'a> {
    /// ICMP's type.
    pub kind: u8,
    /// ICMP's code.
    pub code: u8,
    /// The MTU, or the place of what is wrong; 0 where there is neither.
    pub info: u32,
    /// Who says it.
    pub offender: IpAddr,
    /// Which of our addresses was told.
    pub destination: IpAddr,
    /// Differentiated services and congestion notification of the message.
    pub traffic_class: u8,
    /// Hops that the message might still have gone.
    pub hop_limit: u8,
    /// The payload of the datagram, as far as it is quoted.
    pub payload: &'a [u8],
}

impl<'a> Report<'a> {
    /// `packet` carries a message that is well formed, and quotes a datagram.
    fn of(packet: &Packet<'a>) -> Self {
        let message = packet.payload();
        let (header, quoted) = message.split_at(icmpv4::HEADER_LEN.min(message.len()));
        let byte = |at: usize| header.get(at).copied().unwrap_or(0);
        let word = u32::from_be_bytes([byte(4), byte(5), byte(6), byte(7)]);
        let (kind, code) = (byte(0), byte(1));
        let info = match packet {
            Packet::V6(_) => word,
            // icmp_unreach() in Linux's net/ipv4/icmp.c.
            Packet::V4(_) => match (kind, code) {
                (TYPE_DESTINATION_UNREACHABLE, icmpv4::CODE_FRAGMENTATION_NEEDED) => word & 0xffff,
                (TYPE_PARAMETER_PROBLEM, _) => word >> 24,
                _ => 0,
            },
        };
        let transport = quoted_transport(quoted);
        Self {
            kind,
            code,
            info,
            offender: packet.source(),
            destination: packet.destination(),
            traffic_class: packet.traffic_class(),
            hop_limit: packet.hop_limit(),
            payload: transport.and_then(|datagram| datagram.get(HEADER_LEN..)).unwrap_or(&[]),
        }
    }

    /// Nobody answers for the next hop: what a kernel then sends to itself (ipv4_link_failure() in Linux's net/ipv4/route.c,
    /// ip6_link_failure() in net/ipv6/route.c).
    fn of_silence(held: &'a Held) -> Self {
        let local = held.tuple.local.ip();
        let (kind, code) = if local.is_ipv4() { (TYPE_DESTINATION_UNREACHABLE, 1) } else { (1, 3) };
        Self {
            kind,
            code,
            info: 0,
            offender: local,
            destination: local,
            traffic_class: 0,
            hop_limit: 64,
            payload: &held.payload,
        }
    }
}

impl Engine {
    /// Something was sent from a socket's place without the engine, by a kernel's socket say: errors may answer that.
    pub fn udp_sent_elsewhere(&mut self, socket: UdpId) {
        let block = &mut self.udp.sockets[socket.index()];
        block.largest_sent = block.largest_sent.max(1);
    }

    /// Nobody answers for the next hop of a datagram that waited.
    pub(crate) fn datagram_unresolved<O: Owner>(&mut self, held: &Held, owner: &mut O) {
        self.shared.counters.drop_udp_unresolved += 1;
        // The socket may be gone, and its id another's.
        if self.udp.find(&held.tuple) == Some(held.socket.0) {
            let report = Report::of_silence(held);
            owner.datagram_failed(held.socket, held.tuple.remote(), Unreachable::Host, &report);
        }
    }

    /// Whether an ICMP message, which `packet` carries, is an error about UDP, which is then dealt with.
    pub(crate) fn datagram_error_v4<O: Owner>(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        message: &icmpv4::Message<'_>,
        owner: &mut O,
    ) -> bool {
        let (quote, why) = match message {
            icmpv4::Message::Echo(_) => return false,
            icmpv4::Message::DestinationUnreachable { code, next_hop_mtu, quote } => {
                let why = match *code {
                    icmpv4::CODE_FRAGMENTATION_NEEDED => {
                        Unreachable::TooBig(next_hop_mtu.unwrap_or(0).max(IPV4_MIN_MTU))
                    }
                    code => Unreachable::of_icmpv4(code),
                };
                (quote, why)
            }
            icmpv4::Message::TimeExceeded { quote, .. } => (quote, Unreachable::Expired),
            icmpv4::Message::ParameterProblem { quote, .. } => (quote, Unreachable::Header),
        };
        self.datagram_error(now, packet, quote, why, owner)
    }

    /// As [`Engine::datagram_error_v4`].
    pub(crate) fn datagram_error_v6<O: Owner>(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        message: &icmpv6::Message<'_>,
        owner: &mut O,
    ) -> bool {
        let (quote, why) = match message {
            icmpv6::Message::DestinationUnreachable { code, quote } => (quote, Unreachable::of_icmpv6(*code)),
            icmpv6::Message::PacketTooBig { mtu, quote } => {
                (quote, Unreachable::TooBig((*mtu).try_into().unwrap_or(u16::MAX)))
            }
            icmpv6::Message::TimeExceeded { quote, .. } => (quote, Unreachable::Expired),
            icmpv6::Message::ParameterProblem { quote, .. } => (quote, Unreachable::Header),
            _ => return false,
        };
        self.datagram_error(now, packet, quote, why, owner)
    }

    /// An ICMP error about a datagram that we may have sent. UDP has no sequence numbers: that a socket stands where the
    /// quoted datagram left, is connected to where it went if it is connected at all, and has sent, is all that RFC 5927's
    /// checks can be. A socket must have sent as much at once as the path is said not to take.
    fn datagram_error<O: Owner>(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        quote: &Quote,
        why: Unreachable,
        owner: &mut O,
    ) -> bool {
        let Quoted::Udp { source_port, destination_port } = quote.transport else { return false };
        let local = SocketAddr::new(quote.source, source_port);
        let remote = SocketAddr::new(quote.destination, destination_port);
        let tuple = Tuple::new(local, remote);
        let is_one_family = local.is_ipv4() == remote.is_ipv4();
        let Some(index) = self.udp.find(&tuple).filter(|_| is_one_family) else {
            self.shared.counters.drop_icmp += 1;
            return true;
        };
        let sent = self.udp.sockets[index as usize].largest_sent;
        let is_plausible = match why {
            // RFC 8201 section 4: less than IPv6's least MTU is ignored.
            Unreachable::TooBig(mtu) => {
                mtu < sent
                    && mtu < self.udp.path_mtu(&self.shared.config, now, remote.ip())
                    && (remote.is_ipv4() || mtu >= ipv6::MIN_MTU)
            }
            _ => sent > 0,
        };
        if !is_plausible {
            self.shared.counters.drop_icmp += 1;
            return true;
        }
        if let Unreachable::TooBig(mtu) = why {
            let paths = &mut self.udp.paths;
            if paths.len() >= self.shared.config.max_paths as usize && !paths.contains_key(&remote.ip()) {
                paths.pop_first();
            }
            paths.insert(remote.ip(), (mtu, now));
        }
        self.shared.counters.icmp_errors += 1;
        owner.datagram_failed(UdpId(index), remote, why, &Report::of(packet));
        true
    }
}

#[cfg(test)]
mod tests {
    use overfly_wire::ipv4;

    use super::*;

    /// An IPv4 packet from 10.0.0.9 with an ICMP message, which quotes a datagram with "payload" behind `options` bytes of options.
    fn error(kind: u8, code: u8, word: u32, options: usize) -> Vec<u8> {
        let mut message = vec![kind, code, 0, 0];
        message.extend_from_slice(&word.to_be_bytes());
        message.push(0x45 + (options / 4) as u8);
        message.resize(8 + 20 + options + 8, 0);
        message.extend_from_slice(b"payload");
        packet(&message)
    }

    fn packet(message: &[u8]) -> Vec<u8> {
        let header = ipv4::Header {
            source: [10, 0, 0, 9].into(),
            destination: [10, 0, 0, 1].into(),
            protocol: ipv4::PROTOCOL_ICMP,
            ttl: 61,
            tos: 0xc0,
            identification: 0,
            dont_fragment: false,
            payload_len: message.len() as u16,
        };
        let mut packet = vec![0; ipv4::HEADER_LEN];
        header.emit(&mut packet);
        packet.extend_from_slice(message);
        packet
    }

    #[test]
    fn a_report_says_what_the_message_says() {
        let cases = [
            ((3, 3, 0x0102_0304), 0),
            ((3, 4, 0x0102_0304), 0x0304),
            ((12, 0, 0x0102_0304), 1),
            ((11, 0, 7), 0),
        ];
        for ((kind, code, word), info) in cases {
            for options in [0, 4, 40] {
                let bytes = error(kind, code, word, options);
                let packet = Packet::parse(&bytes).expect("sound");
                let expected = Report {
                    kind,
                    code,
                    info,
                    offender: IpAddr::from([10, 0, 0, 9]),
                    destination: IpAddr::from([10, 0, 0, 1]),
                    traffic_class: 0xc0,
                    hop_limit: 61,
                    payload: b"payload",
                };
                assert_eq!(Report::of(&packet), expected);
            }
        }
    }

    #[test]
    fn what_is_cut_has_no_payload() {
        let whole = error(3, 3, 0, 0);
        for length in ipv4::HEADER_LEN..whole.len() - 7 {
            let bytes = packet(&whole[ipv4::HEADER_LEN..length]);
            assert_eq!(Report::of(&Packet::parse(&bytes).expect("sound")).payload, b"");
        }
    }
}

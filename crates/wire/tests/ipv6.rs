//! IPv6, ICMP errors of both versions, neighbour discovery and UDP over IPv6 against smoltcp and etherparse, in both
//! directions, and cases worked out by hand.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::strategies::{address, bytes, config, ipv6_address, mac};
use etherparse::{
    Icmpv4Header, Icmpv4Type, Icmpv6Header, Icmpv6Type, IpEcn, IpFragOffset, IpNumber, Ipv6Extensions,
    Ipv6FlowLabel, Ipv6FragmentHeader, Ipv6Header, Ipv6RawExtHeader, Ipv6RoutingExtensions, UdpHeader,
    icmpv4 as their_icmpv4, icmpv6 as their_icmpv6,
};
use overfly_wire::ip::{self, Ecn, Quote, Quoted};
use overfly_wire::ipv6::{self, Header, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP, Packet};
use overfly_wire::{MacAddr, Malformed, icmpv4, icmpv6, ipv4, udp};
use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, Icmpv4DstUnreachable, Icmpv4Packet, Icmpv4Repr, Icmpv6DstUnreachable, Icmpv6Packet,
    Icmpv6Repr, IpAddress, IpProtocol, Ipv6Packet, NdiscNeighborFlags, NdiscRepr, UdpPacket,
};

const HERE: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const THERE: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

fn header(payload_len: u16) -> impl Strategy<Value = Header> {
    (ipv6_address(), ipv6_address(), any::<(u8, u8, u8, u32)>()).prop_map(
        move |(source, destination, (protocol, hop_limit, traffic_class, label))| Header {
            source,
            destination,
            // None of the extension headers.
            protocol: if matches!(protocol, 0 | 43 | 44 | 60) { PROTOCOL_TCP } else { protocol },
            hop_limit,
            traffic_class,
            flow_label: label & ipv6::MAX_FLOW_LABEL,
            payload_len,
        },
    )
}

fn packet() -> impl Strategy<Value = (Header, Vec<u8>)> {
    bytes(1_480).prop_flat_map(|payload| (header(payload.len() as u16), Just(payload)))
}

fn emitted(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xa5; ipv6::HEADER_LEN];
    header.emit(&mut bytes);
    bytes.extend(payload);
    bytes
}

/// A packet whose first next header is `next_header`.
fn packet_of(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        source: HERE,
        destination: THERE,
        protocol: next_header,
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        payload_len: payload.len() as u16,
    };
    emitted(&header, payload)
}

fn header_of(packet: &Packet<'_>) -> Header {
    Header {
        source: packet.source(),
        destination: packet.destination(),
        protocol: packet.protocol(),
        hop_limit: packet.hop_limit(),
        traffic_class: packet.traffic_class(),
        flow_label: packet.flow_label(),
        payload_len: packet.payload().len() as u16,
    }
}

fn quote(source: impl Into<IpAddr>, destination: impl Into<IpAddr>, transport: Quoted) -> Quote {
    Quote { source: source.into(), destination: destination.into(), transport }
}

fn quoted(tcp: bool, word: u64) -> Quoted {
    let (source_port, destination_port) = ((word >> 48) as u16, (word >> 32) as u16);
    if tcp {
        Quoted::Tcp { source_port, destination_port, sequence: word as u32 }
    } else {
        Quoted::Udp { source_port, destination_port }
    }
}

proptest! {
    #![proptest_config(config(1_000))]

    #[test]
    fn headers((header, payload) in packet(), padding in bytes(30)) {
        let whole = emitted(&header, &payload);
        let padded = [&whole[..], &padding].concat();
        let packet = Packet::parse(&padded).unwrap();
        prop_assert_eq!(header_of(&packet), header);
        prop_assert_eq!((packet.payload(), packet.total_len()), (&payload[..], whole.len()));
        prop_assert!(!packet.is_fragment());
        prop_assert_eq!(packet.ecn() as u8, header.traffic_class & 3);
        let either = ip::Packet::parse(&padded).unwrap();
        prop_assert_eq!((either.source(), either.destination()), (header.source.into(), header.destination.into()));
        prop_assert_eq!((either.protocol(), either.hop_limit()), (header.protocol, header.hop_limit));
        prop_assert_eq!((either.traffic_class(), either.payload()), (header.traffic_class, &payload[..]));
        prop_assert_eq!((either.is_fragment(), either.total_len()), (false, whole.len()));

        let theirs = Ipv6Packet::new_checked(&whole[..]).unwrap();
        prop_assert_eq!((theirs.src_addr(), theirs.dst_addr()), (header.source, header.destination));
        prop_assert_eq!((theirs.next_header(), theirs.hop_limit()), (IpProtocol::from(header.protocol), header.hop_limit));
        prop_assert_eq!((theirs.traffic_class(), theirs.flow_label()), (header.traffic_class, header.flow_label));
        prop_assert_eq!(theirs.payload(), &payload[..]);

        let built = Ipv6Header {
            traffic_class: header.traffic_class,
            flow_label: Ipv6FlowLabel::try_new(header.flow_label).unwrap(),
            payload_length: header.payload_len,
            next_header: IpNumber(header.protocol),
            hop_limit: header.hop_limit,
            source: header.source.octets(),
            destination: header.destination.octets(),
        };
        prop_assert_eq!(&built.to_bytes()[..], &whole[..40]);
        for length in 0..whole.len() {
            let reason = if length < 40 { Malformed::Ipv6Short } else { Malformed::Ipv6PayloadLength };
            prop_assert_eq!(Packet::parse(&whole[..length]).err(), Some(reason));
        }
    }

    #[test]
    fn extension_headers_that_etherparse_builds(
        which in any::<[bool; 5]>(), sizes in any::<[u8; 4]>(), payload in bytes(100), more: bool,
        offset in prop_oneof![Just(0u16), 0..0x2000u16],
    ) {
        // Options are PadN of any length; a routing header has no segments left.
        let raw = |size: u8, routing: bool| {
            let mut bytes = vec![0; 6 + 8 * usize::from(size % 8)];
            if !routing {
                bytes[..2].copy_from_slice(&[1, 4]);
            }
            Ipv6RawExtHeader::new_raw(IpNumber(0), &bytes).unwrap()
        };
        let mut extensions = Ipv6Extensions {
            hop_by_hop_options: which[0].then(|| raw(sizes[0], false)),
            destination_options: which[1].then(|| raw(sizes[1], false)),
            routing: which[2].then(|| Ipv6RoutingExtensions {
                routing: raw(sizes[2], true),
                final_destination_options: which[3].then(|| raw(sizes[3], false)),
            }),
            fragment: which[4].then(|| {
                Ipv6FragmentHeader::new(IpNumber(0), IpFragOffset::try_new(offset).unwrap(), more, 7)
            }),
            auth: None,
        };
        let first = extensions.set_next_headers(IpNumber(PROTOCOL_TCP));
        let mut rest = Vec::new();
        extensions.write(&mut rest, first).unwrap();
        if which[4] {
            // etherparse 0.19 writes neither the offset nor the flag where RFC 8200 section 4.5 has them.
            let routing = extensions.routing.as_ref().map(|routing| &routing.routing);
            let before = [extensions.hop_by_hop_options.as_ref(), extensions.destination_options.as_ref(), routing];
            let at: usize = before.into_iter().flatten().map(Ipv6RawExtHeader::header_len).sum();
            rest[at + 2..at + 4].copy_from_slice(&(offset << 3 | u16::from(more)).to_be_bytes());
        }
        rest.extend(&payload);
        let bytes = packet_of(first.0, &rest);
        let packet = Packet::parse(&bytes).unwrap();
        prop_assert_eq!(packet.is_fragment(), extensions.is_fragmenting_payload());
        if packet.is_fragment() {
            // The final destination options come after the fragment header, and are then of the payload.
            prop_assert!(packet.payload().ends_with(&payload));
        } else {
            prop_assert_eq!((packet.protocol(), packet.payload()), (PROTOCOL_TCP, &payload[..]));
        }
    }

    #[test]
    fn datagrams(ports: (u16, u16), payload in bytes(1_400), source in ipv6_address(), destination in ipv6_address()) {
        let header = udp::Header { source_port: ports.0, destination_port: ports.1 };
        let mut bytes = [&[0; 8], &payload[..]].concat();
        header.emit(&mut bytes, source, destination);
        prop_assert_eq!(udp::Header::parse(&bytes, source, destination, false), Ok((header, &payload[..])));
        let either = udp::Header::parse(&bytes, IpAddr::V6(source), IpAddr::V6(destination), false);
        prop_assert_eq!(either, Ok((header, &payload[..])));
        let packet = UdpPacket::new_checked(&bytes[..]).unwrap();
        prop_assert!(packet.verify_checksum(&IpAddress::Ipv6(source), &IpAddress::Ipv6(destination)));
        let (theirs, _) = UdpHeader::from_slice(&bytes).unwrap();
        let sum = theirs.calc_checksum_ipv6_raw(source.octets(), destination.octets(), &payload).unwrap();
        prop_assert_eq!(theirs.checksum, sum);

        header.emit_partial(&mut bytes, source, destination);
        prop_assert_eq!(udp::Header::parse(&bytes, source, destination, true), Ok((header, &payload[..])));
        let complete = overfly_wire::checksum::Sum::new().bytes(&bytes).finish();
        prop_assert!(complete == sum || (complete, sum) == (0, 0xffff));
        bytes[6..8].fill(0);
        prop_assert_eq!(udp::Header::parse(&bytes, source, destination, true), Err(Malformed::UdpNoChecksum));
    }

    #[test]
    fn echoes(request: bool, ids: (u16, u16), data in bytes(1_400), source in ipv6_address(), destination in ipv6_address()) {
        let kind = if request { icmpv6::Kind::Request } else { icmpv6::Kind::Reply };
        let echo = icmpv6::Echo { kind, identifier: ids.0, sequence: ids.1, data: &data };
        let mut bytes = vec![0xa5; 8 + data.len()];
        prop_assert_eq!(echo.emit(&mut bytes, source, destination), bytes.len());
        prop_assert_eq!(icmpv6::Message::parse(&bytes, source, destination), Ok(icmpv6::Message::Echo(echo)));
        let repr = if request {
            Icmpv6Repr::EchoRequest { ident: ids.0, seq_no: ids.1, data: &data }
        } else {
            Icmpv6Repr::EchoReply { ident: ids.0, seq_no: ids.1, data: &data }
        };
        let mut theirs = vec![0; bytes.len()];
        let caps = ChecksumCapabilities::default();
        repr.emit(&source, &destination, &mut Icmpv6Packet::new_unchecked(&mut theirs[..]), &caps);
        prop_assert_eq!(&theirs, &bytes);
        bytes[4] ^= 1;
        prop_assert_eq!(icmpv6::Message::parse(&bytes, source, destination), Err(Malformed::Icmpv6Checksum));
    }

    #[test]
    fn errors_of_icmpv6_that_etherparse_builds(
        source in ipv6_address(), destination in ipv6_address(), mtu: u32, tcp: bool, word: u64, cut in 0..48usize,
    ) {
        let protocol = if tcp { PROTOCOL_TCP } else { PROTOCOL_UDP };
        let (here, there) = (source, destination);
        let inner = Header {
            source, destination, protocol, hop_limit: 1, traffic_class: 0, flow_label: 0, payload_len: 1_000,
        };
        let inner = emitted(&inner, &word.to_be_bytes());
        let quote = quote(source, destination, quoted(tcp, word));
        let code = their_icmpv6::DestUnreachableCode::Port;
        let problem = their_icmpv6::ParameterProblemHeader {
            code: their_icmpv6::ParameterProblemCode::UnrecognizedNextHeader, pointer: mtu,
        };
        let cases = [
            (Icmpv6Type::DestinationUnreachable(code), icmpv6::Message::DestinationUnreachable { code: 4, quote }),
            (Icmpv6Type::PacketTooBig { mtu }, icmpv6::Message::PacketTooBig { mtu, quote }),
            (
                Icmpv6Type::TimeExceeded(their_icmpv6::TimeExceededCode::FragmentReassemblyTimeExceeded),
                icmpv6::Message::TimeExceeded { code: 1, quote },
            ),
            (
                Icmpv6Type::ParameterProblem(problem),
                icmpv6::Message::ParameterProblem { code: 1, pointer: mtu, quote },
            ),
        ];
        for (theirs, ours) in cases {
            let build = |inner: &[u8]| {
                let header = Icmpv6Header::with_checksum(theirs, there.octets(), here.octets(), inner).unwrap();
                [&header.to_bytes()[..], inner].concat()
            };
            let (whole, short) = (build(&inner), build(&inner[..cut]));
            prop_assert_eq!(icmpv6::Message::parse(&whole, there, here), Ok(ours));
            prop_assert_eq!(icmpv6::Message::parse(&short, there, here), Err(Malformed::QuoteShort));
        }
        let mut bytes = vec![0; 8 + inner.len()];
        prop_assert_eq!(icmpv6::emit_port_unreachable(&inner, &mut bytes, there, here), bytes.len());
        let theirs = Icmpv6Packet::new_checked(&bytes[..]).unwrap();
        let repr = Icmpv6Repr::parse(&there, &here, &theirs, &ChecksumCapabilities::default()).unwrap();
        let port = matches!(repr, Icmpv6Repr::DstUnreachable { reason: Icmpv6DstUnreachable::PortUnreachable, .. });
        prop_assert!(port);
    }

    #[test]
    fn errors_of_icmpv4_that_etherparse_builds(
        source in address(), destination in address(), mtu: u16, pointer: u8, tcp: bool, word: u64, cut in 0..28usize,
    ) {
        let mut inner = vec![0; 20];
        ipv4::Header {
            source, destination, protocol: if tcp { PROTOCOL_TCP } else { PROTOCOL_UDP }, ttl: 1, tos: 0,
            identification: 0, dont_fragment: true, payload_len: 1_000,
        }.emit(&mut inner);
        inner.extend(word.to_be_bytes());
        let quote = quote(source, destination, quoted(tcp, word));
        let unreachable = |code, next_hop_mtu| icmpv4::Message::DestinationUnreachable { code, next_hop_mtu, quote };
        use their_icmpv4::DestUnreachableHeader::{FragmentationNeeded, Port};
        let cases = [
            (Icmpv4Type::DestinationUnreachable(Port), unreachable(3, None)),
            (
                Icmpv4Type::DestinationUnreachable(FragmentationNeeded { next_hop_mtu: mtu }),
                unreachable(4, (mtu != 0).then_some(mtu)),
            ),
            (
                Icmpv4Type::TimeExceeded(their_icmpv4::TimeExceededCode::TtlExceededInTransit),
                icmpv4::Message::TimeExceeded { code: 0, quote },
            ),
            (
                Icmpv4Type::ParameterProblem(their_icmpv4::ParameterProblemHeader::PointerIndicatesError(pointer)),
                icmpv4::Message::ParameterProblem { code: 0, pointer, quote },
            ),
        ];
        for (theirs, ours) in cases {
            let build = |inner: &[u8]| {
                [&Icmpv4Header::with_checksum(theirs.clone(), inner).to_bytes()[..], inner].concat()
            };
            let (whole, short) = (build(&inner), build(&inner[..cut]));
            prop_assert_eq!(icmpv4::Message::parse(&whole), Ok(ours));
            prop_assert_eq!(icmpv4::Message::parse(&short), Err(Malformed::QuoteShort));
        }
        let mut bytes = vec![0; 8 + inner.len()];
        prop_assert_eq!(icmpv4::emit_port_unreachable(&inner, &mut bytes), bytes.len());
        let theirs = Icmpv4Packet::new_checked(&bytes[..]).unwrap();
        prop_assert!(theirs.verify_checksum());
        prop_assert_eq!(theirs.msg_code(), u8::from(Icmpv4DstUnreachable::PortUnreachable));
        prop_assert_eq!(theirs.data(), &inner[..]);
        let _ = Icmpv4Repr::parse(&theirs, &ChecksumCapabilities::default());
    }

    #[test]
    fn neighbor_discovery(target in ipv6_address(), link in proptest::option::of(mac()), flags: (bool, bool, bool)) {
        prop_assume!(!target.is_multicast());
        let lladdr = link.map(|mac| EthernetAddress(mac.0).into());
        let caps = ChecksumCapabilities::default();
        let mut bytes = vec![0; icmpv6::MAX_NEIGHBOR_LEN];
        let ours = icmpv6::NeighborSolicitation { target, source_link_address: link };
        let length = ours.emit(&mut bytes, HERE, THERE);
        let parsed = icmpv6::Message::parse(&bytes[..length], HERE, THERE);
        prop_assert_eq!(parsed, Ok(icmpv6::Message::NeighborSolicitation(ours)));
        let repr = Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr: target, lladdr });
        let mut theirs = vec![0; repr.buffer_len()];
        repr.emit(&HERE, &THERE, &mut Icmpv6Packet::new_unchecked(&mut theirs[..]), &caps);
        prop_assert_eq!(&theirs, &bytes[..length]);

        let (router, solicited, overrides) = flags;
        let ours = icmpv6::NeighborAdvertisement { target, target_link_address: link, router, solicited, overrides };
        let length = ours.emit(&mut bytes, HERE, THERE);
        let parsed = icmpv6::Message::parse(&bytes[..length], HERE, THERE);
        prop_assert_eq!(parsed, Ok(icmpv6::Message::NeighborAdvertisement(ours)));
        let mut bits = NdiscNeighborFlags::empty();
        bits.set(NdiscNeighborFlags::ROUTER, router);
        bits.set(NdiscNeighborFlags::SOLICITED, solicited);
        bits.set(NdiscNeighborFlags::OVERRIDE, overrides);
        let repr = Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags: bits, target_addr: target, lladdr });
        let mut theirs = vec![0; repr.buffer_len()];
        repr.emit(&HERE, &THERE, &mut Icmpv6Packet::new_unchecked(&mut theirs[..]), &caps);
        prop_assert_eq!(&theirs, &bytes[..length]);
    }
}

#[test]
fn extension_headers_that_are_refused() {
    let refused = |next_header: u8, payload: &[u8]| Packet::parse(&packet_of(next_header, payload)).err();
    let pad = |next_header: u8| [next_header, 0, 1, 4, 0, 0, 0, 0];
    assert_eq!(refused(0, &[]), Some(Malformed::Ipv6Jumbo));
    assert_eq!(refused(0, &[6, 0, 0xc2, 4, 0, 1, 0, 0]), Some(Malformed::Ipv6Jumbo));
    for next_header in [0, 43, 44, 60] {
        assert_eq!(refused(next_header, &[6, 0, 1, 4, 0]), Some(Malformed::Ipv6Extension));
    }
    assert_eq!(refused(60, &[6, 1, 1, 4, 0, 0, 0, 0]), Some(Malformed::Ipv6Extension), "beyond the packet");
    assert_eq!(refused(60, &[6, 0, 1, 5, 0, 0, 0, 0]), Some(Malformed::Ipv6Extension), "an option beyond it");
    assert_eq!(
        refused(60, &[6, 0, 1, 3, 0, 0, 0, 9]),
        Some(Malformed::Ipv6Extension),
        "an option without length"
    );
    assert_eq!(refused(60, &[pad(0), pad(6)].concat()), Some(Malformed::Ipv6Extension), "not the first");
    for kind in [0x40, 0x80, 0xc0, 0xc9] {
        assert_eq!(refused(60, &[6, 0, kind, 4, 0, 0, 0, 0]), Some(Malformed::Ipv6Option));
    }
    assert_eq!(refused(60, &[6, 0, 0x3f, 4, 0, 0, 0, 0]), None, "stepped over");
    assert_eq!(refused(43, &[6, 0, 0, 1, 0, 0, 0, 0]), Some(Malformed::Ipv6Routing));
    let chain = |count: usize| {
        let mut bytes: Vec<u8> = (1..count).flat_map(|_| pad(60)).collect();
        bytes.extend(pad(6));
        bytes
    };
    assert_eq!(refused(60, &chain(ipv6::MAX_EXTENSIONS)), None);
    assert_eq!(refused(60, &chain(ipv6::MAX_EXTENSIONS + 1)), Some(Malformed::Ipv6Extensions));
    for version in (0..16).filter(|version| *version != 6) {
        let mut bytes = packet_of(6, b"data");
        bytes[0] = version << 4;
        assert_eq!(Packet::parse(&bytes).err(), Some(Malformed::Ipv6Version));
        if version != 4 {
            assert_eq!(ip::Packet::parse(&bytes).err(), Some(Malformed::IpVersion));
        }
    }
    assert_eq!(ip::Packet::parse(&[]).err(), Some(Malformed::IpVersion));
}

#[test]
fn fragments() {
    let fragment = |offset_and_more: u16| {
        let [high, low] = offset_and_more.to_be_bytes();
        packet_of(44, &[6, 0, high, low, 0, 0, 0, 7, 1, 2, 3])
    };
    for (offset_and_more, is_fragment) in [(0, false), (6, false), (1, true), (8, true), (0xfff9, true)] {
        let bytes = fragment(offset_and_more);
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!(packet.is_fragment(), is_fragment, "{offset_and_more:#x}");
        assert_eq!((packet.protocol(), packet.payload()), (6, &[1, 2, 3][..]));
    }
    assert_eq!(Quote::parse_ipv6(&fragment(8)), Err(Malformed::QuoteFragment));
    assert_eq!(Quote::parse_ipv6(&fragment(1)), Err(Malformed::QuoteShort));
}

#[test]
fn quotes_that_say_nothing() {
    let mut bytes = [0; 28];
    bytes[0] = 0x45;
    bytes[9] = 6;
    let transport = Quoted::Tcp { source_port: 0, destination_port: 0, sequence: 0 };
    let nobody = Ipv4Addr::UNSPECIFIED;
    assert_eq!(Quote::parse_ipv4(&bytes), Ok(quote(nobody, nobody, transport)));
    assert_eq!(transport.protocol(), 6);
    for (place, byte, expected) in [
        (0, 0x65, Malformed::QuoteHeader),
        (0, 0x44, Malformed::QuoteHeader),
        (0, 0x4f, Malformed::QuoteShort),
        (7, 1, Malformed::QuoteFragment),
    ] {
        let mut bytes = bytes;
        bytes[place] = byte;
        assert_eq!(Quote::parse_ipv4(&bytes), Err(expected));
    }
    bytes[9] = 1;
    assert_eq!(Quote::parse_ipv4(&bytes[..20]), Ok(quote(nobody, nobody, Quoted::Other(1))));
    assert_eq!(Quote::parse_ipv6(&[0; 40]), Err(Malformed::QuoteHeader));
    assert_eq!(Quote::parse_ipv6(&packet_of(60, &[6, 9])), Err(Malformed::QuoteHeader));
}

#[test]
fn an_error_quotes_no_more_than_it_may() {
    let mut buffer = vec![0; 2_000];
    assert_eq!(icmpv4::emit_port_unreachable(&[0x45; 1_500], &mut buffer) + 20, 576);
    let packet = packet_of(17, &[9; 1_400]);
    let length = icmpv6::emit_port_unreachable(&packet, &mut buffer, HERE, THERE);
    assert_eq!(length + 40, 1_280);
    assert!(icmpv6::Message::parse(&buffer[..length], HERE, THERE).is_ok());
}

#[test]
fn neighbor_discovery_that_rfc_4861_discards() {
    let mut bytes = [0; icmpv6::MAX_NEIGHBOR_LEN];
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let nobody = Ipv6Addr::UNSPECIFIED;
    let mut solicit = |target, source_link_address, source, destination| {
        let length = icmpv6::NeighborSolicitation { target, source_link_address }.emit(
            &mut bytes,
            source,
            destination,
        );
        icmpv6::Message::parse(&bytes[..length], source, destination).err()
    };
    let link = Some(MacAddr([2; 6]));
    let solicited_node = ipv6::solicited_node(THERE);
    assert_eq!(solicited_node.to_string(), "ff02::1:ff00:2");
    assert_eq!(MacAddr::of_ipv6_multicast(solicited_node), MacAddr([0x33, 0x33, 0xff, 0, 0, 2]));
    assert_eq!(solicit(group, link, HERE, THERE), Some(Malformed::Icmpv6Neighbor));
    assert_eq!(solicit(THERE, link, nobody, solicited_node), Some(Malformed::Icmpv6Neighbor));
    assert_eq!(solicit(THERE, None, nobody, THERE), Some(Malformed::Icmpv6Neighbor));
    assert_eq!(solicit(THERE, None, nobody, solicited_node), None);
    let advertisement = icmpv6::NeighborAdvertisement {
        target: HERE,
        target_link_address: link,
        router: false,
        solicited: true,
        overrides: true,
    };
    let length = advertisement.emit(&mut bytes, HERE, group);
    assert_eq!(icmpv6::Message::parse(&bytes[..length], HERE, group), Err(Malformed::Icmpv6Neighbor));
}

#[test]
fn options_of_neighbor_discovery() {
    let parse = |options: &[u8]| {
        let mut bytes = vec![0; 24];
        bytes[0] = 135;
        bytes[8..24].copy_from_slice(&THERE.octets());
        bytes.extend(options);
        let sum = overfly_wire::checksum::pseudo_ipv6(HERE, THERE, PROTOCOL_ICMPV6, bytes.len() as u32);
        let checksum = sum.bytes(&bytes).finish();
        bytes[2..4].copy_from_slice(&checksum.to_be_bytes());
        match icmpv6::Message::parse(&bytes, HERE, THERE) {
            Ok(icmpv6::Message::NeighborSolicitation(message)) => Ok(message.source_link_address),
            Ok(message) => panic!("{message:?}"),
            Err(reason) => Err(reason),
        }
    };
    assert_eq!(parse(&[]), Ok(None));
    assert_eq!(
        parse(&[14, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 6]),
        Ok(Some(MacAddr([1, 2, 3, 4, 5, 6])))
    );
    for options in [&[1][..], &[1, 0], &[9, 0, 0, 0, 0, 0, 0, 0], &[1, 1, 2, 3], &[1, 2, 0, 0, 0, 0, 0, 0]] {
        assert_eq!(parse(options), Err(Malformed::Icmpv6Option), "{options:?}");
    }
    assert_eq!(parse(&[[1, 2].as_slice(), &[0; 14]].concat()), Err(Malformed::Icmpv6Option));
}

#[test]
fn congestion_marks() {
    for (bits, ecn) in [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce].into_iter().enumerate() {
        let bits = bits as u8;
        assert_eq!(Ecn::of_traffic_class(0xb8 | bits), ecn);
        assert_eq!(ecn.in_traffic_class(0xbb), 0xb8 | bits);
        assert_eq!(IpEcn::try_new(bits).unwrap().value(), ecn as u8);
    }
}

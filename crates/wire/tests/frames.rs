//! Ethernet, ARP, IPv4, ICMP echo and UDP against smoltcp and etherparse, in both directions.

use std::collections::HashSet;
use std::net::Ipv4Addr;

use crate::strategies::{address, bytes, config, mac, tcp_header};
use etherparse::{
    ArpOperation, ArpPacket, Ethernet2Header, IcmpEchoHeader, Icmpv4Header, Icmpv4Type, IpDscp, IpEcn,
    IpFragOffset, IpNumber, Ipv4Header, Ipv4Options, PacketBuilder, SlicedPacket, TransportSlice, UdpHeader,
};
use overfly_wire::checksum::pseudo_ipv4;
use overfly_wire::icmpv4::{Echo, Kind};
use overfly_wire::ipv4::{Header, PROTOCOL_UDP, Packet};
use overfly_wire::tcp::{self, Segment};
use overfly_wire::{MacAddr, Malformed, arp, ethernet, ipv4, udp};
use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation as SmolOperation, ArpPacket as SmolArp, ArpRepr, EthernetAddress, EthernetFrame,
    EthernetProtocol, Icmpv4Packet, Icmpv4Repr, IpAddress, IpProtocol, Ipv4Packet, Ipv4Repr, UdpPacket,
    UdpRepr,
};

fn ethernet_header() -> impl Strategy<Value = ethernet::Header> {
    (mac(), mac(), any::<u16>()).prop_map(|(destination, source, ethertype)| ethernet::Header {
        destination,
        source,
        ethertype,
    })
}

fn arp_packet() -> impl Strategy<Value = arp::Packet> {
    (any::<bool>(), mac(), address(), mac(), address()).prop_map(
        |(request, sender_mac, sender_ip, target_mac, target_ip)| arp::Packet {
            operation: if request { arp::Operation::Request } else { arp::Operation::Reply },
            sender_mac,
            sender_ip,
            target_mac,
            target_ip,
        },
    )
}

fn ipv4_header(payload_len: u16) -> impl Strategy<Value = Header> {
    (address(), address(), any::<(u8, u8, u8, u16, bool)>()).prop_map(move |(source, destination, fields)| {
        let (protocol, ttl, tos, identification, dont_fragment) = fields;
        Header { source, destination, protocol, ttl, tos, identification, dont_fragment, payload_len }
    })
}

/// A header and the payload that it announces.
fn ipv4_packet() -> impl Strategy<Value = (Header, Vec<u8>)> {
    bytes(1_480).prop_flat_map(|payload| (ipv4_header(payload.len() as u16), Just(payload)))
}

fn emitted_ipv4(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xa5; ipv4::HEADER_LEN];
    header.emit(&mut bytes);
    bytes.extend(payload);
    bytes
}

fn header_of(packet: &Packet<'_>) -> Header {
    Header {
        source: packet.source(),
        destination: packet.destination(),
        protocol: packet.protocol(),
        ttl: packet.ttl(),
        tos: packet.tos(),
        identification: packet.identification(),
        dont_fragment: packet.dont_fragment(),
        payload_len: packet.payload().len() as u16,
    }
}

fn echo_kind(request: bool) -> Kind {
    if request { Kind::Request } else { Kind::Reply }
}

proptest! {
    #![proptest_config(config(1_000))]

    #[test]
    fn ethernet_headers(header in ethernet_header(), payload in bytes(100)) {
        let mut bytes = vec![0xa5; ethernet::HEADER_LEN];
        header.emit(&mut bytes);
        bytes.extend(&payload);
        prop_assert_eq!(ethernet::Header::parse(&bytes), Ok((header, &payload[..])));

        let frame = EthernetFrame::new_checked(&bytes[..]).unwrap();
        prop_assert_eq!(frame.dst_addr(), EthernetAddress(header.destination.0));
        prop_assert_eq!(frame.src_addr(), EthernetAddress(header.source.0));
        prop_assert_eq!(frame.ethertype(), EthernetProtocol::from(header.ethertype));

        let (parsed, rest) = Ethernet2Header::from_slice(&bytes).unwrap();
        prop_assert_eq!((parsed.destination, parsed.source), (header.destination.0, header.source.0));
        prop_assert_eq!((parsed.ether_type.0, rest), (header.ethertype, &payload[..]));
        prop_assert_eq!(&parsed.to_bytes()[..], &bytes[..14]);

        prop_assert_eq!(ethernet::Header::parse(&bytes[..payload.len().min(13)]), Err(Malformed::EthernetShort));
    }

    #[test]
    fn arp_packets(packet in arp_packet(), padding in bytes(18)) {
        let mut bytes = vec![0xa5; arp::LEN];
        prop_assert_eq!(packet.emit(&mut bytes), arp::LEN);
        bytes.extend(&padding);
        prop_assert_eq!(arp::Packet::parse(&bytes), Ok(packet));
        let request = packet.operation == arp::Operation::Request;

        let repr = ArpRepr::EthernetIpv4 {
            operation: if request { SmolOperation::Request } else { SmolOperation::Reply },
            source_hardware_addr: EthernetAddress(packet.sender_mac.0),
            source_protocol_addr: packet.sender_ip,
            target_hardware_addr: EthernetAddress(packet.target_mac.0),
            target_protocol_addr: packet.target_ip,
        };
        prop_assert_eq!(ArpRepr::parse(&SmolArp::new_checked(&bytes[..]).unwrap()), Ok(repr));
        let mut theirs = vec![0; repr.buffer_len()];
        repr.emit(&mut SmolArp::new_unchecked(&mut theirs[..]));
        prop_assert_eq!(arp::Packet::parse(&theirs), Ok(packet));

        let parsed = ArpPacket::from_slice(&bytes).unwrap().try_eth_ipv4().unwrap();
        prop_assert_eq!(parsed.operation, if request { ArpOperation::REQUEST } else { ArpOperation::REPLY });
        prop_assert_eq!(parsed.sender_mac, packet.sender_mac.0);
        prop_assert_eq!(parsed.sender_ipv4, packet.sender_ip.octets());
        prop_assert_eq!(parsed.target_mac, packet.target_mac.0);
        prop_assert_eq!(parsed.target_ipv4, packet.target_ip.octets());
        prop_assert_eq!(arp::Packet::parse(&parsed.to_bytes()), Ok(packet));
    }

    #[test]
    fn arp_of_another_kind(packet in arp_packet(), place in 0..8usize, byte: u8) {
        let mut bytes = [0; arp::LEN];
        packet.emit(&mut bytes);
        let before = bytes;
        bytes[place] = byte;
        match arp::Packet::parse(&bytes) {
            Ok(parsed) => prop_assert!(bytes == before || (place == 7 && parsed.operation != packet.operation)),
            Err(reason) => prop_assert_eq!(reason, Malformed::ArpKind),
        }
        prop_assert_eq!(arp::Packet::parse(&bytes[..place]), Err(Malformed::ArpShort));
    }

    #[test]
    fn ipv4_that_is_emitted_is_parsed((header, payload) in ipv4_packet(), padding in bytes(30)) {
        let whole = emitted_ipv4(&header, &payload);
        let padded = [&whole[..], &padding].concat();
        let packet = Packet::parse(&padded).unwrap();
        prop_assert_eq!(header_of(&packet), header);
        prop_assert_eq!(packet.payload(), &payload[..]);
        prop_assert!(!packet.is_fragment());

        let theirs = Ipv4Packet::new_checked(&whole[..]).unwrap();
        prop_assert!(theirs.verify_checksum());
        prop_assert_eq!((theirs.src_addr(), theirs.dst_addr()), (header.source, header.destination));
        prop_assert_eq!(theirs.next_header(), IpProtocol::from(header.protocol));
        prop_assert_eq!((theirs.hop_limit(), theirs.ident()), (header.ttl, header.identification));
        prop_assert_eq!((theirs.dont_frag(), theirs.more_frags()), (header.dont_fragment, false));
        prop_assert_eq!(theirs.dscp() << 2 | theirs.ecn(), header.tos);
        prop_assert_eq!((theirs.frag_offset(), theirs.payload()), (0, &payload[..]));

        let (theirs, rest) = Ipv4Header::from_slice(&whole).unwrap();
        prop_assert_eq!(theirs.calc_header_checksum(), theirs.header_checksum);
        prop_assert_eq!(usize::from(theirs.total_len), whole.len());
        prop_assert_eq!(theirs.dscp.value() << 2 | theirs.ecn.value(), header.tos);
        prop_assert_eq!((theirs.identification, theirs.dont_fragment), (header.identification, header.dont_fragment));
        prop_assert_eq!((theirs.time_to_live, theirs.protocol.0), (header.ttl, header.protocol));
        prop_assert_eq!(theirs.source, header.source.octets());
        prop_assert_eq!(theirs.destination, header.destination.octets());
        prop_assert!(!theirs.is_fragmenting_payload());
        prop_assert_eq!(rest, &payload[..]);
    }

    #[test]
    fn ipv4_that_others_build_is_parsed(
        (header, payload) in ipv4_packet(), options in 0..=10usize, more: bool, byte: u8,
        offset in prop_oneof![Just(0), 0..=0x1fffu16],
    ) {
        let mut theirs = Ipv4Header {
            dscp: IpDscp::try_new(header.tos >> 2).unwrap(),
            ecn: IpEcn::try_new(header.tos & 3).unwrap(),
            total_len: 0,
            identification: header.identification,
            dont_fragment: header.dont_fragment,
            more_fragments: more,
            fragment_offset: IpFragOffset::try_new(offset).unwrap(),
            time_to_live: header.ttl,
            protocol: IpNumber(header.protocol),
            header_checksum: 0,
            source: header.source.octets(),
            destination: header.destination.octets(),
            options: Ipv4Options::try_from(&vec![byte; options * 4][..]).unwrap(),
        };
        theirs.set_payload_len(payload.len()).unwrap();
        theirs.header_checksum = theirs.calc_header_checksum();
        let bytes = [&theirs.to_bytes()[..], &payload].concat();
        let packet = Packet::parse(&bytes).unwrap();
        prop_assert_eq!(header_of(&packet), header);
        prop_assert_eq!(packet.payload(), &payload[..]);
        prop_assert_eq!(packet.is_fragment(), theirs.is_fragmenting_payload());

        let repr = Ipv4Repr {
            src_addr: header.source,
            dst_addr: header.destination,
            next_header: IpProtocol::from(header.protocol),
            payload_len: payload.len(),
            hop_limit: header.ttl,
        };
        let mut bytes = vec![0; repr.buffer_len() + payload.len()];
        repr.emit(&mut Ipv4Packet::new_unchecked(&mut bytes[..]), &ChecksumCapabilities::default());
        bytes[20..].copy_from_slice(&payload);
        let packet = Packet::parse(&bytes).unwrap();
        prop_assert_eq!(header_of(&packet), Header { tos: 0, identification: 0, dont_fragment: true, ..header });
        prop_assert_eq!(packet.payload(), &payload[..]);
    }

    #[test]
    fn a_changed_bit_of_an_ipv4_header_is_noticed((header, payload) in ipv4_packet(), bit in 0..160usize) {
        let mut bytes = emitted_ipv4(&header, &payload);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Packet::parse(&bytes).is_err());
    }

    #[test]
    fn echoes(request: bool, identifier: u16, sequence: u16, data in bytes(1_472)) {
        let echo = Echo { kind: echo_kind(request), identifier, sequence, data: &data };
        let mut bytes = vec![0xa5; 8 + data.len() + 3];
        let length = echo.emit(&mut bytes);
        bytes.truncate(length);
        prop_assert_eq!(length, 8 + data.len());
        prop_assert_eq!(Echo::parse(&bytes), Ok(echo));

        let repr = if request {
            Icmpv4Repr::EchoRequest { ident: identifier, seq_no: sequence, data: &data }
        } else {
            Icmpv4Repr::EchoReply { ident: identifier, seq_no: sequence, data: &data }
        };
        let packet = Icmpv4Packet::new_checked(&bytes[..]).unwrap();
        prop_assert_eq!(Icmpv4Repr::parse(&packet, &ChecksumCapabilities::default()), Ok(repr));
        let mut theirs = vec![0; repr.buffer_len()];
        repr.emit(&mut Icmpv4Packet::new_unchecked(&mut theirs[..]), &ChecksumCapabilities::default());
        prop_assert_eq!(Echo::parse(&theirs), Ok(echo));

        let header = IcmpEchoHeader { id: identifier, seq: sequence };
        let kind = if request { Icmpv4Type::EchoRequest(header) } else { Icmpv4Type::EchoReply(header) };
        let (parsed, rest) = Icmpv4Header::from_slice(&bytes).unwrap();
        let built = Icmpv4Header::with_checksum(kind, &data);
        prop_assert_eq!((&parsed, rest), (&built, &data[..]));
        let theirs = [&built.to_bytes()[..], &data].concat();
        prop_assert_eq!(Echo::parse(&theirs), Ok(echo));

        bytes[0] ^= 0x20;
        prop_assert_eq!(Echo::parse(&bytes), Err(Malformed::IcmpChecksum));
        prop_assert_eq!(Echo::parse(&bytes[..data.len().min(7)]), Err(Malformed::IcmpShort));
    }

    #[test]
    fn datagrams(ports: (u16, u16), payload in bytes(1_472), source in address(), destination in address()) {
        let header = udp::Header { source_port: ports.0, destination_port: ports.1 };
        let mut bytes = vec![0xa5; udp::HEADER_LEN];
        bytes.extend(&payload);
        header.emit(&mut bytes, source, destination);
        prop_assert_eq!(udp::Header::parse(&bytes, source, destination, false), Ok((header, &payload[..])));

        let addresses = (IpAddress::Ipv4(source), IpAddress::Ipv4(destination));
        let packet = UdpPacket::new_checked(&bytes[..]).unwrap();
        prop_assert!(packet.verify_checksum(&addresses.0, &addresses.1));
        prop_assert_eq!((packet.src_port(), packet.dst_port(), packet.payload()), (ports.0, ports.1, &payload[..]));
        let repr = UdpRepr { src_port: ports.0, dst_port: ports.1 };
        let mut theirs = vec![0; 8 + payload.len()];
        repr.emit(
            &mut UdpPacket::new_unchecked(&mut theirs[..]),
            &addresses.0,
            &addresses.1,
            payload.len(),
            |buffer| buffer.copy_from_slice(&payload),
            &ChecksumCapabilities::default(),
        );
        prop_assert_eq!(udp::Header::parse(&theirs, source, destination, false), Ok((header, &payload[..])));

        let (parsed, rest) = UdpHeader::from_slice(&bytes).unwrap();
        let sum = parsed.calc_checksum_ipv4_raw(source.octets(), destination.octets(), &payload).unwrap();
        prop_assert_eq!(parsed.checksum, sum);
        prop_assert_eq!((parsed.source_port, parsed.destination_port, rest), (ports.0, ports.1, &payload[..]));
        prop_assert_eq!(usize::from(parsed.length), bytes.len());
        let theirs = [&parsed.to_bytes()[..], &payload].concat();
        prop_assert_eq!(udp::Header::parse(&theirs, source, destination, false), Ok((header, &payload[..])));
    }

    #[test]
    fn datagram_checksums(
        ports: (u16, u16), payload in bytes(1_472), source in address(), destination in address(), wrong: u16,
    ) {
        let header = udp::Header { source_port: ports.0, destination_port: ports.1 };
        let mut bytes = vec![0; udp::HEADER_LEN];
        bytes.extend(&payload);
        header.emit(&mut bytes, source, destination);
        let right = [bytes[6], bytes[7]];
        prop_assert_ne!(right, [0, 0]);
        let partial = pseudo_ipv4(source, destination, PROTOCOL_UDP, bytes.len() as u16).fold().to_be_bytes();
        for field in [right, [0, 0], partial, wrong.to_be_bytes()] {
            bytes[6..8].copy_from_slice(&field);
            for partial_checksums in [false, true] {
                let holds = field == right || field == [0, 0] || (partial_checksums && field == partial);
                let expected = if holds { Ok((header, &payload[..])) } else { Err(Malformed::UdpChecksum) };
                prop_assert_eq!(udp::Header::parse(&bytes, source, destination, partial_checksums), expected);
            }
        }
    }

    #[test]
    fn whole_frames_that_etherparse_builds(
        macs in (mac(), mac()), source in address(), destination in address(), ttl: u8, header in tcp_header(),
        payload in bytes(1_400),
    ) {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2(macs.0.0, macs.1.0)
            .ipv4(source.octets(), destination.octets(), ttl)
            .tcp(header.source_port, header.destination_port, header.sequence, header.window)
            .ack(header.acknowledgment)
            .write(&mut frame, &payload)
            .unwrap();
        let (ethernet, rest) = ethernet::Header::parse(&frame).unwrap();
        prop_assert_eq!(
            ethernet,
            ethernet::Header { destination: macs.1, source: macs.0, ethertype: ethernet::ETHERTYPE_IPV4 }
        );
        let packet = Packet::parse(rest).unwrap();
        prop_assert_eq!((packet.protocol(), packet.ttl()), (ipv4::PROTOCOL_TCP, ttl));
        let segment = Segment::parse(packet.payload()).unwrap();
        prop_assert!(segment.checksum_holds(packet.source(), packet.destination()));
        prop_assert_eq!(segment.flags(), tcp::Flags::ACK);
        prop_assert_eq!(segment.acknowledgment(), header.acknowledgment);
        prop_assert_eq!(segment.payload(), &payload[..]);
    }

    #[test]
    fn etherparse_slices_whole_frames(
        ethernet in ethernet_header(), source in address(), destination in address(), header in tcp_header(),
        payload in bytes(1_400),
    ) {
        let ethernet = ethernet::Header { ethertype: ethernet::ETHERTYPE_IPV4, ..ethernet };
        let mut frame = vec![0; 34 + header.header_len() + payload.len()];
        ethernet.emit(&mut frame);
        let segment_len = frame.len() - 34;
        let ip = Header {
            source,
            destination,
            protocol: ipv4::PROTOCOL_TCP,
            ttl: 64,
            tos: 0,
            identification: 0,
            dont_fragment: true,
            payload_len: segment_len as u16,
        };
        ip.emit(&mut frame[14..]);
        let header_len = header.emit(&mut frame[34..]);
        frame[34 + header_len..].copy_from_slice(&payload);
        tcp::write_checksum(&mut frame[34..], source, destination);
        let sliced = SlicedPacket::from_ethernet(&frame).unwrap();
        let Some(TransportSlice::Tcp(segment)) = sliced.transport else {
            return Err(TestCaseError::fail("etherparse sees no TCP"));
        };
        prop_assert_eq!(segment.source_port(), header.source_port);
        prop_assert_eq!(segment.payload(), &payload[..]);
    }
}

#[test]
fn ipv4_lengths_and_versions() {
    let header = Header {
        source: Ipv4Addr::new(10, 77, 0, 1),
        destination: Ipv4Addr::new(10, 77, 0, 2),
        protocol: ipv4::PROTOCOL_TCP,
        ttl: 64,
        tos: 0,
        identification: 7,
        dont_fragment: true,
        payload_len: 4,
    };
    let good = emitted_ipv4(&header, b"four");
    let refused = |place: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[place] = byte;
        Packet::parse(&bytes).err()
    };
    for length in 0..20 {
        assert_eq!(Packet::parse(&good[..length]).err(), Some(Malformed::Ipv4Short));
    }
    for length in 20..24 {
        assert_eq!(Packet::parse(&good[..length]).err(), Some(Malformed::Ipv4TotalLength));
    }
    for version in (0..16).filter(|version| *version != 4) {
        assert_eq!(refused(0, version << 4 | 5), Some(Malformed::Ipv4Version));
    }
    for words in [0, 1, 4, 7, 15] {
        assert_eq!(refused(0, 0x40 | words), Some(Malformed::Ipv4HeaderLength));
    }
    assert_eq!(refused(3, 19), Some(Malformed::Ipv4TotalLength));
    assert_eq!(refused(3, 25), Some(Malformed::Ipv4TotalLength));
    assert_eq!(refused(8, 63), Some(Malformed::Ipv4Checksum));
}

#[test]
fn a_sound_icmp_message_that_is_no_echo() {
    // Destination unreachable, port unreachable.
    let mut bytes = [3, 3, 0, 0, 0, 0, 0, 0];
    bytes[2..4].copy_from_slice(&0xfcfcu16.to_be_bytes());
    assert_eq!(Echo::parse(&bytes), Err(Malformed::IcmpKind));
    let echo_with_a_code = [8, 1, 0xf7, 0xfe, 0, 0, 0, 0];
    assert_eq!(Echo::parse(&echo_with_a_code), Err(Malformed::IcmpKind));
}

#[test]
fn udp_lengths() {
    let address = Ipv4Addr::LOCALHOST;
    let parse =
        |bytes: &[u8]| udp::Header::parse(bytes, address, address, false).map(|(_, payload)| payload.len());
    assert_eq!(parse(&[0; 7]), Err(Malformed::UdpShort));
    for (length, expected) in [
        (0, Err(Malformed::UdpLength)),
        (7, Err(Malformed::UdpLength)),
        (8, Ok(0)),
        (10, Ok(2)),
        (11, Err(Malformed::UdpLength)),
    ] {
        assert_eq!(parse(&[0, 1, 0, 2, 0, length, 0, 0, 9, 9]), expected, "length {length}");
    }
}

#[test]
fn a_udp_checksum_that_comes_to_zero_is_sent_as_all_ones() {
    let address = Ipv4Addr::LOCALHOST;
    let header = udp::Header { source_port: 1, destination_port: 2 };
    let mut bytes = [0; 10];
    header.emit(&mut bytes, address, address);
    bytes.copy_within(6..8, 8);
    header.emit(&mut bytes, address, address);
    assert_eq!(bytes[6..8], [0xff, 0xff]);
    assert_eq!(udp::Header::parse(&bytes, address, address, false), Ok((header, &bytes[8..])));
}

#[test]
fn mac_addresses_read_as_everybody_writes_them() {
    let mac = MacAddr([0, 0x1b, 0x21, 0xff, 0x0a, 9]);
    assert_eq!(format!("{mac} {mac:?}"), "00:1b:21:ff:0a:09 00:1b:21:ff:0a:09");
    assert_eq!(MacAddr::BROADCAST.to_string(), "ff:ff:ff:ff:ff:ff");
}

#[test]
fn every_reason_has_its_own_name_and_index() {
    let names: HashSet<_> = Malformed::ALL.iter().map(|reason| reason.name()).collect();
    let texts: HashSet<_> = Malformed::ALL.iter().map(ToString::to_string).collect();
    assert_eq!((names.len(), texts.len()), (Malformed::ALL.len(), Malformed::ALL.len()));
    for (index, reason) in Malformed::ALL.iter().enumerate() {
        assert_eq!(*reason as usize, index);
    }
}

//! Frames of UDP datagrams, and of what ICMP says about them: made for us, and read.

use std::net::{IpAddr, SocketAddr};

use overfly_wire::checksum::Sum;
use overfly_wire::{MacAddr, ethernet, ipv4, ipv6, udp};

pub(crate) const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub(crate) const PEERS: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

/// An IP packet in a frame to us.
pub(crate) fn frame_of(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    hop_limit: u8,
    payload: &[u8],
) -> Vec<u8> {
    let mut frame = vec![0; 54 + payload.len()];
    let (ethertype, length) = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            ipv4::Header {
                source,
                destination,
                protocol,
                ttl: hop_limit,
                tos: 0x2e,
                identification: 0,
                dont_fragment: true,
                payload_len: payload.len() as u16,
            }
            .emit(&mut frame[14..]);
            (ethernet::ETHERTYPE_IPV4, 34)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            ipv6::Header {
                source,
                destination,
                protocol,
                hop_limit,
                traffic_class: 0x2e,
                flow_label: 0,
                payload_len: payload.len() as u16,
            }
            .emit(&mut frame[14..]);
            (ethernet::ETHERTYPE_IPV6, 54)
        }
        _ => panic!("two families"),
    };
    ethernet::Header { destination: OURS, source: PEERS, ethertype }.emit(&mut frame);
    frame.truncate(length);
    frame.extend_from_slice(payload);
    frame
}

pub(crate) fn datagram(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    bytes.extend_from_slice(payload);
    let header = udp::Header { source_port: source.port(), destination_port: destination.port() };
    header.emit(&mut bytes, source.ip(), destination.ip());
    frame_of(source.ip(), destination.ip(), ipv4::PROTOCOL_UDP, 63, &bytes)
}

/// Reads a UDP frame: to which hardware address, from, to, payload. Its checksum holds.
pub(crate) fn read(frame: &[u8]) -> (MacAddr, SocketAddr, SocketAddr, Vec<u8>) {
    let (link, packet) = ethernet::Header::parse(frame).expect("Ethernet");
    assert_eq!(link.source, OURS);
    let packet = overfly_wire::ip::Packet::parse(packet).expect("IP");
    assert_eq!(packet.protocol(), ipv4::PROTOCOL_UDP);
    let (source, destination) = (packet.source(), packet.destination());
    let (header, payload) =
        udp::Header::parse(packet.payload(), source, destination, false).expect("a datagram");
    assert_ne!(packet.payload()[6..8], [0, 0], "a checksum is always there");
    let source = SocketAddr::new(source, header.source_port);
    (link.destination, source, SocketAddr::new(destination, header.destination_port), payload.to_vec())
}

/// An ICMP error from `router` about the packet in `frame`, as a router would quote it.
pub(crate) fn icmp_error(router: IpAddr, kind: u8, code: u8, word: u32, frame: &[u8]) -> Vec<u8> {
    let (_, packet) = ethernet::Header::parse(frame).expect("Ethernet");
    let source = overfly_wire::ip::Packet::parse(packet).expect("IP").source();
    let mut message = vec![kind, code, 0, 0];
    message.extend_from_slice(&word.to_be_bytes());
    message.extend_from_slice(&packet[..packet.len().min(500)]);
    let (protocol, sum) = match (router, source) {
        (IpAddr::V6(from), IpAddr::V6(to)) => (
            ipv6::PROTOCOL_ICMPV6,
            overfly_wire::checksum::pseudo_ipv6(from, to, ipv6::PROTOCOL_ICMPV6, message.len() as u32)
                .bytes(&message)
                .finish(),
        ),
        _ => (ipv4::PROTOCOL_ICMP, Sum::new().bytes(&message).finish()),
    };
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    frame_of(router, source, protocol, 60, &message)
}

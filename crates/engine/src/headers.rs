//! What stands before a payload in a frame: the headers of Ethernet and IP, and the checksum of TCP.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use overfly_wire::checksum::{self, Sum};
use overfly_wire::{MacAddr, ethernet, ipv4, ipv6, tcp};

use crate::shared::Shared;
use crate::tuple::{Ends, Tuple};

/// From where to where a packet goes.
pub(crate) struct Path {
    pub(crate) next_hop: MacAddr,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
}

/// The sink has no frame.
pub(crate) struct Full;

/// Bytes of a TCP segment.
#[derive(Clone, Copy)]
pub(crate) struct Lengths {
    pub(crate) header: usize,
    /// With its payload.
    pub(crate) segment: usize,
}

/// Bytes of the headers before the transport header.
pub(crate) const fn headers_len(is_v4: bool) -> usize {
    ethernet::HEADER_LEN + if is_v4 { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN }
}

impl Shared {
    /// Completes a frame whose TCP segment is written, with the sum of its payload unless the link is to complete checksums; returns
    /// the frame's length.
    #[inline]
    pub(crate) fn finish_tcp(
        &self,
        frame: &mut [u8],
        next_hop: MacAddr,
        tuple: &Tuple,
        lengths: Lengths,
        payload: Option<Sum>,
        (traffic_class, hop_limit): (u8, u8),
    ) -> usize {
        let length = lengths.segment;
        match tuple.ends() {
            Ends::V4(local, remote) => {
                self.write_checksum(
                    &mut frame[headers_len(true)..][..length],
                    lengths,
                    payload,
                    local,
                    remote,
                );
                self.write_ipv4(
                    frame,
                    next_hop,
                    (local, remote),
                    ipv4::PROTOCOL_TCP,
                    length,
                    traffic_class,
                    hop_limit,
                )
            }
            Ends::V6(local, remote) => {
                self.write_checksum(
                    &mut frame[headers_len(false)..][..length],
                    lengths,
                    payload,
                    local,
                    remote,
                );
                self.write_ipv6(
                    frame,
                    next_hop,
                    (local, remote),
                    ipv4::PROTOCOL_TCP,
                    length,
                    traffic_class,
                    hop_limit,
                )
            }
        }
    }

    #[inline]
    fn write_checksum<A: checksum::Address>(
        &self,
        segment: &mut [u8],
        lengths: Lengths,
        payload: Option<Sum>,
        local: A,
        remote: A,
    ) {
        match payload {
            None => tcp::write_partial_checksum(segment, local, remote),
            Some(payload) => {
                let payload_len = lengths.segment - lengths.header;
                tcp::write_checksum_of(&mut segment[..lengths.header], payload, payload_len, local, remote);
            }
        }
    }

    /// Writes the headers before a payload of `length` bytes; returns the frame's length.
    #[inline]
    pub(crate) fn write_headers(
        &self,
        frame: &mut [u8],
        path: &Path,
        protocol: u8,
        length: usize,
        traffic_class: u8,
        hop_limit: u8,
    ) -> usize {
        match (path.source, path.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => self.write_ipv4(
                frame,
                path.next_hop,
                (source, destination),
                protocol,
                length,
                traffic_class,
                hop_limit,
            ),
            (IpAddr::V6(source), IpAddr::V6(destination)) => self.write_ipv6(
                frame,
                path.next_hop,
                (source, destination),
                protocol,
                length,
                traffic_class,
                hop_limit,
            ),
            _ => unreachable!("both ends of a path are of one family"),
        }
    }

    #[inline]
    #[expect(clippy::too_many_arguments, reason = "a packet's fields")]
    fn write_ipv4(
        &self,
        frame: &mut [u8],
        next_hop: MacAddr,
        (source, destination): (Ipv4Addr, Ipv4Addr),
        protocol: u8,
        length: usize,
        traffic_class: u8,
        hop_limit: u8,
    ) -> usize {
        let ethertype = ethernet::ETHERTYPE_IPV4;
        ethernet::Header { destination: next_hop, source: self.config.mac, ethertype }.emit(frame);
        ipv4::Header {
            source,
            destination,
            protocol,
            ttl: hop_limit,
            tos: traffic_class,
            // RFC 6864 section 4.1: meaningless in a datagram that may not be fragmented.
            identification: 0,
            dont_fragment: true,
            payload_len: length as u16,
        }
        .emit(&mut frame[ethernet::HEADER_LEN..]);
        headers_len(true) + length
    }

    #[inline]
    #[expect(clippy::too_many_arguments, reason = "a packet's fields")]
    fn write_ipv6(
        &self,
        frame: &mut [u8],
        next_hop: MacAddr,
        (source, destination): (Ipv6Addr, Ipv6Addr),
        protocol: u8,
        length: usize,
        traffic_class: u8,
        hop_limit: u8,
    ) -> usize {
        let ethertype = ethernet::ETHERTYPE_IPV6;
        ethernet::Header { destination: next_hop, source: self.config.mac, ethertype }.emit(frame);
        ipv6::Header {
            source,
            destination,
            protocol,
            hop_limit,
            traffic_class,
            flow_label: 0,
            payload_len: length as u16,
        }
        .emit(&mut frame[ethernet::HEADER_LEN..]);
        headers_len(false) + length
    }
}

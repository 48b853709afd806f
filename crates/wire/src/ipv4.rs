//! IPv4 (RFC 791). Options are stepped over; fragments are named by [`Packet::is_fragment`] and not put together.

use core::fmt;
use core::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Malformed;
use crate::checksum::Sum;
use crate::ip::Ecn;

/// Bytes of a header without options: what [`Header::emit`] writes.
pub const HEADER_LEN: usize = 20;
/// Most bytes that can follow such a header.
pub const MAX_PAYLOAD_LEN: u16 = u16::MAX - HEADER_LEN as u16;
/// Protocol number of ICMP.
pub const PROTOCOL_ICMP: u8 = 1;
/// Protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// Protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

const VERSION_AND_LENGTH: u8 = 0x45;
const DONT_FRAGMENT: u16 = 0x4000;
/// More fragments, or a fragment offset other than 0 (RFC 791 section 3.1).
const FRAGMENT: u16 = 0x3fff;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    version_and_length: u8,
    tos: u8,
    total_length: U16,
    identification: U16,
    fragment: U16,
    ttl: u8,
    protocol: u8,
    checksum: U16,
    source: [u8; 4],
    destination: [u8; 4],
}

/// A packet whose version, lengths and header checksum have been checked.
#[derive(Clone, Copy)]
pub struct Packet<'a> {
    layout: &'a Layout,
    payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Checks the bytes after an Ethernet header. What is beyond the total length is padding and is cut off.
    ///
    /// # Errors
    /// [`Malformed::Ipv4Short`], [`Malformed::Ipv4Version`], [`Malformed::Ipv4HeaderLength`],
    /// [`Malformed::Ipv4TotalLength`], [`Malformed::Ipv4Checksum`]; the first that applies.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        let (layout, _) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::Ipv4Short)?;
        let header_len = if layout.version_and_length == VERSION_AND_LENGTH {
            HEADER_LEN
        } else if layout.version_and_length >> 4 == 4 {
            usize::from(layout.version_and_length & 0xf) * 4
        } else {
            return Err(Malformed::Ipv4Version);
        };
        if header_len < HEADER_LEN || header_len > bytes.len() {
            return Err(Malformed::Ipv4HeaderLength);
        }
        let total_length = usize::from(u16::from(layout.total_length));
        if total_length < header_len {
            return Err(Malformed::Ipv4TotalLength);
        }
        let packet = bytes.get(..total_length).ok_or(Malformed::Ipv4TotalLength)?;
        let (options, payload) = packet[HEADER_LEN..].split_at(header_len - HEADER_LEN);
        if Sum::new().bytes(layout.as_bytes()).bytes(options).finish() != 0 {
            return Err(Malformed::Ipv4Checksum);
        }
        Ok(Packet { layout, payload })
    }

    /// Who sent the packet.
    #[inline]
    #[must_use]
    pub fn source(&self) -> Ipv4Addr {
        self.layout.source.into()
    }

    /// Who shall have it.
    #[inline]
    #[must_use]
    pub fn destination(&self) -> Ipv4Addr {
        self.layout.destination.into()
    }

    /// What the payload is: [`PROTOCOL_TCP`], …
    #[inline]
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.layout.protocol
    }

    /// Hops that it may still go.
    #[inline]
    #[must_use]
    pub fn ttl(&self) -> u8 {
        self.layout.ttl
    }

    /// Differentiated services, and congestion notification in the lowest two bits (RFC 3168 section 5).
    #[inline]
    #[must_use]
    pub fn tos(&self) -> u8 {
        self.layout.tos
    }

    /// What routers say about congestion (RFC 3168 section 5).
    #[inline]
    #[must_use]
    pub fn ecn(&self) -> Ecn {
        Ecn::of_traffic_class(self.layout.tos)
    }

    /// Bytes of the packet, header and options included, without link padding.
    #[inline]
    #[must_use]
    pub fn total_len(&self) -> usize {
        usize::from(u16::from(self.layout.total_length))
    }

    /// What the fragments of one packet have in common.
    #[inline]
    #[must_use]
    pub fn identification(&self) -> u16 {
        self.layout.identification.into()
    }

    /// Whether the payload is only a part: more fragments follow, or came before.
    #[inline]
    #[must_use]
    pub fn is_fragment(&self) -> bool {
        u16::from(self.layout.fragment) & FRAGMENT != 0
    }

    /// Whether routers must not fragment it (RFC 1191).
    #[inline]
    #[must_use]
    pub fn dont_fragment(&self) -> bool {
        u16::from(self.layout.fragment) & DONT_FRAGMENT != 0
    }

    /// What follows the header and its options, without link padding.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

impl fmt::Debug for Packet<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Packet")
            .field("source", &self.source())
            .field("destination", &self.destination())
            .field("protocol", &self.protocol())
            .field("is_fragment", &self.is_fragment())
            .field("payload_len", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// A header without options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Who sends the packet.
    pub source: Ipv4Addr,
    /// Who shall have it.
    pub destination: Ipv4Addr,
    /// What the payload is: [`PROTOCOL_TCP`], …
    pub protocol: u8,
    /// Hops that it may go.
    pub ttl: u8,
    /// Differentiated services, and congestion notification in the lowest two bits.
    pub tos: u8,
    /// Without meaning where `dont_fragment` is set (RFC 6864 section 4.1).
    pub identification: u16,
    /// Whether routers must not fragment the packet.
    pub dont_fragment: bool,
    /// Bytes after the header, at most [`MAX_PAYLOAD_LEN`].
    pub payload_len: u16,
}

impl Header {
    /// Writes the header, its checksum included, into the first [`HEADER_LEN`] bytes of `buffer`.
    ///
    /// # Panics
    /// If `buffer` is shorter, or `payload_len` is more than [`MAX_PAYLOAD_LEN`].
    #[inline]
    pub fn emit(&self, buffer: &mut [u8]) {
        assert!(
            self.payload_len <= MAX_PAYLOAD_LEN,
            "an IPv4 packet holds at most 65,515 bytes: send less at once"
        );
        let mut layout = Layout {
            version_and_length: VERSION_AND_LENGTH,
            tos: self.tos,
            total_length: (HEADER_LEN as u16 + self.payload_len).into(),
            identification: self.identification.into(),
            fragment: if self.dont_fragment { DONT_FRAGMENT } else { 0 }.into(),
            ttl: self.ttl,
            protocol: self.protocol,
            checksum: 0.into(),
            source: self.source.octets(),
            destination: self.destination.octets(),
        };
        layout.checksum = Sum::new().bytes(layout.as_bytes()).finish().into();
        buffer[..HEADER_LEN].copy_from_slice(layout.as_bytes());
    }
}

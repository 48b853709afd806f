//! What IPv4 and IPv6 have in common: a packet of either, congestion marks, and the packets that ICMP errors quote.

use core::net::{IpAddr, Ipv4Addr};

use crate::Malformed;
use crate::{ipv4, ipv6};

/// Congestion notification, the lowest two bits of a traffic class (RFC 3168 section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ecn {
    /// The transport does not understand marks.
    #[default]
    NotEct = 0b00,
    /// The transport understands marks, codepoint ECT(1).
    Ect1 = 0b01,
    /// The transport understands marks, codepoint ECT(0): what senders set.
    Ect0 = 0b10,
    /// Congestion experienced.
    Ce = 0b11,
}

impl Ecn {
    /// The codepoint of a traffic class (IPv6) or TOS byte (IPv4).
    #[inline]
    #[must_use]
    pub const fn of_traffic_class(traffic_class: u8) -> Ecn {
        match traffic_class & 0b11 {
            0b00 => Ecn::NotEct,
            0b01 => Ecn::Ect1,
            0b10 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }

    /// `traffic_class` with this codepoint in place of its own.
    #[inline]
    #[must_use]
    pub const fn in_traffic_class(self, traffic_class: u8) -> u8 {
        traffic_class & !0b11 | self as u8
    }
}

/// A packet of either version, checked.
#[derive(Clone, Copy, Debug)]
pub enum Packet<'a> {
    /// Of IPv4.
    V4(ipv4::Packet<'a>),
    /// Of IPv6.
    V6(ipv6::Packet<'a>),
}

impl<'a> Packet<'a> {
    /// Checks bytes by the version that they begin with. Where the Ethernet type has said which, ask
    /// [`ipv4::Packet::parse`] or [`ipv6::Packet::parse`]: a frame may lie.
    ///
    /// # Errors
    /// [`Malformed::IpVersion`] (no bytes, too), and those of the version.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        match bytes.first().map(|byte| byte >> 4) {
            Some(4) => ipv4::Packet::parse(bytes).map(Packet::V4),
            Some(6) => ipv6::Packet::parse(bytes).map(Packet::V6),
            _ => Err(Malformed::IpVersion),
        }
    }

    /// Who sent the packet.
    #[inline]
    #[must_use]
    pub fn source(&self) -> IpAddr {
        match self {
            Packet::V4(packet) => packet.source().into(),
            Packet::V6(packet) => packet.source().into(),
        }
    }

    /// Who shall have it.
    #[inline]
    #[must_use]
    pub fn destination(&self) -> IpAddr {
        match self {
            Packet::V4(packet) => packet.destination().into(),
            Packet::V6(packet) => packet.destination().into(),
        }
    }

    /// What the payload is: [`ipv4::PROTOCOL_TCP`], …
    #[inline]
    #[must_use]
    pub fn protocol(&self) -> u8 {
        match self {
            Packet::V4(packet) => packet.protocol(),
            Packet::V6(packet) => packet.protocol(),
        }
    }

    /// Hops that it may still go.
    #[inline]
    #[must_use]
    pub fn hop_limit(&self) -> u8 {
        match self {
            Packet::V4(packet) => packet.ttl(),
            Packet::V6(packet) => packet.hop_limit(),
        }
    }

    /// Differentiated services, and congestion notification in the lowest two bits.
    #[inline]
    #[must_use]
    pub fn traffic_class(&self) -> u8 {
        match self {
            Packet::V4(packet) => packet.tos(),
            Packet::V6(packet) => packet.traffic_class(),
        }
    }

    /// What routers say about congestion (RFC 3168 section 5).
    #[inline]
    #[must_use]
    pub fn ecn(&self) -> Ecn {
        Ecn::of_traffic_class(self.traffic_class())
    }

    /// Whether the payload is only a part.
    #[inline]
    #[must_use]
    pub fn is_fragment(&self) -> bool {
        match self {
            Packet::V4(packet) => packet.is_fragment(),
            Packet::V6(packet) => packet.is_fragment(),
        }
    }

    /// Bytes of the packet, all headers included, without link padding: how many of the parsed bytes an ICMP error may quote.
    #[inline]
    #[must_use]
    pub fn total_len(&self) -> usize {
        match self {
            Packet::V4(packet) => packet.total_len(),
            Packet::V6(packet) => packet.total_len(),
        }
    }

    /// What follows the headers, without link padding.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        match self {
            Packet::V4(packet) => packet.payload(),
            Packet::V6(packet) => packet.payload(),
        }
    }
}

/// The packet that an ICMP error is about, as far as the error quotes it. `source` and the source port are ours if the error
/// is genuine; that the flow exists, and that a TCP sequence number is in flight (RFC 5927 section 4.1), is for the receiver
/// to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quote {
    /// Who sent the packet that could not be delivered.
    pub source: IpAddr,
    /// Who should have had it.
    pub destination: IpAddr,
    /// What it carried.
    pub transport: Quoted,
}

/// The transport header of a [`Quote`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quoted {
    /// A TCP segment.
    Tcp {
        /// Port of the sender.
        source_port: u16,
        /// Port of the receiver.
        destination_port: u16,
        /// Sequence number of the first byte, or of SYN.
        sequence: u32,
    },
    /// A UDP datagram.
    Udp {
        /// Port of the sender.
        source_port: u16,
        /// Port of the receiver.
        destination_port: u16,
    },
    /// Another protocol, by its number.
    Other(u8),
}

impl Quoted {
    /// The protocol's number.
    #[must_use]
    pub const fn protocol(self) -> u8 {
        match self {
            Quoted::Tcp { .. } => ipv4::PROTOCOL_TCP,
            Quoted::Udp { .. } => ipv4::PROTOCOL_UDP,
            Quoted::Other(protocol) => protocol,
        }
    }

    /// Eight bytes of TCP or UDP must be there: RFC 792 has every error quote as many.
    fn parse(protocol: u8, bytes: &[u8]) -> Result<Quoted, Malformed> {
        if protocol != ipv4::PROTOCOL_TCP && protocol != ipv4::PROTOCOL_UDP {
            return Ok(Quoted::Other(protocol));
        }
        let &[a, b, c, d, e, f, g, h, ..] = bytes else {
            return Err(Malformed::QuoteShort);
        };
        let (source_port, destination_port) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Ok(if protocol == ipv4::PROTOCOL_TCP {
            Quoted::Tcp { source_port, destination_port, sequence: u32::from_be_bytes([e, f, g, h]) }
        } else {
            Quoted::Udp { source_port, destination_port }
        })
    }
}

/// What the packet carries that an ICMP error quotes, from its transport header on, as far as it is quoted.
#[must_use]
pub fn quoted_transport(quote: &[u8]) -> Option<&[u8]> {
    let first = *quote.first()?;
    match first >> 4 {
        4 => quote.get(usize::from(first & 0xf) * 4..),
        6 => ipv6::Packet::parse_quoted(quote).ok().map(|packet| packet.payload()),
        _ => None,
    }
}

impl Quote {
    /// Reads what an ICMP error of IPv4 quotes. Neither checksum nor total length is checked: routers change both, and cut.
    ///
    /// # Errors
    /// [`Malformed::QuoteShort`], [`Malformed::QuoteHeader`], [`Malformed::QuoteFragment`].
    pub fn parse_ipv4(bytes: &[u8]) -> Result<Quote, Malformed> {
        let header = bytes.first_chunk::<{ ipv4::HEADER_LEN }>().ok_or(Malformed::QuoteShort)?;
        let header_len = usize::from(header[0] & 0xf) * 4;
        if header[0] >> 4 != 4 || header_len < ipv4::HEADER_LEN {
            return Err(Malformed::QuoteHeader);
        }
        // The fragment offset, of which a first fragment has none.
        if u16::from_be_bytes([header[6], header[7]]) & 0x1fff != 0 {
            return Err(Malformed::QuoteFragment);
        }
        let transport = bytes.get(header_len..).ok_or(Malformed::QuoteShort)?;
        let address = |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
        Ok(Quote {
            source: address(12).into(),
            destination: address(16).into(),
            transport: Quoted::parse(header[9], transport)?,
        })
    }

    /// Reads what an ICMPv6 error quotes, which may be the beginning of a packet only.
    ///
    /// # Errors
    /// [`Malformed::QuoteShort`], [`Malformed::QuoteHeader`] (also for extension headers that are refused or cut),
    /// [`Malformed::QuoteFragment`].
    pub fn parse_ipv6(bytes: &[u8]) -> Result<Quote, Malformed> {
        let packet = ipv6::Packet::parse_quoted(bytes)?;
        if packet.is_later_fragment() {
            return Err(Malformed::QuoteFragment);
        }
        Ok(Quote {
            source: packet.source().into(),
            destination: packet.destination().into(),
            transport: Quoted::parse(packet.protocol(), packet.payload())?,
        })
    }
}

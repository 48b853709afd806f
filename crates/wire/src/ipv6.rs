//! IPv6 (RFC 8200). Extension headers are walked; fragments are named by [`Packet::is_fragment`] and not put together.

use core::fmt;
use core::net::Ipv6Addr;

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Malformed;
use crate::ip::Ecn;
pub use crate::ipv4::{PROTOCOL_TCP, PROTOCOL_UDP};

/// Bytes of a header without extension headers: what [`Header::emit`] writes.
pub const HEADER_LEN: usize = 40;
/// Most bytes that can follow it (jumbograms, RFC 2675, are refused).
pub const MAX_PAYLOAD_LEN: u16 = u16::MAX;
/// Most extension headers that are walked; a packet with more is refused.
pub const MAX_EXTENSIONS: usize = 8;
/// What every link carries without fragments (RFC 8200 section 5).
pub const MIN_MTU: u16 = 1_280;
/// Protocol number of ICMPv6.
pub const PROTOCOL_ICMPV6: u8 = 58;

const NEXT_HOP_BY_HOP: u8 = 0;
const NEXT_ROUTING: u8 = 43;
const NEXT_FRAGMENT: u8 = 44;
const NEXT_DESTINATION_OPTIONS: u8 = 60;

const OPTION_PAD1: u8 = 0;
const OPTION_JUMBO: u8 = 0xc2;
/// The bits of an option's type that are 0 if who does not know it steps over it (RFC 8200 section 4.2).
const OPTION_ACTION: u8 = 0xc0;

/// A fragment offset other than 0.
const FRAGMENT_OFFSET: u16 = 0xfff8;
const MORE_FRAGMENTS: u16 = 0x0001;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    /// Version (4 bits), traffic class (8), flow label (20).
    version_class_label: U32,
    payload_length: U16,
    next_header: u8,
    hop_limit: u8,
    source: [u8; 16],
    destination: [u8; 16],
}

#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FragmentLayout {
    next_header: u8,
    reserved: u8,
    offset_and_more: U16,
    identification: U32,
}

/// What follows the fixed header, its extension headers walked.
#[derive(Clone, Copy)]
pub(crate) struct Upper<'a> {
    pub(crate) protocol: u8,
    pub(crate) fragment: Fragment,
    pub(crate) payload: &'a [u8],
}

/// Whether a payload is whole.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fragment {
    Whole,
    First,
    Later,
}

/// A packet whose version, length and extension headers have been checked. Transport checksums cover the addresses; there is
/// no checksum of the header itself.
#[derive(Clone, Copy)]
pub struct Packet<'a> {
    layout: &'a Layout,
    upper: Upper<'a>,
}

impl<'a> Packet<'a> {
    /// Checks the bytes after an Ethernet header, and walks at most [`MAX_EXTENSIONS`] extension headers: hop-by-hop options,
    /// routing, destination options and fragment. What is beyond the payload length is padding and is cut off.
    ///
    /// An atomic fragment, offset 0 and no more to come (RFC 6946), is a whole packet: its fragment header is stepped over.
    ///
    /// Where RFC 8200 wants an ICMPv6 parameter problem sent, the packet is only refused.
    ///
    /// # Errors
    /// [`Malformed::Ipv6Short`], [`Malformed::Ipv6Version`], [`Malformed::Ipv6PayloadLength`], [`Malformed::Ipv6Jumbo`],
    /// [`Malformed::Ipv6Extension`], [`Malformed::Ipv6Extensions`], [`Malformed::Ipv6Option`], [`Malformed::Ipv6Routing`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        let (layout, rest) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::Ipv6Short)?;
        if u32::from(layout.version_class_label) >> 28 != 6 {
            return Err(Malformed::Ipv6Version);
        }
        let length = usize::from(u16::from(layout.payload_length));
        let payload = rest.get(..length).ok_or(Malformed::Ipv6PayloadLength)?;
        let upper = match layout.next_header {
            PROTOCOL_TCP | PROTOCOL_UDP | PROTOCOL_ICMPV6 => {
                Upper { protocol: layout.next_header, fragment: Fragment::Whole, payload }
            }
            next_header => walk(next_header, payload)?,
        };
        Ok(Packet { layout, upper })
    }

    /// As [`Packet::parse`] for a packet of which an ICMP error quotes the beginning.
    pub(crate) fn parse_quoted(bytes: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        let (layout, rest) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::QuoteShort)?;
        if u32::from(layout.version_class_label) >> 28 != 6 {
            return Err(Malformed::QuoteHeader);
        }
        let length = usize::from(u16::from(layout.payload_length));
        let payload = &rest[..length.min(rest.len())];
        let upper = walk(layout.next_header, payload).map_err(|_| Malformed::QuoteHeader)?;
        Ok(Packet { layout, upper })
    }

    /// Who sent the packet.
    #[inline]
    #[must_use]
    pub fn source(&self) -> Ipv6Addr {
        self.layout.source.into()
    }

    /// Who shall have it.
    #[inline]
    #[must_use]
    pub fn destination(&self) -> Ipv6Addr {
        self.layout.destination.into()
    }

    /// What the payload is, behind all extension headers: [`PROTOCOL_TCP`], …; 59 if there is nothing.
    #[inline]
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.upper.protocol
    }

    /// Hops that it may still go.
    #[inline]
    #[must_use]
    pub fn hop_limit(&self) -> u8 {
        self.layout.hop_limit
    }

    /// Differentiated services, and congestion notification in the lowest two bits (RFC 3168 section 5).
    #[inline]
    #[must_use]
    pub fn traffic_class(&self) -> u8 {
        (u32::from(self.layout.version_class_label) >> 20) as u8
    }

    /// What routers say about congestion (RFC 3168 section 5).
    #[inline]
    #[must_use]
    pub fn ecn(&self) -> Ecn {
        Ecn::of_traffic_class(self.traffic_class())
    }

    /// What the packets of one flow have in common (RFC 6437), 20 bits; 0 if the sender did not label it.
    #[inline]
    #[must_use]
    pub fn flow_label(&self) -> u32 {
        u32::from(self.layout.version_class_label) & MAX_FLOW_LABEL
    }

    /// Whether the payload is only a part: more fragments follow, or came before. The payload is then what follows the
    /// fragment header, and [`Packet::protocol`] the next header of the whole, which may be another extension header.
    #[inline]
    #[must_use]
    pub fn is_fragment(&self) -> bool {
        self.upper.fragment != Fragment::Whole
    }

    /// Bytes of the packet, all headers included, without link padding.
    #[inline]
    #[must_use]
    pub fn total_len(&self) -> usize {
        HEADER_LEN + usize::from(u16::from(self.layout.payload_length))
    }

    /// What follows the header and its extension headers, without link padding.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.upper.payload
    }

    pub(crate) fn is_later_fragment(&self) -> bool {
        self.upper.fragment == Fragment::Later
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
            .field("payload_len", &self.payload().len())
            .finish_non_exhaustive()
    }
}

/// Walks extension headers (RFC 8200 section 4) up to a header that is none of them: the upper layer.
///
/// Out of line: hardly any packet has one.
#[cold]
fn walk(next_header: u8, payload: &[u8]) -> Result<Upper<'_>, Malformed> {
    let mut upper = Upper { protocol: next_header, fragment: Fragment::Whole, payload };
    for count in 0..=MAX_EXTENSIONS {
        let extension = match upper.protocol {
            NEXT_HOP_BY_HOP if count > 0 => return Err(Malformed::Ipv6Extension),
            // RFC 2675 section 2: a length of 0 says that the length is in the option.
            NEXT_HOP_BY_HOP if payload.is_empty() => return Err(Malformed::Ipv6Jumbo),
            NEXT_HOP_BY_HOP | NEXT_ROUTING | NEXT_FRAGMENT | NEXT_DESTINATION_OPTIONS => upper.protocol,
            _ => return Ok(upper),
        };
        if count == MAX_EXTENSIONS {
            break;
        }
        if extension == NEXT_FRAGMENT {
            let (layout, rest) =
                FragmentLayout::ref_from_prefix(upper.payload).map_err(|_| Malformed::Ipv6Extension)?;
            let offset_and_more = u16::from(layout.offset_and_more);
            upper.protocol = layout.next_header;
            upper.payload = rest;
            if offset_and_more & FRAGMENT_OFFSET != 0 {
                upper.fragment = Fragment::Later;
                return Ok(upper);
            }
            if offset_and_more & MORE_FRAGMENTS != 0 {
                upper.fragment = Fragment::First;
                return Ok(upper);
            }
            continue;
        }
        let &[next_header, more, ..] = upper.payload else {
            return Err(Malformed::Ipv6Extension);
        };
        // The length is in units of 8 bytes without the first.
        let length = 8 + usize::from(more) * 8;
        let (header, rest) = upper.payload.split_at_checked(length).ok_or(Malformed::Ipv6Extension)?;
        if extension == NEXT_ROUTING {
            // RFC 8200 section 4.4: one of an unknown type is stepped over if no segments are left; type 0 is as if
            // unknown (RFC 5095 section 3).
            if header[3] != 0 {
                return Err(Malformed::Ipv6Routing);
            }
        } else {
            check_options(&header[2..])?;
        }
        upper.protocol = next_header;
        upper.payload = rest;
    }
    Err(Malformed::Ipv6Extensions)
}

/// None of the options is known but padding (RFC 8200 section 4.2).
fn check_options(mut bytes: &[u8]) -> Result<(), Malformed> {
    while let Some((&kind, rest)) = bytes.split_first() {
        if kind == OPTION_PAD1 {
            bytes = rest;
            continue;
        }
        if kind == OPTION_JUMBO {
            return Err(Malformed::Ipv6Jumbo);
        }
        if kind & OPTION_ACTION != 0 {
            return Err(Malformed::Ipv6Option);
        }
        let (&length, rest) = rest.split_first().ok_or(Malformed::Ipv6Extension)?;
        bytes = rest.get(usize::from(length)..).ok_or(Malformed::Ipv6Extension)?;
    }
    Ok(())
}

/// Greatest flow label: 20 bits.
pub const MAX_FLOW_LABEL: u32 = 0xf_ffff;

/// A header without extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Who sends the packet.
    pub source: Ipv6Addr,
    /// Who shall have it.
    pub destination: Ipv6Addr,
    /// What the payload is: [`PROTOCOL_TCP`], …
    pub protocol: u8,
    /// Hops that it may go.
    pub hop_limit: u8,
    /// Differentiated services, and congestion notification in the lowest two bits.
    pub traffic_class: u8,
    /// What the packets of one flow have in common (RFC 6437), at most [`MAX_FLOW_LABEL`]: higher bits are not written.
    pub flow_label: u32,
    /// Bytes after the header.
    pub payload_len: u16,
}

impl Header {
    /// Writes the header into the first [`HEADER_LEN`] bytes of `buffer`.
    ///
    /// # Panics
    /// If `buffer` is shorter.
    #[inline]
    pub fn emit(&self, buffer: &mut [u8]) {
        let class_label = u32::from(self.traffic_class) << 20 | (self.flow_label & MAX_FLOW_LABEL);
        let layout = Layout {
            version_class_label: (6 << 28 | class_label).into(),
            payload_length: self.payload_len.into(),
            next_header: self.protocol,
            hop_limit: self.hop_limit,
            source: self.source.octets(),
            destination: self.destination.octets(),
        };
        buffer[..HEADER_LEN].copy_from_slice(layout.as_bytes());
    }
}

/// The multicast address at which who has `address` listens for solicitations (RFC 4291 section 2.7.1).
#[must_use]
pub const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | a as u16, (b as u16) << 8 | c as u16)
}

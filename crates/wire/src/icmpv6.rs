//! ICMPv6: echo, errors that concern a flow (RFC 4443), and neighbour discovery over Ethernet (RFC 4861).

use core::net::Ipv6Addr;

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::pseudo_ipv6;
pub use crate::icmpv4::Kind;
use crate::ip::Quote;
use crate::ipv6::{self, PROTOCOL_ICMPV6};
use crate::{MacAddr, Malformed};

/// Bytes before the data of an echo message, or the quote of an error.
pub const HEADER_LEN: usize = 8;
/// Most bytes of a solicitation or advertisement as they are written here.
pub const MAX_NEIGHBOR_LEN: usize = NEIGHBOR_LEN + LINK_ADDRESS_LEN;
/// Hop limit of neighbour discovery, sent and received: no router has forwarded it (RFC 4861 section 7.1).
pub const NEIGHBOR_HOP_LIMIT: u8 = 255;
/// Code of [`Message::DestinationUnreachable`]: nobody is at that port (RFC 4443 section 3.1).
pub const CODE_PORT_UNREACHABLE: u8 = 4;
/// Most bytes of a packet that an error quotes: the whole error fits into the least MTU (RFC 4443 section 2.4 c).
pub const MAX_QUOTE_LEN: usize = ipv6::MIN_MTU as usize - ipv6::HEADER_LEN - HEADER_LEN;

const TYPE_DESTINATION_UNREACHABLE: u8 = 1;
const TYPE_PACKET_TOO_BIG: u8 = 2;
const TYPE_TIME_EXCEEDED: u8 = 3;
const TYPE_PARAMETER_PROBLEM: u8 = 4;
const TYPE_ECHO_REQUEST: u8 = 128;
const TYPE_ECHO_REPLY: u8 = 129;
const TYPE_NEIGHBOR_SOLICITATION: u8 = 135;
const TYPE_NEIGHBOR_ADVERTISEMENT: u8 = 136;

const NEIGHBOR_LEN: usize = 24;
const LINK_ADDRESS_LEN: usize = 8;
const OPTION_SOURCE_LINK_ADDRESS: u8 = 1;
const OPTION_TARGET_LINK_ADDRESS: u8 = 2;

const FLAG_ROUTER: u32 = 0x8000_0000;
const FLAG_SOLICITED: u32 = 0x4000_0000;
const FLAG_OVERRIDE: u32 = 0x2000_0000;

/// Where the checksum is in a message.
const CHECKSUM: core::ops::Range<usize> = 2..4;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    kind: u8,
    code: u8,
    checksum: U16,
    /// Identifier and sequence, MTU, pointer, or flags.
    word: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LinkAddressLayout {
    kind: u8,
    /// In units of 8 bytes.
    length: u8,
    address: MacAddr,
}

/// A message whose checksum holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// An echo request or reply.
    Echo(Echo<'a>),
    /// The packet did not reach its destination.
    DestinationUnreachable {
        /// Why: [`CODE_PORT_UNREACHABLE`], … (RFC 4443 section 3.1).
        code: u8,
        /// The packet.
        quote: Quote,
    },
    /// The packet was too big for the next hop.
    PacketTooBig {
        /// Bytes that an IP packet may have there, as they came: also if they are below [`ipv6::MIN_MTU`], which RFC 8201
        /// section 4 has ignored.
        mtu: u32,
        /// The packet.
        quote: Quote,
    },
    /// The packet went in circles (code 0), or its fragments did not all arrive (code 1).
    TimeExceeded {
        /// Which of the two.
        code: u8,
        /// The packet.
        quote: Quote,
    },
    /// Something is wrong with the packet's headers.
    ParameterProblem {
        /// A field (0), a next header (1) or an option (2).
        code: u8,
        /// Place of the byte that is wrong, which may be beyond the quote.
        pointer: u32,
        /// The packet.
        quote: Quote,
    },
    /// Who has this address?
    NeighborSolicitation(NeighborSolicitation),
    /// It is here.
    NeighborAdvertisement(NeighborAdvertisement),
}

impl<'a> Message<'a> {
    /// Reads the payload of an ICMPv6 packet from `source` to `destination`, behind its extension headers.
    ///
    /// Of RFC 4861 section 7.1 the caller checks that the hop limit of neighbour discovery is [`NEIGHBOR_HOP_LIMIT`], which
    /// a message does not know.
    ///
    /// # Errors
    /// [`Malformed::Icmpv6Short`], [`Malformed::Icmpv6Checksum`], [`Malformed::Icmpv6Kind`] (a sound message of another type);
    /// of an error's quote [`Malformed::QuoteShort`], [`Malformed::QuoteHeader`], [`Malformed::QuoteFragment`]; of neighbour
    /// discovery [`Malformed::Icmpv6Option`], [`Malformed::Icmpv6Neighbor`].
    pub fn parse(bytes: &'a [u8], source: Ipv6Addr, destination: Ipv6Addr) -> Result<Message<'a>, Malformed> {
        let (layout, rest) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::Icmpv6Short)?;
        if checksum(bytes, source, destination) != 0 {
            return Err(Malformed::Icmpv6Checksum);
        }
        let (code, word) = (layout.code, u32::from(layout.word));
        Ok(match (layout.kind, code) {
            (TYPE_ECHO_REQUEST | TYPE_ECHO_REPLY, 0) => Message::Echo(Echo {
                kind: if layout.kind == TYPE_ECHO_REQUEST { Kind::Request } else { Kind::Reply },
                identifier: (word >> 16) as u16,
                sequence: word as u16,
                data: rest,
            }),
            (TYPE_DESTINATION_UNREACHABLE, _) => {
                Message::DestinationUnreachable { code, quote: Quote::parse_ipv6(rest)? }
            }
            // RFC 4443 section 3.2: a receiver ignores the code.
            (TYPE_PACKET_TOO_BIG, _) => Message::PacketTooBig { mtu: word, quote: Quote::parse_ipv6(rest)? },
            (TYPE_TIME_EXCEEDED, _) => Message::TimeExceeded { code, quote: Quote::parse_ipv6(rest)? },
            (TYPE_PARAMETER_PROBLEM, _) => {
                Message::ParameterProblem { code, pointer: word, quote: Quote::parse_ipv6(rest)? }
            }
            (TYPE_NEIGHBOR_SOLICITATION, 0) => {
                Message::NeighborSolicitation(NeighborSolicitation::parse(rest, source, destination)?)
            }
            (TYPE_NEIGHBOR_ADVERTISEMENT, 0) => {
                Message::NeighborAdvertisement(NeighborAdvertisement::parse(word, rest, destination)?)
            }
            _ => return Err(Malformed::Icmpv6Kind),
        })
    }
}

/// 0 if the checksum in `bytes` holds; what to write if it is 0.
fn checksum(bytes: &[u8], source: Ipv6Addr, destination: Ipv6Addr) -> u16 {
    pseudo_ipv6(source, destination, PROTOCOL_ICMPV6, bytes.len() as u32).bytes(bytes).finish()
}

/// Writes `kind`, `code` and `word` before the rest of `message`, which is there already, and then the checksum.
fn write_header(message: &mut [u8], kind: u8, code: u8, word: u32, source: Ipv6Addr, destination: Ipv6Addr) {
    let layout = Layout { kind, code, checksum: 0.into(), word: word.into() };
    message[..HEADER_LEN].copy_from_slice(layout.as_bytes());
    let checksum = checksum(message, source, destination);
    message[CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
}

/// An echo request or reply (RFC 4443 section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo<'a> {
    /// Request or reply.
    pub kind: Kind,
    /// Tells one ping program from another.
    pub identifier: u16,
    /// Tells one request from the next.
    pub sequence: u16,
    /// What the reply must bring back.
    pub data: &'a [u8],
}

impl Echo<'_> {
    /// Writes header, checksum and data to the start of `buffer`; returns the bytes written.
    ///
    /// # Panics
    /// If `buffer` is shorter than [`HEADER_LEN`] and the data.
    pub fn emit(&self, buffer: &mut [u8], source: Ipv6Addr, destination: Ipv6Addr) -> usize {
        let message = &mut buffer[..HEADER_LEN + self.data.len()];
        message[HEADER_LEN..].copy_from_slice(self.data);
        let kind = match self.kind {
            Kind::Request => TYPE_ECHO_REQUEST,
            Kind::Reply => TYPE_ECHO_REPLY,
        };
        let word = u32::from(self.identifier) << 16 | u32::from(self.sequence);
        write_header(message, kind, 0, word, source, destination);
        message.len()
    }
}

/// Writes a destination unreachable, port unreachable, to the start of `buffer`; returns the bytes written.
///
/// `packet` is the whole packet that came, from its IPv6 header on and without link padding; at most [`MAX_QUOTE_LEN`] bytes
/// of it are quoted. `source` and `destination` are those of the error. When an error must not be sent (to a multicast
/// address, …) is in RFC 4443 section 2.4 e.
///
/// # Panics
/// If `buffer` is shorter than [`HEADER_LEN`] and the quote.
pub fn emit_port_unreachable(
    packet: &[u8],
    buffer: &mut [u8],
    source: Ipv6Addr,
    destination: Ipv6Addr,
) -> usize {
    let quote = &packet[..packet.len().min(MAX_QUOTE_LEN)];
    let message = &mut buffer[..HEADER_LEN + quote.len()];
    message[HEADER_LEN..].copy_from_slice(quote);
    write_header(message, TYPE_DESTINATION_UNREACHABLE, CODE_PORT_UNREACHABLE, 0, source, destination);
    message.len()
}

/// A neighbour solicitation (RFC 4861 section 4.3).
///
/// To resolve an address it goes to [`ipv6::solicited_node`] of it, to probe a neighbour to the neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighborSolicitation {
    /// The address that is asked for; never multicast.
    pub target: Ipv6Addr,
    /// Where the sender is. Not there if its address is unspecified, which then looks for duplicates (RFC 4862 section 5.4).
    pub source_link_address: Option<MacAddr>,
}

impl NeighborSolicitation {
    /// `bytes` are those from the target on.
    fn parse(
        bytes: &[u8],
        source: Ipv6Addr,
        destination: Ipv6Addr,
    ) -> Result<NeighborSolicitation, Malformed> {
        let (target, source_link_address) = target_and_option(bytes, OPTION_SOURCE_LINK_ADDRESS)?;
        // RFC 4861 section 7.1.1.
        let from_nowhere = source.is_unspecified();
        let to_solicited_node = destination == ipv6::solicited_node(destination);
        if target.is_multicast() || (from_nowhere && (source_link_address.is_some() || !to_solicited_node)) {
            return Err(Malformed::Icmpv6Neighbor);
        }
        Ok(NeighborSolicitation { target, source_link_address })
    }

    /// Writes the message to the start of `buffer`; returns the bytes written, at most [`MAX_NEIGHBOR_LEN`]. Its packet needs
    /// the hop limit [`NEIGHBOR_HOP_LIMIT`].
    ///
    /// # Panics
    /// If `buffer` is shorter.
    pub fn emit(&self, buffer: &mut [u8], source: Ipv6Addr, destination: Ipv6Addr) -> usize {
        let option = self.source_link_address.map(|address| (OPTION_SOURCE_LINK_ADDRESS, address));
        let message = write_target(buffer, self.target, option);
        write_header(message, TYPE_NEIGHBOR_SOLICITATION, 0, 0, source, destination);
        message.len()
    }
}

/// A neighbour advertisement (RFC 4861 section 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighborAdvertisement {
    /// The address that was asked for; never multicast.
    pub target: Ipv6Addr,
    /// Where it is. May be missing in an answer to a unicast solicitation.
    pub target_link_address: Option<MacAddr>,
    /// Whether the sender is a router.
    pub router: bool,
    /// Whether it answers a solicitation.
    pub solicited: bool,
    /// Whether it shall replace what the receiver knows.
    pub overrides: bool,
}

impl NeighborAdvertisement {
    /// `bytes` are those from the target on.
    fn parse(flags: u32, bytes: &[u8], destination: Ipv6Addr) -> Result<NeighborAdvertisement, Malformed> {
        let (target, target_link_address) = target_and_option(bytes, OPTION_TARGET_LINK_ADDRESS)?;
        let solicited = flags & FLAG_SOLICITED != 0;
        // RFC 4861 section 7.1.2.
        if target.is_multicast() || (solicited && destination.is_multicast()) {
            return Err(Malformed::Icmpv6Neighbor);
        }
        Ok(NeighborAdvertisement {
            target,
            target_link_address,
            router: flags & FLAG_ROUTER != 0,
            solicited,
            overrides: flags & FLAG_OVERRIDE != 0,
        })
    }

    /// Writes the message to the start of `buffer`; returns the bytes written, at most [`MAX_NEIGHBOR_LEN`]. Its packet needs
    /// the hop limit [`NEIGHBOR_HOP_LIMIT`].
    ///
    /// # Panics
    /// If `buffer` is shorter.
    pub fn emit(&self, buffer: &mut [u8], source: Ipv6Addr, destination: Ipv6Addr) -> usize {
        let option = self.target_link_address.map(|address| (OPTION_TARGET_LINK_ADDRESS, address));
        let message = write_target(buffer, self.target, option);
        let flags =
            [(self.router, FLAG_ROUTER), (self.solicited, FLAG_SOLICITED), (self.overrides, FLAG_OVERRIDE)];
        let word = flags.iter().filter(|(set, _)| *set).fold(0, |word, (_, flag)| word | flag);
        write_header(message, TYPE_NEIGHBOR_ADVERTISEMENT, 0, word, source, destination);
        message.len()
    }
}

/// The target, and the link-layer address in the option of this kind; if the option is there twice, the last counts. Others
/// are stepped over (RFC 4861 section 4.6).
fn target_and_option(bytes: &[u8], wanted: u8) -> Result<(Ipv6Addr, Option<MacAddr>), Malformed> {
    let (target, mut options) = bytes.split_first_chunk::<16>().ok_or(Malformed::Icmpv6Short)?;
    let mut link_address = None;
    while let Some(&kind) = options.first() {
        let length = options.get(1).map_or(0, |units| usize::from(*units) * 8);
        if length == 0 {
            return Err(Malformed::Icmpv6Option);
        }
        let (option, rest) = options.split_at_checked(length).ok_or(Malformed::Icmpv6Option)?;
        if kind == wanted {
            // RFC 2464 section 6: the length is 1 on Ethernet.
            let layout = LinkAddressLayout::ref_from_bytes(option).map_err(|_| Malformed::Icmpv6Option)?;
            link_address = Some(layout.address);
        }
        options = rest;
    }
    Ok((Ipv6Addr::from(*target), link_address))
}

/// Writes what follows the header of a solicitation or advertisement; returns the whole message.
fn write_target(buffer: &mut [u8], target: Ipv6Addr, option: Option<(u8, MacAddr)>) -> &mut [u8] {
    let length = NEIGHBOR_LEN + if option.is_some() { LINK_ADDRESS_LEN } else { 0 };
    let message = &mut buffer[..length];
    message[HEADER_LEN..NEIGHBOR_LEN].copy_from_slice(&target.octets());
    if let Some((kind, address)) = option {
        let layout = LinkAddressLayout { kind, length: 1, address };
        message[NEIGHBOR_LEN..].copy_from_slice(layout.as_bytes());
    }
    message
}

//! ICMP: echo, which is what ping sends, and the errors that concern a flow (RFC 792, RFC 1191).

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Malformed;
use crate::checksum::Sum;
use crate::ip::Quote;

/// Bytes before the data of an echo message.
pub const HEADER_LEN: usize = 8;

/// Code of [`Message::DestinationUnreachable`]: nobody is at that port.
pub const CODE_PORT_UNREACHABLE: u8 = 3;
/// Code of [`Message::DestinationUnreachable`]: the packet is too big for the next hop, and may not be fragmented.
pub const CODE_FRAGMENTATION_NEEDED: u8 = 4;
/// Most bytes of a packet that an error quotes: the whole error stays within 576 bytes (RFC 1812 section 4.3.2.3).
pub const MAX_QUOTE_LEN: usize = 576 - crate::ipv4::HEADER_LEN - HEADER_LEN;

const TYPE_ECHO_REPLY: u8 = 0;
const TYPE_DESTINATION_UNREACHABLE: u8 = 3;
const TYPE_ECHO_REQUEST: u8 = 8;
const TYPE_TIME_EXCEEDED: u8 = 11;
const TYPE_PARAMETER_PROBLEM: u8 = 12;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    kind: u8,
    code: u8,
    checksum: U16,
    /// In a parameter problem, its first byte is the pointer.
    identifier: U16,
    /// In a destination unreachable, the next hop's MTU (RFC 1191 section 4).
    sequence: U16,
}

/// Which way an echo goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Answer me.
    Request,
    /// The answer, with the request's identifier, sequence and data.
    Reply,
}

/// An echo request or reply.
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

impl<'a> Echo<'a> {
    /// Reads the payload of an ICMP packet.
    ///
    /// # Errors
    /// [`Malformed::IcmpShort`], [`Malformed::IcmpChecksum`], [`Malformed::IcmpKind`] (the message is sound, but no echo).
    pub fn parse(bytes: &'a [u8]) -> Result<Echo<'a>, Malformed> {
        let (layout, data) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::IcmpShort)?;
        if Sum::new().bytes(bytes).finish() != 0 {
            return Err(Malformed::IcmpChecksum);
        }
        let kind = match (layout.kind, layout.code) {
            (TYPE_ECHO_REQUEST, 0) => Kind::Request,
            (TYPE_ECHO_REPLY, 0) => Kind::Reply,
            _ => return Err(Malformed::IcmpKind),
        };
        Ok(Echo { kind, identifier: layout.identifier.into(), sequence: layout.sequence.into(), data })
    }

    /// Writes header, checksum and data to the start of `buffer`; returns the bytes written.
    ///
    /// # Panics
    /// If `buffer` is shorter than [`HEADER_LEN`] and the data.
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        let mut layout = Layout {
            kind: match self.kind {
                Kind::Request => TYPE_ECHO_REQUEST,
                Kind::Reply => TYPE_ECHO_REPLY,
            },
            code: 0,
            checksum: 0.into(),
            identifier: self.identifier.into(),
            sequence: self.sequence.into(),
        };
        layout.checksum = Sum::new().bytes(layout.as_bytes()).bytes(self.data).finish().into();
        let length = HEADER_LEN + self.data.len();
        let (header, data) = buffer[..length].split_at_mut(HEADER_LEN);
        header.copy_from_slice(layout.as_bytes());
        data.copy_from_slice(self.data);
        length
    }
}

/// A message: an echo, or an error about a packet that was sent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// An echo request or reply.
    Echo(Echo<'a>),
    /// The packet did not reach its destination.
    DestinationUnreachable {
        /// Why: [`CODE_PORT_UNREACHABLE`], [`CODE_FRAGMENTATION_NEEDED`], … (RFC 1122 section 3.2.2.1).
        code: u8,
        /// With [`CODE_FRAGMENTATION_NEEDED`] the bytes that an IP packet may have at the next hop (RFC 1191 section 4), as
        /// they came: also if they are absurd. `None` with other codes, and from a router that does not say.
        next_hop_mtu: Option<u16>,
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
    /// Something is wrong with the packet's header.
    ParameterProblem {
        /// 0 if the pointer means something.
        code: u8,
        /// Place of the byte that is wrong.
        pointer: u8,
        /// The packet.
        quote: Quote,
    },
}

impl<'a> Message<'a> {
    /// Reads the payload of an ICMP packet.
    ///
    /// # Errors
    /// [`Malformed::IcmpShort`], [`Malformed::IcmpChecksum`], [`Malformed::IcmpKind`] (a sound message of another type); of
    /// an error's quote [`Malformed::QuoteShort`], [`Malformed::QuoteHeader`], [`Malformed::QuoteFragment`].
    pub fn parse(bytes: &'a [u8]) -> Result<Message<'a>, Malformed> {
        let (layout, quoted) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::IcmpShort)?;
        let code = layout.code;
        if !matches!(layout.kind, TYPE_DESTINATION_UNREACHABLE | TYPE_TIME_EXCEEDED | TYPE_PARAMETER_PROBLEM)
        {
            return Echo::parse(bytes).map(Message::Echo);
        }
        if Sum::new().bytes(bytes).finish() != 0 {
            return Err(Malformed::IcmpChecksum);
        }
        let quote = Quote::parse_ipv4(quoted)?;
        Ok(match layout.kind {
            TYPE_DESTINATION_UNREACHABLE => {
                let mtu = u16::from(layout.sequence);
                let next_hop_mtu = (code == CODE_FRAGMENTATION_NEEDED && mtu != 0).then_some(mtu);
                Message::DestinationUnreachable { code, next_hop_mtu, quote }
            }
            TYPE_TIME_EXCEEDED => Message::TimeExceeded { code, quote },
            _ => {
                let [pointer, _] = layout.identifier.to_bytes();
                Message::ParameterProblem { code, pointer, quote }
            }
        })
    }
}

/// Writes a destination unreachable, port unreachable, to the start of `buffer`; returns the bytes written.
///
/// `packet` is the whole packet that came, from its IPv4 header on and without link padding; at most [`MAX_QUOTE_LEN`] bytes
/// of it are quoted. When an error must not be sent (to a broadcast, about a fragment, …) is in RFC 1122 section 3.2.2.
///
/// # Panics
/// If `buffer` is shorter than [`HEADER_LEN`] and the quote.
pub fn emit_port_unreachable(packet: &[u8], buffer: &mut [u8]) -> usize {
    let quote = &packet[..packet.len().min(MAX_QUOTE_LEN)];
    let mut layout = Layout {
        kind: TYPE_DESTINATION_UNREACHABLE,
        code: CODE_PORT_UNREACHABLE,
        checksum: 0.into(),
        identifier: 0.into(),
        sequence: 0.into(),
    };
    layout.checksum = Sum::new().bytes(layout.as_bytes()).bytes(quote).finish().into();
    let length = HEADER_LEN + quote.len();
    let (header, data) = buffer[..length].split_at_mut(HEADER_LEN);
    header.copy_from_slice(layout.as_bytes());
    data.copy_from_slice(quote);
    length
}

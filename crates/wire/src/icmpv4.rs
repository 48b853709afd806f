//! ICMP echo, which is what ping sends (RFC 792).

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Malformed;
use crate::checksum::Sum;

/// Bytes before the data of an echo message.
pub const HEADER_LEN: usize = 8;

const TYPE_ECHO_REPLY: u8 = 0;
const TYPE_ECHO_REQUEST: u8 = 8;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    kind: u8,
    code: u8,
    checksum: U16,
    identifier: U16,
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

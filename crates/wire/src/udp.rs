//! UDP (RFC 768).

use core::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Malformed;
use crate::checksum::pseudo_ipv4;
use crate::ipv4::{MAX_PAYLOAD_LEN, PROTOCOL_UDP};

/// Bytes of a header.
pub const HEADER_LEN: usize = 8;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    source_port: U16,
    destination_port: U16,
    length: U16,
    checksum: U16,
}

/// A header; length and checksum follow from the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Port of the sender, 0 if it wants no answer.
    pub source_port: u16,
    /// Port of the receiver.
    pub destination_port: u16,
}

impl Header {
    /// Reads the payload of an IPv4 packet from `source` to `destination`: the header, and the payload as long as the
    /// length field says. A checksum of 0 means that the sender computed none. `partial_checksums` says whether the link
    /// brings frames whose checksum is only begun ([`ChecksumState::Partial`](crate::checksum::ChecksumState::Partial)).
    ///
    /// # Errors
    /// [`Malformed::UdpShort`], [`Malformed::UdpLength`], [`Malformed::UdpChecksum`].
    #[inline]
    pub fn parse(
        bytes: &[u8],
        source: Ipv4Addr,
        destination: Ipv4Addr,
        partial_checksums: bool,
    ) -> Result<(Header, &[u8]), Malformed> {
        let (layout, _) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::UdpShort)?;
        let length = u16::from(layout.length);
        let datagram = bytes.get(..usize::from(length)).ok_or(Malformed::UdpLength)?;
        let payload = datagram.get(HEADER_LEN..).ok_or(Malformed::UdpLength)?;
        let checksum = u16::from(layout.checksum);
        if checksum != 0 {
            let pseudo = pseudo_ipv4(source, destination, PROTOCOL_UDP, length);
            let partial = partial_checksums && checksum == pseudo.fold();
            if !partial && pseudo.bytes(datagram).finish() != 0 {
                return Err(Malformed::UdpChecksum);
            }
        }
        let header = Header {
            source_port: layout.source_port.into(),
            destination_port: layout.destination_port.into(),
        };
        Ok((header, payload))
    }

    /// Writes the header, its checksum included, before the payload that `datagram` already holds from [`HEADER_LEN`] on.
    ///
    /// # Panics
    /// If `datagram` is shorter than a header, or longer than an IPv4 packet can carry.
    #[inline]
    pub fn emit(&self, datagram: &mut [u8], source: Ipv4Addr, destination: Ipv4Addr) {
        let length = datagram.len();
        assert!(
            length <= usize::from(MAX_PAYLOAD_LEN),
            "a UDP datagram holds at most 65,507 bytes: send less at once"
        );
        let (header, payload) = datagram.split_at_mut(HEADER_LEN);
        let length = length as u16;
        let mut layout = Layout {
            source_port: self.source_port.into(),
            destination_port: self.destination_port.into(),
            length: length.into(),
            checksum: 0.into(),
        };
        let sum = pseudo_ipv4(source, destination, PROTOCOL_UDP, length)
            .bytes(layout.as_bytes())
            .bytes(payload)
            .finish();
        // 0 would say that there is no checksum; all ones is its equal in ones' complement (RFC 768).
        layout.checksum = if sum == 0 { 0xffff } else { sum }.into();
        header.copy_from_slice(layout.as_bytes());
    }
}

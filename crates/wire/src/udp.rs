//! UDP (RFC 768; over IPv6, RFC 8200 section 8.1).

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Malformed;
use crate::checksum::Address;
use crate::ipv4::{self, PROTOCOL_UDP};
use crate::ipv6;

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
    /// Reads the payload of an IP packet from `source` to `destination`: the header, and the payload as long as the length
    /// field says. A checksum of 0 means over IPv4 that the sender computed none; over IPv6 it is refused, as tunnels alone
    /// may leave it out (RFC 6935), and none end here. `partial_checksums` says whether the link brings frames whose checksum
    /// is only begun ([`ChecksumState::Partial`](crate::checksum::ChecksumState::Partial)).
    ///
    /// # Errors
    /// [`Malformed::UdpShort`], [`Malformed::UdpLength`], [`Malformed::UdpNoChecksum`], [`Malformed::UdpChecksum`].
    #[inline]
    pub fn parse<A: Address>(
        bytes: &[u8],
        source: A,
        destination: A,
        partial_checksums: bool,
    ) -> Result<(Header, &[u8]), Malformed> {
        let (layout, _) = Layout::ref_from_prefix(bytes).map_err(|_| Malformed::UdpShort)?;
        let length = u16::from(layout.length);
        let datagram = bytes.get(..usize::from(length)).ok_or(Malformed::UdpLength)?;
        let payload = datagram.get(HEADER_LEN..).ok_or(Malformed::UdpLength)?;
        let checksum = u16::from(layout.checksum);
        if checksum != 0 {
            let pseudo = A::pseudo_header(source, destination, PROTOCOL_UDP, length);
            let partial = partial_checksums && checksum == pseudo.fold();
            if !partial && pseudo.bytes(datagram).finish() != 0 {
                return Err(Malformed::UdpChecksum);
            }
        } else if !source.is_ipv4() {
            return Err(Malformed::UdpNoChecksum);
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
    /// If `datagram` is shorter than a header, or longer than an IP packet without options can carry: 65,515 bytes over
    /// IPv4, 65,535 over IPv6.
    #[inline]
    pub fn emit<A: Address>(&self, datagram: &mut [u8], source: A, destination: A) {
        let length = checked_len(datagram.len(), source);
        let (header, payload) = datagram.split_at_mut(HEADER_LEN);
        let mut layout = self.layout(length);
        let sum = A::pseudo_header(source, destination, PROTOCOL_UDP, length)
            .bytes(layout.as_bytes())
            .bytes(payload)
            .finish();
        // 0 would say that there is no checksum; all ones is its equal in ones' complement (RFC 768).
        layout.checksum = if sum == 0 { 0xffff } else { sum }.into();
        header.copy_from_slice(layout.as_bytes());
    }

    /// Like [`Header::emit`], for a link that completes checksums: the field is the folded sum of the pseudo-header, and the
    /// payload is not looked at.
    ///
    /// # Panics
    /// As [`Header::emit`].
    #[inline]
    pub fn emit_partial<A: Address>(&self, datagram: &mut [u8], source: A, destination: A) {
        let length = checked_len(datagram.len(), source);
        let mut layout = self.layout(length);
        layout.checksum = A::pseudo_header(source, destination, PROTOCOL_UDP, length).fold().into();
        datagram[..HEADER_LEN].copy_from_slice(layout.as_bytes());
    }

    #[inline]
    fn layout(&self, length: u16) -> Layout {
        Layout {
            source_port: self.source_port.into(),
            destination_port: self.destination_port.into(),
            length: length.into(),
            checksum: 0.into(),
        }
    }
}

#[inline]
fn checked_len<A: Address>(length: usize, source: A) -> u16 {
    let most = if source.is_ipv4() { ipv4::MAX_PAYLOAD_LEN } else { ipv6::MAX_PAYLOAD_LEN };
    assert!(
        length <= usize::from(most),
        "a UDP datagram holds at most 65,507 bytes over IPv4, 65,527 over IPv6: send less at once"
    );
    length as u16
}

//! Ethernet II frames (RFC 894). VLAN tags are not taken apart: such frames have another [`Header::ethertype`].

use core::fmt;
use core::net::Ipv6Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Malformed;

/// Bytes before the payload of a frame.
pub const HEADER_LEN: usize = 14;
/// Ethernet type of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// Ethernet type of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// Ethernet type of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;

/// A 48-bit hardware address.
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(transparent)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// Every station on the link.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);

    /// The group address on the link of an IPv6 multicast address (RFC 2464 section 7).
    #[must_use]
    pub const fn of_ipv6_multicast(address: Ipv6Addr) -> MacAddr {
        let [.., a, b, c, d] = address.octets();
        MacAddr([0x33, 0x33, a, b, c, d])
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(formatter, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    destination: MacAddr,
    source: MacAddr,
    ethertype: U16,
}

/// An Ethernet II header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Who shall take the frame.
    pub destination: MacAddr,
    /// Who sends it.
    pub source: MacAddr,
    /// What the payload is: [`ETHERTYPE_IPV4`], …; below 1,536 it is a length (IEEE 802.3), and the frame none of ours.
    pub ethertype: u16,
}

impl Header {
    /// The header of `frame`, and what follows it (padding included).
    ///
    /// # Errors
    /// [`Malformed::EthernetShort`].
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<(Header, &[u8]), Malformed> {
        let (layout, payload) = Layout::ref_from_prefix(frame).map_err(|_| Malformed::EthernetShort)?;
        let header = Header {
            destination: layout.destination,
            source: layout.source,
            ethertype: layout.ethertype.into(),
        };
        Ok((header, payload))
    }

    /// Writes the header into the first [`HEADER_LEN`] bytes of `buffer`.
    ///
    /// # Panics
    /// If `buffer` is shorter.
    #[inline]
    pub fn emit(&self, buffer: &mut [u8]) {
        let layout =
            Layout { destination: self.destination, source: self.source, ethertype: self.ethertype.into() };
        buffer[..HEADER_LEN].copy_from_slice(layout.as_bytes());
    }
}

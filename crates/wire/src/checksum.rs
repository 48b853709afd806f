//! The Internet checksum (RFC 1071; RFC 9293 section 3.1 for TCP's pseudo-header).

use core::net::Ipv4Addr;

/// Bytes that one round of the wide loop takes: enough independent lanes for vector registers.
const STRIDE: usize = 64;
const LOW: u64 = 0xffff_ffff;

/// A ones' complement sum of 16-bit words, under way.
///
/// Words are summed as they lie in memory and swapped once at the end (RFC 1071 section 2 B), many to an addition (2 C).
///
/// Carries gather in the upper half of 64 bits, which has room for those of 16 GiB.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct Sum(u64);

impl Sum {
    /// The sum of nothing.
    #[inline]
    pub const fn new() -> Sum {
        Sum(0)
    }

    /// Adds bytes. All pieces but the last must be of even length; a last odd byte counts as if a zero followed.
    #[inline]
    pub fn bytes(self, bytes: &[u8]) -> Sum {
        if bytes.len() < 2 * STRIDE {
            return self.short(bytes);
        }
        let (wide, rest) = bytes.as_chunks::<STRIDE>();
        Sum(self.0 + wide_sum(wide)).short(rest)
    }

    /// Adds one 16-bit word, given in host order.
    #[inline]
    pub fn add_u16(self, word: u16) -> Sum {
        Sum(self.0 + u64::from(word.to_be()))
    }

    /// Adds two 16-bit words, given as one number in host order.
    #[inline]
    pub fn add_u32(self, words: u32) -> Sum {
        Sum(self.0 + u64::from(words.to_be()))
    }

    /// The sum folded to 16 bits in host order, not complemented: what a `CHECKSUM_PARTIAL` frame carries.
    #[inline]
    #[must_use]
    pub fn fold(self) -> u16 {
        let sum = (self.0 >> 32) + (self.0 & LOW);
        let sum = (sum >> 32) + (sum & LOW);
        let sum = (sum >> 16) + (sum & 0xffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        u16::from_be(sum as u16)
    }

    /// The complement of the folded sum, in host order: what goes into a checksum field. Over bytes whose field is already
    /// filled in it is 0 exactly if the checksum holds.
    #[inline]
    #[must_use]
    pub fn finish(self) -> u16 {
        !self.fold()
    }

    #[inline]
    fn short(self, bytes: &[u8]) -> Sum {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut sum = self.0;
        for word in words {
            let word = u64::from_ne_bytes(*word);
            sum += (word & LOW) + (word >> 32);
        }
        let rest = if let Some((four, rest)) = rest.split_first_chunk::<4>() {
            sum += u64::from(u32::from_ne_bytes(*four));
            rest
        } else {
            rest
        };
        let mut tail = [0; 4];
        for (place, byte) in tail.iter_mut().zip(rest) {
            *place = *byte;
        }
        Sum(sum + u64::from(u32::from_ne_bytes(tail)))
    }
}

/// The sum of whole strides, in lanes that do not depend on each other.
fn wide_sum(strides: &[[u8; STRIDE]]) -> u64 {
    const LANES: usize = STRIDE / 8;
    let mut low = [0u64; LANES];
    let mut high = [0u64; LANES];
    for stride in strides {
        let (words, _) = stride.as_chunks::<8>();
        for lane in 0..LANES {
            let word = u64::from_ne_bytes(words[lane]);
            low[lane] += word & LOW;
            high[lane] += word >> 32;
        }
    }
    low.iter().chain(&high).sum()
}

/// The sum of the IPv4 pseudo-header of TCP (RFC 9293 section 3.1) and UDP (RFC 768).
///
/// `length` is that of the transport header and its payload, in bytes.
#[inline]
pub fn pseudo_ipv4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, length: u16) -> Sum {
    let words = u64::from(u32::from_ne_bytes(source.octets()))
        + u64::from(u32::from_ne_bytes(destination.octets()))
        + u64::from(u16::from(protocol).to_be())
        + u64::from(length.to_be());
    Sum(words)
}

/// Whether a transport checksum holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChecksumState {
    /// The checksum holds.
    Valid,
    /// The field is the folded pseudo-header sum: the kernel left the rest to a device (`CHECKSUM_PARTIAL`), and between
    /// two ends of a veth pair no device computes it. One in 65,536 full checksums looks like this by chance.
    Partial,
    /// The bytes are not what their sender summed.
    Invalid,
}

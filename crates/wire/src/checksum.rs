//! The Internet checksum (RFC 1071; RFC 9293 section 3.1 for TCP's pseudo-header).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::Add;

/// Bytes that one round of the wide loop takes: enough independent lanes for vector registers.
const STRIDE: usize = 64;
/// Lanes of 32 bits, each of which takes two words of a stride: two vectors of baseline x86-64, and as many for carries.
const LANES: usize = STRIDE / 8;
/// Strides after which the lanes must be emptied: each has room for the sum of 65,536 words of 16 bits.
const STRIDES: usize = (1 << 16) / 2;
/// Bytes from which the lanes pay, emptying included.
const WIDE_FROM: usize = 4 * STRIDE;
const LOW: u64 = 0xffff_ffff;

/// A ones' complement sum of 16-bit words, under way.
///
/// Words are summed as they lie in memory and swapped once at the end (RFC 1071 section 2 B), many to an addition (2 C).
///
/// 64 bits at a time, and a carry out of them comes in again at the bottom: 2^64 is 1 in ones' complement, as 2^16 is.
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
        if bytes.len() < WIDE_FROM {
            return self.short(bytes);
        }
        let (wide, rest) = bytes.as_chunks::<STRIDE>();
        self.plus(wide_sum(wide)).short(rest)
    }

    /// Adds one 16-bit word, given in host order.
    #[inline]
    pub fn add_u16(self, word: u16) -> Sum {
        self.plus(u64::from(word.to_be()))
    }

    /// Adds two 16-bit words, given as one number in host order.
    #[inline]
    pub fn add_u32(self, words: u32) -> Sum {
        self.plus(u64::from(words.to_be()))
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
    const fn plus(self, words: u64) -> Sum {
        let (sum, carry) = self.0.overflowing_add(words);
        Sum(sum + carry as u64)
    }

    #[inline]
    fn short(self, bytes: &[u8]) -> Sum {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut sum = self;
        for word in words {
            sum = sum.plus(u64::from_ne_bytes(*word));
        }
        if rest.is_empty() {
            return sum;
        }
        let rest = if let Some((four, rest)) = rest.split_first_chunk::<4>() {
            sum = sum.plus(u64::from(u32::from_ne_bytes(*four)));
            rest
        } else {
            rest
        };
        let tail = match *rest {
            [] => return sum,
            [a] => [a, 0, 0, 0],
            [a, b] => [a, b, 0, 0],
            [a, b, c, ..] => [a, b, c, 0],
        };
        sum.plus(u64::from(u32::from_ne_bytes(tail)))
    }
}

impl Add for Sum {
    type Output = Sum;

    /// The sum of two pieces, of which the first is of even length.
    #[inline]
    fn add(self, other: Sum) -> Sum {
        self.plus(other.0)
    }
}

/// The sum of whole strides, in lanes that do not depend on each other.
#[inline(never)]
fn wide_sum(strides: &[[u8; STRIDE]]) -> u64 {
    let mut lanes = Lanes::default();
    let mut sum = 0;
    for strides in strides.chunks(STRIDES) {
        for stride in strides {
            lanes.add(stride);
        }
        sum += lanes.take();
    }
    sum
}

/// Copies `from` to `to`, and sums it on the way: less than a copy and a sum, as the bytes are loaded once.
///
/// # Panics
/// If the two are not of the same length.
#[inline]
pub fn copy_and_sum(from: &[u8], to: &mut [u8]) -> Sum {
    assert_eq!(from.len(), to.len(), "bytes are copied to a place of their length");
    if from.len() < WIDE_FROM {
        to.copy_from_slice(from);
        return Sum::new().short(from);
    }
    let (wide, rest) = from.as_chunks::<STRIDE>();
    let (wide_to, rest_to) = to.as_chunks_mut::<STRIDE>();
    rest_to.copy_from_slice(rest);
    Sum(copy_and_sum_wide(wide, wide_to)).short(rest)
}

#[inline(never)]
fn copy_and_sum_wide(from: &[[u8; STRIDE]], to: &mut [[u8; STRIDE]]) -> u64 {
    let mut lanes = Lanes::default();
    let mut sum = 0;
    for (from, to) in from.chunks(STRIDES).zip(to.chunks_mut(STRIDES)) {
        for (from, to) in from.iter().zip(to) {
            lanes.add(from);
            *to = *from;
        }
        sum += lanes.take();
    }
    sum
}

/// Bytes that are sent again and again, summed beforehand: a copy of any part of them is summed at the price of the copy.
#[derive(Clone, Debug, Default)]
pub struct Template {
    bytes: Vec<u8>,
    /// The sum of the first `STRIDE * index` bytes, without carries: there is room for those of 16 GiB.
    sums: Vec<u64>,
}

impl Template {
    /// Sums `bytes`.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Template {
        let mut sum = 0;
        let sums = core::iter::once(0).chain(bytes.as_chunks::<STRIDE>().0.chunks(1).map(|stride| {
            sum += wide_sum(stride);
            sum
        }));
        Template { sums: sums.collect(), bytes }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Copies the bytes from `offset` on to `to`, and returns their sum.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn copy_and_sum(&self, offset: usize, to: &mut [u8]) -> Sum {
        let part = &self.bytes[offset..offset + to.len()];
        to.copy_from_slice(part);
        if part.len() < 2 * STRIDE {
            return Sum::new().short(part);
        }
        match part {
            [first, rest @ ..] if offset % 2 == 1 => {
                // The words of the template lie across those of the copy (RFC 1071 section 2 B).
                let words = Sum(u64::from(u16::from_ne_bytes([0, *first]))) + self.sum_of(offset + 1, rest);
                Sum(u64::from(words.fold().to_be().swap_bytes()))
            }
            part => self.sum_of(offset, part),
        }
    }

    /// The sum of `part`, which stands at `offset`, an even number, and is longer than a stride.
    fn sum_of(&self, offset: usize, part: &[u8]) -> Sum {
        let (first, last) = (offset.div_ceil(STRIDE), (offset + part.len()) / STRIDE);
        let whole = Sum(self.sums[last] - self.sums[first]);
        let before = &part[..first * STRIDE - offset];
        whole.short(before).short(&part[last * STRIDE - offset..])
    }
}

/// Sums of 32-bit words, lane by lane: the words themselves, where a lane overflows, and their upper halves, where it has
/// room. With two additions and a shift to a vector this is less than any way of keeping the carries.
#[derive(Default)]
struct Lanes {
    words: [u32; LANES],
    upper: [u32; LANES],
}

impl Lanes {
    #[inline(always)]
    fn add(&mut self, stride: &[u8; STRIDE]) {
        let (words, _) = stride.as_chunks::<4>();
        for (at, word) in words.iter().enumerate() {
            let (lane, word) = (at % LANES, u32::from_ne_bytes(*word));
            self.words[lane] = self.words[lane].wrapping_add(word);
            self.upper[lane] = self.upper[lane].wrapping_add(word >> 16);
        }
    }

    /// The sum of all lanes, which are then empty.
    fn take(&mut self) -> u64 {
        let lanes = core::mem::take(self);
        let mut sum = 0;
        for (words, upper) in lanes.words.into_iter().zip(lanes.upper) {
            // What is not of the upper halves is of the lower ones, and 65,536 of those have room in 32 bits.
            let lower = words.wrapping_sub(upper << 16);
            sum += u64::from(lower) + u64::from(upper);
        }
        sum
    }
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for core::net::Ipv4Addr {}
    impl Sealed for core::net::Ipv6Addr {}
    impl Sealed for core::net::IpAddr {}
}

/// An address that a transport checksum covers: [`Ipv4Addr`], [`Ipv6Addr`], or [`IpAddr`] where both may come.
///
/// An IPv4-mapped IPv6 address (RFC 4291 section 2.5.5.2) sums as the IPv4 address in it, since `ffff` is zero in ones'
/// complement. So who keeps all addresses as [`Ipv6Addr`] need not ask for the family before a TCP checksum.
pub trait Address: Copy + sealed::Sealed {
    /// The sum of the pseudo-header of TCP and UDP over IPv4 (RFC 9293 section 3.1, RFC 768) or IPv6 (RFC 8200 section 8.1).
    ///
    /// `length` is that of the transport header and its payload, in bytes.
    fn pseudo_header(source: Self, destination: Self, protocol: u8, length: u16) -> Sum;

    /// Whether packets with this address are of IPv4.
    fn is_ipv4(self) -> bool;
}

impl Address for Ipv4Addr {
    #[inline]
    fn pseudo_header(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, length: u16) -> Sum {
        pseudo_ipv4(source, destination, protocol, length)
    }

    #[inline]
    fn is_ipv4(self) -> bool {
        true
    }
}

impl Address for Ipv6Addr {
    #[inline]
    fn pseudo_header(source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, length: u16) -> Sum {
        pseudo_ipv6(source, destination, protocol, u32::from(length))
    }

    #[inline]
    fn is_ipv4(self) -> bool {
        false
    }
}

impl Address for IpAddr {
    /// A packet between two families does not exist; it would be summed with the IPv4 address mapped.
    #[inline]
    fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, length: u16) -> Sum {
        address_sum(source)
            + address_sum(destination)
            + Sum(u64::from(u16::from(protocol).to_be()) + u64::from(length.to_be()))
    }

    #[inline]
    fn is_ipv4(self) -> bool {
        matches!(self, IpAddr::V4(_))
    }
}

#[inline]
fn address_sum(address: IpAddr) -> Sum {
    match address {
        IpAddr::V4(address) => Sum(u64::from(u32::from_ne_bytes(address.octets()))),
        IpAddr::V6(address) => Sum(sixteen(address)),
    }
}

#[inline]
fn sixteen(address: Ipv6Addr) -> u64 {
    let address = u128::from_ne_bytes(address.octets());
    let (low, high) = (address as u64, (address >> 64) as u64);
    (low & LOW) + (low >> 32) + (high & LOW) + (high >> 32)
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

/// The sum of the IPv6 pseudo-header of TCP, UDP and ICMPv6 (RFC 8200 section 8.1).
///
/// `length` is that of the upper-layer header and its payload, in bytes; `protocol` is the upper layer's number, which is
/// not the first next header where extension headers come before it.
#[inline]
pub fn pseudo_ipv6(source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, length: u32) -> Sum {
    let words = sixteen(source)
        + sixteen(destination)
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

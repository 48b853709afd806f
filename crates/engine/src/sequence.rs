//! Sequence numbers and their arithmetic, modulo 2^32 (RFC 9293 section 3.4).

use core::ops::{Add, AddAssign, Sub};

/// A sequence number, of either direction: neither a count of bytes nor a time. It becomes the header's number, and comes from it, where
/// segments are written and read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub(crate) struct Sequence(u32);

impl Sequence {
    pub(crate) const fn new(number: u32) -> Self {
        Self(number)
    }

    /// As a header has it.
    pub(crate) const fn number(self) -> u32 {
        self.0
    }

    /// Sequence numbers from `earlier` to this one, which is not before it; otherwise as if it had wrapped.
    #[inline]
    pub(crate) const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }
}

impl Add<u32> for Sequence {
    type Output = Self;
    #[inline]
    fn add(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }
}

impl AddAssign<u32> for Sequence {
    #[inline]
    fn add_assign(&mut self, count: u32) {
        *self = *self + count;
    }
}

impl Sub<u32> for Sequence {
    type Output = Self;
    #[inline]
    fn sub(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count))
    }
}

/// `a` is before `b`.
#[inline]
pub(crate) const fn before(a: Sequence, b: Sequence) -> bool {
    (a.since(b) as i32) < 0
}

/// `a` is `b` or before it.
#[inline]
pub(crate) const fn at_or_before(a: Sequence, b: Sequence) -> bool {
    (a.since(b) as i32) <= 0
}

/// The later of the two.
#[inline]
pub(crate) const fn later(a: Sequence, b: Sequence) -> Sequence {
    if before(a, b) { b } else { a }
}

/// The earlier of the two.
#[inline]
pub(crate) const fn earlier(a: Sequence, b: Sequence) -> Sequence {
    if before(a, b) { a } else { b }
}

/// Sequence numbers from `from` to `to`, or none if `to` is before `from`.
#[inline]
pub(crate) const fn distance(from: Sequence, to: Sequence) -> u32 {
    if before(to, from) { 0 } else { to.since(from) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_ordered_around_the_wrap() {
        for start in [0, 5, u32::MAX - 2, u32::MAX, 1 << 31] {
            let a = Sequence::new(start);
            let b = a + 10;
            assert!(before(a, b) && at_or_before(a, b) && at_or_before(a, a), "{start}");
            assert!(!before(b, a) && !before(a, a) && !at_or_before(b, a), "{start}");
            assert_eq!((later(a, b), earlier(a, b), later(b, a), earlier(b, a)), (b, a, b, a), "{start}");
            assert_eq!((distance(a, b), distance(b, a), b.since(a), b - 10), (10, 0, 10, a), "{start}");
            assert!(before(a, a + i32::MAX as u32), "{start}: half of all numbers come after one");
            assert!(before(a - i32::MAX as u32, a), "{start}: the other half come before it");
        }
    }
}

//! Sequence number arithmetic, modulo 2^32 (RFC 9293 section 3.4).

/// `a` is before `b`.
pub(crate) const fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// `a` is `b` or before it.
pub(crate) const fn at_or_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) <= 0
}

/// The later of the two.
pub(crate) const fn later(a: u32, b: u32) -> u32 {
    if before(a, b) { b } else { a }
}

/// `to - from`, or zero if `to` is before `from`.
pub(crate) const fn distance(from: u32, to: u32) -> u32 {
    if before(to, from) { 0 } else { to.wrapping_sub(from) }
}

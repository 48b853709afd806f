//! Address prefixes (RFC 4632 section 3.1, RFC 4291 section 2.3).

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

/// The addresses that share their first `len` bits with `address`. Written as `10.77.1.0/24`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    /// Any of the addresses: the bits after the first `len` do not matter.
    pub address: IpAddr,
    /// Bits. 0 to 32, or 128 with an IPv6 address.
    pub len: u8,
}

impl Prefix {
    /// Bits of an address of this family.
    pub(crate) const fn most_len(&self) -> u8 {
        if self.address.is_ipv4() { 32 } else { 128 }
    }

    /// Whether `address` is one of them.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let mask = u32::MAX.checked_shl(32_u32.saturating_sub(self.len.into())).unwrap_or(0);
                (own.to_bits() ^ other.to_bits()) & mask == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let mask = u128::MAX.checked_shl(128_u32.saturating_sub(self.len.into())).unwrap_or(0);
                (own.to_bits() ^ other.to_bits()) & mask == 0
            }
            _ => false,
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

/// A text is not a prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoPrefix;

impl fmt::Display for NoPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected an address and its length in bits, as 10.77.1.0/24 or 2001:db8::/64")
    }
}

impl core::error::Error for NoPrefix {}

impl FromStr for Prefix {
    type Err = NoPrefix;

    /// An address alone is a prefix of that address.
    fn from_str(text: &str) -> Result<Self, NoPrefix> {
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len.parse().map_err(|_| NoPrefix)?)),
            None => (text, None),
        };
        let address = address.parse().map_err(|_| NoPrefix)?;
        let whole = Self { address, len: 0 }.most_len();
        let len = len.unwrap_or(whole);
        if len <= whole { Ok(Self { address, len }) } else { Err(NoPrefix) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_read_and_holds_its_addresses() {
        for (text, inside, outside) in [
            ("10.77.1.0/24", "10.77.1.255", "10.77.2.0"),
            ("10.77.1.9", "10.77.1.9", "10.77.1.8"),
            ("0.0.0.0/0", "255.255.255.255", "::"),
            ("2001:db8::/64", "2001:db8::ffff:ffff:ffff:ffff", "2001:db8:0:1::"),
            ("fd00::1/128", "fd00::1", "fd00::"),
        ] {
            let prefix: Prefix = text.parse().unwrap();
            assert!(prefix.contains(inside.parse().unwrap()), "{inside} is in {prefix}");
            assert!(!prefix.contains(outside.parse().unwrap()), "{outside} is not in {prefix}");
        }
        for text in ["", "10.0.0.0/33", "10.0.0/8", "10.0.0.0/", "fd00::/129", "fd00::/-1", "/8"] {
            assert_eq!(text.parse::<Prefix>(), Err(NoPrefix), "{text}");
        }
    }
}

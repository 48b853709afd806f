//! Where a connection's two ends are, and the keyed hash that finds it.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// An address of either family in four words; IPv4's in its mapped form (RFC 4291 section 2.5.5.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Address([u32; 4]);

/// ::ffff:0:0/96
const MAPPED: [u32; 3] = [0, 0, 0xffff];

impl Address {
    #[inline]
    pub(crate) const fn v4(address: Ipv4Addr) -> Self {
        Self([MAPPED[0], MAPPED[1], MAPPED[2], address.to_bits()])
    }

    #[inline]
    pub(crate) const fn v6(address: Ipv6Addr) -> Self {
        let bits = address.to_bits();
        Self([(bits >> 96) as u32, (bits >> 64) as u32, (bits >> 32) as u32, bits as u32])
    }

    #[inline]
    pub(crate) const fn is_v4(self) -> bool {
        self.0[0] == MAPPED[0] && self.0[1] == MAPPED[1] && self.0[2] == MAPPED[2]
    }

    #[inline]
    pub(crate) const fn ip(self) -> IpAddr {
        if self.is_v4() {
            return IpAddr::V4(Ipv4Addr::from_bits(self.0[3]));
        }
        IpAddr::V6(self.mapped())
    }

    /// As an IPv6 address, whatever it is.
    #[inline]
    const fn mapped(self) -> Ipv6Addr {
        let [a, b, c, d] = self.0;
        Ipv6Addr::from_bits((a as u128) << 96 | (b as u128) << 64 | (c as u128) << 32 | d as u128)
    }
}

impl From<IpAddr> for Address {
    #[inline]
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::v4(address),
            IpAddr::V6(address) => Self::v6(address),
        }
    }
}

/// Two addresses of one family: local, remote.
pub(crate) enum Ends {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

/// A connection's two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tuple {
    pub(crate) local: Address,
    pub(crate) remote: Address,
    pub(crate) local_port: u16,
    pub(crate) remote_port: u16,
}

impl Tuple {
    pub(crate) fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        Self {
            local: local.ip().into(),
            remote: remote.ip().into(),
            local_port: local.port(),
            remote_port: remote.port(),
        }
    }

    pub(crate) const fn local(&self) -> SocketAddr {
        SocketAddr::new(self.local.ip(), self.local_port)
    }

    pub(crate) const fn remote(&self) -> SocketAddr {
        SocketAddr::new(self.remote.ip(), self.remote_port)
    }

    #[inline]
    pub(crate) const fn is_v4(&self) -> bool {
        self.remote.is_v4()
    }

    /// The addresses of the two ends. Both are of one family.
    #[inline]
    pub(crate) const fn ends(&self) -> Ends {
        if self.is_v4() {
            Ends::V4(Ipv4Addr::from_bits(self.local.0[3]), Ipv4Addr::from_bits(self.remote.0[3]))
        } else {
            Ends::V6(self.local.mapped(), self.remote.mapped())
        }
    }

    fn ports(&self) -> u32 {
        u32::from(self.local_port) << 16 | u32::from(self.remote_port)
    }
}

/// NH, the universal hash of UMAC (RFC 4418 section 5.1), over a tuple's words, then one multiplication to spread its bits.
///
/// Peers choose tuples: for two that they choose, the chance of a collision is 2^-32 over the choice of the key, and a
/// multiplication for each pair of words is all that it costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TupleHasher {
    key: [u32; 10],
    spread: u64,
}

impl TupleHasher {
    /// `key` gives as many words as it is asked for; they must look random to peers.
    pub(crate) fn new(mut key: impl FnMut() -> u64) -> Self {
        Self { key: core::array::from_fn(|_| key() as u32), spread: key() | 1 }
    }

    #[inline]
    pub(crate) fn hash(&self, tuple: &Tuple) -> u32 {
        let pair = |index: usize, a: u32, b: u32| {
            u64::from(a.wrapping_add(self.key[index])) * u64::from(b.wrapping_add(self.key[index + 1]))
        };
        let [l0, l1, l2, l3] = tuple.local.0;
        let [r0, r1, r2, r3] = tuple.remote.0;
        let mut sum = pair(0, l3, r3).wrapping_add(pair(2, tuple.ports(), 0));
        if !tuple.is_v4() {
            sum =
                sum.wrapping_add(pair(4, l0, r0)).wrapping_add(pair(6, l1, r1)).wrapping_add(pair(8, l2, r2));
        }
        let spread = u128::from(sum) * u128::from(self.spread);
        ((spread >> 64) as u64 ^ spread as u64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_come_back() {
        for text in ["10.1.2.3", "255.255.255.255", "::1", "2001:db8::7:8", "fe80::1"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(Address::from(address).ip(), address);
            assert_eq!(Address::from(address).is_v4(), address.is_ipv4());
        }
    }

    /// Tuples in sequence, as a generator makes them, fill a table's slots as evenly as random numbers would.
    #[test]
    fn tuples_in_sequence_spread() {
        let mut state = 7_u64;
        let hasher = TupleHasher::new(|| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            state ^ state >> 29
        });
        let local: IpAddr = "10.0.0.1".parse().unwrap();
        for family in ["10.0.0.2", "2001:db8::2"] {
            let remote: IpAddr = family.parse().unwrap();
            let mut slots = vec![0_u32; 1 << 14];
            for port in 0..1_u32 << 15 {
                let tuple = Tuple::new(
                    SocketAddr::new(local, 80 + (port >> 14) as u16),
                    SocketAddr::new(remote, port as u16),
                );
                slots[hasher.hash(&tuple) as usize & 0x3fff] += 1;
            }
            // Two a slot in the mean; Poisson's tail past 14 is 2^-27 a slot.
            assert!(slots.iter().all(|&count| count < 15), "{:?}", slots.iter().max());
            let empty = slots.iter().filter(|&&count| count == 0).count();
            assert!((1_700..2_800).contains(&empty), "e^-2 of the slots stay empty: {empty} of 16384");
        }
    }
}

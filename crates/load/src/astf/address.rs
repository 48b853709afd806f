//! The addresses that flows come from and go to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use overfly_engine::Prefix;

use super::form::{Distribution, Pool};
use crate::random::SplitMix;

/// A range of addresses of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: IpAddr,
    /// At least 1.
    pub(crate) count: u64,
}

impl Range {
    /// From `first` to `last`; those of more than 2^63 addresses have their first 2^63.
    ///
    /// # Errors
    /// They are of two families, or the wrong way round.
    pub(crate) fn new(first: IpAddr, last: IpAddr) -> Result<Range, String> {
        let count = match (first, last) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                u128::from(last.to_bits()).checked_sub(first.to_bits().into())
            }
            (IpAddr::V6(first), IpAddr::V6(last)) => last.to_bits().checked_sub(first.to_bits()),
            _ => None,
        };
        let count = count.ok_or_else(|| format!("{first} to {last} is no range of addresses"))?;
        Ok(Range { first, count: count.min((1 << 63) - 1) as u64 + 1 })
    }

    /// The pool's, as IPv6 addresses behind `msb` if there is one and the pool is IPv4's.
    pub(crate) fn of(pool: &Pool, msb: Option<Ipv6Addr>) -> Result<Range, String> {
        let range = Range::new(pool.first, pool.last)?;
        Ok(match (range.first, msb) {
            (IpAddr::V4(first), Some(msb)) => {
                let first = unicast(msb).to_bits() & !u128::from(u32::MAX) | u128::from(first.to_bits());
                Range { first: Ipv6Addr::from_bits(first).into(), ..range }
            }
            _ => range,
        })
    }

    /// One of them, counted from 0.
    #[inline]
    pub(crate) fn at(&self, index: u64) -> IpAddr {
        match self.first {
            IpAddr::V4(first) => Ipv4Addr::from_bits(first.to_bits().wrapping_add(index as u32)).into(),
            IpAddr::V6(first) => Ipv6Addr::from_bits(first.to_bits().wrapping_add(index.into())).into(),
        }
    }

    /// Where it stands in the range.
    #[inline]
    pub(crate) fn position(&self, address: IpAddr) -> Option<u64> {
        let index = match (address, self.first) {
            (IpAddr::V4(address), IpAddr::V4(first)) => {
                u64::from(address.to_bits()).checked_sub(first.to_bits().into())?
            }
            (IpAddr::V6(address), IpAddr::V6(first)) => {
                u64::try_from(address.to_bits().checked_sub(first.to_bits())?).ok()?
            }
            _ => return None,
        };
        (index < self.count).then_some(index)
    }

    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.position(address).is_some()
    }

    /// Whether an address is in both.
    pub(crate) fn overlaps(&self, other: &Range) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }

    /// The fewest prefixes that hold exactly these addresses.
    pub(crate) fn prefixes(&self) -> Vec<Prefix> {
        let bits = if self.first.is_ipv4() { 32 } else { 128 };
        let (mut next, mut left) = (to_bits(self.first), u128::from(self.count));
        let mut prefixes = Vec::new();
        while left > 0 {
            let aligned = next.trailing_zeros().min(bits);
            let host_bits = aligned.min(127 - left.leading_zeros());
            let address = match self.first {
                IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from_bits(next as u32)),
                IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(next)),
            };
            prefixes.push(Prefix { address, len: (bits - host_bits) as u8 });
            next = next.wrapping_add(1 << host_bits);
            left -= 1 << host_bits;
        }
        prefixes
    }
}

/// Published profiles have ff02:: and ff03:: for prefixes, which are groups' (RFC 4291 section 2.7) and can have no connections:
/// they become fd02:: and fd03::, of RFC 4193.
fn unicast(msb: Ipv6Addr) -> Ipv6Addr {
    if msb.is_multicast() { Ipv6Addr::from_bits(msb.to_bits() & !(2 << 120)) } else { msb }
}

fn to_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The prefixes of several ranges, without those that lie in others.
pub(crate) fn prefixes_of(ranges: impl IntoIterator<Item = Range>) -> Vec<Prefix> {
    let mut all: Vec<Prefix> = ranges.into_iter().flat_map(|range| range.prefixes()).collect();
    all.sort_by_key(|prefix| (prefix.len, to_bits(prefix.address)));
    let mut kept: Vec<Prefix> = Vec::new();
    for prefix in all {
        if !kept.iter().any(|other| other.contains(prefix.address)) {
            kept.push(prefix);
        }
    }
    kept
}

/// Every `stride`-th address of a range, from `offset` on: one thread's share.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    range: Range,
    distribution: Distribution,
    offset: u64,
    stride: u64,
    count: u64,
    next: u64,
}

impl Share {
    /// The share of thread `index` of `threads`; all of a range that has fewer addresses than there are threads.
    pub(crate) fn new(range: Range, distribution: Distribution, index: usize, threads: usize) -> Share {
        let (index, threads) = (index as u64, threads as u64);
        if range.count < threads {
            return Share {
                range,
                distribution,
                offset: 0,
                stride: 1,
                count: range.count,
                next: index % range.count,
            };
        }
        let count = (range.count - index).div_ceil(threads);
        Share { range, distribution, offset: index, stride: threads, count, next: 0 }
    }

    /// As it is, beginning at the address in that place.
    pub(crate) fn from(self, position: u64) -> Share {
        Share { next: position % self.count, ..self }
    }

    /// The next address, and its position in the share.
    #[inline]
    pub(crate) fn take(&mut self, random: &mut SplitMix) -> (u64, IpAddr) {
        let position = match self.distribution {
            Distribution::Seq => {
                let position = self.next;
                self.next = if position + 1 < self.count { position + 1 } else { 0 };
                position
            }
            Distribution::Rand => random.below(self.count),
        };
        (position, self.range.at(self.offset + position * self.stride))
    }
}

/// Local ports of client addresses, each the one used longest ago.
#[derive(Debug, Clone)]
pub(crate) struct LocalPorts {
    first: u16,
    last: u16,
    stride: u16,
    next: Vec<u16>,
}

/// Addresses whose ports have a counter of their own; more share them.
const COUNTERS_MOST: u64 = 1 << 16;

impl LocalPorts {
    /// Those from `first` to `last`, every `stride`-th, of `addresses` addresses.
    pub(crate) fn new(first: u16, last: u16, stride: u16, addresses: u64) -> LocalPorts {
        LocalPorts { first, last, stride, next: vec![first; addresses.clamp(1, COUNTERS_MOST) as usize] }
    }

    /// The next port of the address at `position`.
    #[inline]
    pub(crate) fn take(&mut self, position: u64) -> u16 {
        let slot = (position % self.next.len() as u64) as usize;
        let port = self.next[slot];
        self.next[slot] = match port.checked_add(self.stride) {
            Some(next) if next <= self.last => next,
            _ => self.first,
        };
        port
    }
}

/// Where a flow goes from and to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: &str, last: &str) -> Range {
        Range::new(first.parse().unwrap(), last.parse().unwrap()).unwrap()
    }

    #[test]
    fn a_range_is_exactly_its_prefixes() {
        for (first, last) in [
            ("16.0.0.1", "16.0.0.200"),
            ("16.0.0.0", "16.0.255.255"),
            ("10.0.0.7", "10.0.0.7"),
            ("0.0.0.0", "255.255.255.255"),
            ("fd00::3", "fd00::20"),
        ] {
            let range = range(first, last);
            let prefixes = range.prefixes();
            assert!(prefixes.len() <= 14, "{prefixes:?}");
            for index in [0, 1, range.count / 2, range.count - 1] {
                let address = range.at(index % range.count);
                assert_eq!(prefixes.iter().filter(|prefix| prefix.contains(address)).count(), 1, "{address}");
            }
            if range.count < 1 << 20 {
                assert!(
                    !prefixes.iter().any(|prefix| prefix.contains(range.at(range.count))),
                    "{prefixes:?}"
                );
            }
        }
        let nested = prefixes_of([range("16.0.0.0", "16.0.0.255"), range("16.0.0.0", "16.0.255.255")]);
        assert_eq!(nested.len(), 1);
    }

    #[test]
    fn shares_of_threads_are_the_whole_once() {
        let mut random = SplitMix::new(1);
        for (count, threads) in [(256_u32, 1), (256, 2), (7, 3), (2, 4)] {
            let range = range("16.0.0.0", &Ipv4Addr::from_bits(0x1000_0000 + count - 1).to_string());
            let mut seen = std::collections::BTreeMap::new();
            for index in 0..threads {
                let mut share = Share::new(range, Distribution::Seq, index, threads);
                for _ in 0..share.count {
                    *seen.entry(share.take(&mut random).1).or_insert(0) += 1;
                }
            }
            assert_eq!(seen.len(), count as usize);
            assert!(count < threads as u32 || seen.values().all(|times| *times == 1), "{seen:?}");
        }
    }

    #[test]
    fn ports_go_round_by_address() {
        let mut ports = LocalPorts::new(1024, 1030, 2, 2);
        let taken: Vec<u16> = (0..5).map(|_| ports.take(0)).collect();
        assert_eq!(taken, [1024, 1026, 1028, 1030, 1024]);
        assert_eq!(ports.take(1), 1024);
        let mut all = LocalPorts::new(65_534, 65_535, 1, 1);
        assert_eq!([all.take(0), all.take(0), all.take(0)], [65_534, 65_535, 65_534]);
    }

    #[test]
    fn ipv4_pools_become_ipv6_addresses() {
        let pool = Pool {
            first: "16.0.0.1".parse().unwrap(),
            last: "16.0.0.9".parse().unwrap(),
            distribution: Distribution::Seq,
        };
        let range = Range::of(&pool, Some("fd77::".parse().unwrap())).unwrap();
        assert_eq!(range.at(8), "fd77::1000:9".parse::<IpAddr>().unwrap());
        assert_eq!(range.position(range.at(3)), Some(3));
        let group = Range::of(&pool, Some("ff02::".parse().unwrap())).unwrap();
        assert_eq!(group.at(0), "fd02::1000:1".parse::<IpAddr>().unwrap());
        assert!(!range.contains("16.0.0.1".parse().unwrap()) && !range.contains(range.at(9)));
    }
}

//! Sets of addresses of one family, as sorted ranges.

use std::net::IpAddr;

/// An address as a number of its family: 32 or 128 bits.
pub(crate) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// A set of numbers: ranges with both ends in, in order, with gaps between them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Span(Vec<(u128, u128)>);

impl Span {
    pub(crate) const fn none() -> Span {
        Span(Vec::new())
    }

    /// All numbers of that many bits (32 or 128).
    pub(crate) fn all(bits: u32) -> Span {
        Span(vec![(0, last(bits))])
    }

    pub(crate) fn one(number: u128) -> Span {
        Span(vec![(number, number)])
    }

    /// Ranges in any order, which may overlap; those that end before they begin are none.
    pub(crate) fn of(mut ranges: Vec<(u128, u128)>) -> Span {
        ranges.retain(|(first, last)| first <= last);
        ranges.sort_unstable();
        let mut joined: Vec<(u128, u128)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match joined.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => joined.push((first, last)),
            }
        }
        Span(joined)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn is_all(&self, bits: u32) -> bool {
        self.0 == [(0, last(bits))]
    }

    pub(crate) fn contains(&self, number: u128) -> bool {
        let index = self.0.partition_point(|range| range.1 < number);
        self.0.get(index).is_some_and(|range| range.0 <= number)
    }

    pub(crate) fn union(&self, other: &Span) -> Span {
        if self.is_empty() {
            return other.clone();
        }
        if other.is_empty() {
            return self.clone();
        }
        Span::of(self.0.iter().chain(&other.0).copied().collect())
    }

    pub(crate) fn intersection(&self, other: &Span) -> Span {
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut common = Vec::new();
        while let (Some(&&(first_a, last_a)), Some(&&(first_b, last_b))) = (a.peek(), b.peek()) {
            let (first, last) = (first_a.max(first_b), last_a.min(last_b));
            if first <= last {
                common.push((first, last));
            }
            if last_a < last_b {
                a.next();
            } else {
                b.next();
            }
        }
        Span(common)
    }

    /// What is in this one and not in the other.
    pub(crate) fn without(&self, other: &Span) -> Span {
        let mut rest = Vec::new();
        let mut begin = 0;
        for &(first, last) in &self.0 {
            let mut next = Some(first);
            begin += other.0[begin..].partition_point(|range| range.1 < first);
            for &(out_first, out_last) in other.0[begin..].iter().take_while(|range| range.0 <= last) {
                let Some(from) = next else { break };
                if from < out_first {
                    rest.push((from, out_first - 1));
                }
                next = out_last.checked_add(1);
            }
            if let Some(from) = next.filter(|from| *from <= last) {
                rest.push((from, last));
            }
        }
        Span(rest)
    }

    pub(crate) fn ranges(&self) -> &[(u128, u128)] {
        &self.0
    }

    /// The same set as prefixes: a number and how many of its `bits` count.
    pub(crate) fn prefixes(&self, bits: u32) -> impl Iterator<Item = (u128, u32)> {
        self.0.iter().flat_map(move |&(first, end)| {
            let mut next = Some(first);
            std::iter::from_fn(move || {
                let from = next.filter(|from| *from <= end)?;
                let mut free = from.trailing_zeros().min(bits);
                while free > 0 && last(free) > end - from {
                    free -= 1;
                }
                next = from.checked_add(last(free)).and_then(|end| end.checked_add(1));
                Some((from, bits - free))
            })
        })
    }
}

/// The greatest number of that many bits.
pub(crate) fn last(bits: u32) -> u128 {
    u128::MAX.checked_shr(128 - bits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_a_byte_are_as_those_of_its_256_numbers() {
        let mut numbers = overfly_testing::Random(1);
        let mut random = |below: u64| numbers.below(below);
        for _ in 0..2000 {
            let mut draw = || {
                let count = random(5);
                Span::of((0..count).map(|_| (u128::from(random(256)), u128::from(random(256)))).collect())
            };
            let (a, b) = (draw(), draw());
            let (union, common, rest) = (a.union(&b), a.intersection(&b), a.without(&b));
            for number in 0..256 {
                let (in_a, in_b) = (a.contains(number), b.contains(number));
                assert_eq!(union.contains(number), in_a || in_b);
                assert_eq!(common.contains(number), in_a && in_b);
                assert_eq!(rest.contains(number), in_a && !in_b);
            }
            let prefixes: Vec<_> = union.prefixes(8).collect();
            for number in 0..256 {
                let covering =
                    prefixes.iter().filter(|(at, length)| *length == 0 || (number ^ at) >> (8 - length) == 0);
                assert_eq!(covering.count(), usize::from(union.contains(number)), "{union:?} {prefixes:?}");
            }
        }
    }

    #[test]
    fn the_ends_of_the_space_are_in_it() {
        for bits in [32, 128] {
            assert!(Span::all(bits).is_all(bits));
            assert_eq!(Span::all(bits).prefixes(bits).collect::<Vec<_>>(), [(0, 0)]);
            assert!(Span::all(bits).without(&Span::all(bits)).is_empty());
            let end = Span::one(last(bits));
            assert_eq!(Span::all(bits).without(&end).union(&end), Span::all(bits));
            assert_eq!(end.prefixes(bits).collect::<Vec<_>>(), [(last(bits), bits)]);
        }
    }
}

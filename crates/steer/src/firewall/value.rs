//! What is known of a packet's bytes while its peer's address is not, and what a condition on them means for the peers.

use super::span::{Span, last};

/// One byte of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Byte {
    /// Those bits of the value that are set in `known`.
    Bits { known: u8, value: u8 },
    /// A byte of the peer's address, the first being number 0: `address & mask ^ flip`.
    Peer { index: usize, mask: u8, flip: u8 },
}

impl Byte {
    pub(crate) const UNKNOWN: Byte = Byte::Bits { known: 0, value: 0 };

    pub(crate) const fn is(value: u8) -> Byte {
        Byte::Bits { known: 0xff, value }
    }

    pub(crate) const fn peer(index: usize) -> Byte {
        Byte::Peer { index, mask: 0xff, flip: 0 }
    }

    /// `self & and ^ xor`.
    pub(crate) fn masked(self, and: u8, xor: u8) -> Byte {
        match self {
            Byte::Bits { known, value } => Byte::Bits { known: known | !and, value: value & and ^ xor },
            Byte::Peer { index, mask, flip } => {
                Byte::Peer { index, mask: mask & and, flip: flip & and ^ xor }
            }
        }
    }

    fn known(self) -> Option<u8> {
        match self {
            Byte::Bits { known: 0xff, value } => Some(value),
            Byte::Peer { mask: 0, flip, .. } => Some(flip),
            _ => None,
        }
    }
}

/// For which peers a condition is true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Yes,
    No,
    Maybe,
    /// True for the ones, perhaps for the others, and for nobody else.
    Where {
        yes: Span,
        maybe: Span,
    },
}

impl Outcome {
    pub(crate) fn of(truth: bool) -> Outcome {
        if truth { Outcome::Yes } else { Outcome::No }
    }

    fn parts(self, bits: u32) -> (Span, Span) {
        match self {
            Outcome::Yes => (Span::all(bits), Span::none()),
            Outcome::No => (Span::none(), Span::none()),
            Outcome::Maybe => (Span::none(), Span::all(bits)),
            Outcome::Where { yes, maybe } => (yes, maybe),
        }
    }

    pub(crate) fn not(self, bits: u32) -> Outcome {
        match self {
            Outcome::Yes => Outcome::No,
            Outcome::No => Outcome::Yes,
            Outcome::Maybe => Outcome::Maybe,
            Outcome::Where { yes, maybe } => {
                Outcome::Where { yes: Span::all(bits).without(&yes.union(&maybe)), maybe }
            }
        }
    }

    pub(crate) fn and(self, other: Outcome, bits: u32) -> Outcome {
        match (self, other) {
            (Outcome::No, _) | (_, Outcome::No) => Outcome::No,
            (Outcome::Yes, other) | (other, Outcome::Yes) => other,
            (Outcome::Maybe, Outcome::Maybe) => Outcome::Maybe,
            (one, other) => {
                let ((yes, maybe), (its_yes, its_maybe)) = (one.parts(bits), other.parts(bits));
                let both = yes.intersection(&its_yes);
                let possible = yes.union(&maybe).intersection(&its_yes.union(&its_maybe));
                Outcome::Where { maybe: possible.without(&both), yes: both }
            }
        }
    }

    pub(crate) fn or(self, other: Outcome, bits: u32) -> Outcome {
        self.not(bits).and(other.not(bits), bits).not(bits)
    }

    /// Of those who are here: who goes on, and who perhaps does not.
    pub(crate) fn split(&self, here: &Span) -> (Span, Span) {
        match self {
            Outcome::Yes => (here.clone(), Span::none()),
            Outcome::No => (Span::none(), here.clone()),
            Outcome::Maybe => (here.clone(), here.clone()),
            Outcome::Where { yes, maybe } => (here.intersection(&yes.union(maybe)), here.without(yes)),
        }
    }

    /// Whether somebody among those who are here cannot be told.
    pub(crate) fn is_doubtful(&self, here: &Span) -> bool {
        match self {
            Outcome::Yes | Outcome::No => false,
            Outcome::Maybe => !here.is_empty(),
            Outcome::Where { maybe, .. } => !here.intersection(maybe).is_empty(),
        }
    }
}

/// Bytes and what is compared with them, in a space of addresses of `bits` bits.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a> {
    pub(crate) bytes: &'a [Byte],
    pub(crate) bits: u32,
}

/// Addresses with holes in their mask are told apart up to that many pieces.
const HOLES_MAX: u32 = 10;

impl Bytes<'_> {
    pub(crate) fn equals(self, value: &[u8]) -> Outcome {
        let (mut mask, mut wanted, mut doubt) = (0_u128, 0_u128, false);
        for (&byte, &want) in self.bytes.iter().zip(value) {
            match byte {
                Byte::Bits { known, value } => {
                    if (value ^ want) & known != 0 {
                        return Outcome::No;
                    }
                    doubt |= known != 0xff;
                }
                Byte::Peer { index, mask: of, flip } => {
                    let want = want ^ flip;
                    let Some(shift) = (self.bits as usize / 8).checked_sub(index + 1) else {
                        return Outcome::Maybe;
                    };
                    let (of_all, want_all) = (u128::from(of) << (8 * shift), u128::from(want) << (8 * shift));
                    if want & !of != 0 || (wanted ^ want_all) & mask & of_all != 0 {
                        return Outcome::No;
                    }
                    mask |= of_all;
                    wanted |= want_all;
                }
            }
        }
        doubt |= self.bytes.len() < value.len();
        match (mask, doubt) {
            (0, true) => Outcome::Maybe,
            (0, false) => Outcome::Yes,
            _ => {
                let (span, exact) = self.with_bits(mask, wanted);
                if exact && !doubt {
                    Outcome::Where { yes: span, maybe: Span::none() }
                } else {
                    Outcome::Where { yes: Span::none(), maybe: span }
                }
            }
        }
    }

    /// Addresses whose bits under the mask are these, or somewhat more of them.
    fn with_bits(self, mask: u128, wanted: u128) -> (Span, bool) {
        let all = last(self.bits);
        let low = mask.trailing_zeros();
        let holes = !mask & all & !last(low);
        let exact = holes.count_ones() <= HOLES_MAX;
        // Otherwise those below the first hole are taken for free.
        let low = if exact { low } else { 128 - holes.leading_zeros() };
        let tail = last(low);
        let holes = holes & !tail;
        let mut ranges = Vec::new();
        let mut chosen = 0_u128;
        loop {
            let first = (wanted & !tail) | chosen;
            ranges.push((first, first | tail));
            // The next way to fill the holes.
            chosen = (chosen | !holes).wrapping_add(1) & holes;
            if chosen == 0 {
                return (Span::of(ranges), exact);
            }
        }
    }

    /// Whether they are less than the value, or (inclusive) equal to it, the first byte counting most.
    pub(crate) fn below(self, value: &[u8], inclusive: bool) -> Outcome {
        for (index, &want) in value.iter().enumerate() {
            let Some(byte) = self.bytes.get(index) else { return Outcome::Maybe };
            match byte.known() {
                Some(known) if known == want => {}
                Some(known) => return Outcome::of(known < want),
                None => {
                    let rest = Bytes { bytes: &self.bytes[index..], ..self };
                    let Some(limit) = rest.address_part(&value[index..]) else { return Outcome::Maybe };
                    let end = if inclusive { Some(limit.1) } else { limit.0.checked_sub(1) };
                    let yes = Span::of(end.map(|end| (0, end)).into_iter().collect());
                    return Outcome::Where { yes, maybe: Span::none() };
                }
            }
        }
        Outcome::of(inclusive)
    }

    /// If the bytes are the first of the peer's address, as they are: the first and the last address that begins with the value.
    fn address_part(self, value: &[u8]) -> Option<(u128, u128)> {
        let whole = self.bits as usize / 8;
        let plain = |(index, byte): (usize, &Byte)| *byte == Byte::peer(index);
        let is_part = self.bytes.len() >= value.len()
            && (1..=whole).contains(&value.len())
            && self.bytes[..value.len()].iter().enumerate().all(plain);
        let free = 8 * (whole.checked_sub(value.len())?) as u32;
        let first = value.iter().fold(0_u128, |sum, &byte| sum << 8 | u128::from(byte)).checked_shl(free)?;
        is_part.then(|| (first, first | last(free)))
    }

    pub(crate) fn between(self, low: &[u8], high: &[u8]) -> Outcome {
        if low == high {
            return self.equals(low);
        }
        self.below(low, false).not(self.bits).and(self.below(high, true), self.bits)
    }

    /// As [`Bytes::between`], if it is one range of addresses.
    pub(crate) fn range(self, low: &[u8], high: &[u8]) -> Option<(u128, u128)> {
        Some((self.address_part(low)?.0, self.address_part(high)?.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(bits: u32) -> Vec<Byte> {
        (0..bits as usize / 8).map(Byte::peer).collect()
    }

    fn truth(outcome: Outcome, number: u128) -> Option<bool> {
        let (yes, maybe) = outcome.parts(32);
        if yes.contains(number) {
            Some(true)
        } else if maybe.contains(number) {
            None
        } else {
            Some(false)
        }
    }

    #[test]
    fn conditions_on_an_address_are_true_where_they_are_for_the_address_itself() {
        let mut numbers = overfly_testing::Random(1);
        let mut random = move || numbers.next() as u32;
        for round in 0..20_000 {
            let (and, xor) = match round % 4 {
                0 => (u32::MAX, 0),
                1 => (u32::MAX << (random() % 32), 0),
                2 => (random() | 0xff00_0000, random()),
                _ => (!(1 << (random() % 32)), 1 << (random() % 32)),
            };
            let address = random();
            let result = address & and ^ xor;
            let value = if random() % 2 == 0 { result } else { random() };
            let length = 1 + (random() % 4) as usize;
            let masked: Vec<Byte> = (peer(32).into_iter())
                .zip(and.to_be_bytes().into_iter().zip(xor.to_be_bytes()))
                .map(|(byte, (and, xor))| byte.masked(and, xor))
                .collect();
            let bytes = Bytes { bytes: &masked, bits: 32 };
            let (value, result) = (&value.to_be_bytes()[..length], &result.to_be_bytes()[..length]);
            let higher = &random().to_be_bytes()[..length];
            let claims = [
                (bytes.equals(value), result == value),
                (bytes.below(value, false), result < value),
                (bytes.below(value, true), result <= value),
                (bytes.between(value, higher), value <= result && result <= higher),
            ];
            for (index, (outcome, expected)) in claims.into_iter().enumerate() {
                let exact = round % 4 == 0 || index == 0 && round % 4 != 2;
                match truth(outcome.clone(), address.into()) {
                    Some(truth) => {
                        assert_eq!(truth, expected, "{index} {address:x} {and:x} {xor:x} {outcome:?}");
                    }
                    None => assert!(!exact, "{index} {address:x} {and:x} {xor:x} {value:?} {outcome:?}"),
                }
            }
        }
    }

    #[test]
    fn what_is_unknown_is_doubted_and_what_is_known_decides() {
        let half = [Byte::is(1), Byte::Bits { known: 0x0f, value: 3 }];
        let bytes = Bytes { bytes: &half, bits: 32 };
        assert_eq!(bytes.equals(&[1, 0x13]), Outcome::Maybe);
        assert_eq!(bytes.equals(&[1, 0x14]), Outcome::No);
        assert_eq!(bytes.equals(&[2, 0x13]), Outcome::No);
        assert_eq!(bytes.below(&[2, 0], false), Outcome::Yes);
        assert_eq!(bytes.below(&[1, 0], false), Outcome::Maybe);
        assert_eq!(bytes.equals(&[1, 0x13, 0]), Outcome::Maybe);
    }
}

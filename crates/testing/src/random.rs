//! Random numbers that a seed determines.

/// SplitMix64 (Steele, Lea, Flood, 2014): enough for tests, and a seed is one number.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// From the seed of this run: `OVERFLY_SEED`, or else 1.
    #[must_use]
    pub fn seeded() -> Self {
        Self(seed(1))
    }

    /// The next number.
    #[allow(clippy::should_implement_trait, reason = "it is no iterator: it has no end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// An index of something that is so long.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// One of these.
    ///
    /// # Panics
    /// If there are none.
    pub fn one_of<T: Copy>(&mut self, these: &[T]) -> T {
        these[self.index(these.len())]
    }

    /// True in `per_mille` of a thousand cases.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// So many bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend(self.next().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }
}

/// The seed of this run: `OVERFLY_SEED`, or else `otherwise`. It is printed, so that a run that failed can be repeated.
///
/// # Panics
/// If `OVERFLY_SEED` is no number.
#[must_use]
pub fn seed(otherwise: u64) -> u64 {
    let given = std::env::var("OVERFLY_SEED").ok();
    let seed = given.map_or(otherwise, |seed| seed.parse().expect("OVERFLY_SEED is a number"));
    println!("OVERFLY_SEED={seed}");
    seed
}

/// [`seed`], of which each process has another one where nobody gave it.
#[must_use]
pub fn fresh_seed() -> u64 {
    seed(u64::from(std::process::id()) << 20 | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_published_generator() {
        // https://prng.di.unimi.it/splitmix64.c with the state 1234567.
        let mut random = Random(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn bounds_are_kept() {
        let mut random = Random(1);
        assert!((0..1000).all(|_| random.below(7) < 7));
        assert_eq!((random.below(0), random.index(1)), (0, 0));
        assert!(!random.chance(0) && random.chance(1000));
        assert_eq!(random.bytes(13).len(), 13);
        let drawn: std::collections::BTreeSet<u8> = (0..100).map(|_| random.one_of(&[1, 2, 3])).collect();
        assert_eq!(drawn.len(), 3);
    }
}

//! Random numbers that a seed determines.

use std::f64::consts::LN_2;

/// SplitMix64 (Steele, Lea, Flood, 2014).
#[derive(Debug, Clone)]
pub(crate) struct SplitMix(u64);

impl SplitMix {
    pub(crate) fn new(seed: u64) -> SplitMix {
        SplitMix(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Exponentially distributed with mean 1: the distance to the next arrival of a Poisson process.
    pub(crate) fn exponential(&mut self) -> f64 {
        // In (0, 1]: 53 bits, never 0.
        let uniform = ((self.next() >> 11) + 1) as f64 * (1.0 / (1u64 << 53) as f64);
        -uniform.log2() * LN_2
    }
}

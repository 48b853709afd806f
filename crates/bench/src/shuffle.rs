//! A random order that a seed repeats.

/// Fisher and Yates, with SplitMix64 (Steele, Lea, Flood 2014) for numbers.
pub(crate) fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    for last in (1..items.len()).rev() {
        let chosen = (next() % (last as u64 + 1)) as usize;
        items.swap(last, chosen);
    }
}

#[cfg(test)]
mod tests {
    use super::shuffle;

    #[test]
    fn a_seed_determines_the_order_and_loses_nothing() {
        let shuffled = |seed| {
            let mut items: Vec<u32> = (0..42).collect();
            shuffle(&mut items, seed);
            items
        };
        assert_eq!(shuffled(7), shuffled(7));
        assert_ne!(shuffled(7), shuffled(8));
        let mut sorted = shuffled(7);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..42).collect::<Vec<_>>());
    }
}

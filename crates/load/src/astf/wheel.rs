//! Delays of programs: a hierarchical wheel of buckets. Only flows that wait for a time stand in it.

/// log2 of a tick in µs: a delay ends so late at most.
const TICK_SHIFT: u32 = 4;
const SLOT_BITS: u32 = 8;
const SLOTS: usize = 1 << SLOT_BITS;
/// Four levels reach 19 hours far; what is further away is looked at again then.
const LEVELS: usize = 4;

/// Entries that a bucket has room for when it is empty.
const CAPACITY_KEPT: usize = 4096;

/// Whom a time is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    /// When, in ticks.
    at: u64,
    pub(crate) flow: u32,
    /// Of the flow: another flow may stand in its place by then.
    pub(crate) generation: u32,
}

impl Entry {
    /// For nobody.
    pub(crate) const NONE: Entry = Entry { at: 0, flow: 0, generation: 0 };
}

/// The wheel.
#[derive(Debug)]
pub(crate) struct Wheel {
    slots: Vec<Vec<Entry>>,
    occupied: [[u64; SLOTS / 64]; LEVELS],
    /// What is beyond the next turn of the highest level.
    far: Vec<Entry>,
    /// All before this tick have been taken.
    now: u64,
    entries: usize,
}

impl Wheel {
    pub(crate) fn new(now_us: u64) -> Wheel {
        Wheel {
            slots: vec![Vec::new(); SLOTS * LEVELS],
            occupied: [[0; SLOTS / 64]; LEVELS],
            far: Vec::new(),
            now: now_us >> TICK_SHIFT,
            entries: 0,
        }
    }

    /// So many wait.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries
    }

    /// Bytes of memory that it takes.
    pub(crate) fn memory(&self) -> usize {
        let entries = self.far.capacity() + self.slots.iter().map(Vec::capacity).sum::<usize>();
        entries * size_of::<Entry>() + self.slots.len() * size_of::<Vec<Entry>>()
    }

    /// Wakes `flow` at `at_us`, and never earlier.
    pub(crate) fn insert(&mut self, at_us: u64, flow: u32, generation: u32) {
        let at = at_us.div_ceil(1 << TICK_SHIFT).max(self.now);
        self.entries += 1;
        self.put(Entry { at, flow, generation });
    }

    /// When [`Wheel::pop`] should be asked next, µs: not later than the first is due.
    pub(crate) fn next_us(&self) -> Option<u64> {
        if self.entries == 0 {
            return None;
        }
        for level in 0..LEVELS {
            let shift = SLOT_BITS * level as u32;
            let position = (self.now >> shift) as usize % SLOTS;
            let from = if level == 0 { position } else { position + 1 };
            let is_occupied = |slot: &usize| self.occupied[level][slot / 64] & 1 << (slot % 64) != 0;
            if let Some(slot) = (from..SLOTS).find(is_occupied) {
                let turn = self.now >> (shift + SLOT_BITS) << (shift + SLOT_BITS);
                return Some((turn | (slot as u64) << shift) << TICK_SHIFT);
            }
        }
        // Only what is beyond the highest level's turn is left.
        let turn = SLOT_BITS * LEVELS as u32;
        Some((((self.now >> turn) + 1) << turn) << TICK_SHIFT)
    }

    fn put(&mut self, entry: Entry) {
        // The level is the highest in which now and the time differ: a slot then never wraps past its cascade.
        let differing = (entry.at ^ self.now) | 1;
        let level = ((63 - differing.leading_zeros()) / SLOT_BITS) as usize;
        if level >= LEVELS {
            self.far.push(entry);
            return;
        }
        let slot = (entry.at >> (SLOT_BITS * level as u32)) as usize % SLOTS;
        self.occupied[level][slot / 64] |= 1 << (slot % 64);
        self.slots[level * SLOTS + slot].push(entry);
    }

    /// Takes one whose time has come.
    #[inline]
    pub(crate) fn pop(&mut self, now_us: u64) -> Option<Entry> {
        let now = now_us >> TICK_SHIFT;
        if self.entries == 0 {
            self.now = self.now.max(now);
            return None;
        }
        loop {
            let slot = self.now as usize % SLOTS;
            let bit = 1 << (slot % 64);
            if self.now <= now && self.occupied[0][slot / 64] & bit != 0 {
                if let Some(entry) = self.slots[slot].pop() {
                    self.entries -= 1;
                    return Some(entry);
                }
                self.occupied[0][slot / 64] &= !bit;
                if self.slots[slot].capacity() > CAPACITY_KEPT {
                    self.slots[slot] = Vec::new();
                }
            }
            if self.now >= now {
                return None;
            }
            self.step(now);
        }
    }

    /// Goes on to the next tick that may have something, `now` at most.
    fn step(&mut self, now: u64) {
        let next_slot = (self.now as usize % SLOTS) + 1;
        let boundary = (self.now | (SLOTS as u64 - 1)) + 1;
        let next = (next_slot..SLOTS)
            .find(|slot| self.occupied[0][slot / 64] & 1 << (slot % 64) != 0)
            .map_or(boundary, |slot| (self.now & !(SLOTS as u64 - 1)) | slot as u64);
        if next > now {
            self.now = now;
            return;
        }
        self.now = next;
        for level in 1..=LEVELS {
            if !self.now.is_multiple_of(1 << (SLOT_BITS * level as u32)) {
                break;
            }
            if level == LEVELS {
                std::mem::take(&mut self.far).into_iter().for_each(|entry| self.put(entry));
                break;
            }
            let slot = (self.now >> (SLOT_BITS * level as u32)) as usize % SLOTS;
            self.occupied[level][slot / 64] &= !(1 << (slot % 64));
            for entry in std::mem::take(&mut self.slots[level * SLOTS + slot]) {
                self.put(entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix;

    #[test]
    fn fires_as_a_sorted_list_would() {
        for seed in 1..=60 {
            println!("seed {seed}");
            let mut random = SplitMix::new(seed);
            let mut now_us = if seed % 2 == 0 { 0 } else { (1 << 36) - 100_000 };
            let mut wheel = Wheel::new(now_us);
            let mut expected: Vec<(u64, u32)> = Vec::new();
            for flow in 0..2000 {
                let delay = match random.below(5) {
                    0 => 0,
                    1 => random.below(100),
                    2 => random.below(10_000),
                    3 => random.below(3_000_000),
                    _ => random.below(600_000_000),
                };
                wheel.insert(now_us + delay, flow, flow + 1);
                expected.push((now_us + delay, flow));
                if random.below(3) == 0 {
                    now_us += [1, random.below(5000), random.below(10_000_000)][random.below(3) as usize];
                    let mut fired = Vec::new();
                    while let Some(entry) = wheel.pop(now_us) {
                        assert_eq!(entry.generation, entry.flow + 1);
                        fired.push(entry.flow);
                    }
                    for flow in fired {
                        let index = expected.iter().position(|(_, other)| *other == flow).unwrap();
                        let (at_us, _) = expected.swap_remove(index);
                        assert!(at_us <= now_us, "{flow} fired {} µs early", at_us - now_us);
                    }
                    let late =
                        expected.iter().filter(|(at_us, _)| at_us + (1 << TICK_SHIFT) <= now_us).count();
                    assert_eq!(late, 0, "at {now_us}");
                    let first_us = expected.iter().map(|(at_us, _)| at_us + (1 << TICK_SHIFT)).min();
                    assert_eq!(wheel.next_us().is_some(), first_us.is_some());
                    assert!(wheel.next_us() <= first_us, "it would be asked too late");
                    assert_eq!(wheel.len(), expected.len());
                }
            }
            while wheel.pop(now_us + 700_000_000).is_some() {}
            assert_eq!(wheel.len(), 0);
        }
    }

    #[test]
    fn what_is_further_away_than_it_reaches_comes_too() {
        let far_us = 22 * 3_600_000_000;
        let mut wheel = Wheel::new(5);
        wheel.insert(far_us, 7, 1);
        let mut fired = 0;
        for hour in 1..=22 {
            while wheel.pop(hour * 3_600_000_000 - 1_000_000).is_some() {
                fired += 1;
            }
            assert_eq!(fired, 0, "hour {hour}");
        }
        while wheel.pop(far_us + 16).is_some() {
            fired += 1;
        }
        assert_eq!(fired, 1);
    }
}

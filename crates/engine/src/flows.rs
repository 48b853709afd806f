//! The control blocks, in a slab, and the table that finds them by address.

use crate::flow::{Flags, Flow};
use crate::tuple::{Tuple, TupleHasher};
use crate::wheel::{Link, Links};

/// Control blocks of so many flows fill a processor's second-level cache.
const MANY: usize = 8192;

/// All flows of an engine. Memory for them is taken as they come.
pub(crate) struct Flows {
    slab: Vec<Flow>,
    free: Vec<u32>,
    max: u32,
    table: Table,
    hasher: TupleHasher,
}

impl Flows {
    pub(crate) fn new(max: u32, hasher: TupleHasher) -> Self {
        Self {
            slab: Vec::with_capacity(max as usize),
            free: Vec::new(),
            max,
            table: Table::with_slots(1024),
            hasher,
        }
    }

    #[inline]
    pub(crate) fn find(&self, tuple: &Tuple) -> Option<u32> {
        let slab = &self.slab;
        self.table.find(self.hasher.hash(tuple), |index| slab[index as usize].tuple == *tuple)
    }

    /// The flow that [`Flows::find`] would look at first, which is the one, nearly always. No control block is read.
    #[inline]
    pub(crate) fn probe(&self, tuple: &Tuple) -> Option<u32> {
        self.table.find(self.hasher.hash(tuple), |_| true)
    }

    /// Reads a little of each of a control block's cache lines.
    #[inline]
    pub(crate) fn touch(&self, index: u32) -> u32 {
        self.slab.get(index as usize).map_or(0, Flow::touch)
    }

    /// Takes a control block for `flow` and enters it into the table. The tuple must not be there yet.
    pub(crate) fn insert(&mut self, flow: Flow) -> Option<u32> {
        let hash = self.hasher.hash(&flow.tuple);
        let index = match self.free.pop() {
            Some(index) => {
                self.slab[index as usize] = flow;
                index
            }
            None if self.slab.len() < self.max as usize => {
                self.slab.push(flow);
                self.slab.len() as u32 - 1
            }
            None => return None,
        };
        self.slab[index as usize].flags.set(Flags::IN_TABLE);
        self.table.insert(hash, index);
        Some(index)
    }

    /// Takes the flow out of the table: its tuple may be used again, its control block stays.
    pub(crate) fn unhook(&mut self, index: u32) {
        let flow = &mut self.slab[index as usize];
        if flow.flags.take(Flags::IN_TABLE) {
            self.table.remove(self.hasher.hash(&flow.tuple), index);
        }
    }

    /// Gives the control block back. It must be out of the table and the wheel.
    pub(crate) fn free(&mut self, index: u32) {
        self.free.push(index);
    }

    #[inline]
    pub(crate) fn at(&self, index: u32) -> &Flow {
        &self.slab[index as usize]
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> &mut Flow {
        &mut self.slab[index as usize]
    }

    /// The flows that can be found.
    pub(crate) fn in_table(&self) -> Vec<u32> {
        let is_there = |index: &u32| self.at(*index).flags.has(Flags::IN_TABLE);
        (0..self.slab.len() as u32).filter(is_there).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len() - self.free.len()
    }

    /// So many that most of them are in no near cache.
    #[inline]
    pub(crate) fn are_many(&self) -> bool {
        self.slab.len() > MANY
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.max as usize
    }

    /// Bytes of memory in use for control blocks and the table.
    pub(crate) fn bytes(&self) -> usize {
        self.slab.len() * size_of::<Flow>()
            + self.free.capacity() * 4
            + self.table.slots.len() * size_of::<Slot>()
    }
}

impl Links for Flows {
    fn link(&mut self, index: u32) -> &mut Link {
        &mut self.slab[index as usize].link
    }

    fn touch(&self, index: u32) -> u32 {
        Flows::touch(self, index)
    }
}

/// One place of the table. The hash beside the index: a probe touches a control block only where the hash is the same.
#[derive(Clone, Copy)]
struct Slot {
    hash: u32,
    index: u32,
}

const EMPTY: Slot = Slot { hash: 0, index: u32::MAX };

/// Open addressing with linear probing, at most three quarters full: a lookup is one cache line, nearly always. A removal
/// moves later entries back (Knuth, volume 3, section 6.4, algorithm R), so that nothing decays.
pub(crate) struct Table {
    /// A power of two.
    slots: Vec<Slot>,
    used: usize,
}

impl Table {
    pub(crate) fn with_slots(count: usize) -> Self {
        Self { slots: vec![EMPTY; count], used: 0 }
    }

    #[inline]
    fn mask(&self) -> usize {
        self.slots.len() - 1
    }

    #[inline]
    pub(crate) fn find(&self, hash: u32, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let mask = self.mask();
        let mut position = hash as usize & mask;
        loop {
            let slot = self.slots[position];
            if slot.index == EMPTY.index {
                return None;
            }
            if slot.hash == hash && is_it(slot.index) {
                return Some(slot.index);
            }
            position = (position + 1) & mask;
        }
    }

    pub(crate) fn insert(&mut self, hash: u32, index: u32) {
        if (self.used + 1) * 4 > self.slots.len() * 3 {
            let old = core::mem::take(&mut self.slots);
            self.slots = vec![EMPTY; old.len() * 2];
            for slot in old {
                if slot.index != EMPTY.index {
                    self.place(slot);
                }
            }
        }
        self.place(Slot { hash, index });
        self.used += 1;
    }

    fn place(&mut self, slot: Slot) {
        let mask = self.mask();
        let mut position = slot.hash as usize & mask;
        while self.slots[position].index != EMPTY.index {
            position = (position + 1) & mask;
        }
        self.slots[position] = slot;
    }

    pub(crate) fn remove(&mut self, hash: u32, index: u32) {
        let mask = self.mask();
        let mut hole = hash as usize & mask;
        while self.slots[hole].index != index {
            if self.slots[hole].index == EMPTY.index {
                return;
            }
            hole = (hole + 1) & mask;
        }
        self.used -= 1;
        let mut position = hole;
        loop {
            position = (position + 1) & mask;
            let slot = self.slots[position];
            if slot.index == EMPTY.index {
                break;
            }
            // It may fill the hole if its home is not after the hole (cyclically).
            let home = slot.hash as usize & mask;
            if position.wrapping_sub(home) & mask >= position.wrapping_sub(hole) & mask {
                self.slots[hole] = slot;
                hole = position;
            }
        }
        self.slots[hole] = EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Random insertions and removals against a map, with hashes that collide often and around the end of the table.
    #[test]
    fn finds_what_a_map_would_find() {
        for seed in 1..100_u64 {
            let mut numbers = overfly_testing::Random(seed);
            let mut random = |bound: u32| numbers.below(bound.into()) as u32;
            let mut table = Table::with_slots(8);
            let mut expected = BTreeMap::new();
            for index in 0..400 {
                // Few homes near the end, so that runs wrap.
                let hash = random(12).wrapping_sub(6) << (random(2) * 3);
                table.insert(hash, index);
                expected.insert(index, hash);
                if random(2) == 0 {
                    let victim = random(index + 1);
                    if let Some(hash) = expected.remove(&victim) {
                        table.remove(hash, victim);
                    }
                }
                for (&index, &hash) in &expected {
                    assert_eq!(table.find(hash, |found| found == index), Some(index), "seed {seed}");
                }
                assert_eq!(table.used, expected.len(), "seed {seed}");
                let entries = table.slots.iter().filter(|slot| slot.index != EMPTY.index).count();
                assert_eq!(entries, expected.len(), "seed {seed}");
            }
        }
    }
}

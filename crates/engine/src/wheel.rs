//! Timers: a hierarchical wheel of buckets of flows. A flow's control block says where in which bucket it stands.
//!
//! A flow stands in at most one slot, for its earliest deadline when it was put there. A deadline that moves later is not
//! moved in the wheel: the slot fires at the old time and the flow is put in again. So the common case, a retransmission
//! timer that is pushed back by every acknowledgment, costs nothing here.
//!
//! Buckets rather than lists through the control blocks: who stands behind whom is known without a look at either, so that the
//! memory of many flows that fire together is asked for at once, not of each when the one before it has come.

use crate::time::{Tick, Ticks};

const NOT_LINKED: u16 = u16::MAX;

const SLOT_BITS: u32 = 8;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = 3;
/// Deadlines further away (4.7 h) fire early, see that they are not due, and are put in again.
const HORIZON: u32 = (1 << (SLOT_BITS * LEVELS as u32)) - 1;
/// Flows whose memory is asked for together.
const TOGETHER: usize = 32;
/// Flows that an emptied bucket keeps room for.
const KEPT: usize = 256;

/// A flow's place in the wheel. Numbers of 32 bits are in halves, low first, so that it takes ten bytes of the control block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// When the slot fires; meaningful while linked.
    at: [u16; 2],
    /// Where in the slot's bucket.
    place: [u16; 2],
    slot: u16,
}

const fn halves(number: u32) -> [u16; 2] {
    [number as u16, (number >> 16) as u16]
}

const fn whole([low, high]: [u16; 2]) -> u32 {
    low as u32 | (high as u32) << 16
}

impl Link {
    pub(crate) const fn new() -> Self {
        Self { at: [0; 2], place: [0; 2], slot: NOT_LINKED }
    }

    pub(crate) const fn is_linked(&self) -> bool {
        self.slot != NOT_LINKED
    }

    pub(crate) const fn at(&self) -> Tick {
        Tick(whole(self.at))
    }
}

/// Where the links are.
pub(crate) trait Links {
    fn link(&mut self, index: u32) -> &mut Link;
    /// Reads a little of all that firing needs.
    fn touch(&self, index: u32) -> u32;
}

/// Brings the memory of flows near, all at once.
fn approach(links: &impl Links, flows: &[u32]) {
    if flows.len() > 1 {
        core::hint::black_box(flows.iter().fold(0, |sum, index| sum ^ links.touch(*index)));
    }
}

#[derive(Debug)]
pub(crate) struct Wheel {
    slots: Box<[Vec<u32>]>,
    occupied: [[u64; SLOTS / 64]; LEVELS],
    /// The last tick whose slot has fired.
    now: Tick,
    linked: usize,
    /// The last so many flows of the slot that fires are near.
    near: usize,
}

impl Wheel {
    pub(crate) fn new() -> Self {
        Self {
            slots: vec![Vec::new(); SLOTS * LEVELS].into(),
            occupied: [[0; SLOTS / 64]; LEVELS],
            now: Tick(0),
            linked: 0,
            near: 0,
        }
    }

    /// Bytes of memory in use.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.iter().map(Vec::capacity).sum::<usize>() * size_of::<u32>()
            + self.slots.len() * size_of::<Vec<u32>>()
    }

    /// An empty wheel goes to `now` at once: the epoch, or the time spent idle, may be far away.
    pub(crate) fn catch_up(&mut self, now: Tick) {
        if self.linked == 0 {
            self.now = now;
        }
    }

    /// Puts `index` in for `at`, or moves it there.
    #[inline]
    pub(crate) fn schedule(&mut self, links: &mut impl Links, index: u32, at: Tick) {
        self.cancel(links, index);
        let delay = if at.is_before(self.now.after(Ticks::ONE)) {
            Ticks::ONE
        } else {
            at.since(self.now).min(Ticks(HORIZON))
        };
        let at = self.now.after(delay);
        // The level is the highest in which now and the deadline differ: a slot then never wraps past its cascade.
        let differing = at.0 ^ self.now.0;
        let level = match differing {
            0..=0xff => 0,
            0x100..=0xffff => 1,
            _ => 2,
        };
        self.put(links, index, at, level);
    }

    fn put(&mut self, links: &mut impl Links, index: u32, at: Tick, level: usize) {
        let in_level = (at.0 >> (SLOT_BITS * level as u32)) as usize & (SLOTS - 1);
        let slot = level * SLOTS + in_level;
        let bucket = &mut self.slots[slot];
        *links.link(index) = Link { at: halves(at.0), place: halves(bucket.len() as u32), slot: slot as u16 };
        bucket.push(index);
        self.occupied[level][in_level / 64] |= 1 << (in_level % 64);
        self.linked += 1;
    }

    pub(crate) fn cancel(&mut self, links: &mut impl Links, index: u32) {
        let link = links.link(index);
        if !link.is_linked() {
            return;
        }
        let (slot, place) = (usize::from(link.slot), link.place);
        link.slot = NOT_LINKED;
        let bucket = &mut self.slots[slot];
        bucket.swap_remove(whole(place) as usize);
        match bucket.get(whole(place) as usize) {
            Some(moved) => links.link(*moved).place = place,
            None if bucket.is_empty() => self.emptied(slot),
            None => {}
        }
        self.linked -= 1;
    }

    fn emptied(&mut self, slot: usize) {
        self.occupied[slot / SLOTS][(slot % SLOTS) / 64] &= !(1 << (slot % 64));
        if self.slots[slot].capacity() > KEPT {
            self.slots[slot] = Vec::new();
        }
    }

    /// Takes the next link that is due at `now`, or returns `None` when there is none left.
    pub(crate) fn expire(&mut self, links: &mut impl Links, now: Tick) -> Option<u32> {
        loop {
            let slot = self.now.0 as usize & (SLOTS - 1);
            if let Some(index) = self.slots[slot].pop() {
                let left = &self.slots[slot];
                if self.near == 0 {
                    self.near = left.len().min(TOGETHER);
                    approach(links, &left[left.len() - self.near..]);
                } else {
                    self.near -= 1;
                }
                if left.is_empty() {
                    self.emptied(slot);
                }
                links.link(index).slot = NOT_LINKED;
                self.linked -= 1;
                return Some(index);
            }
            self.near = 0;
            if !self.now.is_before(now) {
                return None;
            }
            if self.linked == 0 {
                self.now = now;
                return None;
            }
            self.step(links, now);
        }
    }

    /// Goes on by one tick, or over ticks in which nothing can fire.
    fn step(&mut self, links: &mut impl Links, now: Tick) {
        let boundary = Tick(self.now.0 | (SLOTS as u32 - 1));
        let next = match first_from(&self.occupied[0], (self.now.0 as usize + 1) & (SLOTS - 1)) {
            Some(slot) if self.now.0 & 0xff != 0xff => Tick((self.now.0 & !0xff) | slot as u32),
            _ => boundary.after(Ticks::ONE),
        };
        self.now = if now.is_before(next) { now } else { next };
        if self.now.0 & 0xff == 0 {
            if self.now.0 & 0xffff == 0 {
                self.cascade(links, 2 * SLOTS + ((self.now.0 >> 16) as usize & 0xff));
            }
            self.cascade(links, SLOTS + ((self.now.0 >> 8) as usize & 0xff));
        }
    }

    /// Spreads a slot of a higher level over the lower ones.
    fn cascade(&mut self, links: &mut impl Links, slot: usize) {
        let bucket = core::mem::take(&mut self.slots[slot]);
        self.emptied(slot);
        self.linked -= bucket.len();
        for flows in bucket.chunks(TOGETHER) {
            approach(links, flows);
            for index in flows {
                let link = links.link(*index);
                link.slot = NOT_LINKED;
                let at = link.at();
                if at == self.now {
                    // Into the slot that fires now.
                    self.put(links, *index, at, 0);
                } else {
                    self.schedule(links, *index, at);
                }
            }
        }
    }

    /// The tick at which [`Wheel::expire`] should be called next: when something fires, or has to be spread.
    pub(crate) fn next(&self) -> Option<Tick> {
        if self.linked == 0 {
            return None;
        }
        for level in 0..LEVELS {
            let shift = SLOT_BITS * level as u32;
            let position = (self.now.0 >> shift) as usize & (SLOTS - 1);
            let from = if level == 0 { position } else { position + 1 };
            if from < SLOTS
                && let Some(slot) = first_from(&self.occupied[level], from)
            {
                let above = u64::from(self.now.0) >> (shift + SLOT_BITS) << (shift + SLOT_BITS);
                return Some(Tick((above as u32) | ((slot as u32) << shift)));
            }
        }
        // Only slots before the present position of the top level are left: they come after its wrap.
        Some(Tick((self.now.0 | HORIZON).wrapping_add(1)))
    }
}

/// The first set bit at or after `from`.
fn first_from(words: &[u64; SLOTS / 64], from: usize) -> Option<usize> {
    let mut word = from / 64;
    let mut bits = words[word] & (u64::MAX << (from % 64));
    loop {
        if bits != 0 {
            return Some(word * 64 + bits.trailing_zeros() as usize);
        }
        word += 1;
        if word == words.len() {
            return None;
        }
        bits = words[word];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Table(Vec<Link>);
    impl Links for Table {
        fn link(&mut self, index: u32) -> &mut Link {
            &mut self.0[index as usize]
        }
        fn touch(&self, index: u32) -> u32 {
            whole(self.0[index as usize].place)
        }
    }

    /// A thousand timers against a sorted list, over random jumps, with moves and cancellations.
    #[test]
    fn fires_all_in_time_as_a_sorted_list_would() {
        for seed in 0..200_u64 {
            let mut numbers = overfly_testing::Random(seed);
            let mut random = move |bound: u32| numbers.below(bound.into()) as u32;
            let mut wheel = Wheel::new();
            let mut table = Table(vec![Link::new(); 100]);
            let mut expected: Vec<Option<u32>> = vec![None; 100];
            let mut now = if seed % 2 == 0 { 0 } else { u32::MAX - 70_000 };
            for _ in 0..300 {
                wheel.catch_up(Tick(now));
                for _ in 0..random(10) {
                    let index = random(100);
                    if random(4) == 0 {
                        wheel.cancel(&mut table, index);
                        expected[index as usize] = None;
                    } else {
                        let delay =
                            1 + [random(5), random(300), random(70_000), random(1 << 20)][random(4) as usize];
                        wheel.schedule(&mut table, index, Tick(now.wrapping_add(delay)));
                        expected[index as usize] = Some(now.wrapping_add(delay));
                    }
                }
                let next = wheel.next();
                let earliest = expected.iter().flatten().map(|at| at.wrapping_sub(now)).min();
                assert_eq!(next.is_none(), earliest.is_none(), "seed {seed}");
                if let (Some(next), Some(earliest)) = (next, earliest) {
                    assert!(
                        next.since(Tick(now)) <= Ticks(earliest),
                        "seed {seed}: wakes at {next:?}, due in {earliest} from {now}"
                    );
                }
                now = now.wrapping_add([1, random(3), random(400), random(100_000)][random(4) as usize]);
                while let Some(index) = wheel.expire(&mut table, Tick(now)) {
                    let at = expected[index as usize]
                        .take()
                        .unwrap_or_else(|| panic!("seed {seed}: {index} fired unscheduled"));
                    assert!(!Tick(now).is_before(Tick(at)), "seed {seed}: {index} fired early");
                }
                for at in expected.iter().flatten() {
                    assert!(Tick(now).is_before(Tick(*at)), "seed {seed}: timer for {at} missed at {now}");
                }
            }
        }
    }
}

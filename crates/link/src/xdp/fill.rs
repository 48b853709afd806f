//! The fill ring of a queue, which all stacks of the interface write: they take turns, and nobody waits for one that does not run.
//!
//! The kernel reads the ring's producer index P and the entries before it. One word, the [`Turn`], decides everything else:
//!
//! ```text
//! free, end = P ── take ──> held by a stack ── commit ──> free, end = P + n ── finish ──> P = end
//!                              │     ▲
//!                              └─────┘ another stack takes it over
//! ```
//!
//! A holder writes its frames into entries that the kernel does not see yet, writes its [`Journal`], and commits. What comes after
//! (P, the reserve) is known from the turn and the journal, so whoever comes next does it if the stack did not. A holder that is
//! stopped before it commits loses its turn to another stack and has given nothing. When it runs again it does no harm: every store
//! to what is shared is a compare-and-swap from a value that was there during its turn. Those of the ring's entries hold the turn's
//! number in the low bits of the address, which the kernel masks (`xp_check_aligned` in net/xdp/xsk_buff_pool.c).
//!
//! What is left to chance: a stack that was stopped between two particular instructions, and goes on at the very moment when P
//! is the same modulo 2³², or when an entry holds the same frame again and the number of a turn that is the same modulo 2,048.

use super::FRAME_LEN;
use super::atomic::{AtomicU32, AtomicU64, Ordering};

/// Frames that join the circulation at once, at most.
const RESERVE_BATCH: u32 = 64;
/// Bits of an entry that the kernel masks.
const TAG: u64 = FRAME_LEN as u64 - 1;

/// Whose turn it is: the ring's producer index after the last turn that was committed (bits 0 to 31), a stack (32 to 38),
/// whether that stack holds the turn (39), and the turn's number (40 to 63).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn(u64);

impl Turn {
    const HELD: u64 = 1 << 39;

    pub(crate) fn free(end: u32, stack: u16, number: u64) -> Turn {
        Turn(u64::from(end) | (u64::from(stack) & 0x7f) << 32 | number << 40)
    }

    fn held(end: u32, stack: u16, number: u64) -> Turn {
        Turn(Turn::free(end, stack, number).0 | Turn::HELD)
    }

    pub(crate) fn word(self) -> u64 {
        self.0
    }

    fn end(self) -> u32 {
        self.0 as u32
    }

    /// Who holds it, or who committed last.
    pub(crate) fn stack(self) -> u16 {
        (self.0 >> 32 & 0x7f) as u16
    }

    pub(crate) fn is_held(self) -> bool {
        self.0 & Turn::HELD != 0
    }

    fn number(self) -> u64 {
        self.0 >> 40
    }
}

/// What others must know of a stack's last turn, to end it.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct Journal {
    /// The turn as it is, or was to be, committed.
    turn: AtomicU64,
    /// The receive ring's consumer index afterwards.
    receive_target: AtomicU32,
    /// [`FillRing::reserve`] afterwards.
    reserve_target: AtomicU32,
    /// The last turn of this stack, as committed, that somebody else has ended.
    ended: AtomicU64,
}

impl Journal {
    /// For a new owner.
    pub(crate) fn reset(&self) {
        self.turn.store(0, Ordering::Relaxed);
        self.ended.store(0, Ordering::Release);
    }
}

#[cfg(test)]
impl Journal {
    /// What only a stack that has lost its mind writes.
    pub(crate) fn corrupt(&self, turn: u64, receive_target: u32) {
        self.turn.store(turn, Ordering::Relaxed);
        self.ended.store(turn, Ordering::Relaxed);
        self.receive_target.store(receive_target, Ordering::Relaxed);
    }
}

/// Frames that a stack gives back.
pub(crate) struct Batch<'a> {
    /// The consumer index of the receive ring from which they came.
    pub(crate) receive: &'a AtomicU32,
    /// What it becomes.
    pub(crate) receive_target: u32,
    pub(crate) count: u32,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The frames are the kernel's.
    Moved,
    /// Another stack took the turn over; nothing was given.
    TakenOver,
    /// The ring has no room, which only happens if somebody put frames into it that were not theirs. Nothing was given.
    Full,
}

/// One view of the ring, and of the words beside it in the pool's memory.
pub(crate) struct FillRing<'a> {
    pub(crate) turn: &'a AtomicU64,
    /// Frames that have never been received into, because fewer were enough: those from this one on. Few frames in circulation
    /// stay in the cache (over veth that saves a fifth of a frame's cost); more join when stacks fall behind and hold them.
    /// It only ever grows.
    pub(crate) reserve: &'a AtomicU32,
    /// One for each stack, and one for the pool's owner.
    pub(crate) journals: &'a [Journal],
    pub(crate) producer: &'a AtomicU32,
    pub(crate) consumer: &'a AtomicU32,
    /// The ring's entries, a power of two.
    pub(crate) slots: &'a [AtomicU64],
    pub(crate) rx_frames: u32,
    /// Frames of the reserve join the circulation when the ring holds fewer than that.
    pub(crate) low: u32,
}

impl FillRing<'_> {
    /// Takes the turn if nobody has it. `step` is called between any two accesses to shared memory (tests stop there).
    ///
    /// # Errors
    /// The turn as somebody else has it, or had it just now.
    #[inline]
    pub(crate) fn take(&self, stack: u16, step: &mut impl FnMut()) -> Result<Turn, Turn> {
        let seen = Turn(self.turn.load(Ordering::Acquire));
        step();
        if seen.is_held() {
            return Err(seen);
        }
        self.finish(seen, step);
        self.take_from(seen, stack)
    }

    /// Takes the turn from a stack that does not run, or out of nobody's hands. The stack's frames stay in its receive ring.
    ///
    /// # Errors
    /// The turn as it is now, if that is not what was seen.
    #[inline]
    pub(crate) fn take_from(&self, seen: Turn, stack: u16) -> Result<Turn, Turn> {
        let held = Turn::held(seen.end(), stack, seen.number().wrapping_add(1));
        match self.turn.compare_exchange(seen.0, held.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(held),
            Err(now) => Err(Turn(now)),
        }
    }

    /// Does what is left of a committed turn. P is moved by a stack last of all: where it has been moved, all is done.
    #[inline]
    fn finish(&self, committed: Turn, step: &mut impl FnMut()) {
        let producer = self.producer.load(Ordering::Acquire);
        step();
        if producer != committed.end() {
            self.finish_for(committed, producer, step);
        }
    }

    #[cold]
    fn finish_for(&self, committed: Turn, producer: u32, step: &mut impl FnMut()) {
        let Some(journal) = self.journals.get(usize::from(committed.stack())) else {
            return;
        };
        let ended = journal.ended.load(Ordering::Acquire);
        step();
        let reserve_target = journal.reserve_target.load(Ordering::Acquire).min(self.rx_frames);
        step();
        // What was read belongs to this turn only if it is still the last one.
        if self.turn.load(Ordering::Acquire) != committed.0 {
            return;
        }
        step();
        let _ = journal.ended.compare_exchange(ended, committed.0, Ordering::AcqRel, Ordering::Relaxed);
        step();
        self.reserve.fetch_max(reserve_target, Ordering::AcqRel);
        step();
        let _ =
            self.producer.compare_exchange(producer, committed.end(), Ordering::AcqRel, Ordering::Relaxed);
        step();
    }

    /// Gives the kernel `batch.count` frames (`frame` says where the nth of them begins), and some of the reserve if it runs
    /// short of them. Ends the turn.
    #[inline]
    pub(crate) fn give(
        &self,
        held: Turn,
        batch: &Batch<'_>,
        frame: impl Fn(u32) -> u64,
        step: &mut impl FnMut(),
    ) -> Outcome {
        let producer = held.end();
        let used = producer.wrapping_sub(self.consumer.load(Ordering::Acquire));
        let reserved = self.reserve.load(Ordering::Acquire);
        step();
        let level = used.saturating_add(batch.count);
        let added =
            if level < self.low { RESERVE_BATCH.min(self.rx_frames.saturating_sub(reserved)) } else { 0 };
        if level.saturating_add(added) as usize > self.slots.len() {
            // Or the turn is over, and the indices are those of later ones.
            return if self.hand_back(held) { Outcome::Full } else { Outcome::TakenOver };
        }
        for offset in 0..batch.count {
            if !self.write(held, producer.wrapping_add(offset), frame(offset), step) {
                return Outcome::TakenOver;
            }
        }
        for offset in 0..added {
            let frame = u64::from(reserved + offset) * FRAME_LEN as u64;
            if !self.write(held, producer.wrapping_add(batch.count + offset), frame, step) {
                return Outcome::TakenOver;
            }
        }
        let end = producer.wrapping_add(batch.count + added);
        let committed = Turn::free(end, held.stack(), held.number());
        // The turn before the target: a stack that is killed in between has a turn there that is not committed.
        let journal = &self.journals[usize::from(held.stack())];
        journal.turn.store(committed.0, Ordering::Relaxed);
        step();
        journal.receive_target.store(batch.receive_target, Ordering::Release);
        step();
        journal.reserve_target.store(reserved + added, Ordering::Release);
        step();
        if (self.turn.compare_exchange(held.0, committed.0, Ordering::AcqRel, Ordering::Relaxed)).is_err() {
            return Outcome::TakenOver;
        }
        step();
        // The receive ring is this stack's alone.
        batch.receive.store(batch.receive_target, Ordering::Release);
        step();
        if added > 0 {
            self.reserve.fetch_max(reserved + added, Ordering::AcqRel);
            step();
        }
        let _ = self.producer.compare_exchange(producer, end, Ordering::Release, Ordering::Relaxed);
        step();
        Outcome::Moved
    }

    /// Writes one entry beyond the producer index, as long as it is this holder's turn.
    #[inline]
    fn write(&self, held: Turn, index: u32, frame: u64, step: &mut impl FnMut()) -> bool {
        let slot = &self.slots[index as usize & (self.slots.len() - 1)];
        let entry = frame & !TAG | held.number() & TAG;
        loop {
            let old = slot.load(Ordering::Acquire);
            step();
            // A value that was read during the turn: after it, the entry holds another one.
            if self.turn.load(Ordering::Acquire) != held.0 {
                return false;
            }
            step();
            if slot.compare_exchange(old, entry, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                step();
                return true;
            }
            // A stack that had lost an earlier turn has written here once more.
        }
    }

    /// Ends a turn in which nothing was given. False if it is over already.
    fn hand_back(&self, held: Turn) -> bool {
        let free = Turn::free(held.end(), held.stack(), held.number());
        self.turn.compare_exchange(held.0, free.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Ends the turn of a stack that is gone, so that each of its frames is either in its receive ring (of `capacity` entries,
    /// with the consumer index `receive`) or the kernel's.
    ///
    /// # Errors
    /// A journal that no stack writes: it had corrupted its memory.
    pub(crate) fn recover(&self, stack: u16, receive: &AtomicU32, capacity: u32) -> Result<(), &'static str> {
        let mut seen = Turn(self.turn.load(Ordering::Acquire));
        while seen.is_held() && seen.stack() == stack {
            let free = Turn::free(seen.end(), stack, seen.number().wrapping_add(1));
            match self.turn.compare_exchange(seen.0, free.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => seen = free,
                Err(now) => seen = Turn(now),
            }
        }
        if !seen.is_held() {
            self.finish(seen, &mut || ());
        }
        let journal = &self.journals[usize::from(stack)];
        let turn = journal.turn.load(Ordering::Acquire);
        if turn == 0 || journal.ended.load(Ordering::Acquire) != turn {
            return Ok(()); // not committed, or the stack has ended it
        }
        let target = journal.receive_target.load(Ordering::Acquire);
        if target.wrapping_sub(receive.load(Ordering::Acquire)) > capacity {
            return Err("a journal that no stack writes");
        }
        receive.store(target, Ordering::Release);
        Ok(())
    }
}

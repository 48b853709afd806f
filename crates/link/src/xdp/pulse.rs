//! How the XDP program sees that a stack looks at what has come, and other stacks how much memory it holds: numbers in memory that
//! all share, for each stack a cache line.

use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::BorrowedFd;

use rustix::time::{ClockId, clock_gettime};

use super::memory::STACKS_MAX;
use crate::Error;
use crate::mapping::Mapping;

/// A stack's place: `struct pulse` of the program.
const PLACE_LEN: usize = 64;
/// Its words.
const LOOKS: usize = 0;
const HELD: usize = 1;
const SYN_LOOKS: usize = 2;
const SYN_NS: usize = 3;
const WAITS: usize = 4;
const CHANGES: usize = 5;
/// A SYN that has waited this long may have been sent again, to another stack, which has answered. It is sent again after a second
/// (RFC 6298 2.1).
const LATE_NS: u64 = 900_000_000;

/// One stack's number. A frame that is older than the last look and was not followed by another one waits.
pub(crate) struct Pulse {
    mapping: Mapping,
    stack: usize,
    looks: u64,
    /// As of which look the first SYN after it is known.
    known: u64,
}

// SAFETY: the mapping lives as long as `self`, and all access to it is atomic.
unsafe impl Send for Pulse {}

impl Pulse {
    /// Maps the program's array and begins to count, from where no stack that had the place before can have been.
    pub(crate) fn open(array: BorrowedFd<'_>, stack: u16) -> Result<Pulse, Error> {
        if stack >= STACKS_MAX {
            return Err(Error::Layout("a stack's number beyond all stacks"));
        }
        let mapping = map(array)?;
        let now = clock_gettime(ClockId::Monotonic);
        let looks = (now.tv_sec as u64) << 30 | now.tv_nsec as u64 | 1;
        let mut pulse = Pulse { mapping, stack: stack.into(), looks, known: 0 };
        pulse.beat(true);
        Ok(pulse)
    }

    /// The stack looks at its receive rings now, for all to see or not. True if SYNs have waited there for so long that other stacks
    /// may have answered them.
    #[inline]
    pub(crate) fn beat(&mut self, seen: bool) -> bool {
        let syn = self.word(self.stack, SYN_LOOKS).load(Ordering::Relaxed);
        let late = syn == self.looks && self.known != syn && self.syn_is_late();
        if seen {
            self.looks += 1;
            self.word(self.stack, LOOKS).store(self.looks, Ordering::Relaxed);
        }
        late
    }

    /// Whether the first SYN since the last look came too long ago.
    fn syn_is_late(&mut self) -> bool {
        self.known = self.looks;
        let now = clock_gettime(ClockId::Monotonic);
        let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        now_ns.saturating_sub(self.word(self.stack, SYN_NS).load(Ordering::Relaxed)) > LATE_NS
    }

    /// A thread waits to accept since the last look, and nothing is under way to it: new connections come here first.
    #[inline]
    pub(crate) fn wait(&self) {
        self.word(self.stack, WAITS).store(self.looks, Ordering::Relaxed);
    }

    /// How many other stacks wait.
    pub(crate) fn others_wait(&self) -> usize {
        let waits = |stack: &usize| {
            let looks = self.word(*stack, LOOKS).load(Ordering::Relaxed);
            looks != 0 && self.word(*stack, WAITS).load(Ordering::Relaxed) == looks
        };
        (0..usize::from(STACKS_MAX)).filter(|&stack| stack != self.stack).filter(waits).count()
    }

    /// The stack's process holds so many bytes now (0 if another of its stacks says it). Returns what those of all other stacks do, which
    /// say what they like: they are of the same user.
    pub(crate) fn hold(&self, bytes: u64) -> u64 {
        self.word(self.stack, HELD).store(bytes, Ordering::Relaxed);
        let others = (0..usize::from(STACKS_MAX)).filter(|&stack| stack != self.stack);
        others.fold(0, |sum, stack| sum.saturating_add(self.word(stack, HELD).load(Ordering::Relaxed)))
    }

    /// Another number each time that the broker has heard of a change around the interface ([`Changes`]).
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.word(self.stack, CHANGES).load(Ordering::Acquire)
    }

    #[inline]
    fn word(&self, stack: usize, word: usize) -> &AtomicU64 {
        at(&self.mapping, stack, word)
    }
}

/// What the broker tells all stacks: that something has changed around the interface, or in what the host's firewall says, so that what
/// it has granted before may not be what it would grant now.
pub struct Changes(Mapping);

impl core::fmt::Debug for Changes {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("Changes").finish_non_exhaustive()
    }
}

// SAFETY: all access to the mapping is atomic.
unsafe impl Send for Changes {}

impl Changes {
    /// Maps the program's array.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open(array: BorrowedFd<'_>) -> Result<Changes, Error> {
        map(array).map(Changes)
    }

    /// Something has changed, and the broker grants what is right now.
    pub fn note(&self) {
        for stack in 0..usize::from(STACKS_MAX) {
            at(&self.0, stack, CHANGES).fetch_add(1, Ordering::Release);
        }
    }
}

fn map(array: BorrowedFd<'_>) -> Result<Mapping, Error> {
    Mapping::shared(array, 0, usize::from(STACKS_MAX) * PLACE_LEN, "mmap of the pulses")
}

#[inline]
fn at(mapping: &Mapping, stack: usize, word: usize) -> &AtomicU64 {
    debug_assert!(stack < usize::from(STACKS_MAX) && word < PLACE_LEN / size_of::<u64>());
    let at = stack * PLACE_LEN + word * size_of::<u64>();
    // SAFETY: the mapping is STACKS_MAX places long (`map`), which hold `stack` and `word`, and lives as long as the result; a page's beginning
    // is aligned for it. Whoever else looks at it goes by atomic operations, too.
    unsafe { AtomicU64::from_ptr(mapping.as_ptr().as_ptr().add(at).cast::<u64>()) }
}

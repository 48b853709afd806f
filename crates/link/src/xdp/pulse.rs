//! How the XDP program sees that a stack looks at what has come: a number in memory that both share, for each stack a cache line.

use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::BorrowedFd;

use rustix::time::{ClockId, clock_gettime};

use super::memory::STACKS_MAX;
use crate::Error;
use crate::mapping::Mapping;

/// A stack's place: `struct pulse` of the program.
const PLACE_LEN: usize = 64;

/// One stack's number. A frame that is older than the last look and was not followed by another one waits.
pub(crate) struct Pulse {
    mapping: Mapping,
    stack: usize,
    looks: u64,
}

// SAFETY: the mapping lives as long as `self`, and all access to it is atomic.
unsafe impl Send for Pulse {}

impl Pulse {
    /// Maps the program's array and begins to count, from where no stack that had the place before can have been.
    pub(crate) fn open(array: BorrowedFd<'_>, stack: u16) -> Result<Pulse, Error> {
        if stack >= STACKS_MAX {
            return Err(Error::Layout("a stack's number beyond all stacks"));
        }
        let mapping = Mapping::shared(array, 0, usize::from(STACKS_MAX) * PLACE_LEN, "mmap of the pulses")?;
        let now = clock_gettime(ClockId::Monotonic);
        let looks = (now.tv_sec as u64) << 30 | now.tv_nsec as u64 | 1;
        let mut pulse = Pulse { mapping, stack: stack.into(), looks };
        pulse.beat();
        Ok(pulse)
    }

    /// The stack looks at its receive rings now.
    #[inline]
    pub(crate) fn beat(&mut self) {
        self.looks += 1;
        // SAFETY: the mapping is STACKS_MAX places long, and `stack` is one of them; a page's beginning is aligned for it. Whoever
        // else looks at it goes by atomic operations, too.
        let place = unsafe {
            AtomicU64::from_ptr(self.mapping.as_ptr().as_ptr().add(self.stack * PLACE_LEN).cast::<u64>())
        };
        place.store(self.looks, Ordering::Relaxed);
    }
}

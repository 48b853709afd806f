//! The memory as words that either side reads and writes one at a time.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::os::fd::{AsFd, OwnedFd};

use overfly_link::Mapping;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};

use super::{LENGTH, now_us};
use crate::Error;

/// TMPFS_MAGIC (include/uapi/linux/magic.h): ordinary pages. A hole in memory of huge pages can lack a page to fill it: SIGBUS.
const ORDINARY_PAGES: u64 = 0x0102_1994;
/// For how long somebody who writes all the time is read again.
const STEADY_WITHIN: Duration = Duration::from_millis(50);

/// One side's mapping.
pub(super) struct Area(Mapping);

// SAFETY: the mapping is atomics only, and lives as long as this value.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// Maps memory that is as [`super::create`] makes it, and no other: a file that could shrink, of huge pages, or on a file
    /// system that can be full, would be a trap. Only memfd_create(2) gives a file these seals.
    pub(super) fn open(memory: &OwnedFd) -> Result<Area, Error> {
        let length = fstat(memory).map_err(|errno| Error::system("fstat of a memfd", errno))?.st_size;
        let seals = fcntl_get_seals(memory).unwrap_or(SealFlags::empty());
        let kind = fstatfs(memory).map_err(|errno| Error::system("fstatfs of a memfd", errno))?.f_type;
        let ordinary = u64::try_from(kind) == Ok(ORDINARY_PAGES);
        let sealed = seals.contains(SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL));
        if usize::try_from(length) != Ok(LENGTH * 8) || !ordinary || !sealed {
            return Err(Error::Protocol("memory to watch of another shape"));
        }
        Ok(Area(Mapping::sparse(memory.as_fd(), LENGTH * 8, "mmap of what a stack shows")?))
    }

    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        let words: *mut AtomicU64 = self.0.as_ptr().cast().as_ptr();
        // SAFETY: the mapping has LENGTH words, and the index is made to be one of them. Any bits are a valid AtomicU64.
        unsafe { &*words.add(index.min(LENGTH - 1)) }
    }

    pub(super) fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Relaxed)
    }

    pub(super) fn store(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Relaxed);
    }

    /// Writes bytes from a word on, the last word filled up with zeros.
    pub(super) fn write(&self, first: usize, bytes: &[u8]) {
        for (index, piece) in (first..).zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            self.store(index, u64::from_ne_bytes(word));
        }
    }

    /// Reads `length` bytes from a word on.
    pub(super) fn read(&self, first: usize, length: usize) -> Vec<u8> {
        let words = (first..LENGTH).take(length.div_ceil(8));
        let mut bytes: Vec<u8> = words.flat_map(|index| self.load(index).to_ne_bytes()).collect();
        bytes.truncate(length);
        bytes
    }

    /// Runs `change` with the sequence odd, so that readers know that they must read again.
    pub(super) fn change(&self, sequence: usize, change: impl FnOnce(&Area)) {
        let before = self.load(sequence);
        self.store(sequence, before.wrapping_add(1));
        core::sync::atomic::fence(Ordering::Release);
        change(self);
        self.word(sequence).store(before.wrapping_add(2), Ordering::Release);
    }

    /// Runs `read` until nobody wrote meanwhile; what it saw at last if somebody did for [`STEADY_WITHIN`].
    pub(super) fn steadily<T>(&self, sequence: usize, mut read: impl FnMut(&Area) -> T) -> T {
        let end = now_us() + STEADY_WITHIN.as_micros() as u64;
        loop {
            let before = self.word(sequence).load(Ordering::Acquire);
            let seen = read(self);
            core::sync::atomic::fence(Ordering::Acquire);
            if (before.is_multiple_of(2) && self.load(sequence) == before) || now_us() >= end {
                return seen;
            }
            std::thread::yield_now();
        }
    }
}

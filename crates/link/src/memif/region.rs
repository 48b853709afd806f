//! Pieces of shared memory: the client makes them, the server maps what it was given.

use core::ptr::NonNull;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create,
};

use super::ring::{LOG2_RING_SIZE_MAX, Ring, ring_len};
use crate::Error;
use crate::mapping::Mapping;

/// Offsets in a region are 32 bits: no more of a region can be used.
const LEN_MAX: u64 = 1 << 32;

/// What memfds without MFD_HUGETLB are made of (linux/magic.h).
const TMPFS_MAGIC: u32 = 0x0102_1994;

/// A client's memory for `length` bytes, zeroed. Nobody can cut it off under the other end.
pub(crate) fn make(length: usize) -> Result<OwnedFd, Error> {
    let descriptor = memfd_create("overfly-memif", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(|errno| Error::system("memfd_create", errno))?;
    ftruncate(&descriptor, length as u64)
        .map_err(|errno| Error::system("ftruncate of a memif region", errno))?;
    fcntl_add_seals(&descriptor, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(|errno| Error::system("sealing of a memif region", errno))?;
    Ok(descriptor)
}

/// Bytes that all regions of a peer with so many ring pairs may have: room for the longest rings with buffers of 2,048 bytes.
/// What this end touches of it may be charged to this end (cgroup v2, memory), and a peer can give its pages back at any time
/// (FALLOC_FL_PUNCH_HOLE) and have this end pay for them once more; never for more than this.
pub(super) const fn memory_max(pairs: u16) -> u64 {
    let ring = ring_len(LOG2_RING_SIZE_MAX) as u64 + (2048 << LOG2_RING_SIZE_MAX);
    2 * pairs as u64 * ring.next_multiple_of(1 << 20)
}

/// Whether a peer's memory can be used: it is as long as it says and stays so, and a page of it that is not there yet can be
/// had like any other memory. Otherwise why not, in words for the peer.
///
/// (A page of hugetlbfs can be missing: touching it is SIGBUS. userfaultfd(2) is no danger: it is about the peer's mapping, and
/// this end has its own. Nor is a file of FUSE: it has no seals.)
pub(crate) fn check(descriptor: BorrowedFd<'_>, size: u64) -> Result<(), &'static str> {
    if size == 0 || size > LEN_MAX {
        return Err("a region must be 1 byte to 4 GB long");
    }
    let seals = fcntl_get_seals(descriptor).map_err(|_| "a region must be a memfd")?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err("a region must be sealed with F_SEAL_SHRINK");
    }
    if !fstatfs(descriptor).is_ok_and(|system| system.f_type as u32 == TMPFS_MAGIC) {
        return Err("a region must have ordinary pages, no huge ones");
    }
    match fstat(descriptor) {
        Ok(stat) if stat.st_size.cast_unsigned() >= size => Ok(()),
        _ => Err("a region is shorter than it says"),
    }
}

/// A region that is mapped here.
pub(crate) struct Region(Mapping);

// SAFETY: a mapping may be used from any thread; all access goes through raw pointers that `Region` has checked.
unsafe impl Send for Region {}

impl Region {
    /// Maps `size` bytes. `own` memory gets its pages now.
    pub(crate) fn map(descriptor: &OwnedFd, size: u64, own: bool) -> Result<Region, Error> {
        let length =
            usize::try_from(size).map_err(|_| Error::Layout("a region that fits no address space"))?;
        let operation = "mmap of a memif region";
        let mapping = if own {
            Mapping::shared(descriptor.as_fd(), 0, length, operation)
        } else {
            Mapping::foreign(descriptor.as_fd(), length, operation)
        };
        mapping.map(Region)
    }

    /// Bytes that are mapped.
    pub(crate) fn length(&self) -> usize {
        self.0.length()
    }

    /// Where `length` bytes from `offset` are, if the region has them.
    #[inline]
    pub(crate) fn at(&self, offset: u32, length: u32) -> Option<NonNull<u8>> {
        let end = u64::from(offset) + u64::from(length);
        if end > self.0.length() as u64 {
            return None;
        }
        // SAFETY: the range was just found to lie inside the mapping.
        Some(unsafe { self.0.as_ptr().add(offset as usize) })
    }

    /// The ring at `offset`, if it lies inside and is aligned. The caller keeps the region as long.
    pub(crate) fn ring(&self, offset: u32, log2_ring_size: u8) -> Option<Ring> {
        let length = u32::try_from(ring_len(log2_ring_size)).ok()?;
        let base = self.at(offset, length).filter(|_| offset.is_multiple_of(8))?;
        // SAFETY: the bytes lie inside the mapping, which begins at a page; callers limit the size and keep the region.
        Some(unsafe { Ring::new(base, log2_ring_size) })
    }
}

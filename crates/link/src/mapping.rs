//! Shared memory: mapped once, unmapped when dropped.

use core::ffi::c_void;
use core::ptr::NonNull;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::process::{Pid, getpid};

use crate::Error;

/// Bytes of a huge page.
const HUGE_PAGE: usize = 2 << 20;

/// A shared, readable and writable mapping of a descriptor.
pub struct Mapping {
    base: NonNull<u8>,
    length: usize,
    /// The process that has it mapped.
    process: Pid,
}

impl Mapping {
    /// Maps `length` bytes from `offset`, with all pages present. A forked child does not inherit the mapping: a stack
    /// belongs to one process, and a child that went on using its parent's rings would corrupt them.
    pub(crate) fn shared(
        descriptor: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        operation: &'static str,
    ) -> Result<Mapping, Error> {
        Mapping::new(descriptor, offset, length, MapFlags::SHARED | MapFlags::POPULATE, operation)
    }

    /// As [`Mapping::shared`] from the beginning, where a huge page can begin: memory that is made of them takes one entry of the
    /// page table for each of them, not 512.
    pub(crate) fn aligned(
        descriptor: BorrowedFd<'_>,
        length: usize,
        operation: &'static str,
    ) -> Result<Mapping, Error> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        Mapping::at(aligned_room(length), descriptor, 0, length, flags, operation)
    }

    /// Has the kernel put the pages of a memfd together to huge ones, and give it those it does not have yet: before anybody else has
    /// them. False where it cannot (Linux before 6.1, no huge page is free).
    pub(crate) fn gather(descriptor: BorrowedFd<'_>, length: usize) -> bool {
        let whole = length / HUGE_PAGE * HUGE_PAGE;
        let flags = MapFlags::SHARED;
        let Ok(mapping) = Mapping::at(aligned_room(whole), descriptor, 0, whole, flags, "mmap of huge pages")
        else {
            return false;
        };
        let base = mapping.base.as_ptr();
        (0..whole).step_by(HUGE_PAGE).all(|at| {
            // SAFETY: a page within the range that was just mapped comes to be there: nothing is put together where nothing is.
            unsafe { madvise(base.add(at).cast(), 4096, Advice::LinuxPopulateWrite) }.is_ok()
        })
            // SAFETY: of that range the kernel moves what it has to other pages.
            && unsafe { libc::madvise(base.cast(), whole, libc::MADV_COLLAPSE) } == 0
    }

    /// Maps `length` bytes, with pages that come to be there as they are touched: for memory of which little is looked at. A forked
    /// child does not inherit the mapping.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn sparse(
        descriptor: BorrowedFd<'_>,
        length: usize,
        operation: &'static str,
    ) -> Result<Mapping, Error> {
        Mapping::new(descriptor, 0, length, MapFlags::SHARED, operation)
    }

    /// As [`Mapping::shared`], of a descriptor that somebody else made. Where its pages can't be had (vm.overcommit_memory=2, a
    /// file system that is full), this fails; touching them later would be SIGBUS.
    pub(crate) fn foreign(
        descriptor: BorrowedFd<'_>,
        length: usize,
        operation: &'static str,
    ) -> Result<Mapping, Error> {
        let mapping = Mapping::sparse(descriptor, length, operation)?;
        // SAFETY: the range was just mapped; its pages come to be there, as if each had been written to.
        match unsafe { madvise(mapping.base.as_ptr().cast(), length, Advice::LinuxPopulateWrite) } {
            // Linux before 5.14 does not know it.
            Ok(()) | Err(Errno::INVAL) => Ok(mapping),
            Err(errno) => Err(Error::system("having a memif region's pages", errno)),
        }
    }

    fn new(
        descriptor: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        flags: MapFlags,
        operation: &'static str,
    ) -> Result<Mapping, Error> {
        Mapping::at(core::ptr::null_mut(), descriptor, offset, length, flags, operation)
    }

    /// At that address if it is free.
    fn at(
        address: *mut c_void,
        descriptor: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        flags: MapFlags,
        operation: &'static str,
    ) -> Result<Mapping, Error> {
        // SAFETY: a new mapping at an address of the kernel's choice (no MAP_FIXED) disturbs no memory of this process.
        let base =
            unsafe { mmap(address, length, ProtFlags::READ | ProtFlags::WRITE, flags, descriptor, offset) }
                .map_err(|errno| Error::system(operation, errno))?;
        let mapping = Mapping {
            base: NonNull::new(base.cast()).ok_or(Error::Layout("mmap returned address 0"))?,
            length,
            process: getpid(),
        };
        // SAFETY: the range was mapped above; DontFork only changes what a later fork copies.
        unsafe { madvise(base, length, Advice::LinuxDontFork) }
            .map_err(|errno| Error::system("madvise(MADV_DONTFORK)", errno))?;
        Ok(mapping)
    }

    /// Where it begins.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.base
    }

    /// Its bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }
}

/// Where so many bytes would begin at a huge page's boundary: nobody has them at this moment. Null if there is no room.
fn aligned_room(length: usize) -> *mut c_void {
    let room = length + HUGE_PAGE;
    let (access, flags) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a new mapping at an address of the kernel's choice disturbs no memory of this process; nobody touches it.
    let Ok(base) = (unsafe { mmap_anonymous(core::ptr::null_mut(), room, access, flags) }) else {
        return core::ptr::null_mut();
    };
    // SAFETY: exactly what was just mapped.
    let _ = unsafe { munmap(base, room) };
    base.map_addr(|address| address.next_multiple_of(HUGE_PAGE))
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a forked child something else may be mapped there by now.
        if getpid() != self.process {
            return;
        }
        // SAFETY: exactly the range that `new` mapped; whoever holds pointers into it owns this mapping and goes first.
        let _ = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.length) };
    }
}

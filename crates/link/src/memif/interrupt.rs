//! Waking a peer through an eventfd that it may have filled and made to block.
//!
//! Both ends of a ring have the same open file of an eventfd, so its O_NONBLOCK is the peer's to clear at any time: looking
//! first and writing then is a race, and pwritev2(RWF_NOWAIT) is not supported for eventfds (EOPNOTSUPP, Linux 6.18). What
//! never waits is the kernel's own way to signal one, `eventfd_signal()` in fs/eventfd.c, which saturates. Asynchronous I/O
//! reaches it: a request with `IOCB_FLAG_RESFD` signals that descriptor when it is done. The request is a poll of the eventfd
//! itself for reading and writing: a counter is always good for one of the two, so it is done at once, in the same system
//! call. io_submit(2) refuses a descriptor that is no eventfd.

use core::ffi::{c_long, c_ulong};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::Error;

/// `struct iocb` of linux/aio_abi.h.
#[derive(Default)]
#[repr(C)]
struct Request {
    data: u64,
    key_and_flags: [u32; 2],
    operation: u16,
    priority: i16,
    descriptor: u32,
    /// Of a poll: the events.
    buffer: u64,
    length: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    signalled: u32,
}

/// `struct io_event`.
type Completion = [u64; 4];

/// `IOCB_CMD_POLL`, since Linux 4.18.
const POLL: u16 = 5;
/// `IOCB_FLAG_RESFD`.
const SIGNALS: u32 = 1;
/// Requests that can be under way, and that are taken back at a time: each is done when `ring` returns, but stays counted until
/// somebody asks for it. The kernel takes this number from `fs.aio-max-nr`.
const REQUESTS: usize = 64;
/// Tries to make a request: what was taken back may be another thread's before this one asks again.
const ATTEMPTS: u32 = 64;
const PAGE: usize = 4096;

/// The process's context for asynchronous I/O: a page that holds its number, which the kernel empties in a forked child. (The
/// child has no such context.)
static CONTEXT: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

/// Rings for peers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ringer {
    context: c_ulong,
}

impl Ringer {
    /// The one that all links of this process share.
    ///
    /// # Errors
    /// [`Error::MemifInterrupts`], or what the kernel said.
    pub(super) fn of_this_process() -> Result<Ringer, Error> {
        let page = page()?;
        let known = page.load(Ordering::Acquire);
        if known != 0 {
            return Ok(Ringer { context: known });
        }
        let mut made: c_ulong = 0;
        // SAFETY: io_setup writes the number of the new context.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, REQUESTS, &raw mut made) };
        taken(result).map_err(|errno| Error::MemifInterrupts { errno })?;
        match page.compare_exchange(0, made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(Ringer { context: made }),
            Err(other) => {
                // SAFETY: nobody but this thread knows of it.
                unsafe { libc::syscall(libc::SYS_io_destroy, made) };
                Ok(Ringer { context: other })
            }
        }
    }

    /// Adds one to an eventfd, whatever the peer made of it, without waiting. False if the kernel has no memory for that, or if
    /// it is no eventfd.
    pub(super) fn ring(self, eventfd: BorrowedFd<'_>) -> bool {
        let number = eventfd.as_raw_fd().cast_unsigned();
        let mut request = Request {
            operation: POLL,
            descriptor: number,
            buffer: (libc::POLLIN | libc::POLLOUT) as u64,
            flags: SIGNALS,
            signalled: number,
            ..Request::default()
        };
        let mut requests = [&raw mut request];
        for _ in 0..ATTEMPTS {
            // SAFETY: one request, which the kernel has read when the call returns; it points to no memory.
            let result = unsafe {
                libc::syscall(libc::SYS_io_submit, self.context, 1 as c_long, requests.as_mut_ptr())
            };
            match taken(result) {
                Ok(_) => return true,
                Err(Errno::AGAIN) => self.take_back(),
                Err(_) => return false,
            }
        }
        false
    }

    /// Takes back requests that are done.
    #[cold]
    fn take_back(self) {
        let mut completions = [MaybeUninit::<Completion>::uninit(); REQUESTS];
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            // SAFETY: the kernel writes that many completions at most, and reads the time.
            let result = unsafe {
                libc::syscall(
                    libc::SYS_io_getevents,
                    self.context,
                    0 as c_long,
                    REQUESTS as c_long,
                    completions.as_mut_ptr(),
                    &raw const now,
                )
            };
            if taken(result) != Ok(REQUESTS) {
                return;
            }
        }
    }
}

/// What a system call of libc's returned.
fn taken(result: c_long) -> Result<usize, Errno> {
    usize::try_from(result)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
}

fn page() -> Result<&'static AtomicU64, Error> {
    let known = CONTEXT.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: a page that stays mapped, and is only used as an atomic.
        return Ok(unsafe { &*known });
    }
    // SAFETY: new memory at an address of the kernel's choice, zeroed.
    let made = unsafe {
        mmap_anonymous(ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }
    .map_err(|errno| Error::system("mmap", errno))?;
    // SAFETY: the page was mapped above; the advice only changes what a forked child finds in it.
    let advised = unsafe { madvise(made, PAGE, Advice::LinuxWipeOnFork) };
    let exchanged = match advised {
        Ok(()) => CONTEXT
            .compare_exchange(ptr::null_mut(), made.cast(), Ordering::AcqRel, Ordering::Acquire)
            .map_or_else(Ok, |_| Ok(made.cast())),
        Err(errno) => Err(Error::system("madvise(MADV_WIPEONFORK)", errno)),
    };
    if exchanged.as_ref().ok() != Some(&made.cast()) {
        // SAFETY: nobody but this thread knows of the page.
        let _ = unsafe { munmap(made, PAGE) };
    }
    // SAFETY: as above.
    exchanged.map(|page| unsafe { &*page })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn count(eventfd: impl AsFd) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::read(eventfd, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn it_adds_one_however_often_and_from_several_threads() {
        let ringer = Ringer::of_this_process().unwrap();
        let descriptor = eventfd(0, EventfdFlags::empty()).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..5000).for_each(|_| assert!(ringer.ring(descriptor.as_fd()))));
            }
        });
        assert_eq!(count(&descriptor), 20_000);
    }

    /// A write would wait here for ever.
    #[test]
    fn a_full_eventfd_that_blocks_is_no_hindrance() {
        let ringer = Ringer::of_this_process().unwrap();
        let descriptor = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&descriptor, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        (0..1000).for_each(|_| assert!(ringer.ring(descriptor.as_fd())));
        assert_eq!(count(&descriptor), u64::MAX);
    }

    #[test]
    fn what_is_no_eventfd_is_not_written_to() {
        let ringer = Ringer::of_this_process().unwrap();
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        assert!(!ringer.ring(write.as_fd()));
        assert_eq!(rustix::io::read(&read, &mut [0; 1]), Err(Errno::AGAIN));
    }

    /// A forked child has its parent's memory, but not its context.
    #[test]
    fn a_forked_child_makes_its_own() {
        Ringer::of_this_process().unwrap();
        let descriptor = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        // SAFETY: the child only makes system calls, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let rung = Ringer::of_this_process().is_ok_and(|ringer| ringer.ring(descriptor.as_fd()));
            // SAFETY: it ends the child without running anything of the test's.
            unsafe { libc::_exit(i32::from(!rung)) };
        }
        let mut status = 0;
        // SAFETY: the kernel writes the child's status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((status, count(&descriptor)), (0, 1));
    }
}

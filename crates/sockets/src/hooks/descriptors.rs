//! close, dup, fcntl, ioctl.

use core::ffi::{c_int, c_uint, c_ulong};

use rustix::io::Errno;

use super::{count, done, fail, next, set_errno};
use crate::calls::{Answer, data, life, options};
use crate::cancel;
use crate::memory::is_plausible;
use crate::process::is_active;
use crate::table::is_ours;

/// include/uapi/linux/sockios.h
const SIOCOUTQNSD: c_ulong = 0x894b;

/// # Safety
/// As for close(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn close(descriptor: c_int) -> c_int {
    cancel::point();
    if is_ours(descriptor)
        && let Answer::Done(outcome) = life::close(descriptor)
    {
        return done(outcome);
    }
    // SAFETY: the program's argument, handed on.
    unsafe { next::close(descriptor) }
}

/// # Safety
/// As for close_range(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOSE_RANGE_CLOEXEC: c_int = 4;
    if !is_active() || flags & CLOSE_RANGE_CLOEXEC != 0 || first > last {
        // SAFETY: the program's arguments, handed on.
        return unsafe { next::close_range(first, last, flags) };
    }
    let mut result = 0;
    life::close_range(first, last, |from, to| {
        // SAFETY: a part of the program's range.
        if unsafe { next::close_range(from, to, flags) } != 0 {
            result = -1;
        }
    });
    result
}

/// # Safety
/// As for closefrom(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: the program's argument, handed on.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

/// # Safety
/// As for dup(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup(descriptor: c_int) -> c_int {
    if options::is_closed(descriptor) {
        return fail(Errno::BADF);
    }
    // SAFETY: the program's argument, handed on.
    let new = unsafe { next::dup(descriptor) };
    if new >= 0 {
        life::duplicated(descriptor, new);
    }
    new
}

/// # Safety
/// As for dup2(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if old == new {
        // SAFETY: the program's arguments, handed on.
        return if options::is_closed(old) { fail(Errno::BADF) } else { unsafe { next::dup2(old, new) } };
    }
    // SAFETY: the program's arguments, handed on.
    replace(old, new, || unsafe { next::dup2(old, new) })
}

/// # Safety
/// As for dup3(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // Before `new` is closed (ksys_dup3() in fs/file.c).
    if old == new || flags & !libc::O_CLOEXEC != 0 {
        return fail(Errno::INVAL);
    }
    // SAFETY: the program's arguments, handed on.
    replace(old, new, || unsafe { next::dup3(old, new, flags) })
}

fn replace(old: c_int, new: c_int, in_kernel: impl FnOnce() -> c_int) -> c_int {
    if !is_active() {
        return in_kernel();
    }
    // An invalid `old` must leave `new` alone.
    if options::is_closed(old) || rustix::io::fcntl_getfd(crate::kernel::borrow(old)).is_err() || old < 0 {
        return fail(Errno::BADF);
    }
    if let Err(error) = life::about_to_replace(new) {
        return fail(error);
    }
    let result = in_kernel();
    if result >= 0 {
        life::duplicated(old, new);
    }
    result
}

/// # Safety
/// As for fcntl(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fcntl(descriptor: c_int, command: c_int, argument: c_ulong) -> c_int {
    if !is_ours(descriptor) {
        // SAFETY: the program's arguments, handed on. The ABI passes a variadic argument of an integer's or pointer's
        // size as it passes a named one.
        return unsafe { next::fcntl(descriptor, command, argument) };
    }
    // With the lock in its hands nobody asks but the library.
    let holding = crate::sys::sleep_control(|sleep_control| {
        sleep_control.holding.load(core::sync::atomic::Ordering::Relaxed)
    });
    if options::is_closed(descriptor) && !holding {
        return fail(Errno::BADF);
    }
    match command {
        libc::F_GETFL => {
            if let Answer::Done(outcome) = options::status_flags(descriptor) {
                return outcome.unwrap_or_else(fail);
            }
        }
        libc::F_SETFL => {
            if let Answer::Done(outcome) =
                options::set_nonblocking(descriptor, argument as c_int & libc::O_NONBLOCK != 0)
            {
                return done(outcome);
            }
        }
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            // SAFETY: the program's arguments, handed on.
            let new = unsafe { next::fcntl(descriptor, command, argument) };
            if new >= 0 {
                life::duplicated(descriptor, new);
            }
            return new;
        }
        libc::F_SETFD => options::close_on_exec_changed(descriptor),
        _ => {}
    }
    // SAFETY: the program's arguments, handed on.
    unsafe { next::fcntl(descriptor, command, argument) }
}

/// # Safety
/// As for fcntl(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fcntl64(descriptor: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: the program's arguments, handed on.
    unsafe { fcntl(descriptor, command, argument) }
}

/// # Safety
/// As for ioctl(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ioctl(descriptor: c_int, request: c_ulong, argument: c_ulong) -> c_int {
    if is_ours(descriptor) {
        if options::is_closed(descriptor) {
            return fail(Errno::BADF);
        }
        let number = argument as *mut c_int;
        let answer = match request {
            libc::FIONBIO if is_plausible(number, size_of::<c_int>()) => {
                // SAFETY: FIONBIO's argument points to an int, which may stand anywhere.
                match options::set_nonblocking(descriptor, unsafe { number.read_unaligned() } != 0) {
                    Answer::Kernel => Answer::Kernel,
                    Answer::Done(outcome) => return done(outcome),
                }
            }
            libc::FIONREAD => data::queued(descriptor, data::Queue::Received),
            libc::TIOCOUTQ => data::queued(descriptor, data::Queue::Unacknowledged),
            SIOCOUTQNSD => data::queued(descriptor, data::Queue::Unsent),
            _ => Answer::Kernel,
        };
        if let Answer::Done(outcome) = answer {
            let Ok(bytes) = outcome else { return count(outcome) as c_int };
            if !is_plausible(number, size_of::<c_int>()) {
                set_errno(libc::EFAULT);
                return -1;
            }
            // SAFETY: as above, for FIONREAD and SIOCOUTQ.
            unsafe { number.write_unaligned(bytes.min(c_int::MAX as usize) as c_int) };
            return 0;
        }
    }
    // SAFETY: the program's arguments, handed on; for the variadic argument see `fcntl`.
    unsafe { next::ioctl(descriptor, request, argument) }
}

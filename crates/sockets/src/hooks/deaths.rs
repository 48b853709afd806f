//! A process sends itself a signal, which may end it: what is held back leaves first. On the kernel it would have left with the call
//! that wrote it.

use core::ffi::c_int;

use libc::pid_t;

use super::next;
use crate::process::before_own_signal;

/// # Safety
/// As for abort(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn abort() -> ! {
    before_own_signal();
    // SAFETY: no arguments.
    unsafe { next::abort() };
    // The next function does not come back; if there is none, this status is what a shell says of SIGABRT.
    crate::sys::exit(128 + libc::SIGABRT)
}

/// # Safety
/// As for raise(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn raise(signal: c_int) -> c_int {
    if signal != 0 {
        before_own_signal();
    }
    // SAFETY: the program's argument, handed on.
    unsafe { next::raise(signal) }
}

/// # Safety
/// As for kill(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn kill(process: pid_t, signal: c_int) -> c_int {
    // Zero and below are groups, which this process may be in.
    if signal != 0 && (process <= 0 || process == rustix::process::getpid().as_raw_nonzero().get()) {
        before_own_signal();
    }
    // SAFETY: the program's arguments, handed on.
    unsafe { next::kill(process, signal) }
}

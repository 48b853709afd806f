//! A program sleeps, or waits for its children: what is held back leaves first.

use core::ffi::{c_int, c_uint};

use libc::{id_t, idtype_t, pid_t, rusage, siginfo_t, timespec};

use super::next;
use crate::process::before_kernel_wait;

/// # Safety
/// As for nanosleep(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int {
    before_kernel_wait();
    // SAFETY: the program's arguments, handed on.
    unsafe { next::nanosleep(time, left) }
}

/// # Safety
/// As for clock_nanosleep(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn clock_nanosleep(
    clock: c_int,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> c_int {
    before_kernel_wait();
    // SAFETY: the program's arguments, handed on.
    unsafe { next::clock_nanosleep(clock, flags, time, left) }
}

/// # Safety
/// As for usleep(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn usleep(time: c_uint) -> c_int {
    before_kernel_wait();
    // SAFETY: the program's argument, handed on.
    unsafe { next::usleep(time) }
}

/// # Safety
/// As for sleep(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sleep(time: c_uint) -> c_uint {
    before_kernel_wait();
    // SAFETY: the program's argument, handed on.
    unsafe { next::sleep(time) }
}

/// # Safety
/// As for wait(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn wait(status: *mut c_int) -> pid_t {
    before_kernel_wait();
    // SAFETY: the program's arguments, handed on.
    unsafe { next::wait(status) }
}

/// # Safety
/// As for waitpid(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn waitpid(process: pid_t, status: *mut c_int, options: c_int) -> pid_t {
    before_kernel_wait();
    // SAFETY: the program's arguments, handed on.
    unsafe { next::waitpid(process, status, options) }
}

/// # Safety
/// As for wait3(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn wait3(status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t {
    before_kernel_wait();
    // SAFETY: the program's arguments, handed on.
    unsafe { next::wait3(status, options, usage) }
}

/// # Safety
/// As for wait4(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn wait4(
    process: pid_t,
    status: *mut c_int,
    options: c_int,
    usage: *mut rusage,
) -> pid_t {
    before_kernel_wait();
    // SAFETY: the program's arguments, handed on.
    unsafe { next::wait4(process, status, options, usage) }
}

/// # Safety
/// As for waitid(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn waitid(
    kind: idtype_t,
    id: id_t,
    information: *mut siginfo_t,
    options: c_int,
) -> c_int {
    before_kernel_wait();
    // SAFETY: the program's arguments, handed on.
    unsafe { next::waitid(kind, id, information, options) }
}

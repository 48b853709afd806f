//! The process's life: loading, forks, signals, and the end.

use core::ffi::c_int;

use libc::{pid_t, sigaction as Action, sighandler_t};

use super::next;
use crate::process::{after_fork_in_child, after_fork_in_parent, before_fork, finish, is_active, load};
use crate::signal;

/// Runs when the library is loaded, before the program's own constructors.
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = {
    extern "C" fn on_load() {
        load();
        if is_active() {
            // SAFETY: the functions have the type that is asked for, and stay: the library is never unloaded.
            unsafe {
                libc::pthread_atfork(Some(on_fork), Some(on_fork_parent), Some(on_fork_child));
                libc::atexit(on_exit);
            }
        }
    }
    on_load
};

extern "C" fn on_fork() {
    before_fork();
}

extern "C" fn on_fork_parent() {
    after_fork_in_parent();
}

extern "C" fn on_fork_child() {
    after_fork_in_child();
}

extern "C" fn on_exit() {
    finish();
}

/// # Safety
/// As for _exit(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    finish();
    // SAFETY: the program's argument, handed on.
    unsafe { next::_exit(status) };
    // The next function does not come back; if there is none the kernel's call does it.
    crate::sys::exit(status)
}

/// # Safety
/// As for _Exit(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: the program's argument, handed on.
    unsafe { _exit(status) }
}

/// A vfork's child shares the parent's memory, and closes descriptors: it would do so in the parent's table. A fork's has
/// its own, and POSIX allows the one to be the other.
///
/// # Safety
/// As for vfork(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> pid_t {
    // SAFETY: no arguments.
    unsafe { next::fork() }
}

/// # Safety
/// As for sigaction(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    if !is_active() {
        // SAFETY: the program's arguments, handed on.
        return unsafe { next::sigaction(signal, new, old) };
    }
    // SAFETY: the program lends the record for the call if it is not null.
    let wanted = unsafe { new.as_ref() }.copied();
    let before = match wanted {
        Some(wanted) if is_function(wanted.sa_sigaction) => signal::install(
            signal,
            signal::Installed { function: wanted.sa_sigaction, flags: wanted.sa_flags },
        ),
        _ => signal::installed(signal),
    };
    let wrapped = wanted.map(|mut wanted| {
        if is_function(wanted.sa_sigaction) {
            wanted.sa_sigaction = signal::wrapper();
            wanted.sa_flags |= libc::SA_SIGINFO;
        }
        wanted
    });
    // SAFETY: an all-zero record is valid.
    let mut previous: Action = unsafe { core::mem::zeroed() };
    // SAFETY: our own records.
    let result = unsafe {
        next::sigaction(
            signal,
            wrapped.as_ref().map_or(core::ptr::null(), |wrapped| &raw const *wrapped),
            &raw mut previous,
        )
    };
    if result != 0 {
        if let Some(before) = before {
            signal::install(signal, before);
        }
        return result;
    }
    if previous.sa_sigaction == signal::wrapper()
        && let Some(before) = before
    {
        previous.sa_sigaction = before.function;
        previous.sa_flags = before.flags;
    }
    // SAFETY: the program lends the record for the call if it is not null.
    if let Some(old) = unsafe { old.as_mut() } {
        *old = previous;
    }
    result
}

fn is_function(handler: sighandler_t) -> bool {
    handler != libc::SIG_DFL && handler != libc::SIG_IGN
}

/// # Safety
/// As for signal(2), with BSD's semantics as glibc has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    if !is_active() {
        // SAFETY: the program's arguments, handed on.
        return unsafe { next::signal(number, handler) };
    }
    // SAFETY: an all-zero record is valid.
    let (mut new, mut old): (Action, Action) = unsafe { core::mem::zeroed() };
    new.sa_sigaction = handler;
    new.sa_flags = libc::SA_RESTART;
    // SAFETY: our own records.
    unsafe {
        libc::sigaddset(&raw mut new.sa_mask, number);
        if sigaction(number, &raw const new, &raw mut old) == 0 { old.sa_sigaction } else { libc::SIG_ERR }
    }
}

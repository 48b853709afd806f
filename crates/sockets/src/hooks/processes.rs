//! The process's life: loading, forks, signals, and the end.

use core::ffi::{c_int, c_void};

use libc::{pid_t, pthread_t, sigaction as Action, sighandler_t};

use super::next;
use crate::process::{
    after_fork_in_child, after_fork_in_parent, before_fork, finish, is_active, load, wake_everybody,
};
use crate::{cancel, signal};

/// Runs when the library is loaded, before the program's own constructors.
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = {
    extern "C" fn on_load() {
        load();
        if is_active() {
            accompany();
        }
    }
    on_load
};

/// The library is there when the program forks, and at its end.
pub(crate) fn accompany() {
    a_fault_of_ours_ends_the_program();
    // SAFETY: the functions have the type that is asked for, and stay: the library is never unloaded.
    unsafe {
        libc::pthread_atfork(Some(on_fork), Some(on_fork_parent), Some(on_fork_child));
        libc::atexit(on_exit);
    }
}

/// The library is built to be unwound, because that is how libc ends a cancelled thread. A panic is to go no further than here: the
/// program's own frames may be C++, and take it for an exception of theirs.
fn a_fault_of_ours_ends_the_program() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

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
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    finish();
    // SAFETY: the program's argument, handed on.
    unsafe { next::_exit(status) };
    // The next function does not come back; if there is none the kernel's call does it.
    crate::sys::exit(status)
}

/// # Safety
/// As for _Exit(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: the program's argument, handed on.
    unsafe { _exit(status) }
}

/// A vfork's child shares the parent's memory, and closes descriptors: it would do so in the parent's table. A fork's has
/// its own, and POSIX allows the one to be the other.
///
/// # Safety
/// As for vfork(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn vfork() -> pid_t {
    // SAFETY: no arguments.
    unsafe { next::fork() }
}

/// What `clone` starts for the program: in the child, on its stack.
struct Start {
    function: next::Started,
    argument: *mut c_void,
}

extern "C" fn start(record: *mut c_void) -> c_int {
    // SAFETY: the parent's record, of which this process has a copy.
    let Start { function, argument } = unsafe { core::ptr::read(record.cast::<Start>()) };
    after_fork_in_child();
    let status = function(argument);
    // libc would end the thread without a call that could be seen, and the library's own would live on.
    finish();
    crate::sys::exit(status)
}

/// Does what forks, and what has to be done before and after.
pub(super) fn forking<T: Copy + PartialEq + From<i8>>(fork: impl FnOnce() -> T) -> T {
    before_fork();
    let result = fork();
    if result == T::from(0) {
        after_fork_in_child();
    } else {
        after_fork_in_parent();
    }
    result
}

/// # Safety
/// As for _Fork(3): fork() without the handlers.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn _Fork() -> pid_t {
    // SAFETY: no arguments.
    forking(|| unsafe { next::_Fork() })
}

/// A child with memory of its own is a fork's. (What is variadic is where a function of so many arguments has it.)
///
/// # Safety
/// As for clone(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn clone(
    function: next::Started,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut c_void,
    storage: *mut c_void,
    child: *mut c_void,
) -> c_int {
    if !is_active() || flags & libc::CLONE_VM != 0 {
        // SAFETY: the program's arguments, handed on.
        return unsafe { next::clone(function, stack, flags, argument, parent, storage, child) };
    }
    let mut record = Start { function, argument };
    before_fork();
    // SAFETY: the program's arguments, handed on, but for what the child does first.
    let result = unsafe {
        next::clone(start, stack, flags, (&raw mut record).cast::<c_void>(), parent, storage, child)
    };
    after_fork_in_parent();
    result
}

/// # Safety
/// As for pthread_cancel(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_cancel(thread: pthread_t) -> c_int {
    // SAFETY: the program's argument, handed on.
    let result = unsafe { next::pthread_cancel(thread) };
    if result == 0 && is_active() {
        cancel::note_thread(thread);
        wake_everybody();
    }
    result
}

/// # Safety
/// As for pthread_setcanceltype(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int {
    const ASYNCHRONOUS: c_int = 1;
    if kind == ASYNCHRONOUS && is_active() {
        cancel::wrap_handler(cancel_somebody);
    }
    // SAFETY: the program's arguments, handed on.
    unsafe { next::pthread_setcanceltype(kind, before) }
}

/// Cancels a thread that does nothing.
fn cancel_somebody() {
    let thread = std::thread::spawn(std::thread::park);
    // SAFETY: the thread is there until it is joined; it ends in park(), or when that returns.
    unsafe { next::pthread_cancel(std::os::unix::thread::JoinHandleExt::as_pthread_t(&thread)) };
    thread.thread().unpark();
    let _ = thread.join();
}

/// # Safety
/// As for sigaction(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the program's arguments, handed on.
    unsafe { change_action(signal, new, old) }
}

/// What all names of sigaction(2) come to. Not by one of these names: the program may have a function of its own there, which goes
/// on to the next one, which is ours (Erlang's `erts/emulator/sys/unix/sys_signal_stack.c`).
///
/// # Safety
/// As for sigaction(2).
unsafe fn change_action(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
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
            // The wrapper sees to it.
            wanted.sa_flags &= !libc::SA_RESETHAND;
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
#[cfg_attr(not(test), unsafe(no_mangle))]
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
        if change_action(number, &raw const new, &raw mut old) == 0 {
            old.sa_sigaction
        } else {
            libc::SIG_ERR
        }
    }
}

/// # Safety
/// As for sigaction(2): libc's other name for it.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __sigaction(number: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the program's arguments, handed on.
    unsafe { change_action(number, new, old) }
}

/// # Safety
/// As for bsd_signal(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the program's arguments, handed on.
    unsafe { signal(number, handler) }
}

/// # Safety
/// As for signal(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ssignal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the program's arguments, handed on.
    unsafe { signal(number, handler) }
}

/// A handler for one signal, which another one, and the same again, may interrupt.
///
/// # Safety
/// As for sysv_signal(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: an all-zero record is valid.
    let (mut new, mut old): (Action, Action) = unsafe { core::mem::zeroed() };
    new.sa_sigaction = handler;
    new.sa_flags = libc::SA_RESETHAND | libc::SA_NODEFER;
    // SAFETY: our own records.
    if unsafe { change_action(number, &raw const new, &raw mut old) } == 0 {
        old.sa_sigaction
    } else {
        libc::SIG_ERR
    }
}

/// # Safety
/// As for sysv_signal(3): what signal() is to a program for X/Open's older interface.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the program's arguments, handed on.
    unsafe { sysv_signal(number, handler) }
}

/// # Safety
/// As for sigset(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigset(number: c_int, disposition: sighandler_t) -> sighandler_t {
    const HOLD: sighandler_t = 2;
    // SAFETY: all-zero records are valid.
    let (mut set, mut before, mut new, mut old): (libc::sigset_t, libc::sigset_t, Action, Action) =
        unsafe { core::mem::zeroed() };
    new.sa_sigaction = disposition;
    // SAFETY: our own records.
    unsafe {
        libc::sigemptyset(&raw mut set);
        if libc::sigaddset(&raw mut set, number) != 0 {
            return libc::SIG_ERR;
        }
        let (new, how) = match disposition {
            HOLD => (core::ptr::null(), libc::SIG_BLOCK),
            _ => (&raw const new, libc::SIG_UNBLOCK),
        };
        if change_action(number, new, &raw mut old) != 0
            || libc::pthread_sigmask(how, &raw const set, &raw mut before) != 0
        {
            return libc::SIG_ERR;
        }
        if libc::sigismember(&raw const before, number) == 1 { HOLD } else { old.sa_sigaction }
    }
}

/// # Safety
/// As for siginterrupt(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn siginterrupt(number: c_int, interrupts: c_int) -> c_int {
    // SAFETY: an all-zero record is valid.
    let mut action: Action = unsafe { core::mem::zeroed() };
    // SAFETY: our own record.
    unsafe {
        if change_action(number, core::ptr::null(), &raw mut action) != 0 {
            return -1;
        }
        action.sa_flags &= !libc::SA_RESTART;
        action.sa_flags |= if interrupts == 0 { libc::SA_RESTART } else { 0 };
        change_action(number, &raw const action, core::ptr::null_mut())
    }
}

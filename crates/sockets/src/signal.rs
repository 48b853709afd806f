//! Signal handlers: each of the program's is wrapped, so that a waiting call that spins at user level is interrupted as
//! one in the kernel would be, and so that no handler runs while its thread holds the process lock.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use crate::sys;

/// Signals that Linux has, 0 unused.
const SIGNALS: usize = 65;
/// Those from here on queue instead of merging, so they are never deferred.
const FIRST_REALTIME: c_int = 32;

struct Handler {
    /// The program's `sa_handler` or `sa_sigaction`.
    function: AtomicUsize,
    flags: AtomicI32,
}

static HANDLERS: [Handler; SIGNALS] =
    [const { Handler { function: AtomicUsize::new(0), flags: AtomicI32::new(0) } }; SIGNALS];

/// The program's handler for a signal, and its flags.
#[derive(Clone, Copy)]
pub(crate) struct Installed {
    /// Address of the function.
    pub(crate) function: usize,
    /// SA_* flags.
    pub(crate) flags: c_int,
}

/// The wrapper's address, for `sa_sigaction`.
pub(crate) fn wrapper() -> usize {
    run as *const () as usize
}

/// What the wrapper calls for `signal`.
pub(crate) fn installed(signal: c_int) -> Option<Installed> {
    let handler = HANDLERS.get(usize::try_from(signal).ok()?)?;
    Some(Installed {
        function: handler.function.load(Ordering::Acquire),
        flags: handler.flags.load(Ordering::Acquire),
    })
}

/// Changes what the wrapper calls for `signal`; returns what it called before.
pub(crate) fn install(signal: c_int, new: Installed) -> Option<Installed> {
    let before = installed(signal)?;
    let handler = HANDLERS.get(usize::try_from(signal).ok()?)?;
    handler.flags.store(new.flags, Ordering::Release);
    handler.function.store(new.function, Ordering::Release);
    Some(before)
}

/// These are a thread's own doing: its next instruction depends on the handler.
const fn is_synchronous(signal: c_int) -> bool {
    matches!(
        signal,
        libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP | libc::SIGSYS
    )
}

extern "C" fn run(signal: c_int, details: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(handler) = installed(signal) else { return };
    sys::note_signal(handler.flags & libc::SA_RESTART != 0);
    let deferred = sys::doze(|doze| {
        if !doze.holding.load(Ordering::Relaxed) || is_synchronous(signal) || signal >= FIRST_REALTIME {
            return false;
        }
        // SAFETY: only this thread, and its handlers one at a time for each signal, touch its slot; the kernel passed
        // a valid record.
        unsafe { (*doze.details.get())[signal as usize].write(*details) };
        doze.deferred.fetch_or(1 << signal, Ordering::Relaxed);
        true
    });
    if !deferred {
        // SAFETY: the program installed this function for this signal with these flags.
        unsafe { invoke(handler, signal, details, context) };
    }
}

/// Runs the handlers that waited for the lock.
#[cold]
pub(crate) fn run_deferred() {
    loop {
        let signals = sys::doze(|doze| doze.deferred.swap(0, Ordering::Relaxed));
        if signals == 0 {
            return;
        }
        for signal in (1..FIRST_REALTIME).filter(|signal| signals & (1 << signal) != 0) {
            // SAFETY: the bit says that the slot was written.
            let mut details =
                sys::doze(|doze| unsafe { (*doze.details.get())[signal as usize].assume_init() });
            if let Some(handler) = installed(signal) {
                // SAFETY: as in `run`. The context of the interrupted code is gone: handlers of asynchronous signals
                // have no use for it.
                unsafe { invoke(handler, signal, &raw mut details, core::ptr::null_mut()) };
            }
        }
    }
}

/// Calls the program's handler.
///
/// # Safety
/// `handler` must be what the program installed, and the pointers what the kernel passed.
unsafe fn invoke(handler: Installed, signal: c_int, details: *mut libc::siginfo_t, context: *mut c_void) {
    if handler.function == libc::SIG_DFL || handler.function == libc::SIG_IGN {
        return;
    }
    if handler.flags & libc::SA_SIGINFO != 0 {
        // SAFETY: with SA_SIGINFO a handler has this type (sigaction(2)).
        let function: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
            unsafe { core::mem::transmute(handler.function) };
        function(signal, details, context);
    } else {
        // SAFETY: without SA_SIGINFO a handler has this type (sigaction(2)).
        let function: extern "C" fn(c_int) = unsafe { core::mem::transmute(handler.function) };
        function(signal);
    }
}

//! Signal handlers: each of the program's is wrapped, so that a waiting call that spins at user level is interrupted as
//! one in the kernel would be, and so that no handler runs while its thread holds the process lock.
//!
//! A signal that comes while it does, of whatever number, is blocked where it interrupted the thread and queued again for it
//! alone; the kernel delivers it once more when the lock is released and the signal unblocked. So its handler runs as if it had
//! come then: with its own mask, stack, context, and all that came with the signal; and signals that queue stay in order, and none
//! is lost if the kernel has no room to queue it again. A handler that does not come back, but jumps, leaves nothing behind: no lock is held, and what the thread waited for it is no
//! longer counted as waiting for.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use crate::sys;

/// Signals that Linux has, 0 unused.
const SIGNALS: usize = 65;
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
    // SAFETY: the kernel passed a valid record.
    let code = unsafe { (*details).si_code };
    if sys::sleep_control(|sleep_control| sleep_control.holding.load(Ordering::Relaxed)) {
        // Codes above zero are the kernel's own (SI_FROMUSER() in Linux): this one cannot wait.
        if !(is_synchronous(signal) && code > 0) {
            // SAFETY: the kernel passed both.
            return unsafe { defer(signal, details, context) };
        }
    } else {
        crate::process::stops_waiting();
        crate::calls::hold::interrupted();
    }
    if let Some(slot) = queue_slot(signal) {
        // SAFETY: as above.
        unsafe { in_order(slot, signal, details) };
    }
    if handler.flags & libc::SA_RESETHAND != 0 {
        // The kernel was not told: a signal that was deferred must still find its handler.
        sys::reset_handler(signal);
    }
    // SAFETY: the program installed this function for this signal with these flags.
    unsafe { invoke(handler, signal, details, context) };
}

/// Signals from SIGRTMIN on, libc's own two included, queue: in order, and each with what comes with it.
fn queue_slot(signal: c_int) -> Option<usize> {
    const FIRST: c_int = 32;
    usize::try_from(signal - FIRST).ok().filter(|&slot| slot < sys::QUEUES)
}

/// `si_errno`, which Linux does not use, of a signal that stands for the first of its queue.
const STANDS_FOR_FIRST: c_int = 0x0f1e_0001;

/// The signal comes once more when the lock is released.
///
/// # Safety
/// The pointers must be what the kernel passed to the handler.
#[cold]
unsafe fn defer(signal: c_int, details: *mut libc::siginfo_t, context: *mut c_void) {
    let bit = 1_u64 << (signal - 1);
    // It is blocked already, but for SA_NODEFER.
    sys::block_signals(bit);
    // SAFETY: the kernel's mask is the first eight bytes of what the interrupted code goes on with (sigreturn(2)).
    unsafe {
        let mask = (&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>();
        mask.write_unaligned(mask.read_unaligned() | bit);
    }
    sys::sleep_control(|sleep_control| sleep_control.deferred.fetch_or(bit, Ordering::Relaxed));
    if let Some(slot) = queue_slot(signal) {
        sys::sleep_control(|sleep_control| {
            if sleep_control.first_held.fetch_or(1 << slot, Ordering::Relaxed) & 1 << slot == 0 {
                // It would come last: what is held goes before it, and this one stands for the last.
                // SAFETY: only this thread, and its handlers one at a time for each signal, touch the slot.
                unsafe {
                    (*sleep_control.first.get())[slot].write(*details);
                    (*details).si_errno = STANDS_FOR_FIRST;
                }
            }
        });
        // SAFETY: the record is the kernel's.
        return unsafe { put_back(slot, signal, details) };
    }
    // SAFETY: as above.
    unsafe { sys::queue_signal(signal, details) };
}

/// Queues a signal again that stands for what is held. Without room it comes as a bare one, if nothing else does.
///
/// # Safety
/// `details` must be a valid record.
unsafe fn put_back(slot: usize, signal: c_int, details: *const libc::siginfo_t) {
    // SAFETY: the caller's promise.
    let queued = unsafe { sys::queue_signal(signal, details) };
    sys::sleep_control(|sleep_control| {
        if queued {
            sleep_control.bare.fetch_and(!(1 << slot), Ordering::Relaxed);
        } else {
            sleep_control.bare.fetch_or(1 << slot, Ordering::Relaxed);
            sys::send_bare_signal(signal);
        }
    });
}

/// If the first of a queue was put back, and so became its last: each that comes is taken for the one before it.
///
/// # Safety
/// `details` must be a valid record.
unsafe fn in_order(slot: usize, signal: c_int, details: *mut libc::siginfo_t) {
    sys::sleep_control(|sleep_control| {
        // SAFETY: the caller's promise.
        let came = unsafe { *details };
        if sleep_control.first_held.load(Ordering::Relaxed) & 1 << slot == 0 {
            return;
        }
        let bare = sleep_control.bare.load(Ordering::Relaxed) & 1 << slot != 0;
        // SAFETY: the kernel filled the record: with zeros if it had none (collect_signal() in kernel/signal.c).
        let from = unsafe { came.si_pid() };
        let is_last = came.si_errno == STANDS_FOR_FIRST || bare && came.si_code == libc::SI_USER && from == 0;
        // SAFETY: the bit says that the slot was written; see `defer` for who uses it.
        unsafe {
            let held = &mut (*sleep_control.first.get())[slot];
            *details = held.assume_init();
            held.write(came);
        }
        if is_last {
            sleep_control.first_held.fetch_and(!(1 << slot), Ordering::Relaxed);
            sleep_control.bare.fetch_and(!(1 << slot), Ordering::Relaxed);
        } else if bare {
            // With the last one that was queued the bare one goes.
            let mut stands = came;
            stands.si_errno = STANDS_FOR_FIRST;
            // SAFETY: the record is valid.
            unsafe { put_back(slot, signal, &raw const stands) };
        }
    });
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

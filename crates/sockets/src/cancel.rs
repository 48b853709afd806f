//! Cancellation of threads (pthreads(7)): calls on sockets are cancellation points, at their beginning and while they wait.
//!
//! libc keeps to itself whether a thread is cancelled, and wakes one only from its own calls. So pthread_cancel() is hooked: it
//! notes whom it is about, and wakes those who wait at user level. Whoever finds itself noted gives its call up as if a signal
//! had come; the hook, in whose frame nothing is left to be undone, then lets libc act.
//!
//! A thread that may be cancelled at any time (PTHREAD_CANCEL_ASYNCHRONOUS) gets libc's own signal for it. Its handler is wrapped
//! as soon as there is such a thread: one that holds a lock, or is counted as waiting, is only noted.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use libc::pthread_t;

use crate::sys;

unsafe extern "C-unwind" {
    /// pthread_testcancel(3): does not return if the thread is to end here.
    safe fn pthread_testcancel();
}

unsafe extern "C" {
    /// pthread_setcancelstate(3).
    fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
    /// pthread_setcanceltype(3).
    fn pthread_setcanceltype(kind: i32, before: *mut i32) -> i32;
}

/// PTHREAD_CANCEL_ENABLE and PTHREAD_CANCEL_DISABLE.
const ENABLED: i32 = 0;
const DISABLED: i32 = 1;
/// PTHREAD_CANCEL_DEFERRED.
const DEFERRED: i32 = 0;

/// How often a thread was cancelled so far.
static CANCELS: AtomicU32 = AtomicU32::new(0);
/// Who was, and has not been told. Threads that ended elsewhere stay until their place is another's.
static NOTED: [AtomicUsize; 256] = [const { AtomicUsize::new(0) }; 256];

thread_local! {
    /// As of so many cancels this thread is not noted.
    static CLEAR: Cell<u32> = const { Cell::new(0) };
}

/// A call begins, or was interrupted, and nothing of it is to be undone: a thread that is cancelled ends here.
#[inline]
pub(crate) fn point() {
    if CANCELS.load(Ordering::Relaxed) != 0 {
        act();
    }
}

#[cold]
fn act() {
    // The library's own calls come by here as well, as when it drops a descriptor with the lock in its hands.
    let holding = sys::sleep_control(|sleep_control| sleep_control.holding.load(Ordering::Relaxed));
    if !holding && is_enabled() {
        // Should it be another thread's of the same number that has ended, it is not to be heard of again.
        if let Some(note) = note() {
            note.store(0, Ordering::Relaxed);
        }
        pthread_testcancel();
    }
}

/// Whether the calling thread is to give up the call that it waits in.
#[inline]
pub(crate) fn came() -> bool {
    CANCELS.load(Ordering::Relaxed) != 0 && note().is_some() && is_enabled()
}

/// The calling thread's note.
fn note() -> Option<&'static AtomicUsize> {
    let cancels = CANCELS.load(Ordering::Acquire);
    if CLEAR.get() == cancels {
        return None;
    }
    // SAFETY: no arguments.
    let own = unsafe { libc::pthread_self() } as usize;
    let note = NOTED.iter().find(|note| note.load(Ordering::Relaxed) == own);
    if note.is_none() {
        CLEAR.set(cancels);
    }
    note
}

/// Notes a thread that libc was told to cancel.
pub(crate) fn note_thread(thread: pthread_t) {
    let thread = thread as usize;
    let is_noted = |note: &AtomicUsize| note.load(Ordering::Relaxed) == thread;
    let take =
        |note: &AtomicUsize| note.compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if !NOTED.iter().any(is_noted) && !NOTED.iter().any(take) {
        NOTED[CANCELS.load(Ordering::Relaxed) as usize % NOTED.len()].store(thread, Ordering::Relaxed);
    }
    CANCELS.fetch_add(1, Ordering::Release);
}

/// Does something that is no cancellation point.
#[inline]
pub(crate) fn without<R>(act: impl FnOnce() -> R) -> R {
    if CANCELS.load(Ordering::Relaxed) == 0 {
        return act();
    }
    let before = set_state(DISABLED);
    let result = act();
    set_state(before);
    result
}

fn is_enabled() -> bool {
    let enabled = set_state(DISABLED) == ENABLED;
    if enabled {
        set_state(ENABLED);
    }
    enabled
}

fn set_state(state: i32) -> i32 {
    let mut before = ENABLED;
    // SAFETY: the pointer is valid for the call.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// libc's signal for threads that may be cancelled at any time (nptl/internaltypes.h).
const SIGCANCEL: usize = 32;

/// libc's handler for it.
static HANDLER: AtomicUsize = AtomicUsize::new(0);

/// The kernel's record of a handler: function, flags, the way back, mask (include/linux/signal_types.h).
type Record = [usize; 4];

/// Before a thread may be cancelled at any time: wraps libc's handler, which is there once `prime` has cancelled a thread.
pub(crate) fn wrap_handler(prime: impl FnOnce()) {
    let mut record: Record = [0; 4];
    if HANDLER.load(Ordering::Acquire) != 0 {
        return;
    }
    prime();
    // SAFETY: the record is valid for the call.
    let known =
        unsafe { sys::call(libc::SYS_rt_sigaction, [SIGCANCEL, 0, &raw mut record as usize, 8, 0, 0]) };
    let own = run as *const () as usize;
    if known.is_err() || record[0] == libc::SIG_DFL || record[0] == own {
        return;
    }
    HANDLER.store(record[0], Ordering::Release);
    record[0] = own;
    // SAFETY: as above; all but the function is libc's own.
    let _ = unsafe { sys::call(libc::SYS_rt_sigaction, [SIGCANCEL, &raw const record as usize, 0, 8, 0, 0]) };
}

extern "C-unwind" fn run(signal: i32, details: *mut libc::siginfo_t, context: *mut core::ffi::c_void) {
    let mut before = DEFERRED;
    let later = sys::sleep_control(|sleep_control| sleep_control.holding.load(Ordering::Relaxed))
        || crate::process::is_waiting();
    if later {
        // libc's handler then only marks the thread.
        // SAFETY: the pointer is valid for the call.
        unsafe { pthread_setcanceltype(DEFERRED, &raw mut before) };
        // SAFETY: no arguments.
        note_thread(unsafe { libc::pthread_self() });
        sys::note_signal(false);
    }
    let handler = HANDLER.load(Ordering::Acquire);
    // SAFETY: libc's handler has this type, and is there when this one is (`wrap_handler`).
    let handler: extern "C-unwind" fn(i32, *mut libc::siginfo_t, *mut core::ffi::c_void) =
        unsafe { core::mem::transmute(handler) };
    handler(signal, details, context);
}

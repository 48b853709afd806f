//! The process's contexts. Each is a stack with all that belongs to it, behind a lock of its own: one for the whole process, or
//! with EF_STACK_PER_THREAD one for the sockets that each thread makes. Nobody holds two of the locks,
//! but a fork, and who moves a connection ([`super::moving`]).

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use overfly_profile::options::Options;
use overfly_profile::rules::Rules;

use super::{Process, background};
use crate::lock::{Guard, Lock};
use crate::socket::{CONTEXTS, SocketId};

/// Alone on its cache lines: what threads have of their own they do not share by chance.
#[repr(align(128))]
struct Context {
    process: Lock<Process>,
    /// There is output that has not been transmitted: calls that may wait in the kernel transmit it first.
    pending: AtomicBool,
    /// Threads whose sockets are made here.
    owners: AtomicU32,
}

/// The first is the main thread's, and everybody's without EF_STACK_PER_THREAD.
static ALL: [Context; CONTEXTS] = [const {
    Context { process: Lock::new(Process::new()), pending: AtomicBool::new(false), owners: AtomicU32::new(0) }
}; CONTEXTS];

/// EF_STACK_PER_THREAD.
static PER_THREAD: AtomicBool = AtomicBool::new(false);
/// EF_STACK_PER_THREAD=2.
static FOLLOW: AtomicBool = AtomicBool::new(false);
/// Whose turn it is to be shared, when there are more threads than contexts.
static TURN: AtomicUsize = AtomicUsize::new(0);

const NONE_YET: usize = usize::MAX;

thread_local! {
    static OWN: Cell<usize> = const { Cell::new(NONE_YET) };
    static LEAVER: Leaver = const { Leaver };
}

/// A thread's end: its context is the next thread's.
struct Leaver;

impl Drop for Leaver {
    fn drop(&mut self) {
        let own = OWN.replace(0);
        if own == NONE_YET {
            return;
        }
        // Who looks after its sockets from now on need not come by soon.
        let mut process = at(own);
        process.event_loop = false;
        process.transmit();
        drop(process);
        ALL[own].owners.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether each thread has a stack of its own.
#[inline]
pub(crate) fn are_several() -> bool {
    PER_THREAD.load(Ordering::Relaxed)
}

/// Whether accepted connections move to the stacks of the threads that serve them.
#[inline]
pub(crate) fn connections_follow() -> bool {
    FOLLOW.load(Ordering::Relaxed)
}

/// A context.
#[inline]
pub(crate) fn at(context: usize) -> Guard<'static, Process> {
    ALL[context].process.lock()
}

/// As [`at`], for a thread that only looks whether there is something to do: after all those who know that there is.
#[inline]
pub(crate) fn at_last(context: usize) -> Guard<'static, Process> {
    ALL[context].process.lock_last()
}

/// A context, if it is free, for a thread that holds another one: it leaves this one by [`release_one`], and that one after it.
pub(super) fn at_if_free(context: usize) -> Option<Guard<'static, Process>> {
    ALL[context].process.lock_beside()
}

/// Releases what [`at_if_free`] gave.
///
/// # Safety
/// The guard was forgotten, and the other context is released after this one.
pub(super) unsafe fn release_one(context: usize) {
    // SAFETY: the caller's promise.
    unsafe { ALL[context].process.release_one_of_several() };
}

/// A context for the thread that moves frames in the program's place, if nobody is in it; [`visited`] when it has left.
pub(super) fn visit(context: usize) -> Option<Guard<'static, Process>> {
    ALL[context].process.visit()
}

/// That thread has left a context.
pub(super) fn visited(context: usize) {
    ALL[context].process.visited();
}

/// The first context, and what is the whole process's.
#[inline]
pub(crate) fn process() -> Guard<'static, Process> {
    at(0)
}

/// A socket's context.
#[inline]
pub(crate) fn of(id: SocketId) -> Guard<'static, Process> {
    at(id.context())
}

/// Where the calling thread's sockets are made.
#[inline]
pub(crate) fn own() -> usize {
    own_if_any().unwrap_or_else(take)
}

/// As [`own`], if the calling thread has made any.
#[inline]
pub(crate) fn own_if_any() -> Option<usize> {
    if are_several() { Some(OWN.get()).filter(|&own| own != NONE_YET) } else { Some(0) }
}

/// Gives the calling thread a context: one that nobody has, or one that it shares.
#[cold]
fn take() -> usize {
    let is_free = |context: &usize| {
        let owners = &ALL[*context].owners;
        owners.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    let context = (1..CONTEXTS).find(is_free).unwrap_or_else(|| {
        let shared = 1 + TURN.fetch_add(1, Ordering::Relaxed) % (CONTEXTS - 1);
        ALL[shared].owners.fetch_add(1, Ordering::Relaxed);
        shared
    });
    OWN.set(context);
    // A thread that is past its end already keeps it.
    let _ = LEAVER.try_with(|_| ());
    context
}

/// Every context that there may be.
pub(crate) fn all() -> impl DoubleEndedIterator<Item = usize> {
    0..if are_several() { CONTEXTS } else { 1 }
}

/// Does something in every context, one after the other.
pub(crate) fn each(mut act: impl FnMut(&mut Process)) {
    for context in all() {
        act(&mut at(context));
    }
}

/// The process begins, in its main and only thread, with these options and rules.
pub(crate) fn begin(options: Options, rules: &Rules, environment: Option<&str>, reports: bool) {
    if options.stack_per_thread == 0 {
        return;
    }
    for context in 1..CONTEXTS {
        at(context).becomes(context, options, rules.clone(), environment.map(str::to_owned), reports);
    }
    FOLLOW.store(options.stack_per_thread == 2, Ordering::Relaxed);
    OWN.set(0);
    ALL[0].owners.store(1, Ordering::Relaxed);
    PER_THREAD.store(true, Ordering::Relaxed);
}

/// Waits until no other thread runs deferred work of a context whose lock is held.
pub(super) fn settle(context: usize) {
    ALL[context].process.settle();
}

/// Whether another thread runs deferred work of a context whose lock is held.
#[inline]
pub(super) fn runs_errand(context: usize) -> bool {
    ALL[context].process.runs_errand()
}

/// There is output in a context that waits for company, or no more.
#[inline]
pub(super) fn set_pending(context: usize, pending: bool) {
    ALL[context].pending.store(pending, Ordering::Relaxed);
}

/// Whether there is.
#[inline]
pub(super) fn is_pending(context: usize) -> bool {
    ALL[context].pending.load(Ordering::Relaxed)
}

/// Before a fork: takes every lock, in order. Guards are forgotten.
pub(super) fn hold(mut each: impl FnMut(&mut Process)) {
    for context in all() {
        let mut process = at(context);
        each(&mut process);
        core::mem::forget(process);
    }
}

/// Does something with every context that [`hold`] has taken.
///
/// # Safety
/// This thread, or the one that it is the fork's copy of, must have called [`hold`], and nobody [`release`].
pub(super) unsafe fn held(mut each: impl FnMut(&mut Process)) {
    for context in all() {
        // SAFETY: the caller's promise: the lock is held, the guard forgotten, and nobody else has a reference.
        each(unsafe { &mut *ALL[context].process.pointer() });
    }
}

/// Releases what [`hold`] has taken.
///
/// # Safety
/// As for [`held`].
pub(super) unsafe fn release() {
    for context in all().rev() {
        let process = &ALL[context].process;
        // SAFETY: the caller's promise. Handlers that wait run when the last lock is released.
        unsafe {
            if context > 0 {
                process.release_one_of_several();
            } else {
                process.release();
            }
        }
    }
}

/// In the child of a fork, the other threads are gone.
pub(super) fn forget_threads() {
    background::forget_thread();
    for context in all() {
        ALL[context].owners.store(u32::from(OWN.get() == context), Ordering::Relaxed);
        ALL[context].process.forget_threads();
    }
}

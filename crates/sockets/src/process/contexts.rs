//! The process's contexts. Each is a stack with all that belongs to it, behind a lock of its own: one for the whole process, or
//! one for the sockets that each thread makes: with EF_STACK_PER_THREAD=1 and 2 from the beginning, with 3 when the process has divided
//! ([`super::dividing`]). Nobody holds two of the locks, but a fork, who divides the process, and who moves a connection
//! ([`super::moving`]).

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use overfly_profile::options::Options;
use overfly_profile::rules::Rules;

use super::{Process, background, dividing};
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

/// The first is the main thread's, and everybody's in a process with one stack.
static ALL: [Context; CONTEXTS] = [const {
    Context { process: Lock::new(Process::new()), pending: AtomicBool::new(false), owners: AtomicU32::new(0) }
}; CONTEXTS];

/// Each thread has one. It begins to be so, if it does, while the first context's lock is held.
static PER_THREAD: AtomicBool = AtomicBool::new(false);
/// Connections go to the threads that serve them.
static FOLLOW: AtomicBool = AtomicBool::new(false);
/// The process has divided: threads without an event loop have no context of their own.
static DIVIDED: AtomicBool = AtomicBool::new(false);
/// The value of EF_STACK_PER_THREAD for a process that divides when it has to.
const DIVIDES: u64 = 3;
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
    // Who sees it sees the contexts as they were made.
    PER_THREAD.load(Ordering::Acquire)
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

/// The context where the calling thread's sockets are made. A process that has divided makes them in the first one where the thread's
/// own cannot have a stack.
pub(crate) fn at_own() -> Guard<'static, Process> {
    let mut process = at(own_of_loop().unwrap_or(0));
    if process.context > 0 && DIVIDED.load(Ordering::Relaxed) && !process.shares() {
        drop(process);
        process = at(0);
    }
    process
}

/// Where the calling thread's sockets are made, and its connections are served. `None`: the process has divided, and the thread has no
/// event loop.
#[inline]
pub(crate) fn own_of_loop() -> Option<usize> {
    own_if_any().or_else(take)
}

/// As [`own_of_loop`], if the calling thread has made any.
#[inline]
pub(crate) fn own_if_any() -> Option<usize> {
    if are_several() { Some(OWN.get()).filter(|&own| own != NONE_YET) } else { Some(0) }
}

/// Gives the calling thread a context: one that nobody has, or one that it shares.
#[cold]
fn take() -> Option<usize> {
    if DIVIDED.load(Ordering::Relaxed) && !dividing::has_event_loop() {
        return None;
    }
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
    Some(context)
}

fn count() -> usize {
    if are_several() { CONTEXTS } else { 1 }
}

/// Every context that there may be. The process may divide meanwhile, unless the first context's lock is held since that was the next.
pub(crate) fn all() -> impl Iterator<Item = usize> {
    (0..CONTEXTS).take_while(|&context| context < count())
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
    OWN.set(0);
    ALL[0].owners.store(1, Ordering::Relaxed);
    if options.stack_per_thread == DIVIDES {
        return dividing::may_divide(true);
    }
    for context in 1..CONTEXTS {
        at(context).becomes(context, options, rules.clone(), environment.map(str::to_owned), reports);
    }
    FOLLOW.store(options.stack_per_thread == 2, Ordering::Relaxed);
    PER_THREAD.store(true, Ordering::Release);
}

/// The process has one stack, and gains by more: from now on each thread with an event loop has one of its own, when it first needs it.
/// The calling thread holds no lock.
pub(super) fn divide() {
    let mut process = process();
    if are_several() || !process.gains_by_dividing() {
        return;
    }
    for context in 1..CONTEXTS {
        // Nobody knows of it.
        let Some(mut other) = at_if_free(context) else { return };
        process.divides_into(context, &mut other);
        core::mem::forget(other);
        // SAFETY: the guard was just forgotten, and the first context is released after it.
        unsafe { release_one(context) };
    }
    dividing::may_divide(false);
    DIVIDED.store(true, Ordering::Relaxed);
    FOLLOW.store(true, Ordering::Relaxed);
    PER_THREAD.store(true, Ordering::Release);
    process.has_divided();
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
    for context in (0..count()).rev() {
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

//! Threads that wait: the machine of [`crate::sleepers`] on this process's stack, sets and descriptors, and the way of a thread from
//! the lock to a system call and back.

use core::cell::Cell;
use core::time::Duration;

use core::sync::atomic::AtomicU32;
use overfly_engine::Instant;

use super::rounds::Rounds;
use super::sets::Contexts;
use super::{Process, contexts, goes_on};
use crate::interest::SetId;
use crate::kernel::now;
use crate::lock::Guard;
use crate::sleepers::{For, Slept};
use crate::socket::CONTEXTS;
use crate::sys::{self, HandlersRun};

/// What a thread is counted as while it waits without the lock. A handler that interrupts it may take long, or never come back.
#[derive(Clone, Copy)]
enum Absence {
    Asleep(usize, Slept),
    Spinning(usize),
    Settling(usize),
    /// In several contexts: where they are noted.
    Several(*const Several),
}

/// A thread's sleep in several contexts, by their numbers.
type Several = [Cell<Option<Slept>>; CONTEXTS];

thread_local! {
    static ABSENCE: Cell<Option<Absence>> = const { Cell::new(None) };
}

impl Absence {
    /// The thread is back, and has the lock of its context.
    fn ends(self, process: &mut Process) {
        match self {
            Self::Asleep(_, slept) => process.wakes_up(slept),
            Self::Spinning(_) => process.sleepers.comes_back(true),
            Self::Settling(_) => process.sleepers.comes_back(false),
            Self::Several(_) => {}
        }
    }
}

/// The calling thread is back from its absence, if no handler has come between, and has the lock.
fn comes_back(process: &mut Process) {
    if let Some(absence) = ABSENCE.take() {
        absence.ends(process);
    }
}

/// Whether the calling thread is counted as waiting.
pub(crate) fn is_waiting() -> bool {
    ABSENCE.get().is_some()
}

/// A handler is about to run in this thread: what it interrupts does not wait any more.
pub(crate) fn stops_waiting() {
    let Some(absence) = ABSENCE.take() else { return };
    match absence {
        Absence::Asleep(context, _) | Absence::Spinning(context) | Absence::Settling(context) => {
            absence.ends(&mut contexts::at(context));
        }
        Absence::Several(several) => {
            // SAFETY: the call that noted it is interrupted, and takes the note back before that goes away (`Sleeper`).
            for (context, slept) in unsafe { &*several }.iter().enumerate() {
                if let Some(slept) = slept.take() {
                    contexts::at(context).wakes_up(slept);
                }
            }
        }
    }
}

/// How long a thread that spins leaves the lock to others between two looks, if there are any.
const PAUSES: u32 = 20;

impl Process {
    /// Before the lock is released: threads that sleep must see what has changed.
    pub(crate) fn tell_sleepers(&mut self) {
        let (sleepers, mut world) = self.machine();
        sleepers.tell(&mut world);
    }

    /// Wakes those who wait for what has become ready.
    pub(super) fn tell_of_news(&mut self) {
        let (sleepers, mut world) = self.machine();
        sleepers.tell_news(&mut world);
    }

    /// A thread leaves the library: those who sleep must not depend on its next call.
    #[cold]
    pub(super) fn remember_sleepers(&mut self) {
        let (sleepers, mut world) = self.machine();
        sleepers.remember(&mut world);
    }

    /// Before and after a fork, whose lock nobody releases as others do: threads that are to be woken are.
    pub(super) fn call_sleepers(&mut self) {
        if self.sleepers.are_forgotten(self.pumped) {
            self.remember_sleepers();
        }
        let (sleepers, mut world) = self.machine();
        sleepers.call(&mut world);
    }

    /// All threads that sleep in a set look again, if there are any.
    pub(super) fn wake_all_in(&mut self, set: SetId) {
        if self.sleepers.any_in(set) {
            let (sleepers, mut world) = self.machine();
            sleepers.wake_all_in(&mut world, set);
        }
    }

    /// Threads that sleep in a set, or in any, look again at what concerns it; so do those that perhaps poll it.
    pub(crate) fn wake_set(&mut self, set: Option<SetId>) {
        let (sleepers, mut world) = self.machine();
        sleepers.wake_set(&mut world, set);
    }

    /// A thread leaves a set with some of what was ready there: another one may have the rest.
    #[inline]
    pub(crate) fn leave_rest(&mut self, set: SetId) {
        if self.sleepers.any_in(set) {
            let (sleepers, mut world) = self.machine();
            sleepers.leave_rest(&mut world, set);
        }
    }

    /// Whether a thread may spin rather than sleep.
    pub(crate) fn may_spin(&mut self) -> bool {
        self.sleepers.may_spin(|| rustix::thread::sched_getaffinity(None).map_or(1, |cores| cores.count()))
    }

    /// A thread sleeps when the lock is released, on a descriptor if it has others to poll: for how long at most, and how.
    fn begin_to_sleep(
        &mut self,
        what: For<'_>,
        polls: bool,
        deadline: Option<Instant>,
    ) -> (Option<u64>, Slept) {
        let accepts = self.is_acceptor(what);
        let (sleepers, mut world) = self.machine();
        let slept = sleepers.begin(&mut world, what, (polls, accepts), deadline);
        if accepts {
            self.show_acceptors(0);
        }
        self.statistics.sleeps += 1;
        self.show_before_sleep();
        slept
    }

    /// It wakes.
    fn wakes_up(&mut self, slept: Slept) {
        let (sleepers, mut world) = self.machine();
        let turn = sleepers.wakes(&mut world, slept);
        self.take_turn(turn);
    }

    /// What a thread that sleeps beside has to poll.
    fn wakers(&self, slept: Slept) -> impl Iterator<Item = i32> + '_ {
        let (signal, watches) = self.sleepers.polls(slept);
        let links = watches.then(|| {
            let links = self.link_descriptors.iter().copied();
            links.chain(self.broker_descriptor()).chain(self.watch_doorbell())
        });
        signal.into_iter().chain(links.into_iter().flatten())
    }
}

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Woken {
    /// Something may have happened.
    Look,
    /// The deadline has passed.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// Waits, with the lock released, until there may be something to do: what the thread sleeps for, a timer of the stack, `extra`
/// descriptors, a signal handler, or `deadline`. Spins first for as long as `spin_until` says.
pub(crate) fn wait(
    mut guard: Guard<'static, Process>,
    what: For<'_>,
    extra: &mut [libc::pollfd],
    deadline: Option<Instant>,
    spin_until: Instant,
    since: HandlersRun,
    restartable: bool,
) -> (Guard<'static, Process>, Woken) {
    let time = now();
    if sys::interrupted(since, restartable) {
        return (guard, Woken::Interrupted);
    }
    if deadline.is_some_and(|deadline| time >= deadline) {
        return (guard, Woken::TimedOut);
    }
    if guard.stack.owes() {
        return (settled(guard), Woken::Look);
    }
    if goes_on(time, spin_until, || &mut *guard) {
        guard.spins_for(what);
        guard = let_others_in(guard, || {
            if !extra.is_empty() {
                let _ = sys::poll(extra, Some(0), since);
            }
        });
        guard.hear_broker_sometimes();
        return (guard, Woken::Look);
    }
    // The call goes on after what has run so far, and sleeps.
    let since = if restartable { since.restarted() } else { since };
    let context = guard.context;
    let mut rounds = Rounds::holding(guard);
    let mut sleeper = Sleeper::new(Contexts::one(context), extra.to_vec());
    sleeper.begin(rounds.enter(context), what, !extra.is_empty(), deadline);
    rounds.leave();
    sleeper.sleep(since);
    let polled = sleeper.end(&mut rounds);
    extra.copy_from_slice(&polled[..extra.len()]);
    (rounds.end(context), Woken::Look)
}

/// A thread's sleep, in one context or in several at once.
pub(crate) struct Sleeper {
    context: usize,
    /// How it sleeps in each of several, for a handler that interrupts it.
    several: Option<Box<Several>>,
    /// Where it sleeps that has nothing to poll.
    word: Option<&'static AtomicU32>,
    /// For how long at most.
    pub(crate) timeout_us: Option<u64>,
    /// The program's descriptors, and what wakes it.
    pub(crate) polled: Vec<libc::pollfd>,
}

impl Sleeper {
    /// Of a thread that will sleep in these contexts, and poll this.
    pub(crate) fn new(contexts: Contexts, polled: Vec<libc::pollfd>) -> Self {
        let several = (!contexts.is_one()).then(|| Box::new([const { Cell::new(None) }; CONTEXTS]));
        if let Some(several) = &several {
            // Before it begins: it is gone from its contexts when a handler runs.
            ABSENCE.set(Some(Absence::Several(&raw const **several)));
        }
        Self { context: 0, several, word: None, timeout_us: None, polled }
    }

    /// The thread sleeps in this context from when its lock is released; `polls`: on a descriptor.
    pub(crate) fn begin(
        &mut self,
        process: &mut Process,
        what: For<'_>,
        polls: bool,
        deadline: Option<Instant>,
    ) {
        let (timeout_us, slept) = process.begin_to_sleep(what, polls, deadline);
        self.context = process.context;
        self.timeout_us = self.timeout_us.into_iter().chain(timeout_us).min();
        self.word = if polls { None } else { process.sleepers.word(slept) };
        if self.word.is_none() {
            self.polled.extend(process.wakers(slept).map(readable));
        }
        match &self.several {
            None => ABSENCE.set(Some(Absence::Asleep(process.context, slept))),
            Some(several) => several[process.context].set(Some(slept)),
        }
    }

    /// It must not sleep.
    pub(crate) const fn stay_awake(&mut self) {
        self.timeout_us = Some(0);
    }

    /// It sleeps, beside all sets. True if the kernel has said what has become of the program's descriptors.
    pub(crate) fn sleep(&mut self, since: HandlersRun) -> bool {
        if let Some(word) = self.word {
            sys::futex_wait(word, 0, self.timeout_us, since);
            return false;
        }
        sys::poll(&mut self.polled, self.timeout_us, since).is_ok()
    }

    /// It is awake, and counted no more. Returns what it polled.
    pub(crate) fn end(mut self, rounds: &mut Rounds) -> Vec<libc::pollfd> {
        match self.several.take() {
            None => {
                let process = rounds.enter(self.context);
                comes_back(process);
                process.heed_all(&self.polled);
            }
            Some(several) => {
                // What is left in the note is still counted.
                ABSENCE.take();
                for (context, slept) in several.iter().enumerate() {
                    if let Some(slept) = slept.take() {
                        let process = rounds.enter(context);
                        process.wakes_up(slept);
                        process.heed_all(&self.polled);
                    }
                }
            }
        }
        core::mem::take(&mut self.polled)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        if self.several.is_some() {
            ABSENCE.take();
        }
    }
}

/// What a spinning thread does between two looks: sleeps a little, if the profile says so.
fn rest(nap_us: u64) {
    if nap_us == 0 {
        return core::hint::spin_loop();
    }
    let nap = Duration::from_micros(nap_us);
    let time = rustix::fs::Timespec { tv_sec: nap.as_secs() as i64, tv_nsec: i64::from(nap.subsec_nanos()) };
    let _ = rustix::thread::nanosleep(&time);
}

/// Between two looks of a spinning call: other threads may have the lock, and the core for as long as the profile says.
pub(crate) fn let_others_in(
    mut guard: Guard<'static, Process>,
    meanwhile: impl FnOnce(),
) -> Guard<'static, Process> {
    let (context, nap_us) = (guard.context, guard.nap_us(true));
    let woke = guard.sleepers.goes_away(true);
    let pauses = if guard.sleepers.any() { PAUSES } else { 0 };
    ABSENCE.set(Some(Absence::Spinning(context)));
    drop(guard);
    if woke {
        // They may have no other.
        rustix::thread::sched_yield();
    }
    (0..pauses).for_each(|_| core::hint::spin_loop());
    rest(nap_us);
    meanwhile();
    let mut guard = contexts::at_last(context);
    comes_back(&mut guard);
    guard
}

/// Does what is owed, with the lock released: others may have done anything meanwhile.
pub(crate) fn settled(mut guard: Guard<'static, Process>) -> Guard<'static, Process> {
    let context = guard.context;
    guard.sleepers.goes_away(false);
    ABSENCE.set(Some(Absence::Settling(context)));
    drop(guard);
    let mut guard = contexts::at(context);
    comes_back(&mut guard);
    guard
}

/// What poll() is asked that waits for one to be readable.
pub(crate) const fn readable(fd: i32) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Tells sleeping threads what a call changed, when the call is done.
pub(crate) struct WakeOnDrop<'a>(pub(crate) &'a mut Process);

impl Drop for WakeOnDrop<'_> {
    fn drop(&mut self) {
        self.0.tell_sleepers();
    }
}

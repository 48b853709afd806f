//! Threads that sleep until there is something for them to do, and who wakes which of them.
//!
//! Threads in epoll_wait sleep in the kernel's set, in which the links' descriptors and a signal of the set's own are. All others
//! sleep beside: each at a place of its own, and all but one on a futex. That one watches the links, unless a set's threads do.
//! Whoever takes frames wakes those whose sockets have news, and nobody else; and if the last thread that watched goes back to
//! the program, another one is called to watch. Sets whose threads frames woke in vain stand by ([`super::standby`]).

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use overfly_engine::Instant;
use rustix::thread::futex;

use super::background::Background;
use super::rounds::Rounds;
use super::sets::Contexts;
use super::standby::Alarm;
use super::{Process, contexts, goes_on, signal};
use crate::interest::SetId;
use crate::kernel::now;
use crate::lock::Guard;
use crate::socket::{CONTEXTS, SocketId};
use crate::sys::{self, Seen};

/// The threads that sleep, of one context.
pub(crate) struct Sleepers {
    asleep: u32,
    /// Those of them that frames wake, and when the first of these wakes by itself.
    watching: u32,
    until: Option<Instant>,
    /// Those of them that sleep beside, and those in sets that stand by.
    beside: u32,
    standing_by: u32,
    pub(super) alarm: Alarm,
    pub(super) background: Background,
    places: Vec<Place>,
    /// Places that nobody sleeps at: without a descriptor, and with one.
    free: [Vec<usize>; 2],
    /// Who is to be woken when the lock is released.
    calls: Calls,
    /// Who was called to watch, until it wakes.
    called: Option<usize>,
    /// Threads that released the lock and will look again before they return to the program, and those of them that spin.
    away: u32,
    spinning: u32,
    /// Those who sleep until there is something to accept, among other things ([`super::acceptors`]).
    pub(super) acceptors: u32,
    /// Frames were looked for since the links were armed: they may wake nobody any more.
    pub(super) disarmed: bool,
    /// The last look for frames found none.
    pub(super) found_nothing: bool,
    /// Somebody was woken since a thread that spins last gave the processor away.
    woke: bool,
    /// Processors that the process may use, once somebody asked.
    cores: u32,
}

/// How many threads are woken at once when the lock is free.
const MOST_CALLS: usize = 16;

/// Threads to be woken.
pub(crate) struct Calls {
    words: [Option<&'static AtomicU32>; MOST_CALLS],
    count: usize,
}

impl Calls {
    const NONE: Self = Self { words: [None; MOST_CALLS], count: 0 };

    pub(super) fn wake(&self) {
        for word in self.words.iter().flatten() {
            let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
        }
    }
}

/// Where a thread sleeps beside.
struct Place {
    /// 0 while it sleeps, 1 when it was woken. Lives as long as the process: a thread may look at it late.
    word: &'static AtomicU32,
    /// An eventfd, if it is to be polled beside others.
    signal: Option<i32>,
    asleep: bool,
    woken: bool,
    watches: bool,
    /// The sockets whose news wake it; none: any news do.
    wants: Vec<SocketId>,
}

/// What a thread sleeps for.
#[derive(Clone, Copy)]
pub(crate) enum For<'a> {
    /// Anything at all, frames without news as well.
    Frames,
    /// Any news.
    News,
    /// News of one of these sockets.
    Sockets(&'a [SocketId]),
    /// What a set watches.
    Set(SetId),
}

/// A thread's sleep: what [`Process::wakes_up`] needs.
#[derive(Clone, Copy)]
struct Slept {
    at: At,
    /// Frames wake it, and the stack's timers: then at latest.
    watches: bool,
    until: Option<Instant>,
    /// The alarm wakes it.
    stands_by: bool,
    /// It may accept when it wakes.
    accepts: bool,
}

/// Where a thread sleeps.
#[derive(Clone, Copy)]
enum At {
    /// In a set; its serial number, and how often it had been woken as a whole.
    Set(SetId, u64, u64),
    Place(usize),
}

impl Sleepers {
    pub(super) const fn new() -> Self {
        Self {
            asleep: 0,
            watching: 0,
            until: None,
            beside: 0,
            standing_by: 0,
            alarm: Alarm::new(),
            background: Background::new(),
            places: Vec::new(),
            free: [Vec::new(), Vec::new()],
            calls: Calls::NONE,
            called: None,
            away: 0,
            spinning: 0,
            acceptors: 0,
            disarmed: false,
            woke: false,
            found_nothing: false,
            cores: 0,
        }
    }

    #[inline]
    pub(super) const fn any(&self) -> bool {
        self.asleep > 0
    }

    /// Whether a thread of the program's sleeps, or is about to look.
    #[inline]
    pub(super) const fn anybody(&self) -> bool {
        self.asleep + self.away > 0
    }

    /// Threads sleep, frames wake none of them, and nobody is about to look; or nobody is here at all since who `looked` for frames.
    #[inline]
    pub(super) fn are_forgotten(&self, looked: Instant) -> bool {
        if self.asleep == 0 {
            return self.away == 0 && self.background.is_called(looked);
        }
        self.away == 0
            && if self.watching > 0 {
                self.disarmed
            } else if self.standing_by > 0 {
                !self.alarm.is_set()
            } else {
                self.beside > 0 && self.called.is_none()
            }
    }

    /// Somebody watches the links, or is about to look at them.
    pub(super) const fn anybody_looks(&self) -> bool {
        self.watching + self.away > 0
    }

    /// A thread may spin rather than sleep: nobody else does, or all do and each has a processor. Others would only take the lock,
    /// and the processors, from those who have something to do.
    pub(crate) fn may_spin(&mut self) -> bool {
        if self.spinning > 0 && self.cores == 0 {
            self.cores = rustix::thread::sched_getaffinity(None).map_or(1, |cores| cores.count());
        }
        self.spinning == 0 || (self.asleep == 0 && self.spinning < self.cores)
    }

    /// A place to sleep at, which can be polled beside other descriptors if need be and possible.
    fn take_place(&mut self, polled: bool) -> usize {
        if let Some(place) = self.free[usize::from(polled)].pop() {
            return place;
        }
        let signal = if polled { signal::make() } else { None };
        self.places.push(Place {
            word: Box::leak(Box::new(AtomicU32::new(0))),
            signal,
            asleep: false,
            woken: false,
            watches: false,
            wants: Vec::new(),
        });
        self.places.len() - 1
    }

    /// In the child of a fork all but one of the threads are gone.
    pub(super) fn forget(&mut self) {
        let before = core::mem::replace(self, Self::new());
        before.places.iter().filter_map(|place| place.signal).for_each(signal::close);
        before.alarm.forget();
        before.background.forget();
    }

    fn wake(&mut self, index: usize) {
        let place = &mut self.places[index];
        if core::mem::replace(&mut place.woken, true) {
            return;
        }
        self.woke = true;
        match place.signal {
            Some(signal) => signal::raise(signal),
            None => {
                let word = place.word;
                word.store(1, Ordering::Release);
                if self.calls.count == MOST_CALLS {
                    self.call();
                }
                self.calls.words[self.calls.count] = Some(word);
                self.calls.count += 1;
            }
        }
    }

    /// Those that are to be woken when the lock is free.
    #[inline]
    pub(super) const fn take_calls(&mut self) -> Option<Calls> {
        if self.calls.count == 0 {
            return None;
        }
        Some(core::mem::replace(&mut self.calls, Calls::NONE))
    }

    /// Wakes them now.
    pub(super) fn call(&mut self) {
        if let Some(calls) = self.take_calls() {
            calls.wake();
        }
    }

    /// Wakes all that sleep beside.
    pub(super) fn wake_beside(&mut self) {
        for index in 0..if self.beside > 0 { self.places.len() } else { 0 } {
            if self.places[index].asleep {
                self.wake(index);
            }
        }
    }
}

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
            Self::Spinning(_) => {
                process.sleepers.away -= 1;
                process.sleepers.spinning -= 1;
            }
            Self::Settling(_) => process.sleepers.away -= 1,
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

/// How long a thread sleeps that nobody can wake, for want of a descriptor.
const UNWAKEABLE_PAUSE: Duration = Duration::from_millis(1);

impl Process {
    /// Before the lock is released: threads that sleep must see what has changed.
    pub(crate) fn tell_sleepers(&mut self) {
        self.tell_of_news();
        self.arm_for_others();
    }

    /// Who watches wakes for the next frame, and in time for the stack's timers.
    fn arm_for_others(&mut self) {
        if self.sleepers.watching > 0 && (!self.arm() || self.is_earlier()) {
            self.wake_watcher();
        }
    }

    /// The next frame wakes whoever watches the links. False if there are frames already.
    pub(super) fn arm(&mut self) -> bool {
        self.sleepers.disarmed = false;
        self.stack.arm()
    }

    /// A thread leaves the library: those who sleep must not depend on its next call.
    #[cold]
    pub(super) fn remember_sleepers(&mut self) {
        if !self.sleepers.any() {
            self.call_background();
        } else if self.sleepers.watching > 0 {
            self.arm_for_others();
        } else if self.sleepers.standing_by > 0 {
            self.set_alarm();
        } else {
            self.call_watcher();
        }
    }

    /// Somebody has to look before anybody who watches wakes by itself.
    fn is_earlier(&self) -> bool {
        match (self.next_look(), self.sleepers.until) {
            (Some(deadline), Some(until)) => deadline < until,
            (Some(_), None) => true,
            (None, _) => false,
        }
    }

    /// Wakes those who wait for what has become ready.
    pub(super) fn tell_of_news(&mut self) {
        let (news, noted) = (self.stack.take_news(), self.stack.take_noted());
        if !self.sleepers.any() || !(news || noted) {
            return;
        }
        // Who watches a set as a descriptor sleeps in the kernel.
        self.signal_exposed();
        let urgent = self.stack.has_urgent();
        for index in 0..self.sets.len() {
            let ready = || urgent || self.stack.set_is_ready(SetId(index as u32));
            if self.sets[index].sleepers > 0 && ready() {
                self.wake_one_in(index);
            }
        }
        for index in 0..if self.sleepers.beside > 0 { self.sleepers.places.len() } else { 0 } {
            let place = &self.sleepers.places[index];
            let concerned =
                || place.wants.is_empty() || place.wants.iter().any(|&id| !self.stack.is_awaited(id));
            if place.asleep && !place.woken && (urgent || concerned()) {
                self.sleepers.wake(index);
            }
        }
    }

    /// Somebody must look at the links, or at the clock.
    fn wake_watcher(&mut self) {
        let beside = self.sleepers.places.iter().position(|place| place.asleep && place.watches);
        if let Some(index) = beside {
            self.sleepers.wake(index);
        } else if let Some(index) = self.sets.iter().position(|set| set.sleepers > 0 && set.watches()) {
            self.wake_one_in(index);
        }
    }

    /// Nobody watches the links any more: one of those who sleep does from now on.
    fn call_watcher(&mut self) {
        let places = &self.sleepers.places;
        let asleep = |woken| places.iter().position(|place| place.asleep && place.woken == woken);
        if let Some(index) = asleep(true).or_else(|| asleep(false)) {
            self.sleepers.called = Some(index);
            self.sleepers.wake(index);
        }
    }

    /// One of the threads that sleep in a set looks again.
    fn wake_one_in(&mut self, index: usize) {
        let set = &mut self.sets[index];
        if !core::mem::replace(&mut set.one_woken, true) && set.all_woken == 0 {
            self.sleepers.woke = true;
            set.signal_sleepers();
        }
    }

    /// All of them do.
    pub(super) fn wake_all_in(&mut self, index: usize) {
        let set = &mut self.sets[index];
        set.times_woken += 1;
        let before = core::mem::replace(&mut set.all_woken, set.sleepers);
        if !set.one_woken && before == 0 {
            set.signal_sleepers();
        }
    }

    /// Threads that sleep in a set, or in any, look again at what concerns it; so do those that perhaps poll it.
    pub(crate) fn wake_set(&mut self, set: Option<SetId>) {
        self.sleepers.wake_beside();
        for index in 0..self.sets.len() {
            if self.sets[index].sleepers > 0 && set.is_none_or(|set| set.0 as usize == index) {
                self.wake_all_in(index);
            }
        }
    }

    /// A thread leaves a set with some of what was ready there: another one may have the rest.
    pub(crate) fn leave_rest(&mut self, set: SetId) {
        if self.sets[set.0 as usize].sleepers > 0 && self.stack.set_is_ready(set) {
            self.wake_one_in(set.0 as usize);
        }
    }

    /// A thread sleeps when the lock is released, on a descriptor if it has others to poll: for how long at most, and where.
    fn begin_to_sleep(
        &mut self,
        what: For<'_>,
        polls: bool,
        deadline: Option<Instant>,
    ) -> (Option<u64>, Slept) {
        self.tell_of_news();
        self.dismiss_background();
        let accepts = self.is_acceptor(what);
        let set = match what {
            For::Set(set) => Some(set),
            For::Frames | For::News | For::Sockets(_) => None,
        };
        let inside =
            set.map(|set| (set, &mut self.sets[set.0 as usize])).filter(|(_, record)| !record.exposed);
        let watches = match &inside {
            Some((_, record)) => record.watches(),
            None => self.sleepers.watching + self.sleepers.spinning == 0 || matches!(what, For::Frames),
        };
        let mut stands_by = false;
        let at = if let Some((set, record)) = inside {
            record.sleepers += 1;
            stands_by = record.stands_by;
            At::Set(set, record.serial, record.times_woken)
        } else {
            let index = self.sleepers.take_place(polls || watches);
            let place = &mut self.sleepers.places[index];
            (place.asleep, place.woken, place.watches) = (true, false, watches);
            place.word.store(0, Ordering::Relaxed);
            place.wants.clear();
            if let For::Sockets(ids) = what {
                place.wants.extend_from_slice(ids);
                ids.iter().for_each(|&id| self.stack.awaits(id));
            }
            self.sleepers.beside += 1;
            At::Place(index)
        };
        self.sleepers.asleep += 1;
        self.sleepers.watching += u32::from(watches);
        self.sleepers.standing_by += u32::from(stands_by);
        self.sleepers.acceptors += u32::from(accepts);
        if accepts {
            self.show_acceptors(0);
        }
        self.statistics.sleeps += 1;
        self.show();
        let time = now();
        let own = if watches { self.next_look() } else { None };
        let at_once = (watches && !self.arm()) || set.is_some_and(|set| self.stack.set_is_ready(set));
        let unwakeable = match at {
            At::Place(index) => (polls || watches) && self.sleepers.places[index].signal.is_none(),
            At::Set(..) => false,
        };
        let until = [deadline, own, at_once.then_some(time), unwakeable.then_some(time + UNWAKEABLE_PAUSE)];
        let until = until.into_iter().flatten().min();
        if watches {
            self.sleepers.until = match self.sleepers.until {
                Some(earlier) if self.sleepers.watching > 1 => {
                    until.map(|until| until.min(earlier)).or(Some(earlier))
                }
                _ => until,
            };
        } else {
            self.arm_for_others();
        }
        let timeout_us = until.map(|until| until.as_micros().saturating_sub(time.as_micros()));
        (timeout_us, Slept { at, watches, stands_by, accepts, until })
    }

    /// It wakes. Its set may have been closed meanwhile, and the number be another's.
    fn wakes_up(&mut self, slept: Slept) {
        let sleepers = &mut self.sleepers;
        sleepers.asleep -= 1;
        sleepers.watching -= u32::from(slept.watches);
        sleepers.standing_by -= u32::from(slept.stands_by);
        sleepers.acceptors -= u32::from(slept.accepts);
        if slept.watches && slept.until == sleepers.until {
            // The others sleep longer.
            sleepers.until = None;
        }
        match slept.at {
            At::Set(id, serial, times_woken) => {
                let set = &mut self.sets[id.0 as usize];
                if set.serial == serial {
                    set.sleeper_wakes(times_woken < set.times_woken);
                }
                if slept.stands_by {
                    self.answer_alarm(id);
                }
            }
            At::Place(index) => {
                sleepers.beside -= 1;
                let place = &mut sleepers.places[index];
                place.asleep = false;
                if let (true, Some(signal)) = (place.woken, place.signal) {
                    signal::lower(signal);
                }
                if sleepers.called == Some(index) {
                    sleepers.called = None;
                }
                sleepers.free[usize::from(place.signal.is_some())].push(index);
            }
        }
    }

    /// What a thread that sleeps beside has to poll.
    fn wakers(&self, slept: Slept) -> impl Iterator<Item = i32> + '_ {
        let place = match slept.at {
            At::Place(index) => Some(&self.sleepers.places[index]),
            At::Set(..) => None,
        };
        let links = place.filter(|place| place.watches).map(|_| {
            let links = self.link_descriptors.iter().copied();
            links.chain(self.broker_descriptor()).chain(self.bell())
        });
        place.and_then(|place| place.signal).into_iter().chain(links.into_iter().flatten())
    }

    /// Where a thread sleeps that need poll nothing.
    fn word(&self, slept: Slept) -> Option<&'static AtomicU32> {
        match slept.at {
            At::Place(index) if !slept.watches => {
                let place = &self.sleepers.places[index];
                place.signal.is_none().then_some(place.word)
            }
            _ => None,
        }
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
    since: Seen,
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
    if goes_on(time, spin_until, || guard.sleepers.may_spin()) {
        guard.spins_for(what);
        guard = let_others_in(guard, || {
            if !extra.is_empty() {
                let _ = sys::poll(extra, Some(0), since);
            }
        });
        return (guard, Woken::Look);
    }
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
        self.word = if polls { None } else { process.word(slept) };
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

    /// It sleeps, beside all sets.
    pub(crate) fn sleep(&mut self, since: Seen) {
        match self.word {
            Some(word) => sys::futex_wait(word, 0, self.timeout_us, since),
            None => drop(sys::poll(&mut self.polled, self.timeout_us, since)),
        }
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
    guard.sleepers.away += 1;
    guard.sleepers.spinning += 1;
    let woke = guard.sleepers.found_nothing && core::mem::take(&mut guard.sleepers.woke);
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
    guard.sleepers.away += 1;
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
pub(crate) struct Told<'a>(pub(crate) &'a mut Process);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.0.tell_sleepers();
    }
}

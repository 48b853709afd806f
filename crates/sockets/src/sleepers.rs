//! Who sleeps in a context, and who wakes whom: a machine without system calls and without a clock. It hears what threads do and
//! what has come, and asks a [`World`] for what is to be done about it. `docs/waiting.md` draws its states.
//!
//! Threads in epoll_wait sleep in the kernel's set, in which the links' descriptors and a signal of the set's own are. All others
//! sleep beside: each as a waiter of its own, and all but one on a futex. That one watches the links, unless a set's threads do.
//! Whoever takes frames wakes those whose sockets have news, and nobody else; and if the last thread that watched goes back to
//! the program, another one is called to watch. Sets whose threads frames woke in vain stand by ([`standby`]). Where nobody sleeps,
//! a thread of the library's own takes the program's place after a while ([`background`]).
//!
//! Each method is called with the context's lock held. A thread's way is [`Sleepers::begin`], the release of the lock, a system call,
//! the lock, [`Sleepers::wakes`]; or [`Sleepers::goes_away`], the release, the lock, [`Sleepers::comes_back`]. Before each release
//! [`Sleepers::remember`] if [`Sleepers::are_forgotten`], and after it the calls of [`Sleepers::take_calls`] are made.

mod background;
mod standby;
#[cfg(test)]
mod tests;
mod wakes;
mod world;

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use overfly_engine::Instant;

use self::background::Background;
use self::standby::Alarm;
pub(crate) use self::standby::Turn;
pub(crate) use self::world::{Timer, World};
use crate::interest::SetId;
use crate::socket::SocketId;

/// How long a thread sleeps that nobody can wake, for want of a descriptor.
const UNWAKEABLE_PAUSE: Duration = Duration::from_millis(1);

/// The threads that sleep, of one context.
pub(crate) struct Sleepers {
    asleep: u32,
    /// Those of them that frames wake: when each wakes by itself, if ever.
    watching: Vec<Option<Instant>>,
    /// Those of them that sleep beside, and those in sets that stand by.
    beside: u32,
    standing_by: u32,
    alarm: Alarm,
    pub(crate) background: Background,
    waiters: Vec<Waiter>,
    /// Waiters that are nobody's: without a descriptor, and with one.
    free: [Vec<usize>; 2],
    /// By [`SetId`].
    queues: Vec<Queue>,
    /// Who is to be woken when the lock is released.
    calls: Calls,
    /// Who was called to watch, until it wakes.
    called: Option<usize>,
    /// Threads that released the lock and will look again before they return to the program, and those of them that spin.
    away: u32,
    spinning: u32,
    /// Those who sleep until there is something to accept, among other things.
    acceptors: u32,
    /// Frames were looked for since the links were armed: they may wake nobody any more.
    disarmed: bool,
    /// The last look for frames found none.
    found_nothing: bool,
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

    /// The futexes that they sleep on.
    pub(crate) fn words(&self) -> impl Iterator<Item = &'static AtomicU32> {
        self.words.iter().copied().flatten()
    }
}

/// A thread that sleeps beside.
struct Waiter {
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

/// The threads that sleep in a set.
#[derive(Clone, Copy)]
struct Queue {
    /// Tells the set from others that had its number before.
    serial: u64,
    sleepers: u32,
    /// The set's signal is up for one of them, whichever; for so many that slept when all were woken; and how often that was.
    one_woken: bool,
    all_woken: u32,
    times_woken: u64,
    /// The links are not in it but the alarm, and how often in a row its threads were woken against that ([`standby`]).
    stands_by: bool,
    turns: u32,
    /// When a wait last found something.
    served: Instant,
}

impl Queue {
    const fn new(serial: u64) -> Self {
        Self {
            serial,
            sleepers: 0,
            one_woken: false,
            all_woken: 0,
            times_woken: 0,
            stands_by: false,
            turns: 0,
            served: Instant::from_micros(0),
        }
    }
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

/// A thread's sleep: what [`Sleepers::wakes`] needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slept {
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
#[derive(Clone, Copy, Debug)]
enum At {
    /// In a set; its serial number, and how often it had been woken as a whole.
    Set(SetId, u64, u64),
    /// Beside, as which waiter.
    Beside(usize),
}

impl Sleepers {
    pub(crate) const fn new() -> Self {
        Self {
            asleep: 0,
            watching: Vec::new(),
            beside: 0,
            standing_by: 0,
            alarm: Alarm::new(),
            background: Background::new(),
            waiters: Vec::new(),
            free: [Vec::new(), Vec::new()],
            queues: Vec::new(),
            calls: Calls::NONE,
            called: None,
            away: 0,
            spinning: 0,
            acceptors: 0,
            disarmed: false,
            found_nothing: false,
            woke: false,
            cores: 0,
        }
    }

    // ---- what it is asked ----

    #[inline]
    pub(crate) const fn any(&self) -> bool {
        self.asleep > 0
    }

    /// Whether any sleep in a set.
    #[inline]
    pub(crate) fn any_in(&self, set: SetId) -> bool {
        self.queues[set.0 as usize].sleepers > 0
    }

    /// Those who sleep until there is something to accept, among other things.
    #[inline]
    pub(crate) const fn acceptors(&self) -> u32 {
        self.acceptors
    }

    /// Whether a thread of the program's sleeps, or is about to look.
    #[inline]
    const fn anybody(&self) -> bool {
        self.asleep + self.away > 0
    }

    /// Threads sleep, frames wake none of them, and nobody is about to look; or nobody is here at all since who `looked` for frames.
    #[inline]
    pub(crate) fn are_forgotten(&self, looked: Instant) -> bool {
        if self.asleep == 0 {
            return self.away == 0 && self.background.is_called(looked);
        }
        self.away == 0
            && if !self.watching.is_empty() {
                self.disarmed
            } else if self.standing_by > 0 {
                !self.alarm.is_set()
            } else {
                self.beside > 0 && self.called.is_none()
            }
    }

    /// A thread may spin rather than sleep: nobody else does, or all do and each has a processor. Others would only take the lock,
    /// and the processors, from those who have something to do.
    pub(crate) fn may_spin(&mut self, cores: impl FnOnce() -> u32) -> bool {
        if self.spinning > 0 && self.cores == 0 {
            self.cores = cores();
        }
        self.spinning == 0 || (self.asleep == 0 && self.spinning < self.cores)
    }

    // ---- what happens ----

    /// Frames were looked for, and so many found.
    #[inline]
    pub(crate) const fn took_frames(&mut self, received: usize) {
        (self.disarmed, self.found_nothing) = (true, received == 0);
    }

    /// A set is opened: the `serial`-th of the process.
    pub(crate) fn opens(&mut self, set: SetId, serial: u64) {
        let index = set.0 as usize;
        if self.queues.len() <= index {
            self.queues.resize(index + 1, Queue::new(0));
        }
        self.queues[index] = Queue::new(serial);
    }

    /// A set is closed: the links are not in it, and neither is the alarm.
    pub(crate) fn closes(&mut self, set: SetId) {
        self.queues[set.0 as usize].stands_by = false;
    }

    /// Nobody sleeps in any set.
    pub(crate) fn empty_sets(&mut self) {
        for queue in &mut self.queues {
            (queue.sleepers, queue.one_woken, queue.all_woken, queue.stands_by) = (0, false, 0, false);
        }
    }

    /// Whether a thread sleeps until something happens to a socket, as in poll().
    pub(crate) fn any_wants(&self, id: SocketId) -> bool {
        self.beside > 0 && self.waiters.iter().any(|waiter| waiter.asleep && waiter.wants.contains(&id))
    }

    /// In the child of a fork all but one of the threads are gone. Returns the signals, which are the parent's.
    pub(crate) fn forget(&mut self) -> Vec<i32> {
        let queues = core::mem::take(&mut self.queues);
        let before = core::mem::replace(self, Self { queues, ..Self::new() });
        before.waiters.iter().filter_map(|waiter| waiter.signal).collect()
    }

    /// A thread releases the lock and will look again before it returns to the program. Returns whether it lets others have its
    /// processor first, if it `spins`: somebody was woken, who may have no other.
    pub(crate) fn goes_away(&mut self, spins: bool) -> bool {
        self.away += 1;
        self.spinning += u32::from(spins);
        spins && self.found_nothing && core::mem::take(&mut self.woke)
    }

    /// It is back.
    pub(crate) const fn comes_back(&mut self, spun: bool) {
        self.away -= 1;
        self.spinning -= spun as u32;
    }

    /// A thread sleeps when the lock is released, on a descriptor if it has others to poll: for how many microseconds at most, and
    /// how. It may accept when it wakes, or not.
    pub(crate) fn begin(
        &mut self,
        world: &mut impl World,
        what: For<'_>,
        (polls, accepts): (bool, bool),
        deadline: Option<Instant>,
    ) -> (Option<u64>, Slept) {
        self.tell_news(world);
        self.background.stand_back(world);
        let set = match what {
            For::Set(set) => Some(set),
            For::Frames | For::News | For::Sockets(_) => None,
        };
        let inside = set.filter(|&set| !world.is_exposed(set));
        let watches = match inside {
            Some(set) => self.watches(world, set),
            None => self.watching.is_empty() && self.spinning == 0 || matches!(what, For::Frames),
        };
        let mut stands_by = false;
        let at = if let Some(set) = inside {
            let queue = &mut self.queues[set.0 as usize];
            queue.sleepers += 1;
            stands_by = queue.stands_by;
            At::Set(set, queue.serial, queue.times_woken)
        } else {
            At::Beside(self.begin_beside(world, what, polls, watches))
        };
        self.asleep += 1;
        self.standing_by += u32::from(stands_by);
        self.acceptors += u32::from(accepts);
        let time = world.now();
        let own = if watches { world.next_look() } else { None };
        let at_once = (watches && !self.arm(world)) || set.is_some_and(|set| world.is_ready(set));
        let unwakeable = match at {
            At::Beside(index) => (polls || watches) && self.waiters[index].signal.is_none(),
            At::Set(..) => false,
        };
        let until = [deadline, own, at_once.then_some(time), unwakeable.then_some(time + UNWAKEABLE_PAUSE)];
        let until = until.into_iter().flatten().min();
        if watches {
            self.watching.push(until);
        } else {
            self.arm_for_others(world);
        }
        let timeout_us = until.map(|until| until.as_micros().saturating_sub(time.as_micros()));
        (timeout_us, Slept { at, watches, stands_by, accepts, until })
    }

    /// It sleeps beside.
    fn begin_beside(&mut self, world: &mut impl World, what: For<'_>, polls: bool, watches: bool) -> usize {
        let index = self.take_waiter(world, polls || watches);
        let waiter = &mut self.waiters[index];
        (waiter.asleep, waiter.woken, waiter.watches) = (true, false, watches);
        waiter.word.store(0, Ordering::Relaxed);
        waiter.wants.clear();
        if let For::Sockets(ids) = what {
            waiter.wants.extend_from_slice(ids);
            ids.iter().for_each(|&id| world.awaits(id));
        }
        self.beside += 1;
        index
    }

    /// A waiter that is nobody's, which can be polled beside other descriptors if need be and possible.
    fn take_waiter(&mut self, world: &mut impl World, polled: bool) -> usize {
        if let Some(index) = self.free[usize::from(polled)].pop() {
            return index;
        }
        self.waiters.push(Waiter {
            word: Box::leak(Box::new(AtomicU32::new(0))),
            signal: if polled { world.make_signal() } else { None },
            asleep: false,
            woken: false,
            watches: false,
            wants: Vec::new(),
        });
        self.waiters.len() - 1
    }

    /// It wakes. Its set may have been closed meanwhile, and the number be another's.
    pub(crate) fn wakes(&mut self, world: &mut impl World, slept: Slept) -> Option<Turn> {
        self.asleep -= 1;
        let place = self.watching.iter().position(|&until| slept.watches && until == slept.until);
        place.map(|place| self.watching.swap_remove(place));
        self.standing_by -= u32::from(slept.stands_by);
        self.acceptors -= u32::from(slept.accepts);
        match slept.at {
            At::Set(set, serial, times_woken) => {
                let queue = &self.queues[set.0 as usize];
                if queue.serial == serial {
                    self.wakes_in(world, set, times_woken < queue.times_woken);
                }
                if slept.stands_by { self.answer_alarm(world, set) } else { None }
            }
            At::Beside(index) => {
                self.beside -= 1;
                let waiter = &mut self.waiters[index];
                waiter.asleep = false;
                if let (true, Some(signal)) = (waiter.woken, waiter.signal) {
                    world.lower(signal);
                }
                if self.called == Some(index) {
                    self.called = None;
                }
                self.free[usize::from(waiter.signal.is_some())].push(index);
                None
            }
        }
    }

    /// One that slept in a set wakes; `meant`: it slept when all were woken.
    fn wakes_in(&mut self, world: &mut impl World, set: SetId, meant: bool) {
        let queue = &mut self.queues[set.0 as usize];
        queue.sleepers = queue.sleepers.saturating_sub(1);
        let signalled = core::mem::take(&mut queue.one_woken) || queue.all_woken > 0;
        if queue.sleepers == 0 {
            queue.all_woken = 0;
        } else if meant {
            queue.all_woken = queue.all_woken.saturating_sub(1);
        }
        let Some(signal) = world.signal_of(set) else { return };
        if signalled && queue.all_woken == 0 {
            world.lower(signal);
        }
        if queue.sleepers == 0 && world.is_exposed(set) {
            world.leaves(signal, set);
        }
    }

    /// What a thread that sleeps beside has to poll: its own signal, and whether the links as well.
    pub(crate) fn polls(&self, slept: Slept) -> (Option<i32>, bool) {
        match slept.at {
            At::Beside(index) => (self.waiters[index].signal, self.waiters[index].watches),
            At::Set(..) => (None, false),
        }
    }

    /// Where a thread sleeps that need poll nothing.
    pub(crate) fn word(&self, slept: Slept) -> Option<&'static AtomicU32> {
        match slept.at {
            At::Beside(index) if !slept.watches => {
                let waiter = &self.waiters[index];
                waiter.signal.is_none().then_some(waiter.word)
            }
            _ => None,
        }
    }

    // ---- who is woken ----
}

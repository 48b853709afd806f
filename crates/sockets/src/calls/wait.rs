//! epoll_wait: user-level and kernel descriptors together, in all contexts that the set concerns. Each is looked at under its own
//! lock, one after the other; who sleeps is counted by all of them, so that any of them can wake it.

use core::sync::atomic::Ordering;
use core::time::Duration;

use overfly_engine::Instant;
use overfly_profile::options::Waiting;
use rustix::io::Errno;

use super::life::kernel_says;
use super::{Answer, CLOSED};
use crate::interest::{SetId, bits};
use crate::kernel::now;
use crate::memory::is_plausible;
use crate::process::contexts::{are_several, at, own_if_any};
use crate::process::dividing::waits_in_set;
use crate::process::rounds::Rounds;
use crate::process::sets::{Contexts, Shared, shared};
use crate::process::{
    For, Process, Sleeper, Tag, goes_on, has_in_common, let_others_in, readable, settled, spin_until, tag,
};
use crate::socket::SocketId;
use crate::sys::{self, HandlersRun};
use crate::table::{self, Entry};

/// While user-level events keep coming, how often the kernel's part of a set is looked at.
const KERNEL_LOOK_PAUSE: Duration = Duration::from_micros(100);
/// With EF_EPOLL_MT_SAFE, how many looks of a spinning epoll_wait pass between two chances for other threads.
const LOOKS_ALONE: u32 = 16;

/// The signal mask of epoll_pwait and its kin, for as long as the call lasts.
pub(super) struct Masked(Option<u64>);

impl Masked {
    pub(super) fn new(mask: Option<u64>) -> Self {
        Self(mask.map(sys::set_signal_mask))
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            sys::set_signal_mask(before);
        }
    }
}

/// Where epoll_wait() puts what it found.
struct Found {
    records: *mut libc::epoll_event,
    room: usize,
    count: usize,
    /// Some of it is not the kernel's.
    has_ours: bool,
}

impl Found {
    fn put(&mut self, events: u32, data: u64) {
        if self.count < self.room {
            // SAFETY: `epoll_wait`'s caller answers for `room` records, and there is room.
            unsafe { self.records.add(self.count).write_unaligned(libc::epoll_event { events, u64: data }) };
            self.count += 1;
        }
    }

    fn left(&self) -> usize {
        self.room - self.count
    }

    /// Puts what is so beside what was found, or to it if that is of the same descriptor.
    fn add(&mut self, events: u32, data: u64) {
        for index in 0..self.count {
            // SAFETY: so many records are there, which `epoll_wait`'s caller answers for.
            let place = unsafe { self.records.add(index) };
            // SAFETY: as above; it was written.
            let mut found = unsafe { place.read_unaligned() };
            if found.u64 == data {
                found.events |= events;
                // SAFETY: as above.
                unsafe { place.write_unaligned(found) };
                return;
            }
        }
        self.put(events, data);
    }

    /// Takes what a context has for a set; if that is not all, another thread may have the rest. Returns how much it was.
    fn collect(&mut self, process: &mut Process, set: SetId) -> usize {
        let left = self.left();
        let ours = process.stack.collect(set, left, |events, data| self.put(events, data));
        self.has_ours |= ours > 0;
        if self.count > 0 {
            process.leave_rest(set);
        }
        if ours > 0 {
            process.silence_fired(set);
        }
        ours
    }
}

/// epoll_wait(), for at most `timeout` (`None`: for ever), with a signal mask if there is one.
///
/// # Safety
/// `records` must have room for `room` records.
pub(crate) unsafe fn epoll_wait(
    epoll: i32,
    records: *mut libc::epoll_event,
    room: i32,
    timeout: Option<Duration>,
    mask: Option<u64>,
) -> Answer<usize> {
    let set = match table::lookup(epoll) {
        Entry::Set(set) => set,
        Entry::Cached(_) | Entry::Internal => return Answer::error(CLOSED),
        Entry::Kernel | Entry::Socket(_) => return Answer::Kernel,
    };
    waits_in_set();
    let shared = shared(set);
    let own = own_in(shared);
    if shared.begins_to_wait() {
        shared.contexts().iter().for_each(|context| at(context).sockets_join(set));
    }
    if mask.is_some() && is_kernels(&mut at(own), set) {
        return Answer::Kernel;
    }
    // What is there already comes before any signal (ep_poll() in Linux, fs/eventpoll.c).
    if mask.is_some() {
        // SAFETY: as this function's.
        let at_once = unsafe { epoll_wait(epoll, records, room, Some(Duration::ZERO), None) };
        if !matches!(at_once, Answer::Done(Ok(0))) {
            return at_once;
        }
    }
    let since = sys::handlers_run();
    // Without the lock: with it, signals may be blocked that the program has not blocked.
    let _masked = Masked::new(mask);
    let mut rounds = Rounds::new();
    let process = rounds.enter(own);
    if is_kernels(process, set) {
        return Answer::Kernel;
    }
    let Ok(room @ 1..) = usize::try_from(room) else { return Answer::error(Errno::INVAL) };
    if !is_plausible(records, room.saturating_mul(size_of::<libc::epoll_event>())) {
        return Answer::error(Errno::FAULT);
    }
    if !is_open(epoll, set) {
        return Answer::error(CLOSED);
    }
    // Where the thread had nothing else the last of it may have moved meanwhile.
    shared.join(own);
    process.know_set(set, epoll);
    let record = &mut process.sets[set];
    record.turn = record.turn.wrapping_add(1);
    let mut wait = Wait {
        epoll,
        set,
        shared,
        own,
        since,
        timeout,
        turn: record.turn as usize,
        // What fills the program's room again and again must not keep the kernel's events from it, nor one context's another's.
        kernel_first: core::mem::take(&mut record.full),
        looked: record.looked,
        rounds,
        found: Found { records, room, count: 0, has_ours: false },
        met: Contexts::NONE,
        started: None,
        slept: false,
    };
    Answer::Done(wait.run())
}

/// The calling thread's context, which is one of those that the set concerns from now on.
fn own_in(shared: &Shared) -> usize {
    let own = own_if_any().or_else(|| shared.contexts().iter().next()).unwrap_or(0);
    shared.join(own);
    own
}

/// Whether the set was not closed since it was looked up, perhaps to be another one.
#[inline]
fn is_open(epoll: i32, set: SetId) -> bool {
    table::lookup(epoll) == Entry::Set(set)
}

/// The kernel alone knows what a set has, and will until the call that waits there returns: no other thread can add anything.
#[inline]
fn is_kernels(process: &mut Process, set: SetId) -> bool {
    if has_in_common() {
        process.claim_watched(set);
    }
    !process.stack.is_running() && sys::is_single_threaded() && !are_several() && !process.sets[set].tainted
}

/// One call of epoll_wait().
struct Wait {
    epoll: i32,
    set: SetId,
    shared: &'static Shared,
    /// The calling thread's context.
    own: usize,
    since: HandlersRun,
    timeout: Option<Duration>,
    /// With which context it begins.
    turn: usize,
    /// The kernel's part is to be looked at before ours.
    kernel_first: bool,
    /// When it was last looked at.
    looked: Instant,
    rounds: Rounds,
    found: Found,
    /// The contexts that it has looked at.
    met: Contexts,
    started: Option<Instant>,
    /// The last look follows a sleep.
    slept: bool,
}

/// What a look at the contexts says, besides what was found.
struct Look {
    time: Instant,
    /// Events that are not the kernel's.
    ours: usize,
    /// Until when the call spins.
    spin_until: Instant,
    /// How often it looks at the kernel's part meanwhile.
    pause: Duration,
    /// Looks that pass until other threads are let in.
    looks_alone: u32,
}

impl Wait {
    fn run(&mut self) -> Result<usize, Errno> {
        let mut looks = 0;
        loop {
            let contexts = self.shared.contexts();
            let look = self.look(contexts)?;
            let deadline = self.timeout.zip(self.started).map(|(timeout, started)| started + timeout);
            let over = deadline.is_some_and(|deadline| look.time >= deadline);
            let spins = !over && self.found.count == 0 && self.goes_on(&look);
            let pause = if self.found.count > 0 { KERNEL_LOOK_PAUSE } else { look.pause };
            let due = look.time - self.looked >= pause;
            // What the kernel has said once it would say again.
            let asked = self.found.count > look.ours;
            if !asked && self.found.left() > 0 && if self.found.count > 0 || spins { due } else { over } {
                self.look_at_kernel(contexts, look.time, look.ours > 0)?;
                if look.ours == 0 {
                    // The kernel may have had something for a listener. (What was reported already would be reported twice.)
                    self.collect_again(contexts);
                }
            }
            if self.found.count > 0 || over {
                return Ok(self.end(look.time));
            }
            if sys::interrupted(self.since, false) {
                return Err(Errno::INTR);
            }
            if !spins {
                self.sleep(contexts, deadline)?;
                continue;
            }
            looks += 1;
            let process = self.rounds.enter(self.own);
            process.statistics.looks += 1;
            process.spins_for(For::Set(self.set));
            process.hear_broker_sometimes();
            if looks % look.looks_alone == 0 {
                process.stack.take_news();
                self.rounds.pass(|guard| let_others_in(guard, || ()));
            }
        }
    }

    /// Looks at the contexts, one after the other.
    fn look(&mut self, contexts: Contexts) -> Result<Look, Errno> {
        let Self { epoll, set, shared, own, .. } = *self;
        let never = Instant::from_micros(0);
        let mut look =
            Look { time: never, ours: 0, spin_until: never, pause: Duration::ZERO, looks_alone: 1 };
        // By the kernel, as the sleep ended: what it says of the program's own descriptors it would say again.
        let mut said = self.found.count > 0;
        for context in contexts.iter_from(self.turn) {
            self.rounds.enter(context);
            if !is_open(epoll, set) {
                return Err(CLOSED);
            }
            if self.has_left(context) {
                continue;
            }
            let process = self.rounds.enter(context);
            process.attend(set, shared, epoll);
            if !self.met.has(context) {
                self.met = self.met.and(Contexts::one(context));
                if context != own && has_in_common() {
                    process.claim_watched(set);
                }
                process.waits_for_events(true);
            }
            process.pump_for_all(None);
            if process.stack.owes() {
                self.rounds.pass(settled);
                if !is_open(epoll, set) {
                    return Err(CLOSED);
                }
            }
            let process = self.rounds.enter(context);
            let time = process.pumped;
            if !said
                && (core::mem::take(&mut process.sets[set].entered)
                    || core::mem::take(&mut self.kernel_first))
            {
                self.look_at_kernel(contexts, time, false)?;
                said = self.found.count > 0;
            }
            let process = self.rounds.enter(context);
            look.ours += self.found.collect(process, set);
            if !contexts.is_one() {
                process.signal_exposed();
            }
            let started = *self.started.get_or_insert(time);
            if self.found.count == 0 && process.stack.is_running() {
                look.spin_until = look.spin_until.max(spin_until(process, Waiting::Epoll, started));
            }
            look.time = time;
            look.pause = Duration::from_micros(process.options.poll_fast_usec);
            look.looks_alone = if process.options.epoll_mt_safe == 0 { 1 } else { LOOKS_ALONE };
        }
        if core::mem::take(&mut self.slept) && contexts.is_one() {
            self.rounds.enter(own).count_turn(set, self.found.count > 0);
        }
        Ok(look)
    }

    /// Whether the set does not concern a context any more, whose lock is held: what it had there has moved meanwhile.
    fn has_left(&self, context: usize) -> bool {
        if self.shared.contexts().has(context) {
            return false;
        }
        if context == self.own {
            self.shared.join(context);
        }
        context != self.own
    }

    /// Whether it spins. Where no context has a stack, only the kernel has anything to say.
    fn goes_on(&mut self, look: &Look) -> bool {
        let Self { rounds, own, .. } = self;
        look.spin_until > Instant::from_micros(0)
            && goes_on(look.time, look.spin_until, || rounds.enter(*own))
    }

    /// Collects what became ready by what the kernel said.
    fn collect_again(&mut self, contexts: Contexts) {
        for context in contexts.iter() {
            let process = self.rounds.enter(context);
            if is_open(self.epoll, self.set) {
                process.know_set(self.set, self.epoll);
                self.found.collect(process, self.set);
            }
        }
    }

    /// Looks at the kernel's part; with `adds` what that says of sockets of ours is added to what was found of them already.
    fn look_at_kernel(&mut self, contexts: Contexts, time: Instant, adds: bool) -> Result<(), Errno> {
        self.looked = time;
        if contexts.is_one() {
            // Of several each has said it when it was looked at.
            self.rounds.enter(self.own).signal_exposed();
        }
        let (count, before) = (self.ask_kernel(Some(0))?, self.found.count);
        if self.heed(count, adds) && self.found.count == before {
            // What it says of what was a listener is the program's now.
            let count = self.ask_kernel(Some(0))?;
            self.heed(count, adds);
        }
        Ok(())
    }

    /// Asks the kernel for at most so long. Returns how many events it has written behind what was found: as many as the program has room
    /// for, so that none is left behind, and no edge is lost.
    fn ask_kernel(&self, timeout_us: Option<u64>) -> Result<usize, Errno> {
        let Found { records, count, .. } = self.found;
        // SAFETY: `epoll_wait`'s caller answers for `room` records, of which `left()` are free.
        let outcome = unsafe {
            sys::epoll_wait(self.epoll, records.add(count), self.found.left(), timeout_us, self.since)
        };
        match outcome {
            Err(Errno::FAULT) => Err(Errno::FAULT),
            outcome => Ok(outcome.unwrap_or(0)),
        }
    }

    /// Leaves the program's own events where the kernel has written them, and takes those of listeners' kernel sockets as news of the
    /// listener. Returns whether one of them listens no more.
    fn heed(&mut self, count: usize, adds: bool) -> bool {
        let (first, mut ended) = (self.found.count, false);
        for index in first..first + count {
            // SAFETY: the kernel has written it. What is found is put at `index` at most.
            let event = unsafe { self.found.records.add(index).read_unaligned() };
            let (bits, data) = (event.events, event.u64);
            match tag(data) {
                Tag::Program => self.found.put(bits, data),
                Tag::Stack => {}
                Tag::Listener(id) => {
                    ended |= kernel_says(self.rounds.enter(id.context()), id, bits);
                    if adds {
                        self.add_ready(id);
                    }
                }
                own @ (Tag::Broker(context) | Tag::Doorbell(context) | Tag::Doors(context)) => {
                    self.rounds.enter(context).heed(&own);
                }
            }
        }
        ended
    }

    /// Adds what a socket is ready for. What is told once only is the next call's: it is listed.
    fn add_ready(&mut self, id: SocketId) {
        let Self { rounds, found, set, .. } = self;
        let process = rounds.enter(id.context());
        let level = process.stack.level(id);
        process.stack.watchers(id, |interest| {
            let (is_sets, once) = (interest.set == set.0, interest.events & (bits::ET | bits::ONESHOT) != 0);
            let events = level & interest.events;
            if is_sets && !once && !interest.in_kernel && events != 0 {
                found.add(events, interest.data);
            }
        });
    }

    /// Sleeps until something may have happened in one of the contexts, or in the kernel's part.
    fn sleep(&mut self, contexts: Contexts, deadline: Option<Instant>) -> Result<(), Errno> {
        let Self { epoll, set, shared, since, .. } = *self;
        let exposed = shared.exposed.load(Ordering::SeqCst);
        let mut sleeper = Sleeper::new(contexts, Vec::new());
        for context in contexts.iter() {
            self.rounds.enter(context);
            if !is_open(epoll, set) {
                sleeper.end(&mut self.rounds);
                return Err(CLOSED);
            }
            if self.has_left(context) {
                continue;
            }
            let process = self.rounds.enter(context);
            process.attend(set, shared, epoll);
            process.signal_exposed();
            sleeper.begin(process, For::Set(set), true, deadline);
        }
        self.rounds.leave();
        // Whoever joins from now on sees who sleeps, and so does who exposes the set.
        if shared.contexts() != contexts || shared.exposed.load(Ordering::SeqCst) != exposed {
            sleeper.stay_awake();
        }
        if exposed {
            sleeper.polled.push(readable(epoll));
            sleeper.sleep(since);
            sleeper.stay_awake();
        }
        let asked = self.ask_kernel(sleeper.timeout_us);
        sleeper.end(&mut self.rounds);
        if !is_open(epoll, set) {
            return Err(CLOSED);
        }
        self.heed(asked?, false);
        (self.slept, self.looked) = (true, now());
        Ok(())
    }

    /// The call returns what it has found.
    fn end(&mut self, time: Instant) -> usize {
        let process = self.rounds.enter(self.own);
        if let Some(record) = process.sets.get_mut(self.set) {
            record.full = self.found.left() == 0 && self.found.has_ours;
            record.looked = self.looked;
            if self.found.count > 0 {
                process.sleepers.serves(self.set, time);
            }
        }
        self.found.count
    }
}

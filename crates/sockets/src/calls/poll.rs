//! poll and select: user-level and kernel descriptors together, in all contexts that they concern.

use core::time::Duration;

use overfly_engine::Instant;
use overfly_profile::options::Waiting;
use rustix::io::Errno;

use super::control::expose;
use super::life::kernel_says;
use super::wait::Masked;
use super::{Answer, used};
use crate::kernel::now;
use crate::process::contexts::{are_several, own_if_any};
use crate::process::rounds::Rounds;
use crate::process::sets::{Contexts, shared};
use crate::process::{
    For, Process, Sleeper, before_kernel_wait, goes_on, is_active, leave_to_kernel, let_others_in, settled,
    spin_until,
};
use crate::socket::{SocketId, SocketState};
use crate::sys::{self, HandlersRun};
use crate::table::{self, Entry};

/// poll() or select(), for at most `timeout` (`None`: for ever), with a signal mask if there is one.
pub(crate) fn poll(
    descriptors: &mut [libc::pollfd],
    timeout: Option<Duration>,
    mask: Option<u64>,
    call: Waiting,
) -> Answer<usize> {
    if !descriptors.iter().any(|descriptor| table::is_ours(descriptor.fd)) {
        if is_active() {
            before_kernel_wait();
        }
        return Answer::Kernel;
    }
    // What is ready already comes before any signal, which stays pending then (poll_select_finish() in Linux, fs/select.c).
    if mask.is_some() {
        let at_once = poll(descriptors, Some(Duration::ZERO), None, call);
        if !matches!(at_once, Answer::Done(Ok(0))) {
            return at_once;
        }
    }
    let since = sys::handlers_run();
    let _masked = Masked::new(mask);
    for descriptor in descriptors.iter() {
        used(descriptor.fd);
    }
    let own = own_if_any().unwrap_or(0);
    let mut rounds = Rounds::new();
    // A handler that jumps out of malloc() would leave libc's lock held: with ours held it comes later.
    rounds.enter(own);
    let mut for_kernel = Vec::new();
    if for_kernel.try_reserve(descriptors.len() + 16).is_err() {
        return Answer::error(Errno::NOMEM);
    }
    // Listeners join the stack that polls them.
    for descriptor in descriptors.iter() {
        match table::lookup(descriptor.fd) {
            Entry::Socket(id) => {
                let process = rounds.enter(id.context());
                let socket = process.stack.socket(id);
                if table::lookup(descriptor.fd) != Entry::Socket(id)
                    || socket.may_be_all_kernels() && process.leaves_to_all(id)
                {
                    continue;
                }
                if !process.joins(id, descriptor.fd) {
                    leave_to_kernel(process, id);
                }
            }
            Entry::Set(set) => expose(&mut rounds, set, descriptor.fd),
            _ => {}
        }
    }
    let started = now();
    let mut poll = Poll {
        descriptors,
        for_kernel,
        own,
        since,
        call,
        started,
        rounds,
        met: Contexts::NONE,
        asked: false,
    };
    Answer::Done(poll.run(timeout.map(|timeout| started + timeout)))
}

/// One call of poll() or select().
struct Poll<'a> {
    descriptors: &'a mut [libc::pollfd],
    /// What the kernel must be asked about each of them, if anything.
    for_kernel: Vec<libc::pollfd>,
    /// The calling thread's context.
    own: usize,
    since: HandlersRun,
    call: Waiting,
    started: Instant,
    rounds: Rounds,
    /// The contexts that it has looked at.
    met: Contexts,
    /// The kernel has just said that it has nothing: by what it polled while it slept.
    asked: bool,
}

impl Poll<'_> {
    fn run(&mut self, deadline: Option<Instant>) -> Result<usize, Errno> {
        let mut looked = Instant::from_micros(0);
        loop {
            let contexts = self.contexts();
            let (spin_until, pause) = self.look(contexts);
            let time = now();
            let ready = self.ready();
            let asks = self.for_kernel.iter().any(|descriptor| descriptor.fd >= 0);
            let over = ready > 0 || deadline.is_some_and(|deadline| time >= deadline);
            let spins = {
                let Self { rounds, own, .. } = self;
                !over && goes_on(time, spin_until, || rounds.enter(*own))
            };
            if over {
                let asked = core::mem::take(&mut self.asked) && ready > 0;
                let ready = if asks && !asked { self.look_at_kernel(contexts) } else { ready };
                // A signal goes before the time, as in do_poll() and core_sys_select() in Linux (fs/select.c).
                let interrupted = ready == 0 && sys::interrupted(self.since, false);
                return if interrupted { Err(Errno::INTR) } else { Ok(ready) };
            }
            if sys::interrupted(self.since, false) {
                return Err(Errno::INTR);
            }
            let sockets = polled_sockets(self.descriptors);
            if spins {
                let asks = asks && time - looked >= pause;
                looked = if asks { time } else { looked };
                if self.spin(contexts, sockets.as_deref(), asks) {
                    return Ok(self.ready());
                }
            } else if self.sleep(contexts, sockets.as_deref(), asks, deadline) {
                return Ok(self.ready());
            }
        }
    }

    /// The contexts that the descriptors concern.
    fn contexts(&self) -> Contexts {
        if !are_several() {
            return Contexts::one(self.own);
        }
        self.descriptors.iter().fold(Contexts::one(self.own), |contexts, descriptor| {
            contexts.and(match table::lookup(descriptor.fd) {
                Entry::Socket(id) => Contexts::one(id.context()),
                Entry::Set(set) => {
                    // Whoever puts a socket of another context into the set wakes its threads.
                    shared(set).join(self.own);
                    shared(set).contexts()
                }
                Entry::Kernel | Entry::Cached(_) | Entry::Internal => Contexts::NONE,
            })
        })
    }

    /// How many descriptors are ready. select() hears nothing but what it has asked for (do_select() in Linux, fs/select.c).
    fn ready(&self) -> usize {
        let selects = self.selects();
        let is_ready = |descriptor: &&libc::pollfd| {
            let asked = if selects { descriptor.events | libc::POLLNVAL } else { !0 };
            descriptor.revents & asked != 0
        };
        self.descriptors.iter().filter(is_ready).count()
    }

    fn selects(&self) -> bool {
        matches!(self.call, Waiting::Select)
    }

    /// What the kernel's poll() would say at once, and for as long as it is so, and select() does not hear: it is not asked.
    fn ask_no_more_than_select(&mut self) {
        for kernel in &mut self.for_kernel {
            if kernel.fd >= 0 && kernel.events == libc::POLLPRI {
                let found = sys::poll(core::slice::from_mut(kernel), Some(0), self.since);
                let unasked = found.is_ok() && kernel.revents & (libc::POLLPRI | libc::POLLNVAL) == 0;
                kernel.fd = if unasked && kernel.revents != 0 { -1 } else { kernel.fd };
            }
        }
    }

    /// Looks at every descriptor. Returns until when the call spins, and how often it looks at the kernel's meanwhile.
    fn look(&mut self, contexts: Contexts) -> (Instant, Duration) {
        let ask_nothing = |descriptor: &libc::pollfd| libc::pollfd { fd: -1, revents: 0, ..*descriptor };
        self.for_kernel.clear();
        self.for_kernel.extend(self.descriptors.iter().map(ask_nothing));
        self.descriptors.iter_mut().for_each(|descriptor| descriptor.revents = 0);
        let (call, started) = (self.call, self.started);
        let (mut until, mut pause) = (started, Duration::ZERO);
        for context in contexts.iter() {
            let process = self.rounds.enter(context);
            if !self.met.has(context) {
                self.met = self.met.and(Contexts::one(context));
                process.waits_for_events(false);
            }
            process.pump_for_all(None);
            if process.stack.owes() {
                self.rounds.pass(settled);
            }
            let process = self.ask(context);
            if !contexts.is_one() {
                process.signal_exposed();
            }
            until = until.max(spin_until(process, call, started));
            pause = Duration::from_micros(process.options.poll_fast_usec);
        }
        if self.selects() {
            self.ask_no_more_than_select();
        }
        (until, pause)
    }

    /// Asks a context about the descriptors that concern it; those of the kernel are the calling thread's.
    fn ask(&mut self, context: usize) -> &mut Process {
        let process = self.rounds.enter(context);
        for (descriptor, for_kernel) in self.descriptors.iter_mut().zip(&mut self.for_kernel) {
            let entry = table::lookup(descriptor.fd);
            match entry {
                Entry::Socket(id) if id.context() != context => continue,
                Entry::Set(set) if shared(set).contexts().has(context) => {
                    process.know_set(set, descriptor.fd);
                    process.expose(set);
                }
                Entry::Socket(_) => {}
                _ if context != self.own => continue,
                _ => {}
            }
            let (revents, kernel_descriptor) = user_level(process, descriptor, entry);
            descriptor.revents |= revents;
            for_kernel.fd = kernel_descriptor;
        }
        process
    }

    /// Looks at the kernel's part, with the lock released: others need not wait for it. Returns how many descriptors are ready.
    fn look_at_kernel(&mut self, contexts: Contexts) -> usize {
        if contexts.is_one() {
            // Of several each has said it when it was looked at.
            self.rounds.enter(self.own).signal_exposed();
        }
        self.rounds.leave();
        if sys::poll(&mut self.for_kernel, Some(0), self.since).is_ok() {
            self.merge();
        }
        self.ready()
    }

    /// Lets others have the lock for a while, in which it looks at the kernel's part if it `asks`. True if the kernel has something.
    fn spin(&mut self, contexts: Contexts, sockets: Option<&[SocketId]>, asks: bool) -> bool {
        let Self { rounds, for_kernel, own, since, .. } = self;
        let process = rounds.enter(*own);
        if asks && contexts.is_one() {
            process.signal_exposed();
        }
        process.hear_broker_sometimes();
        process.spins_for(wanted(sockets, *own));
        self.asked = false;
        let mut asked = false;
        let ask = || asked = asks && sys::poll(for_kernel, Some(0), *since).is_ok();
        rounds.pass(|guard| let_others_in(guard, ask));
        if asked {
            self.merge();
        }
        asked && self.ready() > 0
    }

    /// Sleeps until something may have happened. True if the kernel has something.
    fn sleep(
        &mut self,
        contexts: Contexts,
        sockets: Option<&[SocketId]>,
        asks: bool,
        deadline: Option<Instant>,
    ) -> bool {
        let mut sleeper = Sleeper::new(contexts, Vec::new());
        // Who has nothing in the kernel to poll sleeps at less cost.
        let polls = asks || !contexts.is_one();
        for context in contexts.iter() {
            // Of several contexts each may have something new: no lock was held since.
            let process = if contexts.is_one() { self.rounds.enter(context) } else { self.ask(context) };
            process.signal_exposed();
            sleeper.begin(process, wanted(sockets, context), polls, deadline);
        }
        self.rounds.leave();
        if !contexts.is_one() && (self.ready() > 0 || self.contexts() != contexts) {
            sleeper.stay_awake();
        }
        if polls {
            // The program's descriptors first.
            let wakers = core::mem::replace(&mut sleeper.polled, core::mem::take(&mut self.for_kernel));
            sleeper.polled.extend(wakers);
        }
        self.asked = sleeper.sleep(self.since) && asks;
        let polled = sleeper.end(&mut self.rounds);
        if !polls {
            return false;
        }
        self.for_kernel = polled;
        self.merge();
        if self.ready() == 0 {
            return false;
        }
        // One more look at ours, without sleeping.
        for context in contexts.iter() {
            self.rounds.enter(context).pump();
            self.ask(context);
        }
        true
    }

    /// Adds what the kernel found.
    fn merge(&mut self) {
        for (descriptor, kernel) in self.descriptors.iter_mut().zip(&self.for_kernel) {
            if kernel.fd < 0 || kernel.revents == 0 {
                continue;
            }
            descriptor.revents |= kernel.revents;
            // select() asks for the last one, too.
            if kernel.revents & !(libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND) != 0
                && let Entry::Socket(id) = table::lookup(descriptor.fd)
            {
                let process = self.rounds.enter(id.context());
                if matches!(process.stack.socket(id).state, SocketState::Listening | SocketState::Datagram) {
                    kernel_says(process, id, u32::from(kernel.revents as u16));
                }
            }
        }
    }
}

/// The sockets among some descriptors, context by context, if they are few and whatever else there is is the kernel's: who waits for none
/// will accept nothing.
fn polled_sockets(descriptors: &[libc::pollfd]) -> Option<Vec<SocketId>> {
    const MOST: usize = 16;
    let mut sockets = Vec::new();
    for descriptor in descriptors {
        match table::lookup(descriptor.fd) {
            Entry::Socket(id) if sockets.len() < MOST => sockets.push(id),
            Entry::Socket(_) | Entry::Set(_) => return None,
            Entry::Kernel | Entry::Cached(_) | Entry::Internal => {}
        }
    }
    sockets.sort_unstable_by_key(|id: &SocketId| id.context());
    Some(sockets)
}

/// What a thread waits for in one context that waits for these sockets.
fn wanted(sockets: Option<&[SocketId]>, context: usize) -> For<'_> {
    let Some(sockets) = sockets else { return For::News };
    let mut of_context = sockets.chunk_by(|id, next| id.context() == next.context());
    For::Sockets(of_context.find(|chunk| chunk[0].context() == context).unwrap_or_default())
}

/// What poll() says of a descriptor at user level, and the descriptor that the kernel must be asked about as well, or -1.
fn user_level(process: &mut Process, descriptor: &libc::pollfd, entry: Entry) -> (i16, i32) {
    let always = libc::POLLERR | libc::POLLHUP;
    match entry {
        Entry::Kernel => (0, descriptor.fd),
        Entry::Cached(_) | Entry::Internal => (libc::POLLNVAL, -1),
        Entry::Set(set) => {
            let ready = process.stack.set_is_ready(set);
            (if ready { libc::POLLIN & descriptor.events } else { 0 }, descriptor.fd)
        }
        Entry::Socket(id) => match process.stack.socket(id).state {
            SocketState::Free | SocketState::Candidate => (0, descriptor.fd),
            // The kernel's socket may have a datagram, or a connection, too. What it had once somebody else may have taken.
            SocketState::Datagram => {
                (process.stack.level_here(id) as i16 & (descriptor.events | always), descriptor.fd)
            }
            SocketState::Listening => {
                (process.stack.level_here(id) as i16 & descriptor.events, descriptor.fd)
            }
            _ => {
                let level = process.stack.asked(id, u32::from(descriptor.events as u16));
                (level as i16 & (descriptor.events | always), -1)
            }
        },
    }
}

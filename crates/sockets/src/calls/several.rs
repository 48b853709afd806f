//! epoll, poll and select with EF_STACK_PER_THREAD, where a set may watch sockets of several contexts. Each is looked at under its
//! own lock, one after the other; who sleeps is counted by all of them, so that any of them can wake it.

use core::cell::Cell;
use core::sync::atomic::Ordering;
use core::time::Duration;

use overfly_engine::Instant;
use overfly_profile::options::Waiting;
use rustix::io::Errno;

use super::life::leave_to_kernel;
use super::wait::{
    Found, KERNEL_BATCH, KERNEL_LOOK_PAUSE, Masked, control_locked, joins, polled_sockets, user_level,
};
use super::{Answer, CLOSED};
use crate::interest::SetId;
use crate::kernel::now;
use crate::lock::Guard;
use crate::memory::is_plausible;
use crate::process::contexts::{self, at, of, own_if_any};
use crate::process::sets::{Contexts, shared};
use crate::process::{
    For, Process, Several, Tag, Told, goes_on, has_inherited, readable, rest, sleeps_in_several, spin_until,
    tag, wakes_in_several,
};
use crate::socket::{CONTEXTS, SocketId, State};
use crate::sys::{self, Seen};
use crate::table::{self, Entry};

/// epoll_ctl() for a socket, whose context's lock is held.
pub(super) fn control(
    mut guard: Guard<'static, Process>,
    (epoll, set): (i32, SetId),
    operation: i32,
    (descriptor, id): (i32, SocketId),
    event: Option<libc::epoll_event>,
) -> Answer<()> {
    if operation != libc::EPOLL_CTL_ADD {
        let told = Told(&mut guard);
        return control_locked(told.0, (epoll, set), operation, (descriptor, id), event);
    }
    let shared = shared(set);
    let before = shared.join(id.context());
    // Whoever closes the set looks who has joined it after it is closed.
    if table::lookup(epoll) != Entry::Set(set) {
        return Answer::Kernel;
    }
    guard.know_set(set, epoll);
    let exposed = shared.exposed.load(Ordering::SeqCst);
    if exposed {
        guard.expose(set);
    }
    let answer = {
        let told = Told(&mut guard);
        control_locked(told.0, (epoll, set), operation, (descriptor, id), event)
    };
    drop(guard);
    // Who sleeps in it must be counted by this context, too.
    if let Some(before) = before {
        if exposed {
            contexts::each(|process| process.wake_set(None));
        } else {
            before.iter().for_each(|context| at(context).wake_set(Some(set)));
        }
    }
    answer
}

/// A set is watched as a descriptor.
fn expose(set: SetId, descriptor: i32) {
    let shared = shared(set);
    shared.exposed.store(true, Ordering::SeqCst);
    for context in shared.contexts().iter() {
        let mut process = at(context);
        process.know_set(set, descriptor);
        process.expose(set);
    }
}

/// A set is watched by another: whoever waits in that one looks at every context.
pub(super) fn watch_set(inner: SetId, descriptor: i32, outer: SetId) {
    expose(inner, descriptor);
    shared(outer).join_all();
    contexts::each(|process| process.wake_set(Some(outer)));
}

/// A thread that sleeps in several contexts: what each of them needs to know when it wakes, and what it has to poll.
struct Sleeper {
    slept: Several,
    timeout_us: Option<u64>,
    polled: Vec<libc::pollfd>,
}

impl Sleeper {
    const fn new() -> Self {
        Self { slept: [const { Cell::new(None) }; CONTEXTS], timeout_us: None, polled: Vec::new() }
    }

    /// The thread sleeps in this context, too.
    fn begin(&mut self, process: &mut Process, what: For<'_>, deadline: Option<Instant>) {
        let (timeout_us, slept) = process.begin_to_sleep(what, true, deadline);
        self.slept[process.context].set(Some(slept));
        self.timeout_us = self.timeout_us.into_iter().chain(timeout_us).min();
        self.polled.extend(process.wakers(slept).map(readable));
    }

    /// It must not sleep.
    const fn stay_awake(&mut self) {
        self.timeout_us = Some(0);
    }

    /// Before it begins: it is gone from its contexts when a handler runs.
    fn note(&self) {
        // SAFETY: `end` takes the note back, and the sleeper stays where it is until then.
        unsafe { sleeps_in_several(&raw const self.slept) };
    }

    fn end(&self) {
        wakes_in_several();
        for (context, slept) in self.slept.iter().enumerate() {
            if let Some(slept) = slept.take() {
                let mut process = at(context);
                process.wakes_up(slept);
                process.heed_all(&self.polled);
            }
        }
    }
}

/// As [`super::wait::epoll_wait`].
///
/// # Safety
/// `records` must have room for `room` records.
pub(super) unsafe fn epoll_wait(
    (epoll, set): (i32, SetId),
    records: *mut libc::epoll_event,
    room: i32,
    timeout: Option<Duration>,
    mask: Option<u64>,
) -> Answer<usize> {
    let Ok(room @ 1..) = usize::try_from(room) else { return Answer::error(Errno::INVAL) };
    if !is_plausible(records, room.saturating_mul(size_of::<libc::epoll_event>())) {
        return Answer::error(Errno::FAULT);
    }
    let shared = shared(set);
    let own = own_if_any().or_else(|| shared.contexts().iter().next()).unwrap_or(0);
    shared.join(own);
    let since = sys::seen();
    let _masked = Masked::new(mask);
    let mut found = Found { records, room, count: 0 };
    let started = now();
    let deadline = timeout.map(|timeout| started + timeout);
    let mut first = true;
    // What fills the program's room again and again must not keep the kernel's events from it, nor one context's another's.
    let (mut kernel_first, mut looked, turn) = {
        let mut process = at(own);
        if table::lookup(epoll) != Entry::Set(set) {
            return Answer::error(CLOSED);
        }
        process.know_set(set, epoll);
        let record = &mut process.sets[set.0 as usize];
        record.turn = record.turn.wrapping_add(1);
        (core::mem::take(&mut record.full), record.looked, record.turn as usize)
    };
    loop {
        let contexts = shared.contexts();
        let (mut time, mut spin, mut pause) = (now(), started, Duration::ZERO);
        if core::mem::take(&mut kernel_first) {
            looked = time;
            look_at_kernel(epoll, &mut found, Some(0), since);
        }
        let mut ours = 0;
        for context in contexts.iter_from(turn) {
            let mut process = at(context);
            if table::lookup(epoll) != Entry::Set(set) {
                return Answer::error(CLOSED);
            }
            if first && has_inherited() {
                process.claim_watched(set);
            }
            process.attend(set, epoll);
            process.waits_for_events();
            process.pump();
            process.hand_over_urgent();
            time = process.pumped;
            ours += process.stack.collect(set, found.left(), |events, data| found.put(events, data));
            if found.count > 0 {
                process.leave_rest(set);
            }
            process.signal_exposed();
            spin = spin.max(spin_until(&process, Waiting::Epoll, started));
            pause = Duration::from_micros(process.options.poll_fast_usec);
        }
        first = false;
        let over = deadline.is_some_and(|deadline| time >= deadline);
        let spins = !over && found.count == 0 && goes_on(time, spin, || true);
        let due = time - looked >= if found.count > 0 { KERNEL_LOOK_PAUSE } else { pause };
        // What the kernel has said once it would say again.
        let asked = found.count > ours;
        if !asked && found.left() > 0 && if found.count > 0 || spins { due } else { over } {
            looked = time;
            look_at_kernel(epoll, &mut found, Some(0), since);
            if ours == 0 {
                // The kernel may have had something for a listener.
                for context in contexts.iter() {
                    let mut process = at(context);
                    if table::lookup(epoll) == Entry::Set(set) {
                        process.know_set(set, epoll);
                        process.stack.collect(set, found.left(), |events, data| found.put(events, data));
                    }
                }
            }
        }
        if found.count > 0 || over {
            let mut process = at(own);
            if let Some(record) = process.sets.get_mut(set.0 as usize) {
                (record.full, record.looked) = (found.left() == 0, looked);
            }
            return Answer::ok(found.count);
        }
        if sys::interrupted(since, false) {
            return Answer::error(Errno::INTR);
        }
        if spins {
            let mut process = at(own);
            process.statistics.looks += 1;
            process.spins_for(For::Set(set));
            let nap_us = process.nap_us(true);
            drop(process);
            rest(nap_us);
        } else {
            let mut sleeper = Sleeper::new();
            sleeper.note();
            let exposed = shared.exposed.load(Ordering::SeqCst);
            for context in contexts.iter() {
                let mut process = at(context);
                if table::lookup(epoll) != Entry::Set(set) {
                    drop(process);
                    sleeper.end();
                    return Answer::error(CLOSED);
                }
                process.attend(set, epoll);
                process.signal_exposed();
                sleeper.begin(&mut process, For::Set(set), deadline);
            }
            // Whoever joins from now on sees who sleeps, and so does who exposes the set.
            if shared.contexts() != contexts || shared.exposed.load(Ordering::SeqCst) != exposed {
                sleeper.stay_awake();
            }
            if exposed {
                sleeper.polled.push(readable(epoll));
                let _ = sys::poll(&mut sleeper.polled, sleeper.timeout_us, since);
                sleeper.timeout_us = Some(0);
            }
            look_at_kernel(epoll, &mut found, sleeper.timeout_us, since);
            sleeper.end();
            looked = now();
        }
        if table::lookup(epoll) != Entry::Set(set) {
            return Answer::error(CLOSED);
        }
    }
}

/// Takes events from the kernel's part of a set, with no lock held.
fn look_at_kernel(epoll: i32, found: &mut Found, timeout_us: Option<u64>, since: Seen) {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; KERNEL_BATCH];
    // More must not be taken than the program has room for: edges would be lost.
    let room = KERNEL_BATCH.min(found.left());
    // SAFETY: `events` has room for `room` records.
    let outcome = unsafe { sys::epoll_wait(epoll, events.as_mut_ptr(), room, timeout_us, since) };
    for event in &events[..outcome.unwrap_or(0).min(KERNEL_BATCH)] {
        let (bits, data) = (event.events, event.u64);
        match tag(data) {
            Tag::Program => found.put(bits, data),
            Tag::Stack => {}
            Tag::Broker(context) | Tag::Bell(context) | Tag::Doors(context) => {
                at(context).heed(&tag(data));
            }
            Tag::Listener(id) => of(id).stack.kernel_ready(id),
        }
    }
}

/// The contexts that a descriptor concerns which is polled by a thread of context `own`.
fn concerned(descriptor: i32, own: usize) -> Contexts {
    match table::lookup(descriptor) {
        Entry::Socket(id) => Contexts::one(id.context()),
        Entry::Set(set) => {
            // Whoever puts a socket of another context into the set wakes its threads.
            shared(set).join(own);
            shared(set).contexts()
        }
        Entry::Kernel | Entry::Kept(_) | Entry::Internal => Contexts::NONE,
    }
}

/// One look of poll() at its descriptors, context by context.
struct Look {
    for_kernel: Vec<libc::pollfd>,
    ready: usize,
    kernel_side: bool,
    spin: Instant,
    pause: Duration,
}

/// Looks at every descriptor; `sleeper` is there if the thread sleeps afterwards.
fn look(
    descriptors: &mut [libc::pollfd],
    contexts: Contexts,
    (call, started): (Waiting, Instant),
    mut sleeper: Option<(&mut Sleeper, Option<Instant>)>,
) -> Look {
    let mut look = Look {
        for_kernel: descriptors
            .iter()
            .map(|descriptor| libc::pollfd { fd: -1, events: descriptor.events, revents: 0 })
            .collect(),
        ready: 0,
        kernel_side: false,
        spin: started,
        pause: Duration::ZERO,
    };
    descriptors.iter_mut().for_each(|descriptor| descriptor.revents = 0);
    let sockets = if sleeper.is_some() { polled_sockets(descriptors) } else { None };
    for context in contexts.iter() {
        let mut process = at(context);
        process.waits_for_events();
        process.pump();
        process.hand_over_urgent();
        for (descriptor, for_kernel) in descriptors.iter_mut().zip(&mut look.for_kernel) {
            let entry = table::lookup(descriptor.fd);
            match entry {
                Entry::Socket(id) if id.context() == context => {}
                Entry::Set(set) if shared(set).contexts().has(context) => {
                    process.know_set(set, descriptor.fd);
                    process.expose(set);
                }
                _ => continue,
            }
            let (revents, kernel_descriptor) = user_level(&mut process, descriptor);
            descriptor.revents |= revents;
            for_kernel.fd = kernel_descriptor;
        }
        process.signal_exposed();
        if let Some((sleeper, deadline)) = &mut sleeper {
            let of_context: Option<Vec<SocketId>> = sockets
                .as_ref()
                .map(|sockets| sockets.iter().copied().filter(|id| id.context() == context).collect());
            sleeper.begin(&mut process, of_context.as_deref().map_or(For::News, For::Sockets), *deadline);
        }
        look.spin = look.spin.max(spin_until(&process, call, started));
        look.pause = Duration::from_micros(process.options.poll_fast_usec);
    }
    for (descriptor, for_kernel) in descriptors.iter_mut().zip(&mut look.for_kernel) {
        match table::lookup(descriptor.fd) {
            Entry::Kernel => for_kernel.fd = descriptor.fd,
            Entry::Kept(_) | Entry::Internal => descriptor.revents = libc::POLLNVAL,
            Entry::Set(set) if shared(set).contexts().is_empty() => for_kernel.fd = descriptor.fd,
            Entry::Socket(_) | Entry::Set(_) => {}
        }
        look.ready += usize::from(descriptor.revents != 0);
        look.kernel_side |= for_kernel.fd >= 0;
    }
    look
}

/// As [`super::wait::poll`], of descriptors that were claimed.
pub(super) fn poll(
    descriptors: &mut [libc::pollfd],
    timeout: Option<Duration>,
    call: Waiting,
    since: Seen,
) -> Answer<usize> {
    // Listeners join the stack that polls them.
    for descriptor in descriptors.iter() {
        match table::lookup(descriptor.fd) {
            Entry::Socket(id) => {
                let mut process = of(id);
                if table::lookup(descriptor.fd) == Entry::Socket(id)
                    && !joins(&mut process, id, descriptor.fd)
                {
                    leave_to_kernel(&mut process, id);
                }
            }
            Entry::Set(set) => expose(set, descriptor.fd),
            _ => {}
        }
    }
    let started = now();
    let deadline = timeout.map(|timeout| started + timeout);
    let mut looked = Instant::from_micros(0);
    loop {
        let own = own_if_any().unwrap_or(0);
        let contexts = descriptors
            .iter()
            .fold(Contexts::one(own), |contexts, descriptor| contexts.and(concerned(descriptor.fd, own)));
        let mut seen = look(descriptors, contexts, (call, started), None);
        let time = now();
        let over = seen.ready > 0 || deadline.is_some_and(|deadline| time >= deadline);
        let spins = !over && goes_on(time, seen.spin, || true);
        if over || (spins && seen.kernel_side && time - looked >= seen.pause) {
            looked = time;
            let mut ready = seen.ready;
            if seen.kernel_side && sys::poll(&mut seen.for_kernel, Some(0), since).is_ok() {
                ready = merge(descriptors, &seen.for_kernel);
            }
            if over || ready > 0 {
                return Answer::ok(ready);
            }
        }
        if sys::interrupted(since, false) {
            return Answer::error(Errno::INTR);
        }
        if spins {
            let nap_us = at(own).nap_us(true);
            rest(nap_us);
            continue;
        }
        let mut sleeper = Sleeper::new();
        sleeper.note();
        let mut seen = look(descriptors, contexts, (call, started), Some((&mut sleeper, deadline)));
        let changed = descriptors.iter().any(|descriptor| {
            let now = concerned(descriptor.fd, own);
            now.and(contexts) != contexts
        });
        if seen.ready > 0 || changed {
            sleeper.stay_awake();
        }
        let own = seen.for_kernel.len();
        seen.for_kernel.append(&mut sleeper.polled);
        let _ = sys::poll(&mut seen.for_kernel, sleeper.timeout_us, since);
        sleeper.polled = seen.for_kernel.split_off(own);
        sleeper.end();
        if merge(descriptors, &seen.for_kernel) > 0 {
            // One more look at ours, without sleeping.
            let from_kernel: Vec<i16> = descriptors.iter().map(|descriptor| descriptor.revents).collect();
            look(descriptors, contexts, (call, started), None);
            for (descriptor, revents) in descriptors.iter_mut().zip(from_kernel) {
                descriptor.revents |= revents;
            }
            return Answer::ok(descriptors.iter().filter(|descriptor| descriptor.revents != 0).count());
        }
    }
}

/// Adds what the kernel found; returns how many descriptors are ready.
fn merge(descriptors: &mut [libc::pollfd], from_kernel: &[libc::pollfd]) -> usize {
    let mut ready = 0;
    for (descriptor, kernel) in descriptors.iter_mut().zip(from_kernel) {
        if kernel.fd >= 0 {
            descriptor.revents |= kernel.revents;
            if kernel.revents & !(libc::POLLOUT | libc::POLLWRNORM) != 0
                && let Entry::Socket(id) = table::lookup(descriptor.fd)
            {
                let mut process = of(id);
                if matches!(process.stack.socket(id).state, State::Listening | State::Datagram) {
                    process.stack.kernel_ready(id);
                }
            }
        }
        ready += usize::from(descriptor.revents != 0);
    }
    ready
}

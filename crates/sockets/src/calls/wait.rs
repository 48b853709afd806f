//! epoll, poll and select: user-level and kernel descriptors together.

use core::time::Duration;

use overfly_engine::Instant;
use overfly_profile::options::Waiting;
use rustix::io::Errno;

use super::life::{leave_to_kernel, watched};
use super::{Answer, CLOSED, lock_socket, several, used};
use crate::interest::{SetId, bits};
use crate::kernel::now;
use crate::lock::Guard;
use crate::memory::is_plausible;
use crate::process::contexts::are_several;
use crate::process::{
    For, KernelSet, Placed, Process, Tag, Told, before_kernel_wait, has_inherited, is_active, let_others_in,
    private_listener, process, readable, settled, sleep_beside, sleep_in, spins, tag,
};
use crate::socket::{SocketId, State};
use crate::statistics::Why;
use crate::sys::{self, Seen};
use crate::table::{self, Entry};

/// While user-level events keep coming, how often the kernel's part of a set is looked at.
pub(super) const KERNEL_LOOK_PAUSE: Duration = Duration::from_micros(100);
/// With EF_EPOLL_MT_SAFE, how many looks of a spinning epoll_wait pass between two chances for other threads.
const LOOKS_ALONE: u32 = 16;
/// Events taken from the kernel at once.
pub(super) const KERNEL_BATCH: usize = 64;

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

/// epoll_ctl().
pub(crate) fn control(
    epoll: i32,
    operation: i32,
    descriptor: i32,
    event: Option<libc::epoll_event>,
) -> Answer<()> {
    let set = match table::lookup(epoll) {
        Entry::Set(set) => set,
        Entry::Kept(_) | Entry::Internal => return Answer::error(CLOSED),
        Entry::Kernel | Entry::Socket(_) => return Answer::Kernel,
    };
    if let (Entry::Set(inner), libc::EPOLL_CTL_ADD) = (table::lookup(descriptor), operation) {
        if are_several() {
            several::watch_set(inner, descriptor, set);
        } else {
            drop(exposed(process(), inner));
        }
        return Answer::Kernel;
    }
    let (mut guard, id) = match lock_socket(descriptor) {
        Ok(locked) => locked,
        Err(answer) => return answer,
    };
    if are_several() {
        return several::control(guard, (epoll, set), operation, (descriptor, id), event);
    }
    let told = Told(&mut guard);
    control_locked(told.0, (epoll, set), operation, (descriptor, id), event)
}

/// A set is watched as a descriptor from now on. What wakes the threads that sleep in it shows through until they have left.
fn exposed(mut guard: Guard<'static, Process>, set: SetId) -> Guard<'static, Process> {
    const PATIENCE: Duration = Duration::from_millis(20);
    guard.expose(set);
    let end = now() + PATIENCE;
    while guard.sets[set.0 as usize].has_sleepers() && now() < end {
        guard = let_others_in(guard, rustix::thread::sched_yield);
    }
    guard
}

/// epoll_ctl() for a socket of a context's.
pub(super) fn control_locked(
    process: &mut Process,
    (epoll, set): (i32, SetId),
    operation: i32,
    (descriptor, id): (i32, SocketId),
    event: Option<libc::epoll_event>,
) -> Answer<()> {
    match (operation, event) {
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some(event)) if is_misused(operation, event.events) => {
            Answer::error(Errno::INVAL)
        }
        (libc::EPOLL_CTL_ADD, Some(event)) => add(process, set, epoll, id, descriptor, event),
        (libc::EPOLL_CTL_MOD, Some(event)) => modify(process, set, epoll, id, descriptor, event),
        (libc::EPOLL_CTL_DEL, _) => remove(process, set, epoll, id, descriptor),
        _ => Answer::Kernel,
    }
}

/// EPOLLEXCLUSIVE goes with few other events, and only when a descriptor is added (do_epoll_ctl() in fs/eventpoll.c).
const fn is_misused(operation: i32, events: u32) -> bool {
    const WAKEUP: u32 = 1 << 29;
    const FITTING: u32 = bits::IN | bits::OUT | bits::ERR | bits::HUP | WAKEUP | bits::ET | bits::EXCLUSIVE;
    events & bits::EXCLUSIVE != 0 && (operation == libc::EPOLL_CTL_MOD || events & !FITTING != 0)
}

/// How the kernel's socket of a listener, or of a UDP socket, is watched for the program: one-shot is up to us, and so is
/// whether there is room to send.
pub(super) fn listener_event(id: SocketId, events: u32) -> libc::epoll_event {
    libc::epoll_event {
        events: events & !(bits::ONESHOT | bits::OUT | bits::WRNORM),
        u64: private_listener(id),
    }
}

fn add(
    process: &mut Process,
    set: SetId,
    epoll: i32,
    id: SocketId,
    descriptor: i32,
    event: libc::epoll_event,
) -> Answer<()> {
    let (events, data) = (event.events, event.u64);
    let state = process.stack.socket(id).state;
    if process.options.ul_epoll == 0 && matches!(state, State::Candidate | State::Listening | State::Datagram)
    {
        process.left(Why::KernelEpoll);
        leave_to_kernel(process, id);
        return Answer::Kernel;
    }
    match state {
        State::Connecting | State::Connected | State::Ended => {
            Answer::Done(process.stack.watch(set, id, descriptor, events, data, false))
        }
        State::Listening | State::Datagram => {
            if !joins(process, id, descriptor) {
                leave_to_kernel(process, id);
                return Answer::Kernel;
            }
            let for_kernel = listener_event(id, events);
            if let Err(error) =
                sys::epoll_control(epoll, libc::EPOLL_CTL_ADD, descriptor, &raw const for_kernel)
            {
                return Answer::error(error);
            }
            watched(process, id, 1);
            Answer::Done(process.stack.watch(set, id, descriptor, events, data, false))
        }
        State::Candidate => {
            if let Err(error) = sys::epoll_control(epoll, libc::EPOLL_CTL_ADD, descriptor, &raw const event) {
                return Answer::error(error);
            }
            Answer::Done(process.stack.watch(set, id, descriptor, events, data, true))
        }
        State::Free | State::Lost => Answer::Kernel,
    }
}

/// A listener, or a UDP socket, belongs to the stack of the process that waits for it from now on. False if it stays the
/// kernel's.
pub(super) fn joins(process: &mut Process, id: SocketId, descriptor: i32) -> bool {
    match process.stack.socket(id).state {
        State::Listening => process.join_to_watch(id, descriptor),
        State::Datagram => process.place_datagram(id, descriptor) != Placed::No,
        _ => true,
    }
}

fn modify(
    process: &mut Process,
    set: SetId,
    epoll: i32,
    id: SocketId,
    descriptor: i32,
    event: libc::epoll_event,
) -> Answer<()> {
    let in_kernel = match process.stack.rewatch(set, id, descriptor, event.events, event.u64) {
        Ok(in_kernel) => in_kernel,
        Err(error) => return Answer::error(error),
    };
    let for_kernel = match process.stack.socket(id).state {
        State::Listening | State::Datagram => listener_event(id, event.events),
        _ if in_kernel => event,
        _ => return Answer::ok(()),
    };
    Answer::Done(sys::epoll_control(epoll, libc::EPOLL_CTL_MOD, descriptor, &raw const for_kernel))
}

fn remove(process: &mut Process, set: SetId, epoll: i32, id: SocketId, descriptor: i32) -> Answer<()> {
    let in_kernel = match process.stack.unwatch(set, id, descriptor) {
        Ok(in_kernel) => in_kernel,
        Err(error) => return Answer::error(error),
    };
    let listening = matches!(process.stack.socket(id).state, State::Listening | State::Datagram);
    if listening && !in_kernel {
        watched(process, id, -1);
    }
    if listening || in_kernel {
        let outcome = sys::epoll_control(epoll, libc::EPOLL_CTL_DEL, descriptor, core::ptr::null());
        process.leave_to_children(id, descriptor);
        return Answer::Done(outcome);
    }
    Answer::ok(())
}

/// Where epoll_wait() puts what it found.
pub(super) struct Found {
    pub(super) records: *mut libc::epoll_event,
    pub(super) room: usize,
    pub(super) count: usize,
}

impl Found {
    pub(super) fn put(&mut self, events: u32, data: u64) {
        if self.count < self.room {
            // SAFETY: `epoll_wait`'s caller answers for `room` records, and there is room.
            unsafe { self.records.add(self.count).write_unaligned(libc::epoll_event { events, u64: data }) };
            self.count += 1;
        }
    }

    pub(super) fn left(&self) -> usize {
        self.room - self.count
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
        Entry::Kept(_) | Entry::Internal => return Answer::error(CLOSED),
        Entry::Kernel | Entry::Socket(_) => return Answer::Kernel,
    };
    if are_several() {
        // SAFETY: the caller's promise.
        return unsafe { several::epoll_wait((epoll, set), records, room, timeout, mask) };
    }
    if mask.is_some() && is_kernels(&mut process(), set) {
        return Answer::Kernel;
    }
    let since = sys::seen();
    // Without the lock: with it, signals may be blocked that the program has not blocked.
    let _masked = Masked::new(mask);
    let mut guard = process();
    if is_kernels(&mut guard, set) {
        return Answer::Kernel;
    }
    let Ok(room @ 1..) = usize::try_from(room) else { return Answer::error(Errno::INVAL) };
    if !is_plausible(records, room.saturating_mul(size_of::<libc::epoll_event>())) {
        return Answer::error(Errno::FAULT);
    }
    prepare(&mut guard, set);
    guard.waits_for_events();
    let mut found = Found { records, room, count: 0 };
    let mut started = None;
    let looks_alone = if guard.options.epoll_mt_safe == 0 { 1 } else { LOOKS_ALONE };
    let mut looks = 0;
    let mut slept = false;
    // What fills the program's room again and again must not keep the kernel's events from it.
    let mut kernel_first = core::mem::take(&mut guard.sets[set.0 as usize].full);
    loop {
        guard.pump();
        guard.hand_over_urgent();
        if guard.stack.owes() {
            guard = settled(guard);
            if table::lookup(epoll) != Entry::Set(set) {
                return Answer::error(CLOSED);
            }
        }
        let time = guard.pumped;
        let started = *started.get_or_insert(time);
        if core::mem::take(&mut kernel_first) {
            guard.sets[set.0 as usize].looked = time;
            guard = look_at_kernel(guard, (epoll, set), &mut found, &Sleep::No, since);
        }
        let ours = guard.stack.collect(set, found.left(), |events, data| found.put(events, data));
        if core::mem::take(&mut slept) {
            guard.count_turn(set, found.count > 0);
        }
        let deadline = timeout.map(|timeout| started + timeout);
        let over = deadline.is_some_and(|deadline| time >= deadline);
        let pause = if found.count > 0 {
            KERNEL_LOOK_PAUSE
        } else {
            Duration::from_micros(guard.options.poll_fast_usec)
        };
        let spins = !over
            && found.count == 0
            && guard.stack.is_running()
            && spins(&mut guard, Waiting::Epoll, started, time);
        let due = time - guard.sets[set.0 as usize].looked >= pause;
        // What the kernel has said once it would say again.
        let asked = found.count > ours;
        if !asked && found.left() > 0 && if found.count > 0 || spins { due } else { over } {
            guard.sets[set.0 as usize].looked = time;
            guard = look_at_kernel(guard, (epoll, set), &mut found, &Sleep::No, since);
            if ours == 0 {
                // The kernel may have had something for a listener. (What was reported already would be reported twice.)
                guard.stack.collect(set, found.left(), |events, data| found.put(events, data));
            }
        }
        if found.count > 0 || over {
            let record = &mut guard.sets[set.0 as usize];
            record.full = found.left() == 0;
            if found.count > 0 {
                record.served = time;
            }
            guard.leave_rest(set);
            return Answer::ok(found.count);
        }
        if sys::interrupted(since, false) {
            return Answer::error(Errno::INTR);
        }
        if spins {
            looks += 1;
            guard.statistics.looks += 1;
            guard.spins_for(For::Set(set));
            if looks % looks_alone != 0 {
                continue;
            }
            guard.stack.take_news();
            guard = let_others_in(guard, || ());
        } else {
            guard = look_at_kernel(guard, (epoll, set), &mut found, &Sleep::Until(deadline), since);
            slept = true;
            let time = now();
            if let Some(record) = guard.sets.get_mut(set.0 as usize) {
                record.looked = time;
            }
        }
        if table::lookup(epoll) != Entry::Set(set) {
            return Answer::error(CLOSED);
        }
    }
}

/// The kernel alone knows what a set has, and will until the call that waits there returns: no other thread can add anything.
#[inline]
fn is_kernels(process: &mut Process, set: SetId) -> bool {
    if has_inherited() {
        process.claim_watched(set);
    }
    !process.stack.is_running() && !process.sets[set.0 as usize].tainted && sys::is_single_threaded()
}

/// The stack's own descriptors join a set of the program, so that frames end its sleep. Where others watch the set as a
/// descriptor they would see it readable for each frame: its threads sleep beside it ([`sleep_beside`]).
pub(crate) fn prepare(process: &mut Process, set: SetId) {
    let record = &process.sets[set.0 as usize];
    if record.prepared || record.exposed || !process.stack.is_running() {
        return;
    }
    process.sets[set.0 as usize].prepared = true;
    watch_links(process, &process.sets[set.0 as usize]);
    let kick = process.kick_of(set);
    for descriptor in [kick, process.broker_descriptor(), process.bell()].into_iter().flatten() {
        let _ = process.sets[set.0 as usize].join(descriptor, process.private_data(descriptor));
    }
}

/// Frames wake one of the threads that wait for them, each in a set of its own, and whoever it is tells the others. Not so where
/// the link's descriptor is a set itself (epoll_ctl(2), EPOLLEXCLUSIVE), nor where it could be a child that is woken.
pub(crate) fn watch_links(process: &Process, set: &KernelSet) {
    let alone = !process.sets_shared && !set.inherited;
    for &descriptor in process.link_descriptors() {
        let watch = |events| {
            let event = libc::epoll_event { events, u64: process.private_data(descriptor) };
            sys::epoll_control(set.descriptor, libc::EPOLL_CTL_ADD, descriptor, &raw const event)
        };
        if !alone || watch(bits::IN | bits::EXCLUSIVE) == Err(Errno::INVAL) {
            let _ = watch(bits::IN);
        }
    }
}

/// The links' descriptors leave a set and join it again, behind all others.
#[cold]
pub(crate) fn watch_links_again(process: &Process, set: &KernelSet) {
    for &descriptor in process.link_descriptors() {
        set.leave(descriptor);
    }
    watch_links(process, set);
}

/// Before a fork: the child will have this process's sets, may wait in them, and cannot do anything about this one's frames.
/// Every set must hear of them from now on.
pub(crate) fn share_sets(process: &mut Process) {
    if core::mem::replace(&mut process.sets_shared, true) {
        return;
    }
    process.watch_everywhere();
    for set in process.sets.iter().filter(|set| set.prepared && set.references > 0) {
        watch_links_again(process, set);
    }
}

enum Sleep {
    No,
    Until(Option<Instant>),
}

/// Takes events from the kernel's part of a set: the program's own as they are, and those of listeners' kernel sockets as
/// news of the listener.
fn look_at_kernel(
    mut guard: Guard<'static, Process>,
    (epoll, set): (i32, SetId),
    found: &mut Found,
    sleep: &Sleep,
    since: Seen,
) -> Guard<'static, Process> {
    guard.signal_exposed();
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; KERNEL_BATCH];
    // Our own records in the set take places too. More must not be taken than the program has room for: edges would be lost.
    let room = KERNEL_BATCH.min(found.left());
    let mut outcome = Ok(0);
    match sleep {
        Sleep::No => {
            // SAFETY: `events` has room for `room` records.
            outcome = unsafe { sys::epoll_wait(epoll, events.as_mut_ptr(), room, Some(0), since) };
        }
        &Sleep::Until(deadline) if guard.sets[set.0 as usize].exposed => {
            guard = sleep_beside(guard, For::Set(set), &mut vec![readable(epoll)], deadline, since);
            // SAFETY: as above.
            outcome = unsafe { sys::epoll_wait(epoll, events.as_mut_ptr(), room, Some(0), since) };
        }
        &Sleep::Until(deadline) => {
            guard = sleep_in(guard, set, deadline, |timeout_us| {
                // SAFETY: as above.
                outcome = unsafe { sys::epoll_wait(epoll, events.as_mut_ptr(), room, timeout_us, since) };
            });
        }
    }
    let Ok(count) = outcome else { return guard };
    for event in &events[..count.min(KERNEL_BATCH)] {
        let (bits, data) = (event.events, event.u64);
        match tag(data) {
            Tag::Program => found.put(bits, data),
            Tag::Listener(id) => guard.stack.kernel_ready(id),
            own => guard.heed(&own),
        }
    }
    guard
}

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
    let since = sys::seen();
    let _masked = Masked::new(mask);
    for descriptor in descriptors.iter() {
        used(descriptor.fd);
    }
    if are_several() {
        return several::poll(descriptors, timeout, call, since);
    }
    let mut guard = process();
    // Listeners join the stack of the process that polls them.
    for descriptor in descriptors.iter() {
        match table::lookup(descriptor.fd) {
            Entry::Socket(id) if !joins(&mut guard, id, descriptor.fd) => leave_to_kernel(&mut guard, id),
            Entry::Set(set) => guard = exposed(guard, set),
            _ => {}
        }
    }
    guard.waits_for_events();
    let started = now();
    let deadline = timeout.map(|timeout| started + timeout);
    let mut for_kernel = Vec::new();
    if for_kernel.try_reserve(descriptors.len() + 16).is_err() {
        return Answer::error(Errno::NOMEM);
    }
    let mut looked = Instant::from_micros(0);
    loop {
        guard.pump();
        guard.hand_over_urgent();
        if guard.stack.owes() {
            guard = settled(guard);
        }
        let time = now();
        for_kernel.clear();
        let mut ready = 0;
        let mut kernel_side = false;
        for descriptor in descriptors.iter_mut() {
            let (revents, kernel_descriptor) = user_level(&mut guard, descriptor);
            descriptor.revents = revents;
            ready += usize::from(revents != 0);
            kernel_side |= kernel_descriptor >= 0;
            for_kernel.push(libc::pollfd { fd: kernel_descriptor, events: descriptor.events, revents: 0 });
        }
        let over = ready > 0 || deadline.is_some_and(|deadline| time >= deadline);
        let spins = !over && spins(&mut guard, call, started, time);
        if over
            || (spins && kernel_side && time - looked >= Duration::from_micros(guard.options.poll_fast_usec))
        {
            looked = time;
            guard.signal_exposed();
            if kernel_side && sys::poll(&mut for_kernel, Some(0), since).is_ok() {
                ready = merge(&mut guard, descriptors, &for_kernel);
            }
            if over || ready > 0 {
                return Answer::ok(ready);
            }
        }
        if sys::interrupted(since, false) {
            return Answer::error(Errno::INTR);
        }
        let sockets = polled_sockets(descriptors);
        let what = sockets.as_deref().map_or(For::News, For::Sockets);
        if spins {
            guard.spins_for(what);
            guard = let_others_in(guard, || ());
            continue;
        }
        guard.signal_exposed();
        // Who has nothing in the kernel to poll sleeps at less cost.
        let mut polled = if kernel_side { core::mem::take(&mut for_kernel) } else { Vec::new() };
        guard = sleep_beside(guard, what, &mut polled, deadline, since);
        if kernel_side && merge(&mut guard, descriptors, &polled) > 0 {
            // Kernel descriptors are ready; one more look at ours, without sleeping.
            guard.pump();
            for descriptor in descriptors.iter_mut() {
                let (revents, _) = user_level(&mut guard, descriptor);
                descriptor.revents |= revents;
            }
            let ready = descriptors.iter().filter(|descriptor| descriptor.revents != 0).count();
            return Answer::ok(ready);
        }
    }
}

/// The sockets among some descriptors, if they are few, and whatever else there is is the kernel's.
pub(super) fn polled_sockets(descriptors: &[libc::pollfd]) -> Option<Vec<SocketId>> {
    const MOST: usize = 16;
    let mut sockets = Vec::new();
    for descriptor in descriptors {
        match table::lookup(descriptor.fd) {
            Entry::Socket(id) if sockets.len() < MOST => sockets.push(id),
            Entry::Socket(_) | Entry::Set(_) => return None,
            Entry::Kernel | Entry::Kept(_) | Entry::Internal => {}
        }
    }
    Some(sockets).filter(|sockets| !sockets.is_empty())
}

/// What poll() says of a descriptor at user level, and the descriptor that the kernel must be asked about as well, or -1.
pub(super) fn user_level(process: &mut Process, descriptor: &libc::pollfd) -> (i16, i32) {
    let always = libc::POLLERR | libc::POLLHUP;
    match table::lookup(descriptor.fd) {
        Entry::Kernel => (0, descriptor.fd),
        Entry::Kept(_) | Entry::Internal => (libc::POLLNVAL, -1),
        Entry::Set(set) => {
            let ready = process.stack.set_is_ready(set);
            (if ready { libc::POLLIN & descriptor.events } else { 0 }, descriptor.fd)
        }
        Entry::Socket(id) => match process.stack.socket(id).state {
            State::Free | State::Candidate => (0, descriptor.fd),
            // The kernel's socket may have a datagram, or a connection, too. What it had once somebody else may have taken.
            State::Datagram => {
                (process.stack.level_here(id) as i16 & (descriptor.events | always), descriptor.fd)
            }
            State::Listening => (process.stack.level_here(id) as i16 & descriptor.events, descriptor.fd),
            _ => {
                let level = process.stack.asked(id, u32::from(descriptor.events as u16));
                (level as i16 & (descriptor.events | always), -1)
            }
        },
    }
}

/// Adds what the kernel found; returns how many descriptors are ready.
fn merge(process: &mut Process, descriptors: &mut [libc::pollfd], from_kernel: &[libc::pollfd]) -> usize {
    let mut ready = 0;
    for (descriptor, kernel) in descriptors.iter_mut().zip(from_kernel) {
        if kernel.fd >= 0 {
            descriptor.revents |= kernel.revents;
            if kernel.revents != 0
                && let Entry::Socket(id) = table::lookup(descriptor.fd)
                && matches!(process.stack.socket(id).state, State::Listening | State::Datagram)
                && kernel.revents & !(libc::POLLOUT | libc::POLLWRNORM) != 0
            {
                process.stack.kernel_ready(id);
            }
        }
        ready += usize::from(descriptor.revents != 0);
    }
    ready
}

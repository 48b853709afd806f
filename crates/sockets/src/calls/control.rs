//! epoll_ctl: what a set watches. A set may watch sockets of several contexts; each has its own record of it.

use core::sync::atomic::Ordering;
use core::time::Duration;

use rustix::io::Errno;

use super::{Answer, CLOSED, lock_socket};
use crate::interest::{SetId, bits};
use crate::kernel::{is_epoll, now};
use crate::process::contexts::{self, at};
use crate::process::rounds::Rounds;
use crate::process::sets::shared;
use crate::process::{Process, WakeOnDrop, leave_to_kernel, let_others_in, listener_event, watched};
use crate::socket::{SocketId, SocketState};
use crate::statistics::Why;
use crate::sys;
use crate::table::{self, Entry};

/// epoll_ctl().
pub(crate) fn epoll_ctl(
    epoll: i32,
    operation: i32,
    descriptor: i32,
    event: Option<libc::epoll_event>,
) -> Answer<()> {
    let set = match table::lookup(epoll) {
        Entry::Set(set) => Some(set),
        // A set of another process, or one that an earlier image has made.
        Entry::Kernel if operation == libc::EPOLL_CTL_ADD && event.is_some() && is_epoll(epoll) => None,
        Entry::Cached(_) | Entry::Internal => return Answer::error(CLOSED),
        Entry::Kernel | Entry::Socket(_) => return Answer::Kernel,
    };
    if let (Entry::Set(inner), libc::EPOLL_CTL_ADD) = (table::lookup(descriptor), operation) {
        watch_set(inner, descriptor, set);
        return Answer::Kernel;
    }
    let (mut guard, id) = match lock_socket(descriptor) {
        Ok(locked) => locked,
        Err(answer) => return answer,
    };
    let Some(set) = set.filter(|set| operation != libc::EPOLL_CTL_ADD || !shared(*set).is_passed_on()) else {
        let told = WakeOnDrop(&mut guard);
        return told.0.share_in_set(id, descriptor).map_or_else(Answer::error, |()| Answer::Kernel);
    };
    if operation != libc::EPOLL_CTL_ADD {
        return control(WakeOnDrop(&mut guard).0, (epoll, set), operation, (descriptor, id), event);
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
    let answer = control(WakeOnDrop(&mut guard).0, (epoll, set), operation, (descriptor, id), event);
    drop(guard);
    // Who sleeps in it must be counted by this context, too.
    match before {
        Some(_) if exposed => contexts::each(|process| process.wake_set(None)),
        Some(before) => before.iter().for_each(|context| at(context).wake_set(Some(set))),
        None => {}
    }
    answer
}

/// A set is watched as a descriptor from now on. What wakes the threads that sleep in it shows through until they have left.
pub(super) fn expose(rounds: &mut Rounds, set: SetId, descriptor: i32) {
    const PATIENCE: Duration = Duration::from_millis(20);
    let shared = shared(set);
    let is_first = shared.begins_to_wait();
    shared.exposed.store(true, Ordering::SeqCst);
    for context in shared.contexts().iter() {
        let process = rounds.enter(context);
        process.know_set(set, descriptor);
        if is_first {
            process.sockets_join(set);
        }
        process.expose(set);
        let mut end = None;
        while rounds.enter(context).sleepers.any_in(set)
            && now() < *end.get_or_insert_with(|| now() + PATIENCE)
        {
            rounds.pass(|guard| let_others_in(guard, rustix::thread::sched_yield));
        }
    }
}

/// A set is watched by another, which may be another process's: whoever waits in that one looks at every context.
fn watch_set(inner: SetId, descriptor: i32, outer: Option<SetId>) {
    expose(&mut Rounds::new(), inner, descriptor);
    if let Some(outer) = outer
        && shared(outer).join_all()
    {
        contexts::each(|process| process.wake_set(Some(outer)));
    }
}

/// A set is about to be another process's, too: what it watches, now and later, is the kernel's.
pub(super) fn share_set(set: SetId, descriptor: i32) -> Result<(), Errno> {
    shared(set).pass_on();
    // What stays at user level in it has joined already.
    shared(set).begins_to_wait();
    for context in contexts::all() {
        let mut guard = at(context);
        WakeOnDrop(&mut guard).0.share_watched(set)?;
    }
    expose(&mut Rounds::new(), set, descriptor);
    contexts::each(Process::signal_exposed);
    Ok(())
}

/// epoll_ctl() for a socket whose context's lock is held.
fn control(
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
    if process.options.ul_epoll == 0
        && matches!(state, SocketState::Candidate | SocketState::Listening | SocketState::Datagram)
    {
        process.left(Why::KernelEpoll);
        leave_to_kernel(process, id);
        return Answer::Kernel;
    }
    match state {
        SocketState::Connecting | SocketState::Connected | SocketState::Ended => {
            if !shared(set).is_waited_in() {
                process.doubt();
            }
            Answer::Done(process.stack.watch(set, id, descriptor, events, data, false))
        }
        SocketState::Listening | SocketState::Datagram
            if !shared(set).is_waited_in()
                && !process.is_in_stack(id)
                && !process.stack.has_datagrams(id) =>
        {
            in_kernel(process, (epoll, set), (descriptor, id), event)
        }
        SocketState::Listening | SocketState::Datagram => {
            if !process.joins(id, descriptor) {
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
            process.sets[set].entered = true;
            Answer::Done(process.stack.watch(set, id, descriptor, events, data, false))
        }
        SocketState::Candidate => in_kernel(process, (epoll, set), (descriptor, id), event),
        SocketState::Free | SocketState::Lost => Answer::Kernel,
    }
}

/// The kernel alone says what there is of a socket, for now.
fn in_kernel(
    process: &mut Process,
    (epoll, set): (i32, SetId),
    (descriptor, id): (i32, SocketId),
    event: libc::epoll_event,
) -> Answer<()> {
    if let Err(error) = sys::epoll_control(epoll, libc::EPOLL_CTL_ADD, descriptor, &raw const event) {
        return Answer::error(error);
    }
    Answer::Done(process.stack.watch(set, id, descriptor, event.events, event.u64, true))
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
        _ if in_kernel => event,
        SocketState::Listening | SocketState::Datagram => {
            process.sets[set].entered = true;
            if shared(set).is_passed_on() { event } else { listener_event(id, event.events) }
        }
        _ => return Answer::ok(()),
    };
    Answer::Done(sys::epoll_control(epoll, libc::EPOLL_CTL_MOD, descriptor, &raw const for_kernel))
}

fn remove(process: &mut Process, set: SetId, epoll: i32, id: SocketId, descriptor: i32) -> Answer<()> {
    let in_kernel = match process.stack.unwatch(set, id, descriptor) {
        Ok(in_kernel) => in_kernel,
        Err(error) => return Answer::error(error),
    };
    let listening = matches!(process.stack.socket(id).state, SocketState::Listening | SocketState::Datagram);
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

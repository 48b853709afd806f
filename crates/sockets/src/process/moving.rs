//! EF_STACK_PER_THREAD=2, and 3 in a process that has divided: an accepted connection that one thread serves goes on in that thread's stack.
//!
//! * A thread that has read from a connection of another context so often in a row, with nobody in between, has it from then on. It moves
//!   once. A short one never does: its frames would be steered anew for nothing.
//! * Both contexts are held meanwhile, the second one only if it is free: nobody waits for a lock with another one in its hands.
//! * Frames are steered to the new stack first, and wait in its rings. What has come to the old one is taken before the connection leaves
//!   it. A frame that is between the two in that moment is lost, and its sender repeats it.
//! * What watches the connection in sets moves along. A set that has no other socket of the old context does not concern it any more: whoever
//!   waits there never takes its lock again.

use core::sync::atomic::{AtomicU32, Ordering};

use super::away::NoStack;
use super::start::Start;
use super::{Process, contexts, dividing, has_inherited, sets, table};
use crate::any_link::AnyLink;
use crate::interest::SetId;
use crate::kernel::{self, now};
use crate::lock::Guard;
use crate::socket::{CONTEXTS, Side, SocketId};
use crate::table::Entry;

/// Reads in a row by one thread after which it serves the connection.
const SERVES: u8 = 16;
/// What threads without a context are noted with: no context has such a number.
const WITHOUT_CONTEXT: u8 = 0x80;
const _: () = assert!(CONTEXTS <= WITHOUT_CONTEXT as usize);
/// Sets that watch a connection that moves, at most.
const SETS_MAX: usize = 4;

/// Contexts that a stack could not be had for, by their bits.
static CANNOT: AtomicU32 = AtomicU32::new(0);

/// What watches a connection.
struct Watched {
    set: SetId,
    epoll: i32,
    descriptor: i32,
    events: u32,
    data: u64,
    disabled: bool,
}

/// The calling thread reads from a connection whose context it holds. `None`: the connection has moved, or may: it must be looked up again.
#[inline]
pub(crate) fn served(
    guard: Guard<'static, Process>,
    id: SocketId,
    descriptor: i32,
) -> Option<Guard<'static, Process>> {
    if contexts::connections_follow() { follow(guard, id, descriptor) } else { Some(guard) }
}

fn follow(
    mut guard: Guard<'static, Process>,
    id: SocketId,
    descriptor: i32,
) -> Option<Guard<'static, Process>> {
    let socket = guard.stack.socket_mut(id);
    if socket.settled || !socket.passive || socket.side != Side::Network {
        return Some(guard);
    }
    let own = contexts::own_if_any();
    let reader = own.map_or_else(|| dividing::mark() | WITHOUT_CONTEXT, |own| own as u8);
    if socket.served_by != reader {
        (socket.served_by, socket.served) = (reader, 0);
    }
    if own == Some(id.context()) {
        return Some(guard);
    }
    socket.served += 1;
    match socket.served {
        ..SERVES => return Some(guard),
        SERVES => {}
        _ => socket.served = 0,
    }
    // A thread that has only short ones never has a context of its own, and so looks at one alone.
    let Some(own) = contexts::own_of_loop().filter(|&own| own != id.context()) else {
        socket.served = 0;
        return Some(guard);
    };
    if socket.served == SERVES {
        socket.served_by = own as u8;
        // Its stack may have to be made first, with no lock but its own.
        drop(guard);
        contexts::at(own).start_to_share();
        return None;
    }
    let Some(here) = contexts::at_if_free(own) else {
        guard.statistics.moves_put_off += 1;
        return Some(guard);
    };
    let moved = move_between(&mut guard, here, id, descriptor);
    if !moved {
        return Some(guard);
    }
    drop(guard);
    None
}

/// Moves a connection between two contexts that are held. Returns whether it did.
fn move_between(
    there: &mut Guard<'static, Process>,
    mut here: Guard<'static, Process>,
    id: SocketId,
    descriptor: i32,
) -> bool {
    let outcome = try_move(there, &mut here, id, descriptor);
    match outcome {
        Moved::Yes => here.statistics.moves += 1,
        Moved::NotNow => there.statistics.moves_put_off += 1,
        Moved::Never => {
            there.statistics.moves_refused += 1;
            there.stack.socket_mut(id).settled = true;
        }
    }
    here.tell_sleepers();
    there.tell_sleepers();
    let context = here.context;
    // What this one owes is done when it is released next: by the caller, who goes on there, or by whoever comes.
    core::mem::forget(here);
    // SAFETY: the guard was just forgotten, and `there` is released after it.
    unsafe { contexts::release_one(context) };
    matches!(outcome, Moved::Yes)
}

/// What came of it.
enum Moved {
    Yes,
    NotNow,
    Never,
}

fn try_move(there: &mut Process, here: &mut Process, id: SocketId, descriptor: i32) -> Moved {
    if !are_neighbors(there, here) || has_inherited() || there.is_inherited(id) {
        return Moved::Never;
    }
    if !there.stack.may_move(id, &here.stack) {
        return Moved::NotNow;
    }
    let Some(watched) = there.watchers(id) else { return Moved::Never };
    let Some((local, remote, _)) = there.stack.way(id) else { return Moved::NotNow };
    let Some(reserved) = here.stack.reserve() else { return Moved::NotNow };
    let fetched = here.session.client.as_mut().is_some_and(|client| client.fetch_flow(local, remote).is_ok());
    if !fetched {
        here.stack.unreserve(reserved);
        return Moved::Never;
    }
    // What came here before.
    there.pump();
    let moving = if there.stack.may_move(id, &here.stack) { there.stack.take_out(id) } else { None };
    let Some(moving) = moving else {
        here.stack.unreserve(reserved);
        here.stack.stays_away(local, remote);
        if let Some(client) = there.session.client.as_mut() {
            let _ = client.fetch_flow(local, remote);
        }
        return Moved::NotNow;
    };
    if here.stack.put_in(now(), reserved, moving).is_err() {
        unreachable!("it was seen that there is room, and the lock was held since");
    }
    let socket = here.stack.socket_mut(reserved);
    socket.settled = true;
    // Who accepts is another context, which could not use the descriptor once this is closed.
    socket.customized = true;
    table::enter(descriptor, Entry::Socket(reserved));
    for Watched { set, epoll, descriptor, events, data, disabled } in watched {
        here.know_set(set, epoll);
        sets::shared(set).join(here.context);
        let _ = here.stack.watch(set, reserved, descriptor, events, data, false);
        if disabled {
            here.stack.disable(set, reserved, descriptor);
        }
        there.leave_set(set);
        // Who sleeps there looks at other contexts from now on.
        there.wake_set(Some(set));
        here.wake_set(Some(set));
    }
    Moved::Yes
}

/// Whether frames can be steered from the one to the other.
fn are_neighbors(there: &Process, here: &Process) -> bool {
    let carries = |process: &Process| {
        process.stack.transport(Side::Network).is_some_and(AnyLink::is_interfaces) && !process.is_away()
    };
    carries(there) && carries(here) && there.interface_index == here.interface_index
}

impl Process {
    /// The thread's stack is made, if there is none, for connections of others. Where it cannot be had they stay where they are.
    fn start_to_share(&mut self) {
        if self.start != Start::Untried || CANNOT.load(Ordering::Relaxed) & 1 << self.context != 0 {
            return;
        }
        match self.try_start() {
            Ok(()) => self.start = Start::Running,
            Err(NoStack::Yet) => {}
            Err(NoStack::Ever(reason)) => {
                if CANNOT.fetch_or(1 << self.context, Ordering::Relaxed) == 0 {
                    kernel::complain(&format!("connections stay in their listener's stack: {reason}"));
                }
            }
        }
    }

    /// The same. Returns whether it runs.
    pub(super) fn shares(&mut self) -> bool {
        self.start_to_share();
        self.start == Start::Running
    }

    /// What watches a socket. `None`: some of it cannot move.
    fn watchers(&mut self, id: SocketId) -> Option<Vec<Watched>> {
        let mut watched = Vec::new();
        let mut fits = true;
        self.stack.watchers(id, |interest| {
            let set = SetId(interest.set);
            let shared = sets::shared(set);
            fits &= !interest.in_kernel && !shared.is_exposed() && !shared.is_inherited();
            watched.push(Watched {
                set,
                epoll: -1,
                descriptor: interest.descriptor,
                events: interest.events,
                data: interest.data,
                disabled: interest.is_disabled(),
            });
        });
        for its in &mut watched {
            its.epoll = self.sets.get_mut(its.set)?.descriptor;
        }
        (fits && watched.len() <= SETS_MAX).then_some(watched)
    }

    /// If a set has no socket of this context any more, it does not concern it: its descriptors leave the kernel's set.
    fn leave_set(&mut self, set: SetId) {
        if self.stack.has_interests(set) || self.sleepers.any_in(set) || !sets::shared(set).part(self.context)
        {
            return;
        }
        self.unprepare(set);
        // The first context has what is the whole set's.
        if self.context > 0 {
            self.forget_set(set);
        }
    }
}

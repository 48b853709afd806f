//! shutdown() and close(), of sockets and of epoll sets.

use core::sync::atomic::Ordering;
use core::time::Duration;

use rustix::io::Errno;

use super::listen::stopped_listening;
use crate::calls::{Answer, CLOSED, datagram, is_connection, lock_entry, lock_socket};
use crate::interest::SetId;
use crate::kernel::{self, now};
use crate::lock::Guard;
use crate::process::contexts::{are_several, at};
use crate::process::{For, Process, WakeOnDrop, Woken, process, sets, wait};
use crate::socket::{SocketId, SocketState};
use crate::sys;
use crate::table::{self, Entry};

/// shutdown().
pub(crate) fn shutdown(descriptor: i32, how: i32) -> Answer<()> {
    let (mut guard, id) = match lock_socket(descriptor) {
        Ok(locked) => locked,
        Err(answer) => return answer,
    };
    let told = WakeOnDrop(&mut guard);
    if told.0.stack.socket(id).listening.is_some() {
        // Only that it no longer receives ends a listener (inet_shutdown() in Linux).
        let how = match how {
            libc::SHUT_RD => rustix::net::Shutdown::Read,
            libc::SHUT_RDWR => rustix::net::Shutdown::Both,
            _ => return Answer::Kernel,
        };
        let outcome = rustix::net::shutdown(kernel::borrow(descriptor), how);
        if outcome.is_ok() {
            stopped_listening(told.0, id, descriptor);
        }
        return Answer::Done(outcome);
    }
    if told.0.stack.socket(id).state == SocketState::Datagram {
        drop(told);
        drop(guard);
        return datagram::shutdown(descriptor, how);
    }
    if !is_connection(told.0, id) {
        // What it will be connected to is shut from the beginning: only the kernel's socket knows.
        let socket = told.0.stack.socket_mut(id);
        socket.wants_kernel |= matches!(how, libc::SHUT_RD | libc::SHUT_WR | libc::SHUT_RDWR);
        return Answer::Kernel;
    }
    let (read, write) = match how {
        libc::SHUT_RD => (true, false),
        libc::SHUT_WR => (false, true),
        libc::SHUT_RDWR => (true, true),
        _ => return Answer::error(Errno::INVAL),
    };
    told.0.pump_before_waiting();
    if told.0.stack.socket(id).state == SocketState::Connecting {
        told.0.stack.disconnect(now(), id);
        told.0.output();
        return Answer::ok(());
    }
    // Nor is there a connect() any more that has to be told (inet_shutdown() in Linux).
    let over = told.0.stack.is_over(id);
    let socket = told.0.stack.socket_mut(id);
    if over {
        socket.disconnecting |= !socket.passive && !socket.connect_told && !socket.disconnected;
    } else {
        socket.tell_connect();
    }
    let outcome = told.0.stack.shutdown(id, read, write);
    if told.0.stack.socket(id).disconnected {
        told.0.shut_in_kernel(id);
        told.0.stack.socket_mut(id).wants_kernel = true;
    }
    told.0.output();
    Answer::Done(outcome)
}

/// close(). `Kernel`: the caller closes the descriptor in the kernel.
pub(crate) fn close(descriptor: i32) -> Answer<()> {
    match table::lookup(descriptor) {
        Entry::Kernel => Answer::Kernel,
        // Two threads may close the same descriptor, or another one has just handed it over.
        Entry::Socket(_) => {
            if close_socket(descriptor, |_| ()) {
                Answer::ok(())
            } else {
                Answer::Kernel
            }
        }
        Entry::Set(_) => close_set(descriptor),
        // With the lock in its hands nobody but the library closes anything.
        Entry::Internal
            if sys::sleep_control(|sleep_control| sleep_control.holding.load(Ordering::Relaxed)) =>
        {
            table::enter(descriptor, Entry::Kernel);
            Answer::Kernel
        }
        Entry::Cached(_) | Entry::Internal => Answer::error(CLOSED),
    }
}

/// Closes a descriptor that was a socket's when it was looked up, and lingers first if it has to. Returns whether the library keeps the
/// descriptor, and then does something before another thread may have it.
fn close_socket(descriptor: i32, kept: impl Fn(&mut Process)) -> bool {
    while let Some((mut guard, id)) = lock_entry(descriptor) {
        // What a child may have is not closed by this, nor what another thread has in poll() (fdget() in fs/select.c).
        if let Some(time) = guard.stack.lingers(id)
            && !guard.is_inherited(id)
            && !guard.sleepers.any_wants(id)
        {
            guard = linger(guard, id, time, |_| table::lookup(descriptor) == Entry::Socket(id));
        }
        match table::lookup(descriptor) {
            Entry::Socket(now) if now == id => {
                let told = WakeOnDrop(&mut guard);
                let is_kept = told.0.close_socket(id, descriptor);
                if is_kept {
                    kept(told.0);
                }
                return is_kept;
            }
            // It has moved while this call waited.
            Entry::Socket(_) => {}
            _ => return false,
        }
    }
    false
}

/// A call that has waited ends, and its descriptor was closed meanwhile: it lingers in place of that close() (fdput() in Linux).
pub(crate) fn linger_at_last(
    guard: Guard<'static, Process>,
    (id, generation): (SocketId, u32),
) -> Guard<'static, Process> {
    let is_here = |process: &Process| process.stack.socket(id).generation == generation;
    match guard.stack.lingers(id) {
        Some(time)
            if is_here(&guard) && guard.stack.socket(id).references == 0 && !guard.is_inherited(id) =>
        {
            linger(guard, id, time, is_here)
        }
        _ => guard,
    }
}

/// SO_LINGER: close() waits until the peer has acknowledged everything, the FIN as well, for `time` at most, if the socket still
/// `is_here`. O_NONBLOCK does not matter (__tcp_close() in Linux, net/ipv4/tcp.c).
fn linger(
    mut guard: Guard<'static, Process>,
    id: SocketId,
    time: Duration,
    is_here: impl Fn(&Process) -> bool,
) -> Guard<'static, Process> {
    let since = sys::handlers_run();
    let deadline = now() + time;
    let _ = guard.stack.shut(id, false, true);
    guard.leaves_event_loop();
    loop {
        guard.pump_for_all(Some(id));
        if !is_here(&guard) || guard.stack.lingers(id).is_none() {
            return guard;
        }
        let (next, woken) = wait(
            guard,
            For::Frames,
            &mut [],
            Some(deadline),
            overfly_engine::Instant::from_micros(0),
            since,
            false,
        );
        guard = next;
        if woken != Woken::Look {
            return guard;
        }
    }
}

pub(super) fn close_set(descriptor: i32) -> Answer<()> {
    let mut guard = process();
    let Entry::Set(set) = table::lookup(descriptor) else { return Answer::Kernel };
    table::enter(descriptor, Entry::Kernel);
    if are_several() {
        drop(guard);
        close_set_elsewhere(set, descriptor);
        guard = process();
    }
    let process = &mut *guard;
    let record = &mut process.sets[set];
    record.references = record.references.saturating_sub(1);
    if record.references > 0 {
        if record.descriptor == descriptor {
            let other = (0..table::length()).find(|&other| table::lookup(other) == Entry::Set(set));
            record.descriptor = other.unwrap_or(-1);
        }
    } else {
        process.conceal_set(set);
        process.stack.close_set(set);
    }
    Answer::Kernel
}

/// A set's descriptor is closed: the contexts that it concerns besides the first hear of it, before its number can be another's.
fn close_set_elsewhere(set: SetId, descriptor: i32) {
    let other = (0..table::length()).find(|&other| table::lookup(other) == Entry::Set(set));
    for context in sets::shared(set).contexts().iter().filter(|&context| context > 0) {
        let mut process = at(context);
        match other {
            None => process.forget_set(set),
            Some(other) => {
                if let Some(record) = process.sets.get_mut(set)
                    && record.descriptor == descriptor
                {
                    record.descriptor = other;
                }
            }
        }
    }
}

/// `new` is about to become something else in the kernel (dup2, dup3): whatever of ours it was is closed. The library's
/// own descriptors cannot be replaced.
pub(crate) fn about_to_replace(new: i32) -> Result<(), Errno> {
    match table::lookup(new) {
        Entry::Kernel => {}
        Entry::Socket(_) => {
            close_socket(new, |process| process.descriptors.give_up(new));
        }
        Entry::Set(_) => {
            close_set(new);
        }
        Entry::Cached(context) => at(context as usize).descriptors.give_up(new),
        Entry::Internal => return Err(Errno::BUSY),
    }
    Ok(())
}

/// close_range() without CLOSE_RANGE_CLOEXEC: closes what is ours in it, and says which stretches the kernel may close.
pub(crate) fn close_range(first: u32, last: u32, mut close_in_kernel: impl FnMut(u32, u32)) {
    let end = table::length() as u32;
    let mut from = first;
    for descriptor in first..end.min(last.saturating_add(1)) {
        let kept = match table::lookup(descriptor as i32) {
            Entry::Cached(_) | Entry::Internal => true,
            Entry::Kernel | Entry::Socket(_) | Entry::Set(_) => {
                matches!(close(descriptor as i32), Answer::Done(Ok(())))
            }
        };
        if kept {
            if from < descriptor {
                close_in_kernel(from, descriptor - 1);
            }
            from = descriptor + 1;
        }
    }
    if from <= last {
        close_in_kernel(from, last);
    }
}

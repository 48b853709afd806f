//! Listeners begin, are watched, and have connections accepted.

use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;

use overfly_profile::options::Waiting;
use rustix::io::Errno;

use super::{descriptors_ran_out, forget_stale};
use crate::calls::{Answer, CLOSED, goes_on_elsewhere};
use crate::interest::bits;
use crate::kernel::{self, now};
use crate::process::contexts::of;
use crate::process::{For, Process, Woken, leave_to_kernel, listens_now, spin_until, wait};
use crate::socket::{Arrival, SocketId, SocketState, presented};
use crate::sys;
use crate::table::{self, Entry};

/// An accepted connection.
pub(crate) struct Accepted {
    pub(crate) descriptor: i32,
    pub(crate) remote: SocketAddr,
}

/// listen() in the kernel succeeded.
pub(crate) fn listened(descriptor: i32, backlog: i32) {
    let Entry::Socket(id) = table::lookup(descriptor) else { return };
    listens_now(&mut of(id), id, descriptor, backlog);
}

/// accept4() with SOCK_NONBLOCK and SOCK_CLOEXEC in `flags`.
pub(crate) fn accept(descriptor: i32, flags: i32) -> Answer<Accepted> {
    let id = match table::lookup(descriptor) {
        Entry::Socket(id) => id,
        Entry::Cached(_) | Entry::Internal => return Answer::error(CLOSED),
        Entry::Kernel | Entry::Set(_) => return Answer::Kernel,
    };
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return Answer::error(Errno::INVAL);
    }
    let since = sys::handlers_run();
    let mut guard = of(id);
    if guard.stack.socket(id).listening.is_none() || guard.is_asked_blindly(id, descriptor) {
        return Answer::Kernel;
    }
    if !guard.join_to_accept(id, descriptor) {
        leave_to_kernel(&mut guard, id);
        return Answer::Kernel;
    }
    let (nonblocking, close_on_exec) = (flags & libc::SOCK_NONBLOCK != 0, flags & libc::SOCK_CLOEXEC != 0);
    let started = now();
    let socket = guard.stack.socket(id);
    let (waits, timeout) = (!socket.nonblocking, socket.settings.receive_timeout);
    let (mut pumped, mut emptied, mut cookie) = (false, false, None);
    loop {
        if let Some(arrival) = guard.stack.take_arrival(id) {
            return Answer::ok(accept_arrival(&mut guard, id, &arrival, nonblocking, close_on_exec));
        }
        if guard.stack.can_accept(id) {
            let v6 = guard.stack.socket(id).v6;
            let taken = match guard.descriptors.take(v6, close_on_exec, kernel::tcp_socket) {
                Ok(taken) => taken,
                // Other contexts may keep some, and shared ports have some.
                Err(Errno::MFILE | Errno::NFILE) if !emptied => {
                    emptied = true;
                    drop(guard);
                    descriptors_ran_out();
                    guard = of(id);
                    if table::lookup(descriptor) != Entry::Socket(id) {
                        return Answer::error(CLOSED);
                    }
                    continue;
                }
                Err(error) => return Answer::error(error),
            };
            if let Some(accepted) = guard.stack.accept(id, taken, nonblocking) {
                return enter_accepted(&mut guard, accepted, taken, v6, close_on_exec);
            }
            if !guard.descriptors.keep(taken, v6, close_on_exec) {
                sys::close(taken);
            }
        }
        let Some(listening) = &guard.stack.socket(id).listening else { return Answer::error(Errno::INVAL) };
        if listening.kernel_ready || listening.kernel_watched == 0 {
            match accept_in_kernel(&mut guard, id, descriptor, flags) {
                Err(Errno::AGAIN) => {}
                Ok(accepted) => {
                    drop(guard);
                    forget_stale(accepted.descriptor);
                    return Answer::ok(accepted);
                }
                Err(error) => return Answer::error(error),
            }
        }
        if !core::mem::replace(&mut pumped, true) {
            guard.pump_before_waiting();
            if guard.stack.can_accept(id) {
                continue;
            }
        }
        // Where a handler has run that restarts calls the kernel begins this one anew: another thread may have set O_NONBLOCK.
        let begins_anew = timeout.is_none() && sys::begins_anew(since);
        if !waits || begins_anew && guard.stack.socket(id).nonblocking {
            return Answer::error(Errno::AGAIN);
        }
        guard.leaves_event_loop();
        let cookie = *cookie.get_or_insert_with(|| kernel::cookie(descriptor));
        let spin = spin_until(&guard, Waiting::Accept, started);
        let mut kernel_side = [libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 }];
        let (next, woken) = wait(
            guard,
            For::Sockets(&[id]),
            &mut kernel_side,
            timeout.map(|timeout| started + timeout),
            spin,
            since,
            timeout.is_none(),
        );
        guard = next;
        match woken {
            Woken::Interrupted => return Answer::error(Errno::INTR),
            Woken::TimedOut => return Answer::error(Errno::AGAIN),
            Woken::Look => {}
        }
        if table::lookup(descriptor) != Entry::Socket(id) {
            drop(guard);
            return goes_on_elsewhere(descriptor, cookie);
        }
        if let Some(listening) = &mut guard.stack.socket_mut(id).listening {
            listening.kernel_ready |= kernel_side[0].revents != 0;
        }
        guard.pump_for_all(None);
    }
}

/// The program has a connection that was accepted by the descriptor taken for it.
fn enter_accepted(
    process: &mut Process,
    accepted: SocketId,
    taken: i32,
    v6: bool,
    close_on_exec: bool,
) -> Answer<Accepted> {
    let socket = process.stack.socket_mut(accepted);
    socket.close_on_exec = close_on_exec;
    let remote = presented(socket.remote, v6, process.interface_index);
    if !table::enter(taken, Entry::Socket(accepted)) {
        // Beyond the table: as if the limit on descriptors were there.
        process.stack.change(accepted, |settings| settings.linger = Some(Duration::ZERO));
        process.close_socket(accepted, taken);
        sys::close(taken);
        return Answer::error(Errno::MFILE);
    }
    Answer::ok(Accepted { descriptor: taken, remote })
}

/// A connection that another process gave away.
fn accept_arrival(
    process: &mut Process,
    listener: SocketId,
    &Arrival { descriptor, remote }: &Arrival,
    nonblocking: bool,
    close_on_exec: bool,
) -> Accepted {
    process.statistics.kernel_accepts += 1;
    table::enter(descriptor, Entry::Kernel);
    kernel::set_nonblocking(descriptor, nonblocking);
    kernel::set_close_on_exec(descriptor, close_on_exec);
    process.apply_settings(descriptor, listener);
    let v6 = process.stack.socket(listener).v6;
    Accepted { descriptor, remote: presented(remote, v6, process.interface_index) }
}

/// What waits at the kernel's socket of a listener.
fn accept_in_kernel(
    process: &mut Process,
    id: SocketId,
    descriptor: i32,
    flags: i32,
) -> Result<Accepted, Errno> {
    let socket = process.stack.socket_mut(id);
    let blocks = !socket.nonblocking;
    let Some(listening) = &mut socket.listening else { return Err(Errno::INVAL) };
    if blocks && listening.forced_nonblocking {
        // Whoever shares the listener may have set it back.
        kernel::set_nonblocking(descriptor, true);
    }
    // Where another thread has called exec() it blocks.
    if blocks && !listening.forced_nonblocking && !kernel::is_readable(descriptor) {
        listening.kernel_ready = false;
        return Err(Errno::AGAIN);
    }
    let outcome = accept_from_kernel(descriptor, flags);
    match &outcome {
        Err(Errno::AGAIN) => listening.kernel_ready = false,
        // With nothing more there, select() must not say that there is, or a blocking accept() would wait.
        Ok(_) => listening.kernel_ready = kernel::is_readable(descriptor),
        Err(_) => {}
    }
    process.statistics.kernel_accepts += u64::from(outcome.is_ok());
    outcome
}

fn accept_from_kernel(descriptor: i32, flags: i32) -> Result<Accepted, Errno> {
    use std::os::fd::IntoRawFd;
    let flags = rustix::net::SocketFlags::from_bits_retain(flags as u32);
    let (accepted, remote) = rustix::net::acceptfrom_with(kernel::borrow(descriptor), flags)?;
    let remote = remote
        .and_then(|remote| SocketAddr::try_from(remote).ok())
        .unwrap_or(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0));
    Ok(Accepted { descriptor: accepted.into_raw_fd(), remote })
}

/// What the kernel's socket of a listener, or of a UDP socket, is ready for. Returns whether it listens no more: another process that has
/// it has ended that (connect() to AF_UNSPEC, shutdown()).
pub(crate) fn kernel_says(process: &mut Process, id: SocketId, events: u32) -> bool {
    let socket = process.stack.socket(id);
    let ended = socket.state == SocketState::Listening && events & bits::HUP != 0;
    if ended {
        stopped_listening(process, id, socket.descriptor);
        return true;
    }
    // Its calls are the kernel's too, which tells them its error.
    if socket.state == SocketState::Datagram && process.stack.is_left_to_kernels_sets(id) {
        return false;
    }
    let told = events & bits::ERR != 0 && process.takes_kernels_error(id);
    if !told || events & bits::IN != 0 {
        process.stack.kernel_ready(id);
    }
    false
}

/// The kernel's socket listens no more: the socket is what it was before listen().
pub(super) fn stopped_listening(process: &mut Process, id: SocketId, descriptor: i32) {
    process.part(id);
    // Whichever process has made it nonblocking.
    kernel::set_nonblocking(descriptor, process.stack.socket(id).nonblocking);
    let mut registered = Vec::new();
    process
        .stack
        .interests(id, |set, descriptor, events, data| registered.push((set, descriptor, events, data)));
    for (set, descriptor, events, data) in registered {
        let event = libc::epoll_event { events, u64: data };
        let epoll = process.sets[set].descriptor;
        // What was added with EPOLLEXCLUSIVE cannot be modified (do_epoll_ctl() in fs/eventpoll.c).
        if sys::epoll_control(epoll, libc::EPOLL_CTL_MOD, descriptor, &raw const event).is_err() {
            let _ = sys::epoll_control(epoll, libc::EPOLL_CTL_DEL, descriptor, core::ptr::null());
            let _ = sys::epoll_control(epoll, libc::EPOLL_CTL_ADD, descriptor, &raw const event);
        }
        let _ = process.stack.unwatch(set, id, descriptor);
        let _ = process.stack.watch(set, id, descriptor, events, data, true);
    }
    process.stack.stopped_listening(id);
}

//! socket, listen, accept, connect, shutdown, close, dup: a socket's life.

use core::net::{Ipv4Addr, SocketAddr};
use core::sync::atomic::Ordering;
use core::time::Duration;

use overfly_profile::options::Waiting;
use overfly_profile::rules::Direction;
use rustix::io::Errno;

use super::control::listener_event;
use super::{Answer, CLOSED, data, datagram, lock_socket, untold};
use crate::interest::SetId;
use crate::kernel::{self, now};
use crate::lock::Guard;
use crate::memory::Source;
use crate::process::contexts::{self, are_several, at, of, own};
use crate::process::{
    For, Process, Told, Woken, allow_own_address, is_active, process, sets, spin_until, wait,
};
use crate::socket::{Arrival, SocketId, State, presented};
use crate::statistics::Why;
use crate::sys;
use crate::table::{self, Entry};

/// socket() in the kernel gave `descriptor`.
pub(crate) fn opened(descriptor: i32, domain: i32, kind: i32, protocol: i32) {
    if !is_active() {
        return;
    }
    forget_stale(descriptor);
    let stream = kind & 0xf == libc::SOCK_STREAM;
    let internet = matches!(domain, libc::AF_INET | libc::AF_INET6);
    let datagrams = kind & 0xf == libc::SOCK_DGRAM && matches!(protocol, 0 | libc::IPPROTO_UDP);
    if internet {
        allow_own_address(descriptor, domain == libc::AF_INET6);
    }
    if internet && datagrams {
        let (v6, nonblocking) = (domain == libc::AF_INET6, kind & libc::SOCK_NONBLOCK != 0);
        datagram::opened(&mut at(own()), descriptor, v6, nonblocking);
    }
    if internet && stream && (protocol == 0 || protocol == libc::IPPROTO_TCP) {
        let mut process = at(own());
        let v6 = domain == libc::AF_INET6;
        let Some(id) = process.stack.open(descriptor, v6, kind & libc::SOCK_NONBLOCK != 0) else { return };
        if !table::enter(descriptor, Entry::Socket(id)) {
            process.stack.leave_to_kernel(id);
        }
    }
}

/// The kernel gave a number that the table still has: it was closed past the library.
pub(crate) fn forget_stale(descriptor: i32) {
    match table::lookup(descriptor) {
        Entry::Kernel => table::forget_untold(descriptor),
        Entry::Socket(id) => {
            of(id).close_socket(id, descriptor);
        }
        Entry::Set(_) => {
            let _ = close_set(descriptor);
        }
        Entry::Kept(context) => at(context as usize).descriptors.give_up(descriptor),
        Entry::Internal => process().descriptors.give_up(descriptor),
    }
}

/// The kernel has no descriptor left: gives it the cached ones. Returns whether to try again.
pub(crate) fn descriptors_ran_out() -> bool {
    let mut any = false;
    if is_active() {
        contexts::each(|process| any |= process.descriptors.give_back());
    }
    any
}

/// epoll_create() in the kernel gave `descriptor`.
pub(crate) fn set_opened(descriptor: i32) {
    if !is_active() {
        return;
    }
    forget_stale(descriptor);
    let mut process = process();
    let set = process.stack.open_set();
    sets::shared(set).begin();
    process.opens_set(set, descriptor);
    if !table::enter(descriptor, Entry::Set(set)) {
        process.stack.close_set(set);
    }
}

/// listen() in the kernel succeeded.
pub(crate) fn listened(descriptor: i32, backlog: i32) {
    let Entry::Socket(id) = table::lookup(descriptor) else { return };
    listens_now(&mut of(id), id, descriptor, backlog);
}

/// The kernel's socket listens.
pub(crate) fn listens_now(process: &mut Process, id: SocketId, descriptor: i32, backlog: i32) {
    let local = kernel::local_address(descriptor);
    let within_host = process.options.tcp_server_loopback != 0;
    let Some(local) = local.filter(|local| within_host || !local.ip().to_canonical().is_loopback()) else {
        process.left(Why::Loopback);
        leave_to_kernel(process, id);
        return;
    };
    if !process.rules.accelerate(Direction::Listen, local) {
        process.left(Why::Rule);
        leave_to_kernel(process, id);
        return;
    }
    kernel::keep_fast_open_keys(descriptor);
    // Linux takes a negative backlog as the largest.
    let most = 65_535;
    let backlog =
        u32::try_from(backlog).unwrap_or(most).min(most).max(process.options.acceptq_min_backlog as u32);
    process.stack.listening(id, backlog);
    let mut registered = Vec::new();
    process
        .stack
        .interests(id, |set, descriptor, events, data| registered.push((set, descriptor, events, data)));
    // Who watches it, waits for its connections: as with EPOLL_CTL_ADD after listen() (Netty's epoll transport adds first).
    if !registered.is_empty() && !process.join(id, descriptor) {
        leave_to_kernel(process, id);
        return;
    }
    // Sets that already watch the socket report it with the program's data; from now on with ours.
    for (set, descriptor, events, data) in registered {
        let epoll = process.sets[set.0 as usize].descriptor;
        let _ = sys::epoll_control(epoll, libc::EPOLL_CTL_DEL, descriptor, core::ptr::null());
        let _ = process.stack.unwatch(set, id, descriptor);
        let event = listener_event(id, events);
        if sys::epoll_control(epoll, libc::EPOLL_CTL_ADD, descriptor, &raw const event).is_ok() {
            let _ = process.stack.watch(set, id, descriptor, events, data, false);
            watched(process, id, 1);
        }
    }
}

/// One more, or one less, epoll set says when the kernel's listening socket is ready.
pub(crate) fn watched(process: &mut Process, id: SocketId, change: i32) {
    if let Some(listening) = &mut process.stack.socket_mut(id).listening {
        listening.kernel_watched = listening.kernel_watched.saturating_add_signed(change);
        if listening.kernel_watched == 0 {
            listening.kernel_ready = false;
        }
    }
}

/// The socket and all its descriptors are the kernel's alone from now on. What watches a listener does so with the
/// program's own data again.
pub(crate) fn leave_to_kernel(process: &mut Process, id: SocketId) {
    process.displace_datagram(id);
    let socket = process.stack.socket(id);
    if socket.listening.is_some() || socket.datagrams.is_some() {
        let mut registered = Vec::new();
        process
            .stack
            .interests(id, |set, descriptor, events, data| registered.push((set, descriptor, events, data)));
        for (set, descriptor, events, data) in registered {
            let epoll = process.sets[set.0 as usize].descriptor;
            let event = libc::epoll_event { events, u64: data };
            let _ = sys::epoll_control(epoll, libc::EPOLL_CTL_DEL, descriptor, core::ptr::null());
            let _ = sys::epoll_control(epoll, libc::EPOLL_CTL_ADD, descriptor, &raw const event);
        }
    }
    for descriptor in 0..table::length() {
        if table::lookup(descriptor) == Entry::Socket(id) {
            // An ancestor that has a stack may have made it nonblocking, for both.
            process.restore_blocking(id, descriptor);
            table::enter(descriptor, Entry::Kernel);
        }
    }
    process.stack.leave_to_kernel(id);
}

/// An accepted connection.
pub(crate) struct Accepted {
    pub(crate) descriptor: i32,
    pub(crate) remote: SocketAddr,
}

/// accept4() with SOCK_NONBLOCK and SOCK_CLOEXEC in `flags`.
pub(crate) fn accept(descriptor: i32, flags: i32) -> Answer<Accepted> {
    let id = match table::lookup(descriptor) {
        Entry::Socket(id) => id,
        Entry::Kept(_) | Entry::Internal => return Answer::error(CLOSED),
        Entry::Kernel | Entry::Set(_) => return Answer::Kernel,
    };
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return Answer::error(Errno::INVAL);
    }
    let since = sys::seen();
    let mut guard = of(id);
    if guard.stack.socket(id).listening.is_none() {
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
    let (mut pumped, mut emptied) = (false, false);
    loop {
        if let Some(arrival) = guard.stack.take_arrival(id) {
            return Answer::ok(accept_arrival(&mut guard, id, &arrival, nonblocking, close_on_exec));
        }
        if guard.stack.can_accept(id) {
            let v6 = guard.stack.socket(id).v6;
            let taken = match guard.descriptors.take(v6, close_on_exec, kernel::tcp_socket) {
                Ok(taken) => taken,
                // Other contexts may keep some.
                Err(Errno::MFILE | Errno::NFILE) if are_several() && !emptied => {
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
                let socket = guard.stack.socket_mut(accepted);
                socket.close_on_exec = close_on_exec;
                let remote = socket.remote;
                let remote = presented(remote, v6, guard.interface_index);
                if !table::enter(taken, Entry::Socket(accepted)) {
                    // Beyond the table: as if the limit on descriptors were there.
                    guard.stack.change(accepted, |settings| settings.linger = Some(Duration::ZERO));
                    guard.close_socket(accepted, taken);
                    sys::close(taken);
                    return Answer::error(Errno::MFILE);
                }
                return Answer::ok(Accepted { descriptor: taken, remote });
            }
            if !guard.descriptors.keep(taken, v6, close_on_exec) {
                sys::close(taken);
            }
        }
        let Some(listening) = &guard.stack.socket(id).listening else { return Answer::error(Errno::INVAL) };
        if listening.kernel_ready || listening.kernel_watched == 0 {
            if waits {
                // Whoever shares the listener may have set it back.
                kernel::set_nonblocking(descriptor, true);
            }
            match accept_from_kernel(descriptor, flags) {
                Err(Errno::AGAIN) => {
                    if let Some(listening) = &mut guard.stack.socket_mut(id).listening {
                        listening.kernel_ready = false;
                    }
                }
                Ok(accepted) => {
                    guard.statistics.kernel_accepts += 1;
                    if let Some(listening) = &mut guard.stack.socket_mut(id).listening {
                        // With nothing more there, select() must not say that there is, or a blocking accept() would wait.
                        listening.kernel_ready = kernel::is_readable(descriptor);
                    }
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
        if !waits {
            return Answer::error(Errno::AGAIN);
        }
        guard.leaves_event_loop();
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
            return Answer::error(CLOSED);
        }
        if kernel_side[0].revents != 0
            && let Some(listening) = &mut guard.stack.socket_mut(id).listening
        {
            listening.kernel_ready = true;
        }
        guard.pump();
    }
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

fn accept_from_kernel(descriptor: i32, flags: i32) -> Result<Accepted, Errno> {
    use std::os::fd::IntoRawFd;
    let flags = rustix::net::SocketFlags::from_bits_retain(flags as u32);
    let (accepted, remote) = rustix::net::acceptfrom_with(kernel::borrow(descriptor), flags)?;
    let remote = remote
        .and_then(|remote| SocketAddr::try_from(remote).ok())
        .unwrap_or(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0));
    Ok(Accepted { descriptor: accepted.into_raw_fd(), remote })
}

/// connect() to an address of either family, or to what is none.
pub(crate) fn connect(descriptor: i32, remote: Option<SocketAddr>) -> Answer<()> {
    let since = sys::seen();
    let (mut guard, id) = match lock_socket(descriptor) {
        Ok(locked) => locked,
        Err(Answer::Kernel) if table::take_untold(descriptor) => return untold::connect(descriptor),
        Err(answer) => return answer,
    };
    if guard.stack.socket(id).state == State::Connecting {
        guard.pump_before_waiting();
    }
    if guard.stack.socket(id).disconnecting {
        return Answer::error(Errno::INVAL);
    }
    match guard.stack.socket(id).state {
        State::Candidate => {}
        State::Datagram => {
            drop(guard);
            return remote.map_or(Answer::Kernel, |remote| datagram::connect(descriptor, Some(remote)));
        }
        State::Connecting => return finish_connecting(guard, id, descriptor, since, true),
        // The first connect() after a handshake that nobody waited for says that it is done (inet_stream_connect()).
        State::Connected => {
            let socket = guard.stack.socket_mut(id);
            let tells = socket.tell_connect() && !socket.passive;
            return if tells { Answer::ok(()) } else { Answer::error(Errno::ISCONN) };
        }
        // As long as nobody has been told that it failed, it is being opened (the same function).
        State::Ended if !guard.stack.socket(id).disconnected => {
            let socket = guard.stack.socket(id);
            if socket.passive || socket.connect_told {
                return Answer::error(Errno::ISCONN);
            }
            return failed_to_connect(&mut guard, id);
        }
        State::Ended => {}
        State::Listening | State::Free | State::Lost => return Answer::Kernel,
    }
    let Some(remote) = remote else { return Answer::Kernel };
    if is_misfit(&guard, id, descriptor, remote) {
        return Answer::Kernel;
    }
    // A thread that sleeps must not sleep past the time when the SYN is to be sent again.
    let begun = Told(&mut guard).0.connect(id, descriptor, remote, None);
    match begun {
        Ok(Some(_)) => finish_connecting(guard, id, descriptor, since, false),
        Ok(None) => {
            connects_in_kernel(&mut guard, id);
            Answer::Kernel
        }
        Err(error) => Answer::error(error),
    }
}

/// The stack does not open this connection: the kernel does.
fn connects_in_kernel(process: &mut Process, id: SocketId) {
    process.statistics.kernel_connects += 1;
    if process.stack.socket(id).state == State::Ended {
        process.moved(id);
    } else {
        leave_to_kernel(process, id);
    }
}

/// send() with MSG_FASTOPEN to `remote`: connects, with data in the SYN if the server has given its cookie before.
pub(crate) fn open_fast(
    descriptor: i32,
    remote: Option<SocketAddr>,
    source: Source<'_>,
    flags: i32,
) -> Answer<usize> {
    let since = sys::seen();
    let (mut guard, id) = match lock_socket(descriptor) {
        Ok(locked) => locked,
        Err(answer) => return answer,
    };
    match guard.stack.socket(id).state {
        State::Candidate => {}
        State::Ended if guard.stack.socket(id).disconnected => {}
        // As connect() would (tcp_sendmsg_fastopen() in Linux).
        _ => {
            drop(guard);
            return match connect(descriptor, None) {
                Answer::Done(Ok(())) => data::send(descriptor, source, flags & !libc::MSG_FASTOPEN),
                Answer::Done(Err(error)) => Answer::error(error),
                Answer::Kernel => Answer::Kernel,
            };
        }
    }
    let Some(remote) = remote else { return Answer::Kernel };
    // The kernel says what is wrong.
    if !source.is_plausible()
        || !kernel::FastOpen::read().client()
        || is_misfit(&guard, id, descriptor, remote)
    {
        return Answer::Kernel;
    }
    let begun = Told(&mut guard).0.connect(id, descriptor, remote, Some(source));
    let written = match begun {
        Ok(Some(written)) => written,
        Ok(None) => {
            connects_in_kernel(&mut guard, id);
            return Answer::Kernel;
        }
        Err(error) => return Answer::error(error),
    };
    if flags & libc::MSG_DONTWAIT != 0 || guard.stack.socket(id).nonblocking {
        return if written > 0 { Answer::ok(written) } else { Answer::error(Errno::INPROGRESS) };
    }
    match finish_connecting(guard, id, descriptor, since, false) {
        Answer::Done(Ok(())) if written > 0 => Answer::ok(written),
        Answer::Done(Ok(())) => data::send(descriptor, source, flags & !libc::MSG_FASTOPEN),
        Answer::Done(Err(error)) => Answer::error(error),
        Answer::Kernel => Answer::Kernel,
    }
}

/// connect() says that it failed, and the socket may connect again.
fn failed_to_connect(process: &mut Process, id: SocketId) -> Answer<()> {
    let error = process.stack.take_error(id).unwrap_or(Errno::CONNABORTED);
    process.stack.disconnect(now(), id);
    Answer::error(error)
}

/// connect() to AF_UNSPEC: the connection ends at once, a listener listens no more, and the socket may connect to another
/// address (tcp_disconnect() in Linux).
pub(crate) fn disconnect(descriptor: i32) -> Answer<()> {
    let (mut guard, id) = match lock_socket(descriptor) {
        Ok(locked) => locked,
        Err(answer) => return answer,
    };
    match guard.stack.socket(id).state {
        State::Connecting | State::Connected | State::Ended => {
            let told = Told(&mut guard);
            told.0.pump_before_waiting();
            told.0.stack.disconnect(now(), id);
            told.0.output();
            Answer::ok(())
        }
        State::Listening => {
            let outcome = rustix::net::connect_unspec(kernel::borrow(descriptor));
            if outcome.is_ok() {
                stopped_listening(&mut guard, id, descriptor);
            }
            Answer::Done(outcome)
        }
        _ => Answer::Kernel,
    }
}

/// The kernel's socket listens no more: the socket is what it was before listen().
fn stopped_listening(process: &mut Process, id: SocketId, descriptor: i32) {
    process.part(id);
    process.restore_blocking(id, descriptor);
    let mut registered = Vec::new();
    process
        .stack
        .interests(id, |set, descriptor, events, data| registered.push((set, descriptor, events, data)));
    for (set, descriptor, events, data) in registered {
        let event = libc::epoll_event { events, u64: data };
        let epoll = process.sets[set.0 as usize].descriptor;
        let _ = sys::epoll_control(epoll, libc::EPOLL_CTL_MOD, descriptor, &raw const event);
        let _ = process.stack.unwatch(set, id, descriptor);
        let _ = process.stack.watch(set, id, descriptor, events, data, true);
    }
    process.stack.stopped_listening(id);
}

/// The kernel refuses such a connect() and the socket stays what it is: an address of the other family (EAFNOSUPPORT), a
/// mapped one from a socket that is IPv6's only (ENETUNREACH), a link-local one of who knows which link (EINVAL)
/// (tcp_v6_connect() in Linux, net/ipv6/tcp_ipv6.c).
fn is_misfit(process: &Process, id: SocketId, descriptor: i32, remote: SocketAddr) -> bool {
    if process.stack.socket(id).v6 != remote.is_ipv6() {
        return true;
    }
    let SocketAddr::V6(remote) = remote else { return false };
    if remote.ip().to_ipv4_mapped().is_some() {
        return kernel::is_v6only(descriptor);
    }
    remote.ip().is_unicast_link_local() && remote.scope_id() == 0 && kernel::link(descriptor) == 0
}

/// The SYN is out: waits for the answer if the socket does.
fn finish_connecting(
    mut guard: Guard<'static, Process>,
    id: SocketId,
    descriptor: i32,
    since: sys::Seen,
    again: bool,
) -> Answer<()> {
    let started = now();
    let socket = guard.stack.socket(id);
    let (waits, timeout) = (!socket.nonblocking, socket.settings.send_timeout);
    if !waits {
        return Answer::error(if again { Errno::ALREADY } else { Errno::INPROGRESS });
    }
    loop {
        guard.pump();
        match table::lookup(descriptor) {
            Entry::Socket(its) if its == id => {}
            // The other end has had the kernel take the connection over, or nobody at user level answered: the kernel connects.
            Entry::Kernel if rustix::net::getpeername(kernel::borrow(descriptor)).is_ok() => {
                return untold::made(descriptor);
            }
            Entry::Kernel => return Answer::Kernel,
            _ => return Answer::error(CLOSED),
        }
        match guard.stack.socket(id).state {
            State::Connecting => {}
            State::Connected => {
                guard.stack.socket_mut(id).tell_connect();
                return Answer::ok(());
            }
            _ => return failed_to_connect(&mut guard, id),
        }
        guard.leaves_event_loop();
        let spin = spin_until(&guard, Waiting::Connect, started);
        let deadline = timeout.map(|timeout| started + timeout);
        let (next, woken) = wait(guard, For::Frames, &mut [], deadline, spin, since, timeout.is_none());
        guard = next;
        match woken {
            Woken::Interrupted => return Answer::error(Errno::INTR),
            Woken::TimedOut => return Answer::error(Errno::INPROGRESS),
            Woken::Look => {}
        }
    }
}

/// shutdown().
pub(crate) fn shutdown(descriptor: i32, how: i32) -> Answer<()> {
    let (mut guard, id) = match lock_socket(descriptor) {
        Ok(locked) => locked,
        Err(answer) => return untold::shut(descriptor, answer),
    };
    let told = Told(&mut guard);
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
    if told.0.stack.socket(id).state == State::Datagram {
        drop(told);
        drop(guard);
        return datagram::shutdown(descriptor, how);
    }
    if !super::is_connection(told.0, id) {
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
    if told.0.stack.socket(id).state == State::Connecting {
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
    told.0.output();
    Answer::Done(outcome)
}

/// close(). `Kernel`: the caller closes the descriptor in the kernel.
pub(crate) fn close(descriptor: i32) -> Answer<()> {
    match table::lookup(descriptor) {
        Entry::Kernel => untold::leave(descriptor),
        Entry::Socket(id) => {
            let mut guard = of(id);
            if let Some(time) = guard.stack.lingers(id) {
                guard = linger(guard, id, descriptor, time);
            }
            let told = Told(&mut guard);
            // Two threads may close the same descriptor, or another one has just handed it over.
            if table::lookup(descriptor) != Entry::Socket(id) {
                return Answer::Kernel;
            }
            if told.0.close_socket(id, descriptor) { Answer::ok(()) } else { Answer::Kernel }
        }
        Entry::Set(_) => close_set(descriptor),
        // With the lock in its hands nobody but the library closes anything.
        Entry::Internal if sys::doze(|doze| doze.holding.load(Ordering::Relaxed)) => {
            table::enter(descriptor, Entry::Kernel);
            Answer::Kernel
        }
        Entry::Kept(_) | Entry::Internal => Answer::error(CLOSED),
    }
}

/// SO_LINGER: close() waits until the peer has acknowledged everything, the FIN as well, for `time` at most. O_NONBLOCK does not
/// matter (__tcp_close() in Linux, net/ipv4/tcp.c).
fn linger(
    mut guard: Guard<'static, Process>,
    id: SocketId,
    descriptor: i32,
    time: Duration,
) -> Guard<'static, Process> {
    let since = sys::seen();
    let deadline = now() + time;
    let _ = guard.stack.shutdown(id, false, true);
    guard.leaves_event_loop();
    loop {
        guard.pump();
        if table::lookup(descriptor) != Entry::Socket(id) || guard.stack.lingers(id).is_none() {
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

fn close_set(descriptor: i32) -> Answer<()> {
    let mut guard = process();
    let Entry::Set(set) = table::lookup(descriptor) else { return Answer::Kernel };
    table::enter(descriptor, Entry::Kernel);
    if are_several() {
        drop(guard);
        close_set_elsewhere(set, descriptor);
        guard = process();
    }
    let process = &mut *guard;
    let record = &mut process.sets[set.0 as usize];
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
                if let Some(record) = process.sets.get_mut(set.0 as usize)
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
        Entry::Kernel => table::forget_untold(new),
        Entry::Socket(id) => {
            let mut guard = of(id);
            let told = Told(&mut guard);
            if told.0.close_socket(id, new) {
                told.0.descriptors.give_up(new);
            }
        }
        Entry::Set(_) => {
            close_set(new);
        }
        Entry::Kept(context) => at(context as usize).descriptors.give_up(new),
        Entry::Internal => return Err(Errno::BUSY),
    }
    Ok(())
}

/// The kernel made `new` a duplicate of `old`.
pub(crate) fn duplicated(old: i32, new: i32) {
    if old == new {
        return;
    }
    forget_stale(new);
    match table::lookup(old) {
        Entry::Socket(id) => {
            let mut process = of(id);
            process.stack.duplicate(id);
            // Its descriptors may differ in FD_CLOEXEC now.
            process.stack.socket_mut(id).customized = true;
            table::enter(new, Entry::Socket(id));
        }
        Entry::Set(set) => {
            let mut process = process();
            process.sets[set.0 as usize].references += 1;
            table::enter(new, Entry::Set(set));
        }
        Entry::Kernel | Entry::Kept(_) | Entry::Internal => {}
    }
}

/// `descriptor` came from another process.
pub(crate) fn adopt(descriptor: i32) {
    forget_stale(descriptor);
    at(own()).adopt(descriptor);
}

/// `descriptor` is about to be another process's too, or another face's of this one: the kernel goes on with a connection.
pub(crate) fn share(descriptor: i32) -> Result<(), Errno> {
    if !table::is_ours(descriptor) {
        return Ok(());
    }
    let context = match table::lookup(descriptor) {
        Entry::Socket(id) => id.context(),
        _ => 0,
    };
    let mut guard = at(context);
    let told = Told(&mut guard);
    told.0.share(descriptor)
}

/// Every connection is about to be another process's.
pub(crate) fn share_all() {
    if is_active() {
        contexts::each(Process::hand_over_all);
    }
}

/// The socket's two ends. `remote` asks for the peer's.
pub(crate) fn name(descriptor: i32, remote: bool) -> Answer<SocketAddr> {
    // Whether an ancestor's connection is still there nobody but the ancestor knows.
    let entry = if remote { super::used(descriptor) } else { table::lookup(descriptor) };
    let id = match entry {
        Entry::Socket(id) => id,
        Entry::Kept(_) | Entry::Internal => return Answer::error(CLOSED),
        Entry::Kernel | Entry::Set(_) => return Answer::Kernel,
    };
    let mut process = of(id);
    if table::lookup(descriptor) != Entry::Socket(id) {
        return Answer::Kernel;
    }
    let socket = process.stack.socket(id);
    if remote || socket.state == State::Connecting {
        // Some ask for the peer's name to learn whether there is one still.
        process.pump_before_waiting();
    }
    let over = process.stack.is_over(id);
    let socket = process.stack.socket(id);
    let presented = |address| Answer::ok(presented(address, socket.v6, process.interface_index));
    match socket.state {
        State::Connecting | State::Ended if remote => Answer::error(Errno::NOTCONN),
        State::Connected if remote && over => Answer::error(Errno::NOTCONN),
        State::Connected | State::Lost if remote => presented(socket.remote),
        State::Connected | State::Connecting | State::Ended | State::Lost => presented(socket.local),
        State::Free | State::Candidate | State::Listening | State::Datagram => Answer::Kernel,
    }
}

/// close_range() without CLOSE_RANGE_CLOEXEC: closes what is ours in it, and says which stretches the kernel may close.
pub(crate) fn close_range(first: u32, last: u32, mut close_in_kernel: impl FnMut(u32, u32)) {
    let end = table::length() as u32;
    let mut from = first;
    for descriptor in first..end.min(last.saturating_add(1)) {
        let kept = match table::lookup(descriptor as i32) {
            Entry::Kept(_) | Entry::Internal => true,
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

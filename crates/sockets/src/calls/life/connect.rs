//! connect(), its many outcomes, and connect() to nowhere, which ends a connection.

use core::net::SocketAddr;

use overfly_profile::options::Waiting;
use rustix::io::Errno;

use super::listen::stopped_listening;
use crate::calls::hold::Hold;
use crate::calls::{Answer, CLOSED, data, datagram, lock_socket};
use crate::kernel::{self, now};
use crate::lock::Guard;
use crate::memory::Source;
use crate::process::{For, Process, WakeOnDrop, Woken, leave_to_kernel, spin_until, wait};
use crate::socket::{SocketId, SocketState};
use crate::sys;
use crate::table::{self, Entry};
use crate::told;

/// connect() to an address of either family, or to what is none.
pub(crate) fn connect(descriptor: i32, remote: Option<SocketAddr>) -> Answer<()> {
    let since = sys::handlers_run();
    let (mut guard, id) = match lock_socket(descriptor) {
        Ok(locked) => locked,
        Err(answer) => return answer,
    };
    if guard.stack.socket(id).state == SocketState::Connecting {
        guard.pump_before_waiting();
    }
    if guard.stack.socket(id).disconnecting {
        return Answer::error(Errno::INVAL);
    }
    match guard.stack.socket(id).state {
        SocketState::Candidate => {}
        SocketState::Datagram => {
            drop(guard);
            return remote.map_or(Answer::Kernel, |remote| datagram::connect(descriptor, Some(remote)));
        }
        SocketState::Connecting => return finish_connecting(guard, id, descriptor, since, true),
        // The first connect() after a handshake that nobody waited for says that it is done (inet_stream_connect()).
        SocketState::Connected => {
            let socket = guard.stack.socket_mut(id);
            let tells = socket.tell_connect() && !socket.passive;
            return if tells { Answer::ok(()) } else { Answer::error(Errno::ISCONN) };
        }
        // As long as nobody has been told that it failed, it is being opened (the same function).
        SocketState::Ended if !guard.stack.socket(id).disconnected => {
            let socket = guard.stack.socket(id);
            if socket.passive || socket.connect_told {
                return Answer::error(Errno::ISCONN);
            }
            return failed_to_connect(&mut guard, id);
        }
        SocketState::Ended => {}
        SocketState::Listening | SocketState::Free | SocketState::Lost => return Answer::Kernel,
    }
    let Some(remote) = remote else { return Answer::Kernel };
    if is_misfit(&guard, id, descriptor, remote) {
        return Answer::Kernel;
    }
    // A thread that sleeps must not sleep past the time when the SYN is to be sent again.
    let begun = WakeOnDrop(&mut guard).0.connect(id, descriptor, remote, None);
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
    if process.stack.socket(id).state == SocketState::Ended {
        // Of the connection before, in whatever process (tcp_connect_init() in Linux).
        process.stack.socket_mut(id).take_error();
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
    let since = sys::handlers_run();
    let (mut guard, id) = match lock_socket(descriptor) {
        Ok(locked) => locked,
        Err(answer) => return answer,
    };
    match guard.stack.socket(id).state {
        SocketState::Candidate => {}
        SocketState::Ended if guard.stack.socket(id).disconnected => {}
        // As connect() would (tcp_sendmsg_fastopen() in Linux).
        _ => {
            drop(guard);
            return match connect(descriptor, None) {
                Answer::Done(Ok(())) => {
                    data::send(&mut Hold::new(), descriptor, source, flags & !libc::MSG_FASTOPEN)
                }
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
    let begun = WakeOnDrop(&mut guard).0.connect(id, descriptor, remote, Some(source));
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
        Answer::Done(Ok(())) => data::send(&mut Hold::new(), descriptor, source, flags & !libc::MSG_FASTOPEN),
        Answer::Done(Err(error)) => Answer::error(error),
        Answer::Kernel => Answer::Kernel,
    }
}

/// The connection is no more. If other processes have its end, they have the kernel's socket from now on, which keeps no port.
fn dissolve(process: &mut Process, id: SocketId) {
    let ends_for_all = process.stack.socket(id).dissolved_by_several.is_some_and(told::Error::is_pending);
    process.stack.disconnect(now(), id);
    if ends_for_all && process.stack.socket(id).flow.is_none() {
        process.forget_port(id);
    }
}

/// connect() says that it failed, and the socket may connect again.
fn failed_to_connect(process: &mut Process, id: SocketId) -> Answer<()> {
    let error = process.stack.take_error(id).unwrap_or(Errno::CONNABORTED);
    dissolve(process, id);
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
        SocketState::Connecting | SocketState::Connected | SocketState::Ended => {
            let told = WakeOnDrop(&mut guard);
            told.0.pump_before_waiting();
            dissolve(told.0, id);
            told.0.output();
            Answer::ok(())
        }
        SocketState::Listening => {
            let outcome = rustix::net::connect_unspec(kernel::borrow(descriptor));
            if outcome.is_ok() {
                stopped_listening(&mut guard, id, descriptor);
            }
            Answer::Done(outcome)
        }
        _ => Answer::Kernel,
    }
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
    since: sys::HandlersRun,
    again: bool,
) -> Answer<()> {
    let started = now();
    let socket = guard.stack.socket(id);
    let (waits, timeout) = (!socket.nonblocking, socket.settings.send_timeout);
    if !waits {
        return Answer::error(if again { Errno::ALREADY } else { Errno::INPROGRESS });
    }
    loop {
        guard.pump_for_all(Some(id));
        match table::lookup(descriptor) {
            Entry::Socket(its) if its == id => {}
            // The other end has had the kernel take the connection over, or nobody at user level answered: the kernel connects.
            Entry::Kernel => return Answer::Kernel,
            _ => return Answer::error(CLOSED),
        }
        match guard.stack.socket(id).state {
            SocketState::Connecting => {}
            SocketState::Connected => {
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

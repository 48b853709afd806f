//! socket, listen, accept, connect, shutdown, close, dup: a socket's life.

mod close;
mod connect;
mod listen;

use core::net::SocketAddr;

use rustix::io::Errno;

use self::close::close_set;
pub(crate) use self::close::{about_to_replace, close, close_range, linger_at_last, shutdown};
pub(crate) use self::connect::{connect, disconnect, open_fast};
pub(crate) use self::listen::{accept, kernel_says, listened};
use super::control::share_set;
use super::{Answer, CLOSED, datagram, lock_entry};
use crate::kernel;
use crate::process::contexts::{self, at, at_own};
use crate::process::several::is_datagram_socket;
use crate::process::{Process, WakeOnDrop, allow_own_address, is_active, process, sets};
use crate::socket::{SocketState, presented};
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
        datagram::opened(&mut at_own(), descriptor, v6, nonblocking);
    }
    if internet && stream && (protocol == 0 || protocol == libc::IPPROTO_TCP) {
        let mut process = at_own();
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
        Entry::Kernel => {}
        Entry::Socket(_) => {
            if let Some((mut process, id)) = lock_entry(descriptor) {
                process.close_socket(id, descriptor);
            }
        }
        Entry::Set(_) => {
            let _ = close_set(descriptor);
        }
        Entry::Cached(context) => at(context as usize).descriptors.give_up(descriptor),
        Entry::Internal => {
            process().descriptors.give_up(descriptor);
            contexts::each(|process| process.give_port_up(descriptor));
        }
    }
}

/// The kernel has no descriptor left: gives it those that are kept for later. Returns whether to try again.
pub(crate) fn descriptors_ran_out() -> bool {
    let mut any = false;
    if is_active() {
        contexts::each(|process| any |= process.give_back_descriptors());
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

/// The kernel made `new` a duplicate of `old`.
pub(crate) fn duplicated(old: i32, new: i32) {
    if old == new {
        return;
    }
    forget_stale(new);
    match table::lookup(old) {
        Entry::Socket(_) => {
            let Some((mut process, id)) = lock_entry(old) else { return };
            process.stack.duplicate(id);
            // Its descriptors may differ in FD_CLOEXEC now.
            process.stack.socket_mut(id).customized = true;
            table::enter(new, Entry::Socket(id));
        }
        Entry::Set(set) => {
            let mut process = process();
            process.sets[set].references += 1;
            table::enter(new, Entry::Set(set));
        }
        Entry::Kernel | Entry::Cached(_) | Entry::Internal => {}
    }
}

/// `descriptor` came from another process.
pub(crate) fn adopt(descriptor: i32) {
    forget_stale(descriptor);
    if is_datagram_socket(descriptor) {
        contexts::all().any(|context| at(context).adopt_datagram(descriptor));
        return;
    }
    if !contexts::all().any(|context| at(context).adopt_listener(descriptor)) {
        at_own().adopt(descriptor);
    }
}

/// `descriptor` is about to be another process's too, or another face's of this one: the kernel goes on with a connection.
pub(crate) fn share(descriptor: i32) -> Result<(), Errno> {
    if !table::is_ours(descriptor) {
        return Ok(());
    }
    if let Entry::Set(set) = table::lookup(descriptor) {
        return share_set(set, descriptor);
    }
    let mut guard = lock_entry(descriptor).map_or_else(process, |(guard, _)| guard);
    let told = WakeOnDrop(&mut guard);
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
    match entry {
        Entry::Socket(_) => {}
        Entry::Cached(_) | Entry::Internal => return Answer::error(CLOSED),
        Entry::Kernel | Entry::Set(_) => return Answer::Kernel,
    }
    let Some((mut process, id)) = lock_entry(descriptor) else { return Answer::Kernel };
    let socket = process.stack.socket(id);
    if remote || socket.state == SocketState::Connecting {
        // Some ask for the peer's name to learn whether there is one still.
        process.pump_before_waiting();
    }
    let over = process.stack.is_over(id);
    let socket = process.stack.socket(id);
    // Another process may have connected it anew.
    if remote && socket.may_be_all_kernels() && process.leaves_to_all(id) {
        return Answer::Kernel;
    }
    let socket = process.stack.socket(id);
    let presented = |address| Answer::ok(presented(address, socket.v6, process.interface_index));
    match socket.state {
        SocketState::Ended if !remote && socket.bound_since => Answer::Kernel,
        SocketState::Connecting | SocketState::Ended if remote => Answer::error(Errno::NOTCONN),
        SocketState::Connected if remote && over => Answer::error(Errno::NOTCONN),
        SocketState::Connected | SocketState::Lost if remote => presented(socket.remote),
        // An address that the program has not chosen goes with the connection (inet_reset_saddr() in Linux, net/ipv4/af_inet.c). What was
        // accepted has no port in the kernel.
        SocketState::Ended if socket.disconnected => {
            let bound = kernel::local_address(descriptor);
            let has_own = |bound: &SocketAddr| socket.at_any || bound.port() != 0;
            let bound = bound.filter(has_own).map_or(socket.local.ip(), |bound| bound.ip());
            presented(SocketAddr::new(bound, socket.local.port()))
        }
        SocketState::Connected | SocketState::Connecting | SocketState::Ended | SocketState::Lost => {
            presented(socket.local)
        }
        SocketState::Free | SocketState::Candidate | SocketState::Listening | SocketState::Datagram => {
            Answer::Kernel
        }
    }
}

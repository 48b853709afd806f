//! exec: the program's next image has its descriptors and none of its memory, so what is at user level goes to the kernel
//! before, and what the image before left is looked at after.

use std::os::fd::AsFd;

use rustix::net::{AddressFamily, SocketFlags, ipproto, sockopt};

use super::life::{EXIT_LINGER, deliver, disown_descriptors};
use super::{Process, contexts, listens_now};
use crate::kernel::{self, now};
use crate::socket::{Side, SocketId, SocketState};
use crate::table::{self, Entry};

/// The process is about to become another program. If it cannot, what was handed over stays with the kernel.
pub(crate) fn before_exec() {
    let mut runs = false;
    contexts::each(|process| {
        process.claim_inherited();
        process.leave_refusals();
        process.leave_sets();
        let listeners: Vec<_> = process.stack.listeners().collect();
        for &id in &listeners {
            process.restore_blocking(id, process.stack.socket(id).descriptor);
            if let Some(listening) = &mut process.stack.socket_mut(id).listening {
                // A thread that waits in accept() until the next image is there leaves it so.
                listening.forced_nonblocking = false;
            }
        }
        if !process.stack.is_running() {
            process.leave_ends();
            return;
        }
        runs = true;
        // Those that close on exec, too: the kernel delivers what they have sent.
        process.hand_over_all();
        process.leave_kept_by_calls();
        for id in listeners {
            process.part(id);
        }
    });
    if !runs {
        return;
    }
    // What was closed before, and is not delivered yet.
    let end = now() + EXIT_LINGER;
    for context in contexts::all() {
        let mut process = deliver(contexts::at(context), end);
        process.leave_half_closed();
        process.report();
    }
    disown_descriptors();
    contexts::each(Process::stop);
}

impl Process {
    /// What only calls of other threads have goes on in the kernel, which closes it when those threads are no more.
    fn leave_kept_by_calls(&mut self) {
        for id in self.stack.kept_by_calls() {
            let _ = match self.stack.socket(id).side {
                Side::Loopback => self.hand_over_within_host(id, None),
                Side::Network => self.hand_over_nobodys(id),
            };
        }
    }

    /// The next image hears in its sets of the kernel's sockets, with the program's data. A set that was there before this process was forked is
    /// its parent's.
    fn leave_sets(&mut self) {
        for descriptor in 0..table::length() {
            if let Entry::Set(set) = table::lookup(descriptor)
                && self.sets.get_mut(set).is_some_and(|record| !record.inherited)
                && !kernel::is_close_on_exec(descriptor)
            {
                let _ = self.share_watched(set);
            }
        }
    }

    /// Of inherited connections that are over the next image is told what nobody has been told yet.
    fn leave_ends(&mut self) {
        for id in self.stack.over() {
            let socket = self.stack.socket_mut(id);
            socket.catch_up();
            let tells = socket.pending_error().is_some() || !socket.receive.is_empty();
            let stays = |descriptor| {
                table::lookup(descriptor) == Entry::Socket(id) && !kernel::is_close_on_exec(descriptor)
            };
            if tells && (0..table::length()).any(stays) {
                let _ = self.hand_over(id);
            }
        }
    }

    /// Inherited connections that the next image will have are handed over by whoever has them.
    fn claim_inherited(&mut self) {
        for descriptor in 0..table::length() {
            if let Entry::Socket(id) = table::lookup(descriptor)
                && id.context() == self.context
                && self.stack.socket(id).state == SocketState::Lost
                && !kernel::is_close_on_exec(descriptor)
            {
                self.claim(id, descriptor);
            }
        }
    }

    /// The kernel hears the FINs of those whose connections were closed here before: nobody else will.
    fn leave_half_closed(&mut self) {
        let Some(client) = &mut self.session.client else { return };
        for (flow, connection) in self.stack.half_closed(now()) {
            let socket = kernel::new_tcp_socket(connection.local().is_ipv6(), SocketFlags::CLOEXEC);
            if let (Ok(socket), Ok(file)) = (socket, connection.to_file(|_| ()))
                && client.hand_over(socket.as_fd(), file.as_fd()).is_ok()
            {
                self.stack.forget_half_closed(flow);
            }
        }
    }

    /// The library was loaded into a process that may have descriptors already: listeners among them are looked at as if they
    /// had been made here. (UDP sockets stay the kernel's: what they were asked for cannot be told.)
    pub(super) fn adopt_all(&mut self) {
        for descriptor in kernel::numbers_in("/proc/self/fd") {
            if table::lookup(descriptor) == Entry::Kernel {
                self.adopt(descriptor);
            }
        }
    }

    /// One that came from elsewhere is perhaps a listener that this process has.
    pub(crate) fn adopt_listener(&mut self, descriptor: i32) -> bool {
        if sockopt::socket_acceptconn(kernel::borrow(descriptor)) != Ok(true) {
            return false;
        }
        let Some(cookie) = kernel::cookie(descriptor) else { return false };
        let is_it = |id: &SocketId| kernel::cookie(self.stack.socket(*id).descriptor) == Some(cookie);
        let Some(id) = self.stack.listeners().find(is_it) else { return false };
        self.stack.duplicate(id);
        self.stack.socket_mut(id).customized = true;
        table::enter(descriptor, Entry::Socket(id))
    }

    /// A descriptor that came from elsewhere: a listener may be accelerated, and so may what is to listen yet. Should it connect,
    /// whoever else has it must have the connection, too: that is the kernel's.
    pub(crate) fn adopt(&mut self, descriptor: i32) {
        let socket = kernel::borrow(descriptor);
        let v6 = match sockopt::socket_domain(socket) {
            Ok(AddressFamily::INET) => false,
            Ok(AddressFamily::INET6) => true,
            _ => return,
        };
        if sockopt::socket_protocol(socket) != Ok(Some(ipproto::TCP)) {
            return;
        }
        let listens = sockopt::socket_acceptconn(socket) == Ok(true);
        if !listens
            && (kernel::is_unconnected(descriptor) != Some(true) || kernel::is_shut_for_reading(descriptor))
        {
            return;
        }
        let Some(id) = self.stack.open(descriptor, v6, kernel::is_nonblocking(descriptor)) else { return };
        if !table::enter(descriptor, Entry::Socket(id)) {
            return self.stack.leave_to_kernel(id);
        }
        // Options may have been set that only the kernel's socket knows.
        let socket = self.stack.socket_mut(id);
        socket.customized = true;
        (socket.shared, socket.waits_are_seen) = (true, true);
        if listens {
            listens_now(self, id, descriptor, kernel::backlog(descriptor));
        }
    }
}

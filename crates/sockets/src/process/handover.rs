//! Connections of this process that the kernel takes over: the broker makes the backing descriptor's socket the connection
//! (TCP_REPAIR), so whoever has that socket has the connection, in whatever process and under whatever number.

use core::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use overfly_broker::PairEnd;
use overfly_broker::connection::Connection;
use rustix::io::Errno;

use super::{Process, leave_to_kernel};
use crate::interest::SetId;
use crate::kernel::{self, now};
use crate::options::{self, Backing};
use crate::socket::{Settings, Side, Socket, SocketId, SocketState, presented};
use crate::statistics::Why;
use crate::sys;
use crate::table::{self, Entry};

/// The connection as the broker takes it.
pub(super) fn to_file(connection: &Connection, socket: &Socket) -> Result<OwnedFd, String> {
    let fill = |bytes: &mut [u8]| {
        let (received, sent) = bytes.split_at_mut(connection.unread as usize);
        socket.receive.fill(0, received);
        socket.send.fill(0, sent);
    };
    connection.to_file(fill).map_err(|error| error.to_string())
}

/// The kernel's socket of a connection that is shut for reading is so before it has the connection: else what comes at once could be read.
/// In no connection it says ENOTCONN, and is shut (inet_shutdown() in Linux, net/ipv4/af_inet.c).
pub(super) fn shut_beforehand(descriptor: i32) {
    let _ = rustix::net::shutdown(kernel::borrow(descriptor), rustix::net::Shutdown::Read);
}

impl Process {
    /// The kernel goes on with a connection. Its descriptors are the kernel's alone from now on, and the kernel's epoll sets
    /// report it.
    ///
    /// # Errors
    /// EOPNOTSUPP if the broker could not, and it is not over or has something unread. Nothing has changed then.
    pub(crate) fn hand_over(&mut self, id: SocketId) -> Result<(), Errno> {
        if self.stack.socket(id).disconnected {
            if self.stack.socket_mut(id).take_error() == Some(Errno::CONNRESET) {
                let _ = self.disconnect_in_kernel(id);
            }
            self.moved(id);
            return Ok(());
        }
        if self.connects_anew(id) {
            return Ok(());
        }
        let outcome = self.try_hand_over(id);
        let is_nothing = self.stack.is_over(id) && self.stack.socket(id).receive.is_empty();
        match &outcome {
            Ok(()) => self.statistics.handovers += 1,
            // There is nothing to move but that it was shut (a broker cannot bind what the program has bound since).
            Err(_) if is_nothing => {
                let backing = kernel::borrow(self.stack.socket(id).descriptor);
                let _ = rustix::net::shutdown(backing, rustix::net::Shutdown::Both);
                self.moved(id);
                return Ok(());
            }
            Err(reason) => {
                self.statistics.handovers_refused += 1;
                kernel::complain(&format!("a connection stays at user level: {reason}"));
            }
        }
        outcome.map_err(|_| Errno::OPNOTSUPP)
    }

    /// The kernel's socket is reset and in no connection, as one that AF_UNSPEC has ended: it says so to whoever asks first.
    fn disconnect_in_kernel(&mut self, id: SocketId) -> Result<(), String> {
        let Some((mut connection, socket)) = self.stack.export_ended(id) else { return Ok(()) };
        let (number, at_any) = (socket.descriptor, socket.at_any);
        let descriptor = kernel::borrow(number);
        let mut bound = kernel::local_address(number);
        let any = bound.map(|bound| SocketAddr::new(bound.ip(), 0));
        // One that has let go of its port says it still: the broker is told of one that it has.
        let had_none = bound.is_some_and(|bound| bound.port() == 0);
        let lets_go = !had_none && any.is_some_and(|any| rustix::net::bind(descriptor, &any).is_ok());
        if lets_go {
            bound = kernel::local_address(number);
        }
        connection.local_port = bound.map_or(0, |bound| bound.port());
        let file = to_file(&connection, socket)?;
        self.move_ends(&[PairEnd { socket: descriptor, file: file.as_fd(), holder: descriptor }])?;
        rustix::net::connect_unspec(descriptor).map_err(|error| error.to_string())?;
        if let Some(any) = any.filter(|_| lets_go || at_any && had_none) {
            // It forgets the address that the broker has bound, as that was not bound by the program.
            let _ = rustix::net::bind(descriptor, &any);
            kernel::forget_port(number);
        }
        Ok(())
    }

    /// What no answer has come to yet, or a refusal that no call has told, the kernel connects from the beginning: there is no connection that
    /// it could get. False if it is something else.
    fn connects_anew(&mut self, id: SocketId) -> bool {
        let socket = self.stack.socket(id);
        let refused = socket.state == SocketState::Ended
            && socket.is_untold()
            && socket.pending_error() == Some(Errno::CONNREFUSED);
        if socket.state != SocketState::Connecting && !refused {
            return false;
        }
        let (descriptor, nonblocking) = (socket.descriptor, socket.nonblocking);
        let remote = presented(socket.remote, socket.v6, self.interface_index);
        self.stack.disconnect(now(), id);
        self.output();
        self.stack.socket_mut(id).take_error();
        self.moved(id);
        kernel::set_nonblocking(descriptor, true);
        let _ = rustix::net::connect(kernel::borrow(descriptor), &remote);
        kernel::set_nonblocking(descriptor, nonblocking);
        true
    }

    /// Hands a connection over that has asked for it. False if it stays.
    pub(crate) fn hand_over_as_wanted(&mut self, id: SocketId) -> bool {
        let socket = self.stack.socket_mut(id);
        if !socket.wants_kernel || socket.state != SocketState::Connected || socket.references == 0 {
            return false;
        }
        socket.wants_kernel = false;
        let is_upload = core::mem::take(&mut socket.upload.is_large);
        let before = self.statistics.handovers;
        if self.hand_over(id).is_ok() {
            if is_upload {
                self.statistics.handovers_of_uploads += self.statistics.handovers - before;
            }
            return true;
        }
        self.stack.socket_mut(id).stays = true;
        false
    }

    /// Hands over the connections that urgent data came for: the engine has none, and the peer sends it again. What the call has itself it
    /// goes on with: that one is a later call's.
    pub(super) fn hand_over_urgent(&mut self, own: Option<SocketId>) {
        for id in self.stack.take_urgent() {
            if own == Some(id) {
                self.stack.put_off_urgent(id);
            } else {
                self.hand_over_as_wanted(id);
            }
        }
    }

    /// Lets the stack look, and does what it asks for: while a call waits nobody else may be there to do it. The call may have a connection
    /// of its `own`.
    pub(crate) fn pump_for_all(&mut self, own: Option<SocketId>) {
        self.pump();
        self.hand_over_urgent(own);
    }

    /// Hands over every connection that can be.
    pub(crate) fn hand_over_all(&mut self) {
        let held: Vec<_> = self.stack.connections().collect();
        for id in held {
            if matches!(self.stack.socket(id).state, SocketState::Connected | SocketState::Connecting) {
                let _ = self.hand_over(id);
            }
        }
        for id in self.stack.over() {
            let _ = self.hand_over(id);
        }
    }

    pub(super) fn try_hand_over(&mut self, id: SocketId) -> Result<(), String> {
        if self.stack.socket(id).side == Side::Loopback {
            return self.hand_over_within_host(id, None);
        }
        // What has arrived is taken into account, so that little is lost with the rings.
        self.pump();
        let Some((connection, socket)) = self.stack.export(now(), id) else {
            return self.move_last_end(id, None);
        };
        let (descriptor, file) = (socket.descriptor, to_file(&connection, socket)?);
        if socket.read_shut {
            shut_beforehand(descriptor);
        }
        let client = self.session.client.as_mut().ok_or("there is no broker")?;
        client.hand_over(kernel::borrow(descriptor), file.as_fd()).map_err(|error| error.to_string())?;
        let socket = self.stack.socket(id);
        if let Some(kept) = &mut self.session.kept {
            kept.forget((socket.local.port(), socket.remote));
        }
        self.moved(id);
        Ok(())
    }

    /// The connection is that of its descriptor's kernel socket now, or the socket has none any more: the kernel's has what the program has
    /// set.
    pub(crate) fn moved(&mut self, id: SocketId) {
        let socket = self.stack.socket(id);
        let (descriptor, settings) = (socket.descriptor, socket.settings);
        let (nonblocking, read_shut) = (socket.nonblocking, socket.read_shut);
        kernel::set_nonblocking(descriptor, nonblocking);
        self.apply(descriptor, &settings);
        if let Some(later) = self.stack.socket_mut(id).later.take() {
            kernel::stamp(descriptor, &later);
        }
        if read_shut {
            let _ = rustix::net::shutdown(kernel::borrow(descriptor), rustix::net::Shutdown::Read);
        }
        self.let_go(id);
    }

    /// The port of a connection that is over is free again. Thereby the kernel forgets how its socket was shut.
    pub(crate) fn forget_port(&self, id: SocketId) {
        kernel::forget_port(self.stack.socket(id).descriptor);
        if self.stack.socket(id).disconnected {
            self.shut_in_kernel(id);
        }
    }

    /// The kernel's socket of what AF_UNSPEC has ended is shut as the program has shut that since: other processes hear of it, and what it
    /// will be connected to is shut from the beginning.
    pub(crate) fn shut_in_kernel(&self, id: SocketId) {
        let socket = self.stack.socket(id);
        let how = match (socket.read_shut, socket.write_shut) {
            (true, false) => rustix::net::Shutdown::Read,
            (false, true) => rustix::net::Shutdown::Write,
            (true, true) => rustix::net::Shutdown::Both,
            (false, false) => return,
        };
        let _ = rustix::net::shutdown(kernel::borrow(socket.descriptor), how);
    }

    pub(super) fn apply(&self, descriptor: i32, settings: &Settings) {
        if let Some(fresh) = &self.fresh {
            options::write(Backing(descriptor), settings, fresh);
        }
    }

    /// Gives an accepted connection of the kernel's what it would have inherited from a listener of the stack's.
    pub(crate) fn apply_settings(&self, descriptor: i32, listener: SocketId) {
        self.apply(descriptor, &self.stack.socket(listener).settings);
    }

    /// The connection is the kernel's: so are its descriptors, and what watches it. Whoever sleeps for it does so in the kernel from now
    /// on, whatever the caller goes on with.
    pub(crate) fn let_go(&mut self, id: SocketId) {
        self.set_free(id);
        self.stack.depart(id);
        self.tell_sleepers();
    }

    /// A socket's descriptors, and what watches it, are the kernel's.
    pub(super) fn set_free(&mut self, id: SocketId) {
        let Self { stack, sets, .. } = self;
        stack.interests(id, |set, descriptor, events, data| {
            let event = libc::epoll_event { events, u64: data };
            let epoll = sets[set].descriptor;
            let _ = sys::epoll_control(epoll, libc::EPOLL_CTL_ADD, descriptor, &raw const event);
        });
        let socket = stack.socket(id);
        // Of one that was an ancestor's the ancestor has said so.
        let had_one = matches!(socket.state, SocketState::Connected | SocketState::Ended);
        let untold = had_one && socket.is_untold() && !socket.disconnected && !socket.disconnecting;
        if untold {
            kernel::set_untold(socket.descriptor, true);
        }
        for descriptor in 0..table::length() {
            if table::lookup(descriptor) == Entry::Socket(id) {
                table::enter(descriptor, Entry::Kernel);
            }
        }
    }

    /// The kernel's listening socket blocks again if the program thinks so: others will see it.
    pub(crate) fn restore_blocking(&self, id: SocketId, descriptor: i32) {
        let socket = self.stack.socket(id);
        if socket.listening.as_ref().is_some_and(|listening| listening.forced_nonblocking) {
            kernel::set_nonblocking(descriptor, socket.nonblocking);
        }
    }

    /// A set is about to be somebody else's too, who will hear in it of the kernel's sockets alone: what it watches is the kernel's. A
    /// listener whose connections wait here, and a UDP socket with datagrams, stay, as the kernel's queues cannot be given those.
    pub(crate) fn share_watched(&mut self, set: SetId) -> Result<(), Errno> {
        for (id, descriptor) in self.stack.watched(set) {
            self.share_in_set(id, descriptor)?;
        }
        let Some(record) = self.sets.get_mut(set) else { return Ok(()) };
        let epoll = record.descriptor;
        for (id, descriptor) in self.stack.watched(set) {
            self.stack.watchers(id, |its| {
                if its.set == set.0 && its.descriptor == descriptor && !its.in_kernel {
                    let event = libc::epoll_event { events: its.armed(), u64: its.data };
                    let _ = sys::epoll_control(epoll, libc::EPOLL_CTL_MOD, descriptor, &raw const event);
                }
            });
        }
        Ok(())
    }

    /// A socket is about to be watched by a set that others have, or are about to have.
    pub(crate) fn share_in_set(&mut self, id: SocketId, descriptor: i32) -> Result<(), Errno> {
        match self.stack.socket(id).state {
            SocketState::Listening if self.stack.has_pending(id) => return Ok(()),
            SocketState::Candidate | SocketState::Listening => {
                self.part_if_it_listens(id);
                leave_to_kernel(self, id);
            }
            _ => return self.share(descriptor),
        }
        self.left(Why::KernelEpoll);
        Ok(())
    }

    /// `descriptor` is about to be somebody else's too: a connection is handed over first.
    pub(crate) fn share(&mut self, descriptor: i32) -> Result<(), Errno> {
        match table::lookup(descriptor) {
            Entry::Socket(id) => match self.stack.socket(id).state {
                SocketState::Connecting | SocketState::Connected | SocketState::Ended => self.hand_over(id),
                SocketState::Lost => {
                    self.claim(id, descriptor);
                    Ok(())
                }
                SocketState::Listening => {
                    self.restore_blocking(id, descriptor);
                    Ok(())
                }
                SocketState::Datagram => {
                    if self.claim(id, descriptor) == Entry::Socket(id) {
                        self.pass_datagram_on(id);
                    }
                    Ok(())
                }
                // What one of those connects that have it the other ones have as well.
                SocketState::Candidate => {
                    self.stack.socket_mut(id).shared = true;
                    Ok(())
                }
                SocketState::Free => Ok(()),
            },
            Entry::Cached(_) | Entry::Internal => Err(Errno::BADF),
            Entry::Kernel | Entry::Set(_) => Ok(()),
        }
    }
}

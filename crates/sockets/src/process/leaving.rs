//! A listener that leaves while connections wait for it, as when a server replaces its workers: another process that listens
//! at the same address accepts them. They are the kernel's from then on; the broker brings them over.

use core::net::SocketAddr;
use core::time::Duration;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd};

use overfly_broker::{Client, PassedConnection, Protocol, Sockets};
use overfly_link::Link;
use rustix::net::sockopt;

use super::Process;
use super::pairs::Heir;
use crate::interest::NONE;
use crate::kernel;
use crate::socket::{Arrival, Side, SocketId};
use crate::sys;
use crate::table::{self, Entry};

impl Process {
    /// This process takes no more connections for the listener. Those that wait, or whose handshake has begun, go to another
    /// process; if none comes to listen they are reset.
    pub(crate) fn part(&mut self, id: SocketId) {
        // New connections are steered away before it is looked who waits here.
        if let Some(client) = &mut self.session.client {
            for local in self.stack.last_member_at(Side::Network, id) {
                let _ = client.unlisten(Protocol::Tcp, local, true);
            }
        }
        let within_host: Vec<_> = self.stack.last_member_at(Side::Loopback, id).collect();
        for local in within_host {
            if let Some(loopback) = self.loopback() {
                loopback.unlisten(local);
            }
        }
        self.take_given_connections();
        let joined = self.stack.joined(id);
        self.stack.part(id);
        let listens = self.stack.is_listening();
        if let Some(link) = self.stack.transport_mut(Side::Network) {
            link.set_accepting(listens);
        }
        while let Some(arrival) = self.stack.take_arrival(id) {
            let Some(&listener) = joined.iter().find(|local| local.is_ipv4() == arrival.remote.is_ipv4())
            else {
                continue;
            };
            table::enter(arrival.descriptor, Entry::Kernel);
            self.pass_on(listener, arrival.remote, kernel::borrow(arrival.descriptor));
            sys::close(arrival.descriptor);
        }
        self.pump();
    }

    /// Before a fork. A listener that this process has watched, and never accepted from, is perhaps for its children: the kernel
    /// listens there until it accepts itself. A child of another user has no stack beside this one's, and nobody could bring
    /// it what had come here (Dovecot's master, whose processes for logins are of a user without rights).
    ///
    /// Nobody brings a child what connects at a loopback address: as long as something does the listener stays.
    pub(super) fn leave_unused_listeners(&mut self) {
        self.finish_own_handshakes();
        let unused = |id: &SocketId| {
            let listening = self.stack.socket(*id).listening.as_ref();
            let unused = listening.is_some_and(|its| !its.accepts && !its.has_connections());
            unused && self.stack.has_joined(*id) && !self.would_be_lost(*id)
        };
        let listeners: Vec<_> = self.stack.listeners().filter(unused).collect();
        for id in listeners {
            self.part(id);
            self.restore_blocking(id, self.stack.socket(id).descriptor);
            if let Some(listening) = &mut self.stack.socket_mut(id).listening {
                listening.left_to_children = true;
            }
        }
    }

    /// Somebody waits for a listener. False if it stays the kernel's, whole.
    pub(crate) fn join_to_watch(&mut self, id: SocketId, descriptor: i32) -> bool {
        let listening = self.stack.socket(id).listening.as_ref();
        listening.is_some_and(|its| its.left_to_children) || self.join(id, descriptor)
    }

    /// accept() is called. As above.
    pub(crate) fn join_to_accept(&mut self, id: SocketId, descriptor: i32) -> bool {
        if let Some(listening) = &mut self.stack.socket_mut(id).listening {
            (listening.accepts, listening.left_to_children) = (true, false);
        }
        self.join(id, descriptor)
    }

    /// A set watches a socket no more. A process that has forked, and does not wait for its listener any longer, leaves it to
    /// its children (Dovecot's master watches until a connection comes, and has a child accept it), until it waits again.
    pub(crate) fn leave_to_children(&mut self, id: SocketId, descriptor: i32) {
        let socket = self.stack.socket(id);
        let watches = socket.interests != NONE || socket.awaited;
        if self.sets.shared && !watches && !self.would_be_lost(id) && self.stack.has_joined(id) {
            self.part(id);
            self.restore_blocking(id, descriptor);
        }
    }

    /// The broker brings nothing to those who listen at a loopback address: neither what waits there nor what is on its way.
    fn would_be_lost(&self, id: SocketId) -> bool {
        !self.stack.is_member(Side::Network, id) && self.stack.has_pending(id)
    }

    /// What waits for listeners that have left goes to who listens now.
    pub(super) fn give_away(&mut self) {
        for (id, listener) in self.stack.leaving() {
            match self.try_give_away(id, listener) {
                Ok(()) => self.statistics.given_away += 1,
                Err(_) => {
                    self.statistics.reset_unaccepted += 1;
                    self.stack.abandon(id);
                }
            }
        }
        self.stack.close_ports();
    }

    /// A connection is the kernel's, and on its way to another process that listens at `listener`.
    pub(super) fn try_give_away(&mut self, id: SocketId, listener: SocketAddr) -> Result<(), String> {
        if self.stack.socket(id).side == Side::Loopback {
            return self.hand_over_within_host(id, Some(Heir::Listener(listener)));
        }
        let (connection, socket) = self.stack.export(kernel::now(), id).ok_or("it is over")?;
        let file = super::handover::to_file(&connection, socket)?;
        let backing = kernel::tcp_socket(socket.v6, true).map_err(|error| error.to_string())?;
        let client = self.session.client.as_mut().ok_or("there is no broker")?;
        let outcome = client.give_away(listener, kernel::borrow(backing), file.as_fd());
        sys::close(backing);
        outcome.map_err(|error| error.to_string())?;
        self.stack.depart(id);
        Ok(())
    }

    /// A connection of the kernel's, whose descriptor the caller closes, is for whoever listens there. One that nobody brings there is
    /// reset, as those of a listener that is closed.
    pub(super) fn pass_on(&mut self, listener: SocketAddr, remote: SocketAddr, socket: BorrowedFd<'_>) {
        if !self.can_pass_on(listener, remote, socket) {
            let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
        }
    }

    /// As [`Process::pass_on`]. False if the broker does not take it.
    fn can_pass_on(&mut self, listener: SocketAddr, remote: SocketAddr, socket: BorrowedFd<'_>) -> bool {
        let passed = self.session.client.as_mut().map(|client| client.pass_on(listener, remote, socket));
        matches!(passed, Some(Ok(_)))
    }

    /// One that waits here is for whoever else listens there. False if it stays.
    pub(super) fn passes_on(&mut self, listener: SocketAddr, arrival: &Arrival) -> bool {
        self.can_pass_on(listener, arrival.remote, kernel::borrow(arrival.descriptor))
    }

    /// Connections that other processes gave away.
    pub(crate) fn take_given_connections(&mut self) {
        while let Some(PassedConnection { listener, remote, socket }) =
            self.session.client.as_mut().and_then(Client::passed_connection)
        {
            let descriptor = socket.as_raw_fd();
            if self.stack.arrive(listener, Arrival { descriptor, remote }) {
                // Not the program's until it accepts it.
                table::enter(socket.into_raw_fd(), Entry::Internal);
                continue;
            }
            // This one has left, too.
            self.pass_on(listener, remote, socket.as_fd());
        }
        if let Some(sockets) = self.session.client.as_mut().and_then(Client::renewal) {
            let outcome = sockets.map_err(|error| error.to_string());
            if let Err(error) = outcome.and_then(|sockets| self.renew(sockets)) {
                kernel::complain(&format!("the interface is there again, but not accelerated: {error}"));
            }
        }
    }

    /// Goes on with the new sockets of its stack: the interface was gone and is there again.
    #[cold]
    fn renew(&mut self, sockets: Sockets) -> Result<(), String> {
        let Some(interface) = self.session.client.as_ref().map(|client| client.interface().clone()) else {
            return Ok(());
        };
        self.stack.renew(interface.mac, |carrier| carrier.renew(sockets))?;
        self.interface_index = interface.index;
        self.session.interface = Some(interface);
        self.watch_everywhere();
        self.watch_links_again();
        Ok(())
    }
}

//! UDP sockets and the broker: which frames come to this process, and how its own find their way.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use overfly_broker::Protocol;
use overfly_profile::rules::Direction;
use rustix::net::sockopt;

use super::Process;
use super::session::Session;
use crate::interest::bits;
use crate::kernel::{self, now};
use crate::options::wants;
use crate::socket::{SocketId, canonical};
use crate::stack::Datagrams;
use crate::statistics::{Refused, Why};

/// Whether a UDP socket's datagrams come to this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Placed {
    /// They do.
    Yes,
    /// It has no port yet.
    Unbound,
    /// It stays the kernel's.
    No,
}

/// Where a datagram is to be sent from; an address that is none, and interface 0, leave it open.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) address: IpAddr,
    pub(crate) interface: u32,
}

impl Process {
    /// As [`Process::place_datagram`]. `Unbound`: the kernel alone answers a call that does not wait, for now.
    pub(crate) fn place_to_ask(&mut self, id: SocketId, descriptor: i32) -> Placed {
        if self.is_asked_blindly(id, descriptor) {
            Placed::Unbound
        } else {
            self.place_datagram(id, descriptor)
        }
    }

    /// A UDP socket's datagrams come to this process from now on.
    pub(crate) fn place_datagram(&mut self, id: SocketId, descriptor: i32) -> Placed {
        if self.is_of_all(id) {
            return self.withdraw_datagram(id);
        }
        let Some(part) = self.stack.datagrams(id) else { return Placed::No };
        if !part.places.is_empty() {
            return Placed::Yes;
        }
        // See [`super::unseen`].
        if self.stack.is_left_to_kernels_sets(id) {
            return Placed::Unbound;
        }
        let connected = part.connected;
        let Some(bound) = kernel::local_address(descriptor) else { return Placed::No };
        if bound.ip().to_canonical().is_loopback() {
            return self.displaced(Why::Loopback);
        }
        let (direction, end) = match connected {
            Some(remote) => (Direction::Connect, remote),
            None => (Direction::Listen, bound),
        };
        if bound.port() != 0 && !self.rules.accelerate(direction, end) {
            return self.displaced(Why::Rule);
        }
        if !self.start() {
            return self.displaced(Why::NoStack);
        }
        if bound.port() == 0 {
            return Placed::Unbound;
        }
        if !self.is_accelerated_address(bound) {
            self.refresh_addresses();
            if !self.is_accelerated_address(bound) {
                return self.displaced(Why::OtherAddress);
            }
        }
        let limit = sockopt::socket_recv_buffer_size(kernel::borrow(descriptor)).unwrap_or(0);
        if let Some(part) = self.stack.datagrams_mut(id) {
            part.limit = limit;
        }
        let local = canonical(bound);
        let mut outcome = self.place_at(id, descriptor, local, connected);
        if outcome.is_ok()
            && connected.is_none()
            && local.is_ipv6()
            && local.ip().is_unspecified()
            && !kernel::is_v6only(descriptor)
        {
            // The engine knows no mapped addresses: a socket for both families has two places there.
            outcome = self.place_at(
                id,
                descriptor,
                SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), local.port()),
                None,
            );
        }
        if let Err(refused) = outcome {
            self.displace_datagram(id);
            self.statistics.datagram_sockets_refused += 1;
            self.left(refused.why);
            if connected.is_none() {
                kernel::complain(&format!("the kernel serves UDP at {bound}: {}", refused.reason));
            }
            return Placed::No;
        }
        if let Some(part) = self.stack.datagrams_mut(id) {
            part.kernel_first =
                (part.kernel_first || part.queue.is_empty()) && kernel::is_readable(descriptor);
        }
        self.statistics.datagram_sockets += 1;
        Placed::Yes
    }

    /// The kernel's socket of a UDP socket has an error, as of what was sent before the socket came to the stack: it is the stack's from now
    /// on, which tells it to whoever asks first. False if there is none to take, if it is another process's as well, or if it waits in the
    /// kernel's queue of errors (IP_RECVERR), and ends when that is read.
    pub(crate) fn takes_kernels_error(&mut self, id: SocketId) -> bool {
        let has_queue = wants::ERRORS | wants::ERRORS_6;
        let leaves = |part: &Datagrams| part.of_all || part.changed.is_some() || part.wants & has_queue != 0;
        if self.stack.datagrams(id).is_none_or(leaves) {
            return false;
        }
        let socket = self.stack.socket_mut(id);
        let Ok(Err(error)) = sockopt::socket_error(kernel::borrow(socket.descriptor)) else { return false };
        socket.error = Some(error);
        self.stack.datagram_news(id, bits::IN | bits::OUT | bits::ERR | bits::RDNORM | bits::WRNORM);
        true
    }

    fn displaced(&mut self, why: Why) -> Placed {
        self.left(why);
        Placed::No
    }

    fn place_at(
        &mut self,
        id: SocketId,
        descriptor: i32,
        local: SocketAddr,
        remote: Option<SocketAddr>,
    ) -> Result<(), Refused> {
        let shared = kernel::number(descriptor, libc::SOL_SOCKET, libc::SO_REUSEPORT) == Ok(1);
        let beside = remote.is_none() && self.stack.datagram_beside(id, local).is_some();
        let placed = self.stack.place_datagram(id, local, remote, shared);
        placed.map_err(|error| Refused { why: Why::Refused, reason: error.to_string() })?;
        // What comes there comes to this process already.
        if beside { Ok(()) } else { self.ask_for_datagrams(id, (local, remote)) }
    }

    /// Has the broker send here what comes to one end of a socket's, from the other one if that is said.
    pub(super) fn ask_for_datagrams(
        &mut self,
        id: SocketId,
        (local, remote): (SocketAddr, Option<SocketAddr>),
    ) -> Result<(), Refused> {
        let Some(client) = &mut self.session.client else { return Ok(()) };
        let socket = kernel::borrow(self.stack.socket(id).descriptor);
        match remote {
            None => client.listen_as(socket, Protocol::Udp, local, true).map_err(Refused::new),
            Some(remote) => {
                let route =
                    client.connect_flow_as(socket, Protocol::Udp, local, remote).map_err(Refused::new)?;
                self.stack.next_hop(now(), remote.ip(), route.next_hop);
                Ok(())
            }
        }
    }

    /// A UDP socket's datagrams do not come to this process any more.
    pub(crate) fn displace_datagram(&mut self, id: SocketId) {
        self.part_from_datagrams(id);
        self.stack.displace_datagram(id);
    }

    /// The broker steers them here no more.
    pub(super) fn part_from_datagrams(&mut self, id: SocketId) {
        let Self { stack, session: Session { client, .. }, .. } = self;
        if let (Some(client), Some(part)) = (client, stack.datagrams(id)) {
            for place in &part.places {
                let _ = match place.remote {
                    None => {
                        let gone = client.unlisten(Protocol::Udp, place.local, true);
                        // Who shared the place proves it from now on.
                        let heir = stack.datagram_beside(id, place.local);
                        heir.map_or(gone, |heir| {
                            let socket = kernel::borrow(stack.socket(heir).descriptor);
                            client.listen_as(socket, Protocol::Udp, place.local, true)
                        })
                    }
                    Some(remote) => client.disconnect_flow(Protocol::Udp, place.local.port(), remote),
                };
            }
        }
    }

    /// Asks the kernel, through the broker, for the way to a destination. False if the kernel must send there itself.
    pub(crate) fn find_next_hop(&mut self, destination: IpAddr) -> bool {
        if self.stack.is_elsewhere(now(), destination) {
            return false;
        }
        let Some(Ok(route)) = self.session.client.as_mut().map(|client| client.route(destination)) else {
            self.stack.goes_elsewhere(now(), destination);
            return false;
        };
        self.stack.next_hop(now(), destination, route.next_hop);
        true
    }

    /// Has the kernel look where those are of which nothing is heard. What is sent to them from the next time on goes there.
    pub(super) fn look_for_unheard(&mut self) {
        let time = self.pumped;
        for remote in self.stack.unheard(time) {
            if let Some(Ok(route)) = self.session.client.as_mut().map(|client| client.look(remote)) {
                self.stack.next_hop(time, remote, route.next_hop);
            }
        }
    }

    /// Whether the stack may send from there: one of the interface's addresses, and that interface.
    pub(crate) fn is_from(&self, from: Origin) -> bool {
        (from.interface == 0 || from.interface == self.interface_index)
            && (from.address.is_unspecified() || self.session.is_own(from.address))
    }

    /// Whether a datagram to `destination` could leave by the stack's interface at all.
    pub(crate) fn is_beyond(&self, destination: SocketAddr) -> bool {
        let address = destination.ip();
        let link_local = match address {
            IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        !(address.is_loopback()
            || address.is_unspecified()
            || address.is_multicast()
            || link_local
            || destination.port() == 0
            || self.session.is_own(address))
    }
}

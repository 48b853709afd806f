//! Listeners join the stack, and leave it: from then on the broker steers their connections here, or to the kernel.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use overfly_broker::Protocol;
use overfly_link::Link;
use overfly_profile::rules::Direction;

use super::sets::shared;
use super::tags::private_listener;
use super::{Placed, Process, has_addresses_of_its_own};
use crate::interest::{SetId, bits};
use crate::socket::{Side, SocketId, SocketState, canonical};
use crate::statistics::{Refused, Why};
use crate::table::{self, Entry};
use crate::{kernel, sys};

impl Process {
    /// This process takes connections for the listener from now on. Returns false if it stays the kernel's.
    pub(crate) fn join(&mut self, id: SocketId, descriptor: i32) -> bool {
        if self.stack.has_joined(id) {
            return true;
        }
        let Some(bound) = kernel::local_address(descriptor) else { return false };
        // Another process that has it may have ended that (connect() to AF_UNSPEC, shutdown()).
        if rustix::net::sockopt::socket_acceptconn(kernel::borrow(descriptor)) == Ok(false) {
            return false;
        }
        let network = self.may_join(bound);
        let within_host = self.options.tcp_server_loopback != 0 && self.start_loopback();
        if let Err(why) = network
            && !(within_host && why == Why::Loopback)
        {
            self.left(why);
            if !within_host {
                return false;
            }
        }
        if self.is_tied_elsewhere(descriptor) {
            return self.left(Why::OtherAddress);
        }
        let settings = self.settings(id, descriptor);
        let socket = self.stack.socket_mut(id);
        // Not what the kernel says: another process that shares the listener may have joined it before.
        let nonblocking = socket.nonblocking;
        socket.settings = settings;
        let local = canonical(bound);
        // The engine knows no mapped addresses: a listener for both families is two there (RFC 3493 section 5.3).
        let both = local.is_ipv6() && local.ip().is_unspecified() && !kernel::is_v6only(descriptor);
        let v4 = both.then(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), local.port()));
        // Of a listener's two families, the firewall may leave one to the kernel.
        let mut left_one = false;
        for local in [Some(local), v4].into_iter().flatten() {
            if network.is_ok()
                && let Err(refused) = self.join_at(id, descriptor, local)
            {
                if refused.why != Why::Firewall || !both || left_one {
                    return self.refuse_listener(id, bound, &refused);
                }
                kernel::complain(&format!("the kernel serves {local}: {}", refused.reason));
                left_one = true;
            }
            if within_host && let Some(local) = self.place_within_host(local) {
                self.join_within_host(id, local);
            }
        }
        if !self.stack.has_joined(id) {
            return self.left(network.err().unwrap_or(Why::Refused));
        }
        self.follow_listener(id, descriptor);
        if !nonblocking {
            // accept() must not wait in the kernel, where the stack's connections are not seen.
            kernel::set_nonblocking(descriptor, true);
        }
        if let Some(listening) = &mut self.stack.socket_mut(id).listening {
            listening.forced_nonblocking = true;
        }
        true
    }

    /// A listener, or a UDP socket, belongs to the stack of the process that waits for it from now on. False if it stays the
    /// kernel's.
    pub(crate) fn joins(&mut self, id: SocketId, descriptor: i32) -> bool {
        self.stack.socket_mut(id).waits_are_seen = true;
        match self.stack.socket(id).state {
            SocketState::Listening => self.join_to_watch(id, descriptor),
            SocketState::Datagram => self.place_datagram(id, descriptor) != Placed::No,
            _ => true,
        }
    }

    /// Somebody waits in a set, or for it, by a call that the library sees, and nobody has before: the listeners and UDP sockets in
    /// it join.
    #[cold]
    pub(crate) fn sockets_join(&mut self, set: SetId) {
        for (id, _) in self.stack.watched(set) {
            if !matches!(self.stack.socket(id).state, SocketState::Listening | SocketState::Datagram) {
                continue;
            }
            let waits = waiting_sets(self, id);
            let Some(&(_, descriptor, ..)) = waits.first() else { continue };
            report(self, id, waits);
            if !self.joins(id, descriptor) {
                leave_to_kernel(self, id);
            }
        }
        self.tell_sleepers();
    }

    /// Whether a listener, or a UDP socket, is the stack's as well as the kernel's.
    pub(crate) fn is_in_stack(&self, id: SocketId) -> bool {
        self.stack.has_joined(id) || self.stack.datagrams(id).is_some_and(|part| !part.places.is_empty())
    }

    /// Whether the interface's connections to a listener can be the stack's.
    pub(super) fn may_join(&mut self, bound: SocketAddr) -> Result<(), Why> {
        if bound.ip().to_canonical().is_loopback() {
            return Err(Why::Loopback);
        }
        if !self.start() {
            return Err(Why::NoStack);
        }
        if !self.is_accelerated_address(bound) {
            self.refresh_addresses();
            if !self.is_accelerated_address(bound) {
                return Err(Why::OtherAddress);
            }
        }
        Ok(())
    }

    pub(super) fn join_at(
        &mut self,
        id: SocketId,
        descriptor: i32,
        local: SocketAddr,
    ) -> Result<(), Refused> {
        let by_engine =
            |error: &dyn core::fmt::Display| Refused { why: Why::Refused, reason: error.to_string() };
        if self.stack.join(Side::Network, id, local).map_err(|error| by_engine(&error))?
            && let Some(client) = &mut self.session.client
            && let Err(error) = client.listen_as(kernel::borrow(descriptor), Protocol::Tcp, local, true)
            && !self.session.is_parting(&error)
        {
            return Err(Refused::new(error));
        }
        if let Some(link) = self.stack.transport_mut(Side::Network) {
            link.set_accepting(true);
        }
        Ok(())
    }

    /// The listener stays the kernel's, whole.
    pub(super) fn refuse_listener(&mut self, id: SocketId, bound: SocketAddr, refused: &Refused) -> bool {
        self.part(id);
        self.statistics.listeners_refused += 1;
        kernel::complain(&format!("the kernel serves {bound}: {}", refused.reason));
        self.left(refused.why)
    }

    /// A socket stays the kernel's, and why.
    pub(crate) fn left(&mut self, why: Why) -> bool {
        self.statistics.leave(why);
        if self.stack.show.is_none() {
            self.begin_to_show();
        } else {
            self.show();
        }
        false
    }

    /// A listener goes, or leaves the stack: the broker stops steering, the kernel's socket leaves the epoll sets.
    pub(super) fn forget_listener(&mut self, id: SocketId) {
        let mut registered = Vec::new();
        self.stack.interests(id, |set, descriptor, _, _| registered.push((set, descriptor)));
        for (set, descriptor) in registered {
            let set = &self.sets[set];
            // As close() itself: what another process watches it goes on to watch.
            if !set.inherited {
                let null = core::ptr::null();
                let _ = sys::epoll_control(set.descriptor, libc::EPOLL_CTL_DEL, descriptor, null);
            }
        }
        self.part(id);
    }

    /// Whether frames for this address can reach the stack. `bound` may be a link-local address with the index of its link.
    pub(super) fn is_accelerated_address(&self, bound: SocketAddr) -> bool {
        let address = bound.ip().to_canonical();
        // Which addresses those are the next broker says.
        address.is_unspecified()
            || self.is_away()
            || self.session.is_own(address) && !self.is_elsewhere(bound)
    }

    /// Whether the kernel can connect to the address in place of the stack. The program's own are no kernel's over memif; over
    /// tap the kernel would come back to this very process, which would wait for itself.
    pub(super) fn kernel_reaches(&self, address: IpAddr) -> bool {
        !has_addresses_of_its_own() || !self.session.is_own(address)
    }

    /// A link-local address of another link.
    pub(super) const fn is_elsewhere(&self, address: SocketAddr) -> bool {
        matches!(address, SocketAddr::V6(address) if address.scope_id() != 0
            && address.ip().is_unicast_link_local() && address.scope_id() != self.interface_index)
    }

    /// The interface may have got addresses since the stack was made.
    pub(super) fn refresh_addresses(&mut self) {
        if let Some(client) = &mut self.session.client
            && let Ok(interface) = client.refresh_interface()
        {
            self.session.interface = Some(interface.clone());
        }
    }
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
    let waits = waiting_sets(process, id);
    // Who watches it, waits for its connections: as with EPOLL_CTL_ADD after listen() (Netty's epoll transport adds first). So does
    // who has accepted others already, and may tell a client where to connect before it waits itself (FTP, iperf3).
    let serves = !waits.is_empty() || process.stack.accepts > 0;
    if serves && !process.join(id, descriptor) {
        leave_to_kernel(process, id);
        return;
    }
    report(process, id, waits);
}

/// What of a socket the kernel alone reports, in a set in which somebody has waited: set, descriptor, events, data.
type Registered = (SetId, i32, u32, u64);

fn waiting_sets(process: &Process, id: SocketId) -> Vec<Registered> {
    let mut found = Vec::new();
    process.stack.watchers(id, |its| {
        let set = SetId(its.set);
        if its.in_kernel && shared(set).is_waited_in() {
            found.push((set, its.descriptor, its.armed(), its.data));
        }
    });
    found
}

/// Sets report a listener with the program's data, since they had it before it was one, or before anybody waited in them; from now
/// on with ours.
fn report(process: &mut Process, id: SocketId, registered: Vec<Registered>) {
    for (set, descriptor, events, data) in registered {
        let epoll = process.sets[set].descriptor;
        let _ = sys::epoll_control(epoll, libc::EPOLL_CTL_DEL, descriptor, core::ptr::null());
        let _ = process.stack.unwatch(set, id, descriptor);
        let event = listener_event(id, events);
        if sys::epoll_control(epoll, libc::EPOLL_CTL_ADD, descriptor, &raw const event).is_ok() {
            let _ = process.stack.watch(set, id, descriptor, events, data, false);
            process.sets[set].entered = true;
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
            let epoll = process.sets[set].descriptor;
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

/// How the kernel's socket of a listener, or of a UDP socket, is watched for the program: one-shot is up to us, and so is
/// whether there is room to send.
pub(crate) fn listener_event(id: SocketId, events: u32) -> libc::epoll_event {
    libc::epoll_event {
        events: events & !(bits::ONESHOT | bits::OUT | bits::WRNORM),
        u64: private_listener(id),
    }
}

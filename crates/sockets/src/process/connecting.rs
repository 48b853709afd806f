//! Active opens: whose they are, from which port they leave, and by which way.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use overfly_broker::{Error, Protocol, Route, anywhere};
use overfly_profile::rules::Direction;
use overfly_wire::MacAddr;
use rustix::io::Errno;

use super::kept::Need;
use super::ports::{LOOKS, SharedPort, SharedPorts};
use super::session::Session;
use super::{Process, has_addresses_of_its_own};
use crate::kernel::{self, now};
use crate::memory::Source;
use crate::socket::{Side, SocketId, SocketState, canonical};
use crate::stack::{TIME_WAIT, TIME_WAIT_LEAST};
use crate::statistics::{Refused, Why};
use crate::{allocate, sys};

impl Process {
    /// Begins an active open. `Ok(None)`: the kernel can do this one better. Else how much of `data` goes with the SYN or right
    /// behind it, which needs TCP Fast Open.
    pub(crate) fn connect(
        &mut self,
        id: SocketId,
        descriptor: i32,
        remote: SocketAddr,
        data: Option<Source<'_>>,
    ) -> Result<Option<usize>, Errno> {
        if !self.begin_connecting(id, descriptor, remote)? {
            return Ok(None);
        }
        let written = data.map_or(0, |data| self.stack.open_with_data(id, data.pieces(0)));
        self.transmit();
        Ok(Some(written))
    }

    pub(super) fn begin_connecting(
        &mut self,
        id: SocketId,
        descriptor: i32,
        remote: SocketAddr,
    ) -> Result<bool, Errno> {
        let ip = remote.ip().to_canonical();
        if ip.is_unspecified() {
            return Ok(self.left(Why::Loopback));
        }
        let socket = self.stack.socket(id);
        if socket.wants_kernel_at_once() || socket.shared {
            return Ok(self.left(if socket.shared { Why::Shared } else { Why::SocketOption }));
        }
        if !self.rules.accelerate(Direction::Connect, remote) {
            return Ok(self.left(Why::Rule));
        }
        if ip == IpAddr::V4(Ipv4Addr::BROADCAST) || ip.is_multicast() || remote.port() == 0 {
            return Ok(self.left(Why::OtherAddress));
        }
        // Where they are no kernel's, only the stack knows which addresses are the program's own.
        if has_addresses_of_its_own() && !ip.is_loopback() {
            self.start();
        }
        if self.is_of_host(ip) && !self.is_across(ip) {
            let begun = self.connect_within_host(id, descriptor, canonical(remote))?;
            return if begun || self.kernel_reaches(ip) { Ok(begun) } else { Err(Errno::CONNREFUSED) };
        }
        if !self.start() || allocate::is_short() {
            return Ok(self.left(Why::NoStack));
        }
        let tied = self.stack.socket(id).customized && self.is_tied_elsewhere(descriptor);
        if self.session.is_own(ip) || self.is_elsewhere(remote) || tied {
            return Ok(self.left(Why::OtherAddress));
        }
        let remote = canonical(remote);
        let bound = kernel::local_address(descriptor).ok_or(Errno::INVAL)?;
        if !self.is_accelerated_address(bound) {
            return Ok(self.left(Why::OtherAddress));
        }
        let from = bound.ip().to_canonical();
        if !from.is_unspecified() && from.is_ipv4() != remote.is_ipv4() {
            return Ok(self.left(Why::OtherAddress));
        }
        let (port, holder) = self.local_port(id, descriptor, bound, remote)?;
        let local = if from.is_unspecified() { anywhere(remote, port) } else { SocketAddr::new(from, port) };
        if self.session.client.is_none() {
            return Ok(false);
        }
        let shared = holder != descriptor && from.is_unspecified();
        let route = match self.granted(local, remote, holder, shared) {
            Ok(route) => route,
            Err(error) => {
                self.statistics.connects_refused += 1;
                return Ok(self.left(Refused::new(error).why));
            }
        };
        let local = SocketAddr::new(if from.is_unspecified() { route.source } else { from }, port);
        if !self.begin(Side::Network, id, descriptor, (local, remote), route.next_hop) {
            if let Some(kept) = &mut self.session.kept {
                kept.forget((port, remote));
            }
            if let Some(client) = &mut self.session.client {
                let _ = client.disconnect_flow(Protocol::Tcp, port, remote);
            }
            return Ok(self.left(Why::Refused));
        }
        self.stack.socket_mut(id).at_any = holder != descriptor;
        Ok(true)
    }

    /// The way of a connection whose frames the broker steers here: from a port that connections share perhaps as before.
    fn granted(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        holder: i32,
        shared: bool,
    ) -> Result<Route, Error> {
        let ends = (local.port(), remote);
        let changes = if shared { self.stack.changes() } else { None };
        let Session { client, kept, .. } = &mut self.session;
        let client = client.as_mut().ok_or(Error::Gone { operation: "connect", errno: None })?;
        let now = now();
        if let Some(changes) = changes {
            match kept.get_or_insert_default().take_up(now, ends, changes) {
                Need::Nothing(route) => return Ok(route),
                Need::Anew => client.disconnect_flow(Protocol::Tcp, ends.0, remote)?,
                Need::Asking => {}
            }
        }
        let route = client.connect_flow_as(kernel::borrow(holder), Protocol::Tcp, local, remote)?;
        if let (Some(changes), Some(kept)) = (changes, kept) {
            kept.granted(now, ends, changes, route);
        }
        Ok(route)
    }

    /// The port that an active open leaves from: the socket's own, one that others share, or a fresh one; and the descriptor of
    /// the kernel's socket that has it.
    pub(super) fn local_port(
        &mut self,
        id: SocketId,
        descriptor: i32,
        bound: SocketAddr,
        remote: SocketAddr,
    ) -> Result<(u16, i32), Errno> {
        if bound.port() != 0 {
            return Ok((bound.port(), descriptor));
        }
        // The program may say which ports are good for a socket.
        if self.stack.socket(id).customized && kernel::has_port_range(descriptor) {
            return Self::port_of_its_own(descriptor, bound);
        }
        let from = bound.ip().to_canonical();
        let own = self.session.interface.as_ref().and_then(|interface| {
            interface.addresses.iter().map(|&(own, _)| own).find(|own| own.is_ipv4() == remote.is_ipv4())
        });
        let Self { stack, shared_ports, options, session: Session { kept, .. }, .. } = self;
        let now = now();
        let reuse = options.tcp_shared_local_ports_reuse_fast != 0;
        let source = if from.is_unspecified() { own } else { Some(from) };
        let is_free = |port, must| {
            let after = (!reuse).then_some(if must { TIME_WAIT_LEAST } else { TIME_WAIT });
            source.is_some_and(|source| stack.is_free(now, SocketAddr::new(source, port), remote, after))
        };
        let kept = kept.as_deref().filter(|_| from.is_unspecified());
        let used_before = |ports: &SharedPorts, must| {
            let port = kept?.next_ports(now, remote, must).take(LOOKS).find(|&port| is_free(port, must))?;
            Some(SharedPort::Chosen(port, ports.holder(anywhere(remote, port))?))
        };
        // Ends that were granted, then new ones, then those that should rest.
        let shared = used_before(shared_ports, reuse).unwrap_or_else(|| {
            let rests = |port| kept.is_some_and(|kept| kept.rests(now, (port, remote)));
            let is_fresh = |port| is_free(port, false) && !rests(port);
            match shared_ports.choose(options, from, remote.is_ipv4(), is_fresh) {
                SharedPort::Exhausted => used_before(shared_ports, true).unwrap_or(SharedPort::Exhausted),
                chosen => chosen,
            }
        });
        match shared {
            SharedPort::Chosen(port, holder) => {
                self.statistics.shared_port_connects += 1;
                return Ok((port, holder));
            }
            SharedPort::Exhausted if self.options.tcp_shared_local_ports_no_fallback != 0 => {
                return Err(Errno::ADDRNOTAVAIL);
            }
            SharedPort::Exhausted | SharedPort::NotMeant => {}
        }
        Self::port_of_its_own(descriptor, bound)
    }

    fn port_of_its_own(descriptor: i32, bound: SocketAddr) -> Result<(u16, i32), Errno> {
        kernel::bind_any_port(descriptor, bound)?;
        Ok((kernel::local_address(descriptor).ok_or(Errno::INVAL)?.port(), descriptor))
    }

    /// Begins a socket's active open between two ends: it is the stack's from now on. False if the engine refuses it.
    pub(super) fn begin(
        &mut self,
        side: Side,
        id: SocketId,
        descriptor: i32,
        (local, remote): (SocketAddr, SocketAddr),
        next_hop: MacAddr,
    ) -> bool {
        // A socket that was connected before has its options, and O_NONBLOCK, here.
        let again = self.stack.socket(id).state == SocketState::Ended;
        let settings = if again { self.stack.socket(id).settings } else { self.settings(id, descriptor) };
        if self.stack.connect(now(), side, id, local, remote, next_hop, settings).is_err() {
            self.statistics.connects_refused += 1;
            return false;
        }
        // What watched the kernel's socket in a set watches the stack's from now on.
        let mut registered = Vec::new();
        self.stack.interests(id, |set, descriptor, _, _| registered.push((set, descriptor)));
        for (set, descriptor) in registered {
            let _ = sys::epoll_control(
                self.sets[set].descriptor,
                libc::EPOLL_CTL_DEL,
                descriptor,
                core::ptr::null(),
            );
        }
        let close_on_exec = kernel::is_close_on_exec(descriptor);
        let nonblocking =
            if again { self.stack.socket(id).nonblocking } else { kernel::is_nonblocking(descriptor) };
        let socket = self.stack.socket_mut(id);
        socket.nonblocking = nonblocking;
        socket.close_on_exec = close_on_exec;
        true
    }
}

//! Listeners: where they are joined, what waits in their queues, who accepts it, and what leaves with them.

use core::net::SocketAddr;

use overfly_engine::Error;
use overfly_link::Link;

use super::Stack;
use super::settings;
use crate::interest::{NONE, SetId, bits};
use crate::socket::{Arrival, Settings, Side, SocketId, SocketState};
use crate::socket_table::Port;

impl<T: Link> Stack<T> {
    /// listen(): the socket becomes a listener, in the kernel until [`Stack::join`].
    pub fn listening(&mut self, id: SocketId, backlog: u32) {
        let socket = self.sockets.at_mut(id);
        socket.state = SocketState::Listening;
        socket.listening.get_or_insert_default().backlog = backlog;
    }

    /// The kernel's socket listens no more, and this process has parted.
    pub(crate) fn stopped_listening(&mut self, id: SocketId) {
        let socket = self.sockets.at_mut(id);
        socket.state = SocketState::Candidate;
        socket.listening = None;
    }

    /// This process takes connections for the listener at `local` from now on; a listener for both families joins twice on
    /// each side. Returns whether it is the first for this address and port, so that others must be told.
    pub fn join(&mut self, side: Side, id: SocketId, local: SocketAddr) -> Result<bool, Error> {
        let Some(interface) = &mut self.interfaces[side.index()] else { return Ok(false) };
        let Some(backlog) = self.sockets.at(id).listening.as_ref().map(|listening| listening.backlog) else {
            return Ok(false);
        };
        let first = match self.sockets.ports.iter_mut().find(|port| (port.side, port.local) == (side, local))
        {
            Some(port) => {
                port.members.push(id);
                port.members.len() == 1
            }
            None => {
                let listener =
                    settings::listen(&mut interface.engine, local, backlog, &self.sockets.at(id).settings)?;
                self.sockets.ports.push(Port::new(side, local, listener, id));
                true
            }
        };
        if let Some(listening) = &mut self.sockets.at_mut(id).listening
            && !listening.joined.contains(&local)
        {
            listening.joined.push(local);
        }
        Ok(first)
    }

    /// Whether this process has joined the listener.
    #[must_use]
    pub fn has_joined(&self, id: SocketId) -> bool {
        self.sockets.at(id).listening.as_ref().is_some_and(|listening| !listening.joined.is_empty())
    }

    /// Whether it has on that side.
    pub(crate) fn is_member(&self, side: Side, id: SocketId) -> bool {
        self.sockets.ports.iter().any(|port| port.side == side && port.members.contains(&id))
    }

    /// Where a listener has joined.
    pub(crate) fn joined(&self, id: SocketId) -> Vec<SocketAddr> {
        self.sockets.at(id).listening.as_ref().map_or_else(Vec::new, |listening| listening.joined.clone())
    }

    /// Whether any listener has joined.
    #[must_use]
    pub fn is_listening(&self) -> bool {
        !self.sockets.ports.is_empty()
    }

    /// Connections under way to the listeners that have joined, and those that wait there.
    pub(crate) fn pending(&self) -> u32 {
        let pending = |port: &Port| {
            self.interface(port.side).map_or(0, |interface| interface.engine.pending(port.listener))
        };
        self.sockets.ports.iter().map(pending).sum()
    }

    /// Whether connections wait at the listener, or their handshakes are under way.
    pub(crate) fn has_pending(&self, id: SocketId) -> bool {
        let waits = self.sockets.at(id).listening.as_ref().is_some_and(|its| its.has_connections());
        let pending = |port: &Port| {
            self.interface(port.side).is_some_and(|interface| interface.engine.pending(port.listener) > 0)
        };
        waits || self.sockets.ports.iter().any(|port| port.members.contains(&id) && pending(port))
    }

    /// Whether a set watches a listener that has joined. Of many listeners not each is asked.
    pub(crate) fn set_accepts(&self, set: SetId) -> bool {
        const MANY: usize = 16;
        if self.sockets.ports.len() > MANY {
            return true;
        }
        let mut members = self.sockets.ports.iter().flat_map(|port| &port.members);
        members.any(|&id| {
            let mut watches = false;
            self.interests(id, |its, _, events, _| watches |= its == set && events & bits::IN != 0);
            watches
        })
    }

    /// Addresses and ports where a listener has joined and is the only one: others must be told before it parts.
    pub fn last_member_at(&self, side: Side, id: SocketId) -> impl Iterator<Item = SocketAddr> {
        self.sockets
            .ports
            .iter()
            .filter(move |port| port.side == side && port.members == [id])
            .map(|port| port.local)
    }

    /// This process takes no more connections for the listener. Those that wait to be accepted are for its other sockets at
    /// the address, and else for [`Stack::leaving`]; so are those whose handshake is under way.
    pub fn part(&mut self, id: SocketId) {
        self.sockets.promote_all(id);
        let Some(listening) = &mut self.sockets.at_mut(id).listening else { return };
        let joined = core::mem::take(&mut listening.joined);
        let waiting = core::mem::take(&mut listening.queue);
        listening.dead = 0;
        for port in &mut self.sockets.ports {
            port.members.retain(|&member| member != id);
        }
        for queued in waiting {
            let (Some(flow), side) = (self.sockets.at(queued).flow, self.sockets.at(queued).side) else {
                self.sockets.release(queued);
                continue;
            };
            let is_v4 = self.interface(side).is_none_or(|interface| interface.engine.tuple(flow).0.is_ipv4());
            let Some(&local) = joined.iter().find(|local| local.is_ipv4() == is_v4) else { continue };
            let port = self.sockets.ports.iter_mut().find(|port| (port.side, port.local) == (side, local));
            match port.and_then(Port::next_member) {
                Some(other) => self.sockets.queue(queued, other),
                None => {
                    self.sockets.at_mut(queued).listener = SocketId(NONE);
                    self.sockets.leaving.push((queued, local));
                }
            }
        }
        self.close_ports();
    }

    /// Listeners that have left close when their last handshake is done. Returns whether one is still open.
    pub(crate) fn close_ports(&mut self) -> bool {
        let mut any = false;
        self.sockets.ports.retain(|port| {
            let Some(interface) = &mut self.interfaces[port.side.index()] else { return false };
            let left = port.members.is_empty();
            let done = left && interface.engine.half_open(port.listener) == 0;
            if done {
                interface.engine.close_listener(port.listener);
            }
            any |= left && !done;
            !done
        });
        any
    }

    /// Connections to listeners that have left, with where those were: for whoever listens there now.
    pub(crate) fn leaving(&mut self) -> Vec<(SocketId, SocketAddr)> {
        core::mem::take(&mut self.sockets.leaving)
    }

    /// Whether a listener has left and not everything that it began is done.
    pub(crate) fn is_leaving(&self) -> bool {
        !self.sockets.leaving.is_empty() || self.sockets.ports.iter().any(|port| port.members.is_empty())
    }

    /// Nobody will have the connection: it is reset.
    pub(crate) fn abandon(&mut self, id: SocketId) {
        let socket = self.sockets.at_mut(id);
        socket.queued = false;
        match (socket.flow, &mut self.interfaces[socket.side.index()]) {
            (Some(flow), Some(interface)) => interface.engine.abort(flow),
            _ => self.sockets.release(id),
        }
    }

    /// The socket tries no longer to connect, and is forgotten: whoever answers is refused.
    pub(crate) fn withdraw(&mut self, id: SocketId) {
        let socket = self.sockets.at(id);
        if let (Some(flow), Some(interface)) = (socket.flow, &mut self.interfaces[socket.side.index()]) {
            interface.engine.abort(flow);
            let side = socket.side;
            self.sockets.unbind_flow(side, flow);
        }
        self.sockets.drop_interests(id);
        self.sockets.release(id);
        self.sockets.news = true;
    }

    /// Another process gave a connection to whoever listens at `local`. False if nobody does.
    pub(crate) fn arrive(&mut self, local: SocketAddr, arrival: Arrival) -> bool {
        let port = self.sockets.ports.iter_mut().find(|port| port.local == local);
        let Some(member) = port.and_then(Port::next_member) else { return false };
        if let Some(listening) = &mut self.sockets.at_mut(member).listening {
            listening.arrivals.push_back(arrival);
        }
        self.sockets.wake(member, bits::IN | bits::RDNORM);
        true
    }

    /// Connections that came from other processes are not for this one: `each` is given their descriptors.
    pub(crate) fn drop_arrivals(&mut self, mut each: impl FnMut(i32)) {
        for id in self.sockets.ids() {
            if let Some(listening) = &mut self.sockets.at_mut(id).listening {
                listening.arrivals.drain(..).for_each(|arrival| each(arrival.descriptor));
            }
        }
    }

    /// A connection that waits at a listener is the kernel's now: it still waits there. False if the listener has gone.
    pub(crate) fn replace_queued(&mut self, id: SocketId, arrival: Arrival) -> bool {
        let socket = self.sockets.at_mut(id);
        let listener = socket.listener;
        socket.queued = false;
        self.sockets.leaving.retain(|&(leaving, _)| leaving != id);
        if listener == SocketId(NONE) {
            return false;
        }
        let Some(listening) = &mut self.sockets.at_mut(listener).listening else { return false };
        listening.queue.retain(|&queued| queued != id);
        listening.arrivals.push_back(arrival);
        self.sockets.wake(listener, bits::IN | bits::RDNORM);
        true
    }

    /// The oldest connection that came from another process.
    pub(crate) fn take_arrival(&mut self, listener: SocketId) -> Option<Arrival> {
        self.sockets.at_mut(listener).listening.as_mut()?.arrivals.pop_front()
    }

    /// One that nobody else has taken is the oldest again.
    pub(crate) fn return_arrival(&mut self, listener: SocketId, arrival: Arrival) {
        if let Some(listening) = &mut self.sockets.at_mut(listener).listening {
            listening.arrivals.push_front(arrival);
        }
    }

    /// A connection that waited at the listener is another process's.
    pub(crate) fn unqueue(&mut self, listener: SocketId, id: SocketId) {
        if let Some(listening) = &mut self.sockets.at_mut(listener).listening {
            listening.queue.retain(|&queued| queued != id);
        }
    }

    /// Whether [`Stack::accept`] may have something.
    #[must_use]
    pub fn can_accept(&self, id: SocketId) -> bool {
        self.sockets.at(id).listening.as_ref().is_some_and(|listening| !listening.queue.is_empty())
    }

    /// The oldest connection that waits at the listener, now held by `descriptor`.
    pub fn accept(&mut self, listener: SocketId, descriptor: i32, nonblocking: bool) -> Option<SocketId> {
        let listening = self.sockets.at_mut(listener).listening.as_mut()?;
        let id = listening.queue.pop_front()?;
        let at_any = listening.joined.iter().any(|joined| joined.ip().is_unspecified());
        self.accepts += 1;
        let socket = self.sockets.at_mut(id);
        socket.at_any = at_any;
        socket.queued = false;
        socket.references = 1;
        socket.descriptor = descriptor;
        socket.nonblocking = nonblocking;
        socket.forks = self.forks;
        if let (Some(flow), Some(interface)) = (socket.flow, &mut self.interfaces[socket.side.index()]) {
            (socket.local, socket.remote) = interface.engine.tuple(flow);
            interface.engine.accepted(flow);
            let settings = socket.settings;
            self.accepts_within_host += u64::from(socket.side == Side::Loopback);
            self.settle(id, &Settings::DEFAULT, settings);
        } else if let Some(listening) = &mut self.sockets.at_mut(listener).listening {
            // It was reset meanwhile. The program gets it, and what had come (inet_csk_accept() in Linux).
            listening.dead = listening.dead.saturating_sub(1);
        }
        Some(id)
    }

    /// Listeners that the program holds.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = SocketId> {
        self.sockets.ids().filter(|&id| self.sockets.at(id).state == SocketState::Listening)
    }

    /// A listener's descriptor at that address, of either side.
    pub(crate) fn listener_at(&self, local: SocketAddr) -> Option<i32> {
        let covers = |at: SocketAddr| {
            at.port() == local.port()
                && (at.ip() == local.ip() || at.ip().is_unspecified() && at.is_ipv4() == local.is_ipv4())
        };
        let port = self.sockets.ports.iter().find(|port| covers(port.local) && !port.members.is_empty())?;
        port.members.first().map(|&member| self.sockets.at(member).descriptor)
    }
}

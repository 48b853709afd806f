//! A network that goes, with its broker, and comes back: what becomes of the sockets that it carried.

use core::net::SocketAddr;

use overfly_engine::{Event, Failure, FlowId, Instant, Owner};

use super::Stack;
use super::settings::listen;
use crate::interest::NONE;
use crate::owner::EngineOwner;
use crate::socket::{Side, SocketId, SocketState};
use overfly_link::Link;

impl<T: Link> Stack<T> {
    /// Where listeners have joined on a side, each with one of them.
    pub(crate) fn places(&self, side: Side) -> Vec<(SocketAddr, SocketId)> {
        let ports = self.sockets.ports.iter().filter(|port| port.side == side);
        ports.filter_map(|port| Some((port.local, *port.members.first()?))).collect()
    }

    /// Handshakes that are under way to listeners on the network.
    pub(crate) fn handshakes(&self) -> u32 {
        let Some(interface) = self.interface(Side::Network) else { return 0 };
        let ports = self.sockets.ports.iter().filter(|port| port.side == Side::Network);
        ports.map(|port| interface.engine.half_open(port.listener)).sum()
    }

    /// Connections that wait for data before they may be accepted wait no more.
    pub(crate) fn promote_deferred(&mut self) {
        let listeners: Vec<_> = self.listeners().collect();
        listeners.into_iter().for_each(|id| self.sockets.promote_all(id));
    }

    /// Connections of the network's that the program has; those that it has not accepted yet; and those that it has closed, but not
    /// everything of theirs is delivered.
    pub(crate) fn held(&self) -> Vec<SocketId> {
        self.on_network(|socket| socket.references > 0)
    }

    /// See [`Stack::held`].
    pub(crate) fn unaccepted(&self) -> Vec<SocketId> {
        self.on_network(|socket| socket.queued && socket.listener != SocketId(NONE))
    }

    /// See [`Stack::held`].
    pub(crate) fn orphans(&self) -> Vec<SocketId> {
        self.on_network(crate::socket::Socket::is_orphan)
    }

    fn on_network(&self, is_one: impl Fn(&crate::socket::Socket) -> bool) -> Vec<SocketId> {
        let carried = |id: &SocketId| {
            let socket = self.sockets.at(*id);
            socket.flow.is_some() && socket.side == Side::Network && is_one(socket)
        };
        self.sockets.ids().filter(carried).collect()
    }

    /// Connections of the network's that are here still end now, as by a reset that has come for those that were not over. Their peers are
    /// told if nobody else will: `tells`.
    pub(crate) fn lose_network(&mut self, now: Instant, tells: bool) {
        for id in self.on_network(|_| true) {
            let (over, flow) = (self.is_over(id), self.sockets.at(id).flow);
            let Some(flow) = flow.filter(|_| self.interface(Side::Network).is_some()) else { continue };
            let mut told = tells && self.renounce(now, flow);
            if tells && !told {
                self.send_all(now);
                told = self.renounce(now, flow);
            }
            if !told && let Some(interface) = &mut self.interfaces[Side::Network.index()] {
                interface.engine.forget(flow);
            }
            let mut owner = EngineOwner { sockets: &mut self.sockets, side: Side::Network, now };
            if !over {
                owner.event(flow, Event::Failed(Failure::Reset));
            }
            owner.event(flow, Event::Released);
        }
        if tells {
            self.send_all(now);
        }
    }

    fn renounce(&mut self, now: Instant, flow: FlowId) -> bool {
        self.interfaces[Side::Network.index()]
            .as_mut()
            .is_some_and(|interface| interface.engine.renounce(now, flow))
    }

    /// What is due leaves the link at once, too.
    fn send_all(&mut self, now: Instant) {
        self.transmit(now);
        if let Some(interface) = &mut self.interfaces[Side::Network.index()] {
            interface.transport.flush();
        }
    }

    /// Another transport carries the network from now on. Returns the one before.
    pub(crate) fn replace_network(&mut self, transport: T) -> Option<T> {
        let interface = self.interfaces[Side::Network.index()].as_mut()?;
        Some(core::mem::replace(&mut interface.transport, transport))
    }

    /// The network has a new engine: listeners and UDP sockets have their places there.
    pub(crate) fn move_in(&mut self) {
        let Self { sockets, interfaces, .. } = self;
        let Some(interface) = &mut interfaces[Side::Network.index()] else { return };
        let mut ports = core::mem::take(&mut sockets.ports);
        ports.retain_mut(|port| {
            if port.side != Side::Network {
                return true;
            }
            let Some(&member) = port.members.first() else { return false };
            let socket = sockets.at(member);
            let backlog = socket.listening.as_ref().map_or(0, |listening| listening.backlog);
            let listener = listen(&mut interface.engine, port.local, backlog, &socket.settings);
            listener.map(|listener| port.listener = listener).is_ok()
        });
        sockets.ports = ports;
        sockets.datagrams.forget();
        for id in self.datagram_sockets() {
            self.move_datagram(id);
        }
    }

    /// UDP sockets whose datagrams come to the stack.
    pub(crate) fn datagram_sockets(&self) -> Vec<SocketId> {
        let placed = |&id: &SocketId| {
            self.sockets.at(id).state == SocketState::Datagram
                && self.datagrams(id).is_some_and(|its| !its.places.is_empty())
        };
        self.sockets.ids().filter(placed).collect()
    }
}

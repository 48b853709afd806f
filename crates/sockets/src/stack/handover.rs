//! Connections that the kernel takes over: what it must know of them, and their end here.

use core::net::SocketAddr;

use overfly_broker::connection::{Connection, flags};
use overfly_engine::{FlowId, Handover, Instant, SentFin};
use rustix::io::Errno;

use super::Stack;
use crate::socket::{Side, Socket, SocketId, SocketState};
use overfly_link::Link;

impl<T: Link> Stack<T> {
    /// What whoever goes on with a connection must know, and the socket with its bytes. `None` if it cannot be moved now.
    pub(crate) fn export(&self, now: Instant, id: SocketId) -> Option<(Connection, &Socket)> {
        let socket = self.sockets.at(id);
        let (SocketState::Connected, Some(flow), Some(interface)) =
            (socket.state, socket.flow, self.interface(socket.side))
        else {
            return None;
        };
        let handover = interface.engine.export(now, flow)?;
        let unread = u32::try_from(socket.receive.len()).ok()?;
        Some((describe(&handover, socket.passive, unread)?, socket))
    }

    /// Connections of the network's that were closed here, and of which the kernel has only to hear that their peers close them, too.
    pub(crate) fn half_closed(&self, now: Instant) -> Vec<(FlowId, Connection)> {
        let Some(interface) = self.interface(Side::Network) else { return Vec::new() };
        let flows = interface.engine.half_closed(now).into_iter();
        // Whoever binds the port later is not to be hindered.
        flows.filter_map(|(flow, handover)| Some((flow, describe(&handover, true, 0)?))).collect()
    }

    /// See [`Stack::half_closed`]: the kernel has it.
    pub(crate) fn forget_half_closed(&mut self, flow: FlowId) {
        if let Some(interface) = &mut self.interfaces[Side::Network.index()] {
            interface.engine.forget(flow);
        }
    }

    /// As [`Stack::export`], of a connection that is over: only what was not read yet is left of it, and the error. The peer's address
    /// is this host's, so that nobody else hears of it.
    pub(crate) fn export_ended(&self, id: SocketId) -> Option<(Connection, &Socket)> {
        const PAYLOAD: u16 = 1460;
        const WINDOW: u32 = 65_535;
        let socket = self.sockets.at(id);
        let has_been = matches!(socket.state, SocketState::Connected | SocketState::Ended);
        if !has_been || !self.is_over(id) {
            return None;
        }
        let remote = match socket.side {
            Side::Network => SocketAddr::new(socket.local.ip(), socket.remote.port()),
            Side::Loopback => socket.remote,
        };
        let passive = if socket.passive { flags::PASSIVE } else { 0 };
        // A reset after the peer's FIN is EPIPE (tcp_reset() in Linux, net/ipv4/tcp_input.c).
        let fin = if socket.error == Some(Errno::PIPE) { flags::FIN_RECEIVED } else { 0 };
        let unread = u32::try_from(socket.receive.len()).ok()?;
        let connection = Connection {
            mss: PAYLOAD,
            receive_next: unread,
            send_window: WINDOW,
            receive_window: WINDOW,
            flags: passive | fin | flags::RESET,
            unread,
            ..Connection::between(socket.local, remote)
        };
        Some((connection, socket))
    }

    /// Whether a listener has joined at `local`, and no connection that another process gave waits there.
    pub(crate) fn expects_arrivals(&self, local: SocketAddr) -> bool {
        let mut ports = self.sockets.ports.iter().filter(|port| port.local == local).peekable();
        let is_empty = |&id: &SocketId| {
            self.sockets.at(id).listening.as_ref().is_some_and(|listening| listening.arrivals.is_empty())
        };
        ports.peek().is_some() && ports.flat_map(|port| &port.members).all(is_empty)
    }

    /// A connection of the kernel's that waits at one of a side's listeners: the listener, and where that joined.
    pub(crate) fn waiting_arrival(&self, side: Side) -> Option<(SocketId, SocketAddr)> {
        let ports = self.sockets.ports.iter().filter(move |port| port.side == side);
        let mut members = ports.flat_map(|port| port.members.iter().map(move |&member| (member, port.local)));
        members.find(|&(member, local)| {
            let listening = self.sockets.at(member).listening.as_ref();
            let oldest = listening.and_then(|listening| listening.arrivals.front());
            oldest.is_some_and(|arrival| arrival.remote.is_ipv4() == local.is_ipv4())
        })
    }

    /// The connection of a side that has waited longest at one of the listeners: the listener, its socket, and where the listener
    /// joined.
    pub(crate) fn oldest_queued(&self, side: Side) -> Option<(SocketId, SocketId, SocketAddr)> {
        let ports = self.sockets.ports.iter().filter(move |port| port.side == side);
        let mut members = ports.flat_map(|port| port.members.iter().map(move |&member| (member, port)));
        members.find_map(|(member, port)| {
            let queue = &self.sockets.at(member).listening.as_ref()?.queue;
            let is_here = |&&id: &&SocketId| {
                let flow = self.sockets.at(id).flow.filter(|_| self.sockets.at(id).side == side);
                let ends =
                    flow.zip(self.interface(side)).map(|(flow, interface)| interface.engine.tuple(flow));
                ends.is_some_and(|(local, _)| local.is_ipv4() == port.local.is_ipv4())
            };
            queue.iter().find(is_here).map(|&id| (member, id, port.local))
        })
    }

    /// Somebody else goes on with the connection: the stack forgets it, and what watches it.
    pub(crate) fn depart(&mut self, id: SocketId) {
        let socket = self.sockets.at(id);
        if let (Some(flow), Some(interface)) = (socket.flow, &mut self.interfaces[socket.side.index()]) {
            interface.engine.forget(flow);
            let side = socket.side;
            self.sockets.unbind_flow(side, flow);
        }
        self.sockets.drop_interests(id);
        self.sockets.release(id);
        // Whoever sleeps looks again at what its descriptors are.
        self.sockets.news = true;
    }
}

fn describe(handover: &Handover, passive: bool, unread: u32) -> Option<Connection> {
    let (send_shift, receive_shift) = handover.window_shift.unwrap_or((0, 0));
    let mut is = 0;
    for (condition, flag) in [
        (handover.sack, flags::SACK),
        (handover.timestamp.is_some(), flags::TIMESTAMPS),
        (passive, flags::PASSIVE),
        (handover.sent_fin == SentFin::Wanted, flags::FIN_WANTED),
        (handover.sent_fin == SentFin::Sent, flags::FIN_SENT),
        (handover.sent_fin == SentFin::Acknowledged, flags::FIN_ACKNOWLEDGED),
        (handover.received_fin, flags::FIN_RECEIVED),
    ] {
        is |= if condition { flag } else { 0 };
    }
    Some(Connection {
        mss: handover.mss,
        send_shift,
        receive_shift,
        send_una: handover.send_una,
        send_window: handover.send_window,
        send_window_max: handover.send_window_max,
        window_sequence: handover.window_sequence,
        receive_next: handover.receive_next,
        receive_window: handover.receive_window,
        timestamp: handover.timestamp.unwrap_or(0),
        flags: is,
        unread,
        sent: handover.sent,
        unsent: u32::try_from(handover.unsent).ok()?,
        ..Connection::between(handover.local, handover.remote)
    })
}

//! Sockets end: their last descriptor is closed, and what was written is delivered all the same.

use core::time::Duration;

use overfly_link::Link;
use rustix::io::Errno;

use super::{Closed, Stack};
use crate::socket::{Side, Socket, SocketId, SocketState};

impl<T: Link> Stack<T> {
    /// One more descriptor of the same socket.
    pub fn duplicate(&mut self, id: SocketId) {
        self.sockets.at_mut(id).references += 1;
    }

    /// close() of one of the socket's descriptors.
    pub fn close(&mut self, id: SocketId) -> Closed {
        let socket = self.sockets.at_mut(id);
        socket.references = socket.references.saturating_sub(1);
        if socket.references > 0 {
            return Closed::StillOpen;
        }
        self.sockets.drop_interests(id);
        if self.sockets.at(id).holders > 0 {
            self.sockets.at_mut(id).descriptor = -1;
            return Closed::Done;
        }
        self.end(id)
    }

    /// A call that waits keeps the socket. Returns which one it is, of those that have had its number.
    pub(crate) fn hold(&mut self, id: SocketId) -> u32 {
        let socket = self.sockets.at_mut(id);
        socket.holders += 1;
        socket.generation
    }

    /// Such a call is over. Returns whether the socket was closed by it.
    pub(crate) fn release_hold(&mut self, id: SocketId) -> bool {
        let socket = self.sockets.at_mut(id);
        socket.holders = socket.holders.saturating_sub(1);
        let ends = socket.holders == 0 && socket.references == 0;
        if ends {
            self.end(id);
        }
        ends
    }

    /// Nobody has the socket any more.
    pub(super) fn end(&mut self, id: SocketId) -> Closed {
        self.sockets.note(id);
        let socket = self.sockets.at_mut(id);
        let (Some(flow), Some(interface)) = (socket.flow, &mut self.interfaces[socket.side.index()]) else {
            let reusable = socket.passive && socket.state == SocketState::Ended;
            self.sockets.release(id);
            return if reusable { Closed::Reusable } else { Closed::Done };
        };
        let passive = socket.passive;
        // What was not read is lost: the engine tells the peer so (RFC 2525 section 2.17).
        if socket.settings.linger == Some(Duration::ZERO) {
            interface.engine.abort(flow);
        } else {
            interface.engine.close(flow);
        }
        if passive { Closed::Reusable } else { Closed::Held }
    }

    /// The process ends: closes every connection that the program still holds, as the kernel would.
    pub fn close_all(&mut self) {
        for id in self.sockets.ids() {
            let socket = self.sockets.at_mut(id);
            if socket.references + socket.holders > 0 && socket.flow.is_some() {
                (socket.references, socket.holders) = (1, 0);
                self.close(id);
            }
        }
    }

    /// Flows that were closed but still have data or a FIN to deliver.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        let unfinished = |socket: &Socket| {
            use overfly_engine::State::{CloseWait, Closing, Established, FinWait1, LastAck};
            let Some((flow, interface)) = socket.flow.zip(self.interface(socket.side)) else { return false };
            let info = interface.engine.info(flow);
            // What was sent within the host is there, whether or not the other program has looked yet.
            let on_its_way = if socket.side == Side::Loopback { info.flight as usize } else { 0 };
            match info.state {
                FinWait1 | Closing | LastAck => socket.side == Side::Network,
                Established | CloseWait => socket.send.len() > on_its_way || socket.is_orphan(),
                _ => false,
            }
        };
        self.sockets.ids().filter(|&id| unfinished(self.sockets.at(id))).count()
    }

    /// An active open has failed for a reason that no engine knows.
    pub(crate) fn fail(&mut self, id: SocketId, errno: Errno) {
        self.abandon(id);
        self.sockets.at_mut(id).error = Some(errno);
    }
}

//! Connections that go on in the stack of another context.

use core::net::SocketAddr;

use overfly_engine::Instant;
use overfly_link::Link;

use super::Stack;
use crate::interest::NONE;
use crate::socket::{Side, Socket, SocketId, SocketState};

/// A connection between two stacks: what the program has of it, and what the engine knows.
pub(crate) struct Moving {
    socket: Socket,
    flow: overfly_engine::Moving,
}

impl<T: Link> Stack<T> {
    /// Whether an accepted connection could go on in `other` now: it has one descriptor, nobody waits for it in a call, and nothing of it is
    /// to be told or done.
    pub(crate) fn may_move(&self, id: SocketId, other: &Self) -> bool {
        let socket = self.sockets.at(id);
        let (Some(flow), Some(here), Some(there)) =
            (socket.flow, self.interface(Side::Network), other.interface(Side::Network))
        else {
            return false;
        };
        socket.state == SocketState::Connected
            && socket.side == Side::Network
            && socket.passive
            && (socket.references, socket.holders) == (1, 0)
            && !(socket.awaited
                || socket.queued
                || socket.shared
                || socket.wants_kernel
                || socket.disconnected)
            && socket.later.is_none()
            && socket.error.is_none()
            && socket.reads_of_several.is_none()
            && socket.deferred_until.is_none()
            && here.engine.may_move(flow)
            && there.engine.has_room(&here.engine, flow)
    }

    /// Takes the connection out, without what watches it. `None`, and nothing happens, if the engine cannot let it go.
    pub(crate) fn take_out(&mut self, id: SocketId) -> Option<Box<Moving>> {
        let flow = self.sockets.at(id).flow?;
        let interface = self.interfaces[Side::Network.index()].as_mut()?;
        let moving = interface.engine.take_out(flow)?;
        self.sockets.unbind_flow(Side::Network, flow);
        self.sockets.drop_interests(id);
        let socket = core::mem::replace(self.sockets.at_mut(id), Socket::new());
        self.sockets.at_mut(id).generation = socket.generation.wrapping_add(1);
        self.sockets.vacate(id);
        // Whoever sleeps looks again at what its descriptors are.
        self.sockets.news = true;
        Some(Box::new(Moving { socket, flow: moving }))
    }

    /// The connection goes on here; `reserved` came from [`Stack::reserve`].
    ///
    /// # Errors
    /// The engine has no room for it: it comes back, and `reserved` is free again.
    pub(crate) fn put_in(
        &mut self,
        now: Instant,
        reserved: SocketId,
        moving: Box<Moving>,
    ) -> Result<(), Box<Moving>> {
        let Moving { socket, flow } = *moving;
        let outcome = match &mut self.interfaces[Side::Network.index()] {
            Some(interface) => interface.engine.put_in(now, flow),
            None => Err(flow),
        };
        match outcome {
            Ok(flow) => {
                let place = self.sockets.at_mut(reserved);
                let generation = place.generation;
                // No child of this process has it, or it would have stayed.
                let forks = self.forks;
                *place = Socket {
                    generation,
                    forks,
                    interests: NONE,
                    listener: SocketId(NONE),
                    flow: None,
                    ..socket
                };
                self.sockets.bind_flow(Side::Network, flow, reserved);
                Ok(())
            }
            Err(flow) => {
                self.sockets.release(reserved);
                Err(Box::new(Moving { socket, flow }))
            }
        }
    }

    /// A connection that was about to come has stayed where it was: frames of it that have come here are nobody's.
    pub(crate) fn stays_away(&mut self, local: SocketAddr, remote: SocketAddr) {
        if let Some(interface) = &mut self.interfaces[Side::Network.index()] {
            interface.engine.stays_away(local, remote);
        }
    }

    /// A place for a connection that is about to come. `None` without memory for it.
    pub(crate) fn reserve(&mut self) -> Option<SocketId> {
        self.sockets.open()
    }

    /// It does not come.
    pub(crate) fn unreserve(&mut self, id: SocketId) {
        self.sockets.release(id);
    }
}

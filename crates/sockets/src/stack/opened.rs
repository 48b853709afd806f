//! Active opens that are over: whoever keeps their ports and their frames can let go; and how one ends at once.

use core::net::SocketAddr;
use core::time::Duration;

use overfly_engine::{Engine, Instant, State};
use overfly_link::Link;
use rustix::io::Errno;

use super::Stack;
use crate::interest::bits;
use crate::socket::{self, Side, SocketId};
use crate::socket_table::AfterCallback;
use crate::told;

/// After so long ends in TIME-WAIT should have the next connection, if the last one had timestamps ([`Engine::has_waited`]), as with Linux's
/// tcp_tw_reuse: a second is the longest tick of their clocks (RFC 7323 section 5.4).
pub(crate) const TIME_WAIT: Duration = Duration::from_secs(1);
/// After so long they may, where there are no others: no clock that is known has ticks of more than 10 ms. A peer that has not heard the last
/// acknowledgment, and whose FIN has not come again, answers the SYN by a challenge, and the next one goes at once (RFC 9293 section 3.5.1).
/// Linux has tcp_tw_reuse_delay for it, of a millisecond or more.
pub(crate) const TIME_WAIT_LEAST: Duration = Duration::from_millis(50);

/// What the ends of a connection that is over are good for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndsAre {
    /// For another one.
    Free,
    /// For another one after [`TIME_WAIT`].
    InTimeWait,
    /// For none until that is over.
    LongInTimeWait,
    /// For the next one, which has begun already.
    Others,
}

impl<T: Link> Stack<T> {
    /// Another number each time that the broker has heard of a change, where it says ([`Link::changes`]).
    pub(crate) fn changes(&self) -> Option<u64> {
        self.interfaces[Side::Network.index()].as_ref()?.transport.changes()
    }

    /// Active opens that are over, with their ends, what these are good for now, and the backing descriptor that waited for it or -1. One
    /// that waits for its peer's FIN is not, though the engine has let go of its socket: the kernel would answer that FIN with RST.
    pub fn disconnected(
        &mut self,
        now: Instant,
        mut each: impl FnMut(Side, SocketAddr, SocketAddr, EndsAre, i32),
    ) {
        if self.sockets.after_callbacks.is_empty() {
            return;
        }
        let interfaces = &self.interfaces;
        self.sockets.after_callbacks.retain(|after| match *after {
            AfterCallback::Disconnected { side, local, remote, descriptor } => {
                let engine = interfaces[side.index()].as_ref().map(|interface| &interface.engine);
                let state = engine.and_then(|engine| engine.state_between(local, remote));
                let waits = |engine: &Engine| engine.has_waited(now, local, remote).is_some();
                let ends = match state {
                    Some(State::FinWait2) => return true,
                    None => EndsAre::Free,
                    Some(State::TimeWait) if engine.is_some_and(waits) => EndsAre::InTimeWait,
                    Some(State::TimeWait) => EndsAre::LongInTimeWait,
                    Some(_) => EndsAre::Others,
                };
                each(side, local, remote, ends, descriptor);
                false
            }
            AfterCallback::Abort(..) | AfterCallback::Push(_) => true,
        });
    }

    /// Local ports of connections that the program has opened through the interface and that are not over.
    pub(crate) fn ports_of_active_opens(&self) -> impl Iterator<Item = u16> {
        let open = self
            .sockets
            .ids()
            .map(|id| self.sockets.at(id))
            .filter(|socket| socket.flow.is_some() && !socket.passive && socket.side == Side::Network);
        let waiting = self.sockets.after_callbacks.iter().filter_map(|after| match after {
            AfterCallback::Disconnected { side: Side::Network, local, .. } => Some(local.port()),
            _ => None,
        });
        open.map(|socket| socket.local.port()).chain(waiting)
    }

    /// Connections that the program holds and that are over.
    pub(crate) fn over(&self) -> Vec<SocketId> {
        let is_one = |state| matches!(state, socket::SocketState::Connected | socket::SocketState::Ended);
        let over = |&id: &SocketId| is_one(self.sockets.at(id).state) && self.is_over(id);
        self.sockets.ids().filter(|&id| self.sockets.at(id).references > 0).filter(over).collect()
    }

    /// Sockets whose connections AF_UNSPEC, or a connect() that failed, has ended.
    pub(crate) fn dissolved(&self) -> Vec<SocketId> {
        let is_one = |id: &SocketId| {
            let socket = self.sockets.at(*id);
            socket.disconnected && socket.flow.is_none()
        };
        self.over().into_iter().filter(is_one).collect()
    }

    /// A fork is about to happen: the kernel's sockets of connections that are over will be the child's, too, and can serve no other
    /// connections. Those that have none yet will be both processes', listeners among them: what one of the two connects, the other one has
    /// as well. Returns those that are over.
    pub(crate) fn share_unconnected(&mut self) -> Vec<SocketId> {
        let over = self.over();
        if !over.is_empty() || self.connections().next().is_some() {
            told::prepare();
        }
        for &id in &over {
            let socket = self.sockets.at_mut(id);
            socket.customized = true;
            socket.share_end();
        }
        for id in self.sockets.ids() {
            let socket = self.sockets.at_mut(id);
            socket.shared |=
                matches!(socket.state, socket::SocketState::Candidate | socket::SocketState::Listening);
        }
        over
    }

    /// A connection that the program holds, between these ends, which is over.
    pub(crate) fn ended_between(&self, local: SocketAddr, remote: SocketAddr) -> Option<SocketId> {
        let mut over = self.over().into_iter();
        over.find(|&id| {
            let socket = self.sockets.at(id);
            // Of one that connect() to AF_UNSPEC has ended there is only what nobody has been told: it may be connected anew in the kernel.
            let told = socket.disconnected && socket.pending_error().is_none();
            (socket.local, socket.remote) == (local, remote) && !told
        })
    }

    /// An inherited connection is over: `describe` says how.
    pub(crate) fn has_ended(&mut self, id: SocketId, describe: impl FnOnce(&mut socket::Socket)) {
        let socket = self.sockets.at_mut(id);
        (socket.state, socket.shared, socket.customized) = (socket::SocketState::Ended, true, true);
        describe(socket);
        self.sockets.wake(
            id,
            bits::IN | bits::OUT | bits::ERR | bits::HUP | bits::RDHUP | bits::RDNORM | bits::WRNORM,
        );
    }

    /// Ends a connection at once, as connect() to AF_UNSPEC does; what was received and not read is gone. Returns whether
    /// there was one.
    pub(crate) fn disconnect(&mut self, now: Instant, id: SocketId) {
        let alive = !self.is_over(id);
        let socket = self.sockets.at(id);
        if let (Some(flow), Some(interface)) = (socket.flow, &mut self.interfaces[socket.side.index()]) {
            interface.engine.abort(flow);
            self.transmit(now);
        }
        let forgotten = self.sockets.at_mut(id);
        // Nobody reads it any more, in whatever process.
        forgotten.catch_up();
        forgotten.has_read(forgotten.receive.len());
        forgotten.begin_anew();
        forgotten.state = socket::SocketState::Ended;
        if let Some(dissolved) = forgotten.dissolved_by_several.take() {
            // From now on it is what the kernel's socket is, to whoever has it.
            forgotten.shared = true;
            dissolved.take();
        }
        if alive {
            (forgotten.error, forgotten.error_of_several) = (Some(Errno::CONNRESET), None);
        }
        forgotten.disconnected = true;
        self.sockets.wake(id, bits::OUT | bits::WRNORM | bits::ERR | bits::HUP);
    }
}

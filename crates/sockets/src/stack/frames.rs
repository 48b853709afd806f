//! Frames move between the links and the engines, and what waits for them hears of it.

use std::os::fd::AsRawFd;

use overfly_engine::Instant;
use overfly_link::Link;
use overfly_wire::MacAddr;
use rustix::io::Errno;

use super::tap::Tapped;
use super::{Interface, Stack};
use crate::owner::EngineOwner;
use crate::socket::{Side, SocketId};
use crate::socket_table::AfterCallback;

/// Frames taken from the link at a time, unless [`Stack::enlarge_batches`] said more: a receive ring of the usual size. A program that
/// is busy with many events at once finds as many frames when it looks again; what a look leaves in the ring would be lost when it
/// overflows, and a lost SYN costs a second.
pub(super) const RECEIVE_BATCH: usize = 1024;

/// Flows with output that are collected before their frames go out without being asked for.
pub(super) const TRANSMIT_BATCH: usize = 32;

/// Bytes that a program reads before the stack looks for more, whatever else the program has to do first: its peers' round trips are as long
/// as the time between two looks, and what they send meanwhile must find room.
const TAKEN_MUCH: usize = 128 * 1024;

/// Looks for frames at a time, as long as each acknowledges as much as the link has room for.
const LOOKS_AT_ONCE: u32 = 8;

/// How often a link that reads payload in place is filled and emptied in turns: a megabyte and a half at most.
pub(super) const PROMISED_ROUNDS: u32 = 8;

impl<T: Link> Stack<T> {
    /// Takes what the links received, runs timers, and sends everything that is due. Returns the frames received.
    pub fn pump(&mut self, now: Instant) -> usize {
        self.now = now;
        let mut received = 0;
        for _ in 0..LOOKS_AT_ONCE {
            self.taken = 0;
            for side in Side::ALL {
                received += self.receive(now, side);
            }
            self.sockets.promote_due(now);
            self.sockets.give_back_idle(now);
            self.do_chores();
            self.transmit(now);
            if !self.holds_back() {
                break;
            }
            self.flush();
        }
        received
    }

    pub(super) fn receive(&mut self, now: Instant, side: Side) -> usize {
        let Some(interface) = &mut self.interfaces[side.index()] else { return 0 };
        let Interface { engine, transport } = interface;
        let mut owner = EngineOwner { sockets: &mut self.sockets, side, now };
        let mut show = self.show.as_mut().filter(|_| self.captured);
        let batch = RECEIVE_BATCH * self.batches;
        let received = transport.receive(batch, |frame| {
            if let Some(show) = &mut show {
                show.frame(now.as_micros(), false, frame);
            }
            engine.receive(now, frame, &mut owner);
            if let Some(id) = owner.sockets.unnamed.take() {
                let socket = owner.sockets.at_mut(id);
                if let Some(flow) = socket.flow {
                    (socket.local, socket.remote) = engine.tuple(flow);
                }
            }
        });
        // What a kick that is owed acknowledges has brought nothing yet.
        if self.owed.is_none()
            && let Some(room) = transport.room()
        {
            engine.took(received, received < batch, room);
        }
        if let Some(gone) = transport.take_gone() {
            engine.peer_gone(now, |MacAddr(mac)| gone.includes(mac), &mut owner);
        }
        engine.advance(now, &mut owner);
        received
    }

    pub(super) fn do_chores(&mut self) {
        if self.sockets.after_callbacks.is_empty() {
            return;
        }
        let (interfaces, mut pushed) = (&mut self.interfaces, Vec::new());
        self.sockets.after_callbacks.retain(|after| match *after {
            AfterCallback::Abort(side, flow) => {
                if let Some(interface) = &mut interfaces[side.index()] {
                    interface.engine.abort(flow);
                }
                false
            }
            AfterCallback::Disconnected { .. } => true,
            AfterCallback::Push(id) => {
                pushed.push(id);
                false
            }
        });
        for id in pushed {
            self.more_follows(id, false);
        }
    }

    /// There is output that waits for the next look.
    pub(crate) fn holds_back(&self) -> bool {
        self.running().any(|interface| interface.engine.holds_back())
    }

    /// Sends everything that is due. Returns false if a link is full, or if [`Stack::holds_back`].
    pub fn transmit(&mut self, now: Instant) -> bool {
        self.now = now;
        let mut done = true;
        for side in Side::ALL {
            done &= self.transmit_on(now, side);
        }
        done
    }

    pub(super) fn transmit_on(&mut self, now: Instant, side: Side) -> bool {
        let Some(interface) = &mut self.interfaces[side.index()] else { return true };
        let Interface { engine, transport } = interface;
        let mut done = !engine.has_output();
        let mut owner = EngineOwner { sockets: &mut self.sockets, side, now };
        // What the link cannot take at first it may after it was flushed; what is promised leaves it only here.
        let mut rounds = if transport.takes_promises() { PROMISED_ROUNDS } else { 2 };
        while !done && rounds > 0 {
            done = match self.show.as_mut().filter(|_| self.captured) {
                Some(show) => engine.transmit(now, &mut owner, &mut Tapped::new(transport, show, now)),
                None => engine.transmit(now, &mut owner, transport),
            };
            transport.redeem(&owner);
            rounds -= 1;
            if !done && rounds > 0 {
                transport.flush();
            }
        }
        // What the device could not take before, too.
        if self.defers {
            self.owed = transport.post(self.kick_underway).map(|link| link.as_raw_fd()).or(self.owed);
        } else {
            transport.flush();
        }
        done
    }

    /// A kick is due, which may take long: it concerns nobody else who uses the stack.
    #[inline]
    pub(crate) fn owes(&self) -> bool {
        self.owed.is_some()
    }

    /// The descriptor to kick; whoever asks does it.
    #[inline]
    pub(crate) fn take_owed(&mut self) -> Option<i32> {
        self.owed.take()
    }

    /// What was owed is done here and now, perhaps after it failed.
    pub(crate) fn finish_kick(&mut self, failure: Option<Errno>) {
        if let (Some(errno), Some(interface)) = (failure, &mut self.interfaces[Side::Network.index()]) {
            interface.transport.kick_failed(errno);
        }
        self.flush();
    }

    /// Gets everything on its way here and now.
    pub(crate) fn flush(&mut self) {
        self.owed = None;
        for interface in self.interfaces.iter_mut().flatten() {
            interface.transport.flush();
        }
    }

    /// The same, for the last time.
    pub(crate) fn flush_finally(&mut self) {
        self.interfaces.iter_mut().flatten().for_each(|interface| interface.transport.retry());
        self.flush();
    }

    /// There is output that waits for company.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.running().any(|interface| interface.engine.has_output())
    }

    /// Enough output has come together to send it without being asked.
    #[must_use]
    pub fn wants_transmit(&self) -> bool {
        self.running().any(|interface| interface.engine.pending_output() >= TRANSMIT_BATCH * self.batches)
    }

    /// The program has read so much since the last look that it is time for another one.
    #[must_use]
    pub fn has_taken_much(&self) -> bool {
        self.taken >= TAKEN_MUCH
    }

    /// When [`Stack::pump`] must be called again even if no frame arrives.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let engines = self.running().filter_map(|interface| interface.engine.next_deadline());
        engines.chain(self.sockets.next_deadline()).min()
    }

    /// The descriptor of a link was readable.
    pub(crate) fn rang(&mut self) {
        for interface in self.interfaces.iter_mut().flatten() {
            interface.transport.rang();
        }
    }

    /// Before a sleep: frames that come from now on end it. Returns false if there are some already.
    pub fn arm(&mut self) -> bool {
        let mut safe = true;
        for interface in self.interfaces.iter_mut().flatten() {
            safe &= interface.transport.arm();
        }
        safe
    }

    /// Whether anything became ready since this was last asked.
    pub fn take_news(&mut self) -> bool {
        core::mem::take(&mut self.sockets.news)
    }

    /// As [`Stack::take_news`], of sockets that are awaited.
    pub(crate) fn take_noted(&mut self) -> bool {
        core::mem::take(&mut self.sockets.noted)
    }

    /// A thread will sleep until something happens to a socket.
    pub(crate) fn awaits(&mut self, id: SocketId) {
        self.sockets.at_mut(id).awaited = true;
    }

    /// Nothing has happened to it since.
    pub(crate) fn is_awaited(&self, id: SocketId) -> bool {
        self.sockets.at(id).awaited
    }

    /// Takes and sends frames in batches so many times as large.
    pub fn enlarge_batches(&mut self, times: usize) {
        self.batches = times;
    }
}

//! One process's stack: its sockets and epoll sets, the engine that carries them, and the link that moves the frames.
//!
//! Nothing here makes a system call or looks at a clock, so two stacks joined in memory are the test bench.

#[cfg(not(test))]
mod away;
mod datagram;
#[cfg(not(test))]
mod handover;
mod opened;
pub(crate) mod rows;
mod sets;
mod settings;
mod tap;

use core::mem::MaybeUninit;
use core::net::SocketAddr;
use core::time::Duration;

use overfly_engine::{Engine, Error, Instant};
use overfly_link::watch::Show;
use overfly_profile::sysctls::FastOpenKeys;
use overfly_wire::{FrameSink, MacAddr, Promises};
use rustix::io::Errno;

pub(crate) use self::datagram::{DatagramFace, Datagrams};
#[cfg(not(test))]
pub(crate) use self::datagram::{Read, Trouble};
use self::tap::Tapped;
use crate::face::{Chore, Face, Port};
use crate::interest::{NONE, SetId, bits};
use crate::owner::EngineOwner;
use crate::socket::{Arrival, Listening, Settings, Side, Socket, SocketId, State};

/// Frames taken from the link at a time, unless [`Stack::enlarge_batches`] said more: a receive ring of the usual size. A program that
/// is busy with many events at once finds as many frames when it looks again; what a look leaves in the ring would be lost when it
/// overflows, and a lost SYN costs a second.
const RECEIVE_BATCH: usize = 1024;
/// Flows with output that are collected before their frames go out without being asked for.
const TRANSMIT_BATCH: usize = 32;
/// How often a link that reads payload in place is filled and emptied in turns: a megabyte and a half at most.
const PROMISED_ROUNDS: u32 = 8;

/// The next hop where the engine is to ask for it itself.
const UNKNOWN: MacAddr = MacAddr([0; 6]);

/// How frames move.
pub trait Transport: FrameSink {
    /// Hands over up to `budget` received frames; returns how many there were.
    fn receive(&mut self, budget: usize, each: impl FnMut(&[u8])) -> usize;
    /// Gets committed frames on their way, those included that an earlier call could not. Cheap when there are none.
    fn flush(&mut self);
    /// Sends what was committed with its payload promised ([`FrameSink::commit_promised`]), before anything else happens to its flows.
    fn redeem(&mut self, _promises: &impl Promises) {}
    /// As `flush`, but for a system call that may take long: a kick ([`overfly_link::xdp::kick`]) of the descriptor that is
    /// returned. If one is `underway`, or still to come, it serves all that was posted before it began.
    fn post(&mut self, _underway: bool) -> Option<i32> {
        self.flush();
        None
    }
    /// What such a kick had to say.
    fn kick_failed(&mut self, _errno: Errno) {}
    /// A device that took nothing just now is tried again at the next `flush`.
    fn retry(&mut self) {}
    /// Before a sleep, after a `receive` that returned 0: frames that come from now on end it. Returns false if there are
    /// some already.
    fn arm(&mut self) -> bool {
        true
    }
    /// Its descriptor was readable.
    fn rang(&mut self) {}
    /// The hardware addresses of peers that are known to have gone since this was last asked.
    fn take_gone(&mut self) -> Vec<[u8; 6]> {
        Vec::new()
    }
}

/// What carries the sockets.
struct Drive<T> {
    engine: Engine,
    transport: T,
}

/// The sockets of a process, from the first one on; the engine joins them when it is first needed.
pub struct Stack<T> {
    face: Face,
    /// By [`Side`].
    drives: [Option<Drive<T>>; 2],
    /// Kicks are left to whoever holds the lock: other threads wait for it.
    pub(crate) defers: bool,
    /// A thread that does not hold it is in such a kick, or about to be.
    pub(crate) kick_underway: bool,
    /// The link's descriptor that must be kicked.
    owed: Option<i32>,
    /// The time last told.
    now: Instant,
    /// Passive opens accepted, and active opens begun, since the process began.
    pub(crate) accepts: u64,
    pub(crate) connects: u64,
    /// Those of them whose other end is on this host.
    pub(crate) accepts_within_host: u64,
    pub(crate) connects_within_host: u64,
    /// How often the process has forked: connections note it when they begin.
    pub(crate) forks: u32,
    /// How many times as large batches are as by themselves.
    batches: usize,
    /// What Fast Open's cookies are made with, if it is not the engine's own key.
    fast_open_keys: Option<FastOpenKeys>,
    /// What observers see, and whether one of them takes frames.
    pub(crate) show: Option<Show>,
    pub(crate) captured: bool,
}

/// What is to be done with a closed socket's descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// Other descriptors of the same socket are open.
    StillOpen,
    /// The descriptor can serve the next accepted connection.
    Reusable,
    /// The descriptor holds a local port that the flow still needs: keep it until [`Stack::disconnected`] names it.
    Held,
    /// Close it.
    Done,
}

impl<T: Transport> Stack<T> {
    /// A stack without an engine.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            face: Face::new(),
            drives: [None, None],
            defers: false,
            kick_underway: false,
            owed: None,
            now: Instant::from_micros(0),
            accepts: 0,
            connects: 0,
            accepts_within_host: 0,
            connects_within_host: 0,
            forks: 0,
            batches: 1,
            fast_open_keys: None,
            show: None,
            captured: false,
        }
    }

    /// Before there are sockets: they are those of that context.
    pub(crate) fn belongs_to(&mut self, context: usize) {
        self.face.belongs_to(context);
    }

    /// Gives the stack what carries it on one side.
    pub fn start(&mut self, side: Side, engine: Engine, transport: T, cache_limit: usize) {
        self.face.cache_limit = cache_limit;
        self.fast_open_keys = None;
        self.drives[side.index()] = Some(Drive { engine, transport });
    }

    fn drive(&self, side: Side) -> Option<&Drive<T>> {
        self.drives[side.index()].as_ref()
    }

    fn running(&self) -> impl Iterator<Item = &Drive<T>> {
        self.drives.iter().flatten()
    }

    /// Connections can move into the kernel: those with urgent data will ask for it.
    pub(crate) fn hands_over(&mut self, can: bool) {
        self.face.can_hand_over = can;
    }

    /// Whether [`Stack::take_urgent`] would return any.
    pub(crate) fn has_urgent(&self) -> bool {
        !self.face.urgent.is_empty()
    }

    /// Connections that urgent data came for since this was last asked.
    pub(crate) fn take_urgent(&mut self) -> Vec<SocketId> {
        core::mem::take(&mut self.face.urgent)
    }

    /// Takes and sends frames in batches so many times as large.
    pub fn enlarge_batches(&mut self, times: usize) {
        self.batches = times;
    }

    /// Whether there is an engine.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running().next().is_some()
    }

    /// Whether there is one on this side.
    #[must_use]
    pub fn runs(&self, side: Side) -> bool {
        self.drive(side).is_some()
    }

    /// After a fork: the parent, or one of its own, goes on with the flows (number `ancestor` of them, for those that were
    /// this process's), and this process has only its descriptors and epoll sets. Returns the transports, to be closed.
    pub fn forget(&mut self, ancestor: u32) -> [Option<T>; 2] {
        // Of those the child has all there is to know, with what was not read.
        let over = self.over();
        let drives = core::mem::take(&mut self.drives);
        for id in self.face.ids() {
            let socket = self.face.at_mut(id);
            // The threads that hold any are the parent's.
            socket.holders = 0;
            match socket.state {
                State::Listening => {
                    if let Some(listening) = &mut socket.listening {
                        let Listening { backlog, defer, forced_nonblocking, .. } = **listening;
                        **listening =
                            Listening { backlog, defer, forced_nonblocking, ..Listening::default() };
                    }
                }
                State::Datagram => {
                    socket.receive.recycle();
                    if let Some(part) = &mut socket.datagrams {
                        part.forget_all_but_settings();
                    }
                }
                State::Connecting | State::Connected | State::Ended => {
                    socket.flow = None;
                    if socket.is_orphan() || socket.queued {
                        self.face.release(id);
                    } else if over.contains(&id) {
                        socket.state = State::Ended;
                        socket.shared = true;
                    } else {
                        socket.state = State::Lost;
                        socket.ancestor = ancestor;
                    }
                }
                State::Free | State::Candidate | State::Lost => {}
            }
        }
        self.face.forget_flows();
        drives.map(|drive| drive.map(|drive| drive.transport))
    }

    // ---- moving frames ----

    /// Takes what the links received, runs timers, and sends everything that is due. Returns the frames received.
    pub fn pump(&mut self, now: Instant) -> usize {
        self.now = now;
        let mut received = 0;
        for side in Side::ALL {
            received += self.receive(now, side);
        }
        self.face.promote_due(now);
        self.face.give_back_idle(now);
        self.do_chores();
        self.transmit(now);
        received
    }

    fn receive(&mut self, now: Instant, side: Side) -> usize {
        let Some(drive) = &mut self.drives[side.index()] else { return 0 };
        let Drive { engine, transport } = drive;
        let mut owner = EngineOwner { face: &mut self.face, side, now };
        let mut show = self.show.as_mut().filter(|_| self.captured);
        let received = transport.receive(RECEIVE_BATCH * self.batches, |frame| {
            if let Some(show) = &mut show {
                show.frame(now.as_micros(), false, frame);
            }
            engine.receive(now, frame, &mut owner);
            if let Some(id) = owner.face.unnamed.take() {
                let socket = owner.face.at_mut(id);
                if let Some(flow) = socket.flow {
                    (socket.local, socket.remote) = engine.tuple(flow);
                }
            }
        });
        let gone = transport.take_gone();
        if !gone.is_empty() {
            engine.peer_gone(now, |MacAddr(mac)| gone.contains(&mac), &mut owner);
        }
        engine.advance(now, &mut owner);
        received
    }

    fn do_chores(&mut self) {
        if self.face.chores.is_empty() {
            return;
        }
        let drives = &mut self.drives;
        self.face.chores.retain(|chore| match *chore {
            Chore::Abort(side, flow) => {
                if let Some(drive) = &mut drives[side.index()] {
                    drive.engine.abort(flow);
                }
                false
            }
            Chore::Disconnected { .. } => true,
        });
    }

    /// Sends everything that is due. Returns false if a link is full.
    pub fn transmit(&mut self, now: Instant) -> bool {
        self.now = now;
        let mut done = true;
        for side in Side::ALL {
            done &= self.transmit_on(now, side);
        }
        done
    }

    fn transmit_on(&mut self, now: Instant, side: Side) -> bool {
        let Some(drive) = &mut self.drives[side.index()] else { return true };
        let Drive { engine, transport } = drive;
        let mut done = !engine.has_output();
        let mut owner = EngineOwner { face: &mut self.face, side, now };
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
            self.owed = transport.post(self.kick_underway).or(self.owed);
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
        if let (Some(errno), Some(drive)) = (failure, &mut self.drives[Side::Network.index()]) {
            drive.transport.kick_failed(errno);
        }
        self.flush();
    }

    /// Gets everything on its way here and now.
    fn flush(&mut self) {
        self.owed = None;
        for drive in self.drives.iter_mut().flatten() {
            drive.transport.flush();
        }
    }

    /// The same, for the last time.
    pub(crate) fn flush_finally(&mut self) {
        self.drives.iter_mut().flatten().for_each(|drive| drive.transport.retry());
        self.flush();
    }

    /// There is output that waits for company.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.running().any(|drive| drive.engine.has_output())
    }

    /// Enough output has come together to send it without being asked.
    #[must_use]
    pub fn wants_transmit(&self) -> bool {
        self.running().any(|drive| drive.engine.pending_output() >= TRANSMIT_BATCH * self.batches)
    }

    /// When [`Stack::pump`] must be called again even if no frame arrives.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let engines = self.running().filter_map(|drive| drive.engine.next_deadline());
        engines.chain(self.face.next_deadline()).min()
    }

    /// The descriptor of a link was readable.
    pub(crate) fn rang(&mut self) {
        for drive in self.drives.iter_mut().flatten() {
            drive.transport.rang();
        }
    }

    /// Before a sleep: frames that come from now on end it. Returns false if there are some already.
    pub fn arm(&mut self) -> bool {
        let mut safe = true;
        for drive in self.drives.iter_mut().flatten() {
            safe &= drive.transport.arm();
        }
        safe
    }

    /// Whether anything became ready since this was last asked.
    pub fn take_news(&mut self) -> bool {
        core::mem::take(&mut self.face.news)
    }

    /// As [`Stack::take_news`], of sockets that are awaited.
    pub(crate) fn take_noted(&mut self) -> bool {
        core::mem::take(&mut self.face.noted)
    }

    /// A thread will sleep until something happens to a socket.
    pub(crate) fn awaits(&mut self, id: SocketId) {
        self.face.at_mut(id).awaited = true;
    }

    /// Nothing has happened to it since.
    pub(crate) fn is_awaited(&self, id: SocketId) -> bool {
        self.face.at(id).awaited
    }

    /// Flows that were closed but still have data or a FIN to deliver.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        let unfinished = |socket: &Socket| {
            use overfly_engine::State::{CloseWait, Closing, Established, FinWait1, LastAck};
            let Some((flow, drive)) = socket.flow.zip(self.drive(socket.side)) else { return false };
            let info = drive.engine.info(flow);
            // What was sent within the host is there, whether or not the other program has looked yet.
            let on_its_way = if socket.side == Side::Loopback { info.flight as usize } else { 0 };
            match info.state {
                FinWait1 | Closing | LastAck => socket.side == Side::Network,
                Established | CloseWait => socket.send.len() > on_its_way || socket.is_orphan(),
                _ => false,
            }
        };
        self.face.ids().filter(|&id| unfinished(self.face.at(id))).count()
    }

    // ---- sockets ----

    /// A socket that is neither listening nor connected yet; AF_INET6 if `v6`. `None` without memory for it.
    pub fn open(&mut self, descriptor: i32, v6: bool, nonblocking: bool) -> Option<SocketId> {
        let id = self.face.open()?;
        let socket = self.face.at_mut(id);
        socket.state = State::Candidate;
        socket.references = 1;
        socket.descriptor = descriptor;
        socket.v6 = v6;
        socket.nonblocking = nonblocking;
        Some(id)
    }

    /// Whether an active open could have these ends; `reuse` counts those in TIME-WAIT as free.
    #[must_use]
    pub fn is_free(&self, local: SocketAddr, remote: SocketAddr, reuse: bool) -> bool {
        let state = self.drive(Side::Network).and_then(|drive| drive.engine.state_between(local, remote));
        state.is_none_or(|state| reuse && state == overfly_engine::State::TimeWait)
    }

    /// The socket stays in the kernel: forget it. Its interests are the kernel's.
    pub fn leave_to_kernel(&mut self, id: SocketId) {
        self.face.drop_interests(id);
        self.face.release(id);
    }

    /// listen(): the socket becomes a listener, in the kernel until [`Stack::join`].
    pub fn listening(&mut self, id: SocketId, backlog: u32) {
        let socket = self.face.at_mut(id);
        socket.state = State::Listening;
        socket.listening.get_or_insert_default().backlog = backlog;
    }

    /// The kernel's socket listens no more, and this process has parted.
    pub(crate) fn stopped_listening(&mut self, id: SocketId) {
        let socket = self.face.at_mut(id);
        socket.state = State::Candidate;
        socket.listening = None;
    }

    /// This process takes connections for the listener at `local` from now on; a listener for both families joins twice on
    /// each side. Returns whether it is the first for this address and port, so that others must be told.
    pub fn join(&mut self, side: Side, id: SocketId, local: SocketAddr) -> Result<bool, Error> {
        let Some(drive) = &mut self.drives[side.index()] else { return Ok(false) };
        let Some(backlog) = self.face.at(id).listening.as_ref().map(|listening| listening.backlog) else {
            return Ok(false);
        };
        let first = match self.face.ports.iter_mut().find(|port| (port.side, port.local) == (side, local)) {
            Some(port) => {
                port.members.push(id);
                port.members.len() == 1
            }
            None => {
                let listener =
                    settings::listen(&mut drive.engine, local, backlog, &self.face.at(id).settings)?;
                self.face.ports.push(Port::new(side, local, listener, id));
                true
            }
        };
        if let Some(listening) = &mut self.face.at_mut(id).listening
            && !listening.joined.contains(&local)
        {
            listening.joined.push(local);
        }
        Ok(first)
    }

    /// Whether this process has joined the listener.
    #[must_use]
    pub fn has_joined(&self, id: SocketId) -> bool {
        self.face.at(id).listening.as_ref().is_some_and(|listening| !listening.joined.is_empty())
    }

    /// Whether it has on that side.
    pub(crate) fn is_member(&self, side: Side, id: SocketId) -> bool {
        self.face.ports.iter().any(|port| port.side == side && port.members.contains(&id))
    }

    /// Where a listener has joined.
    pub(crate) fn joined(&self, id: SocketId) -> Vec<SocketAddr> {
        self.face.at(id).listening.as_ref().map_or_else(Vec::new, |listening| listening.joined.clone())
    }

    /// Whether any listener has joined.
    #[must_use]
    pub fn is_listening(&self) -> bool {
        !self.face.ports.is_empty()
    }

    /// Connections under way to the listeners that have joined, and those that wait there.
    pub(crate) fn pending(&self) -> u32 {
        let pending =
            |port: &Port| self.drive(port.side).map_or(0, |drive| drive.engine.pending(port.listener));
        self.face.ports.iter().map(pending).sum()
    }

    /// Whether a set watches a listener that has joined. Of many listeners not each is asked.
    pub(crate) fn set_accepts(&self, set: SetId) -> bool {
        const MANY: usize = 16;
        if self.face.ports.len() > MANY {
            return true;
        }
        let mut members = self.face.ports.iter().flat_map(|port| &port.members);
        members.any(|&id| {
            let mut watches = false;
            self.interests(id, |its, _, events, _| watches |= its == set && events & bits::IN != 0);
            watches
        })
    }

    /// Addresses and ports where a listener has joined and is the only one: others must be told before it parts.
    pub fn last_member_at(&self, side: Side, id: SocketId) -> impl Iterator<Item = SocketAddr> {
        self.face
            .ports
            .iter()
            .filter(move |port| port.side == side && port.members == [id])
            .map(|port| port.local)
    }

    /// This process takes no more connections for the listener. Those that wait to be accepted are for its other sockets at
    /// the address, and else for [`Stack::leaving`]; so are those whose handshake is under way.
    pub fn part(&mut self, id: SocketId) {
        self.face.promote_all(id);
        let Some(listening) = &mut self.face.at_mut(id).listening else { return };
        let joined = core::mem::take(&mut listening.joined);
        let waiting = core::mem::take(&mut listening.queue);
        listening.dead = 0;
        for port in &mut self.face.ports {
            port.members.retain(|&member| member != id);
        }
        for queued in waiting {
            let (Some(flow), side) = (self.face.at(queued).flow, self.face.at(queued).side) else {
                self.face.release(queued);
                continue;
            };
            let is_v4 = self.drive(side).is_none_or(|drive| drive.engine.tuple(flow).0.is_ipv4());
            let Some(&local) = joined.iter().find(|local| local.is_ipv4() == is_v4) else { continue };
            let port = self.face.ports.iter_mut().find(|port| (port.side, port.local) == (side, local));
            match port.and_then(Port::next_member) {
                Some(other) => self.face.queue(queued, other),
                None => {
                    self.face.at_mut(queued).listener = SocketId(NONE);
                    self.face.leaving.push((queued, local));
                }
            }
        }
        self.close_ports();
    }

    /// Listeners that have left close when their last handshake is done. Returns whether one is still open.
    pub(crate) fn close_ports(&mut self) -> bool {
        let mut any = false;
        self.face.ports.retain(|port| {
            let Some(drive) = &mut self.drives[port.side.index()] else { return false };
            let left = port.members.is_empty();
            let done = left && drive.engine.half_open(port.listener) == 0;
            if done {
                drive.engine.close_listener(port.listener);
            }
            any |= left && !done;
            !done
        });
        any
    }

    /// Connections to listeners that have left, with where those were: for whoever listens there now.
    pub(crate) fn leaving(&mut self) -> Vec<(SocketId, SocketAddr)> {
        core::mem::take(&mut self.face.leaving)
    }

    /// Whether a listener has left and not everything that it began is done.
    pub(crate) fn is_leaving(&self) -> bool {
        !self.face.leaving.is_empty() || self.face.ports.iter().any(|port| port.members.is_empty())
    }

    /// Nobody will have the connection: it is reset.
    pub(crate) fn abandon(&mut self, id: SocketId) {
        let socket = self.face.at_mut(id);
        socket.queued = false;
        match (socket.flow, &mut self.drives[socket.side.index()]) {
            (Some(flow), Some(drive)) => drive.engine.abort(flow),
            _ => self.face.release(id),
        }
    }

    /// The socket tries no longer to connect, and is forgotten: whoever answers is refused.
    pub(crate) fn withdraw(&mut self, id: SocketId) {
        let socket = self.face.at(id);
        if let (Some(flow), Some(drive)) = (socket.flow, &mut self.drives[socket.side.index()]) {
            drive.engine.abort(flow);
            let side = socket.side;
            self.face.unbind_flow(side, flow);
        }
        self.face.drop_interests(id);
        self.face.release(id);
        self.face.news = true;
    }

    /// An active open has failed for a reason that no engine knows.
    pub(crate) fn fail(&mut self, id: SocketId, errno: Errno) {
        self.abandon(id);
        self.face.at_mut(id).error = Some(errno);
    }

    /// Another process gave a connection to whoever listens at `local`. False if nobody does.
    pub(crate) fn arrive(&mut self, local: SocketAddr, arrival: Arrival) -> bool {
        let port = self.face.ports.iter_mut().find(|port| port.local == local);
        let Some(member) = port.and_then(Port::next_member) else { return false };
        if let Some(listening) = &mut self.face.at_mut(member).listening {
            listening.arrivals.push_back(arrival);
        }
        self.face.wake(member, bits::IN | bits::RDNORM);
        true
    }

    /// Connections that came from other processes are not for this one: `each` is given their descriptors.
    pub(crate) fn drop_arrivals(&mut self, mut each: impl FnMut(i32)) {
        for id in self.face.ids() {
            if let Some(listening) = &mut self.face.at_mut(id).listening {
                listening.arrivals.drain(..).for_each(|arrival| each(arrival.descriptor));
            }
        }
    }

    /// A connection that waits at a listener is the kernel's now: it still waits there. False if the listener has gone.
    pub(crate) fn replace_queued(&mut self, id: SocketId, arrival: Arrival) -> bool {
        let socket = self.face.at_mut(id);
        let listener = socket.listener;
        socket.queued = false;
        self.face.leaving.retain(|&(leaving, _)| leaving != id);
        if listener == SocketId(NONE) {
            return false;
        }
        let Some(listening) = &mut self.face.at_mut(listener).listening else { return false };
        listening.queue.retain(|&queued| queued != id);
        listening.arrivals.push_back(arrival);
        self.face.wake(listener, bits::IN | bits::RDNORM);
        true
    }

    /// The oldest connection that came from another process.
    pub(crate) fn take_arrival(&mut self, listener: SocketId) -> Option<Arrival> {
        self.face.at_mut(listener).listening.as_mut()?.arrivals.pop_front()
    }

    /// A connection that waited at the listener is another process's.
    pub(crate) fn unqueue(&mut self, listener: SocketId, id: SocketId) {
        if let Some(listening) = &mut self.face.at_mut(listener).listening {
            listening.queue.retain(|&queued| queued != id);
        }
    }

    /// Whether [`Stack::accept`] may have something.
    #[must_use]
    pub fn can_accept(&self, id: SocketId) -> bool {
        self.face.at(id).listening.as_ref().is_some_and(|listening| !listening.queue.is_empty())
    }

    /// The oldest connection that waits at the listener, now held by `descriptor`.
    pub fn accept(&mut self, listener: SocketId, descriptor: i32, nonblocking: bool) -> Option<SocketId> {
        let id = self.face.at_mut(listener).listening.as_mut()?.queue.pop_front()?;
        self.accepts += 1;
        let socket = self.face.at_mut(id);
        socket.queued = false;
        socket.references = 1;
        socket.descriptor = descriptor;
        socket.nonblocking = nonblocking;
        socket.forks = self.forks;
        if let (Some(flow), Some(drive)) = (socket.flow, &mut self.drives[socket.side.index()]) {
            (socket.local, socket.remote) = drive.engine.tuple(flow);
            drive.engine.accepted(flow);
            let settings = socket.settings;
            self.accepts_within_host += u64::from(socket.side == Side::Loopback);
            self.settle(id, &Settings::DEFAULT, settings);
        } else if let Some(listening) = &mut self.face.at_mut(listener).listening {
            // It was reset meanwhile. The program gets it, and what had come (inet_csk_accept() in Linux).
            listening.dead = listening.dead.saturating_sub(1);
        }
        Some(id)
    }

    /// Begins an active open from a socket that is neither listening nor connected.
    #[expect(clippy::too_many_arguments, reason = "both ends, the way between them, and what they agree on")]
    pub fn connect(
        &mut self,
        now: Instant,
        side: Side,
        id: SocketId,
        local: SocketAddr,
        remote: SocketAddr,
        next_hop: MacAddr,
        settings: Settings,
    ) -> Result<(), Error> {
        self.now = now;
        let Some(drive) = &mut self.drives[side.index()] else { return Err(Error::NoNeighbor) };
        if next_hop != UNKNOWN {
            drive.engine.set_neighbor(remote.ip(), next_hop);
        }
        let flow = drive.engine.connect(now, local, remote)?;
        if settings.max_segment != 0 {
            // Before the SYN, which says so.
            drive.engine.set_max_segment(flow, settings.max_segment);
        }
        self.face.bind_flow(side, flow, id);
        let socket = self.face.at_mut(id);
        socket.begin_anew();
        // Also the one that ended the connection before (tcp_connect_init() in Linux).
        socket.error = None;
        socket.state = State::Connecting;
        socket.forks = self.forks;
        socket.passive = false;
        socket.local = local;
        socket.remote = remote;
        self.settle(id, &Settings::DEFAULT, settings);
        // The socket is ours from now on, and so is what watches it.
        let mut index = self.face.at(id).interests;
        while index != NONE {
            self.face.interests.take_over(index);
            index = self.face.interests.at(index).next;
        }
        self.connects += 1;
        self.connects_within_host += u64::from(side == Side::Loopback);
        Ok(())
    }

    /// The SYN of a connection just begun may carry data (TCP Fast Open): as much of `source` as the socket has room for is
    /// written if the server is known to take it, else nothing, and the server is asked for its cookie. Returns the bytes.
    pub fn open_with_data<'b>(&mut self, id: SocketId, source: impl Iterator<Item = &'b [u8]>) -> usize {
        let socket = self.face.at(id);
        let (local, remote) = (socket.local, socket.remote);
        let (Some(flow), Some(drive)) = (socket.flow, &mut self.drives[socket.side.index()]) else {
            return 0;
        };
        let now = drive.engine.may_open_fast(self.now, local.ip(), remote);
        drive.engine.set_fast_open(flow);
        if !now {
            return 0;
        }
        let socket = self.face.at_mut(id);
        let mut written = 0;
        for piece in source {
            let length = piece.len().min(socket.space());
            let taken = socket.send.push_some(&piece[..length]);
            written += taken;
            if taken < length {
                break;
            }
        }
        self.promise(id, written);
        written
    }

    /// Reads into `target`. `peek` leaves the data in the queue. `Ok(0)` is the end of the stream.
    pub fn read<'b>(
        &mut self,
        id: SocketId,
        target: impl Iterator<Item = &'b mut [MaybeUninit<u8>]>,
        peek: bool,
    ) -> Result<usize, Errno> {
        let socket = self.face.at_mut(id);
        if socket.receive.is_empty() {
            return match socket.state {
                // After the end of the stream comes nothing, not even an error (SOCK_DONE in tcp_recvmsg_locked()).
                State::Connected | State::Ended if socket.remote_closed => Ok(0),
                _ if socket.pending_error().is_some() => Err(socket.take_error().unwrap_or(Errno::IO)),
                State::Connected if socket.read_shut => Ok(0),
                State::Connected | State::Connecting => Err(Errno::AGAIN),
                State::Ended if socket.disconnected && !socket.read_shut => Err(Errno::NOTCONN),
                State::Ended => Ok(0),
                State::Free | State::Candidate | State::Listening | State::Datagram | State::Lost => {
                    Err(Errno::NOTCONN)
                }
            };
        }
        let mut copied = 0;
        for piece in target {
            copied += socket.receive.copy_to(copied, piece);
            if copied == socket.receive.len() {
                break;
            }
        }
        if !peek {
            self.consume(id, copied);
        }
        Ok(copied)
    }

    /// Drops `count` received bytes (MSG_TRUNC, and what [`Stack::read`] copied).
    pub fn consume(&mut self, id: SocketId, count: usize) -> usize {
        let socket = self.face.at_mut(id);
        let count = count.min(socket.receive.len());
        socket.has_read(count);
        if let (Some(flow), Some(drive)) = (socket.flow, &mut self.drives[socket.side.index()]) {
            if socket.read_shut {
                drive.engine.consumed_in_silence(flow, count);
            } else {
                drive.engine.consumed(flow, count);
            }
        }
        count
    }

    /// Why a write cannot go on, or the space that there is.
    fn space(&mut self, id: SocketId) -> Result<usize, Errno> {
        let socket = self.face.at_mut(id);
        if let Some(error) = socket.take_error() {
            return Err(error);
        }
        match socket.state {
            State::Connected if !socket.write_shut => {}
            State::Connecting => return Err(Errno::AGAIN),
            State::Connected | State::Ended | State::Candidate | State::Listening => return Err(Errno::PIPE),
            State::Free | State::Datagram | State::Lost => return Err(Errno::NOTCONN),
        }
        let space = socket.space();
        if space == 0 {
            if socket.space_again() {
                return Ok(socket.space());
            }
            socket.no_space = true;
            return Err(Errno::AGAIN);
        }
        Ok(space)
    }

    fn promise(&mut self, id: SocketId, bytes: usize) {
        let socket = self.face.at(id);
        if let (Some(flow), Some(drive)) = (socket.flow, &mut self.drives[socket.side.index()]) {
            drive.engine.send(flow, bytes);
        }
    }

    /// Writes as much of `source` as there is space for.
    pub fn write<'b>(
        &mut self,
        id: SocketId,
        source: impl Iterator<Item = &'b [u8]>,
    ) -> Result<usize, Errno> {
        let mut space = self.space(id)?;
        let socket = self.face.at_mut(id);
        let mut written = 0;
        for piece in source {
            let length = piece.len().min(space);
            let taken = socket.send.push_some(&piece[..length]);
            written += taken;
            space -= taken;
            if taken < piece.len() {
                socket.no_space = true;
                if taken < length {
                    socket.has_no_memory();
                    if written == 0 {
                        return Err(socket.why_no_memory());
                    }
                }
                break;
            }
        }
        if written > 0 {
            self.promise(id, written);
        }
        Ok(written)
    }

    /// Lets `produce` write up to `wanted` bytes straight into the send queue: it is given the space and returns how much
    /// it used (sendfile). Returns its error, or the bytes written.
    pub fn write_with(
        &mut self,
        id: SocketId,
        wanted: usize,
        mut produce: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let mut space = self.space(id)?.min(wanted);
        let mut written = 0;
        let mut outcome = Ok(());
        let socket = self.face.at_mut(id);
        while space > 0 {
            let spare = socket.send.spare(space);
            let offered = spare.len();
            if offered == 0 {
                socket.no_space = true;
                socket.has_no_memory();
                outcome = Err(socket.why_no_memory());
                break;
            }
            match produce(spare) {
                Ok(0) => break,
                Ok(length) => {
                    let length = length.min(offered);
                    socket.send.commit(length);
                    written += length;
                    space -= length;
                    if length < offered {
                        break;
                    }
                }
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        if space == 0 && written < wanted {
            socket.no_space = true;
        }
        if written > 0 {
            self.promise(id, written);
            return Ok(written);
        }
        outcome.map(|()| 0)
    }

    /// shutdown(). Errors as Linux has them.
    pub fn shutdown(&mut self, id: SocketId, read: bool, write: bool) -> Result<(), Errno> {
        let over = self.is_over(id);
        let socket = self.face.at_mut(id);
        socket.read_shut |= read;
        let first = write && !socket.write_shut;
        socket.write_shut |= write;
        if over {
            return Err(Errno::NOTCONN);
        }
        if let (true, Some(flow), Some(drive)) = (first, socket.flow, &mut self.drives[socket.side.index()]) {
            drive.engine.shutdown(flow);
        }
        self.face.wake(id, bits::IN | bits::OUT | bits::RDNORM | bits::WRNORM | bits::RDHUP | bits::HUP);
        Ok(())
    }

    /// Both ends have sent their last: as far as a program can see, Linux has no connection any more then.
    #[must_use]
    pub fn is_over(&self, id: SocketId) -> bool {
        use overfly_engine::State::{Closed, TimeWait};
        match self.face.at(id).state {
            State::Connecting => false,
            State::Connected => self.info(id).is_some_and(|info| matches!(info.state, Closed | TimeWait)),
            _ => true,
        }
    }

    /// For how long the last close() of a socket waits until its peer has everything (SO_LINGER); `None` if it has, or if unread
    /// data will make the close a reset.
    pub(crate) fn lingers(&self, id: SocketId) -> Option<Duration> {
        use overfly_engine::State::{CloseWait, Closing, Established, FinWait1, LastAck};
        let socket = self.face.at(id);
        let time = socket.settings.linger.filter(|time| !time.is_zero() && socket.references == 1)?;
        let open = matches!(self.info(id)?.state, Established | CloseWait | FinWait1 | Closing | LastAck);
        (open && socket.receive.is_empty()).then_some(time)
    }

    /// Bytes that were written and not acknowledged, and those of them that were not sent.
    pub(crate) fn waiting(&self, id: SocketId) -> (usize, usize) {
        use overfly_engine::State::{Closing, FinWait1, LastAck};
        let socket = self.face.at(id);
        // The FIN has a number as well (tcp_ioctl() in net/ipv4/tcp.c).
        let closing = socket.write_shut
            && self.info(id).is_some_and(|info| matches!(info.state, FinWait1 | Closing | LastAck));
        (socket.send.len() + usize::from(closing), socket.unsent())
    }

    /// One more descriptor of the same socket.
    pub fn duplicate(&mut self, id: SocketId) {
        self.face.at_mut(id).references += 1;
    }

    /// close() of one of the socket's descriptors.
    pub fn close(&mut self, id: SocketId) -> Closed {
        let socket = self.face.at_mut(id);
        socket.references = socket.references.saturating_sub(1);
        if socket.references > 0 {
            return Closed::StillOpen;
        }
        self.face.drop_interests(id);
        if self.face.at(id).holders > 0 {
            self.face.at_mut(id).descriptor = -1;
            return Closed::Done;
        }
        self.end(id)
    }

    /// A call that waits keeps the socket. Returns which one it is, of those that have had its number.
    pub(crate) fn hold(&mut self, id: SocketId) -> u32 {
        let socket = self.face.at_mut(id);
        socket.holders += 1;
        socket.generation
    }

    /// Such a call is over. Returns whether the socket was closed by it.
    pub(crate) fn release_hold(&mut self, id: SocketId) -> bool {
        let socket = self.face.at_mut(id);
        socket.holders = socket.holders.saturating_sub(1);
        let ends = socket.holders == 0 && socket.references == 0;
        if ends {
            self.end(id);
        }
        ends
    }

    /// Nobody has the socket any more.
    fn end(&mut self, id: SocketId) -> Closed {
        self.face.note(id);
        let socket = self.face.at_mut(id);
        let (Some(flow), Some(drive)) = (socket.flow, &mut self.drives[socket.side.index()]) else {
            let reusable = socket.passive && socket.state == State::Ended;
            self.face.release(id);
            return if reusable { Closed::Reusable } else { Closed::Done };
        };
        let passive = socket.passive;
        // What was not read is lost: the engine tells the peer so (RFC 2525 section 2.17).
        if socket.settings.linger == Some(Duration::ZERO) {
            drive.engine.abort(flow);
        } else {
            drive.engine.close(flow);
        }
        if passive { Closed::Reusable } else { Closed::Held }
    }

    /// The process ends: closes every connection that the program still holds, as the kernel would.
    pub fn close_all(&mut self) {
        for id in self.face.ids() {
            let socket = self.face.at_mut(id);
            if socket.references + socket.holders > 0 && socket.flow.is_some() {
                (socket.references, socket.holders) = (1, 0);
                self.close(id);
            }
        }
    }

    /// SO_ERROR: the pending error, taken.
    pub fn take_error(&mut self, id: SocketId) -> Option<Errno> {
        self.face.at_mut(id).take_error()
    }

    /// The socket's state in epoll's bits.
    #[must_use]
    pub fn level(&self, id: SocketId) -> u32 {
        self.face.level(id)
    }

    /// The same without what the kernel's socket has.
    pub(crate) fn level_here(&self, id: SocketId) -> u32 {
        self.face.level_here(id)
    }

    /// The same for somebody who waits for `wanted`.
    pub fn asked(&mut self, id: SocketId, wanted: u32) -> u32 {
        self.face.asked(id, wanted)
    }

    /// Connections that the program holds and the engine carries.
    pub(crate) fn connections(&self) -> impl Iterator<Item = SocketId> {
        self.face.ids().filter(|&id| {
            let socket = self.face.at(id);
            socket.references > 0 && socket.flow.is_some()
        })
    }

    /// Listeners that the program holds.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = SocketId> {
        self.face.ids().filter(|&id| self.face.at(id).state == State::Listening)
    }

    pub(crate) fn socket(&self, id: SocketId) -> &Socket {
        self.face.at(id)
    }

    pub(crate) fn socket_mut(&mut self, id: SocketId) -> &mut Socket {
        self.face.at_mut(id)
    }

    /// The kernel's listening socket has a connection.
    pub(crate) fn kernel_ready(&mut self, id: SocketId) {
        self.kernel_datagram_ready(id);
        if self.face.at_mut(id).listening.as_mut().map(|listening| listening.kernel_ready = true).is_some() {
            self.face.wake(id, bits::IN | bits::RDNORM);
        }
    }

    /// A connection's ends, and who is behind it.
    pub(crate) fn way(&self, id: SocketId) -> Option<(SocketAddr, SocketAddr, MacAddr)> {
        let socket = self.face.at(id);
        let (flow, drive) = socket.flow.zip(self.drive(socket.side))?;
        let (local, remote) = drive.engine.tuple(flow);
        Some((local, remote, drive.engine.next_hop(flow)))
    }

    /// The connection within the host that has these ends.
    pub(crate) fn within_host(&self, local: SocketAddr, remote: SocketAddr) -> Option<SocketId> {
        self.face.ids().find(|&id| {
            self.face.at(id).side == Side::Loopback
                && self.way(id).is_some_and(|way| (way.0, way.1) == (local, remote))
        })
    }

    /// A listener's descriptor at that address, of either side.
    pub(crate) fn listener_at(&self, local: SocketAddr) -> Option<i32> {
        let covers = |at: SocketAddr| {
            at.port() == local.port()
                && (at.ip() == local.ip() || at.ip().is_unspecified() && at.is_ipv4() == local.is_ipv4())
        };
        let port = self.face.ports.iter().find(|port| covers(port.local) && !port.members.is_empty())?;
        port.members.first().map(|&member| self.face.at(member).descriptor)
    }

    pub(crate) fn engine(&self, side: Side) -> Option<&Engine> {
        self.drive(side).map(|drive| &drive.engine)
    }

    pub(crate) fn transport_mut(&mut self, side: Side) -> Option<&mut T> {
        self.drives[side.index()].as_mut().map(|drive| &mut drive.transport)
    }

    /// The network's device is another one, with that hardware address.
    pub(crate) fn renew(
        &mut self,
        mac: MacAddr,
        renew: impl FnOnce(&mut T) -> Result<(), String>,
    ) -> Result<(), String> {
        let Some(drive) = &mut self.drives[Side::Network.index()] else { return Ok(()) };
        renew(&mut drive.transport)?;
        drive.engine.set_mac(mac);
        Ok(())
    }

    pub(crate) fn transport(&self, side: Side) -> Option<&T> {
        self.drive(side).map(|drive| &drive.transport)
    }

    pub(crate) fn transports(&self) -> impl Iterator<Item = &T> {
        self.running().map(|drive| &drive.transport)
    }
}

impl<T: Transport> Default for Stack<T> {
    fn default() -> Self {
        Self::new()
    }
}

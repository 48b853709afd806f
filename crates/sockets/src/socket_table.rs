//! All sockets and epoll sets of a stack: whose a flow is, what is news, who waits to be accepted.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

use overfly_engine::{FlowId, Instant, ListenerId};

use crate::bound;
use crate::interest::{Interests, NONE, SetId, bits};
use crate::socket::{INDEX_BITS, Side, Socket, SocketId, SocketState};
use crate::stack::{DatagramTable, Datagrams};
use crate::unheard::Unheard;

/// One listening address and port of this process, shared by all its sockets there (SO_REUSEPORT). Without any of them it
/// has left, and stays until the handshakes that it began are done.
pub(crate) struct Port {
    pub(crate) side: Side,
    pub(crate) local: SocketAddr,
    pub(crate) listener: ListenerId,
    pub(crate) members: Vec<SocketId>,
    /// Whose turn it is.
    turn: usize,
}

impl Port {
    pub(crate) fn new(side: Side, local: SocketAddr, listener: ListenerId, member: SocketId) -> Self {
        Self { side, local, listener, members: vec![member], turn: 0 }
    }

    /// Who gets the next connection.
    pub(crate) fn next_member(&mut self) -> Option<SocketId> {
        if self.turn >= self.members.len() {
            self.turn = 0;
        }
        self.turn += 1;
        self.members.get(self.turn - 1).copied()
    }
}

/// What a callback noted, to be done when the engine may be called again.
pub(crate) enum AfterCallback {
    /// A connection for a listener that has gone.
    Abort(Side, FlowId),
    /// An active open's flow is over: the broker and the backing descriptor can let go.
    Disconnected { side: Side, local: SocketAddr, remote: SocketAddr, descriptor: i32 },
    /// What MSG_MORE holds back goes.
    Push(SocketId),
}

/// All sockets and epoll sets of the process.
pub(crate) struct SocketTable {
    sockets: Vec<Socket>,
    /// The context, as the upper bits of its sockets' numbers.
    base: u32,
    free: Vec<u32>,
    /// Sockets that have moved to another context, oldest first: who has looked up one of them a moment ago finds nothing there.
    left: VecDeque<u32>,
    /// Socket of each flow, by [`FlowId::index`], of each engine.
    by_flow: [Vec<u32>; 2],
    pub(crate) ports: Vec<Port>,
    pub(crate) interests: Interests,
    pub(crate) datagrams: DatagramTable,
    pub(crate) after_callbacks: Vec<AfterCallback>,
    pub(crate) unheard: Unheard,
    /// Connections can move into the kernel.
    pub(crate) can_hand_over: bool,
    /// Bytes of an upload that moves there; zero if none does.
    pub(crate) upload_limit: u64,
    /// Accepted connections that want to, since urgent data came.
    pub(crate) urgent: Vec<SocketId>,
    /// Connections that wait for data before they may be accepted: until when in microseconds, and the socket's number.
    deferred: BTreeSet<(u64, u32)>,
    /// The last connection to come, as long as its ends' addresses have not been noted.
    pub(crate) unnamed: Option<SocketId>,
    /// Connections to listeners that have left, with where those were: somebody else is to have them.
    pub(crate) leaving: Vec<(SocketId, SocketAddr)>,
    /// Something became ready since this was last cleared: threads that sleep should look.
    pub(crate) news: bool,
    /// Something happened to a socket that somebody waits for since this was last cleared.
    pub(crate) noted: bool,
    /// Free sockets that keep their buffers, at most.
    pub(crate) cache_limit: usize,
    idle: IdleBuffers,
}

/// The walk over all sockets that takes empty buffers from connections that do not use theirs: one that is open and idle has none.
struct IdleBuffers {
    /// When the walk goes on; none while no socket has a buffer.
    due: Option<Instant>,
    /// The socket that is next.
    next: usize,
    /// This walk has seen a buffer that stays.
    some_stay: bool,
    /// [`bound::first_buffers`] when it was last looked at.
    first_buffers: usize,
}

/// Time between two walks: a buffer goes when it was not used for one to two of them.
const IDLE_AFTER: Duration = Duration::from_secs(1);
/// Sockets that a walk looks at between two pumps, and how long the others wait: a pump takes microseconds.
const IDLE_SLICE: usize = 1024;
const IDLE_PAUSE: Duration = Duration::from_millis(1);

impl SocketTable {
    pub(crate) const fn new() -> Self {
        Self {
            sockets: Vec::new(),
            base: 0,
            free: Vec::new(),
            left: VecDeque::new(),
            by_flow: [const { Vec::new() }; 2],
            ports: Vec::new(),
            interests: Interests::new(),
            datagrams: DatagramTable::new(),
            after_callbacks: Vec::new(),
            unheard: Unheard::new(),
            can_hand_over: false,
            upload_limit: 0,
            urgent: Vec::new(),
            deferred: BTreeSet::new(),
            unnamed: None,
            leaving: Vec::new(),
            news: false,
            noted: false,
            cache_limit: 4096,
            idle: IdleBuffers { due: None, next: 0, some_stay: false, first_buffers: 0 },
        }
    }

    pub(crate) fn at(&self, id: SocketId) -> &Socket {
        &self.sockets[id.index()]
    }

    pub(crate) fn at_mut(&mut self, id: SocketId) -> &mut Socket {
        &mut self.sockets[id.index()]
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = SocketId> + use<> {
        let base = self.base;
        (0..self.sockets.len() as u32).map(move |index| SocketId(base | index))
    }

    /// Before there are any: sockets are those of that context.
    pub(crate) fn belongs_to(&mut self, context: usize) {
        self.base = (context << INDEX_BITS) as u32;
    }

    /// A free socket, with the buffers of the last one that was closed. `None` without memory for one.
    pub(crate) fn open(&mut self) -> Option<SocketId> {
        if let Some(id) = self.free.pop() {
            return Some(SocketId(id));
        }
        self.sockets.try_reserve(1).ok()?;
        // Each may be free.
        self.free.try_reserve(self.sockets.capacity()).ok()?;
        self.sockets.push(Socket::new());
        Some(SocketId(self.base | (self.sockets.len() as u32 - 1)))
    }

    /// Whether there is memory to note whose a flow is.
    pub(crate) fn has_room_for(&mut self, side: Side, flow: FlowId) -> bool {
        let by_flow = &mut self.by_flow[side.index()];
        by_flow.len() > flow.index() || by_flow.try_reserve(flow.index() + 1 - by_flow.len()).is_ok()
    }

    /// The socket is nobody's any more.
    pub(crate) fn release(&mut self, id: SocketId) {
        self.note(id);
        let keeps_buffers = self.free.len() < self.cache_limit;
        let socket = &mut self.sockets[id.index()];
        let generation = socket.generation.wrapping_add(1);
        if keeps_buffers {
            socket.recycle();
        } else {
            *socket = Socket::new();
        }
        socket.generation = generation;
        self.free.push(id.0);
    }

    /// The socket has moved to another context, and its place is free later.
    pub(crate) fn vacate(&mut self, id: SocketId) {
        const AT_REST: usize = 64;
        self.note(id);
        self.left.push_back(id.0);
        if self.left.len() > AT_REST
            && let Some(oldest) = self.left.pop_front()
        {
            self.release(SocketId(oldest));
        }
    }

    pub(crate) fn bind_flow(&mut self, side: Side, flow: FlowId, id: SocketId) {
        let by_flow = &mut self.by_flow[side.index()];
        if by_flow.len() <= flow.index() {
            by_flow.resize(flow.index() + 1, NONE);
        }
        by_flow[flow.index()] = id.0;
        let socket = &mut self.sockets[id.index()];
        (socket.flow, socket.side) = (Some(flow), side);
    }

    /// The flow is nobody's.
    pub(crate) fn unbind_flow(&mut self, side: Side, flow: FlowId) {
        if let Some(slot) = self.by_flow[side.index()].get_mut(flow.index()) {
            *slot = NONE;
        }
    }

    pub(crate) fn socket_of(&self, side: Side, flow: FlowId) -> Option<SocketId> {
        self.by_flow[side.index()].get(flow.index()).copied().filter(|&id| id != NONE).map(SocketId)
    }

    /// All flows are gone with their engine (after a fork).
    pub(crate) fn forget_flows(&mut self) {
        self.by_flow.iter_mut().for_each(Vec::clear);
        self.ports.clear();
        self.datagrams.forget();
        self.after_callbacks.clear();
        self.unheard.forget();
        self.leaving.clear();
        self.deferred.clear();
        self.urgent.clear();
    }

    /// The state of a socket in epoll's bits (tcp_poll() in Linux).
    pub(crate) fn level(&self, id: SocketId) -> u32 {
        level(&self.sockets[id.index()])
    }

    /// As [`SocketTable::level`], without what the kernel's socket of a listener, or of a UDP socket, has: who asks that socket as well
    /// hears from it what there is now.
    pub(crate) fn level_here(&self, id: SocketId) -> u32 {
        level_with(&self.sockets[id.index()], false)
    }

    /// As [`SocketTable::level`], for somebody who waits for `wanted`.
    pub(crate) fn asked(&mut self, id: SocketId, wanted: u32) -> u32 {
        asked(&mut self.sockets[id.index()], wanted)
    }

    /// Threads that sleep for a socket have to look.
    pub(crate) fn note(&mut self, id: SocketId) {
        self.noted |= core::mem::take(&mut self.sockets[id.index()].awaited);
    }

    /// `news` happened to a socket.
    pub(crate) fn wake(&mut self, id: SocketId, news: u32) {
        let head = self.sockets[id.index()].interests;
        self.news = true;
        self.note(id);
        if head != NONE {
            self.interests.wake(head, news);
        }
    }

    pub(crate) fn collect(&mut self, set: SetId, max: usize, report: impl FnMut(u32, u64)) -> usize {
        let sockets = &mut self.sockets;
        self.interests.collect(
            set,
            max,
            |socket, wanted| asked(&mut sockets[SocketId(socket).index()], wanted),
            report,
        )
    }

    pub(crate) fn set_is_ready(&self, set: SetId) -> bool {
        self.interests.is_ready(set, |socket| level(&self.sockets[SocketId(socket).index()]))
    }

    /// Removes all interests in a socket; `each` sees their sets and descriptors first.
    pub(crate) fn drop_interests(&mut self, id: SocketId) {
        let mut head = self.sockets[id.index()].interests;
        while head != NONE {
            let first = head;
            self.interests.remove(&mut head, first);
        }
        self.sockets[id.index()].interests = NONE;
    }

    /// A connection waits for data before it may be accepted, or until then.
    pub(crate) fn defer(&mut self, id: SocketId, listener: SocketId, until: Instant) {
        self.at_mut(id).waits_for(listener);
        self.at_mut(id).deferred_until = Some(until);
        self.deferred.insert((until.as_micros(), id.0));
    }

    /// A connection that waited for data may be accepted. False if it was none.
    pub(crate) fn promote(&mut self, id: SocketId) -> bool {
        let socket = self.at_mut(id);
        let Some(until) = socket.deferred_until.take() else { return false };
        let listener = socket.listener;
        self.deferred.remove(&(until.as_micros(), id.0));
        self.queue(id, listener);
        true
    }

    /// Connections that have waited for data for long enough may be accepted without (tcp_check_req() in Linux, which sends
    /// its SYN and ACK once more to see whether the peer is there).
    pub(crate) fn promote_due(&mut self, now: Instant) {
        while let Some(&(until, id)) = self.deferred.first()
            && until <= now.as_micros()
        {
            self.promote(SocketId(id));
        }
    }

    /// The listener leaves: whoever has its connections then decides.
    pub(crate) fn promote_all(&mut self, listener: SocketId) {
        let deferred: Vec<SocketId> = self.deferred.iter().map(|&(_, id)| SocketId(id)).collect();
        for id in deferred {
            if self.at(id).listener == listener {
                self.promote(id);
            }
        }
    }

    /// When [`SocketTable::promote_due`] or [`SocketTable::give_back_idle`] has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let deferred = self.deferred.first().map(|&(until, _)| Instant::from_micros(until));
        deferred.into_iter().chain(self.idle.due).min()
    }

    /// Takes empty buffers back from connections that do not use them, when it is time.
    #[inline]
    pub(crate) fn give_back_idle(&mut self, now: Instant) {
        match self.idle.due {
            None if bound::first_buffers() == self.idle.first_buffers => {}
            None => {
                self.idle.first_buffers = bound::first_buffers();
                self.idle.due = Some(now + IDLE_AFTER);
            }
            Some(due) if now < due => {}
            Some(_) => self.walk_idle(now),
        }
    }

    #[cold]
    fn walk_idle(&mut self, now: Instant) {
        let end = (self.idle.next + IDLE_SLICE).min(self.sockets.len());
        for socket in &mut self.sockets[self.idle.next..end] {
            self.idle.some_stay |= socket.receive.give_back_idle() | socket.send.give_back_idle();
        }
        let is_over = end == self.sockets.len();
        self.idle.next = if is_over { 0 } else { end };
        self.idle.due = match is_over {
            true => core::mem::take(&mut self.idle.some_stay).then(|| now + IDLE_AFTER),
            false => Some(now + IDLE_PAUSE),
        };
    }

    /// A connection waits to be accepted.
    pub(crate) fn queue(&mut self, id: SocketId, listener: SocketId) {
        self.at_mut(id).waits_for(listener);
        if let Some(listening) = &mut self.at_mut(listener).listening {
            listening.queue.push_back(id);
        }
        self.wake(listener, bits::IN | bits::RDNORM);
    }

    /// A connection died while it waited for accept(), which returns it all the same, as in Linux. The engine bounds the living;
    /// of the dead only so many wait, too.
    pub(crate) fn bury(&mut self, id: SocketId) {
        if let Some(until) = self.at(id).deferred_until {
            self.deferred.remove(&(until.as_micros(), id.0));
            return self.release(id);
        }
        let listener = self.at(id).listener;
        if listener == SocketId(NONE) {
            self.leaving.retain(|&(leaving, _)| leaving != id);
            return self.release(id);
        }
        let Some(mut listening) = self.at_mut(listener).listening.take() else { return };
        listening.dead += 1;
        if listening.dead > listening.backlog as usize {
            // The oldest.
            let place = listening.queue.iter().position(|&queued| self.at(queued).flow.is_none());
            if let Some(oldest) = place.and_then(|place| listening.queue.remove(place)) {
                listening.dead -= 1;
                self.release(oldest);
            }
        }
        self.at_mut(listener).listening = Some(listening);
    }
}

/// The state of a socket for somebody who waits for `wanted`: that there is room again will be news to who asked for it in
/// vain (SOCK_NOSPACE in tcp_poll()).
fn asked(socket: &mut Socket, wanted: u32) -> u32 {
    let events = level(socket);
    socket.no_space |= wanted & (bits::OUT | bits::WRNORM) != 0 && events & bits::OUT == 0;
    events
}

fn level(socket: &Socket) -> u32 {
    level_with(socket, true)
}

/// tcp_poll() in Linux, net/ipv4/tcp.c. With `kernel` what the kernel's socket is known to have counts.
fn level_with(socket: &Socket, kernel: bool) -> u32 {
    let mut events = 0;
    match socket.state {
        SocketState::Free | SocketState::Candidate => return 0,
        SocketState::Listening => {
            let ready = socket
                .listening
                .as_ref()
                .is_some_and(|listening| listening.has_connections() || kernel && listening.kernel_ready);
            return if ready { bits::IN | bits::RDNORM } else { 0 };
        }
        SocketState::Datagram => events |= datagram_level(socket, kernel),
        SocketState::Connecting => {}
        SocketState::Connected => {
            if socket.receive.len() >= socket.low_water() {
                events |= bits::IN | bits::RDNORM;
            }
            if socket.remote_closed || socket.read_shut {
                events |= bits::IN | bits::RDNORM | bits::RDHUP;
            }
            if socket.write_shut || socket.has_space() {
                events |= bits::OUT | bits::WRNORM;
            }
            if socket.write_shut && (socket.remote_closed || socket.read_shut) {
                events |= bits::HUP;
            }
        }
        SocketState::Ended if socket.disconnected => {
            events |= bits::OUT | bits::HUP | bits::WRNORM;
            if socket.read_shut {
                events |= bits::IN | bits::RDHUP | bits::RDNORM;
            }
        }
        SocketState::Ended | SocketState::Lost => {
            events |= bits::IN | bits::OUT | bits::HUP | bits::RDHUP | bits::RDNORM | bits::WRNORM;
        }
    }
    if socket.pending_error().is_some() {
        events |= bits::ERR;
    }
    if socket.urgent_unread {
        events |= bits::PRI;
    }
    events
}

/// datagram_poll() in Linux, net/core/datagram.c. There is always room to send: a full link drops.
fn datagram_level(socket: &Socket, kernel: bool) -> u32 {
    let mut events = bits::OUT | bits::WRNORM;
    let has_some = |part: &Datagrams| !part.queue.is_empty() || kernel && part.kernel_ready;
    let waits = socket.datagrams.as_deref().is_some_and(has_some);
    if waits || socket.read_shut {
        events |= bits::IN | bits::RDNORM;
    }
    if socket.read_shut {
        events |= bits::RDHUP;
    }
    if socket.read_shut && socket.write_shut {
        events |= bits::HUP;
    }
    if socket.datagrams.as_deref().is_some_and(|part| !part.troubles.is_empty()) {
        events |= bits::ERR;
    }
    events
}

//! One process's stack: its sockets and epoll sets, the engine that carries them, and the link that moves the frames.
//!
//! Nothing here makes a system call or looks at a clock, so two stacks joined in memory are the test bench.

mod away;
mod closing;
mod datagram;
mod frames;
mod handover;
mod listening;
mod moving;
mod opened;
pub(crate) mod rows;
mod sets;
mod settings;
mod stream;
mod tap;

use core::net::SocketAddr;
use core::time::Duration;

use overfly_broker::watch::Show;
use overfly_engine::{Engine, Instant};
use overfly_link::Link;
use overfly_profile::sysctls::FastOpenKeys;
use overfly_wire::MacAddr;

pub(crate) use self::datagram::{DatagramTable, Datagrams};
pub(crate) use self::datagram::{Read, Record, Trouble};
pub(crate) use self::opened::{EndsAre, TIME_WAIT, TIME_WAIT_LEAST};
use crate::interest::bits;
use crate::socket::{Listening, Side, Socket, SocketId, SocketState};
use crate::socket_table::SocketTable;

/// The next hop where the engine is to ask for it itself.
const UNKNOWN: MacAddr = MacAddr([0; 6]);

/// What carries the sockets.
struct Interface<T> {
    engine: Engine,
    transport: T,
}

/// The sockets of a process, from the first one on; the engine joins them when it is first needed.
pub struct Stack<T> {
    sockets: SocketTable,
    /// By [`Side`].
    interfaces: [Option<Interface<T>>; 2],
    /// Kicks are left to whoever holds the lock: other threads wait for it.
    pub(crate) defers: bool,
    /// A thread that does not hold it is in such a kick, or about to be.
    pub(crate) kick_underway: bool,
    /// The link's descriptor that must be kicked.
    owed: Option<i32>,
    /// Bytes that the program has read since the last look.
    taken: usize,
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

impl<T: Link> Stack<T> {
    /// A stack without an engine.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            sockets: SocketTable::new(),
            interfaces: [None, None],
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
            taken: 0,
        }
    }

    /// Before there are sockets: they are those of that context.
    pub(crate) fn belongs_to(&mut self, context: usize) {
        self.sockets.belongs_to(context);
    }

    /// Gives the stack what carries it on one side.
    pub fn start(&mut self, side: Side, engine: Engine, transport: T, cache_limit: usize) {
        self.sockets.cache_limit = cache_limit;
        self.fast_open_keys = None;
        self.interfaces[side.index()] = Some(Interface { engine, transport });
    }

    fn interface(&self, side: Side) -> Option<&Interface<T>> {
        self.interfaces[side.index()].as_ref()
    }

    fn running(&self) -> impl Iterator<Item = &Interface<T>> {
        self.interfaces.iter().flatten()
    }

    /// Connections can move into the kernel: those with urgent data will ask for it.
    pub(crate) fn hands_over(&mut self, can: bool) {
        self.sockets.can_hand_over = can;
    }

    /// An upload of so many bytes will ask for it, too; zero if none does.
    pub(crate) fn hands_over_uploads(&mut self, limit: u64) {
        self.sockets.upload_limit = limit;
    }

    /// Whether [`Stack::take_urgent`] would return any.
    pub(crate) fn has_urgent(&self) -> bool {
        !self.sockets.urgent.is_empty()
    }

    /// Connections that urgent data came for since this was last asked.
    pub(crate) fn take_urgent(&mut self) -> Vec<SocketId> {
        core::mem::take(&mut self.sockets.urgent)
    }

    /// One of them is to be returned once more.
    pub(crate) fn put_off_urgent(&mut self, id: SocketId) {
        self.sockets.urgent.push(id);
    }

    /// Whether there is an engine.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running().next().is_some()
    }

    /// Whether there is one on this side.
    #[must_use]
    pub fn runs(&self, side: Side) -> bool {
        self.interface(side).is_some()
    }

    /// After a fork: the parent, or one of its own, goes on with the flows (number `ancestor` of them, for those that were
    /// this process's), and this process has only its descriptors and epoll sets. Returns the transports, to be closed.
    pub fn forget(&mut self, ancestor: u32) -> [Option<T>; 2] {
        // Of those the child has all there is to know, with what was not read.
        let over = self.over();
        let interfaces = core::mem::take(&mut self.interfaces);
        for id in self.sockets.ids() {
            let socket = self.sockets.at_mut(id);
            // The threads that hold any are the parent's.
            (socket.holders, socket.waits_are_seen) = (0, true);
            match socket.state {
                SocketState::Listening => {
                    if let Some(listening) = &mut socket.listening {
                        let Listening { backlog, defer, forced_nonblocking, .. } = **listening;
                        **listening =
                            Listening { backlog, defer, forced_nonblocking, ..Listening::default() };
                    }
                }
                SocketState::Datagram => {
                    socket.receive.recycle();
                    if let Some(part) = &mut socket.datagrams {
                        part.forget_all_but_settings();
                    }
                }
                SocketState::Connecting | SocketState::Connected | SocketState::Ended => {
                    socket.flow = None;
                    if socket.is_orphan() || socket.queued {
                        self.sockets.release(id);
                    } else if over.contains(&id) {
                        socket.state = SocketState::Ended;
                        socket.shared = true;
                    } else {
                        socket.state = SocketState::Lost;
                        socket.ancestor = ancestor;
                    }
                }
                SocketState::Free | SocketState::Candidate | SocketState::Lost => {}
            }
        }
        self.sockets.forget_flows();
        interfaces.map(|interface| interface.map(|interface| interface.transport))
    }

    /// A socket that is neither listening nor connected yet; AF_INET6 if `v6`. `None` without memory for it.
    pub fn open(&mut self, descriptor: i32, v6: bool, nonblocking: bool) -> Option<SocketId> {
        let id = self.sockets.open()?;
        let socket = self.sockets.at_mut(id);
        socket.state = SocketState::Candidate;
        socket.references = 1;
        socket.descriptor = descriptor;
        socket.v6 = v6;
        socket.nonblocking = nonblocking;
        Some(id)
    }

    /// Whether an active open could have these ends; those in TIME-WAIT have to have been for so long, with timestamps
    /// ([`Engine::has_waited`]), or `None`: are free at once.
    #[must_use]
    pub fn is_free(
        &self,
        now: Instant,
        local: SocketAddr,
        remote: SocketAddr,
        after: Option<Duration>,
    ) -> bool {
        let Some(interface) = self.interface(Side::Network) else { return true };
        let waited =
            |after| interface.engine.has_waited(now, local, remote).is_some_and(|time| time >= after);
        interface
            .engine
            .state_between(local, remote)
            .is_none_or(|state| state == overfly_engine::State::TimeWait && after.is_none_or(waited))
    }

    /// The socket stays in the kernel: forget it. Its interests are the kernel's.
    pub fn leave_to_kernel(&mut self, id: SocketId) {
        self.sockets.drop_interests(id);
        self.sockets.release(id);
    }

    /// The socket's state in epoll's bits.
    #[must_use]
    pub fn level(&self, id: SocketId) -> u32 {
        self.sockets.level(id)
    }

    /// The same without what the kernel's socket has.
    pub(crate) fn level_here(&self, id: SocketId) -> u32 {
        self.sockets.level_here(id)
    }

    /// The same for somebody who waits for `wanted`.
    pub fn asked(&mut self, id: SocketId, wanted: u32) -> u32 {
        self.sockets.asked(id, wanted)
    }

    /// Connections that the program holds and the engine carries.
    pub(crate) fn connections(&self) -> impl Iterator<Item = SocketId> {
        self.sockets.ids().filter(|&id| {
            let socket = self.sockets.at(id);
            socket.references > 0 && socket.flow.is_some()
        })
    }

    /// Those that only calls have that wait for them: the program has closed its descriptors.
    pub(crate) fn kept_by_calls(&self) -> Vec<SocketId> {
        let is_one = |&id: &SocketId| {
            let socket = self.sockets.at(id);
            socket.references == 0 && socket.holders > 0 && socket.flow.is_some()
        };
        self.sockets.ids().filter(is_one).collect()
    }

    pub(crate) fn socket(&self, id: SocketId) -> &Socket {
        self.sockets.at(id)
    }

    pub(crate) fn socket_mut(&mut self, id: SocketId) -> &mut Socket {
        self.sockets.at_mut(id)
    }

    /// The kernel's listening socket has a connection.
    pub(crate) fn kernel_ready(&mut self, id: SocketId) {
        self.kernel_datagram_ready(id);
        if self.sockets.at_mut(id).listening.as_mut().map(|listening| listening.kernel_ready = true).is_some()
        {
            self.sockets.wake(id, bits::IN | bits::RDNORM);
        }
    }

    /// A connection's ends, and who is behind it.
    pub(crate) fn way(&self, id: SocketId) -> Option<(SocketAddr, SocketAddr, MacAddr)> {
        let socket = self.sockets.at(id);
        let (flow, interface) = socket.flow.zip(self.interface(socket.side))?;
        let (local, remote) = interface.engine.tuple(flow);
        Some((local, remote, interface.engine.next_hop(flow)))
    }

    /// The connection within the host that has these ends.
    pub(crate) fn within_host(&self, local: SocketAddr, remote: SocketAddr) -> Option<SocketId> {
        self.sockets.ids().find(|&id| {
            self.sockets.at(id).side == Side::Loopback
                && self.way(id).is_some_and(|way| (way.0, way.1) == (local, remote))
        })
    }

    pub(crate) fn engine(&self, side: Side) -> Option<&Engine> {
        self.interface(side).map(|interface| &interface.engine)
    }

    pub(crate) fn transport_mut(&mut self, side: Side) -> Option<&mut T> {
        self.interfaces[side.index()].as_mut().map(|interface| &mut interface.transport)
    }

    /// The network's device is another one, with that hardware address.
    pub(crate) fn renew(
        &mut self,
        mac: MacAddr,
        renew: impl FnOnce(&mut T) -> Result<(), String>,
    ) -> Result<(), String> {
        let Some(interface) = &mut self.interfaces[Side::Network.index()] else { return Ok(()) };
        renew(&mut interface.transport)?;
        interface.engine.set_mac(mac);
        Ok(())
    }

    /// Segments leave over the network together, as far as the link takes them, or one by one.
    pub(crate) fn sends_together(&mut self, together: bool) {
        if let Some(interface) = &mut self.interfaces[Side::Network.index()] {
            let bytes = if together { interface.transport.segment_offload() } else { 0 };
            interface.engine.set_segment_offload(bytes);
        }
    }

    pub(crate) fn transport(&self, side: Side) -> Option<&T> {
        self.interface(side).map(|interface| &interface.transport)
    }

    pub(crate) fn transports(&self) -> impl Iterator<Item = &T> {
        self.running().map(|interface| &interface.transport)
    }
}

impl<T: Link> Default for Stack<T> {
    fn default() -> Self {
        Self::new()
    }
}

//! Connections between programs of one host, and within a program: one stack's end of all of them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use overfly_wire::{FrameSink, Unfinished};

use super::doorbell::{Doorbell, Registered};
use super::rendezvous::{self, Found, NamedListener, PLACES};
use super::{FRAME_LEN_MAX, Hub, MemifLink, Pair, Registry, Settings};
use crate::counters::counters;
use crate::{Each, Error, Gone, Link, each_of};

/// A hardware address.
type Mac = [u8; 6];

/// How long what was found at an address and port is believed.
const BELIEVED: Duration = Duration::from_secs(1);
/// Addresses and ports that are remembered at most.
const KNOWN_MAX: usize = 1024;
/// A ring's entries: 1 MB each way, as many programs may have links.
const LOG2_RING_SIZE: u8 = 9;
/// Visitors that have come and said nothing yet, at most: one more takes the oldest one's place.
const VISITORS_MAX: usize = 64;
/// How long one may say nothing.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of frames to this stack itself that wait at most.
const QUEUE_BYTES_MAX: usize = 8 << 20;
/// Frames' memory that is kept for the next ones.
const SPARE_MAX: usize = 256;
/// Calls of `receive` before the doors are looked at again, about a millisecond of spinning; those that find frames count for
/// several.
const PATROL: u32 = 16_384;
const BUSY_CALL: u32 = 16;
/// While somebody says nothing, this stack wakes each millisecond only.
const WAITING_CALL: u32 = 64;

counters! {
    /// What a [`Loopback`] has done besides what its links count.
    LoopbackCounters {
        /// Frames from this stack to itself.
        own_frames,
        /// Those of them that were dropped because too many waited.
        own_dropped,
        /// Links that this stack offered, and that it took.
        offered,
        /// Links that another stack offered.
        taken,
        /// Offers that made no sense.
        refused,
    }
}

/// A stack: its process as [`rendezvous::process_of`], and which of that process's stacks it is.
type Who = (u64, u8);

/// Another stack with a link to it.
#[derive(Debug)]
struct Peer {
    /// What this end calls it: the next hop of connections to it.
    name: Mac,
    who: Who,
    /// For what is said besides frames.
    channel: Registered,
    /// It will say nothing any more.
    has_left: bool,
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherEnd {
    /// This stack.
    Own,
    /// Another one, as [`Loopback`] calls it.
    Peer([u8; 6]),
}

/// A message from another stack.
#[derive(Debug)]
pub struct Word {
    /// Who says it.
    pub from: [u8; 6],
    /// What is said.
    pub bytes: Vec<u8>,
    /// What comes with it.
    pub descriptors: Vec<OwnedFd>,
}

/// Where this stack listens: for others too, or for itself only.
#[derive(Debug)]
struct OwnListener {
    local: SocketAddr,
    for_others: Option<(NamedListener, Registered)>,
}

/// What was found at an address and port.
#[derive(Debug)]
struct Known {
    looked: Instant,
    /// Next hops of the stacks that listen there.
    next_hops: Vec<Mac>,
    /// Whose turn it is.
    turn: usize,
}

/// A switch between one stack and those of all programs of the same user and network namespace that it has connections with;
/// with itself, too. A link is made when the first connection needs it, and stays until one of the two stacks goes.
#[derive(Debug)]
pub struct Loopback {
    own: Mac,
    /// Which of its process's stacks it is.
    stack: u8,
    hub: Hub,
    /// All that ends a sleep.
    doorbell: Doorbell,
    /// Readable when somebody says something.
    calls_doorbell: Doorbell,
    registry: Registry,
    doors: Vec<OwnListener>,
    /// By when they came.
    visitors: VecDeque<(Registered, Instant)>,
    peers: Vec<Peer>,
    /// How many have been named.
    names: u32,
    known: HashMap<SocketAddr, Known>,
    /// There have been frames to this stack itself: each frame's destination must be looked at.
    to_self: bool,
    scratch: Box<[u8]>,
    queue: VecDeque<Vec<u8>>,
    queued_bytes: usize,
    spare: Vec<Vec<u8>>,
    /// Next hops that have gone, until somebody asks.
    gone: Vec<Mac>,
    /// Somebody may be at a door.
    rang: bool,
    /// A link's interrupt may have come, or its peer may have gone.
    rang_since_armed: bool,
    calls: u32,
    counters: LoopbackCounters,
}

impl Loopback {
    /// Nobody's peer yet. `own` is the stack's hardware address, which no other stack may have. `stack`: which of its process's
    /// it is, below [`PROCESS_STACKS_MAX`](super::PROCESS_STACKS_MAX); 0 if it is the only one.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn new(own: [u8; 6], stack: u8, registry: Registry) -> Result<Loopback, Error> {
        Ok(Loopback {
            own,
            stack,
            hub: Hub::without_flooding(),
            doorbell: Doorbell::new(registry)?,
            calls_doorbell: Doorbell::new(registry)?,
            registry,
            doors: Vec::new(),
            visitors: VecDeque::new(),
            peers: Vec::new(),
            names: 0,
            known: HashMap::new(),
            to_self: false,
            scratch: Box::default(),
            queue: VecDeque::new(),
            queued_bytes: 0,
            spare: Vec::new(),
            gone: Vec::new(),
            rang: false,
            rang_since_armed: false,
            calls: 0,
            counters: LoopbackCounters::default(),
        })
    }

    /// Connections to `local` may come to this stack from now on, from others or only from itself.
    ///
    /// # Errors
    /// What the kernel said, or that as many processes as can be found listen there already: then others cannot come.
    pub fn listen(&mut self, local: SocketAddr, for_others: bool) -> Result<(), Error> {
        if self.doors.iter().any(|door| door.local == local) {
            return Ok(());
        }
        // What was found before does not know of this one.
        self.known.clear();
        self.doors.push(OwnListener { local, for_others: None });
        if for_others {
            let (door, socket) = NamedListener::open(local, self.stack)?;
            let socket = Registered::new(socket, self.registry);
            self.doorbell.ring_for(socket.as_fd());
            if let Some(own) = self.doors.last_mut() {
                own.for_others = Some((door, socket));
            }
        }
        Ok(())
    }

    /// They come no more.
    pub fn unlisten(&mut self, local: SocketAddr) {
        self.doors.retain(|door| door.local != local);
        self.known.clear();
    }

    /// The next hop of a connection to `remote`: a stack that listens there, each of them in turn (or this one, if nobody
    /// else is wanted); `None` if there is none that can be reached so.
    pub fn reach(&mut self, remote: SocketAddr, only_own: bool) -> Option<[u8; 6]> {
        let now = Instant::now();
        let believed = |known: &Known| now - known.looked < BELIEVED;
        if !self.known.get(&remote).is_some_and(believed) {
            let next_hops = self.look(remote);
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
            // Programs that make one connection each do not all begin with the same one.
            let turn = self.known.get(&remote).map_or(usize::from(self.own[5]), |known| known.turn);
            self.known.insert(remote, Known { looked: now, next_hops, turn });
        }
        let known = self.known.get_mut(&remote)?;
        known.turn = known.turn.wrapping_add(1);
        let next_hop = if only_own {
            known.next_hops.iter().copied().find(|&next_hop| next_hop == self.own)?
        } else {
            *known.next_hops.get(known.turn.checked_rem(known.next_hops.len())?)?
        };
        if next_hop == self.own && !self.to_self {
            self.to_self = true;
            self.scratch = vec![0; FRAME_LEN_MAX].into_boxed_slice();
        }
        Some(next_hop)
    }

    /// Who listens at an address and port: whoever listens at that very address, else whoever listens at all of them.
    fn look(&mut self, remote: SocketAddr) -> Vec<Mac> {
        let any = match remote.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        self.check_peers();
        let mut socket = None;
        for local in [remote, SocketAddr::new(any, remote.port())] {
            let own = self.doors.iter().any(|door| door.local == local).then_some(self.own);
            let mut next_hops = Vec::from_iter(own);
            next_hops.extend(self.others(local, &mut socket));
            if !next_hops.is_empty() {
                return next_hops;
            }
        }
        Vec::new()
    }

    /// Other stacks that listen at that very address and port.
    pub fn others_at(&mut self, local: SocketAddr) -> Vec<[u8; 6]> {
        self.check_peers();
        self.others(local, &mut None)
    }

    fn others(&mut self, local: SocketAddr, socket: &mut Option<OwnedFd>) -> Vec<Mac> {
        let own = self.doors.iter().find(|door| door.local == local);
        let own_place = own.and_then(|door| door.for_others.as_ref()).map(|(door, _)| door.place);
        let mut next_hops = Vec::new();
        for place in (0..PLACES).filter(|&place| Some(place) != own_place) {
            if let Ok(Found::Process(process, channel)) = rendezvous::knock(local, place, socket) {
                next_hops.extend(self.link_to((process, rendezvous::stack_at(place)), channel));
            }
        }
        next_hops
    }

    /// The link to a stack, made if there is none.
    fn link_to(&mut self, who: Who, channel: OwnedFd) -> Option<Mac> {
        let known = self.peers.iter().find(|peer| peer.who == who);
        if let Some(peer) = known {
            return Some(peer.name);
        }
        let settings = Settings { log2_ring_size: LOG2_RING_SIZE, ..Settings::default() };
        let pair = rendezvous::offer(&channel, &settings, self.stack).ok()?;
        self.counters.offered += 1;
        self.attach(pair, who, Registered::new(channel, self.registry))
    }

    fn attach(&mut self, pair: Pair, who: Who, channel: Registered) -> Option<Mac> {
        let link = MemifLink::open_registered(pair, Some(self.registry)).ok()?;
        for descriptor in link.descriptors() {
            self.doorbell.ring_for(descriptor);
        }
        // Locally administered; the other half of them is the stacks' own.
        let [a, b, c, d] = self.names.to_be_bytes();
        let name = [0x06, 0, a, b, c, d];
        self.names = self.names.wrapping_add(1);
        self.hub.attach_as(link, name);
        self.calls_doorbell.ring_for(channel.as_fd());
        self.peers.push(Peer { name, who, channel, has_left: false });
        Some(name)
    }

    /// Takes what visitors offer.
    #[cold]
    fn accept(&mut self) {
        let now = Instant::now();
        let mut come = 0;
        for (_, socket) in self.doors.iter().filter_map(|door| door.for_others.as_ref()) {
            while come < VISITORS_MAX
                && let Some(visitor) = NamedListener::accept(socket)
            {
                come += 1;
                self.visitors.push_back((Registered::new(visitor, self.registry), now));
            }
        }
        for (visitor, came) in core::mem::take(&mut self.visitors) {
            match rendezvous::take_offer(&visitor) {
                Ok(Some((pair, stack))) => {
                    let process = rendezvous::process_of(visitor.as_fd()).unwrap_or(0);
                    let taken = self.attach(pair, (process, stack), visitor).is_some();
                    self.counters.taken += u64::from(taken);
                    self.counters.refused += u64::from(!taken);
                }
                Ok(None) if now - came < PATIENCE => {
                    self.doorbell.ring_for(visitor.as_fd());
                    self.visitors.push_back((visitor, came));
                }
                Ok(None) => self.counters.refused += 1,
                // Who only looked whether anybody is here has gone again.
                Err(Error::MemifGone { .. }) => {}
                Err(_) => self.counters.refused += 1,
            }
        }
        while self.visitors.len() > VISITORS_MAX {
            self.visitors.pop_front();
            self.counters.refused += 1;
        }
    }

    fn forget_the_gone(&mut self) {
        let gone = self.hub.take_gone();
        if !gone.is_empty() {
            self.peers.retain(|peer| !gone.contains(&peer.name));
            self.known.clear();
            self.gone.extend(gone);
        }
    }

    /// Who is behind a next hop; `None` if nobody is any more.
    #[must_use]
    pub fn other_end(&self, next_hop: [u8; 6]) -> Option<OtherEnd> {
        if next_hop == self.own {
            return Some(OtherEnd::Own);
        }
        let peer = self.peers.iter().find(|peer| self.hub.is_same(peer.name, next_hop))?;
        Some(OtherEnd::Peer(peer.name))
    }

    /// Whether there are links to other stacks.
    #[inline]
    #[must_use]
    pub fn has_peers(&self) -> bool {
        !self.peers.is_empty()
    }

    /// Readable when [`Loopback::hear`] may have something.
    #[must_use]
    pub fn calls_doorbell(&self) -> BorrowedFd<'_> {
        self.calls_doorbell.as_fd()
    }

    /// Says something to another stack, with descriptors: four at most.
    ///
    /// # Errors
    /// [`Error::MemifGone`].
    pub fn say(&self, to: [u8; 6], bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let peer = self.peers.iter().find(|peer| peer.name == to);
        let peer = peer.ok_or(Error::MemifGone { during: "a word", errno: None })?;
        rendezvous::say(&peer.channel, bytes, descriptors)
    }

    /// Whether the other stack will say nothing any more. The frames that it sent before may still have to be received.
    #[must_use]
    pub fn has_left(&self, who: [u8; 6]) -> bool {
        self.peers.iter().find(|peer| peer.name == who).is_none_or(|peer| peer.has_left)
    }

    /// Looks who has gone. Of those whose frames have all been received the next [`Link::take_gone`] tells.
    pub fn check_peers(&mut self) {
        self.hub.check_peers();
        self.forget_the_gone();
    }

    /// The next thing that another stack says, in `most` bytes at most. Does not wait.
    pub fn hear(&mut self, most: usize) -> Option<Word> {
        for peer in &mut self.peers {
            match rendezvous::hear(&peer.channel, most) {
                Ok(Some((bytes, descriptors))) => return Some(Word { from: peer.name, bytes, descriptors }),
                Ok(None) => {}
                // Its link says so, too.
                Err(_) => {
                    peer.has_left = true;
                    self.calls_doorbell.ring_no_more_for(peer.channel.as_fd());
                }
            }
        }
        None
    }

    /// The links to other stacks.
    #[must_use]
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// What it has done.
    #[must_use]
    pub fn counters(&self) -> &LoopbackCounters {
        &self.counters
    }

    /// Queues the frame in the scratch for this stack itself.
    fn keep(&mut self, length: usize) {
        self.counters.own_frames += 1;
        if self.queued_bytes + length > QUEUE_BYTES_MAX {
            self.counters.own_dropped += 1;
            return;
        }
        let mut frame = self.spare.pop().unwrap_or_default();
        frame.clear();
        frame.extend_from_slice(&self.scratch[..length]);
        self.queued_bytes += length;
        self.queue.push_back(frame);
    }
}

impl Link for Loopback {
    #[inline]
    fn receive(&mut self, budget: usize, mut each: impl FnMut(&[u8])) -> usize {
        let own = self.queue.len().min(budget);
        for _ in 0..own {
            let Some(frame) = self.queue.pop_front() else { break };
            each(&frame);
            self.queued_bytes -= frame.len();
            if self.spare.len() < SPARE_MAX {
                self.spare.push(frame);
            }
        }
        let mut count = own + self.hub.receive(budget - own, &mut each);
        if count == 0 && core::mem::take(&mut self.rang) {
            self.accept();
            count = self.hub.receive(budget, &mut each);
        }
        self.calls += match (count, self.visitors.is_empty()) {
            (0, true) => 1,
            (0, false) => WAITING_CALL,
            _ => BUSY_CALL,
        };
        if self.calls >= PATROL {
            self.calls = 0;
            self.accept();
        }
        count
    }

    #[inline]
    fn flush(&mut self) {
        self.hub.flush();
    }

    fn arm(&mut self) -> bool {
        let rang = core::mem::take(&mut self.rang_since_armed);
        let safe = if rang { self.hub.arm_by(&self.doorbell) } else { self.hub.arm_unchecked() };
        safe && self.queue.is_empty()
    }

    fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        core::iter::once(self.doorbell.as_fd())
    }

    fn rang(&mut self) {
        (self.rang, self.rang_since_armed) = (true, true);
    }

    /// A visitor has not said what it offers yet.
    fn is_busy(&self) -> bool {
        !self.visitors.is_empty()
    }

    fn take_gone(&mut self) -> Option<Gone> {
        self.forget_the_gone();
        Gone::those(core::mem::take(&mut self.gone))
    }

    fn each_counter(&self, each: Each<'_>) {
        each("loopback", "peers", self.hub.links() as u64);
        each_of("loopback", self.counters.named().chain(self.hub.link_counters().named()), each);
    }
}

impl FrameSink for Loopback {
    #[inline]
    fn frame(&mut self) -> Option<&mut [u8]> {
        if self.to_self { Some(&mut self.scratch) } else { self.hub.frame() }
    }

    #[inline]
    fn commit(&mut self, length: usize) {
        self.commit_unfinished(length, Unfinished::default());
    }

    #[inline]
    fn commit_unfinished(&mut self, length: usize, left: Unfinished) {
        if !self.to_self {
            self.hub.commit_unfinished(length, left);
        } else if self.scratch.starts_with(&self.own) {
            self.keep(length);
        } else {
            self.hub.send(&self.scratch[..length], left);
        }
    }
}

#[cfg(test)]
mod tests;

//! UDP sockets over the engine: what each has received, in order and within its bound, and what it hears of failures.

mod queue;
mod several;

use core::mem::MaybeUninit;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::BTreeMap;

use overfly_engine::{Datagram, Error, Instant, Report, SendError, UdpId, Unreachable};
use overfly_wire::MacAddr;

pub(crate) use self::queue::{BoundAt, Datagrams, Read, Record, Trouble};
use self::queue::{OVERHEAD, meaning};
use super::Stack;
use crate::interest::{NONE, bits};
use crate::options::wants;
use crate::socket::{Side, SocketId, SocketState};
use crate::socket_table::SocketTable;
use overfly_link::Link;

/// Destinations whose next hop is remembered at most, and for how long before the kernel is asked again.
const MAX_NEXT_HOPS: usize = 4096;
const NEXT_HOP_VALID: Duration = Duration::from_secs(30);
/// For how long the kernel sends to a destination that no way was found to: asking may take a second.
const ELSEWHERE_VALID: Duration = Duration::from_secs(10);

/// Of the whole process.
#[derive(Default)]
pub(crate) struct DatagramTable {
    /// Socket of each of the engine's, by [`UdpId::index`].
    by_id: Vec<u32>,
    /// When the kernel was asked for the way to a destination.
    next_hops: BTreeMap<IpAddr, Instant>,
    /// Destinations that the kernel sends to itself, and since when.
    elsewhere: BTreeMap<IpAddr, Instant>,
    /// Dropped because their socket's queue was full.
    pub(crate) overflows: u64,
    /// Segments of a datagram that the link took the beginning of, and had no room for the rest.
    pub(crate) unsent_segments: u64,
}

impl DatagramTable {
    pub(crate) const fn new() -> Self {
        Self {
            by_id: Vec::new(),
            next_hops: BTreeMap::new(),
            elsewhere: BTreeMap::new(),
            overflows: 0,
            unsent_segments: 0,
        }
    }

    /// All places are gone with their engine (after a fork).
    pub(crate) fn forget(&mut self) {
        self.by_id.clear();
        self.next_hops.clear();
        self.elsewhere.clear();
    }

    fn socket(&self, id: UdpId) -> Option<SocketId> {
        self.by_id.get(id.index()).copied().filter(|&id| id != NONE).map(SocketId)
    }
}

impl SocketTable {
    pub(crate) fn datagram_arrived(&mut self, arrived: Instant, id: UdpId, datagram: &Datagram<'_>) {
        let Some(id) = self.datagrams.socket(id) else { return };
        let socket = self.at_mut(id);
        let Some(part) = &mut socket.datagrams else { return };
        // Linux, too, takes one more where there is any room left (__udp_enqueue_schedule_skb()).
        if socket.receive.len() + part.queue.len() * OVERHEAD > part.limit {
            self.datagrams.overflows += 1;
            return;
        }
        if !socket.receive.push(datagram.payload) {
            self.datagrams.overflows += 1;
            return;
        }
        part.queue.push_back(Record {
            source: datagram.source,
            length: datagram.payload.len(),
            destination: datagram.destination.ip(),
            traffic_class: datagram.traffic_class,
            hop_limit: datagram.hop_limit,
            arrived,
        });
        self.wake(id, bits::IN | bits::RDNORM);
    }

    /// __udp4_lib_err() in Linux, net/ipv4/udp.c, and __udp6_lib_err() in net/ipv6/udp.c: sockets with an error queue hear of
    /// everything, connected ones of hard errors at their next call, others of nothing.
    pub(crate) fn datagram_failed_at(
        &mut self,
        arrived: Instant,
        id: UdpId,
        remote: SocketAddr,
        why: Unreachable,
        report: &Report<'_>,
    ) {
        let Some(id) = self.datagrams.socket(id) else { return };
        let socket = self.at_mut(id);
        let Some(part) = &mut socket.datagrams else { return };
        let (error, is_hard) = meaning(why, remote.is_ipv6());
        let wanted = if remote.is_ipv6() { wants::ERRORS_6 } else { wants::ERRORS };
        if part.wants & wanted != 0 {
            // sock_queue_err_skb() in net/core/skbuff.c.
            let held = socket.receive.len() + (part.queue.len() + part.troubles.len()) * OVERHEAD;
            if held + OVERHEAD < part.limit {
                part.troubles.push_back(Trouble::new(error, arrived, remote, report));
            } else {
                self.datagrams.overflows += 1;
            }
        } else if !is_hard || part.connected.is_none() {
            return;
        }
        self.at_mut(id).error = Some(error);
        self.wake(id, bits::IN | bits::OUT | bits::ERR | bits::RDNORM | bits::WRNORM);
    }
}

impl<T: Link> Stack<T> {
    /// A UDP socket; AF_INET6 if `v6`. `None` without memory for it.
    pub fn open_datagram(&mut self, descriptor: i32, v6: bool, nonblocking: bool) -> Option<SocketId> {
        let id = self.open(descriptor, v6, nonblocking)?;
        let forks = self.forks;
        let socket = self.sockets.at_mut(id);
        (socket.state, socket.forks) = (SocketState::Datagram, forks);
        socket.datagrams = Some(Box::default());
        Some(id)
    }

    pub(crate) fn datagrams(&self, id: SocketId) -> Option<&Datagrams> {
        self.sockets.at(id).datagrams.as_deref()
    }

    pub(crate) fn datagrams_mut(&mut self, id: SocketId) -> Option<&mut Datagrams> {
        self.sockets.at_mut(id).datagrams.as_deref_mut()
    }

    /// Datagrams dropped because their socket's queue was full.
    #[must_use]
    pub fn datagram_overflows(&self) -> u64 {
        self.sockets.datagrams.overflows
    }

    /// Segments that were dropped as the link had no room.
    #[must_use]
    pub fn unsent_segments(&self) -> u64 {
        self.sockets.datagrams.unsent_segments
    }

    /// Another socket than `id` that is at `local`.
    pub(crate) fn datagram_beside(&self, id: SocketId, local: SocketAddr) -> Option<SocketId> {
        self.sockets.datagrams.by_id.iter().map(|&other| SocketId(other)).find(|&other| {
            other != SocketId(NONE)
                && other != id
                && self.datagrams(other).is_some_and(|part| {
                    part.places.iter().any(|place| place.local == local && place.remote.is_none())
                })
        })
    }

    /// The socket's datagrams come to this process from now on; one for both families has two places. `shared`: another may be
    /// there already (SO_REUSEPORT).
    ///
    /// # Errors
    /// [`Engine::udp_open`](overfly_engine::Engine::udp_open)'s.
    pub fn place_datagram(
        &mut self,
        id: SocketId,
        local: SocketAddr,
        remote: Option<SocketAddr>,
        shared: bool,
    ) -> Result<(), Error> {
        let Some(interface) = &mut self.interfaces[Side::Network.index()] else {
            return Err(Error::NoNeighbor);
        };
        let placed = match remote {
            None if shared => interface.engine.udp_open_shared(local),
            remote => interface.engine.udp_open(local, remote),
        };
        let place = BoundAt { id: placed?, local, remote };
        let by_id = &mut self.sockets.datagrams.by_id;
        if by_id.len() <= place.id.index() {
            by_id.resize(place.id.index() + 1, NONE);
        }
        by_id[place.id.index()] = id.0;
        if let Some(part) = self.datagrams_mut(id) {
            part.places.push(place);
        }
        self.mark_datagrams(id);
        Ok(())
    }

    /// The traffic class of its packets is another one, whatever family they are of. Returns what they were marked with.
    pub(crate) fn mark_next_datagrams(&mut self, id: SocketId, class: u8) -> Option<[(u8, u8); 2]> {
        let marks = self.datagrams(id)?.marks;
        self.set_datagrams_marks(id, marks.map(|(_, hops)| (class, hops)));
        Some(marks)
    }

    /// Its packets have these from now on ([`Datagrams::marks`]).
    pub(crate) fn set_datagrams_marks(&mut self, id: SocketId, marks: [(u8, u8); 2]) {
        let Some(part) = self.datagrams_mut(id) else { return };
        part.marks = marks;
        self.mark_datagrams(id);
    }

    /// Its packets are marked as its settings say.
    fn mark_datagrams(&mut self, id: SocketId) {
        let Some(interface) = &mut self.interfaces[Side::Network.index()] else { return };
        let Some(part) = self.sockets.at(id).datagrams.as_deref() else { return };
        for place in &part.places {
            let (class, hops) = part.marks[usize::from(place.local.is_ipv6())];
            interface.engine.udp_set_traffic_class(place.id, class);
            interface.engine.udp_set_hop_limit(place.id, hops);
        }
    }

    /// The engine is another one: the socket has its places there, or none.
    pub(super) fn move_datagram(&mut self, id: SocketId) {
        let Some(part) = self.datagrams_mut(id) else { return };
        for BoundAt { local, remote, .. } in core::mem::take(&mut part.places) {
            // The kernel has decided who may be there.
            if self.place_datagram(id, local, remote, true).is_err() {
                return self.displace_datagram(id);
            }
        }
    }

    /// They come no more. What has come can still be read.
    pub fn displace_datagram(&mut self, id: SocketId) {
        let Some(part) = self.datagrams_mut(id) else { return };
        for place in core::mem::take(&mut part.places) {
            self.sockets.datagrams.by_id[place.id.index()] = NONE;
            if let Some(interface) = &mut self.interfaces[Side::Network.index()] {
                interface.engine.udp_close(place.id);
            }
        }
    }

    /// `news` happened to a UDP socket.
    pub(crate) fn datagram_news(&mut self, id: SocketId, news: u32) {
        self.sockets.wake(id, news);
    }

    /// A datagram was sent: there is room again once it has gone, and edge-triggered sets report each time (sock_wfree() in
    /// net/core/sock.c). Others only look at what is.
    pub(crate) fn datagram_sent(&mut self, id: SocketId) {
        let news = bits::OUT | bits::WRNORM;
        if self.sockets.interests.hear_edges(self.sockets.at(id).interests, news) {
            self.sockets.wake(id, news);
        }
    }

    /// The kernel's UDP socket has something.
    pub(crate) fn kernel_datagram_ready(&mut self, id: SocketId) {
        if let Some(part) = self.datagrams_mut(id) {
            part.kernel_ready = true;
            self.sockets.wake(id, bits::IN | bits::RDNORM);
        }
    }

    /// Reads the oldest datagram into `target`, which has `room` bytes, and drops what does not fit; with UDP_GRO also those after
    /// it that belong to it. `peek` leaves them in the queue.
    pub(crate) fn read_datagram<'b>(
        &mut self,
        id: SocketId,
        target: impl Iterator<Item = &'b mut [MaybeUninit<u8>]>,
        room: usize,
        peek: bool,
    ) -> Option<Read> {
        let socket = self.sockets.at_mut(id);
        let part = socket.datagrams.as_mut()?;
        let first = *part.queue.front()?;
        let (count, length) = part.together(&first, room);
        let record = Record { length, ..first };
        let mut copied = 0;
        for piece in target {
            let length = piece.len().min(record.length - copied);
            copied += socket.receive.copy_to(copied, &mut piece[..length]);
        }
        if !peek {
            part.queue.drain(..count);
            socket.receive.discard(length);
        }
        let segment_len = if count > 1 { u16::try_from(first.length).ok() } else { None };
        Some(Read { copied, record, segment_len })
    }

    /// The oldest error that waits, taken. The one after it is the socket's error then, or there is none: sock_dequeue_err_skb() in
    /// Linux, net/core/skbuff.c.
    pub(crate) fn take_trouble(&mut self, id: SocketId) -> Option<Trouble> {
        let socket = self.sockets.at_mut(id);
        let part = socket.datagrams.as_mut()?;
        let trouble = part.troubles.pop_front()?;
        socket.error = part.troubles.front().map(|next| next.error);
        if socket.error.is_some() {
            self.sockets.wake(id, bits::ERR);
        }
        Some(trouble)
    }

    /// Writes a datagram into the link's frame, from `source` or from the socket's own address. It goes with the next
    /// [`Stack::transmit`].
    ///
    /// # Errors
    /// [`SendError`]; nothing was sent.
    pub fn send_datagram(
        &mut self,
        now: Instant,
        id: SocketId,
        source: Option<IpAddr>,
        destination: SocketAddr,
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.now = now;
        let (Some(interface), Some(part)) =
            (&mut self.interfaces[Side::Network.index()], self.sockets.at(id).datagrams.as_ref())
        else {
            return Err(SendError::NoNeighbor);
        };
        let is_v4 = destination.is_ipv4();
        let place =
            part.places.iter().find(|place| place.local.is_ipv4() == is_v4).ok_or(SendError::Family)?;
        let bound = place.local.ip();
        if source
            .is_some_and(|source| source.is_ipv4() != is_v4 || !bound.is_unspecified() && source != bound)
        {
            return Err(SendError::Family);
        }
        // The kernel knows best how to get there, and may change its mind.
        if let Some(&asked) = self.sockets.datagrams.next_hops.get(&destination.ip())
            && now - asked >= NEXT_HOP_VALID
        {
            self.sockets.datagrams.next_hops.remove(&destination.ip());
            return Err(SendError::NoNeighbor);
        }
        let to = Some(destination);
        match interface.engine.udp_send(now, place.id, &mut interface.transport, source, to, payload) {
            Err(SendError::Full) => {
                interface.transport.flush();
                interface.engine.udp_send(now, place.id, &mut interface.transport, source, to, payload)
            }
            outcome => outcome,
        }
    }

    /// Sends the rest of a datagram whose first segment has gone. What the link has no room for is dropped, as at the end of a
    /// kernel's queue: the kernel's socket would send all of it again.
    pub fn send_segments(
        &mut self,
        now: Instant,
        id: SocketId,
        source: Option<IpAddr>,
        destination: SocketAddr,
        rest: &[u8],
        segment_len: usize,
    ) {
        for segment in rest.chunks(segment_len) {
            if self.send_datagram(now, id, source, destination, segment).is_err() {
                self.sockets.datagrams.unsent_segments += 1;
            }
        }
    }

    /// The kernel's socket sends from the same place.
    pub(crate) fn kernel_sends(&mut self, id: SocketId) {
        let Self { sockets, interfaces, .. } = self;
        if let (Some(interface), Some(part)) =
            (&mut interfaces[Side::Network.index()], &sockets.at(id).datagrams)
        {
            part.places.iter().for_each(|place| interface.engine.udp_sent_elsewhere(place.id));
        }
    }

    /// Whether no way to a destination was found lately: the kernel sends there itself.
    #[must_use]
    pub fn is_elsewhere(&self, now: Instant, destination: IpAddr) -> bool {
        let since = self.sockets.datagrams.elsewhere.get(&destination);
        since.is_some_and(|&since| now - since < ELSEWHERE_VALID)
    }

    /// No way to a destination was found.
    pub fn goes_elsewhere(&mut self, now: Instant, destination: IpAddr) {
        let elsewhere = &mut self.sockets.datagrams.elsewhere;
        if elsewhere.len() >= MAX_NEXT_HOPS {
            elsewhere.pop_first();
        }
        elsewhere.insert(destination, now);
    }

    /// Peers of which nothing is heard, to be looked for.
    pub fn unheard(&mut self, now: Instant) -> Vec<IpAddr> {
        let unheard = &mut self.sockets.unheard;
        if unheard.is_empty() { Vec::new() } else { unheard.take(now) }
    }

    /// The kernel's answer to who the next hop is.
    pub fn next_hop(&mut self, now: Instant, destination: IpAddr, mac: MacAddr) {
        let Some(interface) = &mut self.interfaces[Side::Network.index()] else { return };
        if mac != super::UNKNOWN {
            interface.engine.set_neighbor(destination, mac);
        }
        let next_hops = &mut self.sockets.datagrams.next_hops;
        if next_hops.len() >= MAX_NEXT_HOPS {
            next_hops.pop_first();
        }
        next_hops.insert(destination, now);
    }
}

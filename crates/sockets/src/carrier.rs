//! What carries a process's frames: an interface, or clients over shared memory; and, beside it, other programs of the host.

use std::os::fd::{AsRawFd, BorrowedFd};

use overfly_broker::Sockets;
use overfly_link::memif::{Keeper, Loopback, STACKS_MAX, Station};
use overfly_link::tap::TapPort;
use overfly_link::xdp::{QueueSockets, StackSockets, XdpLink};
use overfly_wire::{FrameSink, Promised, Promises, Unfinished};
use rustix::io::Errno;

use crate::kernel::make_internal;
use crate::socket::CONTEXTS;
use crate::stack::Transport;
use crate::table::{self, Entry};

/// TCP payload of one frame over memif (`overfly_link::memif::FRAME_LEN_MAX`).
pub(crate) const SEGMENT_OFFLOAD: u32 = 65_435;

/// The link of this process.
#[derive(Debug)]
pub(crate) enum Carrier {
    Xdp(XdpLink),
    Memif(Station),
    Tap(Box<TapPort>),
    Loopback(Box<Loopback>),
    /// None, as long as there is no broker: nothing comes, and what is written goes nowhere.
    Away(Box<[u8]>),
}

/// Longer than any frame.
const AWAY_LEN: usize = SEGMENT_OFFLOAD as usize + 256;

impl Carrier {
    /// Opens what the broker gave. Its descriptors move out of the program's way.
    pub(crate) fn open(sockets: Sockets) -> Result<Carrier, String> {
        match sockets {
            Sockets::Xdp(sockets) => open_xdp(sockets).map(Carrier::Xdp),
            Sockets::Memif { socket, address } => {
                let station = Station::join(socket, &address, KEEPER).map_err(|error| error.to_string())?;
                Ok(Carrier::Memif(station))
            }
            Sockets::Tap { queue, channel } => {
                let port = TapPort::join(queue, channel, KEEPER).map_err(|error| error.to_string())?;
                Ok(Carrier::Tap(Box::new(port)))
            }
        }
    }

    /// Goes on with new sockets: its interface was gone and is there again. Its descriptors keep their numbers.
    pub(crate) fn renew(&mut self, sockets: Sockets) -> Result<(), String> {
        match (self, sockets) {
            (Carrier::Xdp(link), Sockets::Xdp(sockets)) => {
                link.renew(sockets).map_err(|error| error.to_string())
            }
            _ => Err("what carries the frames cannot be renewed".to_owned()),
        }
    }

    /// One in the place of an interface's, until there is a broker again.
    pub(crate) fn away() -> Carrier {
        Carrier::Away(vec![0; AWAY_LEN].into())
    }

    /// It is about to be closed, with all that it has open.
    pub(crate) fn disown(&self) {
        if let Carrier::Xdp(link) = self {
            link.own_descriptors().for_each(release);
        }
    }

    /// Whether it is an interface's.
    pub(crate) const fn is_interfaces(&self) -> bool {
        matches!(self, Carrier::Xdp(_))
    }

    /// One that carries connections within the host, for the stack of a context; `own` is its hardware address.
    pub(crate) fn within_host(own: [u8; 6], context: usize) -> Result<Carrier, String> {
        const { assert!(CONTEXTS <= STACKS_MAX as usize) };
        let loopback = Loopback::new(own, context as u8, KEEPER).map_err(|error| error.to_string())?;
        Ok(Carrier::Loopback(Box::new(loopback)))
    }

    /// What to sleep on. The same ones as long as the carrier lives.
    pub(crate) fn descriptors(&self) -> Vec<i32> {
        match self {
            Carrier::Xdp(link) => link.descriptors().map(|descriptor| descriptor.as_raw_fd()).collect(),
            Carrier::Memif(station) => vec![station.descriptor().as_raw_fd()],
            Carrier::Tap(port) => port.descriptors().map(|descriptor| descriptor.as_raw_fd()).collect(),
            Carrier::Loopback(loopback) => vec![loopback.descriptor().as_raw_fd()],
            Carrier::Away(_) => Vec::new(),
        }
    }

    /// Whether its descriptors are readable for others than frames, too: who wants to exchange some.
    pub(crate) const fn has_doors(&self) -> bool {
        !matches!(self, Carrier::Xdp(_) | Carrier::Tap(_) | Carrier::Away(_))
    }

    /// There is something that nobody wakes this end for: sleep for a short time only.
    pub(crate) fn is_busy(&self) -> bool {
        match self {
            Carrier::Xdp(link) => link.transmit_pending(),
            Carrier::Memif(station) => station.is_busy(),
            Carrier::Tap(_) | Carrier::Away(_) => false,
            Carrier::Loopback(loopback) => loopback.is_busy(),
        }
    }

    /// The program has its addresses to itself: no kernel answers ARP for it, nor finds next hops.
    pub(crate) const fn is_alone(&self) -> bool {
        matches!(self, Carrier::Memif(_) | Carrier::Tap(_))
    }

    /// TCP payload of a frame that it cuts into segments though it completes no other checksums; 0 if it does not.
    pub(crate) fn segment_offload(&self) -> u32 {
        match self {
            Carrier::Xdp(link) => link.segment_offload(),
            Carrier::Memif(_) | Carrier::Tap(_) | Carrier::Loopback(_) | Carrier::Away(_) => 0,
        }
    }

    /// This host's kernel is at the other end.
    pub(crate) const fn leads_to_kernel(&self) -> bool {
        matches!(self, Carrier::Tap(_))
    }

    /// Whether looks are such that draw no new connections to this process, where others could have them.
    pub(crate) fn look_unseen(&mut self, unseen: bool) {
        match self {
            Carrier::Xdp(link) => link.look_unseen(unseen),
            Carrier::Tap(port) => port.look_unseen(unseen),
            Carrier::Memif(_) | Carrier::Loopback(_) | Carrier::Away(_) => {}
        }
    }

    /// A thread waits to accept since the last look.
    #[inline]
    pub(crate) fn wait_to_accept(&mut self) {
        match self {
            Carrier::Xdp(link) => link.wait_to_accept(),
            Carrier::Tap(port) => port.wait_to_accept(),
            Carrier::Memif(_) | Carrier::Loopback(_) | Carrier::Away(_) => {}
        }
    }

    /// Stacks of other processes in which a thread waits to accept, and which can be given a connection: none over memif and tap, where
    /// no kernel could carry it over.
    pub(crate) fn others_wait(&self) -> usize {
        match self {
            Carrier::Xdp(link) => link.others_wait(),
            Carrier::Memif(_) | Carrier::Tap(_) | Carrier::Loopback(_) | Carrier::Away(_) => 0,
        }
    }

    /// The process holds so many bytes for its connections. Returns what other processes on the same interface hold; over memif and tap
    /// nobody says.
    pub(crate) fn hold(&self, bytes: u64) -> u64 {
        match self {
            Carrier::Xdp(link) => link.hold(bytes),
            Carrier::Memif(_) | Carrier::Tap(_) | Carrier::Loopback(_) | Carrier::Away(_) => 0,
        }
    }

    /// Whether the stack listens.
    pub(crate) fn set_listening(&mut self, listening: bool) {
        if let Carrier::Memif(station) = self {
            station.set_accepting(listening);
        }
    }

    /// The switch of connections within the host.
    pub(crate) fn loopback(&mut self) -> Option<&mut Loopback> {
        match self {
            Carrier::Loopback(loopback) => Some(loopback),
            _ => None,
        }
    }

    /// How full its rings are (`now`) and what it has done (`link`): group, name and value of each counter.
    pub(crate) fn each_counter(&self, mut each: impl FnMut(&'static str, &'static str, u64)) {
        match self {
            Carrier::Xdp(link) => {
                let occupancy = link.occupancy();
                for (name, value) in [
                    ("receive_ring", occupancy.received),
                    ("receive_ring_size", occupancy.receive_ring),
                    ("transmit_ring", occupancy.outstanding),
                    ("transmit_ring_size", occupancy.transmit_ring),
                    ("fill_ring", occupancy.fill),
                ] {
                    each("now", name, u64::from(value));
                }
                link.counters().named().for_each(|(name, value)| each("link", name, value));
                link.long_frame_counters().named().for_each(|(name, value)| each("link", name, value));
            }
            Carrier::Memif(station) => {
                let hub = station.hub();
                each("now", "peers", hub.links() as u64);
                hub.link_counters().named().for_each(|(name, value)| each("link", name, value));
                hub.counters().named().for_each(|(name, value)| each("link", name, value));
            }
            Carrier::Tap(port) => port.counters().named().for_each(|(name, value)| each("link", name, value)),
            Carrier::Loopback(loopback) => {
                let hub = loopback.hub();
                each("loopback", "peers", hub.links() as u64);
                loopback.counters().named().for_each(|(name, value)| each("loopback", name, value));
                hub.link_counters().named().for_each(|(name, value)| each("loopback", name, value));
            }
            Carrier::Away(_) => {}
        }
    }

    /// What it has done, in words.
    pub(crate) fn report(&self) -> String {
        match self {
            Carrier::Xdp(link) => format!("{:?} {:?}", link.counters(), link.long_frame_counters()),
            Carrier::Memif(station) => {
                format!("{:?} {:?}", station.hub().link_counters(), station.hub().counters())
            }
            Carrier::Tap(port) => format!("{:?}", port.counters()),
            Carrier::Loopback(loopback) => {
                format!("{:?} {:?}", loopback.counters(), loopback.hub().link_counters())
            }
            Carrier::Away(_) => "there is no broker".to_owned(),
        }
    }
}

fn open_xdp(mut sockets: StackSockets) -> Result<XdpLink, String> {
    sockets.queues = (sockets.queues.into_iter())
        .map(|queue| QueueSockets { socket: make_internal(queue.socket), pool: make_internal(queue.pool) })
        .collect();
    sockets.long_frames = sockets.long_frames.map(make_internal);
    let queues = sockets.queues.iter().flat_map(|queue| [queue.socket.as_raw_fd(), queue.pool.as_raw_fd()]);
    let numbers: Vec<i32> = queues.chain(sockets.long_frames.as_ref().map(AsRawFd::as_raw_fd)).collect();
    XdpLink::open(sockets).map_err(|error| {
        for &number in &numbers {
            table::enter(number, Entry::Kernel);
        }
        error.to_string()
    })
}

const KEEPER: Keeper = Keeper { adopt: make_internal, release };

/// It is about to be closed.
fn release(descriptor: BorrowedFd<'_>) {
    table::enter(descriptor.as_raw_fd(), Entry::Kernel);
}

impl Transport for Carrier {
    #[inline]
    fn receive(&mut self, budget: usize, each: impl FnMut(&[u8])) -> usize {
        match self {
            Carrier::Xdp(link) => link.receive(budget, each),
            Carrier::Memif(station) => station.receive(budget, each),
            Carrier::Tap(port) => port.receive(budget, each),
            Carrier::Loopback(loopback) => loopback.receive(budget, each),
            Carrier::Away(_) => 0,
        }
    }

    #[inline]
    fn flush(&mut self) {
        match self {
            Carrier::Xdp(link) => link.flush(),
            Carrier::Memif(station) => station.flush(),
            Carrier::Tap(_) | Carrier::Away(_) => {}
            Carrier::Loopback(loopback) => loopback.flush(),
        }
    }

    #[inline]
    fn redeem(&mut self, promises: &impl Promises) {
        if let Carrier::Xdp(link) = self {
            link.redeem(promises);
        }
    }

    #[inline]
    fn post(&mut self, underway: bool) -> Option<i32> {
        match self {
            Carrier::Xdp(link) => link.publish(underway).map(|socket| socket.as_raw_fd()),
            _ => {
                self.flush();
                None
            }
        }
    }

    fn kick_failed(&mut self, errno: Errno) {
        if let Carrier::Xdp(link) = self {
            link.kick_failed(errno);
        }
    }

    fn retry(&mut self) {
        if let Carrier::Xdp(link) = self {
            link.retry();
        }
    }

    fn arm(&mut self) -> bool {
        match self {
            Carrier::Xdp(_) | Carrier::Away(_) => true,
            Carrier::Memif(station) => station.arm(),
            Carrier::Tap(port) => port.arm(),
            Carrier::Loopback(loopback) => loopback.arm(),
        }
    }

    fn rang(&mut self) {
        match self {
            Carrier::Xdp(_) | Carrier::Tap(_) | Carrier::Away(_) => {}
            Carrier::Memif(station) => station.rang(),
            Carrier::Loopback(loopback) => loopback.rang(),
        }
    }

    fn take_gone(&mut self) -> Vec<[u8; 6]> {
        match self {
            Carrier::Xdp(_) | Carrier::Tap(_) | Carrier::Away(_) => Vec::new(),
            Carrier::Memif(station) => station.take_gone(),
            Carrier::Loopback(loopback) => loopback.take_gone(),
        }
    }
}

impl FrameSink for Carrier {
    #[inline]
    fn frame(&mut self) -> Option<&mut [u8]> {
        match self {
            Carrier::Xdp(link) => link.frame(),
            Carrier::Memif(station) => station.frame(),
            Carrier::Tap(port) => port.frame(),
            Carrier::Loopback(loopback) => loopback.frame(),
            Carrier::Away(nowhere) => Some(nowhere),
        }
    }

    #[inline]
    fn long_frame(&mut self, length: usize) -> Option<&mut [u8]> {
        match self {
            Carrier::Xdp(link) => link.long_frame(length),
            _ => self.frame(),
        }
    }

    #[inline]
    fn commit(&mut self, length: usize) {
        match self {
            Carrier::Xdp(link) => link.commit(length),
            Carrier::Memif(station) => station.commit(length),
            Carrier::Tap(port) => port.commit(length),
            Carrier::Loopback(loopback) => loopback.commit(length),
            Carrier::Away(_) => {}
        }
    }

    #[inline]
    fn commit_unfinished(&mut self, length: usize, left: Unfinished) {
        match self {
            Carrier::Xdp(link) => link.commit_unfinished(length, left),
            Carrier::Memif(station) => station.commit_unfinished(length, left),
            Carrier::Tap(port) => port.commit_unfinished(length, left),
            Carrier::Loopback(loopback) => loopback.commit_unfinished(length, left),
            Carrier::Away(_) => {}
        }
    }

    #[inline]
    fn takes_promises(&self) -> bool {
        matches!(self, Carrier::Xdp(link) if link.takes_promises())
    }

    fn commit_promised(&mut self, left: Unfinished, payload: Promised) {
        if let Carrier::Xdp(link) = self {
            link.commit_promised(left, payload);
        }
    }
}

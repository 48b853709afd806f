//! memif: frames between two processes through memory that both see, in the format that DPDK's `net_memif` and VPP speak
//! (version 2.0). It needs no privilege.
//!
//! A *server* listens on a Unix socket ([`Listener`]); a *client* connects ([`connect`]) and owns the memory: rings and
//! buffers. They agree on a number of ring pairs. A [`Pair`] is one of them as descriptors, which may go to another process;
//! [`MemifLink`] is its data path, and [`Hub`] that of a stack with several peers.
//!
//! Two Overfly ends know each other by the names that they say in the handshake ([`Settings::offload`]). Between them frames
//! are up to 64 KB long and their TCP checksums hold the sum of the pseudo-header only. Toward all others a link is an
//! Ethernet of the given MTU.
//!
//! The peer is not trusted. It can corrupt frames, but not make this end read or write anything but its own memory and the
//! shared one, wait, loop or panic: see [`MemifLink`] and `ring.rs`.

mod address;
#[cfg(test)]
mod attacks;
mod client;
mod control;
mod doorbell;
mod hub;
mod interrupt;
mod link;
mod loopback;
mod message;
mod place;
mod port;
mod region;
mod rendezvous;
mod ring;
mod server;
mod sleep;
#[cfg(test)]
mod tests;

pub use address::Address;
pub use client::connect;
pub(crate) use doorbell::Registered;
pub use hub::{Hub, HubCounters};
pub use link::pulse::Pulse;
pub use link::{Counters, LinkState, MemifLink};
pub use loopback::{Loopback, LoopbackCounters, OtherEnd, Word};
pub use place::remove_abandoned;
pub use port::MemifPort;
pub use rendezvous::PROCESS_STACKS_MAX;
pub use ring::Buffers;
pub use server::Listener;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::fcntl_dupfd_cloexec;

use crate::Error;

/// Bytes of the longest frame between two Overfly ends: a TCP payload of 65,435 bytes and its headers (`segment_offload` of
/// `overfly_engine::Config`).
pub const FRAME_LEN_MAX: usize = 65_435 + 114;
/// Ring pairs of one connection at most.
pub const PAIRS_MAX: u16 = 64;

/// Who listens and who owns the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Owns the memory.
    Client,
    /// Listens.
    Server,
}

/// How a connection is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Ring pairs: what a client wants, and what a server has at most. 1 to [`PAIRS_MAX`].
    pub pairs: u16,
    /// Entries of a ring, as a power of two: 0 to 14. The client decides.
    pub log2_ring_size: u8,
    /// Bytes of a buffer, a multiple of 64. The client decides. Longer frames take several.
    pub buffer_len: u32,
    /// The longest IP packet in bytes, where nothing else was agreed on.
    pub mtu: u16,
    /// Offer 64 KB frames with unfinished checksums to peers that are Overfly's too.
    pub offload: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { pairs: 1, log2_ring_size: 10, buffer_len: 2048, mtu: 1500, offload: true }
    }
}

impl Settings {
    fn check(&self) -> Result<(), Error> {
        let sane = |condition, what| if condition { Ok(()) } else { Err(Error::Layout(what)) };
        sane((1..=PAIRS_MAX).contains(&self.pairs), "ring pairs: 1 to 64")?;
        sane(self.log2_ring_size <= ring::LOG2_RING_SIZE_MAX, "a ring's size: 2^0 to 2^14 entries")?;
        sane(
            self.buffer_len.is_multiple_of(64) && (64..=1 << 20).contains(&self.buffer_len),
            "a buffer's length: a multiple of 64 up to 1 MB",
        )?;
        let ring_bytes = u64::from(self.buffer_len) << self.log2_ring_size;
        sane(ring_bytes >= u64::from(self.mtu) + 14, "the buffers of a ring do not hold a frame of the MTU")
    }

    /// The rings have room for two of the longest frames: one can be written while the other is read.
    fn holds_offload(&self) -> bool {
        self.offload && u64::from(self.buffer_len) << self.log2_ring_size >= 2 * FRAME_LEN_MAX as u64
    }
}

/// What an end says its name is. A peer with the first one takes [`FRAME_LEN_MAX`] and unfinished checksums.
const NAME_WITH_OFFLOAD: &str = "overfly/1 offload";
const NAME: &str = "overfly/1";

fn name(offload: bool) -> &'static str {
    if offload { NAME_WITH_OFFLOAD } else { NAME }
}

/// An established connection: dropping all of it hangs up.
#[derive(Debug)]
pub struct Connection {
    /// Its ring pairs, in order.
    pub pairs: Vec<Pair>,
    /// What the peer calls itself.
    pub peer_name: String,
}

impl Connection {
    /// Opens the data paths of all pairs in this process.
    ///
    /// # Errors
    /// As [`MemifLink::open`].
    pub fn open(self) -> Result<Vec<MemifLink>, Error> {
        self.pairs.into_iter().map(MemifLink::open).collect()
    }
}

/// One ring pair, as descriptors, ready to be opened here or in another process.
#[derive(Debug)]
pub struct Pair {
    /// This end's role.
    pub role: Role,
    /// The shared memory: memfds with the bytes to map of each.
    pub regions: Vec<(OwnedFd, u64)>,
    /// The ring for frames from the client.
    pub to_server: RingEnd,
    /// The ring for frames from the server.
    pub to_client: RingEnd,
    /// The control socket: it hangs up when the peer ends.
    pub control: OwnedFd,
    /// As [`Settings::mtu`].
    pub mtu: u16,
    /// Both ends agreed on [`Settings::offload`].
    pub offload: bool,
}

/// One ring of a pair.
#[derive(Debug)]
pub struct RingEnd {
    /// Where it is.
    pub place: RingPlace,
    /// The eventfd that wakes whoever receives over it.
    pub interrupt: OwnedFd,
    /// Set at the client: its buffers.
    pub buffers: Option<Buffers>,
}

/// Where a ring is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPlace {
    /// The region, counted from 0.
    pub region: u16,
    /// Bytes from the region's beginning, a multiple of 8.
    pub offset: u32,
    /// Its entries, as a power of two.
    pub log2_size: u8,
}

/// Watches over a link's descriptors, in a process where others might close them.
#[derive(Clone, Copy, Debug)]
pub struct Registry {
    /// One more: returns it, perhaps at another number.
    pub adopt: fn(OwnedFd) -> OwnedFd,
    /// This one is about to be closed.
    pub release: fn(BorrowedFd<'_>),
}

fn duplicate(descriptor: impl AsFd) -> Result<OwnedFd, Error> {
    fcntl_dupfd_cloexec(descriptor, 0).map_err(|errno| Error::system("F_DUPFD_CLOEXEC", errno))
}

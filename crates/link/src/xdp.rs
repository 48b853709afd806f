//! AF_XDP: frames between user space and one interface's queues, in memory that both see.
//!
//! For each queue there is one [`Pool`] (UMEM, fill ring, completion ring), shared by all stacks. Each stack has a socket of
//! its own on every queue (`XDP_SHARED_UMEM`), because the XDP program picks the stack and a socket receives only from its
//! own queue; it sends on one of them.

mod completion;
mod counters;
mod fill;
mod late;
mod link;
mod memory;
mod metadata;
#[cfg(test)]
mod model;
mod pieces;
mod pool;
mod pulse;
mod rings;
mod socket;
#[cfg(test)]
mod tests;
mod turn_wait;

/// The atomics of `fill` and `completion`. `model` has the same two files with those of loom.
mod atomic {
    pub(super) use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
}

pub use counters::{Counters, KernelCounters, Occupancy};
pub use link::XdpLink;
pub use memory::{
    FRAME_BUFFERS_MAX, FRAME_LEN, FRAME_WITH_METADATA_LEN_MAX, PoolLayout, RECEIVED_FRAME_LEN_MAX, STACKS_MAX,
};
pub use metadata::knows_checksums;
pub use pieces::PACKET_LEN_MAX;
pub use pool::{HugePages, Mode, Pool, Reclaimed, knows_long_packets};
pub use pulse::Changes;
pub use socket::{BusyPoll, kick};

use std::os::fd::OwnedFd;

/// One stack's AF_XDP sockets, as file descriptors, ready to be opened here or in another process.
#[derive(Debug)]
pub struct StackSockets {
    /// Which stack this is: its place in the XSKMAP and in the pools.
    pub stack: u16,
    /// One entry for each queue of the interface, in order.
    pub queues: Vec<QueueSockets>,
    /// The sizes behind all of it.
    pub layout: PoolLayout,
    /// Whether the driver moves frames without copying. Otherwise the kernel copies inside `sendto`.
    pub zero_copy: bool,
    /// Set if the sockets were made for busy polling: then receiving drives the device.
    pub busy_poll: Option<BusyPoll>,
    /// The XDP program's array in which each stack shows that it looks at its rings, if there is one: who does not look gets no new
    /// connections while others do.
    pub pulses: Option<OwnedFd>,
    /// Where frames of several segments leave ([`crate::packet`]), where that can be had.
    pub long_frames: Option<OwnedFd>,
}

/// A stack's socket on one queue, and the memory behind it.
#[derive(Debug)]
pub struct QueueSockets {
    /// The bound AF_XDP socket.
    pub socket: OwnedFd,
    /// The pool's memory (a sealed memfd).
    pub pool: OwnedFd,
}

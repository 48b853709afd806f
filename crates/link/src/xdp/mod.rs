//! AF_XDP: frames between user space and one interface's queues, in memory that both see.
//!
//! For each queue there is one [`Pool`] (UMEM, fill ring, completion ring), shared by all stacks. Each stack has a socket of
//! its own on every queue (`XDP_SHARED_UMEM`), because the XDP program picks the stack and a socket receives only from its
//! own queue; it sends on one of them.

mod link;
mod memory;
mod pool;
mod rings;
mod socket;

pub use link::{Counters, KernelCounters, Occupancy, XdpLink};
pub use memory::{FRAME_LEN, PoolLayout, RECEIVED_FRAME_LEN_MAX, STACKS_MAX};
pub use pool::{HugePages, Mode, Pool, Reclaimed};
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
}

/// A stack's socket on one queue, and the memory behind it.
#[derive(Debug)]
pub struct QueueSockets {
    /// The bound AF_XDP socket.
    pub socket: OwnedFd,
    /// The pool's memory (a sealed memfd).
    pub pool: OwnedFd,
}

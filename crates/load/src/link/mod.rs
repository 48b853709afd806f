//! What carries a generator's frames, and how a thread's stack comes to be. Every kind of load is written once over
//! [`Wire`]; each link opens one [`Stack`] a thread.

#[cfg(test)]
pub(crate) mod in_memory;
pub(crate) mod sources;
pub(crate) mod xdp;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use overfly_engine::Engine;
use overfly_wire::FrameSink;

/// What carries the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// The user-level stack on AF_XDP sockets.
    Xdp,
    /// Kernel sockets and epoll.
    Kernel,
}

impl Link {
    /// The name used on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Link::Xdp => "xdp",
            Link::Kernel => "kernel",
        }
    }
}

/// How frames come and go: a link, or a queue in memory.
pub(crate) trait Wire: FrameSink {
    /// Hands up to `budget` received frames to `each`; returns how many.
    fn receive(&mut self, budget: usize, each: impl FnMut(&[u8])) -> usize;
    /// Sends what was committed.
    fn flush(&mut self);
    /// Adds what the link has counted.
    fn count(&self, counters: &mut BTreeMap<String, u64>);
}

/// The local ports of one shard of several, the one used longest ago first.
#[derive(Debug, Clone)]
pub(crate) struct Ports {
    first: u32,
    last: u32,
    stride: u32,
    next: u32,
}

impl Ports {
    /// None: for a stack that opens no connections.
    pub(crate) fn none() -> Ports {
        Ports { first: 1, last: 0, stride: 1, next: 1 }
    }

    /// The ports of `range` that leave the rest `index` when divided by `count`: the XDP program
    /// sends their frames to stack `index`.
    pub(crate) fn of_shard(range: &RangeInclusive<u16>, index: usize, count: usize) -> Ports {
        let (low, last) = (u32::from(*range.start()), u32::from(*range.end()));
        let (index, stride) = (index as u32, count as u32);
        let first = low + (index + stride - low % stride) % stride;
        Ports { first, last, stride, next: first }
    }

    pub(crate) fn len(&self) -> usize {
        if self.first > self.last { 0 } else { ((self.last - self.first) / self.stride + 1) as usize }
    }

    /// The next port; whether it is free only the engine knows.
    pub(crate) fn take(&mut self) -> u16 {
        let port = self.next;
        self.next += self.stride;
        if self.next > self.last {
            self.next = self.first;
        }
        port as u16
    }
}

/// One thread's way to the network: its engine knows its own address and the way to the server, and has control blocks for as
/// many flows as there are ports.
pub(crate) struct Stack<W> {
    pub(crate) engine: Engine,
    pub(crate) wire: W,
    /// Where active opens come from.
    pub(crate) local: IpAddr,
    /// Their ports: frames to these reach this thread.
    pub(crate) ports: Ports,
    /// The machine's monotonic clock at the start of the run. The engine's time goes on from one
    /// run to the next, and with it timestamps and initial sequence numbers: so a server takes a
    /// SYN that meets the TIME-WAIT of an earlier run (RFC 6191).
    pub(crate) epoch_ns: u64,
}

//! What carries a process's frames: an interface, or clients over shared memory; and, beside it, other programs of the host.

use std::os::fd::{AsRawFd, BorrowedFd};

use overfly_broker::Sockets;
use overfly_link::memif::{Loopback, MemifPort, PROCESS_STACKS_MAX, Registry};
use overfly_link::tap::TapPort;
use overfly_link::xdp::{QueueSockets, StackSockets, XdpLink};
use overfly_link::{Each, Link};
use overfly_wire::FrameSink;

use crate::numbers::make_internal;
use crate::socket::CONTEXTS;
use crate::table::{self, Entry};

/// TCP payload of one frame over memif (`overfly_link::memif::FRAME_LEN_MAX`).
pub(crate) const SEGMENT_OFFLOAD: u32 = 65_435;

/// The link of this process.
#[derive(Debug)]
pub(crate) enum AnyLink {
    Xdp(XdpLink),
    Memif(MemifPort),
    Tap(Box<TapPort>),
    Loopback(Box<Loopback>),
    /// None, as long as there is no broker.
    Away(Away),
    /// Another stack of the same test.
    #[cfg(test)]
    Joined(crate::tests::Joined),
}

/// Nothing comes, and what is written goes nowhere.
#[derive(Debug)]
pub(crate) struct Away(Box<[u8]>);

/// Longer than any frame.
const AWAY_LEN: usize = SEGMENT_OFFLOAD as usize + 256;

impl FrameSink for Away {
    fn frame(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.0)
    }

    fn commit(&mut self, _length: usize) {}
}

impl Link for Away {
    fn receive(&mut self, _budget: usize, _each: impl FnMut(&[u8])) -> usize {
        0
    }

    fn flush(&mut self) {}

    fn each_counter(&self, _each: Each<'_>) {}
}

overfly_link::one_of!(AnyLink {
    Xdp,
    Memif,
    Tap,
    Loopback,
    Away,
    #[cfg(test)]
    Joined,
});

impl AnyLink {
    /// Opens what the broker gave. Its descriptors move out of the program's way.
    pub(crate) fn open(sockets: Sockets) -> Result<AnyLink, String> {
        match sockets {
            Sockets::Xdp(sockets) => open_xdp(sockets).map(AnyLink::Xdp),
            Sockets::Memif { socket, address } => {
                let port = MemifPort::join(socket, &address, REGISTRY).map_err(|error| error.to_string())?;
                Ok(AnyLink::Memif(port))
            }
            Sockets::Tap { queue, channel } => {
                let port = TapPort::join(queue, channel, REGISTRY).map_err(|error| error.to_string())?;
                Ok(AnyLink::Tap(Box::new(port)))
            }
        }
    }

    /// Goes on with new sockets: its interface was gone and is there again. Its descriptors keep their numbers.
    pub(crate) fn renew(&mut self, sockets: Sockets) -> Result<(), String> {
        match (self, sockets) {
            (AnyLink::Xdp(link), Sockets::Xdp(sockets)) => {
                link.renew(sockets).map_err(|error| error.to_string())
            }
            _ => Err("what carries the frames cannot be renewed".to_owned()),
        }
    }

    /// One in the place of an interface's, until there is a broker again.
    pub(crate) fn away() -> AnyLink {
        AnyLink::Away(Away(vec![0; AWAY_LEN].into()))
    }

    /// It is about to be closed, with all that it has open.
    pub(crate) fn disown(&self) {
        if let AnyLink::Xdp(link) = self {
            link.own_descriptors().for_each(release);
        }
    }

    /// Whether it is an interface's, or stands for one in a test.
    pub(crate) const fn is_interfaces(&self) -> bool {
        #[cfg(test)]
        if matches!(self, AnyLink::Joined(_)) {
            return true;
        }
        matches!(self, AnyLink::Xdp(_))
    }

    /// One that carries connections within the host, for the stack of a context; `own` is its hardware address.
    pub(crate) fn within_host(own: [u8; 6], context: usize) -> Result<AnyLink, String> {
        const { assert!(CONTEXTS <= PROCESS_STACKS_MAX as usize) };
        let loopback = Loopback::new(own, context as u8, REGISTRY).map_err(|error| error.to_string())?;
        Ok(AnyLink::Loopback(Box::new(loopback)))
    }

    /// The numbers of [`Link::descriptors`].
    pub(crate) fn numbers(&self) -> Vec<i32> {
        self.descriptors().map(|descriptor| descriptor.as_raw_fd()).collect()
    }

    /// Whether its descriptors are readable for others than frames, too: who wants to exchange some.
    pub(crate) const fn has_doors(&self) -> bool {
        !matches!(self, AnyLink::Xdp(_) | AnyLink::Tap(_) | AnyLink::Away(_))
    }

    /// The program has its addresses to itself: no kernel answers ARP for it, nor finds next hops.
    pub(crate) const fn is_alone(&self) -> bool {
        matches!(self, AnyLink::Memif(_) | AnyLink::Tap(_))
    }

    /// This host's kernel is at the other end.
    pub(crate) const fn leads_to_kernel(&self) -> bool {
        matches!(self, AnyLink::Tap(_))
    }

    /// The switch of connections within the host.
    pub(crate) fn loopback(&mut self) -> Option<&mut Loopback> {
        match self {
            AnyLink::Loopback(loopback) => Some(loopback),
            _ => None,
        }
    }

    /// What it has done, in words.
    pub(crate) fn report(&self) -> String {
        match self {
            AnyLink::Xdp(link) => format!("{:?} {:?}", link.counters(), link.long_frame_counters()),
            AnyLink::Memif(port) => {
                format!("{:?} {:?}", port.hub().link_counters(), port.hub().counters())
            }
            AnyLink::Tap(port) => format!("{:?}", port.counters()),
            AnyLink::Loopback(loopback) => {
                format!("{:?} {:?}", loopback.counters(), loopback.hub().link_counters())
            }
            AnyLink::Away(_) => "there is no broker".to_owned(),
            #[cfg(test)]
            AnyLink::Joined(_) => "joined in memory".to_owned(),
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

const REGISTRY: Registry = Registry { adopt: make_internal, release };

/// It is about to be closed.
fn release(descriptor: BorrowedFd<'_>) {
    table::enter(descriptor.as_raw_fd(), Entry::Kernel);
}

//! The engine's other side: who writes what flows send, and takes what they receive.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use overfly_wire::checksum::Sum;

use crate::udp::{Datagram, Report, UdpId, Unreachable};

/// One connection. Dense: an owner keeps its own state in a vector indexed by [`FlowId::index`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FlowId(pub(crate) u32);

impl FlowId {
    /// The position of this flow's state in an owner's vector.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The flow at this position: the inverse of [`FlowId::index`].
    #[must_use]
    pub const fn at(index: usize) -> FlowId {
        FlowId(index as u32)
    }
}

/// One listener. Never reused within an engine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ListenerId(pub(crate) u32);

/// What happened to a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A peer connected to a listener. The flow counts against the backlog until [`crate::Engine::accepted`].
    Incoming {
        /// The listener that the peer connected to.
        listener: ListenerId,
    },
    /// An active open succeeded.
    Connected,
    /// Stream bytes below `offset` have been acknowledged: they are never asked for again.
    Acknowledged {
        /// Offset in the sent stream.
        offset: u64,
    },
    /// The peer's FIN arrived, and all data before it has been delivered.
    RemoteClosed,
    /// The flow is gone. [`Event::Released`] follows at once.
    Failed(Failure),
    /// The engine does not call back about this flow again. Its id returns only with a new flow.
    Released,
}

/// What a flow did, for owners that count by flow ([`Owner::acted`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// A peer has opened it ([`Event::Incoming`]), to this address of ours.
    Came {
        /// Ours.
        local: IpAddr,
    },
    /// A peer's SYN was answered; [`Event::Incoming`] may follow. All else is told from then on only.
    Answered {
        /// Not for the first time.
        again: bool,
    },
    /// A segment was written.
    Sent {
        /// Bytes of its payload.
        payload: u32,
        /// It carries SYN, FIN or RST.
        control: bool,
        /// An acknowledgment was due, and went with it.
        acknowledges: bool,
        /// All of it was sent before.
        again: bool,
    },
    /// A segment arrived for the flow, its checksum right.
    Arrived,
    /// An acknowledgment moved SND.UNA over so many bytes of data; `fin`: and over our FIN.
    Acked {
        /// Bytes of data.
        bytes: u32,
        /// The FIN was acknowledged.
        fin: bool,
    },
    /// A duplicate acknowledgment arrived (RFC 5681 section 2).
    DuplicateAck,
    /// A round trip is being timed from here on.
    Timed,
    /// One was measured.
    Measured,
    /// A delayed acknowledgment had waited long enough.
    DelayedAck,
    /// The retransmission timer expired; `handshake`: of a SYN.
    TimedOut {
        /// A SYN, or SYN and ACK, was not acknowledged.
        handshake: bool,
    },
    /// The persist timer expired.
    Persisted,
    /// A keep-alive probe is due.
    Probed,
    /// A timer ran out for the last time: [`Failure::TimedOut`] follows.
    GaveUp {
        /// Keep-alive probes were not answered; else what was sent was not acknowledged.
        keep_alive: bool,
        /// These were probes of a window that stayed shut.
        persists: bool,
    },
    /// Data arrived that was here already, so many bytes; `part`: and new data with it.
    Duplicate {
        /// Bytes that were here already.
        bytes: u32,
        /// New bytes followed.
        part: bool,
    },
    /// Data arrived out of order and was held.
    OutOfOrder {
        /// Bytes of data.
        bytes: u32,
    },
    /// So many bytes arrived beyond the receive window.
    AfterWindow {
        /// Bytes of data.
        bytes: u32,
    },
}

/// Why a flow is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The peer answered our SYN with RST.
    Refused,
    /// The peer sent RST.
    Reset,
    /// The peer did not acknowledge in time.
    TimedOut,
    /// A router or the peer's host said why: before the connection was established, or before the peer was given up that did not
    /// acknowledge in time. Or no neighbour answered.
    Unreachable(Unreachable),
}

/// Keep-alive of a flow (RFC 9293 section 3.8.4; TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeepAlive {
    /// Silence before the first probe.
    pub idle: Duration,
    /// Between probes.
    pub interval: Duration,
    /// Probes without an answer that end the flow. At least 1.
    pub probes: u8,
}

/// What [`Owner::deliver`] returns that has no memory for the payload.
pub const REFUSED: usize = usize::MAX;

/// What [`Owner::deliver`] returns whose program will read nothing more, and sends nothing more: the flow is reset, as by
/// [`crate::Engine::abort`].
pub const UNWANTED: usize = usize::MAX - 1;

/// Owns the payload of flows. Callbacks run inside [`crate::Engine::receive`], [`crate::Engine::advance`] and
/// [`crate::Engine::transmit`], and cannot call the engine: they note what is to be done, and the caller does it afterwards.
pub trait Owner {
    /// Something happened to `flow`.
    fn event(&mut self, flow: FlowId, event: Event);

    /// In-order payload, straight from the frame. Returns how many of these bytes are consumed at once; the others
    /// count against the receive window until [`crate::Engine::consumed`]. [`REFUSED`] takes none: the peer must send them again.
    /// [`UNWANTED`] takes none, nor what follows.
    fn deliver(&mut self, flow: FlowId, data: &[u8]) -> usize;

    /// Writes the stream bytes `[offset, offset + buffer.len())` that [`crate::Engine::send`] promised into a frame, for
    /// the first time or again.
    fn fill(&mut self, flow: FlowId, offset: u64, buffer: &mut [u8]);

    /// As [`Owner::fill`], and returns the bytes' sum, which the engine else makes for itself: asked where the checksum is the
    /// engine's part ([`crate::Config::checksum_offload`]). Worth it for who copies with
    /// [`copy_and_sum`](overfly_wire::checksum::copy_and_sum), or from a [`Template`](overfly_wire::checksum::Template).
    fn fill_and_sum(&mut self, flow: FlowId, offset: u64, buffer: &mut [u8]) -> Option<Sum> {
        self.fill(flow, offset, buffer);
        None
    }

    /// Whether the bytes that [`Owner::fill`] would write are read where they are instead, once [`crate::Engine::transmit`] has returned
    /// and before anything else happens to the flow. Asked of links that can do so ([`overfly_wire::FrameSink::takes_promises`]), for
    /// frames of several segments.
    #[inline]
    fn promise(&mut self, flow: FlowId, offset: u64, length: usize) -> bool {
        let _ = (flow, offset, length);
        false
    }

    /// The flow did something. An owner that does not count by flow leaves this out, and then it costs nothing. Before a
    /// peer's handshake is done only [`Act::Answered`] is told; the others are after [`Event::Released`], as long as the engine has the flow.
    #[inline(always)]
    fn acted(&mut self, flow: FlowId, act: Act) {
        let _ = (flow, act);
    }

    /// Whether data that [`Owner::deliver`] took waits for a program, which has not had its chance to answer. An owner that
    /// answers inside the callbacks leaves this out.
    fn is_unread(&self, flow: FlowId) -> bool {
        let _ = flow;
        false
    }

    /// Nothing that was sent to `remote` is answered, twice in a row or more: it may be behind another next hop by now. An owner that
    /// can find out says so by [`crate::Engine::set_neighbor`], and what is sent from the next time on goes there.
    fn unheard(&mut self, remote: IpAddr) {
        let _ = remote;
    }

    /// A segment with urgent data arrived (RFC 9293 section 3.8.5), which the engine knows nothing to do with. False: its data
    /// stands in the stream like any other. True: it is dropped unacknowledged, as the flow is about to be somebody else's
    /// ([`crate::Engine::export`]), whom the peer will send it again.
    fn urgent(&mut self, flow: FlowId) -> bool {
        let _ = flow;
        false
    }

    /// A UDP datagram arrived, its payload still in the frame. An owner without UDP sockets leaves this out.
    fn datagram(&mut self, socket: UdpId, datagram: Datagram<'_>) {
        let _ = (socket, datagram);
    }

    /// A datagram that `socket` sent to `remote` did not arrive: ICMP says so, or no neighbour answers.
    fn datagram_failed(&mut self, socket: UdpId, remote: SocketAddr, why: Unreachable, report: &Report<'_>) {
        let _ = (socket, remote, why, report);
    }
}

/// The engine could not do what its caller asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// All control blocks are in use: raise `max_flows`, or close flows.
    NoFlows,
    /// A flow between the same two addresses and ports exists: choose another local port.
    TupleInUse,
    /// Another listener has this address and port.
    AddressInUse,
    /// The next hop's hardware address is unknown: tell the engine with `set_neighbor`.
    NoNeighbor,
    /// One end is an IPv4 address and the other an IPv6 address.
    Family,
    /// An end of a connected UDP socket is a wildcard, or no single host's address.
    NoAddress,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoFlows => "all control blocks are in use: raise max_flows or close flows",
            Self::TupleInUse => "a flow between these addresses and ports exists: choose another local port",
            Self::AddressInUse => "another listener has this address and port",
            Self::NoNeighbor => "the next hop's hardware address is unknown: set_neighbor first",
            Self::Family => "one end is an IPv4 address and the other an IPv6 address: use one family",
            Self::NoAddress => "an end is not one host's address: a connected socket needs both",
        })
    }
}

impl core::error::Error for Error {}

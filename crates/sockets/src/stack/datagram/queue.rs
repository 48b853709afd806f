//! What a UDP socket has received and not read, and what it has heard of failures.

use core::net::{IpAddr, SocketAddr};
use std::collections::VecDeque;

use overfly_engine::{Instant, Report, UdpId, Unreachable};
use rustix::io::Errno;

use crate::options::wants;
use crate::told;

/// What a datagram takes of SO_RCVBUF besides its payload: about what Linux counts for one of a small frame
/// (SKB_TRUESIZE() in include/linux/skbuff.h).
pub(super) const OVERHEAD: usize = 768;

/// Datagrams that are read as one at most, and their bytes: UDP_GRO_CNT_MAX in Linux, net/ipv4/udp_offload.c, and what a packet holds.
pub(super) const MOST_AT_ONCE: usize = 64;

pub(super) const MOST_BYTES_AT_ONCE: usize = 65_507;

/// One datagram that waits to be read; its payload stands in the socket's receive ring.
#[derive(Clone, Copy)]
pub(crate) struct Record {
    pub(crate) source: SocketAddr,
    pub(crate) length: usize,
    /// Which of our addresses it came to.
    pub(crate) destination: IpAddr,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) arrived: Instant,
}

impl Record {
    /// Whether Linux would merge the next one into it: udp_gro_receive_segment() and the headers that inet_gro_receive() compares.
    fn takes(&self, next: &Record) -> bool {
        let marks =
            |record: &Record| (record.source, record.destination, record.traffic_class, record.hop_limit);
        (1..=self.length).contains(&next.length) && marks(self) == marks(next)
    }
}

/// What was read: one datagram, or several as one.
pub(crate) struct Read {
    /// Bytes that were written.
    pub(crate) copied: usize,
    /// The first, but for its length, which is of all.
    pub(crate) record: Record,
    /// Of several: each was so long, but for the last one.
    pub(crate) segment_len: Option<u16>,
}

/// An error from ICMP that waits to be read (MSG_ERRQUEUE): what `struct sock_extended_err` says (include/uapi/linux/errqueue.h),
/// and what besides is told of the message that brought it.
pub(crate) struct Trouble {
    pub(crate) error: Errno,
    pub(crate) kind: u8,
    pub(crate) code: u8,
    pub(crate) info: u32,
    pub(crate) offender: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) arrived: Instant,
    /// Where the datagram was sent.
    pub(crate) remote: SocketAddr,
    /// As much of it as was quoted.
    pub(crate) payload: Box<[u8]>,
}

impl Trouble {
    pub(super) fn new(error: Errno, arrived: Instant, remote: SocketAddr, report: &Report<'_>) -> Self {
        let Report { kind, code, info, offender, destination, traffic_class, hop_limit, payload } = *report;
        let payload = payload.into();
        Self {
            error,
            kind,
            code,
            info,
            offender,
            destination,
            traffic_class,
            hop_limit,
            arrived,
            remote,
            payload,
        }
    }
}

/// Where a UDP socket stands in the engine, and so in the broker's books.
#[derive(Clone, Copy)]
pub(crate) struct BoundAt {
    pub(super) id: UdpId,
    pub(crate) local: SocketAddr,
    pub(crate) remote: Option<SocketAddr>,
}

/// A UDP socket's part.
#[derive(Default)]
pub(crate) struct Datagrams {
    pub(crate) queue: VecDeque<Record>,
    /// The error queue.
    pub(crate) troubles: VecDeque<Trouble>,
    /// What is told with each datagram ([`wants`]).
    pub(crate) wants: u16,
    /// UDP_SEGMENT in bytes; 0 if it was not set.
    pub(crate) segment_len: u16,
    /// IPV6_MTU in bytes: the kernel sends larger packets in pieces. Zero if it was not set.
    pub(crate) pieces_above: usize,
    /// Traffic class and hop limit of packets to peers of IPv4, and of IPv6; 0: what the administrator says.
    pub(crate) marks: [(u8, u8); 2],
    /// SO_RCVBUF, as the kernel says it.
    pub(crate) limit: usize,
    /// Two where it takes datagrams of both families.
    pub(crate) places: Vec<BoundAt>,
    /// Where connect() connected it, as the engine has it.
    pub(crate) connected: Option<SocketAddr>,
    /// The kernel's socket may have datagrams too.
    pub(crate) kernel_ready: bool,
    /// What the kernel's socket has came before the process took part in the port: it is read before the rest.
    pub(crate) kernel_first: bool,
    /// An ancestor has it, and what waits there.
    pub(crate) lost: bool,
    /// The kernel's socket is all that it is, for all processes that have it: nothing comes here any more.
    pub(crate) of_all: bool,
    /// The kernel's name of its socket, once somebody has asked.
    pub(crate) cookie: Option<u64>,
    /// Whether one of the processes that have it by a fork has connected or shut it since.
    pub(crate) changed: Option<told::Error>,
}

impl Datagrams {
    /// What has come, and where it stands, is another process's.
    pub(crate) fn forget_all_but_settings(&mut self) {
        let Self {
            connected, wants, segment_len, pieces_above, marks, lost, of_all, changed, cookie, ..
        } = *self;
        *self = Self {
            connected,
            wants,
            segment_len,
            pieces_above,
            marks,
            lost,
            of_all,
            changed,
            cookie,
            ..Self::default()
        };
    }

    /// How many of those that wait are read as one into `room` bytes, and their bytes: no more than fit, as nobody can tell
    /// whether they would have come together.
    pub(super) fn together(&self, first: &Record, room: usize) -> (usize, usize) {
        let (mut count, mut bytes) = (1, first.length);
        if self.wants & wants::SEGMENTS == 0 {
            return (count, bytes);
        }
        for next in self.queue.iter().skip(1).take(MOST_AT_ONCE - 1) {
            if !first.takes(next) || bytes + next.length > room.min(MOST_BYTES_AT_ONCE) {
                break;
            }
            count += 1;
            bytes += next.length;
            if next.length < first.length {
                break;
            }
        }
        (count, bytes)
    }
}

/// icmp_err_convert[] in Linux, net/ipv4/icmp.c, and icmpv6_err_convert() in net/ipv6/icmp.c: an error, and whether it is called
/// fatal.
pub(super) const fn meaning(why: Unreachable, is_v6: bool) -> (Errno, bool) {
    match why {
        Unreachable::Port => (Errno::CONNREFUSED, true),
        Unreachable::Protocol => (Errno::NOPROTOOPT, true),
        Unreachable::NetworkUnknown => (Errno::NETUNREACH, true),
        Unreachable::HostUnknown => (Errno::HOSTDOWN, true),
        Unreachable::HostIsolated => (Errno::NONET, true),
        Unreachable::Prohibited if is_v6 => (Errno::ACCESS, true),
        Unreachable::Prohibited => (Errno::HOSTUNREACH, true),
        Unreachable::Header => (Errno::PROTO, true),
        Unreachable::Network => (Errno::NETUNREACH, false),
        Unreachable::SourceRoute => (Errno::OPNOTSUPP, false),
        Unreachable::Host | Unreachable::Expired => (Errno::HOSTUNREACH, false),
        // The engine has taken note: what is too long is the kernel's socket's to send.
        Unreachable::TooBig(_) => (Errno::MSGSIZE, false),
    }
}

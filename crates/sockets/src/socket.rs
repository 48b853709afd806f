//! What the library knows of one of the program's TCP sockets.

mod settings;
mod upload;

use core::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use core::time::Duration;
use std::collections::VecDeque;

use overfly_engine::{FlowId, Instant};
use rustix::io::Errno;

pub use self::settings::Settings;
pub(crate) use self::upload::{TOGETHER, Upload};
use crate::interest::NONE;
use crate::ring::Ring;
use crate::stack::Datagrams;
use crate::told;

/// Contexts of a process at most, each with a stack of its own (EF_STACK_PER_THREAD): half of the stacks that an interface has.
pub(crate) const CONTEXTS: usize = 1 << (u32::BITS - INDEX_BITS);
/// Bits of a socket's number that tell it from the others of its context.
pub(crate) const INDEX_BITS: u32 = 27;
const INDEX: u32 = (1 << INDEX_BITS) - 1;

/// Names a socket: its context, and which of the context's it is. Dense; comes back with another socket after
/// [`crate::stack::Stack::close`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SocketId(pub(crate) u32);

impl SocketId {
    pub(crate) const fn index(self) -> usize {
        (self.0 & INDEX) as usize
    }

    pub(crate) const fn context(self) -> usize {
        (self.0 >> INDEX_BITS) as usize
    }
}

/// Bytes that a socket's send queue holds at most, unless SO_SNDBUF says otherwise.
pub(crate) const SEND_LIMIT: usize = 512 * 1024;
/// Least and largest SO_SNDBUF.
pub(crate) const SEND_LIMIT_RANGE: (usize, usize) = (4 * 1024, 1024 * 1024);

const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// An address as the engine and the broker have it: IPv4 if it is mapped, without flow label and scope.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// An address as a socket's program sees it: mapped if the socket is AF_INET6 and the address IPv4; with the interface's
/// index if it is link-local, as it means nothing elsewhere.
pub(crate) fn presented(address: SocketAddr, v6: bool, interface: u32) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if v6 => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            SocketAddrV6::new(ip, address.port(), 0, interface).into()
        }
        _ => address,
    }
}

/// Where a socket stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SocketState {
    /// Nobody's: waits in the list of free sockets.
    Free,
    /// Neither listening nor connected; lives in the kernel until it is known where it goes.
    Candidate,
    /// Listens.
    Listening,
    /// A UDP socket, whatever it is bound or connected to; a part of it lives in the kernel.
    Datagram,
    /// An active open is under way.
    Connecting,
    /// Established, or closing.
    Connected,
    /// The engine has let go of the flow; what was received can still be read.
    Ended,
    /// Belongs to the process that this one was forked from.
    Lost,
}

/// Which engine carries a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// That of the interface, or of clients over memif.
    Network,
    /// That of connections within the host.
    Loopback,
}

impl Side {
    pub(crate) const ALL: [Self; 2] = [Self::Network, Self::Loopback];

    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

/// A connection of the kernel's that waits to be accepted.
pub(crate) struct Arrival {
    pub(crate) descriptor: i32,
    pub(crate) remote: SocketAddr,
}

/// A listener's part.
#[derive(Default)]
pub(crate) struct Listening {
    /// Connections that accept() has not returned yet, oldest first.
    pub(crate) queue: VecDeque<SocketId>,
    /// How many of them have died meanwhile.
    pub(crate) dead: usize,
    /// Connections that another process gave away when it stopped listening: they are the kernel's.
    pub(crate) arrivals: VecDeque<Arrival>,
    /// Connections that may wait.
    pub(crate) backlog: u32,
    /// For how long a connection is no news without data (TCP_DEFER_ACCEPT).
    pub(crate) defer: Duration,
    /// Where it listens, once this process has joined: at two addresses if it takes connections of both families.
    pub(crate) joined: Vec<SocketAddr>,
    /// The kernel's listening socket may have connections too.
    pub(crate) kernel_ready: bool,
    /// This process, or one that it was forked from, has joined: O_NONBLOCK of the kernel's socket is set, whatever the
    /// program asked for.
    pub(crate) forced_nonblocking: bool,
    /// Epoll sets that the kernel's listening socket is in: they say when it is ready.
    pub(crate) kernel_watched: u32,
    /// This process has called accept().
    pub(crate) accepts: bool,
    /// It has only watched, and forked: the kernel listens until it accepts.
    pub(crate) left_to_children: bool,
}

impl Listening {
    /// accept() has something to return.
    pub(crate) fn has_connections(&self) -> bool {
        !self.queue.is_empty() || !self.arrivals.is_empty()
    }
}

/// SO_TIMESTAMPING, under one of its two names, which the kernel's socket gets with the connection: `struct so_timestamping`,
/// or as much of it as was given.
#[derive(Clone, Copy)]
pub(crate) struct Later {
    pub(crate) name: i32,
    pub(crate) value: [i32; 2],
    pub(crate) length: u32,
}

/// One socket.
pub(crate) struct Socket {
    pub(crate) state: SocketState,
    /// The program holds this many descriptors of it. Zero while it waits to be accepted, and after close().
    pub(crate) references: u32,
    /// Calls that wait and keep it, though its last descriptor be closed.
    pub(crate) holders: u32,
    /// How many sockets have been this one before.
    pub(crate) generation: u32,
    /// One of the program's descriptors for it, or -1.
    pub(crate) descriptor: i32,
    /// O_NONBLOCK.
    pub(crate) nonblocking: bool,
    /// The descriptor closes on exec.
    pub(crate) close_on_exec: bool,
    /// An AF_INET6 socket: it speaks of IPv4 addresses in their mapped form (RFC 3493 section 3.7).
    pub(crate) v6: bool,
    /// SO_RCVTIMEO, and SO_SNDTIMEO, were set below zero, which the kernel's socket says nothing of.
    pub(crate) never_waits: [bool; 2],
    /// Other processes may have it as well: it may listen, and not connect. Who connects to it need not be who accepts.
    pub(crate) shared: bool,
    /// The program changed the kernel's socket: it cannot serve another connection.
    pub(crate) customized: bool,
    /// The stack cannot follow what the program does with it: the kernel takes the connection over at the next call.
    pub(crate) wants_kernel: bool,
    /// What it is asked for then.
    pub(crate) later: Option<Box<Later>>,
    /// The kernel could not.
    pub(crate) stays: bool,
    /// First of its interests.
    pub(crate) interests: u32,
    /// A thread sleeps until something happens to it: false when it has.
    pub(crate) awaited: bool,
    pub(crate) settings: Settings,

    pub(crate) flow: Option<FlowId>,
    /// Whose flow it is.
    pub(crate) side: Side,
    /// As the engine has them: no mapped addresses, no scopes.
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// Received and not yet read.
    pub(crate) receive: Ring,
    /// Written and not yet acknowledged; its first byte has the offset `send_base` in the stream.
    pub(crate) send: Ring,
    /// Its limit while there is no memory for as much.
    pub(crate) full_send_limit: Option<usize>,
    pub(crate) send_base: u64,
    /// Where in the stream what was never sent begins.
    pub(crate) sent_to: u64,
    pub(crate) upload: Upload,
    /// SO_ERROR: see [`Socket::pending_error`].
    pub(crate) error: Option<Errno>,
    /// Which context's thread read from it last, how often in a row, and whether it stays where it is whoever does
    /// ([`crate::process::moving`]).
    pub(crate) served_by: u8,
    pub(crate) served: u8,
    pub(crate) settled: bool,
    /// No wait for it can be one that the library does not see ([`crate::process::unseen`]).
    pub(crate) waits_are_seen: bool,
    /// Who of several processes that have it hears of the error.
    pub(crate) error_of_several: Option<told::Error>,
    /// Whether one of them has dissolved it since, by connect() to AF_UNSPEC or one that said that it has failed.
    pub(crate) dissolved_by_several: Option<told::Error>,
    /// What several processes that have it have read since it ended.
    pub(crate) reads_of_several: Option<told::Reads>,
    /// The peer's FIN came.
    pub(crate) remote_closed: bool,
    /// shutdown(SHUT_WR).
    pub(crate) write_shut: bool,
    /// Before the peer's FIN came, if it has.
    pub(crate) shut_first: bool,
    /// shutdown(SHUT_RD).
    pub(crate) read_shut: bool,
    /// Urgent data has come since it was shut both ways.
    pub(crate) urgent_unread: bool,
    /// A write found no space: the next acknowledgment that makes enough of it is news.
    pub(crate) no_space: bool,
    /// The last write said that more follows (MSG_MORE).
    pub(crate) more: bool,
    /// connect() has returned success, or need not.
    pub(crate) connect_told: bool,
    /// shutdown() came when the connection was over, and before any connect() had told of it: none will (SS_DISCONNECTING in Linux).
    pub(crate) disconnecting: bool,
    /// The connection is over and forgotten: connect() may open another one.
    pub(crate) disconnected: bool,
    /// Accepted, rather than connected.
    pub(crate) passive: bool,
    /// Accepted by a listener at any address, or connected from a shared port: AF_UNSPEC makes it forget its own.
    pub(crate) at_any: bool,
    /// bind() has given the kernel's socket another address since the connection was over.
    pub(crate) bound_since: bool,
    /// How often the process had forked when it was accepted or connected.
    pub(crate) forks: u32,
    /// Of a lost connection: which ancestor has it.
    pub(crate) ancestor: u32,
    /// Waits in `listener`'s queue, or until it may.
    pub(crate) queued: bool,
    /// Waits for data before it goes into the queue, until then (TCP_DEFER_ACCEPT).
    pub(crate) deferred_until: Option<Instant>,
    pub(crate) listener: SocketId,
    pub(crate) listening: Option<Box<Listening>>,
    /// A UDP socket's.
    pub(crate) datagrams: Option<Box<Datagrams>>,
}

impl Socket {
    pub(crate) const fn new() -> Self {
        Self {
            state: SocketState::Free,
            references: 0,
            holders: 0,
            generation: 0,
            descriptor: -1,
            nonblocking: false,
            close_on_exec: false,
            v6: false,
            never_waits: [false; 2],
            shared: false,
            customized: false,
            wants_kernel: false,
            later: None,
            stays: false,
            interests: NONE,
            awaited: false,
            settings: Settings::DEFAULT,
            flow: None,
            side: Side::Network,
            local: NOWHERE,
            remote: NOWHERE,
            receive: Ring::new(),
            send: Ring::new(),
            full_send_limit: None,
            send_base: 0,
            sent_to: 0,
            upload: Upload::NONE,
            error: None,
            served_by: 0,
            served: 0,
            waits_are_seen: false,
            settled: false,
            error_of_several: None,
            dissolved_by_several: None,
            reads_of_several: None,
            remote_closed: false,
            write_shut: false,
            shut_first: false,
            read_shut: false,
            urgent_unread: false,
            no_space: false,
            more: false,
            connect_told: false,
            disconnecting: false,
            disconnected: false,
            passive: false,
            at_any: false,
            bound_since: false,
            forks: 0,
            ancestor: 0,
            queued: false,
            deferred_until: None,
            listener: SocketId(NONE),
            listening: None,
            datagrams: None,
        }
    }

    /// Ready for the next socket, buffers kept.
    pub(crate) fn recycle(&mut self) {
        self.receive.recycle();
        self.send.recycle();
        let (receive, send) = (core::mem::take(&mut self.receive), core::mem::take(&mut self.send));
        *self = Self { receive, send, ..Self::new() };
    }

    /// Forgets what it was connected to, but not its descriptors, settings, flow, and error, which may be several processes'.
    pub(crate) fn begin_anew(&mut self) {
        self.receive.recycle();
        self.send.recycle();
        if let Some(limit) = self.full_send_limit.take() {
            self.settings.send_limit = limit;
        }
        self.send_base = 0;
        self.sent_to = 0;
        self.wants_kernel &= !core::mem::replace(&mut self.upload, Upload::NONE).is_large;
        self.remote_closed = false;
        self.write_shut = false;
        self.shut_first = false;
        self.read_shut = false;
        self.urgent_unread = false;
        self.no_space = false;
        self.more = false;
        self.connect_told = false;
        self.disconnecting = false;
        self.disconnected = false;
        self.passive = false;
        self.reads_of_several = None;
    }

    /// Some connect() has to say yet that it is made, or how it has failed.
    pub(crate) fn is_untold(&self) -> bool {
        !self.passive && !self.connect_told
    }

    /// One says it now, or need not. Returns whether none had.
    pub(crate) fn tell_connect(&mut self) -> bool {
        !core::mem::replace(&mut self.connect_told, true)
    }

    /// The error that it has to tell, unless another process has been told.
    pub(crate) fn pending_error(&self) -> Option<Errno> {
        self.error.filter(|_| self.error_of_several.is_none_or(told::Error::is_pending))
    }

    /// Other processes will have the connection's end as well.
    pub(crate) fn share_end(&mut self) {
        self.catch_up();
        // It is what the kernel's socket is once one of them has been told its error.
        self.shared |= self.disconnected;
        if !self.receive.is_empty() && self.reads_of_several.is_none() {
            self.reads_of_several = told::Reads::new();
        }
        if self.error.is_some() && self.error_of_several.is_none() {
            self.error_of_several = told::Error::new();
        }
        if self.dissolved_by_several.is_none() {
            self.dissolved_by_several = told::Error::new();
        }
    }

    /// Another process has ended what is left of it, by connect() to AF_UNSPEC or one that said that it has failed, or has left it to
    /// the kernel.
    pub(crate) fn was_dissolved(&self) -> bool {
        let dissolved = self.dissolved_by_several.is_some_and(|dissolved| !dissolved.is_pending());
        dissolved && matches!(self.state, SocketState::Ended | SocketState::Connected) && !self.disconnected
    }

    /// It is in no connection any more, and so perhaps the kernel's for all who have it (`Process::leaves_to_all`).
    pub(crate) fn may_be_all_kernels(&self) -> bool {
        self.disconnected || self.was_dissolved()
    }

    /// The kernel's socket is what is left of it, by another process.
    pub(crate) fn was_left_to_kernel(&self) -> bool {
        self.was_dissolved() && self.dissolved_by_several.is_some_and(told::Error::is_kernels)
    }

    /// The program has.
    #[inline]
    pub(crate) fn has_read(&mut self, count: usize) {
        self.receive.discard(count);
        if let Some(reads) = &mut self.reads_of_several {
            reads.add(count);
        }
    }

    /// What another process has read is gone.
    #[inline]
    pub(crate) fn catch_up(&mut self) {
        if let Some(reads) = &mut self.reads_of_several {
            self.receive.discard(reads.news().min(self.receive.len()));
        }
    }

    /// The same, taken.
    pub(crate) fn take_error(&mut self) -> Option<Errno> {
        let error = self.error.take()?;
        self.error_of_several.take().is_none_or(told::Error::take).then_some(error)
    }

    /// Bytes that were written and not yet sent for the first time.
    pub(crate) fn unsent(&self) -> usize {
        self.send.len().saturating_sub(self.sent_to.saturating_sub(self.send_base) as usize)
    }

    /// Established, and to be accepted from `listener`.
    pub(crate) fn waits_for(&mut self, listener: SocketId) {
        self.state = SocketState::Connected;
        self.passive = true;
        self.queued = true;
        self.listener = listener;
    }

    /// Room for another write. Like Linux, a full queue counts as writable again when a third of it is free, and when what was
    /// not sent yet is below half of TCP_NOTSENT_LOWAT (tcp_stream_memory_free() in include/net/tcp.h).
    pub(crate) fn has_space(&self) -> bool {
        let mark = self.settings.unsent_low_water as usize;
        self.send.len() <= self.settings.send_limit / 3 * 2 && (mark == 0 || self.unsent() * 2 < mark)
    }

    /// Bytes that a write may add. Below TCP_NOTSENT_LOWAT it may go beyond the mark by a segment or two, as in Linux.
    pub(crate) fn space(&self) -> usize {
        const SOME: usize = 4096;
        let space = self.settings.send_limit.saturating_sub(self.send.len());
        match self.settings.unsent_low_water as usize {
            0 => space,
            mark => match mark.saturating_sub(self.unsent()) {
                0 => 0,
                room => space.min(room.max(SOME)),
            },
        }
    }

    /// The send queue cannot grow: what it has is all there is room for, until that changes ([`Socket::space_again`]). Linux, too,
    /// lowers a socket's limit then (sk_stream_moderate_sndbuf() in include/net/sock.h).
    pub(crate) fn has_no_memory(&mut self) {
        self.full_send_limit.get_or_insert(self.settings.send_limit);
        self.settings.send_limit = self.send.capacity().min(self.settings.send_limit);
    }

    /// What a write says that found no memory: with something on its way there will be room.
    pub(crate) fn why_no_memory(&self) -> Errno {
        if self.send.is_empty() { Errno::NOBUFS } else { Errno::AGAIN }
    }

    /// There is no space: perhaps only for want of memory, and there is some now.
    pub(crate) fn space_again(&mut self) -> bool {
        let Some(limit) = self.full_send_limit else { return false };
        let before = core::mem::replace(&mut self.settings.send_limit, limit);
        let more = self.space();
        if more > 0 && self.send.reserve(more.min(4096)) {
            self.full_send_limit = None;
            return true;
        }
        self.settings.send_limit = before;
        false
    }

    /// Received bytes from which on the socket counts as readable: SO_RCVLOWAT, but no more than there is sure to be room for.
    pub(crate) fn low_water(&self) -> usize {
        const SURE: u32 = 32 * 1024;
        let room = self.settings.receive_limit.map_or(SURE, |limit| (limit / 2).min(SURE));
        self.settings.receive_low_water.min(room).max(1) as usize
    }

    /// The program let go, and only the engine still knows the flow.
    pub(crate) fn is_orphan(&self) -> bool {
        self.references == 0 && self.holders == 0 && !self.queued
    }

    /// By the program: what comes is for nobody, and nobody answers.
    pub(crate) const fn is_shut_both_ways(&self) -> bool {
        self.read_shut && self.write_shut
    }
}

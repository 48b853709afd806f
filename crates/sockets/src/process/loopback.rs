//! Connections whose other end is on this host, at user level too: an engine of their own, with a link to each accelerated
//! program that there are connections with ([`overfly_link::memif::Loopback`]), beside the one for the network. A connection
//! that finds nobody there, or no answer in time, is the kernel's.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::collections::VecDeque;

use overfly_engine::{Config, FlowId, Instant, Prefix};
use overfly_link::memif::{Loopback, OtherEnd};
use overfly_wire::MacAddr;
use rustix::io::Errno;

use super::pairs::{Asked, PendingTransfer};
use super::start::Start;
use super::{Process, has_addresses_of_its_own};
use crate::any_link::{AnyLink, SEGMENT_OFFLOAD};
use crate::kernel::{self, now};
use crate::socket::{Side, SocketId, SocketState, presented};
use crate::statistics::Why;

/// How long the other program may take to answer a SYN: it may be computing, and its kernel is always there.
const PATIENCE: Duration = Duration::from_millis(50);
/// From this value of EF_TCP_CLIENT_LOOPBACK on it does not matter whether connections can be handed over.
const REGARDLESS: u64 = 3;
/// So many looks take a handshake with a listener of the same process from its SYN to its end.
const HANDSHAKE_TURNS: usize = 4;
/// And so many take a segment and its answer, within one process.
const ANSWER_TURNS: usize = 3;
/// How long the host's addresses are believed.
const BELIEVED: Duration = Duration::from_secs(5);
/// Of a packet within the host, in bytes: segments of 32,741, as Linux's loopback has them until it was told a window of more than
/// 65,535 bytes (half of that: tcp_bound_to_half_wnd() in include/net/tcp.h). Larger ones wait for a timer where a window is small.
const MTU: u16 = 32_741 + 12 + 40;
/// Nothing lingers on a link within the host: what was sent has arrived, in order.
const TIME_WAIT: Duration = Duration::from_millis(1);

/// What a process knows of the host.
pub(super) struct WithinHost {
    start: Start,
    /// Connections that the kernel could carry are carried here, too.
    relieves_kernel: bool,
    /// Active opens that are under way, and until when: in order.
    openings: VecDeque<(Instant, SocketId, FlowId)>,
    /// When a thread that spins last looked for something to accept.
    pub(super) spun_to_accept: Instant,
    addresses: Vec<IpAddr>,
    looked: Option<Instant>,
    /// A thread answers other processes.
    answers: bool,
    /// See [`super::pairs`].
    pub(super) asked: Vec<Asked>,
    /// Who was asked last whether it would accept at that address.
    pub(super) offered: Vec<([u8; 6], SocketAddr)>,
    /// Who has said that it would, and has not got anything for that.
    pub(super) willing: Vec<([u8; 6], SocketAddr)>,
    pub(super) given: Vec<PendingTransfer>,
}

impl WithinHost {
    pub(super) const fn new() -> Self {
        Self {
            start: Start::Untried,
            relieves_kernel: false,
            openings: VecDeque::new(),
            spun_to_accept: Instant::from_micros(0),
            addresses: Vec::new(),
            looked: None,
            answers: false,
            asked: Vec::new(),
            offered: Vec::new(),
            willing: Vec::new(),
            given: Vec::new(),
        }
    }

    /// The engine is gone.
    pub(super) fn forget(&mut self) {
        *self = Self::new();
    }

    /// There may be something to do besides moving frames.
    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        !self.openings.is_empty() || (self.start == Start::Running && !self.answers)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.openings.front().map(|&(deadline, ..)| deadline)
    }
}

impl Process {
    pub(super) fn loopback(&mut self) -> Option<&mut Loopback> {
        self.stack.transport_mut(Side::Loopback).and_then(AnyLink::loopback)
    }

    /// Makes the engine for connections within the host, at its first use. Returns whether there is one.
    pub(super) fn start_loopback(&mut self) -> bool {
        // What a program may do with a connection later could not be done now.
        if self.within_host.start == Start::Untried && !self.is_away() {
            self.within_host.start = match self.try_start_loopback() {
                Ok(true) => Start::Running,
                Ok(false) => Start::Failed,
                Err(reason) => {
                    kernel::complain(&format!("connections within the host are the kernel's: {reason}"));
                    Start::Failed
                }
            };
        }
        self.within_host.start == Start::Running
    }

    /// `Ok(false)`: what a program may do with a connection later could not be done, and nobody asked for it all the same. Where
    /// the kernel has no way to the program's own addresses, connections to those are carried all the same.
    fn try_start_loopback(&mut self) -> Result<bool, String> {
        let mut client = self.take_client().map_err(|error| error.to_string())?;
        let moves_pairs = client.moves_pairs();
        self.session.client = Some(client);
        let moves_pairs = moves_pairs.map_err(|error| error.to_string())?;
        self.within_host.relieves_kernel = moves_pairs || self.options.tcp_client_loopback >= REGARDLESS;
        if !self.within_host.relieves_kernel && !has_addresses_of_its_own() {
            return Ok(false);
        }
        let mut own = [0; 6];
        rustix::rand::getrandom(&mut own[1..], rustix::rand::GetRandomFlags::empty())
            .map_err(|error| format!("getrandom: {error}"))?;
        // Locally administered; the link names its peers with the other half of those.
        own[0] = 0x02;
        let mut config = Config::new(MacAddr(own), Ipv4Addr::LOCALHOST, 8);
        config.loopback = true;
        config.mtu = MTU;
        config.own_prefixes = vec![
            Prefix { address: Ipv4Addr::UNSPECIFIED.into(), len: 0 },
            Prefix { address: core::net::Ipv6Addr::UNSPECIFIED.into(), len: 0 },
        ];
        config.partial_checksums = true;
        config.checksum_offload = true;
        config.segment_offload = SEGMENT_OFFLOAD;
        config.time_wait = TIME_WAIT;
        self.carry(Side::Loopback, config, AnyLink::within_host(own, self.context)?)?;
        self.begin_to_show();
        self.watch_new_links();
        Ok(true)
    }

    /// Where connections from this host may come to for a listener at `local`. Where nothing could be handed over those are the
    /// ones to the program's own address, which no kernel could carry.
    pub(super) fn place_within_host(&self, local: SocketAddr) -> Option<SocketAddr> {
        if self.within_host.relieves_kernel {
            return Some(local);
        }
        let own =
            self.session.interface.iter().flat_map(|interface| &interface.addresses).map(|&(own, _)| own);
        let covers = |own: &IpAddr| {
            own.is_ipv4() == local.is_ipv4() && (local.ip().is_unspecified() || local.ip() == *own)
        };
        Some(SocketAddr::new(own.into_iter().find(covers)?, local.port()))
    }

    /// Connections from this host to `local` may come to this process.
    pub(super) fn join_within_host(&mut self, id: SocketId, local: SocketAddr) {
        let for_others = self.options.tcp_server_loopback > 1;
        if self.stack.join(Side::Loopback, id, local) == Ok(true)
            && let Some(loopback) = self.loopback()
        {
            // Without a place there the kernel has the connections of others.
            let _ = loopback.listen(local, for_others);
        }
    }

    /// An address of the kernel's at the other end of the link: the program is a host of its own there.
    pub(super) fn is_across(&self, address: IpAddr) -> bool {
        let leads_to_kernel = self.stack.transport(Side::Network).is_some_and(AnyLink::leads_to_kernel);
        leads_to_kernel
            && !self.session.is_own(address)
            && (self.session.interface.iter().flat_map(|interface| &interface.addresses))
                .any(|&(own, len)| Prefix { address: own, len }.contains(address))
    }

    /// An address of this host's.
    pub(super) fn is_of_host(&mut self, address: IpAddr) -> bool {
        if address.is_loopback() || self.session.is_own(address) {
            return true;
        }
        let time = now();
        if self.within_host.looked.is_none_or(|looked| time - looked >= BELIEVED) {
            self.within_host.looked = Some(time);
            self.within_host.addresses = kernel::own_addresses();
        }
        self.within_host.addresses.contains(&address)
    }

    /// Begins an active open to an address of this host. `Ok(false)`: the kernel has to.
    pub(super) fn connect_within_host(
        &mut self,
        id: SocketId,
        descriptor: i32,
        remote: SocketAddr,
    ) -> Result<bool, Errno> {
        let why = if remote.ip().is_loopback() { Why::Loopback } else { Why::OtherAddress };
        let is_link_local = matches!(remote.ip(), IpAddr::V6(address) if address.is_unicast_link_local());
        let is_tied = self.stack.socket(id).customized && kernel::link(descriptor) != 0;
        if self.options.tcp_client_loopback == 0 || is_link_local || is_tied || !self.start_loopback() {
            return Ok(self.left(why));
        }
        let bound = kernel::local_address(descriptor).ok_or(Errno::INVAL)?;
        let from = bound.ip().to_canonical();
        if !from.is_unspecified() && from.is_ipv4() != remote.is_ipv4() {
            return Ok(self.left(why));
        }
        let only_own = self.options.tcp_client_loopback == 1;
        if self.kernel_reaches(remote.ip()) && !self.within_host.relieves_kernel {
            return Ok(self.left(why));
        }
        self.join_own_listeners(remote);
        let Some(next_hop) = self.loopback().and_then(|loopback| loopback.reach(remote, only_own)) else {
            return Ok(self.left(why));
        };
        let bound = if bound.port() == 0 {
            kernel::bind_any_port(descriptor, bound)?;
            kernel::local_address(descriptor).ok_or(Errno::INVAL)?
        } else {
            bound
        };
        let source = match remote.ip() {
            _ if !from.is_unspecified() => from,
            // The kernel's own choice for all of 127.0.0.0/8.
            IpAddr::V4(address) if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
            address => address,
        };
        let local = SocketAddr::new(source, bound.port());
        if !self.begin(Side::Loopback, id, descriptor, (local, remote), MacAddr(next_hop)) {
            return Ok(self.left(Why::Refused));
        }
        if let Some(flow) = self.stack.socket(id).flow
            && self.kernel_reaches(remote.ip())
        {
            self.within_host.openings.push_back((now() + PATIENCE, id, flow));
        }
        Ok(true)
    }

    /// Who connects to a listener of its own will accept there, though it has not looked yet: not so a process that has forked,
    /// which perhaps leaves that to its children, nor one that was started with the listener, which another one has too.
    fn join_own_listeners(&mut self, remote: SocketAddr) {
        if self.sets.shared || self.options.tcp_server_loopback == 0 {
            return;
        }
        let is_own = |&id: &SocketId| !self.stack.has_joined(id) && !self.stack.socket(id).shared;
        let listeners: Vec<_> = self.stack.listeners().filter(is_own).collect();
        for id in listeners {
            let descriptor = self.stack.socket(id).descriptor;
            let covers = |bound: SocketAddr| {
                let ip = bound.ip().to_canonical();
                let both = ip.is_unspecified() && (ip.is_ipv6() && !kernel::is_v6only(descriptor));
                bound.port() == remote.port()
                    && (ip == remote.ip() || both || ip.is_unspecified() && ip.is_ipv4() == remote.is_ipv4())
            };
            if kernel::local_address(descriptor).is_some_and(covers) {
                // If it cannot, it is the kernel's, as this connection will be.
                let _ = self.join(id, descriptor);
            }
        }
    }

    /// What this process opens to listeners of its own has arrived there.
    pub(super) fn finish_own_handshakes(&mut self) {
        for _ in 0..HANDSHAKE_TURNS {
            if !self.within_host.openings.is_empty() {
                self.pump();
            }
        }
    }

    /// The other end of a connection within this process, which needs no call to answer, has got what was written, and its answer is here:
    /// a reset, say, if the program has closed it.
    #[cold]
    pub(crate) fn hear_own_end(&mut self, id: SocketId) {
        if self.stack.socket(id).side != Side::Loopback {
            return;
        }
        let next_hop = self.stack.way(id).map(|(.., next_hop)| next_hop.0);
        let is_own = next_hop.is_some_and(|next_hop| {
            self.loopback().and_then(|loopback| loopback.other_end(next_hop)) == Some(OtherEnd::Own)
        });
        for _ in 0..if is_own { ANSWER_TURNS } else { 0 } {
            self.pump();
        }
    }

    /// What there is to do besides moving frames.
    #[cold]
    pub(super) fn look_within_host(&mut self) {
        self.look_at_openings();
        if !self.within_host.answers && self.loopback().is_some_and(|loopback| loopback.has_peers()) {
            self.within_host.answers = true;
            if let Err(error) = self.start_to_answer() {
                kernel::complain(&format!("other programs of the host get no answer: {error}"));
            }
        }
    }

    /// Whether other processes are answered still.
    pub(super) fn answers(&self) -> bool {
        self.within_host.answers
    }

    /// Active opens that nobody has answered in time are left to the kernel.
    fn look_at_openings(&mut self) {
        while let Some(&(deadline, id, flow)) = self.within_host.openings.front() {
            let socket = self.stack.socket(id);
            let waits = (socket.flow, socket.side, socket.state)
                == (Some(flow), Side::Loopback, SocketState::Connecting);
            if waits && self.pumped < deadline {
                break;
            }
            self.within_host.openings.pop_front();
            if waits && socket.references > 0 {
                self.statistics.late_within_host += 1;
                self.connect_in_kernel(id);
            }
        }
    }

    /// The kernel goes on with an active open: a call that waits for it does so itself.
    pub(super) fn connect_in_kernel(&mut self, id: SocketId) {
        let socket = self.stack.socket(id);
        let (descriptor, nonblocking) = (socket.descriptor, socket.nonblocking);
        let remote = presented(socket.remote, socket.v6, self.interface_index);
        let settings = socket.settings;
        kernel::set_nonblocking(descriptor, nonblocking);
        self.apply(descriptor, &settings);
        if nonblocking {
            match rustix::net::connect(kernel::borrow(descriptor), &remote) {
                Ok(()) | Err(Errno::INPROGRESS) => {}
                Err(errno) => return self.stack.fail(id, errno),
            }
        }
        self.set_free(id);
        self.stack.withdraw(id);
    }
}

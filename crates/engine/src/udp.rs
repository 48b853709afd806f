//! UDP (RFC 768, RFC 1122 section 4.1; over IPv6, RFC 8200 section 8.1).
//!
//! A datagram is pushed: [`Engine::udp_send`] writes it into the link's frame at once, and one that arrives goes to
//! [`Owner::datagram`] straight from its frame. The engine keeps none, but for a few that wait for a neighbour's hardware
//! address, and takes no memory for the others.
//!
//! There is no fragmentation: a datagram that the path does not take is refused, a fragment is dropped. Broadcast and
//! multicast are neither sent nor delivered. Where a kernel shares the link, both are its part.

mod errors;
mod send_error;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::collections::BTreeMap;

use overfly_wire::checksum::{self, Sum, copy_and_sum};
use overfly_wire::ip::Packet;
use overfly_wire::udp::{HEADER_LEN, Header};
use overfly_wire::{FrameSink, MacAddr, Malformed, icmpv4, icmpv6, ipv4, ipv6};

use crate::answers::StatelessReply;
use crate::config::Config;
use crate::engine::Engine;
use crate::flows::Table;
use crate::headers::{Path, headers_len};
use crate::owner::{Error, Owner};
use crate::secrets::Challenges;
use crate::shared::Shared;
use crate::time::Instant;
use crate::tuple::{Address, Tuple, TupleHasher};

pub use errors::{Report, Unreachable};
pub use send_error::SendError;

/// One UDP socket. Dense: an owner keeps its own state in a vector indexed by [`UdpId::index`]. A closed socket's id returns
/// with a new socket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct UdpId(pub(crate) u32);

impl UdpId {
    /// The position of this socket's state in an owner's vector.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The socket at this position: the inverse of [`UdpId::index`].
    #[must_use]
    pub const fn at(index: usize) -> UdpId {
        UdpId(index as u32)
    }
}

/// A datagram that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagram<'a> {
    /// Who sent it. Port 0 wants no answer (RFC 768).
    pub source: SocketAddr,
    /// Which of our addresses it came to (RFC 1122 section 4.1.3.5).
    pub destination: SocketAddr,
    /// Differentiated services, and congestion notification in the lowest two bits.
    pub traffic_class: u8,
    /// Hops that it might still have gone.
    pub hop_limit: u8,
    /// Straight from the frame; may be empty.
    pub payload: &'a [u8],
}

/// Destinations whose next hop is found without a search. A power of two.
const HOPS: usize = 1024;
/// RFC 1191 section 6.3, RFC 8201 section 4: what ICMP said of a path holds for ten minutes.
const PATH_VALID: Duration = Duration::from_secs(600);

/// The UDP sockets of an engine.
pub(crate) struct Udp {
    sockets: Vec<Socket>,
    free: Vec<u32>,
    table: Table,
    hasher: TupleHasher,
    /// Sockets that share a place ([`Engine::udp_open_shared`]): one of them stands in the table. Empty ones are free.
    groups: Vec<Vec<u32>>,
    /// How many stand in the table with both ends, with an address, and with a port alone: none of a kind, no lookup.
    kinds: [u32; 3],
    /// Next hops by a hash of the destination. Empty until the first socket is opened.
    hops: Box<[Hop]>,
    /// Counts what the engine was told of neighbours: an older [`Hop`] is to be looked up again.
    epoch: u32,
    /// Paths that take less than the link, and when that was said.
    paths: BTreeMap<IpAddr, (u16, Instant)>,
    /// Port unreachable messages (RFC 1812 section 4.3.2.8).
    refusals: Challenges,
}

#[derive(Clone, Copy)]
struct Socket {
    /// How it stands in the table: without a remote end, or without either, those are unspecified and port 0.
    tuple: Tuple,
    /// The address that it was opened at.
    bound: Address,
    is_open: bool,
    is_connected: bool,
    /// Which of [`Udp::groups`] it is in, or [`ALONE`].
    group: u32,
    /// Bytes of the largest IP packet that it sent; 0 if none.
    largest_sent: u16,
    /// Differentiated services of its packets, and how many hops they may go.
    marks: Marks,
}

/// In no group.
const ALONE: u32 = u32::MAX;

/// Traffic class, and hop limit; 0: the configuration's.
type Marks = (u8, u8);

impl Socket {
    fn kind(&self) -> usize {
        kind(&self.tuple, self.is_connected)
    }
}

/// The next hop to a destination.
#[derive(Clone, Copy)]
struct Hop {
    destination: Address,
    mac: MacAddr,
    /// From [`crate::neighbor::Neighbors`], not from a frame that came from there.
    is_known: bool,
    epoch: u32,
}

/// A datagram that waits for its next hop (RFC 1122 section 2.3.2.2).
pub(crate) struct Held {
    socket: UdpId,
    next_hop: MacAddr,
    tuple: Tuple,
    payload: Box<[u8]>,
    marks: Marks,
}

impl Held {
    pub(crate) const fn tuple(&self) -> &Tuple {
        &self.tuple
    }

    pub(crate) const fn set_next_hop(&mut self, next_hop: MacAddr) {
        self.next_hop = next_hop;
    }
}

const CONNECTED: usize = 0;
const BOUND: usize = 1;
const WILDCARD: usize = 2;

/// Which of the three lookups finds a socket.
fn kind(tuple: &Tuple, is_connected: bool) -> usize {
    if is_connected {
        CONNECTED
    } else if tuple.local.ip().is_unspecified() {
        WILDCARD
    } else {
        BOUND
    }
}

/// No address, in the family of `address`.
fn unspecified(address: Address) -> Address {
    if address.is_v4() { Address::v4(Ipv4Addr::UNSPECIFIED) } else { Address::v6(Ipv6Addr::UNSPECIFIED) }
}

/// Whether one host has this address; a prefix's broadcast address is none.
fn is_one_host(config: &Config, address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            !(address.is_unspecified() || address.is_broadcast() || address.is_multicast())
                && Some(address) != config.broadcast()
        }
        IpAddr::V6(address) => !(address.is_unspecified() || address.is_multicast()),
    }
}

impl Udp {
    pub(crate) fn new(hasher: TupleHasher) -> Self {
        Self {
            sockets: Vec::new(),
            free: Vec::new(),
            table: Table::with_slots(64),
            hasher,
            groups: Vec::new(),
            kinds: [0; 3],
            hops: Box::default(),
            epoch: 1,
            paths: BTreeMap::new(),
            refusals: Challenges::default(),
        }
    }

    fn at(&self, id: UdpId) -> &Socket {
        &self.sockets[id.index()]
    }

    #[inline]
    fn find_exactly(&self, tuple: &Tuple) -> Option<u32> {
        let sockets = &self.sockets;
        self.table.find(self.hasher.hash(tuple), |index| sockets[index as usize].tuple == *tuple)
    }

    /// The socket for a datagram: connected before bound to the address before bound to the port alone. Of several that share a
    /// place the one that the hash of both ends says, so that a peer stays with it.
    #[inline]
    fn find(&self, tuple: &Tuple) -> Option<u32> {
        let index = self.find_place(tuple)?;
        match self.sockets[index as usize].group {
            ALONE => Some(index),
            group => {
                let members = &self.groups[group as usize];
                Some(members[self.hasher.hash(tuple) as usize % members.len()])
            }
        }
    }

    #[inline]
    fn find_place(&self, tuple: &Tuple) -> Option<u32> {
        if self.kinds[CONNECTED] > 0
            && let Some(index) = self.find_exactly(tuple)
        {
            return Some(index);
        }
        let none = unspecified(tuple.local);
        let mut tuple = Tuple { remote: none, remote_port: 0, ..*tuple };
        if self.kinds[BOUND] > 0
            && let Some(index) = self.find_exactly(&tuple)
        {
            return Some(index);
        }
        if self.kinds[WILDCARD] == 0 {
            return None;
        }
        tuple.local = none;
        self.find_exactly(&tuple)
    }

    /// A new socket, which does not stand in the table yet.
    fn add(&mut self, tuple: Tuple, is_connected: bool, bound: IpAddr) -> u32 {
        let socket = Socket {
            tuple,
            bound: bound.into(),
            is_open: true,
            is_connected,
            group: ALONE,
            largest_sent: 0,
            marks: (0, 0),
        };
        match self.free.pop() {
            Some(index) => {
                self.sockets[index as usize] = socket;
                index
            }
            None => {
                self.sockets.push(socket);
                self.sockets.len() as u32 - 1
            }
        }
    }

    fn enter(&mut self, index: u32) {
        let socket = &self.sockets[index as usize];
        self.kinds[socket.kind()] += 1;
        self.table.insert(self.hasher.hash(&socket.tuple), index);
    }

    /// A socket takes the place of `first` as well.
    fn join(&mut self, index: u32, first: u32) {
        let mut group = self.sockets[first as usize].group;
        if group == ALONE {
            let free = self.groups.iter().position(Vec::is_empty);
            group = free.unwrap_or(self.groups.len()) as u32;
            if free.is_none() {
                self.groups.push(Vec::new());
            }
            self.groups[group as usize].push(first);
            self.sockets[first as usize].group = group;
        }
        self.groups[group as usize].push(index);
        self.sockets[index as usize].group = group;
    }

    /// A socket leaves those that it shared its place with.
    fn part(&mut self, index: u32) {
        let Socket { tuple, group, .. } = self.sockets[index as usize];
        self.sockets[index as usize].group = ALONE;
        let members = &mut self.groups[group as usize];
        members.retain(|&member| member != index);
        let heir = members[0];
        if members.len() == 1 {
            members.clear();
            self.sockets[heir as usize].group = ALONE;
        }
        if self.find_exactly(&tuple) == Some(index) {
            let hash = self.hasher.hash(&tuple);
            self.table.remove(hash, index);
            self.table.insert(hash, heir);
        }
    }

    fn leave(&mut self, index: u32) {
        if self.sockets[index as usize].group != ALONE {
            self.part(index);
            return;
        }
        let socket = &self.sockets[index as usize];
        self.kinds[socket.kind()] -= 1;
        self.table.remove(self.hasher.hash(&socket.tuple), index);
    }

    #[inline]
    fn hop_slot(&self, destination: Address) -> usize {
        let local = unspecified(destination);
        let tuple = Tuple { local, remote: destination, local_port: 0, remote_port: 0 };
        self.hasher.hash(&tuple) as usize & (HOPS - 1)
    }

    /// A frame from `source` came by way of `mac`: there its answer goes, unless the engine was told better.
    #[inline]
    fn came_from(&mut self, source: Address, mac: MacAddr) {
        let slot = self.hop_slot(source);
        let Some(hop) = self.hops.get_mut(slot) else { return };
        let is_told = hop.is_known && hop.epoch == self.epoch;
        if hop.destination != source || (hop.mac != mac && !is_told) {
            *hop = Hop { destination: source, mac, is_known: false, epoch: self.epoch.wrapping_sub(1) };
        }
    }

    /// The bytes that an IP packet to `destination` may have.
    fn path_mtu(&self, config: &Config, now: Instant, destination: IpAddr) -> u16 {
        if self.paths.is_empty() {
            return config.mtu;
        }
        match self.paths.get(&destination) {
            Some(&(mtu, since)) if now - since < PATH_VALID => mtu,
            _ => config.mtu,
        }
    }

    /// The engine was told of a neighbour: every next hop is to be looked up again.
    pub(crate) fn next_hops_changed(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }
}

impl Engine {
    /// Opens a UDP socket at `local` (0.0.0.0 and :: take every address of their family), connected where `remote` is given.
    ///
    /// A datagram goes to the socket that is connected to its sender, else to one at its address and port, else to one at
    /// its port. Errors of earlier datagrams come through [`Owner::datagram_failed`].
    ///
    /// # Errors
    /// [`Error::AddressInUse`], or [`Error::TupleInUse`] for a connected one; [`Error::Family`]; [`Error::NoAddress`] if one
    /// end of a connected one is a wildcard.
    pub fn udp_open(
        &mut self,
        local: impl Into<SocketAddr>,
        remote: Option<SocketAddr>,
    ) -> Result<UdpId, Error> {
        let local = local.into();
        let tuple = self.udp_tuple(local, remote)?;
        let udp = &mut self.udp;
        if udp.hops.is_empty() {
            let none = Address::v4(Ipv4Addr::UNSPECIFIED);
            let hop = Hop { destination: none, mac: MacAddr::BROADCAST, is_known: false, epoch: 0 };
            udp.hops = vec![hop; HOPS].into();
        }
        let index = udp.add(tuple, remote.is_some(), local.ip());
        udp.enter(index);
        Ok(UdpId(index))
    }

    /// Opens a socket at `local` beside those that are there (SO_REUSEPORT): each peer's datagrams go to one of them, by a hash
    /// that strangers cannot foresee. Who shares may be asked of the owner alone.
    ///
    /// # Errors
    /// None but those of [`Engine::udp_open`] for a place that is free.
    pub fn udp_open_shared(&mut self, local: impl Into<SocketAddr>) -> Result<UdpId, Error> {
        let local = local.into();
        match self.udp_open(local, None) {
            Err(Error::AddressInUse) => {}
            outcome => return outcome,
        }
        let none = unspecified(local.ip().into());
        let tuple =
            Tuple { local: local.ip().into(), remote: none, local_port: local.port(), remote_port: 0 };
        let udp = &mut self.udp;
        let first = udp.find_exactly(&tuple).ok_or(Error::AddressInUse)?;
        let index = udp.add(tuple, false, local.ip());
        udp.join(index, first);
        Ok(UdpId(index))
    }

    /// How a socket will stand in the table, if its place is free.
    fn udp_tuple(&self, local: SocketAddr, remote: Option<SocketAddr>) -> Result<Tuple, Error> {
        let none = unspecified(local.ip().into());
        let tuple = match remote {
            Some(remote) if remote.is_ipv4() != local.is_ipv4() => return Err(Error::Family),
            Some(remote) if local.ip().is_unspecified() || !is_one_host(&self.shared.config, remote.ip()) => {
                return Err(Error::NoAddress);
            }
            Some(remote) => Tuple::new(local, remote),
            None => {
                Tuple { local: local.ip().into(), remote: none, local_port: local.port(), remote_port: 0 }
            }
        };
        match self.udp.find_exactly(&tuple) {
            Some(_) if remote.is_some() => Err(Error::TupleInUse),
            Some(_) => Err(Error::AddressInUse),
            None => Ok(tuple),
        }
    }

    /// Closes a socket: nothing more is heard of it.
    pub fn udp_close(&mut self, socket: UdpId) {
        if self.udp.at(socket).is_open {
            self.udp.leave(socket.0);
            self.udp.sockets[socket.index()].is_open = false;
            self.udp.free.push(socket.0);
        }
    }

    /// Connects a socket, anew if it was: only datagrams from `remote` come to it from now on. `local` is where it was
    /// opened, a wildcard replaced by the address that it sends from.
    ///
    /// # Errors
    /// As [`Engine::udp_open`]; the socket is then what it was.
    pub fn udp_connect(
        &mut self,
        socket: UdpId,
        local: impl Into<SocketAddr>,
        remote: impl Into<SocketAddr>,
    ) -> Result<(), Error> {
        let tuple = self.udp_tuple(local.into(), Some(remote.into()))?;
        self.udp_move(socket, tuple, true);
        Ok(())
    }

    /// Dissolves a socket's connection: it is again at the address that it was opened at.
    ///
    /// # Errors
    /// [`Error::AddressInUse`] if another has taken that meanwhile; the socket stays connected.
    pub fn udp_disconnect(&mut self, socket: UdpId) -> Result<(), Error> {
        let block = self.udp.at(socket);
        if block.is_connected {
            let local = SocketAddr::new(block.bound.ip(), block.tuple.local_port);
            let tuple = self.udp_tuple(local, None)?;
            self.udp_move(socket, tuple, false);
        }
        Ok(())
    }

    fn udp_move(&mut self, socket: UdpId, tuple: Tuple, is_connected: bool) {
        self.udp.leave(socket.0);
        let block = &mut self.udp.sockets[socket.index()];
        // What it sent to others says nothing of this path.
        *block = Socket { tuple, is_connected, largest_sent: 0, ..*block };
        self.udp.enter(socket.0);
    }

    /// The traffic class of the socket's packets (IP_TOS, IPV6_TCLASS; RFC 2474), with ECN's bits (RFC 8085 section 3.1.7).
    pub fn udp_set_traffic_class(&mut self, socket: UdpId, class: u8) {
        self.udp.sockets[socket.index()].marks.0 = class;
    }

    /// How many hops the socket's packets may go (IP_TTL, IPV6_UNICAST_HOPS); 0 is what the configuration says.
    pub fn udp_set_hop_limit(&mut self, socket: UdpId, hops: u8) {
        self.udp.sockets[socket.index()].marks.1 = hops;
    }

    /// The local end, and the remote end of a connected socket.
    #[must_use]
    pub fn udp_ends(&self, socket: UdpId) -> (SocketAddr, Option<SocketAddr>) {
        let block = self.udp.at(socket);
        (block.tuple.local(), block.is_connected.then(|| block.tuple.remote()))
    }

    /// Bytes that an IP packet to `destination` may have, headers included, as far as is known (IP_MTU).
    #[must_use]
    pub fn udp_path_mtu(&self, now: Instant, destination: IpAddr) -> u16 {
        self.udp.path_mtu(&self.shared.config, now, destination)
    }

    /// Sends a datagram to `destination`, or to where the socket is connected, from `source`, or the socket's address, or
    /// the interface's where that is a wildcard. It is in the sink when this returns, unless its next hop must be asked for
    /// first ([`Config::alone`]): then it waits, [`Config::held_datagrams`] of them for each neighbour, the oldest dropped.
    ///
    /// # Errors
    /// [`SendError`]; nothing was sent.
    pub fn udp_send<S: FrameSink>(
        &mut self,
        now: Instant,
        socket: UdpId,
        sink: &mut S,
        source: Option<IpAddr>,
        destination: Option<SocketAddr>,
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.tell(now);
        let config = &self.shared.config;
        let mut tuple = self.udp.at(socket).tuple;
        if let Some(destination) = destination {
            (tuple.remote, tuple.remote_port) = (destination.ip().into(), destination.port());
        } else if !self.udp.at(socket).is_connected {
            return Err(SendError::NotConnected);
        }
        let remote = tuple.remote.ip();
        if tuple.remote_port == 0 || !is_one_host(config, remote) {
            return Err(SendError::Destination);
        }
        let wildcard = match source {
            Some(source) => {
                tuple.local = source.into();
                source.is_unspecified()
            }
            None => tuple.local.ip().is_unspecified(),
        };
        if tuple.local.is_v4() != tuple.remote.is_v4() {
            return Err(SendError::Family);
        }
        if wildcard {
            tuple.local = match config.address6 {
                _ if tuple.is_v4() => Address::v4(config.address),
                Some(address) => Address::v6(address),
                None => return Err(SendError::NoAddress),
            };
        }
        let mtu = self.udp.path_mtu(config, now, remote);
        let packet_len = ip_header_len(&tuple) + HEADER_LEN + payload.len();
        if packet_len > usize::from(mtu) {
            return Err(SendError::TooBig(mtu));
        }
        let marks = self.udp.at(socket).marks;
        match self.udp_next_hop(tuple.remote) {
            Some(next_hop) => {
                let frame = sink.frame().ok_or(SendError::Full)?;
                let length = self.shared.write_datagram(frame, next_hop, &tuple, payload, marks);
                sink.commit(length);
                self.shared.counters.tx_frames += 1;
                self.shared.counters.tx_datagrams += 1;
            }
            None if self.shared.config.alone => {
                let next_hop = MacAddr::BROADCAST;
                let held = Held { socket, next_hop, tuple, payload: payload.into(), marks };
                if !self.shared.hold_datagram(now, held) {
                    return Err(SendError::NoNeighbor);
                }
            }
            None => return Err(SendError::NoNeighbor),
        }
        let block = &mut self.udp.sockets[socket.index()];
        block.largest_sent = block.largest_sent.max(packet_len as u16);
        Ok(())
    }

    /// The hardware address of the next hop: what the engine was told, else what a frame from there taught.
    #[inline]
    fn udp_next_hop(&mut self, destination: Address) -> Option<MacAddr> {
        let slot = self.udp.hop_slot(destination);
        let epoch = self.udp.epoch;
        let hop = self.udp.hops.get_mut(slot)?;
        let is_here = hop.destination == destination;
        if is_here && hop.epoch == epoch {
            return Some(hop.mac);
        }
        match self.shared.neighbors.find(&self.shared.config, destination.ip()) {
            Some(mac) => {
                *hop = Hop { destination, mac, is_known: true, epoch };
                Some(mac)
            }
            None if is_here => {
                (hop.is_known, hop.epoch) = (false, epoch);
                Some(hop.mac)
            }
            None => None,
        }
    }

    /// A UDP packet came by way of `next_hop`; `bytes` are the packet from its IP header on.
    #[inline]
    pub(crate) fn receive_udp<O: Owner>(
        &mut self,
        next_hop: MacAddr,
        to_group: bool,
        packet: &Packet<'_>,
        bytes: &[u8],
        owner: &mut O,
    ) {
        let partial = self.shared.config.partial_checksums;
        let (local, remote, parsed) = match packet {
            Packet::V4(packet) => {
                let (source, destination) = (packet.source(), packet.destination());
                let parsed = Header::parse(packet.payload(), source, destination, partial);
                (Address::v4(destination), Address::v4(source), parsed)
            }
            Packet::V6(packet) => {
                let (source, destination) = (packet.source(), packet.destination());
                let parsed = Header::parse(packet.payload(), source, destination, partial);
                (Address::v6(destination), Address::v6(source), parsed)
            }
        };
        let counters = &mut self.shared.counters;
        let (header, payload) = match parsed {
            Ok(parsed) => parsed,
            Err(Malformed::UdpChecksum) => return counters.drop_checksum += 1,
            Err(Malformed::UdpNoChecksum) => return counters.drop_udp_no_checksum += 1,
            Err(_) => return counters.drop_malformed += 1,
        };
        // RFC 1122 sections 3.2.1.3 and 4.1.3.6 for the source.
        let config = &self.shared.config;
        if !is_one_host(config, remote.ip()) || !is_one_host(config, local.ip()) {
            counters.drop_udp_address += 1;
            return;
        }
        let (local_port, remote_port) = (header.destination_port, header.source_port);
        let tuple = Tuple { local, remote, local_port, remote_port };
        let Some(index) = self.udp.find(&tuple) else {
            counters.drop_udp_no_socket += 1;
            let bytes = &bytes[..packet.total_len().min(bytes.len())];
            // RFC 1122 section 3.2.2, RFC 4443 section 2.4 e: not about what came to a group's hardware address.
            if !to_group {
                self.refuse(next_hop, &tuple, bytes);
            }
            return;
        };
        counters.rx_datagrams += 1;
        self.udp.came_from(remote, next_hop);
        let datagram = Datagram {
            source: tuple.remote(),
            destination: tuple.local(),
            traffic_class: packet.traffic_class(),
            hop_limit: packet.hop_limit(),
            payload,
        };
        owner.datagram(UdpId(index), datagram);
    }

    /// Nobody is at the port that a packet came to (RFC 1122 section 4.1.3.1). Where a kernel shares the link, it may know
    /// somebody: the packet was steered here just before its socket closed.
    fn refuse(&mut self, next_hop: MacAddr, tuple: &Tuple, packet: &[u8]) {
        let config = &self.shared.config;
        let (local, remote) = (tuple.local.ip(), tuple.remote.ip());
        if !config.alone || !config.is_own(local) {
            return;
        }
        let (limit, tick) = (config.port_unreachables_per_s, self.now().tick());
        if !self.udp.refusals.allow(tick, limit, &self.shared.secret) {
            self.shared.counters.drop_refusal_limit += 1;
            return;
        }
        self.shared.counters.port_unreachables_sent += 1;
        let most = if local.is_ipv4() { icmpv4::MAX_QUOTE_LEN } else { icmpv6::MAX_QUOTE_LEN };
        let quote = packet[..packet.len().min(most)].into();
        self.shared.answer(StatelessReply::PortUnreachable { next_hop, local, remote, quote });
    }
}

/// Bytes of the IP header.
fn ip_header_len(tuple: &Tuple) -> usize {
    if tuple.is_v4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN }
}

/// Writes header and payload, summed while it is copied.
#[inline]
fn write_udp<A: checksum::Address>(
    datagram: &mut [u8],
    header: Header,
    source: A,
    destination: A,
    payload: &[u8],
) {
    // The field holds the pseudo-header's sum, so that the sum of the whole covers it.
    header.emit_partial(datagram, source, destination);
    let (head, body) = datagram.split_at_mut(HEADER_LEN);
    let sum = (Sum::new().bytes(head) + copy_and_sum(payload, body)).finish();
    // RFC 768: 0 would say that there is no checksum; all ones is its equal.
    let sum = if sum == 0 { 0xffff } else { sum };
    head[6..8].copy_from_slice(&sum.to_be_bytes());
}

impl Shared {
    /// Writes a datagram; returns the frame's length.
    #[inline]
    fn write_datagram(
        &self,
        frame: &mut [u8],
        next_hop: MacAddr,
        tuple: &Tuple,
        payload: &[u8],
        (traffic_class, hop_limit): Marks,
    ) -> usize {
        let headers = headers_len(tuple.is_v4());
        let length = HEADER_LEN + payload.len();
        let datagram = &mut frame[headers..headers + length];
        let header = Header { source_port: tuple.local_port, destination_port: tuple.remote_port };
        let (source, destination) = (tuple.local.ip(), tuple.remote.ip());
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                write_udp(datagram, header, source, destination, payload);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                write_udp(datagram, header, source, destination, payload);
            }
            _ => unreachable!("a datagram's ends are of one family: Engine::udp_send sees to it"),
        }
        let path = Path { next_hop, source, destination };
        let hop_limit = if hop_limit > 0 { hop_limit } else { self.config.hop_limit_to(path.destination) };
        self.write_headers(frame, &path, ipv4::PROTOCOL_UDP, length, traffic_class, hop_limit)
    }

    /// Writes a datagram that waited for its next hop; returns the frame's length.
    pub(crate) fn write_held(&mut self, frame: &mut [u8], held: &Held) -> usize {
        self.counters.tx_datagrams += 1;
        self.write_datagram(frame, held.next_hop, &held.tuple, &held.payload, held.marks)
    }

    /// Writes a port unreachable message; returns the frame's length.
    pub(crate) fn write_refusal(
        &self,
        frame: &mut [u8],
        next_hop: MacAddr,
        (local, remote): (IpAddr, IpAddr),
        quote: &[u8],
    ) -> usize {
        let buffer = &mut frame[headers_len(local.is_ipv4())..];
        let (length, protocol) = match (local, remote) {
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                (icmpv6::emit_port_unreachable(quote, buffer, local, remote), ipv6::PROTOCOL_ICMPV6)
            }
            _ => (icmpv4::emit_port_unreachable(quote, buffer), ipv4::PROTOCOL_ICMP),
        };
        let path = Path { next_hop, source: local, destination: remote };
        self.write_headers(frame, &path, protocol, length, 0, self.config.hop_limit_to(path.destination))
    }
}

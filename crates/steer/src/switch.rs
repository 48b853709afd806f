//! Which stack of a program a frame from its tap device belongs to: what the XDP program says of an interface's frames, for a
//! device that has none. A thread reads the device and hands each frame to its stack over shared memory. Who takes new connections
//! is chosen as `bpf/pulse.bpf.h` does.

mod outlet;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use overfly_broker::{Cluster, Protocol};
use overfly_link::{Link, memif::MemifLink, tap::TapLink};
use overfly_wire::ip::{Packet, Quote, Quoted};
use overfly_wire::{MacAddr, ethernet, icmpv4, icmpv6, ipv4, ipv6, tcp};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use self::outlet::Outlet;
use crate::error::Error;
use crate::groups::{BoundAddress, Groups, listening_places};
use crate::orphans::Reached;
use crate::program::FlowKey;

/// Frames that are read before the stacks are shown them.
const BATCH: usize = 64;
/// How long to wait where the device is down, or the kernel has no memory.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a stack whose ring is full holds up the frames of others, once.
const PATIENCE: Duration = Duration::from_millis(1);
/// As above, where there are no others.
const PATIENCE_ALONE: Duration = Duration::from_millis(if cfg!(test) { 10_000 } else { 100 });
/// Between two looks at a full ring.
const LOOK: Duration = Duration::from_micros(50);
/// Connections of listeners that are remembered at least; no more than twice as many are.
const REMEMBERED: usize = 1 << 17;
/// Peers whose hardware addresses are remembered.
const PEERS_MAX: usize = 1 << 16;

/// Whom a frame is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Addressee {
    Stack(u16),
    /// Any one: it answers for all.
    Any,
    All,
    Nobody,
}

/// What a frame says about that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    /// A connection or datagram, as seen from here; a TCP connection's first segment.
    Flow {
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
        opens: bool,
    },
    Any,
    All,
    Nobody,
}

impl Subject {
    fn of(frame: &[u8]) -> Subject {
        let Ok((header, payload)) = ethernet::Header::parse(frame) else { return Subject::Nobody };
        if header.destination.0[0] & 1 != 0 || header.ethertype == ethernet::ETHERTYPE_ARP {
            return Subject::All;
        }
        let packet = match header.ethertype {
            ethernet::ETHERTYPE_IPV4 => ipv4::Packet::parse(payload).map(Packet::V4),
            ethernet::ETHERTYPE_IPV6 => ipv6::Packet::parse(payload).map(Packet::V6),
            _ => return Subject::Nobody,
        };
        packet.map_or(Subject::Nobody, |packet| Subject::of_packet(&packet))
    }

    fn of_packet(packet: &Packet<'_>) -> Subject {
        if packet.is_fragment() {
            return Subject::Any;
        }
        let payload = packet.payload();
        let protocol = match packet.protocol() {
            ipv4::PROTOCOL_TCP => Protocol::Tcp,
            ipv4::PROTOCOL_UDP => Protocol::Udp,
            _ => return Subject::of_message(packet),
        };
        let &[a, b, c, d, ..] = payload else { return Subject::Nobody };
        let flags = payload.get(TCP_FLAGS).map_or(tcp::Flags::NONE, |&bits| tcp::Flags::from_bits(bits));
        Subject::Flow {
            protocol,
            local: SocketAddr::new(packet.destination(), u16::from_be_bytes([c, d])),
            remote: SocketAddr::new(packet.source(), u16::from_be_bytes([a, b])),
            opens: protocol == Protocol::Tcp
                && flags.contains(tcp::Flags::SYN)
                && !flags.contains(tcp::Flags::ACK),
        }
    }

    /// An ICMP error goes where the answers to the packet go that it quotes.
    fn of_message(packet: &Packet<'_>) -> Subject {
        let quote = match packet {
            Packet::V4(packet) => match icmpv4::Message::parse(packet.payload()) {
                Ok(
                    icmpv4::Message::DestinationUnreachable { quote, .. }
                    | icmpv4::Message::TimeExceeded { quote, .. }
                    | icmpv4::Message::ParameterProblem { quote, .. },
                ) => quote,
                _ => return Subject::Any,
            },
            Packet::V6(packet) => {
                match icmpv6::Message::parse(packet.payload(), packet.source(), packet.destination()) {
                    Ok(
                        icmpv6::Message::DestinationUnreachable { quote, .. }
                        | icmpv6::Message::PacketTooBig { quote, .. }
                        | icmpv6::Message::TimeExceeded { quote, .. }
                        | icmpv6::Message::ParameterProblem { quote, .. },
                    ) => quote,
                    Ok(
                        icmpv6::Message::NeighborSolicitation(_) | icmpv6::Message::NeighborAdvertisement(_),
                    ) => {
                        return Subject::All;
                    }
                    _ => return Subject::Any,
                }
            }
        };
        let Quote { source, destination, transport } = quote;
        if source != packet.destination() {
            return Subject::Any;
        }
        let (protocol, source_port, destination_port) = match transport {
            Quoted::Tcp { source_port, destination_port, .. } => {
                (Protocol::Tcp, source_port, destination_port)
            }
            Quoted::Udp { source_port, destination_port } => (Protocol::Udp, source_port, destination_port),
            Quoted::Other(_) => return Subject::Any,
        };
        Subject::Flow {
            protocol,
            local: SocketAddr::new(source, source_port),
            remote: SocketAddr::new(destination, destination_port),
            opens: false,
        }
    }
}

/// Where the flags are in a TCP header.
const TCP_FLAGS: usize = 13;

/// A map that forgets what has not been asked for in a long time.
#[derive(Debug, Default)]
struct Recent {
    young: HashMap<FlowKey, u16>,
    old: HashMap<FlowKey, u16>,
}

impl Recent {
    fn get(&mut self, flow: &FlowKey) -> Option<u16> {
        if let Some(&stack) = self.young.get(flow) {
            return Some(stack);
        }
        let stack = self.old.remove(flow)?;
        self.insert(*flow, stack);
        Some(stack)
    }

    fn insert(&mut self, flow: FlowKey, stack: u16) {
        if self.young.len() >= REMEMBERED {
            self.old = core::mem::take(&mut self.young);
        }
        self.young.insert(flow, stack);
    }

    fn remove(&mut self, flow: &FlowKey) {
        self.young.remove(flow);
        self.old.remove(flow);
    }

    /// Returns the stack's.
    fn remove_stack(&mut self, stack: u16) -> Vec<FlowKey> {
        let maps = [&mut self.young, &mut self.old].into_iter();
        maps.flat_map(|map| map.extract_if(|_, its| *its == stack)).map(|(flow, _)| flow).collect()
    }
}

/// Who has what. The order is the XDP program's: connections of listeners, those that a stack opened, listeners.
#[derive(Debug, Default)]
struct Table {
    groups: Groups,
    /// Those that stacks opened, and connected UDP sockets.
    opened: HashMap<FlowKey, u16>,
    /// TCP connections of listeners: a later change of the listener's stacks moves none of them.
    accepted: Recent,
    /// Where a peer's first frames came from.
    peers: HashMap<IpAddr, MacAddr>,
    /// Which of a listener's stacks a flow goes to.
    hasher: RandomState,
}

impl Table {
    fn addressee(&mut self, frame: &[u8], outlets: &mut [Outlet]) -> Addressee {
        match Subject::of(frame) {
            Subject::Flow { protocol, local, remote, opens } => {
                self.note_peer(frame, remote.ip(), opens);
                self.owner(protocol, local, remote, opens, outlets).map_or(Addressee::Any, Addressee::Stack)
            }
            Subject::Any => Addressee::Any,
            Subject::All => Addressee::All,
            Subject::Nobody => Addressee::Nobody,
        }
    }

    fn owner(
        &mut self,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
        opens: bool,
        outlets: &mut [Outlet],
    ) -> Option<u16> {
        let flow = FlowKey::new(protocol, local, remote);
        let recorded = (protocol == Protocol::Tcp).then(|| self.accepted.get(&flow)).flatten();
        if recorded.is_some() && !opens {
            return recorded;
        }
        if let Some(&stack) = self.opened.get(&flow) {
            return Some(stack);
        }
        let place = BoundAddress::new(protocol, local);
        let place =
            [place, place.everywhere()].into_iter().find(|&place| self.groups.accepting_stacks(place) > 0)?;
        // A new connection with an old one's tuple stays where it was only if that stack still accepts.
        if let Some(stack) = recorded.filter(|&stack| self.groups.accepts(stack, place)) {
            return Some(stack);
        }
        let turn = self.hasher.hash_one(flow) as usize;
        if !opens {
            return self.groups.accepting(place, turn);
        }
        let stack = self.who_takes(place, turn, outlets)?;
        self.accepted.insert(flow, stack);
        Some(stack)
    }

    /// Number `turn` of a listener's stacks, or the next one that waits for a connection; if nobody does, the next one that takes one.
    fn who_takes(&self, place: BoundAddress, turn: usize, outlets: &mut [Outlet]) -> Option<u16> {
        let count = self.groups.accepting_stacks(place);
        let in_circle = |from: usize| self.groups.accepting(place, (turn % count.max(1)) + from);
        let now = Instant::now();
        for must_wait in [true, false] {
            for stack in (0..count).filter_map(in_circle).filter(|_| count > 1) {
                if let Some(outlet) = outlets.iter_mut().find(|outlet| outlet.stack == stack)
                    && outlet.would_take(must_wait, now)
                {
                    outlet.note_syn(now);
                    return Some(stack);
                }
            }
        }
        in_circle(0)
    }

    fn note_peer(&mut self, frame: &[u8], peer: IpAddr, opens: bool) {
        if (!opens && self.peers.contains_key(&peer)) || self.peers.len() >= PEERS_MAX {
            return;
        }
        if let Ok((header, _)) = ethernet::Header::parse(frame) {
            self.peers.insert(peer, header.source);
        }
    }

    /// Returns the TCP connections that the stack may have had, as far as it is known where their peers are.
    fn remove_stack(&mut self, stack: u16) -> Vec<Reached> {
        self.groups.remove(stack);
        let mut flows = self.accepted.remove_stack(stack);
        flows.extend(self.opened.extract_if(|_, its| *its == stack).map(|(flow, _)| flow));
        let tcp = flows.into_iter().filter(|flow| flow.protocol() == ipv4::PROTOCOL_TCP);
        tcp.map(|flow| flow.ends()).filter_map(|ends| Some((ends, *self.peers.get(&ends.1.ip())?))).collect()
    }
}

/// A program's stacks, and what each has asked for.
#[derive(Debug, Default)]
struct Stacks {
    table: Table,
    outlets: Vec<Outlet>,
}

impl Stacks {
    /// Hands the frame to whom it is for. If that stack has no room but may be waited for: which one, and how long.
    fn deliver(&mut self, frame: &[u8]) -> Option<(u16, Duration)> {
        match self.table.addressee(frame, &mut self.outlets) {
            Addressee::Stack(stack) => {
                let alone = self.outlets.len() == 1;
                let outlet = self.outlets.iter_mut().find(|outlet| outlet.stack == stack)?;
                if outlet.offer(frame) {
                    return None;
                }
                if !outlet.given_up {
                    outlet.link.flush();
                    return Some((stack, if alone { PATIENCE_ALONE } else { PATIENCE }));
                }
                outlet.missed += 1;
            }
            Addressee::Any => {
                // Who takes its frames is awake.
                if let Some(outlet) =
                    self.outlets.iter_mut().min_by_key(|outlet| (outlet.behind, !outlet.link.is_drained()))
                {
                    outlet.missed += u64::from(!outlet.offer(frame));
                }
            }
            Addressee::All => {
                for outlet in &mut self.outlets {
                    outlet.missed += u64::from(!outlet.offer(frame));
                }
            }
            Addressee::Nobody => {}
        }
        None
    }

    /// Nobody waits any longer for the stack to take its frame.
    fn give_up(&mut self, stack: u16) {
        if let Some(outlet) = self.outlets.iter_mut().find(|outlet| outlet.stack == stack) {
            outlet.given_up = true;
            outlet.missed += 1;
        }
    }
}

/// What a stack asks for, while another thread forwards frames.
#[derive(Debug, Clone, Default)]
pub(crate) struct Switch(Arc<Mutex<Stacks>>);

impl Switch {
    fn stacks(&self) -> MutexGuard<'_, Stacks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new stack, at the other end of the link.
    pub(crate) fn attach(&self, stack: u16, link: MemifLink) {
        self.stacks().outlets.push(Outlet::new(stack, link));
    }

    /// A stack is gone, and all that it asked for. Returns the connections that it may have had.
    pub(crate) fn detach(&self, stack: u16) -> Vec<Reached> {
        let mut stacks = self.stacks();
        stacks.outlets.retain(|outlet| outlet.stack != stack);
        stacks.table.remove_stack(stack)
    }

    /// New connections to the address, or its datagrams, go to the stack too. 0.0.0.0 and `::` stand for all addresses.
    ///
    /// # Errors
    /// [`Error::ListenerTaken`].
    pub(crate) fn listen(
        &self,
        stack: u16,
        protocol: Protocol,
        address: SocketAddr,
        v6only: bool,
        cluster: Cluster,
    ) -> Result<(), Error> {
        let groups = &mut self.stacks().table.groups;
        let places = listening_places(protocol, address, v6only);
        for &place in &places {
            groups.admits(stack, place, &cluster).map_err(|taken| taken.at(address))?;
        }
        for place in places {
            groups.listen(stack, place, cluster);
        }
        Ok(())
    }

    /// No more of them.
    pub(crate) fn unlisten(&self, stack: u16, protocol: Protocol, address: SocketAddr, v6only: bool) {
        let groups = &mut self.stacks().table.groups;
        for place in listening_places(protocol, address, v6only) {
            groups.unlisten(stack, place);
        }
    }

    /// The frames from `remote` to `local` go to the stack.
    ///
    /// # Errors
    /// [`Error::TupleInUse`].
    pub(crate) fn connect(
        &self,
        stack: u16,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<(), Error> {
        let flow = FlowKey::new(protocol, local, remote);
        let table = &mut self.stacks().table;
        if *table.opened.entry(flow).or_insert(stack) != stack {
            return Err(Error::TupleInUse { local, remote });
        }
        // A listener's connection that was there before is over.
        table.accepted.remove(&flow);
        Ok(())
    }

    /// No more of them, if it was this stack that had them.
    pub(crate) fn disconnect(&self, stack: u16, protocol: Protocol, local: SocketAddr, remote: SocketAddr) {
        let opened = &mut self.stacks().table.opened;
        let flow = FlowKey::new(protocol, local, remote);
        if opened.get(&flow) == Some(&stack) {
            opened.remove(&flow);
        }
    }

    /// Forwards what comes from the device, until `stop` is readable.
    pub(crate) fn forward(&self, device: &mut TapLink, stop: &OwnedFd) {
        loop {
            let mut set = [stop.as_fd(), device.queue()]
                .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
            let polled = poll(&mut set, None);
            let [stopped, arrived] = set.map(|entry| entry.revents());
            if !stopped.is_empty() {
                return;
            }
            if !matches!(polled, Ok(_) | Err(Errno::INTR))
                || arrived.intersects(PollFlags::ERR | PollFlags::HUP)
            {
                std::thread::sleep(PAUSE);
                continue;
            }
            device.receive(BATCH, |frame| self.deliver(frame));
            self.flush();
        }
    }

    /// Hands one frame to whom it is for. While it waits for room, stacks may ask for what they want: one that asks takes no
    /// frames meanwhile.
    fn deliver(&self, frame: &[u8]) {
        let Some((stack, patience)) = self.stacks().deliver(frame) else { return };
        let began = Instant::now();
        while began.elapsed() < patience {
            std::thread::sleep(LOOK);
            if self.stacks().deliver(frame).is_none() {
                return;
            }
        }
        self.stacks().give_up(stack);
    }

    fn flush(&self) {
        self.stacks().outlets.iter_mut().for_each(Outlet::flush);
    }
}

#[cfg(test)]
mod tests {
    mod acceptors;

    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use overfly_link::memif::Registry;
    use overfly_link::tap::TapPort;
    use overfly_wire::checksum::Sum;
    use overfly_wire::icmpv6::NeighborSolicitation;
    use overfly_wire::{MacAddr, udp};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    const OWN: MacAddr = MacAddr([2, 0xff, 10, 77, 0, 1]);
    const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

    fn ethernet_frame(destination: MacAddr, ethertype: u16, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; ethernet::HEADER_LEN];
        ethernet::Header { destination, source: PEER, ethertype }.emit(&mut frame);
        frame.extend(payload);
        frame
    }

    fn packet(protocol: u8, source: IpAddr, destination: IpAddr, payload: &[u8]) -> Vec<u8> {
        let payload_len = payload.len() as u16;
        let mut packet = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut header = vec![0; ipv4::HEADER_LEN];
                ipv4::Header {
                    source,
                    destination,
                    protocol,
                    ttl: 64,
                    tos: 0,
                    identification: 0,
                    dont_fragment: true,
                    payload_len,
                }
                .emit(&mut header);
                header
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut header = vec![0; ipv6::HEADER_LEN];
                ipv6::Header {
                    source,
                    destination,
                    protocol,
                    hop_limit: 255,
                    traffic_class: 0,
                    flow_label: 0,
                    payload_len,
                }
                .emit(&mut header);
                header
            }
            _ => panic!("two families"),
        };
        packet.extend(payload);
        packet
    }

    /// A frame from `remote` to `local`.
    fn frame_of(protocol: u8, remote: IpAddr, local: IpAddr, payload: &[u8]) -> Vec<u8> {
        let ethertype = if local.is_ipv4() { ethernet::ETHERTYPE_IPV4 } else { ethernet::ETHERTYPE_IPV6 };
        ethernet_frame(OWN, ethertype, &packet(protocol, remote, local, payload))
    }

    fn segment(source_port: u16, destination_port: u16, flags: tcp::Flags) -> Vec<u8> {
        let mut segment = vec![0; tcp::HEADER_LEN];
        tcp::Header { source_port, destination_port, flags, ..tcp::Header::default() }.emit(&mut segment);
        segment
    }

    fn tcp_frame(remote: SocketAddr, local: SocketAddr, flags: tcp::Flags) -> Vec<u8> {
        let segment = segment(remote.port(), local.port(), flags);
        frame_of(ipv4::PROTOCOL_TCP, remote.ip(), local.ip(), &segment)
    }

    fn udp_frame(remote: SocketAddr, local: SocketAddr) -> Vec<u8> {
        let (IpAddr::V4(source), IpAddr::V4(destination)) = (remote.ip(), local.ip()) else { panic!("IPv4") };
        let mut datagram = vec![0; udp::HEADER_LEN + 1];
        let header = udp::Header { source_port: remote.port(), destination_port: local.port() };
        header.emit(&mut datagram, source, destination);
        frame_of(ipv4::PROTOCOL_UDP, remote.ip(), local.ip(), &datagram)
    }

    fn local(port: u16) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::new(10, 77, 0, 1).into(), port)
    }

    fn remote(port: u16) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::new(10, 77, 0, 2).into(), port)
    }

    fn local6(port: u16) -> SocketAddr {
        SocketAddr::new(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1).into(), port)
    }

    fn remote6(port: u16) -> SocketAddr {
        SocketAddr::new(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2).into(), port)
    }

    #[test]
    fn a_frame_says_whose_it_is() {
        let flow = |protocol, local, remote, opens| Subject::Flow { protocol, local, remote, opens };
        for (local, remote) in [(local(80), remote(5)), (local6(80), remote6(5))] {
            for (flags, opens) in [
                (tcp::Flags::SYN, true),
                (tcp::Flags::SYN.union(tcp::Flags::ECE), true),
                (tcp::Flags::SYN.union(tcp::Flags::ACK), false),
                (tcp::Flags::ACK, false),
                (tcp::Flags::RST, false),
            ] {
                let frame = tcp_frame(remote, local, flags);
                assert_eq!(Subject::of(&frame), flow(Protocol::Tcp, local, remote, opens));
            }
        }
        let datagram = udp_frame(remote(5), local(53));
        assert_eq!(Subject::of(&datagram), flow(Protocol::Udp, local(53), remote(5), false));
        // What asks for addresses, by whatever way it comes.
        assert_eq!(Subject::of(&ethernet_frame(OWN, ethernet::ETHERTYPE_ARP, &[0; 28])), Subject::All);
        assert_eq!(Subject::of(&ethernet_frame(MacAddr::BROADCAST, 0x88cc, &[])), Subject::All);
        let (IpAddr::V6(own), IpAddr::V6(peer)) = (local6(0).ip(), remote6(0).ip()) else { panic!("IPv6") };
        let mut message = vec![0; icmpv6::MAX_NEIGHBOR_LEN];
        let solicitation = NeighborSolicitation { target: own, source_link_address: Some(PEER) };
        let length = solicitation.emit(&mut message, peer, own);
        let solicited = frame_of(ipv6::PROTOCOL_ICMPV6, peer.into(), own.into(), &message[..length]);
        assert_eq!(Subject::of(&solicited), Subject::All);
        // What one answers for all.
        let mut echo = vec![0; 64];
        let request = icmpv4::Echo { kind: icmpv4::Kind::Request, identifier: 1, sequence: 1, data: &[0; 8] };
        let length = request.emit(&mut echo);
        let echo = frame_of(ipv4::PROTOCOL_ICMP, remote(0).ip(), local(0).ip(), &echo[..length]);
        assert_eq!(Subject::of(&echo), Subject::Any);
        let mut fragment = tcp_frame(remote(5), local(80), tcp::Flags::ACK);
        let header = &mut fragment[ethernet::HEADER_LEN..][..ipv4::HEADER_LEN];
        (header[6], header[10], header[11]) = (0x20, 0, 0);
        let checksum = Sum::new().bytes(header).finish().to_be_bytes();
        header[10..12].copy_from_slice(&checksum);
        assert_eq!(Subject::of(&fragment), Subject::Any);
        assert_eq!(Subject::of(&ethernet_frame(OWN, 0x88cc, &[0; 40])), Subject::Nobody);
    }

    #[test]
    fn an_error_goes_where_the_answers_would_go() {
        let sent = packet(
            ipv4::PROTOCOL_TCP,
            local(4000).ip(),
            remote(80).ip(),
            &segment(4000, 80, tcp::Flags::SYN),
        );
        let mut message = vec![0; 200];
        let length = icmpv4::emit_port_unreachable(&sent, &mut message);
        let error = frame_of(ipv4::PROTOCOL_ICMP, remote(0).ip(), local(0).ip(), &message[..length]);
        let expected =
            Subject::Flow { protocol: Protocol::Tcp, local: local(4000), remote: remote(80), opens: false };
        assert_eq!(Subject::of(&error), expected);
        let mut table = Table::default();
        assert_eq!(table.addressee(&error, &mut []), Addressee::Any);
        table.opened.insert(FlowKey::new(Protocol::Tcp, local(4000), remote(80)), 3);
        assert_eq!(table.addressee(&error, &mut []), Addressee::Stack(3));
    }

    /// Frames that are cut anywhere, and some hundred thousand with random bytes: nothing panics.
    #[test]
    fn bad_frames_are_anybodys_or_nobodys() {
        let mut numbers = overfly_testing::Random::seeded();
        let mut random = move || numbers.next() as usize;
        let frames = [
            tcp_frame(remote(5), local(80), tcp::Flags::SYN),
            tcp_frame(remote6(5), local6(80), tcp::Flags::SYN),
            udp_frame(remote(5), local(53)),
        ];
        for frame in &frames {
            for length in 0..frame.len() {
                assert!(!matches!(Subject::of(&frame[..length]), Subject::Flow { .. }), "{length} bytes");
            }
            for _ in 0..100_000 {
                let mut frame = frame.clone();
                for _ in 0..1 + random() % 4 {
                    let at = random() % frame.len();
                    frame[at] = random() as u8;
                }
                let _ = Subject::of(&frame);
            }
        }
    }

    fn listen(table: &mut Table, stack: u16, address: SocketAddr) {
        table.groups.listen(stack, BoundAddress::new(Protocol::Tcp, address), Cluster::default());
    }

    #[test]
    fn connections_stay_where_they_are_when_the_group_changes() {
        let mut table = Table::default();
        let everywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 80);
        let (syn, ack) = (tcp::Flags::SYN, tcp::Flags::ACK);
        assert_eq!(
            table.addressee(&tcp_frame(remote(1), local(80), syn), &mut []),
            Addressee::Any,
            "to be refused"
        );
        for stack in [1, 2] {
            listen(&mut table, stack, everywhere);
        }
        let owners: Vec<Addressee> = (1..=100)
            .map(|port| table.addressee(&tcp_frame(remote(port), local(80), syn), &mut []))
            .collect();
        for stack in [1, 2] {
            let count = owners.iter().filter(|&&owner| owner == Addressee::Stack(stack)).count();
            assert!(count > 10, "{count} of 100 connections are stack {stack}'s");
        }
        listen(&mut table, 3, everywhere);
        table.groups.unlisten(1, BoundAddress::new(Protocol::Tcp, everywhere));
        for (port, &owner) in (1..=100).zip(&owners) {
            assert_eq!(table.addressee(&tcp_frame(remote(port), local(80), ack), &mut []), owner);
        }
        // With an old one's tuple: where it was only if that stack still accepts.
        for (port, &owner) in (1..=100).zip(&owners) {
            let again = table.addressee(&tcp_frame(remote(port), local(80), syn), &mut []);
            assert!(if owner == Addressee::Stack(2) { again == owner } else { again != owner }, "{again:?}");
        }
        table.remove_stack(2);
        for port in 1..=100 {
            assert_eq!(
                table.addressee(&tcp_frame(remote(port), local(80), ack), &mut []),
                Addressee::Stack(3)
            );
        }
        table.remove_stack(1);
        table.remove_stack(3);
        assert_eq!(table.addressee(&tcp_frame(remote(1), local(80), ack), &mut []), Addressee::Any);
    }

    #[test]
    fn what_a_stack_opened_goes_before_listeners_and_a_closer_listener_before_others() {
        let mut table = Table::default();
        listen(&mut table, 1, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 80));
        listen(&mut table, 2, local(80));
        let ack = tcp_frame(remote(9), local(80), tcp::Flags::ACK);
        assert_eq!(table.addressee(&ack, &mut []), Addressee::Stack(2));
        table.opened.insert(FlowKey::new(Protocol::Tcp, local(80), remote(9)), 3);
        assert_eq!(table.addressee(&ack, &mut []), Addressee::Stack(3));
        table.groups.unlisten(2, BoundAddress::new(Protocol::Tcp, local(80)));
        let other = tcp_frame(remote(10), local(80), tcp::Flags::SYN);
        assert_eq!(table.addressee(&other, &mut []), Addressee::Stack(1));
    }

    #[test]
    fn a_peers_datagrams_go_to_one_stack() {
        let mut table = Table::default();
        for stack in [1, 2, 3] {
            table.groups.listen(stack, BoundAddress::new(Protocol::Udp, local(53)), Cluster::default());
        }
        let owner = table.addressee(&udp_frame(remote(7), local(53)), &mut []);
        assert!((0..100).all(|_| table.addressee(&udp_frame(remote(7), local(53)), &mut []) == owner));
    }

    #[test]
    fn what_is_in_use_is_not_forgotten() {
        let mut recent = Recent::default();
        let flow = |number: u32| {
            let address = Ipv4Addr::from(number / 60_000);
            FlowKey::new(Protocol::Tcp, local(80), SocketAddr::new(address.into(), (number % 60_000) as u16))
        };
        for number in 0..3 * REMEMBERED as u32 {
            recent.insert(flow(number), 1);
            assert_eq!(recent.get(&flow(0)), Some(1));
        }
        assert_eq!(recent.get(&flow(1)), None);
        assert!(recent.young.len() + recent.old.len() <= 2 * REMEMBERED);
    }

    /// A stack's end, attached to the switch and listening at port 80 + its number.
    fn attach(switch: &Switch, stack: u16) -> TapPort {
        const REGISTRY: Registry = Registry { adopt: |descriptor| descriptor, release: |_| () };
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        switch.attach(stack, MemifLink::offer(&ours).unwrap());
        switch.listen(stack, Protocol::Tcp, local(80 + stack), false, Cluster::default()).unwrap();
        TapPort::join(ours, &theirs, REGISTRY).unwrap()
    }

    fn receive_all(end: &mut TapPort) -> usize {
        let mut count = 0;
        while end.receive(64, |_| count += 1) > 0 {}
        count
    }

    #[test]
    fn a_stack_that_takes_nothing_leaves_others_theirs() {
        let switch = Switch::default();
        let [mut stuck, mut other] = [1, 2].map(|stack| attach(&switch, stack));
        let deliver = |count: usize, port: u16| {
            for _ in 0..count {
                switch.deliver(&tcp_frame(remote(5), local(port), tcp::Flags::ACK));
            }
            switch.flush();
        };
        let (to_stuck, to_other, to_anybody) = (81, 82, 9);
        deliver(5000, to_stuck);
        deliver(100, to_other);
        deliver(100, to_anybody);
        assert_eq!(receive_all(&mut other), 200);
        let received = receive_all(&mut stuck);
        assert!((1..5000).contains(&received), "{received}");
        // It hears how many it did not get, and goes on.
        deliver(1, to_stuck);
        assert_eq!(receive_all(&mut stuck), 1);
        assert_eq!(stuck.counters().receive_missed, 5000 - received as u64);
        assert_eq!(stuck.counters().received_frames, 1 + received as u64);
        // Whoever has a frame to take is not the one that answers for all.
        deliver(1, to_stuck);
        deliver(1, to_anybody);
        assert_eq!((receive_all(&mut stuck), receive_all(&mut other)), (1, 1));
        switch.detach(1);
        deliver(1, to_stuck);
        assert_eq!((receive_all(&mut stuck), receive_all(&mut other)), (0, 1), "it is refused");
    }

    #[test]
    fn connections_are_opened_and_closed_by_their_owner_alone() {
        let switch = Switch::default();
        let [mut one, mut other] = [1, 2].map(|stack| attach(&switch, stack));
        let answers = |one: &mut TapPort, other: &mut TapPort| {
            switch.deliver(&tcp_frame(remote(80), local(81), tcp::Flags::ACK));
            switch.flush();
            (receive_all(one), receive_all(other))
        };
        // Stack 1 listens there, and had a connection with that tuple.
        switch.deliver(&tcp_frame(remote(80), local(81), tcp::Flags::SYN));
        switch.flush();
        assert_eq!((receive_all(&mut one), receive_all(&mut other)), (1, 0));
        assert_eq!(answers(&mut one, &mut other), (1, 0));
        switch.connect(2, Protocol::Tcp, local(81), remote(80)).unwrap();
        switch.connect(2, Protocol::Tcp, local(81), remote(80)).unwrap();
        assert_eq!(answers(&mut one, &mut other), (0, 1));
        let refused = switch.connect(1, Protocol::Tcp, local(81), remote(80));
        assert!(matches!(refused, Err(Error::TupleInUse { .. })), "{refused:?}");
        switch.disconnect(1, Protocol::Tcp, local(81), remote(80));
        assert_eq!(answers(&mut one, &mut other), (0, 1));
        switch.disconnect(2, Protocol::Tcp, local(81), remote(80));
        assert_eq!(answers(&mut one, &mut other), (1, 0));
        switch.unlisten(1, Protocol::Tcp, local(81), false);
        let refused = switch.listen(2, Protocol::Tcp, local(82), false, Cluster::new("other", 0));
        assert!(refused.is_ok(), "it listens there already: {refused:?}");
        let refused = switch.listen(1, Protocol::Tcp, local(82), false, Cluster::new("one", 0));
        assert!(matches!(refused, Err(Error::ListenerTaken { .. })), "{refused:?}");
    }

    /// A stack that asks for something while the reader waits for it does not wait for the reader.
    #[test]
    fn who_asks_is_answered_while_frames_wait() {
        let switch = Switch::default();
        let mut end = attach(&switch, 1);
        let frame = tcp_frame(remote(5), local(81), tcp::Flags::ACK);
        while switch.stacks().deliver(&frame).is_none() {}
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| switch.deliver(&frame));
            for port in 1..=100 {
                switch.connect(1, Protocol::Tcp, local(4000), remote(port)).unwrap();
            }
            // Only now is there room.
            receive_all(&mut end);
            waiting.join().unwrap();
        });
        switch.flush();
        assert_eq!(receive_all(&mut end), 1);
        assert_eq!(end.counters().receive_missed, 0);
    }
}

//! The XDP program (`bpf/steer.bpf.c`) and its maps.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, XskMap};
use aya::programs::{ProgramError, Xdp};
use aya::{Ebpf, EbpfError, EbpfLoader, Pod};
use overfly_broker::Protocol;
use overfly_link::xdp::STACKS_MAX;
use overfly_wire::MacAddr;
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use crate::error::{Error, last_error};
use crate::firewall::Verdicts;
use crate::groups::BoundAddress;
use crate::mirror::{self, Prefix, Way};
use crate::orphans::Records;

/// `BPF_LINK_CREATE` of `bpf(2)`.
const BPF_LINK_CREATE: libc::c_int = 28;
/// `BPF_LINK_DETACH` of `bpf(2)`.
const BPF_LINK_DETACH: libc::c_int = 34;
/// `BPF_XDP` of `enum bpf_attach_type`.
const BPF_XDP: u32 = 37;
/// Where a program is attached: there or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum XdpMode {
    /// `XDP_FLAGS_SKB_MODE`: behind the driver, where the kernel's own stack begins.
    Generic = 2,
    /// `XDP_FLAGS_DRV_MODE`.
    Driver = 4,
}

/// How datagrams arrive (the program's own enum).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Datagrams {
    /// Each is a packet.
    Alone,
    /// A packet may be several, and it can't be seen which: all are the kernel's.
    Unknown,
    /// Those packets are the kernel's.
    ToldApart,
}

/// In `flows`: the peer has sent more than a SYN.
pub(crate) const ANSWERED: u32 = 1 << 31;

/// `struct config` of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Config {
    connections: u32,
    claims: u32,
    /// The interface's hardware address, and two bytes of padding.
    mac: [u8; 8],
    firewall_judges: u32,
    firewall_refusals: u32,
    trusts_senders: u32,
    padding: u32,
    /// Generation × 64 + stack; 0 where there is no stack.
    owners: [u32; STACKS_MAX as usize],
    /// A bit for each port that somebody listens at.
    listening: [u64; 65536 / 64],
}

/// `struct counters` of the program: what became of the frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counters {
    /// Frames for a listener or its connections.
    pub to_listener: u64,
    /// Frames of connections that a stack opened.
    pub to_connection: u64,
    /// Frames for claimed ports.
    pub to_claim: u64,
    /// ICMP errors about packets of a stack; each counts as one of the above, too.
    pub icmp_errors: u64,
    /// New connections of listeners.
    pub flows_recorded: u64,
    /// Fragments of TCP, UDP and ICMP over IPv4 and of everything over IPv6: the kernel's.
    pub passed_fragment: u64,
    /// What would have opened a connection, and datagrams, that passed to the kernel because only it can judge where they come
    /// from.
    pub passed_source: u64,
    /// All other frames that passed to the kernel.
    pub passed_other: u64,
    /// Frames for listeners that passed to the kernel because its rules do not accept them for certain: it judges them itself.
    pub passed_firewall: u64,
    /// Frames of connections that the rules have come to refuse.
    pub dropped_firewall: u64,
}

/// `struct listener_key`: network byte order, IPv4 as ::ffff:a.b.c.d.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct ListenerKey {
    address: [u8; 16],
    port: [u8; 2],
    protocol: u16,
}

impl ListenerKey {
    pub(crate) fn new(place: &BoundAddress) -> ListenerKey {
        ListenerKey {
            address: octets(place.address),
            port: place.port.to_be_bytes(),
            protocol: place.protocol as u16,
        }
    }
}

/// `struct group` of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Group {
    members: u64,
    count: u64,
    stacks: [u16; STACKS_MAX as usize],
}

impl Group {
    pub(crate) fn has(&self, stack: u16) -> bool {
        self.members >> (stack % STACKS_MAX) & 1 != 0
    }

    /// Whether one of these stacks is among them, a bit for each place.
    pub(crate) const fn has_any(&self, places: u64) -> bool {
        self.members & places != 0
    }

    pub(crate) fn new(accepting: &[u16]) -> Group {
        let mut stacks = [0; STACKS_MAX as usize];
        let count = accepting.len().min(stacks.len());
        stacks[..count].copy_from_slice(&accepting[..count]);
        Group {
            members: accepting.iter().fold(0, |members, &stack| members | 1 << (stack % STACKS_MAX)),
            count: count as u64,
            stacks,
        }
    }
}

/// `struct flow_key`: network byte order, IPv4 as ::ffff:a.b.c.d, local is this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct FlowKey {
    local_address: [u8; 16],
    remote_address: [u8; 16],
    local_port: [u8; 2],
    remote_port: [u8; 2],
    protocol: u32,
}

impl FlowKey {
    pub(crate) fn new(protocol: Protocol, local: SocketAddr, remote: SocketAddr) -> FlowKey {
        FlowKey {
            local_address: octets(local.ip()),
            remote_address: octets(remote.ip()),
            local_port: local.port().to_be_bytes(),
            remote_port: remote.port().to_be_bytes(),
            protocol: protocol as u32,
        }
    }

    /// The local and the remote end.
    pub(crate) fn ends(&self) -> (SocketAddr, SocketAddr) {
        let end = |address: [u8; 16], port| {
            SocketAddr::new(IpAddr::from(address).to_canonical(), u16::from_be_bytes(port))
        };
        (end(self.local_address, self.local_port), end(self.remote_address, self.remote_port))
    }

    /// `IPPROTO_TCP` or `IPPROTO_UDP`.
    pub(crate) fn protocol(&self) -> u8 {
        self.protocol as u8
    }
}

/// `struct claim_key`: as above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct ClaimKey {
    address: [u8; 16],
    protocol: u32,
}

pub(crate) fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// `struct claim` of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Claim {
    pub(crate) port_low: u16,
    pub(crate) port_high: u16,
    pub(crate) first: u16,
    pub(crate) count: u16,
}

/// `struct route` of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Route {
    /// `enum way`.
    way: u32,
    gateway: [u8; 16],
}

impl Route {
    fn new(way: Way) -> Route {
        let (number, gateway) = match way {
            Way::Kernels => (0, [0; 16]),
            Way::Martian => (1, [0; 16]),
            Way::Own => (2, [0; 16]),
            Way::Direct => (3, [0; 16]),
            Way::Gateway(gateway) => (4, octets(gateway)),
        };
        Route { way: number, gateway }
    }
}

// SAFETY: repr(C) of integers without padding, so every byte may be read and every bit pattern is a value.
unsafe impl Pod for Config {}
// SAFETY: as above.
unsafe impl Pod for Counters {}
// SAFETY: as above.
unsafe impl Pod for ListenerKey {}
// SAFETY: as above.
unsafe impl Pod for Group {}
// SAFETY: as above.
unsafe impl Pod for FlowKey {}
// SAFETY: as above.
unsafe impl Pod for ClaimKey {}
// SAFETY: as above.
unsafe impl Pod for Claim {}
// SAFETY: as above.
unsafe impl Pod for Route {}

/// The loaded program, with typed access to its maps.
pub(crate) struct Program {
    /// Its name in its object.
    name: &'static str,
    mode: XdpMode,
    queues: u32,
    config: Array<MapData, Config>,
    counters: PerCpuArray<MapData, Counters>,
    listeners: HashMap<MapData, ListenerKey, Group>,
    connections: HashMap<MapData, FlowKey, u32>,
    /// Connections of listeners, and who had their stack's place: the program's own notes.
    flows: HashMap<MapData, FlowKey, u32>,
    /// The same map, and how much it holds.
    records: OwnedFd,
    records_max: usize,
    claims: HashMap<MapData, ClaimKey, Claim>,
    xsks: XskMap<MapData>,
    routes: LpmTrie<MapData, [u8; 16], Route>,
    /// Next hops and their hardware addresses, padded; the program adds to it.
    neighbors: HashMap<MapData, [u8; 16], [u8; 8]>,
    /// What `routes` holds.
    ways: BTreeMap<Prefix, Way>,
    /// What the host's rules say of whom.
    pub(crate) verdicts: Verdicts,
    /// In which the stacks show that they look at their rings.
    pulses: Map,
    /// How often each stack had looked when it was last given a connection.
    passed: [u64; STACKS_MAX as usize],
    installed: BTreeMap<BoundAddress, Group>,
    /// What the map of that name holds.
    settings: Config,
    /// Of the stack that was admitted last; 25 bits of it are used.
    generation: u32,
    /// Holds the program and the maps that are only the program's own.
    ebpf: Ebpf,
}

impl Program {
    /// Loads the program for an interface with that many queues, to be attached at a place; `flows` connections of listeners are
    /// remembered. With `long_packets` it takes packets of several buffers.
    pub(crate) fn load(
        queues: u32,
        flows: u32,
        hash_key: u64,
        mode: XdpMode,
        long_packets: bool,
    ) -> Result<Program, Error> {
        let name = if long_packets { "overfly_steer_long" } else { "overfly_steer" };
        let verified = |datagrams| Program::verified(name, queues, flows, hash_key, datagrams);
        let mut ebpf = match mode {
            XdpMode::Driver => verified(Datagrams::Alone)?,
            // The kernel's reason counts where it is not the looking that it minds.
            XdpMode::Generic => verified(Datagrams::ToldApart).or_else(|_| verified(Datagrams::Unknown))?,
        };
        fn take<M: TryFrom<Map>>(ebpf: &mut Ebpf, name: &str) -> Result<M, Error>
        where
            M::Error: std::fmt::Display,
        {
            ebpf.take_map(name)
                .ok_or_else(|| Error::Program(format!("map {name} is not in its object")))?
                .try_into()
                .map_err(|error: M::Error| Error::Program(format!("map {name}: {error}")))
        }
        let records = match ebpf.map("flows") {
            Some(Map::LruHashMap(map)) => fcntl_dupfd_cloexec(map.fd(), 3),
            _ => Err(Errno::INVAL),
        };
        let records = records.map_err(|errno| Error::system("dup of the map flows", errno))?;
        let records_max = flows as usize;
        Ok(Program {
            name,
            mode,
            queues,
            config: take(&mut ebpf, "config")?,
            counters: take(&mut ebpf, "counters")?,
            listeners: take(&mut ebpf, "listeners")?,
            connections: take(&mut ebpf, "connections")?,
            flows: take(&mut ebpf, "flows")?,
            records,
            records_max,
            claims: take(&mut ebpf, "claims")?,
            xsks: take(&mut ebpf, "xsks")?,
            routes: take(&mut ebpf, "routes")?,
            neighbors: take(&mut ebpf, "neighbors")?,
            ways: BTreeMap::new(),
            verdicts: Verdicts::new(
                take(&mut ebpf, "firewall_places")?,
                take(&mut ebpf, "firewall_peers")?,
                take(&mut ebpf, "firewall_refused")?,
            ),
            pulses: take(&mut ebpf, "pulses")?,
            passed: [0; STACKS_MAX as usize],
            installed: BTreeMap::new(),
            settings: Config {
                connections: 0,
                claims: 0,
                mac: [0; 8],
                firewall_judges: 0,
                trusts_senders: 0,
                padding: 0,
                firewall_refusals: 0,
                owners: [0; STACKS_MAX as usize],
                listening: [0; 65536 / 64],
            },
            generation: 0,
            ebpf,
        })
    }

    /// Has the kernel take the program of that name.
    fn verified(
        name: &str,
        queues: u32,
        flows: u32,
        hash_key: u64,
        datagrams: Datagrams,
    ) -> Result<Ebpf, Error> {
        let mut ebpf = EbpfLoader::new()
            .override_global("QUEUES", &queues, true)
            .override_global("HASH_KEY", &hash_key, true)
            .override_global("DATAGRAMS", &(datagrams as u32), true)
            .map_max_entries("xsks", u32::from(STACKS_MAX) * queues)
            .map_max_entries("flows", flows)
            .load(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/steer.bpf.o")))
            .map_err(|error| loading(&error))?;
        let xdp: &mut Xdp = ebpf
            .program_mut(name)
            .ok_or_else(|| Error::Program(format!("{name} is not in its object")))?
            .try_into()
            .map_err(|error: ProgramError| Error::Program(error.to_string()))?;
        xdp.load().map_err(|error| match &error {
            ProgramError::LoadError { io_error, .. } if is_permission(io_error) => no_privilege(),
            error => Error::Program(error.to_string()),
        })?;
        Ok(ebpf)
    }

    fn xdp(&self) -> Result<&Xdp, Error> {
        self.ebpf
            .program(self.name)
            .and_then(|program| program.try_into().ok())
            .ok_or_else(|| Error::Program(format!("{} is not loaded", self.name)))
    }

    /// Attaches the program. It stays as long as the returned value, or this process.
    ///
    /// aya's own attach falls back to netlink, which would outlive this process.
    pub(crate) fn attach(&self, interface: u32) -> Result<Result<Attached, Errno>, Error> {
        let xdp = self.xdp()?;
        let program = xdp.fd().map_err(|error| Error::Program(error.to_string()))?;
        Ok(link_create(program.as_fd(), interface, self.mode))
    }

    /// A descriptor of the array in which stacks show that they look at their rings.
    pub(crate) fn pulses(&self) -> Result<OwnedFd, Error> {
        match &self.pulses {
            Map::Array(array) => {
                fcntl_dupfd_cloexec(array.fd(), 3).map_err(|errno| Error::system("dup", errno))
            }
            _ => Err(Error::Program("pulses is no array".to_owned())),
        }
    }

    /// A new stack has the place: connections that the program remembers of the last one there are nobody's.
    pub(crate) fn admit(&mut self, stack: u16) -> Result<(), Error> {
        let place = u32::from(stack % STACKS_MAX);
        let generations = !ANSWERED / u32::from(STACKS_MAX);
        self.generation = self.generation % generations + 1;
        self.settings.owners[place as usize] = self.generation * u32::from(STACKS_MAX) + place;
        // It has not looked yet, and may never say when it does.
        self.clear_pulse(stack)?;
        self.publish()
    }

    /// What a stack shows of itself (`struct pulse` of the program).
    fn pulse(&self, stack: u16) -> [u64; 8] {
        let pulses = Array::<_, [u64; 8]>::try_from(&self.pulses);
        pulses.and_then(|pulses| pulses.get(&u32::from(stack % STACKS_MAX), 0)).unwrap_or_default()
    }

    /// Whether a thread of the stack's waits to accept, and was given no connection since it began to.
    pub(crate) fn is_waiting(&self, stack: u16) -> bool {
        let [looks, _, _, _, waits, ..] = self.pulse(stack);
        looks != 0 && waits == looks && self.passed[usize::from(stack % STACKS_MAX)] != looks
    }

    /// It is given one.
    pub(crate) fn note_passed(&mut self, stack: u16) {
        self.passed[usize::from(stack % STACKS_MAX)] = self.pulse(stack)[0];
    }

    /// Nobody has looked at the place's rings, nor holds anything for connections.
    fn clear_pulse(&mut self, stack: u16) -> Result<(), Error> {
        Array::<_, [u64; 8]>::try_from(&mut self.pulses)
            .and_then(|mut pulses| pulses.set(u32::from(stack % STACKS_MAX), [0; 8], 0))
            .map_err(map_error("pulses"))
    }

    /// Nobody has the place.
    pub(crate) fn dismiss(&mut self, stack: u16) -> Result<(), Error> {
        self.settings.owners[usize::from(stack % STACKS_MAX)] = 0;
        self.clear_pulse(stack)?;
        self.publish()
    }

    /// Installs exactly these listeners.
    pub(crate) fn set_listeners(&mut self, wanted: BTreeMap<BoundAddress, Group>) -> Result<(), Error> {
        let mut result = Ok(());
        let obsolete: Vec<_> =
            self.installed.keys().filter(|place| !wanted.contains_key(place)).copied().collect();
        for place in obsolete {
            match absent_is_fine(self.listeners.remove(&ListenerKey::new(&place))) {
                Ok(()) => drop(self.installed.remove(&place)),
                Err(error) => result = Err(error),
            }
        }
        for (place, group) in wanted {
            if self.installed.get(&place) == Some(&group) {
                continue;
            }
            match self.listeners.insert(ListenerKey::new(&place), group, 0) {
                Ok(()) => drop(self.installed.insert(place, group)),
                Err(error) => result = Err(error),
            }
        }
        self.settings.listening.fill(0);
        for place in self.installed.keys() {
            self.settings.listening[usize::from(place.port) / 64] |= 1 << (place.port % 64);
        }
        self.publish()?;
        result.map_err(map_error("listeners"))
    }

    pub(crate) fn add_connection(&mut self, flow: FlowKey, stack: u16) -> Result<(), Error> {
        self.connections.insert(flow, u32::from(stack), 0).map_err(map_error("connections"))?;
        self.settings.connections += 1;
        if self.settings.connections == 1 {
            self.publish()?;
        }
        Ok(())
    }

    pub(crate) fn remove_connection(&mut self, flow: FlowKey) -> Result<(), Error> {
        absent_is_fine(self.connections.remove(&flow)).map_err(map_error("connections"))?;
        self.settings.connections = self.settings.connections.saturating_sub(1);
        if self.settings.connections == 0 {
            self.publish()?;
        }
        Ok(())
    }

    /// Whether the program asks [`Program::verdicts`] of new connections, and of those that stacks have.
    pub(crate) fn set_firewall(&mut self, judges: bool, refuses: bool) -> Result<(), Error> {
        let wanted = (u32::from(judges), u32::from(refuses));
        if (self.settings.firewall_judges, self.settings.firewall_refusals) == wanted {
            return Ok(());
        }
        (self.settings.firewall_judges, self.settings.firewall_refusals) = wanted;
        self.publish()
    }

    /// Whoever sends is taken to be where the frame says.
    pub(crate) fn trust_senders(&mut self) -> Result<(), Error> {
        self.settings.trusts_senders = 1;
        self.publish()
    }

    /// The connections that listeners of stacks have, each with the place of its stack.
    pub(crate) fn recorded(&self) -> Vec<(FlowKey, u16)> {
        let owned = |(flow, recorded): (FlowKey, u32)| {
            let owner = recorded & !ANSWERED;
            let place = (owner % u32::from(STACKS_MAX)) as u16;
            (owner != 0 && self.settings.owners[usize::from(place)] == owner).then_some((flow, place))
        };
        self.flows.iter().filter_map(Result::ok).filter_map(owned).collect()
    }

    /// What stands in [`Records`] for the stack that has the place now, also when another one has it.
    pub(crate) fn mark_of(&self, stack: u16) -> u32 {
        self.settings.owners[usize::from(stack % STACKS_MAX)]
    }

    /// The connections of listeners, for another thread to read.
    pub(crate) fn records(&self) -> Result<Records, Error> {
        let map = fcntl_dupfd_cloexec(&self.records, 3).map_err(|errno| Error::system("dup", errno))?;
        Records::new(map, self.records_max).map_err(map_error("flows"))
    }

    /// Whether a listener of the stack has got this connection.
    pub(crate) fn is_recorded(&self, flow: FlowKey, stack: u16) -> bool {
        let owner = self.settings.owners[usize::from(stack % STACKS_MAX)];
        owner != 0 && self.flows.get(&flow, 0).is_ok_and(|recorded| recorded & !ANSWERED == owner)
    }

    /// Whether a listener of another stack has got this connection.
    pub(crate) fn is_recorded_by_others(&self, flow: FlowKey, stack: u16) -> bool {
        let own = self.settings.owners[usize::from(stack % STACKS_MAX)];
        self.flows.get(&flow, 0).is_ok_and(|recorded| {
            let owner = recorded & !ANSWERED;
            owner != 0 && owner != own && self.settings.owners.contains(&owner)
        })
    }

    /// A listener of the stack has this connection.
    pub(crate) fn record(&mut self, flow: FlowKey, stack: u16) -> Result<(), Error> {
        let owner = self.settings.owners[usize::from(stack % STACKS_MAX)];
        self.flows.insert(flow, owner | ANSWERED, 0).map_err(map_error("flows"))
    }

    /// Whoever had the connection has it no more.
    pub(crate) fn forget_recorded(&mut self, flow: FlowKey) -> Result<(), Error> {
        absent_is_fine(self.flows.remove(&flow)).map_err(map_error("flows"))
    }

    pub(crate) fn set_claim(
        &mut self,
        protocol: Protocol,
        address: IpAddr,
        claim: Option<Claim>,
        claims: u32,
    ) -> Result<(), Error> {
        let key = ClaimKey { address: octets(address), protocol: protocol as u32 };
        match claim {
            Some(claim) => self.claims.insert(key, claim, 0),
            None => absent_is_fine(self.claims.remove(&key)),
        }
        .map_err(map_error("claims"))?;
        self.settings.claims = claims;
        self.publish()
    }

    /// The interface's hardware address: frames for others are the kernel's.
    pub(crate) fn set_mac(&mut self, mac: MacAddr) -> Result<(), Error> {
        let padded = padded(mac);
        if self.settings.mac == padded {
            return Ok(());
        }
        self.settings.mac = padded;
        self.publish()
    }

    /// Installs exactly these routes.
    pub(crate) fn set_routes(&mut self, wanted: &BTreeMap<Prefix, Way>) -> Result<(), Error> {
        let key = |prefix: Prefix| Key::new(u32::from(prefix.len()), prefix.octets());
        for (&prefix, &way) in wanted {
            if self.ways.get(&prefix) != Some(&way) {
                self.routes.insert(&key(prefix), Route::new(way), 0).map_err(map_error("routes"))?;
                self.ways.insert(prefix, way);
            }
        }
        let obsolete: Vec<Prefix> =
            self.ways.keys().filter(|prefix| !wanted.contains_key(prefix)).copied().collect();
        for prefix in obsolete {
            absent_is_fine(self.routes.remove(&key(prefix))).map_err(map_error("routes"))?;
            self.ways.remove(&prefix);
        }
        Ok(())
    }

    /// The gateways of the routes that the program goes by.
    pub(crate) fn gateways(&self) -> impl Iterator<Item = IpAddr> {
        self.ways.values().filter_map(|way| match way {
            Way::Gateway(gateway) => Some(*gateway),
            _ => None,
        })
    }

    /// `struct neighbor` of the program.
    fn neighbor(&self, address: IpAddr, mac: MacAddr) -> [u8; 8] {
        let mut neighbor = padded(mac);
        neighbor[6] = u8::from(mirror::way_to(&self.ways, address) == Some(Way::Direct));
        neighbor
    }

    /// Where a neighbour is, by the routes that were set last. Whoever there is no room for is the kernel's.
    pub(crate) fn set_neighbor(&mut self, address: IpAddr, mac: Option<MacAddr>) -> Result<(), Error> {
        match mac {
            Some(mac) => match self.neighbors.insert(octets(address), self.neighbor(address, mac), 0) {
                Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::E2BIG) => {
                    Ok(())
                }
                other => other,
            },
            None => absent_is_fine(self.neighbors.remove(&octets(address))),
        }
        .map_err(map_error("neighbors"))
    }

    /// Those that the program knows, by itself or told.
    pub(crate) fn known_neighbors(&self) -> Vec<IpAddr> {
        let keys = self.neighbors.keys().filter_map(Result::ok);
        keys.map(|key| IpAddr::from(std::net::Ipv6Addr::from(key)).to_canonical()).collect()
    }

    pub(crate) fn set_socket(
        &mut self,
        stack: u16,
        queue: u32,
        socket: Option<BorrowedFd<'_>>,
    ) -> Result<(), Error> {
        let index = u32::from(stack) * self.queues + queue;
        match socket {
            Some(socket) => self.xsks.set(index, socket.as_raw_fd(), 0),
            None => absent_is_fine(self.xsks.unset(index)),
        }
        .map_err(map_error("xsks"))
    }

    /// Sums over the cores.
    pub(crate) fn counters(&self) -> Result<Counters, Error> {
        let each = self.counters.get(&0, 0).map_err(map_error("counters"))?;
        Ok(each.iter().fold(Counters::default(), |sum, core| Counters {
            to_listener: sum.to_listener + core.to_listener,
            to_connection: sum.to_connection + core.to_connection,
            to_claim: sum.to_claim + core.to_claim,
            icmp_errors: sum.icmp_errors + core.icmp_errors,
            flows_recorded: sum.flows_recorded + core.flows_recorded,
            passed_fragment: sum.passed_fragment + core.passed_fragment,
            passed_source: sum.passed_source + core.passed_source,
            passed_other: sum.passed_other + core.passed_other,
            passed_firewall: sum.passed_firewall + core.passed_firewall,
            dropped_firewall: sum.dropped_firewall + core.dropped_firewall,
        }))
    }

    fn publish(&mut self) -> Result<(), Error> {
        self.config.set(0, self.settings, 0).map_err(map_error("config"))
    }

    /// Runs the program on a frame as if it had arrived on queue 0, and returns its verdict (an `XDP_*` action).
    #[cfg(test)]
    fn test_run(&self, frame: &[u8]) -> u32 {
        use aya::programs::{TestRun as _, TestRunOptions};
        let mut options = TestRunOptions::new();
        options.data_in = Some(frame);
        self.xdp().unwrap().test_run(options).unwrap().return_value
    }
}

fn padded(MacAddr(mac): MacAddr) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..6].copy_from_slice(&mac);
    bytes
}

fn loading(error: &EbpfError) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if current.downcast_ref::<std::io::Error>().is_some_and(is_permission) {
            return no_privilege();
        }
        cause = current.source();
    }
    Error::Program(error.to_string())
}

fn is_permission(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::PermissionDenied
}

fn no_privilege() -> Error {
    Error::NoPrivilege { operation: "loading the XDP program", capability: "CAP_BPF and CAP_NET_ADMIN" }
}

pub(crate) fn absent_is_fine(result: Result<(), MapError>) -> Result<(), MapError> {
    match result {
        Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}

pub(crate) fn map_error(map: &'static str) -> impl FnOnce(MapError) -> Error {
    move |error| {
        if let MapError::SyscallError(call) = &error
            && call.io_error.raw_os_error() == Some(libc::E2BIG)
        {
            return Error::Program(format!("map {map} is full"));
        }
        Error::Program(format!("map {map}: {error}"))
    }
}

/// A program on an interface, for as long as this value or the process lives.
#[derive(Debug)]
pub(crate) struct Attached(OwnedFd);

impl Drop for Attached {
    fn drop(&mut self) {
        // Closing is enough, unless a child that is about to exec has a copy of the descriptor at this moment.
        let _ = bpf(BPF_LINK_DETACH, &[self.0.as_raw_fd() as u32]);
    }
}

/// `BPF_LINK_CREATE`: program, interface, attach type, flags (include/uapi/linux/bpf.h, `union bpf_attr`, link_create).
fn link_create(program: BorrowedFd<'_>, interface: u32, mode: XdpMode) -> Result<Attached, Errno> {
    let descriptor = bpf(BPF_LINK_CREATE, &[program.as_raw_fd() as u32, interface, BPF_XDP, mode as u32])?;
    // SAFETY: a new descriptor that nobody else knows.
    Ok(Attached(unsafe { OwnedFd::from_raw_fd(descriptor) }))
}

/// `bpf(2)` for commands whose attributes are a few 32-bit numbers.
fn bpf(command: libc::c_int, attributes: &[u32]) -> Result<libc::c_int, Errno> {
    // SAFETY: the kernel reads the given number of bytes of `attributes` (the beginning of its union; what is beyond counts
    // as zero), and these commands write nothing.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(attributes)) };
    match libc::c_int::try_from(result) {
        Ok(result) if result >= 0 => Ok(result),
        _ => Err(last_error()),
    }
}

#[cfg(test)]
mod tests {
    mod drawn;

    use super::*;
    use overfly_wire::{MacAddr, ethernet, ipv4, tcp};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

    const XDP_PASS: u32 = 2;
    const XDP_REDIRECT: u32 = 4;
    const SYN: tcp::Flags = tcp::Flags::SYN;
    const ACK: tcp::Flags = tcp::Flags::ACK;
    const ETHERNET_LEN: usize = 14;
    const TCP: u8 = Protocol::Tcp as u8;
    const UDP: u8 = Protocol::Udp as u8;
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const DESTINATION_OPTIONS: u8 = 60;

    /// This side's address and the peer's, of one family or the other.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Family {
        V4,
        V6,
    }

    use Family::{V4, V6};

    impl Family {
        fn here(self) -> SocketAddr {
            match self {
                V4 => "10.0.0.1:80",
                V6 => "[fd00::1]:80",
            }
            .parse()
            .unwrap()
        }

        fn peer(self, port: u16) -> SocketAddr {
            let address: IpAddr = match self {
                V4 => "10.0.0.2",
                V6 => "fd00::2",
            }
            .parse()
            .unwrap();
            SocketAddr::new(address, port)
        }

        fn header_len(self) -> usize {
            match self {
                V4 => 20,
                V6 => 40,
            }
        }
    }

    fn tcp_header(from: u16, to: u16, flags: tcp::Flags) -> Vec<u8> {
        let mut bytes = vec![0; 20];
        tcp::Header {
            source_port: from,
            destination_port: to,
            sequence: 1,
            acknowledgment: 1,
            flags,
            window: 1,
            options: tcp::Options::default(),
        }
        .emit(&mut bytes);
        bytes
    }

    fn udp_header(from: u16, to: u16) -> Vec<u8> {
        [from.to_be_bytes(), to.to_be_bytes(), 8_u16.to_be_bytes(), [0, 0]].concat()
    }

    /// An IP packet, without Ethernet.
    fn packet(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = match (from, to) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut bytes = vec![0; 20];
                ipv4::Header {
                    source,
                    destination,
                    protocol,
                    ttl: 64,
                    tos: 0,
                    identification: 0,
                    dont_fragment: true,
                    payload_len: payload.len() as u16,
                }
                .emit(&mut bytes);
                bytes
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut bytes = vec![0x60, 0, 0, 0];
                bytes.extend((payload.len() as u16).to_be_bytes());
                bytes.extend([protocol, 64]);
                bytes.extend(source.octets());
                bytes.extend(destination.octets());
                bytes
            }
            _ => panic!("two families"),
        };
        bytes.extend(payload);
        bytes
    }

    fn in_ethernet(packet: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; ETHERNET_LEN];
        ethernet::Header {
            destination: MacAddr([2, 0, 0, 0, 0, 1]),
            source: MacAddr([2, 0, 0, 0, 0, 2]),
            ethertype: if packet[0] >> 4 == 4 { ethernet::ETHERTYPE_IPV4 } else { 0x86dd },
        }
        .emit(&mut bytes);
        bytes.extend(packet);
        bytes
    }

    fn frame(from: SocketAddr, to: SocketAddr, flags: tcp::Flags) -> Vec<u8> {
        in_ethernet(&packet(from.ip(), to.ip(), TCP, &tcp_header(from.port(), to.port(), flags)))
    }

    fn datagram(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
        in_ethernet(&packet(from.ip(), to.ip(), UDP, &udp_header(from.port(), to.port())))
    }

    /// An ICMP error of that type about a packet that `local` sent to `remote`.
    fn icmp_error(kind: u8, local: SocketAddr, remote: SocketAddr, protocol: u8) -> Vec<u8> {
        let transport = if protocol == UDP {
            udp_header(local.port(), remote.port())
        } else {
            // Eight bytes of the transport header are what RFC 792 promises.
            tcp_header(local.port(), remote.port(), ACK)[..8].to_vec()
        };
        let (router, icmp): (IpAddr, u8) = match local {
            SocketAddr::V4(_) => ("10.0.0.254".parse().unwrap(), 1),
            SocketAddr::V6(_) => ("fd00::254".parse().unwrap(), 58),
        };
        let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
        message.extend(packet(local.ip(), remote.ip(), protocol, &transport));
        in_ethernet(&packet(router, local.ip(), icmp, &message))
    }

    /// A loaded program with sockets for some stacks: a frame for one of the others shows as XDP_PASS.
    struct Bench {
        program: Program,
        sockets: Vec<OwnedFd>,
    }

    impl Bench {
        fn new() -> Bench {
            let mut program = Program::load(1, 1024, 0x1234_5678_9abc_def0, XdpMode::Driver, false)
                .expect("these tests load XDP programs: run them as root");
            for stack in 0..4 {
                program.admit(stack).unwrap();
            }
            program.set_mac(MacAddr([2, 0, 0, 0, 0, 1])).unwrap();
            let routes =
                [("10.0.0.0", 8, Way::Direct), ("10.0.0.1", 32, Way::Own), ("fd00::", 64, Way::Direct)];
            let routes = routes.map(|(to, len, way)| (Prefix::new(to.parse().unwrap(), len), way));
            program.set_routes(&routes.into()).unwrap();
            for peer in [V4.peer(1).ip(), V6.peer(1).ip()] {
                program.set_neighbor(peer, Some(MacAddr([2, 0, 0, 0, 0, 2]))).unwrap();
            }
            Bench { program, sockets: Vec::new() }
        }

        /// Exactly these stacks have sockets.
        fn serve(&mut self, stacks: &[u16]) {
            for stack in 0..STACKS_MAX {
                let socket = stacks.contains(&stack).then(|| {
                    socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None).unwrap()
                });
                self.program.set_socket(stack, 0, socket.as_ref().map(AsFd::as_fd)).unwrap();
                self.sockets.extend(socket);
            }
        }

        /// Which of the stacks 0 to 3 gets the frame.
        fn owner(&mut self, frame: &[u8]) -> Option<u16> {
            // A SYN is recorded by the first look; the others must agree with it.
            let owners: Vec<u16> = (0..4)
                .filter(|&stack| {
                    self.serve(&[stack]);
                    match self.program.test_run(frame) {
                        XDP_REDIRECT => true,
                        XDP_PASS => false,
                        other => panic!("verdict {other}"),
                    }
                })
                .collect();
            assert!(owners.len() < 2, "{owners:?}");
            owners.first().copied()
        }

        fn listen(&mut self, family: Family, protocol: Protocol, stacks: &[u16]) {
            let place = BoundAddress::new(protocol, family.here());
            self.program.set_listeners([(place, Group::new(stacks))].into()).unwrap();
        }
    }

    #[test]
    fn only_what_is_for_a_listener_is_taken() {
        for family in [V4, V6] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let mut bench = Bench::new();
                let make = |from, to, flags| match protocol {
                    Protocol::Tcp => frame(from, to, flags),
                    Protocol::Udp => datagram(from, to),
                };
                let here = family.here();
                assert_eq!(bench.owner(&make(family.peer(1), here, SYN)), None);
                bench.listen(family, protocol, &[2]);
                assert_eq!(bench.owner(&make(family.peer(1), here, SYN)), Some(2));
                assert_eq!(bench.owner(&make(family.peer(9), here, ACK)), Some(2));
                let other_port = SocketAddr::new(here.ip(), 81);
                assert_eq!(bench.owner(&make(family.peer(1), other_port, SYN)), None);
                assert_eq!(bench.owner(&make(family.peer(1), family.peer(80), SYN)), None, "another address");
                let other_protocol = match protocol {
                    Protocol::Tcp => datagram(family.peer(1), here),
                    Protocol::Udp => frame(family.peer(1), here, SYN),
                };
                assert_eq!(bench.owner(&other_protocol), None);

                let whole = make(family.peer(1), here, ACK);
                bench.serve(&[2]);
                assert_eq!(bench.program.test_run(&whole), XDP_REDIRECT);
                for length in ETHERNET_LEN..whole.len() {
                    assert_eq!(bench.program.test_run(&whole[..length]), XDP_PASS, "cut to {length}");
                }
            }
        }
    }

    #[test]
    fn fields_of_ipv4_that_make_a_frame_the_kernels() {
        let mut bench = Bench::new();
        bench.listen(V4, Protocol::Tcp, &[2]);
        bench.serve(&[2]);
        let whole = frame(V4.peer(1), V4.here(), ACK);
        let verdict_with = |at: usize, value: u8| {
            let mut changed = whole.clone();
            changed[at] = value;
            bench.program.test_run(&changed)
        };
        assert_eq!(verdict_with(14, 0x45), XDP_REDIRECT);
        assert_eq!(verdict_with(14, 0x44), XDP_PASS, "a header shorter than any");
        assert_eq!(verdict_with(14, 0x46), XDP_PASS, "options that leave no room for TCP");
        assert_eq!(verdict_with(14, 0x65), XDP_PASS, "version 6");
        assert_eq!(verdict_with(20, 0x20), XDP_PASS, "first fragment");
        assert_eq!(verdict_with(21, 0x01), XDP_PASS, "later fragment");
        assert_eq!(verdict_with(20, 0x40), XDP_REDIRECT, "don't fragment");
        assert_eq!(verdict_with(23, 17), XDP_PASS, "UDP");
        assert_eq!(verdict_with(12, 0x86), XDP_PASS, "another Ethernet type");
        assert_eq!(verdict_with(0, 0x03), XDP_PASS, "multicast");
        assert!(bench.program.counters().unwrap().passed_fragment >= 2);

        let mut options = frame(V4.peer(1), V4.here(), SYN);
        options.splice(34..34, [1, 1, 1, 0]);
        options[14] = 0x46;
        assert_eq!(bench.owner(&options), Some(2));
    }

    /// A packet with these extension headers, each 8 × (its second number + 1) bytes long, before a TCP header.
    fn extended(extensions: &[(u8, u8)], flags: tcp::Flags) -> Vec<u8> {
        let mut payload = Vec::new();
        for (index, &(_, length)) in extensions.iter().enumerate() {
            let next = extensions.get(index + 1).map_or(TCP, |(kind, _)| *kind);
            let begin = payload.len();
            payload.extend([next, length, 0, 0]);
            payload.resize(begin + (usize::from(length) + 1) * 8, 0);
        }
        payload.extend(tcp_header(1, 80, flags));
        let first = extensions.first().map_or(TCP, |(kind, _)| *kind);
        in_ethernet(&packet(V6.peer(1).ip(), V6.here().ip(), first, &payload))
    }

    #[test]
    fn up_to_four_extension_headers_are_skipped() {
        let mut bench = Bench::new();
        bench.listen(V6, Protocol::Tcp, &[1]);
        let mut chains: Vec<Vec<(u8, u8)>> = vec![
            vec![(HOP_BY_HOP, 0)],
            vec![(DESTINATION_OPTIONS, 7)],
            vec![(ROUTING, 2)],
            vec![(HOP_BY_HOP, 1), (DESTINATION_OPTIONS, 0), (ROUTING, 0), (DESTINATION_OPTIONS, 3)],
        ];
        for chain in &chains {
            assert_eq!(bench.owner(&extended(chain, SYN)), Some(1), "{chain:?}");
            let whole = extended(chain, SYN);
            bench.serve(&[1]);
            for length in ETHERNET_LEN..whole.len() {
                assert_eq!(bench.program.test_run(&whole[..length]), XDP_PASS, "{chain:?} cut to {length}");
            }
        }
        chains = vec![
            vec![(DESTINATION_OPTIONS, 0); 5],
            vec![(FRAGMENT, 0)],
            vec![(HOP_BY_HOP, 0), (FRAGMENT, 0)],
            vec![(51, 0)], // authentication
            vec![(59, 0)], // nothing follows
        ];
        for chain in &chains {
            assert_eq!(bench.owner(&extended(chain, SYN)), None, "{chain:?}");
        }
        assert!(bench.program.counters().unwrap().passed_fragment >= 2);
        let mut goes_further = extended(&[(ROUTING, 2)], SYN);
        goes_further[ETHERNET_LEN + 40 + 3] = 1;
        assert_eq!(bench.owner(&goes_further), None);
        let mut version = extended(&[], SYN);
        assert_eq!(bench.owner(&version), Some(1));
        version[ETHERNET_LEN] = 0x40;
        assert_eq!(bench.owner(&version), None);
    }

    #[test]
    fn connections_stay_with_their_stack_when_the_group_changes() {
        for family in [V4, V6] {
            let mut bench = Bench::new();
            let here = family.here();
            let peer = |port| family.peer(port);
            bench.listen(family, Protocol::Tcp, &[0]);
            for port in 0..50 {
                assert_eq!(bench.owner(&frame(peer(port), here, SYN)), Some(0));
            }
            bench.listen(family, Protocol::Tcp, &[0, 1, 2]);
            let mut chosen = [0; 4];
            for port in 0..50 {
                assert_eq!(bench.owner(&frame(peer(port), here, ACK)), Some(0), "{port}");
                let new = bench.owner(&frame(peer(1000 + port), here, SYN)).unwrap();
                assert_eq!(bench.owner(&frame(peer(1000 + port), here, ACK)), Some(new));
                chosen[usize::from(new)] += 1;
            }
            assert!(chosen[0] > 3 && chosen[1] > 3 && chosen[2] > 3, "{chosen:?}");
            // Stack 0 stops accepting: it keeps what it has, but not a new connection with an old tuple.
            bench.listen(family, Protocol::Tcp, &[1, 2]);
            for port in 0..50 {
                assert_eq!(bench.owner(&frame(peer(port), here, ACK)), Some(0));
            }
            let moved = bench.owner(&frame(peer(7), here, SYN)).unwrap();
            assert_ne!(moved, 0);
            assert_eq!(bench.owner(&frame(peer(7), here, ACK)), Some(moved));
            // Nobody accepts any more: connections go on, everything else is the kernel's.
            bench.listen(family, Protocol::Tcp, &[]);
            assert_eq!(bench.owner(&frame(peer(8), here, ACK)), Some(0));
            assert_eq!(bench.owner(&frame(peer(4000), here, SYN)), None);
            assert_eq!(bench.owner(&frame(peer(4000), here, ACK)), None);
        }
    }

    #[test]
    fn the_next_stack_at_a_place_does_not_get_the_last_ones_connections() {
        let mut bench = Bench::new();
        bench.listen(V4, Protocol::Tcp, &[1]);
        assert_eq!(bench.owner(&frame(V4.peer(1), V4.here(), SYN)), Some(1));
        bench.listen(V4, Protocol::Tcp, &[2]);
        assert_eq!(bench.owner(&frame(V4.peer(1), V4.here(), ACK)), Some(1));
        bench.program.dismiss(1).unwrap();
        assert_eq!(bench.owner(&frame(V4.peer(1), V4.here(), ACK)), Some(2), "whoever listens refuses it");
        bench.program.admit(1).unwrap();
        assert_eq!(bench.owner(&frame(V4.peer(1), V4.here(), ACK)), Some(2));
        bench.listen(V4, Protocol::Tcp, &[]);
        assert_eq!(bench.owner(&frame(V4.peer(1), V4.here(), ACK)), None);
    }

    #[test]
    fn datagrams_of_a_peer_go_to_one_stack_while_the_group_is_the_same() {
        for family in [V4, V6] {
            let mut bench = Bench::new();
            bench.listen(family, Protocol::Udp, &[0, 3]);
            let mut chosen = [0; 4];
            for port in 0..60 {
                let stack = bench.owner(&datagram(family.peer(port), family.here())).unwrap();
                assert_eq!(bench.owner(&datagram(family.peer(port), family.here())), Some(stack));
                chosen[usize::from(stack)] += 1;
            }
            assert!(chosen[0] > 10 && chosen[3] > 10, "{chosen:?}");
            bench.listen(family, Protocol::Udp, &[3]);
            for port in 0..60 {
                assert_eq!(bench.owner(&datagram(family.peer(port), family.here())), Some(3));
            }
            // A connected socket goes before.
            let flow = FlowKey::new(Protocol::Udp, family.here(), family.peer(5));
            bench.program.add_connection(flow, 1).unwrap();
            assert_eq!(bench.owner(&datagram(family.peer(5), family.here())), Some(1));
            assert_eq!(bench.owner(&datagram(family.peer(6), family.here())), Some(3));
            assert_eq!(bench.program.counters().unwrap().flows_recorded, 0);
        }
    }

    #[test]
    fn connections_and_claims_have_their_stacks() {
        for family in [V4, V6] {
            let mut bench = Bench::new();
            let local = SocketAddr::new(family.here().ip(), 40000);
            let flow = FlowKey::new(Protocol::Tcp, local, family.peer(80));
            bench.program.add_connection(flow, 3).unwrap();
            assert_eq!(bench.owner(&frame(family.peer(80), local, ACK)), Some(3));
            assert_eq!(bench.owner(&frame(family.peer(81), local, ACK)), None);
            assert_eq!(bench.owner(&datagram(family.peer(80), local)), None);
            bench.program.remove_connection(flow).unwrap();
            assert_eq!(bench.owner(&frame(family.peer(80), local, ACK)), None);

            let claim = Claim { port_low: 1000, port_high: 1999, first: 1, count: 2 };
            bench.program.set_claim(Protocol::Tcp, local.ip(), Some(claim), 1).unwrap();
            for port in [999, 1000, 1001, 1999, 2000] {
                let to = SocketAddr::new(local.ip(), port);
                let expected = (1000..2000).contains(&port).then_some(1 + port % 2);
                assert_eq!(bench.owner(&frame(family.peer(80), to, ACK)), expected, "{port}");
                assert_eq!(bench.owner(&datagram(family.peer(80), to)), None, "{port}");
            }
            bench.program.set_claim(Protocol::Tcp, local.ip(), None, 0).unwrap();
            let to = SocketAddr::new(local.ip(), 1000);
            assert_eq!(bench.owner(&frame(family.peer(80), to, ACK)), None);
        }
    }

    #[test]
    fn icmp_errors_about_a_stacks_packets_are_the_stacks() {
        for family in [V4, V6] {
            let errors: &[u8] = if family == V4 { &[3, 11, 12] } else { &[1, 2, 3, 4] };
            let others: &[u8] = if family == V4 { &[0, 5, 8, 13] } else { &[0, 5, 128, 129, 133, 135, 136] };
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let mut bench = Bench::new();
                let here = family.here();
                let error =
                    |kind: u8, local, port| icmp_error(kind, local, family.peer(port), protocol as u8);
                assert_eq!(bench.owner(&error(3, here, 7)), None);
                bench.listen(family, protocol, &[2]);
                let active = SocketAddr::new(here.ip(), 40000);
                let flow = FlowKey::new(protocol, active, family.peer(7));
                bench.program.add_connection(flow, 1).unwrap();
                for &kind in errors {
                    assert_eq!(bench.owner(&error(kind, here, 7)), Some(2));
                    assert_eq!(bench.owner(&error(kind, active, 7)), Some(1));
                    assert_eq!(bench.owner(&error(kind, active, 8)), None);
                }
                for &kind in others {
                    assert_eq!(bench.owner(&error(kind, here, 7)), None);
                }
                assert_eq!(bench.program.counters().unwrap().icmp_errors, 2 * errors.len() as u64 * 4);

                // About a packet that somebody else sent; about a later fragment; about another protocol; cut off.
                let begin = ETHERNET_LEN + family.header_len() + 8;
                let whole = error(3, here, 7);
                let source_at = begin + if family == V4 { 12 } else { 8 };
                let protocol_at = begin + if family == V4 { 9 } else { 6 };
                bench.serve(&[2]);
                assert_eq!(bench.program.test_run(&whole), XDP_REDIRECT);
                for (at, value) in [(source_at, 9), (protocol_at, 1), (protocol_at, 59), (begin, 0x20)] {
                    let mut changed = whole.clone();
                    changed[at] = value;
                    assert_eq!(bench.program.test_run(&changed), XDP_PASS, "{at}");
                }
                if family == V4 {
                    let mut fragment = whole.clone();
                    fragment[begin + 7] = 1;
                    assert_eq!(bench.program.test_run(&fragment), XDP_PASS);
                }
                for length in ETHERNET_LEN..whole.len() - 4 {
                    assert_eq!(bench.program.test_run(&whole[..length]), XDP_PASS, "cut to {length}");
                }
            }
        }
    }

    /// A stack that has looked at its rings for the `looks`th time.
    fn look(bench: &mut Bench, stack: u32, looks: u64) {
        show(bench, stack, [looks, 0, 0, 0, 0, 0, 0, 0]);
    }

    fn show(bench: &mut Bench, stack: u32, pulse: [u64; 8]) {
        Array::<_, [u64; 8]>::try_from(&mut bench.program.pulses).unwrap().set(stack, pulse, 0).unwrap();
    }

    /// To whom one SYN goes, by what the program remembers: asking each stack would take longer than it waits for one.
    fn begin(bench: &Bench, family: Family, port: u16) -> u16 {
        let (here, peer) = (family.here(), family.peer(port));
        assert_eq!(bench.program.test_run(&frame(peer, here, SYN)), XDP_REDIRECT);
        (bench.program.flows.get(&FlowKey::new(Protocol::Tcp, here, peer), 0).unwrap() % 64) as u16
    }

    /// Issue 25, item 3: processes that held a connection, and looked for its next bytes, got their share of new ones.
    #[test]
    fn a_stack_that_waits_to_accept_goes_before_those_that_only_look() {
        for family in [V4, V6] {
            let mut bench = Bench::new();
            bench.listen(family, Protocol::Tcp, &[0, 1, 2, 3]);
            bench.serve(&[0, 1, 2, 3]);
            let mut looks = 1;
            // All look, and these wait.
            let mut wait = |bench: &mut Bench, waiting: &[u32]| {
                looks += 1;
                for stack in 0..4 {
                    let waits = if waiting.contains(&stack) { looks } else { looks - 1 };
                    show(bench, stack, [looks, 0, 0, 0, waits, 0, 0, 0]);
                }
            };
            let mut shares = Vec::new();
            for port in 0..40 {
                wait(&mut bench, &[]);
                shares.push(begin(&bench, family, port));
            }
            assert!((0..4).all(|stack| shares.contains(&stack)), "{shares:?}");
            for only in 0..4 {
                for port in 1000..1040 {
                    wait(&mut bench, &[only]);
                    assert_eq!(u32::from(begin(&bench, family, 100 * only as u16 + port)), only);
                }
            }
            // Of two that wait each has its own share, and one of them those of the others.
            for port in 2000..2040 {
                wait(&mut bench, &[1, 2]);
                let owner = begin(&bench, family, port);
                assert!([1, 2].contains(&owner));
            }
            for port in 0..40 {
                bench
                    .program
                    .flows
                    .remove(&FlowKey::new(Protocol::Tcp, family.here(), family.peer(port)))
                    .unwrap();
                wait(&mut bench, &[1, 2]);
                let share = shares[usize::from(port)];
                let owner = begin(&bench, family, port);
                assert!(owner == share || ![1, 2].contains(&share), "{owner}, not {share}");
            }
            // One connection for each wait: the next one is another's, and then all have their shares.
            wait(&mut bench, &[1, 2]);
            let first: Vec<u16> = (5000..5002).map(|port| begin(&bench, family, port)).collect();
            assert!(first == [1, 2] || first == [2, 1], "{first:?}");
            let rest: Vec<u16> = (5002..5042).map(|port| begin(&bench, family, port)).collect();
            assert!((0..4).all(|stack| rest.contains(&stack)), "{rest:?}");
            // Who said that it waits, and has looked since, does not wait any more.
            wait(&mut bench, &[3]);
            look(&mut bench, 3, looks + 1);
            let rest: Vec<u16> = (6000..6040).map(|port| begin(&bench, family, port)).collect();
            assert!((0..4).all(|stack| rest.contains(&stack)), "{rest:?}");
        }
    }

    /// Issue 18, item 11: a stopped process kept getting its share of new connections.
    #[test]
    fn a_stack_that_does_not_look_gets_no_new_connections_while_others_do() {
        use std::time::Duration;
        for family in [V4, V6] {
            let mut bench = Bench::new();
            let (here, peer) = (family.here(), |port| family.peer(port));
            bench.listen(family, Protocol::Tcp, &[1, 2]);
            bench.serve(&[1, 2]);
            let ask = |bench: &Bench, port: u16| begin(bench, family, port);
            let ask_all = |bench: &Bench, ports: std::ops::Range<u16>| -> Vec<u16> {
                ports.map(|port| ask(bench, port)).collect()
            };
            let mut looks = 1;
            let mut look = |bench: &mut Bench, stacks: &[u32]| {
                looks += 1;
                stacks.iter().for_each(|&stack| look(bench, stack, looks));
            };
            let long = || std::thread::sleep(Duration::from_millis(20));

            // They have not said that they look: nobody knows better.
            let silent = ask_all(&bench, 0..40);
            long();
            assert_eq!(ask_all(&bench, 0..40), silent);
            assert!(silent.contains(&1) && silent.contains(&2));

            look(&mut bench, &[1, 2]);
            let first = ask_all(&bench, 100..140);
            assert!(first.contains(&1) && first.contains(&2));
            for port in 100..140 {
                assert_eq!(bench.program.test_run(&frame(peer(port), here, ACK)), XDP_REDIRECT);
            }
            // Both get some that they do not look for; then only 2 looks.
            look(&mut bench, &[1, 2]);
            let begun = ask_all(&bench, 200..240);
            assert!(begun.contains(&1) && begun.contains(&2));
            long();
            for port in 300..340 {
                look(&mut bench, &[2]);
                assert_eq!(ask(&bench, port), 2, "{port}");
            }
            // So does who asks again; what was begun before goes on where it is.
            for port in 200..240 {
                look(&mut bench, &[2]);
                assert_eq!(ask(&bench, port), 2, "{port}");
            }
            let old = (100..140).find(|port| first[usize::from(port - 100)] == 1).unwrap();
            assert_eq!(bench.owner(&frame(peer(old), here, ACK)), Some(1));
            bench.serve(&[1, 2]);
            // A forged SYN takes nobody's connection away, but from a stack that is stopped for long: the tuple may come again.
            assert_eq!(ask(&bench, old), 1);
            std::thread::sleep(Duration::from_millis(520));
            look(&mut bench, &[2]);
            assert_eq!(ask(&bench, old), 2);
            // It goes on, and gets its share, however long nobody comes.
            for _ in 0..2 {
                look(&mut bench, &[1, 2]);
                long();
                let shares = ask_all(&bench, 400..440);
                assert!(shares.contains(&1) && shares.contains(&2));
            }
            // Nobody looks: they wait where they would have.
            long();
            let waiting = ask_all(&bench, 500..540);
            assert!(waiting.contains(&1) && waiting.contains(&2));
            // Who listens alone takes everything.
            bench.listen(family, Protocol::Tcp, &[1]);
            assert_eq!(ask_all(&bench, 600..640), [1; 40]);
        }
    }

    /// Every kind of frame above with random bytes changed, cut or put in: the program always comes to one of two verdicts.
    #[test]
    fn malformed_frames_pass_or_go_to_a_stack() {
        let mut numbers = overfly_testing::Random(overfly_testing::fresh_seed());
        let mut random = move |below: usize| numbers.index(below);
        let mut bench = Bench::new();
        let places = [V4, V6].into_iter().flat_map(|family| {
            [Protocol::Tcp, Protocol::Udp]
                .map(|protocol| (BoundAddress::new(protocol, family.here()), Group::new(&[2])))
        });
        bench.program.set_listeners(places.collect()).unwrap();
        bench.serve(&[0, 1, 2, 3]);
        let mut originals =
            vec![extended(&[(HOP_BY_HOP, 0), (ROUTING, 1), (DESTINATION_OPTIONS, 1), (FRAGMENT, 0)], ACK)];
        for family in [V4, V6] {
            originals.push(frame(family.peer(1), family.here(), SYN));
            originals.push(datagram(family.peer(1), family.here()));
            originals.push(icmp_error(3, family.here(), family.peer(1), TCP));
            originals.push(icmp_error(3, family.here(), family.peer(1), UDP));
        }
        let mut redirected = 0;
        for _ in 0..100_000 {
            let mut bytes = originals[random(originals.len())].clone();
            for _ in 0..random(4) {
                let at = random(bytes.len());
                match random(3) {
                    0 => bytes[at] = random(256) as u8,
                    1 => bytes.truncate(at.max(ETHERNET_LEN)),
                    _ => bytes.insert(at, random(256) as u8),
                }
            }
            match bench.program.test_run(&bytes) {
                XDP_PASS => {}
                XDP_REDIRECT => redirected += 1,
                other => panic!("verdict {other}"),
            }
        }
        assert!(redirected > 1000, "{redirected}");
    }
}

//! The XDP program (`bpf/steer.bpf.c`) and its maps.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use aya::maps::{Array, HashMap, MapData, MapError, PerCpuArray, XskMap};
use aya::programs::{ProgramError, Xdp};
use aya::{Ebpf, EbpfError, EbpfLoader, Pod};
use overfly_link::xdp::STACKS_MAX;
use rustix::io::Errno;

use crate::error::Error;

/// `BPF_LINK_CREATE` of `bpf(2)`.
const BPF_LINK_CREATE: libc::c_int = 28;
/// `BPF_LINK_DETACH` of `bpf(2)`.
const BPF_LINK_DETACH: libc::c_int = 34;
/// `BPF_XDP` of `enum bpf_attach_type`.
const BPF_XDP: u32 = 37;
/// `XDP_FLAGS_DRV_MODE`: in the driver or not at all.
const XDP_FLAGS_DRV_MODE: u32 = 4;

/// `struct config` of the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Config {
    listeners: u32,
    connections: u32,
    claims: u32,
    unused: u32,
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
    /// New connections of listeners.
    pub flows_recorded: u64,
    /// IPv4 TCP fragments: the kernel's.
    pub passed_fragment: u64,
    /// All other frames that passed to the kernel.
    pub passed_other: u64,
}

/// `struct listener_key`: network byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct ListenerKey {
    address: [u8; 4],
    port: [u8; 2],
    zero: u16,
}

/// `struct group` of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Group {
    members: u64,
    count: u32,
    changed: u32,
    stacks: [u16; STACKS_MAX as usize],
}

impl Group {
    pub(crate) fn new(accepting: &[u16], changed: bool) -> Group {
        let mut stacks = [0; STACKS_MAX as usize];
        let count = accepting.len().min(stacks.len());
        stacks[..count].copy_from_slice(&accepting[..count]);
        Group {
            members: accepting.iter().fold(0, |members, &stack| members | 1 << (stack % STACKS_MAX)),
            count: count as u32,
            changed: u32::from(changed),
            stacks,
        }
    }
}

/// `struct flow_key`: network byte order, local is this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct FlowKey {
    local_address: [u8; 4],
    remote_address: [u8; 4],
    local_port: [u8; 2],
    remote_port: [u8; 2],
}

impl FlowKey {
    pub(crate) fn new(local: SocketAddrV4, remote: SocketAddrV4) -> FlowKey {
        FlowKey {
            local_address: local.ip().octets(),
            remote_address: remote.ip().octets(),
            local_port: local.port().to_be_bytes(),
            remote_port: remote.port().to_be_bytes(),
        }
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
unsafe impl Pod for Claim {}

/// The loaded program, with typed access to its maps.
pub(crate) struct Program {
    queues: u32,
    config: Array<MapData, Config>,
    counters: PerCpuArray<MapData, Counters>,
    listeners: HashMap<MapData, ListenerKey, Group>,
    connections: HashMap<MapData, FlowKey, u32>,
    claims: HashMap<MapData, [u8; 4], Claim>,
    xsks: XskMap<MapData>,
    installed: BTreeMap<SocketAddrV4, Group>,
    sizes: Config,
    /// Holds the program and the maps that are only the program's own.
    ebpf: Ebpf,
}

impl Program {
    /// Loads the program for an interface with that many queues; `flows` connections of listeners are remembered.
    pub(crate) fn load(queues: u32, flows: u32, hash_key: u64) -> Result<Program, Error> {
        let mut ebpf = EbpfLoader::new()
            .override_global("QUEUES", &queues, true)
            .override_global("HASH_KEY", &hash_key, true)
            .map_max_entries("xsks", u32::from(STACKS_MAX) * queues)
            .map_max_entries("flows", flows)
            .load(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/steer.bpf.o")))
            .map_err(|error| loading(&error))?;
        let xdp: &mut Xdp = ebpf
            .program_mut("overfly_steer")
            .ok_or_else(|| Error::Program("overfly_steer is not in its object".to_owned()))?
            .try_into()
            .map_err(|error: ProgramError| Error::Program(error.to_string()))?;
        xdp.load().map_err(|error| match &error {
            ProgramError::LoadError { io_error, .. } if is_permission(io_error) => no_privilege(),
            error => Error::Program(error.to_string()),
        })?;
        fn take<M: TryFrom<aya::maps::Map, Error = MapError>>(
            ebpf: &mut Ebpf,
            name: &str,
        ) -> Result<M, Error> {
            ebpf.take_map(name)
                .ok_or_else(|| Error::Program(format!("map {name} is not in its object")))?
                .try_into()
                .map_err(|error: MapError| Error::Program(format!("map {name}: {error}")))
        }
        Ok(Program {
            queues,
            config: take(&mut ebpf, "config")?,
            counters: take(&mut ebpf, "counters")?,
            listeners: take(&mut ebpf, "listeners")?,
            connections: take(&mut ebpf, "connections")?,
            claims: take(&mut ebpf, "claims")?,
            xsks: take(&mut ebpf, "xsks")?,
            installed: BTreeMap::new(),
            sizes: Config::default(),
            ebpf,
        })
    }

    fn xdp(&self) -> Result<&Xdp, Error> {
        self.ebpf
            .program("overfly_steer")
            .and_then(|program| program.try_into().ok())
            .ok_or_else(|| Error::Program("overfly_steer is not loaded".to_owned()))
    }

    /// Attaches the program in the driver. It stays as long as the returned value, or this process.
    ///
    /// aya's own attach falls back to netlink, which would outlive this process.
    pub(crate) fn attach(&self, interface: u32) -> Result<Result<Attached, Errno>, Error> {
        let xdp = self.xdp()?;
        let program = xdp.fd().map_err(|error| Error::Program(error.to_string()))?;
        Ok(link_create(program.as_fd(), interface))
    }

    /// Installs exactly these listeners.
    pub(crate) fn set_listeners(&mut self, wanted: BTreeMap<SocketAddrV4, Group>) -> Result<(), Error> {
        let key = |address: &SocketAddrV4| ListenerKey {
            address: address.ip().octets(),
            port: address.port().to_be_bytes(),
            zero: 0,
        };
        let mut result = Ok(());
        let obsolete: Vec<_> =
            self.installed.keys().filter(|address| !wanted.contains_key(address)).copied().collect();
        for address in obsolete {
            match absent_is_fine(self.listeners.remove(&key(&address))) {
                Ok(()) => drop(self.installed.remove(&address)),
                Err(error) => result = Err(error),
            }
        }
        for (address, group) in wanted {
            if self.installed.get(&address) == Some(&group) {
                continue;
            }
            match self.listeners.insert(key(&address), group, 0) {
                Ok(()) => drop(self.installed.insert(address, group)),
                Err(error) => result = Err(error),
            }
        }
        self.sizes.listeners = self.installed.len() as u32;
        self.publish_sizes()?;
        result.map_err(map_error("listeners"))
    }

    pub(crate) fn add_connection(&mut self, flow: FlowKey, stack: u16) -> Result<(), Error> {
        self.connections.insert(flow, u32::from(stack), 0).map_err(map_error("connections"))?;
        self.sizes.connections += 1;
        if self.sizes.connections == 1 {
            self.publish_sizes()?;
        }
        Ok(())
    }

    pub(crate) fn remove_connection(&mut self, flow: FlowKey) -> Result<(), Error> {
        absent_is_fine(self.connections.remove(&flow)).map_err(map_error("connections"))?;
        self.sizes.connections = self.sizes.connections.saturating_sub(1);
        if self.sizes.connections == 0 {
            self.publish_sizes()?;
        }
        Ok(())
    }

    pub(crate) fn set_claim(
        &mut self,
        address: Ipv4Addr,
        claim: Option<Claim>,
        claims: u32,
    ) -> Result<(), Error> {
        match claim {
            Some(claim) => self.claims.insert(address.octets(), claim, 0),
            None => absent_is_fine(self.claims.remove(&address.octets())),
        }
        .map_err(map_error("claims"))?;
        self.sizes.claims = claims;
        self.publish_sizes()
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
            flows_recorded: sum.flows_recorded + core.flows_recorded,
            passed_fragment: sum.passed_fragment + core.passed_fragment,
            passed_other: sum.passed_other + core.passed_other,
        }))
    }

    fn publish_sizes(&mut self) -> Result<(), Error> {
        self.config.set(0, self.sizes, 0).map_err(map_error("config"))
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

fn absent_is_fine(result: Result<(), MapError>) -> Result<(), MapError> {
    match result {
        Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}

fn map_error(map: &'static str) -> impl FnOnce(MapError) -> Error {
    move |error| {
        if let MapError::SyscallError(call) = &error
            && call.io_error.raw_os_error() == Some(libc::E2BIG)
        {
            return Error::Program(format!("map {map} is full"));
        }
        Error::Program(format!("map {map}: {error}"))
    }
}

/// A program in an interface's driver, for as long as this value or the process lives.
#[derive(Debug)]
pub(crate) struct Attached(OwnedFd);

impl Drop for Attached {
    fn drop(&mut self) {
        // Closing is enough, unless a child that is about to exec has a copy of the descriptor at this moment.
        let _ = bpf(BPF_LINK_DETACH, &[self.0.as_raw_fd() as u32]);
    }
}

/// `BPF_LINK_CREATE`: program, interface, attach type, flags (include/uapi/linux/bpf.h, `union bpf_attr`, link_create).
fn link_create(program: BorrowedFd<'_>, interface: u32) -> Result<Attached, Errno> {
    let descriptor =
        bpf(BPF_LINK_CREATE, &[program.as_raw_fd() as u32, interface, BPF_XDP, XDP_FLAGS_DRV_MODE])?;
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
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overfly_wire::{MacAddr, ethernet, ipv4, tcp};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

    const XDP_PASS: u32 = 2;
    const XDP_REDIRECT: u32 = 4;
    const HERE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 80);
    const SYN: tcp::Flags = tcp::Flags::SYN;
    const ACK: tcp::Flags = tcp::Flags::ACK;

    fn peer(port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), port)
    }

    fn frame(from: SocketAddrV4, to: SocketAddrV4, flags: tcp::Flags) -> Vec<u8> {
        let mut bytes = vec![0; 14 + 20 + 20];
        ethernet::Header {
            destination: MacAddr([2, 0, 0, 0, 0, 1]),
            source: MacAddr([2, 0, 0, 0, 0, 2]),
            ethertype: ethernet::ETHERTYPE_IPV4,
        }
        .emit(&mut bytes);
        ipv4::Header {
            source: *from.ip(),
            destination: *to.ip(),
            protocol: ipv4::PROTOCOL_TCP,
            ttl: 64,
            tos: 0,
            identification: 0,
            dont_fragment: true,
            payload_len: 20,
        }
        .emit(&mut bytes[14..]);
        tcp::Header {
            source_port: from.port(),
            destination_port: to.port(),
            sequence: 1,
            acknowledgment: 1,
            flags,
            window: 1,
            options: tcp::Options::default(),
        }
        .emit(&mut bytes[34..]);
        bytes
    }

    /// A loaded program with sockets for some stacks: a frame for one of the others shows as XDP_PASS.
    struct Bench {
        program: Program,
        sockets: Vec<OwnedFd>,
    }

    impl Bench {
        fn new() -> Bench {
            Bench {
                program: Program::load(1, 1024, 0x1234_5678_9abc_def0)
                    .expect("these tests load XDP programs: run them as root"),
                sockets: Vec::new(),
            }
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

        fn listen(&mut self, stacks: &[u16], changed: bool) {
            let group = Group::new(stacks, changed);
            self.program.set_listeners([(HERE, group)].into()).unwrap();
        }
    }

    #[test]
    fn only_tcp_for_a_listener_is_taken() {
        let mut bench = Bench::new();
        assert_eq!(bench.owner(&frame(peer(1), HERE, SYN)), None);
        bench.listen(&[2], false);
        assert_eq!(bench.owner(&frame(peer(1), HERE, SYN)), Some(2));
        assert_eq!(bench.owner(&frame(peer(9), HERE, ACK)), Some(2));
        let other_port = SocketAddrV4::new(*HERE.ip(), 81);
        let other_address = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 3), 80);
        assert_eq!(bench.owner(&frame(peer(1), other_port, SYN)), None);
        assert_eq!(bench.owner(&frame(peer(1), other_address, SYN)), None);

        let whole = frame(peer(1), HERE, ACK);
        bench.serve(&[2]);
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
        for length in 14..whole.len() {
            assert_eq!(bench.program.test_run(&whole[..length]), XDP_PASS, "cut to {length}");
        }
        assert!(bench.program.counters().unwrap().passed_fragment >= 2);
    }

    #[test]
    fn ip_options_are_skipped() {
        let mut bench = Bench::new();
        bench.listen(&[1], false);
        let mut bytes = frame(peer(1), HERE, SYN);
        bytes.splice(34..34, [1, 1, 1, 0]);
        bytes[14] = 0x46;
        assert_eq!(bench.owner(&bytes), Some(1));
    }

    #[test]
    fn connections_stay_with_their_stack_when_the_group_changes() {
        let mut bench = Bench::new();
        bench.listen(&[0], false);
        for port in 0..50 {
            assert_eq!(bench.owner(&frame(peer(port), HERE, SYN)), Some(0));
        }
        bench.listen(&[0, 1, 2], true);
        let mut chosen = [0; 4];
        for port in 0..50 {
            assert_eq!(bench.owner(&frame(peer(port), HERE, ACK)), Some(0), "{port}");
            let new = bench.owner(&frame(peer(1000 + port), HERE, SYN)).unwrap();
            assert_eq!(bench.owner(&frame(peer(1000 + port), HERE, ACK)), Some(new));
            chosen[usize::from(new)] += 1;
        }
        assert!(chosen[0] > 3 && chosen[1] > 3 && chosen[2] > 3, "{chosen:?}");
        // Stack 0 stops accepting: it keeps what it has, but not a new connection with an old tuple.
        bench.listen(&[1, 2], true);
        for port in 0..50 {
            assert_eq!(bench.owner(&frame(peer(port), HERE, ACK)), Some(0));
        }
        let moved = bench.owner(&frame(peer(7), HERE, SYN)).unwrap();
        assert_ne!(moved, 0);
        assert_eq!(bench.owner(&frame(peer(7), HERE, ACK)), Some(moved));
        // Nobody accepts any more: connections go on, everything else is the kernel's.
        bench.listen(&[], true);
        assert_eq!(bench.owner(&frame(peer(8), HERE, ACK)), Some(0));
        assert_eq!(bench.owner(&frame(peer(4000), HERE, SYN)), None);
        assert_eq!(bench.owner(&frame(peer(4000), HERE, ACK)), None);
    }

    #[test]
    fn connections_and_claims_have_their_stacks() {
        let mut bench = Bench::new();
        let local = SocketAddrV4::new(*HERE.ip(), 40000);
        let flow = FlowKey::new(local, peer(80));
        bench.program.add_connection(flow, 3).unwrap();
        assert_eq!(bench.owner(&frame(peer(80), local, ACK)), Some(3));
        assert_eq!(bench.owner(&frame(peer(81), local, ACK)), None);
        bench.program.remove_connection(flow).unwrap();
        assert_eq!(bench.owner(&frame(peer(80), local, ACK)), None);

        let claim = Claim { port_low: 1000, port_high: 1999, first: 1, count: 2 };
        bench.program.set_claim(*HERE.ip(), Some(claim), 1).unwrap();
        for port in [999, 1000, 1001, 1999, 2000] {
            let to = SocketAddrV4::new(*HERE.ip(), port);
            let expected = (1000..2000).contains(&port).then_some(1 + port % 2);
            assert_eq!(bench.owner(&frame(peer(80), to, ACK)), expected, "{port}");
        }
        bench.program.set_claim(*HERE.ip(), None, 0).unwrap();
        assert_eq!(bench.owner(&frame(peer(80), SocketAddrV4::new(*HERE.ip(), 1000), ACK)), None);
    }
}

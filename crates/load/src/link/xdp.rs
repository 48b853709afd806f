//! Connections over AF_XDP: one stack a thread, all behind one XDP program.
//!
//! The program is told a range of local ports; a frame goes to stack `port % threads`, so each
//! thread connects from the ports that lead back to it and nobody is told of connections.

mod listening;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use overfly_engine::{Config, Engine};
use overfly_link::Link;
use overfly_link::xdp::XdpLink;
use overfly_steer::{Attachment, Interface, Options, Protocol, ReceiveOffload};

use super::sources::Sources;
use super::{AnyLink, AnyStack, Hops, Ports, Stack, boot_key, uptime_ns};
use crate::error::Error;
pub(crate) use listening::{Listening, listen};

/// Frames to receive into for each connection, before the ring is as large as it gets.
const FRAMES_A_CONNECTION: u32 = 8;

/// How long the queues of a program that has ended may take to be free.
const QUEUE_WAIT: Duration = Duration::from_secs(2);

/// What active opens over the link need.
pub(crate) struct Wanted<'a> {
    /// At least one; all of them behind one interface.
    pub(crate) servers: &'a [SocketAddr],
    /// The URL, for what is to be said of it.
    pub(crate) url: &'a str,
    /// `None`: the one that the route to the server names.
    pub(crate) interface: Option<&'a str>,
    pub(crate) receive_offload: ReceiveOffload,
    pub(crate) threads: usize,
    /// Most connections of a thread.
    pub(crate) connections: usize,
    /// Where the threads run; empty: anywhere.
    pub(crate) cpus: &'a [usize],
    /// Local ports to claim, for all threads.
    pub(crate) ports: RangeInclusive<u16>,
    /// Local addresses to claim them on; `None`: the one on the way to the server.
    pub(crate) sources: Option<&'a Sources>,
    /// What comes to the ports of.
    pub(crate) protocols: &'a [Protocol],
    /// What the stacks are to be otherwise.
    pub(crate) configure: &'a dyn Fn(Config) -> Config,
}

impl Wanted<'_> {
    /// The local addresses, `own` where none are named.
    fn sources_or(&self, own: IpAddr) -> Result<Vec<IpAddr>, Error> {
        let Some(sources) = self.sources else { return Ok(vec![own]) };
        sources.check_local()?;
        Ok(sources.addresses().collect())
    }
}

/// One stack a thread, and what must outlive them: the program goes with it.
pub(crate) fn open(wanted: &Wanted<'_>) -> Result<(Vec<AnyStack>, Attachment), Error> {
    let first = wanted.servers[0];
    let scope = if let SocketAddr::V6(server) = first { server.scope_id() } else { 0 };
    let server = first.ip().to_canonical();
    if wanted.servers.iter().any(|server| server.ip().to_canonical().is_loopback()) {
        return Err(Error::usage(
            "URL",
            wanted.url,
            "a server on another machine or namespace with --link xdp; or --link kernel",
        ));
    }
    let name = match wanted.interface {
        Some(name) => name.to_string(),
        None => interface_to(server, scope).ok_or_else(|| {
            Error::machine(format!("no interface on the way to {server}"), "name one with --interface")
        })?,
    };
    let threads = wanted.threads as u16;
    let share = wanted.connections as u32;
    let rx_ring = (share * FRAMES_A_CONNECTION).next_power_of_two().clamp(512, 8192);
    let options = Options {
        // For cards with zero-copy only; on veth the kernel's threads receive where ours run.
        busy_poll: false,
        stacks: threads,
        rx_ring,
        rx_frames: 2 * rx_ring * u32::from(threads),
        receive_offload: wanted.receive_offload,
        ..Options::default()
    };
    let refused = |error: overfly_steer::Error| match error {
        overfly_steer::Error::NoInterface { .. } => no_interface(&name),
        error => Error::machine(format!("--link xdp on {name}"), error),
    };
    let mut attachment = attach(&name, options).map_err(refused)?;
    let route = attachment.route(server).map_err(refused)?;
    let hop = |server: &SocketAddr| {
        let server = server.ip().to_canonical();
        Ok((server, attachment.route(server).map_err(refused)?.next_hop))
    };
    let hops = wanted.servers.iter().map(hop).collect::<Result<Vec<_>, Error>>()?;
    let mut links = Vec::new();
    let mut first = None;
    for index in 0..threads {
        let sockets = attachment.add_stack().map_err(refused)?;
        let first = *first.get_or_insert(sockets.stack);
        if sockets.stack != first + index {
            return Err(Error::machine(
                format!("--link xdp on {name}"),
                "its stacks are not numbered in a row: this is a fault of overfly",
            ));
        }
        links.push(XdpLink::open(sockets).map_err(|error| refused(error.into()))?);
    }
    receive_beside(&mut attachment, wanted.cpus, links.iter_mut());
    let sources = wanted.sources_or(route.source)?;
    for source in &sources {
        for protocol in wanted.protocols {
            attachment
                .claim_ports(*protocol, *source, wanted.ports.clone(), first.unwrap_or(0), threads)
                .map_err(refused)?;
        }
    }

    let epoch_ns = uptime_ns();
    let interface = attachment.interface();
    let watched = Hops::watch(interface.index, hops.clone());
    let stack = |(index, wire): (usize, XdpLink)| {
        let ports = Ports::of_shard(&wanted.ports, index, wanted.threads);
        let pairs = ports.len() * sources.len() * hops.len();
        // Those that wind down, or are in TIME-WAIT, need a control block too.
        let flows = pairs.min(2 * wanted.connections + 65_536) as u32;
        let config =
            Config { max_flows: flows, max_time_wait: flows, ..config_of(interface, &wire, route.source) };
        let mut engine = Engine::new((wanted.configure)(config))
            .map_err(|error| Error::machine(format!("the stack of {name}"), error))?;
        for (server, next_hop) in &hops {
            engine.set_neighbor(*server, *next_hop);
        }
        let (wire, hops) = (AnyLink::Xdp(wire), watched.clone());
        Ok(Stack { engine, wire, local: route.source, ports, epoch_ns, hops })
    };
    let stacks = links.into_iter().enumerate().map(stack).collect::<Result<_, Error>>()?;
    Ok((stacks, attachment))
}

/// Whoever named it is told how to find those that there are.
fn no_interface(name: &str) -> Error {
    Error::usage("--interface", name, "an interface of this network namespace: `ip link` lists them")
}

/// Attaches, and waits for the sockets of a program that has just ended: the kernel frees their
/// queues a little later (xp_release_deferred in net/xdp/xsk_buff_pool.c).
fn attach(name: &str, options: Options) -> Result<Attachment, overfly_steer::Error> {
    use overfly_link::Error::QueueTaken;
    let begin = Instant::now();
    loop {
        match Attachment::attach(name, options) {
            Err(overfly_steer::Error::Link(QueueTaken { .. })) if begin.elapsed() < QUEUE_WAIT => {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}

/// The server under test pays for what it sends, not for what its clients receive: where it can be chosen, that is done on
/// the processors of the generator's own threads.
fn receive_beside<'a>(
    attachment: &mut Attachment,
    cpus: &[usize],
    links: impl Iterator<Item = &'a mut XdpLink>,
) {
    if attachment.receive_on(cpus) {
        links.for_each(XdpLink::share_processor);
    }
}

/// The defaults for a stack at one address.
fn config_of(interface: &Interface, wire: &XdpLink, source: IpAddr) -> Config {
    let config = match source {
        IpAddr::V4(source) => Config::new(interface.mac, source, 32),
        IpAddr::V6(source) => {
            let none = Config::new(interface.mac, Ipv4Addr::UNSPECIFIED, 32);
            Config { address6: Some(source), prefix6_len: 128, ..none }
        }
    };
    Config {
        mtu: interface.mtu,
        partial_checksums: interface.partial_checksums,
        segment_offload: wire.segment_offload(),
        checksum_offload: wire.checksum_offload(),
        hash_key: boot_key(),
        ..config
    }
}

/// The device of the most specific route in the kernel's main table, of those the least metric. A
/// link-local address is behind the device that its `scope` numbers.
fn interface_to(destination: IpAddr, scope: u32) -> Option<String> {
    match destination {
        IpAddr::V4(destination) => {
            most_specific(&std::fs::read_to_string("/proc/net/route").ok()?, destination)
        }
        IpAddr::V6(destination) if destination.is_unicast_link_local() && scope != 0 => {
            let devices = std::fs::read_dir("/sys/class/net").ok()?;
            let names = devices.flatten().filter_map(|device| device.file_name().into_string().ok());
            let index = |name: &str| {
                std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).ok()?.trim().parse().ok()
            };
            names.into_iter().find(|name| index(name) == Some(scope))
        }
        IpAddr::V6(destination) => {
            most_specific_v6(&std::fs::read_to_string("/proc/net/ipv6_route").ok()?, destination)
        }
    }
}

/// As [`most_specific`], of `/proc/net/ipv6_route` (rt6_info_route() in net/ipv6/route.c): destination, prefix
/// length, source, its prefix length, next hop, metric, reference count, use, flags, device, all hexadecimal.
fn most_specific_v6(table: &str, destination: Ipv6Addr) -> Option<String> {
    const UP: u32 = 1;
    const REJECT: u32 = 0x200;
    let mut found: Option<((u32, u32), &str)> = None;
    for line in table.lines() {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let hexadecimal = |index: usize| u32::from_str_radix(fields.get(index)?, 16).ok();
        let network = fields.first().and_then(|network| u128::from_str_radix(network, 16).ok());
        let (Some(network), Some(length), Some(metric), Some(flags), Some(device)) =
            (network, hexadecimal(1), hexadecimal(5), hexadecimal(8), fields.get(9))
        else {
            continue;
        };
        let mask = u128::MAX.checked_shl(128_u32.saturating_sub(length)).unwrap_or(0);
        let rank = (length, u32::MAX - metric);
        let fits = flags & UP != 0 && flags & REJECT == 0 && destination.to_bits() & mask == network & mask;
        if fits && found.is_none_or(|(best, _)| rank > best) {
            found = Some((rank, device));
        }
    }
    found.map(|(_, name)| name.to_string())
}

/// As [`interface_to`], of `/proc/net/route`: addresses are hexadecimal, in the machine's byte order.
fn most_specific(table: &str, destination: Ipv4Addr) -> Option<String> {
    const UP: u32 = 1;
    let address = u32::from_ne_bytes(destination.octets());
    let mut found: Option<((u32, u32), &str)> = None;
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let hexadecimal = |index: usize| u32::from_str_radix(fields.get(index)?, 16).ok();
        let (Some(network), Some(flags), Some(mask)) = (hexadecimal(1), hexadecimal(3), hexadecimal(7))
        else {
            continue;
        };
        let metric = fields.get(6).and_then(|metric| metric.parse().ok()).unwrap_or(0);
        let rank = (mask.count_ones(), u32::MAX - metric);
        let fits = flags & UP != 0 && address & mask == network;
        if fits && found.is_none_or(|(best, _)| rank > best) {
            found = Some((rank, fields[0]));
        }
    }
    found.map(|(_, name)| name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interface_of_the_most_specific_ipv6_route() {
        let zeros = "0".repeat(32);
        let table = format!(
            "{zeros} 00 {zeros} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0\n\
             fd770000000000000000000000000000 40 {zeros} 00 {zeros} 00000100 00000001 00000000 00000001     eth1\n\
             fd770000000000000000000000000000 40 {zeros} 00 {zeros} 00000200 00000001 00000000 00000001     eth2\n\
             {zeros} 00 {zeros} 00 {zeros} ffffffff 00000001 00000000 00200200       lo\n\
             nonsense\n"
        );
        let to = |address: &str| most_specific_v6(&table, address.parse().unwrap());
        assert_eq!(to("fd77::1").as_deref(), Some("eth1"));
        assert_eq!(to("fd78::1").as_deref(), Some("eth0"));
        assert_eq!(most_specific_v6("", Ipv6Addr::LOCALHOST), None);
    }

    #[test]
    fn the_interface_of_the_most_specific_route() {
        let table = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
            eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
            wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n\
            eth1\t00004D0A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n\
            down\t00004D0A\t00000000\t0000\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        if cfg!(target_endian = "little") {
            let to = |address: [u8; 4]| most_specific(table, address.into());
            assert_eq!(to([10, 77, 0, 1]).as_deref(), Some("eth1"));
            assert_eq!(to([10, 78, 0, 1]).as_deref(), Some("eth0"));
        }
        assert_eq!(most_specific("Iface\nnonsense\n", Ipv4Addr::LOCALHOST), None);
    }
}

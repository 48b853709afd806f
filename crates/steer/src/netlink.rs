//! Just enough of rtnetlink: links, addresses, routes, neighbours. Synchronous, one request at a time. For generic netlink
//! the messages only.
//!
//! Sources: include/uapi/linux/{netlink,genetlink,rtnetlink,if_link,if_addr,neighbour}.h. Numbers are in the machine's byte order.

mod link;
mod neighbors;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with,
};

pub(crate) use link::Link;
use link::parse_link;
pub(crate) use neighbors::Asks;
use neighbors::parse_neighbor;

use crate::mirror::{
    Neighbor, Prefix, RT_TABLE_DEFAULT, RT_TABLE_LOCAL, RT_TABLE_MAIN, RouteLine, Tables, Way,
};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const RTM_NEWRULE: u16 = 32;
const RTM_GETRULE: u16 = 34;
/// Multicast groups, as masks: links, neighbours, addresses, routes and rules.
const RTMGRP_LINK: u32 = 1;
const RTMGRP_NEIGH: u32 = 4;
const RTMGRP_IPV4_IFADDR: u32 = 0x10;
const RTMGRP_IPV4_ROUTE: u32 = 0x40;
const RTMGRP_IPV4_RULE: u32 = 0x80;
const RTMGRP_IPV6_IFADDR: u32 = 0x100;
const RTMGRP_IPV6_ROUTE: u32 = 0x400;
/// `1 << (RTNLGRP_IPV6_RULE - 1)`, which has no name of its own.
const RTMGRP_IPV6_RULE: u32 = 0x4_0000;
/// `NFNLGRP_NFTABLES` (include/uapi/linux/netfilter/nfnetlink.h), as a mask.
const NFNL_TABLES: u32 = 1 << (7 - 1);
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_MACVLAN_MODE: u16 = 1;
const MACVLAN_MODE_PRIVATE: u32 = 1;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;
const IFLA_NET_NS_FD: u16 = 28;
const IFF_UP: u32 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
/// Not (yet) ours: duplicate address detection found another's, or has not ended.
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const RTA_VIA: u16 = 18;
const RTA_PRIORITY: u16 = 6;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const RTA_ENCAP: u16 = 22;
const RTA_NH_ID: u16 = 30;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const RTN_BROADCAST: u8 = 3;
const RTN_ANYCAST: u8 = 4;
const RTN_MULTICAST: u8 = 5;
/// A clone of a route for one destination, and no route.
const RTM_F_CLONED: u32 = 0x200;
/// The next hop cannot be used, or might not.
const RTNH_F_DEAD: u32 = 1;
const RTNH_F_LINKDOWN: u32 = 16;
const FR_ACT_TO_TBL: u8 = 1;
const FRA_PRIORITY: u16 = 6;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_PROTOCOL: u16 = 21;
/// Where the kernel would send a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RouteEntry {
    pub(crate) interface: u32,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) source: Option<IpAddr>,
    /// The destination is this machine.
    pub(crate) local: bool,
    /// One host, as opposed to broadcast, multicast, or a route that says no.
    pub(crate) unicast: bool,
}

/// A socket that asks the kernel.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
    /// What the last dump told changed meanwhile.
    interrupted: bool,
}

impl Netlink {
    /// All objects are asked for: the kernel answers with many messages and one that says that these were all.
    pub(crate) const DUMP: u16 = NLM_F_DUMP;
    /// The kernel says whether it did what was asked.
    pub(crate) const ACKNOWLEDGE: u16 = NLM_F_ACK;

    pub(crate) fn open() -> Result<Netlink, Errno> {
        Netlink::over(netlink_socket(None, 0)?)
    }

    /// For families of generic netlink.
    pub(crate) fn open_generic() -> Result<Netlink, Errno> {
        Netlink::over(netlink_socket(Some(rustix::net::netlink::GENERIC), 0)?)
    }

    /// For the subsystems of netfilter.
    pub(crate) fn open_netfilter() -> Result<Netlink, Errno> {
        Netlink::over(netlink_socket(Some(rustix::net::netlink::NETFILTER), 0)?)
    }

    /// Whether what the last dump told changed while it was told: it must be asked for again.
    pub(crate) fn was_interrupted(&self) -> bool {
        self.interrupted
    }

    /// For questions about sockets.
    pub(crate) fn open_sock_diag() -> Result<Netlink, Errno> {
        Netlink::over(netlink_socket(Some(rustix::net::netlink::SOCK_DIAG), 0)?)
    }

    fn over(socket: OwnedFd) -> Result<Netlink, Errno> {
        set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(2)))?;
        Ok(Netlink { socket, sequence: 0, buffer: vec![0; 65536], interrupted: false })
    }

    /// The interface of that name, `None` if there is none.
    pub(crate) fn link(&mut self, name: &str) -> Result<Option<Link>, Errno> {
        let mut request = Request::new(RTM_GETLINK, 0, &[0; 16]);
        request.attribute(IFLA_IFNAME, &[name.as_bytes(), &[0]].concat());
        self.link_asked_for(request)
    }

    /// The interface of that number.
    pub(crate) fn link_at(&mut self, index: u32) -> Result<Option<Link>, Errno> {
        let mut header = [0; 16];
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        self.link_asked_for(Request::new(RTM_GETLINK, 0, &header))
    }

    fn link_asked_for(&mut self, request: Request) -> Result<Option<Link>, Errno> {
        let mut found = None;
        let result = self.exchange(request, |kind, body| {
            if kind == RTM_NEWLINK {
                found = parse_link(body).or(found.take());
            }
        });
        match result {
            Err(Errno::NODEV | Errno::RANGE | Errno::INVAL) => Ok(None),
            other => other.map(|()| found),
        }
    }

    /// Addresses of an interface with their prefix lengths: IPv4 before IPv6, each in the kernel's order (IPv4's primary one
    /// first). Without IPv6 addresses that duplicate address detection (RFC 4862 section 5.4) has not let pass.
    pub(crate) fn addresses(&mut self, interface: u32) -> Result<Vec<(IpAddr, u8)>, Errno> {
        let mut found = Vec::new();
        self.each_address(|index, address, prefix| {
            if index == interface {
                found.push((address, prefix));
            }
        })?;
        Ok(found)
    }

    /// The interface that has the address, if the kernel has it at all.
    pub(crate) fn holder(&mut self, address: IpAddr) -> Result<Option<u32>, Errno> {
        let mut holder = None;
        self.each_address(|index, its, _| {
            if its == address {
                holder = Some(index);
            }
        })?;
        Ok(holder)
    }

    fn each_address(&mut self, mut each: impl FnMut(u32, IpAddr, u8)) -> Result<(), Errno> {
        for family in [AF_INET, AF_INET6] {
            let request = Request::new(RTM_GETADDR, NLM_F_DUMP, &[family, 0, 0, 0, 0, 0, 0, 0]);
            self.exchange(request, |kind, body| {
                // Without IPv6 in the kernel the answer is that of all families.
                if kind == RTM_NEWADDR
                    && body.first() == Some(&family)
                    && let Some((index, address, prefix)) = parse_address(body)
                {
                    each(index, address, prefix);
                }
            })?;
        }
        Ok(())
    }

    /// The kernel's route to an address. A link-local one is behind `interface`.
    pub(crate) fn route(&mut self, destination: IpAddr, interface: u32) -> Result<RouteEntry, Errno> {
        let (family, bytes) = family_and_bytes(destination);
        let bits = bytes.len() as u8 * 8;
        let mut request = Request::new(RTM_GETROUTE, 0, &[family, bits, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        request.attribute(RTA_DST, &bytes);
        if matches!(destination, IpAddr::V6(address) if address.is_unicast_link_local()) {
            request.attribute(RTA_OIF, &interface.to_ne_bytes());
        }
        let mut found = None;
        self.exchange(request, |kind, body| {
            if kind == RTM_NEWROUTE {
                found = parse_route(body);
            }
        })?;
        found.ok_or(Errno::HOSTUNREACH)
    }

    /// All routes of the namespace, and whether rules other than the kernel's own choose among them.
    pub(crate) fn tables(&mut self) -> Result<Tables, Errno> {
        let mut tables = Tables::default();
        for (place, family) in [AF_INET, AF_INET6].into_iter().enumerate() {
            let mut rules = Vec::new();
            let header = [family, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            let asked = self.exchange(Request::new(RTM_GETRULE, NLM_F_DUMP, &header), |kind, body| {
                if kind == RTM_NEWRULE && body.first() == Some(&family) {
                    rules.push(parse_rule(body));
                }
            });
            match asked {
                Ok(()) => tables.ruled[place] = !are_the_kernels_own(&rules),
                // A kernel without rules has no others.
                Err(Errno::OPNOTSUPP | Errno::AFNOSUPPORT) => {}
                Err(errno) => return Err(errno),
            }
            let request = Request::new(RTM_GETROUTE, NLM_F_DUMP, &header);
            self.exchange(request, |kind, body| {
                if kind == RTM_NEWROUTE && body.first() == Some(&family) {
                    tables.routes.extend(parse_route_line(body));
                }
            })?;
        }
        Ok(tables)
    }

    /// Makes a macvlan of an interface in another network namespace. In private mode it has no way to others of the same interface.
    pub(crate) fn add_macvlan(
        &mut self,
        interface: u32,
        name: &str,
        namespace: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        let mut request = Request::new(RTM_NEWLINK, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, &[0; 16]);
        request.attribute(IFLA_LINK, &interface.to_ne_bytes());
        request.attribute(IFLA_IFNAME, &[name.as_bytes(), &[0]].concat());
        request.attribute(IFLA_NET_NS_FD, &namespace.as_raw_fd().to_ne_bytes());
        let mode = attribute(IFLA_MACVLAN_MODE, &MACVLAN_MODE_PRIVATE.to_ne_bytes());
        let kind = attribute(IFLA_INFO_KIND, b"macvlan\0");
        request.attribute(IFLA_LINKINFO, &[kind, attribute(IFLA_INFO_DATA, &mode)].concat());
        self.exchange(request, |_, _| ())
    }

    /// The kernel gives the interface no IPv6 address, and so has nothing to say on it.
    pub(crate) fn keep_silent(&mut self, interface: u32) -> Result<(), Errno> {
        let mut request = Request::new(RTM_NEWLINK, NLM_F_ACK, &link_header(interface, 0));
        let mode = attribute(IFLA_INET6_ADDR_GEN_MODE, &[IN6_ADDR_GEN_MODE_NONE]);
        request.attribute(IFLA_AF_SPEC, &attribute(u16::from(AF_INET6), &mode));
        match self.exchange(request, |_, _| ()) {
            // A kernel without IPv6.
            Err(Errno::AFNOSUPPORT) => Ok(()),
            result => result,
        }
    }

    /// Sets an interface up.
    pub(crate) fn set_up(&mut self, interface: u32) -> Result<(), Errno> {
        let request = Request::new(RTM_NEWLINK, NLM_F_ACK, &link_header(interface, IFF_UP));
        self.exchange(request, |_, _| ())
    }

    /// Sends a request and hands every message of the answer to `each`.
    pub(crate) fn exchange(
        &mut self,
        mut request: Request,
        mut each: impl FnMut(u16, &[u8]),
    ) -> Result<(), Errno> {
        self.sequence = self.sequence.wrapping_add(1);
        let dump = request.flags & NLM_F_DUMP == NLM_F_DUMP;
        let bytes = request.finish(self.sequence);
        self.interrupted = false;
        sendto(&self.socket, &bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        loop {
            let (length, _) = recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty())?;
            for message in messages(&self.buffer[..length]) {
                if message.sequence != self.sequence {
                    continue; // the late answer to a request that timed out
                }
                self.interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
                match message.kind {
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => {
                        let code = i32::from_ne_bytes(array(message.body, 0).ok_or(Errno::BADMSG)?);
                        return if code == 0 {
                            Ok(())
                        } else {
                            Err(Errno::from_raw_os_error(code.wrapping_neg()))
                        };
                    }
                    kind => each(kind, message.body),
                }
                if !dump {
                    return Ok(());
                }
            }
        }
    }
}

/// What has changed in the namespace.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Links, addresses, routes or rules; or something that was not heard.
    pub(crate) others: bool,
    /// The last word on each neighbour of any interface comes last.
    pub(crate) neighbors: Vec<Neighbor>,
}

/// Says when links, addresses, routes, rules or neighbours of the namespace change.
#[derive(Debug)]
pub(crate) struct Monitor(OwnedFd);

impl Monitor {
    pub(crate) fn open() -> Result<Monitor, Errno> {
        let groups = RTMGRP_LINK
            | RTMGRP_NEIGH
            | RTMGRP_IPV4_IFADDR
            | RTMGRP_IPV4_ROUTE
            | RTMGRP_IPV4_RULE
            | RTMGRP_IPV6_IFADDR
            | RTMGRP_IPV6_ROUTE
            | RTMGRP_IPV6_RULE;
        netlink_socket(None, groups).map(Monitor)
    }

    /// Of nf_tables' rules.
    pub(crate) fn of_rules() -> Result<Monitor, Errno> {
        netlink_socket(Some(rustix::net::netlink::NETFILTER), NFNL_TABLES).map(Monitor)
    }

    /// Reads what has arrived. What was lost counts as a change of everything.
    pub(crate) fn changes(&self) -> Changes {
        let mut buffer = [0; 16384];
        let mut changes = Changes::default();
        loop {
            match recv(&self.0, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((length, _)) => {
                    for message in messages(&buffer[..length.min(16384)]) {
                        match message.kind {
                            RTM_NEWNEIGH => changes.neighbors.extend(parse_neighbor(message.body)),
                            RTM_DELNEIGH => {
                                let gone = parse_neighbor(message.body);
                                changes.neighbors.extend(gone.map(|gone| Neighbor { mac: None, ..gone }));
                            }
                            _ => changes.others = true,
                        }
                    }
                }
                Err(Errno::NOBUFS) => changes.others = true,
                Err(Errno::INTR) => {}
                Err(_) => return changes,
            }
        }
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Without a protocol (0) it is rtnetlink's.
fn netlink_socket(protocol: Option<Protocol>, groups: u32) -> Result<OwnedFd, Errno> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// A message under construction.
pub(crate) struct Request {
    kind: u16,
    flags: u16,
    bytes: Vec<u8>,
}

impl Request {
    pub(crate) fn new(kind: u16, flags: u16, header: &[u8]) -> Request {
        let mut bytes = vec![0; 16];
        bytes.extend_from_slice(header);
        Request { kind, flags, bytes }
    }

    /// For a family of generic netlink (`struct genlmsghdr`): its number, and what it is to do.
    pub(crate) fn generic(family: u16, flags: u16, command: u8) -> Request {
        const VERSION: u8 = 1;
        Request::new(family, flags, &[command, VERSION, 0, 0])
    }

    /// For a subsystem of netfilter's (`struct nfgenmsg`): a message of a family's objects, whose version is 0.
    pub(crate) fn netfilter(kind: u16, flags: u16, family: u8) -> Request {
        Request::new(kind, flags, &[family, 0, 0, 0])
    }

    pub(crate) fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.bytes.extend(attribute(kind, value));
    }

    fn finish(&mut self, sequence: u32) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.bytes);
        let length = u32::try_from(bytes.len()).expect("requests here are short");
        bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(self.flags | NLM_F_REQUEST).to_ne_bytes());
        bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        bytes
    }
}

/// `struct rtattr` with its value. Others can be a value, too.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len() + 4).expect("attributes here are short");
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// `struct ifinfomsg`: of an interface, with flags to be set.
fn link_header(interface: u32, flags: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&interface.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&flags.to_ne_bytes());
    header
}

fn family_and_bytes(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(address) => (AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (AF_INET6, address.octets().to_vec()),
    }
}

struct Message<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    body: &'a [u8],
}

/// The messages in one datagram; stops at the first that is cut off.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(array(bytes, 0)?) as usize;
        let message = Message {
            kind: u16::from_ne_bytes(array(bytes, 4)?),
            flags: u16::from_ne_bytes(array(bytes, 6)?),
            sequence: u32::from_ne_bytes(array(bytes, 8)?),
            body: bytes.get(16..length)?,
        };
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// The attributes in a message; stops at the first that is cut off.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(array(bytes, 0)?));
        let kind = u16::from_ne_bytes(array(bytes, 2)?) & 0x3fff; // without NLA_F_NESTED, NLA_F_NET_BYTEORDER
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

pub(crate) fn number(value: &[u8]) -> Option<u32> {
    array(value, 0).map(u32::from_ne_bytes)
}

/// The length says of which family it is.
fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => array::<4>(value, 0).map(|bytes| Ipv4Addr::from(bytes).into()),
        16 => array::<16>(value, 0).map(|bytes| Ipv6Addr::from(bytes).into()),
        _ => None,
    }
}

fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

/// `None` also for an address that may not be used.
fn parse_address(body: &[u8]) -> Option<(u32, IpAddr, u8)> {
    let prefix = *body.get(1)?;
    let index = u32::from_ne_bytes(array(body, 4)?);
    let (mut local, mut remote, mut flags) = (None, None, u32::from(*body.get(2)?));
    for (kind, value) in attributes(body.get(8..)?) {
        match kind {
            // The other end's, if there is a local one beside it (include/uapi/linux/if_addr.h).
            IFA_ADDRESS => remote = address(value),
            IFA_LOCAL => local = address(value),
            IFA_FLAGS => flags = number(value)?,
            _ => {}
        }
    }
    (flags & (IFA_F_DADFAILED | IFA_F_TENTATIVE) == 0).then_some((index, local.or(remote)?, prefix))
}

fn parse_route(body: &[u8]) -> Option<RouteEntry> {
    let kind = *body.get(7)?;
    let mut entry = RouteEntry {
        interface: 0,
        gateway: None,
        source: None,
        local: kind == RTN_LOCAL,
        unicast: kind == RTN_UNICAST,
    };
    for (kind, value) in attributes(body.get(12..)?) {
        match kind {
            RTA_OIF => entry.interface = number(value)?,
            RTA_GATEWAY => entry.gateway = address(value),
            // A gateway of the other family, after two bytes that say which (RFC 5549 routes).
            RTA_VIA => entry.gateway = value.get(2..).and_then(address),
            RTA_PREFSRC => entry.source = address(value),
            _ => {}
        }
    }
    Some(entry)
}

/// As the kernel lists routes. `None` for what is none.
fn parse_route_line(body: &[u8]) -> Option<RouteLine> {
    let [family, len, source_len, tos, table, _, _, kind] = array(body, 0)?;
    let flags = u32::from_ne_bytes(array(body, 8)?);
    if flags & RTM_F_CLONED != 0 {
        return None;
    }
    let any: IpAddr =
        if family == AF_INET { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let (mut to, mut gateway, mut table) = (any, None, u32::from(table));
    let (mut interface, mut metric) = (0, 0);
    let mut is_plain = source_len == 0 && tos == 0 && flags & (RTNH_F_DEAD | RTNH_F_LINKDOWN) == 0;
    for (kind, value) in attributes(body.get(12..)?) {
        match kind {
            RTA_DST => to = address(value)?,
            RTA_OIF => interface = number(value)?,
            RTA_GATEWAY => gateway = address(value),
            RTA_VIA => gateway = value.get(2..).and_then(address),
            RTA_TABLE => table = number(value)?,
            RTA_PRIORITY => metric = number(value)?,
            RTA_MULTIPATH | RTA_ENCAP | RTA_NH_ID => is_plain = false,
            _ => {}
        }
    }
    let way = match kind {
        RTN_LOCAL => Way::Own,
        RTN_BROADCAST | RTN_ANYCAST | RTN_MULTICAST => Way::Martian,
        RTN_UNICAST if is_plain && interface != 0 => gateway.map_or(Way::Direct, Way::Gateway),
        _ => Way::Kernels,
    };
    Some(RouteLine { table, to: Prefix::new(to, len), way, interface, metric })
}

/// Its priority and table, if it sends everything to that table.
fn parse_rule(body: &[u8]) -> Option<(u32, u32)> {
    let [_, destination_len, source_len, tos, table, _, _, action] = array(body, 0)?;
    let flags = u32::from_ne_bytes(array(body, 8)?);
    let (mut priority, mut table) = (0, u32::from(table));
    for (kind, value) in attributes(body.get(12..)?) {
        match kind {
            FRA_PRIORITY => priority = number(value)?,
            FRA_TABLE => table = number(value)?,
            FRA_PROTOCOL => {}
            FRA_SUPPRESS_PREFIXLEN if number(value) == Some(u32::MAX) => {}
            _ => return None,
        }
    }
    let is_plain = destination_len == 0 && source_len == 0 && tos == 0 && flags == 0;
    (is_plain && action == FR_ACT_TO_TBL).then_some((priority, table))
}

/// Those that every namespace begins with: local, main, and IPv4's default (net/ipv4/fib_rules.c, net/ipv6/fib6_rules.c).
fn are_the_kernels_own(rules: &[Option<(u32, u32)>]) -> bool {
    let own = [(0, RT_TABLE_LOCAL), (32766, RT_TABLE_MAIN), (32767, RT_TABLE_DEFAULT)];
    let is_own = |rule: &Option<(u32, u32)>| rule.is_some_and(|rule| own.contains(&rule));
    rules.iter().all(is_own) && own[..2].iter().all(|&rule| rules.contains(&Some(rule)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_off_messages_and_attributes_end_the_iteration() {
        let mut request = Request::new(RTM_GETLINK, 0, &[0; 16]);
        request.attribute(IFLA_IFNAME, b"lo\0");
        request.attribute(IFLA_MTU, &7_u32.to_ne_bytes());
        let bytes = request.finish(3);
        let all: Vec<_> = messages(&bytes).collect();
        assert_eq!((all.len(), all[0].kind, all[0].sequence), (1, RTM_GETLINK, 3));
        let found: Vec<_> = attributes(&all[0].body[16..]).collect();
        assert_eq!(found, [(IFLA_IFNAME, &b"lo\0"[..]), (IFLA_MTU, &[7, 0, 0, 0][..])]);
        for length in 0..bytes.len() {
            assert_eq!(messages(&bytes[..length]).count(), 0);
            let _ = parse_link(&bytes[..length]);
            let _ = parse_route(&bytes[..length]);
            let _ = parse_address(&bytes[..length]);
            let _ = parse_route_line(&bytes[..length]);
            let _ = parse_rule(&bytes[..length]);
            let _ = parse_neighbor(&bytes[..length]);
        }
        // A length of 0 must not loop for ever.
        assert_eq!(messages(&[0; 64]).count(), 0);
        assert_eq!(attributes(&[0; 64]).count(), 0);
    }

    #[test]
    fn rules_are_the_kernels_own_or_somebodys() {
        let own = [Some((0, 255)), Some((32766, 254)), Some((32767, 253))];
        assert!(are_the_kernels_own(&own) && are_the_kernels_own(&own[..2]));
        assert!(!are_the_kernels_own(&own[1..]), "the local table is not asked first");
        assert!(!are_the_kernels_own(&[own[0], own[1], Some((1000, 77))]));
        assert!(!are_the_kernels_own(&[own[0], own[1], None]));
    }

    #[test]
    fn loopback_is_there() {
        let mut netlink = Netlink::open().unwrap();
        let link = netlink.link("lo").unwrap().unwrap();
        assert_eq!(link.index, 1);
        assert!(netlink.link("no-such-if0").unwrap().is_none());
        assert!(netlink.link("a name that is far too long").unwrap().is_none());
    }
}

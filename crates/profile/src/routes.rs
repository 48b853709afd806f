//! What an administrator set for single routes (`ip route ... advmss 1400 initcwnd 20`), as the kernel tells it: rtnetlink(7),
//! include/uapi/linux/{netlink,rtnetlink}.h. Numbers are in the machine's byte order.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use std::os::fd::OwnedFd;

use overfly_engine::{Algorithm, Prefix, Route};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// NLM_F_REQUEST and NLM_F_DUMP.
const DUMP: u16 = 0x301;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RT_TABLE_MAIN: u8 = 254;
/// A clone of a route for one destination.
const RTM_F_CLONED: u32 = 0x200;
const RTN_UNICAST: u8 = 1;
const AF_INET: u16 = AddressFamily::INET.as_raw();
const AF_INET6: u16 = AddressFamily::INET6.as_raw();
const RTA_DST: u16 = 1;
const RTA_METRICS: u16 = 8;

/// Metrics by their numbers (RTAX_*), with ip-route(8)'s names.
const METRICS: [(u16, &str); 17] = [
    (MTU, "mtu"),
    (3, "window"),
    (4, "rtt"),
    (5, "rttvar"),
    (6, "ssthresh"),
    (7, "cwnd"),
    (ADVERTISED_SEGMENT, "advmss"),
    (9, "reordering"),
    (10, "hoplimit"),
    (INITIAL_WINDOW, "initcwnd"),
    (12, "features"),
    (13, "rto_min"),
    (INITIAL_RECEIVE_WINDOW, "initrwnd"),
    (QUICK_ACK, "quickack"),
    (CONGESTION, "congctl"),
    (17, "fastopen_no_cookie"),
    (LOCK, "lock"),
];
const LOCK: u16 = 1;
const MTU: u16 = 2;
const ADVERTISED_SEGMENT: u16 = 8;
const INITIAL_WINDOW: u16 = 11;
const INITIAL_RECEIVE_WINDOW: u16 = 14;
const QUICK_ACK: u16 = 15;
const CONGESTION: u16 = 16;
/// Those that an engine follows. A lock says that the path may not teach better, which the engine's MTU search asks nobody.
const OBEYED: [u16; 7] =
    [LOCK, MTU, ADVERTISED_SEGMENT, INITIAL_WINDOW, INITIAL_RECEIVE_WINDOW, QUICK_ACK, CONGESTION];

/// A route of the main table, and what is set for it that an engine does not follow.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Line {
    route: Route,
    has_metrics: bool,
    not_obeyed: Vec<String>,
}

/// What is set for the routes of this network namespace: none at all if nothing is set for any. More routes than an engine takes
/// are as if nothing was set.
#[must_use]
pub fn read() -> Vec<Route> {
    let lines = lines().unwrap_or_default();
    if lines.len() > MOST || lines.iter().all(|line| !line.has_metrics) {
        return Vec::new();
    }
    lines.into_iter().map(|line| line.route).collect()
}

/// Routes at most.
const MOST: usize = 4096;

/// What is set for routes and not followed, as ip(8) writes it.
#[must_use]
pub fn not_obeyed() -> Vec<String> {
    let lines = lines().unwrap_or_default();
    if lines.len() > MOST && lines.iter().any(|line| line.has_metrics) {
        return vec![format!("metrics of {} routes", lines.len())];
    }
    let named = |line: Line| {
        line.not_obeyed.into_iter().map(move |metric| format!("route {} {metric}", line.route.to))
    };
    lines.into_iter().flat_map(named).collect()
}

/// All unicast routes of the main table.
fn lines() -> Result<Vec<Line>, Errno> {
    let socket: OwnedFd =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(2)))?;
    // `struct nlmsghdr`, and `struct rtmsg` without a family: all of them.
    let mut request = [0; 28];
    request[0..4].copy_from_slice(&28_u32.to_ne_bytes());
    request[4..6].copy_from_slice(&RTM_GETROUTE.to_ne_bytes());
    request[6..8].copy_from_slice(&DUMP.to_ne_bytes());
    rustix::net::sendto(&socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut lines = Vec::new();
    let mut buffer = vec![0; 65_536];
    loop {
        let length = match rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty()) {
            Ok((length, _)) => length,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        };
        for (kind, body) in messages(buffer.get(..length).unwrap_or_default()) {
            match kind {
                NLMSG_DONE => return Ok(lines),
                NLMSG_ERROR => return Err(Errno::BADMSG),
                RTM_NEWROUTE => lines.extend(parse(body)),
                _ => {}
            }
        }
    }
}

/// The messages in one datagram: their kinds and what follows `struct nlmsghdr`.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let length = u32::from_ne_bytes(array(bytes, 0)?) as usize;
        let kind = u16::from_ne_bytes(array(bytes, 4)?);
        let body = bytes.get(16..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(array(bytes, 0)?));
        // Without NLA_F_NESTED.
        let kind = u16::from_ne_bytes(array(bytes, 2)?) & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// A route as `struct rtmsg` and its attributes tell it; `None` if it is not one of the main table's to one host.
fn parse(body: &[u8]) -> Option<Line> {
    let &[family, length, _, _, table, _, _, kind] = body.get(..8)?.first_chunk::<8>()?;
    let flags = u32::from_ne_bytes(array(body, 8)?);
    if table != RT_TABLE_MAIN || kind != RTN_UNICAST || flags & RTM_F_CLONED != 0 {
        return None;
    }
    let mut address = match u16::from(family) {
        AF_INET => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        AF_INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let mut metrics: &[u8] = &[];
    for (kind, value) in attributes(body.get(12..)?) {
        match (kind, value.len()) {
            (RTA_DST, 4) => address = IpAddr::V4(array::<4>(value, 0)?.into()),
            (RTA_DST, 16) => address = IpAddr::V6(array::<16>(value, 0)?.into()),
            (RTA_METRICS, _) => metrics = value,
            _ => {}
        }
    }
    let route = Route::new(Prefix { address, len: length });
    let mut line = Line { route, has_metrics: !metrics.is_empty(), not_obeyed: Vec::new() };
    for (kind, value) in attributes(metrics) {
        let number = array(value, 0).map_or(0, u32::from_ne_bytes);
        let route = &mut line.route;
        match kind {
            MTU => route.mtu = u16::try_from(number).unwrap_or(u16::MAX),
            ADVERTISED_SEGMENT => route.advertised_segment = u16::try_from(number).unwrap_or(u16::MAX),
            INITIAL_WINDOW => route.initial_window = number,
            INITIAL_RECEIVE_WINDOW => route.initial_receive_window = number,
            QUICK_ACK => route.quick_ack = number != 0,
            CONGESTION => {
                let name = value.split(|&byte| byte == 0).next().unwrap_or_default();
                route.congestion = Algorithm::named(name);
                if route.congestion.is_none() {
                    line.not_obeyed.push(format!("congctl {}", String::from_utf8_lossy(name)));
                }
            }
            _ if OBEYED.contains(&kind) => {}
            _ => {
                let name = METRICS.iter().find(|(its, _)| *its == kind).map_or("metric", |&(_, name)| name);
                line.not_obeyed.push(format!("{name} {number}"));
            }
        }
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_off_is_no_route() {
        let mut body = vec![2, 24, 0, 0, RT_TABLE_MAIN, 0, 0, RTN_UNICAST, 0, 0, 0, 0];
        body.extend_from_slice(&[8, 0, 1, 0, 10, 1, 2, 0]);
        // advmss 1000
        body.extend_from_slice(&[12, 0, 8, 0, 8, 0, 8, 0, 0xe8, 3, 0, 0]);
        let line = parse(&body).unwrap();
        assert_eq!(line.route.to.to_string(), "10.1.2.0/24");
        assert_eq!((line.route.advertised_segment, line.has_metrics), (1000, true));
        for length in 0..body.len() {
            // Never a panic; the last attribute may be missing.
            let cut = parse(&body[..length]);
            assert!(cut.is_none_or(|line| line.route.advertised_segment == 0));
        }
        body[4] = 255;
        assert_eq!(parse(&body), None, "the local table's");
    }
}

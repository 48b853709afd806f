//! Which socket of the kernel's has an address, as the kernel itself would find it for a frame: NETLINK_SOCK_DIAG (sock_diag(7),
//! include/uapi/linux/{sock_diag,inet_diag}.h). Nothing is changed by asking.
//!
//! One kind of socket can be ended here: what is left of a connection in TIME_WAIT.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use overfly_broker::Protocol;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket_with};

use crate::error::Error;
use crate::netlink::{Netlink, Request, attributes, number};
use crate::repair::STATE_LISTEN;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
/// `TCP_TIME_WAIT` of include/net/tcp_states.h.
const STATE_TIME_WAIT: u8 = 6;
/// Where `struct inet_diag_msg` has these, in bytes.
const STATE: usize = 1;
const PORT: usize = 4; // in network byte order
const COOKIE: usize = 44;
const USER: usize = 64;
const INODE: usize = 68;
const ATTRIBUTES: usize = 72;
/// The number of the control group in which a socket was made (`INET_DIAG_CGROUP_ID`); a kernel without groups does not say.
const CONTROL_GROUP: u16 = 21;

/// A socket that the kernel found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// include/net/tcp_states.h
    pub(crate) state: u8,
    /// Whose it is.
    pub(crate) user: u32,
    /// Its number; 0 if it is no process's any more.
    pub(crate) inode: u64,
}

/// A socket that has a port: its number, which no other will ever have (SO_COOKIE, socket(7)), and the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct There {
    pub(crate) cookie: u64,
    pub(crate) port: u16,
}

/// What asks.
#[derive(Debug)]
pub(crate) struct SocketTable {
    netlink: Netlink,
    /// Whether the kernel answers for TCP and for UDP: either is an option of its build.
    answers: [bool; 2],
}

impl SocketTable {
    /// Of this thread's network namespace.
    pub(crate) fn open() -> Result<SocketTable, Error> {
        let netlink = Netlink::open_sock_diag().map_err(|errno| Error::system("NETLINK_SOCK_DIAG", errno))?;
        let mut table = SocketTable { netlink, answers: [true; 2] };
        table.answers = [Protocol::Tcp, Protocol::Udp].map(|protocol| table.finds_own(protocol));
        Ok(table)
    }

    /// A kernel without the part that answers says the same as one that found nothing.
    fn finds_own(&mut self, protocol: Protocol) -> bool {
        let kind = if protocol == Protocol::Tcp { SocketType::STREAM } else { SocketType::DGRAM };
        let mut find = || {
            let socket = socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC, None)?;
            bind(&socket, &SocketAddr::from(([0; 4], 0)))?;
            if protocol == Protocol::Tcp {
                listen(&socket, 1)?;
            }
            let local = SocketAddr::try_from(getsockname(&socket)?)?;
            let inode = rustix::fs::fstat(&socket)?.st_ino;
            let found = self.find(protocol, local, SocketAddr::from(([0; 4], 0)), 0)?;
            Ok::<bool, Errno>(found.is_some_and(|found| found.inode == inode))
        };
        find().unwrap_or(false)
    }

    /// Whether the kernel answers for a protocol.
    pub(crate) fn answers(&self, protocol: Protocol) -> bool {
        self.answers[usize::from(protocol == Protocol::Udp)]
    }

    /// All of the namespace's sockets that listen, or with UDP have a port.
    pub(crate) fn all(&mut self, protocol: Protocol) -> Result<HashSet<There>, Errno> {
        let mut all = HashSet::new();
        self.dump(protocol, 0, |there, _| {
            all.insert(there);
        })?;
        Ok(all)
    }

    /// In which control group a socket was made that listens, or with UDP has a port: the kernel judges its packets by that one,
    /// whoever has the socket now. None if the kernel has no such groups.
    pub(crate) fn control_group(&mut self, protocol: Protocol, socket: There) -> Result<Option<u64>, Errno> {
        let mut group = None;
        self.dump(protocol, socket.port, |there, body| {
            if there == socket {
                let mut found = attributes(body.get(ATTRIBUTES..).unwrap_or_default());
                group =
                    found.find_map(|(kind, value)| (kind == CONTROL_GROUP).then(|| value.try_into().ok())?);
            }
        })?;
        Ok(group.map(u64::from_ne_bytes))
    }

    /// Shows each of the namespace's sockets that listen, or with UDP have a port, and what the kernel tells of it; only those of a
    /// port, if it is not 0.
    fn dump(
        &mut self,
        protocol: Protocol,
        port: u16,
        mut each: impl FnMut(There, &[u8]),
    ) -> Result<(), Errno> {
        let states = if protocol == Protocol::Tcp { 1_u32 << STATE_LISTEN } else { u32::MAX };
        for family in [AddressFamily::INET, AddressFamily::INET6] {
            // struct inet_diag_req_v2
            let mut request = vec![family.as_raw() as u8, protocol as u8, 0, 0];
            request.extend(states.to_ne_bytes());
            request.extend(port.to_be_bytes());
            request.extend([0; 46]);
            let request = Request::new(SOCK_DIAG_BY_FAMILY, Netlink::DUMP, &request);
            self.netlink.exchange(request, |kind, body| {
                if kind == SOCK_DIAG_BY_FAMILY
                    && let Some(&[high, low]) = body.get(PORT..PORT + 2)
                    && let (Some(first), Some(second)) =
                        (body.get(COOKIE..).and_then(number), body.get(COOKIE + 4..).and_then(number))
                {
                    let cookie = u64::from(first) | u64::from(second) << 32;
                    each(There { cookie, port: u16::from_be_bytes([high, low]) }, body);
                }
            })?;
        }
        Ok(())
    }

    /// Whether a socket of the kernel's listens there; yes if the kernel does not say.
    pub(crate) fn is_listened_at(&mut self, local: SocketAddr, interface: u32) -> bool {
        let nobody = if local.is_ipv4() {
            SocketAddr::from(([0_u8; 4], 0))
        } else {
            SocketAddr::from(([0_u16; 8], 0))
        };
        match self.find(Protocol::Tcp, local, nobody, interface) {
            Ok(found) => found.is_some_and(|found| found.state == STATE_LISTEN),
            Err(_) => true,
        }
    }

    /// Who gets what comes from `remote` to `local` through the interface of that index: a connection's socket, else a
    /// listener's; with UDP a connected socket, else one that is bound there.
    pub(crate) fn find(
        &mut self,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
        interface: u32,
    ) -> Result<Option<Found>, Errno> {
        if !self.answers[usize::from(protocol == Protocol::Udp)] {
            return Err(Errno::OPNOTSUPP);
        }
        let request = pick(SOCK_DIAG_BY_FAMILY, protocol, local, remote, interface);
        let mut found = None;
        let outcome = self.netlink.exchange(request, |kind, body| {
            if kind == SOCK_DIAG_BY_FAMILY
                && let (Some(&state), Some(user), Some(inode)) =
                    (body.get(STATE), body.get(USER..).and_then(number), body.get(INODE..).and_then(number))
            {
                found = Some(Found { state, user, inode: u64::from(inode) });
            }
        });
        match outcome {
            Ok(()) => Ok(found),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Ends what the kernel has of an earlier connection between these ends: it would answer what comes, where RST is due. A kernel
    /// that cannot (`CONFIG_INET_DIAG_DESTROY`) does not.
    pub(crate) fn end_time_wait(&mut self, local: SocketAddr, remote: SocketAddr, interface: u32) {
        let found = self.find(Protocol::Tcp, local, remote, interface);
        if matches!(found, Ok(Some(Found { state: STATE_TIME_WAIT, .. }))) {
            let _ =
                self.netlink.exchange(pick(SOCK_DESTROY, Protocol::Tcp, local, remote, interface), |_, _| ());
        }
    }
}

/// A request about the one socket that [`SocketTable::find`] describes.
fn pick(kind: u16, protocol: Protocol, local: SocketAddr, remote: SocketAddr, interface: u32) -> Request {
    // For UDP the kernel has the ends the other way round (net/ipv4/udp_diag.c, "historical reasons").
    let ends = if protocol == Protocol::Udp { [remote, local] } else { [local, remote] };
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    // struct inet_diag_req_v2
    let mut request = vec![family.as_raw() as u8, protocol as u8, 0, 0];
    request.extend([0xff; 4]); // any state
    request.extend(ends.iter().flat_map(|end| end.port().to_be_bytes()));
    for end in ends {
        match end.ip() {
            IpAddr::V4(ip) => request.extend([&ip.octets()[..], &[0; 12]].concat()),
            IpAddr::V6(ip) => request.extend(ip.octets()),
        }
    }
    request.extend(interface.to_ne_bytes());
    request.extend([0xff; 8]); // no cookie
    Request::new(kind, if kind == SOCK_DESTROY { Netlink::ACKNOWLEDGE } else { 0 }, &request)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;

    use super::*;

    fn inode(socket: impl AsFd) -> u64 {
        rustix::fs::fstat(socket).unwrap().st_ino
    }

    #[test]
    fn the_kernel_says_whose_a_frame_would_be() {
        let mut table = SocketTable::open().unwrap();
        let nowhere = SocketAddr::from(([0; 4], 0));
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let local = listener.local_addr().unwrap();
            let nowhere = if local.is_ipv4() { nowhere } else { "[::]:0".parse().unwrap() };
            let found = table.find(Protocol::Tcp, local, nowhere, 0).unwrap().unwrap();
            assert_eq!((found.state, found.inode), (10, inode(&listener)));
            let connection = TcpStream::connect(local).unwrap();
            let (here, there) = (connection.local_addr().unwrap(), connection.peer_addr().unwrap());
            let found = table.find(Protocol::Tcp, here, there, 0).unwrap().unwrap();
            assert_eq!((found.state, found.inode), (1, inode(&connection)));
            assert_eq!(table.find(Protocol::Udp, local, nowhere, 0).unwrap(), None);
            let socket = UdpSocket::bind(address).unwrap();
            let local = socket.local_addr().unwrap();
            let found = table.find(Protocol::Udp, local, there, 0).unwrap().unwrap();
            assert_eq!(found.inode, inode(&socket));
            assert_eq!(table.find(Protocol::Tcp, local, there, 0).unwrap(), None);
        }
    }
}

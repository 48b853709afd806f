//! Who may have what comes to an address: whoever holds the kernel's socket there. The kernel has decided who may bind it, and it
//! is asked who has it now.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use overfly_broker::Protocol;
use overfly_broker::message::{Kind, Request};
use overfly_broker::service::Peer;
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getpeername, getsockname, socket_with, sockopt,
};

use crate::error::{Error, last_error};
use crate::netlink::Netlink;
use crate::repair::{STATE_CLOSE, STATE_LISTEN, state};
use crate::socket_table::{SocketTable, There};

/// Judges what clients show.
#[derive(Debug)]
pub(crate) struct Claims {
    /// The broker's own network namespace ([`namespace`]).
    namespace: u64,
    /// The interface whose frames are given away; 0 if there is none of the kernel's.
    interface: u32,
    table: SocketTable,
    netlink: Netlink,
}

impl Claims {
    /// For the network namespace of the calling thread.
    pub(crate) fn open(interface: u32) -> Result<Claims, Error> {
        let namespace = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .and_then(|socket| namespace(socket.as_fd()))
            .map_err(|errno| Error::system("SO_NETNS_COOKIE", errno))?;
        let netlink = Netlink::open().map_err(|errno| Error::system("netlink", errno))?;
        Ok(Claims { namespace, interface, table: SocketTable::open()?, netlink })
    }

    /// The interface has gone, and another one of its name has come.
    pub(crate) fn moves_to(&mut self, interface: u32) {
        self.interface = interface;
    }

    /// The kernel's sockets.
    pub(crate) fn table(&mut self) -> &mut SocketTable {
        &mut self.table
    }

    /// In which control group a socket was made that holds a local address.
    pub(crate) fn control_group(&mut self, protocol: Protocol, socket: There) -> Result<Option<u64>, Error> {
        self.table
            .control_group(protocol, socket)
            .map_err(|errno| Error::system("asking for a socket's control group", errno))
    }

    /// The interface whose frames are given away.
    pub(crate) fn interface(&self) -> u32 {
        self.interface
    }

    /// Checks that `socket`, which a client sent with its request, is the kernel's socket at the request's local address. To listen to
    /// TCP it listens there. To listen to UDP it is whom the kernel would give datagrams to, at each of `addresses` (the
    /// interface's) that it is meant for. To connect it is bound, in no connection, and the client's own; whether the connection
    /// is free is asked when both its ends are known ([`Claims::is_free`]).
    pub(crate) fn check(
        &mut self,
        socket: Option<&OwnedFd>,
        request: &Request,
        addresses: &[(IpAddr, u8)],
        client: Option<Peer>,
    ) -> Result<(), Error> {
        let holds = socket.is_some_and(|socket| {
            let socket = socket.as_fd();
            let held = match request.kind {
                Kind::Listen => self.listens(socket, request, addresses),
                _ => self.may_connect(socket, request, client),
            };
            held.unwrap_or(false)
        });
        if holds { Ok(()) } else { Err(Error::NotHeld(request.local)) }
    }

    fn listens(
        &mut self,
        socket: BorrowedFd<'_>,
        request: &Request,
        addresses: &[(IpAddr, u8)],
    ) -> Result<bool, Errno> {
        let Some(bound) = self.address(socket, request.protocol, request.local)? else { return Ok(false) };
        if request.protocol == Protocol::Tcp {
            return sockopt::socket_acceptconn(socket);
        }
        if peer(socket)?.is_some() || !is_bound(socket)? {
            return Ok(false);
        }
        // Several sockets may have one address, of several users even (SO_REUSEADDR): the kernel chooses one.
        let each = addresses.iter().map(|&(address, _)| at(address, bound));
        let mut checked: Vec<SocketAddr> =
            each.filter(|&local| covers(request.local, request.v6only, local)).collect();
        if !request.local.ip().to_canonical().is_unspecified() {
            checked.push(at(request.local.ip().to_canonical(), bound));
        }
        for local in checked {
            if !self.is_the_kernels_choice(socket, local, nowhere(local))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn may_connect(
        &self,
        socket: BorrowedFd<'_>,
        request: &Request,
        client: Option<Peer>,
    ) -> Result<bool, Errno> {
        let at_address = self.address(socket, request.protocol, request.local)?.is_some();
        let apart = match request.protocol {
            Protocol::Tcp => state(socket)? == STATE_CLOSE,
            Protocol::Udp => peer(socket)?.is_none_or(|peer| peer == request.remote),
        };
        Ok(at_address && apart && is_bound(socket)? && is_own(socket, client)?)
    }

    /// The port, if the socket is one of the protocol's, of this namespace, of no other device, and gets what comes to `local`.
    fn address(
        &self,
        socket: BorrowedFd<'_>,
        protocol: Protocol,
        local: SocketAddr,
    ) -> Result<Option<u16>, Errno> {
        if !self.is_fit(socket, protocol)? {
            return Ok(None);
        }
        let bound = SocketAddr::try_from(getsockname(socket)?)?;
        let v6only = bound.is_ipv6() && sockopt::ipv6_v6only(socket)?;
        Ok(covers(bound, v6only, local).then_some(bound.port()))
    }

    fn is_fit(&self, socket: BorrowedFd<'_>, protocol: Protocol) -> Result<bool, Errno> {
        let inet = [AddressFamily::INET, AddressFamily::INET6].contains(&sockopt::socket_domain(socket)?);
        let its = sockopt::socket_protocol(socket)?.map(|protocol| protocol.as_raw().get());
        Ok(inet
            && its == Some(protocol as u32)
            && namespace(socket)? == self.namespace
            && [0, self.interface].contains(&device(socket)?))
    }

    /// Whether the kernel would give what comes from `remote` to this socket, or to another one of its user's.
    fn is_the_kernels_choice(
        &mut self,
        socket: BorrowedFd<'_>,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<bool, Errno> {
        let found = self.table.find(Protocol::Udp, local, remote, self.interface)?;
        let socket = fstat(socket)?;
        Ok(found.is_some_and(|found| found.inode == socket.st_ino || found.user == socket.st_uid))
    }

    /// Whether nobody has the connection in the kernel but who shows `socket`.
    pub(crate) fn is_free(
        &mut self,
        socket: BorrowedFd<'_>,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<(), Error> {
        let free = match protocol {
            Protocol::Tcp => self
                .table
                .find(protocol, local, remote, self.interface)
                .map(|found| found.is_none_or(|found| found.state == STATE_LISTEN)),
            Protocol::Udp => self.is_the_kernels_choice(socket, local, remote),
        };
        if free.unwrap_or(false) { Ok(()) } else { Err(Error::TupleInUse { local, remote }) }
    }

    /// Checks that a socket may become a connection from `local`: it is in none, and the client's own, or the client has bound it.
    pub(crate) fn check_backing(
        &self,
        socket: BorrowedFd<'_>,
        local: SocketAddr,
        client: Option<Peer>,
    ) -> Result<(), Error> {
        let check = || -> Result<bool, Errno> {
            let bound = SocketAddr::try_from(getsockname(socket)?)?.port();
            let fit = self.is_fit(socket, Protocol::Tcp)? && state(socket)? == STATE_CLOSE;
            Ok(fit && if bound == 0 { is_own(socket, client)? } else { bound == local.port() })
        };
        if check().unwrap_or(false) { Ok(()) } else { Err(Error::NotHeld(local)) }
    }

    /// Whether somebody who has `proof` has the port at `local` in the kernel already, with all that can be done with it: a socket
    /// that listens there, or that is bound and in no connection. (An accepted connection's gives its port up with the connection.)
    pub(crate) fn proves(&self, proof: BorrowedFd<'_>, local: SocketAddr) -> bool {
        let proves = || -> Result<bool, Errno> {
            let there = self.address(proof, Protocol::Tcp, local)?.is_some();
            Ok(there
                && match state(proof)? {
                    STATE_LISTEN => true,
                    STATE_CLOSE => is_bound(proof)?,
                    _ => false,
                })
        };
        proves().unwrap_or(false)
    }

    /// Whether an address is this host's.
    pub(crate) fn is_of_host(&mut self, address: IpAddr) -> bool {
        self.netlink.route(address.to_canonical(), self.interface).is_ok_and(|route| route.local)
    }

    /// Checks that a connection which one listener's process gives to another's is one that the listener could have accepted.
    pub(crate) fn check_passed(
        &self,
        socket: BorrowedFd<'_>,
        listener: SocketAddr,
        remote: SocketAddr,
    ) -> Result<(), Error> {
        let check = || -> Result<bool, Errno> {
            let local = SocketAddr::try_from(getsockname(socket)?)?;
            let local = SocketAddr::new(local.ip().to_canonical(), local.port());
            let its =
                peer(socket)?.is_some_and(|peer| peer.port() == remote.port() && peer.ip() == remote.ip());
            Ok(self.is_fit(socket, Protocol::Tcp)? && covers(listener, false, local) && its)
        };
        if check().unwrap_or(false) { Ok(()) } else { Err(Error::NotHeld(listener)) }
    }
}

fn at(address: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address, port)
}

/// No peer in particular, of the same family.
fn nowhere(local: SocketAddr) -> SocketAddr {
    match local {
        SocketAddr::V4(_) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
        SocketAddr::V6(_) => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
    }
}

/// Whom a socket is connected to; IPv4's as such.
fn peer(socket: BorrowedFd<'_>) -> Result<Option<SocketAddr>, Errno> {
    match getpeername(socket) {
        Ok(Some(peer)) => {
            let peer = SocketAddr::try_from(peer)?;
            Ok(Some(SocketAddr::new(peer.ip().to_canonical(), peer.port())))
        }
        Ok(None) | Err(Errno::NOTCONN) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Whether the socket was made by the client's user.
fn is_own(socket: BorrowedFd<'_>, client: Option<Peer>) -> Result<bool, Errno> {
    let user = fstat(socket)?.st_uid;
    Ok(client.is_some_and(|client| client.is(user)))
}

/// Whether the kernel has an unconnected socket down for a port. getsockname() goes on saying the port of a connection that has
/// ended, but who is bound can't be bound again, to any port (`__inet_bind()` in net/ipv4/af_inet.c). Who was not has some free
/// port then, which is not the one that was asked for.
fn is_bound(socket: BorrowedFd<'_>) -> Result<bool, Errno> {
    let any = match sockopt::socket_domain(socket)? {
        AddressFamily::INET => nowhere(at(Ipv4Addr::UNSPECIFIED.into(), 0)),
        _ => nowhere(at(Ipv6Addr::UNSPECIFIED.into(), 0)),
    };
    Ok(bind(socket, &any) == Err(Errno::INVAL))
}

/// Whether a socket bound to the one gets what comes to the other.
fn covers(bound: SocketAddr, v6only: bool, local: SocketAddr) -> bool {
    let (ip, wanted) = (bound.ip().to_canonical(), local.ip().to_canonical());
    let all = ip.is_unspecified() && (ip.is_ipv4() == wanted.is_ipv4() || ip.is_ipv6() && !v6only);
    bound.port() == local.port() && bound.port() != 0 && (ip == wanted || all)
}

/// How a socket is found again among all.
pub(crate) fn identity(socket: BorrowedFd<'_>) -> Result<There, Errno> {
    const SO_COOKIE: libc::c_int = 57; // include/uapi/asm-generic/socket.h
    let mut cookie = [0; 8];
    option(socket, SO_COOKIE, &mut cookie)?;
    let port = SocketAddr::try_from(getsockname(socket)?)?.port();
    Ok(There { cookie: u64::from_ne_bytes(cookie), port })
}

/// A number that the network namespace of a socket has, and no other.
fn namespace(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
    const SO_NETNS_COOKIE: libc::c_int = 71; // include/uapi/asm-generic/socket.h
    let mut cookie = [0; 8];
    option(socket, SO_NETNS_COOKIE, &mut cookie)?;
    Ok(u64::from_ne_bytes(cookie))
}

/// The index of the device that a socket is bound to (SO_BINDTODEVICE); 0 if to none.
fn device(socket: BorrowedFd<'_>) -> Result<u32, Errno> {
    const SO_BINDTOIFINDEX: libc::c_int = 62; // include/uapi/asm-generic/socket.h
    let mut index = [0; 4];
    option(socket, SO_BINDTOIFINDEX, &mut index)?;
    Ok(u32::from_ne_bytes(index))
}

fn option<const N: usize>(
    socket: BorrowedFd<'_>,
    name: libc::c_int,
    value: &mut [u8; N],
) -> Result<(), Errno> {
    let mut length = N as libc::socklen_t;
    // SAFETY: the kernel writes `length` bytes at most to `value`, which is that long.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    fn request(kind: Kind, protocol: Protocol, local: &str, port: u16) -> Request {
        Request { protocol, local: SocketAddr::new(local.parse().unwrap(), port), ..Request::new(kind) }
    }

    fn this_process() -> Option<Peer> {
        Some(Peer { process: rustix::process::getpid(), user: rustix::process::geteuid().as_raw() })
    }

    #[test]
    fn only_the_holder_of_a_port_may_have_it() {
        let mut claims = Claims::open(0).unwrap();
        let own = [(IpAddr::V4(Ipv4Addr::LOCALHOST), 8)];
        let mut may = |socket: &OwnedFd, kind, protocol, local: &str, port| {
            claims.check(Some(socket), &request(kind, protocol, local, port), &own, this_process()).is_ok()
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let connection = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let accepted = OwnedFd::from(listener.accept().unwrap().0);
        let listener = OwnedFd::from(listener);
        assert!(may(&listener, Kind::Listen, Protocol::Tcp, "127.0.0.1", port));
        assert!(!may(&listener, Kind::Connect, Protocol::Tcp, "127.0.0.1", port), "it listens");
        assert!(!may(&listener, Kind::Listen, Protocol::Udp, "127.0.0.1", port));
        assert!(!may(&listener, Kind::Listen, Protocol::Tcp, "0.0.0.0", port));
        assert!(!may(&listener, Kind::Listen, Protocol::Tcp, "127.0.0.1", port ^ 1));
        assert!(!may(&accepted, Kind::Connect, Protocol::Tcp, "127.0.0.1", port), "it is a connection");
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert!(!may(&file, Kind::Listen, Protocol::Tcp, "127.0.0.1", port));
        let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
        let udp_port = udp.local_addr().unwrap().port();
        assert!(may(&OwnedFd::from(udp), Kind::Listen, Protocol::Udp, "0.0.0.0", udp_port));
        // A port that is held and not listened at.
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
        let held = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap().port();
        assert!(may(&socket, Kind::Connect, Protocol::Tcp, "127.0.0.1", held));
        assert!(!may(&socket, Kind::Listen, Protocol::Tcp, "127.0.0.1", held));
        // A connection that was reset gave its port up, and says it still.
        let reset = OwnedFd::from(connection);
        let port = SocketAddr::try_from(getsockname(&reset).unwrap()).unwrap().port();
        sockopt::set_socket_linger(&accepted, Some(std::time::Duration::ZERO)).unwrap();
        drop(accepted);
        while state(reset.as_fd()).unwrap() != STATE_CLOSE {
            std::thread::yield_now();
        }
        assert!(!may(&reset, Kind::Connect, Protocol::Tcp, "127.0.0.1", port), "it is nobody's port");
        let nobody = request(Kind::Listen, Protocol::Tcp, "127.0.0.1", port);
        assert!(claims.check(None, &nobody, &own, this_process()).is_err());
        claims.namespace += 1;
        let there = request(Kind::Connect, Protocol::Tcp, "127.0.0.1", held);
        assert!(claims.check(Some(&socket), &there, &own, this_process()).is_err(), "another namespace");
    }

    #[test]
    fn a_socket_is_among_all_as_long_as_it_is_there() {
        let mut table = SocketTable::open().unwrap();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let udp = UdpSocket::bind(address).unwrap();
            let [tcp, udp_there] = [listener.as_fd(), udp.as_fd()].map(|socket| identity(socket).unwrap());
            assert_eq!(tcp.port, listener.local_addr().unwrap().port());
            assert!(table.all(Protocol::Tcp).unwrap().contains(&tcp));
            assert!(table.all(Protocol::Udp).unwrap().contains(&udp_there));
            assert!(!table.all(Protocol::Udp).unwrap().contains(&tcp));
            // It is there and listens no more.
            rustix::net::shutdown(&listener, rustix::net::Shutdown::Read).unwrap();
            assert!(!table.all(Protocol::Tcp).unwrap().contains(&tcp));
            drop(udp);
            // A process that another test starts has all descriptors until it is the program that it becomes.
            let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
            while table.all(Protocol::Udp).unwrap().contains(&udp_there) {
                assert!(std::time::Instant::now() < end, "it is gone");
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_socket_at_all_addresses_covers_those_of_its_families() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        for (bound, v6only, local, expected) in [
            ("0.0.0.0:80", false, "10.0.0.1:80", true),
            ("0.0.0.0:80", false, "[fd00::1]:80", false),
            ("[::]:80", false, "10.0.0.1:80", true),
            ("[::]:80", true, "10.0.0.1:80", false),
            ("[::]:80", true, "[fd00::1]:80", true),
            ("[::ffff:10.0.0.1]:80", false, "10.0.0.1:80", true),
            ("10.0.0.1:80", false, "0.0.0.0:80", false),
            ("0.0.0.0:0", false, "0.0.0.0:0", false),
        ] {
            assert_eq!(covers(at(bound), v6only, at(local)), expected, "{bound} {v6only} {local}");
        }
    }
}

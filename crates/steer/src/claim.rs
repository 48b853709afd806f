//! Who may have what comes to an address: whoever holds the kernel's socket there. The kernel has decided who may bind it.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use overfly_link::broker::Protocol;
use overfly_link::broker::message::{Kind, Wish};
use rustix::io::Errno;
use rustix::net::{AddressFamily, getsockname, sockopt};

use crate::error::{Error, last_error};

/// Checks that `socket`, which a client sent with its wish, is the kernel's socket at the wish's local address: a listening one
/// if it is to listen to TCP. `namespace` is the broker's own ([`namespace`]).
pub(crate) fn check(socket: Option<&impl AsFd>, wish: &Wish, namespace: u64) -> Result<(), Error> {
    let holds = socket.is_some_and(|socket| is_at(socket.as_fd(), wish, namespace).unwrap_or(false));
    if holds { Ok(()) } else { Err(Error::NotHeld(wish.local)) }
}

fn is_at(socket: BorrowedFd<'_>, wish: &Wish, own_namespace: u64) -> Result<bool, Errno> {
    let domain = sockopt::socket_domain(socket)?;
    let inet = [AddressFamily::INET, AddressFamily::INET6].contains(&domain);
    let protocol = sockopt::socket_protocol(socket)?.map(|protocol| protocol.as_raw().get());
    if !inet || protocol != Some(wish.protocol as u32) || namespace(socket)? != own_namespace {
        return Ok(false);
    }
    if wish.kind == Kind::Listen && wish.protocol == Protocol::Tcp && !sockopt::socket_acceptconn(socket)? {
        return Ok(false);
    }
    let bound = SocketAddr::try_from(getsockname(socket)?)?;
    let v6only = domain == AddressFamily::INET6 && sockopt::ipv6_v6only(socket)?;
    Ok(covers(bound, v6only, wish.local))
}

/// Whether a socket bound to the one gets what comes to the other.
fn covers(bound: SocketAddr, v6only: bool, local: SocketAddr) -> bool {
    let (ip, wanted) = (bound.ip().to_canonical(), local.ip().to_canonical());
    let all = ip.is_unspecified() && (ip.is_ipv4() == wanted.is_ipv4() || ip.is_ipv6() && !v6only);
    bound.port() == local.port() && bound.port() != 0 && (ip == wanted || all)
}

/// A number that the network namespace of a socket has, and no other.
pub(crate) fn namespace(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
    const SO_NETNS_COOKIE: libc::c_int = 71; // include/uapi/asm-generic/socket.h
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes `length` bytes at most to `cookie`, which is that long.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(last_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, UdpSocket};

    fn wish(kind: Kind, protocol: Protocol, local: &str, port: u16) -> Wish {
        Wish { protocol, local: SocketAddr::new(local.parse().unwrap(), port), ..Wish::new(kind) }
    }

    #[test]
    fn only_the_holder_of_a_port_may_have_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = namespace(listener.as_fd()).unwrap();
        let port = listener.local_addr().unwrap().port();
        let may = |kind, protocol, local: &str, port, namespace| {
            check(Some(&listener), &wish(kind, protocol, local, port), namespace).is_ok()
        };
        assert!(may(Kind::Listen, Protocol::Tcp, "127.0.0.1", port, here));
        assert!(may(Kind::Connect, Protocol::Tcp, "127.0.0.1", port, here));
        assert!(!may(Kind::Listen, Protocol::Udp, "127.0.0.1", port, here));
        assert!(!may(Kind::Listen, Protocol::Tcp, "0.0.0.0", port, here));
        assert!(!may(Kind::Listen, Protocol::Tcp, "127.0.0.1", port ^ 1, here));
        assert!(!may(Kind::Listen, Protocol::Tcp, "127.0.0.1", port, here + 1));
        assert!(
            check(None::<&TcpListener>, &wish(Kind::Listen, Protocol::Tcp, "127.0.0.1", port), here).is_err()
        );
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(check(Some(&file), &wish(Kind::Listen, Protocol::Tcp, "127.0.0.1", port), here).is_err());
        let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
        let port = udp.local_addr().unwrap().port();
        assert!(check(Some(&udp), &wish(Kind::Listen, Protocol::Udp, "10.0.0.1", port), here).is_ok());
        // A port that is held and not listened at.
        let socket = rustix::net::socket(AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
        let port = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap().port();
        assert!(check(Some(&socket), &wish(Kind::Connect, Protocol::Tcp, "127.0.0.1", port), here).is_ok());
        assert!(check(Some(&socket), &wish(Kind::Listen, Protocol::Tcp, "127.0.0.1", port), here).is_err());
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

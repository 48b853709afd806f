//! The error of a UDP socket whose peer has no such port, put into the kernel's socket. No call sets an error; but what a socket sends to a
//! port of its own host that takes nothing is refused as well, and udp_err() in Linux, net/ipv4/udp.c, sets the same one.

use core::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};

use super::{borrow, local_address};
use crate::sys;

/// How long the answer may take, which comes from within the host, by a softirq.
const PATIENCE_US: u64 = 50_000;

/// A connected UDP socket of the kernel's has ECONNREFUSED from now on, for whoever asks first. For a moment it is connected to something
/// else. False if that could not be; the socket is connected as it was in any case.
pub(crate) fn refuse(descriptor: i32) -> bool {
    let socket = borrow(descriptor);
    let peer =
        rustix::net::getpeername(socket).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok());
    let (Some(local), Some(peer)) = (local_address(descriptor), peer) else { return false };
    let Ok((_deaf, nobody)) = deaf_socket(local) else { return false };
    if rustix::net::connect(socket, &nobody).is_err() {
        return false;
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let refused = rustix::net::send(socket, &[], flags).is_ok() && has_error(descriptor, PATIENCE_US);
    let _ = rustix::net::connect(socket, &peer);
    refused
}

/// At the same address, hearing nobody but itself: what others send there is refused, and nobody else can be there meanwhile.
fn deaf_socket(local: SocketAddr) -> Result<(OwnedFd, SocketAddr), Errno> {
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut at = local;
    at.set_port(0);
    rustix::net::bind(&socket, &at)?;
    let at = local_address(socket.as_raw_fd()).ok_or(Errno::INVAL)?;
    rustix::net::connect(&socket, &at)?;
    Ok((socket, at))
}

fn has_error(descriptor: i32, timeout_us: u64) -> bool {
    let mut polled = [libc::pollfd { fd: descriptor, events: 0, revents: 0 }];
    let _ = sys::poll(&mut polled, Some(timeout_us), sys::handlers_run());
    polled[0].revents & libc::POLLERR != 0
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn a_socket_is_refused_and_stays_connected() {
        for (own, peer) in [("127.0.0.1:0", "127.0.0.9:9"), ("[::1]:0", "[::1]:9")] {
            let socket = UdpSocket::bind(own).unwrap();
            socket.connect(peer).unwrap();
            let before = (socket.local_addr().unwrap(), socket.peer_addr().unwrap());
            assert!(!has_error(socket.as_raw_fd(), 0));
            assert!(refuse(socket.as_raw_fd()), "{own}");
            assert_eq!((socket.local_addr().unwrap(), socket.peer_addr().unwrap()), before);
            assert!(has_error(socket.as_raw_fd(), 0));
            let error = socket.take_error().unwrap().unwrap();
            assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED));
            assert!(socket.take_error().unwrap().is_none(), "one is told");
        }
    }

    #[test]
    fn one_without_a_peer_is_not() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(!refuse(socket.as_raw_fd()) && !has_error(socket.as_raw_fd(), 0));
    }
}

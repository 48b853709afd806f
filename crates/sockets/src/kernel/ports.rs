//! Ports that the kernel chooses, and that it keeps for a socket.

use core::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::{borrow, local_address};
use crate::options::Backing;

/// include/uapi/linux/in.h
const IP_LOCAL_PORT_RANGE: i32 = 51;

/// A port of the kernel's choice at `address`, and the socket that keeps it from others.
pub(crate) fn reserve_port(address: IpAddr) -> Result<(u16, OwnedFd), Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &SocketAddr::new(address, 0))?;
    let bound = local_address(socket.as_raw_fd()).ok_or(Errno::INVAL)?;
    Ok((bound.port(), socket))
}

/// Gives the socket a port of the kernel's choice, at the address that it is bound to or at all.
pub(crate) fn bind_any_port(descriptor: i32, bound: SocketAddr) -> Result<(), Errno> {
    // With IP_BIND_ADDRESS_NO_PORT the kernel would choose one at connect(), which it does not see.
    let _ = Backing(descriptor).set(libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, &0_i32.to_ne_bytes());
    let any = SocketAddr::new(bound.ip(), 0);
    rustix::net::bind(borrow(descriptor), &any)
}

/// Whether the program has said of which ports the kernel may choose one for a socket (IP_LOCAL_PORT_RANGE).
pub(crate) fn has_port_range(descriptor: i32) -> bool {
    let mut range = [0; 4];
    Backing(descriptor).get(libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, &mut range) == Ok(4) && range != [0; 4]
}

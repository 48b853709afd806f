//! A connection that the kernel goes on with keeps a local port that others have, too.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use overfly_broker::connection::{Connection, flags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

use crate::repair::{option_at, set_bytes};

/// include/uapi/linux/in.h
const IP_LOCAL_PORT_RANGE: i32 = 51;
/// The first link of each network namespace.
const LOOPBACK: u32 = 1;

/// A port that several connections share stays that of `holder`: `socket`, which is to become one of them, and has none, gets it too, as if
/// the kernel had chosen it for the socket. So it lets go of it with the connection, and forgets its address with AF_UNSPEC: what bind() was
/// told by number it would keep (SOCK_BINDPORT_LOCK and SOCK_BINDADDR_LOCK in Linux, __inet_bind() in net/ipv4/af_inet.c). Nothing is said
/// if the kernel has another connection there by now, or cannot (before Linux 6.3).
pub(crate) fn bind_beside(
    socket: &OwnedFd,
    holder: Option<&OwnedFd>,
    connection: &Connection,
    interface: u32,
) {
    if let Some(holder) = holder {
        let _ = try_bind_beside(socket.as_fd(), holder.as_fd(), connection, interface);
    }
}

fn try_bind_beside(
    socket: BorrowedFd<'_>,
    holder: BorrowedFd<'_>,
    connection: &Connection,
    interface: u32,
) -> Result<(), Errno> {
    let bound = SocketAddr::try_from(getsockname(socket)?)?;
    let port = SocketAddr::try_from(getsockname(holder)?)?.port();
    let link = |socket| option_at::<u32, 1>(socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX);
    let is_one = bound.port() == 0 && bound.ip().is_unspecified() && port == connection.local().port();
    if !is_one || port == 0 || connection.is(flags::PASSIVE) || interface <= LOOPBACK {
        return Ok(());
    }
    if [link(socket)?, link(holder)?] != [[0]; 2] {
        return Ok(());
    }
    let [before] = option_at::<u32, 1>(socket, libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE)?;
    let only = u32::from(port) << 16 | u32::from(port);
    // Sockets that are tied to different links do not hinder each other (inet_bind_conflict() in net/ipv4/inet_connection_sock.c); others
    // both of them do.
    let tie = |socket, link: u32| set_bytes(socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, &[link]);
    // Who may not untie them leaves them alone.
    let probe = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    tie(probe.as_fd(), LOOPBACK)?;
    tie(probe.as_fd(), 0)?;
    let tied = tie(holder, LOOPBACK).and_then(|()| tie(socket, interface));
    let chosen = tied
        .and_then(|()| set_bytes(socket, libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, &[only]))
        .and_then(|()| set_bytes(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, &[0]))
        .and_then(|()| bind(socket, &SocketAddr::new(bound.ip(), 0)));
    let _ = set_bytes(socket, libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, &[before]);
    tie(socket, 0).and(tie(holder, 0)).and(chosen)
}

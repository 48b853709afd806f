//! System calls on descriptors by number: through rustix's raw back end, never through the library's own hooks.

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::socket::{SEND_LIMIT, SEND_LIMIT_RANGE, Settings};

/// `descriptor` for one call.
pub(crate) fn borrow(descriptor: i32) -> BorrowedFd<'static> {
    // SAFETY: descriptors come from the program, which may close one at any time: then the call says EBADF or meets
    // another file, as it would without the library. Memory safety does not depend on it. Only -1 is not allowed.
    unsafe { BorrowedFd::borrow_raw(descriptor.max(0)) }
}

/// A kernel TCP socket that is neither bound nor connected: what an accelerated connection's descriptor refers to.
pub(crate) fn tcp_socket(v6: bool, close_on_exec: bool) -> Result<i32, Errno> {
    let flags = if close_on_exec { SocketFlags::CLOEXEC } else { SocketFlags::empty() };
    let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
    rustix::net::socket_with(family, SocketType::STREAM, flags, None).map(IntoRawFd::into_raw_fd)
}

/// Moves a descriptor to a number that programs do not use, if there is one.
pub(crate) fn move_up(descriptor: OwnedFd) -> OwnedFd {
    let limit =
        rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1024).min(1 << 16);
    let least = i32::try_from(limit.saturating_sub(128)).unwrap_or(896);
    match rustix::io::fcntl_dupfd_cloexec(&descriptor, least) {
        Ok(moved) => {
            crate::sys::close(descriptor.into_raw_fd());
            moved
        }
        Err(_) => descriptor,
    }
}

/// Microseconds of the monotonic clock.
#[inline]
pub(crate) fn now() -> overfly_engine::Instant {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    overfly_engine::Instant::from_micros(time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000)
}

/// The address that the kernel's socket is bound to, as the kernel says it.
pub(crate) fn local_address(descriptor: i32) -> Option<SocketAddr> {
    SocketAddr::try_from(rustix::net::getsockname(borrow(descriptor)).ok()?).ok()
}

/// Gives the socket a port of the kernel's choice.
pub(crate) fn bind_any_port(descriptor: i32, v6: bool) -> Result<(), Errno> {
    let any = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    rustix::net::bind(borrow(descriptor), &SocketAddr::new(any, 0))
}

/// IPV6_V6ONLY of an AF_INET6 socket: set by the program, or net.ipv6.bindv6only when it was made.
pub(crate) fn is_v6only(descriptor: i32) -> bool {
    sockopt::ipv6_v6only(borrow(descriptor)).unwrap_or(false)
}

/// The socket knows which link link-local addresses mean: SO_BINDTODEVICE, or bind() to an address with a scope.
pub(crate) fn is_tied_to_link(descriptor: i32) -> bool {
    let mut index = 0_i32;
    let mut length = size_of::<i32>() as u32;
    let arguments = [
        descriptor as usize,
        libc::SOL_SOCKET as usize,
        libc::SO_BINDTOIFINDEX as usize,
        &raw mut index as usize,
        &raw mut length as usize,
        0,
    ];
    // SAFETY: the option is an int, and both pointers are to valid memory of that size.
    unsafe { crate::sys::call(libc::SYS_getsockopt, arguments) }.is_ok() && index != 0
}

pub(crate) fn is_nonblocking(descriptor: i32) -> bool {
    rustix::fs::fcntl_getfl(borrow(descriptor)).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
}

pub(crate) fn set_nonblocking(descriptor: i32, on: bool) {
    if let Ok(flags) = rustix::fs::fcntl_getfl(borrow(descriptor)) {
        let wanted = if on { flags | OFlags::NONBLOCK } else { flags - OFlags::NONBLOCK };
        let _ = rustix::fs::fcntl_setfl(borrow(descriptor), wanted);
    }
}

pub(crate) fn is_close_on_exec(descriptor: i32) -> bool {
    rustix::io::fcntl_getfd(borrow(descriptor)).is_ok_and(|flags| flags.contains(FdFlags::CLOEXEC))
}

/// What the program has set on the kernel's socket so far.
pub(crate) fn settings(descriptor: i32) -> Settings {
    let socket = borrow(descriptor);
    let default = Settings::DEFAULT;
    // The kernel says twice what was asked for, and a default of its own where nothing was.
    let untouched = || {
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .and_then(|fresh| sockopt::socket_send_buffer_size(&fresh))
    };
    let send_limit = match (sockopt::socket_send_buffer_size(socket), untouched()) {
        (Ok(size), Ok(untouched)) if size != untouched => send_limit(size / 2),
        _ => SEND_LIMIT,
    };
    Settings {
        no_delay: sockopt::tcp_nodelay(socket).unwrap_or(false),
        cork: sockopt::tcp_cork(socket).unwrap_or(false),
        keep_alive: sockopt::socket_keepalive(socket).unwrap_or(false),
        keep_idle: sockopt::tcp_keepidle(socket).unwrap_or(default.keep_idle),
        linger: sockopt::socket_linger(socket).unwrap_or(None),
        receive_timeout: sockopt::socket_timeout(socket, sockopt::Timeout::Recv).unwrap_or(None),
        send_timeout: sockopt::socket_timeout(socket, sockopt::Timeout::Send).unwrap_or(None),
        send_limit,
    }
}

/// The send queue's limit for a SO_SNDBUF of `size` bytes.
pub(crate) fn send_limit(size: usize) -> usize {
    size.clamp(SEND_LIMIT_RANGE.0, SEND_LIMIT_RANGE.1)
}

/// One line on standard error.
pub(crate) fn complain(message: &str) {
    let line = format!("overfly: {message}\n");
    let _ = rustix::io::write(borrow(2), line.as_bytes());
}

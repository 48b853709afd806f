//! socket, listen, accept, connect and the calls that ask about a socket.

use core::ffi::c_int;
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use rustix::io::Errno;

use super::{done, fail, last_error, next};
use crate::calls::{Answer, bind, datagram, life};
use crate::cancel;
use crate::kernel;
use crate::memory::is_plausible;
use crate::process::{before_kernel_wait, is_active};
use crate::table::is_ours;

/// An address as C has it.
#[repr(C)]
union Record {
    v4: sockaddr_in,
    v6: sockaddr_in6,
}

/// Writes an address as the kernel does: cut to the room there is, with its full length.
///
/// # Safety
/// As for getsockname(2).
pub(crate) unsafe fn put_address(from: SocketAddr, address: *mut sockaddr, length: *mut socklen_t) {
    if address.is_null() || length.is_null() {
        return;
    }
    let (record, size) = match from {
        SocketAddr::V4(from) => {
            let v4 = sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: from.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*from.ip()).to_be() },
                sin_zero: [0; 8],
            };
            (Record { v4 }, size_of::<sockaddr_in>())
        }
        SocketAddr::V6(from) => {
            let v6 = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: from.port().to_be(),
                sin6_flowinfo: from.flowinfo().to_be(),
                sin6_addr: libc::in6_addr { s6_addr: from.ip().octets() },
                sin6_scope_id: from.scope_id(),
            };
            (Record { v6 }, size_of::<sockaddr_in6>())
        }
    };
    // SAFETY: the program lends `length`, and that many bytes at `address`; the record's first `size` bytes are set.
    unsafe {
        let room = (*length as usize).min(size);
        core::ptr::copy_nonoverlapping((&raw const record).cast::<u8>(), address.cast::<u8>(), room);
        *length = size as socklen_t;
    }
}

/// The shortest `sockaddr_in6` that the kernel takes, without the scope (SIN6_LEN_RFC2133 in include/net/ipv6.h).
const SHORTEST_V6: usize = 24;

/// # Safety
/// As for connect(2).
pub(crate) unsafe fn address_from(address: *const sockaddr, length: socklen_t) -> Option<SocketAddr> {
    let length = length as usize;
    if address.is_null() || length < size_of::<sockaddr_in>() {
        return None;
    }
    // SAFETY: the program lends `length` bytes, which are enough for any address's family.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    match c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: the program lends `length` bytes, which are enough.
            let record = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(record.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(record.sin_port)).into())
        }
        libc::AF_INET6 if length >= SHORTEST_V6 => {
            let mut bytes = [0; size_of::<sockaddr_in6>()];
            let room = length.min(bytes.len());
            // SAFETY: the program lends `length` bytes, and `room` is no more.
            unsafe { core::ptr::copy_nonoverlapping(address.cast::<u8>(), bytes.as_mut_ptr(), room) };
            // SAFETY: a plain C record, any bytes of which are valid.
            let record = unsafe { bytes.as_ptr().cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(record.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(record.sin6_port), 0, record.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// AF_UNSPEC, which dissolves a UDP socket's connection.
///
/// # Safety
/// As for connect(2).
unsafe fn is_unspecified(address: *const sockaddr, length: socklen_t) -> bool {
    !address.is_null()
        && length as usize >= size_of::<libc::sa_family_t>()
        // SAFETY: the program lends `length` bytes, which are enough.
        && c_int::from(unsafe { address.cast::<libc::sa_family_t>().read_unaligned() }) == libc::AF_UNSPEC
}

/// # Safety
/// As for socket(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the program's arguments, handed on.
    let mut descriptor = unsafe { next::socket(domain, kind, protocol) };
    // SAFETY: errno is this thread's own.
    if descriptor < 0 && unsafe { *libc::__errno_location() } == libc::EMFILE && life::descriptors_ran_out() {
        // SAFETY: the program's arguments, handed on.
        descriptor = unsafe { next::socket(domain, kind, protocol) };
    }
    if descriptor >= 0 {
        life::opened(descriptor, domain, kind, protocol);
    }
    descriptor
}

/// # Safety
/// As for bind(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn bind(descriptor: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    // SAFETY: the program lends `length` bytes there.
    let local = unsafe { address_from(address, length) };
    if is_ours(descriptor)
        && local.is_some()
        && let Err(error) = bind::may_bind(descriptor)
    {
        return fail(error);
    }
    // SAFETY: the program's arguments, handed on.
    let mut result = unsafe { next::bind(descriptor, address, length) };
    if result < 0
        // SAFETY: errno is this thread's own.
        && unsafe { *libc::__errno_location() } == libc::EADDRINUSE
        && local.is_some_and(|local| bind::makes_way(local.port()))
    {
        // SAFETY: the program's arguments, handed on.
        result = unsafe { next::bind(descriptor, address, length) };
    }
    if result == 0 && is_ours(descriptor) {
        bind::bound(descriptor);
    }
    result
}

/// # Safety
/// As for listen(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn listen(descriptor: c_int, backlog: c_int) -> c_int {
    if is_ours(descriptor)
        && let Err(error) = bind::may_listen(descriptor)
    {
        return fail(error);
    }
    // SAFETY: the program's arguments, handed on.
    let result = unsafe { next::listen(descriptor, backlog) };
    if result == 0 && is_ours(descriptor) {
        life::listened(descriptor, backlog);
    }
    result
}

/// # Safety
/// As for accept4(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn accept4(
    descriptor: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    cancel::point();
    if is_ours(descriptor) {
        match life::accept(descriptor, flags) {
            Answer::Kernel => {}
            Answer::Done(Ok(accepted)) => {
                // SAFETY: the program lends the address and its length for the call.
                unsafe { put_address(accepted.remote, address, length) };
                return accepted.descriptor;
            }
            Answer::Done(Err(error)) => return fail(error),
        }
    }
    before_kernel_wait();
    // SAFETY: the program's arguments, handed on.
    let accepted = unsafe { next::accept4(descriptor, address, length, flags) };
    if is_ours(accepted) {
        life::forget_stale(accepted);
    }
    accepted
}

/// # Safety
/// As for accept(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn accept(
    descriptor: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    cancel::point();
    if is_ours(descriptor) {
        // SAFETY: the program's arguments, handed on.
        return unsafe { accept4(descriptor, address, length, 0) };
    }
    before_kernel_wait();
    // SAFETY: the program's arguments, handed on.
    let accepted = unsafe { next::accept(descriptor, address, length) };
    if is_ours(accepted) {
        life::forget_stale(accepted);
    }
    accepted
}

/// # Safety
/// As for connect(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn connect(
    descriptor: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> c_int {
    cancel::point();
    if is_ours(descriptor) {
        // SAFETY: the program lends the address for the call.
        let answer = unsafe {
            if is_unspecified(address, length) {
                match datagram::connect(descriptor, None) {
                    Answer::Kernel => life::disconnect(descriptor),
                    answer @ Answer::Done(_) => answer,
                }
            } else if !address.is_null() && length as usize >= size_of::<libc::sa_family_t>() {
                life::connect(descriptor, address_from(address, length))
            } else {
                Answer::Kernel
            }
        };
        if let Answer::Done(outcome) = answer {
            return done(outcome);
        }
    }
    before_kernel_wait();
    // SAFETY: the program's arguments, handed on.
    let result = unsafe { next::connect(descriptor, address, length) };
    if result < 0 && last_error() == Errno::ISCONN {
        return done(kernel::tell_connect(descriptor));
    }
    // SAFETY: the program lends the address for the call.
    if result == 0 && unsafe { is_unspecified(address, length) } {
        kernel::forget_what_to_tell(descriptor);
    }
    result
}

/// # Safety
/// As for shutdown(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn shutdown(descriptor: c_int, how: c_int) -> c_int {
    if is_ours(descriptor)
        && let Answer::Done(outcome) = life::shutdown(descriptor, how)
    {
        return done(outcome);
    }
    // SAFETY: the program's arguments, handed on.
    let result = unsafe { next::shutdown(descriptor, how) };
    let outcome = if result == 0 { Ok(()) } else { Err(last_error()) };
    if is_active() && matches!(outcome, Ok(()) | Err(Errno::NOTCONN)) {
        kernel::need_not_tell(descriptor, outcome.is_err());
    }
    done(outcome)
}

/// The name of one of a connection's ends, into the program's record, or what the kernel says.
///
/// # Safety
/// As for getsockname(2).
unsafe fn name_or(
    descriptor: c_int,
    remote: bool,
    address: *mut sockaddr,
    length: *mut socklen_t,
    kernel: impl FnOnce() -> c_int,
) -> c_int {
    if !is_ours(descriptor) {
        return kernel();
    }
    let Answer::Done(outcome) = life::name(descriptor, remote) else { return kernel() };
    let given = is_plausible(length, size_of::<socklen_t>());
    // SAFETY: the program lends the length.
    match (outcome, given.then(|| unsafe { &*length })) {
        (Err(error), _) => fail(error),
        (Ok(_), None) => fail(Errno::FAULT),
        // move_addr_to_user() in Linux.
        (Ok(_), Some(&room)) if (room as c_int) < 0 => fail(Errno::INVAL),
        (Ok(_), Some(&room)) if !is_plausible(address, room as usize) => fail(Errno::FAULT),
        (Ok(name), Some(_)) => {
            // SAFETY: the program lends the address and its length for the call.
            unsafe { put_address(name, address, length) };
            0
        }
    }
}

/// # Safety
/// As for getsockname(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getsockname(
    descriptor: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the program's arguments, handed on.
    unsafe { name_or(descriptor, false, address, length, || next::getsockname(descriptor, address, length)) }
}

/// # Safety
/// As for getpeername(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getpeername(
    descriptor: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the program's arguments, handed on.
    unsafe { name_or(descriptor, true, address, length, || next::getpeername(descriptor, address, length)) }
}

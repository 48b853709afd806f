//! write and its kin, and sendfile.

use core::ffi::{c_int, c_uint, c_void};

use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};
use rustix::io::Errno;

use super::ancillary;
use super::data::{VECTORS_MAX, count_vectors, each_passed, is_connection, message_flags};
use super::sockets::address_from;
use super::{count, count_or, next};
use crate::calls::datagram::ControlMessages;
use crate::calls::hold::Hold;
use crate::calls::{Answer, data, datagram, life};
use crate::cancel;
use crate::memory::{Source, is_plausible};
use crate::table::is_ours;

/// # Safety
/// As for write(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn write(descriptor: c_int, buffer: *const c_void, length: size_t) -> ssize_t {
    cancel::point();
    // SAFETY: the program's arguments, handed on.
    unsafe { count_or(send_one(descriptor, buffer, length, 0), || next::write(descriptor, buffer, length)) }
}

/// # Safety
/// As for send(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn send(
    descriptor: c_int,
    buffer: *const c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    cancel::point();
    // SAFETY: the program's arguments, handed on.
    unsafe {
        count_or(send_one(descriptor, buffer, length, flags), || {
            next::send(descriptor, buffer, length, flags)
        })
    }
}

/// # Safety
/// As for sendto(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendto(
    descriptor: c_int,
    buffer: *const c_void,
    length: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_length: socklen_t,
) -> ssize_t {
    cancel::point();
    if datagram::is_ours(descriptor) {
        // SAFETY: the program lends the address for the call.
        let destination = unsafe { address_from(address, address_length) };
        let vector = iovec { iov_base: buffer.cast_mut(), iov_len: length };
        // SAFETY: the program lends the buffer for the call.
        let source = unsafe { Source::new(&raw const vector, 1) };
        let answer = if destination.is_some() || address.is_null() {
            datagram::send(descriptor, source, destination, ControlMessages::default(), flags)
        } else {
            Answer::Kernel
        };
        // SAFETY: the program's arguments, handed on.
        return count_or(answer, || unsafe {
            next::sendto(descriptor, buffer, length, flags, address, address_length)
        });
    }
    if flags & libc::MSG_FASTOPEN != 0 && is_ours(descriptor) {
        let vector = iovec { iov_base: buffer.cast_mut(), iov_len: length };
        // SAFETY: the program lends the address and the buffer for the call.
        let answer = unsafe {
            let remote = address_from(address, address_length);
            life::open_fast(descriptor, remote, Source::new(&raw const vector, 1), flags)
        };
        // SAFETY: the program's arguments, handed on.
        return count_or(answer, || unsafe {
            next::sendto(descriptor, buffer, length, flags, address, address_length)
        });
    }
    // The address of a connected TCP socket is ignored (send(2)).
    // SAFETY: the program's arguments, handed on.
    unsafe {
        count_or(send_one(descriptor, buffer, length, flags), || {
            next::sendto(descriptor, buffer, length, flags, address, address_length)
        })
    }
}

/// # Safety
/// As for writev(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn writev(descriptor: c_int, vectors: *const iovec, number: c_int) -> ssize_t {
    cancel::point();
    // SAFETY: the program's arguments, handed on.
    let answer = unsafe { send_vectors(descriptor, vectors, number, 0) };
    // SAFETY: the program's arguments, handed on.
    count_or(answer, || unsafe { next::writev(descriptor, vectors, number) })
}

/// # Safety
/// As for pwritev2(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn pwritev2(
    descriptor: c_int,
    vectors: *const iovec,
    number: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    cancel::point();
    let answer = match message_flags(offset, flags) {
        // SAFETY: the program's arguments, handed on.
        Some(flags) => unsafe { send_vectors(descriptor, vectors, number, flags) },
        None => Answer::Kernel,
    };
    // SAFETY: the program's arguments, handed on.
    count_or(answer, || unsafe { next::pwritev2(descriptor, vectors, number, offset, flags) })
}

/// # Safety
/// As for pwritev2(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn pwritev64v2(
    descriptor: c_int,
    vectors: *const iovec,
    number: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program's arguments, handed on.
    unsafe { pwritev2(descriptor, vectors, number, offset, flags) }
}

/// # Safety
/// As for sendmsg(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendmsg(descriptor: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    cancel::point();
    if !is_ours(descriptor) {
        // SAFETY: the program's message.
        if let Err(error) = unsafe { share_passed(message) } {
            return count(Err(error));
        }
        // SAFETY: the program's arguments, handed on.
        return unsafe { next::sendmsg(descriptor, message, flags) };
    }
    // SAFETY: the program's arguments, handed on.
    unsafe {
        let answer = send_message(&mut Hold::new(), descriptor, message, flags);
        count_or(answer, || next::sendmsg(descriptor, message, flags))
    }
}

/// # Safety
/// As for sendmmsg(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendmmsg(
    descriptor: c_int,
    messages: *mut mmsghdr,
    number: c_uint,
    flags: c_int,
) -> c_int {
    cancel::point();
    if !is_ours(descriptor) {
        for index in 0..number.min(VECTORS_MAX as c_uint) {
            // SAFETY: the program lends `number` records for the call.
            if let Err(error) = unsafe { share_passed(&raw const (*messages.add(index as usize)).msg_hdr) } {
                return super::fail(error);
            }
        }
        // SAFETY: the program's arguments, handed on.
        return unsafe { next::sendmmsg(descriptor, messages, number, flags) };
    }
    let mut hold = Hold::new();
    for index in 0..number.min(VECTORS_MAX as c_uint) {
        // SAFETY: the program lends `number` records for the call.
        let record = unsafe { &mut *messages.add(index as usize) };
        // SAFETY: as above.
        match unsafe { send_message(&mut hold, descriptor, &raw const record.msg_hdr, flags) } {
            Answer::Kernel if index > 0 || datagram::is_ours(descriptor) => {
                let descriptor = hold.elsewhere().unwrap_or(descriptor);
                // SAFETY: the program's own record.
                let sent = unsafe { next::sendmsg(descriptor, &raw const record.msg_hdr, flags) };
                match c_uint::try_from(sent) {
                    Ok(length) => record.msg_len = length,
                    Err(_) if index > 0 => return index as c_int,
                    Err(_) => return -1,
                }
            }
            // SAFETY: the program's arguments, handed on.
            Answer::Kernel => return unsafe { next::sendmmsg(descriptor, messages, number, flags) },
            Answer::Done(Ok(length)) => record.msg_len = length as c_uint,
            Answer::Done(Err(_)) if index > 0 => return index as c_int,
            Answer::Done(Err(error)) => return super::fail(error),
        }
    }
    number.min(VECTORS_MAX as c_uint) as c_int
}

/// # Safety
/// As for sendfile(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendfile(
    descriptor: c_int,
    file: c_int,
    offset: *mut off_t,
    length: size_t,
) -> ssize_t {
    if is_ours(descriptor) {
        // SAFETY: the program lends the offset for the call if it is not null.
        let position = unsafe { offset.as_mut() };
        if let Answer::Done(outcome) = data::send_file(descriptor, file, position, length) {
            return count(outcome);
        }
    }
    // SAFETY: the program's arguments, handed on.
    unsafe { next::sendfile(descriptor, file, offset, length) }
}

/// # Safety
/// As for sendfile(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendfile64(
    descriptor: c_int,
    file: c_int,
    offset: *mut off_t,
    length: size_t,
) -> ssize_t {
    // SAFETY: the program's arguments, handed on; off_t has 64 bits on the machines that this library is for.
    unsafe { sendfile(descriptor, file, offset, length) }
}

/// # Safety
/// As for send(2).
unsafe fn send_one(descriptor: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> Answer<usize> {
    let vector = iovec { iov_base: buffer.cast_mut(), iov_len: length };
    // SAFETY: the program lends the buffer for the call.
    data::send(&mut Hold::new(), descriptor, unsafe { Source::new(&raw const vector, 1) }, flags)
}

/// # Safety
/// As for writev(2).
unsafe fn send_vectors(
    descriptor: c_int,
    vectors: *const iovec,
    number: c_int,
    flags: c_int,
) -> Answer<usize> {
    if !is_ours(descriptor) {
        return Answer::Kernel;
    }
    let number = match count_vectors(vectors, number) {
        Ok(number) => number,
        Err(error) => return Answer::error(error),
    };
    // SAFETY: the program lends the vectors and their buffers for the call.
    let source = unsafe { Source::new(vectors, number) };
    // Not even an empty datagram goes: do_iter_write() in Linux, fs/read_write.c.
    if source.length() == 0 && (is_connection(descriptor) || datagram::is_ours(descriptor)) {
        return Answer::ok(0);
    }
    data::send(&mut Hold::new(), descriptor, source, flags)
}

/// # Safety
/// As for sendmsg(2).
unsafe fn send_message(
    hold: &mut Hold,
    descriptor: c_int,
    message: *const msghdr,
    flags: c_int,
) -> Answer<usize> {
    if !is_plausible(message, size_of::<msghdr>()) {
        return Answer::error(Errno::FAULT);
    }
    // SAFETY: the program lends the header for the call, and it is where it may be.
    let message = unsafe { &*message };
    if message.msg_iovlen > VECTORS_MAX {
        return Answer::error(Errno::MSGSIZE);
    }
    if !is_plausible(message.msg_iov, message.msg_iovlen * size_of::<iovec>()) {
        return Answer::error(Errno::FAULT);
    }
    if !hold.has_another_socket() && datagram::is_ours(descriptor) {
        // SAFETY: the program lends the address for the call.
        let destination = unsafe { address_from(message.msg_name.cast(), message.msg_namelen) };
        if destination.is_none() && !message.msg_name.is_null() {
            return Answer::Kernel;
        }
        // SAFETY: the program lends the control messages for the call.
        let Some(wishes) = (unsafe { ancillary::wishes(message) }) else { return Answer::Kernel };
        // SAFETY: the program lends the vectors and their buffers for the call.
        let source = unsafe { Source::new(message.msg_iov, message.msg_iovlen) };
        return datagram::send(descriptor, source, destination, wishes, flags);
    }
    // SAFETY: the program lends the vectors and their buffers for the call.
    let source = unsafe { Source::new(message.msg_iov, message.msg_iovlen) };
    if flags & libc::MSG_FASTOPEN != 0 {
        // SAFETY: the program lends the address for the call.
        let remote = unsafe { address_from(message.msg_name.cast(), message.msg_namelen) };
        return life::open_fast(descriptor, remote, source, flags);
    }
    data::send(hold, descriptor, source, flags)
}

/// Connections that a message takes to another process are handed over first.
///
/// # Safety
/// As for sendmsg(2).
unsafe fn share_passed(message: *const msghdr) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { each_passed(message, life::share) }
}

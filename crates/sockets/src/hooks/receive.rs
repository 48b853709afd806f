//! read and its kin.

use core::ffi::{c_int, c_uint, c_void};

use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use rustix::io::Errno;

use super::ancillary;
use super::data::{VECTORS_MAX, count_vectors, each_passed, is_connection, message_flags};
use super::sockets::put_address;
use super::{count, count_or, next};
use crate::calls::datagram::Received;
use crate::calls::hold::Hold;
use crate::calls::{Answer, data, datagram, life};
use crate::cancel;
use crate::memory::{Target, is_plausible};
use crate::process::before_kernel_wait;
use crate::table::is_ours;

/// # Safety
/// As for read(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn read(descriptor: c_int, buffer: *mut c_void, length: size_t) -> ssize_t {
    cancel::point();
    // Unlike recv(), read() of nothing asks for nothing (sock_read_iter() in net/socket.c).
    if length == 0 && (is_connection(descriptor) || datagram::is_ours(descriptor)) {
        return 0;
    }
    // SAFETY: the program's arguments, handed on.
    unsafe { count_or(receive_one(descriptor, buffer, length, 0), || next::read(descriptor, buffer, length)) }
}

/// # Safety
/// As for read(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __read_chk(
    descriptor: c_int,
    buffer: *mut c_void,
    length: size_t,
    room: size_t,
) -> ssize_t {
    check(length, room);
    // SAFETY: the program's arguments, handed on.
    unsafe { read(descriptor, buffer, length) }
}

/// # Safety
/// As for recv(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn recv(
    descriptor: c_int,
    buffer: *mut c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    cancel::point();
    // SAFETY: the program's arguments, handed on.
    unsafe {
        count_or(receive_one(descriptor, buffer, length, flags), || {
            next::recv(descriptor, buffer, length, flags)
        })
    }
}

/// # Safety
/// As for recv(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __recv_chk(
    descriptor: c_int,
    buffer: *mut c_void,
    length: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    check(length, room);
    // SAFETY: the program's arguments, handed on.
    unsafe { recv(descriptor, buffer, length, flags) }
}

/// # Safety
/// As for recvfrom(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn recvfrom(
    descriptor: c_int,
    buffer: *mut c_void,
    length: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_length: *mut socklen_t,
) -> ssize_t {
    cancel::point();
    if datagram::is_ours(descriptor) {
        let vector = iovec { iov_base: buffer, iov_len: length };
        // SAFETY: the program lends the buffer for the call.
        let target = unsafe { Target::new(&raw const vector, 1) };
        let in_kernel = |flags: c_int| {
            let flags = (flags | libc::MSG_DONTWAIT) as usize;
            let arguments = [
                descriptor as usize,
                buffer as usize,
                length,
                flags,
                address as usize,
                address_length as usize,
            ];
            // SAFETY: the program's arguments, handed on.
            unsafe { crate::sys::call(libc::SYS_recvfrom, arguments) }
        };
        let answer = match datagram::receive(descriptor, target, flags, in_kernel) {
            Answer::Kernel => Answer::Kernel,
            Answer::Done(outcome) => Answer::Done(outcome.map(|received| match received {
                Received::InKernel(length) => length,
                Received::Here(datagram) => {
                    if let Some(source) = datagram.source {
                        // SAFETY: the program lends the address and its length for the call.
                        unsafe { put_address(source, address, address_length) };
                    } else if !address.is_null() && is_plausible(address_length, size_of::<socklen_t>()) {
                        // SAFETY: the program lends the length for the call, and it is where it may be.
                        unsafe { *address_length = 0 };
                    }
                    datagram.length
                }
            })),
        };
        // SAFETY: the program's arguments, handed on.
        return count_or(answer, || unsafe {
            next::recvfrom(descriptor, buffer, length, flags, address, address_length)
        });
    }
    // SAFETY: the program's arguments, handed on.
    let answer = unsafe { receive_one(descriptor, buffer, length, flags) };
    if let Answer::Done(Ok(_)) = answer
        && !address.is_null()
        && !address_length.is_null()
    {
        // A connected TCP socket names nobody (tcp_recvmsg() leaves msg_namelen at zero).
        // SAFETY: the program lends the length.
        unsafe { *address_length = 0 };
    }
    // SAFETY: the program's arguments, handed on.
    count_or(answer, || unsafe { next::recvfrom(descriptor, buffer, length, flags, address, address_length) })
}

/// # Safety
/// As for recvfrom(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __recvfrom_chk(
    descriptor: c_int,
    buffer: *mut c_void,
    length: size_t,
    room: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_length: *mut socklen_t,
) -> ssize_t {
    check(length, room);
    // SAFETY: the program's arguments, handed on.
    unsafe { recvfrom(descriptor, buffer, length, flags, address, address_length) }
}

/// # Safety
/// As for readv(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn readv(descriptor: c_int, vectors: *const iovec, number: c_int) -> ssize_t {
    cancel::point();
    // SAFETY: the program's arguments, handed on.
    let answer = unsafe { receive_vectors(descriptor, vectors, number, 0) };
    // SAFETY: the program's arguments, handed on.
    count_or(answer, || unsafe { next::readv(descriptor, vectors, number) })
}

/// # Safety
/// As for preadv2(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn preadv2(
    descriptor: c_int,
    vectors: *const iovec,
    number: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    cancel::point();
    let answer = match message_flags(offset, flags) {
        // SAFETY: the program's arguments, handed on.
        Some(flags) => unsafe { receive_vectors(descriptor, vectors, number, flags) },
        None => Answer::Kernel,
    };
    // SAFETY: the program's arguments, handed on.
    count_or(answer, || unsafe { next::preadv2(descriptor, vectors, number, offset, flags) })
}

/// # Safety
/// As for preadv2(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn preadv64v2(
    descriptor: c_int,
    vectors: *const iovec,
    number: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program's arguments, handed on.
    unsafe { preadv2(descriptor, vectors, number, offset, flags) }
}

/// # Safety
/// As for recvmsg(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn recvmsg(descriptor: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    cancel::point();
    if !is_ours(descriptor) {
        before_kernel_wait();
        // SAFETY: the program's arguments, handed on.
        let outcome = unsafe { next::recvmsg(descriptor, message, flags) };
        if outcome >= 0 {
            // SAFETY: the kernel has filled in the program's message.
            unsafe { adopt_passed(message) };
        }
        return outcome;
    }
    // SAFETY: the program's arguments, handed on.
    unsafe {
        let answer = receive_message(&mut Hold::new(), descriptor, message, flags);
        count_or(answer, || next::recvmsg(descriptor, message, flags))
    }
}

/// # Safety
/// As for recvmmsg(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn recvmmsg(
    descriptor: c_int,
    messages: *mut mmsghdr,
    number: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    cancel::point();
    if !is_ours(descriptor) || number == 0 {
        before_kernel_wait();
        // SAFETY: the program's arguments, handed on.
        let outcome = unsafe { next::recvmmsg(descriptor, messages, number, flags, timeout) };
        for index in 0..usize::try_from(outcome).unwrap_or(0) {
            // SAFETY: the kernel has filled in so many of the program's records.
            unsafe { adopt_passed(&raw const (*messages.add(index)).msg_hdr) };
        }
        return outcome;
    }
    // SAFETY: the program's arguments, handed on.
    count(unsafe { receive_several(descriptor, messages, number, flags, timeout) }) as c_int
}

/// # Safety
/// As for recv(2).
unsafe fn receive_one(descriptor: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> Answer<usize> {
    let vector = iovec { iov_base: buffer, iov_len: length };
    // SAFETY: the program lends the buffer for the call.
    data::receive(
        &mut Hold::new(),
        descriptor,
        unsafe { Target::new(&raw const vector, 1) },
        flags,
        usize::MAX,
    )
}

/// The fortified forms end the program that would overrun its buffer, as glibc does.
fn check(length: size_t, room: size_t) {
    if length > room {
        crate::kernel::complain("*** buffer overflow detected ***: terminated");
        // SAFETY: abort() has no preconditions.
        unsafe { libc::abort() };
    }
}

/// # Safety
/// As for readv(2).
unsafe fn receive_vectors(
    descriptor: c_int,
    vectors: *const iovec,
    number: c_int,
    flags: c_int,
) -> Answer<usize> {
    if !is_ours(descriptor) {
        before_kernel_wait();
        return Answer::Kernel;
    }
    let number = match count_vectors(vectors, number) {
        Ok(number) => number,
        Err(error) => return Answer::error(error),
    };
    // SAFETY: the program lends the vectors and their buffers for the call.
    let target = unsafe { Target::new(vectors, number) };
    if target.length() == 0 && (is_connection(descriptor) || datagram::is_ours(descriptor)) {
        return Answer::ok(0);
    }
    data::receive(&mut Hold::new(), descriptor, target, flags, usize::MAX)
}

/// # Safety
/// As for recvmsg(2).
unsafe fn receive_message(
    hold: &mut Hold,
    descriptor: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> Answer<usize> {
    if !is_plausible(message, size_of::<msghdr>()) {
        return Answer::error(Errno::FAULT);
    }
    // SAFETY: the program lends the header for the call, and it is where it may be.
    let message = unsafe { &mut *message };
    if message.msg_iovlen > VECTORS_MAX {
        return Answer::error(Errno::MSGSIZE);
    }
    if !is_plausible(message.msg_iov, message.msg_iovlen * size_of::<iovec>()) {
        return Answer::error(Errno::FAULT);
    }
    if !hold.has_another_socket() && datagram::is_ours(descriptor) {
        // SAFETY: the program lends the vectors and their buffers for the call.
        let target = unsafe { Target::new(message.msg_iov, message.msg_iovlen) };
        let whole = &raw mut *message;
        // SAFETY: the program's own record.
        let in_kernel = |flags| unsafe { crate::kernel::receive(descriptor, whole, flags) };
        return match datagram::receive(descriptor, target, flags, in_kernel) {
            Answer::Kernel => Answer::Kernel,
            Answer::Done(outcome) => Answer::Done(outcome.map(|received| {
                let datagram = match received {
                    Received::InKernel(length) => return length,
                    Received::Here(datagram) => datagram,
                };
                // SAFETY: the record that the program lends for the call; nothing else refers to it now.
                let message = unsafe { &mut *whole };
                match datagram.source {
                    // SAFETY: the program lends the address and its length for the call.
                    Some(source) => unsafe {
                        put_address(source, message.msg_name.cast(), &raw mut message.msg_namelen);
                    },
                    None => message.msg_namelen = 0,
                }
                // SAFETY: the program lends the room for control messages for the call.
                message.msg_flags = unsafe { ancillary::put_about(message, &datagram) };
                datagram.length
            })),
        };
    }
    // SAFETY: the program lends the vectors and their buffers for the call.
    let target = unsafe { Target::new(message.msg_iov, message.msg_iovlen) };
    let answer = data::receive(hold, descriptor, target, flags, usize::MAX);
    if let Answer::Done(Ok(_)) = answer {
        message.msg_namelen = 0;
        // SAFETY: the program lends the room for control messages for the call.
        message.msg_flags = unsafe { ancillary::put_unread(message, hold.unread) };
    }
    answer
}

/// A record after another, as do_recvmmsg() in net/socket.c takes them: also on a stream. The timeout is looked at after each
/// record, and only then. What fails after the first one is the next call's. The descriptor is looked up once: a call whose socket is
/// closed while it waits goes on with that.
///
/// # Safety
/// As for recvmmsg(2), with at least one record.
unsafe fn receive_several(
    descriptor: c_int,
    messages: *mut mmsghdr,
    number: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> Result<usize, Errno> {
    // SAFETY: the program lends the timeout for the call if it is not null.
    let mut timeout = unsafe { timeout.as_mut() };
    let mut deadline = None;
    if let Some(time) = &timeout {
        let (Ok(seconds), Ok(nanoseconds @ 0..1_000_000_000)) =
            (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec))
        else {
            return Err(Errno::INVAL);
        };
        let time = core::time::Duration::new(seconds.min(1 << 32), nanoseconds);
        deadline = Some(crate::kernel::now() + time);
    }
    if flags & libc::MSG_ERRQUEUE == 0
        && let Some(error) = data::take_error(descriptor)
    {
        return Err(error);
    }
    let mut flags_of_one = flags & !libc::MSG_WAITFORONE;
    let most = number.min(VECTORS_MAX as c_uint) as usize;
    let (mut done, mut hold) = (0, Hold::new());
    while done < most {
        // SAFETY: the program lends `number` records for the call.
        let record = unsafe { &mut *messages.add(done) };
        // SAFETY: as above; the next function gets the program's own record.
        let outcome = unsafe {
            match receive_message(&mut hold, descriptor, &raw mut record.msg_hdr, flags_of_one) {
                Answer::Kernel => {
                    let descriptor = hold.elsewhere().unwrap_or(descriptor);
                    let outcome = next::recvmsg(descriptor, &raw mut record.msg_hdr, flags_of_one);
                    usize::try_from(outcome).map_err(|_| super::last_error())
                }
                Answer::Done(outcome) => outcome,
            }
        };
        match outcome {
            Ok(length) => record.msg_len = length as c_uint,
            Err(error) if done == 0 => return Err(error),
            Err(error) => {
                if !matches!(error, Errno::AGAIN | Errno::INTR) {
                    data::put_back_error(&mut hold, descriptor, error);
                }
                break;
            }
        }
        done += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags_of_one |= libc::MSG_DONTWAIT;
        }
        if let (Some(deadline), Some(timeout)) = (deadline, &mut timeout) {
            let left_us = deadline.as_micros().saturating_sub(crate::kernel::now().as_micros());
            timeout.tv_sec = (left_us / 1_000_000) as i64;
            timeout.tv_nsec = (left_us % 1_000_000 * 1000) as i64;
            if left_us == 0 {
                break;
            }
        }
    }
    Ok(done)
}

/// Listeners that a message brought from another process may be accelerated.
///
/// # Safety
/// As for recvmsg(2).
unsafe fn adopt_passed(message: *const msghdr) {
    let adopt = |passed| {
        life::adopt(passed);
        Ok(())
    };
    // SAFETY: the caller's promise.
    let _ = unsafe { each_passed(message, adopt) };
}

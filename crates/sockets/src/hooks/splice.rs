//! splice() between pipes and connections: by copying, and nobody waits for a pipe with the lock held.

use core::ffi::{c_int, c_uint};

use libc::{size_t, ssize_t};
use rustix::io::Errno;

use super::data::is_connection;
use super::{count, next};
use crate::calls::hold::Hold;
use crate::calls::{Answer, data};
use crate::cancel;
use crate::memory::Target;
use crate::process::before_kernel_wait;

/// # Safety
/// As for splice(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_offset: *mut i64,
    to: c_int,
    to_offset: *mut i64,
    length: size_t,
    flags: c_uint,
) -> ssize_t {
    cancel::point();
    let connections = (is_connection(from), is_connection(to));
    if connections == (false, false) {
        // SAFETY: the program's arguments, handed on.
        return unsafe { next::splice(from, from_offset, to, to_offset, length, flags) };
    }
    if length == 0 {
        return 0;
    }
    let at_once = flags & libc::SPLICE_F_NONBLOCK != 0;
    // SAFETY: the program's arguments, handed on.
    let in_kernel = || unsafe { next::splice(from, from_offset, to, to_offset, length, flags) };
    if !from_offset.is_null() || !to_offset.is_null() {
        // Neither a pipe nor a socket has one: the kernel says whose it is (do_splice() in fs/splice.c).
        return in_kernel();
    }
    if connections.1 {
        return splice_to_connection(from, to, length, flags, in_kernel);
    }
    splice_from_connection(from, to, length, at_once, in_kernel)
}

/// Waits, with no lock held, until a pipe's end is ready. `Ok(false)`: it is not, and nothing more will come.
fn wait_for_pipe(end: c_int, events: i16, at_once: bool) -> Result<bool, Errno> {
    let since = crate::sys::handlers_run();
    before_kernel_wait();
    loop {
        let mut polled = [libc::pollfd { fd: end, events, revents: 0 }];
        let outcome = crate::sys::poll(&mut polled, if at_once { Some(0) } else { None }, since);
        let found = polled[0].revents;
        if found & libc::POLLERR != 0 {
            // Nobody reads it.
            crate::sys::raise_signal(libc::SIGPIPE);
            return Err(Errno::PIPE);
        }
        if found & events != 0 {
            return Ok(true);
        }
        if found & libc::POLLHUP != 0 {
            return Ok(false);
        }
        if at_once {
            return Err(Errno::AGAIN);
        }
        if crate::sys::interrupted(since, true) {
            return Err(Errno::INTR);
        }
        if let Err(error) = outcome
            && error != Errno::INTR
        {
            return Err(error);
        }
    }
}

/// Moves bytes from a pipe, as many as are there. What the connection does not take would be lost, so no more is taken out of the
/// pipe than it has room for.
fn splice_to_connection(
    from: c_int,
    to: c_int,
    length: size_t,
    flags: c_uint,
    in_kernel: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let [at_once, more] = [libc::SPLICE_F_NONBLOCK, libc::SPLICE_F_MORE].map(|flag| flags & flag != 0);
    if crate::kernel::pipe_size(from).is_err() {
        // Neither end is a pipe: the kernel says so.
        return in_kernel();
    }
    let pipe_at_once = at_once || crate::kernel::is_nonblocking(from);
    loop {
        match wait_for_pipe(from, libc::POLLIN, pipe_at_once) {
            Ok(true) => {}
            Ok(false) => return 0,
            Err(error) => return count(Err(error)),
        }
        match data::send_from_pipe(to, from, length, at_once, more) {
            Answer::Kernel => return in_kernel(),
            // Somebody else has read it.
            Answer::Done(Ok(0)) if length > 0 => {}
            Answer::Done(outcome) => return count(outcome),
        }
    }
}

/// Moves bytes into a pipe: no more than it has room for.
fn splice_from_connection(
    from: c_int,
    to: c_int,
    length: size_t,
    at_once: bool,
    in_kernel: impl FnOnce() -> ssize_t,
) -> ssize_t {
    /// A pipe that poll() says has room takes as many whatever is in it.
    const PAGE: usize = 4096;
    let Ok(size) = crate::kernel::pipe_size(to) else { return in_kernel() };
    // As in Linux, where a full pipe is waited for before the socket is looked at (splice_file_to_pipe() in fs/splice.c).
    if let Err(error) = wait_for_pipe(to, libc::POLLOUT, at_once || crate::kernel::is_nonblocking(to)) {
        return count(Err(error));
    }
    // SPLICE_F_NONBLOCK is about the pipe alone: the socket's own O_NONBLOCK decides (tcp_splice_read() in net/ipv4/tcp.c).
    let mut buffer = [0u8; 16 * 1024];
    let room = if crate::kernel::waiting_in_pipe(to) == Ok(0) { size.min(buffer.len()) } else { PAGE };
    let vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: length.min(room) };
    // SAFETY: the buffer is ours.
    let target = unsafe { Target::new(&raw const vector, 1) };
    // SO_RCVLOWAT is not about splice() (the same function).
    let bytes = match data::receive(&mut Hold::new(), from, target, 0, 1) {
        Answer::Kernel => return in_kernel(),
        Answer::Done(Ok(length)) => &buffer[..length],
        Answer::Done(outcome) => return count(outcome),
    };
    let mut written = 0;
    while written < bytes.len() {
        match crate::kernel::write_at_once(to, &bytes[written..]) {
            Ok(taken) => written += taken,
            // Another thread has written meanwhile, and these bytes have been taken.
            Err(Errno::AGAIN) => match wait_for_pipe(to, libc::POLLOUT, false) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return count(Err(error)),
            },
            Err(error) => return count(Err(error)),
        }
    }
    written as ssize_t
}

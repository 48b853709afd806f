//! Connections that were handed over before any connect() had said that they are made.

use rustix::io::Errno;

use super::Answer;
use crate::{kernel, table};

/// The first connect() of a connection that was handed over before any had said that it is made: the kernel does not know of that
/// (inet_stream_connect() in Linux, net/ipv4/af_inet.c).
pub(super) fn connect(descriptor: i32) -> Answer<()> {
    let socket = kernel::borrow(descriptor);
    match kernel::is_unconnected(descriptor) {
        None => Answer::Kernel,
        Some(false) => Answer::ok(()),
        // Another process may have ended it by connect() to AF_UNSPEC.
        Some(true) if !kernel::was_connected(descriptor) => Answer::Kernel,
        Some(true) => {
            let error = rustix::net::sockopt::socket_error(socket).ok().and_then(Result::err);
            let _ = rustix::net::connect_unspec(socket);
            Answer::error(error.unwrap_or(Errno::CONNABORTED))
        }
    }
}

/// The kernel closes one, or any other descriptor of its own.
pub(super) fn leave<T>(descriptor: i32) -> Answer<T> {
    table::forget_untold(descriptor);
    Answer::Kernel
}

/// A connect() says now that the connection is made.
pub(super) fn made(descriptor: i32) -> Answer<()> {
    table::forget_untold(descriptor);
    Answer::ok(())
}

/// shutdown() of one: no connect() has to say anything any more, in any process, unless it has ended (inet_shutdown() in Linux).
pub(super) fn shut(descriptor: i32, answer: Answer<()>) -> Answer<()> {
    if kernel::is_unconnected(descriptor) == Some(false) {
        table::take_untold(descriptor);
    }
    answer
}

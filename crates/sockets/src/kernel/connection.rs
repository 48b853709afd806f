//! What the kernel knows of a socket's connection, and what it keeps for us.

use rustix::io::Errno;
use rustix::net::{connect_unspec, listen, sockopt};

use super::{borrow, local_address, number};
use crate::options::Backing;
use crate::sys;

// include/net/tcp_states.h
const ESTABLISHED: u8 = 1;
const CLOSE: u8 = 7;
const CLOSE_WAIT: u8 = 8;

/// `None` if it is no TCP socket.
fn state(descriptor: i32) -> Option<u8> {
    let mut state = [0];
    let told = Backing(descriptor).get(libc::IPPROTO_TCP, libc::TCP_INFO, &mut state) == Ok(1);
    told.then_some(state[0])
}

/// Neither connected, nor about to be, nor listening.
/// `None` if it is no TCP socket.
pub(crate) fn is_unconnected(descriptor: i32) -> Option<bool> {
    state(descriptor).map(|state| state == CLOSE)
}

/// By the peer's FIN, by shutdown(), or since its connection is over.
pub(crate) fn is_shut_for_reading(descriptor: i32) -> bool {
    let mut polled = [libc::pollfd { fd: descriptor, events: libc::POLLRDHUP, revents: 0 }];
    let _ = sys::poll(&mut polled, Some(0), sys::handlers_run());
    polled[0].revents & libc::POLLRDHUP != 0
}

/// The broker is making a connection of the socket: calls say EPERM.
pub(crate) fn is_in_repair(descriptor: i32) -> bool {
    number(descriptor, libc::IPPROTO_TCP, libc::TCP_REPAIR).is_ok_and(|repair| repair != 0)
}

/// A port that nobody chose by its number is free again, as that of a connection that is over (tcp_set_state() in Linux, net/ipv4/tcp.c):
/// the kernel lets go of it when the socket listens no more.
pub(crate) fn forget_port(descriptor: i32) {
    if local_address(descriptor).is_some_and(|bound| bound.port() != 0)
        && listen(borrow(descriptor), 0).is_ok()
    {
        let _ = connect_unspec(borrow(descriptor));
    }
}

/// The socket's connection was handed over, and some connect() has still to say that it is made, or how it has ended. The kernel does not
/// know that, but keeps it for whoever has the socket: in an option that means nothing to TCP.
pub(crate) fn set_untold(descriptor: i32, untold: bool) {
    let _ = Backing(descriptor).set(libc::IPPROTO_IP, libc::IP_RETOPTS, &i32::from(untold).to_ne_bytes());
}

fn is_untold(descriptor: i32) -> bool {
    number(descriptor, libc::IPPROTO_IP, libc::IP_RETOPTS) == Ok(1)
}

/// After shutdown() no connect() has anything to say. Of a connection that is over it says EINVAL then, until AF_UNSPEC (SS_DISCONNECTING,
/// inet_shutdown() in Linux, net/ipv4/af_inet.c).
pub(crate) fn need_not_tell(descriptor: i32, is_over: bool) {
    if is_untold(descriptor) {
        set_untold(descriptor, false);
        set_shut_untold(descriptor, is_over);
    }
}

/// AF_UNSPEC has ended the connection: nothing is to be told of it.
pub(crate) fn forget_what_to_tell(descriptor: i32) {
    set_untold(descriptor, false);
    if is_shut_untold(descriptor) {
        set_shut_untold(descriptor, false);
    }
}

/// As [`set_untold`], in another such option.
fn set_shut_untold(descriptor: i32, shut: bool) {
    let _ = Backing(descriptor).set(libc::IPPROTO_IP, libc::IP_RECVOPTS, &i32::from(shut).to_ne_bytes());
}

fn is_shut_untold(descriptor: i32) -> bool {
    number(descriptor, libc::IPPROTO_IP, libc::IP_RECVOPTS) == Ok(1)
}

/// The kernel's connect() has said EISCONN: what it says if it is the first one of a connection that was handed over before any
/// (inet_stream_connect() in Linux, net/ipv4/af_inet.c).
pub(crate) fn tell_connect(descriptor: i32) -> Result<(), Errno> {
    let Some(state) = state(descriptor) else { return Err(Errno::ISCONN) };
    if !is_untold(descriptor) {
        let shut_untold = state == CLOSE && is_shut_untold(descriptor);
        return Err(if shut_untold { Errno::INVAL } else { Errno::ISCONN });
    }
    set_untold(descriptor, false);
    match state {
        CLOSE => {
            let error = sockopt::socket_error(borrow(descriptor)).ok().and_then(Result::err);
            let _ = connect_unspec(borrow(descriptor));
            Err(error.unwrap_or(Errno::CONNABORTED))
        }
        CLOSE_WAIT => Ok(()),
        ESTABLISHED if !is_shut_for_reading(descriptor) => Ok(()),
        // After shutdown() by another process no connect() has anything to say (inet_shutdown()).
        _ => Err(Errno::ISCONN),
    }
}

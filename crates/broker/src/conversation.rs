//! How a process finds a broker, says something and hears the answer.

use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use overfly_link::messages::{self, DESCRIPTORS_MAX};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
};
use rustix::process::geteuid;
use zerocopy::IntoBytes;

use crate::message::{Hello, MESSAGE_LEN_MAX, Reply, Role};
use crate::{Error, PeerIdentity, may_return, parse_environment};

/// Longer than the broker ever takes: a next hop may take a second to answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Nothing has come, and nobody has hung up.
pub(crate) fn is_silent(socket: &OwnedFd) -> bool {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    rustix::net::recv(socket, &mut [0_u8; 1][..], flags) == Err(Errno::AGAIN)
}

pub(crate) fn move_up(descriptor: &mut OwnedFd, least: i32) {
    if let Ok(moved) = rustix::io::fcntl_dupfd_cloexec(&*descriptor, least) {
        *descriptor = moved;
    }
}

fn gone(operation: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| match errno {
        // The broker says none of these: seccomp(2) filters and security modules do.
        Errno::PERM | Errno::ACCESS | Errno::NOSYS => Error::Forbidden { operation, errno },
        _ => Error::Gone { operation, errno: Some(errno) },
    }
}

pub(crate) fn greet(environment: &str, role: Role) -> Result<OwnedFd, Error> {
    let (name, token) = parse_environment(environment)?;
    // A name that everybody knows is anybody's while there is no broker.
    let nobody = Error::Gone { operation: "connect", errno: Some(Errno::CONNREFUSED) };
    let socket = match dial(name) {
        Err(Error::Gone { errno: Some(Errno::AGAIN), .. }) if may_return(name) => return Err(nobody),
        dialed => dialed?,
    };
    if may_return(name) && !is_ours(&socket) {
        return Err(nobody);
    }
    match tell(socket.as_fd(), Hello::new(role, token).as_bytes()) {
        Ok(()) => Ok(socket),
        // A broker that has no room says so and hangs up, perhaps before it has heard anything.
        Err(error) => match hear(socket.as_fd(), Reply::parse) {
            Err(refused @ Error::Refused { .. }) => Err(refused),
            _ => Err(error),
        },
    }
}

/// Whether a process of this one's user listens at the other end, or of root's, who could do all that a stranger there might do.
pub(crate) fn is_ours(socket: &OwnedFd) -> bool {
    PeerIdentity::of(socket).is_ok_and(|peer| [0, geteuid().as_raw()].contains(&peer.user))
}

/// Connects to the broker of that name.
pub(crate) fn dial(name: &str) -> Result<OwnedFd, Error> {
    dial_within(name, PATIENCE)
}

/// As [`dial`]; no step takes longer than `patience`. Where anybody may listen, the first one takes no time at all: who listens and accepts
/// nobody would have others wait.
pub(crate) fn dial_within(name: &str, patience: Duration) -> Result<OwnedFd, Error> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(|_| Error::Address)?;
    dial_address(&address, patience, may_return(name))
}

/// As [`dial_within`], wherever that is; `open`: anybody may listen there.
pub(crate) fn dial_address(
    address: &SocketAddrUnix,
    patience: Duration,
    open: bool,
) -> Result<OwnedFd, Error> {
    let flags = if open { SocketFlags::CLOEXEC | SocketFlags::NONBLOCK } else { SocketFlags::CLOEXEC };
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|errno| Error::system("creating a Unix socket", errno))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(patience))
        .and_then(|()| set_socket_timeout(&socket, Timeout::Send, Some(patience)))
        .map_err(|errno| Error::system("SO_RCVTIMEO", errno))?;
    loop {
        match connect(&socket, address) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(gone("connect")(errno)),
        }
    }
    if open {
        rustix::fs::fcntl_setfl(&socket, OFlags::empty()).map_err(|errno| Error::system("F_SETFL", errno))?;
    }
    Ok(socket)
}

pub(crate) fn tell(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Error> {
    tell_with(socket, bytes, &[])
}

pub(crate) fn tell_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Error> {
    messages::send(socket, bytes, descriptors, SendFlags::empty()).map_err(gone("send"))
}

pub(crate) fn hear<T>(
    socket: BorrowedFd<'_>,
    parse: impl FnOnce(&[u8]) -> Result<T, Error>,
) -> Result<T, Error> {
    hear_with_descriptors(socket, RecvFlags::empty(), parse).map(|(message, _)| message)
}

pub(crate) fn hear_with_descriptors<T>(
    socket: BorrowedFd<'_>,
    flags: RecvFlags,
    parse: impl FnOnce(&[u8]) -> Result<T, Error>,
) -> Result<(T, [Option<OwnedFd>; DESCRIPTORS_MAX]), Error> {
    let mut bytes = [0; MESSAGE_LEN_MAX];
    let (length, descriptors) = match messages::receive(socket, &mut bytes, flags) {
        // Who hung up did not read what it was told last; what it said before comes behind that.
        Err(Errno::CONNRESET) => messages::receive(socket, &mut bytes, flags),
        received => received,
    }
    .map_err(gone("receive"))?;
    if length == 0 {
        return Err(Error::Gone { operation: "receive", errno: None });
    }
    let mut descriptors = descriptors.into_iter();
    Ok((parse(&bytes[..length])?, core::array::from_fn(|_| descriptors.next())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_forbids_is_not_said_to_be_gone() {
        for errno in [Errno::PERM, Errno::ACCESS, Errno::NOSYS] {
            let error = gone("send")(errno);
            assert!(!error.is_end_of_broker());
            let said = error.to_string();
            assert!(said.contains("may not talk to the broker") && said.contains("seccomp"), "{said}");
        }
        assert!(gone("send")(Errno::PIPE).is_end_of_broker());
    }

    #[test]
    fn nobody_at_the_name_may_be_another_network_namespace() {
        let error = dial("overfly-nobody-has-this-name").unwrap_err();
        assert!(error.is_end_of_broker());
        let said = error.to_string();
        assert!(said.contains("listens in this network namespace: it has ended, or"), "{said}");
    }
}

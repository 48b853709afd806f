//! What observers (`overfly top`, `sockets`, `dump`) are told of a program's processes, whatever carries its frames.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use overfly_link::broker::message::{Reply, Shown, ShownPart};
use overfly_link::broker::observer;
use overfly_link::{messages, watch};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use rustix::process::{Pid, geteuid};
use zerocopy::IntoBytes;

use crate::error::Error;

/// A listener at an abstract name.
pub(crate) fn listen_at(name: &str) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    listen(&socket, 1024)?;
    Ok(socket)
}

/// Where observers find the processes over a link. `None` if somebody else has that name: then nobody can look, and all else
/// is as ever.
pub(crate) fn listen_for(link: &str) -> Option<OwnedFd> {
    listen_at(&public_name(link)).ok()
}

/// Where observers and programs look for the broker of a link.
pub(crate) fn public_name(link: &str) -> String {
    format!("{}{link}", observer::PREFIX)
}

/// Who connected, as the kernel says it.
#[derive(Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) process: Pid,
    pub(crate) user: u32,
}

impl Peer {
    pub(crate) fn of(socket: &OwnedFd) -> Option<Peer> {
        let peer = socket_peercred(socket).ok()?;
        Some(Peer { process: peer.pid, user: peer.uid.as_raw() })
    }

    /// Root sees everybody, others see their own.
    pub(crate) fn may_see(self, other: Peer) -> bool {
        self.user == 0 || self.user == other.user
    }

    /// Who could do what the broker does may have it done.
    pub(crate) fn may_join(self) -> bool {
        self.user == geteuid().as_raw()
    }
}

/// A process, as observers are told of it.
pub(crate) struct Seen {
    peer: Peer,
    memory: OwnedFd,
    bell: OwnedFd,
}

impl Seen {
    /// Makes what a process shows itself in.
    pub(crate) fn new(peer: Option<Peer>) -> Result<Seen, Error> {
        let peer = peer.ok_or_else(|| Error::Options("a process that nobody sees".to_owned()))?;
        let (memory, bell) = watch::create()?;
        Ok(Seen { peer, memory, bell })
    }

    /// Hands it to the process, or to who looks at it. False if that one does not read.
    pub(crate) fn deliver(&self, socket: &OwnedFd, stack: Option<u16>) -> bool {
        let process = self.peer.process.as_raw_nonzero().get().unsigned_abs();
        let part = ShownPart::new(&Shown { process, user: self.peer.user, stack });
        deliver(socket, part.as_bytes(), &[self.memory.as_fd(), self.bell.as_fd()])
    }
}

/// Tells an observer of every process that it may see.
pub(crate) fn tell_all<'a>(
    socket: &OwnedFd,
    observer: Option<Peer>,
    mut processes: impl Iterator<Item = (&'a Seen, Option<u16>)>,
) -> bool {
    let Some(observer) = observer else { return false };
    processes.all(|(seen, stack)| !observer.may_see(seen.peer) || seen.deliver(socket, stack))
        && deliver(socket, Reply::yes(None).as_bytes(), &[])
}

/// Sends a message, without waiting: a client that does not read 256 KiB of answers is not worth it.
pub(crate) fn deliver(socket: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
    messages::send(socket, bytes, descriptors, SendFlags::DONTWAIT).is_ok()
}

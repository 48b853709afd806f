//! What observers (`overfly top`, `sockets`, `dump`) are told of a program's processes, whatever carries its frames.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use overfly_link::messages;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use zerocopy::IntoBytes;

use crate::message::{LeftPart, Reply, Shown, ShownPart};
use crate::{Error, LeftFrames, PeerIdentity, observer, peer_process, watch};

/// Groups that a process can have (NGROUPS_MAX in include/uapi/linux/limits.h).
const GROUPS_MAX: usize = 65_536;

/// A listener at an abstract name.
pub fn listen_at(name: &str) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    listen(&socket, 1024)?;
    Ok(socket)
}

/// Where observers find the processes over a link. `None` if somebody else has that name: then nobody can look, and all else
/// is as ever.
pub fn listen_for(link: &str) -> Option<OwnedFd> {
    listen_at(&public_name(link)).ok()
}

/// Where observers and programs look for the broker of a link.
pub fn public_name(link: &str) -> String {
    format!("{}{link}", observer::PREFIX)
}

/// Who connected, as the kernel says it.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The process.
    pub process: Pid,
    /// Its user.
    pub user: u32,
}

impl Peer {
    /// At the other end of `socket`. Nothing if it is out of sight.
    pub(crate) fn of(socket: &OwnedFd) -> Option<Peer> {
        let peer = PeerIdentity::of(socket).ok()?;
        Some(Peer { process: peer.process?, user: peer.user })
    }

    /// The process itself: readable once it has ended. Nothing if it has ended already or is out of sight.
    pub(crate) fn handle(self, socket: &OwnedFd) -> Option<OwnedFd> {
        match peer_process(socket) {
            // Before Linux 6.5: its number may be another's by now.
            Err(Errno::NOPROTOOPT) => pidfd_open(self.process, PidfdFlags::empty()).ok(),
            process => process.ok(),
        }
    }

    /// The group and the supplementary groups with which it connected. What /proc says may be another program's by now: one that it
    /// has become, with a set-group-id bit.
    pub(crate) fn groups(socket: &OwnedFd) -> Option<Vec<u32>> {
        let own = PeerIdentity::of(socket).ok()?.group;
        let mut groups = vec![0_u32; GROUPS_MAX];
        let mut length = size_of_val(&groups[..]) as libc::socklen_t;
        // SAFETY: the kernel writes `length` bytes at most, which is what the vector has, and says how many they were.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            return None;
        }
        groups.truncate(length as usize / size_of::<u32>());
        groups.push(own);
        Some(groups)
    }

    /// Root sees everybody, others see their own.
    pub(crate) fn may_see(self, other: Peer) -> bool {
        self.user == 0 || self.user == other.user
    }

    /// Who is of the broker's user may have a program served.
    pub(crate) fn may_join(self) -> bool {
        self.user == geteuid().as_raw()
    }

    /// Whether this is the process's user: as which it connected, or which it has become since (a server that gave up root).
    pub fn is(self, user: u32) -> bool {
        self.user == user || self.status().is_some_and(|status| status.user == user)
    }

    /// Who could do what the broker does may have it done: a process of its user, with CAP_NET_ADMIN where the broker has it, now
    /// and not only when it connected. `alive` says that its number is still its own.
    pub(crate) fn may_do_all(self, alive: impl FnOnce() -> bool) -> bool {
        const CAP_NET_ADMIN: u64 = 1 << 12; // include/uapi/linux/capability.h
        let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user")).ok();
        self.may_join()
            && self
                .status()
                .is_some_and(|status| status.user == self.user && status.capabilities & CAP_NET_ADMIN != 0)
            && namespace(&self.number().to_string()).is_some_and(|its| namespace("self") == Some(its))
            && alive()
    }

    /// Its process's number.
    pub(crate) fn number(self) -> u32 {
        self.process.as_raw_nonzero().get().unsigned_abs()
    }

    /// As /proc says it: nothing if the process is out of sight.
    fn status(self) -> Option<Status> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.number())).ok()?;
        let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        Some(Status {
            user: line("Uid:")?.split_ascii_whitespace().nth(1)?.parse().ok()?,
            capabilities: u64::from_str_radix(line("CapEff:")?.trim(), 16).ok()?,
        })
    }
}

/// What a process may do at the moment: its effective user and capabilities.
struct Status {
    user: u32,
    capabilities: u64,
}

/// A process, as observers are told of it.
pub(crate) struct Observed {
    peer: Peer,
    memory: OwnedFd,
    doorbell: OwnedFd,
}

impl Observed {
    /// Makes what a process shows itself in.
    pub(crate) fn new(peer: Peer) -> Result<Observed, Error> {
        let (memory, doorbell) = watch::create()?;
        Ok(Observed { peer, memory, doorbell })
    }

    /// Hands it to the process, or to who looks at it. False if that one does not read.
    pub(crate) fn deliver(&self, socket: &OwnedFd, stack: Option<u16>) -> bool {
        let process = self.peer.number();
        let part = ShownPart::new(&Shown { process, user: self.peer.user, stack });
        deliver(socket, part.as_bytes(), &[self.memory.as_fd(), self.doorbell.as_fd()])
    }
}

/// Tells an observer of every process that it may see, and of what no stack was given if it could be the broker: rules' counters are
/// the administrator's to see in the kernel, too.
pub(crate) fn tell_all<'a>(
    socket: &OwnedFd,
    observer: Option<Peer>,
    mut processes: impl Iterator<Item = (&'a Observed, Option<u16>)>,
    left: Option<LeftFrames>,
) -> bool {
    let Some(observer) = observer else { return false };
    let left = left.filter(|_| observer.user == 0 || observer.may_join());
    processes.all(|(observed, stack)| !observer.may_see(observed.peer) || observed.deliver(socket, stack))
        && left.is_none_or(|left| deliver(socket, LeftPart::new(&left).as_bytes(), &[]))
        && deliver(socket, Reply::yes(None).as_bytes(), &[])
}

/// Sends a message, without waiting: a client that does not read 256 KiB of answers is not worth it.
pub fn deliver(socket: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
    messages::send(socket, bytes, descriptors, SendFlags::DONTWAIT).is_ok()
}

//! The control socket: one message a datagram, each with one descriptor at most.

use core::mem::MaybeUninit;
use core::time::Duration;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socket_with};
use rustix::time::Timespec;

use super::Address;
use super::message::{MESSAGE_LEN, Message};
use crate::{Error, messages};

/// A connected control socket that never blocks.
#[derive(Debug)]
pub(crate) struct Control(pub(crate) OwnedFd);

/// What came.
pub(crate) enum Heard {
    Message(Message, Option<OwnedFd>),
    /// A datagram that is no message of memif.
    Nonsense,
    /// The peer is gone.
    Gone,
    /// Nothing yet.
    Nothing,
}

impl Control {
    /// Connects to a server.
    pub(crate) fn connect(address: &Address) -> Result<Control, Error> {
        let socket = make_socket()?;
        let place = address.socket_address()?;
        loop {
            match rustix::net::connect(&socket, &place) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::MemifConnect { address: address.to_string(), errno }),
            }
        }
        check_user(address, socket.as_fd())?;
        Ok(Control(socket))
    }

    /// Says something. The socket's buffer holds more messages than a handshake has, so a peer that does not read is broken.
    pub(crate) fn say(&self, message: &Message, descriptor: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        let bytes = message.to_bytes();
        messages::send(&self.0, &bytes, descriptor.as_slice(), SendFlags::empty())
            .map_err(|errno| Error::MemifGone { during: message.kind(), errno: Some(errno) })
    }

    /// What has come.
    pub(crate) fn hear(&self) -> Heard {
        // One byte more, so that a longer message is seen to be longer.
        let mut bytes = [0; MESSAGE_LEN + 1];
        let (received, descriptors) = match messages::receive(&self.0, &mut bytes, RecvFlags::DONTWAIT) {
            Ok(received) => received,
            Err(Errno::AGAIN) => return Heard::Nothing,
            Err(_) => return Heard::Gone,
        };
        if received == 0 {
            return Heard::Gone;
        }
        match Message::parse(&bytes[..received]) {
            Some(message) => Heard::Message(message, descriptors.into_iter().next()),
            None => Heard::Nonsense,
        }
    }

    /// Waits for the next message. `during` names what is waited for.
    pub(crate) fn await_message(
        &self,
        patience: Duration,
        during: &'static str,
    ) -> Result<(Message, Option<OwnedFd>), Error> {
        let deadline = Instant::now() + patience;
        loop {
            match self.hear() {
                Heard::Message(Message::Disconnect { reason, .. }, _) => {
                    return Err(Error::MemifRefused(reason));
                }
                Heard::Message(message, descriptor) => return Ok((message, descriptor)),
                Heard::Nonsense => return Err(Error::MemifProtocol(format!("no message, but {during}"))),
                Heard::Gone => return Err(Error::MemifGone { during, errno: None }),
                Heard::Nothing => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::MemifSilent { during });
            }
            wait_readable(&mut [PollFd::new(&self.0, PollFlags::IN)], left);
        }
    }

    /// Why a peer that is gone hung up, if it said so.
    pub(super) fn last_words(&self) -> Option<String> {
        // First comes ECONNRESET where it has not read all; what it has said before may be among answers.
        for _ in 0..4 {
            if let Heard::Message(Message::Disconnect { reason, .. }, _) = self.hear() {
                return Some(reason);
            }
        }
        None
    }

    /// Says why it ends. Whether the peer hears it does not matter any more.
    pub(crate) fn refuse(&self, reason: &str) {
        let _ = self.say(&Message::Disconnect { code: 0, reason: reason.to_owned() }, None);
    }
}

/// Sleeps until one of the sockets is readable, or a signal comes, or so long.
pub(crate) fn wait_readable(sockets: &mut [PollFd<'_>], patience: Duration) {
    let limit = Timespec {
        tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(patience.subsec_nanos()),
    };
    let _ = poll(sockets, Some(&limit));
}

/// A Unix socket for memif.
pub(crate) fn make_socket() -> Result<OwnedFd, Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|errno| Error::system("creating a Unix socket", errno))
}

/// Files have permissions, abstract names have not: there, only the same user and root may be the peer.
pub(crate) fn check_user(address: &Address, socket: BorrowedFd<'_>) -> Result<(), Error> {
    if address.path().is_some() {
        return Ok(());
    }
    let user = credentials(socket).map_or(u32::MAX, |peer| peer.uid);
    let own = rustix::process::geteuid().as_raw();
    if user == own || user == 0 || own == 0 {
        return Ok(());
    }
    Err(Error::MemifUser { address: address.to_string(), user })
}

/// Who is at the other end of a Unix socket. The process is 0 if it is in another PID namespace.
pub(super) fn credentials(socket: BorrowedFd<'_>) -> Option<libc::ucred> {
    option(socket, libc::SO_PEERCRED)
}

/// Whether a descriptor that a peer gave is a Unix socket that keeps messages apart: asking others whether they are readable
/// may take as long as the peer likes (FUSE).
pub(super) fn is_control(descriptor: BorrowedFd<'_>) -> bool {
    let is = |name, value: i32| option(descriptor, name) == Some(value);
    is(libc::SO_DOMAIN, libc::AF_UNIX) && is(libc::SO_TYPE, libc::SOCK_SEQPACKET)
}

/// An option of a socket's. (rustix has neither a process 0 nor SO_PEERPIDFD.) By its number: where this runs in a program's stead,
/// getsockopt() is the program's, which knows nothing of this crate's descriptors.
pub(super) fn option<T: Copy>(socket: BorrowedFd<'_>, name: i32) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes `length` bytes at most.
    let result = unsafe {
        libc::syscall(
            libc::SYS_getsockopt,
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            value.as_mut_ptr(),
            &raw mut length,
        )
    };
    // SAFETY: the kernel has written all of it; the options that are asked for here are made of integers.
    (result == 0 && length as usize == size_of::<T>()).then(|| unsafe { value.assume_init() })
}

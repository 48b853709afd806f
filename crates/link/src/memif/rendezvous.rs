//! How programs on one host find each other: whoever listens at an address and port binds an abstract Unix name that says so,
//! and whoever connects there connects to that name and shows its memory, in one message. Abstract names belong to a network
//! namespace, as addresses and ports do, and end with their process. Both ends are of one user.

use core::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, socketpair,
};
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::client::Layout;
use super::control::make_socket;
use super::message::Direction;
use super::server::is_eventfd;
use super::{Pair, RingEnd, Role, Settings, region};
use crate::{Error, messages};

/// Processes that listen at one address and port, at most.
pub(super) const PLACES: u16 = 32;
/// Offers that wait to be taken.
const BACKLOG: i32 = 64;
/// Descriptors of an offer: memory, the interrupts of both rings, the control socket.
const DESCRIPTORS: usize = 4;
/// "OVFL", and the version of the offer and of the frames.
const MAGIC: [u8; 4] = *b"OVFL";
const VERSION: u16 = 1;

/// The name of the `place`-th process that listens at `local`.
fn name(local: SocketAddr, place: u16) -> Result<SocketAddrUnix, Error> {
    SocketAddrUnix::new_abstract_name(format!("overfly-loopback/{local}/{place}").as_bytes())
        .map_err(|errno| Error::system("naming a place of the host's", errno))
}

/// A process's place among those that listen at an address and port.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) place: u16,
}

impl Door {
    /// Takes the first free place.
    pub(super) fn open(local: SocketAddr) -> Result<(Door, OwnedFd), Error> {
        let socket = make_socket()?;
        for place in 0..PLACES {
            match bind(&socket, &name(local, place)?) {
                Ok(()) => {
                    listen(&socket, BACKLOG).map_err(|errno| Error::system("listen", errno))?;
                    return Ok((Door { place }, socket));
                }
                Err(Errno::ADDRINUSE) => {}
                Err(errno) => return Err(Error::system("binding a place of the host's", errno)),
            }
        }
        Err(Error::Layout("32 processes listen there: there is no place for another"))
    }

    /// Who has come, if anybody has; of another user are turned away.
    pub(super) fn accept(socket: impl AsFd) -> Option<OwnedFd> {
        loop {
            match accept_with(&socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(visitor) if process_of(visitor.as_fd()).is_some() => return Some(visitor),
                Ok(_) | Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => return None,
            }
        }
    }
}

/// The peer's process, as this one counts processes, if it is of the same user: 0 for one of another PID namespace, of which
/// there may be several.
pub(super) fn process_of(socket: BorrowedFd<'_>) -> Option<i32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes one such record at most. (rustix's has no process 0.)
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    (result == 0 && peer.uid == rustix::process::geteuid().as_raw()).then_some(peer.pid)
}

/// Where connections may go.
#[derive(Debug)]
pub(super) enum Found {
    /// A process, by its number, at the other end of a socket.
    Process(i32, OwnedFd),
    Nobody,
}

/// Looks who is at a place. `socket` is one that is not connected yet; a new one is left there if it was used.
pub(super) fn knock(local: SocketAddr, place: u16, socket: &mut Option<OwnedFd>) -> Result<Found, Error> {
    let unused = match socket.take() {
        Some(unused) => unused,
        None => make_socket()?,
    };
    match connect(&unused, &name(local, place)?) {
        Ok(()) => Ok(process_of(unused.as_fd()).map_or(Found::Nobody, |pid| Found::Process(pid, unused))),
        // A full queue is as good as nobody: the kernel has one, too.
        Err(_) => {
            *socket = Some(unused);
            Ok(Found::Nobody)
        }
    }
}

/// The only message.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Offer {
    magic: [u8; 4],
    version: U16,
    log2_ring_size: u8,
    reserved: u8,
    buffer_len: U32,
}

/// Makes memory for a link, offers it to the process at the other end of `channel`, and returns this end's part. Frames can be
/// sent at once.
pub(super) fn offer(channel: &OwnedFd, settings: &Settings) -> Result<Pair, Error> {
    let layout = Layout::new(settings)?;
    let memory = region::make(layout.length)?;
    layout.initialize(&memory)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (control, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|errno| Error::system("socketpair", errno))?;
    let pair = Pair {
        role: Role::Client,
        to_server: layout.ring_end(0, Direction::ToServer)?,
        to_client: layout.ring_end(0, Direction::ToClient)?,
        regions: vec![(memory, layout.length as u64)],
        control,
        mtu: settings.mtu,
        offload: true,
    };
    let offer = Offer {
        magic: MAGIC,
        version: U16::new(VERSION),
        log2_ring_size: settings.log2_ring_size,
        reserved: 0,
        buffer_len: U32::new(settings.buffer_len),
    };
    let rights = [&pair.regions[0].0, &pair.to_server.interrupt, &pair.to_client.interrupt, &theirs];
    say(channel, offer.as_bytes(), &rights.map(AsFd::as_fd))?;
    Ok(pair)
}

/// What a visitor offers: `None` if it has said nothing yet.
///
/// # Errors
/// [`Error::MemifProtocol`] for what makes no sense, [`Error::MemifGone`].
pub(super) fn take_offer(channel: impl AsFd) -> Result<Option<Pair>, Error> {
    let Some((bytes, descriptors)) = hear(channel, size_of::<Offer>())? else { return Ok(None) };
    let broken = |what: &str| Error::MemifProtocol(what.to_owned());
    let offer = Offer::read_from_bytes(&bytes).map_err(|_| broken("an offer of another length"))?;
    if offer.magic != MAGIC || offer.version.get() != VERSION {
        return Err(broken("an offer of another version"));
    }
    let [memory, to_server, to_client, control] = <[OwnedFd; DESCRIPTORS]>::try_from(descriptors)
        .map_err(|_| broken("an offer without its descriptors"))?;
    let settings = Settings {
        log2_ring_size: offer.log2_ring_size,
        buffer_len: offer.buffer_len.get(),
        ..Settings::default()
    };
    settings.check()?;
    let layout = Layout::new(&settings)?;
    region::check(memory.as_fd(), layout.length as u64).map_err(broken)?;
    if !is_eventfd(to_server.as_fd()) || !is_eventfd(to_client.as_fd()) {
        return Err(broken("an interrupt that is no eventfd"));
    }
    let end = |direction, interrupt| RingEnd { place: layout.place(0, direction), interrupt, buffers: None };
    Ok(Some(Pair {
        role: Role::Server,
        to_server: end(Direction::ToServer, to_server),
        to_client: end(Direction::ToClient, to_client),
        regions: vec![(memory, layout.length as u64)],
        control,
        mtu: settings.mtu,
        offload: true,
    }))
}

/// Says something over a channel, with descriptors.
pub(super) fn say(channel: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
    messages::send(channel, bytes, descriptors, SendFlags::empty())
        .map_err(|errno| Error::MemifGone { during: "an offer", errno: Some(errno) })
}

/// What was said, and the descriptors that came with it.
pub(super) type Heard = (Vec<u8>, Vec<OwnedFd>);

/// What has come over a channel, `most` bytes at most: `None` if nothing has.
pub(super) fn hear(channel: impl AsFd, most: usize) -> Result<Option<Heard>, Error> {
    // One byte more, so that a longer message is seen to be longer.
    let mut bytes = vec![0; most + 1];
    let (received, descriptors) = match messages::receive(channel, &mut bytes, RecvFlags::DONTWAIT) {
        Ok((0, _)) => return Err(Error::MemifGone { during: "an offer", errno: None }),
        Ok(received) => received,
        Err(Errno::AGAIN) => return Ok(None),
        Err(errno) => return Err(Error::MemifGone { during: "an offer", errno: Some(errno) }),
    };
    bytes.truncate(received);
    Ok(Some((bytes, descriptors)))
}

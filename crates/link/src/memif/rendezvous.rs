//! How programs on one host find each other: whoever listens at an address and port binds an abstract Unix name that says so,
//! and whoever connects there connects to that name and shows its memory, in one message. Abstract names belong to a network
//! namespace, as addresses and ports do, and end with their process. Both ends are of one user.

use core::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, socketpair,
};
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::client::Layout;
use super::control::{credentials, is_control, make_socket, option};
use super::message::Direction;
use super::server::is_eventfd;
use super::{Pair, RingEnd, Role, Settings, region};
use crate::{Error, messages};

/// Stacks of a process at most: [`super::Loopback::new`] is told which one it is.
pub const PROCESS_STACKS_MAX: u8 = 32;
/// Places at an address and port: 32 for processes' first stacks, two for the second ones, two for the third ones and so on.
pub(super) const PLACES: u16 = FIRST_STACKS + FURTHER_STACKS * FURTHER;
const FIRST_STACKS: u16 = 32;
const FURTHER_STACKS: u16 = 2;
/// A process's stacks besides its first.
const FURTHER: u16 = PROCESS_STACKS_MAX as u16 - 1;
/// The file system of process descriptors (linux/magic.h). Since Linux 6.9 each process has an inode of its own there.
const PIDFS_MAGIC: u32 = 0x5049_4446;
/// A process's number as this PID namespace has it, not its inode's.
const IS_PID: u64 = 1 << 63;
/// Offers that wait to be taken.
const BACKLOG: i32 = 64;
/// Descriptors of an offer: memory, the interrupts of both rings, the control socket.
const DESCRIPTORS: usize = 4;
/// "OVFL", and the version of the offer and of the frames.
const MAGIC: [u8; 4] = *b"OVFL";
const VERSION: u16 = 1;

/// The places that a process's stack may take: the place says which of its process's stacks it is.
pub(super) fn places_of(stack: u8) -> impl Iterator<Item = u16> {
    let (first, step, count) = match u16::from(stack) {
        0 => (0, 1, FIRST_STACKS),
        further => (FIRST_STACKS + further - 1, FURTHER, FURTHER_STACKS),
    };
    (0..count).map(move |turn| first + turn * step)
}

/// Which of its process's stacks has the place.
pub(super) fn stack_at(place: u16) -> u8 {
    place.checked_sub(FIRST_STACKS).map_or(0, |further| (further % FURTHER) as u8 + 1)
}

/// The name of a place at `local`.
fn name(local: SocketAddr, place: u16) -> Result<SocketAddrUnix, Error> {
    SocketAddrUnix::new_abstract_name(format!("overfly-loopback/{local}/{place}").as_bytes())
        .map_err(|errno| Error::system("naming a place of the host's", errno))
}

/// A stack's place among those that listen at an address and port.
#[derive(Debug)]
pub(super) struct NamedListener {
    pub(super) place: u16,
}

impl NamedListener {
    /// Takes the first place that is free for the process's stack of that number.
    pub(super) fn open(local: SocketAddr, stack: u8) -> Result<(NamedListener, OwnedFd), Error> {
        let socket = make_socket()?;
        for place in places_of(stack) {
            match bind(&socket, &name(local, place)?) {
                Ok(()) => {
                    listen(&socket, BACKLOG).map_err(|errno| Error::system("listen", errno))?;
                    return Ok((NamedListener { place }, socket));
                }
                Err(Errno::ADDRINUSE) => {}
                Err(errno) => return Err(Error::system("binding a place of the host's", errno)),
            }
        }
        Err(Error::Layout("too many stacks listen there: there is no place for another"))
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

/// The peer's process, if it is of the same user: a number that no other process has, or 0 if it cannot be told (before Linux
/// 6.9, of one in another PID namespace).
pub(super) fn process_of(socket: BorrowedFd<'_>) -> Option<u64> {
    let peer = credentials(socket)?;
    if peer.uid != rustix::process::geteuid().as_raw() {
        return None;
    }
    Some(inode_of_process(socket).unwrap_or_else(|| match peer.pid {
        0 => 0,
        pid => IS_PID | u64::from(pid.unsigned_abs()),
    }))
}

/// The peer's process in the file system of process descriptors.
fn inode_of_process(socket: BorrowedFd<'_>) -> Option<u64> {
    let descriptor: i32 = option(socket, libc::SO_PEERPIDFD)?;
    // SAFETY: the kernel has just made it for this caller.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let kind = rustix::fs::fstatfs(&descriptor).ok()?.f_type;
    // Before, all process descriptors had one inode.
    (kind as u32 == PIDFS_MAGIC).then_some(rustix::fs::fstat(&descriptor).ok()?.st_ino)
}

/// Where connections may go.
#[derive(Debug)]
pub(super) enum Found {
    /// A process, as [`process_of`], at the other end of a socket.
    Process(u64, OwnedFd),
    Nobody,
}

/// Looks who is at a place. `socket` is one that is not connected yet; a new one is left there if it was used.
pub(super) fn knock(local: SocketAddr, place: u16, socket: &mut Option<OwnedFd>) -> Result<Found, Error> {
    let unused = match socket.take() {
        Some(unused) => unused,
        None => make_socket()?,
    };
    match connect(&unused, &name(local, place)?) {
        Ok(()) => Ok(match process_of(unused.as_fd()) {
            None | Some(0) => Found::Nobody,
            Some(process) => Found::Process(process, unused),
        }),
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
    /// Which of its process's stacks offers.
    stack: u8,
    buffer_len: U32,
}

/// Makes memory for a link, offers it to the process at the other end of `channel`, and returns this end's part. Frames can be
/// sent at once.
pub(super) fn offer(channel: &OwnedFd, settings: &Settings, stack: u8) -> Result<Pair, Error> {
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
        stack,
        buffer_len: U32::new(settings.buffer_len),
    };
    let rights = [&pair.regions[0].0, &pair.to_server.interrupt, &pair.to_client.interrupt, &theirs];
    say(channel, offer.as_bytes(), &rights.map(AsFd::as_fd))?;
    Ok(pair)
}

/// What a visitor offers, and which of its process's stacks it is: `None` if it has said nothing yet.
///
/// # Errors
/// [`Error::MemifProtocol`] for what makes no sense, [`Error::MemifGone`].
pub(super) fn take_offer(channel: impl AsFd) -> Result<Option<(Pair, u8)>, Error> {
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
    if layout.length as u64 > region::memory_max(1) {
        return Err(broken("an offer of more memory than rings need"));
    }
    region::check(memory.as_fd(), layout.length as u64).map_err(broken)?;
    if !is_control(control.as_fd()) {
        return Err(broken("a control socket that is none"));
    }
    if !is_eventfd(to_server.as_fd()) || !is_eventfd(to_client.as_fd()) {
        return Err(broken("an interrupt that is no eventfd"));
    }
    let end = |direction, interrupt| RingEnd { place: layout.place(0, direction), interrupt, buffers: None };
    let pair = Pair {
        role: Role::Server,
        to_server: end(Direction::ToServer, to_server),
        to_client: end(Direction::ToClient, to_client),
        regions: vec![(memory, layout.length as u64)],
        control,
        mtu: settings.mtu,
        offload: true,
    };
    Ok(Some((pair, offer.stack)))
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

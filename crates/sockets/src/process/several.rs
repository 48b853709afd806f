//! UDP sockets that several processes have. The kernel has one queue for all of them, one error, and one shutdown().
//!
//! * One that was not used before a fork each process has a place for: workers that were forked in advance each get a part of the peers.
//! * One that an ancestor has used is the kernel's, for all of them, from the child's first use on. The child asks for it as it does for a
//!   connection, and is given what waits.
//! * So is one that was passed on by SCM_RIGHTS, and one that somebody connects or shuts when others have it by a fork. What waits here is
//!   read first.

use std::os::fd::{AsFd, OwnedFd};

use overfly_engine::Instant;
use overfly_link::messages;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, ipproto, sockopt};

use super::Process;
use super::datagram::Placed;
use super::family::{REQUEST_LEN, ends, request};
use super::listening::leave_to_kernel;
use crate::kernel;
use crate::options::wants;
use crate::socket::SocketId;
use crate::stack::{Datagrams, Record};
use crate::table::{self, Entry};
use crate::told;
use core::net::SocketAddr;

/// Of the answer: the error, who is told of it, the bytes of all datagrams in a file that comes with it, and whether the ancestor has closed the
/// socket.
const ANSWER_LEN: usize = 16;
/// An error that one of several processes is told.
type Shared = (Errno, Option<told::Error>);
/// Of how many sockets that were closed what waited is kept, while there are children.
const CLOSED: usize = 64;
/// What is said of each before its payload: its ends, its length, its class and hops, and when it came.
const RECORD_LEN: usize = REQUEST_LEN + 4 + 2 + 8;

/// What waited in a UDP socket.
#[derive(Default)]
pub(super) struct Waiting {
    error: Option<Shared>,
    /// The datagrams, packed.
    bytes: Vec<u8>,
    /// The ancestor has closed the socket: it is the child's as any other.
    closed: bool,
}

impl Process {
    /// Whether others that have a UDP socket have left it to the kernel, or are about to: it is no more than that here either.
    pub(super) fn is_of_all(&self, id: SocketId) -> bool {
        self.stack
            .datagrams(id)
            .is_some_and(|part| part.of_all || part.changed.is_some_and(|changed| !changed.is_pending()))
    }

    /// A UDP socket is the kernel's, for all processes that have it, as soon as nothing waits here.
    #[cold]
    pub(super) fn withdraw_datagram(&mut self, id: SocketId) -> Placed {
        if let Some(part) = self.stack.datagrams_mut(id) {
            part.of_all = true;
            if !part.places.is_empty() {
                self.part_from_datagrams(id);
                // What is on its way already.
                self.pump();
                self.stack.displace_datagram(id);
            }
        }
        if self.stack.has_datagrams(id) { Placed::Yes } else { Placed::No }
    }

    /// What the kernel's socket tells whoever asks first, before anything that waits here: udp_recvmsg() in Linux looks at the error first,
    /// net/ipv4/udp.c.
    pub(crate) fn take_error_of_all(&self, id: SocketId) -> Option<Errno> {
        self.stack.datagrams(id).filter(|part| part.of_all)?;
        sockopt::socket_error(kernel::borrow(self.stack.socket(id).descriptor)).ok()?.err()
    }

    /// What is done to a UDP socket is done to it for all who have it.
    pub(crate) fn changes_datagram(&self, id: SocketId) {
        if let Some(changed) = self.stack.datagrams(id).and_then(|part| part.changed) {
            changed.take();
        }
    }

    /// A UDP socket is about to be another process's as well.
    pub(super) fn pass_datagram_on(&mut self, id: SocketId) {
        if self.stack.is_running() {
            self.pump();
        }
        self.leave_refusal(id);
        // Those who have it by a fork leave it to the kernel as well.
        self.changes_datagram(id);
        if self.withdraw_datagram(id) == Placed::No {
            leave_to_kernel(self, id);
        }
    }

    /// That its peer has refused something the kernel's UDP socket tells from now on: whoever will have it asks that. Other errors stay here,
    /// one that several processes know of already, and an error queue.
    #[cold]
    fn leave_refusal(&mut self, id: SocketId) {
        let socket = self.stack.socket(id);
        let refused = socket.pending_error() == Some(Errno::CONNREFUSED) && !socket.write_shut;
        let (descriptor, of_several) = (socket.descriptor, socket.error_of_several.is_some());
        let queues = |part: &Datagrams| part.wants & (wants::ERRORS | wants::ERRORS_6) != 0;
        if refused
            && !of_several
            && !self.stack.datagrams(id).is_none_or(queues)
            && kernel::refuse(descriptor)
        {
            self.stack.take_error(id);
        }
    }

    /// As [`Process::leave_refusal`], of all that the next image will have.
    pub(super) fn leave_refusals(&mut self) {
        if self.stack.is_running() {
            self.pump();
        }
        for id in self.stack.all_datagram_sockets() {
            let stays = |descriptor| {
                table::lookup(descriptor) == Entry::Socket(id) && !kernel::is_close_on_exec(descriptor)
            };
            if self.stack.socket(id).pending_error().is_some() && (0..table::length()).any(stays) {
                self.leave_refusal(id);
            }
        }
    }

    /// One that came from elsewhere is perhaps one of this process's, of which something waits here.
    pub(crate) fn adopt_datagram(&mut self, descriptor: i32) -> bool {
        let Some(cookie) = kernel::cookie(descriptor) else { return false };
        let Some(id) = self.stack.find_datagram(cookie) else {
            return false;
        };
        self.stack.duplicate(id);
        self.stack.socket_mut(id).customized = true;
        table::enter(descriptor, Entry::Socket(id))
    }

    /// The program uses a UDP socket that is perhaps an ancestor's. Returns what it is then.
    #[cold]
    pub(super) fn claim_datagram(&mut self, id: SocketId, descriptor: i32) -> Entry {
        let Some(part) = self.stack.datagrams_mut(id) else { return Entry::Socket(id) };
        if core::mem::take(&mut part.lost) && self.is_given(id, descriptor) {
            if let Some(part) = self.stack.datagrams_mut(id) {
                part.of_all = true;
            }
            if !self.stack.has_datagrams(id) {
                leave_to_kernel(self, id);
                return Entry::Kernel;
            }
        }
        Entry::Socket(id)
    }

    /// Asks the ancestor for all that waits. False if that has the socket no more: it is this process's as any other.
    fn is_given(&mut self, id: SocketId, descriptor: i32) -> bool {
        let ancestor = self.stack.socket(id).ancestor;
        let given = kernel::cookie(descriptor)
            .and_then(|cookie| self.ask_for_what_is(ancestor, &cookie.to_ne_bytes()))
            .and_then(|answer| hear(&answer));
        let Some(Waiting { error, bytes, closed }) = given else { return false };
        let socket = self.stack.socket_mut(id);
        socket.error = error.map(|(error, _)| error);
        socket.error_of_several = error.and_then(|(_, who)| who);
        let mut rest = &bytes[..];
        while let Some((head, tail)) = rest.split_at_checked(RECORD_LEN)
            && let Some(record) = unpacked(head)
            && let Some((payload, after)) = tail.split_at_checked(record.length)
        {
            self.stack.put_datagram(id, record, payload);
            rest = after;
        }
        !closed
    }

    /// All that waits in a UDP socket, for a child.
    fn take_waiting(&mut self, id: SocketId, closed: bool) -> Waiting {
        let mut bytes = Vec::new();
        self.stack.take_datagrams(id, |record, payload| {
            bytes.extend(packed(record));
            bytes.extend(payload);
        });
        Waiting { error: self.stack.share_error(id), bytes, closed }
    }

    /// The last descriptor of a UDP socket that a child may have is about to be closed: the child will ask for what waits.
    pub(super) fn keep_datagrams(&mut self, id: SocketId) {
        let is_shared = self.stack.datagrams(id).is_some_and(|part| part.changed.is_some());
        if is_shared
            && self.withdraw_datagram(id) == Placed::Yes
            && let Some(cookie) = self.stack.cookie_of(id)
        {
            let waiting = self.take_waiting(id, true);
            let left = &mut self.family.left;
            if left.len() == CLOSED {
                left.pop_front();
            }
            left.push_back((cookie, waiting));
        }
    }

    /// A child asks for a UDP socket.
    pub(super) fn give_datagrams(&mut self, cookie: u64, answer: &OwnedFd) {
        let mut waiting = Waiting::default();
        let left = self.family.left.iter().position(|(closed, _)| *closed == cookie);
        if let Some((_, kept)) = left.and_then(|index| self.family.left.remove(index)) {
            waiting = kept;
        } else if let Some(id) = self.stack.find_datagram(cookie) {
            self.withdraw_datagram(id);
            waiting = self.take_waiting(id, false);
            if waiting.error.is_none() {
                leave_to_kernel(self, id);
            }
            self.tell_sleepers();
            self.family.given.push(cookie);
        } else if !self.family.given.contains(&cookie) {
            return;
        }
        let _ = tell(answer, &waiting);
    }
}

/// Whether a descriptor is a UDP socket.
pub(crate) fn is_datagram_socket(descriptor: i32) -> bool {
    sockopt::socket_protocol(kernel::borrow(descriptor)) == Ok(Some(ipproto::UDP))
}

fn tell(whom: &OwnedFd, Waiting { error, bytes, closed }: &Waiting) -> Result<(), Errno> {
    let mut answer = [0; ANSWER_LEN];
    let words = [
        error.map_or(0, |(error, _)| error.raw_os_error()).cast_unsigned(),
        error.and_then(|(_, who)| who).map_or(0, told::Error::number),
        bytes.len() as u32,
        u32::from(*closed),
    ];
    for (place, word) in answer.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    let file = memfd_create("overfly-datagrams", MemfdFlags::CLOEXEC)?;
    let mut written = 0;
    while written < bytes.len() {
        written += rustix::io::pwrite(&file, &bytes[written..], written as u64)?;
    }
    messages::send(whom, &answer, &[file.as_fd()], SendFlags::DONTWAIT)
}

/// What [`tell`] told, or `None` when the other end has closed.
fn hear(answer: &OwnedFd) -> Option<Waiting> {
    let mut bytes = [0; ANSWER_LEN];
    let (length, descriptors) = messages::receive(answer, &mut bytes, RecvFlags::empty()).ok()?;
    let [file] = <[OwnedFd; 1]>::try_from(descriptors).ok()?;
    if length != ANSWER_LEN {
        return None;
    }
    let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let error = (word(0) != 0).then(|| Errno::from_raw_os_error(word(0).cast_signed()));
    let error = error.map(|error| (error, told::Error::of_number(word(4))));
    let mut datagrams = vec![0; word(8) as usize];
    let mut read = 0;
    while read < datagrams.len() {
        match rustix::io::pread(&file, &mut datagrams[read..], read as u64) {
            Ok(count @ 1..) => read += count,
            _ => return None,
        }
    }
    Some(Waiting { error, bytes: datagrams, closed: word(12) != 0 })
}

fn packed(record: &Record) -> [u8; RECORD_LEN] {
    let mut bytes = [0; RECORD_LEN];
    let (addresses, rest) = bytes.split_at_mut(REQUEST_LEN);
    addresses.copy_from_slice(&request(record.source, SocketAddr::new(record.destination, 0)));
    rest[..4].copy_from_slice(&(record.length as u32).to_ne_bytes());
    (rest[4], rest[5]) = (record.traffic_class, record.hop_limit);
    rest[6..].copy_from_slice(&record.arrived.as_micros().to_ne_bytes());
    bytes
}

fn unpacked(bytes: &[u8]) -> Option<Record> {
    let (addresses, rest) = bytes.split_at_checked(REQUEST_LEN)?;
    let [source, destination] = ends(addresses.try_into().ok()?);
    Some(Record {
        source,
        length: u32::from_ne_bytes(rest[..4].try_into().ok()?) as usize,
        destination: destination.ip(),
        traffic_class: rest[4],
        hop_limit: rest[5],
        arrived: Instant::from_micros(u64::from_ne_bytes(rest[6..14].try_into().ok()?)),
    })
}

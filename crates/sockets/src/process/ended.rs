//! Connections that ended after a fork: the kernel has nothing of them, so a child that asks its ancestor for one is told how it ended, and
//! has from then on what the ancestor has: what was not read, the error until one of them is told, and which directions are shut.

use core::net::SocketAddr;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use overfly_link::messages;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::Process;
use crate::socket::{Socket, SocketId, SocketState};
use crate::told;

/// Of those that the ancestor has closed so many are remembered, while there are children, and so many bytes of what each had not read.
const CLOSED: usize = 64;
const UNREAD: usize = 64 * 1024;
/// The error, who is told of it, whether one has dissolved it, what was not read, and by whom, and what else is true.
const LENGTH: usize = 28;

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) error: Option<Errno>,
    pub(crate) error_of_several: Option<told::Error>,
    pub(crate) dissolved_by_several: Option<told::Error>,
    pub(crate) reads_of_several: Option<told::Reads>,
    pub(crate) unread: Vec<u8>,
    /// Of [`Ended::truths`].
    truths: u32,
}

/// Those of ancestors that they have closed.
pub(super) type Closed = VecDeque<(SocketAddr, SocketAddr, Ended)>;

impl Ended {
    fn of(socket: &Socket) -> Self {
        let mut unread = vec![0; socket.receive.len()];
        socket.receive.fill(0, &mut unread);
        let truths = [
            socket.remote_closed,
            socket.write_shut,
            socket.read_shut,
            socket.connect_told,
            socket.disconnecting,
            socket.disconnected,
            socket.passive,
            socket.at_any,
        ];
        let truths = truths.iter().enumerate().map(|(bit, truth)| u32::from(*truth) << bit).sum();
        let (error_of_several, reads_of_several) = (socket.error_of_several, socket.reads_of_several);
        let dissolved_by_several = socket.dissolved_by_several;
        Self { error: socket.error, error_of_several, dissolved_by_several, reads_of_several, unread, truths }
    }

    /// The socket is one that ended so.
    pub(crate) fn apply(&self, socket: &mut Socket) {
        let truths = [
            &mut socket.remote_closed,
            &mut socket.write_shut,
            &mut socket.read_shut,
            &mut socket.connect_told,
            &mut socket.disconnecting,
            &mut socket.disconnected,
            &mut socket.passive,
            &mut socket.at_any,
        ];
        truths.into_iter().enumerate().for_each(|(bit, truth)| *truth = self.truths & 1 << bit != 0);
        (socket.error, socket.error_of_several) = (self.error, self.error_of_several);
        socket.reads_of_several = self.reads_of_several;
        socket.dissolved_by_several = self.dissolved_by_several;
        // What had come before the fork is among it.
        socket.receive.recycle();
        socket.receive.push_some(&self.unread);
    }

    /// To who has asked for the connection.
    pub(super) fn tell(&self, whom: &OwnedFd) -> Result<(), Errno> {
        let mut bytes = [0; LENGTH];
        let [reads, read] = self.reads_of_several.map_or([0; 2], told::Reads::words);
        let words = [
            self.error.map_or(0, Errno::raw_os_error).cast_unsigned(),
            self.error_of_several.map_or(0, told::Error::number),
            self.dissolved_by_several.map_or(0, told::Error::number),
            self.unread.len() as u32,
            reads,
            read,
            self.truths,
        ];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        let file = memfd_create("overfly-ended", MemfdFlags::CLOEXEC)?;
        let mut written = 0;
        while written < self.unread.len() {
            written += rustix::io::pwrite(&file, &self.unread[written..], written as u64)?;
        }
        messages::send(whom, &bytes, &[file.as_fd()], SendFlags::DONTWAIT)
    }

    /// What [`Ended::tell`] told, or `None` when the other end has closed.
    pub(super) fn hear(whom: &OwnedFd) -> Option<Self> {
        let mut bytes = [0; LENGTH];
        let (length, descriptors) = messages::receive(whom, &mut bytes, RecvFlags::empty()).ok()?;
        let [file] = <[OwnedFd; 1]>::try_from(descriptors).ok()?;
        if length != LENGTH {
            return None;
        }
        let mut words = [0; LENGTH / 4];
        for (word, place) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_ne_bytes(place.try_into().ok()?);
        }
        let [error, number, dissolved, unread, reads, read, truths] = words;
        let mut ended = Self {
            error: (error != 0).then(|| Errno::from_raw_os_error(error.cast_signed())),
            error_of_several: told::Error::of_number(number),
            dissolved_by_several: told::Error::of_number(dissolved),
            reads_of_several: told::Reads::of_words([reads, read]),
            unread: vec![0; unread as usize],
            truths,
        };
        let mut read = 0;
        while read < ended.unread.len() {
            match rustix::io::pread(&file, &mut ended.unread[read..], read as u64) {
                Ok(count @ 1..) => read += count,
                _ => return None,
            }
        }
        Some(ended)
    }
}

impl Process {
    /// How the connection between these ends has ended.
    pub(super) fn ended_between(&mut self, local: SocketAddr, remote: SocketAddr) -> Option<Ended> {
        if let Some(id) = self.stack.ended_between(local, remote) {
            let socket = self.stack.socket_mut(id);
            socket.share_end();
            return Some(Ended::of(socket));
        }
        let is_it = |closed: &&(SocketAddr, SocketAddr, Ended)| (closed.0, closed.1) == (local, remote);
        self.family.closed.iter().rev().find(is_it).map(|closed| closed.2.clone())
    }

    /// The program closes a connection that is over: a child may have it still.
    pub(super) fn remember_end(&mut self, id: SocketId) {
        let socket = self.stack.socket_mut(id);
        socket.share_end();
        let ended = matches!(socket.state, SocketState::Connected | SocketState::Ended);
        if !ended || socket.receive.len() > UNREAD {
            return;
        }
        let closed = &mut self.family.closed;
        if closed.len() == CLOSED {
            closed.pop_front();
        }
        closed.push_back((socket.local, socket.remote, Ended::of(socket)));
    }
}

//! What a link has open, and others in its place: its interface was gone and is there again.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::{DupFlags, dup3};

use super::XdpLink;
use super::idle::Idle;
use crate::Error;
use crate::packet::LongFrames;
use crate::xdp::StackSockets;

impl XdpLink {
    /// The interface was gone and is there again: goes on with a stack's new sockets. [`crate::Link::descriptors`] have the numbers
    /// that they had, but lead to other files: who watches them must begin anew. Frames that were not sent are lost. If no frames
    /// of several segments leave by the new interface, those that the engine goes on to write are cut here.
    ///
    /// # Errors
    /// As [`XdpLink::open`]; nothing has changed then.
    pub fn renew(&mut self, sockets: StackSockets) -> Result<(), Error> {
        if sockets.queues.len() != self.queues.len() {
            return Err(Error::Layout("another number of queues"));
        }
        let mut renewed = XdpLink::open(sockets)?;
        for (old, new) in self.queues.iter_mut().zip(&mut renewed.queues) {
            for (old, new) in [(&mut old.socket, &mut new.socket), (&mut old._pool, &mut new._pool)] {
                dup3(&*new, old, DupFlags::CLOEXEC)
                    .map_err(|errno| Error::system("dup3 of a renewed socket", errno))?;
                core::mem::swap(old, new);
            }
        }
        renewed.counters = self.counters;
        // The engine has been told what the link can do, and is not told again.
        match (self.long_frames.take(), &mut renewed.long_frames) {
            (Some(mut old), Some(new)) => new.takes_the_place_of(&mut old)?,
            (Some(old), None) => renewed.long_frames = Some(old.without_a_device()),
            (None, _) => renewed.long_frames = None,
        }
        if matches!(self.idle, Idle::Yield) {
            renewed.idle = Idle::Yield;
        }
        *self = renewed;
        Ok(())
    }

    /// All that it has open.
    pub fn own_descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let queues = self.queues.iter().flat_map(|queue| [queue.socket.as_fd(), queue._pool.as_fd()]);
        queues.chain(self.long_frames.as_ref().map(LongFrames::as_fd))
    }
}

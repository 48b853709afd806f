//! The library's own descriptors in the program's epoll sets: what they are registered as, and what it means that one is readable.

use std::os::fd::AsRawFd;

use super::Process;
use crate::socket::SocketId;

/// Tells our own registrations in the program's epoll sets from the program's: the upper half of their data. No pointer
/// and no small number looks like it; the lower half says which.
const PRIVATE: u64 = 0xa5f1_0e7f << 32;

/// The stacks' own descriptors.
pub(super) const PRIVATE_STACK: u64 = PRIVATE | 0xffff_ffff;

/// What the data of an event from the kernel says.
pub(crate) enum Tag {
    /// The program's.
    Program,
    /// Frames arrived, or another thread has news.
    Stack,
    /// The broker has something from another process for a context.
    Broker(usize),
    /// An observer wants an answer of a context's.
    Doorbell(usize),
    /// Frames arrived, or somebody who wants to exchange some with a context.
    Doors(usize),
    /// The kernel has a connection for this listener.
    Listener(SocketId),
}

impl Process {
    /// The links' descriptors: readable when frames have come.
    pub(crate) fn link_descriptors(&self) -> &[i32] {
        &self.link_descriptors
    }

    /// Readable when another process gave something away.
    pub(crate) fn broker_descriptor(&self) -> Option<i32> {
        self.session.client.as_ref().map(|client| client.as_fd().as_raw_fd())
    }

    /// Readable when an observer wants an answer; there is none where nobody can look.
    pub(crate) fn watch_doorbell(&self) -> Option<i32> {
        self.stack.show.as_ref().map(|show| show.doorbell().as_raw_fd())
    }

    /// What one of the library's own descriptors is registered as in the program's sets.
    pub(crate) fn private_data(&self, descriptor: i32) -> u64 {
        match Some(descriptor) {
            some if some == self.broker_descriptor() => private_broker(self.context),
            some if some == self.watch_doorbell() => private_doorbell(self.context),
            _ if self.doors.contains(&descriptor) => private_doors(self.context),
            _ => PRIVATE_STACK,
        }
    }

    /// One of the library's own descriptors is readable.
    pub(crate) fn heed(&mut self, tag: &Tag) {
        match tag {
            Tag::Broker(_) => {
                self.hear_broker();
            }
            Tag::Doorbell(_) => self.silence_doorbell(),
            Tag::Doors(_) => self.stack.rang(),
            Tag::Stack | Tag::Program | Tag::Listener(_) => {}
        }
    }

    /// What poll() has found, the program's descriptors among it; and what the broker has said meanwhile.
    pub(crate) fn heed_all(&mut self, polled: &[libc::pollfd]) {
        if self.session.has_unheard() {
            self.hear_broker();
        }
        for entry in polled.iter().filter(|entry| entry.revents != 0) {
            self.heed(&tag(self.private_data(entry.fd)));
        }
    }
}

/// A context's links where others may be at the door.
const fn private_doors(context: usize) -> u64 {
    PRIVATE | 0xffff_ff40 | context as u64
}

/// Its connection to the broker.
const fn private_broker(context: usize) -> u64 {
    PRIVATE | 0xffff_ff80 | context as u64
}

/// Its doorbell of observers.
const fn private_doorbell(context: usize) -> u64 {
    PRIVATE | 0xffff_ffc0 | context as u64
}

/// The data of a listener's kernel socket in an epoll set.
pub(crate) const fn private_listener(id: SocketId) -> u64 {
    PRIVATE | id.0 as u64
}

pub(crate) const fn tag(data: u64) -> Tag {
    if data >> 32 != PRIVATE >> 32 {
        return Tag::Program;
    }
    // No context has so many sockets that these are among their numbers.
    let context = (data & 0x1f) as usize;
    match data as u32 {
        0xffff_ffff => Tag::Stack,
        0xffff_ff40..=0xffff_ff5f => Tag::Doors(context),
        0xffff_ff80..=0xffff_ff9f => Tag::Broker(context),
        0xffff_ffc0..=0xffff_ffdf => Tag::Doorbell(context),
        id => Tag::Listener(SocketId(id)),
    }
}

//! Calls that go on in the kernel: another thread has closed the descriptor that they wait for, and handed its connection over.

use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

use crate::descriptors;
use crate::socket::SocketId;

/// Calls that wait for connections whose last descriptor was closed, and which are the kernel's.
pub(crate) struct Elsewhere(Vec<Moved>);

struct Moved {
    held: (SocketId, u32),
    descriptor: OwnedFd,
    calls: u32,
}

impl Elsewhere {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// So many calls go on with this.
    pub(crate) fn add(&mut self, held: (SocketId, u32), descriptor: OwnedFd, calls: u32) {
        self.0.push(Moved { held, descriptor, calls });
    }

    pub(crate) fn descriptor_of(&self, held: (SocketId, u32)) -> Option<i32> {
        self.0.iter().find(|moved| moved.held == held).map(|moved| moved.descriptor.as_raw_fd())
    }

    pub(crate) fn release(&mut self, held: (SocketId, u32)) {
        let Some(place) = self.0.iter().position(|moved| moved.held == held) else { return };
        self.0[place].calls -= 1;
        if self.0[place].calls == 0 {
            close(self.0.swap_remove(place));
        }
    }

    /// The threads that wait are the parent's.
    pub(crate) fn forget(&mut self) {
        self.0.drain(..).for_each(close);
    }
}

fn close(moved: Moved) {
    descriptors::close(moved.descriptor.into_raw_fd());
}

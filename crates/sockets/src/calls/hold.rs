//! A call that waits keeps its connection, whatever becomes of the descriptor: as in Linux, where such a call holds the file, a
//! close() by another thread takes effect when the call is over (fdget() in include/linux/file.h). If that close() hands the connection
//! over, since a child may have it, the call goes on with a descriptor of the library's own for the kernel's socket.

use core::cell::Cell;

use super::life::linger_at_last;
use crate::lock::Guard;
use crate::process::contexts::of;
use crate::process::{Process, WakeOnDrop};
use crate::socket::SocketId;

thread_local! {
    /// What the thread keeps while it waits, for a handler that perhaps never comes back.
    static HELD: Cell<Option<(SocketId, u32)>> = const { Cell::new(None) };
}

/// What one call keeps.
pub(crate) struct Hold {
    held: Option<(SocketId, u32)>,
    /// What it was, if it was closed and handed over meanwhile, and the kernel's socket.
    elsewhere: Option<((SocketId, u32), i32)>,
    /// What a call that has received is to tell of what it has left ([`crate::stack::Stack::unread_told`]).
    pub(crate) unread: Option<i32>,
}

impl Hold {
    pub(crate) const fn new() -> Self {
        Self { held: None, elsewhere: None, unread: None }
    }

    /// Before a wait.
    pub(super) fn begin(&mut self, process: &mut Process, id: SocketId) {
        if self.held.is_none() {
            self.held = Some((id, process.stack.hold(id)));
        }
        HELD.set(self.held);
    }

    /// Of a call that goes on with what its descriptor is not any more: the lock, and the socket, if that is still here.
    pub(super) fn lock(&mut self) -> Option<(Guard<'static, Process>, SocketId)> {
        let (id, generation) = self.held?;
        let mut guard = of(id);
        if guard.stack.socket(id).generation == generation {
            return Some((guard, id));
        }
        self.has_gone(&mut guard);
        None
    }

    /// The connection that was kept is the kernel's.
    fn has_gone(&mut self, process: &mut Process) {
        let Some(held) = self.held.take() else { return };
        self.elsewhere = process.elsewhere().descriptor_of(held).map(|descriptor| (held, descriptor));
    }

    /// After it. False if the connection has gone elsewhere (a handover), or a handler ran and it was closed meanwhile.
    pub(super) fn resume(&mut self, process: &mut Process, id: SocketId, still_open: bool) -> bool {
        self.held = HELD.take();
        match self.held {
            None => still_open,
            Some((_, generation)) if process.stack.socket(id).generation == generation => true,
            Some(_) => {
                self.has_gone(process);
                false
            }
        }
    }

    /// The descriptor is still there: it keeps the connection.
    pub(super) fn end(&mut self, process: &mut Process) {
        if let Some(held) = self.held.take() {
            release(process, held);
        }
    }

    /// The kernel's socket of a connection that was closed and handed over.
    pub(crate) fn elsewhere(&self) -> Option<i32> {
        self.elsewhere.map(|(_, descriptor)| descriptor)
    }

    /// The call's descriptor was closed: what its number is now is another's.
    pub(crate) const fn has_another_socket(&self) -> bool {
        self.held.is_some() || self.elsewhere.is_some()
    }

    /// The call goes on with what its descriptor is not any more.
    pub(super) const fn is_last(&self) -> bool {
        self.held.is_some()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let elsewhere = self.elsewhere.take().map(|(held, _)| held);
        if let Some(held) = self.held.take().or(elsewhere) {
            release(&mut linger_at_last(of(held.0), held), held);
        }
    }
}

fn release(process: &mut Process, (id, generation): (SocketId, u32)) {
    if process.stack.socket(id).generation != generation {
        process.elsewhere().release((id, generation));
    } else if process.stack.release_hold(id) {
        WakeOnDrop(process).0.output();
    }
}

/// A handler is about to run in this thread: what it interrupts keeps nothing.
pub(crate) fn interrupted() {
    if let Some(held) = HELD.take() {
        release(&mut of(held.0), held);
    }
}

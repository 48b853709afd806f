//! What a stack has of UDP sockets that several processes have.

use rustix::io::Errno;

use super::queue::Record;
use crate::kernel;
use crate::socket::{SocketId, SocketState};
use crate::stack::Stack;
use crate::told;
use overfly_link::Link;

impl<T: Link> Stack<T> {
    pub(crate) fn all_datagram_sockets(&self) -> Vec<SocketId> {
        self.sockets.ids().filter(|&id| self.sockets.at(id).state == SocketState::Datagram).collect()
    }

    /// Whether something that came for a UDP socket, or an error, is here and not in the kernel.
    pub(crate) fn has_datagrams(&self, id: SocketId) -> bool {
        let part = self.datagrams(id);
        part.is_some_and(|part| !part.queue.is_empty() || !part.troubles.is_empty())
            || self.sockets.at(id).pending_error().is_some()
    }

    fn is_used(&self, id: SocketId) -> bool {
        self.has_datagrams(id) || self.datagrams(id).is_some_and(|part| !part.places.is_empty())
    }

    /// Before a fork: what one process does to a UDP socket others hear from now on. Returns whether any was used.
    pub(crate) fn share_datagrams(&mut self) -> bool {
        let mut any_used = false;
        for id in self.all_datagram_sockets() {
            told::prepare();
            any_used |= self.is_used(id);
            if let Some(part) = self.datagrams_mut(id) {
                part.changed = part.changed.or_else(told::Error::new_of_many);
            }
        }
        any_used
    }

    /// After a fork, in the child, before [`Stack::forget`]: UDP sockets that were used are the ancestor's of that number.
    pub(crate) fn lose_datagrams(&mut self, ancestor: u32) {
        for id in self.all_datagram_sockets() {
            if self.is_used(id) {
                let socket = self.sockets.at_mut(id);
                (socket.ancestor, socket.error, socket.error_of_several) = (ancestor, None, None);
                if let Some(part) = &mut socket.datagrams {
                    part.lost = true;
                }
            }
        }
    }

    /// Whether an ancestor has a UDP socket.
    pub(crate) fn is_lost_datagram(&self, id: SocketId) -> bool {
        self.datagrams(id).is_some_and(|part| part.lost)
    }

    /// The kernel's name of a UDP socket.
    pub(crate) fn cookie_of(&mut self, id: SocketId) -> Option<u64> {
        let socket = self.sockets.at_mut(id);
        let part = socket.datagrams.as_mut()?;
        part.cookie = part.cookie.or_else(|| kernel::cookie(socket.descriptor));
        part.cookie
    }

    /// The UDP socket that the kernel calls so.
    pub(crate) fn find_datagram(&mut self, cookie: u64) -> Option<SocketId> {
        self.all_datagram_sockets().into_iter().find(|&id| self.cookie_of(id) == Some(cookie))
    }

    /// Takes all that waits.
    pub(crate) fn take_datagrams(&mut self, id: SocketId, mut each: impl FnMut(&Record, &[u8])) {
        let socket = self.sockets.at_mut(id);
        if let Some(part) = &mut socket.datagrams {
            for record in part.queue.drain(..) {
                let mut payload = vec![0; record.length];
                socket.receive.fill(0, &mut payload);
                socket.receive.discard(record.length);
                each(&record, &payload);
            }
            part.troubles.clear();
        }
    }

    /// The error that waits, which one of several processes is told from now on.
    pub(crate) fn share_error(&mut self, id: SocketId) -> Option<(Errno, Option<told::Error>)> {
        let socket = self.sockets.at_mut(id);
        let error = socket.pending_error()?;
        socket.error_of_several = socket.error_of_several.or_else(told::Error::new);
        Some((error, socket.error_of_several))
    }

    /// A datagram that another process has had.
    pub(crate) fn put_datagram(&mut self, id: SocketId, record: Record, payload: &[u8]) {
        let socket = self.sockets.at_mut(id);
        if let Some(part) = &mut socket.datagrams
            && socket.receive.push(payload)
        {
            part.queue.push_back(record);
        }
    }
}

//! Threads that wait to accept: as long as there are more of them than connections under way to this stack, the XDP program sends
//! new ones here before any stack that has none (`bpf/pulse.bpf.h`). So a process of a pre-forked server that is busy with one
//! connection gets no other while a process beside it is idle.

use super::{For, Process};
use crate::socket::Side;
use overfly_link::Link;

impl Process {
    /// Whether who waits for that may accept when a connection comes.
    pub(super) fn is_acceptor(&self, what: For<'_>) -> bool {
        match what {
            For::Frames => false,
            // Of more sockets than are noted.
            For::News => self.stack.is_listening(),
            For::Sockets(ids) => ids.iter().any(|&id| self.stack.has_joined(id)),
            For::Set(set) => self.stack.set_accepts(set),
        }
    }

    /// A thread looks again and again for what it waits for.
    #[inline]
    pub(crate) fn spins_for(&mut self, what: For<'_>) {
        if self.is_acceptor(what) {
            self.within_host.spun_to_accept = self.pumped;
            self.show_acceptors(1);
        }
    }

    /// What has come was looked at: so many threads, at least, wait to accept.
    pub(super) fn show_acceptors(&mut self, least: u32) {
        let acceptors = self.sleepers.acceptors().max(least);
        if acceptors > self.stack.pending()
            && let Some(link) = self.stack.transport_mut(Side::Network)
        {
            link.wait_to_accept();
        }
    }
}

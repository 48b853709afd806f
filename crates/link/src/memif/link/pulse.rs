//! What a stack says of itself to whoever hands it frames.

use core::sync::atomic::Ordering;

use super::MemifLink;
use crate::memif::Role;

/// How a stack looks at what comes, for who hands frames to several: what `link/xdp/pulse.rs` is to the XDP program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pulse {
    /// Looks at its ring.
    pub looks: u64,
    /// Since that look a thread waits to accept, and no connection is under way to it.
    pub waits: u64,
    /// The last look was not the program's, which is elsewhere.
    pub away: bool,
}

impl MemifLink {
    /// What a server's end says of itself to the client's, which sends to it. Both are Overfly's.
    #[inline]
    pub(crate) fn say_pulse(&self, Pulse { looks, waits, away }: Pulse) {
        debug_assert!(self.role == Role::Server, "the words are in the server's cache line");
        let words = self.receive.ring.pulse();
        for (word, value) in words.iter().zip([looks, waits, u64::from(away)]) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// What the other end says of itself.
    #[must_use]
    pub fn pulse(&self) -> Pulse {
        let [looks, waits, away] =
            self.transmit.ring.pulse().each_ref().map(|word| word.load(Ordering::Relaxed));
        Pulse { looks, waits, away: away != 0 }
    }
}

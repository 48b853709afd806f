//! The way from the switch to one stack, and how that one looks at what comes.

use std::time::{Duration, Instant};

use overfly_link::memif::{MemifLink, Pulse};
use overfly_link::tap::missed;
use overfly_wire::FrameSink;

/// A scheduler's time slice or two: for so long a stack need not have looked at what came.
const SYN_PATIENCE: Duration = Duration::from_millis(5);

/// The way to one stack.
#[derive(Debug)]
pub(super) struct Outlet {
    pub(super) stack: u16,
    pub(super) link: MemifLink,
    /// It did not take its frames in time: nobody waits for it until it does.
    pub(super) given_up: bool,
    /// Frames that were dropped because of that, which it has not been told of.
    pub(super) missed: u64,
    /// How often in a row it had not taken everything yet when it was shown more.
    pub(super) behind: u32,
    /// As of which look the first SYN came that it had not looked for, and when.
    unseen: Option<(u64, Instant)>,
}

impl Outlet {
    pub(super) fn new(stack: u16, link: MemifLink) -> Outlet {
        Outlet { stack, link, given_up: false, missed: 0, behind: 0, unseen: None }
    }

    /// A connection may go there: to who waits for one, or to who at least looks.
    pub(super) fn would_take(&self, must_wait: bool, now: Instant) -> bool {
        if must_wait { self.waits_to_accept() } else { self.takes(now) }
    }

    /// A thread of the stack's waits to accept, and no SYN has been sent there since it began to.
    fn waits_to_accept(&self) -> bool {
        let Pulse { looks, waits, away } = self.link.pulse();
        !away && looks != 0 && waits == looks && self.has_seen(looks)
    }

    /// It has looked since the last SYNs came, or they came just now; and the program has not been elsewhere for a while.
    fn takes(&self, now: Instant) -> bool {
        let Pulse { looks, away, .. } = self.link.pulse();
        let just_now = |(_, since): (u64, Instant)| now - since <= SYN_PATIENCE;
        !away && (self.has_seen(looks) || self.unseen.is_some_and(just_now))
    }

    fn has_seen(&self, looks: u64) -> bool {
        self.unseen.is_none_or(|(unseen, _)| unseen != looks)
    }

    /// A SYN goes there.
    pub(super) fn note_syn(&mut self, now: Instant) {
        let looks = self.link.pulse().looks;
        if self.has_seen(looks) {
            self.unseen = Some((looks, now));
        }
    }

    /// Hands the frame over if there is room for it.
    pub(super) fn offer(&mut self, frame: &[u8]) -> bool {
        self.tell_of_missed();
        let done = self.write(frame);
        self.given_up &= !done;
        done
    }

    fn tell_of_missed(&mut self) {
        if self.missed > 0 && self.write(&missed(self.missed)) {
            self.missed = 0;
        }
    }

    fn write(&mut self, frame: &[u8]) -> bool {
        let Some(room) = self.link.frame().and_then(|room| room.get_mut(..frame.len())) else {
            return false;
        };
        room.copy_from_slice(frame);
        self.link.commit(frame.len());
        true
    }

    /// Shows the stack what was handed over, and wakes it if it sleeps.
    pub(super) fn flush(&mut self) {
        self.behind = if self.link.is_drained() { 0 } else { self.behind.saturating_add(1) };
        self.tell_of_missed();
        self.link.flush();
    }
}

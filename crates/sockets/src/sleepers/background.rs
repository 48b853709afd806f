//! When the library's own thread takes the program's place (`process/background.rs`). Whoever is the last to leave the library sets a
//! timer to [`RELIEF`] from then, once in [`FRESH`] at most: it does not ring while the program comes back. When it rings, the thread
//! watches the links until a call comes. Where a thread of the program sleeps in the library, that one watches, and no timer is set.

use core::time::Duration;

use overfly_engine::Instant;

use super::{Sleepers, Timer, World};

/// How long the program may be elsewhere before the thread takes its place.
pub(super) const RELIEF: Duration = Duration::from_millis(2);
/// For how long a timer that was set serves who leaves the library next. Its ring is early for them by no more, and then set again.
const FRESH: Duration = Duration::from_millis(1);

/// What the thread is to one context.
pub(crate) struct Background {
    /// There is one, and a timer.
    pub(crate) is_there: bool,
    /// When the timer rings, if it is set.
    rings: Option<Instant>,
    /// Who leaves from then on sets it anew.
    stale_at: Instant,
    /// It watches the links: nobody has been in the library since the timer rang.
    watches: bool,
    /// It is this thread that releases the lock.
    leaves: bool,
}

impl Background {
    pub(super) const fn new() -> Self {
        Self {
            is_there: false,
            rings: None,
            stale_at: Instant::from_micros(0),
            watches: false,
            leaves: false,
        }
    }

    /// A thread of the program's leaves the library, in which it looked for frames at `looked`, and no other one sleeps there.
    #[inline]
    pub(super) fn is_called(&self, looked: Instant) -> bool {
        self.is_there && (self.watches || self.rings.is_none() || looked >= self.stale_at)
    }

    fn set(&mut self, world: &mut impl World, at: Instant, time: Instant) {
        if self.is_there {
            self.rings = Some(at);
            self.stale_at = time + FRESH;
            world.ring(Timer::Background, (at - time).max(Duration::from_micros(1)));
        }
    }

    /// It watches no more: a thread of the program's is about to sleep here, or the stack is gone.
    #[inline]
    pub(crate) fn stand_back(&mut self, world: &mut impl World) {
        if core::mem::take(&mut self.watches) {
            world.wake_background();
        }
    }

    /// The last thread of the program's leaves the library.
    pub(super) fn call(&mut self, world: &mut impl World) {
        if core::mem::take(&mut self.leaves) {
            return;
        }
        self.stand_back(world);
        let time = world.now();
        if self.rings.is_none() || time >= self.stale_at {
            self.set(world, time + RELIEF, time);
        }
    }
}

impl Sleepers {
    /// The thread looks what it is to do here. True if it watches the links.
    pub(crate) fn attend(&mut self, world: &mut impl World) -> bool {
        let time = world.now();
        if self.background.rings.is_some_and(|rings| rings <= time) {
            self.background.rings = None;
            world.silence(Timer::Background);
            if !self.anybody() {
                let relief = world.looked() + RELIEF;
                if time < relief {
                    self.background.set(world, relief, time);
                } else {
                    self.background.watches = true;
                }
            }
        }
        self.background.watches
    }

    /// It has looked, and releases the lock: it does not call itself.
    pub(crate) fn has_attended(&mut self, looked: Instant) {
        self.background.leaves = self.are_forgotten(looked);
    }
}

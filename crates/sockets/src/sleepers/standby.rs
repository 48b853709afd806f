//! Sets that stand by. A set whose threads were woken again and again for frames of others leaves the links to those. What is in it
//! instead is an alarm, which rings a while after the last thread that watched the links went back to the program, so that somebody
//! looks at them; if again and again nobody else has, the set watches again. So a thread that only accepts does not take the
//! processor from the one that serves, and one that computes holds nobody up.

use core::time::Duration;

use overfly_engine::Instant;

use super::{Sleepers, Timer, World};
use crate::interest::SetId;

/// How long the links are left to a thread that went back to the program.
const RELIEF: Duration = Duration::from_millis(1);

/// How often in a row a set's threads are woken for others before it stands by; or, standing by, for themselves or because
/// nobody else had looked, before it watches again.
pub(super) const TURNS: u32 = 8;

/// For how long a set counts as busy whose threads had something to do.
pub(super) const BUSY: Duration = Duration::from_millis(10);

/// What a set does from now on: the world moves the links, and says so ([`Sleepers::stands_by`], [`Sleepers::watches_again`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum Turn {
    /// The alarm takes the place of the links.
    StandBy(SetId),
    /// The links take the place of the alarm.
    Watch(SetId),
}

/// What wakes one of those who stand by.
pub(super) struct Alarm {
    /// When it rings, and when somebody had last looked at the links before it was set.
    set: Option<(Instant, Instant)>,
}

impl Alarm {
    pub(super) const fn new() -> Self {
        Self { set: None }
    }

    #[inline]
    pub(super) const fn is_set(&self) -> bool {
        self.set.is_some()
    }

    /// Nobody watches the links any more: those who stand by look after a while.
    pub(super) fn set(&mut self, world: &mut impl World) {
        self.set = Some((world.now() + RELIEF, world.looked()));
        world.ring(Timer::Alarm, RELIEF);
    }
}

impl Sleepers {
    /// Frames wake a set's threads.
    pub(crate) fn watches(&self, world: &impl World, set: SetId) -> bool {
        world.is_joined(set) && !self.queues[set.0 as usize].stands_by
    }

    /// A set's threads found something to do.
    pub(crate) fn serves(&mut self, set: SetId, time: Instant) {
        self.queues[set.0 as usize].served = time;
    }

    /// A thread that slept in a set is awake, and there was something for it or not.
    pub(crate) fn count_turn(&mut self, world: &impl World, set: SetId, found: bool) -> Option<Turn> {
        let queue = &mut self.queues[set.0 as usize];
        if found == queue.stands_by {
            return self.take_turn(world, set);
        }
        if !queue.stands_by {
            queue.turns = 0;
        }
        None
    }

    fn take_turn(&mut self, world: &impl World, set: SetId) -> Option<Turn> {
        let queue = &mut self.queues[set.0 as usize];
        queue.turns = (queue.turns + 1) % TURNS;
        if queue.turns > 0 {
            return None;
        }
        if queue.stands_by {
            Some(Turn::Watch(set))
        } else {
            self.others_watch(world, set).then_some(Turn::StandBy(set))
        }
    }

    /// Threads that wait in another set have had something to do just now. (Not where a child could be who waits.)
    fn others_watch(&self, world: &impl World, set: SetId) -> bool {
        let time = world.looked();
        let mut others =
            (0..self.queues.len()).map(|index| SetId(index as u32)).filter(|&other| other != set);
        let is_busy =
            |other: SetId| self.watches(world, other) && time - self.queues[other.0 as usize].served < BUSY;
        !world.is_shared(set) && others.any(is_busy)
    }

    /// The alarm is in a set, and the links are not.
    pub(crate) fn stands_by(&mut self, world: &mut impl World, set: SetId) {
        self.queues[set.0 as usize].stands_by = true;
        self.count_again(world, set);
    }

    /// The links are in a set again, if it stood by, which is said.
    pub(crate) fn watches_again(&mut self, world: &mut impl World, set: SetId) -> bool {
        let stood_by = core::mem::take(&mut self.queues[set.0 as usize].stands_by);
        if stood_by {
            self.count_again(world, set);
        }
        stood_by
    }

    /// Threads that sleep in a set meanwhile must be counted as what they are now.
    fn count_again(&mut self, world: &mut impl World, set: SetId) {
        if self.any_in(set) {
            self.wake_all_in(world, set);
        }
    }

    /// A thread that stood by is awake, perhaps for the alarm.
    pub(super) fn answer_alarm(&mut self, world: &mut impl World, set: SetId) -> Option<Turn> {
        let (rings, looked) = self.alarm.set?;
        if world.now() < rings {
            return None;
        }
        self.alarm.set = None;
        world.silence(Timer::Alarm);
        if !self.queues[set.0 as usize].stands_by {
            return None;
        }
        if looked == world.looked() && self.watching.is_empty() && self.away == 0 {
            return self.take_turn(world, set);
        }
        self.queues[set.0 as usize].turns = 0;
        None
    }
}

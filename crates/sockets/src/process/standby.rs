//! Sets that stand by ([`crate::sleepers`]): the links leave the kernel's set, the alarm joins it, and the other way round.

use super::Process;
use super::tags::PRIVATE_STACK;
use crate::interest::SetId;
use crate::sleepers::{Timer, Turn};

impl Process {
    /// A thread that slept in a set is awake, and there was something for it or not.
    pub(crate) fn count_turn(&mut self, set: SetId, found: bool) {
        let (sleepers, world) = self.machine();
        let turn = sleepers.count_turn(&world, set, found);
        self.take_turn(turn);
    }

    #[inline]
    pub(super) fn take_turn(&mut self, turn: Option<Turn>) {
        match turn {
            None => {}
            Some(Turn::StandBy(set)) => self.stand_by(set),
            Some(Turn::Watch(set)) => self.watch_again(set),
        }
    }

    #[cold]
    fn stand_by(&mut self, set: SetId) {
        let record = &self.sets[set];
        if !record.prepared
            || !self.timers.make(Timer::Alarm).is_ok_and(|timer| record.join(timer, PRIVATE_STACK).is_ok())
        {
            return;
        }
        self.link_descriptors.iter().for_each(|&descriptor| record.leave(descriptor));
        let (sleepers, mut world) = self.machine();
        sleepers.stands_by(&mut world, set);
    }

    /// The set's threads watch the links again.
    #[cold]
    pub(super) fn watch_again(&mut self, set: SetId) {
        let (sleepers, mut world) = self.machine();
        if sleepers.watches_again(&mut world, set) {
            let alarm = self.timers.descriptor(Timer::Alarm);
            alarm.into_iter().for_each(|timer| self.sets[set].leave(timer));
            self.watch_links(set);
        }
    }

    /// No set stands by any more.
    pub(crate) fn watch_everywhere(&mut self) {
        self.sets.numbers().for_each(|set| self.watch_again(set));
    }
}

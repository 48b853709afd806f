//! Who wakes whom.

use core::sync::atomic::Ordering;

use super::{Calls, MOST_CALLS, Sleepers, World};
use crate::interest::SetId;

impl Sleepers {
    /// Before the lock is released: threads that sleep must see what has changed.
    pub(crate) fn tell(&mut self, world: &mut impl World) {
        self.tell_news(world);
        self.arm_for_others(world);
    }

    /// Wakes those who wait for what has become ready.
    pub(crate) fn tell_news(&mut self, world: &mut impl World) {
        if !world.take_news() || !self.any() {
            return;
        }
        // Who watches a set as a descriptor sleeps in the kernel.
        world.signal_exposed();
        let urgent = world.is_urgent();
        for index in 0..self.queues.len() {
            let set = SetId(index as u32);
            if self.queues[index].sleepers > 0 && (urgent || world.is_ready(set)) {
                self.wake_one_in(world, set);
            }
        }
        for index in 0..if self.beside > 0 { self.waiters.len() } else { 0 } {
            let waiter = &self.waiters[index];
            let concerned =
                || waiter.wants.is_empty() || waiter.wants.iter().any(|&id| !world.is_awaited(id));
            if waiter.asleep && !waiter.woken && (urgent || concerned()) {
                self.wake(world, index);
            }
        }
    }

    /// Who watches wakes for the next frame, and in time for the stack's timers.
    pub(super) fn arm_for_others(&mut self, world: &mut impl World) {
        if !self.watching.is_empty() && (!self.arm(world) || self.is_earlier(world)) {
            self.wake_watcher(world);
        }
    }

    /// The next frame wakes whoever watches the links. False if there are frames already.
    pub(crate) fn arm(&mut self, world: &mut impl World) -> bool {
        self.disarmed = false;
        world.arm()
    }

    /// Somebody has to look before anybody who watches wakes by itself.
    pub(super) fn is_earlier(&self, world: &impl World) -> bool {
        let mut untils = self.watching.iter().flatten();
        world.next_look().is_some_and(|deadline| untils.all(|&until| deadline < until))
    }

    /// A thread leaves the library: those who sleep must not depend on its next call.
    #[cold]
    pub(crate) fn remember(&mut self, world: &mut impl World) {
        if !self.any() {
            self.background.call(world);
        } else if !self.watching.is_empty() {
            self.arm_for_others(world);
        } else if self.standing_by > 0 {
            self.alarm.set(world);
        } else {
            self.call_watcher(world);
        }
    }

    /// Somebody must look at the links, or at the clock.
    pub(super) fn wake_watcher(&mut self, world: &mut impl World) {
        let beside = self.waiters.iter().position(|waiter| waiter.asleep && waiter.watches);
        if let Some(index) = beside {
            return self.wake(world, index);
        }
        let mut sets = (0..self.queues.len()).map(|index| SetId(index as u32));
        if let Some(set) = sets.find(|&set| self.any_in(set) && self.watches(world, set)) {
            self.wake_one_in(world, set);
        }
    }

    /// Nobody watches the links any more: one of those who sleep does from now on.
    pub(super) fn call_watcher(&mut self, world: &mut impl World) {
        let asleep = |woken| self.waiters.iter().position(|waiter| waiter.asleep && waiter.woken == woken);
        if let Some(index) = asleep(true).or_else(|| asleep(false)) {
            self.called = Some(index);
            self.wake(world, index);
        }
    }

    pub(super) fn wake(&mut self, world: &mut impl World, index: usize) {
        let waiter = &mut self.waiters[index];
        if core::mem::replace(&mut waiter.woken, true) {
            return;
        }
        self.woke = true;
        match waiter.signal {
            Some(signal) => world.raise(signal),
            None => {
                let word = waiter.word;
                word.store(1, Ordering::Release);
                if self.calls.count == MOST_CALLS {
                    self.call(world);
                }
                self.calls.words[self.calls.count] = Some(word);
                self.calls.count += 1;
            }
        }
    }

    /// Those that are to be woken when the lock is free.
    #[inline]
    pub(crate) const fn take_calls(&mut self) -> Option<Calls> {
        if self.calls.count == 0 {
            return None;
        }
        Some(core::mem::replace(&mut self.calls, Calls::NONE))
    }

    /// Wakes them now.
    pub(crate) fn call(&mut self, world: &mut impl World) {
        if let Some(calls) = self.take_calls() {
            world.call(&calls);
        }
    }

    /// Wakes all that sleep beside.
    pub(crate) fn wake_beside(&mut self, world: &mut impl World) {
        for index in 0..if self.beside > 0 { self.waiters.len() } else { 0 } {
            if self.waiters[index].asleep {
                self.wake(world, index);
            }
        }
    }

    /// One of the threads that sleep in a set looks again.
    pub(super) fn wake_one_in(&mut self, world: &mut impl World, set: SetId) {
        let queue = &mut self.queues[set.0 as usize];
        if !core::mem::replace(&mut queue.one_woken, true) && queue.all_woken == 0 {
            self.woke = true;
            if let Some(signal) = world.signal_of(set) {
                world.raise(signal);
            }
        }
    }

    /// All of them do.
    pub(crate) fn wake_all_in(&mut self, world: &mut impl World, set: SetId) {
        let queue = &mut self.queues[set.0 as usize];
        queue.times_woken += 1;
        let before = core::mem::replace(&mut queue.all_woken, queue.sleepers);
        if !queue.one_woken
            && before == 0
            && let Some(signal) = world.signal_of(set)
        {
            world.raise(signal);
        }
    }

    /// Threads that sleep in a set, or in any, look again at what concerns it; so do those that perhaps poll it.
    pub(crate) fn wake_set(&mut self, world: &mut impl World, set: Option<SetId>) {
        self.wake_beside(world);
        for index in 0..self.queues.len() {
            if self.queues[index].sleepers > 0 && set.is_none_or(|set| set.0 as usize == index) {
                self.wake_all_in(world, SetId(index as u32));
            }
        }
    }

    /// A thread leaves a set with some of what was ready there: another one may have the rest.
    pub(crate) fn leave_rest(&mut self, world: &mut impl World, set: SetId) {
        if self.any_in(set) && world.is_ready(set) {
            self.wake_one_in(world, set);
        }
    }
}

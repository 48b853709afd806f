//! Sets that stand by. A set whose threads were woken again and again for frames of others leaves the links to those. What is in it
//! instead is an alarm (timerfd_create(2)), which rings a while after the last thread that watched the links went back to the
//! program, so that somebody looks at them; if again and again nobody else has, the set watches again. So a thread that only
//! accepts does not take the processor from the one that serves, and one that computes holds nobody up.

use core::time::Duration;
use std::os::fd::IntoRawFd;

use overfly_engine::Instant;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::{KernelSet, PRIVATE_STACK, Process, signal};
use crate::interest::SetId;
use crate::kernel::{self, now};

/// How long the links are left to a thread that went back to the program.
const RELIEF: Duration = Duration::from_millis(1);

/// How often in a row a set's threads are woken for others before it stands by; or, standing by, for themselves or because
/// nobody else had looked, before it watches again.
const TURNS: u32 = 8;

/// For how long a set counts as busy whose threads had something to do.
const BUSY: Duration = Duration::from_millis(10);

/// What wakes one of those who stand by.
pub(super) struct Alarm {
    /// A timerfd, once there is one.
    timer: Option<i32>,
    /// When it rings, and when somebody had last looked at the links before it was set.
    set: Option<(Instant, Instant)>,
}

impl Alarm {
    pub(super) const fn new() -> Self {
        Self { timer: None, set: None }
    }

    #[inline]
    pub(super) const fn is_set(&self) -> bool {
        self.set.is_some()
    }

    fn timer(&mut self) -> Option<i32> {
        if self.timer.is_none() {
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags).ok()?;
            self.timer = Some(kernel::make_internal(timer).into_raw_fd());
        }
        self.timer
    }

    /// In the child of a fork.
    pub(super) fn forget(self) {
        self.timer.into_iter().for_each(signal::close);
    }
}

impl KernelSet {
    /// Frames wake its threads.
    pub(super) const fn watches(&self) -> bool {
        self.prepared && !self.stands_by
    }
}

impl Process {
    /// A thread that slept in a set is awake, and there was something for it or not.
    pub(crate) fn count_turn(&mut self, set: SetId, found: bool) {
        let record = &mut self.sets[set.0 as usize];
        if found == record.stands_by {
            self.take_turn(set);
        } else if !record.stands_by {
            record.turns = 0;
        }
    }

    fn take_turn(&mut self, set: SetId) {
        let record = &mut self.sets[set.0 as usize];
        record.turns = (record.turns + 1) % TURNS;
        if record.turns > 0 {
            return;
        }
        if record.stands_by {
            self.watch_again(set);
        } else if self.others_watch(set) {
            self.stand_by(set);
        }
    }

    /// Threads that wait in another set have had something to do just now. (Not where a child could be who waits.)
    fn others_watch(&self, set: SetId) -> bool {
        let time = self.pumped;
        let is_busy = |other: &KernelSet| other.watches() && time - other.served < BUSY;
        let mut others = self.sets.iter().enumerate().filter(|(index, _)| *index != set.0 as usize);
        !self.sets_shared && !self.sets[set.0 as usize].inherited && others.any(|(_, other)| is_busy(other))
    }

    #[cold]
    fn stand_by(&mut self, set: SetId) {
        let record = &mut self.sets[set.0 as usize];
        let timer = if record.watches() { self.sleepers.alarm.timer() } else { None };
        if timer.is_none_or(|timer| record.join(timer, PRIVATE_STACK).is_err()) {
            return;
        }
        record.stands_by = true;
        self.link_descriptors.iter().for_each(|&descriptor| record.leave(descriptor));
        self.count_again(set);
    }

    /// The set's threads watch the links again.
    #[cold]
    pub(super) fn watch_again(&mut self, set: SetId) {
        let record = &mut self.sets[set.0 as usize];
        if core::mem::take(&mut record.stands_by) {
            self.sleepers.alarm.timer.into_iter().for_each(|timer| record.leave(timer));
            self.watch_links(set);
            self.count_again(set);
        }
    }

    /// No set stands by any more.
    pub(crate) fn watch_everywhere(&mut self) {
        (0..self.sets.len()).for_each(|index| self.watch_again(SetId(index as u32)));
    }

    /// Threads that sleep in a set meanwhile must be counted as what they are now.
    fn count_again(&mut self, set: SetId) {
        if self.sets[set.0 as usize].sleepers > 0 {
            self.wake_all_in(set.0 as usize);
        }
    }

    /// Nobody watches the links any more: those who stand by look after a while.
    #[cold]
    pub(super) fn set_alarm(&mut self) {
        let Some(timer) = self.sleepers.alarm.timer else { return };
        let pause = Timespec { tv_sec: 0, tv_nsec: RELIEF.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: pause };
        self.sleepers.alarm.set = Some((now() + RELIEF, self.pumped));
        let _ = timerfd_settime(kernel::borrow(timer), TimerfdTimerFlags::empty(), &once);
    }

    /// A thread that stood by is awake, perhaps for the alarm.
    pub(super) fn answer_alarm(&mut self, set: SetId) {
        let Some((rings, pumped)) = self.sleepers.alarm.set else { return };
        if now() < rings {
            return;
        }
        self.sleepers.alarm.set = None;
        self.sleepers.alarm.timer.into_iter().for_each(signal::lower);
        if !self.sets[set.0 as usize].stands_by {
            return;
        }
        if pumped == self.pumped && !self.sleepers.anybody_looks() {
            self.take_turn(set);
        } else {
            self.sets[set.0 as usize].turns = 0;
        }
    }
}

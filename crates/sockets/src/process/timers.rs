//! The timers of the threads that wait (timerfd_create(2)), made when they are first needed.

use core::time::Duration;
use std::os::fd::IntoRawFd;

use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::signal;
use crate::kernel;
use crate::numbers;
use crate::sleepers::Timer;

/// Those of a context.
pub(super) struct Timers([Option<i32>; 2]);

impl Timers {
    pub(super) const fn new() -> Self {
        Self([None; 2])
    }

    /// A timer's descriptor, if it was made.
    pub(super) const fn descriptor(&self, timer: Timer) -> Option<i32> {
        self.0[timer as usize]
    }

    /// A timer's descriptor.
    pub(super) fn make(&mut self, timer: Timer) -> Result<i32, Errno> {
        if let Some(made) = self.descriptor(timer) {
            return Ok(made);
        }
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let made = numbers::make_internal(timerfd_create(TimerfdClockId::Monotonic, flags)?).into_raw_fd();
        self.0[timer as usize] = Some(made);
        Ok(made)
    }

    /// It rings once, so long from now.
    pub(super) fn ring(&self, timer: Timer, after: Duration) {
        self.set(timer, after);
    }

    /// It has rung, or is about to: it was set a moment after the time was read that its ring was reckoned from. Read, it would be silent
    /// only in the first case.
    pub(super) fn silence(&self, timer: Timer) {
        self.set(timer, Duration::ZERO);
    }

    /// Of no duration: it does not ring, and what has rung is forgotten (timerfd_create(2)).
    fn set(&self, timer: Timer, after: Duration) {
        let Some(timer) = self.descriptor(timer) else { return };
        let value = Timespec { tv_sec: after.as_secs().cast_signed(), tv_nsec: after.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        let _ = timerfd_settime(kernel::borrow(timer), TimerfdTimerFlags::empty(), &once);
    }

    /// In the child of a fork.
    pub(super) fn forget(&mut self) {
        core::mem::take(&mut self.0).into_iter().flatten().for_each(signal::close);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::sleep::readable;
    use crate::sys;

    /// A thread that polled it would never sleep again.
    #[test]
    fn a_timer_that_is_silenced_before_it_rings_does_not_ring() {
        let mut timers = Timers::new();
        let descriptor = timers.make(Timer::Background).unwrap();
        let rings = |within_us| {
            sys::poll(&mut [readable(descriptor)], Some(within_us), sys::handlers_run()).unwrap() > 0
        };
        timers.ring(Timer::Background, Duration::from_millis(20));
        timers.silence(Timer::Background);
        assert!(!rings(100_000));
        timers.ring(Timer::Background, Duration::from_micros(1));
        assert!(rings(10_000_000));
        timers.silence(Timer::Background);
        assert!(!rings(0));
        timers.forget();
    }
}

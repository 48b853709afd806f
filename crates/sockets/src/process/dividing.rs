//! EF_STACK_PER_THREAD=3: a process begins with one stack for all its threads, and divides when those that wait in epoll sets meet at the
//! stack's lock often. From then on each of them has a stack of its own, and the connections that it serves go there ([`super::moving`]).
//!
//! When that is, [`Meetings`] says, which makes no system calls and has no clock. A thread whose call finds the lock taken notes it, under
//! the lock; the next one that begins to wait in a set, and holds nothing yet, divides the process ([`contexts::divide`]).

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

use overfly_engine::Instant;

use super::{Process, contexts, has_inherited};
use crate::any_link::AnyLink;
use crate::kernel::now;
use crate::socket::Side;

/// How many meetings are often, and within which time.
const OFTEN: u32 = 200;
const WITHIN: Duration = Duration::from_secs(1);

/// How often threads that wait in epoll sets found the lock taken.
pub(super) struct Meetings {
    /// When those that are counted began.
    began: Instant,
    count: u32,
    /// Who was the first of them to wait.
    first: usize,
    /// Another one has waited as well: one event loop beside threads of other kinds gains nothing.
    others: bool,
}

impl Meetings {
    pub(super) const NONE: Self = Self { began: Instant::from_micros(0), count: 0, first: 0, others: false };

    /// At that time a thread with that number had to wait for the lock. Returns whether the threads meet often.
    pub(super) fn add(&mut self, time: Instant, thread: usize) -> bool {
        if self.count == 0 || time - self.began >= WITHIN {
            *self = Self { began: time, first: thread, ..Self::NONE };
        }
        self.count += 1;
        self.others |= thread != self.first;
        self.count >= OFTEN && self.others
    }
}

/// The process may divide.
static MAY: AtomicBool = AtomicBool::new(false);
/// Its threads meet often.
static DUE: AtomicBool = AtomicBool::new(false);

thread_local! {
    static WAITS_IN_SETS: Cell<bool> = const { Cell::new(false) };
}

/// The process is one that may divide, or does not need to any more.
pub(super) fn may_divide(may: bool) {
    MAY.store(may, Ordering::Relaxed);
}

/// The calling thread is one that waits in epoll sets. It is about to, and holds no lock: the process divides now if it has to.
#[inline]
pub(crate) fn waits_in_set() {
    WAITS_IN_SETS.set(true);
    if DUE.load(Ordering::Relaxed) {
        divide();
    }
}

#[cold]
fn divide() {
    if DUE.swap(false, Ordering::Relaxed) && MAY.load(Ordering::Relaxed) {
        contexts::divide();
    }
}

/// Whether the calling thread has waited in an epoll set before.
pub(super) fn has_event_loop() -> bool {
    WAITS_IN_SETS.get()
}

/// A number that no other thread has that lives.
fn thread() -> usize {
    WAITS_IN_SETS.with(|waits| core::ptr::from_ref(waits).addr())
}

/// Some bits of [`thread`], which other threads seldom have.
pub(super) fn mark() -> u8 {
    (thread().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - 8)) as u8
}

impl Process {
    /// The calling thread had to wait for the lock.
    pub(super) fn meets(&mut self) {
        self.statistics.lock_waits += 1;
        if MAY.load(Ordering::Relaxed) && has_event_loop() && self.meetings.add(now(), thread()) {
            self.meetings = Meetings::NONE;
            DUE.store(self.gains_by_dividing(), Ordering::Relaxed);
        }
    }

    /// Whether connections can go from this stack to another one, and nothing means that there is only one.
    pub(super) fn gains_by_dividing(&self) -> bool {
        let carries = self.stack.transport(Side::Network).is_some_and(AnyLink::is_interfaces);
        let within_process = self.options.tcp_client_loopback == 1 || self.options.tcp_server_loopback == 1;
        carries && !self.is_away() && !within_process && !has_inherited()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: usize = 0x7000;
    const OTHER: usize = 0x8000;

    /// The time of the meeting at which they meet often, if that many meet each second for some seconds, in turns of these threads.
    fn often(a_second: u64, threads: &[usize]) -> Option<Instant> {
        let mut meetings = Meetings::NONE;
        let begin = Instant::from_micros(5_000_000);
        (0..10 * a_second).zip(threads.iter().cycle()).find_map(|(turn, &thread)| {
            let time = begin + Duration::from_micros(turn * 1_000_000 / a_second);
            meetings.add(time, thread).then_some(time)
        })
    }

    #[test]
    fn two_threads_that_meet_200_times_in_a_second_meet_often() {
        let begin = Instant::from_micros(5_000_000);
        assert_eq!(often(200, &[ONE, OTHER]), Some(begin + Duration::from_micros(995_000)));
        assert_eq!(often(100_000, &[ONE, OTHER]), Some(begin + Duration::from_micros(1990)));
        assert_eq!(often(100_000, &[ONE, ONE, ONE, OTHER]), Some(begin + Duration::from_micros(1990)));
    }

    #[test]
    fn those_that_meet_seldom_never_do() {
        assert_eq!(often(199, &[ONE, OTHER]), None);
        assert_eq!(often(1, &[ONE, OTHER]), None);
    }

    #[test]
    fn one_thread_beside_others_without_an_event_loop_is_not_enough() {
        assert_eq!(often(100_000, &[ONE]), None);
    }

    #[test]
    fn a_second_begins_with_its_first_meeting() {
        let mut meetings = Meetings::NONE;
        let mut time = Instant::from_micros(1);
        (0..OFTEN - 1).for_each(|turn| assert!(!meetings.add(time, turn as usize)));
        // The last one comes too late, and is the first of the next second.
        time = time + WITHIN;
        (0..OFTEN - 1).for_each(|turn| assert!(!meetings.add(time, turn as usize)));
        assert!(meetings.add(time + Duration::from_micros(999_999), ONE));
    }
}

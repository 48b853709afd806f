//! What became of a thread's spins, and when the next ones are left out (EF_POLL_ADAPT).

use core::time::Duration;

use overfly_engine::Instant;

/// How many spins in a row are in vain before the next ones are left out, for how many sleeps, and how many of those that are
/// tried then must be in vain again.
const IN_VAIN: u32 = 16;
const LEFT_OUT: u32 = 128;
const TRIED: u32 = 4;

/// Sleeps from one look at how the thread was scheduled to the next.
const LOOK_EVERY: u32 = 64;
/// A thread that spins does not sleep: the longest time from one look to the next.
const LOOK_AFTER: Duration = Duration::from_millis(10);
/// After so long one that sleeps seldom may find that it can spin again. Its turns come early, whoever else runs: it would soon find
/// that it cannot.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Who waits so long for a processor, each time it is to run, and for a tenth of all the time in which it would run, spins at the cost of
/// another one. As long as a spin of `balanced`: where nobody else is to run it is 1 to 5 µs.
const WAIT_NS: u64 = 20_000;
const SHARE: u64 = 10;
/// It goes on to be taken for one that does while its turns come so late: those who do not spin give the processor back soon.
const STILL_NS: u64 = 6_000;

/// When a thread leaves out its spins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adapt {
    Never,
    /// When they were in vain, or its processor is another one's too.
    InVainOrShared,
    /// When its processor is.
    Shared,
}

impl Adapt {
    /// EF_POLL_ADAPT.
    pub(crate) const fn of_option(number: u64) -> Self {
        match number {
            0 => Self::Never,
            1 => Self::InVainOrShared,
            _ => Self::Shared,
        }
    }
}

/// How the kernel has scheduled a thread: `/proc/thread-self/schedstat` (Documentation/scheduler/sched-stats.rst).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scheduled {
    ran_ns: u64,
    /// How long it has waited on run queues, ns.
    waited_ns: u64,
    /// How often it was given a processor.
    turns: u64,
}

impl Scheduled {
    /// `None` where the kernel does not count.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let mut fields = core::str::from_utf8(text).ok()?.split_ascii_whitespace();
        let mut field = || fields.next()?.parse().ok();
        Some(Self { ran_ns: field()?, waited_ns: field()?, turns: field()? })
    }

    /// Whether it waited long for its turns since then: `wait_ns` each.
    const fn has_waited_since(&self, before: &Self, wait_ns: u64) -> bool {
        // A forked child's begin anew.
        let turns = self.turns.saturating_sub(before.turns);
        let waited_ns = self.waited_ns.saturating_sub(before.waited_ns);
        let ran_ns = self.ran_ns.saturating_sub(before.ran_ns);
        turns > 0 && waited_ns / turns >= wait_ns && waited_ns >= (ran_ns + waited_ns) / SHARE
    }
}

/// What became of a thread's spins.
#[derive(Clone, Copy)]
pub(crate) struct Spins {
    /// Until when the last one lasts, unless the thread slept after it.
    last: Option<Instant>,
    /// Those in a row that ended with a sleep.
    in_vain: u32,
    /// Sleeps left without one before.
    left_out: u32,
    /// Others wanted its processor when that was last looked at.
    is_shared: bool,
    /// Sleeps since then, when that was, and what was seen.
    sleeps: u32,
    looked: Option<Instant>,
    seen: Option<Scheduled>,
}

impl Spins {
    pub(crate) const NONE: Self =
        Self { last: None, in_vain: 0, left_out: 0, is_shared: false, sleeps: 0, looked: None, seen: None };
    const SHARED: u64 = 1 << 63;

    /// Those of a thread that has not spun yet: it begins as another one is now.
    pub(crate) const fn as_of(note: u64) -> Self {
        Self {
            in_vain: ((note & !Self::SHARED) >> 32) as u32,
            left_out: note as u32,
            is_shared: note & Self::SHARED != 0,
            ..Self::NONE
        }
    }

    /// What [`Spins::as_of`] takes.
    pub(crate) const fn note(&self) -> u64 {
        let shared = if self.is_shared { Self::SHARED } else { 0 };
        shared | (self.in_vain as u64) << 32 | self.left_out as u64
    }

    /// The next spins are left out.
    pub(crate) const fn are_left_out(&self, adapt: Adapt) -> bool {
        match adapt {
            Adapt::Never => false,
            Adapt::InVainOrShared => self.left_out > 0 || self.is_shared,
            Adapt::Shared => self.is_shared,
        }
    }

    /// It is time to see how the thread was scheduled, for one that begins to wait.
    pub(crate) fn is_look_due(&self, time: Instant) -> bool {
        self.sleeps >= LOOK_EVERY || self.is_shared && self.has_not_looked_for(LOOK_AGAIN_AFTER, time)
    }

    /// The same in a spin.
    pub(crate) fn is_look_due_at(&self, time: Instant) -> bool {
        self.has_not_looked_for(LOOK_AFTER, time)
    }

    fn has_not_looked_for(&self, long: Duration, time: Instant) -> bool {
        self.looked.is_none_or(|looked| time >= looked + long)
    }

    /// What was seen at that time; `None`: nothing.
    pub(crate) fn look(&mut self, seen: Option<Scheduled>, time: Instant) {
        let wait_ns = if self.is_shared { STILL_NS } else { WAIT_NS };
        let pair = self.seen.zip(seen);
        self.is_shared = pair.is_some_and(|(before, now)| now.has_waited_since(&before, wait_ns));
        (self.sleeps, self.looked, self.seen) = (0, Some(time), seen);
    }

    /// A call that has found nothing yet goes on to spin, as it may until then, or sleeps.
    pub(crate) fn count(&mut self, goes_on: bool, until: Instant) {
        let is_last = self.last == Some(until);
        self.sleeps += u32::from(!goes_on);
        if goes_on {
            if !is_last && self.last.replace(until).is_some() {
                // The one before has found something.
                self.in_vain = 0;
            }
        } else if is_last {
            self.last = None;
            self.in_vain += 1;
            if self.in_vain >= IN_VAIN {
                (self.in_vain, self.left_out) = (IN_VAIN - TRIED, LEFT_OUT);
            }
        } else {
            self.left_out = self.left_out.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    const SPIN: Duration = Duration::from_micros(20);

    fn spin(spins: &mut Spins, now: &mut Instant, finds: bool) {
        *now = *now + Duration::from_micros(100);
        (0..3).for_each(|_| spins.count(true, *now + SPIN));
        if !finds {
            spins.count(false, *now + SPIN);
        }
    }

    /// Microseconds that a thread ran, that it waited, and how often it was to run.
    fn seen(ran_us: u64, wait_us: u64, turns: u64) -> Option<Scheduled> {
        Scheduled::parse(std::format!("{} {} {turns}\n", ran_us * 1000, wait_us * 1000).as_bytes())
    }

    #[test]
    fn who_waits_for_a_processor_does_not_spin() {
        let (mut spins, now) = (Spins::NONE, Instant::from_micros(0));
        let look = |spins: &mut Spins, seen| {
            (0..LOOK_EVERY).for_each(|_| {
                assert!(!spins.is_look_due(now));
                spins.count(false, now);
            });
            assert!(spins.is_look_due(now));
            spins.look(seen, now);
            assert!(!spins.are_left_out(Adapt::Never));
            assert_eq!(spins.are_left_out(Adapt::Shared), spins.are_left_out(Adapt::InVainOrShared));
            spins.are_left_out(Adapt::Shared)
        };
        assert!(!look(&mut spins, seen(0, 10_000, 10)), "what was before is not counted");
        assert!(!look(&mut spins, seen(0, 10_000 + 99 * 20, 110)));
        assert!(look(&mut spins, seen(0, 12_000 + 100 * 20, 210)));
        assert!(Spins::as_of(spins.note()).are_left_out(Adapt::Shared), "a new thread begins so");
        assert!(look(&mut spins, seen(0, 14_000 + 64 * 6, 274)), "others go on to have the processor");
        assert!(!look(&mut spins, seen(0, 15_000, 474)));
        // A forked child's begin anew.
        assert!(!look(&mut spins, seen(0, 5, 1)));
        assert!(look(&mut spins, seen(0, 5000, 65)));
        assert!(!look(&mut spins, None), "a kernel that does not say");
        assert!(!look(&mut spins, seen(0, 90_000, 66)));
    }

    #[test]
    fn who_spins_on_looks_as_well() {
        let (mut spins, start) = (Spins::NONE, Instant::from_micros(0));
        let mut look = |ms: u64, seen| {
            let time = start + Duration::from_millis(ms);
            assert!(spins.is_look_due_at(time));
            assert!(!spins.is_look_due(time));
            assert_eq!(spins.is_look_due(time + LOOK_AGAIN_AFTER), spins.are_left_out(Adapt::Shared));
            spins.look(seen, time);
            assert!(!spins.is_look_due_at(time + LOOK_AFTER / 2));
            spins.are_left_out(Adapt::Shared)
        };
        assert!(!look(0, seen(0, 0, 1)));
        // The kernel's own threads run now and then.
        assert!(!look(10, seen(9_900, 100, 3)));
        // Another one runs as much.
        assert!(look(20, seen(15_000, 5_000, 5)));
        // The two take turns.
        assert!(look(30, seen(20_000, 10_000, 505)));
        // It has gone.
        assert!(!look(40, seen(29_000, 11_000, 705)));
    }

    #[test]
    fn what_the_kernel_says_of_a_thread() {
        assert_eq!(
            Scheduled::parse(b"7 88170 1\n"),
            Some(Scheduled { ran_ns: 7, waited_ns: 88170, turns: 1 })
        );
        for text in [&b""[..], b"1 2", b"1 -2 3", b"a 2 3", b"1 2 99999999999999999999", b"\xff 1 2"] {
            assert_eq!(Scheduled::parse(text), None);
        }
    }

    #[test]
    fn a_thread_begins_as_another_one_is() {
        let (mut note, mut now, mut spun) = (Spins::NONE.note(), Instant::from_micros(0), 0);
        for _ in 0..100 {
            let mut young = Spins::as_of(note);
            for _ in 0..4 {
                if young.are_left_out(Adapt::InVainOrShared) {
                    young.count(false, now);
                } else {
                    spun += 1;
                    spin(&mut young, &mut now, false);
                }
            }
            note = young.note();
        }
        // As one thread alone that waits 400 times: and not 400 times.
        assert_eq!(spun, IN_VAIN + 2 * TRIED);
    }

    #[test]
    fn spins_in_vain_are_left_out_and_tried_again() {
        let (mut spins, mut now) = (Spins::NONE, Instant::from_micros(0));
        for _ in 0..10 {
            (0..IN_VAIN - 1).for_each(|_| spin(&mut spins, &mut now, false));
            assert_eq!(spins.left_out, 0);
            spin(&mut spins, &mut now, true);
        }
        (0..IN_VAIN).for_each(|_| spin(&mut spins, &mut now, false));
        for left in (1..=LEFT_OUT).rev() {
            assert_eq!(spins.left_out, left);
            spins.count(false, now);
        }
        assert_eq!(spins.left_out, 0);
        // Fewer are enough, until one finds something.
        (0..TRIED).for_each(|_| spin(&mut spins, &mut now, false));
        assert_eq!(spins.left_out, LEFT_OUT);
        (0..LEFT_OUT).for_each(|_| spins.count(false, now));
        spin(&mut spins, &mut now, true);
        (0..IN_VAIN - 1).for_each(|_| spin(&mut spins, &mut now, false));
        assert_eq!(spins.left_out, 0);
    }
}

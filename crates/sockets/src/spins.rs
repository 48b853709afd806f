//! What became of a thread's spins, and when the next ones are left out (EF_POLL_ADAPT).

use overfly_engine::Instant;

/// How many spins in a row are in vain before the next ones are left out, for how many sleeps, and how many of those that are
/// tried then must be in vain again.
const IN_VAIN: u32 = 16;
const LEFT_OUT: u32 = 128;
const TRIED: u32 = 4;

/// Sleeps from one look at how the thread was scheduled to the next.
const LOOK_EVERY: u32 = 64;
/// Who waits so long for a processor, each time it is to run, spins at the cost of another one. As long as a spin of `balanced`: where nobody
/// else is to run it is 1 to 5 µs.
const WAIT_NS: u64 = 20_000;

/// How the kernel has scheduled a thread: `/proc/thread-self/schedstat` (Documentation/scheduler/sched-stats.rst).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scheduled {
    /// How long it has waited on run queues, ns.
    waited_ns: u64,
    /// How often it was given a processor.
    turns: u64,
}

impl Scheduled {
    /// `None` where the kernel does not count.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let mut fields = core::str::from_utf8(text).ok()?.split_ascii_whitespace().skip(1);
        let mut field = || fields.next()?.parse().ok();
        Some(Self { waited_ns: field()?, turns: field()? })
    }

    /// Whether it waited long for its turns since then.
    const fn has_waited_since(&self, before: &Self) -> bool {
        // A forked child's begin anew.
        let turns = self.turns.saturating_sub(before.turns);
        turns > 0 && self.waited_ns.saturating_sub(before.waited_ns) / turns >= WAIT_NS
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
    /// Sleeps since then, and what was seen.
    sleeps: u32,
    seen: Option<Scheduled>,
}

impl Spins {
    pub(crate) const NONE: Self =
        Self { last: None, in_vain: 0, left_out: 0, is_shared: false, sleeps: 0, seen: None };
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
    pub(crate) const fn are_left_out(&self) -> bool {
        self.left_out > 0 || self.is_shared
    }

    /// It is time to see how the thread was scheduled.
    pub(crate) const fn is_look_due(&self) -> bool {
        self.sleeps >= LOOK_EVERY
    }

    /// What was seen; `None`: nothing.
    pub(crate) fn look(&mut self, seen: Option<Scheduled>) {
        self.sleeps = 0;
        self.is_shared = self.seen.zip(seen).is_some_and(|(before, now)| now.has_waited_since(&before));
        self.seen = seen;
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

    #[test]
    fn who_waits_for_a_processor_does_not_spin() {
        let (mut spins, now) = (Spins::NONE, Instant::from_micros(0));
        // Nanoseconds that it ran, that it waited, and how often it was to run.
        let seen = |wait_us: u64, turns: u64| {
            Scheduled::parse(std::format!("123456 {} {turns}\n", wait_us * 1000).as_bytes())
        };
        let look = |spins: &mut Spins, seen| {
            (0..LOOK_EVERY).for_each(|_| {
                assert!(!spins.is_look_due());
                spins.count(false, now);
            });
            assert!(spins.is_look_due());
            spins.look(seen);
            spins.are_left_out()
        };
        assert!(!look(&mut spins, seen(10_000, 10)), "what was before is not counted");
        assert!(!look(&mut spins, seen(10_000 + 99 * 20, 110)));
        assert!(look(&mut spins, seen(12_000 + 100 * 20, 210)));
        assert!(Spins::as_of(spins.note()).are_left_out(), "a new thread begins so");
        assert!(!look(&mut spins, seen(14_000 + 64 * 3, 274)));
        // A forked child's begin anew.
        assert!(!look(&mut spins, seen(5, 1)));
        assert!(look(&mut spins, seen(5000, 65)));
        assert!(!look(&mut spins, None), "a kernel that does not say");
        assert!(!look(&mut spins, seen(90_000, 66)));
    }

    #[test]
    fn what_the_kernel_says_of_a_thread() {
        assert_eq!(Scheduled::parse(b"0 88170 1\n"), Some(Scheduled { waited_ns: 88170, turns: 1 }));
        for text in [&b""[..], b"1 2", b"1 -2 3", b"a b c", b"1 2 99999999999999999999", b"\xff 1 2"] {
            assert_eq!(Scheduled::parse(text), None);
        }
    }

    #[test]
    fn a_thread_begins_as_another_one_is() {
        let (mut note, mut now, mut spun) = (Spins::NONE.note(), Instant::from_micros(0), 0);
        for _ in 0..100 {
            let mut young = Spins::as_of(note);
            for _ in 0..4 {
                if young.are_left_out() {
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

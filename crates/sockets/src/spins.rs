//! What became of a thread's spins, and when the next ones are left out (EF_POLL_ADAPT).

use overfly_engine::Instant;

/// How many spins in a row are in vain before the next ones are left out, for how many sleeps, and how many of those that are
/// tried then must be in vain again.
const IN_VAIN: u32 = 16;
const LEFT_OUT: u32 = 128;
const TRIED: u32 = 4;

/// What became of a thread's spins.
#[derive(Clone, Copy)]
pub(crate) struct Spins {
    /// Until when the last one lasts, unless the thread slept after it.
    last: Option<Instant>,
    /// Those in a row that ended with a sleep.
    in_vain: u32,
    /// Sleeps left without one before.
    left_out: u32,
}

impl Spins {
    pub(crate) const NONE: Self = Self { last: None, in_vain: 0, left_out: 0 };

    /// Those of a thread that has not spun yet: it begins as another one is now.
    pub(crate) const fn as_of(note: u64) -> Self {
        Self { last: None, in_vain: (note >> 32) as u32, left_out: note as u32 }
    }

    /// What [`Spins::as_of`] takes.
    pub(crate) const fn note(&self) -> u64 {
        (self.in_vain as u64) << 32 | self.left_out as u64
    }

    /// The next spins are left out.
    pub(crate) const fn are_left_out(&self) -> bool {
        self.left_out > 0
    }

    /// A call that has found nothing yet goes on to spin, as it may until then, or sleeps.
    pub(crate) fn count(&mut self, goes_on: bool, until: Instant) {
        let is_last = self.last == Some(until);
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

//! Which run comes next, when the machine is ready for it, and which runs are made again.
//!
//! The schedule knows runs by number only: neither what is compared in them nor what they came to.
//! So it cannot favour anything.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::hosts::Hosts;
use crate::yardstick::{Conditions, Speed};

/// The share of its best speed below which the machine is not what it was. On the machines that this
/// was made for, cores of one's own measure 0.90 to 1, shared ones 0.45 to 0.70.
pub(crate) const STEADY: f64 = 0.85;

/// What tells how fast the machine is and what time it is.
pub(crate) trait Yardstick {
    /// Takes some milliseconds of the plan's cores.
    fn speed(&mut self) -> Speed;
    /// Since any fixed moment.
    fn now(&self) -> Duration;
}

/// The machine's own cores and clock.
pub(crate) struct Cores<'a> {
    /// Of all cells of the plan.
    pub(crate) server_cpus: Vec<usize>,
    pub(crate) client_cpu: usize,
    pub(crate) started: Instant,
    /// Where the cores are, if not here.
    pub(crate) hosts: Option<&'a Hosts>,
}

impl Yardstick for Cores<'_> {
    fn speed(&mut self) -> Speed {
        match self.hosts {
            Some(hosts) => hosts.speed(&self.server_cpus, self.client_cpu),
            None => Speed::measure(&self.server_cpus, self.client_cpu),
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

/// One run as it was made. Attempts are numbered from 0 in the order in which they were made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Attempt {
    /// The point of the plan that it is for.
    #[serde(skip)]
    pub(crate) point: usize,
    /// The attempt at the same point that it was to replace.
    #[serde(skip)]
    pub(crate) again: Option<usize>,
    pub(crate) before: Speed,
    pub(crate) during: Conditions,
    pub(crate) after: Speed,
}

impl Attempt {
    /// How fast the machine was, as a share of the best: what the run had of it, or
    /// if that is not known the slower of the moments before and after.
    fn share_of(&self, best: Speed) -> f64 {
        let ends = || self.before.share_of(best).min(self.after.share_of(best));
        self.during.share_of(best).unwrap_or_else(ends)
    }
}

/// What becomes of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It counts.
    Stands,
    /// It counts, although the machine was slow.
    Disturbed,
    /// It was disturbed, and another attempt at the same point counts.
    SetAside,
}

/// What the schedule came to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Account {
    /// The best speed that was seen.
    pub(crate) best: Speed,
    /// Share of it that counts as steady.
    pub(crate) steady_share: f64,
    /// Spent waiting for the machine before runs.
    pub(crate) waited_s: f64,
    /// Runs that were made again.
    pub(crate) made_again: usize,
    /// Of all points of the plan.
    pub(crate) points: usize,
    /// Points that stand although disturbed.
    pub(crate) disturbed: usize,
    /// For each attempt.
    #[serde(skip)]
    pub(crate) standings: Vec<Standing>,
}

/// Call [`next`](Schedule::next), make the run that it names, call [`made`](Schedule::made), and so
/// on until there is no next; then [`close`](Schedule::close).
pub(crate) struct Schedule<Y> {
    yardstick: Y,
    /// What a run takes: less patience than this does not pay for another.
    run_time: Duration,
    patience: Duration,
    waited: Duration,
    best: Speed,
    queue: VecDeque<usize>,
    /// The attempt that counts, for each point.
    standing: Vec<Option<usize>>,
    attempts: Vec<Attempt>,
    /// Where [`made`](Schedule::made) takes its beginnings from.
    under_way: Option<UnderWay>,
}

struct UnderWay {
    point: usize,
    since: Duration,
    before: Speed,
}

impl<Y: Yardstick> Schedule<Y> {
    /// Every point from 0 on, each once, in this order.
    pub(crate) fn new(
        yardstick: Y,
        order: Vec<usize>,
        run_time: Duration,
        patience: Duration,
    ) -> Schedule<Y> {
        let points = order.len();
        Schedule {
            yardstick,
            run_time,
            patience,
            waited: Duration::ZERO,
            best: Speed::default(),
            queue: order.into(),
            standing: vec![None; points],
            attempts: Vec::new(),
            under_way: None,
        }
    }

    /// The point to measure now, once the machine is steady or patience is at its end.
    pub(crate) fn next(&mut self) -> Option<usize> {
        if self.queue.is_empty() {
            self.queue_disturbed();
        }
        let point = self.queue.pop_front()?;
        let again = self.standing[point].is_some();
        let limit = if again {
            self.patience.checked_sub(self.run_time)?
        } else {
            // If the machine needs longer than that, it is better to go on and make the run again at
            // the end. A machine that keeps changing would use up all patience here, for nothing.
            self.patience.min(self.run_time / 4)
        };
        let (before, steady) = self.wait(limit);
        if again && !steady {
            return None;
        }
        self.under_way = Some(UnderWay { point, since: self.yardstick.now(), before });
        Some(point)
    }

    /// To be called as soon as the run has ended, with what was seen of the machine meanwhile. None
    /// if there was no next.
    pub(crate) fn made(&mut self, during: Conditions) -> Option<Attempt> {
        let UnderWay { point, since, before } = self.under_way.take()?;
        let after = self.look();
        let again = self.standing[point];
        let attempt = Attempt { point, again, before, during, after };
        self.attempts.push(attempt.clone());
        let this = self.attempts.len() - 1;
        match again {
            None => self.standing[point] = Some(this),
            Some(earlier) => {
                self.patience = self.patience.saturating_sub(self.yardstick.now().saturating_sub(since));
                if attempt.share_of(self.best) > self.attempts[earlier].share_of(self.best) {
                    self.standing[point] = Some(this);
                }
            }
        }
        Some(attempt)
    }

    /// Takes an attempt of an interrupted session as if it had just been made. Patience begins anew.
    pub(crate) fn restore(&mut self, attempt: Attempt) {
        self.best = self.best.best(attempt.before).best(attempt.after);
        self.queue.retain(|&point| point != attempt.point);
        self.attempts.push(attempt);
        let this = self.attempts.len() - 1;
        let attempt = &self.attempts[this];
        let better =
            |earlier: usize| attempt.share_of(self.best) > self.attempts[earlier].share_of(self.best);
        if self.standing[attempt.point].is_none_or(better) {
            self.standing[attempt.point] = Some(this);
        }
    }

    /// Runs that are still to be made, as far as is known.
    pub(crate) fn left(&self) -> usize {
        if self.attempts.len() < self.standing.len() {
            return self.queue.len();
        }
        // The one under way is paid from the same patience.
        let affordable = self.patience.div_duration_f64(self.run_time) as usize;
        self.queue.len().min(affordable.saturating_sub(1))
    }

    /// The share of the best speed that counts for an attempt, as far as the best is known.
    pub(crate) fn share(&self, attempt: &Attempt) -> f64 {
        attempt.share_of(self.best)
    }

    /// What becomes of every attempt, judged by the best speed of the whole session: what seemed to
    /// be full speed at first may not have been.
    pub(crate) fn close(self) -> Account {
        let standings: Vec<Standing> = self
            .attempts
            .iter()
            .enumerate()
            .map(|(index, attempt)| match self.standing[attempt.point] {
                Some(chosen) if chosen != index => Standing::SetAside,
                _ if attempt.share_of(self.best) < STEADY => Standing::Disturbed,
                _ => Standing::Stands,
            })
            .collect();
        Account {
            best: self.best,
            steady_share: STEADY,
            waited_s: (self.waited.as_secs_f64() * 10.0).round() / 10.0,
            made_again: self.attempts.iter().filter(|attempt| attempt.again.is_some()).count(),
            points: self.standing.len(),
            disturbed: standings.iter().filter(|&&standing| standing == Standing::Disturbed).count(),
            standings,
        }
    }

    fn look(&mut self) -> Speed {
        let speed = self.yardstick.speed();
        self.best = self.best.best(speed);
        speed
    }

    /// Looks until the machine is steady, or for as long as `limit` and at least once. What is spent
    /// after a first look that was not good enough is taken from the patience.
    fn wait(&mut self, limit: Duration) -> (Speed, bool) {
        let mut since = None;
        loop {
            let started = self.yardstick.now();
            let speed = self.look();
            let since = *since.get_or_insert(started);
            let steady = speed.share_of(self.best) >= STEADY;
            let spent = self.yardstick.now().saturating_sub(since);
            if steady || spent >= limit {
                if started > since {
                    self.patience = self.patience.saturating_sub(spent);
                    self.waited += spent;
                }
                return (speed, steady);
            }
        }
    }

    fn queue_disturbed(&mut self) {
        let best = self.best;
        let share =
            |attempt: &Option<usize>| attempt.map_or(1.0, |index| self.attempts[index].share_of(best));
        let mut points: Vec<usize> = (0..self.standing.len()).collect();
        points.retain(|&point| share(&self.standing[point]) < STEADY);
        // The slowest first, for patience may not suffice for all. (No two are alike, and the order in
        // which points came was random.)
        points.sort_by(|&one, &other| share(&self.standing[one]).total_cmp(&share(&self.standing[other])));
        self.queue = points.into();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ops::Range;

    use super::*;
    use crate::shuffle::shuffle;

    /// A machine that is slow during some times, in ms.
    struct Fake {
        now_ms: Cell<u64>,
        slow_ms: Vec<Range<u64>>,
    }

    const LOOK_MS: u64 = 10;
    const RUN_MS: u64 = 1000;

    impl Fake {
        /// The speed now, and time that passes.
        fn pass(&self, ms: u64) -> Speed {
            let now = self.now_ms.get();
            self.now_ms.set(now + ms);
            let slow = self.slow_ms.iter().any(|range| range.contains(&now));
            Speed { server_core: if slow { 55.0 } else { 100.0 }, client_core: 100.0 }
        }
    }

    impl Yardstick for Fake {
        fn speed(&mut self) -> Speed {
            self.pass(LOOK_MS)
        }

        fn now(&self) -> Duration {
            Duration::from_millis(self.now_ms.get())
        }
    }

    /// What a schedule does with runs of `RUN_MS` each, of which nothing is seen but their ends: the
    /// points in their order, and the account.
    fn carry_out(points: usize, patience_ms: u64, slow_ms: &[Range<u64>]) -> (Vec<usize>, Account) {
        carry_out_watched(points, patience_ms, slow_ms, 0)
    }

    /// The same with this many looks at the machine in each run.
    fn carry_out_watched(
        points: usize,
        patience_ms: u64,
        slow_ms: &[Range<u64>],
        looks: u64,
    ) -> (Vec<usize>, Account) {
        let fake = Fake { now_ms: Cell::new(0), slow_ms: slow_ms.to_vec() };
        let (run_time, patience) = (Duration::from_millis(RUN_MS), Duration::from_millis(patience_ms));
        let mut shuffled: Vec<usize> = (0..points).collect();
        shuffle(&mut shuffled, 9);
        let mut schedule = Schedule::new(fake, shuffled, run_time, patience);
        let mut order = Vec::new();
        while let Some(point) = schedule.next() {
            order.push(point);
            let speeds = (0..looks).map(|_| schedule.yardstick.pass(RUN_MS / looks)).collect();
            let during = Conditions { speeds, taken_by_others: 0.0 };
            if looks == 0 {
                schedule.yardstick.pass(RUN_MS);
            }
            assert_eq!(schedule.made(during).unwrap().point, point);
        }
        (order, schedule.close())
    }

    fn sorted(order: &[usize]) -> Vec<usize> {
        let mut order = order.to_vec();
        order.sort_unstable();
        order
    }

    #[test]
    fn a_steady_machine_makes_every_run_once_and_spends_no_patience() {
        let (order, account) = carry_out(10, 5000, &[]);
        assert_eq!(sorted(&order), (0..10).collect::<Vec<_>>());
        assert_eq!((account.made_again, account.disturbed, account.waited_s), (0, 0, 0.0));
        assert!(account.standings.iter().all(|&standing| standing == Standing::Stands));
    }

    #[test]
    fn a_run_waits_a_little_for_a_slow_machine() {
        // The second run would begin at 1020.
        let slow = 1015..1200;
        let (order, account) = carry_out(4, 5000, std::slice::from_ref(&slow));
        assert_eq!(order.len(), 4);
        assert!((0.1..0.3).contains(&account.waited_s), "{account:?}");
        assert_eq!((account.made_again, account.disturbed), (0, 0));
    }

    #[test]
    fn a_run_that_would_have_to_wait_for_long_is_made_again_instead() {
        let slow = 1015..3000;
        let (order, account) = carry_out(4, 5000, std::slice::from_ref(&slow));
        assert_eq!(order.len(), 6);
        assert_eq!(sorted(&order[1..3]), sorted(&order[4..]));
        assert_eq!((account.made_again, account.disturbed), (2, 0));
    }

    #[test]
    fn patience_ends() {
        let slow = 1015..1_000_000;
        let (order, account) = carry_out(4, 3000, std::slice::from_ref(&slow));
        assert_eq!(order.len(), 4, "every point is measured all the same, and none in vain");
        // What a run needs is never spent on waiting: it would come to nothing.
        assert!((1.9..2.1).contains(&account.waited_s), "{account:?}");
        assert_eq!((account.made_again, account.disturbed), (0, 3));
    }

    #[test]
    fn the_slowest_runs_are_made_again_first() {
        // Of each second, 300, 400 and 500 ms are slow.
        let slow = [100..400, 1200..1600, 2200..2700];
        let (order, account) = carry_out_watched(5, 2200, &slow, 10);
        assert_eq!(order.len(), 7);
        assert_eq!(order[5..], [order[2], order[1]]);
        assert_eq!((account.made_again, account.disturbed), (2, 0));
    }

    #[test]
    fn without_patience_nothing_waits_and_nothing_is_made_again() {
        let slow = 1015..2500;
        let (order, account) = carry_out(4, 0, std::slice::from_ref(&slow));
        assert_eq!(order.len(), 4);
        assert_eq!((account.waited_s, account.made_again, account.disturbed), (0.0, 0, 2));
    }

    #[test]
    fn a_run_that_a_slow_machine_ended_is_made_again_at_the_end() {
        // Over when the next run begins.
        let slow = 1005..1015;
        let (order, account) = carry_out(4, 5000, std::slice::from_ref(&slow));
        assert_eq!(order.len(), 5);
        assert_eq!(order[0], order[4]);
        assert_eq!((account.made_again, account.disturbed), (1, 0));
        assert_eq!(account.standings[0], Standing::SetAside);
        assert_eq!(account.standings[4], Standing::Stands);
    }

    #[test]
    fn what_happens_during_a_run_counts_and_its_ends_do_not() {
        // The first run is from 10 to 1010, and one more begins at 1030.
        let slow = 400..800;
        let (order, account) = carry_out_watched(4, 5000, std::slice::from_ref(&slow), 10);
        assert_eq!((order.len(), account.made_again, account.disturbed), (5, 1, 0));
        assert_eq!(account.standings[0], Standing::SetAside);
        let short = 400..600;
        let (order, account) = carry_out_watched(4, 5000, std::slice::from_ref(&short), 10);
        assert_eq!((order.len(), account.disturbed), (4, 0), "a mean of 0.91");
        let after = 1005..1015;
        let (order, account) = carry_out_watched(4, 5000, std::slice::from_ref(&after), 10);
        assert_eq!((order.len(), account.disturbed), (4, 0));
    }

    #[test]
    fn a_repeat_that_is_no_better_replaces_nothing_and_patience_bounds_repeats() {
        // Every run ends on a slow machine and begins on a fast one.
        let slow: Vec<_> = (0..20).map(|run| run * 1020 + 1005..run * 1020 + 1015).collect();
        let (order, account) = carry_out(3, 4500, &slow);
        assert_eq!(order.len(), 3 + 4, "4.5 s pay for four repeats of 1.02 s");
        assert_eq!(account.standings[..3], [Standing::Disturbed; 3]);
        assert_eq!(account.standings[3..], [Standing::SetAside; 4]);
    }

    #[test]
    fn what_seemed_to_be_the_best_at_first_may_turn_out_to_be_slow() {
        let slow = 0..1500;
        let (order, account) = carry_out(4, 5000, std::slice::from_ref(&slow));
        assert_eq!(order.len(), 6);
        assert_eq!(sorted(&order[..2]), sorted(&order[4..]));
        assert_eq!((account.made_again, account.disturbed), (2, 0));
    }

    #[test]
    fn a_seed_determines_the_order() {
        assert_eq!(carry_out(20, 0, &[]).0, carry_out(20, 0, &[]).0);
        assert_ne!(carry_out(20, 0, &[]).0, (0..20).collect::<Vec<_>>());
    }
}

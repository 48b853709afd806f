//! When the requests of an open loop are due.
//!
//! There is one schedule for the whole run. Arrival `k` is due when the rate, added up over time, reaches `k`; it belongs to
//! one thread and one server, found from `k` alone. So threads need not speak to each other, a rate may be lower than their
//! number, and a request that waits for a connection needs no place in a queue: the next one to go is an index.

use std::time::Duration;

use super::plan::deal;
use crate::random::SplitMix;

/// How the arrivals are spaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// One after the other at the same distance.
    Even,
    /// Independent of each other: a Poisson process, as of many users who do not know each other.
    Poisson,
}

impl Arrivals {
    /// The name used on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Arrivals::Even => "even",
            Arrivals::Poisson => "poisson",
        }
    }
}

/// A part of the run in which the rate goes from one value to another in a straight line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Leg {
    /// Requests per second at its beginning.
    pub from_per_s: f64,
    /// Requests per second at its end.
    pub to_per_s: f64,
    /// How long it is.
    pub length: Duration,
}

/// The rate of an open loop.
#[derive(Debug, Clone, PartialEq)]
pub struct Rate {
    /// From the beginning of the measured part. The first leg's first rate holds in the warm-up, the last leg's last rate
    /// for whatever is left of the run. At least one.
    pub legs: Vec<Leg>,
    /// How the arrivals are spaced.
    pub arrivals: Arrivals,
    /// Seed of Poisson arrivals.
    pub seed: u64,
}

impl Rate {
    /// The same rate for the whole run, evenly spaced.
    #[must_use]
    pub fn constant(per_s: f64) -> Rate {
        let leg = Leg { from_per_s: per_s, to_per_s: per_s, length: Duration::ZERO };
        Rate { legs: vec![leg], arrivals: Arrivals::Even, seed: 0 }
    }

    /// How long its legs are together.
    #[must_use]
    pub fn length(&self) -> Duration {
        self.legs.iter().map(|leg| leg.length).sum()
    }

    /// Requests per second, so long after the beginning of the measured part.
    #[must_use]
    pub fn at(&self, elapsed: Duration) -> f64 {
        let mut left_s = elapsed.as_secs_f64();
        for leg in &self.legs {
            let length_s = leg.length.as_secs_f64();
            if left_s < length_s {
                return leg.from_per_s + (leg.to_per_s - leg.from_per_s) * left_s / length_s;
            }
            left_s -= length_s;
        }
        self.legs.last().map_or(0.0, |leg| leg.to_per_s)
    }

    /// How many requests are due in the first `elapsed` of the measured part.
    #[must_use]
    pub fn due(&self, elapsed: Duration) -> f64 {
        Curve::new(self, Duration::ZERO).count_at(elapsed.as_secs_f64())
    }
}

/// One leg with what was before it.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    begin_s: f64,
    end_s: f64,
    /// Arrivals before it.
    before: f64,
    per_s: f64,
    /// How much the rate grows in a second.
    slope: f64,
}

impl Stretch {
    fn count(&self, elapsed_s: f64) -> f64 {
        let t = elapsed_s - self.begin_s;
        self.before + t * (self.per_s + 0.5 * self.slope * t)
    }

    /// When `count` is reached, if this part goes on so long.
    fn time(&self, count: f64) -> f64 {
        if self.per_s == 0.0 && self.slope <= 0.0 {
            return f64::INFINITY;
        }
        let more = (count - self.before).max(0.0);
        // The root of slope/2 t² + per_s t = more, in the form that does not cancel.
        let root = (self.per_s * self.per_s + 2.0 * self.slope * more).max(0.0).sqrt();
        if more == 0.0 { self.begin_s } else { self.begin_s + 2.0 * more / (self.per_s + root) }
    }
}

/// The arrivals of a run added up over time, warm-up included.
#[derive(Debug, Clone)]
struct Curve {
    stretches: Vec<Stretch>,
}

impl Curve {
    fn new(rate: &Rate, warmup: Duration) -> Curve {
        let mut stretches: Vec<Stretch> = Vec::new();
        let mut add = |length_s: f64, from: f64, to: f64| {
            let (begin_s, before) =
                stretches.last().map_or((0.0, 0.0), |stretch| (stretch.end_s, stretch.count(stretch.end_s)));
            if length_s > 0.0 {
                let slope = if length_s.is_finite() { (to - from) / length_s } else { 0.0 };
                stretches.push(Stretch { begin_s, end_s: begin_s + length_s, before, per_s: from, slope });
            }
        };
        let first = rate.legs.first().map_or(0.0, |leg| leg.from_per_s);
        let last = rate.legs.last().map_or(0.0, |leg| leg.to_per_s);
        add(warmup.as_secs_f64(), first, first);
        for leg in &rate.legs {
            add(leg.length.as_secs_f64(), leg.from_per_s, leg.to_per_s);
        }
        add(f64::INFINITY, last, last);
        Curve { stretches }
    }

    fn count_at(&self, elapsed_s: f64) -> f64 {
        let stretch =
            self.stretches.iter().find(|stretch| elapsed_s < stretch.end_s).or(self.stretches.last());
        stretch.map_or(0.0, |stretch| stretch.count(elapsed_s))
    }
}

/// Which arrivals of the run's are one lane's: those of one thread for one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lane {
    /// Arrivals after which the pattern repeats.
    pub(crate) period: u64,
    /// Which of them are this lane's, in ascending order.
    pub(crate) places: Vec<u64>,
}

/// The times at which the requests of one lane are due, in order. ns after the schedule's beginning.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    curve: Curve,
    /// The part of the curve that holds the next arrival.
    stretch: usize,
    lane: Lane,
    /// Arrivals of this lane taken so far.
    taken: u64,
    /// Poisson: the random numbers, and their sum.
    random: Option<(SplitMix, f64)>,
    next_ns: u64,
}

impl Schedule {
    /// `number` tells lanes apart: each has random numbers of its own.
    pub(crate) fn new(rate: &Rate, warmup: Duration, lane: Lane, number: u64) -> Schedule {
        let random = (rate.arrivals == Arrivals::Poisson).then(|| {
            let mut seeds = SplitMix::new(rate.seed);
            let seed = seeds.next() ^ SplitMix::new(number).next();
            (SplitMix::new(seed), 0.0)
        });
        let mut schedule =
            Schedule { curve: Curve::new(rate, warmup), stretch: 0, lane, taken: 0, random, next_ns: 0 };
        schedule.next_ns = schedule.find_next();
        schedule
    }

    /// When the next request is due.
    #[inline]
    pub(crate) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Takes the next request: the one after it is next.
    #[inline]
    pub(crate) fn take(&mut self) -> u64 {
        let due_ns = self.next_ns;
        self.taken += 1;
        self.next_ns = self.find_next();
        due_ns
    }

    /// Drops what is due before `end_ns`; says how many those were.
    pub(crate) fn skip_until(&mut self, end_ns: u64) -> u64 {
        let before = self.taken;
        while self.next_ns < end_ns {
            self.take();
        }
        self.taken - before
    }

    fn find_next(&mut self) -> u64 {
        let places = self.lane.places.len() as u64;
        let count = match &mut self.random {
            None => {
                let (round, place) = (self.taken / places, self.taken % places);
                (round * self.lane.period + self.lane.places[place as usize]) as f64
            }
            Some((random, sum)) => {
                *sum += random.exponential();
                *sum * self.lane.period as f64 / places as f64
            }
        };
        let stretches = &self.curve.stretches;
        while self.stretch + 1 < stretches.len() && count >= stretches[self.stretch + 1].before {
            self.stretch += 1;
        }
        // Saturates where the rate is 0 for ever.
        (stretches[self.stretch].time(count) * 1e9).round() as u64
    }
}

/// Shares the run's arrivals out: to threads in turn, and within a thread to servers by weight, as evenly mixed as whole
/// numbers allow. `None` for a server of weight 0.
pub(crate) fn lanes(thread: usize, threads: usize, weights: &[u64]) -> Vec<Option<Lane>> {
    let order = deal(weights);
    let mut places = vec![Vec::new(); weights.len()];
    for (turn, server) in order.iter().enumerate() {
        places[*server].push((turn * threads + thread) as u64);
    }
    let period = (order.len() * threads) as u64;
    let lane = |places: Vec<u64>| (!places.is_empty()).then_some(Lane { period, places });
    places.into_iter().map(lane).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn steps(rates: &[f64], length_s: f64) -> Rate {
        let length = Duration::from_secs_f64(length_s);
        let leg = |per_s: &f64| Leg { from_per_s: *per_s, to_per_s: *per_s, length };
        Rate { legs: rates.iter().map(leg).collect(), ..Rate::constant(0.0) }
    }

    /// The arrivals of all lanes of `threads` threads before `end_ns`, sorted.
    fn arrivals(rate: &Rate, warmup: Duration, threads: usize, weights: &[u64], end_ns: u64) -> Vec<u64> {
        let mut all = Vec::new();
        for thread in 0..threads {
            for (server, lane) in lanes(thread, threads, weights).into_iter().enumerate() {
                let number = (thread * weights.len() + server) as u64;
                let Some(lane) = lane else { continue };
                let mut schedule = Schedule::new(rate, warmup, lane, number);
                while schedule.next_ns() < end_ns {
                    all.push(schedule.take());
                }
            }
        }
        all.sort_unstable();
        all
    }

    #[test]
    fn threads_and_servers_share_one_schedule_exactly() {
        for per_s in [0.1, 3.0, 10.0, 777.7, 100_000.0] {
            let rate = Rate::constant(per_s);
            let one = arrivals(&rate, Duration::ZERO, 1, &[1], 20 * SECOND_NS / 10);
            let due = (rate.due(Duration::from_secs(2)) - 1e-9).floor() as usize + 1;
            assert_eq!(one.len(), due, "{per_s}/s");
            for (threads, weights) in [(4, &[1][..]), (3, &[2, 5]), (16, &[1, 1, 7])] {
                assert_eq!(arrivals(&rate, Duration::ZERO, threads, weights, 2 * SECOND_NS), one);
            }
        }
    }

    #[test]
    fn fewer_requests_than_threads() {
        // Ten a second over 64 threads: each thread's turn comes every 6.4 s.
        let rate = Rate::constant(10.0);
        let due = arrivals(&rate, Duration::ZERO, 64, &[1], 2 * SECOND_NS);
        assert_eq!(due, (0..20).map(|k| k * SECOND_NS / 10).collect::<Vec<_>>());
    }

    #[test]
    fn ramps_and_steps_add_up() {
        let ramp = Leg { from_per_s: 0.0, to_per_s: 1000.0, length: Duration::from_secs(2) };
        let rate = Rate { legs: vec![ramp], ..Rate::constant(0.0) };
        let due = arrivals(&rate, Duration::ZERO, 3, &[1], 3 * SECOND_NS);
        let until = |s: f64| due.partition_point(|ns| (*ns as f64) < s * 1e9 - 0.5);
        assert_eq!((until(1.0), until(2.0), until(3.0)), (250, 1000, 2000));
        assert!((rate.due(Duration::from_secs(3)) - 2000.0).abs() < 1e-6);
        assert!((rate.at(Duration::from_millis(500)) - 250.0).abs() < 1e-9);

        let down = Leg { from_per_s: 1000.0, to_per_s: 0.0, length: Duration::from_secs(2) };
        let rate = Rate { legs: vec![down], ..Rate::constant(0.0) };
        assert_eq!(arrivals(&rate, Duration::ZERO, 1, &[1], 100 * SECOND_NS).len(), 1000);

        let rate = steps(&[10.0, 20.0, 40.0], 1.0);
        let due = arrivals(&rate, Duration::from_secs(1), 2, &[1, 3], 5 * SECOND_NS);
        let until = |s: u64| due.partition_point(|ns| *ns < s * SECOND_NS);
        assert_eq!([1, 2, 3, 4, 5].map(until), [10, 20, 40, 80, 120], "one second of warm-up at 10/s");
    }

    #[test]
    fn poisson_arrivals_are_as_many_as_asked_for_and_as_irregular_as_they_should_be() {
        let rate = Rate { arrivals: Arrivals::Poisson, seed: 7, ..Rate::constant(10_000.0) };
        for (threads, weights) in [(1, &[1][..]), (4, &[1, 3])] {
            let due = arrivals(&rate, Duration::ZERO, threads, weights, 10 * SECOND_NS);
            // 100,000 ± 5 standard deviations.
            assert!((98_400..101_600).contains(&due.len()), "seed 7: {}", due.len());
            let gaps: Vec<f64> = due.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            let variation = variance.sqrt() / mean;
            assert!((0.97..1.03).contains(&variation), "seed 7: {variation}");
        }
        let again = |seed| {
            let rate = Rate { seed, ..rate.clone() };
            arrivals(&rate, Duration::ZERO, 2, &[1], SECOND_NS)
        };
        assert_eq!(again(7), again(7));
        assert_ne!(again(7), again(8));
    }

    #[test]
    fn what_was_not_taken_is_counted() {
        let lane = lanes(0, 1, &[1]).remove(0).unwrap();
        let mut schedule = Schedule::new(&Rate::constant(100.0), Duration::ZERO, lane, 0);
        for _ in 0..30 {
            schedule.take();
        }
        assert_eq!(schedule.skip_until(SECOND_NS), 70);
        assert_eq!(schedule.next_ns(), SECOND_NS);
    }

    #[test]
    fn servers_of_unequal_weight_are_well_mixed() {
        let lanes = lanes(1, 2, &[3, 1, 0]);
        assert_eq!(lanes[0], Some(Lane { period: 8, places: vec![1, 3, 7] }));
        assert_eq!(lanes[1], Some(Lane { period: 8, places: vec![5] }));
        assert_eq!(lanes[2], None);
    }
}

//! How fast the cores are at this moment, whatever it is that slows them.
//!
//! A virtual machine's cores may at one time be physical cores and at another hyper-threads that
//! share one, with each other or with a neighbour's; the host decides, for seconds at a time, and
//! nothing inside the machine says so: not steal time, not the clock. Work that keeps all execution
//! units of a core busy takes up to twice as long then, and so do a server and its generator.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Slices of a measurement. The middle one counts, so that a short interruption does not.
const SLICES: usize = 5;
/// Of one slice. Timer ticks and the reading of the clock are nothing beside it.
const SLICE: Duration = Duration::from_millis(2);
/// Iterations of [`work`] between two looks at the clock, some 25 µs.
const ROUND: u64 = 20_000;
/// From sample to sample of a [`Watch`]. Its samples take 0.2 % of each core, and too few requests
/// wait for them to be seen in a 99th percentile.
const PERIOD: Duration = Duration::from_millis(200);
/// What a sleeping thread may need to wake up: both cores' samples begin this long after they should.
const WAKE: Duration = Duration::from_micros(200);
/// Of one sample.
const SAMPLE: Duration = Duration::from_micros(200);

/// Speed of the plan's cores while all are busy: million iterations of a fixed piece of work per second. Of several cores of
/// the server it is that of the slowest.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Speed {
    pub(crate) server_core: f64,
    pub(crate) client_core: f64,
}

impl Speed {
    /// Takes about 10 ms. A core of both sides is measured once.
    pub(crate) fn measure(server_cpus: &[usize], client_cpu: usize) -> Speed {
        let cpus = each_once(server_cpus, client_cpu);
        let together = Barrier::new(cpus.len());
        let speed = |cpu| {
            pin(cpu);
            together.wait();
            let started = Instant::now();
            let mut slices: [f64; SLICES] = std::array::from_fn(|_| slice(SLICE, || started.elapsed()));
            slices.sort_by(f64::total_cmp);
            slices[SLICES / 2]
        };
        // Threads of their own, because this one is not to stay on any of them.
        thread::scope(|scope| {
            let threads: Vec<_> = cpus.iter().map(|&cpu| scope.spawn(move || speed(cpu))).collect();
            let speeds: Vec<f64> =
                threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect();
            Speed::of(server_cpus, client_cpu, &cpus, |index| speeds[index])
        })
    }

    /// From the speed of each of `cpus`, by its place there.
    fn of(server_cpus: &[usize], client_cpu: usize, cpus: &[usize], speed: impl Fn(usize) -> f64) -> Speed {
        let of = |cpu: usize| cpus.iter().position(|&its| its == cpu).map_or(0.0, &speed);
        let slowest = server_cpus.iter().map(|&cpu| of(cpu)).reduce(f64::min);
        Speed { server_core: slowest.unwrap_or_else(|| of(client_cpu)), client_core: of(client_cpu) }
    }

    /// The better of two measurements, for each core.
    pub(crate) fn best(self, other: Speed) -> Speed {
        Speed {
            server_core: self.server_core.max(other.server_core),
            client_core: self.client_core.max(other.client_core),
        }
    }

    /// The slower core's share of what it reached at its best: 1 is full speed.
    pub(crate) fn share_of(self, best: Speed) -> f64 {
        let share = |speed: f64, best: f64| if best > 0.0 { speed / best } else { 1.0 };
        share(self.server_core, best.server_core).min(share(self.client_core, best.client_core))
    }
}

/// What the machine was like while a run's requests were counted.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Conditions {
    /// Looks at the cores, evenly spread; nothing if it did not come to that.
    pub(crate) speeds: Vec<Speed>,
    /// Of the time that the cores were busy, the share that neither server nor generator had.
    pub(crate) taken_by_others: f64,
}

impl Conditions {
    /// What the run had of the machine, as a share of the best.
    pub(crate) fn share_of(&self, best: Speed) -> Option<f64> {
        let shares = self.speeds.iter().map(|speed| speed.share_of(best));
        (!self.speeds.is_empty())
            .then(|| shares.sum::<f64>() / self.speeds.len() as f64 * (1.0 - self.taken_by_others))
    }
}

/// The cores of both sides.
fn each_once(server_cpus: &[usize], client_cpu: usize) -> Vec<usize> {
    let mut cpus: Vec<usize> = server_cpus.iter().copied().chain([client_cpu]).collect();
    cpus.sort_unstable();
    cpus.dedup();
    cpus
}

/// A core outside of our allowance is one that no server could be started on either: the run says so.
fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    let _ = sched_setaffinity(None, &set);
}

/// Million iterations per second over one slice, by a clock of the caller's.
fn slice(length: Duration, clock: impl Fn() -> Duration) -> f64 {
    let started = clock();
    let mut iterations = 0;
    loop {
        black_box(work(black_box(1)));
        iterations += ROUND;
        let elapsed = clock().saturating_sub(started);
        if elapsed >= length {
            return iterations as f64 / elapsed.as_secs_f64() / 1e6;
        }
    }
}

/// Looks at all cores while a server and a generator are at work on them, for the host may change
/// its mind at any moment.
///
/// A sample counts the time that its thread ran, not the time that went by: the server runs on the
/// same core.
pub(crate) struct Watch {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<f64>>>,
    server_cpus: Vec<usize>,
    client_cpu: usize,
}

impl Watch {
    /// Samples every 200 ms from `from` until `to`, or until the end is asked for.
    pub(crate) fn start(server_cpus: &[usize], client_cpu: usize, from: Instant, to: Instant) -> Watch {
        let over = Arc::new(AtomicBool::new(false));
        let watch = |cpu: usize| {
            let over = over.clone();
            thread::spawn(move || {
                pin(cpu);
                let mut samples = Vec::new();
                let mut next = from;
                while next < to && sleep_until(next, &over) {
                    while next.elapsed() < WAKE {
                        spin_loop();
                    }
                    samples.push(slice(SAMPLE, thread_time));
                    next += PERIOD;
                }
                samples
            })
        };
        let threads = each_once(server_cpus, client_cpu).into_iter().map(watch).collect();
        Watch { threads, over, server_cpus: server_cpus.to_owned(), client_cpu }
    }

    /// What has been seen. Nothing is left running.
    pub(crate) fn end(self) -> Vec<Speed> {
        self.over.store(true, Ordering::Relaxed);
        let samples: Vec<Vec<f64>> = self
            .threads
            .into_iter()
            .map(|thread| {
                thread.thread().unpark();
                thread.join().unwrap_or_default()
            })
            .collect();
        let cpus = each_once(&self.server_cpus, self.client_cpu);
        let count = samples.iter().map(Vec::len).min().unwrap_or(0);
        let at =
            |look: usize| Speed::of(&self.server_cpus, self.client_cpu, &cpus, |index| samples[index][look]);
        (0..count).map(at).collect()
    }
}

/// False if it is over.
fn sleep_until(when: Instant, over: &AtomicBool) -> bool {
    loop {
        if over.load(Ordering::Relaxed) {
            return false;
        }
        let left = when.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::park_timeout(left);
    }
}

/// What this thread has run.
fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Four chains that do not wait for each other: throughput, not latency, is the limit. A hyper-thread
/// next door then takes about half of it. (A single chain would hardly notice.)
#[inline(never)]
fn work(seed: u64) -> u64 {
    let (mut a, mut b, mut c, mut d) = (seed, 2_u64, 3_u64, 4_u64);
    for index in 0..ROUND {
        // Opaque, so that the compiler neither folds the loop nor makes vectors of it.
        let e = black_box(index).wrapping_add(seed);
        let f = e ^ 7;
        a = a.wrapping_add(e) ^ (e >> 1);
        b = (b ^ e).wrapping_add(f >> 2);
        c = c.wrapping_add(f) ^ (e << 3);
        d = (d ^ f).wrapping_add(f << 1);
    }
    a ^ b ^ c ^ d
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_core_counts() {
        let best = Speed { server_core: 100.0, client_core: 200.0 };
        assert_eq!(best.share_of(best), 1.0);
        assert_eq!(Speed { server_core: 90.0, client_core: 100.0 }.share_of(best), 0.5);
        let best = best.best(Speed { server_core: 300.0, client_core: 1.0 });
        assert_eq!(best, Speed { server_core: 300.0, client_core: 200.0 });
        assert_eq!(best.share_of(Speed::default()), 1.0, "nothing has been seen yet");
    }

    #[test]
    fn every_core_of_a_server_is_looked_at_and_the_slowest_counts() {
        let cpus = each_once(&[3, 1, 2], 2);
        assert_eq!(cpus, [1, 2, 3]);
        let speed = Speed::of(&[3, 1, 2], 2, &cpus, |index| [30.0, 20.0, 10.0][index]);
        assert_eq!(speed, Speed { server_core: 10.0, client_core: 20.0 });
        assert_eq!(Speed::of(&[], 0, &[0], |_| 7.0), Speed { server_core: 7.0, client_core: 7.0 });
    }

    #[test]
    fn what_others_take_is_not_there_for_the_run() {
        let best = Speed { server_core: 100.0, client_core: 100.0 };
        let slow = Speed { server_core: 50.0, client_core: 100.0 };
        let mut conditions = Conditions { speeds: vec![best, best, best, slow], taken_by_others: 0.0 };
        assert_eq!(conditions.share_of(best), Some(0.875));
        conditions.taken_by_others = 0.5;
        assert_eq!(conditions.share_of(best), Some(0.4375));
        assert_eq!(Conditions::default().share_of(best), None);
    }

    #[test]
    fn a_measurement_says_something_and_leaves_this_thread_where_it_may_run() {
        let before = rustix::thread::sched_getaffinity(None).unwrap();
        let last = crate::lab::queue_count() - 1;
        for cpus in [(&[0][..], last), (&[0], 0), (&[0, last], last), (&[], 0)] {
            let speed = Speed::measure(cpus.0, cpus.1);
            assert!(speed.server_core > 0.0 && speed.client_core > 0.0, "{speed:?}");
        }
        assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), before);
    }

    #[test]
    fn a_watch_takes_its_samples_and_ends_when_it_is_told_to() {
        let last = crate::lab::queue_count() - 1;
        let now = Instant::now();
        let watch = Watch::start(&[0], last, now, now + PERIOD + PERIOD / 2);
        while !watch.threads.iter().all(JoinHandle::is_finished) {
            thread::yield_now();
        }
        let samples = watch.end();
        assert_eq!(samples.len(), 2);
        assert!(samples.iter().all(|speed| speed.server_core > 0.0 && speed.client_core > 0.0));
        // This would take an hour.
        let from = Instant::now() + Duration::from_secs(3600);
        assert!(Watch::start(&[0], last, from, from + PERIOD).end().is_empty());
    }
}

//! Threads that work until they are told to stop, and show what they count while they do.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::processors::pin;
use crate::record::CpuTime;

/// How often a thread shows what it has counted.
const SHOW_EVERY_NS: u64 = 10_000_000;

/// What the threads share.
struct Shared<C> {
    epoch: Instant,
    /// When to stop, ns after the epoch.
    end_ns: u64,
    stop: AtomicBool,
    shown: Vec<Mutex<C>>,
}

/// One thread's share of it.
pub(crate) struct Turn<C> {
    shared: Arc<Shared<C>>,
    index: usize,
    next_show_ns: u64,
}

impl<C: Copy> Turn<C> {
    /// Since the start.
    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.shared.epoch.elapsed().as_nanos() as u64
    }

    /// Once a loop: shows what was counted. False when the thread is to end.
    #[inline]
    pub(crate) fn goes_on(&mut self, now_ns: u64, counts: &C) -> bool {
        if now_ns >= self.next_show_ns {
            self.next_show_ns = now_ns + SHOW_EVERY_NS;
            *self.shared.shown[self.index].lock().unwrap_or_else(PoisonError::into_inner) = *counts;
        }
        now_ns < self.shared.end_ns && !self.shared.stop.load(Ordering::Relaxed)
    }
}

/// What one thread brings home.
pub(crate) struct Outcome<C> {
    pub(crate) counts: C,
    /// Counters of the stack and its link, by name.
    pub(crate) counters: BTreeMap<String, u64>,
}

/// What one thread does.
pub(crate) type Work<C> = Box<dyn FnOnce(&mut Turn<C>) -> Result<Outcome<C>, Error> + Send>;

type Thread<C> = JoinHandle<Result<(Outcome<C>, CpuTime), Error>>;

/// The threads. Dropping it stops them.
pub(crate) struct Crew<C> {
    shared: Arc<Shared<C>>,
    threads: Vec<Thread<C>>,
}

impl<C: Copy + Default + Send + 'static> Crew<C> {
    /// Starts a thread for each piece of work. Thread i runs on processor `cpus[i % cpus.len()]` alone if it is one of the
    /// first `pinned`; without `cpus` anywhere.
    pub(crate) fn start(
        name: &str,
        works: Vec<Work<C>>,
        cpus: &[usize],
        pinned: usize,
        duration: Option<Duration>,
    ) -> Result<Crew<C>, Error> {
        let duration_ns = duration.map(|duration| u64::try_from(duration.as_nanos()));
        let shared = Arc::new(Shared {
            epoch: Instant::now(),
            end_ns: duration_ns.and_then(Result::ok).unwrap_or(u64::MAX),
            stop: AtomicBool::new(false),
            shown: works.iter().map(|_| Mutex::default()).collect(),
        });
        let mut crew = Crew { shared, threads: Vec::new() };
        for (index, work) in works.into_iter().enumerate() {
            let mut turn = Turn { shared: crew.shared.clone(), index, next_show_ns: 0 };
            let cpus = if index < pinned { cpus.to_vec() } else { Vec::new() };
            let body = move || {
                let before = CpuTime::of_this_thread();
                let outcome = pin(&cpus, index).and_then(|()| work(&mut turn));
                if outcome.is_err() {
                    turn.shared.stop.store(true, Ordering::Relaxed);
                }
                Ok((outcome?, CpuTime::of_this_thread() - before))
            };
            let thread = std::thread::Builder::new().name(format!("{name}-{index}")).spawn(body);
            crew.threads.push(thread.map_err(|error| Error::machine("starting a thread", error))?);
        }
        Ok(crew)
    }

    /// Since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.shared.epoch.elapsed()
    }

    /// Whether all threads have ended: their time was over, or something failed.
    pub(crate) fn is_over(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// What each thread has counted, a moment ago.
    pub(crate) fn shown(&self) -> impl Iterator<Item = C> {
        self.shared.shown.iter().map(|shown| *shown.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Tells all threads to stop, and waits for what they bring home.
    pub(crate) fn stop(mut self) -> Result<Vec<(Outcome<C>, CpuTime)>, Error> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let join =
            |thread: JoinHandle<_>| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        std::mem::take(&mut self.threads).into_iter().map(join).collect()
    }
}

impl<C> Drop for Crew<C> {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

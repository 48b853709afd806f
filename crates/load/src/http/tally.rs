//! The accounts of a run: what its threads share, and each thread's side of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Settings;
use super::series::{Handover, Interval, Series};
use crate::record::{CpuTime, Failure, Record, Times};
use crate::response::{Malformed, Response};

/// Most tickets that a thread holds.
const TICKETS_AT_ONCE: u64 = 32;

/// A counter that has a cache line to itself.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded(AtomicU64);

/// What the threads of a run share.
#[derive(Debug)]
pub(crate) struct Shared {
    epoch: Instant,
    /// End of the warm-up, ns after the epoch.
    measure_ns: u64,
    /// End of the run, ns after the epoch.
    end_ns: u64,
    /// Requests that nobody has taken yet; unlimited without `-n`.
    tickets: Option<Padded>,
    open: Padded,
    ended: Vec<Padded>,
    over: AtomicBool,
}

impl Shared {
    pub(crate) fn new(settings: &Settings) -> Shared {
        let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let measure_ns = ns(settings.warmup);
        Shared {
            epoch: Instant::now(),
            measure_ns,
            end_ns: settings.duration.map_or(u64::MAX, |d| measure_ns.saturating_add(ns(d))),
            tickets: settings.requests.map(|requests| Padded(AtomicU64::new(requests))),
            open: Padded::default(),
            ended: (0..settings.threads).map(|_| Padded::default()).collect(),
            over: AtomicBool::new(false),
        }
    }

    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Since the beginning, warm-up included.
    pub(super) fn elapsed(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Requests ended since the start or, after it, since the warm-up.
    pub(super) fn ended(&self) -> u64 {
        self.ended.iter().map(|ended| ended.0.load(Ordering::Relaxed)).sum()
    }

    /// Connections that are open now.
    pub(super) fn open(&self) -> u64 {
        self.open.0.load(Ordering::Relaxed)
    }

    pub(super) fn is_warming_up(&self) -> bool {
        self.now_ns() < self.measure_ns
    }

    /// The run is over before its time: a thread cannot go on, or somebody has seen enough.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    fn take_tickets(&self, threads: u64) -> u64 {
        let Some(tickets) = &self.tickets else {
            return u64::MAX;
        };
        // Small helpings near the end, so that no thread runs dry long before another.
        let helping = |left: u64| (left / (2 * threads)).clamp(1, TICKETS_AT_ONCE).min(left);
        let update = |left: u64| (left > 0).then(|| left - helping(left));
        match tickets.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update) {
            Ok(before) => helping(before),
            Err(_) => 0,
        }
    }
}

/// What one thread brings home.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) record: Record,
    pub(crate) measured_from_ns: u64,
    pub(crate) ended_ns: u64,
    /// Counters of the stack and its link, by name.
    pub(crate) counters: BTreeMap<String, u64>,
}

/// What all threads bring home.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) record: Record,
    /// Length of the measured part.
    pub(crate) duration: Duration,
    pub(crate) counters: BTreeMap<String, u64>,
}

impl Summary {
    /// Adds up what each thread brings home and what it handed over to `series` before. `show` sees what intervals are left.
    pub(crate) fn of(outcomes: Vec<Outcome>, series: Option<Series>, show: impl FnMut(&Interval)) -> Summary {
        let from_ns = outcomes.iter().map(|outcome| outcome.measured_from_ns).min().unwrap_or(0);
        let until_ns = outcomes.iter().map(|outcome| outcome.ended_ns).max().unwrap_or(0);
        let duration = Duration::from_nanos(until_ns.saturating_sub(from_ns));
        let record = match series {
            Some(series) => series.finish(duration, outcomes.iter().map(|outcome| &outcome.record), show),
            None => {
                let mut sum = Record::new();
                outcomes.iter().for_each(|outcome| sum.merge(&outcome.record));
                sum
            }
        };
        let mut counters = BTreeMap::new();
        for (name, count) in outcomes.into_iter().flat_map(|outcome| outcome.counters) {
            *counters.entry(name).or_insert(0) += count;
        }
        Summary { record, duration, counters }
    }
}

/// One thread's side of the accounts.
#[derive(Debug)]
pub(crate) struct Tally<'a> {
    pub(crate) record: Record,
    shared: &'a Shared,
    index: usize,
    expect_status: Option<u16>,
    expect_size: Option<u64>,
    close: bool,
    held: u64,
    measuring: bool,
    measured_from_ns: u64,
    ended_ns: u64,
    cpu_before: CpuTime,
    /// Where the record goes at the end of each interval, if anybody wants to know.
    handover: Option<Handover>,
    /// Requests in the records handed over.
    handed_over: u64,
}

impl<'a> Tally<'a> {
    pub(crate) fn new(
        settings: &Settings,
        shared: &'a Shared,
        index: usize,
        handover: Option<Handover>,
    ) -> Tally<'a> {
        Tally {
            record: Record::new(),
            shared,
            index,
            expect_status: settings.expect_status,
            expect_size: settings.expect_size,
            close: settings.close,
            held: 0,
            measuring: false,
            measured_from_ns: 0,
            ended_ns: 0,
            cpu_before: CpuTime::of_this_thread(),
            handover,
            handed_over: 0,
        }
    }

    /// Whether a new connection is wanted for each request.
    pub(crate) fn close(&self) -> bool {
        self.close
    }

    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.shared.now_ns()
    }

    /// Whoever tells the time of this run.
    pub(crate) fn clock(&self) -> &'a Shared {
        self.shared
    }

    /// Once a loop. Ends the warm-up when it is over; false when the run is.
    pub(crate) fn goes_on(&mut self, now_ns: u64) -> bool {
        if !self.measuring && now_ns >= self.shared.measure_ns {
            self.measuring = true;
            self.measured_from_ns = now_ns;
            self.record.restart();
            self.cpu_before = CpuTime::of_this_thread();
        }
        let ended = self.handed_over + self.record.requests();
        self.shared.ended[self.index].0.store(ended, Ordering::Relaxed);
        if self.measuring && now_ns >= self.interval_end_ns() {
            self.hand_over(now_ns);
        }
        now_ns < self.shared.end_ns && !self.shared.over.load(Ordering::Relaxed)
    }

    fn interval_end_ns(&self) -> u64 {
        self.handover.as_ref().map_or(u64::MAX, |handover| self.measured_from_ns + handover.due_ns())
    }

    fn hand_over(&mut self, now_ns: u64) {
        self.handed_over += self.record.requests();
        if let Some(handover) = &mut self.handover {
            handover.hand_over(&mut self.record, now_ns - self.measured_from_ns);
        }
    }

    /// When `goes_on` has something to say at the latest.
    pub(crate) fn next_change_ns(&self) -> u64 {
        if self.measuring { self.shared.end_ns.min(self.interval_end_ns()) } else { self.shared.measure_ns }
    }

    /// Whether one more request may start. Warming up costs no ticket.
    #[inline]
    pub(crate) fn take_ticket(&mut self) -> bool {
        if self.shared.tickets.is_none() || !self.measuring {
            return true;
        }
        if self.held == 0 {
            self.held = self.shared.take_tickets(self.shared.ended.len() as u64);
        }
        let granted = self.held > 0;
        self.held -= u64::from(granted);
        granted
    }

    /// Whether a request that started then is counted: with `-n`, only one that had a ticket.
    #[inline]
    fn counts(&self, started_ns: u64) -> bool {
        self.measuring && (self.shared.tickets.is_none() || started_ns >= self.measured_from_ns)
    }

    /// A response is complete.
    #[inline]
    pub(crate) fn complete(&mut self, response: Response, started_ns: u64, now_ns: u64) {
        if !self.counts(started_ns) {
            return;
        }
        let status_is_right = match self.expect_status {
            Some(status) => response.status == status,
            None => (200..400).contains(&response.status),
        };
        if !status_is_right {
            self.record.fail(Failure::WrongStatus);
        } else if self.expect_size.is_some_and(|size| size != response.body_bytes) {
            self.record.fail(Failure::WrongSize);
        } else {
            self.record.succeed(Times {
                intended_ns: started_ns,
                sent_ns: started_ns,
                first_byte_ns: now_ns,
                ended_ns: now_ns,
            });
        }
    }

    pub(crate) fn fail(&mut self, failure: Failure, started_ns: u64) {
        if self.counts(started_ns) {
            self.record.fail(failure);
        }
    }

    pub(crate) fn fail_malformed(&mut self, kind: Malformed, started_ns: u64) {
        if self.counts(started_ns) {
            self.record.fail_malformed(kind);
        }
    }

    /// A connection is established.
    pub(crate) fn opened(&mut self, connect_ns: u64) {
        let open = self.shared.open.0.fetch_add(1, Ordering::Relaxed) + 1;
        self.record.open_max = self.record.open_max.max(open);
        if self.measuring {
            self.record.connect_ns.saturating_record(connect_ns.max(1));
        }
    }

    /// A connection that was established is so no more.
    pub(crate) fn closed(&mut self) {
        self.shared.open.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// The run is over: nothing is counted from here on.
    pub(crate) fn stop(&mut self, now_ns: u64) {
        self.record.cpu = CpuTime::of_this_thread() - self.cpu_before;
        if !self.measuring {
            self.record.restart();
            self.measured_from_ns = now_ns;
        }
        self.measuring = false;
        self.ended_ns = now_ns;
    }

    /// What this thread brings home, after [`Tally::stop`].
    pub(crate) fn into_outcome(self, counters: BTreeMap<String, u64>) -> Outcome {
        Outcome {
            record: self.record,
            measured_from_ns: self.measured_from_ns,
            ended_ns: self.ended_ns,
            counters,
        }
    }
}

//! The accounts of a run: what its threads share, and each thread's side of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::Settings;
use super::series::{Handover, Interval, Series};
use crate::record::{CpuTime, Failure, Record, Times};
use crate::response::{Malformed, Response};

/// Most tickets that a thread holds.
const TICKETS_AT_ONCE: u64 = 32;

/// Between the moment that the last thread is ready and the beginning: all threads have heard of it by then.
const BEGIN_AFTER_NS: u64 = 1_000_000;

/// A counter that has a cache line to itself.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded(AtomicU64);

/// What the threads of a run share.
#[derive(Debug)]
pub(crate) struct Shared {
    epoch: Instant,
    /// When the schedule and the warm-up begin, ns after the epoch; `u64::MAX` until all threads are ready.
    begin_ns: AtomicU64,
    /// Threads that are not ready.
    unready: AtomicUsize,
    warmup_ns: u64,
    /// Of the measured part; `u64::MAX` if only `-n` ends it.
    length_ns: u64,
    open_loop: bool,
    /// Requests that nobody has taken yet; unlimited without `-n`.
    tickets: Option<Padded>,
    /// Open loop: when the first request was due for which there was no ticket.
    exhausted_ns: AtomicU64,
    open: Padded,
    ended: Vec<Padded>,
    over: AtomicBool,
}

impl Shared {
    pub(crate) fn new(settings: &Settings) -> Shared {
        let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let begin_ns = if settings.connects_first() { u64::MAX } else { 0 };
        Shared {
            epoch: Instant::now(),
            begin_ns: AtomicU64::new(begin_ns),
            unready: AtomicUsize::new(settings.threads),
            warmup_ns: ns(settings.warmup),
            length_ns: settings.duration.map_or(u64::MAX, ns),
            open_loop: settings.rate.is_some(),
            tickets: settings.requests.map(|requests| Padded(AtomicU64::new(requests))),
            exhausted_ns: AtomicU64::new(u64::MAX),
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
        self.now_ns() < self.begin_ns.load(Ordering::Relaxed).saturating_add(self.warmup_ns)
    }

    /// The run is over before its time: a thread cannot go on, or somebody has seen enough.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// One more thread is ready; the last one says when to begin.
    fn ready(&self, now_ns: u64) {
        let is_last = self.unready.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last && self.begin_ns.load(Ordering::Acquire) == u64::MAX {
            self.begin_ns.store(now_ns + BEGIN_AFTER_NS, Ordering::Release);
        }
    }

    fn take_tickets(&self, threads: u64) -> u64 {
        let Some(tickets) = &self.tickets else {
            return u64::MAX;
        };
        // Small helpings near the end, so that no thread runs dry long before another.
        let most = if self.open_loop { 1 } else { TICKETS_AT_ONCE };
        let helping = |left: u64| (left / (2 * threads)).clamp(1, most).min(left);
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
    held: u64,
    /// This thread has said that it is ready.
    ready: bool,
    /// The beginning waits for connections.
    connects_first: bool,
    /// When the schedule begins, the measured part begins, and the run ends. `u64::MAX` until known.
    begin_ns: u64,
    measure_ns: u64,
    end_ns: u64,
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
        let mut tally = Tally {
            record: Record::new(),
            shared,
            index,
            expect_status: settings.expect_status,
            expect_size: settings.expect_size,
            held: 0,
            ready: false,
            connects_first: settings.connects_first(),
            begin_ns: u64::MAX,
            measure_ns: u64::MAX,
            end_ns: u64::MAX,
            measuring: false,
            measured_from_ns: 0,
            ended_ns: 0,
            cpu_before: CpuTime::of_this_thread(),
            handover,
            handed_over: 0,
        };
        tally.learn_beginning();
        tally
    }

    /// Whoever tells the time of this run.
    pub(crate) fn clock(&self) -> &'a Shared {
        self.shared
    }

    fn learn_beginning(&mut self) {
        self.begin_ns = self.shared.begin_ns.load(Ordering::Acquire);
        self.measure_ns = self.begin_ns.saturating_add(self.shared.warmup_ns);
        self.end_ns = self.measure_ns.saturating_add(self.shared.length_ns);
    }

    /// When the schedule begins; `u64::MAX` while threads are making their connections.
    #[inline]
    pub(crate) fn begin_ns(&self) -> u64 {
        self.begin_ns
    }

    /// When the measured part begins.
    pub(crate) fn measure_ns(&self) -> u64 {
        self.measure_ns
    }

    /// When nothing new is begun any more.
    #[inline]
    pub(crate) fn end_ns(&self) -> u64 {
        self.end_ns
    }

    /// This thread has its connections, as far as it can have them.
    pub(crate) fn ready(&mut self, now_ns: u64) {
        if !self.ready {
            self.ready = true;
            self.shared.ready(now_ns);
        }
    }

    /// Whether this thread has said that it is ready.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready
    }

    /// Once a loop. Ends the warm-up when it is over; false when the run is.
    pub(crate) fn goes_on(&mut self, now_ns: u64) -> bool {
        if self.begin_ns == u64::MAX {
            self.learn_beginning();
        }
        if !self.measuring && now_ns >= self.measure_ns {
            self.measuring = true;
            // An open loop's requests belong to the moment they were due at, not to that of this loop.
            self.measured_from_ns = if self.shared.open_loop { self.measure_ns } else { now_ns };
            // The connections that the beginning waited for are the run's.
            let connect_ns = self.connects_first.then(|| self.record.connect_ns.clone());
            self.record.restart();
            if let Some(connect_ns) = connect_ns {
                self.record.connect_ns = connect_ns;
            }
            self.cpu_before = CpuTime::of_this_thread();
        }
        let ended = self.handed_over + self.record.requests();
        self.shared.ended[self.index].0.store(ended, Ordering::Relaxed);
        if self.measuring && now_ns >= self.interval_end_ns() && now_ns < self.end_ns {
            self.hand_over(now_ns);
        }
        now_ns < self.end_ns && !self.shared.over.load(Ordering::Relaxed)
    }

    /// Another thread cannot go on: nobody waits for what is under way.
    pub(crate) fn is_given_up(&self) -> bool {
        self.shared.over.load(Ordering::Relaxed)
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
        if self.measuring { self.end_ns.min(self.interval_end_ns()) } else { self.measure_ns }
    }

    /// Whether the request that is due, or begins, at `at_ns` may start. Warming up costs no ticket.
    #[inline]
    pub(crate) fn take_ticket(&mut self, at_ns: u64) -> bool {
        if self.shared.tickets.is_none() || at_ns < self.measure_ns {
            return true;
        }
        if self.held == 0 {
            self.held = self.shared.take_tickets(self.shared.ended.len() as u64);
        }
        let granted = self.held > 0;
        self.held -= u64::from(granted);
        if !granted && self.shared.open_loop {
            self.shared.exhausted_ns.fetch_min(at_ns, Ordering::Relaxed);
        }
        granted
    }

    /// Whether a request is counted that began, or in an open loop was due, at `intended_ns`. With `-n` only those that had
    /// a ticket are; in an open loop all that were due in the measured part, whenever they end.
    #[inline]
    pub(crate) fn counts(&self, intended_ns: u64) -> bool {
        self.measuring
            && (intended_ns >= self.measured_from_ns
                || !self.shared.open_loop && self.shared.tickets.is_none())
    }

    /// One more request was handed over to its connection.
    #[inline]
    pub(crate) fn sent(&mut self, intended_ns: u64, bytes: usize) {
        self.record.bytes_out += bytes as u64;
        self.record.sent += u64::from(self.counts(intended_ns));
    }

    /// A response is complete. `is_right_content`: its digest is the expected one, if one is expected. Returns what is
    /// wrong with it.
    #[inline]
    pub(crate) fn complete(
        &mut self,
        response: Response,
        is_right_content: bool,
        times: Times,
    ) -> Option<Failure> {
        let status_is_right = match self.expect_status {
            Some(status) => response.status == status,
            None => (200..400).contains(&response.status),
        };
        let failure = if !status_is_right {
            Some(Failure::WrongStatus)
        } else if self.expect_size.is_some_and(|size| size != response.body_bytes) {
            Some(Failure::WrongSize)
        } else if !is_right_content {
            Some(Failure::WrongContent)
        } else {
            None
        };
        if self.counts(times.intended_ns) {
            match failure {
                None => self.record.succeed(times),
                Some(Failure::WrongStatus) => self.record.fail_status(response.status),
                Some(Failure::WrongSize) => self.record.fail_size(response.body_bytes),
                Some(failure) => self.record.fail(failure),
            }
        }
        failure
    }

    pub(crate) fn fail(&mut self, failure: Failure, intended_ns: u64) {
        if self.counts(intended_ns) {
            self.record.fail(failure);
        }
    }

    pub(crate) fn fail_malformed(&mut self, kind: Malformed, intended_ns: u64) {
        if self.counts(intended_ns) {
            self.record.fail_malformed(kind);
        }
    }

    /// A connection is established.
    pub(crate) fn opened(&mut self, connect_ns: u64) {
        let open = self.shared.open.0.fetch_add(1, Ordering::Relaxed) + 1;
        self.record.open_max = self.record.open_max.max(open);
        if self.measuring || self.connects_first {
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
        self.ended_ns = if self.shared.open_loop && self.measuring {
            // What was under way has been waited for: the run's length is that of its schedule.
            now_ns.min(self.end_ns).min(self.shared.exhausted_ns.load(Ordering::Relaxed))
        } else {
            now_ns
        };
        self.measuring = false;
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

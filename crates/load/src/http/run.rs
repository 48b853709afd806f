//! What both kinds of connections share: threads, the clock, the budget of requests, the tally.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::report::Report;
use super::shard::{ShardWorker, Task};
use super::{Settings, kernel};
use crate::error::Error;
use crate::link::{Link, Stack, Wire, xdp};
use crate::processors::{check_cpus, pin};
use crate::record::{CpuTime, Failure, Record};
use crate::response::{Malformed, Response};

/// How long a connection that could not be made waits before it is tried again.
pub(crate) const RETRY_NS: u64 = 10_000_000;
/// At most this many of a thread's first connections are begun at once: a listener's backlog is a
/// few hundred, and a SYN that is dropped costs a second.
const OPENING_AT_ONCE: usize = 256;
/// But so many are begun every so often in any case: with a new connection for each request, those
/// of earlier ones may be under way all the time.
const OPENING_ANYWAY: usize = 16;
const OPENING_EVERY_NS: u64 = 1_000_000;
/// Most tickets that a thread holds.
const TICKETS_AT_ONCE: u64 = 32;
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// How far a run has come.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Since the start, warm-up included.
    pub elapsed: Duration,
    /// Requests ended since the start or, after it, since the warm-up.
    pub requests: u64,
    /// Connections that are open now.
    pub open: u64,
    /// Nothing is counted yet.
    pub warming_up: bool,
}

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
    failed: AtomicBool,
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
            failed: AtomicBool::new(false),
        }
    }

    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
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
}

impl<'a> Tally<'a> {
    pub(crate) fn new(settings: &Settings, shared: &'a Shared, index: usize) -> Tally<'a> {
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
        self.shared.ended[self.index].0.store(self.record.requests(), Ordering::Relaxed);
        now_ns < self.shared.end_ns && !self.shared.failed.load(Ordering::Relaxed)
    }

    /// When `goes_on` has something to say at the latest.
    pub(crate) fn next_change_ns(&self) -> u64 {
        if self.measuring { self.shared.end_ns } else { self.shared.measure_ns }
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
            self.record.succeed(now_ns.saturating_sub(started_ns));
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

/// The connections of a thread that have not begun yet.
#[derive(Debug)]
pub(crate) struct Ramp {
    pub(crate) left: usize,
    next_ns: u64,
}

impl Ramp {
    pub(crate) fn new(connections: usize) -> Ramp {
        Ramp { left: connections, next_ns: 0 }
    }

    /// How many to begin now, while `connecting` are under way.
    #[inline]
    pub(crate) fn begin(&mut self, now_ns: u64, connecting: usize) -> usize {
        if self.left == 0 {
            return 0;
        }
        let mut begin = OPENING_AT_ONCE.saturating_sub(connecting);
        if now_ns >= self.next_ns {
            self.next_ns = now_ns + OPENING_EVERY_NS;
            begin = begin.max(OPENING_ANYWAY);
        }
        begin = begin.min(self.left);
        self.left -= begin;
        begin
    }

    /// When to ask again, if nothing else happens.
    pub(crate) fn next_ns(&self) -> u64 {
        if self.left > 0 { self.next_ns } else { u64::MAX }
    }
}

/// One thread's connections, made ready while the run can still be refused.
pub(crate) trait Worker: Send {
    /// Runs until the tally says stop or no request is left.
    fn run(self, tally: Tally<'_>) -> Result<Outcome, Error>;
}

/// Runs the load and blocks until it is over. `progress` is called five times a second.
///
/// # Errors
/// [`Error::Usage`] for settings that contradict each other, [`Error::Machine`] for what this
/// machine cannot do. Failures of requests are no errors: they are in the report.
pub fn run(settings: &Settings, progress: impl FnMut(&Progress)) -> Result<Report, Error> {
    settings.check()?;
    check_cpus(&settings.cpus)?;
    let address = settings.target.resolve()?;
    let local = local_address(address)?;
    match settings.link {
        Link::Kernel => {
            raise_descriptor_limit(settings)?;
            let workers = kernel::workers(settings, address, local)?;
            drive(settings, workers, progress)
        }
        Link::Xdp => {
            let (stacks, attachment) = xdp::open(&xdp::Wanted {
                server: address,
                url: settings.target.url(),
                interface: settings.interface.as_deref(),
                threads: settings.threads,
                connections: settings.connections_of(0),
                ports: settings.ports.clone(),
            })?;
            settings.check_ports(stacks.iter().map(|stack| stack.ports.len()).sum())?;
            let workers = shard_workers(settings, address, stacks);
            let report = drive(settings, workers, progress);
            // The program stays until the last frame of the last thread is out.
            drop(attachment);
            report
        }
    }
}

/// Runs each worker in a thread of its own.
pub(crate) fn drive<W: Worker>(
    settings: &Settings,
    workers: Vec<W>,
    mut progress: impl FnMut(&Progress),
) -> Result<Report, Error> {
    let shared = &Shared::new(settings);
    let main = std::thread::current();
    let main = &main;
    let outcomes: Result<Vec<Outcome>, Error> = std::thread::scope(|scope| {
        let spawn = |(index, worker): (usize, W)| {
            let name = format!("load-{index}");
            let body = move || {
                let outcome =
                    pin(&settings.cpus, index).and_then(|()| worker.run(Tally::new(settings, shared, index)));
                if outcome.is_err() {
                    shared.failed.store(true, Ordering::Relaxed);
                }
                main.unpark();
                outcome
            };
            std::thread::Builder::new().name(name).spawn_scoped(scope, body)
        };
        let mut threads = Vec::new();
        for worker in workers.into_iter().enumerate() {
            match spawn(worker) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    shared.failed.store(true, Ordering::Relaxed);
                    return Err(Error::machine("starting a generator thread", error));
                }
            }
        }
        while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            std::thread::park_timeout(PROGRESS_EVERY);
            progress(&Progress {
                elapsed: shared.epoch.elapsed(),
                requests: shared.ended.iter().map(|ended| ended.0.load(Ordering::Relaxed)).sum(),
                open: shared.open.0.load(Ordering::Relaxed),
                warming_up: shared.now_ns() < shared.measure_ns,
            });
        }
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| match thread.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().map(join).collect()
    });
    Ok(Report::new(settings, &outcomes?))
}

fn shard_workers<W: Wire + Send>(
    settings: &Settings,
    server: SocketAddr,
    stacks: Vec<Stack<W>>,
) -> Vec<ShardWorker<W>> {
    let request: Arc<[u8]> = settings.request().into();
    let worker = |(index, stack)| {
        let task = Task {
            // The engine knows no mapped addresses and no scopes.
            server: SocketAddr::new(server.ip().to_canonical(), server.port()),
            request: request.clone(),
            connections: settings.connections_of(index),
            timeout_ns: u64::try_from(settings.timeout.as_nanos()).unwrap_or(u64::MAX),
        };
        ShardWorker { stack, task }
    };
    stacks.into_iter().enumerate().map(worker).collect()
}

/// The address that this machine would speak from, or why there is none.
fn local_address(server: SocketAddr) -> Result<SocketAddr, Error> {
    let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let found = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(server)?;
        socket.local_addr()
    });
    found.map_err(|error| {
        let what = format!("no route to {}", server.ip());
        Error::machine(what, format!("{error}; see: ip route get {}", server.ip()))
    })
}

/// Each connection is a descriptor: raises the soft limit to the hard one if it must.
fn raise_descriptor_limit(settings: &Settings) -> Result<(), Error> {
    // Standard streams, epoll instances, and what the process had open before.
    let needed = (settings.connections + 4 * settings.threads + 64) as u64;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let maximum = limit.maximum.unwrap_or(u64::MAX);
    if maximum < needed {
        return Err(Error::usage(
            "-c",
            settings.connections,
            format!(
                "at most {} connections: the hard limit on open files is {maximum} (ulimit -Hn)",
                maximum.saturating_sub(needed - settings.connections as u64)
            ),
        ));
    }
    setrlimit(
        Resource::Nofile,
        Rlimit { current: Some(needed.max(maximum.min(1 << 20))), maximum: limit.maximum },
    )
    .map_err(|error| Error::machine("raising the limit on open files", error))
}

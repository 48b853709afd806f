//! A run: what is known before it begins, its threads, and how far they have come.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use super::report::Report;
use super::series::{Handover, Interval, Series};
use super::shard::{ShardWorker, Task};
use super::tally::{Outcome, Shared, Summary, Tally};
use super::{Settings, kernel};
use crate::descriptors::raise_limit;
use crate::error::Error;
use crate::link::{Link, Stack, Wire, xdp};
use crate::processors::{check_cpus, pin};

/// How long a connection that could not be made waits before it is tried again.
pub(crate) const RETRY_NS: u64 = 10_000_000;
/// At most this many of a thread's first connections are begun at once: a listener's backlog is a
/// few hundred, and a SYN that is dropped costs a second.
const OPENING_AT_ONCE: usize = 256;
/// But so many are begun every so often in any case: with a new connection for each request, those
/// of earlier ones may be under way all the time.
const OPENING_ANYWAY: usize = 16;
const OPENING_EVERY_NS: u64 = 1_000_000;
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// How far a run has come.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// Since the start, warm-up included.
    pub elapsed: Duration,
    /// Requests ended since the start or, after it, since the warm-up.
    pub requests: u64,
    /// Connections that are open now.
    pub open: u64,
    /// Nothing is counted yet.
    pub warming_up: bool,
    /// The interval of [`Settings::interval`] that has just become complete. Each is shown once, in order, in a call of its
    /// own; the last one after the run has ended.
    pub interval: Option<&'a Interval>,
    shared: &'a Shared,
}

impl<'a> Progress<'a> {
    /// Ends the run now: what was counted so far is its report.
    pub fn end_run(&self) {
        self.shared.end();
    }

    fn now(shared: &'a Shared, interval: Option<&'a Interval>) -> Progress<'a> {
        Progress {
            elapsed: shared.elapsed(),
            requests: shared.ended(),
            open: shared.open(),
            warming_up: shared.is_warming_up(),
            interval,
            shared,
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

/// Runs the load and blocks until it is over. `progress` is called five times a second, and once for each interval.
///
/// # Errors
/// [`Error::Usage`] for settings that contradict each other, [`Error::Machine`] for what this
/// machine cannot do. Failures of requests are no errors: they are in the report.
pub fn run(settings: &Settings, progress: impl FnMut(&Progress<'_>)) -> Result<Report, Error> {
    run_from(settings, || Ok(()), progress)
}

/// The same, with a `start` that is called when all is ready, and at whose return the run begins.
///
/// # Errors
/// Those of [`run`] and those of `start`.
pub fn run_from(
    settings: &Settings,
    start: impl FnOnce() -> Result<(), Error>,
    progress: impl FnMut(&Progress<'_>),
) -> Result<Report, Error> {
    settings.check()?;
    check_cpus(&settings.cpus)?;
    let address = settings.target.resolve()?;
    let local = local_address(address)?;
    match settings.link {
        Link::Kernel => {
            // Standard streams, epoll instances, and what the process had open before.
            raise_limit("-c", settings.connections, 4 * settings.threads + 64)?;
            let workers = kernel::workers(settings, address, local)?;
            start().and_then(|()| drive(settings, workers, progress))
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
            let report = start().and_then(|()| drive(settings, workers, progress));
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
    mut progress: impl FnMut(&Progress<'_>),
) -> Result<Report, Error> {
    let shared = &Shared::new(settings);
    let main = std::thread::current();
    let main = &main;
    let (mut series, handovers) = match settings.interval {
        Some(every) => {
            let (series, ends) = Series::new(every, workers.len());
            (Some(series), ends.into_iter().map(Some).collect())
        }
        None => (None, workers.iter().map(|_| None).collect::<Vec<_>>()),
    };
    let outcomes: Result<Vec<Outcome>, Error> = std::thread::scope(|scope| {
        let spawn = |index: usize, worker: W, handover: Option<Handover>| {
            let name = format!("load-{index}");
            let body = move || {
                let outcome = pin(&settings.cpus, index)
                    .and_then(|()| worker.run(Tally::new(settings, shared, index, handover)));
                if outcome.is_err() {
                    shared.end();
                }
                main.unpark();
                outcome
            };
            std::thread::Builder::new().name(name).spawn_scoped(scope, body)
        };
        let mut threads = Vec::new();
        for (index, (worker, handover)) in workers.into_iter().zip(handovers).enumerate() {
            match spawn(index, worker, handover) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    shared.end();
                    return Err(Error::machine("starting a generator thread", error));
                }
            }
        }
        while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            std::thread::park_timeout(PROGRESS_EVERY);
            progress(&Progress::now(shared, None));
            if let Some(series) = &mut series {
                series.collect(|interval| progress(&Progress::now(shared, Some(interval))));
            }
        }
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| match thread.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().map(join).collect()
    });
    let summary = Summary::of(outcomes?, series, |interval| progress(&Progress::now(shared, Some(interval))));
    Ok(Report::new(settings, summary))
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

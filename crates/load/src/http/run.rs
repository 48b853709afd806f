//! A run: what is known before it begins, its threads, and how far they have come.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use super::Settings;
use super::client::Client;
use super::hostile::{self, Hostile};
use super::kernel::{self, Sockets};
use super::party::{Party, Servers};
use super::plan::Plan;
use super::report::Report;
use super::script::Script;
use super::series::{Handover, Interval, Series};
use super::shard::Shard;
use super::tally::{Outcome, Shared, Summary, Tally};
use super::tls::{Security, Tls};
use crate::descriptors::raise_limit;
use crate::error::Error;
use crate::link::sources::Sources;
use crate::link::{AnyStack, Link, memif, tap, xdp};
use crate::memory;
use crate::processors::{check_cpus, pin};

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

/// One thread's connections, made ready while the run can still be refused.
pub(crate) trait Worker: Send {
    /// Thread `index` runs it until the tally says stop or no request is left.
    fn run(self, settings: &Settings, index: usize, tally: Tally<'_>) -> Result<Outcome, Error>;
}

/// Runs the load and blocks until it is over. `progress` is called five times a second, and once for each interval.
///
/// # Errors
/// [`Error::Usage`] for settings that contradict each other, [`Error::Machine`] for what this
/// machine cannot do. Failures of requests are no errors: they are in the report.
pub fn run(settings: &Settings, mut progress: impl FnMut(&Progress<'_>)) -> Result<Report, Error> {
    begin(settings, &mut || Ok(()), &mut progress)
}

/// The same, with a `start` that is called when all is ready, and at whose return the run begins.
///
/// # Errors
/// Those of [`run`] and those of `start`.
pub fn run_from(
    settings: &Settings,
    mut start: impl FnMut() -> Result<(), Error>,
    mut progress: impl FnMut(&Progress<'_>),
) -> Result<Report, Error> {
    begin(settings, &mut start, &mut progress)
}

/// Not generic: what calls it would be compiled with engine, client and links of its own, a minute each.
fn begin(
    settings: &Settings,
    start: &mut dyn FnMut() -> Result<(), Error>,
    progress: &mut dyn FnMut(&Progress<'_>),
) -> Result<Report, Error> {
    settings.check()?;
    check_cpus(&settings.cpus)?;
    let plan = Arc::new(Plan::new(settings)?);
    let scripts = scripts(settings)?;
    let routes = scripts.iter().map(|script| plan.servers_of(script.as_deref())).collect::<Vec<_>>();
    for address in routes.iter().flat_map(|servers| &servers.addresses) {
        match settings.link {
            Link::Kernel | Link::Xdp => check_route(*address)?,
            Link::Memif(_) | Link::Tap(_) => settings.network.check_reaches(*address)?,
        }
    }
    let security = Security::new(settings, plan.servers.iter().map(|server| server.secure_name.as_deref()))?;
    let seed = |script| Seed { plan: plan.clone(), script, security: security.clone() };
    let seeds = scripts.into_iter().map(seed);
    if settings.link != Link::Kernel {
        memory::check(settings.connections, memory::USER_LEVEL)?;
    }
    match &settings.link {
        Link::Kernel => {
            plan.sources.as_ref().map_or(Ok(()), Sources::check_local)?;
            // A socket that is bound to an address has its port to itself; others share theirs with those to other servers.
            let ways = plan.sources.as_ref().map_or(plan.servers.len(), Sources::len);
            settings.check_ports(kernel::ephemeral_ports() * ways)?;
            memory::check(settings.connections, memory::KERNEL)?;
            // Standard streams, epoll instances, and what the process had open before.
            raise_limit("-c", settings.connections, 4 * settings.threads + 64)?;
            let thread = |(seed, servers)| Ok(Thread { carrier: Sockets::new(servers)?, seed });
            let workers = seeds.zip(routes).map(thread).collect::<Result<Vec<_>, Error>>()?;
            start().and_then(|()| drive(settings, workers, progress))
        }
        Link::Memif(place) => {
            let stacks = memif::open(&memif::Wanted {
                place,
                network: settings.network,
                threads: settings.threads,
                connections: settings.connections_of(0),
                ports: settings.ports.clone(),
                sources: settings.sources,
            })?;
            let workers = stack_workers(settings, &plan, stacks, seeds.zip(routes).collect())?;
            start().and_then(|()| drive(settings, workers, progress))
        }
        Link::Tap(name) => {
            let purpose = tap::Purpose::Connect {
                servers: servers_of(&routes),
                ports: settings.ports.clone(),
                sources: settings.sources,
                connections: settings.connections_of(0),
            };
            let stacks = tap::open(name, settings.network, settings.threads, &purpose)?;
            let workers = stack_workers(settings, &plan, stacks, seeds.zip(routes).collect())?;
            start().and_then(|()| drive(settings, workers, progress))
        }
        Link::Xdp => {
            let servers = servers_of(&routes);
            // The program stays until the last frame of the last thread is out.
            let (stacks, _attachment) = xdp::open(&xdp::Wanted {
                servers: &servers,
                url: settings.targets[0].url(),
                interface: settings.interface.as_deref(),
                receive_offload: settings.receive_offload,
                threads: settings.threads,
                cpus: &settings.cpus,
                connections: settings.connections_of(0),
                ports: settings.ports.clone(),
                sources: plan.sources.as_ref(),
                protocols: &[overfly_steer::Protocol::Tcp],
                configure: &|config| config,
            })?;
            let workers = stack_workers(settings, &plan, stacks, seeds.zip(routes).collect())?;
            start().and_then(|()| drive(settings, workers, progress))
        }
    }
}

/// All servers that any thread asks.
fn servers_of(routes: &[Servers]) -> Vec<SocketAddr> {
    let mut servers: Vec<SocketAddr> = Vec::new();
    for address in routes.iter().flat_map(|servers| &servers.addresses) {
        if !servers.contains(address) {
            servers.push(*address);
        }
    }
    servers
}

/// A worker for each stack. There must be ports for all connections.
fn stack_workers(
    settings: &Settings,
    plan: &Plan,
    stacks: Vec<AnyStack>,
    seeds: Vec<(Seed, Servers)>,
) -> Result<Vec<StackThread>, Error> {
    let routes: Vec<Servers> = seeds.iter().map(|(_, servers)| servers.clone()).collect();
    let ports: usize = stacks.iter().map(|stack| stack.ports.len()).sum();
    let sources = plan.sources.as_ref().map_or(1, Sources::len);
    settings.check_ports(ports * sources * servers_of(&routes).len())?;
    let thread =
        |(stack, (seed, servers)): (_, (_, Servers))| Thread { carrier: (stack, servers.canonical()), seed };
    Ok(stacks.into_iter().zip(seeds).map(thread).collect())
}

/// Each thread's script, if the requests are made up.
fn scripts(settings: &Settings) -> Result<Vec<Option<Box<dyn Script>>>, Error> {
    let threads = settings.threads;
    let script =
        |index| settings.workload.as_ref().map(|workload| workload.script(index, threads)).transpose();
    (0..threads).map(script).collect()
}

/// What carries a thread's connections, made ready.
trait Carry: Send {
    /// Until the run is over.
    fn carry(self, party: impl Party, clock: &Shared) -> Result<Outcome, Error>;
}

impl Carry for Sockets {
    fn carry(self, party: impl Party, clock: &Shared) -> Result<Outcome, Error> {
        kernel::Shard::new(self, party, clock).run()
    }
}

impl Carry for (AnyStack, Servers) {
    fn carry(self, party: impl Party, clock: &Shared) -> Result<Outcome, Error> {
        Shard::new(self.0, self.1, party).run(clock)
    }
}

/// What a thread's party is made from.
struct Seed {
    plan: Arc<Plan>,
    script: Option<Box<dyn Script>>,
    security: Option<Security>,
}

/// One thread's connections before they run.
struct Thread<C> {
    carrier: C,
    seed: Seed,
}

type StackThread = Thread<(AnyStack, Servers)>;

impl<C: Carry> Worker for Thread<C> {
    fn run(self, settings: &Settings, index: usize, tally: Tally<'_>) -> Result<Outcome, Error> {
        let clock = tally.clock();
        let Thread { carrier, seed: Seed { plan, script, security } } = self;
        if let Some(kind) = settings.hostile {
            return carrier.carry(Hostile::new(settings, kind, &plan, index, tally), clock);
        }
        let client = Client::new(settings, plan, index, script, tally);
        match security {
            Some(security) => carrier.carry(Tls::new(client, security), clock),
            None => carrier.carry(client, clock),
        }
    }
}

/// Runs each worker in a thread of its own.
pub(crate) fn drive<W: Worker>(
    settings: &Settings,
    workers: Vec<W>,
    progress: &mut dyn FnMut(&Progress<'_>),
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
                let tally = Tally::new(settings, shared, index, handover);
                let outcome = pin(&settings.cpus, index).and_then(|()| worker.run(settings, index, tally));
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
    let mut report = Report::new(settings, summary);
    if let Some(kind) = settings.hostile {
        report.remarks.insert(0, hostile::verdict(kind, &report));
    }
    Ok(report)
}

/// Whether this machine knows a way to the server.
fn check_route(server: SocketAddr) -> Result<(), Error> {
    let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let found = UdpSocket::bind(any).and_then(|socket| socket.connect(server));
    found.map_err(|error| {
        let what = format!("no route to {}", server.ip());
        Error::machine(what, format!("{error}; see: ip route get {}", server.ip()))
    })
}

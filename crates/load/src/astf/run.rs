//! A run: its threads, and what they share with whoever watches.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use overfly_engine::{Config, Engine};
use overfly_wire::MacAddr;

use super::counter::Tally;
use super::latency::Latency;
use super::opener::{Opener, Ports};
use super::pace::Pace;
use super::plan::{Plan, Role};
use super::rig::{Pair, Rig, Snapshot};
use super::settings::Settings;
use super::shard::Shard;
use super::tunnel::Tunnels;
use super::wire::{End, HasEnd};
use crate::crew::{Crew, Outcome, Turn, Work};
use crate::error::Error;
use crate::link::{Stack, boot_key, uptime_ns};
use crate::processors::check_cpus;
use crate::record::CpuTime;

/// How often a thread shows what it has counted.
const SHOW_EVERY_NS: u64 = 20_000_000;
/// How long a thread without work looks on before it sleeps.
const SPIN_NS: u64 = 100_000;
/// How long it sleeps at most where frames may come, at first, and after a while without any.
const NAP_NS: u64 = 50_000;
const LONG_NAP_NS: u64 = 1_000_000;
const LONG_AFTER_NS: u64 = 100_000_000;
/// How long it sleeps at most where nothing comes from outside but orders.
const ALONE_NAP_NS: u64 = 20_000_000;
/// A sleep ends so much late: what is due sooner is waited for awake.
const WAKE_NS: u64 = 60_000;
/// How long resets may take to go out at the end.
const WIND_UP_NS: u64 = 500_000_000;
/// And how long where they are on a simulated path: the longest delay and jitter.
const PATH_MOST_NS: u64 = 21_000_000_000;

/// How far a run has been told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) enum Stage {
    /// Flows are begun.
    Runs,
    /// Those that are there end by themselves.
    Drains,
    /// Those that are there are reset.
    Ends,
}

/// What the threads and whoever watches share.
pub(crate) struct Shared {
    epoch: Instant,
    multiplier: AtomicU64,
    paused: AtomicBool,
    stage: AtomicU8,
    shown: Vec<Mutex<Snapshot>>,
    /// What threads that have ended leave behind.
    latencies: Vec<Mutex<Vec<Latency>>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn new(multiplier: f64, threads: usize) -> Shared {
        Shared {
            epoch: Instant::now(),
            multiplier: AtomicU64::new(multiplier.to_bits()),
            paused: AtomicBool::new(false),
            stage: AtomicU8::new(0),
            shown: (0..threads).map(|_| Mutex::default()).collect(),
            latencies: (0..threads).map(|_| Mutex::default()).collect(),
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    pub(crate) fn multiplier(&self) -> f64 {
        f64::from_bits(self.multiplier.load(Ordering::Relaxed))
    }

    pub(crate) fn set_multiplier(&self, multiplier: f64) {
        self.multiplier.store(multiplier.to_bits(), Ordering::Relaxed);
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    pub(crate) fn pause(&self, on: bool) {
        self.paused.store(on, Ordering::Relaxed);
    }

    pub(crate) fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Relaxed) {
            0 => Stage::Runs,
            1 => Stage::Drains,
            _ => Stage::Ends,
        }
    }

    /// Never goes back.
    pub(crate) fn tell(&self, stage: Stage) {
        self.stage.fetch_max(stage as u8, Ordering::Relaxed);
    }

    /// What all threads have counted, a moment ago.
    pub(crate) fn totals(&self) -> Snapshot {
        let mut total = Snapshot::default();
        for shown in &self.shown {
            let shown = lock(shown);
            for (sum, more) in total.tallies.iter_mut().zip(&shown.tallies) {
                sum.resize(sum.len().max(more.len()), Tally::ZERO);
                sum.iter_mut().zip(more).for_each(|(sum, more)| sum.merge(more));
            }
            total.probes.extend_from_slice(&shown.probes);
            total.memory += shown.memory;
            total.busy_ns += shown.busy_ns;
        }
        total
    }

    /// The times of all threads that have ended.
    pub(crate) fn latencies(&self) -> Vec<Latency> {
        let mut total: Vec<Latency> = Vec::new();
        for latencies in &self.latencies {
            for (group, latency) in lock(latencies).iter().enumerate() {
                match total.get_mut(group) {
                    Some(sum) => sum.merge(latency),
                    None => total.push(latency.clone()),
                }
            }
        }
        total
    }
}

/// What the threads brought home.
pub(crate) struct Home {
    pub(crate) counters: BTreeMap<String, u64>,
    pub(crate) cpu: CpuTime,
}

/// A run that goes on. Dropping it ends it.
pub(crate) struct Running {
    pub(crate) shared: Arc<Shared>,
    crew: Crew<()>,
    /// What must outlive the threads.
    _keeper: Option<Box<dyn Send>>,
}

impl Running {
    /// Starts the threads.
    pub(crate) fn start(settings: &Settings, plan: &Arc<Plan>) -> Result<Running, Error> {
        settings.check()?;
        check_cpus(&settings.cpus)?;
        let shared = Arc::new(Shared::new(settings.multiplier, settings.threads));
        let (works, keeper) = super::links::works(settings, plan, &shared)?;
        let crew = Crew::start("astf", works, &settings.cpus, settings.threads, None)?;
        Ok(Running { shared, crew, _keeper: keeper })
    }

    pub(crate) fn is_over(&self) -> bool {
        self.crew.is_over()
    }

    /// Waits for the threads, which have been told to end, or have.
    pub(crate) fn finish(self) -> Result<Home, Error> {
        let mut home = Home { counters: BTreeMap::new(), cpu: CpuTime::default() };
        self.shared.tell(Stage::Ends);
        for (outcome, cpu) in self.crew.stop()? {
            home.cpu += cpu;
            for (name, count) in outcome.counters {
                *home.counters.entry(name).or_insert(0) += count;
            }
        }
        Ok(home)
    }
}

/// What thread `index` does with its rig.
pub(crate) fn work<R: Rig + Send + 'static>(
    settings: &Settings,
    shared: &Arc<Shared>,
    index: usize,
    rig: R,
) -> Work<()> {
    let (shared, duration, drain) = (shared.clone(), settings.duration, settings.drain);
    Box::new(move |turn: &mut Turn<()>| {
        let mut conductor =
            Conductor { rig, shared: &shared, index, next_show_ns: 0, idle_since_ns: 0, busy_ns: 0 };
        conductor.run(turn, duration);
        conductor.drain(turn, drain);
        conductor.wind_up();
        let counters = conductor.rig.counters();
        *lock(&shared.latencies[index]) = conductor.rig.latencies().to_vec();
        Ok(Outcome { counts: (), counters })
    })
}

/// Drives one thread's rig through the stages of the run.
struct Conductor<'a, R> {
    rig: R,
    shared: &'a Shared,
    index: usize,
    next_show_ns: u64,
    idle_since_ns: u64,
    busy_ns: u64,
}

impl<R: Rig> Conductor<'_, R> {
    fn run(&mut self, turn: &mut Turn<()>, duration: Option<Duration>) {
        let end_ns = duration.map_or(u64::MAX, |duration| duration.as_nanos() as u64);
        loop {
            let now_ns = self.shared.now_ns();
            let multiplier = self.shared.multiplier();
            self.rig.pace(now_ns.min(end_ns), multiplier, self.shared.is_paused());
            let more = self.rig.begin(now_ns, multiplier);
            if now_ns >= end_ns || self.shared.stage() != Stage::Runs || !turn.goes_on(now_ns, &()) {
                break;
            }
            self.turn(now_ns, more);
            if self.rig.is_done() {
                break;
            }
        }
        self.rig.end();
    }

    /// Flows that are there may come to their end.
    fn drain(&mut self, turn: &mut Turn<()>, patience: Duration) {
        let until_ns = self.shared.now_ns().saturating_add(patience.as_nanos() as u64);
        while self.rig.active() > 0 || self.rig.has_work() || !self.rig.has_arrived() {
            let now_ns = self.shared.now_ns();
            if now_ns >= until_ns || self.shared.stage() == Stage::Ends || !turn.goes_on(now_ns, &()) {
                break;
            }
            self.turn(now_ns, false);
        }
    }

    fn wind_up(&mut self) {
        let begun_ns = self.shared.now_ns();
        self.rig.reset_all(begun_ns);
        loop {
            let now_ns = self.shared.now_ns();
            self.turn(now_ns, false);
            let is_done = self.rig.is_wound_up() && !self.rig.has_work() && self.rig.has_arrived();
            let most_ns = if self.rig.has_arrived() { WIND_UP_NS } else { PATH_MOST_NS };
            if is_done || now_ns > begun_ns + most_ns {
                break;
            }
        }
        self.show();
    }

    fn turn(&mut self, now_ns: u64, more: bool) {
        let shared = self.shared;
        let frames = self.rig.turn(&|| shared.now_ns());
        if now_ns >= self.next_show_ns {
            self.next_show_ns = now_ns + SHOW_EVERY_NS;
            self.show();
        }
        if frames > 0 || more || self.rig.has_work() {
            let after_ns = self.shared.now_ns();
            self.busy_ns += after_ns - now_ns;
            self.idle_since_ns = after_ns;
            return;
        }
        let idle_ns = now_ns.saturating_sub(self.idle_since_ns);
        if idle_ns > SPIN_NS {
            let most_ns = match idle_ns {
                _ if !R::LISTENS => ALONE_NAP_NS,
                _ if idle_ns < LONG_AFTER_NS => NAP_NS,
                _ => LONG_NAP_NS,
            };
            let nap_ns = self.rig.wait_ns(self.shared.multiplier()).saturating_sub(WAKE_NS).min(most_ns);
            if nap_ns > 0 {
                std::thread::sleep(Duration::from_nanos(nap_ns));
            }
        }
    }

    fn show(&mut self) {
        let mut shown = lock(&self.shared.shown[self.index]);
        shown.memory = 0;
        shown.probes.clear();
        shown.busy_ns = self.busy_ns;
        self.rig.show(&mut shown);
    }
}

/// Next hops on the wire in memory: any address, as all others are behind it.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);
const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// One thread's both sides.
pub(crate) fn pair<W: HasEnd>(
    settings: &Settings,
    plan: &Arc<Plan>,
    index: usize,
    wire: impl Fn(Role, End) -> W,
) -> Result<Pair<W>, Error> {
    let macs = [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])];
    let headers = if plan.has_ipv6() { 60 } else { 40 };
    let mtu = settings.mtu.unwrap_or((plan.largest_segment() + headers).max(1500));
    let epoch_ns = uptime_ns();
    let probe = if index == 0 { super::links::probe(settings, plan)? } else { None };
    let answers = probe.is_some();
    let own_prefixes = if answers { plan.addresses(Role::Server) } else { Vec::new() };
    // A peer sends again what the path has lost, as long as that takes.
    let way_us = plan.paths(Role::Client).longest_us() + plan.paths(Role::Server).longest_us();
    let has_paths = [Role::Client, Role::Server].iter().any(|role| !plan.paths(*role).is_empty());
    let least =
        if has_paths { Duration::from_secs(1) + 2 * Duration::from_micros(way_us) } else { Duration::ZERO };
    let tunnels = Tunnels::new(&plan.tunnels, Role::Client).overhead() as u16;
    let stack = |role: Role| {
        let config = Config {
            gateway: Some(GATEWAY),
            address6: Some(Ipv6Addr::LOCALHOST),
            prefix6_len: 128,
            gateway6: Some(GATEWAY6),
            mtu,
            // Frames cross no wire, but tunnels carry whole ones.
            checksum_offload: tunnels == 0,
            partial_checksums: true,
            max_flows: settings.flows,
            max_time_wait: settings.flows,
            time_wait: settings.time_wait.max(least),
            // To probes the server side answers.
            alone: role == Role::Server && answers,
            own_prefixes: if role == Role::Server { own_prefixes.clone() } else { Vec::new() },
            hash_key: boot_key(),
            ..Config::new(macs[role as usize], Ipv4Addr::UNSPECIFIED, 32)
        };
        let mut engine = Engine::new(plan.configure(role, config))
            .map_err(|error| Error::machine("the user-level stack", error))?;
        let peer = macs[1 - role as usize];
        engine.set_neighbor(GATEWAY, peer);
        engine.set_neighbor(IpAddr::V6(GATEWAY6), peer);
        let ports = crate::link::Ports::none();
        let wire = wire(role, End::new(mtu + tunnels));
        Ok(Stack { epoch_ns, ..Stack::new(engine, wire, GATEWAY.into(), ports) })
    };
    let ports = Ports { range: settings.ports.clone(), stride: 1 };
    let opener = Opener::new(plan, index, settings.threads, &ports);
    let pace = Pace::new(plan, index, settings.threads);
    let flows = settings.flows as usize;
    // Far apart: threads draw different numbers.
    let seed = settings.seed.wrapping_add((index as u64) << 32);
    Ok(Pair {
        client: Shard::client(stack(Role::Client)?, plan, (opener, pace, probe), flows, seed),
        server: Shard::server(stack(Role::Server)?, plan, flows, !seed)?,
    })
}

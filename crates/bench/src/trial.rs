//! One run: the server on its core, the generator on its, the clocks.

mod child;
mod clocks;
mod generator;
mod memory;
mod server;

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::child::{line, output_of, wait_until};
use self::clocks::Clocks;
use self::generator::Generator;
use self::server::Server;
use crate::agent::Spent;
use crate::foreign::ToolReport;
use crate::hosts::Hosts;
use crate::interruption::interrupted;
use crate::plan::{Case, Cell, Link, Mode, Plan, Tool};
use crate::site::Site;
use crate::yardstick::{Conditions, Watch};

/// What a generator may take beyond its warm-up and duration.
const LOAD_SLACK: Duration = Duration::from_secs(10);
/// What a search may take of runs: it doubles and halves, up to a hundred million.
const SEARCH_RUNS: u32 = 60;
/// Profiles have two hundred clients, beside the generator's own address.
const FLOW_CLIENTS: u8 = 200;

/// What one run found out.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Trial {
    /// What the plan's load comes to ([`crate::plan::Measure`]); 0 if the run failed.
    #[serde(alias = "requests_per_s")]
    pub(crate) value: f64,
    /// Successes of a load that is a rate, a second; else 0.
    #[serde(default)]
    pub(crate) work_per_s: f64,
    /// Requests that failed.
    pub(crate) failed_requests: u64,
    /// Start of a request to the end of its response, µs.
    pub(crate) latency_p50_us: f64,
    pub(crate) latency_p99_us: f64,
    /// All processes of the server, user and system.
    pub(crate) server_cpu_us_per_request: f64,
    pub(crate) client_cpu_us_per_request: f64,
    /// Share of the time that the cores were not idle, and that they spent in softirqs, %.
    pub(crate) server_core_busy_percent: f64,
    pub(crate) server_core_softirq_percent: f64,
    pub(crate) client_core_busy_percent: f64,
    pub(crate) client_core_softirq_percent: f64,
    /// Share of the time that the generator had something to do, as it says itself, %. (Its core is busy all the time where
    /// it has a stack of its own: it polls.)
    pub(crate) generator_busy_percent: f64,
    /// What the bench itself had of a core while the generator ran, %.
    #[serde(default)]
    pub(crate) harness_percent: f64,
    /// Kept beside the trial.
    #[serde(skip)]
    pub(crate) conditions: Conditions,
    /// Why the run failed, or what else was not as it should be.
    pub(crate) problems: Vec<String>,
    /// What a reader should know of the figure.
    #[serde(default)]
    pub(crate) remarks: Vec<String>,
    /// Why a first try failed, after which this one was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) first_try: Option<String>,
    /// The exact command lines, as they are typed where the run takes place.
    pub(crate) server_command: String,
    pub(crate) client_command: String,
    /// The generator's own report.
    pub(crate) load: Value,
    /// What the server wrote to standard error.
    pub(crate) server_log: String,
}

/// What runs are made with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tools<'a> {
    pub(crate) overfly: &'a Path,
    /// What the plan's `server.build` made.
    pub(crate) build: &'a Path,
    /// Where the sides are, if not here.
    pub(crate) hosts: Option<&'a Hosts>,
}

/// Carries out one case of the plan; what fails is tried once more. A failure is part of what is returned.
pub(crate) fn carry_out(plan: &Plan, tools: Tools<'_>, case: Case) -> Trial {
    let first = carry_out_once(plan, tools, case);
    if first.value > 0.0 || interrupted() {
        return first;
    }
    let mut second = carry_out_once(plan, tools, case);
    second.first_try = Some(first.problems.join("; "));
    second
}

fn carry_out_once(plan: &Plan, tools: Tools<'_>, case: Case) -> Trial {
    let cell = plan.cells()[case.cell];
    let mut trial = Trial::default();
    if let Err(problem) = attempt(plan, tools, case, cell, &mut trial) {
        trial.problems.push(problem);
    }
    trial
}

fn attempt(plan: &Plan, tools: Tools<'_>, case: Case, cell: Cell, trial: &mut Trial) -> Result<(), String> {
    let site = site_of(plan, tools, case, cell)?;
    let mut servers: Vec<Server<'_>> = Vec::new();
    // One after the other: the first one's broker serves the next ones, once it is there.
    let mut result = Ok(());
    let instances = if cell.link == Link::Memory { 0 } else { cell.instances };
    for instance in 0..instances {
        let mut server = Server::start(plan, &site, tools, case.mode, cell, instance)?;
        result = server.fill(plan, cell).and_then(|()| server.await_answer(plan, case.mode, cell));
        servers.push(server);
        if result.is_err() {
            break;
        }
    }
    let lines: Vec<&str> = servers.iter().map(|server| server.line.as_str()).collect();
    trial.server_command = lines.join(" & ");
    let result = result.and_then(|()| {
        let generator = Generator { plan, site: &site, case, cell, servers: &servers };
        let measured = measure(generator, trial);
        // What is no more explains whatever else went wrong, and has no figure.
        servers.iter_mut().try_for_each(Server::is_alive).inspect_err(|_| trial.value = 0.0).and(measured)
    });
    // All are told before any is waited for: one that has the others' broker ends with the last of them.
    for server in &servers {
        server.tell(plan.server.stop);
    }
    let stopped =
        servers.iter_mut().map(|server| server.await_end(plan.server.stop)).fold(Ok(()), Result::and);
    let logs: Vec<String> = servers.iter_mut().map(Server::log).filter(|log| !log.is_empty()).collect();
    trial.server_log = logs.join("\n");
    // The first thing that went wrong is the one to tell; what the server said may explain it.
    match result.and(stopped) {
        Err(problem) if !trial.server_log.is_empty() => {
            let last = trial.server_log.lines().last().unwrap_or("");
            Err(format!("{problem} (the server's last words: {last})"))
        }
        other => other,
    }
}

/// Where a case's run takes place.
fn site_of(plan: &Plan, tools: Tools<'_>, case: Case, cell: Cell) -> Result<Site, String> {
    let overfly = tools.overfly;
    if let Some(hosts) = tools.hosts {
        return Ok(Site::hosts(overfly, hosts));
    }
    let site = match cell.link {
        Link::Memif | Link::Host | Link::Memory => Site::machine(overfly),
        Link::Xdp | Link::Kernel if case.mode == Mode::KernelAsFound => Site::lab_as_found(overfly),
        Link::Xdp | Link::Kernel => Site::lab(overfly),
    };
    let site = site.map_err(|error| error.to_string())?;
    if plan.client.tool == Tool::Astf && cell.link == Link::Xdp {
        site.add_clients(FLOW_CLIENTS).map_err(|error| error.to_string())?;
    }
    Ok(if cell.instances > 1 { site.for_several() } else { site })
}

fn measure(generator: Generator<'_>, trial: &mut Trial) -> Result<(), String> {
    let Generator { plan, cell, servers, .. } = generator;
    let (warmup, duration) =
        (Duration::from_secs_f64(plan.warmup_s), Duration::from_secs_f64(plan.duration_s));
    if generator.warms_up_apart() {
        let warm = start(&generator, plan.warmup_s, cell.connections)?;
        output_of(warm, Instant::now() + warmup + LOAD_SLACK)?;
    }
    let alone = if plan.client.tool == Tool::Idle { Some(memory_with_one(&generator)?) } else { None };
    let arguments = generator.command(plan.duration_s, cell.connections);
    trial.client_command = line(&arguments);
    let mut running = start(&generator, plan.duration_s, cell.connections)?;
    let generator_id = running.id();
    generator.await_start(&mut running);
    let (started, own) = (Instant::now(), own_time());
    let from = started + if generator.warms_up() { warmup } else { Duration::ZERO };
    // A search is as long as it is: what is measured of cores and processes says nothing of its answer.
    let until = match plan.client.find_max {
        Some(_) => from + (warmup + duration + Duration::from_secs(1)) * SEARCH_RUNS,
        None => from + duration,
    };
    let watched = plan.server_cores(&cell);
    // Another machine's cores are looked at before and after.
    let here = generator.site.machines().is_none();
    let watch = here.then(|| Watch::start(&watched, plan.client.cpu, from, until));
    let mut look = |share: f64| {
        let look = || Clocks::read(plan, cell, generator.site, servers, generator_id);
        wait_until(&mut running, from + duration.mul_f64(share), look).flatten()
    };
    // The middle of the measured time, so that nothing of the generator's start and end is in it.
    // It may itself take a moment to start: its own clock says when it was measuring.
    let clocks = if plan.client.find_max.is_none() { look(0.2).zip(look(0.9)) } else { None };
    let together = match alone {
        Some(_) => memory::in_use(&both_sides(servers, Some(generator_id))),
        None => 0,
    };
    let output = output_of(
        running,
        plan.timeout_s.map_or(until + LOAD_SLACK, |limit| started + Duration::from_secs_f64(limit)),
    );
    trial.conditions.speeds = watch.map(Watch::end).unwrap_or_default();
    let own = own_time().saturating_sub(own).as_secs_f64();
    trial.harness_percent = own / started.elapsed().as_secs_f64() * 100.0;
    let told = generator.told(&output?)?;
    trial.take(plan, told, clocks)?;
    if let Some(alone) = alone {
        trial.value = together.saturating_sub(alone) as f64 / f64::from(cell.connections - 1);
        if together <= alone {
            return Err(
                "the machine used less memory with all connections than with one: others gave theirs back"
                    .to_owned(),
            );
        }
    }
    Ok(())
}

/// What this process has run, all threads together.
fn own_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// Starts the generator, for so many seconds and connections.
fn start(generator: &Generator<'_>, seconds: f64, connections: u32) -> Result<Child, String> {
    let words = generator.command(seconds, connections);
    let mut command = generator.site.generator(&words, generator.plan.client.cpu);
    command.env("EF_NO_FAIL", "0");
    command.stdin(generator.site.leash()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().map_err(|error| format!("the generator could not be started: {error}"))
}

/// The processes that those of both sides are under.
fn both_sides(servers: &[Server<'_>], generator: Option<u32>) -> Vec<u32> {
    servers.iter().map(|server| server.guardian.id()).chain(generator).collect()
}

/// Of the machine, with a generator of one connection: what many more are compared with. Bytes.
fn memory_with_one(generator: &Generator<'_>) -> Result<u64, String> {
    let seconds = generator.plan.duration_s.min(1.0);
    let whole = Duration::from_secs_f64(generator.plan.warmup_s + seconds);
    memory::settle(&both_sides(generator.servers, None));
    let mut running = start(generator, seconds, 1)?;
    let started = Instant::now();
    let ours = both_sides(generator.servers, Some(running.id()));
    let used = wait_until(&mut running, started + whole.mul_f64(0.8), || memory::in_use(&ours));
    output_of(running, started + whole + LOAD_SLACK)?;
    used.ok_or_else(|| "the generator with one connection ended before its time".to_owned())
}

impl Trial {
    /// What the generator said, and what processes and cores spent meanwhile.
    fn take(
        &mut self,
        plan: &Plan,
        told: ToolReport,
        clocks: Option<(Clocks, Clocks)>,
    ) -> Result<(), String> {
        self.load = told.raw;
        self.value = told.value;
        self.work_per_s = if plan.measure().is_rate() { told.value } else { 0.0 };
        self.failed_requests = told.failed;
        self.latency_p50_us = told.latency_p50_us;
        self.latency_p99_us = told.latency_p99_us;
        self.remarks.extend(told.remarks);
        self.client_cpu_us_per_request = told.client_cpu_us.unwrap_or(0.0);
        self.generator_busy_percent = told.generator_busy.unwrap_or(0.0).min(1.0) * 100.0;
        if let Some((before, after)) = clocks {
            self.add_clocks(&before, &after);
            let wall_s = (after.client.when - before.client.when).as_secs_f64();
            let spent_s = after.client.by_processes.saturating_sub(before.client.by_processes).as_secs_f64();
            if told.generator_busy.is_none() {
                // It has no clock of its own: what it waits it sleeps.
                self.generator_busy_percent = (spent_s / wall_s).min(1.0) * 100.0;
            }
            if told.client_cpu_us.is_none() && self.work_per_s > 0.0 {
                self.client_cpu_us_per_request = spent_s * 1e6 / (self.work_per_s * wall_s).max(1.0);
            }
        }
        self.problems.extend(told.problems);
        match told.succeeded {
            0 if self.problems.is_empty() => {
                Err(format!("not one {} succeeded", plan.measure().described().each))
            }
            _ if self.value <= 0.0 && self.problems.is_empty() => {
                Err("the generator had no time in which to count: it stood still".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn add_clocks(&mut self, before: &Clocks, after: &Clocks) {
        let of = |side: fn(&Clocks) -> &Spent| Interval::between(side(before), side(after));
        let (server, client) = (of(|clocks| &clocks.server), of(|clocks| &clocks.client));
        if server.wall_s <= 0.0 || client.wall_s <= 0.0 || self.value <= 0.0 {
            return;
        }
        let work = self.work_per_s * server.wall_s;
        let busy_s = server.cores_s + if after.cores_differ { client.cores_s } else { 0.0 };
        if busy_s > 0.0 {
            let ours_s = server.processes_s + client.processes_s + client.receiving_s;
            self.conditions.taken_by_others = (1.0 - ours_s / busy_s).max(0.0);
        }
        self.server_cpu_us_per_request = if work > 0.0 { server.processes_s * 1e6 / work } else { 0.0 };
        let percent = |spent_s: f64, side: &Interval, cores: u32| {
            (spent_s / f64::from(cores.max(1)) / side.wall_s * 1000.0).round() / 10.0
        };
        self.server_core_busy_percent = percent(server.cores_s, &server, after.server_cores);
        self.server_core_softirq_percent = percent(server.softirq_s, &server, after.server_cores);
        self.client_core_busy_percent = percent(client.cores_s, &client, 1);
        self.client_core_softirq_percent = percent(client.softirq_s, &client, 1);
    }
}

/// What a side spent between two looks, seconds.
struct Interval {
    wall_s: f64,
    processes_s: f64,
    receiving_s: f64,
    cores_s: f64,
    softirq_s: f64,
}

impl Interval {
    fn between(before: &Spent, after: &Spent) -> Interval {
        let between = |of: fn(&Spent) -> Duration| of(after).saturating_sub(of(before)).as_secs_f64();
        Interval {
            wall_s: between(|its| its.when),
            processes_s: between(|its| its.by_processes),
            receiving_s: between(|its| its.receiving),
            cores_s: between(|its| its.by_cores.busy),
            softirq_s: between(|its| its.by_cores.softirq),
        }
    }
}

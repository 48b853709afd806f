//! The command line of `overfly load astf`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::compile::{Compiled, Source, compile};
use super::control::{Command, EXPECTED};
use super::counter::Counter;
use super::plan::Plan;
use super::report::{Counted, Probed, Report, Watched, counted, sum};
use super::run::{Running, Shared, Stage};
use super::settings::{Ends, Settings};
use super::watch::Watch;
use crate::arguments::{ReceiveArgs, count, cpus, number, ports, time};
use crate::control::{Control, ControlSocket};
use crate::error::Error;
use crate::link::Link;
use crate::output::interrupt::Interrupt;
use crate::output::{OutputArgs, print, print_report};

/// Runs the application flows of ASTF profiles, as their client side, their server side, or both.
#[derive(Debug, Clone, clap::Args)]
pub struct AstfArgs {
    /// The profiles (Python); several are one run
    #[arg(value_name = "PROFILE.py", required = true)]
    pub profiles: Vec<PathBuf>,
    /// Multiplies the rates of the profile
    #[arg(short = 'm', long, value_name = "N", default_value = "1", allow_hyphen_values = true)]
    pub multiplier: String,
    /// How long to begin flows: 10s, 500ms, 2m [default: until SIGINT, or all flows of templates with limits have ended]
    #[arg(short = 'd', long, value_name = "TIME", allow_hyphen_values = true)]
    pub duration: Option<String>,
    /// What the profiles' get_profile() is called with: -t size=1,loop=2 or -t "--size 1 --loop 2"
    #[arg(short = 't', long, value_name = "TUNABLES", allow_hyphen_values = true)]
    pub tunables: Option<String>,
    /// Tunnels: a file with get_topo()
    #[arg(long, value_name = "FILE")]
    pub topology: Option<PathBuf>,
    /// Which ends of the flows: both (joined in memory, without any privilege), client or server
    #[arg(long, value_name = "SIDE", default_value = "both")]
    pub side: String,
    /// What carries the frames of one side: xdp (an interface, needs root), memif:PATH or tap:NAME
    #[arg(long, value_name = "LINK", allow_hyphen_values = true)]
    pub link: Option<String>,
    /// The interface for --link xdp [default: the one that the route names]
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    pub interface: Option<String>,
    /// How frames come.
    #[command(flatten)]
    pub receive: ReceiveArgs,
    /// The stack's own address with --link memif or tap, and the length of its prefix [default: 10.77.0.2/24, of a server 10.77.0.1/24]
    #[arg(long, value_name = "IP/LENGTH", allow_hyphen_values = true)]
    pub address: Option<String>,
    /// The router on the way to the other side [default: whoever is at the other end of the link]
    #[arg(long, value_name = "IP", allow_hyphen_values = true)]
    pub gateway: Option<String>,
    /// Threads, each with its share of the client addresses [default: one for each of --cpus, or 1]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub threads: Option<String>,
    /// Pin thread after thread to these processors: 1 or 0,2-3
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub cpus: Option<String>,
    /// Flows of a thread and side at most, those that wind down included
    #[arg(long, value_name = "N", default_value = "2M", allow_hyphen_values = true)]
    pub flows: String,
    /// Local ports of each client address
    #[arg(long, value_name = "LOW-HIGH", default_value = "1024-65535", allow_hyphen_values = true)]
    pub ports: String,
    /// Largest IP packet of --side both [default: 1500, or what the profile's segments need]
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    pub mtu: Option<String>,
    /// How long flows may go on after -d before they are reset
    #[arg(long, value_name = "TIME", default_value = "10s", allow_hyphen_values = true)]
    pub drain: String,
    /// How long TIME-WAIT lasts [default: 1ms in memory, else 1s]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub time_wait: Option<String>,
    /// Take orders at this Unix socket: one JSON object a line (docs/astf.md)
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Echo requests a second from the first client to the first server, beside the flows: min, avg, max, jitter and lost
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub probe: Option<String>,
    /// The same seed draws the same random addresses and delays
    #[arg(long, value_name = "N", default_value = "1", allow_hyphen_values = true)]
    pub seed: String,
    /// The folder of the Python package overfly [default: beside the installation, or the checkout]
    #[arg(long, value_name = "FOLDER")]
    pub python: Option<PathBuf>,
    /// Where results go.
    #[command(flatten)]
    pub output: OutputArgs,
}

impl AstfArgs {
    /// The settings that these arguments ask for.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the first option that is wrong.
    pub fn settings(&self) -> Result<Settings, Error> {
        let ends = match self.side.as_str() {
            "both" => Ends::Both,
            "client" => Ends::Client,
            "server" => Ends::Server,
            other => return Err(Error::usage("--side", other, "both, client or server")),
        };
        let cpus = self.cpus.as_deref().map(cpus).transpose()?.unwrap_or_default();
        let threads = match &self.threads {
            Some(given) => number("--threads", given)?,
            None => cpus.len().max(1),
        };
        let time_wait = match &self.time_wait {
            Some(given) => time("--time-wait", given)?,
            None if ends == Ends::Both => Duration::from_millis(1),
            None => Duration::from_secs(1),
        };
        let flows = count("--flows", &self.flows)?;
        let link = self.link.as_deref().map(Link::parse).transpose()?;
        let settings = Settings {
            ends,
            receive_offload: self.receive.offload(link.as_ref())?,
            link,
            interface: self.interface.clone(),
            network: self.address.as_deref().map(str::parse).transpose()?,
            gateway: (self.gateway.as_deref())
                .map(|given| given.parse().map_err(|_| Error::usage("--gateway", given, "an IP address")))
                .transpose()?,
            multiplier: number("-m", &self.multiplier)?,
            duration: self.duration.as_deref().map(|given| time("-d", given)).transpose()?,
            drain: time("--drain", &self.drain)?,
            threads,
            cpus,
            flows: u32::try_from(flows).unwrap_or(u32::MAX),
            ports: ports(&self.ports)?,
            mtu: self.mtu.as_deref().map(|given| number("--mtu", given)).transpose()?,
            time_wait,
            control: self.control.clone(),
            probe_per_s: self.probe.as_deref().map(|given| number("--probe", given)).transpose()?,
            seed: number("--seed", &self.seed)?,
        };
        settings.check()?;
        Ok(settings)
    }
}

/// Runs what the arguments ask for and says how it went: 0 it ended as it should, 1 the machine cannot do it, 2 a wrong option
/// or profile.
#[must_use]
pub fn main_astf(args: &AstfArgs) -> ExitCode {
    match astf(args) {
        Ok(Some(done)) => Error::exit("overfly load astf", Ok(done)),
        Ok(None) => ExitCode::from(2),
        Err(error) => Error::exit("overfly load astf", Err(error)),
    }
}

/// `None`: the profile is wrong, as was said.
fn astf(args: &AstfArgs) -> Result<Option<bool>, Error> {
    let settings = args.settings()?;
    let source = Source {
        profiles: args.profiles.clone(),
        tunables: args.tunables.clone(),
        topology: args.topology.clone(),
        python: args.python.clone(),
    };
    let form = match compile(&source)? {
        Compiled::Form(form) => form,
        Compiled::Text(text) => {
            print(&text)?;
            return Ok(Some(true));
        }
        Compiled::Refused => return Ok(None),
    };
    let plan = Arc::new(Plan::new(&form)?);
    let report = run(&settings, &plan, &args.output)?;
    print_report(args.output.json, || report.to_json(), &report)?;
    Ok(Some(true))
}

/// Between two looks at what was counted.
const LOOK: Duration = Duration::from_millis(50);

/// Runs, takes orders, and shows how it goes.
fn run(settings: &Settings, plan: &Arc<Plan>, output: &OutputArgs) -> Result<Report, Error> {
    let control = settings.control.clone().map(Control::Unix);
    let mut control = control.as_ref().map(ControlSocket::open).transpose()?;
    let interrupt =
        Interrupt::new(output.tui).map_err(|error| Error::machine("watching for signals", error))?;
    let running = Running::start(settings, plan)?;
    let shared = running.shared.clone();
    let mut watch = Watch::new(output, settings, plan, &shared)?;
    let mut seen = Watched::default();
    while !running.is_over() {
        std::thread::sleep(LOOK);
        let elapsed = Duration::from_nanos(shared.now_ns());
        let totals = shared.totals();
        let active = totals.tallies.iter().map(|tallies| sum(tallies).active).sum();
        if active > seen.active_max {
            (seen.active_max, seen.memory_max) = (active, totals.memory);
        }
        if let Some(control) = &mut control {
            control.serve(EXPECTED, |command: Command| {
                command.refusal().map_or(Ok(()), Err)?;
                Ok(obey(command, &shared, elapsed, plan))
            });
        }
        let runs =
            shared.stage() == Stage::Runs && settings.duration.is_none_or(|duration| elapsed < duration);
        if runs {
            seen.ran = elapsed;
        }
        if watch.show(elapsed, &totals, shared.multiplier(), shared.is_paused())? || interrupt.came() {
            shared.tell(Stage::Drains);
        }
    }
    watch.end();
    let whole = Duration::from_nanos(shared.now_ns());
    if let Some(duration) = settings.duration.filter(|duration| *duration <= seen.ran + 2 * LOOK) {
        seen.ran = duration;
    }
    let home = running.finish()?;
    let (totals, latencies) = (shared.totals(), shared.latencies());
    Ok(Report::new(settings, plan, shared.multiplier(), whole, seen, (&totals, &latencies, home)))
}

/// How a run stands, for whoever asks over the control socket.
#[derive(Serialize)]
struct Standing {
    elapsed_s: f64,
    multiplier: f64,
    paused: bool,
    stage: &'static str,
    active: [u64; 2],
    flows: [u64; 2],
    #[serde(skip_serializing_if = "Option::is_none")]
    counters: Option<BTreeMap<&'static str, Counted>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    probes: Option<Vec<Probed>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<BTreeMap<String, BTreeMap<&'static str, Counted>>>,
}

/// Does what somebody asked for, and says how the run stands.
fn obey(command: Command, shared: &Shared, elapsed: Duration, plan: &Plan) -> Standing {
    if let Some(multiplier) = command.multiplier {
        shared.set_multiplier(multiplier);
    }
    if let Some(pause) = command.pause {
        shared.pause(pause);
    }
    if command.drain {
        shared.tell(Stage::Drains);
    }
    if command.end {
        shared.tell(Stage::Ends);
    }
    let totals = shared.totals();
    let seconds = elapsed.as_secs_f64();
    let sides = totals.tallies.each_ref().map(|tallies| sum(tallies));
    let (counters, groups) = if command.counters {
        let (counters, groups) = counted(&totals, plan, seconds);
        (Some(counters), Some(groups))
    } else {
        (None, None)
    };
    Standing {
        elapsed_s: seconds,
        multiplier: shared.multiplier(),
        paused: shared.is_paused(),
        stage: match shared.stage() {
            Stage::Runs => "runs",
            Stage::Drains => "drains",
            Stage::Ends => "ends",
        },
        active: sides.map(|tally| tally.active),
        flows: sides.map(|tally| tally.counts.at(Counter::flows_total)),
        counters,
        probes: command.counters.then(|| totals.probes.iter().map(Probed::new).collect()),
        groups,
    }
}

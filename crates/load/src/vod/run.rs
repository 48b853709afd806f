//! A run: threads that stream, and the ramp that tells them how many.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::control::{ControlSocket, Outcome};
use super::counts::Counts;
use super::kernel::KernelPlayers;
use super::player::{Player, Script};
use super::ramp::{Decision, Ended, Ramp};
use super::report::{Moment, Report};
use super::settings::Settings;
use super::shard::{Route, Shard};
use crate::crew::{Crew, Turn, Work};
use crate::descriptors;
use crate::error::Error;
use crate::http::Target;
use crate::link::sources::Sources;
use crate::link::{AnyStack, Link, memif, tap, xdp};
use crate::processors::check_cpus;

/// Between two looks at what was counted.
const LOOK: Duration = Duration::from_millis(10);
/// Between two moments of the report.
const MOMENT: Duration = Duration::from_secs(1);

/// Tells a run to end. Clones tell the same run.
#[derive(Debug, Clone, Default)]
pub struct Stop(pub Arc<AtomicBool>);

/// Streams until the ramp has its answer. `progress` is called once a second.
///
/// # Errors
/// [`Error::Usage`] for settings that make no sense, [`Error::Machine`] for what this machine cannot do. Streams that fail
/// are no errors: they are in the report.
pub fn run(settings: &Settings, stop: &Stop, mut progress: impl FnMut(&Moment)) -> Result<Report, Error> {
    stream(settings, stop, &mut progress)
}

/// Not generic, as in [`crate::http`]: its callers need no engine of their own.
fn stream(settings: &Settings, stop: &Stop, progress: &mut dyn FnMut(&Moment)) -> Result<Report, Error> {
    settings.check()?;
    check_cpus(&settings.cpus)?;
    let targets = settings.targets()?;
    let address = targets[0].resolve()?;
    // The engine knows no mapped addresses and no scopes.
    let server = SocketAddr::new(address.ip().to_canonical(), address.port());
    let control = settings.control.as_ref().map(ControlSocket::open).transpose()?;
    let wanted: Vec<Arc<AtomicU64>> = (0..settings.threads).map(|_| Arc::default()).collect();
    let sources = settings.addresses()?;
    let plan =
        Plan { settings, server, sources: sources.clone(), requests: requests(settings)?, wanted: &wanted };
    match &settings.link {
        Link::Kernel => {
            sources.as_ref().map_or(Ok(()), Sources::check_local)?;
            let spare = 4 * settings.threads + 64;
            match settings.ramp.streams {
                Some(streams) => descriptors::raise_limit("--streams", streams as usize, spare)?,
                None => drop(descriptors::most(spare)?),
            }
            // With a scope, where the address has one.
            let plan = Plan { server: address, ..plan };
            let works = plan.kernel_works()?;
            conduct(settings, works, &wanted, control, stop, progress)
        }
        Link::Memif(place) => {
            settings.network.check_reaches(address)?;
            let stacks = memif::open(&memif::Wanted {
                place,
                network: settings.network,
                threads: settings.threads,
                connections: settings.most_streams().div_ceil(settings.threads as u64) as usize,
                ports: settings.ports.clone(),
                sources: settings.sources,
            })?;
            conduct(settings, plan.stack_works(stacks), &wanted, control, stop, progress)
        }
        Link::Tap(name) => {
            settings.network.check_reaches(address)?;
            let purpose = tap::Purpose::Connect {
                servers: vec![address],
                ports: settings.ports.clone(),
                sources: settings.sources,
                connections: settings.most_streams().div_ceil(settings.threads as u64) as usize,
            };
            let stacks = tap::open(name, settings.network, settings.threads, &purpose)?;
            conduct(settings, plan.stack_works(stacks), &wanted, control, stop, progress)
        }
        Link::Xdp => {
            // The program stays until the last frame of the last thread is out.
            let (stacks, _attachment) = xdp::open(&xdp::Wanted {
                servers: &[address],
                url: &settings.url,
                interface: settings.interface.as_deref(),
                receive_offload: settings.receive_offload,
                threads: settings.threads,
                cpus: &settings.cpus,
                connections: settings.most_streams().div_ceil(settings.threads as u64) as usize,
                ports: settings.ports.clone(),
                sources: sources.as_ref(),
                protocols: &[overfly_steer::Protocol::Tcp],
                configure: &|config| config,
            })?;
            let works = plan.stack_works(stacks);
            conduct(settings, works, &wanted, control, stop, progress)
        }
    }
}

pub(super) fn requests(settings: &Settings) -> Result<Arc<[Box<[u8]>]>, Error> {
    let request = |target: Target| {
        crate::http::Settings::new(target.clone()).request(&target, false).into_boxed_slice()
    };
    Ok(settings.targets()?.into_iter().map(request).collect())
}

/// What the threads are made from.
struct Plan<'a> {
    settings: &'a Settings,
    server: SocketAddr,
    sources: Option<Sources>,
    requests: Arc<[Box<[u8]>]>,
    wanted: &'a [Arc<AtomicU64>],
}

impl Plan<'_> {
    fn player(&self, index: usize) -> Player {
        let settings = self.settings;
        Player::new(Script {
            shape: settings.shape(),
            tick_ns: settings.tick.as_nanos() as u64,
            requests: self.requests.clone(),
            attempts: settings.attempts,
            // Far apart: threads draw different numbers.
            seed: settings.seed.wrapping_add((index as u64) << 32),
        })
    }

    fn route(&self) -> Route {
        Route { server: self.server, sources: self.sources.clone(), window: self.settings.window }
    }

    fn kernel_works(&self) -> Result<Vec<Work<Counts>>, Error> {
        let work = |index: usize| {
            let carrier = KernelPlayers::new(self.player(index), self.route(), self.wanted[index].clone())?;
            Ok(Box::new(move |turn: &mut Turn<Counts>| carrier.run(turn)) as Work<Counts>)
        };
        (0..self.settings.threads).map(work).collect()
    }

    fn stack_works(&self, stacks: Vec<AnyStack>) -> Vec<Work<Counts>> {
        let work = |(index, stack): (usize, AnyStack)| {
            let shard = Shard::new(stack, self.player(index), self.route(), self.wanted[index].clone());
            Box::new(move |turn: &mut Turn<Counts>| Ok(shard.run(turn))) as Work<Counts>
        };
        stacks.into_iter().enumerate().map(work).collect()
    }
}

/// Opens streams as the ramp and the control socket say, until one of them says it is over.
fn conduct(
    settings: &Settings,
    works: Vec<Work<Counts>>,
    wanted: &[Arc<AtomicU64>],
    mut control: Option<ControlSocket>,
    stop: &Stop,
    progress: &mut dyn FnMut(&Moment),
) -> Result<Report, Error> {
    let crew = Crew::start("vod", works, &settings.cpus, settings.threads, None)?;
    let mut ramp = Ramp::new(settings.ramp.clone(), settings.drain_bps);
    let mut moments = Vec::new();
    let mut given = 0;
    let mut next = MOMENT;
    let ended = loop {
        std::thread::sleep(LOOK);
        let elapsed = crew.elapsed();
        let mut counts = Counts::default();
        crew.shown().for_each(|shown| counts.add(&shown));
        let mut told = stop.0.load(Ordering::Relaxed) || crew.is_over();
        if let Some(control) = &mut control {
            control.serve(|command| {
                let granted = ramp.grant(command.open);
                give(wanted, &mut given, granted);
                told |= command.stop;
                Outcome { granted, standing: counts.standing, sustained: ramp.sustained() }
            });
        }
        let decision =
            if told { Decision::End(Ended::OnRequest) } else { ramp.look(elapsed, &counts.standing) };
        let over = matches!(decision, Decision::End(_));
        if elapsed >= next || over {
            next = elapsed + MOMENT;
            let moment = moment(elapsed, &counts, &ramp, moments.last());
            progress(&moment);
            moments.push(moment);
        }
        match decision {
            Decision::Wait => {}
            Decision::Open(more) => give(wanted, &mut given, more),
            Decision::End(ended) => break ended,
        }
    };
    let duration_s = crew.elapsed().as_secs_f64();
    let outcomes = crew.stop()?;
    Ok(Report::new(settings, ended, ramp.sustained(), duration_s, moments, outcomes))
}

/// Deals out `more` streams, one thread after the other.
fn give(wanted: &[Arc<AtomicU64>], given: &mut u64, more: u64) {
    for _ in 0..more {
        wanted[(*given % wanted.len() as u64) as usize].fetch_add(1, Ordering::Relaxed);
        *given += 1;
    }
}

fn moment(elapsed: Duration, counts: &Counts, ramp: &Ramp, before: Option<&Moment>) -> Moment {
    let at_s = elapsed.as_secs_f64();
    let (from_s, bytes) = before.map_or((0.0, 0), |before| (before.at_s, before.standing.bytes));
    let more = counts.standing.bytes.saturating_sub(bytes) as f64;
    Moment {
        at_s,
        standing: counts.standing,
        rate_bps: more * 8.0 / (at_s - from_s).max(1e-3),
        approaching: ramp.is_approaching(),
    }
}

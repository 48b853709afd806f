//! A server's threads, and what they share.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use overfly_steer::Attachment;

use super::counts::Counts;
use super::fault::Dice;
use super::reply::Template;
use super::report::Report;
use super::request::HeadCache;
use super::session::Site;
use super::shard::Shard;
use super::{Settings, kernel};
use crate::descriptors;
use crate::error::Error;
use crate::link::{Link, Stack, Wire, xdp};
use crate::processors::{check_cpus, pin};
use crate::record::CpuTime;

/// How often a thread shows what it has counted.
const SHOW_EVERY_NS: u64 = 20_000_000;

/// What the threads of a server share.
struct Shared {
    epoch: Instant,
    /// When to stop, ns after the epoch.
    end_ns: u64,
    stop: AtomicBool,
    shown: Vec<Mutex<Counts>>,
}

/// One thread's share of it.
pub(crate) struct Turn {
    shared: Arc<Shared>,
    index: usize,
    next_show_ns: u64,
}

impl Turn {
    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.shared.epoch.elapsed().as_nanos() as u64
    }

    /// Once a loop: shows what was counted. False when the server is to end.
    #[inline]
    pub(crate) fn goes_on(&mut self, now_ns: u64, counts: &Counts) -> bool {
        if now_ns >= self.next_show_ns {
            self.next_show_ns = now_ns + SHOW_EVERY_NS;
            *self.shared.shown[self.index].lock().unwrap_or_else(PoisonError::into_inner) = *counts;
        }
        now_ns < self.shared.end_ns && !self.shared.stop.load(Ordering::Relaxed)
    }
}

/// What one thread brings home.
pub(crate) struct Outcome {
    pub(crate) counts: Counts,
    /// Counters of the stack and its link, by name.
    pub(crate) counters: BTreeMap<String, u64>,
}

/// How far a server has come.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Since the start.
    pub elapsed: Duration,
    /// What was served until now, or a moment ago.
    pub counts: Counts,
}

type Work = Box<dyn FnOnce(&mut Turn) -> Result<Outcome, Error> + Send>;

/// A server that runs. Dropping it stops it.
pub struct Server {
    settings: Settings,
    address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<(Outcome, CpuTime), Error>>>,
    /// The program stays until the last frame of the last thread is out.
    _attachment: Option<Attachment>,
}

impl Server {
    /// Starts to serve, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`Error::Usage`] for settings that make no sense, [`Error::Machine`] for what this machine cannot do.
    pub fn start(mut settings: Settings) -> Result<Server, Error> {
        settings.check()?;
        check_cpus(&settings.cpus)?;
        let (works, attachment) = match settings.link {
            Link::Kernel => (kernel_works(&mut settings)?, None),
            Link::Xdp => {
                let (works, attachment) = xdp_works(&mut settings)?;
                (works, Some(attachment))
            }
        };
        let duration_ns = settings.duration.map(|duration| u64::try_from(duration.as_nanos()));
        let shared = Arc::new(Shared {
            epoch: Instant::now(),
            end_ns: duration_ns.and_then(Result::ok).unwrap_or(u64::MAX),
            stop: AtomicBool::new(false),
            shown: works.iter().map(|_| Mutex::default()).collect(),
        });
        let mut server = Server {
            address: settings.listen,
            settings,
            shared,
            threads: Vec::new(),
            _attachment: attachment,
        };
        for (index, work) in works.into_iter().enumerate() {
            server.spawn(index, work)?;
        }
        Ok(server)
    }

    fn spawn(&mut self, index: usize, work: Work) -> Result<(), Error> {
        let mut turn = Turn { shared: self.shared.clone(), index, next_show_ns: 0 };
        // The thread for connections that come past the link may be anywhere.
        let cpus = if index < self.settings.threads { self.settings.cpus.clone() } else { Vec::new() };
        let body = move || {
            let before = CpuTime::of_this_thread();
            let outcome = pin(&cpus, index).and_then(|()| work(&mut turn));
            if outcome.is_err() {
                turn.shared.stop.store(true, Ordering::Relaxed);
            }
            Ok((outcome?, CpuTime::of_this_thread() - before))
        };
        let thread = std::thread::Builder::new().name(format!("serve-{index}")).spawn(body);
        self.threads.push(thread.map_err(|error| Error::machine("starting a server thread", error))?);
        Ok(())
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether it has ended by itself: its time was over, or something failed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// What was served until now.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let mut counts = Counts::default();
        for shown in &self.shared.shown {
            counts.add(&shown.lock().unwrap_or_else(PoisonError::into_inner));
        }
        Progress { elapsed: self.shared.epoch.elapsed(), counts }
    }

    /// Ends it: connections that are open are closed, and what was counted is added up.
    ///
    /// # Errors
    /// What a thread could not go on with.
    pub fn stop(mut self) -> Result<Report, Error> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let duration = self.shared.epoch.elapsed();
        let mut outcomes = Vec::new();
        for thread in self.threads.drain(..) {
            outcomes.push(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(Report::new(&self.settings, self.address, duration, outcomes))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn site(settings: &Settings, index: usize) -> Site {
    Site {
        chunked: settings.chunked,
        close: settings.close,
        template: Template::default(),
        cache: HeadCache::new(),
        dice: Dice::new(settings.faults, settings.seed.wrapping_add(index as u64)),
        counts: Counts::default(),
        now_ns: 0,
    }
}

fn timeout_ms(settings: &Settings) -> u32 {
    u32::try_from(settings.timeout.as_millis()).unwrap_or(u32::MAX)
}

fn kernel_works(settings: &mut Settings) -> Result<Vec<Work>, Error> {
    let spare = 4 * settings.threads + 64;
    match settings.connections {
        Some(connections) => descriptors::raise_limit("--connections", connections, spare)?,
        None => settings.connections = Some(descriptors::most(spare)?),
    }
    let mut works = Vec::new();
    for index in 0..settings.threads {
        let (listener, bound) = kernel::listen(settings.listen, settings.threads > 1)?;
        settings.listen = bound;
        works.push(kernel_work(settings, listener, index)?);
    }
    Ok(works)
}

fn kernel_work(settings: &Settings, listener: std::os::fd::OwnedFd, index: usize) -> Result<Work, Error> {
    let limit = settings.connections_each();
    let worker = kernel::Worker::new(listener, site(settings, index), limit, timeout_ms(settings))?;
    Ok(Box::new(move |turn| worker.run(turn)))
}

/// A stack a thread, and a thread for connections that come past the interface: over loopback, or another one.
fn xdp_works(settings: &mut Settings) -> Result<(Vec<Work>, Attachment), Error> {
    // The kernel arbitrates the port, and its listener is there before the first frame is ours.
    let (backing, bound) = kernel::listen(settings.listen, false)?;
    settings.listen = bound;
    let (stacks, attachment) = xdp::listen(&xdp::Listening {
        address: settings.listen,
        interface: settings.interface.as_deref(),
        threads: settings.threads,
        connections: settings.connections_each(),
    })?;
    let mut works = stack_works(settings, stacks)?;
    works.push(kernel_work(settings, backing, settings.threads)?);
    Ok((works, attachment))
}

fn stack_works<W: Wire + Send + 'static>(
    settings: &Settings,
    stacks: Vec<Stack<W>>,
) -> Result<Vec<Work>, Error> {
    let work = |(index, mut stack): (usize, Stack<W>)| {
        listen_at(&mut stack.engine, settings.listen, settings.connections_each())?;
        let shard = Shard::new(stack, site(settings, index), timeout_ms(settings));
        Ok(Box::new(move |turn: &mut Turn| Ok(shard.run(turn))) as Work)
    };
    stacks.into_iter().enumerate().map(work).collect()
}

/// `::` stands for all addresses of both families, as with kernel sockets.
fn listen_at(engine: &mut overfly_engine::Engine, address: SocketAddr, backlog: usize) -> Result<(), Error> {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    let all6 = address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let all4 = all6.then(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()));
    // The engine knows no mapped addresses and no scopes.
    let address = SocketAddr::new(address.ip().to_canonical(), address.port());
    for place in [Some(address), all4].into_iter().flatten() {
        engine
            .listen(place, backlog as u32)
            .map_err(|error| Error::machine(format!("listening at {place}"), error))?;
    }
    Ok(())
}

//! A server's threads, and how they come to their connections.

use std::net::SocketAddr;
use std::time::Duration;

use overfly_steer::Attachment;

use super::counts::Counts;
use super::fault::Dice;
use super::reply::Template;
use super::report::Report;
use super::request::HeadCache;
use super::session::Site;
use super::shard::Shard;
use super::{Settings, kernel};
use crate::crew::{self, Crew};
use crate::descriptors;
use crate::error::Error;
use crate::link::{AnyStack, Link, Network, memif, tap, xdp};
use crate::processors::check_cpus;

pub(crate) type Turn = crew::Turn<Counts>;
pub(crate) type Outcome = crew::Outcome<Counts>;
type Work = crew::Work<Counts>;

/// How far a server has come.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Since the start.
    pub elapsed: Duration,
    /// What was served until now, or a moment ago.
    pub counts: Counts,
}

/// A server that runs. Dropping it stops it.
pub struct Server {
    settings: Settings,
    address: SocketAddr,
    crew: Crew<Counts>,
    _provider: Provider,
}

/// What must outlive the threads.
enum Provider {
    None,
    /// The program stays until the last frame of the last thread is out.
    Xdp {
        _attachment: Box<Attachment>,
    },
    /// Accepts the peers.
    Memif {
        _acceptor: memif::Acceptor,
    },
}

impl Server {
    /// Starts to serve, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`Error::Usage`] for settings that make no sense, [`Error::Machine`] for what this machine cannot do.
    pub fn start(mut settings: Settings) -> Result<Server, Error> {
        settings.check()?;
        check_cpus(&settings.cpus)?;
        let (works, provider) = works(&mut settings)?;
        // The thread for connections that come past the link may be anywhere.
        let crew = Crew::start("serve", works, &settings.cpus, settings.threads, settings.duration)?;
        Ok(Server { address: settings.listen, settings, crew, _provider: provider })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether it has ended by itself: its time was over, or something failed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.crew.is_over()
    }

    /// What was served until now.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let mut counts = Counts::default();
        for shown in self.crew.shown() {
            counts.add(&shown);
        }
        Progress { elapsed: self.crew.elapsed(), counts }
    }

    /// Ends it: connections that are open are closed, and what was counted is added up.
    ///
    /// # Errors
    /// What a thread could not go on with.
    pub fn stop(self) -> Result<Report, Error> {
        let duration = self.crew.elapsed();
        let outcomes = self.crew.stop()?;
        Ok(Report::new(&self.settings, self.address, duration, outcomes))
    }
}

fn works(settings: &mut Settings) -> Result<(Vec<Work>, Provider), Error> {
    let network = Network { address: settings.listen.ip(), prefix_len: settings.prefix_len };
    let connections = settings.connections_each();
    match settings.link.clone() {
        Link::Kernel => Ok((kernel_works(settings)?, Provider::None)),
        Link::Xdp => {
            let (works, attachment) = xdp_works(settings)?;
            Ok((works, Provider::Xdp { _attachment: Box::new(attachment) }))
        }
        Link::Memif(place) => {
            let listening =
                memif::Listening { place: &place, network, threads: settings.threads, connections };
            let (stacks, acceptor) = memif::listen(&listening)?;
            Ok((stack_works(settings, stacks)?, Provider::Memif { _acceptor: acceptor }))
        }
        Link::Tap(name) => {
            let purpose = tap::Purpose::Listen { connections };
            let stacks = tap::open(&name, network, settings.threads, &purpose)?;
            Ok((stack_works(settings, stacks)?, Provider::None))
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
        places: &[(overfly_steer::Protocol::Tcp, settings.listen)],
        interface: settings.interface.as_deref(),
        threads: settings.threads,
        cpus: &settings.cpus,
        connections: settings.connections_each(),
        configure: &|config| config,
    })?;
    let mut works = stack_works(settings, stacks)?;
    works.push(kernel_work(settings, backing, settings.threads)?);
    Ok((works, attachment))
}

fn stack_works(settings: &Settings, stacks: Vec<AnyStack>) -> Result<Vec<Work>, Error> {
    let work = |(index, mut stack): (usize, AnyStack)| {
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

//! Stacks over memif: shared memory with a server, or with clients, on this host. No kernel knows their addresses, so the
//! stacks answer ARP and ping themselves.

mod listening;

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use overfly_engine::{Config, Prefix};
use overfly_link::memif::{Address, Counters, LinkState, MemifLink, Settings, connect};

pub(crate) use listening::{Acceptor, Listening, Port, accept_at, listen};

use super::alone::{config_of, engine};
use super::{AnyLink, AnyStack, Each, Gone, Network, Ports, Stack, Wire, each_of};
use crate::error::Error;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two tries to find another server.
const REDIAL_EVERY: Duration = Duration::from_millis(20);

/// What active opens over the link need.
pub(crate) struct Wanted<'a> {
    /// Where the server listens.
    pub(crate) place: &'a Address,
    /// The stacks' own address.
    pub(crate) network: Network,
    /// Each has a ring pair.
    pub(crate) threads: usize,
    /// Most connections of a thread.
    pub(crate) connections: usize,
    /// Local ports, for all threads.
    pub(crate) ports: RangeInclusive<u16>,
    /// Addresses that are the stacks' too.
    pub(crate) sources: Option<Prefix>,
}

/// A ring pair a thread: those of one connection where the server has so many, else of several.
pub(crate) fn dial(place: &Address, threads: usize) -> Result<Vec<Dialed>, Error> {
    let refused = |error: overfly_link::Error| Error::machine(format!("--link memif:{place}"), error);
    let mut links = Vec::new();
    while links.len() < threads {
        let settings = Settings { pairs: (threads - links.len()) as u16, ..Settings::default() };
        let connection = connect(place, &settings, PATIENCE).map_err(refused)?;
        links.extend(connection.open().map_err(refused)?);
    }
    Ok(links.into_iter().map(|link| Dialed::new(link, place)).collect())
}

/// One stack a thread, each with a ring pair of its own.
pub(crate) fn open(wanted: &Wanted<'_>) -> Result<Vec<AnyStack>, Error> {
    let links = dial(wanted.place, wanted.threads)?;
    let stack = |(index, wire): (usize, Dialed)| {
        let ports = Ports::of_shard(&wanted.ports, index, wanted.threads);
        // Those that wind down, or are in TIME-WAIT, need a control block too.
        let flows = (2 * wanted.connections + 65_536) as u32;
        let config = Config {
            mtu: wire.mtu(),
            max_flows: flows,
            max_time_wait: flows,
            own_prefixes: wanted.sources.into_iter().collect(),
            ..config_of(wanted.network, index, wire.offload())
        };
        Ok(Stack::new(engine(config)?, AnyLink::Dialed(wire), wanted.network.address, ports))
    };
    links.into_iter().enumerate().map(stack).collect()
}

/// A link that is made anew when its peer goes: another process may listen there.
pub(crate) struct Dialed {
    link: MemifLink,
    place: Address,
    redial: Option<Redial>,
    has_lost_peer: bool,
    /// The counters of links before this one.
    past: Counters,
    reconnections: u64,
}

impl Dialed {
    fn new(link: MemifLink, place: &Address) -> Dialed {
        Dialed {
            link,
            place: place.clone(),
            redial: None,
            has_lost_peer: false,
            past: Counters::default(),
            reconnections: 0,
        }
    }

    pub(crate) fn mtu(&self) -> u16 {
        self.link.mtu()
    }

    /// Whether the other end does what a card would: checksums, segments.
    pub(crate) fn offload(&self) -> bool {
        self.link.offload()
    }

    /// There is no peer: looks for another.
    #[cold]
    fn mend(&mut self) {
        let Some(redial) = &self.redial else {
            self.has_lost_peer = true;
            self.redial = Some(Redial::start(self.place.clone(), self.link.offload()));
            return;
        };
        if let Some(link) = redial.take() {
            self.redial = None;
            self.past += *self.link.counters();
            self.link = link;
            self.reconnections += 1;
        }
    }
}

/// A thread that tries to connect until it has, or nobody wants it any more.
struct Redial {
    answer: Arc<Mutex<Option<MemifLink>>>,
}

impl Redial {
    fn start(place: Address, offload: bool) -> Redial {
        let answer = Arc::new(Mutex::new(None));
        let wanted = Arc::downgrade(&answer);
        let body = move || {
            while wanted.strong_count() > 0 {
                let link = connect(&place, &Settings::default(), PATIENCE)
                    .and_then(|mut connection| connection.pairs.pop().map(MemifLink::open).transpose());
                match (link, wanted.upgrade()) {
                    // The stack has been made for one kind of peer.
                    (Ok(Some(link)), Some(answer)) if link.offload() == offload => {
                        *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(link);
                        return;
                    }
                    _ => std::thread::sleep(REDIAL_EVERY),
                }
            }
        };
        // Without a thread the peer stays away, which every connection will tell.
        let _ = std::thread::Builder::new().name("memif-redial".to_owned()).spawn(body);
        Redial { answer }
    }

    fn take(&self) -> Option<MemifLink> {
        self.answer.try_lock().ok()?.take()
    }
}

impl Wire for Dialed {
    #[inline]
    fn receive(&mut self, budget: usize, each: impl FnMut(&[u8])) -> usize {
        let count = self.link.receive(budget, each);
        if self.link.state() != LinkState::Up {
            self.mend();
        }
        count
    }

    #[inline]
    fn flush(&mut self) {
        self.link.flush();
    }

    #[inline]
    fn take_gone(&mut self) -> Option<Gone> {
        std::mem::take(&mut self.has_lost_peer).then_some(Gone::Everybody)
    }

    fn each_counter(&self, each: Each<'_>) {
        let mut all = self.past;
        all += *self.link.counters();
        each_of("link", all.named().chain([("reconnections", self.reconnections)]), each);
    }
}

overfly_wire::frames_of!(Dialed, link);

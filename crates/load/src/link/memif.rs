//! Stacks over memif: shared memory with a server, or with clients, on this host. No kernel knows their addresses, so the
//! stacks answer ARP and ping themselves.

mod listening;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use overfly_engine::{Config, Prefix};
use overfly_link::memif::{Address, MemifLink, Settings, connect};

pub(crate) use listening::{Acceptor, Listening, listen};

use super::alone::{config_of, engine};
use super::{Network, Ports, Stack, Wire, uptime_ns};
use crate::error::Error;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What active opens over the link need.
pub(crate) struct Wanted<'a> {
    /// Where the server listens.
    pub(crate) place: &'a Address,
    /// The stacks' own address.
    pub(crate) network: Network,
    /// One ring pair each.
    pub(crate) threads: usize,
    /// Most connections of a thread.
    pub(crate) connections: usize,
    /// Local ports, for all threads.
    pub(crate) ports: RangeInclusive<u16>,
    /// Addresses that are the stacks' too.
    pub(crate) sources: Option<Prefix>,
}

/// One stack a thread, each with a ring pair of its own.
pub(crate) fn open(wanted: &Wanted<'_>) -> Result<Vec<Stack<MemifLink>>, Error> {
    let refused =
        |error: overfly_link::Error| Error::machine(format!("--link memif:{}", wanted.place), error);
    let settings = Settings { pairs: wanted.threads as u16, ..Settings::default() };
    let connection = connect(wanted.place, &settings, PATIENCE).map_err(refused)?;
    let offered = connection.pairs.len();
    if offered < wanted.threads {
        return Err(Error::usage(
            "-t",
            wanted.threads,
            format!("at most {offered}: the server at memif:{} has no more ring pairs", wanted.place),
        ));
    }
    let links = connection.open().map_err(refused)?;
    let stack = |(index, wire): (usize, MemifLink)| {
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
        Ok(Stack {
            engine: engine(config)?,
            wire,
            local: wanted.network.address,
            ports,
            epoch_ns: uptime_ns(),
        })
    };
    links.into_iter().enumerate().map(stack).collect()
}

impl Wire for MemifLink {
    #[inline]
    fn receive(&mut self, budget: usize, each: impl FnMut(&[u8])) -> usize {
        MemifLink::receive(self, budget, each)
    }

    #[inline]
    fn flush(&mut self) {
        MemifLink::flush(self);
    }

    fn count(&self, counters: &mut BTreeMap<String, u64>) {
        for (name, count) in self.counters().named() {
            counters.insert(format!("link.{name}"), count);
        }
    }
}

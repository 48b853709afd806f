//! Stacks over a tap device, whose other end is this host's kernel.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use overfly_engine::{Config, Prefix};
use overfly_link::tap::TapLink;

use super::alone::{config_of, engine};
use super::{AnyLink, AnyStack, Network, Ports, Stack};
use crate::error::Error;

/// What the stacks are for.
pub(crate) enum Purpose {
    /// Active opens from local ports, for all threads.
    Connect {
        servers: Vec<SocketAddr>,
        ports: RangeInclusive<u16>,
        /// Addresses that are the stacks' too.
        sources: Option<Prefix>,
        connections: usize,
    },
    /// So many connections of each thread.
    Listen { connections: usize },
}

/// One stack a thread, each with a queue of its own. The engines do not listen yet.
pub(crate) fn open(
    name: &str,
    network: Network,
    threads: usize,
    purpose: &Purpose,
) -> Result<Vec<AnyStack>, Error> {
    let stack = |index| {
        let wire =
            TapLink::open(name).map_err(|error| Error::machine(format!("--link tap:{name}"), error))?;
        let (ports, sources, flows) = match purpose {
            Purpose::Connect { ports, sources, connections, .. } => {
                (Ports::of_shard(ports, index, threads), *sources, connections + 65_536)
            }
            Purpose::Listen { connections } => (Ports::none(), None, *connections),
        };
        let config = Config {
            mtu: wire.mtu(),
            // Those in TIME-WAIT have a place of their own.
            max_flows: 2 * flows as u32,
            max_time_wait: flows as u32,
            own_prefixes: sources.into_iter().collect(),
            ..config_of(network, 0, true)
        };
        let mut engine = engine(config)?;
        if let Purpose::Connect { servers, .. } = purpose {
            for server in servers {
                engine.set_neighbor(server.ip().to_canonical(), wire.peer_mac());
            }
        }
        let wire = AnyLink::Tap(Box::new(wire));
        Ok(Stack::new(engine, wire, network.address, ports))
    };
    (0..threads).map(stack).collect()
}

//! Next hops and their hardware addresses (RFC 826).

use core::net::Ipv4Addr;
use std::collections::BTreeMap;

use overfly_wire::MacAddr;

use crate::config::Config;

/// Addresses that are remembered at most: peers on the link choose how many there are.
const MAX_NEIGHBORS: usize = 65_536;

#[derive(Debug, Default)]
pub(crate) struct Neighbors {
    known: BTreeMap<Ipv4Addr, MacAddr>,
}

impl Neighbors {
    pub(crate) fn learn(&mut self, address: Ipv4Addr, mac: MacAddr) {
        if self.known.len() >= MAX_NEIGHBORS && !self.known.contains_key(&address) {
            self.known.pop_first();
        }
        self.known.insert(address, mac);
    }

    /// The hardware address of the next hop to `destination`: its own entry first, so that a caller who resolved the route
    /// itself can say so, then that of the host or gateway that the configuration names.
    pub(crate) fn find(&self, config: &Config, destination: Ipv4Addr) -> Option<MacAddr> {
        self.known.get(&destination).or_else(|| self.known.get(&next_hop(config, destination))).copied()
    }
}

/// `destination` itself on the link's prefix, else the gateway.
pub(crate) fn next_hop(config: &Config, destination: Ipv4Addr) -> Ipv4Addr {
    let mask = u32::MAX.checked_shl(32 - u32::from(config.prefix_len)).unwrap_or(0);
    let on_link = (destination.to_bits() ^ config.address.to_bits()) & mask == 0;
    match config.gateway {
        Some(gateway) if !on_link => gateway,
        _ => destination,
    }
}

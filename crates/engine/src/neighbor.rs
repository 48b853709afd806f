//! Next hops and their hardware addresses (RFC 826, RFC 4861).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::BTreeMap;

use overfly_wire::MacAddr;

use crate::config::Config;

#[derive(Debug, Default)]
pub(crate) struct Neighbors {
    known: BTreeMap<IpAddr, MacAddr>,
}

impl Neighbors {
    pub(crate) fn learn(&mut self, config: &Config, address: IpAddr, mac: MacAddr) {
        if self.known.len() >= config.max_neighbors as usize && !self.known.contains_key(&address) {
            // Any other than the gateways: strangers choose how many neighbours there seem to be.
            let is_gateway = |address: IpAddr| {
                config.gateway.is_some_and(|gateway| address == gateway)
                    || config.gateway6.is_some_and(|gateway| address == gateway)
            };
            if let Some(other) = self.known.keys().copied().find(|&known| !is_gateway(known)) {
                self.known.remove(&other);
            }
        }
        self.known.insert(address, mac);
    }

    /// The hardware address of the next hop to `destination`: its own entry first, so that a caller who resolved the route
    /// itself can say so, then that of the host or gateway that the configuration names.
    pub(crate) fn find(&self, config: &Config, destination: IpAddr) -> Option<MacAddr> {
        self.known.get(&destination).or_else(|| self.known.get(&next_hop(config, destination))).copied()
    }
}

/// `destination` itself on the link's prefix, else the gateway.
pub(crate) fn next_hop(config: &Config, destination: IpAddr) -> IpAddr {
    match destination {
        IpAddr::V4(destination) => IpAddr::V4(next_hop_v4(config, destination)),
        IpAddr::V6(destination) => IpAddr::V6(next_hop_v6(config, destination)),
    }
}

fn next_hop_v4(config: &Config, destination: Ipv4Addr) -> Ipv4Addr {
    let mask = u32::MAX.checked_shl(32 - u32::from(config.prefix_len)).unwrap_or(0);
    let on_link = (destination.to_bits() ^ config.address.to_bits()) & mask == 0;
    match config.gateway {
        Some(gateway) if !on_link => gateway,
        _ => destination,
    }
}

fn next_hop_v6(config: &Config, destination: Ipv6Addr) -> Ipv6Addr {
    let mask = u128::MAX.checked_shl(128 - u32::from(config.prefix6_len)).unwrap_or(0);
    let on_link = destination.is_unicast_link_local()
        || config.address6.is_some_and(|own| (destination.to_bits() ^ own.to_bits()) & mask == 0);
    match config.gateway6 {
        Some(gateway) if !on_link => gateway,
        _ => destination,
    }
}

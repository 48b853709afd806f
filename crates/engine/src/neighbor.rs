//! Next hops and their hardware addresses (RFC 826, RFC 4861).

use core::net::IpAddr;
use std::collections::BTreeMap;

use overfly_wire::MacAddr;

use crate::config::Config;
use crate::prefix::Prefix;

#[derive(Debug, Default)]
pub(crate) struct Neighbors {
    known: BTreeMap<IpAddr, MacAddr>,
}

impl Neighbors {
    /// Returns where it was, if it is elsewhere now.
    pub(crate) fn learn(&mut self, config: &Config, address: IpAddr, mac: MacAddr) -> Option<MacAddr> {
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
        self.known.insert(address, mac).filter(|&before| before != mac)
    }

    pub(crate) fn knows(&self, address: IpAddr) -> bool {
        self.known.contains_key(&address)
    }

    /// The hardware address of the next hop to `destination`: its own entry first, so that a caller who resolved the route
    /// itself can say so, then that of the host or gateway that the configuration names.
    pub(crate) fn find(&self, config: &Config, destination: IpAddr) -> Option<MacAddr> {
        self.known.get(&destination).or_else(|| self.known.get(&next_hop(config, destination))).copied()
    }
}

/// `destination` itself on the link's prefix, else the gateway.
pub(crate) fn next_hop(config: &Config, destination: IpAddr) -> IpAddr {
    let (own, len, gateway) = match destination {
        IpAddr::V4(_) => (Some(config.address.into()), config.prefix_len, config.gateway.map(IpAddr::V4)),
        IpAddr::V6(_) => {
            (config.address6.map(IpAddr::V6), config.prefix6_len, config.gateway6.map(IpAddr::V6))
        }
    };
    let on_link = is_link_local(destination)
        || own.is_some_and(|address| Prefix { address, len }.contains(destination));
    gateway.filter(|_| !on_link).unwrap_or(destination)
}

/// RFC 4291 section 2.5.6: never behind a router.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

//! Which stacks accept new connections at which address: what was asked for, and what the XDP program must be told.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use overfly_broker::{Cluster, Protocol};

use crate::error::Error;
use crate::program::Group;

/// Where somebody listens: a protocol, an address (perhaps all of a family: 0.0.0.0 or `::`) and a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BoundAddress {
    pub(crate) protocol: Protocol,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
}

impl BoundAddress {
    /// An IPv4-mapped address is the IPv4 address. Scope and flow label of an IPv6 address are not kept.
    pub(crate) fn new(protocol: Protocol, address: SocketAddr) -> BoundAddress {
        BoundAddress { protocol, address: address.ip().to_canonical(), port: address.port() }
    }

    /// As this one, at another address.
    fn at(self, address: IpAddr) -> BoundAddress {
        BoundAddress { address, ..self }
    }

    /// The same port at all addresses of this one's family.
    pub(crate) fn everywhere(self) -> BoundAddress {
        self.at(match self.address {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        })
    }
}

/// Where a listener's connections come to.
pub(crate) fn listening_places(protocol: Protocol, address: SocketAddr, v6only: bool) -> Vec<BoundAddress> {
    let mut places = vec![BoundAddress::new(protocol, address)];
    if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && !v6only {
        let ipv4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
        places.push(BoundAddress::new(protocol, ipv4));
    }
    places
}

/// The stacks behind one place that somebody listens at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Members {
    /// Those that accept, in the order they came.
    accepting: Vec<u16>,
    /// Those that no longer accept and may still have connections (TCP's; a datagram has none).
    former: BTreeSet<u16>,
    /// Of those that accept.
    cluster: Cluster,
}

/// Why a stack cannot listen at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Stacks that listen there.
    pub(crate) stacks: usize,
    /// They are of another cluster; otherwise there are as many as the cluster allows.
    pub(crate) other_cluster: bool,
}

impl Taken {
    /// What whoever asked for that address is told.
    pub(crate) fn at(self, address: SocketAddr) -> Error {
        Error::ListenerTaken { address, stacks: self.stacks, other_cluster: self.other_cluster }
    }
}

impl Members {
    fn are_none(&self) -> bool {
        self.accepting.is_empty() && self.former.is_empty()
    }
}

/// All listeners of an attachment.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    asked: BTreeMap<BoundAddress, Members>,
}

impl Groups {
    /// Whether the stack could begin to accept there.
    pub(crate) fn admits(&self, stack: u16, place: BoundAddress, cluster: &Cluster) -> Result<(), Taken> {
        let Some(members) = self.asked.get(&place) else { return Ok(()) };
        let stacks = members.accepting.len();
        if stacks == 0 || members.accepting.contains(&stack) {
            return Ok(());
        }
        let other_cluster = !members.cluster.is_of_one_name(cluster);
        let is_full = cluster.limit != 0 && stacks >= cluster.limit as usize;
        if other_cluster || is_full { Err(Taken { stacks, other_cluster }) } else { Ok(()) }
    }

    /// The stack accepts there from now on. False if it did already.
    pub(crate) fn listen(&mut self, stack: u16, place: BoundAddress, cluster: Cluster) -> bool {
        let members = self.asked.entry(place).or_default();
        if members.accepting.contains(&stack) {
            return false;
        }
        members.former.remove(&stack);
        members.accepting.push(stack);
        members.cluster = cluster;
        true
    }

    /// The stack accepts no more there; its connections stay its own.
    pub(crate) fn unlisten(&mut self, stack: u16, place: BoundAddress) {
        if let Some(members) = self.asked.get_mut(&place)
            && let Some(index) = members.accepting.iter().position(|&member| member == stack)
        {
            members.accepting.remove(index);
            if place.protocol == Protocol::Tcp {
                members.former.insert(stack);
            }
            if members.are_none() {
                self.asked.remove(&place);
            }
        }
    }

    /// A stack that accepts there: number `turn` of them, counted in a circle.
    pub(crate) fn accepting(&self, place: BoundAddress, turn: usize) -> Option<u16> {
        let accepting = &self.asked.get(&place)?.accepting;
        accepting.get(turn.checked_rem(accepting.len())?).copied()
    }

    /// Whether the stack accepts there.
    pub(crate) fn accepts(&self, stack: u16, place: BoundAddress) -> bool {
        self.asked.get(&place).is_some_and(|members| members.accepting.contains(&stack))
    }

    /// How many stacks accept there.
    pub(crate) fn accepting_stacks(&self, place: BoundAddress) -> usize {
        self.asked.get(&place).map_or(0, |members| members.accepting.len())
    }

    /// As if the stack had never listened there: it cannot have had a connection.
    pub(crate) fn withdraw(&mut self, stack: u16, place: BoundAddress) {
        if let Some(members) = self.asked.get_mut(&place) {
            members.accepting.retain(|&member| member != stack);
            if members.are_none() {
                self.asked.remove(&place);
            }
        }
    }

    /// The stack is gone with all its connections.
    pub(crate) fn remove(&mut self, stack: u16) {
        self.asked.retain(|_, members| {
            members.accepting.retain(|&member| member != stack);
            members.former.remove(&stack);
            !members.are_none()
        });
    }

    /// What the program must know, given the interface's addresses. A listener at an address takes precedence over one at
    /// all addresses, as in the kernel; connections of the latter's former stacks still find home.
    pub(crate) fn expand(&self, local: &[IpAddr]) -> BTreeMap<BoundAddress, Group> {
        let mut expanded = BTreeMap::new();
        for asked in self.asked.keys() {
            for &address in local.iter().filter(|address| address.is_ipv4() == asked.address.is_ipv4()) {
                let place = asked.at(address);
                let (here, everywhere) = (self.asked.get(&place), self.asked.get(&place.everywhere()));
                // A listener elsewhere says nothing about this address.
                let members = [here, everywhere]
                    .into_iter()
                    .flatten()
                    .find(|members| !members.accepting.is_empty())
                    .or(here)
                    .or(everywhere);
                if let Some(members) = members {
                    expanded.entry(place).or_insert_with(|| Group::new(&members.accepting));
                }
            }
        }
        expanded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    const C: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));
    const ALL_V4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    const ALL_V6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

    fn at(address: IpAddr) -> BoundAddress {
        BoundAddress { protocol: Protocol::Tcp, address, port: 80 }
    }

    #[test]
    fn a_listener_everywhere_covers_its_familys_addresses_except_where_a_closer_one_is() {
        let mut groups = Groups::default();
        assert!(groups.listen(1, at(ALL_V4), Cluster::default()));
        assert!(!groups.listen(1, at(ALL_V4), Cluster::default()));
        assert_eq!(groups.expand(&[A, B, C]), [(at(A), Group::new(&[1])), (at(B), Group::new(&[1]))].into());
        groups.listen(2, at(B), Cluster::default());
        assert_eq!(groups.expand(&[A, B, C]), [(at(A), Group::new(&[1])), (at(B), Group::new(&[2]))].into());
        groups.unlisten(2, at(B));
        assert_eq!(groups.expand(&[B]), [(at(B), Group::new(&[1]))].into());
        groups.listen(3, at(ALL_V6), Cluster::default());
        assert_eq!(groups.expand(&[B, C]), [(at(B), Group::new(&[1])), (at(C), Group::new(&[3]))].into());
        groups.remove(1);
        groups.remove(2);
        groups.remove(3);
        assert!(groups.expand(&[A, B, C]).is_empty());
    }

    #[test]
    fn protocols_have_their_own_groups() {
        let mut groups = Groups::default();
        let udp = BoundAddress { protocol: Protocol::Udp, ..at(A) };
        groups.listen(1, at(A), Cluster::default());
        groups.listen(2, udp, Cluster::default());
        assert_eq!(groups.expand(&[A]), [(at(A), Group::new(&[1])), (udp, Group::new(&[2]))].into());
        // Nothing remains of a UDP socket.
        groups.unlisten(2, udp);
        assert_eq!(groups.expand(&[A]), [(at(A), Group::new(&[1]))].into());
    }

    #[test]
    fn a_mapped_address_is_the_ipv4_address() {
        let mapped = BoundAddress::new(Protocol::Tcp, "[::ffff:10.0.0.1]:80".parse().unwrap());
        assert_eq!(mapped, at(A));
        let scoped = BoundAddress::new(Protocol::Tcp, "[fe80::1%3]:80".parse().unwrap());
        assert_eq!(scoped, at(C));
    }

    #[test]
    fn a_group_that_nobody_accepts_for_stays_while_connections_may_live() {
        let mut groups = Groups::default();
        groups.listen(1, at(A), Cluster::default());
        groups.listen(2, at(A), Cluster::default());
        assert_eq!(groups.expand(&[A])[&at(A)], Group::new(&[1, 2]));
        groups.unlisten(1, at(A));
        assert_eq!(groups.expand(&[A])[&at(A)], Group::new(&[2]));
        groups.unlisten(2, at(A));
        assert_eq!(groups.expand(&[A])[&at(A)], Group::new(&[]));
        groups.remove(1);
        assert_eq!(groups.expand(&[A])[&at(A)], Group::new(&[]));
        groups.remove(2);
        assert!(groups.expand(&[A]).is_empty());
    }

    #[test]
    fn a_cluster_shares_a_place_with_its_own_and_no_more_than_it_allows() {
        let mut groups = Groups::default();
        let (web, other) = (Cluster::new("web", 2), Cluster::new("other", 0));
        groups.listen(1, at(A), web);
        assert_eq!(groups.accepting_stacks(at(A)), 1);
        assert_eq!(groups.admits(2, at(A), &web), Ok(()));
        assert_eq!(groups.admits(2, at(A), &other), Err(Taken { stacks: 1, other_cluster: true }));
        assert_eq!(groups.admits(2, at(B), &other), Ok(()));
        groups.listen(2, at(A), web);
        assert_eq!(groups.admits(3, at(A), &web), Err(Taken { stacks: 2, other_cluster: false }));
        assert_eq!(groups.admits(2, at(A), &web), Ok(()), "it listens there already");
        groups.unlisten(1, at(A));
        assert_eq!(groups.admits(3, at(A), &web), Ok(()));
        groups.unlisten(2, at(A));
        assert_eq!(groups.admits(3, at(A), &other), Ok(()), "nobody is there any more");
    }
}

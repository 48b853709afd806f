//! The XDP program's maps of what the rules say (`bpf/firewall.bpf.h`).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr};

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{HashMap as BpfMap, MapData};

use super::span::Span;
use crate::error::Error;
use crate::groups::BoundAddress;
use crate::program::{FlowKey, ListenerKey, absent_is_fine, map_error, octets};

const NOBODY: u32 = 0;
const EVERYBODY: u32 = 1;
/// Prefixes of all policies together, less than the map holds: whoever has more is the kernel's.
const PREFIXES_MAX: usize = 1 << 19;

/// A policy's number and an address, as the map's keys have them.
type PeerKey = [u8; 20];

/// Peers of one family.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Peers {
    ipv4: bool,
    accepted: Span,
}

impl Peers {
    fn bits(&self) -> u32 {
        if self.ipv4 { 32 } else { 128 }
    }

    fn keys(&self, policy: u32) -> impl Iterator<Item = (Key<PeerKey>, u32)> + '_ {
        // Fewer prefixes say whom it does not let through, often: then all others are.
        let all = Span::all(self.bits());
        let rest = all.without(&self.accepted);
        let (listed, accepts) = if rest.ranges().len() < self.accepted.ranges().len() {
            (rest, 0)
        } else {
            (self.accepted.clone(), 1)
        };
        let whole = (accepts == 0).then_some((all, 1));
        whole.into_iter().chain([(listed, accepts)]).flat_map(move |(span, accepts)| {
            let prefixes: Vec<_> = span.prefixes(self.bits()).collect();
            prefixes.into_iter().map(move |(number, length)| (self.key(policy, number, length), accepts))
        })
    }

    fn key(&self, policy: u32, number: u128, length: u32) -> Key<PeerKey> {
        let address = if self.ipv4 {
            Ipv4Addr::from_bits(number as u32).into()
        } else {
            Ipv6Addr::from_bits(number).into()
        };
        let mut data = [0; 20];
        data[..4].copy_from_slice(&policy.to_ne_bytes());
        data[4..].copy_from_slice(&octets(address));
        Key::new(32 + (128 - self.bits()) + length, data)
    }
}

/// What the program has been told.
pub(crate) struct Verdicts {
    places: BpfMap<MapData, ListenerKey, u32>,
    peers: LpmTrie<MapData, PeerKey, u32>,
    refused: BpfMap<MapData, FlowKey, u32>,
    installed: BTreeMap<BoundAddress, u32>,
    policies: HashMap<Peers, (u32, usize)>,
    last_policy: u32,
    refusals: HashSet<FlowKey>,
}

impl Verdicts {
    pub(crate) fn new(
        places: BpfMap<MapData, ListenerKey, u32>,
        peers: LpmTrie<MapData, PeerKey, u32>,
        refused: BpfMap<MapData, FlowKey, u32>,
    ) -> Verdicts {
        Verdicts {
            places,
            peers,
            refused,
            installed: BTreeMap::new(),
            policies: HashMap::new(),
            last_policy: EVERYBODY,
            refusals: HashSet::new(),
        }
    }

    /// Lets exactly these peers through, place by place; each place goes from what was said of it to what is said now at once.
    pub(crate) fn set_places(&mut self, wanted: &BTreeMap<BoundAddress, Span>) -> Result<(), Error> {
        let mut result = Ok(());
        for (place, accepted) in wanted {
            let policy = match self.policy(place, accepted) {
                Ok(policy) => policy,
                Err(error) => {
                    result = Err(error);
                    NOBODY
                }
            };
            if self.installed.get(place) != Some(&policy) {
                self.places
                    .insert(ListenerKey::new(place), policy, 0)
                    .map_err(map_error("firewall_places"))?;
                self.installed.insert(*place, policy);
            }
        }
        let gone: Vec<BoundAddress> =
            self.installed.keys().filter(|place| !wanted.contains_key(place)).copied().collect();
        for place in gone {
            absent_is_fine(self.places.remove(&ListenerKey::new(&place)))
                .map_err(map_error("firewall_places"))?;
            self.installed.remove(&place);
        }
        let used: HashSet<u32> = self.installed.values().copied().collect();
        let unused: Vec<(Peers, u32)> = (self.policies.iter())
            .filter(|(_, (policy, _))| !used.contains(policy))
            .map(|(peers, (policy, _))| (peers.clone(), *policy))
            .collect();
        for (peers, policy) in unused {
            for (key, _) in peers.keys(policy) {
                absent_is_fine(self.peers.remove(&key)).map_err(map_error("firewall_peers"))?;
            }
            self.policies.remove(&peers);
        }
        result
    }

    /// The number of the policy that lets these through.
    fn policy(&mut self, place: &BoundAddress, accepted: &Span) -> Result<u32, Error> {
        let peers = Peers { ipv4: place.address.is_ipv4(), accepted: accepted.clone() };
        if accepted.is_empty() {
            return Ok(NOBODY);
        }
        if accepted.is_all(peers.bits()) {
            return Ok(EVERYBODY);
        }
        if let Some((policy, _)) = self.policies.get(&peers) {
            return Ok(*policy);
        }
        self.last_policy = self.last_policy.checked_add(1).unwrap_or(EVERYBODY + 1);
        let policy = self.last_policy;
        let prefixes: Vec<_> = peers.keys(policy).collect();
        let others: usize = self.policies.values().map(|(_, prefixes)| prefixes).sum();
        if prefixes.len() + others > PREFIXES_MAX {
            return Err(Error::Program(format!(
                "the firewall's rules tell more than {PREFIXES_MAX} networks apart: {} is the kernel's",
                std::net::SocketAddr::new(place.address, place.port)
            )));
        }
        let count = prefixes.len();
        for (key, accepts) in &prefixes {
            self.peers.insert(key, accepts, 0).map_err(map_error("firewall_peers"))?;
        }
        self.policies.insert(peers, (policy, count));
        Ok(policy)
    }

    /// Whether some place is not everybody's.
    pub(crate) fn judge(&self) -> bool {
        self.installed.values().any(|policy| *policy != EVERYBODY)
    }

    /// Drops what comes for exactly these connections.
    pub(crate) fn set_refused(&mut self, wanted: HashSet<FlowKey>) -> Result<(), Error> {
        for flow in self.refusals.difference(&wanted) {
            absent_is_fine(self.refused.remove(flow)).map_err(map_error("firewall_refused"))?;
        }
        for flow in wanted.difference(&self.refusals) {
            self.refused.insert(flow, 1, 0).map_err(map_error("firewall_refused"))?;
        }
        self.refusals = wanted;
        Ok(())
    }

    /// Whether some connection is refused.
    pub(crate) fn refuse(&self) -> bool {
        !self.refusals.is_empty()
    }
}

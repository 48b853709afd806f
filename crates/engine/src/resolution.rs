//! Next hops whose hardware addresses are being asked for (RFC 826, RFC 4861 section 7.2), and what waits for them: SYNs and
//! datagrams. Only where no kernel shares the link ([`crate::Config::alone`]).

use core::net::IpAddr;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use overfly_wire::{MacAddr, arp};

use crate::answers::StatelessReply;
use crate::engine::Engine;
use crate::flow::{Flags, Flow};
use crate::neighbor::next_hop;
use crate::owner::{Failure, Owner};
use crate::shared::{Shared, Verdict};
use crate::time::Instant;
use crate::udp::{Held, Unreachable};

/// How long each question waits for its answer (RFC 4861 section 10's RETRANS_TIMER; RFC 1122 section 2.3.2.1 allows one a
/// second).
const INTERVAL: Duration = Duration::from_secs(1);
/// Between two questions where known ones are: many flows may hear nothing.
const ASKS_AGAIN_EVERY: Duration = Duration::from_millis(10);

/// The next hops that are being asked for.
#[derive(Default)]
pub(crate) struct Resolution {
    waiting: BTreeMap<IpAddr, Waiting>,
    /// When each is to be asked for again: in order, as all wait equally long. One that was answered stays until then.
    due: VecDeque<(Instant, IpAddr)>,
    /// Not before this is one that is known asked for again.
    asks_again_at: Instant,
}

/// What waits for a next hop.
struct Waiting {
    asked: u8,
    ask_at: Instant,
    /// Our address that the questions come from.
    source: IpAddr,
    /// Flows in SYN-SENT ([`Flags::NO_NEXT_HOP`]).
    flows: BTreeSet<u32>,
    datagrams: VecDeque<Box<Held>>,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.flows.is_empty() && self.datagrams.is_empty()
    }
}

impl Resolution {
    /// When a next hop is to be asked for again, or given up.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.due.front().map(|&(at, _)| at)
    }

    /// Takes the next hop whose question has waited long enough.
    #[inline]
    fn take_due(&mut self, now: Instant) -> Option<IpAddr> {
        if self.due.is_empty() {
            return None;
        }
        self.drop_answered();
        self.due.pop_front_if(|&mut (at, _)| at <= now).map(|(_, next_hop)| next_hop)
    }

    /// Takes what was answered from the front of `due`.
    fn drop_answered(&mut self) {
        let waiting = &self.waiting;
        let is_answered = |&mut (at, next_hop): &mut (Instant, IpAddr)| {
            waiting.get(&next_hop).is_none_or(|waiting| waiting.ask_at != at)
        };
        while self.due.pop_front_if(is_answered).is_some() {}
    }
}

impl Shared {
    /// What waits for the next hop from `source` to `destination`, which is asked for if it was not yet. `None` if too many are.
    fn resolve(&mut self, now: Instant, source: IpAddr, destination: IpAddr) -> Option<&mut Waiting> {
        let next_hop = next_hop(&self.config, destination);
        if !self.resolution.waiting.contains_key(&next_hop) {
            if self.resolution.waiting.len() >= usize::from(self.config.max_unresolved) {
                return None;
            }
            let ask_at = now + INTERVAL;
            let waiting =
                Waiting { asked: 1, ask_at, source, flows: BTreeSet::new(), datagrams: VecDeque::new() };
            self.resolution.waiting.insert(next_hop, waiting);
            self.resolution.due.push_back((ask_at, next_hop));
            self.ask(source, next_hop);
        }
        self.resolution.waiting.get_mut(&next_hop)
    }

    /// The SYN of the flow at `index` waits for its next hop. False if too many others are being asked for.
    pub(crate) fn hold_flow(
        &mut self,
        now: Instant,
        index: u32,
        source: IpAddr,
        destination: IpAddr,
    ) -> bool {
        let waiting = self.resolve(now, source, destination);
        waiting.is_some_and(|waiting| waiting.flows.insert(index))
    }

    /// A flow waits for its next hop no more.
    pub(crate) fn release_from_resolution(&mut self, index: u32, flow: &mut Flow) {
        if flow.flags.take(Flags::NO_NEXT_HOP) {
            let next_hop = next_hop(&self.config, flow.tuple.remote.ip());
            if let Some(waiting) = self.resolution.waiting.get_mut(&next_hop) {
                waiting.flows.remove(&index);
            }
        }
    }

    /// A datagram waits for its next hop; the oldest gives way (RFC 1122 section 2.3.2.2: at least the latest is kept). False if
    /// too many others are being asked for.
    pub(crate) fn hold_datagram(&mut self, now: Instant, held: Held) -> bool {
        let limit = usize::from(self.config.held_datagrams);
        let tuple = *held.tuple();
        let Some(waiting) = self.resolve(now, tuple.local.ip(), tuple.remote.ip()) else {
            self.counters.drop_udp_unresolved += 1;
            return false;
        };
        let is_full = waiting.datagrams.len() >= limit;
        if is_full {
            waiting.datagrams.pop_front();
        }
        if limit > 0 {
            waiting.datagrams.push_back(Box::new(held));
        }
        self.counters.drop_udp_unresolved += u64::from(is_full);
        true
    }

    /// Asks whether the next hop to `destination` is still where it is known to be.
    pub(crate) fn ask_again(&mut self, now: Instant, source: IpAddr, destination: IpAddr) {
        let next_hop = next_hop(&self.config, destination);
        if self.neighbors.knows(next_hop) && self.resolution.asks_again_at <= now {
            self.resolution.asks_again_at = now + ASKS_AGAIN_EVERY;
            self.ask(source, next_hop);
        }
    }

    /// Asks for the hardware address of `next_hop`, from the address that wants to send (RFC 826, RFC 4861 section 7.2.2), or the
    /// interface's where that is not ours.
    fn ask(&mut self, source: IpAddr, next_hop: IpAddr) {
        let source = if self.config.is_own(source) { source } else { self.config.address_beside(source) };
        self.answer(match (source, next_hop) {
            (IpAddr::V4(sender_ip), IpAddr::V4(target_ip)) => StatelessReply::Arp {
                operation: arp::Operation::Request,
                sender_ip,
                target_mac: MacAddr([0; 6]),
                target_ip,
            },
            (IpAddr::V6(source), IpAddr::V6(target)) => StatelessReply::Solicit { source, target },
            _ => return,
        });
    }
}

impl Engine {
    /// `mac` is the next hop for `address`, which may be a destination or the gateway. Beside a kernel, whose word this is, the flows to a
    /// destination whose next hop was another one until now go on there.
    pub fn set_neighbor(&mut self, address: impl Into<IpAddr>, mac: MacAddr) {
        let address = address.into();
        let before = self.shared.neighbors.learn(&self.shared.config, address, mac);
        if let Some(before) = before.filter(|_| !self.shared.config.alone && !self.shared.config.loopback) {
            self.follow(address, before, mac);
        }
        self.udp.next_hops_changed();
        let next_hop = next_hop(&self.shared.config, address);
        let Some(mut waiting) = self.shared.resolution.waiting.remove(&next_hop) else { return };
        waiting.flows.retain(|&index| !self.release_flow(index));
        for mut held in core::mem::take(&mut waiting.datagrams) {
            match self.shared.neighbors.find(&self.shared.config, held.tuple().remote.ip()) {
                Some(mac) => {
                    held.set_next_hop(mac);
                    self.shared.answer(StatelessReply::Datagram(held));
                }
                None => waiting.datagrams.push_back(held),
            }
        }
        // Others may use the same gateway, which still did not answer.
        if !waiting.is_empty() {
            self.shared.resolution.waiting.insert(next_hop, waiting);
        }
        self.shared.resolution.drop_answered();
    }

    #[cold]
    fn follow(&mut self, destination: IpAddr, before: MacAddr, mac: MacAddr) {
        for index in self.flows.in_table() {
            let flow = self.flows.at_mut(index);
            if flow.next_hop == before && flow.tuple.remote.ip() == destination {
                flow.next_hop = mac;
            }
        }
    }

    /// Sends a flow's SYN if its next hop is known by now.
    fn release_flow(&mut self, index: u32) -> bool {
        let flow = self.flows.at_mut(index);
        let Some(mac) = self.shared.neighbors.find(&self.shared.config, flow.tuple.remote.ip()) else {
            return false;
        };
        flow.next_hop = mac;
        flow.flags.clear(Flags::NO_NEXT_HOP);
        flow.flags.set(Flags::SYN_WANTED);
        self.enqueue(index);
        true
    }

    /// Asks again for the next hops that did not answer, or gives them up (RFC 4861 section 7.2.2).
    pub(crate) fn advance_resolution<O: Owner>(&mut self, now: Instant, owner: &mut O) {
        while let Some(next_hop) = self.shared.resolution.take_due(now) {
            let most = self.shared.config.neighbor_solicitations;
            let Resolution { waiting, due, .. } = &mut self.shared.resolution;
            let Some(asked) = waiting.get_mut(&next_hop) else { continue };
            if asked.asked < most && !asked.is_empty() {
                asked.asked += 1;
                asked.ask_at = now + INTERVAL;
                due.push_back((asked.ask_at, next_hop));
                let source = asked.source;
                self.shared.ask(source, next_hop);
            } else if let Some(given_up) = waiting.remove(&next_hop) {
                for index in given_up.flows {
                    self.conclude(
                        now,
                        index,
                        Verdict::End(Some(Failure::Unreachable(Unreachable::Host))),
                        owner,
                    );
                }
                for held in given_up.datagrams {
                    self.datagram_unresolved(&held, owner);
                }
            }
        }
    }
}

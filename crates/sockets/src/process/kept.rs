//! Connections from shared local ports whose frames the broker has steered here, and goes on to steer here when they are over: the next
//! one between the same ends is opened without asking anybody.
//!
//! What was granted holds until the broker has heard of a change ([`overfly_link::Link::changes`]), and for a second: programs of control
//! groups that judge connect() announce themselves to nobody. A port is as good as shown to the broker: the process keeps the kernel's
//! socket that holds it from others.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use overfly_broker::Route;
use overfly_engine::Instant;

/// How long what the broker has granted holds.
const TRUST: Duration = Duration::from_secs(1);
/// The peer of a connection that is over may have it in TIME-WAIT, and takes another one only if its timestamps, of a millisecond, are
/// newer (RFC 6191 section 2).
const REST: Duration = Duration::from_millis(10);
/// How long ends are kept that no connection is between.
const IDLE: Duration = Duration::from_secs(2);
/// And how many.
const IDLE_MAX: usize = 4096;

/// Both ends of a connection: the local port, and the peer.
pub(super) type Ends = (u16, SocketAddr);

/// What the broker has granted.
#[derive(Clone, Copy, Debug)]
struct Grant {
    route: Route,
    /// As of which change ([`overfly_link::Link::changes`]).
    changes: u64,
    since: Instant,
    /// No connection is between them since then.
    idle: Option<Instant>,
}

/// What a connection between two ends needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Need {
    /// Nothing: this is its way.
    Nothing(Route),
    /// What was granted is to be given back, and asked for again.
    Anew,
    /// To be asked for.
    Asking,
}

/// All of a context.
#[derive(Debug, Default)]
pub(super) struct Kept {
    grants: HashMap<Ends, Grant>,
    /// Those without a connection, the oldest first; and some that have one again.
    idle: VecDeque<(Instant, Ends)>,
    /// The same, each peer's ports by themselves.
    by_peer: HashMap<SocketAddr, VecDeque<(Instant, u16)>>,
}

impl Kept {
    /// What a connection needs that begins now.
    pub(super) fn take_up(&mut self, now: Instant, ends: Ends, changes: u64) -> Need {
        let Some(grant) = self.grants.get_mut(&ends) else { return Need::Asking };
        if grant.idle.is_some() && grant.changes == changes && now < grant.since + TRUST {
            grant.idle = None;
            return Need::Nothing(grant.route);
        }
        self.grants.remove(&ends);
        Need::Anew
    }

    /// The broker has granted it, after `changes` had been read.
    pub(super) fn granted(&mut self, now: Instant, ends: Ends, changes: u64, route: Route) {
        self.grants.insert(ends, Grant { route, changes, since: now, idle: None });
    }

    fn idle_since(&self, ends: Ends) -> Option<Instant> {
        self.grants.get(&ends).and_then(|grant| grant.idle)
    }

    /// Whether the last connection between them has only just ended.
    pub(super) fn rests(&self, now: Instant, ends: Ends) -> bool {
        self.idle_since(ends).is_some_and(|since| now < since + REST)
    }

    /// The port whose connection to this peer is over for the longest, if for long enough; `at_once` whether or not.
    pub(super) fn next_port(&mut self, now: Instant, peer: SocketAddr, at_once: bool) -> Option<u16> {
        while let Some(&(since, port)) = self.by_peer.get(&peer).and_then(VecDeque::front) {
            let is_idle = self.idle_since((port, peer)) == Some(since);
            if is_idle && now < since + REST && !at_once {
                return None;
            }
            self.forget_oldest(peer);
            if is_idle {
                return Some(port);
            }
        }
        None
    }

    fn forget_oldest(&mut self, peer: SocketAddr) {
        let Entry::Occupied(mut ports) = self.by_peer.entry(peer) else { return };
        ports.get_mut().pop_front();
        if ports.get().is_empty() {
            ports.remove();
        }
    }

    /// A connection is over. True if its ends are kept.
    pub(super) fn ended(&mut self, now: Instant, ends: Ends) -> bool {
        let Some(grant) = self.grants.get_mut(&ends) else { return false };
        grant.idle = Some(now);
        self.idle.push_back((now, ends));
        self.by_peer.entry(ends.1).or_default().push_back((now, ends.0));
        true
    }

    /// The connection is the kernel's, or nobody's, or the ends cannot have another one soon.
    pub(super) fn forget(&mut self, ends: Ends) {
        self.grants.remove(&ends);
    }

    /// Whether there is a connection at a port.
    pub(super) fn is_used(&self, port: u16) -> bool {
        self.grants.iter().any(|(ends, grant)| ends.0 == port && grant.idle.is_none())
    }

    /// Nobody keeps the port for these any more: those that are to be given back.
    pub(super) fn release(&mut self, port: u16) -> Vec<Ends> {
        let is_one = |ends: &Ends, grant: &mut Grant| ends.0 == port && grant.idle.is_some();
        self.grants.extract_if(is_one).map(|(ends, _)| ends).collect()
    }

    /// What was kept for long enough, and is to be given back; `all` whether or not.
    pub(super) fn expired(&mut self, now: Instant, all: bool) -> Option<Ends> {
        while let Some(&(since, ends)) = self.idle.front() {
            let is_idle = self.idle_since(ends) == Some(since);
            if is_idle && now < since + IDLE && self.idle.len() <= IDLE_MAX && !all {
                return None;
            }
            self.idle.pop_front();
            let oldest = self.by_peer.get(&ends.1).and_then(VecDeque::front);
            if oldest.is_some_and(|&oldest| oldest == (since, ends.0)) {
                self.forget_oldest(ends.1);
            }
            if is_idle {
                self.grants.remove(&ends);
                return Some(ends);
            }
        }
        None
    }

    /// When something has been kept for long enough, at the earliest.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.idle.front().map(|&(since, _)| since + IDLE)
    }

    /// Of what is granted or kept.
    pub(super) fn ports(&self) -> impl Iterator<Item = u16> {
        self.grants.keys().map(|ends| ends.0)
    }
}

#[cfg(test)]
mod tests {
    use overfly_wire::MacAddr;

    use super::*;

    #[test]
    fn ends_are_kept_for_a_while_and_as_long_as_nothing_changes() {
        let ends = (40_000, "10.0.0.9:80".parse().unwrap());
        let route = Route { source: "10.0.0.1".parse().unwrap(), next_hop: MacAddr([2; 6]) };
        let at = |milliseconds: u64| Instant::from_micros(milliseconds * 1000);
        let mut kept = Kept::default();
        assert_eq!(kept.take_up(at(0), ends, 1), Need::Asking);
        assert!(!kept.ended(at(0), ends), "nobody has granted it");
        kept.granted(at(0), ends, 1, route);
        assert_eq!(kept.take_up(at(1), ends, 1), Need::Anew, "there is a connection");
        kept.granted(at(1), ends, 1, route);
        assert!(kept.ended(at(2), ends));
        assert!(kept.rests(at(11), ends) && !kept.rests(at(12), ends));
        assert_eq!(kept.take_up(at(12), ends, 1), Need::Nothing(route));
        assert!(kept.ended(at(20), ends));
        assert_eq!(kept.expired(at(2_010), false), None, "the first end is none any more");
        assert_eq!(kept.take_up(at(1_001), ends, 1), Need::Anew, "it is a second old");
        kept.granted(at(1_001), ends, 1, route);
        assert!(kept.ended(at(1_002), ends));
        assert_eq!(kept.take_up(at(1_020), ends, 2), Need::Anew, "something has changed");
        kept.granted(at(1_020), ends, 2, route);
        assert!(kept.ended(at(1_030), ends));
        assert_eq!(kept.expired(at(3_029), false), None);
        assert_eq!(kept.expired(at(3_030), false), Some(ends));
        assert_eq!(kept.expired(at(3_030), false), None);
        assert_eq!(kept.take_up(at(3_030), ends, 2), Need::Asking);
        kept.granted(at(3_030), ends, 2, route);
        kept.forget(ends);
        assert!(!kept.ended(at(3_031), ends));
    }

    #[test]
    fn a_port_that_no_connection_has_is_released() {
        let route = Route { source: "10.0.0.1".parse().unwrap(), next_hop: MacAddr([2; 6]) };
        let now = Instant::from_micros(0);
        let mut kept = Kept::default();
        let [one, other] = ["10.0.0.9:80", "10.0.0.9:81"].map(|peer| (40_000, peer.parse().unwrap()));
        for ends in [one, other, (40_001, one.1)] {
            kept.granted(now, ends, 1, route);
        }
        assert!(kept.ended(now, one));
        assert!(kept.is_used(40_000), "by the other one");
        assert!(kept.ended(now, other));
        assert!(!kept.is_used(40_000) && kept.is_used(40_001));
        let mut released = kept.release(40_000);
        released.sort_unstable();
        assert_eq!((released, kept.release(40_001)), (vec![one, other], Vec::new()));
        assert_eq!(kept.take_up(now, one, 1), Need::Asking);
    }

    #[test]
    fn no_more_are_kept_than_there_is_room_for() {
        let route = Route { source: "10.0.0.1".parse().unwrap(), next_hop: MacAddr([2; 6]) };
        let now = Instant::from_micros(0);
        let mut kept = Kept::default();
        let peer = "10.0.0.9:80".parse().unwrap();
        for port in 0..2 * IDLE_MAX as u16 {
            kept.granted(now, (port, peer), 1, route);
            assert!(kept.ended(now, (port, peer)));
        }
        let expired = std::iter::from_fn(|| kept.expired(now, false)).count();
        assert_eq!((expired, kept.grants.len(), kept.idle.len()), (IDLE_MAX, IDLE_MAX, IDLE_MAX));
        assert_eq!(kept.by_peer[&peer].len(), IDLE_MAX);
        let all = std::iter::from_fn(|| kept.expired(now, true)).count();
        assert_eq!((all, kept.ports().count(), kept.by_peer.len()), (IDLE_MAX, 0, 0));
    }

    #[test]
    fn the_port_that_has_rested_longest_is_next() {
        let route = Route { source: "10.0.0.1".parse().unwrap(), next_hop: MacAddr([2; 6]) };
        let [peer, other] = ["10.0.0.9:80", "10.0.0.8:80"].map(|peer| peer.parse().unwrap());
        let at = |milliseconds: u64| Instant::from_micros(milliseconds * 1000);
        let mut kept = Kept::default();
        assert_eq!(kept.next_port(at(0), peer, true), None);
        for (port, peer, ended) in [(3, peer, 0), (1, other, 1), (2, peer, 2), (4, peer, 3)] {
            kept.granted(at(0), (port, peer), 1, route);
            assert!(kept.ended(at(ended), (port, peer)));
        }
        assert_eq!(kept.next_port(at(9), peer, false), None, "they rest");
        assert_eq!(kept.next_port(at(9), peer, true), Some(3));
        assert_eq!(kept.take_up(at(9), (3, peer), 1), Need::Nothing(route));
        assert_eq!(kept.take_up(at(9), (2, peer), 1), Need::Nothing(route), "somebody else has found it");
        assert_eq!(kept.next_port(at(13), peer, false), Some(4));
        assert_eq!(kept.next_port(at(13), peer, false), None);
        assert_eq!(kept.next_port(at(13), other, false), Some(1));
        assert_eq!(kept.by_peer.len(), 0);
    }
}

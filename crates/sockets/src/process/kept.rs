//! Connections from shared local ports whose frames the broker has steered here, and goes on to steer here when they are over: the next
//! one between the same ends is opened without asking anybody.
//!
//! What was granted holds until the broker has heard of a change ([`overfly_link::Link::changes`]), and for ten seconds: whether a program of
//! a control group judges connect() it looks each second. A port is as good as shown to the broker: the process keeps the kernel's socket that
//! holds it from others.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::{BTreeSet, HashMap};

use overfly_broker::Route;
use overfly_engine::Instant;

use crate::stack::{TIME_WAIT, TIME_WAIT_LEAST};

/// How long what the broker has granted holds.
const TRUST: Duration = Duration::from_secs(10);
/// The peer of a connection that is over may have it in TIME-WAIT, and takes another one only if its timestamps, of a millisecond, are
/// newer (RFC 6191 section 2).
const REST: Duration = Duration::from_millis(10);
/// The engine's clock has ticks.
const CLOCK: Duration = Duration::from_millis(50);
/// How long ends are kept that could have a connection and have none.
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
    /// No connection is between them.
    idle: Option<Idle>,
}

/// Of a connection that is over.
#[derive(Clone, Copy, Debug)]
struct Idle {
    /// When there should be another one at the earliest.
    ready: Instant,
    /// When there can be one, if there must.
    possible: Instant,
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
    /// Those without a connection, by when they are ready.
    idle: BTreeSet<(Instant, Ends)>,
    /// The same, each peer's ports by themselves.
    by_peer: HashMap<SocketAddr, BTreeSet<(Instant, u16)>>,
}

impl Kept {
    /// What a connection needs that begins now.
    pub(super) fn take_up(&mut self, now: Instant, ends: Ends, changes: u64) -> Need {
        let Some(grant) = self.remove(ends) else { return Need::Asking };
        if grant.idle.is_none() || grant.changes != changes || now >= grant.since + TRUST {
            return Need::Anew;
        }
        self.grants.insert(ends, Grant { idle: None, ..grant });
        Need::Nothing(grant.route)
    }

    /// The broker has granted it, after `changes` had been read.
    pub(super) fn granted(&mut self, now: Instant, ends: Ends, changes: u64, route: Route) {
        self.forget(ends);
        self.grants.insert(ends, Grant { route, changes, since: now, idle: None });
    }

    /// Whether the last connection between them has only just ended.
    pub(super) fn rests(&self, now: Instant, ends: Ends) -> bool {
        self.grants.get(&ends).and_then(|grant| grant.idle).is_some_and(|idle| now < idle.ready)
    }

    /// The ports that are ready for a connection to this peer, the one that is for the longest first; `must`: and those that could have one.
    pub(super) fn next_ports(&self, now: Instant, peer: SocketAddr, must: bool) -> impl Iterator<Item = u16> {
        let ports = self.by_peer.get(&peer).into_iter().flatten();
        let possible = move |port| {
            let idle = self.grants.get(&(port, peer)).and_then(|grant| grant.idle);
            must && idle.is_some_and(|idle| idle.possible <= now)
        };
        // Who is ready later is possible later, too.
        ports.take_while(move |&&(ready, port)| ready <= now || possible(port)).map(|&(_, port)| port)
    }

    /// A connection is over; `waits`: and in TIME-WAIT. True if its ends are kept.
    pub(super) fn ended(&mut self, now: Instant, ends: Ends, waits: bool) -> bool {
        let Some(grant) = self.remove(ends) else { return false };
        let (ready, possible) =
            if waits { (TIME_WAIT + CLOCK, TIME_WAIT_LEAST) } else { (REST, Duration::ZERO) };
        let (ready, possible) = (now + ready, now + possible);
        self.grants.insert(ends, Grant { idle: Some(Idle { ready, possible }), ..grant });
        self.idle.insert((ready, ends));
        self.by_peer.entry(ends.1).or_default().insert((ready, ends.0));
        true
    }

    /// The connection is the kernel's, or nobody's, or the ends cannot have another one soon.
    pub(super) fn forget(&mut self, ends: Ends) {
        let _ = self.remove(ends);
    }

    fn remove(&mut self, ends: Ends) -> Option<Grant> {
        let grant = self.grants.remove(&ends)?;
        if let Some(Idle { ready, .. }) = grant.idle {
            self.idle.remove(&(ready, ends));
            if let Some(ports) = self.by_peer.get_mut(&ends.1) {
                ports.remove(&(ready, ends.0));
                if ports.is_empty() {
                    self.by_peer.remove(&ends.1);
                }
            }
        }
        Some(grant)
    }

    /// Whether there is a connection at a port.
    pub(super) fn is_used(&self, port: u16) -> bool {
        self.grants.iter().any(|(ends, grant)| ends.0 == port && grant.idle.is_none())
    }

    /// Nobody keeps the port for these any more: those that are to be given back.
    pub(super) fn release(&mut self, port: u16) -> Vec<Ends> {
        let released: Vec<Ends> =
            self.idle.iter().map(|&(_, ends)| ends).filter(|ends| ends.0 == port).collect();
        for &ends in &released {
            self.forget(ends);
        }
        released
    }

    /// What was kept for long enough, and is to be given back; `all` whether or not.
    pub(super) fn expired(&mut self, now: Instant, all: bool) -> Option<Ends> {
        let &(ready, ends) = self.idle.first()?;
        if now < ready + IDLE && self.idle.len() <= IDLE_MAX && !all {
            return None;
        }
        self.forget(ends);
        Some(ends)
    }

    /// When something has been kept for long enough, at the earliest.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.idle.first().map(|&(ready, _)| ready + IDLE)
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
        assert!(!kept.ended(at(0), ends, false), "nobody has granted it");
        kept.granted(at(0), ends, 1, route);
        assert_eq!(kept.take_up(at(1), ends, 1), Need::Anew, "there is a connection");
        kept.granted(at(1), ends, 1, route);
        assert!(kept.ended(at(2), ends, false));
        assert!(kept.rests(at(11), ends) && !kept.rests(at(12), ends));
        assert_eq!(kept.take_up(at(12), ends, 1), Need::Nothing(route));
        assert!(kept.ended(at(20), ends, false));
        assert_eq!(kept.expired(at(2_010), false), None, "the first end is none any more");
        assert_eq!(kept.take_up(at(1_001), ends, 1), Need::Nothing(route));
        assert!(kept.ended(at(1_002), ends, false));
        assert_eq!(kept.take_up(at(1_020), ends, 2), Need::Anew, "something has changed");
        kept.granted(at(1_020), ends, 2, route);
        assert!(kept.ended(at(1_030), ends, false));
        assert_eq!(kept.expired(at(3_039), false), None);
        assert_eq!(kept.expired(at(3_040), false), Some(ends));
        assert_eq!(kept.expired(at(3_040), false), None);
        assert_eq!(kept.take_up(at(3_040), ends, 2), Need::Asking);
        kept.granted(at(3_040), ends, 2, route);
        assert!(kept.ended(at(13_039), ends, false));
        assert_eq!(kept.take_up(at(13_049), ends, 2), Need::Anew, "it is ten seconds old");
        kept.granted(at(13_049), ends, 2, route);
        kept.forget(ends);
        assert!(!kept.ended(at(13_050), ends, false));
        assert!(kept.idle.is_empty() && kept.by_peer.is_empty());
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
        assert!(kept.ended(now, one, false));
        assert!(kept.is_used(40_000), "by the other one");
        assert!(kept.ended(now, other, false));
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
            assert!(kept.ended(now, (port, peer), false));
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
        let next =
            |kept: &Kept, milliseconds, peer, must| kept.next_ports(at(milliseconds), peer, must).next();
        let mut kept = Kept::default();
        assert_eq!(next(&kept, 0, peer, true), None);
        for (port, peer, ended) in [(3, peer, 0), (1, other, 1), (2, peer, 2), (4, peer, 3)] {
            kept.granted(at(0), (port, peer), 1, route);
            assert!(kept.ended(at(ended), (port, peer), false));
        }
        assert_eq!(next(&kept, 9, peer, false), None, "they rest");
        assert_eq!(next(&kept, 9, peer, true), Some(3));
        assert_eq!(
            kept.next_ports(at(12), peer, false).collect::<Vec<_>>(),
            [3, 2],
            "the first may be somebody's"
        );
        assert_eq!(kept.take_up(at(9), (3, peer), 1), Need::Nothing(route));
        assert_eq!(kept.take_up(at(9), (2, peer), 1), Need::Nothing(route), "somebody else has found it");
        assert_eq!(next(&kept, 13, peer, false), Some(4));
        assert_eq!(kept.take_up(at(13), (4, peer), 1), Need::Nothing(route));
        assert_eq!(next(&kept, 13, peer, true), None);
        assert_eq!(next(&kept, 13, other, false), Some(1));
        // In TIME-WAIT.
        assert!(kept.ended(at(20), (4, peer), true) && kept.ended(at(30), (2, peer), false));
        assert_eq!(next(&kept, 31, peer, true), Some(2));
        assert_eq!(kept.take_up(at(31), (2, peer), 1), Need::Nothing(route));
        assert_eq!(next(&kept, 69, peer, true), None, "there cannot be another one yet");
        assert_eq!((next(&kept, 70, peer, false), next(&kept, 70, peer, true)), (None, Some(4)));
        assert_eq!((next(&kept, 1_069, peer, false), next(&kept, 1_070, peer, false)), (None, Some(4)));
        assert_eq!(kept.next_expiry(), Some(at(2_011)), "the other peer's");
        assert_eq!(kept.expired(at(2_011), false), Some((1, other)));
        assert_eq!(kept.next_expiry(), Some(at(3_070)));
    }
}

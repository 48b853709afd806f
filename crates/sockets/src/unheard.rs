//! Peers of which nothing is heard: they may be behind another next hop by now, as the kernel finds out.

use core::net::IpAddr;
use core::time::Duration;

use overfly_engine::Instant;

use crate::socket::Side;

/// Peers that are looked for in a second at most. Each costs a question to the broker, which a network that loses much must not make too
/// many of; who is left out is noted again when its next timer runs out.
const LOOKS_MAX: usize = 16;
const WHILE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Unheard {
    peers: Vec<IpAddr>,
    /// When the first of the latest looks was.
    since: Option<Instant>,
    looks: usize,
}

impl Unheard {
    pub(crate) const fn new() -> Self {
        Self { peers: Vec::new(), since: None, looks: 0 }
    }

    pub(crate) fn note(&mut self, side: Side, remote: IpAddr) {
        if side == Side::Network && self.peers.len() < LOOKS_MAX && !self.peers.contains(&remote) {
            self.peers.push(remote);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    pub(crate) fn forget(&mut self) {
        self.peers.clear();
    }

    /// Those that may be looked for now.
    pub(crate) fn take(&mut self, now: Instant) -> Vec<IpAddr> {
        if self.since.is_none_or(|since| now - since >= WHILE) {
            (self.since, self.looks) = (Some(now), 0);
        }
        let mut peers = core::mem::take(&mut self.peers);
        peers.truncate(LOOKS_MAX - self.looks);
        self.looks += peers.len();
        peers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_looked_for_in_a_second_and_no_more() {
        let peer = |number: u8| IpAddr::from([10, 0, 0, number]);
        let at = |ms: u64| Instant::from_micros(ms * 1000);
        let mut unheard = Unheard::new();
        for number in [1, 2, 1] {
            unheard.note(Side::Network, peer(number));
        }
        unheard.note(Side::Loopback, peer(3));
        assert_eq!(unheard.take(at(10)), [peer(1), peer(2)]);
        assert!(unheard.take(at(20)).is_empty());
        (0..100).for_each(|number| unheard.note(Side::Network, peer(number)));
        assert_eq!(unheard.take(at(30)).len(), LOOKS_MAX - 2);
        unheard.note(Side::Network, peer(1));
        assert!(unheard.take(at(1009)).is_empty());
        unheard.note(Side::Network, peer(1));
        assert_eq!(unheard.take(at(1010)), [peer(1)]);
        unheard.note(Side::Network, peer(1));
        unheard.forget();
        assert!(unheard.take(at(5000)).is_empty());
    }
}

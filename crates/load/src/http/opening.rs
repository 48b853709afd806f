//! Which connections are to be begun, and when: the first ones not all at once, failed ones not at once again.

use std::collections::VecDeque;

/// How long a connection that could not be made waits before it is tried again.
const RETRY_NS: u64 = 10_000_000;
/// At most this many of a thread's first connections are begun at once: a listener's backlog is a few hundred, and a SYN that
/// is dropped costs a second.
const OPENING_AT_ONCE: usize = 256;
/// But so many are begun every so often in any case: with a new connection for each request, those of earlier ones may be
/// under way all the time.
const OPENING_ANYWAY: usize = 16;
const OPENING_EVERY_NS: u64 = 1_000_000;

/// The connections of a thread that are wanted and not there.
#[derive(Debug)]
pub(super) struct Opening {
    /// By server: first connections that have not been begun.
    left: Vec<usize>,
    /// By server: connections to be begun now; those that wait for a request, since when.
    vacant: Vec<usize>,
    vacant_since_ns: Vec<VecDeque<u64>>,
    /// When to try again for which server, soonest first.
    retries: VecDeque<(u64, usize)>,
    connecting: usize,
    /// First connections, and how many of any have been made or have failed.
    first: usize,
    settled: usize,
    /// A connection is begun when a request is due, not before.
    on_demand: bool,
    next_ns: u64,
}

impl Opening {
    /// `shares`: connections by server.
    pub(super) fn new(shares: Vec<usize>, on_demand: bool) -> Opening {
        let none = vec![0; shares.len()];
        let waiting = |share: &usize| if on_demand { vec![0; *share].into() } else { VecDeque::new() };
        let vacant_since_ns = shares.iter().map(waiting).collect();
        let left = if on_demand { none.clone() } else { shares };
        Opening {
            first: left.iter().sum(),
            left,
            vacant: none,
            vacant_since_ns,
            retries: VecDeque::new(),
            connecting: 0,
            settled: 0,
            on_demand,
            next_ns: 0,
        }
    }

    #[inline]
    pub(super) fn on_demand(&self) -> bool {
        self.on_demand
    }

    /// On demand: whether one more connection may be begun, and could have been before then.
    #[inline]
    pub(super) fn has_vacancy(&self, server: usize, before_ns: u64) -> bool {
        self.vacant_since_ns[server].front().is_some_and(|since_ns| *since_ns < before_ns)
    }

    /// On demand: takes the place of one more connection; since when it could have been taken.
    pub(super) fn take_vacancy(&mut self, server: usize) -> u64 {
        self.vacant_since_ns[server].pop_front().unwrap_or_default()
    }

    /// Another connection may take the place of one that is gone.
    pub(super) fn vacate(&mut self, server: usize, now_ns: u64) {
        if self.on_demand {
            self.vacant_since_ns[server].push_back(now_ns);
        } else {
            self.vacant[server] += 1;
        }
    }

    /// A connection could not even be begun.
    pub(super) fn refused(&mut self, server: usize, now_ns: u64) {
        self.settled += 1;
        if self.on_demand {
            self.vacate(server, now_ns);
        } else {
            self.retries.push_back((now_ns + RETRY_NS, server));
        }
    }

    /// A connection was begun.
    pub(super) fn begun(&mut self) {
        self.connecting += 1;
    }

    /// A connection that was begun is established.
    pub(super) fn opened(&mut self) {
        self.connecting -= 1;
        self.settled += 1;
    }

    /// A connection that was begun came to nothing.
    pub(super) fn failed(&mut self, server: usize, now_ns: u64) {
        self.connecting -= 1;
        self.refused(server, now_ns);
    }

    /// Finds out what is to be begun now: [`Opening::next`] has it. First connections come before those that are tried again:
    /// where a server refuses a hundred thousand, they would be all that is done.
    #[inline]
    pub(super) fn proceed(&mut self, now_ns: u64) {
        if !self.all_begun() || self.retries.front().is_some_and(|(due_ns, _)| *due_ns <= now_ns) {
            self.begin_some(now_ns);
        }
    }

    fn begin_some(&mut self, now_ns: u64) {
        let mut begin = OPENING_AT_ONCE.saturating_sub(self.connecting);
        if now_ns >= self.next_ns {
            self.next_ns = now_ns + OPENING_EVERY_NS;
            begin = begin.max(OPENING_ANYWAY);
        }
        for _ in 0..begin {
            // The server that lacks most.
            let most = (0..self.left.len()).max_by_key(|server| self.left[*server]);
            if let Some(server) = most.filter(|server| self.left[*server] > 0) {
                self.left[server] -= 1;
                self.vacant[server] += 1;
            } else if let Some((_, server)) = self.retries.pop_front_if(|(due_ns, _)| *due_ns <= now_ns) {
                self.vacant[server] += 1;
            } else {
                break;
            }
        }
    }

    fn all_begun(&self) -> bool {
        self.left.iter().all(|left| *left == 0)
    }

    /// The server of the next connection to be begun.
    #[inline]
    pub(super) fn next(&mut self) -> Option<usize> {
        let server = self.vacant.iter().position(|vacant| *vacant > 0)?;
        self.vacant[server] -= 1;
        Some(server)
    }

    /// Whether each first connection has been made, or has failed.
    pub(super) fn is_complete(&self) -> bool {
        self.all_begun() && (self.connecting == 0 || self.settled >= self.first)
    }

    /// When to ask again, if nothing else happens.
    pub(super) fn next_ns(&self) -> u64 {
        match self.retries.front() {
            _ if !self.all_begun() => self.next_ns,
            // While too many are under way, the next few have their turn then.
            Some((due_ns, _)) if self.connecting >= OPENING_AT_ONCE => self.next_ns.max(*due_ns),
            Some((due_ns, _)) => *due_ns,
            None => u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_refuses_every_connection_does_not_put_the_beginning_off() {
        const WANTED: usize = 100_000;
        let mut opening = Opening::new(vec![WANTED], false);
        let (mut now_ns, mut tries) = (0, 0);
        while !opening.is_complete() {
            opening.proceed(now_ns);
            while let Some(server) = opening.next() {
                tries += 1;
                opening.begun();
                opening.failed(server, now_ns);
            }
            now_ns += 1000;
            assert!(now_ns < 2_000_000_000, "{tries} tries in {} ms", now_ns / 1_000_000);
        }
        assert_eq!(tries, WANTED, "each once before any is tried again");
        // All are due again, and have their turn a few at a time.
        opening.proceed(now_ns + RETRY_NS);
        assert_eq!(std::iter::from_fn(|| opening.next()).count(), OPENING_AT_ONCE);
        assert!(opening.is_complete());
    }
}

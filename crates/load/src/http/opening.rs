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
        let retries = VecDeque::new();
        Opening { left, vacant: none, vacant_since_ns, retries, connecting: 0, on_demand, next_ns: 0 }
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
    }

    /// A connection that was begun came to nothing.
    pub(super) fn failed(&mut self, server: usize, now_ns: u64) {
        self.connecting -= 1;
        self.refused(server, now_ns);
    }

    /// Finds out what is to be begun now: [`Opening::next`] has it.
    #[inline]
    pub(super) fn proceed(&mut self, now_ns: u64) {
        while let Some((due_ns, server)) = self.retries.front().copied()
            && due_ns <= now_ns
        {
            self.retries.pop_front();
            self.vacant[server] += 1;
        }
        if self.left.iter().all(|left| *left == 0) {
            return;
        }
        let mut begin = OPENING_AT_ONCE.saturating_sub(self.connecting);
        if now_ns >= self.next_ns {
            self.next_ns = now_ns + OPENING_EVERY_NS;
            begin = begin.max(OPENING_ANYWAY);
        }
        for _ in 0..begin {
            // The server that lacks most.
            let most = (0..self.left.len()).max_by_key(|server| self.left[*server]);
            match most.filter(|server| self.left[*server] > 0) {
                Some(server) => {
                    self.left[server] -= 1;
                    self.vacant[server] += 1;
                }
                None => break,
            }
        }
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
        self.connecting == 0 && self.left.iter().all(|left| *left == 0)
    }

    /// When to ask again, if nothing else happens.
    pub(super) fn next_ns(&self) -> u64 {
        let ramp_ns = if self.left.iter().any(|left| *left > 0) { self.next_ns } else { u64::MAX };
        ramp_ns.min(self.retries.front().map_or(u64::MAX, |(due_ns, _)| *due_ns))
    }
}

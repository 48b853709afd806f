//! Connections that wait here while nobody accepts, and another process would: they go there, as in the kernel, whose queue is one
//! for all who share the listener. They are the kernel's from then on, as those of a listener that leaves ([`super::leaving`]). Some are
//! so before: their peer's process has forked, say, and its child has come to use them.

use core::net::SocketAddr;
use core::time::Duration;

use overfly_engine::Instant;
use overfly_link::Link;

use super::Process;
use crate::any_link::AnyLink;
use crate::kernel::now;
use crate::socket::{Arrival, Side, SocketId};
use crate::sys;
use crate::table::{self, Entry};

/// How long a connection waits before it is looked whether another process would have it: an event loop comes back sooner.
const PATIENCE: Duration = Duration::from_millis(10);
/// The pause between two looks doubles up to this one.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A thread that spins looks this often.
const SPINS: Duration = Duration::from_millis(1);
/// Connections that go at once.
const MOST: usize = 16;

/// Connections wait, and none was accepted since.
#[derive(Clone, Copy)]
pub(super) struct Stalled {
    /// How many had been accepted.
    accepts: u64,
    /// When it is looked next, and the pause before that.
    pub(super) until: Instant,
    pause: Duration,
}

impl Process {
    /// After frames were taken.
    pub(super) fn look_at_queues(&mut self) {
        let waits = |&side: &Side| {
            self.stack.oldest_queued(side).is_some() || self.stack.waiting_arrival(side).is_some()
        };
        if !Side::ALL.iter().any(waits) {
            self.stalled = None;
            return;
        }
        let (accepts, time) = (self.stack.accepts, self.pumped);
        let pause = match self.stalled {
            Some(stalled) if stalled.accepts == accepts => {
                if time < stalled.until {
                    return;
                }
                // What is handed over within the host is looked after meanwhile: not by this once more.
                self.stalled = Some(Stalled { until: time + LONGEST_PAUSE, ..stalled });
                if self.sleepers.acceptors() == 0 && self.offer() > 0 {
                    PATIENCE
                } else {
                    (stalled.pause * 2).min(LONGEST_PAUSE)
                }
            }
            _ => PATIENCE,
        };
        self.stalled = Some(Stalled { accepts, until: time + pause, pause });
    }

    /// One has gone to a process that waits: perhaps that has room for more.
    pub(super) fn look_at_queues_soon(&mut self) {
        let until = self.pumped + PATIENCE;
        if let Some(stalled) = &mut self.stalled {
            *stalled = Stalled { until, pause: PATIENCE, ..*stalled };
        }
    }

    /// Whether a connection to `local` would be accepted at once.
    pub(super) fn would_accept(&self, local: SocketAddr) -> bool {
        let spinning = u32::from(now() - self.within_host.spun_to_accept < SPINS);
        let acceptors = self.sleepers.acceptors().max(spinning);
        acceptors > self.stack.pending() && self.stack.expects_arrivals(local)
    }

    /// As many connections as there are processes that wait to accept go to them. Returns how many have gone: within the host the
    /// processes are asked, and those of them that wait get theirs when they have answered.
    #[cold]
    fn offer(&mut self) -> usize {
        self.give_to_willing();
        let arrival = self.stack.waiting_arrival(Side::Loopback).map(|(_, local)| local);
        let queued = || self.stack.oldest_queued(Side::Loopback).map(|(.., local)| local);
        if let Some(local) = arrival.or_else(queued) {
            self.offer_to_neighbors(local);
        }
        self.offer_over_network()
    }

    fn offer_over_network(&mut self) -> usize {
        let waiting = self.stack.transport(Side::Network).map_or(0, AnyLink::others_wait);
        let mut offered = 0;
        while offered < waiting.min(MOST)
            && let Some((listener, local)) = self.stack.waiting_arrival(Side::Network)
            && self.give_arrival(listener, |process, arrival| process.passes_on(local, arrival))
        {
            offered += 1;
        }
        while offered < waiting.min(MOST)
            && let Some((listener, id, local)) = self.stack.oldest_queued(Side::Network)
            && self.try_give_away(id, local).is_ok()
        {
            self.stack.unqueue(listener, id);
            self.statistics.given_away += 1;
            offered += 1;
        }
        offered
    }

    /// The kernel's connection that has waited longest at the listener goes to another process, if `give` can give it.
    pub(super) fn give_arrival(
        &mut self,
        listener: SocketId,
        give: impl FnOnce(&mut Self, &Arrival) -> bool,
    ) -> bool {
        let Some(arrival) = self.stack.take_arrival(listener) else { return false };
        let gives = give(self, &arrival);
        if gives {
            table::enter(arrival.descriptor, Entry::Kernel);
            sys::close(arrival.descriptor);
            self.statistics.given_away += 1;
        } else {
            self.stack.return_arrival(listener, arrival);
        }
        gives
    }
}

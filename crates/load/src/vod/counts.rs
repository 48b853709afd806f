//! What a thread's streams count.

use std::collections::BTreeMap;

use super::ramp::Standing;

/// Why a stream is no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Its buffer ran dry.
    Underrun,
    /// The server refused the connection.
    Refused,
    /// The server, or a router, reset it.
    Reset,
    /// The server does not answer any more.
    TimedOut,
    /// No connection for another reason: unreachable, no port or descriptor left.
    NoConnection,
    /// The server closed before the response was complete.
    ClosedEarly,
    /// What came is no HTTP, or more than was asked for.
    Malformed,
    /// A status other than 2xx.
    WrongStatus,
}

impl Loss {
    /// Every kind, in the order of its index.
    pub const ALL: [Loss; 8] = [
        Loss::Underrun,
        Loss::Refused,
        Loss::Reset,
        Loss::TimedOut,
        Loss::NoConnection,
        Loss::ClosedEarly,
        Loss::Malformed,
        Loss::WrongStatus,
    ];

    /// The name used in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Loss::Underrun => "underrun",
            Loss::Refused => "refused",
            Loss::Reset => "reset",
            Loss::TimedOut => "timed_out",
            Loss::NoConnection => "no_connection",
            Loss::ClosedEarly => "closed_early",
            Loss::Malformed => "malformed",
            Loss::WrongStatus => "wrong_status",
        }
    }
}

/// What one thread, or all of them, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) standing: Standing,
    pub(crate) losses: [u64; Loss::ALL.len()],
    /// Connections made.
    pub(crate) connections: u64,
    /// Attempts to connect that failed.
    pub(crate) connects_failed: u64,
    pub(crate) requests: u64,
    /// The longest that a tick came late: our own fault, not the server's.
    pub(crate) tick_late_ns_max: u64,
    /// The least that any buffer held after a tick, bytes.
    pub(crate) level_min: Option<u64>,
}

impl Counts {
    pub(crate) fn lose(&mut self, loss: Loss) {
        self.losses[loss as usize] += 1;
        if loss == Loss::Underrun {
            self.standing.dropped += 1;
        } else {
            self.standing.failed += 1;
        }
    }

    pub(crate) fn add(&mut self, other: &Counts) {
        let (sum, more) = (&mut self.standing, &other.standing);
        sum.opened += more.opened;
        sum.connecting += more.connecting;
        sum.filling += more.filling;
        sum.streaming += more.streaming;
        sum.dropped += more.dropped;
        sum.failed += more.failed;
        sum.bytes += more.bytes;
        for (sum, more) in self.losses.iter_mut().zip(other.losses) {
            *sum += more;
        }
        self.connections += other.connections;
        self.connects_failed += other.connects_failed;
        self.requests += other.requests;
        self.tick_late_ns_max = self.tick_late_ns_max.max(other.tick_late_ns_max);
        self.level_min = [self.level_min, other.level_min].into_iter().flatten().min();
    }

    /// Losses by name, those that came up.
    pub(crate) fn losses_by_name(&self) -> BTreeMap<&'static str, u64> {
        let named = Loss::ALL.map(|loss| (loss.name(), self.losses[loss as usize]));
        named.into_iter().filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adding_keeps_everything() {
        let mut one = Counts { connections: 1, level_min: Some(7), ..Counts::default() };
        let mut two = Counts { requests: 2, tick_late_ns_max: 5, ..Counts::default() };
        two.lose(Loss::Underrun);
        two.lose(Loss::Refused);
        two.standing.opened = 3;
        one.add(&two);
        assert_eq!((one.standing.lost(), one.standing.open()), (2, 1));
        assert_eq!((one.level_min, one.tick_late_ns_max), (Some(7), 5));
        assert_eq!(one.losses_by_name().into_iter().collect::<Vec<_>>(), [("refused", 1), ("underrun", 1)]);
    }
}

//! Pacing (draft-ietf-ccwg-bbr-05 section 5.6.2): when the next segment may go.

/// A bucket of time: what is sent takes its share of the pacing rate's, and a quantum's is left after a rest. A flow that
/// waited for its turn and got it late sends what it missed: who owns the engine looks when it can.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pacer {
    /// When the next segment may go, in nanoseconds.
    next_ns: u64,
    /// The flow had to wait.
    is_waiting: bool,
    /// When its last turn after a wait was.
    turn_ns: u64,
}

impl Pacer {
    /// Whether a segment may go now. `depth_ns`: what the flow may be ahead after a rest.
    pub(super) fn may_send(&mut self, now_ns: u64, depth_ns: u64) -> bool {
        if self.is_waiting {
            (self.is_waiting, self.turn_ns) = (false, now_ns);
        } else if self.turn_ns != now_ns {
            self.next_ns = self.next_ns.max(now_ns.saturating_sub(depth_ns));
        }
        self.next_ns <= now_ns
    }

    /// The flow waits; returns the microsecond in which it may send `depth_ns` and a segment.
    pub(super) fn wait(&mut self, depth_ns: u64) -> u64 {
        self.is_waiting = true;
        self.next_ns.saturating_add(depth_ns).div_ceil(1000)
    }

    /// So much was sent.
    pub(super) fn sent(&mut self, bytes: u32, rate: u64) {
        self.next_ns = self.next_ns.saturating_add(time_ns(bytes, rate));
    }
}

/// How long `bytes` take at `rate` bytes a second: ten seconds at most, so that a flow never stands still.
pub(super) fn time_ns(bytes: u32, rate: u64) -> u64 {
    (u64::from(bytes) * 1_000_000_000 / rate.max(1)).min(10_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 1_000_000;
    const SEGMENT: u32 = 1000;
    /// Of four segments at once.
    const DEPTH: u64 = 3_000_000;

    fn burst(pacer: &mut Pacer, now_us: u64) -> u32 {
        let mut segments = 0;
        while pacer.may_send(now_us * 1000, DEPTH) {
            pacer.sent(SEGMENT, RATE);
            segments += 1;
        }
        segments
    }

    #[test]
    fn a_quantum_goes_at_once_and_the_rest_at_the_rate() {
        let mut pacer = Pacer::default();
        let mut now_us = 5_000_000;
        assert_eq!(burst(&mut pacer, now_us), 4);
        for _ in 0..10 {
            let due_us = pacer.wait(DEPTH);
            assert_eq!(due_us - now_us, 4000);
            now_us = due_us;
            assert_eq!(burst(&mut pacer, now_us), 4);
        }
        // In between, one at a time.
        pacer.wait(DEPTH);
        assert_eq!(burst(&mut pacer, now_us + 1000), 1);
    }

    #[test]
    fn a_turn_that_comes_late_makes_up_for_it_and_a_rest_does_not() {
        let mut pacer = Pacer::default();
        burst(&mut pacer, 5_000_000);
        let due_us = pacer.wait(DEPTH);
        assert_eq!(burst(&mut pacer, due_us + 20_000), 24, "it missed twenty");
        // It had nothing to send for as long.
        assert_eq!(burst(&mut pacer, due_us + 40_000), 4);
    }

    #[test]
    fn a_rate_of_nothing_is_no_end() {
        assert_eq!(time_ns(u32::MAX, 0), 10_000_000_000);
        assert_eq!(time_ns(1460, 1_250_000_000), 1168);
    }
}

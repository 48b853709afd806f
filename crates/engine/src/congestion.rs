//! Congestion control: Reno (RFC 5681) with NewReno's recovery (RFC 6582).

use crate::sequence::at_or_before;

/// One flow's congestion window; sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reno {
    window: u32,
    slow_start_threshold: u32,
    /// RFC 6582 section 3.2: the highest sequence number sent when the loss was noticed.
    recover: u32,
    /// Bytes acknowledged since the window last grew by a segment (RFC 5681 section 3.1, RFC 3465).
    counted: u32,
    in_recovery: bool,
}

/// What an acknowledgment asks of the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reaction {
    None,
    /// Send the segment at SND.UNA again.
    Retransmit,
}

/// Segments by which one acknowledgment opens the window in slow start at most.
const MAX_GROWTH: u32 = 8;
/// Far above what any window needs, far below overflow.
const MAX_WINDOW: u32 = 1 << 30;

impl Reno {
    /// `initial` in bytes; `iss` is the initial send sequence number.
    pub(crate) const fn new(initial: u32, iss: u32) -> Self {
        Self {
            window: initial,
            slow_start_threshold: MAX_WINDOW,
            recover: iss,
            counted: 0,
            in_recovery: false,
        }
    }

    pub(crate) const fn window(&self) -> u32 {
        self.window
    }

    pub(crate) const fn threshold(&self) -> u32 {
        self.slow_start_threshold
    }

    /// RFC 6928: ten segments, 14,600 bytes at most unless two segments are more.
    pub(crate) fn initial_window(mss: u32) -> u32 {
        (10 * mss).min((2 * mss).max(14_600))
    }

    /// New data was acknowledged: `acked` bytes up to `una`, with `flight` bytes outstanding before and `rest` after.
    pub(crate) fn acknowledged(
        &mut self,
        acked: u32,
        una: u32,
        flight: u32,
        rest: u32,
        mss: u32,
    ) -> Reaction {
        if self.in_recovery {
            if at_or_before(self.recover, una) {
                // RFC 6582 section 3.2 step 3, full acknowledgment: leave without a burst.
                self.in_recovery = false;
                self.window = self.slow_start_threshold.min(rest.max(mss) + mss);
                self.counted = 0;
                return Reaction::None;
            }
            // Partial acknowledgment: deflate by what left, add back one segment, and fill the next hole.
            self.window = self.window.saturating_sub(acked).max(mss);
            if acked >= mss {
                self.window += mss;
            }
            return Reaction::Retransmit;
        }
        // RFC 7661's concern in its simplest form: a window that is not used does not grow.
        if flight.saturating_add(mss) < self.window / 2 {
            return Reaction::None;
        }
        if self.window < self.slow_start_threshold {
            // RFC 5681 section 3.1, equation 2, by the bytes that an acknowledgment covers (RFC 3465); as Linux does, without
            // its limit of two segments: receivers that merge segments acknowledge many at once.
            self.window = (self.window + acked.min(MAX_GROWTH * mss)).min(MAX_WINDOW);
        } else {
            self.counted += acked;
            if self.counted >= self.window {
                self.counted -= self.window;
                self.window = (self.window + mss).min(MAX_WINDOW);
            }
        }
        Reaction::None
    }

    /// A duplicate acknowledgment, the `count`-th in a row; `highest` is SND.MAX, `una` SND.UNA.
    pub(crate) fn duplicate(&mut self, count: u8, una: u32, highest: u32, flight: u32, mss: u32) -> Reaction {
        if self.in_recovery {
            // RFC 5681 section 3.2 step 4: another segment has left the network.
            self.window = (self.window + mss).min(MAX_WINDOW);
            return Reaction::None;
        }
        // RFC 6582 section 3.2 step 1: not again for losses of the same window.
        if count == 3 && at_or_before(self.recover, una.wrapping_sub(1)) {
            self.slow_start_threshold = (flight / 2).max(2 * mss);
            self.recover = highest;
            self.window = self.slow_start_threshold + 3 * mss;
            self.in_recovery = true;
            return Reaction::Retransmit;
        }
        Reaction::None
    }

    /// The retransmission timer expired. `first` is false when the same segment timed out before.
    pub(crate) fn timed_out(&mut self, first: bool, highest: u32, flight: u32, mss: u32) {
        if first {
            // RFC 5681 section 3.1, equation 4.
            self.slow_start_threshold = (flight / 2).max(2 * mss);
        }
        self.window = mss;
        // RFC 6582 section 4.
        self.recover = highest;
        self.in_recovery = false;
        self.counted = 0;
    }

    /// RFC 5681 section 4.1: nothing was sent for a retransmission timeout.
    pub(crate) fn idle(&mut self, initial: u32) {
        self.window = self.window.min(initial);
    }

    pub(crate) const fn is_in_recovery(&self) -> bool {
        self.in_recovery
    }
}

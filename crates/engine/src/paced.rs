//! What a flow with BBR does besides: it tells its model what was sent, delivered and lost, and waits for its turn to send.
//!
//! A tick of the wheel is longer than many a round trip, so that who waits stands in [`Paced`], to the microsecond.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::congestion::{Delivered, Newest, Transmission};
use crate::engine::{Engine, Turn};
use crate::flow::{Flags, Flow};
use crate::owner::{FlowId, Owner};
use crate::recovery::{CongestionState, Losses, Recovery};
use crate::time::Instant;
use crate::transmit::next_segment;

/// Flows that wait for their turn, the earliest first. One that has gone may still stand here.
#[derive(Debug, Default)]
pub(crate) struct Paced(BinaryHeap<Reverse<(Instant, u32)>>);

impl Paced {
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|&Reverse((due, _))| due)
    }

    fn pop_due(&mut self, now: Instant) -> Option<(Instant, u32)> {
        self.next().filter(|&due| due <= now)?;
        self.0.pop().map(|Reverse(first)| first)
    }
}

impl Flow {
    /// There is nothing to send, neither new nor again.
    fn is_drained(&self) -> bool {
        self.state.is_synchronized()
            && self.unsent() == 0
            && self.recovery().is_none_or(|recovery| recovery.lost() == 0)
    }
}

impl Engine {
    /// More is about to be promised for a flow: had it nothing to send, the program is what limits it (draft-ietf-ccwg-bbr-05
    /// section 4.1.2.4).
    pub(crate) fn note_limit(&mut self, index: u32) {
        let flow = self.flows.at_mut(index);
        let (is_drained, in_flight) = (flow.is_drained(), flow.pipe());
        if is_drained && let Some(bbr) = flow.congestion.bbr_mut() {
            bbr.limited_by_program(in_flight);
        }
    }

    /// Those whose turn has come have output.
    pub(crate) fn wake_paced(&mut self, now: Instant) {
        while let Some((due, index)) = self.shared.paced.pop_due(now) {
            let flow = self.flows.at_mut(index);
            if let Some(bbr) = flow.congestion.bbr_mut() {
                bbr.woken(due);
                if flow.flags.has(Flags::IN_TABLE) {
                    self.enqueue(index);
                }
            }
        }
    }
}

impl<O: Owner> Turn<'_, O> {
    /// Bytes that may be given to a link at once that cuts segments; `None` while the flow has to wait for its turn.
    #[inline]
    pub(crate) fn allowance(&mut self) -> Option<u32> {
        let offload = self.shared.config.segment_offload;
        if self.flow.congestion.bbr().is_none() {
            return Some(offload);
        }
        self.paced_allowance(offload)
    }

    fn paced_allowance(&mut self, offload: u32) -> Option<u32> {
        let flow = &mut *self.flow;
        if flow.is_drained() || flow.flags.has(Flags::RESET_WANTED) {
            // A FIN, or nothing; before a reset all goes that may.
            return Some(offload);
        }
        let mss = u32::from(flow.mss);
        let due = match flow.congestion.bbr_mut()?.allowance(self.now, mss) {
            Ok(quantum) => return Some(offload.min(quantum)),
            Err(due) => due,
        };
        let FlowId(index) = self.id;
        let is_lossy = flow.recovery().is_some_and(|recovery| recovery.lost() > 0);
        let would_send = is_lossy || next_segment(flow, offload).is_some();
        if would_send && flow.congestion.bbr_mut()?.wake(due) {
            self.shared.paced.0.push(Reverse((due, index)));
        }
        None
    }

    /// `[start, end)` was sent.
    pub(crate) fn model_transmission(&mut self, start: u32, end: u32, is_new: bool) {
        let flow = &mut *self.flow;
        let sent = Transmission {
            now: self.now,
            start,
            end,
            is_new,
            in_flight: flow.pipe(),
            mss: flow.mss.into(),
            rtt_us: flow.rtt.smoothed_us(),
        };
        if let Some(bbr) = flow.congestion.bbr_mut() {
            bbr.sent(&sent);
        }
    }

    /// An acknowledgment delivered so many bytes.
    pub(crate) fn model_delivery(&mut self, bytes: u32, newest: Newest) {
        let flow = &mut *self.flow;
        let delivered = Delivered {
            now: self.now,
            una: flow.send_una,
            bytes,
            newest,
            in_flight: flow.pipe(),
            mss: flow.mss.into(),
            least_rtt_us: flow.rtt.least_us(),
            is_drained: flow.is_drained(),
            is_recovering: flow.recovery().map(Recovery::state) >= Some(CongestionState::Recovery),
            has_sack: flow.flags.has(Flags::SACK),
        };
        if let Some(bbr) = flow.congestion.bbr_mut() {
            bbr.delivered(&delivered);
        }
    }

    /// Losses were found.
    pub(crate) fn model_losses(&mut self, losses: &Losses) {
        let has_sack = self.flow.flags.has(Flags::SACK);
        if losses.bytes > 0
            && let Some(bbr) = self.flow.congestion.bbr_mut()
        {
            bbr.lost(losses, has_sack, self.now);
        }
    }
}

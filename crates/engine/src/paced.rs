//! What a flow with BBR does besides: it tells its model what was sent, delivered and lost, and waits for its turn to send.
//!
//! A tick of the wheel is longer than many a round trip, so that who waits stands in [`Paced`], to the microsecond.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::congestion::{Bbr, Delivered, Newest, Transmission};
use crate::engine::Engine;
use crate::flow::{Flags, Flow};
use crate::owner::{FlowId, Owner};
use crate::recovery::{CongestionState, Losses, Recovery};
use crate::sequence::Sequence;
use crate::shared::Turn;
use crate::time::Instant;

/// Flows that wait for their turn, the earliest first. One that has gone may still stand here.
#[derive(Debug, Default)]
pub(crate) struct Paced(BinaryHeap<Reverse<(Instant, u32)>>);

impl Paced {
    #[inline]
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

    /// It will be woken when it may send.
    pub(crate) fn waits_for_turn(&self) -> bool {
        self.congestion.bbr().is_some_and(Bbr::is_waiting)
    }

    /// More is about to be promised: had the flow nothing to send, the program is what limits it (draft-ietf-ccwg-bbr-05 section
    /// 4.1.2.4).
    #[cold]
    pub(crate) fn note_limit(&mut self) {
        let (is_drained, in_flight) = (self.is_drained(), self.pipe());
        if is_drained && let Some(mut bbr) = self.congestion.bbr_mut() {
            bbr.limited_by_program(in_flight);
        }
    }
}

impl Engine {
    /// Those whose turn has come have output.
    #[cold]
    pub(crate) fn wake_paced(&mut self, now: Instant) {
        while let Some((due, index)) = self.shared.paced.pop_due(now) {
            let flow = self.flows.at_mut(index);
            if let Some(mut bbr) = flow.congestion.bbr_mut() {
                bbr.woken(due);
                if flow.flags.has(Flags::IN_TABLE) {
                    self.enqueue(index);
                }
            }
        }
    }
}

impl<O: Owner> Turn<'_, O> {
    /// How many of `length` bytes may be sent now; `None` while a flow with BBR has to wait for its turn.
    #[inline]
    pub(crate) fn allowed(&mut self, length: u32) -> Option<u32> {
        match self.flow.congestion.bbr() {
            None => Some(length),
            Some(_) => self.allowed_by_pace(length),
        }
    }

    #[cold]
    fn allowed_by_pace(&mut self, length: u32) -> Option<u32> {
        let (flow, FlowId(index)) = (&mut *self.flow, self.id);
        if length == 0 || flow.flags.has(Flags::RESET_WANTED) {
            // A FIN; before a reset all goes that may.
            return Some(length);
        }
        let mss = u32::from(flow.mss);
        let mut bbr = flow.congestion.bbr_mut()?;
        match bbr.allowance(self.now, mss) {
            Ok(quantum) if length > quantum => Some(quantum / mss * mss),
            Ok(_) => Some(length),
            Err(due) => {
                if bbr.wake(due) {
                    self.shared.paced.0.push(Reverse((due, index)));
                }
                None
            }
        }
    }

    /// `[start, end)` was sent: a flow with BBR takes note.
    #[inline]
    pub(crate) fn model_transmission(&mut self, start: Sequence, end: Sequence, is_new: bool) {
        if self.flow.congestion.bbr().is_some() {
            self.tell_transmission(start, end, is_new);
        }
    }

    // What only flows with BBR do is kept out of the way of all others.
    #[cold]
    fn tell_transmission(&mut self, start: Sequence, end: Sequence, is_new: bool) {
        let flow = &mut *self.flow;
        let sent = Transmission {
            now: self.now,
            start,
            end,
            is_new,
            in_flight: flow.pipe(),
            mss: flow.mss.into(),
            rtt_us: flow.rtt.smoothed().number(),
        };
        if let Some(mut bbr) = flow.congestion.bbr_mut() {
            bbr.sent(&sent);
        }
    }

    /// An acknowledgment delivered so many bytes.
    #[cold]
    pub(crate) fn model_delivery(&mut self, bytes: u32, newest: Newest) {
        let flow = &mut *self.flow;
        let delivered = Delivered {
            now: self.now,
            una: flow.send_una,
            bytes,
            newest,
            in_flight: flow.pipe(),
            mss: flow.mss.into(),
            least_rtt_us: flow.rtt.least().number(),
            is_drained: flow.is_drained(),
            is_recovering: flow.recovery().map(Recovery::state) >= Some(CongestionState::Recovery),
            has_sack: flow.flags.has(Flags::SACK),
        };
        if let Some(mut bbr) = flow.congestion.bbr_mut() {
            bbr.delivered(&delivered);
        }
    }

    /// Losses were found.
    #[cold]
    pub(crate) fn model_losses(&mut self, losses: &Losses) {
        let has_sack = self.flow.flags.has(Flags::SACK);
        if losses.bytes > 0
            && let Some(mut bbr) = self.flow.congestion.bbr_mut()
        {
            bbr.lost(losses, has_sack, self.now);
        }
    }
}

//! BBR, the third version, as draft-ietf-ccwg-bbr-05 has it: a model of the path (how fast it delivers, how long it takes, how
//! much it holds) says how fast to send and how much to have in flight. Linux's own is the first version.
//!
//! Left out, or different: docs/tcp.md says what and why.

mod delivery;
mod filters;
mod model;
mod pacer;

use core::num::NonZeroU64;

pub(crate) use delivery::Newest;
use model::Model;
use pacer::time_ns;

use super::{Ack, CongestionControl, MAX_WINDOW};
use crate::recovery::Losses;
use crate::sequence::Sequence;
use crate::time::{Instant, Tick};

/// What an acknowledgment delivered, and what is so after it. Sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivered {
    pub(crate) now: Instant,
    pub(crate) una: Sequence,
    /// Newly delivered.
    pub(crate) bytes: u32,
    pub(crate) newest: Newest,
    /// In flight.
    pub(crate) in_flight: u32,
    pub(crate) mss: u32,
    /// The least round trip ever seen, in microseconds; 0 without a sample.
    pub(crate) least_rtt_us: u32,
    /// There is nothing to send, neither new nor again.
    pub(crate) is_drained: bool,
    /// Losses are being repaired.
    pub(crate) is_recovering: bool,
    pub(crate) has_sack: bool,
}

/// What was sent. Sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transmission {
    pub(crate) now: Instant,
    pub(crate) start: Sequence,
    pub(crate) end: Sequence,
    pub(crate) is_new: bool,
    /// In flight with it.
    pub(crate) in_flight: u32,
    pub(crate) mss: u32,
    /// The smoothed round-trip time in microseconds; 0 without a sample.
    pub(crate) rtt_us: u32,
}

/// What a flow's model says (`struct tcp_bbr_info` in Linux's include/uapi/linux/inet_diag.h, and TCP_INFO's rates).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BbrInfo {
    /// Bytes a second that the path is held to deliver to this flow.
    pub bandwidth: u64,
    /// The least round trip of the last ten seconds, in microseconds; all ones without a sample.
    pub min_rtt_us: u32,
    /// Hundredths of the bandwidth that are sent.
    pub pacing_gain: u32,
    /// Hundredths of what the path holds that may be in flight.
    pub window_gain: u32,
    /// Bytes a second that are sent at most.
    pub pacing_rate: u64,
    /// Bytes a second of the last sample, and whether the program was what limited it.
    pub delivery_rate: u64,
    /// See above.
    pub is_limited: bool,
}

/// One flow's BBR but for its window, which stands where the other algorithms have theirs. The model is made when the first data is
/// sent and goes with the connection: a handshake and TIME-WAIT have none.
#[derive(Debug, Default)]
pub(crate) struct Bbr {
    model: Option<Box<Model>>,
}

/// A flow's BBR and its window.
#[derive(Debug)]
pub(crate) struct Governor<'a> {
    pub(super) window: &'a mut u32,
    pub(super) bbr: &'a mut Bbr,
}

impl Bbr {
    /// Gives back the memory of a flow that will send no data again.
    pub(crate) fn forget(&mut self) {
        self.model = None;
    }

    /// It asked for that, and was not woken yet.
    pub(crate) fn is_waiting(&self) -> bool {
        self.model.as_ref().is_some_and(|model| model.wakes_us.is_some())
    }

    pub(crate) fn info(&self) -> Option<BbrInfo> {
        self.model.as_ref().map(|model| model.info())
    }
}

impl Governor<'_> {
    fn change(&mut self, change: impl FnOnce(&mut Model)) {
        if let Some(model) = &mut self.bbr.model {
            change(model);
            *self.window = model.window.clamp(1, MAX_WINDOW);
        }
    }

    /// Bytes that may be sent at once, or when they may.
    pub(crate) fn allowance(&mut self, now: Instant, mss: u32) -> Result<u32, Instant> {
        let Some(model) = &mut self.bbr.model else { return Ok(mss.saturating_mul(2)) };
        let quantum = model.quantum(mss);
        let depth_ns = time_ns(quantum - mss, model.rate);
        if model.pacer.may_send(now.as_micros() * 1000, depth_ns) {
            Ok(quantum)
        } else {
            Err(Instant::from_micros(model.pacer.wait(depth_ns)))
        }
    }

    /// The flow asks to be woken then. False if it is to be already, and not later.
    pub(crate) fn wake(&mut self, due: Instant) -> bool {
        let Some(model) = &mut self.bbr.model else { return false };
        let due_us = NonZeroU64::new(due.as_micros());
        if model.wakes_us.is_some() && model.wakes_us <= due_us {
            return false;
        }
        model.wakes_us = due_us;
        true
    }

    /// It was woken, as it asked to be for `due`.
    pub(crate) fn woken(&mut self, due: Instant) {
        if let Some(model) = &mut self.bbr.model
            && model.wakes_us == NonZeroU64::new(due.as_micros())
        {
            model.wakes_us = None;
        }
    }

    pub(crate) fn sent(&mut self, sent: &Transmission) {
        if self.bbr.model.is_none() {
            self.bbr.model = Some(Box::new(Model::new(sent, *self.window)));
            // What comes first is not ahead of its time by more than a quantum, either.
            let _ = self.allowance(sent.now, sent.mss);
        }
        self.change(|model| model.sent(sent));
    }

    pub(crate) fn delivered(&mut self, delivered: &Delivered) {
        self.change(|model| model.acknowledged(delivered));
    }

    /// Bytes were lost: draft section 5.2.4.
    pub(crate) fn lost(&mut self, losses: &Losses, has_sack: bool, now: Instant) {
        self.change(|model| model.lost(losses, has_sack, now.as_micros()));
    }

    /// A timeout: so many bytes more than before are taken as lost, wherever they are.
    pub(crate) fn lost_to_timeout(&mut self, bytes: u32, now: Instant) {
        self.lost(&Losses { bytes, ranges: 1, ..Losses::default() }, true, now);
    }

    /// The program has nothing to send though `in_flight` bytes leave room for it (draft section 4.1.2.4).
    pub(crate) fn limited_by_program(&mut self, in_flight: u32) {
        let window = *self.window;
        if let Some(model) = &mut self.bbr.model
            && in_flight < window
        {
            model.delivery.limit(in_flight);
        }
    }

    /// A congestion mark was echoed. The draft's section 3.7 leaves the response open but for that there must be one.
    pub(crate) fn marked(&mut self, now: Instant) {
        self.change(|model| model.marked(now.as_micros()));
    }
}

impl CongestionControl for Governor<'_> {
    fn window(&self) -> u32 {
        *self.window
    }

    fn threshold(&self) -> u32 {
        MAX_WINDOW
    }

    /// [`Bbr::delivered`] does that, who wants to know more.
    fn acknowledged(&mut self, _ack: &Ack) {}

    fn loss(&mut self, _flight: u32, _mss: u32, _now: Tick) {
        self.change(Model::enter_recovery);
    }

    /// Draft section 5.6.4.4: a segment, and what arrives opens the window again.
    fn timeout(&mut self, _first: bool, _flight: u32, mss: u32, _now: Tick) {
        *self.window = mss;
        self.change(|model| model.enter_timeout(mss));
    }

    fn undo(&mut self) {
        self.change(Model::undo);
    }

    /// Draft section 5.4.1: the window stays, what is sent is paced at the bandwidth.
    fn idle(&mut self, _initial: u32, _now: Tick) {}

    fn set_window(&mut self, window: u32) {
        *self.window = window.clamp(1, MAX_WINDOW);
        self.change(|model| model.window = window);
    }

    fn recovered(&mut self) {
        self.change(Model::leave_recovery);
    }
}

#[cfg(test)]
mod tests;

//! What losses and marks do to the model (sections 5.5.10, 5.5.11 and 5.6.4.4).

use super::super::delivery::Record;
use super::{BETA, Model, Phase, Undo};
use crate::recovery::Losses;

/// `BBR.LossThresh`: percent of what was in flight that may be lost in a round trip.
const LOSS_THRESHOLD: u64 = 2;

impl Model {
    /// Section 5.5.10.2: `BBRHandleLostPacket`, for the bytes that were found lost together.
    pub(in crate::congestion::bbr) fn lost(&mut self, losses: &Losses, has_sack: bool, now_us: u64) {
        self.delivery.lost += u64::from(losses.bytes);
        self.ranges_lost += losses.ranges;
        self.note_loss();
        if !self.is_probed {
            return;
        }
        let Some(record) = self.delivery.of_lost(losses.latest) else { return };
        let lost = self.delivery.lost - record.lost;
        if is_too_much(lost, record.in_flight, has_sack) {
            let in_flight = inflight_at_loss(&record, lost, losses.bytes.into());
            self.too_much(now_us, in_flight, record.is_limited);
        }
    }

    fn note_loss(&mut self) {
        if !self.loss_in_round {
            self.loss_round = self.delivery.delivered;
            self.save_state();
        }
        self.loss_in_round = true;
    }

    /// `BBRHandleInflightTooHigh`.
    pub(super) fn too_much(&mut self, now_us: u64, in_flight: u64, is_limited: bool) {
        self.is_probed = false;
        if !is_limited {
            self.long_inflight = in_flight.max(self.target() * BETA / 100);
        }
        if self.phase == Phase::Up {
            self.start_down(now_us);
        }
    }

    /// An echoed mark is a loss that says for certain that there was a queue: a probe ends, and so does Startup.
    pub(in crate::congestion::bbr) fn marked(&mut self, now_us: u64) {
        self.enter_recovery();
        self.note_loss();
        if self.phase == Phase::Startup {
            self.leave_startup_lossy();
        } else if self.is_probed {
            self.too_much(now_us, self.last.in_flight.into(), self.last.is_limited);
        }
    }

    fn save_state(&mut self) {
        self.undo = Undo {
            phase: self.phase,
            short_bandwidth: self.short_bandwidth,
            short_inflight: self.short_inflight,
            long_inflight: self.long_inflight,
        };
    }

    /// Section 5.6.4.4.
    pub(super) fn save_window(&mut self) {
        let is_normal = !self.is_recovering && self.phase != Phase::ProbeRtt;
        self.prior_window = if is_normal { self.window } else { self.prior_window.max(self.window) };
    }

    pub(super) fn restore_window(&mut self) {
        self.window = self.window.max(self.prior_window);
    }

    pub(in crate::congestion::bbr) fn enter_recovery(&mut self) {
        self.save_window();
        self.save_state();
        self.is_recovering = true;
    }

    pub(in crate::congestion::bbr) fn enter_timeout(&mut self, mss: u32) {
        self.enter_recovery();
        self.window = mss;
    }

    pub(in crate::congestion::bbr) fn leave_recovery(&mut self) {
        self.is_recovering = false;
        self.restore_window();
    }

    /// Section 5.5.11.2.
    pub(in crate::congestion::bbr) fn undo(&mut self) {
        self.leave_recovery();
        self.loss_in_round = false;
        self.reset_full(0);
        let undo = self.undo;
        self.short_bandwidth = self.short_bandwidth.max(undo.short_bandwidth);
        self.short_inflight = self.short_inflight.max(undo.short_inflight);
        self.long_inflight = self.long_inflight.max(undo.long_inflight);
        if self.phase != Phase::ProbeRtt && self.phase != undo.phase {
            match undo.phase {
                Phase::Startup => {
                    self.phase = Phase::Startup;
                    self.was_full = false;
                }
                Phase::Up => self.start_up(),
                _ => {}
            }
        }
    }
}

/// `IsInflightTooHigh`.
pub(super) fn is_too_much(lost: u64, in_flight: u32, has_sack: bool) -> bool {
    lost * 100 > u64::from(in_flight) * LOSS_THRESHOLD || (lost > 0 && !has_sack)
}

/// `BBRInflightAtLoss`: how much was in flight when losses crossed the threshold, somewhere in the `bytes` that were lost last.
fn inflight_at_loss(record: &Record, lost: u64, bytes: u64) -> u64 {
    let in_flight = u64::from(record.in_flight).saturating_sub(bytes);
    let lost_before = lost.saturating_sub(bytes);
    let prefix = (in_flight * LOSS_THRESHOLD).saturating_sub(lost_before * 100) / (100 - LOSS_THRESHOLD);
    in_flight + prefix
}

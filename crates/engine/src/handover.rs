//! Connections that leave the engine, so that somebody else goes on with them: the kernel, by TCP_REPAIR.
//!
//! The order: [`Engine::export`], build the connection elsewhere, steer its frames there, [`Engine::forget`].

use core::net::SocketAddr;
use std::collections::{BTreeMap, VecDeque};

use crate::engine::Engine;
use crate::flow::{Flags, Flow, State};
use crate::owner::FlowId;
use crate::sequence::distance;
use crate::time::Instant;
use crate::tuple::Tuple;

/// How far our FIN has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SentFin {
    /// There is none.
    None,
    /// It follows the data that has not been sent yet.
    Wanted,
    /// It was sent.
    Sent,
    /// The peer has it.
    Acknowledged,
}

/// An established connection, in the terms of RFC 9293 section 3.3.1. Sequence numbers count neither side's FIN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handover {
    /// This end.
    pub local: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
    /// SND.UNA: the first byte that the peer has not acknowledged.
    pub send_una: u32,
    /// Bytes from there on that were sent.
    pub sent: u32,
    /// Bytes after those that were promised and not sent.
    pub unsent: u64,
    /// SND.WND in bytes.
    pub send_window: u32,
    /// The largest SND.WND seen, in bytes.
    pub send_window_max: u32,
    /// SND.WL1.
    pub window_sequence: u32,
    /// RCV.NXT: what was received before it has been given to the owner.
    pub receive_next: u32,
    /// RCV.WND in bytes, as the peer was told.
    pub receive_window: u32,
    /// Payload of a full segment without options, in bytes: the smaller of what the peer and the path take.
    pub mss: u16,
    /// Shifts of the peer's window and of ours, if both sides scale (RFC 7323 section 2).
    pub window_shift: Option<(u8, u8)>,
    /// Both sides use SACK.
    pub sack: bool,
    /// Our present timestamp, if both sides use them (RFC 7323 section 3). It goes on in milliseconds.
    pub timestamp: Option<u32>,
    /// Our FIN.
    pub sent_fin: SentFin,
    /// The peer's FIN was received and acknowledged.
    pub received_fin: bool,
}

impl Engine {
    /// What somebody else must know to go on with a connection; `None` while it is not established, and once it is over.
    ///
    /// Data that arrived out of order is not in it: its sender keeps it until it is acknowledged (RFC 2018 section 8).
    #[must_use]
    pub fn export(&self, now: Instant, flow: FlowId) -> Option<Handover> {
        let flow = self.flows.at(flow.0);
        if flow.flags.has(Flags::RESET_WANTED) {
            return None;
        }
        let sent_fin = match flow.state {
            State::Established | State::CloseWait if flow.flags.has(Flags::FIN_WANTED) => SentFin::Wanted,
            State::Established | State::CloseWait => SentFin::None,
            State::FinWait1 | State::Closing | State::LastAck => SentFin::Sent,
            State::FinWait2 | State::TimeWait => SentFin::Acknowledged,
            State::Closed | State::SynSent | State::SynReceived => return None,
        };
        let received_fin =
            matches!(flow.state, State::CloseWait | State::Closing | State::LastAck | State::TimeWait);
        let receive_next = flow.receive_next - u32::from(received_fin);
        let timestamps = flow.flags.has(Flags::TIMESTAMPS);
        Some(Handover {
            local: flow.tuple.local(),
            remote: flow.tuple.remote(),
            send_una: (flow.send_una - u32::from(sent_fin == SentFin::Acknowledged)).number(),
            sent: flow.flight() - u32::from(sent_fin == SentFin::Sent),
            unsent: flow.unsent(),
            send_window: flow.send_window,
            send_window_max: flow.send_window_max.max(flow.send_window),
            window_sequence: flow.window_sequence.number(),
            receive_next: receive_next.number(),
            receive_window: distance(receive_next, flow.receive_edge),
            mss: flow.mss + if timestamps { TIMESTAMPS_LEN } else { 0 },
            window_shift: scales(flow).then_some((flow.send_shift, flow.receive_shift)),
            sack: flow.flags.has(Flags::SACK),
            timestamp: timestamps.then(|| self.shared.clock(now.tick(), flow)),
            sent_fin,
            received_fin,
        })
    }

    /// Connections whose owners have let go and have everything acknowledged, while their peers have not closed yet (FIN-WAIT-2).
    #[must_use]
    pub fn half_closed(&self, now: Instant) -> Vec<(FlowId, Handover)> {
        let is_one = |&index: &u32| {
            let flow = self.flows.at(index);
            flow.state == State::FinWait2 && flow.flags.has(Flags::RELEASED)
        };
        let flows = self.flows.in_table().into_iter().filter(is_one).map(FlowId);
        flows.filter_map(|flow| Some((flow, self.export(now, flow)?))).collect()
    }

    /// The connection is somebody else's from now on. Nothing is sent, the owner hears nothing, and frames of it that still
    /// come are dropped, until its peer opens another one between the same ends.
    pub fn forget(&mut self, flow: FlowId) {
        let tuple = self.flows.at(flow.0).tuple;
        self.remove(flow.0);
        self.shared.departed.add(&tuple, self.shared.config.max_departed as usize);
    }

    /// As [`Engine::forget`], but the peer hears a RST: the next [`Engine::transmit`] sends it, and what was promised and not sent is lost.
    /// False, and nothing happens, where so many answers wait that this one has no place.
    #[must_use]
    pub fn renounce(&mut self, now: Instant, flow: FlowId) -> bool {
        let has_place = self.shared.answers.len() < self.shared.config.max_answers as usize;
        if has_place {
            if let Some(reset) = self.shared.reset_of(now, self.flows.at(flow.0)) {
                self.shared.answer(reset);
                self.shared.counters.resets_sent += 1;
            }
            self.forget(flow);
        }
        has_place
    }
}

/// The timestamps option and what aligns it (RFC 7323 appendix A).
const TIMESTAMPS_LEN: u16 = 12;

/// A flow whose peer does not scale has no shift of its own.
const fn scales(flow: &Flow) -> bool {
    flow.receive_shift > 0
}

/// Connections that left: their segments are not answered with RST.
#[derive(Debug, Default)]
pub(crate) struct Departed {
    /// The ends of each, and how many had left before it.
    ends: BTreeMap<(SocketAddr, SocketAddr), u64>,
    /// Oldest first; one that came back may still stand here.
    order: VecDeque<((SocketAddr, SocketAddr), u64)>,
    serial: u64,
}

impl Departed {
    pub(crate) fn add(&mut self, tuple: &Tuple, most: usize) {
        if self.order.len() >= most
            && let Some((oldest, serial)) = self.order.pop_front()
            && self.ends.get(&oldest) == Some(&serial)
        {
            self.ends.remove(&oldest);
        }
        let ends = (tuple.local(), tuple.remote());
        self.serial += 1;
        self.ends.insert(ends, self.serial);
        self.order.push_back((ends, self.serial));
    }

    /// A connection that had left is here again.
    pub(crate) fn returns(&mut self, tuple: &Tuple) {
        self.ends.remove(&(tuple.local(), tuple.remote()));
    }

    /// Whether a segment of `tuple` is somebody else's. A SYN opens a new connection, which is not.
    pub(crate) fn holds(&mut self, tuple: &Tuple, opens: bool) -> bool {
        if self.ends.is_empty() {
            return false;
        }
        let ends = (tuple.local(), tuple.remote());
        if opens {
            self.ends.remove(&ends);
        }
        self.ends.contains_key(&ends)
    }
}

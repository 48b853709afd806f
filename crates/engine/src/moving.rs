//! Connections that go on in another engine of the same process, whole: with all that is known of path and peer, and what is on its way.
//!
//! The order: see whether it [may go](Engine::may_move) and whether the other engine [has room](Engine::has_room), steer its frames there,
//! [`Engine::take_out`], [`Engine::put_in`]. Both engines have the same clock and the same configuration, but for their secrets.

use core::net::SocketAddr;

use crate::engine::Engine;
use crate::flow::{Flags, Flow, State};
use crate::owner::FlowId;
use crate::sequence::Sequence;
use crate::shared::NO_LISTENER;
use crate::time::{Deadline, Instant};
use crate::tuple::Tuple;

/// A connection between two engines.
#[derive(Debug)]
pub struct Moving(Box<Flow>);

impl Engine {
    /// Whether a connection can go on in another engine now: it is established and not ended by this side, and nothing of it stands outside
    /// its control block (data out of order, losses that are being repaired, a turn that it waits for).
    #[must_use]
    pub fn may_move(&self, flow: FlowId) -> bool {
        const ELSEWHERE: [Flags; 6] = [
            Flags::FIN_WANTED,
            Flags::DETACHED,
            Flags::RESET_WANTED,
            Flags::HALF_OPEN,
            Flags::UNACCEPTED,
            Flags::NO_NEXT_HOP,
        ];
        let flow = self.flows.at(flow.0);
        let repairs =
            flow.extra.as_ref().is_some_and(|its| its.reassembly.is_some() || its.recovery.is_some());
        matches!(flow.state, State::Established | State::CloseWait)
            && flow.flags.has(Flags::IN_TABLE)
            && !flow.flags.has_any(&ELSEWHERE)
            && !repairs
            && !flow.waits_for_turn()
    }

    /// Whether there is room for another engine's connection.
    #[must_use]
    pub fn has_room(&self, other: &Engine, flow: FlowId) -> bool {
        !self.flows.is_full() && self.flows.find(&other.flows.at(flow.0).tuple).is_none()
    }

    /// The connection leaves for another engine: its owner here hears nothing of it any more, and frames of it that still come are dropped.
    /// `None`, and nothing happens, if it [may not](Engine::may_move).
    pub fn take_out(&mut self, flow: FlowId) -> Option<Moving> {
        if !self.may_move(flow) {
            return None;
        }
        let index = flow.0;
        self.wheel.cancel(&mut self.flows, index);
        self.flows.unhook(index);
        let tuple = self.flows.at(index).tuple;
        let empty = self.shared.new_flow(Instant::default(), tuple, Sequence::default());
        let flow = core::mem::replace(self.flows.at_mut(index), empty);
        // It stands in no list but that of output, where one that is not queued is passed over.
        self.flows.free(index);
        self.shared.departed.add(&tuple, self.shared.config.max_departed as usize);
        Some(Moving(Box::new(flow)))
    }

    /// A connection that was steered here for a moment has stayed in the other engine: its frames that have come are dropped, as the
    /// sender repeats them, and not answered with RST.
    pub fn stays_away(&mut self, local: SocketAddr, remote: SocketAddr) {
        self.shared.departed.add(&Tuple::new(local, remote), self.shared.config.max_departed as usize);
    }

    /// The connection goes on here.
    ///
    /// # Errors
    /// There is no [room](Engine::has_room): it comes back.
    pub fn put_in(&mut self, now: Instant, moving: Moving) -> Result<FlowId, Moving> {
        self.tell(now);
        let tuple = moving.0.tuple;
        if self.flows.is_full() || self.flows.find(&tuple).is_some() {
            return Err(moving);
        }
        let Moving(mut flow) = moving;
        flow.flags.clear(Flags::QUEUED);
        flow.link = crate::wheel::Link::new();
        flow.listener = NO_LISTENER;
        // What waits to be acknowledged stood in the other engine's lists.
        flow.ack_at = Deadline::NEVER;
        if flow.acked_next != flow.receive_next {
            flow.flags.set(Flags::ACK_NOW);
        }
        let wants_more = flow.unsent() > 0;
        let Some(index) = self.flows.insert(*flow) else { unreachable!("there is room: see above") };
        self.shared.departed.returns(&tuple);
        self.settle(index);
        if wants_more {
            self.enqueue(index);
        }
        Ok(FlowId(index))
    }
}

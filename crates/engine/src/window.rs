//! The receive window, as its owner opens it: delivered bytes are held until the owner has consumed them.

use crate::FlowId;
use crate::engine::Engine;
use crate::flow::Flags;

impl Engine {
    /// The owner is done with `bytes` of the delivered bytes it held: the window may open.
    pub fn consumed(&mut self, flow: FlowId, bytes: usize) {
        self.consumed_in_silence(flow, bytes);
        let block = self.flows.at_mut(flow.0);
        if block.state.may_receive() && block.window_is_worth_telling() {
            block.flags.set(Flags::ACK_NOW);
            self.enqueue(flow.0);
        }
    }

    /// The same for an owner that wants no more: the peer is not told that the window opens, as what it would send is no use
    /// (tcp_cleanup_rbuf() in Linux, net/ipv4/tcp.c).
    #[inline]
    pub fn consumed_in_silence(&mut self, flow: FlowId, bytes: usize) {
        let now = self.now;
        let block = self.flows.at_mut(flow.0);
        let limit = block.largest_window(self.shared.config.receive_window);
        block.held = block.held.saturating_sub(bytes as u32);
        if let Some(tuning) = block.extra.as_mut().and_then(|extra| extra.tuning.as_mut())
            && tuning.consumed(now, bytes as u32, limit)
        {
            block.receive_limit = tuning.window();
        }
    }
}

//! Which segment may be sent next: windows, Nagle's algorithm, and silly-window avoidance.

use crate::congestion::CongestionControl;
use crate::flow::{Flags, Flow, State};

/// Length of the next segment that may be sent, and whether it carries FIN. A link that cuts segments (`offload` bytes at most)
/// gets several full ones at once.
#[inline]
pub(crate) fn next_segment(flow: &Flow, offload: u32) -> Option<(u32, bool)> {
    if flow.state.fin_was_sent() {
        // SND.NXT is beyond the stream.
        return None;
    }
    let unsent = flow.unsent();
    // A FIN waits for the end of the handshake, and the SYN's sequence number is not of the window.
    let syn = u32::from(flow.state == State::SynReceived);
    let fin_pending = flow.flags.has(Flags::FIN_WANTED) && syn == 0;
    if unsent == 0 {
        return fin_pending.then_some((0, true));
    }
    let mss = u32::from(flow.mss);
    // RFC 5681 section 3.1 and RFC 9293 section 3.8.6; RFC 3042's limited transmit follows from the pipe, which duplicates
    // make smaller.
    let congestion = (flow.congestion.window() + syn).saturating_sub(flow.pipe());
    let offered = (flow.send_window + syn).saturating_sub(flow.flight());
    let room = unsent.min(u64::from(congestion.min(offered))) as u32;
    // RFC 9293 section 3.7.4 (Nagle): whether the stream's last, small segment may go.
    let end_may_go = || {
        fin_pending
            || (!flow.flags.has(Flags::CORK)
                && (flow.flags.has(Flags::NO_DELAY) || !has_small_in_flight(flow, syn, mss)))
    };
    if room >= 2 * mss && offload >= 2 * mss {
        let most = room.min(offload);
        // The small segment at the end goes with the full ones before it: those are on their way, and all of one size.
        let length = if u64::from(most) == unsent && end_may_go() { most } else { most / mss * mss };
        return Some((length, u64::from(length) == unsent && fin_pending));
    }
    let length = room.min(mss);
    if length == 0 {
        return None;
    }
    let last = u64::from(length) == unsent;
    // RFC 9293 section 3.8.6.2.1 (silly-window avoidance).
    let send = length == mss
        || (last && end_may_go())
        || (!last && length >= flow.send_window_max / 2)
        || (flow.flags.has(Flags::FORCE) && (last || flow.flight() == syn));
    send.then_some((length, last && fin_pending))
}

/// Minshall's rule, as tcp_minshall_check() in Linux's net/ipv4/tcp_output.c: only a small segment in flight holds the next one
/// back. What is in flight begins where a segment did, so that it is full segments exactly if their length divides it. After
/// `mss` has changed it seldom does: then Nagle's own rule holds until all is acknowledged.
#[inline]
fn has_small_in_flight(flow: &Flow, syn: u32, mss: u32) -> bool {
    let flight = flow.flight().saturating_sub(syn);
    flight != 0 && !flight.is_multiple_of(mss)
}

//! What a flow of a program is besides its control block.

use std::collections::VecDeque;
use std::net::IpAddr;

use super::plan::NO_TEMPLATE;

/// Which flow: a connection of the engine's, or a UDP socket of its.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) u32);

const DATAGRAM: u32 = 1 << 31;

impl Key {
    #[inline]
    pub(crate) fn stream(index: usize) -> Key {
        Key(index as u32)
    }

    #[inline]
    pub(crate) fn datagram(index: usize) -> Key {
        Key(index as u32 | DATAGRAM)
    }

    #[inline]
    pub(crate) fn is_stream(self) -> bool {
        self.0 & DATAGRAM == 0
    }

    #[inline]
    pub(crate) fn index(self) -> usize {
        (self.0 & !DATAGRAM) as usize
    }
}

/// Where a flow is in its life, and what its program waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlowState {
    /// There is none.
    Free,
    /// Its SYN was sent.
    Opening,
    /// A peer opened it; its first payload will tell its template.
    Undecided,
    /// Its program goes on.
    Running,
    /// It waits for `balance` to be 0 or more.
    Receive,
    /// For the last byte sent to be acknowledged.
    Sent,
    /// For room for another send.
    Room,
    /// For the peer's FIN.
    PeerClose,
    /// For a time.
    Time,
    /// For the end of the flow that it opened.
    Nested,
    /// Its program has ended.
    Closing,
}

impl FlowState {
    /// Its program has begun and not ended.
    #[inline]
    pub(crate) fn has_program(self) -> bool {
        !matches!(self, FlowState::Free | FlowState::Opening | FlowState::Undecided | FlowState::Closing)
    }
}

/// A flow. Made to be small: there are millions of them.
#[derive(Debug)]
pub(crate) struct Flow {
    /// Bytes or datagrams received and not cleared; while it waits for some, less what it waits for.
    pub(crate) balance: i64,
    /// What few programs need.
    pub(crate) extra: Option<Box<Extra>>,
    /// When it was begun, µs.
    pub(crate) begun_us: u64,
    /// Where in the sent stream (modulo 2^32) its last send begins. Of datagrams: when it was last active, ms.
    pub(crate) sent_from: u32,
    /// The buffer of that send. Of datagrams: after how many ms of silence it ends.
    pub(crate) buffer: u32,
    /// The command that is next.
    pub(crate) step: u32,
    /// When it was established, then when it first sent, µs, wrapping; see [`Flow::awaits_first_byte`].
    pub(crate) mark_us: u32,
    /// Counts the flows that were in this place.
    pub(crate) generation: u32,
    pub(crate) template: u16,
    pub(crate) state: FlowState,
    flags: u8,
}

const NOTED: u8 = 1;
const PEER_CLOSED: u8 = 2;
const NO_BLOCK: u8 = 4;
const AWAITS_FIRST_BYTE: u8 = 8;
const RECEIVED_ONLY: u8 = 16;
const ESTABLISHED: u8 = 32;
const FRESH: u8 = 64;
const IDLE_DUE: u8 = 128;

/// Nothing was sent yet.
pub(crate) const NO_BUFFER: u32 = u32::MAX;

/// Whoever opened a flow and waits for its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parent {
    pub(crate) key: Key,
    pub(crate) generation: u32,
}

/// What few programs need.
#[derive(Debug, Default)]
pub(crate) struct Extra {
    pub(crate) variables: [i64; 5],
    /// When they were started, ns.
    pub(crate) timers: [i64; 5],
    pub(crate) next_template: Option<u16>,
    pub(crate) parent: Option<Parent>,
    /// The address that an undecided flow came to.
    pub(crate) local: Option<IpAddr>,
    /// Earlier sends that are not acknowledged: where they begin, and their buffers.
    pub(crate) sends: VecDeque<(u32, u32)>,
}

impl Flow {
    pub(crate) const FREE: Flow = Flow {
        balance: 0,
        extra: None,
        begun_us: 0,
        sent_from: 0,
        buffer: NO_BUFFER,
        step: 0,
        mark_us: 0,
        generation: 0,
        template: NO_TEMPLATE,
        state: FlowState::Free,
        flags: 0,
    };

    /// A new flow in this place.
    #[inline]
    pub(crate) fn begin(&mut self, template: u16, state: FlowState, now_us: u64) {
        *self = Flow {
            begun_us: now_us,
            template,
            state,
            generation: self.generation.wrapping_add(1),
            ..Flow::FREE
        };
    }

    /// The place is free. The template stays, since the engine may still send and receive for it.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.state = FlowState::Free;
        self.extra = None;
        self.flags &= NOTED;
    }

    pub(crate) fn extra_mut(&mut self, begun_ns: i64) -> &mut Extra {
        // schema.json: all variables begin as 0, all timers with the flow.
        self.extra.get_or_insert_with(|| Box::new(Extra { timers: [begun_ns; 5], ..Extra::default() }))
    }

    /// True the first time, until [`Flow::unnote`].
    #[inline]
    pub(crate) fn note(&mut self) -> bool {
        let first = self.flags & NOTED == 0;
        self.flags |= NOTED;
        first
    }

    #[inline]
    pub(crate) fn unnote(&mut self) {
        self.flags &= !NOTED;
    }

    #[inline]
    fn put(&mut self, flag: u8, on: bool) {
        if on {
            self.flags |= flag;
        } else {
            self.flags &= !flag;
        }
    }

    pub(crate) fn peer_closed(&self) -> bool {
        self.flags & PEER_CLOSED != 0
    }

    pub(crate) fn set_peer_closed(&mut self) {
        self.put(PEER_CLOSED, true);
    }

    pub(crate) fn blocks(&self) -> bool {
        self.flags & NO_BLOCK == 0
    }

    pub(crate) fn set_blocks(&mut self, on: bool) {
        self.put(NO_BLOCK, !on);
    }

    /// It has sent, and nothing has come since it was opened.
    #[inline]
    pub(crate) fn awaits_first_byte(&self) -> bool {
        self.flags & AWAITS_FIRST_BYTE != 0
    }

    pub(crate) fn set_awaits_first_byte(&mut self, on: bool) {
        self.put(AWAITS_FIRST_BYTE, on);
    }

    pub(crate) fn counts_received_only(&self) -> bool {
        self.flags & RECEIVED_ONLY != 0
    }

    pub(crate) fn set_counts_received_only(&mut self, on: bool) {
        self.put(RECEIVED_ONLY, on);
    }

    /// A peer has opened it, and the engine has not been told that it is accepted.
    pub(crate) fn take_fresh(&mut self) -> bool {
        let fresh = self.flags & FRESH != 0;
        self.put(FRESH, false);
        fresh
    }

    pub(crate) fn set_fresh(&mut self) {
        self.put(FRESH, true);
    }

    /// The time of its keep-alive has come.
    pub(crate) fn set_idle_due(&mut self) {
        self.put(IDLE_DUE, true);
    }

    pub(crate) fn take_idle_due(&mut self) -> bool {
        let due = self.flags & IDLE_DUE != 0;
        self.put(IDLE_DUE, false);
        due
    }

    pub(crate) fn is_established(&self) -> bool {
        self.flags & ESTABLISHED != 0
    }

    pub(crate) fn set_established(&mut self) {
        self.put(ESTABLISHED, true);
    }
}

/// The engine's control block and this are what a flow costs.
const _: () = assert!(size_of::<Flow>() <= 48);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_costs_little() {
        assert!(size_of::<Flow>() <= 48, "{}", size_of::<Flow>());
    }

    #[test]
    fn a_place_knows_its_flows_apart() {
        let mut flow = Flow::FREE;
        flow.begin(3, FlowState::Opening, 10);
        let first = flow.generation;
        flow.set_peer_closed();
        flow.extra_mut(5).variables[2] = 9;
        assert!(flow.note() && !flow.note());
        flow.end();
        assert!(
            flow.state == FlowState::Free
                && flow.template == 3
                && !flow.peer_closed()
                && flow.extra.is_none()
        );
        assert!(!flow.note(), "it still stands in the list");
        flow.begin(4, FlowState::Running, 20);
        assert_ne!(flow.generation, first);
    }
}

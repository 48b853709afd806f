//! What flows share, and one flow's turn: what each of them needs while a segment, a timer or a transmission of it is processed.

use std::collections::VecDeque;

use overfly_wire::MacAddr;
use overfly_wire::tcp::Timestamps;

use crate::answers::StatelessReply;
use crate::config::Config;
use crate::congestion::Congestion;
use crate::cookies::Cookies;
use crate::counters::Counters;
use crate::fastopen::{ClientCookies, ServerCookies};
use crate::flow::{CHALLENGE_TICKS, Flags, Flow, State};
use crate::handover::Departed;
use crate::listener::Listeners;
use crate::neighbor::Neighbors;
use crate::owner::{Failure, FlowId};
use crate::paced::Paced;
use crate::recovery::{Lateness, Recovery};
use crate::resolution::Resolution;
use crate::rtt::Rtt;
use crate::secrets::{Challenges, Secret};
use crate::sequence::Sequence;
use crate::sizes::{least_window, window_shift};
use crate::time::{Deadline, Instant, Tick, Ticks};
use crate::tuple::Tuple;
use crate::wheel::Link;

/// How far a reused tuple's sequence numbers start beyond its last ones (as Linux).
pub(crate) const SEQUENCE_GAP: u32 = 65_537;

/// A flow without a listener.
pub(crate) const NO_LISTENER: u32 = u32::MAX;

/// What the processing of one flow needs besides the flow.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) counters: Counters,
    pub(crate) listeners: Listeners,
    pub(crate) neighbors: Neighbors,
    pub(crate) resolution: Resolution,
    /// Answers that belong to no flow.
    pub(crate) answers: VecDeque<StatelessReply>,
    /// Flows whose data came at a time and is acknowledged as soon as it has passed, unless an answer takes the acknowledgment
    /// along ([`Turn::schedule_ack`]). One that has gone, or acknowledged since, may still stand here.
    pub(crate) quick: VecDeque<(Instant, u32)>,
    /// Those of them whose data no program had read by then: acknowledged at that time, whatever happens.
    pub(crate) unread: VecDeque<(Instant, u32)>,
    pub(crate) paced: Paced,
    /// Bytes acknowledged since all that had arrived was received, and after how many no more output is sent until the next time.
    pub(crate) acknowledged: u32,
    pub(crate) acknowledged_max: u32,
    pub(crate) reassembly_bytes: usize,
    /// Ranges of all flows' scoreboards.
    pub(crate) sack_ranges: usize,
    pub(crate) time_wait: u32,
    pub(crate) challenges: Challenges,
    pub(crate) departed: Departed,
    pub(crate) secret: Secret,
    pub(crate) cookies: Cookies,
    /// The Fast Open cookies that we give.
    pub(crate) fast_open: ServerCookies,
    /// Those that we were given.
    pub(crate) servers: ClientCookies,
}

/// One flow's turn: what its processing needs.
pub(crate) struct Turn<'a, O> {
    pub(crate) now: Instant,
    pub(crate) id: FlowId,
    pub(crate) flow: &'a mut Flow,
    pub(crate) shared: &'a mut Shared,
    pub(crate) owner: &'a mut O,
}

impl<O> Turn<'_, O> {
    #[inline]
    pub(crate) const fn tick(&self) -> Tick {
        self.now.tick()
    }

    /// The deadline so long from now, and never earlier.
    pub(crate) fn deadline_in(&self, time: impl Into<Ticks>) -> Deadline {
        Deadline::at(self.now.tick().after(time.into()))
    }
}

/// What becomes of a flow after a segment or a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It goes on.
    Keep,
    /// It is over; the failure, if any, is reported.
    End(Option<Failure>),
    /// It enters TIME-WAIT, or starts it anew.
    TimeWait,
    /// It was in TIME-WAIT and gives way to the SYN that arrived.
    GiveWay,
}

impl Shared {
    /// Peers could send more than there is room for.
    #[inline]
    pub(crate) fn may_not_acknowledge(&self) -> bool {
        self.acknowledged > self.acknowledged_max
    }

    /// A control block in its first state.
    pub(crate) fn new_flow(&self, now: Instant, tuple: Tuple, iss: Sequence) -> Flow {
        let mss = self.largest_segment(&tuple);
        let receive_shift = window_shift(&self.config);
        let route = self.config.route(&tuple);
        let initial_receive_window = match route.map_or(0, |route| route.initial_receive_window) {
            0 => self.config.initial_receive_window,
            segments => segments.saturating_mul(u32::from(mss)).max(1024),
        };
        let receive_limit =
            initial_receive_window.max(least_window(receive_shift)).min(self.config.receive_window);
        let mut flags = Flags::default();
        flags.put(Flags::QUICK_ACK, route.is_some_and(|route| route.quick_ack));
        let congestion = route.and_then(|route| route.congestion).unwrap_or(self.config.congestion);
        let initial_window = self.initial_window(&tuple, u32::from(mss));
        Flow {
            tuple,
            next_hop: MacAddr::BROADCAST,
            state: State::Closed,
            retries: 0,
            flags,
            send_una: iss,
            send_next: iss,
            send_window: 0,
            send_window_max: 0,
            window_sequence: Sequence::default(),
            una_offset: 0,
            promised: 0,
            receive_next: Sequence::default(),
            receive_edge: Sequence::default(),
            held: 0,
            acked_next: Sequence::default(),
            receive_limit,
            received: 0,
            timestamp_recent: 0,
            timestamp_recent_at: now.tick(),
            timestamp_offset: self.secret.addresses(&tuple),
            rtt: Rtt::new(),
            timed_sequence: Sequence::default(),
            timed_at: now.moment(),
            congestion: Congestion::new(congestion, initial_window),
            mss,
            send_shift: 0,
            receive_shift,
            traffic_class: 0,
            hop_limit: self.config.hop_limit_to(tuple.remote().ip()),
            backoff: 0,
            lateness: Lateness::new(),
            challenged: ((now.tick().0 / CHALLENGE_TICKS) as u8).wrapping_sub(1),
            retransmit_at: Deadline::NEVER,
            ack_at: Deadline::NEVER,
            linger_at: Deadline::NEVER,
            sent_at: now.moment(),
            link: Link::new(),
            listener: NO_LISTENER,
            extra: None,
        }
    }

    /// RFC 6528 section 3: a 4 µs clock plus a keyed hash of the tuple.
    pub(crate) fn initial_sequence(&self, now: Instant, tuple: &Tuple) -> Sequence {
        Sequence::new(self.secret.tuple(tuple) as u32) + (now.as_micros() >> 2) as u32
    }

    /// Gives back what a flow held out of order.
    #[inline]
    pub(crate) fn forget_reassembly(&mut self, flow: &mut Flow) {
        if let Some(reassembly) = flow.extra.as_mut().and_then(|extra| extra.reassembly.take()) {
            self.reassembly_bytes -= reassembly.cost();
        }
    }

    /// Gives back what a flow held that will neither send nor receive data again.
    pub(crate) fn forget(&mut self, flow: &mut Flow) {
        self.forget_reassembly(flow);
        self.sack_ranges -= flow.recovery().map_or(0, Recovery::counted);
        flow.extra = None;
        flow.congestion.forget();
    }

    /// Our timestamp for a flow (RFC 7323 section 5.4).
    #[inline]
    pub(crate) fn clock(&self, tick: Tick, flow: &Flow) -> u32 {
        tick.0.wrapping_add(flow.timestamp_offset)
    }

    #[inline]
    pub(crate) fn timestamps(&self, tick: Tick, flow: &Flow) -> Option<Timestamps> {
        flow.flags
            .has(Flags::TIMESTAMPS)
            .then(|| Timestamps { value: self.clock(tick, flow), echo: flow.timestamp_recent })
    }
}

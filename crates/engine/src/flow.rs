//! The control block of one connection.

use overfly_wire::MacAddr;

use crate::autotune::Autotune;
use crate::congestion::{Bbr, BbrInfo, Congestion, CongestionControl};
use crate::path_mtu::PathMtu;
use crate::reassembly::Reassembly;
use crate::recovery::{Bounds, CongestionState, Lateness, Recovery};
use crate::rtt::Rtt;
use crate::sequence::{Sequence, distance, later};
use crate::time::{Deadline, Moment, Tick, Ticks};
use crate::tuple::Tuple;
use crate::udp::Unreachable;
use crate::wheel::Link;

/// The states of RFC 9293 section 3.3.2, LISTEN apart: listeners are not flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// No connection: the control block waits for its owner to let go.
    Closed,
    /// SYN sent.
    SynSent,
    /// SYN received and answered.
    SynReceived,
    /// Data may flow.
    Established,
    /// Our FIN was sent.
    FinWait1,
    /// Our FIN was acknowledged.
    FinWait2,
    /// The peer's FIN was received.
    CloseWait,
    /// Both FINs were sent at once.
    Closing,
    /// Our FIN was sent after the peer's.
    LastAck,
    /// Waiting until no old segment can be on its way.
    TimeWait,
}

impl State {
    /// The handshake is done and the connection has not ended.
    pub(crate) const fn is_synchronized(self) -> bool {
        !matches!(self, Self::Closed | Self::SynSent | Self::SynReceived)
    }

    /// Our FIN was sent at least once.
    pub(crate) const fn fin_was_sent(self) -> bool {
        matches!(self, Self::FinWait1 | Self::FinWait2 | Self::Closing | Self::LastAck | Self::TimeWait)
    }

    /// The peer may still send data.
    pub(crate) const fn may_receive(self) -> bool {
        matches!(self, Self::Established | Self::FinWait1 | Self::FinWait2)
    }
}

/// A set of [`Flow`]'s conditions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Flags(u32);

macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident = $bit:expr;)*) => {
        impl Flags { $($(#[$doc])* pub(crate) const $name: Self = Self(1 << $bit);)* }
    };
}

flags! {
    /// Stands in the engine's output queue.
    QUEUED = 0;
    /// An acknowledgment is due now.
    ACK_NOW = 1;
    /// The owner called `shutdown` or `close`: a FIN follows the promised data.
    FIN_WANTED = 2;
    /// The owner called `close` or `abort`.
    DETACHED = 3;
    /// A RST is to be sent, then the flow is released.
    RESET_WANTED = 4;
    /// The SYN, or SYN and ACK, is to be sent.
    SYN_WANTED = 5;
    /// A probe (zero window or keep-alive) is to be sent.
    PROBE_WANTED = 6;
    /// The owner turned Nagle's algorithm off.
    NO_DELAY = 7;
    /// The owner holds partial segments back.
    CORK = 8;
    /// Both sides sent the timestamps option.
    TIMESTAMPS = 9;
    /// `timed_sequence` and `timed_at` measure a round trip.
    TIMED = 10;
    /// The retransmission timer runs as the persist timer.
    PERSIST = 11;
    /// A persist timer found an open but small window, or Nagle's algorithm was turned off: send what fits.
    FORCE = 12;
    /// Counts as half-open at its listener.
    HALF_OPEN = 13;
    /// Counts as not yet accepted at its listener.
    UNACCEPTED = 14;
    /// The next hop's address is being asked for; in CLOSE-WAIT, there is nobody any more.
    NO_NEXT_HOP = 15;
    /// The owner has been told `Released`, or never knew the flow.
    RELEASED = 16;
    /// Stands in the flow table.
    IN_TABLE = 17;
    /// An acknowledgment may have made room to send.
    SEND_WANTED = 18;
    /// Both sides sent SACK-permitted (RFC 2018 section 2).
    SACK = 19;
    /// Both sides agreed on ECN (RFC 3168 section 6.1.1).
    ECN = 20;
    /// A mark arrived: every acknowledgment echoes it until the peer says CWR (RFC 3168 section 6.1.3).
    ECN_ECHO = 21;
    /// The next new data carries CWR (RFC 3168 section 6.1.2).
    ECN_REDUCED = 22;
    /// The retransmission timer runs as the probe timer (RFC 8985 section 7.2).
    LOSS_PROBE_TIMER = 23;
    /// A tail loss probe is to be sent.
    LOSS_PROBE_WANTED = 24;
    /// The retransmission timer runs as the reordering timer (RFC 8985 section 6.3).
    REORDERING_TIMER = 25;
    /// Segments were seen out of order on this flow's path.
    REORDERING_SEEN = 26;
    /// Acknowledgments are not delayed.
    QUICK_ACK = 27;
    /// Keep-alive probes are on.
    KEEP_ALIVE = 28;
    /// Our SYN may carry data, or the peer's did (RFC 7413).
    FAST_OPEN = 29;
    /// The owner limits the receive window: no auto-tuning.
    FIXED_WINDOW = 30;
    /// In SYN-RECEIVED: the SYN's answer brings a Fast Open cookie.
    FAST_OPEN_COOKIE = 31;
    /// Past the handshake: the exchange is interactive, answers carry the acknowledgments (inet_csk_in_pingpong_mode() in Linux's
    /// include/net/inet_connection_sock.h).
    PINGPONG = 31;
}

impl Flags {
    pub(crate) const fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    pub(crate) const fn has_any(self, flags: &[Self]) -> bool {
        self.0 & Self::union(flags).0 != 0
    }

    /// All of `flags` in one.
    pub(crate) const fn union(flags: &[Self]) -> Self {
        let mut bits = 0;
        let mut index = 0;
        while index < flags.len() {
            bits |= flags[index].0;
            index += 1;
        }
        Self(bits)
    }

    pub(crate) fn set(&mut self, flag: Self) {
        self.0 |= flag.0;
    }

    pub(crate) fn clear(&mut self, flag: Self) {
        self.0 &= !flag.0;
    }

    pub(crate) fn put(&mut self, flag: Self, on: bool) {
        if on { self.set(flag) } else { self.clear(flag) }
    }

    pub(crate) fn clear_all(&mut self, flags: &[Self]) {
        self.0 &= !Self::union(flags).0;
    }

    pub(crate) fn take(&mut self, flag: Self) -> bool {
        let was = self.has(flag);
        self.clear(flag);
        was
    }
}

/// Ticks in which a flow challenges its peer once: about half a second, as Linux's net.ipv4.tcp_invalid_ratelimit.
pub(crate) const CHALLENGE_TICKS: u32 = 512;

/// One connection. Names after RFC 9293 section 3.3.1 where it has one. Aligned so that it never lies on more cache lines than it
/// must.
#[derive(Debug)]
#[repr(align(32))]
pub(crate) struct Flow {
    pub(crate) tuple: Tuple,
    pub(crate) next_hop: MacAddr,
    pub(crate) state: State,
    /// Timeouts, or probes without an answer, in a row.
    pub(crate) retries: u8,
    pub(crate) flags: Flags,

    /// SND.UNA: the oldest unacknowledged sequence number.
    pub(crate) send_una: Sequence,
    /// SND.NXT: the next to send. It never goes back: what is sent again stands in [`Recovery`].
    pub(crate) send_next: Sequence,
    /// SND.WND, scaled.
    pub(crate) send_window: u32,
    /// The largest SND.WND seen (sender's silly-window avoidance, RFC 9293 section 3.8.6.2.1).
    pub(crate) send_window_max: u32,
    /// SND.WL1: the sequence number of the segment that last moved the window.
    pub(crate) window_sequence: Sequence,
    /// Offset in the sent stream of SND.UNA (of the first byte while the SYN is unacknowledged).
    pub(crate) una_offset: u64,
    /// Bytes that the owner has promised since the beginning. At least `una_offset`.
    pub(crate) promised: u64,

    /// RCV.NXT.
    pub(crate) receive_next: Sequence,
    /// RCV.NXT + RCV.WND as last advertised: never moves left.
    pub(crate) receive_edge: Sequence,
    /// Bytes delivered to the owner and not yet consumed.
    pub(crate) held: u32,
    /// RCV.NXT when an acknowledgment was last sent.
    pub(crate) acked_next: Sequence,
    /// Bytes that the owner may hold: the receive window.
    pub(crate) receive_limit: u32,
    /// Payload bytes received in order (modulo 2^32).
    pub(crate) received: u32,

    /// The peer's latest timestamp (TS.Recent, RFC 7323 section 4.3), and when it came.
    pub(crate) timestamp_recent: u32,
    pub(crate) timestamp_recent_at: Tick,
    /// Added to the tick for our own timestamps.
    pub(crate) timestamp_offset: u32,

    pub(crate) rtt: Rtt,
    pub(crate) timed_sequence: Sequence,
    pub(crate) timed_at: Moment,
    pub(crate) congestion: Congestion,

    /// Largest payload of a segment to the peer, options deducted.
    pub(crate) mss: u16,
    pub(crate) send_shift: u8,
    pub(crate) receive_shift: u8,
    /// Differentiated services of its packets; the two bits of ECN are 0.
    pub(crate) traffic_class: u8,
    /// Hops that its packets may go.
    pub(crate) hop_limit: u8,
    /// Doublings of the timeout (RFC 6298 section 5.5); goes on while a closed window is being probed.
    pub(crate) backoff: u8,
    /// When it last challenged the peer, in units of [`CHALLENGE_TICKS`] (wrapping).
    pub(crate) challenged: u8,
    pub(crate) lateness: Lateness,

    /// Retransmission, loss probe, reordering or persist: see the flags.
    pub(crate) retransmit_at: Deadline,
    /// Delayed acknowledgment.
    pub(crate) ack_at: Deadline,
    /// TIME-WAIT, FIN-WAIT-2 or keep-alive.
    pub(crate) linger_at: Deadline,
    /// When data was last sent: RACK, and the restart after idle (RFC 5681 section 4.1).
    pub(crate) sent_at: Moment,
    pub(crate) link: Link,
    /// The listener of a passive open.
    pub(crate) listener: u32,
    /// What few flows need.
    pub(crate) extra: Option<Box<Extra>>,
}

/// What a window field tells that is not scaled.
const UNSCALED_WINDOW: u32 = 0xffff;

/// What few flows need at a time: a flow whose peer and path behave has none of it.
#[derive(Debug, Default)]
pub(crate) struct Extra {
    /// Data that arrived out of order.
    pub(crate) reassembly: Option<Reassembly>,
    /// Losses that are being repaired.
    pub(crate) recovery: Option<Recovery>,
    /// What the owner set otherwise than the configuration.
    pub(crate) settings: Option<Settings>,
    /// What is known of the path's MTU, once it made trouble.
    pub(crate) path: Option<PathMtu>,
    /// How fast the owner consumes.
    pub(crate) tuning: Option<Autotune>,
    /// A duplicate that the next acknowledgment reports (RFC 2883).
    pub(crate) duplicate: Option<(Sequence, Sequence)>,
    /// What ICMP said last since something was acknowledged (Linux's sk_err_soft).
    pub(crate) soft_error: Option<Unreachable>,
    /// Segments sent again since the beginning.
    pub(crate) repeated: u32,
    /// Data in its SYN, or in the peer's, was taken (RFC 7413).
    pub(crate) syn_data: bool,
}

/// What an owner sets for one flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) keep_alive: KeepAlive,
    /// TCP_USER_TIMEOUT; 0 is off (RFC 5482 section 3's local half).
    pub(crate) user_timeout: Ticks,
    /// TCP_SYNCNT; 0 leaves it to the configuration.
    pub(crate) syn_retries: u8,
    /// When the oldest data that is not acknowledged yet was first sent, or the window closed.
    pub(crate) unanswered_since: Deadline,
}

/// Keep-alive (RFC 9293 section 3.8.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct KeepAlive {
    pub(crate) idle: Ticks,
    pub(crate) interval: Ticks,
    pub(crate) probes: u8,
}

impl Flow {
    /// Something of each cache line.
    #[inline]
    pub(crate) fn touch(&self) -> u32 {
        self.una_offset as u32
            ^ u32::from(self.tuple.local_port)
            ^ self.receive_next.number()
            ^ self.congestion.window()
            ^ self.sent_at.number()
            ^ u32::from(self.traffic_class)
    }

    pub(crate) fn recovery(&self) -> Option<&Recovery> {
        self.extra.as_ref()?.recovery.as_ref()
    }

    pub(crate) fn recovery_mut(&mut self) -> Option<&mut Recovery> {
        self.extra.as_mut()?.recovery.as_mut()
    }

    /// The scoreboard, made if there is none yet.
    pub(crate) fn recovery_or_new(&mut self, bounds: Bounds) -> &mut Recovery {
        let (una, next, sent_at) = (self.send_una, self.send_next, self.sent_at);
        let (reordering_seen, lateness) = (self.flags.has(Flags::REORDERING_SEEN), self.lateness);
        self.extra
            .get_or_insert_default()
            .recovery
            .get_or_insert_with(|| Recovery::new(una, next, sent_at, reordering_seen, lateness, bounds))
    }

    pub(crate) fn settings(&self) -> Option<&Settings> {
        self.extra.as_ref()?.settings.as_ref()
    }

    pub(crate) fn settings_mut(&mut self) -> &mut Settings {
        self.extra.get_or_insert_default().settings.get_or_insert_default()
    }

    /// Gives memory back once nothing needs it. Returns how many ranges of the scoreboard were counted that are no more.
    #[must_use]
    pub(crate) fn trim(&mut self) -> usize {
        let (una, next) = (self.send_una, self.send_next);
        let mut ranges = 0;
        let Some(extra) = &mut self.extra else { return ranges };
        if let Some(recovery) = extra.recovery.take_if(|recovery| recovery.is_idle(una, next)) {
            self.flags.put(Flags::REORDERING_SEEN, recovery.reordering_seen());
            self.lateness = recovery.lateness();
            ranges = recovery.counted();
        }
        if extra.is_empty() {
            self.extra = None;
        }
        ranges
    }

    /// The sequence number after the last promised byte: the FIN's, once it was sent. Not once that was acknowledged.
    #[inline]
    pub(crate) fn data_end(&self) -> Sequence {
        self.first_data() + (self.promised - self.una_offset) as u32
    }

    /// Bytes that were promised and never sent. Far more than sequence numbers can tell apart may be promised at once.
    #[inline]
    pub(crate) fn unsent(&self) -> u64 {
        if self.state.fin_was_sent() { 0 } else { self.promised - self.offset(self.send_next) }
    }

    /// SND.UNA, or the byte after an unacknowledged SYN.
    #[inline]
    pub(crate) fn first_data(&self) -> Sequence {
        if matches!(self.state, State::SynSent | State::SynReceived) {
            self.send_una + 1
        } else {
            self.send_una
        }
    }

    /// The offset in the sent stream of `sequence`.
    #[inline]
    pub(crate) fn offset(&self, sequence: Sequence) -> u64 {
        self.una_offset + u64::from(sequence.since(self.first_data()))
    }

    /// FlightSize (RFC 5681 section 2): sent and not cumulatively acknowledged.
    #[inline]
    pub(crate) fn flight(&self) -> u32 {
        self.send_next.since(self.send_una)
    }

    /// Bytes that are in the network (RFC 6675's pipe).
    #[inline]
    pub(crate) fn pipe(&self) -> u32 {
        match self.recovery() {
            None => self.flight(),
            Some(recovery) => recovery.pipe(self.flight()),
        }
    }

    /// Everything sent has been acknowledged.
    #[inline]
    pub(crate) fn all_acknowledged(&self) -> bool {
        self.send_una == self.send_next
    }

    /// Something is due to be sent whatever the windows say, or may be.
    #[inline]
    pub(crate) fn has_output(&self) -> bool {
        self.flags.has_any(&[
            Flags::ACK_NOW,
            Flags::RESET_WANTED,
            Flags::SYN_WANTED,
            Flags::PROBE_WANTED,
            Flags::LOSS_PROBE_WANTED,
            Flags::SEND_WANTED,
        ])
    }

    /// Takes the peer's window scale; none, and ours is not used either (RFC 7323 section 2.2).
    pub(crate) fn take_scale(&mut self, scale: Option<u8>) {
        self.send_shift = scale.unwrap_or(0);
        if scale.is_none() {
            self.receive_shift = 0;
            self.receive_limit = self.receive_limit.min(UNSCALED_WINDOW);
        }
    }

    /// The largest receive window that the flow can tell, of `configured` bytes at most.
    #[inline]
    pub(crate) fn largest_window(&self, configured: u32) -> u32 {
        if self.receive_shift == 0 { configured.min(UNSCALED_WINDOW) } else { configured }
    }

    /// The window field of a segment sent now (RFC 9293 section 3.8.6.2.2): the right edge moves by worthwhile steps.
    pub(crate) fn advertise(&mut self) -> u16 {
        let possible = self.possible_edge();
        let gain = distance(self.receive_edge, possible);
        if gain >= u32::from(self.mss).min(self.receive_limit / 2) || self.held == 0 {
            self.receive_edge = later(self.receive_edge, possible);
        }
        let open = distance(self.receive_next, self.receive_edge);
        (open >> self.receive_shift).min(0xffff) as u16
    }

    pub(crate) fn reassembly_mut(&mut self) -> Option<&mut Reassembly> {
        self.extra.as_mut()?.reassembly.as_mut()
    }

    /// Gives the reassembly back if it holds nothing.
    pub(crate) fn trim_reassembly(&mut self) {
        if let Some(extra) = &mut self.extra {
            extra.reassembly.take_if(|reassembly| reassembly.is_empty());
            if extra.is_empty() {
                self.extra = None;
            }
        }
    }

    /// The right edge of the receive window as it could be advertised.
    #[inline]
    pub(crate) fn possible_edge(&self) -> Sequence {
        self.receive_next + self.receive_limit.saturating_sub(self.held)
    }

    /// The window could open by so much that the peer should hear of it unasked (RFC 9293 section 3.8.6.2.2).
    pub(crate) fn window_is_worth_telling(&self) -> bool {
        let limit = self.receive_limit;
        let gain = distance(self.receive_edge, self.possible_edge());
        let open = distance(self.receive_next, self.receive_edge);
        let mss = u32::from(self.mss);
        gain >= limit / 4 || (open < mss && gain >= mss.min(limit / 2))
    }

    /// The peer was heard: the next keep-alive probe is due after a whole idle time.
    #[inline]
    pub(crate) fn restart_keep_alive(&mut self, now: Tick) {
        let idle = match self.settings() {
            Some(settings) if self.flags.has(Flags::KEEP_ALIVE) => settings.keep_alive.idle,
            _ => Ticks::ZERO,
        };
        self.linger_at = if idle > Ticks::ZERO { Deadline::at(now.after(idle)) } else { Deadline::NEVER };
    }

    /// The earliest of the deadlines.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Tick> {
        self.retransmit_at.earlier(self.ack_at).earlier(self.linger_at).tick()
    }
}

impl Extra {
    /// An acknowledgment has something to say in its SACK option.
    pub(crate) fn has_sacks(&self) -> bool {
        self.duplicate.is_some() || self.reassembly.is_some()
    }

    fn is_empty(&self) -> bool {
        self.reassembly.is_none()
            && self.recovery.is_none()
            && self.settings.is_none()
            && self.path.is_none()
            && self.tuning.is_none()
            && self.duplicate.is_none()
            && self.soft_error.is_none()
            && self.repeated == 0
            && !self.syn_data
    }
}

/// What is known of a flow. Fields that Linux's `struct tcp_info` (linux/tcp.h) has too mean what they mean there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Where in RFC 9293's state diagram.
    pub state: State,
    /// What congestion control is doing (`tcpi_ca_state`).
    pub congestion_state: CongestionState,
    /// Timeouts in a row (`tcpi_retransmits`), or probes without an answer (`tcpi_probes`).
    pub retries: u8,
    /// Doublings of the timeout (`tcpi_backoff`).
    pub backoff: u8,
    /// Smoothed round-trip time in microseconds (`tcpi_rtt`); 0 without a sample.
    pub rtt_us: u32,
    /// Its variation in microseconds (`tcpi_rttvar`).
    pub rtt_variation_us: u32,
    /// The least round-trip time in microseconds (`tcpi_min_rtt`); 0 without a sample.
    pub min_rtt_us: u32,
    /// Retransmission timeout in microseconds (`tcpi_rto`).
    pub rto_us: u64,
    /// Congestion window in bytes (`tcpi_snd_cwnd` counts segments).
    pub congestion_window: u32,
    /// What BBR has found out, where it governs the window and data was sent.
    pub bbr: Option<BbrInfo>,
    /// Slow-start threshold in bytes (`tcpi_snd_ssthresh` counts segments).
    pub slow_start_threshold: u32,
    /// Payload of a full segment in bytes (`tcpi_snd_mss`).
    pub mss: u16,
    /// The window that the peer offers, in bytes (`tcpi_snd_wnd`).
    pub send_window: u32,
    /// The window that we offer, in bytes (`tcpi_rcv_wnd`).
    pub receive_window: u32,
    /// Bytes promised and not yet acknowledged.
    pub unacknowledged: u64,
    /// Bytes acknowledged (`tcpi_bytes_acked`).
    pub acknowledged: u64,
    /// Payload bytes received in order, modulo 2^32 (`tcpi_bytes_received`).
    pub received: u32,
    /// The round trip as the receiver sees it, in microseconds (`tcpi_rcv_rtt`); 0 while little was received.
    pub receive_rtt_us: u32,
    /// Bytes sent and not yet acknowledged (`tcpi_unacked` counts segments).
    pub flight: u32,
    /// Of these, bytes that the peer has out of order (`tcpi_sacked`).
    pub sacked: u32,
    /// Of these, bytes taken as lost and not sent again yet (`tcpi_lost`).
    pub lost: u32,
    /// Of these, bytes sent again and neither acknowledged nor taken as lost once more (`tcpi_retrans` counts segments).
    pub repeating: u32,
    /// Segments sent again since the beginning (`tcpi_total_retrans`).
    pub repeated: u32,
    /// Segments were seen out of order on the path (`tcpi_reord_seen` counts how often).
    pub reordering_seen: bool,
    /// Data that came with the SYN was acknowledged (`TCPI_OPT_SYN_DATA`).
    pub syn_data: bool,
    /// Shift of the window that the peer offers, and of ours (`tcpi_snd_wscale`, `tcpi_rcv_wscale`).
    pub window_shift: (u8, u8),
    /// Both sides use timestamps (`TCPI_OPT_TIMESTAMPS`).
    pub timestamps: bool,
    /// Both sides use SACK (`TCPI_OPT_SACK`).
    pub sack: bool,
    /// Both sides use ECN (`TCPI_OPT_ECN`).
    pub ecn: bool,
}

/// What a flow waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timer {
    /// An acknowledgment, before it sends again or probes.
    Retransmission,
    /// The next probe of a closed window (RFC 9293 section 3.8.6.1).
    Persist,
    /// Company for an acknowledgment of its own.
    DelayedAck,
    /// The next keep-alive probe, or the end of FIN-WAIT-2 or TIME-WAIT.
    Linger,
}

/// Bytes of one flow, all of it: the control block, its places in the table and in the queue of output, and what its owner
/// keeps for a flow whose payload is made from a template (an index).
#[cfg(test)]
const COST: usize = size_of::<Flow>() + 8 * 8 / 3 + size_of::<u32>() + size_of::<u32>();

/// DESIGN: a generated flow costs 256 bytes or less.
#[cfg(test)]
const _: () = assert!(COST <= 256);

impl Flow {
    /// What its owner may know of it.
    pub(crate) fn info(&self) -> Info {
        let recovery = self.recovery();
        Info {
            state: self.state,
            congestion_state: recovery.map_or(CongestionState::Open, Recovery::state),
            retries: self.retries,
            backoff: self.backoff,
            rtt_us: self.rtt.smoothed().number(),
            rtt_variation_us: self.rtt.variation().number(),
            min_rtt_us: self.rtt.least().number(),
            rto_us: self.rtt.timeout(self.backoff).number().into(),
            congestion_window: self.congestion.window(),
            bbr: self.congestion.bbr().and_then(Bbr::info),
            slow_start_threshold: self.congestion.threshold(),
            mss: self.mss,
            send_window: self.send_window,
            receive_window: self.receive_edge.since(self.receive_next),
            unacknowledged: self.promised - self.una_offset,
            acknowledged: self.una_offset,
            received: self.received,
            receive_rtt_us: self
                .extra
                .as_ref()
                .and_then(|extra| extra.tuning.as_ref())
                .map_or(0, Autotune::rtt_us),
            flight: self.flight(),
            sacked: recovery.map_or(0, Recovery::sacked),
            lost: recovery.map_or(0, Recovery::lost),
            repeating: recovery.map_or(0, |recovery| recovery.repeating(self.send_una)),
            repeated: self.extra.as_ref().map_or(0, |extra| extra.repeated),
            reordering_seen: recovery
                .map_or(self.flags.has(Flags::REORDERING_SEEN), Recovery::reordering_seen),
            syn_data: self.extra.as_ref().is_some_and(|extra| extra.syn_data),
            window_shift: (self.send_shift, self.receive_shift),
            timestamps: self.flags.has(Flags::TIMESTAMPS),
            sack: self.flags.has(Flags::SACK),
            ecn: self.flags.has(Flags::ECN),
        }
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    #[test]
    fn something_of_each_cache_line_is_touched() {
        let touched = [
            offset_of!(Flow, una_offset),
            offset_of!(Flow, tuple) + offset_of!(Tuple, local_port),
            offset_of!(Flow, receive_next),
            offset_of!(Flow, congestion),
            offset_of!(Flow, sent_at),
            offset_of!(Flow, traffic_class),
        ];
        println!("{} bytes, touched at {touched:?}", size_of::<Flow>());
        for first in [0, 32] {
            let lines: std::collections::BTreeSet<_> = touched.iter().map(|at| (first + at) / 64).collect();
            assert_eq!(lines.len(), (first + size_of::<Flow>()).div_ceil(64), "from {first}: {lines:?}");
        }
    }
}

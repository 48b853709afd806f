//! The control block of one connection.

use core::net::SocketAddrV4;
use overfly_wire::MacAddr;

use crate::congestion::Reno;
use crate::reassembly::Reassembly;
use crate::rtt::Rtt;
use crate::sequence::distance;
use crate::time::{Instant, Tick};
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
    /// The segment at SND.UNA is to be sent again.
    RETRANSMIT = 5;
    /// The SYN, or SYN and ACK, is to be sent.
    SYN_WANTED = 6;
    /// A probe (zero window or keep-alive) is to be sent.
    PROBE_WANTED = 7;
    /// The owner turned Nagle's algorithm off.
    NO_DELAY = 8;
    /// The owner holds partial segments back.
    CORK = 9;
    /// Both sides sent the timestamps option.
    TIMESTAMPS = 10;
    /// `timed_sequence` and `timed_at` measure a round trip.
    TIMED = 11;
    /// The retransmission timer runs as the persist timer.
    PERSIST = 12;
    /// A persist timer found an open but small window: send what fits.
    FORCE = 13;
    /// Counts as half-open at its listener.
    HALF_OPEN = 14;
    /// Counts as not yet accepted at its listener.
    UNACCEPTED = 15;
    /// The next hop's address is being asked for.
    NO_NEXT_HOP = 16;
    /// The owner has been told `Released`, or never knew the flow.
    RELEASED = 17;
    /// Stands in the flow table.
    IN_TABLE = 18;
    /// An acknowledgment may have made room to send.
    SEND_WANTED = 19;
}

impl Flags {
    pub(crate) const fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    pub(crate) const fn has_any(self, flags: &[Self]) -> bool {
        let mut index = 0;
        while index < flags.len() {
            if self.has(flags[index]) {
                return true;
            }
            index += 1;
        }
        false
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

    pub(crate) fn take(&mut self, flag: Self) -> bool {
        let was = self.has(flag);
        self.clear(flag);
        was
    }
}

/// One connection. Names after RFC 9293 section 3.3.1 where it has one.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) local: SocketAddrV4,
    pub(crate) remote: SocketAddrV4,
    pub(crate) next_hop: MacAddr,
    pub(crate) state: State,
    pub(crate) flags: Flags,

    /// SND.UNA: the oldest unacknowledged sequence number.
    pub(crate) send_una: u32,
    /// SND.NXT: the next to send; goes back to SND.UNA after a timeout.
    pub(crate) send_next: u32,
    /// The highest SND.NXT has been: acknowledgments up to here are valid.
    pub(crate) send_max: u32,
    /// SND.WND, scaled.
    pub(crate) send_window: u32,
    /// The largest SND.WND seen (sender's silly-window avoidance, RFC 9293 section 3.8.6.2.1).
    pub(crate) send_window_max: u32,
    /// SND.WL1 and SND.WL2.
    pub(crate) window_sequence: u32,
    pub(crate) window_ack: u32,
    /// Offset in the sent stream of SND.UNA (of the first byte while the SYN is unacknowledged).
    pub(crate) una_offset: u64,
    /// Bytes that the owner has promised since the beginning. At least `una_offset`.
    pub(crate) promised: u64,

    /// RCV.NXT.
    pub(crate) receive_next: u32,
    /// RCV.NXT + RCV.WND as last advertised: never moves left.
    pub(crate) receive_edge: u32,
    /// Bytes delivered to the owner and not yet consumed.
    pub(crate) held: u32,
    /// RCV.NXT when an acknowledgment was last sent.
    pub(crate) acked_next: u32,
    pub(crate) reassembly: Option<Box<Reassembly>>,

    /// The peer's latest timestamp (TS.Recent, RFC 7323 section 4.3), and when it came.
    pub(crate) timestamp_recent: u32,
    pub(crate) timestamp_recent_at: Tick,
    /// Added to the tick for our own timestamps.
    pub(crate) timestamp_offset: u32,

    pub(crate) rtt: Rtt,
    pub(crate) timed_sequence: u32,
    pub(crate) timed_at: Instant,
    pub(crate) congestion: Reno,

    /// Largest payload of a segment to the peer, options deducted.
    pub(crate) mss: u16,
    pub(crate) send_shift: u8,
    pub(crate) receive_shift: u8,
    pub(crate) duplicate_acks: u8,
    /// Timeouts, or probes without an answer, in a row.
    pub(crate) retries: u8,
    /// Doublings of the timeout (RFC 6298 section 5.5); goes on while a closed window is being probed.
    pub(crate) backoff: u8,

    /// Retransmission or persist.
    pub(crate) retransmit_at: Option<Tick>,
    /// Delayed acknowledgment.
    pub(crate) ack_at: Option<Tick>,
    /// TIME-WAIT, FIN-WAIT-2 or keep-alive.
    pub(crate) linger_at: Option<Tick>,
    /// When data was last sent (restart after idle, RFC 5681 section 4.1).
    pub(crate) sent_at: Tick,
    /// Keep-alive interval in ticks; zero is off.
    pub(crate) keep_alive: u32,
    pub(crate) link: Link,
    /// The listener of a passive open.
    pub(crate) listener: u32,
}

impl Flow {
    /// The sequence number after the last promised byte: the FIN's, once it is wanted. Not once that was acknowledged.
    pub(crate) fn data_end(&self) -> u32 {
        self.first_data().wrapping_add((self.promised - self.una_offset) as u32)
    }

    /// SND.UNA, or the byte after an unacknowledged SYN.
    fn first_data(&self) -> u32 {
        if matches!(self.state, State::SynSent | State::SynReceived) {
            self.send_una.wrapping_add(1)
        } else {
            self.send_una
        }
    }

    /// The offset in the sent stream of `sequence`.
    pub(crate) fn offset(&self, sequence: u32) -> u64 {
        self.una_offset + u64::from(sequence.wrapping_sub(self.first_data()))
    }

    /// Outstanding bytes.
    pub(crate) fn in_flight(&self) -> u32 {
        self.send_next.wrapping_sub(self.send_una)
    }

    /// Everything sent has been acknowledged.
    pub(crate) fn all_acknowledged(&self) -> bool {
        self.send_una == self.send_max
    }

    /// Something is due to be sent whatever the windows say, or may be.
    pub(crate) fn has_output(&self) -> bool {
        self.flags.has_any(&[
            Flags::ACK_NOW,
            Flags::RESET_WANTED,
            Flags::RETRANSMIT,
            Flags::SYN_WANTED,
            Flags::PROBE_WANTED,
            Flags::SEND_WANTED,
        ])
    }

    /// The right edge of the receive window as it could be advertised, for an owner that holds `limit` bytes at most.
    pub(crate) fn possible_edge(&self, limit: u32) -> u32 {
        self.receive_next.wrapping_add(limit.saturating_sub(self.held))
    }

    /// The window could open by so much that the peer should hear of it unasked (RFC 9293 section 3.8.6.2.2).
    pub(crate) fn window_is_worth_telling(&self, limit: u32) -> bool {
        let gain = distance(self.receive_edge, self.possible_edge(limit));
        let open = distance(self.receive_next, self.receive_edge);
        let mss = u32::from(self.mss);
        gain >= limit / 4 || (open < mss && gain >= mss.min(limit / 2))
    }

    /// The earliest of the deadlines.
    pub(crate) fn deadline(&self) -> Option<Tick> {
        let earlier = |a: Option<Tick>, b: Option<Tick>| match (a, b) {
            (Some(a), Some(b)) => Some(if b.is_before(a) { b } else { a }),
            (a, b) => a.or(b),
        };
        earlier(earlier(self.retransmit_at, self.ack_at), self.linger_at)
    }
}

/// What is known of a flow (compare Linux's `struct tcp_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Where in RFC 9293's state diagram.
    pub state: State,
    /// Smoothed round-trip time in microseconds; 0 without a sample.
    pub rtt_us: u32,
    /// Its variation in microseconds.
    pub rtt_variation_us: u32,
    /// Retransmission timeout in microseconds.
    pub rto_us: u64,
    /// Congestion window in bytes.
    pub congestion_window: u32,
    /// Slow-start threshold in bytes.
    pub slow_start_threshold: u32,
    /// Payload of a full segment in bytes.
    pub mss: u16,
    /// The window that the peer offers, in bytes.
    pub send_window: u32,
    /// The window that we offer, in bytes.
    pub receive_window: u32,
    /// Bytes promised and not yet acknowledged.
    pub unacknowledged: u64,
    /// Bytes acknowledged.
    pub acknowledged: u64,
    /// Shift of the window that the peer offers, and of ours.
    pub window_shift: (u8, u8),
    /// Both sides use timestamps.
    pub timestamps: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DESIGN: a generated flow costs 256 bytes or less.
    #[test]
    fn control_block_is_small() {
        assert!(size_of::<Flow>() <= 256, "{} bytes", size_of::<Flow>());
    }
}

//! One socket, as it is shown.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::time::Duration;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A TCP listener.
    Listener = 1,
    /// A TCP connection.
    Connection = 2,
    /// A UDP socket.
    Datagram = 3,
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// An acknowledgment, before it sends again.
    Retransmission = 1,
    /// The next probe of a closed window.
    Persist = 2,
    /// The next keep-alive probe, or the end of FIN-WAIT-2 or TIME-WAIT.
    Linger = 3,
    /// An acknowledgment of its own to go out.
    DelayedAck = 4,
}

/// Words of a row.
pub(super) const WORDS: usize = 24;

/// A socket of a stack. Sizes in bytes, times in microseconds; 0 where there is nothing to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Row {
    local_address: [u8; 16],
    remote_address: [u8; 16],
    local_port: u16,
    remote_port: u16,
    /// The program's descriptor; -1: it has closed it, or has not accepted it yet.
    pub descriptor: i32,
    kind: u8,
    /// The number that Linux has for the state (include/net/tcp_states.h).
    pub state: u8,
    has_remote: u8,
    timer: u8,
    timer_left_us: u32,
    /// Bytes, or connections of a listener, that wait to be taken by the program.
    pub receive_queue: u32,
    /// Bytes written and not acknowledged, or a listener's backlog.
    pub send_queue: u32,
    /// Congestion window.
    pub congestion_window: u32,
    /// Slow-start threshold; `u32::MAX`: none yet.
    pub slow_start_threshold: u32,
    /// Smoothed round-trip time.
    pub rtt_us: u32,
    /// Its variation.
    pub rtt_variation_us: u32,
    /// The least round-trip time.
    pub min_rtt_us: u32,
    /// Retransmission timeout.
    pub rto_us: u32,
    /// The window that the peer offers.
    pub send_window: u32,
    /// The window that we offer.
    pub receive_window: u32,
    /// Sent and not acknowledged.
    pub flight: u32,
    /// Of these, what the peer has out of order.
    pub sacked: u32,
    /// Of these, what is taken as lost.
    pub lost: u32,
    /// Payload of a full segment.
    pub mss: u16,
    /// Retransmissions in a row without an acknowledgment.
    pub retries: u8,
    /// Doublings of the timeout.
    pub backoff: u8,
    /// Shift of the window that the peer offers.
    pub send_shift: u8,
    /// Shift of ours.
    pub receive_shift: u8,
    /// Both sides use timestamps.
    pub timestamps: u8,
    /// Both sides use SACK.
    pub sack: u8,
    /// Both sides use ECN.
    pub ecn: u8,
    /// Accepted, rather than connected.
    pub passive: u8,
    padding: [u8; 10],
    /// Acknowledged since the connection began.
    pub acknowledged: u64,
    /// Received in order since the connection began, modulo 2^32.
    pub received: u64,
    reserved: [u64; 7],
}

const _: () = assert!(size_of::<Row>() == WORDS * 8);

impl Row {
    /// A socket between these ends.
    #[must_use]
    pub fn new(kind: Kind, descriptor: i32, local: SocketAddr, remote: Option<SocketAddr>) -> Row {
        let bytes = |address: IpAddr| match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        let mut row = Row { kind: kind as u8, descriptor, ..Row::default() };
        (row.local_address, row.local_port) = (bytes(local.ip()), local.port());
        if let Some(remote) = remote {
            (row.remote_address, row.remote_port, row.has_remote) = (bytes(remote.ip()), remote.port(), 1);
        }
        row
    }

    /// What it is; `None` if the row makes no sense.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        [Kind::Listener, Kind::Connection, Kind::Datagram].into_iter().find(|&kind| kind as u8 == self.kind)
    }

    /// This end.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        SocketAddr::new(Ipv6Addr::from(self.local_address).to_canonical(), self.local_port)
    }

    /// The other end, if there is one.
    #[must_use]
    pub fn remote(&self) -> Option<SocketAddr> {
        let address = Ipv6Addr::from(self.remote_address).to_canonical();
        (self.has_remote != 0).then(|| SocketAddr::new(address, self.remote_port))
    }

    /// What runs, and for how long still.
    #[must_use]
    pub fn timer(&self) -> Option<(Timer, Duration)> {
        let timer = [Timer::Retransmission, Timer::Persist, Timer::Linger, Timer::DelayedAck]
            .into_iter()
            .find(|&timer| timer as u8 == self.timer)?;
        Some((timer, Duration::from_micros(u64::from(self.timer_left_us))))
    }

    /// Says what runs.
    pub fn set_timer(&mut self, timer: Option<(Timer, Duration)>) {
        if let Some((timer, left)) = timer {
            self.timer = timer as u8;
            self.timer_left_us = u32::try_from(left.as_micros()).unwrap_or(u32::MAX);
        }
    }
}

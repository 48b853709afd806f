//! What a program has set of a socket.

use core::time::Duration;

use overfly_engine::Algorithm;

use super::SEND_LIMIT;

/// What accepted sockets inherit from their listener, and an active open from its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// TCP_NODELAY.
    pub no_delay: bool,
    /// TCP_CORK.
    pub cork: bool,
    /// SO_KEEPALIVE.
    pub keep_alive: bool,
    /// TCP_KEEPIDLE.
    pub keep_idle: Duration,
    /// TCP_KEEPINTVL.
    pub keep_interval: Duration,
    /// TCP_KEEPCNT.
    pub keep_probes: u8,
    /// TCP_USER_TIMEOUT; zero leaves it to the engine.
    pub user_timeout: Duration,
    /// TCP_SYNCNT; zero leaves it to the administrator.
    pub syn_retries: u8,
    /// TCP_QUICKACK, once it was set.
    pub quick_ack: Option<bool>,
    /// TCP_MAXSEG in bytes; zero leaves it to the path and the peer.
    pub max_segment: u16,
    /// IP_TOS, or IPV6_TCLASS.
    pub traffic_class: u8,
    /// IP_TTL, which counts for peers of IPv4; -1 leaves it to the administrator.
    pub time_to_live: i16,
    /// IPV6_UNICAST_HOPS, which counts for peers of IPv6; -1 as above.
    pub hop_limit: i16,
    /// TCP_CONGESTION; `None` leaves it to the administrator.
    pub congestion: Option<Algorithm>,
    /// SO_RCVBUF as asked for, in bytes; `None` lets the receive window grow by itself.
    pub receive_limit: Option<u32>,
    /// IPV6_V6ONLY of an accepted socket.
    pub v6only: bool,
    /// SO_LINGER: `Some(0)` makes close() send RST.
    pub linger: Option<Duration>,
    /// What SO_LINGER says of the time, whether or not it is on.
    pub linger_time: Duration,
    /// SO_RCVTIMEO; zero, for one below zero, does not wait.
    pub receive_timeout: Option<Duration>,
    /// SO_SNDTIMEO, as above.
    pub send_timeout: Option<Duration>,
    /// SO_SNDBUF as asked for, in bytes.
    pub send_limit: usize,
    /// What SO_SNDBUF says; zero is twice the limit.
    pub send_buffer: u32,
    /// SO_RCVLOWAT in bytes.
    pub receive_low_water: u32,
    /// TCP_NOTSENT_LOWAT in bytes; zero leaves it to the administrator.
    pub unsent_low_water: u32,
    /// TCP_INQ.
    pub says_inq: bool,
    /// SO_ZEROCOPY.
    pub zerocopy: bool,
}

impl Settings {
    /// How many hops packets to peers of IPv4 may go, and to those of IPv6, as the engine has it: 0 leaves it to the
    /// administrator. A packet that may go nowhere goes one hop.
    pub(crate) fn hops(&self) -> (u8, u8) {
        let hops = |hops: i16| if hops < 0 { 0 } else { hops.clamp(1, 255) as u8 };
        (hops(self.time_to_live), hops(self.hop_limit))
    }

    /// A fresh socket's.
    pub const DEFAULT: Self = Self {
        no_delay: false,
        cork: false,
        keep_alive: false,
        // Linux's net.ipv4.tcp_keepalive_time, tcp_keepalive_intvl and tcp_keepalive_probes, as they come.
        keep_idle: Duration::from_secs(7200),
        keep_interval: Duration::from_secs(75),
        keep_probes: 9,
        user_timeout: Duration::ZERO,
        syn_retries: 0,
        quick_ack: None,
        max_segment: 0,
        traffic_class: 0,
        time_to_live: -1,
        hop_limit: -1,
        congestion: None,
        receive_limit: None,
        v6only: false,
        linger: None,
        linger_time: Duration::ZERO,
        receive_timeout: None,
        send_timeout: None,
        send_limit: SEND_LIMIT,
        send_buffer: 0,
        receive_low_water: 1,
        unsent_low_water: 0,
        says_inq: false,
        zerocopy: false,
    };
}

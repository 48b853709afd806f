//! What an engine is told when it is made.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use overfly_wire::MacAddr;

use crate::congestion::Algorithm;
use crate::prefix::Prefix;
use crate::recovery::Bounds;
use crate::tuple::Tuple;

/// The settings of one engine. [`Config::new`] gives the defaults; [`crate::Engine::new`] refuses what is out of range.
#[derive(Clone, Debug)]
pub struct Config {
    /// The interface's hardware address: the source of every frame.
    pub mac: MacAddr,
    /// The interface's own address: answers ARP and ping where [`Config::alone`] is set.
    pub address: Ipv4Addr,
    /// Length in bits of the prefix that is reached without the gateway. 0 to 32.
    pub prefix_len: u8,
    /// The next hop for everything outside the prefix.
    pub gateway: Option<Ipv4Addr>,
    /// The interface's own IPv6 address, if it has one: answers neighbour discovery and ping where [`Config::alone`] is set.
    pub address6: Option<Ipv6Addr>,
    /// Length in bits of its prefix. 0 to 128.
    pub prefix6_len: u8,
    /// The next hop for every IPv6 destination outside the prefix.
    pub gateway6: Option<Ipv6Addr>,
    /// More addresses of ours: answered for as [`Config::address`] where [`Config::alone`] is set, so that one engine can be a
    /// thousand clients, or servers. No other host's address may be in them. At most 64.
    pub own_prefixes: Vec<Prefix>,
    /// Largest IP packet in bytes. 576 to 65535; IPv6 needs 1280.
    pub mtu: u16,
    /// The link completes TCP checksums (CHECKSUM_PARTIAL): frames leave with that of the pseudo-header only.
    pub checksum_offload: bool,
    /// The link cuts frames into segments (TSO) and completes the checksums of those that it cuts: TCP payload bytes of one frame at
    /// most, 0 if it does not. At most 65,435; the link's frames ([`FrameSink::long_frame`](overfly_wire::FrameSink::long_frame))
    /// must have room for them and for 114 bytes of headers.
    pub segment_offload: u32,
    /// No kernel shares the link: the engine itself answers and asks ARP and neighbour discovery, answers ping, and refuses what comes to
    /// ports at which nobody is.
    pub alone: bool,
    /// The peers are on this host: they may have our own address, too.
    pub loopback: bool,
    /// Accept a TCP checksum that holds only the pseudo-header's sum, as a Linux peer leaves it for a device to complete
    /// (CHECKSUM_PARTIAL): the link is memory, such as veth.
    pub partial_checksums: bool,
    /// Hops that our IPv4 packets may go (RFC 791's TTL). At least 1.
    pub hop_limit: u8,
    /// Hops that our IPv6 packets may go (RFC 8200's hop limit). At least 1.
    pub hop_limit6: u8,
    /// What the administrator set for single routes. The longest prefix that has a destination counts; at most 4,096.
    pub routes: Vec<Route>,
    /// Control blocks at most, TIME-WAIT ones included. 1 to 2^31 - 1.
    pub max_flows: u32,
    /// Control blocks in TIME-WAIT at most; beyond it a flow ends at once, as with Linux's tcp_max_tw_buckets.
    pub max_time_wait: u32,
    /// Half-open connections that a listener holds at least, whatever its backlog; more are answered as
    /// [`Config::syn_cookies`] says.
    pub min_half_open: u32,
    /// Next hops that are remembered at most: strangers choose how many there seem to be. 1 to 2^24.
    pub max_neighbors: u32,
    /// Answers that belong to no flow (RST, ARP, ping, …) and wait to be sent, at most. 1 to 2^20.
    pub max_answers: u32,
    /// Bytes that an owner holds for a flow at most: what the receive window may grow to. 1,024 to 2^30.
    pub receive_window: u32,
    /// The receive window that a flow begins with: it grows as the owner consumes. 1,024 to 2^30; more than
    /// [`Config::receive_window`] means no more than that.
    pub initial_receive_window: u32,
    /// Window scale that SYNs offer at least (RFC 7323 section 2.2); more if [`Config::receive_window`] needs it. Linux's follows
    /// from all of the largest receive buffer, of which the window is a part. 0 to 14.
    pub window_scale: u8,
    /// Window scaling (RFC 7323 section 2); without it no window is larger than 65,535 bytes.
    pub window_scaling: bool,
    /// Bytes of out-of-order data held over all flows at most, with what keeps them.
    pub reassembly_budget: usize,
    /// Pieces that one flow's out-of-order data may lie in, with gaps between them: each segment that arrives out of order is
    /// looked for among them. 1 to 65,535.
    pub max_reassembly_blocks: u16,
    /// Ranges of bytes in flight whose fates are told apart, of one flow: what SACK blocks would split further counts as not
    /// received. 16 to 65,535.
    pub max_sack_ranges: u16,
    /// Bytes that all flows' ranges take at most: beyond it, SACK blocks split none of them further.
    pub scoreboard_budget: usize,
    /// Ranges sent again in one recovery whose duplicates are waited for (RFC 3708 section 2): with more, nothing is undone. 0
    /// to 65,535.
    pub max_repeated_ranges: u16,
    /// Segments that one flow sends before others have their turn. 1 to 65,535.
    pub max_burst: u16,
    /// How long an ACK may wait for company. At most 500 ms (RFC 9293 section 3.8.6.3).
    pub delayed_ack: Duration,
    /// Segments that may arrive one after the other without an acknowledgment; 0 and 1: each is acknowledged.
    pub ack_stretch: u16,
    /// A connection's first segments, and what comes while its owner answers nothing, are acknowledged at once, as on Linux; else
    /// each waits for [`Config::delayed_ack`].
    pub quick_acks: bool,
    /// How long TIME-WAIT lasts: 2 MSL (RFC 9293 section 3.4.2).
    pub time_wait: Duration,
    /// How long a flow without an owner may stay in FIN-WAIT-2.
    pub fin_timeout: Duration,
    /// Bytes of the initial congestion window; 0 means RFC 6928's ten segments.
    pub initial_window: u32,
    /// What governs a flow's congestion window.
    pub congestion: Algorithm,
    /// A flow that sent nothing for a retransmission timeout starts slowly again (RFC 5681 section 4.1).
    pub slow_start_after_idle: bool,
    /// Selective acknowledgments (RFC 2018).
    pub sack: bool,
    /// What arrived twice is reported (RFC 2883), where there are selective acknowledgments.
    pub duplicate_sack: bool,
    /// Tail loss probes (RFC 8985 section 7), where there are selective acknowledgments.
    pub loss_probes: bool,
    /// Timestamps and PAWS (RFC 7323).
    pub timestamps: bool,
    /// Explicit congestion notification (RFC 3168).
    pub ecn: Ecn,
    /// What becomes of a SYN when a listener's queue of half-open connections is full.
    pub syn_cookies: SynCookies,
    /// Connections that [`crate::Engine::set_fast_open`] asked for carry data in their SYN (RFC 7413 section 4.2.1).
    pub fast_open_client: bool,
    /// Data in a SYN with a cookie of ours is taken (RFC 7413 section 4.2.2). An owner that cannot bear a request twice must
    /// not have it (section 6.1).
    pub fast_open_server: bool,
    /// A SYN of ours carries data even without a cookie (0x4 of Linux's net.ipv4.tcp_fastopen), where servers do not ask for one.
    pub fast_open_client_without_cookie: bool,
    /// Data in a SYN is taken even without a cookie (0x200 of net.ipv4.tcp_fastopen), whoever claims to be its source.
    pub fast_open_server_without_cookie: bool,
    /// Connections of a listener at most that were opened so and have not finished their handshake (RFC 7413 section 5.1).
    pub max_fast_open: u32,
    /// Servers whose Fast Open cookies are remembered at most (RFC 7413 section 4.1.3). 1 to 2^24.
    pub max_fast_open_servers: u32,
    /// UDP destinations at most whose path MTU is remembered, for ten minutes each. 1 to 2^24.
    pub max_paths: u32,
    /// Look for a smaller size when full segments time out again and again, without word from a router (RFC 4821 section 7.7;
    /// Linux's net.ipv4.tcp_mtu_probing). Off as there: a path that loses one packet in ten looks the same.
    pub mtu_probing: bool,
    /// Timeouts of full segments in a row that make a path suspect (Linux's net.ipv4.tcp_retries1). At least 1.
    pub black_hole_timeouts: u8,
    /// Challenge ACKs a second at most (RFC 5961 section 7).
    pub challenge_acks_per_s: u32,
    /// Port unreachable messages a second at most (RFC 1812 section 4.3.2.8), where [`Config::alone`] is set.
    pub port_unreachables_per_s: u32,
    /// UDP datagrams that wait for one neighbour's hardware address at most (RFC 1122 section 2.3.2.2).
    pub held_datagrams: u16,
    /// Neighbours that SYNs and UDP datagrams wait for at most.
    pub max_unresolved: u16,
    /// Times that a neighbour is asked for, a second apart, before those who wait for it are told that there is none (RFC 4861
    /// section 10's MAX_MULTICAST_SOLICIT). At least 1.
    pub neighbor_solicitations: u8,
    /// Connections at most that left ([`crate::Engine::forget`]) and whose last frames are dropped without a RST, which come
    /// within moments. 1 to 2^24.
    pub max_departed: u32,
    /// Times that a data segment is sent again before the flow fails. RFC 1122 section 4.2.3.5 wants 3 at least.
    pub data_retries: u8,
    /// Times that a SYN is sent again before the flow fails.
    pub syn_retries: u8,
    /// Times that a SYN is sent again before those, each a second after the one before, until the time begins to double (Linux's
    /// net.ipv4.tcp_syn_linear_timeouts).
    pub syn_linear_timeouts: u8,
    /// Times that a SYN's answer is sent again before the handshake is given up.
    pub syn_ack_retries: u8,
    /// Probes of a closed window that a flow without an owner sends, each twice as late as the one before: a peer could hold
    /// it for ever. 1 to 255.
    pub orphan_probes: u8,
    /// Secret for the flow table's hash, initial sequence numbers (RFC 6528) and timestamp offsets.
    pub hash_key: [u8; 16],
}

/// What an administrator set for a route (ip-route(8)). Zero and `None` leave it to [`Config`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Where it leads to.
    pub to: Prefix,
    /// The largest packet that the route takes (mtu), in bytes.
    pub mtu: u16,
    /// Segments of the initial congestion window (initcwnd).
    pub initial_window: u32,
    /// Segments of the receive window that a flow begins with (initrwnd).
    pub initial_receive_window: u32,
    /// What our MSS option says at most (advmss), in bytes.
    pub advertised_segment: u16,
    /// No acknowledgment is delayed (quickack).
    pub quick_ack: bool,
    /// What governs the congestion window (congctl).
    pub congestion: Option<Algorithm>,
}

impl Route {
    /// A route for which nothing is set.
    #[must_use]
    pub const fn new(to: Prefix) -> Self {
        Self {
            to,
            mtu: 0,
            initial_window: 0,
            initial_receive_window: 0,
            advertised_segment: 0,
            quick_ack: false,
            congestion: None,
        }
    }
}

/// Explicit congestion notification, with the values of Linux's net.ipv4.tcp_ecn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ecn {
    /// Neither asked for nor agreed to.
    Off,
    /// Agreed to when the peer asks.
    Accept,
    /// Asked for as well.
    Ask,
}

/// SYN cookies (RFC 4987 section 3.6), with the values of Linux's net.ipv4.tcp_syncookies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SynCookies {
    /// The SYN is dropped.
    Off,
    /// The SYN is answered with a cookie.
    WhenFull,
    /// Every SYN is answered with a cookie: for tests.
    Always,
}

/// Each is looked at for every SYN.
const MAX_OWN_PREFIXES: u64 = 64;
/// Each is looked at for every new flow.
const MAX_ROUTES: u64 = 4096;

impl Config {
    /// The defaults for an interface. Give [`Config::hash_key`] random bytes wherever peers are not trusted.
    #[must_use]
    pub fn new(mac: MacAddr, address: Ipv4Addr, prefix_len: u8) -> Self {
        Self {
            mac,
            address,
            prefix_len,
            gateway: None,
            address6: None,
            prefix6_len: 64,
            gateway6: None,
            own_prefixes: Vec::new(),
            mtu: 1500,
            checksum_offload: false,
            segment_offload: 0,
            alone: false,
            loopback: false,
            partial_checksums: false,
            hop_limit: 64,
            hop_limit6: 64,
            routes: Vec::new(),
            max_flows: 65_536,
            max_time_wait: 65_536,
            min_half_open: 256,
            max_neighbors: 65_536,
            max_answers: 1024,
            receive_window: 256 * 1024,
            initial_receive_window: 64 * 1024,
            window_scale: 0,
            window_scaling: true,
            reassembly_budget: 64 << 20,
            max_reassembly_blocks: 256,
            max_sack_ranges: 2048,
            scoreboard_budget: 64 << 20,
            max_repeated_ranges: 64,
            max_burst: 64,
            delayed_ack: Duration::from_millis(40),
            ack_stretch: 8,
            quick_acks: true,
            time_wait: Duration::from_secs(50),
            fin_timeout: Duration::from_secs(60),
            initial_window: 0,
            congestion: Algorithm::Cubic,
            slow_start_after_idle: true,
            sack: true,
            duplicate_sack: true,
            loss_probes: true,
            timestamps: true,
            ecn: Ecn::Accept,
            syn_cookies: SynCookies::WhenFull,
            fast_open_client: false,
            fast_open_server: false,
            fast_open_client_without_cookie: false,
            fast_open_server_without_cookie: false,
            max_fast_open: 256,
            max_fast_open_servers: 1024,
            max_paths: 4096,
            mtu_probing: false,
            black_hole_timeouts: 3,
            challenge_acks_per_s: 1000,
            port_unreachables_per_s: 1000,
            held_datagrams: 3,
            max_unresolved: 1024,
            neighbor_solicitations: 3,
            max_departed: 4096,
            data_retries: 15,
            syn_retries: 6,
            syn_linear_timeouts: 0,
            syn_ack_retries: 6,
            orphan_probes: 8,
            hash_key: [0; 16],
        }
    }

    /// The prefix's broadcast address (RFC 919), if the prefix has room for one (RFC 3021).
    pub(crate) fn broadcast(&self) -> Option<Ipv4Addr> {
        let hosts = u32::MAX.checked_shr(u32::from(self.prefix_len)).unwrap_or(0);
        (hosts > 1).then(|| Ipv4Addr::from_bits(self.address.to_bits() | hosts))
    }

    /// What a scoreboard holds at most.
    pub(crate) const fn bounds(&self) -> Bounds {
        Bounds { runs: self.max_sack_ranges, repeated: self.max_repeated_ranges }
    }

    /// Whether we answer for `address` where no kernel does.
    pub(crate) fn is_own(&self, address: IpAddr) -> bool {
        address == IpAddr::V4(self.address)
            || self.address6.is_some_and(|own| address == IpAddr::V6(own))
            || (self.own_prefixes.iter().any(|prefix| prefix.contains(address))
                && self.broadcast().is_none_or(|broadcast| address != IpAddr::V4(broadcast)))
    }

    /// The interface's own address of the family of `address`, or that one if it has none.
    pub(crate) fn address_beside(&self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(_) => self.address.into(),
            IpAddr::V6(_) => self.address6.map_or(address, IpAddr::V6),
        }
    }

    /// Hops that a packet to `destination` may go.
    #[inline]
    pub(crate) const fn hop_limit_to(&self, destination: IpAddr) -> u8 {
        if destination.is_ipv4() { self.hop_limit } else { self.hop_limit6 }
    }

    /// What is set for the route to a connection's peer, if something is set for any route at all.
    #[inline]
    pub(crate) fn route(&self, tuple: &Tuple) -> Option<&Route> {
        if self.routes.is_empty() {
            return None;
        }
        let destination = tuple.remote.ip();
        self.routes.iter().filter(|route| route.to.contains(destination)).max_by_key(|route| route.to.len)
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let least_mtu = if self.address6.is_some() { 1280 } else { 576 };
        let checks = [
            ("prefix_len", u64::from(self.prefix_len), 0, 32),
            ("prefix6_len", u64::from(self.prefix6_len), 0, 128),
            // RFC 8200 section 5 for the lower bound of IPv6.
            ("mtu", u64::from(self.mtu), least_mtu, 65_535),
            ("segment_offload", u64::from(self.segment_offload), 0, 65_435),
            ("initial_receive_window", u64::from(self.initial_receive_window), 1024, 1 << 30),
            ("window_scale", u64::from(self.window_scale), 0, 14),
            ("max_neighbors", u64::from(self.max_neighbors), 1, 1 << 24),
            ("max_answers", u64::from(self.max_answers), 1, 1 << 20),
            ("max_flows", u64::from(self.max_flows), 1, (1 << 31) - 1),
            ("receive_window", u64::from(self.receive_window), 1024, 1 << 30),
            ("delayed_ack in ms", self.delayed_ack.as_millis() as u64, 0, 500),
            ("time_wait in ms", self.time_wait.as_millis() as u64, 0, 600_000),
            ("fin_timeout in ms", self.fin_timeout.as_millis() as u64, 0, 86_400_000),
            ("initial_window", u64::from(self.initial_window), 0, 1 << 30),
            ("black_hole_timeouts", u64::from(self.black_hole_timeouts), 1, 255),
            ("neighbor_solicitations", u64::from(self.neighbor_solicitations), 1, 255),
            ("max_reassembly_blocks", u64::from(self.max_reassembly_blocks), 1, 65_535),
            ("max_sack_ranges", u64::from(self.max_sack_ranges), 16, 65_535),
            ("hop_limit", u64::from(self.hop_limit), 1, 255),
            ("hop_limit6", u64::from(self.hop_limit6), 1, 255),
            ("routes' count", self.routes.len() as u64, 0, MAX_ROUTES),
            ("max_burst", u64::from(self.max_burst), 1, 65_535),
            ("max_fast_open_servers", u64::from(self.max_fast_open_servers), 1, 1 << 24),
            ("max_paths", u64::from(self.max_paths), 1, 1 << 24),
            ("max_departed", u64::from(self.max_departed), 1, 1 << 24),
            ("orphan_probes", u64::from(self.orphan_probes), 1, 255),
            ("own_prefixes' count", self.own_prefixes.len() as u64, 0, MAX_OWN_PREFIXES),
        ];
        let lengths = self
            .own_prefixes
            .iter()
            .map(|prefix| ("own_prefixes' length", u64::from(prefix.len), 0, u64::from(prefix.most_len())));
        for (option, value, low, high) in checks.into_iter().chain(lengths) {
            if value < low || value > high {
                return Err(ConfigError { option, value, low, high });
            }
        }
        Ok(())
    }
}

/// An option of [`Config`] is out of its range: the program's or the administrator's fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConfigError {
    /// The option's name.
    pub option: &'static str,
    /// What was given.
    pub value: u64,
    /// The least allowed.
    pub low: u64,
    /// The most allowed.
    pub high: u64,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}: expected {} to {}", self.option, self.value, self.low, self.high)
    }
}

impl core::error::Error for ConfigError {}

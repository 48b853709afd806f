//! What an engine is told when it is made.

use core::fmt;
use core::net::Ipv4Addr;
use core::time::Duration;
use overfly_wire::MacAddr;

/// The settings of one engine. [`Config::new`] gives the defaults; [`crate::Engine::new`] refuses what is out of range.
#[derive(Clone, Debug)]
pub struct Config {
    /// The interface's hardware address: the source of every frame.
    pub mac: MacAddr,
    /// The interface's own address: answers ARP and ping where [`Config::arp`] is set.
    pub address: Ipv4Addr,
    /// Length in bits of the prefix that is reached without the gateway. 0 to 32.
    pub prefix_len: u8,
    /// The next hop for everything outside the prefix.
    pub gateway: Option<Ipv4Addr>,
    /// Largest IP packet in bytes. 576 to 65535.
    pub mtu: u16,
    /// No kernel shares the link: answer and ask ARP, answer ping.
    pub arp: bool,
    /// Accept a TCP checksum that holds only the pseudo-header's sum, as a Linux peer leaves it for a device to complete
    /// (CHECKSUM_PARTIAL): the link is memory, such as veth.
    pub partial_checksums: bool,
    /// Control blocks at most, TIME-WAIT ones included. 1 to 2^31 - 1.
    pub max_flows: u32,
    /// Control blocks in TIME-WAIT at most; beyond it a flow ends at once, as with Linux's tcp_max_tw_buckets.
    pub max_time_wait: u32,
    /// Bytes that an owner holds for a flow at most: the receive window. 1,024 to 2^30.
    pub receive_window: u32,
    /// Bytes of out-of-order data held over all flows at most.
    pub reassembly_budget: usize,
    /// How long an ACK may wait for company. At most 500 ms (RFC 9293 section 3.8.6.3).
    pub delayed_ack: Duration,
    /// How long TIME-WAIT lasts: 2 MSL (RFC 9293 section 3.4.2).
    pub time_wait: Duration,
    /// How long a flow without an owner may stay in FIN-WAIT-2.
    pub fin_timeout: Duration,
    /// Bytes of the initial congestion window; 0 means RFC 6928's ten segments.
    pub initial_window: u32,
    /// Times that a data segment is sent again before the flow fails. At least 3 (RFC 1122 section 4.2.3.5).
    pub data_retries: u8,
    /// Times that a SYN is sent again before the flow fails.
    pub syn_retries: u8,
    /// Secret for the flow table's hash, initial sequence numbers (RFC 6528) and timestamp offsets.
    pub hash_key: [u8; 16],
}

impl Config {
    /// The defaults for an interface. Give [`Config::hash_key`] random bytes wherever peers are not trusted.
    #[must_use]
    pub fn new(mac: MacAddr, address: Ipv4Addr, prefix_len: u8) -> Self {
        Self {
            mac,
            address,
            prefix_len,
            gateway: None,
            mtu: 1500,
            arp: false,
            partial_checksums: false,
            max_flows: 65_536,
            max_time_wait: 65_536,
            receive_window: 256 * 1024,
            reassembly_budget: 64 << 20,
            delayed_ack: Duration::from_millis(40),
            time_wait: Duration::from_secs(50),
            fin_timeout: Duration::from_secs(60),
            initial_window: 0,
            data_retries: 15,
            syn_retries: 6,
            hash_key: [0; 16],
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let checks: [(&'static str, u64, u64, u64); 7] = [
            ("prefix_len", u64::from(self.prefix_len), 0, 32),
            ("mtu", u64::from(self.mtu), 576, 65_535),
            ("max_flows", u64::from(self.max_flows), 1, (1 << 31) - 1),
            ("receive_window", u64::from(self.receive_window), 1024, 1 << 30),
            ("delayed_ack in ms", self.delayed_ack.as_millis() as u64, 0, 500),
            ("time_wait in ms", self.time_wait.as_millis() as u64, 0, 600_000),
            ("data_retries", u64::from(self.data_retries), 3, 255),
        ];
        for (option, value, low, high) in checks {
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

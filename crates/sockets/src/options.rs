//! The EF_* options that this library reads from the environment. `overfly run` puts a profile's options there.

/// One option: what it means and what it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Definition {
    /// Name of the environment variable.
    pub name: &'static str,
    /// What it does, with its unit.
    pub meaning: &'static str,
    /// Value when it is not given.
    pub default: u64,
    /// Least value.
    pub low: u64,
    /// Largest value.
    pub high: u64,
}

macro_rules! options {
    ($($(#[doc = $doc:literal])* $field:ident: $name:literal = $default:literal, $low:literal..=$high:literal, $meaning:literal;)*) => {
        /// Every option that the library reads, in alphabetical order.
        pub const DEFINITIONS: &[Definition] = &[$(Definition { name: $name, meaning: $meaning, default: $default, low: $low, high: $high }),*];

        /// The options' values.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Options { $($(#[doc = $doc])* #[doc = $meaning] pub $field: u64,)* }

        impl Options {
            /// Every option at its default.
            pub const DEFAULT: Self = Self { $($field: $default),* };

            /// Sets the option called `name`. Names that this library does not read are no error here: `overfly run`
            /// judges them.
            pub fn set(&mut self, name: &str, value: &str) -> Result<(), Invalid> {
                let Some(definition) = DEFINITIONS.iter().find(|definition| definition.name == name) else { return Ok(()) };
                let number = definition.parse(value)?;
                match name {
                    $($name => self.$field = number,)*
                    _ => {}
                }
                Ok(())
            }
        }
    };
}

options! {
    acceptq_min_backlog: "EF_ACCEPTQ_MIN_BACKLOG" = 1, 0..=65535, "least backlog of a listener, in connections";
    keepalive_intvl: "EF_KEEPALIVE_INTVL" = 0, 0..=32767000, "milliseconds between keep-alive probes where the program does not say; 0: net.ipv4.tcp_keepalive_intvl";
    keepalive_probes: "EF_KEEPALIVE_PROBES" = 0, 0..=127, "keep-alive probes without an answer that end a connection where the program does not say; 0: net.ipv4.tcp_keepalive_probes";
    keepalive_time: "EF_KEEPALIVE_TIME" = 0, 0..=32767000, "milliseconds of silence before the first keep-alive probe where the program does not say; 0: net.ipv4.tcp_keepalive_time";
    max_endpoints: "EF_MAX_ENDPOINTS" = 131072, 4..=2097152, "connections of a process at most, TIME-WAIT ones included";
    no_fail: "EF_NO_FAIL" = 1, 0..=1, "1: what cannot be accelerated runs on the kernel; 0: it is an error";
    poll_fast_usec: "EF_POLL_FAST_USEC" = 32, 0..=4294967295, "while spinning, microseconds between looks at kernel descriptors";
    poll_usec: "EF_POLL_USEC" = 0, 0..=4294967295, "microseconds that a waiting call spins before it sleeps";
    retransmit_threshold: "EF_RETRANSMIT_THRESHOLD" = 15, 3..=255, "retransmissions of a segment before the connection fails";
    retransmit_threshold_syn: "EF_RETRANSMIT_THRESHOLD_SYN" = 6, 1..=255, "retransmissions of a SYN before connect() fails";
    socket_cache_max: "EF_SOCKET_CACHE_MAX" = 4096, 0..=4294967295, "closed accepted sockets kept for the next accept, at most; never more than a quarter of the descriptor limit";
    tcp_fin_timeout: "EF_TCP_FIN_TIMEOUT" = 60, 1..=255, "seconds that a closed connection waits for its peer's FIN";
    tcp_initial_cwnd: "EF_TCP_INITIAL_CWND" = 0, 0..=1048576, "initial congestion window in bytes; 0: RFC 6928";
    tcp_rcvbuf_mode: "EF_TCP_RCVBUF_MODE" = 1, 0..=1, "1: receive windows begin with 64 KiB and grow as the program reads; 0: they are as large as they may be from the start";
    tcp_syncookies: "EF_TCP_SYNCOOKIES" = 1, 0..=1, "1: a full queue of half-open connections answers with SYN cookies; 0: it drops";
    tcp_tconst_msl: "EF_TCP_TCONST_MSL" = 25, 1..=255, "maximum segment lifetime in seconds: TIME-WAIT lasts twice as long";
    udp: "EF_UDP" = 1, 0..=1, "1: UDP sockets are accelerated; 0: they are the kernel's";
}

impl Definition {
    /// Parses and checks a value: a decimal number, or hexadecimal with 0x.
    pub fn parse(&self, value: &str) -> Result<u64, Invalid> {
        let text = value.trim();
        let number = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        match number {
            Ok(number) if (self.low..=self.high).contains(&number) => Ok(number),
            _ => Err(Invalid { definition: *self, value: value.to_owned() }),
        }
    }
}

/// A value that an option cannot have: whoever set it is at fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    /// The option.
    pub definition: Definition,
    /// What was given.
    pub value: String,
}

impl core::fmt::Display for Invalid {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Definition { name, low, high, .. } = self.definition;
        write!(f, "{name} is '{}': expected a number from {low} to {high}", self.value)
    }
}

impl core::error::Error for Invalid {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_lie_in_their_ranges() {
        for definition in DEFINITIONS {
            assert_eq!(
                definition.parse(&definition.default.to_string()),
                Ok(definition.default),
                "{}",
                definition.name
            );
        }
        assert!(DEFINITIONS.is_sorted_by_key(|definition| definition.name));
    }

    #[test]
    fn values_are_checked() {
        let mut options = Options::DEFAULT;
        assert_eq!(options.set("EF_POLL_USEC", "100000"), Ok(()));
        assert_eq!(options.poll_usec, 100_000);
        assert_eq!(options.set("EF_POLL_USEC", "0x10"), Ok(()));
        assert_eq!(options.poll_usec, 16);
        let error = options.set("EF_NO_FAIL", "2").unwrap_err();
        assert_eq!(error.to_string(), "EF_NO_FAIL is '2': expected a number from 0 to 1");
        assert!(options.set("EF_NO_FAIL", "-1").is_err());
        assert!(options.set("EF_NO_FAIL", "").is_err());
        assert_eq!(options.set("EF_UDP", "1"), Ok(()));
    }
}

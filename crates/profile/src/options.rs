//! The EF_* options: one table, which the library and `overfly run` both read. `overfly run` puts a profile's options into
//! the environment, and the library reads them there.

/// What an option's value may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A number from `low` to `high`, decimal or hexadecimal with 0x.
    Number {
        /// Least value.
        low: u64,
        /// Largest value.
        high: u64,
    },
    /// A power of two from `low` to `high`.
    PowerOfTwo {
        /// Least value.
        low: u64,
        /// Largest value.
        high: u64,
    },
    /// One of some words; as a number, its place among them.
    Word {
        /// All there are.
        words: &'static [&'static str],
    },
    /// Printable characters, so many at most; none are the default.
    Text {
        /// Most characters.
        most: usize,
    },
}

impl core::fmt::Display for Shape {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Number { low, high } => write!(f, "a number from {low} to {high}"),
            Self::PowerOfTwo { low, high } => write!(f, "a power of two from {low} to {high}"),
            Self::Word { words } => write!(f, "{}", words.join(" or ")),
            Self::Text { most } => write!(f, "at most {most} printable characters"),
        }
    }
}

/// One option: what it means and what it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Definition {
    /// Name of the environment variable.
    pub name: &'static str,
    /// What it does, with its unit.
    pub meaning: &'static str,
    /// Value when it is not given; a text's is empty.
    pub default: u64,
    /// What it may be.
    pub shape: Shape,
    /// Why it has no effect here, if it has none: it is accepted because profiles for Onload set it.
    pub accepted: Option<&'static str>,
}

impl Definition {
    /// Checks a value and writes it in its plain form: numbers in decimal, texts as they are.
    pub fn check(&self, value: &str) -> Result<String, Invalid> {
        match self.shape {
            Shape::Text { .. } => self.text(value).map(str::to_owned),
            Shape::Number { .. } | Shape::PowerOfTwo { .. } | Shape::Word { .. } => {
                self.number(value).map(|number| self.plain(number))
            }
        }
    }

    /// The default in its plain form.
    #[must_use]
    pub fn default_text(&self) -> String {
        match self.shape {
            Shape::Text { .. } => String::new(),
            Shape::Number { .. } | Shape::PowerOfTwo { .. } | Shape::Word { .. } => self.plain(self.default),
        }
    }

    /// A value in its plain form.
    fn plain(&self, number: u64) -> String {
        match self.shape {
            Shape::Word { words } => usize::try_from(number)
                .ok()
                .and_then(|at| words.get(at))
                .copied()
                .unwrap_or_default()
                .to_owned(),
            _ => number.to_string(),
        }
    }

    fn number(&self, value: &str) -> Result<u64, Invalid> {
        let text = value.trim();
        if let Shape::Word { words } = self.shape {
            let at = words.iter().position(|word| *word == text);
            return at.map(|at| at as u64).ok_or_else(|| self.invalid(value));
        }
        let number = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        let fits = |number: u64| match self.shape {
            Shape::Number { low, high } => (low..=high).contains(&number),
            Shape::PowerOfTwo { low, high } => (low..=high).contains(&number) && number.is_power_of_two(),
            Shape::Word { .. } | Shape::Text { .. } => false,
        };
        number.ok().filter(|&number| fits(number)).ok_or_else(|| self.invalid(value))
    }

    fn text<'a>(&self, value: &'a str) -> Result<&'a str, Invalid> {
        let Shape::Text { most } = self.shape else { return Err(self.invalid(value)) };
        let fits = value.len() <= most && value.bytes().all(|byte| byte.is_ascii_graphic());
        if fits { Ok(value) } else { Err(self.invalid(value)) }
    }

    fn invalid(&self, value: &str) -> Invalid {
        Invalid { definition: *self, value: value.to_owned() }
    }
}

/// The definition of an option.
#[must_use]
pub fn definition(name: &str) -> Option<&'static Definition> {
    DEFINITIONS.iter().find(|definition| definition.name == name)
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
        let Definition { name, shape, .. } = self.definition;
        write!(f, "{name} is '{}': expected {shape}", self.value)
    }
}

impl core::error::Error for Invalid {}

/// Characters of EF_CLUSTER_NAME at most.
pub const CLUSTER_NAME_MAX: usize = 13;

/// A short text, so that [`Options`] stays plain data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Name {
    bytes: [u8; CLUSTER_NAME_MAX],
    length: u8,
}

impl Name {
    const EMPTY: Self = Self { bytes: [0; CLUSTER_NAME_MAX], length: 0 };

    fn new(text: &str) -> Self {
        let mut name = Self::EMPTY;
        for (to, byte) in name.bytes.iter_mut().zip(text.bytes()) {
            *to = byte;
            name.length += 1;
        }
        name
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or("")
    }
}

macro_rules! options {
    (@shape $low:literal..=$high:literal) => { Shape::Number { low: $low, high: $high } };
    (@shape $($word:ident)or+) => { Shape::Word { words: &[$(stringify!($word)),+] } };
    (@shape power $low:literal..=$high:literal) => { Shape::PowerOfTwo { low: $low, high: $high } };
    (
        numbers { $($field:ident: $name:literal = $default:literal, [$($shape:tt)*], $meaning:literal;)* }
        texts { $($text:ident: $text_name:literal, $most:expr, $text_meaning:literal;)* }
        accepted { $($accepted_name:literal = $accepted_default:literal, $accepted_shape:expr, $accepted_meaning:literal, because $reason:literal;)* }
    ) => {
        /// Every option that is known, those with an effect first.
        pub const DEFINITIONS: &[Definition] = &[
            $(Definition { name: $name, meaning: $meaning, default: $default, shape: options!(@shape $($shape)*), accepted: None },)*
            $(Definition { name: $text_name, meaning: $text_meaning, default: 0, shape: Shape::Text { most: $most }, accepted: None },)*
            $(Definition { name: $accepted_name, meaning: $accepted_meaning, default: $accepted_default, shape: $accepted_shape, accepted: Some($reason) },)*
        ];

        /// The values of the options that have an effect.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Options {
            $(#[doc = $meaning] pub $field: u64,)*
            $(#[doc = $text_meaning] pub $text: Name,)*
        }

        impl Options {
            /// Every option at its default.
            pub const DEFAULT: Self = Self { $($field: $default,)* $($text: Name::EMPTY,)* };

            /// Sets the option called `name`. A name that is not known here is no error: `overfly run` judges names.
            pub fn set(&mut self, name: &str, value: &str) -> Result<(), Invalid> {
                let Some(definition) = definition(name) else { return Ok(()) };
                match name {
                    $($name => self.$field = definition.number(value)?,)*
                    $($text_name => self.$text = Name::new(definition.text(value)?),)*
                    _ => drop(definition.check(value)?),
                }
                Ok(())
            }

            /// An option's value in its plain form; `None` if it has no effect, or is unknown.
            #[must_use]
            pub fn value(&self, name: &str) -> Option<String> {
                match name {
                    $($name => definition(name).map(|definition| definition.plain(self.$field)),)*
                    $($text_name => Some(self.$text.as_str().to_owned()),)*
                    _ => None,
                }
            }
        }
    };
}

options! {
    numbers {
        acceptq_min_backlog: "EF_ACCEPTQ_MIN_BACKLOG" = 0, [0..=65535], "least backlog of a listener, in connections";
        checksum_offload: "EF_CHECKSUM_OFFLOAD" = 1, [0..=2], "1: TCP checksums of what is sent are left to the device, where its driver offers that to AF_XDP (`tx-checksum` in `overfly doctor`) and packets fit 1,984 bytes; 2: also to the kernel, where it copies each frame: frames that stay in memory (veth) leave without; 0: each is summed while it is copied";
        cluster_ignore: "EF_CLUSTER_IGNORE" = 1, [0..=1], "1: EF_CLUSTER_NAME counts only where EF_CLUSTER_SIZE is set; 0: it always does";
        background: "EF_BACKGROUND" = 1, [0..=2], "1: when a program has made no call for 2 ms, a thread moves its frames, timers and output in its place, as always where threads have a stack each; 2: that thread begins when the program has other threads, sends or waits elsewhere than in epoll_wait, poll or select, or was away from there for 20 ms, since a process with one thread is faster; 0: they wait for the next call";
        cluster_size: "EF_CLUSTER_SIZE" = 0, [0..=4294967295], "stacks that share one address and port at most, the rest of the listeners being the kernel's; 0: as many as there are processes";
        dynamic_ack_thresh: "EF_DYNAMIC_ACK_THRESH" = 16, [0..=65535], "segments that arrive without an acknowledgment at most, while they come one after the other; 0 and 1: each is acknowledged";
        epoll_mt_safe: "EF_EPOLL_MT_SAFE" = 0, [0..=1], "1: the program promises that its threads do not wait in epoll at once: a spinning epoll_wait lets others at the stack only every 16th time";
        epoll_spin: "EF_EPOLL_SPIN" = 0, [0..=1], "1: epoll_wait spins for EF_POLL_USEC before it sleeps";
        fdtable_size: "EF_FDTABLE_SIZE" = 0, [0..=4294967295], "descriptors that the program may have, as its limit RLIMIT_NOFILE; 0: the limit that there is";
        firewall: "EF_FIREWALL" = 0, [honour or ignore], "honour: whom the host's firewall (nftables, iptables) does not let through for certain, the kernel serves, behind its rules; ignore: accelerated connections do not meet them";
        high_throughput_mode: "EF_HIGH_THROUGHPUT_MODE" = 0, [0..=1], "1: frames are taken and sent in batches four times as large: more a second, each a little later";
        int_driven: "EF_INT_DRIVEN" = 1, [0..=1], "0: stacks poll the device themselves and its interrupts are put off, where the driver can (not on veth); 0 by itself where EF_POLL_USEC is set";
        io_uring: "EF_IO_URING" = 0, [0..=1], "0: io_uring_setup() by syscall(2) answers ENOSYS, as on a kernel without it: what a ring does with sockets and epoll sets is not seen here, and programs do it themselves then; 1: it is the kernel's";
        keepalive_intvl: "EF_KEEPALIVE_INTVL" = 0, [0..=32767000], "milliseconds between keep-alive probes where the program does not say; 0: net.ipv4.tcp_keepalive_intvl";
        keepalive_probes: "EF_KEEPALIVE_PROBES" = 0, [0..=127], "keep-alive probes without an answer that end a connection where the program does not say; 0: net.ipv4.tcp_keepalive_probes";
        keepalive_time: "EF_KEEPALIVE_TIME" = 0, [0..=32767000], "milliseconds of silence before the first keep-alive probe where the program does not say; 0: net.ipv4.tcp_keepalive_time";
        load_env: "EF_LOAD_ENV" = 1, [0..=1], "0: EF_ variables of the environment do not count, only the profile does";
        log_via_ioctl: "EF_LOG_VIA_IOCTL" = 0, [0..=1], "1: messages go to the system log (/dev/log) instead of standard error; where there is none, to standard error";
        max_endpoints: "EF_MAX_ENDPOINTS" = 131072, [4..=2097152], "connections of a process at most, TIME-WAIT ones included";
        max_packets: "EF_MAX_PACKETS" = 32768, [1024..=2097152], "packet buffers of 2 KiB: a quarter for each receive queue, shared by the stacks, and a 64th for each stack to send from";
        min_free_packets: "EF_MIN_FREE_PACKETS" = 100, [0..=1000000000], "packet buffers that must be free for a new stack; with fewer its process runs on the kernel";
        no_fail: "EF_NO_FAIL" = 1, [0..=1], "1: what cannot be accelerated runs on the kernel; 0: it is an error";
        pkt_wait_spin: "EF_PKT_WAIT_SPIN" = 0, [0..=1], "1: a call that waits for packet buffers to send from spins for EF_POLL_USEC before it sleeps";
        poll_adapt: "EF_POLL_ADAPT" = 0, [0..=2], "1: a thread that spun in vain 16 times in a row leaves it out for 128 sleeps, and again if 4 more are in vain, and so does one that has to wait for its processor, for as long as it has to; 2: only the latter; 0: it spins each time";
        poll_fast_usec: "EF_POLL_FAST_USEC" = 32, [0..=4294967295], "while spinning, microseconds between looks at kernel descriptors";
        poll_spin: "EF_POLL_SPIN" = 0, [0..=1], "1: poll and ppoll spin for EF_POLL_USEC before they sleep";
        poll_usec: "EF_POLL_USEC" = 0, [0..=4294967295], "microseconds that a waiting call spins before it sleeps; where it is set, EF_EPOLL_SPIN, EF_POLL_SPIN, EF_SELECT_SPIN, EF_PKT_WAIT_SPIN, EF_TCP_RECV_SPIN, EF_TCP_SEND_SPIN and EF_UDP_RECV_SPIN are 1, and EF_INT_DRIVEN is 0, unless they are set too";
        receive_offload: "EF_RECEIVE_OFFLOAD" = 2, [0..=2], "what may arrive, where the interface has it (`overfly doctor` says so). 0: packets of up to 1,778 bytes; 1: of up to the interface's MTU; 2: and over veth what a kernel peer sends as one frame of several segments, which keeps its segmentation offload";
        retransmit_threshold: "EF_RETRANSMIT_THRESHOLD" = 0, [0..=255], "retransmissions of a segment before the connection fails; 0: net.ipv4.tcp_retries2";
        retransmit_threshold_syn: "EF_RETRANSMIT_THRESHOLD_SYN" = 0, [0..=255], "retransmissions of a SYN before connect() fails; 0: net.ipv4.tcp_syn_retries";
        rxq_size: "EF_RXQ_SIZE" = 1024, [power 64..=32768], "frames in a stack's receive ring, for each queue";
        segment_offload: "EF_SEGMENT_OFFLOAD" = 1, [0..=2], "1: what a connection sends in two segments or more leaves as one frame, where the interface has it (veth; `overfly doctor` says so) and its device takes it at the time; 2: also where the kernel has to cut it on the sender's processor; 0: each segment is a frame";
        select_spin: "EF_SELECT_SPIN" = 0, [0..=1], "1: select and pselect spin for EF_POLL_USEC before they sleep";
        sleep_spin_usec: "EF_SLEEP_SPIN_USEC" = 0, [0..=4294967295], "microseconds that a spinning call sleeps between two looks; 0: not at all";
        socket_cache_max: "EF_SOCKET_CACHE_MAX" = 4096, [0..=4294967295], "closed accepted sockets kept for the next accept, at most; never more than a quarter of the descriptor limit";
        stack_per_thread: "EF_STACK_PER_THREAD" = 3, [0..=3], "3: a process begins with one stack for all its threads, and divides when those that wait in epoll sets meet at the stack's lock 200 times in a second: each of these has a stack of its own from then on, for the sockets that it makes and, where the interface has it, for the accepted connections that it goes on reading from. 2: the same for every thread that makes sockets, from the beginning. 1: and accepted connections stay in their listener's stack. 0: one stack for the whole process";
        tail_drop_probe: "EF_TAIL_DROP_PROBE" = 1, [0..=1], "1: tail loss probes (RFC 8985); 0: only the retransmission timer repairs a lost end";
        tcp_accept_spin: "EF_TCP_ACCEPT_SPIN" = 0, [0..=1], "1: accept spins for EF_POLL_USEC before it sleeps";
        tcp_client_loopback: "EF_TCP_CLIENT_LOOPBACK" = 2, [0..=4], "connect() to an address of this host: 0: on the kernel's stack; 1: at user level if this process itself listens there; 2: also if another accelerated program of the same user and network namespace does; 3 and 4: the same where nobody has the privilege to hand connections over, too";
        tcp_connect_spin: "EF_TCP_CONNECT_SPIN" = 0, [0..=1], "1: connect spins for EF_POLL_USEC before it sleeps";
        tcp_fin_timeout: "EF_TCP_FIN_TIMEOUT" = 0, [0..=255], "seconds that a closed connection waits for its peer's FIN; 0: net.ipv4.tcp_fin_timeout";
        tcp_initial_cwnd: "EF_TCP_INITIAL_CWND" = 0, [0..=1048576], "initial congestion window in bytes; 0: RFC 6928";
        tcp_rcvbuf_mode: "EF_TCP_RCVBUF_MODE" = 1, [0..=1], "1: receive windows begin with 64 KiB and grow as the program reads; 0: they are as large as they may be from the start";
        tcp_mem: "EF_TCP_MEM" = 0, [0..=4294967295], "kilobytes that the buffers of all connections of the interface's processes hold together at most (over memif and tap: of a process's), with pressure from two thirds of that on; 0: net.ipv4.tcp_mem says both";
        tcp_recv_spin: "EF_TCP_RECV_SPIN" = 0, [0..=1], "1: a read from a TCP socket spins for EF_POLL_USEC before it sleeps";
        tcp_send_spin: "EF_TCP_SEND_SPIN" = 0, [0..=1], "1: a write to a TCP socket spins for EF_POLL_USEC before it sleeps";
        tcp_server_loopback: "EF_TCP_SERVER_LOOPBACK" = 2, [0..=2], "connections from this host to a listener: 0: on the kernel's stack; 1: at user level if they come from this process itself; 2: also from other accelerated programs of the same user and network namespace";
        tcp_shared_local_ports: "EF_TCP_SHARED_LOCAL_PORTS" = 0, [0..=65535], "local ports that a process takes at its first active open and keeps, each of them for many connections, to different peers or one after the other, and with a descriptor of its own; 0: a port for each connection";
        tcp_shared_local_ports_max: "EF_TCP_SHARED_LOCAL_PORTS_MAX" = 100, [0..=65535], "shared local ports at most, where more are needed than EF_TCP_SHARED_LOCAL_PORTS; never more than 2048, or a sixteenth of the soft limit of descriptors where the hard one is no higher";
        tcp_shared_local_ports_no_fallback: "EF_TCP_SHARED_LOCAL_PORTS_NO_FALLBACK" = 0, [0..=1], "1: connect() fails with EADDRNOTAVAIL where no shared port is free; 0: it takes a port of its own";
        tcp_shared_local_ports_per_ip: "EF_TCP_SHARED_LOCAL_PORTS_PER_IP" = 0, [0..=1], "1: each local address that sockets were bound to without a port (IP_BIND_ADDRESS_NO_PORT) has shared ports of its own; 0: such sockets take a port of their own";
        tcp_shared_local_ports_per_ip_max: "EF_TCP_SHARED_LOCAL_PORTS_PER_IP_MAX" = 0, [0..=65535], "shared local ports of one address at most; 0: EF_TCP_SHARED_LOCAL_PORTS_MAX";
        tcp_shared_local_ports_reuse_fast: "EF_TCP_SHARED_LOCAL_PORTS_REUSE_FAST" = 0, [0..=1], "1: a shared port in TIME-WAIT serves the next connection to the same peer at once; 0: after a second with timestamps, or 50 ms where no other one is free, and without timestamps when TIME-WAIT is over";
        tcp_shared_local_ports_step: "EF_TCP_SHARED_LOCAL_PORTS_STEP" = 1, [1..=65535], "shared local ports that are added at a time";
        tcp_syncookies: "EF_TCP_SYNCOOKIES" = 2, [0..=2], "1: a full queue of half-open connections answers with SYN cookies; 0: it drops; 2: net.ipv4.tcp_syncookies";
        tcp_tconst_msl: "EF_TCP_TCONST_MSL" = 25, [1..=255], "maximum segment lifetime in seconds: TIME-WAIT lasts twice as long";
        udp: "EF_UDP" = 1, [0..=1], "1: UDP sockets are accelerated; 0: they are the kernel's";
        udp_recv_spin: "EF_UDP_RECV_SPIN" = 0, [0..=1], "1: a read from a UDP socket spins for EF_POLL_USEC before it sleeps";
        ul_epoll: "EF_UL_EPOLL" = 1, [0..=3], "0: epoll sets are the kernel's, and so are sockets that are put into one before they are connected; 1, 2, 3: the user-level epoll";
        uploads_to_kernel: "EF_UPLOADS_TO_KERNEL" = 0, [0..=1048576], "megabytes that a connection receives in packets of several segments (EF_RECEIVE_OFFLOAD=2) while it sends no more than a 256th of that: then the kernel goes on with it, for good; 0: never";
        use_huge_pages: "EF_USE_HUGE_PAGES" = 1, [0..=2], "packet buffers in huge pages. 0: no; 1: where the machine has some set aside, or can put some together; 2: of those set aside, or not at all";
    }
    texts {
        cluster_name: "EF_CLUSTER_NAME", CLUSTER_NAME_MAX, "processes that share an address and port must have the same: the listeners of others are the kernel's";
    }
    accepted {
        "EF_CTPIO" = 1, Shape::Number { low: 0, high: 2 }, "cut-through transmission", because "it is a mode of one maker's adapters";
        "EF_PIO" = 1, Shape::Number { low: 0, high: 2 }, "programmed I/O for sending", because "it is a mode of one maker's adapters";
        "EF_SCALABLE_FILTERS" = 0, Shape::Text { most: 255 }, "steering by interface instead of by connection", because "steering by the XDP program costs no filter for a connection";
        "EF_SCALABLE_FILTERS_ENABLE" = 0, Shape::Number { low: 0, high: 2 }, "switches EF_SCALABLE_FILTERS", because "steering by the XDP program costs no filter for a connection";
        "EF_TX_PUSH" = 1, Shape::Number { low: 0, high: 1 }, "descriptors written with the doorbell", because "it is a mode of one maker's adapters";
        "EF_UDP_SEND_SPIN" = 0, Shape::Number { low: 0, high: 1 }, "a write to a UDP socket spins", because "a write to an accelerated UDP socket never waits";
    }
}

/// What EF_POLL_USEC switches on where nobody says otherwise.
const SPINNING: [&str; 7] = [
    "EF_EPOLL_SPIN",
    "EF_POLL_SPIN",
    "EF_SELECT_SPIN",
    "EF_PKT_WAIT_SPIN",
    "EF_TCP_RECV_SPIN",
    "EF_TCP_SEND_SPIN",
    "EF_UDP_RECV_SPIN",
];

/// Which call waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// epoll_wait().
    Epoll,
    /// poll().
    Poll,
    /// select().
    Select,
    /// A read from a TCP socket.
    Receive,
    /// A write to one.
    Send,
    /// connect().
    Connect,
    /// accept().
    Accept,
    /// A read from a UDP socket.
    ReceiveDatagram,
}

impl Options {
    /// Takes what `given` says of each option, by name.
    pub fn read(given: impl Fn(&str) -> Option<String>) -> Result<Self, Invalid> {
        let mut options = Self::DEFAULT;
        let take = |options: &mut Self, name: &str| match given(name) {
            Some(value) => options.set(name, &value),
            None => Ok(()),
        };
        take(&mut options, "EF_POLL_USEC")?;
        if options.poll_usec > 0 {
            for name in SPINNING {
                options.set(name, "1")?;
            }
            options.int_driven = 0;
        }
        for definition in DEFINITIONS {
            take(&mut options, definition.name)?;
        }
        Ok(options)
    }

    /// How long such a call spins before it sleeps, in microseconds. `blocked`: it waits for packet buffers too.
    #[must_use]
    pub fn spin_us(&self, call: Waiting, blocked: bool) -> u64 {
        let spins = match call {
            Waiting::Epoll => self.epoll_spin,
            Waiting::Poll => self.poll_spin,
            Waiting::Select => self.select_spin,
            Waiting::Receive => self.tcp_recv_spin,
            Waiting::Send => self.tcp_send_spin,
            Waiting::Connect => self.tcp_connect_spin,
            Waiting::Accept => self.tcp_accept_spin,
            Waiting::ReceiveDatagram => self.udp_recv_spin,
        };
        if spins != 0 || (blocked && self.pkt_wait_spin != 0) { self.poll_usec } else { 0 }
    }

    /// The name of this process's cluster, where it counts.
    #[must_use]
    pub fn cluster(&self) -> &str {
        if self.cluster_ignore != 0 && self.cluster_size == 0 { "" } else { self.cluster_name.as_str() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(given: &[(&str, &str)]) -> Result<Options, Invalid> {
        Options::read(|name| given.iter().find(|(its, _)| *its == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn defaults_lie_in_their_ranges_and_names_are_there_once() {
        for definition in DEFINITIONS {
            let default = definition.default_text();
            assert_eq!(definition.check(&default), Ok(default.clone()), "{}", definition.name);
            if definition.accepted.is_none() {
                assert_eq!(Options::DEFAULT.value(definition.name), Some(default), "{}", definition.name);
            }
        }
        let mut names: Vec<_> = DEFINITIONS.iter().map(|definition| definition.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DEFINITIONS.len());
    }

    #[test]
    fn every_option_takes_effect_or_says_why_not() {
        for definition in DEFINITIONS {
            let other = match definition.shape {
                Shape::Text { .. } => "other".to_owned(),
                Shape::Word { words } => words[words.len() - 1].to_owned(),
                Shape::Number { low, high } | Shape::PowerOfTwo { low, high } => {
                    if definition.default == high { low } else { high }.to_string()
                }
            };
            let changed = read(&[(definition.name, &other)]).unwrap();
            assert_eq!(changed == Options::DEFAULT, definition.accepted.is_some(), "{}", definition.name);
        }
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
        let error = options.set("EF_RXQ_SIZE", "1000").unwrap_err();
        assert_eq!(error.to_string(), "EF_RXQ_SIZE is '1000': expected a power of two from 64 to 32768");
        assert!(options.set("EF_CLUSTER_NAME", "fourteen chars").is_err());
        assert_eq!(options.set("EF_CLUSTER_NAME", "thirteenchars"), Ok(()));
        assert_eq!(options.cluster_name.as_str(), "thirteenchars");
        assert!(options.set("EF_PIO", "3").is_err());
        let error = options.set("EF_FIREWALL", "1").unwrap_err();
        assert_eq!(error.to_string(), "EF_FIREWALL is '1': expected honour or ignore");
        assert_eq!(options.set("EF_FIREWALL", "ignore"), Ok(()));
        assert_eq!((options.firewall, options.value("EF_FIREWALL").as_deref()), (1, Some("ignore")));
    }

    #[test]
    fn a_spin_time_turns_spinning_on_but_for_connect_and_accept() {
        let calls = [
            (Waiting::Epoll, "EF_EPOLL_SPIN"),
            (Waiting::Poll, "EF_POLL_SPIN"),
            (Waiting::Select, "EF_SELECT_SPIN"),
            (Waiting::Receive, "EF_TCP_RECV_SPIN"),
            (Waiting::Send, "EF_TCP_SEND_SPIN"),
            (Waiting::Connect, "EF_TCP_CONNECT_SPIN"),
            (Waiting::Accept, "EF_TCP_ACCEPT_SPIN"),
            (Waiting::ReceiveDatagram, "EF_UDP_RECV_SPIN"),
        ];
        let options = read(&[("EF_POLL_USEC", "50")]).unwrap();
        assert_eq!((options.int_driven, options.pkt_wait_spin), (0, 1));
        for (call, name) in calls {
            let expected = if matches!(call, Waiting::Connect | Waiting::Accept) { 0 } else { 50 };
            assert_eq!(options.spin_us(call, false), expected, "{call:?}");
            let off = read(&[("EF_POLL_USEC", "50"), (name, "0")]).unwrap();
            assert_eq!((off.spin_us(call, false), off.spin_us(call, true)), (0, 50), "{call:?}");
            let on = read(&[("EF_POLL_USEC", "50"), (name, "1"), ("EF_PKT_WAIT_SPIN", "0")]).unwrap();
            assert_eq!(on.spin_us(call, false), 50, "{call:?}");
            let neither = [("EF_POLL_USEC", "50"), (name, "0"), ("EF_PKT_WAIT_SPIN", "0")];
            assert_eq!(read(&neither).unwrap().spin_us(call, true), 0, "{call:?}");
        }
        let kept = read(&[("EF_POLL_USEC", "50"), ("EF_INT_DRIVEN", "1")]).unwrap();
        assert_eq!(kept.int_driven, 1);
    }

    #[test]
    fn a_cluster_has_a_name_if_it_has_a_size_or_names_always_count() {
        let named = ("EF_CLUSTER_NAME", "web");
        assert_eq!(read(&[named]).unwrap().cluster(), "");
        assert_eq!(read(&[named, ("EF_CLUSTER_SIZE", "2")]).unwrap().cluster(), "web");
        assert_eq!(read(&[named, ("EF_CLUSTER_IGNORE", "0")]).unwrap().cluster(), "web");
    }
}

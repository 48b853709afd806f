//! What is counted of flows: names and meanings as people of this field know them (`docs/astf.md`).

use super::plan::Role;

macro_rules! counters {
    ($($name:ident $kind:ident $help:literal;)*) => {
        /// One counter. Its name in reports is [`Counter::name`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(non_camel_case_types, reason = "the names of this field, as reports write them")]
        pub(crate) enum Counter { $($name,)* }

        impl Counter {
            /// All, in the order of reports.
            pub(crate) const ALL: &[Counter] = &[$(Counter::$name,)*];

            /// As reports write it.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Counter::$name => stringify!($name),)* }
            }

            /// What it counts, in a few words.
            pub(crate) const fn help(self) -> &'static str {
                match self { $(Counter::$name => $help,)* }
            }

            /// Which part of the table it is in, and whether it should stay 0.
            pub(crate) const fn kind(self) -> Kind {
                match self { $(Counter::$name => Kind::$kind,)* }
            }
        }
    };
}

/// Where in the table a counter stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Tcp,
    /// Of TCP, and not 0 only if something went wrong.
    TcpError,
    Udp,
    UdpError,
    Application,
    Path,
    FlowTable,
    FlowTableError,
}

impl Kind {
    /// The heading.
    pub(crate) const fn part(self) -> &'static str {
        match self {
            Kind::Tcp | Kind::TcpError => "TCP",
            Kind::Udp | Kind::UdpError => "UDP",
            Kind::Application => "Application",
            Kind::Path => "Simulated path",
            Kind::FlowTable | Kind::FlowTableError => "Flow Table",
        }
    }

    pub(crate) const fn is_error(self) -> bool {
        matches!(self, Kind::TcpError | Kind::UdpError | Kind::FlowTableError)
    }
}

counters! {
    tcps_connattempt Tcp "connections initiated";
    tcps_accepts Tcp "connections accepted";
    tcps_connects Tcp "connections established";
    tcps_closed Tcp "conn. closed (includes drops)";
    tcps_segstimed Tcp "segs where we tried to get rtt";
    tcps_rttupdated Tcp "times we succeeded";
    tcps_delack Tcp "delayed acks sent";
    tcps_sndtotal Tcp "total packets sent";
    tcps_sndpack Tcp "data packets sent";
    tcps_sndbyte Tcp "data bytes sent by application";
    tcps_sndbyte_ok Tcp "data bytes sent by tcp";
    tcps_sndctrl Tcp "control (SYN|FIN|RST) packets sent";
    tcps_sndacks Tcp "ack-only packets sent";
    tcps_sndwinup Tcp "window update-only packets sent";
    tcps_rcvtotal Tcp "total packets received";
    tcps_rcvpack Tcp "packets received in sequence";
    tcps_rcvbyte Tcp "bytes received in sequence";
    tcps_rcvackpack Tcp "rcvd ack packets";
    tcps_rcvackbyte Tcp "tx bytes acked by rcvd acks";
    tcps_rcvackbyte_of Tcp "rcvd acks of our FIN";
    tcps_drops TcpError "connections dropped";
    tcps_conndrops TcpError "embryonic connections dropped";
    tcps_timeoutdrop TcpError "conn. dropped in rxmt timeout";
    tcps_rexmttimeo TcpError "retransmit timeouts";
    tcps_rexmttimeo_syn TcpError "retransmit timeouts of SYN";
    tcps_persisttimeo TcpError "persist timeouts";
    tcps_keepprobe TcpError "keepalive probes sent";
    tcps_testdrops TcpError "connections reset at the end of the run";
    tcps_sndrexmitpack TcpError "data packets retransmitted";
    tcps_sndrexmitbyte TcpError "data bytes retransmitted";
    tcps_rcvduppack TcpError "duplicate-only packets received";
    tcps_rcvdupbyte TcpError "duplicate-only bytes received";
    tcps_rcvpartduppack TcpError "packets with some duplicate data";
    tcps_rcvpartdupbyte TcpError "dup. bytes in part-dup. packets";
    tcps_rcvoopack TcpError "out-of-order packets received";
    tcps_rcvoobyte TcpError "out-of-order bytes received";
    tcps_rcvpackafterwin TcpError "packets with data after window";
    tcps_rcvbyteafterwin TcpError "bytes rcvd after window";
    tcps_rcvdupack TcpError "rcvd duplicate acks";
    tcps_keeptimeo TcpError "keepalive timeouts";
    tcps_keepdrops TcpError "connections dropped in keepalive";
    tcps_persistdrop TcpError "timeout in persist state";
    tcps_sndprobe TcpError "window probes sent";
    tcps_rcvbadsum TcpError "packets received with ccksum errs";
    tcps_rcvafterclose TcpError "packets rcvd after close";
    tcps_rcvacktoomuch TcpError "rcvd acks for unsent data";
    tcps_pawsdrop TcpError "segments dropped due to PAWS";
    tcps_rcvoopackdrop TcpError "OOO packet drop due to queue len";
    tcps_sack_recovery_episode TcpError "SACK recovery episodes";
    tcps_ecn_ce Tcp "ECN Congestion Experienced";
    tcps_ecn_rcwnd Tcp "# times ECN reduced the cwnd";
    udps_accepts Udp "connections accepted";
    udps_connects Udp "connections established";
    udps_closed Udp "conn. closed (includes drops)";
    udps_sndbyte Udp "data bytes transmitted";
    udps_sndpkt Udp "data packets transmitted";
    udps_rcvbyte Udp "data bytes received";
    udps_rcvpkt Udp "data packets received";
    udps_keepdrops UdpError "keepalive drop";
    udps_nombuf UdpError "no room in the link or for the next hop";
    udps_pkt_toobig UdpError "packets larger than the path takes";
    user_counter_A Application "user counter A";
    user_counter_B Application "user counter B";
    user_counter_C Application "user counter C";
    user_counter_D Application "user counter D";
    flows_total Application "flows begun";
    flows_late Application "flows due that were never begun: the rate was not reached";
    program_cut_short Application "programs that the peer's end cut short";
    path_delayed Path "packets held for the path's delay";
    path_lost Path "packets lost for the path's loss";
    path_overflow Path "packets lost: too many under way";
    err_c_tuple_err FlowTableError "no local port or next hop for a new flow";
    err_flow_overflow FlowTableError "no room for a new flow (--flows)";
    err_cwf FlowTableError "client pkt without flow";
    err_no_syn FlowTableError "server first flow packet with no SYN";
    err_no_memory FlowTableError "no room for a flow that came (--flows), or for its payload";
    err_len_err FlowTableError "packets that are not well-formed";
    err_fragments_ipv4_drop FlowTableError "IP fragments dropped";
    err_no_tcp_udp FlowTable "no tcp/udp packet";
    err_no_template FlowTableError "flows that no template is for";
    defer_template FlowTable "flows whose first payload chose the template";
    err_defer_no_template FlowTableError "first payloads that no template is for";
}

/// How many there are.
pub(crate) const COUNT: usize = Counter::ALL.len();

/// What one side has counted of one template group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts([u64; COUNT]);

impl Counts {
    pub(crate) const ZERO: Counts = Counts([0; COUNT]);

    #[inline(always)]
    pub(crate) fn add(&mut self, counter: Counter, amount: u64) {
        let slot = &mut self.0[counter as usize];
        *slot = slot.wrapping_add(amount);
    }

    #[inline]
    pub(crate) fn at(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    pub(crate) fn merge(&mut self, other: &Counts) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum = sum.wrapping_add(more);
        }
    }

    /// What came since `before`.
    pub(crate) fn since(&self, before: &Counts) -> Counts {
        let mut counts = *self;
        for (count, before) in counts.0.iter_mut().zip(before.0) {
            *count = count.wrapping_sub(before);
        }
        counts
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Counter, u64)> + '_ {
        Counter::ALL.iter().map(|counter| (*counter, self.at(*counter)))
    }
}

/// What a stack counts for all its flows together: it knows no groups.
pub(crate) fn of_stack(role: Role, stack: &overfly_engine::Counters) -> Counts {
    let mut counts = Counts::ZERO;
    let of_no_flow = if role == Role::Client { Counter::err_cwf } else { Counter::err_no_syn };
    for (counter, count) in [
        (Counter::tcps_sndprobe, stack.window_probes),
        (Counter::tcps_rcvbadsum, stack.drop_checksum),
        (Counter::tcps_rcvafterclose, stack.drop_no_owner),
        (Counter::tcps_rcvacktoomuch, stack.drop_bad_ack),
        (Counter::tcps_pawsdrop, stack.drop_paws),
        (Counter::tcps_rcvoopackdrop, stack.drop_reassembly_budget),
        (Counter::tcps_sack_recovery_episode, stack.fast_retransmits),
        (Counter::tcps_ecn_ce, stack.ecn_marks),
        (Counter::tcps_ecn_rcwnd, stack.ecn_reductions),
        (of_no_flow, stack.drop_no_flow),
        (Counter::err_no_memory, stack.drop_no_flows + stack.drop_no_memory),
        (Counter::err_len_err, stack.drop_malformed),
        (Counter::err_fragments_ipv4_drop, stack.drop_fragment),
        (Counter::err_no_tcp_udp, stack.drop_protocol + stack.drop_ethertype),
    ] {
        counts.add(counter, count);
    }
    counts
}

/// What one side knows of one template group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) counts: Counts,
    /// Flows that are there, handshakes included.
    pub(crate) active: u64,
    /// Of these, established.
    pub(crate) established: u64,
}

impl Tally {
    pub(crate) const ZERO: Tally = Tally { counts: Counts::ZERO, active: 0, established: 0 };

    pub(crate) fn merge(&mut self, other: &Tally) {
        self.counts.merge(&other.counts);
        self.active += other.active;
        self.established += other.established;
    }
}

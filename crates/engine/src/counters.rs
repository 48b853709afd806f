//! What the engine counts. Every drop has a name.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since the engine was made.
        #[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
        pub struct Counters { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// Every counter with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Frames given to `receive`.
    rx_frames,
    /// Payload bytes delivered in order.
    rx_bytes,
    /// Frames written by `transmit`.
    tx_frames,
    /// Payload bytes written, retransmissions included.
    tx_bytes,
    /// UDP datagrams given to their sockets.
    rx_datagrams,
    /// UDP datagrams written.
    tx_datagrams,
    /// Port unreachable messages that answered UDP datagrams.
    port_unreachables_sent,
    /// Passive opens that were established.
    accepts,
    /// Active opens that were established.
    connects,
    /// Data segments sent again.
    retransmits,
    /// Fast retransmits begun (RFC 5681 section 3.2).
    fast_retransmits,
    /// Retransmission timeouts (RFC 6298 section 5).
    timeouts,
    /// Segments taken as lost by RACK or by duplicate acknowledgments, in bytes (RFC 8985, RFC 6582).
    lost_bytes,
    /// Tail loss probes sent (RFC 8985 section 7).
    loss_probes,
    /// Losses that only a tail loss probe repaired (RFC 8985 section 7.4).
    loss_probes_repaired,
    /// Window reductions taken back because nothing had been lost (RFC 3522, RFC 3708).
    spurious_recoveries,
    /// Duplicates that the peer reported (RFC 2883).
    duplicates_reported,
    /// Window reductions because of ECN marks (RFC 3168).
    ecn_reductions,
    /// Segments that arrived with an ECN mark.
    ecn_marks,
    /// SYNs whose data was taken (RFC 7413).
    fast_opens_accepted,
    /// SYNs sent with data.
    fast_opens_sent,
    /// SYNs answered with a cookie (RFC 4987).
    syn_cookies_sent,
    /// Connections made from a cookie.
    syn_cookies_accepted,
    /// ICMP errors about flows (RFC 792, RFC 4443).
    icmp_errors,
    /// Zero-window probes sent.
    window_probes,
    /// Keep-alive probes sent.
    keep_alive_probes,
    /// Duplicate acknowledgments received.
    duplicate_acks,
    /// Challenge ACKs sent (RFC 5961).
    challenge_acks,
    /// RST segments sent.
    resets_sent,
    /// Flows ended by the peer's RST.
    resets_received,
    /// Flows ended because the peer is known to have gone.
    peers_gone,
    /// TIME-WAIT flows that a new SYN took over (RFC 6191).
    time_wait_reuses,
    /// Flows that ended without TIME-WAIT because `max_time_wait` others were in it.
    time_wait_skips,
    /// Out-of-order segments held.
    out_of_order,
    /// Dropped: the frame is not well-formed (any layer).
    drop_malformed,
    /// Dropped: the TCP or UDP checksum is wrong.
    drop_checksum,
    /// Dropped: neither IPv4, IPv6 nor ARP.
    drop_ethertype,
    /// Dropped: an IP protocol, or a type of ICMP message, that the engine does not speak.
    drop_protocol,
    /// Dropped: an ICMP error about nothing that is in flight (RFC 5927).
    drop_icmp,
    /// Dropped: an IP fragment.
    drop_fragment,
    /// Dropped: an acknowledgment that is no cookie of ours, while cookies are out.
    drop_bad_cookie,
    /// Dropped: a segment for no flow and no listener (answered with RST where RFC 9293 says so).
    drop_no_flow,
    /// Dropped: a segment of a connection that was handed over: it may have been on its way before.
    drop_departed,
    /// Dropped: a segment with urgent data, for whoever takes the flow over.
    drop_urgent,
    /// Dropped: a UDP datagram for no socket.
    drop_udp_no_socket,
    /// Dropped: a UDP datagram over IPv6 without a checksum.
    drop_udp_no_checksum,
    /// Dropped: a UDP datagram from or to a group, or from nowhere.
    drop_udp_address,
    /// Dropped: a UDP datagram to be sent, because its next hop did not answer, or too many others waited.
    drop_udp_unresolved,
    /// Not sent: a port unreachable message past the limit a second.
    drop_refusal_limit,
    /// Dropped: a SYN while the listener's queues are full.
    drop_backlog,
    /// Dropped: a SYN while all control blocks are in use.
    drop_no_flows,
    /// Dropped: outside the receive window.
    drop_window,
    /// Dropped: no timestamps although both sides agreed on them (RFC 7323 section 3.2).
    drop_no_timestamps,
    /// Dropped: from or to an address that cannot have a connection (RFC 1122 section 4.2.3.10), or not to us.
    drop_address,
    /// Dropped: an old timestamp (PAWS, RFC 7323 section 5).
    drop_paws,
    /// Dropped: an acknowledgment of data never sent, or none at all.
    drop_bad_ack,
    /// Dropped: data that was here already.
    drop_duplicate,
    /// Dropped: out-of-order data past the budget.
    drop_reassembly_budget,
    /// Dropped: data for a flow whose owner is gone.
    drop_no_owner,
    /// Dropped: data that its owner had no memory for.
    drop_no_memory,
    /// Dropped: an answer (RST, ARP, ping) because the queue of answers was full.
    drop_control_queue,
}

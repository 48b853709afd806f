use core::error::Error;
use core::fmt;

macro_rules! malformed {
    ($($(#[$doc:meta])+ $variant:ident = $name:literal, $text:literal;)+) => {
        /// Why bytes are not the packet they should be. The sender, or the wire, is at fault.
        ///
        /// `reason as usize` is the variant's index in [`Malformed::ALL`], so an array of counters needs no lookup.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Malformed {
            $($(#[$doc])+ $variant,)+
        }

        impl Malformed {
            /// Every reason, in the order of the enum.
            pub const ALL: &'static [Malformed] = &[$(Malformed::$variant,)+];

            /// The reason as counters show it: `tcp_checksum`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Malformed::$variant => $name,)+
                }
            }
        }

        impl fmt::Display for Malformed {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(match self {
                    $(Malformed::$variant => $text,)+
                })
            }
        }
    };
}

malformed! {
    /// Fewer than the 14 bytes of an Ethernet header.
    EthernetShort = "ethernet_short", "the peer's frame is shorter than an Ethernet header (14 bytes)";
    /// Fewer than the 28 bytes of an ARP packet for IPv4 over Ethernet.
    ArpShort = "arp_short", "the peer's ARP packet is shorter than 28 bytes";
    /// ARP for something other than IPv4 over Ethernet, or neither a request nor a reply (RFC 826).
    ArpKind = "arp_kind", "the peer's ARP packet is not a request or reply for IPv4 over Ethernet";
    /// Fewer than the 20 bytes of an IPv4 header.
    Ipv4Short = "ipv4_short", "the peer's packet is shorter than an IPv4 header (20 bytes)";
    /// The version field is not 4.
    Ipv4Version = "ipv4_version", "the peer's packet has Ethernet type IPv4 but another IP version";
    /// IHL says less than 20 bytes, or more than there are.
    Ipv4HeaderLength = "ipv4_header_length", "the peer's IPv4 header length is below 20 bytes or beyond the frame";
    /// The total length is less than the header, or more than there is.
    Ipv4TotalLength = "ipv4_total_length", "the peer's IPv4 total length is below its header or beyond the frame";
    /// The header checksum does not hold.
    Ipv4Checksum = "ipv4_checksum", "the peer's IPv4 header arrived with a wrong checksum";
    /// Fewer than the 8 bytes of an ICMP header.
    IcmpShort = "icmp_short", "the peer's ICMP message is shorter than 8 bytes";
    /// Neither an echo request nor an echo reply: a sound message that only is not spoken here.
    IcmpKind = "icmp_kind", "the peer's ICMP message is neither an echo request nor an echo reply";
    /// The ICMP checksum does not hold.
    IcmpChecksum = "icmp_checksum", "the peer's ICMP message arrived with a wrong checksum";
    /// Fewer than the 8 bytes of a UDP header.
    UdpShort = "udp_short", "the peer's datagram is shorter than a UDP header (8 bytes)";
    /// The length field says less than 8 bytes, or more than there are.
    UdpLength = "udp_length", "the peer's UDP length is below 8 bytes or beyond the packet";
    /// The UDP checksum is there and does not hold.
    UdpChecksum = "udp_checksum", "the peer's datagram arrived with a wrong UDP checksum";
    /// Fewer than the 20 bytes of a TCP header.
    TcpShort = "tcp_short", "the peer's segment is shorter than a TCP header (20 bytes)";
    /// The data offset says less than 20 bytes, or more than there are.
    TcpDataOffset = "tcp_data_offset", "the peer's TCP data offset is below 20 bytes or beyond the packet";
    /// An option's length is wrong for its kind, or goes beyond the header.
    TcpOption = "tcp_option", "the peer's segment has a TCP option of a wrong length";
    /// The TCP checksum does not hold.
    TcpChecksum = "tcp_checksum", "the peer's segment arrived with a wrong TCP checksum";
}

impl Error for Malformed {}

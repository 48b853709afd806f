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
    /// Neither an IPv4 packet nor an IPv6 packet, where either may come.
    IpVersion = "ip_version", "the peer's packet is of an IP version other than 4 and 6";
    /// Fewer than the 40 bytes of an IPv6 header.
    Ipv6Short = "ipv6_short", "the peer's packet is shorter than an IPv6 header (40 bytes)";
    /// The version field is not 6.
    Ipv6Version = "ipv6_version", "the peer's packet has Ethernet type IPv6 but another IP version";
    /// The payload length is more than there is.
    Ipv6PayloadLength = "ipv6_payload_length", "the peer's IPv6 payload length goes beyond the frame";
    /// A jumbogram (RFC 2675), or a payload length of 0 before hop-by-hop options, which only a jumbogram has.
    Ipv6Jumbo = "ipv6_jumbo", "the peer's packet is an IPv6 jumbogram, which is not spoken here";
    /// An extension header goes beyond the packet, or hop-by-hop options are not the first (RFC 8200 section 4.1).
    Ipv6Extension = "ipv6_extension", "the peer's IPv6 extension header goes beyond its packet or is out of place";
    /// More extension headers than [`ipv6::MAX_EXTENSIONS`](crate::ipv6::MAX_EXTENSIONS).
    Ipv6Extensions = "ipv6_extensions", "the peer's packet has more than 8 IPv6 extension headers";
    /// An option whose type says that who does not know it must drop the packet (RFC 8200 section 4.2).
    Ipv6Option = "ipv6_option", "the peer's IPv6 option is unknown and asks that the packet be dropped";
    /// A routing header with segments left (RFC 8200 section 4.4; RFC 5095 for type 0).
    Ipv6Routing = "ipv6_routing", "the peer's IPv6 routing header has segments left, and no router is here";
    /// Fewer than the 8 bytes of an ICMP header.
    IcmpShort = "icmp_short", "the peer's ICMP message is shorter than 8 bytes";
    /// A sound ICMP message of a type or code that is not spoken here: for [`icmpv4::Echo`](crate::icmpv4::Echo) everything
    /// but an echo.
    IcmpKind = "icmp_kind", "the peer's ICMP message is of a type or code that is not spoken here";
    /// The ICMP checksum does not hold.
    IcmpChecksum = "icmp_checksum", "the peer's ICMP message arrived with a wrong checksum";
    /// Fewer bytes than the ICMPv6 message's type needs: 8, or 24 of neighbour discovery.
    Icmpv6Short = "icmpv6_short", "the peer's ICMPv6 message is shorter than its type needs";
    /// A sound ICMPv6 message of a type or code that is not spoken here.
    Icmpv6Kind = "icmpv6_kind", "the peer's ICMPv6 message is of a type or code that is not spoken here";
    /// The ICMPv6 checksum does not hold.
    Icmpv6Checksum = "icmpv6_checksum", "the peer's ICMPv6 message arrived with a wrong checksum";
    /// An option of neighbour discovery of length 0, beyond the message, or no Ethernet address where it should be one
    /// (RFC 4861 section 4.6).
    Icmpv6Option = "icmpv6_option", "the peer's neighbour discovery message has an option of a wrong length";
    /// Neighbour discovery that RFC 4861 sections 7.1.1 and 7.1.2 have discarded: a multicast target, say.
    Icmpv6Neighbor = "icmpv6_neighbor", "the peer's neighbour discovery message breaks a rule of RFC 4861 section 7.1";
    /// The packet that an ICMP error quotes ends before the ports, or a TCP sequence number.
    QuoteShort = "quote_short", "the peer's ICMP error quotes too little to say which flow it is about";
    /// The packet that an ICMP error quotes has no sound IP header of the same version.
    QuoteHeader = "quote_header", "the peer's ICMP error quotes something that is no packet of its IP version";
    /// The packet that an ICMP error quotes is a fragment other than the first, without ports.
    QuoteFragment = "quote_fragment", "the peer's ICMP error quotes a fragment that has no ports";
    /// Fewer than the 8 bytes of a UDP header.
    UdpShort = "udp_short", "the peer's datagram is shorter than a UDP header (8 bytes)";
    /// The length field says less than 8 bytes, or more than there are.
    UdpLength = "udp_length", "the peer's UDP length is below 8 bytes or beyond the packet";
    /// No UDP checksum, which IPv6 requires (RFC 8200 section 8.1).
    UdpNoChecksum = "udp_no_checksum", "the peer's datagram over IPv6 has no UDP checksum";
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

//! What a program wants to be told with each datagram, as bits.

/// IP_PKTINFO, and IPV6_RECVPKTINFO: where it came to.
pub(crate) const PACKET_INFO: u16 = 1;
pub(crate) const PACKET_INFO_6: u16 = 1 << 1;
/// IP_RECVTTL, and IPV6_RECVHOPLIMIT.
pub(crate) const HOPS: u16 = 1 << 2;
pub(crate) const HOPS_6: u16 = 1 << 3;
/// IP_RECVTOS, and IPV6_RECVTCLASS.
pub(crate) const CLASS: u16 = 1 << 4;
pub(crate) const CLASS_6: u16 = 1 << 5;
/// SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMPNS_NEW and SO_TIMESTAMP_NEW: when it came.
pub(crate) const TIME: u16 = 1 << 6;
pub(crate) const TIME_NS: u16 = 1 << 7;
pub(crate) const TIME_NS_NEW: u16 = 1 << 8;
pub(crate) const TIME_NEW: u16 = 1 << 9;
/// UDP_GRO: several that belong together may be read as one, and how long each is.
pub(crate) const SEGMENTS: u16 = 1 << 10;
/// IP_RECVERR, and IPV6_RECVERR: errors from ICMP, also those that are not for good.
pub(crate) const ERRORS: u16 = 1 << 11;
pub(crate) const ERRORS_6: u16 = 1 << 12;

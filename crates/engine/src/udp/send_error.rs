//! Why a datagram is not sent.

use core::fmt;

/// [`crate::Engine::udp_send`] could not send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendError {
    /// The link is full: flush it and send again.
    Full,
    /// The path takes IP packets of so many bytes only, headers included, and the engine does not fragment.
    TooBig(u16),
    /// The next hop's hardware address is unknown: tell the engine with `set_neighbor`. Where the engine asks for itself
    /// ([`crate::Config::alone`]): too many others are being asked for.
    NoNeighbor,
    /// One end is an IPv4 address and the other an IPv6 address.
    Family,
    /// The socket is bound to a wildcard, and the interface has no address of this family.
    NoAddress,
    /// No destination was given, and the socket is not connected.
    NotConnected,
    /// Port 0, or an address that is not one host's.
    Destination,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the link is full: flush it and send again",
            Self::TooBig(mtu) => {
                return write!(f, "the path takes IP packets of {mtu} bytes: send less at once");
            }
            Self::NoNeighbor => "the next hop's hardware address is unknown: set_neighbor first",
            Self::Family => "one end is an IPv4 address and the other an IPv6 address: use one family",
            Self::NoAddress => "the interface has no address of this family: name the one to send from",
            Self::NotConnected => "the socket is not connected: name a destination",
            Self::Destination => "the destination is not one host's port: the engine sends to such only",
        })
    }
}

impl core::error::Error for SendError {}

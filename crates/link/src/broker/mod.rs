//! What a program's process says to the broker.

use core::net::Ipv4Addr;

use overfly_wire::MacAddr;

/// The interface that frames go through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index in the network namespace.
    pub index: u32,
    /// Its hardware address.
    pub mac: MacAddr,
    /// The longest IP packet that Overfly can send and receive on it, in bytes: the device's MTU, or what fits a frame.
    pub mtu: u16,
    /// Its IPv4 addresses with their prefix lengths.
    pub addresses: Vec<(Ipv4Addr, u8)>,
    /// Peers may send TCP checksums that were left for hardware to finish (veth): the field then holds the sum of the pseudo
    /// header.
    pub partial_checksums: bool,
}

/// How to reach an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The local address to send from.
    pub source: Ipv4Addr,
    /// The hardware address of the next hop.
    pub next_hop: MacAddr,
}

/// Why a broker refuses, as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Something else; the words say what.
    Other,
}

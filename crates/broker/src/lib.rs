//! The broker: what holds the privilege that programs lack, and gives each of their processes what it needs.
//!
//! * [`Client`], [`Lease`], [`Leash`]: what a process, its `overfly run` and both together have of it; [`message`] is how they say it.
//! * [`service`]: the broker itself, one for all links; a [`service::Backing`] says what it gives away.
//! * [`observer`] and [`watch`]: what anybody may ask, and the memory in which a process shows itself.
//! * [`agent`]: where the broker of a container's interface is.
//!
//! The half that processes use also runs inside the preloaded library, where libc's and std's socket functions are that library's own
//! hooks: its system calls go through rustix's raw back end. The service is no part of that library.
//!
//! `overfly run` sets `OVERFLY_BROKER=<name>:<32 hex digits>` for the program that it starts: the name of an abstract Unix
//! socket in the network namespace, and a secret.

pub mod agent;
mod client;
pub mod connection;
mod conversation;
mod error;
mod lease;
mod leash;
pub mod message;
pub mod observer;
mod peer;
pub mod service;
pub mod watch;

pub use client::{Client, Greeted, PairEnd, Parting, PassedConnection, Sockets, anywhere};
pub use error::Error;
pub use lease::{Heard, Holder, Lease};
pub use leash::Leash;
pub use peer::{PeerIdentity, peer_process};

use core::net::IpAddr;

use overfly_wire::MacAddr;

use message::Token;

/// The environment variable that names the broker.
pub const ENVIRONMENT: &str = "OVERFLY_BROKER";

/// What a listener or a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP; the number is the one in IP's header.
    Tcp = 6,
    /// UDP.
    Udp = 17,
}

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
    /// Its addresses with their prefix lengths: IPv4 before IPv6, each in the kernel's order. IPv6 addresses that are still
    /// being checked for duplicates (RFC 4862 section 5.4) are left out.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Peers may send TCP and UDP checksums that were left for hardware to finish (veth): the field then holds the sum of the pseudo
    /// header.
    pub partial_checksums: bool,
}

/// A device's settings that postpone its own scheduling while somebody polls it (Documentation/networking/napi.rst, "IRQ
/// mitigation").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deferral {
    /// Polls that find nothing before the device interrupts again.
    pub napi_defer_hard_irqs: u32,
    /// For how long a poll that found work postpones the next.
    pub gro_flush_timeout_ns: u64,
}

/// Processes that share an address and port: all of one name, and so many at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    name: [u8; 16],
    /// Stacks at most; 0: as many as like.
    pub limit: u32,
}

impl Cluster {
    /// Of a name, the first 16 bytes count.
    #[must_use]
    pub fn new(name: &str, limit: u32) -> Cluster {
        let mut cluster = Cluster { limit, ..Cluster::default() };
        for (to, byte) in cluster.name.iter_mut().zip(name.bytes()) {
            *to = byte;
        }
        cluster
    }

    /// Whether the other may share an address and port with this one.
    #[must_use]
    pub fn is_of_one_name(&self, other: &Cluster) -> bool {
        self.name == other.name
    }
}

/// How to reach an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The local address to send from.
    pub source: IpAddr,
    /// The hardware address of the next hop; all zero where the stack is to ask for it itself.
    pub next_hop: MacAddr,
}

/// Frames of an interface that no stack was given, though it has the listener or the connection. Since the broker began, or the
/// interface came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftFrames {
    /// Passed to the kernel, because only it can judge where they come from.
    pub passed_source: u64,
    /// Passed to the kernel, because the firewall's rules do not accept them for certain.
    pub passed_firewall: u64,
    /// Of connections that the rules have come to refuse: dropped.
    pub dropped_firewall: u64,
}

/// Why a broker refuses, as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request makes no sense here.
    BadRequest = 1,
    /// The client has no stack yet, or has one already.
    StackState = 2,
    /// All stacks are taken.
    NoStack = 3,
    /// The address is not the interface's.
    NotLocal = 4,
    /// Another stack has the connection.
    TupleInUse = 5,
    /// There is no route.
    Unreachable = 6,
    /// The route leaves through another interface: the kernel must carry the connection.
    RouteElsewhere = 7,
    /// The next hop does not answer ARP or neighbour discovery.
    NoNeighbor = 8,
    /// Something else; the words say what.
    Other = 9,
    /// The connection is not this client's, or the kernel would not take it.
    NotMoved = 10,
    /// Others listen there: of another cluster, or as many as the cluster allows.
    ListenerTaken = 11,
    /// The host's firewall does not let it through for certain: the kernel must judge.
    Firewall = 12,
    /// The broker has no room for more connections. It lives.
    Full = 13,
    /// The broker is about to end, or has just begun and does not know the program yet: ask again later.
    Later = 14,
}

impl Refusal {
    fn from_number(number: u16) -> Refusal {
        [
            Refusal::BadRequest,
            Refusal::StackState,
            Refusal::NoStack,
            Refusal::NotLocal,
            Refusal::TupleInUse,
            Refusal::Unreachable,
            Refusal::RouteElsewhere,
            Refusal::NoNeighbor,
            Refusal::NotMoved,
            Refusal::ListenerTaken,
            Refusal::Firewall,
            Refusal::Full,
            Refusal::Later,
        ]
        .into_iter()
        .find(|&refusal| refusal as u16 == number)
        .unwrap_or(Refusal::Other)
    }
}

/// Whether the value of [`ENVIRONMENT`] names a broker that stands as a service: if it ends, another one may take its place, with the
/// same name.
#[must_use]
pub fn may_return(environment: &str) -> bool {
    environment.starts_with(observer::PREFIX)
}

/// The value of [`ENVIRONMENT`] for a broker.
#[must_use]
pub fn environment(name: &str, token: Token) -> String {
    let hex: String = token.0.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{name}:{hex}")
}

/// Name and secret out of the value of [`ENVIRONMENT`].
fn parse_environment(value: &str) -> Result<(&str, Token), Error> {
    let (name, hex) = value.rsplit_once(':').ok_or(Error::Address)?;
    if name.is_empty()
        || name.len() > 100
        || hex.len() != 32
        || !hex.bytes().all(|digit| digit.is_ascii_hexdigit())
    {
        return Err(Error::Address);
    }
    let mut token = [0; 16];
    for (byte, digits) in token.iter_mut().zip(hex.as_bytes().chunks(2)) {
        let digits = core::str::from_utf8(digits).map_err(|_| Error::Address)?;
        *byte = u8::from_str_radix(digits, 16).map_err(|_| Error::Address)?;
    }
    Ok((name, Token(token)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_broker_and_secret() {
        let token = Token([0xa5; 16]);
        let value = environment("overfly-1-2", token);
        assert_eq!(value, format!("overfly-1-2:{}", "a5".repeat(16)));
        let (name, parsed) = parse_environment(&value).unwrap();
        assert!(name == "overfly-1-2" && parsed == token);
        assert!(!may_return(&value) && may_return(&environment("overfly/eth0", token)));
        let zeros = "0".repeat(32);
        for broken in [
            "",
            "x",
            "x:12",
            &format!(":{zeros}"),
            &format!("x:{zeros}0"),
            &format!("x:+{}", "0".repeat(31)),
            &format!("x:{}é", "0".repeat(30)),
        ] {
            assert_eq!(parse_environment(broken).err(), Some(Error::Address), "{broken}");
        }
    }
}

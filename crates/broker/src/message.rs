//! The messages between a client and the broker: one per datagram of an abstract `SOCK_SEQPACKET` Unix socket, each of a
//! fixed length, little-endian. Addresses are 16 bytes, IPv4's as ::ffff:a.b.c.d; protocols are the numbers in IP's header.
//!
//! | request | fields that matter | what it asks for |
//! |---|---|---|
//! | [`Kind::Interface`] | | the interface, as it is now |
//! | [`Kind::OpenStack`] | | a stack's sockets; one stack for each connection |
//! | [`Kind::Listen`], [`Kind::Unlisten`] | protocol, local, v6only; cluster to listen | new TCP connections to `local`, or its UDP datagrams |
//! | [`Kind::Connect`], [`Kind::Disconnect`] | protocol, local, remote | the frames from `remote` to `local` |
//! | [`Kind::Fetch`] | local, remote | the frames of a connection that another stack of the same process accepted |
//! | [`Kind::Show`] | | memory in which the process shows itself (see [`crate::watch`]) |
//! | [`Kind::Route`] | remote | how to reach `remote`; the port is nothing |
//! | [`Kind::Look`] | remote | the same, of a peer that is not heard: the kernel looks whether it is still there |
//! | [`Kind::HandOver`] | | that the kernel goes on with a connection of the stack's |
//! | [`Kind::GiveAway`] | local | the same, and that another stack's listener at `local` accepts it |
//! | [`Kind::HandOverPair`] | | that the kernel goes on with both ends of a connection within the host |
//! | [`Kind::PassOn`] | local, remote | that another stack's listener at `local` accepts the kernel's connection from `remote` |
//! | [`Kind::Finish`] | | nothing: the process ends, and has ended its connections |
//!
//! A client says [`Hello`] and hears [`Welcome`] or [`Reply`]. From then on each [`RequestMessage`] is answered by one [`Reply`],
//! except that [`Kind::Interface`] is answered by a [`Welcome`] and [`Kind::OpenStack`] by one [`StackPart`] for each queue,
//! which carries two descriptors (socket, pool) as `SCM_RIGHTS`, the first one also an array (pulses) and, where there is one, a
//! packet socket ([`overfly_link::packet`]), or by a [`MemifPart`] or a [`TapPart`]; a [`Reply`] instead
//! says why not.
//! [`Kind::Listen`] and [`Kind::Connect`] carry the kernel's socket at `local`, unless the process is of the broker's user.
//! [`Kind::HandOver`] and [`Kind::GiveAway`] carry two themselves: the socket that is to become the connection, and the file
//! that describes it ([`Connection`](crate::connection::Connection)); [`Kind::HandOverPair`] three for each end that there
//! still is (the third is a socket that has the end's port in the kernel), or none to ask whether that can be; [`Kind::PassOn`]
//! the connection's socket. Whoever is to accept one hears [`PassedMessage`] with its socket, unasked, between a request and its answer
//! too. So do [`Word::Renewed`], to who has a stack: [`Kind::OpenStack`] then gets it the stack's new sockets; and
//! [`Word::Farewell`]: whoever hears it hands over what it has, and closes the conversation. [`Kind::Show`] is answered by a
//! [`ShownPart`] with two descriptors (memory, eventfd). An observer says [`Hello`] at the broker's public name and hears a
//! [`ShownPart`] for each process that it may see, if it is root or of the broker's user a [`LeftPart`], and a [`Reply`]. `overfly run` says [`Hello`] there too, and hears [`Joined`]:
//! its program is served for as long as that connection stands, and [`News`] comes on it, unasked. If a broker has taken another
//! one's place, it brings the secret that its program has ([`Role::Return`]). A leash says
//! [`Hello`] too and hears a [`Reply`] with one end of a pair of sockets, on which nobody ever says anything: what it is for is
//! that it hangs up. The other end is the broker's, or, where that stands as a service, goes to the program's `overfly run`
//! ([`Word::Leash`]).

mod stack;
#[cfg(test)]
mod tests;
mod word;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use overfly_wire::MacAddr;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use self::stack::{MemifPart, Part, StackPart, TapPart};
pub use self::word::Word;
use crate::{Cluster, Deferral, Error, Interface, LeftFrames, Protocol, Refusal, Route};

/// "OVFB", and the version of the messages below and of the memory that they hand over.
pub(crate) const MAGIC: [u8; 4] = *b"OVFB";
pub(crate) const VERSION: u16 = 17;
/// Addresses that fit a [`Welcome`]. An interface with more has the others served by the kernel.
const ADDRESSES_MAX: usize = 32;
const NAME_MAX: usize = 16; // IFNAMSIZ
const REASON_MAX: usize = 240;
/// Longer than any message.
pub const MESSAGE_LEN_MAX: usize = 1024;

/// The secret that `overfly run` and its program share.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub struct Token(pub [u8; 16]);

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Requests will follow.
    Client = 1,
    /// Nothing will follow: the process wants to know when the broker ends.
    Leash = 2,
    /// Nothing will follow: somebody wants to know which processes there are.
    Observer = 3,
    /// Nothing will follow: `overfly run` has a program to be served.
    Program = 4,
    /// The same, and its processes have this secret already: they were served by a broker that was here before.
    Return = 5,
}

/// The first message.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Hello {
    magic: [u8; 4],
    version: U16,
    role: U16,
    token: Token,
}

impl Hello {
    /// What to say.
    #[must_use]
    pub fn new(role: Role, token: Token) -> Hello {
        Hello { magic: MAGIC, version: U16::new(VERSION), role: U16::new(role as u16), token }
    }

    /// What somebody who has the token wants; `None` for everybody else.
    #[must_use]
    pub fn parse(bytes: &[u8], token: Token) -> Option<Role> {
        let hello = Hello::read_from_bytes(bytes).ok()?;
        // All bytes are compared, so that time does not tell how many were right.
        let difference = (hello.token.0.iter().zip(&token.0)).fold(0, |sum, (a, b)| sum | (a ^ b));
        if difference != 0 {
            return None;
        }
        hello.role()
    }

    /// What somebody wants, whatever its secret, and that secret.
    #[must_use]
    pub fn parse_any(bytes: &[u8]) -> Option<(Role, Token)> {
        let hello = Hello::read_from_bytes(bytes).ok()?;
        hello.role().map(|role| (role, hello.token))
    }

    /// `None` if it is another version's.
    fn role(&self) -> Option<Role> {
        let roles = [Role::Client, Role::Leash, Role::Observer, Role::Program, Role::Return];
        let known = self.magic == MAGIC && self.version.get() == VERSION;
        roles.into_iter().find(|&role| known && role as u16 == self.role.get())
    }
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The interface, as it is now.
    Interface = 1,
    /// A stack's sockets.
    OpenStack = 2,
    /// New TCP connections to `local`, or datagrams for it.
    Listen = 3,
    /// No more of them.
    Unlisten = 4,
    /// The frames from `remote` to `local` (whose address may be unspecified: whatever the route says).
    Connect = 5,
    /// No more of them.
    Disconnect = 6,
    /// The way to `remote`'s address, and nothing else.
    Route = 7,
    /// The kernel is to go on with a connection: two descriptors say which.
    HandOver = 8,
    /// The same, and another stack is to accept it.
    GiveAway = 9,
    /// Another stack is to accept a connection that is the kernel's already.
    PassOn = 10,
    /// Memory to show itself in.
    Show = 11,
    /// The kernel is to go on with a connection within the host: three descriptors for each end. Without them: can it be?
    HandOverPair = 12,
    /// The stack's connections are over: when the process dies, no peer has to be told.
    Finish = 13,
    /// The frames from `remote` to `local` of a connection that another stack of the same process has.
    Fetch = 14,
    /// As [`Kind::Route`], at once: `remote` is not heard, and the kernel is made to look whether the next hop is still where it was.
    Look = 15,
}

impl Kind {
    /// Each of them.
    pub const ALL: [Kind; 15] = [
        Kind::Interface,
        Kind::OpenStack,
        Kind::Listen,
        Kind::Unlisten,
        Kind::Connect,
        Kind::Disconnect,
        Kind::Route,
        Kind::HandOver,
        Kind::GiveAway,
        Kind::PassOn,
        Kind::Show,
        Kind::HandOverPair,
        Kind::Finish,
        Kind::Fetch,
        Kind::Look,
    ];
}

/// An address that does not matter.
pub const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// What a [`RequestMessage`] says, in this process's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is asked for.
    pub kind: Kind,
    /// TCP where it does not matter.
    pub protocol: Protocol,
    /// A listener at `::` is not one at 0.0.0.0.
    pub v6only: bool,
    /// [`NOWHERE`] where it does not matter; an IPv4-mapped address arrives as IPv4's.
    pub local: SocketAddr,
    /// As `local`.
    pub remote: SocketAddr,
    /// Who else may listen there.
    pub cluster: Cluster,
}

impl Request {
    /// One about nothing in particular.
    #[must_use]
    pub fn new(kind: Kind) -> Request {
        Request {
            kind,
            protocol: Protocol::Tcp,
            v6only: false,
            local: NOWHERE,
            remote: NOWHERE,
            cluster: Cluster::default(),
        }
    }
}

/// Every later message of a client.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RequestMessage {
    kind: U16,
    protocol: u8,
    v6only: u8,
    local_port: U16,
    remote_port: U16,
    local_address: [u8; 16],
    remote_address: [u8; 16],
    cluster_name: [u8; 16],
    cluster_limit: U32,
}

impl RequestMessage {
    /// How to say it.
    #[must_use]
    pub fn new(request: &Request) -> RequestMessage {
        RequestMessage {
            kind: U16::new(request.kind as u16),
            protocol: request.protocol as u8,
            v6only: u8::from(request.v6only),
            local_port: U16::new(request.local.port()),
            remote_port: U16::new(request.remote.port()),
            local_address: to_bytes(request.local.ip()),
            remote_address: to_bytes(request.remote.ip()),
            cluster_name: request.cluster.name,
            cluster_limit: U32::new(request.cluster.limit),
        }
    }

    /// What it says, or `None` if this is no request.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Request> {
        let request = RequestMessage::read_from_bytes(bytes).ok()?;
        Some(Request {
            kind: (Kind::ALL.into_iter()).find(|&kind| kind as u16 == request.kind.get())?,
            protocol: ([Protocol::Tcp, Protocol::Udp].into_iter())
                .find(|&protocol| protocol as u8 == request.protocol)?,
            v6only: match request.v6only {
                0 => false,
                1 => true,
                _ => return None,
            },
            local: SocketAddr::new(from_bytes(request.local_address), request.local_port.get()),
            remote: SocketAddr::new(from_bytes(request.remote_address), request.remote_port.get()),
            cluster: Cluster { name: request.cluster_name, limit: request.cluster_limit.get() },
        })
    }
}

pub(crate) fn to_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

pub(crate) fn from_bytes(bytes: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(bytes).to_canonical()
}

/// Says which of the broker's messages this is. `stack.rs` has 3, 5 and 8.
const REPLY: u16 = 1;
const WELCOME: u16 = 2;
const PASSED: u16 = 4;
const SHOWN_PART: u16 = 6;
const JOINED: u16 = 7;
const LEFT_PART: u16 = 10;
const NEWS: u16 = 11;

/// A connection for a listener of the client's; its socket comes beside it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PassedMessage {
    message: U16,
    port: U16,
    remote_port: U16,
    address: [u8; 16],
    remote_address: [u8; 16],
}

impl PassedMessage {
    /// The listener is the one at `listener`, the peer `remote`.
    #[must_use]
    pub fn new(listener: SocketAddr, remote: SocketAddr) -> PassedMessage {
        PassedMessage {
            message: U16::new(PASSED),
            port: U16::new(listener.port()),
            remote_port: U16::new(remote.port()),
            address: to_bytes(listener.ip()),
            remote_address: to_bytes(remote.ip()),
        }
    }

    /// Where the listener is, and the peer; `None` if this is another message.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
        let passed =
            PassedMessage::read_from_bytes(bytes).ok().filter(|passed| passed.message.get() == PASSED)?;
        let end = |address, port: U16| SocketAddr::new(from_bytes(address), port.get());
        Some((end(passed.address, passed.port), end(passed.remote_address, passed.remote_port)))
    }
}
/// Longer than the name of any Unix socket.
const PLACE_MAX: usize = 128;
const WORDS_MAX: usize = 512;

/// Yes, with a route if one was asked for, or no and why.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Reply {
    message: U16,
    /// 0, or a [`Refusal`].
    refusal: U16,
    source: [u8; 16],
    next_hop: MacAddr,
    reason_len: U16,
    reason: [u8; REASON_MAX],
}

impl Reply {
    /// Yes.
    #[must_use]
    pub fn yes(route: Option<Route>) -> Reply {
        let mut reply = Reply::new_zeroed();
        reply.message = U16::new(REPLY);
        if let Some(route) = route {
            reply.source = to_bytes(route.source);
            reply.next_hop = route.next_hop;
        }
        reply
    }

    /// No, and why. A long reason is cut.
    #[must_use]
    pub fn no(refusal: Refusal, reason: &str) -> Reply {
        let mut reply = Reply::yes(None);
        let mut length = reason.len().min(REASON_MAX);
        while !reason.is_char_boundary(length) {
            length -= 1;
        }
        reply.refusal = U16::new(refusal as u16);
        reply.reason_len = U16::new(length as u16);
        reply.reason[..length].copy_from_slice(&reason.as_bytes()[..length]);
        reply
    }

    /// # Errors
    /// [`Error::Refused`] if it is a no, [`Error::Protocol`] if it is no reply.
    pub fn parse(bytes: &[u8]) -> Result<Route, Error> {
        let reply = Reply::read_from_bytes(bytes)
            .ok()
            .filter(|reply| reply.message.get() == REPLY)
            .ok_or(Error::Protocol("not a reply"))?;
        if reply.refusal.get() == 0 {
            return Ok(Route { source: from_bytes(reply.source), next_hop: reply.next_hop });
        }
        let reason = reply.reason.get(..usize::from(reply.reason_len.get())).unwrap_or_default();
        Err(Error::Refused {
            refusal: Refusal::from_number(reply.refusal.get()),
            reason: String::from_utf8_lossy(reason).into_owned(),
        })
    }
}

/// The interface.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Welcome {
    message: U16,
    mtu: U16,
    index: U32,
    mac: MacAddr,
    partial_checksums: u8,
    address_count: u8,
    name: [u8; NAME_MAX],
    addresses: [[u8; 16]; ADDRESSES_MAX],
    prefix_lens: [u8; ADDRESSES_MAX],
}

impl Welcome {
    /// Of addresses beyond 32, none is said.
    #[must_use]
    pub fn new(interface: &Interface) -> Welcome {
        let mut welcome = Welcome::new_zeroed();
        welcome.message = U16::new(WELCOME);
        welcome.mtu = U16::new(interface.mtu);
        welcome.index = U32::new(interface.index);
        welcome.mac = interface.mac;
        welcome.partial_checksums = u8::from(interface.partial_checksums);
        let name = interface.name.as_bytes();
        let length = name.len().min(NAME_MAX);
        welcome.name[..length].copy_from_slice(&name[..length]);
        for ((address, prefix_len), (to, to_prefix)) in
            (interface.addresses.iter()).zip(welcome.addresses.iter_mut().zip(&mut welcome.prefix_lens))
        {
            *to = to_bytes(*address);
            *to_prefix = *prefix_len;
            welcome.address_count += 1;
        }
        welcome
    }

    /// # Errors
    /// [`Error::Refused`] if it is a no, [`Error::Protocol`] if it is neither.
    pub fn parse(bytes: &[u8]) -> Result<Interface, Error> {
        let Some(welcome) =
            (Welcome::read_from_bytes(bytes).ok()).filter(|welcome| welcome.message.get() == WELCOME)
        else {
            Reply::parse(bytes)?;
            return Err(Error::Protocol("a yes instead of the interface"));
        };
        let name_len = (welcome.name.iter().position(|&byte| byte == 0)).unwrap_or(NAME_MAX);
        Ok(Interface {
            name: String::from_utf8_lossy(&welcome.name[..name_len]).into_owned(),
            index: welcome.index.get(),
            mac: welcome.mac,
            mtu: welcome.mtu.get(),
            addresses: (welcome.addresses.into_iter().map(from_bytes))
                .zip(welcome.prefix_lens)
                .take(usize::from(welcome.address_count))
                .collect(),
            partial_checksums: welcome.partial_checksums != 0,
        })
    }
}

/// A process and what it shows; the descriptors come beside it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ShownPart {
    message: U16,
    has_stack: U16,
    stack: U16,
    process: U32,
    user: U32,
}

/// A [`ShownPart`] in this process's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The process's number.
    pub process: u32,
    /// Its user's.
    pub user: u32,
    /// Its stack's.
    pub stack: Option<u16>,
}

impl ShownPart {
    /// What to say.
    #[must_use]
    pub fn new(shown: &Shown) -> ShownPart {
        ShownPart {
            message: U16::new(SHOWN_PART),
            has_stack: U16::new(u16::from(shown.stack.is_some())),
            stack: U16::new(shown.stack.unwrap_or(0)),
            process: U32::new(shown.process),
            user: U32::new(shown.user),
        }
    }

    /// `None`: there are no more.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is a no, [`Error::Protocol`] if it is neither.
    pub fn parse(bytes: &[u8]) -> Result<Option<Shown>, Error> {
        let Some(part) =
            (ShownPart::read_from_bytes(bytes).ok()).filter(|part| part.message.get() == SHOWN_PART)
        else {
            return Reply::parse(bytes).map(|_| None);
        };
        Ok(Some(Shown {
            process: part.process.get(),
            user: part.user.get(),
            stack: (part.has_stack.get() != 0).then(|| part.stack.get()),
        }))
    }
}

/// What of an interface's frames no stack was given.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LeftPart {
    message: U16,
    passed_source: U64,
    passed_firewall: U64,
    dropped_firewall: U64,
}

impl LeftPart {
    /// What to say.
    #[must_use]
    pub fn new(left: &LeftFrames) -> LeftPart {
        LeftPart {
            message: U16::new(LEFT_PART),
            passed_source: U64::new(left.passed_source),
            passed_firewall: U64::new(left.passed_firewall),
            dropped_firewall: U64::new(left.dropped_firewall),
        }
    }

    /// `None` if this is another message.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<LeftFrames> {
        let part = LeftPart::read_from_bytes(bytes).ok().filter(|part| part.message.get() == LEFT_PART)?;
        Some(LeftFrames {
            passed_source: part.passed_source.get(),
            passed_firewall: part.passed_firewall.get(),
            dropped_firewall: part.dropped_firewall.get(),
        })
    }
}

/// A program is served: where its processes find the broker, and what they say there.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Joined {
    message: U16,
    token: Token,
    deferral_changed: U16,
    napi_defer_hard_irqs: U32,
    gro_flush_timeout_ns: U64,
    place: [u8; PLACE_MAX],
    in_force: [u8; WORDS_MAX],
}

impl Joined {
    /// Words that do not fit are cut. `before`: what the device's settings were, if they were changed.
    #[must_use]
    pub fn new(name: &str, token: Token, in_force: &str, before: Option<Deferral>) -> Joined {
        let mut joined = Joined::new_zeroed();
        (joined.message, joined.token) = (U16::new(JOINED), token);
        if let Some(before) = before {
            joined.deferral_changed = U16::new(1);
            joined.napi_defer_hard_irqs = U32::new(before.napi_defer_hard_irqs);
            joined.gro_flush_timeout_ns = U64::new(before.gro_flush_timeout_ns);
        }
        for (to, from) in [(&mut joined.place[..], name), (&mut joined.in_force[..], in_force)] {
            let length = from.len().min(to.len() - 1);
            to[..length].copy_from_slice(&from.as_bytes()[..length]);
        }
        joined
    }

    /// Name, secret, the options in force, and the device's settings before.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is a no, [`Error::Protocol`] if it is neither.
    pub fn parse(bytes: &[u8]) -> Result<(String, Token, String, Option<Deferral>), Error> {
        let joined = Joined::read_from_bytes(bytes).ok().filter(|joined| joined.message.get() == JOINED);
        let Some(joined) = joined else {
            Reply::parse(bytes)?;
            return Err(Error::Protocol("a yes instead of a place"));
        };
        let text = |bytes: &[u8]| {
            let length = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..length]).into_owned()
        };
        let before = (joined.deferral_changed.get() != 0).then_some(Deferral {
            napi_defer_hard_irqs: joined.napi_defer_hard_irqs.get(),
            gro_flush_timeout_ns: joined.gro_flush_timeout_ns.get(),
        });
        Ok((text(&joined.place), joined.token, text(&joined.in_force), before))
    }
}

/// What a program's user must know of the interface.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct News {
    message: U16,
    words: [u8; WORDS_MAX],
}

impl News {
    /// Words that do not fit are cut.
    #[must_use]
    pub fn new(words: &str) -> News {
        let mut news = News { message: U16::new(NEWS), words: [0; WORDS_MAX] };
        let length = words.floor_char_boundary(WORDS_MAX);
        news.words[..length].copy_from_slice(&words.as_bytes()[..length]);
        news
    }

    /// The words; `None` if this is another message.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<String> {
        let news = News::read_from_bytes(bytes).ok().filter(|news| news.message.get() == NEWS)?;
        let length = news.words.iter().position(|&byte| byte == 0).unwrap_or(WORDS_MAX);
        Some(String::from_utf8_lossy(&news.words[..length]).into_owned())
    }
}

//! The messages between a client and the broker: one per datagram of an abstract `SOCK_SEQPACKET` Unix socket, each of a
//! fixed length, little-endian. Addresses are 16 bytes, IPv4's as ::ffff:a.b.c.d; protocols are the numbers in IP's header.
//!
//! | request | fields that matter | what it asks for |
//! |---|---|---|
//! | [`Kind::Interface`] | | the interface, as it is now |
//! | [`Kind::OpenStack`] | | a stack's sockets; one stack for each connection |
//! | [`Kind::Listen`], [`Kind::Unlisten`] | protocol, local, v6only; cluster to listen | new TCP connections to `local`, or its UDP datagrams |
//! | [`Kind::Connect`], [`Kind::Disconnect`] | protocol, local, remote | the frames from `remote` to `local` |
//! | [`Kind::Show`] | | memory in which the process shows itself (see [`crate::watch`]) |
//! | [`Kind::Route`] | remote | how to reach `remote`; the port is nothing |
//! | [`Kind::HandOver`] | | that the kernel goes on with a connection of the stack's |
//! | [`Kind::GiveAway`] | local | the same, and that another stack's listener at `local` accepts it |
//! | [`Kind::HandOverPair`] | | that the kernel goes on with both ends of a connection within the host |
//! | [`Kind::PassOn`] | local, remote | that another stack's listener at `local` accepts the kernel's connection from `remote` |
//! | [`Kind::Finish`] | | nothing: the process ends, and has ended its connections |
//!
//! A client says [`Hello`] and hears [`Welcome`] or [`Reply`]. From then on each [`Request`] is answered by one [`Reply`],
//! except that [`Kind::Interface`] is answered by a [`Welcome`] and [`Kind::OpenStack`] by one [`StackPart`] for each queue,
//! which carries two descriptors (socket, pool) as `SCM_RIGHTS`, the first one also an array (pulses) and, where there is one, a
//! packet socket ([`crate::packet`]), or by a [`MemifPart`] or a [`TapPart`]; a [`Reply`] instead
//! says why not.
//! [`Kind::Listen`] and [`Kind::Connect`] carry the kernel's socket at `local`, unless the process is of the broker's user.
//! [`Kind::HandOver`] and [`Kind::GiveAway`] carry two themselves: the socket that is to become the connection, and the file
//! that describes it ([`Connection`](super::connection::Connection)); [`Kind::HandOverPair`] three for each end that there
//! still is (the third is a socket that has the end's port in the kernel), or none to ask whether that can be; [`Kind::PassOn`]
//! the connection's socket. Whoever is to accept one hears [`Gift`] with its socket, unasked, between a request and its answer
//! too. So do [`Word::Renewed`], to who has a stack: [`Kind::OpenStack`] then gets it the stack's new sockets; and
//! [`Word::Farewell`]: whoever hears it hands over what it has, and closes the conversation. [`Kind::Show`] is answered by a
//! [`ShownPart`] with two descriptors (memory, eventfd). An observer says [`Hello`] at the broker's public name and hears a
//! [`ShownPart`] for each process that it may see, if it is root or of the broker's user a [`LeftPart`], and a [`Reply`]. `overfly run` says [`Hello`] there too, and hears [`Joined`]:
//! its program is served for as long as that connection stands, and [`News`] comes on it, unasked. If a broker has taken another
//! one's place, it brings the secret that its program has ([`Role::Return`]). A leash says
//! [`Hello`] too and hears a [`Reply`] with one end of a pair of sockets, on which nobody ever says anything: what it is for is
//! that it hangs up. The other end is the broker's, or, where that stands as a service, goes to the program's `overfly run`
//! ([`Word::Leash`]).

mod word;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use overfly_wire::MacAddr;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use self::word::Word;
use super::{Cluster, Deferral, Interface, LeftFrames, Protocol, Refusal, Route};
use crate::Error;
use crate::xdp::{BusyPoll, PoolLayout};

/// "OVFB", and the version of the messages below and of the memory that they hand over.
pub(super) const MAGIC: [u8; 4] = *b"OVFB";
pub(super) const VERSION: u16 = 13;
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
}

impl Kind {
    /// Each of them.
    pub const ALL: [Kind; 13] = [
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
    ];
}

/// An address that does not matter.
pub const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// What a [`Request`] says, in this process's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
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

impl Wish {
    /// One about nothing in particular.
    #[must_use]
    pub fn new(kind: Kind) -> Wish {
        Wish {
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
pub struct Request {
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

impl Request {
    /// How to say it.
    #[must_use]
    pub fn new(wish: &Wish) -> Request {
        Request {
            kind: U16::new(wish.kind as u16),
            protocol: wish.protocol as u8,
            v6only: u8::from(wish.v6only),
            local_port: U16::new(wish.local.port()),
            remote_port: U16::new(wish.remote.port()),
            local_address: to_bytes(wish.local.ip()),
            remote_address: to_bytes(wish.remote.ip()),
            cluster_name: wish.cluster.name,
            cluster_limit: U32::new(wish.cluster.limit),
        }
    }

    /// What it says, or `None` if this is no request.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Wish> {
        let request = Request::read_from_bytes(bytes).ok()?;
        Some(Wish {
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

pub(super) fn to_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

pub(super) fn from_bytes(bytes: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(bytes).to_canonical()
}

/// Says which of the broker's messages this is.
const REPLY: u16 = 1;
const WELCOME: u16 = 2;
const STACK_PART: u16 = 3;
const GIFT: u16 = 4;
const MEMIF_PART: u16 = 5;
const SHOWN_PART: u16 = 6;
const JOINED: u16 = 7;
const TAP_PART: u16 = 8;
const LEFT_PART: u16 = 10;
const NEWS: u16 = 11;

/// A connection for a listener of the client's; its socket comes beside it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Gift {
    message: U16,
    port: U16,
    remote_port: U16,
    address: [u8; 16],
    remote_address: [u8; 16],
}

impl Gift {
    /// The listener is the one at `listener`, the peer `remote`.
    #[must_use]
    pub fn new(listener: SocketAddr, remote: SocketAddr) -> Gift {
        Gift {
            message: U16::new(GIFT),
            port: U16::new(listener.port()),
            remote_port: U16::new(remote.port()),
            address: to_bytes(listener.ip()),
            remote_address: to_bytes(remote.ip()),
        }
    }

    /// Where the listener is, and the peer; `None` if this is another message.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
        let gift = Gift::read_from_bytes(bytes).ok().filter(|gift| gift.message.get() == GIFT)?;
        let end = |address, port: U16| SocketAddr::new(from_bytes(address), port.get());
        Some((end(gift.address, gift.port), end(gift.remote_address, gift.remote_port)))
    }
}
/// Longer than the address of any Unix socket.
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
    /// [`Error::Refused`] if it is a no, [`Error::BrokerProtocol`] if it is no reply.
    pub fn parse(bytes: &[u8]) -> Result<Route, Error> {
        let reply = Reply::read_from_bytes(bytes)
            .ok()
            .filter(|reply| reply.message.get() == REPLY)
            .ok_or(Error::BrokerProtocol("not a reply"))?;
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
    /// [`Error::Refused`] if it is a no, [`Error::BrokerProtocol`] if it is neither.
    pub fn parse(bytes: &[u8]) -> Result<Interface, Error> {
        let Some(welcome) =
            (Welcome::read_from_bytes(bytes).ok()).filter(|welcome| welcome.message.get() == WELCOME)
        else {
            Reply::parse(bytes)?;
            return Err(Error::BrokerProtocol("a yes instead of the interface"));
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

/// A stack's socket on one queue; its descriptors come beside it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct StackPart {
    message: U16,
    stack: U16,
    queue: U16,
    queues: U16,
    zero_copy: U16,
    busy_poll: U16,
    busy_poll_duration_us: U32,
    busy_poll_budget: U32,
    rx_frames: U32,
    rx_ring: U32,
    tx_frames: U32,
    tx_queues: U32,
    stacks: U32,
    frame_buffers: U32,
}

/// A [`StackPart`] in this process's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which stack.
    pub stack: u16,
    /// Which of its queues this is.
    pub queue: u16,
    /// How many there are.
    pub queues: u16,
    /// As in [`crate::xdp::StackSockets`].
    pub zero_copy: bool,
    /// As in [`crate::xdp::StackSockets`].
    pub busy_poll: Option<BusyPoll>,
    /// As in [`crate::xdp::StackSockets`].
    pub layout: PoolLayout,
}

impl StackPart {
    /// What to say.
    #[must_use]
    pub fn new(part: &Part) -> StackPart {
        let busy_poll = part.busy_poll.unwrap_or(BusyPoll { duration_us: 0, budget: 0 });
        StackPart {
            message: U16::new(STACK_PART),
            stack: U16::new(part.stack),
            queue: U16::new(part.queue),
            queues: U16::new(part.queues),
            zero_copy: U16::new(u16::from(part.zero_copy)),
            busy_poll: U16::new(u16::from(part.busy_poll.is_some())),
            busy_poll_duration_us: U32::new(busy_poll.duration_us),
            busy_poll_budget: U32::new(busy_poll.budget),
            rx_frames: U32::new(part.layout.rx_frames),
            rx_ring: U32::new(part.layout.rx_ring),
            tx_frames: U32::new(part.layout.tx_frames),
            tx_queues: U32::new(part.layout.tx_queues),
            stacks: U32::new(part.layout.stacks),
            frame_buffers: U32::new(part.layout.frame_buffers),
        }
    }

    /// # Errors
    /// [`Error::Refused`] if it is a no, [`Error::BrokerProtocol`] if it is neither.
    pub fn parse(bytes: &[u8]) -> Result<Part, Error> {
        let Some(part) =
            (StackPart::read_from_bytes(bytes).ok()).filter(|part| part.message.get() == STACK_PART)
        else {
            Reply::parse(bytes)?;
            return Err(Error::BrokerProtocol("a yes instead of a stack"));
        };
        Ok(Part {
            stack: part.stack.get(),
            queue: part.queue.get(),
            queues: part.queues.get(),
            zero_copy: part.zero_copy.get() != 0,
            busy_poll: (part.busy_poll.get() != 0).then_some(BusyPoll {
                duration_us: part.busy_poll_duration_us.get(),
                budget: part.busy_poll_budget.get(),
            }),
            layout: PoolLayout {
                rx_frames: part.rx_frames.get(),
                rx_ring: part.rx_ring.get(),
                tx_frames: part.tx_frames.get(),
                tx_queues: part.tx_queues.get(),
                stacks: part.stacks.get(),
                frame_buffers: part.frame_buffers.get(),
            },
        })
    }
}

/// A stack over memif; the socket to accept its clients at comes beside it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MemifPart {
    message: U16,
    place: [u8; PLACE_MAX],
}

impl MemifPart {
    /// What to say.
    #[must_use]
    pub fn new(address: &crate::memif::Address) -> MemifPart {
        let mut place = [0; PLACE_MAX];
        let text = address.to_string();
        place[..text.len()].copy_from_slice(text.as_bytes());
        MemifPart { message: U16::new(MEMIF_PART), place }
    }

    /// `None` if it is none.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<crate::memif::Address> {
        let part = MemifPart::read_from_bytes(bytes).ok().filter(|part| part.message.get() == MEMIF_PART)?;
        let length = part.place.iter().position(|&byte| byte == 0)?;
        core::str::from_utf8(&part.place[..length]).ok()?.parse().ok()
    }
}

/// A stack over a tap device. Beside it come the queue to write frames to, and a channel for [`crate::memif::MemifLink::take`].
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TapPart {
    message: U16,
}

impl TapPart {
    /// What to say.
    #[must_use]
    pub fn new() -> TapPart {
        TapPart { message: U16::new(TAP_PART) }
    }

    /// Whether it is one.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> bool {
        TapPart::read_from_bytes(bytes).is_ok_and(|part| part.message.get() == TAP_PART)
    }
}

impl Default for TapPart {
    fn default() -> TapPart {
        TapPart::new()
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
    /// [`Error::Refused`] if it is a no, [`Error::BrokerProtocol`] if it is neither.
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
    /// [`Error::Refused`] if it is a no, [`Error::BrokerProtocol`] if it is neither.
    pub fn parse(bytes: &[u8]) -> Result<(String, Token, String, Option<Deferral>), Error> {
        let joined = Joined::read_from_bytes(bytes).ok().filter(|joined| joined.message.get() == JOINED);
        let Some(joined) = joined else {
            Reply::parse(bytes)?;
            return Err(Error::BrokerProtocol("a yes instead of a place"));
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

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Token = Token([7; 16]);

    fn interface() -> Interface {
        Interface {
            name: "a-name-15-bytes".to_owned(),
            index: 70_000,
            mac: MacAddr([1, 2, 3, 4, 5, 6]),
            mtu: 1500,
            addresses: vec![("10.0.0.1".parse().unwrap(), 8), ("fe80::1".parse().unwrap(), 64)],
            partial_checksums: true,
        }
    }

    #[test]
    fn what_is_said_is_heard() {
        assert_eq!(Hello::parse(Hello::new(Role::Leash, TOKEN).as_bytes(), TOKEN), Some(Role::Leash));
        assert_eq!(Hello::parse(Hello::new(Role::Client, Token([8; 16])).as_bytes(), TOKEN), None);
        let addresses: [SocketAddr; 2] =
            ["1.2.3.4:5".parse().unwrap(), "[2001:db8::1]:65535".parse().unwrap()];
        for kind in Kind::ALL {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                for (local, remote) in [(addresses[0], addresses[1]), (addresses[1], addresses[0])] {
                    let cluster = Cluster::new("web", 3);
                    let wish = Wish { kind, protocol, v6only: local.is_ipv6(), local, remote, cluster };
                    assert_eq!(Request::parse(Request::new(&wish).as_bytes()), Some(wish));
                }
            }
        }
        let mapped = Wish { local: "[::ffff:1.2.3.4]:5".parse().unwrap(), ..Wish::new(Kind::Listen) };
        assert_eq!(Request::parse(Request::new(&mapped).as_bytes()).unwrap().local, addresses[0]);
        assert_eq!(Welcome::parse(Welcome::new(&interface()).as_bytes()), Ok(interface()));
        let route = Route { source: "2001:db8::9".parse().unwrap(), next_hop: MacAddr([6, 5, 4, 3, 2, 1]) };
        assert_eq!(Reply::parse(Reply::yes(Some(route)).as_bytes()), Ok(route));
        let [here, there] = addresses;
        assert_eq!(Gift::parse(Gift::new(here, there).as_bytes()), Some((here, there)));
        assert_eq!(Gift::parse(Reply::yes(None).as_bytes()), None);
        assert_eq!(Word::parse(Gift::new(here, there).as_bytes()), None);
        let returned = Hello::new(Role::Return, TOKEN);
        assert!(Hello::parse_any(returned.as_bytes()).is_some_and(|heard| heard == (Role::Return, TOKEN)));
        assert!(Hello::parse_any(&returned.as_bytes()[1..]).is_none());
        let part = Part {
            stack: 3,
            queue: 1,
            queues: 2,
            zero_copy: false,
            busy_poll: Some(BusyPoll::default()),
            layout: PoolLayout {
                rx_frames: 8192,
                rx_ring: 1024,
                tx_frames: 512,
                tx_queues: 2,
                stacks: 32,
                frame_buffers: 5,
            },
        };
        assert_eq!(StackPart::parse(StackPart::new(&part).as_bytes()), Ok(part));
        let long = "w".repeat(WORDS_MAX);
        for before in [None, Some(Deferral { napi_defer_hard_irqs: 2, gro_flush_timeout_ns: 1 << 40 })] {
            let joined = Joined::new("overfly-1", TOKEN, &long, before);
            let (name, token, words, heard) = Joined::parse(joined.as_bytes()).unwrap();
            assert!(name == "overfly-1" && token == TOKEN && words == long[1..] && heard == before);
        }
        for place in ["@a", "/run/b,id=4294967295", &"c".repeat(100)] {
            let address = place.parse().unwrap();
            assert_eq!(MemifPart::parse(MemifPart::new(&address).as_bytes()), Some(address));
        }
        assert!(TapPart::parse(TapPart::new().as_bytes()) && !TapPart::parse(&REPLY.to_le_bytes()));
    }

    #[test]
    fn a_process_is_shown_until_there_are_no_more() {
        for stack in [None, Some(7)] {
            let shown = Shown { process: 70_000, user: 1000, stack };
            assert_eq!(ShownPart::parse(ShownPart::new(&shown).as_bytes()), Ok(Some(shown)));
        }
        assert_eq!(ShownPart::parse(Reply::yes(None).as_bytes()), Ok(None));
        let left = LeftFrames { passed_source: 1, passed_firewall: u64::MAX, dropped_firewall: 3 };
        let part = LeftPart::new(&left);
        assert_eq!(LeftPart::parse(part.as_bytes()), Some(left));
        assert_eq!(LeftPart::parse(&part.as_bytes()[1..]), None);
        assert_eq!(LeftPart::parse(&[0; size_of::<LeftPart>()]), None);
        assert!(ShownPart::parse(part.as_bytes()).is_err());
        assert!(ShownPart::parse(&[0; 3]).is_err());
    }

    #[test]
    fn news_are_words_that_fit() {
        let long = "é".repeat(WORDS_MAX);
        for (said, heard) in [("", ""), ("eth0 is gone", "eth0 is gone"), (&long, &long[..WORDS_MAX])] {
            assert_eq!(News::parse(News::new(said).as_bytes()).as_deref(), Some(heard));
        }
        assert_eq!(News::parse(Reply::yes(None).as_bytes()), None);
    }

    #[test]
    fn a_no_is_a_no_in_place_of_any_answer() {
        let long = "é".repeat(REASON_MAX);
        let no = Reply::no(Refusal::NoStack, &long);
        for heard in [
            Reply::parse(no.as_bytes()).unwrap_err(),
            Welcome::parse(no.as_bytes()).unwrap_err(),
            Joined::parse(no.as_bytes()).map(drop).unwrap_err(),
            StackPart::parse(no.as_bytes()).unwrap_err(),
        ] {
            let Error::Refused { refusal, reason } = heard else {
                panic!("{heard}");
            };
            assert_eq!((refusal, reason.len()), (Refusal::NoStack, REASON_MAX));
        }
    }

    /// Every length and some hundred thousand random contents: nothing panics, little is understood.
    #[test]
    fn bad_messages_are_refused() {
        let mut numbers = overfly_testing::Random::seeded();
        let mut random = move || numbers.next();
        let mut bytes = [0_u8; MESSAGE_LEN_MAX];
        for _ in 0..200_000 {
            for chunk in bytes[..64].chunks_mut(8) {
                chunk.copy_from_slice(&random().to_le_bytes());
            }
            bytes[0] = random() as u8 & 3;
            bytes[1] = 0;
            let length = random() as usize % MESSAGE_LEN_MAX;
            let message = &bytes[..length];
            assert_eq!(Hello::parse(message, TOKEN), None);
            let _ = Request::parse(message);
            let _ = Reply::parse(message);
            let _ = Welcome::parse(message);
            let _ = StackPart::parse(message);
            let _ = MemifPart::parse(message);
            let _ = TapPart::parse(message);
            let _ = Joined::parse(message);
            let _ = LeftPart::parse(message);
            let _ = News::parse(message);
        }
        for length in [size_of::<Reply>(), size_of::<Welcome>(), size_of::<StackPart>(), size_of::<Joined>()]
        {
            assert!(length <= MESSAGE_LEN_MAX);
        }
    }
}

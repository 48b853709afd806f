//! The options of sockets: a table with one row for each, which says all that there is to know of it. No lock and no waiting; the
//! kernel's socket behind one of ours is asked by [`Backing`].

mod access;
mod backing;
mod info;
#[macro_use]
mod shapes;
mod table;
#[cfg(test)]
mod tests;
pub(crate) mod wants;

pub(crate) use self::access::{Connection, OptionAccess, OptionArgument};
pub(crate) use self::access::{Value, receive_limit_within, send_limit_within};
pub(crate) use self::backing::{Backing, Fresh, Placeholder};
pub(crate) use self::table::TABLE;
use crate::socket::Settings;

/// One option, by level and name, and what it is to each kind of socket.
pub(crate) struct SocketOption {
    pub(crate) level: i32,
    pub(crate) name: i32,
    /// Its name in C.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests hold docs/sockets.md against it"))]
    pub(crate) called: &'static str,
    /// Of a TCP socket.
    pub(crate) stream: Stream,
    /// What the kernel's socket behind a connection is asked before it is one, and given when it takes it over.
    pub(crate) carried: Carried,
    /// What Linux refuses to a connection that is not over (do_tcp_setsockopt() in net/ipv4/tcp.c), with EINVAL.
    pub(crate) refused: Refused,
    /// Of a listener alone, whose connections do not have it: what its number is to it.
    pub(crate) listener: Option<fn(u32, &mut Listener)>,
    /// Of a UDP socket.
    pub(crate) datagram: Datagram,
    pub(crate) says: Says,
}

/// What a connection does with an option.
#[derive(Clone, Copy)]
pub(crate) enum Stream {
    /// It has it at user level.
    Here(OptionAccess),
    /// The stack cannot follow it: who sets it to anything but zero has the kernel's TCP. Those that only change how the kernel's
    /// socket does its work (SO_PRIORITY, SO_BUSY_POLL, SO_MAX_PACING_RATE) are not among them.
    KernelOnly(When),
    /// The kernel's socket has it, and something follows from it.
    Followed(Follow),
    /// The kernel's socket has it.
    Kernel,
}

/// When the kernel takes a connection over for an option's sake.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// At its next call.
    Next,
    /// Before the option is set: the kernel takes it only of a connection.
    First,
    /// As `First`, if its value is not zero: a close() right behind it must heed it.
    FirstUnlessZero,
    /// As `First` if it asks for identifiers (sock_set_timestamping() in net/core/sock.c), else `Next`. One that is being opened
    /// gets it with the connection.
    Stamps,
}

/// What follows from an option that the kernel's socket was given.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Follow {
    /// The connection's buffer is as large; the kernel says whether that is allowed.
    ReceiveBuffer,
    SendBuffer,
    /// The socket is tied to an interface, or set free.
    Link,
}

/// How an option's value comes from the kernel's socket, and goes there.
#[derive(Clone, Copy)]
pub(crate) enum Carried {
    No,
    Read(fn(&Placeholder<'_>, &mut Settings)),
    Written(fn(&Placeholder<'_>, &Settings)),
    Both(fn(&Placeholder<'_>, &mut Settings), fn(&Placeholder<'_>, &Settings)),
}

/// With which values Linux refuses an option of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    Never,
    Always,
    /// Zero (tcp_set_window_clamp() in net/ipv4/tcp.c).
    Zero,
}

/// What a listener was asked for, and does not hand down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listener {
    /// TCP_DEFER_ACCEPT in seconds, as the kernel rounded it.
    pub(crate) defer_s: u32,
    /// TCP_FASTOPEN: handshakes that may have brought data, at a time.
    pub(crate) fast_open: u32,
}

/// What a UDP socket does with an option.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Datagram {
    /// It becomes the kernel's, whole: the option changes how datagrams are sent or received.
    KernelOnly,
    /// The kernel's socket has it, and that is enough.
    Kernel,
    /// As `Kernel`; its receive queue is as long.
    ReceiveBuffer,
    /// As `Kernel`; above so many bytes a packet is the kernel's, which sends it in pieces.
    PiecesAbove,
    /// As `Kernel`; what is sent is cut into datagrams of so many bytes.
    SegmentLen,
    /// As `Kernel`; its packets have it.
    Marks,
    /// Something is told with each datagram: a bit of [`wants`].
    Tells(u16),
    /// As `Tells`: when it came, in so many parts of a second.
    TellsTime(u16, u32),
}

/// What docs/sockets.md says of an option, by kind of socket; empty where it says nothing. Options with the same words share a row.
#[derive(Clone, Copy, Default)]
pub(crate) struct Says {
    pub(crate) connection: &'static str,
    pub(crate) listener: &'static str,
    pub(crate) datagram: &'static str,
}

impl SocketOption {
    /// One that the kernel's socket has, of every kind but UDP.
    const fn new(level: i32, name: i32, called: &'static str) -> Self {
        Self {
            level,
            name,
            called,
            stream: Stream::Kernel,
            carried: Carried::No,
            refused: Refused::Never,
            listener: None,
            datagram: Datagram::KernelOnly,
            says: Says { connection: "", listener: "", datagram: "" },
        }
    }

    /// Connections have it at user level.
    const fn kept(mut self, says: &'static str, kept: OptionAccess, carried: Carried) -> Self {
        (self.stream, self.carried, self.says.connection) = (Stream::Here(kept), carried, says);
        self
    }

    const fn kernel_only(mut self, when: When) -> Self {
        self.stream = Stream::KernelOnly(when);
        self
    }

    const fn followed(mut self, follow: Follow) -> Self {
        self.stream = Stream::Followed(follow);
        self
    }

    const fn refused(mut self, refused: Refused) -> Self {
        self.refused = refused;
        self
    }

    const fn listener(mut self, says: &'static str, read: fn(u32, &mut Listener)) -> Self {
        (self.listener, self.says.listener) = (Some(read), says);
        self
    }

    const fn datagram(mut self, says: &'static str, datagram: Datagram) -> Self {
        (self.datagram, self.says.datagram) = (datagram, says);
        self
    }

    /// Whether the kernel must carry a TCP socket that has it. `number` is the first number of its value.
    pub(crate) const fn is_for_the_kernel(&self, number: i32) -> bool {
        match self.stream {
            Stream::KernelOnly(_) => number != 0,
            _ => false,
        }
    }

    /// Whether it asks for time stamps with identifiers, which only a socket that is connected may.
    pub(crate) fn wants_identifiers(&self, number: Option<i32>) -> bool {
        matches!(self.stream, Stream::KernelOnly(When::Stamps))
            && number.is_some_and(|number| number & SOF_TIMESTAMPING_OPT_ID != 0)
    }

    /// Whether an established connection is the kernel's before it is given the option.
    pub(crate) fn hands_over_first(&self, number: Option<i32>) -> bool {
        match self.stream {
            Stream::KernelOnly(When::First) => true,
            Stream::KernelOnly(When::FirstUnlessZero) => number.is_some_and(|number| number != 0),
            _ => self.wants_identifiers(number),
        }
    }

    /// Whether Linux refuses it to a connection that is not over.
    pub(crate) fn is_refused(&self, number: Option<i32>) -> bool {
        match self.refused {
            Refused::Never => false,
            Refused::Always => true,
            Refused::Zero => number == Some(0),
        }
    }
}

/// include/uapi/linux/net_tstamp.h
pub(crate) const SOF_TIMESTAMPING_OPT_ID: i32 = 1 << 7;
pub(crate) const SOF_TIMESTAMPING_OPT_ID_TCP: i32 = 1 << 16;

const LEVELS: [i32; 5] =
    [libc::SOL_SOCKET, libc::IPPROTO_IP, libc::IPPROTO_TCP, libc::IPPROTO_IPV6, libc::SOL_UDP];
/// Above all names.
const NAMES: usize = 128;
/// No option of that name.
const NONE: u8 = u8::MAX;

const fn place_of(level: i32) -> Option<usize> {
    match level {
        libc::SOL_SOCKET => Some(0),
        libc::IPPROTO_IP => Some(1),
        libc::IPPROTO_TCP => Some(2),
        libc::IPPROTO_IPV6 => Some(3),
        libc::SOL_UDP => Some(4),
        _ => None,
    }
}

/// Which row is whose, by level and name. It is no program that has two rows for one option.
static INDEX: [[u8; NAMES]; LEVELS.len()] = {
    let mut index = [[NONE; NAMES]; LEVELS.len()];
    let mut row = 0;
    while row < TABLE.len() {
        let Some(level) = place_of(TABLE[row].level) else { panic!("a level that LEVELS lacks") };
        let name = TABLE[row].name as usize;
        assert!(index[level][name] == NONE, "an option stands twice");
        index[level][name] = row as u8;
        row += 1;
    }
    assert!(TABLE.len() < NONE as usize);
    index
};

/// What there is to know of an option; `None` if the kernel's socket has it, and nothing follows.
pub(crate) fn find(level: i32, name: i32) -> Option<&'static SocketOption> {
    let row = *INDEX[place_of(level)?].get(usize::try_from(name).ok()?)?;
    TABLE.get(usize::from(row))
}

/// What the program has set on the kernel's socket so far.
pub(crate) fn read(socket: Backing, fresh: &Fresh) -> Settings {
    let mut settings = fresh.settings;
    for option in TABLE {
        if let Carried::Read(read) | Carried::Both(read, _) = option.carried {
            read(&Placeholder::new(socket, fresh, option), &mut settings);
        }
    }
    settings
}

/// Gives the kernel's socket what the program has set at user level. It came as `fresh` says.
pub(crate) fn write(socket: Backing, settings: &Settings, fresh: &Fresh) {
    for option in TABLE {
        if let Carried::Written(write) | Carried::Both(_, write) = option.carried {
            write(&Placeholder::new(socket, fresh, option), settings);
        }
    }
}

/// What a listener was asked for alone.
pub(crate) fn of_listener(socket: Backing) -> Listener {
    let mut listener = Listener::default();
    for option in TABLE {
        if let Some(read) = option.listener {
            let number = socket.number(option.level, option.name).unwrap_or(0);
            read(u32::try_from(number).unwrap_or(0), &mut listener);
        }
    }
    listener
}

/// What a UDP socket's kernel socket is asked to tell of each datagram, as bits of [`wants`].
pub(crate) fn told(socket: Backing) -> u16 {
    let is_on = |option: &SocketOption| socket.number(option.level, option.name).is_ok_and(|on| on != 0);
    let bit = |option: &SocketOption| match option.datagram {
        Datagram::Tells(bit) | Datagram::TellsTime(bit, _) if is_on(option) => bit,
        _ => 0,
    };
    TABLE.iter().map(bit).fold(0, |sum, bit| sum | bit)
}

/// Traffic class and hop limit of the packets that a UDP socket sends to peers of IPv4, or of IPv6 by `level`. Where IPv6 has no hop,
/// which no router sees, there is one.
pub(crate) fn marks(socket: Backing, level: i32) -> Option<(u8, u8)> {
    let (class, hops) = match level {
        libc::IPPROTO_IP => (libc::IP_TOS, libc::IP_TTL),
        _ => (libc::IPV6_TCLASS, libc::IPV6_UNICAST_HOPS),
    };
    let number = |name| socket.number(level, name).ok().and_then(|number| u8::try_from(number).ok());
    Some((number(class)?, number(hops)?.max(1)))
}

/// Under which name a datagram's time is told to who wants these, and in how many parts of a second.
pub(crate) fn time_told(wants: u16) -> Option<(i32, u32)> {
    TABLE.iter().find_map(|option| match option.datagram {
        Datagram::TellsTime(bit, per_second) if wants & bit != 0 => Some((option.name, per_second)),
        _ => None,
    })
}

use core::fmt;
use std::net::{IpAddr, SocketAddr};

use overfly_broker::Refusal;
use overfly_broker::service::Denial;
use rustix::io::Errno;

/// What the last system call of libc's said.
pub(crate) fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

/// What went wrong, and whose fault it is.
#[derive(Debug)]
pub enum Error {
    /// The caller: there is no such interface in this network namespace.
    NoInterface {
        /// What was asked for.
        name: String,
    },
    /// The caller: this interface has no Ethernet frames or no IP address.
    UnfitInterface {
        /// Its name.
        name: String,
        /// What it lacks.
        lacks: &'static str,
    },
    /// The administrator: another XDP program is attached.
    ProgramAttached {
        /// The interface.
        name: String,
        /// The program's number, if the kernel says it.
        id: Option<u32>,
    },
    /// The administrator: the MTU (of the interface or of its veth peer) is too big for native XDP.
    MtuTooBig {
        /// The interface.
        name: String,
        /// Its own MTU, in bytes.
        mtu: u32,
    },
    /// The administrator: a veth peer has more transmit queues than the interface has receive queues.
    TooFewQueues {
        /// The interface.
        name: String,
        /// Its receive queues.
        rx_queues: u32,
    },
    /// The administrator: how many of the device's queues are in use is not known.
    QueuesUnknown {
        /// The interface.
        name: String,
        /// Why its folder in sysfs cannot be read.
        errno: Errno,
    },
    /// The machine: the driver has no native XDP.
    NoNativeXdp {
        /// The interface.
        name: String,
    },
    /// The administrator: the process lacks a capability.
    NoPrivilege {
        /// What was tried.
        operation: &'static str,
        /// The capability that allows it.
        capability: &'static str,
    },
    /// The kernel did not load the XDP program, or a map refused an entry.
    Program(String),
    /// The caller: options that do not fit together.
    Options(String),
    /// The caller: another program has the tap device.
    TapTaken(String),
    /// The caller: the address that the program was to have is the kernel's own.
    KernelsAddress {
        /// The address.
        address: IpAddr,
        /// The number of the interface that has it.
        index: u32,
    },
    /// The kernel cannot go on with a connection of a program over memif or a tap device.
    NoKernelsAddress,
    /// All stacks are taken.
    NoStack {
        /// How many there are.
        stacks: u16,
    },
    /// The caller: another user's stacks are open, and would see this one's frames.
    OtherUser {
        /// The other user's number.
        user: u32,
    },
    /// The caller: it did not show the kernel's socket at the address.
    NotHeld(SocketAddr),
    /// The caller: no stack of that number is open.
    UnknownStack(u16),
    /// The caller: the address belongs to this machine, but not to this interface.
    NotLocal(IpAddr),
    /// The caller: stacks of another cluster listen there, or as many as the cluster allows.
    ListenerTaken {
        /// Where.
        address: SocketAddr,
        /// Stacks that listen there.
        stacks: usize,
        /// They are of another cluster.
        other_cluster: bool,
    },
    /// The caller: fewer packet buffers are free than a new stack is to find.
    TooFewFrames {
        /// Free, on the queue that has fewest.
        free: u32,
        /// Wanted.
        wanted: u32,
    },
    /// Another stack has this connection.
    TupleInUse {
        /// The local end.
        local: SocketAddr,
        /// The remote end.
        remote: SocketAddr,
    },
    /// The administrator: the kernel's routes say no.
    Unreachable {
        /// Where to.
        destination: IpAddr,
        /// What the kernel said.
        errno: Errno,
    },
    /// The administrator: the firewall's rules do not let it through for certain; the kernel must judge, and carry it.
    Firewall(String),
    /// The destination is not behind this interface; the kernel must carry this connection.
    RouteElsewhere {
        /// Where to.
        destination: IpAddr,
    },
    /// The network: nobody answers for the next hop.
    NoNeighbor {
        /// The next hop.
        next_hop: IpAddr,
    },
    /// The caller: the connection is another stack's, or nobody's.
    NotTheirs {
        /// The local end.
        local: SocketAddr,
        /// The remote end.
        remote: SocketAddr,
    },
    /// The kernel did not take a connection over.
    NotMoved {
        /// What it said.
        errno: Errno,
    },
    /// A ring, pool or socket could not be made.
    Link(overfly_link::Error),
    /// The broker could not begin.
    Broker(overfly_broker::Error),
    /// The kernel refused a system call for another reason.
    System {
        /// What was tried.
        operation: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
}

impl Error {
    /// Names a failed system call.
    pub(crate) fn system(operation: &'static str, errno: Errno) -> Error {
        Error::System { operation, errno }
    }
}

impl From<overfly_link::Error> for Error {
    fn from(error: overfly_link::Error) -> Error {
        Error::Link(error)
    }
}

impl From<overfly_broker::Error> for Error {
    fn from(error: overfly_broker::Error) -> Error {
        Error::Broker(error)
    }
}

/// What a program is told.
impl From<Error> for Denial {
    fn from(error: Error) -> Denial {
        let refusal = match error {
            Error::Options(_) | Error::UnknownStack(_) => Refusal::StackState,
            Error::NoStack { .. } | Error::TooFewFrames { .. } | Error::OtherUser { .. } => Refusal::NoStack,
            Error::ListenerTaken { .. } => Refusal::ListenerTaken,
            Error::NotLocal(_) => Refusal::NotLocal,
            Error::TupleInUse { .. } => Refusal::TupleInUse,
            Error::Unreachable { .. } => Refusal::Unreachable,
            Error::RouteElsewhere { .. } => Refusal::RouteElsewhere,
            Error::Firewall(_) => Refusal::Firewall,
            Error::NoNeighbor { .. } => Refusal::NoNeighbor,
            Error::NotTheirs { .. } | Error::NotMoved { .. } | Error::NoKernelsAddress => Refusal::NotMoved,
            _ => Refusal::Other,
        };
        Denial { refusal, reason: error.to_string() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoInterface { name } => write!(
                formatter,
                "there is no interface {name} in this network namespace: `ip link` lists those that are"
            ),
            Error::UnfitInterface { name, lacks } => {
                write!(formatter, "interface {name} has no {lacks}: choose another with `ip -br address`")
            }
            Error::ProgramAttached { name, id } => {
                write!(formatter, "another XDP program ")?;
                if let Some(id) = id {
                    write!(formatter, "(id {id}) ")?;
                }
                write!(
                    formatter,
                    "is attached to {name}: end the program that attached it, or detach it with `ip link set dev {name} xdp off`"
                )
            }
            Error::MtuTooBig { name, mtu } => write!(
                formatter,
                "the MTU of {name} ({mtu}) or of its peer is too big for native XDP with packets of one buffer (`overfly doctor` says why there are no others): `ip link set dev {name} mtu 1500`, on both ends"
            ),
            Error::TooFewQueues { name, rx_queues } => write!(
                formatter,
                "the veth peer of {name} has more transmit queues than {name} has receive queues ({rx_queues}): make them equal with `ethtool -L {name} rx N` or on the peer with `ethtool -L PEER tx {rx_queues}`"
            ),
            Error::QueuesUnknown { name, errno } => write!(
                formatter,
                "how many queues {name} uses cannot be read ({errno}): mounting /sys where nobody else sees it needs CAP_SYS_ADMIN, and a sandbox (AppArmor, seccomp, RestrictNamespaces=) that allows unshare(2) and mount(2); or give {name} one queue each way when it is made (`numrxqueues 1 numtxqueues 1`)"
            ),
            Error::NoNativeXdp { name } => write!(
                formatter,
                "the driver of {name} has no native XDP (`ethtool -i {name}` names it), and generic XDP would be slower than the kernel's own TCP: use another interface"
            ),
            Error::NoPrivilege { operation, capability } => write!(
                formatter,
                "{operation} needs {capability}, as root of this machine has it and root of a user namespace (unshare -U, rootless containers) has not: try again with sudo, or do without an interface (`overfly run` and `overfly load` with --link memif:PATH or tap:NAME need no root)"
            ),
            Error::Program(what) => write!(formatter, "the XDP program: {what}"),
            Error::Options(what) => write!(formatter, "{what}"),
            Error::TapTaken(name) => write!(
                formatter,
                "another program runs over {name} (it has the name @overfly/tap:{name}): end it, or make a tap device for each program"
            ),
            Error::KernelsAddress { address, index } => write!(
                formatter,
                "{address} is the kernel's own, on interface {index} of `ip address`: give the program another one of the device's network (--address ADDRESS/LENGTH)"
            ),
            Error::NoKernelsAddress => formatter
                .write_str("the program's address over this link is no kernel's: the kernel cannot go on"),
            Error::NoStack { stacks } => write!(
                formatter,
                "all {stacks} stacks are taken: let fewer processes use the interface, or attach with more stacks (64 at most)"
            ),
            Error::OtherUser { user } => write!(
                formatter,
                "programs of user {user} are accelerated on this interface, and would see this one's frames: run them as one user, or on interfaces of their own"
            ),
            Error::NotHeld(address) => {
                write!(formatter, "the process does not hold the kernel's socket at {address}")
            }
            Error::UnknownStack(stack) => write!(formatter, "stack {stack} is not open"),
            Error::NotLocal(address) => {
                write!(formatter, "{address} is no address of this interface: the kernel must serve it")
            }
            Error::ListenerTaken { address, other_cluster: true, .. } => {
                write!(formatter, "{address} is another cluster's: EF_CLUSTER_NAME says whose a listener is")
            }
            Error::ListenerTaken { address, stacks, .. } => {
                write!(formatter, "{stacks} stacks listen at {address}, as many as EF_CLUSTER_SIZE allows")
            }
            Error::TooFewFrames { free, wanted } => write!(
                formatter,
                "{free} packet buffers are free, and EF_MIN_FREE_PACKETS is {wanted}: raise EF_MAX_PACKETS"
            ),
            Error::TupleInUse { local, remote } => {
                write!(formatter, "another stack has the connection {local} - {remote}")
            }
            Error::Unreachable { destination, errno } => write!(
                formatter,
                "no route to {destination} ({errno}): `ip route get {destination}` shows what the kernel would do"
            ),
            Error::Firewall(what) => write!(formatter, "the firewall: {what}"),
            Error::RouteElsewhere { destination } => write!(
                formatter,
                "the route to {destination} does not leave through this interface: the kernel must carry this connection"
            ),
            Error::NoNeighbor { next_hop } => write!(
                formatter,
                "{next_hop} does not answer ARP or neighbour discovery: `ip neigh` and `ping {next_hop}` show whether it is there"
            ),
            Error::NotTheirs { local, remote } => {
                write!(formatter, "the connection {local} - {remote} is not this stack's")
            }
            Error::NotMoved { errno } => {
                write!(formatter, "the kernel did not take the connection over: {errno}")
            }
            Error::Link(error) => error.fmt(formatter),
            Error::Broker(error) => error.fmt(formatter),
            Error::System { operation, errno } => write!(formatter, "{operation}: {errno}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Link(error) => Some(error),
            Error::Broker(error) => Some(error),
            _ => None,
        }
    }
}

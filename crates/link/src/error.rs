use core::fmt;

use rustix::io::Errno;

/// What went wrong, and whose fault it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The administrator: the process lacks a capability.
    NoPrivilege {
        /// What was tried.
        operation: &'static str,
        /// The capability that allows it.
        capability: &'static str,
    },
    /// The machine: its kernel was built without AF_XDP.
    NoAfXdp,
    /// The administrator: another AF_XDP socket is bound to the queue.
    QueueTaken {
        /// The queue of the interface, from 0.
        queue: u32,
    },
    /// The administrator: huge pages were insisted on, and too few are free.
    NoHugePages {
        /// Bytes that were wanted.
        length: usize,
    },
    /// The kernel: it does not know which NAPI fills the sockets.
    NoBusyPoll,
    /// The caller: numbers that do not fit together.
    Layout(&'static str),
    /// The kernel refused a system call for another reason.
    System {
        /// What was tried.
        operation: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The administrator: there is no such tap device, or it is down.
    NoTap {
        /// Its name.
        name: String,
    },
    /// The administrator: the device is no tap, or all its queues are taken (without `multi_queue` it has one).
    TapQueues {
        /// Its name.
        name: String,
    },
    /// The caller: this names no place where memif peers could meet.
    MemifAddress(String),
    /// The administrator: another process listens there.
    MemifTaken(String),
    /// The administrator: what has that name must not be replaced.
    MemifFile {
        /// Where.
        address: String,
        /// What it is.
        what: String,
    },
    /// The administrator: nobody listens there, or not for this user.
    MemifConnect {
        /// Where.
        address: String,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The administrator: the kernel has no context for asynchronous I/O left, with which peers are woken.
    MemifInterrupts {
        /// The kernel's answer.
        errno: Errno,
    },
    /// The administrator: the program at the other end of an abstract socket is another user's.
    MemifUser {
        /// Where.
        address: String,
        /// The other user's number.
        user: u32,
    },
    /// The memif peer is gone.
    MemifGone {
        /// What was being said or waited for.
        during: &'static str,
        /// The kernel's answer, if it was the kernel that said so.
        errno: Option<Errno>,
    },
    /// The memif peer does not answer.
    MemifSilent {
        /// What was waited for.
        during: &'static str,
    },
    /// The memif peer said no, in these words.
    MemifRefused(String),
    /// The memif peer breaks the protocol: what it said.
    MemifProtocol(String),
}

impl Error {
    /// Names a failed system call, and recognises the failures that have a remedy.
    pub(crate) fn system(operation: &'static str, errno: Errno) -> Error {
        Error::System { operation, errno }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoPrivilege { operation, capability } => write!(
                formatter,
                "{operation} needs {capability}: run overfly as root, or give its binary that capability"
            ),
            Error::NoAfXdp => write!(
                formatter,
                "this kernel has no AF_XDP: use one built with CONFIG_XDP_SOCKETS=y (any distribution's since Linux 5.9)"
            ),
            Error::QueueTaken { queue } => write!(
                formatter,
                "another AF_XDP socket is bound to queue {queue}: end the program that holds it (`ss --xdp` names it)"
            ),
            Error::NoHugePages { length } => write!(
                formatter,
                "{} MiB in huge pages are not free: `sysctl vm.nr_hugepages=N` reserves some, EF_USE_HUGE_PAGES 1 goes on without",
                length.div_ceil(1 << 20)
            ),
            Error::NoBusyPoll => write!(
                formatter,
                "this kernel cannot busy-poll these AF_XDP sockets (since Linux 6.13 it can only where the driver does zero-copy): go on without"
            ),
            Error::Layout(what) => write!(formatter, "impossible ring or pool sizes: {what}"),
            Error::System { operation, errno } => write!(formatter, "{operation}: {errno}"),
            Error::NoTap { name } => write!(
                formatter,
                "no tap device {name} is up: ip tuntap add dev {name} mode tap multi_queue && ip address add ADDRESS/LENGTH dev {name} && ip link set {name} up (root, or inside `unshare -Urn`)"
            ),
            Error::TapQueues { name } => write!(
                formatter,
                "{name} has no more queues for this program: it must be a tap device, no other program's, and for several queues (256 at most) made with multi_queue"
            ),
            Error::MemifAddress(text) => {
                write!(
                    formatter,
                    "{text:?} is no memif socket: give PATH or @NAME, of up to 107 bytes, with ,id=N if need be"
                )
            }
            Error::MemifTaken(address) => {
                write!(
                    formatter,
                    "another program listens on memif:{address}: end it, or choose another name"
                )
            }
            Error::MemifFile { address, what } => {
                write!(formatter, "memif:{address}: {what} is there: move it away, or choose another name")
            }
            Error::MemifConnect { address, errno } => {
                write!(formatter, "memif:{address}: {errno}: start the program that listens there first")
            }
            Error::MemifInterrupts { errno } => write!(
                formatter,
                "io_setup: {errno}: peers are woken through it; raise `sysctl fs.aio-max-nr` (EAGAIN), use a kernel with CONFIG_AIO (ENOSYS), or let the sandbox allow io_setup, io_submit and io_getevents (EPERM)"
            ),
            Error::MemifUser { address, user } => write!(
                formatter,
                "the program at memif:{address} is user {user}'s: use a path, whose permissions say who may connect"
            ),
            Error::MemifGone { during, errno: Some(errno) } => {
                write!(formatter, "the memif peer is gone ({during}: {errno}): see what it says")
            }
            Error::MemifGone { during, errno: None } => {
                write!(formatter, "the memif peer hung up ({during}): see what it says")
            }
            Error::MemifSilent { during } => {
                write!(
                    formatter,
                    "the memif peer does not answer (waiting for {during}): is it stopped, or no memif at all?"
                )
            }
            Error::MemifRefused(reason) => write!(formatter, "the memif peer refused: {reason}"),
            Error::MemifProtocol(what) => write!(formatter, "the memif peer breaks the protocol: {what}"),
        }
    }
}

impl std::error::Error for Error {}

use core::fmt;

use rustix::io::Errno;

/// What went wrong between a process and a broker, and whose fault it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The caller: the value of `OVERFLY_BROKER` is not `<name>:<32 hex digits>`.
    Address,
    /// The broker does not answer (any more).
    Gone {
        /// What was tried.
        operation: &'static str,
        /// The kernel's answer, if it was the kernel that said so.
        errno: Option<Errno>,
    },
    /// The administrator: this process may not make the system calls by which one talks to the broker.
    Forbidden {
        /// What was tried.
        operation: &'static str,
        /// The kernel's answer: EPERM, EACCES or ENOSYS.
        errno: Errno,
    },
    /// The broker's answer makes no sense: it is another version of Overfly.
    Protocol(&'static str),
    /// Somebody takes this stack's frames already.
    Captured {
        /// Which process.
        process: u64,
    },
    /// The broker said no.
    Refused {
        /// Why, as a number.
        refusal: crate::Refusal,
        /// Why, in words.
        reason: String,
    },
    /// The administrator: an agent cannot listen there.
    Agent(String),
    /// Memory could not be mapped.
    Link(overfly_link::Error),
    /// The kernel refused a system call for another reason.
    System {
        /// What was tried.
        operation: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
}

impl Error {
    /// Whether a broker has ended, as opposed to one that is slow, or has no room.
    #[must_use]
    pub fn is_end_of_broker(&self) -> bool {
        let Error::Gone { errno, .. } = self else { return false };
        matches!(errno, None | Some(Errno::CONNREFUSED | Errno::CONNRESET | Errno::PIPE | Errno::NOTCONN))
    }

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

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Address => write!(
                formatter,
                "OVERFLY_BROKER must be <name>:<32 hex digits>, as `overfly run` sets it: start the program with `overfly run`"
            ),
            // Abstract names belong to a network namespace: unix(7).
            Error::Gone { operation: "connect", errno: Some(Errno::CONNREFUSED) } => write!(
                formatter,
                "no broker of `overfly run` listens in this network namespace: it has ended, or the program has gone to another network namespace than `overfly run`'s"
            ),
            Error::Forbidden { operation, errno } => write!(
                formatter,
                "this process may not talk to the broker of `overfly run` ({operation}: {errno}): a seccomp filter or a security module forbids it"
            ),
            Error::Gone { operation, errno: Some(errno) } => write!(
                formatter,
                "the broker of `overfly run` is gone ({operation}: {errno}): start the program again with `overfly run`"
            ),
            Error::Gone { operation, errno: None } => write!(
                formatter,
                "the broker of `overfly run` closed the connection ({operation}): its counters and log say why"
            ),
            Error::Protocol(what) => write!(
                formatter,
                "the broker speaks another version of the protocol ({what}): use `overfly` and liboverfly.so of one build"
            ),
            Error::Captured { process } => {
                write!(formatter, "process {process} takes its frames already: one `overfly dump` at a time")
            }
            Error::Refused { reason, .. } => write!(formatter, "the broker refused: {reason}"),
            Error::Agent(what) => write!(formatter, "{what}"),
            Error::Link(error) => error.fmt(formatter),
            Error::System { operation, errno } => write!(formatter, "{operation}: {errno}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Link(error) => Some(error),
            _ => None,
        }
    }
}

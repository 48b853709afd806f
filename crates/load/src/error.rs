//! Why a run cannot be.

use std::fmt;

/// Why a run cannot start or cannot go on.
#[derive(Debug)]
pub enum Error {
    /// The person who typed the option is at fault.
    Usage {
        /// The option or argument, as it is typed: `-c`, `URL`.
        option: &'static str,
        /// What was given.
        given: String,
        /// What was expected, or what to do.
        expected: String,
    },
    /// This machine cannot do what was asked: no route, no privilege, no such interface.
    Machine {
        /// What was tried.
        what: String,
        /// What the machine said, and what to do about it.
        why: String,
    },
}

impl Error {
    /// Whether another command line would help (exit status 2).
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Usage { .. })
    }

    pub(crate) fn usage(
        option: &'static str,
        given: impl fmt::Display,
        expected: impl Into<String>,
    ) -> Error {
        Error::Usage { option, given: given.to_string(), expected: expected.into() }
    }

    pub(crate) fn machine(what: impl Into<String>, why: impl fmt::Display) -> Error {
        Error::Machine { what: what.into(), why: why.to_string() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage { option, given, expected } if given.is_empty() => {
                write!(f, "{option}: expected {expected}")
            }
            Error::Usage { option, given, expected } => {
                write!(f, "{option} {given}: expected {expected}")
            }
            Error::Machine { what, why } => write!(f, "{what}: {why}"),
        }
    }
}

impl std::error::Error for Error {}

//! Why a run cannot be.

use std::fmt;
use std::process::ExitCode;

use overfly_terminal::Unwritten;

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
    /// What was to be said could not be written.
    Output(Unwritten),
}

impl Error {
    /// Whether another command line would help (exit status 2).
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Usage { .. })
    }

    /// The exit status of a command: 0 it went well, 1 it did not or could not, 2 a wrong option. Says why.
    pub(crate) fn exit(command: &str, done: Result<bool, Error>) -> ExitCode {
        match done {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(1),
            Err(Error::Output(unwritten @ Unwritten::ReaderGone)) => ExitCode::from(unwritten.exit_status()),
            Err(error) => {
                overfly_terminal::tell(format_args!("{command}: {error}"));
                ExitCode::from(if error.is_usage() { 2 } else { 1 })
            }
        }
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
            Error::Output(unwritten) => unwritten.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Output(unwritten) => Some(unwritten),
            Error::Usage { .. } | Error::Machine { .. } => None,
        }
    }
}

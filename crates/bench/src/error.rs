use std::fmt;
use std::io;

/// What can go wrong, by who can put it right.
#[derive(Debug)]
pub enum Error {
    /// The author of the plan: a key is unknown, missing or out of its range.
    Plan {
        /// Path of the plan, as it was given.
        file: String,
        /// The line at fault, from 1.
        line: Option<usize>,
        /// Names the key and what was expected, in one line.
        message: String,
    },
    /// The administrator: a privilege or a tool is missing.
    Machine(String),
    /// The user: a namespace of that name exists and was not made by `overfly lab up`.
    NotOurs(String),
    /// A tool that we called said no.
    Tool {
        /// The command line.
        command: String,
        /// What it printed.
        output: String,
    },
    /// The kernel refused something that the caller's privileges should allow.
    Kernel {
        /// What was being done.
        action: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn kernel(action: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let action = action.into();
        move |source| Error::Kernel { action, source }
    }

    /// The exit status that this error asks of a command: 2 where its input is at fault, else 1.
    pub fn exit_status(&self) -> u8 {
        match self {
            Error::Plan { .. } => 2,
            _ => 1,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Plan { file, line: Some(line), message } => write!(f, "{file}:{line}: {message}"),
            Error::Plan { file, line: None, message } => write!(f, "{file}: {message}"),
            Error::Machine(message) => f.write_str(message),
            Error::NotOurs(name) => write!(
                f,
                "a network namespace `{name}` exists that `overfly lab up` did not make, so it is left alone; \
                 remove it (`ip netns del {name}`) or choose other names with --prefix"
            ),
            Error::Tool { command, output } => {
                write!(f, "`{command}` failed: {}", output.trim().replace('\n', "; "))
            }
            Error::Kernel { action, source } => write!(f, "cannot {action}: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Kernel { source, .. } => Some(source),
            _ => None,
        }
    }
}

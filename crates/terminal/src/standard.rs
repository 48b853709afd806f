//! Standard output and standard error, where nobody may listen any more.

use std::fmt;
use std::io::{self, Write};

use crate::foreign::{json, shown};

/// What was to be written to standard output and was not.
#[derive(Debug)]
pub enum Unwritten {
    /// Whoever read has gone: `overfly profile list | head -1`. That is no news to anybody.
    ReaderGone,
    /// The system said no: a full disk.
    Failed(io::Error),
}

impl Unwritten {
    /// The exit status that it asks of a command: of a reader that has gone, what a shell says of a program that SIGPIPE ended
    /// (128 + 13).
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self {
            Unwritten::ReaderGone => 128 + 13,
            Unwritten::Failed(_) => 1,
        }
    }
}

impl From<io::Error> for Unwritten {
    fn from(error: io::Error) -> Unwritten {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Unwritten::ReaderGone,
            _ => Unwritten::Failed(error),
        }
    }
}

impl fmt::Display for Unwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unwritten::ReaderGone => f.write_str("nobody reads standard output any more"),
            Unwritten::Failed(error) => write!(f, "writing to standard output: {error}"),
        }
    }
}

impl std::error::Error for Unwritten {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Unwritten::ReaderGone => None,
            Unwritten::Failed(error) => Some(error),
        }
    }
}

/// Writes text to standard output, all of it, now; what is not printable is escaped ([`shown`]).
///
/// # Errors
/// What was not written may be what the command was run for: it must not end as if all were well.
pub fn print(text: &str) -> Result<(), Unwritten> {
    write_out(&shown(text))
}

/// As [`print()`], of JSON, which stays JSON.
///
/// # Errors
/// As [`print()`].
pub fn print_json(text: &str) -> Result<(), Unwritten> {
    write_out(&json(text))
}

fn write_out(text: &str) -> Result<(), Unwritten> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Unwritten::from)
}

/// Writes a message and the end of its line to standard error. If that cannot be done, there is nobody left to tell.
pub fn tell(message: impl fmt::Display) {
    let text = format!("{message}\n");
    let _ = io::stderr().lock().write_all(shown(&text).as_bytes());
}

/// Writes a line over the one that was there, on the terminal that standard error is; an empty one wipes it away.
pub fn redraw(line: &str) {
    const WIPE: &str = "\r\x1b[K";
    let text = format!("{WIPE}{}", shown(line).replace('\n', " "));
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

//! What a run tells the outside, while it runs and after.

pub(crate) mod args;
pub(crate) mod board;
pub(crate) mod by_name;
pub(crate) mod csv;
pub(crate) mod hdr;
pub(crate) mod histogram;
pub(crate) mod interrupt;
pub(crate) mod metrics;
pub(crate) mod page;
pub(crate) mod tui;
pub(crate) mod units;
pub(crate) mod verdict;
pub(crate) mod watch;

use std::io::Write;

pub use args::OutputArgs;

/// Prints on standard output. A reader that has gone away does not change how things go.
pub(crate) fn print(text: &str) {
    let mut stdout = std::io::stdout();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

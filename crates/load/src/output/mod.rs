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

use std::fmt::Display;

pub use args::OutputArgs;

use crate::error::Error;

/// Prints on standard output. What cannot be written is an error: it may be the result.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    overfly_terminal::print(text).map_err(Error::Output)
}

/// As [`print()`], of one JSON object.
pub(crate) fn print_json(object: &str) -> Result<(), Error> {
    overfly_terminal::print_json(&format!("{object}\n")).map_err(Error::Output)
}

/// The result, in the form that was asked for.
pub(crate) fn print_report(
    as_json: bool,
    object: impl FnOnce() -> String,
    text: &impl Display,
) -> Result<(), Error> {
    if as_json { print_json(&object()) } else { print(&text.to_string()) }
}

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
use std::io::{self, IsTerminal};

pub use args::OutputArgs;
use overfly_terminal::{folded, parts, redraw};

use crate::error::Error;

/// Prints on standard output. What cannot be written is an error: it may be the result.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    overfly_terminal::print(text).map_err(Error::Output)
}

/// As [`print()`], of one JSON object.
pub(crate) fn print_json(object: &str) -> Result<(), Error> {
    overfly_terminal::print_json(&format!("{object}\n")).map_err(Error::Output)
}

/// The result, in the form that was asked for. A text that can be narrower than its usual form finds the terminal's width as its format's.
pub(crate) fn print_report(
    as_json: bool,
    object: impl FnOnce() -> String,
    text: &impl Display,
) -> Result<(), Error> {
    match (as_json, room()) {
        (true, _) => print_json(&object()),
        (false, Some(room)) => print(&folded(&format!("{text:room$}"), room, 4)),
        (false, None) => print(&text.to_string()),
    }
}

/// Writes a line over the one that was there, on the terminal that standard error is: as many of its parts as fit, since only one line of a
/// terminal is wiped.
pub(crate) fn redraw_fitted(line: &str) {
    let room = ratatui::crossterm::terminal::size().map_or(usize::MAX, |(columns, _)| usize::from(columns));
    redraw(&fit(line, room));
}

fn fit(line: &str, room: usize) -> String {
    let all: Vec<String> = line.split(", ").map(str::to_owned).collect();
    // A terminal whose last cell is taken may be in the next line.
    parts(&all, ", ", room.saturating_sub(1))
}

/// Cells of a line on the terminal that standard output is; none if it is no terminal.
#[must_use]
pub fn room() -> Option<usize> {
    let size = io::stdout().is_terminal().then(ratatui::crossterm::terminal::size)?;
    size.ok().map(|(columns, _)| usize::from(columns)).filter(|&columns| columns > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_line_has_whole_parts_and_fits_one_line() {
        let line = "1 s of 9 s: 1,701 requests, 15,204/s, p50 16.26us, p99 22.04ms, 4 open, 0 failed";
        assert_eq!(fit(line, 60), "1 s of 9 s: 1,701 requests, 15,204/s, p50 16.26us");
        assert_eq!(fit(line, line.len() + 1), line);
        assert_eq!(fit(line, line.len()), line.strip_suffix(", 0 failed").unwrap());
    }
}

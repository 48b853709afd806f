//! What a run tells the outside, while it runs and after.
#![allow(dead_code, reason = "the command line takes up the files and the live screen in the next step")]

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

//! What the commands write to terminals, pipes and files.
//!
//! * [`Foreign`], [`shown`], [`json`]: text that somebody else chose cannot steer a terminal.
//! * [`print`], [`tell`], [`redraw`]: the one way to standard output and standard error. Nothing panics where
//!   nobody listens any more, and what could not be written is an error ([`Unwritten`]).

#![forbid(unsafe_code)]

mod foreign;
mod standard;

pub use foreign::{FOREIGN_CHARS_MAX, Foreign, json, shown};
pub use standard::{Unwritten, print, print_json, redraw, tell};

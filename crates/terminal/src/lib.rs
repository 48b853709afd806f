//! What the commands write to terminals, pipes and files.
//!
//! * [`Foreign`], [`shown`], [`json`]: text that somebody else chose cannot steer a terminal.
//! * [`print`], [`tell`], [`redraw`]: the one way to standard output and standard error. Nothing panics where
//!   nobody listens any more, and what could not be written is an error ([`Unwritten`]).
//! * [`columns()`], [`parts`], [`folded`]: what of a table or a line fits on a screen, without cutting a number.

#![forbid(unsafe_code)]

mod columns;
mod foreign;
mod standard;

pub use columns::{columns, folded, parts};
pub use foreign::{FOREIGN_CHARS_MAX, Foreign, json, shown};
pub use standard::{Unwritten, print, print_json, redraw, tell};

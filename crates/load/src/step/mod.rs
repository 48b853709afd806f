//! Several generators in step: all begin at one moment, and their results merge exactly.
#![allow(dead_code, reason = "the command line takes it up in the next step")]

mod channel;
mod instant;
mod seat;

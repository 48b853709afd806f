//! Labs (network namespaces made for a purpose), plans, runs, statistics and reports.
//!
//! * [`lab`]: namespaces joined by veth pairs, anonymous ones that vanish with their owner and
//!   named ones (`overfly lab up`) that stay.
//! * [`plan`]: what to measure, read from TOML and checked.
//! * [`session`]: carries a plan out, one fresh lab for each run; on this machine as it is where the link is memif.
//! * [`statistics`]: medians, intervals, outliers.
//! * [`diff`]: two sessions beside each other.
//! * [`agent`]: what a session does on a host that is another machine.
//! * [`tune`]: a host as it should be before it is measured, and the way back.
//! * [`report`]: medians, gains, tables, `summary.json`.

#![forbid(unsafe_code)]
// `overfly_terminal` writes: these would end the command where nobody reads any more.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod agent;
pub mod diff;
pub mod environment;
mod error;
mod foreign;
mod hosts;
mod interruption;
mod journal;
pub mod lab;
pub mod plan;
mod process_time;
pub mod report;
mod schedule;
pub mod session;
mod shuffle;
mod site;
pub mod statistics;
mod trial;
pub mod tune;
mod yardstick;

pub use error::Error;
pub use interruption::interruption;
pub use process_time::CoreTime;

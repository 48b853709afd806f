//! `overfly load astf`: application flows by profiles. `python/overfly` makes a JSON form of a profile; this runs it.

mod address;
mod args;
mod buffer;
mod compile;
mod control;
mod counter;
mod ear;
mod flow;
mod form;
mod latency;
mod links;
mod machine;
mod opener;
mod pace;
mod path;
mod plan;
mod probe;
mod report;
mod rig;
mod run;
mod settings;
mod shard;
mod side;
mod tunnel;
mod watch;
mod way;
mod wheel;
mod wire;
mod xdp;

#[cfg(test)]
mod tests;

pub use args::{AstfArgs, main_astf};
pub use report::{Counted, GroupTimes, Probed, Report, Times};
pub use settings::{Ends, Settings};

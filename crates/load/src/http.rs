//! `overfly load http URL`: HTTP/1.1 requests, in a closed loop or at a rate.
//!
//! In a closed loop each of `-c` connections has its next request when the one before is over. In an open loop (`-R`)
//! requests are due by a schedule, whatever the server does. [`run`] does either over kernel sockets (`kernel`) or over the
//! user-level stack on AF_XDP (`xdp`).

mod args;
mod client;
mod command;
mod find_max;
mod hostile;
mod kernel;
mod opening;
mod outgoing;
mod party;
mod plan;
mod reason;
mod report;
mod run;
mod schedule;
mod script;
mod series;
mod settings;
mod shard;
mod tally;
mod target;
mod tls;

pub use args::HttpArgs;
pub use command::main_http;
pub use hostile::Hostility;
pub use report::{Latency, OpenLoop, Report};
pub use run::{Progress, run, run_from};
pub use schedule::{Arrivals, Leg, Rate};
pub use script::{Exchange, Interest, Next, Script, Workload};
pub use series::Interval;
pub use settings::{Ending, Settings};
pub use target::{Store, Target};

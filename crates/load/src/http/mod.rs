//! `overfly load http URL`: a closed loop of HTTP/1.1 requests.
//!
//! Each of `-c` connections has one request under way: when its response is complete, the next
//! request goes out, over the same connection or (`--close`) a new one. [`run`] does it over
//! kernel sockets (`kernel`) or over the user-level stack on AF_XDP (`xdp`).

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
pub use target::Target;

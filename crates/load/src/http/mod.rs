//! `overfly load http URL`: a closed loop of HTTP/1.1 requests.
//!
//! Each of `-c` connections has one request under way: when its response is complete, the next
//! request goes out, over the same connection or (`--close`) a new one. [`run`] does it over
//! kernel sockets (`kernel`) or over the user-level stack on AF_XDP (`xdp`).

mod args;
mod kernel;
mod report;
mod run;
mod settings;
mod shard;

pub use args::{HttpArgs, main_http};
pub use report::{Latency, Report};
pub use run::{Progress, run};
pub use settings::{Settings, Target};

//! `overfly load serve`: an HTTP server that answers at line rate, for testing clients, proxies and links, and as the null
//! server that shows a generator's own ceiling.
//!
//! `/1024`, `/10k` or `/1M` asks for so many bytes. A connection costs its control block and a few bytes: requests are
//! parsed in the frame they arrive in, responses computed in the frame they leave in.

mod args;
mod counts;
mod fault;
mod kernel;
mod reply;
mod report;
mod request;
mod run;
mod session;
mod settings;
mod shard;

pub use crate::http1::Malformed;
pub use args::{ServeArgs, main_serve};
pub use counts::Counts;
pub use fault::{Chances, Fault};
pub use report::Report;
pub use run::{Progress, Server};
pub use settings::Settings;
#[cfg(test)]
pub(crate) use shard::{Shard, tests::server_at};

//! Load generators: clients that measure a server, over the user-level stack or kernel sockets.
//!
//! [`http`] is `overfly load http`: HTTP/1.1 requests. [`serve`] is `overfly load serve`: the other end.
//! [`vod`] is `overfly load vod`: video streams that have to keep up.

#![forbid(unsafe_code)]
// `overfly_terminal` writes: these would end the command where nobody reads any more.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod arguments;
pub mod astf;
mod control;
mod crew;
mod descriptors;
pub mod dialect;
mod error;
pub mod http;
mod http1;
mod link;
mod memcached;
mod memory;
pub mod output;
mod processors;
mod random;
mod readiness;
pub mod record;
mod redis;
mod replies;
pub mod response;
pub mod search;
pub mod serve;
pub mod step;
pub mod vod;

pub use error::Error;
pub use link::{Link, Network};
pub use output::metrics::{Label, Page};
pub use output::room;

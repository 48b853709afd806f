//! Load generators: clients that measure a server, over the user-level stack or kernel sockets.
//!
//! [`http`] is `overfly load http`: a closed loop of HTTP/1.1 requests.

#![forbid(unsafe_code)]

mod arguments;
mod error;
pub mod http;
mod link;
mod output;
mod processors;
pub mod record;
pub mod response;
pub mod search;
mod step;

pub use error::Error;
pub use link::Link;

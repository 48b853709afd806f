//! Load generators: clients that measure a server, over the user-level stack or kernel sockets.
//!
//! [`http`] is `overfly load http`: a closed loop of HTTP/1.1 requests.

#![forbid(unsafe_code)]

pub mod http;
pub mod record;
pub mod response;

//! Requests that a program makes up while the load runs.
//!
//! Most runs send one request over and over, or one of several by weight: those are templates, and cost nothing to make.
//! A [`Workload`] is for all else (wrk's Lua scripts, a log that is played back). It gives each thread a [`Script`],
//! which is asked for the bytes of each request and is shown each response if it wants to see them.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::Duration;

use crate::error::Error;
use crate::record::{Failure, Times};

/// Where the scripts of a run come from.
pub trait Workload: Debug + Send + Sync {
    /// The script of thread `index` of `threads`. Called before the run begins, in the order of the threads.
    ///
    /// # Errors
    /// Why there is none: the run does not begin.
    fn script(&self, index: usize, threads: usize) -> Result<Box<dyn Script>, Error>;
}

/// How much of each exchange a script is shown. What is not wanted costs nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Interest {
    /// [`Script::finished`] is not called.
    Nothing,
    /// Times and sizes.
    Outcome,
    /// Heads as well: each is kept until the response is complete.
    Head,
    /// Head and content as well: they are kept until the response is complete.
    Content,
}

/// Whether a thread goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// With the next request.
    Continue,
    /// No further: this thread's part of the run is over. Others go on.
    Stop,
}

/// A request that has ended, either way.
#[derive(Debug, Clone, Copy)]
pub struct Exchange<'a> {
    /// The connection's place in its thread, below `-c`… or a little above, as old ones wind down while new ones begin.
    pub connection: usize,
    /// Its times. Of a failure, `first_byte_ns` is `ended_ns`.
    pub times: Times,
    /// How it failed; `None`: it is a success.
    pub failure: Option<Failure>,
    /// The response's status; 0 if there was no complete response.
    pub status: u16,
    /// Its content, after chunked framing is taken off, in bytes.
    pub body_bytes: u64,
    /// The response leaves the connection open for another request.
    pub keep_alive: bool,
    /// Status line and fields up to and with the empty line; empty below [`Interest::Head`].
    pub head: &'a [u8],
    /// The content, without chunked framing; empty unless [`Interest::Content`].
    pub body: &'a [u8],
}

/// One thread's requests. It is called by that thread only.
pub trait Script: Send {
    /// Appends the next request for `connection`, head and content, to `request`. The bytes are sent as they are.
    ///
    /// # Errors
    /// The run ends, with this.
    fn request(&mut self, connection: usize, request: &mut Vec<u8>) -> Result<Next, Error>;

    /// How many requests each call of [`Script::request`] appends (pipelining): they are sent together, and the connection
    /// waits for as many responses. Asked once, before the first request.
    fn requests_at_once(&self) -> usize {
        1
    }

    /// Whether all requests are HEAD: their responses end with the head (RFC 9112 section 6.3). Asked once.
    fn heads_only(&self) -> bool {
        false
    }

    /// Where this thread's connections go; `None`: where all go. Asked once.
    fn server(&self) -> Option<SocketAddr> {
        None
    }

    /// What [`Script::finished`] is to be told; asked once, before the first request.
    fn interest(&self) -> Interest {
        Interest::Nothing
    }

    /// A request of this thread has ended.
    ///
    /// # Errors
    /// The run ends, with this.
    fn finished(&mut self, exchange: &Exchange<'_>) -> Result<Next, Error> {
        let _ = exchange;
        Ok(Next::Continue)
    }

    /// Whether [`Script::delay`] is to be asked; asked once, before the first request.
    fn delays(&self) -> bool {
        false
    }

    /// How long a connection waits before its next request. Not asked in an open loop, where the schedule says when.
    ///
    /// # Errors
    /// The run ends, with this.
    fn delay(&mut self) -> Result<Duration, Error> {
        Ok(Duration::ZERO)
    }
}

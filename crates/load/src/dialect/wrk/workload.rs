//! The requests of a run, and what is counted of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::counts::{Collection, Counts, LatencyFrom};
#[cfg(feature = "lua")]
use crate::dialect::script;
use crate::error::Error;
use crate::http::{Exchange, Interest, Next, Script, Workload};

/// Where the requests come from.
#[derive(Debug)]
pub(super) enum Requests {
    /// Each is the same.
    Template(Arc<[u8]>),
    /// A Lua script makes them up.
    #[cfg(feature = "lua")]
    Script(script::Script),
}

/// wrk's workload.
#[derive(Debug)]
pub(super) struct WrkWorkload {
    pub(super) requests: Requests,
    pub(super) from: LatencyFrom,
    /// Latency is that of the last response of a pipelined batch.
    pub(super) batch_latency: bool,
    pub(super) collection: Collection,
}

impl Workload for WrkWorkload {
    fn script(&self, index: usize, threads: usize) -> Result<Box<dyn Script>, Error> {
        debug_assert!(index < threads);
        let source = match &self.requests {
            Requests::Template(bytes) => Source::Template(bytes.clone()),
            #[cfg(feature = "lua")]
            Requests::Script(script) => Source::Script(Box::new(script.thread(index))),
        };
        let counts = Some(Counts::new(self.from, source.requests_at_once(), self.batch_latency));
        Ok(Box::new(Thread { source, stopped: false, counts, collection: self.collection.clone() }))
    }
}

#[derive(Debug)]
enum Source {
    Template(Arc<[u8]>),
    #[cfg(feature = "lua")]
    Script(Box<script::ThreadScript>),
}

impl Source {
    fn requests_at_once(&self) -> usize {
        match self {
            Source::Template(_) => 1,
            #[cfg(feature = "lua")]
            Source::Script(script) => script.requests_at_once(),
        }
    }
}

/// One thread's part. Its counts go to the collection when it ends.
#[derive(Debug)]
struct Thread {
    source: Source,
    /// The script has stopped this thread: what was under way then is neither counted nor shown to it.
    stopped: bool,
    counts: Option<Counts>,
    collection: Collection,
}

impl Script for Thread {
    fn request(&mut self, _connection: usize, request: &mut Vec<u8>) -> Result<Next, Error> {
        match &mut self.source {
            Source::Template(bytes) => {
                request.extend_from_slice(bytes);
                Ok(Next::Continue)
            }
            #[cfg(feature = "lua")]
            Source::Script(script) => script.request(request),
        }
    }

    fn requests_at_once(&self) -> usize {
        self.source.requests_at_once()
    }

    fn server(&self) -> Option<SocketAddr> {
        match &self.source {
            Source::Template(_) => None,
            #[cfg(feature = "lua")]
            Source::Script(script) => script.server(),
        }
    }

    fn interest(&self) -> Interest {
        match &self.source {
            #[cfg(feature = "lua")]
            Source::Script(script) if script.wants_responses() => Interest::Content,
            _ => Interest::Outcome,
        }
    }

    fn finished(&mut self, exchange: &Exchange<'_>) -> Result<Next, Error> {
        if self.stopped {
            return Ok(Next::Stop);
        }
        if let Some(counts) = &mut self.counts {
            counts.count(exchange);
        }
        let next = match &mut self.source {
            Source::Template(_) => Next::Continue,
            #[cfg(feature = "lua")]
            Source::Script(script) => script.response(exchange)?,
        };
        self.stopped = next == Next::Stop;
        Ok(next)
    }

    fn delays(&self) -> bool {
        match &self.source {
            Source::Template(_) => false,
            #[cfg(feature = "lua")]
            Source::Script(script) => script.delays(),
        }
    }

    fn delay(&mut self) -> Result<Duration, Error> {
        match &mut self.source {
            Source::Template(_) => Ok(Duration::ZERO),
            #[cfg(feature = "lua")]
            Source::Script(script) => script.delay(),
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        #[cfg(feature = "lua")]
        if let Source::Script(script) = &self.source {
            script.flush();
        }
        if let Some(counts) = self.counts.take() {
            self.collection.add(counts);
        }
    }
}

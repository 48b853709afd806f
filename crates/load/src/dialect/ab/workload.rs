//! ab's requests, and what is counted of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::counts::Counts;
use super::request::Request;
use crate::error::Error;
use crate::http::{Exchange, Interest, Next, Script, Workload};
use crate::output::print;
use crate::record::Failure;

/// No response has come yet.
const UNKNOWN: u64 = u64::MAX;
/// ab gives up after more failures to connect than this, if nothing succeeded.
const PATIENCE: u64 = 10;

/// What a failure does to the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tolerance {
    /// It goes on after a receive error (`-r`).
    pub(super) receive: bool,
    /// It goes on whatever comes.
    pub(super) all: bool,
}

/// What the threads have in common.
#[derive(Debug)]
struct Common {
    request: Request,
    tolerance: Tolerance,
    /// Any content size is right (`-l`).
    any_length: bool,
    /// The right content size: given, or the first response's. [`UNKNOWN`] until then.
    length: AtomicU64,
    software: OnceLock<String>,
    verbosity: u32,
    rows: bool,
    counts: Mutex<Vec<Counts>>,
}

/// ab's workload.
#[derive(Debug)]
pub(super) struct AbWorkload(Arc<Common>);

impl AbWorkload {
    /// `length`: the content size that is right, if it was given. `rows`: every request is kept for `-g`.
    pub(super) fn new(
        request: Request,
        tolerance: Tolerance,
        any_length: bool,
        length: Option<u64>,
        verbosity: u32,
        rows: bool,
    ) -> AbWorkload {
        AbWorkload(Arc::new(Common {
            request,
            tolerance,
            any_length,
            length: AtomicU64::new(length.unwrap_or(UNKNOWN)),
            software: OnceLock::new(),
            verbosity,
            rows,
            counts: Mutex::default(),
        }))
    }

    /// What all threads have counted.
    pub(super) fn counts(&self) -> Counts {
        let mut sum = Counts::new(self.0.rows);
        for counts in self.0.counts.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            sum.merge(counts);
        }
        sum
    }

    /// The right content size; `None`: any is.
    pub(super) fn length(&self) -> Option<u64> {
        let length = self.0.length.load(Ordering::Relaxed);
        (!self.0.any_length).then_some(if length == UNKNOWN { 0 } else { length })
    }

    /// What the server calls itself.
    pub(super) fn software(&self) -> String {
        self.0.software.get().cloned().unwrap_or_default()
    }
}

impl Workload for AbWorkload {
    fn script(&self, index: usize, threads: usize) -> Result<Box<dyn Script>, Error> {
        debug_assert!(index < threads);
        Ok(Box::new(Thread { common: self.0.clone(), counts: Some(Counts::new(self.0.rows)) }))
    }
}

/// One thread's part. Its counts go to the others' when it ends.
#[derive(Debug)]
struct Thread {
    common: Arc<Common>,
    counts: Option<Counts>,
}

impl Script for Thread {
    fn request(&mut self, _connection: usize, request: &mut Vec<u8>) -> Result<Next, Error> {
        request.extend_from_slice(&self.common.request.bytes);
        Ok(Next::Continue)
    }

    fn heads_only(&self) -> bool {
        self.common.request.method.eq_ignore_ascii_case("HEAD")
    }

    fn interest(&self) -> Interest {
        if self.common.verbosity >= 2 { Interest::Content } else { Interest::Head }
    }

    fn finished(&mut self, exchange: &Exchange<'_>) -> Result<Next, Error> {
        let common = &*self.common;
        if exchange.status != 0 {
            // The first response of all says what is right; others compare.
            let _ = common.length.compare_exchange(
                UNKNOWN,
                exchange.body_bytes,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            if common.software.get().is_none() {
                common.software.get_or_init(|| field(exchange.head, "server"));
            }
            talk(common.verbosity, exchange)?;
        }
        let length = (!common.any_length).then(|| common.length.load(Ordering::Relaxed));
        let Some(counts) = &mut self.counts else {
            return Ok(Next::Stop);
        };
        counts.count(exchange, length);
        if common.tolerance.all {
            return Ok(Next::Continue);
        }
        if exchange.failure == Some(Failure::ConnectRefused) {
            // ab notices a refused connection when it reads (ab.c, read_connection): it ends at the first one, or with -r
            // goes on however many there are.
            if common.tolerance.receive {
                return Ok(Next::Continue);
            }
            return Err(Error::machine(
                "apr_socket_recv",
                "Connection refused (111); go on in spite of it with -r",
            ));
        }
        if counts.receive_errors > 0 && !common.tolerance.receive {
            let why = format!(
                "Connection reset by peer after {} complete requests; go on in spite of it with -r",
                counts.complete
            );
            return Err(Error::machine("apr_socket_recv", why));
        }
        if counts.connect_errors > PATIENCE && counts.good == 0 {
            let why = "none succeeded; go on in spite of it with --keep-going";
            return Err(Error::machine(format!("Test aborted after {PATIENCE} failures"), why));
        }
        Ok(Next::Continue)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(counts) = self.counts.take() {
            self.common.counts.lock().unwrap_or_else(PoisonError::into_inner).push(counts);
        }
    }
}

/// What ab prints of each response with `-v`.
fn talk(verbosity: u32, exchange: &Exchange<'_>) -> Result<(), Error> {
    if verbosity < 2 {
        return Ok(());
    }
    let received = [exchange.head, exchange.body].concat();
    let mut text = format!("LOG: header received:\n{}\n", String::from_utf8_lossy(&received));
    if exchange.status / 100 != 2 {
        text.push_str(&format!("WARNING: Response code not 2xx ({})\n", exchange.status));
    } else if verbosity >= 3 {
        text.push_str(&format!("LOG: Response code = {}\n", exchange.status));
    }
    print(&text)
}

/// The value of a head's field.
fn field(head: &[u8], name: &str) -> String {
    let value = head.split(|byte| *byte == b'\n').find_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        line[..colon].eq_ignore_ascii_case(name.as_bytes()).then(|| line[colon + 1..].trim_ascii())
    });
    String::from_utf8_lossy(value.unwrap_or_default()).into_owned()
}

//! Who decides what connections do, and who carries them.
//!
//! A [`Party`] holds the state of a thread's connections and opens no socket; a stack (the user-level stack in `shard.rs`,
//! kernel sockets in `kernel.rs`) tells it what happened and does what it asks. Both ends number connections by *slot*.
//!
//! The stack's round: [`Party::tell`] the time, report events, [`Party::proceed`], move what was promised, and
//! [`Party::flushed`]; until [`Party::goes_on`] says no.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::reason;
use super::tally::Outcome;
use crate::error::Error;
use crate::link::sources::Sources;
use crate::record::Failure;

/// Why a connection is gone, or was never made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// A reset answered the SYN.
    Refused,
    /// The peer reset it.
    Reset,
    /// The peer does not answer any more.
    TimedOut,
    /// Our side could not send.
    Write,
    /// No TLS connection with it: the handshake failed, or its certificate is not to be trusted; why, in words.
    Untrusted(&'static str),
    /// Something else: unreachable, no port free; what, in words.
    Other(&'static str),
}

impl Why {
    /// The failure of a connection that was to be made.
    pub(crate) fn of_connect(self) -> Failure {
        match self {
            Why::Refused => Failure::ConnectRefused,
            Why::Reset => Failure::ConnectReset,
            Why::TimedOut => Failure::ConnectTimeout,
            Why::Untrusted(_) => Failure::Tls,
            Why::Write | Why::Other(_) => Failure::ConnectOther,
        }
    }

    /// The failure of a request on an open connection.
    pub(crate) fn of_request(self) -> Failure {
        match self {
            Why::TimedOut => Failure::Timeout,
            Why::Write => Failure::Write,
            Why::Untrusted(_) => Failure::Tls,
            Why::Refused | Why::Reset | Why::Other(_) => Failure::Read,
        }
    }

    /// Why there is no connection, for people.
    pub(crate) fn of_connect_in_words(self) -> &'static str {
        match self {
            Why::Refused => reason::REFUSED,
            Why::Reset => reason::RESET,
            Why::TimedOut => reason::UNANSWERED,
            Why::Untrusted(words) | Why::Other(words) => words,
            Why::Write => reason::NOT_BEGUN,
        }
    }
}

/// Where a thread's connections go, and where they come from.
#[derive(Debug, Clone)]
pub(crate) struct Servers {
    pub(crate) addresses: Vec<SocketAddr>,
    /// Local addresses in turn; `None`: the one on the way to the server.
    pub(crate) sources: Option<Sources>,
    /// A request may follow another that is not acknowledged yet: none waits for that (RFC 9293 section 3.7.4).
    pub(crate) no_delay: bool,
}

impl Servers {
    /// As the engine wants them: it knows no mapped addresses and no scopes.
    pub(crate) fn canonical(mut self) -> Servers {
        for address in &mut self.addresses {
            *address = SocketAddr::new(address.ip().to_canonical(), address.port());
        }
        self
    }
}

/// What a party asks of its stack. None of these calls back.
pub(crate) trait ClientStack {
    /// A connection is gone as soon as it is closed or reset: its slot is free then, without [`Party::released`].
    const GONE_AT_ONCE: bool;

    /// Begins a connection to the server of this index; says in which slot.
    ///
    /// # Errors
    /// Why it cannot be begun.
    fn connect(&mut self, server: usize) -> Result<usize, Why>;
    /// `bytes` more of the slot's stream can be asked for.
    fn send(&mut self, slot: usize, bytes: usize);
    /// Ends the connection: what was promised goes out, then a FIN.
    fn close(&mut self, slot: usize);
    /// Ends the connection with a RST.
    fn reset(&mut self, slot: usize);
    /// Takes up to `bytes` that wait in the stack, unread ([`Party::reads`]), and drops them.
    fn consumed(&mut self, slot: usize, bytes: usize);
}

/// The connections of one thread.
pub(crate) trait Party {
    /// What time it is: ns on the run's clock. Everything up to the next call happens then.
    fn tell(&mut self, now_ns: u64);
    /// Whether the run goes on. Asked once a round, before [`Party::proceed`].
    fn goes_on(&mut self) -> bool;
    /// A connection that was begun is established.
    fn opened(&mut self, slot: usize);
    /// Whether bytes are taken as they come. If not they wait in the stack, and its window closes.
    fn reads(&self) -> bool {
        true
    }
    /// Whether it does not even hear what the server's stack says: frames are counted, and dropped.
    fn is_deaf(&self) -> bool {
        false
    }
    /// So many frames were not heard.
    fn unheard(&mut self, frames: u64) {
        let _ = frames;
    }
    /// Bytes of the stream came.
    fn received(&mut self, slot: usize, data: &[u8]);
    /// The peer's stream has ended.
    fn ended(&mut self, slot: usize);
    /// The connection is gone. [`Party::released`] follows.
    fn failed(&mut self, slot: usize, why: Why);
    /// The slot is free.
    fn released(&mut self, slot: usize);
    /// Some bytes of what was promised, from `offset` of the slot's stream on.
    fn stream(&self, slot: usize, offset: u64) -> &[u8];
    /// Bytes before `offset` of the slot's stream are never asked for again.
    fn acknowledged(&mut self, slot: usize, offset: u64);
    /// Does what is to be done, through `stack`.
    ///
    /// # Errors
    /// The run cannot go on.
    fn proceed(&mut self, stack: &mut impl ClientStack) -> Result<(), Error>;
    /// When [`Party::proceed`] has something to do at the latest, if nothing is reported before.
    fn next_ns(&self) -> u64;
    /// What was promised before has left; `clock` says when.
    fn flushed(&mut self, clock: impl FnOnce() -> u64);
    /// The thread had something to do for so long.
    fn was_busy(&mut self, ns: u64);
    /// The run is over: nothing is counted any more, and all connections are reset.
    fn stop(&mut self, now_ns: u64, stack: &mut impl ClientStack);
    /// What the thread brings home, after [`Party::stop`].
    fn into_outcome(self, counters: BTreeMap<String, u64>) -> Outcome;
}

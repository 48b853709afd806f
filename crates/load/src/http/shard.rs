//! Connections over the user-level stack: one engine, its link, and the loop that drives both.
//!
//! A shard opens no socket and makes no allocation per request. A response is parsed in the frame
//! it arrived in; a request is copied from one template into the frame it leaves in.

use std::net::SocketAddr;

use overfly_engine::{Event, Failure, FlowId, Instant, Owner};

use super::party::{ClientStack, Party, Servers, Why};
use super::reason;
use super::tally::{Outcome, Shared};
use crate::error::Error;
use crate::link::sources::Sources;
use crate::link::{IdlePolicy, Stack, Wire};

/// How long a shard sees to its last connections at the end, and how much longer for each of them.
const WIND_UP_NS: u64 = 300_000_000;
const WIND_UP_EACH_NS: u64 = 2_000;

/// The engine's other side: a slot is a flow's index.
struct Side<P>(P);

impl<P: Party> Owner for Side<P> {
    #[inline]
    fn event(&mut self, flow: FlowId, event: Event) {
        let slot = flow.index();
        match event {
            Event::Connected => self.0.opened(slot),
            Event::RemoteClosed => self.0.ended(slot),
            Event::Failed(failure) => self.0.failed(slot, why(failure)),
            Event::Released => self.0.released(slot),
            Event::Acknowledged { offset } => self.0.acknowledged(slot, offset),
            Event::Incoming { .. } => {}
        }
    }

    #[inline]
    fn deliver(&mut self, flow: FlowId, data: &[u8]) -> usize {
        if !self.0.reads() {
            return 0;
        }
        self.0.received(flow.index(), data);
        data.len()
    }

    #[inline]
    fn fill(&mut self, flow: FlowId, mut offset: u64, buffer: &mut [u8]) {
        let mut rest = buffer;
        while !rest.is_empty() {
            let bytes = self.0.stream(flow.index(), offset);
            let take = rest.len().min(bytes.len());
            if take == 0 {
                // The engine asks for nothing that was not promised.
                return;
            }
            let (now, later) = rest.split_at_mut(take);
            now.copy_from_slice(&bytes[..take]);
            rest = later;
            offset += take as u64;
        }
    }
}

fn why(failure: Failure) -> Why {
    match failure {
        Failure::Refused => Why::Refused,
        Failure::Reset => Why::Reset,
        Failure::TimedOut => Why::TimedOut,
        Failure::Unreachable(_) => Why::Other(reason::UNREACHABLE),
    }
}

/// What a party asks for, done by the engine.
struct Asked<'a, W> {
    stack: &'a mut Stack<W>,
    servers: &'a mut Servers,
    /// The port that the sources have their turn with.
    port: &'a mut u16,
    now: Instant,
}

impl<W> Asked<'_, W> {
    /// Each address with one port, then with the next.
    fn next_local(&mut self) -> SocketAddr {
        match &mut self.servers.sources {
            None => SocketAddr::new(self.stack.local, self.stack.ports.take()),
            Some(sources) => {
                if sources.is_at_first() {
                    *self.port = self.stack.ports.take();
                }
                SocketAddr::new(sources.take(), *self.port)
            }
        }
    }
}

impl<W> ClientStack for Asked<'_, W> {
    const GONE_AT_ONCE: bool = false;

    /// Begins a connection from the next address and port that are free.
    fn connect(&mut self, server: usize) -> Result<usize, Why> {
        let pairs = self.stack.ports.len() * self.servers.sources.as_ref().map_or(1, Sources::len);
        for _ in 0..pairs {
            let local = self.next_local();
            match self.stack.engine.connect(self.now, local, self.servers.addresses[server]) {
                Ok(flow) => {
                    if self.servers.no_delay {
                        self.stack.engine.set_no_delay(flow, true);
                    }
                    return Ok(flow.index());
                }
                Err(overfly_engine::Error::TupleInUse) => {}
                Err(_) => return Err(Why::Other(reason::NOT_BEGUN)),
            }
        }
        Err(Why::Other(reason::NO_PORT))
    }

    #[inline]
    fn send(&mut self, slot: usize, bytes: usize) {
        self.stack.engine.send(FlowId::at(slot), bytes);
    }

    fn close(&mut self, slot: usize) {
        self.stack.engine.close(FlowId::at(slot));
    }

    fn reset(&mut self, slot: usize) {
        self.stack.engine.abort(FlowId::at(slot));
    }

    fn consumed(&mut self, slot: usize, bytes: usize) {
        self.stack.engine.consumed(FlowId::at(slot), bytes);
    }
}

/// One thread's stack and its connections.
pub(crate) struct Shard<W, P> {
    stack: Stack<W>,
    servers: Servers,
    side: Side<P>,
    port: u16,
    /// When the last round began, and whether it had something to do.
    round_ns: u64,
    was_busy: bool,
    idle: IdlePolicy,
}

impl<W: Wire, P: Party> Shard<W, P> {
    /// `stack` has control blocks for more flows than `party` has connections: those that wind down
    /// need theirs too.
    pub(crate) fn new(stack: Stack<W>, servers: Servers, party: P) -> Shard<W, P> {
        Shard {
            stack,
            servers,
            side: Side(party),
            port: 0,
            round_ns: 0,
            was_busy: false,
            idle: IdlePolicy::default(),
        }
    }

    /// One round: takes frames, does what they ask for, sends. False when the run is over. `clock`
    /// says what time it is at its end.
    pub(crate) fn step(&mut self, now_ns: u64, clock: impl FnOnce() -> u64) -> Result<bool, Error> {
        let now = self.begin_round(now_ns);
        if !self.side.0.goes_on() {
            return Ok(false);
        }
        let frames = self.receive(now);
        let (party, mut asked) = self.asked(now);
        party.proceed(&mut asked)?;
        self.was_busy = frames > 0 || self.stack.engine.has_output();
        self.stack.transmit(now, &mut self.side);
        self.side.0.flushed(clock);
        let party = &self.side.0;
        self.idle.after_round(now_ns, self.was_busy, &mut self.stack.wire, || party.next_ns());
        Ok(true)
    }

    #[inline]
    fn begin_round(&mut self, now_ns: u64) -> Instant {
        if self.was_busy {
            self.side.0.was_busy(now_ns - self.round_ns);
        }
        self.round_ns = now_ns;
        self.side.0.tell(now_ns);
        self.stack.time(now_ns)
    }

    fn asked(&mut self, now: Instant) -> (&mut P, Asked<'_, W>) {
        (
            &mut self.side.0,
            Asked { stack: &mut self.stack, servers: &mut self.servers, port: &mut self.port, now },
        )
    }

    #[inline]
    fn receive(&mut self, now: Instant) -> usize {
        if !self.side.0.is_deaf() {
            return self.stack.receive(now, &mut self.side);
        }
        let frames = self.stack.drop_received(now, &mut self.side);
        self.side.0.unheard(frames as u64);
        frames
    }

    /// Begins the end: every connection that is open is reset, so that the server holds nothing
    /// of ours. Then [`Shard::is_wound_up`] is asked after each [`Shard::settle`].
    pub(crate) fn stop(&mut self, now_ns: u64) {
        let now = self.begin_round(now_ns);
        let (party, mut asked) = self.asked(now);
        party.stop(now_ns, &mut asked);
    }

    /// One round of the end: nothing new is begun.
    pub(crate) fn settle(&mut self, now_ns: u64) {
        self.was_busy = false;
        let now = self.begin_round(now_ns);
        self.receive(now);
        self.stack.transmit(now, &mut self.side);
    }

    /// Whether the server has nothing of ours any more, as far as we can know.
    pub(crate) fn is_wound_up(&self) -> bool {
        self.stack.is_wound_up()
    }

    /// Drives the shard on the run's clock until the run is over, then ends its connections.
    pub(crate) fn run(mut self, clock: &Shared) -> Result<Outcome, Error> {
        while self.step(clock.now_ns(), || clock.now_ns())? {}
        let ended_ns = clock.now_ns();
        let patience_ns = WIND_UP_NS + self.stack.engine.flows() as u64 * WIND_UP_EACH_NS;
        self.stop(ended_ns);
        while !self.is_wound_up() && clock.now_ns() < ended_ns + patience_ns {
            self.settle(clock.now_ns());
        }
        Ok(self.into_outcome())
    }

    pub(crate) fn into_outcome(self) -> Outcome {
        let counters = self.stack.counters();
        self.side.0.into_outcome(counters)
    }
}

#[cfg(test)]
mod tests;

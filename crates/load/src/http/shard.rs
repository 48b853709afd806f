//! Connections over the user-level stack: one engine, its link, and the loop that drives both.
//!
//! A shard opens no socket and makes no allocation per request. A response is parsed in the frame
//! it arrived in; a request is copied from one template into the frame it leaves in.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use overfly_engine::{Event, FlowId, Instant, Owner};

use super::run::{RETRY_NS, Ramp, Worker};
use super::tally::{Outcome, Tally};
use crate::error::Error;
use crate::link::{Stack, Wire};
use crate::record::Failure;
use crate::response::{HeadCache, Malformed, Parser};

/// Frames taken before anything is sent.
const FRAMES_AT_ONCE: usize = 64;
/// Times that a full link is flushed before received frames have their turn again.
const FLUSHES_AT_ONCE: usize = 4;
/// How long a shard sees to its last connections at the end.
const WIND_UP_NS: u64 = 300_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No flow has this index.
    Free,
    Connecting,
    /// Established; its first request may go out.
    Connected,
    /// The response is not complete.
    Receiving,
    /// The response is complete; another request may go out.
    Ready,
    /// The response was the last, and the server closes first.
    Closing,
    /// To be closed.
    Done,
    /// To be reset.
    Broken,
    /// Closed or reset by us, or failed: the engine sees to the rest.
    Dying,
}

/// What the generator knows of one flow; the flow's index is its place.
#[derive(Debug, Clone)]
struct Connection {
    parser: Parser,
    /// Start of the request, or of the connection until there is one.
    started_ns: u64,
    id: Option<FlowId>,
    phase: Phase,
    /// Bytes came that no request asked for.
    tainted: bool,
    /// Stands in `Client::noted`.
    noted: bool,
}

impl Connection {
    const FREE: Connection = Connection {
        parser: Parser::new(),
        started_ns: 0,
        id: None,
        phase: Phase::Free,
        tainted: false,
        noted: false,
    };
}

/// The engine's other side.
struct Client<'a> {
    tally: Tally<'a>,
    request: Arc<[u8]>,
    connections: Vec<Connection>,
    cache: HeadCache,
    /// Flows with something to do once the engine can be called again.
    noted: Vec<FlowId>,
    /// Connections to be opened now.
    vacant: usize,
    /// When to open one more, soonest first.
    retries: VecDeque<u64>,
    connecting: usize,
    /// Connections that are one of `-c`: neither `Free` nor `Dying`.
    live: usize,
    now_ns: u64,
}

impl Client<'_> {
    #[inline]
    fn note(&mut self, flow: FlowId, phase: Phase) {
        let connection = &mut self.connections[flow.index()];
        connection.phase = phase;
        if !connection.noted {
            connection.noted = true;
            self.noted.push(flow);
        }
    }

    /// A connection is no longer one of `-c`; another takes its place.
    fn leave(&mut self, flow: FlowId) {
        let connection = &mut self.connections[flow.index()];
        if connection.phase == Phase::Connecting {
            self.connecting -= 1;
            self.retries.push_back(self.now_ns + RETRY_NS);
        } else {
            self.tally.closed();
            self.vacant += 1;
        }
        connection.phase = Phase::Dying;
        self.live -= 1;
    }
}

impl Owner for Client<'_> {
    fn event(&mut self, flow: FlowId, event: Event) {
        let connection = &mut self.connections[flow.index()];
        let (phase, started_ns) = (connection.phase, connection.started_ns);
        match event {
            Event::Connected => {
                self.connecting -= 1;
                self.tally.opened(self.now_ns.saturating_sub(started_ns));
                self.note(flow, Phase::Connected);
            }
            Event::RemoteClosed => {
                if phase == Phase::Dying {
                    return;
                }
                if phase == Phase::Receiving {
                    match connection.parser.finish() {
                        Some(response) => self.tally.complete(response, started_ns, self.now_ns),
                        None => self.tally.fail(Failure::ClosedEarly, started_ns),
                    }
                } else if phase == Phase::Connected {
                    self.tally.fail(Failure::ClosedEarly, started_ns);
                }
                if phase != Phase::Broken {
                    self.note(flow, Phase::Done);
                }
            }
            Event::Failed(failure) => {
                use overfly_engine::Failure as Why;
                let failure = match (phase, failure) {
                    (Phase::Connecting, Why::Refused) => Some(Failure::ConnectRefused),
                    (Phase::Connecting, Why::Reset) => Some(Failure::ConnectReset),
                    (Phase::Connecting, Why::TimedOut) => Some(Failure::ConnectTimeout),
                    (Phase::Connected | Phase::Receiving, Why::TimedOut) => Some(Failure::Timeout),
                    (Phase::Connected | Phase::Receiving, _) => Some(Failure::Read),
                    _ => None,
                };
                if let Some(failure) = failure {
                    self.tally.fail(failure, started_ns);
                }
                if phase != Phase::Dying {
                    self.leave(flow);
                }
            }
            Event::Released => {
                if phase != Phase::Dying {
                    self.leave(flow);
                }
                self.connections[flow.index()].phase = Phase::Free;
            }
            Event::Acknowledged { .. } | Event::Incoming { .. } => {}
        }
    }

    #[inline]
    fn deliver(&mut self, flow: FlowId, data: &[u8]) -> usize {
        let connection = &mut self.connections[flow.index()];
        if connection.phase != Phase::Receiving {
            connection.tainted = true;
            return data.len();
        }
        self.tally.record.bytes_in += data.len() as u64;
        let started_ns = connection.started_ns;
        match connection.parser.feed(data, &mut self.cache) {
            Ok((_, None)) => {}
            Ok((used, Some(_))) if used < data.len() => {
                self.tally.fail_malformed(Malformed::Unsolicited, started_ns);
                self.note(flow, Phase::Broken);
            }
            Ok((_, Some(response))) => {
                self.tally.complete(response, started_ns, self.now_ns);
                if !response.keep_alive {
                    connection.phase = Phase::Closing;
                } else if self.tally.close() {
                    self.note(flow, Phase::Done);
                } else {
                    self.note(flow, Phase::Ready);
                }
            }
            Err(malformed) => {
                self.tally.fail_malformed(malformed, started_ns);
                self.note(flow, Phase::Broken);
            }
        }
        data.len()
    }

    #[inline]
    fn fill(&mut self, _flow: FlowId, offset: u64, buffer: &mut [u8]) {
        // Every request of a flow is the same: the stream is the template over and over.
        let mut at = (offset % self.request.len() as u64) as usize;
        let mut rest = buffer;
        while !rest.is_empty() {
            let take = rest.len().min(self.request.len() - at);
            let (now, later) = rest.split_at_mut(take);
            now.copy_from_slice(&self.request[at..at + take]);
            rest = later;
            at = 0;
        }
    }
}

/// What the connections of a shard do.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    pub(crate) server: SocketAddr,
    pub(crate) request: Arc<[u8]>,
    pub(crate) connections: usize,
    pub(crate) timeout_ns: u64,
}

/// A thread's stack and task before it runs.
pub(crate) struct ShardWorker<W> {
    pub(crate) stack: Stack<W>,
    pub(crate) task: Task,
}

impl<W: Wire + Send> Worker for ShardWorker<W> {
    fn run(self, tally: Tally<'_>) -> Result<Outcome, Error> {
        Ok(Shard::new(self.stack, self.task, tally).run())
    }
}

/// One thread's stack and connections.
pub(crate) struct Shard<'a, W> {
    stack: Stack<W>,
    client: Client<'a>,
    task: Task,
    ramp: Ramp,
    scan_every_ns: u64,
    next_scan_ns: u64,
}

impl<'a, W: Wire> Shard<'a, W> {
    /// `stack` has control blocks for more flows than `task` has connections: those that wind down
    /// need theirs too.
    pub(crate) fn new(stack: Stack<W>, task: Task, tally: Tally<'a>) -> Shard<'a, W> {
        let scan_every_ns = (task.timeout_ns / 8).clamp(5_000_000, 250_000_000);
        let connections = 2 * task.connections;
        Shard {
            stack,
            client: Client {
                tally,
                request: task.request.clone(),
                connections: vec![Connection::FREE; connections],
                cache: HeadCache::new(),
                noted: Vec::with_capacity(connections),
                vacant: 0,
                retries: VecDeque::new(),
                connecting: 0,
                live: 0,
                now_ns: 0,
            },
            ramp: Ramp::new(task.connections),
            task,
            scan_every_ns,
            next_scan_ns: scan_every_ns,
        }
    }

    /// One round: takes frames, does what they ask for, sends. False when the run is over.
    pub(crate) fn step(&mut self, now_ns: u64) -> bool {
        if !self.client.tally.goes_on(now_ns) {
            return false;
        }
        let now = self.receive(now_ns);
        if now_ns >= self.next_scan_ns {
            self.fail_the_late(now_ns);
            self.next_scan_ns = now_ns + self.scan_every_ns;
        }
        self.do_what_was_noted();
        self.open_connections(now);
        self.transmit(now);
        let client = &self.client;
        client.live + client.vacant + client.retries.len() + self.ramp.left > 0
    }

    #[inline]
    fn receive(&mut self, now_ns: u64) -> Instant {
        let now = Instant::from_micros((self.stack.epoch_ns + now_ns) / 1000);
        self.client.now_ns = now_ns;
        let (engine, client) = (&mut self.stack.engine, &mut self.client);
        self.stack.wire.receive(FRAMES_AT_ONCE, |frame| engine.receive(now, frame, client));
        if self.stack.engine.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.stack.engine.advance(now, &mut self.client);
        }
        now
    }

    #[inline]
    fn transmit(&mut self, now: Instant) {
        if self.stack.engine.has_output() {
            for _ in 0..FLUSHES_AT_ONCE {
                if self.stack.engine.transmit(now, &mut self.client, &mut self.stack.wire) {
                    break;
                }
                self.stack.wire.flush();
            }
        }
        self.stack.wire.flush();
    }

    #[inline]
    fn do_what_was_noted(&mut self) {
        let client = &mut self.client;
        let mut noted = std::mem::take(&mut client.noted);
        for flow in noted.drain(..) {
            let connection = &mut client.connections[flow.index()];
            connection.noted = false;
            match connection.phase {
                Phase::Connected => {
                    if !client.tally.close() {
                        connection.started_ns = client.now_ns;
                    }
                }
                Phase::Ready => {
                    if !client.tally.take_ticket() {
                        client.leave(flow);
                        self.stack.engine.close(flow);
                        continue;
                    }
                    connection.started_ns = client.now_ns;
                }
                Phase::Done => {
                    client.leave(flow);
                    self.stack.engine.close(flow);
                    continue;
                }
                Phase::Broken => {
                    client.leave(flow);
                    self.stack.engine.abort(flow);
                    continue;
                }
                _ => continue,
            }
            if connection.tainted {
                client.tally.fail_malformed(Malformed::Unsolicited, connection.started_ns);
                client.leave(flow);
                self.stack.engine.abort(flow);
                continue;
            }
            connection.phase = Phase::Receiving;
            client.tally.record.bytes_out += client.request.len() as u64;
            self.stack.engine.send(flow, client.request.len());
        }
        client.noted = noted;
    }

    /// Fills vacancies while there are requests left.
    #[inline]
    fn open_connections(&mut self, now: Instant) {
        while let Some(due_ns) = self.client.retries.front()
            && *due_ns <= self.client.now_ns
        {
            self.client.retries.pop_front();
            self.client.vacant += 1;
        }
        self.client.vacant += self.ramp.begin(self.client.now_ns, self.client.connecting);
        for _ in 0..std::mem::take(&mut self.client.vacant) {
            if self.client.tally.take_ticket() && !self.connect(now) {
                self.client.tally.fail(Failure::ConnectOther, self.client.now_ns);
                self.client.retries.push_back(self.client.now_ns + RETRY_NS);
            }
        }
    }

    /// Begins a connection from the next port that is free. False if there is none.
    fn connect(&mut self, now: Instant) -> bool {
        for _ in 0..self.stack.ports.len() {
            let local = SocketAddr::new(self.stack.local, self.stack.ports.take());
            match self.stack.engine.connect(now, local, self.task.server) {
                Ok(flow) => {
                    let client = &mut self.client;
                    if flow.index() >= client.connections.len() {
                        client.connections.resize(2 * flow.index() + 1, Connection::FREE);
                    }
                    client.connecting += 1;
                    client.live += 1;
                    client.connections[flow.index()] = Connection {
                        parser: Parser::new(),
                        started_ns: client.now_ns,
                        id: Some(flow),
                        phase: Phase::Connecting,
                        tainted: false,
                        noted: false,
                    };
                    return true;
                }
                Err(overfly_engine::Error::TupleInUse) => {}
                Err(_) => return false,
            }
        }
        false
    }

    fn fail_the_late(&mut self, now_ns: u64) {
        for index in 0..self.client.connections.len() {
            let client = &mut self.client;
            let connection = &client.connections[index];
            let started_ns = connection.started_ns;
            let (true, Some(flow)) =
                (now_ns.saturating_sub(started_ns) >= self.task.timeout_ns, connection.id)
            else {
                continue;
            };
            match connection.phase {
                Phase::Connecting => client.tally.fail(Failure::ConnectTimeout, started_ns),
                Phase::Receiving => client.tally.fail(Failure::Timeout, started_ns),
                Phase::Closing => {}
                _ => continue,
            }
            client.leave(flow);
            self.stack.engine.abort(flow);
        }
    }

    /// Begins the end: every connection that is open is reset, so that the server holds nothing
    /// of ours. Then [`Shard::is_wound_up`] is asked after each [`Shard::settle`].
    pub(crate) fn reset_all(&mut self) {
        self.client.noted.clear();
        for index in 0..self.client.connections.len() {
            let connection = &self.client.connections[index];
            if let (false, Some(flow)) =
                (matches!(connection.phase, Phase::Free | Phase::Dying), connection.id)
            {
                self.client.leave(flow);
                self.stack.engine.abort(flow);
            }
        }
    }

    /// One round of the end: nothing new is begun.
    pub(crate) fn settle(&mut self, now_ns: u64) {
        let now = self.receive(now_ns);
        self.transmit(now);
    }

    /// Whether the server has nothing of ours any more, as far as we can know.
    pub(crate) fn is_wound_up(&self) -> bool {
        self.stack.engine.flows() == self.stack.engine.time_wait_flows() && !self.stack.engine.has_output()
    }

    /// Drives the shard on the tally's clock until the run is over, then ends its connections.
    pub(crate) fn run(mut self) -> Outcome {
        let clock = self.client.tally.clock();
        while self.step(clock.now_ns()) {}
        let ended_ns = clock.now_ns();
        self.client.tally.stop(ended_ns);
        self.reset_all();
        while !self.is_wound_up() && clock.now_ns() < ended_ns + WIND_UP_NS {
            self.settle(clock.now_ns());
        }
        let mut counters = BTreeMap::new();
        for (name, count) in self.stack.engine.counters().iter() {
            counters.insert(format!("engine.{name}"), count);
        }
        self.stack.wire.count(&mut counters);
        self.client.tally.into_outcome(counters)
    }
}

#[cfg(test)]
mod tests;

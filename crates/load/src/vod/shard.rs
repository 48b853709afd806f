//! Streams over the user-level stack: one engine, its link, and the loop that drives both.
//!
//! Content is counted in the frame it arrived in and kept nowhere. What a player has no room for is not consumed, and so
//! closes the connection's receive window.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use overfly_engine::{Event, Failure, FlowId, Instant, Owner};

use super::counts::{Counts, Loss};
use super::player::{Order, Player};
use crate::crew::{Outcome, Turn};
use crate::link::sources::Sources;
use crate::link::{IdlePolicy, Stack, Wire};

/// How long a shard sees to its last connections at the end.
const WIND_UP_NS: u64 = 300_000_000;
/// At most this many connections are being made at any time: a listener's backlog is a few hundred.
pub(super) const CONNECTING_AT_ONCE: u64 = 256;
/// No stream has this flow.
const NOBODY: u32 = u32::MAX;

/// Where a thread's streams go to, and come from.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    pub(crate) server: SocketAddr,
    /// `None`: the stack's own address.
    pub(crate) sources: Option<Sources>,
    /// Receive window of each connection at most, bytes.
    pub(crate) window: u32,
}

/// The engine's other side.
struct EnginePlayers {
    player: Player,
    /// Each stream's flow.
    flows: Vec<Option<FlowId>>,
    /// Each flow's stream.
    streams: Vec<u32>,
}

impl EnginePlayers {
    fn stream_of(&self, flow: FlowId) -> Option<usize> {
        let stream = self.streams.get(flow.index()).copied().unwrap_or(NOBODY);
        (stream != NOBODY).then_some(stream as usize)
    }

    /// The stream has this flow no more.
    fn part(&mut self, stream: usize) -> Option<FlowId> {
        let flow = self.flows[stream].take()?;
        self.streams[flow.index()] = NOBODY;
        Some(flow)
    }
}

impl Owner for EnginePlayers {
    fn event(&mut self, flow: FlowId, event: Event) {
        let Some(stream) = self.stream_of(flow) else {
            return;
        };
        match event {
            Event::Connected => self.player.connected(stream),
            Event::RemoteClosed => self.player.ended(stream),
            Event::Failed(failure) => {
                self.part(stream);
                self.player.broken(stream, loss_of(failure));
            }
            Event::Released => {
                self.part(stream);
            }
            Event::Acknowledged { .. } | Event::Incoming { .. } => {}
        }
    }

    #[inline]
    fn deliver(&mut self, flow: FlowId, data: &[u8]) -> usize {
        match self.stream_of(flow) {
            Some(stream) => self.player.received(stream, data),
            None => data.len(),
        }
    }

    #[inline]
    fn fill(&mut self, flow: FlowId, offset: u64, buffer: &mut [u8]) {
        match self.stream_of(flow) {
            Some(stream) => self.player.fill(stream, offset, buffer),
            // Given up: whatever is still sent is answered by a reset.
            None => buffer.fill(b' '),
        }
    }
}

fn loss_of(failure: Failure) -> Loss {
    match failure {
        Failure::Refused => Loss::Refused,
        Failure::Reset => Loss::Reset,
        Failure::TimedOut => Loss::TimedOut,
        Failure::Unreachable(_) => Loss::NoConnection,
    }
}

/// One thread's stack and streams.
pub(crate) struct Shard<W> {
    stack: Stack<W>,
    carrier: EnginePlayers,
    route: Route,
    /// Streams that there should have been until now.
    wanted: Arc<AtomicU64>,
    idle: IdlePolicy,
}

impl<W: Wire> Shard<W> {
    pub(crate) fn new(stack: Stack<W>, player: Player, route: Route, wanted: Arc<AtomicU64>) -> Shard<W> {
        let carrier = EnginePlayers { player, flows: Vec::new(), streams: Vec::new() };
        Shard { stack, carrier, route, wanted, idle: IdlePolicy::default() }
    }

    /// One round: takes frames, does what they and the clock ask for, sends.
    pub(crate) fn step(&mut self, now_ns: u64) {
        self.carrier.player.tell(now_ns);
        let (now, frames) = self.receive(now_ns);
        let wanted = self.wanted.load(Ordering::Relaxed);
        let mut connecting = self.carrier.player.counts.standing.connecting;
        while (self.carrier.player.len() as u64) < wanted && connecting < CONNECTING_AT_ONCE {
            self.carrier.player.open();
            connecting += 1;
        }
        self.carry_out_orders(now);
        let was_busy = frames > 0 || self.stack.engine.has_output();
        self.stack.transmit(now, &mut self.carrier);
        // A player's ticks are milliseconds.
        self.idle.after_round(now_ns, was_busy, &mut self.stack.wire, || u64::MAX);
    }

    #[inline]
    fn receive(&mut self, now_ns: u64) -> (Instant, usize) {
        let now = self.stack.time(now_ns);
        (now, self.stack.receive(now, &mut self.carrier))
    }

    fn carry_out_orders(&mut self, now: Instant) {
        while !self.carrier.player.orders.is_empty() {
            let mut orders = std::mem::take(&mut self.carrier.player.orders);
            for order in orders.drain(..) {
                self.carry_out(now, order);
            }
            if self.carrier.player.orders.is_empty() {
                self.carrier.player.orders = orders;
            }
        }
    }

    fn carry_out(&mut self, now: Instant, order: Order) {
        let engine = &mut self.stack.engine;
        match order {
            Order::Connect(stream) => {
                if !self.connect(now, stream) {
                    self.carrier.player.broken(stream, Loss::NoConnection);
                }
            }
            Order::Send(stream, bytes) => {
                if let Some(flow) = self.carrier.flows[stream] {
                    engine.send(flow, bytes);
                }
            }
            Order::Read(stream, bytes) => {
                if let (Some(flow), 1..) = (self.carrier.flows[stream], bytes) {
                    engine.consumed(flow, bytes as usize);
                }
            }
            Order::Close(stream) => {
                if let Some(flow) = self.carrier.part(stream) {
                    engine.close(flow);
                }
            }
            Order::Reset(stream) => {
                if let Some(flow) = self.carrier.part(stream) {
                    engine.abort(flow);
                }
            }
        }
    }

    /// Begins a connection from an address at random and the next port that is free there. False if there is none.
    fn connect(&mut self, now: Instant, stream: usize) -> bool {
        let carrier = &mut self.carrier;
        let source = match &self.route.sources {
            Some(sources) => sources.at(carrier.player.random(sources.len() as u64)),
            None => self.stack.local,
        };
        for _ in 0..self.stack.ports.len() {
            let local = SocketAddr::new(source, self.stack.ports.take());
            match self.stack.engine.connect(now, local, self.route.server) {
                Ok(flow) => {
                    self.stack.engine.set_receive_window(flow, self.route.window);
                    let flows = carrier.flows.len().max(stream + 1);
                    carrier.flows.resize(flows, None);
                    carrier.flows[stream] = Some(flow);
                    let streams = carrier.streams.len().max(flow.index() + 1);
                    carrier.streams.resize(streams, NOBODY);
                    carrier.streams[flow.index()] = stream as u32;
                    return true;
                }
                Err(overfly_engine::Error::TupleInUse) => {}
                Err(_) => return false,
            }
        }
        false
    }

    /// Begins the end: every connection that is open is reset, so that the server holds nothing of ours.
    pub(crate) fn reset_all(&mut self) {
        for stream in 0..self.carrier.flows.len() {
            if let Some(flow) = self.carrier.part(stream) {
                self.stack.engine.abort(flow);
            }
        }
    }

    /// One round of the end: nothing new is begun.
    pub(crate) fn settle(&mut self, now_ns: u64) {
        let (now, _) = self.receive(now_ns);
        self.stack.transmit(now, &mut self.carrier);
    }

    /// Whether the server has nothing of ours any more, as far as we can know.
    pub(crate) fn is_wound_up(&self) -> bool {
        self.stack.is_wound_up()
    }

    /// Streams until told to stop.
    pub(crate) fn run(mut self, turn: &mut Turn<Counts>) -> Outcome<Counts> {
        loop {
            let now_ns = turn.now_ns();
            if !turn.goes_on(now_ns, &self.carrier.player.counts) {
                break;
            }
            self.step(now_ns);
        }
        self.reset_all();
        let ended_ns = turn.now_ns();
        while !self.is_wound_up() && turn.now_ns() < ended_ns + WIND_UP_NS {
            self.settle(turn.now_ns());
        }
        Outcome { counts: self.carrier.player.counts, counters: self.stack.counters() }
    }
}

#[cfg(test)]
mod tests;

//! One side's stack, its flows and its loop.

use std::sync::Arc;

use overfly_engine::Instant;

use super::counter::Tally;
use super::latency::Latency;
use super::machine::Machine;
use super::opener::Opener;
use super::pace::Pace;
use super::path::Underway;
use super::plan::{Plan, Role};
use super::probe::Probe;
use super::side::Side;
use super::way::Way;
use super::wire::HasEnd;
use crate::error::Error;
use crate::link::{Stack, Wire};
use crate::random::SplitMix;

/// Connections that may wait to be accepted: all that a turn brings.
const BACKLOG: u32 = 1 << 24;

/// With fewer flows than this their memory is near anyway.
const PREPARE_FROM: usize = 8192;

impl<W: HasEnd> Shard<W> {
    /// Brings the memory near that the next turn's frames need.
    #[inline]
    pub(crate) fn prepare(&mut self) {
        if self.stack.engine.flows() < PREPARE_FROM {
            return;
        }
        let (engine, side) = (&self.stack.engine, &self.side);
        let mut sum = 0;
        self.stack
            .wire
            .prepare(|frames| engine.prepare_frames(frames, |flow| sum ^= side.touch(flow.index())));
        std::hint::black_box(sum);
    }
}

/// One side of a thread.
pub(crate) struct Shard<W> {
    pub(crate) stack: Stack<Way<W>>,
    pub(crate) side: Side,
    plan: Arc<Plan>,
    opener: Option<Opener>,
    pace: Option<Pace>,
    random: SplitMix,
    /// Nothing more is begun.
    ended: bool,
}

impl<W: Wire> Shard<W> {
    /// A client side.
    pub(crate) fn client(
        stack: Stack<W>,
        plan: &Arc<Plan>,
        (opener, pace, probe): (Opener, Pace, Option<Probe>),
        flows: usize,
        seed: u64,
    ) -> Shard<W> {
        let shard = Shard::new(stack, plan, Role::Client, probe, flows, seed);
        Shard { opener: Some(opener), pace: Some(pace), ..shard }
    }

    fn new(
        stack: Stack<W>,
        plan: &Arc<Plan>,
        role: Role,
        probe: Option<Probe>,
        flows: usize,
        seed: u64,
    ) -> Shard<W> {
        let stack = Way::before(stack, Underway::new(plan, role, seed), probe);
        let mut side = Side::new(plan.clone(), role, flows, stack.time(0).as_micros());
        side.note = stack.wire.note();
        let (plan, random) = (plan.clone(), SplitMix::new(seed));
        Shard { stack, side, plan, opener: None, pace: None, random, ended: false }
    }

    /// A server side, which listens for all templates.
    ///
    /// # Errors
    /// A port cannot be listened at.
    pub(crate) fn server(
        stack: Stack<W>,
        plan: &Arc<Plan>,
        flows: usize,
        seed: u64,
    ) -> Result<Shard<W>, Error> {
        let mut shard = Shard::new(stack, plan, Role::Server, None, flows, seed);
        let (stack, side) = (&mut shard.stack, &mut shard.side);
        let failed = |error| Error::machine("listening for the profile's templates", error);
        let mut families: Vec<std::net::IpAddr> = vec![std::net::Ipv4Addr::UNSPECIFIED.into()];
        if plan.has_ipv6() {
            families.push(std::net::Ipv6Addr::UNSPECIFIED.into());
        }
        for any in families {
            for (port, rules) in &plan.tcp_ports {
                let listener =
                    stack.engine.listen(std::net::SocketAddr::new(any, *port), BACKLOG).map_err(failed)?;
                if let Some(template) = plan.templates.get(usize::from(rules.any())) {
                    let tuning = template.tuning(Role::Server);
                    if let Some(mss) = tuning.mss {
                        stack.engine.set_listener_max_segment(listener, mss);
                    }
                    stack.engine.set_listener_traffic_class(listener, tuning.traffic_class);
                    if let Some(hops) = tuning.hop_limit {
                        stack.engine.set_listener_hop_limits(listener, hops, hops);
                    }
                }
                side.listeners.push((listener, *port));
            }
            for port in plan.udp_ports.keys() {
                let socket =
                    stack.engine.udp_open(std::net::SocketAddr::new(any, *port), None).map_err(failed)?;
                if side.sockets.len() <= socket.index() {
                    side.sockets.resize(socket.index() + 1, 0);
                }
                side.sockets[socket.index()] = *port;
            }
        }
        side.listeners.sort_unstable();
        Ok(shard)
    }

    fn tell(&mut self, now_ns: u64) -> Instant {
        let now = self.stack.time(now_ns);
        self.side.now_us = now.as_micros();
        self.stack.wire.at(self.side.now_us, self.ended);
        now
    }

    /// Time goes on for the rates.
    pub(crate) fn pace(&mut self, now_ns: u64, multiplier: f64, paused: bool) {
        if let Some(pace) = &mut self.pace {
            pace.advance(now_ns, multiplier, paused);
        }
    }

    /// Begins the flows that are due. True if more are. Where `peer_is_behind` none is.
    pub(crate) fn begin(&mut self, now_ns: u64, multiplier: f64, peer_is_behind: bool) -> bool {
        let now = self.tell(now_ns);
        let Some(pace) = &mut self.pace else { return false };
        if peer_is_behind || self.stack.engine.has_output() {
            // The link is full: flows that are there go before new ones.
            pace.fall_behind(&mut self.side, multiplier);
            return false;
        }
        let (stack, opener, random, plan) =
            (&mut self.stack, &mut self.opener, &mut self.random, &*self.plan);
        let many = stack.engine.flows() >= PREPARE_FROM;
        pace.begin(&mut self.side, multiplier, |side, template, row| {
            if many
                && row > 1
                && let Some(opener) = opener
            {
                let routes = opener.draw(template, row, random);
                stack.engine.prepare_tuples(routes.map(|route| (route.local, route.remote)));
            }
            Machine { stack, side, plan, opener, random, now, met: Vec::new() }.open(template, None)
        })
    }

    /// Nothing more is begun.
    pub(crate) fn end(&mut self) {
        self.ended = true;
        if let Some(pace) = &mut self.pace {
            pace.end(&mut self.side);
        }
    }

    /// Whether everything that there was to begin has begun and ended.
    pub(crate) fn is_done(&self) -> bool {
        self.pace.as_ref().is_some_and(Pace::is_done) && self.side.active() == 0
    }

    /// One turn: takes frames, goes on with programs, sends. Returns how many frames it took.
    #[inline]
    pub(crate) fn turn(&mut self, now_ns: u64) -> usize {
        let now = self.tell(now_ns);
        let frames = self.stack.receive(now, &mut self.side);
        self.attend(now);
        self.stack.transmit(now, &mut self.side);
        frames
    }

    fn attend(&mut self, now: Instant) {
        self.machine(now).attend_all();
    }

    fn machine(&mut self, now: Instant) -> Machine<'_, Way<W>> {
        Machine {
            stack: &mut self.stack,
            side: &mut self.side,
            plan: &self.plan,
            opener: &mut self.opener,
            random: &mut self.random,
            now,
            met: Vec::new(),
        }
    }

    /// Whether a turn would have something to do before frames come.
    pub(crate) fn has_work(&self) -> bool {
        let is_due = |at_us| at_us <= self.side.now_us;
        !self.side.noted.is_empty()
            || self.stack.engine.has_output()
            || self.stack.wire.next_us().is_some_and(is_due)
    }

    /// Whether nothing of ours is on a simulated path.
    pub(crate) fn has_arrived(&self) -> bool {
        self.stack.wire.held() == 0
    }

    /// How long until something is due by time, ns, if no frame comes.
    pub(crate) fn wait_ns(&self, multiplier: f64) -> u64 {
        let now_us = self.side.now_us;
        let engine = self.stack.engine.next_deadline().map(Instant::as_micros);
        let due_us =
            self.side.wheel.next_us().into_iter().chain(engine).chain(self.stack.wire.next_us()).min();
        let wait_ns = due_us.map_or(u64::MAX, |due_us| due_us.saturating_sub(now_us) * 1000);
        self.pace.as_ref().map_or(wait_ns, |pace| wait_ns.min(pace.wait_ns(multiplier)))
    }

    /// Resets what is there.
    pub(crate) fn reset_all(&mut self, now_ns: u64) {
        let now = self.tell(now_ns);
        self.machine(now).reset_all();
    }

    /// By group, the last of flows whose template was never known.
    pub(crate) fn tallies(&self) -> &[Tally] {
        &self.side.tallies
    }

    pub(crate) fn latencies(&self) -> &[Latency] {
        &self.side.latencies
    }
}

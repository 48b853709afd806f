//! What a thread drives: one side on a link, or both on a wire in memory.

use std::collections::BTreeMap;

use super::counter::{Tally, of_stack};
use super::latency::Latency;
use super::probe::ProbeTimes;
use super::shard::Shard;
use super::wire::{End, HasEnd};
use crate::link::Wire;

/// What a thread has counted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    /// By side and group; empty for a side that the thread has not.
    pub(crate) tallies: [Vec<Tally>; 2],
    pub(crate) probes: Vec<ProbeTimes>,
    /// Bytes that control blocks and tables take, of both sides.
    pub(crate) memory: usize,
    /// Time with something to do.
    pub(crate) busy_ns: u64,
}

/// What a thread drives.
pub(crate) trait Rig {
    /// Whether frames come from elsewhere, so that it must look for them.
    const LISTENS: bool;
    fn pace(&mut self, now_ns: u64, multiplier: f64, paused: bool);
    fn begin(&mut self, now_ns: u64, multiplier: f64) -> bool;
    /// A turn of each side. Returns the frames taken.
    fn turn(&mut self, clock: &dyn Fn() -> u64) -> usize;
    fn end(&mut self);
    fn is_done(&self) -> bool;
    fn active(&self) -> u64;
    fn has_work(&self) -> bool;
    /// How long until something is due by time, ns.
    fn wait_ns(&self, multiplier: f64) -> u64;
    fn reset_all(&mut self, now_ns: u64);
    /// Whether nothing is on a simulated path.
    fn has_arrived(&self) -> bool;
    fn is_wound_up(&self) -> bool;
    fn show(&self, into: &mut Snapshot);
    fn latencies(&self) -> &[Latency];
    fn counters(&self) -> BTreeMap<String, u64>;
}

/// One side on a link.
pub(crate) struct Single<W>(pub(crate) Shard<W>);

impl<W: Wire> Rig for Single<W> {
    const LISTENS: bool = true;

    fn pace(&mut self, now_ns: u64, multiplier: f64, paused: bool) {
        self.0.pace(now_ns, multiplier, paused);
    }

    fn begin(&mut self, now_ns: u64, multiplier: f64) -> bool {
        self.0.begin(now_ns, multiplier, false)
    }

    fn turn(&mut self, clock: &dyn Fn() -> u64) -> usize {
        self.0.turn(clock())
    }

    fn end(&mut self) {
        self.0.end();
    }

    fn is_done(&self) -> bool {
        self.0.is_done()
    }

    fn active(&self) -> u64 {
        self.0.side.active()
    }

    fn has_work(&self) -> bool {
        self.0.has_work()
    }

    fn wait_ns(&self, multiplier: f64) -> u64 {
        self.0.wait_ns(multiplier)
    }

    fn reset_all(&mut self, now_ns: u64) {
        self.0.reset_all(now_ns);
    }

    fn has_arrived(&self) -> bool {
        self.0.has_arrived()
    }

    fn is_wound_up(&self) -> bool {
        self.0.stack.is_wound_up()
    }

    fn show(&self, into: &mut Snapshot) {
        show(&self.0, into);
    }

    fn latencies(&self) -> &[Latency] {
        self.0.latencies()
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        self.0.stack.counters()
    }
}

fn show<W: Wire>(shard: &Shard<W>, into: &mut Snapshot) {
    let side = shard.side.role as usize;
    into.tallies[side].clear();
    into.tallies[side].extend_from_slice(shard.tallies());
    let stack = of_stack(shard.side.role, shard.stack.engine.counters());
    if let Some(no_group) = into.tallies[side].last_mut() {
        no_group.counts.merge(&stack);
    }
    if let Some(path) = shard.stack.wire.path() {
        path.count(&mut into.tallies[side]);
        into.memory += path.memory();
    }
    into.probes.extend(shard.stack.wire.probes().cloned());
    into.memory += shard.stack.engine.memory() + shard.side.memory();
}

/// Both sides in one thread.
pub(crate) struct Pair<W> {
    pub(crate) client: Shard<W>,
    pub(crate) server: Shard<W>,
}

/// What `from` has sent is `to`'s. False if `to` has not taken yet what came before.
fn pass(from: &mut End, to: &mut End) -> bool {
    if !to.has_taken_all() {
        return false;
    }
    to.take_from(from);
    true
}

impl<W: HasEnd> Rig for Pair<W> {
    const LISTENS: bool = false;

    fn pace(&mut self, now_ns: u64, multiplier: f64, paused: bool) {
        self.client.pace(now_ns, multiplier, paused);
    }

    fn begin(&mut self, now_ns: u64, multiplier: f64) -> bool {
        let behind = self.server.stack.engine.has_output() || !self.server.stack.wire.has_taken_all();
        self.client.begin(now_ns, multiplier, behind)
    }

    fn turn(&mut self, clock: &dyn Fn() -> u64) -> usize {
        let mut frames = drive(&mut self.client, clock);
        pass(self.client.stack.wire.end(), self.server.stack.wire.end());
        frames += drive(&mut self.server, clock);
        pass(self.server.stack.wire.end(), self.client.stack.wire.end());
        frames
    }

    fn end(&mut self) {
        self.client.end();
    }

    fn is_done(&self) -> bool {
        self.client.is_done() && self.server.side.active() == 0
    }

    fn active(&self) -> u64 {
        self.client.side.active() + self.server.side.active()
    }

    fn has_work(&self) -> bool {
        let pending = |shard: &Shard<W>| shard.has_work() || !shard.stack.wire.has_taken_all();
        pending(&self.client) || pending(&self.server)
    }

    fn wait_ns(&self, multiplier: f64) -> u64 {
        self.client.wait_ns(multiplier).min(self.server.wait_ns(multiplier))
    }

    fn reset_all(&mut self, now_ns: u64) {
        self.client.reset_all(now_ns);
        self.server.reset_all(now_ns);
    }

    fn has_arrived(&self) -> bool {
        self.client.has_arrived() && self.server.has_arrived()
    }

    fn is_wound_up(&self) -> bool {
        self.client.stack.is_wound_up() && self.server.stack.is_wound_up()
    }

    fn show(&self, into: &mut Snapshot) {
        show(&self.client, into);
        show(&self.server, into);
    }

    fn latencies(&self) -> &[Latency] {
        self.client.latencies()
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        let named = |side: &'static str, counters: BTreeMap<String, u64>| {
            counters.into_iter().map(move |(name, count)| (format!("{side}.{name}"), count))
        };
        named("client", self.client.stack.counters())
            .chain(named("server", self.server.stack.counters()))
            .collect()
    }
}

/// Takes all that has come, and lets the programs go on after each batch.
fn drive<W: HasEnd>(shard: &mut Shard<W>, clock: &dyn Fn() -> u64) -> usize {
    let mut frames = 0;
    loop {
        shard.prepare();
        frames += shard.turn(clock());
        if shard.stack.wire.has_taken_all() {
            return frames;
        }
    }
}

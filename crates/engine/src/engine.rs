//! The engine: what its caller calls.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::VecDeque;

use overfly_wire::{FrameSink, MacAddr};
use siphasher::sip::SipHasher13;

use crate::config::{Config, ConfigError};
use crate::cookies::Cookies;
use crate::counters::Counters;
use crate::fastopen::{ClientCookies, ServerCookies};
use crate::flow::{Flags, Flow, Info, State, Timer};
use crate::flows::Flows;
use crate::handover::Departed;
use crate::listener::Listeners;
use crate::neighbor::Neighbors;
use crate::owner::{Error, Event, Failure, FlowId, ListenerId, Owner};
use crate::paced::Paced;
use crate::path_mtu;
use crate::resolution::Resolution;
use crate::secrets::{Challenges, Secret};
use crate::shared::{SEQUENCE_GAP, Shared, Turn, Verdict};
use crate::time::{Deadline, Instant, TICK_SHIFT, Ticks};
use crate::transmit::Sent;
use crate::tuple::{Tuple, TupleHasher};
use crate::udp::Udp;
use crate::wheel::Wheel;

/// What a program's turn takes that serves many connections, and far less than a delayed acknowledgment.
const READ_WAIT: Duration = Duration::from_micros(500);

/// A TCP/IP engine for one shard.
///
/// # How to drive it
///
/// 1. [`Engine::receive`] for every frame that arrived, and [`Engine::took`] after the last one.
/// 2. [`Engine::advance`] when [`Engine::next_deadline`] has come (calling it more often is harmless).
/// 3. Whatever the owner's callbacks noted: [`Engine::send`], [`Engine::consumed`], [`Engine::close`], …
/// 4. [`Engine::transmit`] until it returns true, or the link is full.
///
/// `now` never goes back. Callbacks ([`Owner`]) come only out of `receive`, `advance`, `transmit` and `peer_gone`.
/// A flow id is valid from the event or call that made it to its [`Event::Released`].
///
/// Frames are Ethernet II without FCS.
pub struct Engine {
    pub(crate) flows: Flows,
    pub(crate) wheel: Wheel,
    /// Flows that may have something to send; each stands here once ([`Flags::QUEUED`]).
    pub(crate) output: VecDeque<u32>,
    pub(crate) shared: Shared,
    pub(crate) udp: Udp,
    /// The time last told.
    pub(crate) now: Instant,
}

impl Engine {
    /// An engine without flows.
    ///
    /// # Errors
    /// An option is out of its range.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        let secret = Secret(SipHasher13::new_with_key(&config.hash_key));
        let known_servers = if config.fast_open_client { config.max_fast_open_servers as usize } else { 0 };
        let fast_open_key = config.hash_key;
        let mut words = 0;
        let hasher = TupleHasher::new(|| {
            words += 1;
            secret.word(words)
        });
        Ok(Self {
            flows: Flows::new(config.max_flows, hasher),
            wheel: Wheel::new(),
            output: VecDeque::with_capacity(1024),
            shared: Shared {
                config,
                counters: Counters::default(),
                listeners: Listeners::default(),
                neighbors: Neighbors::default(),
                resolution: Resolution::default(),
                answers: VecDeque::new(),
                quick: VecDeque::new(),
                unread: VecDeque::new(),
                paced: Paced::default(),
                acknowledged: 0,
                acknowledged_max: u32::MAX,
                reassembly_bytes: 0,
                sack_ranges: 0,
                time_wait: 0,
                challenges: Challenges::default(),
                departed: Departed::default(),
                cookies: Cookies::new(secret.0),
                fast_open: ServerCookies::new(fast_open_key, None),
                servers: ClientCookies::new(known_servers, secret.0),
                secret,
            },
            udp: Udp::new(hasher),
            now: Instant::default(),
        })
    }

    /// Bytes of memory that an engine asks for at once, as address space at least: those of its control blocks.
    #[must_use]
    pub const fn memory_of(config: &Config) -> usize {
        config.max_flows as usize * size_of::<Flow>()
    }

    /// Opens a listener at `local` (0.0.0.0 and :: take every address of their family) for `backlog` connections that wait
    /// for [`Engine::accepted`].
    ///
    /// # Errors
    /// [`Error::AddressInUse`].
    pub fn listen(&mut self, local: impl Into<SocketAddr>, backlog: u32) -> Result<ListenerId, Error> {
        self.shared.listeners.open(local.into(), backlog)
    }

    /// Handshakes with a listener that are under way.
    #[must_use]
    pub fn half_open(&self, listener: ListenerId) -> u32 {
        self.shared.listeners.half_open(listener)
    }

    /// Handshakes of a listener under way, and its connections that [`Engine::accepted`] was not called for.
    #[must_use]
    pub fn pending(&self, listener: ListenerId) -> u32 {
        self.shared.listeners.pending(listener)
    }

    /// Closes a listener. Half-open connections to it are reset; established ones belong to the owner.
    pub fn close_listener(&mut self, listener: ListenerId) {
        self.shared.listeners.close(listener);
    }

    /// The owner accepted a flow that came with [`Event::Incoming`]: it no longer counts against the backlog.
    pub fn accepted(&mut self, flow: FlowId) {
        let flow = self.flows.at_mut(flow.0);
        if flow.flags.take(Flags::UNACCEPTED) {
            self.shared.listeners.accepted(flow.listener);
        }
    }

    /// Opens a connection (RFC 9293 section 3.10.1). [`Event::Connected`] or [`Event::Failed`] follows.
    ///
    /// `local` may be any address whose packets reach this engine: where [`Config::alone`] is set, one of the interface's or of
    /// [`Config::own_prefixes`]. The next hop need not be known there: the engine asks for it, for all flows at once, and the
    /// SYN waits. Nobody who answers [`Config::neighbor_solicitations`] questions, a second apart, is [`Failure::Unreachable`].
    ///
    /// # Errors
    /// [`Error::TupleInUse`], [`Error::NoFlows`], [`Error::Family`]; [`Error::NoNeighbor`] if the next hop is unknown and not
    /// asked for, or [`Config::max_unresolved`] others are.
    pub fn connect(
        &mut self,
        now: Instant,
        local: impl Into<SocketAddr>,
        remote: impl Into<SocketAddr>,
    ) -> Result<FlowId, Error> {
        self.tell(now);
        let (local, remote) = (local.into(), remote.into());
        if local.is_ipv4() != remote.is_ipv4() {
            return Err(Error::Family);
        }
        let tuple = Tuple::new(local, remote);
        let mut sequence = None;
        if let Some(old) = self.flows.find(&tuple) {
            // RFC 6191's spirit, on our side: our own TIME-WAIT gives way, with a sequence number beyond the old ones.
            let flow = self.flows.at(old);
            if flow.state != State::TimeWait {
                return Err(Error::TupleInUse);
            }
            sequence = Some(flow.send_next + SEQUENCE_GAP);
            self.shared.counters.time_wait_reuses += 1;
            self.vacate(old);
        }
        if self.flows.is_full() {
            return Err(Error::NoFlows);
        }
        let next_hop = self.shared.neighbors.find(&self.shared.config, remote.ip());
        if next_hop.is_none() && !self.shared.config.alone {
            return Err(Error::NoNeighbor);
        }
        let iss = sequence.unwrap_or_else(|| self.shared.initial_sequence(now, &tuple));
        let mut flow = self.shared.new_flow(now, tuple, iss);
        flow.state = State::SynSent;
        flow.next_hop = next_hop.unwrap_or(MacAddr::BROADCAST);
        flow.flags.set(Flags::SYN_WANTED);
        flow.flags.put(Flags::NO_NEXT_HOP, next_hop.is_none());
        let index = self.flows.insert(flow).ok_or(Error::NoFlows)?;
        if next_hop.is_none() && !self.shared.hold_flow(now, index, local.ip(), remote.ip()) {
            self.remove(index);
            return Err(Error::NoNeighbor);
        }
        self.enqueue(index);
        Ok(FlowId(index))
    }

    /// What the flow waits for next, and for how long still.
    #[must_use]
    pub fn timer(&self, now: Instant, flow: FlowId) -> Option<(Timer, Duration)> {
        let block = self.flows.at(flow.0);
        let retransmission =
            if block.flags.has(Flags::PERSIST) { Timer::Persist } else { Timer::Retransmission };
        let (timer, tick) = [
            (retransmission, block.retransmit_at),
            (Timer::DelayedAck, block.ack_at),
            (Timer::Linger, block.linger_at),
        ]
        .into_iter()
        .filter_map(|(timer, deadline)| Some((timer, deadline.tick()?)))
        .reduce(|first, other| if other.1.is_before(first.1) { other } else { first })?;
        let Ticks(left) = if tick.is_before(now.tick()) { Ticks::ZERO } else { tick.since(now.tick()) };
        Some((timer, Duration::from_micros(u64::from(left) << TICK_SHIFT)))
    }

    /// The state of the flow between these ends, TIME-WAIT included.
    #[must_use]
    pub fn state_between(&self, local: SocketAddr, remote: SocketAddr) -> Option<State> {
        self.flows.find(&Tuple::new(local, remote)).map(|index| self.flows.at(index).state)
    }

    /// For how long a flow between these ends has been in TIME-WAIT since it last acknowledged the peer's FIN. `None` if none is, or if it had
    /// no timestamps, which tell its segments from those of the next one that takes its place (RFC 6191 section 2).
    #[must_use]
    pub fn has_waited(&self, now: Instant, local: SocketAddr, remote: SocketAddr) -> Option<Duration> {
        let flow = self.flows.at(self.flows.find(&Tuple::new(local, remote))?);
        let end = flow.linger_at.tick().filter(|_| flow.state == State::TimeWait)?;
        let now = now.tick();
        let Ticks(left) = if end.is_before(now) { Ticks::ZERO } else { end.since(now) };
        let Ticks(wait) = Ticks::from(self.shared.config.time_wait);
        let waited = u64::from(wait.saturating_sub(left)) << TICK_SHIFT;
        flow.flags.has(Flags::TIMESTAMPS).then(|| Duration::from_micros(waited))
    }

    /// `bytes` more bytes of the stream may be asked for through [`Owner::fill`]. Nothing after [`Engine::shutdown`].
    #[inline]
    pub fn send(&mut self, flow: FlowId, bytes: usize) {
        let block = self.flows.at_mut(flow.0);
        if !block.flags.has_any(&[Flags::FIN_WANTED, Flags::RESET_WANTED]) {
            if block.congestion.bbr().is_some() {
                block.note_limit();
            }
            block.promised += bytes as u64;
            self.enqueue(flow.0);
        }
    }

    /// No more data will be promised: a FIN follows what was. The flow still receives.
    pub fn shutdown(&mut self, flow: FlowId) {
        let block = self.flows.at_mut(flow.0);
        block.flags.set(Flags::FIN_WANTED);
        self.enqueue(flow.0);
    }

    /// The owner lets go: as [`Engine::shutdown`], and data that arrives from now on is answered with RST, as is data that
    /// was delivered and not consumed (RFC 2525 section 2.17). `fill` and [`Event::Acknowledged`] go on until
    /// [`Event::Released`].
    pub fn close(&mut self, flow: FlowId) {
        // Nobody will accept it any more.
        self.accepted(flow);
        let block = self.flows.at_mut(flow.0);
        block.flags.set(Flags::DETACHED);
        let resets = block.held > 0 && !matches!(block.state, State::Closed | State::TimeWait);
        block.flags.set(if resets { Flags::RESET_WANTED } else { Flags::FIN_WANTED });
        self.enqueue(flow.0);
    }

    /// Ends the flow with a RST, after what was promised and the windows let go: `fill` goes on until [`Event::Released`], which
    /// comes out of the next [`Engine::transmit`].
    pub fn abort(&mut self, flow: FlowId) {
        self.accepted(flow);
        let block = self.flows.at_mut(flow.0);
        block.flags.set(Flags::DETACHED);
        block.flags.set(Flags::RESET_WANTED);
        self.enqueue(flow.0);
    }

    /// Bytes promised and not yet acknowledged.
    #[must_use]
    pub fn unacknowledged(&self, flow: FlowId) -> u64 {
        let block = self.flows.at(flow.0);
        block.promised - block.una_offset
    }

    /// Where the flow's segments go: who is behind it.
    #[must_use]
    pub fn next_hop(&self, flow: FlowId) -> MacAddr {
        self.flows.at(flow.0).next_hop
    }

    /// The local and the remote end.
    #[must_use]
    pub fn tuple(&self, flow: FlowId) -> (SocketAddr, SocketAddr) {
        let flow = self.flows.at(flow.0);
        (flow.tuple.local(), flow.tuple.remote())
    }

    /// The largest packet that the path of a flow is known to take, in bytes; the link's until a router said less.
    #[must_use]
    pub fn path_mtu(&self, flow: FlowId) -> u16 {
        let path = self.flows.at(flow.0).extra.as_ref().and_then(|extra| extra.path.as_ref());
        path.map_or(self.shared.config.mtu, path_mtu::PathMtu::size)
    }

    /// What is known of a flow.
    #[must_use]
    pub fn info(&self, flow: FlowId) -> Info {
        self.flows.at(flow.0).info()
    }

    /// Bytes of memory that control blocks, the flow table and the timers take.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.flows.bytes() + self.wheel.bytes() + self.output.capacity() * size_of::<u32>()
    }

    /// Control blocks in use, TIME-WAIT ones included.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Control blocks in TIME-WAIT.
    #[must_use]
    pub fn time_wait_flows(&self) -> usize {
        self.shared.time_wait as usize
    }

    /// What was counted since the engine was made.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// The link's hardware address is another one: it is another device.
    pub fn set_mac(&mut self, mac: MacAddr) {
        self.shared.config.mac = mac;
    }

    /// Segments of a flow leave as frames of so many bytes of payload at most from now on, as [`Config::segment_offload`], which says what is
    /// allowed; 0: one by one.
    pub fn set_segment_offload(&mut self, bytes: u32) {
        self.shared.config.segment_offload = bytes;
    }

    /// Whoever was behind the next hops that `is_theirs` has gone, with all that they knew: their connections fail as if they
    /// had been reset. Those that are being opened go on, their SYN is sent again: somebody else may be there by now. Those
    /// whose peer had sent everything and its FIN, and has all that was sent to it, fail when there is more to send.
    pub fn peer_gone<O: Owner>(&mut self, now: Instant, is_theirs: impl Fn(MacAddr) -> bool, owner: &mut O) {
        self.tell(now);
        for index in self.flows.in_table() {
            let flow = self.flows.at_mut(index);
            match flow.state {
                _ if !is_theirs(flow.next_hop) => {}
                State::TimeWait => {}
                State::SynSent => {
                    flow.flags.set(Flags::SYN_WANTED);
                    self.enqueue(index);
                }
                State::CloseWait
                    if flow.promised == flow.una_offset && !flow.flags.has(Flags::FIN_WANTED) =>
                {
                    flow.flags.set(Flags::NO_NEXT_HOP);
                    flow.ack_at = Deadline::NEVER;
                }
                _ => {
                    self.shared.counters.peers_gone += 1;
                    self.conclude(now, index, Verdict::End(Some(Failure::Reset)), owner);
                }
            }
        }
    }

    /// Whether [`Engine::transmit`] may have something to do.
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.output.is_empty() || !self.shared.answers.is_empty()
    }

    /// Flows that may have something to send.
    #[must_use]
    pub fn pending_output(&self) -> usize {
        self.output.len()
    }

    /// When [`Engine::advance`] should be called next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        // What was not answered when time has gone on is acknowledged.
        let quick = self.shared.quick.front().map(|&(since, _)| since + Duration::from_micros(1));
        let timers = self.wheel.next().map(|tick| {
            // Ticks wrap; instants do not.
            let Ticks(ticks) = tick.since(self.now.tick());
            let ticks = if ticks > u32::MAX / 2 { 0 } else { ticks };
            Instant::from_micros(((self.now.as_micros() >> TICK_SHIFT) + u64::from(ticks)) << TICK_SHIFT)
        });
        let unread = self.shared.unread.front().map(|&(due, _)| due);
        let others = timers.into_iter().chain(quick).chain(unread);
        let first = others.chain(self.shared.resolution.next_deadline()).min();
        match self.shared.paced.next() {
            Some(due) => Some(first.map_or(due, |first| first.min(due))),
            None => first,
        }
    }

    /// The time last told.
    pub(crate) const fn now(&self) -> Instant {
        self.now
    }

    /// Takes note of the time.
    pub(crate) fn tell(&mut self, now: Instant) {
        self.now = now;
        self.wheel.catch_up(now.tick());
    }

    /// Runs the timers that are due.
    pub fn advance<O: Owner>(&mut self, now: Instant, owner: &mut O) {
        self.tell(now);
        if !self.shared.quick.is_empty() || !self.shared.unread.is_empty() {
            self.acknowledge_quickly(now, owner);
        }
        if self.shared.paced.next().is_some() {
            self.wake_paced(now);
        }
        while let Some(index) = self.wheel.expire(&mut self.flows, now.tick()) {
            let verdict = self.turn(now, index, owner).timers();
            self.conclude(now, index, verdict, owner);
        }
        self.advance_resolution(now, owner);
    }

    /// What arrived before `now` on flows that answer nothing is acknowledged now: their owners have had their chance. Who has
    /// not read it, as it has other connections to serve first, has [`READ_WAIT`].
    fn acknowledge_quickly<O: Owner>(&mut self, now: Instant, owner: &O) {
        while let Some((_, index)) = self.shared.unread.pop_front_if(|(due, _)| *due <= now) {
            self.acknowledge_unanswered(index);
        }
        while let Some((_, index)) = self.shared.quick.pop_front_if(|(since, _)| *since < now) {
            if owner.is_unread(FlowId(index)) {
                self.shared.unread.push_back((now + READ_WAIT, index));
            } else {
                self.acknowledge_unanswered(index);
            }
        }
    }

    fn acknowledge_unanswered(&mut self, index: u32) {
        let flow = self.flows.at_mut(index);
        let answers = flow.flags.has(Flags::PINGPONG) || !flow.flags.has(Flags::IN_TABLE);
        if flow.ack_at.is_set() && !answers {
            flow.flags.set(Flags::ACK_NOW);
            self.enqueue(index);
        }
    }

    /// So many `frames` were received, perhaps `all` that had arrived, from a link that loses what comes beyond `room` bytes until the next time.
    ///
    /// A sender answers an acknowledgment with as much as it acknowledges, or twice that in slow start (RFC 5681 section 3.1). So no output is
    /// sent after half of `room` has been acknowledged, until this is called again ([`Engine::holds_back`]). Frames that are not the last
    /// leave room for as many: a flood of them holds nobody back for ever.
    #[inline]
    pub fn took(&mut self, frames: usize, all: bool, room: u32) {
        const LEAST_ROOM_OF_A_FRAME: usize = 1024;
        self.shared.acknowledged = match all {
            true => 0,
            false => self.shared.acknowledged.saturating_sub((frames * LEAST_ROOM_OF_A_FRAME) as u32),
        };
        self.shared.acknowledged_max = room / 2;
    }

    /// There is output that waits for the next look.
    #[inline]
    #[must_use]
    pub fn holds_back(&self) -> bool {
        self.shared.may_not_acknowledge() && self.has_output()
    }

    /// Sends what is due. Returns false when there may be more: the link is full and will have room, or [`Engine::holds_back`].
    pub fn transmit<O: Owner, S: FrameSink>(&mut self, now: Instant, owner: &mut O, sink: &mut S) -> bool {
        self.tell(now);
        if !self.shared.send_answers(sink) {
            return false;
        }
        // A flow with much to send stands at the end again, so that each gets its turn; windows bound the whole.
        while !self.shared.may_not_acknowledge() {
            let Some(index) = self.output.pop_front() else { return true };
            let flow = self.flows.at_mut(index);
            if !flow.flags.take(Flags::QUEUED) {
                continue;
            }
            match self.turn(now, index, owner).send(sink) {
                Sent::Done(verdict) => self.conclude(now, index, verdict, owner),
                Sent::More => {
                    self.settle(index);
                    self.enqueue(index);
                }
                Sent::Full => {
                    self.flows.at_mut(index).flags.set(Flags::QUEUED);
                    self.output.push_front(index);
                    self.settle(index);
                    return false;
                }
            }
        }
        self.output.is_empty()
    }

    /// The flow's turn.
    #[inline]
    pub(crate) fn turn<'a, O>(&'a mut self, now: Instant, index: u32, owner: &'a mut O) -> Turn<'a, O> {
        let flow = self.flows.at_mut(index);
        Turn { now, id: FlowId(index), flow, shared: &mut self.shared, owner }
    }

    /// Puts a flow into the output queue.
    pub(crate) fn enqueue(&mut self, index: u32) {
        let flow = self.flows.at_mut(index);
        if !flow.flags.has(Flags::QUEUED) {
            flow.flags.set(Flags::QUEUED);
            self.output.push_back(index);
        }
    }

    /// Carries out what a segment, a timer or a transmission decided.
    pub(crate) fn conclude<O: Owner>(&mut self, now: Instant, index: u32, verdict: Verdict, owner: &mut O) {
        match verdict {
            Verdict::Keep => {
                self.release_if_done(index, owner);
                self.settle(index);
            }
            Verdict::TimeWait => self.enter_time_wait(now, index, owner),
            Verdict::End(failure) => self.end(index, failure, owner),
            Verdict::GiveWay => self.vacate(index),
        }
    }

    /// Brings the wheel and the output queue up to what the flow says.
    pub(crate) fn settle(&mut self, index: u32) {
        let many = self.flows.are_many();
        let flow = self.flows.at_mut(index);
        match flow.deadline() {
            Some(at) if !flow.link.is_linked() || at.is_before(flow.link.at()) => {
                self.wheel.schedule(&mut self.flows, index, at);
            }
            // Else the wheel would bring it back from memory for nothing.
            None if many && flow.link.is_linked() => self.wheel.cancel(&mut self.flows, index),
            _ => {}
        }
        let flow = self.flows.at_mut(index);
        if flow.has_output() {
            self.enqueue(index);
        }
    }

    fn enter_time_wait<O: Owner>(&mut self, now: Instant, index: u32, owner: &mut O) {
        let flow = self.flows.at_mut(index);
        if flow.state != State::TimeWait {
            if self.shared.time_wait >= self.shared.config.max_time_wait {
                // As Linux's tcp_max_tw_buckets: beyond the bound, the newest ends at once.
                self.shared.counters.time_wait_skips += 1;
                self.end_politely(now, index, owner);
                return;
            }
            flow.state = State::TimeWait;
            self.shared.time_wait += 1;
            flow.retransmit_at = Deadline::NEVER;
            flow.flags.clear_all(&[Flags::LOSS_PROBE_TIMER, Flags::REORDERING_TIMER, Flags::PERSIST]);
            self.shared.forget(flow);
        }
        let flow = self.flows.at_mut(index);
        let wait = Ticks::from(self.shared.config.time_wait).max(Ticks::ONE);
        flow.linger_at = Deadline::at(now.tick().after(wait));
        self.release_if_done(index, owner);
        self.settle(index);
    }

    /// Ends a flow whose last acknowledgment has still to go out.
    fn end_politely<O: Owner>(&mut self, now: Instant, index: u32, owner: &mut O) {
        let flow = self.flows.at_mut(index);
        if flow.flags.take(Flags::ACK_NOW) {
            let answer = self.shared.acknowledgment(now, flow);
            self.shared.answer(answer);
        }
        self.end(index, None, owner);
    }

    /// Tells the owner that the engine needs it no more, once that is so.
    fn release_if_done<O: Owner>(&mut self, index: u32, owner: &mut O) {
        let flow = self.flows.at_mut(index);
        let done = matches!(flow.state, State::FinWait2 | State::TimeWait | State::Closed);
        if done && flow.flags.has(Flags::DETACHED) && !flow.flags.has(Flags::RELEASED) {
            flow.flags.set(Flags::RELEASED);
            owner.event(FlowId(index), Event::Released);
        }
    }

    /// Ends a flow: out of the table at once, the control block freed when the owner has let go.
    fn end<O: Owner>(&mut self, index: u32, failure: Option<Failure>, owner: &mut O) {
        let flow = self.flows.at_mut(index);
        if flow.flags.has(Flags::RELEASED) {
            self.remove(index);
            return;
        }
        if let Some(failure) = failure {
            flow.flags.set(Flags::DETACHED);
            if !matches!(flow.state, State::Closed) {
                owner.event(FlowId(index), Event::Failed(failure));
            }
        }
        if flow.flags.has(Flags::DETACHED) {
            owner.event(FlowId(index), Event::Released);
            self.remove(index);
        } else {
            self.vacate(index);
        }
    }

    /// Gives a flow's tuple up. An owner that only shut down still knows the id: the control block stays until it lets go.
    fn vacate(&mut self, index: u32) {
        if self.flows.at(index).flags.has(Flags::RELEASED) {
            self.remove(index);
            return;
        }
        self.leave_state(index);
        let flow = self.flows.at_mut(index);
        flow.state = State::Closed;
        (flow.retransmit_at, flow.ack_at, flow.linger_at) =
            (Deadline::NEVER, Deadline::NEVER, Deadline::NEVER);
        flow.flags.clear_all(&[
            Flags::ACK_NOW,
            Flags::SYN_WANTED,
            Flags::PROBE_WANTED,
            Flags::LOSS_PROBE_WANTED,
            Flags::SEND_WANTED,
        ]);
        self.flows.unhook(index);
    }

    /// Takes a flow out of everything it stands in, and frees its control block.
    pub(crate) fn remove(&mut self, index: u32) {
        self.leave_state(index);
        self.wheel.cancel(&mut self.flows, index);
        self.flows.unhook(index);
        self.flows.at_mut(index).flags = Flags::default();
        self.flows.free(index);
    }

    fn leave_state(&mut self, index: u32) {
        let flow = self.flows.at_mut(index);
        if flow.state == State::TimeWait {
            self.shared.time_wait -= 1;
            flow.state = State::Closed;
        }
        if flow.flags.take(Flags::HALF_OPEN) {
            self.shared.listeners.half_open_ended(flow.listener);
            if flow.flags.take(Flags::FAST_OPEN) {
                self.shared.listeners.fast_open_ended(flow.listener);
            }
        }
        if flow.flags.take(Flags::UNACCEPTED) {
            self.shared.listeners.accepted(flow.listener);
        }
        self.shared.forget(flow);
        self.shared.release_from_resolution(index, flow);
    }
}

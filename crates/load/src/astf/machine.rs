//! Runs the programs of flows: what [`Side`] noted goes on here, where the engine can be asked.

use std::net::{IpAddr, SocketAddr};

use overfly_engine::{Error, FlowId, Instant, SendError, UdpId};

use super::counter::Counter;
use super::flow::{FlowState, Key, NO_BUFFER, Parent};
use super::form::{Command, Comparison, Transport, UserCounter};
use super::opener::Opener;
use super::plan::{NO_TEMPLATE, Plan, Role, Tuning};
use super::side::{NOBODY, Side, length};
use super::wheel::Entry;
use crate::link::{Stack, Wire};
use crate::random::SplitMix;

/// Commands that a program may do in a turn before others have theirs.
const COMMANDS_A_TURN: u32 = 1000;
/// A datagram flow that its program gives no keep-alive ends after so many ms of silence.
const IDLE_DEFAULT_MS: u32 = 10_000;
/// In the wheel: not a delay, but the end of a datagram flow that is silent.
const IDLE: u32 = 1 << 30;
/// Flows whose times have come that are looked at together, and how many of them are worth it.
const WOKEN_AT_ONCE: usize = 64;
const PREPARE_FROM: usize = 4;
/// Ports that are tried for a flow.
const TRIES: u32 = 256;

/// What running needs.
pub(crate) struct Machine<'a, W> {
    pub(crate) stack: &'a mut Stack<W>,
    pub(crate) side: &'a mut Side,
    pub(crate) plan: &'a Plan,
    pub(crate) opener: &'a mut Option<Opener>,
    pub(crate) random: &'a mut SplitMix,
    pub(crate) now: Instant,
    /// Newcomers' flows of this turn.
    pub(crate) met: Vec<(SocketAddr, SocketAddr, Key)>,
}

/// Whether a program goes on at once.
enum Next {
    On,
    /// It waits, or has ended.
    Stop,
}

impl<W: Wire> Machine<'_, W> {
    /// Goes on with whatever time or the engine has made ready.
    pub(crate) fn attend_all(&mut self) {
        self.wake();
        self.meet_newcomers();
        let mut noted = std::mem::take(&mut self.side.noted);
        for key in noted.drain(..) {
            self.side.flow_mut(key).unnote();
            self.attend(key);
        }
        // Those that were noted meanwhile have their turn next time.
        if self.side.noted.is_empty() {
            self.side.noted = noted;
        }
    }

    /// Takes note of those whose time has come, so many at a time that their memory comes at once.
    fn wake(&mut self) {
        let mut due = [Entry::NONE; WOKEN_AT_ONCE];
        loop {
            let mut count = 0;
            while count < WOKEN_AT_ONCE
                && let Some(entry) = self.side.wheel.pop(self.side.now_us)
            {
                due[count] = entry;
                count += 1;
            }
            if count > PREPARE_FROM {
                let keys =
                    || due[..count].iter().map(|entry| Key(entry.flow & !IDLE)).filter(|key| key.is_stream());
                std::hint::black_box(keys().fold(0, |sum, key| sum ^ self.side.touch(key.index())));
                self.stack.engine.prepare(keys().map(|key| FlowId::at(key.index())));
            }
            for entry in &due[..count] {
                self.woken(entry.flow, entry.generation);
            }
            if count < WOKEN_AT_ONCE {
                return;
            }
        }
    }

    fn woken(&mut self, flow: u32, generation: u32) {
        let (key, idle) = (Key(flow & !IDLE), flow & IDLE != 0);
        let state = self.side.flow_mut(key);
        if state.generation != generation || !state.state.has_program() {
            return;
        }
        if idle {
            state.set_idle_due();
        } else if state.state == FlowState::Time {
            state.state = FlowState::Running;
        }
        self.side.note(key);
    }

    fn attend(&mut self, key: Key) {
        let flow = self.side.flow_mut(key);
        if flow.take_fresh() {
            let template = flow.template;
            self.stack.engine.accepted(FlowId::at(key.index()));
            if template != NO_TEMPLATE {
                self.tune(key, template);
            }
        }
        let flow = self.side.flow_mut(key);
        if flow.take_idle_due() && self.end_if_idle(key) {
            return;
        }
        let flow = self.side.flow_mut(key);
        match flow.state {
            FlowState::Undecided if flow.step == NOBODY => {
                flow.state = FlowState::Closing;
                self.stack.engine.abort(FlowId::at(key.index()));
            }
            FlowState::Undecided if flow.peer_closed() => {
                flow.state = FlowState::Closing;
                self.stack.engine.close(FlowId::at(key.index()));
            }
            FlowState::Running => self.run(key),
            FlowState::Receive if flow.balance >= 0 => {
                let template = flow.template;
                let step = flow.step as usize;
                flow.state = FlowState::Running;
                flow.step += 1;
                if let Some((needed, false)) = awaited(self.plan.program(template, self.side.role)[step]) {
                    self.side.flow_mut(key).balance += needed;
                }
                self.run(key);
            }
            FlowState::Receive if flow.peer_closed() => {
                let template = flow.template;
                self.side.count(template, Counter::program_cut_short, 1);
                self.close(key);
            }
            FlowState::PeerClose if flow.peer_closed() => self.close(key),
            _ => {}
        }
    }

    /// What a template sets for its flows.
    fn tune(&mut self, key: Key, template: u16) {
        let tuning = *self.plan.templates[usize::from(template)].tuning(self.side.role);
        let Tuning {
            no_delay,
            traffic_class,
            hop_limit,
            mss: _,
            window,
            initial,
            congestion,
            keep_alive,
            queue: _,
        } = tuning;
        let (engine, flow) = (&mut self.stack.engine, FlowId::at(key.index()));
        if no_delay {
            engine.set_no_delay(flow, true);
        }
        if traffic_class != 0 {
            engine.set_traffic_class(flow, traffic_class);
        }
        if let Some(hops) = hop_limit {
            engine.set_hop_limit(flow, hops);
        }
        if let Some(window) = window {
            engine.set_receive_window(flow, window);
        }
        if let Some(congestion) = congestion {
            engine.set_congestion(flow, congestion);
        }
        if let Some(initial) = initial
            && self.side.role == Role::Server
        {
            engine.set_congestion_window(flow, initial);
        }
        if keep_alive.is_some() {
            engine.set_keep_alive(self.now, flow, keep_alive);
        }
    }

    /// Runs a program until it waits or ends.
    fn run(&mut self, key: Key) {
        let flow = self.side.flow_mut(key);
        let template = flow.template;
        if key.is_stream() && flow.step == 0 && self.side.role == Role::Client {
            // Just connected: the window that the handshake gave is the engine's.
            if let Some(initial) = self.plan.templates[usize::from(template)].tuning(Role::Client).initial
                && self.side.flow_mut(key).buffer == NO_BUFFER
            {
                self.stack.engine.set_congestion_window(FlowId::at(key.index()), initial);
            }
        }
        let program = self.plan.program(template, self.side.role);
        for _ in 0..COMMANDS_A_TURN {
            let step = self.side.flow_mut(key).step as usize;
            let Some(command) = program.get(step) else {
                return self.close(key);
            };
            match self.command(key, template, *command) {
                Next::On => {}
                Next::Stop => return,
            }
        }
        self.side.note(key);
    }

    /// Does one command, and moves on.
    #[inline]
    fn command(&mut self, key: Key, template: u16, command: Command) -> Next {
        match command {
            Command::Connect => {}
            Command::Send { buffer } => return self.send(key, template, buffer),
            Command::SendMsg { buffer } => return self.send_message(key, template, buffer),
            Command::Recv { bytes: needed, clear } | Command::RecvMsg { messages: needed, clear } => {
                let flow = self.side.flow_mut(key);
                if flow.balance >= needed {
                    if clear {
                        flow.balance -= needed;
                    }
                } else if flow.peer_closed() {
                    self.side.count(template, Counter::program_cut_short, 1);
                    self.close(key);
                    return Next::Stop;
                } else {
                    flow.balance -= needed;
                    flow.state = FlowState::Receive;
                    return Next::Stop;
                }
            }
            Command::Keepalive { idle_ms, received_only } => {
                let flow = self.side.flow_mut(key);
                flow.buffer = idle_ms;
                flow.set_counts_received_only(received_only);
                let generation = flow.generation;
                let at_us = self.side.now_us + u64::from(idle_ms) * 1000;
                self.side.wheel.insert(at_us, key.0 | IDLE, generation);
            }
            Command::CloseMsg => {
                self.close(key);
                return Next::Stop;
            }
            Command::Delay { us } => return self.sleep(key, us),
            Command::DelayRandom { min_us, max_us } => {
                let span = u64::from(max_us.saturating_sub(min_us)) + 1;
                let us = min_us + self.random.below(span) as u32;
                return self.sleep(key, us);
            }
            Command::Reset => {
                self.reset(key);
                return Next::Stop;
            }
            Command::WaitForPeerClose => {
                let flow = self.side.flow_mut(key);
                if flow.peer_closed() {
                    self.close(key);
                } else {
                    flow.state = FlowState::PeerClose;
                }
                return Next::Stop;
            }
            Command::SendMode { blocking } => self.side.flow_mut(key).set_blocks(blocking),
            Command::Count { counter, value } => {
                self.side.count(template, user(counter), value as u64);
            }
            Command::SetNextTemplate { template } => {
                let begun_ns = self.begun_ns(key);
                self.side.flow_mut(key).extra_mut(begun_ns).next_template = Some(template);
            }
            Command::ExecTemplate => return self.nest(key),
            _ => {
                self.variable(key, template, command);
                return Next::On;
            }
        }
        self.side.flow_mut(key).step += 1;
        Next::On
    }

    fn begun_ns(&mut self, key: Key) -> i64 {
        self.side.flow_mut(key).begun_us as i64 * 1000
    }

    /// The commands that compute, and jump.
    fn variable(&mut self, key: Key, template: u16, command: Command) {
        let begun_ns = self.begun_ns(key);
        let now_ns = self.side.now_us as i64 * 1000;
        let flow = self.side.flow_mut(key);
        let extra = flow.extra_mut(begun_ns);
        let mut count = None;
        let target = match command {
            Command::SetVar { var, value } => {
                extra.variables[usize::from(var)] = value;
                None
            }
            Command::AddVar { var, value } => {
                let variable = &mut extra.variables[usize::from(var)];
                *variable = variable.wrapping_add(value);
                None
            }
            Command::SetTimer { timer } => {
                extra.timers[usize::from(timer)] = now_ns;
                None
            }
            Command::AddTimer { timer, ns } => {
                let timer = &mut extra.timers[usize::from(timer)];
                *timer = timer.wrapping_add(ns);
                None
            }
            Command::Jump { to } => Some(to),
            Command::JumpNonzero { var, to } => {
                let variable = &mut extra.variables[usize::from(var)];
                *variable = variable.wrapping_sub(1);
                (*variable != 0).then_some(to)
            }
            Command::JumpBefore { timer, ns, to } => {
                (now_ns.wrapping_sub(extra.timers[usize::from(timer)]) < ns).then_some(to)
            }
            Command::JumpIf { var, is, value, to } => {
                compares(extra.variables[usize::from(var)], is, value).then_some(to)
            }
            Command::CountTime { counter, timer } => {
                let passed_us = now_ns.wrapping_sub(extra.timers[usize::from(timer)]) / 1000;
                count = Some((counter, passed_us));
                None
            }
            _ => None,
        };
        flow.step = target.unwrap_or(flow.step + 1);
        if let Some((counter, passed_us)) = count {
            self.side.count(template, user(counter), passed_us as u64);
        }
    }

    fn sleep(&mut self, key: Key, us: u32) -> Next {
        let at_us = self.side.now_us + u64::from(us);
        let flow = self.side.flow_mut(key);
        flow.step += 1;
        flow.state = FlowState::Time;
        let generation = flow.generation;
        self.side.wheel.insert(at_us, key.0, generation);
        Next::Stop
    }

    #[inline]
    fn send(&mut self, key: Key, template: u16, buffer: u32) -> Next {
        let bytes = self.plan.buffers[buffer as usize].len();
        let (now_us, role) = (self.side.now_us as u32, self.side.role);
        let flow = &mut self.side.streams[key.index()];
        if bytes == 0 {
            flow.step += 1;
            return Next::On;
        }
        let id = FlowId::at(key.index());
        if !flow.blocks() {
            let queued = self.stack.engine.unacknowledged(id);
            let most = self.plan.templates[usize::from(template)].tuning(role).queue;
            if queued > 0 && queued + u64::from(bytes) > u64::from(most) {
                flow.state = FlowState::Room;
                return Next::Stop;
            }
            if queued > 0 {
                let begun_ns = flow.begun_us as i64 * 1000;
                let earlier = (flow.sent_from, flow.buffer);
                flow.extra_mut(begun_ns).sends.push_back(earlier);
            }
        }
        if flow.buffer == NO_BUFFER && role == Role::Client {
            flow.mark_us = now_us;
            flow.set_awaits_first_byte(true);
        }
        flow.sent_from = flow.sent_from.wrapping_add(length(&self.plan.buffers, flow.buffer));
        flow.buffer = buffer;
        flow.step += 1;
        let next = if flow.blocks() {
            flow.state = FlowState::Sent;
            Next::Stop
        } else {
            Next::On
        };
        self.stack.engine.send(id, bytes as usize);
        self.side.count(template, Counter::tcps_sndbyte, bytes.into());
        next
    }

    fn send_message(&mut self, key: Key, template: u16, buffer: u32) -> Next {
        let payload = self.plan.buffers[buffer as usize].whole().unwrap_or_default();
        let socket = self.side.sockets_at(key);
        if let Some(note) = &self.side.note {
            note.set(buffer, 0);
        }
        let sent = self.stack.engine.udp_send(self.now, socket, &mut self.stack.wire, None, None, payload);
        if let Some(note) = &self.side.note {
            // It may wait for its next hop, whole.
            note.take();
        }
        let now_us = self.side.now_us;
        let role = self.side.role;
        let flow = &mut self.side.datagrams[key.index()];
        match sent {
            Err(SendError::Full) => {
                // The link will have room: this command once more, then.
                self.side.note(key);
                return Next::Stop;
            }
            Ok(()) => {
                if !flow.counts_received_only() {
                    flow.sent_from = (now_us / 1000) as u32;
                }
                if role == Role::Client && flow.mark_us == 0 {
                    flow.mark_us = (now_us as u32).max(1);
                    flow.set_awaits_first_byte(true);
                }
                let counts = &mut self.side.tally(template).counts;
                counts.add(Counter::udps_sndpkt, 1);
                counts.add(Counter::udps_sndbyte, payload.len() as u64);
            }
            Err(SendError::TooBig(_)) => self.side.count(template, Counter::udps_pkt_toobig, 1),
            Err(_) => self.side.count(template, Counter::udps_nombuf, 1),
        }
        self.side.datagrams[key.index()].step += 1;
        Next::On
    }

    /// The program of the flow has come to its end.
    fn close(&mut self, key: Key) {
        self.ended(key);
        if key.is_stream() {
            self.side.streams[key.index()].state = FlowState::Closing;
            self.stack.engine.close(FlowId::at(key.index()));
        } else {
            self.end_datagrams(key);
        }
    }

    /// Ends the flow with a RST.
    pub(crate) fn reset(&mut self, key: Key) {
        self.ended(key);
        if key.is_stream() {
            self.side.streams[key.index()].state = FlowState::Closing;
            self.stack.engine.abort(FlowId::at(key.index()));
        } else {
            self.end_datagrams(key);
        }
    }

    #[inline]
    fn ended(&mut self, key: Key) {
        let (now_us, role) = (self.side.now_us, self.side.role);
        let flow = self.side.flow_mut(key);
        let (template, took_us) = (flow.template, now_us - flow.begun_us);
        if role == Role::Client && flow.state.has_program() {
            let group = self.plan.templates[usize::from(template)].group;
            self.side.latencies[group].ended(took_us);
        }
    }

    fn end_datagrams(&mut self, key: Key) {
        let socket = self.side.sockets_at(key);
        self.stack.engine.udp_close(socket);
        self.side.left(key);
    }

    /// A datagram flow's keep-alive time has come. True if it ended.
    fn end_if_idle(&mut self, key: Key) -> bool {
        let now_ms = (self.side.now_us / 1000) as u32;
        let flow = &mut self.side.datagrams[key.index()];
        if !flow.state.has_program() {
            return true;
        }
        let silent_ms = now_ms.wrapping_sub(flow.sent_from);
        if silent_ms >= flow.buffer {
            let template = flow.template;
            self.side.count(template, Counter::udps_keepdrops, 1);
            self.close(key);
            return true;
        }
        let (left_ms, generation) = (flow.buffer - silent_ms, flow.generation);
        let at_us = self.side.now_us + u64::from(left_ms) * 1000;
        self.side.wheel.insert(at_us, key.0 | IDLE, generation);
        false
    }

    /// Opens the flow that a program wants to run, from its own address.
    fn nest(&mut self, key: Key) -> Next {
        let flow = self.side.flow_mut(key);
        flow.step += 1;
        let next = flow.extra.as_ref().and_then(|extra| extra.next_template);
        let parent = Parent { key, generation: flow.generation };
        let Some(template) = next else { return Next::On };
        let from = if key.is_stream() {
            self.stack.engine.tuple(FlowId::at(key.index())).0.ip()
        } else {
            let socket = self.side.sockets_at(key);
            self.stack.engine.udp_ends(socket).0.ip()
        };
        self.side.flow_mut(key).state = FlowState::Nested;
        if self.open(template, Some((from, parent))) {
            return Next::Stop;
        }
        self.side.flow_mut(key).state = FlowState::Running;
        Next::On
    }

    /// Opens a flow of a template, from the next address or from that one. False if it cannot be.
    pub(crate) fn open(&mut self, template: u16, within: Option<(IpAddr, Parent)>) -> bool {
        let Some(opener) = self.opener.as_mut() else { return false };
        let transport = self.plan.templates[usize::from(template)].transport;
        for _ in 0..TRIES {
            let route = opener.route(template, within.map(|(from, _)| from), self.random);
            let opened = match transport {
                Transport::Tcp => self
                    .stack
                    .engine
                    .connect(self.now, route.local, route.remote)
                    .map(|flow| Key::stream(flow.index())),
                Transport::Udp => self
                    .stack
                    .engine
                    .udp_open(route.local, Some(route.remote))
                    .map(|socket| Key::datagram(socket.index())),
            };
            match opened {
                Ok(key) => {
                    opener.routed(template);
                    self.opened(key, template, within.map(|(_, parent)| parent));
                    return true;
                }
                Err(Error::TupleInUse) => {}
                Err(Error::NoFlows) => {
                    self.side.count(template, Counter::err_flow_overflow, 1);
                    return false;
                }
                Err(_) => break,
            }
        }
        opener.routed(template);
        self.side.count(template, Counter::err_c_tuple_err, 1);
        false
    }

    #[inline]
    fn opened(&mut self, key: Key, template: u16, parent: Option<Parent>) {
        let now_us = self.side.now_us;
        let flow = self.side.place(key);
        if key.is_stream() {
            flow.begin(template, FlowState::Opening, now_us);
        } else {
            flow.begin(template, FlowState::Running, now_us);
        }
        if parent.is_some() {
            flow.extra_mut(now_us as i64 * 1000).parent = parent;
        }
        self.side.entered(template);
        self.side.count(template, Counter::flows_total, 1);
        if key.is_stream() {
            self.side.count(template, Counter::tcps_connattempt, 1);
            if let Some(mss) = self.plan.templates[usize::from(template)].tuning(Role::Client).mss {
                self.stack.engine.set_max_segment(FlowId::at(key.index()), mss);
            }
            self.tune(key, template);
        } else {
            self.side.count(template, Counter::udps_connects, 1);
            self.begin_datagrams(key, template);
        }
    }

    /// A datagram flow is there: its program begins.
    fn begin_datagrams(&mut self, key: Key, template: u16) {
        let tuning = self.plan.templates[usize::from(template)].tuning(self.side.role);
        let socket = self.side.sockets_at(key);
        self.stack.engine.udp_set_traffic_class(socket, tuning.traffic_class);
        if let Some(hops) = tuning.hop_limit {
            self.stack.engine.udp_set_hop_limit(socket, hops);
        }
        let now_us = self.side.now_us;
        self.side.tally(template).established += 1;
        let flow = &mut self.side.datagrams[key.index()];
        flow.set_established();
        flow.sent_from = (now_us / 1000) as u32;
        flow.buffer = IDLE_DEFAULT_MS;
        let generation = flow.generation;
        self.side.wheel.insert(now_us + u64::from(IDLE_DEFAULT_MS) * 1000, key.0 | IDLE, generation);
        self.side.note(key);
    }

    /// Makes flows of the first datagrams that came.
    fn meet_newcomers(&mut self) {
        let mut newcomers = std::mem::take(&mut self.side.newcomers);
        for newcomer in newcomers.drain(..) {
            let (local, remote, template) = (newcomer.local, newcomer.remote, newcomer.template);
            match self.stack.engine.udp_open(local, Some(remote)) {
                Ok(socket) => {
                    let key = Key::datagram(socket.index());
                    let now_us = self.side.now_us;
                    self.side.place(key).begin(template, FlowState::Running, now_us);
                    self.side.entered(template);
                    self.side.count(template, Counter::flows_total, 1);
                    self.side.count(template, Counter::udps_accepts, 1);
                    self.begin_datagrams(key, template);
                    self.side.took(key, newcomer.bytes);
                    self.met.push((local, remote, key));
                }
                Err(Error::TupleInUse) => {
                    let met = self.met.iter().rev().find(|(at, from, _)| (*at, *from) == (local, remote));
                    if let Some((_, _, key)) = met.copied() {
                        self.side.took(key, newcomer.bytes);
                    }
                }
                Err(_) => self.side.count(template, Counter::err_c_tuple_err, 1),
            }
        }
        self.met.clear();
        self.side.newcomers = newcomers;
    }

    /// Resets every flow that is there: the run is over.
    pub(crate) fn reset_all(&mut self) {
        for index in 0..self.side.streams.len() {
            let flow = &self.side.streams[index];
            if !matches!(flow.state, FlowState::Free) {
                let template = flow.template;
                self.side.count(template, Counter::tcps_testdrops, 1);
                self.reset(Key::stream(index));
            }
        }
        for index in 0..self.side.datagrams.len() {
            if self.side.datagrams[index].state != FlowState::Free {
                self.reset(Key::datagram(index));
            }
        }
    }
}

impl Side {
    /// The socket of a datagram flow.
    fn sockets_at(&self, key: Key) -> UdpId {
        UdpId::at(key.index())
    }
}

/// What a waiting command waits for, and whether it clears.
fn awaited(command: Command) -> Option<(i64, bool)> {
    match command {
        Command::Recv { bytes, clear } => Some((bytes, clear)),
        Command::RecvMsg { messages, clear } => Some((messages, clear)),
        _ => None,
    }
}

fn compares(one: i64, is: Comparison, two: i64) -> bool {
    match is {
        Comparison::Lt => one < two,
        Comparison::Gt => one > two,
        Comparison::Eq => one == two,
        Comparison::Ge => one >= two,
        Comparison::Le => one <= two,
        Comparison::Ne => one != two,
    }
}

fn user(counter: UserCounter) -> Counter {
    match counter {
        UserCounter::A => Counter::user_counter_A,
        UserCounter::B => Counter::user_counter_B,
        UserCounter::C => Counter::user_counter_C,
        UserCounter::D => Counter::user_counter_D,
    }
}

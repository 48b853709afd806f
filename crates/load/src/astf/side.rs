//! One side's flows, and what the engine tells of them. Callbacks only take note: [`super::machine`] goes on with what was noted.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use overfly_engine::{Act, Datagram, Event, Failure, FlowId, ListenerId, Owner, UdpId};
use overfly_wire::checksum::Sum;

use super::buffer::Buffer;
use super::counter::{Counter, Tally};
use super::flow::{Flow, FlowState, Key, NO_BUFFER};
use super::latency::Latency;
use super::path::Note;
use super::plan::{Match, NO_TEMPLATE, Plan, Port, Role};
use super::wheel::Wheel;

/// A datagram of a flow that is not there yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Newcomer {
    pub(crate) template: u16,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) bytes: u32,
}

/// An undecided flow whose first payload no template is for.
pub(crate) const NOBODY: u32 = u32::MAX;

/// One side's flows.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) plan: Arc<Plan>,
    pub(crate) role: Role,
    pub(crate) streams: Vec<Flow>,
    pub(crate) datagrams: Vec<Flow>,
    /// Flows whose programs may go on.
    pub(crate) noted: Vec<Key>,
    pub(crate) newcomers: Vec<Newcomer>,
    pub(crate) wheel: Wheel,
    /// By group; the last is of flows whose template is not known.
    pub(crate) tallies: Vec<Tally>,
    /// By group, of the client side.
    pub(crate) latencies: Vec<Latency>,
    /// Flows that are there, by template.
    pub(crate) active: Vec<u32>,
    /// In the order of their ids.
    pub(crate) listeners: Vec<(ListenerId, u16)>,
    /// The port that the socket in this place listens at, or 0.
    pub(crate) sockets: Vec<u16>,
    pub(crate) now_us: u64,
    /// Where to say whose bytes are written, if the path that they take is simulated.
    pub(crate) note: Option<Arc<Note>>,
    /// The group of each template, and of [`NO_TEMPLATE`].
    groups: Vec<u32>,
}

impl Side {
    /// Without flows. `max_flows` are as many as there can be.
    pub(crate) fn new(plan: Arc<Plan>, role: Role, max_flows: usize, now_us: u64) -> Side {
        let groups = plan.groups.len();
        let latencies = if role == Role::Client { groups } else { 0 };
        Side {
            role,
            // Address space: memory comes with the flows.
            streams: Vec::with_capacity(max_flows),
            datagrams: Vec::new(),
            noted: Vec::new(),
            newcomers: Vec::new(),
            wheel: Wheel::new(now_us),
            tallies: vec![Tally::ZERO; groups + 1],
            latencies: (0..latencies).map(|_| Latency::new()).collect(),
            active: vec![0; plan.templates.len()],
            listeners: Vec::new(),
            sockets: Vec::new(),
            now_us,
            note: None,
            groups: plan.templates.iter().map(|template| template.group as u32).collect(),
            plan,
        }
    }

    #[inline(always)]
    pub(crate) fn flow_mut(&mut self, key: Key) -> &mut Flow {
        if key.is_stream() { &mut self.streams[key.index()] } else { &mut self.datagrams[key.index()] }
    }

    /// The group that a flow of the template is counted in.
    #[inline(always)]
    pub(crate) fn tally(&mut self, template: u16) -> &mut Tally {
        let unknown = self.tallies.len() - 1;
        let group = self.groups.get(usize::from(template)).map_or(unknown, |group| *group as usize);
        &mut self.tallies[group]
    }

    #[inline(always)]
    pub(crate) fn count(&mut self, template: u16, counter: Counter, amount: u64) {
        self.tally(template).counts.add(counter, amount);
    }

    #[inline]
    pub(crate) fn note(&mut self, key: Key) {
        if self.flow_mut(key).note() {
            self.noted.push(key);
        }
    }

    /// Reads a little of a flow, so that its memory is near.
    #[inline]
    pub(crate) fn touch(&self, index: usize) -> u32 {
        self.streams
            .get(index)
            .map_or(0, |flow| flow.generation ^ flow.balance as u32 ^ u32::from(flow.template))
    }

    /// Bytes of memory that flows take, what few programs need apart.
    pub(crate) fn memory(&self) -> usize {
        (self.streams.len() + self.datagrams.len()) * size_of::<Flow>()
            + self.noted.capacity() * size_of::<Key>()
            + self.wheel.memory()
    }

    /// Flows that are there.
    pub(crate) fn active(&self) -> u64 {
        self.tallies.iter().map(|tally| tally.active).sum()
    }

    /// Makes place for a connection.
    #[inline]
    pub(crate) fn place(&mut self, key: Key) -> &mut Flow {
        let flows = if key.is_stream() { &mut self.streams } else { &mut self.datagrams };
        while flows.len() <= key.index() {
            flows.push(Flow::FREE);
        }
        &mut flows[key.index()]
    }

    /// A flow with this template is there from now on.
    pub(crate) fn entered(&mut self, template: u16) {
        if let Some(active) = self.active.get_mut(usize::from(template)) {
            *active += 1;
        }
        self.tally(template).active += 1;
    }

    /// A flow is no more.
    pub(crate) fn left(&mut self, key: Key) {
        let stream = key.is_stream();
        let flow = self.flow_mut(key);
        if flow.state == FlowState::Free {
            return;
        }
        let (template, established) = (flow.template, flow.is_established());
        let extra = flow.extra.take();
        flow.end();
        if template == NO_TEMPLATE {
            return;
        }
        if let Some(active) = self.active.get_mut(usize::from(template)) {
            *active -= 1;
        }
        let tally = self.tally(template);
        tally.active -= 1;
        tally.established -= u64::from(established);
        tally.counts.add(if stream { Counter::tcps_closed } else { Counter::udps_closed }, 1);
        if let Some(extra) = extra
            && let Some(parent) = extra.parent
        {
            let flow = self.flow_mut(parent.key);
            if flow.generation == parent.generation && flow.state == FlowState::Nested {
                flow.state = FlowState::Running;
                if extra.next_template.is_some() {
                    flow.extra_mut(0).next_template = extra.next_template;
                }
                self.note(parent.key);
            }
        }
    }

    fn port(&self, listener: ListenerId) -> u16 {
        let found = self.listeners.binary_search_by_key(&listener, |(id, _)| *id);
        found.map_or(0, |index| self.listeners[index].1)
    }

    fn incoming(&mut self, key: Key, listener: ListenerId) {
        let now_us = self.now_us;
        let port = self.port(listener);
        let only = self.plan.tcp_ports.get(&port).and_then(Port::only);
        let flow = self.place(key);
        let answers = flow.mark_us;
        match only {
            Some(template) => flow.begin(template, FlowState::Running, now_us),
            None => {
                flow.begin(NO_TEMPLATE, FlowState::Undecided, now_us);
                flow.step = port.into();
            }
        }
        flow.mark_us = answers;
        flow.set_fresh();
        if let Some(template) = only {
            self.accepted(key, template);
        }
        self.note(key);
    }

    /// Its template is known.
    fn accepted(&mut self, key: Key, template: u16) {
        self.entered(template);
        let flow = self.flow_mut(key);
        flow.set_established();
        let answers = u64::from(std::mem::take(&mut flow.mark_us));
        let tally = self.tally(template);
        tally.established += 1;
        for counter in [Counter::tcps_accepts, Counter::tcps_connects, Counter::flows_total] {
            tally.counts.add(counter, 1);
        }
        // The SYN, and its answers, of which nothing was counted before.
        tally.counts.add(Counter::tcps_rcvtotal, 1);
        tally.counts.add(Counter::tcps_sndtotal, answers);
        tally.counts.add(Counter::tcps_sndacks, answers);
    }

    /// Decides whose an undecided flow is, as far as that can be.
    #[cold]
    fn decide(&mut self, key: Key, local: IpAddr, payload: Option<&[u8]>) {
        let port = self.flow_mut(key).step as u16;
        let found = self.plan.tcp_ports.get(&port).map_or(Match::Nobody, |port| port.find(local, payload));
        match found {
            Match::Wait => self.flow_mut(key).extra_mut(0).local = Some(local),
            Match::Template(template) => {
                let begun_ns = self.now_us as i64 * 1000;
                let flow = self.flow_mut(key);
                flow.template = template;
                flow.state = FlowState::Running;
                flow.step = 0;
                if let Some(extra) = &mut flow.extra {
                    extra.timers = [begun_ns; 5];
                }
                self.accepted(key, template);
                if payload.is_some() {
                    self.count(template, Counter::defer_template, 1);
                }
                self.note(key);
            }
            Match::Nobody => {
                self.flow_mut(key).step = NOBODY;
                let counter =
                    if payload.is_some() { Counter::err_defer_no_template } else { Counter::err_no_template };
                self.count(NO_TEMPLATE, counter, 1);
                self.note(key);
            }
        }
    }

    #[inline]
    fn acknowledged(&mut self, key: Key, offset: u64) {
        let offset = offset as u32;
        let plan = &self.plan;
        let flow = &mut self.streams[key.index()];
        let end = |from: u32, buffer: u32| from.wrapping_add(length(&plan.buffers, buffer));
        let reached = |end: u32| offset.wrapping_sub(end) as i32 >= 0;
        if let Some(extra) = &mut flow.extra {
            while extra.sends.front().is_some_and(|(from, buffer)| reached(end(*from, *buffer))) {
                extra.sends.pop_front();
            }
        }
        let goes_on = match flow.state {
            FlowState::Sent => reached(end(flow.sent_from, flow.buffer)),
            FlowState::Room => true,
            _ => false,
        };
        if goes_on {
            flow.state = FlowState::Running;
            self.note(key);
        }
    }

    fn failed(&mut self, key: Key, failure: Failure) {
        let flow = &mut self.streams[key.index()];
        let (template, established, runs) = (flow.template, flow.is_established(), flow.state.has_program());
        let tally = self.tally(template);
        tally.counts.add(if established { Counter::tcps_drops } else { Counter::tcps_conndrops }, 1);
        tally.counts.add(Counter::program_cut_short, u64::from(runs));
        tally.counts.add(Counter::tcps_timeoutdrop, u64::from(failure == Failure::TimedOut));
    }

    /// Bytes or datagrams have come.
    #[inline(always)]
    fn received(&mut self, key: Key, amount: i64) {
        let now_us = self.now_us as u32;
        let flow = self.flow_mut(key);
        flow.balance += amount;
        let satisfied = flow.state == FlowState::Receive && flow.balance >= 0;
        if flow.awaits_first_byte() {
            flow.set_awaits_first_byte(false);
            let (us, template) = (now_us.wrapping_sub(flow.mark_us), flow.template);
            let group = self.groups[usize::from(template)] as usize;
            if let Some(latency) = self.latencies.get_mut(group) {
                latency.first_byte(us);
            }
        }
        if satisfied {
            self.note(key);
        }
    }

    /// Hands the parts of its sends that make up `[offset, offset + length)` to `each`: buffer, offset in it, length.
    #[cold]
    fn parts(&self, flow: FlowId, offset: u64, length: usize, mut each: impl FnMut(&Buffer, u32, usize)) {
        let flow = &self.streams[flow.index()];
        let (mut offset, mut left) = (offset as u32, length);
        let earlier = flow.extra.iter().flat_map(|extra| extra.sends.iter().copied());
        for (from, buffer) in earlier.chain([(flow.sent_from, flow.buffer)]) {
            let buffer = &self.plan.buffers[buffer as usize];
            let inside = offset.wrapping_sub(from);
            if left > 0 && inside < buffer.len() {
                let take = left.min((buffer.len() - inside) as usize);
                each(buffer, inside, take);
                offset = offset.wrapping_add(take as u32);
                left -= take;
            }
        }
    }

    /// Says that the payload is all of the flow's last buffer, from `inside` on.
    #[inline(always)]
    fn note_part(&self, flow: FlowId, inside: u32) {
        if let Some(note) = &self.note {
            note.set(self.streams[flow.index()].buffer, inside);
        }
    }

    /// The buffer that alone has the bytes, and where in it they begin.
    #[inline(always)]
    fn part(&self, flow: FlowId, offset: u64, length: usize) -> Option<(&Buffer, u32)> {
        let flow = &self.streams[flow.index()];
        let buffer = self.plan.buffers.get(flow.buffer as usize)?;
        let inside = (offset as u32).wrapping_sub(flow.sent_from);
        (inside < buffer.len() && (buffer.len() - inside) as usize >= length).then_some((buffer, inside))
    }
}

/// Bytes of a buffer, by its number.
#[inline(always)]
pub(crate) fn length(buffers: &[Buffer], buffer: u32) -> u32 {
    if buffer == NO_BUFFER { 0 } else { buffers[buffer as usize].len() }
}

impl Owner for Side {
    #[inline]
    fn event(&mut self, flow: FlowId, event: Event) {
        let key = Key::stream(flow.index());
        match event {
            Event::Acknowledged { offset } => self.acknowledged(key, offset),
            Event::Incoming { listener } => self.incoming(key, listener),
            Event::Connected => {
                let now_us = self.now_us;
                let flow = &mut self.streams[key.index()];
                flow.set_established();
                flow.state = FlowState::Running;
                let (template, took_us) = (flow.template, now_us - flow.begun_us);
                let tally = self.tally(template);
                tally.established += 1;
                tally.counts.add(Counter::tcps_connects, 1);
                let group = self.groups[usize::from(template)] as usize;
                self.latencies[group].connected(took_us);
                self.note(key);
            }
            Event::RemoteClosed => {
                let flow = &mut self.streams[key.index()];
                flow.set_peer_closed();
                if matches!(flow.state, FlowState::Receive | FlowState::PeerClose | FlowState::Undecided) {
                    self.note(key);
                }
            }
            Event::Failed(failure) => self.failed(key, failure),
            Event::Released => self.left(key),
        }
    }

    #[inline]
    fn deliver(&mut self, flow: FlowId, data: &[u8]) -> usize {
        let key = Key::stream(flow.index());
        let flow = &self.streams[key.index()];
        if flow.state == FlowState::Undecided
            && flow.step != NOBODY
            && let Some(local) = flow.extra.as_ref().and_then(|extra| extra.local)
        {
            self.decide(key, local, Some(data));
        }
        let template = self.streams[key.index()].template;
        let counts = &mut self.tally(template).counts;
        counts.add(Counter::tcps_rcvpack, 1);
        counts.add(Counter::tcps_rcvbyte, data.len() as u64);
        self.received(key, data.len() as i64);
        data.len()
    }

    #[inline]
    fn fill(&mut self, flow: FlowId, offset: u64, buffer: &mut [u8]) {
        if let Some((from, inside)) = self.part(flow, offset, buffer.len()) {
            self.note_part(flow, inside);
            return from.copy(inside, buffer);
        }
        let mut done = 0;
        let length = buffer.len();
        self.parts(flow, offset, length, |from, inside, take| {
            from.copy(inside, &mut buffer[done..done + take]);
            done += take;
        });
    }

    #[inline]
    fn fill_and_sum(&mut self, flow: FlowId, offset: u64, buffer: &mut [u8]) -> Option<Sum> {
        if let Some((from, inside)) = self.part(flow, offset, buffer.len()) {
            self.note_part(flow, inside);
            return from.copy_and_sum(inside, buffer);
        }
        self.fill(flow, offset, buffer);
        None
    }

    #[inline]
    fn acted(&mut self, flow: FlowId, act: Act) {
        if let Act::Answered { again } = act {
            // Kept until it comes: whose it will be is not known.
            let place = self.place(Key::stream(flow.index()));
            place.mark_us = if again { place.mark_us + 1 } else { 1 };
            return;
        }
        let Some(state) = self.streams.get(flow.index()) else { return };
        let template = state.template;
        let counts = &mut self.tally(template).counts;
        match act {
            Act::Sent { payload, control, acknowledges, again } => {
                counts.add(Counter::tcps_sndtotal, 1);
                if payload > 0 && again {
                    counts.add(Counter::tcps_sndrexmitpack, 1);
                    counts.add(Counter::tcps_sndrexmitbyte, payload.into());
                } else if payload > 0 {
                    counts.add(Counter::tcps_sndpack, 1);
                    counts.add(Counter::tcps_sndbyte_ok, payload.into());
                } else if acknowledges {
                    counts.add(Counter::tcps_sndacks, 1);
                } else if control {
                    counts.add(Counter::tcps_sndctrl, 1);
                } else {
                    counts.add(Counter::tcps_sndwinup, 1);
                }
            }
            Act::Arrived => counts.add(Counter::tcps_rcvtotal, 1),
            Act::Acked { bytes, fin } => {
                counts.add(Counter::tcps_rcvackpack, 1);
                counts.add(Counter::tcps_rcvackbyte, bytes.into());
                counts.add(Counter::tcps_rcvackbyte_of, fin.into());
            }
            Act::DuplicateAck => counts.add(Counter::tcps_rcvdupack, 1),
            Act::Timed => counts.add(Counter::tcps_segstimed, 1),
            Act::Measured => counts.add(Counter::tcps_rttupdated, 1),
            Act::DelayedAck => counts.add(Counter::tcps_delack, 1),
            Act::TimedOut { handshake } => {
                let counter = if handshake { Counter::tcps_rexmttimeo_syn } else { Counter::tcps_rexmttimeo };
                counts.add(counter, 1);
            }
            Act::Persisted => counts.add(Counter::tcps_persisttimeo, 1),
            Act::Probed => {
                counts.add(Counter::tcps_keeptimeo, 1);
                counts.add(Counter::tcps_keepprobe, 1);
            }
            Act::GaveUp { keep_alive, persists } => {
                counts.add(Counter::tcps_keeptimeo, keep_alive.into());
                counts.add(Counter::tcps_keepdrops, keep_alive.into());
                counts.add(Counter::tcps_persistdrop, persists.into());
            }
            Act::Duplicate { bytes, part: false } => {
                counts.add(Counter::tcps_rcvduppack, 1);
                counts.add(Counter::tcps_rcvdupbyte, bytes.into());
            }
            Act::Duplicate { bytes, part: true } => {
                counts.add(Counter::tcps_rcvpartduppack, 1);
                counts.add(Counter::tcps_rcvpartdupbyte, bytes.into());
            }
            Act::OutOfOrder { bytes } => {
                counts.add(Counter::tcps_rcvoopack, 1);
                counts.add(Counter::tcps_rcvoobyte, bytes.into());
            }
            Act::AfterWindow { bytes } => {
                counts.add(Counter::tcps_rcvpackafterwin, 1);
                counts.add(Counter::tcps_rcvbyteafterwin, bytes.into());
            }
            Act::Came { local } if state_is_undecided(&self.streams, flow) => {
                self.decide(Key::stream(flow.index()), local, None);
            }
            Act::Came { .. } | Act::Answered { .. } => {}
        }
    }

    fn datagram(&mut self, socket: UdpId, datagram: Datagram<'_>) {
        let bytes = datagram.payload.len() as u32;
        if let Some(port) = self.sockets.get(socket.index()).copied().filter(|port| *port != 0) {
            let port = self.plan.udp_ports.get(&port);
            let found = port
                .map_or(Match::Nobody, |port| port.find(datagram.destination.ip(), Some(datagram.payload)));
            match found {
                Match::Template(template) => self.newcomers.push(Newcomer {
                    template,
                    local: datagram.destination,
                    remote: datagram.source,
                    bytes,
                }),
                _ => self.count(NO_TEMPLATE, Counter::err_no_template, 1),
            }
            return;
        }
        self.took(Key::datagram(socket.index()), bytes);
    }
}

impl Side {
    /// A datagram of so many bytes has come for a flow.
    pub(crate) fn took(&mut self, key: Key, bytes: u32) {
        let now_ms = (self.now_us / 1000) as u32;
        let Some(flow) = self.datagrams.get_mut(key.index()).filter(|flow| flow.state != FlowState::Free)
        else {
            return;
        };
        flow.sent_from = now_ms;
        let template = flow.template;
        let counts = &mut self.tally(template).counts;
        counts.add(Counter::udps_rcvpkt, 1);
        counts.add(Counter::udps_rcvbyte, bytes.into());
        self.received(key, 1);
    }
}

#[inline(always)]
fn state_is_undecided(streams: &[Flow], flow: FlowId) -> bool {
    streams[flow.index()].state == FlowState::Undecided
}

//! Connections over the user-level stack: one engine, its link, and the loop that drives both.

use overfly_engine::{Event, FlowId, Instant, Owner};

use super::run::{Outcome, Turn};
use super::session::{Ending, Session, Site};
use crate::link::{Stack, Wire};

/// How long a shard sees to its last connections at the end.
const WIND_UP_NS: u64 = 300_000_000;
/// How long a client may take to close after our FIN.
const LINGER_MS: u32 = 5_000;
/// A shard that nobody sent anything for so long sleeps between looks, for [`NAP`].
const SPIN_NS: u64 = 100_000_000;
const NAP: std::time::Duration = std::time::Duration::from_micros(200);
/// Time between looks for connections that have stood still for too long, each at a part of them.
const SCAN_EVERY_NS: u64 = 1_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No flow has this index.
    Free,
    Open,
    /// Our FIN is under way: whatever the client still sends is dropped until it closes, too (RFC 9112 section 9.6).
    Lingering,
    /// Closed or reset by us, or failed: the engine sees to the rest.
    Dying,
}

/// What the server knows of one flow; the flow's index is its place.
struct Connection {
    session: Session,
    id: Option<FlowId>,
    /// Bytes of the session's stream that the engine knows of.
    promised: u64,
    /// Bytes of it that the client has.
    acknowledged: u64,
    /// Input that waited and is done with.
    consumed: usize,
    /// When the client last did something that counts as progress, ms after the start.
    since_ms: u32,
    phase: Phase,
    /// The client has closed.
    ended: bool,
    /// To be accepted.
    new: bool,
    /// Stands in `Service::noted`.
    noted: bool,
}

impl Connection {
    const FREE: Connection = Connection {
        session: Session::new(),
        id: None,
        promised: 0,
        acknowledged: 0,
        consumed: 0,
        since_ms: 0,
        phase: Phase::Free,
        ended: false,
        new: false,
        noted: false,
    };
}

/// The engine's other side.
struct Service {
    site: Site,
    connections: Vec<Connection>,
    /// Flows with something to do once the engine can be called again.
    noted: Vec<FlowId>,
    now_ms: u32,
}

impl Service {
    #[inline]
    fn note(&mut self, flow: FlowId) {
        let connection = &mut self.connections[flow.index()];
        if !connection.noted {
            connection.noted = true;
            self.noted.push(flow);
        }
    }

    fn leave(&mut self, flow: FlowId) {
        let connection = &mut self.connections[flow.index()];
        if matches!(connection.phase, Phase::Open | Phase::Lingering) {
            self.site.counts.closed += 1;
            connection.phase = Phase::Dying;
        }
    }
}

impl Owner for Service {
    fn event(&mut self, flow: FlowId, event: Event) {
        match event {
            Event::Incoming { .. } => {
                if flow.index() >= self.connections.len() {
                    self.connections.resize_with(2 * flow.index() + 1, || Connection::FREE);
                }
                self.site.counts.accepted += 1;
                self.connections[flow.index()] = Connection {
                    id: Some(flow),
                    since_ms: self.now_ms,
                    phase: Phase::Open,
                    new: true,
                    ..Connection::FREE
                };
                self.note(flow);
            }
            Event::Acknowledged { offset } => {
                let connection = &mut self.connections[flow.index()];
                self.site.counts.bytes_out += offset - connection.acknowledged;
                connection.acknowledged = offset;
                connection.session.acknowledged(offset);
                connection.since_ms = self.now_ms;
                let blocked = connection.session.is_blocked();
                if blocked {
                    connection.consumed += connection.session.resume(&mut self.site);
                }
                if blocked || (connection.ended && !connection.session.is_answering()) {
                    self.note(flow);
                }
            }
            Event::RemoteClosed => {
                let connection = &mut self.connections[flow.index()];
                connection.ended = true;
                if connection.phase == Phase::Open && connection.session.is_cut_short() {
                    self.site.counts.cut_short += 1;
                }
                self.note(flow);
            }
            Event::Failed(_) => {
                if self.connections[flow.index()].phase == Phase::Open {
                    self.site.counts.failed += 1;
                }
                self.leave(flow);
            }
            Event::Released => {
                self.leave(flow);
                self.connections[flow.index()] =
                    Connection { noted: self.connections[flow.index()].noted, ..Connection::FREE };
            }
            Event::Connected => {}
        }
    }

    #[inline]
    fn deliver(&mut self, flow: FlowId, data: &[u8]) -> usize {
        let connection = &mut self.connections[flow.index()];
        if connection.phase != Phase::Open {
            return data.len();
        }
        if !connection.session.is_in_head() {
            connection.since_ms = self.now_ms;
        }
        let consumed = connection.session.receive(data, &mut self.site);
        let news = connection.session.end() > connection.promised;
        if news || connection.session.ending() != Ending::Open {
            self.note(flow);
        }
        consumed
    }

    #[inline]
    fn fill(&mut self, flow: FlowId, offset: u64, buffer: &mut [u8]) {
        self.connections[flow.index()].session.fill(offset, buffer, &self.site.template);
    }
}

/// One thread's stack and connections.
pub(crate) struct Shard<W> {
    stack: Stack<W>,
    service: Service,
    timeout_ms: u32,
    next_scan_ns: u64,
    /// Where the next look begins.
    scanned: usize,
}

impl<W: Wire> Shard<W> {
    /// `stack` listens already.
    pub(crate) fn new(stack: Stack<W>, site: Site, timeout_ms: u32) -> Shard<W> {
        let service = Service { site, connections: Vec::new(), noted: Vec::new(), now_ms: 0 };
        Shard { stack, service, timeout_ms, next_scan_ns: 0, scanned: 0 }
    }

    /// One round: takes frames, does what they ask for, sends. Returns how many frames it took.
    pub(crate) fn step(&mut self, now_ns: u64) -> usize {
        let (now, frames) = self.receive(now_ns);
        if now_ns >= self.next_scan_ns {
            self.end_the_late();
            self.next_scan_ns = now_ns + SCAN_EVERY_NS;
        }
        self.do_what_was_noted();
        self.stack.transmit(now, &mut self.service);
        frames
    }

    #[inline]
    fn receive(&mut self, now_ns: u64) -> (Instant, usize) {
        let now = self.stack.time(now_ns);
        self.service.now_ms = (now_ns / 1_000_000) as u32;
        self.service.site.now_ns = now_ns;
        (now, self.stack.receive(now, &mut self.service))
    }

    #[inline]
    fn do_what_was_noted(&mut self) {
        let mut noted = std::mem::take(&mut self.service.noted);
        for flow in noted.drain(..) {
            let connection = &mut self.service.connections[flow.index()];
            connection.noted = false;
            if connection.id == Some(flow) {
                self.attend(flow);
            }
        }
        self.service.noted = noted;
    }

    fn attend(&mut self, flow: FlowId) {
        let engine = &mut self.stack.engine;
        let connection = &mut self.service.connections[flow.index()];
        if std::mem::take(&mut connection.new) {
            engine.accepted(flow);
            engine.set_no_delay(flow, true);
        }
        if connection.consumed > 0 {
            engine.consumed(flow, std::mem::take(&mut connection.consumed));
        }
        if connection.phase == Phase::Open {
            let more = connection.session.end() - connection.promised;
            if more > 0 {
                connection.promised += more;
                engine.send(flow, usize::try_from(more).unwrap_or(usize::MAX));
            }
            match connection.session.ending() {
                Ending::Open | Ending::Silence => {}
                Ending::Close => {
                    engine.shutdown(flow);
                    connection.phase = Phase::Lingering;
                }
                Ending::Reset => {
                    engine.abort(flow);
                    return self.service.leave(flow);
                }
            }
        }
        self.end_if_ended(flow);
    }

    /// A client that has closed may still wait for answers.
    fn end_if_ended(&mut self, flow: FlowId) {
        let connection = &mut self.service.connections[flow.index()];
        let open = matches!(connection.phase, Phase::Open | Phase::Lingering);
        if !connection.ended || !open || connection.session.is_blocked() {
            return;
        }
        if connection.session.is_answering() {
            self.stack.engine.shutdown(flow);
            connection.phase = Phase::Lingering;
        } else {
            self.stack.engine.close(flow);
            self.service.leave(flow);
        }
    }

    /// Looks at so many connections that all have been looked at within an eighth of the timeout.
    fn end_the_late(&mut self) {
        let total = self.service.connections.len();
        let rounds = (u64::from(self.timeout_ms.min(LINGER_MS)) * 1_000_000 / 8 / SCAN_EVERY_NS).max(1);
        for _ in 0..total.div_ceil(rounds as usize) {
            self.scanned = if self.scanned + 1 < total { self.scanned + 1 } else { 0 };
            self.end_if_late(self.scanned);
        }
    }

    fn end_if_late(&mut self, index: usize) {
        let Service { site, connections, now_ms, .. } = &mut self.service;
        let connection = &connections[index];
        let Some(flow) = connection.id else {
            return;
        };
        let still_ms = now_ms.saturating_sub(connection.since_ms);
        let session = &connection.session;
        match connection.phase {
            Phase::Open if still_ms > self.timeout_ms && session.is_idle() => {
                site.counts.idle += 1;
                self.stack.engine.close(flow);
            }
            Phase::Open if still_ms > self.timeout_ms => {
                let reading = session.is_answering();
                site.counts.slow_readers += u64::from(reading);
                site.counts.slow_requests += u64::from(!reading);
                self.stack.engine.abort(flow);
            }
            Phase::Lingering if session.is_answering() && still_ms > self.timeout_ms => {
                site.counts.slow_readers += 1;
                self.stack.engine.abort(flow);
            }
            Phase::Lingering if !session.is_answering() && still_ms > LINGER_MS => {
                self.stack.engine.close(flow);
            }
            _ => return,
        }
        self.service.leave(flow);
    }

    /// Begins the end: every connection that is open is reset.
    pub(crate) fn reset_all(&mut self) {
        self.service.noted.clear();
        for index in 0..self.service.connections.len() {
            let connection = &mut self.service.connections[index];
            if let (Phase::Open | Phase::Lingering, Some(flow)) = (connection.phase, connection.id) {
                connection.noted = false;
                self.stack.engine.abort(flow);
                self.service.leave(flow);
            }
        }
    }

    /// One round of the end: nothing new is begun.
    pub(crate) fn settle(&mut self, now_ns: u64) {
        let (now, _) = self.receive(now_ns);
        self.stack.transmit(now, &mut self.service);
    }

    /// Whether clients have nothing of ours any more, as far as we can know.
    pub(crate) fn is_wound_up(&self) -> bool {
        self.stack.is_wound_up()
    }

    /// Serves until the clock says stop.
    pub(crate) fn run(mut self, turn: &mut Turn) -> Outcome {
        let mut busy_ns = 0;
        loop {
            let now_ns = turn.now_ns();
            if !turn.goes_on(now_ns, &self.service.site.counts) {
                break;
            }
            if self.step(now_ns) > 0 {
                busy_ns = now_ns;
            } else if now_ns - busy_ns > SPIN_NS {
                std::thread::sleep(NAP);
            }
        }
        self.reset_all();
        let ended_ns = turn.now_ns();
        while !self.is_wound_up() && turn.now_ns() < ended_ns + WIND_UP_NS {
            self.settle(turn.now_ns());
        }
        Outcome { counts: self.service.site.counts, counters: self.stack.counters() }
    }
}

#[cfg(test)]
pub(crate) mod tests;

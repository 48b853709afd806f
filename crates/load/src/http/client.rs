//! What the connections of one thread do: requests out, responses in, whatever carries them.
//!
//! In a closed loop a connection has its next request when a response is complete. In an open loop requests are due by the
//! schedule, and take the connection that has been idle longest; where none is, they wait, and their latency with them.

mod partial;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use self::partial::{Partials, Progress};
use super::opening::Opening;
use super::outgoing::{Outgoing, Repeated};
use super::party::{ClientStack, Party, Why};
use super::plan::Plan;
use super::reason;
use super::schedule::{Schedule, lanes};
use super::script::{Exchange, Interest, Next, Script};
use super::tally::{Outcome, Tally};
use super::{Ending, Settings};
use crate::error::Error;
use crate::record::{Failure, Times};
use crate::response::{HeadCache, Malformed, Response};

/// Slots looked at for requests that are late, before others have their turn.
const SLOTS_AT_ONCE: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No connection has this slot.
    Free,
    Connecting,
    Open,
    /// The response was the last, and the server closes first.
    Closing,
    /// To be closed.
    Done,
    /// To be reset.
    Broken,
    /// Closed or reset by us, or failed: the stack sees to the rest.
    Dying,
}

/// What is known of one connection: 40 bytes or less, for a million of them.
#[derive(Debug, Clone)]
struct Slot {
    /// When the oldest request under way was due; before there is one, when the first one was.
    intended_ns: u64,
    /// When it was sent. Without one: since when the connection has been what it is.
    since_ns: u64,
    /// Requests that it has carried.
    turns: u64,
    /// What has come of a response that is not complete: a place in [`Client::partials`].
    partial: u32,
    /// Requests under way.
    under_way: u16,
    server: u16,
    phase: Phase,
    /// Stands in `Client::noted`.
    noted: bool,
    /// Stands in its server's `idle`.
    queued: bool,
    /// A request has been taken for it that it has not sent.
    owes: bool,
    /// Its next request waits until a script's delay is over.
    delayed: bool,
    /// Bytes came that no request asked for.
    tainted: bool,
    /// The response to its request has no content.
    no_content: bool,
}

impl Slot {
    const FREE: Slot = Slot {
        intended_ns: 0,
        since_ns: 0,
        turns: 0,
        partial: Partials::NONE,
        under_way: 0,
        server: 0,
        phase: Phase::Free,
        noted: false,
        queued: false,
        owes: false,
        delayed: false,
        tainted: false,
        no_content: false,
    };
}

/// A request under way.
#[derive(Debug, Clone, Copy)]
struct Request {
    intended_ns: u64,
    sent_ns: u64,
    no_content: bool,
}

/// A request, and what it is as a connection's last one. A thread has its own: nobody counts its references beside it.
#[derive(Debug)]
struct Template {
    usual: Rc<[u8]>,
    last: Rc<[u8]>,
}

/// A server's requests as this thread sends them, and its connections that could carry one.
#[derive(Debug)]
struct Server {
    requests: Vec<Template>,
    /// In which order they are sent.
    order: Vec<u16>,
    turn: usize,
    /// Open loop: when this thread's requests to it are due, from the schedule's beginning.
    schedule: Option<Schedule>,
    /// Connections with room for a request, the one that has been so longest first. A connection that has gone, or has
    /// become another, may stand here still.
    idle: VecDeque<u32>,
}

/// The connections of one thread.
pub(crate) struct Client<'a> {
    tally: Tally<'a>,
    plan: Arc<Plan>,
    servers: Vec<Server>,
    slots: Vec<Slot>,
    /// Connections with something to do once the stack can be called.
    noted: Vec<u32>,
    outgoing: Outgoing,
    cache: HeadCache,
    partials: Partials,
    /// Pipelines: by slot, the requests under way but the oldest.
    behind: Vec<VecDeque<Request>>,
    script: Option<Scripted>,
    opening: Opening,
    /// Connections that are one of `-c`: neither `Free` nor `Dying`.
    live: usize,
    /// Requests under way or owed, over all connections.
    outstanding: usize,
    /// No request is begun any more: there is no ticket left, or a script said so.
    exhausted: bool,
    /// The run's time is over, and what was due in it has had its chance.
    had_last_round: bool,
    now_ns: u64,
    scan_every_ns: u64,
    next_scan_ns: u64,
    scanned: usize,
    /// Open loop: when the requests promised since the last [`Party::flushed`] could have gone.
    promised_ns: Vec<u64>,
}

/// A script and what it asked for.
struct Scripted {
    script: Box<dyn Script>,
    interest: Interest,
    delays: bool,
    /// Requests that come at once, and whose responses a connection waits for.
    at_once: usize,
    heads_only: bool,
    /// Connections whose delay ends then.
    delayed: BinaryHeap<Reverse<(u64, u32)>>,
    request: Vec<u8>,
    /// It could not go on.
    failed: Option<Error>,
}

impl Scripted {
    fn new(script: Box<dyn Script>) -> Scripted {
        Scripted {
            interest: script.interest(),
            delays: script.delays(),
            at_once: script.requests_at_once().max(1),
            heads_only: script.heads_only(),
            script,
            delayed: BinaryHeap::new(),
            request: Vec::new(),
            failed: None,
        }
    }

    /// What `called` says; an error is kept for the stack's next round.
    fn or_stop<T>(&mut self, called: Result<T, Error>, stopped: T) -> T {
        called.unwrap_or_else(|error| {
            self.failed.get_or_insert(error);
            stopped
        })
    }
}

impl<'a> Client<'a> {
    /// The connections of thread `index`, none of them begun.
    pub(crate) fn new(
        settings: &Settings,
        plan: Arc<Plan>,
        index: usize,
        script: Option<Box<dyn Script>>,
        tally: Tally<'a>,
    ) -> Client<'a> {
        let connections = settings.connections_of(index);
        let keeps_streams = script.is_some() || plan.servers.iter().any(|server| server.requests.len() > 1);
        let script = script.map(Scripted::new);
        let interest = script.as_ref().map_or(Interest::Nothing, |script| script.interest);
        let servers = servers_of(&plan, settings, index);
        let outgoing = if keeps_streams {
            Outgoing::Stored(Vec::new())
        } else {
            let repeated = |server: &Server| {
                let Template { usual, last } = &server.requests[0];
                Repeated::new(usual.clone(), last.clone(), plan.turns)
            };
            Outgoing::Repeated(servers.iter().map(repeated).collect())
        };
        let scan_every_ns = (plan.timeout_ns / 8).clamp(5_000_000, 250_000_000);
        Client {
            tally,
            servers,
            slots: vec![Slot::FREE; connections],
            noted: Vec::new(),
            outgoing,
            cache: HeadCache::new(),
            partials: Partials::new(settings.expect_sha256, interest, plan.store),
            behind: Vec::new(),
            script,
            opening: Opening::new(plan.share(connections), plan.connects_on_demand()),
            live: 0,
            outstanding: 0,
            exhausted: false,
            had_last_round: false,
            now_ns: 0,
            scan_every_ns,
            next_scan_ns: scan_every_ns,
            scanned: 0,
            promised_ns: Vec::new(),
            plan,
        }
    }

    #[inline]
    fn note(&mut self, slot: usize, phase: Phase) {
        let place = &mut self.slots[slot];
        place.phase = phase;
        if !place.noted {
            place.noted = true;
            self.noted.push(slot as u32);
        }
    }

    /// A connection is no longer one of `-c`; another may take its place.
    fn leave(&mut self, slot: usize) {
        let place = &mut self.slots[slot];
        let server = usize::from(place.server);
        if place.phase == Phase::Connecting {
            self.opening.failed(server, self.now_ns);
        } else {
            self.tally.closed();
            self.opening.vacate(server, self.now_ns);
        }
        place.phase = Phase::Dying;
        self.partials.release(&mut place.partial);
        self.live -= 1;
    }

    /// Whether one more request may start, which begins or is due at `at_ns`.
    #[inline]
    fn take_ticket(&mut self, at_ns: u64) -> bool {
        if !self.exhausted && !self.tally.take_ticket(at_ns) {
            self.exhausted = true;
        }
        !self.exhausted
    }

    #[inline]
    fn has_room(&self, slot: usize) -> bool {
        let place = &self.slots[slot];
        // A script's requests that came at once end before others begin.
        let most = if self.at_once() > 1 { 1 } else { self.plan.pipeline };
        place.phase == Phase::Open
            && usize::from(place.under_way) < most
            && place.turns < self.plan.turns
            && !place.delayed
    }

    /// Requests that are sent together.
    #[inline]
    fn at_once(&self) -> usize {
        self.script.as_ref().map_or(1, |scripted| scripted.at_once)
    }

    /// Sends the slot's next request, or as many as a script makes at once.
    fn send(&mut self, slot: usize, intended_ns: u64, stack: &mut impl ClientStack) {
        if self.slots[slot].tainted {
            self.outstanding += 1;
            self.end_one(
                slot,
                Request { intended_ns, sent_ns: self.now_ns, no_content: false },
                |client, times| {
                    client.tally.fail_malformed(Malformed::Unsolicited, times.intended_ns);
                    Ended::failed(Failure::Malformed)
                },
            );
            self.note(slot, Phase::Broken);
            return;
        }
        let Some((bytes, no_content)) = self.next_request(slot) else {
            self.exhausted = true;
            self.note(slot, Phase::Open);
            return;
        };
        let place = &mut self.slots[slot];
        if self.plan.rate.is_some() && !self.opening.on_demand() {
            self.promised_ns.push(intended_ns.max(place.since_ns));
        }
        for _ in 0..self.at_once() {
            self.put_under_way(slot, Request { intended_ns, sent_ns: self.now_ns, no_content });
        }
        self.tally.sent(intended_ns, bytes);
        stack.send(slot, bytes);
    }

    #[inline]
    fn put_under_way(&mut self, slot: usize, request: Request) {
        let slots = self.slots.len();
        let place = &mut self.slots[slot];
        if place.under_way == 0 {
            (place.intended_ns, place.since_ns) = (request.intended_ns, request.sent_ns);
            place.no_content = request.no_content;
        } else {
            if self.behind.len() <= slot {
                self.behind.resize_with(slots, VecDeque::new);
            }
            self.behind[slot].push_back(request);
        }
        place.turns += 1;
        place.under_way += 1;
        self.outstanding += 1;
    }

    /// Makes the slot's next request: its length, and whether its response has no content.
    #[inline]
    fn next_request(&mut self, slot: usize) -> Option<(usize, bool)> {
        let is_last = self.slots[slot].turns + 1 == self.plan.turns;
        if let Some(scripted) = &mut self.script {
            scripted.request.clear();
            let asked = scripted.script.request(slot, &mut scripted.request);
            if scripted.or_stop(asked, Next::Stop) == Next::Stop {
                return None;
            }
            let bytes: Rc<[u8]> = scripted.request.as_slice().into();
            self.outgoing.push(slot, &bytes);
            return Some((bytes.len(), scripted.heads_only || bytes.starts_with(b"HEAD ")));
        }
        let server = &mut self.servers[usize::from(self.slots[slot].server)];
        let template = &server.requests[usize::from(server.order[server.turn])];
        server.turn = if server.turn + 1 < server.order.len() { server.turn + 1 } else { 0 };
        let bytes = if is_last { &template.last } else { &template.usual };
        self.outgoing.push(slot, bytes);
        Some((bytes.len(), self.plan.no_content))
    }

    /// A request has ended. `judge` counts it and says how.
    fn end_one(
        &mut self,
        slot: usize,
        request: Request,
        judge: impl FnOnce(&mut Self, Times) -> Ended,
    ) -> Option<Failure> {
        self.outstanding -= 1;
        let first_byte_ns = self.partials.first_byte_ns(self.slots[slot].partial).unwrap_or(self.now_ns);
        let times = Times {
            intended_ns: request.intended_ns,
            sent_ns: request.sent_ns,
            first_byte_ns,
            ended_ns: self.now_ns,
        };
        let ended = judge(self, times);
        if self.script.as_ref().is_some_and(|script| script.interest > Interest::Nothing) {
            self.tell_script(slot, times, ended);
        }
        ended.failure
    }

    fn tell_script(&mut self, slot: usize, times: Times, ended: Ended) {
        let Some(scripted) = &mut self.script else { return };
        let (head, body) = match ended.status {
            0 => Default::default(),
            _ => self.partials.content(self.slots[slot].partial),
        };
        let exchange = Exchange {
            connection: slot,
            times,
            failure: ended.failure,
            status: ended.status,
            body_bytes: ended.body_bytes,
            keep_alive: ended.keep_alive,
            head,
            body,
        };
        let called = scripted.script.finished(&exchange);
        if scripted.or_stop(called, Next::Stop) == Next::Stop {
            self.exhausted = true;
        }
    }

    /// Takes the oldest request under way.
    #[inline]
    fn take_oldest(&mut self, slot: usize) -> Request {
        let place = &mut self.slots[slot];
        let oldest =
            Request { intended_ns: place.intended_ns, sent_ns: place.since_ns, no_content: place.no_content };
        place.under_way -= 1;
        place.since_ns = self.now_ns;
        if place.under_way > 0
            && let Some(next) = self.behind[slot].pop_front()
        {
            (place.intended_ns, place.since_ns) = (next.intended_ns, next.sent_ns);
            place.no_content = next.no_content;
        }
        oldest
    }

    /// All that the connection has under way, or was to send, has failed.
    fn fail_all(&mut self, slot: usize, failure: Failure) {
        let judge = |client: &mut Self, times: Times| {
            client.tally.fail(failure, times.intended_ns);
            Ended::failed(failure)
        };
        if std::mem::take(&mut self.slots[slot].owes) {
            let intended_ns = self.slots[slot].intended_ns;
            self.end_one(slot, Request { intended_ns, sent_ns: self.now_ns, no_content: false }, judge);
        }
        while self.slots[slot].under_way > 0 {
            let request = self.take_oldest(slot);
            self.end_one(slot, request, judge);
        }
    }

    /// The server ends the connection. Where the generator would have gone on with it, that is worth knowing.
    fn note_closed_by_server(&mut self, slot: usize) {
        let place = &self.slots[slot];
        let is_kept = matches!(place.phase, Phase::Open | Phase::Closing) && place.turns < self.plan.turns;
        self.tally.record.closed_by_server += u64::from(is_kept);
    }

    /// The first request under way got an answer that is none; those behind it get none at all.
    fn fail_malformed(&mut self, slot: usize, malformed: Malformed) {
        let request = self.take_oldest(slot);
        self.end_one(slot, request, |client, times| {
            client.tally.fail_malformed(malformed, times.intended_ns);
            Ended::failed(Failure::Malformed)
        });
        self.fail_all(slot, Failure::ClosedEarly);
        self.note(slot, Phase::Broken);
    }

    /// A response is complete.
    #[inline]
    fn complete(&mut self, slot: usize, response: Response) {
        let request = self.take_oldest(slot);
        let is_right_content = self.partials.is_right_content(self.slots[slot].partial);
        self.end_one(slot, request, |client, times| Ended {
            failure: client.tally.complete(response, is_right_content, times),
            status: response.status,
            body_bytes: response.body_bytes,
            keep_alive: response.keep_alive,
        });
        let place = &mut self.slots[slot];
        self.partials.release(&mut place.partial);
        let is_last = place.turns >= self.plan.turns && place.under_way == 0;
        if is_last && self.plan.ending == Ending::Reset {
            self.note(slot, Phase::Broken);
        } else if !response.keep_alive {
            place.phase = Phase::Closing;
            if place.under_way > 0 {
                self.fail_all(slot, Failure::ClosedEarly);
            }
        } else if is_last {
            self.note(slot, Phase::Done);
        } else {
            self.note(slot, Phase::Open);
        }
    }

    /// What a connection does next that is open and may have room for a request.
    fn go_on(&mut self, slot: usize, stack: &mut impl ClientStack) {
        if std::mem::take(&mut self.slots[slot].owes) {
            self.outstanding -= 1;
            self.send(slot, self.slots[slot].intended_ns, stack);
        }
        if self.plan.rate.is_some() {
            let place = &mut self.slots[slot];
            if !place.queued && self.has_room(slot) {
                let place = &mut self.slots[slot];
                place.queued = true;
                self.servers[usize::from(place.server)].idle.push_back(slot as u32);
            }
            return;
        }
        while self.has_room(slot) {
            if !self.exhausted && self.delay(slot) {
                return;
            }
            if !self.take_ticket(self.now_ns) {
                if self.slots[slot].under_way == 0 {
                    self.leave(slot);
                    self.end(slot, false, stack);
                }
                return;
            }
            self.send(slot, self.now_ns, stack);
        }
    }

    /// Whether the slot's next request waits, as the script says.
    fn delay(&mut self, slot: usize) -> bool {
        let Some(scripted) = self.script.as_mut().filter(|scripted| scripted.delays) else {
            return false;
        };
        let asked = scripted.script.delay();
        let delay_ns = scripted.or_stop(asked, std::time::Duration::ZERO).as_nanos() as u64;
        if delay_ns > 0 {
            scripted.delayed.push(Reverse((self.now_ns.saturating_add(delay_ns), slot as u32)));
            self.slots[slot].delayed = true;
        }
        delay_ns > 0
    }

    fn wake_the_delayed(&mut self, stack: &mut impl ClientStack) {
        while let Some(scripted) = &mut self.script
            && let Some(Reverse((due_ns, slot))) = scripted.delayed.peek().copied()
            && due_ns <= self.now_ns
        {
            scripted.delayed.pop();
            let slot = slot as usize;
            // Another connection may have the slot by now: it waits for nothing.
            if !std::mem::take(&mut self.slots[slot].delayed) || !self.has_room(slot) {
                continue;
            }
            if self.take_ticket(self.now_ns) {
                self.send(slot, self.now_ns, stack);
            }
            self.note(slot, Phase::Open);
        }
    }

    /// Ends a connection that has left.
    fn end(&mut self, slot: usize, with_reset: bool, stack: &mut impl ClientStack) {
        end(stack, slot, with_reset);
        self.gone(slot, stack);
    }

    fn gone<C: ClientStack>(&mut self, slot: usize, _: &C) {
        if C::GONE_AT_ONCE {
            self.slots[slot].phase = Phase::Free;
        }
    }

    fn attend_to_the_noted(&mut self, stack: &mut impl ClientStack) {
        let mut at = 0;
        // Going on may note more.
        while at < self.noted.len() {
            let slot = self.noted[at] as usize;
            at += 1;
            self.slots[slot].noted = false;
            match self.slots[slot].phase {
                Phase::Open => self.go_on(slot, stack),
                phase @ (Phase::Done | Phase::Broken) => {
                    self.leave(slot);
                    self.end(slot, phase == Phase::Broken, stack);
                }
                _ => {}
            }
        }
        self.noted.clear();
    }

    /// Open loop: requests whose time has come, as far as there are connections for them.
    fn send_what_is_due(&mut self, stack: &mut impl ClientStack) {
        let begin_ns = self.tally.begin_ns();
        if self.plan.rate.is_none() || begin_ns > self.now_ns {
            return;
        }
        let until_ns = (self.now_ns + 1).min(self.tally.end_ns());
        for server in 0..self.servers.len() {
            while let Some(due_ns) = self.next_due_ns(server, begin_ns)
                && due_ns < until_ns
                && !self.exhausted
            {
                let on_demand = self.opening.on_demand();
                let slot = if on_demand { None } else { self.take_idle(server, until_ns) };
                if !on_demand && slot.is_none() || on_demand && !self.opening.has_vacancy(server, until_ns) {
                    break;
                }
                if !self.take_ticket(due_ns) {
                    break;
                }
                if let Some(schedule) = &mut self.servers[server].schedule {
                    schedule.take();
                }
                match slot {
                    Some(slot) => {
                        self.send(slot, due_ns, stack);
                        self.note(slot, self.slots[slot].phase);
                    }
                    None => {
                        let since_ns = self.opening.take_vacancy(server);
                        self.promised_ns.push(due_ns.max(since_ns));
                        self.connect(server, Some(due_ns), stack);
                    }
                }
            }
        }
    }

    #[inline]
    fn next_due_ns(&self, server: usize, begin_ns: u64) -> Option<u64> {
        Some(begin_ns.saturating_add(self.servers[server].schedule.as_ref()?.next_ns()))
    }

    /// The connection that has been idle longest. After the run's end, and so for a loop that comes a little late, it must
    /// have been so before: what waits for a connection then has waited in vain.
    fn take_idle(&mut self, server: usize, before_ns: u64) -> Option<usize> {
        while let Some(slot) = self.servers[server].idle.pop_front() {
            let slot = slot as usize;
            self.slots[slot].queued = false;
            if usize::from(self.slots[slot].server) == server
                && self.slots[slot].since_ns < before_ns
                && self.has_room(slot)
            {
                return Some(slot);
            }
        }
        None
    }

    /// Begins the connections that are wanted, while there are requests left.
    fn open_connections(&mut self, stack: &mut impl ClientStack) {
        if !self.is_running() {
            return;
        }
        self.opening.proceed(self.now_ns);
        if self.opening.on_demand() {
            return;
        }
        while let Some(server) = self.opening.next() {
            // In a closed loop a connection is made for a request.
            let owed = if self.plan.rate.is_none() {
                if !self.take_ticket(self.now_ns) {
                    continue;
                }
                Some(self.now_ns)
            } else {
                None
            };
            self.connect(server, owed, stack);
        }
        if self.opening.is_complete() && !self.tally.is_ready() {
            self.tally.ready(self.now_ns);
        }
    }

    /// Begins a connection, for a request that was due then if there is one already.
    fn connect(&mut self, server: usize, intended_ns: Option<u64>, stack: &mut impl ClientStack) {
        let slot = match stack.connect(server) {
            Ok(slot) => slot,
            Err(why) => {
                self.tally.record.explain(why.of_connect_in_words());
                match intended_ns {
                    Some(intended_ns) => self.tally.fail(why.of_connect(), intended_ns),
                    None => self.fail_the_next(server, why.of_connect()),
                }
                self.opening.refused(server, self.now_ns);
                return;
            }
        };
        if slot >= self.slots.len() {
            self.slots.resize((slot + 1).max(self.slots.len() * 5 / 4), Slot::FREE);
        }
        self.opening.begun();
        self.live += 1;
        self.outstanding += usize::from(intended_ns.is_some());
        self.outgoing.begin(slot);
        let (noted, queued) = (self.slots[slot].noted, self.slots[slot].queued);
        self.slots[slot] = Slot {
            intended_ns: intended_ns.unwrap_or_default(),
            since_ns: self.now_ns,
            server: server as u16,
            phase: Phase::Connecting,
            owes: intended_ns.is_some(),
            noted,
            queued,
            ..Slot::FREE
        };
    }

    /// Open loop: a connection that was to be kept could not be made. A request that is due fails with it: the one that it
    /// would have carried.
    fn fail_the_next(&mut self, server: usize, failure: Failure) {
        let begin_ns = self.tally.begin_ns();
        if let Some(due_ns) = self.next_due_ns(server, begin_ns)
            && due_ns <= self.now_ns
            && due_ns < self.tally.end_ns()
            && self.take_ticket(due_ns)
        {
            if let Some(schedule) = &mut self.servers[server].schedule {
                schedule.take();
            }
            self.tally.fail(failure, due_ns);
        }
    }

    /// A connection could not be made.
    fn fail_connect(&mut self, slot: usize, failure: Failure) {
        if self.slots[slot].owes {
            self.fail_all(slot, failure);
        } else {
            self.fail_the_next(usize::from(self.slots[slot].server), failure);
        }
        self.leave(slot);
    }

    /// Fails what has taken too long. Of many connections some at a time: nobody waits for a look at a million.
    fn fail_the_late(&mut self, stack: &mut impl ClientStack) {
        if self.now_ns < self.next_scan_ns {
            return;
        }
        let slots = self.slots.len().max(1);
        let count = slots.min(SLOTS_AT_ONCE);
        self.next_scan_ns = self.now_ns + self.scan_every_ns * count as u64 / slots as u64;
        for _ in 0..count {
            self.scanned = if self.scanned + 1 < self.slots.len() { self.scanned + 1 } else { 0 };
            let slot = self.scanned;
            let Some(place) = self.slots.get(slot) else { return };
            if self.now_ns.saturating_sub(place.since_ns) < self.plan.timeout_ns {
                continue;
            }
            match place.phase {
                Phase::Connecting => {
                    self.tally.record.explain(reason::LATE);
                    self.fail_connect(slot, Failure::ConnectTimeout);
                }
                Phase::Open if place.under_way > 0 => {
                    self.fail_all(slot, Failure::Timeout);
                    self.leave(slot);
                }
                Phase::Closing => self.leave(slot),
                _ => continue,
            }
            self.end(slot, true, stack);
        }
    }

    /// Whether requests are begun: the schedule, or the loop, has not come to its end.
    fn is_running(&self) -> bool {
        self.now_ns < self.tally.end_ns() && !(self.exhausted && self.plan.rate.is_some())
    }

    /// Counts what an open loop never sent.
    fn count_unsent(&mut self) {
        let begin_ns = self.tally.begin_ns();
        let until_ns = self.tally.end_ns().min(self.now_ns);
        if begin_ns >= until_ns || self.exhausted {
            return;
        }
        let measured_ns = self.tally.measure_ns() - begin_ns;
        for server in &mut self.servers {
            if let Some(schedule) = &mut server.schedule {
                schedule.skip_until(measured_ns);
                self.tally.record.unsent += schedule.skip_until(until_ns - begin_ns);
            }
        }
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy)]
struct Ended {
    failure: Option<Failure>,
    status: u16,
    body_bytes: u64,
    keep_alive: bool,
}

impl Ended {
    fn failed(failure: Failure) -> Ended {
        Ended { failure: Some(failure), status: 0, body_bytes: 0, keep_alive: false }
    }
}

fn end(stack: &mut impl ClientStack, slot: usize, with_reset: bool) {
    if with_reset { stack.reset(slot) } else { stack.close(slot) }
}

fn servers_of(plan: &Plan, settings: &Settings, index: usize) -> Vec<Server> {
    let weights = plan.weights();
    let mut lanes = lanes(index, plan.threads, &weights).into_iter();
    let template = |request: &super::plan::Request| Template {
        usual: Rc::from(&*request.bytes),
        last: Rc::from(&*request.last),
    };
    let server = |(number, server): (usize, &super::plan::Server)| {
        let order = server.order();
        let lane = lanes.next().flatten();
        let number = (index * weights.len() + number) as u64;
        let schedule = plan.rate.as_ref().zip(lane);
        Server {
            requests: server.requests.iter().map(template).collect(),
            // Threads do not walk in step.
            turn: index % order.len().max(1),
            order,
            schedule: schedule.map(|(rate, lane)| Schedule::new(rate, settings.warmup, lane, number)),
            idle: VecDeque::new(),
        }
    };
    plan.servers.iter().enumerate().map(server).collect()
}

impl Party for Client<'_> {
    #[inline]
    fn tell(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    fn goes_on(&mut self) -> bool {
        let has_time = self.tally.goes_on(self.now_ns);
        if self.plan.rate.is_some() {
            let is_running = has_time && self.is_running();
            // A loop that comes late has a last round for what was due before the end.
            let is_last_round = !is_running && !std::mem::replace(&mut self.had_last_round, !is_running);
            return !self.tally.is_given_up() && (is_running || is_last_round || self.outstanding > 0);
        }
        has_time && (!self.exhausted || self.live > 0)
    }

    fn opened(&mut self, slot: usize) {
        let place = &mut self.slots[slot];
        let begun_ns = place.since_ns;
        place.since_ns = self.now_ns;
        if self.plan.rate.is_none() && self.plan.turns > 1 {
            // The connection is for many requests: it is not the first one's.
            place.intended_ns = self.now_ns;
        }
        self.opening.opened();
        self.tally.opened(self.now_ns.saturating_sub(begun_ns));
        self.note(slot, Phase::Open);
    }

    #[inline]
    fn received(&mut self, slot: usize, data: &[u8]) {
        let place = &mut self.slots[slot];
        if place.phase != Phase::Open || place.under_way == 0 {
            place.tainted = true;
            return;
        }
        self.tally.record.bytes_in += data.len() as u64;
        let mut rest = data;
        while !rest.is_empty() {
            let place = &mut self.slots[slot];
            let progress =
                self.partials.feed(&mut place.partial, rest, place.no_content, self.now_ns, &mut self.cache);
            match progress {
                Ok(Progress::More) => break,
                Ok(Progress::Complete { used, .. }) if used < rest.len() && place.under_way == 1 => {
                    self.fail_malformed(slot, Malformed::Unsolicited);
                    break;
                }
                Ok(Progress::Complete { used, response }) => {
                    self.complete(slot, response);
                    rest = &rest[used..];
                    if self.slots[slot].under_way == 0 {
                        break;
                    }
                }
                Err(malformed) => {
                    self.fail_malformed(slot, malformed);
                    break;
                }
            }
        }
    }

    fn ended(&mut self, slot: usize) {
        self.note_closed_by_server(slot);
        match self.slots[slot].phase {
            Phase::Closing => {}
            Phase::Open => {
                if self.slots[slot].under_way > 0
                    && let Some(response) = self.partials.finish(self.slots[slot].partial)
                {
                    self.complete(slot, response);
                }
                self.fail_all(slot, Failure::ClosedEarly);
            }
            _ => return,
        }
        self.note(slot, Phase::Done);
    }

    fn failed(&mut self, slot: usize, why: Why) {
        match self.slots[slot].phase {
            Phase::Connecting => {
                self.tally.record.explain(why.of_connect_in_words());
                self.fail_connect(slot, why.of_connect());
            }
            Phase::Free | Phase::Dying => {}
            _ => {
                if why == Why::Reset {
                    self.note_closed_by_server(slot);
                }
                self.fail_all(slot, why.of_request());
                self.leave(slot);
            }
        }
    }

    fn released(&mut self, slot: usize) {
        if !matches!(self.slots[slot].phase, Phase::Dying | Phase::Free) {
            self.leave(slot);
        }
        self.slots[slot].phase = Phase::Free;
    }

    #[inline]
    fn stream(&self, slot: usize, offset: u64) -> &[u8] {
        self.outgoing.from(slot, usize::from(self.slots[slot].server), offset)
    }

    #[inline]
    fn acknowledged(&mut self, slot: usize, offset: u64) {
        self.outgoing.acknowledged(slot, offset);
    }

    #[inline]
    fn proceed(&mut self, stack: &mut impl ClientStack) -> Result<(), Error> {
        self.attend_to_the_noted(stack);
        self.wake_the_delayed(stack);
        self.send_what_is_due(stack);
        self.open_connections(stack);
        self.fail_the_late(stack);
        // What became of these may want to go on at once.
        self.attend_to_the_noted(stack);
        match self.script.as_mut().and_then(|script| script.failed.take()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn next_ns(&self) -> u64 {
        let begin_ns = self.tally.begin_ns();
        let delayed = |script: &Scripted| script.delayed.peek().map(|Reverse((due_ns, _))| *due_ns);
        let delayed_ns = self.script.as_ref().and_then(delayed).unwrap_or(u64::MAX);
        let could_send = |server: &usize| {
            self.is_running()
                && (!self.servers[*server].idle.is_empty() || self.opening.has_vacancy(*server, u64::MAX))
        };
        let due = (0..self.servers.len()).filter(could_send).filter_map(|s| self.next_due_ns(s, begin_ns));
        let due_ns = due.min().filter(|due_ns| *due_ns < self.tally.end_ns()).unwrap_or(u64::MAX);
        // While others make their connections the beginning may come at any time.
        let begin_ns = if begin_ns == u64::MAX { self.now_ns + 200_000 } else { u64::MAX };
        let change_ns = self.tally.next_change_ns();
        let change_ns = if change_ns > self.now_ns { change_ns } else { u64::MAX };
        [delayed_ns, due_ns, begin_ns, change_ns, self.next_scan_ns, self.opening.next_ns()]
            .into_iter()
            .min()
            .unwrap_or(u64::MAX)
    }

    #[inline]
    fn flushed(&mut self, clock: impl FnOnce() -> u64) {
        if self.promised_ns.is_empty() {
            return;
        }
        let now_ns = clock();
        for due_ns in self.promised_ns.drain(..) {
            if self.tally.counts(due_ns) {
                self.tally.record.send_lag_ns.saturating_record(now_ns.saturating_sub(due_ns).max(1));
            }
        }
    }

    #[inline]
    fn was_busy(&mut self, ns: u64) {
        self.tally.record.busy_ns += ns;
    }

    fn stop(&mut self, now_ns: u64, stack: &mut impl ClientStack) {
        self.now_ns = now_ns;
        self.count_unsent();
        self.tally.stop(now_ns);
        self.noted.clear();
        for slot in 0..self.slots.len() {
            if !matches!(self.slots[slot].phase, Phase::Free | Phase::Dying) {
                self.leave(slot);
                self.end(slot, true, stack);
            }
        }
    }

    fn into_outcome(self, counters: BTreeMap<String, u64>) -> Outcome {
        self.tally.into_outcome(counters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_connections_cost_forty_bytes_each() {
        assert!(size_of::<Slot>() <= 40, "{} bytes", size_of::<Slot>());
    }
}

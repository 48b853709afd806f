//! Clients that a server would rather not have: they hold connections and give, or take, as little as they can.
//!
//! Each of `-c` connections is held until the server drops it, and is then made anew. What is measured is the server: what it
//! answers, how it drops us, and how long that takes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::opening::Opening;
use super::party::{ClientStack, Party, Why};
use super::plan::Plan;
use super::report::Report;
use super::tally::{Outcome, Tally};
use super::{Settings, Target};
use crate::error::Error;
use crate::record::Failure;

/// Content that a request promises and never ends, in bytes.
const ENDLESS: u64 = 1 << 40;
/// Bytes that a slow reader takes at a time.
const SIP: usize = 256;

/// What kind of client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hostility {
    /// Sends SYNs and never answers what they bring: the server's connections stay half open. User-level links only.
    HalfOpen,
    /// Connects and says nothing.
    ConnectOnly,
    /// Sends a request whose head never ends: a field now and then.
    SlowHeaders,
    /// Sends a request whose content never ends: a byte now and then.
    SlowBody,
    /// Asks, and takes the response a few bytes now and then.
    SlowReader,
    /// Asks, and takes nothing of the response.
    NeverRead,
}

impl Hostility {
    /// Every kind.
    pub const ALL: [Hostility; 6] = [
        Hostility::HalfOpen,
        Hostility::ConnectOnly,
        Hostility::SlowHeaders,
        Hostility::SlowBody,
        Hostility::SlowReader,
        Hostility::NeverRead,
    ];

    /// The name used on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Hostility::HalfOpen => "half-open",
            Hostility::ConnectOnly => "connect-only",
            Hostility::SlowHeaders => "slow-headers",
            Hostility::SlowBody => "slow-body",
            Hostility::SlowReader => "slow-reader",
            Hostility::NeverRead => "never-read",
        }
    }

    /// What a connection sends: at once, and then again and again.
    fn stream(self, settings: &Settings, target: &Target) -> (Vec<u8>, Vec<u8>) {
        let whole = settings.request(target, false);
        let without_end = &whole[..whole.windows(4).position(|end| end == b"\r\n\r\n").unwrap_or(0) + 2];
        match self {
            Hostility::HalfOpen | Hostility::ConnectOnly => (Vec::new(), Vec::new()),
            Hostility::SlowHeaders => (without_end.to_vec(), b"X-Slow: 1\r\n".to_vec()),
            Hostility::SlowBody => {
                let length = format!("Content-Length: {ENDLESS}\r\n\r\n");
                ([without_end, length.as_bytes()].concat(), b"x".to_vec())
            }
            Hostility::SlowReader | Hostility::NeverRead => (whole, Vec::new()),
        }
    }

    /// Whether it acts now and then, and not only once.
    fn is_slow(self) -> bool {
        matches!(self, Hostility::SlowHeaders | Hostility::SlowBody | Hostility::SlowReader)
    }
}

/// How the server has borne with us.
#[derive(Debug, Default)]
struct Borne {
    opened: u64,
    closed: u64,
    reset: u64,
    held: u64,
    /// Frames that nobody listened to.
    unheard: u64,
    /// Connections that were begun.
    begun: u64,
    /// By status: connections that the server answered.
    answered: BTreeMap<u16, u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Free,
    Connecting,
    Open,
    /// The server has ended it.
    Over,
    Dying,
}

#[derive(Debug, Clone)]
struct Slot {
    phase: Phase,
    server: usize,
    since_ns: u64,
    /// Tells connections that have the same slot one after the other apart.
    turn: u32,
    answered: bool,
}

const FREE: Slot = Slot { phase: Phase::Free, server: 0, since_ns: 0, turn: 0, answered: false };

/// One thread's hostile connections.
pub(crate) struct Hostile<'a> {
    tally: Tally<'a>,
    kind: Hostility,
    interval_ns: u64,
    timeout_ns: u64,
    /// By server: what is sent at once, and what again and again.
    streams: Vec<(Vec<u8>, Vec<u8>)>,
    slots: Vec<Slot>,
    opening: Opening,
    /// Slots to begin with, to go on with when their time has come, and to end.
    opened: Vec<usize>,
    due: VecDeque<(u64, usize, u32)>,
    over: Vec<usize>,
    /// Connections that are being made, the oldest first.
    connecting: VecDeque<(u64, usize, u32)>,
    borne: Borne,
    now_ns: u64,
}

impl<'a> Hostile<'a> {
    pub(crate) fn new(
        settings: &Settings,
        kind: Hostility,
        plan: &Plan,
        index: usize,
        tally: Tally<'a>,
    ) -> Hostile<'a> {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Hostile {
            tally,
            kind,
            interval_ns: ns(settings.hostile_interval),
            timeout_ns: plan.timeout_ns,
            streams: settings.servers().iter().map(|target| kind.stream(settings, target)).collect(),
            slots: Vec::new(),
            opening: Opening::new(plan.share(settings.connections_of(index)), false),
            opened: Vec::new(),
            due: VecDeque::new(),
            over: Vec::new(),
            connecting: VecDeque::new(),
            borne: Borne::default(),
            now_ns: 0,
        }
    }

    /// The server has dropped a connection.
    fn dropped(&mut self, slot: usize) {
        let borne_ns = self.now_ns.saturating_sub(self.slots[slot].since_ns);
        self.tally.record.latency_ns.saturating_record(borne_ns.max(1));
        self.leave(slot);
    }

    fn leave(&mut self, slot: usize) {
        self.tally.closed();
        self.opening.vacate(self.slots[slot].server, self.now_ns);
        self.slots[slot].phase = Phase::Dying;
    }

    fn fail_connect(&mut self, slot: usize, failure: Failure) {
        self.tally.fail(failure, self.now_ns);
        self.opening.failed(self.slots[slot].server, self.now_ns);
        self.slots[slot].phase = Phase::Dying;
    }

    fn end(&mut self, slot: usize, with_reset: bool, stack: &mut impl ClientStack) {
        if with_reset {
            stack.reset(slot);
        } else {
            stack.close(slot);
        }
        self.gone(slot, stack);
    }

    fn gone<C: ClientStack>(&mut self, slot: usize, _: &C) {
        if C::GONE_AT_ONCE {
            self.slots[slot].phase = Phase::Free;
        }
    }

    fn begin(&mut self, slot: usize, stack: &mut impl ClientStack) {
        let (first, _) = &self.streams[self.slots[slot].server];
        if !first.is_empty() {
            stack.send(slot, first.len());
            self.tally.sent(self.now_ns, first.len());
        }
        if self.kind.is_slow() {
            self.due.push_back((self.now_ns + self.interval_ns, slot, self.slots[slot].turn));
        }
    }

    /// The slow ones do a little more.
    fn go_on(&mut self, stack: &mut impl ClientStack) {
        while let Some((due_ns, slot, turn)) = self.due.front().copied()
            && due_ns <= self.now_ns
        {
            self.due.pop_front();
            let place = &self.slots[slot];
            if place.phase != Phase::Open || place.turn != turn {
                continue;
            }
            if self.kind == Hostility::SlowReader {
                stack.consumed(slot, SIP);
            } else {
                let (_, more) = &self.streams[place.server];
                stack.send(slot, more.len());
                self.tally.record.bytes_out += more.len() as u64;
            }
            self.due.push_back((self.now_ns + self.interval_ns, slot, turn));
        }
    }

    fn connect(&mut self, server: usize, stack: &mut impl ClientStack) {
        let slot = match stack.connect(server) {
            Ok(slot) => slot,
            Err(why) => {
                self.tally.fail(why.of_connect(), self.now_ns);
                self.opening.refused(server, self.now_ns);
                return;
            }
        };
        if slot >= self.slots.len() {
            self.slots.resize(slot + 1, FREE);
        }
        let turn = self.slots[slot].turn.wrapping_add(1);
        self.slots[slot] = Slot { phase: Phase::Connecting, server, since_ns: self.now_ns, turn, ..FREE };
        self.connecting.push_back((self.now_ns, slot, turn));
        self.opening.begun();
        self.borne.begun += 1;
    }

    fn fail_the_late(&mut self, stack: &mut impl ClientStack) {
        while let Some((begun_ns, slot, turn)) = self.connecting.front().copied()
            && self.now_ns.saturating_sub(begun_ns) >= self.timeout_ns
        {
            self.connecting.pop_front();
            if self.slots[slot].phase == Phase::Connecting && self.slots[slot].turn == turn {
                // Half open is all that it was to be.
                if self.kind == Hostility::HalfOpen {
                    self.opening.failed(self.slots[slot].server, self.now_ns);
                    self.slots[slot].phase = Phase::Dying;
                    self.tally.record.succeeded += 1;
                } else {
                    self.fail_connect(slot, Failure::ConnectTimeout);
                }
                self.end(slot, true, stack);
            }
        }
    }
}

impl Party for Hostile<'_> {
    fn tell(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    fn goes_on(&mut self) -> bool {
        self.tally.goes_on(self.now_ns)
    }

    fn opened(&mut self, slot: usize) {
        let place = &mut self.slots[slot];
        self.tally.opened(self.now_ns.saturating_sub(place.since_ns));
        self.tally.record.succeeded += 1;
        self.opening.opened();
        self.borne.opened += 1;
        place.phase = Phase::Open;
        place.since_ns = self.now_ns;
        self.opened.push(slot);
    }

    fn is_deaf(&self) -> bool {
        self.kind == Hostility::HalfOpen
    }

    fn unheard(&mut self, frames: u64) {
        self.borne.unheard += frames;
    }

    fn reads(&self) -> bool {
        !matches!(self.kind, Hostility::SlowReader | Hostility::NeverRead)
    }

    fn received(&mut self, slot: usize, data: &[u8]) {
        self.tally.record.bytes_in += data.len() as u64;
        let place = &mut self.slots[slot];
        if place.phase == Phase::Open && !place.answered {
            place.answered = true;
            // `HTTP/1.1 408`
            let status = data.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
            *self.borne.answered.entry(status.unwrap_or(0)).or_insert(0) += 1;
        }
    }

    fn ended(&mut self, slot: usize) {
        if self.slots[slot].phase == Phase::Open {
            self.slots[slot].phase = Phase::Over;
            self.over.push(slot);
        }
    }

    fn failed(&mut self, slot: usize, why: Why) {
        match self.slots[slot].phase {
            Phase::Connecting => self.fail_connect(slot, why.of_connect()),
            Phase::Open | Phase::Over => {
                self.borne.reset += 1;
                self.dropped(slot);
            }
            Phase::Free | Phase::Dying => {}
        }
    }

    fn released(&mut self, slot: usize) {
        if matches!(self.slots[slot].phase, Phase::Open | Phase::Over) {
            self.leave(slot);
        }
        self.slots[slot].phase = Phase::Free;
    }

    fn stream(&self, slot: usize, offset: u64) -> &[u8] {
        let (first, more) = &self.streams[self.slots[slot].server];
        match (offset as usize).checked_sub(first.len()) {
            None => &first[offset as usize..],
            Some(at) => more.get(at.checked_rem(more.len()).unwrap_or(0)..).unwrap_or_default(),
        }
    }

    fn acknowledged(&mut self, _: usize, _: u64) {}

    fn proceed(&mut self, stack: &mut impl ClientStack) -> Result<(), Error> {
        for slot in std::mem::take(&mut self.opened) {
            if self.slots[slot].phase == Phase::Open {
                self.begin(slot, stack);
            }
        }
        for slot in std::mem::take(&mut self.over) {
            if self.slots[slot].phase == Phase::Over {
                self.borne.closed += 1;
                self.dropped(slot);
                self.end(slot, false, stack);
            }
        }
        self.go_on(stack);
        self.fail_the_late(stack);
        self.opening.proceed(self.now_ns);
        while let Some(server) = self.opening.next() {
            self.connect(server, stack);
        }
        Ok(())
    }

    fn next_ns(&self) -> u64 {
        let due_ns = self.due.front().map_or(u64::MAX, |(due_ns, ..)| *due_ns);
        let late_ns = self.connecting.front().map_or(u64::MAX, |(ns, ..)| ns.saturating_add(self.timeout_ns));
        due_ns.min(late_ns).min(self.opening.next_ns()).min(self.tally.next_change_ns())
    }

    fn flushed(&mut self, _: impl FnOnce() -> u64) {}

    fn was_busy(&mut self, ns: u64) {
        self.tally.record.busy_ns += ns;
    }

    fn stop(&mut self, now_ns: u64, stack: &mut impl ClientStack) {
        self.now_ns = now_ns;
        self.tally.stop(now_ns);
        for slot in 0..self.slots.len() {
            match self.slots[slot].phase {
                Phase::Open | Phase::Over => {
                    self.borne.held += 1;
                    self.leave(slot);
                }
                Phase::Connecting => self.slots[slot].phase = Phase::Dying,
                Phase::Free | Phase::Dying => continue,
            }
            self.end(slot, true, stack);
        }
    }

    fn into_outcome(self, mut counters: BTreeMap<String, u64>) -> Outcome {
        let borne = &self.borne;
        let counts = [
            ("begun", borne.begun),
            ("unheard_frames", borne.unheard),
            ("opened", borne.opened),
            ("closed_by_server", borne.closed),
            ("reset_by_server", borne.reset),
            ("held", borne.held),
        ];
        for (name, count) in counts {
            counters.insert(format!("hostile.{name}"), count);
        }
        for (status, count) in &borne.answered {
            counters.insert(format!("hostile.answered_{status}"), *count);
        }
        self.tally.into_outcome(counters)
    }
}

/// What the server did, in a sentence.
pub(super) fn verdict(kind: Hostility, report: &Report) -> String {
    let count = |name: &str| report.counters.get(&format!("hostile.{name}")).copied().unwrap_or(0);
    let (closed, reset) = (count("closed_by_server"), count("reset_by_server"));
    if kind == Hostility::HalfOpen {
        let replies = count("unheard_frames");
        return format!(
            "{} connections were begun; {replies} answers to them were left unheard.",
            count("begun")
        );
    }
    let mut text = format!(
        "Of {} {} connections the server closed {closed} and reset {reset}; {} were held to the end.",
        count("opened"),
        kind.name(),
        count("held")
    );
    if closed + reset > 0 {
        let s = |quantile| report.record.latency_ns.value_at_quantile(quantile) as f64 * 1e-9;
        text += &format!(" It bore with one for {:.2} s (median), {:.2} s at most.", s(0.5), s(1.0));
    }
    let answers = report.counters.iter().filter_map(|(name, count)| {
        Some(format!("{} {count} times", name.strip_prefix("hostile.answered_")?))
    });
    let answers: Vec<String> = answers.collect();
    if !answers.is_empty() {
        text += &format!(" It answered {}.", answers.join(", "));
    }
    text
}

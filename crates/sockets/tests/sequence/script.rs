//! Sequences of calls: how they are written, and how a seed makes one.

use std::collections::BTreeMap;
use std::fmt;

mod kinds;
mod processes;

use kinds::Kinds;

/// Where the two ends of a sequence are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Two hosts; only `L` is accelerated.
    V4,
    V6,
    /// One host; both ends are accelerated.
    Host,
}

const PLACES: [(&str, Place); 3] = [("v4", Place::V4), ("v6", Place::V6), ("host", Place::Host)];

/// What one actor does.
///
/// Actors are side `L`'s first thread, `M`, a second one, and `C`, a child, and `E`, another child or the child's; `R`, `S`, `D` and `F`
/// are side `R`'s. `-` is nobody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) actor: char,
    /// The word and its arguments, as `programs/sequences.c` takes them.
    pub(crate) words: String,
}

impl Step {
    pub(crate) fn new(actor: char, words: impl Into<String>) -> Step {
        Step { actor, words: words.into() }
    }

    pub(crate) fn word(&self) -> &str {
        self.words.split(' ').next().unwrap_or_default()
    }

    /// Whether it sends urgent data.
    pub(crate) fn is_urgent(&self) -> bool {
        self.word() == "send" && self.words.split(' ').next_back().is_some_and(|flags| flags.contains('o'))
    }

    /// Whether the call may wait for something that only another step does.
    pub(crate) fn may_block(&self) -> bool {
        match self.word() {
            "poll" | "poll2" | "select" | "wait" | "ppoll" | "pselect" | "pwait" => self.words.ends_with('-'),
            "fill" => false,
            // MSG_DONTWAIT
            "recv" | "recvfrom" | "recvmsg" | "recvmmsg" | "send" | "sendto" | "sendmsg" | "sendmmsg"
                if self.words.split(' ').next_back().is_some_and(|flags| flags.contains('d')) =>
            {
                false
            }
            word => self.reads() || self.writes() || matches!(word, "connect" | "leave" | "dup2" | "dup3"),
        }
    }

    /// Whether it takes what another reader would get.
    fn reads(&self) -> bool {
        matches!(self.word(), "recv" | "recvfrom" | "readv" | "recvmsg" | "recvmmsg" | "splice" | "accept")
    }

    fn writes(&self) -> bool {
        matches!(
            self.word(),
            "send" | "sendto" | "writev" | "sendmsg" | "sendmmsg" | "sendfile" | "sendpipe" | "fill"
        )
    }

    /// Whether it is chance which of the two, if both wait, goes on.
    pub(crate) fn competes_with(&self, other: &Step) -> bool {
        self.side() == other.side()
            && (self.reads() && other.reads()
                || self.writes() && other.writes()
                || self.waits_in_a_set() && other.waits_in_a_set())
    }

    fn waits_in_a_set(&self) -> bool {
        matches!(self.word(), "wait" | "pwait")
    }

    fn side(&self) -> char {
        side_of(self.actor)
    }

    /// Who a fork makes: `fork` or `fork E`.
    pub(crate) fn child(&self) -> char {
        let otherwise = if self.side() == 'L' { 'C' } else { 'D' };
        self.words.split(' ').nth(1).and_then(|name| name.parse().ok()).unwrap_or(otherwise)
    }
}

pub(crate) fn side_of(actor: char) -> char {
    if "LMCE".contains(actor) { 'L' } else { 'R' }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.actor, self.words)
    }
}

/// A sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    pub(crate) place: Place,
    pub(crate) steps: Vec<Step>,
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, _) = PLACES.iter().find(|(_, place)| *place == self.place).unwrap_or(&PLACES[0]);
        writeln!(f, "{name}")?;
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

impl Script {
    /// As [`fmt::Display`] writes it.
    pub(crate) fn parse(text: &str) -> Option<Script> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let name = lines.next()?;
        let (_, place) = PLACES.iter().find(|(its, _)| *its == name)?;
        let step = |line: &str| {
            let (actor, words) = line.split_once(' ')?;
            Some(Step::new(actor.chars().next()?, words))
        };
        Some(Script { place: *place, steps: lines.map(step).collect::<Option<_>>()? })
    }

    /// The sequence of a seed.
    pub(crate) fn generate(seed: u64) -> Script {
        let mut story = Story::new(seed);
        story.begin();
        for _ in 0..8 + story.random.below(20) {
            story.go_on();
        }
        Script { place: place_of(seed), steps: story.steps }
    }
}

fn place_of(seed: u64) -> Place {
    PLACES[(seed % 3) as usize].1
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn of<T: Copy>(&mut self, choice: &[T]) -> T {
        choice[self.below(choice.len())]
    }
}

/// What a descriptor probably is: a guess, so that most calls meet what they are meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Fresh,
    Bound,
    Listener,
    Connection,
    Epoll,
    Closed,
}

use Kind::{Bound, Closed, Connection, Epoll, Fresh, Listener};

/// A sequence as it comes to be.
struct Story {
    random: Random,
    steps: Vec<Step>,
    /// The descriptors of each process, by the actor that is its first thread.
    slots: BTreeMap<char, BTreeMap<char, Kind>>,
    actors: Vec<char>,
    /// The next port of each side, to listen at.
    ports: [u8; 2],
    /// Whether both ends are in one host.
    within_host: bool,
    /// What it is about besides.
    kinds: Kinds,
    actions: Vec<(usize, Action)>,
    /// Sides that have filled a connection's queues: the other one reads until nothing comes, as how much comes is not compared.
    filled: String,
}

type Action = fn(&mut Story, char);

/// What an actor does next, and how often.
const ACTIONS: [(usize, Action); 31] = [
    (12, Story::send),
    (4, Story::writev),
    (2, Story::sendmsg),
    (14, Story::recv),
    (3, Story::readv),
    (3, Story::recvmsg),
    (5, Story::shutdown),
    (5, Story::close),
    (2, Story::dup),
    (2, Story::nonblock),
    (9, Story::poll),
    (3, Story::epoll),
    (7, Story::ctl),
    (9, Story::wait),
    (9, Story::look),
    (4, Story::set),
    (2, Story::patient),
    (3, Story::socket),
    (2, Story::bind),
    (2, Story::listen),
    (4, Story::connect),
    (4, Story::accept),
    (1, Story::unconnect),
    (1, Story::fill),
    (3, Story::multiply),
    (4, Story::send_otherwise),
    (3, Story::receive_otherwise),
    (4, Story::wait_otherwise),
    (3, Story::kick),
    (2, Story::pass_on),
    (1, Story::exec),
];

impl Story {
    fn new(seed: u64) -> Story {
        let slots = ['L', 'R'].map(|actor| (actor, BTreeMap::new())).into();
        let kinds = Kinds::of(seed);
        Story {
            actions: kinds.actions(),
            kinds,
            random: Random(seed),
            steps: Vec::new(),
            slots,
            actors: vec!['L', 'R'],
            ports: [0, 5],
            within_host: place_of(seed) == Place::Host,
            filled: String::new(),
        }
    }

    fn say(&mut self, actor: char, words: impl Into<String>) {
        self.steps.push(Step::new(actor, words));
    }

    /// Most sequences begin with a connection, of either direction.
    fn begin(&mut self) {
        match self.random.below(8) {
            _ if self.kinds.datagrams => self.open_datagrams(),
            0..=2 => self.open_from('R', 'L'),
            3..=5 => self.open_from('L', 'R'),
            6 => {
                self.open_from('R', 'L');
                self.open_from('L', 'R');
            }
            _ => {}
        }
        self.begin_kinds();
        for actor in ['L', 'R'] {
            if self.random.chance(40) {
                self.make_thread(actor);
            }
        }
    }

    fn open_from(&mut self, connecting: char, listening: char) {
        let (listener, connected) = (self.new_slot(listening), self.new_slot(connecting));
        let (how, family) = (self.random.of(&["b", "n"]), self.family(listening));
        self.say(listening, format!("socket {listener} {how}{family}"));
        let port = self.next_port(listening);
        let host = self.host();
        self.say(listening, format!("bind {listener} {port}{host}"));
        self.say(listening, format!("listen {listener} 8"));
        self.put(listening, listener, Listener);
        if self.random.chance(80) {
            self.say(listening, format!("poll {listener} I 0"));
        }
        let (how, family) = (self.random.of(&["b", "n"]), self.family(connecting));
        self.say(connecting, format!("socket {connected} {how}{family}"));
        self.say(connecting, format!("connect {connected} {port}"));
        self.put(connecting, connected, Connection);
        let accepted = self.new_slot(listening);
        let how = self.random.of(&["b", "n"]);
        self.say(listening, format!("accept {listener} {accepted} {how}"));
        self.put(listening, accepted, Connection);
    }

    fn go_on(&mut self) {
        if self.random.chance(2) {
            self.say('-', "pause");
            return;
        }
        // The side that is always accelerated does more.
        let side = if self.random.chance(65) { 'L' } else { 'R' };
        let actors: Vec<char> = self.actors.iter().copied().filter(|actor| side_of(*actor) == side).collect();
        let actor = self.random.of(&actors);
        let total: usize = self.actions.iter().map(|(weight, _)| weight).sum();
        let mut left = self.random.below(total);
        for (weight, action) in self.actions.clone() {
            if left < weight {
                return action(self, actor);
            }
            left -= weight;
        }
    }

    // ---- descriptors ----

    fn slots(&mut self, actor: char) -> &mut BTreeMap<char, Kind> {
        let process = match actor {
            'M' => 'L',
            'S' => 'R',
            other => other,
        };
        self.slots.entry(process).or_default()
    }

    fn put(&mut self, actor: char, slot: char, kind: Kind) {
        self.slots(actor).insert(slot, kind);
    }

    fn new_slot(&mut self, actor: char) -> char {
        let taken = self.slots(actor).clone();
        ('a'..='h')
            .find(|slot| !taken.contains_key(slot))
            .unwrap_or_else(|| self.random.of(&['a', 'b', 'c', 'd']))
    }

    /// A descriptor of one of these kinds, mostly.
    fn slot(&mut self, actor: char, kinds: &[Kind]) -> char {
        let all = self.slots(actor).clone();
        let fitting: Vec<char> =
            all.iter().filter(|(_, kind)| kinds.contains(kind)).map(|(slot, _)| *slot).collect();
        if fitting.is_empty() || self.random.chance(8) {
            let any: Vec<char> = all.keys().copied().chain(['a']).collect();
            return self.random.of(&any);
        }
        self.random.of(&fitting)
    }

    fn next_port(&mut self, actor: char) -> u8 {
        let port = &mut self.ports[usize::from(side_of(actor) == 'R')];
        // The last one of each side nobody listens at.
        if *port % 5 < 3 {
            *port += 1;
            return *port - 1;
        }
        *port
    }

    /// First threads are to go on: they seldom wait.
    fn waits(&mut self, actor: char) -> bool {
        self.random.chance(if "MS".contains(actor) { 70 } else { 12 })
    }

    // ---- data ----

    fn flags(&mut self, actor: char, choice: &[&'static str]) -> String {
        let flags = self.random.of(choice);
        let waits = self.waits(actor);
        match (flags, waits) {
            ("-", false) => "d".to_owned(),
            (flags, true) => flags.to_owned(),
            (flags, false) => format!("d{flags}"),
        }
    }

    fn send(&mut self, actor: char) {
        if self.has_filled(actor) {
            return;
        }
        let (slot, length) = (self.slot(actor, &[Connection]), self.random.of(&[0, 1, 5, 10, 100, 3000]));
        let flags = self.flags(actor, &["-"]);
        self.say(actor, format!("send {slot} {length} {flags}"));
    }

    fn writev(&mut self, actor: char) {
        if self.has_filled(actor) {
            return;
        }
        let (slot, first) = (self.slot(actor, &[Connection]), self.random.of(&[0, 1, 5, 2000]));
        let second = self.random.of(&[0, 3, 1500]);
        self.say(actor, format!("writev {slot} {first} {second}"));
    }

    fn sendmsg(&mut self, actor: char) {
        if self.has_filled(actor) {
            return;
        }
        let (slot, length) = (self.slot(actor, &[Connection]), self.random.of(&[1, 6, 2000]));
        let flags = self.flags(actor, &["-"]);
        self.say(actor, format!("sendmsg {slot} {length} {flags}"));
    }

    fn fill(&mut self, actor: char) {
        if self.has_filled(actor) {
            return;
        }
        let slot = self.slot(actor, &[Connection]);
        self.say(actor, format!("fill {slot}"));
        self.filled.push(side_of(actor));
        let thread = if side_of(actor) == 'L' { 'M' } else { 'S' };
        if self.actors.contains(&thread) && !"CDEF".contains(actor) {
            // More than any queue holds.
            self.say(thread, format!("send {slot} 3000000 -"));
        }
    }

    /// Whether the side has filled a connection: whether there is room for a little more is each stack's own affair.
    fn has_filled(&mut self, actor: char) -> bool {
        let filled = self.filled.contains(side_of(actor));
        if filled {
            self.look(actor);
        }
        filled
    }

    /// Reads until nothing comes, if the other side has filled a connection.
    fn drains(&mut self, actor: char) -> bool {
        let other = if side_of(actor) == 'L' { 'R' } else { 'L' };
        let drains = self.filled.contains(other);
        if drains {
            let slot = self.slot(actor, &[Connection]);
            self.say(actor, format!("drain {slot}"));
        }
        drains
    }

    fn recv(&mut self, actor: char) {
        if self.drains(actor) {
            return;
        }
        let (slot, length) = (self.slot(actor, &[Connection]), self.random.of(&[0, 1, 5, 12, 100, 5000]));
        // Who waits for nothing goes on, in the kernel, whatever wakes it.
        let flags = match length {
            0 => "d".to_owned(),
            _ => self.flags(actor, &["-", "-", "-", "p", "w", "t", "pw", "pt"]),
        };
        self.say(actor, format!("recv {slot} {length} {flags}"));
    }

    fn readv(&mut self, actor: char) {
        if self.drains(actor) {
            return;
        }
        // Without flags: it waits if the descriptor does.
        let (slot, first) = (self.slot(actor, &[Connection]), self.random.of(&[0, 1, 4, 2000]));
        let second = self.random.of(&[1, 3, 3000]);
        self.say(actor, format!("readv {slot} {first} {second}"));
    }

    fn recvmsg(&mut self, actor: char) {
        if self.drains(actor) {
            return;
        }
        let (slot, length) = (self.slot(actor, &[Connection]), self.random.of(&[1, 5, 5000]));
        let flags = self.flags(actor, &["-", "-", "p", "w"]);
        self.say(actor, format!("recvmsg {slot} {length} {flags}"));
    }

    fn send_otherwise(&mut self, actor: char) {
        if self.has_filled(actor) {
            return;
        }
        let (slot, length) = (self.slot(actor, &[Connection]), self.random.of(&[1, 7, 2000]));
        let word = self.random.of(&["sendfile", "sendpipe", "sendmmsg"]);
        let flags = if word == "sendmmsg" { self.flags(actor, &["-"]) } else { String::new() };
        self.say(actor, format!("{word} {slot} {length} {flags}").trim_end());
    }

    fn receive_otherwise(&mut self, actor: char) {
        if self.drains(actor) {
            return;
        }
        let (slot, length) = (self.slot(actor, &[Connection]), self.random.of(&[1, 6, 3000]));
        let word = self.random.of(&["splice", "recvmmsg"]);
        let flags = self.flags(actor, &["-"]);
        self.say(actor, format!("{word} {slot} {length} {flags}"));
    }

    // ---- descriptors ----

    fn shutdown(&mut self, actor: char) {
        let (slot, how) = (self.slot(actor, &[Connection]), self.random.of(&[0, 1, 1, 1, 2]));
        self.say(actor, format!("shutdown {slot} {how}"));
    }

    fn close(&mut self, actor: char) {
        let slot = self.slot(actor, &[Connection, Connection, Listener, Fresh, Epoll]);
        self.say(actor, format!("close {slot}"));
        self.put(actor, slot, Closed);
    }

    fn dup(&mut self, actor: char) {
        let (slot, new) = (self.slot(actor, &[Connection, Listener, Epoll]), self.new_slot(actor));
        self.say(actor, format!("dup {slot} {new}"));
        let kind = self.slots(actor).get(&slot).copied().unwrap_or(Closed);
        self.put(actor, new, kind);
    }

    fn nonblock(&mut self, actor: char) {
        if self.slots.len() > 2 {
            // Processes share the flag in the kernel, and each has its own here.
            return self.look(actor);
        }
        let (slot, on) = (self.slot(actor, &[Connection, Listener]), self.random.below(2));
        self.say(actor, format!("nonblock {slot} {on}"));
    }

    // ---- waiting ----

    fn until(&mut self, actor: char) -> char {
        if self.waits(actor) { '-' } else { self.random.of(&['0', '0', '0', '+']) }
    }

    fn poll(&mut self, actor: char) {
        let slot = self.slot(actor, &[Connection, Connection, Listener, Fresh]);
        let events = self.random.of(&["I", "IO", "IR", "IOR", "R", "-", "O", "IOPR"]);
        let until = self.until(actor);
        self.say(actor, format!("poll {slot} {events} {until}"));
    }

    fn wait_otherwise(&mut self, actor: char) {
        let kinds = [Connection, Connection, Listener, Fresh, Epoll];
        let (slot, until) = (self.slot(actor, &kinds), self.until(actor));
        if self.random.chance(50) {
            let (other, events) = (self.slot(actor, &kinds), self.random.of(&["I", "IO", "IR", "-", "O"]));
            self.say(actor, format!("poll2 {slot} {other} {events} {until}"));
        } else {
            let sets = self.random.of(&["r", "w", "rw", "rwe", "e"]);
            self.say(actor, format!("select {slot} {sets} {until}"));
        }
    }

    fn epoll(&mut self, actor: char) {
        let (set, slot) = (self.new_slot(actor), self.slot(actor, &[Connection, Listener]));
        self.say(actor, format!("epoll {set}"));
        self.put(actor, set, Epoll);
        let events = self.events();
        self.say(actor, format!("ctl {set} add {slot} {events}"));
    }

    fn events(&mut self) -> &'static str {
        self.random.of(&["I", "IO", "IR", "IOR", "IE", "IORE", "OE", "I1", "IOR1", "IE1", "-", "IX"])
    }

    fn ctl(&mut self, actor: char) {
        let (set, slot) =
            (self.slot(actor, &[Epoll]), self.slot(actor, &[Connection, Connection, Listener, Fresh, Epoll]));
        let (how, events) = (self.random.of(&["add", "mod", "mod", "del"]), self.events());
        self.say(actor, format!("ctl {set} {how} {slot} {events}"));
    }

    fn wait(&mut self, actor: char) {
        let (set, until) = (self.slot(actor, &[Epoll]), self.until(actor));
        self.say(actor, format!("wait {set} {until}"));
    }

    /// A call with a time-out of its own.
    fn patient(&mut self, actor: char) {
        let chance = self.random.below(100);
        if chance < 60 {
            if self.drains(actor) {
                return;
            }
            let (slot, length) = (self.slot(actor, &[Connection]), self.random.of(&[1, 100]));
            self.say(actor, format!("patient recv {slot} {length}"));
        } else if chance < 70 {
            if self.has_filled(actor) {
                return;
            }
            let slot = self.slot(actor, &[Connection]);
            self.say(actor, format!("patient send {slot} 10"));
        } else {
            let (slot, new) = (self.slot(actor, &[Listener]), self.new_slot(actor));
            self.say(actor, format!("patient accept {slot} {new}"));
            self.put(actor, new, Connection);
        }
    }

    // ---- what there is to see, and to set ----

    fn look(&mut self, actor: char) {
        let slot = self.slot(actor, &[Connection, Connection, Connection, Listener, Fresh]);
        let mut choice = vec!["error", "state", "listens", "flags", "peer", "name"];
        if self.filled.is_empty() {
            choice.extend(["queued", "queued", "unsent"]);
        }
        let what = self.random.of(&choice);
        self.say(actor, format!("get {slot} {what}"));
    }

    fn set(&mut self, actor: char) {
        let slot = self.slot(actor, &[Connection, Listener]);
        let what = self.random.of(&["linger 1", "linger 1", "linger 0", "lowat 4", "lowat 1", "keepalive 1"]);
        self.say(actor, format!("set {slot} {what}"));
    }

    // ---- sockets ----

    fn socket(&mut self, actor: char) {
        let (slot, how) = (self.new_slot(actor), self.random.of(&["b", "n"]));
        let family = self.family(actor);
        self.say(actor, format!("socket {slot} {how}{family}"));
        self.put(actor, slot, Fresh);
    }

    fn bind(&mut self, actor: char) {
        let (slot, port, host) = (self.slot(actor, &[Fresh]), self.next_port(actor), self.host());
        self.say(actor, format!("bind {slot} {port}{host}"));
        self.put(actor, slot, Bound);
    }

    fn listen(&mut self, actor: char) {
        let slot = self.slot(actor, &[Bound, Bound, Listener]);
        self.say(actor, format!("listen {slot} 8"));
        self.put(actor, slot, Listener);
    }

    fn connect(&mut self, actor: char) {
        let slot = self.slot(actor, &[Fresh, Fresh, Connection]);
        // Mostly to the other side, now and then where nobody listens.
        let near = self.random.chance(10);
        let port = self.random.of(&[0, 0, 1, 2, 4]) + if (side_of(actor) == 'R') == near { 5 } else { 0 };
        self.say(actor, format!("connect {slot} {port}"));
        self.put(actor, slot, Connection);
    }

    fn accept(&mut self, actor: char) {
        let (slot, new) = (self.slot(actor, &[Listener]), self.new_slot(actor));
        let how = self.random.of(&["b", "n"]);
        self.say(actor, format!("accept {slot} {new} {how}"));
        self.put(actor, new, Connection);
    }

    fn unconnect(&mut self, actor: char) {
        let slot = self.slot(actor, &[Connection, Listener]);
        self.say(actor, format!("unconnect {slot}"));
        self.put(actor, slot, Fresh);
    }
}

/// Seeds are listed, and played again.
#[test]
fn a_seed_makes_what_it_made() {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for seed in (0..2_000).chain(91_000_000..91_001_000) {
        for byte in Script::generate(seed).to_string().bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    assert_eq!(hash, 0x6428_2020_1275_8945, "{hash:#x}");
}

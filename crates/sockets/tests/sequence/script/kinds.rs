//! What some sequences are about besides: each kind has calls that the others do not make. A sequence of none of them is what it was
//! before there were kinds.

use super::{ACTIONS, Action, Connection, Epoll, Fresh, Listener, Random, Story, side_of};

/// What a sequence is about besides.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kinds {
    /// UDP sockets, and no others.
    pub(super) datagrams: bool,
    /// dup2() and dup3() over what is in use.
    numbers: bool,
    /// Whether SIGPIPE comes.
    pipes: bool,
    /// MSG_MORE and TCP_CORK.
    corks: bool,
    /// Sockets of IPv6 for addresses of IPv4.
    mapped: bool,
    /// Epoll sets in epoll sets.
    sets: bool,
    /// Waits with a signal mask of their own.
    masks: bool,
    /// close() that waits.
    lingering: bool,
    /// Urgent data.
    urgent: bool,
    /// Two children of each side, of which one may be the other's.
    pub(super) children: bool,
    /// close() whose time to wait is over before all has arrived.
    expiring: bool,
    /// UDP sockets of several processes.
    shared: bool,
    /// Datagrams of several frames.
    long: bool,
}

/// From this seed on a sequence may be of the last four kinds: those before are what they were.
const LATER_KINDS: u64 = 1_000_000_000;

const NUMBERS: &[(usize, Action)] = &[(6, Story::dup_over), (2, Story::file)];
const PIPES: &[(usize, Action)] = &[(6, Story::send_quietly), (4, Story::shutdown), (3, Story::close)];
const CORKS: &[(usize, Action)] = &[(8, Story::send_more), (6, Story::cork)];
const MAPPED: &[(usize, Action)] = &[(4, Story::look_at_names), (1, Story::v6_only)];
const SETS: &[(usize, Action)] = &[(6, Story::nest), (4, Story::wait)];
const MASKS: &[(usize, Action)] = &[(9, Story::wait_masked), (2, Story::mask), (5, Story::kick)];
const LINGERING: &[(usize, Action)] = &[(6, Story::leave), (2, Story::fill)];
const CHILDREN: &[(usize, Action)] = &[(9, Story::multiply), (3, Story::pass_on)];
const EXPIRING: &[(usize, Action)] = &[(5, Story::leave_too_soon)];
const SHARED: &[(usize, Action)] = &[(7, Story::multiply), (3, Story::pass_on), (1, Story::exec)];
const URGENT: &[(usize, Action)] = &[
    (7, Story::send_urgent),
    (7, Story::recv_urgent),
    (4, Story::mark),
    (2, Story::in_line),
    (4, Story::poll),
];

/// What an actor does with UDP sockets.
const DATAGRAMS: &[(usize, Action)] = &[
    (6, Story::open_datagram),
    (14, Story::send_to),
    (8, Story::send_datagram),
    (18, Story::receive_from),
    (6, Story::receive_datagram),
    (2, Story::shutdown),
    (4, Story::close),
    (2, Story::dup),
    (2, Story::nonblock),
    (9, Story::poll),
    (3, Story::epoll),
    (6, Story::ctl),
    (9, Story::wait),
    (9, Story::look),
    (2, Story::patient_datagram),
    (2, Story::bind_datagram),
    (7, Story::connect_datagram),
    (2, Story::unconnect),
    (4, Story::wait_otherwise),
    (2, Story::kick),
];

impl Kinds {
    /// Of a seed. Draws from a row of its own, so that what the seed makes besides is the same.
    pub(super) fn of(seed: u64) -> Kinds {
        let first = Kinds::first_of(seed);
        if seed < LATER_KINDS {
            return first;
        }
        let mut random = Random(seed.rotate_left(32));
        let mut chance = |percent: usize, wanted: bool| random.chance(percent) && wanted;
        Kinds {
            children: chance(30, !first.datagrams),
            expiring: chance(8, !first.datagrams),
            shared: chance(50, first.datagrams),
            long: chance(40, first.datagrams),
            ..first
        }
    }

    fn first_of(seed: u64) -> Kinds {
        let mut random = Random(!seed);
        if random.chance(25) {
            return Kinds { datagrams: true, ..Kinds::default() };
        }
        Kinds {
            datagrams: false,
            numbers: random.chance(15),
            pipes: random.chance(15),
            corks: random.chance(12),
            mapped: seed % 3 != 1 && random.chance(20),
            sets: random.chance(15),
            masks: random.chance(15),
            lingering: random.chance(10),
            urgent: random.chance(12),
            ..Kinds::default()
        }
    }

    /// What an actor does next, and how often.
    pub(super) fn actions(self) -> Vec<(usize, Action)> {
        if self.datagrams {
            let besides = if self.shared { SHARED } else { &[] };
            return DATAGRAMS.iter().chain(besides).copied().collect();
        }
        let besides = [
            (self.numbers, NUMBERS),
            (self.pipes, PIPES),
            (self.corks, CORKS),
            (self.mapped, MAPPED),
            (self.sets, SETS),
            (self.masks, MASKS),
            (self.lingering, LINGERING),
            (self.urgent, URGENT),
            (self.children, CHILDREN),
            (self.expiring, EXPIRING),
        ];
        let besides = besides.into_iter().filter(|(is, _)| *is).flat_map(|(_, actions)| actions);
        ACTIONS.iter().chain(besides).copied().collect()
    }
}

impl Story {
    pub(super) fn begin_kinds(&mut self) {
        if self.kinds.pipes {
            self.say('L', "hear");
            self.say('R', "hear");
        }
    }

    // ---- datagrams ----

    /// Two that know each other's ports, and perhaps are connected.
    pub(super) fn open_datagrams(&mut self) {
        for actor in ['L', 'R'] {
            self.open_datagram(actor);
            let (slot, port) = ('a', self.next_port(actor));
            self.say(actor, format!("bind {slot} {port}"));
        }
        for (actor, port) in [('L', 5), ('R', 0)] {
            if self.random.chance(30) {
                self.say(actor, format!("connect a {port}"));
            }
        }
    }

    fn open_datagram(&mut self, actor: char) {
        let (slot, how) = (self.new_slot(actor), self.random.of(&["b", "n"]));
        self.say(actor, format!("dgram {slot} {how}"));
        self.put(actor, slot, Connection);
    }

    /// Mostly one that somebody has. Never this side's: what the host sends itself comes by the kernel's socket, and what comes by that
    /// is read after the rest.
    fn far_port(&mut self, actor: char) -> u8 {
        self.random.of(&[0, 0, 0, 1, 1, 2, 4]) + if side_of(actor) == 'R' { 0 } else { 5 }
    }

    /// What goes into one frame, but for sequences about what does not: fragments come by the kernel's socket as well.
    fn datagram_length(&mut self) -> usize {
        if self.kinds.long {
            return self.random.of(&[0, 1, 100, 1400, 2000, 5000, 20_000]);
        }
        self.random.of(&[0, 1, 5, 10, 100, 1400])
    }

    /// How much is read of one.
    fn room_for_datagram(&mut self) -> usize {
        if self.kinds.long {
            return self.random.of(&[0, 5, 2000, 30_000, 30_000]);
        }
        self.random.of(&[0, 1, 5, 12, 2000, 2000])
    }

    fn send_to(&mut self, actor: char) {
        let (slot, port) = (self.slot(actor, &[Connection]), self.far_port(actor));
        let (length, flags) = (self.datagram_length(), self.flags(actor, &["-"]));
        self.say(actor, format!("sendto {slot} {port} {length} {flags}"));
    }

    fn send_datagram(&mut self, actor: char) {
        let (slot, length) = (self.slot(actor, &[Connection]), self.datagram_length());
        match self.random.of(&["send", "sendmsg", "writev", "sendmmsg"]) {
            "writev" => self.say(actor, format!("writev {slot} {} {length}", length % 7)),
            word => {
                let flags = self.flags(actor, &["-"]);
                self.say(actor, format!("{word} {slot} {length} {flags}"));
            }
        }
    }

    fn receive_from(&mut self, actor: char) {
        let (slot, length) = (self.slot(actor, &[Connection]), self.room_for_datagram());
        let flags = self.flags(actor, &["-", "-", "-", "p", "t", "pt"]);
        self.say(actor, format!("recvfrom {slot} {length} {flags}"));
    }

    fn receive_datagram(&mut self, actor: char) {
        let (slot, length) = (self.slot(actor, &[Connection]), self.random.of(&[1, 5, 2000]));
        match self.random.of(&["recv", "recvmsg", "readv", "recvmmsg"]) {
            "readv" => self.say(actor, format!("readv {slot} 4 {length}")),
            word => {
                let flags = self.flags(actor, &["-", "-", "p"]);
                self.say(actor, format!("{word} {slot} {length} {flags}"));
            }
        }
    }

    fn patient_datagram(&mut self, actor: char) {
        let (slot, length) = (self.slot(actor, &[Connection]), self.random.of(&[1, 100]));
        self.say(actor, format!("patient recv {slot} {length}"));
    }

    fn bind_datagram(&mut self, actor: char) {
        let (slot, port) = (self.slot(actor, &[Connection]), self.next_port(actor));
        let host = self.random.of(&["", "", " any"]);
        self.say(actor, format!("bind {slot} {port}{host}"));
    }

    fn connect_datagram(&mut self, actor: char) {
        let (slot, port) = (self.slot(actor, &[Connection]), self.far_port(actor));
        self.say(actor, format!("connect {slot} {port}"));
    }

    // ---- descriptors ----

    fn dup_over(&mut self, actor: char) {
        let kinds = [Connection, Connection, Listener, Epoll, Fresh];
        let (slot, over) = (self.slot(actor, &kinds), self.slot(actor, &kinds));
        let word = self.random.of(&["dup2", "dup2", "dup3"]);
        self.say(actor, format!("{word} {slot} {over}"));
        if let Some(kind) = self.slots(actor).get(&slot).copied() {
            self.put(actor, over, kind);
        }
    }

    fn file(&mut self, actor: char) {
        let slot = self.new_slot(actor);
        self.say(actor, format!("file {slot}"));
        let over = self.slot(actor, &[Connection, Listener]);
        self.say(actor, format!("dup2 {slot} {over}"));
    }

    // ---- data ----

    fn send_quietly(&mut self, actor: char) {
        if self.has_filled(actor) {
            return;
        }
        let (slot, length) = (self.slot(actor, &[Connection]), self.random.of(&[0, 1, 100]));
        let (word, flags) =
            (self.random.of(&["send", "send", "sendmsg", "sendmmsg"]), self.random.of(&["d", "dn"]));
        self.say(actor, format!("{word} {slot} {length} {flags}"));
    }

    /// What is held back for company goes when there is more, or after a while: when that is over is left open by no later step, which
    /// comes sooner on one machine than on another.
    fn send_more(&mut self, actor: char) {
        if self.has_filled(actor) {
            return;
        }
        let (slot, length) = (self.slot(actor, &[Connection]), self.random.of(&[0, 1, 5, 100, 3000]));
        let word = self.random.of(&["send", "sendmsg"]);
        self.say(actor, format!("{word} {slot} {length} dm"));
        match self.random.below(4) {
            0 => self.say('-', "pause"),
            1 => self.say(actor, format!("shutdown {slot} 1")),
            _ => {
                let length = self.random.of(&[1, 7, 2000]);
                self.say(actor, format!("send {slot} {length} d"));
            }
        }
    }

    /// The same.
    fn cork(&mut self, actor: char) {
        if self.has_filled(actor) {
            return;
        }
        let (slot, length) = (self.slot(actor, &[Connection]), self.random.of(&[0, 1, 100, 3000]));
        self.say(actor, format!("set {slot} cork 1"));
        self.say(actor, format!("send {slot} {length} d"));
        match self.random.below(4) {
            0 => self.say('-', "pause"),
            1 => self.say(actor, format!("shutdown {slot} 1")),
            _ => {}
        }
        self.say(actor, format!("set {slot} cork 0"));
    }

    fn send_urgent(&mut self, actor: char) {
        if self.has_filled(actor) {
            return;
        }
        let (slot, length) = (self.slot(actor, &[Connection]), self.random.of(&[0, 1, 1, 5]));
        self.say(actor, format!("send {slot} {length} do"));
    }

    fn recv_urgent(&mut self, actor: char) {
        let (slot, length) = (self.slot(actor, &[Connection]), self.random.of(&[0, 1, 1, 5]));
        let flags = self.random.of(&["do", "do", "dop", "dot"]);
        self.say(actor, format!("recv {slot} {length} {flags}"));
    }

    fn mark(&mut self, actor: char) {
        let slot = self.slot(actor, &[Connection]);
        self.say(actor, format!("mark {slot}"));
    }

    fn in_line(&mut self, actor: char) {
        let (slot, on) = (self.slot(actor, &[Connection]), self.random.of(&[0, 1, 1]));
        self.say(actor, format!("set {slot} inline {on}"));
    }

    fn leave(&mut self, actor: char) {
        let slot = self.slot(actor, &[Connection]);
        self.say(actor, format!("leave {slot}"));
        self.put(actor, slot, super::Closed);
    }

    /// The peer's queue is full: the time to wait is over before anything has left.
    fn leave_too_soon(&mut self, actor: char) {
        if self.has_filled(actor) {
            return;
        }
        let slot = self.slot(actor, &[Connection]);
        self.say(actor, format!("fill {slot}"));
        self.filled.push(side_of(actor));
        self.say(actor, format!("leave {slot} 1"));
        self.put(actor, slot, super::Closed);
        self.say('-', "pause 5");
    }

    // ---- waiting ----

    fn nest(&mut self, actor: char) {
        let (outer, inner) = (self.new_slot(actor), self.slot(actor, &[Epoll]));
        let events = self.random.of(&["I", "I", "IE", "I1", "-"]);
        self.say(actor, format!("epoll {outer}"));
        self.put(actor, outer, Epoll);
        self.say(actor, format!("ctl {outer} add {inner} {events}"));
    }

    fn wait_masked(&mut self, actor: char) {
        let kinds = [Connection, Connection, Listener, Fresh, Epoll];
        let (mask, until) = (self.random.of(&["-", "b", "o"]), self.until(actor));
        match self.random.of(&["ppoll", "pselect", "pwait"]) {
            "ppoll" => {
                let (slot, events) = (self.slot(actor, &kinds), self.random.of(&["I", "IO", "IR", "-", "O"]));
                self.say(actor, format!("ppoll {slot} {events} {mask} {until}"));
            }
            "pselect" => {
                let (slot, sets) = (self.slot(actor, &kinds), self.random.of(&["r", "w", "rw", "rwe", "e"]));
                self.say(actor, format!("pselect {slot} {sets} {mask} {until}"));
            }
            word => {
                let set = self.slot(actor, &[Epoll]);
                self.say(actor, format!("{word} {set} {mask} {until}"));
            }
        }
    }

    fn mask(&mut self, actor: char) {
        let mask = self.random.of(&["b", "b", "o"]);
        self.say(actor, format!("mask {mask}"));
    }

    // ---- IPv6 and IPv4 ----

    /// How a socket is made for a host of IPv4.
    pub(super) fn family(&mut self, _actor: char) -> &'static str {
        if self.kinds.mapped && self.random.chance(70) { "6" } else { "" }
    }

    /// Where it is bound.
    pub(super) fn host(&mut self) -> &'static str {
        if self.kinds.mapped && self.random.chance(60) { " any" } else { "" }
    }

    fn look_at_names(&mut self, actor: char) {
        let (slot, what) = (self.slot(actor, &[Connection, Listener]), self.random.of(&["peer", "name"]));
        self.say(actor, format!("get {slot} {what}"));
    }

    fn v6_only(&mut self, actor: char) {
        let (slot, on) = (self.slot(actor, &[Fresh, Connection, Listener]), self.random.below(2));
        self.say(actor, format!("set {slot} v6only {on}"));
    }
}

//! What a ruleset does to a packet whose peer may be anybody.
//!
//! The peer's address is the one free variable: each step of a rule divides the addresses that have come to it. What is not
//! known of the packet, and what only the kernel can do (a limit, a translation), makes both ways possible; where the ways end
//! differently, the verdict is the kernel's. Source: net/netfilter/nf_tables_core.c (`nft_do_chain`), nft_meta.c, nft_ct.c,
//! nft_payload.c, nft_set_*.c.

use std::collections::HashMap;
use std::net::IpAddr;

use super::ruleset::{
    Base, Chain, Data, Expression, FAMILY_INET, FAMILY_IPV4, FAMILY_IPV6, FAMILY_NETDEV, Match, Register,
    Rule, Ruleset, Set, Table, Verdict,
};
use super::span::Span;
use super::value::{Byte, Bytes, Outcome};

const TCP: u8 = 6;
/// Registers and the verdict's 16 bytes before them.
const REGISTERS: usize = 80;
/// `NFT_JUMP_STACK_SIZE`.
const DEPTH_MAX: usize = 16;
/// Chains that call chains that call chains: whoever is not through by then is the kernel's.
const BUDGET: u32 = 200_000;
/// `NF_IP_PRI_CONNTRACK`: who comes before does not know the connection.
const TRACKING: i32 = -200;

/// A connection's packet, as netfilter would see it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packet<'a> {
    pub(crate) interface: u32,
    pub(crate) name: &'a str,
    pub(crate) outgoing: bool,
    /// 6 or 17.
    pub(crate) protocol: u8,
    pub(crate) local: IpAddr,
    /// `None`: any.
    pub(crate) local_port: Option<u16>,
    /// `None`: any.
    pub(crate) remote_port: Option<u16>,
    /// The connection is known; otherwise this packet is its first.
    pub(crate) established: bool,
    /// The peer opened the connection. `None`: either.
    pub(crate) opened_by_peer: Option<bool>,
    /// TCP's FIN, SYN, RST, PSH, ACK and URG.
    pub(crate) flags: u8,
    /// That a rule writes something down makes the packet the kernel's.
    pub(crate) heeds_log: bool,
}

impl Packet<'_> {
    fn bits(&self) -> u32 {
        if self.local.is_ipv4() { 32 } else { 128 }
    }
}

/// What becomes of a packet, by the peer's address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Judgement {
    /// Certainly let through.
    pub(crate) accepted: Span,
    /// Certainly dropped or rejected.
    pub(crate) refused: Span,
    /// Not certainly dropped: those above and those of whom only the kernel can say.
    pub(crate) possible: Span,
    /// Whose packets conntrack does not see, or perhaps not, on this way: what it makes of others of the connection is not known.
    pub(crate) untracked: Span,
    /// The first rule that could not be followed.
    pub(crate) blame: Option<String>,
}

/// What conntrack makes of the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tracking {
    Known,
    /// Not yet, or never.
    None,
    Untracked,
    Unclear,
}

/// Goes the whole way of a packet that comes from, or goes to, one of `peers`. Of `unclear` ones conntrack has not seen all that belongs
/// to the connection.
pub(crate) fn judge(ruleset: &Ruleset, packet: Packet<'_>, peers: &Span, unclear: &Span) -> Judgement {
    let way = way(ruleset, &packet);
    let mut judgement = Judgement { accepted: peers.clone(), ..Judgement::default() };
    if way.is_empty() {
        judgement.possible = peers.clone();
        return judgement;
    }
    let mut walk = Walk {
        table: way[0].table,
        packet,
        step: &way[0],
        tracking: Tracking::Known,
        untracked: (Span::none(), Span::none()),
        marked: false,
        accepted: Span::none(),
        refused: Span::none(),
        kernels: Span::none(),
        blame: None,
        depth: 0,
        budget: BUDGET,
    };
    // Who has come how far, and what conntrack knows of them. A mark once set is unknown to all.
    let mut travelling = vec![
        (peers.intersection(unclear), 0, Tracking::Unclear),
        (peers.without(unclear), 0, Tracking::Known),
    ];
    let mut untracked = Span::none();
    let mut arrived = Span::none();
    while let Some((alive, at, tracking)) = travelling.pop() {
        let Some(step) = way.get(at) else {
            arrived = arrived.union(&alive);
            continue;
        };
        if alive.is_empty() {
            continue;
        }
        if step.is_first_packets && packet.established {
            travelling.push((alive, at + 1, tracking));
            continue;
        }
        let alive = walk.base_chain(step, tracking, &alive);
        let (surely, perhaps) = std::mem::take(&mut walk.untracked);
        let perhaps = perhaps.without(&surely);
        untracked = untracked.union(&surely).union(&perhaps);
        let as_before = alive.without(&surely).without(&perhaps);
        travelling.push((alive.intersection(&surely), at + 1, Tracking::Untracked));
        travelling.push((alive.intersection(&perhaps), at + 1, Tracking::Unclear));
        travelling.push((as_before, at + 1, tracking));
    }
    judgement.accepted = arrived.without(&walk.refused).without(&walk.kernels);
    judgement.refused = peers.without(&arrived).without(&walk.kernels);
    judgement.possible = arrived;
    judgement.untracked = untracked;
    judgement.blame = walk.blame;
    judgement
}

/// A base chain on the way.
struct Step<'a> {
    table: &'a Table,
    chain: &'a Chain,
    base: &'a Base,
    /// Ingress, prerouting, input; output, postrouting, egress.
    place: u8,
    /// Translates addresses: only the first packet of a connection comes here.
    is_first_packets: bool,
}

impl Step<'_> {
    /// What conntrack knows here of a packet that it knows at the end.
    fn tracking(&self, later: Tracking) -> Tracking {
        match self.place {
            0 => Tracking::None,
            1 | 3 if self.base.priority < TRACKING => Tracking::None,
            1 | 3 if self.base.priority == TRACKING => Tracking::Unclear,
            _ => later,
        }
    }
}

fn way<'a>(ruleset: &'a Ruleset, packet: &Packet<'_>) -> Vec<Step<'a>> {
    let own = if packet.local.is_ipv4() { FAMILY_IPV4 } else { FAMILY_IPV6 };
    let mut way = Vec::new();
    for table in ruleset.tables.iter().filter(|table| !table.dormant) {
        for chain in &table.chains {
            let Some(base) = &chain.base else { continue };
            // NF_INET_*, NF_NETDEV_*; ingress is in both.
            let place = match (table.family, base.hook) {
                (FAMILY_NETDEV, 0) | (FAMILY_INET, 5) => 0,
                (FAMILY_NETDEV, 1) => 5,
                (family, hook) if family == own || family == FAMILY_INET => match hook {
                    0 => 1,
                    1 => 2,
                    3 => 3,
                    4 => 4,
                    _ => continue,
                },
                _ => continue,
            };
            let elsewhere =
                matches!(place, 0 | 5) && !base.devices.iter().any(|device| device.is(packet.name));
            if elsewhere || (place >= 3) != packet.outgoing {
                continue;
            }
            way.push(Step { table, chain, base, place, is_first_packets: base.kind == "nat" });
        }
    }
    way.sort_by_key(|step| (step.place, step.base.priority));
    way
}

struct Walk<'a> {
    packet: Packet<'a>,
    step: &'a Step<'a>,
    table: &'a Table,
    tracking: Tracking,
    /// Who went by a rule that has them untracked: surely, or perhaps.
    untracked: (Span, Span),
    /// Some rule has set a mark: nobody's is known any more.
    marked: bool,
    /// Of this base chain.
    accepted: Span,
    /// Who may have been dropped, of the whole way.
    refused: Span,
    /// Who met something that only the kernel can do.
    kernels: Span,
    blame: Option<String>,
    depth: usize,
    /// Rules that may yet be looked at.
    budget: u32,
}

/// Where the peers of a rule are.
struct InRule {
    registers: [Byte; REGISTERS],
    /// They go on with the rule.
    here: Span,
    /// They go on with the next one.
    left: Span,
    /// What made it unclear who goes where.
    doubt: Option<String>,
}

impl<'a> Walk<'a> {
    /// Returns who is let through.
    fn base_chain(&mut self, step: &'a Step<'a>, tracking: Tracking, alive: &Span) -> Span {
        (self.table, self.step) = (step.table, step);
        self.tracking = step.tracking(tracking);
        self.accepted = Span::none();
        let rest = self.chain(step.chain, alive.clone());
        if step.base.drops {
            self.refused = self.refused.union(&rest);
        } else {
            self.accepted = self.accepted.union(&rest);
        }
        std::mem::take(&mut self.accepted)
    }

    /// Returns who comes back.
    fn chain(&mut self, chain: &'a Chain, mut alive: Span) -> Span {
        let mut returned = Span::none();
        if self.depth > DEPTH_MAX {
            self.kernels = self.kernels.union(&alive);
            return alive;
        }
        self.depth += 1;
        for rule in &chain.rules {
            if alive.is_empty() {
                break;
            }
            if self.budget == 0 {
                self.kernels = self.kernels.union(&alive);
                break;
            }
            self.budget -= 1;
            alive = self.rule(chain, rule, alive, &mut returned);
        }
        self.depth -= 1;
        returned.union(&alive)
    }

    /// Returns who goes on with the next rule; `returned` gets those who leave the chain.
    fn rule(&mut self, chain: &'a Chain, rule: &'a Rule, alive: Span, returned: &mut Span) -> Span {
        let mut at =
            InRule { registers: [Byte::UNKNOWN; REGISTERS], here: alive, left: Span::none(), doubt: None };
        for expression in &rule.expressions {
            if at.here.is_empty() {
                break;
            }
            match expression {
                Expression::Verdict(verdict) => self.verdict(chain, rule, verdict, &mut at, returned),
                Expression::Lookup { set, from, to, verdict, inverted } => {
                    self.lookup((chain, rule), set, (*from, *to, *verdict, *inverted), &mut at, returned);
                }
                expression => self.expression(chain, rule, expression, &mut at),
            }
        }
        at.here.union(&at.left)
    }

    fn blame(&mut self, chain: &Chain, rule: &Rule, what: &str) {
        if self.blame.is_none() {
            self.blame = Some(super::text::rule(self.table, chain, rule, what));
        }
    }

    fn verdict(
        &mut self,
        chain: &'a Chain,
        rule: &'a Rule,
        verdict: &Verdict,
        at: &mut InRule,
        returned: &mut Span,
    ) {
        if *verdict == Verdict::Continue {
            return;
        }
        if let Some(doubt) = at.doubt.clone() {
            self.blame(chain, rule, &doubt);
        }
        let here = std::mem::take(&mut at.here);
        match verdict {
            Verdict::Accept => self.accepted = self.accepted.union(&here),
            Verdict::Drop => self.refused = self.refused.union(&here),
            Verdict::Break | Verdict::Continue => at.left = at.left.union(&here),
            Verdict::Return => *returned = returned.union(&here),
            Verdict::Jump(name) | Verdict::Goto(name) => {
                let back = match self.table.chain(name) {
                    Some(target) => self.chain(target, here),
                    None => {
                        self.kernels = self.kernels.union(&here);
                        here
                    }
                };
                if matches!(verdict, Verdict::Jump(_)) {
                    at.left = at.left.union(&back);
                } else {
                    *returned = returned.union(&back);
                }
            }
            Verdict::Other => {
                self.blame(chain, rule, "a verdict of the kernel's own");
                self.kernels = self.kernels.union(&here);
            }
        }
    }

    fn expression(&mut self, chain: &'a Chain, rule: &'a Rule, expression: &Expression, at: &mut InRule) {
        let bits = self.packet.bits();
        let registers = &mut at.registers;
        let compared = |from: Register, length: usize| Bytes {
            bytes: registers.get(from..(from + length).min(REGISTERS)).unwrap_or_default(),
            bits,
        };
        match expression {
            Expression::LoadMeta { key, to } => {
                let bytes = self.meta(*key);
                store(registers, *to, &bytes);
            }
            Expression::LoadConntrack { key, direction, to } => {
                let bytes = self.conntrack(*key, *direction);
                store(registers, *to, &bytes);
            }
            Expression::Payload { base, offset, length, to } => {
                let bytes = self.payload(*base, *offset, *length);
                store(registers, *to, &bytes);
            }
            Expression::Fib { result, flags, to } => {
                let bytes = self.fib(*result, *flags);
                store(registers, *to, &bytes);
            }
            Expression::LoadOther { to, length, .. } | Expression::Bits { to, length } => {
                store(registers, *to, &vec![Byte::UNKNOWN; *length]);
            }
            Expression::Immediate { to, value } => {
                let bytes: Vec<Byte> = value.iter().copied().map(Byte::is).collect();
                store(registers, *to, &bytes);
            }
            Expression::Mask { from, to, and, xor } => {
                let source = compared(*from, and.len()).bytes;
                let masked: Vec<Byte> = source
                    .iter()
                    .zip(and.iter().zip(xor))
                    .map(|(byte, (and, xor))| byte.masked(*and, *xor))
                    .collect();
                store(registers, *to, &masked);
            }
            Expression::ByteOrder { from, to, length, size } => {
                let mut bytes = compared(*from, *length).bytes.to_vec();
                if cfg!(target_endian = "little") && *size > 0 {
                    for word in bytes.chunks_mut(*size) {
                        word.reverse();
                    }
                }
                store(registers, *to, &bytes);
            }
            Expression::Compare { from, operator, value } => {
                let bytes = compared(*from, value.len());
                let outcome = match operator {
                    0 => bytes.equals(value),
                    1 => bytes.equals(value).not(bits),
                    2 => bytes.below(value, false),
                    3 => bytes.below(value, true),
                    4 => bytes.below(value, true).not(bits),
                    5 => bytes.below(value, false).not(bits),
                    _ => Outcome::Maybe,
                };
                self.go_on(at, &outcome, "what it compares");
            }
            Expression::Range { from, inverted, low, high } => {
                let outcome = compared(*from, low.len()).between(low, high);
                let outcome = if *inverted { outcome.not(bits) } else { outcome };
                self.go_on(at, &outcome, "what it compares");
            }
            Expression::Match(matching) => {
                let outcome = self.matching(matching);
                self.go_on(at, &outcome, "what it compares");
            }
            Expression::Sometimes(what) => self.go_on(at, &Outcome::Maybe, what),
            Expression::Says(what) => {
                if self.packet.heeds_log {
                    self.blame(chain, rule, what);
                    self.kernels = self.kernels.union(&at.here);
                }
            }
            Expression::Reject => self.refused = self.refused.union(&std::mem::take(&mut at.here)),
            Expression::Untracked => {
                let (surely, perhaps) = &mut self.untracked;
                // A rule before this one may have ended the chain for some.
                let decided = self.accepted.union(&self.refused).union(&at.left);
                *surely = surely.union(&at.here.without(&decided));
                *perhaps = perhaps.union(&at.here);
                self.tracking = Tracking::Unclear;
            }
            Expression::SetMeta { key } => self.set_meta(chain, rule, *key, at),
            Expression::SetConntrack { .. } => self.kernel_does(chain, rule, "ct … set", at),
            Expression::Kernels(what) => {
                self.kernel_does(chain, rule, what, at);
                // Whether it goes on is unknown, too.
                self.go_on(at, &Outcome::Maybe, what);
            }
            Expression::Nothing | Expression::Verdict(_) | Expression::Lookup { .. } => {}
        }
    }

    fn kernel_does(&mut self, chain: &Chain, rule: &Rule, what: &str, at: &InRule) {
        self.blame(chain, rule, what);
        self.kernels = self.kernels.union(&at.here);
    }

    fn set_meta(&mut self, chain: &Chain, rule: &Rule, key: u32, at: &InRule) {
        const MARK: u32 = 3;
        const TRACE: u32 = 12;
        match key {
            TRACE => {}
            // Only later rules see it there.
            MARK if self.step.place == 2 => self.marked = true,
            _ => self.kernel_does(chain, rule, "meta … set", at),
        }
        self.marked |= key == MARK;
    }

    fn go_on(&self, at: &mut InRule, outcome: &Outcome, what: &str) {
        if at.doubt.is_none() && outcome.is_doubtful(&at.here) {
            at.doubt = Some(what.to_owned());
        }
        let (here, left) = outcome.split(&at.here);
        at.here = here;
        at.left = at.left.union(&left);
    }

    fn lookup(
        &mut self,
        (chain, rule): (&'a Chain, &'a Rule),
        name: &str,
        (from, to, is_verdict, inverted): (Register, Option<Register>, bool, bool),
        at: &mut InRule,
        returned: &mut Span,
    ) {
        let bits = self.packet.bits();
        let Some(set) = self.table.set(name).filter(|set| !set.dynamic) else {
            if is_verdict {
                self.kernel_does(chain, rule, "a map that rules change", at);
            }
            if let Some(to) = to {
                store(&mut at.registers, to, &[Byte::UNKNOWN; 16]);
            }
            return self.go_on(at, &Outcome::Maybe, "a set that rules change");
        };
        let bytes = at.registers.get(from..(from + set.key_length).min(REGISTERS)).unwrap_or_default();
        let found = find(set, Bytes { bytes, bits }, &at.here);
        if !is_verdict && to.is_none() {
            let (yes, maybe) = found.iter().fold((Span::none(), Span::none()), |(yes, maybe), one| {
                (yes.union(&one.yes), maybe.union(&one.maybe))
            });
            let outcome = Outcome::Where { maybe: maybe.without(&yes), yes };
            let outcome = if inverted { outcome.not(bits) } else { outcome };
            return self.go_on(at, &outcome, "what it looks up");
        }
        let here = std::mem::take(&mut at.here);
        let mut surely = Span::none();
        let mut all = Span::none();
        for one in &found {
            surely = surely.union(&one.yes);
            all = all.union(&one.yes).union(&one.maybe);
            if at.doubt.is_none() && !one.maybe.is_empty() {
                at.doubt = Some("what it looks up".to_owned());
            }
        }
        at.left = at.left.union(&here.without(&surely));
        if is_verdict {
            let mut going_on = Span::none();
            for one in found {
                at.here = one.yes.union(&one.maybe);
                let verdict = match &one.data {
                    Data::Verdict(code, target) => Verdict::new(*code, target),
                    Data::None | Data::Value(_) => Verdict::Other,
                };
                self.verdict(chain, rule, &verdict, at, returned);
                going_on = going_on.union(&at.here);
            }
            at.here = going_on;
            return;
        }
        at.here = all;
        if let Some(to) = to {
            let value = match found.as_slice() {
                [Found { data: Data::Value(value), .. }] => value.iter().copied().map(Byte::is).collect(),
                _ => vec![Byte::UNKNOWN; 16],
            };
            store(&mut at.registers, to, &value);
        }
    }

    fn matching(&self, matching: &Match) -> Outcome {
        let bits = self.packet.bits();
        let (source, destination) = self.ports();
        let port_in = |port: Option<u16>, (low, high): (u16, u16)| match port {
            Some(port) => Outcome::of((low..=high).contains(&port)),
            None if (low, high) == (0, u16::MAX) => Outcome::Yes,
            None => Outcome::Maybe,
        };
        let perhaps_not = |outcome: Outcome, not: bool| if not { outcome.not(bits) } else { outcome };
        match matching {
            Match::Ports { protocol, .. } if *protocol != self.packet.protocol => Outcome::Maybe,
            Match::Ports {
                source: (low, high, not), destination: (to_low, to_high, to_not), flags, ..
            } => {
                let source = perhaps_not(port_in(source, (*low, *high)), *not);
                let destination = perhaps_not(port_in(destination, (*to_low, *to_high)), *to_not);
                // ECE and CWR may be either.
                let flags = match flags {
                    Some((mask, value, not)) if mask & 0xc0 == 0 => {
                        Outcome::of((self.packet.flags & mask == *value) != *not)
                    }
                    Some(_) => Outcome::Maybe,
                    None => Outcome::Yes,
                };
                source.and(destination, bits).and(flags, bits)
            }
            Match::MultiPort { source: of_source, destination: of_destination, ranges, inverted } => {
                let mut any = Outcome::No;
                for range in ranges {
                    if *of_source {
                        any = any.or(port_in(source, *range), bits);
                    }
                    if *of_destination {
                        any = any.or(port_in(destination, *range), bits);
                    }
                }
                perhaps_not(any, *inverted)
            }
            Match::State { states, inverted } => match self.state() {
                Some(state) => Outcome::of((state & u32::from(*states) != 0) != *inverted),
                None => Outcome::Maybe,
            },
        }
    }

    /// The packet's source and destination port.
    fn ports(&self) -> (Option<u16>, Option<u16>) {
        let Packet { local_port, remote_port, outgoing, .. } = self.packet;
        if outgoing { (local_port, remote_port) } else { (remote_port, local_port) }
    }

    /// `NF_CT_STATE_BIT`s.
    fn state(&self) -> Option<u32> {
        const INVALID: u32 = 1;
        const ESTABLISHED: u32 = 2;
        const NEW: u32 = 8;
        const UNTRACKED: u32 = 64;
        match self.tracking {
            Tracking::Known if self.packet.established => Some(ESTABLISHED),
            Tracking::Known => Some(NEW),
            Tracking::None => Some(INVALID),
            Tracking::Untracked => Some(UNTRACKED),
            Tracking::Unclear => None,
        }
    }

    /// `NFT_META_*`.
    fn meta(&self, key: u32) -> Vec<Byte> {
        const ETHERNET: u16 = 1; // ARPHRD_ETHER
        let packet = &self.packet;
        let known = |bytes: &[u8]| bytes.iter().copied().map(Byte::is).collect();
        let (incoming, outgoing) = (!packet.outgoing, packet.outgoing);
        match key {
            1 if incoming && packet.local.is_ipv4() => known(&[0x08, 0x00]),
            1 if incoming => known(&[0x86, 0xdd]),
            3 if !self.marked => known(&[0; 4]),
            4 if incoming => known(&packet.interface.to_ne_bytes()),
            5 if outgoing => known(&packet.interface.to_ne_bytes()),
            6 if incoming => known(&padded(packet.name)),
            7 if outgoing => known(&padded(packet.name)),
            8 if incoming => known(&ETHERNET.to_ne_bytes()),
            9 if outgoing => known(&ETHERNET.to_ne_bytes()),
            15 if !matches!(self.step.place, 0 | 5) => {
                known(&[if packet.local.is_ipv4() { FAMILY_IPV4 } else { FAMILY_IPV6 }])
            }
            16 => known(&[packet.protocol]),
            19 if incoming => known(&[0]), // PACKET_HOST
            _ => vec![Byte::UNKNOWN; 16],
        }
    }

    /// `NFT_CT_*`.
    fn conntrack(&self, key: u32, direction: Option<u8>) -> Vec<Byte> {
        const REPLY: u8 = 1;
        let known = |bytes: &[u8]| bytes.iter().copied().map(Byte::is).collect();
        let packet = &self.packet;
        let unknown = vec![Byte::UNKNOWN; 16];
        if key == 0 {
            return self.state().map_or(unknown, |state| known(&state.to_ne_bytes()));
        }
        if self.tracking != Tracking::Known {
            return unknown;
        }
        // Who is the source in the direction that is asked for.
        let of_peer = |source: bool| {
            let by_peer = packet.opened_by_peer?;
            Some((by_peer == (direction? != REPLY)) == source)
        };
        let address = |source: bool| match of_peer(source) {
            Some(true) => self.peer_address(),
            Some(false) => self.local_address(),
            None => vec![Byte::UNKNOWN; 16],
        };
        let port = |source: bool| {
            let port = match of_peer(source) {
                Some(true) => packet.remote_port,
                Some(false) => packet.local_port,
                None => None,
            };
            port.map_or(vec![Byte::UNKNOWN; 2], |port| known(&port.to_be_bytes()))
        };
        match key {
            1 => match packet.opened_by_peer {
                Some(by_peer) => known(&[u8::from(by_peer == packet.outgoing)]),
                None => vec![Byte::UNKNOWN; 4],
            },
            // No address is translated (IPS_SRC_NAT, IPS_DST_NAT): otherwise the connection is the kernel's.
            2 if cfg!(target_endian = "little") => {
                let mut status = vec![Byte::UNKNOWN; 4];
                status[0] = Byte::Bits { known: 0x30, value: 0 };
                status
            }
            3 if !packet.established => known(&[0; 4]),
            7 => known(&[if packet.local.is_ipv4() { FAMILY_IPV4 } else { FAMILY_IPV6 }]),
            8 | 19 | 21 => address(true),
            9 | 20 | 22 => address(false),
            10 => known(&[packet.protocol]),
            11 => port(true),
            12 => port(false),
            _ => unknown,
        }
    }

    fn peer_address(&self) -> Vec<Byte> {
        (0..self.packet.bits() as usize / 8).map(Byte::peer).collect()
    }

    fn local_address(&self) -> Vec<Byte> {
        match self.packet.local {
            IpAddr::V4(address) => address.octets().map(Byte::is).to_vec(),
            IpAddr::V6(address) => address.octets().map(Byte::is).to_vec(),
        }
    }

    /// Of the network header (1) or the transport header (2).
    fn payload(&self, base: u32, offset: usize, length: usize) -> Vec<Byte> {
        let packet = &self.packet;
        let mut header = vec![Byte::UNKNOWN; 64];
        let (mut source, mut destination) = (self.peer_address(), self.local_address());
        if packet.outgoing {
            std::mem::swap(&mut source, &mut destination);
        }
        match (base, packet.local) {
            (1, IpAddr::V4(_)) => {
                header[0] = Byte::Bits { known: 0xf0, value: 0x40 };
                // No fragment, whatever DF says.
                header[6] = Byte::Bits { known: 0x3f, value: 0 };
                header[7] = Byte::is(0);
                header[9] = Byte::is(packet.protocol);
                header[12..16].copy_from_slice(&source);
                header[16..20].copy_from_slice(&destination);
            }
            (1, IpAddr::V6(_)) => {
                header[0] = Byte::Bits { known: 0xf0, value: 0x60 };
                // What comes may have other headers between.
                if packet.outgoing {
                    header[6] = Byte::is(packet.protocol);
                }
                header[8..24].copy_from_slice(&source);
                header[24..40].copy_from_slice(&destination);
            }
            (2, _) => {
                for (at, port) in [(0, self.ports().0), (2, self.ports().1)] {
                    for (index, byte) in port.map(u16::to_be_bytes).into_iter().flatten().enumerate() {
                        header[at + index] = Byte::is(byte);
                    }
                }
                if packet.protocol == TCP {
                    header[13] = Byte::Bits { known: 0x3f, value: packet.flags & 0x3f };
                }
            }
            _ => {}
        }
        let length = length.min(64);
        match header.get(offset..offset.saturating_add(length)) {
            Some(bytes) => bytes.to_vec(),
            None => vec![Byte::UNKNOWN; length],
        }
    }

    /// What the kernel's routes say: known only of the own address.
    fn fib(&self, result: u32, flags: u32) -> Vec<Byte> {
        const TYPE: u32 = 3;
        const LOCAL: u32 = 2; // RTN_LOCAL
        const SOURCE: u32 = 1;
        const DESTINATION: u32 = 2;
        let asked = flags & (SOURCE | DESTINATION);
        let of_own = asked == if self.packet.outgoing { SOURCE } else { DESTINATION };
        if result == TYPE && of_own {
            return LOCAL.to_ne_bytes().map(Byte::is).to_vec();
        }
        vec![Byte::UNKNOWN; 16]
    }
}

/// Writes to registers: what is left of the last word becomes zero.
fn store(registers: &mut [Byte; REGISTERS], to: Register, bytes: &[Byte]) {
    let words = bytes.len().next_multiple_of(4);
    for (index, register) in registers.iter_mut().skip(to).take(words).enumerate() {
        *register = bytes.get(index).copied().unwrap_or(Byte::is(0));
    }
}

/// An interface's name as registers have it.
fn padded(name: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(name.bytes().take(15)) {
        *to = from;
    }
    bytes
}

/// Who finds that in a set.
struct Found {
    data: Data,
    yes: Span,
    maybe: Span,
}

type Ranges = Vec<(u128, u128)>;

/// What those who are here find in a set: each value once.
fn find(set: &Set, key: Bytes<'_>, here: &Span) -> Vec<Found> {
    let whole = (0, super::span::last(key.bits));
    let mut found: HashMap<&Data, (Ranges, Ranges)> = HashMap::new();
    let mut order: Vec<&Data> = Vec::new();
    for element in &set.elements {
        let mut range = whole;
        let mut rest = if element.sometimes { Outcome::Maybe } else { Outcome::Yes };
        let mut at = 0;
        for &length in &set.fields {
            let field = at..at + length;
            at += length.next_multiple_of(4);
            let (Some(low), Some(high)) = (element.low.get(field.clone()), element.high.get(field.clone()))
            else {
                rest = Outcome::Maybe;
                continue;
            };
            let bytes = Bytes { bytes: key.bytes.get(field).unwrap_or_default(), ..key };
            match bytes.range(low, high) {
                Some((low, high)) => range = (range.0.max(low), range.1.min(high)),
                None => rest = rest.and(bytes.between(low, high), key.bits),
            }
        }
        if range.0 > range.1 || rest == Outcome::No {
            continue;
        }
        let (yes, maybe) = found.entry(&element.data).or_insert_with(|| {
            order.push(&element.data);
            Default::default()
        });
        match rest {
            Outcome::Yes => yes.push(range),
            Outcome::No => {}
            Outcome::Maybe => maybe.push(range),
            Outcome::Where { yes: surely, maybe: perhaps } => {
                let within = Span::of(vec![range]);
                yes.extend(surely.intersection(&within).ranges());
                maybe.extend(perhaps.intersection(&within).ranges());
            }
        }
    }
    let mut all = Span::none();
    let mut sure = Span::none();
    let mut result: Vec<Found> = order
        .into_iter()
        .filter_map(|data| {
            let (yes, maybe) = found.remove(data)?;
            let (yes, maybe) = (Span::of(yes).intersection(here), Span::of(maybe).intersection(here));
            all = all.union(&yes).union(&maybe);
            sure = sure.union(&yes);
            Some(Found { data: data.clone(), maybe: maybe.without(&yes), yes })
        })
        .collect();
    if let Some(data) = &set.catch_all {
        let (yes, maybe) = (here.without(&all), all.intersection(here).without(&sure));
        result.push(Found { data: data.clone(), yes, maybe });
    }
    result
}

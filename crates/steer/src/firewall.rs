//! The host's firewall, for frames that it never sees: what its rules say of a listener's peers and of a connection is found out
//! beforehand. Only who is accepted for certain, on the whole way in and out, is a stack's; all others are passed to the kernel,
//! which judges them itself. See docs/firewall.md.

mod apply;
mod evaluate;
mod outside;
mod parse;
mod read;
mod ruleset;
mod span;
#[cfg(test)]
mod tests;
mod text;
mod value;
mod verdicts;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use overfly_link::xdp::STACKS_MAX;
use rustix::io::Errno;

use crate::error::Error;
use crate::groups::BoundAddress;
use crate::netlink::{Monitor, Netlink};
use evaluate::{Packet, judge};
pub(crate) use outside::ControlGroups;
use ruleset::{Expression, Ruleset};
pub(crate) use span::{Span, number};
pub(crate) use verdicts::Verdicts;

const TCP: u8 = 6;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
/// What packets of an open connection have.
const FLAGS: [u8; 5] = [ACK, PSH | ACK, FIN | ACK, RST | ACK, RST];
/// Rules that are written one by one are read a few times, not as often.
const PAUSE: Duration = Duration::from_millis(20);
/// How often the old tables are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How long after it could not be read a ruleset is read again.
const AGAIN: Duration = Duration::from_millis(200);

/// What the rules say of somewhere that is listened at.
#[derive(Debug, Clone, Default)]
pub(crate) struct Listening {
    /// Whom they let through for certain, in both directions.
    pub(crate) accepted: Span,
    /// Whose open connections they let through.
    established: Span,
    /// Why nobody is let through for certain, where some might be.
    pub(crate) blame: Option<String>,
}

/// The rules in force for one interface.
pub(crate) struct Firewall {
    interface: u32,
    name: String,
    netlink: Netlink,
    monitor: Monitor,
    /// As they were last read; the error if they could not be.
    ruleset: Result<Ruleset, Errno>,
    /// Tables of the old ip_tables and ip6_tables: nobody follows them, and nobody tells when they come.
    old_tables: [Vec<String>; 2],
    /// When they were read, and whether they have changed since.
    read_at: Instant,
    changed: bool,
    /// What they say of places.
    listening: BTreeMap<BoundAddress, Listening>,
    /// Stacks whose packets a program of their process's control group judges, which nobody follows: a bit for each place.
    judged: u64,
}

impl Firewall {
    /// Reads the rules of this thread's network namespace, and watches them from now on.
    pub(crate) fn open(interface: u32, name: &str) -> Result<Firewall, Error> {
        let unreadable =
            |errno| Error::system("reading the firewall's rules (EF_FIREWALL=ignore does without)", errno);
        let monitor = Monitor::of_rules().map_err(unreadable)?;
        let mut netlink = Netlink::open_netfilter().map_err(unreadable)?;
        let ruleset = read::read(&mut netlink);
        if let Err(errno @ (Errno::PERM | Errno::ACCESS)) = ruleset {
            return Err(unreadable(errno));
        }
        Ok(Firewall {
            interface,
            name: name.to_owned(),
            netlink,
            monitor,
            ruleset,
            old_tables: [true, false].map(outside::old_tables),
            read_at: Instant::now(),
            changed: false,
            listening: BTreeMap::new(),
            judged: 0,
        })
    }

    /// Says whose packets are judged by programs of control groups from now on. True if it is news.
    pub(crate) fn set_judged(&mut self, stacks: impl Iterator<Item = u16>) -> bool {
        let judged = stacks.fold(0, |judged, stack| judged | 1 << (stack % STACKS_MAX));
        std::mem::replace(&mut self.judged, judged) != judged
    }

    /// Whether such a program judges a stack's packets.
    pub(crate) const fn is_judged(&self, stack: u16) -> bool {
        self.judged >> (stack % STACKS_MAX) & 1 != 0
    }

    /// The interface has gone, and another one of its name has come.
    pub(crate) fn moves_to(&mut self, interface: u32) {
        self.interface = interface;
        self.listening.clear();
    }

    /// Reads the rules again if they have changed, an element has expired, or they could not be read, and the time has come.
    /// True if they may say something else now.
    pub(crate) fn refresh(&mut self) -> bool {
        self.changed |= self.monitor.changes().others;
        if self.due().is_none_or(|due| due > Instant::now()) {
            return false;
        }
        let changed = std::mem::take(&mut self.changed);
        self.read_at = Instant::now();
        let old_tables = [true, false].map(outside::old_tables);
        // Where nothing has changed but the time, there may be nothing new at all.
        let same = !changed
            && old_tables == self.old_tables
            && self.next_expiry().is_none_or(|at| at > self.read_at);
        self.old_tables = old_tables;
        if same && self.ruleset.is_ok() {
            return false;
        }
        self.ruleset = read::read(&mut self.netlink);
        self.listening.clear();
        true
    }

    /// When the first element of a set expires; the kernel rounds to its ticks.
    fn next_expiry(&self) -> Option<Instant> {
        Some(self.ruleset.as_ref().ok()?.expires? + Duration::from_millis(5))
    }

    /// When [`Firewall::refresh`] has something to do, if nothing changes until then.
    pub(crate) fn due(&self) -> Option<Instant> {
        let pause = match &self.ruleset {
            Err(_) => AGAIN,
            Ok(_) if self.changed => PAUSE,
            Ok(_) => LOOK,
        };
        let soonest = self.read_at + PAUSE;
        Some(self.next_expiry().map_or(self.read_at + pause, |at| at.max(soonest).min(self.read_at + pause)))
    }

    /// Whether no rule is in anybody's way.
    pub(crate) fn is_empty(&self) -> bool {
        self.ruleset.as_ref().is_ok_and(Ruleset::is_empty) && self.old_tables.iter().all(Vec::is_empty)
    }

    /// Why nobody knows what becomes of packets of this family.
    fn unknown(&self, ipv4: bool) -> Option<String> {
        let tables = &self.old_tables[usize::from(!ipv4)];
        if let Err(errno) = &self.ruleset {
            return Some(format!("the rules of nf_tables cannot be read ({errno})"));
        }
        (!tables.is_empty()).then(|| {
            let program = if ipv4 { "iptables-legacy" } else { "ip6tables-legacy" };
            let tables = tables.join(", ");
            format!("the tables {tables} of {program} cannot be followed: write their rules with nft or iptables-nft")
        })
    }

    /// Whom the rules let through to a listener.
    pub(crate) fn listening(&mut self, place: &BoundAddress) -> &Listening {
        if !self.listening.contains_key(place) {
            let listening = self.judge_listening(place);
            self.listening.insert(*place, listening);
        }
        &self.listening[place]
    }

    fn judge_listening(&self, place: &BoundAddress) -> Listening {
        let bits = if place.address.is_ipv4() { 32 } else { 128 };
        let first = self.packet(place, None, Some(true));
        let open = Packet { established: true, heeds_log: false, ..first };
        let (established, _) = self.both_ways(open, &Span::all(bits), Span::none());
        let packet = Packet { flags: SYN, ..first };
        let (Ok(ruleset), None) = (&self.ruleset, self.unknown(bits == 32)) else {
            let blame = self.unknown(bits == 32);
            return Listening { accepted: Span::none(), established, blame };
        };
        let begun = judge(ruleset, packet, &Span::all(bits), &Span::none());
        let answer = Packet { established: true, outgoing: true, flags: SYN | ACK, ..first };
        let answered = judge(ruleset, answer, &begun.accepted, &begun.untracked);
        let unclear = begun.untracked.union(&answered.untracked);
        let (accepted, blame) =
            self.both_ways(Packet { established: true, ..first }, &answered.accepted, unclear);
        let nobody = accepted.is_empty() && !begun.possible.is_empty();
        let blame = begun.blame.or(answered.blame).or(blame).filter(|_| nobody);
        Listening { accepted, established, blame }
    }

    /// Of these peers, those whose open connection goes on in both directions; of `unclear` ones conntrack has not seen the beginning.
    fn both_ways(&self, packet: Packet<'_>, peers: &Span, mut unclear: Span) -> (Span, Option<String>) {
        let Ok(ruleset) = &self.ruleset else { return (peers.clone(), None) };
        loop {
            let (mut accepted, mut blame, mut untracked) = (peers.clone(), None, unclear.clone());
            for outgoing in [false, true] {
                let flags = if packet.protocol == TCP { &FLAGS[..] } else { &[0] };
                for &flags in flags {
                    let judgement = judge(ruleset, Packet { outgoing, flags, ..packet }, &accepted, &unclear);
                    untracked = untracked.union(&judgement.untracked);
                    accepted = judgement.accepted;
                    blame = blame.or(judgement.blame);
                }
            }
            // What goes one way unseen makes what comes the other way unclear.
            if untracked.without(&unclear).is_empty() {
                return (accepted, blame);
            }
            unclear = untracked;
        }
    }

    fn packet(
        &self,
        place: &BoundAddress,
        remote_port: Option<u16>,
        opened_by_peer: Option<bool>,
    ) -> Packet<'_> {
        Packet {
            interface: self.interface,
            name: &self.name,
            outgoing: false,
            protocol: place.protocol as u8,
            local: place.address,
            local_port: (place.port != 0).then_some(place.port),
            remote_port,
            established: false,
            opened_by_peer,
            flags: 0,
            heeds_log: true,
        }
    }

    /// Whether the rules let a connection through that is opened from here.
    ///
    /// # Errors
    /// [`Error::Firewall`]: it is the kernel's.
    pub(crate) fn admits(&self, local: &BoundAddress, remote: SocketAddr) -> Result<(), Error> {
        if self.is_empty() {
            return Ok(());
        }
        let peer = Span::one(number(remote.ip().to_canonical()));
        let port = (remote.port() != 0).then_some(remote.port());
        let first = Packet { flags: SYN, outgoing: true, ..self.packet(local, port, Some(false)) };
        let no = |what: &str| {
            Error::Firewall(format!("the way to {} is not open for certain: {what}", remote.ip()))
        };
        if let Some(unknown) = self.unknown(local.address.is_ipv4()) {
            return Err(no(&unknown));
        }
        let Ok(ruleset) = &self.ruleset else { return Ok(()) };
        let begun = judge(ruleset, first, &peer, &Span::none());
        let answer = Packet { established: true, outgoing: false, flags: SYN | ACK, ..first };
        let answered = judge(ruleset, answer, &begun.accepted, &begun.untracked);
        let unclear = begun.untracked.union(&answered.untracked);
        let (accepted, blame) =
            self.both_ways(Packet { established: true, ..first }, &answered.accepted, unclear);
        if accepted.is_empty() {
            let blame = begun.blame.or(answered.blame).or(blame);
            return Err(no(blame.as_deref().unwrap_or("the rules refuse it")));
        }
        Ok(())
    }

    /// Whether the rules let a socket's datagrams through to a peer, and the peer's.
    ///
    /// # Errors
    /// [`Error::Firewall`]: they are the kernel's.
    pub(crate) fn admits_datagrams(&mut self, local: &BoundAddress, peer: IpAddr) -> Result<(), Error> {
        self.admits(local, SocketAddr::new(peer, 0))?;
        if self.is_empty() || self.listening(local).accepted.contains(number(peer)) {
            return Ok(());
        }
        Err(Error::Firewall(format!("datagrams of {peer} are the kernel's, and so are those to it")))
    }

    /// Whether an open connection of a stack's goes on.
    pub(crate) fn lets_go_on(
        &mut self,
        local: &BoundAddress,
        remote: SocketAddr,
        opened_by_peer: bool,
    ) -> bool {
        let address = number(remote.ip().to_canonical());
        if self.is_empty() || opened_by_peer && self.listening(local).established.contains(address) {
            return true;
        }
        let packet = self.packet(local, Some(remote.port()), Some(opened_by_peer));
        let packet = Packet { established: true, heeds_log: false, ..packet };
        !self.both_ways(packet, &Span::one(address), Span::none()).0.is_empty()
    }

    /// Whether every connection that a listener may have goes on.
    pub(crate) fn lets_all_go_on(&mut self, place: &BoundAddress) -> bool {
        let bits = if place.address.is_ipv4() { 32 } else { 128 };
        self.is_empty() || self.listening(place).established.is_all(bits)
    }
}

/// What rules this thread's network namespace has, in a few words.
///
/// # Errors
/// What the kernel said.
pub fn firewall_in_force() -> Result<String, Error> {
    let unreadable = |errno| Error::system("reading the firewall's rules", errno);
    let mut netlink = Netlink::open_netfilter().map_err(unreadable)?;
    let ruleset = read::read(&mut netlink).map_err(unreadable)?;
    let old: Vec<String> = [true, false].into_iter().flat_map(outside::old_tables).collect();
    if ruleset.is_empty() && old.is_empty() {
        return Ok("no rules: nothing is looked up".to_owned());
    }
    let (mut chains, mut rules, mut beyond) = (0, 0, None);
    for table in ruleset.tables.iter().filter(|table| !table.dormant) {
        for chain in &table.chains {
            chains += usize::from(chain.base.is_some());
            rules += chain.rules.len();
            for rule in &chain.rules {
                let what = rule.expressions.iter().find_map(Expression::beyond);
                beyond = beyond.or_else(|| what.map(|what| text::rule(table, chain, rule, what)));
            }
        }
    }
    let mut words = format!(
        "{rules} rules in {chains} base chains of nf_tables: whom they do not accept for certain, the kernel serves"
    );
    if let Some(beyond) = beyond {
        words += &format!(", and whoever meets those that only it can follow (the first: {beyond})");
    }
    if !old.is_empty() {
        words += &format!(
            "; nobody follows the tables {} of iptables-legacy: that family is the kernel's",
            old.join(", ")
        );
    }
    Ok(words)
}

/// Readable when the rules change.
impl AsFd for Firewall {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.monitor.as_fd()
    }
}

//! One stack's end of several ring pairs.

use core::time::Duration;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use overfly_wire::{FrameSink, Unfinished};

use super::doorbell::Doorbell;
use super::{Counters, FRAME_LEN_MAX, LinkState, MemifLink};
use crate::counters::counters;
use crate::finish;

/// A hardware address.
type Mac = [u8; 6];

/// Hardware addresses that are remembered for one link, at most: a peer chooses how many there seem to be behind it. One more
/// takes another's place, which is the same peer's.
const MACS_PER_LINK: usize = 256;
/// How long a link must have said nothing before another one may have its addresses.
const SILENCE: Duration = Duration::from_secs(30);
/// Bytes of memory that all peers together have mapped here at most: 240 of the usual size. What this end touches of it may be
/// charged to this end.
const MEMORY_MAX: u64 = 1 << 30;
/// Links at most: each is looked at in every turn.
const LINKS_MAX: usize = 1024;
const PROTOCOL_TCP: u8 = 6;
const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];

counters! {
    /// What a [`Hub`] has done besides what its links count.
    HubCounters {
        /// Broadcasts and multicasts, sent over all links.
        flooded,
        /// Frames dropped because nobody is known to have the address that they are for.
        dropped_unknown,
        /// Received frames dropped because their source address is another link's, or nobody can have it.
        refused_sources,
        /// Links that were not taken because the others have all the memory or all the places.
        refused_links,
        /// Frames dropped because the link's ring was full.
        dropped_full,
        /// Frames dropped because there is no link.
        dropped_no_peer,
        /// Links that were taken out because their peer had gone.
        peers_gone,
        /// Links that were taken out because their peer broke the protocol.
        peers_broken,
    }
}

/// Whose an address is.
#[derive(Debug)]
struct Owner {
    link: usize,
    /// When another link claimed it, and what its owner had sent by then.
    claimed: Option<(Instant, u64)>,
}

/// What is behind a link.
#[derive(Debug, Default)]
struct Behind {
    /// The source of the last frame.
    latest: Mac,
    /// Its addresses in the table.
    macs: Vec<Mac>,
    /// Which of them goes next if there are too many.
    oldest: usize,
    /// Frames that it has sent.
    frames: u64,
}

/// A learning switch between one stack and any number of links. Links come ([`Hub::attach`]) and go by themselves when
/// their peers do.
///
/// The stack sends as if every peer took 64 KB frames and unfinished checksums: where one does not, its frames are cut and
/// summed here. An address is the first link's that sends from it, until that goes or is silent; frames to addresses that are
/// nobody's are dropped, so no peer sees another's. With one Overfly peer, frames are written straight into its memory; otherwise they are copied once.
#[derive(Debug)]
pub struct Hub {
    links: Vec<MemifLink>,
    /// Which link each address is behind.
    table: HashMap<Mac, Owner>,
    /// What is behind each link.
    behind: Vec<Behind>,
    /// A link whose address another one claims: it may have gone.
    disputed: Option<usize>,
    /// Where `receive` begins, so that no link starves another.
    first: usize,
    /// A frame that is being written, unless it is written into the only link's memory.
    scratch: Box<[u8]>,
    /// The links' counters that have gone.
    past: Counters,
    /// Who was behind them, until somebody asks.
    gone: Vec<Mac>,
    /// Broadcasts go to everybody, and peers may be strangers to each other.
    floods: bool,
    counters: HubCounters,
}

impl Default for Hub {
    fn default() -> Hub {
        Hub {
            links: Vec::new(),
            table: HashMap::new(),
            behind: Vec::new(),
            disputed: None,
            first: 0,
            scratch: vec![0; FRAME_LEN_MAX].into_boxed_slice(),
            past: Counters::default(),
            gone: Vec::new(),
            floods: true,
            counters: HubCounters::default(),
        }
    }
}

impl Hub {
    /// One whose stack knows all its next hops: what is for somebody else is for somebody who has gone.
    pub(super) fn without_flooding() -> Hub {
        Hub { floods: false, ..Hub::default() }
    }

    /// One more link. It is dropped, and its peer hears that it is over, if the others leave no room for it
    /// ([`HubCounters::refused_links`]).
    pub fn attach(&mut self, link: MemifLink) {
        // An old link of the same peer's must not be in the way.
        self.check_peers();
        let memory: u64 = self.links.iter().map(MemifLink::memory).sum();
        if self.floods && (self.links.len() >= LINKS_MAX || memory + link.memory() > MEMORY_MAX) {
            self.counters.refused_links += 1;
            return;
        }
        self.links.push(link);
        self.behind.push(Behind::default());
    }

    /// One more link, whose peer this end calls `name`: frames to that address leave over it.
    pub(super) fn attach_as(&mut self, link: MemifLink, name: Mac) {
        self.attach(link);
        self.table.insert(name, Owner { link: self.links.len() - 1, claimed: None });
    }

    /// Links that there are.
    #[must_use]
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// As [`MemifLink::receive`], of all links. Frames that are refused ([`HubCounters::refused_sources`]) count, too.
    #[inline]
    pub fn receive(&mut self, budget: usize, mut each: impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        let mut gone = false;
        for turn in 0..self.links.len() {
            let index = (self.first + turn) % self.links.len();
            let Hub { table, behind, disputed, counters, links, .. } = self;
            let link = &mut links[index];
            let received = link.receive(budget - count, |frame| {
                let source = frame.get(6..12).and_then(<[u8]>::first_chunk::<6>);
                let known = source.is_some_and(|source| *source == behind[index].latest);
                if (known || learn(table, behind, disputed, index, source)) && !is_false_arp(frame) {
                    each(frame);
                } else {
                    counters.refused_sources += 1;
                }
            });
            behind[index].frames += received as u64;
            count += received;
            gone |= link.state() != LinkState::Up;
            if count == budget {
                self.first = index + 1;
                break;
            }
        }
        if let Some(owner) = self.disputed.take() {
            gone |= self.links.get_mut(owner).is_some_and(|link| !link.check_peer());
        }
        if gone {
            self.remove_the_gone();
        }
        count
    }

    /// As [`MemifLink::flush`].
    #[inline]
    pub fn flush(&mut self) {
        for link in &mut self.links {
            link.flush();
        }
    }

    /// As [`MemifLink::arm`].
    pub fn arm(&mut self) -> bool {
        self.check_peers();
        self.arm_unchecked()
    }

    /// As [`Hub::arm`], where a doorbell rings for all descriptors of the links: one system call for all of them.
    pub(super) fn arm_by(&mut self, doorbell: &Doorbell) -> bool {
        doorbell.rings_for(|number| self.links.iter_mut().for_each(|link| link.heed_descriptor(number)));
        self.remove_the_gone();
        self.arm_unchecked()
    }

    /// As [`MemifLink::arm_unchecked`].
    pub(super) fn arm_unchecked(&mut self) -> bool {
        let mut safe = true;
        for link in &mut self.links {
            safe &= link.arm_unchecked();
        }
        safe
    }

    /// Whether both lead to the same peer.
    pub(super) fn is_same(&self, one: Mac, other: Mac) -> bool {
        let link = |mac| self.table.get(mac).map(|owner| owner.link);
        link(&one).is_some_and(|index| link(&other) == Some(index))
    }

    /// Looks whether all peers still live.
    pub(super) fn check_peers(&mut self) {
        for link in &mut self.links {
            link.check_peer();
        }
        self.remove_the_gone();
    }

    /// As [`MemifLink::descriptors`]. They change when links come and go.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.links.iter().flat_map(MemifLink::descriptors)
    }

    /// The hardware addresses that were seen behind links which have gone since this was last asked.
    pub fn take_gone(&mut self) -> Vec<Mac> {
        core::mem::take(&mut self.gone)
    }

    /// What all links have done, those that are gone too.
    #[must_use]
    pub fn link_counters(&self) -> Counters {
        let mut sum = self.past;
        for link in &self.links {
            sum += *link.counters();
        }
        sum
    }

    /// What this hub has done.
    #[must_use]
    pub fn counters(&self) -> &HubCounters {
        &self.counters
    }

    fn remove_the_gone(&mut self) {
        if self.links.iter().any(|link| link.state() != LinkState::Up) {
            self.remove_those_gone();
        }
    }

    #[cold]
    fn remove_those_gone(&mut self) {
        let Hub { links, table, past, gone, counters, .. } = self;
        let before = links.len();
        // Where those that stay will be.
        let mut places = Vec::with_capacity(before);
        let mut next = 0;
        for link in links.iter() {
            let stays = link.state() == LinkState::Up;
            places.push(stays.then_some(next));
            next += usize::from(stays);
        }
        table.retain(|mac, owner| match places.get(owner.link).copied().flatten() {
            Some(place) => {
                owner.link = place;
                true
            }
            None => {
                gone.push(*mac);
                false
            }
        });
        links.retain(|link| {
            match link.state() {
                LinkState::Up => return true,
                LinkState::PeerGone => counters.peers_gone += 1,
                LinkState::PeerBroken(_) => counters.peers_broken += 1,
            }
            *past += *link.counters();
            false
        });
        let mut stays = places.iter().map(Option::is_some);
        self.behind.retain(|_| stays.next().unwrap_or_default());
        self.first = 0;
    }

    /// The only link, if its peer takes all that a stack sends.
    #[inline]
    fn direct(&mut self) -> Option<&mut MemifLink> {
        match self.links.as_mut_slice() {
            [link] if link.offload() => Some(link),
            _ => None,
        }
    }

    /// Sends the frame in the scratch where it should go.
    #[cold]
    fn forward(&mut self, length: usize, left: Unfinished) {
        let scratch = core::mem::take(&mut self.scratch);
        self.send(&scratch[..length.min(scratch.len())], left);
        self.scratch = scratch;
    }

    /// Sends a frame where it should go.
    pub(super) fn send(&mut self, frame: &[u8], left: Unfinished) {
        let destination = frame.first_chunk::<6>().copied().unwrap_or_default();
        let only = match self.links.len() {
            1 => Some(0),
            _ => self.table.get(&destination).map(|owner| owner.link),
        };
        let links = match only {
            Some(index) => self.links.get_mut(index..=index).unwrap_or_default(),
            None if self.links.is_empty() => {
                self.counters.dropped_no_peer += 1;
                &mut []
            }
            None if self.floods && is_group(destination) && !is_tcp(frame) => {
                self.counters.flooded += 1;
                self.links.as_mut_slice()
            }
            None => {
                self.counters.dropped_unknown += 1;
                &mut []
            }
        };
        for link in links {
            let sent = if link.offload() { copy(frame, link) } else { finish::send(frame, left, link) };
            self.counters.dropped_full += u64::from(!sent);
        }
    }
}

/// A frame comes from `source` over a link. Returns whether it may: the address is that link's from now on, or was.
#[cold]
fn learn(
    table: &mut HashMap<Mac, Owner>,
    behind: &mut [Behind],
    disputed: &mut Option<usize>,
    link: usize,
    source: Option<&Mac>,
) -> bool {
    let Some(source) = source.copied().filter(|&source| !is_group(source)) else { return false };
    match table.get_mut(&source) {
        Some(owner) if owner.link == link => {}
        Some(owner) => {
            *disputed = Some(owner.link);
            let (now, sent) = (Instant::now(), behind[owner.link].frames);
            match owner.claimed {
                Some((since, before)) if before == sent => {
                    if now - since < SILENCE {
                        return false;
                    }
                }
                _ => {
                    owner.claimed = Some((now, sent));
                    return false;
                }
            }
            let former = &mut behind[owner.link];
            former.macs.retain(|&mac| mac != source);
            (former.oldest, former.latest) = (0, Mac::default());
            *owner = Owner { link, claimed: None };
            note(table, &mut behind[link], source);
        }
        None => {
            table.insert(source, Owner { link, claimed: None });
            note(table, &mut behind[link], source);
        }
    }
    behind[link].latest = source;
    true
}

/// One more address behind a link, in place of an old one if there are too many.
fn note(table: &mut HashMap<Mac, Owner>, behind: &mut Behind, mac: Mac) {
    if behind.macs.len() < MACS_PER_LINK {
        behind.macs.push(mac);
        return;
    }
    let oldest = core::mem::replace(&mut behind.macs[behind.oldest], mac);
    behind.oldest = (behind.oldest + 1) % MACS_PER_LINK;
    table.remove(&oldest);
}

/// Of several stations (IEEE 802.3).
fn is_group(mac: Mac) -> bool {
    mac[0] & 1 != 0
}

/// TCP is between two: such a frame to a group is for a peer that says it has a group's address.
fn is_tcp(frame: &[u8]) -> bool {
    match frame.get(12..14) {
        Some([0x08, 0x00]) => frame.get(23) == Some(&PROTOCOL_TCP),
        Some([0x86, 0xdd]) => frame.get(20) == Some(&PROTOCOL_TCP),
        _ => false,
    }
}

/// ARP in which somebody says another hardware address than it sends from (RFC 826: `ar$sha`).
#[inline]
fn is_false_arp(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&ETHERTYPE_ARP) && frame.get(22..28) != frame.get(6..12)
}

fn copy(frame: &[u8], link: &mut MemifLink) -> bool {
    let Some(buffer) = link.frame() else { return false };
    buffer[..frame.len()].copy_from_slice(frame);
    link.commit(frame.len());
    true
}

impl FrameSink for Hub {
    #[inline]
    fn frame(&mut self) -> Option<&mut [u8]> {
        match self.links.as_mut_slice() {
            [link] if link.offload() => link.frame(),
            _ => Some(&mut self.scratch),
        }
    }

    #[inline]
    fn commit(&mut self, length: usize) {
        self.commit_unfinished(length, Unfinished::default());
    }

    #[inline]
    fn commit_unfinished(&mut self, length: usize, left: Unfinished) {
        match self.direct() {
            Some(link) => link.commit(length),
            None => self.forward(length, left),
        }
    }
}

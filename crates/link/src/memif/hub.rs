//! One stack's end of several ring pairs.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;

use overfly_wire::{FrameSink, Unfinished};

use super::{Counters, FRAME_LEN_MAX, MemifLink, State};
use crate::finish;

/// A hardware address.
type Mac = [u8; 6];

/// Hardware addresses that are remembered at most: peers choose how many there seem to be.
const MACS_MAX: usize = 1024;

/// What a [`Hub`] has done besides what its links count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HubCounters {
    /// Frames to an address that no link is known to lead to, sent over all of them; broadcasts among them.
    pub flooded: u64,
    /// Frames dropped because the link's ring was full.
    pub dropped_full: u64,
    /// Frames dropped because there is no link.
    pub dropped_no_peer: u64,
    /// Links that were taken out because their peer had gone.
    pub peers_gone: u64,
    /// Links that were taken out because their peer broke the protocol.
    pub peers_broken: u64,
}

impl HubCounters {
    /// Each counter with its name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("flooded", self.flooded),
            ("dropped_full", self.dropped_full),
            ("dropped_no_peer", self.dropped_no_peer),
            ("peers_gone", self.peers_gone),
            ("peers_broken", self.peers_broken),
        ]
        .into_iter()
    }
}

/// A learning switch between one stack and any number of links. Links come ([`Hub::attach`]) and go by themselves when
/// their peers do.
///
/// The stack sends as if every peer took 64 KB frames and unfinished checksums: where one does not, its frames are cut and
/// summed here. With one Overfly peer, frames are written straight into its memory; otherwise they are copied once.
#[derive(Debug)]
pub struct Hub {
    links: Vec<MemifLink>,
    /// Who is behind which link.
    table: HashMap<Mac, usize>,
    /// The source of the last frame from each link.
    latest: Vec<Mac>,
    /// Where `receive` begins, so that no link starves another.
    first: usize,
    /// A frame that is being written, unless it is written into the only link's memory.
    scratch: Box<[u8]>,
    /// The links' counters that have gone.
    past: Counters,
    /// Who was behind them, until somebody asks.
    gone: Vec<Mac>,
    /// What is for nobody known goes to everybody.
    floods: bool,
    counters: HubCounters,
}

impl Default for Hub {
    fn default() -> Hub {
        Hub {
            links: Vec::new(),
            table: HashMap::new(),
            latest: Vec::new(),
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

    /// One more link.
    pub fn attach(&mut self, link: MemifLink) {
        self.links.push(link);
        self.latest.push(Mac::default());
    }

    /// One more link, whose peer this end calls `name`: frames to that address leave over it.
    pub(super) fn attach_as(&mut self, link: MemifLink, name: Mac) {
        self.table.insert(name, self.links.len());
        self.attach(link);
    }

    /// Links that there are.
    #[must_use]
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// As [`MemifLink::receive`], of all links.
    #[inline]
    pub fn receive(&mut self, budget: usize, mut each: impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        let mut gone = false;
        for turn in 0..self.links.len() {
            let index = (self.first + turn) % self.links.len();
            let (latest, table) = (&mut self.latest[index], &mut self.table);
            let link = &mut self.links[index];
            count += link.receive(budget - count, |frame| {
                learn(latest, table, index, frame);
                each(frame);
            });
            gone |= link.state() != State::Up;
            if count == budget {
                self.first = index + 1;
                break;
            }
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
        let mut safe = true;
        for link in &mut self.links {
            safe &= link.arm();
        }
        self.remove_the_gone();
        safe
    }

    /// Whether both lead to the same peer.
    pub(super) fn is_same(&self, one: Mac, other: Mac) -> bool {
        self.table.get(&one).is_some_and(|index| self.table.get(&other) == Some(index))
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

    #[cold]
    fn remove_the_gone(&mut self) {
        let Hub { links, table, past, gone, counters, .. } = self;
        let before = links.len();
        // Where those that stay will be.
        let mut places = Vec::with_capacity(before);
        let mut next = 0;
        for link in links.iter() {
            let stays = link.state() == State::Up;
            places.push(stays.then_some(next));
            next += usize::from(stays);
        }
        table.retain(|mac, index| match places.get(*index).copied().flatten() {
            Some(place) => {
                *index = place;
                true
            }
            None => {
                gone.push(*mac);
                false
            }
        });
        links.retain(|link| {
            match link.state() {
                State::Up => return true,
                State::PeerGone => counters.peers_gone += 1,
                State::PeerBroken(_) => counters.peers_broken += 1,
            }
            *past += *link.counters();
            false
        });
        if links.len() != before {
            self.latest.clear();
            self.latest.resize(links.len(), Mac::default());
            self.first = 0;
        }
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
        let only = if self.links.len() == 1 { Some(0) } else { self.table.get(&destination).copied() };
        let links = match only {
            Some(index) => self.links.get_mut(index..=index).unwrap_or_default(),
            None if self.floods => {
                self.counters.flooded += 1;
                self.links.as_mut_slice()
            }
            None => &mut [],
        };
        if links.is_empty() {
            self.counters.dropped_no_peer += 1;
        }
        for link in links {
            let sent = if link.offload() { copy(frame, link) } else { finish::send(frame, left, link) };
            self.counters.dropped_full += u64::from(!sent);
        }
    }
}

#[inline]
fn learn(latest: &mut Mac, table: &mut HashMap<Mac, usize>, index: usize, frame: &[u8]) {
    let Some(source) = frame.get(6..12).and_then(<[u8]>::first_chunk::<6>) else { return };
    if source != latest {
        *latest = *source;
        if table.len() < MACS_MAX || table.contains_key(source) {
            table.insert(*source, index);
        }
    }
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

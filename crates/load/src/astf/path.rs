//! The path that a template's packets take, simulated: one-way delay, jitter and loss of what a side sends.
//!
//! A frame that is under way is its headers and a reference to its payload, which stands in the template's buffer and is copied
//! when the frame leaves. So a path of 100 ms at 3 million packets a second is 30 MB, not 400.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use overfly_wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, HEADER_LEN as ETHERNET_LEN};
use overfly_wire::{FrameSink, Unfinished, ipv4, ipv6};

use super::address::Range;
use super::counter::{Counter, Tally};
use super::form;
use super::plan::{Plan, Role};
use crate::random::SplitMix;

/// Frames under way at most, of one side of a thread: some 200 MB.
const HELD_MOST: usize = 2 << 20;
const MILLION: u64 = 1_000_000;

/// Which of a run's paths packets to and from a port take.
#[derive(Debug, Clone)]
struct Binding {
    /// `None`: whatever address.
    servers: Option<Range>,
    /// Index into [`Paths::of`].
    path: Option<usize>,
}

/// The paths of what one side sends.
#[derive(Debug, Clone, Default)]
pub(crate) struct Paths {
    /// By protocol and the servers' port; the first binding that fits counts.
    bindings: BTreeMap<(u8, u16), Vec<Binding>>,
    /// Each with the group that its packets are counted in.
    of: Vec<(form::Path, usize)>,
}

/// Two templates of different paths whose packets nothing tells apart.
#[derive(Debug)]
pub(crate) struct Ambiguous;

impl Paths {
    /// Packets to or from `port` at `servers` take this path. Those that are there already go before.
    pub(crate) fn add(
        &mut self,
        (protocol, port): (u8, u16),
        servers: Option<Range>,
        (path, group): (form::Path, usize),
        unknown: usize,
    ) -> Result<(), Ambiguous> {
        let bindings = self.bindings.entry((protocol, port)).or_default();
        let overlaps = |binding: &&mut Binding| match (binding.servers, servers) {
            (Some(one), Some(two)) => one.overlaps(&two),
            // An earlier binding with addresses goes before one that is for all.
            (Some(_), None) => false,
            (None, _) => true,
        };
        for binding in bindings.iter_mut().filter(overlaps) {
            let other = binding.path.map(|index| self.of[index]);
            if other.map_or(form::Path::default(), |(other, _)| other) != path {
                return Err(Ambiguous);
            }
            if let (Some(index), Some((_, other))) = (binding.path, other)
                && other != group
            {
                self.of[index].1 = unknown;
            }
        }
        let index = (path != form::Path::default()).then(|| {
            self.of.iter().position(|known| *known == (path, group)).unwrap_or_else(|| {
                self.of.push((path, group));
                self.of.len() - 1
            })
        });
        bindings.push(Binding { servers, path: index });
        Ok(())
    }

    /// Whether packets go as they would without any.
    pub(crate) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// The longest that a packet is under way, µs.
    pub(crate) fn longest_us(&self) -> u64 {
        self.of
            .iter()
            .map(|(path, _)| u64::from(path.delay_usec) + u64::from(path.jitter_usec))
            .max()
            .unwrap_or(0)
    }

    /// The path of a frame that `role` sends.
    #[inline]
    fn find(&self, role: Role, head: &Head) -> Option<usize> {
        let (address, port) = match role {
            Role::Client => (head.destination, head.ports.1),
            Role::Server => (head.source, head.ports.0),
        };
        let bindings = self.bindings.get(&(head.protocol, port))?;
        bindings.iter().find(|binding| binding.servers.is_none_or(|servers| servers.contains(address)))?.path
    }
}

/// What is looked at of a frame.
struct Head {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    ports: (u16, u16),
}

impl Head {
    /// Of TCP or UDP without IP options or extension headers, as the engine writes them.
    #[inline]
    fn of(frame: &[u8]) -> Option<Head> {
        let packet = frame.get(ETHERNET_LEN..)?;
        let (source, destination, protocol, transport) = match u16::from_be_bytes([frame[12], frame[13]]) {
            ETHERTYPE_IPV4 => {
                let head: &[u8; ipv4::HEADER_LEN] = packet.first_chunk()?;
                let address = |at: usize| Ipv4Addr::new(head[at], head[at + 1], head[at + 2], head[at + 3]);
                (address(12).into(), address(16).into(), head[9], packet.get(ipv4::HEADER_LEN..)?)
            }
            ETHERTYPE_IPV6 => {
                let head: &[u8; ipv6::HEADER_LEN] = packet.first_chunk()?;
                let address = |at: usize| {
                    let octets: [u8; 16] = head[at..at + 16].try_into().unwrap_or_default();
                    IpAddr::from(Ipv6Addr::from(octets))
                };
                (address(8), address(24), head[6], packet.get(ipv6::HEADER_LEN..)?)
            }
            _ => return None,
        };
        let is_known = matches!(protocol, ipv4::PROTOCOL_TCP | ipv4::PROTOCOL_UDP);
        let ports: &[u8; 4] = transport.first_chunk().filter(|_| is_known)?;
        let ports = (u16::from_be_bytes([ports[0], ports[1]]), u16::from_be_bytes([ports[2], ports[3]]));
        Some(Head { source, destination, protocol, ports })
    }
}

/// What the payload that is being written is a part of: the side says so, and whoever holds the frame reads it.
#[derive(Debug, Default)]
pub(crate) struct Note(AtomicU64);

impl Note {
    /// The next frame's payload is that buffer's, from `offset` on. Of one thread: the order of memory is no question.
    #[inline]
    pub(crate) fn set(&self, buffer: u32, offset: u32) {
        self.0.store(u64::from(buffer + 1) << 32 | u64::from(offset), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn take(&self) -> Option<(u32, u32)> {
        let note = self.0.load(Ordering::Relaxed);
        if note == 0 {
            return None;
        }
        self.0.store(0, Ordering::Relaxed);
        Some(((note >> 32) as u32 - 1, note as u32))
    }
}

/// A frame that is under way.
#[derive(Debug)]
struct Held {
    due_us: u64,
    /// Bytes of it in [`Line::bytes`], then so many of a buffer's from `offset` on.
    head: u32,
    payload: u32,
    buffer: u32,
    offset: u32,
    left: Option<Unfinished>,
}

/// One path: what is under way on it, in order.
#[derive(Debug)]
struct Line {
    path: form::Path,
    group: usize,
    held: VecDeque<Held>,
    bytes: VecDeque<u8>,
    last_due_us: u64,
    /// The deviation goes along a straight line from the first to the second, each a time and µs.
    from: (u64, f64),
    to: (u64, f64),
    counts: [(Counter, u64); 3],
}

impl Line {
    fn new((path, group): (form::Path, usize)) -> Line {
        Line {
            path,
            group,
            held: VecDeque::new(),
            bytes: VecDeque::new(),
            last_due_us: 0,
            from: (0, 0.0),
            to: (0, 0.0),
            counts: [(Counter::path_delayed, 0), (Counter::path_lost, 0), (Counter::path_overflow, 0)],
        }
    }

    /// When what leaves now arrives. The deviation heads for a new random value every two jitters: as steep as time at most, so that
    /// packets keep their order.
    #[inline]
    fn due_us(&mut self, now_us: u64, random: &mut SplitMix) -> u64 {
        let delay_us = u64::from(self.path.delay_usec);
        if self.path.jitter_usec == 0 {
            return now_us + delay_us;
        }
        let jitter_us = u64::from(self.path.jitter_usec);
        if now_us >= self.to.0 {
            let mut draw = || random.below(2 * jitter_us + 1) as f64 - jitter_us as f64;
            let is_near = now_us - self.to.0 < 2 * jitter_us;
            self.from = if is_near { self.to } else { (now_us, draw()) };
            self.to = (self.from.0 + 2 * jitter_us, draw());
        }
        let share = (now_us - self.from.0) as f64 / (2 * jitter_us) as f64;
        let deviation = self.from.1 + (self.to.1 - self.from.1) * share;
        let due_us = (now_us + delay_us).saturating_add_signed(deviation as i64);
        self.last_due_us = self.last_due_us.max(due_us);
        self.last_due_us
    }
}

/// All paths of what one side of a thread sends.
#[derive(Debug)]
pub(crate) struct Underway {
    plan: Arc<Plan>,
    role: Role,
    pub(crate) note: Arc<Note>,
    lines: Vec<Line>,
    random: SplitMix,
    held: usize,
    now_us: u64,
}

impl Underway {
    /// `None`: the plan has no paths of that side.
    pub(crate) fn new(plan: &Arc<Plan>, role: Role, seed: u64) -> Option<Underway> {
        let paths = plan.paths(role);
        if paths.is_empty() {
            return None;
        }
        Some(Underway {
            plan: plan.clone(),
            role,
            note: Arc::default(),
            lines: paths.of.iter().copied().map(Line::new).collect(),
            random: SplitMix::new(seed ^ 0x7061_7468 << role as u64),
            held: 0,
            now_us: 0,
        })
    }

    /// Time has gone on.
    #[inline]
    pub(crate) fn at(&mut self, now_us: u64) {
        self.now_us = now_us;
    }

    /// What becomes of a frame that the engine has written. False: it goes out as it is.
    #[inline]
    pub(crate) fn takes(&mut self, frame: &[u8], left: Option<Unfinished>) -> bool {
        let note = self.note.take();
        let Some(head) = Head::of(frame) else { return false };
        let Some(index) = self.plan.paths(self.role).find(self.role, &head) else { return false };
        let line = &mut self.lines[index];
        if line.path.loss_ppm > 0 && self.random.below(MILLION) < line.path.loss_ppm.into() {
            line.counts[1].1 += 1;
            return true;
        }
        if line.path.delay_usec == 0 && line.path.jitter_usec == 0 {
            return false;
        }
        if self.held >= HELD_MOST {
            line.counts[2].1 += 1;
            return true;
        }
        let due_us = line.due_us(self.now_us, &mut self.random);
        let payload = note.map_or(0, |_| payload_len(frame, &head));
        let inline = frame.len() - payload;
        line.bytes.extend(&frame[..inline]);
        let (buffer, offset) = note.unwrap_or_default();
        let (head, payload) = (inline as u32, payload as u32);
        line.held.push_back(Held { due_us, head, payload, buffer, offset, left });
        line.counts[0].1 += 1;
        self.held += 1;
        true
    }

    /// Lets what has arrived go on, as far as `sink` takes it.
    #[inline]
    pub(crate) fn release(&mut self, sink: &mut impl FrameSink) {
        if self.held == 0 {
            return;
        }
        for line in &mut self.lines {
            while line.held.front().is_some_and(|held| held.due_us <= self.now_us) {
                let Some(frame) = sink.frame() else { return };
                let Some(held) = line.held.pop_front() else { break };
                let (head, payload) = (held.head as usize, held.payload as usize);
                let (one, two) = line.bytes.as_slices();
                let first = head.min(one.len());
                frame[..first].copy_from_slice(&one[..first]);
                frame[first..head].copy_from_slice(&two[..head - first]);
                line.bytes.drain(..head);
                if payload > 0 {
                    self.plan.buffers[held.buffer as usize]
                        .copy(held.offset, &mut frame[head..head + payload]);
                }
                match held.left {
                    Some(left) => sink.commit_unfinished(head + payload, left),
                    None => sink.commit(head + payload),
                }
                self.held -= 1;
            }
        }
    }

    /// Frames under way.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// When the next one arrives, µs.
    pub(crate) fn next_us(&self) -> Option<u64> {
        self.lines.iter().filter_map(|line| Some(line.held.front()?.due_us)).min()
    }

    /// Bytes of memory that it takes.
    pub(crate) fn memory(&self) -> usize {
        let bytes = |line: &Line| line.held.capacity() * size_of::<Held>() + line.bytes.capacity();
        self.lines.iter().map(bytes).sum()
    }

    /// Adds what was counted to the tallies of the groups.
    pub(crate) fn count(&self, tallies: &mut [Tally]) {
        for line in &self.lines {
            if let Some(tally) = tallies.get_mut(line.group) {
                line.counts.iter().for_each(|(counter, count)| tally.counts.add(*counter, *count));
            }
        }
    }
}

/// Bytes behind the headers of a frame that the engine has written, into memory that a memif peer might have changed since.
fn payload_len(frame: &[u8], head: &Head) -> usize {
    let transport = ETHERNET_LEN + if head.source.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
    let header = if head.protocol == ipv4::PROTOCOL_UDP {
        overfly_wire::udp::HEADER_LEN
    } else {
        frame.get(transport + 12).map_or(0, |offset| usize::from(offset >> 4) * 4)
    };
    frame.len().saturating_sub(transport + header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_keeps_the_order_and_its_bounds() {
        for seed in 1..=20 {
            println!("seed {seed}");
            let mut random = SplitMix::new(seed);
            let path = form::Path { delay_usec: 10_000, jitter_usec: 4000, loss_ppm: 0 };
            let mut line = Line::new((path, 0));
            let (mut now_us, mut last_us, mut least, mut most) = (0, 0, u64::MAX, 0);
            for round in 0..200_000_u64 {
                now_us += if round % 10_000 == 0 { 50_000 } else { random.below(20) };
                let due_us = line.due_us(now_us, &mut random);
                assert!(due_us >= last_us, "{due_us} after {last_us}");
                last_us = due_us;
                let delay_us = due_us - now_us;
                (least, most) = (least.min(delay_us), most.max(delay_us));
            }
            assert!((6000..7500).contains(&least) && (12_500..=14_001).contains(&most), "{least} to {most}");
        }
    }

    #[test]
    fn a_note_is_for_one_frame() {
        let note = Note::default();
        assert_eq!(note.take(), None);
        note.set(0, 7);
        assert_eq!((note.take(), note.take()), (Some((0, 7)), None));
        note.set(u32::MAX - 1, u32::MAX);
        assert_eq!(note.take(), Some((u32::MAX - 1, u32::MAX)));
    }
}

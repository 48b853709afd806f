//! Out-of-order data, held until the gap before it closes.
//!
//! Segments are copied: frames go back to the link at once, so that a slow gap cannot starve the link of buffers.

use crate::sequence::{at_or_before, before, distance};

/// The out-of-order data of one flow. The segments are in order and do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    segments: Vec<Segment>,
    /// The sequence number of a FIN that arrived early.
    fin: Option<u32>,
}

#[derive(Debug)]
struct Segment {
    sequence: u32,
    data: Box<[u8]>,
}

impl Segment {
    fn end(&self) -> u32 {
        self.sequence.wrapping_add(self.data.len() as u32)
    }
}

/// Segments of one flow at most: the cost of an insertion is bounded by it.
const MAX_SEGMENTS: usize = 1024;

impl Reassembly {
    /// Holds what is new of `data`. `room` is what the budget still allows; returns the bytes added, or `None` if there was
    /// no room.
    pub(crate) fn insert(&mut self, sequence: u32, data: &[u8], room: usize) -> Option<usize> {
        let mut added = 0;
        let mut sequence = sequence;
        let mut data = data;
        let mut position = self.segments.partition_point(|segment| at_or_before(segment.end(), sequence));
        while !data.is_empty() {
            // Cut off what the segment at `position` already holds, then take what lies before it.
            let (gap, covered) = match self.segments.get(position) {
                Some(next) if at_or_before(next.sequence, sequence) => {
                    (0, distance(sequence, next.end()) as usize)
                }
                Some(next) => (distance(sequence, next.sequence) as usize, next.data.len()),
                None => (data.len(), 0),
            };
            let take = gap.min(data.len());
            if take > 0 {
                if added + take > room || self.segments.len() >= MAX_SEGMENTS {
                    return if added > 0 { Some(added) } else { None };
                }
                self.segments.insert(position, Segment { sequence, data: data[..take].into() });
                added += take;
                position += 1;
            }
            let skip = (take + covered).min(data.len());
            sequence = sequence.wrapping_add(skip as u32);
            data = &data[skip..];
            position += usize::from(covered > 0);
        }
        Some(added)
    }

    pub(crate) fn set_fin(&mut self, sequence: u32) {
        self.fin = Some(sequence);
    }

    /// Takes the first segment if it continues the stream at `next`; the bytes before `next` have arrived another way.
    pub(crate) fn take(&mut self, next: u32) -> Option<(Box<[u8]>, usize)> {
        let first = self.segments.first()?;
        if before(next, first.sequence) {
            return None;
        }
        let known = distance(first.sequence, next) as usize;
        let data = self.segments.remove(0).data;
        let known = known.min(data.len());
        Some((data, known))
    }

    pub(crate) fn fin_is_at(&self, next: u32) -> bool {
        self.fin == Some(next)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.fin.is_none()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.segments.iter().map(|segment| segment.data.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random overlapping inserts against a plain array of "byte is here" flags, around the wrap of sequence numbers.
    #[test]
    fn holds_each_byte_once() {
        for seed in 1..500_u32 {
            let base = u32::MAX - 300;
            let stream: Vec<u8> = (0..1000_u32).map(|i| (i * 31 + seed) as u8).collect();
            let mut state = seed.wrapping_mul(2_654_435_761) | 1;
            let mut random = |bound: u32| {
                state ^= state << 13;
                state ^= state >> 17;
                state ^= state << 5;
                state % bound
            };
            let mut reassembly = Reassembly::default();
            let mut here = vec![false; 1000];
            for _ in 0..20 {
                let from = random(990) as usize;
                let to = (from + 1 + random(120) as usize).min(1000);
                let fresh = here[from..to].iter().filter(|h| !**h).count();
                let added = reassembly.insert(base.wrapping_add(from as u32), &stream[from..to], usize::MAX);
                assert_eq!(added, Some(fresh), "seed {seed}");
                here[from..to].fill(true);
            }
            assert_eq!(reassembly.bytes(), here.iter().filter(|h| **h).count(), "seed {seed}");
            let mut next = 0;
            while next < 1000 {
                if !here[next] {
                    assert!(reassembly.take(base.wrapping_add(next as u32)).is_none(), "seed {seed}");
                    next += 1;
                    continue;
                }
                let (data, known) = reassembly.take(base.wrapping_add(next as u32)).expect("a segment");
                assert_eq!(&data[known..], &stream[next..next + data.len() - known], "seed {seed}");
                next += data.len() - known;
            }
            assert!(reassembly.is_empty());
        }
    }

    #[test]
    fn room_bounds_what_is_held() {
        let mut reassembly = Reassembly::default();
        assert_eq!(reassembly.insert(10, &[1; 10], 5), None);
        assert_eq!(reassembly.bytes(), 0);
    }
}

//! Out-of-order data, held until the gap before it closes.
//!
//! Segments are copied: frames go back to the link at once, so that a slow gap cannot starve the link of buffers.

use std::collections::VecDeque;

use overfly_wire::tcp::Sacks;

use crate::flow::Extra;
use crate::sequence::{Sequence, at_or_before, before, distance, earlier, later};

/// The out-of-order data of one flow.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    /// In order; neither overlapping nor touching.
    blocks: Vec<Block>,
    /// Bytes of all pieces, with [`PIECE_COST`] for each.
    pieces: usize,
    /// Grows with each insertion.
    stamp: u32,
    /// The sequence number of a FIN that arrived early.
    fin: Option<Sequence>,
}

/// Contiguous data.
#[derive(Debug)]
struct Block {
    sequence: Sequence,
    end: Sequence,
    pieces: VecDeque<Box<[u8]>>,
    /// When it last grew.
    stamp: u32,
}

/// Bytes that a piece costs besides its data: its place in a queue that doubles when it is full, and what an allocator adds
/// (16 bytes, and as much again for the rounding). Tiny segments cannot hold more memory than the budget says.
const PIECE_COST: usize = 2 * size_of::<Box<[u8]>>() + 32;
/// Bytes that a block costs besides its pieces and its place in the list: its queue's least allocation.
const BLOCK_COST: usize = 64;
/// Bytes that a flow's first block costs besides: what else a flow then has.
const FIRST_COST: usize = size_of::<Extra>() + 64;

/// What became of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Held {
    /// Some of it is new and held. All that was held cost so much before.
    Added { before: usize },
    /// All of it was held already.
    Known,
    /// There was no room.
    Refused,
}

impl Reassembly {
    /// Holds what is new of `data`: of bytes that arrive twice the first copy stays. `room` is what the budget still allows,
    /// `most_blocks` bounds the cost of an insertion.
    pub(crate) fn insert(
        &mut self,
        sequence: Sequence,
        data: &[u8],
        room: usize,
        most_blocks: usize,
    ) -> Held {
        self.stamp += 1;
        let end = sequence + data.len() as u32;
        let before_cost = self.cost();
        let mut from = sequence;
        let mut position = self.blocks.partition_point(|block| before(block.end, sequence));
        let mut new = false;
        while before(from, end) {
            // The gap from `from` to the next block, if there is one.
            let (gap_end, next) = match self.blocks.get(position) {
                Some(block) if at_or_before(block.sequence, from) => {
                    // It covers `from`, or ends there.
                    let block = &mut self.blocks[position];
                    block.stamp = self.stamp;
                    from = later(from, block.end);
                    let follower = self.blocks.get(position + 1).map(|next| next.sequence);
                    (follower.filter(|&start| before(start, end)).unwrap_or(end), position)
                }
                Some(block) if before(block.sequence, end) => (block.sequence, usize::MAX),
                _ => (end, usize::MAX),
            };
            if !before(from, gap_end) {
                position += 1;
                continue;
            }
            let piece = &data[distance(sequence, from) as usize..distance(sequence, gap_end) as usize];
            let cost = piece.len() + PIECE_COST;
            let more = if next == usize::MAX { self.cost_of_block() } else { 0 };
            // Less, if blocks became one meanwhile.
            if self.cost().saturating_sub(before_cost) + cost + more > room {
                break;
            }
            if next == usize::MAX {
                if self.blocks.len() >= most_blocks {
                    break;
                }
                let block = Block {
                    sequence: from,
                    end: gap_end,
                    pieces: VecDeque::from([piece.into()]),
                    stamp: self.stamp,
                };
                self.blocks.insert(position, block);
            } else {
                let block = &mut self.blocks[position];
                block.pieces.push_back(piece.into());
                block.end = gap_end;
            }
            self.pieces += cost;
            new = true;
            from = gap_end;
            self.join(position);
        }
        if new {
            Held::Added { before: before_cost }
        } else if before(from, end) {
            Held::Refused
        } else {
            Held::Known
        }
    }

    /// The first bytes of `[sequence, end)` that are held already, as RFC 2883 section 4.2 reports them.
    pub(crate) fn overlap(&self, sequence: Sequence, end: Sequence) -> Option<(Sequence, Sequence)> {
        let block = self.blocks.iter().find(|block| before(sequence, block.end))?;
        before(block.sequence, end).then(|| (later(sequence, block.sequence), earlier(block.end, end)))
    }

    /// Makes the block at `position` one with the next if they touch.
    fn join(&mut self, position: usize) {
        let touches =
            self.blocks.get(position + 1).is_some_and(|next| next.sequence == self.blocks[position].end);
        if touches {
            let mut next = self.blocks.remove(position + 1);
            let block = &mut self.blocks[position];
            block.pieces.append(&mut next.pieces);
            block.end = next.end;
        }
    }

    pub(crate) fn set_fin(&mut self, sequence: Sequence) {
        self.fin = Some(sequence);
    }

    /// Takes the first piece if it continues the stream at `next`, with the number of its bytes that have arrived another way.
    pub(crate) fn take(&mut self, next: Sequence) -> Option<(Box<[u8]>, usize)> {
        let first = self.blocks.first_mut()?;
        if before(next, first.sequence) {
            return None;
        }
        let data = first.pieces.pop_front()?;
        let known = (distance(first.sequence, next) as usize).min(data.len());
        first.sequence += data.len() as u32;
        if first.pieces.is_empty() {
            self.blocks.remove(0);
        }
        self.pieces -= data.len() + PIECE_COST;
        Some((data, known))
    }

    /// The blocks for a SACK option, the one that grew last first (RFC 2018 section 4); `sacks` may hold some already.
    pub(crate) fn report(&self, sacks: &mut Sacks) {
        let mut newer_than = u32::MAX;
        loop {
            let next =
                self.blocks.iter().filter(|block| block.stamp < newer_than).max_by_key(|block| block.stamp);
            let Some(block) = next else { return };
            if !sacks.push(block.sequence.number(), block.end.number()) {
                return;
            }
            newer_than = block.stamp;
        }
    }

    pub(crate) fn fin_is_at(&self, next: Sequence) -> bool {
        self.fin == Some(next)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.fin.is_none()
    }

    /// What the held data costs of the budget, in bytes.
    pub(crate) fn cost(&self) -> usize {
        match self.blocks.len() {
            0 => 0,
            blocks => FIRST_COST + self.list_cost() + blocks * BLOCK_COST + self.pieces,
        }
    }

    fn list_cost(&self) -> usize {
        self.blocks.capacity() * size_of::<Block>()
    }

    /// What one more block would cost besides its pieces.
    fn cost_of_block(&self) -> usize {
        // A full list doubles; its least allocation has room for four.
        let list = match self.blocks.capacity() {
            capacity if self.blocks.len() < capacity => 0,
            capacity => capacity.max(4) * size_of::<Block>(),
        };
        let first = if self.blocks.is_empty() { FIRST_COST + self.list_cost() } else { 0 };
        first + list + BLOCK_COST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Reassembly {
        fn bytes(&self) -> usize {
            self.blocks.iter().map(|block| distance(block.sequence, block.end) as usize).sum()
        }
    }

    /// Numbers below the bound that each is asked with, always the same ones for a seed.
    fn random(seed: u32) -> impl FnMut(u32) -> u32 {
        let mut numbers = overfly_testing::Random(seed.into());
        move |bound| numbers.below(bound.into()) as u32
    }

    /// Random overlapping inserts against a plain array of "byte is here" flags, around the wrap of sequence numbers.
    #[test]
    fn holds_each_byte_once() {
        for seed in 1..500_u32 {
            let base = Sequence::new(u32::MAX - 300);
            let stream: Vec<u8> = (0..1000_u32).map(|i| (i * 31 + seed) as u8).collect();
            let mut random = random(seed);
            let mut reassembly = Reassembly::default();
            let mut here = vec![false; 1000];
            for _ in 0..20 {
                let from = random(990) as usize;
                let to = (from + 1 + random(120) as usize).min(1000);
                let fresh = here[from..to].iter().filter(|h| !**h).count();
                let held = reassembly.insert(base + from as u32, &stream[from..to], usize::MAX, 1000);
                assert_eq!(matches!(held, Held::Added { .. }), fresh > 0, "seed {seed}: {held:?}");
                here[from..to].fill(true);
                let mut sacks = Sacks::EMPTY;
                reassembly.report(&mut sacks);
                let newest = sacks.as_slice()[0];
                let (left, right) = (
                    Sequence::new(newest.0).since(base) as usize,
                    Sequence::new(newest.1).since(base) as usize,
                );
                assert!(left <= from && to <= right, "seed {seed}: {from}..{to} is not in {left}..{right}");
                for block in reassembly.blocks.windows(2) {
                    assert!(before(block[0].end, block[1].sequence), "seed {seed}: blocks touch");
                }
            }
            assert_eq!(reassembly.bytes(), here.iter().filter(|h| **h).count(), "seed {seed}");
            let mut next = 0;
            while next < 1000 {
                if !here[next] {
                    assert!(reassembly.take(base + next as u32).is_none(), "seed {seed}");
                    next += 1;
                    continue;
                }
                let (data, known) = reassembly.take(base + next as u32).expect("a piece");
                assert_eq!(&data[known..], &stream[next..next + data.len() - known], "seed {seed}");
                next += data.len() - known;
            }
            assert!(reassembly.is_empty());
            assert_eq!(reassembly.cost(), 0);
        }
    }

    /// Bytes that an allocator such as glibc's takes for a piece of memory.
    fn allocated(bytes: usize) -> usize {
        if bytes == 0 { 0 } else { (bytes + 8).next_multiple_of(16).max(32) }
    }

    /// Segments of all sizes, in any order: the memory that they take is at most what they cost.
    #[test]
    fn what_is_held_costs_no_less_than_its_memory() {
        for seed in 1..200_u32 {
            let mut random = random(seed);
            let mut reassembly = Reassembly::default();
            let largest = [1, 20, 1448][seed as usize % 3];
            for _ in 0..300 {
                let data = vec![0; 1 + random(largest) as usize];
                reassembly.insert(Sequence::new(random(40 * largest)), &data, usize::MAX, 256);
                let queues: usize = reassembly
                    .blocks
                    .iter()
                    .map(|block| allocated(block.pieces.capacity() * size_of::<Box<[u8]>>()))
                    .sum();
                let pieces = reassembly.blocks.iter().flat_map(|block| &block.pieces);
                let data: usize = pieces.map(|piece| allocated(piece.len())).sum();
                let list = allocated(reassembly.blocks.capacity() * size_of::<Block>());
                let memory = allocated(size_of::<Extra>()) + list + queues + data;
                assert!(memory <= reassembly.cost(), "seed {seed}: {memory} of {}", reassembly.cost());
            }
        }
    }

    #[test]
    fn room_bounds_what_is_held() {
        let mut reassembly = Reassembly::default();
        assert_eq!(reassembly.insert(Sequence::new(10), &[1; 10], 100, 8), Held::Refused);
        assert_eq!((reassembly.bytes(), reassembly.cost()), (0, 0));
        assert_eq!(reassembly.insert(Sequence::new(10), &[1; 10], 4000, 8), Held::Added { before: 0 });
        let cost = reassembly.cost();
        assert_eq!(reassembly.insert(Sequence::new(12), &[2; 3], 4000, 8), Held::Known);
        assert_eq!(reassembly.insert(Sequence::new(20), &[2; 3], PIECE_COST + 2, 8), Held::Refused);
        assert_eq!(
            reassembly.insert(Sequence::new(20), &[2; 3], PIECE_COST + 3, 8),
            Held::Added { before: cost }
        );
        assert_eq!(
            reassembly.insert(Sequence::new(30), &[2; 3], 4000, 1),
            Held::Refused,
            "one block at most"
        );
    }
}

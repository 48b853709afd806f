//! A byte queue in a power-of-two buffer that grows by doubling: a connection's receive and send queues.

use core::mem::MaybeUninit;

use overfly_wire::checksum::{Sum, copy_and_sum};

use crate::bound;

/// Bytes of the first buffer: a request or a short answer. Most connections that are open and idle never had more, and they have two.
const FIRST_CAPACITY: usize = 1024;
/// Bytes of the next one at least: answers of a page seldom cross its end.
const SECOND_CAPACITY: usize = 4096;
/// A buffer larger than this is given back when its socket is cached.
const KEEP_CAPACITY: usize = 64 * 1024;
/// Bytes that are copied at a time. From 2,112 on libc copies by `rep movsb` where the processor says that this is fast (FSRM). AMD's say
/// so, and copy 3.5 GB/s in place of 50 where the target lies 1 to 15 bytes behind the source within their pages.
const PART: usize = 2048;

/// Copies bytes of one length.
fn copy(from: &[u8], to: &mut [u8]) {
    for (from, to) in from.chunks(PART).zip(to.chunks_mut(PART)) {
        to.copy_from_slice(from);
    }
}

/// The queue. `head` is below the capacity, `len` at most the capacity, and the capacity zero or a power of two.
#[derive(Default)]
pub(crate) struct Ring {
    buffer: Vec<u8>,
    head: usize,
    len: usize,
    /// Something was put in since [`Ring::give_back_idle`] looked.
    is_used: bool,
}

impl Ring {
    pub(crate) const fn new() -> Self {
        Self { buffer: Vec::new(), head: 0, len: 0, is_used: false }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes room for `more` bytes. False if there is no memory for them: then it stays as it is.
    #[inline]
    pub(crate) fn reserve(&mut self, more: usize) -> bool {
        self.is_used = true;
        self.len + more <= self.buffer.len() || self.grow(more)
    }

    fn grow(&mut self, more: usize) -> bool {
        let needed = self.len + more;
        let before = self.buffer.len();
        let mut capacity =
            if needed <= FIRST_CAPACITY { FIRST_CAPACITY } else { before.max(SECOND_CAPACITY) };
        while capacity < needed {
            capacity *= 2;
        }
        if !bound::grow(before, capacity) {
            return false;
        }
        let mut grown = Vec::new();
        if grown.try_reserve_exact(capacity).is_err() {
            bound::shrink(capacity, before);
            return false;
        }
        let (first, second) = self.slices(0, self.len);
        grown.extend_from_slice(first);
        grown.extend_from_slice(second);
        grown.resize(capacity, 0);
        self.buffer = grown;
        self.head = 0;
        true
    }

    /// Bytes that it holds without growing.
    pub(crate) const fn capacity(&self) -> usize {
        self.buffer.len()
    }

    /// The memory goes.
    fn give_back(&mut self) {
        bound::shrink(self.buffer.len(), 0);
        self.buffer = Vec::new();
        self.head = 0;
    }

    /// Gives back a buffer that is empty and was not used since this was last asked. Returns whether there still is one.
    pub(crate) fn give_back_idle(&mut self) -> bool {
        if !core::mem::take(&mut self.is_used) && self.len == 0 && !self.buffer.is_empty() {
            self.give_back();
        }
        !self.buffer.is_empty()
    }

    /// The bytes `[offset, offset + length)`; both must lie within the queue.
    fn slices(&self, offset: usize, length: usize) -> (&[u8], &[u8]) {
        if length == 0 {
            return (&[], &[]);
        }
        let start = (self.head + offset) & (self.buffer.len() - 1);
        let first = length.min(self.buffer.len() - start);
        (&self.buffer[start..start + first], &self.buffer[..length - first])
    }

    /// The bytes `[offset, offset + length)`, as far as they lie within the queue.
    pub(crate) fn pieces(&self, offset: usize, length: usize) -> (&[u8], &[u8]) {
        self.slices(offset, length.min(self.len.saturating_sub(offset)))
    }

    /// Appends all of `data`, or nothing if there is no memory for it.
    pub(crate) fn push(&mut self, data: &[u8]) -> bool {
        if data.is_empty() {
            return true;
        }
        if !self.reserve(data.len()) {
            return false;
        }
        let mask = self.buffer.len() - 1;
        let start = (self.head + self.len) & mask;
        let first = data.len().min(self.buffer.len() - start);
        copy(&data[..first], &mut self.buffer[start..start + first]);
        copy(&data[first..], &mut self.buffer[..data.len() - first]);
        self.len += data.len();
        true
    }

    /// Appends what there is room for of `data`, after it has grown if it may; returns how much that was.
    pub(crate) fn push_some(&mut self, data: &[u8]) -> usize {
        if self.push(data) {
            return data.len();
        }
        // A step that is allowed, or possible, may still help.
        let step = bound::ALWAYS.saturating_sub(self.len).min(data.len());
        self.reserve(step);
        let room = self.buffer.len() - self.len;
        if self.push(&data[..room.min(data.len())]) { room.min(data.len()) } else { 0 }
    }

    /// Contiguous free space of up to `wanted` bytes after the last byte, to be filled and then [`Ring::commit`]ted. Empty if
    /// there is no memory.
    pub(crate) fn spare(&mut self, wanted: usize) -> &mut [u8] {
        if !self.reserve(wanted.min(KEEP_CAPACITY)) {
            self.reserve(bound::ALWAYS.saturating_sub(self.len).min(wanted));
        }
        if self.buffer.is_empty() {
            return &mut [];
        }
        let mask = self.buffer.len() - 1;
        let start = (self.head + self.len) & mask;
        let free = (self.buffer.len() - self.len).min(self.buffer.len() - start).min(wanted);
        &mut self.buffer[start..start + free]
    }

    /// The first `length` bytes of the last [`Ring::spare`] belong to the queue now.
    pub(crate) fn commit(&mut self, length: usize) {
        self.len += length.min(self.buffer.len() - self.len);
    }

    /// Copies bytes from `offset` on; returns how many there were.
    pub(crate) fn copy_to(&self, offset: usize, target: &mut [MaybeUninit<u8>]) -> usize {
        let length = target.len().min(self.len.saturating_sub(offset));
        let (first, second) = self.slices(offset, length);
        for (piece, place) in [(first, 0), (second, first.len())] {
            for (from, to) in piece.chunks(PART).zip(target[place..].chunks_mut(PART)) {
                to[..from.len()].write_copy_of_slice(from);
            }
        }
        length
    }

    /// Copies the bytes `[offset, offset + target.len())`; what lies outside the queue is left as it is.
    pub(crate) fn fill(&self, offset: usize, target: &mut [u8]) {
        let length = target.len().min(self.len.saturating_sub(offset));
        let (first, second) = self.slices(offset, length);
        copy(first, &mut target[..first.len()]);
        copy(second, &mut target[first.len()..length]);
    }

    /// As [`Ring::fill`], and sums the bytes on the way (RFC 1071). `None`, with nothing done, where that cannot be: some lie
    /// outside the queue, or it wraps in the middle of a word.
    pub(crate) fn fill_and_sum(&self, offset: usize, target: &mut [u8]) -> Option<Sum> {
        if target.len() > self.len.saturating_sub(offset) {
            return None;
        }
        let (first, second) = self.slices(offset, target.len());
        if first.len() % 2 == 1 && !second.is_empty() {
            return None;
        }
        let (to_first, to_second) = target.split_at_mut(first.len());
        Some(copy_and_sum(first, to_first) + copy_and_sum(second, to_second))
    }

    /// Drops the first `count` bytes.
    pub(crate) fn discard(&mut self, count: usize) {
        let count = count.min(self.len);
        self.len -= count;
        // An empty queue starts over at the front: the next bytes find warm cache lines, in one piece.
        if self.len > 0 {
            self.head = (self.head + count) & (self.buffer.len() - 1);
            return;
        }
        self.head = 0;
        if bound::is_pressed() && self.buffer.len() > FIRST_CAPACITY {
            self.give_back();
        }
    }

    /// Empties the queue for the next socket. A large buffer is given back.
    pub(crate) fn recycle(&mut self) {
        self.head = 0;
        self.len = 0;
        if self.buffer.len() > KEEP_CAPACITY || bound::is_pressed() {
            self.give_back();
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        bound::shrink(self.buffer.len(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(ring: &mut Ring, count: usize) -> Vec<u8> {
        let mut target = vec![MaybeUninit::new(0); count];
        let copied = ring.copy_to(0, &mut target);
        ring.discard(copied);
        // Everything up to `copied` was written, and the rest was zero before.
        let mut bytes = vec![0; copied];
        for (byte, cell) in bytes.iter_mut().zip(&target) {
            // SAFETY: every cell was initialised when the vector was made.
            *byte = unsafe { cell.assume_init() };
        }
        bytes
    }

    /// Against a `VecDeque`, with sizes that wrap and grow.
    #[test]
    fn behaves_like_a_queue() {
        let mut ring = Ring::new();
        let mut model = std::collections::VecDeque::new();
        let mut random = overfly_testing::Random(12_345);
        for round in 0..5000 {
            let size = random.index(3000);
            if round % 3 != 2 {
                let data: Vec<u8> = (0..size).map(|i| (i + round) as u8).collect();
                if round % 2 == 0 {
                    assert!(ring.push(&data));
                    model.extend(&data);
                } else {
                    let spare = ring.spare(size);
                    let length = spare.len();
                    spare.copy_from_slice(&data[..length]);
                    ring.commit(length);
                    model.extend(&data[..length]);
                }
            } else {
                let expected: Vec<u8> = model.drain(..(size * 3).min(model.len())).collect();
                assert_eq!(take(&mut ring, size * 3), expected);
            }
            assert_eq!(ring.len(), model.len());
        }
    }

    #[test]
    fn a_fill_is_summed_if_it_is_whole_and_of_whole_words() {
        let mut ring = Ring::default();
        let bytes: Vec<u8> = (0..4096_u32).map(|at| ((at * 31) >> 3) as u8).collect();
        assert!(ring.push(&bytes));
        // So that the queue wraps, at an odd and at an even place.
        for discard in [1001, 1] {
            ring.discard(discard);
            assert!(ring.push(&bytes[..discard]));
            for (offset, length) in [(0, 1448), (1, 1448), (2600, 1448), (2601, 1448), (0, ring.len())] {
                let (mut summed, mut filled) = (vec![0; length], vec![0; length]);
                ring.fill(offset, &mut filled);
                let Some(sum) = ring.fill_and_sum(offset, &mut summed) else { continue };
                assert_eq!(summed, filled);
                assert_eq!(sum.fold(), Sum::new().bytes(&filled).fold(), "{offset}, {length}");
            }
            assert!(ring.fill_and_sum(0, &mut [0; 1448]).is_some());
            assert!(ring.fill_and_sum(1, &mut vec![0; ring.len()]).is_none(), "beyond the end");
        }
    }

    #[test]
    fn fill_reads_again_and_stops_at_the_end() {
        let mut ring = Ring::new();
        assert!(ring.push(b"0123456789"));
        let mut buffer = [b'-'; 4];
        ring.fill(2, &mut buffer);
        assert_eq!(&buffer, b"2345");
        ring.fill(8, &mut buffer);
        assert_eq!(&buffer, b"8945");
        ring.fill(20, &mut buffer);
        assert_eq!(&buffer, b"8945");
    }

    #[test]
    fn what_is_empty_and_was_not_used_for_a_while_has_no_buffer() {
        let mut ring = Ring::new();
        assert!(!ring.give_back_idle());
        assert!(ring.push(b"question"));
        for _ in 0..3 {
            assert!(ring.give_back_idle(), "it holds something");
        }
        ring.discard(8);
        assert!(!ring.give_back_idle());
        assert!(ring.push(b"once more"));
        ring.discard(9);
        assert!(ring.give_back_idle(), "it was used");
        assert!(!ring.give_back_idle());
        assert_eq!(ring.capacity(), 0);
    }

    #[test]
    fn recycle_gives_large_buffers_back() {
        let mut ring = Ring::new();
        assert!(ring.push(&vec![1; KEEP_CAPACITY + 1]));
        ring.recycle();
        assert!(ring.is_empty());
        assert_eq!(ring.buffer.len(), 0);
    }
}

//! The rings that user space shares with the kernel: free-running u32 indices, a power of two of entries.
//!
//! Whoever produces writes entries and then the producer index (release); whoever consumes reads the producer index
//! (acquire), the entries, and then writes the consumer index (release). Source: net/xdp/xsk_queue.h, "The structure of
//! the shared state of the rings", and Documentation/networking/af_xdp.rst.

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::os::fd::BorrowedFd;

use rustix::net::xdp::XdpRingOffset;

use crate::Error;
use crate::mapping::Mapping;

/// `XDP_RING_NEED_WAKEUP`: the kernel wants a system call before it looks at the ring.
const NEED_WAKEUP: u32 = 1;

/// One ring's shared memory. What its indices mean to this side is up to the role that is played on it.
pub(crate) struct Ring<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    mask: u32,
    /// Keeps the memory behind the pointers mapped; `None` where a test owns it.
    _mapping: Option<Mapping>,
    _entries: PhantomData<T>,
}

// SAFETY: the pointers lead to memory that is shared between processes anyway and that lives as long as the ring. Indices
// are atomics; entries are touched only by the side that owns them according to the indices, and each role is a `&mut self`.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps one ring of a bound AF_XDP socket (`page_offset` is one of the `XDP_*_PGOFF_*` constants).
    pub(crate) fn map(
        socket: BorrowedFd<'_>,
        page_offset: u64,
        offsets: &XdpRingOffset,
        capacity: u32,
    ) -> Result<Ring<T>, Error> {
        let Some(flags) = offsets.flags else {
            return Err(Error::NoAfXdp); // before Linux 5.4: no wakeup flags
        };
        if !capacity.is_power_of_two() {
            return Err(Error::Layout("a ring's size is not a power of two"));
        }
        let length = offsets.desc as usize + capacity as usize * size_of::<T>();
        let mapping = Mapping::shared(socket, page_offset, length, "mmap of an AF_XDP ring")?;
        let base = mapping.as_ptr();
        // SAFETY: the kernel promises that its offsets lie inside the ring's memory, whose length it derives from the
        // same numbers (xsk_mmap refuses a longer length); a page boundary plus these offsets is aligned for u32 and T.
        unsafe {
            Ok(Ring {
                producer: base.add(offsets.producer as usize).cast(),
                consumer: base.add(offsets.consumer as usize).cast(),
                flags: base.add(flags as usize).cast(),
                entries: base.add(offsets.desc as usize).cast(),
                mask: capacity - 1,
                _mapping: Some(mapping),
                _entries: PhantomData,
            })
        }
    }

    /// Entries that fit.
    pub(crate) fn capacity(&self) -> u32 {
        self.mask + 1
    }

    pub(crate) fn producer(&self) -> &AtomicU32 {
        // SAFETY: aligned, mapped as long as `self`, and only ever used as an atomic.
        unsafe { self.producer.as_ref() }
    }

    pub(crate) fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }
    }

    /// Whether the kernel asked to be woken before it goes on.
    pub(crate) fn needs_wakeup(&self) -> bool {
        // SAFETY: as above.
        unsafe { self.flags.as_ref() }.load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }

    /// The entry at a free-running index that this side may read.
    #[inline]
    pub(crate) fn read(&self, index: u32) -> T {
        // SAFETY: the masked index lies inside the ring. The other side does not write this entry until the consumer
        // index passes it; if a process that shares the ring misbehaves, the value is wrong and is checked by its reader.
        unsafe { self.entries.add((index & self.mask) as usize).read_volatile() }
    }

    /// Writes the entry at a free-running index that this side may write.
    #[inline]
    pub(crate) fn write(&self, index: u32, value: T) {
        // SAFETY: the masked index lies inside the ring, and the other side does not read this entry until the producer
        // index passes it.
        unsafe {
            self.entries.add((index & self.mask) as usize).write_volatile(value);
        }
    }

    /// Entries between the two indices, never more than the capacity whatever the indices say.
    pub(crate) fn filled(&self) -> u32 {
        let consumer = self.consumer().load(Ordering::Acquire);
        let producer = self.producer().load(Ordering::Acquire);
        producer.wrapping_sub(consumer).min(self.capacity())
    }
}

impl Ring<u64> {
    /// All entries, for those who share an end of the ring with others.
    #[inline]
    pub(crate) fn slots(&self) -> &[AtomicU64] {
        // SAFETY: the entries lie inside the memory, are aligned, and are only ever used as atomics: rings of u64 are read and
        // written through this slice alone.
        unsafe {
            core::slice::from_raw_parts(self.entries.cast::<AtomicU64>().as_ptr(), self.mask as usize + 1)
        }
    }
}

/// The consuming end of a ring that only this process consumes (the receive ring).
pub(crate) struct Consumer<T> {
    ring: Ring<T>,
    /// Entries before this index have been handled here.
    next: u32,
    /// What the shared consumer index says: `released <= next`.
    released: u32,
    /// The shared producer index as it was last read.
    seen: u32,
}

impl<T: Copy> Consumer<T> {
    pub(crate) fn new(ring: Ring<T>) -> Consumer<T> {
        let released = ring.consumer().load(Ordering::Relaxed);
        Consumer { ring, next: released, released, seen: released }
    }

    /// Takes the next entry, reading the shared index only when all entries known of are taken.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<T> {
        if self.next == self.seen {
            self.seen = self.ring.producer().load(Ordering::Acquire);
            if self.next == self.seen {
                return None;
            }
        }
        let entry = self.ring.read(self.next);
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// The entry after those taken, if it is known without reading the shared index.
    #[inline]
    pub(crate) fn upcoming(&self) -> Option<T> {
        (self.next != self.seen).then(|| self.ring.read(self.next))
    }

    /// Entries that wait to be taken, never more than the capacity whatever the shared index says.
    pub(crate) fn waiting(&self) -> u32 {
        self.ring.producer().load(Ordering::Acquire).wrapping_sub(self.next).min(self.ring.capacity())
    }

    /// Entries taken whose place has not been given back to the producer.
    #[inline]
    pub(crate) fn unreleased(&self) -> u32 {
        self.next.wrapping_sub(self.released)
    }

    /// The index of the first unreleased entry.
    pub(crate) fn released(&self) -> u32 {
        self.released
    }

    /// The index after the last taken entry.
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    pub(crate) fn ring(&self) -> &Ring<T> {
        &self.ring
    }

    /// The owner has written [`Consumer::next`] to the shared consumer index.
    pub(crate) fn note_released(&mut self) {
        self.released = self.next;
    }
}

/// The producing end of a ring that only this process produces into (the transmit ring).
pub(crate) struct Producer<T> {
    ring: Ring<T>,
    /// Where the next entry goes.
    next: u32,
    /// What the shared producer index says: `published <= next`.
    published: u32,
    /// What the shared consumer index said when it was last needed.
    consumed: u32,
}

impl<T: Copy> Producer<T> {
    pub(crate) fn new(ring: Ring<T>) -> Producer<T> {
        let published = ring.producer().load(Ordering::Relaxed);
        let consumed = ring.consumer().load(Ordering::Relaxed);
        Producer { ring, next: published, published, consumed }
    }

    /// Whether there is room for so many entries, which is not more than the capacity. The kernel may have done with an entry, and say so, before it shows that it has taken
    /// it: it writes the consumer index at the end of `sendto` (net/xdp/xsk.c), which another thread may be in.
    #[inline]
    pub(crate) fn has_room(&mut self, entries: u32) -> bool {
        let room = self.ring.capacity() - entries;
        if self.next.wrapping_sub(self.consumed) <= room {
            return true;
        }
        self.consumed = self.ring.consumer().load(Ordering::Acquire);
        self.next.wrapping_sub(self.consumed) <= room
    }

    /// Writes an entry; the consumer sees it after [`Producer::publish`]. The caller knows that there is room.
    #[inline]
    pub(crate) fn put(&mut self, entry: T) {
        debug_assert!(
            self.next.wrapping_sub(self.ring.consumer().load(Ordering::Relaxed)) < self.ring.capacity()
        );
        self.ring.write(self.next, entry);
        self.next = self.next.wrapping_add(1);
    }

    /// How many entries were ever written, modulo 2³².
    #[inline]
    pub(crate) const fn written(&self) -> u32 {
        self.next
    }

    /// Entries written and not yet visible to the consumer.
    #[inline]
    pub(crate) fn unpublished(&self) -> u32 {
        self.next.wrapping_sub(self.published)
    }

    /// Makes all written entries visible.
    #[inline]
    pub(crate) fn publish(&mut self) {
        self.published = self.next;
        self.ring.producer().store(self.next, Ordering::Release);
    }

    /// Published entries that the consumer has not taken.
    #[inline]
    pub(crate) fn outstanding(&self) -> u32 {
        self.published.wrapping_sub(self.ring.consumer().load(Ordering::Acquire))
    }

    pub(crate) fn ring(&self) -> &Ring<T> {
        &self.ring
    }
}

/// Rings of tests.
#[cfg(test)]
pub(super) mod heap {
    use super::*;

    /// A ring in ordinary memory, with both of its ends here. `start` is where both indices begin.
    pub(in crate::xdp) struct HeapRing<T> {
        indices: Box<[AtomicU32; 3]>,
        entries: Box<[T]>,
    }

    impl<T: Copy> HeapRing<T> {
        pub(in crate::xdp) fn new(capacity: u32, start: u32, empty: T) -> HeapRing<T> {
            HeapRing {
                indices: Box::new([AtomicU32::new(start), AtomicU32::new(start), AtomicU32::new(0)]),
                entries: vec![empty; capacity as usize].into_boxed_slice(),
            }
        }

        /// Another view of the ring; the caller keeps `self` alive longer.
        pub(in crate::xdp) fn view(&mut self) -> Ring<T> {
            Ring {
                producer: NonNull::from(&self.indices[0]),
                consumer: NonNull::from(&self.indices[1]),
                flags: NonNull::from(&self.indices[2]),
                entries: NonNull::from(&mut self.entries[..]).cast(),
                mask: u32::try_from(self.entries.len()).unwrap() - 1,
                _mapping: None,
                _entries: PhantomData,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::heap::HeapRing;
    use super::*;
    use std::collections::VecDeque;

    /// Every sequence of 10 operations on rings of 1, 2 and 4 entries, across the wrap of the indices, against a queue.
    #[test]
    fn every_short_sequence_of_operations_agrees_with_a_queue() {
        #[derive(Clone, Copy, Debug)]
        enum Operation {
            Put,
            Publish,
            Take,
            Release,
        }
        use Operation::{Publish, Put, Release, Take};
        const LENGTH: u32 = 10;
        for capacity in [1_u32, 2, 4] {
            for start in [0, u32::MAX, u32::MAX - 2] {
                for code in 0..4_u32.pow(LENGTH) {
                    let mut memory = HeapRing::new(capacity, start, 0_u64);
                    let mut producer = Producer::new(memory.view());
                    let mut consumer = Consumer::new(memory.view());
                    let (mut written, mut visible) = (VecDeque::new(), VecDeque::new());
                    let (mut in_ring, mut unreleased, mut value) = (0, 0, 0_u64);
                    for step in 0..LENGTH {
                        let operation = [Put, Publish, Take, Release][(code >> (2 * step)) as usize & 3];
                        match operation {
                            Put => {
                                if in_ring < capacity {
                                    value += 1;
                                    producer.put(value);
                                    written.push_back(value);
                                    in_ring += 1;
                                }
                            }
                            Publish => {
                                assert_eq!(producer.unpublished() as usize, written.len());
                                producer.publish();
                                visible.append(&mut written);
                            }
                            Take => {
                                let taken = consumer.take();
                                assert_eq!(taken, visible.pop_front(), "{capacity} {start} {code}");
                                unreleased += u32::from(taken.is_some());
                            }
                            Release => {
                                assert_eq!(consumer.unreleased(), unreleased);
                                consumer.ring().consumer().store(consumer.next(), Ordering::Release);
                                consumer.note_released();
                                in_ring -= unreleased;
                                unreleased = 0;
                            }
                        }
                        assert_eq!(
                            producer.outstanding(),
                            u32::try_from(visible.len()).unwrap() + unreleased
                        );
                    }
                }
            }
        }
    }

    /// Two threads push two million numbers through eight places.
    #[test]
    fn numbers_arrive_in_order_across_threads() {
        const COUNT: u64 = 2_000_000;
        let mut memory = HeapRing::new(8, u32::MAX - 1000, 0_u64);
        let (mut producer, mut consumer) = (Producer::new(memory.view()), Consumer::new(memory.view()));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut next = 0;
                while next < COUNT {
                    while next < COUNT
                        && producer.outstanding() + producer.unpublished() < producer.ring().capacity()
                    {
                        producer.put(next);
                        next += 1;
                    }
                    producer.publish();
                    std::thread::yield_now();
                }
            });
            let mut expected = 0;
            while expected < COUNT {
                while let Some(number) = consumer.take() {
                    assert_eq!(number, expected);
                    expected += 1;
                }
                consumer.ring().consumer().store(consumer.next(), Ordering::Release);
                consumer.note_released();
                std::thread::yield_now();
            }
        });
    }
}

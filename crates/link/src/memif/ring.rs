//! A ring in shared memory: two free-running u16 indices, and descriptors of buffers.
//!
//! ```text
//! 0     cookie u32, flags u16, head u16      the client writes the head
//! 64    tail u16                             the server writes the tail
//! 72    looks u64, waits u64, away u64       of a tap device's ring alone: the server's pulse ([`super::Pulse`])
//! 128   descriptors, 16 bytes each: flags u16, region u16, length u32, offset u32, metadata u32
//! ```
//!
//! Toward the server, the client puts frames at the head and the server takes them at the tail. Toward the client, the client
//! puts empty buffers at the head and the server fills them at the tail. Source: memif.h (see [`super::message`]).
//!
//! The peer can write every byte of this at any time. So each value is read once, by an atomic or volatile access, and
//! is checked by whoever reads it.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::sleep;

/// `MEMIF_COOKIE`.
const COOKIE: u32 = 0x3E3_1F20;
/// `MEMIF_DESC_FLAG_NEXT`: the frame goes on in the next descriptor.
pub(crate) const NEXT: u16 = 1;
/// Bytes before the descriptors.
const HEADER_LEN: usize = 128;
/// Bytes of a descriptor.
const DESCRIPTOR_LEN: usize = 16;
/// A ring that has more entries cannot tell full from empty by its indices with certainty: what DPDK and VPP allow too.
pub(crate) const LOG2_RING_SIZE_MAX: u8 = 14;

/// Bytes of a ring in memory.
pub(crate) const fn ring_len(log2_ring_size: u8) -> usize {
    HEADER_LEN + (DESCRIPTOR_LEN << log2_ring_size)
}

/// Where a buffer is and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) flags: u16,
    pub(crate) region: u16,
    pub(crate) length: u32,
    pub(crate) offset: u32,
}

/// Buffers of a client, one for each entry of a ring, one after the other in region 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Bytes from the region's beginning.
    pub offset: u32,
    /// Bytes of each.
    pub length: u32,
}

impl Buffers {
    /// The empty buffer of a slot.
    #[inline]
    pub(crate) fn descriptor(self, slot: u16) -> Descriptor {
        let offset = self.offset + u32::from(slot) * self.length;
        Descriptor { flags: 0, region: 0, length: self.length, offset }
    }
}

/// A ring's memory, which lives in a region that whoever holds this keeps mapped.
pub(crate) struct Ring {
    base: NonNull<u8>,
    mask: u16,
}

// SAFETY: it is a pointer to memory that two processes share anyway; all access is atomic or volatile.
unsafe impl Send for Ring {}

impl Ring {
    /// # Safety
    /// `ring_len(log2_ring_size)` bytes from `base` on stay mapped as long as the ring is used, `base` is a multiple of 8,
    /// and `log2_ring_size` is [`LOG2_RING_SIZE_MAX`] at most.
    pub(crate) unsafe fn new(base: NonNull<u8>, log2_ring_size: u8) -> Ring {
        Ring { base, mask: (1 << log2_ring_size) - 1 }
    }

    /// Makes an empty ring of zeroed memory.
    pub(crate) fn initialize(&self, buffers: Buffers) {
        for slot in 0..self.size() {
            self.write(slot, buffers.descriptor(slot));
        }
        self.cookie().store(COOKIE, Ordering::Relaxed);
        sleep::poll(self.flags());
    }

    pub(crate) fn has_cookie(&self) -> bool {
        self.cookie().load(Ordering::Relaxed) == COOKIE
    }

    /// Entries.
    #[inline]
    pub(crate) fn size(&self) -> u16 {
        self.mask + 1
    }

    fn cookie(&self) -> &AtomicU32 {
        // SAFETY: inside the ring, aligned, and only ever used as an atomic.
        unsafe { self.base.cast().as_ref() }
    }

    /// What the consumer says: whether it looks for frames by itself.
    #[inline]
    pub(crate) fn flags(&self) -> &AtomicU16 {
        // SAFETY: as above.
        unsafe { self.base.add(4).cast().as_ref() }
    }

    #[inline]
    pub(crate) fn head(&self) -> &AtomicU16 {
        // SAFETY: as above.
        unsafe { self.base.add(6).cast().as_ref() }
    }

    #[inline]
    pub(crate) fn tail(&self) -> &AtomicU16 {
        // SAFETY: as above.
        unsafe { self.base.add(64).cast().as_ref() }
    }

    /// The words of a [`super::Pulse`]: unused in memif.h, in the cache line that the server writes.
    #[inline]
    pub(crate) fn pulse(&self) -> &[AtomicU64; 3] {
        // SAFETY: as above.
        unsafe { self.base.add(72).cast().as_ref() }
    }

    pub(crate) fn is_polled(&self) -> bool {
        self.flags().load(Ordering::Relaxed) & sleep::POLLING != 0
    }

    fn entry(&self, index: u16) -> NonNull<[u64; 2]> {
        // SAFETY: the masked index is one of the ring's descriptors, which begin 128 bytes after its beginning.
        unsafe { self.base.add(HEADER_LEN + usize::from(index & self.mask) * DESCRIPTOR_LEN).cast() }
    }

    /// The descriptor at a free-running index.
    #[inline]
    pub(crate) fn read(&self, index: u16) -> Descriptor {
        // SAFETY: inside the ring and aligned for u64. The peer may write it meanwhile: then the value is wrong, and is
        // checked like every other.
        let [low, high] = unsafe { self.entry(index).read_volatile() };
        Descriptor {
            flags: low as u16,
            region: (low >> 16) as u16,
            length: (low >> 32) as u32,
            offset: high as u32,
        }
    }

    /// Writes the descriptor at a free-running index.
    #[inline]
    pub(crate) fn write(&self, index: u16, descriptor: Descriptor) {
        let Descriptor { flags, region, length, offset } = descriptor;
        let low = u64::from(flags) | u64::from(region) << 16 | u64::from(length) << 32;
        // SAFETY: as in `read`; whatever the peer writes there at the same time, nothing here depends on it.
        unsafe { self.entry(index).write_volatile([low, u64::from(offset)]) };
    }
}

impl core::fmt::Debug for Ring {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter
            .debug_struct("Ring")
            .field("size", &self.size())
            .field("head", self.head())
            .field("tail", self.tail())
            .field("polled", &self.is_polled())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_that_of_memif_h() {
        let mut memory = [0_u64; ring_len(2) / 8];
        let base = NonNull::from(&mut memory).cast::<u8>();
        // SAFETY: `memory` is as long as a ring of four descriptors and outlives it.
        let ring = unsafe { Ring::new(base, 2) };
        ring.initialize(Buffers { offset: 0, length: 64 });
        assert!(ring.has_cookie() && ring.is_polled());
        ring.head().store(0x0102, Ordering::Relaxed);
        ring.tail().store(0x0304, Ordering::Relaxed);
        let descriptor = Descriptor { flags: NEXT, region: 0x0506, length: 0x0708_090a, offset: 0x0b0c_0d0e };
        ring.write(0xfffe, descriptor);
        assert_eq!(ring.read(2), descriptor);
        let bytes: Vec<u8> = memory.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(bytes[..8], [0x20, 0x1f, 0xe3, 0x03, 1, 0, 2, 1]);
        assert_eq!(bytes[64..66], [4, 3]);
        let at = 128 + 2 * 16;
        assert_eq!(bytes[at..at + 12], [1, 0, 6, 5, 0xa, 9, 8, 7, 0xe, 0xd, 0xc, 0xb]);
        assert_eq!(bytes.len(), 128 + 4 * 16);
    }

    /// Entries that were written before they were shown are read whole, round after round. (Under Miri: without a data race.)
    #[test]
    fn what_one_thread_shows_another_reads() {
        const FRAMES: u16 = if cfg!(miri) { 40 } else { 50_000 };
        let mut memory = [0_u64; ring_len(2) / 8];
        let base = NonNull::from(&mut memory).cast::<u8>();
        // SAFETY: `memory` is as long as a ring of four descriptors and outlives both of its ends.
        let [producer, consumer] = [(); 2].map(|()| unsafe { Ring::new(base, 2) });
        producer.initialize(Buffers { offset: 0, length: 64 });
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for index in 0..FRAMES {
                    while index.wrapping_sub(producer.tail().load(Ordering::Acquire)) == producer.size() {
                        std::thread::yield_now();
                    }
                    let descriptor = Descriptor { flags: 0, region: index, length: 1, offset: index.into() };
                    producer.write(index, descriptor);
                    sleep::show(producer.head(), producer.flags(), index.wrapping_add(1));
                }
            });
            for index in 0..FRAMES {
                while consumer.head().load(Ordering::Acquire) == index {
                    std::thread::yield_now();
                }
                let Descriptor { region, offset, .. } = consumer.read(index);
                assert_eq!((region, offset), (index, index.into()), "a torn or old entry");
                consumer.tail().store(index.wrapping_add(1), Ordering::Release);
            }
        });
    }
}

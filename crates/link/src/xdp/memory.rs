//! The memory of one queue that all stacks share: frames, and the control words beside them.
//!
//! ```text
//! 0          frames to receive into, rx_frames x 2048 B          registered with the kernel as UMEM
//!            frames to send from, tx_frames x 2048 B per stack   (slot = stack / tx_queues)
//! control    whose turn it is to fill, the reserve, one block per stack (page aligned)
//!            one byte per transmit frame: odd while it is the kernel's
//! ```
//!
//! Fill and completion ring exist once per queue: [`super::fill`] and [`super::completion`] say how the stacks share them.

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::os::fd::BorrowedFd;

use rustix::net::xdp::XdpDesc;

use super::completion::{Busy, CompletionRing};
use super::fill::{FillRing, Journal};
use super::rings::Ring;
use crate::Error;
use crate::mapping::Mapping;

/// Bytes of a frame's place in the pool. A received frame has 256 of them less (`XDP_PACKET_HEADROOM`).
pub const FRAME_LEN: usize = 2048;
/// The longest frame that can be received, in bytes, Ethernet header included.
pub const RECEIVED_FRAME_LEN_MAX: usize = FRAME_LEN - 256;
/// Places in a row that one frame to send can take: what the kernel puts into one skb (`MAX_SKB_FRAGS`, 17 unless it was built
/// with more), so 34,816 bytes.
pub const FRAME_BUFFERS_MAX: u32 = 17;
/// Bytes of a place before a frame to send in which the kernel may be told what to do with it ([`PoolLayout::tx_metadata`]): a line of the
/// cache, so that frames begin at one as they do without.
pub(crate) const METADATA_ROOM: usize = 64;
/// The longest frame that fits one place behind that, in bytes.
pub const FRAME_WITH_METADATA_LEN_MAX: usize = FRAME_LEN - METADATA_ROOM;
/// Stacks that one set of pools can serve.
pub const STACKS_MAX: u16 = 64;

const PAGE: usize = 4096;
/// Bounds a pool to 2 GB, so that every offset fits its integers with room to spare.
const FRAMES_MAX: u64 = 1 << 20;

/// The sizes that all who share a pool agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLayout {
    /// Frames to receive into, in each queue's pool, for all stacks together.
    pub rx_frames: u32,
    /// Entries of one stack's receive ring on one queue, a power of two. A stack that stops receiving holds that many
    /// frames of `rx_frames` at most.
    pub rx_ring: u32,
    /// Frames to send from, for one stack.
    pub tx_frames: u32,
    /// Queues that are sent on: stack s sends on queue s % tx_queues.
    pub tx_queues: u32,
    /// Stacks at most, at any time.
    pub stacks: u32,
    /// Places in a row that the longest frame to send takes: 1, or more where the interface's MTU asks for it, and the sockets
    /// take frames of several descriptors.
    pub frame_buffers: u32,
    /// Before a frame to send the kernel is told where its checksum is to be completed (`struct xsk_tx_metadata` in
    /// linux/if_xdp.h). Such a frame takes one place: the kernel wants that room before each of a frame's descriptors.
    pub tx_metadata: bool,
}

impl PoolLayout {
    /// Checks that the sizes fit together.
    ///
    /// # Errors
    /// [`Error::Layout`] says which one does not.
    pub fn check(&self) -> Result<(), Error> {
        let sane = |condition, what| if condition { Ok(()) } else { Err(Error::Layout(what)) };
        sane((1..=u32::from(STACKS_MAX)).contains(&self.stacks), "stacks: 1 to 64")?;
        sane(
            self.rx_ring.is_power_of_two() && (64..=32768).contains(&self.rx_ring),
            "rx_ring: a power of two from 64 to 32768",
        )?;
        sane((self.rx_ring..=1 << 19).contains(&self.rx_frames), "rx_frames: from rx_ring to 524288")?;
        sane(
            (64..=16384).contains(&self.tx_frames) && self.tx_frames.is_multiple_of(64),
            "tx_frames: a multiple of 64 up to 16384",
        )?;
        sane((1..=4096).contains(&self.tx_queues), "tx_queues: 1 to 4096")?;
        sane((1..=FRAME_BUFFERS_MAX).contains(&self.frame_buffers), "frame_buffers: 1 to 17")?;
        sane(!self.tx_metadata || self.frame_buffers == 1, "tx_metadata: with frame_buffers 1 only")?;
        sane(
            u64::from(self.rx_frames) + u64::from(self.tx_slots()) * u64::from(self.tx_frames) <= FRAMES_MAX,
            "more than 1048576 frames in a pool",
        )
    }

    /// Stacks that send on one queue at most.
    fn tx_slots(&self) -> u32 {
        self.stacks.div_ceil(self.tx_queues)
    }

    /// The queue that a stack sends on.
    #[must_use]
    pub fn transmit_queue(&self, stack: u16) -> u32 {
        u32::from(stack) % self.tx_queues
    }

    /// All frames to send from, of all stacks that share the pool.
    pub(crate) fn tx_frames_total(&self) -> u32 {
        self.tx_slots() * self.tx_frames
    }

    /// A stack's first frame to send from, counted among those.
    pub(crate) fn tx_base(&self, stack: u16) -> u32 {
        u32::from(stack) / self.tx_queues * self.tx_frames
    }

    /// The fill ring holds every frame there is to receive into, and as many again as may be in a receive ring: the kernel
    /// says that it took a frame off the fill ring only after it has shown it in the receive ring (xsk_flush).
    pub(crate) fn fill_ring(&self) -> u32 {
        (self.rx_frames + self.rx_ring).next_power_of_two()
    }

    /// The completion ring holds every frame there is to send, so it never holds sending up.
    pub(crate) fn completion_ring(&self) -> u32 {
        self.tx_frames_total().next_power_of_two()
    }

    /// The transmit ring holds every frame of the stack, so a free frame has a place in it.
    pub(crate) fn tx_ring(&self) -> u32 {
        self.tx_frames.next_power_of_two()
    }

    /// Bytes of the longest frame to send.
    #[must_use]
    pub fn frame_len_max(&self) -> usize {
        self.frame_buffers as usize * FRAME_LEN - self.tx_headroom()
    }

    /// Where a frame to send begins in its place.
    #[inline]
    pub(crate) fn tx_headroom(&self) -> usize {
        if self.tx_metadata { METADATA_ROOM } else { 0 }
    }

    /// Bytes of the frames.
    pub(crate) fn umem_len(&self) -> usize {
        (self.rx_frames + self.tx_frames_total()) as usize * FRAME_LEN
    }

    fn control_offset(&self) -> usize {
        self.umem_len().next_multiple_of(PAGE)
    }

    /// Bytes of the whole.
    pub(crate) fn memory_len(&self) -> usize {
        (self.control_offset() + size_of::<Control>() + self.tx_frames_total() as usize)
            .next_multiple_of(PAGE)
    }
}

#[repr(C, align(64))]
struct Control {
    /// [`FillRing::turn`]
    turn: AtomicU64,
    /// [`FillRing::reserve`]
    reserve: AtomicU32,
    /// 1 while a process has a stack's rings open: from [`super::XdpLink::open`] until the link is dropped (or its process
    /// dies).
    in_use: [AtomicU32; STACKS_MAX as usize],
    /// Those of the stacks, and that of the pool's owner.
    journals: [Journal; STACKS_MAX as usize + 1],
}

/// One process's view of a pool's memory.
pub(crate) struct Memory {
    mapping: Mapping,
    layout: PoolLayout,
}

// SAFETY: the mapping lives as long as `self`; what is reached through it are atomics, and frames whose ownership the rings
// and busy bytes hand from one owner to the next.
unsafe impl Send for Memory {}

/// Bytes of the pages that a memfd is made of.
pub(crate) fn page_len(memory: BorrowedFd<'_>) -> Result<usize, Error> {
    let status = rustix::fs::fstat(memory).map_err(|errno| Error::system("fstat of a pool", errno))?;
    Ok(usize::try_from(status.st_blksize).unwrap_or(PAGE).max(PAGE))
}

impl Memory {
    /// Maps the memory behind `pool`, a descriptor that is as long as `layout` says (checked).
    pub(crate) fn map(pool: BorrowedFd<'_>, layout: PoolLayout) -> Result<Memory, Error> {
        layout.check()?;
        let length = layout.memory_len();
        let size = rustix::fs::fstat(pool).map_err(|errno| Error::system("fstat of a pool", errno))?.st_size;
        let size = usize::try_from(size).unwrap_or(0);
        if size != length.next_multiple_of(page_len(pool)?) {
            return Err(Error::Layout("the pool's memory is not as long as its layout"));
        }
        let mapping = Mapping::aligned(pool, size, "mmap of a pool")?;
        Ok(Memory { mapping, layout })
    }

    pub(crate) fn layout(&self) -> &PoolLayout {
        &self.layout
    }

    /// Where the kernel finds the frames.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.mapping.as_ptr()
    }

    fn control(&self) -> &Control {
        debug_assert!(self.mapping.length() >= self.layout.memory_len());
        // SAFETY: inside the mapping (memory_len counts it), page aligned, and made of atomics only, for which all bit
        // patterns are valid; the memory begins as zeros.
        unsafe { self.base().add(self.layout.control_offset()).cast::<Control>().as_ref() }
    }

    /// The fill ring of this pool, mapped as `ring`.
    #[inline]
    pub(crate) fn fill_ring<'a>(&'a self, ring: &'a Ring<u64>) -> FillRing<'a> {
        let control = self.control();
        FillRing {
            turn: &control.turn,
            reserve: &control.reserve,
            journals: &control.journals,
            producer: ring.producer(),
            consumer: ring.consumer(),
            slots: ring.slots(),
            rx_frames: self.layout.rx_frames,
            low: self.layout.rx_ring / 2,
        }
    }

    /// The completion ring of this pool, mapped as `ring`.
    #[inline]
    pub(crate) fn completion_ring<'a>(&'a self, ring: &'a Ring<u64>) -> CompletionRing<'a> {
        CompletionRing {
            producer: ring.producer(),
            consumer: ring.consumer(),
            slots: ring.slots(),
            busy: self.busy(),
            rx_frames: self.layout.rx_frames,
        }
    }

    /// The frames of a stack among those to send.
    pub(crate) fn own(&self, stack: u16) -> Range<u32> {
        let base = self.layout.tx_base(stack);
        base..base + self.layout.tx_frames
    }

    /// 1 while a process has the stack's rings open.
    pub(crate) fn in_use(&self, stack: u16) -> &AtomicU32 {
        &self.control().in_use[usize::from(stack % STACKS_MAX)]
    }

    pub(crate) fn journal(&self, stack: u16) -> &Journal {
        &self.control().journals[usize::from(stack % STACKS_MAX)]
    }

    /// Whether the frames to send are on their way.
    #[inline]
    pub(crate) fn busy(&self) -> &[Busy] {
        let begin = self.layout.control_offset() + size_of::<Control>();
        // SAFETY: the bytes follow the control block inside the mapping (memory_len counts them), begin as zeros, and are only
        // ever used as atomics.
        unsafe {
            core::slice::from_raw_parts(
                self.base().add(begin).cast::<Busy>().as_ptr(),
                self.layout.tx_frames_total() as usize,
            )
        }
    }

    /// The bytes that a descriptor describes, or `None` if it points out of the frames to receive, or beyond the end of its own.
    #[inline]
    pub(crate) fn received(&self, descriptor: &XdpDesc) -> Option<&[u8]> {
        let end = descriptor.addr % FRAME_LEN as u64 + u64::from(descriptor.len);
        let frames = u64::from(self.layout.rx_frames) * FRAME_LEN as u64;
        if descriptor.addr >= frames || end > FRAME_LEN as u64 {
            return None;
        }
        // SAFETY: inside the mapping, as just checked. The kernel gave the frame away with the descriptor and does not
        // write it before it comes back over the fill ring, which happens after the borrow; other stacks get other frames.
        Some(unsafe {
            core::slice::from_raw_parts(
                self.base().add(descriptor.addr as usize).as_ptr(),
                descriptor.len as usize,
            )
        })
    }

    /// Where a frame to send (counted among those) begins, from the pool's beginning.
    #[inline]
    pub(crate) fn tx_address(&self, tx_frame: u32) -> u64 {
        u64::from(self.layout.rx_frames + tx_frame) * FRAME_LEN as u64 + self.layout.tx_headroom() as u64
    }

    /// Room for the longest frame to send, in the places from `tx_frame` on.
    ///
    /// # Safety
    /// The caller owns these places: they lie in its stack's range, and none is busy.
    #[inline]
    pub(crate) unsafe fn transmit_frame(&mut self, tx_frame: u32) -> &mut [u8] {
        debug_assert!(tx_frame + self.layout.frame_buffers <= self.layout.tx_frames_total());
        let offset = self.tx_address(tx_frame) as usize;
        let length = self.layout.frame_len_max();
        // SAFETY: inside the mapping; exclusive by the caller's promise.
        unsafe { core::slice::from_raw_parts_mut(self.base().add(offset).as_ptr(), length) }
    }

    /// The room before such a frame, whose end is next to it; empty if the pool has none.
    ///
    /// # Safety
    /// As [`Memory::transmit_frame`].
    #[inline]
    pub(crate) unsafe fn transmit_metadata(&mut self, tx_frame: u32) -> &mut [u8] {
        debug_assert!(tx_frame < self.layout.tx_frames_total());
        let length = self.layout.tx_headroom();
        let offset = self.tx_address(tx_frame) as usize - length;
        // SAFETY: inside the mapping; exclusive by the caller's promise.
        unsafe { core::slice::from_raw_parts_mut(self.base().add(offset).as_ptr(), length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: PoolLayout = PoolLayout {
        rx_frames: 8192,
        rx_ring: 1024,
        tx_frames: 512,
        tx_queues: 2,
        stacks: 32,
        frame_buffers: 5,
        tx_metadata: false,
    };

    #[test]
    fn a_layout_gives_every_stack_its_own_frames() {
        LAYOUT.check().unwrap();
        assert_eq!(LAYOUT.transmit_queue(5), 1);
        assert_eq!(LAYOUT.tx_base(5), 2 * 512);
        assert_eq!(LAYOUT.tx_frames_total(), 16 * 512);
        assert_eq!(LAYOUT.umem_len(), (8192 + 16 * 512) * 2048);
        assert_eq!(LAYOUT.memory_len() % 4096, 0);
        let mut taken = std::collections::HashSet::new();
        for stack in 0..32_u16 {
            assert!(LAYOUT.tx_base(stack) + LAYOUT.tx_frames <= LAYOUT.tx_frames_total());
            assert!(taken.insert((LAYOUT.transmit_queue(stack), LAYOUT.tx_base(stack))));
        }
    }

    #[test]
    fn impossible_layouts_are_refused() {
        for broken in [
            PoolLayout { stacks: 0, ..LAYOUT },
            PoolLayout { stacks: 65, ..LAYOUT },
            PoolLayout { rx_ring: 1000, ..LAYOUT },
            PoolLayout { rx_frames: 512, ..LAYOUT },
            PoolLayout { rx_frames: u32::MAX, ..LAYOUT },
            PoolLayout { tx_frames: 100, ..LAYOUT },
            PoolLayout { tx_frames: 0, ..LAYOUT },
            PoolLayout { tx_queues: 0, ..LAYOUT },
            PoolLayout { frame_buffers: 0, ..LAYOUT },
            PoolLayout { frame_buffers: 18, ..LAYOUT },
            PoolLayout { tx_metadata: true, ..LAYOUT },
            PoolLayout { tx_frames: 16384, tx_queues: 1, stacks: 64, rx_frames: 1 << 19, ..LAYOUT },
        ] {
            assert!(matches!(broken.check(), Err(Error::Layout(_))), "{broken:?}");
        }
    }
}

//! The memory of one queue that all stacks share: frames, and the control words beside them.
//!
//! ```text
//! 0          frames to receive into, rx_frames x 2048 B          registered with the kernel as UMEM
//!            frames to send from, tx_frames x 2048 B per stack   (slot = stack / tx_queues)
//! control    locks of the fill and completion ring, the reserve, one block per stack (page aligned)
//!            one byte per transmit frame: 1 while it is the kernel's
//! ```
//!
//! Fill and completion ring exist once per queue, so the stacks take turns on them under a spin lock that names its
//! holder: the broker can finish a killed holder's work ([`recover_return`]) and break the lock.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::os::fd::BorrowedFd;

use rustix::net::xdp::XdpDesc;

use super::rings::{Consumer, Ring};
use crate::Error;
use crate::mapping::Mapping;

/// Bytes of a frame's place in the pool. A received frame has 256 of them less (`XDP_PACKET_HEADROOM`).
pub const FRAME_LEN: usize = 2048;
/// The longest frame that can be received, in bytes, Ethernet header included.
pub const RECEIVED_FRAME_LEN_MAX: usize = FRAME_LEN - 256;
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

/// A spin lock between processes that holds its holder's number plus one.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct Lock(AtomicU32);

impl Lock {
    /// Tries `attempts` times: the lock is held for well under a microsecond, unless its holder lost its core.
    #[inline]
    pub(crate) fn try_lock(&self, holder: u32, attempts: u32) -> bool {
        for _ in 0..attempts {
            if self.0.compare_exchange_weak(0, holder + 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return true;
            }
            core::hint::spin_loop();
        }
        false
    }

    #[inline]
    pub(crate) fn unlock(&self) {
        self.0.store(0, Ordering::Release);
    }

    pub(crate) fn is_held_by(&self, holder: u32) -> bool {
        self.0.load(Ordering::Acquire) == holder + 1
    }
}

/// What others must know of a stack when it is gone. `returning` and the targets are the journal of [`return_frames`].
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct StackControl {
    /// 1 while a process has the rings open: from [`super::XdpLink::open`] until the link is dropped (or its process dies).
    pub(crate) in_use: AtomicU32,
    /// Frames on their way to the fill ring; 0 when none are.
    returning: AtomicU32,
    /// The receive ring's consumer index afterwards.
    receive_target: AtomicU32,
    /// [`Reserve::next`] afterwards.
    reserve_target: AtomicU32,
    /// The fill ring's producer index afterwards.
    fill_target: AtomicU32,
}

impl StackControl {
    /// For a new owner.
    pub(crate) fn reset(&self) {
        self.in_use.store(0, Ordering::Relaxed);
        self.returning.store(0, Ordering::Release);
    }
}

/// Frames that have never been received into, because fewer were enough: those from `next` on. Few frames in circulation stay
/// in the cache (over veth that saves a fifth of a frame's cost); more join when stacks fall behind and hold them.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Reserve {
    pub(crate) next: AtomicU32,
}

#[repr(C)]
struct Control {
    fill: Lock,
    completion: Lock,
    /// Changed only with the fill lock held.
    reserve: Reserve,
    stacks: [StackControl; STACKS_MAX as usize],
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
        let mapping = Mapping::shared(pool, 0, size, "mmap of a pool")?;
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

    pub(crate) fn fill_lock(&self) -> &Lock {
        &self.control().fill
    }

    /// What the holder of the fill lock needs.
    #[inline]
    pub(crate) fn filling<'a>(&'a self, ring: &'a Ring<u64>) -> Filling<'a> {
        Filling { ring, reserve: &self.control().reserve, layout: &self.layout }
    }

    pub(crate) fn completion_lock(&self) -> &Lock {
        &self.control().completion
    }

    pub(crate) fn reserve(&self) -> &Reserve {
        &self.control().reserve
    }

    pub(crate) fn stack(&self, stack: u16) -> &StackControl {
        &self.control().stacks[usize::from(stack % STACKS_MAX)]
    }

    /// 1 while a frame to send (counted among those) is on its way.
    #[inline]
    pub(crate) fn busy(&self, tx_frame: u32) -> &AtomicU8 {
        debug_assert!(tx_frame < self.layout.tx_frames_total());
        // SAFETY: the bytes follow the control block inside the mapping; callers stay below tx_frames_total.
        unsafe {
            self.base()
                .add(self.layout.control_offset() + size_of::<Control>() + tx_frame as usize)
                .cast::<AtomicU8>()
                .as_ref()
        }
    }

    /// The received frame that a descriptor describes, or `None` if the descriptor points out of the frames to receive.
    #[inline]
    pub(crate) fn received(&self, descriptor: &XdpDesc) -> Option<&[u8]> {
        let end = descriptor.addr.checked_add(u64::from(descriptor.len))?;
        if end > u64::from(self.layout.rx_frames) * FRAME_LEN as u64 || !descriptor.options.is_empty() {
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
        u64::from(self.layout.rx_frames + tx_frame) * FRAME_LEN as u64
    }

    /// A frame to send.
    ///
    /// # Safety
    /// The caller owns the frame: it lies in its stack's range, and it is not busy.
    #[inline]
    pub(crate) unsafe fn transmit_frame(&mut self, tx_frame: u32) -> &mut [u8] {
        debug_assert!(tx_frame < self.layout.tx_frames_total());
        let offset = self.tx_address(tx_frame) as usize;
        // SAFETY: inside the mapping; exclusive by the caller's promise.
        unsafe { core::slice::from_raw_parts_mut(self.base().add(offset).as_ptr(), FRAME_LEN) }
    }
}

/// The fill ring, and what is known of the frames that could be put into it. The holder of the fill lock uses it.
pub(crate) struct Filling<'a> {
    pub(crate) ring: &'a Ring<u64>,
    pub(crate) reserve: &'a Reserve,
    pub(crate) layout: &'a PoolLayout,
}

/// Frames that join the circulation at once, at most.
const RESERVE_BATCH: u32 = 64;

/// Gives the frames that `receive` has taken and not released back to the kernel, and adds some of the reserve if the kernel
/// is running short of them. The caller holds the fill lock.
///
/// A process may be killed between any two of these steps. That is harmless: entries beyond the fill ring's producer index are
/// invisible, and once `returning` is set [`recover_return`] does what is left to be done. `step` is called between the steps
/// (tests stop there).
///
/// False if the fill ring has no room, which only happens if somebody put frames into it that were not theirs.
#[inline]
pub(crate) fn return_frames(
    receive: &mut Consumer<XdpDesc>,
    filling: &Filling<'_>,
    control: &StackControl,
    mut step: impl FnMut(),
) -> bool {
    let Filling { ring: fill, reserve, layout } = filling;
    let count = receive.unreleased();
    let producer = fill.producer().load(Ordering::Relaxed);
    let used = producer.wrapping_sub(fill.consumer().load(Ordering::Acquire));
    let reserved = reserve.next.load(Ordering::Relaxed);
    let level = used.saturating_add(count);
    let added = if level < layout.rx_ring / 2 {
        RESERVE_BATCH.min(layout.rx_frames.saturating_sub(reserved))
    } else {
        0
    };
    if level.saturating_add(added) > fill.capacity() {
        return false;
    }
    for offset in 0..count {
        let descriptor = receive.ring().read(receive.released().wrapping_add(offset));
        let frame = descriptor.addr & !(FRAME_LEN as u64 - 1);
        fill.write(producer.wrapping_add(offset), frame);
        step();
    }
    for offset in 0..added {
        let frame = u64::from(reserved + offset) * FRAME_LEN as u64;
        fill.write(producer.wrapping_add(count + offset), frame);
        step();
    }
    let fill_target = producer.wrapping_add(count + added);
    (control.receive_target).store(receive.next(), Ordering::Relaxed);
    (control.reserve_target).store(reserved + added, Ordering::Relaxed);
    control.fill_target.store(fill_target, Ordering::Relaxed);
    step();
    (control.returning).store(count + added, Ordering::Release);
    step();
    (receive.ring().consumer()).store(receive.next(), Ordering::Release);
    step();
    if added > 0 {
        (reserve.next).store(reserved + added, Ordering::Release);
        step();
    }
    fill.producer().store(fill_target, Ordering::Release);
    step();
    control.returning.store(0, Ordering::Release);
    step();
    receive.note_released();
    true
}

/// Finishes what a killed holder of the fill lock had begun, so that no frame is lost or in two places.
///
/// # Errors
/// A journal that [`return_frames`] does not write: the stack had corrupted its memory.
pub(crate) fn recover_return(
    receive: &Ring<XdpDesc>,
    filling: &Filling<'_>,
    control: &StackControl,
) -> Result<(), &'static str> {
    let returning = control.returning.load(Ordering::Acquire);
    if returning == 0 {
        return Ok(());
    }
    let receive_target = control.receive_target.load(Ordering::Relaxed);
    let reserve_target = control.reserve_target.load(Ordering::Relaxed);
    let fill_target = control.fill_target.load(Ordering::Relaxed);
    let released = receive_target.wrapping_sub(receive.consumer().load(Ordering::Relaxed));
    let filled = fill_target.wrapping_sub(filling.ring.producer().load(Ordering::Relaxed));
    let sane = released <= receive.capacity()
        && (filled == returning || filled == 0)
        && returning <= receive.capacity() + RESERVE_BATCH
        && reserve_target <= filling.layout.rx_frames;
    if !sane {
        return Err("a journal that no stack writes");
    }
    // Each step is a store of what it had to become: those that had been done are done again.
    receive.consumer().store(receive_target, Ordering::Release);
    (filling.reserve.next).store(reserve_target, Ordering::Release);
    (filling.ring.producer()).store(fill_target, Ordering::Release);
    control.returning.store(0, Ordering::Release);
    Ok(())
}

/// Takes completed frames off the completion ring and marks them free, whichever stack they belong to. The caller holds the
/// completion lock. Returns (frames freed, addresses that are no frame to send).
///
/// The ring lets go of each entry before its frame is marked free: a kill in between loses that one frame to its stack; the
/// other order could free a frame twice, the second time after its owner had used it again.
pub(crate) fn reap_completions(memory: &Memory, completion: &Ring<u64>) -> (u32, u32) {
    let rx_frames = memory.layout().rx_frames;
    let total = memory.layout().tx_frames_total();
    let count = completion.filled();
    let first = completion.consumer().load(Ordering::Relaxed);
    let mut invalid = 0;
    for offset in 0..count {
        let address = completion.read(first.wrapping_add(offset));
        completion.consumer().store(first.wrapping_add(offset + 1), Ordering::Release);
        match u32::try_from(address / FRAME_LEN as u64) {
            Ok(frame) if frame >= rx_frames && frame - rx_frames < total => {
                memory.busy(frame - rx_frames).store(0, Ordering::Release);
            }
            _ => invalid += 1,
        }
    }
    (count - invalid, invalid)
}

#[cfg(test)]
mod tests {
    use super::super::rings::tests::HeapRing;
    use super::*;
    use rustix::net::xdp::XdpDescOptions;

    const LAYOUT: PoolLayout =
        PoolLayout { rx_frames: 8192, rx_ring: 1024, tx_frames: 512, tx_queues: 2, stacks: 32 };

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
            PoolLayout { tx_frames: 16384, tx_queues: 1, stacks: 64, rx_frames: 1 << 19, ..LAYOUT },
        ] {
            assert!(matches!(broken.check(), Err(Error::Layout(_))), "{broken:?}");
        }
    }

    /// The whole life of a batch with the process killed after every single step: afterwards every frame is either still in
    /// the receive ring, or in the fill ring, or in the reserve, once.
    #[test]
    fn a_kill_at_any_step_neither_loses_nor_doubles_a_frame() {
        struct Killed;
        // Frames 0 to 3 have been received; of 4 to 11, `reserved` are in the reserve and the others in the fill ring.
        for (rx_ring, reserved) in [(4, 0), (4, 4), (64, 8), (64, 3)] {
            let layout = PoolLayout { rx_ring, rx_frames: 12, ..LAYOUT };
            for start in [0, u32::MAX - 1] {
                for batch in 1..=4_u32 {
                    for kill_after in 0..32 {
                        let mut rx_memory = HeapRing::<XdpDescCell>::new(4, start);
                        let mut fill_memory = HeapRing::<u64>::new(16, start.wrapping_add(3));
                        let rx_ring = rx_memory.view_descriptors();
                        for frame in 0..4_u32 {
                            rx_ring.write(start.wrapping_add(frame), descriptor(frame));
                        }
                        (rx_ring.producer()).store(start.wrapping_add(4), Ordering::Release);
                        let fill = fill_memory.view();
                        let mut producer = start.wrapping_add(3);
                        for frame in 4..12 - reserved {
                            fill.write(producer, u64::from(frame) * 2048);
                            producer = producer.wrapping_add(1);
                        }
                        fill.producer().store(producer, Ordering::Release);
                        let reserve = Reserve::default();
                        reserve.next.store(12 - reserved, Ordering::Relaxed);
                        let filling = Filling { ring: &fill, reserve: &reserve, layout: &layout };
                        let control = StackControl::default();
                        let mut receive = Consumer::new(rx_memory.view_descriptors());
                        for _ in 0..batch {
                            receive.take().unwrap();
                        }
                        let mut steps = 0;
                        let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                            return_frames(&mut receive, &filling, &control, || {
                                if steps == kill_after {
                                    std::panic::resume_unwind(Box::new(Killed));
                                }
                                steps += 1;
                            })
                        }))
                        .is_err();
                        if killed {
                            recover_return(&rx_ring, &filling, &control).unwrap();
                        }
                        let mut found: Vec<u64> = Vec::new();
                        let first = fill.consumer().load(Ordering::Relaxed);
                        found.extend((0..fill.filled()).map(|i| fill.read(first.wrapping_add(i)) / 2048));
                        let first = rx_ring.consumer().load(Ordering::Relaxed);
                        found.extend(
                            (0..rx_ring.filled()).map(|i| rx_ring.read(first.wrapping_add(i)).addr / 2048),
                        );
                        let next = reserve.next.load(Ordering::Relaxed);
                        if rx_ring.capacity() == layout.rx_ring {
                            assert_eq!(next, 12 - reserved, "there was no need of the reserve");
                        }
                        found.extend(u64::from(next)..12);
                        found.sort_unstable();
                        let all: Vec<u64> = (0..12).collect();
                        assert_eq!(found, all, "{start} {batch} {kill_after}");
                        assert_eq!(control.returning.load(Ordering::Relaxed), 0);
                        if !killed {
                            assert!(kill_after > batch + 4, "every step was visited");
                            assert!(layout.rx_ring == 4 || next == 12);
                        }
                    }
                }
            }
        }
    }

    /// Whatever a stack wrote into its journal, recovery refuses it or leaves sane indices.
    #[test]
    fn a_corrupted_journal_is_refused() {
        let mut rx_memory = HeapRing::<XdpDescCell>::new(4, 0);
        let mut fill_memory = HeapRing::<u64>::new(16, 0);
        let (rx_ring, fill) = (rx_memory.view_descriptors(), fill_memory.view());
        let reserve = Reserve::default();
        let filling = Filling { ring: &fill, reserve: &reserve, layout: &LAYOUT };
        for (returning, receive, reserved, filled) in [
            (1, 5, 0, 1),
            (1, 1, LAYOUT.rx_frames + 1, 1),
            (1, 1, 0, 2),
            (u32::MAX, 1, 0, u32::MAX),
            (69, 1, 0, 69),
        ] {
            let control = StackControl::default();
            control.returning.store(returning, Ordering::Relaxed);
            control.receive_target.store(receive, Ordering::Relaxed);
            control.reserve_target.store(reserved, Ordering::Relaxed);
            control.fill_target.store(filled, Ordering::Relaxed);
            assert!(recover_return(&rx_ring, &filling, &control).is_err());
        }
    }

    fn descriptor(frame: u32) -> XdpDesc {
        XdpDesc { addr: u64::from(frame) * 2048 + 256, len: 64, options: XdpDescOptions::empty() }
    }

    /// `XdpDesc` has no default; a ring of these has the same layout.
    #[derive(Clone, Copy, Default)]
    #[repr(C)]
    struct XdpDescCell(u64, u32, u32);

    impl HeapRing<XdpDescCell> {
        fn view_descriptors(&mut self) -> Ring<XdpDesc> {
            self.view().cast()
        }
    }

    #[test]
    fn a_lock_belongs_to_whoever_took_it() {
        let lock = Lock::default();
        assert!(lock.try_lock(7, 1));
        assert!(!lock.try_lock(8, 10));
        assert!(lock.is_held_by(7) && !lock.is_held_by(8));
        lock.unlock();
        assert!(lock.try_lock(0, 1) && lock.is_held_by(0));
    }
}

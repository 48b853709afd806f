//! The completion ring of a queue, which all stacks that send on it empty, without a lock: an entry is whose compare-and-swap
//! moves the consumer index past it, and that stack marks the frame free.
//!
//! Entries that name the stack's own frames are taken many at once. Those of others are taken one by one, so that a stack that
//! is stopped (or killed) in between keeps one frame from another stack and not more, until it goes on (or that stack ends).

use core::ops::Range;

use super::FRAME_LEN;
use super::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Own frames that are taken at once, at most.
const RUN: usize = 32;

/// Whether a frame to send is the kernel's: odd while it is. Each use is another number, so that whoever comes late
/// does not free a frame that is in use again.
#[derive(Default)]
#[repr(transparent)]
pub(crate) struct Busy(AtomicU8);

impl Busy {
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.0.load(Ordering::Acquire) & 1 == 0
    }

    /// By the frame's owner, who has just seen that it is free.
    #[inline]
    pub(crate) fn begin(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) | 1, Ordering::Relaxed);
    }

    /// By whoever took the frame off the ring and owns it.
    #[inline]
    fn end(&self) {
        let use_number = self.0.load(Ordering::Relaxed);
        self.0.store(use_number.wrapping_add(use_number & 1), Ordering::Release);
    }

    /// Ends the use that had this number.
    fn end_of(&self, use_number: u8) {
        if use_number & 1 == 1 {
            let next = use_number.wrapping_add(1);
            let _ = self.0.compare_exchange(use_number, next, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// On behalf of an owner that is gone.
    pub(crate) fn end_for(&self) {
        self.end_of(self.0.load(Ordering::Acquire));
    }
}

/// One view of the ring, and of the frames to send.
pub(crate) struct CompletionRing<'a> {
    pub(crate) producer: &'a AtomicU32,
    pub(crate) consumer: &'a AtomicU32,
    /// The ring's entries, a power of two.
    pub(crate) slots: &'a [AtomicU64],
    /// One for each frame to send, of all stacks.
    pub(crate) busy: &'a [Busy],
    /// The frames before them.
    pub(crate) rx_frames: u32,
}

/// What [`CompletionRing::reap`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reaped {
    /// Frames marked free.
    pub(crate) freed: u32,
    /// Addresses that are no frame to send.
    pub(crate) invalid: u32,
    /// Times that another stack was faster.
    pub(crate) missed: u32,
}

impl CompletionRing<'_> {
    /// Takes completed frames off the ring and marks them free, whichever stack they belong to; `own` are the caller's.
    /// `step` is called between any two accesses to shared memory (tests stop there).
    #[inline]
    pub(crate) fn reap(&self, own: &Range<u32>, step: &mut impl FnMut()) -> Reaped {
        let mut reaped = Reaped::default();
        let mut looked_at = 0;
        // Bounded, although others fill and empty the ring meanwhile.
        while looked_at < self.slots.len() {
            let first = self.consumer.load(Ordering::Acquire);
            step();
            let filled = self.producer.load(Ordering::Acquire).wrapping_sub(first) as usize;
            step();
            let filled = filled.min(self.slots.len());
            if filled == 0 {
                break;
            }
            let mut frames = [0; RUN];
            let mut run = 0;
            while run < filled.min(RUN) {
                match self.frame(first.wrapping_add(run as u32)) {
                    Some(frame) if own.contains(&frame) => frames[run] = frame,
                    _ => break,
                }
                run += 1;
            }
            looked_at += run.max(1);
            if run == 0 {
                self.take_other(first, &mut reaped, step);
            } else if self.advance(first, run as u32) {
                step();
                for &frame in &frames[..run] {
                    self.busy[frame as usize].end();
                    step();
                }
                reaped.freed += run as u32;
            } else {
                reaped.missed += 1;
            }
        }
        reaped
    }

    /// Takes one entry that names a frame of another stack, or none.
    fn take_other(&self, first: u32, reaped: &mut Reaped, step: &mut impl FnMut()) {
        // The use that the entry ends: as long as the entry is in the ring, the frame is not used again.
        let frame = self.frame(first).map(|frame| &self.busy[frame as usize]);
        let use_number = frame.map_or(0, |busy| busy.0.load(Ordering::Acquire));
        step();
        if !self.advance(first, 1) {
            reaped.missed += 1;
            return;
        }
        step();
        match frame {
            Some(busy) => {
                busy.end_of(use_number);
                reaped.freed += 1;
            }
            None => reaped.invalid += 1,
        }
        step();
    }

    /// The frame to send that an entry names, counted among those.
    #[inline]
    fn frame(&self, index: u32) -> Option<u32> {
        let address = self.slots[index as usize & (self.slots.len() - 1)].load(Ordering::Relaxed);
        let frame = u32::try_from(address / FRAME_LEN as u64).ok()?.checked_sub(self.rx_frames)?;
        ((frame as usize) < self.busy.len()).then_some(frame)
    }

    #[inline]
    fn advance(&self, first: u32, count: u32) -> bool {
        let next = first.wrapping_add(count);
        self.consumer.compare_exchange(first, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

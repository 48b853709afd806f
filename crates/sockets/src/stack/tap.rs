//! The link as the engine sees it while an observer takes frames.

use overfly_broker::watch::Show;
use overfly_engine::Instant;
use overfly_wire::{FrameSink, Unfinished};

/// Shows each frame before it leaves.
pub(super) struct Tapped<'a, T> {
    link: &'a mut T,
    show: &'a mut Show,
    now: Instant,
}

impl<'a, T: FrameSink> Tapped<'a, T> {
    pub(super) fn new(link: &'a mut T, show: &'a mut Show, now: Instant) -> Self {
        Self { link, show, now }
    }

    fn tap(&mut self, length: usize, is_long: bool) {
        // A buffer that is not committed is given again.
        let frame = if is_long { self.link.long_frame(length) } else { self.link.frame() };
        if let Some(frame) = frame
            && let Some(frame) = frame.get(..length)
        {
            self.show.frame(self.now.as_micros(), true, frame);
        }
    }
}

impl<T: FrameSink> FrameSink for Tapped<'_, T> {
    fn frame(&mut self) -> Option<&mut [u8]> {
        self.link.frame()
    }

    fn long_frame(&mut self, length: usize) -> Option<&mut [u8]> {
        self.link.long_frame(length)
    }

    fn commit(&mut self, length: usize) {
        self.tap(length, false);
        self.link.commit(length);
    }

    fn commit_unfinished(&mut self, length: usize, left: Unfinished) {
        self.tap(length, left.segment_len > 0);
        self.link.commit_unfinished(length, left);
    }
}

//! The link as the engine sees it while an observer takes frames.

use overfly_engine::Instant;
use overfly_link::watch::Show;
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

    fn tap(&mut self, length: usize) {
        // A buffer that is not committed is given again.
        if let Some(frame) = self.link.frame()
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

    fn commit(&mut self, length: usize) {
        self.tap(length);
        self.link.commit(length);
    }

    fn commit_unfinished(&mut self, length: usize, left: Unfinished) {
        self.tap(length);
        self.link.commit_unfinished(length, left);
    }
}

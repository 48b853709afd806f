//! What wakes a [`MemifLink`] that sleeps.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{IoSliceMut, ReadWriteFlags, preadv2};

use super::{LinkState, MemifLink};

/// Wake-ups in a row without a frame either way, at most.
const IDLE_WAKEUPS_MAX: u32 = 1 << 16;

impl MemifLink {
    /// Looks whether the peer still lives, and takes the interrupts that have come. Returns whether the link is up. The
    /// calls of this type notice by themselves in the end, but only now and then.
    pub fn check_peer(&mut self) -> bool {
        self.empty_receives = 0;
        let mut descriptors = [
            PollFd::from_borrowed_fd(self.control.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.wakeup.as_fd(), PollFlags::IN),
        ];
        if poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0) {
            let [control, wakeup] = descriptors.map(|descriptor| !descriptor.revents().is_empty());
            self.heed(control, wakeup);
        }
        self.state == LinkState::Up
    }

    /// As [`MemifLink::check_peer`], where it is known that this one of its descriptors is readable. Others' numbers are ignored.
    pub(in crate::memif) fn heed_descriptor(&mut self, number: i32) {
        let [control, wakeup] = [&self.control, &self.wakeup].map(|own| own.as_fd().as_raw_fd() == number);
        self.heed(control, wakeup);
    }

    fn heed(&mut self, control: bool, wakeup: bool) {
        if wakeup {
            self.counters.wakeups += 1;
            silence(self.wakeup.as_fd());
            self.judge_wakeup();
        }
        // What it sent before is taken first.
        if control && self.state == LinkState::Up && self.receive.is_empty() {
            self.state = LinkState::PeerGone;
        }
    }

    /// Interrupts come with frames. A peer that keeps this end awake without any (it filled an eventfd of the semaphore kind,
    /// say, of which a read takes 1) would cost a processor and pay nothing.
    fn judge_wakeup(&mut self) {
        let frames = self.counters.received_frames.wrapping_add(self.counters.sent_frames);
        self.idle_wakeups = if frames == self.frames_at_wakeup { self.idle_wakeups + 1 } else { 0 };
        self.frames_at_wakeup = frames;
        if self.idle_wakeups > IDLE_WAKEUPS_MAX && self.state == LinkState::Up {
            self.state = LinkState::PeerBroken("it wakes this end again and again for nothing");
        }
    }
}

/// Sets an eventfd back to 0, without waiting even if the peer made it block.
fn silence(eventfd: BorrowedFd<'_>) {
    const AT_NO_OFFSET: u64 = u64::MAX;
    let mut count = [0; 8];
    let mut target = [IoSliceMut::new(&mut count)];
    let _ = preadv2(eventfd, &mut target, AT_NO_OFFSET, ReadWriteFlags::NOWAIT);
}

//! What a link does that has received nothing.

use core::time::Duration;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::sched_yield;

use super::XdpLink;
use crate::Error;
use crate::xdp::{BusyPoll, socket};

/// Longest sleep of [`crate::Link::rest`].
const REST_MAX: Duration = Duration::from_millis(1);

/// What a [`crate::Link::receive`] that has found nothing does before it looks again.
#[derive(Clone, Copy, Debug)]
pub(super) enum Idle {
    /// It does not look again.
    Return,
    /// It runs the device's NAPI itself (busy polling).
    PollDevice,
    /// It lets others run on this processor.
    Yield,
}

impl XdpLink {
    /// [`crate::Link::receive`] gives the processor away when nothing has arrived: for those who spin where the kernel's threads
    /// receive for the device.
    pub fn share_processor(&mut self) {
        self.idle = Idle::Yield;
    }

    /// Makes the sockets poll the device themselves, and [`crate::Link::receive`] do so when nothing has arrived. It pays when
    /// the device's `napi_defer_hard_irqs` and `gro_flush_timeout` are set, so that senders stop scheduling its NAPI.
    /// Sockets from a broker come with this already done if it was asked for.
    ///
    /// # Errors
    /// [`Error::NoBusyPoll`] where the kernel cannot, [`Error::NoPrivilege`] without CAP_NET_ADMIN.
    pub fn enable_busy_poll(&mut self, busy_poll: BusyPoll) -> Result<(), Error> {
        if !(self.queues.iter()).all(|queue| socket::knows_napi(queue.socket.as_fd())) {
            return Err(Error::NoBusyPoll);
        }
        for queue in &self.queues {
            socket::enable_busy_poll(queue.socket.as_fd(), busy_poll)?;
        }
        self.idle = Idle::PollDevice;
        Ok(())
    }

    /// Waits a little for frames, as it is to. False if it is not to look again.
    #[inline]
    pub(super) fn wait_idle(&mut self) -> bool {
        match self.idle {
            Idle::Return => return false,
            Idle::PollDevice => self.poll_device(),
            Idle::Yield => {
                self.counters.yields += 1;
                sched_yield();
            }
        }
        true
    }

    /// Runs the NAPI of each queue that this stack has received from.
    fn poll_device(&mut self) {
        for queue in &self.queues {
            if queue.carries_traffic {
                self.counters.busy_polls += 1;
                socket::poll_device(queue.socket.as_fd());
            }
        }
    }

    /// Sleeps until a frame has arrived, so long at most.
    #[cold]
    pub(super) fn sleep_for_frames(&mut self, longest: Duration) {
        self.counters.rests += 1;
        let mut sockets: Vec<_> =
            self.queues.iter().map(|queue| PollFd::new(&queue.socket, PollFlags::IN)).collect();
        let longest = Timespec { tv_sec: 0, tv_nsec: longest.min(REST_MAX).subsec_nanos().into() };
        // What a signal ends is short enough.
        let _ = poll(&mut sockets, Some(&longest));
    }
}

//! Telling the kernel of frames that it is to send.

use std::os::fd::AsFd;

use rustix::io::Errno;

use super::XdpLink;
use crate::link::Link;
use crate::xdp::socket;

impl XdpLink {
    /// Whether the kernel must be told of published frames.
    pub(super) fn needs_kick(&mut self) -> bool {
        if !self.zero_copy {
            return true;
        }
        // The flag of a socket that joins a pool late is not set until the driver changes its mind once
        // (xsk_set_tx_need_wakeup returns early when the pool's flag is set), so it counts only once it was seen.
        let wanted = self.transmit.ring().needs_wakeup();
        self.wakeup_flag_seen |= wanted;
        wanted || !self.wakeup_flag_seen
    }

    /// Calls `sendto` until the kernel has taken all published frames or makes no progress.
    pub(super) fn kick(&mut self) {
        let mut outstanding = self.transmit.outstanding();
        loop {
            self.counters.kicks += 1;
            let result = socket::kick(self.queues[self.transmit_queue].socket.as_fd());
            let left = self.transmit.outstanding();
            let progress = left < outstanding;
            outstanding = left;
            match result {
                Ok(()) if self.zero_copy || left == 0 => return,
                Ok(()) if progress => {}
                // The budget of one call is used up, or the completion ring is full, or the device's queue.
                Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {
                    if !progress && self.reap() == 0 {
                        self.counters.transmit_again += 1;
                        self.is_stuck = true;
                        return;
                    }
                }
                Err(errno) => return self.kick_failed(errno),
            }
            if left == 0 {
                return;
            }
        }
    }

    /// The interface is down or gone, or something else that another kick does not mend: the next one comes with the next frame, such as a
    /// retransmission.
    #[cold]
    pub(super) fn refused(&mut self, errno: Errno) {
        match errno {
            Errno::NETDOWN | Errno::NXIO => self.counters.transmit_interface_down += 1,
            _ => self.counters.transmit_failed += 1,
        }
        self.refused_at = Some(self.transmit.written());
    }
}

//! What a link and the kernel have counted, and how full its rings are.

use rustix::net::sockopt;

use super::super::counters::{KernelCounters, Occupancy};
use super::{Counters, Error, Queue, XdpLink};
use crate::packet;

impl XdpLink {
    /// What this link has done.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How full the rings are.
    #[must_use]
    pub fn occupancy(&self) -> Occupancy {
        let sum = |of: &dyn Fn(&Queue) -> u32| self.queues.iter().map(|queue| u64::from(of(queue))).sum();
        Occupancy {
            received: sum(&|queue| queue.receive.ring().filled()),
            receive_ring: sum(&|queue| queue.receive.ring().capacity()),
            outstanding: self.transmit.outstanding().into(),
            transmit_ring: self.transmit.ring().capacity().into(),
            fill: sum(&|queue| queue.fill.filled()),
        }
    }

    /// What became of frames of several segments.
    #[must_use]
    pub fn long_frame_counters(&self) -> packet::Counters {
        self.long_frames.as_ref().map_or_else(packet::Counters::default, |long| long.counters)
    }

    /// What the kernel counted. Costs a system call for each queue.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn kernel_counters(&self) -> Result<KernelCounters, Error> {
        let mut sum = KernelCounters::default();
        for queue in &self.queues {
            let statistics = sockopt::xdp_statistics(&queue.socket)
                .map_err(|errno| Error::system("XDP_STATISTICS", errno))?;
            sum.receive_dropped += statistics.rx_dropped;
            sum.receive_invalid += statistics.rx_invalid_descs;
            sum.transmit_invalid += statistics.tx_invalid_descs;
            sum.receive_ring_full += statistics.rx_ring_full.unwrap_or(0);
            sum.fill_ring_empty += statistics.rx_fill_ring_empty_descs.unwrap_or(0);
            sum.transmit_ring_empty += statistics.tx_ring_empty_descs.unwrap_or(0);
        }
        Ok(sum)
    }
}

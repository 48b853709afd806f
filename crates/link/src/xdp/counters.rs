//! What a link counts.

use super::pieces::Flaw;
use crate::counters::counters;

counters! {
    /// What an [`super::XdpLink`] has done, and every reason for which it did not.
    Counters {
        /// Frames handed to the caller of [`crate::Link::receive`].
        received_frames,
        /// Their bytes.
        received_bytes,
        /// Of these frames, those that came in several descriptors and were put together.
        received_long_frames,
        /// Received frames with descriptors that point out of the pool, dropped. Something corrupted the ring.
        receive_invalid,
        /// Received frames whose last descriptors are not there, dropped.
        receive_unfinished,
        /// Received frames of more bytes or descriptors than a packet can have ([`super::PACKET_LEN_MAX`]), dropped.
        receive_too_long,
        /// Frames committed.
        sent_frames,
        /// Their bytes.
        sent_bytes,
        /// Of these frames, those whose TCP checksum the device, or the kernel, completes.
        sent_unsummed,
        /// Calls of `sendto`.
        kicks,
        /// [`frame`](overfly_wire::FrameSink::frame) had no free frame.
        transmit_full,
        /// `sendto` took no frame and had no complaint but EAGAIN: the device's queue or the send buffer is full.
        transmit_again,
        /// `sendto` said EBUSY: the device dropped a frame.
        transmit_dropped,
        /// `sendto` said ENOBUFS: the kernel had no memory.
        transmit_no_memory,
        /// `sendto` said ENETDOWN or ENXIO: the interface is down or gone.
        transmit_interface_down,
        /// `sendto` said something else.
        transmit_failed,
        /// Frames that the kernel has finished with, of any stack.
        completed_frames,
        /// Completed addresses that are no frames. Something corrupted the ring.
        completion_invalid,
        /// Times that it was another stack's turn to fill, so that received frames went back later.
        fill_deferred,
        /// Times that the turn to fill was taken from a stack that had it and did not run.
        fill_taken_over,
        /// Times that this stack lost its turn to fill, because it had not run for a while.
        fill_lost,
        /// Times that another stack was faster at the completion ring.
        completion_missed,
        /// Times that the fill ring had no room. Something corrupted it.
        fill_full,
        /// SYNs that had waited for a stopped process until other stacks may have answered them, dropped.
        late_syns,
        /// Calls that polled a device's queue.
        busy_polls,
        /// Times that the processor was given away because nothing had arrived.
        yields,
        /// Times that a thread slept because nothing had arrived for a while.
        rests,
        /// Calls that told a driver that there are frames to receive into again (zero-copy).
        receive_wakeups,
    }
}

impl Counters {
    /// A received frame is not handed over.
    #[cold]
    pub(super) fn drop_received(&mut self, flaw: Flaw) {
        match flaw {
            Flaw::CutShort => self.receive_unfinished += 1,
            Flaw::TooLong => self.receive_too_long += 1,
            Flaw::Invalid => self.receive_invalid += 1,
            Flaw::Rest => {}
        }
    }
}

counters! {
    /// How full a link's rings are, in frames, all queues together.
    Occupancy {
        /// Received frames that wait to be taken.
        received as "receive_ring",
        /// Places in the receive rings.
        receive_ring as "receive_ring_size",
        /// Frames that wait to be sent.
        outstanding as "transmit_ring",
        /// Places in the transmit ring.
        transmit_ring as "transmit_ring_size",
        /// Frames that the kernel can receive into.
        fill as "fill_ring",
    }
}

counters! {
    /// What the kernel counted for a stack's sockets (`XDP_STATISTICS`), all queues together.
    KernelCounters {
        /// Frames dropped for any reason but a full ring: nothing to receive into, or longer than
        /// [`super::RECEIVED_FRAME_LEN_MAX`] where the sockets take one descriptor for each.
        receive_dropped,
        /// Frames dropped because the receive ring was full.
        receive_ring_full,
        /// Times that the kernel found the fill ring empty (counted for the pool).
        fill_ring_empty,
        /// Invalid addresses in the fill ring.
        receive_invalid,
        /// Invalid descriptors in the transmit ring.
        transmit_invalid,
        /// Times that the kernel found the transmit ring empty.
        transmit_ring_empty,
    }
}

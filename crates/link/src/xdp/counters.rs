//! What a link counts.

use super::pieces::Flaw;

/// What an [`super::XdpLink`] has done, and every reason for which it did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames handed to the caller of [`super::XdpLink::receive`].
    pub received_frames: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Of these frames, those that came in several descriptors and were put together.
    pub received_long_frames: u64,
    /// Received frames with descriptors that point out of the pool, dropped. Something corrupted the ring.
    pub receive_invalid: u64,
    /// Received frames whose last descriptors are not there, dropped.
    pub receive_unfinished: u64,
    /// Received frames of more bytes or descriptors than a packet can have ([`super::PACKET_LEN_MAX`]), dropped.
    pub receive_too_long: u64,
    /// Frames committed.
    pub sent_frames: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Calls of `sendto`.
    pub kicks: u64,
    /// [`frame`](overfly_wire::FrameSink::frame) had no free frame.
    pub transmit_full: u64,
    /// `sendto` took no frame and had no complaint but EAGAIN: the device's queue or the send buffer is full.
    pub transmit_again: u64,
    /// `sendto` said EBUSY: the device dropped a frame.
    pub transmit_dropped: u64,
    /// `sendto` said ENOBUFS: the kernel had no memory.
    pub transmit_no_memory: u64,
    /// `sendto` said ENETDOWN or ENXIO: the interface is down or gone.
    pub transmit_interface_down: u64,
    /// `sendto` said something else.
    pub transmit_failed: u64,
    /// Frames that the kernel has finished with, of any stack.
    pub completed_frames: u64,
    /// Completed addresses that are no frames. Something corrupted the ring.
    pub completion_invalid: u64,
    /// Times that it was another stack's turn to fill, so that received frames went back later.
    pub fill_deferred: u64,
    /// Times that the turn to fill was taken from a stack that had it and did not run.
    pub fill_taken_over: u64,
    /// Times that this stack lost its turn to fill, because it had not run for a while.
    pub fill_lost: u64,
    /// Times that another stack was faster at the completion ring.
    pub completion_missed: u64,
    /// Times that the fill ring had no room. Something corrupted it.
    pub fill_full: u64,
    /// SYNs that had waited for a stopped process until other stacks may have answered them, dropped.
    pub late_syns: u64,
    /// Calls that polled a device's queue.
    pub busy_polls: u64,
    /// Times that the processor was given away because nothing had arrived.
    pub yields: u64,
    /// Calls that told a driver that there are frames to receive into again (zero-copy).
    pub receive_wakeups: u64,
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

    /// Each counter with its name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("received_frames", self.received_frames),
            ("received_bytes", self.received_bytes),
            ("received_long_frames", self.received_long_frames),
            ("receive_invalid", self.receive_invalid),
            ("receive_unfinished", self.receive_unfinished),
            ("receive_too_long", self.receive_too_long),
            ("sent_frames", self.sent_frames),
            ("sent_bytes", self.sent_bytes),
            ("kicks", self.kicks),
            ("transmit_full", self.transmit_full),
            ("transmit_again", self.transmit_again),
            ("transmit_dropped", self.transmit_dropped),
            ("transmit_no_memory", self.transmit_no_memory),
            ("transmit_interface_down", self.transmit_interface_down),
            ("transmit_failed", self.transmit_failed),
            ("completed_frames", self.completed_frames),
            ("completion_invalid", self.completion_invalid),
            ("fill_deferred", self.fill_deferred),
            ("fill_taken_over", self.fill_taken_over),
            ("fill_lost", self.fill_lost),
            ("completion_missed", self.completion_missed),
            ("fill_full", self.fill_full),
            ("late_syns", self.late_syns),
            ("busy_polls", self.busy_polls),
            ("yields", self.yields),
            ("receive_wakeups", self.receive_wakeups),
        ]
        .into_iter()
    }
}

/// How full a link's rings are, in frames, all queues together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Received frames that wait to be taken.
    pub received: u32,
    /// Places in the receive rings.
    pub receive_ring: u32,
    /// Frames that wait to be sent.
    pub outstanding: u32,
    /// Places in the transmit ring.
    pub transmit_ring: u32,
    /// Frames that the kernel can receive into.
    pub fill: u32,
}

/// What the kernel counted for a stack's sockets (`XDP_STATISTICS`), all queues together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounters {
    /// Frames dropped for any reason but a full ring: nothing to receive into, or longer than
    /// [`super::RECEIVED_FRAME_LEN_MAX`] where the sockets take one descriptor for each.
    pub receive_dropped: u64,
    /// Frames dropped because the receive ring was full.
    pub receive_ring_full: u64,
    /// Times that the kernel found the fill ring empty (counted for the pool).
    pub fill_ring_empty: u64,
    /// Invalid addresses in the fill ring.
    pub receive_invalid: u64,
    /// Invalid descriptors in the transmit ring.
    pub transmit_invalid: u64,
    /// Times that the kernel found the transmit ring empty.
    pub transmit_ring_empty: u64,
}

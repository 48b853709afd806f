//! What is written where the cursor is, on its way: into the ring, or behind frames of several segments.

use overfly_wire::Unfinished;
use rustix::net::xdp::{XdpDesc, XdpDescOptions};

use super::XdpLink;
use crate::Link;
use crate::finish;
use crate::xdp::FRAME_LEN;
use crate::xdp::metadata::{HAS_METADATA, Metadata};

/// Frames written before they are shown to the kernel, if nobody flushes earlier.
const PUBLISH_BATCH: u32 = 32;

impl XdpLink {
    /// Whether there is room behind frames of several segments for any other: once it is written it cannot wait, and in the ring it
    /// would overtake those of its flow.
    #[cold]
    pub(super) fn has_room_to_follow(&mut self) -> bool {
        let longest = self.layout.frame_len_max();
        let has_room = |link: &XdpLink| {
            link.long_frames.as_ref().is_none_or(|long| long.is_empty() || long.has_room(longest))
        };
        has_room(self) || {
            self.flush();
            has_room(self)
        }
    }

    /// Sends a frame of the ring's behind those of several segments, if its flow has some there.
    #[cold]
    fn follows(&mut self, frame: u32, length: usize, left: Unfinished) -> bool {
        let Some(long) = &mut self.long_frames else { return false };
        let memory = &mut self.queues[self.transmit_queue].memory;
        // SAFETY: as in `frame`, which gave it to the caller; it was not committed.
        let written = &unsafe { memory.transmit_frame(frame) }[..length];
        if !long.has_flow_of(written) {
            return false;
        }
        let Some(room) = long.frame(length) else {
            debug_assert!(false, "`frame` has seen that there is room");
            return false;
        };
        room.copy_from_slice(written);
        long.commit(length, left);
        true
    }

    /// Puts a descriptor of what is written where the cursor is, which goes on.
    #[inline]
    fn put_piece(&mut self, length: usize, options: XdpDescOptions) {
        let frame = self.tx_base + self.cursor;
        let memory = &self.queues[self.transmit_queue].memory;
        memory.busy()[frame as usize].begin();
        self.transmit.put(XdpDesc { addr: memory.tx_address(frame), len: length as u32, options });
        self.cursor += 1;
        self.unreaped += 1;
    }

    /// Puts what is written where the cursor is into the ring, to go as it is but for what is `left` to do.
    #[inline]
    pub(super) fn put(&mut self, length: usize, left: Unfinished) {
        debug_assert!(self.has_room_at_cursor(), "a commit without a frame");
        let length = length.min(self.layout.frame_len_max());
        let frame = self.tx_base + self.cursor;
        if self.has_long_frames() && self.follows(frame, length, left) {
            return;
        }
        let mut options = XdpDescOptions::empty();
        if left.checksum_from > 0 {
            options = self.leave_checksum(frame, length, left);
        }
        if length > FRAME_LEN {
            self.put_pieces(length);
        } else {
            self.put_piece(length, options);
        }
        self.cursor = self.place(self.cursor);
        self.counters.sent_frames += 1;
        self.counters.sent_bytes += length as u64;
        if self.transmit.unpublished() >= PUBLISH_BATCH {
            self.transmit.publish();
        }
    }

    /// Tells the kernel where the checksum of a frame is. Or completes it: the link may have been renewed since the engine was told, over a
    /// device that has no such thing.
    fn leave_checksum(&mut self, frame: u32, length: usize, left: Unfinished) -> XdpDescOptions {
        let memory = &mut self.queues[self.transmit_queue].memory;
        if self.layout.tx_metadata {
            // SAFETY: as in `frame`, which gave the place to the caller; it was not committed.
            Metadata::of(left).write(unsafe { memory.transmit_metadata(frame) });
            self.counters.sent_unsummed += 1;
            HAS_METADATA
        } else {
            // SAFETY: as above.
            let written = unsafe { memory.transmit_frame(frame) };
            finish::sum(&mut written[..length], usize::from(left.checksum_from));
            XdpDescOptions::empty()
        }
    }

    /// A frame that is longer than a place takes several, which are one after the other, and a descriptor for each. They become
    /// visible together.
    fn put_pieces(&mut self, length: usize) {
        let mut left = length;
        while left > FRAME_LEN {
            self.put_piece(FRAME_LEN, XdpDescOptions::XDP_PKT_CONTD);
            left -= FRAME_LEN;
        }
        self.put_piece(left, XdpDescOptions::empty());
    }
}

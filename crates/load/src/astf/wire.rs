//! A wire in memory between a client's and a server's stack of one thread: what one end has sent becomes what the other receives
//! when the thread passes it on. Frames lie one behind the other, so that small ones touch little memory.

use overfly_wire::FrameSink;

use crate::link::{Each, Wire};

/// Bytes of frames in one direction at a time: so that all stays in the processor's second-level cache.
const BATCH_LEN: usize = 128 << 10;
/// A wire with such an end below it.
pub(crate) trait HasEnd: Wire {
    fn end(&mut self) -> &mut End;
    fn has_taken_all(&self) -> bool;
    /// Says which flows the next frames are for, if that can be known.
    fn prepare(&self, prepare: impl FnOnce(&mut dyn Iterator<Item = &[u8]>));
}

impl HasEnd for End {
    fn end(&mut self) -> &mut End {
        self
    }

    fn has_taken_all(&self) -> bool {
        End::has_taken_all(self)
    }

    fn prepare(&self, prepare: impl FnOnce(&mut dyn Iterator<Item = &[u8]>)) {
        prepare(&mut self.upcoming());
    }
}

impl HasEnd for super::tunnel::Tunnelled<End> {
    fn end(&mut self) -> &mut End {
        &mut self.wire
    }

    fn has_taken_all(&self) -> bool {
        self.wire.has_taken_all()
    }

    /// What is in tunnels is not looked into twice.
    fn prepare(&self, _: impl FnOnce(&mut dyn Iterator<Item = &[u8]>)) {}
}

/// Where a frame begins.
const ALIGN: usize = 16;

/// Frames on their way.
#[derive(Debug)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    /// Where each begins, and its length.
    frames: Vec<(u32, u32)>,
    used: usize,
    frame_most: usize,
}

impl Batch {
    fn new(frame_most: usize) -> Batch {
        let room = BATCH_LEN.max(4 * frame_most);
        Batch { bytes: vec![0; room], frames: Vec::with_capacity(2048), used: 0, frame_most }
    }

    fn clear(&mut self) {
        self.frames.clear();
        self.used = 0;
    }

    /// The frames, in their order.
    #[cfg(test)]
    pub(crate) fn frames(&self) -> impl Iterator<Item = &[u8]> {
        self.frames.iter().map(|(at, length)| &self.bytes[*at as usize..(at + length) as usize])
    }

    /// A place for a frame, if there is room for one of any length.
    #[inline]
    fn place(&mut self) -> Option<&mut [u8]> {
        self.bytes.get_mut(self.used..self.used + self.frame_most)
    }

    #[inline]
    fn commit(&mut self, length: usize) {
        self.frames.push((self.used as u32, length as u32));
        self.used = (self.used + length).next_multiple_of(ALIGN);
    }
}

/// One end.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) out: Batch,
    pub(crate) inbox: Batch,
    taken: usize,
    sent_frames: u64,
    sent_bytes: u64,
}

impl End {
    /// For packets of `mtu` bytes.
    pub(crate) fn new(mtu: u16) -> End {
        let frame_most = usize::from(mtu) + overfly_wire::ethernet::HEADER_LEN;
        End {
            out: Batch::new(frame_most),
            inbox: Batch::new(frame_most),
            taken: 0,
            sent_frames: 0,
            sent_bytes: 0,
        }
    }

    /// The frames that are received next.
    pub(crate) fn upcoming(&self) -> impl Iterator<Item = &[u8]> {
        let frames = &self.inbox.frames[self.taken..];
        frames.iter().map(|(at, length)| &self.inbox.bytes[*at as usize..(at + length) as usize])
    }

    /// The frames that were sent and not passed on yet.
    #[cfg(test)]
    pub(crate) fn sent(&self) -> impl Iterator<Item = &[u8]> {
        self.out.frames()
    }

    /// Whether the other end may pass on what it has sent.
    pub(crate) fn has_taken_all(&self) -> bool {
        self.taken == self.inbox.frames.len()
    }

    /// What `from` has sent is for this end, which has taken all that came before.
    pub(crate) fn take_from(&mut self, from: &mut End) {
        self.inbox.clear();
        self.taken = 0;
        std::mem::swap(&mut self.inbox, &mut from.out);
    }
}

impl FrameSink for End {
    #[inline]
    fn frame(&mut self) -> Option<&mut [u8]> {
        self.out.place()
    }

    #[inline]
    fn commit(&mut self, length: usize) {
        self.sent_frames += 1;
        self.sent_bytes += length as u64;
        self.out.commit(length);
    }
}

impl Wire for End {
    #[inline]
    fn receive(&mut self, budget: usize, mut each: impl FnMut(&[u8])) -> usize {
        let last = self.inbox.frames.len().min(self.taken.saturating_add(budget));
        for (at, length) in &self.inbox.frames[self.taken..last] {
            each(&self.inbox.bytes[*at as usize..(at + length) as usize]);
        }
        let count = last - self.taken;
        self.taken = last;
        count
    }

    #[inline]
    fn flush(&mut self) {}

    fn each_counter(&self, each: Each<'_>) {
        each("link", "sent_frames", self.sent_frames);
        each("link", "sent_bytes", self.sent_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_end_sends_the_other_receives_in_order() {
        let (mut one, mut two) = (End::new(1500), End::new(1500));
        let mut sent = 0_u32;
        let mut received = 0_u32;
        for round in 0..50 {
            while let Some(place) = one.frame() {
                let length = 60 + (sent as usize * 37) % 1400;
                place[..length].fill(sent as u8);
                one.commit(length);
                sent += 1;
            }
            assert!(sent > received + 80, "a full batch in round {round}");
            assert!(two.has_taken_all());
            two.take_from(&mut one);
            while two.receive(7, |frame| {
                assert_eq!(frame.len(), 60 + (received as usize * 37) % 1400);
                assert!(frame.iter().all(|byte| *byte == received as u8));
                received += 1;
            }) > 0
            {}
            assert_eq!(sent, received);
        }
        let mut frames = None;
        one.each_counter(&mut |_, name, count| frames = frames.or((name == "sent_frames").then_some(count)));
        assert_eq!(frames, Some(u64::from(sent)));
    }
}

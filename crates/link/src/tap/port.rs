//! One process's part of a program that has a tap device's queue.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use overfly_wire::{FrameSink, Unfinished};

use super::{Counters, Outbox};
use crate::memif::{MemifLink, Pulse, Registered, Registry};
use crate::{Each, Error, Link, each_of};

/// Where the Ethernet type stands.
const ETHERTYPE_AT: usize = 12;
/// Before the number in what [`missed`] says: no hardware addresses, and a type that IEEE keeps reserved.
const MISSED: [u8; 14] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// What the broker says in place of a frame: so many were dropped since it last said so. No device's frame looks like that.
#[must_use]
pub fn missed(frames: u64) -> [u8; MISSED.len() + 8] {
    let mut said = [0; MISSED.len() + 8];
    let (head, number) = said.split_at_mut(MISSED.len());
    head.copy_from_slice(&MISSED);
    number.copy_from_slice(&frames.to_ne_bytes());
    said
}

/// The number in what [`missed`] says; `None` if it is a frame.
#[inline]
fn parse_missed(frame: &[u8]) -> Option<u64> {
    if frame.get(ETHERTYPE_AT) != Some(&MISSED[ETHERTYPE_AT]) {
        return None;
    }
    frame.strip_prefix(&MISSED)?.first_chunk().copied().map(u64::from_ne_bytes)
}

/// A stack's end of a device that it shares with the program's other processes. Frames are written to the device at once, each
/// by one system call; those that arrive come from the broker, which reads the device, over shared memory: what was said of
/// [`MemifLink`] about receiving and sleeping is true here.
#[derive(Debug)]
pub struct TapPort {
    queue: Registered,
    inlet: MemifLink,
    outbox: Outbox,
    pulse: Pulse,
    /// Looks are not the program's.
    unseen: bool,
}

impl TapPort {
    /// Takes what the broker gave.
    ///
    /// # Errors
    /// As [`MemifLink::take`].
    pub fn join(queue: OwnedFd, channel: impl AsFd, registry: Registry) -> Result<TapPort, Error> {
        let inlet = MemifLink::take(channel, registry)?;
        let pulse = Pulse::default();
        Ok(TapPort {
            queue: Registered::new(queue, registry),
            inlet,
            outbox: Outbox::new(),
            pulse,
            unseen: false,
        })
    }

    /// What it has done.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let inlet = self.inlet.counters();
        let receive_failed = inlet.receive_invalid + inlet.receive_too_long + inlet.receive_unfinished;
        Counters { receive_failed, ..self.outbox.counters }
    }
}

impl Link for TapPort {
    /// As [`MemifLink::receive`].
    #[inline]
    fn receive(&mut self, budget: usize, mut each: impl FnMut(&[u8])) -> usize {
        // Before the ring is looked at: what comes later waits for the next time.
        self.pulse.looks += u64::from(!self.unseen);
        self.pulse.away = self.unseen;
        self.inlet.say_pulse(self.pulse);
        let counters = &mut self.outbox.counters;
        self.inlet.receive(budget, |frame| match parse_missed(frame) {
            None => {
                counters.received_frames += 1;
                counters.received_bytes += frame.len() as u64;
                each(frame);
            }
            Some(frames) => counters.receive_missed += frames,
        })
    }

    fn arm(&mut self) -> bool {
        self.inlet.arm()
    }

    fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.inlet.descriptors()
    }

    fn look_unseen(&mut self, unseen: bool) {
        self.unseen = unseen;
    }

    #[inline]
    fn wait_to_accept(&mut self) {
        self.pulse.waits = self.pulse.looks;
        self.inlet.say_pulse(self.pulse);
    }

    /// A frame is written when it is committed.
    #[inline]
    fn flush(&mut self) {}

    fn each_counter(&self, each: Each<'_>) {
        each_of("link", self.counters().named(), each);
    }
}

impl FrameSink for TapPort {
    #[inline]
    fn frame(&mut self) -> Option<&mut [u8]> {
        Some(self.outbox.frame())
    }

    #[inline]
    fn commit(&mut self, length: usize) {
        self.commit_unfinished(length, Unfinished::default());
    }

    #[inline]
    fn commit_unfinished(&mut self, length: usize, left: Unfinished) {
        self.outbox.send(&self.queue, length, left);
    }
}

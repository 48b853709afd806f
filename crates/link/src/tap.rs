//! A tap device: this host's kernel is the peer at the other end of an Ethernet. It works in a network namespace of one's own
//! without privilege (`unshare -Urn`).
//!
//! Frames carry `struct virtio_net_hdr` (linux/virtio_net.h), so that TCP segments of 64 KB and unfinished checksums go both
//! ways. Each [`TapLink`] is one queue of the device; the kernel sends a flow's frames to the queue that its frames came from
//! (tun_flow_update() in drivers/net/tun.c). Reading and writing are one system call a frame: the device knows no other.
//!
//! That choice of queue is forgotten when a flow has been silent for three seconds, and changes with the number of queues. So
//! the processes of a program share one queue ([`TapPort`]): each writes to it, and their broker reads, and knows whose each
//! frame is.

mod device;
mod port;

pub use port::{TapPort, missed};

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use overfly_wire::{FrameSink, MacAddr, Unfinished};
use rustix::io::{Errno, read, write};
use zerocopy::IntoBytes;

use crate::counters::counters;
use crate::virtio::{HEADER_LEN, Header};
use crate::{Each, Error, Link, each_of};

/// Bytes of the longest frame: a TCP payload of 65,435 bytes and its headers (`segment_offload` of `overfly_engine::Config`).
pub const FRAME_LEN_MAX: usize = 65_435 + 114;
/// Bytes of an IP packet at most, with its Ethernet header: what the kernel sends.
const RECEIVED_LEN_MAX: usize = 65_535 + 14;

counters! {
    /// What a [`TapLink`] has done, and every reason for which it did not.
    Counters {
        /// Frames handed to the caller of `receive`.
        received_frames,
        /// Their bytes.
        received_bytes,
        /// Reads that failed, other than because there was nothing: the device is down or gone. At a [`TapPort`], frames that the
        /// broker handed over and that make no sense.
        receive_failed,
        /// Frames for a [`TapPort`] that were dropped because it had not taken those before.
        receive_missed,
        /// Frames written.
        sent_frames,
        /// Their bytes.
        sent_bytes,
        /// Frames dropped because the kernel had no room for them.
        transmit_dropped,
        /// Frames dropped because the device is down or gone.
        transmit_interface_down,
        /// Frames dropped because the kernel refused them.
        transmit_failed,
    }
}

/// Where a frame is written, and goes to the kernel from.
#[derive(Debug)]
struct Outbox {
    /// `struct virtio_net_hdr` and a frame.
    bytes: Box<[u8]>,
    counters: Counters,
}

/// One queue's data path: [`Link::receive`], then write frames ([`FrameSink`]). It is safe to sleep on
/// [`Link::descriptors`] after a `receive` that returned 0.
#[derive(Debug)]
pub struct TapLink {
    queue: OwnedFd,
    mtu: u16,
    mac: MacAddr,
    inbox: Box<[u8]>,
    outbox: Outbox,
}

impl TapLink {
    /// Opens one more queue of a device that exists and is up.
    ///
    /// # Errors
    /// [`Error::NoTap`] if there is no such device or it is down, [`Error::TapQueues`] if it has no more queues,
    /// [`Error::NoPrivilege`] if this user may not, or what the kernel said.
    pub fn open(name: &str) -> Result<TapLink, Error> {
        let (mtu, mac) = device::describe(name)?;
        let queue = device::open_queue(name)?;
        Ok(TapLink {
            queue,
            mtu,
            mac,
            inbox: vec![0; HEADER_LEN + RECEIVED_LEN_MAX].into_boxed_slice(),
            outbox: Outbox::new(),
        })
    }

    /// The queue itself, for [`TapPort::join`].
    #[must_use]
    pub fn queue(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }

    /// The device's MTU, in bytes of an IP packet.
    #[must_use]
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// The kernel's hardware address. With several queues the answer to an ARP request may come to another one.
    #[must_use]
    pub fn peer_mac(&self) -> MacAddr {
        self.mac
    }

    /// What this link has done.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.outbox.counters
    }
}

impl Link for TapLink {
    /// TCP checksums may hold the sum of the pseudo-header only, and segments may be longer than the MTU.
    fn receive(&mut self, budget: usize, mut each: impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        while count < budget {
            let length = match read(&self.queue, &mut self.inbox[..]) {
                Ok(length) => length,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(_) => {
                    self.outbox.counters.receive_failed += 1;
                    break;
                }
            };
            let frame = self.inbox[..length].get(HEADER_LEN..).unwrap_or_default();
            count += 1;
            self.outbox.counters.received_frames += 1;
            self.outbox.counters.received_bytes += frame.len() as u64;
            each(frame);
        }
        count
    }

    fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        core::iter::once(self.queue.as_fd())
    }

    /// A frame is written when it is committed.
    #[inline]
    fn flush(&mut self) {}

    fn each_counter(&self, each: Each<'_>) {
        each_of("link", self.counters().named(), each);
    }
}

impl FrameSink for TapLink {
    fn frame(&mut self) -> Option<&mut [u8]> {
        Some(self.outbox.frame())
    }

    fn commit(&mut self, length: usize) {
        self.commit_unfinished(length, Unfinished::default());
    }

    fn commit_unfinished(&mut self, length: usize, left: Unfinished) {
        self.outbox.send(&self.queue, length, left);
    }
}

impl Outbox {
    fn new() -> Outbox {
        let bytes = vec![0; HEADER_LEN + FRAME_LEN_MAX].into_boxed_slice();
        Outbox { bytes, counters: Counters::default() }
    }

    /// Room for the next frame.
    fn frame(&mut self) -> &mut [u8] {
        &mut self.bytes[HEADER_LEN..]
    }

    /// Writes the frame, of so many bytes.
    fn send(&mut self, queue: impl AsFd, length: usize, left: Unfinished) {
        let (header, frame) = self.bytes.split_at_mut(HEADER_LEN);
        let length = length.min(frame.len());
        header.copy_from_slice(Header::new(&frame[..length], left).as_bytes());
        let result = loop {
            match write(&queue, &self.bytes[..HEADER_LEN + length]) {
                Err(Errno::INTR) => {}
                result => break result,
            }
        };
        match result {
            Ok(_) => {
                self.counters.sent_frames += 1;
                self.counters.sent_bytes += length as u64;
            }
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => self.counters.transmit_dropped += 1,
            Err(Errno::IO | Errno::BADFD) => self.counters.transmit_interface_down += 1,
            Err(_) => self.counters.transmit_failed += 1,
        }
    }
}

/// Writes a finished frame to a queue of a device. It is lost if the kernel has no room for it.
pub fn send(queue: BorrowedFd<'_>, frame: &[u8]) {
    let _ = write(queue, &[Header::default().as_bytes(), frame].concat());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_not_made() {
        let error = TapLink::open("overfly-no-tap").unwrap_err();
        assert!(matches!(&error, Error::NoTap { .. }), "{error}");
        assert!(error.to_string().contains("ip tuntap add dev overfly-no-tap mode tap multi_queue"));
    }
}

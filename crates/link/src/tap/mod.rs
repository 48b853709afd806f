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
use zerocopy::byteorder::native_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Error;

/// Bytes of the longest frame: a TCP payload of 65,435 bytes and its headers (`segment_offload` of `overfly_engine::Config`).
pub const FRAME_LEN_MAX: usize = 65_435 + 114;
/// Bytes of an IP packet at most, with its Ethernet header: what the kernel sends.
const RECEIVED_LEN_MAX: usize = 65_535 + 14;

/// `struct virtio_net_hdr`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    flags: u8,
    segmentation: u8,
    headers_len: U16,
    segment_len: U16,
    checksum_from: U16,
    checksum_offset: U16,
}

const HEADER_LEN: usize = size_of::<Header>();
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const NEEDS_CHECKSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_TCPV4`, `_TCPV6`, `_ECN`.
const SEGMENT_TCP_V4: u8 = 1;
const SEGMENT_TCP_V6: u8 = 4;
const SEGMENT_ECN: u8 = 0x80;
/// Where the checksum is in a TCP header, and the flags; the flag CWR.
const TCP_CHECKSUM: u16 = 16;
const TCP_FLAGS: usize = 13;
const CWR: u8 = 0x80;

impl Header {
    fn new(frame: &[u8], left: Unfinished) -> Header {
        if left.checksum_from == 0 {
            return Header::default();
        }
        let mut header = Header {
            flags: NEEDS_CHECKSUM,
            headers_len: left.headers_len.into(),
            checksum_from: left.checksum_from.into(),
            checksum_offset: TCP_CHECKSUM.into(),
            ..Header::default()
        };
        if left.segment_len != 0 {
            let is_v4 = frame.get(14).is_some_and(|first| first >> 4 == 4);
            let flags = frame.get(usize::from(left.checksum_from) + TCP_FLAGS).copied().unwrap_or_default();
            header.segmentation = if is_v4 { SEGMENT_TCP_V4 } else { SEGMENT_TCP_V6 };
            header.segmentation |= if flags & CWR != 0 { SEGMENT_ECN } else { 0 };
            header.segment_len = left.segment_len.into();
        }
        header
    }
}

/// What a [`TapLink`] has done, and every reason for which it did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames handed to the caller of `receive`.
    pub received_frames: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Reads that failed, other than because there was nothing: the device is down or gone. At a [`TapPort`], frames that the
    /// broker handed over and that make no sense.
    pub receive_failed: u64,
    /// Frames for a [`TapPort`] that were dropped because it had not taken those before.
    pub receive_missed: u64,
    /// Frames written.
    pub sent_frames: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames dropped because the kernel had no room for them.
    pub transmit_dropped: u64,
    /// Frames dropped because the device is down or gone.
    pub transmit_interface_down: u64,
    /// Frames dropped because the kernel refused them.
    pub transmit_failed: u64,
}

impl Counters {
    /// Each counter with its name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("received_frames", self.received_frames),
            ("received_bytes", self.received_bytes),
            ("receive_failed", self.receive_failed),
            ("receive_missed", self.receive_missed),
            ("sent_frames", self.sent_frames),
            ("sent_bytes", self.sent_bytes),
            ("transmit_dropped", self.transmit_dropped),
            ("transmit_interface_down", self.transmit_interface_down),
            ("transmit_failed", self.transmit_failed),
        ]
        .into_iter()
    }
}

/// Where a frame is written, and goes to the kernel from.
#[derive(Debug)]
struct Outbox {
    /// `struct virtio_net_hdr` and a frame.
    bytes: Box<[u8]>,
    counters: Counters,
}

/// One queue's data path: [`TapLink::receive`], then write frames ([`FrameSink`]). It is safe to sleep on
/// [`TapLink::descriptors`] after a `receive` that returned 0.
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

    /// Hands up to `budget` received frames (Ethernet header first) to `each`. Returns how many. TCP checksums may hold the
    /// sum of the pseudo-header only, and segments may be longer than the MTU.
    pub fn receive(&mut self, budget: usize, mut each: impl FnMut(&[u8])) -> usize {
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

    /// The queue itself, for [`TapPort::join`].
    #[must_use]
    pub fn queue(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }

    /// What to sleep on: readable when a frame has arrived.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        core::iter::once(self.queue.as_fd())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_that_of_virtio_net() {
        let mut frame = [0_u8; 100];
        frame[14] = 0x45;
        frame[34 + TCP_FLAGS] = CWR;
        let left = Unfinished { checksum_from: 34, segment_len: 1448, headers_len: 66 };
        let header = Header::new(&frame, left);
        let words = [[66, 1448], [34, 16]].concat().into_iter().flat_map(u16::to_ne_bytes);
        assert_eq!(header.as_bytes(), [1, 0x81].into_iter().chain(words).collect::<Vec<u8>>());
        frame[14] = 0x60;
        let header = Header::new(&frame, Unfinished { segment_len: 0, ..left });
        assert_eq!(header.as_bytes()[..2], [1, 0]);
        assert_eq!(Header::new(&frame, Unfinished::default()).as_bytes(), [0; 10]);
    }

    #[test]
    fn a_device_that_is_not_there_is_not_made() {
        let error = TapLink::open("overfly-no-tap").unwrap_err();
        assert!(matches!(&error, Error::NoTap { .. }), "{error}");
        assert!(error.to_string().contains("ip tuntap add dev overfly-no-tap mode tap multi_queue"));
    }
}

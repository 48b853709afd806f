//! Frames of several segments, on their way to the kernel.

use core::mem::zeroed;
use core::ptr::null_mut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use overfly_wire::{FrameSink, Promised, Promises, Unfinished};
use rustix::io::{DupFlags, Errno, dup3};
use rustix::thread::sched_yield;
use zerocopy::IntoBytes;

use crate::Error;
use crate::counters::counters;
use crate::finish;
use crate::virtio::{HEADER_LEN, Header};

/// TCP payload bytes of one frame at most (`segment_offload` of `overfly_engine::Config`).
pub const SEGMENT_OFFLOAD: u32 = 65_435;
/// Bytes of frames that wait together: a few of the longest ones, or 25 of 10,000 bytes.
const ARENA_LEN: usize = 256 << 10;
/// Frames of one system call.
const BATCH: usize = 32;
/// Bits of the set of flows that have frames here.
const FLOW_BITS: u32 = 512;
const IPV6: u8 = 6;
const PROTOCOL_TCP: u8 = 6;

counters! {
    /// What was sent as frames that the kernel cuts, and every reason for which it was not.
    Counters {
        /// Frames of several segments that the kernel took.
        frames as "long_frames",
        /// Their bytes.
        bytes as "long_frame_bytes",
        /// Of those frames, how many had their payload read where the flow keeps it.
        in_place as "long_frame_in_place",
        /// Frames of several segments that were cut here, because the interface that came back takes none.
        cut as "long_frame_cut",
        /// Frames of one segment that went the same way, to stay behind those of their flow.
        followers as "long_frame_followers",
        /// System calls.
        calls as "long_frame_calls",
        /// The kernel had no room (EAGAIN): what is left goes later.
        again as "long_frame_again",
        /// The device dropped a frame (ENOBUFS).
        dropped as "long_frame_dropped",
        /// Dropped because the interface is down or gone.
        interface_down as "long_frame_interface_down",
        /// Dropped because the kernel refused the frame.
        failed as "long_frame_failed",
    }
}

/// A frame in the arena, `struct virtio_net_hdr` first.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    start: usize,
    length: usize,
    left: Unfinished,
    /// The last bytes of it are not written.
    payload: Option<Promised>,
}

impl Waiting {
    const fn is_long(&self) -> bool {
        self.left.segment_len > 0
    }
}

/// Where frames of several segments wait for their system call.
#[derive(Debug)]
pub(crate) struct LongFrames {
    socket: OwnedFd,
    arena: Box<[u8]>,
    /// Bytes of the arena that are in use.
    used: usize,
    waiting: Vec<Waiting>,
    /// Of those, how many have gone.
    gone: usize,
    /// Of the frame after those, how many segments have been cut.
    cut: usize,
    /// The socket leads nowhere, but its number stays taken.
    has_no_device: bool,
    /// Flows that have frames here, by a hash of their ports: what else they send must not overtake those. A flow that is taken
    /// for another one goes this way without need.
    flows: [u64; (FLOW_BITS / 64) as usize],
    /// The kernel took nothing just now.
    is_stuck: bool,
    /// Some of what waits is promised.
    is_promised: bool,
    pub(crate) counters: Counters,
}

/// For frames that are whole.
struct NoPromises;

impl Promises for NoPromises {
    fn pieces(&self, _: Promised) -> (&[u8], &[u8]) {
        (&[], &[])
    }
}

impl LongFrames {
    pub(crate) fn new(socket: OwnedFd) -> LongFrames {
        LongFrames {
            socket,
            arena: vec![0; ARENA_LEN].into_boxed_slice(),
            used: 0,
            waiting: Vec::with_capacity(ARENA_LEN / 1024),
            gone: 0,
            cut: 0,
            has_no_device: false,
            flows: [0; (FLOW_BITS / 64) as usize],
            is_stuck: false,
            is_promised: false,
            counters: Counters::default(),
        }
    }

    /// The packet socket.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Goes on in place of another one, whose interface is gone, with its descriptor's number. What waited there is lost.
    pub(crate) fn takes_the_place_of(&mut self, old: &mut LongFrames) -> Result<(), Error> {
        dup3(&self.socket, &mut old.socket, DupFlags::CLOEXEC)
            .map_err(|errno| Error::system("dup3 of a renewed socket", errno))?;
        core::mem::swap(&mut self.socket, &mut old.socket);
        self.counters = old.counters;
        Ok(())
    }

    /// Goes on for an interface that takes no such frames: what comes is cut. What waited is lost.
    pub(crate) fn without_a_device(mut self) -> LongFrames {
        self.clear();
        self.has_no_device = true;
        self
    }

    /// Frames are to be [cut](LongFrames::cut), not sent.
    #[inline]
    pub(crate) fn has_no_device(&self) -> bool {
        self.has_no_device
    }

    /// Nothing waits here.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether there is room for a frame of so many bytes.
    #[inline]
    pub(crate) fn has_room(&self, length: usize) -> bool {
        self.waiting.len() < self.waiting.capacity() && self.used + HEADER_LEN + length <= self.arena.len()
    }

    /// Room for the next frame, of so many bytes; `None` until others have gone.
    pub(crate) fn frame(&mut self, length: usize) -> Option<&mut [u8]> {
        if !self.has_room(length) {
            return None;
        }
        self.arena.get_mut(self.used + HEADER_LEN..self.used + HEADER_LEN + length)
    }

    /// The frame that [`LongFrames::frame`] gave room for is written.
    pub(crate) fn commit(&mut self, length: usize, left: Unfinished) {
        self.push(length, left, None);
    }

    /// The same of one whose payload is promised: it must be [redeemed](LongFrames::redeem) before anything happens to its flow. There is
    /// room for it, should the kernel not take the frame then.
    pub(crate) fn commit_promised(&mut self, left: Unfinished, payload: Promised) {
        self.push(usize::from(left.headers_len) + payload.length, left, Some(payload));
        self.is_promised = true;
    }

    fn push(&mut self, length: usize, left: Unfinished, payload: Option<Promised>) {
        let start = self.used;
        let end = (start + HEADER_LEN + length).min(self.arena.len());
        let (header, frame) = self.arena[start..end].split_at_mut(HEADER_LEN);
        header.copy_from_slice(Header::new(frame, left).as_bytes());
        if let Some(bit) = flow_bit(frame) {
            self.flows[bit as usize / 64] |= 1 << (bit % 64);
        }
        self.waiting.push(Waiting { start, length: end - start, left, payload });
        self.used = end;
    }

    /// Some of what waits has its payload elsewhere.
    #[inline]
    pub(crate) fn is_promised(&self) -> bool {
        self.is_promised
    }

    /// Gives the kernel what waits, if it `may` take it now, with payload that is read where it is. What it does not take is whole
    /// afterwards, and waits.
    pub(crate) fn redeem(&mut self, promises: &impl Promises, may: bool) {
        if may {
            self.send_from(promises);
        }
        self.is_promised = false;
        for frame in &mut self.waiting[self.gone..] {
            if let Some(payload) = frame.payload.take() {
                let (first, second) = promises.pieces(payload);
                let place = &mut self.arena[frame.start..frame.start + frame.length];
                let place = &mut place[HEADER_LEN + usize::from(frame.left.headers_len)..];
                place[..first.len()].copy_from_slice(first);
                place[first.len()..][..second.len()].copy_from_slice(second);
            }
        }
    }

    /// Whether the flow of this frame has others here.
    pub(crate) fn has_flow_of(&self, frame: &[u8]) -> bool {
        flow_bit(frame).is_some_and(|bit| self.flows[bit as usize / 64] & 1 << (bit % 64) != 0)
    }

    /// A kernel that took nothing just now is tried again.
    pub(crate) fn retry(&mut self) {
        self.is_stuck = false;
    }

    /// Gives the kernel what waits. What it cannot take now stays, and so does all if some of it is [promised](LongFrames::is_promised).
    pub(crate) fn send(&mut self) {
        if !self.is_promised {
            self.send_from(&NoPromises);
        }
    }

    fn send_from(&mut self, promises: &impl Promises) {
        loop {
            let frames = &self.waiting[self.gone..];
            let frames = &frames[..frames.len().min(BATCH)];
            if frames.is_empty() {
                return self.clear();
            }
            if self.is_stuck || self.has_no_device {
                return;
            }
            self.counters.calls += 1;
            match send_together(&self.socket, &self.arena, frames, promises) {
                Ok(taken) => {
                    for frame in &frames[..taken.min(frames.len())] {
                        self.counters.frames += u64::from(frame.is_long());
                        self.counters.followers += u64::from(!frame.is_long());
                        self.counters.in_place += u64::from(frame.payload.is_some());
                        self.counters.bytes += (frame.length - HEADER_LEN) as u64;
                    }
                    self.gone += taken;
                }
                Err(errno) => self.failed(errno),
            }
        }
    }

    /// Gives `sink` what waits, in segments. What it has no room for stays.
    pub(crate) fn cut(&mut self, sink: &mut impl FrameSink) {
        while let Some(frame) = self.waiting.get(self.gone) {
            let bytes = &self.arena[frame.start + HEADER_LEN..frame.start + frame.length];
            if !finish::send_on(bytes, frame.left, &mut self.cut, sink) {
                return;
            }
            self.counters.cut += u64::from(frame.is_long());
            self.counters.followers += u64::from(!frame.is_long());
            self.counters.bytes += bytes.len() as u64;
            (self.gone, self.cut) = (self.gone + 1, 0);
        }
        self.clear();
    }

    #[cold]
    fn failed(&mut self, errno: Errno) {
        match errno {
            Errno::INTR => {}
            Errno::AGAIN => {
                self.counters.again += 1;
                self.is_stuck = true;
            }
            // The device's queue is full. Whoever empties it may need this processor.
            Errno::NOBUFS | Errno::NOMEM => {
                self.counters.dropped += 1;
                self.gone += 1;
                self.is_stuck = true;
                sched_yield();
            }
            Errno::NETDOWN | Errno::NXIO | Errno::NODEV => {
                self.counters.interface_down += (self.waiting.len() - self.gone) as u64;
                self.clear();
            }
            _ => {
                self.counters.failed += 1;
                self.gone += 1;
            }
        }
    }

    fn clear(&mut self) {
        self.waiting.clear();
        (self.used, self.gone, self.cut, self.is_promised) = (0, 0, 0, false);
        self.flows.fill(0);
    }
}

/// Where a TCP frame's flow is in the set: by its ports, since one end's address is ours.
#[inline]
fn flow_bit(frame: &[u8]) -> Option<u32> {
    let (protocol, ports) = if frame.get(14)? >> 4 == IPV6 { (20, 54) } else { (23, 34) };
    if *frame.get(protocol)? != PROTOCOL_TCP {
        return None;
    }
    let ports = u32::from_be_bytes(*frame.get(ports..)?.first_chunk()?);
    // Fibonacci hashing: the highest bits of the product.
    Some(ports.wrapping_mul(0x9e37_79b9) >> (32 - FLOW_BITS.ilog2()))
}

/// Pieces of a frame: what is in the arena, and the two of a promised payload.
const PIECES: usize = 3;

/// `sendmmsg` of frames. Returns how many the kernel took, at least one.
fn send_together(
    socket: &OwnedFd,
    arena: &[u8],
    frames: &[Waiting],
    promises: &impl Promises,
) -> Result<usize, Errno> {
    let mut vectors = [[libc::iovec { iov_base: null_mut(), iov_len: 0 }; PIECES]; BATCH];
    // SAFETY: zeros are a valid `mmsghdr`: no address, no control data, nothing to send.
    let mut messages: [libc::mmsghdr; BATCH] = unsafe { zeroed() };
    for ((frame, vectors), message) in frames.iter().zip(&mut vectors).zip(&mut messages) {
        let bytes = &arena[frame.start..frame.start + frame.length];
        let (written, (first, second)) = match frame.payload {
            Some(payload) => {
                (&bytes[..HEADER_LEN + usize::from(frame.left.headers_len)], promises.pieces(payload))
            }
            None => (bytes, (&[][..], &[][..])),
        };
        for (vector, piece) in vectors.iter_mut().zip([written, first, second]) {
            *vector = libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() };
        }
        message.msg_hdr.msg_iov = vectors.as_mut_ptr();
        message.msg_hdr.msg_iovlen = if frame.payload.is_some() { PIECES as _ } else { 1 };
    }
    // SAFETY: libc gives each thread a valid place.
    let before = unsafe { *libc::__errno_location() };
    // SAFETY: each message points at its vectors, and each vector at bytes of the arena or of who promised, which the kernel only reads;
    // all are borrowed until this returns, and no more are named than were filled in. Not libc's function: inside the preloaded library that name is our own hook.
    let taken = unsafe {
        libc::syscall(
            libc::SYS_sendmmsg,
            socket.as_fd().as_raw_fd(),
            messages.as_mut_ptr(),
            frames.len().min(BATCH) as libc::c_uint,
            libc::MSG_DONTWAIT,
        )
    };
    usize::try_from(taken).map_err(|_| {
        let errno = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL);
        // Inside the preloaded library the program's own is not to change.
        // SAFETY: libc gives each thread a valid place.
        unsafe { *libc::__errno_location() = before };
        errno
    })
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair, sockopt};

    use super::*;

    const HEADERS: usize = 54;

    /// Payloads, each cut in two.
    struct Payloads(Vec<(Vec<u8>, usize)>);

    impl Promises for Payloads {
        fn pieces(&self, promised: Promised) -> (&[u8], &[u8]) {
            let (payload, cut) = &self.0[promised.flow];
            assert_eq!((promised.length, promised.offset), (payload.len(), 7));
            payload.split_at(*cut)
        }
    }

    /// Frames that are sent in place of a packet socket by a pair of datagram sockets, whose other end sees them with their header; `buffer` bytes wait at
    /// most.
    fn pair(buffer: usize) -> (LongFrames, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (here, there) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None).unwrap();
        sockopt::set_socket_send_buffer_size(&here, buffer).unwrap();
        (LongFrames::new(here), there)
    }

    /// One frame; its payload is promised, or written.
    fn commit(
        frames: &mut LongFrames,
        number: u8,
        length: usize,
        promised: bool,
        payloads: &mut Payloads,
    ) -> Vec<u8> {
        let left = Unfinished { checksum_from: 34, segment_len: 1400, headers_len: HEADERS as u16 };
        let payload: Vec<u8> = (0..length).map(|at| (at % 251) as u8 ^ number).collect();
        let frame = frames.frame(HEADERS + length).expect("room");
        frame[..HEADERS].fill(number);
        let whole = [&vec![number; HEADERS][..], &payload].concat();
        if promised {
            frame[HEADERS..].fill(0xee);
            let promise = Promised { flow: payloads.0.len(), offset: 7, length };
            // In one piece, in two, or all in the second.
            payloads.0.push((payload, [length, length / 3, 0][usize::from(number % 3)]));
            frames.commit_promised(left, promise);
        } else {
            frame[HEADERS..].copy_from_slice(&payload);
            frames.commit(HEADERS + length, left);
        }
        whole
    }

    fn arrived(there: &OwnedFd) -> Vec<Vec<u8>> {
        let mut buffer = vec![0; 70_000];
        let mut all = Vec::new();
        while let Ok((length, _)) = recv(there, &mut buffer, RecvFlags::empty()) {
            all.push(buffer[HEADER_LEN..length].to_vec());
        }
        all
    }

    #[test]
    fn payload_is_read_where_it_is_or_written_when_the_kernel_does_not_take_it() {
        for may in [true, false] {
            let (mut frames, there) = pair(1 << 20);
            let mut payloads = Payloads(Vec::new());
            let sent: Vec<Vec<u8>> = (0..9)
                .map(|number| {
                    commit(&mut frames, number, 5000 + usize::from(number), number % 4 != 3, &mut payloads)
                })
                .collect();
            // While something is promised nothing goes by itself.
            frames.send();
            assert!(arrived(&there).is_empty() && frames.is_promised());
            frames.redeem(&payloads, may);
            assert!(!frames.is_promised() && frames.is_empty() == may);
            // Whoever keeps it may change it now.
            drop(payloads);
            frames.send();
            assert!(arrived(&there) == sent, "may {may}");
            assert_eq!((frames.counters.frames, frames.counters.in_place), (9, if may { 7 } else { 0 }));
        }
    }

    /// A kernel that takes some and then no more: the others are whole, and go later, in order.
    #[test]
    fn what_a_full_kernel_leaves_is_written() {
        let (mut frames, there) = pair(20_000);
        let mut payloads = Payloads(Vec::new());
        let mut sent = Vec::new();
        for number in 0..25 {
            sent.push(commit(&mut frames, number, 4096, true, &mut payloads));
        }
        frames.redeem(&payloads, true);
        assert!(frames.counters.again > 0 && !frames.is_empty(), "{:?}", frames.counters);
        let before = frames.counters.frames;
        assert!(before > 0 && frames.counters.in_place == before);
        drop(payloads);
        let mut all = Vec::new();
        while all.len() < sent.len() {
            let some = arrived(&there);
            assert!(!some.is_empty(), "{:?}", frames.counters);
            all.extend(some);
            frames.retry();
            frames.send();
        }
        assert!(all == sent);
        assert_eq!((frames.counters.frames, frames.counters.in_place), (25, before));
    }
}

//! A link whose kernel is the test's own: what leaves by the ring and as frames of several segments stays in its flow's order, whatever
//! the kernel takes and when, and packets of several descriptors come in whole. No privilege, no device, and a seed for each run.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use overfly_testing::{Random, seed};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

use super::super::memory::{FRAME_LEN, RECEIVED_FRAME_LEN_MAX};
use super::super::metadata::{HAS_METADATA, METADATA_LEN, Metadata};
use super::super::rings::heap::HeapRing;
use super::super::socket::pretended;
use super::*;
use crate::virtio::HEADER_LEN;
use rustix::net::xdp::XdpDescOptions;
use zerocopy::IntoBytes;

/// Seeds of one run, and steps of each.
const SEEDS: u64 = 300;
const STEPS: u32 = 1500;
/// Few, so that both ways have frames of the same one.
const FLOWS: u16 = 5;
const HEADERS: usize = 54;
/// Payload of a segment.
const SEGMENT: usize = 1400;
const RX_FRAMES: u32 = 256;
const STACK: u16 = 1;
/// What a message begins with that fills the packet socket.
const FILLER: u8 = 0xff;
/// A segment without its checksum.
const UNSUMMED: Unfinished = Unfinished { checksum_from: 34, segment_len: 0, headers_len: 0 };
const NOTHING: XdpDesc = XdpDesc { addr: 0, len: 0, options: XdpDescOptions::empty() };

/// The byte of a flow's stream.
fn byte(flow: u16, offset: u32) -> u8 {
    ((offset ^ u32::from(flow) << 24).wrapping_mul(0x9e37_79b9) >> 21) as u8
}

/// Writes a segment of a flow: as much of its headers as links look at.
fn write(frame: &mut [u8], flow: u16, offset: u32, payload: usize) -> usize {
    frame[..HEADERS].fill(0);
    frame[12] = 8;
    frame[14] = 0x45;
    frame[23] = 6;
    frame[36..38].copy_from_slice(&flow.to_be_bytes());
    frame[38..42].copy_from_slice(&offset.to_be_bytes());
    for (at, to) in (offset..).zip(&mut frame[HEADERS..HEADERS + payload]) {
        *to = byte(flow, at);
    }
    HEADERS + payload
}

/// The other ends of everything.
struct Kernel {
    random: Random,
    /// The pool's memory.
    memory: OwnedFd,
    tx_addresses: core::ops::Range<u64>,
    transmit: Ring<XdpDesc>,
    completion: Ring<u64>,
    receive: Ring<XdpDesc>,
    fill: Ring<u64>,
    /// The packet socket, and where its frames arrive.
    packet_socket: OwnedFd,
    device: OwnedFd,
    /// The packet socket has no room.
    is_full: bool,
    /// The ring's frames are not taken.
    is_shut: bool,
    /// The beginning of a packet whose last descriptor has not been taken.
    begun: Vec<u8>,
    /// What was taken from the ring and is not completed: where, and what it was.
    on_their_way: VecDeque<(u64, Vec<u8>)>,
    /// What has left, in its order.
    wire: Vec<Vec<u8>>,
    /// Frames that were taken from the ring without their checksum.
    unsummed: u64,
    /// Packets that are in the receive ring.
    incoming: VecDeque<Vec<u8>>,
}

impl Kernel {
    /// `sendto` of an AF_XDP socket.
    fn kick(&mut self) -> Result<(), Errno> {
        if self.is_shut || self.random.chance(200) {
            return self.random.one_of(&[Ok(()), Err(Errno::AGAIN), Err(Errno::NOBUFS), Err(Errno::INTR)]);
        }
        let most = self.random.one_of(&[1, 3, 20, u64::MAX]);
        let left = self.take(most);
        // A frame that the device drops has been taken, too.
        if left { self.random.one_of(&[Ok(()), Err(Errno::AGAIN), Err(Errno::BUSY)]) } else { Ok(()) }
    }

    /// Takes descriptors from the transmit ring, so many at most. Returns whether some are left.
    fn take(&mut self, most: u64) -> bool {
        // What the packet socket took before them.
        self.see_long_frames();
        for _ in 0..most {
            let next = self.transmit.consumer().load(Ordering::Relaxed);
            if next == self.transmit.producer().load(Ordering::Acquire) {
                assert!(self.begun.is_empty(), "a packet's descriptors are shown together");
                return false;
            }
            let XdpDesc { addr, len, options } = self.transmit.read(next);
            let end = addr % FRAME_LEN as u64 + u64::from(len);
            assert!(self.tx_addresses.contains(&addr) && end <= FRAME_LEN as u64, "{addr} {len}");
            if options.contains(HAS_METADATA) {
                let told = self.bytes(addr - u64::from(METADATA_LEN), METADATA_LEN as usize);
                assert_eq!(told, Metadata::of(UNSUMMED).as_bytes());
                self.unsummed += 1;
            }
            assert!(!self.on_their_way.iter().any(|(other, _)| *other == addr), "{addr} is the kernel's");
            let bytes = self.bytes(addr, len as usize);
            self.begun.extend(&bytes);
            self.on_their_way.push_back((addr, bytes));
            self.transmit.consumer().store(next.wrapping_add(1), Ordering::Release);
            if !options.contains(XdpDescOptions::XDP_PKT_CONTD) {
                self.wire.push(std::mem::take(&mut self.begun));
            }
        }
        true
    }

    fn bytes(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        assert_eq!(rustix::io::pread(&self.memory, &mut bytes, address), Ok(length));
        bytes
    }

    /// Has done with frames of the ring.
    fn complete(&mut self, most: u64) {
        for _ in 0..most.min(self.on_their_way.len() as u64) {
            let (address, bytes) = self.on_their_way.pop_front().unwrap();
            assert_eq!(
                self.bytes(address, bytes.len()),
                bytes,
                "{address} was written before it was completed"
            );
            let next = self.completion.producer().load(Ordering::Relaxed);
            self.completion.write(next, address);
            self.completion.producer().store(next.wrapping_add(1), Ordering::Release);
        }
    }

    fn see_long_frames(&mut self) {
        if self.is_full {
            // It has taken none since.
            return;
        }
        let mut buffer = vec![0; 70_000];
        while let Ok((length, _)) = recv(&self.device, &mut buffer[..], RecvFlags::DONTWAIT) {
            if buffer[0] != FILLER {
                self.wire.push(buffer[HEADER_LEN..length].to_vec());
            }
        }
    }

    /// The packet socket has no room from now on, or again.
    fn fill_packet_socket(&mut self, full: bool) {
        self.is_full = false;
        self.see_long_frames();
        self.is_full = full;
        for length in [20_000, 1] {
            while full && send(&self.packet_socket, &[FILLER; 20_000][..length], SendFlags::DONTWAIT).is_ok()
            {
            }
        }
    }

    /// A packet arrives, whole or with a descriptor that lies.
    fn arrive(&mut self) {
        let most = self.random.one_of(&[1500, 40_000]);
        let length = 1 + self.random.index(most);
        let packet = self.random.bytes(length);
        let pieces: Vec<&[u8]> = packet.chunks(RECEIVED_FRAME_LEN_MAX).collect();
        if self.fill.filled() < pieces.len() as u32
            || self.receive.capacity() - self.receive.filled() < pieces.len() as u32
        {
            return;
        }
        let lies = self.random.chance(100).then(|| self.random.index(pieces.len()));
        let first = self.receive.producer().load(Ordering::Relaxed);
        for (index, piece) in pieces.iter().enumerate() {
            let from = self.fill.consumer().load(Ordering::Relaxed);
            let address = (self.fill.read(from) & !(FRAME_LEN as u64 - 1)) + 256;
            assert!(address < u64::from(RX_FRAMES) * FRAME_LEN as u64);
            self.fill.consumer().store(from.wrapping_add(1), Ordering::Release);
            assert_eq!(rustix::io::pwrite(&self.memory, piece, address), Ok(piece.len()));
            let length = if lies == Some(index) { RECEIVED_FRAME_LEN_MAX + 1 } else { piece.len() };
            let mut options = XdpDescOptions::empty();
            options.set(XdpDescOptions::XDP_PKT_CONTD, index + 1 < pieces.len());
            let descriptor = XdpDesc { addr: address, len: length as u32, options };
            self.receive.write(first.wrapping_add(index as u32), descriptor);
        }
        self.receive.producer().store(first.wrapping_add(pieces.len() as u32), Ordering::Release);
        if lies.is_none() {
            self.incoming.push_back(packet);
        }
    }
}

/// As [`XdpLink::open`] makes it.
fn link(layout: PoolLayout, queue: Queue, transmit: Ring<XdpDesc>, packet_socket: OwnedFd) -> XdpLink {
    XdpLink {
        queues: vec![queue],
        stack: STACK,
        layout,
        zero_copy: false,
        idle: Idle::Return,
        process: getpid(),
        first_queue: 0,
        transmit: Producer::new(transmit),
        transmit_queue: 0,
        tx_base: layout.tx_base(STACK),
        cursor: 0,
        unreaped: 0,
        wakeup_flag_seen: false,
        is_stuck: false,
        refused_at: None,
        asked: 0,
        pulse: None,
        unseen: false,
        late: None,
        long_frames: Some(LongFrames::new(packet_socket)),
        counters: Counters::default(),
    }
}

/// A link, its kernel, and what was sent and has arrived of each flow.
struct Run {
    link: XdpLink,
    kernel: Rc<RefCell<Kernel>>,
    random: Random,
    sent: [u32; FLOWS as usize],
    arrived: [u32; FLOWS as usize],
    /// A kick was asked for, and has not been made.
    owed: bool,
    _rings: (HeapRing<XdpDesc>, HeapRing<u64>, HeapRing<XdpDesc>, HeapRing<u64>),
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut random = Random(seed);
        let frame_buffers = random.one_of(&[1, 1, 5, 17]);
        let layout = PoolLayout {
            rx_frames: RX_FRAMES,
            rx_ring: 64,
            tx_frames: random.one_of(&[64, 128]),
            tx_queues: 1,
            stacks: 2,
            frame_buffers,
            tx_metadata: frame_buffers == 1 && random.chance(500),
        };
        let file = memfd_create("link", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, layout.memory_len() as u64).unwrap();
        let memory = Memory::map(file.as_fd(), layout).unwrap();
        let mut start = || random.one_of(&[0, u32::MAX - 7, u32::MAX / 3]);
        let mut transmit = HeapRing::new(layout.tx_ring(), start(), NOTHING);
        let mut completion = HeapRing::new(layout.completion_ring(), start(), 0);
        let mut receive = HeapRing::new(layout.rx_ring, start(), NOTHING);
        let mut fill = HeapRing::new(layout.fill_ring(), 0, 0);
        let (fill_view, completion_view) = (fill.view(), completion.view());
        let ring = memory.fill_ring(&fill_view);
        for (slot, frame) in ring.slots.iter().zip(0..layout.rx_ring) {
            slot.store(u64::from(frame) * FRAME_LEN as u64, Ordering::Relaxed);
        }
        ring.reserve.store(layout.rx_ring, Ordering::Relaxed);
        ring.turn.store(Turn::free(layout.rx_ring, STACK, 0).word(), Ordering::Relaxed);
        ring.producer.store(layout.rx_ring, Ordering::Relaxed);
        let (packet_socket, device) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let first = u64::from(RX_FRAMES + layout.tx_base(STACK)) * FRAME_LEN as u64;
        let kernel = Kernel {
            random: Random(random.next()),
            memory: file.try_clone().unwrap(),
            tx_addresses: first..first + u64::from(layout.tx_frames) * FRAME_LEN as u64,
            transmit: transmit.view(),
            completion: completion.view(),
            receive: receive.view(),
            fill: fill.view(),
            packet_socket: packet_socket.try_clone().unwrap(),
            device,
            is_full: false,
            is_shut: false,
            begun: Vec::new(),
            on_their_way: VecDeque::new(),
            wire: Vec::new(),
            unsummed: 0,
            incoming: VecDeque::new(),
        };
        let queue = Queue {
            receive: Consumer::new(receive.view()),
            fill: fill_view,
            completion: completion_view,
            memory,
            pieces: Pieces::default(),
            turn_wait: TurnWait::default(),
            carries_traffic: false,
            socket: file.try_clone().unwrap(),
            _pool: file,
        };
        let link = link(layout, queue, transmit.view(), packet_socket);
        let kernel = Rc::new(RefCell::new(kernel));
        let kicked = Rc::clone(&kernel);
        pretended::kicks_with(move || kicked.borrow_mut().kick());
        Run {
            link,
            kernel,
            random,
            sent: [0; FLOWS as usize],
            arrived: [0; FLOWS as usize],
            owed: false,
            _rings: (transmit, completion, receive, fill),
        }
    }

    /// Writes a frame, and mostly commits it.
    fn write(&mut self, is_long: bool) {
        let flow = self.random.below(u64::from(FLOWS)) as u16;
        let offset = self.sent[usize::from(flow)];
        let payload = if is_long {
            let most = self.random.one_of(&[9000, 9000, 60_000]);
            2 * SEGMENT + self.random.index(most)
        } else {
            let most = self.random.one_of(&[1, 500, self.link.layout.frame_len_max() - HEADERS]);
            self.random.index(most + 1)
        };
        let room = if is_long { self.link.long_frame(HEADERS + payload) } else { self.link.frame() };
        let Some(frame) = room else { return };
        let length = write(frame, flow, offset, payload);
        if self.random.chance(100) {
            return;
        }
        if is_long {
            let left =
                Unfinished { checksum_from: 34, segment_len: SEGMENT as u16, headers_len: HEADERS as u16 };
            self.link.commit_unfinished(length, left);
        } else if self.random.chance(300) {
            self.link.commit_unfinished(length, UNSUMMED);
        } else {
            self.link.commit(length);
        }
        self.sent[usize::from(flow)] += payload as u32;
    }

    /// Flushes, and leaves the kick for later if there is only that to do.
    fn publish(&mut self) {
        self.owed |= self.link.post(self.owed).is_some();
        if self.owed && self.random.chance(500) {
            self.owed = false;
            let answer = self.kernel.borrow_mut().kick();
            if let Err(errno) = answer {
                self.link.kick_failed(errno);
            }
        }
    }

    fn receive(&mut self) {
        let budget = 1 + self.random.index(64);
        let kernel = &self.kernel;
        self.link.receive(budget, |frame| {
            let expected = kernel.borrow_mut().incoming.pop_front();
            assert!(expected.is_some_and(|packet| packet == frame), "a packet of {} bytes", frame.len());
        });
    }

    /// What has left is what was written, in its flow's order.
    fn look(&mut self) {
        let frames = std::mem::take(&mut self.kernel.borrow_mut().wire);
        for frame in frames {
            let flow = u16::from_be_bytes([frame[36], frame[37]]);
            let offset = u32::from_be_bytes([frame[38], frame[39], frame[40], frame[41]]);
            let next = &mut self.arrived[usize::from(flow)];
            assert_eq!(offset, *next, "flow {flow}: {:?}", self.link.long_frame_counters());
            let payload = &frame[HEADERS..];
            assert!(payload.iter().zip(offset..).all(|(&its, at)| its == byte(flow, at)), "{flow} {offset}");
            *next += payload.len() as u32;
        }
    }

    fn step(&mut self) {
        match self.random.below(24) {
            0..=6 => self.write(false),
            7..=12 => self.write(true),
            13 => self.link.flush(),
            14 => self.publish(),
            15 => self.link.retry(),
            16 => {
                let mut kernel = self.kernel.borrow_mut();
                let most = self.random.below(40);
                if !kernel.is_shut {
                    kernel.take(most);
                }
            }
            17 => self.kernel.borrow_mut().complete(self.random.below(80)),
            18 => self.kernel.borrow_mut().see_long_frames(),
            19 if self.random.chance(300) => {
                let mut kernel = self.kernel.borrow_mut();
                kernel.is_shut = self.random.chance(400);
                kernel.fill_packet_socket(self.random.chance(400));
            }
            19..=21 => self.kernel.borrow_mut().arrive(),
            _ => self.receive(),
        }
        self.look();
    }

    /// Everything leaves as soon as the kernel takes everything.
    fn end(&mut self) {
        {
            let mut kernel = self.kernel.borrow_mut();
            kernel.is_shut = false;
            kernel.fill_packet_socket(false);
        }
        let mut rounds = 0;
        while self.link.is_busy() {
            self.link.retry();
            self.link.flush();
            let mut kernel = self.kernel.borrow_mut();
            kernel.see_long_frames();
            kernel.complete(u64::MAX);
            rounds += 1;
            assert!(rounds < 1000, "{:?} {:?}", self.link.counters(), self.link.long_frame_counters());
        }
        self.kernel.borrow_mut().complete(u64::MAX);
        self.look();
        assert_eq!(self.arrived, self.sent);
        let unsummed = self.kernel.borrow().unsummed;
        assert_eq!(unsummed, self.link.counters().sent_unsummed);
        assert!(self.link.layout.tx_metadata || unsummed == 0);
        self.link.reap();
        assert!((0..self.link.layout.tx_frames).all(|frame| self.link.is_free(frame)), "all places are free");
        while self.link.occupancy().received > 0 {
            self.receive();
        }
        assert_eq!(self.kernel.borrow().incoming.len(), 0);
        let reserve = RX_FRAMES
            - self.link.queues[0].memory.fill_ring(&self.link.queues[0].fill).reserve.load(Ordering::Relaxed);
        assert_eq!(
            self.link.occupancy().fill + u64::from(reserve),
            u64::from(RX_FRAMES),
            "all frames are the kernel's again"
        );
    }
}

/// Many seeds, the first of which may be given; what happened in all of them together.
fn drive(steps: impl Fn(&mut Run)) -> (Counters, packet::Counters) {
    let first = seed(1);
    let (mut all, mut long) = (Counters::default(), packet::Counters::default());
    for seed in first..first + SEEDS {
        // In the output of a seed that fails, the last one.
        println!("seed {seed}");
        let mut drive = Run::new(seed);
        steps(&mut drive);
        drive.end();
        let (counters, of_long) = (*drive.link.counters(), drive.link.long_frame_counters());
        all.sent_frames += counters.sent_frames;
        all.transmit_full += counters.transmit_full;
        all.transmit_again += counters.transmit_again;
        all.received_long_frames += counters.received_long_frames;
        all.receive_invalid += counters.receive_invalid;
        long.frames += of_long.frames;
        long.cut += of_long.cut;
        long.followers += of_long.followers;
        long.again += of_long.again;
    }
    println!("{all:?} {long:?}");
    (all, long)
}

#[test]
fn both_ways_keep_their_flows_order_whatever_the_kernel_takes() {
    let (all, long) = drive(|drive| (0..STEPS).for_each(|_| drive.step()));
    assert!(all.transmit_full > 0 && all.transmit_again > 0 && all.sent_frames > 0, "{all:?}");
    assert!(all.received_long_frames > 0 && all.receive_invalid > 0, "{all:?}");
    assert!(long.again > 0 && long.followers > 0 && long.frames > 0, "{long:?}");
}

/// The interface comes back without the feature in the middle: what is written from then on is cut here.
#[test]
fn a_link_that_loses_its_long_frames_cuts_them() {
    let (_, long) = drive(|drive| {
        (0..STEPS / 2).for_each(|_| drive.step());
        // What waits would be lost.
        drive.end();
        drive.link.long_frames = drive.link.long_frames.take().map(LongFrames::without_a_device);
        (0..STEPS / 2).for_each(|_| drive.step());
    });
    assert!(long.cut > 0 && long.frames > 0, "{long:?}");
}

#[test]
fn an_interface_that_is_down_or_gone_is_not_kicked_again_before_there_is_more() {
    for errno in [Errno::NXIO, Errno::NETDOWN] {
        let mut run = Run::new(1);
        let kicks = Rc::new(Cell::new(0));
        let counted = Rc::clone(&kicks);
        pretended::kicks_with(move || {
            counted.set(counted.get() + 1);
            Err(errno)
        });
        for frames in 1..4 {
            let written = run.link.transmit.written();
            while run.link.transmit.written() == written {
                run.write(false);
            }
            for _ in 0..10 {
                // As each look for frames does.
                run.link.retry();
                run.link.flush();
                assert!(run.link.post(false).is_none(), "who waits would never sleep");
            }
            assert_eq!(kicks.get(), frames, "{errno}");
        }
    }
}

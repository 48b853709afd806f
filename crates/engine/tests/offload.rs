//! A link that completes checksums and cuts segments (checksum and segmentation offload), as a test plays it.

use std::net::SocketAddrV4;

use crate::harness::{CLIENT, Host, SERVER, config, pattern};
use overfly_engine::{FlowId, Instant, Owner};
use overfly_wire::tcp::{Flags, Segment, write_checksum};
use overfly_wire::{FrameSink, Promised, Unfinished, ethernet, ipv4};

/// Collects frames as a link with offloads would hand them to its device.
struct Device {
    buffer: Vec<u8>,
    /// Frames that it is to cut, as a link whose other buffers hold one segment has them.
    long_buffer: Vec<u8>,
    /// It completes checksums of other frames, too.
    completes_all: bool,
    frames: Vec<Vec<u8>>,
    /// The largest frame that was handed over.
    largest: usize,
    /// Payload may be promised: frames that wait for it, behind what is in `frames`.
    promised: Option<Vec<(Vec<u8>, Unfinished, Promised)>>,
}

impl Device {
    /// Reads what was promised, as a link does when the engine has written its frames. Returns how many frames that were.
    fn redeem(&mut self, owner: &mut impl Owner) -> usize {
        let waiting = self.promised.as_mut().map(std::mem::take).unwrap_or_default();
        let count = waiting.len();
        for (mut frame, left, payload) in waiting {
            let headers = frame.len();
            frame.resize(headers + payload.length, 0);
            owner.fill(FlowId::at(payload.flow), payload.offset, &mut frame[headers..]);
            self.long_buffer[..frame.len()].copy_from_slice(&frame);
            self.commit_unfinished(frame.len(), left);
        }
        count
    }
}

impl FrameSink for Device {
    fn frame(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.buffer)
    }

    fn long_frame(&mut self, length: usize) -> Option<&mut [u8]> {
        self.long_buffer.get_mut(..length)
    }

    fn takes_promises(&self) -> bool {
        self.promised.is_some()
    }

    fn commit_promised(&mut self, left: Unfinished, payload: Promised) {
        let headers = self.long_buffer[..usize::from(left.headers_len)].to_vec();
        // Nobody may rely on what is there.
        self.long_buffer.fill(0xee);
        self.promised.as_mut().expect("it was asked").push((headers, left, payload));
    }

    fn commit(&mut self, length: usize) {
        self.commit_unfinished(length, Unfinished::default());
    }

    fn commit_unfinished(&mut self, length: usize, left: Unfinished) {
        self.largest = self.largest.max(length);
        if left.segment_len == 0 {
            assert!(self.completes_all || left == Unfinished::default(), "a frame that is not cut is whole");
            let mut frame = self.buffer[..length].to_vec();
            if left.checksum_from > 0 {
                complete(&mut frame, usize::from(left.checksum_from));
            }
            self.frames.push(frame);
            return;
        }
        let frame = &self.long_buffer[..length];
        let headers = usize::from(left.headers_len);
        let payload = &frame[headers..];
        let count = payload.len().div_ceil(usize::from(left.segment_len));
        assert!(count > 1, "a single segment needs no cutting");
        for (index, piece) in payload.chunks(usize::from(left.segment_len)).enumerate() {
            let mut cut = [&frame[..headers], piece].concat();
            let offset = (index * usize::from(left.segment_len)) as u32;
            let tcp = usize::from(left.checksum_from);
            let sequence = u32::from_be_bytes(cut[tcp + 4..tcp + 8].try_into().unwrap()) + offset;
            cut[tcp + 4..tcp + 8].copy_from_slice(&sequence.to_be_bytes());
            if index + 1 < count {
                // FIN and PSH are the last segment's.
                cut[tcp + 13] &= !(Flags::FIN | Flags::PSH).bits();
            }
            let total = (cut.len() - ethernet::HEADER_LEN) as u16;
            cut[ethernet::HEADER_LEN + 2..ethernet::HEADER_LEN + 4].copy_from_slice(&total.to_be_bytes());
            cut[ethernet::HEADER_LEN + 10..ethernet::HEADER_LEN + 12].fill(0);
            let sum = overfly_wire::checksum::Sum::new()
                .bytes(&cut[ethernet::HEADER_LEN..ethernet::HEADER_LEN + ipv4::HEADER_LEN])
                .finish();
            cut[ethernet::HEADER_LEN + 10..ethernet::HEADER_LEN + 12].copy_from_slice(&sum.to_be_bytes());
            complete(&mut cut, tcp);
            self.frames.push(cut);
        }
    }
}

/// Writes the whole checksum over the partial one.
fn complete(frame: &mut [u8], tcp: usize) {
    let (source, destination) = {
        let address = |at: usize| <[u8; 4]>::try_from(&frame[at..at + 4]).unwrap().into();
        (address(26), address(30))
    };
    write_checksum::<std::net::Ipv4Addr>(&mut frame[tcp..], source, destination);
}

#[test]
fn segments_are_cut_by_the_link_and_arrive_whole() {
    for completes_all in [true, false] {
        transfer(completes_all, None);
        transfer(completes_all, Some(0));
        transfer(completes_all, Some(20_000));
    }
}

fn transfer(completes_all: bool, promises_from: Option<usize>) {
    let mut sender = config(SERVER);
    sender.checksum_offload = completes_all;
    sender.segment_offload = 65_435;
    sender.initial_window = 1 << 20;
    let mut sender = Host::new(sender);
    let mut receiver = config(CLIENT);
    receiver.receive_window = 4 << 20;
    receiver.initial_receive_window = 4 << 20;
    let mut receiver = Host::new(receiver);
    let mut device = Device {
        buffer: vec![0; 1514],
        long_buffer: vec![0; 66_000],
        completes_all,
        frames: Vec::new(),
        largest: 0,
        promised: promises_from.map(|_| Vec::new()),
    };
    let mut redeemed = 0;
    sender.owner.promises_from = promises_from;
    let service = SocketAddrV4::new(SERVER, 80);
    sender.engine.listen(service, 8).unwrap();
    let mut now = Instant::from_micros(1_000_000);
    let flow = receiver.connect(now, SocketAddrV4::new(CLIENT, 40_000), service);
    let bytes = 3_000_000;
    for round in 0..2000_u64 {
        now = Instant::from_micros(1_000_000 + round * 2000);
        receiver.engine.advance(now, &mut receiver.owner);
        receiver.transmit(now);
        for frame in receiver.outbox.frames.drain(..) {
            sender.engine.receive(now, &frame, &mut sender.owner);
        }
        if let Some((flow, _)) = sender.owner.incoming.pop_front() {
            sender.engine.accepted(flow);
            sender.send(flow, bytes);
            sender.engine.shutdown(flow);
        }
        sender.engine.advance(now, &mut sender.owner);
        while !sender.engine.transmit(now, &mut sender.owner, &mut device) {}
        redeemed += device.redeem(&mut sender.owner);
        for frame in device.frames.drain(..) {
            let (link, packet) = ethernet::Header::parse(&frame).unwrap();
            if link.ethertype == ethernet::ETHERTYPE_IPV4 {
                let packet = ipv4::Packet::parse(packet).unwrap();
                let segment = Segment::parse(packet.payload()).unwrap();
                let holds = segment.checksum_holds(packet.source(), packet.destination());
                assert!(frame.len() <= 1514 && holds, "{} bytes", frame.len());
            }
            receiver.engine.receive(now, &frame, &mut receiver.owner);
        }
    }
    let stream = &receiver.owner.streams[&flow];
    assert_eq!((stream.received.len(), stream.remote_closed), (bytes, true));
    let seed = sender.owner.streams.values().next().unwrap().seed;
    assert!(stream.received.iter().enumerate().all(|(at, &byte)| byte == pattern(seed, at as u64)));
    assert!(device.largest > 60_000, "{} bytes at most: nothing was left to the link", device.largest);
    assert_eq!(redeemed > 0, promises_from.is_some(), "{redeemed}");
    assert_eq!(receiver.engine.counters().drop_checksum, 0);
}

/// A response of several segments is one frame, its small end included, and one with a FIN if that follows at once.
#[test]
fn the_small_segment_at_the_end_leaves_with_the_others() {
    for (no_delay, shutdown) in [(true, false), (false, false), (false, true), (true, true)] {
        let mut sender = config(SERVER);
        sender.segment_offload = 65_435;
        let mut sender = Host::new(sender);
        let mut receiver = Host::new(config(CLIENT));
        let mut device = Device {
            buffer: vec![0; 1514],
            long_buffer: vec![0; 66_000],
            completes_all: false,
            frames: Vec::new(),
            largest: 0,
            promised: None,
        };
        let service = SocketAddrV4::new(SERVER, 80);
        sender.engine.listen(service, 8).unwrap();
        let now = Instant::from_micros(1_000_000);
        receiver.connect(now, SocketAddrV4::new(CLIENT, 40_000), service);
        let flow = loop {
            receiver.transmit(now);
            for frame in receiver.outbox.frames.drain(..) {
                sender.engine.receive(now, &frame, &mut sender.owner);
            }
            if let Some((flow, _)) = sender.owner.incoming.pop_front() {
                break flow;
            }
            sender.engine.transmit(now, &mut sender.owner, &mut device);
            for frame in device.frames.drain(..) {
                receiver.engine.receive(now, &frame, &mut receiver.owner);
            }
        };
        sender.engine.accepted(flow);
        sender.engine.set_no_delay(flow, no_delay);
        device.largest = 0;
        sender.send(flow, 10_000);
        if shutdown {
            sender.engine.shutdown(flow);
        }
        while !sender.engine.transmit(now, &mut sender.owner, &mut device) {}
        assert_eq!(device.frames.len(), 7, "no_delay {no_delay}, FIN {shutdown}");
        assert_eq!(device.largest, 14 + 20 + 32 + 10_000);
    }
}

//! Packets of several descriptors: of a large MTU, sent and received, and of several segments, as a peer's kernel sends them. What
//! arrives is whole; what cannot arrive whole does not arrive.

use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use overfly_lab::{CLIENT, INTERFACE, Lab, SERVER};
use overfly_link::xdp::XdpLink;
use overfly_link::{Link, packet};
use overfly_steer::{Attachment, Options, Protocol, ReceiveOffload};
use overfly_wire::{FrameSink, Unfinished, ethernet, ipv4, tcp};

const HEADERS: usize = 54;
/// Where a frame's number is written.
const NUMBERED: usize = HEADERS + 8;
/// Payload of a segment of those that leave at once.
const SEGMENT: u16 = 1400;
const PATIENCE: Duration = Duration::from_secs(60);

/// A stack at each end that gets all TCP frames for its interface's address.
struct Pair {
    near: Attachment,
    far: Attachment,
    sender: XdpLink,
    receiver: XdpLink,
    lab: Lab,
}

impl Pair {
    fn new(lab: Lab, near: Options, far: Options) -> Pair {
        let open = |options| {
            let mut attachment = Attachment::attach(INTERFACE, options).unwrap();
            let sockets = attachment.add_stack().unwrap();
            let address = attachment.interface().addresses[0].0;
            attachment.claim_ports(Protocol::Tcp, address, 0..=u16::MAX, sockets.stack, 1).unwrap();
            (attachment, XdpLink::open(sockets).unwrap())
        };
        let (near, sender) = lab.client.within(|| open(near));
        let (far, receiver) = lab.server.within(|| open(far));
        Pair { near, far, sender, receiver, lab }
    }

    /// Of a frame of that length.
    fn headers(&self, length: usize) -> [u8; HEADERS] {
        let mut frame = [0; HEADERS];
        ethernet::Header {
            destination: self.far.interface().mac,
            source: self.near.interface().mac,
            ethertype: ethernet::ETHERTYPE_IPV4,
        }
        .emit(&mut frame);
        ipv4::Header {
            source: CLIENT,
            destination: SERVER,
            protocol: ipv4::PROTOCOL_TCP,
            ttl: 64,
            tos: 0,
            identification: 0,
            dont_fragment: true,
            payload_len: (length - 34) as u16,
        }
        .emit(&mut frame[14..]);
        tcp::Header {
            source_port: 1,
            destination_port: 2,
            sequence: 0,
            acknowledgment: 0,
            flags: tcp::Flags::ACK,
            window: 0,
            options: tcp::Options::default(),
        }
        .emit(&mut frame[34..]);
        frame
    }

    /// A frame of several segments, which the kernel is to cut where it must.
    fn commit_long(&mut self, length: usize, number: u64) {
        let headers = self.headers(length);
        let left = Unfinished { checksum_from: 34, segment_len: SEGMENT, headers_len: HEADERS as u16 };
        let frame = self.sender.long_frame(length).expect("room for a long frame");
        write(&mut frame[..length], &headers, number);
        tcp::write_partial_checksum(&mut frame[34..length], CLIENT, SERVER);
        self.sender.commit_unfinished(length, left);
    }
}

/// Writes the frame of a number; it is as long as the buffer.
fn write(frame: &mut [u8], headers: &[u8; HEADERS], number: u64) {
    frame[..HEADERS].copy_from_slice(headers);
    frame[HEADERS..NUMBERED].copy_from_slice(&number.to_ne_bytes());
    for (at, to) in frame[NUMBERED..].iter_mut().enumerate() {
        *to = byte(number, at);
    }
}

fn byte(number: u64, at: usize) -> u8 {
    ((at as u32 ^ (number as u32) << 16).wrapping_mul(0x9e37_79b9) >> 21) as u8
}

/// The number of a frame, all of whose bytes must be right.
fn read(frame: &[u8]) -> u64 {
    let number = u64::from_ne_bytes(frame[HEADERS..NUMBERED].try_into().unwrap());
    let wrong = frame[NUMBERED..].iter().enumerate().find(|&(at, &its)| its != byte(number, at));
    assert!(wrong.is_none(), "frame {number} of {} bytes: {wrong:?}", frame.len());
    number
}

/// Lengths of frames that fit one buffer exactly, one byte more, and anything up to the longest.
fn length_of(number: u64, longest: usize) -> usize {
    let drawn = (number.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize;
    match drawn % 8 {
        0 => 62,
        1 => [1792, 1793, 2048, 2049, 4096, 4097][drawn / 8 % 6].min(longest),
        2 => longest,
        _ => 62 + drawn / 8 % (longest - 61),
    }
}

/// Frames of all lengths that the MTU allows, from one stack to another: whole, in order, none missing.
fn every_length_arrives(mtu: u32, options: Options, on_the_way: u64, count: u64) {
    let lab = Lab::new(2);
    lab.set_mtu(mtu);
    let pair = Pair::new(lab, options, options);
    assert_eq!(pair.far.long_packets(), Ok(()));
    let longest = usize::from(pair.near.interface().mtu) + 14;
    let headers: Vec<[u8; HEADERS]> = (0..=longest).map(|length| pair.headers(length.max(62))).collect();
    let Pair { mut sender, mut receiver, .. } = pair;
    let arrived = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut next, begin) = (0, Instant::now());
            while next < count {
                receiver.receive(16, |frame| {
                    assert_eq!((read(frame), frame.len()), (next, length_of(next, longest)));
                    next += 1;
                });
                arrived.store(next, Ordering::Release);
                assert!(begin.elapsed() < PATIENCE, "frame {next} of {count} never came");
                std::thread::yield_now();
            }
        });
        let (mut next, begin) = (0, Instant::now());
        while next < count || sender.is_busy() {
            while next < count && next < arrived.load(Ordering::Acquire) + on_the_way {
                let length = length_of(next, longest);
                let Some(buffer) = sender.frame() else { break };
                write(&mut buffer[..length], &headers[length], next);
                sender.commit(length);
                next += 1;
            }
            sender.flush();
            sender.retry();
            assert!(begin.elapsed() < PATIENCE, "{:?}", sender.counters());
            std::thread::yield_now();
        }
    });
    let (sent, received) = (sender.counters(), receiver.counters());
    assert_eq!((sent.sent_frames, received.received_frames), (count, count));
    assert!(received.received_long_frames > count / 2, "{received:?}");
    assert_eq!((received.receive_invalid, received.receive_unfinished, received.receive_too_long), (0, 0, 0));
    assert_eq!((sent.transmit_dropped, sent.completion_invalid), (0, 0));
    assert_eq!(receiver.kernel_counters().unwrap().receive_dropped, 0);
}

#[test]
fn jumbo_frames_of_every_length_arrive_whole_and_in_order() {
    every_length_arrives(9000, Options::default(), 100, 30_000);
}

/// Rings that are as small as can be: frames begin at every place of them.
#[test]
fn jumbo_frames_go_round_small_rings() {
    let small = Options { rx_ring: 64, rx_frames: 256, tx_frames: 64, ..Options::default() };
    every_length_arrives(9000, small, 8, 10_000);
}

#[test]
fn the_longest_frames_that_can_be_sent_arrive() {
    every_length_arrives(65_535, Options::default(), 30, 5_000);
}

#[test]
fn the_mtu_is_that_of_the_device_where_packets_may_be_long() {
    for (mtu, offload, expected) in [
        (1500, ReceiveOffload::Packets, 1500),
        (3400, ReceiveOffload::Packets, 3400),
        (9000, ReceiveOffload::Packets, 9000),
        (9000, ReceiveOffload::Segments, 9000),
        (65_535, ReceiveOffload::Packets, 34_802),
        (3400, ReceiveOffload::Off, 1778),
    ] {
        let lab = Lab::new(1);
        lab.set_mtu(mtu);
        let options = Options { receive_offload: offload, ..Options::default() };
        let attachment = lab.server.within(|| Attachment::attach(INTERFACE, options).unwrap());
        assert_eq!(attachment.interface().mtu, expected, "{mtu} {offload:?}");
        assert_eq!(attachment.long_packets().is_ok(), offload != ReceiveOffload::Off);
        assert_eq!(attachment.segments_arrive_together().is_ok(), offload == ReceiveOffload::Segments);
    }
}

/// A receiver that stands still, with few frames to receive into: the kernel drops packets whose descriptors it does not have, and no
/// part of one is ever handed over, nor any memory lost.
#[test]
fn a_fill_ring_that_empties_in_mid_packet_loses_whole_packets_only() {
    const COUNT: u64 = 3000;
    let lab = Lab::new(1);
    lab.set_mtu(9000);
    let small = Options {
        rx_ring: 128,
        rx_frames: 128,
        receive_offload: ReceiveOffload::Packets,
        ..Options::default()
    };
    let pair = Pair::new(lab, Options::default(), small);
    loses_whole_packets_only(
        pair,
        COUNT,
        60,
        |number| length_of(number, 9014),
        |pair, length, number| {
            let headers = pair.headers(length);
            let buffer = pair.sender.frame().expect("room for a frame");
            write(&mut buffer[..length], &headers, number);
            pair.sender.commit(length);
        },
    );
}

/// The same with packets of up to 64 KB, which a peer has sent at once, and of which three fill the ring.
#[test]
fn a_fill_ring_that_empties_in_mid_packet_loses_whole_packets_only_in_generic_mode() {
    const COUNT: u64 = 3000;
    let small = Options { rx_ring: 128, rx_frames: 128, ..Options::default() };
    let pair = Pair::new(Lab::new(1), Options::default(), small);
    assert_eq!(pair.far.segments_arrive_together(), Ok(()));
    let length_of = |number: u64| 62 + (number.wrapping_mul(7919) % (65_435 - 62)) as usize;
    loses_whole_packets_only(pair, COUNT, 20, length_of, Pair::commit_long);
}

/// Sends so many frames and takes them too seldom.
fn loses_whole_packets_only(
    mut pair: Pair,
    count: u64,
    seldom: u64,
    length_of: impl Fn(u64) -> usize,
    mut commit: impl FnMut(&mut Pair, usize, u64),
) {
    let mut last = None;
    let mut take = |receiver: &mut XdpLink| {
        receiver.receive(1000, |frame: &[u8]| {
            let number = read(frame);
            assert_eq!(frame.len(), length_of(number));
            assert!(last.is_none_or(|last| last < number), "{number} after {last:?}");
            last = Some(number);
        });
    };
    for number in 0..count {
        commit(&mut pair, length_of(number), number);
        pair.sender.flush();
        pair.sender.retry();
        // Seldom enough that there is not always room for what comes.
        if number % seldom == 0 {
            take(&mut pair.receiver);
        }
    }
    let end = Instant::now() + PATIENCE;
    let lost = loop {
        pair.sender.retry();
        pair.sender.flush();
        take(&mut pair.receiver);
        let kernel = pair.receiver.kernel_counters().unwrap();
        let lost =
            kernel.receive_dropped + kernel.receive_ring_full + pair.sender.counters().transmit_dropped;
        let received = pair.receiver.counters().received_frames;
        if received + lost == count {
            break lost;
        }
        let sent = (pair.sender.counters(), pair.sender.long_frame_counters());
        assert!(Instant::now() < end, "{received} received, {kernel:?}, {sent:?}");
    };
    assert!(lost > 100 && lost < count - 100, "{lost} of {count} were lost");
    let counters = pair.receiver.counters();
    assert_eq!((counters.receive_invalid, counters.receive_unfinished, counters.receive_too_long), (0, 0, 0));
    // The kernel may hold one that it had taken for a packet for which there was no place in the ring then.
    let free: Vec<u32> = pair.far.free_frames().collect();
    assert!((127..=128).contains(&free[0]), "{free:?} of 128");
}

/// What `ethtool -k` says of the client's end.
fn peer_cuts(lab: &Lab) -> bool {
    let said = lab.client.command("ethtool", &["-k", INTERFACE]);
    let line = said.lines().find_map(|line| line.strip_prefix("tcp-segmentation-offload: "));
    let takes_segments = line.expect("ethtool names it").starts_with("on");
    let socket = lab.client.within(|| UnixDatagram::unbound().unwrap());
    assert_eq!(packet::takes_segments(socket.as_fd(), INTERFACE), Some(takes_segments));
    assert_eq!(packet::takes_segments(socket.as_fd(), "none"), None);
    !takes_segments
}

/// Attached behind the driver, the peer goes on to send 64 KB at once, and they arrive so; in the driver they arrive cut.
#[test]
fn what_a_peer_sends_at_once_arrives_at_once_in_generic_mode() {
    const COUNT: u64 = 2000;
    for offload in [ReceiveOffload::Packets, ReceiveOffload::Segments] {
        let together = offload == ReceiveOffload::Segments;
        let options = Options { receive_offload: offload, ..Options::default() };
        let mut pair = Pair::new(Lab::new(1), Options::default(), options);
        assert_eq!(pair.far.segments_arrive_together().is_ok(), together);
        assert_eq!(peer_cuts(&pair.lab), !together);
        let (mut next, mut pieces) = (0, 0);
        for number in 0..COUNT {
            let length = 62 + (number * 7919 % (65_435 - 62)) as usize;
            pair.commit_long(length, number);
            let headers = pair.headers(length);
            pair.sender.flush();
            let end = Instant::now() + Duration::from_secs(5);
            let mut payload = 0;
            while payload < length - HEADERS {
                pair.receiver.receive(256, |frame| {
                    if together {
                        assert_eq!((read(frame), frame.len()), (number, length));
                        assert_eq!(frame[..34], headers[..34]);
                    }
                    payload += frame.len() - HEADERS;
                    pieces += 1;
                });
                assert!(Instant::now() < end, "{number}: {payload} of {length} bytes");
            }
            next += 1;
        }
        assert_eq!(next, COUNT);
        assert_eq!(pieces == COUNT, together, "{pieces} frames");
        let long = pair.receiver.counters().received_long_frames;
        assert_eq!(long > COUNT / 2, together, "{long} of several descriptors");
        // With the attachment goes what it had switched off.
        let Pair { far, lab, .. } = pair;
        drop(far);
        assert!(!peer_cuts(&lab));
    }
}

//! Two stacks face each other over veth: what is sent arrives, whole and in order; sleeping works; one call sends a ring.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use overfly_lab::{CLIENT, INTERFACE, Lab, SERVER};
use overfly_link::Link;
use overfly_link::xdp::{XdpLink, kick};
use overfly_steer::{Attachment, Options, Protocol, ReceiveOffload};
use overfly_testing::kernel::napis_have_threads;
use overfly_wire::{FrameSink, ethernet, ipv4, tcp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{CpuSet, sched_setaffinity};

const HEADERS: usize = 54;

/// A stack at each end that gets all TCP frames for its interface's address.
struct Pair {
    near: Attachment,
    far: Attachment,
    sender: XdpLink,
    receiver: XdpLink,
    lab: Lab,
}

impl Pair {
    fn new(options: Options) -> Pair {
        let lab = Lab::new(2);
        let open = || {
            let mut attachment = Attachment::attach(INTERFACE, options).unwrap();
            let sockets = attachment.add_stack().unwrap();
            let address = attachment.interface().addresses[0].0;
            attachment.claim_ports(Protocol::Tcp, address, 0..=u16::MAX, sockets.stack, 1).unwrap();
            (attachment, XdpLink::open(sockets).unwrap())
        };
        let (near, sender) = lab.client.within(open);
        let (far, receiver) = lab.server.within(open);
        Pair { near, far, sender, receiver, lab }
    }

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

    /// Commits the shortest frame.
    fn put(&mut self, headers: &[u8; HEADERS]) {
        self.sender.frame().unwrap()[..HEADERS].copy_from_slice(headers);
        self.sender.commit(60);
    }
}

/// Bytes that say which frame they belong to, wherever they stand.
fn content(number: u64, length: usize) -> impl Iterator<Item = u8> {
    (0..length - HEADERS).map(move |at| (number.wrapping_mul(0x9e37_79b9) >> (at % 4 * 8)) as u8 ^ at as u8)
}

fn length_of(number: u64) -> usize {
    60 + (number.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as usize % (1514 - 60 + 1)
}

#[test]
fn every_frame_arrives_whole_and_in_order() {
    const FRAMES: u64 = 200_000;
    /// Fewer than a receive ring and than veth's ring of 256 hold.
    const ON_THE_WAY: u64 = 200;
    let pair = Pair::new(Options { rx_ring: 256, rx_frames: 512, tx_frames: 64, ..Options::default() });
    let headers: Vec<[u8; HEADERS]> = (0..=1514).map(|length| pair.headers(length.max(60))).collect();
    let Pair { mut sender, mut receiver, .. } = pair;
    let arrived = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            let begin = Instant::now();
            while number < FRAMES {
                receiver.receive(64, |frame| {
                    let length = length_of(number);
                    assert_eq!(frame.len(), length, "{number}");
                    assert!(frame[HEADERS..].iter().copied().eq(content(number, length)), "{number}");
                    number += 1;
                });
                arrived.store(number, Ordering::Release);
                assert!(begin.elapsed() < Duration::from_secs(60), "frame {number} never came");
                std::thread::yield_now();
            }
        });
        let mut number = 0;
        while number < FRAMES {
            while number < FRAMES && number < arrived.load(Ordering::Acquire) + ON_THE_WAY {
                let length = length_of(number);
                let Some(buffer) = sender.frame() else {
                    break;
                };
                buffer[..HEADERS].copy_from_slice(&headers[length]);
                for (place, byte) in buffer[HEADERS..].iter_mut().zip(content(number, length)) {
                    *place = byte;
                }
                sender.commit(length);
                number += 1;
            }
            sender.flush();
            std::thread::yield_now();
        }
        while sender.is_busy() {
            sender.flush();
        }
    });
    assert_eq!(receiver.counters().received_frames, FRAMES);
    assert_eq!(sender.counters().transmit_dropped, 0);
    assert_eq!(receiver.counters().receive_invalid, 0);
}

#[test]
fn one_can_sleep_on_the_descriptors_after_an_empty_receive() {
    let mut pair = Pair::new(Options::default());
    let frame = pair.headers(60);
    let wait = |link: &XdpLink, timeout_ms: i64| {
        let mut set: Vec<PollFd<'_>> = link
            .descriptors()
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
            .collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout_ms * 1_000_000 };
        poll(&mut set, Some(&timeout)).unwrap()
    };
    for count in [1, 3, 100] {
        assert_eq!(pair.receiver.receive(64, |_| ()), 0);
        assert_eq!(wait(&pair.receiver, 20), 0, "nothing has come");
        for _ in 0..count {
            pair.put(&frame);
        }
        pair.sender.flush();
        assert_eq!(wait(&pair.receiver, 900), 1);
        let mut received = 0;
        loop {
            let now = pair.receiver.receive(64, |_| ());
            if now == 0 {
                break;
            }
            received += now;
        }
        assert_eq!(received, count);
    }
}

#[test]
fn a_kick_that_is_underway_is_asked_for_again_only_for_new_frames() {
    let mut pair = Pair::new(Options::default());
    let frame = pair.headers(60);
    for underway in [false, true] {
        assert!(pair.sender.post(underway).is_none(), "there is nothing to take");
    }
    for kicks in [2, 4] {
        pair.put(&frame);
        assert!(pair.sender.post(true).is_some(), "a frame that is new");
        for _ in 0..3 {
            assert!(pair.sender.post(true).is_none(), "whoever kicks takes it");
        }
        let Some(socket) = pair.sender.post(false) else {
            panic!("nobody kicks, and the frame is still there");
        };
        kick(socket).unwrap();
        assert_eq!(pair.sender.counters().kicks, kicks);
        assert!(pair.sender.post(false).is_none(), "it was taken");
    }
}

#[test]
fn a_device_that_takes_nothing_is_tried_once_for_each_look() {
    /// More than veth's ring holds.
    const FRAMES: u64 = 512;
    const CPU: usize = 0;
    let mut pair = Pair::new(Options {
        tx_frames: 1024,
        receive_offload: ReceiveOffload::Packets,
        ..Options::default()
    });
    pair.lab.client.command("tc", &["qdisc", "replace", "dev", INTERFACE, "root", "pfifo"]);
    if !pair.lab.server.within(|| pair.far.receive_on(&[CPU])) {
        assert!(!napis_have_threads(), "this kernel has threads for each NAPI");
        return;
    }
    let frame = pair.headers(60);

    // Nobody empties the device's queue as long as this thread runs.
    let mut cpu = CpuSet::new();
    cpu.set(CPU);
    sched_setaffinity(None, &cpu).unwrap();
    schedule(libc::SCHED_FIFO, 1);
    for _ in 0..FRAMES {
        pair.put(&frame);
        pair.sender.flush();
    }
    assert!(pair.sender.is_busy());
    let refusals = pair.sender.counters().transmit_again;
    assert_eq!(refusals, 1, "refusals while nothing changed");
    for looks in 1..=3 {
        pair.sender.receive(64, |_| ());
        pair.sender.flush();
        pair.sender.flush();
        assert_eq!(pair.sender.counters().transmit_again, refusals + looks);
    }
    pair.sender.retry();
    pair.sender.flush();
    assert_eq!(pair.sender.counters().transmit_again, refusals + 4);
    schedule(libc::SCHED_OTHER, 0);

    let begin = Instant::now();
    let mut received = 0;
    while received < FRAMES && begin.elapsed() < Duration::from_secs(5) {
        pair.sender.receive(64, |_| ());
        pair.sender.flush();
        std::thread::sleep(Duration::from_millis(1));
        received += pair.receiver.receive(256, |_| ()) as u64;
    }
    assert_eq!(received, FRAMES);
}

/// How the kernel shares the processor between this thread and others.
fn schedule(policy: i32, priority: i32) {
    let parameter = libc::sched_param { sched_priority: priority };
    // SAFETY: `parameter` is alive; the kernel only reads it.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const parameter) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn one_call_sends_a_whole_ring_where_the_kernel_allows() {
    let mut pair = Pair::new(Options { tx_frames: 256, ..Options::default() });
    // With a queueing discipline a full veth refuses frames instead of dropping them.
    pair.lab.client.command("tc", &["qdisc", "replace", "dev", INTERFACE, "root", "pfifo"]);
    let frame = pair.headers(60);
    for _ in 0..256 {
        pair.put(&frame);
    }
    let before = pair.sender.counters().kicks;
    let begin = Instant::now();
    pair.sender.flush();
    let kicks = pair.sender.counters().kicks - before;
    while pair.sender.is_busy() && begin.elapsed() < Duration::from_secs(1) {
        pair.sender.flush();
    }
    assert!(!pair.sender.is_busy());
    let mut received = 0;
    while received < 256 && begin.elapsed() < Duration::from_secs(2) {
        received += pair.receiver.receive(64, |_| ());
    }
    assert_eq!(received, 256);
    let release = rustix::system::uname();
    let mut numbers =
        release.release().to_str().unwrap().split('.').map(|part| part.parse().unwrap_or(0_u32));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= (6, 17) {
        assert!(kicks <= 2, "XDP_MAX_TX_SKB_BUDGET has no effect: {kicks} calls");
    } else {
        assert!(kicks >= 8, "{kicks}");
    }
}

//! Two processes share one queue's pool. One of them is killed or stopped again and again, at any moment; the other never notices.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use overfly_broker::Client;
use overfly_lab::{Broker, CLIENT, INTERFACE, Lab, SERVER};
use overfly_link::Link;
use overfly_link::xdp::XdpLink;
use overfly_steer::{Attachment, Options, Protocol};
use overfly_wire::{FrameSink, MacAddr, ethernet, ipv4, tcp};
use rustix::process::{Pid, Signal, kill_process};

const SERVICE: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER), 8080);
const OPTIONS: Options = Options {
    queues: None,
    busy_poll: false,
    force_copy: false,
    stacks: 4,
    rx_frames: 2048,
    rx_ring: 256,
    tx_frames: 128,
    flows: 65_536,
    min_free_frames: 0,
    heed_firewall: true,
    judge_senders: true,
    segment_offload: true,
    receive_offload: overfly_steer::ReceiveOffload::Packets,
    checksum_offload: overfly_steer::ChecksumOffload::Off,
    huge_pages: overfly_link::xdp::HugePages::No,
};
const LENGTH: usize = 80;
/// Where a reflecting process writes its stack's number.
const MARK: usize = 60;
/// Where it writes how often it took the turn to fill from a process that did not run.
const TAKEN_OVER: usize = 61;
const KILLS: u32 = 40;
const STOPS: u32 = 300;

/// A process that sends every frame back with addresses and ports exchanged, and its stack's number in it.
#[test]
fn role() {
    let Ok(environment) = std::env::var("OVERFLY_TEST_REFLECT") else {
        return;
    };
    let mut client = Client::connect(&environment).unwrap();
    let mut link = XdpLink::open(client.open_stack().unwrap().into_xdp().unwrap()).unwrap();
    client.listen(Protocol::Tcp, SERVICE, true).unwrap();
    println!("\nstack {}", link.stack());
    std::io::stdout().flush().unwrap();
    let stack = link.stack() as u8;
    let mut frames = vec![[0_u8; LENGTH]; std::env::var("OVERFLY_TEST_BATCH").unwrap().parse().unwrap()];
    loop {
        let mut count = 0;
        link.receive(frames.len(), |frame| {
            if frame.len() == LENGTH {
                frames[count].copy_from_slice(frame);
                count += 1;
            }
        });
        for frame in &mut frames[..count] {
            for (first, second, length) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
                let (low, high) = frame.split_at_mut(second);
                low[first..first + length].swap_with_slice(&mut high[..length]);
            }
            frame[MARK] = stack;
            frame[TAKEN_OVER] = link.counters().fill_taken_over as u8;
            if let Some(buffer) = link.frame() {
                buffer[..LENGTH].copy_from_slice(frame);
                link.commit(LENGTH);
            }
        }
        link.flush();
        if count == 0 {
            std::thread::yield_now();
        }
    }
}

struct Reflector(Child);

impl Reflector {
    /// `batch` frames are received, and given back, at once.
    fn start(lab: &Lab, broker: &Broker, batch: usize) -> (Reflector, u8) {
        let mut child = lab.server.within(|| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "role", "--nocapture", "--test-threads=1"])
                .env("OVERFLY_TEST_REFLECT", broker.environment())
                .env("OVERFLY_TEST_BATCH", batch.to_string())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        });
        let output = BufReader::new(child.stdout.take().unwrap());
        let stack = output
            .lines()
            .find_map(|line| line.unwrap().strip_prefix("stack ").map(|stack| stack.parse().unwrap()));
        (Reflector(child), stack.expect("the process ended"))
    }
}

impl Reflector {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Reflector {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn request(source_port: u16, from: MacAddr, to: MacAddr) -> [u8; LENGTH] {
    let mut frame = [0; LENGTH];
    ethernet::Header { destination: to, source: from, ethertype: ethernet::ETHERTYPE_IPV4 }.emit(&mut frame);
    ipv4::Header {
        source: CLIENT,
        destination: SERVER,
        protocol: ipv4::PROTOCOL_TCP,
        ttl: 64,
        tos: 0,
        identification: 0,
        dont_fragment: true,
        payload_len: (LENGTH - 34) as u16,
    }
    .emit(&mut frame[14..]);
    tcp::Header {
        source_port,
        destination_port: SERVICE.port(),
        sequence: 1,
        acknowledgment: 0,
        flags: tcp::Flags::SYN,
        window: 1,
        options: tcp::Options::default(),
    }
    .emit(&mut frame[34..]);
    frame
}

/// Random numbers, from a seed that is printed.
fn random() -> impl FnMut() -> u64 {
    let mut numbers = overfly_testing::Random(overfly_testing::fresh_seed());
    move || numbers.next()
}

/// Every frame is back when all stacks have ended. The kernel keeps one or the other in its own hands.
fn no_frame_is_lost(broker: &Broker, rx_frames: u32, ended: u64) {
    let begin = Instant::now();
    while broker.attachment().open_stacks() > 0 || broker.counters().stacks_ended < ended {
        assert!(begin.elapsed() < Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(broker.counters().undoing_failed, 0);
    let begin = Instant::now();
    loop {
        let free: Vec<u32> = broker.attachment().free_frames().collect();
        if free.iter().all(|&free| (rx_frames - 2..=rx_frames).contains(&free)) {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(2), "{free:?} {:?}", broker.attachment().reclaimed());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(broker.attachment().reclaimed().lost_frames, 0);
}

#[test]
fn a_process_that_shares_the_pool_can_be_killed_at_any_moment() {
    let mut random = random();
    let lab = Lab::new(1);
    let broker =
        lab.server.within(|| Broker::start(Attachment::attach(INTERFACE, OPTIONS).unwrap()).unwrap());
    let mut generator = lab.client.within(|| Attachment::attach(INTERFACE, Options::default()).unwrap());
    let sockets = lab.client.within(|| generator.add_stack().unwrap());
    generator.claim_ports(Protocol::Tcp, CLIENT.into(), 0..=u16::MAX, sockets.stack, 1).unwrap();
    let (here, there) = (generator.interface().mac, broker.attachment().interface().mac);
    let mut link = XdpLink::open(sockets).unwrap();
    // The kernel has to know the peer, whose frames are none of a kernel's.
    broker.attachment().route(CLIENT.into()).unwrap();

    let (steady, steady_stack) = Reflector::start(&lab, &broker, 64);
    let (stop, answers) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 64]);
    let longest_pause = std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
            let mut port = 0_u16;
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..16 {
                    port = port.wrapping_add(1);
                    if let Some(buffer) = link.frame() {
                        buffer[..LENGTH].copy_from_slice(&request(port, here, there));
                        link.commit(LENGTH);
                    }
                }
                link.flush();
                let mut steady_answered = false;
                link.receive(64, |frame| {
                    let stack = frame[MARK];
                    answers[usize::from(stack % 64)].fetch_add(1, Ordering::Relaxed);
                    steady_answered |= stack == steady_stack;
                });
                if steady_answered {
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                }
                std::thread::sleep(Duration::from_micros(20));
            }
            longest.max(last.elapsed())
        });
        for round in 0..KILLS {
            let (victim, stack) = Reflector::start(&lab, &broker, 64);
            let before = answers[usize::from(stack)].load(Ordering::Relaxed);
            let begin = Instant::now();
            while answers[usize::from(stack)].load(Ordering::Relaxed) == before {
                assert!(begin.elapsed() < Duration::from_secs(5), "{round}: a new stack gets frames");
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_micros(random() % 20_000));
            drop(victim);
        }
        stop.store(true, Ordering::Relaxed);
        traffic.join().unwrap()
    });
    println!(
        "longest pause {longest_pause:?}, answers {}",
        answers[usize::from(steady_stack)].load(Ordering::Relaxed)
    );
    assert!(longest_pause < Duration::from_secs(2), "{longest_pause:?}");
    drop(steady);
    no_frame_is_lost(&broker, OPTIONS.rx_frames, u64::from(KILLS) + 1);
}

/// While a process is stopped, the other receives more frames than there are: so it gives them back, whatever the stopped one
/// was at. When that goes on nothing is corrupted.
#[test]
fn a_process_that_shares_the_pool_can_be_stopped_at_any_moment() {
    const FRAMES: u32 = 512;
    let mut random = random();
    let lab = Lab::new(1);
    let options = Options { rx_frames: FRAMES, rx_ring: 64, ..OPTIONS };
    let broker =
        lab.server.within(|| Broker::start(Attachment::attach(INTERFACE, options).unwrap()).unwrap());
    let mut generator = lab.client.within(|| Attachment::attach(INTERFACE, Options::default()).unwrap());
    let sockets = lab.client.within(|| generator.add_stack().unwrap());
    generator.claim_ports(Protocol::Tcp, CLIENT.into(), 0..=u16::MAX, sockets.stack, 1).unwrap();
    let (here, there) = (generator.interface().mac, broker.attachment().interface().mac);
    let mut link = XdpLink::open(sockets).unwrap();
    // The kernel has to know the peer, whose frames are none of a kernel's.
    broker.attachment().route(CLIENT.into()).unwrap();

    let (steady, steady_stack) = Reflector::start(&lab, &broker, 8);
    // It gives back each frame by itself, so that it is at it as often as can be.
    let (victim, victim_stack) = Reflector::start(&lab, &broker, 1);
    let (stop, taken_over) = (AtomicBool::new(false), AtomicU64::new(0));
    let answers = [const { AtomicU64::new(0) }; 64];
    let answered = |stack: u8| answers[usize::from(stack)].load(Ordering::Relaxed);
    let more_answers = |stack: u8, count: u64, what: &str| {
        let (before, begin) = (answered(stack), Instant::now());
        while answered(stack) < before + count {
            assert!(begin.elapsed() < Duration::from_secs(10), "{what}");
            std::thread::sleep(Duration::from_micros(200));
        }
    };
    std::thread::scope(|scope| {
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let end = Stop(&stop);
        let (answers, taken_over, stop) = (&answers, &taken_over, &stop);
        scope.spawn(move || {
            let mut port = 0_u16;
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..16 {
                    port = port.wrapping_add(1);
                    if let Some(buffer) = link.frame() {
                        buffer[..LENGTH].copy_from_slice(&request(port, here, there));
                        link.commit(LENGTH);
                    }
                }
                link.flush();
                link.receive(64, |frame| {
                    answers[usize::from(frame[MARK] % 64)].fetch_add(1, Ordering::Relaxed);
                    if frame[MARK] == steady_stack {
                        taken_over.store(u64::from(frame[TAKEN_OVER]), Ordering::Relaxed);
                    }
                });
                std::thread::sleep(Duration::from_micros(20));
            }
        });
        for round in 0..STOPS {
            more_answers(victim_stack, 1, &format!("{round}: the process goes on"));
            std::thread::sleep(Duration::from_micros(random() % 3_000));
            victim.signal(Signal::STOP);
            more_answers(steady_stack, u64::from(FRAMES) + 64, &format!("{round}: the other goes on"));
            victim.signal(Signal::CONT);
        }
        drop(end);
    });
    println!("turns taken over: {}", taken_over.into_inner());
    drop((steady, victim));
    no_frame_is_lost(&broker, FRAMES, 2);
}

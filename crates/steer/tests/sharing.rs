//! Two processes share one queue's pool. One of them is killed again and again, at any moment; the other never notices.

mod lab;

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lab::{CLIENT, INTERFACE, Lab, SERVER};
use overfly_link::broker::Client;
use overfly_link::xdp::XdpLink;
use overfly_steer::{Attachment, Broker, Options, Protocol};
use overfly_wire::{FrameSink, MacAddr, ethernet, ipv4, tcp};

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
    huge_pages: overfly_link::xdp::HugePages::No,
};
const LENGTH: usize = 80;
/// Where a reflecting process writes its stack's number.
const MARK: usize = 60;
const KILLS: u32 = 40;

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
    let mut frames = vec![[0_u8; LENGTH]; 64];
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
    fn start(lab: &Lab, broker: &Broker) -> (Reflector, u8) {
        let mut child = lab.server.within(|| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "role", "--nocapture", "--test-threads=1"])
                .env("OVERFLY_TEST_REFLECT", broker.environment())
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

#[test]
fn a_process_that_shares_the_pool_can_be_killed_at_any_moment() {
    let seed = std::env::var("OVERFLY_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| u64::from(std::process::id()) << 20 | 1);
    println!("OVERFLY_SEED={seed}");
    let mut state = seed;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let lab = Lab::new(1);
    let broker =
        lab.server.within(|| Broker::start(Attachment::attach(INTERFACE, OPTIONS).unwrap()).unwrap());
    let mut generator = lab.client.within(|| Attachment::attach(INTERFACE, Options::default()).unwrap());
    let sockets = lab.client.within(|| generator.add_stack().unwrap());
    generator.claim_ports(Protocol::Tcp, CLIENT.into(), 0..=u16::MAX, sockets.stack, 1).unwrap();
    let (here, there) = (generator.interface().mac, broker.attachment().interface().mac);
    let mut link = XdpLink::open(sockets).unwrap();

    let (steady, steady_stack) = Reflector::start(&lab, &broker);
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
            let (victim, stack) = Reflector::start(&lab, &broker);
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
    let begin = Instant::now();
    while broker.attachment().open_stacks() > 0 || broker.counters().stacks_ended <= u64::from(KILLS) {
        assert!(begin.elapsed() < Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(broker.counters().undoing_failed, 0);
    // Not one frame was lost in all of it. The kernel keeps one or the other in its own hands.
    let begin = Instant::now();
    loop {
        let free: Vec<u32> = broker.attachment().free_frames().collect();
        if free.iter().all(|&free| (OPTIONS.rx_frames - 2..=OPTIONS.rx_frames).contains(&free)) {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(2), "{free:?} {:?}", broker.attachment().reclaimed());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(broker.attachment().reclaimed().lost_frames, 0);
}

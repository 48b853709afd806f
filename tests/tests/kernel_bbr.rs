//! BBR of the engine and of the kernel as senders over one path: a link of 20 Mb/s in this process, with a queue, a delay and
//! losses, whose other end is a kernel's TCP (see `kernel_peers.rs`). What is asserted leaves room for a busy machine; the table
//! that it prints stands in docs/tcp.md.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use overfly_bench::lab::{CLIENT, Lab, SERVER};
use overfly_engine::{Algorithm, Config, Engine, Event, FlowId, Owner};
use overfly_tests::Random;
use overfly_tests::tap::Tap;
use overfly_wire::FrameSink;

const RATE_BPS: u64 = 20_000_000;
const PORT: u16 = 80;
const WARM_UP: Duration = Duration::from_secs(2);
const MEASURED: Duration = Duration::from_secs(4);
const SHALLOW: u64 = 15_140;
const DEEP: u64 = 500_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Kernel,
    Engine,
}

/// Losses in per mille, of data; one way's delay; bytes that wait at most.
#[derive(Clone, Copy, Debug)]
struct Path {
    loss: u64,
    delay: Duration,
    queue: u64,
}

/// One direction.
struct Way {
    random: Random,
    path: Path,
    /// It carries the data: it has a rate, and loses.
    is_narrow: bool,
    busy_until: Instant,
    flying: VecDeque<(Instant, Vec<u8>)>,
}

impl Way {
    fn new(seed: u64, path: Path, is_narrow: bool) -> Self {
        let busy_until = Instant::now();
        Self { random: Random(seed), path, is_narrow, busy_until, flying: VecDeque::new() }
    }

    fn take(&mut self, now: Instant, frame: &[u8]) {
        if self.is_narrow {
            let waiting =
                self.busy_until.saturating_duration_since(now).as_micros() as u64 * RATE_BPS / 8_000_000;
            if waiting + frame.len() as u64 > self.path.queue {
                return;
            }
            let time = Duration::from_nanos(frame.len() as u64 * 8_000_000_000 / RATE_BPS);
            self.busy_until = self.busy_until.max(now) + time;
            if frame.len() > 200 && self.random.below(1000) < self.path.loss {
                return;
            }
        }
        self.flying.push_back((self.busy_until.max(now) + self.path.delay, frame.to_vec()));
    }

    fn due(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.flying.pop_front_if(|(at, _)| *at <= now).map(|(_, frame)| frame)
    }
}

#[derive(Default)]
struct End {
    received: u64,
    incoming: Vec<FlowId>,
}

impl Owner for End {
    fn event(&mut self, flow: FlowId, event: Event) {
        match event {
            Event::Incoming { .. } => self.incoming.push(flow),
            Event::Failed(failure) => panic!("{flow:?} failed: {failure:?}"),
            _ => {}
        }
    }

    fn deliver(&mut self, _flow: FlowId, data: &[u8]) -> usize {
        self.received += data.len() as u64;
        data.len()
    }

    fn fill(&mut self, _flow: FlowId, _offset: u64, buffer: &mut [u8]) {
        buffer.fill(b'x');
    }
}

struct Outbox {
    frame: Vec<u8>,
    frames: VecDeque<Vec<u8>>,
}

impl FrameSink for Outbox {
    fn frame(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.frame[..])
    }

    fn commit(&mut self, length: usize) {
        self.frames.push_back(self.frame[..length].to_vec());
    }
}

/// The engine's end, and the link; Mb/s of payload that the receiver got. `received`: by the kernel.
fn drive(mut tap: Tap, sender: Sender, path: Path, seed: u64, received: &AtomicU64) -> f64 {
    let mut config = Config::new(tap.mac, SERVER, 16);
    config.alone = true;
    config.congestion = Algorithm::Bbr;
    config.receive_window = 4 << 20;
    config.initial_receive_window = 4 << 20;
    let mut engine = Engine::new(config).expect("a valid configuration");
    engine.listen(SocketAddr::new(SERVER.into(), PORT), 4).expect("listen");
    let mut end = End::default();
    let begin = Instant::now();
    let stamp =
        |at: Instant| overfly_engine::Instant::from_micros(1_000_000 + (at - begin).as_micros() as u64);
    if sender == Sender::Engine {
        let remote = SocketAddr::new(CLIENT.into(), PORT);
        let flow =
            engine.connect(stamp(begin), SocketAddr::new(SERVER.into(), 10_000), remote).expect("connect");
        engine.send(flow, 1 << 30);
    }
    let mut inward = Way::new(seed ^ 1, path, sender == Sender::Kernel);
    let mut outward = Way::new(seed ^ 2, path, sender == Sender::Engine);
    let mut outbox = Outbox { frame: vec![0; 2048], frames: VecDeque::new() };
    let mut buffer = vec![0; 65_536];
    let mut warm = None;
    loop {
        let now = Instant::now();
        while let Some(frame) = tap.read(&mut buffer) {
            inward.take(now, frame);
        }
        while let Some(frame) = inward.due(now) {
            engine.receive(stamp(now), &frame, &mut end);
        }
        for flow in end.incoming.drain(..) {
            engine.accepted(flow);
        }
        engine.advance(stamp(now), &mut end);
        engine.transmit(stamp(now), &mut end, &mut outbox);
        for frame in outbox.frames.drain(..) {
            outward.take(now, &frame);
        }
        while let Some(frame) = outward.due(now) {
            match tap.write(&frame) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("write to the tap: {error}"),
            }
        }
        let bytes = match sender {
            Sender::Kernel => end.received,
            Sender::Engine => received.load(Ordering::Relaxed),
        };
        match warm {
            None if begin.elapsed() >= WARM_UP => warm = Some((now, bytes)),
            Some((since, before)) if now - since >= MEASURED => {
                return (bytes - before) as f64 * 8.0 / (now - since).as_secs_f64() / 1e6;
            }
            _ => {}
        }
        let at = |front: Option<&(Instant, Vec<u8>)>| front.map(|&(at, _)| at);
        let deadline = engine
            .next_deadline()
            .map(|at| begin + Duration::from_micros(at.as_micros().saturating_sub(1_000_000)));
        let ways = [at(inward.flying.front()), at(outward.flying.front()), deadline];
        let wait = ways.into_iter().flatten().map(|at| at.saturating_duration_since(now)).min();
        tap.wait(wait.unwrap_or(Duration::from_millis(5)).min(Duration::from_millis(5)));
    }
}

/// Mb/s of payload.
fn goodput(sender: Sender, path: Path, seed: u64) -> f64 {
    let lab = Lab::as_found("overfly").expect("a lab");
    let tap = Tap::new(&lab);
    let (received, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let listener = lab
        .within("client", || TcpListener::bind(SocketAddr::new(CLIENT.into(), PORT)))
        .expect("enter the client")
        .expect("bind");
    listener.set_nonblocking(true).expect("a listener that can be asked");
    std::thread::scope(|scope| {
        let engine = scope.spawn(|| {
            let figure = drive(tap, sender, path, seed, &received);
            over.store(true, Ordering::Relaxed);
            figure
        });
        let mut buffer = vec![0; 1 << 16];
        let patience = Some(Duration::from_millis(100));
        match sender {
            Sender::Kernel => {
                let connect = || TcpStream::connect_timeout(&SocketAddr::new(SERVER.into(), PORT), WARM_UP);
                let mut stream = lab.within("client", connect).expect("enter the client").expect("connect");
                rustix::net::sockopt::set_tcp_congestion(&stream, "bbr").expect("the kernel's BBR");
                stream.set_write_timeout(patience).expect("a timeout");
                while !over.load(Ordering::Relaxed) {
                    let _ = stream.write(&buffer);
                }
            }
            Sender::Engine => {
                let mut accepted = None;
                while !over.load(Ordering::Relaxed) {
                    let stream = match &mut accepted {
                        Some(stream) => stream,
                        None => {
                            std::thread::sleep(Duration::from_millis(1));
                            let Ok((stream, _)) = listener.accept() else { continue };
                            stream.set_read_timeout(patience).expect("a timeout");
                            accepted.insert(stream)
                        }
                    };
                    let bytes = stream.read(&mut buffer).unwrap_or(0);
                    received.fetch_add(bytes as u64, Ordering::Relaxed);
                }
            }
        }
        engine.join().expect("the engine's side")
    })
}

#[test]
fn bbr_brings_what_the_kernels_brings_over_a_lossy_path() {
    let allowed = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    if !allowed.is_ok_and(|names| names.split_whitespace().any(|name| name == "bbr")) {
        println!("this kernel has no BBR");
        return;
    }
    println!("| loss | one way | queue | the kernel's | ours |\n|---:|---:|---|---:|---:|");
    let mut low = Vec::new();
    for (loss, delay_ms, queue) in [
        (0, 20, SHALLOW),
        (0, 20, DEEP),
        (10, 1, DEEP),
        (10, 20, SHALLOW),
        (10, 20, DEEP),
        (10, 100, DEEP),
        (50, 20, DEEP),
    ] {
        let path = Path { loss, delay: Duration::from_millis(delay_ms), queue };
        let [kernel, ours] = [Sender::Kernel, Sender::Engine]
            .map(|sender| goodput(sender, path, 20_261_124 + loss + delay_ms));
        let name = if queue == DEEP { "deep" } else { "shallow" };
        println!("| {} % | {delay_ms} ms | {name} | {kernel:.2} | {ours:.2} |", loss as f64 / 10.0);
        // The third version answers what the first ignores: losses beyond a queue that is full already, and many of them.
        if loss <= 10 && (queue == DEEP || loss == 0) && ours < kernel * 0.6 {
            low.push((path, kernel, ours));
        }
    }
    assert!(low.is_empty(), "{low:?}");
}

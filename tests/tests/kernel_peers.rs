//! The engine against the kernel's TCP, both ways, over a link that loses, reorders, doubles and damages frames: every
//! byte of every connection is compared.
//!
//! The kernel is in one network namespace of a lab. A macvtap device on the other end of its veth pair gives this process
//! the frames, through a file; they pass a relay that does harm to some, and the engine. Namespaces and devices go with
//! this process's descriptors, also after a panic.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use overfly_bench::lab::{CLIENT, Lab, SERVER};
use overfly_engine::{Config, Engine, Event, FlowId, Owner};
use overfly_tests::Random;
use overfly_tests::tap::{CLIENT6, SERVER6, Tap};
use overfly_wire::FrameSink;

/// So many threads connect from the kernel, and so many connections from the engine are open at once.
const AT_ONCE: u32 = 200;
/// Most bytes that one end sends.
const MOST_BYTES: u64 = 60_000;
const ENGINE_PORT: u16 = 80;
const KERNEL_PORT: u16 = 81;
const DEADLINE: Duration = Duration::from_secs(55);
/// How long one call of the kernel's ends may wait: many times the backoff that the losses bring.
const PATIENCE: Duration = Duration::from_secs(25);

// --- what a connection carries ---------------------------------------------------------------------

/// A connection's plan follows from its number: the connecting end sends a header and `up` bytes, the other end `down`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    id: u32,
    up: u64,
    down: u64,
}

const HEADER: u64 = 8;

impl Plan {
    fn new(id: u32) -> Plan {
        let mut random = Random(u64::from(id));
        let mut size = || {
            // Small and large ones alike often.
            let bits = random.next() % 16;
            (random.next() % (2 << bits)).min(MOST_BYTES)
        };
        Plan { id, up: HEADER + size(), down: size() }
    }

    fn header(self) -> [u8; HEADER as usize] {
        (u64::from(self.id) | 0x00f7_0f7e << 32).to_be_bytes()
    }

    fn read_header(header: [u8; HEADER as usize]) -> Plan {
        let value = u64::from_be_bytes(header);
        assert_eq!(value >> 32, 0x00f7_0f7e, "the stream begins with something else");
        Plan::new(value as u32)
    }

    /// The byte at `offset` of the stream up, or down.
    fn byte(self, up: bool, offset: u64) -> u8 {
        if up && offset < HEADER {
            return self.header()[offset as usize];
        }
        let mixed =
            (offset ^ u64::from(self.id) << 20 ^ u64::from(up) << 60).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 40) as u8
    }

    fn write(self, up: bool, offset: u64, buffer: &mut [u8]) {
        for (index, byte) in buffer.iter_mut().enumerate() {
            *byte = self.byte(up, offset + index as u64);
        }
    }

    /// `data` is what stands at `offset`.
    fn check(self, up: bool, offset: u64, data: &[u8]) {
        let wrong =
            data.iter().enumerate().find(|(index, byte)| **byte != self.byte(up, offset + *index as u64));
        assert_eq!(wrong, None, "connection {}: at {offset}, {} bytes, up {up}", self.id, data.len());
    }
}

// --- the kernel's ends --------------------------------------------------------------------------------

fn kernel_sends(stream: &mut TcpStream, plan: Plan, up: bool) -> io::Result<()> {
    let mut data = vec![0; if up { plan.up } else { plan.down } as usize];
    plan.write(up, 0, &mut data);
    stream.write_all(&data)?;
    stream.shutdown(Shutdown::Write)
}

fn kernel_receives(stream: &mut TcpStream, plan: Plan, up: bool, known: usize) -> io::Result<()> {
    let mut data = Vec::new();
    stream.read_to_end(&mut data)?;
    plan.check(up, known as u64, &data);
    let whole = if up { plan.up } else { plan.down };
    assert_eq!((known + data.len()) as u64, whole, "connection {}: up {up}", plan.id);
    Ok(())
}

fn patient(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

fn kernel_connects(plan: Plan, address: IpAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, ENGINE_PORT), PATIENCE)?;
    patient(&stream)?;
    kernel_sends(&mut stream, plan, true)?;
    kernel_receives(&mut stream, plan, false, 0)
}

fn kernel_accepts(mut stream: TcpStream) -> io::Result<()> {
    patient(&stream)?;
    let mut header = [0; HEADER as usize];
    stream.read_exact(&mut header)?;
    let plan = Plan::read_header(header);
    kernel_receives(&mut stream, plan, true, header.len())?;
    kernel_sends(&mut stream, plan, false)
}

// --- the engine's ends ----------------------------------------------------------------------------------

/// One connection as the engine's owner sees it.
#[derive(Debug)]
struct Connection {
    /// Known from the beginning, or from the header.
    plan: Option<Plan>,
    /// The engine opened it.
    active: bool,
    received: u64,
    header: [u8; HEADER as usize],
    promised: bool,
    acknowledged: u64,
    remote_closed: bool,
    closed: bool,
}

impl Connection {
    fn new(plan: Option<Plan>) -> Self {
        Self {
            active: plan.is_some(),
            plan,
            received: 0,
            header: [0; HEADER as usize],
            promised: false,
            acknowledged: 0,
            remote_closed: false,
            closed: false,
        }
    }

    fn take(&mut self, data: &[u8]) {
        let mut data = data;
        while self.plan.is_none() && !data.is_empty() {
            self.header[self.received as usize] = data[0];
            self.received += 1;
            data = &data[1..];
            if self.received == HEADER {
                self.plan = Some(Plan::read_header(self.header));
            }
        }
        if let Some(plan) = self.plan {
            plan.check(!self.active, self.received, data);
            self.received += data.len() as u64;
        }
    }

    fn to_send(&self) -> Option<u64> {
        self.plan.map(|plan| if self.active { plan.up } else { plan.down })
    }

    fn to_receive(&self) -> Option<u64> {
        self.plan.map(|plan| if self.active { plan.down } else { plan.up })
    }
}

#[derive(Default)]
struct Ends {
    connections: BTreeMap<FlowId, Connection>,
    /// Connections to look at after a callback.
    touched: BTreeSet<FlowId>,
    finished: u32,
}

impl Owner for Ends {
    fn event(&mut self, flow: FlowId, event: Event) {
        self.touched.insert(flow);
        if matches!(event, Event::Incoming { .. }) {
            self.connections.insert(flow, Connection::new(None));
            return;
        }
        let connection = self.connections.get_mut(&flow).expect("a connection of ours");
        match event {
            Event::Acknowledged { offset } => connection.acknowledged = offset,
            Event::RemoteClosed => connection.remote_closed = true,
            Event::Failed(failure) => panic!("{connection:?} failed: {failure:?}"),
            Event::Released => {
                let connection = self.connections.remove(&flow).expect("a connection of ours");
                assert_eq!(Some(connection.received), connection.to_receive(), "{connection:?}");
                assert_eq!(Some(connection.acknowledged), connection.to_send(), "{connection:?}");
                self.finished += 1;
            }
            _ => {}
        }
    }

    fn deliver(&mut self, flow: FlowId, data: &[u8]) -> usize {
        self.touched.insert(flow);
        self.connections.get_mut(&flow).expect("a connection of ours").take(data);
        data.len()
    }

    fn fill(&mut self, flow: FlowId, offset: u64, buffer: &mut [u8]) {
        let connection = &self.connections[&flow];
        connection.plan.expect("a plan").write(connection.active, offset, buffer);
    }
}

impl Ends {
    /// Does what the callbacks gave reason for.
    fn react(&mut self, engine: &mut Engine) {
        for flow in core::mem::take(&mut self.touched) {
            let Some(connection) = self.connections.get_mut(&flow) else { continue };
            if connection.closed {
                continue;
            }
            if !connection.active {
                engine.accepted(flow);
            }
            if let Some(bytes) = connection.to_send()
                && !connection.promised
            {
                connection.promised = true;
                engine.send(flow, bytes as usize);
                engine.shutdown(flow);
            }
            if connection.remote_closed && connection.promised {
                connection.closed = true;
                engine.close(flow);
            }
        }
    }
}

// --- the link between them ------------------------------------------------------------------------------

/// In per mille of the frames.
#[derive(Clone, Copy, Debug)]
struct Faults {
    loss: u64,
    duplication: u64,
    reordering: u64,
    corruption: u64,
}

/// Frames on their way through one direction of the relay.
struct Relay {
    random: Random,
    faults: Faults,
    /// By when they are due, with a tie breaker.
    late: BTreeMap<(Instant, u64), Vec<u8>>,
    serial: u64,
    lost: u64,
}

impl Relay {
    fn new(seed: u64, faults: Faults) -> Self {
        Self { random: Random(seed), faults, late: BTreeMap::new(), serial: 0, lost: 0 }
    }

    fn chance(&mut self, per_mille: u64) -> bool {
        self.random.next() % 1000 < per_mille
    }

    /// Takes a frame, and hands what is to arrive now to `arrive`.
    fn carry(&mut self, now: Instant, mut frame: Vec<u8>, arrive: &mut impl FnMut(&[u8])) {
        let is_tcp = match frame.get(12..14) {
            Some([0x08, 0x00]) => frame.len() > 54 && frame[23] == 6,
            Some([0x86, 0xdd]) => frame.len() > 74 && frame[20] == 6,
            _ => false,
        };
        if !is_tcp {
            arrive(&frame);
            return;
        }
        if self.chance(self.faults.loss) {
            self.lost += 1;
            return;
        }
        if self.chance(self.faults.corruption) {
            // One bit behind the Ethernet header: some sum misses it.
            let bit = self.random.next() as usize % ((frame.len() - 14) * 8);
            frame[14 + bit / 8] ^= 1 << (bit % 8);
        }
        if self.chance(self.faults.duplication) {
            arrive(&frame);
        }
        if self.chance(self.faults.reordering) {
            let wait = Duration::from_micros(200 + self.random.next() % 3000);
            self.serial += 1;
            self.late.insert((now + wait, self.serial), frame);
        } else {
            arrive(&frame);
        }
    }

    fn release(&mut self, now: Instant, arrive: &mut impl FnMut(&[u8])) {
        while let Some(entry) = self.late.first_entry() {
            if entry.key().0 > now {
                break;
            }
            arrive(&entry.remove());
        }
    }

    fn next(&self) -> Option<Instant> {
        self.late.keys().next().map(|&(at, _)| at)
    }
}

/// Frames that the engine has written.
struct Outbox {
    frame: Vec<u8>,
    frames: VecDeque<Vec<u8>>,
}

impl FrameSink for Outbox {
    fn frame(&mut self) -> Option<&mut [u8]> {
        (self.frames.len() < 256).then_some(&mut self.frame[..])
    }

    fn commit(&mut self, length: usize) {
        self.frames.push_back(self.frame[..length].to_vec());
    }
}

// --- the run ----------------------------------------------------------------------------------------------

/// Drives the engine until `done` and all of its connections are finished.
fn drive(
    mut tap: Tap,
    ends_of_link: [IpAddr; 2],
    seed: u64,
    half: u32,
    faults: Faults,
    done: impl Fn() -> bool,
    stop: &AtomicBool,
) -> Ends {
    let mut config = Config::new(tap.mac, SERVER, 16);
    config.alone = true;
    config.address6 = Some(SERVER6);
    config.max_flows = 32_768;
    config.time_wait = Duration::from_secs(1);
    let [first, second] = [Random(seed).next().to_be_bytes(), Random(!seed).next().to_be_bytes()];
    config.hash_key = *[first, second].concat().first_chunk().expect("16 bytes");
    let mut engine = Engine::new(config).expect("a valid configuration");
    engine.listen(SocketAddr::new(ends_of_link[0], ENGINE_PORT), 1024).expect("listen");
    let mut ends = Ends::default();
    let mut inward = Relay::new(seed ^ 1, faults);
    let mut outward = Relay::new(seed ^ 2, faults);
    let mut outbox = Outbox { frame: vec![0; 2048], frames: VecDeque::new() };
    let mut opened = 0;
    let mut buffer = vec![0; 65_536];
    let begin = Instant::now();
    let stamp =
        |at: Instant| overfly_engine::Instant::from_micros(1_000_000 + (at - begin).as_micros() as u64);
    loop {
        assert!(
            begin.elapsed() < DEADLINE,
            "not in time: {} finished, {:?}",
            ends.finished,
            engine.counters()
        );
        assert!(!stop.load(Ordering::Relaxed), "the kernel's ends have failed: {:?}", engine.counters());
        let now = Instant::now();
        let mut arrive = |frame: &[u8]| engine.receive(stamp(now), frame, &mut ends);
        for _ in 0..64 {
            let Some(frame) = tap.read(&mut buffer) else { break };
            inward.carry(now, frame.to_vec(), &mut arrive);
        }
        inward.release(now, &mut arrive);
        engine.advance(stamp(now), &mut ends);
        while opened < half && ends.connections.values().filter(|c| c.active).count() < AT_ONCE as usize {
            let local = SocketAddr::new(ends_of_link[0], 10_000 + (opened % 50_000) as u16);
            let remote = SocketAddr::new(ends_of_link[1], KERNEL_PORT);
            let flow = engine.connect(stamp(now), local, remote).expect("connect");
            ends.connections.insert(flow, Connection::new(Some(Plan::new(opened * 2))));
            ends.touched.insert(flow);
            opened += 1;
        }
        ends.react(&mut engine);
        let mut full = true;
        while full {
            full = !engine.transmit(stamp(now), &mut ends, &mut outbox);
            let mut leave = |frame: &[u8]| {
                match tap.write(frame) {
                    Ok(()) => {}
                    // Damaged beyond what the kernel takes, or the device's queue is full: lost.
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::InvalidInput) => {
                    }
                    Err(error) => panic!("write to the tap: {error}"),
                }
            };
            while let Some(frame) = outbox.frames.pop_front() {
                outward.carry(now, frame, &mut leave);
            }
            outward.release(now, &mut leave);
        }
        if opened == half && ends.connections.is_empty() && done() {
            println!("lost {} in, {} out; {:?}", inward.lost, outward.lost, engine.counters());
            return ends;
        }
        let deadline = engine
            .next_deadline()
            .map(|at| begin + Duration::from_micros(at.as_micros().saturating_sub(1_000_000)));
        let until = [deadline, inward.next(), outward.next()].into_iter().flatten().min();
        let wait = until.map_or(Duration::from_millis(5), |at| at.saturating_duration_since(now));
        tap.wait(wait.min(Duration::from_millis(5)));
    }
}

/// Tells the others when its thread panics.
struct Fails<'a>(&'a AtomicBool);

impl Drop for Fails<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// The engine's address and the kernel's.
const V4: [IpAddr; 2] = [IpAddr::V4(SERVER), IpAddr::V4(CLIENT)];
const V6: [IpAddr; 2] = [IpAddr::V6(SERVER6), IpAddr::V6(CLIENT6)];

/// So many connections, half of them opened by the kernel.
fn run(connections: u32, faults: Faults, ends: [IpAddr; 2]) {
    let seed = std::env::var("OVERFLY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_122);
    println!("seed {seed} (OVERFLY_SEED), {faults:?}");
    let lab = Lab::new("overfly").expect("a lab");
    let tap = Tap::new(&lab);
    let next = AtomicU32::new(0);
    let done = AtomicU32::new(0);
    let accepted = AtomicU32::new(0);
    let failed = AtomicBool::new(false);
    // A connection of the kernel's that breaks ends the run at once.
    let watch = |result: io::Result<()>, what: &str, count: &AtomicU32| match result {
        Ok(()) => {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Err(error) => {
            failed.store(true, Ordering::Relaxed);
            panic!("{what}: {error}");
        }
    };
    let half = connections / 2;
    let kernel_connects_all = || {
        while !failed.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= half {
                break;
            }
            watch(kernel_connects(Plan::new(number * 2 + 1), ends[0]), "the kernel connects", &done);
        }
    };
    let listener = lab
        .within("client", || TcpListener::bind(SocketAddr::new(ends[1], KERNEL_PORT)))
        .expect("enter the client")
        .expect("bind");
    // Past its backlog of 128 the kernel would send cookies, and reset those whose first data was lost.
    rustix::net::listen(&listener, 4096).expect("a longer backlog");
    listener.set_nonblocking(true).expect("a listener that can be asked");
    let finished = std::thread::scope(|scope| {
        let engine = scope.spawn(|| {
            let all = || done.load(Ordering::Relaxed) + accepted.load(Ordering::Relaxed) == connections;
            let _fails = Fails(&failed);
            drive(tap, ends, seed, half, faults, all, &failed)
        });
        // A socket belongs to the namespace in which it was made; the threads that use it may be anywhere.
        scope.spawn(|| {
            std::thread::scope(|inner| {
                let mut waiting = half;
                while waiting > 0 && !failed.load(Ordering::Relaxed) {
                    match listener.accept() {
                        Ok((stream, _)) => {
                            waiting -= 1;
                            inner.spawn(|| watch(kernel_accepts(stream), "the kernel accepts", &accepted));
                        }
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        Err(error) => panic!("accept: {error}"),
                    }
                }
            });
        });
        let entered = lab.within("client", || {
            std::thread::scope(|inner| {
                for _ in 0..AT_ONCE {
                    inner.spawn(kernel_connects_all);
                }
            });
        });
        entered.expect("enter the client");
        engine.join().expect("the engine's side")
    });
    assert_eq!(finished.finished, connections, "seed {seed}");
}

#[test]
fn ten_thousand_connections_with_the_kernel_over_a_bad_link() {
    run(10_000, Faults { loss: 10, duplication: 10, reordering: 20, corruption: 2 }, V4);
}

#[test]
fn connections_with_the_kernel_over_a_terrible_link() {
    run(1_000, Faults { loss: 60, duplication: 50, reordering: 100, corruption: 20 }, V4);
}

#[test]
fn connections_with_the_kernel_over_ipv6() {
    run(2_000, Faults { loss: 10, duplication: 10, reordering: 20, corruption: 2 }, V6);
}

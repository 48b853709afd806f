//! What a packet costs in the engine: both ends on one thread, each packet sent once and received once, no link between.
//!
//! `cargo bench -p overfly-engine` prints what was reached beside what is required: the median and the best of five rounds.
//! `--once NAME` does a fixed amount of work once, for `cargo xtask instructions`, which counts the instructions of
//! [`measured`].

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant as Clock;

use overfly_engine::{Config, Engine, Event, FlowId, Instant, Owner};
use overfly_wire::checksum::{Sum, Template};
use overfly_wire::{FrameSink, MacAddr};

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// What the ends are told of the link between them, and what it does.
#[derive(Clone, Copy)]
struct Link {
    mtu: u16,
    /// Takes 64 KB and unfinished checksums, and hands both over as they are (tap and memif between hosts of one machine).
    offload: bool,
    /// Loses one data frame in so many; 0 is none.
    lose_one_in: u32,
    /// Frames that it holds. A power of two.
    frames: usize,
}

const ETHERNET: Link = Link { mtu: 1500, offload: false, lose_one_in: 0, frames: 1024 };

/// Frames between the ends: a flat ring, so that the measurement has no allocation in it.
struct Wire {
    frames: Vec<u8>,
    frame_len: usize,
    lengths: Vec<usize>,
    head: usize,
    tail: usize,
    lose_one_in: u32,
    random: u32,
}

impl Wire {
    fn new(link: Link) -> Self {
        let large = link.offload || link.mtu > 1500;
        let frame_len = if large { 65_536 + 64 } else { 1536 };
        Self {
            frames: vec![0; frame_len * link.frames],
            frame_len,
            lengths: vec![0; link.frames],
            head: 0,
            tail: 0,
            lose_one_in: link.lose_one_in,
            random: 1,
        }
    }

    fn slot(&self, at: usize) -> usize {
        at & (self.lengths.len() - 1)
    }

    /// The oldest frame.
    fn next(&mut self) -> Option<&[u8]> {
        if self.tail == self.head {
            return None;
        }
        let slot = self.slot(self.tail);
        self.tail += 1;
        Some(&self.frames[slot * self.frame_len..][..self.lengths[slot]])
    }

    /// Whether the link loses a frame of `length` bytes; handshakes and acknowledgments pass.
    fn loses(&mut self, length: usize) -> bool {
        if self.lose_one_in == 0 || length < 200 {
            return false;
        }
        self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.random >> 8).is_multiple_of(self.lose_one_in)
    }
}

impl FrameSink for Wire {
    fn frame(&mut self) -> Option<&mut [u8]> {
        let slot = self.slot(self.head);
        (self.head - self.tail < self.lengths.len())
            .then(|| &mut self.frames[slot * self.frame_len..][..self.frame_len])
    }

    fn commit(&mut self, length: usize) {
        if self.loses(length) {
            return;
        }
        let slot = self.slot(self.head);
        self.lengths[slot] = length;
        self.head += 1;
    }
}

/// Counts what arrives, and sends from a template.
struct Counter {
    received: Vec<u32>,
    ready: Vec<FlowId>,
    connected: Vec<FlowId>,
    closed: Vec<FlowId>,
    released: u64,
    total: u64,
    expect: u32,
    /// What is sent; if it is empty, whatever the frame holds.
    template: Template,
    /// The template's sums are used, not only its bytes.
    sums: bool,
    /// Where delivered data is copied to; if it is empty, data is left in the frame.
    copy: Vec<u8>,
}

impl Counter {
    fn new(expect: u32) -> Self {
        Self {
            received: Vec::new(),
            ready: Vec::new(),
            connected: Vec::new(),
            closed: Vec::new(),
            released: 0,
            total: 0,
            expect,
            template: Template::new(vec![b'x'; 65_536]),
            sums: true,
            copy: Vec::new(),
        }
    }
}

impl Owner for Counter {
    fn event(&mut self, flow: FlowId, event: Event) {
        match event {
            Event::Connected | Event::Incoming { .. } => {
                if self.received.len() <= flow.index() {
                    self.received.resize(flow.index() + 1, 0);
                }
                self.received[flow.index()] = 0;
                self.connected.push(flow);
            }
            Event::RemoteClosed => self.closed.push(flow),
            Event::Released => self.released += 1,
            Event::Acknowledged { .. } | Event::Failed(_) => {}
        }
    }

    fn deliver(&mut self, flow: FlowId, data: &[u8]) -> usize {
        if !self.copy.is_empty() {
            self.copy[..data.len()].copy_from_slice(data);
            black_box(&self.copy);
        }
        self.total += data.len() as u64;
        let received = &mut self.received[flow.index()];
        *received += black_box(data).len() as u32;
        if *received >= self.expect {
            *received -= self.expect;
            self.ready.push(flow);
        }
        data.len()
    }

    fn fill(&mut self, _flow: FlowId, _offset: u64, buffer: &mut [u8]) {
        if !self.template.bytes().is_empty() {
            buffer.copy_from_slice(&self.template.bytes()[..buffer.len()]);
        }
    }

    fn fill_and_sum(&mut self, flow: FlowId, offset: u64, buffer: &mut [u8]) -> Option<Sum> {
        if self.sums && !self.template.bytes().is_empty() {
            return Some(self.template.copy_and_sum(0, buffer));
        }
        self.fill(flow, offset, buffer);
        None
    }
}

struct End {
    engine: Engine,
    owner: Counter,
    out: Wire,
}

impl End {
    fn new(address: Ipv4Addr, flows: u32, expect: u32, link: Link) -> Self {
        let mut config = Config::new(MacAddr([2, 0, 0, 0, 0, address.octets()[3]]), address, 8);
        config.max_flows = flows;
        config.max_time_wait = 1024;
        config.hash_key = [7; 16];
        config.mtu = link.mtu;
        config.checksum_offload = link.offload;
        config.partial_checksums = link.offload;
        config.segment_offload = if link.offload { 65_435 } else { 0 };
        let mut engine = Engine::new(config).expect("valid");
        for host in [SERVER, CLIENT] {
            engine.set_neighbor(host, MacAddr([2, 0, 0, 0, 0, host.octets()[3]]));
        }
        Self { engine, owner: Counter::new(expect), out: Wire::new(link) }
    }
}

/// Sends all that `from` may send; returns how many frames arrived.
fn carry(from: &mut End, to: &mut End, now: Instant) -> u64 {
    let mut carried = 0;
    loop {
        let all = from.engine.transmit(now, &mut from.owner, &mut from.out);
        while let Some(frame) = from.out.next() {
            to.engine.receive(now, frame, &mut to.owner);
            carried += 1;
        }
        if all {
            return carried;
        }
    }
}

fn remote(index: u32) -> SocketAddrV4 {
    SocketAddrV4::new(SERVER, 1 + (index / 50_000) as u16)
}

fn local(index: u32) -> SocketAddrV4 {
    SocketAddrV4::new(CLIENT, 10_000 + (index % 50_000) as u16)
}

/// What `cargo xtask instructions` counts: `work`, without what prepares it.
#[inline(never)]
fn measured(work: &mut dyn FnMut() -> u64) -> u64 {
    black_box(work())
}

/// Two ends with open flows between them.
struct Pair {
    client: End,
    server: End,
    open: Vec<FlowId>,
    next: usize,
    now: Instant,
}

impl Pair {
    /// Two ends that expect `request` and `response` bytes at a time, with room for `flows` more than are opened.
    fn new(flows: u32, request: u32, response: u32, link: Link) -> Self {
        Self {
            client: End::new(CLIENT, flows + 16, response, link),
            server: End::new(SERVER, flows + 16, request, link),
            open: Vec::with_capacity(flows as usize),
            next: 0,
            now: Instant::from_micros(1_000_000),
        }
    }

    fn open(flows: u32, request: u32, response: u32, link: Link) -> Self {
        let mut pair = Self::new(flows, request, response, link);
        for port in 0..=flows / 50_000 {
            let address = SocketAddrV4::new(SERVER, 1 + port as u16);
            pair.server.engine.listen(address, 100_000).expect("listen");
        }
        for index in 0..flows {
            pair.open
                .push(pair.client.engine.connect(pair.now, local(index), remote(index)).expect("connect"));
            if index % 256 == 255 || index + 1 == flows {
                pair.there();
                pair.back();
                pair.there();
                for flow in pair.server.owner.connected.drain(..) {
                    pair.server.engine.accepted(flow);
                }
                pair.client.owner.connected.clear();
            }
        }
        pair
    }

    fn there(&mut self) -> u64 {
        carry(&mut self.client, &mut self.server, self.now)
    }

    fn back(&mut self) -> u64 {
        carry(&mut self.server, &mut self.client, self.now)
    }

    fn pass(&mut self, micros: u64) {
        self.now = Instant::from_micros(self.now.as_micros() + micros);
        self.client.engine.advance(self.now, &mut self.client.owner);
        self.server.engine.advance(self.now, &mut self.server.owner);
    }

    /// So many requests and responses; returns packets.
    fn exchange(&mut self, exchanges: u64) -> u64 {
        let (request, response) = (self.server.owner.expect as usize, self.client.owner.expect as usize);
        let mut done = 0;
        let mut packets = 0;
        while done < exchanges {
            for _ in 0..64.min(self.open.len()) {
                self.client.engine.send(self.open[self.next], request);
                self.next = (self.next + 7919) % self.open.len();
            }
            for _ in 0..64 {
                let there = self.there();
                for flow in self.server.owner.ready.drain(..) {
                    self.server.engine.send(flow, response);
                }
                let moved = there + self.back();
                packets += moved;
                if moved == 0 {
                    break;
                }
            }
            done += self.client.owner.ready.drain(..).count() as u64;
            self.pass(20);
        }
        packets
    }

    /// The client sends so many bytes over its first flow; returns packets.
    fn bulk(&mut self, bytes: u64) -> u64 {
        let end = self.server.owner.total + bytes;
        let mut packets = 0;
        self.client.engine.send(self.open[0], bytes as usize);
        while self.server.owner.total < end {
            let moved = self.there() + self.back();
            self.server.owner.ready.clear();
            packets += moved;
            self.pass(if moved > 0 { 20 } else { 1024 });
        }
        packets
    }

    /// So many connections of one request and one response each, closed by the server; returns packets. `at_once`: the
    /// server closes with its response, and the FIN needs no packet of its own.
    fn connections(&mut self, count: u64, at_once: bool) -> u64 {
        let end = self.client.owner.released + count;
        let (request, response) = (self.server.owner.expect as usize, self.client.owner.expect as usize);
        let mut packets = 0;
        let mut answered = Vec::new();
        while self.client.owner.released < end {
            for _ in 0..64 {
                let tuple = (local(self.next as u32 % 50_000), remote(0));
                self.client.engine.connect(self.now, tuple.0, tuple.1).expect("connect");
                self.next += 1;
            }
            for _ in 0..64 {
                for flow in self.client.owner.connected.drain(..) {
                    self.client.engine.send(flow, request);
                }
                for flow in self.client.owner.closed.drain(..) {
                    self.client.engine.close(flow);
                }
                let there = self.there();
                for flow in self.server.owner.connected.drain(..) {
                    self.server.engine.accepted(flow);
                }
                for flow in self.server.owner.ready.drain(..) {
                    self.server.engine.send(flow, response);
                    answered.push(flow);
                }
                let mut back = if at_once { 0 } else { self.back() };
                for flow in answered.drain(..) {
                    self.server.engine.close(flow);
                }
                back += self.back();
                packets += there + back;
                if there + back == 0 {
                    break;
                }
            }
            self.client.owner.ready.clear();
            self.pass(100);
        }
        packets
    }

    fn lossy(&mut self, exchanges: u64) -> u64 {
        let packets = self.exchange(exchanges);
        let repeated = self.server.engine.counters().retransmits;
        assert!(repeated > packets / 200, "{repeated} of {packets} packets again: the link loses too few");
        packets
    }
}

fn connecting(response: u32) -> Pair {
    let mut pair = Pair::new(4096, 100, response, ETHERNET);
    pair.server.engine.listen(SocketAddrV4::new(SERVER, 1), 4096).expect("listen");
    pair
}

/// Rounds of `work`: seconds of each, fastest first, and packets of one.
fn rounds(mut work: impl FnMut() -> u64) -> ([f64; 5], f64) {
    let mut packets = 0;
    let mut seconds = [0; 5].map(|_| {
        let began = Clock::now();
        packets = measured(&mut work);
        began.elapsed().as_secs_f64()
    });
    seconds.sort_by(f64::total_cmp);
    (seconds, packets as f64)
}

/// One line: what was measured, its median and its best, and what the project requires.
fn report(what: &str, unit: &str, amount: f64, seconds: [f64; 5], required: &str, more: &str) {
    let (median, best) = (amount / seconds[2], amount / seconds[0]);
    let digits = if median < 100.0 { 2 } else { 0 };
    let required = if required.is_empty() { String::new() } else { format!("required {required}") };
    println!("{what:<44} {median:>8.digits$} {unit:<15} best {best:>7.digits$}  {required:<15}  {more}",);
}

fn packets_per_second(flows: u32, response: u32, exchanges: u64, required: &str) {
    exchanges_of(&mut Pair::open(flows, 100, response, ETHERNET), exchanges, required);
}

fn exchanges_of(pair: &mut Pair, exchanges: u64, required: &str) {
    let response = pair.client.owner.expect;
    let (seconds, packets) = rounds(|| pair.exchange(exchanges));
    let what = format!("{} flows, 100 B / {response} B", pair.open.len());
    let more = format!(
        "{:.0} ns a packet, {:.0} k exchanges/s, {:.1} Gb/s",
        seconds[2] * 1e9 / packets,
        exchanges as f64 / seconds[2] / 1e3,
        exchanges as f64 * f64::from(response) * 8.0 / seconds[2] / 1e9,
    );
    report(&what, "M packets/s", packets / 1e6, seconds, required, &more);
}

/// As the line before it, for an owner that only fills.
fn packets_without_sums() {
    let mut pair = Pair::open(1000, 100, 32_768, ETHERNET);
    (pair.client.owner.sums, pair.server.owner.sums) = (false, false);
    println!("the same, payload summed by the engine:");
    exchanges_of(&mut pair, 40_000, "");
}

fn connections_per_second(at_once: bool, why: &str) {
    let (mut pair, count) = (connecting(100), 100_000);
    let (seconds, packets) = rounds(|| pair.connections(count, at_once));
    let each = packets / count as f64;
    let what = format!("connections, 100 B / 100 B, {each:.1} packets");
    report(&what, "k connections/s", count as f64 / 1e3, seconds, "≥ 500", why);
}

fn bits_per_second(what: &str, link: Link, bytes: u64, required: &str) {
    let mut pair = Pair::open(1, 1 << 30, 1, link);
    // Past slow start and the tuning of the window.
    pair.bulk(100 << 20);
    let (seconds, packets) = rounds(|| pair.bulk(bytes));
    let gigabits = bytes as f64 * 8.0 / 1e9;
    pair.server.owner.copy = vec![0; 65_536];
    let (copied, _) = rounds(|| pair.bulk(bytes));
    let each = packets / bytes as f64 * 1e6;
    let more =
        format!("{each:.0} packets a MB; with a copy out of the frame {:.1} Gb/s", gigabits / copied[2]);
    report(what, "Gb/s", gigabits, seconds, required, &more);
}

/// Bytes of this process in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("proc");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("statm has seven numbers") * 4096
}

/// A million open flows: what they take, and that idle ones cost nothing. Then they exchange.
fn million() {
    const FLOWS: u32 = 1_000_000;
    let before = resident();
    let mut pair = Pair::open(FLOWS, 100, 32_768, ETHERNET);
    let grown = (resident() - before) as f64 / 2e6;
    for (name, end) in [("that opened", &pair.client), ("that accepted", &pair.server)] {
        let bytes = end.engine.memory();
        let flow = bytes as f64 / f64::from(FLOWS);
        println!(
            "1000000 idle flows at the end {name:<14} {:>8.0} MB              required ≤ 300 MB  {flow:.0} B a flow by Engine::memory()",
            bytes as f64 / 1e6
        );
    }
    println!(
        "                          the process grew by {grown:>6.0} MB an end, with the bench's own 8 B a flow"
    );
    // Timers that were stopped leave the wheel when their time comes.
    pair.pass(60_000_000);
    let began = Clock::now();
    for _ in 0..60_000 {
        pair.pass(1000);
    }
    let idle = began.elapsed().as_secs_f64();
    let silent = [&pair.client, &pair.server].iter().all(|end| end.engine.next_deadline().is_none());
    let deadline = if silent { "no deadline" } else { "a deadline at one end" };
    println!(
        "                          idle: {deadline}; a minute of 1 ms turns costs an end {:.2} ms",
        idle * 1e3 / 2.0
    );
    exchanges_of(&mut pair, 10_000, "≥ 2");
}

/// A bulk transfer over a link that loses one data frame in so many: what the hole holds up waits out of order.
fn bulk_over(lose_one_in: u32) -> u64 {
    let mut pair = Pair::open(1, 1 << 30, 1, Link { lose_one_in, ..ETHERNET });
    let packets = measured(&mut || pair.bulk(30 << 20));
    assert!(pair.server.engine.counters().out_of_order > 1000, "little was held out of order");
    packets
}

/// A name, and a fixed amount of work that returns its packets.
type Scenario = (&'static str, fn() -> u64);

/// The scenarios whose instructions are counted.
const ONCE: [Scenario; 8] = [
    ("exchange-100", || {
        let mut pair = Pair::open(1000, 100, 100, ETHERNET);
        measured(&mut || pair.exchange(10_000))
    }),
    ("exchange-32k", || {
        let mut pair = Pair::open(1000, 100, 32_768, ETHERNET);
        measured(&mut || pair.exchange(1000))
    }),
    ("connections", || {
        let mut pair = connecting(100);
        measured(&mut || pair.connections(5000, true))
    }),
    ("bulk", || {
        let mut pair = Pair::open(1, 1 << 30, 1, ETHERNET);
        measured(&mut || pair.bulk(30 << 20))
    }),
    ("bulk-offload", || {
        let mut pair = Pair::open(1, 1 << 30, 1, OFFLOAD);
        // A copy of 64 KB is one instruction on one machine and 65,536 on another.
        pair.client.owner.template = Template::default();
        measured(&mut || pair.bulk(300 << 20))
    }),
    ("loss", || {
        let mut pair = Pair::open(1000, 100, 32_768, Link { lose_one_in: 50, ..ETHERNET });
        measured(&mut || pair.lossy(2000))
    }),
    ("bulk-loss-1", || bulk_over(100)),
    ("bulk-loss-5", || bulk_over(20)),
];

const JUMBO: Link = Link { mtu: 65_535, frames: 16, ..ETHERNET };
const OFFLOAD: Link = Link { offload: true, frames: 16, ..ETHERNET };

fn main() {
    let words: Vec<String> = std::env::args().collect();
    if let Some(at) = words.iter().position(|word| word == "--once") {
        let wanted = words.get(at + 1).filter(|word| !word.starts_with('-'));
        for (name, work) in ONCE {
            if wanted.is_none_or(|wanted| wanted == name) {
                println!("{name}: {} packets", work());
            }
        }
        return;
    }
    println!(
        "Both ends on one thread. Medians of five rounds; packets are sent once and received once each."
    );
    million();
    packets_per_second(1, 100, 100_000, "");
    packets_per_second(1000, 100, 400_000, "");
    packets_per_second(1000, 32_768, 40_000, "≥ 4");
    packets_without_sums();
    packets_per_second(100_000, 32_768, 20_000, "");
    connections_per_second(
        true,
        "six: the request goes with the handshake's last ACK, the FIN with the response",
    );
    connections_per_second(false, "seven: the FIN after the response");
    bits_per_second("one bulk flow, MTU 1500", ETHERNET, 1 << 30, "≥ 20");
    bits_per_second("one bulk flow, MTU 65535", JUMBO, 2 << 30, "≥ 60");
    bits_per_second("one bulk flow, MTU 1500, 64 KB offload", OFFLOAD, 4 << 30, "≥ 60");
}

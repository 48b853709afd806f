//! What a packet costs in the engine: both ends on one thread, each packet sent once and received once, no link between.
//!
//! `cargo bench -p overfly-engine`. Prints packets and connections per second; instruction counts come from running it
//! under `valgrind --tool=callgrind` with `--once`.

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant as Clock;

use overfly_engine::{Config, Engine, Event, FlowId, Instant, Owner};
use overfly_wire::{FrameSink, MacAddr};

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// Frames between the engines: a flat ring, so that the measurement has no allocation in it.
struct Wire {
    frames: Vec<[u8; 1536]>,
    lengths: Vec<usize>,
    head: usize,
    tail: usize,
}

impl Wire {
    fn new() -> Self {
        Self { frames: vec![[0; 1536]; 1024], lengths: vec![0; 1024], head: 0, tail: 0 }
    }
}

impl FrameSink for Wire {
    fn frame(&mut self) -> Option<&mut [u8]> {
        (self.head - self.tail < 1024).then(|| &mut self.frames[self.head % 1024][..])
    }

    fn commit(&mut self, length: usize) {
        self.lengths[self.head % 1024] = length;
        self.head += 1;
    }
}

/// Counts bytes; payload is a constant.
#[derive(Default)]
struct Counter {
    received: Vec<u32>,
    ready: Vec<FlowId>,
    connected: Vec<FlowId>,
    closed: Vec<FlowId>,
    released: u64,
    expect: u32,
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
        let received = &mut self.received[flow.index()];
        *received += black_box(data).len() as u32;
        if *received >= self.expect {
            *received -= self.expect;
            self.ready.push(flow);
        }
        data.len()
    }

    fn fill(&mut self, _flow: FlowId, _offset: u64, buffer: &mut [u8]) {
        buffer.fill(b'x');
    }
}

struct End {
    engine: Engine,
    owner: Counter,
    out: Wire,
}

impl End {
    fn new(address: Ipv4Addr, flows: u32, expect: u32) -> Self {
        let mut config = Config::new(MacAddr([2, 0, 0, 0, 0, address.octets()[3]]), address, 8);
        config.max_flows = flows;
        config.max_time_wait = 1024;
        config.hash_key = [7; 16];
        let mut engine = Engine::new(config).expect("valid");
        engine.set_neighbor(CLIENT, MacAddr([2, 0, 0, 0, 0, 2]));
        Self { engine, owner: Counter { expect, ..Counter::default() }, out: Wire::new() }
    }
}

fn carry(from: &mut End, to: &mut End, now: Instant) -> u64 {
    let mut carried = 0;
    loop {
        let all = from.engine.transmit(now, &mut from.owner, &mut from.out);
        while from.out.tail < from.out.head {
            let index = from.out.tail % 1024;
            to.engine.receive(now, &from.out.frames[index][..from.out.lengths[index]], &mut to.owner);
            from.out.tail += 1;
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

/// `flows` open connections exchange `request` and `response` bytes; returns packets/s.
fn exchange(flows: u32, request: u32, response: u32, exchanges: u64) {
    let mut client = End::new(CLIENT, flows + 16, response);
    let mut server = End::new(SERVER, flows + 16, request);
    client.engine.set_neighbor(SERVER, MacAddr([2, 0, 0, 0, 0, 1]));
    let mut now = Instant::from_micros(1_000_000);
    for port in 0..=flows / 50_000 {
        server.engine.listen(SocketAddrV4::new(SERVER, 1 + port as u16), 100_000).expect("listen");
    }
    let mut open = Vec::new();
    for index in 0..flows {
        open.push(client.engine.connect(now, local(index), remote(index)).expect("connect"));
        if index % 256 == 255 || index + 1 == flows {
            carry(&mut client, &mut server, now);
            carry(&mut server, &mut client, now);
            carry(&mut client, &mut server, now);
            for flow in server.owner.connected.drain(..) {
                server.engine.accepted(flow);
            }
        }
    }
    client.owner.connected.clear();
    let mut done = 0;
    let mut packets = 0;
    let mut next = 0;
    let began = Clock::now();
    while done < exchanges {
        now = Instant::from_micros(now.as_micros() + 20);
        for _ in 0..64.min(flows) {
            client.engine.send(open[next], request as usize);
            next = (next + 7919) % open.len();
        }
        for _ in 0..64 {
            let moved = carry(&mut client, &mut server, now);
            for flow in core::mem::take(&mut server.owner.ready) {
                server.engine.send(flow, response as usize);
            }
            let back = carry(&mut server, &mut client, now);
            packets += moved + back;
            if moved + back == 0 {
                break;
            }
        }
        done += client.owner.ready.drain(..).count() as u64;
        client.engine.advance(now, &mut client.owner);
        server.engine.advance(now, &mut server.owner);
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{flows:>8} flows, {request} B / {response} B: {:>6.2} M packets/s, {:>8.0} exchanges/s, {:>5.0} ns a packet, {:.1} Gb/s",
        packets as f64 / seconds / 1e6,
        done as f64 / seconds,
        seconds * 1e9 / packets as f64,
        done as f64 * f64::from(response) * 8.0 / seconds / 1e9,
    );
}

/// Connections of one request and one response each, closed by the server.
fn connections(count: u32, response: u32) {
    let mut client = End::new(CLIENT, 4096, response);
    let mut server = End::new(SERVER, 4096, 100);
    client.engine.set_neighbor(SERVER, MacAddr([2, 0, 0, 0, 0, 1]));
    let mut now = Instant::from_micros(1_000_000);
    server.engine.listen(SocketAddrV4::new(SERVER, 1), 4096).expect("listen");
    let mut packets = 0;
    let mut next = 0;
    let began = Clock::now();
    while client.owner.released < u64::from(count) {
        now = Instant::from_micros(now.as_micros() + 100);
        for _ in 0..64 {
            client.engine.connect(now, local(next % 50_000), remote(0)).expect("connect");
            next += 1;
        }
        for _ in 0..64 {
            for flow in core::mem::take(&mut client.owner.connected) {
                client.engine.send(flow, 100);
            }
            for flow in core::mem::take(&mut client.owner.closed) {
                client.engine.close(flow);
            }
            let moved = carry(&mut client, &mut server, now);
            for flow in server.owner.connected.drain(..) {
                server.engine.accepted(flow);
            }
            for flow in core::mem::take(&mut server.owner.ready) {
                server.engine.send(flow, response as usize);
                server.engine.close(flow);
            }
            let back = carry(&mut server, &mut client, now);
            packets += moved + back;
            if moved + back == 0 {
                break;
            }
        }
        client.owner.ready.clear();
        client.engine.advance(now, &mut client.owner);
        server.engine.advance(now, &mut server.owner);
    }
    let seconds = began.elapsed().as_secs_f64();
    let total = client.owner.released as f64;
    println!(
        "connections of 100 B / {response} B: {:>8.0} connections/s, {:.1} packets each, {:.2} M packets/s",
        total / seconds,
        packets as f64 / total,
        packets as f64 / seconds / 1e6
    );
}

fn main() {
    if std::env::args().any(|argument| argument == "--once") {
        exchange(1000, 100, 32_768, 2_000);
        connections(10_000, 100);
        return;
    }
    exchange(1, 100, 100, 1_000_000);
    exchange(1_000, 100, 100, 2_000_000);
    exchange(1_000, 100, 32_768, 200_000);
    exchange(100_000, 100, 32_768, 100_000);
    exchange(1_000_000, 100, 32_768, 100_000);
    connections(1_000_000, 100);
}

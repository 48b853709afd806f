//! What a datagram costs in the engine: both ends on one thread, each datagram sent once and received once, no link between.
//!
//! `cargo bench -p overfly-engine --bench datagrams`. Prints datagrams per second; instruction counts come from running it
//! under `valgrind --tool=callgrind` with `--once`.

use std::hint::black_box;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant as Clock;

use overfly_engine::{Config, Datagram, Engine, Event, FlowId, Instant, Owner, UdpId};
use overfly_wire::{FrameSink, MacAddr};

/// Datagrams that one end sends before the other receives them.
const BATCH: usize = 64;

/// Frames between the engines: a flat ring, so that the measurement has no allocation in it.
struct Wire {
    frames: Vec<[u8; 1536]>,
    lengths: Vec<usize>,
}

impl FrameSink for Wire {
    fn frame(&mut self) -> Option<&mut [u8]> {
        (self.lengths.len() < BATCH).then(|| &mut self.frames[self.lengths.len()][..])
    }

    fn commit(&mut self, length: usize) {
        self.lengths.push(length);
    }
}

/// Remembers which socket each datagram came to, and from where.
#[derive(Default)]
struct Peers {
    came: Vec<(UdpId, SocketAddr)>,
}

impl Owner for Peers {
    fn event(&mut self, _: FlowId, _: Event) {}

    fn deliver(&mut self, _: FlowId, data: &[u8]) -> usize {
        data.len()
    }

    fn fill(&mut self, _: FlowId, _: u64, _: &mut [u8]) {}

    fn datagram(&mut self, socket: UdpId, datagram: Datagram<'_>) {
        black_box(datagram.payload);
        self.came.push((socket, datagram.source));
    }
}

struct End {
    engine: Engine,
    peers: Peers,
    wire: Wire,
}

fn end(host: u8) -> End {
    let mut config = Config::new(MacAddr([2, 0, 0, 0, 0, host]), [10, 0, 0, host].into(), 8);
    config.address6 = Some([0x2001, 0xdb8, 0, 0, 0, 0, 0, host.into()].into());
    config.hash_key = [7; 16];
    let mut engine = Engine::new(config).expect("in range");
    for other in [1, 2] {
        let mac = MacAddr([2, 0, 0, 0, 0, other]);
        engine.set_neighbor(IpAddr::from([10, 0, 0, other]), mac);
        engine.set_neighbor(IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, other.into()]), mac);
    }
    let wire = Wire { frames: vec![[0; 1536]; BATCH], lengths: Vec::with_capacity(BATCH) };
    End { engine, peers: Peers::default(), wire }
}

fn carry(from: &mut End, to: &mut End, now: Instant) {
    for (frame, length) in from.wire.frames.iter().zip(from.wire.lengths.drain(..)) {
        to.engine.receive(now, &frame[..length], &mut to.peers);
    }
}

/// `clients` connected sockets ask one unconnected socket, which answers; `count` datagrams in all.
fn echo(family: &str, hosts: [IpAddr; 2], clients: u16, bytes: usize, count: u64) {
    let (mut client, mut server) = (end(1), end(2));
    let at = |host: usize, port: u16| SocketAddr::new(hosts[host], port);
    let any = if hosts[0].is_ipv4() { [0, 0, 0, 0].into() } else { IpAddr::from([0_u16; 8]) };
    server.engine.udp_open(SocketAddr::new(any, 7), None).expect("free");
    let open = |client: &mut End, port| client.engine.udp_open(at(0, port), Some(at(1, 7))).expect("free");
    let sockets: Vec<_> = (0..clients).map(|index| open(&mut client, 1024 + index)).collect();
    let payload = vec![b'x'; bytes];
    let (mut carried, mut next) = (0, 0);
    let mut now = Instant::from_micros(1_000_000);
    let began = Clock::now();
    while carried < count {
        now = Instant::from_micros(now.as_micros() + 10);
        for _ in 0..BATCH {
            let socket = sockets[next];
            client.engine.udp_send(now, socket, &mut client.wire, None, None, &payload).expect("room");
            next = (next + 1) % sockets.len();
        }
        carry(&mut client, &mut server, now);
        for (socket, source) in server.peers.came.drain(..) {
            server
                .engine
                .udp_send(now, socket, &mut server.wire, None, Some(source), &payload)
                .expect("room");
        }
        carry(&mut server, &mut client, now);
        carried += (BATCH + client.peers.came.drain(..).count()) as u64;
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{family}, {clients:>5} clients, {bytes:>4} B: {:>6.2} M datagrams/s, {:>4.0} ns each sent and received, {:.1} Gb/s",
        carried as f64 / seconds / 1e6,
        seconds * 1e9 / carried as f64,
        carried as f64 * bytes as f64 * 8.0 / seconds / 1e9,
    );
}

fn main() {
    let once = std::env::args().any(|argument| argument == "--once");
    let count = if once { 20_000 } else { 10_000_000 };
    let v4: [IpAddr; 2] = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
    let v6 = [1, 2].map(|host| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, host]));
    echo("IPv4", v4, 1, 18, count);
    echo("IPv4", v4, 1_000, 18, count);
    echo("IPv4", v4, 50_000, 18, count);
    echo("IPv4", v4, 1_000, 1_400, count);
    echo("IPv6", v6, 1_000, 18, count);
    echo("IPv6", v6, 1_000, 1_400, count);
}

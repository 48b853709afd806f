//! Two stacks joined in memory: what a program sees of its sockets.

mod ends;
mod forks;
mod joined;
mod listeners;
mod moving;
mod program;
mod readiness;

use core::cell::RefCell;
use core::mem::MaybeUninit;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::collections::VecDeque;
use std::rc::Rc;

use overfly_engine::{Config, Engine, Instant};
use overfly_link::{Each, Link};
use overfly_wire::{FrameSink, MacAddr};
use rustix::io::Errno;

pub(crate) use self::joined::Joined;
use crate::interest::{SetId, bits};
use crate::socket::{Settings, Side, SocketId, canonical, presented};
use crate::stack::{Closed, Stack};

type Wire = Rc<RefCell<VecDeque<Vec<u8>>>>;

/// One end of a cable that loses every `loss`-th frame.
struct Cable {
    inbound: Wire,
    outbound: Wire,
    buffer: [u8; 2048],
    loss: usize,
    sent: usize,
}

impl FrameSink for Cable {
    fn frame(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.buffer)
    }

    fn commit(&mut self, length: usize) {
        self.sent += 1;
        if self.loss == 0 || !self.sent.is_multiple_of(self.loss) {
            self.outbound.borrow_mut().push_back(self.buffer[..length].to_vec());
        }
    }
}

impl Link for Cable {
    fn receive(&mut self, budget: usize, mut each: impl FnMut(&[u8])) -> usize {
        let mut inbound = self.inbound.borrow_mut();
        let count = budget.min(inbound.len());
        inbound.drain(..count).for_each(|frame| each(&frame));
        count
    }

    fn flush(&mut self) {}

    fn each_counter(&self, _: Each<'_>) {}
}

const SERVER_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER_IP), 80);
const SERVER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const SERVER_V6: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1)), 80);
const CLIENT_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
const CLIENT_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

/// A server's stack that listens, and a client's.
struct Bench {
    server: Stack<Cable>,
    client: Stack<Cable>,
    listener: SocketId,
    now: Instant,
    port: u16,
    descriptor: i32,
    wires: [Wire; 2],
}

impl Bench {
    fn new() -> Self {
        Self::lossy(0)
    }

    fn lossy(loss: usize) -> Self {
        let (there, back) = (Wire::default(), Wire::default());
        let cable = |inbound: &Wire, outbound: &Wire| Cable {
            inbound: Rc::clone(inbound),
            outbound: Rc::clone(outbound),
            buffer: [0; 2048],
            loss,
            sent: 0,
        };
        let mut server = Stack::new();
        let mut client = Stack::new();
        server.start(
            Side::Network,
            Engine::new(Config::new(SERVER_MAC, SERVER_IP, 16)).unwrap(),
            cable(&there, &back),
            16,
        );
        client.start(
            Side::Network,
            Engine::new(Config::new(CLIENT_MAC, CLIENT, 16)).unwrap(),
            cable(&back, &there),
            16,
        );
        let listener = server.open(3, false, true).unwrap();
        server.listening(listener, 64);
        assert_eq!(server.join(Side::Network, listener, SERVER), Ok(true));
        Self {
            server,
            client,
            listener,
            now: Instant::from_micros(1_000_000),
            port: 40_000,
            descriptor: 100,
            wires: [there, back],
        }
    }

    /// Moves frames until nothing more happens.
    fn settle(&mut self) {
        loop {
            self.now = self.now + Duration::from_micros(10);
            self.server.pump(self.now);
            self.client.pump(self.now);
            if self.wires.iter().all(|wire| wire.borrow().is_empty()) {
                return;
            }
        }
    }

    /// Lets time pass up to the next timer.
    fn wait(&mut self) {
        let next = [self.server.next_deadline(), self.client.next_deadline()].into_iter().flatten().min();
        self.now = next.unwrap_or(self.now).max(self.now) + Duration::from_micros(1);
        self.settle();
    }

    fn connect(&mut self) -> SocketId {
        self.port += 1;
        self.descriptor += 1;
        let id = self.client.open(self.descriptor, false, true).unwrap();
        self.client
            .connect(
                self.now,
                Side::Network,
                id,
                SocketAddr::new(CLIENT.into(), self.port),
                SERVER,
                SERVER_MAC,
                Settings::DEFAULT,
            )
            .unwrap();
        id
    }

    fn accept(&mut self) -> Option<SocketId> {
        self.descriptor += 1;
        self.server.accept(self.listener, self.descriptor, true)
    }

    /// An established connection: the client's and the server's end.
    fn pair(&mut self) -> (SocketId, SocketId) {
        let client = self.connect();
        self.settle();
        (client, self.accept().unwrap())
    }
}

fn write(stack: &mut Stack<Cable>, id: SocketId, data: &[u8]) -> Result<usize, Errno> {
    stack.write(id, core::iter::once(data))
}

fn read<T: Link>(stack: &mut Stack<T>, id: SocketId, most: usize) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; most];
    // SAFETY: the vector is initialised, and `read` writes only bytes.
    let target =
        unsafe { core::slice::from_raw_parts_mut(buffer.as_mut_ptr().cast::<MaybeUninit<u8>>(), most) };
    let count = stack.read(id, core::iter::once(target), false)?;
    buffer.truncate(count);
    Ok(buffer)
}

fn ready(stack: &mut Stack<Cable>, set: SetId) -> Vec<(u32, u64)> {
    let mut events = Vec::new();
    stack.collect(set, 100, |bits, data| events.push((bits, data)));
    events
}

#[test]
fn request_and_response() {
    let mut bench = Bench::new();
    let (client, server) = bench.pair();
    assert_eq!(bench.server.socket(server).remote, SocketAddr::new(CLIENT.into(), bench.port));
    assert_eq!(read(&mut bench.server, server, 10), Err(Errno::AGAIN));
    assert_eq!(write(&mut bench.client, client, b"GET /"), Ok(5));
    bench.settle();
    assert_eq!(read(&mut bench.server, server, 3), Ok(b"GET".to_vec()));
    assert_eq!(read(&mut bench.server, server, 10), Ok(b" /".to_vec()));
    assert_eq!(write(&mut bench.server, server, b"200"), Ok(3));
    assert_eq!(bench.server.close(server), Closed::Reusable);
    bench.settle();
    assert_eq!(read(&mut bench.client, client, 10), Ok(b"200".to_vec()));
    assert_eq!(read(&mut bench.client, client, 10), Ok(vec![]));
    assert_eq!(bench.client.close(client), Closed::Held);
    bench.settle();
    let mut over = Vec::new();
    bench.client.disconnected(bench.now, |_, local, remote, _, descriptor| {
        over.push((local.port(), remote, descriptor));
    });
    assert_eq!(over, [(bench.port, SERVER, bench.descriptor - 1)], "LAST-ACK is over: the held port is free");
}

#[test]
fn segments_and_marks_are_as_the_socket_or_its_listener_says() {
    let mut bench = Bench::new();
    let inherited = Settings { max_segment: 900, traffic_class: 0x20, time_to_live: 7, ..Settings::DEFAULT };
    bench.server.socket_mut(bench.listener).settings = inherited;
    let other = SocketAddr::new(SERVER.ip(), 81);
    assert_eq!(bench.server.join(Side::Network, bench.listener, other), Ok(true));
    let id = bench.client.open(7, false, true).unwrap();
    let settings = Settings { max_segment: 1000, traffic_class: 0x48, time_to_live: 9, ..Settings::DEFAULT };
    let local = SocketAddr::new(CLIENT.into(), 9);
    bench.client.connect(bench.now, Side::Network, id, local, other, SERVER_MAC, settings).unwrap();
    for (side, class, hops, segment) in [(1, 0x48, 9, 1000), (0, 0x20, 7, 900_u16)] {
        let stack = if side == 1 { &mut bench.client } else { &mut bench.server };
        stack.pump(bench.now);
        let wire = bench.wires.iter().find(|wire| !wire.borrow().is_empty()).expect("a frame");
        let frame = wire.borrow()[0].clone();
        assert_eq!((frame[15], frame[22]), (class, hops), "type of service, time to live");
        assert_eq!(frame[54..58], [2, 4, (segment >> 8) as u8, segment as u8], "MSS option");
    }
    bench.settle();
    let server = bench.accept().expect("a connection");
    for (stack, id) in [(&mut bench.client, id), (&mut bench.server, server)] {
        let info = stack.info(id).expect("a flow");
        assert_eq!(info.mss, 888, "the lesser, timestamps deducted");
    }
    bench.client.change(id, |settings| settings.time_to_live = 200);
    write(&mut bench.client, id, b"hello").unwrap();
    bench.client.transmit(bench.now);
    assert_eq!(bench.client.transport(Side::Network).unwrap().outbound.borrow()[0][22], 200);
}

#[test]
fn a_response_and_its_end_share_a_segment() {
    let mut bench = Bench::new();
    let (client, server) = bench.pair();
    bench.settle();
    let before = *bench.server.engine(Side::Network).unwrap().counters();
    write(&mut bench.server, server, &[7; 1000]).unwrap();
    bench.server.close(server);
    bench.server.transmit(bench.now);
    let sent =
        format!("{before:?}") != format!("{:?}", bench.server.engine(Side::Network).unwrap().counters());
    assert!(sent);
    assert_eq!(bench.server.transport(Side::Network).unwrap().outbound.borrow().len(), 1);
    bench.settle();
    assert_eq!(read(&mut bench.client, client, 2000).unwrap().len(), 1000);
    assert_eq!(read(&mut bench.client, client, 10), Ok(vec![]));
}

#[test]
fn no_delay_lets_a_corked_tail_go_each_time() {
    let mut bench = Bench::new();
    let (client, server) = bench.pair();
    bench.client.change(client, |settings| settings.cork = true);
    for _ in 0..2 {
        write(&mut bench.client, client, b"hello").unwrap();
        bench.settle();
        assert_eq!(read(&mut bench.server, server, 10), Err(Errno::AGAIN));
        bench.client.no_delay(client);
        bench.settle();
        assert_eq!(read(&mut bench.server, server, 10), Ok(b"hello".to_vec()));
    }
}

/// Every byte arrives, in order, over a link that loses frames, with readers and writers of odd sizes.
#[test]
fn megabytes_over_a_lossy_link() {
    for loss in [0, 50, 7] {
        let mut bench = Bench::lossy(loss);
        let client = bench.connect();
        let mut server = None;
        for _ in 0..100 {
            bench.wait();
            server = server.or_else(|| bench.accept());
            if server.is_some() {
                break;
            }
        }
        let server = server.unwrap();
        let total = 2_000_000;
        let byte = |position: usize| (position * 7 + position / 251) as u8;
        let (mut sent, mut received) = (0usize, 0usize);
        let mut rounds = 0;
        while received < total {
            let piece: Vec<u8> = (sent..(sent + 10_007).min(total)).map(byte).collect();
            let mut left = &piece[..];
            let outcome = bench.server.write_with(server, piece.len(), |space| {
                let (now, later) = left.split_at(space.len().min(left.len()));
                space[..now.len()].copy_from_slice(now);
                left = later;
                Ok(now.len())
            });
            match outcome {
                Ok(count @ 1..) => sent += count,
                _ => bench.wait(),
            }
            bench.settle();
            if let Ok(data) = read(&mut bench.client, client, 33_333) {
                for (offset, &value) in data.iter().enumerate() {
                    assert_eq!(value, byte(received + offset), "loss {loss}, at {}", received + offset);
                }
                received += data.len();
            }
            rounds += 1;
            assert!(rounds < 100_000, "loss {loss}: {received} of {total}");
        }
    }
}

#[test]
fn sockets_are_reused_with_their_buffers() {
    let mut bench = Bench::new();
    let mut last = None;
    for _ in 0..50 {
        let (client, server) = bench.pair();
        write(&mut bench.client, client, b"request").unwrap();
        bench.settle();
        read(&mut bench.server, server, 100).unwrap();
        write(&mut bench.server, server, &[1; 3000]).unwrap();
        bench.server.close(server);
        bench.settle();
        read(&mut bench.client, client, 4000).unwrap();
        assert_eq!(read(&mut bench.client, client, 10), Ok(vec![]));
        bench.client.close(client);
        bench.settle();
        if let Some(last) = last {
            assert_eq!(server, last);
        }
        last = Some(server);
    }
    assert_eq!(bench.server.unfinished(), 0);
}

#[test]
fn addresses_as_programs_and_the_engine_have_them() {
    let parse = |text: &str| text.parse::<SocketAddr>().unwrap();
    for (engine, v6, program) in [
        ("10.0.0.1:5", false, "10.0.0.1:5"),
        ("10.0.0.1:5", true, "[::ffff:10.0.0.1]:5"),
        ("[fd77::1]:5", true, "[fd77::1]:5"),
        ("[fe80::1]:5", true, "[fe80::1%7]:5"),
    ] {
        assert_eq!(presented(parse(engine), v6, 7), parse(program));
        assert_eq!(canonical(parse(program)), parse(engine));
    }
}

#[test]
fn batches_are_as_large_as_the_profile_says() {
    for times in [1, 4] {
        let mut bench = Bench::new();
        bench.server.enlarge_batches(times);
        bench.wires[0].borrow_mut().extend(core::iter::repeat_n(vec![0; 64], 8192));
        assert_eq!(bench.server.pump(bench.now), 1024 * times);
    }
}

/// A connection that is open and idle has no buffers, and gets them again.
#[test]
fn an_idle_connection_has_no_buffers() {
    let mut bench = Bench::new();
    let (client, server) = bench.pair();
    for _ in 0..3 {
        assert_eq!(write(&mut bench.client, client, b"question"), Ok(8));
        bench.settle();
        assert_eq!(read(&mut bench.server, server, 100).unwrap(), b"question");
        assert_eq!(write(&mut bench.server, server, &[7; 3000]), Ok(3000));
        bench.settle();
        assert_eq!(read(&mut bench.client, client, 4000).unwrap(), [7; 3000]);
        bench.settle();
        let buffers = |bench: &Bench| {
            let of = |stack: &Stack<Cable>, id| {
                let socket = stack.socket(id);
                socket.receive.capacity() + socket.send.capacity()
            };
            (of(&bench.client, client), of(&bench.server, server))
        };
        assert!(buffers(&bench).0 >= 4096 && buffers(&bench).1 >= 4096);
        // Other tests' buffers, which are counted in the same place, may begin a walk at any time.
        for _ in 0..4 {
            bench.now = bench.now + Duration::from_secs(1);
            bench.settle();
        }
        assert_eq!(buffers(&bench), (0, 0));
    }
    // What waits to be read stays.
    assert_eq!(write(&mut bench.client, client, b"kept"), Ok(4));
    for _ in 0..4 {
        bench.now = bench.now + Duration::from_secs(1);
        bench.settle();
    }
    assert_eq!(read(&mut bench.server, server, 100).unwrap(), b"kept");
}

/// MSG_MORE holds the end of a write back until the rest comes, and for some hundred milliseconds at most.
#[test]
fn the_end_of_a_write_waits_for_more() {
    let mut bench = Bench::new();
    let (client, server) = bench.pair();
    bench.server.more_follows(server, true);
    assert_eq!(write(&mut bench.server, server, b"head"), Ok(4));
    bench.settle();
    assert_eq!(read(&mut bench.client, client, 10), Err(Errno::AGAIN));
    bench.server.more_follows(server, false);
    assert_eq!(write(&mut bench.server, server, b"tail"), Ok(4));
    bench.settle();
    assert_eq!(read(&mut bench.client, client, 10), Ok(b"headtail".to_vec()));
    // Its acknowledgment would let go what comes now.
    while bench.server.waiting(server).0 > 0 {
        bench.wait();
    }
    bench.server.more_follows(server, true);
    assert_eq!(write(&mut bench.server, server, b"alone"), Ok(5));
    let began = bench.now;
    while read(&mut bench.client, client, 10) == Err(Errno::AGAIN) {
        bench.wait();
        assert!(bench.now - began < Duration::from_secs(1));
    }
    assert!(bench.now - began > Duration::from_millis(100));
}

/// Unlike TCP_CORK's, MSG_MORE's end is a matter of one call: what the peer acknowledges, and its FIN, let it go.
#[test]
fn an_acknowledgment_or_a_fin_lets_the_end_of_a_write_go() {
    for cork in [false, true] {
        let mut bench = Bench::new();
        let (client, server) = bench.pair();
        bench.server.change(server, |settings| settings.no_delay = true);
        bench.server.change(server, |settings| settings.cork = cork);
        let let_go = |bytes: &[u8]| if cork { Err(Errno::AGAIN) } else { Ok(bytes.to_vec()) };
        bench.server.more_follows(server, true);
        assert_eq!(write(&mut bench.server, server, &[7; 3000]), Ok(3000));
        bench.settle();
        assert_eq!(read(&mut bench.client, client, 4000).unwrap().len(), 2896);
        bench.settle();
        assert_eq!(read(&mut bench.client, client, 4000), let_go(&[7; 104]));
        bench.server.change(server, |settings| settings.cork = false);
        bench.settle();
        let _ = read(&mut bench.client, client, 4000);
        bench.server.change(server, |settings| settings.cork = cork);
        bench.server.more_follows(server, true);
        assert_eq!(write(&mut bench.server, server, b"end"), Ok(3));
        bench.settle();
        assert_eq!(read(&mut bench.client, client, 10), Err(Errno::AGAIN));
        bench.client.shutdown(client, false, true).unwrap();
        bench.settle();
        assert_eq!(read(&mut bench.client, client, 10), let_go(b"end"));
    }
}

/// What a connection that failed leaves can connect again.
#[test]
fn a_socket_connects_anew() {
    let mut bench = Bench::new();
    let (client, server) = bench.pair();
    assert_eq!(write(&mut bench.client, client, b"one"), Ok(3));
    bench.settle();
    assert_eq!(read(&mut bench.server, server, 10), Ok(b"one".to_vec()));
    bench.client.disconnect(bench.now, client);
    bench.settle();
    assert_eq!(bench.client.level(client), bits::OUT | bits::WRNORM | bits::HUP | bits::ERR);
    assert_eq!(bench.client.take_error(client), Some(Errno::CONNRESET));
    assert_eq!(read(&mut bench.client, client, 10), Err(Errno::NOTCONN));
    assert_eq!(read(&mut bench.server, server, 10), Err(Errno::CONNRESET));
    bench.port += 1;
    let local = SocketAddr::new(CLIENT.into(), bench.port);
    bench
        .client
        .connect(bench.now, Side::Network, client, local, SERVER, SERVER_MAC, Settings::DEFAULT)
        .unwrap();
    bench.settle();
    let server = bench.accept().unwrap();
    assert_eq!(write(&mut bench.client, client, b"two"), Ok(3));
    bench.settle();
    assert_eq!(read(&mut bench.server, server, 10), Ok(b"two".to_vec()));
}

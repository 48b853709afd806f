//! The engine's UDP against the kernel's: datagrams of every size that a frame takes, both ways and in both families, and
//! what each end hears when nobody is at the other's port.
//!
//! The kernel is in one network namespace of a lab. A macvtap device on the other end of its veth pair gives this process
//! the frames, through a file. Namespaces and devices go with this process's descriptors, also after a panic.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use overfly_bench::lab::{CLIENT, Lab, SERVER};
use overfly_engine::{Config, Datagram, Engine, Event, FlowId, Owner, Report, SendError, UdpId, Unreachable};
use overfly_tests::tap::{CLIENT6, SERVER6, Tap};
use overfly_wire::FrameSink;

/// Where the engine sends back what comes.
const ENGINE_ECHO: u16 = 7;
/// Where the kernel does.
const KERNEL_ECHO: u16 = 8;
/// Where nobody is, at either end.
const NOBODY: u16 = 9;
/// From where the engine asks.
const ENGINE_ASKS: u16 = 4000;
const PATIENCE: Duration = Duration::from_secs(20);
/// Most payload of one frame of 1500 bytes.
fn most(address: IpAddr) -> usize {
    1500 - 8 - if address.is_ipv4() { 20 } else { 40 }
}

/// The payload of `length` bytes.
fn payload(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + length) as u8).collect()
}

/// What came to the engine.
#[derive(Default)]
struct Inbox {
    datagrams: VecDeque<(UdpId, SocketAddr, Vec<u8>)>,
    failed: Vec<(UdpId, SocketAddr, Unreachable)>,
}

impl Owner for Inbox {
    fn event(&mut self, _: FlowId, _: Event) {}

    fn deliver(&mut self, _: FlowId, data: &[u8]) -> usize {
        data.len()
    }

    fn fill(&mut self, _: FlowId, _: u64, _: &mut [u8]) {}

    fn datagram(&mut self, socket: UdpId, datagram: Datagram<'_>) {
        self.datagrams.push_back((socket, datagram.source, datagram.payload.to_vec()));
    }

    fn datagram_failed(&mut self, socket: UdpId, remote: SocketAddr, why: Unreachable, _: &Report<'_>) {
        self.failed.push((socket, remote, why));
    }
}

/// The frames that the engine wrote.
struct Outbox {
    frame: Vec<u8>,
    frames: Vec<Vec<u8>>,
}

impl FrameSink for Outbox {
    fn frame(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.frame)
    }

    fn commit(&mut self, length: usize) {
        self.frames.push(self.frame[..length].to_vec());
    }
}

/// The engine's time, so long after `begin`.
fn stamp(begin: Instant) -> overfly_engine::Instant {
    overfly_engine::Instant::from_micros(1_000_000 + begin.elapsed().as_micros() as u64)
}

/// The engine's end.
struct End {
    tap: Tap,
    engine: Engine,
    inbox: Inbox,
    outbox: Outbox,
    begin: Instant,
    /// Frames that the engine took for malformed.
    malformed: Vec<Vec<u8>>,
}

impl End {
    fn new(tap: Tap) -> Self {
        let mut config = Config::new(tap.mac, SERVER, 16);
        // It asks for its neighbours, and answers who asks for it.
        config.alone = true;
        config.address6 = Some(SERVER6);
        config.hash_key = [3; 16];
        Self {
            tap,
            engine: Engine::new(config).expect("a valid configuration"),
            inbox: Inbox::default(),
            outbox: Outbox { frame: vec![0; 2048], frames: Vec::new() },
            begin: Instant::now(),
            malformed: Vec::new(),
        }
    }

    fn now(&self) -> overfly_engine::Instant {
        stamp(self.begin)
    }

    fn send(&mut self, socket: UdpId, to: Option<SocketAddr>, payload: &[u8]) -> Result<(), SendError> {
        let now = self.now();
        self.engine.udp_send(now, socket, &mut self.outbox, None, to, payload)
    }

    /// Moves frames once; waits for up to a millisecond if there are none.
    fn turn(&mut self) {
        let mut buffer = [0; 4096];
        let mut came = false;
        while let Some(frame) = self.tap.read(&mut buffer) {
            came = true;
            let now = stamp(self.begin);
            let before = self.engine.counters().drop_malformed;
            self.engine.receive(now, frame, &mut self.inbox);
            if self.engine.counters().drop_malformed > before {
                self.malformed.push(frame.to_vec());
            }
        }
        let now = self.now();
        self.engine.advance(now, &mut self.inbox);
        self.engine.transmit(now, &mut self.inbox, &mut self.outbox);
        for frame in self.outbox.frames.drain(..) {
            self.tap.write(&frame).expect("write to the tap");
        }
        if !came {
            self.tap.wait(Duration::from_millis(1));
        }
    }

    /// Moves frames until `done` has what it waits for.
    #[track_caller]
    fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            self.turn();
            if let Some(found) = done(self) {
                return found;
            }
            assert!(Instant::now() < end, "not in time: {what}; {:?}", self.engine.counters());
        }
    }
}

/// The kernel asks the engine; runs in a thread of its own.
fn kernel_asks(socket: &UdpSocket, unheard: &UdpSocket) {
    let mut buffer = vec![0; 4096];
    let length = most(socket.peer_addr().expect("connected").ip());
    for size in 0..=length {
        let sent = payload(size);
        socket.send(&sent).expect("send");
        let got = socket.recv(&mut buffer).expect("the engine's echo");
        assert_eq!(buffer[..got], sent);
    }
    // A connected socket hears of it at its next call (RFC 1122 section 4.1.3.3).
    unheard.send(b"anybody?").expect("send");
    let heard = unheard.recv(&mut buffer).expect_err("nobody is there");
    assert_eq!(heard.kind(), ErrorKind::ConnectionRefused);
}

/// The kernel sends back what comes, until it is told to stop.
fn kernel_echoes(socket: &UdpSocket, stop: &AtomicBool) {
    let mut buffer = vec![0; 4096];
    while !stop.load(Ordering::Relaxed) {
        match socket.recv_from(&mut buffer) {
            Ok((length, from)) => {
                socket.send_to(&buffer[..length], from).expect("send back");
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => panic!("receive: {error}"),
        }
    }
}

fn exchange(ours: IpAddr, kernels: IpAddr) {
    let lab = Lab::new("overfly").expect("make a lab");
    let mut end = End::new(Tap::new(&lab));
    // Sockets belong to the namespace in which they were made; the threads that use them may be anywhere.
    let [asks, unheard, echo] = lab
        .within("client", || {
            let bind = |port| UdpSocket::bind(SocketAddr::new(kernels, port)).expect("bind");
            let connect = |port| {
                let socket = bind(0);
                socket.connect(SocketAddr::new(ours, port)).expect("connect");
                socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
                socket
            };
            [connect(ENGINE_ECHO), connect(NOBODY), bind(KERNEL_ECHO)]
        })
        .expect("enter the client");
    echo.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    let any = if ours.is_ipv4() { "0.0.0.0" } else { "::" }.parse().expect("an address");
    let server = end.engine.udp_open(SocketAddr::new(any, ENGINE_ECHO), None).expect("free");
    let to = SocketAddr::new(kernels, KERNEL_ECHO);
    let client = end.engine.udp_open(SocketAddr::new(ours, ENGINE_ASKS), Some(to)).expect("free");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| kernel_asks(&asks, &unheard));
        scope.spawn(|| kernel_echoes(&echo, &stop));
        // The engine asks at the same time. Its first datagram waits for the neighbour's hardware address.
        let length = most(kernels);
        end.send(client, None, &payload(0)).expect("held, or sent");
        let mut size = 0;
        end.until("echoes both ways", |end| {
            while let Some((socket, source, data)) = end.inbox.datagrams.pop_front() {
                if socket == server {
                    end.send(server, Some(source), &data).expect("sent back");
                    continue;
                }
                assert_eq!((socket, source, &data), (client, to, &payload(size)));
                size += 1;
                if size <= length {
                    end.send(client, None, &payload(size)).expect("sent");
                }
            }
            (size > length && asking.is_finished()).then_some(())
        });
        assert_eq!(end.send(client, None, &payload(length + 1)), Err(SendError::TooBig(1500)));
        stop.store(true, Ordering::Relaxed);
        asking.join().expect("the kernel's side");
    });
    assert_eq!(end.inbox.failed, []);
    // Connected or not, the engine hears that nobody is there.
    let nobody = SocketAddr::new(kernels, NOBODY);
    for remote in [None, Some(nobody)] {
        let socket = end.engine.udp_open(SocketAddr::new(ours, ENGINE_ASKS + 1), remote).expect("free");
        end.send(socket, Some(nobody), b"anybody?").expect("sent");
        let heard = end.until("an ICMP error", |end| end.inbox.failed.pop());
        assert_eq!(heard, (socket, nobody, Unreachable::Port));
        end.engine.udp_close(socket);
    }
    assert!(end.malformed.is_empty(), "{:02x?}", end.malformed);
    let counters = end.engine.counters();
    assert_eq!((counters.drop_checksum, counters.drop_udp_unresolved), (0, 0));
    assert_eq!((counters.port_unreachables_sent, counters.icmp_errors), (1, 2));
    // Nobody has this address: the engine asks three times and says so.
    let absent = match kernels {
        IpAddr::V4(_) => "10.77.0.77".parse().expect("an address"),
        IpAddr::V6(_) => "fd77::77".parse().expect("an address"),
    };
    let absent = SocketAddr::new(absent, 1);
    end.send(server, Some(absent), b"anybody?").expect("held");
    let heard = end.until("no neighbour", |end| end.inbox.failed.pop());
    assert_eq!(heard, (server, absent, Unreachable::Host));
}

#[test]
fn datagrams_with_the_kernel() {
    exchange(SERVER.into(), CLIENT.into());
}

#[test]
fn datagrams_with_the_kernel_over_ipv6() {
    exchange(SERVER6.into(), CLIENT6.into());
}

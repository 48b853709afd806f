//! Several clients that have the secret say anything at all to a broker, with any descriptors, in a random order. It must not panic,
//! must not lose a descriptor, and must go on serving an honest client. `OVERFLY_SEED` repeats a run.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use overfly_broker::connection::Connection;
use overfly_broker::message::{Hello, Kind, Request, RequestMessage, Role, Token};
use overfly_broker::{Client, Cluster, observer};
use overfly_lab::{Broker, CLIENT, INTERFACE, Lab, SERVER};
use overfly_link::messages;
use overfly_steer::{Attachment, Options, Protocol};
use overfly_testing::{Random, fresh_seed, process};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
};
use rustix::process::Uid;
use zerocopy::IntoBytes;

const ROUNDS: usize = 3000;
const CLIENTS: usize = 6;

fn inet(kind: SocketType) -> OwnedFd {
    let socket = socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC, None).unwrap();
    let _ = rustix::net::bind(&socket, &SocketAddr::new(SERVER.into(), 0));
    socket
}

fn address(random: &mut Random) -> SocketAddr {
    let ips = [SERVER, CLIENT, Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST];
    let port = random.one_of(&[0, 22, 80, 8080, 30_000, 65_535]);
    SocketAddr::new(IpAddr::V4(random.one_of(&ips)), port)
}

/// A file that says what a connection is to be, or something like it.
fn file(random: &mut Random) -> OwnedFd {
    let mut connection = Connection::between(address(random), address(random));
    for bytes in [&mut connection.unread, &mut connection.sent, &mut connection.unsent] {
        *bytes = random.index(3000) as u32;
    }
    connection.mss = random.index(3000) as u16;
    connection.flags = random.index(256) as u32;
    connection.send_shift = random.index(40) as u8;
    connection.receive_shift = random.index(40) as u8;
    connection.receive_window = random.index(1 << 32) as u32;
    connection.send_window = random.index(1 << 20) as u32;
    connection.to_file(|_| {}).unwrap()
}

fn descriptor(random: &mut Random) -> OwnedFd {
    match random.index(8) {
        0 => std::fs::File::open("/dev/null").unwrap().into(),
        1 => rustix::pipe::pipe().unwrap().0,
        2 => inet(SocketType::DGRAM),
        3 => {
            let listener = inet(SocketType::STREAM);
            let _ = rustix::net::listen(&listener, 1);
            listener
        }
        4 => socket_with(AddressFamily::INET6, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap(),
        5 | 6 => file(random),
        _ => inet(SocketType::STREAM),
    }
}

fn request(random: &mut Random) -> Request {
    Request {
        protocol: random.one_of(&[Protocol::Tcp, Protocol::Udp]),
        v6only: random.index(2) == 1,
        local: address(random),
        remote: address(random),
        cluster: Cluster::new(random.one_of(&["", "a"]), random.index(3) as u32),
        ..Request::new(random.one_of(&Kind::ALL))
    }
}

fn dial(name: &str) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let _ = connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap());
    socket
}

fn descriptors() -> usize {
    process::descriptors(std::process::id())
}

/// One of the hostile clients says something.
fn attack(random: &mut Random, clients: &mut [OwnedFd], names: [&str; 2], token: Token) {
    let place = random.index(clients.len());
    if random.index(20) == 0 {
        clients[place] = dial(random.one_of(&names));
    }
    let role =
        random.one_of(&[Role::Client, Role::Client, Role::Client, Role::Leash, Role::Observer, Role::Return]);
    let secret = random.one_of(&[token, token, token, observer::PUBLIC]);
    let hello = Hello::new(role, secret);
    let request = RequestMessage::new(&request(random));
    let mut bytes = if random.index(4) == 0 { hello.as_bytes() } else { request.as_bytes() }.to_vec();
    if random.index(16) == 0 {
        let at = random.index(bytes.len());
        bytes[at] ^= 1 << random.index(8);
        bytes.truncate(random.index(bytes.len()) + 1);
    }
    let given: Vec<OwnedFd> = (0..random.index(7)).map(|_| descriptor(random)).collect();
    let given: Vec<BorrowedFd<'_>> = given.iter().map(AsFd::as_fd).collect();
    let sent = messages::send(&clients[place], &bytes, &given, SendFlags::DONTWAIT);
    if sent.is_err() {
        clients[place] = dial(names[0]);
        let greeting = Hello::new(Role::Client, token);
        let _ = messages::send(&clients[place], greeting.as_bytes(), &[], SendFlags::DONTWAIT);
    }
    // Some read what they are told, some do not.
    if random.index(3) > 0 {
        while messages::receive(&clients[place], &mut [0; 1024], RecvFlags::DONTWAIT)
            .is_ok_and(|(length, _)| length > 0)
        {}
    }
}

#[test]
fn whatever_is_said_an_honest_client_is_served() {
    let seed = fresh_seed();
    let lab = Lab::new(1);
    let options = Options { stacks: 4, rx_frames: 1024, rx_ring: 512, tx_frames: 64, ..Options::default() };
    let broker =
        lab.server.within(|| Broker::start(Attachment::attach(INTERFACE, options).unwrap()).unwrap());
    let (name, hex) = broker.environment().split_once(':').unwrap();
    let mut token = Token([0; 16]);
    for (byte, at) in token.0.iter_mut().zip((0..32).step_by(2)) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    }
    let public = format!("{}{INTERFACE}", observer::PREFIX);
    let mut honest = lab.server.within(|| Client::connect(broker.environment()).unwrap());
    let before = descriptors();
    lab.server.within(|| {
        rustix::thread::set_thread_uid(Uid::from_raw(65534)).unwrap();
        let mut random = Random(seed);
        let mut clients: Vec<OwnedFd> = (0..CLIENTS).map(|_| dial(name)).collect();
        for round in 0..ROUNDS {
            attack(&mut random, &mut clients, [name, &public], token);
            if round % 50 == 0 {
                honest.refresh_interface().unwrap();
            }
        }
    });
    let end = Instant::now() + Duration::from_secs(20);
    // What was given away to be accepted by another waits for two seconds.
    while descriptors() > before || broker.attachment().open_stacks() > 0 {
        honest.refresh_interface().unwrap();
        assert!(Instant::now() < end, "{} descriptors, {before} before: {broker:?}", descriptors());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(broker.counters().undoing_failed, 0, "{broker:?}");
}

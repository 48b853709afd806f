//! Clients that have a program's secret and want more than the kernel would give them. Each is a thread of uid 65534 without
//! capabilities; what it is after is root's, or another user's.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use overfly_broker::Error;
use overfly_broker::connection::{Connection, flags};
use overfly_broker::{Client, PairEnd, Refusal};
use overfly_lab::{Broker, CLIENT, INTERFACE, Lab, SERVER};
use overfly_link::Link;
use overfly_link::xdp::XdpLink;
use overfly_steer::{Attachment, Options, Protocol};
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};
use rustix::process::Uid;

const NOBODY: u32 = 65534;
const VICTIM: u32 = 65533;
const OPTIONS: Options = Options {
    queues: None,
    busy_poll: false,
    force_copy: false,
    stacks: 4,
    rx_frames: 4096,
    rx_ring: 512,
    tx_frames: 256,
    flows: 4096,
    min_free_frames: 0,
    huge_pages: overfly_link::xdp::HugePages::No,
    heed_firewall: false,
    judge_senders: true,
    segment_offload: true,
    receive_offload: overfly_steer::ReceiveOffload::Packets,
    checksum_offload: overfly_steer::ChecksumOffload::Off,
};

fn broker(lab: &Lab) -> Broker {
    lab.server.within(|| Broker::start(Attachment::attach(INTERFACE, OPTIONS).unwrap()).unwrap())
}

/// Runs `work` in a thread in the server's namespace that is `user`, for good.
fn as_user<R: Send>(lab: &Lab, user: u32, work: impl FnOnce() -> R + Send) -> R {
    lab.server.within(|| {
        rustix::thread::set_thread_uid(Uid::from_raw(user)).unwrap();
        assert!(std::fs::read("/etc/shadow").is_err());
        work()
    })
}

fn server(port: u16) -> SocketAddr {
    SocketAddrV4::new(SERVER, port).into()
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> Refusal {
    match result {
        Err(Error::Refused { refusal, .. }) => refusal,
        other => panic!("{other:?}"),
    }
}

fn tcp() -> OwnedFd {
    socket(AddressFamily::INET, SocketType::STREAM, None).unwrap()
}

/// A socket of the caller's that is bound, and perhaps shares the address.
fn bound(kind: SocketType, address: SocketAddr, shared: bool) -> OwnedFd {
    let socket = socket(AddressFamily::INET, kind, None).unwrap();
    sockopt::set_socket_reuseaddr(&socket, shared).unwrap();
    bind(&socket, &address).unwrap();
    socket
}

fn port_of(socket: &OwnedFd) -> u16 {
    SocketAddr::try_from(getsockname(socket).unwrap()).unwrap().port()
}

/// A client with a stack.
fn client(environment: &str) -> (XdpLink, Client) {
    let mut client = Client::connect(environment).unwrap();
    let link = XdpLink::open(client.open_stack().unwrap().into_xdp().unwrap()).unwrap();
    (link, client)
}

fn end(local: SocketAddr, remote: SocketAddr, flags: u32) -> Connection {
    Connection {
        mss: 1460,
        send_una: 1000,
        send_window: 60_000,
        send_window_max: 60_000,
        window_sequence: 5000,
        receive_next: 5000,
        receive_window: 60_000,
        flags,
        ..Connection::between(local, remote)
    }
}

/// Has a socket become one end of a connection within the host; `holder` shows that the port is the caller's.
fn become_end(
    client: &mut Client,
    socket: &OwnedFd,
    connection: &Connection,
    holder: &OwnedFd,
) -> Result<(), Error> {
    let file = connection.to_file(|_| {}).unwrap();
    client.hand_over_pair(&[PairEnd { socket: socket.as_fd(), file: file.as_fd(), holder: holder.as_fd() }])
}

#[test]
fn a_hand_over_gives_nobody_a_port() {
    let lab = Lab::new(1);
    let broker = broker(&lab);
    // The session of a broken-in service: a connection that was accepted at a port of root's.
    let session = lab.server.within(|| {
        let listener = TcpListener::bind(server(22)).unwrap();
        let _visitor = TcpStream::connect(server(22)).unwrap();
        OwnedFd::from(listener.accept().unwrap().0)
    });
    let victim = as_user(&lab, VICTIM, || TcpListener::bind(server(8080)).unwrap());
    as_user(&lab, NOBODY, || {
        let mut client = Client::connect(broker.environment()).unwrap();
        assert!(client.moves_pairs().unwrap());
        let own = OwnedFd::from(TcpListener::bind(server(7070)).unwrap());
        for flags in [0, flags::PASSIVE] {
            for (port, holder) in [(22, None), (22, Some(&session)), (22, Some(&own)), (8080, Some(&own))] {
                let socket = tcp();
                let connection = end(server(port), server(30_000), flags);
                let outcome = become_end(&mut client, &socket, &connection, holder.unwrap_or(&socket));
                assert_eq!(refused(outcome), Refusal::NotMoved, "{port} {flags}");
                assert!(rustix::net::connect_unspec(&socket).is_ok() && port_of(&socket) == 0);
            }
            // Nor with a socket that has another one, which it would let go of.
            for port in [22, 8080] {
                let socket = bound(SocketType::STREAM, server(0), false);
                let connection = end(server(port), server(30_000), flags);
                assert!(become_end(&mut client, &socket, &connection, &socket).is_err(), "{port} {flags}");
                assert!(![22, 8080].contains(&port_of(&socket)));
            }
            // Addresses that are not the host's, and a socket that another user made.
            let elsewhere = end(server(30_001), SocketAddr::new(CLIENT.into(), 22), flags);
            assert_eq!(
                refused(become_end(&mut client, &tcp(), &elsewhere, &own)),
                Refusal::NotLocal,
                "{flags}"
            );
            // Who shows the port's listener has it anyway.
            let socket = tcp();
            let connection = end(server(7070), server(30_002), flags);
            become_end(&mut client, &socket, &connection, &own).unwrap();
        }
    });
    let foreign = as_user(&lab, VICTIM, tcp);
    as_user(&lab, NOBODY, || {
        let mut client = Client::connect(broker.environment()).unwrap();
        let connection = end(server(30_003), server(30_004), 0);
        assert_eq!(refused(become_end(&mut client, &foreign, &connection, &foreign)), Refusal::Other);
    });
    drop((session, victim));
    assert!(lab.server.within(|| TcpListener::bind(server(22)).is_ok()), "nobody has the port");
}

#[test]
fn another_users_connection_stays_its_own() {
    let lab = Lab::new(1);
    let broker = broker(&lab);
    let listener = lab.client.within(|| TcpListener::bind((CLIENT, 80)).unwrap());
    let remote = SocketAddr::new(CLIENT.into(), 80);
    // A live connection of the kernel's, from a port that its owner shares.
    let mut victim = as_user(&lab, VICTIM, || {
        let socket = bound(SocketType::STREAM, server(45_000), true);
        rustix::net::connect(&socket, &remote).unwrap();
        TcpStream::from(socket)
    });
    let mut visitor = listener.accept().unwrap().0;
    as_user(&lab, NOBODY, || {
        let (mut link, mut client) = client(broker.environment());
        let mut connect = |socket: &OwnedFd, port, remote| {
            client.connect_flow_as(socket.as_fd(), Protocol::Tcp, server(port), remote)
        };
        let sharing = bound(SocketType::STREAM, server(45_000), true);
        assert_eq!(refused(connect(&sharing, 45_000, remote)), Refusal::TupleInUse);
        // Sockets that do not have the port: of another one, connected elsewhere, tied to another device, and one whose connection
        // has ended and which only remembers it.
        let other = bound(SocketType::STREAM, server(45_001), true);
        assert_eq!(refused(connect(&other, 45_000, remote)), Refusal::Other);
        let busy = TcpStream::connect(remote).unwrap();
        let port = busy.local_addr().unwrap().port();
        let peer = SocketAddr::new(CLIENT.into(), 81);
        assert_eq!(refused(connect(&OwnedFd::from(busy), port, peer)), Refusal::Other);
        let tied = bound(SocketType::STREAM, server(45_002), false);
        sockopt_bind_to_device(&tied, c"lo");
        assert_eq!(refused(connect(&tied, 45_002, remote)), Refusal::Other);
        let ended = TcpStream::connect(remote).unwrap();
        let port = ended.local_addr().unwrap().port();
        let ended = OwnedFd::from(ended);
        sockopt::set_socket_linger(&ended, Some(Duration::ZERO)).unwrap();
        rustix::net::connect_unspec(&ended).unwrap();
        assert_eq!(refused(connect(&ended, port, peer)), Refusal::Other);
        // Nobody's frames have come here.
        visitor.write_all(b"for the victim").unwrap();
        let mut bytes = [0; 14];
        victim.read_exact(&mut bytes).unwrap();
        assert_eq!((&bytes, link.receive(64, |_| ())), (b"for the victim", 0));
        // An honest one; while the frames are its own, the port is no one else's, although it closes the socket.
        let own = bound(SocketType::STREAM, server(45_003), false);
        connect(&own, 45_003, remote).unwrap();
        drop(own);
        let again = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        assert_eq!(bind(&again, &server(45_003)), Err(rustix::io::Errno::ADDRINUSE));
        client.disconnect_flow(Protocol::Tcp, 45_003, remote).unwrap();
        assert_eq!(bind(&again, &server(45_003)), Ok(()));
    });
    let theirs = as_user(&lab, VICTIM, || bound(SocketType::STREAM, server(45_004), false));
    as_user(&lab, NOBODY, || {
        let (_link, mut client) = client(broker.environment());
        let flow = client.connect_flow_as(theirs.as_fd(), Protocol::Tcp, server(45_004), remote);
        assert_eq!(refused(flow), Refusal::Other, "another user's socket");
    });
}

fn sockopt_bind_to_device(socket: &OwnedFd, device: &std::ffi::CStr) {
    let name = device.to_bytes_with_nul();
    // SAFETY: the kernel reads as many bytes as the name has.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        )
    };
    assert_eq!(result, 0);
}

#[test]
fn datagrams_are_for_whom_the_kernel_would_choose() {
    let lab = Lab::new(1);
    let broker = broker(&lab);
    let victim = as_user(&lab, VICTIM, || bound(SocketType::DGRAM, server(5353), true));
    as_user(&lab, NOBODY, || {
        let (_link, mut client) = client(broker.environment());
        let anywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 5353));
        let sharing = bound(SocketType::DGRAM, anywhere, true);
        for local in [anywhere, server(5353)] {
            let listening = client.listen_as(sharing.as_fd(), Protocol::Udp, local, true);
            assert_eq!(refused(listening), Refusal::Other, "{local}");
        }
        let remote = SocketAddr::new(CLIENT.into(), 53);
        let flow = client.connect_flow_as(sharing.as_fd(), Protocol::Udp, server(5353), remote);
        assert_eq!(refused(flow), Refusal::TupleInUse);
        let own = UdpSocket::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
        let port = own.local_addr().unwrap().port();
        let local = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        client.listen_as(own.as_fd(), Protocol::Udp, local, true).unwrap();
        client.connect_flow_as(own.as_fd(), Protocol::Udp, server(port), remote).unwrap();
    });
    drop(victim);
}

/// Who shows a listener and closes it has no claim to what comes there any more.
#[test]
fn a_listener_that_is_closed_leaves_its_address_to_the_next() {
    let lab = Lab::new(1);
    let broker = broker(&lab);
    let (mut link, client, own, stays) = as_user(&lab, NOBODY, || {
        let (link, mut client) = client(broker.environment());
        let [own, stays] = [8081, 8082].map(|port| {
            let listener = TcpListener::bind(server(port)).unwrap();
            client.listen_as(listener.as_fd(), Protocol::Tcp, server(port), true).unwrap();
            listener
        });
        (link, client, own, stays)
    });
    let knock = |port| {
        let timeout = Duration::from_millis(100);
        lab.client.within(|| TcpStream::connect_timeout(&server(port), timeout).is_ok())
    };
    let mut is_heard = |port| !knock(port) && link.receive(64, |_| ()) > 0;
    // Several looks of the broker's change nothing for who listens.
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end {
        assert!(is_heard(8081) && is_heard(8082));
    }
    drop(own);
    let heir = as_user(&lab, VICTIM, || TcpListener::bind(server(8081)).unwrap());
    let end = Instant::now() + Duration::from_secs(10);
    while !knock(8081) {
        assert!(Instant::now() < end, "the frames are still the former one's");
    }
    heir.accept().unwrap();
    assert!(is_heard(8082), "an honest one has its frames");
    assert_eq!(broker.counters().undoing_failed, 0);
    drop((client, stays));
}

#[test]
fn a_broken_in_worker_cannot_have_the_frames_of_ssh() {
    let lab = Lab::new(1);
    let broker = broker(&lab);
    let ssh = lab.server.within(|| TcpListener::bind(server(22)).unwrap());
    let [asked, visited] = [(); 2].map(|()| Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            asked.wait();
            lab.client.within(|| drop(TcpStream::connect((SERVER, 22)).unwrap()));
            visited.wait();
        });
        as_user(&lab, NOBODY, || attack_ssh(&broker, [&asked, &visited]));
    });
    assert!(ssh.accept().is_ok());
}

fn attack_ssh(broker: &Broker, [asked, visited]: [&Barrier; 2]) {
    let (mut link, mut client) = client(broker.environment());
    let own = OwnedFd::from(TcpListener::bind(server(8080)).unwrap());
    let anywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 22));
    for local in [server(22), anywhere] {
        assert_eq!(refused(client.listen(Protocol::Tcp, local, true)), Refusal::Other);
        let listening = client.listen_as(own.as_fd(), Protocol::Tcp, local, true);
        assert_eq!(refused(listening), Refusal::Other);
        let session = OwnedFd::from(TcpStream::connect(server(22)).unwrap());
        let remote = SocketAddr::new(CLIENT.into(), 40_000);
        for shown in [&own, &session] {
            let flow = client.connect_flow_as(shown.as_fd(), Protocol::Tcp, local, remote);
            assert_eq!(refused(flow), Refusal::Other);
        }
    }
    // What another process's listener could not have accepted, it is not given.
    client.listen_as(own.as_fd(), Protocol::Tcp, server(8080), true).unwrap();
    let (pipe, _end) = rustix::pipe::pipe().unwrap();
    let stranger = OwnedFd::from(TcpStream::connect(server(22)).unwrap());
    for gift in [&pipe, &stranger, &own] {
        let passed = client.pass_on(server(8080), server(22), gift.as_fd());
        assert_eq!(refused(passed), Refusal::Other);
    }
    asked.wait();
    visited.wait();
    assert_eq!(link.receive(64, |_| ()), 0);
}

#[test]
fn a_hand_over_that_takes_its_time_is_in_nobodys_way() {
    let lab = Lab::new(1);
    let broker = broker(&lab);
    let answered = AtomicBool::new(false);
    let begun = AtomicBool::new(false);
    let socket = lab.server.within(|| bound(SocketType::STREAM, server(30_010), false));
    hear_nothing(&socket);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            as_user(&lab, NOBODY, || {
                let mut client = Client::connect(broker.environment()).unwrap();
                begun.store(true, Ordering::SeqCst);
                let connection = end(server(30_010), server(30_011), flags::FIN_RECEIVED);
                let outcome = become_end(&mut client, &socket, &connection, &socket);
                answered.store(true, Ordering::SeqCst);
                assert_eq!(refused(outcome), Refusal::NotMoved);
            });
        });
        let mut honest = lab.server.within(|| Client::connect(broker.environment()).unwrap());
        let end = Instant::now() + Duration::from_secs(10);
        while !begun.load(Ordering::SeqCst) {
            assert!(Instant::now() < end);
            std::thread::yield_now();
        }
        // Each of them would be answered after the other one's second.
        std::thread::sleep(Duration::from_millis(100));
        for _ in 0..5 {
            honest.refresh_interface().unwrap();
        }
        assert!(!answered.load(Ordering::SeqCst), "the others waited for it");
    });
    // One that insists on neighbours' frames (IP_MINTTL) need not wait at all.
    as_user(&lab, NOBODY, || {
        let mut client = Client::connect(broker.environment()).unwrap();
        let socket = bound(SocketType::STREAM, server(30_020), false);
        // SAFETY: the kernel reads an int.
        let result = unsafe {
            let hops = 255_i32;
            let length = size_of::<i32>() as libc::socklen_t;
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_IP,
                21, // IP_MINTTL in include/uapi/linux/in.h
                (&raw const hops).cast(),
                length,
            )
        };
        assert_eq!(result, 0);
        let connection = end(server(30_020), server(30_021), flags::FIN_RECEIVED);
        become_end(&mut client, &socket, &connection, &socket).unwrap();
    });
}

/// A filter that drops each segment (SO_ATTACH_FILTER).
fn hear_nothing(socket: &OwnedFd) {
    let mut drop_all = [libc::sock_filter { code: 6, jt: 0, jf: 0, k: 0 }]; // BPF_RET | BPF_K
    let program = libc::sock_fprog { len: 1, filter: drop_all.as_mut_ptr() };
    // SAFETY: the kernel reads the program and its one instruction, which live here.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    assert_eq!(result, 0);
}

/// The most memory that this process has had, in kB.
fn most_memory() -> u64 {
    let line = overfly_testing::process::status(std::process::id(), "VmHWM");
    line.split_ascii_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_connections_file_may_not_be_longer_than_a_sockets_queues() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    use zerocopy::IntoBytes;
    let lab = Lab::new(1);
    let broker = broker(&lab);
    as_user(&lab, NOBODY, || {
        let mut client = Client::connect(broker.environment()).unwrap();
        let socket = bound(SocketType::STREAM, server(30_030), false);
        let before = most_memory();
        let connection = Connection { unsent: 250 << 20, ..end(server(30_030), server(30_031), 0) };
        let file = memfd_create("long", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::io::pwrite(&file, connection.as_bytes(), 0).unwrap();
        ftruncate(&file, (size_of::<Connection>() + (250 << 20)) as u64).unwrap();
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE).unwrap();
        let end = PairEnd { socket: socket.as_fd(), file: file.as_fd(), holder: socket.as_fd() };
        assert_eq!(refused(client.hand_over_pair(&[end])), Refusal::NotMoved);
        let grown = most_memory() - before;
        assert!(grown < 128 << 10, "{grown} kB");
    });
}

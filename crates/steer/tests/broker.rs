//! Several processes: a broker, clients without privilege, and what is left when one of them is killed.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use overfly_broker::{Client, Lease, Leash, Refusal};
use overfly_lab::{Broker, CLIENT, INTERFACE, Lab, SERVER};
use overfly_link::Link;
use overfly_link::xdp::XdpLink;
use overfly_steer::{Attachment, Options, Protocol};
use overfly_wire::{FrameSink, MacAddr, ethernet, ipv4, tcp};

const HTTP: SocketAddrV4 = SocketAddrV4::new(SERVER, 8080);
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
    heed_firewall: true,
    judge_senders: true,
    segment_offload: true,
    receive_offload: overfly_steer::ReceiveOffload::Packets,
    checksum_offload: overfly_steer::ChecksumOffload::Off,
    huge_pages: overfly_link::xdp::HugePages::No,
};

/// Runs this test binary again, in the server's namespace, as one of the roles below.
struct Role {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Role {
    fn start(lab: &Lab, role: &str, environment: &str) -> Role {
        let mut child = lab.server.within(|| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "role", "--nocapture", "--test-threads=1"])
                .env("OVERFLY_TEST_ROLE", role)
                .env("OVERFLY_BROKER", environment)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        });
        let output = BufReader::new(child.stdout.take().unwrap());
        Role { child, output }
    }

    /// The next line that begins with `word`, without it.
    fn hear(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "{word}: the process ended");
            // The harness writes the test's name before the first line without ending it.
            if let Some((_, rest)) = line.trim_end().split_once(&format!("{word} ")) {
                return rest.to_owned();
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a child of the tests does; nothing when it runs as one of the tests.
#[test]
fn role() {
    let Ok(role) = std::env::var("OVERFLY_TEST_ROLE") else {
        return;
    };
    let environment = std::env::var("OVERFLY_BROKER").unwrap();
    if role == "broker" {
        let broker = Broker::start(Attachment::attach(INTERFACE, OPTIONS).unwrap()).unwrap();
        println!("\nenvironment {}", broker.environment());
        std::thread::sleep(Duration::from_secs(60));
        return;
    }
    if let Some(port) = role.strip_prefix("thief:") {
        let (mut client, _link) = join(&environment);
        let remote = SocketAddrV4::new(CLIENT, port.parse().unwrap());
        println!("\nfetched {:?}", client.fetch_flow(HTTP.into(), remote.into()).is_ok());
        return;
    }
    let leash = (role == "leashed").then(|| Leash::connect(&environment).unwrap());
    // Whoever has the secret needs no privilege at all.
    rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65534)).unwrap();
    assert!(std::fs::read("/etc/shadow").is_err());
    let (mut client, mut link) = join(&environment);
    // Of the addresses, nobody has but those that the kernel gave him.
    assert_eq!(refused(client.listen(Protocol::Tcp, HTTP.into(), true)), Refusal::Other);
    let socket = listener();
    assert_eq!(
        refused(client.listen_as(socket.as_fd(), Protocol::Tcp, SocketAddrV4::new(SERVER, 22).into(), true)),
        Refusal::Other
    );
    let peer = SocketAddr::new(CLIENT.into(), 80);
    let flow = client.connect_flow_from(Protocol::Tcp, SocketAddrV4::new(SERVER, 22).into(), peer);
    assert_eq!(refused(flow), Refusal::Other);
    client.listen_as(socket.as_fd(), Protocol::Tcp, HTTP.into(), true).unwrap();
    println!("\nstack {}", link.stack());
    std::io::stdout().flush().unwrap();
    if role == "idle" || role == "leashed" {
        std::thread::sleep(Duration::from_secs(60));
        drop(leash);
        return;
    }
    // "echo": sends every frame back, addresses exchanged, and answers each SYN with a line.
    let mut frames: Vec<Vec<u8>> = Vec::new();
    loop {
        link.receive(64, |frame| frames.push(frame.to_vec()));
        for mut frame in frames.drain(..) {
            if let Some(port) = syn_port(&frame) {
                println!("syn {port}");
            }
            let (destination, source) = frame[..12].split_at_mut(6);
            destination.swap_with_slice(source);
            frame[12..14].copy_from_slice(&0x88b5_u16.to_be_bytes());
            if let Some(buffer) = link.frame() {
                buffer[..frame.len()].copy_from_slice(&frame);
                link.commit(frame.len());
            }
        }
        link.flush();
    }
}

/// The kernel's socket at [`HTTP`], which others may share.
fn listener() -> OwnedFd {
    use rustix::net::{AddressFamily, SocketType, bind, listen, socket, sockopt};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseport(&socket, true).unwrap();
    bind(&socket, &HTTP).unwrap();
    listen(&socket, 1).unwrap();
    socket
}

fn refused<T: std::fmt::Debug>(result: Result<T, overfly_broker::Error>) -> Refusal {
    match result {
        Err(overfly_broker::Error::Refused { refusal, .. }) => refusal,
        other => panic!("{other:?}"),
    }
}

fn syn_port(frame: &[u8]) -> Option<u16> {
    let (_, bytes) = ethernet::Header::parse(frame).ok()?;
    let packet = ipv4::Packet::parse(bytes).ok()?;
    let segment = tcp::Segment::parse(packet.payload()).ok()?;
    segment.flags().contains(tcp::Flags::SYN).then(|| segment.source_port())
}

/// A kernel socket that connects from the client's namespace, and its port.
fn knock(lab: &Lab, to: SocketAddrV4) -> u16 {
    lab.client.within(|| {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, socket_with};
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        bind(&socket, &SocketAddrV4::new(CLIENT, 0)).unwrap();
        let _ = connect(&socket, &to);
        SocketAddrV4::try_from(getsockname(&socket).unwrap()).unwrap().port()
    })
}

/// An acknowledgment of the connection that [`knock`] has begun.
fn send_ack(lab: &Lab, port: u16) {
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};
    const ACK: u8 = 0x10;
    let mut header = [0; 20];
    header[..2].copy_from_slice(&port.to_be_bytes());
    header[2..4].copy_from_slice(&HTTP.port().to_be_bytes());
    (header[12], header[13]) = (5 << 4, ACK);
    lab.client.within(|| {
        let kind = (AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC);
        let socket = socket_with(kind.0, kind.1, kind.2, Some(ipproto::TCP)).unwrap();
        sendto(&socket, &header, SendFlags::empty(), &SocketAddrV4::new(SERVER, 0)).unwrap();
    });
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(5), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A program with a stack.
fn join(environment: &str) -> (Client, XdpLink) {
    let mut client = Client::connect(environment).unwrap();
    let link = XdpLink::open(client.open_stack().unwrap().into_xdp().unwrap()).unwrap();
    (client, link)
}

fn broker(lab: &Lab) -> Broker {
    lab.server.within(|| Broker::start(Attachment::attach(INTERFACE, OPTIONS).unwrap()).unwrap())
}

/// Every frame is back where it can be received into. The kernel keeps one or the other in its own hands.
fn frames_are_back(broker: &Broker) -> bool {
    let attachment = broker.attachment();
    attachment.free_frames().all(|frames| frames >= OPTIONS.rx_frames - 2)
}

#[test]
fn an_unprivileged_process_gets_its_frames_and_a_killed_one_leaves_nothing() {
    let lab = Lab::new(2);
    let broker = broker(&lab);
    for round in 0..10 {
        let mut role = Role::start(&lab, "echo", broker.environment());
        role.hear("stack");
        let port = knock(&lab, HTTP);
        assert_eq!(role.hear("syn"), port.to_string(), "{round}");
        for _ in 0..round {
            knock(&lab, HTTP);
        }
        role.kill();
        wait_until("the stack ends", || broker.counters().stacks_ended == round + 1);
        assert_eq!(broker.attachment().open_stacks(), 0);
        wait_until("frames come back", || frames_are_back(&broker));
        // Nothing is steered any more: the kernel answers.
        let refused = lab.client.within(|| std::net::TcpStream::connect(HTTP)).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    }
    assert_eq!(broker.counters().undoing_failed, 0, "{broker:?}");
    drop(broker);
    assert!(!lab.server.has_xdp());
}

#[test]
fn a_stopped_process_that_had_frames_gives_them_back_when_it_is_killed() {
    let lab = Lab::new(1);
    let broker = broker(&lab);
    let mut role = Role::start(&lab, "idle", broker.environment());
    role.hear("stack");
    for _ in 0..300 {
        knock(&lab, HTTP);
    }
    assert!(!frames_are_back(&broker));
    role.kill();
    wait_until("frames come back", || frames_are_back(&broker));
    assert!(broker.attachment().reclaimed().received_frames >= 300);
}

#[test]
fn killing_the_broker_kills_the_leashed_and_detaches_the_program() {
    let lab = Lab::new(2);
    let mut broker = Role::start(&lab, "broker", "none");
    let environment = broker.hear("environment");
    assert!(lab.server.has_xdp());
    let mut leashed = Role::start(&lab, "leashed", &environment);
    leashed.hear("stack");
    let mut free = Role::start(&lab, "idle", &environment);
    free.hear("stack");
    broker.kill();
    let status = leashed.child.wait().unwrap();
    assert_eq!(status.signal(), Some(9));
    assert!(free.child.try_wait().unwrap().is_none());
    wait_until("the program is detached", || !lab.server.has_xdp());
    // The same works again as soon as the last of the old one's clients has let go of the queues.
    free.kill();
    let mut again = Role::start(&lab, "broker", "none");
    let environment = again.hear("environment");
    let mut role = Role::start(&lab, "echo", &environment);
    role.hear("stack");
    let port = knock(&lab, HTTP);
    assert_eq!(role.hear("syn"), port.to_string());
}

#[test]
fn two_clients_share_a_listener_and_the_rest_goes_on_when_one_leaves() {
    let lab = Lab::new(2);
    let broker = broker(&lab);
    lab.server.enter();
    let mut clients: Vec<(Client, XdpLink)> = (0..2)
        .map(|_| {
            let (mut client, link) = join(broker.environment());
            client.listen(Protocol::Tcp, HTTP.into(), true).unwrap();
            (client, link)
        })
        .collect();
    for _ in 0..40 {
        knock(&lab, HTTP);
    }
    let seen: Vec<usize> = clients.iter_mut().map(|(_, link)| link.receive(64, |_| ())).collect();
    assert!(seen[0] > 5 && seen[1] > 5 && seen[0] + seen[1] == 40, "{seen:?}");
    // A live process lets go: first the link, then the connection.
    drop(clients.remove(0));
    wait_until("the stack ends", || broker.attachment().open_stacks() == 1);
    for _ in 0..20 {
        knock(&lab, HTTP);
    }
    assert_eq!(clients[0].1.receive(64, |_| ()), 20);
    wait_until("frames come back", || frames_are_back(&broker));
    // A client that hangs up without closing its link is undone, and its frames come back when it closes it.
    let (client, link) = clients.remove(0);
    for _ in 0..10 {
        knock(&lab, HTTP);
    }
    drop(client);
    wait_until("the stack ends", || broker.attachment().open_stacks() == 0);
    std::thread::sleep(Duration::from_millis(150));
    assert!(!frames_are_back(&broker));
    drop(link);
    wait_until("frames come back", || frames_are_back(&broker));
}

/// A connection that a listener has got goes on in another stack of the same process, whose frames they are then; not in another
/// process's, nor one that nobody has.
#[test]
fn a_stack_fetches_a_connection_of_its_own_process() {
    let lab = Lab::new(1);
    let broker = broker(&lab);
    lab.server.enter();
    let mut clients = [(); 2].map(|()| join(broker.environment()));
    clients[0].0.listen(Protocol::Tcp, HTTP.into(), true).unwrap();
    let port = knock(&lab, HTTP);
    assert_eq!(clients[0].1.receive(64, |_| ()), 1);
    let at = |port| SocketAddr::from(SocketAddrV4::new(CLIENT, port));
    assert!(clients[1].0.fetch_flow(HTTP.into(), at(port ^ 1)).is_err(), "nobody's");
    assert_eq!(Role::start(&lab, &format!("thief:{port}"), broker.environment()).hear("fetched"), "false");
    clients[1].0.fetch_flow(HTTP.into(), at(port)).unwrap();
    assert!(clients[1].0.fetch_flow(HTTP.into(), at(port)).is_err(), "its own already");
    // What the peer sends next comes to the other stack.
    send_ack(&lab, port);
    wait_until("a frame comes", || clients[1].1.receive(64, |_| ()) == 1);
    assert_eq!(clients[0].1.receive(64, |_| ()), 0);
    clients[0].0.fetch_flow(HTTP.into(), at(port)).unwrap();
    send_ack(&lab, port);
    wait_until("a frame comes", || clients[0].1.receive(64, |_| ()) == 1);
    assert_eq!(clients[1].1.receive(64, |_| ()), 0);
}

#[test]
fn all_stacks_taken_is_said_and_the_places_come_back() {
    let lab = Lab::new(2);
    let broker = broker(&lab);
    lab.server.enter();
    for _ in 0..3 {
        let clients: Vec<_> = (0..OPTIONS.stacks).map(|_| join(broker.environment())).collect();
        let mut late = Client::connect(broker.environment()).unwrap();
        let error = late.open_stack().unwrap_err();
        assert!(
            matches!(&error, overfly_broker::Error::Refused { refusal: Refusal::NoStack, reason } if reason.contains("attach with more stacks")),
            "{error}"
        );
        drop(clients);
        wait_until("the stacks end", || broker.attachment().open_stacks() == 0);
        wait_until("a place is free", || late.open_stack().is_ok());
        // The next round finds all places free.
        drop(late);
        wait_until("the last stack ends", || broker.attachment().open_stacks() == 0);
    }
}

#[test]
fn a_listener_everywhere_follows_the_interfaces_addresses() {
    let lab = Lab::new(1);
    let broker = broker(&lab);
    lab.server.enter();
    let (mut client, mut link) = join(broker.environment());
    client.listen(Protocol::Tcp, "0.0.0.0:8080".parse().unwrap(), true).unwrap();
    let second = Ipv4Addr::new(10, 99, 0, 9);
    assert!(matches!(
        client.listen(Protocol::Tcp, SocketAddr::new(second.into(), 8080), true),
        Err(overfly_broker::Error::Refused { refusal: Refusal::NotLocal, .. })
    ));
    knock(&lab, HTTP);
    assert_eq!(link.receive(64, |_| ()), 1);
    lab.server.run(&format!("address add {second}/24 dev {INTERFACE}"));
    wait_until("the new address is known", || client.refresh_interface().unwrap().addresses.len() == 4);
    lab.client.command("ip", &["neigh", "flush", "dev", INTERFACE]);
    knock(&lab, SocketAddrV4::new(second, 8080));
    wait_until("its SYN arrives", || link.receive(64, |_| ()) == 1);
    lab.server.run(&format!("address del {second}/24 dev {INTERFACE}"));
    wait_until("it is forgotten", || client.refresh_interface().unwrap().addresses.len() == 3);
}

#[test]
fn an_address_that_changes_while_a_broker_starts_is_not_missed() {
    let lab = Lab::new(1);
    lab.server.enter();
    let attachment = Attachment::attach(INTERFACE, OPTIONS).unwrap();
    lab.server.run(&format!("address add 10.99.0.9/24 dev {INTERFACE}"));
    let broker = Broker::start(attachment).unwrap();
    let mut client = Client::connect(broker.environment()).unwrap();
    assert_eq!(client.refresh_interface().unwrap().addresses.len(), 4);
}

#[test]
fn an_active_open_gets_its_route_and_its_frames() {
    let lab = Lab::new(2);
    let broker = broker(&lab);
    lab.server.enter();
    let (mut client, mut link) = join(broker.environment());
    let remote = SocketAddr::new(CLIENT.into(), 80);
    let route = client.connect_flow(Protocol::Tcp, 40_000, remote).unwrap();
    assert_eq!(route.source, SERVER);
    let refusal_of = |result: Result<overfly_broker::Route, overfly_broker::Error>| match result {
        Err(overfly_broker::Error::Refused { refusal, .. }) => refusal,
        other => panic!("{other:?}"),
    };
    let mut other = Client::connect(broker.environment()).unwrap();
    assert_eq!(refusal_of(other.connect_flow(Protocol::Tcp, 40_000, remote)), Refusal::StackState);
    let _link = XdpLink::open(other.open_stack().unwrap().into_xdp().unwrap()).unwrap();
    assert_eq!(refusal_of(other.connect_flow(Protocol::Tcp, 40_000, remote)), Refusal::TupleInUse);
    let loopback = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 80);
    assert_eq!(refusal_of(other.connect_flow(Protocol::Tcp, 1, loopback)), Refusal::RouteElsewhere);
    let nobody = SocketAddr::new(Ipv4Addr::new(10, 99, 0, 200).into(), 80);
    let begin = Instant::now();
    assert_eq!(refusal_of(other.connect_flow(Protocol::Tcp, 1, nobody)), Refusal::NoNeighbor);
    assert!(begin.elapsed() < Duration::from_secs(10));

    // The kernel refuses the SYN; its RST comes here, not to our own kernel.
    let syn = |link: &mut XdpLink| {
        let buffer = link.frame().unwrap();
        let mut length = 54;
        ethernet::Header {
            destination: route.next_hop,
            source: client_mac(&broker),
            ethertype: ethernet::ETHERTYPE_IPV4,
        }
        .emit(buffer);
        let segment = tcp::Header {
            source_port: 40_000,
            destination_port: 80,
            sequence: 7,
            acknowledgment: 0,
            flags: tcp::Flags::SYN,
            window: 1000,
            options: tcp::Options::default(),
        };
        let segment_len = segment.emit(&mut buffer[34..]);
        length += segment_len - 20;
        ipv4::Header {
            source: SERVER,
            destination: CLIENT,
            protocol: ipv4::PROTOCOL_TCP,
            ttl: 64,
            tos: 0,
            identification: 0,
            dont_fragment: true,
            payload_len: segment_len as u16,
        }
        .emit(&mut buffer[14..]);
        tcp::write_checksum(&mut buffer[34..length], SERVER, CLIENT);
        link.commit(length);
        link.flush();
    };
    syn(&mut link);
    let mut reset = false;
    wait_until("the RST arrives", || {
        link.receive(64, |frame| {
            let (_, bytes) = ethernet::Header::parse(frame).unwrap();
            let packet = ipv4::Packet::parse(bytes).unwrap();
            let segment = tcp::Segment::parse(packet.payload()).unwrap();
            reset |= segment.flags().contains(tcp::Flags::RST) && segment.acknowledgment() == 8;
        });
        reset
    });
    client.disconnect_flow(Protocol::Tcp, 40_000, remote).unwrap();
    let segments = || {
        let text = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
        overfly_testing::kernel::counter(&text, "Tcp", "InSegs")
    };
    let before = segments();
    syn(&mut link);
    wait_until("the RST comes to the kernel", || segments() > before);
    assert_eq!(link.receive(64, |_| ()), 0);
    assert!(other.connect_flow(Protocol::Tcp, 40_000, remote).is_ok());
}

#[test]
fn connections_end_in_numbers() {
    let lab = Lab::new(2);
    let broker = broker(&lab);
    lab.server.enter();
    let [(mut client, _link), (mut other, _others)] = [(), ()].map(|()| join(broker.environment()));
    let remote = SocketAddr::new(CLIENT.into(), 80);
    // More than are said at once.
    let flows: Vec<_> = (40_000..40_300_u16).map(|port| (port, remote)).collect();
    for &(port, remote) in &flows {
        client.connect_flow(Protocol::Tcp, port, remote).unwrap();
        let taken = other.connect_flow(Protocol::Tcp, port, remote);
        assert_eq!(refused(taken), Refusal::TupleInUse);
    }
    client.disconnect_flows(&flows).unwrap();
    client.disconnect_flows(&[]).unwrap();
    for &(port, remote) in &flows {
        other.connect_flow(Protocol::Tcp, port, remote).unwrap();
    }
    // No answer is left for who asks next.
    assert_eq!(client.route(CLIENT.into()).unwrap().source, SERVER);
    assert_eq!(refused(client.connect_flow(Protocol::Tcp, 40_000, remote)), Refusal::TupleInUse);
}

#[test]
fn a_way_that_has_changed_is_the_next_connections() {
    let lab = Lab::new(1);
    let broker = broker(&lab);
    lab.server.enter();
    let (mut client, link) = join(broker.environment());
    let remote = SocketAddr::new(CLIENT.into(), 80);
    let moves = |last: u8, state| {
        let mac = MacAddr([2, 0, 0, 0, 0, last]);
        lab.server.run(&format!("neigh replace {CLIENT} lladdr {mac} dev {INTERFACE} nud {state}"));
        mac
    };
    for last in 1..30_u8 {
        let mac = moves(last, "permanent");
        let route = client.connect_flow(Protocol::Tcp, 40_000 + u16::from(last), remote).unwrap();
        assert_eq!(route.next_hop, mac);
    }
    // Stacks hear of that, and not of a neighbour who is where he was (others may come meanwhile).
    let pause = || std::thread::sleep(Duration::from_millis(300));
    pause();
    let stays_silent = |state| {
        let before = link.changes();
        moves(29, state);
        pause();
        link.changes() == before
    };
    assert!(["stale", "permanent", "stale", "permanent"].into_iter().any(stays_silent));
    let before = link.changes();
    moves(30, "stale");
    wait_until("stacks hear of it", || link.changes() > before);
}

#[test]
fn a_program_that_joined_is_let_go_with_its_lease() {
    let lab = Lab::new(1);
    let broker = broker(&lab);
    lab.server.enter();
    let lease = Lease::at_interface(INTERFACE).unwrap().expect("a broker");
    let environment = lease.environment().to_owned();
    assert_ne!(environment, broker.environment());
    let [(mut first, _), (mut second, _)] = [broker.environment(), &environment].map(join);
    assert_eq!(broker.attachment().open_stacks(), 2);
    assert!(lease.leave(), "the broker's own program stays");
    assert!(second.refresh_interface().is_err(), "its processes are hung up on");
    assert!(Client::connect(&environment).is_err(), "and its secret is void");
    wait_until("its stack ends", || broker.attachment().open_stacks() == 1);
    assert!(first.refresh_interface().is_ok());
    // Others' names prove nothing, and others do not join.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65534)).unwrap();
            assert!(!matches!(Lease::at_interface(INTERFACE), Ok(Some(_))));
            let (name, _) = environment.split_once(':').unwrap();
            assert!(Lease::at(name).is_err());
        });
    });
    let lease = Lease::at_interface(INTERFACE).unwrap().expect("a broker");
    drop(broker);
    assert!(!lease.leave());
    assert!(Lease::at_interface(INTERFACE).unwrap().is_none());
}

#[test]
fn stacks_of_one_user_only_and_the_next_user_gets_new_memory() {
    let lab = Lab::new(2);
    lab.server.enter();
    let mut attachment = Attachment::attach(INTERFACE, OPTIONS).unwrap();
    let sockets = attachment.add_stack_for(1).unwrap();
    let again = attachment.add_stack_for(1).unwrap();
    let other = attachment.add_stack_for(2);
    assert!(matches!(other, Err(overfly_steer::Error::OtherUser { user: 1 })), "{other:?}");
    let number = |sockets: &overfly_link::xdp::StackSockets| {
        rustix::fs::fstat(&sockets.queues[0].pool).unwrap().st_ino
    };
    let first = number(&sockets);
    for stack in [sockets.stack, again.stack] {
        attachment.remove_stack(stack).unwrap();
    }
    drop(again);
    // Who keeps a descriptor keeps the queue: then nobody else has it.
    let other = attachment.add_stack_for(2);
    assert!(other.is_err(), "{other:?}");
    drop(sockets);
    let mut sockets = None;
    wait_until("the queue is free", || {
        sockets = attachment.add_stack_for(2).ok();
        sockets.is_some()
    });
    let sockets = sockets.unwrap();
    assert_ne!(number(&sockets), first);
    let mut link = XdpLink::open(sockets).unwrap();
    attachment.listen(link.stack(), Protocol::Tcp, HTTP.into(), true).unwrap();
    knock(&lab, HTTP);
    assert_eq!(link.receive(64, |_| ()), 1);
}

fn client_mac(broker: &Broker) -> MacAddr {
    broker.attachment().interface().mac
}

#[test]
fn nonsense_is_counted_and_harms_nobody() {
    use overfly_broker::message::{Hello, Kind, Request, RequestMessage, Role as Purpose, Token};
    use rustix::io::IoSliceMut;
    use rustix::net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
        SocketFlags, SocketType, connect, recvmsg, send, socket_with,
    };
    use std::mem::MaybeUninit;
    use zerocopy::IntoBytes;
    let lab = Lab::new(1);
    let broker = broker(&lab);
    lab.server.enter();
    let environment = broker.environment().to_owned();
    let (name, hex) = environment.split_once(':').unwrap();
    let mut token = Token([0; 16]);
    for (byte, at) in token.0.iter_mut().zip((0..32).step_by(2)) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    }
    let dial = || {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        socket
    };
    let say = |socket: &OwnedFd, bytes: &[u8]| {
        let _ = send(socket, bytes, SendFlags::NOSIGNAL);
    };
    let descriptor = |socket: &OwnedFd| {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        recvmsg(socket, &mut [IoSliceMut::new(&mut [0; 512])], &mut control, RecvFlags::empty()).unwrap();
        let passed = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        passed.unwrap()
    };
    // No secret, a wrong one, half a greeting, far too much.
    for bytes in [
        &b"GET / HTTP/1.1"[..],
        &[0; 24],
        Hello::new(Purpose::Client, Token([0; 16])).as_bytes(),
        &Hello::new(Purpose::Client, token).as_bytes()[..23],
        &[0; 60_000],
    ] {
        say(&dial(), bytes);
    }
    wait_until("five are refused", || broker.counters().greetings_refused == 5);
    let wrong = environment.replace(hex, &"0".repeat(32));
    assert!(Client::connect(&wrong).is_err());
    assert!(Leash::connect(&wrong).is_err());
    // With the secret, but then nonsense.
    let listen = Request { local: HTTP.into(), ..Request::new(Kind::Listen) };
    let mut open = Vec::new();
    for purpose in [Purpose::Client, Purpose::Leash] {
        for bytes in [&[0xff; 20][..], &[1; 3], RequestMessage::new(&listen).as_bytes(), &[3; 500]] {
            let mut socket = dial();
            say(&socket, Hello::new(purpose, token).as_bytes());
            if purpose == Purpose::Leash {
                socket = descriptor(&socket);
            }
            say(&socket, bytes);
            open.push(socket);
        }
    }
    wait_until("they are refused", || {
        let counters = broker.counters();
        counters.messages_refused + counters.requests_refused >= 8
    });
    // Descriptors that nobody asked for, and a client that never reads.
    let deaf = dial();
    say(&deaf, Hello::new(Purpose::Client, token).as_bytes());
    for _ in 0..5000 {
        let request = RequestMessage::new(&Request::new(Kind::Interface));
        if send(&deaf, request.as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_err() {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    wait_until("it is given up", || broker.counters().answers_undelivered >= 1);
    let (mut client, mut link) = join(&environment);
    client.listen(Protocol::Tcp, HTTP.into(), true).unwrap();
    knock(&lab, HTTP);
    assert_eq!(link.receive(64, |_| ()), 1);
}

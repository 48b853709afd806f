//! One process, real frames: the kernel is on the other side of a veth pair.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use overfly_lab::{CLIENT, CLIENT_V6, INTERFACE, Lab, SERVER, SERVER_V6};
use overfly_link::Link;
use overfly_link::xdp::{HugePages, XdpLink};
use overfly_steer::{Attachment, Error, Options, Protocol, ReceiveOffload};
use overfly_wire::{FrameSink, MacAddr, ethernet, ipv4, tcp};
use rustix::thread::CapabilitySet;

/// Set for whoever is started by a test.
const ROLE: &str = "OVERFLY_TEST_ROLE";
const HTTP: SocketAddrV4 = SocketAddrV4::new(SERVER, 8080);

/// Starts a kernel connection that nobody here answers.
fn knock(lab: &Lab, to: SocketAddrV4) -> u16 {
    let socket = lab.client.within(|| {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, socket_with};
        let socket = socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        bind(&socket, &SocketAddrV4::new(CLIENT, 0)).unwrap();
        let port = SocketAddrV4::try_from(getsockname(&socket).unwrap()).unwrap().port();
        let _ = connect(&socket, &to);
        (socket, port)
    });
    // The SYN has left inside connect(): veth delivers at once.
    socket.1
}

/// Receives until `wanted` finds something in a frame, for a second at most.
fn receive_until<T>(link: &mut XdpLink, mut wanted: impl FnMut(&[u8]) -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    let mut found = None;
    while found.is_none() && begin.elapsed() < Duration::from_secs(1) {
        link.receive(64, |frame| found = found.take().or_else(|| wanted(frame)));
    }
    found
}

fn syn_ports(frame: &[u8]) -> Option<(u16, u16)> {
    let (_, bytes) = ethernet::Header::parse(frame).ok()?;
    let packet = ipv4::Packet::parse(bytes).ok()?;
    let segment = tcp::Segment::parse(packet.payload()).ok()?;
    (segment.flags().contains(tcp::Flags::SYN)).then(|| (segment.source_port(), segment.destination_port()))
}

#[test]
fn a_kernel_connect_shows_up_as_a_syn_and_everything_else_passes() {
    let lab = Lab::new(2);
    lab.server.enter();
    // The kernel adds it a moment after the link is up.
    let begin = Instant::now();
    while !std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap().contains("fe80") {
        assert!(begin.elapsed() < Duration::from_secs(5), "there is no link-local address");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut attachment = Attachment::attach(INTERFACE, Options::default()).unwrap();
    assert!(lab.server.has_xdp());
    assert!(attachment.interface().partial_checksums);
    let addresses = &attachment.interface().addresses;
    assert_eq!(addresses[..2], [(IpAddr::from(SERVER), 24), (IpAddr::from(SERVER_V6), 64)]);
    assert!(addresses.len() == 3 && addresses[2].0.to_string().starts_with("fe80::"), "{addresses:?}");
    let sockets = attachment.add_stack().unwrap();
    let stack = sockets.stack;
    let mut link = XdpLink::open(sockets).unwrap();
    attachment.listen(stack, Protocol::Tcp, HTTP.into(), true).unwrap();

    let mut ports = BTreeSet::new();
    for _ in 0..20 {
        // The kernel may choose a port that an earlier connection had: the flow is recorded already.
        let port = knock(&lab, HTTP);
        ports.insert(port);
        let seen = receive_until(&mut link, |frame| syn_ports(frame).filter(|ports| ports.0 == port));
        assert_eq!(seen, Some((port, 8080)));
    }
    // Another port is the kernel's own.
    let kernel = TcpListener::bind(SocketAddrV4::new(SERVER, 8081)).unwrap();
    lab.client.within(|| TcpStream::connect(SocketAddrV4::new(SERVER, 8081)).unwrap());
    kernel.accept().unwrap();
    // As is UDP to the same one.
    let udp = UdpSocket::bind(SocketAddrV4::new(SERVER, 8080)).unwrap();
    lab.client.within(|| UdpSocket::bind((CLIENT, 0)).unwrap().send_to(b"x", HTTP).unwrap());
    udp.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    udp.recv_from(&mut [0; 8]).unwrap();

    let counters = attachment.counters().unwrap();
    assert!(counters.to_listener >= 20 && counters.flows_recorded >= ports.len() as u64, "{counters:?}");
    assert!(counters.passed_other > 0);
    assert_eq!(link.kernel_counters().unwrap().receive_dropped, 0);
    drop(link);
    attachment.remove_stack(stack).unwrap();
    drop(attachment);
    assert!(!lab.server.has_xdp());
}

#[test]
fn a_raw_frame_reaches_the_peer() {
    let lab = Lab::new(2);
    lab.server.enter();
    let mut attachment = Attachment::attach(INTERFACE, Options::default()).unwrap();
    let (first, second) = (attachment.add_stack().unwrap(), attachment.add_stack().unwrap());
    for sockets in [first, second] {
        let peer = lab.client.within(|| {
            use rustix::net::sockopt::{Timeout, set_socket_timeout};
            use rustix::net::{AddressFamily, Protocol, RawProtocol, SocketFlags, SocketType, socket_with};
            let every = RawProtocol::new(u32::from(0x88b5_u16.to_be())).unwrap();
            let socket = socket_with(
                AddressFamily::PACKET,
                SocketType::RAW,
                SocketFlags::CLOEXEC,
                Some(Protocol::from_raw(every)),
            )
            .unwrap();
            set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(1))).unwrap();
            socket
        });
        let mut link = XdpLink::open(sockets).unwrap();
        // More than the stack has frames: completions must come back.
        for number in 0..2000_u32 {
            let frame = link.frame().expect("veth takes frames as fast as they are flushed");
            let header = ethernet::Header {
                destination: MacAddr::BROADCAST,
                source: MacAddr([2, 0, 0, 0, 0, 1]),
                ethertype: 0x88b5, // local experimental (IEEE 802)
            };
            header.emit(frame);
            frame[14..18].copy_from_slice(&number.to_be_bytes());
            link.commit(64);
            link.flush();
            let mut received = [0; 2048];
            let (length, _) =
                rustix::net::recv(&peer, &mut received[..], rustix::net::RecvFlags::empty()).unwrap();
            assert_eq!(length, 64);
            assert_eq!(received[14..18], number.to_be_bytes());
        }
        assert_eq!(link.counters().sent_frames, 2000);
        assert_eq!(link.counters().transmit_full, 0);
        assert!(!link.is_busy());
    }
}

#[test]
fn routes_and_neighbours_are_the_kernels() {
    let lab = Lab::new(1);
    lab.server.run(&format!("route add 10.200.0.0/16 via {CLIENT}"));
    lab.server.run("route add 10.201.0.0/16 dev lo");
    lab.server.run("route add blackhole 10.202.0.0/16");
    lab.server.enter();
    let mut attachment = Attachment::attach(INTERFACE, Options::default()).unwrap();
    let direct = attachment.route(CLIENT.into()).unwrap();
    assert_eq!(direct.source, SERVER);
    let mac = lab.client.command("ip", &["link", "show", INTERFACE]);
    assert!(mac.contains(&direct.next_hop.to_string()), "{mac}");
    assert_eq!(attachment.route("10.200.1.1".parse().unwrap()).unwrap(), direct);
    for elsewhere in [Ipv4Addr::new(10, 201, 0, 1), SERVER, Ipv4Addr::LOCALHOST] {
        assert!(matches!(attachment.route(elsewhere.into()), Err(Error::RouteElsewhere { .. })));
    }
    for unreachable in
        [Ipv4Addr::new(10, 202, 0, 1), Ipv4Addr::new(10, 203, 0, 1), Ipv4Addr::new(10, 99, 0, 255)]
    {
        assert!(
            matches!(attachment.route(unreachable.into()), Err(Error::Unreachable { .. })),
            "{unreachable}"
        );
    }
    let begin = Instant::now();
    assert!(matches!(attachment.route("10.99.0.77".parse().unwrap()), Err(Error::NoNeighbor { .. })));
    assert!(begin.elapsed() < Duration::from_secs(10));

    // IPv6: the same, and link-local addresses, which only the interface makes unique.
    let link_local = lab.client.link_local();
    for (destination, source) in
        [(CLIENT_V6, IpAddr::from(SERVER_V6)), (link_local, lab.server.link_local().into())]
    {
        let route = attachment.route(destination.into()).unwrap();
        assert_eq!((route.source, route.next_hop), (source, direct.next_hop), "{destination}");
    }
    lab.server.run(&format!("-6 route add fd01::/16 via {CLIENT_V6}"));
    lab.server.run(&format!("route add 10.204.0.0/16 via inet6 {link_local} dev {INTERFACE}"));
    assert_eq!(attachment.route("fd01::5".parse().unwrap()).unwrap().next_hop, direct.next_hop);
    assert_eq!(attachment.route("10.204.0.1".parse().unwrap()).unwrap(), direct);
    assert!(matches!(attachment.route(SERVER_V6.into()), Err(Error::RouteElsewhere { .. })));
    assert!(matches!(attachment.route("2001:db8::1".parse().unwrap()), Err(Error::Unreachable { .. })));
    assert!(matches!(
        attachment.route("ff02::1".parse().unwrap()),
        Err(Error::Unreachable { .. } | Error::RouteElsewhere { .. })
    ));
    assert!(matches!(attachment.route("fd99::77".parse().unwrap()), Err(Error::NoNeighbor { .. })));
}

#[test]
fn busy_polling_is_left_alone_where_the_kernel_cannot() {
    let lab = Lab::new(1);
    lab.server.enter();
    let options = Options { busy_poll: true, ..Options::default() };
    let mut attachment = Attachment::attach(INTERFACE, options).unwrap();
    // veth has no zero-copy: its sockets never know their NAPI before a frame, and since Linux 6.13 not even then.
    assert!(!attachment.busy_poll() && !attachment.zero_copy());
    let sockets = attachment.add_stack().unwrap();
    assert_eq!(sockets.busy_poll, None);
    let mut link = XdpLink::open(sockets).unwrap();
    assert!(matches!(
        link.enable_busy_poll(overfly_link::xdp::BusyPoll::default()),
        Err(overfly_link::Error::NoBusyPoll)
    ));
}

#[test]
fn what_cannot_be_attached_says_what_to_do() {
    let lab = Lab::new(1);
    lab.server.enter();
    let message = |interface: &str| {
        let error = Attachment::attach(interface, Options::default()).unwrap_err();
        assert!(!lab.server.has_xdp() || matches!(error, Error::ProgramAttached { .. }));
        error.to_string()
    };
    assert!(message("nosuch0").contains("no interface nosuch0"));
    assert!(message("lo").contains("no native XDP"));
    lab.server.run(&format!("address flush dev {INTERFACE}"));
    assert!(message(INTERFACE).contains("has no IP address"));
    lab.server.run(&format!("address add {SERVER}/24 dev {INTERFACE}"));
    lab.set_mtu(9000);
    let short = Options { receive_offload: ReceiveOffload::Off, ..Options::default() };
    let error = Attachment::attach(INTERFACE, short).unwrap_err().to_string();
    assert!(error.contains("mtu 1500"), "{error}");
    lab.set_mtu(3400);
    let first = Attachment::attach(INTERFACE, short).unwrap();
    assert_eq!(first.interface().mtu, 1778);
    let taken = message(INTERFACE);
    assert!(taken.contains("another XDP program (id ") && taken.contains("xdp off"), "{taken}");
    drop(first);
    let odd = Options { rx_ring: 1000, ..Options::default() };
    let error = Attachment::attach(INTERFACE, odd).unwrap_err();
    assert!(error.to_string().contains("power of two"), "{error}");
    let again = Attachment::attach(INTERFACE, Options::default()).unwrap();
    // Without privilege, on a thread of its own.
    drop(again);
    let error = lab.server.within(|| {
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65534)).unwrap();
        Attachment::attach(INTERFACE, Options::default()).unwrap_err()
    });
    assert!(matches!(error, Error::NoPrivilege { .. }), "{error}");
    assert!(error.to_string().contains("try again with sudo"), "{error}");
}

/// What the test below starts in a user namespace of its own.
#[test]
fn root_of_another_user_namespace() {
    if std::env::var_os(ROLE).is_some() {
        println!("{}", Attachment::attach(INTERFACE, Options::default()).unwrap_err());
    }
}

/// A device of several queues may use fewer than its driver has: no number is as good as another.
#[test]
fn without_the_right_to_read_how_many_queues_are_in_use_that_is_said() {
    let without_mounts = |lab: &Lab| {
        lab.server.within(|| {
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::SYS_ADMIN);
            rustix::thread::set_capabilities(None, sets).unwrap();
            Attachment::attach(INTERFACE, Options::default()).map(drop)
        })
    };
    let lab = Lab::new(2);
    let error = without_mounts(&lab).unwrap_err();
    assert!(matches!(error, Error::QueuesUnknown { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("Operation not permitted") && said.contains("CAP_SYS_ADMIN"), "{said}");
    assert!(!lab.server.has_xdp());
    // Who has no privilege at all is not told of mounts and sandboxes.
    let error = lab.server.within(|| {
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65534)).unwrap();
        Attachment::attach(INTERFACE, Options::default()).unwrap_err()
    });
    assert!(matches!(error, Error::NoPrivilege { .. }), "{error}");
    assert!(
        error.to_string().contains("try again with sudo") && !error.to_string().contains("/sys"),
        "{error}"
    );
    // Nor is root of a user namespace, whose privileges are none over this network.
    let output = lab.server.within(|| {
        let mut command = Command::new("unshare");
        command.arg("-Ur").arg(std::env::current_exe().unwrap());
        command.args(["--exact", "root_of_another_user_namespace", "--nocapture"]);
        command.env(ROLE, "1").output().unwrap()
    });
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("try again with sudo") && !said.contains("/sys"), "{said}");
    // One queue each way is all that there can be.
    without_mounts(&Lab::new(1)).unwrap();
}

#[test]
fn a_peer_with_more_queues_is_named() {
    let lab = Lab::new(1);
    lab.server.run(
        "link add wide0 numrxqueues 1 numtxqueues 1 type veth peer name wide1 numrxqueues 4 numtxqueues 4",
    );
    lab.server.run("link set wide1 up");
    lab.server.run("address add 10.98.0.1/24 dev wide0");
    lab.server.run("link set wide0 up");
    lab.server.enter();
    let error = Attachment::attach("wide0", Options::default()).unwrap_err();
    assert!(matches!(error, Error::TooFewQueues { rx_queues: 1, .. }), "{error}");
}

#[test]
fn more_listeners_than_fit_are_refused_and_the_others_go_on() {
    let lab = Lab::new(1);
    lab.server.enter();
    let mut attachment = Attachment::attach(INTERFACE, Options::default()).unwrap();
    let sockets = attachment.add_stack().unwrap();
    let stack = sockets.stack;
    let mut link = XdpLink::open(sockets).unwrap();
    let at = |port| SocketAddr::new(SERVER.into(), port);
    let mut port = 0;
    let error = loop {
        port += 1;
        match attachment.listen(stack, Protocol::Tcp, at(port), true) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(port, 4097);
    assert!(error.to_string().contains("listeners is full"), "{error}");
    attachment.unlisten(stack, Protocol::Tcp, at(7), true).unwrap();
    knock(&lab, SocketAddrV4::new(SERVER, 4096));
    assert_eq!(link.receive(64, |_| ()), 1);
    drop(link);
    attachment.remove_stack(stack).unwrap();
    let stack = attachment.add_stack().unwrap().stack;
    attachment.listen(stack, Protocol::Tcp, at(9000), true).unwrap();
}

#[test]
fn links_and_brokers_may_change_threads() {
    fn sent<T: Send>() {}
    sent::<XdpLink>();
    sent::<Attachment>();
    sent::<overfly_lab::Broker>();
}

/// Huge pages that the machine keeps free while this lives.
struct HugePagesOfMachine(String);

impl HugePagesOfMachine {
    const PATH: &str = "/proc/sys/vm/nr_hugepages";

    fn reserve(count: u32) -> HugePagesOfMachine {
        let before = std::fs::read_to_string(Self::PATH).unwrap();
        std::fs::write(Self::PATH, count.to_string()).unwrap();
        HugePagesOfMachine(before)
    }
}

impl Drop for HugePagesOfMachine {
    fn drop(&mut self) {
        let _ = std::fs::write(Self::PATH, &self.0);
    }
}

#[test]
fn packet_memory_is_made_of_huge_pages_if_there_are_any() {
    let lab = Lab::new(1);
    lab.server.enter();
    let small = Options { stacks: 2, rx_frames: 1024, rx_ring: 512, tx_frames: 64, ..Options::default() };
    let attach = |huge_pages| Attachment::attach(INTERFACE, Options { huge_pages, ..small });
    {
        let _none = HugePagesOfMachine::reserve(0);
        assert!(!attach(HugePages::Try).unwrap().huge_pages());
        let refused = attach(HugePages::Insist).unwrap_err().to_string();
        assert!(refused.contains("MiB in huge pages") && refused.contains("vm.nr_hugepages"), "{refused}");
    }
    let _some = HugePagesOfMachine::reserve(8);
    assert!(!attach(HugePages::No).unwrap().huge_pages());
    for wish in [HugePages::Try, HugePages::Insist] {
        let mut attachment = attach(wish).unwrap();
        assert!(attachment.huge_pages());
        // A stack's process maps the same memory.
        drop(XdpLink::open(attachment.add_stack().unwrap()).unwrap());
    }
}

#[test]
fn a_stack_needs_free_packet_memory() {
    let lab = Lab::new(1);
    lab.server.enter();
    let options = Options { rx_frames: 2048, min_free_frames: 2049, ..Options::default() };
    let refused = Attachment::attach(INTERFACE, options).unwrap().add_stack().unwrap_err().to_string();
    assert!(refused.contains("2048 packet buffers are free") && refused.contains("2049"), "{refused}");
    let enough = Options { min_free_frames: 2048, ..options };
    assert!(Attachment::attach(INTERFACE, enough).unwrap().add_stack().is_ok());
}

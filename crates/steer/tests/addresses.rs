//! Whose frames reach a stack: what comes from where, to which hardware address, and where the answers go. The kernel's routes,
//! neighbours and rules decide; what it would refuse or answer by another way is left to it.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use overfly_broker::{Client, LeftFrames, observer};
use overfly_lab::{Broker, CLIENT, CLIENT_V6, INTERFACE, Lab, SERVER, SERVER_V6};
use overfly_link::Link;
use overfly_link::xdp::XdpLink;
use overfly_steer::{Attachment, Options, Protocol};
use overfly_wire::MacAddr;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, bind, send, socket_with};

const PORT: u16 = 8080;
const STRANGER: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x66]);

/// A stack that listens at all addresses of the server, and a wire that anything can be put on.
struct Scene {
    lab: Lab,
    broker: Broker,
    _client: Client,
    link: XdpLink,
    wire: OwnedFd,
    /// Hardware addresses of the two ends.
    server: MacAddr,
    client: MacAddr,
    next_port: u16,
}

fn mac_of(namespace: &overfly_lab::Namespace) -> MacAddr {
    let text = namespace.within(|| {
        // /sys shows the devices of the namespace that mounted it.
        let output =
            std::process::Command::new("ip").args(["-br", "link", "show", INTERFACE]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    });
    let mac = text.split_whitespace().nth(2).unwrap();
    let mut bytes = [0; 6];
    for (byte, digits) in bytes.iter_mut().zip(mac.split(':')) {
        *byte = u8::from_str_radix(digits, 16).unwrap();
    }
    MacAddr(bytes)
}

/// A packet socket on the interface of the calling thread's namespace.
fn open_wire(interface: u32) -> OwnedFd {
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &PacketAddress(interface)).unwrap();
    socket
}

/// `struct sockaddr_ll` (include/uapi/linux/if_packet.h) for an interface and no protocol: for sending.
struct PacketAddress(u32);

// SAFETY: `with_sockaddr` hands out a whole sockaddr_ll and its length.
unsafe impl rustix::net::addr::SocketAddrArg for PacketAddress {
    unsafe fn with_sockaddr<R>(
        &self,
        f: impl FnOnce(*const rustix::net::addr::SocketAddrOpaque, rustix::net::addr::SocketAddrLen) -> R,
    ) -> R {
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: 0,
            sll_ifindex: self.0 as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        f((&raw const address).cast(), size_of::<libc::sockaddr_ll>() as u32)
    }
}

impl Scene {
    fn new() -> Scene {
        let lab = Lab::new(1);
        let broker = lab
            .server
            .within(|| Broker::start(Attachment::attach(INTERFACE, Options::default()).unwrap()).unwrap());
        lab.server.enter();
        let mut client = Client::connect(broker.environment()).unwrap();
        let link = XdpLink::open(client.open_stack().unwrap().into_xdp().unwrap()).unwrap();
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            client.listen(protocol, SocketAddr::new("::".parse().unwrap(), PORT), false).unwrap();
        }
        let shown = lab.client.command("ip", &["-o", "link", "show", "dev", INTERFACE]);
        let index = shown.split(':').next().unwrap().parse().unwrap();
        let wire = lab.client.within(|| open_wire(index));
        let (server, client_mac) = (mac_of(&lab.server), mac_of(&lab.client));
        Scene { lab, broker, _client: client, link, wire, server, client: client_mac, next_port: 20_000 }
    }

    fn put(&self, frame: &[u8]) {
        send(&self.wire, frame, SendFlags::empty()).unwrap();
    }

    /// Sends a SYN, or a datagram, and returns the hardware address that the stack sees it from, if it sees it.
    fn sees(&mut self, macs: (MacAddr, MacAddr), protocol: u8, from: IpAddr, to: IpAddr) -> Option<MacAddr> {
        self.next_port += 1;
        let port = self.next_port;
        let frame = opening(macs, protocol, SocketAddr::new(from, port), SocketAddr::new(to, PORT));
        self.put(&frame);
        let begin = Instant::now();
        let mut seen = None;
        // veth brings a frame before send() returns, or a moment later if its NAPI was at work.
        while seen.is_none() && begin.elapsed() < Duration::from_millis(100) {
            self.link.receive(64, |received| {
                if received[14..] == frame[14..] {
                    seen = Some(MacAddr(received[6..12].try_into().unwrap()));
                }
            });
        }
        seen
    }

    /// Of both protocols, from the client's hardware address to the server's.
    fn hears(&mut self, from: &str, to: IpAddr) -> bool {
        let (macs, from) = ((self.client, self.server), from.parse().unwrap());
        let [tcp, udp] = [6, 17].map(|protocol| self.sees(macs, protocol, from, to).is_some());
        assert_eq!(tcp, udp, "{from}");
        tcp
    }

    fn wait(&mut self, what: &str, mut is_so: impl FnMut(&mut Scene) -> bool) {
        let begin = Instant::now();
        while !is_so(self) {
            assert!(begin.elapsed() < Duration::from_secs(5), "{what}");
        }
    }

    fn passed_source(&self) -> u64 {
        self.broker.attachment().counters().unwrap().passed_source
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn sum(parts: &[&[u8]]) -> [u8; 2] {
    let bytes = parts.concat();
    let total: u32 =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
    let folded = (total & 0xffff) + (total >> 16);
    (!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes()
}

/// A SYN or an empty datagram, whose sums hold.
fn opening(macs: (MacAddr, MacAddr), protocol: u8, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let mut transport = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    let at = if protocol == 6 {
        transport.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
        16
    } else {
        transport.extend([0, 8, 0, 0]);
        6
    };
    let length = (transport.len() as u16).to_be_bytes();
    let (source, destination) = (octets(from.ip()), octets(to.ip()));
    let checked = sum(&[&source, &destination, &[0, protocol], &length, &transport]);
    transport[at..at + 2].copy_from_slice(&checked);
    let mut frame = [macs.1.0, macs.0.0].concat();
    if from.is_ipv4() {
        let total = (20 + transport.len() as u16).to_be_bytes();
        let mut header =
            [&[0x45, 0], &total[..], &[0, 0, 0x40, 0, 64, protocol, 0, 0], &source, &destination].concat();
        let checked = sum(&[&header]);
        header[10..12].copy_from_slice(&checked);
        frame.extend([8, 0]);
        frame.extend(header);
    } else {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(length);
        frame.extend([protocol, 64]);
        frame.extend(source);
        frame.extend(destination);
    }
    frame.extend(transport);
    frame
}

/// Who asks for the server's address by ARP (RFC 826).
fn arp_request(from: (MacAddr, [u8; 4]), target: [u8; 4]) -> Vec<u8> {
    let mut frame = [[0xff; 6], from.0.0].concat();
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(from.0.0);
    frame.extend(from.1);
    frame.extend([0; 6]);
    frame.extend(target);
    frame.resize(60, 0);
    frame
}

#[test]
fn the_first_connection_of_a_client_is_a_stacks() {
    for address in [IpAddr::from(SERVER), IpAddr::from(SERVER_V6)] {
        let mut scene = Scene::new();
        let to = SocketAddr::new(address, PORT);
        scene.lab.client.within(|| {
            let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = socket_with(family, SocketType::STREAM, flags, None).unwrap();
            let _ = rustix::net::connect(&socket, &to);
        });
        let begin = Instant::now();
        let mut syns = 0;
        while syns == 0 {
            assert!(begin.elapsed() < Duration::from_millis(900), "before the SYN is sent again");
            scene.link.receive(64, |_| syns += 1);
        }
        assert_eq!(scene.passed_source(), 0);
    }
}

#[test]
fn nobody_speaks_for_an_address_that_is_not_on_the_link() {
    let mut scene = Scene::new();
    scene.lab.server.run("link add other0 type veth peer name other1");
    scene.lab.server.run("link set other1 up");
    scene.lab.server.run("address add 10.55.0.1/24 dev other0");
    scene.lab.server.run("address add fd55::1/64 dev other0 nodad");
    scene.lab.server.run("link set other0 up");
    let mac = scene.client.to_string();
    // All of them behind the client, for whoever believes the neighbour table alone.
    for address in ["10.99.0.2", "fd99::2"] {
        scene.lab.server.run(&format!("neigh replace {address} lladdr {mac} dev {INTERFACE}"));
    }
    scene.wait("the client is known", |scene| scene.hears("10.99.0.2", SERVER.into()));
    scene.wait("the client is known", |scene| scene.hears("fd99::2", SERVER_V6.into()));
    scene.wait("the other interface is known", |scene| {
        scene.broker.attachment().refresh_ways().unwrap();
        !scene.hears("10.55.0.1", SERVER.into())
    });
    // RFC 1122 section 3.2.1.3, RFC 1812 section 5.3.7: with and without the reverse path filter of RFC 3704.
    for filter in ["0", "1", "2"] {
        for name in ["all", INTERFACE] {
            scene.lab.server.write(&format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"), filter);
        }
        for from in [
            "127.0.0.1",
            "127.1.2.3",
            "0.0.0.0",
            "0.1.2.3",
            "255.255.255.255",
            "224.0.0.1",
            "240.0.0.1",
            "10.99.0.1",
            "10.99.0.255",
            "10.99.0.0",
            "10.55.0.1",
            "10.55.0.2",
            "192.0.2.1",
        ] {
            assert!(!scene.hears(from, SERVER.into()), "{from}, rp_filter {filter}");
        }
    }
    for from in [
        "::1",
        "::",
        "ff02::1",
        "::ffff:10.99.0.2",
        "::10.99.0.2",
        "fd99::1",
        "fd55::1",
        "fd55::2",
        "2001:db8::1",
    ] {
        assert!(!scene.hears(from, SERVER_V6.into()), "{from}");
    }
    // Nor does IPv6 speak for IPv4.
    let mapped: IpAddr = std::net::Ipv6Addr::from_bits(SERVER.to_ipv6_mapped().to_bits()).into();
    assert!(!scene.hears("::ffff:10.99.0.2", mapped));
    assert!(scene.hears("10.99.0.2", SERVER.into()) && scene.hears("fd99::2", SERVER_V6.into()));
    assert!(scene.passed_source() > 20);
    // The kernel judged them, and refused: the program's own socket, behind the listener, saw nobody.
    let kernel = TcpListener::bind((SERVER, PORT)).unwrap();
    kernel.set_nonblocking(true).unwrap();
    for from in ["127.0.0.1", "10.99.0.1", "10.55.0.1"] {
        scene.hears(from, SERVER.into());
    }
    assert!(kernel.accept().is_err());
}

#[test]
fn a_frame_for_another_hardware_address_is_the_kernels() {
    let mut scene = Scene::new();
    scene.lab.client.run(&format!("neigh replace {SERVER} lladdr {} dev {INTERFACE}", scene.server));
    scene.broker.attachment().route(CLIENT.into()).unwrap();
    let (from, to) = (CLIENT.into(), SERVER.into());
    let (client, server) = (scene.client, scene.server);
    assert_eq!(scene.sees((client, server), 6, from, to), Some(client));
    for other in [STRANGER, MacAddr([1, 0, 0x5e, 0, 0, 1]), MacAddr::BROADCAST] {
        for protocol in [6, 17] {
            assert_eq!(scene.sees((client, other), protocol, from, to), None, "{other}");
        }
    }
    // The interface gets another one.
    scene.lab.server.run(&format!("link set {INTERFACE} address {STRANGER}"));
    scene.wait("the new one is known", |scene| scene.sees((client, STRANGER), 6, from, to).is_some());
    assert_eq!(scene.sees((client, server), 6, from, to), None);
}

#[test]
fn answers_go_where_the_kernel_would_send_them() {
    let mut scene = Scene::new();
    let (client, server) = (scene.client, scene.server);
    let to = IpAddr::from(SERVER);
    scene.broker.attachment().route(CLIENT.into()).unwrap();
    scene.broker.attachment().route(CLIENT_V6.into()).unwrap();
    assert_eq!(scene.sees((client, server), 6, CLIENT.into(), to), Some(client));
    // Somebody else on the link says that it is the client.
    for protocol in [6, 17] {
        assert_eq!(scene.sees((STRANGER, server), protocol, CLIENT.into(), to), None);
        assert_eq!(scene.sees((STRANGER, server), protocol, CLIENT_V6.into(), SERVER_V6.into()), None);
    }
    // Behind the client as a router, whatever hardware address the frame comes from.
    let afar: IpAddr = "192.0.2.7".parse().unwrap();
    let afar6: IpAddr = "2001:db8::7".parse().unwrap();
    assert_eq!(scene.sees((client, server), 6, afar, to), None);
    scene.lab.server.run(&format!("route add default via {CLIENT}"));
    scene.lab.server.run(&format!("-6 route add default via {CLIENT_V6}"));
    for protocol in [6, 17] {
        for (from, to) in [(afar, to), (afar6, SERVER_V6.into())] {
            scene.wait("the route is known", |scene| {
                scene.sees((client, server), protocol, from, to).is_some()
            });
            assert_eq!(scene.sees((STRANGER, server), protocol, from, to), Some(client));
        }
    }
    // The way back leaves by another interface.
    scene.lab.server.run("link add other0 type veth peer name other1");
    scene.lab.server.run("link set other1 up");
    scene.lab.server.run("link set other0 up");
    scene.lab.server.run("route add 192.0.2.0/24 dev other0");
    scene.wait("the other way is known", |scene| scene.sees((client, server), 6, afar, to).is_none());
    scene.lab.server.run("route del 192.0.2.0/24 dev other0");
    scene.wait("it is forgotten", |scene| scene.sees((client, server), 6, afar, to).is_some());
    // What rules of one's own say, only the kernel knows.
    scene.lab.server.run("rule add from 192.0.2.0/24 lookup 77");
    scene.wait("the rule is known", |scene| scene.sees((client, server), 6, CLIENT.into(), to).is_none());
    assert!(scene.sees((client, server), 6, CLIENT_V6.into(), SERVER_V6.into()).is_some());
    scene.lab.server.run("rule del from 192.0.2.0/24 lookup 77");
    scene.wait("it is forgotten", |scene| scene.sees((client, server), 6, CLIENT.into(), to).is_some());
    // The link goes down and up again, which the kernel does not tell of each route.
    scene.lab.server.run(&format!("link set {INTERFACE} down"));
    scene.lab.server.run(&format!("link set {INTERFACE} up"));
    assert_eq!(scene.sees((client, server), 6, afar, to), None, "its routes are gone");
}

#[test]
fn neighbours_are_the_kernels() {
    let mut scene = Scene::new();
    let (client, server) = (scene.client, scene.server);
    let to = IpAddr::from(SERVER);
    let third: IpAddr = "10.99.0.77".parse().unwrap();
    assert_eq!(scene.sees((STRANGER, server), 6, third, to), None, "nobody knows it");
    // Who asks for us says where it is: the next frame is a stack's.
    scene.put(&arp_request((STRANGER, [10, 99, 0, 77]), SERVER.octets()));
    assert_eq!(scene.sees((STRANGER, server), 6, third, to), Some(STRANGER));
    // Not for what is no neighbour's, and not where somebody is known.
    for (mac, address) in
        [(STRANGER, [127, 0, 0, 1]), (STRANGER, SERVER.octets()), (STRANGER, [192, 0, 2, 1])]
    {
        scene.put(&arp_request((mac, address), SERVER.octets()));
        assert_eq!(scene.sees((mac, server), 6, address.into(), to), None, "{address:?}");
    }
    scene.lab.server.run(&format!("neigh replace 10.99.0.78 lladdr {client} dev {INTERFACE} nud permanent"));
    let fixed: IpAddr = "10.99.0.78".parse().unwrap();
    scene.wait("it is known", |scene| scene.sees((client, server), 6, fixed, to).is_some());
    scene.put(&arp_request((STRANGER, [10, 99, 0, 78]), SERVER.octets()));
    assert_eq!(scene.sees((STRANGER, server), 6, fixed, to), None);
    assert_eq!(scene.sees((client, server), 6, fixed, to), Some(client));
    // It moves, and goes.
    scene
        .lab
        .server
        .run(&format!("neigh replace 10.99.0.78 lladdr {STRANGER} dev {INTERFACE} nud permanent"));
    scene.wait("it has moved", |scene| scene.sees((STRANGER, server), 6, fixed, to).is_some());
    assert_eq!(scene.sees((client, server), 6, fixed, to), None);
    scene.lab.server.run(&format!("neigh del 10.99.0.78 dev {INTERFACE}"));
    scene.wait("it is gone", |scene| scene.sees((STRANGER, server), 6, fixed, to).is_none());
}

/// What the program does not take, the kernel does: a client whose neighbour entry is missing is served by the program's own
/// socket, and its connection stays there.
#[test]
fn a_connection_that_the_kernel_judges_is_served_by_the_kernel() {
    let scene = Scene::new();
    let kernel = TcpListener::bind((SERVER, PORT)).unwrap();
    // A rule of the administrator's: everything of IPv4's.
    assert_eq!(overfly_steer::routing_rules().unwrap(), [false, false]);
    scene.lab.server.run("rule add from 192.0.2.0/24 lookup 77");
    assert_eq!(overfly_steer::routing_rules().unwrap(), [true, false]);
    let begin = Instant::now();
    while scene.passed_source() == 0 {
        assert!(begin.elapsed() < Duration::from_secs(5));
        let timeout = Duration::from_millis(200);
        let to = SocketAddr::new(SERVER.into(), PORT);
        if let Ok(mut client) = scene.lab.client.within(|| TcpStream::connect_timeout(&to, timeout)) {
            let (mut server, _) = kernel.accept().unwrap();
            std::io::Write::write_all(&mut client, b"hello").unwrap();
            let mut buffer = [0; 5];
            std::io::Read::read_exact(&mut server, &mut buffer).unwrap();
            assert_eq!(&buffer, b"hello");
        }
    }
    // Who looks is told, if it could be the broker: this test is root, in the server's namespace.
    let left = observer::look(INTERFACE).unwrap().left.unwrap();
    assert_eq!(left, LeftFrames { passed_source: scene.passed_source(), ..LeftFrames::default() });
    let nobody = std::thread::spawn(|| {
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65_534)).unwrap();
        observer::look(INTERFACE).unwrap().left
    });
    assert_eq!(nobody.join().unwrap(), None);
}

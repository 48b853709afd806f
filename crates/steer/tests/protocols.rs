//! IPv6, UDP and ICMP errors, with the kernel on the other side and beside the stack.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use overfly_broker::{Client, Refusal};
use overfly_lab::{Broker, CLIENT, CLIENT_V6, INTERFACE, Lab, SERVER, SERVER_V6};
use overfly_link::Link;
use overfly_link::xdp::XdpLink;
use overfly_steer::{Attachment, Options, Protocol};
use overfly_wire::{FrameSink, MacAddr};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socket_with};

const TCP: u8 = 6;
const UDP: u8 = 17;
const SYN: u8 = 2;
const ACK: u8 = 16;
const ENDS: [(IpAddr, IpAddr); 2] =
    [(IpAddr::V4(SERVER), IpAddr::V4(CLIENT)), (IpAddr::V6(SERVER_V6), IpAddr::V6(CLIENT_V6))];

/// What a test wants to know of a TCP or UDP frame.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Arrived {
    protocol: u8,
    from: SocketAddr,
    to: SocketAddr,
    /// UDP's.
    payload: Vec<u8>,
}

fn bytes<const N: usize>(frame: &[u8], at: usize) -> [u8; N] {
    frame[at..at + N].try_into().unwrap()
}

fn addresses(packet: &[u8]) -> (u8, IpAddr, IpAddr, usize) {
    if packet[0] >> 4 == 4 {
        (packet[9], bytes::<4>(packet, 12).into(), bytes::<4>(packet, 16).into(), 20)
    } else {
        (packet[6], bytes::<16>(packet, 8).into(), bytes::<16>(packet, 24).into(), 40)
    }
}

fn parse(frame: &[u8]) -> Arrived {
    let (protocol, from, to, header_len) = addresses(&frame[14..]);
    let transport = &frame[14 + header_len..];
    Arrived {
        protocol,
        from: SocketAddr::new(from, u16::from_be_bytes(bytes(transport, 0))),
        to: SocketAddr::new(to, u16::from_be_bytes(bytes(transport, 2))),
        payload: if protocol == UDP {
            transport[8..usize::from(u16::from_be_bytes(bytes(transport, 4)))].to_vec()
        } else {
            Vec::new()
        },
    }
}

/// The Internet checksum (RFC 1071) of all parts, each of even length but the last.
fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u64 = words.map(|word| u64::from(word[0]) << 8 | u64::from(*word.get(1).unwrap_or(&0))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes()
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// A whole frame around a transport header and payload without checksum, which stands at `checksum_at`.
fn frame(
    macs: (MacAddr, MacAddr),
    protocol: u8,
    from: IpAddr,
    to: IpAddr,
    mut transport: Vec<u8>,
    checksum_at: usize,
) -> Vec<u8> {
    let length = (transport.len() as u16).to_be_bytes();
    let pseudo = [octets(from), octets(to), vec![0, protocol], length.to_vec()].concat();
    let sum = checksum(&[&pseudo, &transport]);
    transport[checksum_at..checksum_at + 2].copy_from_slice(&sum);
    let mut frame = [macs.1.0, macs.0.0].concat();
    if from.is_ipv4() {
        let total = (20 + transport.len() as u16).to_be_bytes();
        let mut header = [&[0x45, 0], &total[..], &[0, 0, 0x40, 0, 64, protocol, 0, 0]].concat();
        header.extend(octets(from));
        header.extend(octets(to));
        let sum = checksum(&[&header]);
        header[10..12].copy_from_slice(&sum);
        frame.extend([8, 0]);
        frame.extend(header);
    } else {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(length);
        frame.extend([protocol, 64]);
        frame.extend(octets(from));
        frame.extend(octets(to));
    }
    frame.extend(transport);
    frame
}

fn datagram(macs: (MacAddr, MacAddr), from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut transport = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    transport.extend((8 + payload.len() as u16).to_be_bytes());
    transport.extend([0, 0]);
    transport.extend(payload);
    frame(macs, UDP, from.ip(), to.ip(), transport, 6)
}

fn segment(macs: (MacAddr, MacAddr), from: SocketAddr, to: SocketAddr, flags: u8) -> Vec<u8> {
    let mut transport = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    transport.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0, 1, 0, 0, 0, 0]);
    frame(macs, TCP, from.ip(), to.ip(), transport, 16)
}

fn send(link: &mut XdpLink, frame: &[u8]) {
    link.frame().unwrap()[..frame.len()].copy_from_slice(frame);
    link.commit(frame.len());
    link.flush();
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

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(5), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Begins a kernel connection from the client's side.
fn knock(lab: &Lab, to: SocketAddr) -> OwnedFd {
    lab.client.within(|| {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None).unwrap();
        let _ = rustix::net::connect(&socket, &to);
        socket
    })
}

/// Whether a SYN to that address reaches the stack, which does not answer it; the kernel would.
fn is_heard(lab: &Lab, link: &mut XdpLink, to: SocketAddr) -> bool {
    while link.receive(64, |_| ()) > 0 {}
    let socket = knock(lab, to);
    let mut heard = false;
    wait_until("the stack hears the SYN, or the kernel answers it", || {
        link.receive(64, |frame| {
            let seen = parse(frame);
            heard |= seen.protocol == TCP && (seen.to.ip(), seen.to.port()) == (to.ip(), to.port());
        });
        let answered = poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&Timespec::default()));
        heard || answered == Ok(1)
    });
    heard
}

/// The server's link-local address as the client says it.
fn scoped(lab: &Lab, port: u16) -> SocketAddr {
    let shown = lab.client.command("ip", &["-o", "link", "show", "dev", INTERFACE]);
    let index = shown.split(':').next().unwrap().parse().unwrap();
    SocketAddrV6::new(lab.server.link_local(), port, 0, index).into()
}

/// Everything that is not asked for goes on over the kernel: other ports, fragments, neighbour discovery, ping.
fn the_kernel_goes_on(lab: &Lab, port: u16) {
    for (server, client) in ENDS {
        let there = SocketAddr::new(server, port);
        let listener = lab.server.within(|| TcpListener::bind(there).unwrap());
        lab.client.within(|| TcpStream::connect(there).unwrap());
        listener.accept().unwrap();
        let socket = lab.server.within(|| UdpSocket::bind(there).unwrap());
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let peer = lab.client.within(|| UdpSocket::bind((client, 0)).unwrap());
        peer.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        // More than the MTU: fragments.
        for length in [10, 4000] {
            let mut buffer = [0; 5000];
            peer.send_to(&vec![7; length], there).unwrap();
            let (received, from) = socket.recv_from(&mut buffer).unwrap();
            socket.send_to(&buffer[..received], from).unwrap();
            assert_eq!(peer.recv(&mut buffer).unwrap(), length);
        }
    }
    let reply = lab.client.within(|| {
        let icmpv6 = Some(rustix::net::ipproto::ICMPV6);
        let socket =
            socket_with(AddressFamily::INET6, SocketType::RAW, SocketFlags::CLOEXEC, icmpv6).unwrap();
        let timeout = Some(Duration::from_secs(1));
        rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, timeout)
            .unwrap();
        let request = [128, 0, 0, 0, 0x12, 0x34, 0, 1, b'o', b'k'];
        let server = SocketAddr::new(SERVER_V6.into(), 0);
        rustix::net::sendto(&socket, &request, SendFlags::empty(), &server).unwrap();
        loop {
            let mut buffer = [0; 64];
            let (length, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty()).unwrap();
            if buffer[0] == 129 {
                return buffer[..length].to_vec();
            }
        }
    });
    assert_eq!(reply[4..], [0x12, 0x34, 0, 1, b'o', b'k']);
}

#[test]
fn a_listener_at_all_addresses_covers_both_families_or_one() {
    let lab = Lab::new(2);
    lab.server.enter();
    let mut attachment = Attachment::attach(INTERFACE, Options::default()).unwrap();
    let sockets = attachment.add_stack().unwrap();
    let stack = sockets.stack;
    let mut link = XdpLink::open(sockets).unwrap();
    let everywhere: SocketAddr = "[::]:8080".parse().unwrap();
    let (v4, v6) = (SocketAddr::new(SERVER.into(), 8080), SocketAddr::new(SERVER_V6.into(), 8080));
    let link_local = scoped(&lab, 8080);

    attachment.listen(stack, Protocol::Tcp, everywhere, false).unwrap();
    for address in [v4, v6, link_local] {
        assert!(is_heard(&lab, &mut link, address), "{address}");
    }
    the_kernel_goes_on(&lab, 8081);
    // Neighbour discovery, too, is the kernel's.
    lab.client.run(&format!("-6 neigh flush dev {INTERFACE}"));
    the_kernel_goes_on(&lab, 8082);

    attachment.unlisten(stack, Protocol::Tcp, everywhere, false).unwrap();
    attachment.listen(stack, Protocol::Tcp, everywhere, true).unwrap();
    assert!(is_heard(&lab, &mut link, v6) && is_heard(&lab, &mut link, link_local));
    assert!(!is_heard(&lab, &mut link, v4));
    attachment.listen(stack, Protocol::Tcp, "[::ffff:10.99.0.1]:8080".parse().unwrap(), true).unwrap();
    assert!(is_heard(&lab, &mut link, v4), "a mapped address is IPv4's");
}

#[test]
fn ipv6_addresses_that_come_and_go_are_followed_and_routes_are_told() {
    let lab = Lab::new(1);
    let broker = lab
        .server
        .within(|| Broker::start(Attachment::attach(INTERFACE, Options::default()).unwrap()).unwrap());
    lab.server.enter();
    let mut client = Client::connect(broker.environment()).unwrap();
    let mut link = XdpLink::open(client.open_stack().unwrap().into_xdp().unwrap()).unwrap();
    let second: Ipv6Addr = "fd99::9".parse().unwrap();
    let there = SocketAddr::new(second.into(), 8080);
    client.listen(Protocol::Tcp, "[::]:8080".parse().unwrap(), true).unwrap();
    let refused = client.listen(Protocol::Udp, there, true).unwrap_err();
    assert!(
        matches!(refused, overfly_broker::Error::Refused { refusal: Refusal::NotLocal, .. }),
        "{refused}"
    );
    lab.server.run(&format!("address add {second}/64 dev {INTERFACE}"));
    wait_until("the new address is known", || {
        client.refresh_interface().unwrap().addresses.contains(&(second.into(), 64))
    });
    assert!(is_heard(&lab, &mut link, there));
    client.listen(Protocol::Udp, there, true).unwrap();
    lab.server.run(&format!("address del {second}/64 dev {INTERFACE}"));
    wait_until("it is forgotten", || client.refresh_interface().unwrap().addresses.len() == 3);

    // A next hop, for datagrams to anybody; nothing is steered by that.
    let mac = lab.client.command("ip", &["link", "show", INTERFACE]);
    for (server, destination) in ENDS {
        let route = client.route(destination).unwrap();
        assert_eq!(route.source, server);
        assert!(mac.contains(&route.next_hop.to_string()), "{mac}");
    }
    let asleep = client.route("fd99::77".parse().unwrap()).unwrap_err();
    assert!(
        matches!(asleep, overfly_broker::Error::Refused { refusal: Refusal::NoNeighbor, .. }),
        "{asleep}"
    );
    let elsewhere = client.route("::1".parse().unwrap()).unwrap_err();
    assert!(
        matches!(elsewhere, overfly_broker::Error::Refused { refusal: Refusal::RouteElsewhere, .. }),
        "{elsewhere}"
    );
    assert_eq!(broker.counters().undoing_failed, 0);
}

#[test]
fn datagrams_are_answered_and_errors_about_answers_arrive() {
    let lab = Lab::new(2);
    lab.server.enter();
    let mut attachment = Attachment::attach(INTERFACE, Options::default()).unwrap();
    let sockets = attachment.add_stack().unwrap();
    let stack = sockets.stack;
    let mut link = XdpLink::open(sockets).unwrap();
    attachment.listen(stack, Protocol::Udp, "[::]:5353".parse().unwrap(), false).unwrap();
    let here = attachment.interface().mac;
    for (server, client) in ENDS {
        let service = SocketAddr::new(server, 5353);
        let there = attachment.route(client).unwrap().next_hop;
        let peer = lab.client.within(|| UdpSocket::bind((client, 0)).unwrap());
        peer.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        peer.send_to(b"question", service).unwrap();
        let question = receive_until(&mut link, |frame| {
            Some(parse(frame)).filter(|seen| seen.protocol == UDP && seen.to == service)
        })
        .unwrap();
        assert_eq!(question.payload, b"question");
        assert_eq!(question.from, peer.local_addr().unwrap());
        send(&mut link, &datagram((here, there), service, question.from, b"answer"));
        let mut buffer = [0; 16];
        let (length, from) = peer.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from), (&b"answer"[..], service));

        // The peer is gone: its kernel says so to the stack, not to ours (RFC 792, RFC 4443 section 3.1).
        drop(peer);
        let before = attachment.counters().unwrap().icmp_errors;
        let late = datagram((here, there), service, question.from, b"late");
        // The kernel limits how many errors it sends a second: ask again until it has one to spare.
        let error = (0..10).find_map(|_| {
            send(&mut link, &late);
            receive_until(&mut link, |frame| {
                let (protocol, from, to, header_len) = addresses(&frame[14..]);
                let message = &frame[14 + header_len..];
                let unreachable = if client.is_ipv4() { (1, [3, 3]) } else { (58, [1, 4]) };
                ((protocol, bytes::<2>(message, 0)) == unreachable && (from, to) == (client, server))
                    .then(|| message[8..].to_vec())
            })
        });
        assert_eq!(error.unwrap(), late[14..]);
        assert!(attachment.counters().unwrap().icmp_errors > before);
    }

    // A connected socket: exactly one peer's datagrams.
    for (server, client) in ENDS {
        let peers = [0; 2].map(|port| lab.client.within(|| UdpSocket::bind((client, port)).unwrap()));
        let remote = peers[0].local_addr().unwrap();
        let local = SocketAddr::new(server, 6000);
        let kernel = UdpSocket::bind(local).unwrap();
        kernel.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        attachment.connect_flow(stack, Protocol::Udp, local, remote).unwrap();
        for peer in &peers {
            peer.send_to(b"x", local).unwrap();
        }
        let seen = receive_until(&mut link, |frame| {
            Some(parse(frame)).filter(|seen| seen.protocol == UDP && seen.to == local)
        });
        assert_eq!(seen.unwrap().from, remote);
        assert_eq!(kernel.recv_from(&mut [0; 4]).unwrap().1, peers[1].local_addr().unwrap());
        attachment.disconnect_flow(stack, Protocol::Udp, SocketAddr::new(server, 6000), remote).unwrap();
        peers[0].send_to(b"y", local).unwrap();
        assert_eq!(kernel.recv_from(&mut [0; 4]).unwrap().1, remote);
    }
    the_kernel_goes_on(&lab, 5354);
}

/// Tuples of a listener are remembered by the XDP program; a stack that takes a dead one's place has none of them.
#[test]
fn a_new_stack_does_not_get_the_frames_of_the_one_that_had_its_place() {
    let lab = Lab::new(1);
    let options = Options { stacks: 2, ..Options::default() };
    let mut attachment = lab.server.within(|| Attachment::attach(INTERFACE, options).unwrap());
    let mut generator = lab.client.within(|| Attachment::attach(INTERFACE, Options::default()).unwrap());
    let mut peer = XdpLink::open(lab.client.within(|| generator.add_stack().unwrap())).unwrap();
    let macs = (generator.interface().mac, attachment.interface().mac);
    lab.server.enter();
    for (server, client) in ENDS {
        let service = SocketAddr::new(server, 8080);
        // The kernel has to know the peer, whose frames are none of a kernel's.
        attachment.route(client).unwrap();
        let begin = |attachment: &mut Attachment, listens: bool| {
            let sockets = attachment.add_stack().unwrap();
            let stack = sockets.stack;
            if listens {
                attachment.listen(stack, Protocol::Tcp, service, true).unwrap();
            }
            (stack, XdpLink::open(sockets).unwrap())
        };
        let (first, mut first_link) = begin(&mut attachment, true);
        for port in 1..=20 {
            send(&mut peer, &segment(macs, SocketAddr::new(client, port), service, SYN));
        }
        assert_eq!(first_link.receive(64, |_| ()), 20);
        let (second, mut second_link) = begin(&mut attachment, true);
        drop(first_link);
        attachment.remove_stack(first).unwrap();
        let (third, mut third_link) = begin(&mut attachment, false);
        assert_eq!(third, first);
        for port in 1..=20 {
            send(&mut peer, &segment(macs, SocketAddr::new(client, port), service, ACK));
        }
        assert_eq!(third_link.receive(64, |_| ()), 0, "it never listened");
        assert_eq!(second_link.receive(64, |_| ()), 20, "it can refuse them");
        drop((second_link, third_link));
        attachment.remove_stack(second).unwrap();
        attachment.remove_stack(third).unwrap();
    }
}

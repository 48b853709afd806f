//! UDP, datagram by datagram: who gets one, what is refused, what ICMP may say, and what waits for a neighbour.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::frames::{OURS, PEERS, datagram, frame_of, icmp_error, read};
use overfly_engine::{
    Config, Counters, Datagram, Engine, Error, Event, FlowId, Instant, Owner, Report, SendError, UdpId,
    Unreachable,
};
use overfly_wire::checksum::Sum;
use overfly_wire::{FrameSink, MacAddr, arp, ethernet, icmpv4, icmpv6, ipv4, ipv6, udp};

/// The two ends and a stranger, in both families.
const FAMILIES: [[&str; 3]; 2] =
    [["10.0.0.1", "10.0.0.2", "10.0.0.3"], ["2001:db8::1", "2001:db8::2", "2001:db8::3"]];

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().expect("an address"), port)
}

/// What an owner was told.
#[derive(Default)]
struct Inbox {
    datagrams: Vec<(UdpId, SocketAddr, SocketAddr, Vec<u8>)>,
    marks: Vec<(u8, u8)>,
    failed: Vec<(UdpId, SocketAddr, Unreachable)>,
}

impl Owner for Inbox {
    fn event(&mut self, _: FlowId, _: Event) {}

    fn deliver(&mut self, _: FlowId, data: &[u8]) -> usize {
        data.len()
    }

    fn fill(&mut self, _: FlowId, _: u64, _: &mut [u8]) {}

    fn datagram(&mut self, socket: UdpId, datagram: Datagram<'_>) {
        self.datagrams.push((socket, datagram.source, datagram.destination, datagram.payload.to_vec()));
        self.marks.push((datagram.traffic_class, datagram.hop_limit));
    }

    fn datagram_failed(&mut self, socket: UdpId, remote: SocketAddr, why: Unreachable, _: &Report<'_>) {
        self.failed.push((socket, remote, why));
    }
}

/// A link that takes so many frames.
struct Wire {
    room: usize,
    buffer: Box<[u8; 65_600]>,
    frames: Vec<Vec<u8>>,
}

impl FrameSink for Wire {
    fn frame(&mut self) -> Option<&mut [u8]> {
        (self.frames.len() < self.room).then(|| &mut self.buffer[..])
    }

    fn commit(&mut self, length: usize) {
        self.frames.push(self.buffer[..length].to_vec());
    }
}

struct Host {
    engine: Engine,
    owner: Inbox,
    wire: Wire,
    now: Instant,
}

impl Host {
    /// Alone on its link.
    fn new() -> Self {
        Self::with(|config| config.alone = true)
    }

    fn beside_kernel() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::new(OURS, Ipv4Addr::new(10, 0, 0, 1), 8);
        config.address6 = Some("2001:db8::1".parse().expect("an address"));
        config.hash_key = [9; 16];
        change(&mut config);
        let wire = Wire { room: 1000, buffer: Box::new([0xee; 65_600]), frames: Vec::new() };
        Self {
            engine: Engine::new(config).expect("in range"),
            owner: Inbox::default(),
            wire,
            now: Instant::from_micros(5_000_000),
        }
    }

    fn open(&mut self, local: SocketAddr, remote: Option<SocketAddr>) -> UdpId {
        self.engine.udp_open(local, remote).expect("free")
    }

    fn send(&mut self, socket: UdpId, to: Option<SocketAddr>, payload: &[u8]) -> Result<(), SendError> {
        self.engine.udp_send(self.now, socket, &mut self.wire, None, to, payload)
    }

    fn receive(&mut self, frame: &[u8]) {
        self.engine.receive(self.now, frame, &mut self.owner);
    }

    fn sent(&mut self) -> Vec<Vec<u8>> {
        assert!(self.engine.transmit(self.now, &mut self.owner, &mut self.wire));
        std::mem::take(&mut self.wire.frames)
    }

    fn wait_ms(&mut self, millis: u64) {
        self.now = self.now + Duration::from_millis(millis);
        self.engine.advance(self.now, &mut self.owner);
    }

    fn got(&mut self) -> Vec<(UdpId, SocketAddr, SocketAddr, Vec<u8>)> {
        std::mem::take(&mut self.owner.datagrams)
    }

    fn counters(&self) -> Counters {
        *self.engine.counters()
    }
}

// --- who gets a datagram -----------------------------------------------------------------------

#[test]
fn an_answer_goes_where_the_question_came_from() {
    for [us, peer, _] in FAMILIES {
        for size in [0, 1, 2, 7, 8, 511, 1452] {
            let mut host = Host::beside_kernel();
            let any = if us.contains(':') { at("::", 7) } else { at("0.0.0.0", 7) };
            let socket = host.open(any, None);
            let payload: Vec<u8> = (0..size).map(|byte| byte as u8).collect();
            assert_eq!(host.send(socket, Some(at(peer, 4000)), &payload), Err(SendError::NoNeighbor));
            host.receive(&datagram(at(peer, 4000), at(us, 7), &payload));
            assert_eq!(host.got(), [(socket, at(peer, 4000), at(us, 7), payload.clone())]);
            assert_eq!(host.owner.marks, [(0x2e, 63)]);
            host.send(socket, Some(at(peer, 4000)), &payload).expect("the next hop is known");
            let frames = host.sent();
            assert_eq!(read(&frames[0]), (PEERS, at(us, 7), at(peer, 4000), payload));
            assert_eq!((host.counters().rx_datagrams, host.counters().tx_datagrams), (1, 1));
        }
    }
}

#[test]
fn a_traffic_class_and_a_hop_limit_are_on_every_datagram() {
    for [us, peer, _] in FAMILIES {
        let mut host = Host::new();
        let socket = host.open(at(us, 7), None);
        host.receive(&datagram(at(peer, 4000), at(us, 7), b"q"));
        let mut marks = |class, hops| {
            host.engine.udp_set_traffic_class(socket, class);
            host.engine.udp_set_hop_limit(socket, hops);
            host.send(socket, Some(at(peer, 4000)), b"a").expect("the next hop is known");
            let frames = host.sent();
            let packet = overfly_wire::ip::Packet::parse(&frames[0][14..]).expect("IP");
            (packet.traffic_class(), packet.hop_limit())
        };
        // ECN's two bits are the program's here (RFC 8085 section 3.1.7).
        assert_eq!(marks(0xb8 | 2, 7), (0xba, 7));
        assert_eq!(marks(0, 0), (0, 64), "0 is what the configuration says");
    }
}

#[test]
fn connected_before_bound_before_wildcard() {
    for [us, peer, stranger] in FAMILIES {
        let mut host = Host::new();
        let any = at(if us.contains(':') { "::" } else { "0.0.0.0" }, 53);
        let wildcard = host.open(any, None);
        host.receive(&datagram(at(peer, 9), at(us, 53), b"a"));
        let bound = host.open(at(us, 53), None);
        host.receive(&datagram(at(peer, 9), at(us, 53), b"b"));
        let connected = host.open(at(us, 53), Some(at(peer, 9)));
        host.receive(&datagram(at(peer, 9), at(us, 53), b"c"));
        host.receive(&datagram(at(peer, 10), at(us, 53), b"d"));
        host.receive(&datagram(at(stranger, 9), at(us, 53), b"e"));
        host.engine.udp_close(bound);
        host.receive(&datagram(at(stranger, 9), at(us, 53), b"f"));
        let who: Vec<_> = host.got().into_iter().map(|(socket, .., payload)| (socket, payload)).collect();
        let expected = [
            (wildcard, b"a"),
            (bound, b"b"),
            (connected, b"c"),
            (bound, b"d"),
            (bound, b"e"),
            (wildcard, b"f"),
        ];
        assert_eq!(who, expected.map(|(socket, payload)| (socket, payload.to_vec())));
        host.engine.udp_close(wildcard);
        host.engine.udp_close(wildcard);
        host.receive(&datagram(at(stranger, 9), at(us, 53), b"g"));
        assert_eq!((host.got().len(), host.counters().drop_udp_no_socket), (0, 1));
    }
}

#[test]
fn wildcards_are_of_one_family() {
    let mut host = Host::new();
    let four = host.open(at("0.0.0.0", 5), None);
    let six = host.open(at("::", 5), None);
    for ([us, peer, _], expected) in FAMILIES.into_iter().zip([four, six]) {
        host.receive(&datagram(at(peer, 1), at(us, 5), b"x"));
        assert_eq!(host.got()[0].0, expected);
    }
}

#[test]
fn a_socket_is_connected_anew_and_let_go() {
    let mut host = Host::new();
    host.engine.set_neighbor(Ipv4Addr::new(10, 0, 0, 2), PEERS);
    let [us, peer, stranger] = FAMILIES[0];
    let socket = host.open(at("0.0.0.0", 6), None);
    assert_eq!(host.send(socket, None, b"x"), Err(SendError::NotConnected));
    host.engine.udp_connect(socket, at(us, 6), at(peer, 1)).expect("free");
    assert_eq!(host.engine.udp_ends(socket), (at(us, 6), Some(at(peer, 1))));
    host.send(socket, None, b"x").expect("sent");
    assert_eq!(read(&host.sent()[0]), (PEERS, at(us, 6), at(peer, 1), b"x".to_vec()));
    host.receive(&datagram(at(stranger, 1), at(us, 6), b"not for it"));
    host.engine.udp_connect(socket, at(us, 6), at(stranger, 1)).expect("free");
    host.receive(&datagram(at(stranger, 1), at(us, 6), b"for it"));
    assert_eq!(host.got().len(), 1);
    host.engine.udp_disconnect(socket).expect("its place is free");
    assert_eq!(host.engine.udp_ends(socket), (at("0.0.0.0", 6), None));
    host.receive(&datagram(at(peer, 77), at(us, 6), b"again for it"));
    assert_eq!(host.got().len(), 1);
}

#[test]
fn places_that_are_taken_and_places_that_are_none() {
    let [us, peer, _] = FAMILIES[0];
    let mut host = Host::new();
    let first = host.open(at(us, 6), None);
    let open = |host: &mut Host, local, remote| host.engine.udp_open(local, remote);
    assert_eq!(open(&mut host, at(us, 6), None), Err(Error::AddressInUse));
    host.engine.udp_connect(first, at(us, 6), at(peer, 1)).expect("free");
    assert_eq!(open(&mut host, at(us, 6), Some(at(peer, 1))), Err(Error::TupleInUse));
    let second = host.open(at(us, 6), None);
    assert_eq!(host.engine.udp_disconnect(first), Err(Error::AddressInUse));
    host.engine.udp_close(second);
    assert_eq!(host.engine.udp_disconnect(first), Ok(()));
    assert_eq!(open(&mut host, at(us, 6), Some(at("2001:db8::2", 1))), Err(Error::Family));
    for remote in ["0.0.0.0", "255.255.255.255", "224.0.0.1", "10.255.255.255"] {
        assert_eq!(open(&mut host, at(us, 7), Some(at(remote, 1))), Err(Error::NoAddress), "{remote}");
        assert_eq!(host.send(first, Some(at(remote, 1)), b""), Err(SendError::Destination), "{remote}");
    }
    assert_eq!(open(&mut host, at("0.0.0.0", 7), Some(at(peer, 1))), Err(Error::NoAddress));
    assert_eq!(host.send(first, Some(at(peer, 0)), b""), Err(SendError::Destination));
    assert_eq!(host.send(first, Some(at("2001:db8::2", 1)), b""), Err(SendError::Family));
    let mut host = Host::with(|config| config.address6 = None);
    let socket = host.open(at("::", 7), None);
    assert_eq!(host.send(socket, Some(at("2001:db8::2", 1)), b""), Err(SendError::NoAddress));
}

#[test]
fn sockets_of_one_engine_are_found_among_many() {
    let [us, peer, _] = FAMILIES[0];
    let mut host = Host::new();
    let sockets: Vec<_> = (1..2000)
        .map(|port| (port, host.open(at(us, port), (port % 2 == 0).then(|| at(peer, port)))))
        .collect();
    for &(_, socket) in sockets.iter().filter(|(port, _)| port % 3 == 0) {
        host.engine.udp_close(socket);
    }
    for &(port, socket) in &sockets {
        host.receive(&datagram(at(peer, port), at(us, port), b"x"));
        let got = host.got();
        assert_eq!(got.first().map(|got| got.0), (port % 3 != 0).then_some(socket), "port {port}");
    }
}

// --- what is not taken -------------------------------------------------------------------------

#[test]
fn checksums() {
    for [us, peer, _] in FAMILIES {
        let mut host = Host::new();
        host.open(at(us, 7), None);
        let sound = datagram(at(peer, 1), at(us, 7), b"payload");
        let checksum = sound.len() - 15 + 6;
        let mut none = sound.clone();
        none[checksum..checksum + 2].fill(0);
        host.receive(&none);
        let is_v6 = us.contains(':');
        // RFC 768 takes it, RFC 8200 section 8.1 does not.
        assert_eq!(host.got().len(), usize::from(!is_v6));
        assert_eq!(host.counters().drop_udp_no_checksum, u64::from(is_v6));
        for bit in 0..8 * 15 {
            let mut wrong = sound.clone();
            let place = sound.len() - 15 + bit / 8;
            wrong[place] ^= 1 << (bit % 8);
            host.receive(&wrong);
        }
        assert_eq!(host.got().len(), 0, "a single bit never goes unnoticed");
        let counters = host.counters();
        assert_eq!(counters.drop_checksum + counters.drop_malformed, 120);
    }
}

#[test]
fn a_checksum_that_is_only_begun_is_taken_where_the_link_is_memory() {
    for [us, peer, _] in FAMILIES {
        for partial in [false, true] {
            let mut host = Host::with(|config| config.partial_checksums = partial);
            host.open(at(us, 7), None);
            let mut bytes = b"........payload".to_vec();
            let header = udp::Header { source_port: 1, destination_port: 7 };
            let (source, destination) = (at(peer, 1).ip(), at(us, 7).ip());
            header.emit_partial(&mut bytes, source, destination);
            host.receive(&frame_of(source, destination, ipv4::PROTOCOL_UDP, 64, &bytes));
            assert_eq!(host.got().len(), usize::from(partial));
            assert_eq!(host.counters().drop_checksum, u64::from(!partial));
        }
    }
}

#[test]
fn malformed_datagrams_are_dropped_and_counted() {
    for [us, peer, _] in FAMILIES {
        let mut host = Host::new();
        host.open(at(us, 7), None);
        let (source, destination) = (at(peer, 1).ip(), at(us, 7).ip());
        let cases: [&[u8]; 4] =
            [b"", b"1234567", &[0, 1, 0, 7, 0, 7, 0, 0, 1], &[0, 1, 0, 7, 0, 12, 0, 0, 1, 2, 3]];
        for bytes in cases {
            host.receive(&frame_of(source, destination, ipv4::PROTOCOL_UDP, 64, bytes));
        }
        assert_eq!((host.counters().drop_malformed, host.got().len()), (4, 0));
    }
}

#[test]
fn what_comes_from_or_to_a_group_is_dropped_without_a_word() {
    let mut host = Host::new();
    host.open(at("0.0.0.0", 7), None);
    host.open(at("::", 7), None);
    let pairs = [
        ("0.0.0.0", "10.0.0.1"),
        ("224.0.0.1", "10.0.0.1"),
        ("255.255.255.255", "10.0.0.1"),
        ("10.255.255.255", "10.0.0.1"),
        ("10.0.0.2", "224.0.0.1"),
        ("10.0.0.2", "255.255.255.255"),
        ("10.0.0.2", "10.255.255.255"),
        ("::", "2001:db8::1"),
        ("ff02::1", "2001:db8::1"),
        ("2001:db8::2", "ff02::1"),
    ];
    for (source, destination) in pairs {
        host.receive(&datagram(at(source, 1), at(destination, 7), b"x"));
        host.receive(&datagram(at(source, 1), at(destination, 8), b"x"));
    }
    assert_eq!((host.got().len(), host.sent().len()), (0, 0));
    assert_eq!(host.counters().drop_udp_address, 2 * pairs.len() as u64);
}

#[test]
fn fragments_are_dropped() {
    let mut host = Host::new();
    host.open(at("0.0.0.0", 7), None);
    let mut frame = datagram(at("10.0.0.2", 1), at("10.0.0.1", 7), b"x");
    frame[20] = 0x20;
    frame[24..26].fill(0);
    let sum = Sum::new().bytes(&frame[14..34]).finish();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    host.receive(&frame);
    assert_eq!((host.got().len(), host.counters().drop_fragment), (0, 1));
}

/// Frames cut, lengthened and damaged at random, some with checksums that hold nevertheless.
#[test]
fn damaged_frames_do_no_harm() {
    let seed = overfly_testing::seed(1);
    let mut numbers = overfly_testing::Random(seed);
    let mut random = |bound: usize| numbers.index(bound);
    let mut host = Host::with(|config| {
        config.alone = true;
        config.partial_checksums = true;
    });
    let mut given = 0;
    for round in 0..20_000 {
        let [us, peer, _] = FAMILIES[round % 2];
        if round % 1000 < 2 {
            host = Host::new();
            given = 0;
            let socket = host.open(at(us, 7), None);
            host.engine.set_neighbor(at(peer, 1).ip(), PEERS);
            host.send(socket, Some(at(peer, 1)), &[0; 900]).expect("sent");
        }
        let payload = vec![b'x'; random(64)];
        let sound = datagram(at(us, 7), at(peer, 1), &payload);
        let mut frame = match random(3) {
            0 => datagram(at(peer, 1), at(us, 7), &payload),
            _ if us.contains(':') => {
                icmp_error(at(peer, 1).ip(), 1 + random(4) as u8, random(8) as u8, 1280, &sound)
            }
            _ => icmp_error(at(peer, 1).ip(), [3, 11, 12][random(3)], random(16) as u8, 600, &sound),
        };
        for _ in 0..random(4) {
            let place = random(frame.len());
            frame[place] ^= 1 << random(8);
        }
        frame.truncate(frame.len() - random(2) * random(frame.len()));
        host.receive(&frame);
        host.sent();
        given += 1;
        let counters = host.counters();
        let dropped: u64 =
            counters.iter().filter(|(name, _)| name.starts_with("drop_")).map(|(_, count)| count).sum();
        let taken = counters.rx_datagrams + counters.icmp_errors + dropped;
        assert!(taken <= given && counters.rx_frames == given, "OVERFLY_SEED={seed}: {counters:?}");
    }
}

// --- port unreachable --------------------------------------------------------------------------

#[test]
fn nobody_at_the_port_is_said_where_no_kernel_would_say_it() {
    for [us, peer, _] in FAMILIES {
        let mut host = Host::new();
        let question = datagram(at(peer, 4000), at(us, 9), &[b'q'; 1400]);
        host.receive(&question);
        let frames = host.sent();
        let (link, bytes) = ethernet::Header::parse(&frames[0]).expect("Ethernet");
        assert_eq!(link.destination, PEERS);
        // As the asker understands it.
        let mut asker = Host::with(|config| {
            let IpAddr::V4(address) = at("10.0.0.2", 0).ip() else { unreachable!("IPv4") };
            (config.address, config.mac) = (address, OURS);
        });
        let socket = asker.open(at(peer, 4000), Some(at(us, 9)));
        asker.engine.set_neighbor(at(us, 9).ip(), OURS);
        asker.send(socket, None, &[b'q'; 1400]).expect("sent");
        asker.receive(&frames[0]);
        assert_eq!(asker.owner.failed, [(socket, at(us, 9), Unreachable::Port)]);
        assert!(bytes.len() <= if us.contains(':') { 1280 } else { 576 });
        assert_eq!(host.counters().port_unreachables_sent, 1);

        let mut host = Host::beside_kernel();
        host.receive(&question);
        assert_eq!((host.sent().len(), host.counters().drop_udp_no_socket), (0, 1));
    }
}

#[test]
fn nobody_at_the_port_is_not_said_to_groups_nor_without_end() {
    let [us, peer, _] = FAMILIES[0];
    let mut host = Host::with(|config| {
        config.alone = true;
        config.port_unreachables_per_s = 10;
    });
    let question = datagram(at(peer, 4000), at(us, 9), b"x");
    let mut to_all = question.clone();
    to_all[..6].fill(0xff);
    host.receive(&to_all);
    host.receive(&datagram(at(peer, 4000), at("10.0.0.77", 9), b"x"));
    assert_eq!(host.sent().len(), 0);
    for _ in 0..100 {
        host.receive(&question);
    }
    let sent = host.sent().len();
    assert!((5..=15).contains(&sent), "{sent} of 100, where the limit is 10 give or take a half");
    assert_eq!(host.counters().drop_refusal_limit, 100 - sent as u64);
    host.wait_ms(1100);
    host.receive(&question);
    assert_eq!(host.sent().len(), 1);
}

// --- what ICMP says ----------------------------------------------------------------------------

fn talking(connected: bool) -> [(Host, UdpId, Vec<u8>, [&'static str; 3]); 2] {
    FAMILIES.map(|[us, peer, stranger]| {
        let mut host = Host::new();
        host.engine.set_neighbor(at(peer, 1).ip(), PEERS);
        let socket = host.open(at(us, 7), connected.then(|| at(peer, 1)));
        host.send(socket, Some(at(peer, 1)), &[b'x'; 1400]).expect("sent");
        let frame = host.sent().remove(0);
        (host, socket, frame, [us, peer, stranger])
    })
}

#[test]
fn errors_are_told_to_the_socket_that_sent() {
    let v4 = [
        (3, 0, Unreachable::Network),
        (3, 1, Unreachable::Host),
        (3, 2, Unreachable::Protocol),
        (3, 3, Unreachable::Port),
        (3, 5, Unreachable::SourceRoute),
        (3, 6, Unreachable::NetworkUnknown),
        (3, 7, Unreachable::HostUnknown),
        (3, 8, Unreachable::HostIsolated),
        (3, 9, Unreachable::NetworkUnknown),
        (3, 10, Unreachable::Prohibited),
        (3, 12, Unreachable::Host),
        (3, 13, Unreachable::Prohibited),
        (11, 0, Unreachable::Expired),
        (12, 0, Unreachable::Header),
    ];
    let v6 = [
        (1, 0, Unreachable::Network),
        (1, 1, Unreachable::Prohibited),
        (1, 3, Unreachable::Host),
        (1, 4, Unreachable::Port),
        (3, 0, Unreachable::Expired),
        (4, 1, Unreachable::Header),
    ];
    for connected in [false, true] {
        for (mut host, socket, frame, [_, peer, stranger]) in talking(connected) {
            let cases: &[_] = if peer.contains(':') { &v6 } else { &v4 };
            for &(kind, code, why) in cases {
                host.receive(&icmp_error(at(stranger, 0).ip(), kind, code, 0, &frame));
                assert_eq!(host.owner.failed.pop(), Some((socket, at(peer, 1), why)));
            }
            assert_eq!(host.counters().icmp_errors, cases.len() as u64);
        }
    }
}

#[test]
fn errors_about_what_was_not_sent_are_not_believed() {
    for (mut host, socket, _, [us, peer, stranger]) in talking(true) {
        let code = if us.contains(':') { (1, 4) } else { (3, 3) };
        let about = [
            datagram(at(us, 7), at(peer, 2), b"another port"),
            datagram(at(us, 7), at(stranger, 1), b"another host"),
            datagram(at(us, 8), at(peer, 1), b"no socket"),
            datagram(at(stranger, 7), at(peer, 1), b"from elsewhere"),
        ];
        for frame in &about {
            host.receive(&icmp_error(at(peer, 0).ip(), code.0, code.1, 0, frame));
        }
        // A socket that has sent nothing cannot have failed.
        host.open(at(us, 70), Some(at(peer, 1)));
        let silent = datagram(at(us, 70), at(peer, 1), b"never sent");
        host.receive(&icmp_error(at(peer, 0).ip(), code.0, code.1, 0, &silent));
        assert_eq!((host.owner.failed.len(), host.counters().drop_icmp), (0, 5));
        // Nor one that is gone.
        host.engine.udp_close(socket);
        let frame = datagram(at(us, 7), at(peer, 1), b"x");
        host.receive(&icmp_error(at(peer, 0).ip(), code.0, code.1, 0, &frame));
        assert_eq!((host.owner.failed.len(), host.counters().drop_icmp), (0, 6));
    }
}

#[test]
fn a_path_takes_less_for_ten_minutes() {
    for (mut host, socket, frame, [us, peer, stranger]) in talking(true) {
        let is_v6 = us.contains(':');
        let (kind, code, headers) = if is_v6 { (2, 0, 48) } else { (3, 4, 28) };
        let to = at(peer, 1).ip();
        host.receive(&icmp_error(at(stranger, 0).ip(), kind, code, 1300, &frame));
        assert_eq!(host.owner.failed, [(socket, at(peer, 1), Unreachable::TooBig(1300))]);
        assert_eq!(host.engine.udp_path_mtu(host.now, to), 1300);
        let fits = vec![0; 1300 - headers];
        assert_eq!(host.send(socket, None, &fits), Ok(()));
        let mut more = fits.clone();
        more.push(0);
        assert_eq!(host.send(socket, None, &more), Err(SendError::TooBig(1300)));
        assert_eq!(host.engine.udp_path_mtu(host.now, at(stranger, 1).ip()), 1500, "another path");
        // What claims more, or as much, says nothing.
        host.receive(&icmp_error(at(stranger, 0).ip(), kind, code, 1300, &frame));
        host.receive(&icmp_error(at(stranger, 0).ip(), kind, code, 1400, &frame));
        assert_eq!((host.owner.failed.len(), host.counters().drop_icmp), (1, 2));
        host.wait_ms(600_000);
        assert_eq!(host.engine.udp_path_mtu(host.now, to), 1500);
        assert_eq!(host.send(socket, None, &more), Ok(()));
    }
}

#[test]
fn so_many_paths_are_remembered() {
    let mut host = Host::with(|config| {
        config.alone = true;
        config.max_paths = 2;
    });
    let socket = host.open(at("10.0.0.1", 7), None);
    let peers = [2, 3, 4].map(|last| SocketAddr::new(Ipv4Addr::new(10, 0, 0, last).into(), 1));
    for peer in peers {
        host.engine.set_neighbor(peer.ip(), PEERS);
        host.send(socket, Some(peer), &[0; 1400]).expect("sent");
        let frame = host.sent().remove(0);
        host.receive(&icmp_error(peer.ip(), 3, 4, 1300, &frame));
    }
    let known: Vec<_> = peers.iter().map(|peer| host.engine.udp_path_mtu(host.now, peer.ip())).collect();
    assert_eq!(known.iter().filter(|&&mtu| mtu == 1300).count(), 2, "{known:?}");
    assert_eq!(known[2], 1300, "the latest is");
}

#[test]
fn a_path_that_takes_next_to_nothing_is_not_believed() {
    for (mut host, socket, frame, [us, peer, _]) in talking(true) {
        let is_v6 = us.contains(':');
        let (kind, code) = if is_v6 { (2, 0) } else { (3, 4) };
        host.receive(&icmp_error(at(peer, 0).ip(), kind, code, 68, &frame));
        let expected: &[_] = if is_v6 { &[] } else { &[(socket, at(peer, 1), Unreachable::TooBig(552))] };
        assert_eq!(host.owner.failed, expected);
        // Nor one that did not even get so much.
        let mut host = Host::new();
        host.engine.set_neighbor(at(peer, 1).ip(), PEERS);
        let socket = host.open(at(us, 7), Some(at(peer, 1)));
        host.send(socket, None, b"short").expect("sent");
        host.receive(&icmp_error(at(peer, 0).ip(), kind, code, 1300, &frame));
        assert_eq!((host.owner.failed.len(), host.counters().drop_icmp), (0, 1));
    }
}

#[test]
fn no_more_than_the_link_takes_at_once() {
    for [us, peer, _] in FAMILIES {
        let mut host = Host::with(|config| config.mtu = 65_535);
        host.engine.set_neighbor(at(peer, 1).ip(), PEERS);
        let socket = host.open(at(us, 7), Some(at(peer, 1)));
        let most = if us.contains(':') { 65_535 - 48 } else { 65_507 };
        assert_eq!(host.send(socket, None, &vec![1; most + 1]), Err(SendError::TooBig(65_535)));
        assert_eq!(host.send(socket, None, &vec![1; most]), Ok(()));
        assert_eq!(read(&host.sent()[0]).3.len(), most);
        host.wire.room = 0;
        assert_eq!(host.send(socket, None, b"x"), Err(SendError::Full));
        assert_eq!(host.counters().tx_datagrams, 1);
    }
}

// --- neighbours --------------------------------------------------------------------------------

/// What asks for `target`'s hardware address.
fn asks_for(frame: &[u8], target: IpAddr) -> bool {
    let (link, packet) = ethernet::Header::parse(frame).expect("Ethernet");
    match target {
        IpAddr::V4(target) => {
            link.destination == MacAddr::BROADCAST
                && arp::Packet::parse(packet).is_ok_and(|packet| packet.target_ip == target)
        }
        IpAddr::V6(target) => {
            let packet = ipv6::Packet::parse(packet).expect("IPv6");
            let message = icmpv6::Message::parse(packet.payload(), packet.source(), packet.destination());
            matches!(message, Ok(icmpv6::Message::NeighborSolicitation(asked)) if asked.target == target)
        }
    }
}

fn neighbor_answers(host: &mut Host, [us, peer, _]: [&str; 3]) {
    let frame = match (at(peer, 0).ip(), at(us, 0).ip()) {
        (IpAddr::V4(sender_ip), IpAddr::V4(target_ip)) => {
            let mut frame = vec![0; 60];
            ethernet::Header { destination: OURS, source: PEERS, ethertype: ethernet::ETHERTYPE_ARP }
                .emit(&mut frame);
            arp::Packet {
                operation: arp::Operation::Reply,
                sender_mac: PEERS,
                sender_ip,
                target_mac: OURS,
                target_ip,
            }
            .emit(&mut frame[14..]);
            frame
        }
        (IpAddr::V6(peer), IpAddr::V6(us)) => {
            let mut message = [0; icmpv6::MAX_NEIGHBOR_LEN];
            let answer = icmpv6::NeighborAdvertisement {
                target: peer,
                target_link_address: Some(PEERS),
                router: false,
                solicited: true,
                overrides: true,
            };
            let length = answer.emit(&mut message, peer, us);
            frame_of(peer.into(), us.into(), ipv6::PROTOCOL_ICMPV6, 255, &message[..length])
        }
        _ => unreachable!("one family"),
    };
    host.receive(&frame);
}

#[test]
fn the_latest_datagrams_wait_for_their_neighbour() {
    for family @ [us, peer, _] in FAMILIES {
        let mut host = Host::new();
        let socket = host.open(at(us, 7), None);
        for number in 0..5 {
            assert_eq!(host.send(socket, Some(at(peer, 1)), &[number]), Ok(()));
        }
        let frames = host.sent();
        assert_eq!(frames.len(), 1, "one question for all of them");
        assert!(asks_for(&frames[0], at(peer, 0).ip()));
        assert_eq!(host.counters().drop_udp_unresolved, 2);
        neighbor_answers(&mut host, family);
        let frames = host.sent();
        let got: Vec<_> = frames.iter().map(|frame| read(frame)).collect();
        let expected = [2, 3, 4].map(|number| (PEERS, at(us, 7), at(peer, 1), vec![number]));
        assert_eq!(got, expected);
        assert_eq!(host.counters().tx_datagrams, 3);
        assert_eq!(host.send(socket, Some(at(peer, 1)), b"now"), Ok(()));
        assert_eq!(read(&host.sent()[0]).3, b"now");
        assert_eq!(host.engine.next_deadline(), None);
    }
}

#[test]
fn a_neighbour_is_asked_three_times_a_second_apart() {
    for [us, peer, _] in FAMILIES {
        let mut host = Host::new();
        let socket = host.open(at(us, 7), None);
        let other = host.open(at(us, 8), None);
        host.send(socket, Some(at(peer, 1)), b"x").expect("held");
        host.send(other, Some(at(peer, 2)), b"y").expect("held");
        host.engine.udp_close(other);
        assert_eq!(host.sent().len(), 1);
        for _ in 0..2 {
            assert_eq!(host.engine.next_deadline(), Some(host.now + Duration::from_secs(1)));
            host.wait_ms(999);
            assert_eq!(host.sent().len(), 0);
            host.wait_ms(1);
            assert!(asks_for(&host.sent()[0], at(peer, 0).ip()));
        }
        host.wait_ms(1000);
        assert_eq!(
            host.owner.failed,
            [(socket, at(peer, 1), Unreachable::Host)],
            "closed sockets hear nothing"
        );
        assert_eq!((host.sent().len(), host.engine.next_deadline()), (0, None));
        assert_eq!(host.counters().drop_udp_unresolved, 2);
    }
}

#[test]
fn so_many_neighbours_are_asked_for_at_once() {
    let mut host = Host::with(|config| {
        config.alone = true;
        config.max_unresolved = 4;
        config.held_datagrams = 0;
    });
    let socket = host.open(at("0.0.0.0", 7), None);
    for host_part in 2..8 {
        let to = SocketAddr::new(Ipv4Addr::new(10, 0, 0, host_part).into(), 1);
        let expected = if host_part < 6 { Ok(()) } else { Err(SendError::NoNeighbor) };
        assert_eq!(host.send(socket, Some(to), b"x"), expected);
    }
    assert_eq!(host.sent().len(), 4);
    assert_eq!(host.counters().drop_udp_unresolved, 6, "none was to be held");
}

#[test]
fn a_datagram_goes_by_the_gateway_where_its_destination_is_not_on_the_link() {
    let mut host = Host::with(|config| {
        config.alone = true;
        config.gateway = Some(Ipv4Addr::new(10, 0, 0, 254));
    });
    let socket = host.open(at("10.0.0.1", 7), None);
    host.send(socket, Some(at("192.0.2.9", 1)), b"x").expect("held");
    host.send(socket, Some(at("192.0.2.10", 1)), b"y").expect("held");
    let frames = host.sent();
    assert_eq!(frames.len(), 1);
    assert!(asks_for(&frames[0], Ipv4Addr::new(10, 0, 0, 254).into()));
    host.engine.set_neighbor(Ipv4Addr::new(10, 0, 0, 254), PEERS);
    assert_eq!(host.sent().len(), 2);
}

#[test]
fn what_the_engine_is_told_of_neighbours_comes_before_what_frames_say() {
    let [us, peer, _] = FAMILIES[0];
    let told = MacAddr([2, 0, 0, 0, 0, 77]);
    let mut host = Host::beside_kernel();
    let socket = host.open(at(us, 7), None);
    let next_hop = |host: &mut Host| {
        host.send(socket, Some(at(peer, 1)), b"x").expect("sent");
        read(&host.sent()[0]).0
    };
    host.receive(&datagram(at(peer, 1), at(us, 7), b"x"));
    assert_eq!(next_hop(&mut host), PEERS);
    // It moved.
    let mut moved = datagram(at(peer, 1), at(us, 7), b"x");
    moved[11] = 99;
    host.receive(&moved);
    assert_eq!(next_hop(&mut host), MacAddr([2, 0, 0, 0, 0, 99]));
    host.engine.set_neighbor(at(peer, 1).ip(), told);
    assert_eq!(next_hop(&mut host), told);
    host.receive(&moved);
    assert_eq!(next_hop(&mut host), told);
    host.engine.set_neighbor(at(peer, 1).ip(), PEERS);
    assert_eq!(next_hop(&mut host), PEERS);
}

#[test]
fn the_source_address_of_a_wildcard_is_named_or_the_interface_s() {
    let mut host = Host::new();
    host.engine.set_neighbor(Ipv4Addr::new(10, 0, 0, 2), PEERS);
    let socket = host.open(at("0.0.0.0", 7), None);
    let to = Some(at("10.0.0.2", 1));
    let mut send = |source: Option<IpAddr>| {
        let now = host.now;
        host.engine.udp_send(now, socket, &mut host.wire, source, to, b"x")
    };
    assert_eq!(send(None), Ok(()));
    assert_eq!(send(Some(Ipv4Addr::new(10, 9, 9, 9).into())), Ok(()));
    assert_eq!(send(Some(Ipv4Addr::UNSPECIFIED.into())), Ok(()));
    assert_eq!(send(Some(Ipv6Addr::LOCALHOST.into())), Err(SendError::Family));
    let sources: Vec<_> = host.sent().iter().map(|frame| read(frame).1).collect();
    assert_eq!(sources, [at("10.0.0.1", 7), at("10.9.9.9", 7), at("10.0.0.1", 7)]);
}

#[test]
fn icmp_about_udp_leaves_echo_alone() {
    let mut host = Host::new();
    let mut message = [0; 16];
    let echo = icmpv4::Echo { kind: icmpv4::Kind::Request, identifier: 1, sequence: 2, data: b"12345678" };
    echo.emit(&mut message);
    host.receive(&frame_of(
        at("10.0.0.2", 0).ip(),
        at("10.0.0.1", 0).ip(),
        ipv4::PROTOCOL_ICMP,
        64,
        &message,
    ));
    assert_eq!(host.sent().len(), 1);
}

#[test]
fn sockets_that_share_a_place_share_its_peers() {
    for [ours, peer, _] in FAMILIES {
        let mut host = Host::new();
        let any = if ours.contains(':') { "::" } else { "0.0.0.0" };
        let mut sockets: Vec<UdpId> =
            (0..4).map(|_| host.engine.udp_open_shared(at(any, 53)).expect("shared")).collect();
        assert_eq!(host.engine.udp_open(at(any, 53), None), Err(Error::AddressInUse));
        // Who is exactly there has what is for there.
        let exact = host.open(at(ours, 53), Some(at(peer, 7)));
        let ask = |host: &mut Host| -> Vec<UdpId> {
            (1000..1200)
                .map(|port| {
                    host.receive(&datagram(at(peer, port), at(ours, 53), b"who"));
                    let got = host.got();
                    assert_eq!(got.len(), 1);
                    got[0].0
                })
                .collect()
        };
        while sockets.len() > 1 {
            let first = ask(&mut host);
            assert_eq!(first, ask(&mut host), "a peer stays where it is");
            for socket in &sockets {
                let share = first.iter().filter(|&got| got == socket).count();
                assert!(share > 100 / sockets.len(), "{share} of 200 for one of {}", sockets.len());
            }
            host.receive(&datagram(at(peer, 7), at(ours, 53), b"to the connected one"));
            assert_eq!(host.got()[0].0, exact);
            // Each answers from there.
            for &socket in &sockets {
                host.send(socket, Some(at(peer, 7)), b"I").expect("sent");
            }
            host.sent();
            // In turns the one that stands in the table, and another.
            let gone = if sockets.len() == 3 { sockets.remove(0) } else { sockets.pop().expect("several") };
            host.engine.udp_close(gone);
        }
        assert!(ask(&mut host).iter().all(|got| *got == sockets[0]));
        // One more shares again; one that connects leaves.
        let other = host.engine.udp_open_shared(at(any, 53)).expect("shared");
        assert!(ask(&mut host).contains(&other));
        host.engine.udp_connect(sockets[0], at(ours, 53), at(peer, 8)).expect("free");
        assert!(ask(&mut host).iter().all(|got| *got == other));
        host.engine.udp_close(other);
        host.receive(&datagram(at(peer, 1000), at(ours, 53), b"nobody"));
        assert!(host.got().is_empty());
    }
}

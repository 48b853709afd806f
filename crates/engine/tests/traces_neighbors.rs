//! Neighbours, frame by frame: whose addresses are answered for, and what waits for an answer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use crate::harness::script::{ACK, CLIENT6, PSH, SERVER6, SYN, Script};
use crate::harness::{CLIENT, Network, SERVER, config};
use overfly_engine::{Config, Error, Failure, KeepAlive, Prefix, State, Unreachable};
use overfly_wire::tcp::{Options, Segment};
use overfly_wire::{MacAddr, arp, ethernet, icmpv4, icmpv6, ip, ipv4, ipv6};

const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const PEERS: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
/// Addresses of ours beside the interface's own.
const OWN: Ipv4Addr = Ipv4Addr::new(10, 77, 9, 200);
const OWN6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 0x200);

fn prefix(text: &str) -> Prefix {
    text.parse().expect("a prefix")
}

/// At [`SERVER`] and [`SERVER6`], with 10.77.9.0/24 and 2001:db8:9::/64.
fn many() -> Config {
    let mut config = config(SERVER);
    config.address6 = Some(SERVER6);
    config.own_prefixes = vec![prefix("10.77.9.0/24"), prefix("2001:db8:9::/64")];
    config
}

/// The peer says or asks something by ARP.
fn arp(s: &mut Script, operation: arp::Operation, sender: (MacAddr, Ipv4Addr), target_ip: Ipv4Addr) {
    let mut frame = vec![0; 42];
    let ethertype = ethernet::ETHERTYPE_ARP;
    ethernet::Header { destination: MacAddr::BROADCAST, source: sender.0, ethertype }.emit(&mut frame);
    let target_mac = MacAddr([0; 6]);
    arp::Packet { operation, sender_mac: sender.0, sender_ip: sender.1, target_mac, target_ip }
        .emit(&mut frame[14..]);
    s.host.engine.receive(s.now, &frame, &mut s.host.owner);
}

/// What the engine asks and answers by ARP now, with where each frame goes.
fn arp_sent(s: &mut Script) -> Vec<(MacAddr, arp::Packet)> {
    let frames = s.frames();
    let read = |frame: &Vec<u8>| {
        let (link, packet) = ethernet::Header::parse(frame).expect("Ethernet");
        (link.destination, arp::Packet::parse(packet).expect("ARP"))
    };
    frames.iter().map(read).collect()
}

/// The addresses that are asked for now, and who asks.
fn asked(s: &mut Script) -> Vec<(Ipv4Addr, Ipv4Addr)> {
    arp_sent(s).into_iter().map(|(_, packet)| (packet.sender_ip, packet.target_ip)).collect()
}

/// A frame with a ping from the peer.
fn ping(s: &mut Script, to: IpAddr) {
    let mut message = [0; 64];
    let (kind, identifier, sequence, data) = (icmpv4::Kind::Request, 7, 9, &b"ping"[..]);
    match to {
        IpAddr::V4(_) => {
            let length = icmpv4::Echo { kind, identifier, sequence, data }.emit(&mut message);
            s.inject_between(CLIENT.into(), to, ipv4::PROTOCOL_ICMP, 64, &message[..length]);
        }
        IpAddr::V6(own) => {
            let echo = icmpv6::Echo { kind, identifier, sequence, data };
            let length = echo.emit(&mut message, CLIENT6, own);
            s.inject_between(CLIENT6.into(), to, ipv6::PROTOCOL_ICMPV6, 64, &message[..length]);
        }
    }
}

/// A ping that became a message of another type; its data keep the sum what it was.
fn message_of_type(s: &mut Script, v6: bool, kind: u8) {
    let mut message = [0; 64];
    let (identifier, sequence, data) = (7, 9, &[0xff][..]);
    let ping = icmpv4::Echo { kind: icmpv4::Kind::Request, identifier, sequence, data };
    let (length, protocol, from, to): (_, _, IpAddr, IpAddr) = if v6 {
        let ping = icmpv6::Echo { kind: icmpv4::Kind::Request, identifier, sequence, data };
        (ping.emit(&mut message, CLIENT6, SERVER6), ipv6::PROTOCOL_ICMPV6, CLIENT6.into(), SERVER6.into())
    } else {
        (ping.emit(&mut message), ipv4::PROTOCOL_ICMP, CLIENT.into(), SERVER.into())
    };
    message[length - 1] -= kind - message[0];
    message[0] = kind;
    s.inject_between(from, to, protocol, 255, &message[..length]);
}

// --- what is ours ------------------------------------------------------------------------------

#[test]
fn answers_arp_and_ping_where_no_kernel_does() {
    let mut s = Script::with(many());
    for own in [SERVER, OWN] {
        arp(&mut s, arp::Operation::Request, (PEERS, CLIENT), own);
        let answers = arp_sent(&mut s);
        let (destination, answer) = answers[0];
        assert_eq!((answers.len(), destination, answer.operation), (1, PEERS, arp::Operation::Reply));
        assert_eq!((answer.sender_ip, answer.sender_mac, answer.target_ip), (own, OURS, CLIENT));
    }
    for own in [IpAddr::V4(SERVER), OWN.into(), SERVER6.into(), OWN6.into()] {
        ping(&mut s, own);
        let frames = s.frames();
        let packet = ip::Packet::parse(&frames[0][14..]).expect("IP");
        assert_eq!((frames.len(), packet.source()), (1, own));
    }
}

#[test]
fn what_others_say_to_routers_and_groups_is_nothing_wrong() {
    let mut s = Script::with(many());
    // RFC 4861 section 4: a router's solicitation, advertisement and redirect. RFC 3810 section 5.2: a multicast listener's report.
    for kind in [133, 134, 137, 143] {
        message_of_type(&mut s, true, kind);
    }
    // RFC 1256 section 3, RFC 792: a router's advertisement and solicitation, a timestamp.
    for kind in [9, 10, 13] {
        message_of_type(&mut s, false, kind);
    }
    let counters = s.host.engine.counters();
    assert_eq!((counters.drop_malformed, counters.drop_protocol, s.frames().len()), (0, 7, 0));
}

#[test]
fn others_addresses_are_not_answered_for() {
    let mut s = Script::with(many());
    for other in [CLIENT, Ipv4Addr::new(10, 77, 8, 255), Ipv4Addr::new(10, 77, 255, 255)] {
        arp(&mut s, arp::Operation::Request, (PEERS, CLIENT), other);
        ping(&mut s, other.into());
        assert_eq!(s.frames().len(), 0, "{other}");
    }
    // The link's broadcast address stays that, also in a prefix of ours.
    let mut all = config(SERVER);
    all.own_prefixes = vec![prefix("10.77.0.0/16")];
    let mut s = Script::with(all);
    ping(&mut s, Ipv4Addr::new(10, 77, 255, 255).into());
    assert_eq!(s.frames().len(), 0);
    ping(&mut s, Ipv4Addr::new(10, 77, 255, 254).into());
    assert_eq!(s.frames().len(), 1);
}

#[test]
fn a_solicitation_for_any_address_of_ours_is_answered() {
    let mut s = Script::with(many());
    for (target, is_ours) in [(OWN6, true), (Ipv6Addr::new(0x2001, 0xdb8, 8, 0, 0, 0, 0, 1), false)] {
        let group = ipv6::solicited_node(target);
        let asked = icmpv6::NeighborSolicitation { target, source_link_address: Some(PEERS) };
        let mut message = [0; icmpv6::MAX_NEIGHBOR_LEN];
        let length = asked.emit(&mut message, CLIENT6, group);
        s.inject_between(CLIENT6.into(), group.into(), ipv6::PROTOCOL_ICMPV6, 255, &message[..length]);
        let frames = s.frames();
        assert_eq!(!frames.is_empty(), is_ours);
        for frame in &frames {
            let packet = ipv6::Packet::parse(&frame[14..]).expect("IPv6");
            let message = icmpv6::Message::parse(packet.payload(), packet.source(), packet.destination());
            let Ok(icmpv6::Message::NeighborAdvertisement(answer)) = message else { panic!("{message:?}") };
            assert_eq!((packet.source(), answer.target), (target, target));
        }
    }
}

/// A generator's sources, and a server's addresses: each pair finds the other by ARP and exchanges data.
#[test]
fn one_engine_connects_from_many_addresses_to_many() {
    let mut client = config(CLIENT);
    client.own_prefixes = vec![prefix("10.77.1.0/24"), prefix("2001:db8:1::/120")];
    client.address6 = Some(CLIENT6);
    client.prefix6_len = 32;
    let mut server = config(SERVER);
    server.own_prefixes = vec![prefix("10.77.2.0/24"), prefix("2001:db8:2::/120")];
    server.address6 = Some(SERVER6);
    server.prefix6_len = 32;
    let mut network = Network::with(9, client, server);
    network.server.engine.listen((Ipv4Addr::UNSPECIFIED, 80), 1000).unwrap();
    network.server.engine.listen((Ipv6Addr::UNSPECIFIED, 80), 1000).unwrap();
    let mut flows = Vec::new();
    for number in 0..=255_u8 {
        let to = number / 3;
        let (local, remote): (SocketAddr, SocketAddr) = if number % 2 == 0 {
            let local = Ipv4Addr::new(10, 77, 1, number);
            ((local, 1024).into(), (Ipv4Addr::new(10, 77, 2, to), 80).into())
        } else {
            let last = u16::from(number);
            let local = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, last);
            ((local, 1024).into(), (Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, to.into()), 80).into())
        };
        let flow = network.client.connect(network.now, local, remote);
        network.client.send(flow, 1000);
        flows.push(flow);
    }
    let done = network.run_until(Duration::from_secs(5), |network| {
        network.server.owner.streams.values().filter(|stream| stream.received.len() == 1000).count() == 256
    });
    assert!(done, "{:?}", network.server.engine.counters());
    assert!(flows.iter().all(|flow| network.client.owner.streams[flow].connected));
    assert_eq!(network.client.engine.counters().drop_address, 0);
}

// --- what waits --------------------------------------------------------------------------------

#[test]
fn a_connection_waits_for_its_next_hop() {
    let mut s = Script::new();
    s.host.connect(s.now, s.local, s.peer);
    assert_eq!(asked(&mut s), [(SERVER, CLIENT)]);
    s.wait_ms(500);
    arp(&mut s, arp::Operation::Reply, (PEERS, CLIENT), SERVER);
    s.expect(&[(SYN, 0, 0, 0)]);
    // Its timers begin with the SYN.
    s.expect_after(1000, &[(SYN, 0, 0, 0)]);
}

#[test]
fn a_thousand_connections_ask_once_from_the_address_of_the_first() {
    let mut s = Script::with(many());
    for port in 1..=1000 {
        s.host.connect(s.now, SocketAddrV4::new(OWN, port), s.peer);
    }
    assert_eq!(asked(&mut s), [(OWN, CLIENT)]);
    s.wait_ms(1001);
    assert_eq!(asked(&mut s), [(OWN, CLIENT)], "once a second");
    arp(&mut s, arp::Operation::Reply, (PEERS, CLIENT), OWN);
    let frames = s.frames();
    assert_eq!(frames.len(), 1000);
    for frame in &frames {
        let (link, packet) = ethernet::Header::parse(frame).unwrap();
        let packet = ip::Packet::parse(packet).unwrap();
        assert_eq!((link.destination, packet.source()), (PEERS, OWN.into()));
        assert_eq!(Segment::parse(packet.payload()).unwrap().flags(), SYN);
    }
}

#[test]
fn a_neighbour_that_does_not_answer_is_unreachable() {
    let mut s = Script::new();
    for port in 1..=3 {
        s.host.connect(s.now, SocketAddrV4::new(SERVER, port), s.peer);
    }
    for _ in 0..3 {
        assert_eq!(asked(&mut s), [(SERVER, CLIENT)]);
        assert!(s.host.owner.past.is_empty());
        s.wait_ms(1000);
    }
    assert_eq!(s.frames().len(), 0);
    let failures: Vec<_> = s.host.owner.past.iter().map(|stream| stream.failed).collect();
    assert_eq!(failures, [Some(Failure::Unreachable(Unreachable::Host)); 3]);
    assert_eq!((s.host.engine.flows(), s.host.engine.next_deadline()), (0, None));
}

#[test]
fn so_many_next_hops_are_asked_for_at_once_by_connections() {
    let mut config = config(SERVER);
    config.max_unresolved = 4;
    let mut s = Script::with(config);
    for last in 10..20 {
        let peer = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, last), 80);
        let outcome = s.host.try_connect(s.now, s.local, peer);
        assert_eq!(outcome.err(), (last >= 14).then_some(Error::NoNeighbor));
    }
    assert_eq!((asked(&mut s).len(), s.host.engine.flows()), (4, 4));
}

#[test]
fn who_gave_up_is_not_waited_for() {
    let mut s = Script::new();
    let flow = s.host.connect(s.now, s.local, s.peer);
    assert_eq!(asked(&mut s).len(), 1);
    s.host.engine.close(flow);
    assert_eq!(s.frames().len(), 0);
    assert!(s.host.owner.past[0].released);
    s.wait_ms(3000);
    assert_eq!(s.frames().len(), 0, "nobody waits: nobody is asked");
    assert_eq!(s.host.engine.next_deadline(), None);
}

#[test]
fn a_gateway_answers_for_all_behind_it() {
    let gateway = Ipv4Addr::new(10, 77, 0, 254);
    let mut config = config(SERVER);
    config.gateway = Some(gateway);
    let mut s = Script::with(config);
    let far = |last| SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, last), 80);
    for last in 1..=3 {
        s.host.connect(s.now, s.local, far(last));
    }
    assert_eq!(asked(&mut s), [(SERVER, gateway)]);
    // A caller that knows one of them says so: the others wait on.
    s.host.engine.set_neighbor(*far(2).ip(), PEERS);
    assert_eq!(s.frames().len(), 1);
    arp(&mut s, arp::Operation::Reply, (PEERS, gateway), SERVER);
    assert_eq!(s.frames().len(), 2);
}

#[test]
fn a_peer_that_opens_meanwhile_needs_no_question_answered() {
    let mut s = Script::new();
    let flow = s.host.connect(s.now, s.local, s.peer);
    assert_eq!(asked(&mut s).len(), 1);
    // A simultaneous open: its frame says where it came from.
    s.inject(SYN, 0, 0, 0, 65_535);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
    s.inject(ACK, 1, 1, 0, 65_535);
    s.wait_ms(5000);
    assert_eq!((s.state(flow), s.frames().len()), (State::Established, 0));
    s.host.send(flow, 10);
    s.expect(&[(PSH | ACK, 1, 1, 10)]);
}

/// Where the frames that are sent now go: the last bytes of the hardware addresses.
fn destinations(s: &mut Script) -> Vec<u8> {
    let frames = s.frames();
    frames.iter().map(|frame| ethernet::Header::parse(frame).unwrap().0.destination.0[5]).collect()
}

/// The peer says nothing by itself, so that only its neighbours can say that it is elsewhere.
#[test]
fn a_peer_that_is_not_heard_is_looked_for() {
    let mut config = config(SERVER);
    config.alone = false;
    let mut s = Script::with(config);
    s.host.engine.set_neighbor(CLIENT, PEERS);
    let flow = s.passive_open();
    s.frames();
    s.host.send(flow, 10);
    assert_eq!(destinations(&mut s), [2]);
    while s.host.owner.unheard.is_empty() {
        s.wait_ms(100);
        assert!(destinations(&mut s).iter().all(|&to| to == 2));
    }
    assert_eq!(s.host.engine.counters().timeouts, 2, "one that is lost now and then says nothing");
    assert_eq!(s.host.owner.unheard, [IpAddr::from(CLIENT)]);
    // Another destination's is nothing to it.
    s.host.engine.set_neighbor(OWN, MacAddr([2, 0, 0, 0, 0, 98]));
    s.host.engine.set_neighbor(OWN, PEERS);
    s.host.engine.set_neighbor(CLIENT, MacAddr([2, 0, 0, 0, 0, 99]));
    s.host.send(flow, 10);
    s.wait_ms(5000);
    let destinations = destinations(&mut s);
    assert!(!destinations.is_empty() && destinations.iter().all(|&to| to == 99), "{destinations:?}");
}

#[test]
fn who_is_alone_on_the_link_asks_again_for_a_peer_that_is_not_heard() {
    let mut s = Script::new();
    s.host.engine.set_neighbor(CLIENT, PEERS);
    let flow = s.passive_open();
    s.frames();
    s.host.send(flow, 10);
    let mut asked = None;
    let begin = s.now;
    while asked.is_none() {
        s.wait_ms(100);
        assert!(s.now - begin < Duration::from_secs(10), "nobody was asked for");
        let frames = s.frames();
        let mut packets = frames.iter().map(|frame| ethernet::Header::parse(frame).unwrap());
        asked = packets
            .find(|(link, _)| link.ethertype == ethernet::ETHERTYPE_ARP)
            .map(|(_, packet)| arp::Packet::parse(packet).unwrap());
    }
    assert_eq!(asked.unwrap().target_ip, CLIENT);
    arp(&mut s, arp::Operation::Reply, (MacAddr([2, 0, 0, 0, 0, 99]), CLIENT), SERVER);
    s.wait_ms(3000);
    let frames = s.frames();
    let data = frames.iter().map(|frame| ethernet::Header::parse(frame).unwrap().0);
    let data: Vec<_> = data.filter(|link| link.ethertype == ethernet::ETHERTYPE_IPV4).collect();
    assert!(!data.is_empty() && data.iter().all(|link| link.destination.0[5] == 99), "{data:?}");
}

/// A SYN is not answered either.
#[test]
fn a_peer_that_answers_no_syn_is_looked_for() {
    let mut s = Script::with(Config { alone: false, ..config(SERVER) });
    s.connect();
    assert_eq!(destinations(&mut s), [2]);
    while s.host.owner.unheard.is_empty() {
        s.wait_ms(100);
        assert!(destinations(&mut s).iter().all(|&to| to == 2));
    }
    s.host.engine.set_neighbor(CLIENT, MacAddr([2, 0, 0, 0, 0, 99]));
    s.wait_ms(5000);
    let destinations = destinations(&mut s);
    assert!(!destinations.is_empty() && destinations.iter().all(|&to| to == 99), "{destinations:?}");
}

/// Its source may be anybody's, and a flood of those is no reason to ask for anybody.
#[test]
fn who_has_sent_nothing_but_a_syn_is_not_looked_for() {
    let mut s = Script::with(Config { alone: false, ..config(SERVER) });
    s.host.engine.listen(s.local_end(), 8).expect("a listener");
    s.inject(SYN, 1000, 0, 0, 1000);
    assert_eq!(destinations(&mut s), [2]);
    s.wait_ms(20_000);
    assert_eq!(destinations(&mut s), [2; 4]);
    assert_eq!(s.host.owner.unheard, [] as [IpAddr; 0]);
}

/// Keep-alive's probes are answered by nobody either.
#[test]
fn a_peer_that_answers_no_probe_is_looked_for() {
    let mut s = Script::with(Config { alone: false, ..config(SERVER) });
    s.host.engine.set_neighbor(CLIENT, PEERS);
    let flow = s.passive_open();
    let keep_alive = KeepAlive { idle: Duration::from_secs(10), interval: Duration::from_secs(1), probes: 9 };
    s.host.engine.set_keep_alive(s.now, flow, Some(keep_alive));
    s.frames();
    s.wait_ms(11_500);
    assert_eq!(destinations(&mut s), [2, 2]);
    assert_eq!(s.host.owner.unheard, [IpAddr::from(CLIENT)]);
    s.host.engine.set_neighbor(CLIENT, MacAddr([2, 0, 0, 0, 0, 99]));
    s.wait_ms(1000);
    assert_eq!(destinations(&mut s), [99]);
}

#[test]
fn a_neighbour_that_is_known_may_say_that_it_moved() {
    let mut s = Script::new();
    let moved = MacAddr([2, 0, 0, 0, 0, 99]);
    // Not known, and nobody asked: strangers fill no table.
    arp(&mut s, arp::Operation::Request, (moved, CLIENT), CLIENT);
    s.host.connect(s.now, s.local, s.peer);
    assert_eq!(asked(&mut s).len(), 1);
    arp(&mut s, arp::Operation::Reply, (PEERS, CLIENT), SERVER);
    s.expect(&[(SYN, 0, 0, 0)]);
    // RFC 826, RFC 5227 section 3: an announcement.
    arp(&mut s, arp::Operation::Request, (moved, CLIENT), CLIENT);
    assert_eq!(s.frames().len(), 0);
    s.host.connect(s.now, SocketAddrV4::new(SERVER, 81), s.peer);
    let frames = s.frames();
    assert_eq!(ethernet::Header::parse(&frames[0]).unwrap().0.destination, moved);
}

// --- the way back ------------------------------------------------------------------------------

/// Whom the last frame went to.
fn sent_to(s: &mut Script) -> u8 {
    let frames = s.frames();
    let frame = frames.last().expect("a frame");
    ethernet::Header::parse(frame).unwrap().0.destination.0[5]
}

/// A neighbour who is not on the path has only to guess a good segment to get the rest of the connection, if each frame says
/// where the next one goes (issue 18).
#[test]
fn a_frame_from_elsewhere_does_not_divert_a_connection() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.inject(PSH | ACK, 1, 1, 10, 65_535);
    s.from = 66;
    s.inject(PSH | ACK, 11, 1, 10, 65_535);
    s.host.send(flow, 10);
    assert_eq!(sent_to(&mut s), 2);
    s.inject(ACK, 21, 11, 0, 65_535);
    s.host.send(flow, 10);
    assert_eq!(sent_to(&mut s), 2);
}

/// A gateway that failed over: what is sent goes nowhere, and the peer's segments come from another one.
#[test]
fn a_connection_whose_segments_are_lost_follows_its_peer() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.send(flow, 10);
    assert_eq!(sent_to(&mut s), 2);
    s.from = 3;
    s.inject(PSH | ACK, 1, 1, 10, 65_535);
    s.wait_ms(100);
    assert_eq!(sent_to(&mut s), 2, "not before it is known that something is wrong");
    s.wait_ms(3000);
    assert_eq!(sent_to(&mut s), 2);
    s.inject(PSH | ACK, 11, 1, 10, 65_535);
    s.wait_ms(3000);
    assert_eq!(sent_to(&mut s), 3);
    s.inject(ACK, 21, 11, 0, 65_535);
    s.host.send(flow, 10);
    assert_eq!(sent_to(&mut s), 3);
}

/// Where only acknowledgments go out, no timer of ours says that they are lost; the peer does, by sending again.
#[test]
fn a_connection_that_only_receives_follows_a_peer_that_read_its_timestamps() {
    let mut s = Script::new();
    s.options = Options { mss: Some(1460), ..Options::NONE };
    s.peer_timestamp = Some(1000);
    let flow = s.passive_open();
    let clock = s.last_options.timestamps.unwrap().value;
    s.peer_echo = clock;
    for seq in [1, 11] {
        s.inject(PSH | ACK, seq, 1, 10, 65_535);
    }
    s.wait_ms(300);
    assert_eq!(sent_to(&mut s), 2);
    // A guess: it has not read what we sent.
    s.from = 66;
    for echo in [clock.wrapping_sub(60_000), clock.wrapping_add(60_000)] {
        s.peer_echo = echo;
        s.inject(PSH | ACK, 1, 1, 10, 65_535);
        s.inject(PSH | ACK, 11, 1, 10, 65_535);
        assert_eq!(sent_to(&mut s), 2);
    }
    // Its own next segment is no sign of trouble.
    s.peer_echo = clock;
    s.from = 3;
    s.inject(PSH | ACK, 21, 1, 10, 65_535);
    s.wait_ms(300);
    assert_eq!(sent_to(&mut s), 2);
    s.inject(PSH | ACK, 11, 1, 10, 65_535);
    assert_eq!(sent_to(&mut s), 3);
    assert_eq!(s.state(flow), State::Established);
}

/// As above, where the window is closed: the probe is a byte behind it.
#[test]
fn a_probe_of_a_byte_is_answered_where_a_peer_that_read_its_timestamps_is_now() {
    let mut s = Script::new();
    s.options = Options { mss: Some(1460), ..Options::NONE };
    s.peer_timestamp = Some(1000);
    s.passive_open();
    let clock = s.last_options.timestamps.unwrap().value;
    s.peer_echo = clock;
    s.inject(PSH | ACK, 1, 1, 10, 65_535);
    s.wait_ms(300);
    let edge = 11 + u32::from(s.sent().last().expect("an acknowledgment").win);
    for (from, echo) in [(66, clock.wrapping_sub(60_000)), (3, clock)] {
        (s.from, s.peer_echo) = (from, echo);
        s.inject(PSH | ACK, edge, 1, 1, 65_535);
        assert_eq!(sent_to(&mut s), if from == 3 { 3 } else { 2 });
    }
}

/// What asks whether a window is open, or whether we live, has no text: nothing of it is sent again. Who knows the number of the last
/// byte that we acknowledged, and what we sent last, is the peer, however long ago that was.
#[test]
fn a_probe_is_answered_where_the_peer_is_now() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.inject(PSH | ACK, 1, 1, 10, 65_535);
    s.host.send(flow, 10);
    assert_eq!(sent_to(&mut s), 2);
    s.inject(ACK, 11, 11, 0, 65_535);
    s.wait_ms(7_200_000);
    // Guesses.
    s.from = 66;
    for (seq, ack) in [(9, 11), (10, 12), (8, 10)] {
        s.inject(ACK, seq, ack, 0, 65_535);
        s.wait_ms(1000);
        s.inject(PSH | ACK, 1, 1, 10, 65_535);
        assert_eq!(sent_to(&mut s), 2, "{seq} {ack}");
    }
    s.from = 3;
    s.inject(ACK, 10, 11, 0, 65_535);
    assert_eq!(sent_to(&mut s), 3);
    s.host.send(flow, 10);
    assert_eq!(sent_to(&mut s), 3);
    assert_eq!(s.state(flow), State::Established);
}

/// Beside a kernel its neighbour table says where the peer is, not the frame that brings the answer.
#[test]
fn beside_a_kernel_an_active_open_keeps_the_next_hop_that_it_was_given() {
    let mut config = config(SERVER);
    config.alone = false;
    let mut s = Script::with(config);
    s.host.engine.set_neighbor(CLIENT, MacAddr([2, 0, 0, 0, 0, 2]));
    s.host.connect(s.now, s.local, s.peer);
    s.expect(&[(SYN, 0, 0, 0)]);
    s.from = 66;
    s.inject(SYN | ACK, 0, 1, 0, 65_535);
    assert_eq!(sent_to(&mut s), 2);
}

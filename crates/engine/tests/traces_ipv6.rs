//! Segment by segment, as `traces.rs`, over IPv6 (RFC 8200): the same TCP, neighbour discovery (RFC 4861) and ICMPv6 (RFC 4443).

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::harness::script::{ACK, CLIENT6, CWR, ECE, FIN, PSH, RST, SERVER6, SYN, Script};
use crate::harness::{SERVER, config};
use overfly_engine::{Config, Ecn as Policy, Failure, FlowId, State, SynCookies, Unreachable};
use overfly_wire::ip::Ecn;
use overfly_wire::tcp::Options;
use overfly_wire::{MacAddr, ethernet, icmpv4, icmpv6, ipv6};

const MSS: usize = 1440;

fn at(segment: usize) -> u32 {
    1 + (segment * MSS) as u32
}

fn lengths(s: &mut Script) -> Vec<(u32, usize)> {
    s.sent().iter().map(|s| (s.seq, s.len)).collect()
}

// --- TCP -------------------------------------------------------------------------------------------

#[test]
fn a_whole_connection_opened_by_the_peer() {
    let mut s = Script::six();
    let flow = s.passive_open();
    assert_eq!(s.last_options.mss, Some(1440), "RFC 8200 section 8.3: 60 bytes of headers");
    assert_eq!(s.host.engine.tuple(flow), (s.local_end(), s.peer_end()));
    s.inject(PSH | ACK, 1, 1, 500, 65_535);
    s.host.send(flow, 2 * MSS + 100);
    s.host.engine.set_no_delay(flow, true);
    s.expect(&[(ACK, 1, 501, MSS), (ACK, at(1), 501, MSS), (PSH | ACK, at(2), 501, 100)]);
    s.received(flow, 500);
    s.inject(ACK, 501, at(2) + 100, 0, 65_535);
    s.inject(FIN | ACK, 501, at(2) + 100, 0, 65_535);
    s.expect(&[(ACK, at(2) + 100, 502, 0)]);
    s.host.engine.close(flow);
    s.expect(&[(FIN | ACK, at(2) + 100, 502, 0)]);
    s.inject(ACK, 502, at(2) + 101, 0, 65_535);
    assert_eq!(s.host.engine.flows(), 0);
}

#[test]
fn a_whole_connection_opened_by_us() {
    let mut s = Script::six();
    let flow = s.connect();
    let syn = s.sent().remove(0);
    assert_eq!((syn.flags, syn.options.mss, syn.options.sack_permitted), (SYN, Some(1440), true));
    s.inject(SYN | ACK, 0, 1, 0, 65_535);
    s.expect(&[(ACK, 1, 1, 0)]);
    s.host.send(flow, 10);
    s.host.engine.close(flow);
    s.expect(&[(FIN | PSH | ACK, 1, 1, 10)]);
    s.inject(FIN | ACK, 1, 12, 0, 65_535);
    s.expect(&[(ACK, 12, 2, 0)]);
    assert_eq!(s.host.engine.time_wait_flows(), 1);
    s.wait(Duration::from_secs(51));
    assert_eq!(s.host.engine.flows(), 0);
}

#[test]
fn without_the_option_the_mss_is_1220() {
    // RFC 9293 section 3.7.1.
    let mut s = Script::six();
    s.options = Options::NONE;
    let flow = s.passive_open();
    assert_eq!(s.host.engine.info(flow).mss, 1220);
}

#[test]
fn packets_have_the_fields_that_they_should() {
    let mut s = Script::six();
    let flow = s.passive_open();
    s.host.send(flow, 10);
    s.sent();
    let (link, packet) = ethernet::Header::parse(&s.frames[0]).unwrap();
    assert_eq!(link.ethertype, ethernet::ETHERTYPE_IPV6);
    assert_eq!(link.destination, MacAddr([2, 0, 0, 0, 0, 2]), "the way back that the peer's packets came");
    let packet = ipv6::Packet::parse(packet).unwrap();
    assert_eq!((packet.source(), packet.destination()), (SERVER6, CLIENT6));
    assert_eq!((packet.hop_limit(), packet.traffic_class()), (64, 0));
}

#[test]
fn a_wrong_checksum_is_dropped() {
    // RFC 8200 section 8.1: no header checksum below it.
    let mut s = Script::six();
    let flow = s.passive_open();
    let mut segment = vec![0; 20];
    segment[12] = 0x50;
    s.inject_packet(ipv6::PROTOCOL_TCP, 64, &segment);
    assert_eq!(s.host.engine.counters().drop_checksum, 1);
    assert_eq!(s.state(flow), State::Established);
}

#[test]
fn no_listener_no_flow() {
    let mut s = Script::six();
    s.inject(SYN, 0, 0, 0, 65_535);
    s.expect(&[(RST | ACK, 0, 1, 0)]);
    s.inject(ACK, 5, 9, 3, 65_535);
    s.expect(&[(RST, 9, 0, 0)]);
}

#[test]
fn a_listener_for_one_family_is_not_one_for_the_other() {
    let mut s = Script::six();
    s.host.engine.listen(s.local, 8).unwrap();
    s.inject(SYN, 0, 0, 0, 65_535);
    s.expect(&[(RST | ACK, 0, 1, 0)]);
    s.host.engine.listen(s.local_end(), 8).unwrap();
    s.inject(SYN, 0, 0, 0, 65_535);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
}

#[test]
fn a_listener_for_every_address() {
    let mut s = Script::six();
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 80));
    s.host.engine.listen(any, 8).unwrap();
    let flow = s.open(65_535);
    assert_eq!(s.host.engine.tuple(flow).0, s.local_end());
}

#[test]
fn a_connection_between_families_cannot_be() {
    let mut s = Script::six();
    assert!(s.host.engine.connect(s.now, s.local_end(), s.peer).is_err());
    assert!(s.host.engine.connect(s.now, s.local, s.peer_end()).is_err());
}

#[test]
fn a_loss_is_repaired() {
    let mut s = Script::six();
    let flow = s.passive_open_over(100);
    s.host.send(flow, 10 * MSS);
    s.expect_full(1, 10, MSS, true);
    s.wait_ms(100);
    s.sack(1, &[(at(1), at(10))]);
    s.expect(&[(ACK, 1, 1, MSS)]);
    s.ack(at(10));
    assert_eq!(s.host.engine.info(flow).unacknowledged, 0);
}

#[test]
fn marks_are_in_the_traffic_class() {
    // RFC 3168 section 5, RFC 8200 section 7.
    let mut s = Script::six_with(Config { ecn: Policy::Accept, ..config(SERVER) });
    s.host.engine.listen(s.local_end(), 8).unwrap();
    s.inject(SYN | ECE | CWR, 0, 0, 0, 65_535);
    s.expect(&[(SYN | ACK | ECE, 0, 1, 0)]);
    s.inject(ACK, 1, 1, 0, 65_535);
    let (flow, _) = s.host.owner.incoming.pop_front().unwrap();
    s.host.send(flow, MSS);
    assert_eq!(s.sent()[0].ecn, Ecn::Ect0);
    s.tos = 3;
    s.inject(PSH | ACK, 1, at(1), 100, 65_535);
    s.wait_ms(50);
    s.expect(&[(ACK | ECE, at(1), 101, 0)]);
}

#[test]
fn a_cookie_opens_a_connection() {
    let mut s = Script::six_with(Config { syn_cookies: SynCookies::Always, ..config(SERVER) });
    s.peer_timestamp = Some(7);
    s.host.engine.listen(s.local_end(), 8).unwrap();
    s.inject(SYN, 0, 0, 0, 65_535);
    let answer = s.sent().remove(0);
    assert_eq!(s.host.engine.flows(), 0);
    s.peer_echo = answer.options.timestamps.unwrap().value;
    s.inject(ACK, 1, 1, 0, 65_535);
    let (flow, _) = s.host.owner.incoming.pop_front().expect("the cookie is good");
    let info = s.host.engine.info(flow);
    assert_eq!((info.mss, info.sack), (1428, true));
}

#[test]
fn a_cookie_without_the_option_means_1220() {
    let mut s = Script::six_with(Config { syn_cookies: SynCookies::Always, ..config(SERVER) });
    s.options = Options::NONE;
    s.host.engine.listen(s.local_end(), 8).unwrap();
    s.inject(SYN, 0, 0, 0, 65_535);
    s.sent();
    s.inject(ACK, 1, 1, 0, 65_535);
    let (flow, _) = s.host.owner.incoming.pop_front().expect("the cookie is good");
    assert_eq!(s.host.engine.info(flow).mss, 1220);
}

// --- the path's MTU: RFC 8201 ------------------------------------------------------------------------

fn in_flight() -> (Script, FlowId, Vec<u8>) {
    let mut s = Script::six();
    let flow = s.passive_open_over(100);
    s.host.send(flow, 10 * MSS);
    s.expect_full(1, 10, MSS, true);
    let frame = s.frames[0].clone();
    (s, flow, frame)
}

#[test]
fn a_packet_too_big_makes_segments_smaller_and_sends_them_again() {
    let (mut s, flow, frame) = in_flight();
    s.too_big(1400, &frame);
    assert_eq!(s.host.engine.info(flow).mss, 1340);
    let again = lengths(&mut s);
    assert_eq!(again[0], (1, 1340));
    assert!(again.iter().all(|(_, len)| *len <= 1340), "{again:?}");
}

#[test]
fn no_path_takes_less_than_1280() {
    // RFC 8201 section 4: such a message is discarded.
    for told in [0, 68, 576, 1279] {
        let (mut s, flow, frame) = in_flight();
        s.too_big(told, &frame);
        assert!(s.host.engine.info(flow).mss >= 1220, "{told}");
        assert!(lengths(&mut s).iter().all(|(_, len)| *len >= 1220));
    }
    let (mut s, flow, frame) = in_flight();
    s.too_big(1280, &frame);
    assert_eq!(s.host.engine.info(flow).mss, 1220);
}

#[test]
fn a_size_beyond_sixteen_bits_is_no_news() {
    let (mut s, flow, frame) = in_flight();
    for told in [1500, 65_536, 65_536 + 1280, u32::MAX] {
        s.too_big(told, &frame);
    }
    assert_eq!(s.host.engine.info(flow).mss, 1440);
    assert_eq!(lengths(&mut s), []);
}

#[test]
fn a_message_about_nothing_in_flight_is_ignored() {
    // RFC 5927 section 4.1.
    let (mut s, flow, mut frame) = in_flight();
    let beyond = s.iss.wrapping_add(at(10));
    frame[58..62].copy_from_slice(&beyond.to_be_bytes());
    s.too_big(1400, &frame);
    assert_eq!((s.host.engine.info(flow).mss, s.host.engine.counters().drop_icmp), (1440, 1));
}

#[test]
fn port_unreachable_ends_an_attempt_only() {
    let unreachable = |s: &mut Script, frame: &[u8]| {
        let mut message = vec![0; 8 + icmpv6::MAX_QUOTE_LEN];
        let length = icmpv6::emit_port_unreachable(&frame[14..], &mut message, CLIENT6, SERVER6);
        s.inject_packet(ipv6::PROTOCOL_ICMPV6, 64, &message[..length]);
    };
    let (mut s, flow, frame) = in_flight();
    unreachable(&mut s, &frame);
    assert_eq!(s.state(flow), State::Established);
    let mut s = Script::six();
    s.connect();
    s.sent();
    let frame = s.frames[0].clone();
    unreachable(&mut s, &frame);
    assert_eq!(s.host.owner.past[0].failed, Some(Failure::Unreachable(Unreachable::Port)));
}

// --- neighbours: RFC 4861 ----------------------------------------------------------------------------

const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

/// A solicitation for `target` arrives.
fn solicit(s: &mut Script, source: Ipv6Addr, target: Ipv6Addr, hop_limit: u8) {
    let to = ipv6::solicited_node(target);
    let mut message = vec![0; icmpv6::MAX_NEIGHBOR_LEN];
    let source_link_address = (!source.is_unspecified()).then_some(PEER_MAC);
    let asked = icmpv6::NeighborSolicitation { target, source_link_address };
    let length = asked.emit(&mut message, source, to);
    s.inject_between(source.into(), to.into(), ipv6::PROTOCOL_ICMPV6, hop_limit, &message[..length]);
}

/// An advertisement of `target` arrives.
fn advertise(s: &mut Script, target: Ipv6Addr, mac: MacAddr, hop_limit: u8) {
    let mut message = vec![0; icmpv6::MAX_NEIGHBOR_LEN];
    let answer = icmpv6::NeighborAdvertisement {
        target,
        target_link_address: Some(mac),
        router: false,
        solicited: true,
        overrides: true,
    };
    let length = answer.emit(&mut message, target, SERVER6);
    s.inject_between(target.into(), SERVER6.into(), ipv6::PROTOCOL_ICMPV6, hop_limit, &message[..length]);
}

/// The one frame that the engine sends now, and its ICMPv6 message.
#[track_caller]
fn message(frame: &[u8]) -> (ethernet::Header, Ipv6Addr, Ipv6Addr, icmpv6::Message<'_>) {
    let (link, packet) = ethernet::Header::parse(frame).unwrap();
    let packet = ipv6::Packet::parse(packet).unwrap();
    assert_eq!(packet.hop_limit(), 255, "RFC 4861 section 7.1.1");
    let (source, destination) = (packet.source(), packet.destination());
    let message = icmpv6::Message::parse(&frame[54..], source, destination).unwrap();
    (link, source, destination, message)
}

#[test]
fn a_solicitation_is_answered_to_who_asked() {
    // RFC 4861 section 7.2.4.
    let mut s = Script::six();
    solicit(&mut s, CLIENT6, SERVER6, 255);
    let frames = s.frames();
    assert_eq!(frames.len(), 1);
    let (link, source, destination, message) = message(&frames[0]);
    assert_eq!((link.source, link.destination), (OUR_MAC, PEER_MAC));
    assert_eq!((source, destination), (SERVER6, CLIENT6));
    let icmpv6::Message::NeighborAdvertisement(answer) = message else { panic!("{message:?}") };
    assert_eq!((answer.target, answer.target_link_address), (SERVER6, Some(OUR_MAC)));
    assert!(answer.solicited && answer.overrides && !answer.router);
}

#[test]
fn duplicate_address_detection_is_answered_to_all() {
    // RFC 4861 section 7.2.4, RFC 4862 section 5.4.3: from the unspecified address.
    let mut s = Script::six();
    solicit(&mut s, Ipv6Addr::UNSPECIFIED, SERVER6, 255);
    let frames = s.frames();
    let (link, _, destination, message) = message(&frames[0]);
    assert_eq!(destination, "ff02::1".parse::<Ipv6Addr>().unwrap());
    assert_eq!(link.destination, MacAddr([0x33, 0x33, 0, 0, 0, 1]));
    let icmpv6::Message::NeighborAdvertisement(answer) = message else { panic!("{message:?}") };
    assert!(!answer.solicited);
}

#[test]
fn a_solicitation_that_crossed_a_router_is_not_answered() {
    // RFC 4861 section 7.1.1.
    let mut s = Script::six();
    for hop_limit in [0, 1, 64, 254] {
        solicit(&mut s, CLIENT6, SERVER6, hop_limit);
    }
    assert_eq!(s.frames().len(), 0);
}

#[test]
fn a_solicitation_for_somebody_else_is_not_answered() {
    let mut s = Script::six();
    solicit(&mut s, CLIENT6, "2001:db8::99".parse().unwrap(), 255);
    assert_eq!(s.frames().len(), 0);
}

#[test]
fn beside_a_kernel_nothing_is_answered() {
    let mut s = Script::six_with(Config { alone: false, ..config(SERVER) });
    solicit(&mut s, CLIENT6, SERVER6, 255);
    ping(&mut s, 4);
    assert_eq!(s.frames().len(), 0);
}

#[test]
fn a_connection_asks_for_its_next_hop_and_waits() {
    // RFC 4861 section 7.2.2: to the solicited-node group, with our own address.
    let mut s = Script::six();
    let (local, peer) = (s.local_end(), s.peer_end());
    let flow = s.host.engine.connect(s.now, local, peer).unwrap();
    s.host.owner.streams.insert(flow, crate::harness::Stream::default());
    let frames = s.frames();
    assert_eq!(frames.len(), 1);
    let (link, source, destination, asked) = message(&frames[0]);
    assert_eq!(link.destination, MacAddr([0x33, 0x33, 0xff, 0, 0, 2]));
    assert_eq!((source, destination), (SERVER6, "ff02::1:ff00:2".parse::<Ipv6Addr>().unwrap()));
    let icmpv6::Message::NeighborSolicitation(asked) = asked else { panic!("{asked:?}") };
    assert_eq!((asked.target, asked.source_link_address), (CLIENT6, Some(OUR_MAC)));
    // Not from beyond the link.
    advertise(&mut s, CLIENT6, MacAddr([6; 6]), 64);
    assert_eq!(s.frames().len(), 0);
    advertise(&mut s, CLIENT6, PEER_MAC, 255);
    s.expect(&[(SYN, 0, 0, 0)]);
    assert_eq!(s.frames[0][..6], PEER_MAC.0);
}

#[test]
fn an_unanswered_solicitation_is_repeated() {
    let mut s = Script::six();
    let (local, peer) = (s.local_end(), s.peer_end());
    let flow = s.host.engine.connect(s.now, local, peer).unwrap();
    s.host.owner.streams.insert(flow, crate::harness::Stream::default());
    assert_eq!(s.frames().len(), 1);
    s.wait_ms(1100);
    let again = s.frames();
    assert_eq!(again.len(), 1);
    assert!(matches!(message(&again[0]).3, icmpv6::Message::NeighborSolicitation(_)));
}

#[test]
fn beyond_the_prefix_the_gateway_is_asked_for() {
    let gateway = "2001:db8::ffff".parse().unwrap();
    let mut s = Script::six_with(Config { gateway6: Some(gateway), ..config(SERVER) });
    let far: SocketAddr = "[2001:db9::1]:80".parse().unwrap();
    let local = s.local_end();
    s.host.engine.connect(s.now, local, far).unwrap();
    let frames = s.frames();
    let icmpv6::Message::NeighborSolicitation(asked) = message(&frames[0]).3 else { panic!() };
    assert_eq!(asked.target, gateway);
}

// --- ping: RFC 4443 section 4 ------------------------------------------------------------------------

fn ping(s: &mut Script, length: usize) {
    let data = vec![0x5a; length];
    let mut message = vec![0; icmpv6::HEADER_LEN + length];
    let echo = icmpv6::Echo { kind: icmpv4::Kind::Request, identifier: 7, sequence: 9, data: &data };
    echo.emit(&mut message, CLIENT6, SERVER6);
    s.inject_packet(ipv6::PROTOCOL_ICMPV6, 64, &message);
}

#[test]
fn a_ping_is_answered_with_what_it_brought() {
    let mut s = Script::six();
    for length in [0, 4, 56, 1452] {
        ping(&mut s, length);
        let frames = s.frames();
        let (link, packet) = ethernet::Header::parse(&frames[0]).unwrap();
        let packet = ipv6::Packet::parse(packet).unwrap();
        assert_eq!(link.destination, PEER_MAC);
        let answer = icmpv6::Message::parse(packet.payload(), SERVER6, CLIENT6).unwrap();
        let icmpv6::Message::Echo(echo) = answer else { panic!("{answer:?}") };
        assert_eq!((echo.kind, echo.identifier, echo.sequence), (icmpv4::Kind::Reply, 7, 9));
        assert_eq!((echo.data.len(), echo.data.iter().all(|byte| *byte == 0x5a)), (length, true));
    }
}

#[test]
fn a_ping_with_a_wrong_checksum_or_to_somebody_else_is_not_answered() {
    let mut s = Script::six();
    let mut message = vec![0; icmpv6::HEADER_LEN];
    let echo = icmpv6::Echo { kind: icmpv4::Kind::Request, identifier: 7, sequence: 9, data: &[] };
    echo.emit(&mut message, CLIENT6, SERVER6);
    message[7] ^= 1;
    s.inject_packet(ipv6::PROTOCOL_ICMPV6, 64, &message);
    let other: Ipv6Addr = "2001:db8::99".parse().unwrap();
    echo.emit(&mut message, CLIENT6, other);
    s.inject_between(CLIENT6.into(), other.into(), ipv6::PROTOCOL_ICMPV6, 64, &message);
    assert_eq!(s.frames().len(), 0);
}

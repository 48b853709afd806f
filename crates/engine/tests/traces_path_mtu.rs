//! Segment by segment, as `traces.rs`: paths that take less than their first link (RFC 1191, RFC 8201, RFC 4821, RFC 8899), and
//! messages about them that nobody sent (RFC 5927).

use crate::harness::script::{ACK, SYN, Script};
use crate::harness::{SERVER, config};
use overfly_engine::{Config, CongestionState, Failure, FlowId, State, SynCookies, Unreachable};
use overfly_wire::checksum::Sum;
use overfly_wire::{ip, ipv4};

const MSS: usize = 1460;

fn at(segment: usize) -> u32 {
    1 + (segment * MSS) as u32
}

/// Ten segments in flight over a path of 100 ms; nothing was acknowledged before. And the frame of the first.
fn in_flight() -> (Script, FlowId, Vec<u8>) {
    in_flight_with(config(SERVER))
}

fn in_flight_with(config: Config) -> (Script, FlowId, Vec<u8>) {
    let mut s = Script::with(config);
    s.options.sack_permitted = true;
    let flow = s.passive_open_over(100);
    s.host.send(flow, 10 * MSS);
    s.expect_full(1, 10, MSS, true);
    let frame = s.frames[0].clone();
    (s, flow, frame)
}

/// As [`in_flight`], after ten segments that were acknowledged: the path has taken full packets.
fn in_flight_later() -> (Script, FlowId, Vec<u8>) {
    let (mut s, flow, _) = in_flight();
    s.wait_ms(100);
    s.ack(at(10));
    s.host.send(flow, 10 * MSS);
    s.expect_full(at(10), 10, MSS, true);
    let frame = s.frames[0].clone();
    (s, flow, frame)
}

fn lengths(s: &mut Script) -> Vec<(u32, usize)> {
    s.sent().iter().map(|s| (s.seq, s.len)).collect()
}

#[test]
fn every_packet_says_do_not_fragment() {
    // RFC 1191 section 3.
    let (s, _, _) = in_flight();
    assert!(s.frames.iter().all(|frame| frame[14 + 6] & 0x40 != 0));
}

#[test]
fn a_packet_too_big_makes_segments_smaller_and_sends_them_again() {
    // RFC 1191 sections 3 and 6.4: at once, and not as a sign of congestion.
    let (mut s, flow, frame) = in_flight();
    let before = s.host.engine.info(flow);
    s.wait_ms(10);
    s.too_big(1400, &frame);
    let after = s.host.engine.info(flow);
    assert_eq!(after.mss, 1360);
    let again = lengths(&mut s);
    assert_eq!(again[0], (1, 1360));
    assert!(again.iter().all(|(_, len)| *len <= 1360), "{again:?}");
    let info = s.host.engine.info(flow);
    assert_eq!(info.congestion_window, before.congestion_window);
    assert_eq!(info.slow_start_threshold, before.slow_start_threshold);
    assert_ne!(info.congestion_state, CongestionState::Recovery);
    // Everything arrives in such segments in the end.
    let sent: u32 = again.iter().map(|(_, len)| *len as u32).sum();
    s.wait_ms(100);
    s.ack(1 + sent);
    let rest = lengths(&mut s);
    assert!(rest.iter().all(|(_, len)| *len <= 1360), "{rest:?}");
    s.wait_ms(100);
    s.ack(at(10));
    assert_eq!(s.host.engine.info(flow).unacknowledged, 0);
    s.host.send(flow, 5000);
    assert!(lengths(&mut s).iter().all(|(_, len)| *len <= 1360));
}

#[test]
fn the_same_message_for_each_packet_changes_nothing_more() {
    let (mut s, flow, _) = in_flight();
    let frames = s.frames.clone();
    for frame in &frames {
        s.too_big(1400, frame);
    }
    let first = lengths(&mut s).len();
    for frame in &frames {
        s.too_big(1400, frame);
    }
    assert_eq!(lengths(&mut s), []);
    assert!(first <= 11, "{first}");
    assert_eq!(s.host.engine.info(flow).mss, 1360);
}

#[test]
fn a_path_may_shrink_twice() {
    let (mut s, flow, frame) = in_flight();
    s.too_big(1400, &frame);
    assert_eq!(lengths(&mut s)[0], (1, 1360));
    let frame = s.frames[0].clone();
    s.too_big(1300, &frame);
    assert_eq!(lengths(&mut s)[0], (1, 1260));
    assert_eq!(s.host.engine.info(flow).mss, 1260);
}

#[test]
fn timestamps_are_part_of_the_packet() {
    let mut s = Script::new();
    s.peer_timestamp = Some(1);
    let flow = s.passive_open_over(100);
    s.host.send(flow, 1448);
    s.sent();
    let frame = s.frames[0].clone();
    s.too_big(1400, &frame);
    assert_eq!(s.host.engine.info(flow).mss, 1400 - 52);
    assert_eq!(s.sent()[0].len, 1348);
    assert!(s.frames[0].len() <= 14 + 1400);
}

#[test]
fn a_message_about_nothing_in_flight_is_ignored() {
    // RFC 5927 section 4.1: SND.UNA <= the quoted sequence number < SND.NXT.
    let (mut s, flow, frame) = in_flight();
    let quoting = |sequence: u32| {
        let mut frame = frame.clone();
        frame[38..42].copy_from_slice(&sequence.to_be_bytes());
        frame
    };
    let iss = s.iss;
    for sequence in [0, at(10), at(11), 0x8000_0000] {
        s.too_big(1400, &quoting(iss.wrapping_add(sequence)));
    }
    assert_eq!(s.host.engine.counters().drop_icmp, 4);
    assert_eq!(s.host.engine.info(flow).mss, 1460);
    assert_eq!(lengths(&mut s), []);
    // The last byte in flight is one.
    s.too_big(1400, &quoting(iss.wrapping_add(at(10) - 1)));
    assert_eq!(s.host.engine.info(flow).mss, 1360);
}

#[test]
fn a_message_about_another_connection_is_ignored() {
    let (mut s, flow, frame) = in_flight();
    for (at, byte) in [(34, 1), (35, 1), (36, 1), (37, 1), (26, 1), (33, 99)] {
        let mut frame = frame.clone();
        frame[at] ^= byte;
        // The quoted IP header keeps its sum.
        frame[24..26].fill(0);
        let sum = Sum::new().bytes(&frame[14..34]).finish();
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        s.too_big(600, &frame);
    }
    assert_eq!(s.host.engine.counters().drop_icmp, 6);
    assert_eq!(s.host.engine.info(flow).mss, 1460);
}

#[test]
fn a_message_with_nothing_in_flight_is_ignored() {
    let (mut s, flow, frame) = in_flight();
    s.ack(at(10));
    s.too_big(1400, &frame);
    assert_eq!(s.host.engine.info(flow).mss, 1460);
    assert_eq!(s.host.engine.counters().drop_icmp, 1);
}

#[test]
fn absurdly_small_paths_are_not_believed_whole() {
    // RFC 1191 section 3: never below 68; Linux's min_pmtu is 552.
    for told in [1, 68, 551] {
        let (mut s, flow, frame) = in_flight();
        s.too_big(told, &frame);
        assert_eq!(s.host.engine.info(flow).mss, 512, "{told}");
        assert!(lengths(&mut s).iter().all(|(_, len)| *len <= 512));
    }
}

#[test]
fn a_router_that_does_not_say_means_the_next_plateau() {
    // RFC 1191 section 5 and 7.1.
    let (mut s, flow, frame) = in_flight();
    s.too_big(0, &frame);
    let mss = s.host.engine.info(flow).mss;
    assert!((1006 - 40..1460).contains(&mss), "{mss}");
    assert_eq!(lengths(&mut s)[0].1, usize::from(mss));
}

#[test]
fn a_larger_or_equal_size_is_no_news() {
    // RFC 1191 section 3: a message never increases the estimate.
    for told in [1500, 1501, 9000, 65_535] {
        let (mut s, flow, frame) = in_flight();
        s.too_big(told, &frame);
        assert_eq!(s.host.engine.info(flow).mss, 1460);
        assert_eq!(lengths(&mut s), []);
    }
}

#[test]
fn a_path_that_has_taken_full_packets_is_doubted_until_a_timeout() {
    // RFC 5927 section 7.2.
    let (mut s, flow, frame) = in_flight_later();
    s.too_big(1400, &frame);
    assert_eq!(s.host.engine.info(flow).mss, 1460);
    assert_eq!(lengths(&mut s), []);
    s.wait_ms(2000);
    assert_eq!(s.host.engine.info(flow).mss, 1360, "what was claimed is true: nothing arrives");
    assert!(s.sent().last().unwrap().len <= 1360);
    s.ack(at(20));
    assert_eq!(s.host.engine.info(flow).unacknowledged, 0);
}

#[test]
fn a_doubtful_message_is_forgotten_when_full_packets_arrive() {
    // RFC 5927 section 7.2: progress says that it was forged.
    let (mut s, flow, frame) = in_flight_later();
    s.too_big(576, &frame);
    s.wait_ms(100);
    s.ack(at(20));
    assert_eq!(s.host.engine.info(flow).mss, 1460);
    s.host.send(flow, 5 * MSS);
    assert!(lengths(&mut s).iter().all(|(_, len)| *len == MSS));
    s.wait_ms(5000);
    assert_ne!(s.host.engine.info(flow).mss, 536, "a timeout later does not bring it back");
}

#[test]
fn a_path_that_swallows_full_packets_is_found_without_messages() {
    // RFC 4821 section 7.7, RFC 8899 section 4.3: a black hole.
    let (mut s, flow, _) = in_flight_with(Config { mtu_probing: true, ..config(SERVER) });
    s.wait_ms(5000);
    let mss = s.host.engine.info(flow).mss;
    assert!(mss <= 1006 - 40, "{mss}");
    let sent = s.sent();
    assert!(sent.last().unwrap().len <= usize::from(mss));
    s.ack(at(10));
    assert_eq!(s.host.engine.info(flow).unacknowledged, 0);
}

#[test]
fn without_probing_a_timeout_is_only_a_timeout() {
    let (mut s, flow, _) = in_flight();
    s.wait_ms(20_000);
    assert_eq!(s.host.engine.info(flow).mss, 1460);
}

#[test]
fn after_ten_minutes_a_larger_size_is_tried() {
    // RFC 1191 section 6.3, RFC 8899 section 5.1.1: PMTU_RAISE_TIMER.
    let (mut s, flow, frame) = in_flight();
    s.too_big(1400, &frame);
    s.sent();
    s.wait_ms(100);
    s.ack(at(10));
    s.host.send(flow, 10 * 1360);
    assert!(lengths(&mut s).iter().all(|(_, len)| *len <= 1360));
    s.wait_ms(100);
    s.ack(at(10) + 13_600);
    s.wait_ms(601_000);
    // The size that is sent now is shown to arrive first.
    let mut una = at(10) + 13_600;
    let mut largest = 0;
    for _ in 0..6 {
        s.host.send(flow, 20 * 1360);
        for _ in 0..10 {
            let sent = lengths(&mut s);
            largest = sent.iter().map(|(_, len)| *len).max().unwrap_or(0).max(largest);
            una = sent.iter().map(|(seq, len)| seq + *len as u32).max().unwrap_or(una).max(una);
            s.wait_ms(100);
            s.ack(una);
        }
    }
    assert!(largest > 1360, "{largest}");
    assert!(s.host.engine.info(flow).mss > 1360);
    assert_eq!(s.host.engine.info(flow).unacknowledged, 0);
}

/// A path that took 1,400 bytes ten minutes ago: `before` segments are in flight, a probe of more behind them, and others behind
/// that. Returns what is in flight, and the probe's place and frame.
fn probing(before: usize) -> (Script, FlowId, Vec<(u32, usize)>, usize, Vec<u8>) {
    let (mut s, flow, frame) = in_flight();
    s.too_big(1400, &frame);
    s.sent();
    s.wait_ms(100);
    s.ack(at(10));
    s.wait_ms(601_000);
    let mut una = at(10);
    for _ in 0..4 {
        // The size that is sent now is shown to arrive first; less than four segments bring no probe.
        s.host.send(flow, 2 * 1360);
        una += 2 * 1360;
        s.sent();
        s.wait_ms(100);
        s.ack(una);
    }
    s.host.send(flow, before * 1360);
    let mut sent = lengths(&mut s);
    s.host.send(flow, 8 * 1360);
    sent.extend(lengths(&mut s));
    let place = sent.iter().position(|(_, len)| *len > 1360).expect("a probe");
    assert_eq!(place, before);
    let frame = s.frames[0].clone();
    s.wait_ms(100);
    (s, flow, sent, place, frame)
}

/// What is sent again of the range.
fn again(s: &mut Script, from: u32, to: u32) -> usize {
    lengths(s).iter().filter(|(seq, _)| (from..to).contains(seq)).map(|(_, len)| *len).sum()
}

#[test]
fn a_lost_probe_is_no_congestion_whether_a_router_names_it_or_not() {
    // RFC 8899 section 3, item 7.
    for named in [false, true] {
        let (mut s, flow, sent, place, frame) = probing(0);
        let before = s.host.engine.info(flow);
        if named {
            s.too_big(1410, &frame);
        }
        let (start, len) = sent[place];
        let end = start + len as u32;
        let (last, last_len) = *sent.last().expect("more behind the probe");
        s.sack(start, &[(end, last + last_len as u32)]);
        assert_eq!(again(&mut s, start, end), len, "its data goes again");
        let info = s.host.engine.info(flow);
        assert_eq!(info.slow_start_threshold, before.slow_start_threshold, "named: {named}");
        assert!(info.congestion_window >= before.congestion_window, "named: {named}");
        assert_eq!(info.mss, 1360);
        assert_eq!(s.host.engine.counters().fast_retransmits, 0);
    }
}

#[test]
fn a_loss_just_before_a_probe_is_congestion() {
    let (mut s, flow, sent, place, _) = probing(1);
    let before = s.host.engine.info(flow);
    let (probe, len) = sent[place];
    let end = probe + len as u32;
    let (last, last_len) = *sent.last().expect("more behind the probe");
    s.sack(sent[0].0, &[(end, last + last_len as u32)]);
    assert!(again(&mut s, sent[0].0, end) >= 1360);
    let info = s.host.engine.info(flow);
    assert_eq!(info.congestion_state, CongestionState::Recovery);
    assert!(info.slow_start_threshold < before.slow_start_threshold);
}

/// An ICMP error of this code of "destination unreachable" about `frame`.
fn unreachable(s: &mut Script, code: u8, frame: &[u8]) {
    let mut message = vec![3, code, 0, 0, 0, 0, 0, 0];
    message.extend_from_slice(&frame[14..42]);
    let sum = Sum::new().bytes(&message).finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    s.inject_packet(ipv4::PROTOCOL_ICMP, 64, &message);
}

#[test]
fn errors_end_an_attempt_and_say_why_and_no_connection() {
    // RFC 5461 section 4.1, RFC 5927 section 5.2.
    for code in 0..=15 {
        if code == 4 {
            continue;
        }
        let (mut s, flow, frame) = in_flight();
        unreachable(&mut s, code, &frame);
        assert_eq!(s.state(flow), State::Established, "code {code}");
        assert_eq!(lengths(&mut s), []);
        let mut s = Script::new();
        s.connect();
        s.expect(&[(SYN, 0, 0, 0)]);
        let frame = s.frames[0].clone();
        unreachable(&mut s, code, &frame);
        let why = match code {
            0 | 11 => Unreachable::Network,
            6 | 9 => Unreachable::NetworkUnknown,
            2 => Unreachable::Protocol,
            3 => Unreachable::Port,
            5 => Unreachable::SourceRoute,
            7 => Unreachable::HostUnknown,
            8 => Unreachable::HostIsolated,
            10 | 13..=15 => Unreachable::Prohibited,
            _ => Unreachable::Host,
        };
        assert_eq!(s.host.owner.past[0].failed, Some(Failure::Unreachable(why)), "code {code}");
        assert_eq!(s.host.engine.flows(), 0);
    }
}

#[test]
fn an_error_about_another_syn_ends_no_attempt() {
    // RFC 5927 section 4.1.
    let mut s = Script::new();
    let flow = s.connect();
    s.expect(&[(SYN, 0, 0, 0)]);
    let mut frame = s.frames[0].clone();
    frame[38] ^= 1;
    unreachable(&mut s, 1, &frame);
    assert_eq!((s.state(flow), s.host.engine.counters().drop_icmp), (State::SynSent, 1));
    s.inject(SYN | ACK, 0, 1, 0, 65_535);
    assert_eq!(s.state(flow), State::Established);
}

#[test]
fn the_largest_segment_that_an_owner_wants_is_offered() {
    // TCP_MAXSEG: what we say, and what we send; options deducted once they are agreed on (RFC 6691 section 2).
    for timestamps in [false, true] {
        let mut s = Script::new();
        let flow = s.connect();
        s.host.engine.set_max_segment(flow, 1000);
        s.expect(&[(SYN, 0, 0, 0)]);
        assert_eq!(s.last_options.mss, Some(1000));
        s.peer_timestamp = timestamps.then_some(7);
        s.peer_echo = s.last_options.timestamps.unwrap().value;
        s.inject(SYN | ACK, 0, 1, 0, 65_535);
        assert_eq!(s.host.engine.info(flow).mss, if timestamps { 988 } else { 1000 });
        // Of a listener, for all who connect, by cookie too.
        for syn_cookies in [SynCookies::WhenFull, SynCookies::Always] {
            let mut s = Script::with(Config { syn_cookies, ..config(SERVER) });
            let listener = s.host.engine.listen(s.local, 8).unwrap();
            s.host.engine.set_listener_max_segment(listener, 1000);
            s.peer_timestamp = timestamps.then_some(7);
            s.inject(SYN, 0, 0, 0, 65_535);
            s.expect(&[(SYN | ACK, 0, 1, 0)]);
            assert_eq!(s.last_options.mss, Some(1000));
            s.peer_echo = s.last_options.timestamps.map_or(0, |timestamps| timestamps.value);
            s.inject(ACK, 1, 1, 0, 65_535);
            let (flow, _) = s.host.owner.incoming.pop_front().unwrap();
            assert_eq!(s.host.engine.info(flow).mss, if timestamps { 988 } else { 1000 });
        }
    }
}

#[test]
fn a_traffic_class_and_a_hop_limit_are_on_every_packet_and_inherited() {
    // RFC 2474 section 3; the two bits below it are ECN's (RFC 3168 section 5).
    for six in [false, true] {
        let mut s = if six { Script::six() } else { Script::new() };
        let marks = |s: &mut Script| -> Vec<(u8, u8)> {
            let frames = s.frames();
            let packets = frames.iter().map(|frame| ip::Packet::parse(&frame[14..]).unwrap());
            packets.map(|packet| (packet.traffic_class(), packet.hop_limit())).collect()
        };
        let listener = s.host.engine.listen(s.local_end(), 8).unwrap();
        s.host.engine.set_listener_traffic_class(listener, 0xb8 | 3);
        let (of_its_family, of_the_other) = (7, 9);
        let (hops, hops6) = if six { (of_the_other, of_its_family) } else { (of_its_family, of_the_other) };
        s.host.engine.set_listener_hop_limits(listener, hops, hops6);
        s.inject(SYN, 0, 0, 0, 65_535);
        s.host.transmit(s.now);
        s.iss = sequence(&s.host.outbox.frames[0], six);
        assert_eq!(marks(&mut s), [(0xb8, 7)]);
        s.inject(ACK, 1, 1, 0, 65_535);
        let (flow, _) = s.host.owner.incoming.pop_front().unwrap();
        s.host.send(flow, 10);
        assert_eq!(marks(&mut s), [(0xb8, 7)]);
        s.host.engine.set_traffic_class(flow, 0x20);
        s.host.engine.set_hop_limit(flow, 0);
        s.host.send(flow, 10);
        s.inject(ACK, 1, 11, 0, 65_535);
        assert_eq!(marks(&mut s), [(0x20, 64)], "0 is what the configuration says");
        s.peer.set_port(99);
        let flow = s.connect();
        s.host.engine.set_traffic_class(flow, 0x48);
        s.host.engine.set_hop_limit(flow, 255);
        assert_eq!(marks(&mut s), [(0x48, 255)], "the SYN");
    }
}

/// The sequence number of a frame.
fn sequence(frame: &[u8], six: bool) -> u32 {
    let at = if six { 58 } else { 38 };
    u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]])
}

#[test]
fn a_small_link_limits_both_directions() {
    // RFC 6691 section 2: the MSS that we offer is the link's, options not deducted; what we send is the lesser.
    let mut s = Script::with(Config { mtu: 576, ..config(SERVER) });
    let flow = s.passive_open();
    assert_eq!(s.last_options.mss, Some(536));
    assert_eq!(s.host.engine.info(flow).mss, 536);
}

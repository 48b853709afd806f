//! Segment by segment, as `traces.rs`: selective acknowledgments, congestion marks, SYN cookies.

mod harness;

use harness::script::{ACK, PEER_ISS, PSH, RST, SYN, Script};
use harness::{SERVER, config};
use overfly_engine::{Ecn, State, SynCookies};
use overfly_wire::tcp::{Flags, Options, Sacks};

const MSS: usize = 1460;
const ECE: Flags = Flags::ECE;
const CWR: Flags = Flags::CWR;

fn with_sack() -> Script {
    let mut s = Script::new();
    s.options.sack_permitted = true;
    s
}

/// The blocks of the segment last sent, relative to the peer's SYN.
fn reported(s: &Script) -> Vec<(u32, u32)> {
    let relative = |number: u32| number.wrapping_sub(PEER_ISS);
    s.last_options.sack.as_slice().iter().map(|&(left, right)| (relative(left), relative(right))).collect()
}

/// An acknowledgment with blocks, relative to the engine's SYN.
fn ack_with(s: &mut Script, ack: u32, blocks: &[(u32, u32)]) {
    let mut sack = Sacks::EMPTY;
    for &(left, right) in blocks {
        sack.push(s.iss.wrapping_add(left), s.iss.wrapping_add(right));
    }
    s.inject_with(ACK, 1, ack, 0, 65_535, Options { sack, ..Options::NONE });
}

// --- what we report (RFC 2018, RFC 2883) -----------------------------------------------------------

#[test]
fn sack_is_agreed_to_only_when_offered() {
    for offered in [false, true] {
        let mut s = Script::new();
        s.options.sack_permitted = offered;
        s.passive_open();
        assert_eq!(s.last_options.sack_permitted, offered);
        s.inject(ACK, 101, 1, 100, 65_535);
        s.expect(&[(ACK, 1, 1, 0)]);
        assert_eq!(!reported(&s).is_empty(), offered);
    }
}

#[test]
fn what_is_held_is_reported_the_latest_first() {
    let mut s = with_sack();
    s.passive_open();
    s.inject(ACK, 101, 1, 100, 65_535);
    s.expect(&[(ACK, 1, 1, 0)]);
    assert_eq!(reported(&s), [(101, 201)]);
    s.inject(ACK, 301, 1, 100, 65_535);
    s.expect(&[(ACK, 1, 1, 0)]);
    assert_eq!(reported(&s), [(301, 401), (101, 201)]);
    s.inject(ACK, 201, 1, 100, 65_535);
    s.expect(&[(ACK, 1, 1, 0)]);
    assert_eq!(reported(&s), [(101, 401)], "blocks that touch are one");
    s.inject(ACK, 1, 1, 100, 65_535);
    s.expect(&[(ACK, 1, 401, 0)]);
    assert_eq!(reported(&s), []);
}

#[test]
fn what_came_twice_is_reported_first_and_once() {
    let mut s = with_sack();
    s.passive_open();
    s.inject(ACK, 1, 1, 100, 65_535);
    s.wait_ms(100);
    s.sent();
    s.inject(ACK, 1, 1, 100, 65_535);
    s.expect(&[(ACK, 1, 101, 0)]);
    assert_eq!(reported(&s), [(1, 101)], "below the acknowledgment: a duplicate");
    s.inject(ACK, 201, 1, 100, 65_535);
    s.expect(&[(ACK, 1, 101, 0)]);
    assert_eq!(reported(&s), [(201, 301)]);
}

// --- what is reported to us (RFC 6675, RFC 8985) -----------------------------------------------------

#[test]
fn only_the_gaps_between_blocks_are_sent_again() {
    let mut s = with_sack();
    let flow = s.passive_open();
    s.host.send(flow, 10 * MSS);
    assert_eq!(s.sent().len(), 10);
    let at = |segment: usize| 1 + (segment * MSS) as u32;
    // The first and the fourth segment are lost.
    ack_with(&mut s, 1, &[(at(1), at(3))]);
    ack_with(&mut s, 1, &[(at(4), at(7)), (at(1), at(3))]);
    ack_with(&mut s, 1, &[(at(4), at(10)), (at(1), at(3))]);
    s.wait_ms(60);
    let again: Vec<u32> = s.sent().iter().filter(|s| s.len > 0).map(|s| s.seq).collect();
    assert_eq!(again, [at(0), at(3)]);
    ack_with(&mut s, at(10), &[]);
    assert_eq!(s.host.engine.info(flow).unacknowledged, 0);
    assert_eq!(s.host.engine.counters().timeouts, 0);
}

// --- congestion marks (RFC 3168) ---------------------------------------------------------------------

#[test]
fn a_mark_is_echoed_until_the_sender_says_that_it_knows() {
    let mut config = config(SERVER);
    config.ecn = Ecn::Accept;
    let mut s = Script::with(config);
    s.host.engine.listen(s.local, 8).unwrap();
    s.inject(SYN | ECE | CWR, 0, 0, 0, 65_535);
    s.expect(&[(SYN | ACK | ECE, 0, 1, 0)]);
    s.inject(ACK, 1, 1, 0, 65_535);
    s.tos = 3;
    s.inject(PSH | ACK, 1, 1, 100, 65_535);
    s.wait_ms(50);
    s.expect(&[(ACK | ECE, 1, 101, 0)]);
    s.tos = 2;
    s.inject(PSH | ACK, 101, 1, 100, 65_535);
    s.wait_ms(50);
    s.expect(&[(ACK | ECE, 1, 201, 0)]);
    s.inject(PSH | ACK | CWR, 201, 1, 100, 65_535);
    s.wait_ms(50);
    s.expect(&[(ACK, 1, 301, 0)]);
}

#[test]
fn an_echoed_mark_reduces_the_window_once_a_round_trip() {
    let mut config = config(SERVER);
    config.ecn = Ecn::Accept;
    let mut s = Script::with(config);
    s.host.engine.listen(s.local, 8).unwrap();
    s.inject(SYN | ECE | CWR, 0, 0, 0, 65_535);
    s.sent();
    s.inject(ACK, 1, 1, 0, 65_535);
    let (flow, _) = s.host.owner.incoming.pop_front().unwrap();
    s.host.send(flow, 100 * MSS);
    s.sent();
    let before = s.host.engine.info(flow).congestion_window;
    s.inject(ACK | ECE, 1, 1 + MSS as u32, 0, 65_535);
    s.inject(ACK | ECE, 1, 1 + 2 * MSS as u32, 0, 65_535);
    s.sent();
    assert_eq!(s.host.engine.counters().ecn_reductions, 1);
    let after = s.host.engine.info(flow).congestion_window;
    assert!(after < before && after >= before / 2, "{before} became {after}");
}

#[test]
fn marks_are_not_agreed_to_when_off() {
    let mut config = config(SERVER);
    config.ecn = Ecn::Off;
    let mut s = Script::with(config);
    s.host.engine.listen(s.local, 8).unwrap();
    s.inject(SYN | ECE | CWR, 0, 0, 0, 65_535);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
}

// --- SYN cookies (RFC 4987 section 3.6) ----------------------------------------------------------------

#[test]
fn a_cookie_keeps_no_state_and_brings_the_connection_back() {
    let mut config = config(SERVER);
    config.syn_cookies = SynCookies::Always;
    let mut s = Script::with(config);
    s.options = Options { mss: Some(1400), ..Options::NONE };
    s.host.engine.listen(s.local, 8).unwrap();
    s.inject(SYN, 0, 0, 0, 65_535);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
    assert_eq!(s.host.engine.flows(), 0);
    s.inject(ACK, 1, 1, 0, 65_535);
    let (flow, _) = s.host.owner.incoming.pop_front().expect("the cookie is good");
    s.host.engine.accepted(flow);
    assert_eq!(s.state(flow), State::Established);
    assert!((1000..=1400).contains(&s.host.engine.info(flow).mss), "rounded down");
    s.inject(PSH | ACK, 1, 1, 100, 65_535);
    s.received(flow, 100);
}

#[test]
fn a_wrong_or_late_cookie_is_refused() {
    let mut config = config(SERVER);
    config.syn_cookies = SynCookies::Always;
    let mut s = Script::with(config);
    s.host.engine.listen(s.local, 8).unwrap();
    s.inject(SYN, 0, 0, 0, 65_535);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
    for wrong in [100_001, 0x8000_0001, 0x0100_0001] {
        s.inject(ACK, 1, wrong, 0, 65_535);
        s.expect(&[(RST, wrong, 0, 0)]);
    }
    s.wait_ms(300_000);
    s.inject(ACK, 1, 1, 0, 65_535);
    s.expect(&[(RST, 1, 0, 0)]);
    assert_eq!(s.host.engine.flows(), 0);
}

#[test]
fn during_a_syn_flood_an_honest_peer_gets_in() {
    let mut s = Script::new();
    s.host.engine.listen(s.local, 8).unwrap();
    for number in 0..5000 {
        s.play(number);
        s.inject(SYN, 0, 0, 0, 1000);
        s.sent();
    }
    let half_open = s.host.engine.flows();
    assert!(half_open <= 256, "{half_open} control blocks");
    s.play(100_000);
    let flow = s.open(65_535);
    assert_eq!(s.state(flow), State::Established);
    s.inject(PSH | ACK, 1, 1, 100, 65_535);
    s.received(flow, 100);
}
// Append to crates/engine/tests/extensions.rs
#[test]
fn a_lost_tail_is_probed_before_the_timeout() {
    let mut s = with_sack();
    s.host.engine.listen(s.local, 8).unwrap();
    s.inject(SYN, 0, 0, 0, 65_535);
    s.sent();
    s.wait_ms(20);
    s.inject(ACK, 1, 1, 0, 65_535);
    let (flow, _) = s.host.owner.incoming.pop_front().unwrap();
    s.host.send(flow, 3 * MSS);
    assert_eq!(s.sent().len(), 3);
    s.wait_ms(100);
    let probe: Vec<_> = s.sent().iter().map(|s| (s.seq, s.len)).collect();
    assert_eq!(probe, [(1 + 2 * MSS as u32, MSS)], "the last segment again (RFC 8985 section 7.3)");
    let counters = s.host.engine.counters();
    assert_eq!((counters.loss_probes, counters.timeouts), (1, 0));
}

#[test]
fn a_segment_of_a_forgotten_connection_is_no_cookie() {
    // As many bytes went one way as the other: the difference of the two numbers is what it was in the handshake.
    let mut config = config(SERVER);
    config.syn_cookies = SynCookies::Always;
    let mut s = Script::with(config);
    s.host.engine.listen(s.local, 8).unwrap();
    s.inject(SYN, 0, 0, 0, 65_535);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
    s.inject(ACK, 1, 1, 0, 65_535);
    let (flow, _) = s.host.owner.incoming.pop_front().expect("the cookie is good");
    s.inject(PSH | ACK, 1, 1, 100, 65_535);
    s.host.send(flow, 100);
    s.expect(&[(PSH | ACK, 1, 101, 100)]);
    s.host.engine.abort(flow);
    s.sent();
    s.inject(PSH | ACK, 101, 101, 100, 65_535);
    s.expect(&[(RST, 101, 0, 0)]);
    assert!(s.host.owner.incoming.is_empty());
}

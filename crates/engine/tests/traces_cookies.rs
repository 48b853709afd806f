//! Segment by segment, as `traces.rs`: handshakes of which nothing is kept (RFC 4987 section 3.6).

use crate::harness::script::{ACK, CWR, ECE, PSH, RST, SYN, Script};
use crate::harness::{SERVER, config};
use overfly_engine::{Config, Ecn, FlowId, State, SynCookies};
use overfly_wire::tcp::Options;

fn script(syn_cookies: SynCookies) -> Script {
    let mut s = Script::with(Config { syn_cookies, ..config(SERVER) });
    s.host.engine.listen(s.local, 8).unwrap();
    s
}

#[track_caller]
fn incoming(s: &mut Script) -> FlowId {
    let (flow, _) = s.host.owner.incoming.pop_front().expect("the cookie is good");
    s.host.engine.accepted(flow);
    assert_eq!(s.state(flow), State::Established);
    flow
}

#[test]
fn without_timestamps_only_the_mss_comes_back() {
    let mut s = script(SynCookies::Always);
    s.options = Options { mss: Some(1460), window_scale: Some(7), sack_permitted: true, ..Options::NONE };
    s.inject(SYN, 0, 0, 0, 64_000);
    let answer = s.sent().remove(0);
    assert_eq!((answer.flags, answer.ack), (SYN | ACK, 1));
    // What could not be remembered is not granted.
    assert_eq!((answer.options.window_scale, answer.options.sack_permitted), (None, false));
    assert_eq!((answer.options.mss, answer.options.timestamps), (Some(1460), None));
    s.inject(ACK, 1, 1, 0, 5000);
    let flow = incoming(&mut s);
    let info = s.host.engine.info(flow);
    assert_eq!((info.mss, info.window_shift, info.send_window), (1460, (0, 0), 5000));
    assert!(!info.sack && !info.timestamps && !info.ecn);
}

#[test]
fn with_timestamps_every_option_comes_back() {
    for (window_scale, sack_permitted, ask) in
        [(Some(7), true, true), (Some(0), false, false), (None, true, false), (Some(14), false, true)]
    {
        let mut s = script(SynCookies::Always);
        s.options = Options { mss: Some(1460), window_scale, sack_permitted, ..Options::NONE };
        s.peer_timestamp = Some(1000);
        s.inject(if ask { SYN | ECE | CWR } else { SYN }, 0, 0, 0, 64_000);
        let answer = s.sent().remove(0);
        assert_eq!(answer.flags.contains(ECE), ask);
        assert_eq!(answer.options.sack_permitted, sack_permitted);
        assert_eq!(answer.options.window_scale.is_some(), window_scale.is_some());
        let timestamps = answer.options.timestamps.unwrap();
        assert_eq!(timestamps.echo, 1000);
        assert_eq!(s.host.engine.flows(), 0, "nothing is kept");
        s.peer_echo = timestamps.value;
        s.peer_timestamp = Some(1010);
        s.wait_ms(100);
        s.inject(ACK, 1, 1, 0, 500);
        let flow = incoming(&mut s);
        let info = s.host.engine.info(flow);
        assert_eq!((info.mss, info.timestamps), (1448, true));
        assert_eq!((info.sack, info.ecn), (sack_permitted, ask));
        assert_eq!(info.window_shift.0, window_scale.unwrap_or(0));
        assert_eq!(info.window_shift.1, answer.options.window_scale.unwrap_or(0), "we do what we said");
        assert_eq!(info.send_window, 500 << window_scale.unwrap_or(0));
        // RFC 7323 section 5.4: our clock does not go back.
        s.host.send(flow, 10);
        let data = s.sent().remove(0).options.timestamps.unwrap();
        assert!(data.value.wrapping_sub(timestamps.value) < 0x8000_0000, "{timestamps:?}, {data:?}");
        assert_eq!(data.echo, 1010);
    }
}

#[test]
fn an_engine_that_does_not_want_ecn_grants_none_by_cookie() {
    let mut s = Script::with(Config { syn_cookies: SynCookies::Always, ecn: Ecn::Off, ..config(SERVER) });
    s.host.engine.listen(s.local, 8).unwrap();
    s.peer_timestamp = Some(1000);
    s.inject(SYN | ECE | CWR, 0, 0, 0, 64_000);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
}

#[test]
fn the_mss_comes_back_rounded_down_and_never_beyond_the_link() {
    for (offered, least, most) in
        [(Some(536), 536, 536), (None, 536, 536), (Some(1400), 1300, 1400), (Some(9000), 1460, 1460)]
    {
        let mut s = script(SynCookies::Always);
        s.options = Options { mss: offered, ..Options::NONE };
        s.inject(SYN, 0, 0, 0, 64_000);
        s.sent();
        s.inject(ACK, 1, 1, 0, 64_000);
        let flow = incoming(&mut s);
        let mss = s.host.engine.info(flow).mss;
        assert!((least..=most).contains(&mss), "{offered:?} became {mss}");
    }
}

#[test]
fn data_with_the_third_segment_is_delivered() {
    let mut s = script(SynCookies::Always);
    s.inject(SYN, 0, 0, 0, 64_000);
    s.sent();
    s.inject(PSH | ACK, 1, 1, 100, 64_000);
    let flow = incoming(&mut s);
    s.received(flow, 100);
    s.host.send(flow, 10);
    s.expect(&[(PSH | ACK, 1, 101, 10)]);
}

#[test]
fn if_the_third_segment_is_lost_the_data_after_it_opens_too() {
    // The first segment of data begins at the same sequence number; a later one is refused, and comes again.
    let mut s = script(SynCookies::Always);
    s.inject(SYN, 0, 0, 0, 64_000);
    s.sent();
    s.wait_ms(200);
    s.inject(PSH | ACK, 1, 1, 50, 64_000);
    let flow = incoming(&mut s);
    s.received(flow, 50);
}

#[test]
fn a_guess_is_refused() {
    let mut s = script(SynCookies::Always);
    s.inject(SYN, 0, 0, 0, 64_000);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
    for wrong in [65, 1000, 0x0001_0001, 0x0100_0001, 0x8000_0001, 0xff00_0001] {
        s.inject(ACK, 1, wrong, 0, 64_000);
        s.expect(&[(RST, wrong, 0, 0)]);
    }
    assert_eq!(s.host.engine.flows(), 0);
    assert_eq!(s.host.engine.counters().drop_bad_cookie, 6);
}

#[test]
fn a_cookie_is_good_for_its_own_connection_only() {
    // RFC 4987 section 3.6: ports, addresses and the SYN's sequence number are in it.
    let mut s = script(SynCookies::Always);
    s.inject(SYN, 0, 0, 0, 64_000);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
    let port = s.peer.port();
    s.peer.set_port(port + 1);
    s.inject(ACK, 1, 1, 0, 64_000);
    s.expect(&[(RST, 1, 0, 0)]);
    s.peer.set_port(port);
    s.inject(ACK, 1_000_001, 1, 0, 64_000);
    s.expect(&[(RST, 1, 0, 0)]);
    s.inject(ACK, 1, 1, 0, 64_000);
    incoming(&mut s);
}

#[test]
fn a_cookie_grows_old() {
    for (seconds, good) in [(50, true), (130, false), (3600, false)] {
        let mut s = script(SynCookies::Always);
        s.inject(SYN, 0, 0, 0, 64_000);
        s.sent();
        s.wait_ms(seconds * 1000);
        s.inject(ACK, 1, 1, 0, 64_000);
        assert_eq!(!s.host.owner.incoming.is_empty(), good, "after {seconds} s");
        if !good {
            s.expect(&[(RST, 1, 0, 0)]);
        }
    }
}

#[test]
fn while_no_cookie_is_out_none_can_be_guessed() {
    let mut s = script(SynCookies::WhenFull);
    for guess in 0..1000 {
        s.inject(ACK, 1, guess * 0x0040_0001, 0, 64_000);
    }
    s.sent();
    assert_eq!((s.host.engine.flows(), s.host.engine.counters().drop_bad_cookie), (0, 0));
    assert_eq!(s.host.engine.counters().drop_no_flow, 1000);
}

#[test]
fn a_full_queue_answers_with_cookies_or_not_at_all() {
    for (policy, answers) in [(SynCookies::WhenFull, 1), (SynCookies::Off, 0)] {
        let mut s = script(policy);
        let mut half_open = 0;
        for number in 0..2000 {
            s.play(number);
            s.inject(SYN, 0, 0, 0, 64_000);
            s.sent();
            half_open = s.host.engine.flows();
        }
        assert!(half_open < 2000);
        s.play(5000);
        s.inject(SYN, 0, 0, 0, 64_000);
        assert_eq!(s.sent().len(), answers, "{policy:?}");
        assert_eq!(s.host.engine.flows(), half_open);
        assert_eq!(s.host.engine.counters().syn_cookies_sent > 0, answers == 1);
        s.inject(ACK, 1, 1, 0, 64_000);
        assert_eq!(s.host.owner.incoming.len(), answers);
    }
}

#[test]
fn the_same_syn_again_gets_an_answer_that_is_good_too() {
    let mut s = script(SynCookies::Always);
    s.inject(SYN, 0, 0, 0, 64_000);
    s.sent();
    s.wait_ms(1000);
    s.inject(SYN, 0, 0, 0, 64_000);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
    s.inject(ACK, 1, 1, 0, 64_000);
    incoming(&mut s);
    assert_eq!(s.host.engine.counters().syn_cookies_sent, 2);
}

#[test]
fn a_full_accept_queue_refuses_no_cookie_for_good() {
    // The acknowledgment is dropped, not reset: the peer's data comes again when there is room.
    let mut s = Script::with(Config { syn_cookies: SynCookies::Always, ..config(SERVER) });
    s.host.engine.listen(s.local, 1).unwrap();
    s.play(1);
    s.inject(SYN, 0, 0, 0, 64_000);
    s.sent();
    let first = (s.peer, s.iss);
    s.play(2);
    s.inject(SYN, 0, 0, 0, 64_000);
    s.sent();
    let second = (s.peer, s.iss);
    (s.peer, s.iss) = first;
    s.inject(ACK, 1, 1, 0, 64_000);
    (s.peer, s.iss) = second;
    s.inject(ACK, 1, 1, 0, 64_000);
    s.expect(&[]);
    incoming(&mut s);
    s.inject(PSH | ACK, 1, 1, 10, 64_000);
    let flow = incoming(&mut s);
    s.received(flow, 10);
}

#[test]
fn a_connection_made_from_a_cookie_knows_no_round_trip_yet() {
    // RFC 6298 section 2.1: no SYN of ours was timed.
    let mut s = script(SynCookies::Always);
    s.inject(SYN, 0, 0, 0, 64_000);
    s.sent();
    s.wait_ms(5000);
    s.inject(ACK, 1, 1, 0, 64_000);
    let flow = incoming(&mut s);
    let info = s.host.engine.info(flow);
    assert_eq!((info.rtt_us, info.rto_us), (0, 1_000_000));
    assert_eq!(info.congestion_window, 10 * 1460);
    s.host.send(flow, 10);
    s.expect(&[(PSH | ACK, 1, 1, 10)]);
    s.wait_ms(50);
    s.ack(11);
    assert_eq!(s.host.engine.info(flow).rtt_us, 50_000);
}

#[test]
fn a_segment_of_a_forgotten_connection_is_no_cookie() {
    // As many bytes went one way as the other: the difference of the two numbers is what it was in the handshake.
    let mut s = script(SynCookies::Always);
    s.inject(SYN, 0, 0, 0, 65_535);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
    s.inject(ACK, 1, 1, 0, 65_535);
    let flow = incoming(&mut s);
    s.inject(PSH | ACK, 1, 1, 100, 65_535);
    s.host.send(flow, 100);
    s.expect(&[(PSH | ACK, 1, 101, 100)]);
    s.host.engine.abort(flow);
    s.sent();
    s.inject(PSH | ACK, 101, 101, 100, 65_535);
    s.expect(&[(RST, 101, 0, 0)]);
    assert!(s.host.owner.incoming.is_empty());
}

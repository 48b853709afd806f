//! TCP Fast Open (RFC 7413), segment by segment, both ways. Each line is a segment: (flags, sequence number, acknowledgment,
//! payload), numbers relative to the SYNs.

use std::time::Duration;

use crate::harness::script::{ACK, CWR, ECE, FIN, PSH, RST, SYN, Script};
use crate::harness::{SERVER, config};
use overfly_engine::{Config, Ecn, Failure, FlowId, ListenerId, State};
use overfly_wire::tcp::{FastOpen, Options};

const MSS: usize = 1460;

fn offers() -> Config {
    let mut config = config(SERVER);
    config.fast_open_server = true;
    config
}

fn uses() -> Config {
    let mut config = config(SERVER);
    config.fast_open_client = true;
    config
}

fn script(six: bool, config: Config) -> Script {
    if six { Script::six_with(config) } else { Script::with(config) }
}

fn open_with(s: &Script, fast_open: Option<FastOpen>) -> Options {
    Options { fast_open, ..s.options }
}

// --- the server (RFC 7413 section 4.2.2) ---------------------------------------------------------------

/// The cookie that the engine gives to the peer. The connection that asked for it ends.
#[track_caller]
fn cookie(s: &mut Script) -> FastOpen {
    let options = open_with(s, Some(FastOpen::REQUEST));
    s.inject_with(SYN, 0, 0, 0, 65_535, options);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
    let cookie = s.last_options.fast_open.expect("a cookie");
    assert_eq!(cookie.cookie().len(), 8);
    s.inject(RST, 1, 0, 0, 0);
    assert_eq!(s.host.engine.flows(), 0);
    s.peer.set_port(s.peer.port() + 1);
    cookie
}

/// A listener, and a SYN with a good cookie and `length` bytes, which the owner has before the handshake is done.
#[track_caller]
fn opened(s: &mut Script, length: usize) -> (FlowId, ListenerId) {
    let listener = s.host.engine.listen(s.local_end(), 8).unwrap();
    let cookie = cookie(s);
    let options = open_with(s, Some(cookie));
    s.inject_bytes(SYN, 0, 0, &syn_data(length), 65_535, options);
    let (flow, _) = s.host.owner.incoming.pop_front().expect("before the handshake is done");
    assert_eq!(s.state(flow), State::SynReceived);
    (flow, listener)
}

/// The beginning of the peer's stream: a SYN's data follows the SYN.
fn syn_data(length: usize) -> Vec<u8> {
    (0..length).map(|index| crate::harness::pattern(77, index as u64)).collect()
}

#[test]
fn a_client_that_asks_gets_the_cookie_of_its_address() {
    for six in [false, true] {
        let mut s = script(six, offers());
        s.host.engine.listen(s.local_end(), 8).unwrap();
        let first = cookie(&mut s);
        assert_eq!(cookie(&mut s), first, "whatever the port");
        s.inject(SYN, 0, 0, 0, 65_535);
        s.expect(&[(SYN | ACK, 0, 1, 0)]);
        assert_eq!(s.last_options.fast_open, None, "not asked for");
    }
}

#[test]
fn a_server_without_fast_open_ignores_the_option_and_the_data() {
    let mut s = Script::new();
    s.host.engine.listen(s.local, 8).unwrap();
    let options = open_with(&s, FastOpen::with_cookie(&[1; 8]));
    s.inject_bytes(SYN, 0, 0, &syn_data(100), 65_535, options);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
    assert_eq!(s.last_options.fast_open, None);
    assert!(s.host.owner.incoming.is_empty());
}

#[test]
fn data_with_a_cookie_is_delivered_before_the_handshake_ends() {
    for six in [false, true] {
        let mut s = script(six, offers());
        let (flow, _) = opened(&mut s, 100);
        s.received(flow, 100);
        s.expect(&[(SYN | ACK, 0, 101, 0)]);
        assert_eq!(s.last_options.fast_open, None, "the client has it");
        s.inject(ACK, 101, 1, 0, 65_535);
        assert_eq!(s.state(flow), State::Established);
        s.inject(PSH | ACK, 101, 1, 50, 65_535);
        s.received(flow, 150);
        assert_eq!(s.host.engine.counters().fast_opens_accepted, 1);
        assert_eq!(s.host.owner.streams.len(), 1, "announced once");
    }
}

#[test]
fn the_answer_does_not_wait_for_the_handshake() {
    for six in [false, true] {
        let mut s = script(six, offers());
        let (flow, _) = opened(&mut s, 100);
        s.host.send(flow, 20);
        s.expect(&[(SYN | ACK, 0, 101, 0), (PSH | ACK, 1, 101, 20)]);
        // One acknowledgment for both.
        s.inject(ACK, 101, 21, 0, 65_535);
        assert_eq!(s.state(flow), State::Established);
        assert_eq!(s.host.owner.streams[&flow].acknowledged, 20);
        s.host.send(flow, 10);
        s.expect(&[(PSH | ACK, 21, 101, 10)]);
    }
}

#[test]
fn the_answer_fills_the_initial_window() {
    let mut s = script(false, offers());
    let (flow, _) = opened(&mut s, 100);
    s.host.send(flow, 20 * MSS);
    let sent: Vec<_> = s.sent().iter().map(|s| (s.seq, s.len)).collect();
    let expected: Vec<_> = (0..10).map(|segment| (1 + (segment * MSS) as u32, MSS)).collect();
    assert_eq!(sent[0], (0, 0));
    assert_eq!(&sent[1..], expected, "RFC 6928 section 2: the SYN is not of the window");
}

#[test]
fn an_answer_that_is_lost_is_sent_again_although_the_handshake_ended() {
    let mut s = script(false, offers());
    let (flow, _) = opened(&mut s, 100);
    s.host.send(flow, 20);
    s.expect(&[(SYN | ACK, 0, 101, 0), (PSH | ACK, 1, 101, 20)]);
    // The SYN alone is acknowledged.
    s.inject(ACK, 101, 1, 0, 65_535);
    s.expect(&[]);
    s.expect_after(200, &[(PSH | ACK, 1, 101, 20)]);
    s.inject(ACK, 101, 21, 0, 65_535);
    assert_eq!(s.host.owner.streams[&flow].acknowledged, 20);
}

#[test]
fn the_syn_again_with_and_without_its_data_gets_the_same_answer() {
    let mut s = script(false, offers());
    let (flow, _) = opened(&mut s, 100);
    s.expect(&[(SYN | ACK, 0, 101, 0)]);
    s.inject(SYN, 0, 0, 0, 65_535);
    s.expect(&[(SYN | ACK, 0, 101, 0)]);
    let options = open_with(&s, FastOpen::with_cookie(&[9; 8]));
    s.inject_bytes(SYN, 0, 0, &syn_data(100), 65_535, options);
    s.expect(&[(SYN | ACK, 0, 101, 0)]);
    s.received(flow, 100);
    s.wait_ms(1010);
    s.expect(&[(SYN | ACK, 0, 101, 0)]);
    s.inject(ACK, 101, 1, 0, 65_535);
    assert_eq!((s.state(flow), s.host.engine.flows()), (State::Established, 1));
}

#[test]
fn a_wrong_cookie_costs_the_data_and_brings_the_right_one() {
    let mut s = script(false, offers());
    s.host.engine.listen(s.local, 8).unwrap();
    let good = cookie(&mut s);
    let options = open_with(&s, FastOpen::with_cookie(&[9; 8]));
    s.inject_bytes(SYN, 0, 0, &syn_data(100), 65_535, options);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
    assert_eq!(s.last_options.fast_open, Some(good));
    assert!(s.host.owner.incoming.is_empty());
    s.inject(PSH | ACK, 1, 1, 100, 65_535);
    let (flow, _) = s.host.owner.incoming.pop_front().unwrap();
    s.received(flow, 100);
}

#[test]
fn a_cookie_of_the_key_before_is_good_and_renewed_an_older_one_is_not() {
    let mut s = script(false, offers());
    s.host.engine.listen(s.local, 8).unwrap();
    let old = cookie(&mut s);
    let first = offers().hash_key;
    s.host.engine.set_fast_open_keys([5; 16], Some(first));
    let new = cookie(&mut s);
    assert_ne!(old, new);
    let options = open_with(&s, Some(old));
    s.inject_bytes(SYN, 0, 0, &syn_data(100), 65_535, options);
    s.expect(&[(SYN | ACK, 0, 101, 0)]);
    assert_eq!(s.last_options.fast_open, Some(new));
    s.host.engine.set_fast_open_keys([6; 16], Some([5; 16]));
    s.peer.set_port(50_000);
    s.inject_bytes(SYN, 0, 0, &syn_data(100), 65_535, options);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
}

#[test]
fn a_server_that_needs_no_cookie_takes_data_without() {
    for (without, acknowledged) in [(false, 1), (true, 101)] {
        for asks in [None, Some(FastOpen::REQUEST), FastOpen::with_cookie(&[9; 8])] {
            let mut s = script(false, Config { fast_open_server_without_cookie: without, ..offers() });
            s.host.engine.listen(s.local, 8).unwrap();
            let options = open_with(&s, asks);
            s.inject_bytes(SYN, 0, 0, &syn_data(100), 65_535, options);
            s.expect(&[(SYN | ACK, 0, acknowledged, 0)]);
            assert_eq!(s.last_options.fast_open.is_some(), asks.is_some() && !without, "{asks:?}");
        }
    }
}

#[test]
fn a_client_that_needs_no_cookie_sends_data_without() {
    let mut s = script(false, Config { fast_open_client_without_cookie: true, ..uses() });
    assert!(s.host.engine.may_open_fast(s.now, SERVER.into(), s.peer_end()));
    let flow = s.connect();
    s.host.engine.set_fast_open(flow);
    s.host.send(flow, 100);
    let sent = s.sent();
    assert_eq!((sent.len(), sent[0].flags, sent[0].len), (1, SYN, 100));
    assert_eq!(sent[0].options.fast_open, None);
    // A server that does not take it gets it after the handshake.
    s.inject(SYN | ACK, 0, 1, 0, 65_535);
    s.expect(&[(PSH | ACK, 1, 1, 100)]);
}

#[test]
fn both_ends_know_that_data_came_with_the_syn() {
    let mut s = script(false, offers());
    let (flow, _) = opened(&mut s, 100);
    assert!(s.host.engine.info(flow).syn_data);
    let mut s = script(false, Config { fast_open_client_without_cookie: true, ..uses() });
    let flow = s.connect();
    s.host.engine.set_fast_open(flow);
    s.host.send(flow, 100);
    s.expect(&[(SYN, 0, 0, 100)]);
    assert!(!s.host.engine.info(flow).syn_data);
    s.inject(SYN | ACK, 0, 101, 0, 65_535);
    s.sent();
    assert!(s.host.engine.info(flow).syn_data);
}

#[test]
fn so_many_pending_as_configured_then_plainly() {
    let mut config = offers();
    config.max_fast_open = 2;
    let mut s = script(false, config);
    s.host.engine.listen(s.local, 8).unwrap();
    let good = cookie(&mut s);
    let options = open_with(&s, Some(good));
    let mut flows = Vec::new();
    for port in 0..3 {
        s.peer.set_port(50_000 + port);
        s.inject_bytes(SYN, 0, 0, &syn_data(10), 65_535, options);
        s.expect(&[(SYN | ACK, 0, if port < 2 { 11 } else { 1 }, 0)]);
        flows.extend(s.host.owner.incoming.pop_front());
    }
    assert_eq!(flows.len(), 2);
    // Each of the ways to end gives the place back.
    for end in 0..4 {
        s.peer.set_port(50_001);
        match end {
            0 => s.inject(RST, 11, 0, 0, 0),
            1 => {
                let (flow, _) = flows.pop().unwrap();
                s.host.engine.abort(flow);
                s.sent();
            }
            2 => {
                s.inject(ACK, 11, 1, 0, 65_535);
                s.inject(RST, 11, 1, 0, 0);
            }
            _ => {
                s.wait(Duration::from_secs(200));
                s.sent();
            }
        }
        s.inject_bytes(SYN, 0, 0, &syn_data(10), 65_535, options);
        let sent: Vec<_> = s.sent().into_iter().map(|s| s.ack).collect();
        assert_eq!(sent, [11], "end {end}");
        flows.extend(s.host.owner.incoming.pop_front());
    }
}

#[test]
fn a_reset_before_the_handshake_ends_is_a_reset() {
    let mut s = script(false, offers());
    let (flow, _) = opened(&mut s, 100);
    s.expect(&[(SYN | ACK, 0, 101, 0)]);
    s.inject(RST, 101, 0, 0, 0);
    assert!(!s.host.owner.streams.contains_key(&flow));
    assert_eq!(s.host.owner.past[0].failed, Some(Failure::Reset), "nobody refused anything");
    assert_eq!(s.host.engine.flows(), 0);
}

#[test]
fn nobody_finishes_the_handshake() {
    let mut s = script(false, offers());
    opened(&mut s, 100);
    s.expect(&[(SYN | ACK, 0, 101, 0)]);
    s.wait(Duration::from_secs(200));
    assert_eq!(s.host.owner.past[0].failed, Some(Failure::TimedOut));
    assert_eq!((s.host.engine.flows(), s.host.engine.next_deadline()), (0, None));
}

#[test]
fn a_fin_wanted_before_the_handshake_ended_follows_it() {
    for close in [false, true] {
        let mut s = script(false, offers());
        let (flow, _) = opened(&mut s, 100);
        s.host.send(flow, 20);
        if close {
            s.host.engine.close(flow);
        } else {
            s.host.engine.shutdown(flow);
        }
        s.expect(&[(SYN | ACK, 0, 101, 0), (PSH | ACK, 1, 101, 20)]);
        s.inject(ACK, 101, 21, 0, 65_535);
        s.expect(&[(FIN | ACK, 21, 101, 0)]);
    }
}

#[test]
fn a_fin_without_an_answer_follows_the_handshake_too() {
    for close in [false, true] {
        let mut s = script(false, offers());
        let (flow, _) = opened(&mut s, 100);
        s.expect(&[(SYN | ACK, 0, 101, 0)]);
        if close {
            s.host.engine.close(flow);
        } else {
            s.host.engine.shutdown(flow);
        }
        s.expect(&[]);
        s.inject(ACK, 101, 1, 0, 65_535);
        s.expect(&[(FIN | ACK, 1, 101, 0)]);
        s.ack(2);
        s.inject(FIN | ACK, 101, 2, 0, 65_535);
        s.expect(&[(ACK, 2, 102, 0)]);
    }
}

#[test]
fn a_flow_that_its_owner_knows_outlives_its_listener() {
    let mut s = script(false, offers());
    let (flow, listener) = opened(&mut s, 100);
    s.expect(&[(SYN | ACK, 0, 101, 0)]);
    s.host.engine.close_listener(listener);
    s.inject(ACK, 101, 1, 0, 65_535);
    s.expect(&[]);
    assert_eq!(s.state(flow), State::Established, "the owner has it: it must hear of an end");
}

#[test]
fn unread_data_of_a_syn_counts_against_the_window() {
    let mut config = offers();
    config.receive_window = 2048;
    config.initial_receive_window = 2048;
    let mut s = script(false, config);
    s.host.owner.hold = true;
    let (flow, _) = opened(&mut s, 1000);
    let sent = s.sent();
    assert_eq!((sent[0].ack, sent[0].win), (1001, 1048), "the owner holds the rest");
    // It reads before the handshake is done; the peer must hear of the window.
    s.host.read_all(flow);
    s.inject(ACK, 1001, 1, 0, 65_535);
    let sent = s.sent();
    assert_eq!(sent.last().map(|s| (s.flags, s.ack, s.win)), Some((ACK, 1001, 2048)));
}

#[test]
fn closing_with_data_unread_resets_also_before_the_handshake_ends() {
    let mut s = script(false, offers());
    s.host.owner.hold = true;
    let (flow, _) = opened(&mut s, 1000);
    s.sent();
    s.host.engine.close(flow);
    s.expect(&[(RST | ACK, 1, 1001, 0)]);
    assert_eq!(s.host.engine.flows(), 0);
}

#[test]
fn packet_too_big_before_the_handshake_ended_makes_the_answer_smaller() {
    for six in [false, true] {
        let mut s = script(six, offers());
        let (flow, _) = opened(&mut s, 100);
        s.host.engine.set_no_delay(flow, true);
        s.host.send(flow, 4000);
        let sent = s.sent();
        assert_eq!(sent.len(), 1 + 3);
        let frame = s.frames[1].clone();
        s.too_big(1300, &frame);
        s.sent();
        s.inject(ACK, 101, 1, 0, 65_535);
        s.wait_ms(3000);
        let again = s.sent();
        let most = if six { 1240 } else { 1260 };
        assert!(!again.is_empty() && again.iter().all(|s| s.len <= most), "{again:?}");
        assert!(again.iter().any(|s| s.seq == 1));
        s.inject(ACK, 101, 4001, 0, 65_535);
        assert_eq!(s.host.owner.streams[&flow].acknowledged, 4000);
    }
}

#[test]
fn the_timestamp_of_the_first_acknowledgment_is_echoed() {
    // RFC 7323 section 4.3: Last.ACK.sent is what the SYN's answer acknowledged.
    let mut s = script(false, offers());
    s.peer_timestamp = Some(1000);
    let (flow, _) = opened(&mut s, 100);
    s.expect(&[(SYN | ACK, 0, 101, 0)]);
    s.peer_timestamp = Some(1007);
    s.inject(ACK, 101, 1, 0, 65_535);
    s.host.send(flow, 20);
    s.expect(&[(PSH | ACK, 1, 101, 20)]);
    assert_eq!(s.last_options.timestamps.unwrap().echo, 1007);
}

// --- the client (RFC 7413 section 4.2.1) ---------------------------------------------------------------

const COOKIE: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

/// The engine opens a connection with Fast Open, and promises `length` bytes at once.
fn connect(s: &mut Script, length: usize) -> FlowId {
    s.local.set_port(s.local.port() + 1);
    let flow = s.connect();
    s.host.engine.set_fast_open(flow);
    if length > 0 {
        s.host.send(flow, length);
    }
    flow
}

/// The engine asks for a cookie and is given [`COOKIE`].
#[track_caller]
fn learn(s: &mut Script) {
    let flow = connect(s, 0);
    let syn = s.sent();
    assert_eq!((syn.len(), syn[0].len, syn[0].options.fast_open), (1, 0, Some(FastOpen::REQUEST)));
    let options = open_with(s, FastOpen::with_cookie(&COOKIE));
    s.inject_with(SYN | ACK, 0, 1, 0, 65_535, options);
    s.expect(&[(ACK, 1, 1, 0)]);
    s.host.engine.abort(flow);
    s.sent();
}

#[test]
fn a_client_asks_then_sends_data_with_its_syn() {
    for six in [false, true] {
        let mut s = script(six, uses());
        learn(&mut s);
        let flow = connect(&mut s, 100);
        s.expect(&[(SYN, 0, 0, 100)]);
        assert_eq!(s.last_options.fast_open, FastOpen::with_cookie(&COOKIE));
        s.inject(SYN | ACK, 0, 101, 0, 65_535);
        assert_eq!(s.host.owner.streams[&flow].acknowledged, 100);
        s.expect(&[(ACK, 101, 1, 0)]);
        assert_eq!(s.host.engine.counters().fast_opens_sent, 1);
    }
}

#[test]
fn the_syn_takes_what_fits_the_rest_follows() {
    let mut s = script(false, uses());
    learn(&mut s);
    let flow = connect(&mut s, 4000);
    s.host.engine.set_no_delay(flow, true);
    let first = s.sent();
    assert_eq!(first.len(), 1);
    let in_syn = first[0].len;
    assert!((MSS - 40..=MSS).contains(&in_syn), "{in_syn} bytes");
    s.inject(SYN | ACK, 0, 1 + in_syn as u32, 0, 65_535);
    let rest: usize = s.sent().iter().map(|s| s.len).sum();
    assert_eq!(rest, 4000 - in_syn);
    s.ack(4001);
    assert_eq!(s.host.owner.streams[&flow].acknowledged, 4000);
}

#[test]
fn data_that_the_server_did_not_take_goes_again_at_once() {
    let mut s = script(false, uses());
    learn(&mut s);
    let flow = connect(&mut s, 100);
    s.expect(&[(SYN, 0, 0, 100)]);
    s.inject(SYN | ACK, 0, 1, 0, 65_535);
    s.expect(&[(PSH | ACK, 1, 1, 100)]);
    s.ack(101);
    assert_eq!(s.host.owner.streams[&flow].acknowledged, 100);
    assert_eq!(s.host.engine.info(flow).congestion_window, 10 * MSS as u32, "it is no congestion");
}

#[test]
fn the_rest_goes_again_when_part_of_the_data_was_taken() {
    let mut s = script(false, uses());
    learn(&mut s);
    let flow = connect(&mut s, 100);
    s.expect(&[(SYN, 0, 0, 100)]);
    s.host.engine.shutdown(flow);
    s.inject(SYN | ACK, 0, 41, 0, 65_535);
    s.expect(&[(PSH | ACK, 41, 1, 60), (FIN | ACK, 101, 1, 0)]);
    s.ack(102);
    assert_eq!(s.host.owner.streams[&flow].acknowledged, 100);
    assert_eq!(s.state(flow), State::FinWait2);
}

#[test]
fn a_syn_that_is_lost_goes_again_plainly_and_its_data_after_the_handshake() {
    let mut s = script(false, uses());
    learn(&mut s);
    let flow = connect(&mut s, 100);
    s.expect(&[(SYN, 0, 0, 100)]);
    s.expect_after(1000, &[(SYN, 0, 0, 0)]);
    assert_eq!(s.last_options.fast_open, None, "RFC 7413 section 4.1.3.1");
    s.inject(SYN | ACK, 0, 1, 0, 65_535);
    s.expect(&[(PSH | ACK, 1, 1, 100)]);
    s.ack(101);
    assert_eq!(s.host.owner.streams[&flow].acknowledged, 100);
}

#[test]
fn a_late_answer_to_the_first_syn_covers_its_data() {
    let mut s = script(false, uses());
    learn(&mut s);
    let flow = connect(&mut s, 100);
    s.expect(&[(SYN, 0, 0, 100)]);
    s.expect_after(1000, &[(SYN, 0, 0, 0)]);
    s.inject(SYN | ACK, 0, 101, 0, 65_535);
    assert_eq!(s.host.owner.streams[&flow].acknowledged, 100);
    s.expect(&[(ACK, 101, 1, 0)]);
}

#[test]
fn a_path_that_swallows_fast_open_is_remembered_for_a_while() {
    let mut s = script(false, uses());
    learn(&mut s);
    connect(&mut s, 100);
    s.expect(&[(SYN, 0, 0, 100)]);
    s.expect_after(1000, &[(SYN, 0, 0, 0)]);
    s.inject(RST | ACK, 0, 1, 0, 0);
    connect(&mut s, 100);
    s.expect(&[(SYN, 0, 0, 0)]);
    assert_eq!(s.last_options.fast_open, None);
    s.inject(RST | ACK, 0, 1, 0, 0);
    s.wait(Duration::from_secs(61));
    connect(&mut s, 100);
    s.expect(&[(SYN, 0, 0, 100)]);
}

#[test]
fn a_server_that_ignores_the_data_is_not_tried_again_for_a_while() {
    let mut s = script(false, uses());
    learn(&mut s);
    let flow = connect(&mut s, 100);
    s.expect(&[(SYN, 0, 0, 100)]);
    s.inject(SYN | ACK, 0, 1, 0, 65_535);
    s.sent();
    s.host.engine.abort(flow);
    s.sent();
    connect(&mut s, 100);
    s.expect(&[(SYN, 0, 0, 0)]);
    assert_eq!(s.last_options.fast_open, None, "RFC 7413 section 4.1.3.1: a negative response");
}

#[test]
fn a_new_cookie_takes_the_place_of_the_one_refused() {
    let mut s = script(false, uses());
    learn(&mut s);
    let flow = connect(&mut s, 100);
    s.expect(&[(SYN, 0, 0, 100)]);
    let new = FastOpen::with_cookie(&[7; 16]);
    let options = open_with(&s, new);
    s.inject_with(SYN | ACK, 0, 1, 0, 65_535, options);
    s.expect(&[(PSH | ACK, 1, 1, 100)]);
    s.host.engine.abort(flow);
    s.sent();
    connect(&mut s, 100);
    s.expect(&[(SYN, 0, 0, 100)]);
    assert_eq!(s.last_options.fast_open, new);
}

#[test]
fn a_slow_neighbour_is_no_refusal() {
    let mut s = script(false, uses());
    learn(&mut s);
    let mac = overfly_wire::MacAddr([2, 0, 0, 0, 0, 2]);
    s.peer.set_ip(std::net::Ipv4Addr::new(10, 77, 0, 9));
    s.local.set_port(999);
    let flow = s.host.connect(s.now, s.local, s.peer);
    s.host.engine.set_fast_open(flow);
    s.wait_ms(1500);
    s.frames();
    s.host.engine.set_neighbor(*s.peer.ip(), mac);
    s.expect(&[(SYN, 0, 0, 0)]);
    assert_eq!(s.last_options.fast_open, Some(FastOpen::REQUEST), "no SYN was lost");
}

#[test]
fn the_window_of_the_answer_is_not_scaled_also_when_it_acknowledges_data() {
    let mut s = script(false, uses());
    learn(&mut s);
    let flow = connect(&mut s, 100);
    s.expect(&[(SYN, 0, 0, 100)]);
    s.options.window_scale = Some(7);
    s.inject(SYN | ACK, 0, 101, 0, 1000);
    assert_eq!(s.host.engine.info(flow).send_window, 1000, "RFC 7323 section 2.2");
}

#[test]
fn an_answer_that_agrees_to_ecn_is_no_mark() {
    let mut config = uses();
    config.ecn = Ecn::Ask;
    let mut s = script(false, config);
    learn(&mut s);
    let flow = connect(&mut s, 100);
    s.expect(&[(SYN | ECE | CWR, 0, 0, 100)]);
    s.inject(SYN | ACK | ECE, 0, 101, 0, 65_535);
    assert!(s.host.engine.info(flow).ecn);
    assert_eq!(s.host.engine.counters().ecn_reductions, 0);
}

#[test]
fn a_refused_syn_with_data_is_refused() {
    let mut s = script(false, uses());
    learn(&mut s);
    let flow = connect(&mut s, 100);
    s.expect(&[(SYN, 0, 0, 100)]);
    s.inject(RST | ACK, 0, 101, 0, 0);
    assert!(!s.host.owner.streams.contains_key(&flow));
    assert_eq!(s.host.owner.past.last().unwrap().failed, Some(Failure::Refused));
}

#[test]
fn both_ends_open_at_once_with_data() {
    for acked in [1, 101] {
        let mut s = script(false, uses());
        learn(&mut s);
        let flow = connect(&mut s, 100);
        s.host.engine.set_no_delay(flow, true);
        s.expect(&[(SYN, 0, 0, 100)]);
        s.inject(SYN, 0, 0, 0, 65_535);
        s.host.send(flow, 50);
        s.expect(&[(SYN | ACK, 0, 1, 0)]);
        s.inject(ACK, 1, acked, 0, 65_535);
        assert_eq!(s.state(flow), State::Established);
        let next = s.sent();
        s.wait_ms(1500);
        let later = s.sent();
        assert!(
            next.iter().chain(&later).any(|s| s.seq == acked),
            "what is missing goes: {next:?}, {later:?}"
        );
        s.ack(151);
        assert_eq!(s.host.owner.streams[&flow].acknowledged, 150);
    }
}

#[test]
fn packet_too_big_for_the_syn_and_its_data() {
    let mut s = script(false, uses());
    learn(&mut s);
    let flow = connect(&mut s, 4000);
    assert_eq!(s.sent().len(), 1);
    let frame = s.frames[0].clone();
    s.too_big(1300, &frame);
    s.wait_ms(1100);
    let again = s.sent();
    assert_eq!((again[0].flags, again[0].len), (SYN, 0));
    s.inject(SYN | ACK, 0, 1, 0, 65_535);
    let mut at = 1;
    for _ in 0..20 {
        for (index, segment) in s.sent().into_iter().enumerate() {
            if segment.len > 1260 {
                let frame = s.frames[index].clone();
                s.too_big(1300, &frame);
            } else if segment.seq <= at {
                at = at.max(segment.seq + segment.len as u32);
            }
        }
        s.ack(at);
        s.wait_ms(300);
    }
    assert_eq!(s.host.owner.streams[&flow].acknowledged, 4000);
}

#[test]
fn a_syn_is_one_segment_also_where_the_link_cuts() {
    let mut config = uses();
    config.checksum_offload = true;
    config.segment_offload = 65_435;
    let mut s = script(false, config);
    learn(&mut s);
    let flow = connect(&mut s, 1000);
    s.host.engine.set_max_segment(flow, 100);
    s.expect(&[(SYN, 0, 0, 100)]);
    s.inject(SYN | ACK, 0, 101, 0, 65_535);
    assert_eq!(s.host.owner.streams[&flow].acknowledged, 100);
}

/// TCP_FASTOPEN is a listener's own: the default is for those of which nothing was said.
#[test]
fn a_listener_says_whether_it_opens_fast() {
    for (default, max) in [(false, 4), (true, 0)] {
        let mut config = config(SERVER);
        config.fast_open_server = default;
        let mut s = script(false, config);
        let listener = s.host.engine.listen(s.local_end(), 8).unwrap();
        s.host.engine.set_listener_fast_open(listener, max);
        let options = open_with(&s, Some(FastOpen::REQUEST));
        s.inject_with(SYN, 0, 0, 0, 65_535, options);
        s.expect(&[(SYN | ACK, 0, 1, 0)]);
        assert_eq!(s.last_options.fast_open.is_some(), max > 0);
    }
}

//! Segment by segment, as `traces.rs`: retransmission timeouts and what they may be wrong about (RFC 6298, RFC 3522, RFC 4015),
//! the owner's own timeout, keep-alive, and acknowledgments that are not delayed.

use std::time::Duration;

use crate::harness::script::{ACK, FIN, PSH, SYN, Script};
use crate::harness::{SERVER, config};
use overfly_engine::{Algorithm, Config, CongestionState, Failure, FlowId, KeepAlive, State};
use overfly_wire::tcp::Options;

const MSS: usize = 1460;
const FULL: u32 = MSS as u32;

fn at(segment: usize) -> u32 {
    1 + (segment * MSS) as u32
}

fn sequences(s: &mut Script) -> Vec<u32> {
    s.sent().iter().filter(|s| s.len > 0).map(|s| s.seq).collect()
}

/// A connection over a path of 100 ms without SACK, and ten segments in flight since now.
fn ten_in_flight(congestion: Algorithm) -> (Script, FlowId) {
    let mut s = Script::with(Config { congestion, ..config(SERVER) });
    let flow = s.passive_open_over(100);
    s.host.send(flow, 10 * MSS);
    s.expect_full(1, 10, MSS, true);
    (s, flow)
}

// --- the timeout: RFC 6298 -----------------------------------------------------------------------

#[test]
fn the_first_timeout_is_three_round_trips() {
    // RFC 6298 section 2.2: SRTT + 4 * SRTT / 2.
    let (mut s, flow) = ten_in_flight(Algorithm::Reno);
    let info = s.host.engine.info(flow);
    assert_eq!((info.rtt_us, info.rtt_variation_us, info.rto_us), (100_000, 50_000, 300_000));
    s.expect_after(300, &[(ACK, 1, 1, MSS)]);
}

#[test]
fn the_timer_starts_anew_with_each_acknowledgment_of_new_data() {
    // RFC 6298 section 5.3.
    let (mut s, flow) = ten_in_flight(Algorithm::Reno);
    for segment in 1..5 {
        s.wait_ms(150);
        s.ack(at(segment));
        s.expect(&[]);
    }
    let rto = s.host.engine.info(flow).rto_us / 1000;
    s.expect_after(rto, &[(ACK, at(4), 1, MSS)]);
    // And is off when everything is acknowledged (section 5.2).
    s.ack(at(10));
    s.wait(Duration::from_secs(60));
    s.expect(&[]);
    assert_eq!(s.host.engine.next_deadline(), None);
}

#[test]
fn duplicates_do_not_start_the_timer_anew() {
    let (mut s, _) = ten_in_flight(Algorithm::Reno);
    s.wait_ms(200);
    s.ack(1);
    s.expect_after(100, &[(ACK, 1, 1, MSS)]);
}

#[test]
fn each_timeout_waits_twice_as_long_up_to_a_minute() {
    // RFC 6298 sections 5.5 and 2.5.
    let (mut s, flow) = ten_in_flight(Algorithm::Reno);
    for wait in [300, 600, 1200, 2400, 4800, 9600, 19_200, 38_400] {
        s.expect_after(wait, &[(ACK, 1, 1, MSS)]);
    }
    s.wait(Duration::from_secs(61));
    assert_eq!(sequences(&mut s).len(), 1);
    assert_eq!(s.host.engine.info(flow).rto_us, 60_000_000);
}

#[test]
fn an_acknowledgment_of_new_data_ends_the_doubling() {
    let (mut s, flow) = ten_in_flight(Algorithm::Reno);
    s.wait_ms(1000);
    s.sent();
    assert_eq!(s.host.engine.info(flow).backoff, 2);
    s.ack(at(1));
    let info = s.host.engine.info(flow);
    assert_eq!((info.backoff, info.retries), (0, 0));
}

#[test]
fn what_was_sent_twice_measures_nothing() {
    // RFC 6298 section 3 (Karn's algorithm).
    let (mut s, flow) = ten_in_flight(Algorithm::Reno);
    s.wait_ms(310);
    s.expect(&[(ACK, 1, 1, MSS)]);
    s.wait_ms(10);
    s.ack(at(1));
    assert_eq!(s.host.engine.info(flow).rtt_us, 100_000, "neither 320 ms nor 10 ms");
    s.sent();
    s.wait_ms(100);
    s.ack(at(10));
    assert_eq!(s.host.engine.info(flow).rtt_us, 100_000);
}

#[test]
fn one_acknowledgment_measures_once() {
    // RFC 6298 section 3: also while losses are remembered.
    let (mut s, flow) = ten_in_flight(Algorithm::Reno);
    s.wait_ms(310);
    s.expect(&[(ACK, 1, 1, MSS)]);
    s.wait_ms(10);
    s.ack(at(10));
    // New data measures again.
    s.host.send(flow, MSS);
    s.sent();
    s.wait_ms(180);
    s.ack(at(11));
    let rtt = s.host.engine.info(flow).rtt_us;
    assert!((109_000..=111_000).contains(&rtt), "{rtt}: an eighth of 180 ms");
}

#[test]
fn a_timeout_costs_all_of_the_window_and_half_of_the_flight() {
    // RFC 5681 section 3.1 equation 4 and below it; RFC 9438 section 4.6's seven tenths.
    for (congestion, segments) in [(Algorithm::Reno, 5), (Algorithm::Cubic, 7)] {
        let (mut s, flow) = ten_in_flight(congestion);
        s.wait_ms(310);
        s.expect(&[(ACK, 1, 1, MSS)]);
        let info = s.host.engine.info(flow);
        assert_eq!(
            (info.congestion_window, info.slow_start_threshold),
            (FULL, segments * FULL),
            "{congestion:?}"
        );
        assert_eq!((info.congestion_state, info.lost), (CongestionState::Loss, 9 * FULL));
        // A second timeout of the same segment leaves the threshold.
        s.wait_ms(610);
        s.expect(&[(ACK, 1, 1, MSS)]);
        assert_eq!(s.host.engine.info(flow).slow_start_threshold, segments * FULL, "{congestion:?}");
    }
}

#[test]
fn after_a_timeout_slow_start_repeats_what_was_lost() {
    // RFC 5681 section 3.1: the loss window is one segment, doubled each round trip; everything in flight is taken as lost.
    let (mut s, flow) = ten_in_flight(Algorithm::Reno);
    s.wait_ms(310);
    assert_eq!(sequences(&mut s), [at(0)]);
    s.wait_ms(100);
    s.ack(at(1));
    assert_eq!(sequences(&mut s), [at(1), at(2)]);
    s.wait_ms(100);
    s.ack(at(2));
    s.ack(at(3));
    assert_eq!(sequences(&mut s), [at(3), at(4), at(5), at(6)]);
    s.wait_ms(100);
    s.ack(at(10));
    assert_eq!(sequences(&mut s), []);
    assert_eq!(s.host.engine.info(flow).congestion_state, CongestionState::Open);
}

#[test]
fn a_cumulative_acknowledgment_spares_what_had_arrived() {
    let (mut s, _) = ten_in_flight(Algorithm::Reno);
    s.wait_ms(310);
    assert_eq!(sequences(&mut s), [at(0)]);
    s.wait_ms(100);
    s.ack(at(8));
    assert_eq!(sequences(&mut s), [at(8), at(9)]);
}

#[test]
fn an_unanswered_syn_is_sent_again_with_everything() {
    // RFC 6298 section 2.1: one second first. RFC 7323, RFC 2018, RFC 9293 section 3.7.1: the options go again.
    let mut s = Script::new();
    s.connect();
    let first = s.sent().remove(0);
    assert!(first.options.sack_permitted && first.options.timestamps.is_some());
    for wait in [1000, 1998, 3996] {
        s.wait_ms(wait - 2);
        s.expect(&[]);
        s.wait_ms(5);
        let again = s.sent().remove(0);
        assert_eq!((again.flags, again.seq, again.win), (SYN, 0, first.win));
        assert_eq!(again.options.mss, first.options.mss);
        assert_eq!(again.options.window_scale, first.options.window_scale);
        assert_eq!(again.options.sack_permitted, first.options.sack_permitted);
        let clock = |options: Options| options.timestamps.unwrap().value;
        assert!(clock(again.options).wrapping_sub(clock(first.options)) > 900, "the clock went on");
    }
}

#[test]
fn after_a_repeated_syn_the_timeout_is_three_seconds() {
    // RFC 6298 section 5.7.
    let mut s = Script::new();
    let flow = s.connect();
    s.sent();
    s.wait_ms(1003);
    s.expect(&[(SYN, 0, 0, 0)]);
    s.inject(SYN | ACK, 0, 1, 0, 65_535);
    s.expect(&[(ACK, 1, 1, 0)]);
    let info = s.host.engine.info(flow);
    assert_eq!((info.rto_us, info.rtt_us), (3_000_000, 0), "Karn: no sample");
    s.host.send(flow, 10);
    s.expect(&[(PSH | ACK, 1, 1, 10)]);
    s.expect_after(3000, &[(PSH | ACK, 1, 1, 10)]);
}

#[test]
fn after_a_repeated_answer_to_a_syn_too() {
    let mut s = Script::new();
    s.host.engine.listen(s.local, 8).unwrap();
    s.inject(SYN, 0, 0, 0, 65_535);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
    s.expect_after(1000, &[(SYN | ACK, 0, 1, 0)]);
    s.inject(ACK, 1, 1, 0, 65_535);
    let (flow, _) = s.host.owner.incoming.pop_front().unwrap();
    s.host.send(flow, 10);
    s.expect(&[(PSH | ACK, 1, 1, 10)]);
    s.expect_after(3000, &[(PSH | ACK, 1, 1, 10)]);
}

#[test]
fn a_lost_fin_times_out_like_data() {
    let mut s = Script::new();
    let flow = s.passive_open_over(100);
    s.host.engine.close(flow);
    s.expect(&[(FIN | ACK, 1, 1, 0)]);
    s.expect_after(300, &[(FIN | ACK, 1, 1, 0)]);
    s.expect_after(600, &[(FIN | ACK, 1, 1, 0)]);
    s.ack(2);
    assert_eq!(s.state(flow), State::FinWait2);
}

// --- wrong timeouts: RFC 3522, RFC 4015 ------------------------------------------------------------

/// Ten segments of 1,448 bytes in flight, with timestamps; and the timestamp that they carried.
fn with_timestamps(congestion: Algorithm, sack: bool) -> (Script, FlowId, u32) {
    let mut s = Script::with(Config { congestion, initial_window: 14_480, ..config(SERVER) });
    s.options.sack_permitted = sack;
    s.peer_timestamp = Some(1);
    let flow = s.passive_open_over(100);
    s.host.send(flow, 14_480);
    let sent = s.sent();
    assert_eq!((sent.len(), sent[0].len), (10, 1448));
    (s, flow, sent[0].options.timestamps.unwrap().value)
}

#[test]
fn a_timeout_that_came_too_early_is_undone() {
    // RFC 3522 section 3.2: the first acknowledgment after it echoes the first copy. RFC 4015 section 3.2: the window is back.
    for congestion in [Algorithm::Reno, Algorithm::Cubic] {
        let (mut s, flow, first) = with_timestamps(congestion, false);
        let before = s.host.engine.info(flow);
        s.wait_ms(305);
        assert_eq!(sequences(&mut s), [1]);
        assert_eq!(s.host.engine.info(flow).congestion_window, 1448);
        s.peer_echo = first;
        s.ack(1 + 1448);
        assert_eq!(sequences(&mut s), [], "the rest is on its way: nothing is sent again");
        let after = s.host.engine.info(flow);
        assert_eq!(after.slow_start_threshold, before.slow_start_threshold, "{congestion:?}");
        assert!(after.congestion_window >= before.congestion_window, "{congestion:?}");
        assert_eq!((after.congestion_state, after.lost), (CongestionState::Open, 0));
        assert_eq!(s.host.engine.counters().spurious_recoveries, 1);
        s.ack(1 + 14_480);
        s.wait_ms(5000);
        assert_eq!(sequences(&mut s), []);
    }
}

#[test]
fn a_timeout_that_was_right_is_not_undone() {
    // RFC 3522 section 3.2: the echo is of the repetition.
    let (mut s, flow, _) = with_timestamps(Algorithm::Reno, false);
    s.wait_ms(305);
    let again = s.sent();
    s.peer_echo = again[0].options.timestamps.unwrap().value;
    s.wait_ms(100);
    s.ack(1 + 1448);
    assert_eq!(sequences(&mut s), [1 + 1448, 1 + 2 * 1448]);
    let info = s.host.engine.info(flow);
    assert_eq!((info.slow_start_threshold, info.congestion_window), (5 * 1448, 2 * 1448));
    assert_eq!(s.host.engine.counters().spurious_recoveries, 0);
}

#[test]
fn a_fast_retransmit_of_what_was_only_late_is_undone() {
    // RFC 3522 section 3.2 for fast retransmit, with SACK.
    let (mut s, flow, first) = with_timestamps(Algorithm::Cubic, true);
    let before = s.host.engine.info(flow);
    s.wait_ms(100);
    s.peer_echo = first;
    s.sack(1, &[(1 + 1448, 1 + 4 * 1448)]);
    assert_eq!(sequences(&mut s), [1]);
    s.wait_ms(5);
    s.ack(1 + 14_480);
    let after = s.host.engine.info(flow);
    assert_eq!(after.slow_start_threshold, before.slow_start_threshold);
    assert!(after.congestion_window >= before.congestion_window);
    assert_eq!(s.host.engine.counters().spurious_recoveries, 1);
}

#[test]
fn an_acknowledgment_without_echo_undoes_nothing() {
    // An echo of zero is no timestamp of ours, but a peer that lies: RFC 4015 section 5 warns of it.
    let mut s = Script::new();
    let flow = s.passive_open_over(100);
    s.host.send(flow, 3 * MSS);
    s.sent();
    s.wait_ms(305);
    assert_eq!(sequences(&mut s), [1]);
    s.ack(at(1));
    assert_eq!(s.host.engine.counters().spurious_recoveries, 0);
}

#[test]
fn after_an_undone_timeout_a_real_loss_is_still_found() {
    let (mut s, flow, first) = with_timestamps(Algorithm::Cubic, true);
    s.wait_ms(1000);
    s.sent();
    s.peer_echo = first;
    s.ack(1 + 1448);
    s.sent();
    // Segment 1 is in fact lost; the peer says so.
    s.wait_ms(50);
    s.sack(1 + 1448, &[(1 + 2 * 1448, 1 + 10 * 1448)]);
    s.wait_ms(100);
    assert!(sequences(&mut s).contains(&(1 + 1448)));
    s.ack(1 + 14_480);
    assert_eq!(s.host.engine.info(flow).unacknowledged, 0);
}

// --- the owner's timeout: RFC 5482, RFC 9293 section 3.8.3 -----------------------------------------

#[test]
fn data_that_stays_unacknowledged_for_the_user_timeout_ends_the_flow() {
    for timeout_ms in [500, 5_000, 30_000] {
        let mut s = Script::new();
        let flow = s.passive_open_over(100);
        s.host.engine.set_user_timeout(flow, Duration::from_millis(timeout_ms));
        s.host.send(flow, 10);
        s.expect(&[(PSH | ACK, 1, 1, 10)]);
        s.wait_ms(timeout_ms - 10);
        assert_eq!(s.state(flow), State::Established, "{timeout_ms} ms");
        s.wait_ms(20);
        assert_eq!(s.host.owner.past[0].failed, Some(Failure::TimedOut), "{timeout_ms} ms");
        assert_eq!(s.host.engine.flows(), 0);
    }
}

#[test]
fn a_user_timeout_is_longer_than_the_retries_if_it_says_so() {
    let mut s = Script::with(Config { data_retries: 3, ..config(SERVER) });
    let flow = s.passive_open_over(100);
    s.host.engine.set_user_timeout(flow, Duration::from_secs(120));
    s.host.send(flow, 10);
    s.sent();
    s.wait(Duration::from_secs(119));
    assert_eq!(s.state(flow), State::Established);
    s.wait(Duration::from_secs(2));
    assert_eq!(s.host.owner.past[0].failed, Some(Failure::TimedOut));
}

#[test]
fn an_acknowledgment_starts_the_user_timeout_anew() {
    let mut s = Script::new();
    let flow = s.passive_open_over(100);
    s.host.engine.set_user_timeout(flow, Duration::from_secs(2));
    s.host.send(flow, 2 * MSS);
    s.sent();
    s.wait_ms(1500);
    s.sent();
    s.ack(at(1));
    s.sent();
    s.wait_ms(1500);
    assert_eq!(s.state(flow), State::Established);
    s.wait_ms(600);
    assert_eq!(s.host.owner.past[0].failed, Some(Failure::TimedOut));
}

#[test]
fn a_window_that_stays_closed_for_the_user_timeout_ends_the_flow_though_probes_are_answered() {
    // RFC 9293 section 3.8.6.1 would wait for ever; the owner said otherwise.
    let mut s = Script::new();
    let flow = s.passive_open_over(100);
    s.host.engine.set_user_timeout(flow, Duration::from_secs(5));
    s.win = 0;
    s.inject(ACK, 1, 1, 0, 0);
    s.host.send(flow, 10);
    s.expect(&[]);
    let mut waited = 0;
    while s.host.owner.past.is_empty() && waited < 20_000 {
        s.wait_ms(50);
        waited += 50;
        for probe in s.sent() {
            assert_eq!((probe.seq, probe.len), (0, 0));
            s.ack(1);
        }
    }
    assert_eq!(s.host.owner.past.first().map(|stream| stream.failed), Some(Some(Failure::TimedOut)));
    assert!((4_900..=6_000).contains(&waited), "{waited}");
}

#[test]
fn no_user_timeout_means_the_retries_decide() {
    let mut s = Script::with(Config { data_retries: 3, ..config(SERVER) });
    let flow = s.passive_open_over(100);
    s.host.engine.set_user_timeout(flow, Duration::from_secs(1));
    s.host.engine.set_user_timeout(flow, Duration::ZERO);
    s.host.send(flow, 10);
    s.sent();
    // 300, 600, 1200, and 2400 until it is over.
    s.wait_ms(4400);
    assert_eq!(s.state(flow), State::Established);
    s.wait_ms(200);
    assert_eq!(s.host.owner.past[0].failed, Some(Failure::TimedOut));
}

// --- keep-alive: RFC 9293 section 3.8.4 ------------------------------------------------------------

fn keep_alive(s: &mut Script, flow: FlowId) {
    let keep_alive = KeepAlive { idle: Duration::from_secs(10), interval: Duration::from_secs(2), probes: 3 };
    s.host.engine.set_keep_alive(s.now, flow, Some(keep_alive));
}

#[test]
fn keep_alive_probes_after_idle_then_each_interval_then_gives_up() {
    let mut s = Script::new();
    let flow = s.passive_open();
    keep_alive(&mut s, flow);
    // An old sequence number, no data, which the peer must answer.
    s.expect_after(10_000, &[(ACK, 0, 1, 0)]);
    s.expect_after(2_000, &[(ACK, 0, 1, 0)]);
    s.expect_after(2_000, &[(ACK, 0, 1, 0)]);
    s.wait_ms(1_990);
    assert_eq!(s.state(flow), State::Established);
    s.wait_ms(20);
    assert_eq!(s.host.owner.past[0].failed, Some(Failure::TimedOut));
    assert_eq!(s.host.engine.counters().keep_alive_probes, 3);
}

#[test]
fn an_answer_starts_the_idle_time_anew() {
    let mut s = Script::new();
    let flow = s.passive_open();
    keep_alive(&mut s, flow);
    s.expect_after(10_000, &[(ACK, 0, 1, 0)]);
    s.expect_after(2_000, &[(ACK, 0, 1, 0)]);
    s.ack(1);
    s.expect_after(10_000, &[(ACK, 0, 1, 0)]);
    s.ack(1);
    // Data from the peer does too.
    s.wait_ms(5_000);
    s.inject(PSH | ACK, 1, 1, 10, 65_535);
    s.wait_ms(60);
    s.expect(&[(ACK, 1, 11, 0)]);
    s.wait_ms(9_900);
    s.expect(&[]);
    s.wait_ms(60);
    s.expect(&[(ACK, 0, 11, 0)]);
}

#[test]
fn keep_alive_is_off_unless_asked_for() {
    // RFC 9293 section 3.8.4: MUST default to off.
    let mut s = Script::new();
    let flow = s.passive_open();
    s.wait(Duration::from_secs(24 * 3600));
    s.expect(&[]);
    assert_eq!(s.host.engine.next_deadline(), None);
    keep_alive(&mut s, flow);
    s.host.engine.set_keep_alive(s.now, flow, None);
    s.wait(Duration::from_secs(3600));
    s.expect(&[]);
    assert_eq!(s.state(flow), State::Established);
}

#[test]
fn while_data_is_unacknowledged_its_own_timer_watches() {
    let mut s = Script::new();
    let flow = s.passive_open_over(100);
    keep_alive(&mut s, flow);
    s.host.send(flow, 10);
    s.sent();
    s.wait_ms(40_000);
    assert!(s.sent().iter().all(|s| (s.seq, s.len) == (1, 10)));
    assert_eq!(s.host.engine.counters().keep_alive_probes, 0);
}

// --- acknowledgments: RFC 9293 section 3.8.6.3 -----------------------------------------------------

#[test]
fn quick_acknowledgments_wait_for_nothing() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.engine.set_quick_ack(flow, true);
    for piece in 0..3 {
        s.inject(PSH | ACK, 1 + 10 * piece, 1, 10, 65_535);
        s.expect(&[(ACK, 1, 11 + 10 * piece, 0)]);
    }
    s.host.engine.set_quick_ack(flow, false);
    s.inject(PSH | ACK, 31, 1, 10, 65_535);
    s.expect(&[]);
    // Turning it on sends what was held back.
    s.host.engine.set_quick_ack(flow, true);
    s.expect(&[(ACK, 1, 41, 0)]);
    s.wait_ms(500);
    s.expect(&[]);
}

#[test]
fn no_acknowledgment_waits_longer_than_half_a_second() {
    // RFC 9293 section 3.8.6.3: MUST.
    let mut s = Script::with(Config { delayed_ack: Duration::from_millis(500), ..config(SERVER) });
    let flow = s.passive_open();
    s.host.engine.set_quick_ack(flow, false);
    s.inject(PSH | ACK, 1, 1, 10, 65_535);
    s.wait_ms(490);
    s.expect(&[]);
    s.wait_ms(12);
    s.expect(&[(ACK, 1, 11, 0)]);
}

#[test]
fn as_many_segments_as_the_owner_says_share_an_acknowledgment() {
    for (stretch, covered) in [(1, 1), (2, 2), (4, 4)] {
        let mut s = Script::with(Config { ack_stretch: stretch, ..config(SERVER) });
        s.passive_open();
        for segment in 0..covered {
            s.expect(&[]);
            s.inject(ACK, at(segment), 1, MSS, 65_535);
        }
        s.expect(&[(ACK, 1, at(covered), 0)]);
    }
}

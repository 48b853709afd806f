//! Segment by segment, as `traces.rs`: flows with BBR (draft-ietf-ccwg-bbr-05), which are paced.

use std::time::Duration;

use crate::harness::script::{ACK, FIN, PSH, RST, Script};
use crate::harness::{SERVER, config};
use overfly_engine::{Algorithm, Config, FlowId};

const MSS: usize = 1460;
const FULL: u32 = MSS as u32;
/// Startup's first rate: 2.77 times ten segments in a round trip of 100 ms. A segment takes so long.
const SEGMENT_US: u64 = 100_000 * 100 / 277 / 10;

fn at(segment: usize) -> u32 {
    1 + (segment * MSS) as u32
}

fn bbr() -> Config {
    Config { congestion: Algorithm::Bbr, ..config(SERVER) }
}

/// A connection over a path of `rtt_ms`, with SACK.
fn open(rtt_ms: u64) -> (Script, FlowId) {
    let mut s = Script::with(bbr());
    s.options.sack_permitted = true;
    let flow = s.passive_open_over(rtt_ms);
    (s, flow)
}

/// When the engine wants to be called, from now on.
fn wakes_in(s: &Script) -> Duration {
    s.host.engine.next_deadline().expect("a deadline") - s.now
}

/// Payloads that are sent within `time`, each with when it was, in microseconds; `grain`: how late the engine may be called.
fn sent_within(s: &mut Script, time: Duration, grain: Duration) -> Vec<(u64, usize)> {
    let (begin, end) = (s.now, s.now + time);
    let mut sent = Vec::new();
    while s.now <= end {
        s.host.engine.advance(s.now, &mut s.host.owner);
        let at = (s.now - begin).as_micros() as u64;
        sent.extend(s.sent().iter().filter(|seg| seg.len > 0).map(|seg| (at, seg.len)));
        let next = s.host.engine.next_deadline().unwrap_or(end + Duration::from_micros(1));
        s.now = next.max(s.now + grain);
    }
    s.now = end;
    sent
}

const EXACT: Duration = Duration::from_micros(1);

#[test]
fn the_first_window_is_spread_over_a_round_trip_on_a_long_path() {
    let (mut s, flow) = open(100);
    s.host.send(flow, 20 * MSS);
    // Two segments are the least quantum.
    s.expect_full(1, 2, MSS, false);
    assert!(wakes_in(&s) <= Duration::from_micros(2 * SEGMENT_US + 10), "{:?}", wakes_in(&s));
    let sent = sent_within(&mut s, Duration::from_millis(99), EXACT);
    assert_eq!(sent.len(), 8, "the window is ten segments: {sent:?}");
    let last = sent[7].0;
    assert!(last.abs_diff(8 * SEGMENT_US) < SEGMENT_US / 4, "{sent:?}");
}

#[test]
fn on_a_short_path_the_first_window_goes_at_once() {
    let mut s = Script::with(bbr());
    s.host.engine.listen(s.local, 8).unwrap();
    s.inject(crate::harness::script::SYN, 0, 0, 0, 65_535);
    assert_eq!(s.sent().len(), 1);
    s.wait(Duration::from_micros(100));
    s.inject(ACK, 1, 1, 0, 65_535);
    let (flow, _) = s.host.owner.incoming.pop_front().unwrap();
    s.host.send(flow, 20 * MSS);
    s.expect_full(1, 10, MSS, false);
}

#[test]
fn an_owner_that_comes_late_loses_no_rate() {
    for grain_ms in [5, 15] {
        let (mut s, flow) = open(100);
        s.host.send(flow, 10 * MSS);
        let sent = sent_within(&mut s, Duration::from_millis(46), Duration::from_millis(grain_ms));
        assert_eq!(sent.len(), 10, "{grain_ms} ms late: {sent:?}");
    }
}

#[test]
fn a_rest_saves_up_no_more_than_a_quantum() {
    let (mut s, flow) = open(100);
    s.host.send(flow, 2 * MSS);
    s.expect_full(1, 2, MSS, true);
    s.wait_ms(100);
    s.ack(at(2));
    s.wait_ms(400);
    s.host.send(flow, 8 * MSS);
    assert_eq!(s.sent().len(), 2);
}

#[test]
fn the_end_of_the_stream_and_a_reset_do_not_wait_for_their_turn() {
    let (mut s, flow) = open(100);
    s.host.send(flow, 2 * MSS);
    s.expect_full(1, 2, MSS, true);
    s.host.engine.shutdown(flow);
    s.expect(&[(FIN | ACK, at(2), 1, 0)]);
    let (mut s, flow) = open(100);
    s.host.send(flow, 4 * MSS);
    s.expect_full(1, 2, MSS, false);
    s.host.engine.abort(flow);
    s.expect(&[(ACK, at(2), 1, MSS), (PSH | ACK, at(3), 1, MSS), (RST | ACK, at(4), 1, 0)]);
}

#[test]
fn what_waits_for_its_turn_starts_no_probe_of_the_window() {
    let (mut s, flow) = open(100);
    s.host.send(flow, 2 * MSS);
    s.expect_full(1, 2, MSS, true);
    s.ack(at(2));
    // All is acknowledged, and the next may not go yet.
    s.host.send(flow, 2 * MSS);
    s.expect(&[]);
    assert!(wakes_in(&s) <= Duration::from_micros(2 * SEGMENT_US + 10), "{:?}", wakes_in(&s));
    s.wait(Duration::from_micros(2 * SEGMENT_US + 10));
    s.expect_full(at(2), 2, MSS, true);
}

#[test]
fn a_lost_segment_goes_again_and_costs_no_window() {
    let (mut s, flow) = open(100);
    s.host.send(flow, 10 * MSS);
    assert_eq!(sent_within(&mut s, Duration::from_millis(60), EXACT).len(), 10);
    s.wait_ms(40);
    let window = s.host.engine.info(flow).congestion_window;
    s.sack(1, &[(at(1), at(10))]);
    s.expect(&[(ACK, 1, 1, MSS)]);
    assert!(s.host.engine.info(flow).congestion_window >= window);
    s.wait_ms(100);
    s.ack(at(10));
    assert!(s.host.engine.info(flow).congestion_window >= window);
}

#[test]
fn a_timeout_leaves_one_segment_in_flight() {
    let (mut s, flow) = open(10);
    s.host.send(flow, 10 * MSS);
    assert_eq!(sent_within(&mut s, Duration::from_millis(9), EXACT).len(), 10);
    s.wait_ms(900);
    s.host.outbox.frames.clear();
    assert_eq!(s.host.engine.info(flow).congestion_window, FULL);
    s.ack(at(1));
    assert!(s.host.engine.info(flow).congestion_window >= 4 * FULL);
}

#[test]
fn what_the_model_knows_is_told() {
    let (mut s, flow) = open(100);
    assert_eq!(s.host.engine.info(flow).bbr, None, "no data was sent");
    s.host.send(flow, 10 * MSS);
    sent_within(&mut s, Duration::from_millis(100), EXACT);
    s.ack(at(2));
    let info = s.host.engine.info(flow).bbr.unwrap();
    assert_eq!((info.pacing_gain, info.window_gain), (277, 200));
    assert!((99_000..=101_000).contains(&info.min_rtt_us), "{info:?}");
    // Two segments in a round trip.
    assert!(info.bandwidth.abs_diff(2 * u64::from(FULL) * 10) < 1000, "{info:?}");
    assert!(info.pacing_rate > 300_000, "the first rate stands: {info:?}");
    s.ack(at(10));
    s.host.engine.shutdown(flow);
    s.sent();
    s.inject(FIN | ACK, 1, at(10) + 1, 0, 65_535);
    s.sent();
    assert_eq!(s.host.engine.info(flow).bbr, None, "TIME-WAIT has no model");
}

#[test]
fn an_algorithm_may_be_chosen_at_any_time() {
    let mut s = Script::with(config(SERVER));
    let flow = s.passive_open_over(100);
    s.host.send(flow, 40 * MSS);
    s.expect_full(1, 10, MSS, false);
    s.host.engine.set_congestion(flow, Algorithm::Bbr);
    s.wait_ms(100);
    s.ack(at(10));
    assert_eq!(s.sent().len(), 2, "it is paced");
    s.host.engine.set_congestion(flow, Algorithm::Reno);
    s.ack(at(12));
    assert!(s.sent().len() >= 8, "it is not any more");
    // Its turn comes all the same, and nothing happens.
    s.wait_ms(50);
    assert_eq!(s.host.engine.congestion(flow), Algorithm::Reno);
}

#[test]
fn a_connection_that_ends_while_it_waits_is_forgotten() {
    let (mut s, flow) = open(100);
    s.host.send(flow, 10 * MSS);
    s.expect_full(1, 2, MSS, false);
    let due = s.host.engine.next_deadline().unwrap();
    s.inject(RST, 1, 0, 0, 0);
    assert_eq!(s.host.engine.flows(), 0);
    s.now = due;
    s.host.engine.advance(s.now, &mut s.host.owner);
    s.expect(&[]);
    assert_eq!(s.host.engine.next_deadline(), None);
}

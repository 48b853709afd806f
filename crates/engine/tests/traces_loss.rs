//! Segment by segment, as `traces.rs`: which segments are lost (RFC 8985, RFC 6582), what goes instead and how fast (RFC 6937,
//! RFC 3042), and what it costs the window (RFC 5681, RFC 9438).

use crate::harness::script::{ACK, PSH, Script};
use crate::harness::{SERVER, config};
use overfly_engine::{Algorithm, Config, CongestionState, FlowId};

const MSS: usize = 1460;
const FULL: u32 = MSS as u32;

/// Sequence number of a full segment of ours, the first being 0.
fn at(segment: usize) -> u32 {
    1 + (segment * MSS) as u32
}

/// A connection over a path of 100 ms, with SACK, and the first `segments` of `promised` in flight for 100 ms.
fn in_flight(mut config: Config, segments: usize, promised: usize) -> (Script, FlowId) {
    config.initial_window = (segments * MSS) as u32;
    let mut s = Script::with(config);
    s.options.sack_permitted = true;
    let flow = s.passive_open_over(100);
    s.host.send(flow, promised * MSS);
    s.expect_full(1, segments, MSS, segments == promised);
    s.wait_ms(100);
    (s, flow)
}

fn sequences(s: &mut Script) -> Vec<u32> {
    s.sent().iter().filter(|s| s.len > 0).map(|s| s.seq).collect()
}

// --- RACK: RFC 8985 section 6 --------------------------------------------------------------------

#[test]
fn two_segments_out_of_order_wait_a_quarter_of_a_round_trip() {
    // RFC 8985 section 6.2 step 4: no reordering seen, fewer than three SACKed: RACK.reo_wnd is min_RTT/4.
    let (mut s, _) = in_flight(config(SERVER), 10, 10);
    s.sack(1, &[(at(1), at(3))]);
    s.expect(&[]);
    s.expect_after(25, &[(ACK, 1, 1, MSS)]);
}

#[test]
fn reordering_within_that_time_sends_nothing_again() {
    let (mut s, flow) = in_flight(config(SERVER), 10, 10);
    s.sack(1, &[(at(1), at(3))]);
    s.wait_ms(20);
    s.ack(at(10));
    s.wait_ms(500);
    s.expect(&[]);
    let counters = s.host.engine.counters();
    assert_eq!((counters.retransmits, counters.fast_retransmits), (0, 0));
    assert_eq!(s.host.engine.info(flow).congestion_window, 18 * FULL, "slow start went on");
}

/// As [`in_flight`], on a path that has shown that it reorders; the ten segments from the tenth on are in flight.
fn on_a_path_that_reorders() -> (Script, FlowId) {
    let (mut s, flow) = in_flight(config(SERVER), 10, 10);
    s.sack(1, &[(at(1), at(3))]);
    s.ack(at(10));
    s.host.send(flow, 10 * MSS);
    s.expect_full(at(10), 10, MSS, true);
    s.wait_ms(100);
    (s, flow)
}

#[test]
fn once_reordering_was_seen_three_segments_are_not_enough() {
    // RFC 8985 section 6.2 step 3 and 4: the DupThresh shortcut is for paths that keep order.
    let (mut s, _) = on_a_path_that_reorders();
    for end in 12..=20 {
        s.sack(at(10), &[(at(11), at(end))]);
        s.expect(&[]);
    }
    s.expect_after(25, &[(ACK, at(10), 1, MSS)]);
}

#[test]
fn the_reordering_timer_is_forgotten_when_the_hole_fills() {
    let (mut s, _) = on_a_path_that_reorders();
    s.sack(at(10), &[(at(11), at(20))]);
    s.wait_ms(20);
    s.ack(at(20));
    s.wait_ms(1000);
    s.expect(&[]);
    assert_eq!(s.host.engine.counters().retransmits, 0);
    assert_eq!(s.host.engine.next_deadline(), None);
}

#[test]
fn a_lost_retransmission_is_found_before_the_timeout() {
    // RFC 8985 section 3.3: what was sent after it has arrived.
    let (mut s, _) = in_flight(config(SERVER), 10, 100);
    s.sack(1, &[(at(1), at(4))]);
    assert_eq!(sequences(&mut s)[0], 1);
    for end in 5..=10 {
        s.wait_ms(1);
        s.sack(1, &[(at(1), at(end))]);
    }
    let new = sequences(&mut s);
    assert!(new.iter().all(|seq| *seq >= at(10)) && new.len() >= 2, "{new:?}");
    // A round trip later what was sent after the retransmission is SACKed, and the hole is still there.
    s.wait_ms(100);
    s.sack(1, &[(at(1), at(10) + 2 * FULL)]);
    assert_eq!(sequences(&mut s).first(), Some(&1));
    let counters = s.host.engine.counters();
    assert_eq!((counters.timeouts, counters.fast_retransmits), (0, 1));
}

#[test]
fn a_retransmission_is_not_lost_a_round_trip_too_early() {
    // RFC 8985 section 6.2 step 2: what was sent before it says nothing of it.
    let (mut s, _) = in_flight(config(SERVER), 10, 10);
    s.sack(1, &[(at(1), at(4))]);
    s.expect(&[(ACK, 1, 1, MSS)]);
    for end in 5..=10 {
        s.wait_ms(10);
        s.sack(1, &[(at(1), at(end))]);
        s.expect(&[]);
    }
}

#[test]
fn a_tail_of_holes_is_found_at_once_by_time() {
    // RFC 8985 section 3.2: two segments sent together, both lost, with a later one SACKed: no count of duplicates finds that.
    let (mut s, _) = in_flight(config(SERVER), 4, 4);
    s.sack(at(1), &[(at(3), at(4))]);
    s.expect(&[]);
    s.wait_ms(28);
    // RFC 6937 section 3.1: one segment has arrived since the first loss, so that two may go.
    assert_eq!(sequences(&mut s), [at(1), at(2)]);
}

#[test]
fn an_acknowledgment_faster_than_the_path_is_of_the_first_copy() {
    // RFC 8985 section 6.2 step 2: a retransmission acknowledged within less than min_RTT did not bring that.
    let (mut s, _) = in_flight(config(SERVER), 10, 12);
    s.sack(1, &[(at(1), at(4))]);
    assert_eq!(sequences(&mut s)[0], 1);
    s.wait_ms(5);
    s.sack(at(4), &[]);
    let again: Vec<u32> = sequences(&mut s).into_iter().filter(|seq| *seq < at(10)).collect();
    assert_eq!(again, [], "segments 4 to 9 were sent before, but not before what was delivered");
}

// --- tail loss probes: RFC 8985 section 7 --------------------------------------------------------

#[test]
fn a_probe_repeats_the_last_segment_after_two_round_trips() {
    // RFC 8985 sections 7.2 and 7.3.
    let (mut s, flow) = in_flight(config(SERVER), 3, 3);
    s.expect(&[]);
    s.expect_after(108, &[(PSH | ACK, at(2), 1, MSS)]);
    assert_eq!(s.host.engine.counters().loss_probes, 1);
    let info = s.host.engine.info(flow);
    assert_eq!((info.congestion_state, info.backoff), (CongestionState::Open, 0));
    // RFC 8985 section 7.3: then the retransmission timer, 300 ms.
    s.expect_after(300, &[(ACK, 1, 1, MSS)]);
    assert_eq!(s.host.engine.counters().timeouts, 1);
}

#[test]
fn one_probe_and_no_more_until_something_is_acknowledged() {
    // RFC 8985 section 7.3.
    let (mut s, _) = in_flight(config(SERVER), 3, 3);
    s.wait_ms(5000);
    let sent = sequences(&mut s);
    assert_eq!(s.host.engine.counters().loss_probes, 1);
    assert_eq!(sent[0], at(2));
    assert!(sent[1..].iter().all(|seq| *seq == 1), "{sent:?}");
}

#[test]
fn a_probe_that_repaired_the_only_loss_still_costs_the_window() {
    // RFC 8985 section 7.4.2 case 2: an acknowledgment beyond the probe, and no duplicate was reported.
    let (mut s, flow) = in_flight(config(SERVER), 4, 4);
    s.ack(at(2));
    s.expect_after(208, &[(PSH | ACK, at(3), 1, MSS)]);
    s.wait_ms(100);
    s.ack(at(4));
    assert_eq!(s.host.engine.counters().loss_probes_repaired, 0, "it may have been the first copy");
    let before = s.host.engine.info(flow).congestion_window;
    s.host.send(flow, MSS);
    s.expect(&[(PSH | ACK, at(4), 1, MSS)]);
    s.wait_ms(100);
    s.ack(at(5));
    assert_eq!(s.host.engine.counters().loss_probes_repaired, 1);
    assert!(s.host.engine.info(flow).slow_start_threshold < before);
}

#[test]
fn without_probes_a_lost_tail_waits_for_the_timeout() {
    let (mut s, _) = in_flight(Config { loss_probes: false, ..config(SERVER) }, 3, 3);
    s.wait_ms(1000);
    assert_eq!(sequences(&mut s)[0], 1);
    let counters = s.host.engine.counters();
    assert!(counters.loss_probes == 0 && counters.timeouts > 0);
}

#[test]
fn a_probe_sends_new_data_if_there_is_any() {
    let (mut s, _) = in_flight(config(SERVER), 3, 4);
    s.expect_after(108, &[(PSH | ACK, at(3), 1, MSS)]);
    s.wait_ms(100);
    s.ack(at(4));
    s.expect(&[]);
    let counters = s.host.engine.counters();
    assert_eq!((counters.retransmits, counters.loss_probes, counters.loss_probes_repaired), (0, 1, 0));
}

#[test]
fn new_data_beyond_the_peers_window_is_no_probe() {
    // RFC 8985 section 7.3: what the receive window allows.
    let mut s = Script::with(Config { initial_window: 3 * FULL, ..config(SERVER) });
    s.options.sack_permitted = true;
    s.win = 3 * MSS as u16;
    let flow = s.passive_open_over(100);
    s.host.send(flow, 10 * MSS);
    s.expect_full(1, 3, MSS, false);
    s.expect_after(208, &[(ACK, at(2), 1, MSS)]);
}

#[test]
fn a_lost_tail_is_repaired_by_its_probe_without_a_timeout() {
    // RFC 8985 section 3.4: two of four lost; the probe's SACK shows the hole to RACK.
    let (mut s, flow) = in_flight(config(SERVER), 4, 4);
    s.ack(at(2));
    s.expect_after(208, &[(PSH | ACK, at(3), 1, MSS)]);
    s.wait_ms(100);
    s.sack(at(2), &[(at(3), at(4))]);
    s.wait_ms(30);
    s.expect(&[(ACK, at(2), 1, MSS)]);
    assert_eq!(s.host.engine.info(flow).congestion_state, CongestionState::Recovery);
    s.wait_ms(100);
    s.ack(at(4));
    let counters = s.host.engine.counters();
    assert_eq!((counters.timeouts, counters.loss_probes), (0, 1));
    assert_eq!(s.host.engine.info(flow).unacknowledged, 0);
}

#[test]
fn a_probe_that_was_not_needed_costs_nothing() {
    // RFC 8985 section 7.4.2 case 1: the peer reports a duplicate.
    let (mut s, flow) = in_flight(config(SERVER), 3, 3);
    s.wait_ms(110);
    assert_eq!(sequences(&mut s), [at(2)]);
    let before = s.host.engine.info(flow);
    s.ack(at(3));
    s.wait_ms(90);
    s.sack(at(3), &[(at(2), at(3))]);
    s.host.send(flow, MSS);
    s.sent();
    s.wait_ms(100);
    s.ack(at(4));
    let after = s.host.engine.info(flow);
    assert_eq!(after.slow_start_threshold, before.slow_start_threshold);
    assert!(after.congestion_window >= before.congestion_window);
    assert_eq!(s.host.engine.counters().loss_probes_repaired, 0);
    assert_eq!(s.host.engine.counters().duplicates_reported, 1);
}

#[test]
fn a_duplicate_of_a_probe_does_not_undo_an_older_reduction() {
    let (mut s, flow) = in_flight(config(SERVER), 10, 10);
    s.sack(1, &[(at(1), at(10))]);
    s.expect(&[(ACK, 1, 1, MSS)]);
    s.wait_ms(100);
    s.ack(at(10));
    let reduced = s.host.engine.info(flow).slow_start_threshold;
    for round in 0..2 {
        s.host.send(flow, 3 * MSS);
        assert_eq!(sequences(&mut s).len(), 3);
        let next = at(13 + 3 * round);
        s.wait_ms(215);
        assert_eq!(sequences(&mut s), [next - FULL], "a probe");
        s.sack(next, &[]);
        s.sack(next, &[(next - FULL, next)]);
    }
    assert_eq!(s.host.engine.info(flow).slow_start_threshold, reduced);
    assert_eq!(s.host.engine.counters().spurious_recoveries, 0);
}

#[test]
fn no_probe_without_sack() {
    // RFC 8985 section 7.1: the connection must use SACK.
    let mut s = Script::with(Config { initial_window: 3 * FULL, ..config(SERVER) });
    let flow = s.passive_open_over(100);
    s.host.send(flow, 3 * MSS);
    assert_eq!(s.sent().len(), 3);
    s.expect_after(300, &[(ACK, 1, 1, MSS)]);
    assert_eq!(s.host.engine.counters().loss_probes, 0);
}

#[test]
fn a_new_segment_starts_the_probe_timer_anew() {
    // RFC 8985 section 7.2.
    let (mut s, flow) = in_flight(config(SERVER), 3, 2 + 1);
    s.host.engine.set_no_delay(flow, true);
    s.ack(at(1));
    s.wait_ms(150);
    s.host.send(flow, 100);
    s.expect(&[(PSH | ACK, at(3), 1, 100)]);
    s.wait_ms(206);
    s.expect(&[]);
    s.wait_ms(4);
    let probe = &s.sent()[0];
    assert_eq!(probe.seq + probe.len as u32, at(3) + 100, "the end of what is in flight");
}

// --- how fast: RFC 6937 --------------------------------------------------------------------------

#[test]
fn recovery_sends_in_proportion_to_what_arrives() {
    // RFC 6937 section 3: from twelve in flight toward ssthresh, never more than what left the network, and a segment.
    let (mut s, flow) = in_flight(config(SERVER), 20, 200);
    s.sack(1, &[(at(1), at(4))]);
    let mut sent = sequences(&mut s).len();
    assert_eq!(s.host.engine.info(flow).congestion_state, CongestionState::Recovery);
    let threshold = s.host.engine.info(flow).slow_start_threshold;
    assert_eq!(threshold, 14 * FULL);
    for end in 5..=20 {
        s.wait_ms(2);
        s.sack(1, &[(at(1), at(end))]);
        let now = sequences(&mut s).len();
        assert!(now <= 2, "a burst of {now} for one segment that arrived");
        sent += now;
    }
    // Nineteen arrived: seven tenths of that many went out.
    assert!((13..=15).contains(&sent), "{sent}");
    let info = s.host.engine.info(flow);
    assert!(info.flight - info.sacked - info.lost <= threshold);
    s.wait_ms(70);
    s.ack(at(20));
    let info = s.host.engine.info(flow);
    assert_eq!((info.congestion_state, info.congestion_window), (CongestionState::Open, threshold));
}

#[test]
fn when_most_is_lost_recovery_starts_slowly() {
    // RFC 6937 section 3.1, slow start reduction bound: pipe is below ssthresh, and each arrival lets two go at most.
    let (mut s, _) = in_flight(config(SERVER), 20, 200);
    s.sack(1, &[(at(19), at(20))]);
    s.wait_ms(28);
    let mut last = sequences(&mut s).len();
    assert!((1..=2).contains(&last), "{last} at once");
    for una in 1..6 {
        s.wait_ms(100);
        s.sack(at(una), &[(at(19), at(20))]);
        let now = sequences(&mut s).len();
        assert!(now <= 3 * last.max(1), "{now} after {last}");
        last = now;
    }
}

#[test]
fn the_first_hole_goes_at_once_whatever_the_window() {
    // RFC 6675 section 5 step 4.3.
    let (mut s, _) = in_flight(config(SERVER), 4, 4);
    s.sack(1, &[(at(1), at(4))]);
    s.expect(&[(ACK, 1, 1, MSS)]);
}

#[test]
fn new_data_goes_when_there_is_nothing_to_repeat() {
    let (mut s, _) = in_flight(config(SERVER), 10, 100);
    s.sack(1, &[(at(1), at(4))]);
    assert_eq!(sequences(&mut s)[0], 1);
    s.sack(1, &[(at(1), at(10))]);
    let new = sequences(&mut s);
    assert!(!new.is_empty() && new.iter().all(|seq| *seq >= at(10)), "{new:?}");
}

// --- what it costs ---------------------------------------------------------------------------------

#[test]
fn a_loss_costs_reno_half_of_the_flight_and_cubic_three_tenths_of_the_window() {
    // RFC 5681 section 3.1 equation 4; RFC 9438 section 4.6.
    for (congestion, segments) in [(Algorithm::Reno, 10), (Algorithm::Cubic, 14)] {
        let (mut s, flow) = in_flight(Config { congestion, ..config(SERVER) }, 20, 20);
        s.sack(1, &[(at(1), at(20))]);
        s.expect(&[(ACK, 1, 1, MSS)]);
        assert_eq!(s.host.engine.info(flow).slow_start_threshold, segments * FULL, "{congestion:?}");
        s.wait_ms(100);
        s.ack(at(20));
        assert_eq!(s.host.engine.info(flow).congestion_window, segments * FULL, "{congestion:?}");
    }
}

#[test]
fn losses_of_one_window_cost_once() {
    // RFC 6582 section 3.2 step 1, RFC 5681 section 4.3.
    let (mut s, flow) = in_flight(config(SERVER), 20, 20);
    s.sack(1, &[(at(1), at(8))]);
    let reduced = s.host.engine.info(flow).slow_start_threshold;
    s.wait_ms(5);
    s.sack(1, &[(at(9), at(14)), (at(1), at(8))]);
    s.wait_ms(5);
    s.sack(1, &[(at(15), at(20)), (at(9), at(14)), (at(1), at(8))]);
    s.wait_ms(30);
    assert_eq!(sequences(&mut s), [at(0), at(8), at(14)]);
    assert_eq!(s.host.engine.info(flow).slow_start_threshold, reduced);
    assert_eq!(s.host.engine.counters().fast_retransmits, 1);
}

#[test]
fn the_threshold_never_falls_below_two_segments() {
    // RFC 5681 section 3.1 equation 4.
    for congestion in [Algorithm::Reno, Algorithm::Cubic] {
        let (mut s, flow) = in_flight(Config { congestion, ..config(SERVER) }, 2, 2);
        s.sack(1, &[(at(1), at(2))]);
        s.wait_ms(28);
        assert_eq!(sequences(&mut s), [1]);
        assert_eq!(s.host.engine.info(flow).slow_start_threshold, 2 * FULL, "{congestion:?}");
    }
}

#[test]
fn slow_start_grows_by_what_is_acknowledged() {
    // RFC 5681 section 3.1 equation 2, RFC 3465.
    let (mut s, flow) = in_flight(Config { congestion: Algorithm::Reno, ..config(SERVER) }, 10, 100);
    s.ack(at(1));
    assert_eq!(s.host.engine.info(flow).congestion_window, 11 * FULL);
    assert_eq!(sequences(&mut s), [at(10), at(11)]);
    s.ack(at(3));
    assert_eq!(s.host.engine.info(flow).congestion_window, 13 * FULL);
    assert_eq!(sequences(&mut s).len(), 4);
}

#[test]
fn after_an_idle_timeout_the_window_is_the_initial_one() {
    // RFC 5681 section 4.1.
    let (mut s, flow) = in_flight(config(SERVER), 10, 10);
    s.ack(at(10));
    assert_eq!(
        s.host.engine.info(flow).congestion_window,
        18 * FULL,
        "eight segments for one acknowledgment at most"
    );
    s.wait_ms(2000);
    s.host.send(flow, 100 * MSS);
    assert_eq!(sequences(&mut s).len(), 10);
}

// --- without SACK: RFC 6582, RFC 3042 --------------------------------------------------------------

/// As [`in_flight`], with a peer that has no SACK, and Reno.
fn without_sack(segments: usize, promised: usize) -> (Script, FlowId) {
    let config =
        Config { congestion: Algorithm::Reno, initial_window: (segments * MSS) as u32, ..config(SERVER) };
    let mut s = Script::with(config);
    let flow = s.passive_open_over(100);
    s.host.send(flow, promised * MSS);
    s.expect_full(1, segments, MSS, segments == promised);
    s.wait_ms(100);
    (s, flow)
}

#[test]
fn two_duplicates_send_two_new_segments_the_third_the_hole() {
    // RFC 3042 section 2, RFC 5681 section 3.2.
    let (mut s, flow) = without_sack(10, 100);
    s.ack(1);
    s.expect(&[(ACK, at(10), 1, MSS)]);
    s.ack(1);
    s.expect(&[(ACK, at(11), 1, MSS)]);
    s.ack(1);
    assert_eq!(sequences(&mut s)[0], 1);
    let info = s.host.engine.info(flow);
    // RFC 5681 section 3.2 step 2: what limited transmit sent does not count.
    assert!((5 * FULL..=6 * FULL).contains(&info.slow_start_threshold), "{}", info.slow_start_threshold);
}

#[test]
fn more_duplicates_let_new_data_go_as_segments_leave() {
    // RFC 5681 section 3.2 steps 3 to 5, in RFC 6937's proportion.
    let (mut s, flow) = without_sack(10, 100);
    let mut sent = 0;
    for _ in 0..9 {
        s.ack(1);
        let now = sequences(&mut s).len();
        assert!(now <= 2, "{now}");
        sent += now;
    }
    assert!((4..=8).contains(&sent), "{sent}");
    s.wait_ms(100);
    s.ack(at(10));
    s.sent();
    assert!(s.host.engine.info(flow).slow_start_threshold < 10 * FULL);
}

#[test]
fn each_partial_acknowledgment_brings_the_next_hole() {
    // RFC 6582 section 3.2 step 3: segments 0, 3 and 6 are lost.
    let (mut s, flow) = without_sack(10, 10);
    for _ in 0..7 {
        s.ack(1);
    }
    s.expect(&[(ACK, 1, 1, MSS)]);
    s.wait_ms(100);
    s.ack(at(3));
    s.expect(&[(ACK, at(3), 1, MSS)]);
    s.wait_ms(100);
    s.ack(at(6));
    s.expect(&[(ACK, at(6), 1, MSS)]);
    assert_eq!(s.host.engine.info(flow).congestion_state, CongestionState::Recovery);
    s.wait_ms(100);
    s.ack(at(10));
    s.expect(&[]);
    let info = s.host.engine.info(flow);
    assert_eq!((info.congestion_state, info.congestion_window), (CongestionState::Open, 5 * FULL));
    let counters = s.host.engine.counters();
    assert_eq!((counters.fast_retransmits, counters.timeouts, counters.retransmits), (1, 0, 3));
}

#[test]
fn duplicates_of_what_a_timeout_repeated_begin_no_recovery() {
    // RFC 6582 section 3.2 step 1 and section 4: after a timeout the repetitions themselves bring duplicates.
    let (mut s, flow) = without_sack(10, 10);
    s.wait_ms(220);
    assert_eq!(sequences(&mut s), [1]);
    s.wait_ms(100);
    s.ack(at(5));
    s.sent();
    for _ in 0..5 {
        s.ack(at(5));
    }
    s.sent();
    assert_eq!(s.host.engine.counters().fast_retransmits, 0);
    assert_eq!(s.host.engine.info(flow).congestion_state, CongestionState::Loss);
}

#[test]
fn an_acknowledgment_with_data_or_another_window_is_no_duplicate() {
    // RFC 5681 section 2.
    let (mut s, _) = without_sack(10, 10);
    for segment in 0..5 {
        s.inject(PSH | ACK, 1 + 10 * segment, 1, 10, 65_535);
    }
    s.sent();
    for window in [60_000, 50_000, 40_000, 30_000] {
        s.inject(ACK, 51, 1, 0, window);
    }
    assert_eq!(sequences(&mut s), []);
    assert_eq!(s.host.engine.counters().duplicate_acks, 0);
}

#[test]
fn duplicates_with_nothing_in_flight_mean_nothing() {
    let (mut s, flow) = without_sack(10, 10);
    s.ack(at(10));
    for _ in 0..10 {
        s.ack(at(10));
    }
    s.expect(&[]);
    assert_eq!(s.host.engine.counters().duplicate_acks, 0);
    assert_eq!(s.host.engine.info(flow).congestion_state, CongestionState::Open);
}

#[test]
fn a_lone_tail_segment_is_probed_for_when_the_timeout_is_due() {
    // RFC 8985 section 7.4.2 case 2: an acknowledgment beyond the probe, and no duplicate was reported.
    let (mut s, flow) = in_flight(config(SERVER), 3, 3);
    s.ack(at(2));
    let before = s.host.engine.info(flow).congestion_window;
    s.wait_ms(300);
    assert_eq!(sequences(&mut s), [at(2)]);
    s.host.engine.set_no_delay(flow, true);
    s.wait_ms(100);
    s.ack(at(3));
    s.host.send(flow, MSS);
    s.sent();
    s.wait_ms(100);
    s.ack(at(4));
    assert_eq!(s.host.engine.counters().loss_probes, 1);
    assert_eq!(s.host.engine.counters().loss_probes_repaired, 1);
    assert!(s.host.engine.info(flow).slow_start_threshold <= before);
}

#[test]
fn a_reported_duplicate_makes_the_reordering_window_larger() {
    // RFC 8985 section 6.2 step 4: by min_RTT/4, for sixteen recoveries.
    let (mut s, flow) = on_a_path_that_reorders();
    s.sack(at(10), &[(at(11), at(20))]);
    s.expect_after(25, &[(ACK, at(10), 1, MSS)]);
    // It was only late.
    s.ack(at(20));
    s.wait_ms(90);
    s.sack(at(20), &[(at(10), at(11))]);
    s.host.send(flow, 10 * MSS);
    s.expect_full(at(20), 10, MSS, true);
    s.wait_ms(100);
    s.sack(at(20), &[(at(21), at(30))]);
    s.expect_after(50, &[(ACK, at(20), 1, MSS)]);
}

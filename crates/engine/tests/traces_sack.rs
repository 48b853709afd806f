//! Segment by segment, as `traces.rs`: what is said of data that arrived out of order or twice (RFC 2018, RFC 2883), and what is
//! done about what the peer says of ours.

use crate::harness::script::{ACK, FIN, PSH, SYN, Script};
use crate::harness::{SERVER, config};
use overfly_engine::{Algorithm, Config, CongestionState, State};
use overfly_wire::tcp::{Options, Timestamps};

const MSS: usize = 1460;

fn with_sack() -> Script {
    let mut s = Script::new();
    s.options.sack_permitted = true;
    s
}

/// Sequence number of a full segment of ours, the first being 0.
fn at(segment: usize) -> u32 {
    1 + (segment * MSS) as u32
}

// --- what we say: RFC 2018 section 4 -----------------------------------------------------------

#[test]
fn the_first_block_is_the_one_that_the_latest_segment_is_in() {
    // RFC 2018 section 4, case 3 of its example: segments 2, 4, 6, 8 of the left window's edge are missing.
    let mut s = with_sack();
    s.passive_open();
    s.inject(ACK, 101, 1, 100, 65_535);
    s.expect_sack((ACK, 1, 1, 0), &[(101, 201)]);
    s.inject(ACK, 301, 1, 100, 65_535);
    s.expect_sack((ACK, 1, 1, 0), &[(301, 401), (101, 201)]);
    s.inject(ACK, 501, 1, 100, 65_535);
    s.expect_sack((ACK, 1, 1, 0), &[(501, 601), (301, 401), (101, 201)]);
    // The block that grows comes first, the others keep their order.
    s.inject(ACK, 201, 1, 50, 65_535);
    s.expect_sack((ACK, 1, 1, 0), &[(101, 251), (501, 601), (301, 401)]);
    // A block that is joined to another is one, and the latest.
    s.inject(ACK, 401, 1, 100, 65_535);
    s.expect_sack((ACK, 1, 1, 0), &[(301, 601), (101, 251)]);
}

#[test]
fn at_most_four_blocks_without_timestamps() {
    let mut s = with_sack();
    s.passive_open();
    for block in 0..6 {
        s.inject(ACK, 101 + 200 * block, 1, 100, 65_535);
    }
    let last = s.sent().pop().unwrap();
    assert_eq!(last.blocks(), [(1101, 1201), (901, 1001), (701, 801), (501, 601)]);
}

#[test]
fn at_most_three_blocks_with_timestamps() {
    // RFC 2018 section 3: 40 bytes of options hold no more.
    let mut s = with_sack();
    s.peer_timestamp = Some(1000);
    s.passive_open();
    for block in 0..6 {
        s.inject(ACK, 101 + 200 * block, 1, 100, 65_535);
    }
    let last = s.sent().pop().unwrap();
    assert_eq!(last.blocks(), [(1101, 1201), (901, 1001), (701, 801)]);
    assert!(last.options.timestamps.is_some());
}

#[test]
fn every_block_is_repeated_in_several_acknowledgments() {
    // RFC 2018 section 4: so that a lost acknowledgment loses nothing.
    let mut s = with_sack();
    s.passive_open();
    let mut told = 0;
    for block in 0..4 {
        s.inject(ACK, 101 + 200 * block, 1, 100, 65_535);
        told += usize::from(s.sent()[0].blocks().contains(&(101, 201)));
    }
    assert!(told >= 3);
}

#[test]
fn a_gap_that_fills_partly_keeps_the_blocks_beyond() {
    let mut s = with_sack();
    let flow = s.passive_open();
    s.inject(ACK, 101, 1, 100, 65_535);
    s.inject(ACK, 301, 1, 100, 65_535);
    s.sent();
    s.inject(ACK, 1, 1, 100, 65_535);
    s.expect_sack((ACK, 1, 201, 0), &[(301, 401)]);
    s.inject(ACK, 201, 1, 100, 65_535);
    s.expect_sack((ACK, 1, 401, 0), &[]);
    s.received(flow, 400);
}

#[test]
fn a_retransmission_that_overlaps_a_block_makes_it_grow() {
    let mut s = with_sack();
    s.passive_open();
    s.inject(ACK, 201, 1, 100, 65_535);
    s.sent();
    s.inject(ACK, 151, 1, 200, 65_535);
    let blocks = s.sent()[0].blocks();
    assert_eq!(*blocks.last().unwrap(), (151, 351));
}

#[test]
fn blocks_wait_for_a_segment_without_data() {
    // RFC 2018 section 4 asks for SACK on every acknowledgment of out-of-order data; a full data segment has no room for it.
    let mut s = with_sack();
    let flow = s.passive_open();
    s.host.send(flow, MSS);
    s.inject(ACK, 101, 1, 100, 65_535);
    let sent = s.sent();
    assert!(sent.iter().any(|s| s.len == 0 && s.blocks() == [(101, 201)]), "{sent:?}");
    assert!(sent.iter().any(|s| s.len == MSS), "{sent:?}");
}

#[test]
fn without_the_option_nothing_is_reported() {
    // RFC 2018 section 4: MUST NOT without SACK-permitted.
    let mut s = Script::new();
    s.passive_open();
    s.inject(ACK, 101, 1, 100, 65_535);
    s.expect_sack((ACK, 1, 1, 0), &[]);
    s.inject(ACK, 101, 1, 100, 65_535);
    s.expect_sack((ACK, 1, 1, 0), &[]);
}

#[test]
fn an_engine_without_sack_offers_and_grants_none() {
    let mut s = Script::with(Config { sack: false, ..config(SERVER) });
    s.options.sack_permitted = true;
    s.passive_open();
    assert!(!s.last_options.sack_permitted);
    s.inject(ACK, 101, 1, 100, 65_535);
    let sent = s.sent();
    assert_eq!(sent[0].blocks(), []);
    let mut s = Script::with(Config { sack: false, ..config(SERVER) });
    s.connect();
    assert!(!s.sent()[0].options.sack_permitted);
}

#[test]
fn an_active_open_offers_sack_and_uses_it_if_granted() {
    for granted in [false, true] {
        let mut s = Script::new();
        s.options.sack_permitted = granted;
        let flow = s.connect();
        assert!(s.sent()[0].options.sack_permitted);
        s.inject(SYN | ACK, 0, 1, 0, 65_535);
        s.expect(&[(ACK, 1, 1, 0)]);
        assert_eq!(s.host.engine.info(flow).sack, granted);
        s.inject(ACK, 101, 1, 100, 65_535);
        let expected: &[(u32, u32)] = if granted { &[(101, 201)] } else { &[] };
        s.expect_sack((ACK, 1, 1, 0), expected);
    }
}

#[test]
fn an_early_fin_is_no_part_of_a_block() {
    let mut s = with_sack();
    let flow = s.passive_open();
    s.inject(FIN | PSH | ACK, 101, 1, 100, 65_535);
    let blocks = s.sent()[0].blocks();
    assert!(blocks == [(101, 201)] || blocks == [(101, 202)], "{blocks:?}");
    s.inject(ACK, 1, 1, 100, 65_535);
    s.expect_sack((ACK, 1, 202, 0), &[]);
    assert_eq!(s.state(flow), State::CloseWait);
}

#[test]
fn blocks_cross_the_wrap_of_sequence_numbers() {
    // PEER_ISS is sixteen below it.
    let mut s = with_sack();
    let flow = s.passive_open();
    s.inject(ACK, 5, 1, 30, 65_535);
    s.expect_sack((ACK, 1, 1, 0), &[(5, 35)]);
    s.inject(ACK, 40, 1, 30, 65_535);
    s.expect_sack((ACK, 1, 1, 0), &[(40, 70), (5, 35)]);
    s.inject(ACK, 1, 1, 4, 65_535);
    s.expect_sack((ACK, 1, 35, 0), &[(40, 70)]);
    s.received(flow, 34);
}

// --- duplicates that we report: RFC 2883 section 4 -----------------------------------------------

#[test]
fn a_full_duplicate_below_the_acknowledgment() {
    // RFC 2883 section 4.1.1: an acknowledgment was lost, the segment came again.
    let mut s = with_sack();
    let flow = s.passive_open();
    s.inject(PSH | ACK, 1, 1, 500, 65_535);
    s.inject(PSH | ACK, 501, 1, 500, 65_535);
    s.wait_ms(50);
    s.sent();
    s.inject(PSH | ACK, 1, 1, 500, 65_535);
    s.expect_sack((ACK, 1, 1001, 0), &[(1, 501)]);
    s.received(flow, 1000);
}

#[test]
fn a_duplicate_below_the_acknowledgment_while_a_gap_is_open() {
    // RFC 2883 section 4.1.2: the duplicate first, then what is held.
    let mut s = with_sack();
    s.passive_open();
    s.inject(PSH | ACK, 1, 1, 500, 65_535);
    s.inject(PSH | ACK, 1001, 1, 500, 65_535);
    s.expect_sack((ACK, 1, 501, 0), &[(1001, 1501)]);
    s.inject(PSH | ACK, 1, 1, 500, 65_535);
    s.expect_sack((ACK, 1, 501, 0), &[(1, 501), (1001, 1501)]);
}

#[test]
fn a_duplicate_above_the_acknowledgment() {
    // RFC 2883 section 4.1.3: the second block is the one that holds the duplicate.
    let mut s = with_sack();
    s.passive_open();
    s.inject(PSH | ACK, 501, 1, 500, 65_535);
    s.inject(PSH | ACK, 1001, 1, 500, 65_535);
    s.sent();
    s.inject(PSH | ACK, 1001, 1, 500, 65_535);
    s.expect_sack((ACK, 1, 1, 0), &[(1001, 1501), (501, 1501)]);
}

#[test]
fn a_duplicate_in_one_of_several_blocks() {
    let mut s = with_sack();
    s.passive_open();
    s.inject(PSH | ACK, 501, 1, 500, 65_535);
    s.inject(PSH | ACK, 1501, 1, 500, 65_535);
    s.inject(PSH | ACK, 2501, 1, 500, 65_535);
    s.sent();
    s.inject(PSH | ACK, 501, 1, 500, 65_535);
    s.expect_sack((ACK, 1, 1, 0), &[(501, 1001), (501, 1001), (2501, 3001), (1501, 2001)]);
}

#[test]
fn a_duplicate_is_reported_once() {
    // RFC 2883 section 4, point 2.
    let mut s = with_sack();
    s.passive_open();
    s.inject(PSH | ACK, 1, 1, 500, 65_535);
    s.wait_ms(50);
    s.sent();
    s.inject(PSH | ACK, 1, 1, 500, 65_535);
    s.expect_sack((ACK, 1, 501, 0), &[(1, 501)]);
    s.inject(PSH | ACK, 501, 1, 500, 65_535);
    s.wait_ms(50);
    s.expect_sack((ACK, 1, 1001, 0), &[]);
}

#[test]
fn a_segment_of_which_the_beginning_is_old_reports_that_part() {
    // RFC 2883 section 4.2.1.
    let mut s = with_sack();
    let flow = s.passive_open();
    s.inject(PSH | ACK, 1, 1, 500, 65_535);
    s.wait_ms(50);
    s.sent();
    s.inject(PSH | ACK, 1, 1, 1000, 65_535);
    s.expect_sack((ACK, 1, 1001, 0), &[(1, 501)]);
    s.received(flow, 1000);
}

#[test]
fn a_duplicate_takes_a_block_of_three_with_timestamps() {
    let mut s = with_sack();
    s.peer_timestamp = Some(1000);
    s.passive_open();
    s.inject(PSH | ACK, 1, 1, 100, 65_535);
    for block in 0..3 {
        s.inject(ACK, 201 + 200 * block, 1, 100, 65_535);
    }
    s.sent();
    s.inject(PSH | ACK, 1, 1, 100, 65_535);
    s.expect_sack((ACK, 1, 101, 0), &[(1, 101), (601, 701), (401, 501)]);
}

#[test]
fn a_segment_that_paws_drops_is_reported_if_it_was_delivered_before() {
    // RFC 7323 section 5.3 R1 sends an acknowledgment; RFC 2883 section 4 says of what.
    let mut s = with_sack();
    s.peer_timestamp = Some(1000);
    let flow = s.passive_open();
    s.peer_timestamp = Some(2000);
    s.inject(PSH | ACK, 1, 1, 100, 65_535);
    s.wait_ms(600);
    s.sent();
    s.peer_timestamp = Some(1500);
    s.inject(PSH | ACK, 1, 1, 100, 65_535);
    s.expect_sack((ACK, 1, 101, 0), &[(1, 101)]);
    assert_eq!(s.host.engine.counters().drop_paws, 1);
    // What was never delivered is not claimed to be a duplicate.
    s.wait_ms(1000);
    s.inject(PSH | ACK, 101, 1, 100, 65_535);
    s.expect_sack((ACK, 1, 101, 0), &[]);
    assert_eq!(s.host.engine.counters().drop_paws, 2);
    s.received(flow, 100);
}

// --- the scoreboard: RFC 2018 section 5, RFC 6675 ------------------------------------------------

/// Ten segments in flight over a path of 100 ms, and more promised.
fn ten_in_flight(config: Config, promised: usize) -> (Script, overfly_engine::FlowId) {
    let mut s = Script::with(config);
    s.options.sack_permitted = true;
    let flow = s.passive_open_over(100);
    s.host.send(flow, promised);
    s.expect_full(1, 10, MSS, promised == 10 * MSS);
    s.wait_ms(100);
    (s, flow)
}

#[test]
fn three_segments_beyond_a_hole_bring_the_hole_and_nothing_else() {
    // RFC 6675 section 5, RFC 8985 section 6.2 step 4: with no reordering seen, DupThresh segments suffice.
    let (mut s, flow) = ten_in_flight(config(SERVER), 10 * MSS);
    s.sack(1, &[(at(1), at(2))]);
    s.expect(&[]);
    s.sack(1, &[(at(1), at(3))]);
    s.expect(&[]);
    assert_eq!(s.host.engine.info(flow).congestion_state, CongestionState::Disorder);
    s.sack(1, &[(at(1), at(4))]);
    s.expect(&[(ACK, 1, 1, MSS)]);
    let info = s.host.engine.info(flow);
    assert_eq!(
        (info.congestion_state, info.sacked, info.lost),
        (CongestionState::Recovery, 3 * MSS as u32, 0)
    );
    for end in 5..=10 {
        s.sack(1, &[(at(1), at(end))]);
        s.expect(&[]);
    }
    s.wait_ms(100);
    s.ack(at(10));
    s.expect(&[]);
    let info = s.host.engine.info(flow);
    assert_eq!((info.congestion_state, info.sacked, info.flight), (CongestionState::Open, 0, 0));
    let counters = s.host.engine.counters();
    assert_eq!((counters.retransmits, counters.fast_retransmits, counters.timeouts), (1, 1, 0));
}

#[test]
fn each_of_several_holes_goes_once() {
    let (mut s, _) = ten_in_flight(config(SERVER), 10 * MSS);
    s.sack(1, &[(at(1), at(2))]);
    s.sack(1, &[(at(3), at(4)), (at(1), at(2))]);
    s.sack(1, &[(at(5), at(6)), (at(3), at(4)), (at(1), at(2))]);
    s.sack(1, &[(at(5), at(10)), (at(3), at(4)), (at(1), at(2))]);
    let again: Vec<u32> = s.sent().iter().map(|s| s.seq).collect();
    assert_eq!(again, [at(0), at(2), at(4)]);
    s.wait_ms(100);
    s.sack(at(2), &[(at(5), at(10)), (at(3), at(4))]);
    s.sack(at(4), &[(at(5), at(10))]);
    s.expect(&[]);
    s.ack(at(10));
    s.expect(&[]);
    assert_eq!(s.host.engine.counters().retransmits, 3);
    assert_eq!(s.host.engine.counters().fast_retransmits, 1, "one recovery for one window");
}

#[test]
fn a_block_that_was_lost_is_learnt_from_the_next_acknowledgment() {
    // RFC 2018 section 4: blocks are repeated. Nothing is sent again for an acknowledgment that was lost.
    let (mut s, flow) = ten_in_flight(config(SERVER), 10 * MSS);
    s.sack(1, &[(at(9), at(10)), (at(4), at(5)), (at(1), at(3))]);
    let again: Vec<u32> = s.sent().iter().map(|s| s.seq).collect();
    assert_eq!(again.first(), Some(&1));
    assert!(!again.contains(&at(1)) && !again.contains(&at(4)) && !again.contains(&at(9)), "{again:?}");
    assert_eq!(s.host.engine.info(flow).sacked, 4 * MSS as u32);
}

#[test]
fn part_of_a_segment_may_be_acknowledged() {
    let (mut s, flow) = ten_in_flight(config(SERVER), 10 * MSS);
    s.sack(101, &[(at(1), at(4))]);
    let sent = s.sent();
    assert_eq!((sent[0].seq, sent[0].len), (101, MSS - 100), "what is missing, and no more");
    s.sack(101, &[(at(1) + 10, at(9)), (at(1), at(4))]);
    assert_eq!(s.host.engine.info(flow).sacked, 8 * MSS as u32);
}

#[test]
fn blocks_that_cannot_be_are_ignored() {
    // RFC 2018 section 5 speaks of what was sent; above SND.NXT, at SND.UNA, inside out: a mistake or an attack.
    let (mut s, flow) = ten_in_flight(config(SERVER), 10 * MSS);
    s.sack(1, &[(at(9), at(11))]);
    s.sack(1, &[(1, at(2))]);
    s.sack(1, &[(at(5), at(4))]);
    s.sack(1, &[(at(4), at(4))]);
    s.sack(1, &[(0x4000_0000, 0x4000_1000)]);
    s.expect(&[]);
    assert_eq!(s.host.engine.info(flow).sacked, 0);
    s.ack(at(10));
    assert_eq!(s.host.engine.info(flow).flight, 0);
}

#[test]
fn new_data_clocks_out_as_blocks_arrive_limited_transmit() {
    // RFC 3042 section 2, RFC 6675 section 5 step 3: the first two out-of-order segments let two new ones go.
    let (mut s, flow) = ten_in_flight(config(SERVER), 100 * MSS);
    s.sack(1, &[(at(1), at(2))]);
    s.expect(&[(ACK, at(10), 1, MSS)]);
    s.sack(1, &[(at(1), at(3))]);
    s.expect(&[(ACK, at(11), 1, MSS)]);
    let info = s.host.engine.info(flow);
    assert_eq!(info.congestion_window, 10 * MSS as u32, "RFC 3042: cwnd is not changed");
}

#[test]
fn the_fin_is_repaired_like_data() {
    let mut s = with_sack();
    let flow = s.passive_open_over(100);
    s.host.send(flow, 5 * MSS);
    s.host.engine.close(flow);
    assert_eq!(s.sent().len(), 5);
    s.wait_ms(100);
    // The FIN's sequence number is in the block: all but the first arrived.
    s.sack(1, &[(at(1), at(5) + 1)]);
    s.expect(&[(ACK, 1, 1, MSS)]);
    s.wait_ms(100);
    s.ack(at(5) + 1);
    assert_eq!(s.state(flow), State::FinWait2);
    assert_eq!(s.host.engine.counters().retransmits, 1);
}

#[test]
fn a_lost_fin_alone_is_probed_for_or_times_out() {
    let mut s = with_sack();
    let flow = s.passive_open_over(100);
    s.host.send(flow, 4 * MSS);
    s.sent();
    s.host.engine.close(flow);
    s.expect(&[(FIN | ACK, at(4), 1, 0)]);
    s.wait_ms(100);
    s.ack(at(4));
    s.wait_ms(700);
    let again = s.sent();
    assert!(!again.is_empty());
    assert!(again.iter().all(|s| s.seq == at(4) && s.len == 0 && s.flags == FIN | ACK), "{again:?}");
    s.ack(at(4) + 1);
    assert_eq!(s.state(flow), State::FinWait2);
}

// --- reneging: RFC 2018 section 8 ----------------------------------------------------------------

#[test]
fn after_a_timeout_what_was_sacked_is_not_sent_first() {
    // RFC 6675 section 5.1: the scoreboard survives the first timeout.
    let (mut s, flow) = ten_in_flight(config(SERVER), 10 * MSS);
    s.sack(1, &[(at(5), at(6))]);
    // A quarter of a round trip later RACK takes what was sent before as lost. All of that is lost again.
    s.wait_ms(30);
    assert_eq!(s.sent()[0].seq, 1);
    s.wait_ms(330);
    let again = s.sent();
    assert_eq!(again[0].seq, 1);
    assert!(again.iter().all(|s| s.seq != at(5)), "{again:?}");
    assert_eq!(s.host.engine.info(flow).congestion_state, CongestionState::Loss);
    assert_eq!(s.host.engine.info(flow).sacked, MSS as u32);
    s.ack(at(5));
    let again = s.sent();
    assert!(again.iter().all(|s| s.seq != at(5)), "{again:?}");
}

#[test]
fn a_second_timeout_forgets_what_was_sacked() {
    // RFC 2018 section 8: the receiver may have dropped what it SACKed, and everything is sent again in the end.
    let (mut s, flow) = ten_in_flight(config(SERVER), 10 * MSS);
    s.sack(1, &[(at(1), at(10))]);
    s.expect(&[(ACK, 1, 1, MSS)]);
    s.wait_ms(400);
    assert_eq!(s.sent()[0].seq, 1);
    s.wait_ms(700);
    assert_eq!(s.sent()[0].seq, 1);
    let info = s.host.engine.info(flow);
    assert_eq!((info.sacked, info.flight), (0, 10 * MSS as u32));
    // It did forget.
    let mut again = Vec::new();
    for segment in 1..10 {
        s.ack(at(segment));
        again.extend(s.sent().iter().map(|s| s.seq));
    }
    assert!(again.contains(&at(1)) && again.contains(&at(9)), "{again:?}");
    s.ack(at(10));
    assert_eq!(s.host.engine.info(flow).unacknowledged, 0);
}

#[test]
fn a_receiver_that_sacked_what_it_then_asks_for_has_reneged() {
    // RFC 2018 section 8: the cumulative acknowledgment stops where a block was.
    let (mut s, flow) = ten_in_flight(config(SERVER), 10 * MSS);
    s.sack(1, &[(at(1), at(10))]);
    s.expect(&[(ACK, 1, 1, MSS)]);
    s.wait_ms(100);
    s.ack(at(1));
    s.wait_ms(1000);
    let again = s.sent();
    assert_eq!(again.first().map(|s| s.seq), Some(at(1)), "{again:?}");
    s.ack(at(10));
    assert_eq!(s.host.engine.info(flow).unacknowledged, 0);
    assert_eq!(s.state(flow), State::Established);
}

// --- duplicates that the peer reports: RFC 2883 section 5, RFC 3708 ------------------------------

#[test]
fn a_recovery_that_only_repeated_what_had_arrived_is_undone() {
    // RFC 3708 section 2: every repetition is reported as a duplicate; RFC 9438 section 4.9 restores the window.
    for congestion in [Algorithm::Reno, Algorithm::Cubic] {
        let (mut s, flow) = ten_in_flight(Config { congestion, ..config(SERVER) }, 10 * MSS);
        let before = s.host.engine.info(flow);
        s.sack(1, &[(at(1), at(4))]);
        s.expect(&[(ACK, 1, 1, MSS)]);
        assert!(s.host.engine.info(flow).slow_start_threshold < before.slow_start_threshold);
        // The first segment was only late, and all of the rest arrived.
        s.sack(at(10), &[]);
        s.wait_ms(100);
        s.sack(at(10), &[(at(0), at(1))]);
        let after = s.host.engine.info(flow);
        assert_eq!(after.slow_start_threshold, before.slow_start_threshold, "{congestion:?}");
        assert!(after.congestion_window >= before.congestion_window, "{congestion:?}");
        assert_eq!(s.host.engine.counters().spurious_recoveries, 1);
        assert_eq!(s.host.engine.counters().duplicates_reported, 1);
    }
}

#[test]
fn a_recovery_of_which_one_repetition_was_needed_stays() {
    // RFC 3708 section 2: one true loss is reason enough.
    let (mut s, flow) = ten_in_flight(config(SERVER), 10 * MSS);
    s.sack(1, &[(at(3), at(7)), (at(1), at(2))]);
    let again: Vec<u32> = s.sent().iter().map(|s| s.seq).collect();
    assert_eq!(again, [at(0), at(2)]);
    let reduced = s.host.engine.info(flow).slow_start_threshold;
    s.sack(at(2), &[(at(3), at(10))]);
    s.wait_ms(100);
    s.sack(at(10), &[(at(0), at(1))]);
    assert_eq!(s.host.engine.counters().spurious_recoveries, 0);
    assert_eq!(s.host.engine.info(flow).slow_start_threshold, reduced);
}

#[test]
fn a_duplicate_reported_for_what_was_never_repeated_undoes_nothing() {
    // RFC 3708 section 3: the network duplicates too.
    let (mut s, flow) = ten_in_flight(config(SERVER), 10 * MSS);
    s.sack(at(1), &[(at(0), at(1))]);
    s.expect(&[]);
    assert_eq!(s.host.engine.counters().duplicates_reported, 1);
    assert_eq!(s.host.engine.counters().spurious_recoveries, 0);
    s.sack(at(1), &[(at(2), at(5))]);
    s.expect(&[(ACK, at(1), 1, MSS)]);
    let reduced = s.host.engine.info(flow).slow_start_threshold;
    s.sack(at(1), &[(at(3), at(4)), (at(2), at(6))]);
    let info = s.host.engine.info(flow);
    assert_eq!(info.slow_start_threshold, reduced);
    assert_eq!(info.congestion_state, CongestionState::Recovery);
}

#[test]
fn timestamps_and_blocks_travel_together() {
    let mut s = with_sack();
    s.peer_timestamp = Some(7);
    s.passive_open();
    s.peer_timestamp = Some(9);
    s.inject(ACK, 101, 1, 100, 65_535);
    let sent = s.sent();
    assert_eq!(sent[0].blocks(), [(101, 201)]);
    let Options { timestamps: Some(Timestamps { echo, .. }), .. } = sent[0].options else {
        panic!("no timestamps")
    };
    // RFC 7323 section 4.3: an out-of-order segment does not move TS.Recent.
    assert_eq!(echo, 7);
    s.peer_timestamp = Some(8);
    s.inject(ACK, 1, 1, 100, 65_535);
    assert_eq!(s.sent()[0].options.timestamps.unwrap().echo, 8, "it is the one that fills the gap");
}

//! Segment by segment, as `traces.rs`: explicit congestion notification (RFC 3168).

use crate::harness::script::{ACK, CWR, ECE, PSH, SYN, Script};
use crate::harness::{SERVER, config};
use overfly_engine::{Algorithm, Config, CongestionState, Ecn as Policy, FlowId};
use overfly_wire::ip::Ecn;
use overfly_wire::tcp::Flags;

const MSS: usize = 1460;
const FULL: u32 = MSS as u32;
/// The peer's packets: not ECT, ECT(0), CE.
const NOT_ECT: u8 = 0;
const ECT: u8 = 2;
const CE: u8 = 3;

fn at(segment: usize) -> u32 {
    1 + (segment * MSS) as u32
}

fn script(ecn: Policy) -> Script {
    let mut s = Script::with(Config { ecn, congestion: Algorithm::Reno, ..config(SERVER) });
    s.options.sack_permitted = true;
    s
}

/// An established connection that both sides agreed on ECN for, over a path of 100 ms.
fn agreed() -> (Script, FlowId) {
    let mut s = script(Policy::Accept);
    s.host.engine.listen(s.local, 8).unwrap();
    s.inject(SYN | ECE | CWR, 0, 0, 0, 65_535);
    s.expect(&[(SYN | ACK | ECE, 0, 1, 0)]);
    s.wait_ms(100);
    s.inject(ACK, 1, 1, 0, 65_535);
    let (flow, _) = s.host.owner.incoming.pop_front().unwrap();
    s.host.engine.accepted(flow);
    assert!(s.host.engine.info(flow).ecn);
    s.tos = ECT;
    (s, flow)
}

// --- who agrees to what: RFC 3168 section 6.1.1 ----------------------------------------------------

#[test]
fn only_a_syn_with_both_flags_asks_and_only_ece_answers() {
    for policy in [Policy::Off, Policy::Accept, Policy::Ask] {
        for asked in [Flags::NONE, ECE, CWR, ECE | CWR] {
            let mut s = script(policy);
            s.host.engine.listen(s.local, 8).unwrap();
            s.inject(SYN | asked, 0, 0, 0, 65_535);
            let agrees = policy != Policy::Off && asked == ECE | CWR;
            let answer = if agrees { SYN | ACK | ECE } else { SYN | ACK };
            s.expect(&[(answer, 0, 1, 0)]);
            s.inject(ACK, 1, 1, 0, 65_535);
            let (flow, _) = s.host.owner.incoming.pop_front().unwrap();
            assert_eq!(s.host.engine.info(flow).ecn, agrees, "{policy:?}, {asked:?}");
        }
    }
}

#[test]
fn we_ask_if_told_to_and_believe_only_ece_alone() {
    for policy in [Policy::Off, Policy::Accept, Policy::Ask] {
        for answered in [Flags::NONE, ECE, CWR, ECE | CWR] {
            let mut s = script(policy);
            let flow = s.connect();
            let asks = policy == Policy::Ask;
            s.expect(&[(if asks { SYN | ECE | CWR } else { SYN }, 0, 0, 0)]);
            s.inject(SYN | ACK | answered, 0, 1, 0, 65_535);
            s.expect(&[(ACK, 1, 1, 0)]);
            // ECE and CWR together is a peer that reflects flags that it does not know.
            assert_eq!(s.host.engine.info(flow).ecn, asks && answered == ECE, "{policy:?}, {answered:?}");
        }
    }
}

#[test]
fn a_syn_that_was_not_answered_goes_again_without() {
    // RFC 3168 section 6.1.1.1: something on the path may drop what has these flags.
    let mut s = script(Policy::Ask);
    let flow = s.connect();
    s.expect(&[(SYN | ECE | CWR, 0, 0, 0)]);
    s.expect_after(1000, &[(SYN, 0, 0, 0)]);
    s.inject(SYN | ACK, 0, 1, 0, 65_535);
    s.expect(&[(ACK, 1, 1, 0)]);
    assert!(!s.host.engine.info(flow).ecn);
}

#[test]
fn ece_in_the_answer_to_our_syn_is_no_congestion() {
    let mut s = script(Policy::Ask);
    let flow = s.connect();
    s.sent();
    s.inject(SYN | ACK | ECE, 0, 1, 0, 65_535);
    s.expect(&[(ACK, 1, 1, 0)]);
    let info = s.host.engine.info(flow);
    assert_eq!((info.congestion_state, info.congestion_window), (CongestionState::Open, 10 * FULL));
    s.host.send(flow, 10);
    s.expect(&[(PSH | ACK, 1, 1, 10)]);
}

#[test]
fn a_connection_that_did_not_agree_marks_nothing_and_hears_nothing() {
    let mut s = script(Policy::Accept);
    let flow = s.passive_open();
    s.host.send(flow, 10 * MSS);
    let sent = s.sent();
    assert!(sent.iter().all(|s| s.ecn == Ecn::NotEct && !s.flags.intersects(ECE | CWR)));
    s.inject(ACK | ECE, 1, at(1), 0, 65_535);
    assert_eq!(s.host.engine.counters().ecn_reductions, 0);
    s.tos = CE;
    s.inject(PSH | ACK, 1, at(10), 10, 65_535);
    s.wait_ms(50);
    s.expect(&[(ACK, at(10), 11, 0)]);
}

// --- which packets are marked as capable: RFC 3168 sections 6.1.1, 6.1.4, 6.1.5, 6.1.6 ---------------

#[test]
fn only_new_data_is_capable() {
    let mut s = script(Policy::Ask);
    let flow = s.connect();
    assert_eq!(s.sent()[0].ecn, Ecn::NotEct, "SYN");
    s.wait_ms(100);
    s.inject(SYN | ACK | ECE, 0, 1, 0, 65_535);
    assert_eq!(s.sent()[0].ecn, Ecn::NotEct, "a pure ACK");
    s.host.send(flow, 10 * MSS);
    assert!(s.sent().iter().all(|s| s.ecn == Ecn::Ect0), "new data");
    s.wait_ms(100);
    s.sack(1, &[(at(1), at(10))]);
    let again = s.sent();
    assert_eq!((again[0].seq, again[0].ecn), (1, Ecn::NotEct), "a retransmission");
    s.ack(at(10));
    s.host.engine.shutdown(flow);
    let fin = s.sent();
    assert_eq!((fin[0].len, fin[0].ecn), (0, Ecn::NotEct), "a FIN without data");
}

#[test]
fn the_answer_to_a_syn_is_not_capable() {
    let mut s = script(Policy::Accept);
    s.host.engine.listen(s.local, 8).unwrap();
    s.inject(SYN | ECE | CWR, 0, 0, 0, 65_535);
    assert_eq!(s.sent()[0].ecn, Ecn::NotEct);
}

#[test]
fn window_probes_and_keep_alive_are_not_capable() {
    // RFC 3168 section 6.1.6.
    let (mut s, flow) = agreed();
    s.inject(ACK, 1, 1, 0, 0);
    s.host.send(flow, 100);
    s.expect(&[]);
    s.wait_ms(700);
    let probes = s.sent();
    assert!(!probes.is_empty() && probes.iter().all(|s| s.ecn == Ecn::NotEct), "{probes:?}");
}

#[test]
fn what_a_timeout_repeats_is_not_capable_and_carries_no_cwr() {
    // RFC 3168 section 6.1.5; section 6.1.2: CWR goes with the first new data.
    let (mut s, flow) = agreed();
    s.host.send(flow, MSS);
    s.sent();
    s.wait_ms(1000);
    let again = s.sent();
    assert!(!again.is_empty());
    assert!(again.iter().all(|s| s.ecn == Ecn::NotEct && !s.flags.contains(CWR)), "{again:?}");
}

// --- the receiver: RFC 3168 section 6.1.3 ------------------------------------------------------------

#[test]
fn ece_goes_with_every_acknowledgment_until_cwr() {
    let (mut s, flow) = agreed();
    s.tos = CE;
    s.inject(PSH | ACK, 1, 1, 100, 65_535);
    s.wait_ms(50);
    s.expect(&[(ACK | ECE, 1, 101, 0)]);
    s.tos = ECT;
    for piece in 1..4 {
        s.inject(PSH | ACK, 1 + 100 * piece, 1, 100, 65_535);
        s.wait_ms(50);
        s.expect(&[(ACK | ECE, 1, 101 + 100 * piece, 0)]);
    }
    // Data of ours too.
    s.host.send(flow, 10);
    s.expect(&[(PSH | ACK | ECE, 1, 401, 10)]);
    s.inject(PSH | ACK | CWR, 401, 11, 100, 65_535);
    s.wait_ms(50);
    s.expect(&[(ACK, 11, 501, 0)]);
}

#[test]
fn a_marked_segment_with_cwr_begins_anew() {
    // RFC 3168 section 6.1.3: CWR first, then the mark of the same packet.
    let (mut s, _) = agreed();
    s.tos = CE;
    s.inject(PSH | ACK, 1, 1, 100, 65_535);
    s.wait_ms(50);
    s.expect(&[(ACK | ECE, 1, 101, 0)]);
    s.inject(PSH | ACK | CWR, 101, 1, 100, 65_535);
    s.wait_ms(50);
    s.expect(&[(ACK | ECE, 1, 201, 0)]);
}

#[test]
fn one_mark_among_several_segments_is_told() {
    let (mut s, _) = agreed();
    for (piece, tos) in [ECT, CE, ECT].into_iter().enumerate() {
        s.tos = tos;
        s.inject(ACK, 1 + (piece * MSS) as u32, 1, MSS, 65_535);
    }
    s.wait_ms(50);
    let sent = s.sent();
    assert!(sent.last().unwrap().flags.contains(ECE), "{sent:?}");
    assert_eq!(s.host.engine.counters().ecn_marks, 1);
}

#[test]
fn marks_outside_the_window_and_on_pure_acknowledgments_are_not_told() {
    // RFC 3168 section 6.1.5 against attacks; section 6.1.4: pure ACKs are not capable.
    let (mut s, _) = agreed();
    s.tos = CE;
    s.inject(PSH | ACK, 0x10_0000, 1, 100, 65_535);
    s.expect(&[(ACK, 1, 1, 0)]);
    s.inject(ACK, 1, 1, 0, 65_535);
    s.tos = NOT_ECT;
    s.inject(PSH | ACK, 1, 1, 100, 65_535);
    s.wait_ms(50);
    s.expect(&[(ACK, 1, 101, 0)]);
    assert_eq!(s.host.engine.counters().ecn_marks, 0);
}

// --- the sender: RFC 3168 section 6.1.2 --------------------------------------------------------------

/// Ten segments in flight, more promised, a round trip later.
fn ten_in_flight() -> (Script, FlowId) {
    let (mut s, flow) = agreed();
    s.host.send(flow, 100 * MSS);
    s.expect_full(1, 10, MSS, false);
    s.wait_ms(100);
    (s, flow)
}

#[test]
fn an_echo_halves_the_window_without_sending_anything_again() {
    let (mut s, flow) = ten_in_flight();
    s.inject(ACK | ECE, 1, at(1), 0, 65_535);
    let info = s.host.engine.info(flow);
    assert_eq!(info.congestion_state, CongestionState::Reduced);
    assert!((4 * FULL..=5 * FULL).contains(&info.slow_start_threshold), "{}", info.slow_start_threshold);
    for segment in 2..=10 {
        s.inject(ACK | ECE, 1, at(segment), 0, 65_535);
    }
    let sent = s.sent();
    assert!(sent.iter().all(|s| s.seq >= at(10)), "{sent:?}");
    let info = s.host.engine.info(flow);
    assert!(info.congestion_window <= 5 * FULL + FULL, "{}", info.congestion_window);
    let counters = s.host.engine.counters();
    assert_eq!((counters.ecn_reductions, counters.retransmits), (1, 0));
}

#[test]
fn the_first_new_data_after_a_reduction_carries_cwr_and_no_other() {
    let (mut s, _) = ten_in_flight();
    s.inject(ACK | ECE, 1, at(1), 0, 65_535);
    let mut sent = s.sent();
    for segment in 2..=10 {
        s.inject(ACK | ECE, 1, at(segment), 0, 65_535);
        sent.extend(s.sent());
    }
    let with_cwr: Vec<bool> = sent.iter().map(|s| s.flags.contains(CWR)).collect();
    assert!(with_cwr.len() >= 2 && with_cwr[0] && with_cwr[1..].iter().all(|cwr| !cwr), "{with_cwr:?}");
}

#[test]
fn the_next_window_may_be_reduced_again() {
    let (mut s, flow) = ten_in_flight();
    for segment in 1..=10 {
        s.inject(ACK | ECE, 1, at(segment), 0, 65_535);
        s.sent();
    }
    assert_eq!(s.host.engine.counters().ecn_reductions, 1);
    let threshold = s.host.engine.info(flow).slow_start_threshold;
    s.wait_ms(100);
    s.inject(ACK | ECE, 1, at(11), 0, 65_535);
    s.inject(ACK | ECE, 1, at(12), 0, 65_535);
    s.sent();
    assert_eq!(s.host.engine.counters().ecn_reductions, 2);
    assert!(s.host.engine.info(flow).slow_start_threshold < threshold);
}

#[test]
fn a_mark_and_a_loss_of_one_window_cost_once() {
    // RFC 3168 section 6.1.2: once a window, whatever the reason.
    for mark_first in [true, false] {
        let (mut s, flow) = ten_in_flight();
        if mark_first {
            s.inject(ACK | ECE, 1, at(1), 0, 65_535);
            s.sent();
        }
        s.sack(at(1), &[(at(2), at(5))]);
        s.sent();
        let reduced = s.host.engine.info(flow).slow_start_threshold;
        s.inject(ACK | ECE, 1, at(5), 0, 65_535);
        s.sent();
        assert_eq!(s.host.engine.info(flow).slow_start_threshold, reduced, "the mark first: {mark_first}");
        assert_eq!(s.host.engine.counters().fast_retransmits, 1);
    }
}

#[test]
fn cubic_keeps_seven_tenths_after_a_mark() {
    // RFC 9438 section 4.6 for CUBIC; RFC 8511's 0.85 is an option.
    let mut s = Script::with(Config { ecn: Policy::Ask, ..config(SERVER) });
    let flow = s.connect();
    s.sent();
    s.wait_ms(100);
    s.inject(SYN | ACK | ECE, 0, 1, 0, 65_535);
    s.host.send(flow, 10 * MSS);
    s.sent();
    s.wait_ms(100);
    s.inject(ACK | ECE, 1, at(1), 0, 65_535);
    assert_eq!(s.host.engine.info(flow).slow_start_threshold, 7 * FULL);
}

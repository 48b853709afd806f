//! Segment by segment, as `traces.rs`: what Linux does where the RFCs leave a choice, and what an expert's trace would show to be
//! different.

use std::time::Duration;

use crate::harness::script::{ACK, FIN, PSH, RST, SYN, Script};
use crate::harness::{SERVER, config, pattern};
use overfly_engine::{Config, Failure, State, Unreachable};
use overfly_wire::checksum::Sum;
use overfly_wire::ipv4;
use overfly_wire::tcp::Options;

const MSS: usize = 1460;
const FULL: u32 = MSS as u32;

/// The program that owns the engine has had its chance to answer.
const NEXT_CALL: Duration = Duration::from_micros(1);

// --- Nagle's algorithm (tcp_nagle_check() in net/ipv4/tcp_output.c) ------------------------------

#[test]
fn only_a_small_segment_holds_the_next_one_back() {
    let mut s = Script::new();
    let flow = s.passive_open();
    // A full segment in flight is no reason to wait.
    s.host.send(flow, 2000);
    s.expect(&[(ACK, 1, 1, MSS), (PSH | ACK, 1461, 1, 540)]);
    // A small one is, behind other full ones too.
    s.host.send(flow, 2000);
    s.expect(&[(ACK, 2001, 1, MSS)]);
    s.ack(1461);
    s.expect(&[]);
    s.ack(2001);
    s.expect(&[(PSH | ACK, 3461, 1, 540)]);
}

#[test]
fn a_small_write_behind_full_segments_goes_at_once() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.send(flow, 4 * MSS);
    s.expect_full(1, 4, MSS, true);
    s.host.send(flow, 10);
    s.expect(&[(PSH | ACK, 1 + 4 * FULL, 1, 10)]);
    s.host.send(flow, 10);
    s.expect(&[]);
}

#[test]
fn turning_nagle_off_lets_a_corked_tail_go_each_time() {
    // TCP_NAGLE_PUSH (__tcp_sock_set_nodelay() in net/ipv4/tcp.c).
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.engine.set_cork(flow, true);
    s.host.send(flow, MSS + 10);
    s.expect(&[(ACK, 1, 1, MSS)]);
    s.host.engine.set_no_delay(flow, true);
    s.expect(&[(PSH | ACK, 1 + FULL, 1, 10)]);
    // What is written later waits for the cork as before, until it is set again.
    s.host.send(flow, 20);
    s.expect(&[]);
    s.host.engine.set_no_delay(flow, true);
    s.expect(&[(PSH | ACK, 11 + FULL, 1, 20)]);
    s.host.send(flow, MSS + 30);
    s.expect(&[(ACK, 31 + FULL, 1, MSS)]);
    s.host.engine.set_no_delay(flow, true);
    s.expect(&[(PSH | ACK, 31 + 2 * FULL, 1, 30)]);
    // Nothing waited: nothing is let go in advance.
    s.host.engine.set_no_delay(flow, true);
    s.host.send(flow, 40);
    s.expect(&[]);
}

// --- closing (tcp_close() in net/ipv4/tcp.c) -----------------------------------------------------

#[test]
fn what_was_written_goes_before_the_reset_of_a_close_with_unread_input() {
    // Redis and HAProxy (`option nolinger`) lost their last answers to this.
    for aborts in [false, true] {
        let mut s = Script::new();
        s.host.owner.hold = true;
        let flow = s.passive_open();
        s.inject(PSH | ACK, 1, 1, 100, 65_535);
        s.host.send(flow, 2000);
        if aborts {
            s.host.engine.abort(flow);
        } else {
            s.host.engine.close(flow);
        }
        s.expect(&[(ACK, 1, 101, MSS), (PSH | ACK, 1461, 101, 540), (RST | ACK, 2001, 101, 0)]);
        assert_eq!(s.host.engine.flows(), 0);
    }
}

#[test]
fn a_reset_does_not_wait_for_a_window() {
    let mut s = Script::new();
    s.win = 1000;
    let flow = s.passive_open_over(1);
    s.host.send(flow, 3000);
    s.host.engine.abort(flow);
    s.expect(&[(ACK, 1, 1, 1000), (RST | ACK, 1001, 1, 0)]);
    assert_eq!(s.host.engine.flows(), 0);
    // Nor for what Nagle's algorithm holds back.
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.send(flow, 10);
    s.expect(&[(PSH | ACK, 1, 1, 10)]);
    s.host.send(flow, 10);
    s.host.engine.abort(flow);
    s.expect(&[(RST | ACK, 11, 1, 0)]);
}

#[test]
fn more_than_one_turn_of_output_goes_before_the_reset() {
    let mut s = Script::with(Config { max_burst: 2, ..config(SERVER) });
    let flow = s.passive_open();
    s.host.send(flow, 5 * MSS);
    s.host.engine.abort(flow);
    let sent = s.sent();
    assert_eq!(sent.iter().map(|s| s.len).collect::<Vec<_>>(), [MSS, MSS, MSS, MSS, MSS, 0]);
    assert_eq!((sent[5].flags, sent[5].seq), (RST | ACK, 1 + 5 * FULL));
}

#[test]
fn a_reset_carries_a_timestamp() {
    // RFC 7323 section 3.2.
    let mut s = Script::new();
    s.peer_timestamp = Some(4000);
    let flow = s.passive_open();
    s.host.engine.abort(flow);
    s.expect(&[(RST | ACK, 1, 1, 0)]);
    assert_eq!(s.last_options.timestamps.map(|timestamps| timestamps.echo), Some(4000));
}

// --- quick acknowledgments (tcp_incr_quickack(), inet_csk_in_pingpong_mode()) --------------------

#[test]
fn a_segment_that_nobody_answers_is_acknowledged_at_once() {
    // Two small writes of a peer with Nagle's algorithm: the second waits for this.
    let mut s = Script::new();
    let flow = s.passive_open();
    for piece in 0..3 {
        s.inject(PSH | ACK, 1 + 10 * piece, 1, 10, 65_535);
        // The owner may answer first.
        s.expect(&[]);
        s.wait(NEXT_CALL);
        s.expect(&[(ACK, 1, 11 + 10 * piece, 0)]);
    }
    s.received(flow, 30);
    s.wait_ms(500);
    s.expect(&[]);
}

#[test]
fn who_has_not_read_a_segment_yet_may_still_answer_it() {
    // A server that accepts many connections before it reads any sent an acknowledgment more for each.
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.owner.hold = true;
    s.inject(PSH | ACK, 1, 1, 10, 65_535);
    s.wait(NEXT_CALL);
    s.expect(&[]);
    s.wait(Duration::from_micros(400));
    s.expect(&[]);
    s.host.send(flow, 20);
    s.expect(&[(PSH | ACK, 1, 11, 20)]);
    s.wait_ms(100);
    s.expect(&[]);
}

#[test]
fn a_segment_that_nobody_reads_is_acknowledged_soon() {
    let mut s = Script::new();
    s.passive_open();
    s.host.owner.hold = true;
    s.inject(PSH | ACK, 1, 1, 10, 65_535);
    s.wait(NEXT_CALL);
    s.expect(&[]);
    s.wait(Duration::from_micros(500));
    s.expect(&[(ACK, 1, 11, 0)]);
}

#[test]
fn without_quick_acknowledgments_each_waits_for_company() {
    let mut s = Script::with(Config { quick_acks: false, ..config(SERVER) });
    s.passive_open();
    s.inject(PSH | ACK, 1, 1, 10, 65_535);
    s.expect_after(40, &[(ACK, 1, 11, 0)]);
    s.inject(PSH | ACK, 11, 1, 10, 65_535);
    s.expect_after(40, &[(ACK, 1, 21, 0)]);
}

#[test]
fn the_first_sixteen_segments_are_acknowledged_at_once() {
    let mut s = Script::new();
    s.passive_open();
    for segment in 0..15 {
        s.inject(ACK, 1 + segment * FULL, 1, MSS, 65_535);
        s.wait(NEXT_CALL);
        s.expect(&[(ACK, 1, 1 + (segment + 1) * FULL, 0)]);
    }
    s.inject(ACK, 1 + 15 * FULL, 1, MSS, 65_535);
    s.wait(NEXT_CALL);
    s.expect(&[]);
}

#[test]
fn an_answer_takes_the_acknowledgment_along_and_the_next_one_is_waited_for() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.inject(PSH | ACK, 1, 1, 10, 65_535);
    s.host.send(flow, 20);
    s.expect(&[(PSH | ACK, 1, 11, 20)]);
    // Interactive: an answer is expected.
    s.inject(PSH | ACK, 11, 21, 10, 65_535);
    s.wait_ms(30);
    s.expect(&[]);
    s.host.send(flow, 20);
    s.expect(&[(PSH | ACK, 21, 21, 20)]);
    // None comes: the acknowledgment is late once, and not again (tcp_delack_timer_handler()).
    s.inject(PSH | ACK, 21, 41, 10, 65_535);
    s.expect_after(40, &[(ACK, 41, 31, 0)]);
    s.inject(PSH | ACK, 31, 41, 10, 65_535);
    s.wait(NEXT_CALL);
    s.expect(&[(ACK, 41, 41, 0)]);
}

#[test]
fn a_peer_that_sends_again_is_acknowledged_at_once() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.inject(PSH | ACK, 1, 1, 10, 65_535);
    s.host.send(flow, 20);
    s.expect(&[(PSH | ACK, 1, 11, 20)]);
    s.inject(PSH | ACK, 1, 1, 10, 65_535);
    s.expect(&[(ACK, 21, 11, 0)]);
    s.inject(PSH | ACK, 11, 21, 10, 65_535);
    s.wait(NEXT_CALL);
    s.expect(&[(ACK, 21, 21, 0)]);
}

#[test]
fn a_short_connection_has_no_acknowledgment_of_its_own_more_than_it_needs() {
    // A server that answers when it is next called, and closes: three segments of its own.
    let mut s = Script::new();
    s.host.engine.listen(s.local, 8).unwrap();
    s.inject(SYN, 0, 0, 0, 65_535);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
    s.inject(ACK, 1, 1, 0, 65_535);
    s.inject(PSH | ACK, 1, 1, 100, 65_535);
    s.expect(&[]);
    let (flow, _) = s.host.owner.incoming.pop_front().unwrap();
    s.host.engine.accepted(flow);
    s.host.send(flow, 200);
    s.host.engine.close(flow);
    s.expect(&[(FIN | PSH | ACK, 1, 101, 200)]);
    s.inject(FIN | ACK, 101, 202, 0, 65_535);
    s.expect(&[(ACK, 202, 102, 0)]);
    s.wait_ms(500);
    s.expect(&[]);
    // A client that closes when it has the answer: four.
    let mut s = Script::new();
    let flow = s.connect();
    s.expect(&[(SYN, 0, 0, 0)]);
    s.inject(SYN | ACK, 0, 1, 0, 65_535);
    s.host.send(flow, 100);
    s.expect(&[(PSH | ACK, 1, 1, 100)]);
    s.inject(PSH | ACK, 1, 101, 200, 65_535);
    s.host.engine.close(flow);
    s.expect(&[(FIN | ACK, 101, 201, 0)]);
    s.inject(FIN | ACK, 201, 102, 0, 65_535);
    s.expect(&[(ACK, 102, 202, 0)]);
    s.wait_ms(500);
    s.expect(&[]);
}

// --- errors and queues -----------------------------------------------------------------------

/// A router says that what `frame` holds cannot arrive.
fn unreachable(s: &mut Script, code: u8, frame: &[u8]) {
    let mut message = vec![3, code, 0, 0, 0, 0, 0, 0];
    message.extend_from_slice(&frame[14..42]);
    let sum = Sum::new().bytes(&message).finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    s.inject_packet(ipv4::PROTOCOL_ICMP, 64, &message);
}

#[test]
fn a_connection_that_times_out_says_what_icmp_said() {
    // sk_err_soft: tcp_v4_err() in net/ipv4/tcp_ipv4.c, tcp_write_err() in net/ipv4/tcp_timer.c.
    let failed = |said: bool, acknowledged: bool, by_retries: bool| {
        let mut s = Script::with(Config { data_retries: 3, ..config(SERVER) });
        let flow = s.passive_open();
        if !by_retries {
            s.host.engine.set_user_timeout(flow, Duration::from_secs(3));
        }
        s.host.send(flow, 10);
        s.expect(&[(PSH | ACK, 1, 1, 10)]);
        let frame = s.frames[0].clone();
        if said {
            unreachable(&mut s, 1, &frame);
            assert_eq!(s.state(flow), State::Established, "a soft error ends nothing");
        }
        if acknowledged {
            s.ack(11);
            s.host.send(flow, 10);
        }
        s.wait(Duration::from_secs(300));
        s.host.owner.past[0].failed
    };
    for by_retries in [false, true] {
        let host = Some(Failure::Unreachable(Unreachable::Host));
        assert_eq!(failed(true, false, by_retries), host);
        assert_eq!(failed(true, true, by_retries), Some(Failure::TimedOut), "it was got over");
        assert_eq!(failed(false, false, by_retries), Some(Failure::TimedOut));
    }
}

#[test]
fn a_backlog_takes_one_more_than_it_says() {
    // sk_acceptq_is_full() in include/net/sock.h.
    for backlog in [0, 1, 4] {
        let mut s = Script::new();
        s.host.engine.listen(s.local, backlog).unwrap();
        for number in 0..backlog + 2 {
            s.play(number);
            s.inject(SYN, 0, 0, 0, 65_535);
            if number > backlog {
                s.expect(&[]);
                break;
            }
            s.expect(&[(SYN | ACK, 0, 1, 0)]);
            s.inject(ACK, 1, 1, 0, 65_535);
        }
        assert_eq!(s.host.owner.incoming.len(), backlog as usize + 1);
        assert_eq!(s.host.engine.counters().drop_backlog, 1);
    }
}

#[test]
fn a_handshake_that_ends_at_a_full_queue_waits_for_room() {
    // tcp_v4_syn_recv_sock() in net/ipv4/tcp_ipv4.c.
    let mut s = Script::new();
    s.host.engine.listen(s.local, 0).unwrap();
    let isses = [0, 1].map(|number| {
        s.play(number);
        s.inject(SYN, 0, 0, 0, 65_535);
        s.expect(&[(SYN | ACK, 0, 1, 0)]);
        s.iss
    });
    for (number, iss) in isses.into_iter().enumerate() {
        s.play(number as u32);
        s.iss = iss;
        s.inject(ACK, 1, 1, 0, 65_535);
    }
    assert_eq!((s.host.owner.incoming.len(), s.host.engine.counters().drop_backlog), (1, 1));
    // The answer goes again, and the next acknowledgment finds the same.
    s.wait_ms(1100);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
    s.inject(ACK, 1, 1, 0, 65_535);
    assert_eq!(s.host.owner.incoming.len(), 1);
    // Until there is room: nothing of what the peer has sent meanwhile is lost.
    let (first, _) = s.host.owner.incoming.pop_front().unwrap();
    s.host.engine.accepted(first);
    s.inject(PSH | ACK, 1, 1, 10, 65_535);
    let (second, _) = s.host.owner.incoming.pop_front().expect("room for it");
    s.received(second, 10);
}

// --- what RFCs ask for -----------------------------------------------------------------------

#[test]
fn a_reset_near_a_half_open_connection_is_challenged() {
    // RFC 5961 section 3.2.
    let mut s = Script::new();
    s.host.engine.listen(s.local, 8).unwrap();
    s.inject(SYN, 0, 0, 0, 65_535);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
    s.inject(RST, 100, 0, 0, 0);
    s.expect(&[(ACK, 1, 1, 0)]);
    s.inject(RST, 100, 0, 0, 0);
    s.expect(&[]);
    s.inject(ACK, 1, 1, 0, 65_535);
    assert_eq!(s.host.owner.incoming.len(), 1);
}

#[test]
fn a_syn_beyond_the_window_is_challenged_within_the_limit() {
    // RFC 5961 sections 4.2 and 7.
    let mut s = Script::new();
    s.passive_open();
    s.inject(SYN, 200_000, 0, 0, 65_535);
    s.expect(&[(ACK, 1, 1, 0)]);
    for _ in 0..3 {
        s.inject(SYN, 200_000, 0, 0, 65_535);
        s.expect(&[]);
    }
    assert_eq!(s.host.engine.counters().challenge_acks, 1);
}

#[test]
fn data_on_the_answer_to_our_syn_is_taken() {
    // RFC 9293 section 3.10.7.3, the last paragraph but one.
    for fin in [false, true] {
        let mut s = Script::new();
        let flow = s.connect();
        s.expect(&[(SYN, 0, 0, 0)]);
        let data: Vec<u8> = (0..100).map(|index| pattern(77, index)).collect();
        let flags = if fin { SYN | ACK | FIN } else { SYN | ACK };
        s.inject_bytes(flags, 0, 1, &data, 65_535, s.options);
        s.expect(&[(ACK, 1, 101 + u32::from(fin), 0)]);
        s.received(flow, 100);
        assert_eq!(s.state(flow), if fin { State::CloseWait } else { State::Established });
    }
}

#[test]
fn a_partial_duplicate_out_of_order_is_reported() {
    // RFC 2883 section 4.2.
    let mut s = Script::new();
    s.options.sack_permitted = true;
    s.passive_open();
    s.inject(ACK, 201, 1, 100, 65_535);
    s.expect_sack((ACK, 1, 1, 0), &[(201, 301)]);
    s.inject(ACK, 251, 1, 100, 65_535);
    s.expect_sack((ACK, 1, 1, 0), &[(251, 301), (201, 351)]);
    s.inject(ACK, 151, 1, 100, 65_535);
    s.expect_sack((ACK, 1, 1, 0), &[(201, 251), (151, 351)]);
    // Around all of a block: the block.
    s.inject(ACK, 101, 1, 300, 65_535);
    s.expect_sack((ACK, 1, 1, 0), &[(151, 351), (101, 401)]);
    s.inject(ACK, 501, 1, 100, 65_535);
    s.expect_sack((ACK, 1, 1, 0), &[(501, 601), (101, 401)]);
}

#[test]
fn the_window_scale_may_be_larger_than_the_window_needs() {
    // tcp_select_initial_window() in net/ipv4/tcp_output.c: from all of tcp_rmem's last number.
    for (least, offered) in [(0, 3), (3, 3), (7, 7), (14, 14)] {
        let mut s = Script::with(Config { window_scale: least, ..config(SERVER) });
        s.options.window_scale = Some(2);
        s.host.engine.listen(s.local, 8).unwrap();
        s.inject(SYN, 0, 0, 0, 65_535);
        s.expect(&[(SYN | ACK, 0, 1, 0)]);
        assert_eq!(s.last_options.window_scale, Some(offered));
        s.inject(ACK, 1, 1, 0, 65_535);
        s.inject(PSH | ACK, 1, 1, 1000, 65_535);
        s.wait(NEXT_CALL);
        let told = u32::from(s.sent()[0].win) << offered;
        let (flow, _) = s.host.owner.incoming[0];
        let window = s.host.engine.info(flow).receive_window;
        assert!(told <= window && window - told < 1 << offered, "{told} of {window}");
    }
}

#[test]
fn a_window_without_a_scale_is_what_its_field_tells() {
    let mut s = Script::new();
    let flow = s.passive_open();
    assert_eq!(s.host.engine.info(flow).receive_window, 65_535);
    s.host.engine.set_receive_window(flow, 200_000);
    let mut sequence = 1;
    for _ in 0..200 {
        s.inject(PSH | ACK, sequence, 1, MSS, 65_535);
        sequence += FULL;
        s.wait_ms(1);
        for segment in s.sent() {
            assert_eq!(u32::from(segment.win), s.host.engine.info(flow).receive_window);
        }
    }
}

#[test]
fn a_recovery_that_time_begins_sends_what_the_peer_has_left_room_for() {
    // RFC 8985 section 6.3: two segments arrived, four before them did not, and nothing more comes that could say so.
    let mut s = Script::new();
    s.options.sack_permitted = true;
    let flow = s.passive_open_over(100);
    s.host.send(flow, 6 * MSS);
    s.expect_full(1, 6, MSS, true);
    s.wait_ms(100);
    s.sack(1, &[(1 + 4 * FULL, 1 + 6 * FULL)]);
    s.expect(&[]);
    s.expect_after(25, &[(ACK, 1, 1, MSS), (ACK, 1 + FULL, 1, MSS), (ACK, 1 + 2 * FULL, 1, MSS)]);
}

// --- struct tcp_info (tcp_get_info() in net/ipv4/tcp.c) ------------------------------------------

#[test]
fn what_was_sent_again_is_counted_and_stays_counted() {
    let mut s = Script::new();
    s.options = Options { sack_permitted: true, ..s.options };
    let flow = s.passive_open();
    let counts = |s: &Script| {
        let info = s.host.engine.info(flow);
        (info.repeated, info.repeating / FULL, info.reordering_seen)
    };
    s.host.send(flow, 5 * MSS);
    s.sent();
    assert_eq!(counts(&s), (0, 0, false));
    s.sack(1, &[(1 + FULL, 1 + 5 * FULL)]);
    s.expect(&[(ACK, 1, 1, MSS)]);
    assert_eq!(counts(&s), (1, 1, false));
    s.ack(1 + 5 * FULL);
    s.sent();
    assert_eq!(counts(&s), (1, 0, false));
    // A timeout.
    s.host.send(flow, 10);
    s.sent();
    s.wait_ms(3000);
    let again = s.sent().len() as u32;
    assert!(again > 1);
    assert_eq!(counts(&s).0, 1 + again);
}

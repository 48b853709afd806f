//! Segment by segment, grouped by what RFC 9293 and its companions ask for. Each line is a segment:
//! (flags, sequence number, acknowledgment, payload), numbers relative to the SYNs.

use std::net::SocketAddrV4;
use std::time::Duration;

use crate::harness::script::{ACK, FIN, PEER_ISS, PSH, RST, SYN, Script};
use crate::harness::{CLIENT, SERVER, config};
use overfly_engine::{Algorithm, Config, Error, Failure, KeepAlive, State};
use overfly_wire::MacAddr;
use overfly_wire::tcp::{Flags, Options};

const MSS: usize = 1460;

// --- opening -----------------------------------------------------------------------------------

#[test]
fn passive_open_answers_with_the_options_that_were_offered() {
    let mut s = Script::new();
    s.host.engine.listen(s.local, 8).unwrap();
    s.options = Options { mss: Some(1400), window_scale: Some(7), ..Options::NONE };
    s.peer_timestamp = Some(1000);
    s.inject(SYN, 0, 0, 0, 64_000);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
    assert_eq!(s.last_options.mss, Some(1460));
    assert_eq!(s.last_options.window_scale, Some(3), "256 KiB need a shift of 3");
    assert_eq!(s.last_options.timestamps.unwrap().echo, 1000);
    s.inject(ACK, 1, 1, 0, 500);
    let (flow, _) = s.host.owner.incoming.pop_front().unwrap();
    let info = s.host.engine.info(flow);
    assert_eq!((info.send_window, info.mss, info.timestamps), (500 << 7, 1400 - 12, true));
}

#[test]
fn passive_open_offers_nothing_that_was_not_offered() {
    let mut s = Script::new();
    s.options = Options::NONE;
    let flow = s.passive_open();
    assert_eq!((s.last_options.window_scale, s.last_options.timestamps), (None, None));
    let info = s.host.engine.info(flow);
    assert_eq!((info.mss, info.window_shift), (536, (0, 0)), "RFC 9293 section 3.7.1");
}

#[test]
fn active_open() {
    let mut s = Script::new();
    s.host.engine.set_neighbor(CLIENT, MacAddr([2, 0, 0, 0, 0, 2]));
    let flow = s.host.connect(s.now, s.local, s.peer);
    s.expect(&[(SYN, 0, 0, 0)]);
    s.inject(SYN | ACK, 0, 1, 0, 65_535);
    assert!(s.host.owner.streams[&flow].connected);
    s.host.send(flow, 10);
    s.expect(&[(PSH | ACK, 1, 1, 10)]);
}

#[test]
fn active_open_refused() {
    let mut s = Script::new();
    s.host.engine.set_neighbor(CLIENT, MacAddr([2, 0, 0, 0, 0, 2]));
    s.host.connect(s.now, s.local, s.peer);
    s.expect(&[(SYN, 0, 0, 0)]);
    s.inject(RST | ACK, 0, 2, 0, 0);
    assert_eq!(s.host.engine.flows(), 1, "a RST that acknowledges something else is not for us");
    s.inject(RST | ACK, 0, 1, 0, 0);
    assert_eq!(s.host.owner.past[0].failed, Some(Failure::Refused));
    assert_eq!(s.host.engine.flows(), 0);
}

#[test]
fn a_peer_that_is_gone_fails_its_flows_and_leaves_those_that_are_being_opened() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.send(flow, 10);
    s.expect(&[(PSH | ACK, 1, 1, 10)]);
    s.host.engine.peer_gone(s.now, |mac| mac != MacAddr([2, 0, 0, 0, 0, 2]), &mut s.host.owner);
    assert_eq!(s.state(flow), State::Established, "it was another");
    s.host.engine.peer_gone(s.now, |_| true, &mut s.host.owner);
    assert_eq!(s.host.owner.past[0].failed, Some(Failure::Reset));
    assert_eq!((s.host.engine.flows(), s.host.engine.counters().peers_gone), (0, 1));
    s.wait_ms(10_000);
    s.expect(&[]);

    let mut s = Script::new();
    s.host.engine.set_neighbor(CLIENT, MacAddr([2, 0, 0, 0, 0, 2]));
    let flow = s.host.connect(s.now, s.local, s.peer);
    s.expect(&[(SYN, 0, 0, 0)]);
    s.host.engine.peer_gone(s.now, |_| true, &mut s.host.owner);
    s.expect(&[(SYN, 0, 0, 0)]);
    s.inject(SYN | ACK, 0, 1, 0, 65_535);
    assert_eq!(s.state(flow), State::Established);
}

#[test]
fn a_peer_that_said_all_and_is_gone_fails_only_what_is_sent_to_it() {
    // Found with two programs of one host: one sent a file and ended, and the other lost the end of it.
    let half_closed = || {
        let mut s = Script::new();
        let flow = s.passive_open();
        s.inject(FIN | ACK, 1, 1, 0, 65_535);
        s.expect(&[(ACK, 1, 2, 0)]);
        s.host.engine.peer_gone(s.now, |_| true, &mut s.host.owner);
        s.wait_ms(1000);
        s.expect(&[]);
        assert_eq!(s.state(flow), State::CloseWait);
        (s, flow)
    };
    let (mut s, flow) = half_closed();
    s.host.send(flow, 10);
    s.expect(&[]);
    assert_eq!(s.host.owner.past[0].failed, Some(Failure::Reset));
    let (mut s, flow) = half_closed();
    s.host.engine.close(flow);
    s.expect(&[]);
    assert_eq!((s.host.owner.past[0].failed, s.host.engine.flows()), (None, 0));
}

#[test]
fn a_peer_that_knows_an_older_connection_is_reset_and_asked_again_at_once() {
    // Found by `xtask compare-load`: where wrk had left TIME-WAIT behind, each new connection took a second longer.
    let mut s = Script::new();
    s.host.engine.set_neighbor(CLIENT, MacAddr([2, 0, 0, 0, 0, 2]));
    let flow = s.host.connect(s.now, s.local, s.peer);
    s.expect(&[(SYN, 0, 0, 0)]);
    s.inject(ACK, 700, 0x4000_0000, 0, 65_535);
    s.expect(&[(RST, 0x4000_0000, 0, 0), (SYN, 0, 0, 0)]);
    // Only once: a peer that goes on so is no reason for a storm.
    s.inject(ACK, 700, 0x4000_0000, 0, 65_535);
    s.expect(&[(RST, 0x4000_0000, 0, 0)]);
    s.inject(SYN | ACK, 0, 1, 0, 65_535);
    s.expect(&[(ACK, 1, 1, 0)]);
    assert!(s.host.owner.streams[&flow].connected);
}

#[test]
fn active_open_times_out_after_its_retries_each_twice_as_late() {
    let mut config = config(SERVER);
    config.syn_retries = 3;
    let mut s = Script::with(config);
    s.host.engine.set_neighbor(CLIENT, MacAddr([2, 0, 0, 0, 0, 2]));
    s.host.connect(s.now, s.local, s.peer);
    s.expect(&[(SYN, 0, 0, 0)]);
    for wait in [1000, 2000, 4000] {
        s.wait_ms(wait - 20);
        s.expect(&[]);
        s.wait_ms(22);
        s.expect(&[(SYN, 0, 0, 0)]);
    }
    s.wait_ms(8010);
    assert_eq!(s.host.owner.past[0].failed, Some(Failure::TimedOut));
    s.expect(&[]);
}

#[test]
fn simultaneous_open() {
    let mut s = Script::new();
    s.host.engine.set_neighbor(CLIENT, MacAddr([2, 0, 0, 0, 0, 2]));
    let flow = s.host.connect(s.now, s.local, s.peer);
    s.expect(&[(SYN, 0, 0, 0)]);
    s.inject(SYN, 0, 0, 0, 65_535);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
    s.inject(ACK, 1, 1, 0, 65_535);
    assert_eq!(s.state(flow), State::Established);
    assert!(s.host.owner.streams[&flow].connected);
}

#[test]
fn the_same_syn_again_gets_the_same_answer() {
    let mut s = Script::new();
    s.host.engine.listen(s.local, 8).unwrap();
    for _ in 0..2 {
        s.inject(SYN, 0, 0, 0, 65_535);
        s.expect(&[(SYN | ACK, 0, 1, 0)]);
    }
    assert_eq!(s.host.engine.flows(), 1);
}

#[test]
fn no_listener_no_flow() {
    let mut s = Script::new();
    s.inject(SYN, 0, 0, 0, 65_535);
    s.expect(&[(RST | ACK, 0, 1, 0)]);
    s.inject(ACK, 5, 9, 3, 65_535);
    s.expect(&[(RST, 9, 0, 0)]);
    s.inject(RST, 5, 0, 0, 0);
    s.expect(&[]);
    assert_eq!(s.host.engine.counters().drop_no_flow, 3);
}

/// RFC 9293 section 3.10.7.2, fourth: what neither asks for a connection nor acknowledges says nothing to a listener. It got RST
/// (issue 18): a scanner told an open port from a closed one by it, and from a kernel's.
#[test]
fn a_listener_drops_what_neither_opens_nor_acknowledges() {
    let mut s = Script::new();
    s.host.engine.listen(s.local, 8).unwrap();
    let odd = [FIN, Flags::NONE, PSH, FIN | PSH | Flags::URG, SYN | FIN, SYN | FIN | PSH | Flags::URG];
    for flags in odd {
        for length in [0, 5] {
            s.inject(flags, 1, 0, length, 1024);
            s.expect(&[]);
        }
    }
    assert_eq!((s.host.engine.flows(), s.host.engine.counters().drop_no_flow), (0, 12));
    // Third: an acknowledgment of nothing is refused, also beside SYN or FIN.
    for flags in [ACK, FIN | ACK, SYN | ACK, SYN | FIN | ACK] {
        s.inject(flags, 5, 9, 0, 1024);
        s.expect(&[(RST, 9, 0, 0)]);
    }
    // Second: RST never.
    s.inject(RST, 5, 0, 0, 0);
    s.inject(RST | ACK, 5, 9, 0, 0);
    s.expect(&[]);
}

/// RFC 9293 section 3.10.7.1, and Linux: where nobody listens everything but RST is refused.
#[test]
fn a_closed_port_refuses_what_a_listener_drops() {
    let mut s = Script::new();
    for (flags, covered) in [(FIN, 2), (Flags::NONE, 1), (FIN | PSH | Flags::URG, 2), (SYN | FIN, 3)] {
        s.inject(flags, 1, 0, 0, 1024);
        s.expect(&[(RST | ACK, 0, covered, 0)]);
    }
}

#[test]
fn beside_a_kernel_a_syn_for_no_listener_is_not_refused() {
    // A reload of nginx: the SYN was steered to the worker that has just closed its listener.
    let mut config = config(SERVER);
    config.alone = false;
    let mut s = Script::with(config);
    s.inject(SYN, 0, 0, 0, 65_535);
    s.expect(&[]);
    s.inject(SYN | ACK, 0, 9, 0, 65_535);
    s.expect(&[(RST, 9, 0, 0)]);
    s.inject(ACK, 5, 9, 3, 65_535);
    s.expect(&[(RST, 9, 0, 0)]);
}

#[test]
fn a_full_backlog_drops_syns_until_the_owner_accepts() {
    let mut s = Script::new();
    s.host.engine.listen(s.local, 2).unwrap();
    for port in 0..4 {
        s.peer = SocketAddrV4::new(CLIENT, 40_000 + port);
        s.inject(SYN, 0, 0, 0, 65_535);
        if port < 3 {
            s.expect(&[(SYN | ACK, 0, 1, 0)]);
            s.inject(ACK, 1, 1, 0, 65_535);
        } else {
            s.expect(&[]);
        }
    }
    assert_eq!(s.host.engine.counters().drop_backlog, 1);
    let (flow, _) = s.host.owner.incoming.pop_front().unwrap();
    s.host.engine.accepted(flow);
    s.inject(SYN, 0, 0, 0, 65_535);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
}

#[test]
fn a_listener_that_closes_during_the_handshake_resets() {
    let mut s = Script::new();
    let listener = s.host.engine.listen(s.local, 2).unwrap();
    s.inject(SYN, 0, 0, 0, 65_535);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
    s.host.engine.close_listener(listener);
    s.inject(ACK, 1, 1, 0, 65_535);
    s.expect(&[(RST | ACK, 1, 1, 0)]);
    assert_eq!(s.host.engine.flows(), 0);
}

#[test]
fn a_wrong_ack_in_syn_received_is_answered_with_rst() {
    let mut s = Script::new();
    s.host.engine.listen(s.local, 2).unwrap();
    s.inject(SYN, 0, 0, 0, 65_535);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
    s.inject(ACK, 1, 2, 0, 65_535);
    s.expect(&[(RST, 2, 0, 0)]);
    assert!(s.host.owner.incoming.is_empty());
}

#[test]
fn two_listeners_and_two_flows_cannot_share_an_address() {
    let mut s = Script::new();
    s.host.engine.listen(s.local, 2).unwrap();
    assert_eq!(s.host.engine.listen(s.local, 2), Err(Error::AddressInUse));
    s.host.engine.set_neighbor(CLIENT, MacAddr([2, 0, 0, 0, 0, 2]));
    s.host.connect(s.now, s.local, s.peer);
    assert_eq!(s.host.engine.connect(s.now, s.local, s.peer), Err(Error::TupleInUse));
}

// --- data --------------------------------------------------------------------------------------

#[test]
fn a_lone_segment_is_acknowledged_late_a_burst_at_its_end() {
    let mut s = Script::new();
    let flow = s.passive_open();
    // Not while quick acknowledgments are due (traces_linux.rs).
    s.host.engine.set_quick_ack(flow, false);
    s.inject(PSH | ACK, 1, 1, 100, 65_535);
    s.expect(&[]);
    s.wait_ms(38);
    s.expect(&[]);
    s.wait_ms(4);
    s.expect(&[(ACK, 1, 101, 0)]);
    s.inject(ACK, 101, 1, MSS, 65_535);
    s.expect(&[]);
    s.inject(PSH | ACK, 101 + MSS as u32, 1, MSS, 65_535);
    s.expect(&[(ACK, 1, 101 + 2 * MSS as u32, 0)]);
    s.received(flow, 100 + 2 * MSS);
}

#[test]
fn a_burst_without_end_is_acknowledged_every_eight_segments_or_after_a_tick() {
    let mut s = Script::new();
    s.passive_open();
    let at = |segment: usize| 1 + (segment * MSS) as u32;
    for segment in 0..7 {
        s.inject(ACK, at(segment), 1, MSS, 65_535);
        s.expect(&[]);
    }
    s.inject(ACK, at(7), 1, MSS, 65_535);
    s.expect(&[(ACK, 1, at(8), 0)]);
    s.inject(ACK, at(8), 1, MSS, 65_535);
    s.inject(ACK, at(9), 1, MSS, 65_535);
    s.expect(&[]);
    s.wait_ms(3);
    s.expect(&[(ACK, 1, at(10), 0)]);
}

#[test]
fn the_answer_carries_the_acknowledgment() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.inject(PSH | ACK, 1, 1, 100, 65_535);
    s.host.send(flow, 200);
    s.expect(&[(PSH | ACK, 1, 101, 200)]);
    s.wait_ms(100);
    s.expect(&[]);
}

#[test]
fn nagle_holds_a_second_small_segment_back() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.send(flow, 10);
    s.expect(&[(PSH | ACK, 1, 1, 10)]);
    s.host.send(flow, 10);
    s.expect(&[]);
    s.inject(ACK, 1, 11, 0, 65_535);
    s.expect(&[(PSH | ACK, 11, 1, 10)]);
    s.host.engine.set_no_delay(flow, true);
    s.host.send(flow, 10);
    s.expect(&[(PSH | ACK, 21, 1, 10)]);
}

#[test]
fn cork_holds_partial_segments_until_it_is_pulled() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.engine.set_cork(flow, true);
    s.host.send(flow, MSS + 10);
    s.expect(&[(ACK, 1, 1, MSS)]);
    s.host.engine.set_cork(flow, false);
    s.host.engine.set_no_delay(flow, true);
    s.expect(&[(PSH | ACK, 1 + MSS as u32, 1, 10)]);
}

#[test]
fn out_of_order_data_waits_and_asks_with_duplicate_acks() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.inject(ACK, 201, 1, 100, 65_535);
    s.expect(&[(ACK, 1, 1, 0)]);
    s.inject(ACK, 101, 1, 150, 65_535);
    s.expect(&[(ACK, 1, 1, 0)]);
    s.received(flow, 0);
    s.inject(ACK, 1, 1, 100, 65_535);
    s.expect(&[(ACK, 1, 301, 0)]);
    s.received(flow, 300);
}

#[test]
fn urgent_data_is_delivered_in_its_place() {
    // RFC 6093 section 6: as if SO_OOBINLINE were always on. The pointer changes nothing, wherever it points.
    let urgent = Flags::URG;
    let mut s = Script::new();
    let flow = s.passive_open();
    s.inject(urgent | PSH | ACK, 1, 1, 100, 65_535);
    s.received(flow, 100);
    // Out of order as well, and with the FIN.
    s.inject(urgent | ACK | FIN, 201, 1, 100, 65_535);
    s.received(flow, 100);
    s.inject(urgent | ACK, 101, 1, 100, 65_535);
    s.received(flow, 300);
    assert!(s.host.owner.streams[&flow].remote_closed);
    // We never send any.
    s.host.send(flow, 10);
    assert!(s.sent().iter().all(|segment| !segment.flags.contains(urgent)));
}

/// What an owner leaves to who takes the flow over is not acknowledged: it comes again.
#[test]
fn urgent_data_may_be_left_to_somebody_else() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.owner.leaves_urgent = true;
    s.inject(Flags::URG | PSH | ACK, 1, 1, 100, 65_535);
    s.received(flow, 0);
    s.expect(&[]);
    assert_eq!(s.host.engine.counters().drop_urgent, 1);
    s.host.owner.leaves_urgent = false;
    s.inject(Flags::URG | PSH | ACK, 1, 1, 100, 65_535);
    s.received(flow, 100);
}

#[test]
fn an_early_fin_is_kept() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.inject(FIN | ACK, 101, 1, 50, 65_535);
    s.expect(&[(ACK, 1, 1, 0)]);
    s.inject(ACK, 1, 1, 100, 65_535);
    s.expect(&[(ACK, 1, 152, 0)]);
    s.received(flow, 150);
    assert_eq!(s.state(flow), State::CloseWait);
}

#[test]
fn old_and_overlapping_data_is_delivered_once() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.inject(ACK, 1, 1, 100, 65_535);
    s.inject(ACK, 1, 1, 100, 65_535);
    s.expect(&[(ACK, 1, 101, 0)]);
    s.inject(ACK, 51, 1, 100, 65_535);
    s.expect(&[(ACK, 1, 151, 0)]);
    s.received(flow, 150);
}

#[test]
fn the_window_closes_on_an_owner_that_does_not_read_and_opens_when_it_does() {
    let mut config = config(SERVER);
    config.receive_window = 4096;
    let mut s = Script::with(config);
    s.host.owner.hold = true;
    let flow = s.passive_open();
    for piece in 0..4 {
        s.inject(ACK, 1 + piece * 1024, 1, 1024, 65_535);
    }
    assert_eq!(s.sent().last().unwrap().win, 0);
    s.inject(ACK, 4097, 1, 10, 65_535);
    s.expect(&[(ACK, 1, 4097, 0)]);
    s.received(flow, 4096);
    s.host.read_all(flow);
    let sent = s.sent();
    assert_eq!((sent.len(), sent[0].win), (1, 4096));
}

#[test]
fn a_segment_beyond_the_window_is_answered_and_dropped() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.inject(ACK, 1 + 65_536 * 8, 1, 10, 65_535);
    s.expect(&[(ACK, 1, 1, 0)]);
    s.received(flow, 0);
    assert_eq!(s.host.engine.counters().drop_window, 1);
}

#[test]
fn the_link_may_fill_up_in_the_middle() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.send(flow, 3 * MSS);
    s.host.outbox.room = 2;
    assert!(!s.host.engine.transmit(s.now, &mut s.host.owner, &mut s.host.outbox));
    assert!(s.host.engine.has_output());
    s.host.outbox.room = usize::MAX;
    let mss = MSS as u32;
    s.expect(&[(ACK, 1, 1, MSS), (ACK, 1 + mss, 1, MSS), (PSH | ACK, 1 + 2 * mss, 1, MSS)]);
}

// --- loss --------------------------------------------------------------------------------------

#[test]
fn three_duplicates_bring_the_missing_segment() {
    let mut s = Script::with(Config { congestion: Algorithm::Reno, ..config(SERVER) });
    let flow = s.passive_open();
    s.host.send(flow, 5 * MSS);
    assert_eq!(s.sent().len(), 5);
    for _ in 0..2 {
        s.inject(ACK, 1, 1, 0, 65_535);
        s.expect(&[]);
    }
    s.inject(ACK, 1, 1, 0, 65_535);
    s.expect(&[(ACK, 1, 1, MSS)]);
    // RFC 6582: a partial acknowledgment brings the next hole at once.
    s.inject(ACK, 1, 1 + 2 * MSS as u32, 0, 65_535);
    s.expect(&[(ACK, 1 + 2 * MSS as u32, 1, MSS)]);
    s.inject(ACK, 1, 1 + 5 * MSS as u32, 0, 65_535);
    s.expect(&[]);
    assert_eq!(s.host.engine.counters().fast_retransmits, 1);
    assert_eq!(s.host.engine.info(flow).slow_start_threshold, 5 * MSS as u32 / 2);
}

#[test]
fn the_first_two_duplicates_let_new_data_go() {
    let mut config = config(SERVER);
    config.initial_window = 2 * MSS as u32;
    let mut s = Script::with(config);
    let flow = s.passive_open();
    s.host.send(flow, 10 * MSS);
    assert_eq!(s.sent().len(), 2);
    let mss = MSS as u32;
    s.inject(ACK, 1, 1, 0, 65_535);
    s.expect(&[(ACK, 1 + 2 * mss, 1, MSS)]);
    s.inject(ACK, 1, 1, 0, 65_535);
    s.expect(&[(ACK, 1 + 3 * mss, 1, MSS)]);
}

#[test]
fn a_timeout_sends_the_first_segment_again_and_doubles() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.send(flow, 3 * MSS);
    assert_eq!(s.sent().len(), 3);
    let mut wait = 200;
    for _ in 0..3 {
        s.wait_ms(wait - 20);
        s.expect(&[]);
        s.wait_ms(22);
        s.expect(&[(ACK, 1, 1, MSS)]);
        wait *= 2;
    }
    assert_eq!(s.host.engine.info(flow).congestion_window, MSS as u32);
    // An acknowledgment ends the doubling (RFC 6298 section 5.7) and slow start goes on from where it stopped.
    s.inject(ACK, 1, 1 + MSS as u32, 0, 65_535);
    assert_eq!(s.sent().len(), 2);
    assert_eq!(s.host.engine.info(flow).rto_us, 200_001, "the round trip and Linux's tcp_rto_min");
}

#[test]
fn a_peer_that_never_acknowledges_ends_the_flow() {
    let mut config = config(SERVER);
    config.data_retries = 3;
    let mut s = Script::with(config);
    let flow = s.passive_open();
    s.host.send(flow, 10);
    s.wait(Duration::from_secs(60));
    assert_eq!(s.host.owner.past[0].failed, Some(Failure::TimedOut));
    let _ = flow;
    assert_eq!(s.sent().len(), 4);
}

#[test]
fn a_closed_window_is_probed_for_as_long_as_the_peer_answers() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.send(flow, 100);
    s.expect(&[(PSH | ACK, 1, 1, 100)]);
    s.inject(ACK, 1, 101, 0, 0);
    s.host.send(flow, 100);
    s.expect(&[]);
    for _ in 0..30 {
        s.wait(Duration::from_secs(61));
        let probes = s.sent();
        assert!(!probes.is_empty(), "no probe");
        for probe in probes {
            assert_eq!((probe.seq, probe.len), (100, 0));
            s.inject(ACK, 1, 101, 0, 0);
        }
    }
    s.inject(ACK, 1, 101, 0, 1000);
    s.expect(&[(PSH | ACK, 101, 1, 100)]);
    assert!(s.host.engine.counters().window_probes >= 30);
}

#[test]
fn a_window_that_shrank_over_data_in_flight_stops_nothing() {
    // Found by seed 40 of the thousand: the timeout found the window too silly to send anything, and set no timer.
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.send(flow, 2 * MSS);
    assert_eq!(s.sent().len(), 2);
    s.inject(ACK, 1, 1, 0, 500);
    s.wait_ms(210);
    // RFC 9293 section 3.8.6: data that was sent already may go again, whatever the window is now.
    s.expect(&[(ACK, 1, 1, MSS)]);
    assert!(s.host.engine.next_deadline().is_some());
    assert_eq!(s.state(flow), State::Established);
}

#[test]
fn a_stale_ack_does_not_end_the_wait_for_a_usable_window() {
    // Found by seed 149: the acknowledgment of a probe cleared the persist timer, and nothing set it again.
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.send(flow, MSS);
    assert_eq!(s.sent().len(), 1);
    s.inject(ACK, 1, 1 + MSS as u32, 0, 1000);
    s.host.send(flow, 5 * MSS);
    s.expect(&[]);
    s.inject(ACK, 1, 1 + MSS as u32, 0, 1000);
    s.expect(&[]);
    s.wait_ms(210);
    s.expect(&[(ACK, 1 + MSS as u32, 1, 1000)]);
}

#[test]
fn after_a_timeout_acknowledgments_carry_the_highest_sequence_number() {
    // Found by seed 15: a SND.NXT that went back is one that the peer does not accept any more.
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.send(flow, 3 * MSS);
    assert_eq!(s.sent().len(), 3);
    s.wait_ms(210);
    s.expect(&[(ACK, 1, 1, MSS)]);
    s.inject(PSH | ACK, 1, 1, 10, 65_535);
    s.wait_ms(50);
    s.expect(&[(ACK, 1 + 3 * MSS as u32, 11, 0)]);
    let _ = flow;
}

// --- closing -----------------------------------------------------------------------------------

#[test]
fn fin_rides_on_the_last_data() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.send(flow, 100);
    s.host.engine.close(flow);
    s.expect(&[(FIN | PSH | ACK, 1, 1, 100)]);
    assert_eq!(s.state(flow), State::FinWait1);
    s.inject(ACK, 1, 102, 0, 65_535);
    assert!(s.host.owner.past[0].released, "the owner is free once the FIN is acknowledged");
    s.expect(&[]);
    s.inject(FIN | ACK, 1, 102, 0, 65_535);
    s.expect(&[(ACK, 102, 2, 0)]);
    assert_eq!(s.host.engine.time_wait_flows(), 1);
    s.wait(Duration::from_secs(51));
    assert_eq!(s.host.engine.flows(), 0);
    assert_eq!(s.host.engine.next_deadline(), None);
}

#[test]
fn half_close_still_receives() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.engine.shutdown(flow);
    s.expect(&[(FIN | ACK, 1, 1, 0)]);
    s.inject(ACK, 1, 2, 0, 65_535);
    // Found by the thousand seeds: an acknowledged FIN must not be sent a second time.
    s.expect(&[]);
    s.inject(PSH | ACK, 1, 2, 500, 65_535);
    s.received(flow, 500);
    s.inject(FIN | ACK, 501, 2, 0, 65_535);
    s.expect(&[(ACK, 2, 502, 0)]);
    assert_eq!(s.state(flow), State::TimeWait);
    s.wait(Duration::from_secs(51));
    assert_eq!(s.state(flow), State::Closed, "the owner still knows it");
    s.host.engine.close(flow);
    s.expect(&[]);
    assert!(s.host.owner.past[0].released);
    assert_eq!(s.host.engine.flows(), 0);
}

#[test]
fn the_peer_closes_first() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.inject(FIN | ACK, 1, 1, 0, 65_535);
    s.expect(&[(ACK, 1, 2, 0)]);
    assert!(s.host.owner.streams[&flow].remote_closed);
    s.host.send(flow, 10);
    s.host.engine.close(flow);
    s.expect(&[(FIN | PSH | ACK, 1, 2, 10)]);
    assert_eq!(s.state(flow), State::LastAck);
    s.inject(ACK, 2, 12, 0, 65_535);
    assert_eq!(s.host.engine.flows(), 0);
}

#[test]
fn both_close_at_once() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.engine.close(flow);
    s.expect(&[(FIN | ACK, 1, 1, 0)]);
    s.inject(FIN | ACK, 1, 1, 0, 65_535);
    s.expect(&[(ACK, 2, 2, 0)]);
    assert_eq!(s.state(flow), State::Closing);
    s.inject(ACK, 2, 2, 0, 65_535);
    assert_eq!(s.host.engine.time_wait_flows(), 1);
}

#[test]
fn a_lost_fin_is_sent_again() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.send(flow, 10);
    s.host.engine.close(flow);
    s.expect(&[(FIN | PSH | ACK, 1, 1, 10)]);
    s.wait_ms(210);
    s.expect(&[(FIN | PSH | ACK, 1, 1, 10)]);
}

#[test]
fn closing_with_unread_data_resets() {
    let mut s = Script::new();
    s.host.owner.hold = true;
    let flow = s.passive_open();
    s.inject(PSH | ACK, 1, 1, 100, 65_535);
    s.host.engine.close(flow);
    s.expect(&[(RST | ACK, 1, 101, 0)]);
    assert_eq!(s.host.engine.flows(), 0);
}

#[test]
fn data_after_close_resets() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.engine.close(flow);
    s.expect(&[(FIN | ACK, 1, 1, 0)]);
    s.inject(PSH | ACK, 1, 2, 10, 65_535);
    s.expect(&[(RST | ACK, 2, 1, 0)]);
    assert_eq!(s.host.engine.flows(), 0);
}

#[test]
fn abort_resets() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.send(flow, 100);
    s.host.engine.abort(flow);
    s.expect(&[(PSH | ACK, 1, 1, 100), (RST | ACK, 101, 1, 0)]);
    assert!(s.host.owner.past[0].released);
}

#[test]
fn an_orphan_does_not_stay_in_fin_wait_2_for_ever() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.engine.close(flow);
    s.expect(&[(FIN | ACK, 1, 1, 0)]);
    s.inject(ACK, 1, 2, 0, 65_535);
    s.wait(Duration::from_secs(61));
    assert_eq!(s.host.engine.flows(), 0);
}

// --- attacks and mistakes (RFC 5961, RFC 7323) ---------------------------------------------------

#[test]
fn only_the_exact_rst_resets() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.inject(RST, 50, 0, 0, 0);
    s.expect(&[(ACK, 1, 1, 0)]);
    s.inject(RST, 0x7000_0000, 0, 0, 0);
    s.expect(&[]);
    assert_eq!(s.state(flow), State::Established);
    s.inject(RST, 1, 0, 0, 0);
    assert_eq!(s.host.owner.past[0].failed, Some(Failure::Reset));
}

#[test]
fn a_syn_in_a_connection_is_challenged() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.inject(SYN, 50, 0, 0, 65_535);
    s.expect(&[(ACK, 1, 1, 0)]);
    assert_eq!(s.state(flow), State::Established);
}

#[test]
fn an_ack_of_what_was_never_sent_is_challenged() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.inject(PSH | ACK, 1, 5000, 10, 65_535);
    s.expect(&[(ACK, 1, 1, 0)]);
    s.received(flow, 0);
}

#[test]
fn challenges_are_rate_limited() {
    // RFC 5961 section 7: a flow challenges once in half a second, however often it is provoked.
    let mut s = Script::new();
    s.passive_open();
    let mut answers = 0;
    for _ in 0..3000 {
        s.inject(SYN, 50, 0, 0, 65_535);
        answers += s.sent().len();
        s.wait_ms(1);
    }
    assert!((5..=7).contains(&answers), "{answers} in three seconds");
}

#[test]
fn an_old_timestamp_is_dropped() {
    let mut s = Script::new();
    s.peer_timestamp = Some(1000);
    let flow = s.passive_open();
    s.peer_timestamp = Some(1010);
    s.inject(PSH | ACK, 1, 1, 10, 65_535);
    s.peer_timestamp = Some(999);
    s.inject(PSH | ACK, 11, 1, 10, 65_535);
    s.received(flow, 10);
    assert_eq!(s.host.engine.counters().drop_paws, 1);
    s.expect(&[(ACK, 1, 11, 0)]);
    assert_eq!(s.last_options.timestamps.unwrap().echo, 1010);
}

#[test]
fn sequence_numbers_wrap() {
    let mut s = Script::new();
    let flow = s.passive_open();
    const { assert!(PEER_ISS > u32::MAX - 100) };
    for piece in 0..10 {
        s.inject(ACK, 1 + piece * 10, 1, 10, 65_535);
    }
    s.received(flow, 100);
}

#[test]
fn keep_alive_probes_a_silent_peer_and_gives_up() {
    let mut s = Script::new();
    let flow = s.passive_open();
    let keep_alive =
        KeepAlive { idle: Duration::from_secs(10), interval: Duration::from_secs(10), probes: 9 };
    s.host.engine.set_keep_alive(s.now, flow, Some(keep_alive));
    s.wait(Duration::from_secs(11));
    s.expect(&[(ACK, 0, 1, 0)]);
    s.inject(ACK, 1, 1, 0, 65_535);
    for _ in 0..9 {
        s.wait_ms(10_005);
        assert_eq!(s.sent().len(), 1);
    }
    s.wait(Duration::from_secs(11));
    assert_eq!(s.host.owner.past[0].failed, Some(Failure::TimedOut));
}

// --- around TCP --------------------------------------------------------------------------------

#[test]
fn what_is_malformed_is_counted_by_reason() {
    let mut s = Script::new();
    let flow = s.passive_open();
    let engine = &mut s.host.engine;
    for frame in [&[0; 10][..], &[0; 60][..]] {
        engine.receive(s.now, frame, &mut s.host.owner);
    }
    let counters = *engine.counters();
    assert_eq!((counters.drop_malformed, counters.drop_ethertype), (1, 1));
    let _ = flow;
}

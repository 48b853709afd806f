//! Segment by segment, as `traces.rs`: how large a window we offer (RFC 9293 section 3.8.6, RFC 7323 section 2), and how it follows
//! what the owner consumes.

use crate::harness::script::{ACK, PSH, SYN, Script};
use crate::harness::{SERVER, config};
use overfly_engine::{Config, FlowId};

const MSS: usize = 1460;

/// A connection over a path of 100 ms that begins with 64 KiB and may have a mebibyte.
fn script() -> (Script, FlowId) {
    let config = Config { receive_window: 1 << 20, initial_receive_window: 1 << 16, ..config(SERVER) };
    let mut s = Script::with(config);
    s.options.window_scale = Some(7);
    let flow = s.passive_open_over(100);
    (s, flow)
}

/// The peer fills the window that it is offered, once a round trip, and gets what follows acknowledged. The last window, in bytes.
fn fill(s: &mut Script, flow: FlowId, rounds: usize) -> u32 {
    let shift = s.host.engine.info(flow).window_shift.1;
    let mut sequence = 1 + s.host.engine.info(flow).received;
    let mut window = s.host.engine.info(flow).receive_window;
    for _ in 0..rounds {
        let mut left = window as usize;
        while left >= MSS {
            s.inject(if left < 2 * MSS { PSH | ACK } else { ACK }, sequence, 1, MSS, 65_535);
            sequence += MSS as u32;
            left -= MSS;
        }
        s.wait_ms(100);
        if let Some(last) = s.sent().last() {
            window = u32::from(last.win) << shift;
        }
    }
    window
}

#[test]
fn the_window_of_a_syn_is_never_scaled() {
    // RFC 7323 section 2.2.
    let config = Config { receive_window: 1 << 20, initial_receive_window: 1 << 20, ..config(SERVER) };
    let mut s = Script::with(config);
    s.options.window_scale = Some(7);
    s.host.engine.listen(s.local, 8).unwrap();
    s.inject(SYN, 0, 0, 0, 64_000);
    let answer = s.sent().remove(0);
    assert_eq!((answer.win, answer.options.window_scale), (65_535, Some(5)));
    s.inject(ACK, 1, 1, 0, 1000);
    let (flow, _) = s.host.owner.incoming.pop_front().unwrap();
    assert_eq!(s.host.engine.info(flow).send_window, 1000 << 7);
    s.host.send(flow, 10);
    assert_eq!(u32::from(s.sent()[0].win) << 5, 1 << 20);
}

#[test]
fn a_peer_without_scaling_is_offered_what_sixteen_bits_hold() {
    let config = Config { receive_window: 1 << 20, initial_receive_window: 1 << 20, ..config(SERVER) };
    let mut s = Script::with(config);
    let flow = s.passive_open();
    s.host.send(flow, 10);
    assert_eq!(s.sent()[0].win, 65_535);
    assert_eq!(s.host.engine.info(flow).window_shift, (0, 0));
}

#[test]
fn a_window_that_holds_the_sender_back_grows_as_the_owner_consumes() {
    let (mut s, flow) = script();
    assert_eq!(s.host.engine.info(flow).receive_window, 1 << 16);
    let window = fill(&mut s, flow, 10);
    assert!(window >= 1 << 19, "{window}");
    assert!(fill(&mut s, flow, 10) <= 1 << 20, "the configuration's limit");
}

#[test]
fn a_slow_sender_needs_no_larger_window() {
    let (mut s, flow) = script();
    for round in 0..50 {
        s.inject(PSH | ACK, 1 + round * 5000, 1, 1000, 65_535);
        for piece in 1..5 {
            s.inject(PSH | ACK, 1 + round * 5000 + piece * 1000, 1, 1000, 65_535);
        }
        s.wait_ms(100);
        s.sent();
    }
    assert_eq!(s.host.engine.info(flow).receive_window, 1 << 16);
}

#[test]
fn an_owner_that_does_not_consume_gets_no_larger_window() {
    let (mut s, flow) = script();
    s.host.owner.hold = true;
    assert!(fill(&mut s, flow, 3) < MSS as u32);
    s.host.read_all(flow);
    let window = u32::from(s.sent().last().unwrap().win) << s.host.engine.info(flow).window_shift.1;
    assert!(window <= 1 << 17, "{window}");
}

#[test]
fn a_window_that_the_owner_fixed_stays() {
    let (mut s, flow) = script();
    s.host.engine.set_receive_window(flow, 1 << 16);
    let window = fill(&mut s, flow, 10);
    assert!(window <= 1 << 16, "{window}");
}

#[test]
fn the_right_edge_never_moves_left() {
    // RFC 9293 section 3.8.6: SHOULD NOT shrink, also when the owner asks for less.
    let (mut s, flow) = script();
    let edge = 1 + (1 << 16);
    s.host.engine.set_receive_window(flow, 4096);
    s.inject(PSH | ACK, 1, 1, 1000, 65_535);
    s.wait_ms(50);
    let sent = s.sent().remove(0);
    let shift = s.host.engine.info(flow).window_shift.1;
    assert!(sent.ack + (u32::from(sent.win) << shift) + (1 << shift) > edge, "{sent:?}");
}

#[test]
fn what_is_acknowledged_beyond_the_links_room_waits_for_the_next_look() {
    let mut s = Script::with(config(SERVER));
    s.host.engine.listen(s.local, 64).unwrap();
    let mut peers = Vec::new();
    for number in 0..8 {
        s.play(number);
        s.open(65_535);
        peers.push((s.peer, s.iss));
    }
    // Each sends two segments; there is room for twelve.
    s.host.engine.took(16, true, 12 * MSS as u32);
    for (peer, iss) in &peers {
        (s.peer, s.iss) = (*peer, *iss);
        s.inject(ACK, 1, 1, MSS, 65_535);
        s.inject(PSH | ACK, 1 + MSS as u32, 1, MSS, 65_535);
    }
    // More than half of it is acknowledged by the fourth acknowledgment.
    assert_eq!(s.sent().len(), 4);
    assert!(s.host.engine.holds_back() && s.host.engine.has_output());
    assert!(s.sent().is_empty());
    s.host.engine.took(16, true, 12 * MSS as u32);
    assert!(!s.host.engine.holds_back());
    assert_eq!(s.sent().len(), 4);
    // There is nothing left to hold back.
    assert!(!s.host.engine.holds_back());
    s.inject(ACK, 1 + 2 * MSS as u32, 1, MSS, 65_535);
    s.inject(PSH | ACK, 1 + 3 * MSS as u32, 1, MSS, 65_535);
    assert!(s.sent().is_empty() && s.host.engine.holds_back());
    // Some were taken, and more are there: as many can come again.
    s.host.engine.took(1, false, 12 * MSS as u32);
    assert!(s.sent().is_empty());
    s.host.engine.took(8, false, 12 * MSS as u32);
    assert_eq!(s.sent().len(), 1);
}

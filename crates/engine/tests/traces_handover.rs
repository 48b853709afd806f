//! Connections that leave the engine: what is said of them, and the silence after.

use crate::harness::script::{ACK, FIN, PEER_ISS, PSH, RST, SYN, Script};
use crate::harness::{SERVER, config};
use overfly_engine::{Config, FlowId, Handover, SentFin, State};
use overfly_wire::tcp::Options;

fn export(s: &Script, flow: FlowId) -> Handover {
    s.host.engine.export(s.now, flow).expect("movable")
}

/// The owner forgets it too: it hears no more of it.
fn forget(s: &mut Script, flow: FlowId) {
    s.host.engine.forget(flow);
    s.host.owner.streams.remove(&flow);
}

#[test]
fn what_was_sent_and_what_was_not() {
    let mut s = Script::new();
    s.options = Options { mss: Some(1000), window_scale: Some(7), sack_permitted: true, ..Options::NONE };
    s.host.engine.listen(s.local, 8).unwrap();
    s.inject(SYN, 0, 0, 0, 3000);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
    let ours = s.last_options.window_scale.unwrap();
    s.inject(ACK, 1, 1, 0, 16);
    let (flow, _) = s.host.owner.incoming.pop_front().unwrap();
    s.host.engine.accepted(flow);
    s.host.send(flow, 5000);
    // 16 << 7 is the window.
    s.expect(&[(ACK, 1, 1, 1000), (ACK, 1001, 1, 1000)]);
    s.inject(ACK, 1, 1001, 0, 8);
    s.inject(PSH | ACK, 1, 1001, 10, 8);
    let state = export(&s, flow);
    assert_eq!((state.local, state.remote), (s.local.into(), s.peer.into()));
    assert_eq!(state.send_una, s.iss.wrapping_add(1001));
    assert_eq!((state.sent, state.unsent), (1000, 3000));
    assert_eq!((state.send_window, state.send_window_max), (8 << 7, 3000));
    assert_eq!(state.window_sequence, PEER_ISS.wrapping_add(1));
    assert_eq!(state.receive_next, PEER_ISS.wrapping_add(11));
    assert_eq!(state.receive_window, s.host.engine.info(flow).receive_window);
    assert_eq!((state.mss, state.window_shift, state.sack), (1000, Some((7, ours)), true));
    assert_eq!((state.timestamp, state.sent_fin, state.received_fin), (None, SentFin::None, false));
}

#[test]
fn options_that_were_not_agreed_on_are_not_there() {
    let mut s = Script::new();
    s.peer_timestamp = Some(77);
    let flow = s.passive_open();
    let state = export(&s, flow);
    assert_eq!((state.window_shift, state.sack, state.mss), (None, false, 1460));
    s.host.send(flow, 10);
    s.expect(&[(PSH | ACK, 1, 1, 10)]);
    let last = s.last_options.timestamps.unwrap().value;
    s.wait_ms(100);
    let later = export(&s, flow).timestamp.unwrap();
    assert!((90..=110).contains(&later.wrapping_sub(last)), "{later} after {last}");
}

#[test]
fn fins_are_told_apart_from_data() {
    let mut s = Script::new();
    let flow = s.passive_open();
    let una = s.iss.wrapping_add(1);
    s.host.send(flow, 100);
    s.host.engine.shutdown(flow);
    let state = export(&s, flow);
    assert_eq!((state.sent_fin, state.sent, state.unsent), (SentFin::Wanted, 0, 100));
    s.expect(&[(FIN | PSH | ACK, 1, 1, 100)]);
    assert_eq!(s.state(flow), State::FinWait1);
    let state = export(&s, flow);
    assert_eq!((state.sent_fin, state.send_una, state.sent, state.unsent), (SentFin::Sent, una, 100, 0));
    s.inject(ACK, 1, 51, 0, 65_535);
    let state = export(&s, flow);
    assert_eq!((state.sent_fin, state.send_una, state.sent), (SentFin::Sent, una.wrapping_add(50), 50));
    s.inject(ACK, 1, 102, 0, 65_535);
    assert_eq!(s.state(flow), State::FinWait2);
    let state = export(&s, flow);
    assert_eq!(
        (state.sent_fin, state.send_una, state.sent),
        (SentFin::Acknowledged, una.wrapping_add(100), 0)
    );
    s.inject(FIN | ACK, 1, 102, 0, 65_535);
    assert_eq!(s.state(flow), State::TimeWait);
    let state = export(&s, flow);
    assert_eq!((state.sent_fin, state.send_una), (SentFin::Acknowledged, una.wrapping_add(100)));
    assert_eq!((state.receive_next, state.received_fin), (PEER_ISS.wrapping_add(1), true));
    forget(&mut s, flow);
    assert_eq!(s.host.engine.time_wait_flows(), 0);
}

#[test]
fn the_peers_fin_is_no_data_either() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.inject(FIN | PSH | ACK, 1, 1, 20, 65_535);
    assert_eq!(s.state(flow), State::CloseWait);
    let state = export(&s, flow);
    assert_eq!((state.receive_next, state.received_fin), (PEER_ISS.wrapping_add(21), true));
    assert_eq!(state.sent_fin, SentFin::None);
    s.host.engine.abort(flow);
    assert_eq!(s.host.engine.export(s.now, flow), None, "a RST is due");
}

#[test]
fn a_connection_that_left_is_not_reset_and_its_tuple_can_come_back() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.send(flow, 1000);
    forget(&mut s, flow);
    assert_eq!(s.host.engine.flows(), 0);
    s.expect(&[]);
    s.inject(PSH | ACK, 1, 1, 10, 65_535);
    s.inject(FIN | ACK, 11, 1, 0, 65_535);
    s.expect(&[]);
    assert_eq!(s.host.engine.counters().drop_departed, 2);
    s.wait_ms(10_000);
    s.expect(&[]);
    // The peer ends it with the kernel, and opens another one.
    s.inject(SYN, 0, 0, 0, 65_535);
    let answer = s.sent();
    assert_eq!((answer.len(), answer[0].flags), (1, SYN | ACK));
    s.inject(ACK, 1, answer[0].seq.wrapping_add(1), 0, 65_535);
    assert_eq!(s.host.engine.flows(), 1);
    assert!(s.host.owner.incoming.pop_front().is_some());
}

#[test]
fn a_connection_that_nobody_accepted_leaves_its_place_in_the_backlog() {
    let mut s = Script::new();
    s.host.engine.listen(s.local, 1).unwrap();
    for number in 0..3 {
        s.play(number);
        s.inject(SYN, 0, 0, 0, 65_535);
        assert_eq!(s.sent().len(), 1, "{number}");
        s.inject(ACK, 1, 1, 0, 65_535);
        let (flow, _) = s.host.owner.incoming.pop_front().expect("an incoming flow");
        forget(&mut s, flow);
    }
}

#[test]
fn so_many_that_left_are_remembered_the_latest_of_them() {
    let mut s = Script::with(Config { max_departed: 2, ..config(SERVER) });
    s.host.engine.listen(s.local, 8).unwrap();
    // The first leaves twice: its second departure counts.
    for number in [0, 1, 0, 2] {
        s.play(number);
        let flow = s.open(65_535);
        forget(&mut s, flow);
    }
    for (number, answered) in [(1, true), (0, false), (2, false)] {
        s.play(number);
        s.inject(PSH | ACK, 1, 1, 10, 65_535);
        assert_eq!(!s.frames().is_empty(), answered, "connection {number}");
    }
}

#[test]
fn one_that_is_renounced_says_so_at_once() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.send(flow, 3000);
    s.expect(&[(ACK, 1, 1, 1460), (ACK, 1461, 1, 1460), (PSH | ACK, 2921, 1, 80)]);
    s.inject(PSH | ACK, 1, 1, 10, 65_535);
    s.host.send(flow, 100);
    assert!(s.host.engine.renounce(s.now, flow));
    s.host.owner.streams.remove(&flow);
    s.expect(&[(RST | ACK, 3001, 11, 0)]);
    // What comes still is nobody's.
    s.inject(ACK, 11, 1461, 0, 65_535);
    s.expect(&[]);
}

#[test]
fn no_more_are_renounced_at_once_than_answers_may_wait() {
    let mut s = Script::with(Config { max_answers: 1, ..config(SERVER) });
    let one = s.passive_open();
    s.play(1);
    let other = s.open(65_535);
    assert!(s.host.engine.renounce(s.now, one));
    assert!(!s.host.engine.renounce(s.now, other));
    assert_eq!(s.state(other), State::Established);
}

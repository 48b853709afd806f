//! Segment by segment: what a second reading of the documents found. Each line is a segment:
//! (flags, sequence number, acknowledgment, payload), numbers relative to the SYNs.

use std::net::SocketAddrV4;
use std::time::Duration;

use crate::harness::script::{ACK, FIN, PSH, RST, SYN, Script};
use crate::harness::{CLIENT, Faults, Network, SERVER, config};
use overfly_engine::{Failure, State};

const MSS: usize = 1460;

// --- simultaneous open (RFC 9293 section 3.5, figure 7) --------------------------------------------------

#[test]
fn two_syn_and_ack_that_cross_end_the_handshake() {
    let mut s = Script::new();
    let flow = s.connect();
    s.expect(&[(SYN, 0, 0, 0)]);
    s.inject(SYN, 0, 0, 0, 65_535);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
    s.options.window_scale = Some(7);
    s.inject(SYN | ACK, 0, 1, 0, 1000);
    assert_eq!(s.state(flow), State::Established);
    assert_eq!(s.host.engine.info(flow).send_window, 1000, "not scaled");
    s.expect(&[(ACK, 1, 1, 0)]);
    s.inject(PSH | ACK, 1, 1, 100, 65_535);
    s.received(flow, 100);
}

#[test]
fn two_engines_that_open_to_each_other_at_once() {
    let mut network = Network::new(1);
    let faults = Faults { delay_us: 1000, ..Faults::default() };
    network.set_faults(faults);
    let (client, server) = (SocketAddrV4::new(CLIENT, 4000), SocketAddrV4::new(SERVER, 5000));
    let a = network.client.connect(network.now, client, server);
    let b = network.server.connect(network.now, server, client);
    network.client.send(a, 3000);
    network.server.send(b, 5000);
    network.run_for(Duration::from_secs(2));
    assert!(network.carried(true).frames < 40, "{:?}: a storm", network.carried(true));
    assert_eq!(network.client.engine.info(a).state, State::Established);
    assert_eq!(network.client.owner.streams[&a].received.len(), 5000);
    assert_eq!(network.server.owner.streams[&b].received.len(), 3000);
}

#[test]
fn what_was_promised_goes_when_a_simultaneous_open_ends() {
    for shut in [false, true] {
        let mut s = Script::new();
        let flow = s.connect();
        s.expect(&[(SYN, 0, 0, 0)]);
        s.inject(SYN, 0, 0, 0, 65_535);
        if shut {
            s.host.engine.shutdown(flow);
        } else {
            s.host.send(flow, 100);
        }
        s.expect(&[(SYN | ACK, 0, 1, 0)]);
        s.inject(ACK, 1, 1, 0, 65_535);
        s.expect(&[if shut { (FIN | ACK, 1, 1, 0) } else { (PSH | ACK, 1, 1, 100) }]);
    }
}

// --- window scale (RFC 7323 section 2.2) -----------------------------------------------------------------

#[test]
fn a_small_receive_window_does_not_lose_the_scale_of_the_peers() {
    let mut config = config(SERVER);
    config.receive_window = 32_768;
    let mut s = Script::with(config);
    s.options.window_scale = Some(7);
    s.host.engine.listen(s.local, 8).unwrap();
    s.inject(SYN, 0, 0, 0, 65_535);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
    let answered = s.last_options.window_scale;
    s.inject(ACK, 1, 1, 0, 1000);
    let (flow, _) = s.host.owner.incoming.pop_front().unwrap();
    let scaled = if answered.is_some() { 1000 << 7 } else { 1000 };
    assert_eq!(s.host.engine.info(flow).send_window, scaled, "both scale, or none does: {answered:?}");
}

#[test]
fn a_window_smaller_than_its_scale_can_tell_is_not_closed() {
    let mut config = config(SERVER);
    config.receive_window = 1 << 30;
    config.initial_receive_window = 4096;
    let mut s = Script::with(config);
    s.options.window_scale = Some(7);
    s.host.engine.listen(s.local, 8).unwrap();
    s.inject(SYN, 0, 0, 0, 65_535);
    s.expect(&[(SYN | ACK, 0, 1, 0)]);
    s.inject(PSH | ACK, 1, 1, 1000, 1000);
    s.wait_ms(100);
    let sent = s.sent();
    assert!(sent[0].win > 0, "the owner holds nothing: {sent:?}");
}

// --- the owner's timeout (TCP_USER_TIMEOUT) --------------------------------------------------------------

#[test]
fn a_slow_handshake_does_not_count_against_data_sent_much_later() {
    let mut s = Script::new();
    let flow = s.connect();
    s.host.engine.set_user_timeout(flow, Duration::from_secs(10));
    s.expect(&[(SYN, 0, 0, 0)]);
    s.expect_after(1000, &[(SYN, 0, 0, 0)]);
    s.inject(SYN | ACK, 0, 1, 0, 65_535);
    s.expect(&[(ACK, 1, 1, 0)]);
    s.wait(Duration::from_secs(60));
    s.host.send(flow, 100);
    s.expect(&[(PSH | ACK, 1, 1, 100)]);
    s.wait_ms(3100);
    s.expect(&[(PSH | ACK, 1, 1, 100)]);
    assert!(s.host.owner.streams.contains_key(&flow), "three seconds are not ten");
}

#[test]
fn a_closed_window_is_probed_also_under_an_owners_timeout() {
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.engine.set_user_timeout(flow, Duration::from_secs(30));
    s.host.send(flow, 100);
    s.expect(&[(PSH | ACK, 1, 1, 100)]);
    s.inject(ACK, 1, 101, 0, 0);
    s.host.send(flow, 100);
    s.expect(&[]);
    s.wait_ms(6000);
    assert!(s.sent().len() >= 4, "each after twice the time");
    s.wait(Duration::from_secs(30));
    assert_eq!(s.host.owner.past[0].failed, Some(Failure::TimedOut));
}

// --- what the owner set ----------------------------------------------------------------------------------

#[test]
fn a_window_that_the_owner_set_is_not_tuned() {
    let mut config = config(SERVER);
    config.receive_window = 4 << 20;
    let mut s = Script::with(config);
    s.options.window_scale = Some(7);
    s.host.engine.listen(s.local, 8).unwrap();
    s.host.owner.hold = true;
    let flow = s.open(60_000);
    let mut at = 1;
    let mut feed = |s: &mut Script, segments: usize| {
        for _ in 0..segments {
            s.inject(ACK, at, 1, MSS, 60_000);
            at += MSS as u32;
        }
        s.sent();
        s.wait_ms(20);
        s.host.read_all(flow);
        s.sent();
    };
    for _ in 0..4 {
        feed(&mut s, 40);
    }
    s.host.engine.set_receive_window(flow, 65_536);
    for _ in 0..10 {
        feed(&mut s, 40);
    }
    let window = s.host.engine.info(flow).receive_window;
    assert!(window <= 65_536 * 4, "{window} bytes");
    feed(&mut s, 1);
    s.inject(ACK, at, 1, MSS, 60_000);
    s.wait_ms(100);
    assert!(s.host.engine.info(flow).receive_window <= 65_536, "never more than the owner said");
}

#[test]
fn connections_closed_unaccepted_give_their_places_back() {
    let mut s = Script::new();
    s.host.engine.listen(s.local, 2).unwrap();
    for port in 0..6 {
        s.peer = SocketAddrV4::new(CLIENT, 41_000 + port);
        s.inject(SYN, 0, 0, 0, 65_535);
        s.expect(&[(SYN | ACK, 0, 1, 0)]);
        s.inject(ACK, 1, 1, 0, 65_535);
        let (flow, _) = s.host.owner.incoming.pop_front().expect("the backlog has room");
        s.host.engine.close(flow);
        s.expect(&[(FIN | ACK, 1, 1, 0)]);
        s.inject(ACK, 1, 2, 0, 65_535);
    }
}

#[test]
fn a_link_that_was_full_at_the_end_of_a_flow_does_not_stall_the_others() {
    // A window probe waits for room on the link while the flow ends.
    let mut s = Script::new();
    let flow = s.passive_open();
    s.inject(FIN | ACK, 1, 1, 0, 65_535);
    s.expect(&[(ACK, 1, 2, 0)]);
    s.host.send(flow, 100);
    s.expect(&[(PSH | ACK, 1, 2, 100)]);
    s.inject(ACK, 2, 101, 0, 0);
    s.host.send(flow, 100);
    s.host.engine.shutdown(flow);
    s.expect(&[]);
    s.host.outbox.room = 0;
    s.wait_ms(400);
    s.inject(ACK, 2, 101, 0, 1000);
    s.host.outbox.room = 1;
    assert_eq!(s.sent().len(), 1, "the data and the FIN; no room for the probe");
    assert_eq!(s.state(flow), State::LastAck);
    s.host.outbox.room = usize::MAX;
    s.inject(ACK, 2, 202, 0, 1000);
    s.expect(&[]);
    assert_eq!(s.state(flow), State::Closed);
}

#[test]
fn a_scan_of_the_link_leaves_nothing_behind() {
    let mut s = Script::new();
    for last in 3..60 {
        let peer = SocketAddrV4::new([10, 77, 0, last].into(), 80);
        let flow = s.host.connect(s.now, SocketAddrV4::new(SERVER, 1000 + u16::from(last)), peer);
        s.host.engine.close(flow);
    }
    s.frames();
    assert_eq!(s.host.engine.flows(), 0);
    // Each next hop is remembered for a second, so that nobody is asked for more often.
    s.wait_ms(1000);
    assert_eq!((s.frames().len(), s.host.engine.next_deadline()), (0, None));
}

// --- an owner that neither reads nor writes any more ------------------------------------------------------

#[test]
fn data_that_nobody_wants_resets_with_a_fin_behind_it_too() {
    // Found by `xtask compare-calls`: with the FIN taken the flow was in TIME-WAIT, and the peer never heard.
    for flags in [PSH | ACK, FIN | PSH | ACK] {
        let mut s = Script::new();
        let flow = s.passive_open();
        s.host.engine.shutdown(flow);
        s.expect(&[(FIN | ACK, 1, 1, 0)]);
        s.inject(ACK, 1, 2, 0, 65_535);
        assert_eq!(s.state(flow), State::FinWait2);
        s.host.owner.unwanted = true;
        s.inject(flags, 1, 2, 100, 65_535);
        s.expect(&[(RST | ACK, 2, 1, 0)]);
        let stream = &s.host.owner.past[0];
        assert_eq!((stream.remote_closed, stream.failed, s.host.engine.flows()), (false, None, 0));
    }
}

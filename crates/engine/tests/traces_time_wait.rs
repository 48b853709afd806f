//! Segment by segment, as `traces.rs`: TIME-WAIT, what it answers, and whom it gives way to (RFC 9293, RFC 1337, RFC 6191).

use std::time::Duration;

use crate::harness::script::{ACK, FIN, RST, SYN, Script};
use crate::harness::{SERVER, config};
use overfly_engine::{Config, FlowId, State};

fn time_wait(s: &mut Script) -> FlowId {
    let flow = s.passive_open();
    s.host.engine.close(flow);
    s.expect(&[(FIN | ACK, 1, 1, 0)]);
    s.inject(FIN | ACK, 1, 2, 0, 65_535);
    s.expect(&[(ACK, 2, 2, 0)]);
    assert_eq!(s.host.engine.time_wait_flows(), 1);
    flow
}

#[test]
fn time_wait_answers_the_fin_again_and_ends_by_an_exact_rst_only() {
    let mut s = Script::new();
    time_wait(&mut s);
    s.inject(FIN | ACK, 1, 2, 0, 65_535);
    s.expect(&[(ACK, 2, 2, 0)]);
    s.inject(RST, 3, 0, 0, 0);
    assert_eq!(s.host.engine.time_wait_flows(), 1, "a stray (RFC 1337)");
    s.inject(RST, 2, 0, 0, 0);
    assert_eq!(s.host.engine.flows(), 0, "RFC 9293 section 3.10.7.4");
}

#[test]
fn a_peer_whose_clock_began_anew_gets_through_time_wait() {
    // Found by the quickstart: a port that the client's kernel had used shortly before, with timestamps far ahead of the
    // generator's, could not connect for as long as TIME-WAIT lasted.
    // However many do so at once: no challenge is left here (a limit of one a second is none or one).
    let mut s = Script::with(Config { challenge_acks_per_s: 1, ..config(SERVER) });
    s.peer_timestamp = Some(1_000_000);
    time_wait(&mut s);
    s.peer_timestamp = Some(1000);
    s.inject(SYN, 50_000, 0, 0, 65_535);
    s.expect(&[(ACK, 2, 2, 0)]);
    // That acknowledges nothing that the peer sent: it answers with RST, and tries again.
    s.inject(RST, 2, 0, 0, 0);
    s.inject(SYN, 50_000, 0, 0, 65_535);
    s.expect(&[(SYN | ACK, 0, 50_001, 0)]);
}

#[test]
fn who_has_waited_in_time_wait_with_timestamps_says_for_how_long() {
    let has_waited = |s: &Script| {
        let waited = s.host.engine.has_waited(s.now, s.local.into(), s.peer.into())?;
        // The clock has ticks, and a timer is never early.
        Some((waited.as_millis() + 10) / 20 * 20)
    };
    let mut s = Script::new();
    s.peer_timestamp = Some(1000);
    assert_eq!(has_waited(&s), None, "there is none");
    time_wait(&mut s);
    assert_eq!(has_waited(&s), Some(0));
    s.wait(Duration::from_millis(40));
    assert_eq!(has_waited(&s), Some(40));
    s.wait(Duration::from_secs(1));
    assert_eq!(has_waited(&s), Some(1040));
    s.peer_timestamp = Some(2000);
    s.inject(FIN | ACK, 1, 2, 0, 65_535);
    s.expect(&[(ACK, 2, 2, 0)]);
    assert_eq!(has_waited(&s), Some(0), "the peer has not heard the acknowledgment yet");
    let mut s = Script::new();
    s.options.timestamps = None;
    time_wait(&mut s);
    s.wait(Duration::from_secs(2));
    assert_eq!(has_waited(&s), None, "nothing tells old segments from new ones");
}

#[test]
fn time_wait_gives_way_to_a_newer_syn_only() {
    let mut s = Script::new();
    time_wait(&mut s);
    s.inject(SYN, 0, 0, 0, 65_535);
    assert_eq!(s.host.engine.time_wait_flows(), 1, "an old SYN");
    s.sent();
    let old_iss = s.iss;
    s.inject(SYN, 100, 0, 0, 65_535);
    s.expect(&[(SYN | ACK, 0, 101, 0)]);
    assert_eq!(s.iss, old_iss.wrapping_add(2 + 65_537), "beyond the old numbers");
    assert_eq!((s.host.engine.time_wait_flows(), s.host.engine.flows()), (0, 1));
}

#[test]
fn time_wait_gives_way_while_its_owner_still_holds_on() {
    // nginx's lingering close: it shut down, and has not yet closed. Connections failed until it did.
    let mut s = Script::new();
    let flow = s.passive_open();
    s.host.engine.shutdown(flow);
    s.expect(&[(FIN | ACK, 1, 1, 0)]);
    s.inject(FIN | ACK, 1, 2, 0, 65_535);
    s.expect(&[(ACK, 2, 2, 0)]);
    s.inject(SYN, 100, 0, 0, 65_535);
    s.expect(&[(SYN | ACK, 0, 101, 0)]);
    assert_eq!(s.state(flow), State::Closed);
    s.host.engine.close(flow);
    s.expect(&[]);
    assert!(s.host.owner.past[0].released);
    assert_eq!(s.host.engine.flows(), 1);
}

#[test]
fn time_wait_is_bounded() {
    let mut config = config(SERVER);
    config.max_time_wait = 0;
    let mut s = Script::with(config);
    let flow = s.passive_open();
    s.host.engine.close(flow);
    s.expect(&[(FIN | ACK, 1, 1, 0)]);
    s.inject(FIN | ACK, 1, 2, 0, 65_535);
    s.expect(&[(ACK, 2, 2, 0)]);
    assert_eq!(s.host.engine.flows(), 0);
    assert_eq!(s.host.engine.counters().time_wait_skips, 1);
}

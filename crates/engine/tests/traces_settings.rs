//! Segment by segment, as `traces.rs`: what an administrator sets, by sysctl or for a route.

use std::time::Duration;

use crate::harness::script::{ACK, PSH, SYN, Script, Seg};
use crate::harness::{CLIENT, SERVER, config};
use overfly_engine::{Algorithm, Config, Prefix, Route, State};
use overfly_wire::tcp::{Options, Timestamps};

const MSS: usize = 1460;
const FULL: u32 = MSS as u32;

/// What a peer offers that offers everything.
const EVERYTHING: Options = Options {
    mss: Some(1460),
    window_scale: Some(7),
    sack_permitted: true,
    timestamps: Some(Timestamps { value: 4000, echo: 0 }),
    ..Options::NONE
};

/// The same without timestamps, which a script would have to send with everything.
const MOST: Options = Options { timestamps: None, ..EVERYTHING };

fn only(s: &mut Script) -> Seg {
    let mut sent = s.sent();
    assert_eq!(sent.len(), 1, "{sent:?}");
    sent.remove(0)
}

/// The SYN of an active open, and the answer to a SYN that offers everything.
fn offers(config: &Config) -> [Options; 2] {
    let mut active = Script::with(config.clone());
    active.connect();
    let mut passive = Script::with(config.clone());
    let local = passive.local;
    passive.host.engine.listen(local, 4).unwrap();
    passive.options = EVERYTHING;
    passive.inject(SYN, 0, 0, 0, 65_535);
    [only(&mut active).options, only(&mut passive).options]
}

#[test]
fn options_that_are_off_are_neither_offered_nor_agreed_to() {
    for options in offers(&config(SERVER)) {
        assert!(options.sack_permitted && options.timestamps.is_some() && options.window_scale.is_some());
    }
    for options in offers(&Config { timestamps: false, ..config(SERVER) }) {
        assert!(options.sack_permitted && options.timestamps.is_none() && options.window_scale.is_some());
    }
    for options in offers(&Config { sack: false, ..config(SERVER) }) {
        assert!(!options.sack_permitted && options.timestamps.is_some() && options.window_scale.is_some());
    }
    for options in offers(&Config { window_scaling: false, window_scale: 7, ..config(SERVER) }) {
        assert!(options.sack_permitted && options.timestamps.is_some() && options.window_scale.is_none());
    }
}

#[test]
fn without_scaling_windows_are_as_they_stand() {
    let mut s = Script::with(Config { window_scaling: false, ..config(SERVER) });
    s.options = MOST;
    s.win = 3;
    let flow = s.passive_open_over(1);
    // The peer's field means three bytes, and not 3 << 7.
    s.host.send(flow, 100);
    s.host.engine.set_no_delay(flow, true);
    assert_eq!(only(&mut s).len, 3);
}

#[test]
fn a_flow_that_was_idle_goes_on_as_before_if_that_is_wanted() {
    for restarts in [true, false] {
        let mut s = Script::with(Config { slow_start_after_idle: restarts, ..config(SERVER) });
        s.options = MOST;
        let flow = s.passive_open();
        s.host.send(flow, 10 * 1460);
        s.sent();
        s.ack(1 + 10 * 1460);
        assert_eq!(s.host.engine.info(flow).congestion_window, 18 * 1460);
        s.wait(Duration::from_secs(60));
        s.host.send(flow, 20 * 1460);
        assert_eq!(s.sent().len(), if restarts { 10 } else { 18 });
    }
}

#[test]
fn what_arrived_twice_is_not_reported_if_that_is_not_wanted() {
    for reports in [true, false] {
        let mut s = Script::with(Config { duplicate_sack: reports, ..config(SERVER) });
        s.options = MOST;
        s.passive_open();
        s.inject(PSH | ACK, 1, 1, 10, 65_535);
        s.wait_ms(50);
        s.sent();
        s.inject(PSH | ACK, 1, 1, 10, 65_535);
        assert_eq!(only(&mut s).blocks(), if reports { vec![(1, 11)] } else { vec![] });
    }
}

#[test]
fn a_syn_goes_again_each_second_before_the_time_doubles() {
    let mut s = Script::with(Config { syn_linear_timeouts: 4, syn_retries: 2, ..config(SERVER) });
    s.connect();
    s.sent();
    let began = s.now;
    let mut times = Vec::new();
    for _ in 0..200 {
        s.wait_ms(100);
        times.extend(s.sent().iter().map(|_| (s.now - began).as_secs()));
    }
    // tcp_retransmit_timer() in Linux's net/ipv4/tcp_timer.c.
    assert_eq!(times, [1, 2, 3, 4, 5]);
    assert_eq!(s.host.engine.flows(), 0);
}

#[test]
fn a_flow_may_have_another_number_of_syns_than_is_configured() {
    // As often as a kernel was seen to with TCP_SYNCNT; 0 is as configured.
    for (linear, own, again) in [(0, 1, 1), (0, 2, 2), (4, 1, 2), (4, 2, 5), (0, 0, 4)] {
        let mut s = Script::with(Config { syn_linear_timeouts: linear, syn_retries: 4, ..config(SERVER) });
        let flow = s.connect();
        s.host.engine.set_syn_retries(flow, own);
        assert_eq!(s.sent().len(), 1);
        let mut count = 0;
        for _ in 0..100 {
            s.wait(Duration::from_secs(1));
            count += s.sent().len();
        }
        assert_eq!((count, s.host.engine.flows()), (again, 0), "{linear} {own}");
    }
}

#[test]
fn an_answer_to_a_syn_has_retries_of_its_own() {
    let mut s = Script::with(Config { syn_retries: 6, syn_ack_retries: 2, ..config(SERVER) });
    let local = s.local;
    s.host.engine.listen(local, 4).unwrap();
    s.inject(SYN, 0, 0, 0, 65_535);
    s.sent();
    let mut again = 0;
    for _ in 0..20 {
        s.wait(Duration::from_secs(1));
        again += s.sent().len();
    }
    assert_eq!((again, s.host.engine.flows()), (2, 0));
}

#[test]
fn a_path_is_suspected_after_as_many_timeouts_as_were_set() {
    for timeouts in [1, 2, 5] {
        let black_hole = Config { mtu_probing: true, black_hole_timeouts: timeouts, ..config(SERVER) };
        let mut s = Script::with(black_hole);
        let flow = s.passive_open();
        s.host.send(flow, 4 * MSS);
        s.sent();
        let mut full = 0;
        while full < 20 {
            s.wait(Duration::from_secs(70));
            let sent = s.sent();
            if sent.iter().any(|segment| segment.len < MSS) {
                break;
            }
            full += u8::from(!sent.is_empty());
        }
        assert!(full < 20, "never smaller");
        assert_eq!(s.host.engine.info(flow).retries.min(timeouts), timeouts);
    }
}

#[test]
fn ipv6_has_a_hop_limit_of_its_own() {
    let limits = Config { hop_limit: 33, hop_limit6: 44, ..config(SERVER) };
    let mut s = Script::with(limits.clone());
    s.connect();
    s.sent();
    assert_eq!(s.frames[0][14 + 8], 33);
    let mut s = Script::six_with(limits);
    s.connect();
    s.sent();
    assert_eq!(s.frames[0][14 + 7], 44);
}

// --- routes (ip-route(8)) ------------------------------------------------------------------------

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn with_route(change: impl FnOnce(&mut Route)) -> Config {
    let to_client = Prefix { address: CLIENT.into(), len: 24 };
    let mut route = Route::new(to_client);
    change(&mut route);
    // Neither what is less exact counts, nor what leads elsewhere.
    let other = Route { initial_window: 3, advertised_segment: 700, ..Route::new(prefix("0.0.0.0/0")) };
    let far = Route { initial_window: 4, advertised_segment: 701, ..Route::new(prefix("203.0.113.0/30")) };
    let six = Route { initial_window: 5, advertised_segment: 702, ..Route::new(prefix("::/0")) };
    Config { routes: vec![other, route, far, six], ..config(SERVER) }
}

#[test]
fn a_route_says_how_much_goes_at_first() {
    for (segments, expected) in [(25, 25), (1, 1), (0, 10)] {
        let mut s = Script::with(with_route(|route| route.initial_window = segments));
        let flow = s.passive_open();
        s.host.send(flow, 40 * MSS);
        assert_eq!(s.sent().len(), expected);
        // After a pause, too.
        let mut acknowledged = expected as u32;
        while acknowledged < 40 {
            s.ack(1 + acknowledged * FULL);
            acknowledged += s.sent().len() as u32;
        }
        s.ack(1 + 40 * FULL);
        s.wait(Duration::from_secs(30));
        s.host.send(flow, 40 * MSS);
        assert_eq!(s.sent().len(), expected);
    }
}

#[test]
fn a_route_says_how_large_the_first_window_is() {
    let mut s = Script::with(with_route(|route| route.initial_receive_window = 7));
    s.connect();
    assert_eq!(only(&mut s).win, 7 * 1460);
}

#[test]
fn a_route_says_which_segments_are_asked_for() {
    let config = with_route(|route| route.advertised_segment = 1000);
    for options in offers(&config) {
        assert_eq!(options.mss, Some(1000));
    }
    // Ours to the peer may be longer.
    let mut s = Script::with(config);
    let flow = s.passive_open();
    s.host.send(flow, MSS);
    assert_eq!(only(&mut s).len, MSS);
    // No more than the link takes.
    for options in offers(&with_route(|route| route.advertised_segment = 9000)) {
        assert_eq!(options.mss, Some(1460));
    }
}

#[test]
fn a_route_says_how_large_packets_may_be() {
    let config = with_route(|route| route.mtu = 1340);
    for options in offers(&config) {
        assert_eq!(options.mss, Some(1300));
    }
    let mut s = Script::with(config);
    let flow = s.passive_open();
    s.host.send(flow, 2600);
    assert_eq!(s.sent().iter().map(|segment| segment.len).collect::<Vec<_>>(), [1300, 1300]);
    // Neither less than any path takes, nor more than the link does.
    for (mtu, mss) in [(1, 28), (9000, 1460)] {
        assert_eq!(offers(&with_route(|route| route.mtu = mtu))[0].mss, Some(mss));
    }
}

#[test]
fn a_route_says_that_no_acknowledgment_waits() {
    for quick in [false, true] {
        let mut s = Script::with(with_route(|route| route.quick_ack = quick));
        let flow = s.passive_open();
        // An exchange.
        s.inject(PSH | ACK, 1, 1, 10, 65_535);
        s.host.send(flow, 20);
        s.expect(&[(PSH | ACK, 1, 11, 20)]);
        s.inject(PSH | ACK, 11, 21, 10, 65_535);
        s.wait(Duration::from_micros(1));
        assert_eq!(s.sent().len(), usize::from(quick));
    }
}

#[test]
fn a_route_says_what_governs_the_congestion_window() {
    for algorithm in [Algorithm::Cubic, Algorithm::Reno, Algorithm::Bbr] {
        let mut s = Script::with(with_route(|route| route.congestion = Some(algorithm)));
        let flow = s.passive_open();
        assert_eq!(s.host.engine.congestion(flow), algorithm);
        assert_eq!(s.host.engine.info(flow).state, State::Established);
    }
}

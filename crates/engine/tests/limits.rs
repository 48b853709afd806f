//! The configuration's limits: what is out of range is refused by name, and what is set is held to.

use std::net::SocketAddrV4;
use std::time::Duration;

use crate::harness::script::{ACK, PSH, RST, SYN, Script};
use crate::harness::{CLIENT, Faults, Network, SERVER, config};
use overfly_engine::{Config, Engine, Failure, Prefix, Unreachable};

const MSS: usize = 1460;

/// Sequence number of a full segment of ours, the first being 0.
fn at(segment: usize) -> u32 {
    1 + (segment * MSS) as u32
}

/// A change to a configuration, and what is said of it.
type Refused = (fn(&mut Config), &'static str);

#[test]
fn what_is_out_of_range_is_refused_by_name() {
    let prefix = |len| Prefix { address: SERVER.into(), len };
    let cases: &[Refused] = &[
        (|c| c.prefix_len = 33, "prefix_len is 33: expected 0 to 32"),
        (|c| c.prefix6_len = 129, "prefix6_len is 129: expected 0 to 128"),
        (|c| c.mtu = 575, "mtu is 575: expected 576 to 65535"),
        (|c| c.segment_offload = 65_436, "segment_offload is 65436: expected 0 to 65435"),
        (|c| c.max_flows = 0, "max_flows is 0: expected 1 to 2147483647"),
        (|c| c.max_neighbors = 0, "max_neighbors is 0: expected 1 to 16777216"),
        (|c| c.max_answers = 0, "max_answers is 0: expected 1 to 1048576"),
        (|c| c.receive_window = 1023, "receive_window is 1023: expected 1024 to 1073741824"),
        (|c| c.initial_receive_window = 0, "initial_receive_window is 0: expected 1024 to 1073741824"),
        (|c| c.delayed_ack = Duration::from_millis(501), "delayed_ack in ms is 501: expected 0 to 500"),
        (|c| c.time_wait = Duration::from_secs(601), "time_wait in ms is 601000: expected 0 to 600000"),
        (
            |c| c.fin_timeout = Duration::MAX,
            "fin_timeout in ms is 18446744073709551615: expected 0 to 86400000",
        ),
        (|c| c.initial_window = u32::MAX, "initial_window is 4294967295: expected 0 to 1073741824"),
        (|c| c.black_hole_timeouts = 0, "black_hole_timeouts is 0: expected 1 to 255"),
        (|c| c.max_departed = 0, "max_departed is 0: expected 1 to 16777216"),
        (|c| c.orphan_probes = 0, "orphan_probes is 0: expected 1 to 255"),
        (|c| c.neighbor_solicitations = 0, "neighbor_solicitations is 0: expected 1 to 255"),
        (|c| c.max_reassembly_blocks = 0, "max_reassembly_blocks is 0: expected 1 to 65535"),
        (|c| c.max_sack_ranges = 15, "max_sack_ranges is 15: expected 16 to 65535"),
        (|c| c.max_burst = 0, "max_burst is 0: expected 1 to 65535"),
        (|c| c.max_fast_open_servers = 0, "max_fast_open_servers is 0: expected 1 to 16777216"),
        (|c| c.max_paths = 1 << 25, "max_paths is 33554432: expected 1 to 16777216"),
    ];
    for (change, message) in cases {
        let mut config = config(SERVER);
        change(&mut config);
        let Err(error) = Engine::new(config) else { panic!("accepted: {message}") };
        assert_eq!(error.to_string(), *message);
    }
    for (prefixes, message) in [
        (vec![prefix(33)], "own_prefixes' length is 33: expected 0 to 32"),
        (vec![prefix(24); 65], "own_prefixes' count is 65: expected 0 to 64"),
    ] {
        let Err(error) = Engine::new(Config { own_prefixes: prefixes, ..config(SERVER) }) else {
            panic!("accepted: {message}")
        };
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn so_many_pieces_are_held_out_of_order() {
    let mut s = Script::with(Config { max_reassembly_blocks: 2, ..config(SERVER) });
    let flow = s.passive_open();
    for piece in 1..=3 {
        s.inject(ACK, 1 + 200 * piece, 1, 100, 65_535);
    }
    assert_eq!(s.host.engine.counters().drop_reassembly_budget, 1, "the third");
    s.inject(ACK, 301, 1, 100, 65_535);
    s.inject(PSH | ACK, 1, 1, 200, 65_535);
    s.received(flow, 500);
}

/// Bytes that count as received after thirty SACK blocks of 500 bytes, with a gap between any two.
fn sacked_of_thirty(mut config: Config) -> u32 {
    config.initial_window = 60_000;
    let mut s = Script::with(config);
    s.options.sack_permitted = true;
    let flow = s.passive_open_over(100);
    s.host.send(flow, 100 * MSS);
    s.sent();
    for block in 0..30 {
        let left = 1001 + 1000 * block;
        s.sack(1, &[(left, left + 500)]);
    }
    s.host.engine.info(flow).sacked
}

#[test]
fn so_many_ranges_are_told_apart() {
    let wide = config(SERVER);
    assert_eq!(sacked_of_thirty(wide.clone()), 30 * 500);
    let narrow = sacked_of_thirty(Config { max_sack_ranges: 16, ..wide.clone() });
    assert!((1000..16 * 500).contains(&narrow), "{narrow} bytes");
    // The budget of all flows: eight ranges.
    let shared = sacked_of_thirty(Config { scoreboard_budget: 128, ..wide.clone() });
    assert!((1000..8 * 500).contains(&shared), "{shared} bytes");
    assert_eq!(sacked_of_thirty(Config { scoreboard_budget: 0, ..wide }), 0);
}

#[test]
fn what_one_flows_ranges_took_is_there_for_the_next() {
    let mut s = Script::with(Config { scoreboard_budget: 128, ..config(SERVER) });
    s.options.sack_permitted = true;
    s.host.engine.listen(s.local, 64).unwrap();
    for number in 0..40 {
        s.play(number);
        let flow = s.open(65_535);
        s.host.send(flow, 10 * MSS);
        assert_eq!(s.sent().len(), 10);
        for block in 0..4 {
            s.sack(1, &[(at(2 * block + 1), at(2 * block + 2))]);
        }
        assert!(s.host.engine.info(flow).sacked >= 2 * MSS as u32, "flow {number}");
        s.sent();
        // By turns the scoreboard is no longer needed, or the flow is gone.
        if number % 2 == 0 {
            s.ack(at(10));
        } else {
            s.inject(RST, 1, 1, 0, 0);
        }
    }
}

#[test]
fn nothing_is_undone_with_more_repetitions_than_are_remembered() {
    for (max_repeated_ranges, undone) in [(64, 1), (0, 0)] {
        let mut s = Script::with(Config { max_repeated_ranges, ..config(SERVER) });
        s.options.sack_permitted = true;
        let flow = s.passive_open_over(100);
        s.host.send(flow, 10 * MSS);
        s.sent();
        s.wait_ms(100);
        s.sack(1, &[(at(1), at(4))]);
        s.expect(&[(ACK, 1, 1, MSS)]);
        s.sack(at(10), &[]);
        s.wait_ms(100);
        s.sack(at(10), &[(at(0), at(1))]);
        assert_eq!(s.host.engine.counters().spurious_recoveries, undone, "{max_repeated_ranges}");
    }
}

#[test]
fn a_flow_with_much_to_send_lets_others_in_after_its_burst() {
    let mut s = Script::with(Config { max_burst: 3, ..config(SERVER) });
    s.host.engine.listen(s.local, 8).unwrap();
    let flows = [0, 1].map(|number| {
        s.play(number);
        s.open(65_535)
    });
    for flow in flows {
        s.host.send(flow, 8 * MSS);
    }
    let ports: Vec<u16> =
        s.frames().iter().map(|frame| u16::from_be_bytes([frame[36], frame[37]]) - 10_000).collect();
    assert_eq!(ports, [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1]);
}

#[test]
fn a_closed_window_is_probed_so_often_for_nobody() {
    for orphan_probes in [1, 3] {
        let mut s = Script::with(Config { orphan_probes, ..config(SERVER) });
        s.host.engine.listen(s.local, 8).unwrap();
        let flow = s.open(0);
        s.host.send(flow, 100);
        s.host.engine.close(flow);
        for _ in 0..orphan_probes {
            assert_eq!(s.sent().len(), 0);
            while s.sent().is_empty() {
                assert_eq!(s.host.owner.past.len(), 0);
                s.wait_ms(100);
            }
            s.inject(ACK, 1, 1, 0, 0);
        }
        s.wait(Duration::from_secs(60));
        assert_eq!(s.host.owner.past[0].failed, Some(Failure::TimedOut));
    }
}

#[test]
fn a_neighbour_is_asked_for_as_often_as_configured() {
    let mut s = Script::with(Config { neighbor_solicitations: 1, ..config(SERVER) });
    s.host.connect(s.now, s.local, s.peer);
    assert_eq!(s.frames().len(), 1);
    s.wait_ms(1000);
    assert_eq!(
        (s.frames().len(), s.host.owner.past[0].failed),
        (0, Some(Failure::Unreachable(Unreachable::Host)))
    );
}

/// Whatever is set to its least, data arrives.
#[test]
fn the_least_of_every_limit_carries_data_over_a_bad_link() {
    for seed in 1..20 {
        let least = |address| Config {
            max_reassembly_blocks: 1,
            max_sack_ranges: 16,
            scoreboard_budget: 100,
            max_repeated_ranges: 0,
            max_burst: 1,
            max_answers: 1,
            max_neighbors: 1,
            reassembly_budget: 0,
            receive_window: 4096,
            neighbor_solicitations: 200,
            ..config(address)
        };
        let mut network = Network::with(seed, least(CLIENT), least(SERVER));
        network.set_faults(Faults { loss: 50, reordering: 50, delay_us: 1000, ..Faults::default() });
        let service = SocketAddrV4::new(SERVER, 80);
        network.server.engine.listen(service, 8).unwrap();
        let flow = network.client.connect(network.now, SocketAddrV4::new(CLIENT, 9), service);
        network.client.send(flow, 200_000);
        let done = network.run_until(Duration::from_secs(600), |network| {
            network.server.owner.streams.values().any(|stream| stream.received.len() == 200_000)
        });
        assert!(done, "seed {seed}: {:?}", network.server.engine.counters());
    }
}

#[test]
fn a_syn_is_sent_again_as_often_as_configured() {
    let mut s = Script::with(Config { syn_retries: 1, ..config(SERVER) });
    s.connect();
    s.expect(&[(SYN, 0, 0, 0)]);
    s.expect_after(1000, &[(SYN, 0, 0, 0)]);
    s.wait(Duration::from_secs(3));
    assert_eq!(s.host.owner.past[0].failed, Some(Failure::TimedOut));
}

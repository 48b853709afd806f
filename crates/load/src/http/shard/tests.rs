//! A shard against an HTTP server on another engine, on virtual time, over a link that loses.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use overfly_engine::{Config, Engine, ListenerId};
use overfly_wire::MacAddr;

use super::super::client::Client;
use super::super::plan::Plan;
use super::super::report::Report;
use super::super::tally::Tally;
use super::super::tally::{Shared, Summary};
use super::super::{Arrivals, Rate, Settings, Target};
use super::*;
use crate::link::Ports;
use crate::link::in_memory::{DELAY_NS, Network};

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const CLIENT_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const SERVER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const STEP_NS: u64 = 25_000;

/// How the server answers a request.
#[derive(Clone)]
struct Manner {
    response: Vec<u8>,
    /// Closes after each response.
    closes: bool,
    /// Resets instead of answering.
    resets: bool,
}

fn answers(response: impl Into<Vec<u8>>) -> Manner {
    Manner { response: response.into(), closes: false, resets: false }
}

fn content(length: usize, connection: &str) -> Vec<u8> {
    let mut response =
        format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: {connection}\r\n\r\n")
            .into_bytes();
    response.resize(response.len() + length, b'x');
    response
}

struct Site {
    manner: Manner,
    request: Vec<u8>,
    /// By flow: how far into a request its stream is.
    progress: Vec<usize>,
    asked: Vec<FlowId>,
    ended: Vec<FlowId>,
    incoming: Vec<FlowId>,
    requests: u64,
}

impl Owner for Site {
    fn event(&mut self, flow: FlowId, event: Event) {
        match event {
            Event::Incoming { .. } => {
                let places = self.progress.len().max(flow.index() + 1);
                self.progress.resize(places, 0);
                self.progress[flow.index()] = 0;
                self.incoming.push(flow);
            }
            Event::RemoteClosed => self.ended.push(flow),
            Event::Released => {
                self.ended.retain(|other| *other != flow);
                self.asked.retain(|other| *other != flow);
                self.incoming.retain(|other| *other != flow);
            }
            _ => {}
        }
    }

    fn deliver(&mut self, flow: FlowId, data: &[u8]) -> usize {
        let at = &mut self.progress[flow.index()];
        for byte in data {
            assert_eq!(*byte, self.request[*at], "the request arrives as it was written");
            *at += 1;
            if *at == self.request.len() {
                *at = 0;
                self.requests += 1;
                self.asked.push(flow);
            }
        }
        data.len()
    }

    fn fill(&mut self, _flow: FlowId, offset: u64, buffer: &mut [u8]) {
        let length = self.manner.response.len() as u64;
        for (index, byte) in buffer.iter_mut().enumerate() {
            *byte = self.manner.response[((offset + index as u64) % length) as usize];
        }
    }
}

/// The run's report, the server's flows that are left over, and the requests it saw.
struct Result {
    report: Report,
    server_flows: usize,
    server_requests: u64,
    virtual_s: f64,
}

struct Case {
    settings: Settings,
    manner: Option<Manner>,
    loss_per_mille: u64,
    seed: u64,
}

fn case(manner: impl Into<Option<Manner>>) -> Case {
    let mut settings = Settings::new(Target::parse("http://10.0.0.1/x").unwrap());
    settings.connections = 8;
    settings.duration = None;
    settings.requests = Some(500);
    settings.timeout = Duration::from_secs(30);
    Case { settings, manner: manner.into(), loss_per_mille: 0, seed: 1 }
}

impl Case {
    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Case {
        change(&mut self.settings);
        self
    }

    fn run(self) -> Result {
        let Case { settings, manner, loss_per_mille, seed } = self;
        println!("seed {seed}, loss {loss_per_mille} per mille");
        let (network, [client_end, mut server_end]) = Network::new(seed, loss_per_mille);
        let config =
            |mac, address| Config { max_flows: 4096, max_time_wait: 1024, ..Config::new(mac, address, 24) };
        let mut engine = Engine::new(config(CLIENT_MAC, CLIENT)).unwrap();
        engine.set_neighbor(SERVER, SERVER_MAC);
        // No kernel stands beside the server: it refuses by itself.
        let mut server = Engine::new(Config { alone: true, ..config(SERVER_MAC, SERVER) }).unwrap();
        server.set_neighbor(CLIENT, CLIENT_MAC);
        let request = settings.request(&settings.targets[0], settings.close);
        let listens = manner.is_some();
        let mut site = Site {
            manner: manner.unwrap_or_else(|| answers("")),
            request: request.clone(),
            progress: Vec::new(),
            asked: Vec::new(),
            ended: Vec::new(),
            incoming: Vec::new(),
            requests: 0,
        };
        let _listener: Option<ListenerId> =
            listens.then(|| server.listen(SocketAddr::new(SERVER.into(), 80), 1024).unwrap());

        let last = 9_999 + 1000.max(settings.connections as u16);
        let ports = Ports::of_shard(&(10_000..=last), 0, 1);
        let stack = Stack { epoch_ns: 0, ..Stack::new(engine, client_end, CLIENT.into(), ports) };
        let plan = Arc::new(Plan::new(&settings).unwrap());
        let shared = Shared::new(&settings);
        let tally = Tally::new(&settings, &shared, 0, None);
        let servers = plan.servers_of(None);
        let mut shard = Shard::new(stack, servers, Client::new(&settings, plan, 0, None, tally));

        let mut serve = |now_ns: u64| {
            let now = Instant::from_micros(now_ns / 1000);
            server_end.receive(usize::MAX, |frame| server.receive(now, frame, &mut site));
            server.advance(now, &mut site);
            for flow in std::mem::take(&mut site.incoming) {
                server.accepted(flow);
            }
            for flow in std::mem::take(&mut site.asked) {
                if site.manner.resets {
                    server.abort(flow);
                    site.ended.retain(|other| *other != flow);
                    continue;
                }
                server.send(flow, site.manner.response.len());
                if site.manner.closes {
                    server.shutdown(flow);
                }
            }
            for flow in std::mem::take(&mut site.ended) {
                server.close(flow);
            }
            server.transmit(now, &mut site, &mut server_end);
            (server.flows() - server.time_wait_flows(), site.requests)
        };

        let mut now_ns = 0;
        loop {
            now_ns += STEP_NS;
            assert!(now_ns < 3_600_000_000_000, "an hour went by");
            network.borrow_mut().now_ns = now_ns;
            if !shard.step(now_ns, || now_ns).unwrap() {
                break;
            }
            serve(now_ns);
        }
        let virtual_s = now_ns as f64 * 1e-9;
        shard.stop(now_ns);
        network.borrow_mut().loss_per_mille = 0;
        let deadline_ns = now_ns + 20_000_000_000;
        let mut left = serve(now_ns);
        while now_ns < deadline_ns && (left.0 > 0 || !shard.is_wound_up()) {
            now_ns += STEP_NS;
            network.borrow_mut().now_ns = now_ns;
            shard.settle(now_ns);
            left = serve(now_ns);
        }
        assert!(shard.is_wound_up());
        let outcome = shard.into_outcome();
        let report = Report::new(&settings, Summary::of(vec![outcome], None, |_| {}));
        println!("{virtual_s} s\n{report}");
        Result { report, server_flows: left.0, server_requests: left.1, virtual_s }
    }
}

fn only(result: &Result, kind: &str) -> u64 {
    let report = &result.report;
    assert_eq!(report.failed[kind], report.failed_total, "{:?}", report.failed);
    assert_eq!(report.succeeded + report.failed_total, report.requests);
    report.failed_total
}

#[test]
fn keep_alive() {
    let result = case(answers(content(5, "keep-alive"))).run();
    assert_eq!((result.report.requests, result.report.succeeded), (500, 500));
    assert_eq!(result.report.connections_made, 8);
    assert_eq!(result.report.connections_open_max, 8);
    assert_eq!((result.server_requests, result.server_flows), (500, 0));
    // One round trip each, and never a wait for a delayed ACK. (The histogram has three digits.)
    let round_trip_us = 1.998 * DELAY_NS as f64 / 1000.0;
    assert!(result.report.latency_us.min >= round_trip_us);
    assert!(result.report.latency_us.max < 3.0 * round_trip_us);
}

#[test]
fn a_new_connection_each_closed_by_the_server() {
    let manner = Manner { closes: true, ..answers(content(5, "close")) };
    let result = case(manner).with(|settings| settings.close = true).run();
    assert_eq!((result.report.requests, result.report.succeeded), (500, 500));
    assert_eq!(result.report.connections_made, 500);
    assert!(result.report.connections_open_max <= 8);
    assert_eq!((result.server_requests, result.server_flows), (500, 0));
    let round_trip_us = 1.998 * DELAY_NS as f64 / 1000.0;
    assert!(result.report.latency_us.min >= 2.0 * round_trip_us);
    assert!(result.report.connect_us.p50 >= round_trip_us);
}

#[test]
fn a_new_connection_each_closed_by_us_over_few_ports() {
    // 1,000 ports, 3,000 connections: our own TIME-WAIT gives way.
    let result = case(answers(content(5, "keep-alive")))
        .with(|settings| {
            settings.close = true;
            settings.requests = Some(3000);
        })
        .run();
    assert_eq!((result.report.requests, result.report.succeeded), (3000, 3000));
    assert_eq!(result.server_flows, 0);
}

#[test]
fn nothing_is_lost_when_frames_are() {
    for seed in 1..=10 {
        for (length, close) in [(0, false), (10_000, false), (100_000, false), (1000, true)] {
            let connection = if close { "close" } else { "keep-alive" };
            let manner = Manner { closes: close, ..answers(content(length, connection)) };
            let mut case = case(manner).with(|settings| {
                settings.close = close;
                settings.requests = Some(300);
                settings.expect_size = Some(length as u64);
                settings.timeout = Duration::from_secs(300);
            });
            case.loss_per_mille = 30;
            case.seed = seed;
            let result = case.run();
            assert_eq!((result.report.requests, result.report.succeeded), (300, 300));
            assert_eq!((result.server_requests, result.server_flows), (300, 0));
        }
    }
}

#[test]
fn until_the_connection_ends() {
    let manner = Manner { closes: true, ..answers("HTTP/1.1 200 OK\r\n\r\nhello") };
    let result = case(manner).with(|settings| settings.expect_size = Some(5)).run();
    assert_eq!((result.report.requests, result.report.succeeded), (500, 500));
    assert_eq!(result.server_flows, 0);
}

#[test]
fn wrong_responses() {
    let result = case(answers("HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n")).run();
    assert_eq!(only(&result, "wrong_status"), 500);
    let said = result.report.remarks.join(" ");
    assert!(said.contains("Statuses that came and were not expected: 500 (500 times)"), "{said}");
    let result = case(answers(content(5, "keep-alive"))).with(|s| s.expect_size = Some(6)).run();
    assert_eq!(only(&result, "wrong_size"), 500);
    let said = result.report.remarks.join(" ");
    assert!(said.contains("not expected, in bytes of content: 5 (500 times)"), "{said}");
    let result = case(answers("220 mail\r\n")).run();
    assert_eq!((only(&result, "malformed"), result.server_flows), (500, 0));
    let result = case(answers("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhello")).run();
    assert_eq!((only(&result, "malformed"), result.report.malformed["unsolicited"]), (500, 500));
}

#[test]
fn servers_that_close_early_reset_stall_or_do_not_listen() {
    let manner = Manner { closes: true, ..answers("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello") };
    let result = case(manner).run();
    assert_eq!((only(&result, "closed_early"), result.server_flows), (500, 0));

    let result = case(Manner { resets: true, ..answers("") }).run();
    assert_eq!((only(&result, "read"), result.server_flows), (500, 0));

    let stalls = answers("HTTP/1.1 200 OK\r\nContent-Len");
    let result = case(stalls)
        .with(|settings| {
            settings.requests = Some(16);
            settings.timeout = Duration::from_millis(100);
        })
        .run();
    assert_eq!((only(&result, "timeout"), result.server_flows), (16, 0));

    let result = case(None).with(|settings| settings.requests = Some(20)).run();
    assert_eq!(only(&result, "connect_refused"), 20);
    assert_eq!(result.report.connections_open_max, 0);
}

#[test]
fn nobody_answers() {
    let mut case = case(answers("")).with(|settings| {
        settings.requests = Some(16);
        settings.timeout = Duration::from_millis(100);
    });
    case.loss_per_mille = 1000;
    let result = case.run();
    assert_eq!(only(&result, "connect_timeout"), 16);
    assert!(result.virtual_s < 1.0);
}

#[test]
fn a_duration_ends_with_requests_under_way_and_the_server_is_left_clean() {
    let result = case(answers(content(20_000, "keep-alive")))
        .with(|settings| {
            settings.connections = 300;
            settings.requests = None;
            settings.warmup = Duration::from_millis(50);
            settings.duration = Some(Duration::from_millis(100));
        })
        .run();
    assert!((0.149..0.152).contains(&result.virtual_s));
    assert!(result.report.succeeded > 300 && result.report.failed_total == 0);
    assert_eq!((result.report.connections_open_max, result.server_flows), (300, 0));
}

#[test]
fn each_shard_has_ports_of_its_own() {
    for (range, count) in [(10_000..=32_000, 1), (10_000..=32_000, 3), (10_001..=10_010, 4)] {
        let mut seen = BTreeMap::new();
        for index in 0..count {
            let mut ports = Ports::of_shard(&range, index, count);
            for turn in 0..2 * ports.len() {
                let port = ports.take();
                assert!(range.contains(&port) && usize::from(port) % count == index);
                if turn < ports.len() {
                    assert_eq!(seen.insert(port, index), None, "as late as possible");
                }
            }
        }
        assert_eq!(seen.len(), range.len());
    }
}

#[test]
fn all_connections_are_begun_though_others_are_always_under_way() {
    let manner = Manner { closes: true, ..answers(content(5, "close")) };
    let result = case(manner)
        .with(|settings| {
            settings.close = true;
            settings.connections = 600;
            settings.requests = None;
            settings.duration = Some(Duration::from_millis(100));
        })
        .run();
    assert!(result.report.connections_open_max > 290, "half of 600 connect, half are open");
    assert_eq!((result.report.failed_total, result.server_flows), (0, 0));
}

fn open_loop(per_s: f64, seconds: u64) -> Case {
    case(answers(content(5, "keep-alive"))).with(|settings| {
        settings.rate = Some(Rate::constant(per_s));
        settings.requests = None;
        settings.duration = Some(Duration::from_secs(seconds));
    })
}

#[test]
fn an_open_loop_sends_what_is_due_and_nothing_else() {
    for (per_s, due) in [(10.0, 20), (0.6, 2), (1234.5, 2469), (20_000.0, 40_000)] {
        let result = open_loop(per_s, 2).run();
        let report = &result.report;
        assert_eq!((report.succeeded, report.failed_total, report.record.unsent), (due, 0, 0), "{per_s}/s");
        assert_eq!((result.server_requests, report.record.sent), (due, due));
        assert!((report.duration_s - 2.0).abs() < 1e-9, "the schedule's length: {}", report.duration_s);
        assert_eq!((report.connections_made, report.connections_open_max), (8, 8), "made before it began");
        let steps_us = 1.002 * (2 * DELAY_NS + 2 * STEP_NS) as f64 / 1000.0;
        assert!(report.latency_us.max <= steps_us, "{} µs", report.latency_us.max);
    }
}

#[test]
fn what_waits_for_a_connection_waits_in_the_latency() {
    // One connection carries 10,000 requests a second at most: a round trip is four steps.
    let result = open_loop(16_000.0, 1).with(|settings| settings.connections = 1).run();
    let (report, record) = (&result.report, &result.report.record);
    assert_eq!(report.succeeded + record.unsent, 16_000, "each request that was due is one or the other");
    assert!(record.unsent > 5000, "{} unsent", record.unsent);
    assert!(report.service_us.max < 200.0, "the server is quick: {} µs", report.service_us.max);
    assert!(report.latency_us.p99 > 300_000.0, "but the last ones waited: {} µs", report.latency_us.p99);
    assert!(
        record.send_lag_ns.max() <= STEP_NS * 1002 / 1000,
        "and the generator was not to blame: {} ns",
        record.send_lag_ns.max()
    );
}

#[test]
fn an_open_loop_with_a_connection_each() {
    let manner = Manner { closes: true, ..answers(content(5, "close")) };
    let mut case = open_loop(500.0, 2).with(|settings| settings.close = true);
    case.manner = Some(manner);
    let result = case.run();
    let report = &result.report;
    assert_eq!((report.succeeded, report.failed_total, report.record.unsent), (1000, 0, 0));
    assert_eq!((report.connections_made, result.server_flows), (1000, 0));
    assert!((report.duration_s - 2.0).abs() < 1e-9);
    assert!(report.record.send_lag_ns.max() <= STEP_NS * 1002 / 1000);
}

#[test]
fn an_open_loop_counts_by_requests_too_and_its_warm_up_apart() {
    let result = open_loop(1000.0, 5)
        .with(|settings| {
            settings.requests = Some(300);
            settings.warmup = Duration::from_millis(500);
        })
        .run();
    assert_eq!((result.report.succeeded, result.server_requests), (300, 800), "500 of them in the warm-up");
    assert!((result.report.duration_s - 0.3).abs() < 1e-6, "{}", result.report.duration_s);
}

#[test]
fn an_open_loop_to_nobody_fails_each_request_that_was_due() {
    let mut case = open_loop(100.0, 1);
    case.manner = None;
    let result = case.run();
    let unsent = result.report.record.unsent;
    assert_eq!(only(&result, "connect_refused") + unsent, 100);
    assert!(unsent <= 2, "{unsent} unsent");
}

#[test]
fn connections_that_a_server_closes_are_made_again_in_an_open_loop() {
    let manner = Manner { closes: true, ..answers(content(5, "close")) };
    let mut case = open_loop(200.0, 2);
    case.manner = Some(manner);
    let result = case.run();
    let report = &result.report;
    assert_eq!((report.succeeded, report.failed_total, report.record.unsent), (400, 0, 0));
    assert!(report.connections_made >= 400);
}

#[test]
fn poisson_arrivals_that_were_due_are_all_sent() {
    let rate = Rate { arrivals: Arrivals::Poisson, seed: 3, ..Rate::constant(2000.0) };
    let result = open_loop(1.0, 2).with(|settings| settings.rate = Some(rate)).run();
    let report = &result.report;
    assert!((3684..4316).contains(&report.succeeded), "seed 3: {}", report.succeeded);
    assert_eq!((report.failed_total, report.record.unsent), (0, 0));
}

#[test]
fn a_pipeline_keeps_several_requests_under_way() {
    let result = case(answers(content(5, "keep-alive")))
        .with(|settings| {
            settings.connections = 1;
            settings.pipeline = 8;
        })
        .run();
    let report = &result.report;
    assert_eq!((report.succeeded, report.failed_total), (500, 0));
    // One at a time, 500 round trips of four steps take 50 ms.
    assert!(result.virtual_s < 0.02, "{} s", result.virtual_s);
    assert!(report.latency_us.min >= 1.998 * DELAY_NS as f64 / 1000.0);
}

#[test]
fn a_pipeline_whose_server_closes_in_the_middle() {
    let manner = Manner { closes: true, ..answers(content(5, "close")) };
    let result = case(manner)
        .with(|settings| {
            settings.connections = 1;
            settings.pipeline = 4;
            settings.requests = Some(100);
        })
        .run();
    let report = &result.report;
    assert_eq!(report.succeeded + report.failed["closed_early"], 100, "{:?}", report.failed);
    assert!(report.succeeded >= 25);
}

#[test]
fn a_million_slots_are_not_looked_at_in_one_go() {
    // The late are found all the same, a little later: each has a timeout of 200 ms.
    let stalls = answers("HTTP/1.1 200 OK\r\nContent-Len");
    let result = case(stalls)
        .with(|settings| {
            settings.connections = 3000;
            settings.requests = Some(3000);
            settings.timeout = Duration::from_millis(200);
        })
        .run();
    assert_eq!(only(&result, "timeout"), 3000);
    assert!((0.2..0.4).contains(&result.virtual_s), "{} s", result.virtual_s);
}

#[test]
fn a_loop_that_comes_late_to_the_end_sends_what_was_due_before() {
    // Rounds come every 25 µs. The second request is due 5 µs before the end, and the next round is after it.
    let result =
        open_loop(99.95, 1).with(|settings| settings.duration = Some(Duration::from_micros(10_010))).run();
    assert_eq!((result.report.succeeded, result.report.record.unsent), (2, 0));
}

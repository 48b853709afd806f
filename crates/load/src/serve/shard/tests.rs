//! A shard against clients on another engine, on virtual time, over a link that loses.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use overfly_engine::{Config, Engine, Failure};
use overfly_wire::MacAddr;

use super::super::session::tests::site;
use super::*;
use crate::link::Ports;
use crate::link::in_memory::{End, Network};
use crate::serve::Counts;

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const CLIENT_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const SERVER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const STEP_NS: u64 = 25_000;
/// Long, for a path that loses much.
const PATIENCE_MS: u32 = 60_000;
const TIMEOUT_MS: u32 = 500;

/// One client's connection, as it came out.
#[derive(Default, Clone)]
struct Heard {
    received: Vec<u8>,
    closed: bool,
    failed: Option<Failure>,
}

/// The clients' side: each sends the same bytes.
struct Clients {
    request: Vec<u8>,
    /// Takes no byte out of the receive window.
    deaf: bool,
    seen: Vec<Heard>,
    connected: Vec<FlowId>,
}

impl Owner for Clients {
    fn event(&mut self, flow: FlowId, event: Event) {
        match event {
            Event::Connected => self.connected.push(flow),
            Event::RemoteClosed => self.seen[flow.index()].closed = true,
            Event::Failed(failure) => self.seen[flow.index()].failed = Some(failure),
            _ => {}
        }
    }

    fn deliver(&mut self, flow: FlowId, data: &[u8]) -> usize {
        self.seen[flow.index()].received.extend_from_slice(data);
        if self.deaf { 0 } else { data.len() }
    }

    fn fill(&mut self, _flow: FlowId, offset: u64, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.request[offset as usize..offset as usize + buffer.len()]);
    }
}

/// A server at port 80 of [`SERVER`].
fn server_with(end: End, site: Site) -> Shard<End> {
    // No kernel stands beside it: it refuses by itself.
    let config =
        Config { alone: true, max_flows: 4096, max_time_wait: 512, ..Config::new(SERVER_MAC, SERVER, 24) };
    let mut engine = Engine::new(config).unwrap();
    engine.listen(SocketAddr::new(SERVER.into(), 80), 1024).unwrap();
    let stack = Stack { epoch_ns: 0, ..Stack::new(engine, end, SERVER.into(), Ports::none()) };
    Shard::new(stack, site, PATIENCE_MS)
}

/// A server for other tests: it closes each connection after its first response, or none.
pub(crate) fn server_at(end: End, close: bool) -> Shard<End> {
    server_with(end, Site { close, ..site(&[]) })
}

struct Case {
    network: Rc<RefCell<Network>>,
    shard: Shard<End>,
    engine: Engine,
    end: End,
    clients: Clients,
    flows: Vec<FlowId>,
    now_ns: u64,
}

impl Case {
    fn new(request: &str, seed: u64, loss_per_mille: u64, faults: &[&str]) -> Case {
        println!("seed {seed}, loss {loss_per_mille} per mille");
        let (network, [client_end, server_end]) = Network::new(seed, loss_per_mille);
        let config = Config { max_flows: 1024, max_time_wait: 512, ..Config::new(CLIENT_MAC, CLIENT, 24) };
        let mut engine = Engine::new(config).unwrap();
        engine.set_neighbor(SERVER, SERVER_MAC);
        Case {
            network,
            shard: server_with(server_end, site(faults)),
            engine,
            end: client_end,
            clients: Clients {
                request: request.as_bytes().to_vec(),
                deaf: false,
                seen: Vec::new(),
                connected: Vec::new(),
            },
            flows: Vec::new(),
            now_ns: 0,
        }
    }

    fn impatient(mut self) -> Case {
        self.shard.timeout_ms = TIMEOUT_MS;
        self
    }

    fn connect(&mut self, count: u16) {
        for port in 0..count {
            let local = SocketAddr::new(CLIENT.into(), 10_000 + self.flows.len() as u16 + port);
            let now = Instant::from_micros(self.now_ns / 1000);
            let flow = self.engine.connect(now, local, SocketAddr::new(SERVER.into(), 80)).unwrap();
            self.clients.seen.resize(self.clients.seen.len().max(flow.index() + 1), Heard::default());
            self.flows.push(flow);
        }
    }

    fn step(&mut self) {
        self.now_ns += STEP_NS;
        assert!(self.now_ns < 600_000_000_000, "ten minutes went by");
        self.network.borrow_mut().now_ns = self.now_ns;
        self.shard.step(self.now_ns);
        let now = Instant::from_micros(self.now_ns / 1000);
        let (engine, clients) = (&mut self.engine, &mut self.clients);
        self.end.receive(usize::MAX, |frame| engine.receive(now, frame, clients));
        engine.advance(now, clients);
        for flow in std::mem::take(&mut clients.connected) {
            engine.send(flow, clients.request.len());
        }
        engine.transmit(now, clients, &mut self.end);
    }

    fn until(&mut self, done: impl Fn(&Case) -> bool) {
        while !done(self) {
            self.step();
        }
    }

    fn counts(&self) -> Counts {
        self.shard.service.site.counts
    }

    fn seen(&self) -> impl Iterator<Item = &Heard> {
        self.flows.iter().map(|flow| &self.clients.seen[flow.index()])
    }

    /// Closes what is left: the server must hold nothing then.
    fn check_clean(&mut self) {
        self.network.borrow_mut().loss_per_mille = 0;
        for flow in self.flows.clone() {
            if self.clients.seen[flow.index()].failed.is_none() {
                self.engine.close(flow);
            }
        }
        self.until(|case| case.shard.is_wound_up());
        assert_eq!(self.counts().open(), 0);
    }
}

fn ask(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")
}

/// What a server without a network would answer.
fn expected(request: &str) -> Vec<u8> {
    let (mut session, mut site) = (Session::new(), site(&[]));
    session.receive(request.as_bytes(), &mut site);
    let mut bytes = vec![0; session.end() as usize];
    session.fill(0, &mut bytes, &site.template);
    bytes
}

#[test]
fn responses_arrive_whole_when_frames_are_lost() {
    let many: String = (0..60).map(|size| ask(&format!("/{}", size * 37 % 5000))).collect();
    let same = ask("/100").repeat(400);
    for seed in 1..=8 {
        for request in [ask("/1M"), ask("/"), many.clone(), same.clone()] {
            let whole = expected(&request);
            let mut case = Case::new(&request, seed, 30, &[]);
            case.connect(6);
            case.until(|case| case.seen().all(|seen| seen.received.len() >= whole.len()));
            assert!(case.seen().all(|seen| seen.received == whole && seen.failed.is_none()));
            case.check_clean();
            let counts = case.counts();
            assert_eq!((counts.accepted, counts.bytes_out), (6, 6 * whole.len() as u64));
            assert_eq!((counts.failed, counts.cut_short, counts.malformed_total()), (0, 0, 0));
        }
    }
}

#[test]
fn different_pipelined_requests_wait_their_turn() {
    let requests: String = (0..3000).map(|size| ask(&format!("/{}", size % 100))).collect();
    let mut case = Case::new(&requests, 3, 10, &[]);
    case.connect(2);
    case.until(|case| case.counts().requests == 6000);
    case.until(|case| case.seen().all(|seen| seen.received.ends_with(b"\n0123") || seen.received.len() > 1));
    case.check_clean();
    assert_eq!(case.counts().bytes_in, 2 * requests.len() as u64);
}

#[test]
fn the_server_closes_first_where_it_said_so() {
    let last = "GET /3000 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_string();
    for (request, malformed) in [(last + &ask("/"), 0), (ask("/100") + "\u{1}" + &ask("/"), 1)] {
        let mut case = Case::new(&request, 1, 20, &[]);
        case.connect(4);
        case.until(|case| case.seen().all(|seen| seen.closed));
        assert!(case.seen().all(|seen| seen.failed.is_none()), "no RST for what came after the end");
        assert_eq!((case.counts().requests, case.counts().malformed_total()), (4, 4 * malformed));
        case.check_clean();
    }
}

#[test]
fn faults_are_what_clients_see() {
    for (fault, received) in [("reset", 0), ("stall", 1024), ("short", 1024), ("garbage", 64), ("lie", 2064)]
    {
        let mut case = Case::new(&ask("/2048"), 1, 0, &[fault]).impatient();
        case.connect(3);
        case.until(|case| case.counts().requests == 3);
        match fault {
            "reset" => case.until(|case| case.seen().all(|seen| seen.failed == Some(Failure::Reset))),
            "stall" => {
                case.until(|case| case.counts().slow_requests + case.counts().idle == 3);
            }
            "short" | "garbage" => case.until(|case| case.seen().all(|seen| seen.closed)),
            _ => case.until(|case| case.seen().all(|seen| seen.received.len() > 2064)),
        }
        for seen in case.seen() {
            let body = seen.received.len() - head_len(&seen.received);
            assert_eq!(body, received, "{fault}");
        }
        case.check_clean();
    }
}

fn head_len(response: &[u8]) -> usize {
    response.windows(4).position(|bytes| bytes == b"\r\n\r\n").map_or(0, |end| end + 4)
}

#[test]
fn clients_that_stand_still_are_sent_away() {
    // Half a head, and then byte for byte: it is the head that has to end in time.
    let mut case = Case::new("GET / HTTP/1.1\r\nHo", 1, 0, &[]).impatient();
    case.connect(3);
    case.until(|case| case.seen().all(|seen| seen.failed == Some(Failure::Reset)));
    assert_eq!(case.counts().slow_requests, 3);
    case.check_clean();

    let mut case = Case::new(&ask("/1G"), 1, 0, &[]).impatient();
    case.clients.deaf = true;
    case.connect(3);
    case.until(|case| case.seen().all(|seen| seen.failed == Some(Failure::Reset)));
    assert_eq!(case.counts().slow_readers, 3);
    case.check_clean();

    let mut case = Case::new(&ask("/10"), 1, 0, &[]).impatient();
    case.connect(3);
    case.until(|case| case.seen().all(|seen| seen.closed));
    assert!(case.now_ns > u64::from(TIMEOUT_MS) * 1_000_000);
    assert_eq!((case.counts().idle, case.counts().requests), (3, 3));
    case.check_clean();
}

#[test]
fn a_client_that_half_closes_gets_its_answer() {
    let whole = expected(&ask("/300000"));
    let mut case = Case::new(&ask("/300000"), 1, 0, &[]);
    case.connect(1);
    case.until(|case| case.shard.service.site.counts.requests == 1);
    case.engine.shutdown(case.flows[0]);
    case.until(|case| case.seen().all(|seen| seen.closed));
    assert!(case.seen().all(|seen| seen.received == whole));
    assert_eq!(case.counts().cut_short, 0);
    case.check_clean();

    let mut case = Case::new("GET / HT", 1, 0, &[]);
    case.connect(1);
    case.until(|case| case.counts().bytes_in == 8);
    case.check_clean();
    assert_eq!(case.counts().cut_short, 1);
}

#[test]
fn the_end_resets_what_is_open() {
    let mut case = Case::new(&ask("/1G"), 1, 0, &[]);
    case.connect(5);
    case.until(|case| case.counts().requests == 5);
    case.shard.reset_all();
    while !case.shard.is_wound_up() {
        case.step();
    }
    case.until(|case| case.seen().all(|seen| seen.failed == Some(Failure::Reset)));
    assert_eq!(case.counts().open(), 0);
}

#[test]
fn a_connection_costs_little() {
    assert!(size_of::<Connection>() <= 192, "{}", size_of::<Connection>());
}

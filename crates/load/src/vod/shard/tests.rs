//! Streams from our own server on another engine, on virtual time, over a link that loses.

use std::net::Ipv4Addr;
use std::time::Duration;

use overfly_engine::{Config, Engine};
use overfly_wire::MacAddr;
use proptest::prelude::*;

use super::super::player::{Script, Traced};
use super::super::settings::Settings;
use super::*;
use crate::link::Ports;
use crate::link::in_memory::{End, Network};

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const CLIENT_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const SERVER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const STEP_NS: u64 = 100_000;
const STREAMS: u64 = 5;
const WINDOW: u32 = 16 * 1024;

/// Small players: a buffer of 100 kB, drained by 400 kb/s, a tick every 50 ms; blocks of 130 kB.
fn settings() -> Settings {
    let mut settings = Settings::new("http://10.0.0.1/130k/{block}");
    settings.blocks = 9;
    settings.buffer = 100_000;
    settings.drain_bps = 400_000.0;
    settings.tick = Duration::from_millis(50);
    settings
}

struct Case {
    shard: Shard<End>,
    server: crate::serve::Shard<End>,
    network: std::rc::Rc<std::cell::RefCell<Network>>,
    settings: Settings,
    now_ns: u64,
}

impl Case {
    fn new(settings: Settings, seed: u64, loss_per_mille: u64, close: bool) -> Case {
        println!("seed {seed}, loss {loss_per_mille} per mille, close {close}");
        let (network, [client_end, server_end]) = Network::new(seed, loss_per_mille);
        let mut engine =
            Engine::new(Config { max_flows: 1024, ..Config::new(CLIENT_MAC, CLIENT, 24) }).unwrap();
        engine.set_neighbor(SERVER, SERVER_MAC);
        let stack = Stack {
            epoch_ns: 0,
            ..Stack::new(engine, client_end, CLIENT.into(), Ports::of_shard(&(10_000..=10_999), 0, 1))
        };
        let script = Script {
            shape: settings.shape(),
            tick_ns: settings.tick.as_nanos() as u64,
            requests: super::super::run::requests(&settings).unwrap(),
            attempts: 3,
            seed,
        };
        let route = Route { server: (SERVER, 80).into(), sources: None, window: WINDOW };
        let wanted = Arc::new(AtomicU64::new(STREAMS));
        Case {
            shard: Shard::new(stack, Player::new(script), route, wanted),
            server: crate::serve::server_at(server_end, close),
            network,
            settings,
            now_ns: 0,
        }
    }

    fn counts(&self) -> Counts {
        self.shard.carrier.player.counts
    }

    fn step(&mut self) {
        self.now_ns += STEP_NS;
        self.network.borrow_mut().now_ns = self.now_ns;
        self.server.step(self.now_ns);
        self.shard.step(self.now_ns);
    }

    fn run_for(&mut self, time: Duration) {
        let until_ns = self.now_ns + time.as_nanos() as u64;
        while self.now_ns < until_ns {
            self.step();
        }
    }

    fn until(&mut self, done: impl Fn(&Counts) -> bool) {
        while !done(&self.counts()) {
            assert!(self.now_ns < 600_000_000_000, "ten minutes went by: {:?}", self.counts());
            self.step();
        }
    }

    /// Recomputes every buffer from what arrived and what was watched, as sums over the whole past.
    fn check_against_the_model(&self) {
        let player = &self.shard.carrier.player;
        let shape = self.settings.shape();
        for stream in 0..player.len() {
            let (mut arrived, mut read, mut watched) = (0, 0, 0);
            let (mut reads, mut full_once, mut dry) = (true, false, false);
            for (_, happening) in player.trace.iter().filter(|(index, _)| *index == stream) {
                assert!(!dry, "nothing happens to a stream that ran dry");
                match happening {
                    Traced::Arrived(bytes) => arrived += bytes,
                    Traced::Ticked => {
                        assert!(full_once, "it drains only once it has been full");
                        dry = read - watched < shape.drain;
                        watched += if dry { 0 } else { shape.drain };
                        reads |= read - watched < shape.watermark;
                    }
                }
                if reads && !dry {
                    read = arrived.min(watched + shape.capacity);
                    full_once |= read == watched + shape.capacity;
                    reads = read < watched + shape.capacity;
                }
                assert!(arrived - read <= u64::from(WINDOW), "the window held the server back");
            }
            let buffer = player.buffer(stream);
            assert_eq!((buffer.level(), buffer.waiting()), (read - watched, arrived - read));
            assert_eq!(buffer.is_filling(), !full_once && !dry);
        }
        let content: u64 = player.trace.iter().map(|(_, happening)| arrived_in(*happening)).sum();
        assert_eq!(content, self.counts().standing.bytes);
    }
}

fn arrived_in(happening: Traced) -> u64 {
    if let Traced::Arrived(bytes) = happening { bytes } else { 0 }
}

#[test]
fn streams_that_keep_up_go_on_and_watch_at_their_rate() {
    for close in [false, true] {
        let mut case = Case::new(settings(), 1, 0, close);
        case.until(|counts| counts.standing.streaming == STREAMS);
        let (ticks_before, bytes) = (case.shard.carrier.player.trace.len(), case.counts().standing.bytes);
        case.run_for(Duration::from_secs(20));
        case.check_against_the_model();
        let counts = case.counts();
        assert_eq!((counts.standing.streaming, counts.standing.lost()), (STREAMS, 0));
        // 20 s of 400 kb/s, give or take a buffer and a window each.
        let watched = STREAMS * 20 * 50_000;
        let slack = STREAMS * (100_000 + u64::from(WINDOW));
        assert!(counts.standing.bytes.abs_diff(bytes + watched) <= slack);
        let player = &case.shard.carrier.player;
        let ticks = player.trace[ticks_before..].iter().filter(|(_, what)| *what == Traced::Ticked).count();
        assert!((ticks as u64).abs_diff(STREAMS * 400) <= STREAMS);
        assert!(counts.level_min.is_some_and(|level| level > 30_000), "{counts:?}");
        if close {
            assert_eq!(counts.connections, counts.requests);
        } else {
            assert_eq!(counts.connections, STREAMS);
        }
        // Every block is asked for sooner or later.
        assert!(counts.requests > 30);
    }
}

#[test]
fn a_full_buffer_holds_the_server_back() {
    let mut settings = settings();
    settings.drain_bps = 160.0;
    let mut case = Case::new(settings, 1, 0, false);
    case.run_for(Duration::from_secs(10));
    case.check_against_the_model();
    let held: u64 =
        (0..STREAMS as usize).map(|stream| case.shard.carrier.player.buffer(stream).waiting()).sum();
    assert!(held > STREAMS * 10_000, "each connection's window is full: {held}");
    // 130 kB were asked for; the rest has not left the server.
    assert_eq!(case.counts().requests, STREAMS);
    assert!(case.counts().standing.bytes <= STREAMS * (100_000 + u64::from(WINDOW)));
}

#[test]
fn streams_that_do_not_keep_up_are_dropped_and_counted() {
    let mut case = Case::new(settings(), 1, 0, false);
    case.until(|counts| counts.standing.streaming == STREAMS);
    case.network.borrow_mut().loss_per_mille = 1000;
    case.until(|counts| counts.standing.dropped == STREAMS);
    case.check_against_the_model();
    let counts = case.counts();
    assert_eq!((counts.standing.streaming, counts.losses[Loss::Underrun as usize]), (0, STREAMS));
    case.network.borrow_mut().loss_per_mille = 0;
    case.run_for(Duration::from_secs(1));
    case.shard.reset_all();
    assert_eq!(case.counts().standing.open(), 0);
}

#[test]
fn what_is_no_video_fails_the_stream() {
    let mut other = settings();
    other.url = "http://10.0.0.1/none".into();
    let mut case = Case::new(other, 1, 0, false);
    case.until(|counts| counts.standing.failed == STREAMS);
    assert_eq!(case.counts().losses[Loss::WrongStatus as usize], STREAMS);
    assert_eq!(case.counts().standing.open(), 0);
}

#[test]
fn nobody_there_is_tried_again_and_then_said() {
    let mut case = Case::new(settings(), 1, 0, false);
    case.shard.route.server.set_port(81);
    case.until(|counts| counts.standing.failed == STREAMS);
    let counts = case.counts();
    assert_eq!((counts.connects_failed, counts.connections), (3 * STREAMS, 0));
    assert_eq!(counts.losses[Loss::Refused as usize], STREAMS);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever the link loses and the players want, each buffer is what the arrivals make it.
    #[test]
    fn every_buffer_is_what_the_arrivals_make_it(
        seed in any::<u64>(),
        loss_per_mille in 0..60_u64,
        close in any::<bool>(),
        buffer in 20_000..200_000_u64,
        watermark in 0.0..1.0_f64,
        drain_kbps in 100..3000_u64,
    ) {
        let mut settings = settings();
        settings.buffer = buffer;
        settings.watermark = watermark;
        settings.drain_bps = drain_kbps as f64 * 1000.0;
        let mut case = Case::new(settings, seed, loss_per_mille, close);
        for _ in 0..4 {
            case.run_for(Duration::from_secs(2));
            case.check_against_the_model();
        }
        prop_assert_eq!(case.counts().standing.opened, STREAMS);
    }
}

//! The model over a path of one bottleneck, whose queue may have an end.

use std::collections::VecDeque;

use super::super::{Algorithm, Congestion};
use super::model::Phase;
use super::*;
use crate::recovery::Latest;

const MSS: u32 = 1000;
/// Bytes a second.
const RATE: u64 = 10_000_000;

/// What is on its way: when it is acknowledged, or found lost.
#[derive(Clone, Copy)]
struct Packet {
    end: Sequence,
    sent_us: u64,
    at_us: u64,
    is_lost: bool,
}

struct Path {
    congestion: Congestion,
    now_us: u64,
    rtt_us: u64,
    queue: u64,
    busy_until_us: u64,
    flying: VecDeque<Packet>,
    next: Sequence,
    una: Sequence,
    in_flight: u32,
    /// Every so many-th is lost besides.
    loses_each: u32,
    count: u32,
    delivered: u64,
    lost: u64,
    /// States, and when they began.
    log: Vec<(u64, Phase)>,
    most_queued_us: u64,
}

fn bbr(congestion: &mut Congestion) -> Governor<'_> {
    congestion.bbr_mut().expect("it is BBR")
}

impl Path {
    fn new(rtt_us: u64, queue: u64) -> Self {
        Self {
            congestion: Congestion::new(Algorithm::Bbr, 10 * MSS),
            now_us: 1_000_000,
            rtt_us,
            queue,
            busy_until_us: 0,
            flying: VecDeque::new(),
            next: Sequence::default(),
            una: Sequence::default(),
            in_flight: 0,
            loses_each: 0,
            count: 0,
            delivered: 0,
            lost: 0,
            log: Vec::new(),
            most_queued_us: 0,
        }
    }

    fn model(&self) -> &Model {
        self.congestion.bbr().and_then(|bbr| bbr.model.as_ref()).expect("data was sent")
    }

    fn product(&self) -> u64 {
        RATE * self.rtt_us / 1_000_000
    }

    fn send(&mut self) {
        let (start, end) = (self.next, self.next + MSS);
        self.next = end;
        self.in_flight += MSS;
        bbr(&mut self.congestion).sent(&Transmission {
            now: Instant::from_micros(self.now_us),
            start,
            end,
            is_new: true,
            in_flight: self.in_flight,
            mss: MSS,
            rtt_us: self.rtt_us as u32,
        });
        let queued_us = self.busy_until_us.saturating_sub(self.now_us);
        let overflows = queued_us * RATE / 1_000_000 + u64::from(MSS) > self.queue;
        self.count += 1;
        let chance = self.loses_each > 0 && self.count.is_multiple_of(self.loses_each);
        let packet = if overflows {
            Packet { end, sent_us: self.now_us, at_us: self.busy_until_us + self.rtt_us, is_lost: true }
        } else {
            self.most_queued_us = self.most_queued_us.max(queued_us);
            self.busy_until_us = self.busy_until_us.max(self.now_us) + u64::from(MSS) * 1_000_000 / RATE;
            Packet { end, sent_us: self.now_us, at_us: self.busy_until_us + self.rtt_us, is_lost: chance }
        };
        self.flying.push_back(packet);
    }

    /// The oldest on its way arrives, or is missed.
    fn arrive(&mut self, is_drained: bool) {
        let Some(packet) = self.flying.pop_front() else { return };
        self.now_us = self.now_us.max(packet.at_us);
        let now = Instant::from_micros(self.now_us);
        self.una = packet.end;
        self.in_flight -= MSS;
        if packet.is_lost {
            self.lost += u64::from(MSS);
            let latest = Latest {
                end: packet.end,
                sent_at: Instant::from_micros(packet.sent_us).moment(),
                again: false,
            };
            bbr(&mut self.congestion).loss(0, MSS, Tick(0));
            bbr(&mut self.congestion).lost(
                &Losses { bytes: MSS, ranges: 1, latest: Some(latest), again_after: None },
                true,
                now,
            );
            return;
        }
        self.delivered += u64::from(MSS);
        bbr(&mut self.congestion).delivered(&Delivered {
            now,
            una: self.una,
            bytes: MSS,
            newest: Newest::InOrder,
            in_flight: self.in_flight,
            mss: MSS,
            least_rtt_us: self.rtt_us as u32,
            is_drained,
            is_recovering: self.lost > 0,
            has_sack: true,
        });
        let phase = self.model().phase;
        if self.log.last().is_none_or(|&(_, last)| last != phase) {
            self.log.push((self.now_us, phase));
        }
    }

    /// Sends all that may be sent until `until_us`.
    fn run(&mut self, until_us: u64) {
        while self.now_us < until_us {
            let mut due_us = u64::MAX;
            while self.in_flight + MSS <= self.congestion.window() {
                match bbr(&mut self.congestion).allowance(Instant::from_micros(self.now_us), MSS) {
                    Ok(_) => self.send(),
                    Err(due) => {
                        due_us = due.as_micros();
                        break;
                    }
                }
            }
            match self.flying.front() {
                Some(first) if first.at_us <= due_us => self.arrive(false),
                _ => self.now_us = due_us,
            }
        }
    }

    fn run_for(&mut self, time_us: u64) {
        self.run(self.now_us + time_us);
    }

    fn when(&self, phase: Phase) -> Vec<u64> {
        self.log.iter().filter(|&&(_, its)| its == phase).map(|&(at, _)| at).collect()
    }

    /// Bytes a second over the next `time_us`.
    fn goodput(&mut self, time_us: u64) -> u64 {
        let before = self.delivered;
        self.run_for(time_us);
        (self.delivered - before) * 1_000_000 / time_us
    }
}

const DEEP: u64 = 1 << 40;

#[test]
fn startup_finds_the_rate_and_drain_empties_the_queue() {
    // Three quanta of Startup, which are more than a short path holds.
    let quanta_us = 3 * 2770;
    for rtt_us in [1_000, 20_000, 100_000] {
        let mut path = Path::new(rtt_us, DEEP);
        path.run_for(25 * (rtt_us + quanta_us));
        let model = path.model();
        let measured = model.max_bandwidth.value();
        assert!(measured.abs_diff(RATE) < RATE / 20, "{rtt_us} µs: {measured}");
        assert!(model.rtt.min_us.abs_diff(rtt_us as u32) < 200, "{rtt_us} µs: {}", model.rtt.min_us);
        let order: Vec<Phase> = path.log.iter().take(3).map(|&(_, phase)| phase).collect();
        if rtt_us > quanta_us {
            assert_eq!(order, [Phase::Startup, Phase::Drain, Phase::Cruise], "{rtt_us} µs");
        } else {
            // That much may always be in flight.
            assert_eq!(order[..2], [Phase::Startup, Phase::Cruise], "{rtt_us} µs");
        }
        // Two products in flight: one of them queues, and no more than the quanta besides.
        let bound_us = rtt_us + quanta_us;
        assert!(path.most_queued_us <= bound_us * 13 / 10, "{rtt_us} µs: {} queued", path.most_queued_us);
        let start_us = path.log[1].0 - 1_000_000;
        assert!(start_us < 16 * bound_us, "{rtt_us} µs: {start_us} µs in Startup");
    }
}

#[test]
fn a_deep_queue_stays_short_and_the_path_full() {
    let mut path = Path::new(20_000, DEEP);
    path.run_for(1_000_000);
    path.most_queued_us = 0;
    let goodput = path.goodput(20_000_000);
    assert!(goodput > RATE * 94 / 100, "{goodput}");
    // What a probe adds is 1.25 products at most, and its two rounds of plateau.
    assert!(path.most_queued_us < 40_000, "{} µs queued", path.most_queued_us);
}

#[test]
fn bandwidth_is_probed_by_rounds_on_short_paths_and_by_the_clock_on_long_ones() {
    for (rtt_us, least_us, most_us) in [(20_000, 1_200_000, 1_700_000), (200_000, 2_000_000, 3_010_000)] {
        let mut path = Path::new(rtt_us, DEEP);
        path.run_for(30_000_000);
        // From where the clock starts to the next probe.
        let mut since_us = None;
        let mut waits = Vec::new();
        let mut last = Phase::Startup;
        for &(at_us, phase) in &path.log {
            match phase {
                Phase::Down => since_us = Some(at_us),
                Phase::Cruise if last == Phase::ProbeRtt => since_us = Some(at_us),
                Phase::ProbeRtt => since_us = None,
                Phase::Refill => waits.extend(since_us.map(|since_us| at_us - since_us)),
                _ => {}
            }
            last = phase;
        }
        assert!(waits.len() >= 4, "{rtt_us} µs: {waits:?}");
        assert!(waits.iter().all(|wait| (least_us..most_us).contains(wait)), "{rtt_us} µs: {waits:?}");
    }
}

#[test]
fn the_round_trip_is_looked_for_every_five_seconds_with_half_a_product() {
    let mut path = Path::new(20_000, DEEP);
    path.run_for(16_000_000);
    let looks = path.when(Phase::ProbeRtt);
    assert!((2..=3).contains(&looks.len()), "{looks:?}");
    assert!(looks[0] - 1_000_000 >= 5_000_000);
    let after: Vec<(u64, Phase)> =
        path.log.iter().copied().skip_while(|&(_, phase)| phase != Phase::ProbeRtt).take(2).collect();
    let lasted = after[1].0 - after[0].0;
    assert!((200_000..320_000).contains(&lasted), "{lasted} µs");
    assert_eq!(after[1].1, Phase::Cruise);
    // In the middle of another one.
    while path.model().phase != Phase::ProbeRtt {
        path.run_for(10_000);
    }
    path.run_for(100_000);
    assert_eq!(path.model().phase, Phase::ProbeRtt);
    let half = path.product() / 2;
    assert!(u64::from(path.congestion.window()) <= half * 11 / 10, "{} of {half}", path.congestion.window());
}

#[test]
fn a_program_that_sends_little_does_not_make_the_path_slow() {
    let mut path = Path::new(20_000, DEEP);
    path.run_for(2_000_000);
    while path.in_flight > 0 {
        path.arrive(true);
    }
    let known = path.model().max_bandwidth.value();
    for _ in 0..400 {
        path.now_us += 10_000;
        bbr(&mut path.congestion).limited_by_program(path.in_flight);
        path.send();
        path.arrive(true);
    }
    assert_eq!(path.model().max_bandwidth.value(), known);
    assert!(path.congestion.window() >= 4 * MSS);
    // And one that begins so stays in Startup.
    let mut path = Path::new(20_000, DEEP);
    for _ in 0..200 {
        bbr(&mut path.congestion).limited_by_program(path.in_flight);
        path.send();
        path.arrive(true);
        path.now_us += 10_000;
    }
    assert_eq!(path.model().phase, Phase::Startup);
    assert!(!path.model().was_full);
}

#[test]
fn one_loss_in_a_hundred_costs_little() {
    let mut path = Path::new(20_000, DEEP);
    path.loses_each = 100;
    path.run_for(2_000_000);
    let goodput = path.goodput(20_000_000);
    assert!(goodput > RATE * 70 / 100, "{goodput}");
}

#[test]
fn a_shallow_queue_bounds_what_is_in_flight() {
    let mut path = Path::new(20_000, 40_000);
    path.run_for(3_000_000);
    let (lost, delivered) = (path.lost, path.delivered);
    let goodput = path.goodput(20_000_000);
    let rate = (path.lost - lost) * 1000 / (path.delivered - delivered);
    assert!(goodput > RATE * 80 / 100, "{goodput}");
    assert!(rate < 20, "{rate} per mille lost");
    let bound = path.model().long_inflight;
    assert!(bound >= path.product() / 2 && bound < 2 * path.product(), "{bound}");
}

#[test]
fn a_round_with_losses_lowers_the_short_term_to_seven_tenths_at_most_and_a_probe_forgets_it() {
    let mut path = Path::new(20_000, DEEP);
    while path.log.last().is_none_or(|&(_, phase)| phase != Phase::Cruise) {
        path.run_for(1_000);
    }
    let known = path.model().max_bandwidth.value();
    path.loses_each = 20;
    path.run_for(60_000);
    path.loses_each = 0;
    let short = path.model().short_bandwidth;
    assert!(short >= known * 34 / 100 && short < known, "{short} of {known}");
    let probes = path.when(Phase::Refill).len();
    while path.when(Phase::Refill).len() == probes {
        path.run_for(1_000);
    }
    assert_eq!(path.model().short_bandwidth, u64::MAX);
    assert_eq!(path.model().short_inflight, u64::MAX);
}

#[test]
fn a_timeout_leaves_one_segment_and_the_window_comes_back() {
    let mut path = Path::new(20_000, DEEP);
    path.run_for(2_000_000);
    let window = path.congestion.window();
    bbr(&mut path.congestion).timeout(true, window, MSS, Tick(0));
    bbr(&mut path.congestion).lost_to_timeout(path.in_flight, Instant::from_micros(path.now_us));
    assert_eq!(path.congestion.window(), MSS);
    // A second one does not make it forget.
    bbr(&mut path.congestion).timeout(false, window, MSS, Tick(0));
    bbr(&mut path.congestion).recovered();
    assert_eq!(path.congestion.window(), window);
}

#[test]
fn what_was_no_loss_is_taken_back() {
    let mut path = Path::new(20_000, DEEP);
    while path.log.last().is_none_or(|&(_, phase)| phase != Phase::Up) {
        path.run_for(1_000);
    }
    let (window, in_flight) = (path.congestion.window(), path.in_flight);
    bbr(&mut path.congestion).loss(window, MSS, Tick(0));
    let losses = Losses { bytes: in_flight / 2, ranges: 1, ..Losses::default() };
    bbr(&mut path.congestion).lost(&losses, true, Instant::from_micros(path.now_us));
    assert_eq!(path.model().phase, Phase::Down, "the probe has failed");
    assert!(path.model().long_inflight < u64::MAX);
    path.run_for(10_000);
    bbr(&mut path.congestion).undo();
    assert_eq!(path.model().phase, Phase::Up);
    assert_eq!(path.model().long_inflight, u64::MAX);
    assert!(path.congestion.window() >= window);
}

#[test]
fn a_mark_ends_startup_and_slows_down_a_flow_that_cruises() {
    let mut path = Path::new(20_000, DEEP);
    path.run_for(60_000);
    assert_eq!(path.model().phase, Phase::Startup);
    bbr(&mut path.congestion).marked(Instant::from_micros(path.now_us));
    path.run_for(20_000);
    assert_ne!(path.model().phase, Phase::Startup);
    assert!(path.model().long_inflight < u64::MAX);
    let mut path = Path::new(20_000, DEEP);
    while path.log.last().is_none_or(|&(_, phase)| phase != Phase::Cruise) {
        path.run_for(1_000);
    }
    bbr(&mut path.congestion).marked(Instant::from_micros(path.now_us));
    path.run_for(45_000);
    assert!(path.model().short_bandwidth <= path.model().max_bandwidth.value());
    assert!(path.model().short_inflight < u64::MAX);
}

#[test]
fn no_input_makes_a_window_of_nothing_or_without_end() {
    for seed in 0..300_u64 {
        let mut state = seed;
        let mut random = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let value = (state >> 16) as u32;
            if value.is_multiple_of(7) { u32::MAX } else { value >> (value % 32) }
        };
        let mut congestion = Congestion::new(Algorithm::Bbr, random());
        let mut now_us = u64::from(random());
        for _ in 0..200 {
            now_us += u64::from(random() >> 8);
            let now = Instant::from_micros(now_us);
            let mss = random() % 9000 + 1;
            let (start, una, bytes) = (Sequence::new(random()), Sequence::new(random()), random());
            let mut bbr = congestion.bbr_mut().unwrap();
            match random() % 8 {
                0 | 1 => bbr.sent(&Transmission {
                    now,
                    start,
                    end: start + bytes,
                    is_new: random() % 2 == 0,
                    in_flight: random(),
                    mss,
                    rtt_us: random(),
                }),
                2 | 3 => bbr.delivered(&Delivered {
                    now,
                    una,
                    bytes,
                    newest: Newest::InOrder,
                    in_flight: random(),
                    mss,
                    least_rtt_us: random(),
                    is_drained: random() % 2 == 0,
                    is_recovering: random() % 2 == 0,
                    has_sack: random() % 2 == 0,
                }),
                4 => {
                    bbr.lost(&Losses { bytes, ranges: 1, ..Losses::default() }, random() % 2 == 0, now);
                }
                5 => bbr.timeout(random() % 2 == 0, bytes, mss, Tick(0)),
                6 => bbr.marked(now),
                _ => bbr.undo(),
            }
            let _ = bbr.allowance(now, mss);
            assert!((1..=MAX_WINDOW).contains(&bbr.window()), "seed {seed}: {}", bbr.window());
        }
    }
}

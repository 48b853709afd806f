//! Sequences of calls that a seed makes, by threads and processes at both ends of connections: what each call says, at once, later or
//! when a timer rings, is what it says over the kernel. The broker runs in this process. Needs root and python3.
//!
//! `cargo xtask compare-calls` plays more of them (the ignored test here). `OVERFLY_SCRIPT=FILE` plays a file's one, and prints it.

mod bench;
mod sequence;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bench::Bench;
use compare::{Outcome, Worlds};
use forks::FORKS;
use found::FOUND;
use known::KNOWN;
use play::{Players, show};
use script::Script;
use sequence::{compare, forks, found, known, play, script};

/// Sequences of `cargo test`: always the same, so that it is the change that made one differ.
const SEED: u64 = 25_000;
const SEQUENCES: u64 = 60;

/// The two labs.
struct Labs {
    kernel: Bench,
    overfly: Bench,
}

impl Labs {
    fn new() -> Labs {
        let labs = Labs { kernel: Bench::new(2), overfly: Bench::new(2) };
        for bench in [&labs.kernel, &labs.overfly] {
            for end in [&bench.lab.server, &bench.lab.client] {
                // BBR paces: what it holds back comes at another step's time.
                end.write("/proc/sys/net/ipv4/tcp_congestion_control", "reno");
            }
        }
        labs
    }

    fn worlds(&self) -> Worlds {
        Worlds { kernel: Players::new(&self.kernel, false), overfly: Players::new(&self.overfly, true) }
    }
}

/// What came of many sequences.
#[derive(Default)]
struct Tally {
    same: u64,
    varied: Vec<u64>,
    /// By reason: how often it was met.
    known: BTreeMap<&'static str, u64>,
    different: Vec<(u64, String)>,
}

impl Tally {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        match outcome {
            Outcome::Same => self.same += 1,
            Outcome::Known(met) => {
                for met in met {
                    println!("seed {seed}, known: {}", met.what);
                    *self.known.entry(met.known.reason).or_default() += 1;
                }
            }
            Outcome::Varies(report) => {
                println!("seed {seed} once said this, and not again:\n{report}");
                self.varied.push(seed);
            }
            Outcome::Different(report) => {
                println!("seed {seed}:\n{report}");
                self.different.push((seed, report.to_string()));
            }
        }
    }
}

/// Plays the sequences of these seeds, or those of them that have such a call, several at a time.
fn session(seeds: std::ops::Range<u64>, with: Option<&str>, players: u64, enough: usize) -> Tally {
    let labs = Labs::new();
    let (next, played) = (AtomicU64::new(seeds.start), AtomicU64::new(0));
    let tally = Mutex::new(Tally::default());
    std::thread::scope(|scope| {
        for _ in 0..players {
            scope.spawn(|| {
                let mut worlds = labs.worlds();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || tally.lock().unwrap().different.len() >= enough {
                        return;
                    }
                    let script = Script::generate(seed);
                    if with.is_some_and(|word| !script.steps.iter().any(|step| step.word() == word)) {
                        continue;
                    }
                    played.fetch_add(1, Ordering::Relaxed);
                    let outcome = worlds.examine(&script);
                    tally.lock().unwrap().add(seed, outcome);
                }
            });
        }
    });
    let counters = labs.overfly.broker.attachment().counters().unwrap();
    println!("flows that were accelerated: {}", counters.flows_recorded);
    // A third is within the host, and not every one accepts.
    assert!(counters.flows_recorded >= played.into_inner() / 8, "not accelerated: {counters:?}");
    tally.into_inner().unwrap()
}

fn report(tally: &Tally, began: Instant) {
    println!("same: {}, varied: {:?}, {:.0?}", tally.same, tally.varied, began.elapsed());
    tally.known.iter().for_each(|(reason, times)| println!("known, {times}: {reason}"));
    let seeds: Vec<u64> = tally.different.iter().map(|(seed, _)| *seed).collect();
    assert!(seeds.is_empty(), "these seeds say something else over Overfly, see above: {seeds:?}");
}

#[test]
fn generated_sequences_say_what_they_say_over_the_kernel() {
    let began = Instant::now();
    report(&session(SEED..SEED + SEQUENCES, None, 4, 2), began);
}

#[test]
fn the_documentation_has_what_is_known_to_differ() {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/sockets.md");
    let documentation = words(&std::fs::read_to_string(path).unwrap());
    for known in &KNOWN {
        assert!(documentation.contains(&words(known.reason)), "docs/sockets.md lacks: {}", known.reason);
    }
}

/// Sequences that a seed found, shortened, and that were mended.
#[test]
fn what_was_found_stays_mended() {
    let labs = Labs::new();
    let mut worlds = labs.worlds();
    for (what, script) in FOUND.into_iter().chain(FORKS) {
        let script = Script::parse(script).unwrap();
        if let Some(report) = worlds.make_sure(&script) {
            panic!("{what}:\n{report}");
        }
    }
}

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| value.parse().unwrap())
}

/// What `cargo xtask compare-calls` runs.
#[test]
#[ignore = "for as long as one likes"]
fn many_sequences() {
    let began = Instant::now();
    if let Some(path) = std::env::var_os("OVERFLY_SCRIPT") {
        let script = Script::parse(&std::fs::read_to_string(path).unwrap()).expect("a script");
        let (kernel, overfly) = Labs::new().worlds().play(&script, 60);
        println!("{}", show(&script, &kernel, &overfly));
        return;
    }
    let seed = setting("OVERFLY_SEED", 1);
    let enough = setting("OVERFLY_ENOUGH", 20) as usize;
    let seeds = seed..seed + setting("OVERFLY_SEQUENCES", 1000);
    if seeds.end == seed + 1 {
        println!("{}", Script::generate(seed));
    }
    println!("seeds {seeds:?}");
    let with = std::env::var("OVERFLY_WITH").ok();
    report(&session(seeds, with.as_deref(), setting("OVERFLY_PLAYERS", 6), enough), began);
}

//! Sequences of calls that a seed makes, by threads and processes at both ends of connections: what each call says, at once, later or
//! when a timer rings, is what it says over the kernel. The broker runs in this process. Needs root and a C compiler.
//!
//! `cargo xtask compare-calls` plays more of them (the ignored test here). `OVERFLY_SCRIPT=FILE` plays a file's one, and prints it.

mod bench;
mod sequence;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use bench::lab::Lab;
use bench::{Bench, compile};
use compare::{Outcome, SURE, Whose, Worlds};
use forks::FORKS;
use found::FOUND;
use kinds::KINDS;
use known::KNOWN;
use overfly_link::xdp::HugePages;
use overfly_steer::Options;
use passed::PASSED;
use play::{Players, show};
use rest::brokers;
use script::Script;
use sequence::{compare, forks, found, kinds, known, passed, play, rest, script, urgent, waits};
use urgent::URGENT;
use waits::WAITS;

/// Sequences of `cargo test`: always the same, so that it is the change that made one differ.
const SEED: u64 = 25_000;
const SEQUENCES: u64 = 60;

/// The two labs.
struct Labs {
    /// Of those who play.
    program: PathBuf,
    kernel: Bench,
    overfly: Bench,
    /// The threads of its broker.
    brokers: Vec<u32>,
}

/// Brokers wait for the kernel whenever a stack goes: where more play, they wait for each other.
const PLAYERS_OF_A_LAB: usize = 2;

/// Held by who makes a broker: which of the threads are its own is seen by which were there before.
static MAKING: Mutex<()> = Mutex::new(());

/// A bench, and the threads of its broker.
fn bench_and_brokers(lab: Lab, huge_pages: HugePages) -> (Bench, Vec<u32>) {
    let _making = MAKING.lock().unwrap();
    let others = brokers();
    let bench = Bench::within(lab, Options { huge_pages, ..Options::default() });
    let mut own = Vec::new();
    // A thread says itself what it is called.
    bench::until("the broker's thread has its name", || {
        own = brokers().into_iter().filter(|broker| !others.contains(broker)).collect();
        !own.is_empty()
    });
    (bench, own)
}

impl Labs {
    /// Of so many, this one.
    fn new(number: usize, program: &Path) -> Labs {
        // As `overfly run` has it, and now and then otherwise.
        let huge_pages = if number % 4 == 3 { HugePages::No } else { HugePages::Try };
        let (kernel, overfly) = (Lab::new(2), Lab::new(2));
        let (kernel, _) = bench_and_brokers(kernel, huge_pages);
        let (overfly, own) = bench_and_brokers(overfly, huge_pages);
        let labs = Labs { program: program.to_owned(), kernel, overfly, brokers: own };
        for bench in [&labs.kernel, &labs.overfly] {
            for end in [&bench.lab.server, &bench.lab.client] {
                // Who answers only so often that a port is closed answers some of those who play.
                for limit in ["ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"] {
                    end.write(&format!("/proc/sys/net/{limit}"), "0");
                }
                // BBR paces: what it holds back comes at another step's time.
                end.write("/proc/sys/net/ipv4/tcp_congestion_control", "reno");
            }
        }
        labs
    }

    fn worlds(&self) -> Worlds {
        let brokers = (!kernel_twice()).then_some(&*self.brokers);
        Worlds {
            kernel: Players::new(&self.program, &self.kernel, None),
            overfly: Players::new(&self.program, &self.overfly, brokers),
        }
    }
}

/// Whether the kernel is compared with itself, which shows what sequences are fit for a comparison.
fn kernel_twice() -> bool {
    std::env::var_os("OVERFLY_KERNEL_TWICE").is_some()
}

/// So many play at a time, until each has nothing more to do. Returns how many flows were accelerated in each lab.
fn play_side_by_side(players: usize, play: impl Fn(&Labs, &mut Worlds) -> bool + Sync) -> Vec<u64> {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(play::PROGRAM, folder.path());
    let labs: Vec<Labs> = std::thread::scope(|scope| {
        let program = &program;
        let made = |number| scope.spawn(move || Labs::new(number, program));
        let made: Vec<_> = (0..players.div_ceil(PLAYERS_OF_A_LAB)).map(made).collect();
        made.into_iter().map(|labs| labs.join().unwrap()).collect()
    });
    std::thread::scope(|scope| {
        for player in 0..players {
            let (labs, play) = (&labs[player % labs.len()], &play);
            scope.spawn(move || {
                let mut worlds = labs.worlds();
                while play(labs, &mut worlds) {}
            });
        }
    });
    labs.iter().map(|labs| labs.overfly.broker.attachment().counters().unwrap().flows_recorded).collect()
}

/// What came of many sequences.
#[derive(Default)]
struct Tally {
    same: u64,
    /// In which only the kernel was not the same each time, and those in which only Overfly was not.
    varied: [Vec<u64>; 2],
    /// By reason: how often it was met.
    known: BTreeMap<&'static str, u64>,
    /// In how many sequences.
    with_known: u64,
    different: Vec<u64>,
    /// That could not be played to their end.
    broken: Vec<u64>,
    /// In which somebody went on running over Overfly though nothing was to be done.
    restless: Vec<u64>,
}

impl Tally {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        match outcome {
            Outcome::Same => self.same += 1,
            Outcome::Known(met) => {
                self.with_known += 1;
                for met in met {
                    println!("seed {seed}, known: {}", met.what);
                    *self.known.entry(met.known.reason).or_default() += 1;
                }
            }
            Outcome::Varies(report, whose) => {
                println!("seed {seed} once said this, and not again ({whose:?}):\n{report}");
                self.varied[usize::from(whose == Whose::Overflys)].push(seed);
            }
            Outcome::Different(report) => {
                println!("seed {seed}:\n{report}");
                self.different.push(seed);
            }
        }
    }

    fn played(&self) -> u64 {
        let lists = [&self.varied[0], &self.varied[1], &self.different, &self.broken];
        self.same + self.with_known + lists.map(|list| list.len() as u64).iter().sum::<u64>()
    }

    /// `began`: when the first one was.
    fn print(&self, began: Instant) {
        let (played, took) = (self.played(), began.elapsed());
        let rate = played as f64 / took.as_secs_f64();
        println!(
            "{played} sequences in {took:.0?}, {rate:.1} a second: {} the same, {} with what is known, the kernel varied in {}, \
             Overfly in {}, broken {:?}, different {:?}",
            self.same,
            self.with_known,
            self.varied[0].len(),
            self.varied[1].len(),
            self.broken,
            self.different
        );
    }
}

/// How often a long session says how far it is.
const PROGRESS: u64 = 1000;

/// Plays the sequences of these seeds, or those of them that have such a call, several at a time.
fn session(seeds: std::ops::Range<u64>, with: Option<&str>, players: usize, enough: usize) -> Tally {
    let began = Instant::now();
    let next = AtomicU64::new(seeds.start);
    let tally = Mutex::new(Tally::default());
    let accelerated = play_side_by_side(players, |labs, worlds| {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= seeds.end || tally.lock().unwrap().different.len() >= enough {
            return false;
        }
        let script = Script::generate(seed);
        if with.is_some_and(|word| !script.steps.iter().any(|step| step.word() == word)) {
            return true;
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| worlds.examine(&script)));
        let mut tally = tally.lock().unwrap();
        if std::mem::take(&mut worlds.overfly.restless) {
            println!("seed {seed}: somebody goes on running:\n{script}");
            tally.restless.push(seed);
        }
        match outcome {
            Ok(outcome) => tally.add(seed, outcome),
            Err(_) => {
                println!("seed {seed} could not be played");
                tally.broken.push(seed);
                *worlds = labs.worlds();
            }
        }
        if tally.played().is_multiple_of(PROGRESS) {
            tally.print(began);
        }
        true
    });
    println!("flows that were accelerated: {accelerated:?}");
    let tally = tally.into_inner().unwrap();
    if kernel_twice() || with.is_some() {
        return tally;
    }
    // A third is within the host, a fourth is of datagrams, and not every one accepts.
    let played = tally.played() as usize;
    assert!(accelerated.iter().sum::<u64>() as usize >= played / 6, "not accelerated: {accelerated:?}");
    let few = played / accelerated.len() < 20;
    assert!(few || accelerated.iter().all(|flows| *flows > 0), "a lab is not: {accelerated:?}");
    tally
}

fn report(tally: &Tally, began: Instant) {
    tally.print(began);
    println!("varied, the kernel: {:?}, Overfly: {:?}", tally.varied[0], tally.varied[1]);
    println!("somebody goes on running: {:?}", tally.restless);
    tally.known.iter().for_each(|(reason, times)| println!("known, {times}: {reason}"));
    let (different, broken) = (&tally.different, &tally.broken);
    assert!(different.is_empty(), "these seeds say something else over Overfly, see above: {different:?}");
    assert!(broken.is_empty(), "these seeds could not be played: {broken:?}");
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
    let next = AtomicUsize::new(0);
    let all: Vec<_> =
        FOUND.into_iter().chain(FORKS).chain(WAITS).chain(PASSED).chain(KINDS).chain(URGENT).collect();
    play_side_by_side(4, |_, worlds| {
        let Some((what, script)) = all.get(next.fetch_add(1, Ordering::Relaxed)) else { return false };
        if let Some(report) = worlds.make_sure(&Script::parse(script).unwrap()) {
            panic!("{what}:\n{report}");
        }
        true
    });
}

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| value.parse().unwrap())
}

/// Plays one script, slowly, and shows what was said; or many times, as fast as others, and shows what differed, once for each difference.
fn repeat(script: &Script, times: u64, players: usize) {
    if times == 1 {
        let folder = tempfile::tempdir().unwrap();
        let program = compile(play::PROGRAM, folder.path());
        let (kernel, overfly) = Labs::new(0, &program).worlds().play(script, SURE);
        println!("{}", show(script, &kernel, &overfly));
        return;
    }
    let (next, seen) = (AtomicU64::new(0), Mutex::new(BTreeMap::<String, u64>::new()));
    play_side_by_side(players, |_, worlds| {
        if next.fetch_add(1, Ordering::Relaxed) >= times {
            return false;
        }
        if let Some(report) = worlds.differs_once(script) {
            *seen.lock().unwrap().entry(report.to_string()).or_default() += 1;
        }
        true
    });
    let seen = seen.into_inner().unwrap();
    seen.iter().for_each(|(report, count)| println!("{count} times:\n{report}"));
    println!("{} of {times} differed", seen.values().sum::<u64>());
}

/// What `cargo xtask compare-calls` runs.
#[test]
#[ignore = "for as long as one likes"]
fn many_sequences() {
    let began = Instant::now();
    if let Some(path) = std::env::var_os("OVERFLY_SCRIPT") {
        let script = Script::parse(&std::fs::read_to_string(path).unwrap()).expect("a script");
        repeat(&script, setting("OVERFLY_TIMES", 1), setting("OVERFLY_PLAYERS", 4) as usize);
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
    report(&session(seeds, with.as_deref(), setting("OVERFLY_PLAYERS", 28) as usize, enough), began);
}

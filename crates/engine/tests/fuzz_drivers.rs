//! The fuzz drivers on stable: bytes from seeds. `OVERFLY_SEED=n` runs one seed of each driver; `OVERFLY_FUZZ_MS=n`
//! runs new seeds of each on all cores for so long (`cargo xtask fuzz` does that where there is no cargo-fuzz).

mod drivers;
mod harness;

use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use drivers::{DRIVERS, Driver};
use harness::Random;

/// Executions of each driver in an ordinary run.
const EXECUTIONS: u64 = 1500;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// What a seed stands for: bytes, up to 2,000 of them.
fn input(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let most = [20, 200, 2000][random.below(3) as usize];
    let length = random.below(most + 1);
    (0..length).map(|_| random.next() as u8).collect()
}

fn execute(name: &str, driver: Driver, seed: u64) {
    if catch_unwind(AssertUnwindSafe(|| driver(&input(seed)))).is_err() {
        panic!("driver {name} failed with OVERFLY_SEED={seed}");
    }
}

/// Runs a driver over the seeds, and returns how many.
fn run(name: &str) {
    let (_, driver) = DRIVERS.into_iter().find(|(known, _)| *known == name).expect("a driver");
    if let Some(seed) = number("OVERFLY_SEED") {
        execute(name, driver, seed);
    } else if let Some(ms) = number("OVERFLY_FUZZ_MS") {
        let end = Instant::now() + Duration::from_millis(ms);
        let base = RandomState::new().hash_one(name);
        let executions = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(|| {
                    while Instant::now() < end {
                        let serial = executions.fetch_add(1, Ordering::Relaxed);
                        execute(name, driver, Random(base ^ serial).next());
                    }
                });
            }
        });
        println!("{name}: {} executions", executions.into_inner());
    } else {
        for seed in 0..EXECUTIONS {
            execute(name, driver, seed);
        }
    }
}

#[test]
fn frames() {
    run("frames");
}

#[test]
fn tcp_options() {
    run("tcp_options");
}

#[test]
fn segments() {
    run("segments");
}

#[test]
fn operations() {
    run("operations");
}

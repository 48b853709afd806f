//! Fuzz drivers on stable: bytes from seeds. `OVERFLY_SEED=n` runs one seed of each driver; `OVERFLY_FUZZ_MS=n` runs new seeds of each for
//! so long (`cargo xtask fuzz` does that where there is no cargo-fuzz).

use std::hash::{BuildHasher, RandomState};
use std::panic::catch_unwind;
use std::time::{Duration, Instant};

use crate::Random;

/// Executions of each driver in an ordinary run.
const EXECUTIONS: u64 = 1500;

/// Takes any bytes, and panics if a promise is broken.
pub type Driver = fn(&[u8]);

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// What a seed stands for: bytes, up to 2,000 of them.
fn input(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let most = random.one_of(&[20, 200, 2000]);
    let length = random.index(most + 1);
    random.bytes(length)
}

fn execute(name: &str, driver: Driver, seed: u64) {
    if catch_unwind(|| driver(&input(seed))).is_err() {
        panic!("driver {name} failed with OVERFLY_SEED={seed}");
    }
}

/// Runs a driver over the seeds.
///
/// # Panics
/// If the driver does, with the seed.
pub fn run(name: &str, driver: Driver) {
    if let Some(seed) = number("OVERFLY_SEED") {
        execute(name, driver, seed);
    } else if let Some(ms) = number("OVERFLY_FUZZ_MS") {
        let end = Instant::now() + Duration::from_millis(ms);
        let base = RandomState::new().hash_one(name);
        let mut executions = 0;
        while Instant::now() < end {
            execute(name, driver, base.wrapping_add(executions));
            executions += 1;
        }
        println!("{name}: {executions} executions");
    } else {
        (0..EXECUTIONS).for_each(|seed| execute(name, driver, seed));
    }
}

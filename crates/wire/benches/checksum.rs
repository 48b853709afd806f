//! How fast the checksum runs: `cargo bench -p overfly-wire`.

use std::hint::black_box;
use std::time::Instant;

use overfly_wire::checksum::Sum;

/// Repetitions of which the fastest counts: the machine has other work too.
const REPETITIONS: usize = 7;

fn main() {
    for (length, rounds) in [
        (20, 5_000_000),
        (40, 5_000_000),
        (64, 5_000_000),
        (1448, 500_000),
        (9000, 100_000),
    ] {
        let buffer: Vec<u8> = (0..length).map(|at| (at * 7 + 3) as u8).collect();
        let fastest = (0..REPETITIONS)
            .map(|_| {
                let start = Instant::now();
                for _ in 0..rounds {
                    black_box(Sum::new().bytes(black_box(&buffer)).finish());
                }
                start.elapsed()
            })
            .min()
            .unwrap_or_default();
        let sum_ns = fastest.as_secs_f64() * 1e9 / f64::from(rounds);
        println!(
            "{length:5} bytes: {sum_ns:7.2} ns, {:6.1} GB/s",
            f64::from(length) / sum_ns
        );
    }
}

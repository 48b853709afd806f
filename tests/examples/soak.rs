//! `cargo xtask soak`: workers of a loaded nginx, killed and stopped at random moments.

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use overfly_tests::soak::{self, Link, Plan};

const USAGE: &str = "usage: cargo xtask soak [--kills N] [--stops N] [--link xdp|memif|tap] [--seed N]";

fn main() -> ExitCode {
    let Some(plan) = parse(std::env::args().skip(1)) else {
        eprintln!("soak: {USAGE}");
        return ExitCode::from(2);
    };
    let _ = soak::run(plan);
    println!("soak: nothing is left");
    ExitCode::SUCCESS
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<Plan> {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs());
    let mut plan = Plan { link: Link::Xdp, kills: 200, stops: 200, seed, timeout_s: 10, settle_s: 11 };
    while let Some(word) = words.next() {
        let value = words.next()?;
        match word.as_str() {
            "--kills" => plan.kills = value.parse().ok()?,
            "--stops" => plan.stops = value.parse().ok()?,
            "--link" => plan.link = Link::named(&value)?,
            "--seed" => plan.seed = value.parse().ok()?,
            _ => return None,
        }
    }
    Some(plan)
}

//! `cargo xtask costs`: what protections and helpers cost a server that is the limit, each with and without, in turns.
//!
//! nginx with one worker on core 0, the generator on core 1, AF_XDP over veth. *Rules*: an nft set of 1,000 addresses and three rules,
//! against none. *Background*: the thread that moves frames while the program is elsewhere (EF_BACKGROUND), against none.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use overfly_bench::lab::Lab;
use overfly_bench::statistics::median;
use overfly_tests::measured::{Link, Measured, Rounds};
use overfly_tests::{overfly, succeed};

const USAGE: &str = "usage: cargo xtask costs [--repeats N] [--seconds N]";
const WAYS: [(u32, bool); 4] = [(0, false), (0, true), (1024, false), (1024, true)];

fn main() -> ExitCode {
    let Some(rounds) = Rounds::parse(std::env::args().skip(1)) else {
        eprintln!("costs: {USAGE}");
        return ExitCode::from(2);
    };
    println!(
        "| what | response, connections | median of the pairs' ratios | ratio of the best runs | pairs |"
    );
    println!("|---|---|---|---|---|");
    let labs = [(); 2].map(|()| Lab::new(overfly()).expect("a lab"));
    let start = |lab, background| Measured::start(lab, Link::Xdp, &[0], &[("EF_BACKGROUND", background)]);
    let servers = [start(&labs[0], "0"), start(&labs[1], "1")];
    for (bytes, close) in WAYS {
        let pairs = rounds.in_turns(|way| per_s(&servers[way], bytes, close, rounds.seconds));
        row("background", bytes, close, &pairs);
    }
    let (lab, server) = (&labs[1], &servers[1]);
    for (bytes, close) in WAYS {
        let pairs = rounds.in_turns(|way| {
            succeed(lab, "server", &["nft", &if way == 0 { "flush ruleset".to_owned() } else { rules() }]);
            // The broker hears of it a moment later.
            std::thread::sleep(Duration::from_millis(100));
            per_s(server, bytes, close, rounds.seconds)
        });
        row("rules", bytes, close, &pairs);
    }
    servers.into_iter().for_each(Measured::stop);
    ExitCode::SUCCESS
}

/// Requests a second.
fn per_s(server: &Measured<'_>, bytes: u32, close: bool, seconds: u32) -> f64 {
    let duration = format!("{seconds}s");
    let mut words = vec!["--cpus", "1", "-c", "64", "--warmup", "0.2s", "-d", &duration];
    if close {
        words.push("--close");
    }
    server.load(&words, bytes)["requests_per_s"].as_f64().expect("a figure")
}

/// Addresses that are banned, none of them the generator's.
fn rules() -> String {
    let mut addresses = String::new();
    for number in 0..1000 {
        let _ = write!(addresses, "192.0.{}.{}, ", number / 250, number % 250);
    }
    format!(
        "flush ruleset; table inet t {{ set banned {{ type ipv4_addr; elements = {{ {addresses} }}\n}}\n\
         chain i {{ type filter hook input priority 0; policy drop;\n\
         ip saddr @banned drop\nct state established,related accept\ntcp dport 80 accept\n}}\n}}"
    )
}

fn row(what: &str, bytes: u32, close: bool, [without, with]: &[Vec<f64>; 2]) {
    let ratios: Vec<f64> = with.iter().zip(without).map(|(with, without)| with / without).collect();
    let best = |runs: &[f64]| runs.iter().copied().fold(0.0, f64::max);
    let points: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
    println!(
        "| {what} | {bytes} B, {} | {:.2} | {:.2} | {} |",
        if close { "new one each" } else { "kept open" },
        median(ratios.iter().copied()),
        best(with) / best(without),
        points.join(" ")
    );
}

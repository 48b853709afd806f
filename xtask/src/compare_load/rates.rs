//! How well our generator keeps a rate: from 10/s to 80 % of what it can do, in two seconds.
//!
//! At a low rate its threads sleep between requests, and a generator that wakes late reports its own delay as the server's
//! latency. So latency, from when a request was due, stands beside service, from when it was sent.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Stdio;

use overfly_bench::lab::Lab;
use overfly_bench::statistics::median;
use serde_json::Value;

use super::Link;
use super::generators::{Amount, Generator, Work};
use super::measure::{self, GENERATOR_CORE, Server};
use super::stalls::Stalls;

/// Shares of capacity beside the absolute rates.
const SHARES: [f64; 2] = [0.5, 0.8];
const ABSOLUTE: [f64; 4] = [10.0, 100.0, 300.0, 1000.0];

/// What came of one rate.
#[derive(Clone, Copy)]
struct Kept {
    asked_per_s: f64,
    sent_per_s: f64,
    latency_p50_us: f64,
    service_p50_us: f64,
    lag_p50_us: f64,
    lag_p99_us: f64,
    /// A percentile that only the core's own stalls would have, just before the run.
    core_p99_us: f64,
}

/// A line for each rate over each of the link's clients: medians of `rounds`.
pub(crate) fn rates(
    lab: &Lab,
    overfly: &Path,
    link: &Link,
    rounds: usize,
    amount: Amount,
) -> Result<String, String> {
    let _server = Server::start(lab, overfly, link)?;
    let mut text = String::new();
    for client in link.clients {
        let words = link.words(client);
        let generator = Generator::Overfly { link: client };
        let mut most = Vec::new();
        for _ in 0..rounds {
            let run = measure::run(lab, overfly, &generator, Work::KeepAlive, amount, &words)?;
            most.extend(run.map(|run| run.said.per_s));
        }
        let most = median(most.into_iter());
        text += &format!(
            "\nA rate over {client}, two seconds each; medians of {rounds}; capacity {most:.0}/s\n\n\
             {:>14}{:>14}{:>12}{:>18}{:>18}{:>16}{:>16}{:>24}\n",
            "asked /s",
            "sent /s",
            "error %",
            "latency p50 µs",
            "service p50 µs",
            "lag p50 µs",
            "lag p99 µs",
            "core's own p99 µs"
        );
        for rate in ABSOLUTE.into_iter().chain(SHARES.map(|share| (share * most).round())) {
            let kept = (0..rounds).map(|_| keep(lab, overfly, rate, amount.connections, &words));
            let kept = kept.collect::<Result<Vec<Kept>, String>>()?;
            let value = |each: fn(&Kept) -> f64| median(kept.iter().map(each));
            writeln!(
                text,
                "{:>14.1}{:>14.1}{:>12.3}{:>18.1}{:>18.1}{:>16.1}{:>16.1}{:>24.1}",
                value(|kept| kept.asked_per_s),
                value(|kept| kept.sent_per_s),
                value(|kept| 100.0 * (kept.sent_per_s - kept.asked_per_s) / kept.asked_per_s),
                value(|kept| kept.latency_p50_us),
                value(|kept| kept.service_p50_us),
                value(|kept| kept.lag_p50_us),
                value(|kept| kept.lag_p99_us),
                value(|kept| kept.core_p99_us),
            )
            .expect("a String takes whatever is written");
        }
    }
    Ok(text)
}

fn keep(lab: &Lab, overfly: &Path, rate: f64, connections: u32, words: &[String]) -> Result<Kept, String> {
    let core_p99_us = Stalls::measure(GENERATOR_CORE).lag_us(0.99);
    let mut command = lab.pinned("client", overfly, GENERATOR_CORE);
    command.args(["load", "http", "--json", "-d2s"]);
    command.args(["-c", &connections.to_string(), "-R", &rate.to_string(), &measure::url()]);
    let output = command.args(words).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("cannot start overfly: {error}"))?;
    let json = String::from_utf8_lossy(&output.stdout);
    let report: Value = serde_json::from_str(json.lines().last().unwrap_or_default())
        .map_err(|error| format!("{error}: {json}{}", String::from_utf8_lossy(&output.stderr)))?;
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let open = &report["open_loop"];
    Ok(Kept {
        asked_per_s: number(&open["asked_per_s"]),
        sent_per_s: number(&open["sent_per_s"]),
        latency_p50_us: number(&report["latency_us"]["p50"]),
        service_p50_us: number(&report["service_us"]["p50"]),
        lag_p50_us: number(&open["send_lag_us"]["p50"]),
        lag_p99_us: number(&open["send_lag_us"]["p99"]),
        core_p99_us,
    })
}

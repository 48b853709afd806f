//! How well our generator keeps a rate: from 10/s to 80 % of what it can do, in two seconds.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Stdio;

use overfly_bench::lab::Lab;
use serde_json::Value;

use super::Link;
use super::generators::{Amount, Generator, Work};
use super::measure::{self, Server};

/// Shares of capacity beside the absolute rates.
const SHARES: [f64; 2] = [0.5, 0.8];
const ABSOLUTE: [f64; 2] = [10.0, 1000.0];
const CONNECTIONS: u32 = 64;

/// A line for each rate over each of the link's clients.
pub(crate) fn rates(lab: &Lab, overfly: &Path, link: &Link, seconds: u32) -> Result<String, String> {
    let mut text = String::new();
    let _server = Server::start(lab, overfly, link)?;
    for client in link.clients {
        let words = link.words(client);
        let generator = Generator::Overfly { link: client };
        let amount = Amount { connections: CONNECTIONS, seconds };
        let most = measure::run(lab, overfly, &generator, Work::KeepAlive, amount, &words)?;
        let most = most.map_or(0.0, |run| run.said.per_s);
        writeln!(text, "\nA rate over {client}, two seconds each; capacity {most:.0}/s\n")
            .expect("a String takes whatever is written");
        writeln!(
            text,
            "{:>14}{:>14}{:>12}{:>16}{:>16}",
            "asked /s", "sent /s", "error %", "lag p50 µs", "lag p99 µs"
        )
        .expect("a String takes whatever is written");
        for rate in ABSOLUTE.into_iter().chain(SHARES.map(|share| (share * most).round())) {
            let open = open_loop(lab, overfly, rate, &words)?;
            let number = |key: &str| open[key].as_f64().unwrap_or(f64::NAN);
            let (asked, sent) = (number("asked_per_s"), number("sent_per_s"));
            let lag = |percentile: &str| open["send_lag_us"][percentile].as_f64().unwrap_or(f64::NAN);
            writeln!(
                text,
                "{asked:>14.1}{sent:>14.1}{:>12.3}{:>16.1}{:>16.1}",
                100.0 * (sent - asked) / asked,
                lag("p50"),
                lag("p99")
            )
            .expect("a String takes whatever is written");
        }
    }
    Ok(text)
}

fn open_loop(lab: &Lab, overfly: &Path, rate: f64, words: &[String]) -> Result<Value, String> {
    let mut command = lab.command("client", overfly);
    let rate = rate.to_string();
    let url = measure::url();
    command.args(["load", "http", "--json", "-c64", "-d2s", "--cpus", "1", "-R", &rate, &url]);
    let output = command.args(words).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("cannot start overfly: {error}"))?;
    let json = String::from_utf8_lossy(&output.stdout);
    let report: Value = serde_json::from_str(json.lines().last().unwrap_or_default())
        .map_err(|error| format!("{error}: {json}{}", String::from_utf8_lossy(&output.stderr)))?;
    Ok(report["open_loop"].clone())
}

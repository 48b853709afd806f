//! `cargo xtask workers`: what two nginx workers lose by being workers of one nginx.
//!
//! Two cores, and on each a worker and a thread of the generator, which so take turns. Either the workers are those of two
//! nginx in networks of their own, which share nothing but the machine, or they are those of one. The first is twice one worker.

use std::process::ExitCode;
use std::thread;

use overfly_bench::lab::Lab;
use overfly_bench::statistics::median;
use overfly_testing::process;
use overfly_tests::measured::{Link, Measured, Rounds};
use overfly_tests::overfly;
use serde_json::Value;

const USAGE: &str = "usage: cargo xtask workers [--repeats N] [--seconds N]";
/// A worker that has nothing to do sleeps at once: the time is the generator's, and no processor time of the worker.
const OPTIONS: [(&str, &str); 1] = [("EF_POLL_USEC", "0")];

fn main() -> ExitCode {
    let Some(rounds) = Rounds::parse(std::env::args().skip(1)) else {
        eprintln!("workers: {USAGE}");
        return ExitCode::from(2);
    };
    let seconds = rounds.seconds;
    println!(
        "| link | connections | apart, requests/s | µs/request | together, requests/s | µs/request | two for one | points |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for link in Link::ALL {
        for (connections, close) in [("stay open", false), ("one each", true)] {
            let [apart, together] = rounds.in_turns(|way| match way {
                0 => apart(link, close, seconds),
                _ => together(link, close, seconds),
            });
            let per_s = |runs: &[Run]| median(runs.iter().map(|run| run.per_s));
            let cost_us = |runs: &[Run]| median(runs.iter().map(|run| run.cost_us));
            let points: Vec<String> = apart
                .iter()
                .zip(&together)
                .map(|(one, other)| format!("{:.2}", 2.0 * other.per_s / one.per_s))
                .collect();
            println!(
                "| {} | {connections} | {:.0} | {:.2} | {:.0} | {:.2} | {:.2} | {} |",
                link.name(),
                per_s(&apart),
                cost_us(&apart),
                per_s(&together),
                cost_us(&together),
                2.0 * per_s(&together) / per_s(&apart),
                points.join(" ")
            );
        }
    }
    ExitCode::SUCCESS
}

struct Run {
    /// Requests a second, all together.
    per_s: f64,
    /// Processor time of the workers, a request.
    cost_us: f64,
}

impl Run {
    fn new(reports: &[Value], ticks: u64) -> Run {
        let sum =
            |name: &str| reports.iter().map(|report| report[name].as_f64().expect("a figure")).sum::<f64>();
        let tick_us = 1e6 / rustix::param::clock_ticks_per_second() as f64;
        Run { per_s: sum("requests_per_s"), cost_us: ticks as f64 * tick_us / sum("succeeded") }
    }
}

/// Two nginx with a worker each; the generator's thread for one is on the other's core.
fn apart(link: Link, close: bool, seconds: u32) -> Run {
    let labs = [0, 1].map(|_| Lab::new(overfly()).expect("a lab"));
    let nginx = [0, 1].map(|core| Measured::start(&labs[core], link, &[core], &OPTIONS));
    let before: u64 = nginx.iter().map(ticks).sum();
    let reports: Vec<Value> = thread::scope(|scope| {
        let loads = nginx.each_ref().map(|nginx| {
            let other = if nginx.cores == [0] { "1" } else { "0" };
            scope.spawn(move || load(nginx, &["-t", "1", "-c", "256", "--cpus", other], close, seconds))
        });
        loads.into_iter().map(|load| load.join().expect("a generator")).collect()
    });
    let run = Run::new(&reports, nginx.iter().map(ticks).sum::<u64>() - before);
    nginx.into_iter().for_each(Measured::stop);
    run
}

/// One nginx with two workers. Over memif a thread's connections are one worker's, and whoever comes first has a client: it is
/// done again if one worker has all of them.
fn together(link: Link, close: bool, seconds: u32) -> Run {
    for _ in 0..10 {
        let lab = Lab::new(overfly()).expect("a lab");
        let nginx = Measured::start(&lab, link, &[0, 1], &OPTIONS);
        let before: Vec<u64> = nginx.workers.iter().map(|id| process::ticks(*id)).collect();
        let report = load(&nginx, &["-t", "2", "-c", "512", "--cpus", "0,1"], close, seconds);
        let spent: Vec<u64> =
            nginx.workers.iter().zip(before).map(|(id, before)| process::ticks(*id) - before).collect();
        nginx.stop();
        let all: u64 = spent.iter().sum();
        if spent.iter().all(|one| one * 5 > all) {
            return Run::new(&[report], all);
        }
    }
    panic!("one of the workers has no work, again and again");
}

fn load(nginx: &Measured<'_>, words: &[&str], close: bool, seconds: u32) -> Value {
    let duration = format!("{seconds}s");
    let mut words = [words, &["-d", &duration]].concat();
    if close {
        words.push("--close");
    }
    nginx.load(&words, 0)
}

fn ticks(nginx: &Measured<'_>) -> u64 {
    nginx.workers.iter().map(|id| process::ticks(*id)).sum()
}

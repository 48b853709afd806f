//! `cargo xtask calls`: the system calls that a spinning nginx worker makes while it serves, as strace counts them.

use std::collections::BTreeMap;
use std::process::{Command, ExitCode, Stdio};

use overfly_bench::lab::Lab;
use overfly_testing::process;
use overfly_tests::measured::{Link, Measured};
use overfly_tests::{eventually, overfly, send};
use rustix::process::Signal;

const USAGE: &str = "usage: cargo xtask calls [--requests N]";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let requests: u64 = match words.as_slice() {
        [] => 100_000,
        [option, number]
            if option == "--requests" && number.parse::<u64>().is_ok_and(|number| number > 0) =>
        {
            number.parse().unwrap_or(1)
        }
        _ => {
            eprintln!("calls: {USAGE}");
            return ExitCode::from(2);
        }
    };
    println!("| link | connections | file | requests | system calls of the worker |");
    println!("|---|---|---|---|---|");
    for link in Link::ALL {
        for (connections, words) in [("stay open", &[][..]), ("one each", &["--close"])] {
            for bytes in [0, 1024] {
                let calls = count(link, requests, words, bytes);
                let calls: Vec<String> =
                    calls.iter().map(|(name, count)| format!("{name} {count}")).collect();
                println!(
                    "| {} | {connections} | {bytes} B | {requests} | {} |",
                    link.name(),
                    calls.join(", ")
                );
            }
        }
    }
    ExitCode::SUCCESS
}

/// How often the worker made each call meanwhile, threads of the library included.
fn count(link: Link, requests: u64, words: &[&str], bytes: u32) -> BTreeMap<String, u64> {
    let lab = Lab::new(overfly()).expect("a lab");
    let nginx = Measured::start(&lab, link, &[0], &[]);
    let worker = nginx.workers[0];
    let load = |requests: u64| {
        let requests = requests.to_string();
        let all: Vec<&str> =
            ["-c", "64", "--cpus", "1", "-n", &requests].into_iter().chain(words.iter().copied()).collect();
        let _ = nginx.load(&all, bytes);
    };
    // What happens once only: files are opened, sockets go into the cache.
    load(2000);
    let folder = std::env::temp_dir().join(format!("overfly-calls-{}", std::process::id()));
    let mut strace = Command::new("strace")
        .args(["-f", "-c", "-U", "name,calls", "-p", &worker.to_string(), "-o"])
        .arg(&folder)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("strace");
    eventually("strace looks on", || !matches!(process::status(worker, "TracerPid").as_str(), "" | "0"));
    load(requests);
    send(strace.id(), Signal::INT);
    strace.wait().expect("strace ends");
    let table = std::fs::read_to_string(&folder).expect("what strace counted");
    std::fs::remove_file(&folder).expect("remove what strace wrote");
    nginx.stop();
    table.lines().filter_map(row).collect()
}

/// A line of strace's table: a name and a number.
fn row(line: &str) -> Option<(String, u64)> {
    let (name, calls) = line.split_once(char::is_whitespace)?;
    (name != "total").then_some((name.to_owned(), calls.trim().parse().ok()?))
}

//! Calls at moments that a program meets seldom: what it is told over Overfly is what it is told over the kernel. The broker runs
//! in this process. Needs root and python3.

use std::process::Command;

use crate::bench::lab::{CLIENT, SERVER};
use crate::bench::{Bench, peer, programs, run, sum, text};

/// What the script tells. `OVERFLY_CASES=a,b` takes only these.
fn told(accelerates: bool, options: &[(&str, &str)]) -> String {
    let bench = Bench::new(2);
    for end in [&bench.lab.server, &bench.lab.client] {
        // Listeners take data with a SYN, without being told (Documentation/networking/ip-sysctl.rst).
        end.write("/proc/sys/net/ipv4/tcp_fastopen", "1027");
    }
    let _peer = peer(&bench, &CLIENT.to_string());
    let mut script = if accelerates { bench.accelerated("timeout") } else { Command::new("timeout") };
    script.args(["-s", "KILL", "200", "/usr/bin/python3"]).arg(programs("answers.py"));
    script.args([SERVER.to_string(), CLIENT.to_string()]).envs(options.iter().copied());
    let cases = std::env::var("OVERFLY_CASES").unwrap_or_default();
    script.args(cases.split(',').filter(|case| !case.is_empty()));
    let output = run(&bench.lab.server, &mut script);
    let (told, complained) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && told.ends_with("done\n"), "{options:?}: {told}\n{complained}");
    // What fails in the script, and not the counters of each of its processes.
    let failures: String = complained
        .lines()
        .filter(|line| !line.starts_with("overfly: process"))
        .map(|line| format!("{line}\n"))
        .collect();
    println!("{failures}");
    if accelerates && cases.is_empty() {
        assert!(sum(&complained, "accepts") > 20, "not accelerated: {complained}");
    }
    told
}

/// What is told of each case.
fn by_case(told: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines: Vec<&str> = told.lines().collect();
    let mut cases: Vec<Vec<&str>> = Vec::new();
    for line in lines {
        match cases.last_mut() {
            Some(case) if !line.ends_with(':') => case.push(line),
            _ => cases.push(vec![line]),
        }
    }
    cases.into_iter()
}

/// Cases of ports that only connections have: Linux keeps them from bind(), and here they may be free (docs/sockets.md, "bind()"). No
/// port may be taken here that is free on Linux, nor one be free that a listener has.
const PORTS_OF_CONNECTIONS: [&str; 4] = [
    "a_port_that_connections_have:",
    "a_port_whose_connection_the_peer_has_closed:",
    "a_port_that_connects:",
    "a_port_in_time_wait_connects_again:",
];

/// Whether a case came out as on the kernel, or differs as it may.
fn as_documented(kernel: &[&str], overfly: &[&str]) -> bool {
    let word = |kernel: &str, overfly: &str| kernel == overfly || (kernel, overfly) == ("EADDRINUSE", "free");
    let line = |kernel: &str, overfly: &str| {
        kernel.split(' ').count() == overfly.split(' ').count()
            && kernel.split(' ').zip(overfly.split(' ')).all(|(kernel, overfly)| word(kernel, overfly))
            && (!kernel.starts_with("listening") || kernel == overfly)
    };
    kernel == overfly
        || PORTS_OF_CONNECTIONS.contains(&kernel[0])
            && kernel.len() == overfly.len()
            && kernel.iter().zip(overfly).all(|(kernel, overfly)| line(kernel, overfly))
}

#[test]
fn seldom_moments_look_as_over_the_kernel() {
    let ways: [(bool, &[(&str, &str)]); 4] = [
        (false, &[]),
        (true, &[]),
        (true, &[("EF_POLL_USEC", "2000")]),
        (true, &[("EF_STACK_PER_THREAD", "1")]),
    ];
    let threads = ways.map(|(accelerates, options)| std::thread::spawn(move || told(accelerates, options)));
    let [kernel, overfly @ ..] = threads.map(|thread| thread.join().unwrap());
    println!("over the kernel:\n{kernel}");
    for ((_, options), overfly) in ways[1..].iter().zip(overfly) {
        let different: Vec<_> =
            by_case(&kernel).zip(by_case(&overfly)).filter(|(a, b)| !as_documented(a, b)).collect();
        let cases = [&kernel, &overfly].map(|told| by_case(told).count());
        assert!(different.is_empty() && cases[0] == cases[1], "{options:?}: kernel, Overfly: {different:#?}");
    }
}

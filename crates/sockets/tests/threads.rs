//! Threads that make sockets and use each other's, with one stack for all of them and with a stack for each. The broker runs in
//! this process. Needs root and python3.

use std::process::Command;

use crate::bench::lab::{CLIENT, SERVER};
use crate::bench::{Bench, peer, programs, run, sum, text};

/// Debian's: another one's folder may be closed to ordinary users.
const PYTHON: &str = "/usr/bin/python3";

/// How many stacks of a process had connections, by what they report at its end.
fn stacks_in_use(complained: &str) -> usize {
    let connections = |line: &&str| sum(line, "accepts") + sum(line, "connects") > 0;
    complained.lines().filter(|line| line.contains(", stack ")).filter(connections).count()
}

#[test]
fn threads_share_as_over_the_kernel() {
    let bench = Bench::new(2);
    let ways = [
        (false, "0", "0"),
        (true, "0", "0"),
        (true, "1", "0"),
        (true, "1", "200"),
        (true, "2", "0"),
        (true, "3", "0"),
    ];
    for (accelerates, per_thread, spin_us) in ways {
        let _peer = peer(&bench, &CLIENT.to_string());
        let mut script = if accelerates { bench.accelerated("timeout") } else { Command::new("timeout") };
        script.args(["-s", "KILL", "150", PYTHON]).arg(programs("threads.py"));
        script.env("EF_POLL_USEC", spin_us);
        if accelerates {
            bench.stack_per_thread(&mut script, per_thread);
        }
        let output = run(&bench.lab.server, script.args([SERVER.to_string(), CLIENT.to_string()]));
        let (told, complained) = (text(&output.stdout), text(&output.stderr));
        println!("accelerated: {accelerates}, stack per thread: {per_thread}, spins {spin_us} us\n{told}");
        assert!(output.status.success(), "{told}\n{complained}");
        if accelerates {
            assert!(sum(&complained, "connects") > 300, "{complained}");
            assert_eq!(sum(&complained, "(refused"), 0, "{complained}");
            let stacks = stacks_in_use(&complained);
            assert!(if per_thread != "0" { stacks > 20 } else { stacks == 0 }, "{stacks}: {complained}");
        }
    }
}

/// Connections go to the stacks of the threads that serve them, and back to none: each byte is right meanwhile.
#[test]
fn connections_follow_the_threads_that_serve_them() {
    let bench = Bench::new(2);
    let one = std::env::var("OVERFLY_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in one.map_or(1..4, |seed: u64| seed..seed + 1) {
        for (per_thread, spin_us) in [("0", "0"), ("1", "0"), ("2", "0"), ("2", "200"), ("3", "0")] {
            let _peer = peer(&bench, &CLIENT.to_string());
            let mut script = bench.accelerated("timeout");
            script.args(["-s", "KILL", "120", PYTHON]).arg(programs("moves.py"));
            script.env("EF_POLL_USEC", spin_us);
            bench.stack_per_thread(&mut script, per_thread);
            if per_thread == "3" && seed % 2 == 0 {
                // It divides in the middle.
                script.env("MEETS_LATER", "1");
            }
            let ends = [SERVER.to_string(), CLIENT.to_string(), seed.to_string()];
            let output = run(&bench.lab.server, script.args(ends));
            let (told, complained) = (text(&output.stdout), text(&output.stderr));
            println!("stack per thread: {per_thread}, spins {spin_us} us\n{told}\n{complained}");
            assert!(output.status.success() && told.ends_with("done\n"), "seed {seed}: {told}\n{complained}");
            assert!(sum(&complained, "accepts") >= 24, "{complained}");
            let moved = sum(&complained, "moved here");
            assert!(
                if matches!(per_thread, "2" | "3") { moved > 5 } else { moved == 0 },
                "seed {seed}: {complained}"
            );
        }
    }
}

/// A connection that a child may have stays where the child will ask for it.
#[test]
fn connections_of_children_follow_nobody() {
    let bench = Bench::new(2);
    for per_thread in ["2", "3"] {
        let _peer = peer(&bench, &CLIENT.to_string());
        let mut script = bench.accelerated("timeout");
        script.args(["-s", "KILL", "60", PYTHON]).arg(programs("threads.py"));
        bench.stack_per_thread(&mut script, per_thread);
        script.args([SERVER.to_string(), CLIENT.to_string()]);
        let output = run(&bench.lab.server, script.arg("a_child_finds_what_a_thread_goes_on_serving"));
        let (told, complained) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{told}\n{complained}");
        assert_eq!(sum(&complained, "moved here"), 0, "{complained}");
    }
}

#[test]
fn spins_in_vain_are_left_out_where_it_is_wished() {
    let bench = Bench::new(1);
    let ways = ["epoll_wait", "poll", "select", "accept"].map(|way| ("1", way));
    for (adapts, first) in ways.into_iter().chain([("0", "poll"), ("2", "poll")]) {
        let mut script = bench.accelerated("timeout");
        script.args(["-s", "KILL", "60", PYTHON]).arg(programs("spins.py"));
        script.env("EF_POLL_USEC", "20000").env("EF_TCP_ACCEPT_SPIN", "1").env("EF_POLL_ADAPT", adapts);
        let output = run(&bench.lab.server, script.args([&SERVER.to_string(), adapts, first]));
        let (told, complained) = (text(&output.stdout), text(&output.stderr));
        println!("EF_POLL_ADAPT={adapts}\n{told}");
        assert!(output.status.success(), "{told}\n{complained}");
    }
}

#[test]
fn an_event_loop_sends_what_it_answers_together_whoever_else_sleeps() {
    const ROUNDS: u64 = 200;
    let bench = Bench::new(1);
    let _peer = peer(&bench, &CLIENT.to_string());
    let mut script = bench.accelerated("timeout");
    script.args(["-s", "KILL", "60", PYTHON]).arg(programs("loops.py"));
    script.args([SERVER.to_string(), CLIENT.to_string(), ROUNDS.to_string()]);
    let output = run(&bench.lab.server, &mut script);
    let (told, complained) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{told}\n{complained}");
    let (answers, kicks) = (16 * ROUNDS, sum(&complained, "kicks:"));
    println!("{kicks} kicks for {answers} answers");
    assert!(kicks * 2 < answers, "{kicks} kicks for {answers} answers: {complained}");
}

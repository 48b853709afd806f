//! EF_STACK_PER_THREAD=3: a process whose threads meet at its stack's lock divides, and one whose threads do not stays as it is. The broker
//! runs in this process. Needs root, python3 and memcached.

mod bench;

use std::process::{Child, Command, Output, Stdio};

use bench::lab::SERVER;
use bench::{Bench, programs, run, spawn, sum, text};
use rustix::process::{Pid, Signal, kill_process};

/// Debian's: another one's folder may be closed to ordinary users.
const PYTHON: &str = "/usr/bin/python3";

fn seed() -> u64 {
    std::env::var("OVERFLY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// A program that ends when it is told to.
fn end(program: Child) -> Output {
    kill_process(Pid::from_child(&program), Signal::TERM).unwrap();
    program.wait_with_output().unwrap()
}

/// How often a call waited for a lock.
fn lock_waits(reported: &str) -> u64 {
    sum(reported, "lock waits")
}

/// memcached with four threads, and so many seconds of a client that uses it that way: what it reports at its end.
fn memcached(options: &[(&str, &str)], way: &str, seconds: u32) -> String {
    let bench = Bench::new(2);
    let mut command = bench.accelerated("memcached");
    command.args(["-u", "root", "-t", "4", "-p", "11211", "-U", "0", "-m", "64", "-l", &SERVER.to_string()]);
    let server = spawn(&bench.lab.server, command.envs(options.iter().copied()).stderr(Stdio::piped()));
    bench.until_joined((SERVER, 11211).into(), 1);
    let mut client = Command::new("timeout");
    client.args(["-s", "KILL", "120", PYTHON]).arg(programs("memcached.py"));
    client.args([&SERVER.to_string(), way, &seed().to_string(), &seconds.to_string()]);
    let told = run(&bench.lab.client, &mut client);
    let reported = text(&end(server).stderr);
    println!("{options:?}, {way}: {}{reported}", text(&told.stdout));
    assert!(told.status.success(), "{}{}\n{reported}", text(&told.stdout), text(&told.stderr));
    reported
}

#[test]
fn a_process_whose_threads_meet_divides() {
    let reported = memcached(&[("EF_POLL_USEC", "0")], "busy", 8);
    assert!(reported.contains(", stack 1: "), "{reported}");
    assert_eq!(sum(&reported, "accepts"), 48, "{reported}");
    // Some may wait for theirs until the end: an attempt is put off while the other stack is busy.
    assert!(sum(&reported, "moved here") > 24, "{reported}");
    assert_eq!((sum(&reported, "handed over"), sum(&reported, "(refused")), (0, 0), "{reported}");
}

#[test]
fn a_process_whose_threads_seldom_meet_stays_whole() {
    let reported = memcached(&[("EF_POLL_USEC", "0")], "calm", 4);
    assert!(!reported.contains(", stack "), "{reported}");
    assert_eq!(sum(&reported, "accepts"), 8, "{reported}");
    println!("lock waits: {}", lock_waits(&reported));
}

#[test]
fn a_process_that_is_to_have_one_stack_does_not_divide() {
    let reported = memcached(&[("EF_POLL_USEC", "0"), ("EF_STACK_PER_THREAD", "0")], "busy", 4);
    assert!(!reported.contains(", stack "), "{reported}");
    // There was a reason to.
    assert!(lock_waits(&reported) > 200, "{reported}");
}

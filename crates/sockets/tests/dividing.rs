//! EF_STACK_PER_THREAD=3: a process whose threads meet at its stack's lock divides, and one whose threads do not stays as it is. The broker
//! runs in this process. Needs root, python3, memcached and haproxy.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use crate::bench::lab::{CLIENT, SERVER};
use crate::bench::{Bench, Helper, programs, run, spawn, sum, text};
use rustix::process::{Pid, Signal, kill_process};

/// Debian's: another one's folder may be closed to ordinary users.
const PYTHON: &str = "/usr/bin/python3";

fn seed() -> u64 {
    std::env::var("OVERFLY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// A program that ends when it is told to, by that signal.
fn end(program: Child, signal: Signal) -> Output {
    kill_process(Pid::from_child(&program), signal).unwrap();
    program.wait_with_output().unwrap()
}

/// So many seconds of a client of memcached that uses it that way. It has been answered right.
fn client(bench: &Bench, way: &str, seconds: u32) {
    let mut client = Command::new("timeout");
    client.args(["-s", "KILL", "120", PYTHON]).arg(programs("memcached.py"));
    client.args([&SERVER.to_string(), way, &seed().to_string(), &seconds.to_string()]);
    let told = run(&bench.lab.client, &mut client);
    println!("{way}: {}", text(&told.stdout));
    assert!(told.status.success(), "{}{}", text(&told.stdout), text(&told.stderr));
}

/// Timers of the program: each of its stacks has one for when nobody looks after it, and at most one more.
fn timers(program: &Child) -> usize {
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", program.id())).unwrap();
    let is_timer =
        |path: PathBuf| std::fs::read_link(path).is_ok_and(|of| of.ends_with("anon_inode:[timerfd]"));
    descriptors.flatten().filter(|descriptor| is_timer(descriptor.path())).count()
}

/// Clients keep a program busy until it has three stacks or more: on a busy machine its threads seldom run at once. Returns how many have been there.
fn until_divided(bench: &Bench, program: &Child) -> u64 {
    let before = timers(program);
    for round in 1..=6 {
        client(bench, "busy", 4);
        if timers(program) > before + 1 {
            return round;
        }
    }
    panic!("it does not divide: {before} timers, and {}", timers(program));
}

/// memcached with four threads, and what clients do with it: what that returns, and what memcached reports at its end.
fn memcached<T>(options: &[(&str, &str)], use_it: impl FnOnce(&Bench, &Child) -> T) -> (T, String) {
    let bench = Bench::new(2);
    let mut command = bench.accelerated("memcached");
    command.args(["-u", "root", "-t", "4", "-p", "11211", "-U", "0", "-m", "64", "-l", &SERVER.to_string()]);
    let server = spawn(&bench.lab.server, command.envs(options.iter().copied()).stderr(Stdio::piped()));
    bench.until_joined((SERVER, 11211).into(), 1);
    let used = use_it(&bench, &server);
    let reported = text(&end(server, Signal::TERM).stderr);
    println!("{options:?}: {reported}");
    (used, reported)
}

#[test]
fn a_process_whose_threads_meet_divides() {
    let (rounds, reported) = memcached(&[("EF_POLL_USEC", "0")], until_divided);
    assert!(reported.contains(", stack 1: "), "{reported}");
    assert_eq!(sum(&reported, "accepts"), 48 * rounds, "{reported}");
    assert!(sum(&reported, "moved here") > 0, "{reported}");
    assert_eq!((sum(&reported, "handed over"), sum(&reported, "(refused")), (0, 0), "{reported}");
}

#[test]
fn a_process_whose_threads_seldom_meet_stays_whole() {
    let ((), reported) = memcached(&[("EF_POLL_USEC", "0")], |bench, _| client(bench, "calm", 4));
    assert!(!reported.contains(", stack "), "{reported}");
    assert_eq!(sum(&reported, "accepts"), 8, "{reported}");
}

#[test]
fn a_process_that_is_to_have_one_stack_does_not_divide() {
    let options = [("EF_POLL_USEC", "0"), ("EF_STACK_PER_THREAD", "0")];
    let ((), reported) = memcached(&options, |bench, _| client(bench, "busy", 4));
    assert!(!reported.contains(", stack "), "{reported}");
}

/// HAProxy with three threads between the client and memcached: connections that its threads accept, and those that they open.
#[test]
fn a_proxy_whose_threads_meet_divides() {
    let bench = Bench::new(2);
    let mut behind = Command::new("memcached");
    behind.args(["-u", "root", "-t", "1", "-p", "11212", "-U", "0", "-m", "64", "-l", &CLIENT.to_string()]);
    let _behind = Helper(spawn(&bench.lab.client, &mut behind));
    let settings = format!(
        "global\n nbthread 3\ndefaults\n mode tcp\n timeout connect 5s\n timeout client 30s\n timeout server 30s\n\
         listen cache\n bind {SERVER}:11211\n server behind {CLIENT}:11212\n"
    );
    std::fs::write(bench.path("haproxy.cfg"), settings).unwrap();
    let mut command = bench.accelerated("haproxy");
    command.arg("-db").arg("-f").arg(bench.path("haproxy.cfg")).env("EF_POLL_USEC", "0");
    let proxy = spawn(&bench.lab.server, command.stderr(Stdio::piped()));
    bench.until_joined((SERVER, 11211).into(), 1);
    let connections = 48 * until_divided(&bench, &proxy);
    // At once it would end without a word.
    let reported = text(&end(proxy, Signal::USR1).stderr);
    println!("{reported}");
    assert!(reported.contains(", stack 1: "), "{reported}");
    assert_eq!(
        (sum(&reported, "accepts"), sum(&reported, "connects")),
        (connections, connections),
        "{reported}"
    );
    assert!(sum(&reported, "moved here") > 0, "{reported}");
}

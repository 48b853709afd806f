//! Processes that share a listener, one of which is stopped: new connections go to those that look at what comes, so that the
//! others' clients notice nothing. The broker runs in this process. Needs root and python3.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench::lab::SERVER;
use crate::bench::{Bench, Helper, programs, run, spawn, text};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, getpeername, socket_with};
use rustix::process::{Pid, Signal, kill_process};

const CONNECTIONS: usize = 240;
/// A SYN that nobody answers is sent again after a second.
const SOON: Duration = Duration::from_millis(500);

/// Opens connections one after the other. Returns how many each process served, and how many a SYN was sent again for.
fn ask_all(bench: &Bench, to: SocketAddr) -> (BTreeMap<i32, usize>, usize) {
    bench.lab.client.within(|| {
        let (mut served, mut again) = (BTreeMap::new(), 0);
        for number in 0..CONNECTIONS {
            let begin = Instant::now();
            let mut client = TcpStream::connect_timeout(&to, Duration::from_secs(20))
                .unwrap_or_else(|error| panic!("connection {number} was lost: {error}"));
            again += usize::from(begin.elapsed() > SOON);
            client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            client.write_all(b"who").unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap_or_else(|error| panic!("connection {number}: {error}"));
            *served.entry(answer.parse().unwrap()).or_insert(0) += 1;
        }
        (served, again)
    })
}

/// The server, and the numbers of its two processes.
fn serve(bench: &Bench, to: SocketAddr) -> (Helper, Vec<i32>) {
    let mut command = bench.accelerated("/usr/bin/python3");
    command.arg(programs("stopped.py")).arg(SERVER.to_string()).stdout(Stdio::piped());
    let mut server = Helper(spawn(&bench.lab.server, &mut command));
    let lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    let workers = lines.take(2).map(|line| line.unwrap().parse().unwrap()).collect();
    bench.until_joined(to, 2);
    (server, workers)
}

fn signal(worker: i32, signal: Signal) {
    kill_process(Pid::from_raw(worker).unwrap(), signal).unwrap();
}

/// Issue 18, item 11: of 720 connections 345 went to the process that was stopped, where they waited for ever.
#[test]
fn a_stopped_process_costs_others_no_connection() {
    let bench = Bench::new(1);
    let to = SocketAddr::new(SERVER.into(), 8080);
    let (_server, workers) = serve(&bench, to);

    let (served, _) = ask_all(&bench, to);
    assert_eq!(served.len(), 2, "both serve: {served:?}");
    assert!(
        bench.broker.attachment().counters().unwrap().flows_recorded >= CONNECTIONS as u64 * 9 / 10,
        "not the kernel"
    );
    for stopped in [0, 1] {
        let other = workers[1 - stopped];
        signal(workers[stopped], Signal::STOP);
        let (served, again) = ask_all(&bench, to);
        println!("{again} of {CONNECTIONS} SYNs were sent again; {served:?}");
        assert_eq!(served, [(other, CONNECTIONS)].into());
        // What came in the first milliseconds, and ports that the client used before.
        assert!(again <= CONNECTIONS / 10, "{again} SYNs were sent again");
        signal(workers[stopped], Signal::CONT);
        let (served, _) = ask_all(&bench, to);
        assert_eq!(served.len(), 2, "both serve again: {served:?}");
    }
}

/// A SYN that has waited for a stopped process was sent again, and another process has answered it: two answers, of two
/// connections, would end both.
#[test]
fn a_syn_that_others_have_answered_is_not_answered_again() {
    let bench = Bench::new(1);
    let to = SocketAddr::new(SERVER.into(), 8080);
    let (_server, workers) = serve(&bench, to);
    let (served, _) = ask_all(&bench, to);
    assert_eq!(served.len(), 2, "both serve: {served:?}");
    let rules = |rules: &str| {
        let mut nft = Command::new("nft");
        let output = run(&bench.lab.client, nft.arg(rules));
        assert!(output.status.success(), "{}", text(&output.stderr));
    };

    signal(workers[0], Signal::STOP);
    let clients: Vec<OwnedFd> = bench.lab.client.within(|| {
        let begin = |_| {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let client = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
            assert_eq!(connect(&client, &to), Err(Errno::INPROGRESS));
            client
        };
        (0..32).map(begin).collect()
    });
    // The first process's SYNs are sent again after a second, and answers to them are lost on the way.
    std::thread::sleep(Duration::from_millis(500));
    rules(
        "table ip t { chain i { type filter hook input priority 0; tcp flags & (syn | ack) == syn | ack counter drop; }; }",
    );
    std::thread::sleep(Duration::from_secs(1));
    let established = |client: &OwnedFd| getpeername(client).is_ok();
    let waiting = clients.iter().filter(|client| !established(client)).count();
    assert!(waiting > 0, "no SYN waited for the stopped process");
    println!("{waiting} SYNs were sent again");
    rules("flush ruleset");
    signal(workers[0], Signal::CONT);
    // Each process serves one after the other, in an order of its own.
    let mut clients: Vec<TcpStream> = clients.into_iter().map(TcpStream::from).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        let mut wait = [PollFd::new(client, PollFlags::OUT)];
        let answered = poll(&mut wait, Some(&Timespec { tv_sec: 20, tv_nsec: 0 })).unwrap();
        assert_eq!(answered, 1, "connection {number} was not answered");
        client.set_nonblocking(false).unwrap();
        client.write_all(b"who").unwrap_or_else(|error| panic!("connection {number}: {error}"));
    }
    for (number, client) in clients.iter_mut().enumerate() {
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap_or_else(|error| panic!("connection {number}: {error}"));
        assert!(workers.contains(&answer.parse().unwrap()), "{answer}");
    }
}

//! Processes that share a listener, one of which is stopped: new connections go to those that look at what comes, so that the
//! others' clients notice nothing. The broker runs in this process. Needs root and python3.

mod bench;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use bench::lab::SERVER;
use bench::{Bench, Helper, programs, spawn};
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

/// Issue 18, item 11: of 720 connections 345 went to the process that was stopped, where they waited for ever.
#[test]
fn a_stopped_process_costs_others_no_connection() {
    let bench = Bench::new(1);
    let to = SocketAddr::new(SERVER.into(), 8080);
    let mut command = bench.accelerated("/usr/bin/python3");
    command.arg(programs("stopped.py")).arg(SERVER.to_string()).stdout(Stdio::piped());
    let mut server = Helper(spawn(&bench.lab.server, &mut command));
    let lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    let workers: Vec<i32> = lines.take(2).map(|line| line.unwrap().parse().unwrap()).collect();
    bench.until_joined(to, 2);
    let signal = |worker: usize, signal| {
        kill_process(Pid::from_raw(workers[worker]).unwrap(), signal).unwrap();
    };

    let (served, _) = ask_all(&bench, to);
    assert_eq!(served.len(), 2, "both serve: {served:?}");
    assert!(
        bench.broker.attachment().counters().unwrap().flows_recorded >= CONNECTIONS as u64 * 9 / 10,
        "not the kernel"
    );
    for stopped in [0, 1] {
        let other = workers[1 - stopped];
        signal(stopped, Signal::STOP);
        let (served, again) = ask_all(&bench, to);
        println!("{again} of {CONNECTIONS} SYNs were sent again; {served:?}");
        assert_eq!(served, [(other, CONNECTIONS)].into());
        // What came in the first milliseconds, and ports that the client used before.
        assert!(again <= CONNECTIONS / 10, "{again} SYNs were sent again");
        signal(stopped, Signal::CONT);
        let (served, _) = ask_all(&bench, to);
        assert_eq!(served.len(), 2, "both serve again: {served:?}");
    }
}

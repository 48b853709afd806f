//! Processes that share a listener and serve one connection at a time, as pre-forking servers do: who is busy gets no new connection
//! that another one could take. Each is done over the kernel too. The broker runs in this process. Needs root and python3.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::bench::lab::SERVER;
use crate::bench::{Bench, Helper, programs, spawn, until};

const PROCESSES: usize = 4;
const WAYS: [&str; 3] = ["accept", "poll", "epoll"];

/// A server of [`PROCESSES`] processes that wait in `way`.
fn serve(bench: &Bench, way: &str, accelerates: bool) -> Helper {
    let mut command =
        if accelerates { bench.accelerated("/usr/bin/python3") } else { Command::new("/usr/bin/python3") };
    command.arg(programs("prefork.py")).args([&SERVER.to_string(), way, &PROCESSES.to_string()]);
    // Children of the one before have just been killed.
    until("nobody listens", || !bench.listens(8080));
    let mut server = Helper(spawn(&bench.lab.server, command.stdout(Stdio::piped())));
    let mut ready = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    if accelerates {
        bench.until_joined(service(), PROCESSES);
    }
    server
}

fn service() -> SocketAddr {
    SocketAddr::new(SERVER.into(), 8080)
}

/// One connection with a request under way.
struct Asked(BufReader<TcpStream>);

impl Asked {
    fn new(request: &str) -> Self {
        let mut stream = TcpStream::connect_timeout(&service(), Duration::from_secs(20)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(format!("{request}\n").as_bytes()).unwrap();
        Self(BufReader::new(stream))
    }

    /// Which process answers.
    fn answer(&mut self) -> i32 {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim().parse().unwrap()
    }
}

/// A process that is busy until it is told.
struct Busy {
    asked: Asked,
    fifo: PathBuf,
}

impl Busy {
    fn new(bench: &Bench, number: usize) -> Self {
        let fifo = bench.path(&format!("fifo{number}"));
        let _ = std::fs::remove_file(&fifo);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        Self { asked: Asked::new(&format!("busy {}", fifo.display())), fifo }
    }

    /// It has time again. Which process it was.
    fn end(&mut self) -> i32 {
        std::fs::write(&self.fifo, "").unwrap();
        self.asked.answer()
    }
}

/// Issue 25, item 3: of three connections one waited until a process that held another one had time for it.
#[test]
fn who_holds_a_connection_gets_no_other() {
    let bench = Bench::new(1);
    for way in WAYS {
        for accelerates in [false, true] {
            let _server = serve(&bench, way, accelerates);
            bench.lab.client.within(|| {
                let mut held = Vec::new();
                let mut holders = BTreeSet::new();
                for number in 1..PROCESSES {
                    let mut asked = Asked::new("hold");
                    holders.insert(asked.answer());
                    assert_eq!(holders.len(), number, "{way}, accelerated: {accelerates}");
                    held.push(asked);
                }
                // Nobody ever has time for those that a holder would get.
                for number in 0..60 {
                    let who = Asked::new("who").answer();
                    assert!(!holders.contains(&who), "{way}, accelerated: {accelerates}: {number}");
                }
            });
            if accelerates {
                let recorded = bench.broker.attachment().counters().unwrap().flows_recorded;
                assert!(recorded >= 60, "not the kernel");
            }
        }
    }
}

/// The same of processes that compute.
#[test]
fn who_computes_gets_no_connection() {
    let bench = Bench::new(1);
    for way in WAYS {
        for accelerates in [false, true] {
            let _server = serve(&bench, way, accelerates);
            bench.lab.client.within(|| {
                let mut busy: Vec<Busy> = (1..PROCESSES).map(|number| Busy::new(&bench, number)).collect();
                let others: BTreeSet<i32> = (0..60).map(|_| Asked::new("who").answer()).collect();
                assert_eq!(others.len(), 1, "{way}, accelerated: {accelerates}");
                let computed: BTreeSet<i32> = busy.iter_mut().map(Busy::end).collect();
                assert_eq!(computed.len(), PROCESSES - 1, "{way}, accelerated: {accelerates}");
                assert!(computed.is_disjoint(&others));
            });
        }
    }
}

/// What waits at processes that are busy goes to the first that is not.
#[test]
fn who_is_idle_first_serves_what_waits() {
    let bench = Bench::new(1);
    for way in WAYS {
        for accelerates in [false, true] {
            let _server = serve(&bench, way, accelerates);
            bench.lab.client.within(|| {
                let mut busy: Vec<Busy> = (0..PROCESSES).map(|number| Busy::new(&bench, number)).collect();
                let mut waiting: Vec<Asked> = (0..12).map(|_| Asked::new("who")).collect();
                let first = busy.pop().unwrap().end();
                for asked in &mut waiting {
                    assert_eq!(asked.answer(), first, "{way}, accelerated: {accelerates}");
                }
                assert!(busy.iter_mut().all(|busy| busy.end() != first));
            });
        }
    }
}

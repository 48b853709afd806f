//! Processes that are killed while they hold connections: the peers hear of it at once, as from the kernel, which ends what a dead
//! process had. The broker runs in this process. Needs root and python3.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench::lab::{CLIENT, SERVER, SERVER_V6};
use crate::bench::{Bench, Helper, programs, spawn, until};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use rustix::process::{Pid, Signal, kill_process};

const PORT: u16 = 8080;
/// The kernel's FIN or RST is there within the call that ends the process.
const AT_ONCE: Duration = Duration::from_secs(1);

/// The program over Overfly or the kernel, and the numbers of its two processes.
fn start(bench: &Bench, accelerates: bool, arguments: &[&str]) -> (Helper, Vec<i32>) {
    let python = "/usr/bin/python3";
    let mut command = if accelerates { bench.accelerated(python) } else { Command::new(python) };
    command.arg(programs("killed.py")).args(arguments).stdout(Stdio::piped());
    let mut program = Helper(spawn(&bench.lab.server, &mut command));
    let lines = BufReader::new(program.0.stdout.take().unwrap()).lines();
    let processes = lines.take(2).map(|line| line.unwrap().parse().unwrap()).collect();
    (program, processes)
}

fn serve(bench: &Bench, accelerates: bool) -> (Helper, Vec<i32>) {
    let hosts = [SERVER.to_string(), SERVER_V6.to_string()];
    let started = start(bench, accelerates, &["serve", &hosts[0], &hosts[1]]);
    for host in [IpAddr::from(SERVER), IpAddr::from(SERVER_V6)] {
        if accelerates {
            bench.until_joined(SocketAddr::new(host, PORT), 2);
        }
    }
    until("it listens", || bench.listens(PORT));
    started
}

fn kill(process: i32) {
    kill_process(Pid::from_raw(process).unwrap(), Signal::KILL).unwrap();
}

/// Which process answers.
fn ask(client: &mut TcpStream) -> i32 {
    client.write_all(b"who").unwrap();
    let mut answer = [0; 20];
    let length = client.read(&mut answer).unwrap();
    std::str::from_utf8(&answer[..length]).unwrap().parse().unwrap()
}

/// Sixteen connections of either family, by the process that has them; each has at least one.
fn connect_to_all(bench: &Bench) -> BTreeMap<i32, Vec<TcpStream>> {
    let mut clients: BTreeMap<i32, Vec<TcpStream>> = BTreeMap::new();
    let hosts = [IpAddr::from(SERVER), IpAddr::from(SERVER_V6)];
    while clients.len() < 2 || clients.values().map(Vec::len).sum::<usize>() < 16 {
        for host in hosts {
            let mut client =
                bench.lab.client.within(|| TcpStream::connect(SocketAddr::new(host, PORT)).unwrap());
            client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            clients.entry(ask(&mut client)).or_default().push(client);
        }
    }
    clients
}

/// The read that waits ends, and not because its patience has.
fn hears_the_end(client: &mut TcpStream) {
    let begin = Instant::now();
    match client.read(&mut [0; 1]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("after {:?}: {other:?}", begin.elapsed()),
    }
    assert!(begin.elapsed() < AT_ONCE, "after {:?}", begin.elapsed());
}

#[test]
fn clients_of_a_killed_process_hear_of_it_and_others_do_not() {
    let bench = Bench::new(2);
    for accelerates in [false, true] {
        let (_server, processes) = serve(&bench, accelerates);
        let mut clients = connect_to_all(&bench);
        let victim = processes[0];
        kill(victim);
        for client in clients.get_mut(&victim).unwrap() {
            hears_the_end(client);
        }
        let survivor = processes[1];
        for client in clients.get_mut(&survivor).unwrap() {
            assert_eq!(ask(client), survivor);
        }
        // Nobody else is there to say so.
        kill(survivor);
        for client in clients.get_mut(&survivor).unwrap() {
            hears_the_end(client);
        }
    }
    assert!(bench.broker.attachment().counters().unwrap().flows_recorded >= 16, "not the kernel");
}

#[test]
fn a_peer_that_a_killed_process_connected_to_hears_of_it() {
    let bench = Bench::new(2);
    for accelerates in [false, true] {
        let listener = bench.lab.client.within(|| TcpListener::bind((CLIENT, 0)).unwrap());
        let port = listener.local_addr().unwrap().port().to_string();
        let (_program, processes) = start(&bench, accelerates, &["connect", &CLIENT.to_string(), &port]);
        for _ in &processes {
            let (mut accepted, _) = listener.accept().unwrap();
            accepted.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let mut said = [0; 20];
            let length = accepted.read(&mut said).unwrap();
            kill(std::str::from_utf8(&said[..length]).unwrap().parse().unwrap());
            hears_the_end(&mut accepted);
        }
    }
    assert!(bench.broker.attachment().counters().unwrap().to_connection > 0, "not the kernel");
}

/// Varnish's m00059: a worker that panics has just answered. The answer waited for the event loop's next turn.
#[test]
fn what_was_written_before_a_process_ends_itself_arrives() {
    let bench = Bench::new(1);
    let address = SocketAddr::new(SERVER.into(), PORT);
    for how in ["abort", "kill", "raise"] {
        for accelerates in [false, true] {
            let python = "/usr/bin/python3";
            let mut command = if accelerates { bench.accelerated(python) } else { Command::new(python) };
            command.arg(programs("killed.py")).args(["answer", &SERVER.to_string(), how]);
            let _program = Helper(spawn(&bench.lab.server, &mut command));
            if accelerates {
                bench.until_joined(address, 1);
            }
            until("it listens", || bench.listens(PORT));
            let mut client = bench.lab.client.within(|| TcpStream::connect(address).unwrap());
            client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            client.write_all(b"who").unwrap();
            let mut answer = Vec::new();
            // How it ends is not the same: FIN, or RST.
            let _ = client.read_to_end(&mut answer);
            assert_eq!(String::from_utf8(answer).unwrap(), "the answer", "{how}, accelerated: {accelerates}");
            if accelerates {
                bench.until_joined(address, 0);
            }
        }
    }
    assert!(bench.broker.attachment().counters().unwrap().flows_recorded >= 3, "not the kernel");
}

/// A connection from a port of the client's that is always the same.
fn connect_from(bench: &Bench, port: u16) -> TcpStream {
    bench.lab.client.within(|| {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        bind(&socket, &SocketAddr::new(CLIENT.into(), port)).unwrap();
        connect(&socket, &SocketAddr::new(SERVER.into(), PORT)).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream
    })
}

/// The kernel answered for the dead with what it had in TIME_WAIT: once in 800 kills under load, where a client came again with the
/// port of a connection that the kernel had served.
#[test]
fn a_connection_that_the_kernel_had_before_does_not_stand_in_the_way() {
    let bench = Bench::new(2);
    let listener = bench.lab.server.within(|| TcpListener::bind((SERVER, PORT)).unwrap());
    let mut client = connect_from(&bench, 40_000);
    drop(listener.accept().unwrap());
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    drop((client, listener));
    let waiting = || {
        let sockets =
            crate::bench::run(&bench.lab.server, Command::new("ss").args(["-tanH", "state", "time-wait"]));
        crate::bench::text(&sockets.stdout).contains(":40000")
    };
    assert!(waiting(), "the kernel has it in TIME_WAIT");

    let (_server, _) = serve(&bench, true);
    let mut client = connect_from(&bench, 40_000);
    let victim = ask(&mut client);
    assert!(waiting(), "and has it still");
    kill(victim);
    hears_the_end(&mut client);
}

/// Resets that the client's kernel has sent.
fn resets_sent(bench: &Bench) -> u64 {
    let statistics =
        bench.lab.client.within(|| std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
    let mut lines = statistics.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let place = names.split(' ').position(|name| name == "OutRsts").unwrap();
    values.split(' ').nth(place).unwrap().parse().unwrap()
}

/// What is over already is nobody's news: a client that was asked about it would answer with RST.
#[test]
fn a_process_that_ends_by_itself_bothers_nobody() {
    let bench = Bench::new(2);
    let (_server, processes) = serve(&bench, true);
    drop(connect_to_all(&bench));
    let (before, address) = (resets_sent(&bench), SocketAddr::new(SERVER.into(), PORT));
    for stacks in [1, 0] {
        let mut clients = connect_to_all_of(&bench, address, stacks + 1);
        clients.write_all(b"end").unwrap();
        bench.until_joined(address, stacks);
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(resets_sent(&bench), before, "processes {processes:?}");
}

/// One connection, once so many stacks listen.
fn connect_to_all_of(bench: &Bench, address: SocketAddr, stacks: usize) -> TcpStream {
    bench.until_joined(address, stacks);
    bench.lab.client.within(|| TcpStream::connect(address).unwrap())
}

//! Programs that make no calls for a while: what they sent arrives, who connects is answered, what comes is taken, as on the kernel.
//! The broker runs in this process. Needs root and python3.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench::lab::{CLIENT, SERVER};
use crate::bench::{Bench, Helper, programs, spawn, sum, text, until};

/// How long the program is elsewhere.
const AWAY: Duration = Duration::from_secs(3);
const PORT: u16 = 8080;

/// Runs a part of the script on the kernel, and on Overfly, where it has so many `connections`; `other` is the kernel's end of it.
fn both(what: &str, connections: u64, other: impl Fn(&TcpListener) + Sync) {
    both_with(what, connections, "1", other);
}

/// As [`both`], with this value of EF_BACKGROUND; returns what Overfly and the script said.
fn both_with(what: &str, connections: u64, background: &str, other: impl Fn(&TcpListener) + Sync) -> String {
    let bench = Bench::new(1);
    let listener = bench.lab.client.within(|| TcpListener::bind((CLIENT, PORT)).unwrap());
    let mut told = String::new();
    for accelerates in [false, true] {
        println!("{what}, accelerated: {accelerates}");
        let mut script = if accelerates { bench.accelerated("python3") } else { Command::new("python3") };
        script.arg(programs("elsewhere.py")).args([what, &SERVER.to_string(), &CLIENT.to_string()]);
        script.arg(PORT.to_string()).env("EF_BACKGROUND", background).stderr(Stdio::piped());
        let mut script = Helper(spawn(&bench.lab.server, &mut script));
        bench.lab.client.within(|| other(&listener));
        let mut said = Vec::new();
        let mut errors = script.0.stderr.take().unwrap();
        assert!(script.0.wait().unwrap().success());
        errors.read_to_end(&mut said).unwrap();
        told = text(&said);
        println!("{told}");
        if accelerates {
            // A connection that is given away was accepted here.
            let names = ["connects", "accepts", "given away"];
            assert!(names.map(|name| sum(&told, name)).iter().sum::<u64>() >= connections, "{told}");
        }
    }
    told
}

/// Connects as soon as somebody listens, and says how long it took since.
fn connect() -> (TcpStream, Duration) {
    let mut connected = None;
    until("somebody listens", || {
        let begin = Instant::now();
        connected = TcpStream::connect((SERVER, PORT)).ok().map(|stream| (stream, begin.elapsed()));
        connected.is_some()
    });
    connected.unwrap()
}

/// Reads until the end, or as many bytes as are wanted; returns when the last one came.
fn read(stream: &mut TcpStream, wanted: usize) -> Duration {
    let begin = Instant::now();
    let mut buffer = vec![0; 1 << 16];
    let mut count = 0;
    while count < wanted {
        match stream.read(&mut buffer) {
            Ok(0) => panic!("the end after {count} bytes"),
            Ok(more) => count += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{error}"),
        }
    }
    begin.elapsed()
}

#[test]
fn what_was_written_leaves() {
    both("sends", 1, |listener| {
        let took = read(&mut listener.accept().unwrap().0, 300_000);
        assert!(took < AWAY / 2, "{took:?}");
    });
}

#[test]
fn what_was_closed_is_delivered() {
    both("closes", 1, |listener| {
        let (mut stream, _) = listener.accept().unwrap();
        let took = read(&mut stream, 1_000_000);
        let begin = Instant::now();
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
        let end = begin.elapsed();
        assert!(took + end < AWAY / 2, "{took:?}, {end:?}");
    });
}

#[test]
fn who_connects_is_answered_while_the_program_computes() {
    for what in ["computes", "loops"] {
        both(what, 2, |_| {
            let (mut first, _) = connect();
            assert_eq!(first.read(&mut [0; 8]).unwrap(), 0);
            let mut two = [(); 2].map(|()| connect());
            for (stream, took) in &mut two {
                assert!(*took < AWAY / 2, "{took:?}");
                let mut answer = [0; 4];
                stream.read_exact(&mut answer).unwrap();
                assert_eq!(&answer, b"late");
            }
        });
    }
}

/// Serves as "loops" does.
fn is_served_late(_: &TcpListener) {
    let (mut first, _) = connect();
    assert_eq!(first.read(&mut [0; 8]).unwrap(), 0);
    // The thread that may be postponed is there by now.
    std::thread::sleep(Duration::from_millis(300));
    let (mut stream, took) = connect();
    assert!(took < AWAY / 2, "{took:?}");
    let mut second = connect().0;
    for stream in [&mut stream, &mut second] {
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"late");
    }
}

#[test]
fn an_event_loop_has_one_thread_until_it_comes_late() {
    let told = both_with("loops-late", 2, "2", is_served_late);
    assert!(told.contains("in time: 1\n") && told.contains("late: 2\n"), "{told}");
    let told = both_with("loops-late", 2, "1", is_served_late);
    assert!(told.contains("in time: 2\n"), "{told}");
}

#[test]
fn who_waits_elsewhere_than_in_an_event_loop_has_the_thread_at_once() {
    both_with("sends", 1, "2", |listener| {
        let took = read(&mut listener.accept().unwrap().0, 300_000);
        assert!(took < AWAY / 2, "{took:?}");
    });
}

#[test]
fn who_was_not_accepted_is_reset_when_the_listener_closes() {
    both("refuses", 1, |_| {
        let (mut first, _) = connect();
        assert_eq!(first.read(&mut [0; 8]).unwrap(), 0);
        let begin = Instant::now();
        for (mut stream, _) in [(); 2].map(|()| connect()) {
            let error = stream.read(&mut [0; 8]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
        let took = begin.elapsed();
        assert!(took < AWAY + AWAY / 3, "{took:?}");
    });
}

/// Who has accepted one connection need not wait for the next listener's, for those to be its own.
#[test]
fn who_serves_takes_the_connections_of_another_listener_from_listen_on() {
    both("passive", 2, |_| {
        let (mut told, mut answer) = ([0; 2], [0; 5]);
        connect().0.read_exact(&mut told[..1]).unwrap();
        connect().0.read_exact(&mut told).unwrap();
        let mut data = TcpStream::connect((SERVER, u16::from_be_bytes(told))).unwrap();
        data.write_all(b"hello").unwrap();
        data.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"hello");
    });
}

#[test]
fn a_connection_is_made_while_nobody_asks() {
    both("connects", 1, |listener| {
        let mut answer = [0; 5];
        listener.accept().unwrap().0.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"hello");
    });
}

#[test]
fn what_comes_is_counted() {
    both("looks", 1, |listener| {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0]).unwrap();
        stream.write_all(&[7; 40_000]).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "40000");
    });
}

#[test]
fn a_child_of_a_fork_has_such_a_thread_too() {
    both("child", 2, |listener| {
        let mut parents = listener.accept().unwrap().0;
        parents.read_exact(&mut [0]).unwrap();
        let took = read(&mut listener.accept().unwrap().0, 300_000);
        assert!(took < AWAY / 2, "{took:?}");
    });
}

#[test]
fn a_child_that_is_forked_meanwhile_writes_nothing_to_descriptor_0() {
    both("forks", 1, |listener| {
        listener.accept().unwrap().0.read_exact(&mut [0]).unwrap();
    });
}

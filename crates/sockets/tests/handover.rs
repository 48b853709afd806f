//! Connections that the kernel takes over while they are used: not a byte may be lost or repeated. The broker runs in this
//! process. Needs root and python3.

use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::process::{Command, Stdio};

use crate::bench::lab::{CLIENT, CLIENT_V6, Namespace, SERVER, SERVER_V6};
use crate::bench::{Bench, Helper, peer, programs, run, spawn, sum, text};

/// Debian's: another one's folder may be closed to ordinary users.
const PYTHON: &str = "/usr/bin/python3";

/// How many transfers of how many bytes: `OVERFLY_HANDOVERS="200 104857600"` is the whole test, in which 160 GB move.
fn amount() -> (u64, u64) {
    let asked = std::env::var("OVERFLY_HANDOVERS").unwrap_or_default();
    let mut numbers = asked.split_whitespace().filter_map(|number| number.parse().ok());
    (numbers.next().unwrap_or(25), numbers.next().unwrap_or(2_000_000))
}

fn seed() -> String {
    let seed = std::env::var("OVERFLY_SEED").unwrap_or_else(|_| std::process::id().to_string());
    println!("OVERFLY_SEED={seed}");
    seed
}

/// One end accelerated and handing over, the other over the kernel. In a network of its own: there nothing is left of other
/// connections between the same ports, whose ACK a SYN would have to answer with a reset (RFC 9293 3.10.7.3).
fn transfers(queues: u32, listens: bool, own: IpAddr, other: IpAddr, direction: &str, user: Option<&str>) {
    let bench = Bench::new(queues);
    let (count, size) = amount();
    let address = if listens { own } else { other };
    let seed = seed();
    let arguments = |command: &mut Command, role: &str, handovers: &str| {
        command.arg(programs("transfer.py")).args([role, &address.to_string(), "7100"]);
        command.args([&count.to_string(), &size.to_string(), &seed, direction, handovers, "20000"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
    };
    let mut accelerated = bench.accelerated(if user.is_some() { "setpriv" } else { PYTHON });
    if let Some(user) = user {
        accelerated.args(["--reuid", user, "--regid", user, "--clear-groups", "--inh-caps=-all", PYTHON]);
    }
    let mut plain = Command::new(PYTHON);
    arguments(&mut accelerated, if listens { "listen" } else { "connect" }, "yes");
    arguments(&mut plain, if listens { "connect" } else { "listen" }, "no");
    accelerated.stderr(Stdio::piped());
    let (server, client) = (&bench.lab.server, &bench.lab.client);
    let ours: (&Namespace, &mut Command) = (server, &mut accelerated);
    let theirs = (client, &mut plain);
    let (first, second) = if listens { (ours, theirs) } else { (theirs, ours) };
    let mut listener = Helper(spawn(first.0, first.1));
    let mut told = BufReader::new(listener.0.stdout.take().unwrap());
    let mut ready = String::new();
    told.read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    let mut connector = Helper(spawn(second.0, second.1));
    let mut complaints = Vec::new();
    let ours = if listens { &mut listener } else { &mut connector };
    ours.0.stderr.take().unwrap().read_to_end(&mut complaints).unwrap();
    let complained = text(&complaints);
    for (name, helper) in [("listener", &mut listener), ("connector", &mut connector)] {
        let status = helper.0.wait().unwrap();
        assert!(status.success(), "{direction} {name}, seed {seed}: {status}: {complained}");
    }
    let (moved, refused) = (sum(&complained, "handed over"), sum(&complained, "(refused"));
    assert!(moved == count && refused == 0, "{direction} listens {listens}: {complained}");
    // The kernel must not have answered for a connection that it did not have yet, nor the engine for one that it has not
    // any more: either would have reset it.
    assert_eq!(sum(&complained, "resets_sent:"), 0, "{complained}");
    // While one thread is in a kick, another one that receives must not ask for it again at each look.
    let frames = sum(&complained, "sent_frames:") + sum(&complained, "received_frames:");
    let kicks = sum(&complained, "kicks:");
    assert!(kicks <= frames, "{kicks} kicks for {frames} frames: {complained}");
}

#[test]
fn streams_survive_their_handover() {
    for direction in ["up", "down", "both"] {
        for listens in [true, false] {
            transfers(2, listens, SERVER.into(), CLIENT.into(), direction, None);
        }
    }
}

#[test]
fn streams_over_ipv6_survive_their_handover() {
    let mapped = [SERVER, CLIENT].map(|address| IpAddr::from(address.to_ipv6_mapped()));
    for [own, other] in [[SERVER_V6, CLIENT_V6].map(IpAddr::from), mapped] {
        for listens in [true, false] {
            transfers(2, listens, own, other, "both", None);
        }
    }
}

/// What a connection is before and after, over the kernel and over Overfly.
fn stays_the_same(own: IpAddr, other: IpAddr) {
    for (accelerates, per_thread) in [(false, "0"), (true, "0"), (true, "1"), (true, "3")] {
        // A network of its own: a new connection that met an old one's remains would have to be reset (RFC 9293 3.10.7.3).
        let bench = Bench::new(2);
        let _peer = peer(&bench, &other.to_string());
        let mut script = if accelerates { bench.accelerated("timeout") } else { Command::new("timeout") };
        script.args(["-s", "KILL", "60", PYTHON]).arg(programs("handover.py"));
        if accelerates {
            bench.stack_per_thread(&mut script, per_thread);
        }
        let output = run(&bench.lab.server, script.args([own.to_string(), other.to_string()]));
        let (told, complained) = (text(&output.stdout), text(&output.stderr));
        assert!(
            output.status.success(),
            "accelerated: {accelerates}, stack per thread: {per_thread}\n{told}\n{complained}"
        );
        if accelerates {
            assert!(complained.contains(", stack ") == (per_thread != "0"), "{complained}");
            let (moved, refused) = (sum(&complained, "handed over"), sum(&complained, "(refused"));
            assert!(moved >= 20 && refused == 0, "{complained}");
            assert_eq!(sum(&complained, "resets_sent:"), 0, "{complained}");
        }
    }
}

#[test]
fn a_connection_is_the_same_afterwards() {
    stays_the_same(SERVER.into(), CLIENT.into());
}

#[test]
fn a_connection_over_ipv6_is_the_same_afterwards() {
    stays_the_same(SERVER_V6.into(), CLIENT_V6.into());
}

/// The program is an ordinary user's: the broker has the privilege.
#[test]
fn streams_of_an_ordinary_user_survive_their_handover() {
    for listens in [true, false] {
        transfers(1, listens, SERVER.into(), CLIENT.into(), "both", Some("65534"));
    }
}

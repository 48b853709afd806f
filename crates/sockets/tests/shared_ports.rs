//! Programs that open one connection after the other from ports that connections share: between ends that the broker has steered here
//! before they ask nobody, as long as nothing has changed. The broker runs in this process. Needs root, python3 and nft.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::bench::lab::{CLIENT, INTERFACE, SERVER};
use crate::bench::{Bench, Helper, programs, run, spawn, sum, text};

const PORT: u16 = 8080;

/// The kernel answers each byte, and closes then, but with `h` goes on, and with `r` resets the connection.
fn serve(bench: &Bench) {
    let listener = bench.lab.client.within(|| TcpListener::bind((CLIENT, PORT)).unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut byte = [0];
                while stream.read(&mut byte).is_ok_and(|length| length == 1)
                    && byte != *b"r"
                    && stream.write_all(&byte).is_ok()
                    && byte == *b"h"
                {}
            });
        }
    });
}

/// The script, which is at its work.
struct Script {
    helper: Helper,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Script {
    /// With so many shared ports.
    fn start(bench: &Bench, ports: &str, words: &[&str]) -> Script {
        serve(bench);
        let mut command = bench.accelerated("python3");
        command.arg(programs("connects.py")).args([CLIENT.to_string(), PORT.to_string()]).args(words);
        command.env("EF_TCP_SHARED_LOCAL_PORTS", ports).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut helper = Helper(spawn(&bench.lab.server, &mut command));
        let lines = BufReader::new(helper.0.stdout.take().unwrap()).lines();
        Script { helper, lines }
    }

    fn hear(&mut self) -> String {
        self.lines.next().expect("the script goes on").unwrap()
    }

    fn number(&mut self) -> u64 {
        self.hear().parse().unwrap()
    }

    /// How many connections were opened, from how many ports, and the last failure's name.
    fn opened(&mut self) -> (u64, u64, String) {
        let line = self.hear();
        println!("{line}");
        let mut words = line.split(' ');
        let mut number = || words.next().unwrap().parse().unwrap();
        (number(), number(), words.next().unwrap().to_owned())
    }

    fn go_on(&mut self) {
        self.helper.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        assert_eq!(self.hear(), "waited");
    }

    /// What the library counted.
    fn end(mut self) -> String {
        assert!(self.helper.0.wait().unwrap().success());
        let mut said = Vec::new();
        self.helper.0.stderr.take().unwrap().read_to_end(&mut said).unwrap();
        text(&said)
    }
}

fn granted(bench: &Bench) -> u64 {
    bench.broker.counters().requests_granted
}

#[test]
fn connections_between_ends_that_were_granted_ask_nobody() {
    let bench = Bench::new(1);
    let mut script = Script::start(&bench, "20", &["1", "wait", "1000"]);
    assert_eq!(script.opened(), (1, 1, String::new()));
    let before = granted(&bench);
    script.go_on();
    let (opened, ports, failure) = script.opened();
    assert_eq!((opened, failure.as_str()), (1000, ""));
    assert!(ports <= 100, "{ports}");
    let asked = granted(&bench) - before;
    let told = script.end();
    assert_eq!(sum(&told, "connects"), 1001, "{told}");
    // Each port is good for a second, and the script may be slow.
    assert!(asked < 800, "{asked} requests for 1000 connections");
}

#[test]
fn what_has_changed_is_heeded_though_ends_are_kept() {
    let bench = Bench::new(1);
    let mut script = Script::start(&bench, "20", &["100", "wait", "20", "wait", "100"]);
    assert_eq!(script.opened().0, 100);
    let rules = format!(
        "table inet t {{ chain o {{ type filter hook output priority 0; tcp dport {PORT} reject with tcp reset; }}; }}"
    );
    bench.lab.server.command("nft", &[&rules]);
    // The kernel says that there are new rules, and the broker reads them.
    std::thread::sleep(Duration::from_millis(300));
    script.go_on();
    assert_eq!(script.opened(), (0, 0, "ConnectionRefusedError".to_owned()));
    bench.lab.server.command("nft", &["delete", "table", "inet", "t"]);
    // Somebody else is the peer now, who does not forward.
    bench
        .lab
        .server
        .run(&format!("neigh replace {CLIENT} lladdr 02:00:00:00:00:99 dev {INTERFACE} nud permanent"));
    std::thread::sleep(Duration::from_millis(300));
    bench.lab.server.run(&format!("neigh del {CLIENT} dev {INTERFACE}"));
    std::thread::sleep(Duration::from_millis(300));
    script.go_on();
    assert_eq!(script.opened().0, 100);
    script.end();
}

#[test]
fn ports_in_time_wait_serve_again_after_a_second() {
    let bench = Bench::new(1);
    let mut script = Script::start(&bench, "100", &["100h", "wait", "100h"]);
    assert_eq!(script.opened(), (100, 100, String::new()));
    // Of both sides' timestamps the longest tick.
    std::thread::sleep(Duration::from_millis(1_100));
    let before = granted(&bench);
    script.go_on();
    assert_eq!(script.opened(), (100, 100, String::new()));
    let asked = granted(&bench) - before;
    assert!(asked < 100, "{asked}: what was granted a moment ago is asked for by none");
    let told = script.end();
    assert_eq!((sum(&told, "connects"), sum(&told, "shared ports")), (200, 200), "{told}");
}

/// Before their second is over only where there are no others.
#[test]
fn ports_in_time_wait_serve_again_when_they_must() {
    let bench = Bench::new(1);
    let begun = std::time::Instant::now();
    let mut script = Script::start(&bench, "20", &["20h", "wait", "20h", "60h", "wait", "100h", "wait"]);
    assert_eq!(script.opened(), (20, 20, String::new()));
    let rest = Duration::from_millis(100);
    std::thread::sleep(rest);
    let before = granted(&bench);
    script.go_on();
    assert_eq!([script.opened().0, script.opened().0], [20, 60]);
    let asked = granted(&bench) - before;
    let is_slow = begun.elapsed() > Duration::from_secs(1);
    assert!(asked == 80 || is_slow, "{asked} of 80");
    // A hundred is all that there are.
    std::thread::sleep(rest);
    let before = granted(&bench);
    script.go_on();
    assert_eq!(script.opened(), (100, 100, String::new()));
    let asked = granted(&bench) - before;
    script.go_on();
    let told = script.end();
    // What was granted at the very first was before the broker had heard all of the neighbour.
    assert!(asked <= 2, "{asked}: {told}");
    assert_eq!((sum(&told, "connects"), sum(&told, "shared ports")), (200, 200), "{told}");
}

/// It is in LAST-ACK, says so, and hears a reset: the next SYN follows at once, and no timer runs (RFC 9293 section 3.5.1).
#[test]
fn a_peer_that_has_not_heard_the_last_acknowledgment_gets_the_next_connection() {
    let bench = Bench::new(1);
    // The only packet of such a connection that has neither data nor another flag.
    let rules = format!(
        "table inet t {{ chain i {{ type filter hook input priority 0; tcp dport {PORT} tcp flags == ack ip length 52 counter drop; }}; }}"
    );
    bench.lab.client.command("nft", &[&rules]);
    let mut script = Script::start(&bench, "100", &["100h", "wait", "100h"]);
    assert_eq!(script.opened(), (100, 100, String::new()));
    std::thread::sleep(Duration::from_millis(60));
    script.go_on();
    assert_eq!(script.opened().0, 100);
    let told = script.end();
    let (resets, timeouts) = (sum(&told, "resets_sent:"), sum(&told, "timeouts:"));
    // On a slow machine FINs come again, and some of these connections get ports of their own.
    assert!(resets > 0 && timeouts * 2 < resets, "{resets} resets, {timeouts} timeouts: {told}");
}

#[test]
fn a_connection_that_the_kernel_has_got_keeps_its_ends() {
    let bench = Bench::new(1);
    let mut script = Script::start(&bench, "4", &["20", "hold", "200", "held", "200"]);
    assert_eq!(script.opened().0, 20);
    assert_eq!(script.hear(), "held");
    let (opened, _, failure) = script.opened();
    assert_eq!((opened, failure.as_str()), (200, ""));
    assert_eq!(script.hear(), "done");
    assert_eq!(script.opened().0, 200);
    script.end();
}

/// A process takes a port when it has none for a connection, and keeps none for long: whoever is at rest has as many descriptors as before.
#[test]
fn ports_come_and_go_as_they_are_needed() {
    let bench = Bench::new(1);
    let words = ["1", "descriptors", "500", "descriptors", "child", "sleep", "1", "descriptors"];
    let mut script = Script::start(&bench, "1", &words);
    assert_eq!(script.opened().0, 1);
    let before = script.number();
    let (opened, ports, failure) = script.opened();
    assert_eq!((opened, failure.as_str()), (500, ""));
    assert!(ports > 2, "{ports}: one that has only just served a connection rests");
    let busy = script.number();
    assert!(busy > before, "{before} {busy}");
    let child = script.hear();
    assert_eq!(script.hear(), "slept");
    assert_eq!(script.opened().0, 1);
    let after = script.number();
    println!("{before} descriptors, with {ports} ports {busy}, then {after}; a child: {child}");
    assert!(after <= before, "{before} {after}");
    let child: Vec<u64> = child.split(' ').map(|number| number.parse().unwrap()).collect();
    assert!(child[0] < before, "{child:?}: the ports are the parent's, and the child knows");
    script.end();
}

#[test]
fn a_program_has_its_descriptors_though_ports_have_some() {
    let most = |limit, ports| {
        let bench = Bench::new(1);
        let mut script = Script::start(&bench, ports, &[limit, "most", "500", "most", "most"]);
        assert_eq!(script.hear(), "limited");
        let first = script.number();
        assert_eq!(script.opened().0, 500);
        let said = [first, script.number(), script.number()];
        script.end();
        println!("{limit}, {ports} shared ports: {said:?}");
        said
    };
    // Python has now one open for itself, now none.
    for (limit, fewer) in [("limit", 1), ("hard", 1 + 100 / 16)] {
        let [without, with] = ["0", "1"].map(|ports| most(limit, ports));
        assert!(with.iter().zip(without).all(|(&with, without)| with + fewer >= without), "{limit}");
    }
}

/// As on the kernel: when they leave the process, when they are over, and what else their ports and the library's descriptors are used for.
#[test]
fn connections_from_shared_ports_end_and_leave_as_over_the_kernel() {
    let bench = Bench::new(1);
    serve(&bench);
    let mut said = Vec::new();
    for accelerates in [false, true] {
        let mut script = if accelerates { bench.accelerated("python3") } else { Command::new("python3") };
        script.env("EF_TCP_SHARED_LOCAL_PORTS", "1").env("EF_TCP_SHARED_LOCAL_PORTS_MAX", "1000");
        script.arg(programs("shared.py")).args([SERVER.to_string(), CLIENT.to_string(), PORT.to_string()]);
        let output = run(&bench.lab.server, &mut script);
        let (told, complained) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{told}\n{complained}");
        assert!(!accelerates || sum(&complained, "shared ports") > 100, "{complained}");
        said.push(told);
    }
    println!("{}", said[0]);
    assert_eq!(said[1].lines().collect::<Vec<_>>(), said[0].lines().collect::<Vec<_>>());
}

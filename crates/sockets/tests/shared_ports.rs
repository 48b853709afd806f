//! Programs that open one connection after the other from ports that connections share: between ends that the broker has steered here
//! before they ask nobody, as long as nothing has changed. The broker runs in this process. Needs root, python3 and nft.

mod bench;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{ChildStdout, Stdio};
use std::time::Duration;

use bench::lab::{CLIENT, INTERFACE};
use bench::{Bench, Helper, programs, spawn, sum, text};

const PORT: u16 = 8080;

/// The script, which is at its work.
struct Script {
    helper: Helper,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Script {
    /// With so many shared ports. The kernel serves its connections: it answers one byte and closes, or with `h` goes on.
    fn start(bench: &Bench, ports: &str, words: &[&str]) -> Script {
        let listener = bench.lab.client.within(|| TcpListener::bind((CLIENT, PORT)).unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                std::thread::spawn(move || {
                    let mut byte = [0];
                    while stream.read(&mut byte).is_ok_and(|length| length == 1)
                        && stream.write_all(&byte).is_ok()
                        && byte == *b"h"
                    {}
                });
            }
        });
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
    let mut script = Script::start(&bench, "100", &["100h", "10h", "wait", "100h"]);
    assert_eq!(script.opened(), (100, 100, String::new()));
    assert_eq!(script.opened().0, 10);
    // Of both sides' timestamps the longest tick.
    std::thread::sleep(Duration::from_millis(1_100));
    script.go_on();
    assert_eq!(script.opened(), (100, 100, String::new()));
    let told = script.end();
    assert_eq!((sum(&told, "connects"), sum(&told, "shared ports")), (210, 200), "{told}");
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

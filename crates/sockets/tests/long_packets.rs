//! Packets of several descriptors: a large MTU, and segments that a kernel peer sends together. Every byte is compared, with and
//! without loss, whoever sends. The broker runs in this process. Needs root, python3 and nft.

mod bench;

use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::process::{Command, Stdio};

use bench::lab::{CLIENT, CLIENT_V6, INTERFACE, Lab, Namespace, SERVER, SERVER_V6};
use bench::{Bench, Helper, programs, run, spawn, sum, text, until};
use overfly_steer::{Options, ReceiveOffload};

/// Debian's.
const PYTHON: &str = "/usr/bin/python3";
const PORT: &str = "7100";
/// Bytes of one transfer in each direction.
const SIZE: &str = "6000000";
const COUNT: &str = "4";

/// What the client's end drops, of what it sends and of what it gets: one frame of a hundred, however many segments it has.
const LOSS: &str = "table netdev faults {
    chain in { type filter hook ingress device veth0 priority 0; numgen random mod 100 < 1 drop; }
    chain out { type filter hook egress device veth0 priority 0; numgen random mod 100 < 1 drop; }
}";

#[derive(Clone, Copy, Debug)]
struct Network {
    mtu: u32,
    offload: ReceiveOffload,
    loses: bool,
}

impl Network {
    fn bench(self) -> Bench {
        let lab = Lab::new(1);
        lab.set_mtu(self.mtu);
        let bench = Bench::within(lab, Options { receive_offload: self.offload, ..Options::default() });
        if self.loses {
            let rules = bench.path("faults.nft");
            std::fs::write(&rules, LOSS).unwrap();
            bench.lab.client.command("nft", &["-f", rules.to_str().unwrap()]);
        }
        bench
    }
}

/// One end accelerated, the other over the kernel, each sends and checks what it gets. What the accelerated one counted.
fn transfer(bench: &Bench, listens: bool, own: IpAddr, other: IpAddr, seed: &str) -> String {
    let address = if listens { own } else { other }.to_string();
    let mut accelerated = bench.accelerated(PYTHON);
    let mut plain = Command::new(PYTHON);
    let roles = if listens { ["listen", "connect"] } else { ["connect", "listen"] };
    for (command, role) in [&mut accelerated, &mut plain].into_iter().zip(roles) {
        command.arg(programs("transfer.py")).args([role, &address, PORT, COUNT, SIZE, seed, "both", "no"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
    }
    accelerated.stderr(Stdio::piped());
    let ours: (&Namespace, &mut Command) = (&bench.lab.server, &mut accelerated);
    let theirs = (&bench.lab.client, &mut plain);
    let (first, second) = if listens { (ours, theirs) } else { (theirs, ours) };
    let mut listener = Helper(spawn(first.0, first.1));
    let mut ready = String::new();
    // Open until it has ended: it has more to say.
    let mut told = BufReader::new(listener.0.stdout.take().unwrap());
    told.read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    if listens {
        bench.until_joined((own, PORT.parse().unwrap()).into(), 1);
    }
    let mut connector = Helper(spawn(second.0, second.1));
    let mut complaints = Vec::new();
    let ours = if listens { &mut listener } else { &mut connector };
    ours.0.stderr.take().unwrap().read_to_end(&mut complaints).unwrap();
    let complained = text(&complaints);
    for (name, helper) in [("listener", &mut listener), ("connector", &mut connector)] {
        let status = helper.0.wait().unwrap();
        assert!(status.success(), "{name}, seed {seed}: {status}: {complained}");
    }
    assert!(sum(&complained, "accepts") + sum(&complained, "connects") > 0, "{complained}");
    for flaw in ["receive_invalid:", "receive_unfinished:", "receive_too_long:"] {
        assert_eq!(sum(&complained, flaw), 0, "{complained}");
    }
    complained
}

fn transfers(network: Network) {
    let seed = std::env::var("OVERFLY_SEED").unwrap_or_else(|_| std::process::id().to_string());
    println!("OVERFLY_SEED={seed}, {network:?}");
    for listens in [true, false] {
        for (own, other) in
            [(IpAddr::from(SERVER), IpAddr::from(CLIENT)), (SERVER_V6.into(), CLIENT_V6.into())]
        {
            let bench = network.bench();
            let counted = transfer(&bench, listens, own, other, &seed);
            let long = sum(&counted, "received_long_frames:");
            assert!(long > 100, "{long} packets of several descriptors: {counted}");
        }
    }
}

#[test]
fn streams_in_jumbo_frames_arrive_byte_by_byte() {
    transfers(Network { mtu: 9000, offload: ReceiveOffload::Packets, loses: false });
}

#[test]
fn streams_in_jumbo_frames_survive_loss() {
    transfers(Network { mtu: 9000, offload: ReceiveOffload::Packets, loses: true });
}

#[test]
fn streams_of_segments_that_arrive_together_are_whole() {
    transfers(Network { mtu: 1500, offload: ReceiveOffload::Segments, loses: false });
}

#[test]
fn streams_of_segments_that_arrive_together_survive_loss() {
    transfers(Network { mtu: 9000, offload: ReceiveOffload::Segments, loses: true });
}

/// The largest segment is what the device's MTU leaves, and follows a peer with a smaller one.
#[test]
fn the_largest_segment_follows_the_mtu_of_either_end() {
    for (own, peer, expected) in [(9000, 9000, 8948), (9000, 1500, 1448), (1500, 1500, 1448)] {
        let lab = Lab::new(1);
        lab.set_mtu(own);
        lab.client.run(&format!("link set {INTERFACE} mtu {peer}"));
        let bench = Bench::within(lab, Options::default());
        let mut listener = bench.accelerated(PYTHON);
        listener.arg(programs("transfer.py"));
        listener.args(["listen", &SERVER.to_string(), PORT, "1", "100000000", "x", "up", "no"]);
        let _listener = Helper(spawn(&bench.lab.server, listener.stdout(Stdio::null())));
        bench.until_joined((IpAddr::from(SERVER), PORT.parse().unwrap()).into(), 1);
        let _client = Helper(spawn(
            &bench.lab.client,
            Command::new(PYTHON).args([
                "-c",
                &format!(
                    "import socket,time; s=socket.create_connection(('{SERVER}',{PORT})); time.sleep(60)"
                ),
            ]),
        ));
        let expected = format!(" mss:{expected} ");
        until(&format!("{expected} with MTU {own} and {peer}"), || {
            let shown =
                run(&bench.lab.client, Command::new("ss").args(["-tin", "dport", "=", &format!(":{PORT}")]));
            text(&shown.stdout).contains(&expected)
        });
    }
}

/// Datagrams that a peer sends many in one call arrive one by one, whatever arrives together.
#[test]
fn datagrams_that_a_peer_sends_together_stay_apart() {
    const SENDER: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((sys.argv[1], 7200))
s.setsockopt(17, 103, 100)  # SOL_UDP, UDP_SEGMENT
for round in range(20):
    s.send(b''.join(bytes([round * 10 + part]) * 100 for part in range(10)))
    assert s.recv(100) == b'next'
";
    const RECEIVER: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], 7200))
s.settimeout(20)
print('ready', flush=True)
for number in range(200):
    data, peer = s.recvfrom(65536)
    assert data == bytes([number]) * 100, (number, data)
    if number % 10 == 9:
        s.sendto(b'next', peer)
print('done', flush=True)
";
    for offload in [ReceiveOffload::Packets, ReceiveOffload::Segments] {
        let bench = Network { mtu: 1500, offload, loses: false }.bench();
        let mut receiver = bench.accelerated(PYTHON);
        receiver.args(["-c", RECEIVER, &SERVER.to_string()]).stdout(Stdio::piped());
        let mut receiver = Helper(spawn(&bench.lab.server, &mut receiver));
        let mut told = BufReader::new(receiver.0.stdout.take().unwrap());
        let mut line = String::new();
        told.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let mut sender = Command::new("timeout");
        sender.args(["30", PYTHON, "-c", SENDER, &SERVER.to_string()]);
        let sent = run(&bench.lab.client, &mut sender);
        assert!(sent.status.success(), "{offload:?}: {}", text(&sent.stderr));
        let mut rest = String::new();
        told.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "done\n", "{offload:?}");
    }
}

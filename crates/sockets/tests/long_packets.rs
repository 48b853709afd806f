//! The paths of large transfers: segments that leave together or one by one, packets of several descriptors (a large MTU, and segments
//! that a kernel peer sends together), and the change from one to another. Every byte is compared, with and without loss and
//! reordering, whoever sends. The broker runs in this process. Needs root, python3, nft, tc and ethtool.

use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::bench::lab::{CLIENT, CLIENT_V6, INTERFACE, Lab, Namespace, SERVER, SERVER_V6};
use crate::bench::{Bench, Helper, programs, run, spawn, sum, text, until};
use overfly_broker::Protocol;
use overfly_steer::{Attachment, ChecksumOffload, Options, ReceiveOffload};

/// Debian's.
const PYTHON: &str = "/usr/bin/python3";
const PORT: &str = "7100";
/// Bytes of one transfer in each direction.
const SIZE: &str = "6000000";
const COUNT: &str = "4";
/// Each connection is made from a port of its own, from this one on.
const FIRST_PORT: &str = "20000";

/// What the client's end drops, of what it sends and of what it gets: one frame of a hundred, however many segments it has. What it
/// gets is not dropped at the device: what comes back from another one ([`delay_some`]) is not seen there.
const LOSS: &str = "table netdev faults {
    chain out { type filter hook egress device veth0 priority 0; numgen random mod 100 < 1 drop; }
}
table inet faults {
    chain in { type filter hook prerouting priority 0; iif veth0 numgen random mod 100 < 1 drop; }
}";

#[derive(Clone, Copy, Debug)]
struct Network {
    mtu: u32,
    segment_offload: bool,
    receive_offload: ReceiveOffload,
    checksum_offload: ChecksumOffload,
    loses: bool,
    reorders: bool,
}

/// As it is without options, and nothing is lost.
const DEFAULT: Network = Network {
    mtu: 1500,
    segment_offload: true,
    receive_offload: ReceiveOffload::Packets,
    checksum_offload: ChecksumOffload::Device,
    loses: false,
    reorders: false,
};

impl Network {
    fn bench(self) -> Bench {
        let lab = Lab::new(1);
        lab.set_mtu(self.mtu);
        let options = Options {
            segment_offload: self.segment_offload,
            receive_offload: self.receive_offload,
            checksum_offload: self.checksum_offload,
            ..Options::default()
        };
        let bench = Bench::within(lab, options);
        if self.loses {
            let rules = bench.path("faults.nft");
            std::fs::write(&rules, LOSS).unwrap();
            bench.lab.client.command("nft", &["-f", rules.to_str().unwrap()]);
        }
        if self.reorders {
            delay_some(&bench.lab.client);
        }
        bench
    }
}

/// One segment of sixteen, by its sequence number, waits longer than those after it: of what the client sends, and of what comes to
/// it, which goes by another device for that.
fn delay_some(client: &Namespace) {
    let tc = |arguments: String| client.command("tc", &arguments.split_whitespace().collect::<Vec<_>>());
    client.run("link add ifb0 type ifb");
    client.run("link set ifb0 mtu 9000 up");
    for device in [INTERFACE, "ifb0"] {
        tc(format!("qdisc add dev {device} root handle 1: htb default 1"));
        tc(format!("class add dev {device} parent 1: classid 1:1 htb rate 10gbit"));
        tc(format!("class add dev {device} parent 1: classid 1:2 htb rate 20mbit burst 1600 cburst 1600"));
        for (protocol, place) in [("ip", 26), ("ipv6", 46)] {
            tc(format!(
                "filter add dev {device} parent 1: protocol {protocol} prio {place} u32 match u8 5 0x0f at {place} flowid 1:2"
            ));
        }
    }
    tc(format!("qdisc add dev {INTERFACE} ingress"));
    tc(format!(
        "filter add dev {INTERFACE} parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev ifb0"
    ));
}

/// How many frames were in the slow class of both devices, the less of the two.
fn delayed(client: &Namespace) -> u64 {
    let of = |device: &str| {
        let shown = client.command("tc", &["-s", "class", "show", "dev", device, "classid", "1:2"]);
        let packets = shown.split_whitespace().skip_while(|word| *word != "bytes").nth(1).unwrap_or("0");
        packets.parse::<u64>().unwrap_or_else(|_| panic!("{shown}"))
    };
    of(INTERFACE).min(of("ifb0"))
}

/// Frames of several segments that the kernel took, and that it did not, whatever the reason.
fn left_together(statistics: &str) -> (u64, u64) {
    let after = statistics.split("Counters { frames:").nth(1).unwrap_or_default();
    let counted = |name: &str| {
        let (_, number) = after.split_once(&format!(" {name}: ")).unwrap_or_default();
        number.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).unwrap_or(0)
    };
    let lost = ["dropped", "interface_down", "failed"].map(counted).iter().sum();
    (sum(statistics, "Counters { frames:"), lost)
}

/// One end accelerated, the other over the kernel, each sends and checks what it gets. What the accelerated one counted.
fn transfer(bench: &Bench, listens: bool, own: IpAddr, other: IpAddr, seed: &str) -> String {
    transfer_of(bench, listens, [own, other], seed, USUAL)
}

/// What is transferred.
#[derive(Clone, Copy)]
struct Work {
    count: &'static str,
    size: &'static str,
    /// With "yes" the kernel takes each connection over at a random place of it.
    handovers: &'static str,
    /// `EF_SEGMENT_OFFLOAD`.
    together: &'static str,
}

const USUAL: Work = Work { count: COUNT, size: SIZE, handovers: "no", together: "1" };
/// Together even where the device takes nothing that is.
const TOGETHER: Work = Work { together: "2", ..USUAL };

fn transfer_of(bench: &Bench, listens: bool, [own, other]: [IpAddr; 2], seed: &str, work: Work) -> String {
    let address = if listens { own } else { other }.to_string();
    let mut accelerated = bench.accelerated(PYTHON);
    let mut plain = Command::new(PYTHON);
    let roles = if listens { ["listen", "connect"] } else { ["connect", "listen"] };
    let ways = [work.handovers, "no"];
    for ((command, role), handovers) in [&mut accelerated, &mut plain].into_iter().zip(roles).zip(ways) {
        command.arg(programs("transfer.py"));
        command.args([role, &address, PORT, work.count, work.size, seed, "both", handovers, FIRST_PORT]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
    }
    accelerated.env("EF_SEGMENT_OFFLOAD", work.together);
    both(bench, listens, own, [accelerated, plain], seed)
}

/// Runs both ends, of which the accelerated one listens, or not, to its end. What that one counted.
fn both(
    bench: &Bench,
    listens: bool,
    own: IpAddr,
    [mut accelerated, mut plain]: [Command; 2],
    seed: &str,
) -> String {
    let ours: (&Namespace, &mut Command) = (&bench.lab.server, accelerated.stderr(Stdio::piped()));
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

fn seed() -> String {
    std::env::var("OVERFLY_SEED").unwrap_or_else(|_| std::process::id().to_string())
}

fn transfers(network: Network) {
    let seed = seed();
    println!("OVERFLY_SEED={seed}, {network:?}");
    for listens in [true, false] {
        for (own, other) in
            [(IpAddr::from(SERVER), IpAddr::from(CLIENT)), (SERVER_V6.into(), CLIENT_V6.into())]
        {
            let bench = network.bench();
            let counted = transfer(&bench, listens, own, other, &seed);
            let long = sum(&counted, "received_long_frames:");
            let expected = network.mtu > 2000 || network.receive_offload == ReceiveOffload::Segments;
            assert_eq!(long > 100, expected, "{long} packets of several descriptors: {counted}");
            let (together, lost) = left_together(&counted);
            assert_eq!(together > 100, network.segment_offload, "{together} frames left together: {counted}");
            assert_eq!(lost, 0, "{counted}");
            let unsummed = sum(&counted, "sent_unsummed:");
            let expected = network.checksum_offload == ChecksumOffload::Kernel && network.mtu < 2000;
            assert_eq!(unsummed > 100, expected, "{unsummed} frames left without their checksum: {counted}");
            if network.reorders {
                let delayed = delayed(&bench.lab.client);
                assert!(delayed > 20, "{delayed} frames were delayed");
            }
        }
    }
}

#[test]
fn streams_in_jumbo_frames_arrive_byte_by_byte() {
    transfers(Network { mtu: 9000, ..DEFAULT });
}

#[test]
fn streams_in_jumbo_frames_survive_loss_and_reordering() {
    transfers(Network { mtu: 9000, loses: true, reorders: true, ..DEFAULT });
}

#[test]
fn streams_of_segments_that_arrive_together_are_whole() {
    transfers(Network { receive_offload: ReceiveOffload::Segments, ..DEFAULT });
}

#[test]
fn streams_of_segments_that_arrive_together_survive_loss_and_reordering() {
    let segments =
        Network { receive_offload: ReceiveOffload::Segments, loses: true, reorders: true, ..DEFAULT };
    transfers(segments);
    transfers(Network { mtu: 9000, ..segments });
}

#[test]
fn streams_of_segments_that_leave_together_survive_loss_and_reordering() {
    transfers(Network { loses: true, reorders: true, ..DEFAULT });
}

#[test]
fn streams_of_segments_one_by_one_survive_loss_and_reordering() {
    transfers(Network { segment_offload: false, loses: true, reorders: true, ..DEFAULT });
}

#[test]
fn streams_whose_checksums_are_left_to_the_kernel_survive_loss_and_reordering() {
    let unsummed = Network { checksum_offload: ChecksumOffload::Kernel, ..DEFAULT };
    transfers(Network { segment_offload: false, loses: true, reorders: true, ..unsummed });
    transfers(Network { receive_offload: ReceiveOffload::Segments, loses: true, reorders: true, ..unsummed });
    transfers(Network { mtu: 9000, ..unsummed });
}

/// The device completes no checksums: the kernel has to, and the peer's looks at them.
#[test]
fn checksums_that_are_left_to_the_kernel_are_right() {
    let seed = seed();
    println!("OVERFLY_SEED={seed}");
    for (receive_offload, own, other) in [
        (ReceiveOffload::Packets, IpAddr::from(SERVER), IpAddr::from(CLIENT)),
        (ReceiveOffload::Segments, SERVER_V6.into(), CLIENT_V6.into()),
    ] {
        let unsummed = Network { checksum_offload: ChecksumOffload::Kernel, ..DEFAULT };
        let bench = Network { segment_offload: false, receive_offload, ..unsummed }.bench();
        bench.lab.server.command("ethtool", &["-K", INTERFACE, "tx", "off"]);
        let counted = transfer(&bench, true, own, other, &seed);
        assert!(sum(&counted, "sent_unsummed:") > 100, "{counted}");
        let wrong = bench.lab.client.command("nstat", &["-az", "TcpInCsumErrors"]);
        let count = wrong.split_whitespace().skip_while(|word| *word != "TcpInCsumErrors").nth(1);
        assert_eq!(count, Some("0"), "{wrong}");
    }
}

#[test]
fn streams_in_packets_of_one_buffer_survive_loss_and_reordering() {
    transfers(Network {
        mtu: 1700,
        receive_offload: ReceiveOffload::Off,
        loses: true,
        reorders: true,
        ..DEFAULT
    });
}

/// From each path to the kernel's, in the middle of it.
#[test]
fn a_hand_over_amid_loss_and_reordering_neither_loses_nor_repeats_a_byte() {
    let seed = seed();
    let segments = ReceiveOffload::Segments;
    for network in [
        DEFAULT,
        Network { receive_offload: segments, ..DEFAULT },
        Network { receive_offload: segments, mtu: 9000, ..DEFAULT },
        Network { segment_offload: false, ..DEFAULT },
    ] {
        let network = Network { loses: true, reorders: true, ..network };
        println!("OVERFLY_SEED={seed}, {network:?}");
        for listens in [true, false] {
            let bench = network.bench();
            let ends = [SERVER.into(), CLIENT.into()];
            let counted = transfer_of(&bench, listens, ends, &seed, Work { handovers: "yes", ..USUAL });
            let (moved, refused) = (sum(&counted, "handed over"), sum(&counted, "(refused"));
            assert_eq!((moved, refused), (4, 0), "{counted}");
            assert_eq!(sum(&counted, "resets_sent:"), 0, "{counted}");
        }
    }
}

/// The peer's MTU falls below the size of our segments while they are on their way. Its device drops what is longer, and nobody says
/// so: with net.ipv4.tcp_mtu_probing they become shorter. (Frames of several segments it takes.)
#[test]
fn a_peer_whose_mtu_falls_below_ours_in_mid_transfer_gets_every_byte() {
    const LONG: Work = Work { count: "1", size: "60000000", ..USUAL };
    let seed = seed();
    for (mtu, falls_to, segment_offload) in
        [(1500, 1300, true), (1500, 1300, false), (9000, 1500, true), (9000, 1500, false)]
    {
        let network = Network { mtu, segment_offload, receive_offload: ReceiveOffload::Segments, ..DEFAULT };
        println!("OVERFLY_SEED={seed}, {network:?}, falls to {falls_to}");
        let bench = network.bench();
        bench.lab.server.write("/proc/sys/net/ipv4/tcp_mtu_probing", "1");
        std::thread::scope(|scope| {
            let peer = &bench.lab.client;
            scope.spawn(move || {
                until("a connection", || {
                    let shown = run(peer, Command::new("ss").args(["-tnH", "state", "established"]));
                    text(&shown.stdout).contains(PORT)
                });
                peer.run(&format!("link set {INTERFACE} mtu {falls_to}"));
            });
            let counted = transfer_of(&bench, true, [SERVER.into(), CLIENT.into()], &seed, LONG);
            println!("{counted}");
            assert!(segment_offload || sum(&counted, "timeouts:") > 2, "it fell in mid-transfer: {counted}");
        });
    }
}

/// Copies of a peer's own frames of several segments, whose headers say other lengths than they have: the device gives them to us, and
/// none of it is taken for what it is not.
#[test]
fn frames_of_several_segments_whose_lengths_lie_are_dropped_and_harm_no_stream() {
    let seed = seed();
    println!("OVERFLY_SEED={seed}");
    for mtu in [1500, 9000] {
        let bench = Network { mtu, receive_offload: ReceiveOffload::Segments, ..DEFAULT }.bench();
        let mut liar = Command::new(PYTHON);
        liar.arg(programs("liar.py")).args([INTERFACE, PORT]).stdout(Stdio::piped()).stdin(Stdio::piped());
        let mut liar = Helper(spawn(&bench.lab.client, &mut liar));
        let mut told = BufReader::new(liar.0.stdout.take().unwrap());
        let mut ready = String::new();
        told.read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        let counted = transfer(&bench, true, SERVER.into(), CLIENT.into(), &seed);
        drop(liar.0.stdin.take());
        let mut lied = String::new();
        told.read_to_string(&mut lied).unwrap();
        println!("{lied}{counted}");
        assert!(liar.0.wait().unwrap().success(), "{lied}");
        let malformed = sum(&counted, "drop_malformed:");
        assert!(malformed > 20, "{lied}, {counted}");
    }
}

/// The device does the work of segmentation and checksums, or the kernel in its place, now this, now that: nothing is lost or
/// repeated. So at either end, whatever arrives together.
#[test]
fn a_device_that_loses_its_offloads_in_mid_transfer_is_no_fault() {
    for (network, at_client) in [
        (DEFAULT, false),
        (Network { receive_offload: ReceiveOffload::Segments, ..DEFAULT }, false),
        (Network { receive_offload: ReceiveOffload::Segments, ..DEFAULT }, true),
        (Network { receive_offload: ReceiveOffload::Segments, loses: true, reorders: true, ..DEFAULT }, true),
    ] {
        loses_its_offloads(network, at_client);
    }
}

fn loses_its_offloads(network: Network, at_client: bool) {
    let seed = seed();
    println!("OVERFLY_SEED={seed}, {network:?}, at the client {at_client}");
    let bench = network.bench();
    let side = if at_client { &bench.lab.client } else { &bench.lab.server };
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let switching = scope.spawn(|| {
            let mut switches = 0;
            while !ended.load(Ordering::Relaxed) {
                for state in ["off", "on"] {
                    let features = ["tso", "gso", "gro", "tx", "rx", "sg"].map(|feature| [feature, state]);
                    let arguments = [&["-K", INTERFACE][..], features.as_flattened()].concat();
                    side.command("ethtool", &arguments);
                    switches += 1;
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
            switches
        });
        let ends = Ends(&ended);
        let counted = transfer_of(&bench, true, [SERVER.into(), CLIENT.into()], &seed, TOGETHER);
        drop(ends);
        assert!(switching.join().unwrap() > 2);
        let (together, lost) = left_together(&counted);
        assert!(together > 100 && lost == 0, "{counted}");
    });
}

/// A peer with an XDP program in the driver takes frames one by one: the kernel would cut what leaves together, on the sender's processor.
#[test]
fn segments_leave_one_by_one_while_the_device_would_not_take_them_together() {
    let seed = seed();
    println!("OVERFLY_SEED={seed}");
    for (driven, work, together) in [(false, USUAL, true), (true, USUAL, false), (true, TOGETHER, true)] {
        let bench = DEFAULT.bench();
        let options = Options { receive_offload: ReceiveOffload::Packets, ..Options::default() };
        let attach = || driven.then(|| Attachment::attach(INTERFACE, options).unwrap());
        let attached = bench.lab.client.within(attach);
        let counted = transfer_of(&bench, true, [SERVER.into(), CLIENT.into()], &seed, work);
        let (frames, lost) = left_together(&counted);
        assert_eq!((frames > 100, lost), (together, 0), "{driven}: {frames} frames left together: {counted}");
        assert!(together || frames == 0, "{frames}");
        bench.lab.client.within(|| drop(attached));
    }
}

/// Tells another thread, also when this one panics.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The interface goes, and comes back as one that takes no frames of several segments: programs go on, segment by segment.
#[test]
fn an_interface_that_comes_back_without_them_gets_segments_one_by_one() {
    let seed = seed();
    println!("OVERFLY_SEED={seed}");
    let bench = DEFAULT.bench();
    let mut listener = bench.accelerated(PYTHON);
    listener.arg(programs("transfer.py")).args(["listen", &SERVER.to_string(), PORT, "2", SIZE, &seed]);
    listener.args(["both", "no"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut listener = Helper(spawn(&bench.lab.server, &mut listener));
    let mut told = BufReader::new(listener.0.stdout.take().unwrap());
    let mut ready = String::new();
    told.read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    let connect = || {
        bench.until_joined((IpAddr::from(SERVER), PORT.parse().unwrap()).into(), 1);
        let mut connector = Command::new(PYTHON);
        connector.arg(programs("transfer.py")).args(["connect", &SERVER.to_string(), PORT, "1", SIZE, &seed]);
        let output = run(&bench.lab.client, connector.args(["both", "no"]));
        assert!(output.status.success(), "seed {seed}: {}", text(&output.stderr));
    };
    connect();
    bench.lab.part();
    until("the broker sees that it is gone", || bench.broker.attachment().interface().addresses.is_empty());
    let granted = bench.broker.counters().requests_granted;
    bench.lab.join_after(1, || bench.lab.hold_back());
    until("the broker has it again", || !bench.broker.attachment().interface().addresses.is_empty());
    until("the stack has its new sockets", || bench.broker.counters().requests_granted > granted);
    connect();
    let mut complaints = Vec::new();
    listener.0.stderr.take().unwrap().read_to_end(&mut complaints).unwrap();
    let complained = text(&complaints);
    assert!(listener.0.wait().unwrap().success(), "{complained}");
    let cut = sum(&complained, " cut:");
    // Of 64 KB each connection is 92.
    assert!(left_together(&complained).0 > 50 && cut > 50, "{cut} were cut: {complained}");
    assert_eq!(sum(&complained, "accepts"), 2, "{complained}");
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

/// Datagrams that a peer sends many in one call arrive one by one, whatever arrives together; those that it sends alone are at user
/// level all the same.
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
    s.send(b'alone')
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
        data, peer = s.recvfrom(65536)
        assert data == b'alone'
        s.sendto(b'next', peer)
print('done', flush=True)
";
    for (offload, at_user_level) in [(ReceiveOffload::Packets, 220), (ReceiveOffload::Segments, 20)] {
        let bench = Network { receive_offload: offload, ..DEFAULT }.bench();
        let mut receiver = bench.accelerated(PYTHON);
        receiver.args(["-c", RECEIVER, &SERVER.to_string()]).stdout(Stdio::piped());
        let mut receiver = Helper(spawn(&bench.lab.server, &mut receiver));
        let mut told = BufReader::new(receiver.0.stdout.take().unwrap());
        let mut line = String::new();
        told.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let address = (IpAddr::from(SERVER), 7200).into();
        until("datagrams are at user level", || {
            bench.broker.attachment().listening_stacks(Protocol::Udp, address) == 1
        });
        let mut sender = Command::new("timeout");
        sender.args(["30", PYTHON, "-c", SENDER, &SERVER.to_string()]);
        let sent = run(&bench.lab.client, &mut sender);
        assert!(sent.status.success(), "{offload:?}: {}", text(&sent.stderr));
        let mut rest = String::new();
        told.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "done\n", "{offload:?}");
        let counters = bench.broker.attachment().counters().unwrap();
        assert_eq!(counters.to_listener, at_user_level, "{offload:?}: {counters:?}");
    }
}

/// A kernel peer sends on forty connections at once, to a client that reads them in that way. The share of its segments that it sent again.
fn repeated(way: &str) -> f64 {
    let network = Network { receive_offload: ReceiveOffload::Segments, ..DEFAULT };
    let bench = network.bench();
    let of = |command: &mut Command, role: &str| {
        command.arg(programs("downloads.py"));
        command.args([role, &IpAddr::from(CLIENT).to_string(), PORT, "40", "3000000"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
    };
    let (mut plain, mut accelerated) = (Command::new(PYTHON), bench.accelerated(PYTHON));
    of(&mut plain, "send");
    of(&mut accelerated, way);
    let mut sender = Helper(spawn(&bench.lab.client, &mut plain));
    let mut told = BufReader::new(sender.0.stdout.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let mut receiver = Helper(spawn(&bench.lab.server, &mut accelerated));
    assert!(receiver.0.wait().unwrap().success());
    line.clear();
    told.read_line(&mut line).unwrap();
    let numbers: Vec<f64> = line.split_whitespace().map(|number| number.parse().unwrap()).collect();
    let [sent, again] = numbers[..] else { panic!("{line}") };
    assert!(sent > 80_000.0, "{line}");
    again / sent
}

/// The ring has room for a third of what forty windows hold in the beginning.
#[test]
fn many_downloads_at_once_do_not_overflow_the_ring() {
    for way in ["events", "threads"] {
        let again = repeated(way);
        println!("{way}: {:.2} % sent again", 100.0 * again);
        assert!(again < 0.01, "{way}: {:.2} % of the segments were sent again", 100.0 * again);
    }
}

/// What a kernel peer sends, in `uploads.py`'s words.
#[derive(Clone, Copy, Debug)]
struct Upload {
    megabytes: &'static str,
    count: &'static str,
    request: &'static str,
    answer: &'static str,
}

const UPLOAD: Upload = Upload { megabytes: "1", count: "1", request: "8000000", answer: "3000000" };

/// How many connections were handed over for their uploads, and how many for anything, of one that the accelerated end takes by `way`.
fn uploads(
    bench: &Bench,
    listens: bool,
    [own, other]: [IpAddr; 2],
    way: &str,
    work: Upload,
) -> (u64, u64, String) {
    let seed = seed();
    println!("OVERFLY_SEED={seed}, {work:?}, {way}, listens {listens}, {own}");
    let address = if listens { own } else { other }.to_string();
    let roles = if listens { ["listen", "connect"] } else { ["connect", "listen"] };
    let parts = [(bench.accelerated(PYTHON), "takes"), (Command::new(PYTHON), "sends")];
    let mut roles = roles.into_iter();
    let ends = parts.map(|(mut command, part)| {
        command.arg(programs("uploads.py")).args([roles.next().unwrap(), part, &address, PORT]);
        command.args([work.count, work.request, work.answer, &seed, way, FIRST_PORT]);
        command.env("EF_UPLOADS_TO_KERNEL", work.megabytes);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    });
    let counted = both(bench, listens, own, ends, &seed);
    assert_eq!(sum(&counted, "(refused"), 0, "{counted}");
    assert_eq!(sum(&counted, "resets_sent:"), 0, "{counted}");
    (sum(&counted, "of them uploads"), sum(&counted, "handed over"), counted)
}

const SEGMENTS: Network = Network { receive_offload: ReceiveOffload::Segments, ..DEFAULT };

#[test]
fn a_large_upload_goes_to_the_kernel_where_that_is_asked_for() {
    for (own, other) in [(IpAddr::from(SERVER), IpAddr::from(CLIENT)), (SERVER_V6.into(), CLIENT_V6.into())] {
        for way in ["blocking", "all", "edge"] {
            for listens in [true, false] {
                let (moved, all, counted) = uploads(&SEGMENTS.bench(), listens, [own, other], way, UPLOAD);
                assert_eq!((moved, all), (1, 1), "{counted}");
            }
        }
    }
}

#[test]
fn a_large_upload_that_goes_to_the_kernel_amid_loss_and_reordering_is_whole() {
    let network = Network { loses: true, reorders: true, ..SEGMENTS };
    let work = Upload { request: "30000000", ..UPLOAD };
    for way in ["blocking", "all", "edge"] {
        for listens in [true, false] {
            let bench = network.bench();
            let ends = [SERVER.into(), CLIENT.into()];
            let (moved, all, counted) = uploads(&bench, listens, ends, way, work);
            assert_eq!((moved, all), (1, 1), "{counted}");
            let delayed = delayed(&bench.lab.client);
            assert!(delayed > 20, "{delayed} frames were delayed");
        }
    }
}

#[test]
fn requests_go_to_the_kernel_only_while_next_to_nothing_answers_them() {
    let requests = Upload { count: "20", request: "500000", answer: "100", ..UPLOAD };
    for (answer, expected) in [("100", 1), ("10000", 0)] {
        let ends = [SERVER.into(), CLIENT.into()];
        let (moved, all, counted) =
            uploads(&SEGMENTS.bench(), true, ends, "blocking", Upload { answer, ..requests });
        assert_eq!((moved, all), (expected, expected), "{counted}");
    }
}

#[test]
fn an_upload_stays_unless_it_is_large_and_arrives_in_segments_together() {
    for (network, work) in [
        (SEGMENTS, Upload { megabytes: "0", ..UPLOAD }),
        (SEGMENTS, Upload { megabytes: "8", ..UPLOAD }),
        (DEFAULT, UPLOAD),
        (Network { mtu: 9000, ..DEFAULT }, UPLOAD),
    ] {
        for way in ["blocking", "edge"] {
            let ends = [SERVER.into(), CLIENT.into()];
            let (moved, all, counted) = uploads(&network.bench(), true, ends, way, work);
            assert_eq!((moved, all), (0, 0), "{counted}");
        }
    }
}

//! UDP programs with the library preloaded, between two network namespaces: what they see must be what the kernel would
//! show them. The broker runs in this process. Needs root and python3.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use overfly_lab::{Broker, CLIENT, CLIENT_V6, INTERFACE, Lab, Namespace, SERVER, SERVER_V6};
use overfly_steer::{Attachment, Options, Protocol, ReceiveOffload};

/// The library that this test run built.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    [folder.join("liboverfly.so"), folder.join("../liboverfly.so")]
        .into_iter()
        .find(|path| path.is_file())
        .expect("cargo builds liboverfly.so with these tests")
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/datagrams.py")
}

/// A broker for one side's interface. Each datagram comes as a packet of its own: where they come together, those are the kernel's
/// (`long_packets.rs`).
fn broker(side: &Namespace) -> Broker {
    side.within(|| {
        let options = Options { receive_offload: ReceiveOffload::Packets, ..Options::default() };
        let attachment = Attachment::attach(INTERFACE, options).unwrap();
        Broker::start(attachment).unwrap()
    })
}

/// The script, over Overfly with a broker, else over the kernel.
fn python(broker: Option<&Broker>) -> Command {
    let mut command = Command::new("python3");
    command.arg(script());
    if let Some(broker) = broker {
        command
            .env("LD_PRELOAD", library())
            .env("OVERFLY_BROKER", broker.environment())
            .env("OVERFLY_STATS", "1");
    }
    command
}

/// A lab whose server end has a broker.
struct Bench {
    /// Before the lab: its end kills the programs that hang on it.
    broker: Broker,
    lab: Lab,
}

impl Bench {
    fn new() -> Self {
        let lab = Lab::new(1);
        for side in [&lab.server, &lab.client] {
            // Nobody is refused without a word.
            side.write("/proc/sys/net/ipv4/icmp_ratelimit", "0");
            side.write("/proc/sys/net/ipv6/icmp/ratelimit", "0");
        }
        Self { broker: broker(&lab.server), lab }
    }

    /// The script, over Overfly or over the kernel.
    fn python(&self, accelerated: bool) -> Command {
        python(accelerated.then_some(&self.broker))
    }

    /// What the script says of its calls.
    fn calls(&self, side: &Namespace, accelerated: bool, own: IpAddr, peer: IpAddr) -> (String, String) {
        let mut command = self.python(accelerated);
        command.args(["calls", &own.to_string(), &peer.to_string()]);
        let output = side.within(|| command.output().unwrap());
        let (said, statistics) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{said}\n{statistics}");
        (said, statistics)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A counter of the engine's in what a process said at its end.
fn counter(statistics: &str, name: &str) -> u64 {
    let at = statistics.find(&format!("{name}: ")).unwrap_or_else(|| panic!("{name} in {statistics}"));
    let digits = statistics[at + name.len() + 2..].chars().take_while(char::is_ascii_digit);
    digits.collect::<String>().parse().unwrap()
}

/// The script as a server.
struct Server {
    child: Child,
    address: IpAddr,
}

impl Server {
    fn start(bench: &Bench, side: &Namespace, accelerated: bool, address: IpAddr) -> Self {
        Self::spawn(bench.python(accelerated), side, address)
    }

    fn spawn(command: Command, side: &Namespace, address: IpAddr) -> Self {
        Self::spawn_as("serve", command, side, address)
    }

    fn spawn_as(task: &str, mut command: Command, side: &Namespace, address: IpAddr) -> Self {
        command.args([task, &address.to_string()]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = side.within(|| command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { child, address }
    }

    /// Asks it to end, from `from`; returns its statistics.
    fn quit(mut self, from: &Namespace) -> String {
        let any = if self.address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        from.within(|| {
            let socket = UdpSocket::bind(any).unwrap();
            socket.send_to(b"quit", SocketAddr::new(self.address, 7000)).unwrap();
        });
        let mut statistics = String::new();
        std::io::Read::read_to_string(&mut self.child.stderr.take().unwrap(), &mut statistics).unwrap();
        assert!(self.child.wait().unwrap().success(), "{statistics}");
        statistics
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The same calls in both worlds, and from both ends.
fn calls(own: IpAddr, other: IpAddr) {
    let bench = Bench::new();
    let Lab { server: ours, client: theirs, .. } = &bench.lab;
    let server = Server::start(&bench, theirs, false, other);
    let (expected, _) = bench.calls(ours, false, own, other);
    let (said, statistics) = bench.calls(ours, true, own, other);
    assert_eq!(said, expected, "{statistics}");
    // The sizes alone are 1,453.
    assert!(counter(&statistics, "rx_datagrams") > 1_453, "{statistics}");
    assert!(counter(&statistics, "tx_datagrams") > 1_453, "{statistics}");
    server.quit(ours);
    let server = Server::start(&bench, ours, true, own);
    let (said, _) = bench.calls(theirs, false, other, own);
    let swap = |text: &str| text.replace(&own.to_string(), "OWN").replace(&other.to_string(), "OTHER");
    let mirrored = swap(&said).replace("OWN", "*").replace("OTHER", "OWN").replace('*', "OTHER");
    assert_eq!(mirrored, swap(&expected));
    let statistics = server.quit(theirs);
    assert!(counter(&statistics, "rx_datagrams") > 1_453, "{statistics}");
    assert!(counter(&statistics, "tx_datagrams") > 1_453, "{statistics}");
}

#[test]
fn datagram_calls_answer_as_the_kernel_does() {
    calls(SERVER.into(), CLIENT.into());
}

#[test]
fn datagram_calls_answer_as_the_kernel_does_over_ipv6() {
    calls(SERVER_V6.into(), CLIENT_V6.into());
}

/// Sockets that are told where each datagram came to, its class, its hops and its time, and that say where theirs come from:
/// as DNS servers do.
#[test]
fn packet_information_is_told_at_user_level() {
    let pairs: [(IpAddr, IpAddr); 2] = [(SERVER.into(), CLIENT.into()), (SERVER_V6.into(), CLIENT_V6.into())];
    for (own, other) in pairs {
        let bench = Bench::new();
        let Lab { server: ours, client: theirs, .. } = &bench.lab;
        let server = Server::start(&bench, theirs, false, other);
        let mut command = bench.python(true);
        command.args(["information", &own.to_string(), &other.to_string()]);
        let output = ours.within(|| command.output().unwrap());
        let statistics = text(&output.stderr);
        assert!(output.status.success(), "{statistics}");
        assert_eq!(counter(&statistics, "rx_datagrams"), 100, "{statistics}");
        assert_eq!(counter(&statistics, "tx_datagrams"), 100, "{statistics}");
        server.quit(ours);
    }
}

/// A socket that may send to all hosts of a network, as chrony's: what it sends to one of them is at user level.
#[test]
fn who_may_send_to_all_hosts_talks_to_one_at_user_level() {
    let bench = Bench::new();
    let Lab { server: ours, client: theirs, .. } = &bench.lab;
    let server = Server::start(&bench, theirs, false, CLIENT.into());
    let [(expected, _), (said, statistics)] = [false, true].map(|accelerated| {
        let mut command = bench.python(accelerated);
        command.args(["broadcast", &SERVER.to_string(), &CLIENT.to_string()]);
        let output = ours.within(|| command.output().unwrap());
        assert!(output.status.success(), "{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    });
    assert_eq!(said, expected, "{statistics}");
    assert_eq!(counter(&statistics, "rx_datagrams"), 20, "{statistics}");
    assert_eq!(counter(&statistics, "tx_datagrams"), 20, "{statistics}");
    server.quit(ours);
}

/// Sockets that send several datagrams in one call and read several in one: as QUIC servers do. The peer is the kernel's, and then
/// at user level too.
#[test]
fn segments_are_cut_and_joined_at_user_level() {
    let pairs: [(IpAddr, IpAddr); 2] = [(SERVER.into(), CLIENT.into()), (SERVER_V6.into(), CLIENT_V6.into())];
    for (own, other) in pairs {
        let bench = Bench::new();
        let Lab { server: ours, client: theirs, .. } = &bench.lab;
        for peer_is_accelerated in [false, true] {
            let beside = peer_is_accelerated.then(|| broker(theirs));
            let server = Server::spawn(python(beside.as_ref()), theirs, other);
            let mut command = bench.python(true);
            command.args(["joined", &own.to_string(), &other.to_string()]);
            let output = ours.within(|| command.output().unwrap());
            let statistics = text(&output.stderr);
            assert!(output.status.success(), "{statistics}");
            // 21 trains of 21, and 20 times ten echoes.
            assert_eq!(counter(&statistics, "rx_datagrams"), 21 * 21 + 20 * 10, "{statistics}");
            assert_eq!(counter(&statistics, "tx_datagrams"), 21 + 20 * 10, "{statistics}");
            let statistics = server.quit(ours);
            if peer_is_accelerated {
                assert!(counter(&statistics, "tx_datagrams") >= 21 * 21 + 20 * 10, "{statistics}");
            }
        }
    }
}

/// Sockets with an error queue, as those of libuv's programs. The peer is the kernel's, and then at user level too.
#[test]
fn errors_are_queued_at_user_level() {
    let pairs: [(IpAddr, IpAddr); 2] = [(SERVER.into(), CLIENT.into()), (SERVER_V6.into(), CLIENT_V6.into())];
    for (own, other) in pairs {
        let bench = Bench::new();
        let Lab { server: ours, client: theirs, .. } = &bench.lab;
        for peer_is_accelerated in [false, true] {
            let beside = peer_is_accelerated.then(|| broker(theirs));
            let server = Server::spawn(python(beside.as_ref()), theirs, other);
            let mut said = [false, true].map(|accelerated| {
                let mut command = bench.python(accelerated);
                command.args(["errors", &own.to_string(), &other.to_string()]);
                let output = ours.within(|| command.output().unwrap());
                assert!(output.status.success(), "{}", text(&output.stderr));
                (text(&output.stdout), text(&output.stderr))
            });
            assert_eq!(said[1].0, said[0].0, "{}", said[1].1);
            let statistics = core::mem::take(&mut said[1].1);
            // Each that was sent to nobody.
            assert_eq!(counter(&statistics, "icmp_errors"), 13, "{statistics}");
            server.quit(ours);
        }
    }
}

/// The broker spreads peers over the processes of a group (SO_REUSEPORT), and each peer stays where it is.
#[test]
fn two_processes_share_a_port() {
    const PEERS: usize = 64;
    let bench = Bench::new();
    let Lab { server: ours, client: theirs, .. } = &bench.lab;
    let address = IpAddr::from(SERVER);
    let servers = [0, 1].map(|_| Server::start(&bench, ours, true, address));
    // They listen at all addresses, and join when they read for the first time.
    let port = SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), 7000);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while bench.broker.attachment().listening_stacks(Protocol::Udp, port) < 2 {
        assert!(std::time::Instant::now() < deadline, "both have the port");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let sockets: Vec<UdpSocket> = theirs.within(|| {
        let open = || UdpSocket::bind("0.0.0.0:0").unwrap();
        std::iter::repeat_with(open).take(PEERS).collect()
    });
    let mut buffer = [0; 16];
    for round in 0..20_u8 {
        for socket in &sockets {
            socket.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
            socket.send_to(&[round], SocketAddr::new(address, 7000)).unwrap();
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(buffer[..length], [round]);
        }
    }
    // Whoever gets it ends; the other is then alone.
    for mut server in servers {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while server.child.try_wait().unwrap().is_none() {
            assert!(std::time::Instant::now() < deadline, "the server does not end");
            for socket in &sockets {
                let _ = socket.send_to(b"quit", SocketAddr::new(address, 7000));
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let mut statistics = String::new();
        std::io::Read::read_to_string(&mut server.child.stderr.take().unwrap(), &mut statistics).unwrap();
        // Half of 64 peers, give or take four standard deviations, of which each asks 20 times.
        let received = counter(&statistics, "rx_datagrams");
        assert!((16 * 20..=48 * 20 + 200).contains(&received), "{statistics}");
    }
}

/// So do several sockets of one process, as those of a DNS server's threads, and all of them at user level.
#[test]
fn sockets_of_one_process_share_a_port() {
    const PEERS: usize = 64;
    let pairs: [(IpAddr, &str); 2] = [(SERVER.into(), "0.0.0.0:0"), (SERVER_V6.into(), "[::]:0")];
    for (address, any) in pairs {
        let bench = Bench::new();
        let Lab { server: ours, client: theirs, .. } = &bench.lab;
        let server = Server::spawn_as("share", bench.python(true), ours, address);
        let sockets: Vec<UdpSocket> = theirs.within(|| {
            let open = || UdpSocket::bind(any).unwrap();
            std::iter::repeat_with(open).take(PEERS).collect()
        });
        let mut asked = 0;
        let mut ask = |socket: &UdpSocket, question: &[u8]| {
            let mut buffer = [0; 16];
            socket.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
            socket.send_to(question, SocketAddr::new(address, 7000)).unwrap();
            asked += 1;
            let length = socket.recv(&mut buffer).unwrap();
            text(&buffer[..length])
        };
        // They join when they are read for the first time, which is when the process waits.
        for socket in &sockets {
            ask(socket, b"first");
        }
        for left in (1..=4).rev() {
            let answers: Vec<String> = sockets.iter().map(|socket| ask(socket, b"who")).collect();
            let again: Vec<String> = sockets.iter().map(|socket| ask(socket, b"who")).collect();
            assert_eq!(answers, again, "a peer stays where it is");
            let mut who = answers;
            who.sort();
            who.dedup();
            assert_eq!(who.len(), left, "{who:?}");
            if left > 1 {
                // What comes at that moment may be the kernel's.
                ask(&sockets[left], b"go");
            }
        }
        let statistics = server.quit(theirs);
        let received = counter(&statistics, "rx_datagrams");
        assert!(received + 20 > asked, "{received} of {asked} accelerated: {statistics}");
    }
}

#[test]
fn ef_udp_turns_it_off() {
    let bench = Bench::new();
    let Lab { server: ours, client: theirs, .. } = &bench.lab;
    let mut command = bench.python(true);
    command.env("EF_UDP", "0");
    let server = Server::spawn(command, ours, SERVER.into());
    assert_eq!(server.quit(theirs), "", "no stack, no statistics");
}

//! Real programs over a tap device, in namespaces that took no privilege to make: the other end is the kernel's.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{ErrorKind, Read, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use overfly_testing::Folder;
use overfly_testing::kernel::counter;
use overfly_testing::unprivileged::outside;
use overfly_tests::steady::{self, Steady};
use overfly_tests::{Random, Server, alive, descendants, eventually, overfly, send, titled};
use rustix::process::Signal;

/// The kernel's addresses.
const KERNEL: [&str; 2] = ["10.77.0.2/24", "fd77::2/64"];
const URL: &str = "http://10.77.0.1:8080";
const SIZES: [usize; 4] = [0, 1024, 10_000, 1_000_000];

/// A folder that goes with the test.
fn folder(test: &str) -> Folder {
    Folder::new(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tap-{test}")))
}

fn run(options: &[&str], words: &[&str]) -> Command {
    let mut command = Command::new(overfly());
    command.args(["run", "--link", "tap:t0"]).args(options).arg("--").args(words).stdin(Stdio::null());
    command
}

/// nginx with two workers, once it answers.
fn nginx(folder: &Folder, listen: &str) -> Server {
    let mut config = "worker_processes 2;\nuser root;\ndaemon off;\npid FOLDER/nginx.pid;\n\
        error_log FOLDER/error.log warn;\nevents { worker_connections 4096; }\n\
        http {\n    log_format worker '$pid';\n    access_log FOLDER/served worker;\n    keepalive_requests 1000000;\n"
        .to_owned();
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        let _ = writeln!(config, "    {kind}_temp_path FOLDER/{kind};");
    }
    let _ = writeln!(config, "    server {{\n        listen {listen};\n        root FOLDER;\n    }}\n}}");
    let place = folder.path("nginx.conf");
    fs::write(&place, config.replace("FOLDER", &folder.path(""))).expect("write nginx.conf");
    for size in SIZES {
        fs::write(folder.path(&size.to_string()), Random(size as u64).bytes(size)).expect("write a file");
    }
    let server = Server::spawn(run(&[], &["nginx", "-e", "stderr", "-c", &place]));
    eventually("nginx answers", || {
        let curl = Command::new("curl").args(["-sf", "-m", "1", &format!("{URL}/0")]).output();
        curl.expect("start curl").status.success()
    });
    server
}

#[track_caller]
fn text(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    text
}

#[track_caller]
fn succeed(words: &[&str]) -> String {
    text(&Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).output().expect("start a command"))
}

/// `overfly load http` over kernel sockets, with JSON.
fn load(options: &[&str], path: &str) -> Command {
    let mut command = Command::new(overfly());
    command.args(["load", "http", "--link", "kernel", "--json"]).args(options).arg(format!("{URL}/{path}"));
    command.stdin(Stdio::null());
    command
}

/// Requests that must all succeed.
#[track_caller]
fn all_succeed(options: &[&str], path: &str) {
    let options = [&["-c", "16", "-n", "1000"], options].concat();
    let report = text(&load(&options, path).output().expect("start the generator"));
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["succeeded"], 1000, "{options:?} /{path}: {report}");
}

/// The workers that have served requests so far, the last one last.
fn served(folder: &Folder) -> Vec<u32> {
    steady::served(&fs::read_to_string(folder.path("served")).unwrap_or_default())
}

fn workers(server: &Server) -> Vec<u32> {
    titled(server.id(), "nginx: worker process")
}

/// Connections that the namespace's kernel has made, and those that it has accepted.
fn kernels_connections() -> (u64, u64) {
    let text = fs::read_to_string("/proc/self/net/snmp").expect("the kernel's counters");
    (counter(&text, "Tcp", "ActiveOpens"), counter(&text, "Tcp", "PassiveOpens"))
}

/// Nobody has the device open, and no broker is there.
#[track_caller]
fn nothing_is_left() {
    eventually("the device is let go", || succeed(&["ip", "link", "show", "t0"]).contains("NO-CARRIER"));
    let seen = succeed(&["ss", "-lxH"]);
    assert!(!seen.contains("overfly"), "left behind: {seen}");
}

/// Issue 25, item 3: a process that was busy held its share of new connections.
#[test]
fn who_is_busy_gets_no_connection_that_another_process_could_take() {
    if outside("who_is_busy_gets_no_connection_that_another_process_could_take", &KERNEL) {
        return;
    }
    let folder = folder("busy");
    let program =
        |name: &str| format!("{}/../crates/sockets/tests/programs/{name}", env!("CARGO_MANIFEST_DIR"));
    let command = overfly().display().to_string();
    for way in ["accept", "poll", "epoll"] {
        let server = Server::spawn(run(&[], &["python3", &program("prefork.py"), "10.77.0.1", way, "3"]));
        eventually("three processes listen", || {
            let shown = succeed(&[&command, "top", "--json", "--once", "--interval", "0.05"]);
            let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
            shown["stacks"].as_array().is_some_and(|stacks| stacks.len() == 3)
        });
        let told = succeed(&["python3", &program("asks.py"), "10.77.0.1", "3", &folder.path(""), "idle"]);
        assert_eq!(told, "20 answers of 1 process, 2 busy, who answered nothing: True\n", "{way}");
        drop(server);
        nothing_is_left();
    }
}

/// A load of small files.
fn steady(options: &[&str]) -> Steady {
    Steady::start(load(&[&["-R", "400", "-d", "600s"], options].concat(), "1024"))
}

#[test]
fn every_byte_is_right_and_the_kernel_accepts_nothing() {
    if outside("every_byte_is_right_and_the_kernel_accepts_nothing", &KERNEL) {
        return;
    }
    let folder = folder("bytes");
    let server = nginx(&folder, "8080 reuseport");
    for size in SIZES {
        let (size, file) = (size.to_string(), folder.path(&size.to_string()));
        let digest = succeed(&["sha256sum", &file]);
        let digest = digest.split(' ').next().expect("a digest");
        for close in [&[][..], &["--close"]] {
            let options =
                [&["--expect-size", &size, "--expect-sha256", digest, "--expect-status", "200"], close]
                    .concat();
            all_succeed(&options, &size);
        }
    }
    let served = served(&folder);
    let each = workers(&server).into_iter().map(|worker| served.iter().filter(|&&its| its == worker).count());
    let each: Vec<usize> = each.collect();
    assert!(each.iter().all(|&count| count > 1000), "{each:?} requests of 8,000");
    assert_eq!(kernels_connections().1, 0);
    let command = overfly().display().to_string();
    let shown = succeed(&[&command, "top", "--json", "--once", "--interval", "0.05"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let stacks = shown["stacks"].as_array().expect("stacks");
    assert!(stacks.len() == 2 && stacks.iter().all(|stack| stack["interface"] == "tap:t0"), "{shown}");
    // The same listener, over the kernel; a port without one; and an address that answers.
    succeed(&["curl", "-sf", "-o", "/dev/null", "http://127.0.0.1:8080/1024"]);
    let refused = Command::new("curl").args(["-s", "-m", "5", "http://10.77.0.1:9/"]).status();
    assert_eq!(refused.expect("start curl").code(), Some(7), "refused at once");
    assert!(!succeed(&["ping", "-c", "5", "-i", "0.1", "10.77.0.1"]).contains("DUP"));
    server.stop();
    nothing_is_left();
}

/// One frame of a hundred is lost each way, however many segments it has.
const LOSS: &str = "table netdev faults {
    chain out { type filter hook egress device t0 priority 0; numgen random mod 100 < 1 counter drop; }
}
table inet faults {
    chain in { type filter hook prerouting priority 0; iif t0 numgen random mod 100 < 1 counter drop; }
}";
/// One segment of sixteen, by its sequence number, waits longer than those after it, each way: what comes from the device goes by
/// another one for that.
const DELAY: [&str; 12] = [
    "ip link add ifb0 type ifb",
    "ip link set ifb0 up",
    "tc qdisc add dev t0 root handle 1: htb default 1",
    "tc class add dev t0 parent 1: classid 1:1 htb rate 10gbit",
    "tc class add dev t0 parent 1: classid 1:2 htb rate 20mbit burst 1600 cburst 1600",
    "tc filter add dev t0 parent 1: protocol ip u32 match u8 5 0x0f at 31 flowid 1:2",
    "tc qdisc add dev ifb0 root handle 1: htb default 1",
    "tc class add dev ifb0 parent 1: classid 1:1 htb rate 10gbit",
    "tc class add dev ifb0 parent 1: classid 1:2 htb rate 400mbit burst 1600 cburst 1600",
    "tc filter add dev ifb0 parent 1: protocol ip u32 match u8 5 0x0f at 27 flowid 1:2",
    "tc qdisc add dev t0 ingress",
    "tc filter add dev t0 parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev ifb0",
];

/// Packets that the class of late ones of a device has sent.
fn late(device: &str) -> u64 {
    let shown = succeed(&["tc", "-s", "class", "show", "dev", device, "classid", "1:2"]);
    let packets = shown.split_whitespace().skip_while(|word| *word != "bytes").nth(1);
    packets.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{shown}"))
}

#[test]
fn every_byte_is_right_where_frames_are_lost_and_late() {
    if outside("every_byte_is_right_where_frames_are_lost_and_late", &KERNEL) {
        return;
    }
    let folder = folder("faults");
    let server = nginx(&folder, "8080 reuseport");
    let rules = folder.path("faults.nft");
    fs::write(&rules, LOSS).expect("write the rules");
    succeed(&["nft", "-f", &rules]);
    for line in DELAY {
        succeed(&line.split_whitespace().collect::<Vec<_>>());
    }
    for size in SIZES {
        let (size, file) = (size.to_string(), folder.path(&size.to_string()));
        let digest = succeed(&["sha256sum", &file]);
        let digest = digest.split(' ').next().expect("a digest");
        let options = ["--expect-size", &size, "--expect-sha256", digest, "--expect-status", "200"];
        all_succeed(&[&options[..], &["--timeout", "30"]].concat(), &size);
    }
    let rules = succeed(&["nft", "list", "ruleset"]);
    let words: Vec<&str> = rules.split_whitespace().collect();
    let dropped: Vec<u64> = words
        .windows(2)
        .filter(|pair| pair[0] == "packets")
        .filter_map(|pair| pair[1].parse().ok())
        .collect();
    assert!(dropped.len() == 2 && dropped.iter().all(|&frames| frames > 20), "{rules}");
    let late = ["t0", "ifb0"].map(late);
    assert!(late.iter().all(|&frames| frames > 20), "{late:?} were late");
    // Files of 1 MB come in frames of many segments all the same.
    let device = succeed(&["ip", "-s", "-j", "link", "show", "t0"]);
    let device: serde_json::Value = serde_json::from_str(&device).expect("JSON");
    let received = |what: &str| device[0]["stats64"]["rx"][what].as_u64().expect("a number");
    let mean = received("bytes") / received("packets");
    assert!(mean > 3000, "{mean} bytes a frame");
    server.stop();
    nothing_is_left();
}

#[test]
fn a_reload_under_load_moves_on_to_the_new_workers() {
    if outside("a_reload_under_load_moves_on_to_the_new_workers", &KERNEL) {
        return;
    }
    let folder = folder("reload");
    let server = nginx(&folder, "8080");
    let load = steady(&["-c", "16", "--close"]);
    for _ in 0..3 {
        let before = workers(&server);
        eventually("they serve", || served(&folder).last().is_some_and(|worker| before.contains(worker)));
        succeed(&["nginx", "-e", "stderr", "-c", &folder.path("nginx.conf"), "-s", "reload"]);
        eventually("the old workers end", || before.iter().all(|&worker| !alive(worker)));
    }
    let after = workers(&server);
    eventually("the new ones serve", || served(&folder).last().is_some_and(|worker| after.contains(worker)));
    let report = load.end();
    // A connection whose handshake is under way when its worker leaves the listener is reset (README, "What it cannot do yet").
    assert!(report["failed_total"].as_u64() <= Some(12), "{report}");
    assert_eq!(kernels_connections().1, 0);
    server.stop();
    nothing_is_left();
}

#[test]
fn a_worker_that_is_killed_or_stopped_costs_its_own_connections_only() {
    if outside("a_worker_that_is_killed_or_stopped_costs_its_own_connections_only", &KERNEL) {
        return;
    }
    let folder = folder("killed");
    let server = nginx(&folder, "8080 reuseport");
    let load = steady(&["-c", "16", "--timeout", "60s"]);
    eventually("the load is served", || served(&folder).len() > 100);
    let victim = workers(&server)[0];
    send(victim, Signal::KILL);
    eventually("another in its place", || {
        let now = workers(&server);
        now.len() == 2 && !now.contains(&victim)
    });
    all_succeed(&[], "1024");
    let report = load.end();
    assert!(report["failed_total"].as_u64() <= Some(16), "the connections that there were: {report}");
    // Whoever is connected to the other one is served while this one takes nothing.
    let load = steady(&["-c", "64", "--timeout", "60s"]);
    let before = served(&folder).len();
    eventually("both serve", || {
        workers(&server).iter().all(|worker| served(&folder)[before..].contains(worker))
    });
    let stopped = workers(&server)[0];
    send(stopped, Signal::STOP);
    let before = served(&folder).len();
    eventually("the other one serves", || served(&folder).len() > before + 200);
    assert!(succeed(&["ping", "-c", "3", "-i", "0.1", "-W", "5", "10.77.0.1"]).contains(" 0% packet loss"));
    send(stopped, Signal::CONT);
    eventually("this one, too", || served(&folder)[before + 200..].contains(&stopped));
    let _ = load.end();
    server.stop();
    nothing_is_left();
}

/// As in `crates/sockets/tests/killed.rs`: the client waits, and nothing of the dead process would ever say anything.
#[test]
fn clients_of_a_killed_process_hear_of_it() {
    if outside("clients_of_a_killed_process_hear_of_it", &KERNEL) {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/sockets/tests/programs/killed.py");
    let server = Server::spawn(run(&[], &["/usr/bin/python3", script, "serve", "10.77.0.1"]));
    let mut clients: BTreeMap<u32, Vec<TcpStream>> = BTreeMap::new();
    let server_address = "10.77.0.1:8080".parse().expect("an address");
    eventually("both processes serve", || {
        let Ok(mut client) = TcpStream::connect_timeout(&server_address, Duration::from_secs(1)) else {
            return false;
        };
        client.set_read_timeout(Some(Duration::from_secs(5))).expect("SO_RCVTIMEO");
        client.write_all(b"who").expect("ask");
        let mut answer = [0; 20];
        let length = client.read(&mut answer).expect("an answer");
        let answer = std::str::from_utf8(&answer[..length]).expect("text");
        clients.entry(answer.parse().expect("a number")).or_default().push(client);
        clients.len() == 2
    });
    let (victim, theirs) = clients.pop_first().expect("two processes");
    send(victim, Signal::KILL);
    for mut client in theirs {
        match client.read(&mut [0; 1]) {
            Ok(0) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            other => panic!("{other:?}"),
        }
    }
    for client in clients.values_mut().flatten() {
        client.write_all(b"who").expect("ask the other one");
        assert!(client.read(&mut [0; 20]).expect("an answer") > 0);
    }
    drop(server);
    nothing_is_left();
}

/// Four processes, each with connections of its own to the kernel, all of them idle for longer than the device remembers.
const CONNECTS: &str = r"
import os, socket, time
def exchange(connections):
    for number, one in enumerate(connections):
        one.sendall(b'%d\n' % number * 100)
    for number, one in enumerate(connections):
        expected, received = b'%d\n' % number * 100, b''
        while len(received) < len(expected):
            received += one.recv(65536) or exit(1)
        assert received == expected
for _ in range(3):
    if os.fork() == 0:
        break
else:
    children = True
connections = [socket.create_connection(('10.77.0.2', 7)) for _ in range(8)]
exchange(connections)
time.sleep(4)
exchange(connections)
data = os.urandom(1 << 20) * 16
one = connections[0]
one.setblocking(False)
sent, received = 0, bytearray()
while len(received) < len(data):
    try:
        sent += one.send(data[sent:sent + 100000]) if sent < len(data) else 0
    except BlockingIOError:
        pass
    try:
        received += one.recv(1 << 20)
    except BlockingIOError:
        pass
assert received == data
if 'children' in globals():
    assert all(os.wait()[1] == 0 for _ in range(3))
    print('all is well')
";

/// Sends back what it gets.
const ECHOES: &str = r"
import socket, threading
listener = socket.create_server(('10.77.0.2', 7), backlog=100)
print('listening', flush=True)
def serve(connection):
    while data := connection.recv(1 << 20):
        connection.sendall(data)
while True:
    threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()
";

#[test]
fn connections_to_the_kernel_outlive_their_silence() {
    if outside("connections_to_the_kernel_outlive_their_silence", &KERNEL) {
        return;
    }
    let mut echo = Command::new("python3");
    let _echo = Server::spawn({
        echo.args(["-c", ECHOES]).stdout(Stdio::null());
        echo
    });
    eventually("the kernel listens", || !succeed(&["ss", "-ltnH", "sport = :7"]).is_empty());
    let mut connects = run(&[], &["python3", "-c", CONNECTS]);
    let said = text(&connects.env("EF_NO_FAIL", "0").output().expect("start overfly run"));
    assert_eq!(said, "all is well\n");
    assert_eq!(kernels_connections(), (0, 32), "made over the device, accepted by the kernel");
    nothing_is_left();
}

/// A server at TCP and UDP ports of the program's own address, and what the program finds there itself.
const SERVES_ITSELF: &str = r"
import os, select, signal, socket, time
tcp = socket.create_server(('', 9000), backlog=100)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(('10.77.0.1', 9000))
child = os.fork()
if child == 0:
    while True:
        for one in select.select([tcp, udp], [], [])[0]:
            if one is tcp:
                tcp.accept()[0].sendall(b'hello')
            else:
                data, peer = udp.recvfrom(65535)
                udp.sendto(data[::-1], peer)
def greeting():
    # Nobody is there before the server waits for connections.
    for _ in range(1000):
        try:
            return socket.create_connection(('10.77.0.1', 9000), timeout=9).recv(100)
        except ConnectionRefusedError:
            time.sleep(0.01)
print(greeting(), flush=True)
try:
    socket.create_connection(('10.77.0.1', 9), timeout=9)
except ConnectionRefusedError:
    print('refused at once', flush=True)
signal.pause()
";

/// Asks the server's UDP port, from two sockets, one of which is connected.
const ASKS: &str = r"
import socket
for connected in (True, False):
    asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asker.settimeout(9)
    if connected:
        asker.connect(('10.77.0.1', 9000))
    for length in (0, 1, 1472):
        data = bytes(number % 251 for number in range(length))
        asker.send(data) if connected else asker.sendto(data, ('10.77.0.1', 9000))
        assert asker.recv(65535) == data[::-1], length
closed = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
closed.settimeout(9)
closed.connect(('10.77.0.1', 9))
closed.send(b'x')
try:
    closed.recv(1)
except ConnectionRefusedError:
    print('unreachable')
";

/// The program has no capability: the device is its user's, and nothing could be handed over to the kernel.
#[test]
fn its_own_address_and_datagrams_without_any_capability() {
    if outside("its_own_address_and_datagrams_without_any_capability", &KERNEL) {
        return;
    }
    let folder = folder("own");
    let said = fs::File::create(folder.path("said")).expect("make a file");
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(overfly());
    command.args(["run", "--link", "tap:t0", "--", "python3", "-c", SERVES_ITSELF]).stdout(said);
    let server = Server::spawn(command);
    let heard = || fs::read_to_string(folder.path("said")).expect("a file");
    eventually("it has found itself", || heard() == "b'hello'\nrefused at once\n");
    assert_eq!(succeed(&["python3", "-c", ASKS]), "unreachable\n");
    assert_eq!(kernels_connections(), (0, 0));
    server.stop();
    nothing_is_left();
}

#[test]
fn over_ipv6_and_a_device_with_one_queue() {
    if outside("over_ipv6_and_a_device_with_one_queue", &KERNEL) {
        return;
    }
    let folder = folder("ipv6");
    let data = Random(6).bytes(20_000_000);
    fs::write(folder.path("file"), &data).expect("write a file");
    succeed(&["ip", "link", "delete", "t0"]);
    succeed(&["ip", "tuntap", "add", "dev", "t0", "mode", "tap"]);
    succeed(&["ip", "address", "add", KERNEL[1], "dev", "t0", "nodad"]);
    succeed(&["ip", "link", "set", "t0", "up"]);
    let options = ["--address", "fd77::1/64"];
    let served = folder.path("");
    let words = ["python3", "-m", "http.server", "--bind", "fd77::1", "--directory", &served, "8080"];
    let server = Server::spawn(run(&options, &words));
    let url = "http://[fd77::1]:8080/file";
    let fetched = folder.path("fetched");
    eventually("it answers", || {
        let curl = Command::new("curl").args(["-sf", "-m", "8", "-o", &fetched, url]).status();
        curl.expect("start curl").success()
    });
    assert!(fs::read(&fetched).expect("a file") == data, "other bytes");
    assert_eq!(kernels_connections().1, 0);
    server.stop();
    nothing_is_left();
}

#[test]
fn what_cannot_be_has_its_reason() {
    if outside("what_cannot_be_has_its_reason", &KERNEL) {
        return;
    }
    let refused = |options: &[&str], expected: &str| {
        let output = run(options, &["true"]).env("EF_NO_FAIL", "0").output().expect("start overfly run");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(expected), "{said}");
    };
    refused(&["--address", "10.77.0.2/24"], "10.77.0.2 is the kernel's own");
    let server = Server::spawn(run(&[], &["sleep", "600"]));
    eventually("the program runs", || titled(server.id(), "sleep").len() == 1);
    refused(&["--address", "10.77.0.3/24"], "another program runs over t0");
    server.stop();
    succeed(&["ip", "link", "set", "t0", "down"]);
    refused(&[], "no tap device t0 is up: ip tuntap add dev t0");
    succeed(&["ip", "link", "delete", "t0"]);
    succeed(&["ip", "tuntap", "add", "dev", "t0", "mode", "tun"]);
    succeed(&["ip", "link", "set", "t0", "up"]);
    refused(&[], "it must be a tap device");
}

#[test]
fn killed_anywhere_it_leaves_nothing_and_starts_again() {
    if outside("killed_anywhere_it_leaves_nothing_and_starts_again", &KERNEL) {
        return;
    }
    let folder = folder("anywhere");
    for victim in ["overfly", "nginx: master process"] {
        let mut server = nginx(&folder, "8080");
        let family = descendants(server.id());
        let victim = if victim == "overfly" { server.id() } else { titled(server.id(), victim)[0] };
        send(victim, Signal::KILL);
        eventually("the rest ends", || server.ended() && family.iter().all(|&id| !alive(id)));
        nothing_is_left();
    }
    let server = nginx(&folder, "8080");
    all_succeed(&[], "1024");
    server.stop();
    nothing_is_left();
}

//! `overfly load astf` between two tap devices with a router of the kernel's in between: what the counters say is what `tshark` sees
//! on the way. In namespaces that take no privilege to make.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use overfly_testing::Folder;
use overfly_testing::process::Killed;
use overfly_testing::unprivileged::outside_with;
use overfly_tests::control::drain;
use overfly_tests::{eventually, overfly};
use serde_json::Value;

/// The clients are behind t0, the servers behind t1.
const ROUTER: &str = "ip link set lo up && for t in t0 t1; do ip tuntap add dev $t mode tap multi_queue; \
    sysctl -qw net.ipv4.conf.$t.rp_filter=0; sysctl -qw net.ipv6.conf.$t.disable_ipv6=0; ip link set $t up; done && \
    sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv6.conf.all.forwarding=1 && \
    ip address add 10.77.0.1/24 dev t0 && ip address add 10.78.0.1/24 dev t1 && \
    ip route add 16.0.0.0/8 dev t0 && ip route add 48.0.0.0/8 dev t1 && ip route add 10.0.0.0/24 dev t1 && ip route add 17.0.0.0/8 dev t0 && ip route add 49.0.0.0/8 dev t1";

/// IPv6 clients and servers, and the ends of tunnels: nobody answers ARP for these, so the sides' hardware addresses are told.
const MORE: &str = "&& ip -6 route add fd02::/64 dev t0 && ip -6 route add fd03::/64 dev t1 && \
    ip -6 route add 2001:db8:1::/64 dev t0 && ip -6 route add 2001:db8:2::/64 dev t1 && \
    ip route add 1.1.1.11 dev t0 && ip neigh add 1.1.1.11 lladdr 02:00:0a:4d:00:02 dev t0 && \
    ip route add 12.2.2.2 dev t1 && ip neigh add 12.2.2.2 lladdr 02:00:0a:4d:00:01 dev t1";

/// Runs the test of that name once more inside the router's namespace, after more of its setup. False there.
fn outside(test: &str, more: &str) -> bool {
    outside_with(test, &format!("{ROUTER} {more}"))
}

/// A folder that goes with the test, with the profiles and the captures that they name.
fn folder(test: &str) -> Folder {
    let folder = Folder::new(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("astf-{test}")));
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
    for entry in fs::read_dir(python.join("tests/profiles")).expect("read the profiles") {
        let path = entry.expect("read the profiles").path();
        if path.is_file() {
            fs::copy(&path, folder.as_ref().join(path.file_name().expect("a file"))).expect("copy a profile");
        }
    }
    let script = "import sys; sys.dont_write_bytecode = True\nfrom tests.running import captures\n\
        for name, content in captures(): open(sys.argv[1] + '/' + name, 'wb').write(content)";
    let written =
        Command::new("python3").args(["-c", script]).arg(folder.as_ref()).current_dir(&python).status();
    assert!(written.expect("start python3").success(), "captures are written");
    folder
}

fn astf(folder: &Folder, profiles: &[&str], words: &[&str]) -> Command {
    let mut command = Command::new(overfly());
    command.args(["load", "astf"]).args(profiles.iter().map(|name| folder.path(name))).args(words);
    command.arg("--json").stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

fn report(child: Child) -> Value {
    let output = child.wait_with_output().expect("wait for a command");
    assert!(output.status.success(), "{}", output.status);
    serde_json::from_slice(&output.stdout).expect("the report is JSON")
}

/// What both sides counted, and what went by on t0 meanwhile.
struct Outcome {
    client: Value,
    server: Value,
    capture: String,
}

impl Outcome {
    fn at(&self, side: &str, counter: &str) -> u64 {
        let report = if side == "client" { &self.client } else { &self.server };
        report["totals"][side]["counters"][counter]
            .as_u64()
            .unwrap_or_else(|| panic!("{counter} of the {side}"))
    }

    /// The same counter of both sides.
    fn both(&self, counter: &str) -> u64 {
        self.at("client", counter) + self.at("server", counter)
    }

    fn packets(&self) -> u64 {
        self.both("tcps_sndtotal") + self.both("udps_sndpkt")
    }

    fn bytes(&self) -> u64 {
        self.both("tcps_sndbyte_ok") + self.both("tcps_sndrexmitbyte") + self.both("udps_sndbyte")
    }

    /// Packets and payload bytes that tshark sees on that device.
    fn seen(&self, device: &str, filter: &str) -> (u64, u64) {
        let output = Command::new("tshark")
            .args([
                "-n",
                "-r",
                &self.capture,
                "-Y",
                &format!("frame.interface_name == \"{device}\" && ({filter})"),
            ])
            .args(["-T", "fields", "-e", "tcp.len", "-e", "udp.length"])
            .output()
            .expect("start tshark");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let number = |text: &str| text.trim().parse::<u64>().unwrap_or(0);
        text.lines().fold((0, 0), |(packets, bytes), line| {
            let (tcp, udp) = line.split_once('\t').unwrap_or((line, ""));
            // TCP in a tunnel has both.
            let payload = if tcp.is_empty() { number(udp).saturating_sub(8) } else { number(tcp) };
            (packets + 1, bytes + payload)
        })
    }
}

const ALL: &str = "!icmp && (tcp || (udp && ip.addr == 16.0.0.0/8))";

/// Runs the client side to its end against the server side, with tshark between.
fn run(folder: &Folder, profiles: &[&str], more: &[&str]) -> Outcome {
    let (socket, capture) = (folder.path("control"), folder.path("capture.pcapng"));
    let mut server = astf(folder, profiles, &["--side", "server", "--link", "tap:t1", "--control", &socket]);
    let mut server = server.spawn().expect("start the server side");
    let dumpcap = Command::new("dumpcap")
        .args(["-q", "-i", "t0", "-i", "t1", "-s", "128", "-w", &capture])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _dumpcap = Killed(dumpcap.expect("start dumpcap"));
    eventually("the server side listens", || Path::new(&socket).exists());
    eventually("dumpcap listens", || fs::metadata(&capture).is_ok_and(|file| file.len() > 100));
    // The capture's head is written before the devices are opened: a packet that was seen says that they are.
    let ping = || Command::new("ping").args(["-c1", "-W1", "-I", "t0", "10.77.0.99"]).output();
    eventually("dumpcap sees", || {
        let before = fs::metadata(&capture).map_or(0, |file| file.len());
        let _ = ping();
        std::thread::sleep(Duration::from_millis(200));
        fs::metadata(&capture).is_ok_and(|file| file.len() > before + 40)
    });
    let mut words = vec!["--side", "client", "--link", "tap:t0", "-d", "1"];
    words.extend(more);
    let client = report(astf(folder, profiles, &words).spawn().expect("start the client side"));
    drain(&socket, || {
        assert!(server.try_wait().expect("wait for the server side").is_none(), "the server side has ended");
    });
    let outcome = Outcome { client, server: report(server), capture };
    for device in ["t0", "t1"] {
        let (sent, last) = (outcome.packets(), Cell::new(0));
        let waited = Instant::now();
        while last.get() < sent && waited.elapsed() < Duration::from_secs(10) {
            last.set(outcome.seen(device, ALL).0);
        }
        println!("{profiles:?}: {sent} packets sent, {} seen on {device}", last.get());
    }
    outcome
}

/// Checks a clean run: flows, and the bytes that the clients and the servers sent.
fn check(name: &str, outcome: &Outcome, flows: u64, up: u64, down: u64) {
    let at = |side, counter| outcome.at(side, counter);
    let sent = |side| at(side, "tcps_sndbyte") + at(side, "udps_sndbyte");
    assert_eq!((at("client", "flows_total"), sent("client"), sent("server")), (flows, up, down), "{name}");
    assert_eq!(at("client", "tcps_connattempt"), at("client", "tcps_closed"), "{name}");
    assert_eq!(at("server", "tcps_accepts"), at("server", "tcps_closed"), "{name}");
    assert_eq!(at("client", "tcps_rcvackbyte"), at("server", "tcps_rcvbyte"), "{name}");
    assert_eq!(at("server", "tcps_rcvackbyte"), at("client", "tcps_rcvbyte"), "{name}");
    let all = (outcome.packets(), outcome.bytes());
    assert_eq!(outcome.seen("t1", ALL), all, "{name}: packets and payload bytes on t1");
    // t0 has no carrier when the client side has ended: the last packets to it, which its flows no longer need, may not get there.
    let seen = outcome.seen("t0", ALL);
    let client =
        ["tcps_sndtotal", "tcps_rcvtotal", "udps_sndpkt", "udps_rcvpkt"].map(|counter| at("client", counter));
    assert!(
        seen == all || (client.iter().sum()..all.0).contains(&seen.0),
        "{name}: {seen:?} packets and payload bytes on t0, {all:?} sent, the client's are {client:?}"
    );
}

#[test]
fn counters_of_the_profiles_are_what_tshark_counts() {
    if outside("counters_of_the_profiles_are_what_tshark_counts", "") {
        return;
    }
    let folder = folder("profiles");
    for (names, multiplier, flows, up, down) in [
        (&["http_simple.py"][..], "10", 28, 28 * 100, 28 * 20_000),
        (&["http_by_program.py"], "2", 20, 20 * 57, 20 * (42 + 32_768)),
        (&["weighted.py"], "1", 70 + 26 + 1, 70 * 100 + 26 * 517 + 64, 70 * 32_000 + 26 * 5000 + 64),
        (&["groups.py"], "3", 12, 12 * 10, 3 * 53_001),
        (&["udp.py"], "1", 100, 100 * 50, 100 * 1300),
        (&["keep_alive.py"], "20", 20, 20 * 270, 20 * 10_240),
        (&["delays.py"], "3", 3, 3 * 5, 3 * 4500),
        (&["loops.py"], "5", 5, 5 * 1200, 5 * 1200),
        (&["server_push.py"], "4", 4, 4 * 6, 4 * 8020),
        (&["http_by_program.py", "second_service.py"], "1", 11, 10 * 57 + 5, 10 * 32_810 + 6),
    ] {
        let outcome = run(&folder, names, &["-m", multiplier]);
        check(names[0], &outcome, flows, up, down);
    }
}

#[test]
fn profiles_of_other_kinds_are_what_tshark_counts() {
    if outside("profiles_of_other_kinds_are_what_tshark_counts", MORE) {
        return;
    }
    let folder = folder("kinds");
    for (name, multiplier, flows, up, down) in [
        ("captures.py", "1", 23 + 12 + 67, 23 * 300 + 12 * 600 + 67 * 40, 23 * 5700 + 12 * 5400 + 67 * 100),
        // Five seconds of ramp: a tenth of what a second of the whole rate would be, and the first flow.
        ("tunables.py", "50", 5, 5 * 2500, 5 * 10_000),
        ("ipv6.py", "4", 8, 4 * 340, 4 * 3041),
        ("tunnel.py", "10", 10, 10 * 123, 10 * 4567),
        ("video.py", "1", 4, 3 * 3, 500_000 + 2 * 50_000),
    ] {
        let outcome = run(&folder, &[name], &["-m", multiplier]);
        check(name, &outcome, flows, up, down);
        if name == "tunnel.py" {
            let (seen, sent) = (outcome.seen("t1", "gtp && tcp").0, outcome.packets());
            assert_eq!(seen, sent, "all is in tunnels");
            let probe = &outcome.client["probes"][0];
            assert!(
                probe["sent"].as_u64() >= Some(1)
                    && probe["lost"] == 0
                    && probe["avg_us"].as_f64() > Some(0.0),
                "{probe}"
            );
        }
    }
}

#[test]
fn what_a_path_loses_never_leaves_and_the_rest_is_late() {
    if outside("what_a_path_loses_never_leaves_and_the_rest_is_late", "") {
        return;
    }
    let folder = folder("path");
    let outcome = run(&folder, &["path.py"], &["-m", "3", "--probe", "20"]);
    let at = |side, counter| outcome.at(side, counter);
    assert_eq!((at("client", "flows_total"), at("client", "tcps_rcvbyte")), (30, 30 * 20_000));
    assert!(at("server", "path_lost") > 0 && at("client", "path_lost") == 0);
    for device in ["t0", "t1"] {
        // Acknowledgments of the stack's own, in TIME-WAIT, are not the flows'.
        let (seen, left) = (outcome.seen(device, ALL).0, outcome.packets() - at("server", "path_lost"));
        assert!((left..left + 10).contains(&seen), "{seen} on {device}, {left} left");
    }
    let connect_us = outcome.client["latency"]["others"]["connect"]["us"]["min"].as_f64().expect("a time");
    assert!(
        (40_000.0..75_000.0).contains(&connect_us),
        "20 ms there, 30 back, 10 more or less: {connect_us}"
    );
    let probe = &outcome.client["probes"][0];
    assert!(
        probe["received"].as_u64() >= Some(10) && probe["min_us"].as_u64() < Some(20_000),
        "not on the path: {probe}"
    );
}

#[test]
fn ports_and_addresses_may_change_on_the_way() {
    let nat = "&& nft add table ip nat && nft add chain ip nat post '{ type nat hook postrouting priority 100; }' && \
        nft add chain ip nat pre '{ type nat hook prerouting priority -100; }' && \
        nft add rule ip nat post oifname t1 masquerade && \
        nft add rule ip nat pre iifname t0 tcp dport 8080 dnat to 10.0.0.12:80 && \
        nft add rule ip nat pre iifname t0 tcp dport 80 dnat to 10.0.0.3";
    if outside("ports_and_addresses_may_change_on_the_way", nat) {
        return;
    }
    let folder = folder("nat");
    let outcome = run(&folder, &["nat.py"], &["-m", "5"]);
    check("nat.py", &outcome, 20, 5 * (3 + 4 + 5 + 7), 5 * (11 + 22 + 33 + 44));
    assert_eq!(outcome.at("server", "defer_template"), 10);
    assert_eq!(
        outcome.seen("t1", "ip.src == 16.0.0.0/8").0,
        0,
        "the router's address stands for the clients"
    );
    assert!(outcome.seen("t1", "tcp && ip.addr == 10.0.0.12 && tcp.port == 80").0 >= 5 * 7);
}

#[test]
fn a_real_server_answers_the_client_side() {
    let server = "&& ip address add 48.0.0.1/32 dev lo && ip route del 48.0.0.0/8 dev t1";
    if outside("a_real_server_answers_the_client_side", server) {
        return;
    }
    let folder = folder("nginx");
    let response = 32_768;
    fs::write(folder.path("page"), vec![b'x'; response]).expect("write a page");
    let place = folder.path("");
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {place}{kind}; "))
        .concat();
    let config = format!(
        "daemon off; master_process off; user root; pid {place}nginx.pid; error_log {place}error.log; events {{}}\n\
         http {{ access_log {place}access.log; {temporary} server_tokens off; etag off; \
         server {{ listen 48.0.0.1:80; root {place}; default_type text/plain; }} }}"
    );
    fs::write(folder.path("nginx.conf"), config).expect("write nginx.conf");
    let nginx = Command::new("nginx")
        .args(["-p", &place, "-c", &folder.path("nginx.conf")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _nginx = Killed(nginx.expect("start nginx"));
    eventually("nginx answers", || std::net::TcpStream::connect("48.0.0.1:80").is_ok());
    let head = {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect("48.0.0.1:80").expect("connect to nginx");
        stream.write_all(b"GET /page HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").expect("ask");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("read the answer");
        answer.len() - response
    };
    let profile = format!(
        "from trex.astf.api import *
class P():
    def get_profile(self, tunables=(), **kwargs):
        c = ASTFProgram(); s = ASTFProgram()
        c.send('GET /page HTTP/1.1\\r\\nHost: a\\r\\nConnection: close\\r\\n\\r\\n'); c.recv({size})
        s.recv(1); s.send('x' * {size})
        info = ASTFGlobalInfo(); info.tcp.initwnd = 2; info.tcp.delay_ack_msec = 100
        ip = ASTFIPGen(dist_client=ASTFIPGenDist(['16.0.0.1', '16.0.0.200']), dist_server=ASTFIPGenDist(['48.0.0.1', '48.0.0.1']))
        return ASTFProfile(default_ip_gen=ip, default_c_glob_info=info, templates=[ASTFTemplate(
            client_template=ASTFTCPClientTemplate(program=c, ip_gen=ip, cps=300),
            server_template=ASTFTCPServerTemplate(program=s))])
def register(): return P()
",
        size = head + response
    );
    fs::write(folder.path("nginx_wget.py"), profile).expect("write a profile");
    let words = ["--side", "client", "--link", "tap:t0", "-d", "1"];
    let report = report(astf(&folder, &["nginx_wget.py"], &words).spawn().expect("start the client side"));
    let counters = &report["totals"]["client"]["counters"];
    for (counter, count) in [
        ("tcps_connects", 300),
        ("tcps_closed", 300),
        ("tcps_rcvbyte", 300 * (head + response) as u64),
        ("tcps_drops", 0),
        ("tcps_conndrops", 0),
    ] {
        assert_eq!(counters[counter], count, "{counter}: {counters}");
    }
    let log = fs::read_to_string(folder.path("access.log")).expect("nginx's log");
    assert_eq!(log.lines().filter(|line| line.contains("\" 200 32768 ")).count(), 301);
}

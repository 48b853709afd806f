//! `overfly broker` ends while nginx serves clients through it, in each of the ways that it can, and another one takes its place.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use overfly_bench::lab::Lab;
use overfly_testing::kernel::counter;
use overfly_tests::service::{Broker, USER, accepts, as_user, capabilities, counted};
use overfly_tests::steady::Steady;
use overfly_tests::{
    ROOT, Random, Server, alive, descendants, eventually, is_steered, kernel_accepted, output, overfly, send,
    succeed, titled,
};
use rustix::process::Signal;
use serde_json::Value;

const PORT: u16 = 8080;
const WORKERS: usize = 2;
const FILE_BYTES: usize = 8 << 20;
const OK_BYTES: usize = 1000;

/// Connections that are in the middle of something until a line comes: those that stay open between two requests, those with half a
/// request, and those with a part of a response.
const CLIENTS: &str = include_str!("programs/clients_in_the_middle.py");

/// A program that waits in one call after the other, in threads: it echoes over TCP and UDP, and what its own connection echoes.
const ECHOES: &str = include_str!("programs/echoes.py");

/// Its clients: for each line one exchange of each kind, over what was open from the beginning, and over a new connection.
const ASKS: &str = include_str!("programs/asks.py");

/// Clients that wait; for a line, how many of them were told that it is over.
const WAITS: &str = include_str!("programs/waits.py");

/// One that talks to itself, over a connection within the host: an exchange for each line.
const INNER: &str = include_str!("programs/inner.py");

/// Connections that stay open, as many as are asked for; then an exchange over each.
const MANY: &str = include_str!("programs/held.py");

/// Such clients.
struct Clients(Child, BufReader<ChildStdout>);

impl Clients {
    fn start(lab: &Lab, digest: &str) -> Clients {
        let mut command = lab.command("client", "python3");
        command.args(["-c", CLIENTS, &PORT.to_string(), digest, &OK_BYTES.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start clients");
        let mut said = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        said.read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        Clients(child, said)
    }

    /// Has them go on, and says what failed.
    fn go_on(mut self) -> String {
        self.0.stdin.take().expect("a pipe").write_all(b"\n").expect("write");
        let mut said = String::new();
        self.1.read_to_string(&mut said).expect("what they say");
        assert!(self.0.wait().expect("wait").success(), "{said}");
        said
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// nginx under `overfly run`, as a user without privilege, at a broker.
struct Site {
    lab: Lab,
    broker: Broker,
    nginx: Server,
    digest: String,
    /// Processes of nginx's.
    family: Vec<u32>,
    /// AF_XDP sockets while each worker has its stack.
    sockets: u64,
}

fn policy() -> String {
    format!("[[rule]]\nusers = [{USER}]\ninterfaces = ['eth0']\nstacks = 8\n")
}

impl Site {
    fn start() -> Site {
        let lab = Lab::new(overfly()).expect("a lab");
        let config = format!(
            "worker_processes {WORKERS};\ndaemon off;\npid {ROOT}/nginx.pid;\nerror_log {ROOT}/error.log;\n\
             events {{ worker_connections 4096; }}\n\
             http {{\n    access_log off;\n    keepalive_requests 100000000;\n    sendfile on;\n\
             client_body_temp_path {ROOT}/1;\n    proxy_temp_path {ROOT}/2;\n    fastcgi_temp_path {ROOT}/3;\n\
             uwsgi_temp_path {ROOT}/4;\n    scgi_temp_path {ROOT}/5;\n\
             server {{\n        listen {PORT} reuseport;\n        root {ROOT}/www;\n    }}\n}}\n"
        );
        lab.write("server", format!("{ROOT}/nginx.conf"), config.as_bytes()).expect("write nginx.conf");
        lab.write("server", format!("{ROOT}/www/ok"), &[b'o'; OK_BYTES]).expect("write a file");
        let big = Random(7).bytes(FILE_BYTES);
        lab.write("server", format!("{ROOT}/www/big"), &big).expect("write a file");
        let digest = succeed(&lab, "server", &["sha256sum", &format!("{ROOT}/www/big")]);
        let digest = digest.split(' ').next().expect("a digest").to_owned();
        succeed(&lab, "server", &["chown", "-R", USER, ROOT]);
        let broker = Broker::start(&lab, &policy(), &capabilities(), &[]);
        let mut command = as_user(&lab, "server", USER);
        command.arg(overfly()).args(["run", "--", "nginx", "-e", "stderr", "-c"]);
        command.arg(format!("{ROOT}/nginx.conf"));
        let nginx = Server::spawn(command);
        eventually("nginx has its workers", || titled(nginx.id(), "nginx: worker process").len() == WORKERS);
        let mut site = Site { lab, broker, nginx, digest, family: Vec::new(), sockets: 0 };
        site.is_accelerated();
        site.sockets = site.xdp_sockets();
        site.family = descendants(site.nginx.id());
        site
    }

    /// Makes nginx have new workers, without a farewell of the old ones.
    fn kills_the_workers(&mut self) {
        let workers = || titled(self.nginx.id(), "nginx: worker process");
        let old = workers();
        for &id in &old {
            send(id, Signal::KILL);
        }
        eventually("nginx has other workers", || {
            let new = workers();
            new.len() == WORKERS && new.iter().all(|id| !old.contains(id))
        });
        self.family = descendants(self.nginx.id());
    }

    fn answers(&self) -> bool {
        let url = format!("http://10.77.0.1:{PORT}/ok");
        let got = output(&self.lab, "client", &["curl", "-sf", "--max-time", "5", &url]);
        got.stdout.len() == OK_BYTES
    }

    /// Each worker has its listener: many connections in a row are not the kernel's.
    #[track_caller]
    fn is_accelerated(&self) {
        for _ in 0..8 {
            eventually("nginx is accelerated", || {
                let before = kernel_accepted(&self.lab);
                self.answers() && kernel_accepted(&self.lab) == before
            });
        }
        eventually("its connections are counted", || accepts(&self.lab) > 0);
    }

    /// `overfly load http`, over the client's kernel.
    fn load(&self, options: &[&str]) -> Steady {
        let mut command = self.lab.command("client", overfly());
        command.args(["load", "http", "--json", "--expect-size", &OK_BYTES.to_string(), "--link", "kernel"]);
        command.args(["-R", "400", "-d", "3600s", "-c", "16", "--timeout", "20s"]).args(options);
        command.arg(format!("http://10.77.0.1:{PORT}/ok")).stdin(Stdio::null());
        Steady::start(command)
    }

    /// The broker has ended, and nothing of it is left.
    #[track_caller]
    fn broker_is_gone(&mut self) {
        eventually("the broker ends", || self.broker.ended().is_some());
        eventually("the program is detached", || !is_steered(&self.lab));
        for &id in &self.family {
            assert!(alive(id), "a process of nginx's has ended: {}", self.broker.log());
        }
    }

    /// Another broker takes its place.
    fn begin_again(&mut self) {
        self.broker = Broker::start(&self.lab, &policy(), &capabilities(), &[]);
    }

    /// AF_XDP sockets in the server's namespace.
    fn xdp_sockets(&self) -> u64 {
        let table = succeed(&self.lab, "server", &["cat", "/proc/net/protocols"]);
        let line = table.lines().find(|line| line.starts_with("XDP ")).expect("a kernel with AF_XDP");
        line.split_whitespace().nth(2).and_then(|count| count.parse().ok()).expect("a number")
    }

    /// What nginx's processes have open, each name as often as it is there, without sockets: those of closed connections are kept
    /// for others.
    fn files(&self) -> Vec<String> {
        let folders = self.family.iter().filter_map(|id| std::fs::read_dir(format!("/proc/{id}/fd")).ok());
        let files = folders.flatten().filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        let names = files.map(|file| file.to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| !name.starts_with("socket:")).collect();
        names.sort();
        names
    }

    /// Everything ends, and nothing is left.
    #[track_caller]
    fn ends(self) {
        let Site { lab, mut broker, nginx, family, .. } = self;
        nginx.stop();
        eventually("nginx's processes end", || family.iter().all(|&id| !alive(id)));
        send(broker.id(), Signal::TERM);
        eventually("the broker ends", || broker.ended().is_some());
        assert!(broker.ended().is_some_and(|status| status.success()), "{}", broker.log());
        assert!(!is_steered(&lab));
        assert!(!succeed(&lab, "server", &["cat", "/proc/net/unix"]).contains("@overfly"));
        assert_eq!(succeed(&lab, "server", &["ss", "--xdp", "-a", "-H"]), "");
        let links = succeed(&lab, "server", &["ip", "-o", "link"]);
        assert!(!links.contains("macvlan"), "{links}");
    }
}

fn count(report: &Value, what: &str) -> u64 {
    report[what].as_u64().unwrap_or_else(|| panic!("{what} is no number in {report}"))
}

/// Told to stop, as by `systemctl restart`: no connection is lost, no request fails, and what begins afterwards is accelerated.
#[test]
fn a_broker_that_is_restarted_loses_no_connection() {
    let mut site = Site::start();
    let mut files = Vec::new();
    for round in 0..4 {
        let clients = Clients::start(&site.lab, &site.digest);
        let loads = [site.load(&[]), site.load(&["--close"])];
        sleep(Duration::from_millis(700));
        let accepted = accepts(&site.lab);
        assert!(accepted > 0);
        send(site.broker.id(), Signal::TERM);
        site.broker_is_gone();
        assert!(site.broker.ended().is_some_and(|status| status.success()), "{}", site.broker.log());
        // Without a broker they continue on the kernel's stack, and leave nothing open that was the broker's.
        assert_eq!(site.xdp_sockets(), 0);
        sleep(Duration::from_millis(700));
        assert!(site.answers());
        site.begin_again();
        site.is_accelerated();
        let said = clients.go_on();
        assert_eq!(said, "failed 0\n", "{round}");
        for load in loads {
            let report = load.end();
            assert!(count(&report, "requests") > 300, "{report}");
            assert_eq!(count(&report, "failed_total"), 0, "{round}: {}", report["failed"]);
        }
        files.push(site.files());
    }
    // What a restart left open would be more after each. A process makes some descriptors when it first needs them.
    assert!(
        files.windows(2).any(|two| two[1].len() <= two[0].len()),
        "more files are open each time: {files:#?}"
    );
    site.ends();
}

/// Nobody asks for anything: processes that sleep hear of their broker's end all the same, each time.
#[test]
fn who_sleeps_hears_of_it() {
    let mut site = Site::start();
    for signal in [Signal::KILL, Signal::TERM, Signal::KILL, Signal::TERM] {
        sleep(Duration::from_millis(300));
        send(site.broker.id(), signal);
        site.broker_is_gone();
        eventually("nothing of the broker's is open", || site.xdp_sockets() == 0);
        // Whatever they still had to do in this moment is done.
        (0..8).for_each(|_| assert!(site.answers()));
        sleep(Duration::from_millis(1500));
        site.begin_again();
        eventually("each has its stack again", || site.xdp_sockets() == site.sockets);
        site.is_accelerated();
    }
    site.ends();
}

/// Programs that wait in calls without an event loop, or spin in them, in threads; with connections of their own, and UDP.
#[test]
fn threads_that_wait_and_datagrams_go_on() {
    for options in [&[][..], &[("EF_STACK_PER_THREAD", "1")], &[("EF_POLL_USEC", "10000000")]] {
        println!("{options:?}");
        let lab = Lab::new(overfly()).expect("a lab");
        let mut broker = Broker::start(&lab, &policy(), &capabilities(), &[]);
        let mut asks = lab.command("client", "python3");
        let mut asks =
            asks.args(["-c", ASKS]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("clients");
        let mut said = BufReader::new(asks.stdout.take().expect("a pipe"));
        let mut line = String::new();
        said.read_line(&mut line).expect("a line");
        assert_eq!(line, "listening\n");
        let mut echoes = as_user(&lab, "server", USER);
        echoes.envs(options.iter().copied()).env("EF_NO_FAIL", "0").stdin(Stdio::null());
        echoes.arg(overfly()).args(["run", "--", "python3", "-c", ECHOES]).stdout(Stdio::piped());
        let mut echoes = echoes.spawn().expect("a program");
        let mut ready = BufReader::new(echoes.stdout.take().expect("a pipe"));
        line.clear();
        ready.read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        let mut exchange = || {
            asks.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("write");
            let mut line = String::new();
            said.read_line(&mut line).expect("a line");
            assert_eq!(line, "ok\n", "{options:?}");
        };
        let datagrams =
            || counter(&succeed(&lab, "server", &["cat", "/proc/net/snmp"]), "Udp", "InDatagrams");
        for signal in [Signal::TERM, Signal::TERM] {
            eventually("it is accelerated, datagrams and all", || {
                exchange();
                let before = (kernel_accepted(&lab), datagrams());
                exchange();
                before == (kernel_accepted(&lab), datagrams())
            });
            send(broker.id(), signal);
            eventually("the broker ends", || broker.ended().is_some());
            assert!(broker.ended().is_some_and(|status| status.success()), "{}", broker.log());
            exchange();
            exchange();
            broker = Broker::start(&lab, &policy(), &capabilities(), &[]);
        }
        send(echoes.id(), Signal::TERM);
        echoes.wait().expect("wait");
        let _ = asks.kill();
        let _ = asks.wait();
    }
}

/// Connections within the host need no broker.
#[test]
fn what_is_within_the_host_stays_whatever_becomes_of_the_broker() {
    let lab = Lab::new(overfly()).expect("a lab");
    let mut broker = Broker::start(&lab, &policy(), &capabilities(), &[]);
    let mut inner = as_user(&lab, "server", USER);
    inner.envs([("EF_TCP_SERVER_LOOPBACK", "2"), ("EF_TCP_CLIENT_LOOPBACK", "2"), ("EF_NO_FAIL", "0")]);
    inner.arg(overfly()).args(["run", "--", "python3", "-c", INNER]);
    let mut inner = inner.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a program");
    let mut said = BufReader::new(inner.stdout.take().expect("a pipe"));
    let mut exchange = || {
        inner.stdin.as_mut().expect("a pipe").write_all(b"hello\n").expect("write");
        let mut line = String::new();
        said.read_line(&mut line).expect("a line");
        assert_eq!(line, "hello\n");
    };
    exchange();
    eventually("it is at user level", || counted(&lab, "sockets.connects_within_host") == 1);
    for signal in [Signal::TERM, Signal::KILL, Signal::TERM] {
        send(broker.id(), signal);
        eventually("the broker ends", || broker.ended().is_some());
        exchange();
        broker = Broker::start(&lab, &policy(), &capabilities(), &[]);
        sleep(Duration::from_millis(1200));
        exchange();
    }
    drop(inner.stdin.take());
    assert!(inner.wait().expect("wait").success());
}

/// Many at once; how long they take is printed.
#[test]
fn two_thousand_connections_move() {
    const COUNT: usize = 2000;
    let mut site = Site::start();
    let mut many = site.lab.command("client", "python3");
    many.args(["-c", MANY, &COUNT.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut many = many.spawn().expect("clients");
    let mut said = BufReader::new(many.stdout.take().expect("a pipe"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    let begin = Instant::now();
    send(site.broker.id(), Signal::TERM);
    eventually("the broker ends", || site.broker.ended().is_some());
    println!("{COUNT} connections moved in {:?}", begin.elapsed());
    many.stdin.take().expect("a pipe").write_all(b"\n").expect("write");
    line.clear();
    said.read_line(&mut line).expect("a line");
    assert_eq!(line, "all\n");
    many.wait().expect("wait");
    site.begin_again();
    site.is_accelerated();
    site.ends();
}

/// A connection that was handed over is the kernel's to its end; one that came before is served by whoever it was.
#[test]
fn what_begins_while_there_is_no_broker_is_the_kernels_and_stays_so() {
    let mut site = Site::start();
    send(site.broker.id(), Signal::TERM);
    site.broker_is_gone();
    let clients = Clients::start(&site.lab, &site.digest);
    site.begin_again();
    site.is_accelerated();
    assert_eq!(clients.go_on(), "failed 0\n");
    // Workers that are made anew find the new broker.
    site.kills_the_workers();
    site.is_accelerated();
    site.ends();
}

/// Workers that are forked while there is no broker are accelerated once there is one.
#[test]
fn who_begins_while_there_is_no_broker_finds_the_next_one() {
    let mut site = Site::start();
    send(site.broker.id(), Signal::TERM);
    site.broker_is_gone();
    site.kills_the_workers();
    eventually("they answer", || site.answers());
    site.begin_again();
    site.is_accelerated();
    // They are tied to `overfly run` as the others were.
    send(site.nginx.id(), Signal::KILL);
    let family = site.family.clone();
    eventually("all of them end with it", || family.iter().all(|&id| !alive(id)));
}

/// Killed (kill -9, no memory, a crash): its programs live, connections of that moment are reset at once, and all else is served.
#[test]
fn a_broker_that_is_killed_takes_nobody_along() {
    let mut site = Site::start();
    for round in 0..3 {
        let clients = Clients::start(&site.lab, &site.digest);
        let loads = [site.load(&[]), site.load(&["--close"])];
        sleep(Duration::from_millis(700));
        send(site.broker.id(), Signal::KILL);
        site.broker_is_gone();
        eventually("the kernel serves", || site.answers());
        eventually("nothing of the broker's is open", || site.xdp_sockets() == 0);
        site.begin_again();
        site.is_accelerated();
        let said = clients.go_on();
        // Those that were open are told so: nobody waits for what does not come.
        assert_eq!(said.lines().last(), Some("failed 24"), "{round}: {said}");
        assert!(!said.contains("timed out"), "{round}: {said}");
        for load in loads {
            let report = load.end();
            assert!(count(&report, "requests") > 300, "{report}");
            // No more than were open, and those at once.
            assert!(count(&report, "failed_total") <= 32, "{round}: {}", report["failed"]);
            for kind in ["timeout", "connect_timeout"] {
                assert_eq!(report["failed"][kind].as_u64().unwrap_or(0), 0, "{round}: {}", report["failed"]);
            }
        }
    }
    site.ends();
}

/// Clients that only wait, those amid a response too, learn that their connection is over.
#[test]
fn peers_that_wait_hear_that_a_broker_was_killed() {
    let mut site = Site::start();
    let mut clients = site.lab.command("client", "python3");
    clients.args(["-c", WAITS, &PORT.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut clients = clients.spawn().expect("clients");
    let mut said = BufReader::new(clients.stdout.take().expect("a pipe"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    send(site.broker.id(), Signal::KILL);
    site.broker_is_gone();
    eventually("nothing of the broker's is open", || site.xdp_sockets() == 0);
    // They need no broker for it.
    clients.stdin.take().expect("a pipe").write_all(b"\n").expect("write");
    line.clear();
    said.read_line(&mut line).expect("a line");
    assert_eq!(line, "40\n");
    assert!(clients.wait().expect("wait").success());
    site.begin_again();
    site.is_accelerated();
    site.ends();
}

/// A package's upgrade: the file is another one, and the program's processes have the old library.
#[test]
fn another_file_takes_its_place() {
    let mut site = Site::start();
    let folder = tempfile::tempdir().expect("a folder");
    let place: PathBuf = folder.path().join("overfly");
    std::fs::copy(overfly(), &place).expect("copy the command");
    let clients = Clients::start(&site.lab, &site.digest);
    send(site.broker.id(), Signal::TERM);
    site.broker_is_gone();
    site.broker = Broker::begin_as(&place, &site.lab, &policy(), &capabilities(), &[]);
    eventually("it is ready", || site.broker.hears("READY=1"));
    let exe = std::fs::read_link(format!("/proc/{}/exe", site.broker.id())).expect("its file");
    assert_eq!(exe, place);
    site.is_accelerated();
    assert_eq!(clients.go_on(), "failed 0\n");
    site.ends();
}

/// A worker that is stopped does not keep the broker from ending, nor, once it goes on, the next one from beginning.
#[test]
fn a_process_that_is_stopped_holds_up_nobody_for_ever() {
    let mut site = Site::start();
    let workers = titled(site.nginx.id(), "nginx: worker process");
    send(workers[0], Signal::STOP);
    send(site.broker.id(), Signal::TERM);
    let mut ended = false;
    for _ in 0..3 {
        // It waits for 20 s.
        ended =
            ended || std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| site.broker_is_gone())).is_ok();
    }
    assert!(ended);
    let mut early = Broker::begin(&site.lab, &policy(), &capabilities(), &[]);
    eventually("one that comes too early says why it cannot begin", || early.ended().is_some());
    assert!(early.log().contains("another AF_XDP socket is bound to queue"), "{}", early.log());
    send(workers[0], Signal::CONT);
    eventually("it lets go", || site.xdp_sockets() == 0);
    site.begin_again();
    site.is_accelerated();
    site.ends();
}

/// Rules that change while there is no broker hold: nobody accepts by those that the last one knew.
#[test]
fn the_firewall_holds_while_there_is_no_broker_and_when_there_is_one_again() {
    let mut site = Site::start();
    for signal in [Signal::TERM, Signal::KILL] {
        send(site.broker.id(), signal);
        site.broker_is_gone();
        eventually("the kernel serves", || site.answers());
        succeed(&site.lab, "server", &["nft", "add table ip t"]);
        let chain = "add chain ip t c { type filter hook input priority 0; policy accept; }";
        succeed(&site.lab, "server", &["nft", chain]);
        let rule = format!("add rule ip t c ip saddr 10.77.0.2 tcp dport {PORT} drop");
        succeed(&site.lab, "server", &["nft", &rule]);
        assert!(!site.answers());
        site.begin_again();
        sleep(Duration::from_millis(1500));
        assert!(!site.answers());
        succeed(&site.lab, "server", &["nft", "delete table ip t"]);
        site.is_accelerated();
    }
    site.ends();
}

/// Somebody who has the broker's name, as the script says it.
fn occupant(lab: &Lab, user: &str, script: &str) -> (Child, BufReader<ChildStdout>) {
    let mut command = lab.command("server", "setpriv");
    command.args(["--reuid", user, "--clear-groups", "/usr/bin/python3", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a stranger");
    let mut said = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    assert_eq!(line, "listening\n");
    (child, said)
}

/// The name that everybody knows is anybody's while there is no broker: whoever takes it learns nothing, and gives nothing.
#[test]
fn a_stranger_in_the_brokers_place_is_no_broker() {
    let mut site = Site::start();
    send(site.broker.id(), Signal::TERM);
    site.broker_is_gone();
    let script = "import socket, time\n\
                  s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
                  s.bind('\\0overfly/eth0')\ns.listen()\nprint('listening', flush=True)\n\
                  heard, end = [], time.monotonic() + 5\n\
                  while time.monotonic() < end: c, _ = s.accept(); c.settimeout(1); heard.append(len(c.recv(100)))\n\
                  print(len(heard) > 3, sum(heard), flush=True)";
    let (mut stranger, mut said) = occupant(&site.lab, "65534", script);
    for _ in 0..30 {
        assert!(site.answers());
        sleep(Duration::from_millis(100));
    }
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    assert_eq!(line, "True 0\n", "whether somebody came, and the bytes that it heard");
    stranger.wait().expect("wait");
    site.begin_again();
    site.is_accelerated();
    site.ends();
}

/// Whoever has the name and does not answer holds up nobody: a stranger that accepts no connection, and one of root's (a broker that is
/// stopped) that says nothing on it.
#[test]
fn who_does_not_answer_in_the_brokers_place_is_not_waited_for() {
    let mut site = Site::start();
    for (user, backlog) in [("65534", 0), ("0", 100)] {
        send(site.broker.id(), Signal::TERM);
        site.broker_is_gone();
        let script = format!(
            "import socket, sys\nname = '\\0overfly/eth0'\n\
             make = lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
             s, own = make(), make()\ns.bind(name)\ns.listen({backlog})\nown.connect(name)\n\
             print('listening', flush=True)\nsys.stdin.readline()"
        );
        let (mut stranger, _said) = occupant(&site.lab, user, &script);
        for _ in 0..30 {
            assert!(site.answers(), "{user}");
            sleep(Duration::from_millis(100));
        }
        drop(stranger.stdin.take());
        stranger.wait().expect("wait");
        site.begin_again();
        site.is_accelerated();
    }
    site.ends();
}

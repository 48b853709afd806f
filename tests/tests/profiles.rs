//! Each option that takes effect in a program, seen from that program or from its peer; and rules that leave sockets to the
//! kernel.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, ChildStdout, ExitStatus, Output, Stdio};
use std::time::Duration;

use overfly_bench::lab::Lab;
use overfly_tests::{Held, Nginx, ROOT, Server, eventually, output, overfly, succeed};

const SERVER: &str = "10.77.0.1";
const CLIENT: &str = "10.77.0.2";
/// Where the peer listens: the script's FIRST, and those after it.
const PEER_PORTS: [&str; 4] = ["7001", "7002", "7003", "7004"];

/// A lab whose client side runs peer.py, and whose server side can run options.py.
struct Bench {
    lab: Lab,
    peer: Child,
}

/// How a run of options.py ended.
struct Outcome {
    said: String,
    complained: String,
    status: ExitStatus,
}

impl Outcome {
    fn of(output: &Output) -> Outcome {
        Outcome {
            said: String::from_utf8_lossy(&output.stdout).trim_end().to_owned(),
            complained: String::from_utf8_lossy(&output.stderr).into_owned(),
            status: output.status,
        }
    }

    fn succeeded(&self) -> bool {
        self.status.success()
    }

    /// The sum of a number in the statistics: `sleeps 5`.
    fn count(&self, word: &str) -> u64 {
        self.complained
            .lines()
            .filter(|line| line.starts_with("overfly: process"))
            .filter_map(|line| {
                line.split_once(&format!("{word} "))?.1.split(|c: char| !c.is_ascii_digit()).next()
            })
            .filter_map(|number| number.parse::<u64>().ok())
            .sum()
    }
}

impl Bench {
    fn new() -> Bench {
        let lab = Lab::new(overfly()).expect("a lab");
        for (side, name, text) in [
            ("server", "options.py", include_str!("programs/options.py")),
            ("client", "peer.py", include_str!("programs/peer.py")),
        ] {
            lab.write(side, format!("{ROOT}/{name}"), text.as_bytes()).expect("write a script");
        }
        let mut peer = lab.command("client", "/usr/bin/python3");
        peer.arg(format!("{ROOT}/peer.py")).args(PEER_PORTS).stdin(Stdio::null());
        let bench = Bench { peer: peer.spawn().expect("start the peer"), lab };
        eventually("the peer listens", || {
            let listening = succeed(&bench.lab, "client", &["ss", "-ltn"]);
            PEER_PORTS.iter().all(|port| listening.contains(&format!(":{port} ")))
        });
        bench
    }

    fn start(&self, options: &[(&str, &str)], case: &[&str]) -> Child {
        let mut command = self.lab.command("server", overfly());
        command
            .args(["run", "-p", "balanced", "--", "/usr/bin/python3", &format!("{ROOT}/options.py"), CLIENT])
            .args(case)
            .envs(options.iter().copied())
            .env("OVERFLY_STATS", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().expect("start options.py")
    }

    /// Runs options.py over Overfly to its end; `meanwhile` sees each line that it prints.
    fn run_with(&self, options: &[(&str, &str)], case: &[&str], meanwhile: impl Fn(&str)) -> Outcome {
        let mut child = self.start(options, case);
        let mut said = String::new();
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
        while lines.read_line(&mut said).expect("read its output") > 0 {
            meanwhile(said.lines().last().unwrap_or(""));
        }
        let output = child.wait_with_output().expect("its end");
        Outcome { said: said.trim_end().to_owned(), ..Outcome::of(&output) }
    }

    fn run(&self, options: &[(&str, &str)], case: &[&str]) -> Outcome {
        self.run_with(options, case, |_| ())
    }

    /// Ports, or the names of errors, that options.py printed.
    #[track_caller]
    fn ports(&self, options: &[(&str, &str)], case: &[&str]) -> Vec<String> {
        let outcome = self.run(options, case);
        assert!(outcome.succeeded(), "{}: {}", outcome.status, outcome.complained);
        outcome.said.split_ascii_whitespace().map(str::to_owned).collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.peer.kill();
        let _ = self.peer.wait();
    }
}

fn distinct(words: &[String]) -> usize {
    let mut words = words.to_vec();
    words.sort();
    words.dedup();
    words.len()
}

#[test]
fn each_waiting_call_spins_or_sleeps_as_the_profile_says() {
    let bench = Bench::new();
    let nudge = |line: &str| {
        if line != "ready" {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
        let tcp = format!("exec 3<>/dev/tcp/{SERVER}/7100");
        let udp = format!("echo > /dev/udp/{SERVER}/7200");
        let _ = output(&bench.lab, "client", &["bash", "-c", &format!("{udp}; {tcp}")]);
    };
    for (name, case) in [
        ("EF_EPOLL_SPIN", ["wait", "epoll"]),
        ("EF_POLL_SPIN", ["wait", "poll"]),
        ("EF_SELECT_SPIN", ["wait", "select"]),
        ("EF_TCP_RECV_SPIN", ["wait", "recv"]),
        ("EF_TCP_SEND_SPIN", ["fill", ""]),
        ("EF_TCP_ACCEPT_SPIN", ["accept", ""]),
        ("EF_UDP_RECV_SPIN", ["datagram", ""]),
    ] {
        // The other calls spin for longer than this test, whoever wants the processor: only the one in question may sleep.
        let options = |spin| {
            [("EF_POLL_USEC", "20000000"), ("EF_POLL_ADAPT", "0"), ("EF_TCP_CONNECT_SPIN", "1"), (name, spin)]
        };
        let spinning = bench.run_with(&options("1"), &case, nudge);
        assert!(spinning.succeeded(), "{name}: {}: {}", spinning.status, spinning.complained);
        assert_eq!(spinning.count("sleeps"), 0, "{name}=1: {}", spinning.complained);
        let sleeping = bench.run_with(&options("0"), &case, nudge);
        assert!(sleeping.count("sleeps") > 0, "{name}=0: {}", sleeping.complained);
    }
    // connect() waits where its first SYN is lost.
    let lossy = |spin| {
        let table = "add table inet loss; add chain inet loss input { type filter hook input priority 0; }; \
                     add rule inet loss input tcp dport 7001 counter drop";
        succeed(&bench.lab, "client", &["nft", table]);
        let options = [("EF_POLL_USEC", "20000000"), ("EF_POLL_ADAPT", "0"), ("EF_TCP_CONNECT_SPIN", spin)];
        let child = bench.start(&options, &["ports", "1", "1"]);
        eventually("a SYN is lost", || {
            !succeed(&bench.lab, "client", &["nft", "list", "ruleset"]).contains("counter packets 0 ")
        });
        succeed(&bench.lab, "client", &["nft", "flush ruleset"]);
        Outcome::of(&child.wait_with_output().expect("its end"))
    };
    assert_eq!(lossy("1").count("sleeps"), 0);
    assert!(lossy("0").count("sleeps") > 0);
}

#[test]
fn a_spinning_call_naps_and_shares_as_the_profile_says() {
    let bench = Bench::new();
    let case = ["wait", "epoll"];
    // Whoever wants the processor.
    let (spin, each) = (("EF_POLL_USEC", "20000000"), ("EF_POLL_ADAPT", "0"));
    let busy = bench.run(&[spin, each], &case);
    assert_eq!(busy.count("naps"), 0, "{}", busy.complained);
    let napping = bench.run(&[spin, each, ("EF_SLEEP_SPIN_USEC", "200")], &case);
    let (looks, naps) = (napping.count("looks"), napping.count("naps"));
    assert!(naps > 0 && looks <= naps, "{looks} looks, {naps} naps");
    let alone = bench.run(&[spin, each, ("EF_SLEEP_SPIN_USEC", "200"), ("EF_EPOLL_MT_SAFE", "1")], &case);
    let (looks, naps) = (alone.count("looks"), alone.count("naps"));
    assert!(naps > 0 && looks > naps * 4, "{looks} looks, {naps} naps");
}

#[test]
fn active_opens_share_local_ports() {
    let bench = Bench::new();
    let (shared, most) = ("EF_TCP_SHARED_LOCAL_PORTS", "EF_TCP_SHARED_LOCAL_PORTS_MAX");
    let no_fallback = ("EF_TCP_SHARED_LOCAL_PORTS_NO_FALLBACK", "1");
    assert_eq!(distinct(&bench.ports(&[(shared, "0")], &["ports", "8", "4"])), 8);
    // Two connections to each of four peers: two ports do.
    let outcome = bench.run(&[(shared, "2"), (most, "2"), no_fallback], &["ports", "8", "4"]);
    let ports: Vec<String> = outcome.said.split_ascii_whitespace().map(str::to_owned).collect();
    assert_eq!((ports.len(), distinct(&ports)), (8, 2), "{ports:?}");
    assert_eq!(outcome.count("shared ports"), 8);
    // Three to one peer need three: the third takes one of its own, or a new one, or there is none.
    let own = bench.run(&[(shared, "2"), (most, "2")], &["ports", "3", "1"]);
    assert_eq!(own.count("shared ports"), 2, "{}", own.complained);
    assert!(own.succeeded() && !own.said.contains('E'), "{}", own.said);
    let grown = bench.run(&[(shared, "2"), ("EF_TCP_SHARED_LOCAL_PORTS_STEP", "5")], &["ports", "8", "1"]);
    assert_eq!(grown.count("shared ports"), 8);
    let refused = bench.ports(&[(shared, "2"), (most, "2"), no_fallback], &["ports", "3", "1"]);
    assert_eq!(refused[2], "EADDRNOTAVAIL");
}

#[test]
fn shared_local_ports_of_one_address_and_after_a_close() {
    let bench = Bench::new();
    let (shared, most) = ("EF_TCP_SHARED_LOCAL_PORTS", "EF_TCP_SHARED_LOCAL_PORTS_MAX");
    let per_address = ("EF_TCP_SHARED_LOCAL_PORTS_PER_IP", "1");
    let no_fallback = ("EF_TCP_SHARED_LOCAL_PORTS_NO_FALLBACK", "1");
    let case = ["ports", "8", "4", SERVER];
    assert_eq!(distinct(&bench.ports(&[(shared, "2")], &case)), 8, "bound sockets do not share");
    let limit = ("EF_TCP_SHARED_LOCAL_PORTS_PER_IP_MAX", "3");
    assert_eq!(distinct(&bench.ports(&[(shared, "2"), (most, "2"), per_address], &case)), 2);
    let many = bench
        .ports(&[(shared, "2"), (most, "2"), per_address, limit, no_fallback], &["ports", "4", "1", SERVER]);
    assert_eq!((distinct(&many[..3]), many[3].as_str()), (3, "EADDRNOTAVAIL"), "{many:?}");
    // This end closed first: its port is in TIME-WAIT towards that peer.
    let one = [(shared, "1"), (most, "1"), no_fallback];
    let kept = bench.ports(&one, &["again"]);
    assert_eq!(kept[1], "EADDRNOTAVAIL", "{kept:?}");
    let fast = [one[0], one[1], one[2], ("EF_TCP_SHARED_LOCAL_PORTS_REUSE_FAST", "1")];
    let reused = bench.ports(&fast, &["again"]);
    assert_eq!(reused[0], reused[1]);
}

#[test]
fn limits_memory_and_environment_are_the_profiles() {
    let bench = Bench::new();
    let limits = bench.run(&[("EF_FDTABLE_SIZE", "300")], &["limits"]);
    assert_eq!(limits.said, "300 300", "{}", limits.complained);

    let case = ["ports", "1", "1"];
    let without = bench.run(&[("EF_MIN_FREE_PACKETS", "1000000")], &case);
    assert!(
        without.succeeded() && without.complained.contains("EF_MIN_FREE_PACKETS is 1000000"),
        "{}",
        without.complained
    );
    assert!(without.complained.contains("no stack 1"), "{}", without.complained);
    let failed = bench.run(&[("EF_MIN_FREE_PACKETS", "1000000"), ("EF_NO_FAIL", "0")], &case);
    assert!(!failed.succeeded() && failed.complained.contains("EF_NO_FAIL=0"), "{}", failed.complained);

    let usual = bench.run(&[("EF_UDP", "0")], &["environment"]);
    assert!(usual.said.contains("EF_UDP=0") && usual.said.contains("EF_POLL_USEC=20"), "{}", usual.said);
    let alone = bench.run(&[("EF_UDP", "0"), ("EF_LOAD_ENV", "0")], &["environment"]);
    assert!(!alone.said.contains("EF_UDP") && alone.said.contains("EF_POLL_USEC=20"), "{}", alone.said);
    let said = bench.run(&[("EF_PIO", "0"), ("EF_WARP", "9")], &["limits"]).complained;
    assert_eq!(
        (said.matches("EF_PIO 0 has no effect").count(), said.matches("EF_WARP has no effect").count()),
        (1, 1)
    );
}

/// What of the system log comes while this lives; the socket goes with it.
struct SystemLog(UnixDatagram);

impl SystemLog {
    const PATH: &str = "/dev/log";

    /// `None` where the machine has a log already.
    fn new() -> Option<SystemLog> {
        UnixDatagram::bind(Self::PATH).ok().map(SystemLog)
    }
}

impl Drop for SystemLog {
    fn drop(&mut self) {
        let _ = fs::remove_file(Self::PATH);
    }
}

#[test]
fn messages_go_to_the_system_log_if_the_profile_says_so() {
    let Some(log) = SystemLog::new() else { return };
    let bench = Bench::new();
    // The kernel keeps ten records (net.unix.max_dgram_qlen), after which the library speaks to standard error: somebody reads, as
    // where there is a daemon.
    let (outcome, [command, library]) = std::thread::scope(|scope| {
        let read = scope.spawn(|| {
            let mut told = [false; 2];
            loop {
                let mut record = [0; 2048];
                let length = log.0.recv(&mut record).expect("a record");
                let record = String::from_utf8_lossy(&record[..length]);
                if record == "end" {
                    return told;
                }
                assert!(record.starts_with("<28>overfly["), "{record}");
                told[0] |= record.contains("EF_PIO 0 has no effect");
                told[1] |= record.contains("connects 1");
            }
        });
        let outcome = bench.run(&[("EF_LOG_VIA_IOCTL", "1"), ("EF_PIO", "0")], &["ports", "1", "1"]);
        let ended = UnixDatagram::unbound().and_then(|socket| socket.send_to(b"end", SystemLog::PATH));
        ended.expect("the log has an end");
        (outcome, read.join().expect("records"))
    });
    assert!(outcome.succeeded() && !outcome.complained.contains("overfly:"), "{}", outcome.complained);
    assert!(command && library, "the command {command}, the library {library}");
}

#[test]
fn an_epoll_set_of_the_kernel_takes_kernel_sockets() {
    let lab = Lab::new(overfly()).expect("a lab");
    Nginx::default().install(&lab, &[]);
    let profile = format!("{ROOT}/kernel-epoll.opf");
    lab.write("server", &profile, b"onload_import balanced\nonload_set EF_UL_EPOLL 0\n")
        .expect("write a profile");
    let words = ["nginx", "-c", &format!("{ROOT}/nginx.conf"), "-e", "stderr"];
    let server = Server::start(&lab, Some(&["-p", &profile]), &words);
    eventually("nginx serves", || {
        output(&lab, "client", &["curl", "-s", "--max-time", "1", &format!("http://{SERVER}/ok")]).stdout
            == b"ok"
    });
    let _held = Held::open(&lab, 80);
    assert!(kernel_has(&lab, 80), "the connection should have been the kernel's");
    server.stop();
}

#[test]
fn a_cluster_has_as_many_stacks_as_the_profile_says() {
    let lab = Lab::new(overfly()).expect("a lab");
    Nginx { workers: 2, ..Nginx::default() }.install(&lab, &[]);
    let words = ["nginx", "-c", &format!("{ROOT}/nginx.conf"), "-e", "stderr"];
    let profile = format!("{ROOT}/one.opf");
    lab.write("server", &profile, b"onload_import balanced\nonload_set EF_CLUSTER_SIZE 1\n")
        .expect("write a profile");
    let server = Server::start(&lab, Some(&["-p", &profile]), &words);
    let refused = "the kernel serves 0.0.0.0:80: the broker refused: 1 stacks listen at 0.0.0.0:80";
    eventually("the second worker stays out", || {
        let log = output(&lab, "server", &["cat", &format!("{ROOT}/error.log")]).stdout;
        String::from_utf8_lossy(&log).contains(refused)
    });
    server.stop();
}

/// Whether the server side's kernel has a connection from the client at a port.
fn kernel_has(lab: &Lab, port: u16) -> bool {
    let words = ["ss", "-Htn", "state", "established", &format!("sport = :{port}")];
    succeed(lab, "server", &words).contains(CLIENT)
}

/// Waits until options.py says that it listens.
fn until_ready(child: &mut Child) -> BufReader<ChildStdout> {
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    lines.read_line(&mut line).expect("read its output");
    assert_eq!(line, "ready\n");
    lines
}

#[test]
fn what_a_rule_leaves_to_the_kernel_is_the_kernels() {
    let bench = Bench::new();
    let profile = format!("{ROOT}/ruled.opf");
    let text = "onload_import balanced\noverfly_rule kernel listen program options.py port 8081\n\
                overfly_rule kernel listen port 8000-8079 # nothing is there\noverfly_rule kernel connect address 10.77.0.2/32\n";
    bench.lab.write("server", &profile, text.as_bytes()).expect("write a profile");
    // The interpreter is called what its file is called; the script's own name is matched as well.
    let script = format!("{ROOT}/options.py");
    let with_interpreter = format!("#!/usr/bin/python3\n{}", include_str!("programs/options.py"));
    bench.lab.write("server", &script, with_interpreter.as_bytes()).expect("write the script");
    succeed(&bench.lab, "server", &["chmod", "+x", &script]);
    let run = |case: &[&str]| {
        let mut command = bench.lab.command("server", overfly());
        command.args(["run", "-p", &profile, "--", &script, CLIENT]).args(case);
        command.env("OVERFLY_STATS", "1").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("start options.py")
    };
    let mut server = run(&["listen", "8080", "8081"]);
    let _lines = until_ready(&mut server);
    let held = [8080, 8081].map(|port| Held::open(&bench.lab, port));
    assert!(kernel_has(&bench.lab, 8081), "a rule leaves it to the kernel");
    assert!(!kernel_has(&bench.lab, 8080), "no rule speaks of it");
    drop(held);
    overfly_tests::send(server.id(), rustix::process::Signal::TERM);
    let _ = server.wait();

    let connecting = run(&["ports", "2", "1"]).wait_with_output().expect("its end");
    let complained = String::from_utf8_lossy(&connecting.stderr).into_owned();
    assert!(connecting.status.success() && complained.contains("left to the kernel: rule 2"), "{complained}");
}

//! Real programs with the library preloaded, between two network namespaces: what they see must be what the kernel would
//! show them. The broker runs in this process. Needs root, and nginx, curl and python3.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::bench::lab::{CLIENT, CLIENT_V6, INTERFACE, SERVER, SERVER_V6};
use crate::bench::{
    Bench, Helper, compile, noise, peer, programs, run, spawn, sum, text, until, until_within, wait,
};

impl Bench {
    /// nginx over Overfly with that configuration of its http block, in the foreground.
    fn nginx(&self, workers: u32, http: &str) -> Nginx<'_> {
        let folder = self.folder.path().display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|name| format!("{name}_temp_path {folder}/{name};"))
            .collect();
        let configuration = format!(
            "worker_processes {workers}; error_log {folder}/error.log info; pid {folder}/pid; daemon off;
             user root; events {{ worker_connections 512; }}
             http {{ access_log off; {temporary} root {folder}; {http} }}"
        );
        std::fs::write(self.path("nginx.conf"), configuration).unwrap();
        let mut command = self.accelerated("nginx");
        command.arg("-c").arg(self.path("nginx.conf")).stderr(Stdio::null());
        let listeners = listeners(http);
        let nginx = Nginx { child: Some(spawn(&self.lab.server, &mut command)), bench: self, listeners };
        nginx.until_joined(workers as usize);
        nginx
    }
}

/// Ends its nginx, whatever happens.
struct Nginx<'a> {
    child: Option<Child>,
    bench: &'a Bench,
    listeners: Vec<SocketAddr>,
}

/// Where a configuration's servers listen: `listen 80;` is at all addresses of IPv4.
fn listeners(http: &str) -> Vec<SocketAddr> {
    let words = http.split("listen ").skip(1).map(|rest| rest.split([' ', ';']).next().unwrap());
    words
        .map(|word| match word.parse() {
            Ok(port) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
            Err(_) => word.parse().unwrap(),
        })
        .collect()
}

impl Nginx<'_> {
    fn signal(&self, name: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Until that many workers, and no others, accept at each listener.
    fn until_joined(&self, workers: usize) {
        for &listener in &self.listeners {
            self.bench.until_joined(listener, workers);
        }
    }

    fn workers(&self) -> Vec<u32> {
        children_of(self.child.as_ref().unwrap().id())
    }

    /// Tells it to quit when its connections are done; returns the statistics of its processes.
    fn quit(mut self) -> String {
        self.signal("QUIT");
        let mut child = self.child.take().unwrap();
        assert!(wait(&mut child, Duration::from_secs(10)), "nginx does not quit");
        // nginx's standard error is its log.
        let log = std::fs::read_to_string(self.bench.path("error.log")).unwrap();
        let bad = |line: &&str| ["[alert]", "[crit]", "[error]"].iter().any(|level| line.contains(level));
        let bad: Vec<&str> =
            log.lines().filter(|line| !line.contains("exited on signal 9")).filter(bad).collect();
        assert!(bad.is_empty(), "{bad:#?}");
        log
    }
}

impl Drop for Nginx<'_> {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // A master that runs replaces the workers that it loses.
            let _ = Command::new("kill").args(["-s", "STOP", &child.id().to_string()]).status();
            for worker in children_of(child.id()) {
                let _ = Command::new("kill").args(["-s", "KILL", &worker.to_string()]).status();
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn children_of(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Every call of the script, with and without spinning.
fn calls(own: IpAddr, other: IpAddr, options: &[(&str, &str)]) {
    let bench = Bench::new(2);
    // The peer's listeners take data with a SYN, without being told (Documentation/networking/ip-sysctl.rst).
    bench.lab.client.write("/proc/sys/net/ipv4/tcp_fastopen", "1027");
    let _peer = peer(&bench, &other.to_string());
    let mut script = bench.accelerated("timeout");
    script.args(["-s", "KILL", "60", "python3"]);
    script.arg(programs("calls.py")).args([own.to_string(), other.to_string()]);
    let output = run(&bench.lab.server, script.envs(options.iter().copied()));
    let (told, complained) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}: {told}\n{complained}", output.status);
    assert!(
        sum(&complained, "accepts") > 200 && sum(&complained, "connects") > 20,
        "not accelerated: {complained}"
    );
    assert_eq!(sum(&complained, "fast_opens_accepted:"), 1, "{complained}");
    assert!(sum(&complained, "fast_opens_sent:") >= 3, "{complained}");
    assert!(sum(&complained, "handed over") >= 7, "{complained}");
    assert_eq!(sum(&complained, "(refused"), 0, "{complained}");
}

#[test]
fn calls_answer_as_the_kernel_does() {
    calls(SERVER.into(), CLIENT.into(), &[]);
}

#[test]
fn calls_answer_as_the_kernel_does_over_ipv6() {
    calls(SERVER_V6.into(), CLIENT_V6.into(), &[]);
}

#[test]
fn calls_answer_as_the_kernel_does_while_spinning() {
    calls(SERVER.into(), CLIENT.into(), &[("EF_POLL_USEC", "2000")]);
}

#[test]
fn calls_answer_as_the_kernel_does_with_a_stack_per_thread() {
    calls(SERVER.into(), CLIENT.into(), &[("EF_STACK_PER_THREAD", "1")]);
}

/// A script that prints what sockets of both families say: the same text over the kernel and over Overfly.
#[test]
fn calls_answer_as_the_kernel_does_while_connections_follow_threads() {
    calls(SERVER.into(), CLIENT.into(), &[("EF_STACK_PER_THREAD", "2")]);
}

#[test]
fn both_families_answer_as_the_kernel_does() {
    let bench = Bench::new(2);
    let link_local = bench.lab.client.link_local();
    // Both follow the administrator, as far as the engine has the algorithm; a namespace may always have this one.
    bench.lab.server.write("/proc/sys/net/ipv4/tcp_congestion_control", "reno");
    // The kernel comes last: what it still has in TIME-WAIT stays its own.
    let told = [true, false].map(|accelerates| {
        let _peer = peer(&bench, "::");
        let mut script = if accelerates { bench.accelerated("timeout") } else { Command::new("timeout") };
        script.args(["-s", "KILL", "60", "python3"]).arg(programs("ipv6.py"));
        script.args([SERVER_V6, CLIENT_V6].map(|address| address.to_string()));
        script.args([SERVER, CLIENT].map(|address| address.to_string()));
        let output = run(&bench.lab.server, script.arg(format!("{link_local}%{INTERFACE}")));
        let (told, complained) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && told.ends_with("done\n"), "{told}\n{complained}");
        if accelerates {
            let (accepts, connects) = (sum(&complained, "accepts"), sum(&complained, "connects"));
            assert!(accepts >= 12 && connects >= 40, "not accelerated: {complained}");
        }
        told
    });
    let [overfly, kernel] = &told;
    let different: Vec<_> = kernel.lines().zip(overfly.lines()).filter(|(a, b)| a != b).collect();
    assert!(kernel == overfly, "kernel, Overfly: {different:#?}");
}

/// A shell that opens files under numbers of its choice finds none of ours there.
#[test]
fn descriptors_are_out_of_the_programs_way() {
    let bench = Bench::new(1);
    let mut shell = bench.accelerated("bash");
    shell.args(["-c", "for number in {3..99}; do eval \"exec $number>/dev/null\" || exit 1; done"]);
    let output = run(&bench.lab.server, &mut shell);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// A thread sleeps in a set before the process has a stack; what another one adds to it wakes it.
#[test]
fn who_waits_before_there_is_a_stack_wakes_for_what_is_added() {
    let bench = Bench::new(1);
    for (port, per_thread) in [(8080, "0"), (8081, "1")] {
        let mut command = bench.accelerated("timeout");
        command.args(["-s", "KILL", "60", "python3"]).arg(programs("early.py"));
        command.args([SERVER.to_string(), port.to_string()]).env("EF_STACK_PER_THREAD", per_thread);
        let mut server =
            Helper(spawn(&bench.lab.server, command.stdout(Stdio::piped()).stderr(Stdio::piped())));
        let mut ready = String::new();
        BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        let answer = bench.lab.client.within(|| {
            let mut client = TcpStream::connect((SERVER, port)).unwrap();
            client.write_all(b"hello").unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).unwrap();
            answer
        });
        let mut complained = String::new();
        server.0.stderr.take().unwrap().read_to_string(&mut complained).unwrap();
        assert!(server.0.wait().unwrap().success(), "{complained}");
        assert_eq!(text(&answer), "hello");
        assert_eq!(sum(&complained, "accepts"), 1, "not accelerated: {complained}");
    }
}

/// A script that prints what epoll, poll and select say: the same text over the kernel and over Overfly.
#[test]
fn readiness_is_told_as_by_the_kernel() {
    let bench = Bench::new(2);
    let ways = [None, Some(("0", "0")), Some(("2000", "0")), Some(("0", "1")), Some(("2000", "1"))];
    let told = ways.map(|way| {
        let _peer = peer(&bench, &CLIENT.to_string());
        let mut script = match way {
            Some(_) => bench.accelerated("timeout"),
            None => Command::new("timeout"),
        };
        script.args(["-s", "KILL", "60", "python3"]).arg(programs("epoll.py"));
        script.args([SERVER.to_string(), CLIENT.to_string()]).envs(way.iter().flat_map(
            |&(spin_us, per_thread)| [("EF_POLL_USEC", spin_us), ("EF_STACK_PER_THREAD", per_thread)],
        ));
        let output = run(&bench.lab.server, &mut script);
        let (told, complained) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && told.ends_with("done\n"), "{way:?}: {told}\n{complained}");
        if way.is_some() {
            assert!(sum(&complained, "accepts") > 15, "not accelerated: {complained}");
        }
        told
    });
    let [kernel, overfly @ ..] = &told;
    for overfly in overfly {
        let different: Vec<_> = kernel.lines().zip(overfly.lines()).filter(|(a, b)| a != b).collect();
        assert!(kernel == overfly, "kernel, Overfly: {different:#?}");
    }
}

#[test]
fn nginx_serves_small_and_large_files() {
    let bench = Bench::new(2);
    std::fs::write(bench.path("small"), "hello\n").unwrap();
    let large = noise(1, 100 << 20);
    std::fs::write(bench.path("large"), &large).unwrap();
    let nginx = bench.nginx(1, "server { listen 80; sendfile on; } server { listen 81; sendfile off; }");
    let listening = text(&run(&bench.lab.server, Command::new("ss").arg("-ltn")).stdout);
    assert!(listening.contains("0.0.0.0:80 ") && listening.contains("0.0.0.0:81 "), "{listening}");
    for port in [80, 81] {
        assert_eq!(bench.fetch(&format!("http://{SERVER}:{port}/small")), b"hello\n");
        assert!(bench.fetch(&format!("http://{SERVER}:{port}/large")) == large, "port {port}");
    }
    // The same listener over loopback, which is the kernel's.
    let inside = run(&bench.lab.server, Command::new("curl").args(["-sS", "http://127.0.0.1/small"]));
    assert_eq!(text(&inside.stdout), "hello\n");
    let statistics = nginx.quit();
    assert_eq!((sum(&statistics, "accepts"), sum(&statistics, "(kernel")), (4, 1), "{statistics}");
}

#[test]
fn nginx_serves_both_families_with_one_listener() {
    let bench = Bench::new(2);
    let large = noise(4, 10 << 20);
    std::fs::write(bench.path("large"), &large).unwrap();
    let nginx = bench.nginx(
        2,
        "server { listen [::]:80 ipv6only=off; add_header X-Peer $remote_addr always; }
         server { listen [::]:81; listen 81; } server { listen [::]:82 ipv6only=off reuseport; }",
    );
    let link_local = format!("[{}%25{INTERFACE}]", bench.lab.server.link_local());
    for host in [SERVER.to_string(), format!("[{SERVER_V6}]"), link_local] {
        for port in [80, 81, 82] {
            assert!(bench.fetch(&format!("http://{host}:{port}/large")) == large, "{host} {port}");
        }
    }
    for (host, peer) in
        [(SERVER.to_string(), format!("::ffff:{CLIENT}")), (format!("[{SERVER_V6}]"), CLIENT_V6.to_string())]
    {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-m", "20", "-o", "/dev/null", "-D", "-", &format!("http://{host}/large")]);
        let head = text(&run(&bench.lab.client, &mut curl).stdout);
        assert!(head.contains(&format!("X-Peer: {peer}\r\n")), "{head}");
    }
    let inside = run(&bench.lab.server, Command::new("curl").args(["-sS", "-6", "http://[::1]/large"]));
    assert!(inside.stdout == large, "over loopback");
    let statistics = nginx.quit();
    // Loopback is the kernel's.
    assert_eq!((sum(&statistics, "accepts"), sum(&statistics, "(kernel")), (11, 1), "{statistics}");
}

#[test]
fn nginx_serves_many_files_over_one_and_over_many_connections() {
    let bench = Bench::new(2);
    let seed = 20_261_121;
    println!("seed {seed}");
    let files = 200;
    for index in 0..files {
        let length = noise(seed + index, 8).iter().fold(0usize, |sum, &byte| sum * 31 + usize::from(byte));
        let most = [2_000, 100_000, 2_000_000][index as usize % 3];
        std::fs::write(bench.path(&format!("f{index}")), noise(index, length % most)).unwrap();
    }
    let nginx = bench.nginx(2, "keepalive_requests 10000; server { listen 80; sendfile on; }");
    let url = format!("http://{SERVER}/f[0-{}]", files - 1);
    for options in [&["-s"][..], &["-s", "-Z", "--parallel-max", "30", "-H", "Connection: close"]] {
        let got = tempfile::tempdir().unwrap();
        let mut curl = Command::new("curl");
        curl.args(options).args(["-m", "60", "--remote-name-all", &url]).current_dir(got.path());
        assert!(run(&bench.lab.client, &mut curl).status.success());
        for index in 0..files {
            let name = format!("f{index}");
            let same =
                std::fs::read(got.path().join(&name)).unwrap() == std::fs::read(bench.path(&name)).unwrap();
            assert!(same, "seed {seed}, {options:?}: {name} differs");
        }
    }
    nginx.quit();
}

#[test]
fn nginx_workers_share_listeners_and_are_replaced() {
    let bench = Bench::new(2);
    std::fs::write(bench.path("small"), "hello\n").unwrap();
    let nginx = bench.nginx(3, "server { listen 80; } server { listen 81 reuseport; }");
    for round in 0..3 {
        for _ in 0..20 {
            assert_eq!(bench.fetch(&format!("http://{SERVER}/small")), b"hello\n", "round {round}");
            assert_eq!(bench.fetch(&format!("http://{SERVER}:81/small")), b"hello\n", "round {round}");
        }
        let before = nginx.workers();
        assert_eq!(before.len(), 3);
        nginx.signal("HUP");
        until("new workers", || {
            nginx.workers().len() == 3 && nginx.workers().iter().all(|worker| !before.contains(worker))
        });
        nginx.until_joined(3);
    }
    // A worker that is killed is replaced, and the others go on.
    let victim = nginx.workers()[0];
    assert!(Command::new("kill").args(["-s", "KILL", &victim.to_string()]).status().unwrap().success());
    until("a new worker", || nginx.workers().len() == 3 && !nginx.workers().contains(&victim));
    nginx.until_joined(3);
    for _ in 0..20 {
        assert_eq!(bench.fetch(&format!("http://{SERVER}/small")), b"hello\n");
        assert_eq!(bench.fetch(&format!("http://{SERVER}:81/small")), b"hello\n");
    }
    let statistics = nginx.quit();
    assert!(sum(&statistics, "accepts") >= 100, "{statistics}");
    assert_eq!(sum(&statistics, "(kernel"), 0, "{statistics}");
}

/// Clients that open a connection for each request, while the workers are replaced again and again: each request must get
/// its answer.
#[test]
fn nginx_reloads_without_loss() {
    const CLIENTS: usize = 32;
    const RELOADS: usize = 10;
    const REQUESTS: u64 = 50_000;
    let bench = Bench::new(2);
    std::fs::write(bench.path("small"), "hello\n").unwrap();
    let nginx = bench.nginx(2, "server { listen 80; } server { listen 81 reuseport; }");
    let (done, failures) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (done, failures, over, namespace) = (&done, &failures, &over, &bench.lab.client);
            scope.spawn(move || {
                namespace.enter();
                while !over.load(Ordering::Relaxed) {
                    if let Err(error) = request(80 + client as u16 % 2) {
                        failures.lock().unwrap().push(format!("{error}"));
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for reload in 0..RELOADS {
            let due = REQUESTS * (reload as u64 + 1) / (RELOADS as u64 + 1);
            until_within("requests are answered", Duration::from_secs(120), || {
                done.load(Ordering::Relaxed) >= due
            });
            let before = nginx.workers();
            nginx.signal("HUP");
            until("new workers", || {
                let workers = nginx.workers();
                workers.len() == 2 && workers.iter().all(|worker| !before.contains(worker))
            });
        }
        until_within("the last requests are answered", Duration::from_secs(120), || {
            done.load(Ordering::Relaxed) >= REQUESTS
        });
        over.store(true, Ordering::Relaxed);
    });
    let statistics = nginx.quit();
    let failures = failures.into_inner().unwrap();
    let (given, reset) = (sum(&statistics, "given away"), sum(&statistics, "(reset"));
    println!("{} requests, {given} connections given away, {reset} reset", done.load(Ordering::Relaxed));
    assert!(
        failures.is_empty(),
        "{} failures: {:?}\n{statistics}",
        failures.len(),
        &failures[..failures.len().min(5)]
    );
}

fn request(port: u16) -> std::io::Result<()> {
    let mut stream = TcpStream::connect((SERVER, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.write_all(b"GET /small HTTP/1.0\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    if answer.ends_with(b"\r\n\r\nhello\n") { Ok(()) } else { Err(std::io::Error::other("cut off")) }
}

#[test]
fn curl_fetches() {
    let bench = Bench::new(2);
    let large = noise(2, 20 << 20);
    std::fs::write(bench.path("large"), &large).unwrap();
    let mut server = Command::new("python3");
    server.args(["-u", "-m", "http.server", "--bind", &CLIENT.to_string(), "80"]);
    server.current_dir(bench.folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Helper(spawn(&bench.lab.client, &mut server));
    until("the server listens", || {
        text(&run(&bench.lab.client, Command::new("ss").arg("-ltn")).stdout).contains(":80 ")
    });
    let output = run(
        &bench.lab.server,
        bench.accelerated("curl").args(["-sS", "-m", "20", &format!("http://{CLIENT}/large")]),
    );
    let complained = text(&output.stderr);
    assert!(output.status.success() && output.stdout == large, "{complained}");
    assert_eq!((sum(&complained, "connects"), sum(&complained, "retransmits:")), (1, 0), "{complained}");
    // The same server by an IPv6 socket, at its mapped address.
    let mut mapped = bench.accelerated("curl");
    let output = run(
        &bench.lab.server,
        mapped.args(["-sS", "-m", "20", &format!("http://[{}]/large", CLIENT.to_ipv6_mapped())]),
    );
    let complained = text(&output.stderr);
    assert!(output.status.success() && output.stdout == large, "{complained}");
    assert_eq!((sum(&complained, "connects"), sum(&complained, "(kernel")), (1, 0), "{complained}");
    let refused = run(
        &bench.lab.server,
        bench.accelerated("curl").args(["-sS", "-m", "5", &format!("http://{CLIENT}:99/")]),
    );
    assert_eq!(refused.status.code(), Some(7), "{}", text(&refused.stderr));
}

#[test]
fn python_serves() {
    let bench = Bench::new(1);
    let large = noise(3, 5 << 20);
    std::fs::write(bench.path("large"), &large).unwrap();
    let mut server = bench.accelerated("python3");
    server
        .args(["-u", "-m", "http.server", "80"])
        .current_dir(bench.folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let _server = Helper(spawn(&bench.lab.server, &mut server));
    bench.until_joined((Ipv4Addr::UNSPECIFIED, 80).into(), 1);
    for _ in 0..5 {
        assert!(bench.fetch(&format!("http://{SERVER}/large")) == large);
    }
    let counters = bench.broker.attachment().counters().unwrap();
    // What leaves together arrives together, and has one acknowledgment.
    assert!(counters.flows_recorded == 5 && counters.to_listener > 100, "{counters:?}");
}

/// Without a broker the program runs over the kernel and one line says why; with EF_NO_FAIL=0 it does not run.
#[test]
fn without_a_broker() {
    let bench = Bench::new(1);
    let nowhere = format!("overfly-nowhere:{}", "0".repeat(32));
    let mut echo = bench.accelerated("echo");
    let output = run(&bench.lab.server, echo.arg("hello").env("OVERFLY_BROKER", &nowhere));
    let complained = text(&output.stderr);
    assert_eq!(text(&output.stdout), "hello\n");
    assert!(
        complained.contains("continues on the kernel's stack: ") && complained.lines().count() == 1,
        "{complained}"
    );
    let output = run(&bench.lab.server, echo.env("EF_NO_FAIL", "0"));
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), ""));
    let output = run(&bench.lab.server, bench.accelerated("echo").arg("hello").env("EF_POLL_USEC", "soon"));
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        text(&output.stderr),
        "overfly: EF_POLL_USEC is 'soon': expected a number from 0 to 4294967295\n"
    );
}

/// The end of the broker is the end of the programs that hang on it.
#[test]
fn programs_die_with_the_broker() {
    let bench = Bench::new(1);
    let nginx = bench.nginx(2, "server { listen 80; }");
    let workers = nginx.workers();
    assert_eq!(workers.len(), 2);
    let Bench { broker, .. } = &bench;
    until("master and workers know the broker", || broker.counters().connections >= 5);
    drop(nginx);
    let alive = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    };
    until("workers are gone", || !workers.iter().any(alive));
    let Bench { broker, lab, .. } = bench;
    let mut sleeper = Command::new("sleep");
    crate::bench::preload(&mut sleeper).arg("60").env("OVERFLY_BROKER", broker.environment());
    let mut sleeper = Helper(spawn(&lab.server, &mut sleeper));
    until("the leash is tied", || broker.counters().connections >= 6);
    std::thread::sleep(Duration::from_millis(200));
    drop(broker);
    assert!(wait(&mut sleeper.0, Duration::from_secs(3)), "it lives on");
    assert!(!lab.server.has_xdp());
}

/// Issue 25, item 12: `overfly run -- env -i program` was not accelerated, without a word.
#[test]
fn who_starts_a_program_without_the_environment_is_told() {
    let bench = Bench::new(1);
    let said = |program: &str, arguments: &[&str]| {
        let output =
            run(&bench.lab.server, bench.accelerated(program).args(arguments).env_remove("OVERFLY_STATS"));
        assert!(output.status.success());
        text(&output.stderr)
    };
    let told = said("/usr/bin/env", &["-i", "/bin/true"]);
    assert!(told.starts_with("overfly: /bin/true is started without"), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
    assert_eq!(said("/usr/bin/env", &["A=b", "/bin/true"]), "");
    // What a server starts beside itself, and how, it knows best: OpenSSH's sessions.
    let child = "import os\nif os.fork() == 0: os.execve('/bin/true', ['true'], {})\nos.wait()";
    assert_eq!(said("/usr/bin/python3", &["-c", child]), "");
}

#[test]
fn what_a_library_connects_that_was_loaded_with_deep_binding_is_accelerated() {
    let bench = Bench::new(1);
    let folder = bench.folder.path();
    let program = compile("deep", folder);
    for (name, word) in [("libouter.so", "OUTER"), ("libinner.so", "INNER")] {
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-D", word, "-Wl,--enable-new-dtags,-rpath,$ORIGIN", "-o"]);
        let output = compiler.args([&folder.join(name), &programs("deep.c")]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let listener = bench.lab.client.within(|| std::net::TcpListener::bind((CLIENT, 8080)).unwrap());
    let peer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        stream.write_all(&byte).unwrap();
    });
    let mut command = bench.accelerated(program.to_str().unwrap());
    command.arg(folder).args([&CLIENT.to_string(), "8080"]);
    let output = run(&bench.lab.server, &mut command);
    let told = text(&output.stderr);
    assert!(output.status.success(), "{told}");
    peer.join().unwrap();
    assert_eq!(sum(&told, "connects"), 1, "{told}");
}

//! Programs that are short of memory or descriptors: what the kernel would have served is served. The broker runs in this
//! process. Needs root, nginx, python3 and util-linux.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench::lab::SERVER;
use crate::bench::{Bench, Helper, programs, run, spawn, until_within};

/// Whether a limited server answers twenty requests, and what signal ended it.
fn serves(bench: &Bench, server: &mut Command, port: u16) -> (bool, Option<i32>) {
    let log = std::fs::File::create(bench.path("log")).unwrap();
    let mut server = Helper(spawn(&bench.lab.server, server.stdout(Stdio::null()).stderr(log)));
    let end = Instant::now() + Duration::from_secs(20);
    let url = format!("http://{SERVER}:{port}/small");
    let mut served = 0;
    while Instant::now() < end && served < 20 {
        if let Some(status) = server.0.try_wait().unwrap() {
            return (false, status.signal());
        }
        let mut curl = Command::new("curl");
        served +=
            usize::from(run(&bench.lab.client, curl.args(["-sS", "-m", "2", &url])).stdout == b"hello\n");
        if served == 0 {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    (served == 20, None)
}

#[test]
fn who_is_short_of_memory_is_served_by_the_kernel() {
    let bench = Bench::new(1);
    std::fs::write(bench.path("small"), "hello\n").unwrap();
    let limited = |mut command: Command, limit_mb: u64, port: u16| {
        command.arg(format!("--as={}", limit_mb << 20));
        command
            .args(["python3", "-u", "-m", "http.server", &port.to_string()])
            .current_dir(bench.folder.path());
        serves(&bench, &mut command, port)
    };
    let mut port = 8000;
    let (mut least, mut unserved) = (None, Vec::new());
    for limit_mb in (20..=340).step_by(20) {
        port += 2;
        let over_kernel = limited(Command::new("prlimit"), limit_mb, port);
        let over_overfly = limited(bench.accelerated("prlimit"), limit_mb, port + 1);
        let log = std::fs::read_to_string(bench.path("log")).unwrap();
        println!("{limit_mb} MB: kernel {over_kernel:?}, Overfly {over_overfly:?}\n{log}");
        if over_kernel.0 && least.is_none() {
            least = Some(limit_mb);
        }
        // What the library itself takes.
        let fair = least.is_some_and(|least| limit_mb >= least + 20);
        if over_overfly.1.is_some() || (fair && !over_overfly.0) {
            unserved.push(limit_mb);
        }
    }
    assert!(unserved.is_empty(), "{unserved:?} MB");
}

#[test]
fn who_is_short_of_descriptors_is_served() {
    let bench = Bench::new(1);
    std::fs::write(bench.path("small"), "hello\n").unwrap();
    let limited = |mut command: Command, limit: u32, port: u16| {
        command.arg(format!("--nofile={limit}:{limit}"));
        command
            .args(["python3", "-u", "-m", "http.server", &port.to_string()])
            .current_dir(bench.folder.path());
        serves(&bench, &mut command, port)
    };
    let mut port = 8000;
    let (mut least, mut unserved) = (None, Vec::new());
    for limit in [4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64] {
        port += 2;
        let over_kernel = limited(Command::new("prlimit"), limit, port);
        let over_overfly = limited(bench.accelerated("prlimit"), limit, port + 1);
        let log = std::fs::read_to_string(bench.path("log")).unwrap();
        println!("{limit}: kernel {over_kernel:?}, Overfly {over_overfly:?}\n{log}");
        if over_kernel.0 && least.is_none() {
            least = Some(limit);
        }
        // What the library itself has open.
        let fair = least.is_some_and(|least| limit >= least + 16);
        if over_overfly.1.is_some() || (fair && !over_overfly.0) {
            unserved.push(limit);
        }
    }
    assert!(unserved.is_empty(), "{unserved:?} descriptors");
}

/// What a process holds in memory, in kilobytes, and the processor time that it has had, in hundredths of a second.
fn resident_and_time(pid: u32) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let time = after_name[11].parse::<u64>().unwrap() + after_name[12].parse::<u64>().unwrap();
    (line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap(), time)
}

#[test]
fn clients_that_read_nothing_hold_no_more_than_is_allowed() {
    const CLIENTS: usize = 2000;
    const BOUND_KB: u64 = 32 << 10;
    let bench = Bench::new(1);
    let mut server = bench.accelerated("prlimit");
    server.args(["--nofile=10000", "python3"]).arg(programs("holds.py")).args([&SERVER.to_string(), "80"]);
    server.env("EF_TCP_MEM", BOUND_KB.to_string()).stderr(Stdio::null());
    let server = Helper(spawn(&bench.lab.server, &mut server));
    bench.until_joined((SERVER, 80).into(), 1);
    let fetch = |patience: &str| {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--http0.9", "-m", patience, &format!("http://{SERVER}:80/")]);
        run(&bench.lab.client, &mut curl).stdout.len()
    };
    assert_eq!(fetch("10"), 1 << 20);
    let (before, _) = resident_and_time(server.0.id());
    let mut clients = Command::new("prlimit");
    clients.args(["--nofile=10000", "python3"]).arg(programs("reads_nothing.py"));
    clients.args([SERVER.to_string(), "80".to_owned(), CLIENTS.to_string()]);
    let mut clients = Helper(spawn(&bench.lab.client, clients.stdin(Stdio::piped()).stdout(Stdio::piped())));
    let mut ready = [0; 6];
    clients.0.stdout.take().unwrap().read_exact(&mut ready).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let (after, begun) = resident_and_time(server.0.id());
    std::thread::sleep(Duration::from_secs(1));
    let (_, ended) = resident_and_time(server.0.id());
    println!("{before} KB, with {CLIENTS} clients {after} KB, {} ms of a second", (ended - begun) * 10);
    // Besides: what the program and the library keep for each connection, and the allocator's own.
    assert!(after - before < BOUND_KB + CLIENTS as u64 * 12, "{before} KB, {after} KB");
    assert!(ended - begun < 80, "it spins");
    // Others are served, and so are all when there is room again.
    for _ in 0..5 {
        assert_eq!(fetch("20"), 1 << 20);
    }
    drop(clients);
    until_within("there is room again", Duration::from_secs(20), || fetch("10") == 1 << 20);
    let (end, _) = resident_and_time(server.0.id());
    println!("{end} KB without them");
}

#[test]
fn processes_share_the_bound() {
    const CLIENTS: usize = 1000;
    const BOUND_KB: u64 = 32 << 10;
    let bench = Bench::new(2);
    let servers = [80, 81].map(|port: u16| {
        let mut server = bench.accelerated("prlimit");
        server.args(["--nofile=10000", "python3"]).arg(programs("holds.py"));
        server.args([SERVER.to_string(), port.to_string()]).env("EF_TCP_MEM", BOUND_KB.to_string());
        let server = Helper(spawn(&bench.lab.server, server.stderr(Stdio::null())));
        bench.until_joined((SERVER, port).into(), 1);
        server
    });
    let all = || servers.iter().map(|server| resident_and_time(server.0.id()).0).sum::<u64>();
    let before = all();
    let _clients = [80, 81].map(|port: u16| {
        let mut clients = Command::new("prlimit");
        clients.args(["--nofile=10000", "python3"]).arg(programs("reads_nothing.py"));
        clients.args([SERVER.to_string(), port.to_string(), CLIENTS.to_string()]);
        clients.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut clients = Helper(spawn(&bench.lab.client, &mut clients));
        let mut ready = [0; 6];
        clients.0.stdout.take().unwrap().read_exact(&mut ready).unwrap();
        clients
    });
    std::thread::sleep(Duration::from_millis(500));
    let after = all();
    println!("{before} KB, with clients {after} KB");
    // One process alone may hold all that is allowed; each may have a little more in what the other does not know of yet.
    assert!(after - before < BOUND_KB * 5 / 4 + 2 * CLIENTS as u64 * 12, "{before} KB, {after} KB");
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--http0.9", "-m", "20", &format!("http://{SERVER}:81/")]);
    assert_eq!(run(&bench.lab.client, &mut curl).stdout.len(), 1 << 20);
}

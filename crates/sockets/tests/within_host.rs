//! Connections whose two ends are on one host: between accelerated programs, within one, and with programs that are not
//! accelerated. The broker runs in this process. Needs root, python3, nginx, curl and Redis.

use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Command, Output, Stdio};

use crate::bench::lab::{Namespace, SERVER};
use crate::bench::{Bench, Helper, programs, run, spawn, sum, text, until};
use rustix::process::{Pid, Signal};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PER_THREAD: &[(&str, &str)] = &[("EF_STACK_PER_THREAD", "1")];
/// Debian's: another one's folder may be closed to ordinary users.
const PYTHON: &str = "/usr/bin/python3";

/// A Python program, over Overfly unless `kernel`.
fn python(bench: &Bench, kernel: bool) -> Command {
    if kernel { Command::new(PYTHON) } else { bench.accelerated(PYTHON) }
}

/// Starts a program that says "ready", with its complaints to be read later.
fn start(bench: &Bench, command: &mut Command) -> Helper {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut helper = Helper(spawn(&bench.lab.server, command));
    let mut ready = [0; 6];
    helper.0.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    assert_eq!(&ready, b"ready\n");
    helper
}

fn peer(bench: &Bench, address: IpAddr, kernel: bool, options: &[(&str, &str)]) -> Helper {
    let mut command = python(bench, kernel);
    command.arg(programs("peer.py")).arg(address.to_string()).envs(options.iter().copied());
    start(bench, &mut command)
}

/// Ends a program; what it complained.
fn end(mut helper: Helper, signal: Signal) -> String {
    rustix::process::kill_process(Pid::from_child(&helper.0), signal).unwrap();
    let mut complaints = Vec::new();
    helper.0.stderr.take().unwrap().read_to_end(&mut complaints).unwrap();
    let _ = helper.0.wait();
    text(&complaints)
}

/// A script with the peer at the same address, both with the same options; `kernel` runs both over the kernel. What it told, and
/// what it complained.
fn script(
    bench: &Bench,
    name: &str,
    address: IpAddr,
    kernel: bool,
    options: &[(&str, &str)],
) -> (String, String) {
    script_of(bench, name, &[], address, kernel, options)
}

/// As [`script`], some of its tests.
fn script_of(
    bench: &Bench,
    name: &str,
    tests: &[&str],
    address: IpAddr,
    kernel: bool,
    options: &[(&str, &str)],
) -> (String, String) {
    let _peer = peer(bench, address, kernel, options);
    let mut command = if kernel { Command::new("timeout") } else { bench.accelerated("timeout") };
    command
        .args(["-s", "KILL", "120", PYTHON])
        .arg(programs(name))
        .args([address.to_string(), address.to_string()])
        .args(tests);
    let output = run(&bench.lab.server, command.envs(options.iter().copied()));
    let (told, complained) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{name} at {address}: {}\n{told}\n{complained}", output.status);
    (told, complained)
}

/// A program that listens, connects and accepts, in this order, in one thread; prints what came.
const ITSELF: &str = "
import socket
for address, own in ('127.0.0.1', '127.0.0.1'), ('0.0.0.0', '127.0.0.1'), ('::1', '::1'), ('::', '::1'), ('::', '127.0.0.1'):
    family = socket.AF_INET6 if ':' in address else socket.AF_INET
    server = socket.socket(family)
    if address == '::':
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    server.bind((address, 0))
    server.listen()
    client = socket.create_connection((own, server.getsockname()[1]))
    client.sendall(b'to itself')
    accepted, _ = server.accept()
    print(accepted.recv(20))
";

/// Issue 25, item 3, within the host: a connection waited at a process that was busy, while another one had time.
#[test]
fn what_waits_at_a_busy_process_goes_to_one_that_is_idle() {
    const PROCESSES: &str = "3";
    let bench = Bench::new(1);
    let folder = bench.folder.path();
    for address in [HERE, SERVER.into()] {
        for (way, kernel) in
            ["accept", "poll", "epoll"].into_iter().flat_map(|way| [(way, true), (way, false)])
        {
            for (scene, expected) in [
                ("idle", "20 answers of 1 process, 2 busy, who answered nothing: True\n"),
                ("busy", "7 answers of 1 process, 2 busy, who answered nothing: True\n"),
            ] {
                let mut server = python(&bench, kernel);
                server.arg(programs("prefork.py")).args([&address.to_string(), way, PROCESSES]);
                // Children of the one before have just been killed.
                until("nobody listens", || !bench.listens(8080));
                let server = start(&bench, &mut server);
                let mut client = if kernel { Command::new("timeout") } else { bench.accelerated("timeout") };
                client.args(["-s", "KILL", "60", PYTHON]).arg(programs("asks.py"));
                client.args([&address.to_string(), PROCESSES]).arg(folder).arg(scene);
                let output = run(&bench.lab.server, &mut client);
                let (told, mut complained) = (text(&output.stdout), text(&output.stderr));
                complained += &end(server, Signal::KILL);
                assert_eq!(told, expected, "{scene}, {way}, {address}, kernel: {kernel}: {complained}");
                assert!(kernel || within_host(&complained).1 > 0, "not the kernel's: {complained}");
            }
        }
    }
}

/// The usual order of test suites.
#[test]
fn a_listener_that_nobody_has_looked_at_is_found_by_its_own_process() {
    let bench = Bench::new(1);
    for options in [&[], PER_THREAD] {
        let mut command = bench.accelerated(PYTHON);
        command.args(["-c", ITSELF]).envs(options.iter().copied());
        let output = run(&bench.lab.server, &mut command);
        let (told, complained) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && told == "b'to itself'\n".repeat(5), "{told}\n{complained}");
        assert_eq!(within_host(&complained), (5, 5), "{complained}");
    }
    // A listener of a process that has forked is perhaps its children's.
    let forks = "import os, socket; server = socket.create_server(('127.0.0.1', 7401)); child = os.fork()
if child == 0: server.accept()[0].sendall(b'child'); os._exit(0)
print(socket.create_connection(('127.0.0.1', 7401)).recv(9)); os.waitpid(child, 0)";
    let output = run(&bench.lab.server, bench.accelerated(PYTHON).args(["-c", forks]));
    assert_eq!(text(&output.stdout), "b'child'\n", "{}", text(&output.stderr));
}

/// How many connections within the host a program has accepted, and begun.
fn within_host(complained: &str) -> (u64, u64) {
    let lines = complained.lines().filter_map(|line| Some(line.split_once("within the host: ")?.1));
    let numbers = |line: &str| {
        let mut numbers =
            line.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse::<u64>().ok());
        Some((numbers.next()?, numbers.next()?))
    };
    lines.filter_map(numbers).fold((0, 0), |sum, each| (sum.0 + each.0, sum.1 + each.1))
}

#[test]
fn calls_answer_as_the_kernel_does() {
    let bench = Bench::new(2);
    let own = IpAddr::V4(SERVER);
    for (address, options) in [
        (HERE, &[][..]),
        (Ipv6Addr::LOCALHOST.into(), &[]),
        (own, &[]),
        (HERE, &[("EF_POLL_USEC", "2000")]),
        (HERE, PER_THREAD),
    ] {
        let (_, complained) = script(&bench, "calls.py", address, false, options);
        assert!(within_host(&complained).0 > 200, "{address} {options:?}: {complained}");
    }
}

#[test]
fn readiness_is_told_as_by_the_kernel() {
    let bench = Bench::new(1);
    let kernel = script(&bench, "epoll.py", HERE, true, &[]);
    for options in [&[], PER_THREAD] {
        let overfly = script(&bench, "epoll.py", HERE, false, options);
        let different: Vec<_> = kernel.0.lines().zip(overfly.0.lines()).filter(|(a, b)| a != b).collect();
        assert!(kernel.0 == overfly.0, "{options:?}: kernel, Overfly: {different:#?}");
        assert!(within_host(&overfly.1).0 > 15, "{options:?}: {}", overfly.1);
    }
}

/// Threads that use each other's sockets, with a stack for all of a process's and with one for each.
#[test]
fn threads_share_as_over_the_kernel() {
    let bench = Bench::new(1);
    for options in [&[("EF_STACK_PER_THREAD", "0")], PER_THREAD] {
        let (told, complained) = script(&bench, "threads.py", HERE, false, options);
        println!("{options:?}\n{told}");
        assert!(within_host(&complained).1 > 300, "{options:?}: {complained}");
        assert_eq!(sum(&complained, "(refused"), 0, "{options:?}: {complained}");
    }
}

/// Of 24 threads that each wait for a connection of their own, an answer for one does not wake the others.
#[test]
fn threads_that_wait_wake_for_their_own_news() {
    let bench = Bench::new(1);
    let (_, complained) = script_of(&bench, "threads.py", &["many_wait_and_few_wake"], HERE, false, &[]);
    let sleeps = sum(&complained, "sleeps");
    println!("480 answers: {sleeps} sleeps");
    // Fewer where the answer is there before the thread sleeps.
    assert!((100..5 * 480).contains(&sleeps), "{complained}");
}

#[test]
fn processes_share_as_over_the_kernel() {
    let bench = Bench::new(1);
    for options in [&[], PER_THREAD] {
        let (_, complained) = script(&bench, "forks.py", HERE, false, options);
        assert!(within_host(&complained).0 > 30, "{options:?}: {complained}");
        assert!(sum(&complained, "handed over") > 20, "{options:?}: {complained}");
    }
}

#[test]
fn a_connection_is_the_same_after_its_handover() {
    let bench = Bench::new(1);
    for (address, options) in [(HERE, &[][..]), (Ipv6Addr::LOCALHOST.into(), &[]), (HERE, PER_THREAD)] {
        let (_, complained) = script(&bench, "handover.py", address, false, options);
        assert!(sum(&complained, "handed over") > 10, "{complained}");
        assert!(within_host(&complained).1 > 20, "{complained}");
    }
}

/// Both ends hand over, one of them, or both at the same moment.
#[test]
fn streams_survive_their_handover() {
    let bench = Bench::new(1);
    let seed = std::env::var("OVERFLY_SEED").unwrap_or_else(|_| std::process::id().to_string());
    println!("OVERFLY_SEED={seed}");
    for (direction, listener_moves, connector_moves) in
        [("up", "yes", "no"), ("down", "no", "yes"), ("both", "yes", "yes")]
    {
        let transfer = |role: &str, moves: &str| {
            let mut command = bench.accelerated(PYTHON);
            command.arg(programs("transfer.py")).args([role, "127.0.0.1", "7100", "20", "2000000"]);
            command.args([&seed, direction, moves]);
            command
        };
        let mut listener = start(&bench, &mut transfer("listen", listener_moves));
        let connector = run(&bench.lab.server, &mut transfer("connect", connector_moves));
        let complained = text(&connector.stderr);
        assert!(connector.status.success(), "{direction}: {complained}");
        let mut complaints = Vec::new();
        listener.0.stderr.take().unwrap().read_to_end(&mut complaints).unwrap();
        assert!(listener.0.wait().unwrap().success(), "{direction}: {}", text(&complaints));
        let both = complained + &text(&complaints);
        assert!(sum(&both, "handed over") >= 20, "{direction}: {both}");
        assert_eq!(sum(&both, "(refused"), 0, "{direction}: {both}");
    }
}

/// Asks `times` times for a line at 127.0.0.1:7300; prints each.
const CLIENT: &str = "
import socket, sys
for _ in range(int(sys.argv[1])):
    with socket.create_connection(('127.0.0.1', 7300), 10) as s:
        s.sendall(b'x')
        print(s.makefile().readline(), end='')
";
/// Answers with its process's number, from as many processes as it is told; then `extra` runs.
const SERVER_PROGRAM: &str = "
import os, signal, socket, sys
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(('', 7300))
server.listen(100)
first = os.getpid()
readers, writers = os.pipe()
for _ in range(int(sys.argv[1]) - 1):
    if os.fork() == 0:
        break
server.settimeout(0.05)
try:
    server.accept()
except TimeoutError:
    pass
server.settimeout(None)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
os.write(writers, b'x')
if os.getpid() == first:
    # Before, one of them would accept a connection and forget it.
    for _ in range(int(sys.argv[1])):
        os.read(readers, 1)
    print('ready', flush=True)
exec(sys.argv[2])
while True:
    connection, _ = server.accept()
    connection.recv(1)
    connection.sendall(b'%d\\n' % os.getpid())
    connection.close()
";

fn server(bench: &Bench, processes: &str, extra: &str, kernel: bool) -> Helper {
    start(bench, python(bench, kernel).args(["-c", SERVER_PROGRAM, processes, extra]))
}

fn client(bench: &Bench, command: &mut Command, times: u32) -> Output {
    let output = run(&bench.lab.server, command.args(["-c", CLIENT, &times.to_string()]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).lines().count() as u32, times);
    output
}

#[test]
fn programs_that_cannot_find_each_other_meet_in_the_kernel() {
    let bench = Bench::new(1);
    let plain = || Command::new(PYTHON);
    let overfly = || bench.accelerated(PYTHON);
    let with = |name: &str, value: &str| {
        let mut command = bench.accelerated(PYTHON);
        command.env(name, value);
        command
    };
    let other_user = || {
        let mut command = bench.accelerated("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", PYTHON]);
        command
    };
    // Client, whether the server is over the kernel, how many of its connections are at user level.
    let accelerated = server(&bench, "1", "", false);
    for (what, mut command, expected) in [
        ("both", overfly(), 10),
        ("the server alone", plain(), 0),
        ("another user's client", other_user(), 0),
        ("switched off", with("EF_TCP_CLIENT_LOOPBACK", "0"), 0),
        ("for the same process only", with("EF_TCP_CLIENT_LOOPBACK", "1"), 0),
    ] {
        let output = client(&bench, &mut command, 10);
        assert_eq!(within_host(&text(&output.stderr)).1, expected, "{what}");
    }
    let complained = end(accelerated, Signal::TERM);
    assert_eq!(within_host(&complained).0, 10, "{complained}");
    for (what, value) in
        [("switched off", Some("0")), ("for the same process only", Some("1")), ("kernel", None)]
    {
        let mut command = value.map_or_else(plain, |value| with("EF_TCP_SERVER_LOOPBACK", value));
        let server = start(&bench, command.args(["-c", SERVER_PROGRAM, "1", ""]));
        let output = client(&bench, &mut overfly(), 10);
        assert_eq!(within_host(&text(&output.stderr)).1, 0, "{what}");
        drop(server);
    }
}

/// Each has its turn.
#[test]
fn all_processes_of_a_server_get_connections() {
    let bench = Bench::new(1);
    let server = server(&bench, "3", "", false);
    until("all of them have joined", || places(&bench.lab.server, "0.0.0.0:7300") == 3);
    let output = client(&bench, &mut bench.accelerated(PYTHON), 30);
    let told = text(&output.stdout);
    let mut numbers: Vec<_> = told.lines().collect();
    numbers.sort_unstable();
    let turns: Vec<_> = numbers.chunk_by(|a, b| a == b).map(<[_]>::len).collect();
    assert_eq!(turns, [10, 10, 10], "{}", text(&output.stderr));
    drop(server);
}

/// Stacks that can be reached at user level there.
fn places(namespace: &Namespace, local: &str) -> usize {
    let sockets = text(&run(namespace, Command::new("ss").arg("-xl")).stdout);
    sockets.matches(&format!("@overfly-loopback/{local}/")).count()
}

/// As two containers of a pod: each sees the other's process as number 0, or not at all.
#[test]
fn programs_of_two_pid_namespaces_have_one_link() {
    let bench = Bench::new(1);
    let server = server(&bench, "1", "", false);
    // What was found is believed for a second.
    let program = "
import socket, time
for _ in range(3):
    with socket.create_connection(('127.0.0.1', 7300), 10) as s:
        s.sendall(b'x')
        s.makefile().readline()
    time.sleep(1.1)
";
    let mut command = bench.accelerated("unshare");
    let output = run(&bench.lab.server, command.args(["--pid", "--fork", PYTHON, "-c", program]));
    let complained = text(&output.stderr);
    assert!(output.status.success(), "{complained}");
    assert_eq!(within_host(&complained).1, 3, "{complained}");
    assert!(complained.contains("offered: 1,"), "{complained}");
    let complained = end(server, Signal::TERM);
    assert!(complained.contains("taken: 1,"), "{complained}");
}

/// A server that computes, or sleeps in a call that is not ours, has a kernel that takes connections.
#[test]
fn a_busy_server_gets_its_connections_through_the_kernel_where_nobody_answers_for_it() {
    let bench = Bench::new(1);
    for (background, expected) in [("0", "1"), ("1", "0")] {
        let mut command = python(&bench, false);
        command.env("EF_BACKGROUND", background);
        let busy = "import time; time.sleep(2)";
        let server = start(&bench, command.args(["-c", SERVER_PROGRAM, "1", busy]));
        let output = client(&bench, &mut bench.accelerated(PYTHON), 3);
        let complained = text(&output.stderr);
        let late = complained.split_once("(late ").and_then(|(_, after)| after.split_once(')'));
        assert_eq!(late.map(|(late, _)| late), Some(expected), "{background}: {complained}");
        drop(server);
    }
}

#[test]
fn a_server_that_is_killed_leaves_nothing_and_the_next_one_is_found() {
    let bench = Bench::new(1);
    // The client begins before, and goes on after.
    let program = "
import socket, sys
def ask():
    s = socket.create_connection(('127.0.0.1', 7300), 10)
    s.sendall(b'x')
    return s, s.makefile().readline()
s, first = ask()
held = socket.create_connection(('127.0.0.1', 7300), 10)
print('ready', flush=True)
sys.stdin.readline()
try:
    assert held.recv(1) == b''
except ConnectionResetError:
    pass
_, second = ask()
assert first != second
print('done')
";
    let first = server(&bench, "1", "", false);
    let mut command = bench.accelerated(PYTHON);
    let command =
        command.args(["-c", program]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = Helper(spawn(&bench.lab.server, command));
    let mut told = BufReader::new(client.0.stdout.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    drop(first);
    until("its place is free", || places(&bench.lab.server, "0.0.0.0:7300") == 0);
    let second = server(&bench, "1", "", false);
    drop(client.0.stdin.take());
    told.read_to_string(&mut line).unwrap();
    let mut complaints = Vec::new();
    client.0.stderr.take().unwrap().read_to_end(&mut complaints).unwrap();
    assert_eq!(line, "ready\ndone\n", "{}", text(&complaints));
    assert_eq!(within_host(&text(&complaints)).1, 3, "{}", text(&complaints));
    drop(second);
}

/// multiprocessing's test_pickling: who has connected, written and closed ends while its end is asked for.
#[test]
fn a_connection_whose_other_process_ends_while_it_is_asked_is_passed_on() {
    let bench = Bench::new(1);
    let program = "
import array, os, signal, socket, threading, time
server = socket.create_server(('127.0.0.1', 7300))
child = os.fork()
if child == 0:
    time.sleep(0.3)
    s = socket.create_connection(('127.0.0.1', 7300), 10)
    s.sendall(b'its words')
    s.close()
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGSTOP)
connection, _ = server.accept()
os.waitid(os.P_PID, child, os.WSTOPPED)
# It cannot answer, and then it is dead.
threading.Timer(0.3, os.kill, (child, signal.SIGKILL)).start()
one, other = socket.socketpair()
one.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [connection.fileno()]))])
_, passed, _, _ = socket.recv_fds(other, 1, 1)
connection.close()
passed = socket.socket(fileno=passed[0])
assert passed.recv(100, socket.MSG_WAITALL) == b'its words'
assert passed.recv(100) == b''
print('done')
";
    let mut command = bench.accelerated(PYTHON);
    let output = run(&bench.lab.server, command.args(["-c", program]));
    let complaints = text(&output.stderr);
    assert_eq!(text(&output.stdout), "done\n", "{complaints}");
    assert!(complaints.contains("handed over 1 (refused 0)"), "{complaints}");
}

/// nginx in front of another nginx, and Redis with its own client.
#[test]
fn real_programs_meet_at_user_level() {
    let bench = Bench::new(1);
    std::fs::write(bench.path("file"), vec![b'x'; 300_000]).unwrap();
    let folder = bench.folder.path().display();
    let serve = |name: &str, http: &str| {
        let configuration = format!(
            "daemon off; master_process on; worker_processes 2; user root; pid {folder}/{name}.pid; error_log stderr;
             events {{ worker_connections 512; }}
             http {{ access_log off; client_body_temp_path {folder}/{name}.body; proxy_temp_path {folder}/{name}.proxy; {http} }}"
        );
        std::fs::write(bench.path(name), configuration).unwrap();
        let mut command = bench.accelerated("nginx");
        command.args(["-e", "stderr", "-c"]).arg(bench.path(name));
        Helper(spawn(&bench.lab.server, command.stdin(Stdio::null()).stderr(Stdio::piped())))
    };
    let back = serve("back", &format!("server {{ listen 127.0.0.1:8081; root {folder}; }}"));
    until("the inner nginx listens", || places(&bench.lab.server, "127.0.0.1:8081") == 2);
    let front = serve("front", "server { listen 80; location / { proxy_pass http://127.0.0.1:8081; } }");
    until("the outer nginx listens", || bench.listens(80));
    for _ in 0..20 {
        assert_eq!(bench.fetch(&format!("http://{SERVER}/file")).len(), 300_000);
    }
    let (front, back) = (end(front, Signal::QUIT), end(back, Signal::QUIT));
    assert_eq!((within_host(&front).1, within_host(&back).0), (20, 20), "{front}\n{back}");

    let mut command = bench.accelerated("redis-server");
    command.args(["--port", "6400", "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(bench.folder.path());
    let redis = Helper(spawn(
        &bench.lab.server,
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()),
    ));
    until("Redis listens", || places(&bench.lab.server, "127.0.0.1:6400") == 1);
    let mut command = bench.accelerated("redis-benchmark");
    let output = run(
        &bench.lab.server,
        command.args(["-h", "127.0.0.1", "-p", "6400", "-t", "set,get", "-n", "20000", "-c", "20", "-q"]),
    );
    let (told, complained) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && told.contains("GET: "), "{told}\n{complained}");
    assert!(within_host(&complained).1 >= 38, "{complained}");
    let complained = end(redis, Signal::TERM);
    assert!(within_host(&complained).0 >= 38, "{complained}");
}

//! Several programs on one interface, each with its own `overfly run`: one broker serves them, whoever comes and goes, and
//! ends with the last.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};

use overfly_bench::lab::Lab;
use overfly_tests::{
    Nginx, ROOT, Server, alive, descendants, eventually, is_steered, output, overfly, send, succeed, titled,
};
use rustix::process::Signal;
use serde_json::Value;

const SERVER: &str = "10.77.0.1";
const REDIS: [&str; 9] =
    ["redis-server", "--bind", "0.0.0.0", "--protected-mode", "no", "--port", "6379", "--save", ""];

fn lab() -> Lab {
    let lab = Lab::new(overfly()).expect("a lab");
    Nginx { workers: 2, ..Nginx::default() }.install(&lab, &[]);
    lab
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Nginx,
    Redis,
}

impl Program {
    fn start(self, lab: &Lab) -> Server {
        match self {
            Program::Nginx => Server::nginx(lab),
            Program::Redis => {
                let server = Server::start(lab, Some(&[]), &REDIS);
                eventually("redis answers on its own loopback", || {
                    output(lab, "server", &["redis-cli", "ping"]).stdout == b"PONG\n"
                });
                server
            }
        }
    }

    /// What serves a client's connections: its name in `overfly top`.
    fn accepts(self, lab: &Lab) -> u64 {
        let text = succeed(lab, "server", &[&binary(), "top", "--json", "--once", "--interval", "0.05"]);
        let look: Value = serde_json::from_str(&text).expect("JSON");
        let name = match self {
            Program::Nginx => "nginx",
            Program::Redis => "redis-server",
        };
        look["stacks"]
            .as_array()
            .expect("stacks")
            .iter()
            .filter(|stack| stack["program"].as_str().is_some_and(|program| name.starts_with(program)))
            .filter_map(|stack| stack["counters"]["sockets.accepts"].as_u64())
            .sum()
    }

    /// Fails if it does not serve kernel clients, over the user-level stack.
    #[track_caller]
    fn serves(self, lab: &Lab) {
        let before = self.accepts(lab);
        let script = match self {
            Program::Nginx => {
                format!("for i in $(seq 20); do curl -sf --max-time 10 http://{SERVER}/ok || exit 1; done")
            }
            Program::Redis => {
                format!(
                    "for i in $(seq 20); do redis-cli -h {SERVER} set key $i | grep -q OK || exit 1; done"
                )
            }
        };
        succeed(lab, "client", &["sh", "-c", &script]);
        eventually("20 connections are counted", || self.accepts(lab) - before == 20);
    }
}

fn binary() -> String {
    overfly().to_str().expect("UTF-8").to_owned()
}

/// Brokers that a command started.
fn brokers(server: &Server) -> Vec<u32> {
    titled(server.id(), "overfly\0__broker")
}

/// No broker is left, nor what it had.
#[track_caller]
fn nothing_is_left(lab: &Lab, broker: u32) {
    eventually("the broker ends", || !alive(broker));
    assert!(!is_steered(lab));
    assert!(!succeed(lab, "server", &["cat", "/proc/net/unix"]).contains("@overfly"));
}

/// A server that holds its connections, killed: what a client hears that waits for its answer, and when.
const HOLDS: &str = "import socket, sys, time
listener = socket.create_server((sys.argv[1], 8080))
listener.accept()[0].close()  # may be the kernel's still
connection, _ = listener.accept()
connection.recv(3)
print('asked', flush=True)
time.sleep(60)";
const WAITS: &str = "import socket, sys, time
while True:
    try:
        connection = socket.create_connection((sys.argv[1], 8080))
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
connection.recv(1)
connection = socket.create_connection((sys.argv[1], 8080), 10)
connection.sendall(b'who')
print('asked', flush=True)
begin = time.monotonic()
try:
    connection.recv(1)
except ConnectionResetError:
    pass
print('heard' if time.monotonic() - begin < 5 else 'late')";

/// The broker ends with its last program, and not before the program's peers are told.
#[test]
fn clients_of_the_last_program_hear_that_it_was_killed() {
    for _ in 0..5 {
        let lab = lab();
        let mut command = lab.command("server", overfly());
        command.args(["run", "--", "/usr/bin/python3", "-c", HOLDS, SERVER]);
        let mut server = Server::spawn(command);
        let mut client = lab.command("client", "/usr/bin/python3");
        client.args(["-c", WAITS, SERVER]).stdout(Stdio::piped());
        let mut client = client.spawn().expect("start the client");
        let mut told = BufReader::new(client.stdout.take().expect("its output")).lines();
        let mut line = || told.next().expect("a line").expect("text");
        assert_eq!(line(), "asked");
        let broker = brokers(&server)[0];
        let python = titled(server.id(), "/usr/bin/python3");
        // The request is acknowledged: nothing is on its way that would be answered with RST.
        std::thread::sleep(std::time::Duration::from_millis(200));
        let kernels = succeed(&lab, "server", &["ss", "-tnH", "state", "established"]);
        assert!(kernels.is_empty(), "the kernel has it: {kernels}");
        send(python[0], Signal::KILL);
        assert_eq!(line(), "heard");
        assert!(client.wait().expect("wait for the client").success());
        eventually("overfly run ends", || server.ended());
        nothing_is_left(&lab, broker);
    }
}

/// How a program is ended.
#[derive(Clone, Copy, Debug)]
enum End {
    Term,
    KillRun,
}

fn end(mut server: Server, way: End) {
    match way {
        End::Term => server.signal(Signal::TERM),
        End::KillRun => send(server.id(), Signal::KILL),
    }
    eventually("it ends", || server.ended());
}

#[test]
fn nginx_and_redis_are_served_by_one_broker_and_end_in_any_order() {
    for (first, second) in [(Program::Nginx, Program::Redis), (Program::Redis, Program::Nginx)] {
        for way in [End::Term, End::KillRun] {
            for first_goes_first in [true, false] {
                println!("{first:?} {second:?} {way:?} {first_goes_first}");
                let lab = lab();
                let one = first.start(&lab);
                let other = second.start(&lab);
                let [broker] = brokers(&one)[..] else { panic!("not one broker") };
                assert!(brokers(&other).is_empty());
                first.serves(&lab);
                second.serves(&lab);
                let (leaver, stayer, stays) =
                    if first_goes_first { (one, other, second) } else { (other, one, first) };
                // The broker is nobody's.
                let mut family = descendants(leaver.id());
                family.retain(|&id| id != broker);
                end(leaver, way);
                eventually("its processes end", || family.iter().all(|&id| !alive(id)));
                assert!(alive(broker) && is_steered(&lab));
                stays.serves(&lab);
                let family = descendants(stayer.id());
                end(stayer, way);
                eventually("its processes end", || family.iter().all(|&id| !alive(id)));
                eventually("the program is detached", || !is_steered(&lab));
                nothing_is_left(&lab, broker);
            }
        }
    }
}

#[test]
fn both_serve_at_once_while_others_come_and_go() {
    let lab = lab();
    let one = Program::Nginx.start(&lab);
    let other = Program::Redis.start(&lab);
    let [broker] = brokers(&one)[..] else { panic!("not one broker") };
    let script = format!(
        "redis-benchmark -q -h {SERVER} -c 20 -n 20000 -t set,get & benchmark=$!\n\
         for i in $(seq 200); do curl -sf --max-time 10 http://{SERVER}/ok > /dev/null || exit 1; done\n\
         wait $benchmark"
    );
    let mut clients = lab.command("client", "sh");
    let mut clients = clients.args(["-c", &script]).stdin(Stdio::null()).spawn().expect("start the clients");
    // Programs with a stack each, whose ends must not be felt.
    while clients.try_wait().expect("wait").is_none() {
        let url = "http://10.77.0.2:1/"; // nobody listens there
        let visitor = output(&lab, "server", &[&binary(), "run", "--", "curl", "-s", url]);
        assert_eq!(visitor.status.code(), Some(7), "{visitor:?}");
        assert!(visitor.stderr.is_empty(), "{visitor:?}");
    }
    assert!(clients.wait().expect("wait").success());
    assert!(alive(broker));
    other.stop();
    one.stop();
    nothing_is_left(&lab, broker);
}

#[test]
fn when_the_broker_is_killed_all_end_and_begin_again() {
    let lab = lab();
    for _ in 0..2 {
        let mut one = Program::Nginx.start(&lab);
        let mut other = Program::Redis.start(&lab);
        let [broker] = brokers(&one)[..] else { panic!("not one broker") };
        let family: Vec<u32> = [&one, &other].iter().flat_map(|server| descendants(server.id())).collect();
        send(broker, Signal::TERM); // which is no reason to end while it is needed
        Program::Redis.serves(&lab);
        send(broker, Signal::KILL);
        eventually("both end", || one.ended() && other.ended());
        eventually("all their processes end", || family.iter().all(|&id| !alive(id)));
        nothing_is_left(&lab, broker);
    }
}

/// Runs that begin and end at any moment of another's beginning and end.
#[test]
fn those_who_come_as_others_go_find_a_broker_or_make_one() {
    let lab = lab();
    let loop_of = |count: u32| {
        let script = format!(
            "for i in $(seq {count}); do {} run -- curl -s http://10.77.0.2:1/; [ $? = 7 ] || exit 1; done",
            binary()
        );
        let mut shell = lab.command("server", "sh");
        shell.args(["-c", &script]).env("EF_NO_FAIL", "0").env("OVERFLY_STATS", "1");
        shell.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("start a shell")
    };
    let loops: Vec<Child> = (0..3).map(|_| loop_of(12)).collect();
    for one in loops {
        let output = one.wait_with_output().expect("wait");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert!(!said.contains("kernel:"), "{said}");
    }
    assert!(!is_steered(&lab));
    assert!(!succeed(&lab, "server", &["cat", "/proc/net/unix"]).contains("@overfly"));
}

/// `words` under `overfly run` as another user, with the lines that it complains in.
fn as_nobody(lab: &Lab, words: &[&str]) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut command: Command = lab.command("server", overfly());
    command.args(["run", "--", "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    let mut child = command
        .args(words)
        .current_dir("/tmp")
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start a program");
    let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    (child, lines.map_while(Result::ok))
}

#[test]
fn another_users_program_is_left_to_the_kernel_as_long_as_it_would_see_frames() {
    let lab = lab();
    let nginx = Program::Nginx.start(&lab);
    let [broker] = brokers(&nginx)[..] else { panic!("not one broker") };
    let (redis, mut lines) = as_nobody(&lab, &REDIS);
    let why = lines.find(|line| line.starts_with("overfly:")).expect("a complaint");
    assert!(
        why.contains(
            "continues on the kernel's stack: the broker refused: programs of user 0 are accelerated"
        ),
        "{why}"
    );
    let drain = std::thread::spawn(move || lines.count());
    eventually("redis answers", || {
        output(&lab, "client", &["redis-cli", "-h", SERVER, "ping"]).stdout == b"PONG\n"
    });
    assert!(succeed(&lab, "client", &["redis-cli", "-h", SERVER, "set", "a", "b"]).contains("OK"));
    assert_eq!(Program::Redis.accepts(&lab), 0);
    Program::Nginx.serves(&lab);
    // Where nobody else is, it has the interface: not the memory that root's processes had.
    end(nginx, End::Term);
    assert!(alive(broker));
    finish(redis);
    drain.join().expect("the reader");
    nothing_is_left(&lab, broker);
    let waiter = Server::start(&lab, Some(&[]), &["sleep", "infinity"]);
    eventually("a broker", || is_steered(&lab));
    let (redis, lines) = as_nobody(&lab, &REDIS);
    let drain = std::thread::spawn(move || lines.collect::<Vec<String>>());
    eventually("redis answers", || {
        output(&lab, "client", &["redis-cli", "-h", SERVER, "ping"]).stdout == b"PONG\n"
    });
    // A program that root starts and whose workers are the same user's shares it.
    let config = format!("{ROOT}/nginx.conf");
    succeed(&lab, "server", &["sed", "-i", "s/user root;/user nobody nogroup;/", &config]);
    let nginx = Program::Nginx.start(&lab);
    Program::Nginx.serves(&lab);
    Program::Redis.serves(&lab);
    nginx.stop();
    finish(redis);
    let lines = drain.join().expect("the reader");
    assert!(!lines.iter().any(|line| line.contains("kernel:")), "{lines:?}");
    waiter.stop();
    assert!(!is_steered(&lab));
}

fn finish(mut child: Child) -> ExitStatus {
    send(child.id(), Signal::TERM);
    child.wait().expect("wait")
}

#[test]
fn the_options_in_force_are_the_first_programs() {
    let lab = lab();
    let nginx = Program::Nginx.start(&lab);
    let visit = |value: &str| {
        let mut command = lab.command("server", overfly());
        command.args(["run", "--", "true"]).env("EF_MAX_PACKETS", value).stdin(Stdio::null());
        String::from_utf8_lossy(&command.output().expect("start overfly").stderr).into_owned()
    };
    assert_eq!(visit("32768"), "");
    assert_eq!(
        visit("65536"),
        "overfly: eth0 is served with other options already: EF_MAX_PACKETS=32768 is in force, not 65536\n"
    );
    nginx.stop();
    assert_eq!(visit("65536"), "");
}

/// Anybody can take the name by which programs find each other. That makes nobody join them.
#[test]
fn a_name_in_a_strangers_hands_is_no_broker() {
    let lab = lab();
    let script = "import socket, time\n\
                  s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
                  s.bind('\\0overfly/eth0')\ns.listen()\nprint('listening', flush=True)\ntime.sleep(1000)";
    let mut stranger = lab.command("server", "setpriv");
    stranger.args(["--reuid", "65534", "--clear-groups", "/usr/bin/python3", "-c", script]);
    let mut stranger = stranger.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("a stranger");
    let mut line = String::new();
    BufReader::new(stranger.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
    assert_eq!(line, "listening\n");
    let mut command = lab.command("server", overfly());
    command.args(["run", "--", "curl", "-s", "http://10.77.0.2:1/"]).env("EF_NO_FAIL", "0");
    let visitor = command.stdin(Stdio::null()).output().expect("start overfly");
    let said = String::from_utf8_lossy(&visitor.stderr);
    assert_eq!(visitor.status.code(), Some(7), "{said}");
    let named = format!("process {} (\"python3\") of user 65534 has the name @overfly/eth0", stranger.id());
    assert!(said.contains(&named), "{said}");
    assert!(!is_steered(&lab));
    stranger.kill().expect("kill");
    stranger.wait().expect("wait");
    let server = Server::nginx(&lab);
    assert_eq!(succeed(&lab, "client", &["curl", "-s", &format!("http://{SERVER}/ok")]), "ok");
    server.stop();
}

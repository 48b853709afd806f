//! nginx under `overfly run` behind the host's firewall: clients reach it as they reach it on the kernel, and those that are let
//! in for certain over the user-level stack.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use aya::programs::cgroup_skb::CgroupSkbLinkId;
use aya::programs::{CgroupAttachMode, CgroupSkb, CgroupSkbAttachType};
use overfly_bench::lab::Lab;
use overfly_tests::{Nginx, Server, eventually, output, overfly, succeed};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use serde_json::Value;

fn lab() -> Lab {
    let lab = Lab::new(overfly()).expect("a lab");
    Nginx::default().install(&lab, &[]);
    lab
}

/// Sets the server side's rules, instead of those that it has.
fn rules(lab: &Lab, rules: &str) {
    succeed(lab, "server", &["nft", &format!("flush ruleset; {rules}")]);
}

/// What curl gets: the response, or the number with which it gives up (7: refused, 28: no answer).
fn get(lab: &Lab) -> Result<String, i32> {
    let got = output(lab, "client", &["curl", "-s", "--max-time", "0.7", "http://10.77.0.1/ok"]);
    let text = String::from_utf8_lossy(&got.stdout).into_owned();
    if got.status.success() { Ok(text) } else { Err(got.status.code().unwrap_or(-1)) }
}

/// Connections that nginx's stack has accepted.
fn accepted(lab: &Lab) -> u64 {
    let overfly = overfly();
    let words = [overfly.to_str().expect("UTF-8"), "top", "--json", "--once", "--interval", "0.05"];
    let look: Value = serde_json::from_str(&succeed(lab, "server", &words)).expect("JSON");
    let stacks = look["stacks"].as_array().expect("stacks").iter();
    stacks.filter_map(|stack| stack["counters"]["sockets.accepts"].as_u64()).sum()
}

/// Frames of the server's interface that its XDP program left to the kernel, or dropped, for the firewall's sake.
fn left(lab: &Lab) -> [u64; 2] {
    let overfly = overfly();
    let words = [overfly.to_str().expect("UTF-8"), "top", "--json", "--once", "--interval", "0.05"];
    let look: Value = serde_json::from_str(&succeed(lab, "server", &words)).expect("JSON");
    let counters = &look["interfaces"][0]["counters"];
    ["passed_firewall", "dropped_firewall"].map(|name| counters[name].as_u64().expect("a counter"))
}

/// A client with a connection that stays, which asks when it is told to.
struct Client {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Client {
    fn connect(lab: &Lab) -> Client {
        const SCRIPT: &str = r"
import socket, sys
peer = socket.create_connection(('10.77.0.1', 80))
peer.settimeout(0.7)
for line in sys.stdin:
    try:
        peer.sendall(b'GET /ok HTTP/1.1\r\nHost: x\r\n\r\n')
        print('answer' if peer.recv(65536).startswith(b'HTTP/1.1 200') else 'end', flush=True)
    except Exception as error:
        print('silence', flush=True)
";
        let mut command = lab.command("client", "python3");
        command.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("start python3");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        Client { child, answers }
    }

    fn ask(&mut self) -> String {
        writeln!(self.child.stdin.as_mut().expect("a pipe")).expect("the client is there");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const OPEN: &str = "table inet t { chain i { type filter hook input priority 0; policy accept; }\n}";

/// Rules, and what a client gets from a server on the kernel behind them.
const CASES: [(&str, bool); 9] = [
    (OPEN, true),
    ("table inet t { chain i { type filter hook input priority 0; policy drop; }\n}", false),
    (
        "table inet t { chain i { type filter hook input priority 0; policy drop; ct state established,related accept; tcp dport 80 accept\n}\n}",
        true,
    ),
    ("table inet t { chain p { type filter hook prerouting priority -300; tcp dport 80 drop\n}\n}", false),
    (
        "table netdev t { chain i { type filter hook ingress device eth0 priority 0; ip protocol tcp drop\n}\n}",
        false,
    ),
    ("table inet t { chain o { type filter hook output priority 0; policy drop; }\n}", false),
    ("table inet t { chain o { type filter hook postrouting priority 0; tcp sport 80 drop\n}\n}", false),
    (
        "table inet t { chain i { type filter hook input priority 0; tcp dport 80 reject with tcp reset\n}\n}",
        false,
    ),
    (
        "table inet t { set s { type ipv4_addr; flags interval; elements = { 10.77.0.0/30 }\n}\nchain i { type filter hook input priority 0; ip saddr @s drop\n}\n}",
        false,
    ),
];

#[test]
fn nginx_is_reached_as_on_the_kernel() {
    let lab = lab();
    let overfly = Server::nginx(&lab);
    let mut results = Vec::new();
    for (ruleset, _) in CASES {
        rules(&lab, ruleset);
        // The broker hears of it a moment later.
        std::thread::sleep(Duration::from_millis(100));
        let before = accepted(&lab);
        results.push((get(&lab), accepted(&lab) - before));
    }
    rules(&lab, "");
    overfly.stop();
    let kernel = Server::start(&lab, None, &["nginx", "-c", "/dev/shm/nginx/nginx.conf", "-e", "stderr"]);
    eventually("nginx answers on the kernel", || get(&lab).is_ok());
    for ((ruleset, passes), (got, by_stack)) in CASES.into_iter().zip(results) {
        rules(&lab, ruleset);
        let expected = get(&lab);
        assert_eq!(expected.is_ok(), passes, "{ruleset}");
        assert_eq!((got, by_stack), (expected, u64::from(passes)), "{ruleset}");
    }
    kernel.stop();
}

#[test]
fn rules_that_change_meet_connections_and_peers() {
    let lab = lab();
    let server = Server::nginx(&lab);
    let set = "set bad { type ipv4_addr; flags timeout; }";
    let judged = |established: &str| {
        format!(
            "table inet t {{ {set}\nchain i {{ type filter hook input priority 0; {established}\nip saddr @bad drop\n}}\n}}"
        )
    };
    // An address that is banned loses its connections, where none are let go on; for others nothing changes.
    rules(&lab, &judged(""));
    std::thread::sleep(Duration::from_millis(100));
    let before = accepted(&lab);
    let mut client = Client::connect(&lab);
    assert_eq!(client.ask(), "answer");
    assert_eq!(accepted(&lab) - before, 1);
    succeed(&lab, "server", &["nft", "add element inet t bad { 10.77.0.9 }"]);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(client.ask(), "answer");
    assert_eq!(left(&lab), [0, 0]);
    succeed(&lab, "server", &["nft", "add element inet t bad { 10.77.0.2 }"]);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(client.ask(), "silence");
    assert_eq!(get(&lab), Err(28));
    let [passed, dropped] = left(&lab);
    assert!(passed > 0 && dropped > 0, "{passed} {dropped}");
    // The ban is lifted: the connection goes on, as on the kernel.
    succeed(&lab, "server", &["nft", "delete element inet t bad { 10.77.0.2 }"]);
    eventually("the connection goes on", || client.ask() != "silence");
    assert_eq!(get(&lab), Ok("ok".to_owned()));

    // An element that expires is told by nobody.
    succeed(&lab, "server", &["nft", "add element inet t bad { 10.77.0.2 timeout 2s }"]);
    std::thread::sleep(Duration::from_millis(100));
    let begin = Instant::now();
    assert_eq!(get(&lab), Err(28));
    eventually("the element expires", || get(&lab).is_ok());
    assert!(begin.elapsed() > Duration::from_secs(1));
    let before = accepted(&lab);
    assert_eq!(get(&lab), Ok("ok".to_owned()));
    eventually("the stack has it", || accepted(&lab) > before);

    // Open connections are let go on: a ban is for new ones.
    rules(&lab, &judged("ct state established accept"));
    std::thread::sleep(Duration::from_millis(100));
    let mut client = Client::connect(&lab);
    assert_eq!(client.ask(), "answer");
    succeed(&lab, "server", &["nft", "add element inet t bad { 10.77.0.2 }"]);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(client.ask(), "answer");
    assert_eq!(get(&lab), Err(28));
    // All rules go.
    rules(&lab, "");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!((client.ask(), get(&lab)), ("answer".to_owned(), Ok("ok".to_owned())));
    server.stop();
}

#[test]
fn a_listener_that_only_the_kernel_can_judge_is_the_kernels_and_says_why() {
    let lab = lab();
    rules(
        &lab,
        "table inet t { chain i { type filter hook input priority 0; ct state established accept; tcp dport 80 limit rate 1000/second accept; drop\n}\n}",
    );
    // nginx has its standard error written there.
    let said = || succeed(&lab, "server", &["cat", "/dev/shm/nginx/error.log"]);
    let run = |firewall: &str| {
        let mut command = lab.command("server", overfly());
        command.args(["run", "--", "nginx", "-c", "/dev/shm/nginx/nginx.conf", "-e", "stderr"]);
        let child = command.env("EF_FIREWALL", firewall).spawn().expect("start nginx");
        eventually("nginx answers", || get(&lab).is_ok());
        child
    };
    let end = |mut child: Child| {
        overfly_tests::send(child.id(), rustix::process::Signal::TERM);
        let _ = child.wait();
    };
    let child = run("honour");
    assert_eq!((get(&lab), accepted(&lab)), (Ok("ok".to_owned()), 0));
    end(child);
    let reason = "the kernel serves 0.0.0.0:80: the broker refused: the firewall: nobody can be let in for certain: limit in \
                  table inet t, chain i, handle";
    assert!(said().contains(reason), "{}", said());
    lab.write("server", "/dev/shm/nginx/error.log", b"").expect("write a file");
    let child = run("ignore");
    eventually("the stack serves", || get(&lab).is_ok() && accepted(&lab) > 0);
    end(child);
    assert!(!said().contains("firewall"), "{}", said());
}

/// A control group of the test's own. It goes with the last of its processes.
struct ControlGroup {
    /// The second hierarchy, mounted nowhere.
    _root: std::os::fd::OwnedFd,
    path: PathBuf,
}

impl ControlGroup {
    fn new() -> ControlGroup {
        let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC).expect("a hierarchy of control groups");
        fsconfig_create(context.as_fd()).expect("a hierarchy of control groups");
        let root = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty());
        let root = root.expect("a mount that is nowhere");
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("overfly-tests-{}-{count}", std::process::id());
        let path = PathBuf::from(format!("/proc/self/fd/{}/{name}", root.as_raw_fd()));
        fs::create_dir(&path).expect("a control group");
        ControlGroup { _root: root, path }
    }

    /// A file whose writer comes into the group: sockets are of the group that their process was in when it made them.
    fn entry(&self) -> String {
        let path = self.path.display().to_string().replace("/self/", &format!("/{}/", std::process::id()));
        format!("{path}/cgroup.procs")
    }
}

impl ControlGroup {
    fn attach(&self, program: &mut CgroupSkb) -> CgroupSkbLinkId {
        let folder = File::open(&self.path).expect("open the group");
        let link = program.attach(&folder, CgroupSkbAttachType::Ingress, CgroupAttachMode::Single);
        link.expect("attach a program")
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(5);
        while fs::remove_dir(&self.path).is_err() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A program for a control group that lets no packet in, as systemd's `IPAddressDeny=any` does.
fn deny() -> aya::Ebpf {
    const SOURCE: &str = "__attribute__((section(\"cgroup/skb\"), used)) int deny(void *packet) { return 0; }\n\
                          char terms[] __attribute__((section(\"license\"), used)) = \"GPL\";\n";
    let folder = tempfile::tempdir().expect("a folder");
    let [source, object] = ["deny.c", "deny.o"].map(|name| folder.path().join(name));
    fs::write(&source, SOURCE).expect("write a program");
    let mut clang = Command::new("clang");
    let made = clang.args(["-O2", "-target", "bpf", "-c"]).arg(&source).arg("-o").arg(&object).status();
    assert!(made.expect("start clang").success());
    aya::Ebpf::load_file(object).expect("load a program")
}

/// What a unit's IPAddressDeny= is changed to while it runs (`systemctl set-property`) counts from then on.
#[test]
fn a_control_groups_program_that_comes_later_is_heeded_too() {
    let lab = lab();
    let group = ControlGroup::new();
    let mut shell = lab.command("server", "sh");
    let run = format!(
        "echo $$ > {}; exec {} run -- nginx -c /dev/shm/nginx/nginx.conf -e stderr",
        group.entry(),
        overfly().display()
    );
    shell.args(["-c", &run]);
    let server = Server::spawn(shell);
    eventually("the stack serves", || get(&lab).is_ok() && accepted(&lab) > 0);
    let before = accepted(&lab);
    let mut client = Client::connect(&lab);
    assert_eq!((client.ask(), get(&lab)), ("answer".to_owned(), Ok("ok".to_owned())));
    assert_eq!(accepted(&lab) - before, 2);

    let mut loaded = deny();
    let program: &mut CgroupSkb =
        loaded.program_mut("deny").expect("a program").try_into().expect("for a group");
    program.load().expect("load a program");
    let link = group.attach(program);
    eventually("the open connection stands still", || client.ask() == "silence");
    assert_eq!(get(&lab), Err(28));

    program.detach(link).expect("detach a program");
    eventually("it goes on", || client.ask() == "answer");
    eventually("new ones are the stack's again", || {
        let before = accepted(&lab);
        get(&lab) == Ok("ok".to_owned()) && accepted(&lab) > before
    });
    server.stop();
}

/// A listener that somebody else has made, as systemd does for a socket unit with IPAddressDeny=, is judged by that one's group.
#[test]
fn an_inherited_listener_is_judged_by_the_group_in_which_it_was_made() {
    const SCRIPT: &str = r"
import os, socket, sys
entry, root, *words = sys.argv[1:]
with open(entry, 'w') as group:
    group.write(str(os.getpid()))
listener = socket.create_server(('0.0.0.0', 80), reuse_port=False)
with open(root, 'w') as group:
    group.write(str(os.getpid()))
os.set_inheritable(listener.fileno(), True)
# nginx takes the listeners that its environment names, as after an upgrade.
os.environ['NGINX'] = f'{listener.fileno()};'
os.execv(words[0], words)
";
    let lab = lab();
    let group = ControlGroup::new();
    let entry = group.entry();
    let root = entry.replace(&format!("/{}/cgroup", group.path.file_name().unwrap().display()), "/cgroup");
    let serve = || {
        let mut server = lab.command("server", "python3");
        server.args(["-c", SCRIPT, &entry, &root]).arg(overfly());
        server.args(["run", "--", "nginx", "-c", "/dev/shm/nginx/nginx.conf", "-e", "stderr"]);
        Server::spawn(server)
    };
    let mut loaded = deny();
    let program: &mut CgroupSkb =
        loaded.program_mut("deny").expect("a program").try_into().expect("for a group");
    program.load().expect("load a program");

    // As it comes later, and as it is there.
    let server = serve();
    eventually("the stack serves", || get(&lab).is_ok() && accepted(&lab) > 0);
    let link = group.attach(program);
    eventually("the kernel refuses", || get(&lab) == Err(28));
    server.stop();
    let server = serve();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!((get(&lab), accepted(&lab)), (Err(28), 0));
    program.detach(link).expect("detach a program");
    eventually("the kernel serves", || get(&lab) == Ok("ok".to_owned()));
    server.stop();
}

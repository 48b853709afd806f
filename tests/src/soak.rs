//! nginx whose workers are killed or stopped at random moments, under a load that counts what it costs.
//!
//! Nothing may be left behind. A stop costs no request; a kill costs those of the process that was killed, at once.

use std::collections::BTreeMap;
use std::fmt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use overfly_bench::lab::{Lab, SERVER};
use overfly_testing::process;
use rustix::process::Signal;
use serde_json::Value;

use crate::steady::Steady;
use crate::{
    ROOT, Random, Server, alive, descendants, eventually, is_steered, overfly, send, succeed, titled,
};

const WORKERS: usize = 4;
const WORKER: &str = "nginx: worker process";
/// Of each of the two generators.
const CONNECTIONS: u64 = 16;
const FILE_BYTES: usize = 10_000;
/// Subnet of the tap device; the lab's own is the other device's.
const TAP_KERNEL: &str = "10.78.0.2/16";
const TAP_SERVER: &str = "10.78.0.1";

/// What carries the frames between nginx and its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// AF_XDP over veth; the client is the kernel.
    Xdp,
    /// Shared memory with the generator.
    Memif,
    /// A tap device; the client is the kernel.
    Tap,
}

impl Link {
    /// By the name that options have for it.
    #[must_use]
    pub fn named(name: &str) -> Option<Link> {
        [Link::Xdp, Link::Memif, Link::Tap].into_iter().find(|link| link.to_string() == name)
    }

    fn options(self) -> Vec<String> {
        match self {
            Link::Xdp => Vec::new(),
            Link::Memif => vec!["--link".to_owned(), format!("memif:{ROOT}/socket")],
            Link::Tap => {
                ["--link", "tap:t0", "--address", &format!("{TAP_SERVER}/16")].map(str::to_owned).into()
            }
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Link::Xdp => "xdp",
            Link::Memif => "memif",
            Link::Tap => "tap",
        })
    }
}

/// How much is to happen.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What carries the load.
    pub link: Link,
    /// Workers that are killed, every other one of them while it is stopped.
    pub kills: u32,
    /// Workers that are stopped, for 1 to 300 ms each.
    pub stops: u32,
    /// Whom it strikes, and when.
    pub seed: u64,
    /// After which a request counts as lost, s.
    pub timeout_s: u32,
    /// How long the load goes on after the last worker was struck, s: longer than the timeout to see the last request lost.
    pub settle_s: u32,
}

/// What happens to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blow {
    Stop,
    Kill,
}

/// What a generator found while workers were struck.
#[derive(Clone, Debug)]
pub struct Toll {
    /// What was done to the workers: `20 stops`.
    pub blows: String,
    /// A new connection for each request.
    pub close: bool,
    /// Requests that ended, either way.
    pub requests: u64,
    /// Those that failed.
    pub failed: u64,
    /// By kind; only kinds that came up.
    pub kinds: BTreeMap<String, u64>,
    /// Those that were under way at the end.
    pub unanswered: u64,
    /// Connections that were made.
    pub connections: u64,
}

impl fmt::Display for Toll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Toll { blows, close, requests, failed, kinds, unanswered, connections } = self;
        let way = if *close { "a connection each" } else { "connections stay open" };
        write!(
            f,
            "{blows}, {way}: {requests} requests, {failed} failed {kinds:?}, {unanswered} under way, {connections} connections made"
        )
    }
}

impl Toll {
    fn new(blows: String, close: bool, report: &Value) -> Toll {
        let number = |value: &Value| value.as_u64().expect("a count");
        let kinds = report["failed"].as_object().expect("kinds").iter();
        Toll {
            blows,
            close,
            requests: number(&report["requests"]),
            unanswered: number(&report["record"]["sent"]).saturating_sub(number(&report["requests"])),
            failed: number(&report["failed_total"]),
            kinds: kinds
                .map(|(kind, count)| (kind.clone(), number(count)))
                .filter(|(_, count)| *count > 0)
                .collect(),
            connections: number(&report["connections_made"]),
        }
    }
}

/// Stops workers, then kills workers, and sees that no more is lost than has to be, and that nothing is left.
///
/// # Panics
/// If more is lost, or something is left.
#[must_use]
pub fn run(plan: Plan) -> Vec<Toll> {
    println!("soak: {} stops, {} kills, link {}, seed {}", plan.stops, plan.kills, plan.link, plan.seed);
    let lab = Lab::new(overfly()).expect("a lab");
    prepare(&lab, plan.link);
    let before = Place::look(&lab);
    let mut soak = Soak { server: start(&lab, plan.link), lab: &lab, plan, random: Random(plan.seed) };
    let mut tolls = soak.strike(Blow::Stop, plan.stops);
    let keepers = soak.keepers();
    let descriptors = || -> Vec<_> {
        keepers.iter().map(|&(name, id)| format!("{name} {}", process::descriptors(id))).collect()
    };
    // What the beginning opened for a moment is closed.
    sleep(Duration::from_secs(1));
    let held = descriptors();
    tolls.extend(soak.strike(Blow::Kill, plan.kills));
    let mut now = Vec::new();
    let settled = within(|| {
        now = descriptors();
        now == held
    });
    assert!(settled, "open descriptors: {held:?}, after the kills {now:?}");
    println!("soak: open descriptors, before and after the kills: {}", held.join(", "));
    let family = descendants(soak.server.id());
    soak.server.stop();
    eventually("every process ends", || family.iter().all(|&id| !alive(id)));
    nothing_is_left(&lab, &before);
    tolls
}

/// nginx with its file, what the link needs, and a `/tmp` in which only this run leaves something.
fn prepare(lab: &Lab, link: Link) {
    let config = format!(
        "worker_processes {WORKERS};\nuser root;\ndaemon off;\npid {ROOT}/nginx.pid;\nerror_log {ROOT}/error.log;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n    access_log off;\n    keepalive_requests 100000000;\n\
         client_body_temp_path {ROOT}/1;\n    proxy_temp_path {ROOT}/2;\n    fastcgi_temp_path {ROOT}/3;\n\
         uwsgi_temp_path {ROOT}/4;\n    scgi_temp_path {ROOT}/5;\n\
         server {{\n        listen 80 reuseport;\n        listen 81;\n        root {ROOT}/www;\n    }}\n}}\n"
    );
    lab.write("server", format!("{ROOT}/nginx.conf"), config.as_bytes()).expect("write nginx.conf");
    lab.write("server", format!("{ROOT}/www/file"), &Random(1).bytes(FILE_BYTES)).expect("write a file");
    if !overfly().starts_with("/tmp") {
        // In the side's own mount namespace.
        succeed(lab, "server", &["mount", "-t", "tmpfs", "tmpfs", "/tmp"]);
    }
    if link == Link::Tap {
        let script = format!(
            "ip tuntap add dev t0 mode tap multi_queue && ip address add {TAP_KERNEL} dev t0 && ip link set t0 up"
        );
        succeed(lab, "server", &["sh", "-c", &script]);
    }
}

fn start(lab: &Lab, link: Link) -> Server {
    let mut command = lab.command("server", overfly());
    command.args(["run", "-p", "balanced"]).args(link.options());
    command.args(["--", "nginx", "-e", "stderr", "-c", &format!("{ROOT}/nginx.conf")]);
    let server = Server::spawn(command);
    eventually("nginx has its workers", || titled(server.id(), WORKER).len() == WORKERS);
    eventually("a request succeeds", || {
        load(lab, link, &["-n", "2", "-c", "2"]).output().expect("start the generator").status.success()
    });
    server
}

/// `overfly load http` of both listeners, with JSON.
fn load(lab: &Lab, link: Link, options: &[&str]) -> std::process::Command {
    let side = if link == Link::Xdp { "client" } else { "server" };
    let mut command = lab.command(side, overfly());
    command.args(["load", "http", "--json", "--expect-size", &FILE_BYTES.to_string(), "--link"]);
    let host = match link {
        Link::Tap => TAP_SERVER.to_owned(),
        Link::Xdp | Link::Memif => SERVER.to_string(),
    };
    match link {
        Link::Memif => command.arg(format!("memif:{ROOT}/socket")),
        Link::Xdp | Link::Tap => command.arg("kernel"),
    };
    command.args(options);
    // One listener for each worker, and one for all.
    command.args([80, 81].map(|port| format!("http://{host}:{port}/file")));
    command.stdin(std::process::Stdio::null());
    command
}

struct Soak<'a> {
    lab: &'a Lab,
    plan: Plan,
    server: Server,
    random: Random,
}

impl Soak<'_> {
    /// Up to `most`, at least 1, in ms.
    fn pause(&mut self, most: u64) -> Duration {
        Duration::from_millis(1 + self.random.next() % most)
    }

    /// Those that stay while workers come and go.
    fn keepers(&self) -> Vec<(&'static str, u32)> {
        let root = self.server.id();
        let one = |name, title| {
            let found = titled(root, title);
            assert!(found.len() <= 1, "{name}: {found:?}");
            found.first().map(|&id| (name, id))
        };
        let broker = one("broker", "overfly\0__broker");
        assert!(broker.is_some() || self.plan.link != Link::Xdp, "a broker");
        let master = one("nginx's master", "nginx: master process");
        assert!(master.is_some(), "nginx's master");
        [Some(("overfly run", root)), broker, master].into_iter().flatten().collect()
    }

    fn generator(&self, close: bool) -> Steady {
        let timeout = format!("{}s", self.plan.timeout_s);
        let connections = CONNECTIONS.to_string();
        let mut options = vec!["-R", "400", "-d", "3600s", "-c", &connections, "--timeout", &timeout];
        if self.plan.link == Link::Memif {
            // Each thread is one worker's client; and each generator is a host.
            options.extend(["-t", "2", "--address", if close { "10.77.0.3/24" } else { "10.77.0.4/24" }]);
        }
        if close {
            options.push("--close");
        }
        Steady::start(load(self.lab, self.plan.link, &options))
    }

    /// Strikes so often under a load of both kinds.
    fn strike(&mut self, blow: Blow, count: u32) -> Vec<Toll> {
        if count == 0 {
            return Vec::new();
        }
        let generators = [false, true].map(|close| (close, self.generator(close)));
        sleep(Duration::from_millis(500));
        for _ in 0..count {
            let pause = self.pause(150);
            sleep(pause);
            let mut workers = Vec::new();
            eventually("there is a worker", || {
                workers = titled(self.server.id(), WORKER);
                !workers.is_empty()
            });
            let victim = workers[(self.random.next() % workers.len() as u64) as usize];
            match blow {
                Blow::Kill => {
                    // A process that has been stopped holds what it holds for longer.
                    if self.random.next().is_multiple_of(2) {
                        send(victim, Signal::STOP);
                        let stopped = self.pause(50);
                        sleep(stopped);
                    }
                    send(victim, Signal::KILL);
                }
                Blow::Stop => {
                    let stopped = self.pause(300);
                    send(victim, Signal::STOP);
                    sleep(stopped);
                    send(victim, Signal::CONT);
                }
            }
        }
        eventually("nginx has its workers", || titled(self.server.id(), WORKER).len() == WORKERS);
        sleep(Duration::from_secs(self.plan.settle_s.into()));
        let blows = match blow {
            Blow::Stop => format!("{count} stops"),
            Blow::Kill => format!("{count} kills"),
        };
        let tolls: Vec<Toll> = generators
            .into_iter()
            .map(|(close, generator)| Toll::new(blows.clone(), close, &generator.end()))
            .collect();
        for toll in &tolls {
            println!("soak: {toll}");
        }
        let most = match blow {
            Blow::Stop => 0,
            Blow::Kill => u64::from(count) * CONNECTIONS,
        };
        for toll in &tolls {
            assert!(toll.requests > 100, "a load: {toll}");
            assert!(toll.failed <= most, "at most {most} may fail: {toll}");
            // A request takes about a millisecond: one that waits for nobody is still there at the end, if its time was not up.
            let timed_out = self.plan.settle_s > self.plan.timeout_s;
            assert!(timed_out || toll.unanswered <= CONNECTIONS / 2, "no answer: {toll}");
            for kind in ["timeout", "connect_timeout"] {
                assert!(!toll.kinds.contains_key(kind), "failures are told at once: {toll}");
            }
        }
        tolls
    }
}

/// What a side has beside its processes.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    /// Namespaces that are kept by a mount are among them.
    mounts: String,
    /// Names in `/tmp` and `/dev/shm`.
    files: String,
}

impl Place {
    fn look(lab: &Lab) -> Place {
        let own = overfly().starts_with("/tmp");
        let folders = if own { "/dev/shm" } else { "/dev/shm /tmp" };
        Place {
            mounts: succeed(lab, "server", &["cat", "/proc/self/mountinfo"]),
            // nginx's own folders, log and the like are there already, or are its own.
            files: succeed(lab, "server", &["sh", "-c", &format!("find {folders} -not -path '{ROOT}/*'")]),
        }
    }
}

#[track_caller]
fn nothing_is_left(lab: &Lab, before: &Place) {
    eventually("XDP is detached", || !is_steered(lab));
    let seen = succeed(lab, "server", &["sh", "-c", &format!("cat /proc/net/unix; ss -ltnH; ls {ROOT}")]);
    assert!(
        !seen.contains("overfly")
            && !seen.contains("socket")
            && !seen.contains(":80 ")
            && !seen.contains(":81 "),
        "left behind: {seen}"
    );
    assert_eq!(Place::look(lab), *before, "mounts and files");
    eventually("no process is in the network namespace", || inhabitants(lab).is_empty());
}

/// The processes in the server's network namespace.
fn inhabitants(lab: &Lab) -> Vec<u32> {
    let own = lab.within("server", || std::fs::read_link("/proc/thread-self/ns/net").expect("a namespace"));
    process::inhabitants(&own.expect("enter the server"))
}

/// Whether `condition` holds within ten seconds.
fn within(mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(10);
    while !condition() {
        if Instant::now() > end {
            return false;
        }
        sleep(Duration::from_millis(50));
    }
    true
}

//! A node with containers, as a container runtime and a container network make it, and its agent.
//!
//! The lab's server side is the node, with a bridge. A pod is a pause process in network, process, mount and control group namespaces of
//! its own, at whose interface a veth pair ends; its programs have no capability, and the agent's socket is mounted into it.

use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use overfly_bench::lab::Lab;
use overfly_testing::process::inhabitants;
use rustix::process::Signal;

use crate::service::agents_capabilities;
use crate::{Server, descendants, eventually, output, overfly, send, succeed};

/// Where pods have the folder of the agent's socket, but for those that have it where nobody needs to say it.
pub const MOUNTED: &str = "/dev/shm/agent";

/// In which control group a test makes others.
const PARENT: &str = "OVERFLY_TEST_GROUP";

/// Begins a test again on a machine of its own, as far as its processes see: one whose process 1 is the test. An agent in a container looks at
/// the node's process 1, and not every machine lets root do that. True in there.
///
/// # Panics
/// If the test fails there.
#[must_use]
pub fn on_own_machine(test: &str) -> bool {
    if std::process::id() == 1 {
        return true;
    }
    let group = Group::new();
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.arg(std::env::current_exe().expect("the test's path")).args([
        "--exact",
        test,
        "--nocapture",
        "--include-ignored",
    ]);
    let status = command.env(PARENT, &group.place).status().expect("start unshare");
    assert!(status.success(), "{test} in a process namespace of its own: {status}");
    false
}

/// A machine with a bridge.
#[derive(Debug)]
pub struct Node {
    /// Its server side is the node, its client side a host of the network.
    pub lab: Lab,
    /// What is mounted into pods.
    pub folder: tempfile::TempDir,
}

impl Node {
    /// Without pods.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it makes namespaces")]
    pub fn new() -> Node {
        let lab = Lab::new(overfly()).expect("a lab");
        for line in [
            "ip address flush dev eth0",
            "ip link add br0 type bridge",
            "ip link set br0 up",
            "ip link set eth0 master br0",
        ] {
            succeed(&lab, "server", &line.split(' ').collect::<Vec<_>>());
        }
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
        Node { lab, folder }
    }

    /// Where the agent listens.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("agent.sock")
    }

    /// The agent, once it listens, with the capabilities that its unit leaves it.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn agent(&self, policy: &str) -> Agent {
        let place = self.folder.path().join("broker.toml");
        std::fs::write(&place, policy).expect("write the policy");
        let said = tempfile::tempfile().expect("a file");
        let mut command = self.lab.command("server", "setpriv");
        command
            .args(["--no-new-privs", "--inh-caps=-all", "--bounding-set"])
            .arg(format!("-all,+{}", agents_capabilities().join(",+").to_lowercase()))
            .arg(overfly())
            .arg("broker")
            .arg(format!("--agent={}", self.socket().display()))
            .arg("--policy")
            .arg(place)
            .stdin(Stdio::null())
            .stderr(said.try_clone().expect("dup"));
        let agent = Agent { child: command.spawn().expect("start the agent"), said };
        eventually("the agent listens", || agent.log().contains("containers are served"));
        agent
    }

    /// A pod whose address is 10.77.0.`number`, with the folder of the socket mounted at `place`.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn pod(&self, number: u8, place: &str) -> Pod {
        let mut pause = self.lab.command("server", "unshare");
        pause.args(["--net", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--cgroup"]);
        let pause = pause.args(["sleep", "infinity"]).spawn().expect("start a pod");
        let mut inner = 0;
        eventually("the pod is there", || {
            let sleeps = |id: &u32| {
                std::fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| name == "sleep\n")
            };
            inner = descendants(pause.id()).into_iter().find(sleeps).unwrap_or_default();
            inner != 0
        });
        let group = Group::new();
        std::fs::write(group.place.join("cgroup.procs"), inner.to_string()).expect("enter the control group");
        let pod = Pod {
            pause,
            inner,
            group,
            host: format!("veth{number}"),
            address: format!("10.77.0.{number}"),
            place: place.to_owned(),
            socket_folder: self.folder.path().to_owned(),
        };
        let add = format!("ip link add {} type veth peer name eth0 netns {inner}", pod.host);
        for line in
            [add, format!("ip link set {} master br0", pod.host), format!("ip link set {} up", pod.host)]
        {
            succeed(&self.lab, "server", &line.split(' ').collect::<Vec<_>>());
        }
        for line in [
            "ip link set lo up".to_owned(),
            format!("ip address add {}/16 dev eth0", pod.address),
            "ip link set eth0 up".to_owned(),
            "mount -t sysfs sysfs /sys".to_owned(),
            "mount -t tmpfs tmpfs /dev/shm".to_owned(),
            "mount -t tmpfs tmpfs /run".to_owned(),
            format!("mkdir -p {place}"),
            format!("mount --bind {} {place}", self.folder.path().display()),
        ] {
            pod.done_by_root(&line);
        }
        pod
    }

    /// What a client on the network gets from there.
    #[must_use]
    pub fn fetched(&self, pod: &Pod, port: u16) -> String {
        let url = format!("http://{}:{port}/", pod.address);
        let output = output(&self.lab, "client", &["curl", "-sf", "--max-time", "5", &url]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Eight connections' load from a client on the network, which prints a report as JSON.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn load(&self, pod: &Pod, port: u16, duration: &str) -> Child {
        let mut command = self.lab.command("client", overfly());
        command.args(["load", "http", "--json", "-c", "8", "-d", duration, "--warmup", "0s"]);
        command.args(["--link", "kernel", &format!("http://{}:{port}/", pod.address)]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start load")
    }

    /// Fetches until connections are counted in the pod: a peer that the neighbour table lacks yet is the kernel's.
    ///
    /// # Panics
    /// If none are in time.
    pub fn is_accelerated(&self, pod: &Pod, port: u16, words: &str) {
        eventually(&format!("{} is accelerated", pod.address), || {
            self.fetched(pod, port) == words && pod.accepts() > 0
        });
    }
}

/// The agent's process, and what it says.
#[derive(Debug)]
pub struct Agent {
    /// The process.
    pub child: Child,
    said: File,
}

impl Agent {
    /// What it and its brokers have said.
    #[must_use]
    pub fn log(&self) -> String {
        text(&self.said)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A container, or several that share a network namespace.
#[derive(Debug)]
pub struct Pod {
    pause: Child,
    /// Its process 1, as the node numbers it.
    pub inner: u32,
    /// The veth pair's end at the bridge.
    pub host: String,
    /// Its address.
    pub address: String,
    place: String,
    /// The folder of the agent's socket, as the node has it.
    pub(crate) socket_folder: PathBuf,
    pub(crate) group: Group,
}

impl Pod {
    /// Its control group, as a policy names it.
    ///
    /// # Panics
    /// If the hierarchy of control groups is not mounted any more.
    #[must_use]
    pub fn group(&self) -> String {
        format!("/{}", self.group.place.strip_prefix(hierarchy()).expect("a group of it").display())
    }

    /// A command in the pod that has all capabilities.
    #[must_use]
    pub fn enter(&self) -> Command {
        let mut command = Command::new("sh");
        let script = format!("echo $$ > {}/cgroup.procs && exec nsenter \"$@\"", self.group.place.display());
        command.args(["-c", &script, "nsenter"]);
        command
            .arg(format!("--target={}", self.inner))
            .args(["--net", "--pid", "--mount", "--cgroup", "--wd=/", "--"]);
        command.stdin(Stdio::null());
        command
    }

    /// Which the runtime or the container network does before the pod's programs come. What it prints.
    ///
    /// # Panics
    /// If it fails.
    pub fn done_by_root(&self, line: &str) -> String {
        let output = self.enter().args(line.split(' ')).output().expect("start nsenter");
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A program of the pod's, as the last words of it: without any capability.
    #[must_use]
    pub fn command(&self, user: u32) -> Command {
        let mut command = self.enter();
        let user = user.to_string();
        command.args(["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"]);
        command.args(["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "env"]);
        if self.place == MOUNTED {
            command.arg(format!("OVERFLY_AGENT={MOUNTED}/agent.sock"));
        }
        command
    }

    /// Runs a program under `overfly run`.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn run(&self, user: u32, options: &[&str], words: &[&str]) -> Output {
        let mut command = self.command(user);
        command.arg(overfly()).arg("run").args(options).arg("--").args(words);
        command.output().expect("start overfly run")
    }

    /// nginx as a user, which answers with `words`.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn nginx(&self, user: u32, port: u16, words: &str) -> Server {
        self.nginx_with(user, port, words, "0")
    }

    /// The same with EF_NO_FAIL as it is given: with 1 it runs on the kernel where nobody serves it.
    ///
    /// # Panics
    /// As above.
    #[must_use]
    pub fn nginx_with(&self, user: u32, port: u16, words: &str, no_fail: &str) -> Server {
        let folder = format!("/dev/shm/nginx{port}");
        self.done_by_root(&format!("install -d -o {user} {folder}"));
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {folder}/{kind};"))
            .join(" ");
        let configuration = format!(
            "daemon off; worker_processes 1; pid {folder}/pid; error_log stderr;\n\
             events {{ worker_connections 512; }}\n\
             http {{ access_log off; {temporary}\n server {{ listen {port}; location / {{ return 200 '{words}'; }} }} }}\n"
        );
        std::fs::write(format!("/proc/{}/root{folder}/nginx.conf", self.inner), configuration)
            .expect("write");
        let mut command = self.command(user);
        command.arg(overfly()).args([
            "run",
            "--",
            "nginx",
            "-e",
            "stderr",
            "-c",
            &format!("{folder}/nginx.conf"),
        ]);
        command.env("EF_NO_FAIL", no_fail);
        Server::spawn_behind(command)
    }

    /// Connections that the pod's stacks have accepted, as root of the pod sees them.
    ///
    /// # Panics
    /// If `overfly top` cannot be started.
    #[must_use]
    pub fn accepts(&self) -> u64 {
        let mut command = self.enter();
        let output = command.arg(overfly()).args(["top", "--json", "--once", "--interval", "0.05"]).output();
        let look: serde_json::Value =
            serde_json::from_slice(&output.expect("start top").stdout).unwrap_or_default();
        let stacks = look["stacks"].as_array().into_iter().flatten();
        stacks.filter_map(|stack| stack["counters"]["sockets.accepts"].as_u64()).sum()
    }

    /// Whether an XDP program is attached to its interface.
    #[must_use]
    pub fn is_steered(&self) -> bool {
        self.done_by_root("ip -d link show dev eth0").contains("prog/xdp")
    }

    /// The brokers in its network namespace.
    #[must_use]
    pub fn brokers(&self) -> Vec<u32> {
        let namespace = std::fs::read_link(format!("/proc/{}/ns/net", self.inner)).unwrap_or_default();
        let is_broker = |id: &u32| {
            std::fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| name == "overfly-broker\n")
        };
        inhabitants(&namespace).into_iter().filter(is_broker).collect()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        // Its namespaces' other processes end with process 1.
        send(self.inner, Signal::KILL);
        let _ = self.pause.kill();
        let _ = self.pause.wait();
    }
}

/// A control group of this test's own, which goes with this value, or with the test's process however that ends.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) place: PathBuf,
    /// A process that waits for the end of its standard input, kills what is in the group, and takes it away.
    keeper: Child,
}

impl Group {
    fn new() -> Group {
        static MADE: AtomicU32 = AtomicU32::new(0);
        const KEEP: &str = "trap '' INT TERM HUP; read -r end
            echo 1 > \"$1/cgroup.kill\"
            for turn in $(seq 500); do
                find \"$1\" -depth -type d -exec rmdir {} + 2> /dev/null
                [ -d \"$1\" ] || exit 0
                sleep 0.02
            done
            echo \"$1 stays\" >&2; exit 1";
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let parent = std::env::var_os(PARENT).map_or_else(hierarchy, PathBuf::from);
        let place = parent.join(format!("overfly-test-{}-{number}", std::process::id()));
        let mut keeper = Command::new("setsid");
        keeper.args(["sh", "-c", KEEP, "keeper"]).arg(&place).stdin(Stdio::piped()).stdout(Stdio::null());
        // Before there is anything to take away.
        let keeper = keeper.spawn().expect("start a keeper");
        let group = Group { place, keeper };
        std::fs::create_dir(&group.place).expect("a control group");
        group
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// What was written to a file from its beginning, wherever its writers are.
pub(crate) fn text(file: &File) -> String {
    let mut bytes = vec![0; 65_536];
    let length = file.read_at(&mut bytes, 0).expect("read");
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

/// Where the second hierarchy of control groups is.
fn hierarchy() -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("/proc");
    let whole = mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let fields: Vec<&str> = mount.split(' ').collect();
        (kind.starts_with("cgroup2 ") && fields[3] == "/").then(|| PathBuf::from(fields[4]))
    });
    whole.expect("cgroup2 is mounted")
}

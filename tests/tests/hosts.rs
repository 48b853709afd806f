//! `overfly bench` with hosts that are reached by ssh: two namespaces, each with an sshd of its own, seen from a third. Needs root,
//! nginx, sshd, ssh, ssh-keygen and ssh-agent.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use overfly_bench::lab::{Lab, ROUTED_CLIENT, ROUTED_SERVER};
use overfly_tests::{eventually, output, overfly};
use serde_json::Value;

/// A server and a generator, each on a host, and what they are reached from: `middle`.
struct Hosts {
    // Ended before the lab goes.
    daemons: Vec<Child>,
    lab: Lab,
    /// Keys, the plan and its results.
    folder: tempfile::TempDir,
}

/// What a session could leave changed on a host.
#[derive(Debug, PartialEq, Eq)]
struct State {
    files: Vec<String>,
    somaxconn: String,
    huge_pages: String,
    processes: BTreeSet<String>,
}

const HOSTS: [(&str, std::net::Ipv4Addr); 2] = [("server", ROUTED_SERVER), ("client", ROUTED_CLIENT)];

/// The first lines of what stands for a host's own files. What belongs to the whole machine is a file here, so that the machine
/// under the test stays as it is.
const HOST: &str = "
set -e
for folder in /run /tmp /var/lib; do mount -t tmpfs none $folder; done
mkdir /run/sshd /run/keys
echo 7 > /run/pages
mount --bind /run/pages /proc/sys/vm/nr_hugepages
for limit in nr_open file-max; do
    echo 9000000000 > /run/$limit
    mount --bind /run/$limit /proc/sys/fs/$limit
done
echo 1000 > /proc/sys/net/core/somaxconn
ssh-keygen -q -t ed25519 -N '' -f /run/keys/host
cat > /run/keys/config <<END
HostKey /run/keys/host
AuthorizedKeysFile /run/keys/authorized
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
END
cat /run/keys/host.pub
";

impl Hosts {
    fn new() -> Hosts {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let keygen = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(path("key"))
            .status();
        assert!(keygen.expect("start ssh-keygen").success());
        let lab = Lab::routed(overfly()).expect("a lab");
        let mut daemons = Vec::new();
        let mut known = String::new();
        for (side, address) in HOSTS {
            let made = output(&lab, side, &["sh", "-c", HOST]);
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            known += &format!("{address} {}", String::from_utf8_lossy(&made.stdout));
            let key = fs::read(path("key.pub")).expect("the public key");
            lab.write(side, "/run/keys/authorized", &key).expect("write the key");
            let mut sshd = lab.command(side, "/usr/sbin/sshd");
            sshd.args(["-D", "-e", "-f", "/run/keys/config"]).stderr(Stdio::null());
            daemons.push(sshd.spawn().expect("start sshd"));
            eventually("sshd listens", || {
                let table = lab.within(side, || fs::read_to_string("/proc/thread-self/net/tcp"));
                table.expect("enter").expect("read").contains(":0016 ")
            });
        }
        fs::write(path("known"), known).expect("write");
        // One host by a key in a file, the other one by an agent that has it.
        let agent =
            Command::new("ssh-agent").arg("-D").arg("-a").arg(path("agent")).stdout(Stdio::null()).spawn();
        daemons.push(agent.expect("start ssh-agent"));
        eventually("the agent listens", || path("agent").exists());
        let added =
            Command::new("ssh-add").arg("-q").arg(path("key")).env("SSH_AUTH_SOCK", path("agent")).status();
        assert!(added.expect("start ssh-add").success());
        let config = format!(
            "Host server\n HostName {ROUTED_SERVER}\n IdentityFile {0}/key\n IdentityAgent none\n\
             Host client\n HostName {ROUTED_CLIENT}\n IdentityFile {0}/none\n IdentityAgent {0}/agent\n\
             Host nobody\n HostName 10.77.2.99\n\
             Host *\n User root\n UserKnownHostsFile {0}/known\n GlobalKnownHostsFile none\n",
            folder.path().display()
        );
        fs::write(path("ssh_config"), config).expect("write");
        let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads/nginx/nginx.conf");
        fs::copy(template, path("nginx.conf")).expect("copy nginx.conf");
        fs::create_dir(path("tmp")).expect("make a folder");
        Hosts { daemons, lab, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `overfly bench`, with a plan that was changed.
    fn bench(&self, changes: &[(&str, &str)]) -> Command {
        let plan = changes.iter().fold(PLAN.to_owned(), |plan, (from, to)| {
            assert!(plan.contains(from), "{from}");
            plan.replacen(from, to, 1)
        });
        self.bench_of(&plan)
    }

    fn bench_of(&self, plan: &str) -> Command {
        fs::write(self.path("plan.toml"), plan).expect("write a plan");
        let mut command = self.lab.command("middle", overfly());
        command.arg("bench").arg("plan.toml").args(["--output", "results"]);
        command.env("TMPDIR", self.path("tmp")).current_dir(self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn state(&self, side: &str, daemon: &Child) -> State {
        let find =
            output(&self.lab, side, &["find", "/tmp", "/dev/shm", "/var/lib", "/run", "-mindepth", "1"]);
        let mut files: Vec<String> =
            String::from_utf8_lossy(&find.stdout).lines().map(str::to_owned).collect();
        files.sort();
        let read = |path: &str| {
            let text = output(&self.lab, side, &["cat", path]);
            String::from_utf8_lossy(&text.stdout).trim().to_owned()
        };
        let network =
            |process: &str| fs::metadata(format!("/proc/{process}/ns/net")).map(|its| its.ino()).ok();
        let theirs = network(&daemon.id().to_string());
        let processes = fs::read_dir("/proc").expect("read /proc").flatten();
        let processes = processes
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()) && network(name) == theirs)
            .map(|process| {
                format!(
                    "{process} {}",
                    fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default().trim()
                )
            })
            .collect();
        State {
            files,
            somaxconn: read("/proc/sys/net/core/somaxconn"),
            huge_pages: read("/proc/sys/vm/nr_hugepages"),
            processes,
        }
    }

    fn states(&self) -> [State; 2] {
        [self.state("server", &self.daemons[0]), self.state("client", &self.daemons[1])]
    }

    /// Waits until both hosts, and the folder for what is here for a while, are as they were.
    fn await_states(&self, before: &[State; 2]) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let now = self.states();
            let left: Vec<_> =
                fs::read_dir(self.path("tmp")).expect("read").flatten().map(|its| its.path()).collect();
            if now == *before && left.is_empty() {
                return;
            }
            assert!(Instant::now() < end, "before: {before:#?}\nnow: {now:#?}\nleft here: {left:?}");
            sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

const PLAN: &str = r#"
title = "hosts"
modes = ["kernel-as-found", "overfly"]
links = ["xdp"]
payload_bytes = [1024]
connections = ["keepalive"]
repeats = 1
warmup_s = 0.1
duration_s = 0.5
tune = true

[hosts.server]
ssh = "server"
ssh_config = "ssh_config"
address = "10.77.1.1"

[hosts.client]
ssh = "client"
ssh_config = "ssh_config"

[server]
host = "server"
program = "nginx"
arguments = ["-e", "stderr", "-p", "@ROOT@", "-c", "@CONFIG@"]
config = "nginx.conf"
cpu = 0
start_s = 60

[client]
host = "client"
connections = 4
cpu = 0
"#;

#[test]
fn a_plan_is_carried_out_on_two_hosts_and_nothing_is_left_there() {
    let hosts = Hosts::new();
    let before = hosts.states();
    assert_eq!((before[0].somaxconn.as_str(), before[0].huge_pages.as_str()), ("1000", "7"), "{before:?}");
    let bench = hosts.bench(&[]).output().expect("start overfly");
    let said = String::from_utf8_lossy(&bench.stderr).into_owned();
    assert!(bench.status.success(), "{said}");
    // At once: the command waits until all is put back.
    assert_eq!(hosts.states(), before, "{said}");
    hosts.await_states(&before);

    let text = fs::read_to_string(hosts.path("results/summary.json")).expect("a summary");
    let summary: Value = serde_json::from_str(&text).expect("JSON");
    let cell = &summary["cells"][0];
    for mode in ["kernel_as_found", "overfly"] {
        let figure = &cell[mode];
        assert!(figure["median"].as_f64().is_some_and(|rate| rate > 1.0), "{mode}: {summary}");
        assert!(figure["server_cpu_us_per_request"].as_f64().is_some_and(|us| us > 0.0), "{figure}");
        assert!(figure["server_core_busy_percent"].as_f64().is_some_and(|busy| busy > 0.0), "{figure}");
    }
    let tuned = summary["environment"]["tuned"].to_string();
    for host in ["server", "client"] {
        assert!(tuned.contains(&format!("{host}: /proc/sys/net/core/somaxconn: 1000 -> 65535")), "{tuned}");
        assert!(tuned.contains(&format!("{host}: /proc/sys/vm/nr_hugepages: 7 -> 1024")), "{tuned}");
    }
    assert!(summary["environment"]["server_version"].to_string().contains("nginx"), "{summary}");
    let report = fs::read_to_string(hosts.path("results/report.md")).expect("a report");
    assert!(report.contains("on server and on client") && report.contains("| tuned | server: "), "{report}");
}

/// The cookbook for two machines and a cable, as far as two namespaces can show it.
#[test]
fn the_cookbook_for_an_adapter_works() {
    let hosts = Hosts::new();
    let before = hosts.states();
    let cookbook = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cookbooks/nic.toml");
    let plan = fs::read_to_string(cookbook).expect("the cookbook");
    let plan = [
        ("ssh = \"root@10.0.0.1\"\n", "ssh = \"server\"\nssh_config = \"ssh_config\"\n".to_owned()),
        ("address = \"10.0.0.1\"", format!("address = \"{ROUTED_SERVER}\"")),
        // This machine would be `middle`, which is on no cable.
        (
            "[hosts.generator]\n",
            "[hosts.generator]\nssh = \"client\"\nssh_config = \"ssh_config\"\n".to_owned(),
        ),
        ("../workloads/nginx/", String::new()),
    ]
    .into_iter()
    .fold(plan, |plan, (from, to)| {
        assert!(plan.contains(from), "{from}");
        plan.replace(from, &to)
    });
    let bench = hosts.bench_of(&plan).arg("--smoke").output().expect("start overfly");
    let said = String::from_utf8_lossy(&bench.stderr).into_owned();
    assert!(bench.status.success(), "{said}");
    hosts.await_states(&before);
    let text = fs::read_to_string(hosts.path("results/summary.json")).expect("a summary");
    let summary: Value = serde_json::from_str(&text).expect("JSON");
    let cells = summary["cells"].as_array().expect("cells");
    assert_eq!(cells.len(), 4, "the ends of each axis: {summary}");
    for cell in cells {
        for mode in ["kernel_as_found", "kernel", "overfly"] {
            assert!(cell[mode]["median"].as_f64().is_some_and(|rate| rate > 1.0), "{mode}: {cell}");
        }
    }
}

#[test]
fn killed_in_the_middle_it_leaves_nothing_on_any_host() {
    let hosts = Hosts::new();
    let before = hosts.states();
    for signal in ["KILL", "TERM"] {
        let mut bench = hosts
            .bench(&[("duration_s = 0.5", "duration_s = 300"), ("\"kernel-as-found\", ", "")])
            .spawn()
            .expect("start");
        let end = Instant::now() + Duration::from_secs(120);
        loop {
            let [server, client] = hosts.states();
            let load = |state: &State, name: &str| state.processes.iter().any(|its| its.ends_with(name));
            if load(&server, " nginx")
                && client.processes.iter().filter(|its| its.ends_with(" overfly")).count() > 1
            {
                assert_eq!((server.somaxconn.as_str(), client.huge_pages.as_str()), ("65535", "1024"));
                assert!(server.files.iter().any(|file| file == "/var/lib/overfly/tune.jsonl"), "{server:?}");
                break;
            }
            assert!(
                Instant::now() < end && bench.try_wait().is_ok_and(|ended| ended.is_none()),
                "{server:?} {client:?}"
            );
            sleep(Duration::from_millis(100));
        }
        let killed = Command::new("kill").args(["-s", signal, &bench.id().to_string()]).status();
        assert!(killed.expect("start kill").success());
        assert!(!bench.wait().expect("wait").success());
        // The folder of a tuned host stays, empty.
        hosts.await_states(&before);
    }
}

#[test]
fn a_host_that_cannot_do_its_part_is_named_and_nothing_is_changed() {
    let hosts = Hosts::new();
    let before = hosts.states();
    for (changes, named) in [
        (
            &[("ssh = \"client\"", "ssh = \"nobody\"")][..],
            "plan.toml:18: hosts.client.ssh = \"nobody\": ssh: connect to host 10.77.2.99",
        ),
        (
            &[("\"nginx\"", "\"no-such-server\"")],
            "plan.toml:23: server.program = \"no-such-server\": there is no such program on the PATH of server",
        ),
        (
            &[("address", "interface = \"eth7\"\naddress")],
            "plan.toml:15: hosts.server.interface = \"eth7\": there is no such network interface",
        ),
        (&[("cpu = 0", "cpu = 900")], "plan.toml:26: server.cpu = 900: server has cores 0 to "),
    ] {
        let bench = hosts.bench(changes).output().expect("start overfly");
        let said = String::from_utf8_lossy(&bench.stderr).into_owned();
        assert_eq!(bench.status.code(), Some(2), "{said}");
        assert!(said.contains(named), "{said}");
        hosts.await_states(&before);
    }
}

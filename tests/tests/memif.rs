//! nginx over shared memory, with nobody's rights from end to end: `overfly run --link memif:…` and `overfly load` as its
//! client. The lab is only there to have the port and the folder for each test alone.

use std::process::{Command, Output, Stdio};

use overfly_bench::lab::Lab;
use overfly_testing::process;
use overfly_tests::steady::{self, Steady};
use overfly_tests::{Random, Server, alive, descendants, eventually, overfly, send, succeed, titled};
use rustix::process::Signal;
use serde_json::Value;

/// Everything is here: the commands, what nginx serves and writes, and the socket.
const FOLDER: &str = "/dev/shm/memif";
const LINK: &str = "memif:/dev/shm/memif/socket";
const URL: &str = "http://10.77.0.1:8080";
/// The user and group `nobody`.
const NOBODY: &str = "65534";
const SIZES: [usize; 4] = [0, 1024, 10_000, 1_000_000];

/// A folder that is nobody's, with the commands and nginx's configuration for two workers in it.
fn lab() -> Lab {
    let lab = Lab::new(overfly()).expect("a lab");
    let config = "worker_processes 2;\ndaemon off;\npid FOLDER/nginx.pid;\nerror_log stderr warn;\n\
        events { worker_connections 4096; }\n\
        http {\n    log_format worker '$pid';\n    access_log FOLDER/served worker;\n\
            client_body_temp_path FOLDER/1;\n    proxy_temp_path FOLDER/2;\n    fastcgi_temp_path FOLDER/3;\n\
            uwsgi_temp_path FOLDER/4;\n    scgi_temp_path FOLDER/5;\n    keepalive_requests 1000000;\n\
            server {\n        listen 8080 reuseport;\n        root FOLDER;\n    }\n}\n";
    lab.write("server", format!("{FOLDER}/nginx.conf"), config.replace("FOLDER", FOLDER).as_bytes())
        .expect("write nginx.conf");
    for size in SIZES {
        let bytes = Random(size as u64).bytes(size);
        lab.write("server", format!("{FOLDER}/{size}"), &bytes).expect("write a file");
    }
    // Nobody may be kept out of where they were built.
    let built = overfly().parent().expect("a folder").display().to_string();
    let command =
        format!("cp {built}/overfly {built}/liboverfly.so {FOLDER} && chown -R {NOBODY}:{NOBODY} {FOLDER}");
    succeed(&lab, "server", &["sh", "-c", &command]);
    lab
}

/// A command of nobody's.
fn unprivileged(lab: &Lab, words: &[&str]) -> Command {
    let mut command = lab.command("server", "setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--no-new-privs", "--"]);
    command.args(words).stdin(Stdio::null());
    command
}

fn nginx(lab: &Lab) -> Server {
    let program = format!("{FOLDER}/overfly");
    let config = format!("{FOLDER}/nginx.conf");
    let words = [&program, "run", "--link", LINK, "--", "nginx", "-e", "stderr", "-c", &config];
    let server = Server::spawn(unprivileged(lab, &words));
    eventually("two workers, and the socket", || {
        titled(server.id(), "nginx: worker process").len() == 2
            && lab
                .within("server", || std::fs::exists(format!("{FOLDER}/socket")).is_ok_and(|there| there))
                .expect("look")
    });
    server
}

/// `overfly load http` over memif, with JSON.
fn load(lab: &Lab, options: &[&str], path: &str) -> Command {
    let (program, url) = (format!("{FOLDER}/overfly"), format!("{URL}/{path}"));
    let mut words = vec![program.as_str(), "load", "http", "--link", LINK, "--json"];
    words.extend(options);
    words.push(&url);
    unprivileged(lab, &words)
}

#[track_caller]
fn report(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    text
}

/// Requests that must all succeed, from as many clients as there are workers.
#[track_caller]
fn all_succeed(lab: &Lab, options: &[&str], path: &str) {
    // Another host than the load that goes on beside it.
    let options = [&["--address", "10.77.0.3/24", "-t", "2", "-c", "16", "-n", "2000"], options].concat();
    let json = report(&load(lab, &options, path).output().expect("start the generator"));
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let errors = &json["errors"];
    assert_eq!(json["succeeded"], 2000, "{errors} {options:?} /{path}: {json}");
}

/// How often the generator's threads had to look for another server process.
fn reconnections(report: &Value) -> u64 {
    report["counters"]["link.reconnections"].as_u64().expect("a counter")
}

/// The workers that have served requests so far, the last one last.
fn served(lab: &Lab) -> Vec<u32> {
    let text =
        lab.within("server", || std::fs::read_to_string(format!("{FOLDER}/served")).unwrap_or_default());
    steady::served(&text.expect("enter the side"))
}

/// A load of small files.
fn steady(lab: &Lab, options: &[&str]) -> Steady {
    Steady::start(load(lab, &[&["-t", "2", "-c", "8", "-R", "400", "-d", "600s"], options].concat(), "1024"))
}

#[track_caller]
fn nothing_is_left(lab: &Lab) {
    let seen = succeed(lab, "server", &["sh", "-c", &format!("ss -lxH; ss -ltnH; ls {FOLDER}")]);
    assert!(
        !seen.contains("socket") && !seen.contains(":8080") && !seen.contains("overfly-"),
        "left behind: {seen}"
    );
}

#[test]
fn every_byte_is_right_and_nobody_has_privilege() {
    let lab = lab();
    let server = nginx(&lab);
    for id in descendants(server.id()).into_iter().chain([server.id()]) {
        assert_eq!(process::status(id, "CapPrm"), "0000000000000000");
        let users = process::status(id, "Uid");
        assert!(!users.is_empty() && users.split_whitespace().all(|user| user == NOBODY), "{users}");
    }
    for size in SIZES {
        let (size, file) = (size.to_string(), format!("{FOLDER}/{size}"));
        let digest = succeed(&lab, "server", &["sha256sum", &file]);
        let digest = digest.split(' ').next().expect("a digest");
        for close in [&[][..], &["--close"]] {
            let options =
                [&["--expect-size", &size, "--expect-sha256", digest, "--expect-status", "200"], close]
                    .concat();
            all_succeed(&lab, &options, &size);
        }
    }
    let workers = titled(server.id(), "nginx: worker process");
    let served = served(&lab);
    assert!(workers.iter().all(|worker| served.contains(worker)), "{workers:?} serve");
    assert_eq!(served.len(), 2000 * 2 * SIZES.len());
    // The same listener, over the kernel.
    succeed(&lab, "server", &["curl", "-sf", "-o", "/dev/null", "http://127.0.0.1:8080/1024"]);
    server.stop();
    nothing_is_left(&lab);
}

#[test]
fn a_reload_under_load_moves_the_clients_to_the_new_workers() {
    for close in [&[][..], &["--close"]] {
        let lab = lab();
        let server = nginx(&lab);
        let load = steady(&lab, close);
        let config = format!("{FOLDER}/nginx.conf");
        for _ in 0..3 {
            let before = titled(server.id(), "nginx: worker process");
            eventually("they serve", || served(&lab).last().is_some_and(|worker| before.contains(worker)));
            let reload =
                unprivileged(&lab, &["nginx", "-e", "stderr", "-c", &config, "-s", "reload"]).output();
            report(&reload.expect("start nginx -s reload"));
            eventually("the old workers end", || before.iter().all(|&worker| !alive(worker)));
        }
        let after = titled(server.id(), "nginx: worker process");
        eventually("the new ones serve", || served(&lab).last().is_some_and(|worker| after.contains(worker)));
        let json = load.end();
        assert!(reconnections(&json) >= 6, "three for each thread: {json}");
        all_succeed(&lab, close, "10000");
        server.stop();
        nothing_is_left(&lab);
    }
}

#[test]
fn a_worker_that_is_killed_costs_its_connections_and_no_more() {
    let lab = lab();
    let server = nginx(&lab);
    let load = steady(&lab, &["--timeout", "60s"]);
    for _ in 0..2 {
        let workers = || titled(server.id(), "nginx: worker process");
        eventually("the load is served", || {
            served(&lab).last().is_some_and(|worker| workers().contains(worker))
        });
        let victim = *served(&lab).last().expect("one that serves");
        send(victim, Signal::KILL);
        eventually("another in its place", || workers().len() == 2 && !workers().contains(&victim));
        let before = served(&lab).len();
        eventually("others serve", || served(&lab).len() > before + 100);
        assert!(!served(&lab)[before..].contains(&victim));
        all_succeed(&lab, &[], "1024");
    }
    let json = load.end();
    assert!((2..=4).contains(&reconnections(&json)), "{json}");
    assert_eq!(
        (&json["failed"]["timeout"], &json["failed"]["connect_timeout"]),
        (&0.into(), &0.into()),
        "failures are told at once: {json}"
    );
    assert!(json["failed_total"].as_u64() <= Some(16), "the connections that there were, twice: {json}");
    server.stop();
    nothing_is_left(&lab);
}

#[test]
fn killed_anywhere_it_leaves_nothing_and_starts_again() {
    let lab = lab();
    for victim in ["overfly", "nginx: master process"] {
        let mut server = nginx(&lab);
        let family = descendants(server.id());
        let victim = if victim == "overfly" { server.id() } else { titled(server.id(), victim)[0] };
        send(victim, Signal::KILL);
        eventually("the rest ends", || server.ended() && family.iter().all(|&id| !alive(id)));
        nothing_is_left(&lab);
    }
    let server = nginx(&lab);
    all_succeed(&lab, &[], "1024");
    server.stop();
    nothing_is_left(&lab);
}

/// A server, its client, and what the client found.
const SELF_SERVED: &str = r"
import http.client, http.server, os, signal, socket, time
listener = http.server.HTTPServer(('', 8081), http.server.SimpleHTTPRequestHandler)
child = os.fork()
if child == 0:
    listener.serve_forever()
def connected(address):
    # Nobody is there before the server waits for connections.
    for _ in range(1000):
        try:
            return socket.create_connection((address, 8081), timeout=9)
        except ConnectionRefusedError:
            time.sleep(0.01)
try:
    for address in ('10.77.0.1', '127.0.0.1'):
        client = http.client.HTTPConnection(address)
        client.sock = connected(address)
        ends = client.sock.getpeername(), client.sock.getsockname()[0]
        client.request('GET', '/')
        print(client.getresponse().status, *ends)
    socket.create_connection(('10.77.0.1', 9), timeout=9)
except ConnectionRefusedError:
    print('refused at once')
finally:
    os.kill(child, signal.SIGKILL)
    os.wait()
";

/// No kernel has the program's address, and still it finds itself there, as on any host.
#[test]
fn a_program_reaches_its_own_address() {
    let lab = lab();
    let words = [&format!("{FOLDER}/overfly"), "run", "--link", LINK, "--", "python3", "-c", SELF_SERVED];
    let output = unprivileged(&lab, &words).env("EF_NO_FAIL", "0").output().expect("start overfly run");
    let expected = "200 ('10.77.0.1', 8081) 10.77.0.1\n200 ('127.0.0.1', 8081) 127.0.0.1\nrefused at once\n";
    assert_eq!(report(&output), expected);
    nothing_is_left(&lab);
}

/// What nobody else could carry is said to be the kernel's for that reason.
#[test]
fn a_listener_at_loopback_is_the_kernels() {
    let lab = lab();
    let script =
        "import select, socket; select.select([socket.create_server(('127.0.0.1', 8082))], [], [], 0)";
    let words = [&format!("{FOLDER}/overfly"), "run", "--link", LINK, "--", "python3", "-c", script];
    let output = unprivileged(&lab, &words).env("OVERFLY_STATS", "1").output().expect("start overfly run");
    report(&output);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("left to the kernel: loopback 1\n"), "{said}");
    nothing_is_left(&lab);
}

/// A plan for the bench, with so many seconds a run.
fn plan(lab: &Lab, modes: &str, duration_s: f64) {
    let template = concat!(env!("CARGO_MANIFEST_DIR"), "/../workloads/nginx/nginx.conf");
    let template = std::fs::read(template).expect("a template");
    let plan = format!(
        "title = \"t\"\nmodes = {modes}\nlinks = [\"memif\"]\npayload_bytes = [1024]\nconnections = [\"close\"]\n\
         repeats = 1\nwarmup_s = 0.1\nduration_s = {duration_s:?}\n[server]\nprogram = \"nginx\"\n\
         arguments = [\"-e\", \"stderr\", \"-p\", \"@ROOT@\", \"-c\", \"@CONFIG@\"]\nconfig = \"bench.conf\"\ncpu = 0\n\
         [client]\nconnections = 4\ncpu = 0\n"
    );
    lab.write("server", format!("{FOLDER}/bench.conf"), &template).expect("write the template");
    lab.write("server", format!("{FOLDER}/plan.toml"), plan.as_bytes()).expect("write the plan");
}

fn bench(lab: &Lab) -> Command {
    let (program, plan, output) =
        (format!("{FOLDER}/overfly"), format!("{FOLDER}/plan.toml"), format!("{FOLDER}/results"));
    unprivileged(lab, &[&program, "bench", &plan, "--output", &output])
}

#[test]
fn the_bench_compares_with_the_loopback_and_leaves_nothing() {
    let lab = lab();
    let folders = || succeed(&lab, "server", &["ls", "/dev/shm"]);
    let before = folders();
    plan(&lab, "[\"kernel\", \"overfly\"]", 0.5);
    let table = report(&bench(&lab).output().expect("start the bench"));
    assert!(table.contains("kernel, loopback") && table.contains("overfly, memif"), "{table}");
    assert_eq!(folders(), before);
    for mode in ["[\"kernel\"]", "[\"overfly\"]"] {
        plan(&lab, mode, 60.0);
        let mut bench = Steady::start(bench(&lab));
        let mut family = Vec::new();
        eventually("server and generator run", || {
            family = descendants(bench.id());
            let is_load = |id: &u32| {
                std::fs::read(format!("/proc/{id}/cmdline"))
                    .is_ok_and(|line| line.windows(10).any(|word| word == b"load\0http\0"))
            };
            family.iter().any(is_load) && !titled(bench.id(), "nginx: worker process").is_empty()
        });
        send(bench.id(), Signal::KILL);
        bench.wait();
        eventually("its processes end", || family.iter().all(|&id| !alive(id)));
        eventually("its folder goes", || folders() == before);
    }
}

#[test]
fn what_an_administrator_set_and_is_not_followed_is_named_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |setting: &str| {
        let script =
            format!("echo reno > /proc/sys/net/ipv4/tcp_congestion_control; {setting}; exec \"$0\" \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["-n", "sh", "-c", &script]).arg(overfly()).args(["run", "--link"]);
        command.arg(format!("memif:{}/socket", folder.path().display())).arg("true");
        let output = command.output().expect("run a command");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(run("true"), (Some(0), String::new()));
    let (code, said) =
        run("echo 10 > /proc/sys/net/ipv4/tcp_reordering; echo 2 > /proc/sys/net/ipv4/tcp_mtu_probing");
    assert_eq!(code, Some(0));
    let named = "do not follow net.ipv4.tcp_reordering=10, net.ipv4.tcp_mtu_probing=2 (as 1) (docs/tcp.md)";
    assert!(said.lines().count() == 1 && said.contains(named), "{said}");
}

//! `cargo xtask within-host`: what programs of one host gain by meeting at user level instead of over the kernel's loopback.

use std::process::{Command, ExitCode, Stdio};

use overfly_bench::lab::{Lab, SCRATCH};
use overfly_bench::statistics::median;
use overfly_tests::measured::Rounds;
use overfly_tests::{Server, eventually, overfly};

const USAGE: &str = "usage: cargo xtask within-host [--repeats N] [--seconds N]";

/// How the two programs meet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Kernel,
    /// Both under `overfly run`, with these options instead of the profile's.
    Overfly(&'static [(&'static str, &'static str)]),
}

/// Requests a second of two programs in a lab, under Overfly or not, over so many seconds.
type Measure = fn(&Lab, bool, u32) -> f64;

/// Shares its core with another program: what has nothing to do sleeps at once.
const SLEEPING: Way = Way::Overfly(&[("EF_POLL_USEC", "0")]);

fn main() -> ExitCode {
    let Some(rounds) = Rounds::parse(std::env::args().skip(1)) else {
        eprintln!("within-host: {USAGE}");
        return ExitCode::from(2);
    };
    println!("| programs | kernel, requests/s | Overfly, requests/s | gain | points |");
    println!("|---|---|---|---|---|");
    let pairs: [(&str, Measure); 3] = [
        ("redis-benchmark and Redis, GET", redis),
        ("wrk and nginx, 1 KB", wrk_and_nginx),
        ("nginx and the nginx behind it, 1 KB", proxy),
    ];
    for (name, measure) in pairs {
        let [kernel, ours] = rounds.in_turns(|way| {
            let lab = Lab::new(overfly()).expect("a lab");
            measure(&lab, way == 1, rounds.seconds)
        });
        let gains: Vec<String> =
            kernel.iter().zip(&ours).map(|(kernel, ours)| format!("{:.2}", ours / kernel)).collect();
        let (kernel, ours) = (median(kernel.into_iter()), median(ours.into_iter()));
        println!("| {name} | {kernel:.0} | {ours:.0} | {:.2} | {} |", ours / kernel, gains.join(" "));
    }
    ExitCode::SUCCESS
}

/// 50 connections, one request under way on each.
fn redis(lab: &Lab, accelerated: bool, seconds: u32) -> f64 {
    let way = if accelerated { Way::Overfly(&[]) } else { Way::Kernel };
    let mut command = program(lab, way, 0, "redis-server");
    command.args(["--save", "", "--appendonly", "no", "--dir", SCRATCH]).stdout(Stdio::null());
    let server = Server::spawn(command);
    eventually("Redis answers", || {
        lab.command("server", "redis-cli").arg("ping").output().is_ok_and(|output| output.status.success())
    });
    let ask = |requests: f64| {
        let mut command = program(lab, way, 1, "redis-benchmark");
        command.args(["-t", "get", "-c", "50", "-q", "-n", &format!("{requests:.0}")]);
        figure(command, |line| line.strip_prefix("GET: ")?.split_once(" requests per second")?.0.parse().ok())
    };
    let per_s = ask(ask(50_000.0) * f64::from(seconds));
    server.stop();
    per_s
}

fn wrk_and_nginx(lab: &Lab, accelerated: bool, seconds: u32) -> f64 {
    let way = if accelerated { Way::Overfly(&[]) } else { Way::Kernel };
    let server = nginx(lab, way, 0, 80, "");
    let per_s = wrk(lab, way, seconds);
    server.stop();
    per_s
}

/// wrk is a kernel program either way, on the core of the nginx behind: only the connections between the two nginx differ.
fn proxy(lab: &Lab, accelerated: bool, seconds: u32) -> f64 {
    let (front, behind) =
        if accelerated { (Way::Overfly(&[]), SLEEPING) } else { (Way::Kernel, Way::Kernel) };
    let behind = nginx(lab, behind, 1, 8080, "");
    let front = nginx(lab, front, 0, 80, "location / { proxy_pass http://behind; }");
    let per_s = wrk(lab, Way::Kernel, seconds);
    front.stop();
    behind.stop();
    per_s
}

/// A program on a core; under Overfly with a memif link that nobody uses.
fn program(lab: &Lab, way: Way, core: usize, name: &str) -> Command {
    let mut command = match way {
        Way::Kernel => lab.pinned("server", name, core),
        Way::Overfly(options) => {
            let mut command = lab.pinned("server", overfly(), core);
            command.args(["run", "-p", "performance", "--link", &format!("memif:@within-host-{core}")]);
            command.args(["--", name]).envs(options.iter().copied());
            command
        }
    };
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command
}

/// One worker, which has a file of 1,024 bytes and keeps its connections to whatever is behind it.
fn nginx(lab: &Lab, way: Way, core: usize, port: u16, more: &str) -> Server {
    let root = format!("{SCRATCH}/{port}");
    let template = concat!(env!("CARGO_MANIFEST_DIR"), "/../workloads/nginx/nginx.conf");
    let config = std::fs::read_to_string(template)
        .expect("workloads/nginx/nginx.conf")
        .replace("@ROOT@", &root)
        .replace("@PORT@", &port.to_string())
        .replace("@WORKERS@", "1")
        .replace(
            "    server {",
            &format!(
                "upstream behind {{ server 127.0.0.1:8080; keepalive 128; }}\n\
                 proxy_http_version 1.1;\nproxy_set_header Connection '';\nserver {{ {more}"
            ),
        );
    lab.write("server", format!("{root}/nginx.conf"), config.as_bytes()).expect("write nginx.conf");
    lab.write("server", format!("{root}/www/1024"), &[b'x'; 1024]).expect("write a file");
    let mut command = program(lab, way, core, "nginx");
    command.args(["-e", "stderr", "-c", &format!("{root}/nginx.conf")]);
    let server = Server::spawn(command);
    let url = format!("http://127.0.0.1:{port}/1024");
    eventually("nginx answers", || {
        lab.command("server", "curl")
            .args(["-sf", &url])
            .output()
            .is_ok_and(|output| output.stdout.len() == 1024)
    });
    server
}

/// 64 connections that stay open.
fn wrk(lab: &Lab, way: Way, seconds: u32) -> f64 {
    let mut command = program(lab, way, 1, "wrk");
    command.args(["-t1", "-c64", &format!("-d{seconds}s"), "http://127.0.0.1/1024"]);
    figure(command, |line| line.strip_prefix("Requests/sec:")?.trim().parse().ok())
}

/// The last line that `read` understands of what a generator prints.
fn figure(mut generator: Command, read: impl Fn(&str) -> Option<f64>) -> f64 {
    let output = generator.output().expect("a generator");
    let text = String::from_utf8_lossy(&output.stdout);
    text.rsplit(['\n', '\r']).find_map(read).unwrap_or_else(|| panic!("no figure in: {text}"))
}

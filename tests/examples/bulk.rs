//! `cargo xtask bulk`: what large transfers over veth gain or lose by Overfly, and by segments that leave together.
//!
//! Server on one core, client on the other, three ways in turns: the kernel's stack, Overfly with a frame for each segment
//! (EF_SEGMENT_OFFLOAD=0, EF_RECEIVE_OFFLOAD=1), and Overfly as it is. The client is on kernel sockets, with its offloads, or on Overfly's
//! own link, which gets each segment in a packet or several together. In one row both ends of iperf3 are carried as the server is, in two
//! the client alone, and in one both are the kernel's, and Overfly's program is only there.

use std::process::{Command, ExitCode, Stdio};

use overfly_bench::lab::{DEVICE, Lab, SERVER};
use overfly_bench::statistics::median;
use overfly_tests::measured::Rounds;
use overfly_tests::{ROOT, Server, eventually, overfly};
use serde_json::Value;

const USAGE: &str = "usage: cargo xtask bulk [--row TEXT] [--repeats N] [--seconds N]";
const SERVER_CPU: usize = 0;
const CLIENT_CPU: usize = 1;
const CONNECTIONS: &str = "64";
/// Bytes of nginx's files.
const SIZES: [usize; 5] = [0, 1024, 10_000, 100_000, 5_000_000];
/// What is larger comes in several segments.
const FRAME: usize = 1448;
/// The client's link, which gets several segments together.
const TOGETHER: &str = "xdp, segments";
/// Bytes of memcached's values.
const VALUES: [usize; 3] = [100, 1024, 4096];

/// What carries the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Kernel,
    /// Each segment is a frame.
    Apart,
    Overfly,
}

const WAYS: [Way; 3] = [Way::Kernel, Way::Apart, Way::Overfly];

/// What is measured.
#[derive(Clone, Copy, Debug)]
enum Row {
    /// nginx, connections kept open: requests a second of files of so many bytes, with the client on this link.
    Nginx { bytes: usize, client: &'static str },
    /// memcached with four threads: GETs a second of a value of so many bytes, with the client on this link.
    Memcached { bytes: usize, client: &'static str },
    /// iperf3, one connection: Gb/s that the server sends, or gets from a client on kernel sockets.
    Iperf { server_sends: bool },
    /// iperf3, one connection, 64 KB a write: Gb/s that the server gets from a client which is carried as it is.
    BothEnds,
    /// iperf3, so many connections: Gb/s that a client which is carried so gets of a server on kernel sockets.
    Downloads { connections: &'static str },
    /// iperf3, one connection between the kernels of both ends: Gb/s that the server gets while another program is served.
    Beside,
}

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    // Only rows whose first words have this.
    let row = words.iter().position(|word| word == "--row").filter(|at| at + 1 < words.len());
    let wanted = row.and_then(|at| words.drain(at..at + 2).next_back()).unwrap_or_default();
    let Some(rounds) = Rounds::parse(words.into_iter()) else {
        eprintln!("bulk: {USAGE}");
        return ExitCode::from(2);
    };
    println!("| what | client | kernel | segment by segment | Overfly | of the kernel's |");
    println!("|---|---|---:|---:|---:|---:|");
    let clients = ["kernel", "xdp"];
    let nginx = SIZES.into_iter().flat_map(|bytes| {
        let together = (bytes > FRAME).then_some(TOGETHER);
        clients.into_iter().chain(together).map(move |client| Row::Nginx { bytes, client })
    });
    let values = VALUES.into_iter().flat_map(|bytes| clients.map(|client| Row::Memcached { bytes, client }));
    let iperf = [true, false].map(|server_sends| Row::Iperf { server_sends });
    let downloads = ["1", "40"].map(|connections| Row::Downloads { connections });
    let others = [Row::BothEnds, Row::Beside];
    for row in iperf.into_iter().chain(downloads).chain(others).chain(nginx).chain(values) {
        if !row.words().0.contains(&wanted) {
            continue;
        }
        let mut figures = [const { Vec::new() }; WAYS.len()];
        for repeat in 0..rounds.repeats {
            // Each is first, and last, as often as the others.
            for turn in 0..WAYS.len() {
                let index = (turn + repeat) % WAYS.len();
                figures[index].push(row.measure(WAYS[index], rounds.seconds));
            }
        }
        let [kernel, apart, overfly] = figures.map(|points| median(points.into_iter()));
        let (what, client, digits) = row.words();
        println!(
            "| {what} | {client} | {kernel:.digits$} | {apart:.digits$} | {overfly:.digits$} | {:.2} |",
            overfly / kernel
        );
    }
    ExitCode::SUCCESS
}

impl Row {
    fn words(self) -> (String, &'static str, usize) {
        match self {
            Row::Nginx { bytes, client } => (format!("nginx, {bytes} B kept open, requests/s"), client, 0),
            Row::Memcached { bytes, client } => (format!("memcached -t 4, {bytes} B, GETs/s"), client, 0),
            Row::BothEnds => ("iperf3, both ends alike, 64 KB a write, Gb/s".to_owned(), "the server's", 2),
            Row::Iperf { server_sends: true } => ("iperf3, the server sends, Gb/s".to_owned(), "kernel", 2),
            Row::Iperf { server_sends: false } => ("iperf3, the client sends, Gb/s".to_owned(), "kernel", 2),
            Row::Downloads { connections } => {
                (format!("iperf3, the client gets {connections} streams, Gb/s"), "as the column says", 2)
            }
            Row::Beside => ("iperf3 on the kernel beside Overfly, Gb/s".to_owned(), "kernel", 2),
        }
    }

    fn measure(self, way: Way, seconds: u32) -> f64 {
        let lab = Lab::new(overfly()).expect("a lab");
        let seconds = seconds.to_string();
        match self {
            Row::Nginx { bytes, client } => {
                requests_per_s(&lab, nginx(&lab, way, "performance"), client, &file(bytes), &seconds)
            }
            Row::Memcached { bytes, client } => {
                requests_per_s(&lab, memcached(&lab, way), client, &value(bytes), &seconds)
            }
            Row::Iperf { server_sends } => {
                iperf(&lab, (way, Way::Kernel), if server_sends { &["-R"] } else { &[] }, &seconds)
            }
            Row::BothEnds => iperf(&lab, (way, way), &["-l", "64K"], &seconds),
            Row::Downloads { connections } => {
                iperf(&lab, (Way::Kernel, way), &["-R", "-P", connections], &seconds)
            }
            Row::Beside => {
                // One that sleeps: it has nothing to do, and iperf3 is on its core.
                let other = (way != Way::Kernel).then(|| nginx(&lab, way, "balanced"));
                let figure = iperf(&lab, (Way::Kernel, Way::Kernel), &[], &seconds);
                if let Some(other) = other {
                    other.stop();
                }
                figure
            }
        }
    }
}

/// Requests a second that a server answers, which is stopped then.
fn requests_per_s(lab: &Lab, server: Server, client: &str, url: &str, seconds: &str) -> f64 {
    let words = ["-c", CONNECTIONS, "-d", &format!("{seconds}s")];
    let report = load(lab, client, url, &words).unwrap_or_else(|why| panic!("the generator: {why}"));
    server.stop();
    assert_eq!(report["failed_total"], 0, "{report}");
    report["requests_per_s"].as_f64().expect("a figure")
}

/// Gb/s of one connection; what carries the server and the client.
fn iperf(lab: &Lab, (server, client): (Way, Way), options: &[&str], seconds: &str) -> f64 {
    let server = Server::spawn(carried(lab, "server", server, "performance", &["iperf3", "-s"]));
    let words = [&["iperf3", "-c", "10.77.0.1", "-J", "-t", seconds], options].concat();
    let mut found = None;
    eventually("iperf3 has measured", || {
        let output = carried(lab, "client", client, "performance", &words).stdout(Stdio::piped()).output();
        let report = output.ok().and_then(|output| serde_json::from_slice::<Value>(&output.stdout).ok());
        found = report.and_then(|report| report["end"]["sum_received"]["bits_per_second"].as_f64());
        found.is_some()
    });
    server.stop();
    found.expect("a figure") / 1e9
}

/// A program on its side's core.
fn carried(lab: &Lab, side: &str, way: Way, profile: &str, words: &[&str]) -> Command {
    let cpu = if side == "server" { SERVER_CPU } else { CLIENT_CPU };
    let mut command = match way {
        Way::Kernel => lab.pinned(side, words[0], cpu),
        Way::Apart | Way::Overfly => {
            let mut command = lab.pinned(side, overfly(), cpu);
            command.args(["run", "-p", profile, "--interface", DEVICE, "--", words[0]]);
            if way == Way::Apart {
                command.env("EF_SEGMENT_OFFLOAD", "0").env("EF_RECEIVE_OFFLOAD", "1");
            }
            command
        }
    };
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn file(bytes: usize) -> String {
    format!("http://{SERVER}/{bytes}")
}

fn value(bytes: usize) -> String {
    format!("memcached://{SERVER}/{bytes}")
}

fn memcached(lab: &Lab, way: Way) -> Server {
    let words = ["memcached", "-u", "root", "-l", "0.0.0.0", "-t", "4"];
    let server = Server::spawn(carried(lab, "server", way, "performance", &words));
    let sizes = VALUES.map(|size| size.to_string()).join(" ");
    let put = format!(
        "exec 3<>/dev/tcp/127.0.0.1/11211; for size in {sizes}; do printf 'set %s 0 0 %s\r\n' $size $size; \
         head -c $size /dev/zero; printf '\r\n'; done >&3; for size in {sizes}; do read -r line <&3; echo $line; done"
    );
    eventually("memcached has its values", || {
        let output = lab.command("server", "bash").args(["-c", &put]).output();
        output.is_ok_and(|output| output.stdout == b"STORED\r\n".repeat(VALUES.len()))
    });
    server
}

fn nginx(lab: &Lab, way: Way, profile: &str) -> Server {
    let template = concat!(env!("CARGO_MANIFEST_DIR"), "/../workloads/nginx/nginx.conf");
    let config = std::fs::read_to_string(template)
        .expect("workloads/nginx/nginx.conf")
        .replace("@ROOT@", ROOT)
        .replace("@PORT@", "80")
        .replace("@WORKERS@", "1");
    lab.write("server", format!("{ROOT}/nginx.conf"), config.as_bytes()).expect("write nginx.conf");
    for size in SIZES {
        lab.write("server", format!("{ROOT}/www/{size}"), &vec![b'x'; size]).expect("write a file");
    }
    let words = ["nginx", "-e", "stderr", "-c", &format!("{ROOT}/nginx.conf")];
    let server = Server::spawn(carried(lab, "server", way, profile, &words));
    eventually("nginx answers", || load(lab, "kernel", &file(0), &["-n", "1", "-c", "1"]).is_ok());
    server
}

/// What `overfly load http` reports, or what it complained of.
fn load(lab: &Lab, link: &str, url: &str, words: &[&str]) -> Result<Value, String> {
    let cpu = CLIENT_CPU.to_string();
    let mut command = lab.command("client", overfly());
    command.args([
        "load",
        "http",
        "--json",
        "--cpus",
        &cpu,
        "--link",
        link.split(',').next().unwrap_or(link),
    ]);
    if link == TOGETHER {
        command.args(["--receive-offload", "segments"]);
    }
    let output =
        command.args(words).arg(url).stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        let said = [output.stderr, output.stdout].concat();
        return Err(String::from_utf8_lossy(&said).into_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}

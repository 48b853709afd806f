//! `cargo xtask bulk`: what large transfers over veth gain or lose by Overfly, and by segments that leave together.
//!
//! Server on one core, client on the other, four ways in turns: the kernel's stack, Overfly with a frame for each segment
//! (EF_SEGMENT_OFFLOAD=0), Overfly as it is, and with the client's segments arriving together too (EF_RECEIVE_OFFLOAD=2). The client is
//! on kernel sockets, with its offloads, or on Overfly's own link. In one row both ends of iperf3 are the kernel's, and Overfly's
//! program is only there.

use std::process::{ExitCode, Stdio};

use overfly_bench::lab::{DEVICE, Lab, SERVER};
use overfly_bench::statistics::median;
use overfly_tests::measured::Rounds;
use overfly_tests::{ROOT, Server, eventually, overfly};
use serde_json::Value;

const USAGE: &str = "usage: cargo xtask bulk [--repeats N] [--seconds N]";
const SERVER_CPU: usize = 0;
const CLIENT_CPU: usize = 1;
const CONNECTIONS: &str = "64";
/// Bytes of nginx's files.
const SIZES: [usize; 5] = [0, 1024, 10_000, 100_000, 5_000_000];

/// What carries the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Kernel,
    /// Each segment is a frame.
    Apart,
    Together,
    /// And what arrives does so together.
    BothTogether,
}

const WAYS: [Way; 4] = [Way::Kernel, Way::Apart, Way::Together, Way::BothTogether];

/// What is measured.
#[derive(Clone, Copy, Debug)]
enum Row {
    /// nginx, connections kept open: requests a second of files of so many bytes, with the client on this link.
    Nginx { bytes: usize, client: &'static str },
    /// iperf3, one connection: Gb/s that the server sends, or gets from a client on kernel sockets.
    Iperf { server_sends: bool },
    /// iperf3, one connection between the kernels of both ends: Gb/s that the server gets while another program is served.
    Beside,
}

fn main() -> ExitCode {
    let Some(rounds) = Rounds::parse(std::env::args().skip(1)) else {
        eprintln!("bulk: {USAGE}");
        return ExitCode::from(2);
    };
    println!(
        "| what | client | kernel | segment by segment | Overfly | of the kernel's | received together | of the kernel's |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let clients = ["kernel", "xdp"];
    let nginx = SIZES.into_iter().flat_map(|bytes| clients.map(|client| Row::Nginx { bytes, client }));
    let iperf = [true, false].map(|server_sends| Row::Iperf { server_sends });
    for row in iperf.into_iter().chain([Row::Beside]).chain(nginx) {
        let mut figures = [const { Vec::new() }; WAYS.len()];
        for repeat in 0..rounds.repeats {
            // Each is first, and last, as often as the others.
            for turn in 0..WAYS.len() {
                let index = (turn + repeat) % WAYS.len();
                figures[index].push(row.measure(WAYS[index], rounds.seconds));
            }
        }
        let [kernel, apart, together, both] = figures.map(|points| median(points.into_iter()));
        let (what, client, digits) = row.words();
        println!(
            "| {what} | {client} | {kernel:.digits$} | {apart:.digits$} | {together:.digits$} | {:.2} | {both:.digits$} | {:.2} |",
            together / kernel,
            both / kernel
        );
    }
    ExitCode::SUCCESS
}

impl Row {
    fn words(self) -> (String, &'static str, usize) {
        match self {
            Row::Nginx { bytes, client } => (format!("nginx, {bytes} B kept open, requests/s"), client, 0),
            Row::Iperf { server_sends: true } => ("iperf3, the server sends, Gb/s".to_owned(), "kernel", 2),
            Row::Iperf { server_sends: false } => ("iperf3, the client sends, Gb/s".to_owned(), "kernel", 2),
            Row::Beside => ("iperf3 on the kernel beside Overfly, Gb/s".to_owned(), "kernel", 2),
        }
    }

    fn measure(self, way: Way, seconds: u32) -> f64 {
        let lab = Lab::new(overfly()).expect("a lab");
        let seconds = seconds.to_string();
        match self {
            Row::Nginx { bytes, client } => {
                let server = nginx(&lab, way, "performance");
                let duration = format!("{seconds}s");
                let words = ["-c", CONNECTIONS, "-d", &duration];
                let report = load(&lab, client, bytes, &words).expect("the generator's report");
                server.stop();
                assert_eq!(report["failed_total"], 0, "{report}");
                report["requests_per_s"].as_f64().expect("a figure")
            }
            Row::Iperf { server_sends } => iperf(&lab, way, server_sends, &seconds),
            Row::Beside => {
                // One that sleeps: it has nothing to do, and iperf3 is on its core.
                let other = (way != Way::Kernel).then(|| nginx(&lab, way, "balanced"));
                let figure = iperf(&lab, Way::Kernel, false, &seconds);
                if let Some(other) = other {
                    other.stop();
                }
                figure
            }
        }
    }
}

/// Gb/s of one connection.
fn iperf(lab: &Lab, way: Way, server_sends: bool, seconds: &str) -> f64 {
    let server = serve(lab, way, "performance", &["iperf3", "-s"]);
    let mut words = vec!["-c", "10.77.0.1", "-J", "-t", seconds];
    words.extend(server_sends.then_some("-R"));
    let mut found = None;
    eventually("iperf3 has measured", || {
        let output = lab.pinned("client", "iperf3", CLIENT_CPU).args(&words).output();
        let report = output.ok().and_then(|output| serde_json::from_slice::<Value>(&output.stdout).ok());
        found = report.and_then(|report| report["end"]["sum_received"]["bits_per_second"].as_f64());
        found.is_some()
    });
    server.stop();
    found.expect("a figure") / 1e9
}

/// Starts a program on the server's core.
fn serve(lab: &Lab, way: Way, profile: &str, words: &[&str]) -> Server {
    let mut command = match way {
        Way::Kernel => lab.pinned("server", words[0], SERVER_CPU),
        Way::Apart | Way::Together | Way::BothTogether => {
            let mut command = lab.pinned("server", overfly(), SERVER_CPU);
            command.args(["run", "-p", profile, "--interface", DEVICE, "--", words[0]]);
            command.env("EF_SEGMENT_OFFLOAD", if way == Way::Apart { "0" } else { "1" });
            command.env("EF_RECEIVE_OFFLOAD", if way == Way::BothTogether { "2" } else { "1" });
            command
        }
    };
    command.args(&words[1..]).stdout(Stdio::null()).stderr(Stdio::null());
    Server::spawn(command)
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
    let server = serve(lab, way, profile, &["nginx", "-e", "stderr", "-c", &format!("{ROOT}/nginx.conf")]);
    eventually("nginx answers", || load(lab, "kernel", 0, &["-n", "1", "-c", "1"]).is_some());
    server
}

/// What `overfly load http` reports.
fn load(lab: &Lab, link: &str, bytes: usize, words: &[&str]) -> Option<Value> {
    let cpu = CLIENT_CPU.to_string();
    let mut command = lab.command("client", overfly());
    command.args(["load", "http", "--json", "--cpus", &cpu, "--link", link]);
    command.args(words).arg(format!("http://{SERVER}/{bytes}")).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok()?;
    output.status.success().then(|| serde_json::from_slice(&output.stdout).ok())?
}

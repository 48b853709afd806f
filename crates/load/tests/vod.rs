//! `overfly load vod` against our own server and against nginx, over kernel sockets and AF_XDP. The latter needs root and
//! iproute2; without root, or without nginx, there is nothing to test and the test says so.

mod lab;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lab::Lab;
use overfly_load::Link;
use overfly_load::serve::{self, Server};
use overfly_load::vod::{Control, Ended, Report, Settings, Stop, run};

/// Small players, which have an answer within seconds: 200 kB of buffer drained by 800 kb/s, 300 kB blocks.
fn settings(server: impl std::fmt::Display) -> Settings {
    let mut settings = Settings::new(format!("http://{server}/300k/{{block}}"));
    settings.buffer = 200_000;
    settings.drain_bps = 800_000.0;
    settings.tick = Duration::from_millis(50);
    settings.ramp.initial = 8;
    settings.ramp.step = 8;
    settings.ramp.interval = Duration::from_millis(200);
    settings.ramp.streams = Some(40);
    settings.ramp.hold = Duration::from_secs(3);
    settings.ramp.patience = Duration::from_secs(60);
    settings
}

fn vod(settings: &Settings) -> Report {
    let report = run(settings, &Stop::default(), |_| {}).unwrap();
    println!("{report}");
    report
}

fn serve(change: impl FnOnce(&mut serve::Settings)) -> Server {
    let mut settings =
        serve::Settings { listen: "127.0.0.1:0".parse().unwrap(), ..serve::Settings::default() };
    change(&mut settings);
    Server::start(settings).unwrap()
}

/// That all streams lasted, and watched what they should.
fn check(report: &Report) {
    assert_eq!((report.ended, report.sustained), (Ended::StreamsReached, 40), "{}", report.why);
    assert_eq!((report.standing.streaming, report.standing.lost()), (40, 0));
    // A full buffer each, and 3 s of 800 kb/s for all.
    assert!(report.standing.bytes > 40 * (200_000 + 200_000), "{}", report.standing.bytes);
    assert!(report.level_min.is_some_and(|level| level > 0));
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!((&json["sustained"], &json["ended"]), (&40.into(), &"streams_reached".into()));
    assert!(json["moments"].as_array().is_some_and(|moments| moments.len() >= 3));
}

#[test]
fn over_kernel_sockets_by_one_thread_and_two_kept_alive_and_closed() {
    for (threads, close) in [(1, false), (2, true)] {
        let server = serve(|settings| settings.close = close);
        let mut settings = settings(server.address());
        settings.threads = threads;
        let report = vod(&settings);
        check(&report);
        let served = server.stop().unwrap();
        assert!(served.requests >= report.requests && report.requests >= 80);
        assert_eq!(report.connections, if close { report.requests } else { 40 });
    }
}

#[test]
fn a_server_that_stops_is_an_answer() {
    // A third of the responses end half-way, in silence: buffers run dry.
    let server = serve(|settings| settings.faults.add("stall=30%").unwrap());
    let mut settings = settings(server.address());
    settings.ramp.enough = 0.1;
    let report = vod(&settings);
    assert_eq!(report.ended, Ended::Dropped);
    assert!(report.standing.dropped > 0 && report.losses["underrun"] == report.standing.dropped);
    assert!(report.why.contains("ran dry"), "{}", report.why);

    // And with broken connections it is another.
    let server = serve(|settings| settings.faults.add("reset=20%").unwrap());
    let report = vod(&Settings { url: format!("http://{}/300k", server.address()), ..settings });
    assert_eq!(report.ended, Ended::Failed);
    assert!(report.why.contains("reset"), "{}", report.why);
}

#[test]
fn a_server_that_is_not_there_is_said() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut settings = settings(free);
    settings.attempts = 2;
    let report = vod(&settings);
    assert_eq!((report.ended, report.sustained), (Ended::Failed, 0));
    assert!(report.losses["refused"] > 0 && report.why.contains("refused"), "{}", report.why);
}

#[test]
fn streams_that_never_fill_end_the_run() {
    let server = serve(|settings| settings.faults.add("stall").unwrap());
    let mut settings = settings(server.address());
    settings.ramp.patience = Duration::from_millis(600);
    let report = vod(&settings);
    assert_eq!((report.ended, report.sustained), (Ended::NotStreaming, 0));
    assert_eq!(report.standing.filling, 8);
}

#[test]
fn the_control_socket_opens_streams_and_ends_the_run() {
    let server = serve(|_| {});
    let control: SocketAddr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut settings = settings(server.address());
    (settings.ramp.initial, settings.ramp.step) = (0, 0);
    settings.control = Some(Control::Tcp(control));
    let report = std::thread::scope(|scope| {
        let run = scope.spawn(|| vod(&settings));
        let begin = Instant::now();
        let mut stream = loop {
            match TcpStream::connect(control) {
                Ok(stream) => break stream,
                Err(error) => assert!(begin.elapsed() < Duration::from_secs(20), "{error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut answers = BufReader::new(stream.try_clone().unwrap());
        let mut ask = |line: &str| -> serde_json::Value {
            stream.write_all(line.as_bytes()).unwrap();
            let mut answer = String::new();
            answers.read_line(&mut answer).unwrap();
            serde_json::from_str(&answer).unwrap()
        };
        assert_eq!(ask("{\"open\": 5}\n")["granted"], 5);
        assert_eq!(ask("{\"open\": 50}\n")["granted"], 35, "--streams is the most");
        while ask("{}\n")["streaming"] != 40 {
            assert!(begin.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(20));
        }
        // The bound is reached, but somebody is at the controls.
        ask("{\"stop\": true}\n");
        run.join().unwrap()
    });
    assert_eq!((report.ended, report.standing.opened, report.standing.lost()), (Ended::OnRequest, 40, 0));
}

#[test]
fn a_run_that_is_told_to_stop_ends() {
    let server = serve(|_| {});
    let stop = Stop::default();
    let mut settings = settings(server.address());
    settings.ramp.streams = None;
    let report = run(&settings, &stop, |moment| {
        if moment.standing.streaming > 0 {
            stop.0.store(true, Ordering::Relaxed);
        }
    });
    assert_eq!(report.unwrap().ended, Ended::OnRequest);
}

#[test]
fn over_xdp_from_thousands_of_addresses() {
    let Some(lab) = Lab::new() else { return };
    let address: SocketAddr = "10.98.0.1:80".parse().unwrap();
    let server = lab.server.enter(|| serve(|settings| settings.listen = address));
    // A network beyond the client is the generator's: 2,046 addresses.
    lab.server.ip("route add 10.98.16.0/21 via 10.98.0.2");
    lab.client.ip("route add local 10.98.16.0/21 dev lo");
    let mut settings = settings(address);
    settings.link = Link::Xdp;
    settings.threads = 2;
    settings.sources = Some("10.98.16.0/21".parse().unwrap());
    let report = lab.client.enter(|| vod(&settings));
    check(&report);
    assert_eq!(report.counters["engine.drop_malformed"], 0);
    assert_eq!(server.stop().unwrap().counts["accepted"], 40);
    assert!(!lab.client.ip("-details link show dev eth0").contains("xdp"));
}

/// nginx in the foreground, its blocks in a folder.
struct Nginx(Child);

impl Nginx {
    /// Blocks of random content, as seed 003 has them: in memory, sendfile off.
    fn start(folder: &Path, port: u16) -> Option<Nginx> {
        for block in 0..4 {
            let status = Command::new("dd")
                .arg("if=/dev/urandom")
                .arg(format!("of={}/block-{block}", folder.display()))
                .args(["bs=300000", "count=1", "status=none"])
                .status()
                .unwrap();
            assert!(status.success());
        }
        let folder = folder.display();
        let configuration = format!(
            "daemon off; user root; worker_processes 1; error_log {folder}/error.log; pid {folder}/pid;\n\
             events {{ worker_connections 4096; }}\n\
             http {{ access_log off; sendfile off; keepalive_requests 1; client_body_temp_path {folder}/b;\n\
             proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u;\n\
             scgi_temp_path {folder}/s;\n\
             server {{ listen 127.0.0.1:{port} reuseport; root {folder}; }} }}\n"
        );
        let path = format!("{folder}/nginx.conf");
        std::fs::write(&path, configuration).unwrap();
        let child = Command::new("nginx").args(["-c", &path]).stderr(Stdio::null()).spawn();
        match child {
            Ok(child) => Some(Nginx(child)),
            Err(_) => {
                eprintln!("not tested: nginx is not here");
                None
            }
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGTERM, so that the workers end, too.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

#[test]
fn from_nginx_which_closes_after_each_response() {
    let memory = Path::new("/dev/shm");
    let folder = tempfile::tempdir_in(if memory.is_dir() { memory } else { Path::new(".") }).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let Some(_nginx) = Nginx::start(folder.path(), port) else { return };
    let mut settings = settings("unused");
    settings.url = format!("http://127.0.0.1:{port}/block-{{block}}");
    settings.blocks = 4;
    settings.attempts = 100;
    let report = vod(&settings);
    check(&report);
    assert_eq!(report.connections, report.requests, "nginx closes after each response");
}

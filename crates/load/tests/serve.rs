//! `overfly load serve` as programs see it: kernel clients over kernel sockets and over AF_XDP. The latter needs root and
//! iproute2; without root there is nothing to test and the tests say so.

mod lab;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use lab::Lab;
use overfly_load::Link;
use overfly_load::http;
use overfly_load::serve::{Report, Server, Settings};

fn settings() -> Settings {
    Settings { listen: "127.0.0.1:0".parse().unwrap(), ..Settings::default() }
}

fn serve(change: impl FnOnce(&mut Settings)) -> Server {
    let mut settings = settings();
    change(&mut settings);
    Server::start(settings).unwrap()
}

/// Sends, and reads until the server closes or `end` has come.
fn talk(server: SocketAddr, request: &str, end: &str) -> String {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    while end.is_empty() || !received.ends_with(end.as_bytes()) {
        match stream.read(&mut buffer).unwrap() {
            0 => break,
            length => received.extend_from_slice(&buffer[..length]),
        }
    }
    String::from_utf8(received).unwrap()
}

fn eventually(server: &Server, what: impl Fn(&overfly_load::serve::Counts) -> bool) {
    let begin = Instant::now();
    while !what(&server.progress().counts) {
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", server.progress().counts);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn sizes_methods_and_versions() {
    let server = serve(|_| {});
    let at = server.address();
    assert_eq!(
        talk(at, "GET /8 HTTP/1.1\r\nHost: a\r\n\r\n", "overfly "),
        "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\noverfly "
    );
    assert_eq!(
        talk(at, "HEAD /1M HTTP/1.0\r\n\r\n", ""),
        "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nConnection: close\r\n\r\n"
    );
    let chunked = "POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let last = "GET /none HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    assert_eq!(
        talk(at, &format!("{chunked}{last}{last}"), ""),
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\no\
         HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(
        talk(at, "GET / HTTP/1.1\r\n\r\n", ""),
        "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    let report = server.stop().unwrap();
    assert_eq!((report.requests, report.malformed, report.counts["malformed.no_host"]), (4, 1, 1));
    assert_eq!((report.counts["accepted"], report.counts["not_found"]), (4, 1));
    assert!(serde_json::from_str::<serde_json::Value>(&report.to_json()).unwrap()["requests"] == 4);
}

#[test]
fn a_large_response_to_a_slow_reader_is_the_same_as_to_a_fast_one() {
    let server = serve(|_| {});
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(b"GET /30M HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    // The kernel's buffers fill up meanwhile.
    eventually(&server, |counts| counts.bytes_out > 100_000);
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    let head = received.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
    let body = &received[head..];
    assert_eq!(body.len(), 30_000_000);
    assert!(body.chunks(64).all(|line| body.starts_with(line)));
}

#[test]
fn clients_that_stand_still_are_sent_away() {
    let server = serve(|settings| settings.timeout = Duration::from_millis(100));
    let mut clients = Vec::new();
    for request in ["GET / HTTP/1.1\r\nHo", "GET /1G HTTP/1.1\r\nHost: a\r\n\r\n", ""] {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        clients.push(stream);
    }
    eventually(&server, |counts| counts.closed == 3);
    let counts = server.progress().counts;
    assert_eq!((counts.slow_requests, counts.slow_readers, counts.idle), (1, 1, 1));
}

#[test]
fn more_connections_than_allowed_wait() {
    let server = serve(|settings| settings.connections = Some(2));
    let mut clients: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    eventually(&server, |counts| counts.accepted == 2);
    clients.remove(0);
    eventually(&server, |counts| counts.accepted == 3);
}

#[test]
fn a_server_ends_by_itself_and_its_port_is_its_own() {
    let server = serve(|settings| settings.duration = Some(Duration::from_millis(50)));
    let again = Settings { listen: server.address(), ..settings() };
    let error = Server::start(again).err().unwrap().to_string();
    assert!(error.starts_with("listening at 127.0.0.1:") && error.contains("another program"), "{error}");
    let begin = Instant::now();
    while !server.is_over() {
        assert!(begin.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(server.stop().unwrap().requests, 0);
}

fn load(server: SocketAddr, path: &str, change: impl FnOnce(&mut http::Settings)) -> http::Report {
    let mut settings = http::Settings::new(http::Target::parse(&format!("http://{server}{path}")).unwrap());
    settings.requests = Some(1000);
    settings.duration = None;
    settings.connections = 8;
    settings.timeout = Duration::from_secs(20);
    change(&mut settings);
    let report = http::run(&settings, |_| {}).unwrap();
    println!("{report}");
    report
}

#[test]
fn our_own_client_agrees() {
    for (chunked, close) in [(false, false), (true, false), (false, true), (true, true)] {
        let server =
            serve(|settings| (settings.chunked, settings.close, settings.threads) = (chunked, close, 2));
        let report = load(server.address(), "/10k", |settings| {
            settings.expect_size = Some(10_000);
            settings.close = close;
        });
        assert_eq!((report.requests, report.succeeded), (1000, 1000));
        let served = server.stop().unwrap();
        assert_eq!(served.requests, 1000);
        assert_eq!(served.counts["accepted"], if close { 1000 } else { 8 });
    }
}

#[test]
fn faults_are_what_our_own_client_counts() {
    for (fault, kind) in [
        ("reset", "read"),
        ("stall", "timeout"),
        ("garbage", "malformed"),
        ("short", "closed_early"),
        ("lie", "malformed"),
    ] {
        let server = serve(|settings| settings.faults.add(&format!("{fault}=25%")).unwrap());
        let report = load(server.address(), "/1000", |settings| {
            settings.requests = Some(100);
            settings.timeout = Duration::from_millis(300);
        });
        let served = server.stop().unwrap();
        let spoilt = served.counts[&format!("fault.{fault}")];
        assert!(spoilt > 5 && report.succeeded > 40, "{fault}");
        assert_eq!((report.failed[kind], report.failed_total), (spoilt, spoilt), "{fault}");
    }
}

#[test]
fn over_xdp_for_kernel_clients() {
    let Some(lab) = Lab::new() else { return };
    for (threads, close, path, size) in [
        (1, false, "/1024", 1024),
        (2, false, "/10k", 10_000),
        (2, true, "/", 0),
        (1, false, "/5M", 5_000_000),
    ] {
        let served = over_xdp(&lab, threads, |server| {
            let report = load(server, path, |settings| {
                settings.requests = Some(if size > 1_000_000 { 20 } else { 1000 });
                settings.expect_size = Some(size);
                settings.close = close;
            });
            assert_eq!(report.succeeded, report.requests);
        });
        assert_eq!(served.requests, if size > 1_000_000 { 20 } else { 1000 });
        assert_eq!(served.counters["engine.accepts"], served.counts["accepted"]);
        assert!(!lab.server.ip("-details link show dev eth0").contains("xdp"));
    }
}

#[test]
fn over_xdp_also_for_clients_that_come_another_way() {
    let Some(lab) = Lab::new() else { return };
    let served = over_xdp(&lab, 1, |server| {
        let local = SocketAddr::new("127.0.0.1".parse().unwrap(), server.port());
        let ask = "GET /8 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let there = lab.server.enter(|| talk(local, ask, ""));
        assert!(there.ends_with("overfly "));
        assert!(lab.server.ip("-brief link").contains("eth0"));
        let here = talk("[fd98::1]:81".parse().unwrap(), ask, "");
        assert!(here.ends_with("overfly "));
    });
    assert_eq!((served.requests, served.counters["engine.accepts"]), (2, 1));
}

/// Serves in the lab, at port 81 of all addresses, while `client` runs at the other end.
fn over_xdp(lab: &Lab, threads: usize, client: impl FnOnce(SocketAddr) + Send) -> Report {
    let settings = Settings {
        listen: "[::]:81".parse().unwrap(),
        link: Link::Xdp,
        interface: Some("eth0".into()),
        threads,
        ..Settings::default()
    };
    let server = lab.server.enter(|| Server::start(settings).unwrap());
    lab.client.enter(|| client("10.98.0.1:81".parse().unwrap()));
    let report = server.stop().unwrap();
    println!("{report}");
    report
}

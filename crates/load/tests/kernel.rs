//! The generator over kernel sockets, against servers in this process, good and bad.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use overfly_load::http::{
    Arrivals, Ending, Exchange, Hostility, Interest, Next, Rate, Report, Script, Settings, Target, Workload,
    run,
};

/// Serves each connection with `serve` in a thread of its own; says how many it accepted.
fn server(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let accepted = Arc::new(AtomicU64::new(0));
    let count = accepted.clone();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            count.fetch_add(1, Ordering::Relaxed);
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    (address, accepted)
}

/// Reads one request head; false at the end of the stream.
fn read_request(stream: &mut TcpStream) -> bool {
    let mut head = Vec::new();
    let mut buffer = [0; 4096];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return false,
            Ok(received) => head.extend_from_slice(&buffer[..received]),
        }
    }
    assert!(head.starts_with(b"GET /x HTTP/1.1\r\nHost: 127.0.0.1"));
    true
}

/// Answers every request with these bytes.
fn answer(response: &'static [u8]) -> impl Fn(TcpStream) + Send + Sync + 'static {
    move |mut stream| {
        while read_request(&mut stream) && stream.write_all(response).is_ok() {}
    }
}

/// Answers one request with these bytes, then closes.
fn answer_once(response: &'static [u8]) -> impl Fn(TcpStream) + Send + Sync + 'static {
    move |mut stream| {
        if read_request(&mut stream) {
            let _ = stream.write_all(response);
        }
    }
}

fn settings(server: SocketAddr) -> Settings {
    let mut settings = Settings::new(Target::parse(&format!("http://{server}/x")).unwrap());
    settings.duration = None;
    settings.requests = Some(100);
    settings.connections = 4;
    settings
}

fn load(server: SocketAddr, change: impl FnOnce(&mut Settings)) -> Report {
    let mut settings = settings(server);
    change(&mut settings);
    run(&settings, |_| {}).unwrap()
}

fn only(report: &Report, kind: &str) -> u64 {
    assert_eq!(report.failed[kind], report.failed_total, "{:?}", report.failed);
    assert_eq!(report.succeeded + report.failed_total, report.requests);
    report.failed_total
}

const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

#[test]
fn keep_alive() {
    let (address, accepted) = server(answer(HELLO));
    let report = load(address, |_| {});
    assert_eq!((report.requests, report.succeeded), (100, 100), "{report}");
    assert_eq!(report.bytes_in, 100 * HELLO.len() as u64);
    assert_eq!(report.connections_open_max, 4);
    assert_eq!((report.connections_made, accepted.load(Ordering::Relaxed)), (4, 4));
    assert!(report.latency_us.min > 0.0 && report.latency_us.p50 <= report.latency_us.max);
}

#[test]
fn a_new_connection_each() {
    for response in [HELLO, b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"] {
        let (address, accepted) = server(answer_once(response));
        let report = load(address, |settings| settings.close = true);
        assert_eq!((report.requests, report.succeeded), (100, 100), "{report}");
        assert_eq!((report.connections_made, accepted.load(Ordering::Relaxed)), (100, 100));
        assert!(report.connections_open_max <= 4);
        assert!(report.connect_us.p50 <= report.latency_us.max);
    }
}

#[test]
fn several_threads_share_the_requests_and_the_connections() {
    let (address, accepted) = server(answer(HELLO));
    let report = load(address, |settings| {
        settings.threads = 3;
        settings.connections = 7;
        settings.requests = Some(1001);
    });
    assert_eq!((report.requests, report.succeeded), (1001, 1001));
    assert!(report.connections_open_max <= 7 && accepted.load(Ordering::Relaxed) <= 7);
}

#[test]
fn a_duration_with_a_warm_up() {
    let (address, _) = server(answer(HELLO));
    let start = Instant::now();
    let report = load(address, |settings| {
        settings.requests = None;
        settings.warmup = Duration::from_millis(200);
        settings.duration = Some(Duration::from_millis(300));
    });
    assert!((0.5..2.0).contains(&start.elapsed().as_secs_f64()));
    assert!((0.29..0.6).contains(&report.duration_s), "{}", report.duration_s);
    assert!(report.succeeded > 0 && report.failed_total == 0);
    assert_eq!((report.connections_made, report.connections_open_max), (0, 4));
    assert!(report.cpu_s > 0.0);
}

#[test]
fn intervals_hold_what_the_report_holds() {
    let (address, _) = server(answer(HELLO));
    let mut settings = settings(address);
    settings.threads = 2;
    settings.requests = None;
    settings.duration = Some(Duration::from_millis(550));
    settings.interval = Some(Duration::from_millis(100));
    let mut sum = overfly_load::record::Record::new();
    let mut next = 0;
    let report = run(&settings, |progress| {
        let Some(interval) = progress.interval else { return };
        assert_eq!(interval.index, next);
        assert_eq!(interval.from, settings.interval.unwrap() * next as u32);
        assert_eq!(interval.record.succeeded, interval.succeeded_by_thread.iter().sum::<u64>());
        next += 1;
        sum.merge(&interval.record);
    })
    .unwrap();
    assert!(next >= 6, "{next}");
    assert!(report.succeeded > 0);
    assert_eq!((sum.succeeded, sum.bytes_in), (report.succeeded, report.bytes_in));
    assert_eq!(sum.latency_ns, report.record.latency_ns);
}

#[test]
fn bodies_of_every_framing_and_size() {
    let chunked: &[u8] =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    let until_close: &[u8] = b"HTTP/1.1 200 OK\r\n\r\nhello";
    let old: &[u8] = b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello";
    for (response, connections) in [(chunked, 4), (until_close, 100), (old, 100)] {
        let (address, accepted) =
            server(
                move |stream| {
                    if connections == 4 { answer(response)(stream) } else { answer_once(response)(stream) }
                },
            );
        let report = load(address, |settings| settings.expect_size = Some(5));
        assert_eq!((report.requests, report.succeeded), (100, 100), "{report}");
        assert_eq!(accepted.load(Ordering::Relaxed), connections);
    }
    let (address, _) = server(|mut stream| {
        while read_request(&mut stream) {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5000000\r\n\r\n");
            let _ = stream.write_all(&vec![b'x'; 5_000_000]);
        }
    });
    let report = load(address, |settings| settings.expect_size = Some(5_000_000));
    assert_eq!((report.requests, report.succeeded), (100, 100), "{report}");
}

#[test]
fn a_response_in_single_bytes() {
    let (address, _) = server(|mut stream| {
        stream.set_nodelay(true).unwrap();
        while read_request(&mut stream) {
            for byte in HELLO {
                if stream.write_all(&[*byte]).is_err() {
                    return;
                }
            }
        }
    });
    let report = load(address, |_| {});
    assert_eq!((report.requests, report.succeeded), (100, 100), "{report}");
}

#[test]
fn wrong_status_and_wrong_size() {
    let (address, _) = server(answer(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"));
    assert_eq!(only(&load(address, |_| {}), "wrong_status"), 100);
    let report = load(address, |settings| settings.expect_status = Some(404));
    assert_eq!(report.succeeded, 100);
    let report = load(address, |settings| {
        settings.expect_status = Some(404);
        settings.expect_size = Some(1);
    });
    assert_eq!(only(&report, "wrong_size"), 100);
}

#[test]
fn nobody_listens() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let report = load(address, |settings| settings.requests = Some(20));
    assert_eq!(only(&report, "connect_refused"), 20);
    let reason = "Connections not made, 20: connection refused (ECONNREFUSED): nothing listens";
    assert!(report.remarks.iter().any(|remark| remark.starts_with(reason)), "{:?}", report.remarks);
    assert_eq!((report.succeeded, report.connections_open_max), (0, 0));
}

#[test]
fn nobody_answers_the_syn() {
    // A backlog of one that is full: further SYNs are dropped.
    use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
    let listener = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&listener, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
    listen(&listener, 0).unwrap();
    let address = SocketAddr::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap();
    let _full: Vec<_> =
        (0..2).map(|_| TcpStream::connect_timeout(&address, Duration::from_millis(100))).collect();
    let report = load(address, |settings| {
        settings.requests = Some(4);
        settings.timeout = Duration::from_millis(100);
    });
    assert_eq!(only(&report, "connect_timeout"), 4);
}

#[test]
fn a_server_that_stalls() {
    let (address, _) = server(|mut stream| {
        read_request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Le");
        std::thread::sleep(Duration::from_secs(10));
    });
    let start = Instant::now();
    let report = load(address, |settings| {
        settings.requests = Some(8);
        settings.timeout = Duration::from_millis(100);
    });
    assert_eq!(only(&report, "timeout"), 8);
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_server_that_resets() {
    let (address, _) = server(|mut stream| {
        let mut byte = [0];
        let _ = stream.read(&mut byte);
        // Closing with unread data: RST.
    });
    assert_eq!(only(&load(address, |_| {}), "read"), 100);
}

#[test]
fn a_server_that_closes_early() {
    for part in [&b""[..], b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello"] {
        let (address, _) = server(answer_once(part));
        assert_eq!(only(&load(address, |_| {}), "closed_early"), 100);
    }
}

#[test]
fn a_server_that_sends_garbage_or_lies_about_the_length() {
    let (address, _) = server(answer(b"220 mail ESMTP\r\n"));
    let report = load(address, |_| {});
    assert_eq!((only(&report, "malformed"), report.malformed["status_line"]), (100, 100));

    let (address, _) = server(answer(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhello"));
    let report = load(address, |_| {});
    assert_eq!((only(&report, "malformed"), report.malformed["unsolicited"]), (100, 100));
}

#[test]
fn a_server_that_never_closes_what_it_promised_to_close() {
    let (address, _) = server(|mut stream| {
        read_request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    });
    let report = load(address, |settings| {
        settings.requests = Some(12);
        settings.timeout = Duration::from_millis(50);
        settings.close = true;
    });
    assert_eq!((report.requests, report.succeeded), (12, 12));
}

#[test]
fn some_succeed_while_others_fail() {
    let turn = AtomicU64::new(0);
    let (address, _) = server(move |mut stream| {
        let bad = turn.fetch_add(1, Ordering::Relaxed) % 2 == 1;
        if read_request(&mut stream) && !bad {
            let _ = stream.write_all(HELLO);
            let _ = stream.shutdown(Shutdown::Write);
        }
    });
    let report = load(address, |settings| settings.close = true);
    assert_eq!((report.requests, report.succeeded + report.failed["closed_early"]), (100, 100));
    assert!(report.succeeded >= 40 && report.failed_total >= 40, "{report}");
}

#[test]
fn no_route_and_no_such_processor_are_said_before_the_run() {
    let settings_to = |url: &str| Settings::new(Target::parse(url).unwrap());
    let error = run(&settings_to("http://255.255.255.255/"), |_| {}).unwrap_err();
    assert!(!error.is_usage() && error.to_string().starts_with("no route to"), "{error}");
    let mut settings = settings_to("http://127.0.0.1/");
    settings.cpus = vec![1000];
    let error = run(&settings, |_| {}).unwrap_err();
    assert!(error.is_usage() && error.to_string().starts_with("--cpus 1000"), "{error}");
    settings.cpus.clear();
    settings.connections = 70_000;
    let error = run(&settings, |_| {}).unwrap_err();
    assert!(error.is_usage() && error.to_string().starts_with("-c 70000"), "{error}");
}

#[test]
fn the_json_has_what_the_bench_reads() {
    let (address, _) = server(answer(HELLO));
    let report = load(address, |_| {});
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    for key in [
        "requests",
        "succeeded",
        "failed",
        "duration_s",
        "requests_per_s",
        "bytes_in",
        "bytes_out",
        "cpu_s",
        "cpu_us_per_request",
        "connections_open_max",
        "link",
    ] {
        assert!(!json[key].is_null(), "{key}");
    }
    for key in ["p50", "p90", "p99", "p99_9", "max"] {
        assert!(json["latency_us"][key].is_number(), "{key}");
    }
    assert_eq!(json["failed"]["connect_refused"], 0);
}

/// Answers requests without content, each as `answer` says from its head.
fn echo(
    answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static,
) -> impl Fn(TcpStream) + Send + Sync + 'static {
    move |mut stream| {
        let mut pending = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(received @ 1..) = stream.read(&mut buffer) {
            pending.extend_from_slice(&buffer[..received]);
            while let Some(end) = pending.windows(4).position(|window| window == b"\r\n\r\n") {
                let head: Vec<u8> = pending.drain(..end + 4).collect();
                if stream.write_all(&answer(std::str::from_utf8(&head).unwrap())).is_err() {
                    return;
                }
            }
        }
    }
}

fn ok(content: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{content}", content.len()).into_bytes()
}

/// What wrk2 gets wrong: rates below the number of threads become unlimited.
#[test]
fn a_rate_below_the_number_of_threads() {
    let (address, _) = server(answer(HELLO));
    let report = load(address, |settings| {
        settings.threads = 4;
        settings.connections = 8;
        settings.requests = None;
        settings.rate = Some(Rate::constant(3.0));
        settings.duration = Some(Duration::from_secs(2));
    });
    assert_eq!((report.succeeded, report.failed_total, report.record.unsent), (6, 0, 0), "{report}");
    assert!((report.requests_per_s - 3.0).abs() < 1e-6, "{}", report.requests_per_s);
}

/// What wrk2 gets wrong: nonsense on runs shorter than its calibration of 10 s.
#[test]
fn a_rate_on_a_short_run() {
    let (address, _) = server(answer(HELLO));
    let report = load(address, |settings| {
        settings.threads = 2;
        settings.requests = None;
        settings.rate = Some(Rate::constant(500.0));
        settings.duration = Some(Duration::from_secs(1));
    });
    assert_eq!((report.succeeded, report.failed_total, report.record.unsent), (500, 0, 0), "{report}");
    assert!((report.requests_per_s - 500.0).abs() < 1e-6, "{}", report.requests_per_s);
    assert!(report.latency_us.p50 > 0.0 && report.latency_us.mean.is_finite());
}

/// What wrk2 gets wrong: `Connection: close`, and no reconnect when a server closes.
#[test]
fn a_rate_with_a_connection_each_and_with_a_server_that_closes() {
    let closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello";
    for close in [true, false] {
        let (address, accepted) = server(answer_once(closing));
        let report = load(address, |settings| {
            settings.close = close;
            settings.requests = None;
            settings.rate = Some(Rate::constant(100.0));
            settings.duration = Some(Duration::from_secs(1));
        });
        assert_eq!((report.succeeded, report.failed_total, report.record.unsent), (100, 0, 0), "{report}");
        assert!(accepted.load(Ordering::Relaxed) >= 100);
    }
}

/// Chance decides how many Poisson arrivals there are: a server that answers all of them has not missed the rate.
#[test]
fn poisson_arrivals_that_were_all_sent_miss_no_rate() {
    let (address, _) = server(answer(HELLO));
    // 100 arrivals are expected; of five seeds some make 5 % fewer.
    for seed in [1, 2, 3, 4, 5] {
        let report = load(address, |settings| {
            settings.requests = None;
            settings.rate = Some(Rate { arrivals: Arrivals::Poisson, seed, ..Rate::constant(400.0) });
            settings.duration = Some(Duration::from_millis(250));
        });
        assert_eq!((report.failed_total, report.record.unsent), (0, 0), "seed {seed}: {report}");
        let missed = report.remarks.iter().find(|remark| remark.contains("rate was missed"));
        assert_eq!(missed, None, "seed {seed}: {report}");
    }
}

/// What python3 -m http.server does: HTTP/1.0, one response a connection.
#[test]
fn a_server_that_closes_each_connection_is_said_to() {
    let (address, accepted) = server(answer_once(b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello"));
    let report = load(address, |_| {});
    assert_eq!((report.requests, report.succeeded), (100, 100), "{report}");
    assert_eq!(report.connections_closed_by_server, accepted.load(Ordering::Relaxed), "{report}");
    let [remark] = report.remarks.as_slice() else { panic!("{report}") };
    assert!(remark.starts_with("The server closed 100 connections, one for each request"), "{remark}");
}

#[test]
fn several_urls_by_weight_over_several_servers() {
    let counts: Arc<[AtomicU64; 3]> = Arc::default();
    let serve = |counts: &Arc<[AtomicU64; 3]>| {
        let counts = counts.clone();
        echo(move |head| {
            let path = head.split(' ').nth(1).unwrap();
            counts[path[1..].parse::<usize>().unwrap()].fetch_add(1, Ordering::Relaxed);
            ok(path)
        })
    };
    let (one, _) = server(serve(&counts));
    let (two, _) = server(serve(&counts));
    let target = |address: SocketAddr, path: usize, weight| {
        let mut target = Target::parse(&format!("http://{address}/{path}")).unwrap();
        target.weight = weight;
        target
    };
    let report = load(one, |settings| {
        settings.targets = vec![target(one, 0, 6), target(one, 1, 3), target(two, 2, 1)];
        settings.requests = None;
        settings.rate = Some(Rate::constant(1000.0));
        settings.duration = Some(Duration::from_secs(1));
        settings.expect_size = Some(2);
    });
    assert_eq!((report.succeeded, report.failed_total), (1000, 0), "{report}");
    let counts: Vec<u64> = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    assert_eq!(counts, [600, 300, 100]);
}

#[test]
fn methods_bodies_and_heads() {
    let (address, _) = server(|mut stream| {
        let expected = b"PUT /x HTTP/1.1\r\nHost: ";
        let mut request = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(received @ 1..) = stream.read(&mut buffer) {
            request.extend_from_slice(&buffer[..received]);
            if request.ends_with(b"\r\nContent-Length: 3\r\n\r\nabc") {
                assert!(request.starts_with(expected));
                request.clear();
                let _ = stream.write_all(HELLO);
            }
        }
    });
    let report = load(address, |settings| {
        settings.method = "PUT".into();
        settings.body = b"abc".as_slice().into();
    });
    assert_eq!(report.succeeded, 100, "{report}");

    // The length of content that does not come: RFC 9110 section 9.3.2.
    let (address, accepted) = server(echo(|head| {
        assert!(head.starts_with("HEAD /x HTTP/1.1\r\n"));
        b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n".to_vec()
    }));
    let report = load(address, |settings| {
        settings.method = "HEAD".into();
        settings.expect_size = Some(0);
    });
    assert_eq!((report.succeeded, accepted.load(Ordering::Relaxed)), (100, 4), "{report}");
}

#[test]
fn the_content_is_compared_by_its_digest() {
    // printf hello | sha256sum
    let digest = [
        0x2c, 0xf2, 0x4d, 0xba, 0x5f, 0xb0, 0xa3, 0x0e, 0x26, 0xe8, 0x3b, 0x2a, 0xc5, 0xb9, 0xe2, 0x9e, 0x1b,
        0x16, 0x1e, 0x5c, 0x1f, 0xa7, 0x42, 0x5e, 0x73, 0x04, 0x33, 0x62, 0x93, 0x8b, 0x98, 0x24,
    ];
    let chunked: &[u8] =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n";
    for (response, right) in
        [(HELLO, 100), (chunked, 100), (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhullo", 0)]
    {
        let (address, _) = server(answer(response));
        let report = load(address, |settings| settings.expect_sha256 = Some(digest));
        assert_eq!((report.succeeded, report.failed["wrong_content"]), (right, 100 - right));
    }
}

#[test]
fn connections_that_carry_so_many_requests() {
    let (address, accepted) = server(|mut stream| {
        for turn in 1.. {
            let mut head = Vec::new();
            let mut buffer = [0; 4096];
            while !head.ends_with(b"\r\n\r\n") {
                match stream.read(&mut buffer) {
                    Ok(received @ 1..) => head.extend_from_slice(&buffer[..received]),
                    _ => return,
                }
            }
            let last = head.windows(17).any(|window| window == b"Connection: close");
            assert_eq!(last, turn == 5, "the fifth says that it is the last");
            let _ = stream.write_all(if last {
                b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            } else {
                HELLO
            });
            if last {
                return;
            }
        }
    });
    let report = load(address, |settings| settings.requests_per_connection = Some(5));
    assert_eq!((report.succeeded, report.failed_total), (100, 0), "{report}");
    assert!((20..=24).contains(&accepted.load(Ordering::Relaxed)));
}

#[test]
fn connections_that_end_with_a_reset() {
    let resets = Arc::new(AtomicU64::new(0));
    let seen = resets.clone();
    let (address, accepted) = server(move |mut stream| {
        assert!(read_request(&mut stream));
        let _ = stream.write_all(HELLO);
        if stream.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset) {
            seen.fetch_add(1, Ordering::Relaxed);
        }
    });
    let report = load(address, |settings| {
        settings.close = true;
        settings.ending = Ending::Reset;
    });
    assert_eq!((report.succeeded, accepted.load(Ordering::Relaxed)), (100, 100), "{report}");
    let begin = Instant::now();
    while resets.load(Ordering::Relaxed) < 100 {
        assert!(begin.elapsed() < Duration::from_secs(20), "{resets:?} resets");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_pipeline() {
    let (address, _) = server(echo(|_| ok("hello")));
    let report = load(address, |settings| {
        settings.pipeline = 7;
        settings.requests = Some(1000);
        settings.expect_size = Some(5);
    });
    assert_eq!((report.succeeded, report.failed_total), (1000, 0), "{report}");
}

/// Status and content.
type Heard = (u16, Vec<u8>);

/// Counts up: `/0`, `/1`, … and remembers what came back.
#[derive(Debug, Clone, Default)]
struct CountingUp {
    next: u64,
    delay: Duration,
    stop_at: Option<u64>,
    seen: Arc<Mutex<Vec<Heard>>>,
}

impl Workload for CountingUp {
    fn script(&self, _: usize, _: usize) -> Result<Box<dyn Script>, overfly_load::Error> {
        Ok(Box::new(self.clone()))
    }
}

impl Script for CountingUp {
    fn request(&mut self, _: usize, request: &mut Vec<u8>) -> Result<Next, overfly_load::Error> {
        if self.stop_at == Some(self.next) {
            return Ok(Next::Stop);
        }
        write!(request, "GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", self.next).unwrap();
        self.next += 1;
        Ok(Next::Continue)
    }

    fn interest(&self) -> Interest {
        Interest::Content
    }

    fn finished(&mut self, exchange: &Exchange<'_>) -> Result<Next, overfly_load::Error> {
        assert!(exchange.head.starts_with(b"HTTP/1.1 200 OK\r\n") && exchange.head.ends_with(b"\r\n\r\n"));
        self.seen.lock().unwrap().push((exchange.status, exchange.body.to_vec()));
        Ok(Next::Continue)
    }

    fn delays(&self) -> bool {
        !self.delay.is_zero()
    }

    fn delay(&mut self) -> Result<Duration, overfly_load::Error> {
        Ok(self.delay)
    }
}

#[test]
fn a_script_makes_requests_and_sees_responses() {
    let (address, _) = server(echo(|head| ok(head.split(' ').nth(1).unwrap())));
    let workload = CountingUp::default();
    let report = load(address, |settings| settings.workload = Some(Arc::new(workload.clone())));
    assert_eq!((report.succeeded, report.failed_total), (100, 0), "{report}");
    let mut seen = workload.seen.lock().unwrap().clone();
    seen.sort_by_key(|(_, body)| (body.len(), body.clone()));
    let expected: Vec<Heard> = (0..100).map(|k| (200, format!("/{k}").into_bytes())).collect();
    assert_eq!(seen, expected);
}

#[test]
fn a_script_that_waits_and_stops() {
    let (address, _) = server(echo(|head| ok(head.split(' ').nth(1).unwrap())));
    let workload = CountingUp { delay: Duration::from_millis(20), stop_at: Some(9), ..CountingUp::default() };
    let begin = Instant::now();
    let report = load(address, |settings| {
        settings.connections = 1;
        settings.workload = Some(Arc::new(workload.clone()));
    });
    assert_eq!((report.succeeded, report.failed_total), (9, 0), "{report}");
    assert!(begin.elapsed() >= Duration::from_millis(8 * 20));
}

fn hostile(address: SocketAddr, kind: Hostility) -> Report {
    let report = load(address, |settings| {
        settings.hostile = Some(kind);
        settings.hostile_interval = Duration::from_millis(20);
        settings.requests = None;
        settings.connections = 3;
        settings.duration = Some(Duration::from_millis(600));
    });
    println!("{report}");
    report
}

fn count(report: &Report, name: &str) -> u64 {
    report.counters.get(&format!("hostile.{name}")).copied().unwrap_or(0)
}

#[test]
fn a_server_that_bears_with_hostile_clients_to_the_end() {
    let (bytes, requests) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (seen, asked) = (bytes.clone(), requests.clone());
    let (address, _) = server(move |mut stream| {
        let mut head = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(received @ 1..) = stream.read(&mut buffer) {
            seen.fetch_add(received as u64, Ordering::Relaxed);
            head.extend_from_slice(&buffer[..received]);
            let has_content = head.windows(15).any(|window| window == b"Content-Length:");
            if head.ends_with(b"\r\n\r\n") && !has_content {
                asked.fetch_add(1, Ordering::Relaxed);
                let _ = stream.write_all(&vec![b'x'; 50_000_000]);
            }
        }
    });
    for kind in Hostility::ALL.into_iter().filter(|kind| *kind != Hostility::HalfOpen) {
        let (bytes_before, asked_before) = (bytes.load(Ordering::Relaxed), requests.load(Ordering::Relaxed));
        let report = hostile(address, kind);
        assert_eq!((count(&report, "opened"), count(&report, "held")), (3, 3), "{kind:?}");
        assert_eq!((report.succeeded, report.failed_total), (3, 0), "{kind:?}");
        let bytes = bytes.load(Ordering::Relaxed) - bytes_before;
        let asked = requests.load(Ordering::Relaxed) - asked_before;
        match kind {
            Hostility::ConnectOnly => assert_eq!(bytes, 0),
            Hostility::SlowHeaders | Hostility::SlowBody => {
                assert!(bytes > 3 * 40 && asked == 0, "{bytes} bytes");
            }
            _ => assert_eq!(asked, 3, "{kind:?}"),
        }
    }
}

#[test]
fn a_server_that_drops_hostile_clients() {
    let patience = Duration::from_millis(100);
    let (address, _) = server(move |mut stream| {
        std::thread::sleep(patience);
        let _ = stream.write_all(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n");
    });
    let report = hostile(address, Hostility::ConnectOnly);
    let (closed, reset) = (count(&report, "closed_by_server"), count(&report, "reset_by_server"));
    assert!(closed >= 3 && reset == 0, "{closed} closed, {reset} reset");
    assert_eq!(count(&report, "opened"), closed + count(&report, "held"));
    assert!(count(&report, "answered_408") >= closed);
    assert!(report.latency_us.min >= 0.99 * patience.as_micros() as f64);
    assert!(report.remarks[0].contains("connect-only connections the server closed"), "{:?}", report.remarks);
    // If something unread is at the server when it closes, that is a reset.
    let report = hostile(address, Hostility::SlowHeaders);
    let ended = count(&report, "closed_by_server") + count(&report, "reset_by_server");
    assert!(ended >= 3, "{report}");
    assert_eq!(count(&report, "opened"), ended + count(&report, "held"));
}

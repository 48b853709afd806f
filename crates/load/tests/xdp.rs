//! The generator over AF_XDP on a veth pair, against kernel servers in another namespace. Needs
//! root and iproute2; without root there is nothing to test and the tests say so.

mod lab;
mod secure;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use lab::Lab;
use overfly_load::http::{Hostility, Rate, Report, Settings, Target, run};
use overfly_load::{Error, Link};
use overfly_steer::ReceiveOffload;
use overfly_testing::kernel::napis_have_threads;

impl Lab {
    /// Serves each connection in a thread of its own; says how many are open.
    fn serve(&self, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Arc<AtomicI64> {
        let listener = self.server.enter(|| TcpListener::bind("[::]:80").unwrap());
        let open = Arc::new(AtomicI64::new(0));
        let count = open.clone();
        let serve = Arc::new(serve);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                count.fetch_add(1, Ordering::SeqCst);
                let (serve, count) = (serve.clone(), count.clone());
                std::thread::spawn(move || {
                    serve(stream);
                    count.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        open
    }

    fn try_load(&self, change: impl FnOnce(&mut Settings) + Send) -> Result<Report, Error> {
        let server: SocketAddr = "10.98.0.1:80".parse().unwrap();
        let mut settings = Settings::new(Target::parse(&format!("http://{server}/")).unwrap());
        settings.link = Link::Xdp;
        settings.requests = Some(2000);
        settings.duration = None;
        settings.timeout = Duration::from_secs(20);
        change(&mut settings);
        self.client.enter(|| run(&settings, |_| {}))
    }

    fn load(&self, change: impl FnOnce(&mut Settings) + Send) -> Report {
        let report = self.try_load(change).unwrap();
        println!("{report}");
        report
    }

    /// Nothing is left: no program on the interface, no connection at the server.
    fn check_clean(&self, open: &AtomicI64) {
        assert!(!self.client.ip("-details link show dev eth0").contains("xdp"));
        let begin = Instant::now();
        while open.load(Ordering::SeqCst) > 0 {
            assert!(begin.elapsed() < Duration::from_secs(5), "connections left at the server");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Answers requests with `body` bytes; closes after the first if it says so.
fn answer(body: usize, close: bool) -> impl Fn(TcpStream) + Send + Sync + 'static {
    let connection = if close { "close" } else { "keep-alive" };
    let head = format!(
        "HTTP/1.1 200 OK\r\nDate: Sat, 21 Nov 2026 22:51:42 GMT\r\n\
         Content-Length: {body}\r\nConnection: {connection}\r\n\r\n"
    );
    let response = [head.as_bytes(), &vec![b'x'; body]].concat();
    move |mut stream| {
        let mut buffer = [0; 4096];
        let mut request = Vec::new();
        while let Ok(received @ 1..) = stream.read(&mut buffer) {
            request.extend_from_slice(&buffer[..received]);
            if request.ends_with(b"\r\n\r\n") {
                request.clear();
                if stream.write_all(&response).is_err() || close {
                    return;
                }
            }
        }
    }
}

#[test]
fn keep_alive_over_one_and_two_stacks_run_after_run() {
    for body in [0, 1024, 10_000] {
        let Some(lab) = Lab::new() else { return };
        let open = lab.serve(answer(body, false));
        // Where processors are named, the kernel's threads receive there.
        for (threads, cpus) in [(1, &[][..]), (2, &[0, 0]), (1, &[0]), (1, &[])] {
            let report = lab.load(|settings| {
                settings.threads = threads;
                settings.cpus = cpus.to_vec();
                settings.connections = 20;
                settings.expect_size = Some(body as u64);
            });
            assert_eq!((report.requests, report.succeeded), (2000, 2000));
            assert!(report.connections_open_max <= 20);
            assert_eq!(report.counters["engine.drop_malformed"], 0);
            assert_eq!(report.counters["link.yields"] > 0, !cpus.is_empty() && napis_have_threads());
            lab.check_clean(&open);
        }
    }
}

/// As a gateway that fails over to one with another hardware address, which says so (RFC 5227 section 3).
#[test]
fn a_server_that_moves_is_found_again() {
    for close in [false, true] {
        let Some(lab) = Lab::new() else { return };
        lab.server.enter(|| std::fs::write("/proc/sys/net/ipv4/conf/all/arp_notify", "1").unwrap());
        let answered = Arc::new(AtomicI64::new(0));
        let (each, count) = (answer(100, close), answered.clone());
        let open = lab.serve(move |stream| {
            each(stream);
            count.fetch_add(1, Ordering::SeqCst);
        });
        let report = std::thread::scope(|scope| {
            scope.spawn(|| {
                // In the midst of it.
                let begin = Instant::now();
                while open.load(Ordering::SeqCst) == 0 && answered.load(Ordering::SeqCst) == 0 {
                    assert!(begin.elapsed() < Duration::from_secs(20), "nobody came");
                    std::thread::sleep(Duration::from_millis(5));
                }
                std::thread::sleep(Duration::from_millis(500));
                lab.server.ip("link set eth0 address 02:00:00:00:00:77");
            });
            lab.load(|settings| {
                settings.connections = 10;
                settings.duration = Some(Duration::from_secs(4));
                settings.requests = None;
                settings.timeout = Duration::from_secs(10);
                settings.rate = Some(Rate::constant(500.0));
            })
        });
        assert!(report.succeeded > 1500 && report.succeeded == report.requests, "close: {close}");
        lab.check_clean(&open);
    }
}

/// Between requests that are due a millisecond apart it does not spin.
#[test]
fn who_shares_its_processor_and_has_nothing_to_do_rests() {
    let Some(lab) = Lab::new() else { return };
    let open = lab.serve(answer(0, false));
    for cpus in [&[][..], &[0]] {
        let report = lab.load(|settings| {
            settings.cpus = cpus.to_vec();
            settings.connections = 4;
            settings.requests = Some(200);
            settings.rate = Some(Rate::constant(1000.0));
        });
        assert_eq!(report.succeeded, 200);
        assert_eq!(report.counters["link.rests"] > 0, !cpus.is_empty() && napis_have_threads());
        lab.check_clean(&open);
    }
}

/// Of a kernel server on veth, which segments late.
#[test]
fn several_segments_arrive_in_one_frame_where_that_is_wanted() {
    const BODY: usize = 200_000;
    let Some(lab) = Lab::new() else { return };
    let open = lab.serve(answer(BODY, false));
    let [packets, segments] = [ReceiveOffload::Packets, ReceiveOffload::Segments].map(|offload| {
        let report = lab.load(|settings| {
            settings.receive_offload = offload;
            settings.requests = Some(200);
            settings.cpus = vec![0];
            settings.connections = 4;
            settings.expect_size = Some(BODY as u64);
        });
        assert_eq!((report.requests, report.succeeded), (200, 200));
        lab.check_clean(&open);
        report.counters["link.received_frames"]
    });
    let of_mtu = (200 * BODY / 1448) as u64;
    assert!(packets >= of_mtu, "{packets} frames for {of_mtu} segments");
    // Older kernels have no such frames for generic XDP: crates/steer/src/long_packets.rs.
    if lab.client.enter(|| overfly_steer::segments_of("eth0")).is_ok() {
        assert!(segments * 4 < of_mtu, "{segments} frames for {of_mtu} segments");
    }
}

#[test]
fn a_new_connection_each_run_after_run_over_few_ports() {
    let Some(lab) = Lab::new() else { return };
    let open = lab.serve(answer(1000, true));
    for _ in 0..3 {
        // 500 ports, 2,000 connections, then the same ports again: the server's TIME-WAIT gives way.
        let report = lab.load(|settings| {
            settings.close = true;
            settings.threads = 2;
            settings.ports = 20_000..=20_499;
            settings.expect_size = Some(1000);
        });
        assert_eq!((report.requests, report.succeeded), (2000, 2000));
        assert_eq!(report.connections_made, 2000);
        assert!(report.latency_us.max < 900_000.0, "a SYN was not taken at once");
        lab.check_clean(&open);
    }
}

#[test]
fn a_large_response_arrives_whole() {
    let Some(lab) = Lab::new() else { return };
    let open = lab.serve(answer(20_000_000, false));
    let report = lab.load(|settings| {
        settings.requests = Some(8);
        settings.connections = 4;
        settings.expect_size = Some(20_000_000);
    });
    assert_eq!((report.requests, report.succeeded), (8, 8));
    lab.check_clean(&open);
}

#[test]
fn a_duration_cut_short_leaves_the_server_clean() {
    let Some(lab) = Lab::new() else { return };
    let open = lab.serve(answer(100_000, false));
    let report = lab.load(|settings| {
        settings.requests = None;
        settings.duration = Some(Duration::from_millis(300));
        settings.connections = 100;
    });
    assert!(report.succeeded > 0 && report.failed_total == 0);
    assert_eq!(report.connections_open_max, 100);
    lab.check_clean(&open);
}

#[test]
fn what_cannot_be_reached_is_said() {
    let Some(lab) = Lab::new() else { return };
    let report = lab.load(|settings| settings.requests = Some(20));
    assert_eq!((report.succeeded, report.failed["connect_refused"]), (0, 20));

    let target = |url: &'static str| move |s: &mut Settings| s.targets = vec![Target::parse(url).unwrap()];
    let error = lab.try_load(target("http://10.98.0.9/")).unwrap_err().to_string();
    assert!(error.contains("10.98.0.9 does not answer ARP"), "{error}");
    let error = lab.try_load(target("http://127.0.0.1/")).unwrap_err().to_string();
    assert!(error.starts_with("URL http://127.0.0.1/: expected"), "{error}");
    let error = lab.try_load(|s| s.interface = Some("none0".into())).unwrap_err().to_string();
    assert!(error.starts_with("--interface none0: expected"), "{error}");
    let error = lab.try_load(|s| s.connections = 30_000).unwrap_err().to_string();
    assert!(error.starts_with("-c 30000: expected"), "{error}");
}

#[test]
fn ipv6_over_both_links() {
    let Some(lab) = Lab::new() else { return };
    let open = lab.serve(answer(10_000, false));
    for link in [Link::Xdp, Link::Kernel] {
        let report = lab.load(|settings| {
            settings.targets = vec![Target::parse("http://[fd98::1]/").unwrap()];
            settings.link = link.clone();
            settings.threads = 2;
            settings.connections = 20;
            settings.expect_size = Some(10_000);
        });
        assert_eq!((report.requests, report.succeeded), (2000, 2000), "{link:?}");
    }
    lab.check_clean(&open);
}

#[test]
fn connections_from_several_addresses() {
    let Some(lab) = Lab::new() else { return };
    for address in ["10.98.5.1/32", "10.98.5.2/32"] {
        lab.client.ip(&format!("address add {address} dev eth0"));
    }
    let open = lab.serve(answer(1000, false));
    for link in [Link::Xdp, Link::Kernel] {
        let report = lab.load(|settings| {
            settings.link = link.clone();
            settings.sources = Some("10.98.5.0/30".parse().unwrap());
            settings.ports = 20_000..=20_009;
            settings.connections = 20;
        });
        assert_eq!((report.requests, report.succeeded), (2000, 2000), "{link:?}");
        assert_eq!(report.connections_open_max, 20, "ten ports on each of two addresses");
        lab.check_clean(&open);
    }
    let error = lab.try_load(|s| s.sources = Some("10.98.6.0/30".parse().unwrap())).unwrap_err();
    assert!(error.to_string().starts_with("--sources: 10.98.6.1 is no address of this machine"), "{error}");
}

#[test]
fn an_open_loop_and_tls_over_the_stack() {
    let Some(lab) = Lab::new() else { return };
    let listener = lab.server.enter(|| TcpListener::bind("[::]:443").unwrap());
    secure::serve_on(listener, "10.98.0.1", 20_000);
    for close in [false, true] {
        let report = lab.load(|settings| {
            settings.targets = vec![Target::parse("https://10.98.0.1/").unwrap()];
            settings.insecure = true;
            settings.close = close;
            settings.requests = None;
            settings.rate = Some(Rate::constant(200.0));
            settings.duration = Some(Duration::from_secs(1));
            settings.expect_size = Some(20_000);
        });
        // A machine that is busy with something else may not send all of them in time, and then says so.
        assert_eq!((report.succeeded + report.record.unsent, report.failed_total), (200, 0), "{report}");
        assert!(report.succeeded > 0, "{report}");
    }
}

#[test]
fn connections_left_half_open() {
    let Some(lab) = Lab::new() else { return };
    let open = lab.serve(answer(5, false));
    let report = lab.load(|settings| {
        settings.hostile = Some(Hostility::HalfOpen);
        settings.requests = None;
        settings.connections = 10;
        settings.timeout = Duration::from_millis(100);
        settings.duration = Some(Duration::from_millis(500));
    });
    let count = |name: &str| report.counters[&format!("hostile.{name}")];
    assert!(count("begun") >= 30 && count("unheard_frames") >= 10 && count("opened") == 0, "{report}");
    lab.check_clean(&open);
}

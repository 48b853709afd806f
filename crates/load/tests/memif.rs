//! `overfly load http` and `overfly load serve` over shared memory. Nothing here needs privilege.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use overfly_load::http::{self, Report, Target};
use overfly_load::serve::{Server, Settings};
use overfly_load::{Link, Network};

fn link(name: &str) -> Link {
    Link::parse(&format!("memif:@overfly-load-{name}-{}", std::process::id())).unwrap()
}

fn serve(name: &str, change: impl FnOnce(&mut Settings)) -> Server {
    let mut settings =
        Settings { listen: "10.77.0.1:8080".parse().unwrap(), link: link(name), ..Settings::default() };
    change(&mut settings);
    Server::start(settings).unwrap()
}

fn load(name: &str, url: &str, change: impl FnOnce(&mut http::Settings)) -> Report {
    let mut settings = http::Settings::new(Target::parse(url).unwrap());
    (settings.duration, settings.requests) = (None, Some(2000));
    settings.timeout = Duration::from_secs(20);
    settings.link = link(name);
    change(&mut settings);
    http::run(&settings, |_| ()).unwrap()
}

#[test]
fn requests_of_all_sizes_are_answered() {
    let _server = serve("sizes", |_| ());
    for (path, size, close) in
        [("", 0, true), ("1024", 1024, false), ("10000", 10_000, true), ("1M", 1_000_000, false)]
    {
        let report = load("sizes", &format!("http://10.77.0.1:8080/{path}"), |settings| {
            settings.expect_size = Some(size);
            settings.close = close;
        });
        assert_eq!((report.requests, report.succeeded), (2000, 2000), "/{path}: {report}");
    }
}

/// Each thread of the generator has a ring pair, each of the server's some of those.
#[test]
fn ring_pairs_are_dealt_out_to_all_threads_and_clients_share_them() {
    let server = serve("pairs", |settings| settings.threads = 2);
    std::thread::scope(|scope| {
        let clients: Vec<_> = [2, 3]
            .into_iter()
            .map(|host| {
                scope.spawn(move || {
                    load("pairs", "http://10.77.0.1:8080/100k", |settings| {
                        settings.threads = 2;
                        settings.network = format!("10.77.0.{host}/24").parse().unwrap();
                    })
                })
            })
            .collect();
        for client in clients {
            let report = client.join().unwrap();
            assert_eq!(report.succeeded, 2000, "{report}");
        }
    });
    let report = server.stop().unwrap();
    assert_eq!(report.counts["requests"], 4000, "{report}");
}

#[test]
fn ipv6_too() {
    let _server = serve("ipv6", |settings| {
        settings.listen = "[fd77::1]:80".parse().unwrap();
        settings.prefix_len = 64;
    });
    let report = load("ipv6", "http://[fd77::1]/10k", |settings| {
        settings.network = "fd77::2/64".parse().unwrap();
        settings.expect_size = Some(10_000);
    });
    assert_eq!(report.succeeded, 2000, "{report}");
}

#[test]
fn what_cannot_be_is_said_before_the_run() {
    let _server = serve("refused", |_| ());
    let refused = |url: &str, change: fn(&mut http::Settings)| {
        let mut settings = http::Settings::new(Target::parse(url).unwrap());
        settings.link = link("refused");
        change(&mut settings);
        http::run(&settings, |_| ()).unwrap_err().to_string()
    };
    let url = "http://10.77.0.1:8080/";
    let elsewhere = |settings: &mut http::Settings| {
        settings.network = Network { address: "10.78.0.2".parse().unwrap(), prefix_len: 24 };
    };
    assert!(refused(url, elsewhere).starts_with("--address 10.78.0.2/24: expected "));
    let nobody = |settings: &mut http::Settings| settings.link = link("nobody");
    assert!(refused(url, nobody).contains("start the program that listens there first"));
}

/// As it is used: two programs of an ordinary user.
#[test]
fn a_client_that_is_killed_leaves_room_for_the_next() {
    let server = serve("killed", |_| ());
    for _ in 0..3 {
        let before = server.progress().counts.requests;
        let mut client = Command::new(std::env::current_exe().unwrap())
            .args(["a_client_for_ever", "--exact"])
            .env("OVERFLY_TEST_LOAD_FOR_EVER", link_text("killed"))
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let begin = Instant::now();
        while server.progress().counts.requests < before + 1000 {
            assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", server.progress());
            std::thread::sleep(Duration::from_millis(5));
        }
        client.kill().unwrap();
        client.wait().unwrap();
    }
    let report = load("killed", "http://10.77.0.1:8080/", |_| ());
    assert_eq!(report.succeeded, 2000, "{report}");
}

/// What a client does while nobody is there, and when another server is.
#[test]
fn a_client_whose_server_is_replaced_goes_on_with_the_next() {
    let over = AtomicBool::new(false);
    let serve_requests = |count: u64| {
        let server = serve("replaced", |_| ());
        let begin = Instant::now();
        while server.progress().counts.requests < count {
            assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", server.progress());
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    };
    std::thread::scope(|scope| {
        let first = serve("replaced", |_| ());
        let client = scope.spawn(|| {
            let mut settings = http::Settings::new(Target::parse("http://10.77.0.1:8080/").unwrap());
            (settings.threads, settings.connections) = (2, 8);
            settings.duration = Some(Duration::from_secs(300));
            settings.timeout = Duration::from_secs(60);
            settings.link = link("replaced");
            http::run(&settings, |progress| {
                if over.load(Ordering::Relaxed) {
                    progress.end_run();
                }
            })
        });
        let begin = Instant::now();
        while first.progress().counts.requests < 1000 {
            assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", first.progress());
            std::thread::sleep(Duration::from_millis(5));
        }
        first.stop().unwrap();
        let second = serve_requests(1000);
        over.store(true, Ordering::Relaxed);
        let report = client.join().unwrap().unwrap();
        drop(second);
        assert!(report.succeeded >= 2000, "{report}");
        assert!(report.counters["link.reconnections"] >= 2, "one for each thread: {:?}", report.counters);
        let unheard = report.failed["timeout"] + report.failed["connect_timeout"];
        assert_eq!(unheard, 0, "failures are told at once: {:?}", report.failed);
    });
}

fn link_text(name: &str) -> String {
    match link(name) {
        Link::Memif(place) => format!("memif:{place}"),
        other => panic!("{other:?}"),
    }
}

/// What the test above starts and kills; without its variable it is nothing.
#[test]
fn a_client_for_ever() {
    let Ok(link) = std::env::var("OVERFLY_TEST_LOAD_FOR_EVER") else { return };
    load("", "http://10.77.0.1:8080/", |settings| {
        settings.link = Link::parse(&link).unwrap();
        settings.requests = None;
        settings.duration = Some(Duration::from_secs(120));
    });
}

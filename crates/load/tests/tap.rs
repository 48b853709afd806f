//! `overfly load` over a tap device, in a user and network namespace without privilege: the other end is the kernel's.
//! Needs iproute2, curl and unshare.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use overfly_load::Link;
use overfly_load::http::{self, Target};
use overfly_load::serve::{Server, Settings};
use overfly_testing::unprivileged::outside;

const KERNEL: &str = "10.77.0.1/24";
const LENGTH: usize = 100_000_000;

fn load(url: &str, change: impl FnOnce(&mut http::Settings)) -> http::Report {
    let mut settings = http::Settings::new(Target::parse(url).unwrap());
    settings.duration = None;
    settings.timeout = Duration::from_secs(60);
    settings.link = Link::Tap("t0".to_owned());
    change(&mut settings);
    http::run(&settings, |_| ()).unwrap()
}

/// The kernel receives 100 MB, byte for byte, and asks for a thousand small things.
#[test]
fn the_kernel_as_a_client() {
    if outside("the_kernel_as_a_client", &[KERNEL]) {
        return;
    }
    let _server = Server::start(Settings {
        listen: "10.77.0.2:80".parse().unwrap(),
        link: Link::Tap("t0".to_owned()),
        threads: 2,
        ..Settings::default()
    })
    .unwrap();
    let kernel =
        Server::start(Settings { listen: "127.0.0.1:0".parse().unwrap(), ..Settings::default() }).unwrap();
    let fetch = |server: &str| {
        let url = format!("http://{server}/{LENGTH}");
        let output = Command::new("curl").args(["-sS", "-m", "60", &url]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let over_tap = fetch("10.77.0.2");
    assert_eq!(over_tap.len(), LENGTH);
    assert!(over_tap == fetch(&kernel.address().to_string()), "other bytes than over the kernel alone");
    let report = load("http://10.77.0.2/100", |settings| {
        settings.link = Link::Kernel;
        settings.requests = Some(1000);
        settings.close = true;
    });
    assert_eq!(report.succeeded, 1000, "{report}");
}

/// The kernel sends 100 MB, and a small thing a thousand times.
#[test]
fn the_kernel_as_a_server() {
    if outside("the_kernel_as_a_server", &[KERNEL]) {
        return;
    }
    let listener = TcpListener::bind("10.77.0.1:80").unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut request = [0; 1000];
                while let Ok(length) = stream.read(&mut request)
                    && length > 0
                {
                    let size = if request.starts_with(b"GET /long") { LENGTH } else { 5 };
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n");
                    let _ = stream.write_all(&[head.as_bytes(), &vec![b'x'; size]].concat());
                }
            });
        }
    });
    for (path, size, requests, connections) in [("long", LENGTH, 1, 1), ("short", 5, 1000, 10)] {
        let report = load(&format!("http://10.77.0.1/{path}"), |settings| {
            settings.expect_size = Some(size as u64);
            (settings.requests, settings.connections) = (Some(requests), connections);
            settings.threads = if connections == 1 { 1 } else { 2 };
        });
        assert_eq!(report.succeeded, requests, "{report}");
    }
}

//! nginx, unmodified, on the user-level stack with one listener for both families, and the generator over IPv6.

use std::time::Duration;

use overfly_bench::lab::Lab;
use overfly_tests::{Nginx, ROOT, Server, eventually, output, overfly, succeed};

/// `listen [::]:80 ipv6only=off` instead of `listen 80`.
fn install_for_both(lab: &Lab) {
    Nginx::default().install(lab, &[]);
    let config = format!("{ROOT}/nginx.conf");
    let edit = "s/listen 80 reuseport;/listen [::]:80 ipv6only=off reuseport;/";
    succeed(lab, "server", &["sed", "-i", edit, &config]);
}

#[test]
fn one_listener_serves_both_families() {
    let lab = Lab::new(overfly()).expect("a lab");
    install_for_both(&lab);
    let server = Server::nginx(&lab);
    let get = |arguments: &[&str]| {
        let words = [&["curl", "-s", "--max-time", "10"], arguments].concat();
        succeed(&lab, "client", &words)
    };
    assert_eq!(get(&["-6", "http://[fd77::1]/"]), "hello from nginx\n");
    assert_eq!(get(&["-4", "http://10.77.0.1/"]), "hello from nginx\n");
    assert_eq!(succeed(&lab, "server", &["curl", "-s", "http://[::1]/"]), "hello from nginx\n");
    succeed(&lab, "client", &["ping", "-6", "-c", "3", "-i", "0.1", "fd77::1"]);
    // The kernel saw no connection to the device's addresses: only loopback's.
    let seen = succeed(&lab, "server", &["ss", "-tan", "sport = :80"]);
    assert!(!seen.contains("10.77.0.2") && !seen.contains("fd77::2"), "it went through the kernel: {seen}");
    server.stop();
}

#[test]
fn the_generator_speaks_ipv6_over_both_links() {
    let lab = Lab::new(overfly()).expect("a lab");
    install_for_both(&lab);
    let server = Server::nginx(&lab);
    eventually("nginx answers over IPv6", || {
        output(&lab, "client", &["curl", "-s", "--max-time", "1", "http://[fd77::1]/ok"]).stdout == b"ok"
    });
    let overfly = overfly();
    for link in ["xdp", "kernel"] {
        let words = ["load", "http", "--link", link, "-c", "16", "-n", "2000", "http://[fd77::1]/ok"];
        let words = [&[overfly.to_str().expect("a path in UTF-8")], &words[..]].concat();
        succeed(&lab, "client", &words);
        std::thread::sleep(Duration::from_millis(200));
    }
    server.stop();
}

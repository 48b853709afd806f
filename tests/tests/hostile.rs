//! Clients that mean harm, of `overfly load http --hostile`, against nginx over Overfly: nginx gets rid of those that it can tell,
//! and everybody else is served meanwhile.

use std::process::{Child, Stdio};

use overfly_bench::lab::{DEVICE, Lab};
use overfly_tests::{Nginx, Server, overfly, succeed};
use serde_json::Value;

const CLIENTS: u64 = 20;
const URL: &str = "http://10.77.0.1";

fn hostile(lab: &Lab, kind: &str, path: &str, link: &[&str]) -> Child {
    let mut command = lab.command("client", overfly());
    command
        .args([
            "load",
            "http",
            "--hostile",
            kind,
            "--hostile-interval",
            "200ms",
            "-t",
            "1",
            "-d",
            "2s",
            "--json",
        ])
        .args(["-c", &CLIENTS.to_string(), &format!("{URL}{path}")])
        .args(link);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("start hostile clients")
}

/// What they report once somebody else was served beside them.
fn beside_an_honest_client(lab: &Lab, attack: Child) -> Value {
    for _ in 0..10 {
        let page = succeed(lab, "client", &["curl", "-s", "--max-time", "10", &format!("{URL}/")]);
        assert_eq!(page, "hello from nginx\n");
    }
    let output = attack.wait_with_output().expect("the end of the hostile clients");
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(text.lines().last().unwrap_or_default())
        .unwrap_or_else(|error| panic!("{error}: {} {text}", output.status))
}

fn count(report: &Value, name: &str) -> u64 {
    report["counters"][format!("hostile.{name}")].as_u64().unwrap_or(0)
}

#[test]
fn nginx_outlasts_hostile_clients() {
    let lab = Lab::new(overfly()).expect("a lab");
    let large = vec![b'x'; 20 << 20];
    Nginx { patience_s: Some(1), ..Nginx::default() }.install(&lab, &[("large", &large)]);
    let server = Server::nginx(&lab);
    for (kind, path) in [
        ("connect-only", "/"),
        ("slow-headers", "/"),
        ("slow-body", "/"),
        ("slow-reader", "/large"),
        ("never-read", "/large"),
    ] {
        let report = beside_an_honest_client(&lab, hostile(&lab, kind, path, &[]));
        let (closed, reset) = (count(&report, "closed_by_server"), count(&report, "reset_by_server"));
        let opened = count(&report, "opened");
        assert!(opened >= CLIENTS, "{kind}: {report}");
        assert_eq!(opened, closed + reset + count(&report, "held"), "{kind}: {report}");
        if matches!(kind, "connect-only" | "slow-headers") {
            assert!(closed + reset >= CLIENTS, "{kind}: {report}");
        }
    }
    // Clients that never answer the answer to their SYN.
    let attack = hostile(&lab, "half-open", "/", &["--link", "xdp", "--interface", DEVICE]);
    let report = beside_an_honest_client(&lab, attack);
    assert!(count(&report, "begun") >= CLIENTS && count(&report, "opened") == 0, "{report}");
    server.stop();
}

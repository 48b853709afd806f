//! What an administrator sets, by sysctl or for a route, is seen over Overfly as it is over the kernel; what is not followed is
//! named. The broker runs in this process. Needs root and python3.

use std::process::Command;

use crate::bench::lab::{CLIENT, SERVER};
use crate::bench::{Bench, peer, programs, run, sum, text};

/// What the script tells of `looks`.
fn told(bench: &Bench, accelerates: bool, looks: &[&str]) -> String {
    let mut script = if accelerates { bench.accelerated("timeout") } else { Command::new("timeout") };
    script.args(["-s", "KILL", "60", "/usr/bin/python3"]).arg(programs("settings.py"));
    script.args([SERVER.to_string(), CLIENT.to_string()]).args(looks);
    let output = run(&bench.lab.server, &mut script);
    let (told, complained) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && told.ends_with("done\n"), "{looks:?}: {told}\n{complained}");
    if accelerates {
        let carried = sum(&complained, "accepts") + sum(&complained, "connects");
        assert!(carried > 0, "{looks:?} not accelerated: {complained}");
    }
    told
}

/// Both tell the same, and something else than without the setting.
fn follows(bench: &Bench, looks: &[&str], what: &str, set: impl Fn(bool)) {
    let before = told(bench, true, looks);
    set(true);
    let (kernel, overfly) = (told(bench, false, looks), told(bench, true, looks));
    set(false);
    println!("{what}: {before}, then {overfly}");
    assert_eq!(kernel, overfly, "{what}: kernel, Overfly");
    assert_ne!(before, overfly, "{what} makes no difference");
}

/// A file of net.ipv4, or of net.ipv6, has another value for a while.
fn sysctl(bench: &Bench, looks: &[&str], name: &str, value: &str) {
    let path = format!("/proc/sys/net/ipv4/{name}");
    let was = bench.lab.server.within(|| std::fs::read_to_string(&path).unwrap());
    follows(bench, looks, &format!("{name}={value}"), |on| {
        bench.lab.server.write(&path, if on { value } else { was.trim() });
    });
}

/// A bench with the other end, and a congestion control that both have.
fn bench() -> (Bench, crate::bench::Helper) {
    let bench = Bench::new(1);
    bench.lab.server.write("/proc/sys/net/ipv4/tcp_congestion_control", "reno");
    let peer = peer(&bench, &CLIENT.to_string());
    (bench, peer)
}

#[test]
fn what_a_handshake_offers_is_what_is_set() {
    let (bench, _peer) = bench();
    let both = ["syn", "answer"];
    for (name, value) in [
        ("tcp_timestamps", "0"),
        ("tcp_sack", "0"),
        ("tcp_window_scaling", "0"),
        ("ip_default_ttl", "33"),
        ("tcp_rmem", "4096 16384 33554432"),
    ] {
        sysctl(&bench, &both, name, value);
    }
    sysctl(&bench, &["syn"], "tcp_ecn", "1");
    // The peer asks, and is refused.
    bench.lab.client.write("/proc/sys/net/ipv4/tcp_ecn", "1");
    sysctl(&bench, &["answer"], "tcp_ecn", "0");
    // Cookies hold what timestamps have room for, and no more than the MSS without.
    bench.lab.client.write("/proc/sys/net/ipv4/tcp_timestamps", "0");
    sysctl(&bench, &["answer"], "tcp_syncookies", "2");
}

#[test]
fn what_a_connection_does_is_what_is_set() {
    let (bench, _peer) = bench();
    // Where the kernel may have it.
    if text(&std::fs::read("/proc/sys/net/ipv4/tcp_allowed_congestion_control").unwrap()).contains("bbr") {
        sysctl(&bench, &["own"], "tcp_congestion_control", "bbr");
    }
    bench.lab.server.write("/proc/sys/net/ipv4/tcp_congestion_control", "reno");
    sysctl(&bench, &["own"], "tcp_keepalive_time", "77");
    sysctl(&bench, &["own"], "tcp_keepalive_intvl", "7");
    sysctl(&bench, &["own"], "tcp_keepalive_probes", "3");
    sysctl(&bench, &["idle"], "tcp_slow_start_after_idle", "0");
    sysctl(&bench, &["gives_up"], "tcp_retries2", "2");
}

#[test]
fn what_is_not_answered_goes_again_as_often_as_is_set() {
    let (bench, _peer) = bench();
    // Somebody is there and says nothing.
    let mac = bench.lab.client.within(|| std::fs::read_to_string("/sys/class/net/veth0/address"));
    let shown = bench.lab.client.command("ip", &["-br", "link", "show", "dev", "veth0"]);
    let mac = mac.ok().filter(|mac| shown.contains(mac.trim())).unwrap_or_else(|| {
        shown.split_whitespace().find(|word| word.len() == 17 && word.contains(':')).unwrap().to_owned()
    });
    for silent in ["10.99.0.77", "10.99.0.3"] {
        bench.lab.server.run(&format!("neighbor add {silent} lladdr {} dev veth0 nud permanent", mac.trim()));
    }
    bench.lab.server.write("/proc/sys/net/ipv4/tcp_syn_linear_timeouts", "2");
    bench.lab.server.write("/proc/sys/net/ipv4/tcp_syn_retries", "2");
    sysctl(&bench, &["lost"], "tcp_syn_retries", "1");
    sysctl(&bench, &["lost"], "tcp_syn_linear_timeouts", "1");
    sysctl(&bench, &["unanswered"], "tcp_synack_retries", "1");
}

#[test]
fn what_is_set_for_a_route_is_followed() {
    let (bench, _peer) = bench();
    for (looks, metric) in [
        (&["syn", "answer"][..], "advmss 1000"),
        (&["syn", "answer"], "initrwnd 7"),
        (&["syn", "answer", "own"], "mtu 1300"),
        (&["own"], "initcwnd 23"),
        (&["own"], "congctl cubic"),
    ] {
        let route = |metric| {
            bench.lab.server.run(&format!("route replace 10.99.0.0/24 dev veth0 src {SERVER} {metric}"));
        };
        follows(&bench, looks, metric, |on| route(if on { metric } else { "" }));
    }
}

#[test]
fn a_cookie_of_the_kernels_is_taken_over_overfly_and_the_other_way_round() {
    const KEY: &str = "00112233-44556677-8899aabb-ccddeeff";
    const OTHER: &str = "01112233-44556677-8899aabb-ccddeeff";
    let (bench, _peer) = bench();
    let server =
        |name: &str, value: &str| bench.lab.server.write(&format!("/proc/sys/net/ipv4/{name}"), value);
    let forget = || bench.lab.client.command("ip", &["tcp_metrics", "flush"]);
    let expect = |accelerates: bool, look: &str, taken: [&str; 2]| {
        let expected = format!("data {}\ndata {}\ndone\n", taken[0], taken[1]);
        assert_eq!(told(&bench, accelerates, &[look]), expected, "accelerates: {accelerates}, {look}");
    };
    server("tcp_fastopen", "3");
    server("tcp_fastopen_key", KEY);
    for first in [false, true] {
        forget();
        expect(first, "fast", ["False", "True"]);
        expect(!first, "fast", ["True", "True"]);
    }
    // Keys are changed: a backup lets old cookies live.
    server("tcp_fastopen_key", &format!("{OTHER},{KEY}"));
    expect(true, "fast", ["True", "True"]);
    server("tcp_fastopen_key", KEY);
    for accelerates in [false, true] {
        forget();
        expect(accelerates, "fast", ["False", "True"]);
        server("tcp_fastopen_key", OTHER);
        expect(accelerates, "fast", ["False", "True"]);
        server("tcp_fastopen_key", KEY);
    }
    // 0x400: listeners that do not ask for it; 0x200 and 0x4: no cookie.
    for accelerates in [false, true] {
        forget();
        expect(accelerates, "fast_unasked", ["False", "False"]);
        server("tcp_fastopen", "1027");
        expect(accelerates, "fast_unasked", ["False", "True"]);
        forget();
        server("tcp_fastopen", "515");
        bench.lab.client.write("/proc/sys/net/ipv4/tcp_fastopen", "5");
        expect(accelerates, "fast", ["True", "True"]);
        bench.lab.client.write("/proc/sys/net/ipv4/tcp_fastopen", "1");
        server("tcp_fastopen", "3");
    }
}

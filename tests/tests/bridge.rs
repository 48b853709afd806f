//! An interface whose other end is a port of a bridge in the same network namespace: the bridge answers ARP for its address as well.

use std::process::Stdio;

use overfly_bench::lab::Lab;
use overfly_tests::service::accepts;
use overfly_tests::{Server, eventually, output, overfly, succeed};

/// The server's end of the lab becomes a port of a bridge, and a veth pair whose other end is another port becomes its `eth0`.
fn bridged() -> Lab {
    let lab = Lab::new(overfly()).expect("a lab");
    for line in [
        "link set eth0 down",
        "address flush dev eth0",
        "link set eth0 name out",
        "link add br.0 type bridge",
        "link set br.0 up",
        "link set out master br.0 up",
        "link add eth0 type veth peer name port",
        "link set port master br.0 up",
        "address add 10.77.0.1/24 dev eth0",
        "link set eth0 up",
    ] {
        let words: Vec<&str> = std::iter::once("ip").chain(line.split(' ')).collect();
        succeed(&lab, "server", &words);
    }
    lab
}

fn answers(lab: &Lab) -> bool {
    let url = "http://10.77.0.1:8080/";
    output(lab, "client", &["curl", "-sf", "-o", "/dev/null", "--max-time", "5", url]).status.success()
}

fn server(lab: &Lab) -> Server {
    let mut command = lab.command("server", overfly());
    command.args(["run", "-i", "eth0", "--", "/usr/bin/python3", "-m", "http.server", "8080"]);
    command.current_dir("/usr/share/doc").stdout(Stdio::null());
    Server::spawn(command)
}

/// What `overfly run` says before its program begins.
fn said(lab: &Lab) -> String {
    let said =
        output(lab, "server", &[overfly().to_str().expect("a path"), "run", "-i", "eth0", "--", "true"]);
    String::from_utf8_lossy(&said.stderr).into_owned()
}

#[test]
fn a_bridge_that_answers_for_the_interface_is_named_and_silenced_as_it_is_said() {
    let lab = bridged();
    let remedy = "sysctl -w net.ipv4.conf.br/0.arp_ignore=1";
    let warning = said(&lab);
    assert_eq!(warning.lines().count(), 1, "{warning}");
    assert!(warning.contains("br.0, the bridge that eth0 hangs on") && warning.contains(remedy), "{warning}");
    let doctor = |lab: &Lab| {
        let said = output(lab, "server", &[overfly().to_str().expect("a path"), "doctor"]);
        String::from_utf8_lossy(&said.stdout).into_owned()
    };
    let sick = doctor(&lab);
    assert!(
        sick.contains("br.0, the bridge that eth0") && sick.contains(&format!("type: {remedy}")),
        "{sick}"
    );

    // What it says to type helps, once the peer asks again.
    succeed(&lab, "server", &remedy.split(' ').collect::<Vec<_>>());
    succeed(&lab, "client", &["ip", "neigh", "flush", "dev", "eth0"]);
    assert_eq!(said(&lab), "");
    assert!(!doctor(&lab).contains("hangs on"));
    let server = server(&lab);
    eventually("connections bypass the kernel", || answers(&lab) && accepts(&lab) > 0);
    server.stop();
}

/// What the warning is about: whoever sends to the bridge's hardware address is served by the kernel.
#[test]
fn what_is_sent_to_the_bridge_is_the_kernels() {
    let lab = bridged();
    let server = server(&lab);
    let bridge = succeed(&lab, "server", &["cat", "/sys/class/net/br.0/address"]);
    succeed(&lab, "client", &["ip", "neigh", "replace", "10.77.0.1", "lladdr", bridge.trim(), "dev", "eth0"]);
    eventually("it answers", || answers(&lab));
    for _ in 0..20 {
        assert!(answers(&lab));
    }
    assert_eq!(accepts(&lab), 0);
    server.stop();
}

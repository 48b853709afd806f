//! What looking for neighbours does to the kernel's. Needs root.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use overfly_lab::{CLIENT, INTERFACE, Lab};
use overfly_steer::NextHops;

/// An administrator's and a control plane's entries stay as they are: the kernel forgets that with each request to look. Nobody is looked for
/// on another interface.
#[test]
fn who_was_told_where_a_neighbour_is_asks_nobody() {
    let lab = Lab::new(1);
    let entry = |address: &str| lab.server.command("ip", &["neighbor", "show", address, "nud", "all"]);
    let told = [
        ("10.99.0.70", "nud permanent"),
        ("10.99.0.71", "nud noarp"),
        ("10.99.0.72", "extern_learn nud stale"),
    ];
    for (address, how) in told {
        lab.server.run(&format!("neighbor add {address} lladdr 02:00:00:00:00:70 dev {INTERFACE} {how}"));
    }
    let stale = format!("neighbor replace {CLIENT} lladdr {} dev {INTERFACE} nud stale", lab.client.mac());
    lab.server.run(&stale);
    let before = told.map(|(address, _)| entry(address));
    assert!(before.iter().all(|entry| entry.contains("02:00:00:00:00:70")), "{before:?}");
    lab.server.run("link add beside type veth peer name besides");
    lab.server.run("link set beside up");
    lab.server.run("link set besides up");
    lab.server.run("route add 10.98.0.1 dev beside");
    let shown = lab.server.command("ip", &["-o", "link", "show", "dev", INTERFACE]);
    let index = shown.split(':').next().unwrap().parse().unwrap();
    let others = [IpAddr::from(CLIENT), "10.98.0.1".parse().unwrap()];
    let all = told.map(|(address, _)| address.parse().unwrap()).into_iter().chain(others);
    let mut hops = lab.server.within(|| NextHops::new(index, all.collect()).unwrap());
    assert_eq!(hops.look().len(), 4);
    assert_eq!(lab.server.command("ip", &["-4", "neighbor", "show", "dev", "beside", "nud", "all"]), "");
    // It looks after the fourth, and that one is there.
    let begin = Instant::now();
    while !entry(&CLIENT.to_string()).contains("REACHABLE") {
        assert!(begin.elapsed() < Duration::from_secs(20), "{}", entry(&CLIENT.to_string()));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(told.map(|(address, _)| entry(address)), before);
    assert_eq!(hops.look().len(), 4);
}

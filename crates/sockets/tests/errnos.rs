//! A walk through calls and states: what each call says, and what it leaves behind, over the kernel and over Overfly. The
//! broker runs in this process. Needs root and python3.

use std::net::IpAddr;
use std::process::Command;

use crate::bench::lab::{CLIENT, CLIENT_V6, SERVER, SERVER_V6};
use crate::bench::{Bench, peer, programs, run, sum, text};

/// What differs: how the names of the states and of the call begin, and why.
const EXPLAINED: [(&str, &str, &str); 17] = [
    ("", "F_SETFL", "of a connection's status flags only O_NONBLOCK is kept"),
    ("both_shut", "bind", "the kernel's socket keeps the port of a connection that is in TIME-WAIT"),
    ("shut_first", "bind", "as above"),
    (
        "refused",
        "set IPV6_V6ONLY 1",
        "the kernel's socket keeps its port until it is bound or connected again",
    ),
    ("both_shut", "set IPV6_V6ONLY 1", "as above"),
    ("refused", "SIOCOUTQ", "what will never be acknowledged is no longer counted"),
    ("peer_reset", "SIOCOUTQ", "as above"),
    ("shut", "SIOCOUTQ", "whether the peer has acknowledged the FIN by then is its own affair"),
    ("filled", "send oob", "after the handover the kernel's queue has room of its own"),
    ("refused", "get IP_MTU", "the path is forgotten with the connection"),
    (
        "",
        "set SO_LINGER negative",
        "for ever is as many seconds as there are, not what a jiffy makes of them",
    ),
    ("", "get SO_REUSEADDR", "what only the kernel's socket keeps is not inherited from a listener"),
    ("", "set SO_REUSEADDR short", "as above"),
    ("both_shut", "get TCP_QUICKACK", "stays as it was set"),
    ("both_shut", "set TCP_QUICKACK short", "as above"),
    ("peer_closed", "send twice", "a program that waits for events hears of a reset where it waits"),
    ("peer_closed", "shutdown rd", "as above"),
];

fn is_explained(line: &str) -> bool {
    let mut parts = line.split(" | ");
    let (state, call) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    EXPLAINED.iter().any(|(states, calls, _)| state.starts_with(states) && call.starts_with(calls))
}

/// What the walk says. `OVERFLY_STATES=listening,shut` takes it through states of these names only, for who looks for an error.
fn walk(own: IpAddr, other: IpAddr, accelerates: bool) -> String {
    let bench = Bench::new(2);
    // Both follow the administrator, as far as the engine has the algorithm; a namespace may always have this one.
    bench.lab.server.write("/proc/sys/net/ipv4/tcp_congestion_control", "reno");
    let _peer = peer(&bench, &other.to_string());
    let states = std::env::var("OVERFLY_STATES").unwrap_or_default();
    let mut script = if accelerates { bench.accelerated("timeout") } else { Command::new("timeout") };
    script.args(["-s", "KILL", "300", "python3"]).arg(programs("errnos.py"));
    script.args([own.to_string(), other.to_string()]);
    script.args(states.split(',').filter(|state| !state.is_empty()));
    let output = run(&bench.lab.server, &mut script);
    let (told, complained) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && told.ends_with("done\n"), "{told}\n{complained}");
    if accelerates && states.is_empty() {
        let (accepts, connects) = (sum(&complained, "accepts"), sum(&complained, "connects"));
        assert!(accepts > 2000 && connects > 2000, "not accelerated: {complained}");
    }
    told
}

/// Both walks at the same time: each waits most of it.
fn says_what_the_kernel_says(own: IpAddr, other: IpAddr) {
    let told = [false, true].map(|accelerates| std::thread::spawn(move || walk(own, other, accelerates)));
    let [kernel, overfly] = told.map(|walk| walk.join().unwrap());
    assert_eq!(kernel.lines().count(), overfly.lines().count());
    let differs = |(kernel, overfly): &(&str, &str)| kernel != overfly && !is_explained(kernel);
    let different: Vec<_> = kernel.lines().zip(overfly.lines()).filter(differs).collect();
    assert!(different.is_empty(), "kernel, Overfly: {different:#?}");
}

#[test]
fn calls_say_in_every_state_what_the_kernel_says() {
    says_what_the_kernel_says(SERVER.into(), CLIENT.into());
}

#[test]
fn calls_over_ipv6_say_in_every_state_what_the_kernel_says() {
    says_what_the_kernel_says(SERVER_V6.into(), CLIENT_V6.into());
}

//! Real programs under `overfly run`, each used by its own client or test traffic over the kernel.

use overfly_tests::programs::{Program, Way};

/// One test for each folder of `workloads/programs`.
macro_rules! programs {
    ($($test:ident $name:literal)*) => {
        const TESTED: &[&str] = &[$($name),*];
        $(
            #[test]
            fn $test() {
                works($name);
            }
        )*
    };
}

programs! {
    apache_event "apache-event"
    apache_prefork "apache-prefork"
    curl "curl"
    haproxy "haproxy"
    http3 "http3"
    iperf3 "iperf3"
    java_threads "java-threads"
    memcached "memcached"
    netty_epoll "netty-epoll"
    netty_nio "netty-nio"
    nginx_proxy "nginx-proxy"
    nginx_proxy_close "nginx-proxy-close"
    nginx_tls "nginx-tls"
    nginx_upgrade "nginx-upgrade"
    node "node"
    postgresql "postgresql"
    python_asyncio "python-asyncio"
    python_http "python-http"
    redis "redis"
    sshd "sshd"
    tokio "tokio"
    unbound "unbound"
    wget "wget"
}

#[test]
fn every_program_is_tested() {
    let with_a_test = Program::all().into_iter().filter(|program| program.packages().is_empty());
    assert_eq!(with_a_test.map(|program| program.name()).collect::<Vec<_>>(), TESTED);
}

#[test]
fn the_documentation_names_them() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/programs.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    // Two tables with a head each; a third one says of some under which load they were measured.
    let mut named: Vec<&str> = rows.filter(|name| *name != "program" && !name.contains(' ')).collect();
    named.sort_unstable();
    assert_eq!(named, Program::all().iter().map(Program::name).collect::<Vec<_>>());
}

#[track_caller]
fn works(name: &str) {
    let program = Program::named(name);
    let outcome = program.run(Way::Overfly("balanced"), 0);
    assert_eq!(outcome.fault, None);
    assert!(
        outcome.accelerated() > 0.9,
        "{} of {} connections were the kernel's",
        outcome.kernel_connections,
        outcome.connections
    );
    assert!(
        !outcome.is_handed_over() || program.says_handed_over(),
        "{} of {} connections were handed over to the kernel: a file `handed-over` in the folder says so, and why",
        outcome.handed_over,
        outcome.connections
    );
}

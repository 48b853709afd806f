//! Where the library's messages go: to standard error, unless that is a connection or the program's data by now. The broker runs in
//! this process. Needs root and python3.

use std::io::Read;
use std::net::TcpListener;

use crate::bench::lab::CLIENT;
use crate::bench::{Bench, run, text};

const PORT: u16 = 8080;

/// Connects, does what stands in `then` with the connection `s`, and ends with counters to tell (OVERFLY_STATS=1): what the peer got,
/// and what the standard error has that the program began with.
fn told(bench: &Bench, then: &str, argument: &str) -> (String, String) {
    let listener = bench.lab.client.within(|| TcpListener::bind((CLIENT, PORT)).unwrap());
    let script =
        format!("import os, socket, sys\ns = socket.create_connection(('{CLIENT}', {PORT}), 10)\n{then}\n");
    let mut program = bench.accelerated("timeout");
    program.args(["-s", "KILL", "60", "/usr/bin/python3", "-c", &script, argument]);
    let output = run(&bench.lab.server, &mut program);
    let complained = text(&output.stderr);
    assert!(output.status.success(), "{complained}");
    let mut got = String::new();
    bench.lab.client.within(|| listener.accept().unwrap().0.read_to_string(&mut got).unwrap());
    (got, complained)
}

#[test]
fn a_connection_that_is_standard_error_has_no_message_of_ours() {
    let bench = Bench::new(1);
    // As inetd and vsftpd do, in a child as well.
    for then in [
        "os.dup2(s.fileno(), 2); s.sendall(b'hello')",
        "os.dup2(s.fileno(), 2)\nif os.fork() == 0: s.sendall(b'hello')\nelse: os.wait()",
    ] {
        let (got, complained) = told(&bench, then, "");
        assert_eq!(got, "hello", "{then}: {complained}");
    }
}

#[test]
fn data_that_took_the_number_of_standard_error_has_no_message_of_ours() {
    let bench = Bench::new(1);
    let place = bench.path("data");
    let then =
        "os.close(2); assert os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT) == 2; os.write(2, b'data')";
    told(&bench, then, place.to_str().unwrap());
    assert_eq!(std::fs::read_to_string(place).unwrap(), "data");
}

#[test]
fn a_log_that_is_standard_error_has_the_messages() {
    let bench = Bench::new(1);
    let place = bench.path("log");
    let then = "os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)";
    let (_, complained) = told(&bench, then, place.to_str().unwrap());
    let log = std::fs::read_to_string(place).unwrap();
    assert!(log.contains("connects 1 (kernel 0)") && !complained.contains("connects"), "{log}\n{complained}");
    // That one, as it was: no log, but where the messages have gone from the beginning.
    assert!(told(&bench, "", "").1.contains("connects 1 (kernel 0)"));
}

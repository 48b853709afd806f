//! Peers that go on at another hardware address, as behind a gateway that failed over. The broker runs in this process. Needs root and
//! python3.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use crate::bench::lab::{INTERFACE, SERVER};
use crate::bench::{Bench, Helper, spawn, sum, text};

const PORT: u16 = 8080;

/// Sends as much as it is told to, a line each.
const PUSHER: &str = "
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print('ready', flush=True)
connection, _ = listener.accept()
for line in sys.stdin:
    connection.sendall(b'x' * int(line))
";

/// The client says nothing but to its neighbours, so that what it acknowledges cannot say where it is.
#[test]
fn a_peer_that_says_nothing_is_found_again() {
    let bench = Bench::new(1);
    // It tells its neighbours when its address changes (Documentation/networking/ip-sysctl.rst).
    bench.lab.client.write("/proc/sys/net/ipv4/conf/all/arp_notify", "1");
    let mut pusher = bench.accelerated("/usr/bin/python3");
    pusher.args(["-c", PUSHER, &SERVER.to_string(), &PORT.to_string()]);
    pusher.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut pusher = Helper(spawn(&bench.lab.server, &mut pusher));
    let mut ready = String::new();
    BufReader::new(pusher.0.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    bench.until_joined((IpAddr::from(SERVER), PORT).into(), 1);
    let mut client = bench.lab.client.within(|| TcpStream::connect((SERVER, PORT)).unwrap());
    client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut told = pusher.0.stdin.take().unwrap();
    let mut received = [0; 1000];
    for address in [None, Some("02:00:00:00:00:77"), Some("02:00:00:00:00:78")] {
        if let Some(address) = address {
            bench.lab.client.run(&format!("link set {INTERFACE} address {address}"));
        }
        writeln!(told, "{}", received.len()).unwrap();
        client.read_exact(&mut received).unwrap_or_else(|error| panic!("at {address:?}: {error}"));
    }
    drop(told);
    let mut complained = Vec::new();
    pusher.0.stderr.take().unwrap().read_to_end(&mut complained).unwrap();
    assert_eq!(sum(&text(&complained), "accepts"), 1, "{}", text(&complained));
}

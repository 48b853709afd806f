//! How connections end: by FIN, by RST, and by close() with something left.

use super::*;
use crate::stack::{EndsAre, TIME_WAIT_LEAST};

#[test]
fn hang_up_is_reported_without_being_asked_for() {
    let mut bench = Bench::new();
    let (client, server) = bench.pair();
    let set = bench.server.open_set();
    bench.server.watch(set, server, 101, bits::RDHUP, 7, false).unwrap();
    bench.client.shutdown(client, false, true).unwrap();
    bench.settle();
    assert_eq!(ready(&mut bench.server, set), [(bits::RDHUP, 7)]);
    bench.server.shutdown(server, false, true).unwrap();
    bench.settle();
    assert_eq!(ready(&mut bench.server, set), [(bits::RDHUP | bits::HUP, 7)]);
    assert_eq!(write(&mut bench.server, server, b"x"), Err(Errno::PIPE));
}

#[test]
fn a_reset_after_both_ends_is_no_broken_pipe() {
    // tcp_reset() in Linux's net/ipv4/tcp_input.c: EPIPE in CLOSE-WAIT, ECONNRESET in LAST-ACK.
    for (ends, error) in [(false, Errno::PIPE), (true, Errno::CONNRESET)] {
        let mut bench = Bench::new();
        let (client, server) = bench.pair();
        bench.client.shutdown(client, false, true).unwrap();
        bench.settle();
        assert_eq!(read(&mut bench.server, server, 10), Ok(vec![]));
        if ends {
            bench.server.shutdown(server, false, true).unwrap();
        }
        bench.client.change(client, |settings| settings.linger = Some(Duration::ZERO));
        bench.client.close(client);
        bench.client.transmit(bench.now);
        bench.settle();
        assert_eq!(bench.server.take_error(server), Some(error));
    }
}

#[test]
fn reset_is_an_error_once_and_then_the_end() {
    let mut bench = Bench::new();
    let (client, server) = bench.pair();
    let set = bench.server.open_set();
    bench.server.watch(set, server, 101, bits::IN, 7, false).unwrap();
    bench.client.change(client, |settings| settings.linger = Some(Duration::ZERO));
    bench.client.close(client);
    bench.settle();
    assert_eq!(ready(&mut bench.server, set), [(bits::IN | bits::ERR | bits::HUP, 7)]);
    assert_eq!(read(&mut bench.server, server, 10), Err(Errno::CONNRESET));
    assert_eq!(read(&mut bench.server, server, 10), Ok(vec![]));
    assert_eq!(write(&mut bench.server, server, b"x"), Err(Errno::PIPE));
    assert_eq!(bench.server.close(server), Closed::Reusable);
}

#[test]
fn unread_data_makes_close_a_reset() {
    let mut bench = Bench::new();
    let (client, server) = bench.pair();
    write(&mut bench.client, client, b"not read").unwrap();
    bench.settle();
    bench.server.close(server);
    bench.settle();
    assert_eq!(read(&mut bench.client, client, 10), Err(Errno::CONNRESET));
}

#[test]
fn refused_connection() {
    let mut bench = Bench::new();
    bench.server.part(bench.listener);
    let client = bench.connect();
    let set = bench.client.open_set();
    bench.client.watch(set, client, 101, bits::OUT, 7, false).unwrap();
    assert_eq!(ready(&mut bench.client, set), []);
    bench.settle();
    if let [(events, 7)] = ready(&mut bench.client, set)[..] {
        assert_eq!(events, bits::OUT | bits::ERR | bits::HUP);
        assert_eq!(bench.client.take_error(client), Some(Errno::CONNREFUSED));
        assert_eq!(bench.client.take_error(client), None);
    } else {
        // An engine that shares the interface leaves unknown ports to the kernel, which refuses.
        assert_eq!(bench.client.level(client), 0);
    }
}

/// What both ends have closed is no connection any more, whoever was first.
#[test]
fn a_connection_is_over_when_both_have_closed() {
    let mut bench = Bench::new();
    let (client, server) = bench.pair();
    bench.client.shutdown(client, false, true).unwrap();
    bench.settle();
    assert!(!bench.server.is_over(server) && !bench.client.is_over(client));
    bench.server.shutdown(server, false, true).unwrap();
    assert_eq!(bench.server.waiting(server), (1, 0), "the FIN, also before it has left");
    bench.settle();
    assert_eq!(bench.server.waiting(server), (0, 0));
    assert!(bench.server.is_over(server) && bench.client.is_over(client));
    assert_eq!(bench.server.shutdown(server, true, true), Err(Errno::NOTCONN));
    assert_eq!(bench.client.shutdown(client, true, true), Err(Errno::NOTCONN));
}

/// In TIME-WAIT a connection whose descriptor is still open may have given its ends to the next one (EF_TCP_SHARED_LOCAL_PORTS_REUSE_FAST):
/// their frames go on to come here when it is closed.
#[test]
fn ends_that_serve_the_next_connection_are_not_over() {
    let mut bench = Bench::new();
    let (first, server) = bench.pair();
    bench.client.shutdown(first, false, true).unwrap();
    bench.settle();
    bench.server.close(server);
    bench.settle();
    let local = bench.client.socket(first).local;
    let is_free = |bench: &Bench, after| bench.client.is_free(bench.now, local, SERVER, after);
    assert!(!is_free(&bench, Some(TIME_WAIT_LEAST)) && is_free(&bench, None));
    let next = bench.client.open(7, false, true).unwrap();
    bench
        .client
        .connect(bench.now, Side::Network, next, local, SERVER, SERVER_MAC, Settings::DEFAULT)
        .unwrap();
    bench.settle();
    bench.client.close(first);
    bench.settle();
    let mut over = Vec::new();
    let mut told = |bench: &mut Bench| {
        bench.client.disconnected(bench.now, |_, local, remote, are, _| over.push((local, remote, are)));
        over.len()
    };
    assert_eq!(told(&mut bench), 1);
    let server = bench.accept().unwrap();
    bench.server.close(server);
    bench.settle();
    bench.client.close(next);
    bench.settle();
    assert_eq!(told(&mut bench), 2);
    assert_eq!(over, [(local, SERVER, EndsAre::Others), (local, SERVER, EndsAre::Free)]);
}

//! Listeners, and connections that wait for accept().

use super::*;

#[test]
fn listener_is_ready_while_connections_wait() {
    let mut bench = Bench::new();
    let set = bench.server.open_set();
    bench.server.watch(set, bench.listener, 3, bits::IN, 1, false).unwrap();
    assert_eq!(ready(&mut bench.server, set), []);
    bench.connect();
    bench.connect();
    bench.settle();
    assert_eq!(ready(&mut bench.server, set), [(bits::IN, 1)]);
    assert!(bench.accept().is_some());
    assert_eq!(ready(&mut bench.server, set), [(bits::IN, 1)]);
    assert!(bench.accept().is_some());
    assert_eq!(ready(&mut bench.server, set), []);
    assert!(bench.accept().is_none());
}

#[test]
fn listeners_at_one_address_take_turns() {
    let mut bench = Bench::new();
    let second = bench.server.open(4, false, true).unwrap();
    bench.server.listening(second, 64);
    assert_eq!(bench.server.join(Side::Network, second, SERVER), Ok(false));
    for _ in 0..4 {
        bench.connect();
    }
    bench.settle();
    assert!(bench.accept().is_some() && bench.accept().is_some() && bench.accept().is_none());
    assert!(bench.server.accept(second, 200, true).is_some());
    assert_eq!(bench.server.last_member_at(Side::Network, second).next(), None);
    bench.server.part(second);
    assert_eq!(bench.server.last_member_at(Side::Network, bench.listener).next(), Some(SERVER));
    bench.server.part(bench.listener);
    assert_eq!(bench.server.last_member_at(Side::Network, bench.listener).next(), None);
}

#[test]
fn connections_that_die_while_they_wait_are_accepted_and_as_many_as_may_wait() {
    let mut bench = Bench::new();
    for _ in 0..500 {
        let client = bench.connect();
        bench.settle();
        bench.client.change(client, |settings| settings.linger = Some(Duration::ZERO));
        bench.client.close(client);
        bench.settle();
    }
    let waiting = bench.server.socket(bench.listener).listening.as_ref().unwrap().queue.len();
    // The backlog.
    assert_eq!(waiting, 64);
    bench.connect();
    bench.settle();
    for _ in 0..64 {
        let dead = bench.accept().unwrap();
        let socket = bench.server.socket(dead);
        assert_eq!(
            (socket.local, socket.remote.ip(), socket.error),
            (SERVER, CLIENT.into(), Some(Errno::CONNRESET))
        );
        assert_eq!(read(&mut bench.server, dead, 10), Err(Errno::CONNRESET));
        assert_eq!(bench.server.close(dead), Closed::Reusable);
    }
    let alive = bench.accept().unwrap();
    assert!(bench.server.socket(alive).error.is_none() && bench.accept().is_none());
}

#[test]
fn one_listener_takes_both_families() {
    let mut bench = Bench::new();
    let dual = bench.server.open(4, true, true).unwrap();
    bench.server.listening(dual, 64);
    let [v6, v4] = ["[::]:80", "0.0.0.0:80"].map(|address| address.parse::<SocketAddr>().unwrap());
    assert_eq!(
        (bench.server.join(Side::Network, dual, v6), bench.server.join(Side::Network, dual, v4)),
        (Ok(true), Ok(true))
    );
    let mut ends = Vec::new();
    for (remote, local) in [
        (SocketAddr::new(SERVER_V6.ip(), 80), CLIENT_V6.into()),
        ("10.77.0.9:80".parse().unwrap(), CLIENT.into()),
    ] {
        bench.port += 1;
        let id = bench.client.open(bench.port.into(), remote.is_ipv6(), true).unwrap();
        let local = SocketAddr::new(local, bench.port);
        bench
            .client
            .connect(bench.now, Side::Network, id, local, remote, SERVER_MAC, Settings::DEFAULT)
            .unwrap();
        bench.settle();
        let accepted = bench.server.accept(dual, 200 + i32::from(bench.port), true).unwrap();
        let socket = bench.server.socket(accepted);
        assert_eq!((socket.local, socket.remote, socket.v6), (remote, local, true));
        assert!(presented(socket.local, true, 7).is_ipv6());
        ends.push((id, accepted));
    }
    for (client, server) in ends {
        write(&mut bench.client, client, b"hello").unwrap();
        bench.settle();
        assert_eq!(read(&mut bench.server, server, 10).unwrap(), b"hello");
    }
    assert_eq!(bench.server.last_member_at(Side::Network, dual).collect::<Vec<_>>(), [v6, v4]);
    bench.server.part(dual);
    assert!(!bench.server.has_joined(dual) && bench.server.has_joined(bench.listener));
}

/// TCP_DEFER_ACCEPT: a connection is to be accepted once it has data or its end, or after the time.
#[test]
fn connections_without_data_are_not_accepted_yet() {
    let mut bench = Bench::new();
    bench.server.defer_accept(bench.listener, Duration::from_secs(3));
    let set = bench.server.open_set();
    bench.server.watch(set, bench.listener, 3, bits::IN, 7, false).unwrap();
    let [silent, speaks, ends, resets] = [(); 4].map(|()| bench.connect());
    let began = bench.now;
    bench.settle();
    assert!(bench.accept().is_none() && ready(&mut bench.server, set).is_empty());
    assert_eq!(write(&mut bench.client, speaks, b"hello"), Ok(5));
    bench.settle();
    assert_eq!(ready(&mut bench.server, set), [(bits::IN, 7)]);
    let server = bench.accept().unwrap();
    assert_eq!(read(&mut bench.server, server, 10), Ok(b"hello".to_vec()));
    assert!(bench.accept().is_none());
    bench.client.shutdown(ends, false, true).unwrap();
    bench.client.disconnect(bench.now, resets);
    bench.settle();
    let server = bench.accept().unwrap();
    assert_eq!(read(&mut bench.server, server, 10), Ok(Vec::new()));
    assert!(bench.accept().is_none());
    while ready(&mut bench.server, set).is_empty() {
        bench.wait();
    }
    assert!((3_000_000..3_300_000).contains(&(bench.now - began).as_micros()));
    let server = bench.accept().unwrap();
    assert!(bench.accept().is_none(), "who was reset is gone");
    assert_eq!(write(&mut bench.client, silent, b"late"), Ok(4));
    bench.settle();
    assert_eq!(read(&mut bench.server, server, 10), Ok(b"late".to_vec()));
}

/// What waits for data when the listener leaves is not forgotten.
#[test]
fn deferred_connections_leave_with_their_listener() {
    let mut bench = Bench::new();
    bench.server.defer_accept(bench.listener, Duration::from_secs(3));
    bench.connect();
    bench.settle();
    bench.server.part(bench.listener);
    let leaving = bench.server.leaving();
    assert_eq!(leaving.len(), 1);
    assert_eq!(bench.server.socket(leaving[0].0).deferred_until, None);
}

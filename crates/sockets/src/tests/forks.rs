//! What a fork leaves to the child.

use super::*;

#[test]
fn a_fork_leaves_descriptors_without_connections() {
    let mut bench = Bench::new();
    let (client, server) = bench.pair();
    let set = bench.server.open_set();
    bench.server.watch(set, server, 101, bits::IN, 7, false).unwrap();
    write(&mut bench.client, client, b"for the parent").unwrap();
    bench.connect();
    bench.settle();
    assert!(bench.server.forget(0)[0].is_some());
    assert!(!bench.server.has_joined(bench.listener));
    assert!(!bench.server.can_accept(bench.listener));
    assert_eq!(bench.server.close(server), Closed::Done);
    bench.server.close_set(set);
    assert_eq!(bench.server.close(bench.listener), Closed::Done);
}

/// Seed 241 of compare-calls: a connect() that had failed was begun anew by the child.
#[test]
fn a_fork_copies_connections_that_are_over() {
    let mut bench = Bench::new();
    let (client, server) = bench.pair();
    write(&mut bench.client, client, b"read by either").unwrap();
    bench.client.shutdown(client, false, true).unwrap();
    bench.settle();
    bench.server.shutdown(server, false, true).unwrap();
    bench.settle();
    assert!(bench.server.is_over(server));
    bench.server.share_unconnected();
    bench.server.forget(0);
    assert_eq!(read(&mut bench.server, server, 100).unwrap(), b"read by either");
    assert_eq!(read(&mut bench.server, server, 100).unwrap(), b"");
    let socket = bench.server.socket(server);
    assert!(socket.shared, "it connects in the kernel");
    assert!(socket.customized, "its descriptor serves no other connection");
}

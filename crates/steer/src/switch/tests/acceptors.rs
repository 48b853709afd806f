//! Which stack gets a new connection.

use super::*;

/// New connections go to who waits to accept, then to who looks, and never to who is elsewhere if anybody else is there.
#[test]
fn who_waits_to_accept_gets_the_next_connection() {
    let switch = Switch::default();
    let mut ends = [1, 2, 3].map(|stack| {
        let end = attach(&switch, stack);
        switch.listen(stack, Protocol::Tcp, local(80), false, Cluster::default()).unwrap();
        end
    });
    let mut ports = 1000..;
    let mut open = |ends: &mut [TapPort; 3]| {
        let syn = tcp_frame(remote(ports.next().unwrap()), local(80), tcp::Flags::SYN);
        switch.deliver(&syn);
        switch.flush();
        let received = ends.each_mut().map(|end| end.receive(64, |_| {}));
        assert_eq!(received.iter().sum::<usize>(), 1, "{received:?}");
        received.iter().position(|&count| count == 1).unwrap()
    };
    // All look, nobody waits: by hash.
    let owners: Vec<usize> = (0..100).map(|_| open(&mut ends)).collect();
    assert!((0..3).all(|end| owners.iter().filter(|&&owner| owner == end).count() > 10), "{owners:?}");
    // One waits.
    for _ in 0..20 {
        ends[1].wait_to_accept();
        assert_eq!(open(&mut ends), 1);
    }
    // It has looked since, and waits no more: by hash again.
    let owners: Vec<usize> = (0..100).map(|_| open(&mut ends)).collect();
    assert!(owners.iter().any(|&owner| owner != 1), "{owners:?}");
    // Who is elsewhere gets none, though somebody looks in its place.
    ends[0].look_unseen(true);
    ends[2].look_unseen(true);
    ends.iter_mut().for_each(|end| assert_eq!(receive_all(end), 0));
    assert!((0..100).all(|_| open(&mut ends) == 1));
    // Unless all are.
    ends[1].look_unseen(true);
    ends[1].receive(64, |_| {});
    let owners: Vec<usize> = (0..100).map(|_| open(&mut ends)).collect();
    assert!((0..3).all(|end| owners.contains(&end)), "{owners:?}");
    // A segment of a connection that was accepted goes where it was, whoever waits.
    ends.iter_mut().for_each(|end| end.look_unseen(false));
    ends.iter_mut().for_each(|end| assert_eq!(receive_all(end), 0));
    let first = open(&mut ends);
    ends[(first + 1) % 3].wait_to_accept();
    switch.deliver(&tcp_frame(remote(1000 + 100 + 20 + 100 + 100 + 100), local(80), tcp::Flags::ACK));
    switch.flush();
    assert_eq!(ends[first].receive(64, |_| {}), 1);
}

/// Two SYNs in a row: the second goes to another one that waits.
#[test]
fn who_waits_gets_one_connection_until_it_looks() {
    let switch = Switch::default();
    let mut ends = [1, 2].map(|stack| {
        let end = attach(&switch, stack);
        switch.listen(stack, Protocol::Tcp, local(80), false, Cluster::default()).unwrap();
        end
    });
    for round in 0..20 {
        for end in &mut ends {
            end.receive(64, |_| {});
            end.wait_to_accept();
        }
        for port in [1, 2] {
            switch.deliver(&tcp_frame(remote(2000 + 2 * round + port), local(80), tcp::Flags::SYN));
        }
        switch.flush();
        assert_eq!(ends.each_mut().map(|end| end.receive(64, |_| {})), [1, 1]);
    }
}

//! What epoll sets are told of sockets.

use super::*;

#[test]
fn level_triggered_interest_stays_until_read() {
    let mut bench = Bench::new();
    let (client, server) = bench.pair();
    let set = bench.server.open_set();
    bench.server.watch(set, server, 101, bits::IN, 7, false).unwrap();
    assert_eq!(bench.server.watch(set, server, 101, bits::IN, 7, false), Err(Errno::EXIST));
    assert_eq!(ready(&mut bench.server, set), []);
    write(&mut bench.client, client, b"hello").unwrap();
    bench.settle();
    assert_eq!(ready(&mut bench.server, set), [(bits::IN, 7)]);
    assert_eq!(ready(&mut bench.server, set), [(bits::IN, 7)]);
    read(&mut bench.server, server, 2).unwrap();
    assert_eq!(ready(&mut bench.server, set), [(bits::IN, 7)]);
    read(&mut bench.server, server, 10).unwrap();
    assert_eq!(ready(&mut bench.server, set), []);
}

#[test]
fn edge_triggered_interest_speaks_once_for_each_arrival() {
    let mut bench = Bench::new();
    let (client, server) = bench.pair();
    let set = bench.server.open_set();
    // Adding reports the present state once, as Linux does.
    bench.server.watch(set, server, 101, bits::IN | bits::OUT | bits::RDHUP | bits::ET, 7, false).unwrap();
    assert_eq!(ready(&mut bench.server, set), [(bits::OUT, 7)]);
    assert_eq!(ready(&mut bench.server, set), []);
    bench.client.change(client, |settings| settings.no_delay = true);
    for _ in 0..2 {
        write(&mut bench.client, client, b"hello").unwrap();
        bench.settle();
        assert_eq!(ready(&mut bench.server, set), [(bits::IN | bits::OUT, 7)]);
        assert_eq!(ready(&mut bench.server, set), []);
    }
    // A change of mind arms it again.
    assert_eq!(bench.server.rewatch(set, server, 101, bits::IN | bits::ET, 8), Ok(false));
    assert_eq!(ready(&mut bench.server, set), [(bits::IN, 8)]);
    bench.client.shutdown(client, false, true).unwrap();
    bench.settle();
    assert_eq!(ready(&mut bench.server, set), [(bits::IN, 8)]);
}

#[test]
fn one_shot_interest_is_disabled_until_modified() {
    let mut bench = Bench::new();
    let (client, server) = bench.pair();
    let set = bench.server.open_set();
    bench.server.watch(set, server, 101, bits::IN | bits::ONESHOT, 7, false).unwrap();
    write(&mut bench.client, client, b"hello").unwrap();
    bench.settle();
    assert_eq!(ready(&mut bench.server, set), [(bits::IN, 7)]);
    write(&mut bench.client, client, b"hello").unwrap();
    bench.settle();
    assert_eq!(ready(&mut bench.server, set), []);
    bench.server.rewatch(set, server, 101, bits::IN | bits::ONESHOT, 7).unwrap();
    assert_eq!(ready(&mut bench.server, set), [(bits::IN, 7)]);
    assert_eq!(bench.server.unwatch(set, server, 101), Ok(false));
    assert_eq!(bench.server.unwatch(set, server, 101), Err(Errno::NOENT));
    assert_eq!(bench.server.watching(set), 0);
}

#[test]
fn full_send_queue_says_again_and_then_that_it_has_room() {
    let mut bench = Bench::new();
    let (client, server) = bench.pair();
    let set = bench.server.open_set();
    bench.server.watch(set, server, 101, bits::OUT | bits::ET, 7, false).unwrap();
    ready(&mut bench.server, set);
    let block = vec![1; 100_000];
    let mut written = 0;
    loop {
        match write(&mut bench.server, server, &block) {
            Ok(count) => written += count,
            Err(error) => {
                assert_eq!(error, Errno::AGAIN);
                break;
            }
        }
    }
    assert_eq!(written, Settings::DEFAULT.send_limit);
    assert_eq!(ready(&mut bench.server, set), []);
    let mut received = 0;
    let mut rounds = 0;
    while received < written {
        bench.settle();
        match read(&mut bench.client, client, 1 << 20) {
            Ok(data) => received += data.len(),
            Err(_) => bench.wait(),
        }
        rounds += 1;
        assert!(rounds < 1000);
    }
    bench.settle();
    assert_eq!(ready(&mut bench.server, set), [(bits::OUT, 7)]);
    assert_eq!(received, written);
}

#[test]
fn closing_a_set_leaves_its_sockets() {
    let mut bench = Bench::new();
    let (client, server) = bench.pair();
    let (first, second) = (bench.server.open_set(), bench.server.open_set());
    bench.server.watch(first, server, 101, bits::IN, 1, false).unwrap();
    bench.server.watch(second, server, 101, bits::IN, 2, false).unwrap();
    write(&mut bench.client, client, b"x").unwrap();
    bench.settle();
    assert!(bench.server.set_is_ready(first));
    bench.server.close_set(first);
    assert_eq!(ready(&mut bench.server, second), [(bits::IN, 2)]);
    bench.server.close(server);
    assert_eq!(ready(&mut bench.server, second), []);
}

/// A write that took all it was given, but leaves less than a third free, does not make a waiter deaf.
#[test]
fn room_is_news_to_who_asked_in_vain() {
    let mut bench = Bench::new();
    let (client, server) = bench.pair();
    let set = bench.server.open_set();
    bench.server.watch(set, server, 9, bits::OUT, 7, false).unwrap();
    assert_eq!(ready(&mut bench.server, set), [(bits::OUT, 7)]);
    let data = vec![1; 400_000];
    assert_eq!(write(&mut bench.server, server, &data), Ok(data.len()));
    assert_eq!(ready(&mut bench.server, set), []);
    bench.settle();
    let mut left = data.len();
    while left > 0 {
        left -= read(&mut bench.client, client, 1 << 20).map_or(0, |data| data.len());
        bench.settle();
    }
    assert_eq!(ready(&mut bench.server, set), [(bits::OUT, 7)]);
}

/// TCP_NOTSENT_LOWAT: what was not sent stays below the mark, and room is news as soon as a segment takes enough of it.
#[test]
fn unsent_bytes_stay_below_the_mark() {
    let mut bench = Bench::new();
    let (client, server) = bench.pair();
    bench.server.change(server, |settings| settings.unsent_low_water = 20_000);
    let set = bench.server.open_set();
    bench.server.watch(set, server, 9, bits::OUT | bits::ET, 7, false).unwrap();
    assert_eq!(ready(&mut bench.server, set), [(bits::OUT, 7)]);
    let data = vec![1; 100_000];
    let mut written = 0;
    let mut events = 0;
    let mut received = 0;
    while received < 1_000_000 {
        while let Ok(count) = write(&mut bench.server, server, &data) {
            written += count;
            let (waiting, unsent) = bench.server.waiting(server);
            assert!(unsent < 20_000 + 4096 && unsent <= waiting, "{unsent} of {waiting}");
        }
        assert_eq!(bench.server.level(server) & bits::OUT, 0);
        bench.settle();
        while let Ok(data) = read(&mut bench.client, client, 1 << 20) {
            received += data.len();
        }
        bench.settle();
        if bench.server.waiting(server).1 * 2 < 20_000 {
            assert_eq!(ready(&mut bench.server, set), [(bits::OUT, 7)], "{written}");
            events += 1;
        }
    }
    assert!(events > 10);
    // More than the mark can wait for acknowledgment: only what was not sent counts.
    assert_eq!(bench.server.waiting(server).1, 0);
}

/// SO_RCVLOWAT: fewer bytes are there, and can be read, but are no news.
#[test]
fn few_bytes_are_no_news() {
    let mut bench = Bench::new();
    let (client, server) = bench.pair();
    bench.server.change(server, |settings| settings.no_delay = true);
    bench.client.change(client, |settings| settings.receive_low_water = 5);
    let set = bench.client.open_set();
    bench.client.watch(set, client, 9, bits::IN, 7, false).unwrap();
    assert_eq!(write(&mut bench.server, server, b"1234"), Ok(4));
    bench.settle();
    assert_eq!(ready(&mut bench.client, set), []);
    assert_eq!(write(&mut bench.server, server, b"5"), Ok(1));
    bench.settle();
    assert_eq!(ready(&mut bench.client, set), [(bits::IN, 7)]);
    assert_eq!(read(&mut bench.client, client, 1), Ok(b"1".to_vec()));
    assert_eq!(bench.client.level(client) & bits::IN, 0);
    // What there is no room to wait for is enough.
    bench.client.change(client, |settings| settings.receive_low_water = 1 << 30);
    let data = vec![0; 200_000];
    assert_eq!(write(&mut bench.server, server, &data), Ok(data.len()));
    bench.settle();
    assert_eq!(ready(&mut bench.client, set), [(bits::IN, 7)]);
}

//! Threads: those that wait for one another's sockets, and those that have a stack each.

use super::*;
use crate::process::{contexts, process};

#[test]
fn threads_wait_for_what_others_do() {
    script(|world| {
        let (listener, port) = world.listen();
        let accepting: Vec<_> = (0..3)
            .map(|_| {
                std::thread::spawn(move || {
                    let (descriptor, _) = accept(listener, 0).unwrap();
                    let data = recv(descriptor, 10, 0);
                    assert_eq!(write(descriptor, b"done"), Ok(4));
                    assert_eq!(close(descriptor), Ok(0));
                    data
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(20));
        let far: Vec<Far> = (0..3)
            .map(|index| {
                let mut far = world.peer.connect(own(port), 40_001 + index);
                far.write(b"hello");
                far
            })
            .collect();
        for thread in accepting {
            assert_eq!(thread.join().unwrap(), Ok(b"hello".to_vec()));
        }
        for mut far in far {
            assert_eq!(far.read(10), b"done");
        }
        assert_eq!(close(listener), Ok(0));
    });
}

#[test]
fn a_thread_hears_that_another_one_closes_or_shuts_its_socket() {
    script(|world| {
        let (descriptor, _far) = world.dial();
        let waiting = std::thread::spawn(move || recv(descriptor, 10, 0));
        std::thread::sleep(Duration::from_millis(30));
        // SAFETY: no memory is lent.
        assert_eq!(said(unsafe { sockets::shutdown(descriptor, libc::SHUT_RD) }), Ok(0));
        assert_eq!(waiting.join().unwrap(), Ok(vec![]));
        // A set that gets a socket while it is waited for.
        let set = epoll();
        let waiting = std::thread::spawn(move || ask(set, 5000));
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(watch(set, descriptor, libc::EPOLLOUT), Ok(0));
        assert_eq!(waiting.join().unwrap(), Ok(vec![(libc::EPOLLOUT as u32, descriptor as u64)]));
        let (listener, _) = world.listen();
        assert_eq!(polled(listener, libc::POLLIN, 0), 0);
        let waiting = std::thread::spawn(move || accept(listener, 0));
        std::thread::sleep(Duration::from_millis(30));
        // SAFETY: as above.
        assert_eq!(said(unsafe { sockets::shutdown(listener, libc::SHUT_RD) }), Ok(0));
        assert_eq!(waiting.join().unwrap().err(), Some(Errno::INVAL));
    });
}

/// Each thread's sockets are in a context of its own; calls of others find them there.
fn with_stacks(per_thread: u64, act: impl FnOnce(&World), world: &World) {
    {
        let mut process = process();
        process.options.stack_per_thread = per_thread;
        (process.options.tcp_server_loopback, process.options.tcp_client_loopback) = (2, 4);
        let (options, rules) = (process.options, process.rules.clone());
        drop(process);
        let broker = crate::process::process().broker_of_tests();
        contexts::begin(options, &rules, broker.as_deref(), true);
    }
    act(world);
}

#[test]
fn stacks_of_threads_talk_within_the_host() {
    script(|world| {
        with_stacks(
            1,
            |_| {
                let (sender, receiver) = std::sync::mpsc::channel();
                let serving = std::thread::spawn(move || {
                    let listener = socket(libc::AF_INET, libc::SOCK_STREAM);
                    assert_eq!(bind(listener, "127.0.0.1:0".parse().unwrap()), Ok(0));
                    // SAFETY: no memory is lent.
                    assert_eq!(said(unsafe { sockets::listen(listener, 4) }), Ok(0));
                    assert_eq!(polled(listener, libc::POLLIN, 0), 0);
                    sender.send(name(listener, false).unwrap()).unwrap();
                    let (descriptor, _) = accept(listener, 0).unwrap();
                    assert_eq!(recv(descriptor, 5, libc::MSG_WAITALL), Ok(b"hello".to_vec()));
                    assert_eq!(write(descriptor, b"done"), Ok(4));
                    (descriptor, listener)
                });
                let at = receiver.recv().unwrap();
                let opened = socket(libc::AF_INET, libc::SOCK_STREAM);
                assert_eq!(connect(opened, at), Ok(0));
                assert_eq!(write(opened, b"hello"), Ok(5));
                assert_eq!(recv(opened, 4, libc::MSG_WAITALL), Ok(b"done".to_vec()));
                let (descriptor, listener) = serving.join().unwrap();
                // Of two contexts at once.
                let mut asked = [opened, descriptor, listener].map(|fd| libc::pollfd {
                    fd,
                    events: libc::POLLIN,
                    revents: 0,
                });
                // SAFETY: the records are lent.
                assert_eq!(said(unsafe { events::poll(asked.as_mut_ptr(), 3, 5) }), Ok(0));
                let set = epoll();
                for end in [opened, descriptor, listener] {
                    assert_eq!(watch(set, end, libc::EPOLLIN), Ok(0));
                }
                assert_eq!(ask(set, 5), Ok(vec![]));
                assert_eq!(write(opened, b"again"), Ok(5));
                let readable = (libc::EPOLLIN as u32, descriptor as u64);
                assert_eq!(ask(set, 2000), Ok(vec![readable]));
                assert_eq!(recv(descriptor, 10, 0), Ok(b"again".to_vec()));
                for descriptor in [set, opened, descriptor, listener] {
                    assert_eq!(close(descriptor), Ok(0));
                }
            },
            &world,
        );
    });
}

#[test]
fn connections_stay_where_there_is_no_other_stack_to_go_to() {
    script(|world| {
        with_stacks(
            2,
            |world| {
                let (listener, port) = world.listen();
                let mut far = world.peer.connect(own(port), 40_001);
                let (descriptor, _) = accept(listener, 0).unwrap();
                let reading = std::thread::spawn(move || {
                    for _ in 0..40 {
                        assert_eq!(recv(descriptor, 1, 0), Ok(b"x".to_vec()));
                        assert_eq!(write(descriptor, b"y"), Ok(1));
                    }
                });
                for _ in 0..40 {
                    far.write(b"x");
                    assert_eq!(far.read(1), b"y");
                }
                reading.join().unwrap();
                assert_eq!((close(descriptor), close(listener)), (Ok(0), Ok(0)));
            },
            &world,
        );
    });
}

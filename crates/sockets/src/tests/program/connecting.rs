//! connect(): by which port, and what comes of it.

use overfly_broker::Refusal;
use overfly_broker::message::Kind;

use super::*;
use crate::process::process;
use crate::tests::CLIENT_V6;

fn fresh(flags: c_int) -> c_int {
    socket(libc::AF_INET, libc::SOCK_STREAM | flags)
}

#[test]
fn who_does_not_wait_asks_again() {
    script(|world| {
        let descriptor = fresh(libc::SOCK_NONBLOCK);
        // The peer does not answer meanwhile.
        let peer = world.peer.stack();
        assert_eq!(connect(descriptor, FAR), Err(Errno::INPROGRESS));
        assert_eq!(connect(descriptor, FAR), Err(Errno::ALREADY));
        drop(peer);
        assert_eq!(polled(descriptor, libc::POLLOUT, 1000), libc::POLLOUT);
        assert_eq!(number(descriptor, libc::SOL_SOCKET, libc::SO_ERROR), Ok(0));
        assert_eq!(connect(descriptor, FAR), Ok(0), "the first one says that it is done");
        assert_eq!(connect(descriptor, FAR), Err(Errno::ISCONN));
        let mut far = world.peer.accept();
        assert_eq!(write(descriptor, b"made"), Ok(4));
        assert_eq!(far.read(4), b"made");
        assert_eq!(close(descriptor), Ok(0));
    });
}

#[test]
fn where_nobody_listens_it_is_refused() {
    script(|world| {
        let nobody: SocketAddr = "10.77.0.2:9".parse().unwrap();
        let descriptor = fresh(0);
        assert_eq!(connect(descriptor, nobody), Err(Errno::CONNREFUSED));
        assert_eq!(connect(descriptor, FAR), Ok(0), "and may try elsewhere");
        drop(world.peer.accept());
        let waiting = fresh(libc::SOCK_NONBLOCK);
        assert_eq!(connect(waiting, nobody), Err(Errno::INPROGRESS));
        let events = libc::POLLIN | libc::POLLOUT;
        until(|| (polled(waiting, events, 100) & libc::POLLERR != 0).then_some(()));
        assert_eq!(number(waiting, libc::SOL_SOCKET, libc::SO_ERROR), Ok(libc::ECONNREFUSED));
        let again = fresh(libc::SOCK_NONBLOCK);
        assert_eq!(connect(again, nobody), Err(Errno::INPROGRESS));
        until(|| (polled(again, events, 100) & libc::POLLERR != 0).then_some(()));
        assert_eq!(connect(again, nobody), Err(Errno::CONNREFUSED));
        // SAFETY: no memory is lent.
        assert_eq!(said(unsafe { sockets::shutdown(again, libc::SHUT_WR) }), Err(Errno::NOTCONN));
        for descriptor in [descriptor, waiting, again] {
            assert_eq!(close(descriptor), Ok(0));
        }
    });
}

#[test]
fn connections_are_dissolved_and_made_anew() {
    script(|world| {
        // SAFETY: an all-zero record is valid.
        let nowhere: sockaddr = unsafe { core::mem::zeroed() };
        // SAFETY: the record is lent.
        let dissolve = |end| said(unsafe { sockets::connect(end, &raw const nowhere, 16) });
        let mut twins = world.twins();
        assert_eq!(twins.same(dissolve), Ok(0));
        assert_eq!(twins.same(|end| name(end, true)), Err(Errno::NOTCONN));
        assert_eq!(twins.same(|end| recv(end, 1, 0)), Err(Errno::CONNRESET));
        assert_eq!(twins.same(|end| recv(end, 1, 0)), Err(Errno::NOTCONN));
        assert_eq!(twins.same(|end| send(end, b"x", libc::MSG_NOSIGNAL)), Err(Errno::PIPE));
        assert_eq!(
            twins.same(|end| polled(end, libc::POLLIN | libc::POLLOUT, 0)),
            libc::POLLOUT | libc::POLLHUP
        );
        twins.far = [None, None];
        assert_eq!(connect(twins.ends[0], FAR), Ok(0));
        assert_eq!(connect(twins.ends[1], world.kernel.local_addr().unwrap()), Ok(0));
        twins.far = [Some(world.peer.accept()), Some(Far::Kernel(world.kernel.accept().unwrap().0))];
        twins.hear(b"anew");
        assert_eq!(twins.same(|end| recv(end, 10, 0)), Ok(b"anew".to_vec()));
        let (listener, port) = world.listen();
        let watched = polled(listener, libc::POLLIN, 0);
        assert_eq!((watched, dissolve(listener)), (0, Ok(0)), "it listens no more");
        assert_eq!(accept(listener, 0), Err(Errno::INVAL));
        assert_eq!(number(listener, libc::SOL_SOCKET, libc::SO_ACCEPTCONN), Ok(0));
        assert!(port > 0);
        // SAFETY: as above.
        assert_eq!(said(unsafe { sockets::connect(listener, &raw const nowhere, 1) }), Err(Errno::INVAL));
        twins.close();
    });
}

#[test]
fn listeners_end_by_shutdown_and_begin_anew() {
    script(|world| {
        let (listener, _) = world.listen();
        assert_eq!(polled(listener, libc::POLLIN, 0), 0);
        // SAFETY: no memory is lent.
        let (shutdown, listen) =
            unsafe { (|end, how| said(sockets::shutdown(end, how)), |end| said(sockets::listen(end, 4))) };
        assert_eq!(shutdown(listener, libc::SHUT_RD), Ok(0));
        assert_eq!(accept(listener, 0), Err(Errno::INVAL));
        assert_eq!(listen(listener), Ok(0));
        assert_eq!(polled(listener, libc::POLLIN, 0), 0);
        // A port that nobody had asked for is another one.
        let port = name(listener, false).unwrap().port();
        let far = world.peer.connect(own(port), 40_001);
        assert_eq!(polled(listener, libc::POLLIN, 3000), libc::POLLIN);
        let (descriptor, _) = accept(listener, libc::SOCK_CLOEXEC).unwrap();
        assert_eq!(accept(listener, 77), Err(Errno::INVAL));
        far.close();
        assert_eq!(connect(listener, FAR), Err(Errno::ISCONN));
        assert_eq!(bind(listener, own(0)), Err(Errno::INVAL));
        assert_eq!(close(descriptor), Ok(0));
        assert_eq!(close(listener), Ok(0));
    });
}

#[test]
fn what_the_broker_refuses_the_kernel_does() {
    script(|world| {
        world.told.forbid(Kind::Connect, Refusal::RouteElsewhere);
        let descriptor = fresh(libc::SOCK_NONBLOCK);
        let outcome = connect(descriptor, "10.77.0.2:80".parse().unwrap());
        assert!(outcome.is_err());
        assert!(!crate::hooks::data::is_connection(descriptor), "it is the kernel's");
        world.told.allow();
        let near = fresh(0);
        assert_eq!(connect(near, world.kernel.local_addr().unwrap()), Ok(0));
        assert!(!crate::hooks::data::is_connection(near));
        world.told.forbid(Kind::Listen, Refusal::ListenerTaken);
        let (listener, port) = world.listen();
        assert_eq!(polled(listener, libc::POLLIN, 0), 0);
        // Whoever connects by the kernel is accepted all the same.
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (accepted, from) = accept(listener, 0).unwrap();
        assert_eq!(from, client.local_addr().unwrap());
        for descriptor in [descriptor, near, listener, accepted] {
            assert_eq!(close(descriptor), Ok(0));
        }
    });
}

#[test]
fn a_listener_takes_the_kernels_connections_too() {
    script(|world| {
        let (listener, port) = world.listen();
        let set = epoll();
        assert_eq!(watch(set, listener, libc::EPOLLIN), Ok(0));
        for index in 0..2 {
            let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let far = world.peer.connect(own(port), 40_001 + index);
            for _ in 0..2 {
                assert_eq!(ask(set, -1), Ok(vec![(libc::EPOLLIN as u32, listener as u64)]));
                let (accepted, _) = accept(listener, 0).unwrap();
                assert_eq!(close(accepted), Ok(0));
            }
            drop(client);
            far.close();
        }
        assert_eq!((close(set), close(listener)), (Ok(0), Ok(0)));
    });
}

#[test]
fn local_ports_are_shared() {
    script(|world| {
        {
            let mut process = process();
            process.options.tcp_shared_local_ports = 2;
            process.options.tcp_shared_local_ports_max = 3;
        }
        let mut ends = Vec::new();
        let mut ports = Vec::new();
        for _ in 0..5 {
            let (descriptor, far) = world.dial();
            ports.push(name(descriptor, false).unwrap().port());
            ends.push((descriptor, far));
        }
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 5, "all to one peer: three are shared, two are their own");
        for (descriptor, mut far) in ends {
            assert_eq!(write(descriptor, b"mine"), Ok(4));
            assert_eq!(far.read(4), b"mine");
            assert_eq!(close(descriptor), Ok(0));
            far.close();
        }
        process().options.tcp_shared_local_ports_no_fallback = 1;
        let mut more = Vec::new();
        let refused = loop {
            let descriptor = fresh(0);
            match connect(descriptor, FAR) {
                Ok(_) => more.push((descriptor, world.peer.accept())),
                Err(error) => break error,
            }
            assert!(more.len() < 5);
        };
        assert_eq!(refused, Errno::ADDRNOTAVAIL);
    });
}

#[test]
fn bound_sockets_connect_from_where_they_are_bound() {
    script(|world| {
        let descriptor = fresh(0);
        assert_eq!(bind(descriptor, own(0)), Ok(0));
        let bound = name(descriptor, false).unwrap();
        assert_eq!(connect(descriptor, FAR), Ok(0));
        assert_eq!(name(descriptor, false), Ok(bound));
        drop(world.peer.accept());
        assert_eq!(close(descriptor), Ok(0));
        let other = fresh(0);
        assert_eq!(bind(other, "127.0.0.1:0".parse().unwrap()), Ok(0));
        assert_eq!(connect(other, "[::1]:80".parse().unwrap()), Err(Errno::AFNOSUPPORT));
        let wrong = sockaddr { sa_family: 77, sa_data: [0; 14] };
        // SAFETY: the record is lent.
        assert_eq!(said(unsafe { sockets::connect(other, &raw const wrong, 16) }), Err(Errno::AFNOSUPPORT));
        // SAFETY: as above.
        assert_eq!(said(unsafe { sockets::connect(other, core::ptr::null(), 16) }), Err(Errno::FAULT));
        // SAFETY: as above.
        assert_eq!(said(unsafe { sockets::connect(other, &raw const wrong, 1) }), Err(Errno::INVAL));
        assert_eq!(close(other), Ok(0));
    });
}

#[test]
fn ipv6_is_spoken_too() {
    script(|world| {
        let six = SocketAddr::new(CLIENT_V6.into(), 80);
        {
            let mut stack = world.peer.stack();
            let listener = world.peer.listener;
            assert!(stack.join(Side::Network, listener, six).is_ok());
        }
        let descriptor = socket(libc::AF_INET6, libc::SOCK_STREAM);
        assert_eq!(connect(descriptor, six), Ok(0));
        let mut far = world.peer.accept();
        assert_eq!(name(descriptor, true), Ok(six));
        assert_eq!(write(descriptor, b"six"), Ok(3));
        assert_eq!(far.read(3), b"six");
        let mapped = socket(libc::AF_INET6, libc::SOCK_STREAM);
        assert_eq!(connect(mapped, "[::ffff:10.77.0.2]:80".parse().unwrap()), Ok(0));
        drop(world.peer.accept());
        assert_eq!(name(mapped, true), Ok("[::ffff:10.77.0.2]:80".parse().unwrap()));
        let listener = socket(libc::AF_INET6, libc::SOCK_STREAM);
        assert_eq!(bind(listener, "[::]:0".parse().unwrap()), Ok(0));
        // SAFETY: no memory is lent.
        assert_eq!(said(unsafe { sockets::listen(listener, 4) }), Ok(0));
        let port = name(listener, false).unwrap().port();
        let _four = world.peer.connect(own(port), 40_001);
        let (accepted, from) = accept(listener, 0).unwrap();
        assert_eq!(from, "[::ffff:10.77.0.2]:40001".parse().unwrap());
        for descriptor in [descriptor, mapped, listener, accepted] {
            assert_eq!(close(descriptor), Ok(0));
        }
    });
}

#[test]
fn data_goes_with_the_syn() {
    script(|world| {
        for flags in [0, libc::SOCK_NONBLOCK] {
            let descriptor = fresh(flags);
            let (at, length) = record(FAR);
            let open = |end| {
                let at = (&raw const at).cast();
                // SAFETY: the data and the address are lent.
                said_long(unsafe {
                    send::sendto(end, b"first".as_ptr().cast(), 5, libc::MSG_FASTOPEN, at, length)
                })
            };
            // Without a cookie yet the data follows, or is not waited for.
            let outcome = open(descriptor);
            let mut far = world.peer.accept();
            if flags == 0 {
                assert_eq!(outcome, Ok(5));
            } else {
                assert_eq!(outcome, Err(Errno::INPROGRESS));
                assert_eq!(polled(descriptor, libc::POLLOUT, 1000), libc::POLLOUT);
                assert_eq!(write(descriptor, b"first"), Ok(5));
            }
            assert_eq!(far.read(5), b"first");
            // Who has not been told that it is connected is told so by this call.
            assert_eq!(open(descriptor), if flags == 0 { Err(Errno::ISCONN) } else { Ok(5) });
            assert_eq!(close(descriptor), Ok(0));
        }
    });
}

#[test]
fn close_waits_as_so_linger_says() {
    script(|world| {
        let mut twins = world.twins();
        let linger = libc::linger { l_onoff: 1, l_linger: 5 };
        assert_eq!(twins.same(|end| set_option(end, libc::SOL_SOCKET, libc::SO_LINGER, &linger)), Ok(0));
        assert_eq!(twins.same(|end| write(end, b"all of it")), Ok(9));
        assert_eq!(twins.same(close), Ok(0));
        assert_eq!(twins.far_read(100), b"all of it");
        let (descriptor, mut far) = world.dial();
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        assert_eq!(set_option(descriptor, libc::SOL_SOCKET, libc::SO_LINGER, &linger), Ok(0));
        assert_eq!(close(descriptor), Ok(0));
        if let Far::Peer(peer, id) = &mut far {
            let error = peer.until(|stack| stack.take_error(*id));
            assert_eq!(error, Errno::CONNRESET);
        }
    });
}

//! setsockopt() and getsockopt().

use super::*;

const TCP: c_int = libc::IPPROTO_TCP;
const SOCKET: c_int = libc::SOL_SOCKET;

/// What differs because the path does, or time passes: sizes of buffers, of segments, of windows, and statistics.
const OF_THE_PATH: [(c_int, c_int); 17] = [
    (SOCKET, libc::SO_RCVBUF),
    (SOCKET, libc::SO_SNDBUF),
    (SOCKET, libc::SO_COOKIE),
    (SOCKET, libc::SO_INCOMING_CPU),
    (SOCKET, libc::SO_INCOMING_NAPI_ID),
    (SOCKET, libc::SO_MEMINFO),
    (SOCKET, libc::SO_MAX_PACING_RATE),
    (TCP, libc::TCP_MAXSEG),
    (TCP, libc::TCP_WINDOW_CLAMP),
    (TCP, libc::TCP_INFO),
    (TCP, libc::TCP_CC_INFO),
    (TCP, libc::TCP_TIMESTAMP),
    (TCP, libc::TCP_SAVED_SYN),
    (libc::IPPROTO_IP, libc::IP_MTU),
    (libc::IPPROTO_IP, libc::IP_PKTOPTIONS),
    // IP_PROTOCOL, which tells the port.
    (libc::IPPROTO_IP, 52),
    // Who bound it to an address that is no kernel's.
    (libc::IPPROTO_IP, libc::IP_FREEBIND),
];

/// What a connection's socket in the kernel answers, which is in no connection: SO_PEERNAME, and what may not be set any more.
const OF_THE_SOCKET_BEHIND: [(c_int, c_int); 7] = [
    (SOCKET, libc::SO_PEERNAME),
    (SOCKET, libc::SO_TIMESTAMPING),
    (SOCKET, 65),
    (TCP, libc::TCP_QUEUE_SEQ),
    (TCP, libc::TCP_FASTOPEN),
    (TCP, libc::TCP_FASTOPEN_CONNECT),
    (TCP, 34),
];

/// Every option that there may be, and is the same.
fn all() -> impl Iterator<Item = (c_int, c_int)> {
    let levels = [SOCKET, TCP, libc::IPPROTO_IP, libc::IPPROTO_IPV6];
    let every = levels.into_iter().flat_map(|level| (0..80).map(move |name| (level, name)));
    every.filter(|asked| !OF_THE_PATH.contains(asked) && !OF_THE_SOCKET_BEHIND.contains(asked))
}

#[test]
fn options_of_connections_are_those_of_linux() {
    script(|world| {
        let twins = world.twins();
        let mut differing = Vec::new();
        for (level, name) in all() {
            for room in [0, 1, 4, 8, 64] {
                let [ours, kernels] = twins.ends.map(|end| option(end, level, name, room));
                if ours != kernels {
                    differing.push((level, name, room, ours, kernels));
                }
            }
        }
        assert!(differing.is_empty(), "{differing:?}");
        twins.close();
    });
}

#[test]
fn numbers_that_are_set_are_told_again() {
    script(|world| {
        let twins = world.twins();
        let mut differing = Vec::new();
        // What binds to a device, filters, or has another type is left alone.
        let left = [libc::SO_ATTACH_FILTER, libc::SO_LOCK_FILTER, 50, 51, 52, libc::SO_BINDTODEVICE, 62];
        let with_numbers = all()
            .filter(|&(level, name)| level != SOCKET || !left.contains(&name))
            .filter(|&(level, name)| level != TCP || ![libc::TCP_REPAIR, libc::TCP_ULP, 31].contains(&name));
        for (level, name) in with_numbers {
            for value in [1, 5, 0, -1, 100_000] {
                let [ours, kernels] =
                    twins.ends.map(|end| (set_option(end, level, name, &value), option(end, level, name, 4)));
                if ours != kernels {
                    differing.push((level, name, value, ours, kernels));
                }
            }
        }
        assert!(differing.is_empty(), "{differing:?}");
        twins.close();
    });
}

#[test]
fn values_that_are_too_short_or_nowhere_are_refused() {
    script(|world| {
        let twins = world.twins();
        let named = [
            (SOCKET, libc::SO_KEEPALIVE),
            (SOCKET, libc::SO_REUSEADDR),
            (SOCKET, libc::SO_RCVLOWAT),
            (SOCKET, libc::SO_RCVBUF),
            (TCP, libc::TCP_NODELAY),
            (TCP, libc::TCP_KEEPIDLE),
            (libc::IPPROTO_IP, libc::IP_TOS),
            (libc::IPPROTO_IP, libc::IP_TTL),
        ];
        for (level, name) in named {
            let set = |end, at: usize, length| {
                // SAFETY: the call says what it cannot read.
                said(unsafe { crate::hooks::options::setsockopt(end, level, name, at as *const _, length) })
            };
            let value = 1_u32;
            let there = &raw const value as usize;
            for (at, length) in [(there, 0), (there, 2), (there, 3), (0, 4), (0x10, 4), (there, u32::MAX)] {
                let _ = twins.same(|end| (name, at != there, length, set(end, at, length)));
            }
            let get = |end, at: usize, length: i32| {
                let mut length = length;
                // SAFETY: the call says where it cannot write; the length is lent.
                let outcome = said(unsafe {
                    crate::hooks::options::getsockopt(
                        end,
                        level,
                        name,
                        at as *mut _,
                        (&raw mut length).cast(),
                    )
                });
                (outcome, length)
            };
            let mut value = 7_u64;
            let there = &raw mut value as usize;
            for (at, length) in [(there, 0), (there, 2), (there, -1), (0, 4), (0x10, 4)] {
                let _ = twins.same(|end| (name, at != there, length, get(end, at, length)));
            }
            let nowhere = |end| {
                // SAFETY: as above.
                said(unsafe {
                    crate::hooks::options::getsockopt(
                        end,
                        level,
                        name,
                        there as *mut _,
                        core::ptr::null_mut(),
                    )
                })
            };
            assert_eq!(twins.same(nowhere), Err(Errno::FAULT));
        }
        twins.close();
    });
}

#[test]
fn records_and_names_are_set_and_told() {
    script(|world| {
        let twins = world.twins();
        let linger = libc::linger { l_onoff: 1, l_linger: 3 };
        assert_eq!(twins.same(|end| set_option(end, SOCKET, libc::SO_LINGER, &linger)), Ok(0));
        assert_eq!(
            twins.same(|end| option(end, SOCKET, libc::SO_LINGER, 8)),
            Ok(vec![1, 0, 0, 0, 3, 0, 0, 0])
        );
        for (tv_sec, tv_usec) in [(1, 500_000), (0, 0), (-1, 0), (0, 1_000_000), (0, -1)] {
            let time = libc::timeval { tv_sec, tv_usec };
            for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
                let _ =
                    twins.same(|end| (set_option(end, SOCKET, name, &time), option(end, SOCKET, name, 16)));
            }
        }
        assert_eq!(twins.same(|end| set_option(end, TCP, libc::TCP_CONGESTION, b"reno")), Ok(0));
        let reno = twins.same(|end| option(end, TCP, libc::TCP_CONGESTION, 16)).unwrap();
        assert_eq!(&reno[..5], b"reno\0");
        assert_eq!(twins.same(|end| set_option(end, TCP, libc::TCP_CONGESTION, b"none")), Err(Errno::NOENT));
        for end in twins.ends {
            assert_eq!(number(end, SOCKET, libc::SO_ERROR), Ok(0));
            assert!(number(end, TCP, libc::TCP_MAXSEG).unwrap() > 500);
            for name in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
                assert_eq!(set_option(end, SOCKET, name, &50_000), Ok(0));
                assert_eq!(number(end, SOCKET, name), Ok(100_000));
            }
            let info = option(end, TCP, libc::TCP_INFO, 300).unwrap();
            assert!(info.len() > 200 && info[0] == 1, "ESTABLISHED");
            assert_eq!(option(end, TCP, libc::TCP_INFO, 10).map(|info| info.len()), Ok(10));
        }
        twins.close();
    });
}

#[test]
fn an_error_is_taken_by_who_asks_for_it() {
    script(|world| {
        let mut twins = world.twins();
        twins.far_reset();
        assert_eq!(twins.same(|end| number(end, SOCKET, libc::SO_ERROR)), Ok(libc::ECONNRESET));
        assert_eq!(twins.same(|end| number(end, SOCKET, libc::SO_ERROR)), Ok(0));
        assert_eq!(twins.same(|end| recv(end, 1, 0)), Ok(vec![]));
        assert_eq!(twins.same(|end| name(end, true).err()), Some(Errno::NOTCONN));
        twins.close();
    });
}

#[test]
fn what_is_set_before_is_there_behind_connect_and_accept() {
    script(|world| {
        let (listener, port) = world.listen();
        let before = [
            (SOCKET, libc::SO_KEEPALIVE, 1),
            (TCP, libc::TCP_NODELAY, 1),
            (TCP, libc::TCP_KEEPIDLE, 33),
            (TCP, libc::TCP_KEEPINTVL, 7),
            (TCP, libc::TCP_KEEPCNT, 5),
            (TCP, libc::TCP_USER_TIMEOUT, 9000),
            (TCP, libc::TCP_SYNCNT, 3),
            (TCP, libc::TCP_QUICKACK, 1),
            (TCP, 36, 1), // TCP_INQ
            (libc::IPPROTO_IP, libc::IP_TOS, 0x10),
            (libc::IPPROTO_IP, libc::IP_TTL, 17),
        ];
        let opened = socket(libc::AF_INET, libc::SOCK_STREAM);
        for descriptor in [listener, opened] {
            for (level, name, value) in before {
                assert_eq!(set_option(descriptor, level, name, &value), Ok(0), "{level} {name}");
            }
        }
        assert_eq!(connect(opened, FAR), Ok(0));
        let far = world.peer.connect(own(port), 40_001);
        let (accepted, _) = accept(listener, 0).unwrap();
        for descriptor in [accepted, opened] {
            for (level, name, value) in before {
                assert_eq!(number(descriptor, level, name), Ok(value), "{level} {name}");
            }
            // What the administrator says is told again once nothing is set.
            for (value, told) in [(18, 18), (-1, 64)] {
                assert_eq!(set_option(descriptor, libc::IPPROTO_IP, libc::IP_TTL, &value), Ok(0));
                assert_eq!(number(descriptor, libc::IPPROTO_IP, libc::IP_TTL), Ok(told));
            }
        }
        far.close();
        for descriptor in [listener, accepted, opened] {
            assert_eq!(close(descriptor), Ok(0));
        }
    });
}

#[test]
fn listeners_and_sockets_without_a_connection_have_the_kernels_options() {
    script(|world| {
        let (listener, _) = world.listen();
        let fresh = socket(libc::AF_INET, libc::SOCK_STREAM);
        for descriptor in [listener, fresh] {
            assert_eq!(number(descriptor, SOCKET, libc::SO_TYPE), Ok(libc::SOCK_STREAM));
            assert_eq!(
                number(descriptor, SOCKET, libc::SO_ACCEPTCONN),
                Ok(c_int::from(descriptor == listener))
            );
            for (name, value) in
                [(libc::TCP_DEFER_ACCEPT, 3), (libc::TCP_FASTOPEN, 5), (libc::TCP_NODELAY, 1)]
            {
                let set = set_option(descriptor, TCP, name, &value);
                assert!(set == Ok(0) || name == libc::TCP_FASTOPEN, "{name}");
            }
            assert_eq!(set_option(descriptor, SOCKET, libc::SO_RCVLOWAT, &9), Ok(0));
            assert_eq!(number(descriptor, SOCKET, libc::SO_RCVLOWAT), Ok(9));
            assert_eq!(set_option(descriptor, SOCKET, 999, &9), Err(Errno::NOPROTOOPT));
            assert_eq!(close(descriptor), Ok(0));
        }
        assert_eq!(set_option(-1, SOCKET, libc::SO_RCVLOWAT, &9), Err(Errno::BADF));
        assert_eq!(number(-1, SOCKET, libc::SO_RCVLOWAT), Err(Errno::BADF));
    });
}

#[test]
fn datagrams_have_the_class_and_the_hop_limit_of_their_socket() {
    script(|world| {
        let twins = datagrams::Twins::new(&world);
        let ip = libc::IPPROTO_IP;
        // Before the socket has sent anything, and after. ECN's bits are the program's.
        for (class, hops) in [(0x22, 46), (0, 255), (0xb8, -1)] {
            assert_eq!(twins.same(|end| set_option(end, ip, libc::IP_TOS, &class)), Ok(0));
            assert_eq!(twins.same(|end| set_option(end, ip, libc::IP_TTL, &hops)), Ok(0));
            assert_eq!(twins.same(|end| number(end, ip, libc::IP_TOS)), Ok(class));
            let hops = twins.same(|end| number(end, ip, libc::IP_TTL)).unwrap();
            assert_eq!(datagrams::send_to(twins.ends[0], b"x", (CLIENT, 53).into()), Ok(1));
            assert!(crate::calls::datagram::is_ours(twins.ends[0]), "it is not the kernel's");
            assert_eq!(twins.far_marks(), (class, hops));
        }
        // A message may have another class than the socket's others.
        let (end, far) = (twins.ends[0], (CLIENT, 53).into());
        assert_eq!(datagrams::send_with(end, far, ip, libc::IP_TOS, 2_i32), Ok(10));
        assert_eq!(datagrams::send_with(end, far, ip, libc::IP_TOS, 1_u8), Ok(10));
        assert_eq!(datagrams::send_to(end, b"x", far), Ok(1));
        assert_eq!([(); 3].map(|()| twins.far_marks().0), [2, 1, 0xb8]);
        twins.close();
    });
}

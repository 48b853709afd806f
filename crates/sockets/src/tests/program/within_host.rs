//! Connections whose both ends are on this host, at user level.

use std::os::fd::AsRawFd;

use overfly_broker::message::Kind;

use super::forks::{child, fork, waited};
use super::*;
use crate::hooks::exec;

/// A world whose connections within the host are not the kernel's.
fn within(act: impl FnOnce(World), world: World) {
    {
        let mut process = crate::process::process();
        (process.options.tcp_server_loopback, process.options.tcp_client_loopback) = (2, 4);
    }
    act(world);
}

/// A listener at the loopback address.
fn listen() -> (c_int, SocketAddr) {
    let listener = socket(libc::AF_INET, libc::SOCK_STREAM);
    assert_eq!(bind(listener, "127.0.0.1:0".parse().unwrap()), Ok(0));
    // SAFETY: no memory is lent.
    assert_eq!(said(unsafe { sockets::listen(listener, 16) }), Ok(0));
    (listener, name(listener, false).unwrap())
}

/// Both ends in this process.
fn pair(listener: c_int, at: SocketAddr) -> [c_int; 2] {
    let opened = socket(libc::AF_INET, libc::SOCK_STREAM);
    assert_eq!(connect(opened, at), Ok(0));
    let (accepted, from) = accept(listener, 0).unwrap();
    assert_eq!(Ok(from), name(opened, false));
    for end in [opened, accepted] {
        assert!(crate::hooks::data::is_connection(end), "it is the kernel's");
    }
    [opened, accepted]
}

/// The far ends of what is handed over.
fn onward(world: &World) {
    world.told.connect_onward(world.kernel.local_addr().unwrap());
}

/// Becomes the kernel's.
fn hand_over(descriptor: c_int) {
    // SAFETY: the string is lent; the stream stays open.
    let stream = unsafe { exec::fdopen(descriptor, c"r+".as_ptr()) };
    assert!(!stream.is_null());
}

/// As libuv's tcp_try_write_error: the kernel's softirq has heard of the reset before the next write.
#[test]
fn who_writes_on_hears_that_the_same_process_has_closed_the_other_end() {
    script(|world| {
        within(
            |_| {
                let (listener, at) = listen();
                let [opened, accepted] = pair(listener, at);
                assert_eq!(polled(opened, libc::POLLIN, 0), 0);
                assert_eq!(close(accepted), Ok(0));
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                let error = (0..100_000).find_map(|_| send(opened, &[0; 1000], flags).err());
                assert!(matches!(error, Some(Errno::PIPE | Errno::CONNRESET)), "{error:?}");
            },
            world,
        );
    });
}

/// As Node.js' test-http-header-overflow has it: over the kernel's loopback the first write arrives as a whole.
#[test]
fn a_first_write_of_several_thousand_bytes_arrives_at_once() {
    script(|world| {
        within(
            |_| {
                let (listener, at) = listen();
                let [opened, accepted] = pair(listener, at);
                assert_eq!(write(opened, &[7; 16_407]), Ok(16_407));
                assert_eq!(recv(accepted, 20_000, 0), Ok(vec![7; 16_407]));
            },
            world,
        );
    });
}

#[test]
fn a_program_talks_with_itself() {
    script(|world| {
        within(
            |_| {
                let (listener, at) = listen();
                let [opened, accepted] = pair(listener, at);
                for (from, to) in [(opened, accepted), (accepted, opened)] {
                    assert_eq!(write(from, b"within the host"), Ok(15));
                    assert_eq!(recv(to, 100, 0), Ok(b"within the host".to_vec()));
                }
                let data: Vec<u8> = (0..1_000_000_usize).map(|at| (at * 7 + at / 251) as u8).collect();
                std::thread::scope(|scope| {
                    scope.spawn(|| assert_eq!(write(opened, &data), Ok(1_000_000)));
                    assert!(recv(accepted, data.len(), libc::MSG_WAITALL).unwrap() == data);
                });
                assert_eq!(close(opened), Ok(0));
                assert_eq!(recv(accepted, 10, 0), Ok(vec![]));
                assert_eq!((close(accepted), close(listener)), (Ok(0), Ok(0)));
                let nobody = socket(libc::AF_INET, libc::SOCK_STREAM);
                assert_eq!(connect(nobody, at), Err(Errno::CONNREFUSED));
            },
            world,
        );
    });
}

#[test]
fn both_ends_go_to_the_kernel_at_once() {
    script(|world| {
        within(
            |world| {
                onward(&world);
                let (listener, at) = listen();
                let [opened, accepted] = pair(listener, at);
                hand_over(accepted);
                let mut far = [(); 2].map(|()| Far::Kernel(world.kernel.accept().unwrap().0));
                assert_eq!((write(opened, b"one"), write(accepted, b"two")), (Ok(3), Ok(3)));
                let mut read = far.each_mut().map(|far| far.read(3));
                read.sort();
                assert_eq!(read, [b"one", b"two"]);
                assert_eq!(world.told.asked(Kind::HandOverPair).len(), 2, "whether it can be, and that");
                // An end that has gone.
                let [opened, accepted] = pair(listener, at);
                assert_eq!(write(opened, b"last words"), Ok(10));
                assert_eq!(close(opened), Ok(0));
                assert_eq!(polled(accepted, libc::POLLRDHUP, 1000), libc::POLLRDHUP);
                hand_over(accepted);
                world.told.forbid(Kind::HandOverPair, overfly_broker::Refusal::NotMoved);
                let [opened, accepted] = pair(listener, at);
                // SAFETY: the string is lent.
                assert!(unsafe { exec::fdopen(accepted, c"r+".as_ptr()) }.is_null());
                assert_eq!(write(opened, b"it stays"), Ok(8));
                assert_eq!(recv(accepted, 10, 0), Ok(b"it stays".to_vec()));
            },
            world,
        );
    });
}

#[test]
fn two_processes_talk() {
    script(|world| {
        within(
            |_| {
                let (listener, at) = listen();
                let process = child(fork, || {
                    // It would be its own peer.
                    assert_eq!(close(listener), Ok(0));
                    let end = socket(libc::AF_INET, libc::SOCK_STREAM);
                    assert_eq!(connect(end, at), Ok(0));
                    assert_eq!(write(end, b"from a child"), Ok(12));
                    assert_eq!(recv(end, 10, 0), Ok(b"to it".to_vec()));
                    assert_eq!(close(end), Ok(0));
                });
                let (end, _) = accept(listener, 0).unwrap();

                assert_eq!(recv(end, 12, libc::MSG_WAITALL), Ok(b"from a child".to_vec()));
                assert_eq!(write(end, b"to it"), Ok(5));
                assert_eq!(recv(end, 10, 0), Ok(vec![]));
                assert_eq!(waited(process), 0);
                assert_eq!(close(end), Ok(0));
            },
            world,
        );
    });
}

#[test]
fn what_two_processes_have_goes_to_the_kernel() {
    script(|world| {
        within(
            |world| {
                let (listener, at) = listen();
                let (from, to) = rustix::pipe::pipe().unwrap();
                let process = child(fork, || {
                    // It would be its own peer.
                    assert_eq!(close(listener), Ok(0));
                    let end = socket(libc::AF_INET, libc::SOCK_STREAM);
                    assert_eq!(connect(end, at), Ok(0));
                    assert_eq!(write(end, b"before"), Ok(6));
                    let _ = rustix::io::read(&from, &mut [0; 1]);
                    assert_eq!(write(end, b"after"), Ok(5));
                });
                let (end, _) = accept(listener, 0).unwrap();
                assert_eq!(recv(end, 6, libc::MSG_WAITALL), Ok(b"before".to_vec()));
                if !crate::hooks::data::is_connection(end) {
                    // This process was too late: the kernel has it already.
                    rustix::io::write(&to, b"x").unwrap();
                    assert_eq!(recv(end, 5, libc::MSG_WAITALL), Ok(b"after".to_vec()));
                    return assert_eq!(waited(process), 0);
                }
                onward(&world);
                hand_over(end);
                let mut far = [(); 2].map(|()| Some(world.kernel.accept().unwrap().0));
                rustix::io::write(&to, b"x").unwrap();
                // One of them is the child's.
                let heard = until(|| {
                    let mut asked = far.each_ref().map(|far| {
                        let fd = far.as_ref().unwrap().as_raw_fd();
                        libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
                    });
                    // SAFETY: the records are lent.
                    unsafe { libc::poll(asked.as_mut_ptr(), 2, 0) };
                    asked.iter().position(|asked| asked.revents != 0)
                });
                assert_eq!(Far::Kernel(far[heard].take().unwrap()).read(5), b"after");
                assert_eq!(waited(process), 0);
            },
            world,
        );
    });
}

/// A child that connects to the listener that both have may be its own peer, and does not accept: its parent does.
#[test]
fn a_parent_accepts_what_waits_at_its_child() {
    script(|world| {
        within(
            |world| {
                onward(&world);
                let (listener, at) = listen();
                let process = child(fork, || {
                    // Its parent waits by then.
                    std::thread::sleep(Duration::from_millis(100));
                    let end = socket(libc::AF_INET, libc::SOCK_STREAM);
                    assert_eq!(connect(end, at), Ok(0));
                    assert_eq!(recv(end, 4, libc::MSG_WAITALL), Ok(b"done".to_vec()));
                });
                let (end, _) = accept(listener, 0).unwrap();
                if crate::hooks::data::is_connection(end) {
                    assert_eq!(write(end, b"done"), Ok(4));
                } else {
                    // Its child gave it away.
                    let mut far = [(); 2].map(|()| Far::Kernel(world.kernel.accept().unwrap().0));
                    far.iter_mut().for_each(|far| far.write(b"done"));
                    assert_eq!(recv(end, 4, libc::MSG_WAITALL), Ok(b"done".to_vec()));
                    assert_eq!(waited(process), 0);
                    return;
                }
                assert_eq!(waited(process), 0);
            },
            world,
        );
    });
}

/// Nobody accepts here, and a child would: it gets what waits.
#[test]
fn what_waits_goes_to_who_waits_for_it() {
    script(|world| {
        within(
            |world| {
                onward(&world);
                let (listener, at) = listen();
                assert_eq!(polled(listener, libc::POLLIN, 0), 0, "it has joined");
                let process = child(fork, || {
                    let (end, _) = accept(listener, 0).unwrap();
                    assert!(end >= 0);
                });
                std::thread::sleep(Duration::from_millis(50));
                let opened = socket(libc::AF_INET, libc::SOCK_STREAM);
                assert_eq!(connect(opened, at), Ok(0));
                let status = until(|| {
                    // Its calls move what waits.
                    polled(opened, libc::POLLIN, 1);
                    let mut status = 0;
                    // SAFETY: the status is lent.
                    (unsafe { libc::waitpid(process, &raw mut status, libc::WNOHANG) } == process)
                        .then_some(status)
                });
                assert_eq!(status, 0);
            },
            world,
        );
    });
}

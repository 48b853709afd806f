//! A broker that ends, and another one that takes its place.

use overfly_broker::message::Kind;

use super::broker::Standing;
use super::*;
use crate::process::process;

/// Runs a script whose broker may end.
pub(super) fn standing<F: FnOnce(World, Standing)>(act: F) {
    alone_as(core::any::type_name::<F>(), || {
        let broker = Standing::start();
        let world = World::with(broker.environment(), broker.told.clone());
        broker.take_leash();
        act(world, broker);
    });
}

/// The process makes calls, and so hears of it.
fn hear_of(is: impl Fn() -> bool) {
    let nobody = socket(libc::AF_INET, libc::SOCK_STREAM);
    until(|| {
        polled(nobody, 0, 1);
        process().hear_broker();
        is().then_some(())
    });
    assert_eq!(close(nobody), Ok(0));
}

#[test]
fn connections_go_on_in_the_kernel_when_the_broker_ends() {
    standing(|world, mut broker| {
        let (listener, port) = world.listen();
        let _far = world.peer.connect(own(port), 40_001);
        let (descriptor, _) = accept(listener, 0).unwrap();
        let _waits = world.peer.connect(own(port), 40_002);
        assert_eq!(polled(listener, libc::POLLIN, 1000), libc::POLLIN);
        let (given_up, _other) = world.dial();
        assert_eq!(close(given_up), Ok(0));
        world.told.connect_onward(world.kernel.local_addr().unwrap());
        let ending = broker.end();
        hear_of(|| process().is_away());
        ending.join().unwrap();
        let moved = world.told.asked(Kind::HandOver).len();
        assert!(moved >= 2, "the connection, and what waits: {moved}");
        let far = (0..moved).map(|_| Far::Kernel(world.kernel.accept().unwrap().0));
        let far: Vec<Far> = far.collect();
        assert_eq!(write(descriptor, b"go on"), Ok(5));
        let (waiting, _) = accept(listener, 0).unwrap();
        assert_eq!(write(waiting, b"go on"), Ok(5));
        // What was closed, and not over yet, is there as well, and at its end.
        let mut heard: Vec<_> = far.into_iter().map(|mut far| far.read(5)).collect();
        heard.retain(|heard| !heard.is_empty());
        assert_eq!(heard, [b"go on", b"go on"]);
        for descriptor in [descriptor, waiting, listener] {
            assert_eq!(close(descriptor), Ok(0));
        }
    });
}

#[test]
fn connections_that_cannot_go_on_end() {
    standing(|world, mut broker| {
        let (descriptor, _far) = world.dial();
        let opening = socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK);
        assert_eq!(connect(opening, "10.77.0.2:9999".parse().unwrap()), Err(Errno::INPROGRESS));
        world.told.forbid(Kind::HandOver, overfly_broker::Refusal::NotMoved);
        let ending = broker.end();
        hear_of(|| process().is_away());
        ending.join().unwrap();
        assert_eq!(recv(descriptor, 10, 0), Err(Errno::CONNRESET));
        assert_eq!(recv(descriptor, 10, 0), Ok(vec![]));
        assert_eq!(close(descriptor), Ok(0));
        // What connects now connects by the kernel.
        let near = socket(libc::AF_INET, libc::SOCK_STREAM);
        assert_eq!(connect(near, world.kernel.local_addr().unwrap()), Ok(0));
        assert!(!crate::hooks::data::is_connection(near));
        assert_eq!((close(near), close(opening)), (Ok(0), Ok(0)));
    });
}

#[test]
fn listeners_and_datagrams_return_with_another_broker() {
    standing(|world, mut broker| {
        let (listener, port) = world.listen();
        assert_eq!(polled(listener, libc::POLLIN, 0), 0);
        let datagrams = socket(libc::AF_INET, libc::SOCK_DGRAM);
        assert_eq!(bind(datagrams, "0.0.0.0:0".parse().unwrap()), Ok(0));
        assert_eq!(recv(datagrams, 10, libc::MSG_DONTWAIT), Err(Errno::AGAIN));
        let before = world.told.asked(Kind::Listen);
        let ending = broker.end();
        hear_of(|| process().is_away());
        ending.join().unwrap();
        let fresh = socket(libc::AF_INET, libc::SOCK_STREAM);
        assert_eq!(bind(fresh, own(0)), Ok(0));
        // SAFETY: no memory is lent.
        assert_eq!(said(unsafe { sockets::listen(fresh, 5) }), Ok(0));
        assert_eq!(polled(fresh, libc::POLLIN, 1), 0);
        broker.again();
        hear_of(|| !process().is_away());
        let listened = world.told.asked(Kind::Listen);
        assert!(listened.len() >= before.len() + 3, "{listened:?}");
        assert!(listened[before.len()..].iter().any(|request| request.local.port() == port));
        for descriptor in [listener, datagrams, fresh] {
            assert_eq!(close(descriptor), Ok(0));
        }
    });
}

#[test]
fn a_broker_that_refuses_is_not_asked_again_at_once() {
    standing(|world, mut broker| {
        let (listener, _) = world.listen();
        assert_eq!(polled(listener, libc::POLLIN, 0), 0);
        broker.end().join().unwrap();
        hear_of(|| process().is_away());
        world.told.forbid(Kind::OpenStack, overfly_broker::Refusal::NoStack);
        broker.again();
        std::thread::sleep(Duration::from_millis(1100));
        hear_of(|| process().is_away());
        assert_eq!(close(listener), Ok(0));
    });
}

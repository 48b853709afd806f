//! What a switch within the host does.

use core::sync::atomic::{AtomicU16, Ordering};

use super::*;

const REGISTRY: Registry = Registry { adopt: |descriptor| descriptor, release: |_| {} };

fn stack(number: u8) -> Loopback {
    Loopback::new([2, 0, 0, 0, 0, number], 0, REGISTRY).unwrap()
}

/// An address and port that no other test listens at.
fn somewhere() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let [_, _, a, b] = std::process::id().to_be_bytes();
    SocketAddr::new(Ipv4Addr::new(127, 99, a, b).into(), 1 + NEXT.fetch_add(1, Ordering::Relaxed))
}

fn send(from: &mut Loopback, to: Mac, length: usize, mark: u8) {
    let own = from.own;
    let frame = from.frame().unwrap();
    frame[..length].fill(mark);
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&own);
    from.commit(length);
    from.flush();
}

/// The next frame's length and last byte.
fn next(at: &mut Loopback) -> Option<(usize, u8)> {
    let mut found = None;
    at.rang();
    at.receive(1, |frame| found = Some((frame.len(), frame[frame.len() - 1])));
    found
}

#[test]
fn frames_go_to_whoever_listens_and_back() {
    let (mut server, mut client, place) = (stack(1), stack(2), somewhere());
    assert_eq!(client.reach(place, false), None);
    server.listen(place, true).unwrap();
    client.known.clear();
    let name = client.reach(place, false).unwrap();
    assert_eq!(client.reach(place, true), None, "this stack's own are others");
    send(&mut client, name, 100, 7);
    assert_eq!(next(&mut server), Some((100, 7)));
    // The answer goes where the frame came from; long ones go in one piece.
    let own = client.own;
    send(&mut server, own, 60_000, 8);
    assert_eq!(next(&mut client), Some((60_000, 8)));
    assert_eq!(client.other_end(name), client.other_end(server.own), "both are the server");
    assert!(matches!(client.other_end(name), Some(OtherEnd::Peer(_))));
    assert_eq!(client.other_end([6; 6]), None);
}

#[test]
fn frames_to_this_stack_itself_come_back() {
    let (mut stack, place) = (stack(1), somewhere());
    stack.listen(place, false).unwrap();
    let name = stack.reach(place, true).unwrap();
    assert_eq!(stack.other_end(name), Some(OtherEnd::Own));
    for mark in 1..=3 {
        send(&mut stack, name, 64, mark);
    }
    assert!(!stack.arm(), "there is something to receive");
    assert_eq!([(); 4].map(|()| next(&mut stack)), [Some((64, 1)), Some((64, 2)), Some((64, 3)), None]);
    assert!(stack.arm());
    stack.unlisten(place);
    assert_eq!(stack.reach(place, true), None);
    // Nobody takes them: they are dropped, not kept for ever.
    let most = QUEUE_BYTES_MAX / 60_000;
    (0..most + 10).for_each(|_| send(&mut stack, name, 60_000, 9));
    assert_eq!(stack.counters.own_dropped, 10);
}

#[test]
fn who_goes_is_missed_after_what_it_sent() {
    let (mut server, mut client, place) = (stack(1), stack(2), somewhere());
    server.listen(place, true).unwrap();
    let name = client.reach(place, false).unwrap();
    send(&mut client, name, 100, 7);
    assert_eq!(next(&mut server), Some((100, 7)));
    send(&mut client, name, 200, 8);
    let own = client.own;
    drop(client);
    assert!(!server.arm(), "a frame is there");
    assert_eq!(next(&mut server), Some((200, 8)));
    assert_eq!(server.take_gone(), None);
    server.arm();
    let gone = server.take_gone();
    assert!(gone.as_ref().is_some_and(|gone| gone.includes(own)) && !server.has_peers(), "{gone:?}");
}

#[test]
fn the_doorbell_is_silent_once_who_rang_was_heard() {
    let (mut server, place) = (stack(1), somewhere());
    server.listen(place, true).unwrap();
    let mut clients: Vec<Loopback> = (2..42).map(stack).collect();
    let reach = |client: &mut Loopback| client.reach(place, false).unwrap();
    let names: Vec<Mac> = clients.iter_mut().map(reach).collect();
    assert_eq!(next(&mut server), None);
    let rings = |server: &Loopback| {
        let mut count = 0;
        server.doorbell.rings_for(|_| count += 1);
        count
    };
    for round in 1..4 {
        while !server.arm() {}
        assert_eq!(rings(&server), 0);
        for (client, name) in clients.iter_mut().zip(&names) {
            send(client, *name, 100, round);
        }
        // As many as are looked at in one go, and the others later.
        assert_eq!(rings(&server), 32);
        assert!(!server.arm(), "there are frames");
        for _ in 0..clients.len() {
            assert_eq!(next(&mut server), Some((100, round)));
        }
        assert!(server.arm());
        assert_eq!(rings(&server), 8);
        server.rang();
    }
    clients.clear();
    while rings(&server) > 0 {
        server.rang();
        assert!(server.arm());
    }
    assert!(server.take_gone().is_some() && !server.has_peers());
}

#[test]
fn words_come_with_their_descriptors() {
    let (mut server, mut client, place) = (stack(1), stack(2), somewhere());
    server.listen(place, true).unwrap();
    let name = client.reach(place, false).unwrap();
    next(&mut server);
    client.say(name, b"here", &[client.doorbell.as_fd()]).unwrap();
    let Word { from, bytes, descriptors } = server.hear(10).unwrap();
    assert_eq!((bytes.as_slice(), descriptors.len()), (&b"here"[..], 1));
    server.say(from, b"thanks", &[]).unwrap();
    assert_eq!(client.hear(10).unwrap().bytes, b"thanks");
    assert!(server.hear(10).is_none());
    assert!(client.say([6; 6], b"", &[]).is_err(), "nobody is called so");
}

#[test]
fn visitors_that_make_no_sense_are_turned_away() {
    let (mut server, place) = (stack(1), somewhere());
    server.listen(place, true).unwrap();
    let mut socket = None;
    let visit = |socket: &mut Option<OwnedFd>| match rendezvous::knock(place, 0, socket) {
        Ok(Found::Process(_, channel)) => channel,
        other => panic!("{other:?}"),
    };
    let mut said = Vec::new();
    for bytes in [&b"x"[..], &[0; 12], &[0xff; 100]] {
        let channel = visit(&mut socket);
        rendezvous::say(&channel, bytes, &[]).unwrap();
        said.push(channel);
    }
    // One that says nothing holds up nobody; one that goes again is no offence.
    let silent = visit(&mut socket);
    drop(visit(&mut socket));
    next(&mut server);
    assert_eq!((server.counters.refused, server.visitors.len(), server.peers.len()), (3, 1, 0));
    drop(silent);
    next(&mut server);
    assert!(server.visitors.is_empty());
}

#[test]
fn a_process_has_several_stacks() {
    let stack = |stack: u8| Loopback::new([2, 0, 0, 0, 1, stack], stack, REGISTRY).unwrap();
    let (mut client, mut first, mut second) = (stack(2), stack(0), stack(1));
    let [place, other] = [(); 2].map(|()| somewhere());
    first.listen(place, true).unwrap();
    second.listen(place, true).unwrap();
    second.listen(other, true).unwrap();
    let mut turns = [(); 4].map(|()| client.reach(place, false).unwrap());
    assert_eq!((turns[0], turns[1]), (turns[2], turns[3]));
    turns.sort_unstable();
    assert_ne!(turns[0], turns[3], "each stack has its own link");
    assert!(turns.contains(&client.reach(other, false).unwrap()), "and no more than one");
    assert_eq!((client.counters.offered, client.peers.len()), (2, 2));
    // Which of its process's stacks has come is known, too.
    assert_eq!(next(&mut second), None);
    assert_eq!(second.peers[0].who, (client.peers[0].who.0, 2));
    client.listen(somewhere(), true).unwrap();
    let place = client.doors[0].local;
    assert_eq!(second.reach(place, false), Some(second.peers[0].name));
}

#[test]
fn every_place_is_of_one_stack() {
    let mut places: Vec<_> = (0..super::super::PROCESS_STACKS_MAX)
        .flat_map(|stack| {
            rendezvous::places_of(stack).inspect(move |&place| {
                assert_eq!(rendezvous::stack_at(place), stack, "{place}");
            })
        })
        .collect();
    places.sort_unstable();
    assert_eq!(places, (0..PLACES).collect::<Vec<_>>());
}

#[test]
fn there_are_so_many_places_and_no_more() {
    let place = somewhere();
    let places = rendezvous::places_of(0).count();
    let mut servers: Vec<_> = (0..places).map(|_| stack(1)).collect();
    servers.iter_mut().for_each(|server| server.listen(place, true).unwrap());
    assert!(stack(2).listen(place, true).is_err());
    servers.pop();
    stack(2).listen(place, true).unwrap();
}

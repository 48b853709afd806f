//! Both ends in one process, and peers that cheat.

use core::time::Duration;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub(crate) use overfly_testing::Random;
use overfly_wire::{FrameSink, Unfinished};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use super::control::{Control, wait_readable};
use super::message::{Direction, MODE_ETHERNET, Message, VERSION};
use super::region::{self, Region};
use super::ring::ring_len;
use super::*;

/// Longer than anything here takes.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn any_address() -> Address {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("@overfly-memif-test-{}-{number}", std::process::id()).parse().unwrap()
}

/// A client's and a server's end of one connection.
pub(super) fn connect_both(client: &Settings, server: &Settings) -> (Connection, Connection) {
    let address = any_address();
    let mut listener = Listener::bind(&address, server.clone()).unwrap();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| connect(&address, client, PATIENCE).unwrap());
        let server = listener.accept(PATIENCE).unwrap().expect("a client");
        (client.join().unwrap(), server)
    })
}

pub(super) fn one_pair(settings: &Settings) -> (MemifLink, MemifLink) {
    let (client, server) = connect_both(settings, settings);
    let mut links = [client, server].map(|end| end.open().unwrap().pop().unwrap());
    // The client's buffers are offered when it opens its end, which may be after the server's.
    assert!(links.iter_mut().all(MemifLink::check_peer));
    links.into()
}

pub(super) fn send(link: &mut MemifLink, frame: &[u8]) -> bool {
    let Some(buffer) = link.frame() else { return false };
    buffer[..frame.len()].copy_from_slice(frame);
    link.commit(frame.len());
    true
}

fn content(random: &mut Random, length: usize) -> Vec<u8> {
    let first = random.next() as u8;
    (0..length).map(|place| first.wrapping_add((place % 251) as u8)).collect()
}

#[test]
fn frames_of_all_lengths_arrive_whole_and_in_order() {
    let mut random = Random::seeded();
    let plain = Settings { offload: false, ..Settings::default() };
    let shapes = [
        (Settings::default(), FRAME_LEN_MAX),
        (plain.clone(), 1514),
        (Settings { log2_ring_size: 1, ..plain.clone() }, 1514),
        (Settings { buffer_len: 64, log2_ring_size: 6, ..plain.clone() }, 1514),
        (Settings { buffer_len: 192, log2_ring_size: 14, ..Settings::default() }, FRAME_LEN_MAX),
        (Settings { buffer_len: 1 << 18, log2_ring_size: 0, ..plain }, 1514),
    ];
    for (settings, longest) in shapes {
        let (mut client, mut server) = one_pair(&settings);
        assert_eq!((client.offload(), server.offload()), (longest > 1514, longest > 1514));
        for _ in 0..500 {
            exchange(&mut client, &mut server, longest, &mut random, &settings);
            exchange(&mut server, &mut client, longest, &mut random, &settings);
        }
        for link in [client, server] {
            let counters = link.counters();
            let chained = settings.buffer_len < longest as u32;
            assert_eq!(counters.sent_chained > 0, chained, "{settings:?} {counters:?}");
            assert!(counters.sent_frames >= 500, "{settings:?} {counters:?}");
        }
    }
}

/// Sends some frames, until the ring is full perhaps, and receives them.
fn exchange(
    from: &mut MemifLink,
    to: &mut MemifLink,
    longest: usize,
    random: &mut Random,
    settings: &Settings,
) {
    let mut sent = std::collections::VecDeque::new();
    for _ in 0..=random.below(40) {
        let longest = if random.below(4) == 0 { longest } else { 200 };
        let length = 1 + random.below(longest as u64) as usize;
        let frame = content(random, length);
        if !send(from, &frame) {
            break;
        }
        sent.push_back(frame);
    }
    assert!(!sent.is_empty(), "{settings:?} {from:?}");
    from.flush();
    while !sent.is_empty() {
        let count = to.receive(1 + random.below(64) as usize, |frame| {
            let expected = sent.pop_front().expect("as many frames as were sent");
            assert!(frame == expected, "{settings:?}: {} of {} bytes", frame.len(), expected.len());
        });
        assert!(count > 0, "{settings:?} {to:?}");
    }
    assert_eq!(to.receive(64, |_| ()), 0);
}

#[test]
fn two_ends_agree_on_the_number_of_pairs_and_on_offload() {
    let with = |pairs, offload| Settings { pairs, offload, ..Settings::default() };
    for (client, server, pairs, offload) in [
        (with(3, true), with(2, true), 2, true),
        (with(1, true), with(8, false), 1, false),
        (with(2, false), with(2, true), 2, false),
        (Settings { log2_ring_size: 2, ..with(1, true) }, with(1, true), 1, false),
    ] {
        let ends = <[Connection; 2]>::from(connect_both(&client, &server));
        for end in ends {
            assert_eq!(end.pairs.len(), pairs);
            assert!(end.pairs.iter().all(|pair| pair.offload == offload));
            assert!(end.peer_name.starts_with("overfly"));
        }
    }
}

#[test]
fn pairs_do_not_mix() {
    let settings = Settings { pairs: 3, ..Settings::default() };
    let (client, server) = connect_both(&settings, &settings);
    let (mut clients, mut servers) = (client.open().unwrap(), server.open().unwrap());
    for (number, link) in clients.iter_mut().enumerate() {
        assert!(send(link, &[number as u8; 60]));
        link.flush();
    }
    for (number, link) in servers.iter_mut().enumerate() {
        let mut heard = Vec::new();
        link.receive(10, |frame| heard.push(frame.to_vec()));
        assert_eq!(heard, [vec![number as u8; 60]]);
    }
}

#[test]
fn a_new_owner_of_a_server_s_pair_goes_on_where_the_last_one_stopped() {
    let (client, server) = connect_both(&Settings::default(), &Settings::default());
    let mut client = client.open().unwrap().pop().unwrap();
    let pair = &server.pairs[0];
    let again = || {
        let ring = |end: &RingEnd| RingEnd { interrupt: duplicate(&end.interrupt).unwrap(), ..*end };
        MemifLink::open(Pair {
            regions: pair.regions.iter().map(|(memory, size)| (duplicate(memory).unwrap(), *size)).collect(),
            to_server: ring(&pair.to_server),
            to_client: ring(&pair.to_client),
            control: duplicate(&pair.control).unwrap(),
            ..*pair
        })
        .unwrap()
    };
    for round in 0..10_u8 {
        let mut server = again();
        assert!(send(&mut client, &[round; 60]) && send(&mut server, &[round; 3000]));
        client.flush();
        server.flush();
        for (link, length) in [(&mut server, 60), (&mut client, 3000)] {
            let mut heard = Vec::new();
            link.receive(10, |frame| heard.push(frame.to_vec()));
            assert_eq!(heard, [vec![round; length]]);
        }
    }
}

#[test]
fn a_full_ring_is_counted_and_empties() {
    let (mut client, mut server) = one_pair(&Settings { offload: false, ..Settings::default() });
    for _ in 0..2 {
        let sent = (0..).take_while(|_| send(&mut client, &[0; 60])).count();
        assert_eq!(sent, 1024);
        assert_eq!(server.receive(2000, |_| ()), sent);
    }
    assert_eq!(client.counters().transmit_full, 2);
}

#[test]
fn an_end_notices_that_the_other_is_gone_and_the_listener_goes_on() {
    let address = any_address();
    let mut listener = Listener::bind(&address, Settings::default()).unwrap();
    for round in 0..3 {
        std::thread::scope(|scope| {
            let client = scope.spawn(|| connect(&address, &Settings::default(), PATIENCE).unwrap());
            let server = listener.accept(PATIENCE).unwrap().expect("a client");
            let client = client.join().unwrap();
            let (survivor, other) = if round % 2 == 0 { (server, client) } else { (client, server) };
            let mut link = survivor.open().unwrap().pop().unwrap();
            assert!(link.arm());
            drop(other);
            let mut sockets: Vec<PollFd<'_>> =
                link.descriptors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            wait_readable(&mut sockets, PATIENCE);
            assert!(!link.check_peer());
            assert_eq!(link.state(), LinkState::PeerGone);
            assert!(link.frame().is_none() && link.counters().transmit_down == 1);
        });
    }
}

/// A link that polls asks the control socket now and then.
#[test]
fn a_spinning_end_notices_too() {
    let (client, mut server) = one_pair(&Settings::default());
    drop(client);
    let begin = std::time::Instant::now();
    while server.state() == LinkState::Up {
        server.receive(64, |_| ());
        assert!(begin.elapsed() < PATIENCE);
    }
    assert_eq!(server.state(), LinkState::PeerGone);
}

/// Each end sleeps whenever it may. A lost wake-up would leave both asleep.
#[test]
fn no_wakeup_is_lost() {
    const FRAMES: u64 = 100_000;
    let (mut client, mut server) = one_pair(&Settings::default());
    let player = |link: &mut MemifLink, begins: bool, mut random: Random| {
        let (mut sent, mut received) = (0_u64, 0_u64);
        // Each answers what it has received: there are never more than a few frames on the way.
        let mut owed = if begins { 3 } else { 0 };
        while received < FRAMES {
            while owed > 0 && sent < FRAMES && send(link, &sent.to_le_bytes()) {
                (owed, sent) = (owed - 1, sent + 1);
            }
            link.flush();
            for _ in 0..random.below(200) {
                std::hint::spin_loop();
            }
            let count = link.receive(64, |frame| {
                assert_eq!(frame, received.to_le_bytes());
                received += 1;
            });
            owed += count;
            if count == 0 && link.arm() {
                let mut sockets: Vec<PollFd<'_>> =
                    link.descriptors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
                let asleep = std::time::Instant::now();
                wait_readable(&mut sockets, PATIENCE);
                assert!(asleep.elapsed() < PATIENCE, "nobody woke this end: {link:?}");
            }
        }
        while sent < FRAMES && send(link, &sent.to_le_bytes()) {
            sent += 1;
        }
        link.flush();
        link.counters().wakeups
    };
    let [first, second] = [Random::seeded(), Random(7)];
    let wakeups = std::thread::scope(|scope| {
        let other = scope.spawn(|| player(&mut server, false, second));
        player(&mut client, true, first) + other.join().unwrap()
    });
    assert!(wakeups > 0, "nobody ever slept");
}

/// A peer writes anything anywhere into the shared memory, all the time.
#[test]
fn a_peer_that_scribbles_over_the_memory_only_harms_itself() {
    let mut random = Random::seeded();
    for round in 0..300 {
        let settings = Settings {
            log2_ring_size: 1 + random.below(9) as u8,
            offload: round % 2 == 0,
            ..Settings::default()
        };
        let (client, mut server) = connect_both(&settings, &settings);
        let (descriptor, size) = &server.pairs[0].regions[0];
        let memory = Region::map(descriptor, *size, false).unwrap();
        let rings = [client.pairs[0].to_server.place, client.pairs[0].to_client.place];
        let victim = if round % 4 < 2 { client } else { std::mem::replace(&mut server, client) };
        let mut link = victim.open().unwrap().pop().unwrap();
        for _ in 0..100 {
            scribble(&memory, rings, &mut random);
            let budget = random.below(100) as usize;
            let count = link.receive(budget, |frame| assert!(frame.len() <= FRAME_LEN_MAX));
            assert!(count <= budget);
            if let Some(buffer) = link.frame() {
                buffer.fill(1);
                let length = random.below(buffer.len() as u64 + 1) as usize;
                if random.below(2) == 0 {
                    scribble(&memory, rings, &mut random);
                }
                link.commit(length);
            }
            link.flush();
            link.arm();
        }
    }
}

/// One to four values that may mean something, in places where they do.
fn scribble(memory: &Region, rings: [RingPlace; 2], random: &mut Random) {
    for _ in 0..=random.below(4) {
        let ring = &rings[random.below(2) as usize];
        let places = [0, 4, 6, 64, 128 + 2 * random.below((ring_len(ring.log2_size) as u64 - 128) / 2)];
        let offset = ring.offset + places[random.below(5) as usize] as u32;
        let values = [0, 1, 3, 64, 2048, 0x7fff, 0xffff, random.next() as u16];
        let at = memory.at(offset, 2).unwrap().cast::<u16>();
        // SAFETY: two bytes of the mapping, aligned.
        unsafe { at.write_volatile(values[random.below(8) as usize]) };
    }
}

/// An end that is written to from another thread while it works.
#[test]
fn a_peer_that_scribbles_meanwhile_only_harms_itself() {
    let mut random = Random::seeded();
    static DONE: AtomicU64 = AtomicU64::new(0);
    for round in 0..20 {
        let (client, server) = connect_both(&Settings::default(), &Settings::default());
        let (descriptor, size) = &client.pairs[0].regions[0];
        let memory = Region::map(descriptor, *size, false).unwrap();
        let rings = [client.pairs[0].to_server.place, client.pairs[0].to_client.place];
        let mut link = server.open().unwrap().pop().unwrap();
        let seed = random.next();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut random = Random(seed | 1);
                while DONE.load(Ordering::Relaxed) == round {
                    scribble(&memory, rings, &mut random);
                }
            });
            for _ in 0..20_000 {
                link.receive(64, |frame| assert!(frame.len() <= FRAME_LEN_MAX));
                if let Some(buffer) = link.frame() {
                    buffer[0] = 1;
                    link.commit(5000);
                }
            }
            DONE.store(round + 1, Ordering::Relaxed);
        });
    }
}

/// Handshakes of random messages, with random descriptors or none: each is refused or makes a link that can be opened, and
/// good clients are served as ever.
#[test]
fn bad_handshakes_are_refused_and_hold_up_nobody() {
    let mut random = Random::seeded();
    let address = any_address();
    let mut listener = Listener::bind(&address, Settings { pairs: 2, ..Settings::default() }).unwrap();
    let mut accepted = 0;
    for _ in 0..400 {
        let control = Control::connect(&address).unwrap();
        for step in 0..12 {
            let (message, descriptor) = any_message(&mut random, step);
            // The listener may have hung up by now.
            let _ = control.say(&message, descriptor.as_ref().map(AsFd::as_fd));
            if let Some(connection) = listener.poll().unwrap() {
                accepted += 1;
                let _ = connection.open();
            }
        }
    }
    assert!(accepted > 0 && listener.refused() > 0, "{accepted} {listener:?}");
    std::thread::scope(|scope| {
        // One that says nothing at all is in the way of none.
        let _silent = Control::connect(&address).unwrap();
        let client = scope.spawn(|| connect(&address, &Settings::default(), PATIENCE).unwrap());
        assert!(listener.accept(PATIENCE).unwrap().is_some());
        client.join().unwrap();
    });
}

/// The message that may come at this step, or one like it.
fn any_message(random: &mut Random, step: u64) -> (Message, Option<OwnedFd>) {
    let step = if random.below(10) == 0 { random.below(12) } else { step };
    let number = |random: &mut Random, right: u64| if random.below(20) == 0 { random.next() } else { right };
    let descriptor = match random.below(20) {
        0 => None,
        1 => Some(region::make(4096).unwrap()),
        2 => Some(eventfd(0, EventfdFlags::CLOEXEC).unwrap()),
        3 => Some(rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC).unwrap()),
        _ if step == 1 => Some(region::make(1 << 20).unwrap()),
        _ => Some(eventfd(0, EventfdFlags::CLOEXEC).unwrap()),
    };
    let name = name(random.below(2) == 0).to_owned();
    let message = match step {
        0 => Message::Init {
            version: number(random, u64::from(VERSION)) as u16,
            id: number(random, 0) as u32,
            mode: number(random, u64::from(MODE_ETHERNET)) as u8,
            name,
        },
        1 => Message::AddRegion { index: number(random, 0) as u16, size: number(random, 1 << 20) },
        2..=5 => Message::AddRing {
            direction: if step.is_multiple_of(2) { Direction::ToServer } else { Direction::ToClient },
            index: number(random, step / 2 - 1) as u16,
            region: number(random, 0) as u16,
            offset: number(random, step << 16) as u32,
            log2_ring_size: number(random, 5) as u8,
        },
        _ => Message::Connect { name },
    };
    (message, descriptor)
}

#[test]
fn an_old_file_is_replaced_and_a_listener_s_is_not() {
    let folder = std::env::temp_dir().join(format!("overfly-memif-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("socket");
    let address: Address = path.to_str().unwrap().parse().unwrap();
    let old = control::make_socket().unwrap();
    rustix::net::bind(&old, &address.socket_address().unwrap()).unwrap();
    drop(old);
    let listener = Listener::bind(&address, Settings::default()).unwrap();
    assert_eq!(
        Listener::bind(&address, Settings::default()).err(),
        Some(Error::MemifTaken(address.to_string()))
    );
    drop(listener);
    assert!(!path.exists());
    let refused = connect(&address, &Settings::default(), PATIENCE).unwrap_err();
    assert!(matches!(refused, Error::MemifConnect { .. }), "{refused}");
    std::fs::remove_dir(&folder).unwrap();
}

/// A stack with an Overfly peer and one that is none: frames reach whom they are for, and a 64 KB frame each in its way.
#[test]
fn a_hub_sends_each_peer_what_it_takes() {
    let settings = Settings::default();
    let plain = Settings { offload: false, ..settings.clone() };
    let (overfly, first) = one_pair(&settings);
    let (other, second) = connect_both(&plain, &settings);
    let mut peers = [overfly, other.open().unwrap().pop().unwrap()];
    let mut hub = Hub::default();
    hub.attach(first);
    hub.attach(second.open().unwrap().pop().unwrap());
    let mac = |peer: u8| [2, 0, 0, 0, 0, peer];
    let frame_to = |destination: [u8; 6], payload: usize| {
        let mut frame = [&destination[..], &mac(9), &[8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6]].concat();
        frame.resize(34 + 20 + payload, 1);
        frame
    };
    let long = Unfinished { checksum_from: 34, segment_len: 1460, headers_len: 54 };
    let forward = |hub: &mut Hub, frame: &[u8], left| {
        hub.frame().unwrap()[..frame.len()].copy_from_slice(frame);
        hub.commit_unfinished(frame.len(), left);
        hub.flush();
    };
    let heard = |peer: &mut MemifLink| {
        let mut lengths = Vec::new();
        peer.receive(100, |frame| lengths.push(frame.len()));
        lengths
    };
    let mut question = frame_to([0xff; 6], 0);
    question[13] = 6;
    forward(&mut hub, &question, Unfinished::default());
    assert_eq!(peers.each_mut().map(heard), [[54], [54]]);
    for (number, peer) in (0..).zip(&mut peers) {
        let mut hello = frame_to(mac(9), 0);
        hello[6..12].copy_from_slice(&mac(number));
        assert!(send(peer, &hello));
        peer.flush();
    }
    assert_eq!(hub.receive(10, |_| ()), 2);
    forward(&mut hub, &frame_to(mac(0), 14_600), long);
    assert_eq!(peers.each_mut().map(heard), [vec![14_654], vec![]]);
    forward(&mut hub, &frame_to(mac(1), 14_600), long);
    assert_eq!(peers.each_mut().map(heard), [vec![], vec![1514; 10]]);
    assert_eq!((hub.links(), hub.counters().flooded), (2, 1));

    let [overfly, other] = peers;
    drop(overfly);
    assert!(hub.arm());
    assert_eq!((hub.links(), hub.counters().peers_gone), (1, 1));
    assert_eq!(hub.take_gone(), [mac(0)]);
    drop(other);
    assert!(hub.arm());
    forward(&mut hub, &frame_to(mac(1), 0), Unfinished::default());
    assert_eq!((hub.links(), hub.counters().dropped_no_peer), (0, 1));
    assert_eq!(hub.link_counters().received_frames, 2);
}

//! Peers and neighbours that mean harm. Each test is a thing that worked once.

use core::time::Duration;
use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use overfly_wire::{FrameSink, Unfinished};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{
    FallocateFlags, MemfdFlags, OFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_setfl, ftruncate,
    memfd_create,
};

use super::client::Layout;
use super::control::{Control, Heard, make_socket};
use super::message::{Direction, MODE_ETHERNET, Message, VERSION};
use super::region::Region;
use super::rendezvous::{self, Found};
use super::ring::{Descriptor, NEXT};
use super::tests::{PATIENCE, any_address, connect_both, one_pair, send};
use super::*;
use crate::Link;

fn address_of(path: &Path) -> Address {
    path.to_str().unwrap().parse().unwrap()
}

/// A socket's file whose listener was killed.
fn abandon(path: &Path) {
    rustix::net::bind(make_socket().unwrap(), &address_of(path).socket_address().unwrap()).unwrap();
}

#[test]
fn only_an_abandoned_socket_of_one_s_own_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("name");
    let address = address_of(&path);
    let refusal = || {
        let bound = Listener::bind(&address, Settings::default()).err();
        assert_eq!(remove_abandoned(&address).err(), bound, "both look at the same");
        bound.expect("what is there stays").to_string()
    };

    fs::write(&path, "precious").unwrap();
    assert!(refusal().contains("an ordinary file is there: move it away"), "{}", refusal());
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    fs::remove_file(&path).unwrap();

    // What a link leads to may be an abandoned socket: the name itself is no socket.
    abandon(&folder.path().join("other"));
    symlink("other", &path).unwrap();
    assert!(refusal().contains("a symbolic link"), "{}", refusal());
    fs::remove_file(&path).unwrap();

    fs::create_dir(&path).unwrap();
    assert!(refusal().contains("a folder"), "{}", refusal());
    fs::remove_dir(&path).unwrap();

    abandon(&path);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        assert!(refusal().contains("an old socket of user 65534's"), "{}", refusal());
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
    }
    let listener = Listener::bind(&address, Settings::default()).unwrap();
    assert!(fs::symlink_metadata(&path).unwrap().file_type().is_socket());
    drop(listener);
    assert!(!path.exists());
    assert_eq!(remove_abandoned(&address), Ok(false), "nothing is there");
}

/// All see the same abandoned socket, and each may take away what another has just made.
#[test]
fn of_many_that_replace_a_socket_one_gets_it_and_keeps_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("name");
    let address = address_of(&path);
    for round in 0..100 {
        abandon(&path);
        let (begin, winners) = (Barrier::new(4), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    begin.wait();
                    let listener = match Listener::bind(&address, Settings::default()) {
                        Ok(listener) => listener,
                        Err(error) => {
                            assert_eq!(error, Error::MemifTaken(address.to_string()));
                            begin.wait();
                            return;
                        }
                    };
                    winners.fetch_add(1, Ordering::Relaxed);
                    begin.wait();
                    // Nobody took its file away.
                    Control::connect(&address).unwrap();
                    drop(listener);
                });
            }
        });
        assert_eq!(winners.into_inner(), 1, "round {round}");
    }
}

#[test]
fn a_listener_takes_its_own_file_away_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("name");
    let listener = Listener::bind(&address_of(&path), Settings::default()).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "another's").unwrap();
    drop(listener);
    assert_eq!(fs::read(&path).unwrap(), b"another's");
}

/// The umask is the process's: this is the only test that looks at modes, and it does not change it.
#[test]
fn strangers_may_not_connect_whatever_the_umask() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("name");
    let _listener = Listener::bind(&address_of(&path), Settings::default()).unwrap();
    let mode = fs::symlink_metadata(&path).unwrap().mode();
    assert_eq!(mode & 0o117, 0, "{mode:o}: nothing for others, and nobody executes it");
    assert_eq!(mode & 0o600, 0o600, "{mode:o}");
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    assert!(Control::connect(&address_of(&path)).is_ok(), "whoever wants more says so");
}

/// A client that says what it likes.
struct Cheat {
    control: Control,
    memory: OwnedFd,
    interrupts: [OwnedFd; 2],
    layout: Layout,
}

impl Cheat {
    /// With everything that a good client would have.
    fn connect(address: &Address) -> Cheat {
        let layout = Layout::new(&Settings::default()).unwrap();
        let memory = region::make(layout.length).unwrap();
        layout.initialize(&memory).unwrap();
        let interrupts = [(); 2].map(|()| eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        Cheat { control: Control::connect(address).unwrap(), memory, interrupts, layout }
    }

    /// A good client's messages.
    fn script(&self) -> Vec<(Message, Option<&OwnedFd>)> {
        let ring = |direction| {
            let RingPlace { region, offset, log2_size } = self.layout.place(0, direction);
            let ring = Message::AddRing { direction, index: 0, region, offset, log2_ring_size: log2_size };
            (ring, Some(&self.interrupts[usize::from(direction == Direction::ToClient)]))
        };
        let name = name(true).to_owned();
        vec![
            (Message::Init { version: VERSION, id: 0, mode: MODE_ETHERNET, name: name.clone() }, None),
            (Message::AddRegion { index: 0, size: self.layout.length as u64 }, Some(&self.memory)),
            ring(Direction::ToServer),
            ring(Direction::ToClient),
            (Message::Connect { name }, None),
        ]
    }

    /// Says it all, as far as the listener listens.
    fn say(&self, script: &[(Message, Option<&OwnedFd>)], listener: &mut Listener) -> Option<Connection> {
        for (message, descriptor) in script {
            let _ = self.control.say(message, descriptor.map(AsFd::as_fd));
            if let Some(connection) = listener.poll().unwrap() {
                return Some(connection);
            }
        }
        None
    }

    /// The server hung up, with a reason or without.
    fn refusal_or_end(&self) -> Option<()> {
        match self.control.hear() {
            Heard::Message(Message::Disconnect { .. }, _) | Heard::Gone => Some(()),
            Heard::Message(..) => self.refusal_or_end(),
            Heard::Nonsense | Heard::Nothing => None,
        }
    }

    /// Why the server hung up.
    fn refusal(&self) -> Option<String> {
        loop {
            match self.control.hear() {
                Heard::Message(Message::Disconnect { reason, .. }, _) => return Some(reason),
                Heard::Message(..) => {}
                Heard::Nonsense | Heard::Gone | Heard::Nothing => return None,
            }
        }
    }
}

fn listen() -> (Listener, Address) {
    let address = any_address();
    (Listener::bind(&address, Settings::default()).unwrap(), address)
}

/// Says one thing in place of another, and returns what the server says to that.
fn refusal_of(change: impl FnOnce(&Cheat, &mut Vec<(Message, Option<&OwnedFd>)>)) -> String {
    let (mut listener, address) = listen();
    let cheat = Cheat::connect(&address);
    let mut script = cheat.script();
    // Its lifetime is that of what the change may borrow.
    change(&cheat, &mut script);
    let connection = cheat.say(&script, &mut listener);
    assert!(connection.is_none(), "the server believes it");
    cheat.refusal().expect("the server says why")
}

#[test]
fn messages_at_the_wrong_time_are_refused() {
    let (mut listener, address) = listen();
    let good = Cheat::connect(&address);
    assert!(good.say(&good.script(), &mut listener).is_some(), "the script is a good one");
    let again = |at: usize| refusal_of(move |_, script| script.insert(at + 1, script[at].clone()));
    assert_eq!(
        [0, 1, 2, 3].map(again),
        ["a second INIT", "invalid region index", "invalid ring index", "invalid ring index",]
    );
    let without = |at: usize| refusal_of(move |_, script| drop(script.remove(at)));
    assert_eq!(
        [0, 1, 2, 3].map(without),
        [
            "invalid region index",
            "invalid region index",
            "as many rings each way are needed, one at least",
            "as many rings each way are needed, one at least",
        ]
    );
    for message in [Message::Ack, Message::Connected { name: String::new() }] {
        assert_eq!(refusal_of(|_, script| script[2] = (message, None)), "unexpected message");
    }
    for at in [1, 2] {
        assert!(refusal_of(|_, script| script[at].1 = None).starts_with("missing"));
    }
}

/// 4 GB that are nowhere yet, and many small ones: this end would pay for what it touches.
#[test]
fn memory_that_no_ring_needs_is_refused() {
    let big = region::make(u32::MAX as usize).unwrap();
    let (mut listener, address) = listen();
    let cheat = Cheat::connect(&address);
    let mut script = cheat.script();
    script[1] = (Message::AddRegion { index: 0, size: u64::from(u32::MAX) }, Some(&big));
    assert!(cheat.say(&script, &mut listener).is_none());
    assert!(cheat.refusal().unwrap().starts_with("more memory than rings need"));

    let cheat = Cheat::connect(&address);
    let mut script = cheat.script();
    script.drain(2..);
    script.extend((1..16).map(|index| (Message::AddRegion { index, size: 20 << 20 }, Some(&big))));
    assert!(cheat.say(&script, &mut listener).is_none());
    assert!(cheat.refusal().unwrap().starts_with("more memory than rings need"));
}

/// Touching a page of it that is not there would be SIGBUS.
#[test]
fn memory_of_huge_pages_is_refused() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let Ok(huge) = memfd_create("huge", flags) else {
        return println!("skipped: this kernel has no huge pages");
    };
    ftruncate(&huge, 4 << 20).unwrap();
    fcntl_add_seals(&huge, SealFlags::SHRINK).unwrap();
    let (mut listener, address) = listen();
    let cheat = Cheat::connect(&address);
    let mut script = cheat.script();
    script[1] = (Message::AddRegion { index: 0, size: 4 << 20 }, Some(&huge));
    assert!(cheat.say(&script, &mut listener).is_none());
    assert_eq!(cheat.refusal().as_deref(), Some("a region must have ordinary pages, no huge ones"));
}

/// A peer may give pages back while they are used, or have sealed them against writing.
#[test]
fn memory_that_goes_away_harms_nobody_else() {
    let (mut listener, address) = listen();
    let cheat = Cheat::connect(&address);
    let connection = cheat.say(&cheat.script(), &mut listener).unwrap();
    let mut link = connection.open().unwrap().pop().unwrap();
    for _ in 0..20 {
        let all = cheat.layout.length as u64;
        fallocate(&cheat.memory, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, all).unwrap();
        link.receive(64, |_| ());
        if let Some(frame) = link.frame() {
            frame.fill(1);
            link.commit(100);
        }
        link.flush();
        link.arm();
    }
    let sealed = memfd_create("sealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&sealed, cheat.layout.length as u64).unwrap();
    fcntl_add_seals(&sealed, SealFlags::SHRINK | SealFlags::WRITE).unwrap();
    let cheat = Cheat::connect(&address);
    let mut script = cheat.script();
    script[1].1 = Some(&sealed);
    let connection = cheat.say(&script, &mut listener).unwrap();
    assert!(connection.open().is_err());
}

/// The peer fills the eventfd between any two instructions of this end's, and has it block.
#[test]
fn an_eventfd_that_the_peer_fills_stops_nobody() {
    let (client, server) = connect_both(&Settings::default(), &Settings::default());
    let eventfd = duplicate(&client.pairs[0].to_client.interrupt).unwrap();
    let mut client = client.open().unwrap().pop().unwrap();
    let mut server = server.open().unwrap().pop().unwrap();
    let (turns, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let stuck = std::thread::scope(|scope| {
        let attack = scope.spawn(|| {
            let mut stuck = false;
            while !over.load(Ordering::Relaxed) && !stuck {
                let before = turns.load(Ordering::Relaxed);
                fcntl_setfl(&eventfd, OFlags::NONBLOCK).unwrap();
                let _ = rustix::io::read(&eventfd, &mut [0; 8]);
                let _ = rustix::io::write(&eventfd, &(u64::MAX - 1).to_ne_bytes());
                fcntl_setfl(&eventfd, OFlags::empty()).unwrap();
                let begin = Instant::now();
                while turns.load(Ordering::Relaxed) == before && !over.load(Ordering::Relaxed) && !stuck {
                    stuck = begin.elapsed() > Duration::from_secs(20);
                    std::hint::spin_loop();
                }
            }
            // Who waits is let go.
            fcntl_setfl(&eventfd, OFlags::NONBLOCK).unwrap();
            let _ = rustix::io::read(&eventfd, &mut [0; 8]);
            stuck
        });
        for turn in 0..20_000_u64 {
            client.receive(64, |_| ());
            client.arm();
            assert!(send(&mut server, &turn.to_le_bytes()));
            server.flush();
            turns.fetch_add(1, Ordering::Relaxed);
        }
        over.store(true, Ordering::Relaxed);
        attack.join().unwrap()
    });
    assert!(!stuck, "{server:?}");
    assert!(server.counters().interrupts > 10_000, "{server:?}");
}

/// All that a station was given in vain is closed again, and its registry is told.
#[test]
fn handshakes_that_come_to_nothing_leave_no_descriptor() {
    static KEPT: AtomicI64 = AtomicI64::new(0);
    let registry = Registry {
        adopt: |descriptor| {
            KEPT.fetch_add(1, Ordering::Relaxed);
            descriptor
        },
        release: |_| {
            KEPT.fetch_sub(1, Ordering::Relaxed);
        },
    };
    let address = any_address();
    let listener = Listener::bind(&address, Settings::default()).unwrap();
    let mut station = MemifPort::join(duplicate(listener.socket()).unwrap(), &address, registry).unwrap();
    station.set_accepting(true);
    let before = KEPT.load(Ordering::Relaxed);
    for round in 0..20 {
        let cheat = Cheat::connect(&address);
        // Rings without their cookie, or the whole ring elsewhere.
        let place = cheat.layout.place(0, Direction::ToClient);
        let memory = Region::map(&cheat.memory, cheat.layout.length as u64, false).unwrap();
        let cookie = memory.at(place.offset, 4).unwrap().cast::<u32>();
        // SAFETY: four bytes of the mapping, aligned.
        unsafe { cookie.write_volatile(round) };
        for (message, descriptor) in &cheat.script() {
            cheat.control.say(message, descriptor.map(AsFd::as_fd)).unwrap();
        }
        station.rang();
        while station.is_busy() || cheat.refusal_or_end().is_none() {
            station.rang();
            station.receive(64, |_| ());
        }
        assert_eq!((KEPT.load(Ordering::Relaxed), station.hub().links()), (before, 0), "round {round}");
    }
}

/// More than there is room for, all the time. Before, 16 of them locked everybody out.
#[test]
fn silent_connections_lock_nobody_out() {
    let (mut listener, address) = listen();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let silent = scope.spawn(|| {
            let mut connections = std::collections::VecDeque::new();
            while !over.load(Ordering::Relaxed) {
                // The queue of the listener may be full.
                connections.extend(Control::connect(&address));
                if connections.len() > 300 {
                    connections.pop_front();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let begin = Instant::now();
        while listener.refused() < 100 {
            assert!(listener.poll().unwrap().is_none());
            assert!(begin.elapsed() < PATIENCE, "silent ones keep their places: {}", listener.refused());
        }
        let good =
            scope.spawn(|| (0..5).map(|_| connect(&address, &Settings::default(), PATIENCE)).collect());
        let mut come = 0;
        while come < 5 && begin.elapsed() < 2 * PATIENCE {
            come += u32::from(listener.accept(Duration::from_millis(10)).unwrap().is_some());
        }
        over.store(true, Ordering::Relaxed);
        let good: Vec<Result<Connection, Error>> = good.join().unwrap();
        let failed: Vec<_> = good.iter().filter_map(|result| result.as_ref().err()).collect();
        assert!(come == 5 && failed.is_empty(), "{come} came; {failed:?}");
        silent.join().unwrap();
    });
}

/// The same within the host.
#[test]
fn silent_visitors_lock_nobody_out() {
    const REGISTRY: Registry = Registry { adopt: |descriptor| descriptor, release: |_| {} };
    let mut server = Loopback::new([2, 0, 0, 0, 9, 1], 0, REGISTRY).unwrap();
    let mut client = Loopback::new([2, 0, 0, 0, 9, 2], 0, REGISTRY).unwrap();
    let [_, _, a, b] = std::process::id().to_be_bytes();
    let place = SocketAddr::new(Ipv4Addr::new(127, 98, a, b).into(), 1);
    server.listen(place, true).unwrap();
    let mut silent = Vec::new();
    for _ in 0..150 {
        let Ok(Found::Process(_, channel)) = rendezvous::knock(place, 0, &mut None) else {
            panic!("the door is open");
        };
        silent.push(channel);
        server.rang();
        server.receive(1, |_| ());
    }
    assert!(client.reach(place, false).is_some());
    server.rang();
    server.receive(1, |_| ());
    assert_eq!(server.counters().taken, 1, "{:?}", server.counters());
    let begin = Instant::now();
    while server.is_busy() {
        server.receive(1, |_| ());
        assert!(begin.elapsed() < PATIENCE, "they wait for ever");
    }
    assert_eq!(server.counters().refused, 150);
}

/// Whether such a thing is readable can take as long as its maker likes.
#[test]
fn a_control_socket_that_is_none_is_refused() {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let pair =
        || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None).unwrap();
    let (ours, theirs) = pair();
    drop(rendezvous::offer(&ours, &Settings::default(), 0).unwrap());
    let (bytes, descriptors) = rendezvous::hear(&theirs, 100).unwrap().expect("an offer");
    let (ours, theirs) = pair();
    let pipe = rustix::pipe::pipe().unwrap();
    let rights = [&descriptors[0], &descriptors[1], &descriptors[2], &pipe.0];
    rendezvous::say(&ours, &bytes, &rights.map(AsFd::as_fd)).unwrap();
    let refused = rendezvous::take_offer(&theirs).err();
    assert_eq!(refused, Some(Error::MemifProtocol("a control socket that is none".to_owned())));
}

/// An eventfd of the semaphore kind is filled once and wakes for ever.
#[test]
fn who_wakes_for_nothing_is_cut_off() {
    let (client, server) = connect_both(&Settings::default(), &Settings::default());
    let eventfd = duplicate(&client.pairs[0].to_server.interrupt).unwrap();
    let mut client = client.open().unwrap().pop().unwrap();
    let mut server = server.open().unwrap().pop().unwrap();
    let wake = |server: &mut MemifLink| {
        rustix::io::write(&eventfd, &1_u64.to_ne_bytes()).unwrap();
        server.arm();
        server.receive(1, |_| ());
        server.state() == LinkState::Up
    };
    // Frames now and then show that it means well.
    for turn in 0..150_000 {
        if turn % 50_000 == 0 {
            assert!(send(&mut client, b"frame"));
            client.flush();
        }
        assert!(wake(&mut server), "{server:?}");
    }
    let more = (0..100_000).take_while(|_| wake(&mut server)).count();
    assert!(more < 100_000, "a processor is this peer's for nothing");
    assert!(matches!(server.state(), LinkState::PeerBroken(_)), "{server:?}");
}

/// Chains of empty entries, offered again as soon as they are taken.
#[test]
fn a_call_walks_through_so_many_entries_and_no_more() {
    let settings = Settings { log2_ring_size: 14, buffer_len: 64, ..Settings::default() };
    let (client, server) = connect_both(&settings, &settings);
    let place = client.pairs[0].to_server.place;
    let (memory, size) = &client.pairs[0].regions[0];
    let region = Region::map(memory, *size, false).unwrap();
    let ring = region.ring(place.offset, place.log2_size).unwrap();
    let mut server = server.open().unwrap().pop().unwrap();
    for slot in 0..ring.size() {
        let flags = if slot % 128 == 127 { 0 } else { NEXT };
        ring.write(slot, Descriptor { flags, length: 0, ..ring.read(slot) });
    }
    ring.head().store(ring.size(), Ordering::Release);
    let mut entries = 0;
    let count = server.receive(100_000, |frame| {
        assert!(frame.is_empty());
        entries += 128_u16;
        ring.head().store(entries.wrapping_add(ring.size()), Ordering::Release);
    });
    assert!((100..=129).contains(&count), "{count} frames of 128 entries in one call");
}

fn mac(number: u16) -> [u8; 6] {
    let [high, low] = number.to_be_bytes();
    [2, 0, 0, 0, high, low]
}

fn frame(destination: [u8; 6], source: [u8; 6], ethertype: [u8; 2]) -> Vec<u8> {
    // TCP, as far as a switch looks.
    [&destination[..], &source, &ethertype, &[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6], &[0; 30]].concat()
}

const IPV4: [u8; 2] = [8, 0];
const ARP: [u8; 2] = [8, 6];

/// A hub, and the ends of its peers.
struct Switch {
    hub: Hub,
    peers: Vec<MemifLink>,
}

impl Switch {
    fn new(peers: usize) -> Switch {
        let mut switch = Switch { hub: Hub::default(), peers: Vec::new() };
        for _ in 0..peers {
            let (client, server) = one_pair(&Settings::default());
            switch.hub.attach(server);
            switch.peers.push(client);
        }
        switch
    }

    /// Frames of a peer's that reach the stack.
    fn said(&mut self, peer: usize, frame: &[u8]) -> usize {
        assert!(send(&mut self.peers[peer], frame));
        self.peers[peer].flush();
        let mut count = 0;
        self.hub.receive(64, |_| count += 1);
        count
    }

    /// Which peers see a frame of the stack's.
    fn seen(&mut self, frame: &[u8]) -> Vec<usize> {
        self.hub.frame().unwrap()[..frame.len()].copy_from_slice(frame);
        self.hub.commit_unfinished(frame.len(), Unfinished::default());
        self.hub.flush();
        let mut seen = Vec::new();
        for (index, peer) in self.peers.iter_mut().enumerate() {
            peer.receive(64, |_| seen.push(index));
        }
        seen
    }
}

/// Before, 1,024 false addresses filled the table, and what was for others was flooded.
#[test]
fn false_addresses_bring_nobody_else_s_frames() {
    let mut switch = Switch::new(3);
    let (stack, first, late) = (mac(1), mac(0x5001), mac(0x5002));
    assert_eq!(switch.said(0, &frame(stack, first, IPV4)), 1);
    for number in 0x1000..0x2000 {
        assert_eq!(switch.said(2, &frame(stack, mac(number), IPV4)), 1);
    }
    assert_eq!(switch.said(1, &frame(stack, late, IPV4)), 1);
    for _ in 0..10 {
        assert_eq!(switch.seen(&frame(first, stack, IPV4)), [0]);
        assert_eq!(switch.seen(&frame(late, stack, IPV4)), [1]);
    }
    assert_eq!(switch.seen(&frame(mac(0x1fff), stack, IPV4)), [2], "its own last one works");
    assert_eq!(switch.seen(&frame(mac(0x7777), stack, IPV4)), [], "nobody's is nobody's");
    assert_eq!(switch.seen(&frame([0xff; 6], stack, ARP)), [0, 1, 2], "questions are for all");
    let counters = switch.hub.counters();
    assert_eq!((counters.flooded, counters.dropped_unknown), (1, 1));
}

#[test]
fn an_address_is_whose_it_was_first() {
    let mut switch = Switch::new(3);
    let (stack, first) = (mac(1), mac(0x5001));
    assert_eq!(switch.said(0, &frame(stack, first, IPV4)), 1);
    // It says that it is the first; that it is everybody; and, in ARP, that another is.
    assert_eq!(switch.said(2, &frame(stack, first, IPV4)), 0);
    assert_eq!(switch.said(2, &frame(stack, [0xff; 6], IPV4)), 0);
    assert_eq!(switch.said(2, &frame(stack, mac(9), ARP)), 0);
    assert_eq!(switch.hub.counters().refused_sources, 3);
    assert_eq!(switch.seen(&frame(first, stack, IPV4)), [0]);
    assert_eq!(switch.seen(&frame([0xff; 6], stack, IPV4)), [], "TCP is for one");
    // Who goes leaves its address to others at once.
    switch.peers.remove(0);
    assert_eq!(switch.said(1, &frame(stack, first, IPV4)), 0, "here the hub notices");
    assert_eq!((switch.hub.links(), switch.hub.take_gone()), (2, vec![first]));
    assert_eq!(switch.said(1, &frame(stack, first, IPV4)), 1);
    assert_eq!(switch.seen(&frame(first, stack, IPV4)), [1]);
}

/// Each client takes memory and time of the stack that has it.
#[test]
fn clients_have_so_much_memory_and_no_more() {
    let settings = Settings { log2_ring_size: 14, ..Settings::default() };
    let (mut hub, mut clients) = (Hub::default(), Vec::new());
    for _ in 0..20 {
        let (client, server) = one_pair(&settings);
        clients.push(client);
        hub.attach(server);
    }
    assert_eq!((hub.links(), hub.counters().refused_links), (15, 5), "65 MB each");
    assert_eq!(clients.iter_mut().filter_map(|client| client.check_peer().then_some(())).count(), 15);
}

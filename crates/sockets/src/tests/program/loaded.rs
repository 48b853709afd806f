//! The library as it is loaded: with what the environment says, and a broker whose frames go over memif.

use std::sync::atomic::{AtomicBool, Ordering};

use overfly_engine::{Config, Engine};
use overfly_link::memif::{Address, MemifLink};
use overfly_link::{Each, Link};
use overfly_wire::{FrameSink, MacAddr};

use super::*;
use crate::hooks::processes;

/// The end of a client's, as a stack wants it.
struct Client(MemifLink);

impl FrameSink for Client {
    fn frame(&mut self) -> Option<&mut [u8]> {
        self.0.frame()
    }

    fn commit(&mut self, length: usize) {
        self.0.commit(length);
    }
}

impl Link for Client {
    fn receive(&mut self, budget: usize, each: impl FnMut(&[u8])) -> usize {
        self.0.receive(budget, each)
    }

    fn flush(&mut self) {
        self.0.flush();
    }

    fn each_counter(&self, _: Each<'_>) {}
}

/// A peer at the other end of the memif that answers what it is asked, and connects when it is told to.
fn peer(place: &Address, stop: &AtomicBool, call: &Mutex<Option<u16>>) {
    let connection =
        overfly_link::memif::connect(place, &overfly_link::memif::Settings::default(), PATIENCE).unwrap();
    let link = Client(MemifLink::open(connection.pairs.into_iter().next().unwrap()).unwrap());
    let mut config = Config::new(MacAddr([2, 0, 0, 0, 0, 9]), CLIENT, 16);
    (config.alone, config.checksum_offload, config.partial_checksums) = (true, true, true);
    let mut stack = Stack::new();
    stack.start(Side::Network, Engine::new(config).unwrap(), link, 16);
    let listener = stack.open(3, false, true).unwrap();
    stack.listening(listener, 64);
    assert_eq!(stack.join(Side::Network, listener, FAR), Ok(true));
    let mut open = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        stack.pump(now());
        open.extend(stack.accept(listener, 100, true));
        if let Some(port) = call.lock().unwrap().take() {
            let id = stack.open(101, false, true).unwrap();
            let from = SocketAddr::new(CLIENT.into(), 40_001);
            let none = MacAddr([0; 6]);
            stack.connect(now(), Side::Network, id, from, own(port), none, Settings::DEFAULT).unwrap();
            open.push(id);
        }
        for &id in &open {
            if let Ok(data) = crate::tests::read(&mut stack, id, 1000) {
                let _ = stack.write(id, core::iter::once(&data[..]));
            }
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn a_loaded_library_talks_over_memif() {
    alone_as("overfly::tests::program::loaded::a_loaded_library_talks_over_memif", || {
        let place: Address = format!("@overfly-loaded-{}", std::process::id()).parse().unwrap();
        let broker = overfly_steer::over_memif(&place, SERVER_IP.into(), 16).unwrap();
        for (name, value) in [
            ("OVERFLY_BROKER", broker.environment()),
            ("OVERFLY_FREE_BIND", "1"),
            ("OVERFLY_STATS", "1"),
            ("EF_POLL_USEC", "20"),
            ("EF_BACKGROUND", "1"),
            ("EF_SPIN_USEC", "0"),
        ] {
            // SAFETY: no other thread reads the environment now.
            unsafe { std::env::set_var(name, value) };
        }
        core::mem::forget(broker);
        crate::process::load();
        assert!(crate::process::is_active());
        processes::accompany();
        let stop = AtomicBool::new(false);
        let call = Mutex::new(None);
        std::thread::scope(|scope| {
            scope.spawn(|| peer(&place, &stop, &call));
            let listener = socket(libc::AF_INET, libc::SOCK_STREAM);
            assert_eq!(bind(listener, own(0)), Ok(0));
            // SAFETY: no memory is lent.
            assert_eq!(said(unsafe { sockets::listen(listener, 4) }), Ok(0));
            assert_eq!(polled(listener, libc::POLLIN, 50), 0, "the peer comes meanwhile");
            let opened = socket(libc::AF_INET, libc::SOCK_STREAM);
            assert_eq!(connect(opened, FAR), Ok(0));
            *call.lock().unwrap() = Some(name(listener, false).unwrap().port());
            let (accepted, from) = accept(listener, 0).unwrap();
            assert_eq!(from, SocketAddr::new(CLIENT.into(), 40_001));
            for end in [opened, accepted] {
                assert!(crate::hooks::data::is_connection(end), "it is the kernel's");
                let data = vec![7; 600];
                assert_eq!(write(end, &data), Ok(600));
                assert_eq!(recv(end, 600, libc::MSG_WAITALL), Ok(data));
                assert_eq!(close(end), Ok(0));
            }
            assert_eq!(close(listener), Ok(0));
            stop.store(true, Ordering::Relaxed);
        });
    });
}

/// Without its broker the program goes on by the kernel.
#[test]
fn who_finds_no_broker_is_served_by_the_kernel() {
    alone_as("overfly::tests::program::loaded::who_finds_no_broker_is_served_by_the_kernel", || {
        let nowhere = format!("overfly-nobody-{}:{}", std::process::id(), "0".repeat(32));
        // SAFETY: no other thread reads the environment now.
        unsafe { std::env::set_var("OVERFLY_BROKER", nowhere) };
        crate::process::load();
        assert!(!crate::process::is_active());
        let kernel = TcpListener::bind("127.0.0.1:0").unwrap();
        let end = socket(libc::AF_INET, libc::SOCK_STREAM);
        assert_eq!(connect(end, kernel.local_addr().unwrap()), Ok(0));
        let mut far = Far::Kernel(kernel.accept().unwrap().0);
        assert_eq!(write(end, b"by the kernel"), Ok(13));
        assert_eq!(far.read(13), b"by the kernel");
        assert_eq!(close(end), Ok(0));
    });
}

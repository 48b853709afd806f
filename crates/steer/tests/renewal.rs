//! The interface goes away and comes back, again and again: each time its stacks go on, and nothing piles up.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use overfly_broker::{Client, Heard, Lease};
use overfly_lab::{Broker, INTERFACE, Lab, SERVER};
use overfly_link::Link;
use overfly_link::xdp::XdpLink;
use overfly_steer::{Attachment, Options, Protocol};
use overfly_wire::{FrameSink, MacAddr, ethernet};

const SERVICE: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER), 8080);
const ROUNDS: u32 = 10;

fn descriptors() -> usize {
    overfly_testing::process::descriptors(std::process::id())
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Somebody connects; the stack gets the SYN, and its answer leaves (it is none that the kernel knows).
fn is_reached(lab: &Lab, link: &mut XdpLink, own: MacAddr) {
    let sent = link.counters().sent_frames;
    let knocking = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while knocking.load(Ordering::Relaxed) {
                lab.client.within(|| {
                    let _ = TcpStream::connect_timeout(&SERVICE, Duration::from_millis(50));
                });
            }
        });
        let stop = Stop(&knocking);
        wait_until("a SYN reaches the stack", || {
            let mut syns = Vec::new();
            link.receive(64, |frame| {
                if let Ok((header, _)) = ethernet::Header::parse(frame) {
                    assert_eq!(header.destination, own);
                    syns.push(header.source);
                }
            });
            for peer in &syns {
                if let Some(frame) = link.frame() {
                    frame[..60].fill(0);
                    ethernet::Header { destination: *peer, source: own, ethertype: 0x88b5 }.emit(frame);
                    link.commit(60);
                }
            }
            link.flush();
            !syns.is_empty()
        });
        drop(stop);
    });
    assert!(link.counters().sent_frames > sent);
    wait_until("the kernel takes what is sent", || {
        link.flush();
        !link.is_busy()
    });
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[test]
fn an_interface_that_comes_back_is_accelerated_again() {
    let lab = Lab::new(1);
    let options = Options { stacks: 4, rx_frames: 2048, rx_ring: 256, tx_frames: 128, ..Options::default() };
    let broker =
        lab.server.within(|| Broker::start(Attachment::attach(INTERFACE, options).unwrap()).unwrap());
    let lease = lab.server.within(|| Lease::at_interface(INTERFACE).unwrap().expect("a broker"));
    let mut client = lab.server.within(|| Client::connect(broker.environment()).unwrap());
    let mut link = XdpLink::open(client.open_stack().unwrap().into_xdp().unwrap()).unwrap();
    client.listen(Protocol::Tcp, SERVICE, true).unwrap();
    is_reached(&lab, &mut link, client.interface().mac);
    let (begin, numbers) = (descriptors(), numbers(&link));
    for round in 0..ROUNDS {
        lab.part();
        // It may be made anew before the broker has looked, or after.
        if round % 2 == 0 {
            wait_until("the broker sees that it is gone", || {
                broker.attachment().interface().addresses.is_empty()
            });
            assert_eq!(link.receive(64, |_| ()), 0);
        }
        lab.join(1);
        wait_until("the broker tells its client", || {
            assert!(client.passed_connection().is_none());
            match client.renewal() {
                Some(sockets) => {
                    link.renew(sockets.unwrap().into_xdp().unwrap()).unwrap();
                    true
                }
                None => false,
            }
        });
        is_reached(&lab, &mut link, client.interface().mac);
        assert_eq!(self::numbers(&link), numbers);
        assert_eq!(descriptors(), begin, "round {round}");
    }
    assert_eq!(broker.counters().undoing_failed, 0);
    // Another program's user heard of it all.
    let (mut gone, mut back) = (0, 0);
    while back < ROUNDS {
        match lease.hear() {
            Heard::News(line) if line.starts_with(&format!("{INTERFACE} is gone: ")) => gone += 1,
            Heard::News(line) if line == format!("{INTERFACE} is there again, and accelerated") => back += 1,
            other => panic!("{other:?}"),
        }
        assert!(gone > 0 && gone <= back + 1, "{gone} {back}");
    }
    assert!(gone >= ROUNDS / 2);
    assert!(lease.leave());
    drop((link, client));
    wait_until("the stack's frames are back", || {
        broker.attachment().open_stacks() == 0
            && broker.attachment().free_frames().all(|free| free >= options.rx_frames - 2)
    });
}

fn numbers(link: &XdpLink) -> Vec<i32> {
    link.descriptors().map(|descriptor| descriptor.as_raw_fd()).collect()
}

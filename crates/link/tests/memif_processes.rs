//! memif between two processes, and what a kill does.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use overfly_link::memif::{Address, Connection, LinkState, Listener, MemifLink, Settings, connect};
use overfly_wire::FrameSink;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

const ROLE: &str = "OVERFLY_TEST_MEMIF_PEER";
const FRAMES: u64 = 1_000_000;
const PATIENCE: Duration = Duration::from_secs(60);

/// What the other process does: it listens or connects, and sends back what it receives until its peer goes. Without the variable, which the tests here set for themselves, it is nothing.
#[test]
fn the_other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (role, address) = role.split_once(' ').unwrap();
    let address: Address = address.parse().unwrap();
    let connection = match role {
        "listen" => Listener::bind(&address, Settings::default()).unwrap().accept(PATIENCE).unwrap().unwrap(),
        _ => connect(&address, &Settings::default(), PATIENCE).unwrap(),
    };
    echo(open(connection));
}

struct Other(Child);

impl Other {
    fn start(role: &str, address: &Address) -> Other {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["the_other_process", "--exact"]).env(ROLE, format!("{role} {address}"));
        Other(command.stdout(Stdio::null()).spawn().unwrap())
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn end(mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

fn address(test: &str) -> Address {
    format!("@overfly-memif-{test}-{}", std::process::id()).parse().unwrap()
}

fn open(connection: Connection) -> MemifLink {
    connection.open().unwrap().pop().unwrap()
}

fn connect_soon(address: &Address) -> MemifLink {
    let begin = Instant::now();
    loop {
        match connect(address, &Settings::default(), PATIENCE) {
            Ok(connection) => return open(connection),
            Err(error) => assert!(begin.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sleeps until the link has something, or its peer is gone.
fn sleep(link: &mut MemifLink) {
    if link.arm() {
        let mut sockets: Vec<PollFd<'_>> =
            link.descriptors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let limit = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
        assert!(poll(&mut sockets, Some(&limit)).unwrap() > 0, "nobody woke this end");
    }
}

fn echo(mut link: MemifLink) {
    let mut waiting: Vec<Vec<u8>> = Vec::new();
    while link.state() == LinkState::Up {
        let count = link.receive(64, |frame| waiting.push(frame.to_vec()));
        for frame in waiting.drain(..) {
            while link.state() == LinkState::Up && !send(&mut link, &frame) {
                std::thread::yield_now();
                link.check_peer();
            }
        }
        link.flush();
        if count == 0 {
            sleep(&mut link);
        }
    }
}

fn send(link: &mut MemifLink, frame: &[u8]) -> bool {
    let Some(buffer) = link.frame() else { return false };
    buffer[..frame.len()].copy_from_slice(frame);
    link.commit(frame.len());
    true
}

/// Sends numbered frames and expects each back, in order. Returns how many came.
fn exchange(link: &mut MemifLink, frames: u64) -> u64 {
    let length = |number: u64| if number.is_multiple_of(1000) { 60_000 } else { 60 + number as usize % 1400 };
    let (mut sent, mut received) = (0, 0);
    while received < frames && link.state() == LinkState::Up {
        while sent < frames && sent - received < 256 {
            let Some(buffer) = link.frame() else { break };
            buffer[..8].copy_from_slice(&sent.to_le_bytes());
            buffer[length(sent) - 1] = sent as u8;
            link.commit(length(sent));
            sent += 1;
        }
        link.flush();
        let count = link.receive(64, |frame| {
            assert_eq!(frame.len(), length(received), "{received}");
            assert_eq!(frame[..8], received.to_le_bytes());
            assert_eq!(frame[frame.len() - 1], received as u8);
            received += 1;
        });
        if count == 0 {
            sleep(link);
        }
    }
    received
}

#[test]
fn a_million_frames_go_both_ways_with_either_end_as_the_client() {
    let place = address("client");
    let other = Other::start("listen", &place);
    let mut link = connect_soon(&place);
    assert_eq!(exchange(&mut link, FRAMES), FRAMES, "{link:?}");
    drop(link);
    other.end();

    let place = address("server");
    let mut listener = Listener::bind(&place, Settings::default()).unwrap();
    let other = Other::start("connect", &place);
    let mut link = open(listener.accept(PATIENCE).unwrap().expect("a client"));
    assert_eq!(exchange(&mut link, FRAMES), FRAMES, "{link:?}");
    drop(link);
    other.end();
}

#[test]
fn kill_9_of_a_client_is_noticed_and_the_next_one_is_served() {
    let place = address("kill-client");
    let mut listener = Listener::bind(&place, Settings::default()).unwrap();
    for _ in 0..3 {
        let other = Other::start("connect", &place);
        let mut link = open(listener.accept(PATIENCE).unwrap().expect("a client"));
        assert_eq!(exchange(&mut link, 1000), 1000);
        other.kill();
        exchange(&mut link, u64::MAX);
        assert_eq!(link.state(), LinkState::PeerGone);
    }
}

#[test]
fn kill_9_of_a_server_is_noticed_and_the_next_one_is_found() {
    let place = address("kill-server");
    for _ in 0..3 {
        let other = Other::start("listen", &place);
        let mut link = connect_soon(&place);
        assert_eq!(exchange(&mut link, 1000), 1000);
        other.kill();
        exchange(&mut link, u64::MAX);
        assert_eq!(link.state(), LinkState::PeerGone);
    }
}

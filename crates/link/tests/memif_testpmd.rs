//! memif with a peer that others wrote: DPDK's testpmd, which sends each frame back with its addresses exchanged.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use overfly_link::memif::{Address, Connection, Listener, MemifLink, Settings, connect};
use overfly_wire::FrameSink;

const PATIENCE: Duration = Duration::from_secs(60);
const FRAMES: u32 = 20_000;
/// Frames on the way at most: testpmd drops what a full ring does not take.
const WINDOW: u32 = 256;

/// A folder of its own, and testpmd with it. It ends when its standard input does.
struct Peer {
    folder: PathBuf,
    child: Child,
}

impl Peer {
    /// `role` is testpmd's, `place` makes the driver's arguments for the socket out of the folder.
    fn start(role: &str, place: impl FnOnce(&Path) -> String) -> Peer {
        let folder = std::env::temp_dir().join(format!("overfly-testpmd-{}-{role}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let place = place(&folder);
        let mut command = Command::new("dpdk-testpmd");
        command
            .args(["-l", "0,1", "--no-huge", "-m", "128", "--no-pci", "--no-telemetry", "--no-shconf"])
            .arg(format!("--vdev=net_memif0,role={role},{place},bsize=2048,rsize=9"))
            .args([
                "--",
                "--forward-mode=macswap",
                "--no-flush-rx",
                "--total-num-mbufs=4096",
                "--no-mlockall",
            ])
            .env("RUNTIME_DIRECTORY", &folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().expect("dpdk-testpmd: scripts/install.sh installs it");
        Peer { folder, child }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Numbered frames of all lengths that an Ethernet has; each must come back.
fn exchange(mut link: MemifLink) {
    assert!(!link.offload());
    let length = |number: u32| 60 + number as usize % 1455;
    let (mut sent, mut received) = (0, 0);
    let mut progress = Instant::now();
    while received < FRAMES {
        while sent < FRAMES && sent - received < WINDOW {
            let Some(buffer) = link.frame() else { break };
            let frame = &mut buffer[..length(sent)];
            frame.fill(sent as u8);
            frame[..14].copy_from_slice(b"\x02AAAAA\x02BBBBB\x88\xb5");
            frame[14..18].copy_from_slice(&sent.to_le_bytes());
            link.commit(length(sent));
            sent += 1;
        }
        link.flush();
        let count = link.receive(64, |frame| {
            assert_eq!(frame[..14], *b"\x02BBBBB\x02AAAAA\x88\xb5");
            assert_eq!(frame[14..18], received.to_le_bytes());
            assert_eq!(frame.len(), length(received));
            assert!(frame[18..].iter().all(|&byte| byte == received as u8));
            received += 1;
        });
        if count > 0 {
            progress = Instant::now();
        } else {
            assert!(progress.elapsed() < PATIENCE, "{received} of {sent} came back: {link:?}");
            std::thread::yield_now();
        }
    }
}

/// Tries until it succeeds.
fn soon<T, E: Display>(mut attempt: impl FnMut() -> Result<T, E>) -> T {
    let begin = Instant::now();
    loop {
        match attempt() {
            Ok(result) => return result,
            Err(error) => assert!(begin.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn exchange_with_testpmd(connection: Connection) {
    assert!(connection.peer_name.starts_with("DPDK"), "{}", connection.peer_name);
    exchange(connection.open().unwrap().pop().unwrap());
}

#[test]
fn testpmd_as_the_server_returns_all_frames() {
    let peer =
        Peer::start("server", |folder| format!("socket={}/socket,socket-abstract=no", folder.display()));
    let address: Address = format!("{}/socket", peer.folder.display()).parse().unwrap();
    exchange_with_testpmd(soon(|| connect(&address, &Settings::default(), PATIENCE)));
}

#[test]
fn testpmd_as_the_client_returns_all_frames() {
    let name = format!("overfly-testpmd-{}", std::process::id());
    let mut listener = Listener::bind(&format!("@{name}").parse().unwrap(), Settings::default()).unwrap();
    let _peer = Peer::start("client", |_| format!("socket={name},socket-abstract=yes"));
    exchange_with_testpmd(listener.accept(PATIENCE).unwrap().expect("testpmd"));
}

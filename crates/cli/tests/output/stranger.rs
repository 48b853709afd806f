//! A program that shows itself as it likes, at a broker's name that it took.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use overfly_bench::lab::Lab;
use overfly_broker::message::{Reply, Shown, ShownPart};
use overfly_broker::watch::{self, Kind, Row, Show};
use overfly_link::messages;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen,
    socket_with,
};
use rustix::process::Uid;
use zerocopy::IntoBytes;

/// What a hostile program would like a terminal to do.
pub(crate) const ATTACK: &str = "\x1b]0;owned\x07\u{9b}31m\u{202e}gpj\x7f";
/// The name of the hostile program, as long as the kernel has names.
pub(crate) const PROGRAM: &str = "\x1b[2J\u{202e}\nroot";

/// Serves observers until it is dropped.
pub(crate) struct Stranger {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    program: Child,
    _folder: tempfile::TempDir,
}

/// What it does with who connects.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Shows a process with one stack.
    Polite,
    /// Accepts nobody.
    Silent,
    /// Shows one process after the other, for ever.
    Endless,
}

impl Stranger {
    /// Listens at the name of the broker of `interface`, as `user`.
    pub(crate) fn at(lab: &Lab, interface: &str, user: u32, manner: Manner) -> Stranger {
        let door = lab.within("server", || {
            // Of this thread only; the kernel says of a listener who began to listen.
            rustix::thread::set_thread_res_uid(None::<Uid>, Uid::from_raw(user), None::<Uid>).unwrap();
            door(&format!("overfly/{interface}"))
        });
        let door = door.unwrap();
        // A process with a name of its own: the kernel names it after the path that it was started by. A copy would be open for
        // writing in whatever another test forks meanwhile, and could then not be started (ETXTBSY).
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(PROGRAM);
        std::os::unix::fs::symlink("/bin/sleep", &file).unwrap();
        let program = Command::new(&file).arg("600").stdin(Stdio::null()).spawn().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let (told, process) = (over.clone(), program.id());
        let thread = std::thread::spawn(move || serve(&door, &told, process, manner));
        Stranger { over, thread: Some(thread), program, _folder: folder }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.program.kill();
        let _ = self.program.wait();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn door(name: &str) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    listen(&socket, 8).unwrap();
    socket
}

/// Whether there is something to read within a moment.
fn is_readable(descriptor: impl AsFd) -> bool {
    let moment = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    let mut wanted = [PollFd::new(&descriptor, PollFlags::IN)];
    poll(&mut wanted, Some(&moment)).is_ok_and(|ready| ready > 0)
}

fn serve(door: &OwnedFd, over: &AtomicBool, process: u32, manner: Manner) {
    let (memory, doorbell) = watch::create().unwrap();
    let mut show = Show::open(&memory, rustix::io::fcntl_dupfd_cloexec(&doorbell, 3).unwrap()).unwrap();
    let kernel = format!("kernel.{ATTACK}");
    let dropped = format!("engine.drop_{ATTACK}");
    let long = "x".repeat(5000);
    show.name([kernel.as_str(), &dropped, "now.receive_ring", "now.receive_ring_size", &long].into_iter());
    let mut frames = 0;
    while !over.load(Ordering::Relaxed) {
        show.count(u64::MAX, [7, 8, u64::MAX, 1, 9].into_iter());
        if show.is_asked() {
            let (local, remote) = ("10.0.0.1:80".parse().unwrap(), "10.0.0.2:9".parse().unwrap());
            let row = Row::new(Kind::Connection, 5, local, Some(remote));
            show.answer(usize::MAX, [row].into_iter());
        }
        if show.is_captured(now_us()) {
            show.frame(u64::MAX - frames, false, &[0x1b; 100]);
            frames += 1;
        }
        if manner == Manner::Silent || !is_readable(door) {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let Ok(observer) = accept_with(door, SocketFlags::CLOEXEC) else { continue };
        let _ = messages::receive(&observer, &mut [0; 1024], RecvFlags::empty());
        let part = ShownPart::new(&Shown { process, user: 0, stack: Some(3) });
        let show_one = || {
            let descriptors = [memory.as_fd(), doorbell.as_fd()];
            messages::send(&observer, part.as_bytes(), &descriptors, SendFlags::empty()).is_ok()
        };
        while show_one() && manner == Manner::Endless && !over.load(Ordering::Relaxed) {}
        let _ = messages::send(&observer, Reply::yes(None).as_bytes(), &[], SendFlags::empty());
    }
}

fn now_us() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// Fails if a terminal would do anything with a text but show it.
#[track_caller]
pub(crate) fn assert_harmless(what: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let bad = text.chars().find(|&character| {
        character.is_control() && character != '\n' && character != '\t'
            || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    });
    let _ = std::io::stderr().flush();
    assert_eq!(bad, None, "{what}: {text:?}");
}

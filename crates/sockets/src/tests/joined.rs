//! The calls, as hooks make them, of a process whose link is joined in memory to a peer's stack: real descriptors, no preload.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::sync::{Arc, Mutex};

use overfly_broker::Interface;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::*;
use crate::any_link::AnyLink;
use crate::calls::hold::Hold;
use crate::calls::{self, Answer};
use crate::kernel::{self, now};
use crate::memory::{Source, Target};
use crate::process::process;
use crate::sys;

type Frames = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// One end of a cable in memory, whose ends may be in different threads.
#[derive(Debug)]
pub(crate) struct Joined {
    inbound: Frames,
    outbound: Frames,
    buffer: Vec<u8>,
    /// Eventfds: what says that there are frames, here and at the other end.
    doorbell: Arc<OwnedFd>,
    others: Arc<OwnedFd>,
}

impl Joined {
    /// Both ends.
    pub(super) fn cable() -> [Joined; 2] {
        let (there, back) = (Frames::default(), Frames::default());
        let doorbell = || Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        let (here, away) = (doorbell(), doorbell());
        let end =
            |inbound: &Frames, outbound: &Frames, doorbell: &Arc<OwnedFd>, others: &Arc<OwnedFd>| Joined {
                inbound: Arc::clone(inbound),
                outbound: Arc::clone(outbound),
                buffer: vec![0; 2048],
                doorbell: Arc::clone(doorbell),
                others: Arc::clone(others),
            };
        [end(&there, &back, &here, &away), end(&back, &there, &away, &here)]
    }
}

impl FrameSink for Joined {
    fn frame(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.buffer)
    }

    fn commit(&mut self, length: usize) {
        self.outbound.lock().unwrap().push_back(self.buffer[..length].to_vec());
        let _ = rustix::io::write(&self.others, &1_u64.to_ne_bytes());
    }
}

impl Link for Joined {
    fn receive(&mut self, budget: usize, mut each: impl FnMut(&[u8])) -> usize {
        let mut inbound = self.inbound.lock().unwrap();
        let count = budget.min(inbound.len());
        inbound.drain(..count).for_each(|frame| each(&frame));
        count
    }

    fn flush(&mut self) {}

    fn arm(&mut self) -> bool {
        let _ = rustix::io::read(&self.doorbell, &mut [0; 8]);
        self.inbound.lock().unwrap().is_empty()
    }

    fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        core::iter::once(self.doorbell.as_fd())
    }

    fn each_counter(&self, _: Each<'_>) {}
}

/// How long a test may take that hangs.
const TOO_LONG: Duration = Duration::from_secs(20);

/// Set in the process that runs one test.
const ALONE: &str = "OVERFLY_TEST_ALONE";

/// Runs a test's closure in a process of its own: what the library knows is the whole process's.
pub(super) fn alone<F: FnOnce()>(test: F) {
    alone_as(core::any::type_name::<F>(), test);
}

/// The same, of the test that has this closure.
pub(super) fn alone_as(closure: &str, test: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        std::thread::spawn(|| {
            std::thread::sleep(TOO_LONG);
            eprintln!("the test does not end");
            std::process::abort();
        });
        return test();
    }
    // The closure's name begins with the test's.
    let (_, name) = closure.split_once("::").unwrap();
    let name = name.split("::{{closure}}").next().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args([name, "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{name}: {}: {said}", output.status);
}

/// What a test's process is told that it has.
pub(super) fn interface() -> Interface {
    Interface {
        name: "joined".to_owned(),
        index: 7,
        mac: SERVER_MAC,
        mtu: 1500,
        addresses: vec![(SERVER_IP.into(), 16), (SERVER_V6.ip(), 64)],
        partial_checksums: false,
    }
}

/// Gives this process a stack, and returns its peer's.
pub(super) fn join(broker: Option<&str>) -> Stack<Joined> {
    let [own, others] = Joined::cable();
    process().start_joined(interface(), AnyLink::Joined(own), broker).unwrap();
    let mut config = Config::new(CLIENT_MAC, CLIENT, 16);
    (config.address6, config.prefix6_len) = (Some(CLIENT_V6), 64);
    // Nobody else refuses what it does not know.
    config.alone = true;
    let mut peer = Stack::new();
    peer.start(Side::Network, Engine::new(config).unwrap(), others, 16);
    peer
}

/// This process as a server, and its peer.
struct World {
    peer: Stack<Joined>,
    listener: i32,
    server: SocketAddr,
    port: u16,
}

impl World {
    fn new() -> Self {
        let peer = join(None);
        let listener = socket();
        let wanted = SocketAddr::new(SERVER_IP.into(), 0);
        rustix::net::bind(kernel::borrow(listener), &wanted).unwrap();
        rustix::net::listen(kernel::borrow(listener), 16).unwrap();
        calls::life::listened(listener, 16);
        let server = kernel::local_address(listener).unwrap();
        Self { peer, listener, server, port: 40_000 }
    }

    /// Moves frames both ways until the ends have heard each other.
    fn settle(&mut self) {
        for _ in 0..8 {
            self.peer.pump(now());
            process().pump_before_waiting();
            process().transmit();
        }
        self.peer.pump(now());
    }

    /// A connection: the peer's end, and this process's descriptor.
    fn pair(&mut self) -> (SocketId, i32) {
        assert_eq!(accept(self.listener).err(), Some(Errno::AGAIN), "nobody is there yet");
        self.port += 1;
        let id = self.peer.open(100, false, true).unwrap();
        let local = SocketAddr::new(CLIENT.into(), self.port);
        let settings = Settings::DEFAULT;
        self.peer.connect(now(), Side::Network, id, local, self.server, SERVER_MAC, settings).unwrap();
        self.settle();
        let (descriptor, remote) = accept(self.listener).unwrap();
        assert_eq!(remote, local);
        (id, descriptor)
    }

    fn peer_writes(&mut self, id: SocketId, data: &[u8]) {
        assert_eq!(self.peer.write(id, core::iter::once(data)), Ok(data.len()));
        self.settle();
    }

    fn peer_reads(&mut self, id: SocketId) -> Vec<u8> {
        let mut buffer = [MaybeUninit::new(0); 100];
        let count = self.peer.read(id, core::iter::once(&mut buffer[..]), false).unwrap();
        // SAFETY: every byte was initialised, and `read` writes only bytes.
        buffer[..count].iter().map(|byte| unsafe { byte.assume_init() }).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        close(self.listener);
    }
}

/// socket(), as the hook does it.
fn socket() -> i32 {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let made = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    let descriptor = made.as_raw_fd();
    core::mem::forget(made);
    calls::life::opened(descriptor, libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0);
    descriptor
}

fn close(descriptor: i32) {
    if matches!(calls::life::close(descriptor), Answer::Kernel) {
        sys::close(descriptor);
    }
}

/// The answer of a call that must not be the kernel's.
fn ours<T>(answer: Answer<T>) -> Result<T, Errno> {
    match answer {
        Answer::Done(outcome) => outcome,
        Answer::Kernel => panic!("the call was left to the kernel"),
    }
}

fn accept(listener: i32) -> Result<(i32, SocketAddr), Errno> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    ours(calls::life::accept(listener, flags)).map(|accepted| (accepted.descriptor, accepted.remote))
}

fn receive(descriptor: i32, most: usize, flags: i32) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; most];
    let vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: most };
    // SAFETY: the vector names the buffer, which outlives the call.
    let target = unsafe { Target::new(&raw const vector, 1) };
    let count = ours(calls::data::receive(&mut Hold::new(), descriptor, target, flags, usize::MAX))?;
    buffer.truncate(count);
    Ok(buffer)
}

fn send(descriptor: i32, data: &[u8]) -> Result<usize, Errno> {
    let vector = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    // SAFETY: the vector names the data, which outlives the call and is only read.
    let source = unsafe { Source::new(&raw const vector, 1) };
    ours(calls::data::send(&mut Hold::new(), descriptor, source, libc::MSG_NOSIGNAL))
}

fn polled(descriptor: i32) -> i16 {
    let mut asked = [libc::pollfd { fd: descriptor, events: libc::POLLIN | libc::POLLOUT, revents: 0 }];
    let waiting = overfly_profile::options::Waiting::Poll;
    ours(calls::poll::poll(&mut asked, Some(Duration::ZERO), None, waiting)).unwrap();
    asked[0].revents
}

#[test]
fn a_request_is_peeked_at_read_and_answered() {
    alone(|| {
        let mut world = World::new();
        let (peer, descriptor) = world.pair();
        assert_eq!(receive(descriptor, 10, 0), Err(Errno::AGAIN));
        assert_eq!(polled(descriptor), libc::POLLOUT);
        world.peer_writes(peer, b"GET /");
        assert_eq!(polled(descriptor), libc::POLLIN | libc::POLLOUT);
        assert_eq!(receive(descriptor, 3, libc::MSG_PEEK), Ok(b"GET".to_vec()));
        assert_eq!(receive(descriptor, 10, 0), Ok(b"GET /".to_vec()));
        assert_eq!(send(descriptor, b"200"), Ok(3));
        world.settle();
        let answer = world.peer_reads(peer);
        assert_eq!(answer, b"200");
        close(descriptor);
    });
}

#[test]
fn names_are_the_ends() {
    alone(|| {
        let mut world = World::new();
        let (_, descriptor) = world.pair();
        assert_eq!(ours(calls::life::name(descriptor, false)), Ok(world.server));
        assert_eq!(ours(calls::life::name(descriptor, true)), Ok(SocketAddr::new(CLIENT.into(), world.port)));
        close(descriptor);
    });
}

#[test]
fn after_shutdown_nothing_is_sent_and_the_peers_end_is_read() {
    alone(|| {
        let mut world = World::new();
        let (peer, descriptor) = world.pair();
        assert_eq!(ours(calls::life::shutdown(descriptor, libc::SHUT_WR)), Ok(()));
        assert_eq!(send(descriptor, b"late"), Err(Errno::PIPE));
        world.peer_writes(peer, b"bye");
        world.peer.close(peer);
        world.settle();
        assert_eq!(receive(descriptor, 10, 0), Ok(b"bye".to_vec()));
        assert_eq!(receive(descriptor, 10, 0), Ok(vec![]), "the peer's end");
        close(descriptor);
    });
}

/// What an epoll set says at once.
fn events(set: i32) -> Vec<(u32, u64)> {
    let mut records = [libc::epoll_event { events: 0, u64: 0 }; 8];
    // SAFETY: there is room for as many records as the call is told.
    let answer = unsafe {
        calls::wait::epoll_wait(set, records.as_mut_ptr(), records.len() as i32, Some(Duration::ZERO), None)
    };
    let count = ours(answer).unwrap();
    records[..count].iter().map(|record| (record.events, record.u64)).collect()
}

#[test]
fn an_epoll_set_tells_an_edge_once_and_a_level_each_time() {
    alone(|| {
        let mut world = World::new();
        let (peer, descriptor) = world.pair();
        let made = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
        let set = made.as_raw_fd();
        core::mem::forget(made);
        calls::life::set_opened(set);
        let wanted = |events: i32| Some(libc::epoll_event { events: events as u32, u64: 9 });
        let control = |operation, event| ours(calls::control::epoll_ctl(set, operation, descriptor, event));
        assert_eq!(control(libc::EPOLL_CTL_MOD, wanted(libc::EPOLLIN)), Err(Errno::NOENT));
        assert_eq!(control(libc::EPOLL_CTL_ADD, wanted(libc::EPOLLIN | libc::EPOLLET)), Ok(()));
        assert_eq!(control(libc::EPOLL_CTL_ADD, wanted(libc::EPOLLIN)), Err(Errno::EXIST));
        assert_eq!(events(set), []);
        world.peer_writes(peer, b"news");
        let readable = [(libc::EPOLLIN as u32, 9)];
        assert_eq!(events(set), readable);
        assert_eq!(events(set), [], "an edge");
        assert_eq!(control(libc::EPOLL_CTL_MOD, wanted(libc::EPOLLIN)), Ok(()));
        assert_eq!((events(set), events(set)), (readable.to_vec(), readable.to_vec()), "a level");
        assert_eq!(control(libc::EPOLL_CTL_DEL, None), Ok(()));
        assert_eq!(events(set), []);
        close(set);
        close(descriptor);
    });
}

#[test]
fn a_duplicate_keeps_the_connection_open() {
    alone(|| {
        let mut world = World::new();
        let (peer, descriptor) = world.pair();
        let made = rustix::io::fcntl_dupfd_cloexec(kernel::borrow(descriptor), 0).unwrap();
        let copy = made.as_raw_fd();
        core::mem::forget(made);
        calls::life::duplicated(descriptor, copy);
        close(descriptor);
        world.peer_writes(peer, b"still there");
        assert_eq!(receive(copy, 100, 0), Ok(b"still there".to_vec()));
        assert_eq!(send(copy, b"yes"), Ok(3));
        world.settle();
        assert_eq!(world.peer_reads(peer), b"yes");
        close(copy);
        world.settle();
        assert_eq!(world.peer_reads(peer), b"", "the end, with the last descriptor");
    });
}

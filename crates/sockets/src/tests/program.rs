//! Programs: each of these tests makes the calls of a program, by the hooks, in a process whose link is joined in memory to a peer's
//! stack. What it is told is what Linux says: most calls are made on a connection of the kernel's as well ([`Twins`]).

mod away;
mod broker;
mod connecting;
mod datagrams;
mod forks;
mod loaded;
mod names;
mod numbers;
mod observed;
mod options;
mod receiving;
mod sending;
mod signals;
mod threads;
mod unreachable;
mod unseen;
mod waiting;
mod within_host;

use core::fmt::Debug;
use core::net::SocketAddr;
use core::time::Duration;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use libc::{c_int, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use rustix::io::Errno;

use self::broker::Told;
use super::joined::{Joined, alone_as, join};
use super::{CLIENT, SERVER_IP, SERVER_MAC};
use crate::hooks::{descriptors, events, receive, send, sockets};
use crate::kernel::now;
use crate::socket::{Settings, Side, SocketId};
use crate::stack::Stack;

/// How long anything may take that is to happen.
const PATIENCE: Duration = Duration::from_secs(10);
/// Where the peer listens.
const FAR: SocketAddr = SocketAddr::new(core::net::IpAddr::V4(CLIENT), 80);

/// What a call returned, or its errno.
type Said = Result<i64, Errno>;

/// What C's functions return.
fn said(result: impl Into<i64>) -> Said {
    match result.into() {
        // SAFETY: the location is this thread's own.
        -1 => Err(Errno::from_raw_os_error(unsafe { *libc::__errno_location() })),
        result => Ok(result),
    }
}

fn said_long(result: isize) -> Said {
    said(result as i64)
}

/// The peer's stack, and the thread that moves its frames.
#[derive(Clone)]
struct Peer {
    stack: Arc<Mutex<Stack<Joined>>>,
    listener: SocketId,
}

impl Peer {
    fn new(mut stack: Stack<Joined>) -> Peer {
        let listener = stack.open(3, false, true).unwrap();
        stack.listening(listener, 64);
        assert_eq!(stack.join(Side::Network, listener, FAR), Ok(true));
        let peer = Peer { stack: Arc::new(Mutex::new(stack)), listener };
        let moving = peer.clone();
        std::thread::spawn(move || {
            loop {
                moving.stack().pump(now());
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        peer
    }

    fn stack(&self) -> MutexGuard<'_, Stack<Joined>> {
        self.stack.lock().unwrap()
    }

    /// Looks again and again until there is something.
    fn until<T>(&self, mut look: impl FnMut(&mut Stack<Joined>) -> Option<T>) -> T {
        until(|| {
            let mut stack = self.stack();
            stack.pump(now());
            look(&mut stack)
        })
    }

    fn accept(&self) -> Far {
        let id = self.until(|stack| stack.accept(self.listener, 100, true));
        Far::Peer(self.clone(), id)
    }

    /// Connects to the program, from this port.
    fn connect(&self, to: SocketAddr, port: u16) -> Far {
        let mut stack = self.stack();
        let id = stack.open(i32::from(port), false, true).unwrap();
        let from = SocketAddr::new(if to.is_ipv4() { CLIENT.into() } else { super::CLIENT_V6.into() }, port);
        stack.connect(now(), Side::Network, id, from, to, SERVER_MAC, Settings::DEFAULT).unwrap();
        stack.pump(now());
        Far::Peer(self.clone(), id)
    }
}

fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "nothing happens");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The other end of one of the program's connections.
enum Far {
    Peer(Peer, SocketId),
    Kernel(TcpStream),
}

impl Far {
    fn write(&mut self, data: &[u8]) {
        match self {
            Far::Peer(peer, id) => {
                let mut left = data;
                while !left.is_empty() {
                    let sent = peer.until(|stack| stack.write(*id, core::iter::once(left)).ok());
                    left = &left[sent..];
                }
                peer.stack().pump(now());
            }
            Far::Kernel(stream) => stream.write_all(data).unwrap(),
        }
    }

    /// So many bytes, or fewer before the end.
    fn read(&mut self, length: usize) -> Vec<u8> {
        match self {
            Far::Peer(peer, id) => {
                let mut data = Vec::new();
                while data.len() < length {
                    let piece = peer.until(|stack| super::read(stack, *id, length - data.len()).ok());
                    if piece.is_empty() {
                        break;
                    }
                    data.extend(piece);
                }
                data
            }
            Far::Kernel(stream) => {
                let mut data = Vec::new();
                stream.take(length as u64).read_to_end(&mut data).unwrap();
                data
            }
        }
    }

    /// No more comes from there.
    fn shut(&mut self) {
        match self {
            Far::Peer(peer, id) => {
                let mut stack = peer.stack();
                stack.shutdown(*id, false, true).unwrap();
                stack.pump(now());
            }
            Far::Kernel(stream) => stream.shutdown(std::net::Shutdown::Write).unwrap(),
        }
    }

    fn reset(self) {
        match self {
            Far::Peer(peer, id) => {
                let mut stack = peer.stack();
                stack.change(id, |settings| settings.linger = Some(Duration::ZERO));
                stack.close(id);
                stack.pump(now());
            }
            Far::Kernel(stream) => {
                let linger = Some(Duration::ZERO);
                rustix::net::sockopt::set_socket_linger(&stream, linger).unwrap();
            }
        }
    }

    fn close(self) {
        if let Far::Peer(peer, id) = self {
            let mut stack = peer.stack();
            stack.close(id);
            stack.pump(now());
        }
    }
}

/// A test's process, with its peer and its broker.
struct World {
    peer: Peer,
    told: Told,
    /// The kernel's part of the twins.
    kernel: TcpListener,
}

impl World {
    fn new() -> World {
        let (broker, told) = broker::start();
        let world = World::with(broker.environment(), told);
        // It serves as long as this process lives.
        core::mem::forget(broker);
        world
    }

    fn with(broker: &str, told: Told) -> World {
        let peer = Peer::new(join(Some(broker)));
        crate::hooks::processes::accompany();
        World { peer, told, kernel: TcpListener::bind("127.0.0.1:0").unwrap() }
    }

    /// A connection that the program has opened, and its far end.
    fn dial(&self) -> (c_int, Far) {
        let descriptor = socket(libc::AF_INET, libc::SOCK_STREAM);
        assert_eq!(connect(descriptor, FAR), Ok(0));
        (descriptor, self.peer.accept())
    }

    /// The same, of the kernel's.
    fn dial_kernel(&self) -> (c_int, Far) {
        let descriptor = socket(libc::AF_INET, libc::SOCK_STREAM);
        assert_eq!(connect(descriptor, self.kernel.local_addr().unwrap()), Ok(0));
        (descriptor, Far::Kernel(self.kernel.accept().unwrap().0))
    }

    fn twins(&self) -> Twins {
        let ((ours, far), (kernels, far_kernels)) = (self.dial(), self.dial_kernel());
        assert!(crate::hooks::data::is_connection(ours), "it is the kernel's");
        Twins { ends: [ours, kernels], far: [Some(far), Some(far_kernels)] }
    }

    /// A listener of the program's at a port of its own, at all addresses.
    fn listen(&self) -> (c_int, u16) {
        let listener = socket(libc::AF_INET, libc::SOCK_STREAM);
        assert_eq!(bind(listener, "0.0.0.0:0".parse().unwrap()), Ok(0));
        // SAFETY: no memory is lent.
        assert_eq!(said(unsafe { sockets::listen(listener, 16) }), Ok(0));
        (listener, name(listener, false).unwrap().port())
    }
}

/// Where the program is for its peer.
fn own(port: u16) -> SocketAddr {
    SocketAddr::new(SERVER_IP.into(), port)
}

/// Two connections of the program's, one over its stack and one over the kernel's: what is done with both must come to the same.
struct Twins {
    ends: [c_int; 2],
    far: [Option<Far>; 2],
}

impl Twins {
    /// What the call comes to on both.
    #[track_caller]
    fn same<R: PartialEq + Debug>(&self, mut call: impl FnMut(c_int) -> R) -> R {
        let [ours, kernels] = self.ends.map(&mut call);
        assert_eq!(ours, kernels, "ours, and the kernel's");
        ours
    }

    fn each_far(&mut self, act: impl FnMut(&mut Far)) {
        self.far.iter_mut().flatten().for_each(act);
    }

    /// The far ends write, and it has come.
    fn hear(&mut self, data: &[u8]) {
        self.each_far(|far| far.write(data));
        self.wait_for(data.len());
    }

    /// So many bytes can be read.
    fn wait_for(&self, length: usize) {
        for descriptor in self.ends {
            until(|| (queued(descriptor, libc::FIONREAD).unwrap() as usize >= length).then_some(()));
        }
    }

    /// These events are there.
    fn wait_events(&self, events: i16) {
        for descriptor in self.ends {
            until(|| (polled(descriptor, events, 0) & events != 0).then_some(()));
        }
    }

    /// What has come there, from both.
    #[track_caller]
    fn far_read(&mut self, length: usize) -> Vec<u8> {
        let [ours, kernels] = self.far.each_mut().map(|far| far.as_mut().unwrap().read(length));
        assert_eq!(ours, kernels, "at the far ends");
        ours
    }

    fn far_shut(&mut self) {
        self.each_far(Far::shut);
        self.wait_events(libc::POLLRDHUP);
    }

    fn far_reset(&mut self) {
        self.far.iter_mut().for_each(|far| far.take().unwrap().reset());
        self.wait_events(libc::POLLERR);
    }

    fn close(self) {
        assert_eq!(self.same(close), Ok(0));
        self.far.into_iter().flatten().for_each(Far::close);
    }
}

/// Runs a script in a process of its own.
fn script<F: FnOnce(World)>(act: F) {
    alone_as(core::any::type_name::<F>(), || act(World::new()));
}

// The calls, with Rust's types.

fn socket(domain: c_int, kind: c_int) -> c_int {
    // SAFETY: no memory is lent.
    let descriptor = unsafe { sockets::socket(domain, kind, 0) };
    assert!(descriptor >= 0, "{:?}", said(descriptor));
    descriptor
}

/// An address as C has it.
#[repr(C)]
#[derive(Clone, Copy)]
union Record {
    v4: sockaddr_in,
    v6: sockaddr_in6,
}

fn record(address: SocketAddr) -> (Record, socklen_t) {
    // SAFETY: an all-zero record is valid.
    let mut record: Record = unsafe { core::mem::zeroed() };
    let mut length = size_of::<Record>() as socklen_t;
    // SAFETY: the record and its length are lent.
    unsafe { sockets::put_address(address, (&raw mut record).cast(), &raw mut length) };
    (record, length)
}

fn fcntl(descriptor: c_int, command: c_int, argument: u64) -> Said {
    // SAFETY: no memory is lent.
    said(unsafe { descriptors::fcntl64(descriptor, command, argument) })
}

fn epoll() -> c_int {
    // SAFETY: no memory is lent.
    let set = unsafe { events::epoll_create1(libc::EPOLL_CLOEXEC) };
    assert!(set >= 0);
    set
}

/// What a set says within so many milliseconds: events, and what it was given as data.
fn ask(set: c_int, timeout: c_int) -> Result<Vec<(u32, u64)>, Errno> {
    let mut records = [libc::epoll_event { events: 0, u64: 0 }; 8];
    // SAFETY: the records are lent.
    let count = said(unsafe { events::epoll_wait(set, records.as_mut_ptr(), 8, timeout) })?;
    Ok(records.iter().take(count as usize).map(|record| (record.events, record.u64)).collect())
}

/// Has a set watch a descriptor, whose number is what the set then says.
fn watch(set: c_int, descriptor: c_int, wanted: c_int) -> Said {
    let mut record = libc::epoll_event { events: wanted as u32, u64: descriptor as u64 };
    // SAFETY: the record is lent.
    said(unsafe { events::epoll_ctl(set, libc::EPOLL_CTL_ADD, descriptor, &raw mut record) })
}

fn connect(descriptor: c_int, to: SocketAddr) -> Said {
    let (record, length) = record(to);
    // SAFETY: the record is lent.
    said(unsafe { sockets::connect(descriptor, (&raw const record).cast(), length) })
}

fn bind(descriptor: c_int, to: SocketAddr) -> Said {
    let (record, length) = record(to);
    // SAFETY: the record is lent.
    said(unsafe { sockets::bind(descriptor, (&raw const record).cast(), length) })
}

type NameCall = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;

fn name(descriptor: c_int, remote: bool) -> Result<SocketAddr, Errno> {
    let call: NameCall = if remote { sockets::getpeername } else { sockets::getsockname };
    // SAFETY: an all-zero record is valid.
    let mut record: Record = unsafe { core::mem::zeroed() };
    let mut length = size_of::<Record>() as socklen_t;
    // SAFETY: the record and its length are lent.
    said(unsafe { call(descriptor, (&raw mut record).cast(), &raw mut length) })?;
    // SAFETY: as above.
    Ok(unsafe { sockets::address_from((&raw const record).cast(), length) }.unwrap())
}

/// accept4(), and who is there.
fn accept(listener: c_int, flags: c_int) -> Result<(c_int, SocketAddr), Errno> {
    // SAFETY: an all-zero record is valid.
    let mut record: Record = unsafe { core::mem::zeroed() };
    let mut length = size_of::<Record>() as socklen_t;
    // SAFETY: the record and its length are lent.
    let outcome = unsafe { sockets::accept4(listener, (&raw mut record).cast(), &raw mut length, flags) };
    let descriptor = said(outcome)? as c_int;
    // SAFETY: as above.
    Ok((descriptor, unsafe { sockets::address_from((&raw const record).cast(), length) }.unwrap()))
}

fn close(descriptor: c_int) -> Said {
    // SAFETY: no memory is lent.
    said(unsafe { descriptors::close(descriptor) })
}

fn write(descriptor: c_int, data: &[u8]) -> Said {
    // SAFETY: the data is lent.
    said_long(unsafe { send::write(descriptor, data.as_ptr().cast(), data.len()) })
}

fn send(descriptor: c_int, data: &[u8], flags: c_int) -> Said {
    // SAFETY: the data is lent.
    said_long(unsafe { send::send(descriptor, data.as_ptr().cast(), data.len(), flags) })
}

fn recv(descriptor: c_int, most: usize, flags: c_int) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0_u8; most];
    // SAFETY: the buffer is lent.
    let length = said_long(unsafe { receive::recv(descriptor, buffer.as_mut_ptr().cast(), most, flags) })?;
    buffer.truncate(length as usize);
    Ok(buffer)
}

fn queued(descriptor: c_int, request: libc::c_ulong) -> Result<c_int, Errno> {
    let mut number: c_int = -7;
    // SAFETY: the number is lent.
    said(unsafe { descriptors::ioctl(descriptor, request, (&raw mut number) as libc::c_ulong) })
        .map(|_| number)
}

/// What poll() says of one descriptor.
fn polled(descriptor: c_int, events: i16, timeout: c_int) -> i16 {
    let mut asked = [libc::pollfd { fd: descriptor, events, revents: 0 }];
    // SAFETY: the record is lent.
    let count = said(unsafe { events::poll(asked.as_mut_ptr(), 1, timeout) }).unwrap();
    assert_eq!(count, i64::from(asked[0].revents != 0));
    asked[0].revents
}

fn set_option<T>(descriptor: c_int, level: c_int, option: c_int, value: &T) -> Said {
    let value: *const T = value;
    // SAFETY: the value is lent.
    said(unsafe {
        crate::hooks::options::setsockopt(
            descriptor,
            level,
            option,
            value.cast(),
            size_of::<T>() as socklen_t,
        )
    })
}

/// As many bytes of an option as it has, and there is room for.
fn option(descriptor: c_int, level: c_int, option: c_int, room: usize) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0_u8; room];
    let mut length = room as socklen_t;
    // SAFETY: the value and its length are lent.
    said(unsafe {
        crate::hooks::options::getsockopt(
            descriptor,
            level,
            option,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    })?;
    value.truncate(length as usize);
    Ok(value)
}

/// An option that is a number.
fn number(descriptor: c_int, level: c_int, name: c_int) -> Result<c_int, Errno> {
    option(descriptor, level, name, 4).map(|value| c_int::from_ne_bytes(value.try_into().unwrap()))
}

//! System calls on descriptors by number: through rustix's raw back end, never through the library's own hooks.

mod connection;
mod ports;
mod refusal;
pub(crate) mod standard_error;

use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};

use overfly_profile::sysctls::{self, FastOpenKeys, Sysctls};
use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

pub(crate) use self::connection::{
    forget_port, forget_what_to_tell, is_in_repair, is_shut_for_reading, is_unconnected, need_not_tell,
    set_untold, tell_connect,
};
pub(crate) use self::ports::{bind_any_port, has_port_range, reserve_port};
pub(crate) use self::refusal::refuse;
use crate::options::{self, Backing, Fresh, Listener};
use crate::socket::Later;

/// `descriptor` for one call.
pub(crate) fn borrow(descriptor: i32) -> BorrowedFd<'static> {
    // SAFETY: descriptors come from the program, which may close one at any time: then the call says EBADF or meets
    // another file, as it would without the library. Memory safety does not depend on it. Only -1 is not allowed.
    unsafe { BorrowedFd::borrow_raw(descriptor.max(0)) }
}

/// A kernel TCP socket that is neither bound nor connected: what an accelerated connection's descriptor refers to.
pub(crate) fn tcp_socket(v6: bool, close_on_exec: bool) -> Result<i32, Errno> {
    let flags = if close_on_exec { SocketFlags::CLOEXEC } else { SocketFlags::empty() };
    new_tcp_socket(v6, flags).map(IntoRawFd::into_raw_fd)
}

/// As [`tcp_socket`], for the library itself.
pub(crate) fn new_tcp_socket(v6: bool, flags: SocketFlags) -> Result<OwnedFd, Errno> {
    let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
    rustix::net::socket_with(family, SocketType::STREAM, flags, None)
}

/// Microseconds of the monotonic clock.
#[inline]
pub(crate) fn now() -> overfly_engine::Instant {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    overfly_engine::Instant::from_micros(time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000)
}

/// What the wall clock said so long ago, since 1970.
pub(crate) fn time_before(age: Duration) -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32).saturating_sub(age)
}

/// What all connections hold together, in bytes: when there is no more pressure, from when on there is some, and at most
/// (net.ipv4.tcp_mem).
pub(crate) fn connections_memory() -> [usize; 3] {
    let pages = numbers("/proc/sys/net/ipv4/tcp_mem");
    let bytes = |index: usize| {
        pages.get(index).map_or(usize::MAX, |&pages| {
            usize::try_from(pages.saturating_mul(rustix::param::page_size() as u64)).unwrap_or(usize::MAX)
        })
    };
    [bytes(0), bytes(1), bytes(2)]
}

/// The address that the kernel's socket is bound to, as the kernel says it.
pub(crate) fn local_address(descriptor: i32) -> Option<SocketAddr> {
    SocketAddr::try_from(rustix::net::getsockname(borrow(descriptor)).ok()?).ok()
}

/// What no other socket has, whatever its number (SO_COOKIE).
pub(crate) fn cookie(descriptor: i32) -> Option<u64> {
    sockopt::socket_cookie(borrow(descriptor)).ok()
}

/// Whether a read, or an accept(), would find something now.
pub(crate) fn is_readable(descriptor: i32) -> bool {
    let mut descriptors = [libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 }];
    crate::sys::poll(&mut descriptors, Some(0), crate::sys::handlers_run()).is_ok_and(|ready| ready > 0)
}

/// recvmsg() of the kernel's socket, which never waits.
///
/// # Safety
/// As for recvmsg(2).
pub(crate) unsafe fn receive(
    descriptor: i32,
    message: *mut libc::msghdr,
    flags: i32,
) -> Result<usize, Errno> {
    let arguments = [descriptor as usize, message as usize, (flags | libc::MSG_DONTWAIT) as usize, 0, 0, 0];
    // SAFETY: the caller's promise.
    unsafe { crate::sys::call(libc::SYS_recvmsg, arguments) }
}

/// recv() of the kernel's socket into one buffer, which never waits.
pub(crate) fn receive_into(
    descriptor: i32,
    buffer: &mut [core::mem::MaybeUninit<u8>],
    flags: i32,
) -> Result<usize, Errno> {
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: a plain C record, for which zeros are valid.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut vector, 1);
    // SAFETY: no name, no ancillary data, and a buffer that is ours to write.
    unsafe { receive(descriptor, &raw mut message, flags) }
}

/// How much a pipe takes; an error if it is none.
pub(crate) fn pipe_size(pipe: i32) -> Result<usize, Errno> {
    rustix::pipe::fcntl_getpipe_size(borrow(pipe))
}

/// Bytes in a pipe.
pub(crate) fn waiting_in_pipe(pipe: i32) -> Result<usize, Errno> {
    rustix::io::ioctl_fionread(borrow(pipe)).map(|bytes| bytes as usize)
}

/// Reads what is in a pipe; EAGAIN if there is nothing, whatever its O_NONBLOCK.
pub(crate) fn read_at_once(pipe: i32, space: &mut [u8]) -> Result<usize, Errno> {
    let mut vectors = [std::io::IoSliceMut::new(space)];
    // The offset stands for the current one.
    match rustix::io::preadv2(borrow(pipe), &mut vectors, u64::MAX, rustix::io::ReadWriteFlags::NOWAIT) {
        // Pipes of older kernels cannot.
        Err(Errno::OPNOTSUPP) if waiting_in_pipe(pipe)? == 0 => Err(Errno::AGAIN),
        Err(Errno::OPNOTSUPP) => rustix::io::read(borrow(pipe), space),
        outcome => outcome,
    }
}

/// Writes to a pipe that has room what there is room for; EAGAIN if there is none, whatever its O_NONBLOCK.
pub(crate) fn write_at_once(pipe: i32, bytes: &[u8]) -> Result<usize, Errno> {
    // What is not longer than this never waits in a pipe that poll() says has room (PIPE_BUF, pipe(7)).
    const AT_ONCE: usize = 4096;
    let vectors = [std::io::IoSlice::new(bytes)];
    match rustix::io::pwritev2(borrow(pipe), &vectors, u64::MAX, rustix::io::ReadWriteFlags::NOWAIT) {
        Err(Errno::OPNOTSUPP) => rustix::io::write(borrow(pipe), &bytes[..bytes.len().min(AT_ONCE)]),
        outcome => outcome,
    }
}

/// The addresses of all interfaces of this network namespace.
pub(crate) fn own_addresses() -> Vec<IpAddr> {
    let mut first = core::ptr::null_mut();
    // SAFETY: getifaddrs writes one pointer.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Vec::new();
    }
    let mut addresses = Vec::new();
    let mut next = first;
    // SAFETY: a list as getifaddrs made it, which nobody else has.
    while let Some(interface) = unsafe { next.as_ref() } {
        next = interface.ifa_next;
        // SAFETY: null, or an address that begins with its family.
        let Some(address) = (unsafe { interface.ifa_addr.as_ref() }) else { continue };
        match i32::from(address.sa_family) {
            libc::AF_INET => {
                // SAFETY: the family says that it is one of these.
                let address = unsafe { &*interface.ifa_addr.cast::<libc::sockaddr_in>() };
                addresses.push(IpAddr::V4(u32::from_be(address.sin_addr.s_addr).into()));
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let address = unsafe { &*interface.ifa_addr.cast::<libc::sockaddr_in6>() };
                addresses.push(IpAddr::V6(address.sin6_addr.s6_addr.into()));
            }
            _ => {}
        }
    }
    // SAFETY: made by getifaddrs, freed once.
    unsafe { libc::freeifaddrs(first) };
    addresses
}

/// IPV6_V6ONLY of an AF_INET6 socket: set by the program, or net.ipv6.bindv6only when it was made.
pub(crate) fn is_v6only(descriptor: i32) -> bool {
    sockopt::ipv6_v6only(borrow(descriptor)).unwrap_or(false)
}

/// The index of the link that the socket is tied to, by SO_BINDTODEVICE or bind() to an address with a scope; else 0.
pub(crate) fn link(descriptor: i32) -> u32 {
    number(descriptor, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX).map_or(0, |index| index as u32)
}

pub(crate) fn is_nonblocking(descriptor: i32) -> bool {
    rustix::fs::fcntl_getfl(borrow(descriptor)).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
}

/// Lets a socket be bound to an address that the kernel does not have.
pub(crate) fn allow_any_address(descriptor: i32, v6: bool) {
    let socket = borrow(descriptor);
    let _ =
        if v6 { sockopt::set_ipv6_freebind(socket, true) } else { sockopt::set_ip_freebind(socket, true) };
}

pub(crate) fn set_nonblocking(descriptor: i32, on: bool) {
    if let Ok(flags) = rustix::fs::fcntl_getfl(borrow(descriptor)) {
        let wanted = if on { flags | OFlags::NONBLOCK } else { flags - OFlags::NONBLOCK };
        let _ = rustix::fs::fcntl_setfl(borrow(descriptor), wanted);
    }
}

/// A listener's backlog: what `struct tcp_info` says of one in tcpi_sacked (tcp_get_info()).
pub(crate) fn backlog(descriptor: i32) -> i32 {
    let mut info = [0; 32];
    match Backing(descriptor).get(libc::IPPROTO_TCP, libc::TCP_INFO, &mut info) {
        Ok(32) => info.last_chunk().map_or(i32::MAX, |&last| i32::from_ne_bytes(last)),
        _ => libc::SOMAXCONN,
    }
}

pub(crate) fn is_close_on_exec(descriptor: i32) -> bool {
    rustix::io::fcntl_getfd(borrow(descriptor)).is_ok_and(|flags| flags.contains(FdFlags::CLOEXEC))
}

pub(crate) fn set_close_on_exec(descriptor: i32, on: bool) {
    let flags = if on { FdFlags::CLOEXEC } else { FdFlags::empty() };
    let _ = rustix::io::fcntl_setfd(borrow(descriptor), flags);
}

/// What a new socket comes with.
pub(crate) fn fresh() -> Result<Fresh, Errno> {
    let socket = new_tcp_socket(true, SocketFlags::CLOEXEC)
        .or_else(|_| new_tcp_socket(false, SocketFlags::CLOEXEC))?;
    let unsent_low_water = match numbers("/proc/sys/net/ipv4/tcp_notsent_lowat").first() {
        Some(&bytes) if bytes < u64::from(u32::MAX) => bytes as u32,
        _ => 0,
    };
    Fresh::read(Backing(socket.as_raw_fd()), unsent_low_water)
}

/// An option of the kernel's socket that is an `int`.
pub(crate) fn number(descriptor: i32, level: i32, name: i32) -> Result<i32, Errno> {
    Backing(descriptor).number(level, name)
}

/// SO_TIMESTAMPING of a connection.
pub(crate) fn stamp(descriptor: i32, later: &Later) {
    let [first, second] = later.value.map(i32::to_ne_bytes);
    let value = [first, second].concat();
    let _ = Backing(descriptor).set(libc::SOL_SOCKET, later.name, &value[..later.length as usize]);
}

/// net.ipv4.tcp_fastopen (Documentation/networking/ip-sysctl.rst).
#[derive(Clone, Copy)]
pub(crate) struct FastOpen(u64);

impl FastOpen {
    pub(crate) fn read() -> Self {
        Self(numbers("/proc/sys/net/ipv4/tcp_fastopen").first().copied().unwrap_or(0))
    }

    /// Clients may send data with their SYN.
    pub(crate) const fn client(self) -> bool {
        self.0 & 1 != 0
    }

    /// Listeners may take it.
    const fn server(self) -> bool {
        self.0 & 2 != 0
    }

    /// Clients need no cookie.
    pub(crate) const fn client_without_cookie(self) -> bool {
        self.0 & 4 != 0
    }

    /// Listeners need none.
    pub(crate) const fn server_without_cookie(self) -> bool {
        self.0 & 0x200 != 0
    }
}

/// Handshakes to a listener that may have brought data, at a time; none if net.ipv4.tcp_fastopen forbids it.
pub(crate) fn fast_open_max(asked: Listener) -> u32 {
    if asked.fast_open > 0 && FastOpen::read().server() { asked.fast_open } else { 0 }
}

const TCP_FASTOPEN_KEY: i32 = 33;

/// The keys of a listener's Fast Open cookies, or the administrator's, if this process may read those.
pub(crate) fn fast_open_keys(descriptor: i32) -> Option<FastOpenKeys> {
    own_fast_open_keys(descriptor).or_else(|| sysctls::fast_open_keys(&text(FAST_OPEN_KEYS)))
}

const FAST_OPEN_KEYS: &str = "/proc/sys/net/ipv4/tcp_fastopen_key";

fn own_fast_open_keys(descriptor: i32) -> Option<FastOpenKeys> {
    let mut keys = [[0_u8; 16]; 2];
    let bytes = keys.as_flattened_mut();
    let length = Backing(descriptor).get(libc::IPPROTO_TCP, TCP_FASTOPEN_KEY, bytes).ok()?;
    (length >= 16).then_some((keys[0], (length >= 32).then_some(keys[1])))
}

/// Gives a new listener the administrator's keys for its own, which only root may read: processes that accept there later need
/// not be root's (nginx's workers).
pub(crate) fn keep_fast_open_keys(descriptor: i32) {
    if fast_open_max(options::of_listener(Backing(descriptor))) == 0
        || !rustix::process::geteuid().is_root()
        || own_fast_open_keys(descriptor).is_some()
    {
        return;
    }
    let Some((primary, backup)) = sysctls::fast_open_keys(&text(FAST_OPEN_KEYS)) else { return };
    let keys = [primary, backup.unwrap_or_default()];
    let length = if backup.is_some() { 32 } else { 16 };
    let _ = Backing(descriptor).set(libc::IPPROTO_TCP, TCP_FASTOPEN_KEY, &keys.as_flattened()[..length]);
}

/// The largest SO_SNDBUF in bytes: net.core.wmem_max.
pub(crate) fn send_buffer_max() -> u32 {
    numbers("/proc/sys/net/core/wmem_max").first().map_or(212_992, |&bytes| bytes.min(1 << 30) as u32)
}

/// What a receive buffer may grow to by itself, in bytes: the last number of net.ipv4.tcp_rmem.
pub(crate) fn receive_buffer_grown_max() -> u64 {
    numbers("/proc/sys/net/ipv4/tcp_rmem").get(2).copied().unwrap_or(6 << 20)
}

/// A message for the system log, as syslog(3) sends it: of a daemon, a warning.
fn log(message: &str) -> Result<(), Errno> {
    const DAEMON_WARNING: u32 = 3 << 3 | 4;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    let process = rustix::process::getpid().as_raw_nonzero();
    let record = format!("<{DAEMON_WARNING}>overfly[{process}]: {message}");
    let to = rustix::net::SocketAddrUnix::new("/dev/log")?;
    rustix::net::sendto(&socket, record.as_bytes(), rustix::net::SendFlags::NOSIGNAL, &to).map(drop)
}

/// What the program is called: by the name that it was started with (a script's own, 15 bytes at most), and by its file's.
pub(crate) fn program_names() -> Vec<String> {
    let started = text("/proc/self/comm").trim_end().to_owned();
    let file = rustix::fs::readlink("/proc/self/exe", Vec::new()).unwrap_or_default();
    let file = file.to_string_lossy();
    vec![started, file.rsplit('/').next().unwrap_or_default().to_owned()]
}

/// The names in a folder of /proc that are numbers: descriptors, threads.
pub(crate) fn numbers_in(folder: &str) -> Vec<i32> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = rustix::fs::open(folder, flags, Mode::empty()) else { return Vec::new() };
    let mut space = [core::mem::MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(&folder, &mut space);
    let mut numbers = Vec::new();
    while let Some(Ok(entry)) = entries.next() {
        numbers.extend(entry.file_name().to_str().ok().and_then(|name| name.parse::<i32>().ok()));
    }
    numbers
}

/// The system call in which a thread of this process sleeps: its number, and its arguments; or "running".
pub(crate) fn call_of_thread(thread: i32) -> String {
    text(&format!("/proc/self/task/{thread}/syscall"))
}

/// Whether a descriptor is an epoll set's, as far as /proc says.
pub(crate) fn is_epoll(descriptor: i32) -> bool {
    let link = rustix::fs::readlink(format!("/proc/self/fd/{descriptor}"), Vec::new());
    link.is_ok_and(|link| link.as_bytes() == b"anon_inode:[eventpoll]")
}

/// The descriptors that an epoll set of this process watches, by which they were added (proc_pid_fdinfo(5)); none of anything else.
pub(crate) fn watched_in(set: i32) -> Vec<i32> {
    if !is_epoll(set) {
        return Vec::new();
    }
    let text = text(&format!("/proc/self/fdinfo/{set}"));
    text.lines()
        .filter_map(|line| line.strip_prefix("tfd:")?.split_ascii_whitespace().next()?.parse().ok())
        .collect()
}

/// A file of /proc.
fn text(path: &str) -> String {
    let mut text = Vec::new();
    if let Ok(file) = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        let mut part = [0; 1024];
        while let Ok(read @ 1..) = rustix::io::read(&file, &mut part[..]) {
            text.extend_from_slice(&part[..read]);
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// What the administrator set for TCP.
pub(crate) fn sysctls() -> Sysctls<impl Fn(&str) -> String> {
    Sysctls(|name: &str| text(&format!("/proc/sys/net/ipv4/{name}")))
}

/// The numbers in a file of /proc.
fn numbers(path: &str) -> Vec<u64> {
    text(path).split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// The largest SO_RCVBUF in bytes: net.core.rmem_max.
pub(crate) fn receive_buffer_max() -> u32 {
    numbers("/proc/sys/net/core/rmem_max").first().map_or(212_992, |&bytes| bytes.min(1 << 30) as u32)
}

/// What a receive window may grow to by itself, in bytes. Linux: half of net.ipv4.tcp_rmem's last number, as the other half
/// is for what packets take beside their payload (tcp_win_from_space()), bounded by a 128th of the memory as tcp_init() in
/// net/ipv4/tcp.c bounds that number when the machine starts.
pub(crate) fn receive_window_max() -> u32 {
    const LEAST: u64 = 64 * 1024;
    let buffer = receive_buffer_grown_max();
    let system = rustix::system::sysinfo();
    let memory = (system.totalram as u64).saturating_mul(u64::from(system.mem_unit));
    (buffer.min(memory / 128) / 2).clamp(LEAST, 1 << 30) as u32
}

/// The window scale that Linux offers: that of the largest receive buffer, without what packets take beside their payload
/// (tcp_select_initial_window() in net/ipv4/tcp_output.c).
pub(crate) fn window_scale() -> u8 {
    let buffer = receive_buffer_grown_max();
    scale_of(buffer.max(receive_buffer_max().into()))
}

/// As window_scale(), for a buffer of so many bytes.
fn scale_of(buffer: u64) -> u8 {
    (buffer.max(1).ilog2().saturating_sub(15)).min(14) as u8
}

/// Messages go to the system log.
static LOGS: AtomicBool = AtomicBool::new(false);

/// Where messages go from now on: to the system log, or to standard error.
pub(crate) fn complain_to_log(on: bool) {
    LOGS.store(on, Ordering::Relaxed);
}

/// One line for whoever runs the program, if anybody reads it as that.
pub(crate) fn complain(message: &str) {
    if LOGS.load(Ordering::Relaxed) && log(message).is_ok() {
        return;
    }
    if standard_error::takes_lines() {
        let line = format!("overfly: {message}\n");
        let _ = rustix::io::write(borrow(2), line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::scale_of;

    #[test]
    fn the_window_scale_is_linuxs() {
        // 6 MB is net.ipv4.tcp_rmem's last number unless the machine is small.
        for (buffer, scale) in
            [(6 << 20, 7), (4 << 20, 7), (212_992, 2), (65_536, 1), (1000, 0), (0, 0), (u64::MAX, 14)]
        {
            assert_eq!(scale_of(buffer), scale, "{buffer}");
        }
    }
}

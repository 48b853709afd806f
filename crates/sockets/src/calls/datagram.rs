//! The calls on UDP sockets. The kernel's socket holds the port, takes what is not steered to this process (loopback, other
//! interfaces, multicast, fragments) and sends what the stack does not: a read looks at both.

mod send;

use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

use overfly_engine::Instant;
use overfly_profile::options::Waiting;
use rustix::io::Errno;
use rustix::net::{Shutdown, sockopt};

pub(crate) use self::send::send;
use super::Answer;
use crate::interest::{NONE, bits};
use crate::kernel::{self, now};
use crate::lock::Guard;
use crate::memory::Target;
use crate::options::{self, Backing, Datagram as Does, wants};
use crate::process::contexts::of;
use crate::process::{For, Origin, Placed, Process, WakeOnDrop, Woken, leave_to_kernel, spin_until, wait};
use crate::socket::{SocketId, SocketState, canonical, presented};
use crate::stack::{Read, Trouble};
use crate::statistics::Why;
use crate::sys::{self, HandlersRun};
use crate::table::{self, Entry};

/// The process has had a UDP socket of ours: before that no call need look for one.
static ANY: AtomicBool = AtomicBool::new(false);

/// IPv6's header and UDP's.
const PIECE_HEADERS: usize = 48;

/// Most payload that UDP over IPv4 carries.
const MOST_PAYLOAD: usize = 65_507;

/// UDP_MAX_SEGMENTS of older kernels: whether more may be sent at once the kernel itself says.
const MOST_SEGMENTS: usize = 64;

/// socket() in the kernel gave a UDP socket.
pub(crate) fn opened(process: &mut Process, descriptor: i32, v6: bool, nonblocking: bool) {
    if process.options.udp == 0 {
        return;
    }
    let Some(id) = process.stack.open_datagram(descriptor, v6, nonblocking) else { return };
    if table::enter(descriptor, Entry::Socket(id)) {
        ANY.store(true, Ordering::Relaxed);
    } else {
        process.stack.leave_to_kernel(id);
    }
}

/// The lock, and the socket, if `descriptor` is a UDP socket of ours.
fn ours(descriptor: i32) -> Option<(Guard<'static, Process>, SocketId)> {
    if !ANY.load(Ordering::Relaxed) {
        return None;
    }
    let Entry::Socket(id) = super::used(descriptor) else { return None };
    let guard = of(id);
    (guard.stack.socket(id).state == SocketState::Datagram).then_some((guard, id))
}

/// Whether `descriptor` is a UDP socket of ours.
pub(crate) fn is_ours(descriptor: i32) -> bool {
    ours(descriptor).is_some()
}

/// A datagram that was read.
pub(crate) enum Received {
    /// At user level.
    Here(Datagram),
    /// By the kernel's socket, with its name and ancillary data: what the call returns.
    InKernel(usize),
}

/// A datagram that was read at user level.
pub(crate) struct Datagram {
    /// What the call returns: with MSG_TRUNC the datagram's whole length.
    pub(crate) length: usize,
    pub(crate) source: Option<SocketAddr>,
    /// MSG_TRUNC: the rest did not fit and is lost.
    pub(crate) truncated: bool,
    /// `None` where nothing came: the socket was shut.
    pub(crate) about: Option<About>,
    /// It is one that did not arrive, of which the error queue tells.
    pub(crate) trouble: Option<Trouble>,
}

impl Datagram {
    /// The socket was shut.
    const NOTHING: Datagram =
        Datagram { length: 0, source: None, truncated: false, about: None, trouble: None };
}

/// What may be told of a datagram.
pub(crate) struct About {
    /// What is to be ([`wants`]).
    pub(crate) wants: u16,
    /// The socket is an AF_INET6 one.
    pub(crate) v6: bool,
    /// The interface that it came by.
    pub(crate) interface: u32,
    pub(crate) destination: IpAddr,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    /// How long ago it came.
    pub(crate) age: Duration,
    /// Several were read as one, each so long but for the last one (UDP_GRO).
    pub(crate) segment_len: Option<u16>,
}

/// What a message asks for besides being sent.
#[derive(Clone, Copy, Default)]
pub(crate) struct ControlMessages {
    /// Where it is to come from; else from where the socket is bound.
    pub(crate) from: Option<Origin>,
    /// The traffic class to a peer of IPv4 (IP_TOS), and of IPv6 (IPV6_TCLASS); else the socket's.
    pub(crate) classes: [Option<u8>; 2],
    /// To be sent in pieces of that length, 0 for one (UDP_SEGMENT); else as the socket's option says.
    pub(crate) segment_len: Option<u16>,
}

/// recvmsg(). `in_kernel` reads from the kernel's socket, without waiting: whether a datagram is there
/// when it is read nobody can say before (another thread, another process). `Kernel`: the socket is the kernel's alone.
pub(crate) fn receive(
    descriptor: i32,
    target: Target<'_>,
    flags: i32,
    mut in_kernel: impl FnMut(i32) -> Result<usize, Errno>,
) -> Answer<Received> {
    let Some((mut guard, id)) = ours(descriptor) else { return Answer::Kernel };
    if flags & libc::MSG_OOB != 0 {
        return Answer::Kernel;
    }
    if !target.is_plausible() {
        return Answer::error(Errno::FAULT);
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        // The kernel's socket has errors of its own, of what it has sent.
        return read_trouble(&mut guard, id, target).map_or(Answer::Kernel, Answer::ok);
    }
    if let Some(answer) = answered_by_kernel(&mut guard, id, descriptor, flags) {
        return answer;
    }
    let (mut since, mut started, mut pumped) = (sys::handlers_run(), None, false);
    loop {
        if let Some(error) = guard.stack.take_error(id).or_else(|| guard.take_error_of_all(id)) {
            return Answer::error(error);
        }
        let is_first = guard.stack.datagrams(id).is_some_and(|part| part.kernel_first);
        if is_first && let Some(answer) = read_in_kernel(&mut guard, id, flags, &mut in_kernel) {
            return answer;
        }
        if let Some(datagram) = read_here(&mut guard, id, target, flags) {
            return Answer::ok(Received::Here(datagram));
        }
        if (!guard.has_just_heard_of(id) || guard.stack.datagrams(id).is_none_or(|part| part.kernel_ready))
            && let Some(answer) = read_in_kernel(&mut guard, id, flags, &mut in_kernel)
        {
            return answer;
        }
        if !pumped {
            pumped = true;
            guard.pump_before_waiting();
            continue;
        }
        // Whoever waits goes on when another thread sets O_NONBLOCK.
        let never_waits = started.is_none() && kernel::is_nonblocking(descriptor);
        if flags & libc::MSG_DONTWAIT != 0 || never_waits {
            return Answer::error(Errno::AGAIN);
        }
        // Only who would wait hears of it: __skb_recv_udp() in Linux, net/ipv4/udp.c.
        if guard.stack.socket(id).read_shut {
            return Answer::ok(Received::Here(Datagram::NOTHING));
        }
        let began = *started.get_or_insert_with(now);
        let timeout = timeout(&guard, id, descriptor);
        guard.leaves_event_loop();
        let spin = spin_until(&guard, Waiting::ReceiveDatagram, began);
        let mut kernel_side = [libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 }];
        let deadline = timeout.map(|timeout| began + timeout);
        let cookie = guard.stack.cookie_of(id);
        let (next, woken) =
            wait(guard, For::Sockets(&[id]), &mut kernel_side, deadline, spin, since, timeout.is_none());
        guard = next;
        match woken {
            Woken::Interrupted => return Answer::error(Errno::INTR),
            Woken::TimedOut => return Answer::error(Errno::AGAIN),
            Woken::Look => {}
        }
        if table::lookup(descriptor) != Entry::Socket(id) {
            drop(guard);
            return waits_elsewhere(descriptor, cookie, deadline, since);
        }
        if kernel_side[0].revents != 0
            && let Some(part) = guard.stack.datagrams_mut(id)
        {
            part.kernel_ready = true;
        }
        begin_anew(timeout, &mut since, &mut started);
        guard.pump_for_all(None);
    }
}

/// What a call that receives says of a socket of which the kernel alone has anything; `None` if the stack may have something.
fn answered_by_kernel(
    process: &mut Process,
    id: SocketId,
    descriptor: i32,
    flags: i32,
) -> Option<Answer<Received>> {
    match process.place_to_ask(id, descriptor) {
        Placed::Yes => None,
        // Who waits hears of both ways: another thread may connect it meanwhile.
        Placed::Unbound
            if process.stack.is_running()
                && flags & libc::MSG_DONTWAIT == 0
                && !kernel::is_nonblocking(descriptor) =>
        {
            None
        }
        // What it had sent while it was connected may have been refused.
        Placed::Unbound => Some(process.stack.take_error(id).map_or(Answer::Kernel, Answer::error)),
        Placed::No => {
            leave_to_kernel(process, id);
            Some(Answer::Kernel)
        }
    }
}

/// After a handler that restarts calls one that waits for ever begins anew, and may find O_NONBLOCK set.
fn begin_anew(timeout: Option<Duration>, since: &mut HandlersRun, started: &mut Option<Instant>) {
    if timeout.is_none() && sys::begins_anew(*since) {
        (*started, *since) = (None, since.restarted());
    }
}

/// The wait goes on with the kernel's socket, also if O_NONBLOCK has been set since it began.
fn waits_elsewhere(
    descriptor: i32,
    cookie: Option<u64>,
    deadline: Option<Instant>,
    since: HandlersRun,
) -> Answer<Received> {
    let answer = super::goes_on_elsewhere(descriptor, cookie);
    if !matches!(answer, Answer::Kernel) || !kernel::is_nonblocking(descriptor) {
        return answer;
    }
    let left = deadline.map(|deadline| deadline.as_micros().saturating_sub(now().as_micros()));
    let mut readable = [libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 }];
    match sys::poll(&mut readable, left, since) {
        Ok(0) => Answer::error(Errno::AGAIN),
        Err(error) if !sys::begins_anew(since) => Answer::error(error),
        _ => answer,
    }
}

/// What SO_RCVTIMEO says.
fn timeout(process: &Process, id: SocketId, descriptor: i32) -> Option<Duration> {
    match process.stack.socket(id).never_waits {
        [true, _] => Some(Duration::ZERO),
        _ => sockopt::socket_timeout(kernel::borrow(descriptor), sockopt::Timeout::Recv).unwrap_or(None),
    }
}

/// What the kernel's socket has or says; `None` if nothing.
fn read_in_kernel(
    process: &mut Process,
    id: SocketId,
    flags: i32,
    in_kernel: &mut impl FnMut(i32) -> Result<usize, Errno>,
) -> Option<Answer<Received>> {
    let outcome = in_kernel(flags);
    let socket = process.stack.socket(id);
    let (watched, descriptor) = (socket.interests != NONE, socket.descriptor);
    if let Some(part) = process.stack.datagrams_mut(id) {
        // With nothing more there no set must say that there is, or a read that waits would do so.
        part.kernel_ready = watched && outcome.is_ok() && kernel::is_readable(descriptor);
        part.kernel_first &= outcome != Err(Errno::AGAIN);
    }
    match outcome {
        Err(Errno::AGAIN) => None,
        outcome => Some(Answer::Done(outcome.map(Received::InKernel))),
    }
}

/// The oldest datagram that came to the stack, with those that are read as one with it.
fn read_here(process: &mut Process, id: SocketId, target: Target<'_>, flags: i32) -> Option<Datagram> {
    let peek = flags & libc::MSG_PEEK != 0;
    let read = process.stack.read_datagram(id, target.pieces(0), target.length(), peek)?;
    let Read { copied, record, segment_len } = read;
    let wants = process.stack.datagrams(id).map_or(0, |part| part.wants);
    let (v6, interface) = (process.stack.socket(id).v6, process.interface_index);
    Some(Datagram {
        length: if flags & libc::MSG_TRUNC != 0 { record.length } else { copied },
        source: Some(presented(record.source, v6, interface)),
        truncated: copied < record.length,
        about: (wants != 0).then(|| About {
            wants,
            v6,
            interface,
            destination: record.destination,
            traffic_class: record.traffic_class,
            hop_limit: record.hop_limit,
            age: now() - record.arrived,
            segment_len,
        }),
        trouble: None,
    })
}

/// The oldest error that waits: ip_recv_error() in Linux, net/ipv4/ip_sockglue.c, ipv6_recv_error() in net/ipv6/datagram.c.
fn read_trouble(process: &mut Process, id: SocketId, target: Target<'_>) -> Option<Received> {
    if process.stack.datagrams(id)?.troubles.is_empty() {
        process.pump_before_waiting();
    }
    let trouble = process.stack.take_trouble(id)?;
    let wants = process.stack.datagrams(id)?.wants;
    let (v6, interface) = (process.stack.socket(id).v6, process.interface_index);
    let mut copied = 0;
    for piece in target.pieces(0) {
        let length = piece.len().min(trouble.payload.len() - copied);
        piece[..length].write_copy_of_slice(&trouble.payload[copied..copied + length]);
        copied += length;
    }
    Some(Received::Here(Datagram {
        length: copied,
        source: Some(presented(trouble.remote, v6, interface)),
        truncated: copied < trouble.payload.len(),
        about: Some(About {
            wants,
            v6,
            interface,
            destination: trouble.destination,
            traffic_class: trouble.traffic_class,
            hop_limit: trouble.hop_limit,
            age: now() - trouble.arrived,
            segment_len: None,
        }),
        trouble: Some(trouble),
    }))
}

/// connect(); `None` is AF_UNSPEC, which dissolves the connection.
pub(crate) fn connect(descriptor: i32, remote: Option<SocketAddr>) -> Answer<()> {
    let Some((mut guard, id)) = ours(descriptor) else { return Answer::Kernel };
    let told = WakeOnDrop(&mut guard);
    let process = &mut *told.0;
    process.changes_datagram(id);
    // The kernel judges the address and chooses the source; its socket hears only of this peer, too.
    let socket = kernel::borrow(descriptor);
    let outcome = match remote {
        Some(remote) => rustix::net::connect(socket, &remote),
        None => rustix::net::connect_unspec(socket),
    };
    if let Err(error) = outcome {
        return Answer::error(error);
    }
    process.displace_datagram(id);
    let connected = remote.map(canonical);
    if let Some(part) = process.stack.datagrams_mut(id) {
        part.connected = connected;
    }
    if connected.is_some_and(|remote| !process.is_beyond(remote)) {
        process.left(Why::OtherAddress);
        leave_to_kernel(process, id);
    } else if process.place_to_ask(id, descriptor) == Placed::No {
        leave_to_kernel(process, id);
    }
    Answer::ok(())
}

/// shutdown().
pub(crate) fn shutdown(descriptor: i32, how: i32) -> Answer<()> {
    let Some((mut guard, id)) = ours(descriptor) else { return Answer::Kernel };
    let told = WakeOnDrop(&mut guard);
    let (how, read, write) = match how {
        libc::SHUT_RD => (Shutdown::Read, true, false),
        libc::SHUT_WR => (Shutdown::Write, false, true),
        libc::SHUT_RDWR => (Shutdown::Both, true, true),
        _ => return Answer::error(Errno::INVAL),
    };
    // Of one that is not connected the kernel says so, and shuts it all the same: inet_shutdown() in net/ipv4/af_inet.c.
    let outcome = rustix::net::shutdown(kernel::borrow(descriptor), how);
    if outcome.is_err_and(|error| error != Errno::NOTCONN) {
        return Answer::Done(outcome);
    }
    told.0.changes_datagram(id);
    let socket = told.0.stack.socket_mut(id);
    socket.read_shut |= read;
    socket.write_shut |= write;
    told.0
        .stack
        .datagram_news(id, bits::IN | bits::OUT | bits::RDNORM | bits::WRNORM | bits::RDHUP | bits::HUP);
    Answer::Done(outcome)
}

/// The kernel's socket was given an option, whose value begins with `number`. What changes how datagrams are sent, or received,
/// makes the socket the kernel's, unless datagrams wait here.
pub(crate) fn option_was_set(descriptor: i32, level: i32, name: i32, number: Option<i32>) {
    let Some((mut guard, id)) = ours(descriptor) else { return };
    let does = options::find(level, name).map_or(Does::KernelOnly, |option| option.datagram);
    let part = guard.stack.datagrams_mut(id);
    match (does, part) {
        (Does::Kernel, _) => {}
        (Does::ReceiveBuffer, Some(part)) => {
            part.limit = sockopt::socket_recv_buffer_size(kernel::borrow(descriptor)).unwrap_or(0);
        }
        (Does::PiecesAbove, Some(part)) => {
            part.pieces_above = number.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);
        }
        // The kernel has taken it: it is in range.
        (Does::SegmentLen, Some(part)) => {
            part.segment_len = number.and_then(|bytes| u16::try_from(bytes).ok()).unwrap_or(0);
        }
        (Does::Marks, Some(part)) => {
            let mut marks = part.marks;
            if let Some(set) = options::marks(Backing(descriptor), level) {
                marks[usize::from(level == libc::IPPROTO_IPV6)] = set;
            }
            guard.stack.set_datagrams_marks(id, marks);
        }
        (Does::Tells(_) | Does::TellsTime(..), Some(part)) => {
            part.wants = options::told(Backing(descriptor));
            if part.wants & (wants::ERRORS | wants::ERRORS_6) == 0 {
                part.troubles.clear();
            }
        }
        (Does::KernelOnly, Some(part)) if !part.queue.is_empty() => {}
        _ => {
            guard.left(Why::SocketOption);
            leave_to_kernel(&mut guard, id);
        }
    }
}

/// SO_ERROR, where it is ours.
pub(crate) fn take_error(descriptor: i32) -> Option<Errno> {
    let (mut guard, id) = ours(descriptor)?;
    guard.stack.take_error(id)
}

/// FIONREAD: the length of the datagram that a read would return.
pub(crate) fn pending(descriptor: i32) -> Answer<usize> {
    let Some((mut guard, id)) = ours(descriptor) else { return Answer::Kernel };
    let first = |guard: &Process| guard.stack.datagrams(id)?.queue.front().map(|record| record.length);
    if guard.stack.datagrams(id).is_some_and(|part| part.kernel_first) && kernel::is_readable(descriptor) {
        return Answer::Kernel;
    }
    if first(&guard).is_none() {
        guard.pump_before_waiting();
    }
    first(&guard).map_or(Answer::Kernel, Answer::ok)
}

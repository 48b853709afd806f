//! setsockopt, getsockopt, fcntl, ioctl.

use core::time::Duration;

use overfly_engine::Algorithm;
use rustix::io::Errno;

use super::life::leave_to_kernel;
use super::{Answer, CLOSED, is_connection, lock_socket, used};
use crate::kernel;
use crate::process::contexts::of;
use crate::process::{Process, Told};
use crate::socket::{Later, Settings, Socket, SocketId, State};
use crate::stack::rows::state_number;
use crate::statistics::Why;
use crate::table::{self, Entry};

/// Longest `struct tcp_info` that is given: up to tcpi_rcv_wnd, and what newer kernels have behind it as zeros.
const TCP_INFO_LEN: usize = 320;
/// Half of the least SO_RCVBUF, as Linux keeps twice what is asked for (SOCK_MIN_RCVBUF in include/net/sock.h).
const RECEIVE_LEAST: u32 = 2304 / 2;
/// TCP_CA_NAME_MAX (include/net/tcp.h).
pub(crate) const NAME_LEN: usize = 16;

/// An option's value as the program gives it, or gets it.
pub(crate) enum Value {
    /// `int`.
    Number(i32),
    /// `struct linger`.
    Linger(libc::linger),
    /// `struct timeval`.
    Time(libc::timeval),
    /// `struct tcp_info`, as long as the kernel's, or `union tcp_cc_info`.
    TcpInfo(Vec<u8>),
    /// A name, padded with zeros.
    Name([u8; NAME_LEN]),
}

/// How long the value of an option that we keep is: what the hook must read or write.
pub(crate) enum Shape {
    /// `int`.
    Number,
    /// `struct linger`.
    Linger,
    /// `struct timeval`.
    Time,
    /// `struct tcp_info` or `union tcp_cc_info`: only to be read.
    TcpInfo,
    /// A name of [`NAME_LEN`] bytes at most, its end included.
    Name,
    /// The kernel's socket keeps this one.
    Kernel,
}

/// Who keeps an option of a connection.
pub(crate) const fn shape(level: i32, name: i32) -> Shape {
    match (level, name) {
        (
            libc::SOL_SOCKET,
            libc::SO_ERROR
            | libc::SO_KEEPALIVE
            | libc::SO_SNDBUF
            | libc::SO_RCVBUF
            | libc::SO_RCVLOWAT
            | libc::SO_INCOMING_CPU,
        )
        | (libc::IPPROTO_IP, libc::IP_TOS | libc::IP_MTU)
        | (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY | libc::IPV6_TCLASS) => Shape::Number,
        (libc::SOL_SOCKET, libc::SO_LINGER) => Shape::Linger,
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => Shape::Time,
        (
            libc::IPPROTO_TCP,
            libc::TCP_NODELAY
            | libc::TCP_CORK
            | libc::TCP_KEEPIDLE
            | libc::TCP_KEEPINTVL
            | libc::TCP_KEEPCNT
            | libc::TCP_QUICKACK
            | libc::TCP_USER_TIMEOUT
            | libc::TCP_NOTSENT_LOWAT
            | libc::TCP_MAXSEG,
        ) => Shape::Number,
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => Shape::Name,
        (libc::IPPROTO_TCP, libc::TCP_INFO | TCP_CC_INFO) => Shape::TcpInfo,
        _ => Shape::Kernel,
    }
}

/// Options that the stack cannot follow: who sets one of them to anything but zero has the kernel's TCP. Those that only
/// change how the kernel's socket does its work (SO_PRIORITY, SO_BUSY_POLL, SO_MAX_PACING_RATE) are not among them.
const FOR_THE_KERNEL: [(i32, i32); 28] = [
    (libc::SOL_SOCKET, libc::SO_MARK),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
    (libc::SOL_SOCKET, SO_TIMESTAMP_NEW),
    (libc::SOL_SOCKET, SO_TIMESTAMPNS_NEW),
    (libc::SOL_SOCKET, SO_TIMESTAMPING_NEW),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
    (libc::IPPROTO_IP, libc::IP_TTL),
    (libc::IPPROTO_IP, libc::IP_OPTIONS),
    (libc::IPPROTO_IP, libc::IP_RECVERR),
    (libc::IPPROTO_IP, libc::IP_TRANSPARENT),
    (libc::IPPROTO_IP, libc::IP_MINTTL),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    (libc::IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT),
    (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT),
    (libc::IPPROTO_TCP, libc::TCP_MD5SIG),
    (libc::IPPROTO_TCP, TCP_MD5SIG_EXT),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR),
    (libc::IPPROTO_TCP, libc::TCP_SAVE_SYN),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT),
    (libc::IPPROTO_TCP, libc::TCP_ULP),
    (libc::IPPROTO_TCP, TCP_INQ),
    (libc::IPPROTO_TCP, TCP_TX_DELAY),
    (libc::IPPROTO_TCP, TCP_AO_ADD_KEY),
];
/// include/uapi/asm-generic/socket.h, include/uapi/linux/tcp.h
const SO_TIMESTAMP_NEW: i32 = 63;
const SO_TIMESTAMPNS_NEW: i32 = 64;
const SO_TIMESTAMPING_NEW: i32 = 65;
/// include/uapi/linux/net_tstamp.h
const SOF_TIMESTAMPING_OPT_ID: i32 = 1 << 7;
const SOF_TIMESTAMPING_OPT_ID_TCP: i32 = 1 << 16;
const TCP_CC_INFO: i32 = 26;
const TCP_INQ: i32 = 36;
const TCP_TX_DELAY: i32 = 37;
const TCP_MD5SIG_EXT: i32 = 38;
const TCP_AO_ADD_KEY: i32 = 39;
/// The hop limit that -1 asks for is the administrator's.
const HOP_LIMITS: [(i32, i32); 2] =
    [(libc::IPPROTO_IP, libc::IP_TTL), (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS)];

/// Whether the kernel must carry a socket with this option. `number` is the first number of its value.
pub(crate) fn is_for_the_kernel(level: i32, name: i32, number: i32) -> bool {
    let option = (level, name);
    number != 0 && FOR_THE_KERNEL.contains(&option) && !(number == -1 && HOP_LIMITS.contains(&option))
}

/// What only a socket that is connected may be asked for: identifiers with its time stamps (sock_set_timestamping() in
/// net/core/sock.c).
fn wants_identifiers(level: i32, name: i32, number: Option<i32>) -> bool {
    let stamps = matches!((level, name), (libc::SOL_SOCKET, libc::SO_TIMESTAMPING | SO_TIMESTAMPING_NEW));
    stamps && number.is_some_and(|number| number & SOF_TIMESTAMPING_OPT_ID != 0)
}

/// The connection is the kernel's before it is given an option that needs a connection, or one that a close() right behind it
/// must heed. `number` is the first number of its value.
pub(crate) fn hands_over_first(id: SocketId, level: i32, name: i32, number: Option<i32>) -> bool {
    (match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_ULP) => true,
        (libc::IPPROTO_TCP, libc::TCP_LINGER2 | libc::TCP_REPAIR) => number.is_some_and(|number| number != 0),
        _ => wants_identifiers(level, name, number),
    }) && of(id).stack.socket(id).state == State::Connected
}

/// Time stamps with identifiers of a connection that is being opened: the kernel gets them with the connection. Returns what
/// its socket may be asked for before.
pub(crate) fn stamps_later(id: SocketId, level: i32, name: i32, value: [i32; 2], length: u32) -> Option<i32> {
    if !wants_identifiers(level, name, Some(value[0])) {
        return None;
    }
    let mut process = of(id);
    let socket = process.stack.socket_mut(id);
    if socket.state != State::Connecting {
        return None;
    }
    socket.later = Some(Box::new(Later { name, value, length }));
    Some(value[0] & !(SOF_TIMESTAMPING_OPT_ID | SOF_TIMESTAMPING_OPT_ID_TCP))
}

/// The kernel's socket has got such an option.
pub(crate) fn leave_with_option(descriptor: i32, level: i32, name: i32) {
    let Entry::Socket(id) = table::lookup(descriptor) else { return };
    let mut process = of(id);
    match process.stack.socket(id).state {
        // It says how often a SYN is sent, and that is over.
        State::Connecting | State::Connected if (level, name) == (libc::IPPROTO_TCP, libc::TCP_SYNCNT) => {}
        // The next connect() of one that has ended is the kernel's, too.
        State::Connecting | State::Connected | State::Ended => {
            process.stack.socket_mut(id).wants_kernel = true;
        }
        State::Candidate | State::Listening => {
            process.part(id);
            process.left(Why::SocketOption);
            leave_to_kernel(&mut process, id);
        }
        _ => {}
    }
}

/// The socket was tied to an interface, or set free.
pub(crate) fn tied_to_link(descriptor: i32) {
    let Entry::Socket(id) = table::lookup(descriptor) else { return };
    let mut process = of(id);
    let there = process.is_tied_elsewhere(descriptor);
    match process.stack.socket(id).state {
        State::Connecting | State::Connected if there => process.stack.socket_mut(id).wants_kernel = true,
        State::Listening if there && process.stack.has_joined(id) => {
            process.part(id);
            process.left(Why::OtherAddress);
            leave_to_kernel(&mut process, id);
        }
        // connect(), or whoever waits for a listener, will see.
        _ => {}
    }
}

/// An option of a listener that this process has joined: later connections begin with it.
pub(crate) fn listener_was_given_option(descriptor: i32) {
    let Entry::Socket(id) = table::lookup(descriptor) else { return };
    of(id).read_settings_again(id, descriptor);
}

/// Options of a socket that is not, or no more, connected: Linux refuses them to others (do_tcp_setsockopt()).
pub(crate) fn comes_too_late(id: SocketId, level: i32, name: i32) -> bool {
    const TCP_FASTOPEN_NO_COOKIE: i32 = 34;
    let is_one = level == libc::IPPROTO_TCP
        && matches!(name, libc::TCP_FASTOPEN | libc::TCP_FASTOPEN_CONNECT | TCP_FASTOPEN_NO_COOKIE);
    if !is_one {
        return false;
    }
    let mut process = of(id);
    process.pump_before_waiting();
    !process.stack.is_over(id)
}

/// Of a connection, Linux refuses a window of no bytes (tcp_set_window_clamp() in net/ipv4/tcp.c).
pub(crate) fn is_no_window(id: SocketId, level: i32, name: i32, number: Option<i32>) -> bool {
    if (level, name, number) != (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, Some(0)) {
        return false;
    }
    let mut process = of(id);
    process.pump_before_waiting();
    !process.stack.is_over(id)
}

/// The kernel's socket took a buffer's size that is beyond what the administrator allows to others (SO_RCVBUFFORCE,
/// SO_SNDBUFFORCE): the connection follows.
pub(crate) fn follow_forced(id: SocketId, level: i32, name: i32, bytes: i32) {
    let bytes = u32::try_from(bytes).unwrap_or(0);
    let change = |settings: &mut Settings| match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE) => {
            settings.receive_limit = Some(bytes.min(i32::MAX as u32 / 2).max(RECEIVE_LEAST));
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE) => {
            (settings.send_limit, settings.send_buffer) = kernel::send_limit_within(bytes);
        }
        _ => {}
    };
    of(id).stack.change(id, change);
}

/// SO_RCVTIMEO or SO_SNDTIMEO of a socket that is no connection yet: whether it was below zero.
pub(crate) fn timeout_was_set(descriptor: i32, name: i32, below_zero: bool) {
    if let Entry::Socket(id) = table::lookup(descriptor) {
        of(id).stack.socket_mut(id).never_waits[usize::from(name == libc::SO_SNDTIMEO)] = below_zero;
    }
}

/// Whether the kernel takes a connection over that has asked for it.
fn takes_over(id: SocketId) -> bool {
    let mut process = of(id);
    process.stack.socket(id).wants_kernel && process.hand_over_as_wanted(id)
}

/// Whether `descriptor` is a connection of ours.
pub(crate) fn connection(descriptor: i32) -> Answer<SocketId> {
    match used(descriptor) {
        Entry::Socket(id) if takes_over(id) => Answer::Kernel,
        Entry::Socket(id) if is_connection(&of(id), id) => Answer::ok(id),
        Entry::Kept(_) | Entry::Internal => Answer::error(CLOSED),
        Entry::Socket(_) | Entry::Kernel | Entry::Set(_) => Answer::Kernel,
    }
}

/// Whether it is an AF_INET6 socket.
pub(crate) fn is_v6(id: SocketId) -> bool {
    of(id).stack.socket(id).v6
}

/// The kernel's socket was given an option of its own: it cannot serve another connection.
pub(crate) fn customized(id: SocketId) {
    of(id).stack.socket_mut(id).customized = true;
}

/// The kernel's socket of a descriptor that is no connection yet is about to be given an option: it is no longer as it came.
pub(crate) fn changed_in_kernel(descriptor: i32) {
    if let Entry::Socket(id) = table::lookup(descriptor) {
        customized(id);
    }
}

/// setsockopt() of an option whose [`shape`] says that we keep it.
pub(crate) fn set(descriptor: i32, level: i32, name: i32, value: &Value) -> Answer<()> {
    match lock_socket(descriptor) {
        Ok((mut guard, id)) if is_connection(&guard, id) => {
            let told = Told(&mut guard);
            Answer::Done(set_locked(told.0, id, level, name, value))
        }
        Ok(_) => Answer::Kernel,
        Err(answer) => answer,
    }
}

fn set_locked(
    process: &mut Process,
    id: SocketId,
    level: i32,
    name: i32,
    value: &Value,
) -> Result<(), Errno> {
    let (receive_buffer_max, v6) = (process.receive_buffer_max, process.stack.socket(id).v6);
    let mut change = |change: &dyn Fn(&mut Settings)| process.stack.change(id, |settings| change(settings));
    match (level, name, value) {
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, &Value::Number(on)) => {
            change(&|settings| settings.keep_alive = on != 0);
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF, &Value::Number(size)) => {
            let (limit, buffer) = kernel::send_limit(size);
            change(&|settings| (settings.send_limit, settings.send_buffer) = (limit, buffer));
        }
        (libc::SOL_SOCKET, libc::SO_LINGER, &Value::Linger(linger)) => {
            // A negative time is a very long one (sk_setsockopt() in net/core/sock.c).
            let time = Duration::from_secs(u64::from(linger.l_linger as u32));
            // What is off keeps its time.
            change(&|settings| {
                settings.linger = (linger.l_onoff != 0).then_some(time);
                settings.linger_time = settings.linger.unwrap_or(settings.linger_time);
            });
        }
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO, &Value::Time(time)) => {
            if !(0..1_000_000).contains(&time.tv_usec) {
                return Err(Errno::DOM);
            }
            // Below zero a call does not wait, and zero is for ever (sock_set_timeout() in net/core/sock.c).
            let timeout = match u64::try_from(time.tv_sec) {
                Err(_) => Some(Duration::ZERO),
                Ok(0) if time.tv_usec == 0 => None,
                Ok(seconds) => Some(Duration::from_micros(
                    seconds.saturating_mul(1_000_000).saturating_add(time.tv_usec as u64).min(u64::MAX / 4),
                )),
            };
            change(&|settings| {
                if name == libc::SO_RCVTIMEO {
                    settings.receive_timeout = timeout;
                } else {
                    settings.send_timeout = timeout;
                }
            });
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY, &Value::Number(0)) => {
            change(&|settings| settings.no_delay = false);
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY, Value::Number(_)) => process.stack.no_delay(id),
        (libc::IPPROTO_TCP, libc::TCP_CORK, &Value::Number(on)) => {
            change(&|settings| settings.cork = on != 0);
        }
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, &Value::Number(seconds)) => {
            // tcp(7): 1 to 32767 seconds.
            if !(1..=32_767).contains(&seconds) {
                return Err(Errno::INVAL);
            }
            change(&|settings| settings.keep_idle = Duration::from_secs(seconds as u64));
        }
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, &Value::Number(seconds)) => {
            if !(1..=32_767).contains(&seconds) {
                return Err(Errno::INVAL);
            }
            change(&|settings| settings.keep_interval = Duration::from_secs(seconds as u64));
        }
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, &Value::Number(probes)) => {
            if !(1..=127).contains(&probes) {
                return Err(Errno::INVAL);
            }
            change(&|settings| settings.keep_probes = probes as u8);
        }
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, &Value::Number(milliseconds)) => {
            let Ok(milliseconds) = u64::try_from(milliseconds) else { return Err(Errno::INVAL) };
            change(&|settings| settings.user_timeout = Duration::from_millis(milliseconds));
        }
        // Stays until it is set again; Linux forgets it when the direction of the talk turns.
        (libc::IPPROTO_TCP, libc::TCP_QUICKACK, &Value::Number(on)) => {
            change(&|settings| settings.quick_ack = Some(on != 0));
        }
        (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &Value::Number(bytes)) => {
            change(&|settings| settings.unsent_low_water = bytes as u32);
        }
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT, &Value::Number(bytes)) => {
            let bytes = kernel::receive_low_water(bytes);
            change(&|settings| settings.receive_low_water = bytes);
        }
        // The next frame makes it what it was.
        (libc::SOL_SOCKET, libc::SO_INCOMING_CPU, &Value::Number(_)) => {}
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG, &Value::Number(bytes)) => {
            // TCP_MIN_MSS and MAX_TCP_WINDOW (include/net/tcp.h). The handshake has settled it: as in Linux, nothing changes.
            if bytes != 0 && !(88..=32_767).contains(&bytes) {
                return Err(Errno::INVAL);
            }
            change(&|settings| settings.max_segment = bytes as u16);
        }
        // __ip_sock_set_tos() takes any number's lowest byte, without ECN's bits for a stream.
        (libc::IPPROTO_IP, libc::IP_TOS, &Value::Number(class)) => {
            change(&|settings| settings.traffic_class = class as u8 & !0b11);
        }
        // ipv6_setsockopt(): -1 is the default.
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &Value::Number(class)) if v6 => {
            if !(-1..=255).contains(&class) {
                return Err(Errno::INVAL);
            }
            change(&|settings| settings.traffic_class = class.max(0) as u8 & !0b11);
        }
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION, Value::Name(name)) => {
            let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
            let algorithm = Algorithm::named(name).ok_or(Errno::NOENT)?;
            change(&|settings| settings.congestion = Some(algorithm));
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF, &Value::Number(size)) => {
            // A negative size is a very large one.
            let limit = (size as u32).min(receive_buffer_max).max(RECEIVE_LEAST);
            change(&|settings| settings.receive_limit = Some(limit));
        }
        // ipv6_setsockopt(): not once the socket has a port.
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, Value::Number(_)) if v6 => return Err(Errno::INVAL),
        _ => return Err(Errno::NOPROTOOPT),
    }
    if process.stack.has_output() {
        process.output();
    }
    Ok(())
}

/// getsockopt() of an option whose [`shape`] says that we keep it.
pub(crate) fn get(descriptor: i32, level: i32, name: i32) -> Answer<Value> {
    match lock_socket(descriptor) {
        Ok((mut guard, id)) if is_connection(&guard, id) => {
            Answer::Done(get_locked(&mut guard, id, descriptor, level, name))
        }
        Ok(_) => Answer::Kernel,
        Err(answer) => answer,
    }
}

fn get_locked(
    process: &mut Process,
    id: SocketId,
    descriptor: i32,
    level: i32,
    name: i32,
) -> Result<Value, Errno> {
    let Socket { settings, v6, passive, .. } = *process.stack.socket(id);
    let seconds = |time: Duration| Value::Number(time.as_secs() as i32);
    let flag = |on: bool| Value::Number(i32::from(on));
    let time = |time: Option<Duration>| {
        let time = time.unwrap_or(Duration::ZERO);
        Value::Time(libc::timeval { tv_sec: time.as_secs() as i64, tv_usec: i64::from(time.subsec_micros()) })
    };
    Ok(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => {
            process.pump_before_waiting();
            Value::Number(process.stack.take_error(id).map_or(0, Errno::raw_os_error))
        }
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => flag(settings.keep_alive),
        // Linux says twice what was asked for.
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => Value::Number(match settings.send_buffer {
            0 => (settings.send_limit * 2) as i32,
            bytes => bytes as i32,
        }),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => Value::Number(settings.receive_low_water as i32),
        (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) => Value::Number(settings.unsent_low_water as i32),
        // Its frames are looked at where the program looks for them.
        (libc::SOL_SOCKET, libc::SO_INCOMING_CPU) => Value::Number(rustix::thread::sched_getcpu() as i32),
        (libc::IPPROTO_IP, libc::IP_MTU) => {
            // ip_getsockopt(): where there is no path, there is nothing to say.
            Value::Number(process.stack.path_mtu(id).map(i32::from).ok_or(Errno::NOTCONN)?)
        }
        (libc::SOL_SOCKET, libc::SO_LINGER) => Value::Linger(libc::linger {
            l_onoff: i32::from(settings.linger.is_some()),
            l_linger: settings.linger_time.as_secs() as i32,
        }),
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => time(settings.receive_timeout),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => time(settings.send_timeout),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => flag(settings.no_delay),
        (libc::IPPROTO_TCP, libc::TCP_CORK) => flag(settings.cork),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => Value::Number(match settings.receive_limit {
            Some(limit) => limit.saturating_mul(2) as i32,
            None => kernel::number(descriptor, level, name)?,
        }),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => seconds(settings.keep_idle),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => seconds(settings.keep_interval),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => Value::Number(i32::from(settings.keep_probes)),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
            Value::Number(settings.user_timeout.as_millis() as i32)
        }
        (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => flag(settings.quick_ack.unwrap_or(true)),
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => Value::Number(match process.stack.info(id) {
            Some(info) => i32::from(info.mss),
            None => kernel::number(descriptor, level, name)?,
        }),
        (libc::IPPROTO_IP, libc::IP_TOS) => Value::Number(settings.traffic_class.into()),
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) if v6 => Value::Number(settings.traffic_class.into()),
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
            let mut bytes = [0; NAME_LEN];
            let algorithm = process.stack.congestion(id).unwrap_or(process.default_congestion());
            let name = algorithm.name().as_bytes();
            bytes[..name.len()].copy_from_slice(name);
            Value::Name(bytes)
        }
        (libc::IPPROTO_TCP, libc::TCP_INFO) => {
            process.pump_before_waiting();
            let length = kernel::tcp_info_len(descriptor).min(TCP_INFO_LEN);
            let path_mtu = process.stack.path_mtu(id);
            Value::TcpInfo(tcp_info(process.stack.info(id), path_mtu)[..length].to_vec())
        }
        (libc::IPPROTO_TCP, TCP_CC_INFO) => Value::TcpInfo(model_info(process.stack.info(id))),
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) if v6 => {
            flag(if passive { settings.v6only } else { kernel::is_v6only(descriptor) })
        }
        // What an AF_INET socket says of IPv6's options (ip_getsockopt()).
        (libc::IPPROTO_IPV6, _) => return Err(Errno::OPNOTSUPP),
        _ => return Err(Errno::NOPROTOOPT),
    })
}

/// `struct tcp_info` (include/uapi/linux/tcp.h; tcp_get_info() in net/ipv4/tcp.c). What the engine does not know is zero.
fn tcp_info(info: Option<overfly_engine::Info>, path_mtu: Option<u16>) -> [u8; TCP_INFO_LEN] {
    let mut bytes = [0; TCP_INFO_LEN];
    let Some(info) = info else {
        bytes[0] = 7;
        return bytes;
    };
    let (send_shift, receive_shift) = info.window_shift;
    bytes[..7].copy_from_slice(&[
        match info.state {
            // A socket of Linux's has no part in TIME-WAIT (tcp_time_wait() in net/ipv4/tcp_minisocks.c).
            overfly_engine::State::TimeWait => state_number(overfly_engine::State::Closed),
            state => state_number(state),
        },
        info.congestion_state as u8,
        // tcpi_retransmits, tcpi_probes: timeouts in a row are of data, or of looks at a closed window.
        if info.flight > 0 { info.retries } else { 0 },
        if info.flight > 0 { 0 } else { info.retries },
        info.backoff,
        // TCPI_OPT_TIMESTAMPS, TCPI_OPT_SACK, TCPI_OPT_WSCALE, TCPI_OPT_ECN, TCPI_OPT_SYN_DATA.
        u8::from(info.timestamps)
            | u8::from(info.sack) << 1
            | u8::from(info.window_shift != (0, 0)) << 2
            | u8::from(info.ecn) << 3
            | u8::from(info.syn_data) << 5,
        send_shift & 0xf | receive_shift << 4,
    ]);
    let segment = u32::from(info.mss).max(1);
    let segments = |bytes: u32| bytes.div_ceil(segment);
    // TCP_INFINITE_SSTHRESH
    const INFINITE: u32 = 0x7fff_ffff;
    let threshold = match info.slow_start_threshold {
        INFINITE.. => INFINITE,
        bytes => bytes / segment,
    };
    let waiting = info.unacknowledged.saturating_sub(info.flight.into());
    let fields: [(usize, u32); 23] = [
        (8, u32::try_from(info.rto_us).unwrap_or(u32::MAX)),
        // tcpi_snd_mss, tcpi_rcv_mss
        (16, segment),
        (20, segment),
        // tcpi_unacked, tcpi_sacked, tcpi_lost
        (24, segments(info.flight)),
        (28, segments(info.sacked)),
        (32, segments(info.lost)),
        // tcpi_retrans
        (36, segments(info.repeating)),
        // tcpi_pmtu
        (60, path_mtu.unwrap_or(0).into()),
        // tcpi_rtt, tcpi_rttvar, tcpi_snd_ssthresh, tcpi_snd_cwnd, tcpi_advmss
        (68, info.rtt_us),
        (72, info.rtt_variation_us),
        (76, threshold),
        (80, info.congestion_window / segment),
        (84, segment),
        // tcpi_reordering: segments of fast retransmit, as net.ipv4.tcp_reordering comes; RACK takes time instead.
        (88, 3),
        // tcpi_rcv_rtt, tcpi_rcv_space
        (92, info.receive_rtt_us),
        (96, info.receive_window),
        // tcpi_total_retrans, tcpi_reord_seen (whether, and not how often)
        (100, info.repeated),
        (220, u32::from(info.reordering_seen)),
        // tcpi_notsent_bytes, tcpi_min_rtt (all ones before the first sample)
        (144, u32::try_from(waiting).unwrap_or(u32::MAX)),
        (148, if info.min_rtt_us == 0 { u32::MAX } else { info.min_rtt_us }),
        // tcpi_snd_wnd, tcpi_rcv_wnd
        (228, info.send_window),
        (232, info.receive_window),
        // tcpi_bytes_received's lower half: the engine counts modulo 2^32.
        (if cfg!(target_endian = "little") { 128 } else { 132 }, info.received),
    ];
    for (offset, value) in fields {
        bytes[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
    }
    // tcpi_bytes_acked
    bytes[120..128].copy_from_slice(&info.acknowledged.to_ne_bytes());
    put_rates(&mut bytes, info.bbr);
    bytes
}

/// tcpi_delivery_rate_app_limited, tcpi_pacing_rate, tcpi_delivery_rate.
fn put_rates(bytes: &mut [u8; TCP_INFO_LEN], bbr: Option<overfly_engine::BbrInfo>) {
    let Some(bbr) = bbr else { return };
    bytes[7] = u8::from(bbr.is_limited);
    bytes[104..112].copy_from_slice(&bbr.pacing_rate.to_ne_bytes());
    bytes[160..168].copy_from_slice(&bbr.delivery_rate.to_ne_bytes());
}

/// `struct tcp_bbr_info` (include/uapi/linux/inet_diag.h; bbr_get_info() in net/ipv4/tcp_bbr.c). Other algorithms of ours have
/// nothing to say, as those of Linux.
fn model_info(info: Option<overfly_engine::Info>) -> Vec<u8> {
    let Some(bbr) = info.and_then(|info| info.bbr) else { return Vec::new() };
    // BBR_UNIT: gains are 256ths there.
    let gain = |hundredths: u32| hundredths * 256 / 100;
    let bandwidth = bbr.bandwidth;
    let gains = [gain(bbr.pacing_gain), gain(bbr.window_gain)];
    let words = [bandwidth as u32, (bandwidth >> 32) as u32, bbr.min_rtt_us, gains[0], gains[1]];
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// What F_SETFL, FIONBIO or their opposite does to a socket of ours. `Kernel`: the kernel's socket must be told too.
pub(crate) fn set_nonblocking(descriptor: i32, on: bool) -> Answer<()> {
    match lock_socket(descriptor) {
        Ok((mut process, id)) => {
            let socket = process.stack.socket_mut(id);
            socket.nonblocking = on;
            let joined = socket.listening.as_ref().is_some_and(|listening| !listening.joined.is_empty());
            match socket.state {
                // The kernel's socket of a joined listener never blocks: accept() waits for the stack as well.
                State::Candidate | State::Datagram | State::Free => Answer::Kernel,
                State::Listening if !joined => Answer::Kernel,
                _ => Answer::ok(()),
            }
        }
        Err(answer) => answer,
    }
}

/// F_GETFL.
pub(crate) fn status_flags(descriptor: i32) -> Answer<i32> {
    match table::lookup(descriptor) {
        Entry::Socket(id) => {
            let process = of(id);
            let socket = process.stack.socket(id);
            let flag = if socket.nonblocking { libc::O_NONBLOCK } else { 0 };
            match socket.state {
                State::Candidate | State::Datagram | State::Free => Answer::Kernel,
                _ => Answer::ok(libc::O_RDWR | flag),
            }
        }
        Entry::Kept(_) | Entry::Internal => Answer::error(CLOSED),
        Entry::Kernel | Entry::Set(_) => Answer::Kernel,
    }
}

/// F_SETFD changed whether the descriptor survives exec.
pub(crate) fn close_on_exec_changed(descriptor: i32) {
    if let Entry::Socket(id) = table::lookup(descriptor) {
        customized(id);
    }
}

/// F_GETFD of what the program has closed.
pub(crate) fn is_closed(descriptor: i32) -> bool {
    matches!(table::lookup(descriptor), Entry::Kept(_) | Entry::Internal)
}

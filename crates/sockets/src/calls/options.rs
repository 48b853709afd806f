//! setsockopt, getsockopt, fcntl, ioctl.

use core::time::Duration;

use rustix::io::Errno;

use super::{Answer, CLOSED, is_connection};
use crate::kernel;
use crate::process::{Told, process};
use crate::socket::{Settings, SocketId, State};
use crate::table::{self, Entry};

/// An option's value as the program gives it, or gets it.
pub(crate) enum Value {
    /// `int`.
    Number(i32),
    /// `struct linger`.
    Linger(libc::linger),
    /// `struct timeval`.
    Time(libc::timeval),
    /// `struct tcp_info`.
    TcpInfo([u8; 104]),
}

/// How long the value of an option that we keep is: what the hook must read or write.
pub(crate) enum Shape {
    /// `int`.
    Number,
    /// `struct linger`.
    Linger,
    /// `struct timeval`.
    Time,
    /// `struct tcp_info`: only to be read.
    TcpInfo,
    /// The kernel's socket keeps this one.
    Kernel,
}

/// Who keeps an option of a connection.
pub(crate) const fn shape(level: i32, name: i32) -> Shape {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR | libc::SO_KEEPALIVE | libc::SO_SNDBUF) => Shape::Number,
        (libc::SOL_SOCKET, libc::SO_LINGER) => Shape::Linger,
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => Shape::Time,
        (libc::IPPROTO_TCP, libc::TCP_NODELAY | libc::TCP_CORK | libc::TCP_KEEPIDLE | libc::TCP_QUICKACK) => {
            Shape::Number
        }
        (libc::IPPROTO_TCP, libc::TCP_INFO) => Shape::TcpInfo,
        _ => Shape::Kernel,
    }
}

/// Whether `descriptor` is a connection of ours.
pub(crate) fn connection(descriptor: i32) -> Answer<SocketId> {
    match table::lookup(descriptor) {
        Entry::Socket(id) if is_connection(&process(), id) => Answer::ok(id),
        Entry::Kept | Entry::Internal => Answer::error(CLOSED),
        Entry::Socket(_) | Entry::Kernel | Entry::Set(_) => Answer::Kernel,
    }
}

/// The kernel's socket was given an option of its own: it cannot serve another connection.
pub(crate) fn customized(id: SocketId) {
    process().stack.socket_mut(id).customized = true;
}

/// setsockopt() of an option whose [`shape`] says that we keep it.
pub(crate) fn set(id: SocketId, level: i32, name: i32, value: &Value) -> Result<(), Errno> {
    let mut guard = process();
    let told = Told(&mut guard);
    let process = &mut *told.0;
    let mut change = |change: &dyn Fn(&mut Settings)| process.stack.change(id, |settings| change(settings));
    match (level, name, value) {
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, &Value::Number(on)) => {
            change(&|settings| settings.keep_alive = on != 0);
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF, &Value::Number(size)) => {
            change(&|settings| settings.send_limit = kernel::send_limit(usize::try_from(size).unwrap_or(0)));
        }
        (libc::SOL_SOCKET, libc::SO_LINGER, &Value::Linger(linger)) => {
            let time = Duration::from_secs(u64::try_from(linger.l_linger).unwrap_or(0));
            change(&|settings| settings.linger = (linger.l_onoff != 0).then_some(time));
        }
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO, &Value::Time(time)) => {
            if !(0..1_000_000).contains(&time.tv_usec) {
                return Err(Errno::DOM);
            }
            let micros = u64::try_from(time.tv_sec)
                .unwrap_or(0)
                .saturating_mul(1_000_000)
                .saturating_add(time.tv_usec as u64);
            let timeout = (micros != 0).then(|| Duration::from_micros(micros.min(u64::MAX / 4)));
            change(&|settings| {
                if name == libc::SO_RCVTIMEO {
                    settings.receive_timeout = timeout;
                } else {
                    settings.send_timeout = timeout;
                }
            });
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY, &Value::Number(on)) => {
            change(&|settings| settings.no_delay = on != 0);
        }
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
        // A hint for the moment, which the engine's delayed acknowledgments need not take.
        (libc::IPPROTO_TCP, libc::TCP_QUICKACK, Value::Number(_)) => {}
        _ => return Err(Errno::NOPROTOOPT),
    }
    if process.stack.has_output() {
        process.output();
    }
    Ok(())
}

/// getsockopt() of an option whose [`shape`] says that we keep it.
pub(crate) fn get(id: SocketId, level: i32, name: i32) -> Result<Value, Errno> {
    let mut process = process();
    let settings = process.stack.socket(id).settings;
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
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => Value::Number((settings.send_limit * 2) as i32),
        (libc::SOL_SOCKET, libc::SO_LINGER) => Value::Linger(libc::linger {
            l_onoff: i32::from(settings.linger.is_some()),
            l_linger: settings.linger.map_or(0, |time| time.as_secs() as i32),
        }),
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => time(settings.receive_timeout),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => time(settings.send_timeout),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => flag(settings.no_delay),
        (libc::IPPROTO_TCP, libc::TCP_CORK) => flag(settings.cork),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => Value::Number(settings.keep_idle.as_secs() as i32),
        (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => flag(true),
        (libc::IPPROTO_TCP, libc::TCP_INFO) => Value::TcpInfo(tcp_info(process.stack.info(id))),
        _ => return Err(Errno::NOPROTOOPT),
    })
}

/// The beginning of `struct tcp_info` (include/uapi/linux/tcp.h), up to tcpi_total_retrans.
fn tcp_info(info: Option<overfly_engine::Info>) -> [u8; 104] {
    use overfly_engine::State::{
        CloseWait, Closed, Closing, Established, FinWait1, FinWait2, LastAck, SynReceived, SynSent, TimeWait,
    };
    let mut bytes = [0; 104];
    let Some(info) = info else {
        bytes[0] = 7;
        return bytes;
    };
    // include/net/tcp_states.h
    bytes[0] = match info.state {
        Established => 1,
        SynSent => 2,
        SynReceived => 3,
        FinWait1 => 4,
        FinWait2 => 5,
        TimeWait => 6,
        Closed => 7,
        CloseWait => 8,
        LastAck => 9,
        Closing => 11,
    };
    // TCPI_OPT_TIMESTAMPS, TCPI_OPT_WSCALE.
    bytes[5] = u8::from(info.timestamps) | u8::from(info.window_shift != (0, 0)) << 2;
    bytes[6] = info.window_shift.0 & 0xf | info.window_shift.1 << 4;
    let segment = u32::from(info.mss).max(1);
    let unacknowledged = u32::try_from(info.unacknowledged / u64::from(segment)).unwrap_or(u32::MAX);
    let fields: [(usize, u32); 9] = [
        (8, u32::try_from(info.rto_us).unwrap_or(u32::MAX)),
        (16, segment),
        (20, segment),
        (24, unacknowledged),
        (68, info.rtt_us),
        (72, info.rtt_variation_us),
        (76, info.slow_start_threshold / segment),
        (80, info.congestion_window / segment),
        (84, segment),
    ];
    for (offset, value) in fields {
        bytes[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

/// What F_SETFL, FIONBIO or their opposite does to a socket of ours. `Kernel`: the kernel's socket must be told too.
pub(crate) fn set_nonblocking(descriptor: i32, on: bool) -> Answer<()> {
    match table::lookup(descriptor) {
        Entry::Socket(id) => {
            let mut process = process();
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
        Entry::Kept | Entry::Internal => Answer::error(CLOSED),
        Entry::Kernel | Entry::Set(_) => Answer::Kernel,
    }
}

/// F_GETFL.
pub(crate) fn status_flags(descriptor: i32) -> Answer<i32> {
    match table::lookup(descriptor) {
        Entry::Socket(id) => {
            let process = process();
            let socket = process.stack.socket(id);
            let flag = if socket.nonblocking { libc::O_NONBLOCK } else { 0 };
            match socket.state {
                State::Candidate | State::Datagram | State::Free => Answer::Kernel,
                _ => Answer::ok(libc::O_RDWR | flag),
            }
        }
        Entry::Kept | Entry::Internal => Answer::error(CLOSED),
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
    matches!(table::lookup(descriptor), Entry::Kept | Entry::Internal)
}

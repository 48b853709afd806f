//! The kernel's socket behind one of ours: it keeps what the program sets before there is a connection, and gets what was set since
//! when it takes the connection over.

use core::time::Duration;

use overfly_engine::Algorithm;
use rustix::io::Errno;

use super::{SocketOption, access};
use crate::socket::Settings;
use crate::sys;

/// The kernel's socket of a descriptor.
#[derive(Clone, Copy)]
pub(crate) struct Backing(pub(crate) i32);

impl Backing {
    /// getsockopt(); returns the value's length.
    pub(crate) fn get(self, level: i32, name: i32, value: &mut [u8]) -> Result<usize, Errno> {
        let mut length = u32::try_from(value.len()).unwrap_or(u32::MAX);
        let arguments = [
            self.0 as usize,
            level as usize,
            name as usize,
            value.as_mut_ptr() as usize,
            &raw mut length as usize,
            0,
        ];
        // SAFETY: the kernel writes `length` bytes of `value` at most, and the length.
        unsafe { sys::call(libc::SYS_getsockopt, arguments) }.map(|_| length as usize)
    }

    /// setsockopt().
    pub(crate) fn set(self, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        let (value, length) = (value.as_ptr() as usize, value.len());
        let arguments = [self.0 as usize, level as usize, name as usize, value, length, 0];
        // SAFETY: the kernel reads `length` bytes of `value`, which has as many.
        unsafe { sys::call(libc::SYS_setsockopt, arguments) }.map(drop)
    }

    /// An option that is an `int`.
    pub(crate) fn number(self, level: i32, name: i32) -> Result<i32, Errno> {
        let mut bytes = [0; 4];
        self.get(level, name, &mut bytes).map(|_| i32::from_ne_bytes(bytes))
    }
}

/// What a socket has that the program has done nothing with: the administrator's settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fresh {
    pub(crate) settings: Settings,
    /// net.ipv4.tcp_notsent_lowat in bytes, zero if there is no mark.
    pub(super) unsent_low_water: u32,
    /// What the kernel says of SO_SNDBUF, SO_RCVBUF, TCP_MAXSEG, TCP_SYNCNT, IP_TTL and IPV6_UNICAST_HOPS; -1 if it knows no such option.
    pub(super) send_buffer: i32,
    pub(super) receive_buffer: i32,
    pub(super) max_segment: i32,
    pub(super) syn_retries: i32,
    pub(super) time_to_live: i32,
    pub(super) hop_limit: i32,
    /// net.ipv4.tcp_congestion_control, if the engine has it.
    pub(crate) congestion: Option<Algorithm>,
}

impl Fresh {
    /// Looks at a new socket, of IPv6 if there is IPv6: it has the options of both.
    pub(crate) fn read(socket: Backing, unsent_low_water: u32) -> Result<Self, Errno> {
        let mut name = [0; access::NAME_LEN];
        let congestion = socket.get(libc::IPPROTO_TCP, libc::TCP_CONGESTION, &mut name);
        let mut fresh = Self {
            settings: Settings::DEFAULT,
            unsent_low_water,
            send_buffer: socket.number(libc::SOL_SOCKET, libc::SO_SNDBUF)?,
            receive_buffer: socket.number(libc::SOL_SOCKET, libc::SO_RCVBUF)?,
            max_segment: socket.number(libc::IPPROTO_TCP, libc::TCP_MAXSEG)?,
            syn_retries: socket.number(libc::IPPROTO_TCP, libc::TCP_SYNCNT)?,
            time_to_live: socket.number(libc::IPPROTO_IP, libc::IP_TTL).unwrap_or(-1),
            hop_limit: socket.number(libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS).unwrap_or(-1),
            congestion: congestion.ok().and_then(|_| named(&name)),
        };
        fresh.settings = super::read(socket, &fresh);
        Ok(fresh)
    }
}

/// The algorithm of that name, which ends at a zero if it is shorter than its place.
pub(super) fn named(name: &[u8]) -> Option<Algorithm> {
    Algorithm::named(name.split(|&byte| byte == 0).next().unwrap_or_default())
}

/// One option of the kernel's socket.
pub(crate) struct Placeholder<'a> {
    socket: Backing,
    pub(super) fresh: &'a Fresh,
    level: i32,
    name: i32,
}

impl<'a> Placeholder<'a> {
    pub(super) const fn new(socket: Backing, fresh: &'a Fresh, option: &SocketOption) -> Self {
        Self { socket, fresh, level: option.level, name: option.name }
    }

    /// Its value, if it is an `int`; `None` if this socket has no such option.
    pub(super) fn number(&self) -> Option<i32> {
        self.socket.number(self.level, self.name).ok()
    }

    pub(super) fn seconds(&self) -> Option<Duration> {
        self.number().and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs)
    }

    pub(super) fn is_on(&self) -> bool {
        self.number().is_some_and(|number| number != 0)
    }

    /// Its value in `value`'s bytes; those that it does not have stay.
    pub(super) fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut value = [0; N];
        let _ = self.socket.get(self.level, self.name, &mut value);
        value
    }

    /// `struct linger`.
    pub(super) fn linger(&self) -> (bool, Duration) {
        let [on, time] = access::integers(self.bytes());
        // A negative time is a very long one (sk_setsockopt() in net/core/sock.c).
        (on != 0, Duration::from_secs(u64::from(time as u32)))
    }

    /// `struct timeval`.
    pub(super) fn timeout(&self) -> Option<Duration> {
        access::timeout(access::words(self.bytes())).ok().flatten()
    }

    pub(super) fn set(&self, value: &[u8]) {
        let _ = self.socket.set(self.level, self.name, value);
    }

    pub(super) fn set_number(&self, number: i32) {
        self.set(&number.to_ne_bytes());
    }

    pub(super) fn set_flag(&self, on: bool) {
        self.set_number(i32::from(on));
    }

    pub(super) fn set_seconds(&self, time: Duration) {
        self.set_number(i32::try_from(time.as_secs()).unwrap_or(i32::MAX));
    }

    /// Zero, which means for ever, stands for a time-out below zero.
    pub(super) fn set_timeout(&self, timeout: Option<Duration>) {
        self.set(&access::word_bytes(match timeout {
            Some(Duration::ZERO) => [-1, 0],
            Some(time) => [time.as_secs() as i64, i64::from(time.subsec_micros())],
            None => [0, 0],
        }));
    }

    /// What is off keeps its time.
    pub(super) fn set_linger(&self, is_on: bool, time: Duration) {
        let seconds = time.as_secs() as u32 as i32;
        self.set(&access::integer_bytes([1, seconds]));
        if !is_on {
            self.set(&access::integer_bytes([0, seconds]));
        }
    }
}

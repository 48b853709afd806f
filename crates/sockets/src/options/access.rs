//! Options that a connection has at user level: what their values look like, and what they do to it.

use core::ops::Deref;
use core::time::Duration;

use overfly_engine::{Algorithm, Info};
use rustix::io::Errno;

use super::backing::{Backing, Placeholder, named};
use crate::socket::{SEND_LIMIT_RANGE, Settings};

/// TCP_CA_NAME_MAX (include/net/tcp.h).
pub(crate) const NAME_LEN: usize = 16;
/// The longest value that is set: `struct timeval`, or a name.
const MOST: usize = 16;
/// Half of the least SO_RCVBUF, as Linux keeps twice what is asked for (SOCK_MIN_RCVBUF in include/net/sock.h).
const RECEIVE_LEAST: u32 = 2304 / 2;
/// The least SO_SNDBUF (SOCK_MIN_SNDBUF in include/net/sock.h).
const SEND_LEAST: u32 = 4608;

/// A connection, as its options see it.
pub(crate) trait Connection {
    fn settings(&self) -> &Settings;
    fn change(&mut self, change: &dyn Fn(&mut Settings));
    /// What waits for company goes, and does not wait any more.
    fn send_at_once(&mut self);
    /// What has arrived is taken into account.
    fn look(&mut self);
    /// What there is to read is news once more, if it is enough.
    fn tell_readers(&mut self);
    /// The same of room to write.
    fn tell_writers(&mut self);
    fn take_error(&mut self) -> Option<Errno>;
    fn info(&self) -> Option<Info>;
    fn path_mtu(&self) -> Option<u16>;
    fn congestion(&self) -> Algorithm;
    /// Accepted, rather than connected.
    fn is_passive(&self) -> bool;
    /// The kernel's socket behind it.
    fn backing(&self) -> Backing;
    /// The largest SO_SNDBUF and SO_RCVBUF in bytes: net.core.wmem_max, net.core.rmem_max.
    fn send_buffer_max(&self) -> u32;
    fn receive_buffer_max(&self) -> u32;
    /// The last number of net.ipv4.tcp_rmem in bytes.
    fn receive_buffer_grown_max(&self) -> u64;
}

/// How a value is read.
pub(crate) type Get<T> = fn(&mut dyn Connection) -> Result<T, Errno>;
/// How it is written.
pub(crate) type Set<T> = fn(&mut dyn Connection, T) -> Result<(), Errno>;

/// What an option's value looks like, and how it is read and written.
#[derive(Clone, Copy)]
pub(crate) enum OptionAccess {
    /// `int`.
    Number(Get<i32>, Set<i32>),
    /// `struct linger`: whether it is on, and the seconds.
    Linger(Get<[i32; 2]>, Set<[i32; 2]>),
    /// `struct timeval`: seconds and microseconds.
    Time(Get<[i64; 2]>, Set<[i64; 2]>),
    /// A name, padded with zeros; one that is set may end before its length.
    Name(Get<[u8; NAME_LEN]>, Set<[u8; NAME_LEN]>),
    /// A record of the kernel's, which is only read.
    Record(Get<Vec<u8>>),
}

/// As much of a value as an option has, as the program gives it.
#[derive(Clone, Copy)]
pub(crate) struct OptionArgument {
    bytes: [u8; MOST],
    length: usize,
}

/// A value's bytes.
pub(crate) enum Value {
    Few([u8; MOST], usize),
    Many(Vec<u8>),
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Few(bytes, length) => &bytes[..*length],
            Self::Many(bytes) => bytes,
        }
    }
}

impl Value {
    fn few(bytes: &[u8]) -> Self {
        let mut few = [0; MOST];
        few[..bytes.len()].copy_from_slice(bytes);
        Self::Few(few, bytes.len())
    }
}

impl OptionArgument {
    /// `bytes` as many as [`OptionAccess::taken`] says.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut given = [0; MOST];
        given[..bytes.len()].copy_from_slice(bytes);
        Self { bytes: given, length: bytes.len() }
    }

    fn start<const N: usize>(&self) -> [u8; N] {
        core::array::from_fn(|at| self.bytes[at])
    }

    fn number(&self) -> i32 {
        if self.length < 4 { self.bytes[0].into() } else { i32::from_ne_bytes(self.start()) }
    }
}

impl OptionAccess {
    /// How many bytes of a value of `length` are looked at. `level` is the option's.
    ///
    /// # Errors
    /// EINVAL if it is too short.
    pub(crate) fn taken(&self, level: i32, length: usize) -> Result<usize, Errno> {
        let least = match self {
            // do_ip_setsockopt(): one byte will do, and nothing is zero.
            Self::Number(..) if level == libc::IPPROTO_IP && length < 4 => length.min(1),
            Self::Number(..) | Self::Record(_) => 4,
            Self::Linger(..) => 8,
            Self::Time(..) => 16,
            // strncpy_from_sockptr() in Linux: one that is longer is cut.
            Self::Name(..) => length.clamp(1, NAME_LEN - 1),
        };
        if length < least { Err(Errno::INVAL) } else { Ok(least) }
    }

    /// setsockopt().
    pub(crate) fn set(&self, of: &mut dyn Connection, given: &OptionArgument) -> Result<(), Errno> {
        match self {
            Self::Number(_, set) => set(of, given.number()),
            Self::Linger(_, set) => set(of, integers(given.start())),
            Self::Time(_, set) => set(of, words(given.start())),
            Self::Name(_, set) => set(of, given.start()),
            Self::Record(_) => Err(Errno::NOPROTOOPT),
        }
    }

    /// getsockopt(), into `room` bytes: no more of it counts. `level` is the option's.
    pub(crate) fn get(&self, of: &mut dyn Connection, level: i32, room: usize) -> Result<Value, Errno> {
        Ok(match self {
            Self::Number(get, _) => match get(of)? {
                // do_ip_getsockopt(): a short answer is one byte.
                number @ 0..=255 if level == libc::IPPROTO_IP && room < 4 => Value::few(&[number as u8]),
                number => Value::few(&number.to_ne_bytes()),
            },
            Self::Linger(get, _) => Value::few(&integer_bytes(get(of)?)),
            Self::Time(get, _) => Value::few(&word_bytes(get(of)?)),
            Self::Name(get, _) => Value::few(&get(of)?),
            Self::Record(get) => Value::Many(get(of)?),
        })
    }
}

/// Two of C's `int`.
pub(super) fn integers(bytes: [u8; 8]) -> [i32; 2] {
    let [a, b, c, d, e, f, g, h] = bytes;
    [i32::from_ne_bytes([a, b, c, d]), i32::from_ne_bytes([e, f, g, h])]
}

pub(super) fn integer_bytes([first, second]: [i32; 2]) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first.to_ne_bytes());
    bytes[4..].copy_from_slice(&second.to_ne_bytes());
    bytes
}

/// Two of C's `long`.
pub(super) fn words(bytes: [u8; 16]) -> [i64; 2] {
    let word = |half: usize| i64::from_ne_bytes(core::array::from_fn(|at| bytes[8 * half + at]));
    [word(0), word(1)]
}

pub(super) fn word_bytes([first, second]: [i64; 2]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_ne_bytes());
    bytes[8..].copy_from_slice(&second.to_ne_bytes());
    bytes
}

// ---- what rows of the table share ----

/// Only to be read.
pub(super) fn is_read_only(_: &mut dyn Connection, _: i32) -> Result<(), Errno> {
    Err(Errno::NOPROTOOPT)
}

pub(super) fn flag(on: bool) -> Result<i32, Errno> {
    Ok(i32::from(on))
}

pub(super) fn seconds(time: Duration) -> Result<i32, Errno> {
    Ok(time.as_secs() as i32)
}

pub(super) fn change(of: &mut dyn Connection, change: impl Fn(&mut Settings)) -> Result<(), Errno> {
    of.change(&change);
    Ok(())
}

/// As [`change`], of a number that has to be among these.
pub(super) fn change_within(
    of: &mut dyn Connection,
    number: i32,
    range: core::ops::RangeInclusive<i32>,
    change: impl Fn(&mut Settings),
) -> Result<(), Errno> {
    if !range.contains(&number) {
        return Err(Errno::INVAL);
    }
    of.change(&change);
    Ok(())
}

/// What `struct timeval` says of a wait: below zero a call does not wait, and zero is for ever (sock_set_timeout() in
/// net/core/sock.c).
pub(super) fn timeout([seconds, microseconds]: [i64; 2]) -> Result<Option<Duration>, Errno> {
    if !(0..1_000_000).contains(&microseconds) {
        return Err(Errno::DOM);
    }
    Ok(match u64::try_from(seconds) {
        Err(_) => Some(Duration::ZERO),
        Ok(0) if microseconds == 0 => None,
        Ok(seconds) => Some(Duration::from_micros(
            seconds.saturating_mul(1_000_000).saturating_add(microseconds as u64).min(u64::MAX / 4),
        )),
    })
}

/// What is said of a wait then.
pub(super) fn timeval(timeout: Option<Duration>) -> Result<[i64; 2], Errno> {
    let time = timeout.unwrap_or(Duration::ZERO);
    Ok([time.as_secs() as i64, i64::from(time.subsec_micros())])
}

pub(super) fn set_linger(of: &mut dyn Connection, [on, time]: [i32; 2]) -> Result<(), Errno> {
    // A negative time is a very long one (sk_setsockopt() in net/core/sock.c).
    let time = Duration::from_secs(u64::from(time as u32));
    // What is off keeps its time.
    change(of, |settings| {
        settings.linger = (on != 0).then_some(time);
        settings.linger_time = settings.linger.unwrap_or(settings.linger_time);
    })
}

pub(super) fn send_buffer(of: &mut dyn Connection) -> Result<i32, Errno> {
    // Linux says twice what was asked for.
    Ok(match of.settings().send_buffer {
        0 => (of.settings().send_limit * 2) as i32,
        bytes => bytes as i32,
    })
}

/// A negative size is a very large one.
pub(super) fn set_send_buffer(of: &mut dyn Connection, size: i32) -> Result<(), Errno> {
    let (limit, buffer) = send_limit_within((size as u32).min(of.send_buffer_max()));
    change(of, |settings| (settings.send_limit, settings.send_buffer) = (limit, buffer))?;
    of.tell_writers();
    Ok(())
}

/// The send queue's limit for a SO_SNDBUF of `size`, whatever the administrator says, and what the option says then: twice of it
/// counts, and SOCK_MIN_SNDBUF is the least.
pub(crate) fn send_limit_within(size: u32) -> (usize, u32) {
    ((size as usize).clamp(SEND_LIMIT_RANGE.0, SEND_LIMIT_RANGE.1), size.saturating_mul(2).max(SEND_LEAST))
}

pub(super) fn receive_buffer(of: &mut dyn Connection) -> Result<i32, Errno> {
    match of.settings().receive_limit {
        Some(limit) => Ok(limit.saturating_mul(2) as i32),
        None => of.backing().number(libc::SOL_SOCKET, libc::SO_RCVBUF),
    }
}

/// A negative size is a very large one.
pub(super) fn set_receive_buffer(of: &mut dyn Connection, size: i32) -> Result<(), Errno> {
    let limit = (size as u32).min(of.receive_buffer_max()).max(RECEIVE_LEAST);
    change(of, |settings| settings.receive_limit = Some(limit))
}

/// The receive queue's limit for a SO_RCVBUFFORCE that the kernel took.
pub(crate) fn receive_limit_within(size: u32) -> u32 {
    size.min(i32::MAX as u32 / 2).max(RECEIVE_LEAST)
}

/// Half of the largest buffer at most (tcp_set_rcvlowat() in net/ipv4/tcp.c). A negative number is a very large one, and zero is
/// one.
pub(super) fn set_receive_low_water(of: &mut dyn Connection, bytes: i32) -> Result<(), Errno> {
    let most = u32::try_from(of.receive_buffer_grown_max() / 2).unwrap_or(u32::MAX);
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(most).max(1);
    change(of, |settings| settings.receive_low_water = bytes)?;
    of.tell_readers();
    Ok(())
}

/// The hop limit is the administrator's again, which the kernel's socket knows: it may have been given another one before there was
/// a connection.
pub(super) fn reset_hops(
    of: &mut dyn Connection,
    level: i32,
    name: i32,
    change_settings: impl Fn(&mut Settings),
) -> Result<(), Errno> {
    of.backing().set(level, name, &(-1i32).to_ne_bytes())?;
    change(of, change_settings)
}

/// The kernel's socket gets the traffic class that was set at user level.
pub(super) fn write_class(to: &Placeholder<'_>, settings: &Settings) {
    if settings.traffic_class != to.fresh.settings.traffic_class {
        to.set_number(settings.traffic_class.into());
    }
}

pub(super) fn max_segment(of: &mut dyn Connection) -> Result<i32, Errno> {
    match of.info() {
        Some(info) => Ok(info.mss.into()),
        None => of.backing().number(libc::IPPROTO_TCP, libc::TCP_MAXSEG),
    }
}

pub(super) fn congestion(of: &mut dyn Connection) -> Result<[u8; NAME_LEN], Errno> {
    let mut bytes = [0; NAME_LEN];
    let name = of.congestion().name().as_bytes();
    bytes[..name.len()].copy_from_slice(name);
    Ok(bytes)
}

pub(super) fn set_congestion(of: &mut dyn Connection, name: [u8; NAME_LEN]) -> Result<(), Errno> {
    let algorithm = named(&name).ok_or(Errno::NOENT)?;
    change(of, |settings| settings.congestion = Some(algorithm))
}

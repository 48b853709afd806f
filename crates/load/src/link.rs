//! What carries a generator's frames, and how a thread's stack comes to be. Every kind of load is written once over
//! [`Wire`]; each link opens one [`Stack`] a thread.

pub(crate) mod alone;
mod any;
mod hops;
#[cfg(test)]
pub(crate) mod in_memory;
pub(crate) mod memif;
pub(crate) mod sources;
pub(crate) mod tap;
pub(crate) mod xdp;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use overfly_engine::{Engine, Instant, Owner};
pub(crate) use overfly_link::{Each, Gone, Link as Wire, each_of};
use rustix::time::{ClockId, clock_gettime};

pub(crate) use self::any::{AnyLink, AnyStack};
pub(crate) use self::hops::Hops;
use crate::error::Error;

/// What carries the connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
    /// The user-level stack on AF_XDP sockets.
    Xdp,
    /// The user-level stack over memory shared with another program.
    Memif(overfly_link::memif::Address),
    /// The user-level stack on the tap device of that name.
    Tap(String),
    /// Kernel sockets and epoll.
    Kernel,
}

impl Link {
    /// The name used on the command line and in reports.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Link::Xdp => "xdp",
            Link::Memif(_) => "memif",
            Link::Tap(_) => "tap",
            Link::Kernel => "kernel",
        }
    }

    /// What `--link` says.
    ///
    /// # Errors
    /// [`Error::Usage`] if it says something else.
    pub fn parse(given: &str) -> Result<Link, Error> {
        match given.split_once(':') {
            None if given == "xdp" => Ok(Link::Xdp),
            None if given == "kernel" => Ok(Link::Kernel),
            Some(("memif", place)) => place.parse().map(Link::Memif).map_err(|_| {
                Error::usage(
                    "--link",
                    given,
                    "memif:PATH or memif:@NAME, of up to 107 bytes, with ,id=N if need be",
                )
            }),
            Some(("tap", name)) if !name.is_empty() => Ok(Link::Tap(name.to_string())),
            _ => Err(Error::usage("--link", given, "xdp, kernel, memif:PATH or tap:NAME")),
        }
    }
}

/// A stack's own address where no kernel gives one, and the length in bits of the prefix that is reached without a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    /// The address.
    pub address: IpAddr,
    /// 1 to 32, or to 128 with IPv6.
    pub prefix_len: u8,
}

impl Network {
    /// What `--address` gives a stack that makes connections. Over other links the kernel has the addresses.
    pub(crate) fn own(given: Option<&str>, link: &Link) -> Result<Network, Error> {
        let Some(given) = given else { return Ok(Network::default()) };
        if !matches!(link, Link::Memif(_) | Link::Tap(_)) {
            let expected = "--link memif:PATH or tap:NAME with it: with others connections come from the kernel's addresses (--sources)";
            return Err(Error::usage("--address", given, expected));
        }
        given.parse()
    }

    /// Whether `other` is reached without a gateway.
    #[must_use]
    pub fn contains(&self, other: IpAddr) -> bool {
        let bits = |address: IpAddr| match address.to_canonical() {
            IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 4),
            IpAddr::V6(address) => (address.to_bits(), 6),
        };
        let ((own, family), (other, other_family)) = (bits(self.address), bits(other));
        let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix_len)).unwrap_or(0);
        family == other_family && (own ^ other) & mask == 0
    }

    /// The default of a server.
    pub const SERVER: Network =
        Network { address: IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 1)), prefix_len: 24 };

    /// Refuses a server that cannot be reached.
    pub(crate) fn check_reaches(&self, server: SocketAddr) -> Result<(), Error> {
        if self.contains(server.ip()) && server.ip().to_canonical() != self.address {
            return Ok(());
        }
        Err(Error::usage(
            "--address",
            self,
            format!("another address in the network of the server {}, with its prefix length", server.ip()),
        ))
    }
}

impl Default for Network {
    fn default() -> Network {
        Network { address: IpAddr::from([10, 77, 0, 2]), prefix_len: 24 }
    }
}

impl FromStr for Network {
    type Err = Error;

    fn from_str(given: &str) -> Result<Network, Error> {
        let parse = || {
            let (address, prefix_len) = given.split_once('/')?;
            let network = Network { address: address.parse().ok()?, prefix_len: prefix_len.parse().ok()? };
            let most = if network.address.is_ipv4() { 32 } else { 128 };
            (1..=most).contains(&network.prefix_len).then_some(network)
        };
        parse().ok_or_else(|| {
            Error::usage("--address", given, "an address and its prefix length, such as 10.77.0.2/24")
        })
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.address, self.prefix_len)
    }
}

/// The machine's monotonic clock.
pub(crate) fn uptime_ns() -> u64 {
    let uptime = clock_gettime(ClockId::Monotonic);
    uptime.tv_sec as u64 * 1_000_000_000 + uptime.tv_nsec as u64
}

/// A key that no peer knows and that stays the same until the machine starts anew
/// (`/proc/sys/kernel/random/boot_id`, random(4)): see [`Stack::epoch_ns`].
pub(crate) fn boot_key() -> [u8; 16] {
    let uuid = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = uuid.chars().filter(char::is_ascii_hexdigit).take(32).collect();
    u128::from_str_radix(&digits, 16).unwrap_or_default().to_be_bytes()
}

/// Frames taken before anything is sent.
const FRAMES_AT_ONCE: usize = 64;
/// Times that a full link is flushed before received frames have their turn again.
const FLUSHES_AT_ONCE: usize = 4;

/// Looks without a frame before a thread rests, ns: a server that answers sooner is never kept waiting.
const REST_AFTER_NS: u64 = 100_000;
/// Longest rest, ns: nothing but requests that are due is to be more punctual.
const REST_NS: u64 = 100_000;
/// A rest may last so much longer than it was to, ns: the timer slack of prctl(2), and the way back to the processor.
const REST_LATE_NS: u64 = 150_000;

/// When a thread that finds nothing to do rests. One that only yields its processor may keep it all the same: Linux 6.18 let threads that
/// spin with `sched_yield` run for seconds while the kernel's own thread, which was to receive for them, waited on the same processor.
#[derive(Debug, Default)]
pub(crate) struct IdlePolicy {
    busy_ns: u64,
}

impl IdlePolicy {
    /// After a round that began at `now_ns`. `due_ns` is when something has to be done to the microsecond, frame or not.
    #[inline]
    pub(crate) fn after_round(
        &mut self,
        now_ns: u64,
        was_busy: bool,
        wire: &mut impl Wire,
        due_ns: impl FnOnce() -> u64,
    ) {
        if was_busy {
            self.busy_ns = now_ns;
        } else if now_ns.saturating_sub(self.busy_ns) > REST_AFTER_NS
            && due_ns() > now_ns + REST_NS + REST_LATE_NS
        {
            wire.rest(Duration::from_nanos(REST_NS));
        }
    }
}

/// The local ports of one shard of several, the one used longest ago first.
#[derive(Debug, Clone)]
pub(crate) struct Ports {
    first: u32,
    last: u32,
    stride: u32,
    next: u32,
}

impl Ports {
    /// None: for a stack that opens no connections.
    pub(crate) fn none() -> Ports {
        Ports { first: 1, last: 0, stride: 1, next: 1 }
    }

    /// The ports of `range` that leave the rest `index` when divided by `count`: the XDP program
    /// sends their frames to stack `index`.
    pub(crate) fn of_shard(range: &RangeInclusive<u16>, index: usize, count: usize) -> Ports {
        let (low, last) = (u32::from(*range.start()), u32::from(*range.end()));
        let (index, stride) = (index as u32, count as u32);
        let first = low + (index + stride - low % stride) % stride;
        Ports { first, last, stride, next: first }
    }

    pub(crate) fn len(&self) -> usize {
        if self.first > self.last { 0 } else { ((self.last - self.first) / self.stride + 1) as usize }
    }

    /// The next port; whether it is free only the engine knows.
    pub(crate) fn take(&mut self) -> u16 {
        let port = self.next;
        self.next += self.stride;
        if self.next > self.last {
            self.next = self.first;
        }
        port as u16
    }
}

/// One thread's way to the network: its engine knows its own address and the way to the server, and has control blocks for as
/// many flows as there are ports.
pub(crate) struct Stack<W> {
    pub(crate) engine: Engine,
    pub(crate) wire: W,
    /// Where active opens come from.
    pub(crate) local: IpAddr,
    /// Their ports: frames to these reach this thread.
    pub(crate) ports: Ports,
    /// The machine's monotonic clock at the start of the run. The engine's time goes on from one
    /// run to the next, and with it timestamps and initial sequence numbers: so a server takes a
    /// SYN that meets the TIME-WAIT of an earlier run (RFC 6191).
    pub(crate) epoch_ns: u64,
    /// Where the next hops are by now.
    pub(crate) hops: Hops,
}

impl<W: Wire> Stack<W> {
    /// One whose run starts now, and whose next hops stay where they are.
    pub(crate) fn new(engine: Engine, wire: W, local: IpAddr, ports: Ports) -> Stack<W> {
        Stack { engine, wire, local, ports, epoch_ns: uptime_ns(), hops: Hops::default() }
    }

    /// The engine's time, so long after the start of the run.
    #[inline]
    pub(crate) fn time(&self, now_ns: u64) -> Instant {
        Instant::from_micros((self.epoch_ns + now_ns) / 1000)
    }

    /// Takes what the link has received, and does what is due by time. Returns the frames taken.
    #[inline]
    pub(crate) fn receive(&mut self, now: Instant, owner: &mut impl Owner) -> usize {
        let engine = &mut self.engine;
        let frames = self.wire.receive(FRAMES_AT_ONCE, |frame| engine.receive(now, frame, owner));
        if let Some(room) = self.wire.room() {
            self.engine.took(frames, frames < FRAMES_AT_ONCE, room);
        }
        if let Some(gone) = self.wire.take_gone() {
            self.engine.peer_gone(now, |mac| gone.includes(mac.0), owner);
        }
        for (destination, mac) in self.hops.moved().into_iter().flatten() {
            self.engine.set_neighbor(destination, mac);
        }
        self.advance(now, owner);
        frames
    }

    /// As [`Stack::receive`], of a host that hears nothing.
    pub(crate) fn drop_received(&mut self, now: Instant, owner: &mut impl Owner) -> usize {
        let frames = self.wire.receive(FRAMES_AT_ONCE, |_| {});
        self.advance(now, owner);
        frames
    }

    #[inline]
    fn advance(&mut self, now: Instant, owner: &mut impl Owner) {
        if self.engine.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.engine.advance(now, owner);
        }
    }

    /// Sends what is due, as far as the link takes it.
    #[inline]
    pub(crate) fn transmit(&mut self, now: Instant, owner: &mut impl Owner) {
        if self.engine.has_output() {
            for _ in 0..FLUSHES_AT_ONCE {
                if self.engine.transmit(now, owner, &mut self.wire) || self.engine.holds_back() {
                    break;
                }
                self.wire.flush();
            }
        }
        self.wire.flush();
    }

    /// Whether no peer has anything of ours any more, as far as we can know.
    pub(crate) fn is_wound_up(&self) -> bool {
        self.engine.flows() == self.engine.time_wait_flows() && !self.engine.has_output()
    }

    /// What the engine and the link have counted, by name.
    pub(crate) fn counters(&self) -> BTreeMap<String, u64> {
        let engine = self.engine.counters().iter();
        let mut counters: BTreeMap<_, _> =
            engine.map(|(name, count)| (format!("engine.{name}"), count)).collect();
        let mut each = |group: &'static str, name: &'static str, count| {
            // How full rings are says nothing afterwards.
            if group != "now" {
                counters.insert(format!("{group}.{name}"), count);
            }
        };
        self.wire.each_counter(&mut each);
        self.wire.each_kernel_counter(&mut each);
        counters
    }
}

#[cfg(test)]
mod tests {
    use overfly_wire::FrameSink;

    use super::*;

    /// Counts its rests.
    #[derive(Default)]
    struct Bed(Vec<Duration>);

    impl FrameSink for Bed {
        fn frame(&mut self) -> Option<&mut [u8]> {
            None
        }

        fn commit(&mut self, _: usize) {}
    }

    impl Wire for Bed {
        fn receive(&mut self, _: usize, _: impl FnMut(&[u8])) -> usize {
            0
        }

        fn flush(&mut self) {}

        fn rest(&mut self, longest: Duration) {
            self.0.push(longest);
        }

        fn each_counter(&self, _: Each<'_>) {}
    }

    #[test]
    fn a_thread_rests_when_it_has_long_had_nothing_to_do_and_nothing_is_due() {
        let (mut idle, mut bed) = (IdlePolicy::default(), Bed::default());
        let begun = 1_000_000_000;
        let unasked = || unreachable!("who is busy, or was just now, asks nothing");
        idle.after_round(begun, true, &mut bed, unasked);
        idle.after_round(begun + REST_AFTER_NS, false, &mut bed, unasked);
        let later = begun + REST_AFTER_NS + 1;
        idle.after_round(later, false, &mut bed, || later + REST_NS + REST_LATE_NS);
        assert!(bed.0.is_empty());
        idle.after_round(later, false, &mut bed, || later + REST_NS + REST_LATE_NS + 1);
        idle.after_round(later + 1, false, &mut bed, || u64::MAX);
        assert_eq!(bed.0, [Duration::from_nanos(REST_NS); 2]);
        idle.after_round(later + 2, true, &mut bed, unasked);
        idle.after_round(later + 3, false, &mut bed, unasked);
        assert_eq!(bed.0.len(), 2);
    }

    #[test]
    fn what_is_no_link_is_said_with_what_is_one() {
        for given in ["memif:", "memif:@", "foo", "tap:", "xdp:eth0"] {
            let text = Link::parse(given).unwrap_err().to_string();
            let expected = text.strip_prefix(&format!("--link {given}: expected ")).unwrap();
            assert!(
                expected.starts_with("memif:PATH or") || expected.starts_with("xdp, kernel, memif:PATH or"),
                "{text}"
            );
        }
    }

    #[test]
    fn an_address_is_the_stacks_own_where_no_kernel_has_it() {
        let own =
            |given, link| Network::own(given, &Link::parse(link).unwrap()).map_err(|error| error.to_string());
        assert_eq!(own(None, "xdp"), Ok(Network::default()));
        assert_eq!(own(Some("10.77.0.3/24"), "tap:t0").unwrap().to_string(), "10.77.0.3/24");
        for link in ["xdp", "kernel"] {
            let text = own(Some("10.77.0.3/24"), link).unwrap_err();
            assert!(text.starts_with("--address 10.77.0.3/24: expected --link memif:PATH"), "{text}");
        }
    }
}

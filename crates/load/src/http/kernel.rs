//! Connections over kernel sockets: one epoll instance a thread, edge-triggered.
//!
//! A keep-alive request costs two system calls, send and recv, and a share of an epoll_wait;
//! epoll is told of a socket once, when it is made.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::party::{ClientStack, Party, Servers, Why};
use super::reason;
use super::tally::{Outcome, Shared};
use crate::error::Error;
use crate::readiness;

const EVENTS_AT_ONCE: usize = 512;
const RECEIVE_BUFFER: usize = 128 * 1024;
/// A sleeping thread wakes up late: so long before something is due it looks at the clock instead.
const AWAKE_NS: u64 = 150_000;

/// How many local ports the kernel hands out by itself.
pub(super) fn ephemeral_ports() -> usize {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
    let count = range.and_then(|range| {
        let mut ends = range.split_ascii_whitespace().map(str::parse::<usize>);
        let (low, high) = (ends.next()?.ok()?, ends.next()?.ok()?);
        high.checked_sub(low).map(|span| span + 1)
    });
    count.unwrap_or(28_232)
}

/// One socket's place.
#[derive(Debug, Default)]
struct Slot {
    /// `None`: the slot is free.
    socket: Option<OwnedFd>,
    /// How many sockets have had this place: epoll may still tell of the one before.
    generation: u32,
    connected: bool,
    /// Stands in `Sockets::unsent`.
    queued: bool,
    /// Stream bytes that are out, and that may go out.
    sent: u64,
    promised: u64,
}

/// A thread's sockets.
#[derive(Debug)]
pub(super) struct Sockets {
    epoll: OwnedFd,
    servers: Servers,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Slots with something to send.
    unsent: Vec<usize>,
    /// What nobody can go on without was refused.
    failed: Option<Error>,
}

impl Sockets {
    /// No socket yet.
    pub(super) fn new(servers: Servers) -> Result<Sockets, Error> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| Error::machine("making an epoll instance", error))?;
        let (slots, free, unsent) = Default::default();
        Ok(Sockets { epoll, servers, slots, free, unsent, failed: None })
    }

    fn drop_socket(&mut self, slot: usize) {
        let place = &mut self.slots[slot];
        if place.socket.take().is_some() {
            place.generation += 1;
            self.free.push(slot);
        }
    }

    fn begin(&mut self, slot: usize, server: SocketAddr) -> Result<OwnedFd, Why> {
        let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None).map_err(|error| {
            self.failed.get_or_insert(Error::machine("making a socket", error));
            why(error)
        })?;
        if self.servers.no_delay {
            let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
        }
        if let Some(sources) = &mut self.servers.sources {
            rustix::net::bind(&socket, &SocketAddr::new(sources.take(), 0)).map_err(why)?;
        }
        match rustix::net::connect(&socket, &server) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(error) => return Err(why(error)),
        }
        let interest = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let data = u64::from(self.slots[slot].generation) << 32 | slot as u64;
        epoll::add(&self.epoll, &socket, EventData::new_u64(data), interest).map_err(|error| {
            self.failed.get_or_insert(Error::machine("watching a socket", error));
            why(error)
        })?;
        Ok(socket)
    }
}

impl ClientStack for Sockets {
    const GONE_AT_ONCE: bool = true;

    fn connect(&mut self, server: usize) -> Result<usize, Why> {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        match self.begin(slot, self.servers.addresses[server]) {
            Ok(socket) => {
                let Slot { generation, queued, .. } = self.slots[slot];
                self.slots[slot] = Slot { socket: Some(socket), generation, queued, ..Slot::default() };
                Ok(slot)
            }
            Err(why) => {
                self.free.push(slot);
                Err(why)
            }
        }
    }

    #[inline]
    fn send(&mut self, slot: usize, bytes: usize) {
        let place = &mut self.slots[slot];
        place.promised += bytes as u64;
        if !place.queued {
            place.queued = true;
            self.unsent.push(slot);
        }
    }

    fn close(&mut self, slot: usize) {
        self.drop_socket(slot);
    }

    fn reset(&mut self, slot: usize) {
        if let Some(socket) = &self.slots[slot].socket {
            // Closing then sends a RST, and there is no TIME-WAIT.
            let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
        }
        self.drop_socket(slot);
    }

    fn consumed(&mut self, slot: usize, bytes: usize) {
        let mut dropped = [0; 4096];
        if let Some(socket) = &self.slots[slot].socket {
            // Nothing there, or an error: epoll tells of both.
            let _ = rustix::net::recv(socket, &mut dropped[..bytes.min(4096)], RecvFlags::empty());
        }
    }
}

fn why(error: Errno) -> Why {
    match error {
        Errno::CONNREFUSED => Why::Refused,
        Errno::CONNRESET => Why::Reset,
        Errno::TIMEDOUT => Why::TimedOut,
        _ => Why::Other(reason::of_errno(error)),
    }
}

/// One thread's sockets and the party whose connections they are.
pub(super) struct Shard<'a, P> {
    sockets: Sockets,
    party: P,
    clock: &'a Shared,
    buffer: Vec<u8>,
}

impl<'a, P: Party> Shard<'a, P> {
    pub(super) fn new(sockets: Sockets, party: P, clock: &'a Shared) -> Shard<'a, P> {
        Shard { sockets, party, clock, buffer: vec![0; RECEIVE_BUFFER] }
    }

    /// Until the run is over; then all connections are reset.
    pub(super) fn run(mut self) -> Result<Outcome, Error> {
        // Timers then fire when they should, not up to 50 µs later (prctl(2), PR_SET_TIMERSLACK).
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let mut events = Vec::with_capacity(EVENTS_AT_ONCE);
        loop {
            let now_ns = self.clock.now_ns();
            self.party.tell(now_ns);
            if !self.party.goes_on() {
                break;
            }
            self.proceed()?;
            let busy_until_ns = self.clock.now_ns();
            if !events.is_empty() {
                self.party.was_busy(busy_until_ns - now_ns);
            }
            self.wait(&mut events, busy_until_ns)?;
            let woken_ns = self.clock.now_ns();
            for event in &events {
                let (slot, generation) = (event.data.u64() as u32 as usize, (event.data.u64() >> 32) as u32);
                if self.sockets.slots[slot].generation != generation {
                    continue;
                }
                self.party.tell(self.clock.now_ns());
                self.handle(slot, event.flags);
                self.proceed()?;
            }
            if !events.is_empty() {
                self.party.was_busy(self.clock.now_ns() - woken_ns);
            }
        }
        self.party.stop(self.clock.now_ns(), &mut self.sockets);
        Ok(self.party.into_outcome(BTreeMap::new()))
    }

    fn wait(&mut self, events: &mut Vec<epoll::Event>, now_ns: u64) -> Result<(), Error> {
        let wait_ns = self.party.next_ns().saturating_sub(now_ns).saturating_sub(AWAKE_NS).min(1 << 60);
        readiness::wait(&self.sockets.epoll, events, wait_ns)
    }

    /// What the party wants done, and what it has to send.
    #[inline]
    fn proceed(&mut self) -> Result<(), Error> {
        loop {
            self.party.proceed(&mut self.sockets)?;
            if let Some(error) = self.sockets.failed.take() {
                return Err(error);
            }
            if self.sockets.unsent.is_empty() {
                return Ok(());
            }
            let mut failed = false;
            while let Some(slot) = self.sockets.unsent.pop() {
                self.sockets.slots[slot].queued = false;
                if let Err(why) = self.send(slot) {
                    self.fail(slot, why);
                    failed = true;
                }
            }
            let clock = self.clock;
            self.party.flushed(|| clock.now_ns());
            if !failed {
                return Ok(());
            }
        }
    }

    fn fail(&mut self, slot: usize, why: Why) {
        self.party.failed(slot, why);
        self.sockets.drop_socket(slot);
        self.party.released(slot);
    }

    fn handle(&mut self, slot: usize, flags: EventFlags) {
        if !self.sockets.slots[slot].connected {
            if flags.intersects(EventFlags::ERR | EventFlags::HUP)
                && let Some(error) = self.socket_error(slot)
            {
                self.fail(slot, why(error));
                return;
            }
            if !flags.contains(EventFlags::OUT) {
                return;
            }
            self.sockets.slots[slot].connected = true;
            self.party.opened(slot);
        }
        let place = &mut self.sockets.slots[slot];
        if place.sent < place.promised && !place.queued {
            place.queued = true;
            self.sockets.unsent.push(slot);
        }
        let readable = EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
        if flags.intersects(readable) {
            self.receive(slot, flags);
        }
    }

    fn socket_error(&self, slot: usize) -> Option<Errno> {
        let socket = self.sockets.slots[slot].socket.as_ref()?;
        match rustix::net::sockopt::socket_error(socket) {
            Ok(Ok(())) => None,
            Ok(Err(error)) | Err(error) => Some(error),
        }
    }

    /// Sends what was promised, as much as the socket takes; epoll tells when it takes more.
    #[inline]
    fn send(&mut self, slot: usize) -> Result<(), Why> {
        let place = &mut self.sockets.slots[slot];
        let Some(socket) = &place.socket else {
            return Ok(());
        };
        while place.sent < place.promised {
            let bytes = self.party.stream(slot, place.sent);
            let bytes = &bytes[..bytes.len().min((place.promised - place.sent) as usize)];
            match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    place.sent += sent as u64;
                    self.party.acknowledged(slot, place.sent);
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(_) => return Err(Why::Write),
            }
        }
        Ok(())
    }

    /// Reads what is there. `flags` is what epoll says; it may have seen the server's FIN already.
    #[inline]
    fn receive(&mut self, slot: usize, flags: EventFlags) {
        let ended = flags.contains(EventFlags::RDHUP);
        if !self.party.reads() {
            if let Some(error) = flags.contains(EventFlags::ERR).then(|| self.socket_error(slot)).flatten() {
                self.fail(slot, why(error));
            } else if ended {
                self.party.ended(slot);
            }
            return;
        }
        loop {
            let Some(socket) = &self.sockets.slots[slot].socket else {
                return;
            };
            match rustix::net::recv(socket, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((0, _)) => return self.party.ended(slot),
                Ok((received, _)) => {
                    self.party.received(slot, &self.buffer[..received]);
                    if received < self.buffer.len() {
                        // All that was there. A FIN seen before this read has nothing behind it.
                        if ended {
                            self.party.ended(slot);
                        }
                        return;
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(error) => {
                    let why = why(error);
                    return self.fail(slot, why);
                }
            }
        }
    }
}

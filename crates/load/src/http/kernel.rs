//! Connections over kernel sockets: one epoll instance a thread, edge-triggered.
//!
//! A keep-alive request costs two system calls, send and recv, and a share of an epoll_wait;
//! epoll is told of a socket once, when it is made.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::Settings;
use super::run::{RETRY_NS, Ramp, Worker};
use super::tally::{Outcome, Tally};
use crate::error::Error;
use crate::record::Failure;
use crate::response::{HeadCache, Malformed, Parser, Response};

const EVENTS_AT_ONCE: usize = 512;
const RECEIVE_BUFFER: usize = 128 * 1024;

/// One worker a thread.
pub(super) fn workers(
    settings: &Settings,
    server: SocketAddr,
    local: SocketAddr,
) -> Result<Vec<KernelWorker>, Error> {
    settings.check_ports(ephemeral_ports(local.ip()))?;
    let request: Arc<[u8]> = settings.request().into();
    let worker = |index| {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| Error::machine("making an epoll instance", error))?;
        Ok(KernelWorker {
            epoll,
            server,
            request: request.clone(),
            connections: settings.connections_of(index),
            timeout_ns: u64::try_from(settings.timeout.as_nanos()).unwrap_or(u64::MAX),
        })
    };
    (0..settings.threads).map(worker).collect()
}

/// How many local ports the kernel hands out by itself.
fn ephemeral_ports(_local: IpAddr) -> usize {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
    let count = range.and_then(|range| {
        let mut ends = range.split_ascii_whitespace().map(str::parse::<usize>);
        let (low, high) = (ends.next()?.ok()?, ends.next()?.ok()?);
        high.checked_sub(low).map(|span| span + 1)
    });
    count.unwrap_or(28_232)
}

/// One thread's connections before they run.
pub(super) struct KernelWorker {
    epoll: OwnedFd,
    server: SocketAddr,
    request: Arc<[u8]>,
    connections: usize,
    timeout_ns: u64,
}

impl Worker for KernelWorker {
    fn run(self, tally: Tally<'_>) -> Result<Outcome, Error> {
        let slot =
            || Slot { socket: None, phase: Phase::Idle, sent: 0, parser: Parser::new(), started_ns: 0 };
        let slots = (0..self.connections).map(|_| slot()).collect();
        let shard = Shard {
            slots,
            worker: self,
            cache: HeadCache::new(),
            buffer: vec![0; RECEIVE_BUFFER],
            retries: VecDeque::new(),
            connecting: 0,
            busy: 0,
            tally,
        };
        shard.run()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No socket: not yet started, waiting to try again, or out of requests.
    Idle,
    Connecting,
    /// The request is not all out.
    Sending,
    /// The response is not all in.
    Receiving,
    /// The response was the last; the server closes first, so that TIME-WAIT is not ours.
    Closing,
}

struct Slot {
    /// Set in every phase but `Idle`.
    socket: Option<OwnedFd>,
    phase: Phase,
    /// Bytes of the request that are out.
    sent: usize,
    parser: Parser,
    /// Start of the request, and of its connection where it has one of its own.
    started_ns: u64,
}

struct Shard<'a> {
    worker: KernelWorker,
    slots: Vec<Slot>,
    cache: HeadCache,
    buffer: Vec<u8>,
    /// When to try which slot again, soonest first.
    retries: VecDeque<(u64, usize)>,
    connecting: usize,
    /// Slots that are not `Idle`.
    busy: usize,
    tally: Tally<'a>,
}

impl Shard<'_> {
    fn run(mut self) -> Result<Outcome, Error> {
        let mut events = Vec::with_capacity(EVENTS_AT_ONCE);
        let mut ramp = Ramp::new(self.slots.len());
        let mut begun = 0;
        let scan_every_ns = (self.worker.timeout_ns / 8).clamp(5_000_000, 250_000_000);
        let mut next_scan_ns = scan_every_ns;
        loop {
            let now_ns = self.tally.now_ns();
            if !self.tally.goes_on(now_ns) {
                break;
            }
            for _ in 0..ramp.begin(now_ns, self.connecting) {
                self.start(begun, now_ns)?;
                begun += 1;
            }
            while let Some((due_ns, index)) = self.retries.front().copied()
                && due_ns <= now_ns
            {
                self.retries.pop_front();
                self.start(index, now_ns)?;
            }
            if now_ns >= next_scan_ns {
                self.fail_the_late(now_ns)?;
                next_scan_ns = now_ns + scan_every_ns;
            }
            if self.busy == 0 && self.retries.is_empty() && ramp.left == 0 {
                break;
            }
            let retry_ns = self.retries.front().map_or(u64::MAX, |(due_ns, _)| *due_ns);
            let until_ns = next_scan_ns.min(retry_ns).min(ramp.next_ns()).min(self.tally.next_change_ns());
            let wait_ns = until_ns.saturating_sub(now_ns);
            let timeout = Timespec {
                tv_sec: (wait_ns / 1_000_000_000) as i64,
                tv_nsec: (wait_ns % 1_000_000_000) as _,
            };
            events.clear();
            match epoll::wait(&self.worker.epoll, spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(Error::machine("waiting for sockets", error)),
            }
            for event in &events {
                let (index, flags) = (event.data.u64() as usize, event.flags);
                self.handle(index, flags)?;
            }
        }
        self.tally.stop(self.tally.now_ns());
        for index in 0..self.slots.len() {
            self.close(index);
        }
        Ok(self.tally.into_outcome(BTreeMap::new()))
    }

    /// Begins a connection and its first request, if there is a request left.
    fn start(&mut self, index: usize, now_ns: u64) -> Result<(), Error> {
        if !self.tally.take_ticket() {
            return Ok(());
        }
        let family = if self.worker.server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)
            .map_err(|error| Error::machine("making a socket", error))?;
        let slot = &mut self.slots[index];
        slot.started_ns = now_ns;
        match rustix::net::connect(&socket, &self.worker.server) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(error) => {
                self.tally.fail(connect_failure(error), now_ns);
                self.retries.push_back((now_ns + RETRY_NS, index));
                return Ok(());
            }
        }
        let interest = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.worker.epoll, &socket, EventData::new_u64(index as u64), interest)
            .map_err(|error| Error::machine("watching a socket", error))?;
        slot.socket = Some(socket);
        slot.phase = Phase::Connecting;
        slot.sent = 0;
        slot.parser = Parser::new();
        self.connecting += 1;
        self.busy += 1;
        Ok(())
    }

    fn close(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        match slot.phase {
            Phase::Idle => return,
            Phase::Connecting => self.connecting -= 1,
            _ => self.tally.closed(),
        }
        slot.socket = None;
        slot.phase = Phase::Idle;
        self.busy -= 1;
    }

    /// Closes, and begins the next request over a new connection.
    fn reopen(&mut self, index: usize) -> Result<(), Error> {
        self.close(index);
        let now_ns = self.tally.now_ns();
        self.start(index, now_ns)
    }

    fn fail_connect(&mut self, index: usize, failure: Failure) {
        let started_ns = self.slots[index].started_ns;
        self.tally.fail(failure, started_ns);
        self.close(index);
        self.retries.push_back((self.tally.now_ns() + RETRY_NS, index));
    }

    fn fail(&mut self, index: usize, failure: Failure) -> Result<(), Error> {
        let started_ns = self.slots[index].started_ns;
        self.tally.fail(failure, started_ns);
        self.reopen(index)
    }

    fn fail_the_late(&mut self, now_ns: u64) -> Result<(), Error> {
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if now_ns.saturating_sub(slot.started_ns) < self.worker.timeout_ns {
                continue;
            }
            match slot.phase {
                Phase::Idle => {}
                Phase::Connecting => self.fail_connect(index, Failure::ConnectTimeout),
                Phase::Sending | Phase::Receiving => self.fail(index, Failure::Timeout)?,
                Phase::Closing => self.reopen(index)?,
            }
        }
        Ok(())
    }

    fn handle(&mut self, index: usize, flags: EventFlags) -> Result<(), Error> {
        if self.slots[index].phase == Phase::Connecting {
            if flags.intersects(EventFlags::ERR | EventFlags::HUP) {
                let error = self.socket_error(index);
                if let Some(error) = error {
                    self.fail_connect(index, connect_failure(error));
                    return Ok(());
                }
            }
            if !flags.contains(EventFlags::OUT) {
                return Ok(());
            }
            self.connected(index);
        }
        if self.slots[index].phase == Phase::Sending && !self.send(index)? {
            return Ok(());
        }
        let readable = EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
        if flags.intersects(readable) {
            self.receive(index, flags.contains(EventFlags::RDHUP))?;
        }
        Ok(())
    }

    fn socket_error(&self, index: usize) -> Option<Errno> {
        let socket = self.slots[index].socket.as_ref()?;
        match rustix::net::sockopt::socket_error(socket) {
            Ok(Ok(())) => None,
            Ok(Err(error)) | Err(error) => Some(error),
        }
    }

    fn connected(&mut self, index: usize) {
        let now_ns = self.tally.now_ns();
        let slot = &mut self.slots[index];
        slot.phase = Phase::Sending;
        self.connecting -= 1;
        self.tally.opened(now_ns.saturating_sub(slot.started_ns));
        if !self.tally.close() {
            slot.started_ns = now_ns;
        }
    }

    /// Sends what is left of the request. False if the connection failed.
    fn send(&mut self, index: usize) -> Result<bool, Error> {
        let slot = &mut self.slots[index];
        let Some(socket) = &slot.socket else {
            return Ok(false);
        };
        while slot.sent < self.worker.request.len() {
            match rustix::net::send(socket, &self.worker.request[slot.sent..], SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    slot.sent += sent;
                    self.tally.record.bytes_out += sent as u64;
                }
                Err(Errno::AGAIN) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.fail(index, Failure::Write)?;
                    return Ok(false);
                }
            }
        }
        slot.phase = Phase::Receiving;
        Ok(true)
    }

    /// Reads what is there. `ended`: epoll has seen the server's FIN, or worse, already.
    fn receive(&mut self, index: usize, ended: bool) -> Result<(), Error> {
        loop {
            let slot = &mut self.slots[index];
            let Some(socket) = &slot.socket else {
                return Ok(());
            };
            let received = match rustix::net::recv(socket, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((received, _)) => received,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(_) if slot.phase == Phase::Closing => return self.reopen(index),
                Err(_) => return self.fail(index, Failure::Read),
            };
            if received == 0 {
                return self.server_closed(index);
            }
            self.tally.record.bytes_in += received as u64;
            if slot.phase == Phase::Closing {
                // The response is complete and counted; what comes after it is not ours.
                return self.reopen(index);
            }
            let data = &self.buffer[..received];
            match slot.parser.feed(data, &mut self.cache) {
                Ok((_, None)) => {}
                Ok((used, Some(_))) if used < received => {
                    let started_ns = slot.started_ns;
                    self.tally.fail_malformed(Malformed::Unsolicited, started_ns);
                    return self.reopen(index);
                }
                Ok((_, Some(response))) => {
                    self.complete(index, response, ended)?;
                    // Whatever comes next is news, and epoll will tell.
                    return Ok(());
                }
                Err(malformed) => {
                    let started_ns = slot.started_ns;
                    self.tally.fail_malformed(malformed, started_ns);
                    return self.reopen(index);
                }
            }
            if received < self.buffer.len() {
                // All that was there. A FIN seen before this read has nothing behind it.
                return if ended { self.server_closed(index) } else { Ok(()) };
            }
        }
    }

    fn complete(&mut self, index: usize, response: Response, ended: bool) -> Result<(), Error> {
        let now_ns = self.tally.now_ns();
        let slot = &mut self.slots[index];
        self.tally.complete(response, slot.started_ns, now_ns);
        if slot.phase == Phase::Sending {
            // Answered before the request was all out: not a connection to go on with.
            return self.reopen(index);
        }
        if self.tally.close() || !response.keep_alive {
            if response.keep_alive || ended {
                return self.reopen(index);
            }
            slot.phase = Phase::Closing;
            return Ok(());
        }
        if ended {
            return self.reopen(index);
        }
        if !self.tally.take_ticket() {
            self.close(index);
            return Ok(());
        }
        slot.started_ns = now_ns;
        slot.sent = 0;
        slot.phase = Phase::Sending;
        self.send(index)?;
        Ok(())
    }

    fn server_closed(&mut self, index: usize) -> Result<(), Error> {
        let slot = &mut self.slots[index];
        if slot.phase == Phase::Closing {
            return self.reopen(index);
        }
        match slot.parser.finish() {
            Some(response) => self.complete(index, response, true),
            None => self.fail(index, Failure::ClosedEarly),
        }
    }
}

fn connect_failure(error: Errno) -> Failure {
    match error {
        Errno::CONNREFUSED => Failure::ConnectRefused,
        Errno::CONNRESET => Failure::ConnectReset,
        Errno::TIMEDOUT => Failure::ConnectTimeout,
        _ => Failure::ConnectOther,
    }
}

//! Connections over kernel sockets: one listener and one epoll instance a thread.
//!
//! Epoll is told of a connection once (edge-triggered); a keep-alive request costs a recv, a send, and a share of an
//! epoll_wait.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, sockopt};

use super::run::{Outcome, Turn};
use super::session::{Ending, Session, Site};
use crate::error::Error;
use crate::readiness;

const EVENTS_AT_ONCE: usize = 512;
const BUFFER: usize = 128 * 1024;
/// Connections accepted before those that are open have their turn again.
const ACCEPTS_AT_ONCE: usize = 64;
/// Buffers sent to one connection before others have their turn.
const BUFFERS_AT_ONCE: usize = 16;
const BACKLOG: i32 = 65_535;
/// The listener's place in epoll's answers.
const LISTENER: u64 = u64::MAX;
/// How long a client may take to close after our FIN.
const LINGER_MS: u32 = 5_000;
/// The longest sleep: whether to go on, and who is late, is looked at so often.
const NAP_MS: u64 = 50;

/// Binds and listens. `shared`: others of this process do, too.
pub(super) fn listen(address: SocketAddr, shared: bool) -> Result<(OwnedFd, SocketAddr), Error> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let listening = rustix::net::socket_with(family, SocketType::STREAM, flags, None).and_then(|socket| {
        sockopt::set_socket_reuseaddr(&socket, true)?;
        sockopt::set_socket_reuseport(&socket, shared)?;
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, BACKLOG)?;
        let bound = rustix::net::getsockname(&socket)?;
        Ok((socket, bound.try_into().unwrap_or(address)))
    });
    listening.map_err(|error| {
        let what = format!("listening at {address}");
        match error {
            Errno::ADDRINUSE => Error::machine(what, "another program does; see: ss -ltnp, or choose --port"),
            Errno::ADDRNOTAVAIL => Error::machine(what, "no interface has this address; see: ip address"),
            Errno::ACCESS => Error::machine(what, "ports below 1024 need root: choose another with --port"),
            error => Error::machine(what, error),
        }
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Free,
    Open,
    /// We have shut down: what still comes is dropped until the client closes, too (RFC 9112 section 9.6).
    Lingering,
}

struct Connection {
    session: Session,
    /// Set in every phase but `Free`.
    socket: Option<OwnedFd>,
    /// Bytes of the session's stream that the kernel has taken.
    sent: u64,
    /// When the client last did something that counts as progress, ms after the start.
    since_ms: u32,
    phase: Phase,
    /// The client has closed.
    ended: bool,
    /// Stands in `Worker::again`.
    again: bool,
}

/// What a connection's turn came to.
enum Progress {
    /// Epoll will tell when there is more.
    Waits,
    /// There is more to do, but others come first.
    Again,
    Over,
}

/// One thread's listener and connections.
pub(super) struct Worker {
    epoll: OwnedFd,
    listener: OwnedFd,
    /// Epoll tells of the listener: not while there are no descriptors, or too many connections.
    accepting: bool,
    connections: Vec<Connection>,
    free: Vec<usize>,
    limit: usize,
    again: VecDeque<usize>,
    buffer: Vec<u8>,
    site: Site,
    timeout_ms: u32,
    now_ms: u32,
    next_scan_ms: u32,
}

impl Worker {
    pub(super) fn new(listener: OwnedFd, site: Site, limit: usize, timeout_ms: u32) -> Result<Worker, Error> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| Error::machine("making an epoll instance", error))?;
        Ok(Worker {
            epoll,
            listener,
            accepting: false,
            connections: Vec::new(),
            free: Vec::new(),
            limit,
            again: VecDeque::new(),
            buffer: vec![0; BUFFER],
            site,
            timeout_ms,
            now_ms: 0,
            next_scan_ms: 0,
        })
    }

    /// Serves until told to stop; then every connection is closed.
    pub(super) fn run(mut self, turn: &mut Turn) -> Result<Outcome, Error> {
        let mut events = Vec::with_capacity(EVENTS_AT_ONCE);
        loop {
            let now_ns = turn.now_ns();
            if !turn.goes_on(now_ns, &self.site.counts) {
                break;
            }
            self.site.now_ns = now_ns;
            self.now_ms = (now_ns / 1_000_000) as u32;
            if self.now_ms >= self.next_scan_ms {
                self.end_the_late();
                self.next_scan_ms = self.now_ms + (self.timeout_ms.min(LINGER_MS) / 8).max(1);
            }
            self.accept_again()?;
            let wait_ms = if self.again.is_empty() { NAP_MS } else { 0 };
            readiness::wait(&self.epoll, &mut events, wait_ms * 1_000_000)?;
            self.site.now_ns = turn.now_ns();
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept()?,
                    index => self.attend(index as usize),
                }
            }
            for _ in 0..self.again.len() {
                if let Some(index) = self.again.pop_front() {
                    self.connections[index].again = false;
                    self.attend(index);
                }
            }
        }
        Ok(Outcome { counts: self.site.counts, counters: BTreeMap::new() })
    }

    fn open(&self) -> usize {
        self.connections.len() - self.free.len()
    }

    fn accept_again(&mut self) -> Result<(), Error> {
        if !self.accepting && self.open() < self.limit {
            epoll::add(&self.epoll, &self.listener, EventData::new_u64(LISTENER), EventFlags::IN)
                .map_err(|error| Error::machine("watching the listener", error))?;
            self.accepting = true;
        }
        Ok(())
    }

    fn stop_accepting(&mut self) -> Result<(), Error> {
        self.accepting = false;
        epoll::delete(&self.epoll, &self.listener)
            .map_err(|error| Error::machine("leaving the listener alone", error))
    }

    fn accept(&mut self) -> Result<(), Error> {
        for _ in 0..ACCEPTS_AT_ONCE {
            if self.open() >= self.limit {
                return self.stop_accepting();
            }
            match rustix::net::accept_with(&self.listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(socket) => self.adopt(socket),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => {
                    // No descriptor, or no memory: those that wait must wait until some are free.
                    self.site.counts.accept_failed += 1;
                    std::thread::sleep(Duration::from_millis(1));
                    return self.stop_accepting();
                }
            }
        }
        Ok(())
    }

    fn adopt(&mut self, socket: OwnedFd) {
        let index = self.free.pop().unwrap_or(self.connections.len());
        let interest = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let watched = sockopt::set_tcp_nodelay(&socket, true)
            .and_then(|()| epoll::add(&self.epoll, &socket, EventData::new_u64(index as u64), interest));
        let connection = Connection {
            session: Session::new(),
            socket: Some(socket),
            sent: 0,
            since_ms: self.now_ms,
            phase: Phase::Open,
            ended: false,
            again: false,
        };
        if index < self.connections.len() {
            self.connections[index] = connection;
        } else {
            self.connections.push(connection);
        }
        self.site.counts.accepted += 1;
        if watched.is_err() {
            self.site.counts.failed += 1;
            self.close(index);
        }
    }

    /// Gives a connection up. What it owes to the client goes on in the kernel.
    fn close(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if connection.phase != Phase::Free {
            connection.socket = None;
            connection.phase = Phase::Free;
            self.free.push(index);
            self.site.counts.closed += 1;
        }
    }

    /// As [`Worker::close`], with a RST.
    fn reset(&mut self, index: usize) {
        if let Some(socket) = &self.connections[index].socket {
            let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
        }
        self.close(index);
    }

    fn attend(&mut self, index: usize) {
        match self.go_on(index) {
            Ok(Progress::Waits) => {}
            Ok(Progress::Again) => {
                let connection = &mut self.connections[index];
                if !connection.again {
                    connection.again = true;
                    self.again.push_back(index);
                }
            }
            Ok(Progress::Over) => self.close(index),
            Err(_) => {
                self.site.counts.failed += 1;
                self.close(index);
            }
        }
    }

    /// Sends what is due, then reads on, until one of them has to wait.
    fn go_on(&mut self, index: usize) -> Result<Progress, Errno> {
        for _ in 0..BUFFERS_AT_ONCE {
            if !self.send(index)? {
                return Ok(Progress::Waits);
            }
            let connection = &mut self.connections[index];
            if connection.sent < connection.session.end() {
                continue;
            }
            if connection.session.is_blocked() {
                connection.session.resume(&mut self.site);
                continue;
            }
            match connection.session.ending() {
                Ending::Reset => {
                    self.reset(index);
                    return Ok(Progress::Waits);
                }
                Ending::Close if connection.phase == Phase::Open => {
                    connection.phase = Phase::Lingering;
                    if let Some(socket) = &connection.socket {
                        rustix::net::shutdown(socket, Shutdown::Write)?;
                    }
                }
                _ => {}
            }
            if connection.ended {
                return Ok(Progress::Over);
            }
            if !self.read(index)? {
                return Ok(Progress::Waits);
            }
        }
        Ok(Progress::Again)
    }

    /// Sends one buffer of what is due. False if the kernel takes no more.
    fn send(&mut self, index: usize) -> Result<bool, Errno> {
        let connection = &mut self.connections[index];
        let due = (connection.session.end() - connection.sent).min(BUFFER as u64) as usize;
        let (1.., Some(socket)) = (due, &connection.socket) else {
            return Ok(true);
        };
        connection.session.fill(connection.sent, &mut self.buffer[..due], &self.site.template);
        let taken = loop {
            match rustix::net::send(socket, &self.buffer[..due], SendFlags::NOSIGNAL) {
                Ok(taken) => break taken,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error),
            }
        };
        connection.sent += taken as u64;
        connection.session.acknowledged(connection.sent);
        connection.since_ms = self.now_ms;
        self.site.counts.bytes_out += taken as u64;
        Ok(true)
    }

    /// Reads one buffer. False if there is nothing more now.
    fn read(&mut self, index: usize) -> Result<bool, Errno> {
        let connection = &mut self.connections[index];
        let Some(socket) = &connection.socket else {
            return Ok(false);
        };
        let received = match rustix::net::recv(socket, &mut self.buffer[..], RecvFlags::empty()) {
            Ok((received, _)) => received,
            Err(Errno::INTR) => return Ok(true),
            Err(Errno::AGAIN) => return Ok(false),
            Err(error) => return Err(error),
        };
        if received == 0 {
            connection.ended = true;
            if connection.phase == Phase::Open && connection.session.is_cut_short() {
                self.site.counts.cut_short += 1;
            }
            return Ok(true);
        }
        if connection.phase == Phase::Open {
            if !connection.session.is_in_head() {
                connection.since_ms = self.now_ms;
            }
            connection.session.receive(&self.buffer[..received], &mut self.site);
        }
        Ok(true)
    }

    fn end_the_late(&mut self) {
        for index in 0..self.connections.len() {
            let connection = &self.connections[index];
            let still_ms = self.now_ms.saturating_sub(connection.since_ms);
            let session = &connection.session;
            match connection.phase {
                Phase::Open if still_ms > self.timeout_ms && session.is_idle() => {
                    self.site.counts.idle += 1;
                    self.close(index);
                }
                Phase::Open if still_ms > self.timeout_ms => {
                    let reading = session.is_answering();
                    self.site.counts.slow_readers += u64::from(reading);
                    self.site.counts.slow_requests += u64::from(!reading);
                    self.reset(index);
                }
                Phase::Lingering if still_ms > LINGER_MS => self.close(index),
                _ => {}
            }
        }
    }
}

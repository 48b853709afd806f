//! Streams over kernel sockets: one epoll instance a thread, edge-triggered.
//!
//! A player that has no room does not read its socket; the kernel's receive buffer, bounded, then holds the server back.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use super::counts::{Counts, Loss};
use super::player::{Order, Player};
use super::shard::{CONNECTING_AT_ONCE, Route};
use crate::crew::{Outcome, Turn};
use crate::error::Error;
use crate::readiness;

const EVENTS_AT_ONCE: usize = 512;
const BUFFER: usize = 128 * 1024;
/// Buffers read from one stream before others have their turn.
const BUFFERS_AT_ONCE: usize = 4;
/// The longest sleep: new streams are looked for so often.
const NAP_NS: u64 = 5_000_000;

struct Connection {
    socket: OwnedFd,
    connecting: bool,
    /// Bytes of the stream of requests that are promised, and that the kernel has taken.
    promised: u64,
    sent: u64,
    /// There may be something to read.
    readable: bool,
    /// Stands in `KernelPlayers::ready`.
    ready: bool,
}

/// One thread's sockets and streams.
pub(super) struct KernelPlayers {
    epoll: OwnedFd,
    player: Player,
    route: Route,
    wanted: Arc<AtomicU64>,
    connections: Vec<Option<Connection>>,
    /// Streams whose sockets may be read or written without waiting for epoll.
    ready: Vec<usize>,
    buffer: Vec<u8>,
}

impl KernelPlayers {
    pub(super) fn new(player: Player, route: Route, wanted: Arc<AtomicU64>) -> Result<KernelPlayers, Error> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| Error::machine("making an epoll instance", error))?;
        Ok(KernelPlayers {
            epoll,
            player,
            route,
            wanted,
            connections: Vec::new(),
            ready: Vec::new(),
            buffer: vec![0; BUFFER],
        })
    }

    pub(super) fn run(mut self, turn: &mut Turn<Counts>) -> Result<Outcome<Counts>, Error> {
        let mut events = Vec::with_capacity(EVENTS_AT_ONCE);
        loop {
            let now_ns = turn.now_ns();
            if !turn.goes_on(now_ns, &self.player.counts) {
                break;
            }
            self.player.tell(now_ns);
            let wanted = self.wanted.load(Ordering::Relaxed);
            let mut connecting = self.player.counts.standing.connecting;
            while (self.player.len() as u64) < wanted && connecting < CONNECTING_AT_ONCE {
                self.player.open();
                connecting += 1;
            }
            self.carry_out_orders();
            self.move_bytes();
            let wait_ns = if self.ready.is_empty() {
                self.player.next_ns().saturating_sub(now_ns).min(NAP_NS)
            } else {
                0
            };
            readiness::wait(&self.epoll, &mut events, wait_ns)?;
            self.player.tell(turn.now_ns());
            for event in &events {
                let (index, flags) = (event.data.u64() as usize, event.flags);
                self.note(index, flags);
            }
            self.move_bytes();
        }
        // A reset, so that the server holds nothing of ours.
        for index in 0..self.connections.len() {
            self.reset(index);
        }
        Ok(Outcome { counts: self.player.counts, counters: BTreeMap::new() })
    }

    fn carry_out_orders(&mut self) {
        while !self.player.orders.is_empty() {
            for order in std::mem::take(&mut self.player.orders) {
                match order {
                    Order::Connect(index) => {
                        if let Err(error) = self.connect(index) {
                            self.player.broken(index, loss_of(error));
                        }
                    }
                    Order::Send(index, bytes) => {
                        if let Some(connection) = &mut self.connections[index] {
                            connection.promised += bytes as u64;
                        }
                        self.make_ready(index);
                    }
                    Order::Read(index, _) => self.make_ready(index),
                    Order::Close(index) => self.connections[index] = None,
                    Order::Reset(index) => self.reset(index),
                }
            }
        }
    }

    fn make_ready(&mut self, index: usize) {
        if let Some(connection) = &mut self.connections[index]
            && !std::mem::replace(&mut connection.ready, true)
        {
            self.ready.push(index);
        }
    }

    fn reset(&mut self, index: usize) {
        if let Some(connection) = self.connections.get_mut(index).and_then(Option::take) {
            let _ = sockopt::set_socket_linger(&connection.socket, Some(Duration::ZERO));
        }
    }

    fn connect(&mut self, index: usize) -> Result<(), Errno> {
        let server = self.route.server;
        let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        // The kernel doubles it for its own needs (socket(7)).
        sockopt::set_socket_recv_buffer_size(&socket, self.route.window as usize / 2)?;
        if let Some(sources) = &self.route.sources {
            let source = sources.at(self.player.random(sources.len() as u64));
            rustix::net::bind(&socket, &SocketAddr::new(source, 0))?;
        }
        match rustix::net::connect(&socket, &server) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let interest = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, &socket, EventData::new_u64(index as u64), interest)?;
        if index >= self.connections.len() {
            self.connections.resize_with(index + 1, || None);
        }
        self.connections[index] = Some(Connection {
            socket,
            connecting: true,
            promised: 0,
            sent: 0,
            readable: false,
            ready: false,
        });
        Ok(())
    }

    /// Epoll says something of a stream's socket.
    fn note(&mut self, index: usize, flags: EventFlags) {
        let Some(connection) = &mut self.connections[index] else {
            return;
        };
        if connection.connecting {
            let error = match sockopt::socket_error(&connection.socket) {
                Ok(Ok(())) => None,
                Ok(Err(error)) | Err(error) => Some(error),
            };
            if let Some(error) = error {
                return self.give_up(index, error);
            }
            if !flags.contains(EventFlags::OUT) {
                return;
            }
            connection.connecting = false;
            self.player.connected(index);
            self.carry_out_orders();
        }
        if flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR)
            && let Some(connection) = &mut self.connections[index]
        {
            connection.readable = true;
        }
        self.make_ready(index);
    }

    fn give_up(&mut self, index: usize, error: Errno) {
        self.connections[index] = None;
        self.player.broken(index, loss_of(error));
        self.carry_out_orders();
    }

    /// Sends and reads wherever that may be possible.
    fn move_bytes(&mut self) {
        for index in std::mem::take(&mut self.ready) {
            let Some(connection) = &mut self.connections[index] else {
                continue;
            };
            connection.ready = false;
            match self.send(index).and_then(|()| self.read(index)) {
                Ok(again) => {
                    self.carry_out_orders();
                    if again {
                        self.make_ready(index);
                    }
                }
                Err(error) => self.give_up(index, error),
            }
        }
    }

    fn send(&mut self, index: usize) -> Result<(), Errno> {
        while let Some(connection) = &mut self.connections[index]
            && connection.sent < connection.promised
        {
            let due = (connection.promised - connection.sent).min(BUFFER as u64) as usize;
            self.player.fill(index, connection.sent, &mut self.buffer[..due]);
            match rustix::net::send(&connection.socket, &self.buffer[..due], SendFlags::NOSIGNAL) {
                Ok(taken) => connection.sent += taken as u64,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads while the player has room. True if there may be more.
    fn read(&mut self, index: usize) -> Result<bool, Errno> {
        for _ in 0..BUFFERS_AT_ONCE {
            let room = self.player.room(index).min(BUFFER as u64) as usize;
            let Some(connection) = &mut self.connections[index] else {
                return Ok(false);
            };
            if room == 0 || !connection.readable {
                return Ok(false);
            }
            let received =
                match rustix::net::recv(&connection.socket, &mut self.buffer[..room], RecvFlags::empty()) {
                    Ok((received, _)) => received,
                    Err(Errno::INTR) => continue,
                    Err(Errno::AGAIN) => {
                        connection.readable = false;
                        return Ok(false);
                    }
                    Err(error) => return Err(error),
                };
            if received == 0 {
                connection.readable = false;
                self.player.ended(index);
                return Ok(false);
            }
            self.player.received(index, &self.buffer[..received]);
        }
        Ok(true)
    }
}

fn loss_of(error: Errno) -> Loss {
    match error {
        Errno::CONNREFUSED => Loss::Refused,
        Errno::CONNRESET | Errno::PIPE => Loss::Reset,
        Errno::TIMEDOUT => Loss::TimedOut,
        _ => Loss::NoConnection,
    }
}

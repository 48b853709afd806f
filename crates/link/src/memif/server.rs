//! The end that listens.

use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{CWD, readlinkat, unlink};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, bind, connect, listen};

use super::control::{Control, Heard, check_user, make_socket, wait_readable};
use super::message::{Direction, MODE_ETHERNET, Message, VERSION};
use super::ring::{LOG2_RING_SIZE_MAX, ring_len};
use super::{Address, Connection, Pair, RingEnd, RingPlace, Role, Settings, duplicate, name, region};
use crate::Error;

/// Regions of a connection at most.
const REGIONS_MAX: u16 = 16;
/// Handshakes that go on at the same time, at most.
const GREETINGS_MAX: usize = 16;
/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// Listens for clients. It never waits for one of them: a client that stops in the middle holds up nobody.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    address: Address,
    settings: Settings,
    greetings: Vec<Greeting>,
    refused: u64,
    /// It made the socket, and takes its file away in the end.
    made: bool,
}

impl Listener {
    /// Listens at an address. A socket's file that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// [`Error::MemifTaken`] if another process listens there, [`Error::Layout`] for impossible settings, or what the kernel
    /// said.
    pub fn bind(address: &Address, settings: Settings) -> Result<Listener, Error> {
        settings.check()?;
        let place = address.socket_address()?;
        let socket = make_socket()?;
        match bind(&socket, &place) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => {
                if !remove_abandoned(address)? {
                    return Err(Error::MemifTaken(address.to_string()));
                }
                let again = bind(&socket, &place);
                again.map_err(|errno| Error::system("replacing an old memif socket", errno))?;
            }
            Err(errno) => return Err(Error::system("binding a memif socket", errno)),
        }
        listen(&socket, BACKLOG).map_err(|errno| Error::system("listening on a memif socket", errno))?;
        let mut listener = Listener::adopt(socket, address, settings);
        listener.made = true;
        Ok(listener)
    }

    /// Accepts at a socket that another process listens on too: each client is one of theirs.
    #[must_use]
    pub fn adopt(socket: OwnedFd, address: &Address, settings: Settings) -> Listener {
        let address = address.clone();
        Listener { socket, address, settings, greetings: Vec::new(), refused: 0, made: false }
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Handshakes that go on: poll soon.
    #[must_use]
    pub fn is_greeting(&self) -> bool {
        !self.greetings.is_empty()
    }

    /// Whether a client waits to be accepted.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        let mut sockets = [PollFd::new(&self.socket, PollFlags::IN)];
        wait_readable(&mut sockets, Duration::ZERO);
        !sockets[0].revents().is_empty()
    }

    /// Goes on with all handshakes. Returns a connection whose handshake is over, if there is one: call again until there is
    /// none.
    ///
    /// # Errors
    /// What the kernel said about accepting. What is wrong with a client is told to it, and counted.
    pub fn poll(&mut self) -> Result<Option<Connection>, Error> {
        self.accept_all()?;
        for index in 0..self.greetings.len() {
            match self.greetings[index].advance(&self.settings, self.address.id) {
                Progress::Waiting => {}
                Progress::Done(connection) => {
                    self.greetings.swap_remove(index);
                    return Ok(Some(connection));
                }
                Progress::Failed(reason) => {
                    let greeting = self.greetings.swap_remove(index);
                    if let Some(reason) = reason {
                        greeting.control.refuse(reason);
                    }
                    self.refused += 1;
                    return self.poll();
                }
            }
        }
        Ok(None)
    }

    /// Waits for a connection, at most so long.
    ///
    /// # Errors
    /// As [`Listener::poll`].
    pub fn accept(&mut self, patience: Duration) -> Result<Option<Connection>, Error> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(connection) = self.poll()? {
                return Ok(Some(connection));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let mut sockets: Vec<PollFd<'_>> =
                self.descriptors().map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN)).collect();
            // Handshakes that take too long are ended now and then.
            wait_readable(&mut sockets, left.min(PATIENCE));
        }
    }

    /// What to sleep on before the next [`Listener::poll`].
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let greetings = self.greetings.iter().map(|greeting| greeting.control.0.as_fd());
        core::iter::once(self.socket.as_fd()).chain(greetings)
    }

    /// Clients that were turned away.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    fn accept_all(&mut self) -> Result<(), Error> {
        while self.greetings.len() < GREETINGS_MAX {
            match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.greet(socket),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => return Err(Error::system("accepting a memif client", errno)),
            }
        }
        Ok(())
    }

    fn greet(&mut self, socket: OwnedFd) {
        let control = Control(socket);
        if check_user(&self.address, control.0.as_fd()).is_err() {
            control.refuse("another user's program");
            self.refused += 1;
            return;
        }
        let hello = Message::Hello {
            name: name(self.settings.offload).to_owned(),
            min_version: VERSION,
            max_version: VERSION,
            max_region: REGIONS_MAX - 1,
            max_to_client_ring: self.settings.pairs - 1,
            max_to_server_ring: self.settings.pairs - 1,
            max_log2_ring_size: LOG2_RING_SIZE_MAX,
        };
        match control.say(&hello, None) {
            Ok(()) => self.greetings.push(Greeting::new(control)),
            Err(_) => self.refused += 1,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = self.address.path().filter(|_| self.made) {
            let _ = unlink(path);
        }
    }
}

/// Takes away the socket's file if nobody listens there any more: who did was killed. Returns whether it did.
///
/// # Errors
/// What the kernel said.
pub fn remove_abandoned(address: &Address) -> Result<bool, Error> {
    let Some(path) = address.path() else { return Ok(false) };
    if connect(make_socket()?, &address.socket_address()?) != Err(Errno::CONNREFUSED) {
        return Ok(false);
    }
    unlink(path).map_err(|errno| Error::system("removing an old memif socket", errno))?;
    Ok(true)
}

/// A handshake that goes on.
#[derive(Debug)]
struct Greeting {
    control: Control,
    deadline: Instant,
    /// What INIT said.
    peer: Option<String>,
    regions: Vec<(OwnedFd, u64)>,
    /// By index.
    to_server: Vec<RingEnd>,
    to_client: Vec<RingEnd>,
}

enum Progress {
    Waiting,
    Done(Connection),
    /// With what the peer is told, if it is there.
    Failed(Option<&'static str>),
}

impl Greeting {
    fn new(control: Control) -> Greeting {
        Greeting {
            control,
            deadline: Instant::now() + PATIENCE,
            peer: None,
            regions: Vec::new(),
            to_server: Vec::new(),
            to_client: Vec::new(),
        }
    }

    /// Takes what has come.
    fn advance(&mut self, settings: &Settings, id: u32) -> Progress {
        loop {
            let (message, descriptor) = match self.control.hear() {
                Heard::Message(message, descriptor) => (message, descriptor),
                Heard::Nonsense => return Progress::Failed(Some("this is no message of memif")),
                Heard::Gone => return Progress::Failed(None),
                Heard::Nothing if Instant::now() > self.deadline => {
                    return Progress::Failed(Some("the handshake takes too long"));
                }
                Heard::Nothing => return Progress::Waiting,
            };
            let answer = match message {
                Message::Init { version, id: wanted, mode, name } => {
                    self.init(version, mode, wanted == id, name)
                }
                Message::AddRegion { index, size } => self.add_region(index, size, descriptor),
                Message::AddRing { direction, index, region, offset, log2_ring_size } => {
                    let place = RingPlace { region, offset, log2_size: log2_ring_size };
                    self.add_ring(direction, index, place, descriptor, settings)
                }
                Message::Connect { .. } => return self.connect(settings),
                Message::Disconnect { .. } => return Progress::Failed(None),
                Message::Ack | Message::Hello { .. } | Message::Connected { .. } => Err("unexpected message"),
            };
            if let Err(reason) = answer {
                return Progress::Failed(Some(reason));
            }
            if self.control.say(&Message::Ack, None).is_err() {
                return Progress::Failed(None);
            }
        }
    }

    fn init(&mut self, version: u16, mode: u8, found: bool, name: String) -> Result<(), &'static str> {
        if self.peer.is_some() {
            return Err("a second INIT");
        }
        if version != VERSION {
            return Err("incompatible memif version");
        }
        if mode != MODE_ETHERNET {
            return Err("only Ethernet mode is supported");
        }
        if !found {
            return Err("ID not found");
        }
        self.peer = Some(name);
        Ok(())
    }

    fn add_region(&mut self, index: u16, size: u64, descriptor: Option<OwnedFd>) -> Result<(), &'static str> {
        let descriptor = descriptor.ok_or("missing region fd")?;
        if self.peer.is_none() || usize::from(index) != self.regions.len() || index >= REGIONS_MAX {
            return Err("invalid region index");
        }
        region::check(descriptor.as_fd(), size)?;
        self.regions.push((descriptor, size));
        Ok(())
    }

    fn add_ring(
        &mut self,
        direction: Direction,
        index: u16,
        place: RingPlace,
        descriptor: Option<OwnedFd>,
        settings: &Settings,
    ) -> Result<(), &'static str> {
        let interrupt = descriptor.ok_or("missing interrupt fd")?;
        if !is_eventfd(interrupt.as_fd()) {
            return Err("the interrupt fd is no eventfd");
        }
        let (_, size) = self.regions.get(usize::from(place.region)).ok_or("invalid region index")?;
        if place.log2_size > LOG2_RING_SIZE_MAX {
            return Err("invalid ring size");
        }
        let end = u64::from(place.offset) + ring_len(place.log2_size) as u64;
        if end > *size || !place.offset.is_multiple_of(8) {
            return Err("invalid ring offset");
        }
        let rings = match direction {
            Direction::ToServer => &mut self.to_server,
            Direction::ToClient => &mut self.to_client,
        };
        if usize::from(index) != rings.len() || index >= settings.pairs {
            return Err("invalid ring index");
        }
        rings.push(RingEnd { place, interrupt, buffers: None });
        Ok(())
    }

    fn connect(&mut self, settings: &Settings) -> Progress {
        let Some(peer) = self.peer.take() else {
            return Progress::Failed(Some("unexpected message"));
        };
        if self.to_server.is_empty() || self.to_server.len() != self.to_client.len() {
            return Progress::Failed(Some("as many rings each way are needed, one at least"));
        }
        let offload = settings.offload && peer == name(true);
        let rings = self.to_server.drain(..).zip(self.to_client.drain(..));
        let mut pairs = Vec::new();
        for (to_server, to_client) in rings {
            let regions: Result<Vec<_>, Error> =
                (self.regions.iter()).map(|(memory, size)| Ok((duplicate(memory)?, *size))).collect();
            let (Ok(regions), Ok(control)) = (regions, duplicate(&self.control.0)) else {
                return Progress::Failed(Some("out of descriptors"));
            };
            let mtu = settings.mtu;
            pairs.push(Pair { role: Role::Server, regions, to_server, to_client, control, mtu, offload });
        }
        match self.control.say(&Message::Connected { name: name(settings.offload).to_owned() }, None) {
            Ok(()) => Progress::Done(Connection { pairs, peer_name: peer }),
            Err(_) => Progress::Failed(None),
        }
    }
}

/// Whether a peer's descriptor is one that can be written without doing anything else than waking somebody.
pub(super) fn is_eventfd(descriptor: BorrowedFd<'_>) -> bool {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    readlinkat(CWD, path, Vec::new()).is_ok_and(|target| target.as_bytes() == b"anon_inode:[eventfd]")
}

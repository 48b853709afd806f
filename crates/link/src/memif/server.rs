//! The end that listens.

use core::cmp::Reverse;
use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{CWD, readlinkat};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use super::control::{Control, Heard, check_user, credentials, make_socket, wait_readable};
use super::message::{Direction, MODE_ETHERNET, Message, VERSION};
use super::place::{self, SocketFile};
use super::ring::{LOG2_RING_SIZE_MAX, ring_len};
use super::{Address, Connection, Pair, RingEnd, RingPlace, Role, Settings, duplicate, name, region};
use crate::Error;

/// Regions of a connection at most.
const REGIONS_MAX: u16 = 16;
/// Handshakes that go on at the same time, at most: one more takes another's place (see [`Listener::make_room`]).
const GREETINGS_MAX: usize = 64;
/// Clients that one call of `poll` accepts, so that those that talk already are heard in between.
const ACCEPTED_A_CALL: usize = 16;
/// What is said to whom that happens: a client tries again.
pub(super) const BUSY: &str = "too many handshakes at once";
/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Listens for clients. It never waits for one of them: a client that stops in the middle holds up nobody.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    address: Address,
    settings: Settings,
    greetings: Vec<Greeting>,
    refused: u64,
    /// What it made, and takes away in the end.
    _file: Option<SocketFile>,
}

impl Listener {
    /// Listens at an address. A socket's file of the same user's that nobody listens on any more is replaced. The file's mode is
    /// 0660 less the umask: the group may connect only where the umask lets groups write.
    ///
    /// # Errors
    /// [`Error::MemifTaken`] if another process listens there, [`Error::MemifFile`] if something else has that name,
    /// [`Error::Layout`] for impossible settings, or what the kernel said.
    pub fn bind(address: &Address, settings: Settings) -> Result<Listener, Error> {
        settings.check()?;
        let socket = make_socket()?;
        let file = place::listen_at(&socket, address)?;
        Ok(Listener { _file: file, ..Listener::adopt(socket, address, settings) })
    }

    /// Accepts at a socket that another process listens on too: each client is one of theirs.
    #[must_use]
    pub fn adopt(socket: OwnedFd, address: &Address, settings: Settings) -> Listener {
        let address = address.clone();
        Listener { socket, address, settings, greetings: Vec::new(), refused: 0, _file: None }
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
        self.accept_some()?;
        let mut index = 0;
        while let Some(greeting) = self.greetings.get_mut(index) {
            match greeting.advance(&self.settings, self.address.id) {
                Progress::Waiting => index += 1,
                Progress::Done(connection) => {
                    self.greetings.swap_remove(index);
                    return Ok(Some(connection));
                }
                Progress::Failed(reason) => self.turn_away(index, reason),
            }
        }
        Ok(None)
    }

    fn turn_away(&mut self, index: usize, reason: Option<&'static str>) {
        let greeting = self.greetings.swap_remove(index);
        if let Some(reason) = reason {
            greeting.control.refuse(reason);
        }
        self.refused += 1;
    }

    /// Ends a handshake if there is no room for another: one of the user, and then of the process, that has most of them; of
    /// those the one that has said least, and then the oldest. So who opens many and says nothing is in its own way first.
    fn make_room(&mut self) {
        if self.greetings.len() < GREETINGS_MAX {
            return;
        }
        let count = |same: &dyn Fn(&Greeting) -> bool| self.greetings.iter().filter(|one| same(one)).count();
        let blame = |one: &Greeting| {
            let of_user = count(&|other| other.who.0 == one.who.0);
            let of_process = count(&|other| other.who == one.who);
            (of_user, of_process, Reverse(one.heard), Reverse(one.deadline))
        };
        let blamed = (0..self.greetings.len()).max_by_key(|&index| blame(&self.greetings[index]));
        if let Some(index) = blamed {
            self.turn_away(index, Some(BUSY));
        }
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

    fn accept_some(&mut self) -> Result<(), Error> {
        for _ in 0..ACCEPTED_A_CALL {
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
            Ok(()) => {
                self.make_room();
                self.greetings.push(Greeting::new(control));
            }
            Err(_) => self.refused += 1,
        }
    }
}

/// A handshake that goes on.
#[derive(Debug)]
struct Greeting {
    control: Control,
    /// The client's user and process.
    who: (u32, i32),
    deadline: Instant,
    /// Messages that made sense.
    heard: u32,
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
            who: credentials(control.0.as_fd()).map_or((u32::MAX, 0), |peer| (peer.uid, peer.pid)),
            heard: 0,
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
                Message::AddRegion { index, size } => self.add_region(index, size, descriptor, settings),
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
            self.heard += 1;
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

    fn add_region(
        &mut self,
        index: u16,
        size: u64,
        descriptor: Option<OwnedFd>,
        settings: &Settings,
    ) -> Result<(), &'static str> {
        let descriptor = descriptor.ok_or("missing region fd")?;
        if self.peer.is_none() || usize::from(index) != self.regions.len() || index >= REGIONS_MAX {
            return Err("invalid region index");
        }
        let others: u64 = self.regions.iter().map(|(_, size)| size).sum();
        if size > region::memory_max(settings.pairs).saturating_sub(others) {
            return Err("more memory than rings need: 66 MB for each ring pair of the server");
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

//! The end that connects, and owns the memory.

use core::time::Duration;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::control::Control;
use super::message::{Direction, MODE_ETHERNET, Message, VERSION};
use super::region::{self, Region};
use super::ring::{Buffers, ring_len};
use super::server::BUSY;
use super::{Address, Connection, Pair, RingEnd, RingPlace, Role, Settings, duplicate, name};
use crate::Error;

/// Between two tries of a server that has too many clients at once.
const RETRY: Duration = Duration::from_millis(5);
/// Buffers begin at a page.
const PAGE: usize = 4096;

/// Connects to a server, and gives up after `patience`. The connection may have fewer pairs than were wanted.
///
/// # Errors
/// [`Error::MemifConnect`], [`Error::MemifRefused`], [`Error::MemifSilent`], [`Error::MemifGone`], [`Error::MemifProtocol`],
/// [`Error::MemifUser`]; [`Error::Layout`] for settings that do not fit together.
pub fn connect(address: &Address, settings: &Settings, patience: Duration) -> Result<Connection, Error> {
    settings.check()?;
    let deadline = Instant::now() + patience;
    let (control, result) = loop {
        let control = dial(address, deadline)?;
        let result = shake_hands(&control, address.id, settings, deadline).map_err(|error| match error {
            Error::MemifGone { .. } => control.last_words().map_or(error, Error::MemifRefused),
            error => error,
        });
        match result {
            Err(Error::MemifRefused(reason)) if reason == BUSY && Instant::now() < deadline => {
                std::thread::sleep(RETRY);
            }
            result => break (control, result),
        }
    };
    if let Err(error @ (Error::MemifProtocol(_) | Error::Layout(_))) = &result {
        control.refuse(&error.to_string());
    }
    result
}

fn dial(address: &Address, deadline: Instant) -> Result<Control, Error> {
    loop {
        match Control::connect(address) {
            Err(Error::MemifConnect { errno: Errno::AGAIN, .. }) if Instant::now() < deadline => {
                std::thread::sleep(RETRY);
            }
            result => return result,
        }
    }
}

/// What a server said about itself.
struct Server {
    name: String,
    settings: Settings,
}

fn shake_hands(
    control: &Control,
    id: u32,
    settings: &Settings,
    deadline: Instant,
) -> Result<Connection, Error> {
    let server = await_hello(control, settings, deadline)?;
    let settings = &server.settings;
    let layout = Layout::new(settings)?;
    let memory = region::make(layout.length)?;
    layout.initialize(&memory)?;
    let offload = settings.holds_offload();
    let init = Message::Init { version: VERSION, id, mode: MODE_ETHERNET, name: name(offload).to_owned() };
    tell(control, &init, None, deadline)?;
    let region = Message::AddRegion { index: 0, size: layout.length as u64 };
    tell(control, &region, Some(&memory), deadline)?;
    let mut pairs = Vec::new();
    for index in 0..settings.pairs {
        pairs.push(Pair {
            role: Role::Client,
            regions: vec![(duplicate(&memory)?, layout.length as u64)],
            to_server: layout.ring_end(index, Direction::ToServer)?,
            to_client: layout.ring_end(index, Direction::ToClient)?,
            control: duplicate(&control.0)?,
            mtu: settings.mtu,
            offload: offload && server.name == name(true),
        });
    }
    for direction in [Direction::ToServer, Direction::ToClient] {
        for (index, pair) in (0..).zip(&pairs) {
            let end = if direction == Direction::ToServer { &pair.to_server } else { &pair.to_client };
            let RingPlace { region, offset, log2_size } = end.place;
            let ring = Message::AddRing { direction, index, region, offset, log2_ring_size: log2_size };
            tell(control, &ring, Some(&end.interrupt), deadline)?;
        }
    }
    control.say(&Message::Connect { name: name(offload).to_owned() }, None)?;
    match control.await_message(left(deadline), "CONNECTED")? {
        (Message::Connected { .. }, _) => Ok(Connection { pairs, peer_name: server.name }),
        (other, _) => Err(unexpected(&other, "CONNECTED")),
    }
}

/// Hears what the server can do, and brings the settings down to it.
fn await_hello(control: &Control, settings: &Settings, deadline: Instant) -> Result<Server, Error> {
    let (message, _) = control.await_message(left(deadline), "HELLO")?;
    let Message::Hello {
        name,
        min_version,
        max_version,
        max_to_client_ring,
        max_to_server_ring,
        max_log2_ring_size,
        ..
    } = message
    else {
        return Err(unexpected(&message, "HELLO"));
    };
    if !(min_version..=max_version).contains(&VERSION) {
        let major = |version: u16| version >> 8;
        return Err(Error::MemifProtocol(format!(
            "versions {} to {} of memif, this end speaks 2",
            major(min_version),
            major(max_version)
        )));
    }
    let offered = max_to_client_ring.min(max_to_server_ring).saturating_add(1);
    let settings = Settings {
        pairs: settings.pairs.min(offered),
        log2_ring_size: settings.log2_ring_size.min(max_log2_ring_size),
        ..settings.clone()
    };
    settings.check()?;
    Ok(Server { name, settings })
}

/// Says something that must be answered by an ACK.
fn tell(
    control: &Control,
    message: &Message,
    descriptor: Option<&OwnedFd>,
    deadline: Instant,
) -> Result<(), Error> {
    control.say(message, descriptor.map(AsFd::as_fd))?;
    match control.await_message(left(deadline), message.kind())? {
        (Message::Ack, _) => Ok(()),
        (other, _) => Err(unexpected(&other, "ACK")),
    }
}

fn unexpected(heard: &Message, expected: &str) -> Error {
    Error::MemifProtocol(format!("{}, but {expected} was expected", heard.kind()))
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// What is where in the client's one region: all rings, then all buffers.
pub(super) struct Layout {
    pairs: u16,
    log2_ring_size: u8,
    buffer_len: u32,
    buffers_offset: usize,
    pub(super) length: usize,
}

impl Layout {
    pub(super) fn new(settings: &Settings) -> Result<Layout, Error> {
        let Settings { pairs, log2_ring_size, buffer_len, .. } = *settings;
        let rings = 2 * usize::from(pairs);
        let buffers_offset = (rings * ring_len(log2_ring_size)).next_multiple_of(PAGE);
        let length = buffers_offset + rings * ((buffer_len as usize) << log2_ring_size);
        if u32::try_from(length).is_err() {
            return Err(Error::Layout("ring pairs, ring size and buffers make more than 4 GB"));
        }
        Ok(Layout { pairs, log2_ring_size, buffer_len, buffers_offset, length })
    }

    /// The number of a ring among all.
    fn number(pair: u16, direction: Direction) -> usize {
        2 * usize::from(pair) + usize::from(direction == Direction::ToClient)
    }

    pub(super) fn place(&self, pair: u16, direction: Direction) -> RingPlace {
        let offset = Layout::number(pair, direction) * ring_len(self.log2_ring_size);
        RingPlace { region: 0, offset: offset as u32, log2_size: self.log2_ring_size }
    }

    fn buffers(&self, pair: u16, direction: Direction) -> Buffers {
        let ring_bytes = (self.buffer_len as usize) << self.log2_ring_size;
        let offset = self.buffers_offset + Layout::number(pair, direction) * ring_bytes;
        Buffers { offset: offset as u32, length: self.buffer_len }
    }

    /// Writes the rings: descriptors of all buffers, those toward the client offered to the server.
    pub(super) fn initialize(&self, memory: &OwnedFd) -> Result<(), Error> {
        let region = Region::map(memory, self.length as u64, true)?;
        for pair in 0..self.pairs {
            for direction in [Direction::ToServer, Direction::ToClient] {
                let place = self.place(pair, direction);
                let ring = (region.ring(place.offset, place.log2_size))
                    .ok_or(Error::Layout("a ring outside its own region"))?;
                ring.initialize(self.buffers(pair, direction));
            }
        }
        Ok(())
    }

    pub(super) fn ring_end(&self, pair: u16, direction: Direction) -> Result<RingEnd, Error> {
        let interrupt = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::system("eventfd", errno))?;
        let buffers = Some(self.buffers(pair, direction));
        Ok(RingEnd { place: self.place(pair, direction), interrupt, buffers })
    }
}

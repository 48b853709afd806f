//! One process's part of a server that several processes are.

use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use super::doorbell::Doorbell;
use super::{Address, Connection, Hub, Listener, MemifLink, Registry, Settings};
use crate::{Each, Error, Gone, Link, each_of};

/// Calls of `receive` that find nothing before the socket is asked for new clients: less than a millisecond.
const EMPTY_RECEIVES: u32 = 1024;
/// How long a client is left to processes that have fewer, for each that this process has.
const COURTESY: Duration = Duration::from_millis(20);
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const PROTOCOL_TCP: u8 = 6;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// A stack's end of the clients that it has accepted at a socket which it shares with other processes. A client is one
/// stack's, with all its ring pairs, until one of the two goes.
///
/// Who has the fewest clients accepts the next one, by leaving the others to wait a little. A stack that does not listen (any
/// more) accepts none, and leaves SYNs unanswered: the client sends them again, to whoever it is connected to then.
#[derive(Debug)]
pub struct MemifPort {
    hub: Hub,
    listener: Listener,
    /// All that ends a sleep.
    doorbell: Doorbell,
    registry: Registry,
    accepting: bool,
    /// There may be a client.
    rang: bool,
    empty_receives: u32,
    /// Since when a client waits to be accepted.
    wanted_since: Option<Instant>,
}

impl MemifPort {
    /// Joins the processes that accept at `socket`.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn join(socket: OwnedFd, address: &Address, registry: Registry) -> Result<MemifPort, Error> {
        let doorbell = Doorbell::new(registry)?;
        let listener = Listener::adopt((registry.adopt)(socket), address, Settings::default());
        Ok(MemifPort {
            hub: Hub::default(),
            listener,
            doorbell,
            registry,
            accepting: false,
            rang: false,
            empty_receives: 0,
            wanted_since: None,
        })
    }

    /// The clients.
    #[must_use]
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    #[cold]
    fn accept(&mut self) {
        if !self.accepting || !(self.listener.is_greeting() || self.is_our_turn()) {
            return;
        }
        while let Ok(Some(connection)) = self.listener.poll() {
            self.attach(connection);
        }
    }

    fn is_our_turn(&mut self) -> bool {
        if !self.listener.is_wanted() {
            self.wanted_since = None;
            return false;
        }
        let since = *self.wanted_since.get_or_insert_with(Instant::now);
        let ours = since.elapsed() >= COURTESY * self.hub.links() as u32;
        if ours {
            self.wanted_since = None;
        }
        ours
    }

    /// A client whose rings make no sense is dropped, and so hears that it is over.
    fn attach(&mut self, connection: Connection) {
        for pair in connection.pairs {
            let Ok(link) = MemifLink::open_registered(pair, Some(self.registry)) else { return };
            for descriptor in link.descriptors() {
                self.doorbell.ring_for(descriptor);
            }
            self.hub.attach(link);
        }
    }
}

impl Drop for MemifPort {
    fn drop(&mut self) {
        (self.registry.release)(self.listener.socket());
    }
}

/// The first segment of a TCP connection.
fn is_syn(frame: &[u8]) -> bool {
    let segment = match (frame.get(12..14).and_then(<[u8]>::first_chunk::<2>), frame.get(14..)) {
        (Some(&ETHERTYPE_IPV4), Some(packet)) if packet.get(9) == Some(&PROTOCOL_TCP) => {
            packet.get(usize::from(packet[0] & 0xf) * 4..)
        }
        (Some(&ETHERTYPE_IPV6), Some(packet)) if packet.get(6) == Some(&PROTOCOL_TCP) => packet.get(40..),
        _ => None,
    };
    segment.and_then(|segment| segment.get(13)).is_some_and(|flags| flags & (SYN | ACK) == SYN)
}

impl Link for MemifPort {
    /// As [`Hub::receive`], and looks for new clients now and then.
    #[inline]
    fn receive(&mut self, budget: usize, mut each: impl FnMut(&[u8])) -> usize {
        if core::mem::take(&mut self.rang) {
            self.accept();
        }
        let accepting = self.accepting;
        let count = self.hub.receive(budget, |frame| {
            if accepting || !is_syn(frame) {
                each(frame);
            }
        });
        if count == 0 {
            self.empty_receives += 1;
            if self.empty_receives >= EMPTY_RECEIVES {
                self.empty_receives = 0;
                self.accept();
            }
        }
        count
    }

    #[inline]
    fn flush(&mut self) {
        self.hub.flush();
    }

    fn arm(&mut self) -> bool {
        self.rang = true;
        self.hub.arm_by(&self.doorbell)
    }

    fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        core::iter::once(self.doorbell.as_fd())
    }

    fn rang(&mut self) {
        self.rang = true;
    }

    /// A handshake goes on.
    fn is_busy(&self) -> bool {
        self.listener.is_greeting()
    }

    fn take_gone(&mut self) -> Option<Gone> {
        Gone::those(self.hub.take_gone())
    }

    fn set_accepting(&mut self, accepting: bool) {
        if accepting == self.accepting {
            return;
        }
        self.accepting = accepting;
        let socket = self.listener.socket();
        if accepting {
            self.doorbell.ring_for(socket);
        } else {
            self.doorbell.ring_no_more_for(socket);
        }
    }

    fn each_counter(&self, each: Each<'_>) {
        each("now", "peers", self.hub.links() as u64);
        each_of("link", self.hub.link_counters().named().chain(self.hub.counters().named()), each);
    }
}

overfly_wire::frames_of!(MemifPort, hub);

//! Serves the processes of a program whose frames go over memif. Nothing here needs privilege: there is no interface to
//! steer, only a socket to share, and nothing that would have to be undone.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use overfly_link::broker::message::{
    Hello, Kind, MESSAGE_LEN_MAX, MemifPart, Reply, Request, Role, Token, Welcome, Wish,
};
use overfly_link::broker::{self, Interface, Refusal, Route, observer};
use overfly_link::memif::{Address, Listener, Settings};
use overfly_wire::MacAddr;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use zerocopy::IntoBytes;

use crate::broker::{open_socket, receive, tie};
use crate::error::Error;
use crate::observers::{self, Peer, Seen, deliver};
use crate::repair;
use crate::serving::Serving;

/// Connections at any time: every process of a program holds a leash.
const CONNECTIONS_MAX: usize = 4096;
/// Observers that have not said what they are.
const OBSERVERS_MAX: usize = 64;
/// How long to wait where the kernel has no memory or descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// A thread that hands the socket of a memif server to each process of a program. Dropping it ends that: leashed processes
/// are killed by the kernel.
#[derive(Debug)]
pub struct MemifBroker {
    environment: String,
    is_public: bool,
    _serving: Serving,
}

impl MemifBroker {
    /// Listens for memif clients at `place`, and serves the program's processes. Their address is `address`, in a network
    /// with a prefix of so many bits.
    ///
    /// # Errors
    /// [`Error::Link`] if another program listens at `place`, or what the kernel said.
    pub fn start(place: &Address, address: IpAddr, prefix_len: u8) -> Result<MemifBroker, Error> {
        let memif = Listener::bind(place, Settings::default())?;
        let (listener, name, token) = open_socket()?;
        let public = observers::listen_for(&format!("memif:{place}"));
        let is_public = public.is_some();
        let interface = Interface {
            name: "memif".to_owned(),
            index: 0,
            mac: mac(address),
            mtu: Settings::default().mtu,
            addresses: vec![(address, prefix_len)],
            partial_checksums: true,
        };
        let service = Service {
            memif,
            place: place.clone(),
            listener,
            public,
            token,
            interface,
            stacks: 0,
            connections: Vec::new(),
        };
        let serving = Serving::start(move |stopped| service.run(&stopped))?;
        Ok(MemifBroker { environment: broker::environment(&name, token), is_public, _serving: serving })
    }

    /// The value of `OVERFLY_BROKER` for the program.
    #[must_use]
    pub fn environment(&self) -> &str {
        &self.environment
    }

    /// Observers find this broker at `memif:PLACE`. They do not if somebody else took that, or if it is too long.
    #[must_use]
    pub fn is_public(&self) -> bool {
        self.is_public
    }
}

/// A locally administered address (IEEE 802) out of the last bytes of the IP address.
fn mac(address: IpAddr) -> MacAddr {
    let [.., a, b, c, d] = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    MacAddr([2, 0xff, a, b, c, d])
}

/// A process, and what it is connected for once it has said so.
struct Connection {
    socket: OwnedFd,
    peer: Option<Peer>,
    state: State,
    /// Once the process shows itself.
    seen: Option<Seen>,
    over: bool,
}

enum State {
    /// Has not said who it is; at the public name there is no secret.
    Greeting {
        public: bool,
    },
    Leash,
    /// With a stack, perhaps.
    Client(Option<u16>),
}

impl Connection {
    fn stack(&self) -> Option<u16> {
        match self.state {
            State::Client(stack) => stack,
            State::Greeting { .. } | State::Leash => None,
        }
    }
}

struct Service {
    memif: Listener,
    place: Address,
    listener: OwnedFd,
    public: Option<OwnedFd>,
    token: Token,
    interface: Interface,
    /// Stacks that there have been.
    stacks: u16,
    connections: Vec<Connection>,
}

impl Service {
    fn run(mut self, stop: &OwnedFd) {
        loop {
            let public = self.public.as_ref().unwrap_or(&self.listener);
            let mut set: Vec<_> =
                [stop, &self.listener, public].map(|socket| PollFd::new(socket, PollFlags::IN)).into();
            set.extend(
                self.connections.iter().map(|connection| PollFd::new(&connection.socket, PollFlags::IN)),
            );
            if !matches!(poll(&mut set, None), Ok(_) | Err(Errno::INTR)) {
                std::thread::sleep(PAUSE);
            }
            let ready: Vec<bool> = set.iter().map(|entry| !entry.revents().is_empty()).collect();
            drop(set);
            let [stopped, connected, observed, messages @ ..] = ready.as_slice() else { return };
            if *stopped {
                return;
            }
            for (index, _) in messages.iter().enumerate().filter(|(_, ready)| **ready) {
                self.connections[index].over = self.hear(index).is_none();
            }
            self.connections.retain(|connection| !connection.over);
            if *connected {
                self.accept(false);
            }
            if *observed && self.public.is_some() {
                self.accept(true);
            }
        }
    }

    fn accept(&mut self, public: bool) {
        let listener = self.public.as_ref().filter(|_| public).unwrap_or(&self.listener);
        match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) if self.has_room(public) => {
                let (peer, state) = (Peer::of(&socket), State::Greeting { public });
                self.connections.push(Connection { socket, peer, state, seen: None, over: false });
            }
            Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            Err(_) => std::thread::sleep(PAUSE),
        }
    }

    /// Observers that say nothing must not be in the way of processes.
    fn has_room(&self, public: bool) -> bool {
        let waiting = |connection: &&Connection| matches!(connection.state, State::Greeting { public: true });
        if public {
            self.connections.iter().filter(waiting).count() < OBSERVERS_MAX
        } else {
            self.connections.len() < CONNECTIONS_MAX
        }
    }

    /// Answers one message. `None` if the connection is over, or was misused.
    fn hear(&mut self, index: usize) -> Option<()> {
        let connection = &mut self.connections[index];
        let mut bytes = [0; MESSAGE_LEN_MAX];
        let (length, descriptors) = match receive(&connection.socket, &mut bytes) {
            Ok((0, _)) => return None,
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Some(()),
            Err(_) => return None,
        };
        let (message, socket) = (bytes.get(..length)?, &mut connection.socket);
        match connection.state {
            State::Greeting { public: true } => {
                if Hello::parse(message, observer::PUBLIC)? == Role::Observer {
                    let (observer, processes) = (&self.connections[index], self.connections.iter());
                    let processes = processes.filter_map(|one| Some((one.seen.as_ref()?, one.stack())));
                    observers::tell_all(&observer.socket, observer.peer, processes);
                }
                None
            }
            State::Greeting { public: false } => {
                let delivered = match Hello::parse(message, self.token)? {
                    Role::Leash => {
                        connection.state = State::Leash;
                        tie(socket)
                    }
                    Role::Client => {
                        connection.state = State::Client(None);
                        deliver(socket, Welcome::new(&self.interface).as_bytes(), &[])
                    }
                    Role::Observer | Role::Program => false,
                };
                delivered.then_some(())
            }
            State::Client(_) => self.serve(index, Request::parse(message)?, &descriptors).then_some(()),
            State::Leash => None,
        }
    }

    /// False if the client does not take the answer.
    fn serve(&mut self, index: usize, wish: Wish, descriptors: &[OwnedFd]) -> bool {
        let connection = &mut self.connections[index];
        let socket = &connection.socket;
        let reply = match wish.kind {
            Kind::Interface => return deliver(socket, Welcome::new(&self.interface).as_bytes(), &[]),
            Kind::OpenStack => {
                connection.state = State::Client(Some(self.stacks));
                self.stacks = self.stacks.wrapping_add(1);
                return deliver(socket, MemifPart::new(&self.place).as_bytes(), &[self.memif.socket()]);
            }
            Kind::Show => match Seen::new(connection.peer) {
                Ok(seen) => {
                    let delivered = seen.deliver(socket, connection.stack());
                    connection.seen = Some(seen);
                    return delivered;
                }
                Err(error) => Reply::no(Refusal::Other, &error.to_string()),
            },
            // Each client is connected to one stack, and what it sends there is that stack's.
            Kind::Listen | Kind::Unlisten | Kind::Disconnect => Reply::yes(None),
            Kind::Connect | Kind::Route => match self.route(wish.remote) {
                Some(route) => Reply::yes(Some(route)),
                None => Reply::no(
                    Refusal::RouteElsewhere,
                    "the kernel carries what is outside of memif's network",
                ),
            },
            Kind::HandOverPair => match repair::pair(descriptors) {
                Ok(()) => Reply::yes(None),
                Err(error) => Reply::no(Refusal::NotMoved, &error.to_string()),
            },
            Kind::HandOver | Kind::GiveAway | Kind::PassOn => {
                Reply::no(Refusal::NotMoved, "the kernel has no way to the peers of memif")
            }
        };
        deliver(&self.connections[index].socket, reply.as_bytes(), &[])
    }

    /// The stack asks for hardware addresses itself.
    fn route(&self, remote: SocketAddr) -> Option<Route> {
        let &(source, prefix_len) = self.interface.addresses.first()?;
        let bits = |address: IpAddr| match address.to_canonical() {
            IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, true),
            IpAddr::V6(address) => (address.to_bits(), false),
        };
        let ((own, own_family), (other, family)) = (bits(source), bits(remote.ip()));
        let mask = u128::MAX.checked_shl(128 - u32::from(prefix_len)).unwrap_or(0);
        let near = own_family == family && (own ^ other) & mask == 0;
        near.then_some(Route { source, next_hop: MacAddr([0; 6]) })
    }
}

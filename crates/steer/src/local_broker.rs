//! Serves the processes of a program whose frames go over memif, or over a tap device. Nothing here needs privilege over the
//! machine: there is no interface of the kernel's to steer, and nothing that would have to be undone.

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use overfly_link::broker::message::{
    Hello, Kind, MESSAGE_LEN_MAX, MemifPart, Reply, Request, Role, TapPart, Token, Welcome, Wish,
};
use overfly_link::broker::{self, Interface, Route, observer};
use overfly_link::memif::{Address, Listener, MemifLink, Settings};
use overfly_link::tap::TapLink;
use overfly_wire::MacAddr;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{AddressFamily, SocketFlags, SocketType, accept_with, socketpair};
use zerocopy::IntoBytes;

use crate::broker::{open_socket, receive, refusal, tie};
use crate::error::Error;
use crate::netlink::Netlink;
use crate::observers::{self, Peer, Seen, deliver};
use crate::repair;
use crate::serving::Serving;
use crate::switch::Switch;

/// Connections at any time: every process of a program holds a leash.
const CONNECTIONS_MAX: usize = 4096;
/// Observers that have not said what they are.
const OBSERVERS_MAX: usize = 64;
/// How long to wait where the kernel has no memory or descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// A thread that hands what carries frames to each process of a program. Dropping it ends that: leashed processes are killed by
/// the kernel.
#[derive(Debug)]
pub struct LocalBroker {
    environment: String,
    is_public: bool,
    _serving: Serving,
    _forwarding: Option<Serving>,
}

impl LocalBroker {
    /// Listens for memif clients at `place`, and serves the program's processes. Their address is `address`, in a network
    /// with a prefix of so many bits.
    ///
    /// # Errors
    /// [`Error::Link`] if another program listens at `place`, or what the kernel said.
    pub fn over_memif(place: &Address, address: IpAddr, prefix_len: u8) -> Result<LocalBroker, Error> {
        let settings = Settings::default();
        let interface = interface("memif", address, prefix_len, settings.mtu);
        let listener = Listener::bind(place, settings)?;
        let public = observers::listen_for(&format!("memif:{place}"));
        LocalBroker::start(Wire::Memif { listener, place: place.clone() }, interface, public, None)
    }

    /// Opens a queue of the tap device, and serves the program's processes, whose address is `address`. It needs
    /// CAP_NET_ADMIN in the network namespace, which whoever made that has (`unshare -Urn`), or to be the device's owner.
    ///
    /// # Errors
    /// [`Error::TapTaken`], [`Error::KernelsAddress`], [`Error::Link`] if there is no such device or queue, or what the kernel
    /// said.
    pub fn over_tap(name: &str, address: IpAddr, prefix_len: u8) -> Result<LocalBroker, Error> {
        // The frames of one device are one program's.
        let public = observers::listen_at(&observers::public_name(&format!("tap:{name}")));
        let public = public.map_err(|errno| match errno {
            Errno::ADDRINUSE => Error::TapTaken(name.to_owned()),
            errno => Error::system("the broker's public name", errno),
        })?;
        let mut device = TapLink::open(name)?;
        let holder = Netlink::open().and_then(|mut netlink| netlink.holder(address));
        if let Some(index) = holder.map_err(|errno| Error::system("asking for addresses", errno))? {
            return Err(Error::KernelsAddress { address, index });
        }
        let interface = interface(name, address, prefix_len, device.mtu());
        let queue = fcntl_dupfd_cloexec(device.queue(), 3).map_err(|errno| Error::system("dup", errno))?;
        let switch = Switch::default();
        let wire = Wire::Tap { queue, switch: switch.clone() };
        let forwarding = Serving::start(move |stopped| switch.forward(&mut device, &stopped))?;
        LocalBroker::start(wire, interface, Some(public), Some(forwarding))
    }

    fn start(
        wire: Wire,
        interface: Interface,
        public: Option<OwnedFd>,
        forwarding: Option<Serving>,
    ) -> Result<LocalBroker, Error> {
        let (listener, name, token) = open_socket()?;
        let is_public = public.is_some();
        let service =
            Service { wire, listener, public, token, interface, stacks: 0, connections: Vec::new() };
        let serving = Serving::start(move |stopped| service.run(&stopped))?;
        let environment = broker::environment(&name, token);
        Ok(LocalBroker { environment, is_public, _serving: serving, _forwarding: forwarding })
    }

    /// The value of `OVERFLY_BROKER` for the program.
    #[must_use]
    pub fn environment(&self) -> &str {
        &self.environment
    }

    /// Observers find this broker at `memif:PLACE` or `tap:NAME`. They do not if somebody else took that, or if it is too long.
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

/// What the program's processes are told that they have.
fn interface(name: &str, address: IpAddr, prefix_len: u8, mtu: u16) -> Interface {
    Interface {
        name: name.to_owned(),
        index: 0,
        mac: mac(address),
        mtu,
        addresses: vec![(address, prefix_len)],
        partial_checksums: true,
    }
}

/// What carries the program's frames.
enum Wire {
    /// Clients that connect to a socket.
    Memif { listener: Listener, place: Address },
    /// The queue of a device, and what hands out its frames.
    Tap { queue: OwnedFd, switch: Switch },
}

impl Wire {
    /// Gives a stack to a process. False if it does not take it.
    fn give(&self, stack: u16, client: &OwnedFd) -> Result<bool, Error> {
        match self {
            Wire::Memif { listener, place } => {
                Ok(deliver(client, MemifPart::new(place).as_bytes(), &[listener.socket()]))
            }
            Wire::Tap { queue, switch } => {
                let (ours, theirs) =
                    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                        .map_err(|errno| Error::system("socketpair", errno))?;
                switch.attach(stack, MemifLink::offer(&ours)?);
                Ok(deliver(client, TapPart::new().as_bytes(), &[queue.as_fd(), theirs.as_fd()]))
            }
        }
    }

    /// The stack is no more.
    fn take_back(&self, stack: u16) {
        match self {
            Wire::Memif { .. } => {}
            Wire::Tap { switch, .. } => switch.detach(stack),
        }
    }

    /// Has frames come to the stack, or no more. Over memif each client is connected to one stack, and what it sends there is
    /// that stack's.
    fn steer(&self, stack: u16, wish: &Wish) -> Result<(), Error> {
        let Wire::Tap { switch, .. } = self else { return Ok(()) };
        let &Wish { kind, protocol, v6only, local, remote, cluster } = wish;
        match kind {
            Kind::Listen => switch.listen(stack, protocol, local, v6only, cluster)?,
            Kind::Unlisten => switch.unlisten(stack, protocol, local, v6only),
            Kind::Connect => switch.connect(stack, protocol, local, remote)?,
            Kind::Disconnect => switch.disconnect(stack, protocol, local, remote),
            _ => {}
        }
        Ok(())
    }
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
    wire: Wire,
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
            for connection in self.connections.extract_if(.., |connection| connection.over) {
                if let Some(stack) = connection.stack() {
                    self.wire.take_back(stack);
                }
            }
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
        let stack = self.connections[index].stack();
        let result = match wish.kind {
            Kind::Interface => {
                return deliver(
                    &self.connections[index].socket,
                    Welcome::new(&self.interface).as_bytes(),
                    &[],
                );
            }
            Kind::OpenStack if stack.is_some() => {
                Err(Error::Options("this client has a stack already".to_owned()))
            }
            Kind::OpenStack => match self.open_stack(index) {
                Ok(delivered) => return delivered,
                Err(error) => Err(error),
            },
            Kind::Show => {
                let connection = &mut self.connections[index];
                match Seen::new(connection.peer) {
                    Ok(seen) => {
                        let delivered = seen.deliver(&connection.socket, stack);
                        connection.seen = Some(seen);
                        return delivered;
                    }
                    Err(error) => Err(error),
                }
            }
            Kind::Listen | Kind::Unlisten | Kind::Connect | Kind::Disconnect | Kind::Route => {
                self.steer(stack, wish)
            }
            Kind::HandOverPair => repair::pair(descriptors).map(|()| None),
            Kind::HandOver | Kind::GiveAway | Kind::PassOn => Err(Error::NoKernelsAddress),
        };
        let reply = match result {
            Ok(route) => Reply::yes(route),
            Err(error) => Reply::no(refusal(&error), &error.to_string()),
        };
        deliver(&self.connections[index].socket, reply.as_bytes(), &[])
    }

    fn open_stack(&mut self, index: usize) -> Result<bool, Error> {
        let in_use = |stack| self.connections.iter().any(|connection| connection.stack() == Some(stack));
        let stack = (0..=u16::MAX).map(|turn| self.stacks.wrapping_add(turn)).find(|&stack| !in_use(stack));
        let stack = stack.ok_or(Error::NoStack { stacks: u16::MAX })?;
        self.stacks = stack.wrapping_add(1);
        let connection = &mut self.connections[index];
        let given = self.wire.give(stack, &connection.socket)?;
        connection.state = State::Client(Some(stack));
        Ok(given)
    }

    /// Frames are the stack's from now on, or no more, and the way to where it connects.
    fn steer(&self, stack: Option<u16>, mut wish: Wish) -> Result<Option<Route>, Error> {
        let route = match wish.kind {
            Kind::Connect | Kind::Route => {
                let destination = wish.remote.ip();
                Some(self.route(destination).ok_or(Error::RouteElsewhere { destination })?)
            }
            _ => None,
        };
        let stack = stack.ok_or_else(|| Error::Options("open a stack first".to_owned()))?;
        // A connection's local address is the only one that there is.
        if let (Kind::Connect | Kind::Disconnect, Some(&(address, _))) =
            (wish.kind, self.interface.addresses.first())
        {
            wish.local.set_ip(address);
        }
        self.wire.steer(stack, &wish)?;
        Ok(route)
    }

    /// The stack asks for hardware addresses itself.
    fn route(&self, destination: IpAddr) -> Option<Route> {
        let &(source, prefix_len) = self.interface.addresses.first()?;
        let bits = |address: IpAddr| match address.to_canonical() {
            IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, true),
            IpAddr::V6(address) => (address.to_bits(), false),
        };
        let ((own, own_family), (other, family)) = (bits(source), bits(destination));
        let mask = u128::MAX.checked_shl(128 - u32::from(prefix_len)).unwrap_or(0);
        let near = own_family == family && (own ^ other) & mask == 0;
        near.then_some(Route { source, next_hop: MacAddr([0; 6]) })
    }
}

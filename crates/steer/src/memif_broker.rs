//! Serves the processes of a program whose frames go over memif. Nothing here needs privilege: there is no interface to
//! steer, only a socket to share, and nothing that would have to be undone.

use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::Duration;

use overfly_link::broker::message::{
    Hello, Kind, MESSAGE_LEN_MAX, MemifPart, Reply, Request, Role, Token, Welcome,
};
use overfly_link::broker::{self, Interface, Refusal, Route};
use overfly_link::memif::{Address, Listener, Settings};
use overfly_wire::MacAddr;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::{Errno, IoSlice};
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, accept_with, recv, sendmsg,
};
use zerocopy::IntoBytes;

use crate::broker::open_socket;
use crate::error::Error;

/// Connections at any time: every process of a program holds a leash.
const CONNECTIONS_MAX: usize = 4096;
/// How long to wait where the kernel has no memory or descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// A thread that hands the socket of a memif server to each process of a program. Dropping it ends that: leashed processes
/// are killed by the kernel.
#[derive(Debug)]
pub struct MemifBroker {
    environment: String,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
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
        let system = |operation| move |errno| Error::system(operation, errno);
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(system("eventfd"))?;
        let stopped = rustix::io::fcntl_dupfd_cloexec(&stop, 3).map_err(system("dup"))?;
        let interface = Interface {
            name: "memif".to_owned(),
            index: 0,
            mac: mac(address),
            mtu: Settings::default().mtu,
            addresses: vec![(address, prefix_len)],
            partial_checksums: true,
        };
        let service =
            Service { memif, place: place.clone(), listener, token, interface, connections: Vec::new() };
        let thread = std::thread::Builder::new()
            .name("overfly-broker".to_owned())
            .spawn(move || service.run(&stopped))
            .map_err(|error| {
                Error::system(
                    "starting the broker's thread",
                    Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
                )
            })?;
        Ok(MemifBroker { environment: broker::environment(&name, token), stop, thread: Some(thread) })
    }

    /// The value of `OVERFLY_BROKER` for the program.
    #[must_use]
    pub fn environment(&self) -> &str {
        &self.environment
    }
}

impl Drop for MemifBroker {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
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
    role: Option<Role>,
}

struct Service {
    memif: Listener,
    place: Address,
    listener: OwnedFd,
    token: Token,
    interface: Interface,
    connections: Vec<Connection>,
}

impl Service {
    fn run(mut self, stop: &OwnedFd) {
        loop {
            let mut set = vec![PollFd::new(stop, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
            set.extend(
                self.connections.iter().map(|connection| PollFd::new(&connection.socket, PollFlags::IN)),
            );
            if !matches!(poll(&mut set, None), Ok(_) | Err(Errno::INTR)) {
                std::thread::sleep(PAUSE);
            }
            let ready: Vec<bool> = set.iter().map(|entry| !entry.revents().is_empty()).collect();
            drop(set);
            let [stopped, connected, messages @ ..] = ready.as_slice() else { return };
            if *stopped {
                return;
            }
            let mut messages = messages.iter();
            let connections = std::mem::take(&mut self.connections);
            self.connections = connections
                .into_iter()
                .filter_map(|connection| match messages.next() {
                    Some(true) => self.hear(connection),
                    _ => Some(connection),
                })
                .collect();
            if *connected {
                self.accept();
            }
        }
    }

    fn accept(&mut self) {
        match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) if self.connections.len() < CONNECTIONS_MAX => {
                self.connections.push(Connection { socket, role: None });
            }
            Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            Err(_) => std::thread::sleep(PAUSE),
        }
    }

    /// Answers one message. `None` if the connection is over, or was misused.
    fn hear(&self, connection: Connection) -> Option<Connection> {
        let mut bytes = [0; MESSAGE_LEN_MAX];
        let length = match recv(&connection.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return None,
            Ok((length, _)) => length,
            Err(Errno::AGAIN | Errno::INTR) => return Some(connection),
            Err(_) => return None,
        };
        let (message, socket) = (&bytes[..length], connection.socket.as_fd());
        let role = match connection.role {
            None => {
                let role = Hello::parse(message, self.token)?;
                match role {
                    Role::Leash => answer(socket, Reply::yes(None).as_bytes(), None)?,
                    Role::Client => answer(socket, Welcome::new(&self.interface).as_bytes(), None)?,
                    Role::Observer => return None,
                }
                role
            }
            Some(Role::Client) => {
                self.serve(socket, message)?;
                Role::Client
            }
            Some(Role::Leash | Role::Observer) => return None,
        };
        Some(Connection { role: Some(role), ..connection })
    }

    fn serve(&self, socket: BorrowedFd<'_>, message: &[u8]) -> Option<()> {
        let wish = Request::parse(message)?;
        let reply = match wish.kind {
            Kind::Interface => return answer(socket, Welcome::new(&self.interface).as_bytes(), None),
            Kind::OpenStack => {
                let part = MemifPart::new(&self.place);
                return answer(socket, part.as_bytes(), Some(self.memif.socket()));
            }
            // Each client is connected to one stack, and what it sends there is that stack's.
            Kind::Listen | Kind::Unlisten | Kind::Disconnect => Reply::yes(None),
            Kind::Connect | Kind::Route => match self.route(wish.remote) {
                Some(route) => Reply::yes(Some(route)),
                None => Reply::no(
                    Refusal::RouteElsewhere,
                    "the kernel carries what is outside of memif's network",
                ),
            },
            Kind::Show => Reply::no(Refusal::Other, "nobody can look at a program over memif"),
            Kind::HandOver | Kind::GiveAway | Kind::PassOn => {
                Reply::no(Refusal::NotMoved, "the kernel has no way to the peers of memif")
            }
        };
        answer(socket, reply.as_bytes(), None)
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

/// `None` if the client does not take it.
fn answer(socket: BorrowedFd<'_>, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> Option<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if descriptor.is_some() {
        control.push(SendAncillaryMessage::ScmRights(descriptor.as_slice()));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).ok().map(|_| ())
}

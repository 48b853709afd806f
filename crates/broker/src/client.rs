//! The program's end of the connection.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use overfly_link::messages::DESCRIPTORS_MAX;
use overfly_link::xdp::{QueueSockets, StackSockets};
use rustix::net::RecvFlags;
use zerocopy::IntoBytes;

use crate::conversation::{greet, hear, hear_with_descriptors, is_silent, move_up, tell, tell_with};
use crate::message::{
    self, Kind, MemifPart, Reply, Request, RequestMessage, Role, ShownPart, StackPart, TapPart, Welcome, Word,
};
use crate::{Cluster, Error, Interface, Protocol, Route};

/// What carries a stack's frames.
#[derive(Debug)]
pub enum Sockets {
    /// An interface.
    Xdp(StackSockets),
    /// Clients that connect to a socket, which all processes of the program accept at.
    Memif {
        /// It listens.
        socket: OwnedFd,
        /// Where.
        address: overfly_link::memif::Address,
    },
    /// A tap device, for [`overfly_link::tap::TapPort::join`].
    Tap {
        /// To write frames to.
        queue: OwnedFd,
        /// Where the broker offers the frames that are this stack's.
        channel: OwnedFd,
    },
}

/// What a stack is given, or a part of it.
enum Grant {
    Queue(message::Part),
    Memif(overfly_link::memif::Address),
    Tap,
}

impl Grant {
    fn parse(bytes: &[u8]) -> Result<Grant, Error> {
        if TapPart::parse(bytes) {
            return Ok(Grant::Tap);
        }
        match MemifPart::parse(bytes) {
            Some(address) => Ok(Grant::Memif(address)),
            None => StackPart::parse(bytes).map(Grant::Queue),
        }
    }
}

impl Sockets {
    /// An interface's, if that is what they are.
    #[must_use]
    pub fn into_xdp(self) -> Option<StackSockets> {
        match self {
            Sockets::Xdp(sockets) => Some(sockets),
            Sockets::Memif { .. } | Sockets::Tap { .. } => None,
        }
    }
}

/// Requests whose answers nobody waits for before the last is sent: their answers must find room in the socket.
const AT_ONCE: usize = 64;

/// A process's connection to the broker. When it is closed, by whatever means, all that was asked for over it is undone.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    interface: Interface,
    cluster: Cluster,
    /// Came while an answer was waited for.
    passed: VecDeque<PassedConnection>,
    /// The stack has new sockets that nobody has fetched.
    renewed: bool,
    /// The broker ends, or has ended.
    parting: Option<Parting>,
}

/// How a broker leaves its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parting {
    /// It said so, and waits until they have handed over what they have.
    Farewell,
    /// It is gone.
    Gone,
}

/// A connection of the kernel's that a listener of this process is to accept.
#[derive(Debug)]
pub struct PassedConnection {
    /// Where the listener is, as it was said in [`Client::listen`].
    pub listener: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
    /// The connection.
    pub socket: OwnedFd,
}

/// One end of a connection within the host, for [`Client::hand_over_pair`].
#[derive(Clone, Copy, Debug)]
pub struct PairEnd<'a> {
    /// A TCP socket in no connection, which becomes this end.
    pub socket: BorrowedFd<'a>,
    /// What it is to be.
    pub file: BorrowedFd<'a>,
    /// A socket that has the end's port in the kernel (a listener there, or one that is bound and in no connection): it shows that
    /// the port is this process's. `socket` again where there is none.
    pub holder: BorrowedFd<'a>,
}

impl Client {
    /// Connects, given the value of `OVERFLY_BROKER`.
    ///
    /// # Errors
    /// [`Error::Address`], [`Error::Gone`], [`Error::Protocol`].
    pub fn connect(environment: &str) -> Result<Client, Error> {
        let greeted = Greeted::new(environment)?;
        let interface = greeted.welcome()?;
        Ok(Client::welcomed(greeted, interface))
    }

    /// The client that a broker has welcomed.
    #[must_use]
    pub fn welcomed(Greeted(socket): Greeted, interface: Interface) -> Client {
        let (cluster, passed) = (Cluster::default(), VecDeque::new());
        Client { socket, interface, cluster, passed, renewed: false, parting: None }
    }

    /// The interface, as it was at the beginning or at the last [`Client::refresh_interface`].
    #[must_use]
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Asks for the interface's addresses again.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Protocol`].
    pub fn refresh_interface(&mut self) -> Result<&Interface, Error> {
        self.say(&Request::new(Kind::Interface))?;
        self.interface = self.answer(Welcome::parse)?.0;
        Ok(&self.interface)
    }

    /// Gets this process's stack. There is one for each client.
    ///
    /// # Errors
    /// [`Error::Refused`] if all are taken, [`Error::Gone`], [`Error::Protocol`].
    pub fn open_stack(&mut self) -> Result<Sockets, Error> {
        self.say(&Request::new(Kind::OpenStack))?;
        let mut queues = Vec::new();
        let (mut pulses, mut long_frames) = (None, None);
        loop {
            let part = match self.answer(Grant::parse)? {
                (Grant::Memif(address), [Some(socket), ..]) => return Ok(Sockets::Memif { socket, address }),
                (Grant::Tap, [Some(queue), Some(channel), ..]) => return Ok(Sockets::Tap { queue, channel }),
                (Grant::Queue(part), [Some(socket), Some(pool), array, packets, ..]) => {
                    pulses = pulses.or(array);
                    long_frames = long_frames.or(packets);
                    queues.push(QueueSockets { socket, pool });
                    part
                }
                _ => return Err(Error::Protocol("a stack without its descriptors")),
            };
            if usize::from(part.queue) + 1 != queues.len() {
                return Err(Error::Protocol("a stack's queues out of order"));
            }
            if queues.len() == usize::from(part.queues) {
                return Ok(Sockets::Xdp(StackSockets {
                    stack: part.stack,
                    queues,
                    layout: part.layout,
                    zero_copy: part.zero_copy,
                    busy_poll: part.busy_poll,
                    pulses,
                    long_frames,
                }));
            }
        }
    }

    /// With whom listeners from now on share their address and port.
    pub fn set_cluster(&mut self, cluster: Cluster) {
        self.cluster = cluster;
    }

    /// New connections to the address come to this process's stack, or to one of those that listen there; with UDP, its
    /// datagrams. The address 0.0.0.0 or `::` stands for all addresses of the interface, also those it gets later: `::` for
    /// those of both families, unless `v6only` (which means nothing with other addresses).
    ///
    /// # Errors
    /// [`Error::Refused`] if the address is not the interface's or the cluster has no place there, [`Error::Gone`],
    /// [`Error::Protocol`].
    pub fn listen(&mut self, protocol: Protocol, address: SocketAddr, v6only: bool) -> Result<(), Error> {
        let cluster = self.cluster;
        self.ask(&Request { protocol, v6only, local: address, cluster, ..Request::new(Kind::Listen) })
            .map(|_| ())
    }

    /// As [`Client::listen`], for who is not the broker's user: `socket`, which is the kernel's at that address and with TCP
    /// listens, shows that this process may have what comes there.
    ///
    /// # Errors
    /// As [`Client::listen`].
    pub fn listen_as(
        &mut self,
        socket: BorrowedFd<'_>,
        protocol: Protocol,
        address: SocketAddr,
        v6only: bool,
    ) -> Result<(), Error> {
        let cluster = self.cluster;
        let request = Request { protocol, v6only, local: address, cluster, ..Request::new(Kind::Listen) };
        self.ask_as(socket, &request).map(|_| ())
    }

    /// No more of them. TCP connections that exist stay. Say the same as in [`Client::listen`].
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Protocol`].
    pub fn unlisten(&mut self, protocol: Protocol, address: SocketAddr, v6only: bool) -> Result<(), Error> {
        self.ask(&Request { protocol, v6only, local: address, ..Request::new(Kind::Unlisten) }).map(|_| ())
    }

    /// Finds the way to `remote` and has the connection's frames come to this process's stack. Waits for up to a second if
    /// the next hop is asleep. With UDP this is a connected socket: it goes before listeners at the same address.
    ///
    /// # Errors
    /// [`Error::Refused`]: `RouteElsewhere` means that the kernel must carry this connection. [`Error::Gone`],
    /// [`Error::Protocol`].
    pub fn connect_flow(
        &mut self,
        protocol: Protocol,
        local_port: u16,
        remote: SocketAddr,
    ) -> Result<Route, Error> {
        self.connect_flow_from(protocol, anywhere(remote, local_port), remote)
    }

    /// As [`Client::connect_flow`], from a local address that the program chose.
    ///
    /// # Errors
    /// As [`Client::connect_flow`].
    pub fn connect_flow_from(
        &mut self,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<Route, Error> {
        self.ask(&Request { protocol, local, remote, ..Request::new(Kind::Connect) })
    }

    /// As [`Client::connect_flow_from`], for who is not the broker's user: `socket`, which is bound to the local port in the
    /// kernel, shows that this process may have what comes there. An unspecified address in `local`: whichever the route says.
    ///
    /// # Errors
    /// As [`Client::connect_flow`].
    pub fn connect_flow_as(
        &mut self,
        socket: BorrowedFd<'_>,
        protocol: Protocol,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<Route, Error> {
        self.ask_as(socket, &Request { protocol, local, remote, ..Request::new(Kind::Connect) })
    }

    /// A connection that another stack of this process accepted is this one's: its frames come here from now on.
    ///
    /// # Errors
    /// [`Error::Refused`]: nothing has changed. [`Error::Gone`], [`Error::Protocol`].
    pub fn fetch_flow(&mut self, local: SocketAddr, remote: SocketAddr) -> Result<(), Error> {
        self.ask(&Request { local, remote, ..Request::new(Kind::Fetch) }).map(|_| ())
    }

    /// The connection is over.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Protocol`].
    pub fn disconnect_flow(
        &mut self,
        protocol: Protocol,
        local_port: u16,
        remote: SocketAddr,
    ) -> Result<(), Error> {
        let local = anywhere(remote, local_port);
        self.ask(&Request { protocol, local, remote, ..Request::new(Kind::Disconnect) }).map(|_| ())
    }

    /// As [`Client::disconnect_flow`] for many TCP connections, by their local ports and peers: the broker is woken for all of them at once.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Protocol`].
    pub fn disconnect_flows(&mut self, flows: &[(u16, SocketAddr)]) -> Result<(), Error> {
        for flows in flows.chunks(AT_ONCE) {
            for &(port, remote) in flows {
                self.say(&Request {
                    local: anywhere(remote, port),
                    remote,
                    ..Request::new(Kind::Disconnect)
                })?;
            }
            for _ in flows {
                match self.answer(Reply::parse) {
                    Ok(_) | Err(Error::Refused { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// The process ends, and its connections have: of what the broker remembers of the stack no peer has to be told. Whoever
    /// does not say so has been killed.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Protocol`].
    pub fn finish(&mut self) -> Result<(), Error> {
        self.ask(&Request::new(Kind::Finish)).map(|_| ())
    }

    /// How to reach an address: the kernel's route and neighbour. Nothing is steered. Waits for as long as the kernel asks for
    /// the next hop, three seconds by default.
    ///
    /// # Errors
    /// As [`Client::connect_flow`].
    pub fn route(&mut self, destination: IpAddr) -> Result<Route, Error> {
        self.ask(&Request { remote: SocketAddr::new(destination, 0), ..Request::new(Kind::Route) })
    }

    /// How to reach an address that is not heard, which may be behind another next hop by now: the kernel looks. Waits for no more than
    /// some milliseconds.
    ///
    /// # Errors
    /// As [`Client::route`].
    pub fn look(&mut self, destination: IpAddr) -> Result<Route, Error> {
        self.ask(&Request { remote: SocketAddr::new(destination, 0), ..Request::new(Kind::Look) })
    }

    /// Has the kernel go on with a connection of this stack's: `socket`, a TCP socket in no connection, becomes it, and its
    /// frames reach the kernel from now on. Everything that refers to the socket refers to the connection then.
    ///
    /// # Errors
    /// [`Error::Refused`]: nothing has changed. [`Error::Gone`], [`Error::Protocol`].
    pub fn hand_over(&mut self, socket: BorrowedFd<'_>, connection: BorrowedFd<'_>) -> Result<(), Error> {
        let request = RequestMessage::new(&Request::new(Kind::HandOver));
        tell_with(self.socket.as_fd(), request.as_bytes(), &[socket, connection])?;
        self.answer(Reply::parse).map(drop)
    }

    /// Whether [`Client::hand_over_pair`] can be done: the broker has the privilege.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Protocol`].
    pub fn moves_pairs(&mut self) -> Result<bool, Error> {
        match self.ask(&Request::new(Kind::HandOverPair)) {
            Ok(_) => Ok(true),
            Err(Error::Refused { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Has the kernel go on with a connection within the host: both ends, or one if the other is no more.
    ///
    /// # Errors
    /// As [`Client::hand_over`].
    pub fn hand_over_pair(&mut self, ends: &[PairEnd<'_>]) -> Result<(), Error> {
        let request = RequestMessage::new(&Request::new(Kind::HandOverPair));
        let descriptors: Vec<_> = ends.iter().flat_map(|end| [end.socket, end.file, end.holder]).collect();
        tell_with(self.socket.as_fd(), request.as_bytes(), &descriptors)?;
        self.answer(Reply::parse).map(drop)
    }

    /// As [`Client::hand_over`], and another process that listens at `listener` is to accept the connection. `socket` is of
    /// no more use here afterwards. If nobody comes to listen there within 2 s it is reset.
    ///
    /// # Errors
    /// As [`Client::hand_over`].
    pub fn give_away(
        &mut self,
        listener: SocketAddr,
        socket: BorrowedFd<'_>,
        connection: BorrowedFd<'_>,
    ) -> Result<(), Error> {
        let request = RequestMessage::new(&Request { local: listener, ..Request::new(Kind::GiveAway) });
        tell_with(self.socket.as_fd(), request.as_bytes(), &[socket, connection])?;
        self.answer(Reply::parse).map(drop)
    }

    /// Another process that listens at `listener` is to accept a connection of the kernel's, as in [`Client::give_away`].
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Protocol`].
    pub fn pass_on(
        &mut self,
        listener: SocketAddr,
        remote: SocketAddr,
        socket: BorrowedFd<'_>,
    ) -> Result<(), Error> {
        let request = RequestMessage::new(&Request { local: listener, remote, ..Request::new(Kind::PassOn) });
        tell_with(self.socket.as_fd(), request.as_bytes(), &[socket])?;
        self.answer(Reply::parse).map(drop)
    }

    /// The next connection that another process gave to a listener of this one. Does not wait: [`Client::as_fd`] is readable
    /// when there may be one.
    pub fn passed_connection(&mut self) -> Option<PassedConnection> {
        while self.passed.is_empty() {
            let heard = hear_with_descriptors(self.socket.as_fd(), RecvFlags::DONTWAIT, |bytes| {
                unasked(bytes).ok_or(Error::Protocol("not a connection that was passed on"))
            });
            match heard {
                Ok((message, [socket, ..])) => self.keep(message, socket),
                Err(error) => {
                    if error.is_end_of_broker() {
                        self.parting = Some(Parting::Gone);
                    }
                    return None;
                }
            }
        }
        self.passed.pop_front()
    }

    /// Whether something came before an answer that was waited for, and nobody has asked for it since: the connection will not be
    /// readable for it again.
    #[must_use]
    pub fn has_kept(&self) -> bool {
        !self.passed.is_empty() || self.renewed || self.parting.is_some()
    }

    /// Whether the broker ends. As [`Client::passed_connection`], which must have been asked before, this does not wait for the news.
    #[must_use]
    pub fn parting(&self) -> Option<Parting> {
        self.parting
    }

    /// The stack's new sockets, if the interface was gone and is there again; [`Client::interface`] is then as it is now. As
    /// [`Client::passed_connection`], which must have been asked before, this does not wait for the news.
    ///
    /// # Errors
    /// As [`Client::open_stack`].
    pub fn renewal(&mut self) -> Option<Result<Sockets, Error>> {
        core::mem::take(&mut self.renewed).then(|| {
            self.refresh_interface()?;
            self.open_stack()
        })
    }

    fn keep(&mut self, message: Unasked, socket: Option<OwnedFd>) {
        match (message, socket) {
            (Unasked::Passed(listener, remote), Some(socket)) => {
                self.passed.push_back(PassedConnection { listener, remote, socket });
            }
            (Unasked::Passed(..), None) => {}
            (Unasked::Renewed, _) => self.renewed = true,
            (Unasked::Farewell, _) => self.parting = Some(Parting::Farewell),
        }
    }

    /// The answer to a request. What comes unasked before it is kept.
    fn answer<T>(
        &mut self,
        parse: impl Fn(&[u8]) -> Result<T, Error>,
    ) -> Result<(T, [Option<OwnedFd>; DESCRIPTORS_MAX]), Error> {
        loop {
            let parse = |bytes: &[u8]| match unasked(bytes) {
                Some(message) => Ok(Err(message)),
                None => parse(bytes).map(Ok),
            };
            match hear_with_descriptors(self.socket.as_fd(), RecvFlags::empty(), parse)? {
                (Ok(answer), descriptors) => return Ok((answer, descriptors)),
                (Err(message), [socket, ..]) => self.keep(message, socket),
            }
        }
    }

    /// Gives the connection's descriptor a number from `least` on, if there is one.
    pub fn move_up(&mut self, least: i32) {
        move_up(&mut self.socket, least);
    }

    /// Memory in which this process shows itself to observers, and what they ring: for [`crate::watch::Show`].
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Protocol`], or what the kernel said.
    pub fn show(&mut self) -> Result<(OwnedFd, OwnedFd), Error> {
        self.say(&Request::new(Kind::Show))?;
        match self.answer(ShownPart::parse)? {
            (Some(_), [Some(memory), Some(doorbell), ..]) => Ok((memory, doorbell)),
            _ => Err(Error::Protocol("a process without what it shows")),
        }
    }

    /// The connection itself: it hangs up when the broker ends.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn ask_as(&mut self, socket: BorrowedFd<'_>, request: &Request) -> Result<Route, Error> {
        tell_with(self.socket.as_fd(), RequestMessage::new(request).as_bytes(), &[socket])?;
        self.answer(Reply::parse).map(|(route, _)| route)
    }

    fn ask(&mut self, request: &Request) -> Result<Route, Error> {
        self.say(request)?;
        self.answer(Reply::parse).map(|(route, _)| route)
    }

    fn say(&mut self, request: &Request) -> Result<(), Error> {
        tell(self.socket.as_fd(), RequestMessage::new(request).as_bytes())
    }
}

/// What a broker says without having been asked.
enum Unasked {
    Passed(SocketAddr, SocketAddr),
    Renewed,
    Farewell,
}

fn unasked(bytes: &[u8]) -> Option<Unasked> {
    match Word::parse(bytes) {
        Some(Word::Renewed) => Some(Unasked::Renewed),
        Some(Word::Farewell) => Some(Unasked::Farewell),
        Some(Word::Leash) => None,
        None => {
            message::PassedMessage::parse(bytes).map(|(listener, remote)| Unasked::Passed(listener, remote))
        }
    }
}

/// Whichever local address the route to `remote` says.
#[must_use]
pub fn anywhere(remote: SocketAddr, port: u16) -> SocketAddr {
    let address = match remote.ip().to_canonical() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(address, port)
}

/// A broker that knows of a [`Client`], and has perhaps not answered yet: it has just begun, or is stopped.
#[derive(Debug)]
pub struct Greeted(OwnedFd);

impl Greeted {
    /// Connects as [`Client::connect`], and waits for nothing where the broker is one that stands as a service.
    ///
    /// # Errors
    /// [`Error::Address`], [`Error::Gone`].
    pub fn new(environment: &str) -> Result<Greeted, Error> {
        greet(environment, Role::Client).map(Greeted)
    }

    /// Whether [`Greeted::welcome`] would not wait.
    #[must_use]
    pub fn has_answered(&self) -> bool {
        !is_silent(&self.0)
    }

    /// Waits for the answer: the interface.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Gone`], [`Error::Protocol`].
    pub fn welcome(&self) -> Result<Interface, Error> {
        hear(self.0.as_fd(), Welcome::parse)
    }

    /// Gives the connection's descriptor a number from `least` on, if there is one.
    pub fn move_up(&mut self, least: i32) {
        move_up(&mut self.0, least);
    }

    /// The connection.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

//! Serves an attachment to the processes of programs that have no privilege.
//!
//! One thread, one `poll` loop. What a client asked for is undone when its connection ends or its process dies, whichever
//! is seen first; its part of the shared rings is taken back when it is certain that it no longer touches them.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use overfly_link::broker::message::{
    Gift, Hello, Joined, Kind, MESSAGE_LEN_MAX, Part, Reply, Request, Role, StackPart, Token, Welcome, Wish,
};
use overfly_link::broker::{self, Refusal, Route, connection, observer};
use overfly_link::messages;
use overfly_link::xdp::StackSockets;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, accept_with, socket_with, socketpair};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::rand::{GetRandomFlags, getrandom};
use zerocopy::IntoBytes;

use crate::attachment::{Attachment, NEIGHBOR_WAIT};
use crate::claim;
use crate::error::Error;
use crate::netlink::AddressMonitor;
use crate::observers::{self, Peer, Seen, deliver, listen_at};
use crate::serving::Serving;

/// Connections at any time: more than stacks, because every process of a program holds a leash.
const CONNECTIONS_MAX: usize = 4096;
/// A connection that has not said who it is by then is closed.
const GREETING: Duration = Duration::from_secs(5);
/// How often a next hop is looked for.
const NEIGHBOR_PAUSE: Duration = Duration::from_millis(5);
/// How long a connection that one listener gave away waits for another to come: a server's new process may still be starting.
const GIFT_WAIT: Duration = Duration::from_secs(2);
/// How often it is tried.
const GIFT_PAUSE: Duration = Duration::from_millis(5);
/// How often a stack that was let go is looked at.
const LINGER_PAUSE: Duration = Duration::from_millis(50);

/// What a broker has done, and what it was asked for that made no sense.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BrokerCounters {
    /// Connections accepted.
    pub connections: u64,
    /// Connections refused, or left waiting, because there were too many.
    pub connections_refused: u64,
    /// Connections closed because they did not say [`Hello`], or had the wrong secret.
    pub greetings_refused: u64,
    /// Connections closed because of a message that is none, or at the wrong time.
    pub messages_refused: u64,
    /// Requests granted.
    pub requests_granted: u64,
    /// Requests that got a reason instead.
    pub requests_refused: u64,
    /// Connections closed because the client did not read its answers.
    pub answers_undelivered: u64,
    /// Stacks whose process died or let go.
    pub stacks_ended: u64,
    /// Steps of undoing that failed. Something outside interfered.
    pub undoing_failed: u64,
}

struct Shared {
    attachment: Mutex<Attachment>,
    counters: Mutex<BrokerCounters>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread that serves an attachment. Dropping it ends all that it gave away: leashed processes are killed by the kernel,
/// the XDP program is detached.
pub struct Broker {
    environment: String,
    is_public: bool,
    shared: Arc<Shared>,
    _serving: Serving,
}

impl Broker {
    /// Starts to serve, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// What the kernel said about the socket or the thread.
    pub fn start(attachment: Attachment) -> Result<Broker, Error> {
        let (listener, name, token) = open_socket()?;
        // Somebody else may have the public name: then nobody can look, and all else is as ever.
        let public = observers::listen_for(&attachment.interface().name);
        let is_public = public.is_some();
        let mut service = Service::new(attachment, Sockets { listener, name: name.clone(), public })?;
        let first = Program { number: service.next_program(), token };
        service.programs.push(first);
        let shared = Arc::clone(&service.shared);
        let serving = Serving::start(move |stopped| {
            service.stop = Some(stopped);
            service.run();
        })?;
        Ok(Broker { environment: broker::environment(&name, token), is_public, shared, _serving: serving })
    }

    /// The value of `OVERFLY_BROKER` for the program. Whoever has it may use the interface.
    #[must_use]
    pub fn environment(&self) -> &str {
        &self.environment
    }

    /// Observers find this broker at its interface's name. They do not if somebody else took that.
    #[must_use]
    pub fn is_public(&self) -> bool {
        self.is_public
    }

    /// The attachment, between two requests. Do not hold it for long.
    pub fn attachment(&self) -> impl std::ops::DerefMut<Target = Attachment> {
        lock(&self.shared.attachment)
    }

    /// What this broker has done.
    #[must_use]
    pub fn counters(&self) -> BrokerCounters {
        *lock(&self.shared.counters)
    }
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Broker").field("counters", &self.counters()).finish_non_exhaustive()
    }
}

/// The socket where clients connect, its name, and the secret.
pub(crate) fn open_socket() -> Result<(OwnedFd, String, Token), Error> {
    let mut random = [0; 24];
    getrandom(&mut random, GetRandomFlags::empty()).map_err(|errno| Error::system("getrandom", errno))?;
    let (suffix, secret) = random.split_at(8);
    let suffix = suffix.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
    let mut token = Token([0; 16]);
    token.0.copy_from_slice(secret);
    let name = format!("overfly-{}-{suffix:016x}", getpid().as_raw_nonzero());
    let listener = listen_at(&name).map_err(|errno| Error::system("the broker's socket", errno))?;
    Ok((listener, name, token))
}

/// Where a broker can be reached.
pub(crate) struct Sockets {
    /// For the processes of programs.
    pub(crate) listener: OwnedFd,
    /// The listener's name.
    pub(crate) name: String,
    /// For everybody, if it could be had.
    pub(crate) public: Option<OwnedFd>,
}

/// What a connection has become.
enum State {
    /// Has until then to say who it is; at the public name there is no secret.
    Greeting {
        until: Instant,
        public: bool,
    },
    Leash,
    /// `overfly run`: its program is served as long as this stands.
    Lease,
    /// Perhaps with a stack, perhaps waiting for an answer.
    Client {
        stack: Option<u16>,
        waiting: Option<Waiting>,
    },
}

/// What is to be answered as soon as a next hop does.
struct Waiting {
    wish: Wish,
    until: Instant,
}

/// A program that is served, and the secret that its processes say.
struct Program {
    number: u64,
    token: Token,
}

struct Connection {
    socket: OwnedFd,
    /// Of which program it is, once it has said so.
    program: Option<u64>,
    /// Whose it is.
    peer: Option<Peer>,
    /// Once the process shows itself.
    seen: Option<Seen>,
    /// Readable when the process that connected has died; `None` if it had died already or is out of sight.
    process: Option<OwnedFd>,
    state: State,
    over: bool,
}

impl Connection {
    fn stack(&self) -> Option<u16> {
        match self.state {
            State::Client { stack, .. } => stack,
            State::Greeting { .. } | State::Leash | State::Lease => None,
        }
    }
}

/// Gives a process what it can hold on to without hearing a word: one end of a pair, whose other end takes the place of the
/// connection.
pub(crate) fn tie(connection: &mut OwnedFd) -> bool {
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let Ok((ours, theirs)) = pair else { return false };
    let delivered = deliver(connection, Reply::yes(None).as_bytes(), &[theirs.as_fd()]);
    *connection = ours;
    delivered
}

/// A stack that nothing is steered to any more and whose process may still be at its rings.
struct Lingering {
    stack: u16,
    process: OwnedFd,
}

/// How long a broker serves.
#[derive(Clone, Copy)]
enum Term {
    /// Until it is told to stop.
    Endless,
    /// Nobody has come yet. Until then.
    First(Instant),
    /// Until the last program leaves.
    Last,
}

pub(crate) struct Service {
    // Dropped in this order: who waits at the sockets to join finds nobody there only when the interface is free again.
    shared: Arc<Shared>,
    connections: Vec<Connection>,
    sockets: Sockets,
    monitor: AddressMonitor,
    /// Readable when it is to end.
    stop: Option<OwnedFd>,
    term: Term,
    programs: Vec<Program>,
    /// Programs that there have been.
    programs_begun: u64,
    /// What a program that joins is told of the options.
    in_force: String,
    /// The network namespace's number ([`claim::namespace`]).
    namespace: u64,
    lingering: Vec<Lingering>,
    /// Connections that somebody is to accept.
    gifts: Vec<Given>,
}

impl Service {
    fn new(mut attachment: Attachment, sockets: Sockets) -> Result<Service, Error> {
        let monitor = AddressMonitor::open().map_err(|errno| Error::system("netlink monitor", errno))?;
        // What changed while it attached, nobody has told.
        attachment.refresh_addresses()?;
        let namespace = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .and_then(|socket| claim::namespace(socket.as_fd()))
            .map_err(|errno| Error::system("SO_NETNS_COOKIE", errno))?;
        let attachment = Mutex::new(attachment);
        let shared = Arc::new(Shared { attachment, counters: Mutex::new(BrokerCounters::default()) });
        Ok(Service {
            shared,
            connections: Vec::new(),
            sockets,
            monitor,
            stop: None,
            term: Term::Endless,
            programs: Vec::new(),
            programs_begun: 0,
            in_force: String::new(),
            namespace,
            lingering: Vec::new(),
            gifts: Vec::new(),
        })
    }

    /// One that ends with the last of the programs that join it.
    pub(crate) fn until_the_last(
        attachment: Attachment,
        sockets: Sockets,
        in_force: &str,
    ) -> Result<Service, Error> {
        let mut service = Service::new(attachment, sockets)?;
        service.term = Term::First(Instant::now() + GREETING);
        service.in_force = in_force.to_owned();
        Ok(service)
    }

    fn next_program(&mut self) -> u64 {
        self.programs_begun += 1;
        self.programs_begun
    }

    pub(crate) fn run(mut self) {
        const FIXED: usize = 4;
        loop {
            // Two places for each connection, so that results are found by number.
            let mut set = vec![
                PollFd::new(&self.monitor, PollFlags::IN),
                PollFd::new(&self.sockets.listener, PollFlags::IN),
                PollFd::new(self.sockets.public.as_ref().unwrap_or(&self.sockets.listener), PollFlags::IN),
                PollFd::new(self.stop.as_ref().unwrap_or(&self.sockets.listener), PollFlags::IN),
            ];
            for connection in &self.connections {
                let process = connection.process.as_ref().unwrap_or(&connection.socket);
                set.push(PollFd::new(&connection.socket, PollFlags::IN));
                set.push(PollFd::new(process, PollFlags::IN));
            }
            for lingering in &self.lingering {
                set.push(PollFd::new(&lingering.process, PollFlags::IN));
            }
            let timeout = self.pause().map(|pause| Timespec {
                tv_sec: pause.as_secs() as i64,
                tv_nsec: i64::from(pause.subsec_nanos()),
            });
            match poll(&mut set, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => std::thread::sleep(LINGER_PAUSE), // no memory: later
            }
            let ready: Vec<bool> = set.iter().map(|entry| !entry.revents().is_empty()).collect();
            drop(set);

            if ready[3] && self.stop.is_some() {
                return;
            }
            let connections = self.connections.len();
            for index in 0..connections {
                let (message, death) = (ready[FIXED + 2 * index], ready[FIXED + 2 * index + 1]);
                let connection = &mut self.connections[index];
                if death && connection.process.is_some() {
                    connection.over = true;
                } else if message {
                    self.hear(index);
                }
                self.look_after(index);
            }
            for (index, &dead) in ready[FIXED + 2 * connections..].iter().enumerate().rev() {
                self.settle(index, dead);
            }
            self.let_go_of_programs();
            if self.has_served() {
                return;
            }
            for index in (0..connections).rev() {
                if self.connections[index].over {
                    let connection = self.connections.swap_remove(index);
                    self.end(connection);
                }
            }
            if !self.gifts.is_empty() {
                self.bring_gifts();
            }
            if ready[0]
                && self.monitor.changed()
                && lock(&self.shared.attachment).refresh_addresses().is_err()
            {
                self.count(|counters| counters.undoing_failed += 1);
            }
            if ready[1] {
                self.accept(false);
            }
            if ready[2] && self.sockets.public.is_some() {
                self.accept(true);
            }
        }
    }

    /// Whose lease is over has its processes' connections closed: the leashed ones are killed by the kernel.
    fn let_go_of_programs(&mut self) {
        let ended = |connection: &Connection| connection.over && matches!(connection.state, State::Lease);
        let numbers: Vec<u64> =
            self.connections.iter().filter(|its| ended(its)).filter_map(|its| its.program).collect();
        if numbers.is_empty() {
            return;
        }
        self.programs.retain(|program| !numbers.contains(&program.number));
        for connection in &mut self.connections {
            connection.over |= connection.program.is_some_and(|number| numbers.contains(&number));
        }
    }

    /// Whether there is nothing to be done any more. Who is about to join will find that out and begin anew.
    fn has_served(&self) -> bool {
        match self.term {
            Term::Endless => false,
            Term::First(until) => until <= Instant::now(),
            Term::Last => self.programs.is_empty(),
        }
    }

    fn count(&self, change: impl FnOnce(&mut BrokerCounters)) {
        change(&mut lock(&self.shared.counters));
    }

    /// How long nothing needs to be looked at.
    fn pause(&self) -> Option<Duration> {
        let linger = (!self.lingering.is_empty()).then_some(LINGER_PAUSE);
        let first = match self.term {
            Term::First(until) => Some(until.saturating_duration_since(Instant::now())),
            Term::Endless | Term::Last => None,
        };
        self.connections
            .iter()
            .filter_map(|connection| match &connection.state {
                State::Greeting { until, .. } => Some(until.saturating_duration_since(Instant::now())),
                State::Client { waiting: Some(_), .. } => Some(NEIGHBOR_PAUSE),
                _ => None,
            })
            .chain(linger)
            .chain(first)
            .chain((!self.gifts.is_empty()).then_some(GIFT_PAUSE))
            .min()
    }

    fn accept(&mut self, public: bool) {
        loop {
            let Sockets { listener, public: open, .. } = &self.sockets;
            let listener = open.as_ref().filter(|_| public).unwrap_or(listener);
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match accept_with(listener, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(_) => {
                    // No descriptors or no memory: whoever waits must wait until some are free.
                    self.count(|counters| counters.connections_refused += 1);
                    return std::thread::sleep(LINGER_PAUSE);
                }
            };
            if self.connections.len() >= CONNECTIONS_MAX {
                self.count(|counters| counters.connections_refused += 1);
                continue;
            }
            self.count(|counters| counters.connections += 1);
            let peer = Peer::of(&socket);
            let process = peer.and_then(|peer| pidfd_open(peer.process, PidfdFlags::empty()).ok());
            self.connections.push(Connection {
                socket,
                program: None,
                peer,
                seen: None,
                process,
                state: State::Greeting { until: Instant::now() + GREETING, public },
                over: false,
            });
        }
    }

    /// Reads one message of a connection and does what it says.
    fn hear(&mut self, index: usize) {
        let mut bytes = [0; MESSAGE_LEN_MAX];
        let connection = &mut self.connections[index];
        let (length, descriptors) = match receive(&connection.socket, &mut bytes) {
            Ok((length, descriptors)) if length > 0 => (length, descriptors),
            Err(Errno::AGAIN | Errno::INTR) => return,
            _ => {
                connection.over = true;
                return;
            }
        };
        let message = bytes.get(..length).unwrap_or_default(); // longer than any message: none
        match &connection.state {
            State::Greeting { public, .. } => {
                let public = *public;
                self.greet(index, message, public);
            }
            State::Client { stack, waiting: None } => {
                let stack = *stack;
                match Request::parse(message) {
                    Some(wish) => self.serve(index, stack, wish, &descriptors),
                    None => self.refuse_message(index),
                }
            }
            // A leash and a lease say nothing more, and a client waits for its answer.
            State::Leash | State::Lease | State::Client { .. } => self.refuse_message(index),
        }
    }

    /// Hears who a connection is.
    fn greet(&mut self, index: usize, message: &[u8], public: bool) {
        let known = |program: &Program| Some((Hello::parse(message, program.token)?, program.number));
        let connection = &mut self.connections[index];
        match (self.programs.iter().find_map(known), Hello::parse(message, observer::PUBLIC)) {
            (Some((Role::Leash, program)), _) if !public => {
                (connection.state, connection.program) = (State::Leash, Some(program));
                let delivered = tie(&mut connection.socket);
                self.note_delivery(index, delivered);
            }
            (Some((Role::Client, program)), _) if !public => {
                connection.state = State::Client { stack: None, waiting: None };
                connection.program = Some(program);
                self.welcome(index);
            }
            (None, Some(Role::Program)) if connection.peer.is_some_and(Peer::may_join) => self.join(index),
            (None, Some(Role::Observer)) if public => {
                self.show_all(index);
                self.connections[index].over = true;
            }
            _ => {
                if public {
                    let reason = "the programs of this interface are another user's, or run over another version of Overfly";
                    self.answer(index, Reply::no(Refusal::BadRequest, reason).as_bytes());
                }
                self.connections[index].over = true;
                self.count(|counters| counters.greetings_refused += 1);
            }
        }
    }

    /// One more program is served.
    fn join(&mut self, index: usize) {
        let mut token = Token([0; 16]);
        if let Err(errno) = getrandom(&mut token.0[..], GetRandomFlags::empty()) {
            return self.reply(index, Err(Error::system("getrandom", errno)));
        }
        let number = self.next_program();
        self.programs.push(Program { number, token });
        if let Term::First(_) = self.term {
            self.term = Term::Last;
        }
        let connection = &mut self.connections[index];
        (connection.state, connection.program) = (State::Lease, Some(number));
        let before = lock(&self.shared.attachment).deferral_before();
        let joined = Joined::new(&self.sockets.name, token, &self.in_force, before);
        self.answer(index, joined.as_bytes());
    }

    fn refuse_message(&mut self, index: usize) {
        self.connections[index].over = true;
        self.count(|counters| counters.messages_refused += 1);
    }

    fn serve(&mut self, index: usize, stack: Option<u16>, wish: Wish, descriptors: &[OwnedFd]) {
        let shared = Arc::clone(&self.shared);
        let mut attachment = lock(&shared.attachment);
        let no_stack = Err(Error::Options("open a stack first".to_owned()));
        let Wish { kind, protocol, v6only, local, remote, cluster } = wish;
        let result = match (kind, stack) {
            (Kind::Interface, _) => {
                drop(attachment);
                self.count(|counters| counters.requests_granted += 1);
                return self.welcome(index);
            }
            (Kind::Show, _) => {
                drop(attachment);
                return self.let_show(index);
            }
            (Kind::OpenStack, Some(_)) => Err(Error::Options("this client has a stack already".to_owned())),
            (Kind::OpenStack, None) => match add_stack(&mut attachment, self.connections[index].peer) {
                Ok(sockets) => {
                    drop(attachment);
                    return self.hand_over(index, &sockets);
                }
                Err(error) => Err(error),
            },
            // The kernel knows whether the addresses are the host's.
            (Kind::HandOverPair, _) => {
                drop(attachment);
                return self.reply(index, crate::repair::pair(descriptors).map(|()| None));
            }
            (_, None) => no_stack,
            (Kind::Listen | Kind::Connect, _)
                if let Err(error) = self.may_have(index, &wish, descriptors) =>
            {
                Err(error)
            }
            (Kind::Listen, Some(stack)) => {
                attachment.listen_in(stack, protocol, local, v6only, cluster).map(|()| None)
            }
            (Kind::Unlisten, Some(stack)) => {
                attachment.unlisten(stack, protocol, local, v6only).map(|()| None)
            }
            (Kind::Disconnect, Some(stack)) => {
                attachment.disconnect_flow(stack, protocol, local, remote).map(|()| None)
            }
            (Kind::HandOver, Some(stack)) => hand_over(&mut attachment, stack, descriptors).map(|_| None),
            (Kind::GiveAway | Kind::PassOn, Some(stack)) => give(&mut attachment, stack, &wish, descriptors)
                .map(|gift| {
                    self.gifts.push(gift);
                    None
                }),
            (Kind::Connect | Kind::Route, Some(stack)) => {
                match settle_route(&mut attachment, stack, &wish, true) {
                    Ok(Ok(route)) => Ok(Some(route)),
                    Ok(Err(_)) => {
                        // look_after goes on with it.
                        if let State::Client { waiting, .. } = &mut self.connections[index].state {
                            *waiting = Some(Waiting { wish, until: Instant::now() + NEIGHBOR_WAIT });
                        }
                        return;
                    }
                    Err(error) => Err(error),
                }
            }
        };
        drop(attachment);
        self.reply(index, result);
    }

    /// Whether a client may have what comes to the address that it names. Who could do what the broker does may have all.
    fn may_have(&self, index: usize, wish: &Wish, descriptors: &[OwnedFd]) -> Result<(), Error> {
        match self.connections[index].peer {
            Some(peer) if peer.may_join() => Ok(()),
            _ => claim::check(descriptors.first(), wish, self.namespace),
        }
    }

    /// Goes on with what a connection waits for.
    fn look_after(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        match &mut connection.state {
            State::Greeting { until, .. } if *until <= Instant::now() => {
                connection.over = true;
                self.count(|counters| counters.greetings_refused += 1);
            }
            State::Client { stack: Some(stack), waiting } => {
                let Some(Waiting { wish, until }) = waiting else {
                    return;
                };
                let mut attachment = lock(&self.shared.attachment);
                let result = match settle_route(&mut attachment, *stack, wish, false) {
                    Ok(Ok(route)) => Ok(Some(route)),
                    Ok(Err(next_hop)) if *until <= Instant::now() => Err(Error::NoNeighbor { next_hop }),
                    Ok(Err(_)) => return,
                    Err(error) => Err(error),
                };
                *waiting = None;
                drop(attachment);
                self.reply(index, result);
            }
            _ => {}
        }
    }

    fn reply(&mut self, index: usize, result: Result<Option<Route>, Error>) {
        match result {
            Ok(route) => {
                self.count(|counters| counters.requests_granted += 1);
                self.answer(index, Reply::yes(route).as_bytes());
            }
            Err(error) => {
                self.count(|counters| counters.requests_refused += 1);
                let no = Reply::no(refusal(&error), &error.to_string());
                self.answer(index, no.as_bytes());
            }
        }
    }

    fn welcome(&mut self, index: usize) {
        let welcome = Welcome::new(lock(&self.shared.attachment).interface());
        self.answer(index, welcome.as_bytes());
    }

    fn answer(&mut self, index: usize, bytes: &[u8]) {
        self.answer_with(index, bytes, &[]);
    }

    /// Gives a new stack's sockets to a client.
    fn hand_over(&mut self, index: usize, sockets: &StackSockets) {
        if let State::Client { stack, .. } = &mut self.connections[index].state {
            *stack = Some(sockets.stack);
        }
        self.count(|counters| counters.requests_granted += 1);
        for (queue, descriptors) in (0_u16..).zip(&sockets.queues) {
            let part = StackPart::new(&Part {
                stack: sockets.stack,
                queue,
                queues: sockets.queues.len() as u16,
                zero_copy: sockets.zero_copy,
                busy_poll: sockets.busy_poll,
                layout: sockets.layout,
            });
            self.answer_with(index, part.as_bytes(), &[descriptors.socket.as_fd(), descriptors.pool.as_fd()]);
        }
    }

    /// Brings connections to whoever accepts them now, and resets those that nobody came for.
    fn bring_gifts(&mut self) {
        let (connections, now) = (&self.connections, Instant::now());
        let mut attachment = lock(&self.shared.attachment);
        self.gifts.retain(|gift| {
            let heir = attachment.next_listener(gift.listener);
            let is_heir = |connection: &&Connection| match connection.state {
                State::Client { stack, .. } => heir.is_some() && stack == heir,
                _ => false,
            };
            let brought = connections.iter().find(is_heir).is_some_and(|heir| gift.send(&heir.socket));
            !brought && now < gift.until
        });
    }

    /// Makes the memory in which a client shows itself.
    fn let_show(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        match Seen::new(connection.peer) {
            Ok(seen) => {
                let delivered = seen.deliver(&connection.socket, connection.stack());
                connection.seen = Some(seen);
                self.count(|counters| counters.requests_granted += 1);
                self.note_delivery(index, delivered);
            }
            Err(error) => self.reply(index, Err(error)),
        }
    }

    /// Tells an observer of every process that it may see.
    fn show_all(&mut self, index: usize) {
        let observer = &self.connections[index];
        let processes = self.connections.iter().filter(|process| !process.over);
        let processes = processes.filter_map(|process| Some((process.seen.as_ref()?, process.stack())));
        let delivered = observers::tell_all(&observer.socket, observer.peer, processes);
        self.note_delivery(index, delivered);
    }

    fn answer_with(&mut self, index: usize, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let delivered = deliver(&self.connections[index].socket, bytes, descriptors);
        self.note_delivery(index, delivered);
    }

    fn note_delivery(&mut self, index: usize, delivered: bool) {
        if !delivered {
            self.connections[index].over = true;
            self.count(|counters| counters.answers_undelivered += 1);
        }
    }

    /// Undoes everything that a connection asked for.
    fn end(&mut self, connection: Connection) {
        let stack = match connection.state {
            State::Client { stack: Some(stack), .. } => stack,
            State::Lease => {
                // It waits to hear that others go on; where it was the last, it hears the end.
                deliver(&connection.socket, Reply::yes(None).as_bytes(), &[]);
                return;
            }
            _ => return,
        };
        let mut attachment = lock(&self.shared.attachment);
        let detached = attachment.detach_stack(stack);
        // A live process that closed the connection may still be at its rings, if it did not say otherwise.
        let alive = connection.process.filter(|process| !is_readable(process));
        let removed = match alive {
            Some(process) if attachment.is_in_use(stack) => {
                self.lingering.push(Lingering { stack, process });
                Ok(())
            }
            _ => attachment.remove_stack(stack),
        };
        drop(attachment);
        let failed = u64::from(detached.is_err()) + u64::from(removed.is_err());
        self.count(|counters| {
            counters.stacks_ended += 1;
            counters.undoing_failed += failed;
        });
    }

    /// Takes a stack's part of the rings back once its process has died or let go.
    fn settle(&mut self, index: usize, dead: bool) {
        let mut attachment = lock(&self.shared.attachment);
        let stack = self.lingering[index].stack;
        if !dead && attachment.is_in_use(stack) {
            return;
        }
        let removed = attachment.remove_stack(stack);
        drop(attachment);
        self.lingering.swap_remove(index);
        if removed.is_err() {
            self.count(|counters| counters.undoing_failed += 1);
        }
    }
}

/// Grants [`Kind::Route`] and [`Kind::Connect`]; `Err(next_hop)` inside if the next hop's address is not known yet. With
/// `provoke` the kernel is made to ask for it.
fn settle_route(
    attachment: &mut Attachment,
    stack: u16,
    wish: &Wish,
    provoke: bool,
) -> Result<Result<Route, IpAddr>, Error> {
    let Wish { kind, protocol, local, remote, .. } = *wish;
    match attachment.try_route(remote.ip(), provoke)? {
        Ok(route) if kind == Kind::Connect => {
            attachment.register_flow(stack, protocol, local, remote, route).map(Ok)
        }
        found => Ok(found),
    }
}

/// One message and what comes with it: its length, which is more than there is room for if it is longer.
pub(crate) fn receive(
    socket: &OwnedFd,
    bytes: &mut [u8; MESSAGE_LEN_MAX],
) -> Result<(usize, Vec<OwnedFd>), Errno> {
    messages::receive(socket, bytes, RecvFlags::DONTWAIT | RecvFlags::TRUNC)
}

/// Grants [`Kind::HandOver`]; returns the peer.
fn hand_over(attachment: &mut Attachment, stack: u16, descriptors: &[OwnedFd]) -> Result<SocketAddr, Error> {
    let [socket, file] = descriptors else {
        return Err(Error::Options("a connection is a socket and a file".to_owned()));
    };
    let (connection, bytes) = connection::Connection::from_file(file)
        .map_err(|errno| Error::system("reading the connection", errno))?;
    attachment.hand_over(stack, socket.as_fd(), &connection, &bytes)?;
    Ok(connection.remote())
}

/// A connection of the kernel's on its way from one stack's listener to another's.
struct Given {
    listener: SocketAddr,
    remote: SocketAddr,
    socket: OwnedFd,
    /// How long it waits for somebody to listen.
    until: Instant,
}

impl Given {
    /// False if the client does not read.
    fn send(&self, client: &OwnedFd) -> bool {
        deliver(client, Gift::new(self.listener, self.remote).as_bytes(), &[self.socket.as_fd()])
    }
}

/// Grants [`Kind::GiveAway`] and [`Kind::PassOn`].
fn give(
    attachment: &mut Attachment,
    stack: u16,
    wish: &Wish,
    descriptors: &[OwnedFd],
) -> Result<Given, Error> {
    let remote = match (wish.kind, descriptors) {
        (Kind::GiveAway, descriptors) => hand_over(attachment, stack, descriptors)?,
        (_, [_]) => wish.remote,
        _ => return Err(Error::Options("a connection to be passed on is one socket".to_owned())),
    };
    let socket = fcntl_dupfd_cloexec(&descriptors[0], 3).map_err(|errno| Error::system("dup", errno))?;
    Ok(Given { listener: wish.local, remote, socket, until: Instant::now() + GIFT_WAIT })
}

/// Grants [`Kind::OpenStack`].
fn add_stack(attachment: &mut Attachment, peer: Option<Peer>) -> Result<StackSockets, Error> {
    let peer = peer.ok_or_else(|| Error::Options("a process that nobody sees".to_owned()))?;
    attachment.add_stack_for(peer.user)
}

fn is_readable(descriptor: &OwnedFd) -> bool {
    let mut set = [PollFd::new(descriptor, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut set, Some(&now)), Ok(1))
}

pub(crate) fn refusal(error: &Error) -> Refusal {
    match error {
        Error::Options(_) | Error::UnknownStack(_) => Refusal::StackState,
        Error::NoStack { .. } | Error::TooFewFrames { .. } | Error::OtherUser { .. } => Refusal::NoStack,
        Error::ListenerTaken { .. } => Refusal::ListenerTaken,
        Error::NotLocal(_) => Refusal::NotLocal,
        Error::TupleInUse { .. } => Refusal::TupleInUse,
        Error::Unreachable { .. } => Refusal::Unreachable,
        Error::RouteElsewhere { .. } => Refusal::RouteElsewhere,
        Error::NoNeighbor { .. } => Refusal::NoNeighbor,
        Error::NotTheirs { .. } | Error::NotMoved { .. } | Error::NoKernelsAddress => Refusal::NotMoved,
        _ => Refusal::Other,
    }
}

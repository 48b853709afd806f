//! What every broker does, whatever carries the frames: one thread, one `poll` loop, one table of connections. What a client asked
//! for is undone when its connection ends or its process dies, whichever is seen first.

mod acceptor;
mod admission;
mod agent;
mod guests;
mod observers;
mod programs;
mod ready;
mod requests;
mod serving;

pub use acceptor::{Sockets, raise_descriptor_limit};
pub use admission::{Admission, Applicant, Event, Share};
pub use agent::{Agent, Caller};
pub use observers::{Peer, deliver, listen_at, listen_for, public_name};
pub use ready::readable;
pub use serving::{Broker, Serving, open_socket};

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use overfly_link::messages;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use zerocopy::IntoBytes;

use self::acceptor::{Acceptor, Silent};
use self::observers::Observed;
use self::ready::is_readable;
use crate::message::{MESSAGE_LEN_MAX, News, Reply, Request, Token, Word};
use crate::{Deferral, Interface, LeftFrames, Refusal, Route};

/// How long a first program may take to join a broker that serves nobody yet.
const FIRST: Duration = Duration::from_secs(5);
/// How long a broker that was told to end waits for its clients to hand over what they have.
const PARTING: Duration = Duration::from_secs(20);

/// How soon a request that cannot be answered yet is looked at again.
pub const WAITING_PAUSE: Duration = Duration::from_millis(1);

/// What a broker has done, and what it was asked for that made no sense.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections accepted.
    pub connections: u64,
    /// Connections turned away because there were too many, or not enough descriptors.
    pub connections_refused: u64,
    /// Connections closed because they did not say [`Hello`](crate::message::Hello), or had the wrong secret.
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

/// Why a request is not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// Why, for the program.
    pub refusal: Refusal,
    /// Why, in words.
    pub reason: String,
}

impl Denial {
    fn new(refusal: Refusal, reason: impl Into<String>) -> Denial {
        Denial { refusal, reason: reason.into() }
    }
}

/// What a request comes to.
pub type Outcome<E> = Result<Option<Route>, E>;

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Asker<'a> {
    /// The process that connected, as the kernel says it.
    pub peer: Option<Peer>,
    /// That process itself.
    process: Option<&'a OwnedFd>,
    /// Its end of the conversation.
    pub socket: &'a OwnedFd,
}

impl Asker<'_> {
    /// Whether it could do what the broker does.
    #[must_use]
    pub fn may_do_all(&self) -> bool {
        let alive = || self.process.is_some_and(|process| !is_readable(process));
        self.peer.is_some_and(|peer| peer.may_do_all(alive))
    }
}

/// What a request comes to at once.
#[derive(Debug)]
pub enum Asked<W, E> {
    /// This is the answer.
    Now(Outcome<E>),
    /// It is to be looked at again.
    Later(W),
}

/// What a broker gives away: what carries the frames of its programs.
pub trait Backing {
    /// What cannot be answered yet.
    type Waiting;
    /// Why something cannot be had.
    type Error: Into<Denial>;

    /// What clients are told that they have.
    fn interface(&self) -> Interface;

    /// Whether other programs may join, and what those are told of the device's settings.
    fn shares(&self) -> Option<Option<Deferral>>;

    /// What no stack was given, if that is counted.
    fn left(&self) -> Option<LeftFrames>;

    /// What it is to be woken by.
    fn watched(&self) -> Vec<BorrowedFd<'_>>;

    /// These of them are ready; how many steps of undoing have failed.
    fn wake(&mut self, ready: &[bool]) -> u64;

    /// When it is to be woken in any case.
    fn pause(&self) -> Option<Duration>;

    /// Makes a stack for a client and gives it to it. False if the client does not take it.
    ///
    /// # Errors
    /// Why there is none.
    fn open_stack(&mut self, asker: Asker<'_>) -> Result<(u16, bool), Self::Error>;

    /// Gives a client its stack once more: something has become of what carries the frames. False if the client does not take it.
    ///
    /// # Errors
    /// Why it has no other.
    fn renew_stack(&mut self, asker: Asker<'_>, stack: u16) -> Result<bool, Self::Error>;

    /// A client has gone; its process may live. It has `finished` if it said that its connections are over. How many steps of
    /// undoing have failed.
    fn close_stack(&mut self, stack: u16, process: Option<OwnedFd>, finished: bool) -> u64;

    /// Grants what a client asks for, or not.
    fn ask(
        &mut self,
        asker: Asker<'_>,
        stack: Option<u16>,
        request: Request,
        descriptors: Vec<OwnedFd>,
    ) -> Asked<Self::Waiting, Self::Error>;

    /// What has come of it by now.
    fn go_on(&mut self, stack: Option<u16>, waiting: &mut Self::Waiting) -> Option<Outcome<Self::Error>>;

    /// Tells clients what they have not asked for: connections that they are to accept, news of their stacks.
    fn tell(&mut self, clients: &mut dyn Iterator<Item = (u16, &OwnedFd)>);

    /// What the programs' users must know, since it was asked last: one line each.
    fn news(&mut self) -> Vec<String>;
}

/// What a connection has become.
enum Session<W> {
    Leash,
    /// `overfly run`: its program is served as long as this stands.
    Lease,
    /// Perhaps with a stack, perhaps waiting for an answer.
    Client {
        stack: Option<u16>,
        waiting: Option<W>,
    },
}

/// A program that is served, and the secret that its processes say.
struct Program {
    number: u64,
    token: Token,
    /// Whose it is, and what it gets; nothing if that is as much as there is.
    share: Option<(u32, Share)>,
}

/// Somebody who has said who it is.
struct Connection<W> {
    socket: OwnedFd,
    /// Of which program it is.
    program: u64,
    /// Whose it is.
    peer: Option<Peer>,
    /// Once the process shows itself.
    observed: Option<Observed>,
    /// Readable when the process that connected has died; `None` if it had died already or is out of sight.
    process: Option<OwnedFd>,
    session: Session<W>,
    /// It has ended its connections itself.
    finished: bool,
    over: bool,
}

impl<W> Connection<W> {
    fn stack(&self) -> Option<u16> {
        match self.session {
            Session::Client { stack, .. } => stack,
            Session::Leash | Session::Lease => None,
        }
    }

    fn asker(&self) -> Asker<'_> {
        Asker { peer: self.peer, process: self.process.as_ref(), socket: &self.socket }
    }
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
    /// Until it is told to stop.
    Standing,
    /// It was, and has told its clients: until they have handed over what they have, and no longer than until then.
    Parting(Instant),
}

/// A broker that serves.
pub struct Service<B: Backing> {
    // Dropped in this order: who waits at the sockets to join finds nobody there only when the interface is free again.
    backing: B,
    connections: Vec<Connection<B::Waiting>>,
    acceptor: Acceptor,
    counters: Arc<Mutex<Counters>>,
    term: Term,
    programs: Vec<Program>,
    /// Programs that there have been.
    programs_begun: u64,
    /// What a program that joins is told of the options.
    in_force: String,
    /// Who is served, where somebody decides that: else the broker's own user.
    admission: Option<Box<dyn Admission>>,
}

impl<B: Backing> Service<B> {
    /// One that serves a first program, which has this secret, until it is told to stop.
    #[must_use]
    pub fn endless(backing: B, sockets: Sockets, token: Token) -> Service<B> {
        let mut service = Service::new(backing, sockets, Term::Endless, "");
        let number = service.next_program();
        service.programs.push(Program { number, token, share: None });
        service
    }

    /// One that serves until it is told to stop and its clients have handed over what they have.
    #[must_use]
    pub fn standing(backing: B, sockets: Sockets, in_force: &str) -> Service<B> {
        Service::new(backing, sockets, Term::Standing, in_force)
    }

    /// Serves whomever `admission` admits, instead of its own user.
    #[must_use]
    pub fn admitting(mut self, admission: Box<dyn Admission>) -> Service<B> {
        self.admission = Some(admission);
        self
    }

    /// One that ends with the last of the programs that join it.
    #[must_use]
    pub fn until_the_last(backing: B, sockets: Sockets, in_force: &str) -> Service<B> {
        Service::new(backing, sockets, Term::First(Instant::now() + FIRST), in_force)
    }

    fn new(backing: B, sockets: Sockets, term: Term, in_force: &str) -> Service<B> {
        Service {
            backing,
            connections: Vec::new(),
            acceptor: Acceptor::new(sockets),
            counters: Arc::default(),
            term,
            programs: Vec::new(),
            programs_begun: 0,
            in_force: in_force.to_owned(),
            admission: None,
        }
    }

    /// What it counts, for others to look at.
    #[must_use]
    pub fn counters(&self) -> Arc<Mutex<Counters>> {
        Arc::clone(&self.counters)
    }

    fn next_program(&mut self) -> u64 {
        self.programs_begun += 1;
        self.programs_begun
    }

    /// Serves, until `stop` is readable if there is one.
    pub fn run(mut self, mut stop: Option<&OwnedFd>) {
        loop {
            let [stopped, private, public, silent, connections, backing] = self.wait(stop);
            if stopped.contains(&true) {
                let Term::Standing = self.term else { return };
                stop = None;
                self.say_farewell();
            }
            // Before anybody is served: rules may have changed.
            let failed = self.backing.wake(&backing);
            for (index, ready) in connections.chunks_exact(2).enumerate() {
                let connection = &mut self.connections[index];
                if ready[1] && connection.process.is_some() {
                    connection.over = true;
                } else if ready[0] {
                    self.hear(index);
                }
                self.look_after(index);
            }
            let mut clients = self.connections.iter().filter(|client| !client.over);
            let mut clients = clients.by_ref().filter_map(|client| Some((client.stack()?, &client.socket)));
            self.backing.tell(&mut clients);
            for line in self.backing.news() {
                self.spread(&line);
                self.note(Event::News(line));
            }
            let heard: Vec<Silent> = {
                let mut ready = silent.iter();
                self.acceptor.silent.extract_if(.., |_| ready.next() == Some(&true)).collect()
            };
            for silent in heard {
                self.greet(silent);
            }
            self.let_go_of_programs();
            let has_served = self.has_served();
            for index in (0..self.connections.len()).rev() {
                // The last lease hears the end, when all is as it was before.
                let stays = has_served && matches!(self.connections[index].session, Session::Lease);
                if self.connections[index].over && !stays {
                    let connection = self.connections.swap_remove(index);
                    self.end(connection);
                }
            }
            if has_served {
                return;
            }
            let late = self.acceptor.close_late();
            if private.contains(&true) {
                self.acceptor.admit(false);
            }
            if public.contains(&true) {
                self.acceptor.admit(true);
            }
            let (admitted, refused) = (self.acceptor.admitted, self.acceptor.refused);
            self.count(|counters| {
                counters.greetings_refused += late;
                counters.undoing_failed += failed;
                (counters.connections, counters.connections_refused) = (admitted, refused);
            });
        }
    }

    /// Waits until something is to be done, and says what: to stop, who is at the door, privately and publicly, who has said its
    /// first word, which connections have (each with its process's death), and what the backing watches.
    fn wait(&mut self, stop: Option<&OwnedFd>) -> [Vec<bool>; 6] {
        let pause = self.pause();
        let open = self.acceptor.is_open();
        let Sockets { listener, public, .. } = &self.acceptor.sockets;
        let parts: [Vec<BorrowedFd<'_>>; 6] = [
            stop.iter().map(AsFd::as_fd).collect(),
            open.then(|| listener.as_fd()).into_iter().collect(),
            public.as_ref().filter(|_| open).map(AsFd::as_fd).into_iter().collect(),
            self.acceptor.silent.iter().map(|silent| silent.socket.as_fd()).collect(),
            // Two places for each connection, so that results are found by number.
            self.connections
                .iter()
                .flat_map(|one| [one.socket.as_fd(), one.process.as_ref().unwrap_or(&one.socket).as_fd()])
                .collect(),
            self.backing.watched(),
        ];
        readable(parts, pause)
    }

    /// Tells every program's `overfly run`, or, where the broker is a thread of the program, standard error.
    fn spread(&self, line: &str) {
        if let Term::Endless = self.term {
            eprintln!("overfly: {line}");
        }
        let leases = self.connections.iter().filter(|one| !one.over && matches!(one.session, Session::Lease));
        for lease in leases {
            // One that is stopped misses it.
            deliver(&lease.socket, News::new(line).as_bytes(), &[]);
        }
    }

    /// How long nothing needs to be looked at.
    fn pause(&self) -> Option<Duration> {
        let first = match self.term {
            Term::First(until) | Term::Parting(until) => {
                Some(until.saturating_duration_since(Instant::now()))
            }
            Term::Endless | Term::Last | Term::Standing => None,
        };
        let waits = |one: &Connection<B::Waiting>| {
            matches!(one.session, Session::Client { waiting: Some(_), .. }) && !one.over
        };
        let waiting = self.connections.iter().any(waits).then_some(WAITING_PAUSE);
        [self.acceptor.pause(), self.backing.pause(), first, waiting].into_iter().flatten().min()
    }

    /// It was told to stop: its clients hand over to the kernel what they have, and their programs go on without it.
    fn say_farewell(&mut self) {
        self.term = Term::Parting(Instant::now() + PARTING);
        self.note(Event::Ending { programs: self.programs.len() });
        self.spread(
            "the broker ends: connections continue on the kernel's stack, and new ones are accelerated once there is another one",
        );
        for one in self.connections.iter().filter(|one| matches!(one.session, Session::Client { .. })) {
            deliver(&one.socket, &Word::Farewell.to_bytes(), &[]);
        }
    }

    /// Another broker may come to serve the same programs.
    const fn stands(&self) -> bool {
        matches!(self.term, Term::Standing | Term::Parting(_))
    }

    /// Whose lease is over has its processes' connections closed: the leashed ones are killed by the kernel.
    fn let_go_of_programs(&mut self) {
        let ended = |one: &&Connection<B::Waiting>| one.over && matches!(one.session, Session::Lease);
        let ended = self.connections.iter().filter(ended).map(|its| (its.program, its.peer));
        let (numbers, peers): (Vec<u64>, Vec<Option<Peer>>) = ended.unzip();
        if numbers.is_empty() {
            return;
        }
        for peer in peers.into_iter().flatten() {
            self.note(Event::Ended { process: peer.number() });
        }
        self.programs.retain(|program| !numbers.contains(&program.number));
        for connection in &mut self.connections {
            connection.over |= numbers.contains(&connection.program);
        }
    }

    /// Whether there is nothing to be done any more. Who is about to join will find that out and begin anew.
    fn has_served(&self) -> bool {
        match self.term {
            Term::Endless | Term::Standing => false,
            Term::First(until) => until <= Instant::now(),
            Term::Last => self.programs.is_empty(),
            Term::Parting(until) => {
                let has_some = |one: &Connection<B::Waiting>| one.stack().is_some() && !one.over;
                until <= Instant::now() || !self.connections.iter().any(has_some)
            }
        }
    }

    fn note(&mut self, event: Event) {
        if let Some(admission) = &mut self.admission {
            admission.note(event);
        }
    }

    fn count(&self, change: impl FnOnce(&mut Counters)) {
        change(&mut lock(&self.counters));
    }

    /// Undoes everything that a connection asked for.
    fn end(&mut self, connection: Connection<B::Waiting>) {
        let stack = match connection.session {
            Session::Client { stack: Some(stack), .. } => stack,
            Session::Lease => {
                // It waits to hear that others go on.
                deliver(&connection.socket, Reply::yes(None).as_bytes(), &[]);
                return;
            }
            _ => return,
        };
        // A live process that closed the connection may still be at its rings, if it did not say otherwise.
        let alive = connection.process.filter(|process| !is_readable(process));
        let failed = self.backing.close_stack(stack, alive, connection.finished);
        self.count(|counters| {
            counters.stacks_ended += 1;
            counters.undoing_failed += failed;
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One message and what comes with it: its length, which is more than there is room for if it is longer.
fn receive(socket: &OwnedFd, bytes: &mut [u8; MESSAGE_LEN_MAX]) -> Result<(usize, Vec<OwnedFd>), Errno> {
    messages::receive(socket, bytes, RecvFlags::DONTWAIT | RecvFlags::TRUNC)
}

//! Who comes in, and what becomes of them.

use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::rand::{GetRandomFlags, getrandom};
use zerocopy::IntoBytes;

use super::acceptor::{Silent, turn_away};
use super::admission::Share;
use super::observers::{self, Peer, deliver};
use super::{Backing, Connection, Program, Service, Session, Term, receive};
use crate::message::{Hello, Joined, MESSAGE_LEN_MAX, Reply, Role, Token, Welcome, Word};
use crate::{Refusal, observer};

/// What somebody is who has come in and said its first word.
enum Guest {
    /// A process of the program of that number.
    Member(Role, u64),
    /// `overfly run`, with a program to be served, and the secret that this has already.
    Applicant(Option<Token>),
    Observer,
    /// It belongs to a program that is not here yet, or not any more: it may ask again.
    Early,
    Stranger,
}

impl<B: Backing> Service<B> {
    /// Hears who somebody is.
    pub(super) fn greet(&mut self, silent: Silent) {
        let mut bytes = [0; MESSAGE_LEN_MAX];
        let Silent { mut socket, peer, public, .. } = silent;
        let (length, _) = match receive(&socket, &mut bytes) {
            Ok(received) if received.0 > 0 => received,
            _ => return,
        };
        let message = bytes.get(..length).unwrap_or_default(); // longer than any message: none
        let (mut share, mut brought) = (None, None);
        let (role, program) = match self.recognise(message, public) {
            Guest::Member(Role::Leash, program) if self.stands() => {
                if !self.tie_to_lease(program, &socket) {
                    turn_away(&socket);
                    self.count(|counters| counters.greetings_refused += 1);
                }
                return;
            }
            Guest::Member(role, program) => (role, program),
            Guest::Applicant(token) => {
                match self.judge(&socket, peer) {
                    Ok(its) => (share, brought) = (its, token),
                    Err(reason) => {
                        deliver(&socket, Reply::no(Refusal::BadRequest, &reason).as_bytes(), &[]);
                        return self.count(|counters| counters.greetings_refused += 1);
                    }
                }
                (Role::Program, self.next_program())
            }
            Guest::Observer => {
                let processes = self.connections.iter().filter(|process| !process.over);
                let processes = processes.filter_map(|one| Some((one.observed.as_ref()?, one.stack())));
                let delivered = observers::tell_all(&socket, peer, processes, self.backing.left());
                return self.count(|counters| counters.answers_undelivered += u64::from(!delivered));
            }
            Guest::Early => {
                let reason = "the broker ends, or has just begun and does not know the program yet";
                deliver(&socket, Reply::no(Refusal::Later, reason).as_bytes(), &[]);
                return self.count(|counters| counters.greetings_refused += 1);
            }
            Guest::Stranger => {
                if public {
                    let reason = "this is another version of Overfly's";
                    deliver(&socket, Reply::no(Refusal::BadRequest, reason).as_bytes(), &[]);
                }
                return self.count(|counters| counters.greetings_refused += 1);
            }
        };
        if let Some(peer) = peer {
            self.acceptor.knows(peer.user);
        }
        let own = self.connections.iter();
        let own = own.filter(|one| one.peer.map(|its| its.user) == peer.map(|its| its.user)).count();
        if !self.acceptor.has_room(self.connections.len(), own, peer.is_some_and(Peer::may_join)) {
            turn_away(&socket);
            return self.count(|counters| counters.greetings_refused += 1);
        }
        let process = peer.and_then(|peer| peer.handle(&socket));
        let (session, delivered) = match role {
            Role::Leash => (Session::Leash, tie(&mut socket)),
            Role::Program => (Session::Lease, self.join(program, brought, share, &socket)),
            _ => {
                let welcome = Welcome::new(&self.backing.interface());
                (Session::Client { stack: None, waiting: None }, deliver(&socket, welcome.as_bytes(), &[]))
            }
        };
        let over = !delivered;
        self.connections.push(Connection {
            socket,
            program,
            peer,
            observed: None,
            process,
            session,
            finished: false,
            over,
        });
        self.count(|counters| counters.answers_undelivered += u64::from(over));
    }

    /// Who says this at the public name, or at the other one.
    fn recognise(&self, message: &[u8], public: bool) -> Guest {
        let Some((role, token)) = Hello::parse_any(message) else { return Guest::Stranger };
        let has_secret = |program: &&Program| Hello::parse(message, program.token).is_some();
        let known = self.programs.iter().find(has_secret).map(|program| program.number);
        let (shares, open) = (self.backing.shares().is_some(), token == observer::PUBLIC);
        match (role, known) {
            (Role::Client, Some(_)) if matches!(self.term, Term::Parting(_)) => Guest::Early,
            (Role::Client | Role::Leash, Some(program)) if !public || self.stands() => {
                Guest::Member(role, program)
            }
            (Role::Program, None) if open && shares => Guest::Applicant(None),
            (Role::Return, None) if !open && shares && self.stands() => Guest::Applicant(Some(token)),
            (Role::Observer, None) if open && public => Guest::Observer,
            (Role::Client | Role::Leash | Role::Return, _) if public => Guest::Early,
            _ => Guest::Stranger,
        }
    }

    /// One more program is served; its processes may have a secret already.
    fn join(
        &mut self,
        number: u64,
        brought: Option<Token>,
        share: Option<(u32, Share)>,
        socket: &OwnedFd,
    ) -> bool {
        let mut token = brought.unwrap_or(Token([0; 16]));
        if brought.is_none() && getrandom(&mut token.0[..], GetRandomFlags::empty()).is_err() {
            return false;
        }
        self.programs.push(Program { number, token, share });
        if let Term::First(_) = self.term {
            self.term = Term::Last;
        }
        let before = self.backing.shares().flatten();
        let joined = Joined::new(&self.acceptor.sockets.name, token, &self.in_force, before);
        deliver(socket, joined.as_bytes(), &[])
    }

    /// Gives a process one end of a pair that its program's `overfly run` has the other end of: whatever becomes of this broker, the two
    /// stay tied.
    fn tie_to_lease(&self, program: u64, socket: &OwnedFd) -> bool {
        let mut leases = self.connections.iter();
        let lease =
            leases.find(|one| one.program == program && !one.over && matches!(one.session, Session::Lease));
        let Some((lease, [ours, theirs])) = lease.zip(leash()) else { return false };
        deliver(&lease.socket, &Word::Leash.to_bytes(), &[ours.as_fd()])
            && deliver(socket, Reply::yes(None).as_bytes(), &[theirs.as_fd()])
    }
}

/// Gives a process what it can hold on to without hearing a word: one end of a pair, whose other end takes the place of the
/// connection.
fn tie(connection: &mut OwnedFd) -> bool {
    let Some([ours, theirs]) = leash() else {
        turn_away(connection);
        return false;
    };
    let delivered = deliver(connection, Reply::yes(None).as_bytes(), &[theirs.as_fd()]);
    *connection = ours;
    delivered
}

/// Both ends of a leash.
fn leash() -> Option<[OwnedFd; 2]> {
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    pair.ok().map(|(ours, theirs)| [ours, theirs])
}

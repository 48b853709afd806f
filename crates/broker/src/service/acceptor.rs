//! Who comes in: anybody on the machine can connect to a broker's names, and whoever does takes a descriptor until it has said who
//! it is. So each user has a few places to say it at, those who have never shown a secret have few together, and who is silent for
//! longest makes place for who comes next. Nobody is turned away without a word: a full broker is no dead one.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use zerocopy::IntoBytes;

use super::observers::{Peer, deliver};
use crate::Refusal;
use crate::message::Reply;

/// Connections at any time: more than stacks, because every process of a program holds a leash.
const CONNECTIONS_MAX: usize = 4096;
/// A connection that has not said who it is by then is closed.
const GREETING: Duration = Duration::from_secs(2);
/// Silent connections of one user that has shown a secret before, and of all those that have not, together and each.
const SILENT_MAX: usize = 64;
const STRANGERS_MAX: usize = 64;
const STRANGER_MAX: usize = 16;
/// Connections that are let in before those that are in are heard again.
const TURN: usize = 64;
/// How long nobody is let in after the kernel had no descriptor or memory for one.
const PAUSE: Duration = Duration::from_millis(50);
/// Descriptors that are neither connections nor their processes'.
const OTHER_DESCRIPTORS: u64 = 512;
/// Descriptors that a broker's own process may have, if it may have so many.
const DESCRIPTORS: u64 = 1 << 20;

/// Has this process have as many descriptors as it may. For a process that is a broker and nothing else: the limit is inherited.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(DESCRIPTORS, |maximum| maximum.max(DESCRIPTORS));
    let limits = [(DESCRIPTORS, most), (limit.maximum.unwrap_or(DESCRIPTORS), most)];
    for (current, maximum) in limits {
        let wanted = Rlimit { current: Some(current), maximum: Some(maximum) };
        let within = Rlimit { current: Some(current), maximum: limit.maximum };
        if setrlimit(Resource::Nofile, wanted).is_ok() || setrlimit(Resource::Nofile, within).is_ok() {
            return;
        }
    }
}

/// Where a broker can be reached.
#[derive(Debug)]
pub struct Sockets {
    /// For the processes of programs.
    pub listener: OwnedFd,
    /// The listener's name.
    pub name: String,
    /// For everybody, if it could be had.
    pub public: Option<OwnedFd>,
}

/// Who has come in and has not said yet who it is.
#[derive(Debug)]
pub(crate) struct Silent {
    pub(crate) socket: OwnedFd,
    /// Whose it is.
    pub(crate) peer: Option<Peer>,
    /// It came by the public name, where there is no secret.
    pub(crate) public: bool,
    until: Instant,
}

impl Silent {
    fn user(&self) -> Option<u32> {
        self.peer.map(|peer| peer.user)
    }
}

/// Lets connections in, and keeps those that are silent, the longest silent first.
#[derive(Debug)]
pub(crate) struct Acceptor {
    pub(crate) sockets: Sockets,
    pub(crate) silent: Vec<Silent>,
    /// Users that have shown a secret.
    known: HashSet<u32>,
    /// Nobody is let in until then.
    shut_until: Option<Instant>,
    /// Given up for a moment when there are no descriptors, to tell who waits that there are none.
    spare: Option<OwnedFd>,
    /// Connections that may be served at a time.
    capacity: usize,
    /// Connections let in, and those that were refused or had to make place.
    pub(crate) admitted: u64,
    pub(crate) refused: u64,
}

impl Acceptor {
    pub(crate) fn new(sockets: Sockets) -> Acceptor {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(DESCRIPTORS);
        // Each with its process's.
        let room = limit.saturating_sub(OTHER_DESCRIPTORS.min(limit / 2)) / 2;
        Acceptor {
            spare: fcntl_dupfd_cloexec(&sockets.listener, 3).ok(),
            sockets,
            silent: Vec::new(),
            known: HashSet::new(),
            shut_until: None,
            capacity: usize::try_from(room).unwrap_or(CONNECTIONS_MAX).min(CONNECTIONS_MAX),
            admitted: 0,
            refused: 0,
        }
    }

    /// Whether one more connection of a user's may be served, besides so many in all and so many of its own. No user but the
    /// broker's takes the last ones.
    pub(crate) fn has_room(&self, in_all: usize, own: usize, is_brokers: bool) -> bool {
        in_all < self.capacity && (is_brokers || own < self.capacity - self.capacity / 4)
    }

    /// The user has shown a secret: it is one of a program's.
    pub(crate) fn knows(&mut self, user: u32) {
        self.known.insert(user);
    }

    /// Whether it looks who is there.
    pub(crate) fn is_open(&mut self) -> bool {
        if self.shut_until.is_some_and(|until| until <= Instant::now()) {
            self.shut_until = None;
        }
        self.shut_until.is_none()
    }

    /// How long nothing changes here by itself.
    pub(crate) fn pause(&self) -> Option<Duration> {
        let now = Instant::now();
        let each = self.silent.iter().map(|silent| silent.until).chain(self.shut_until);
        each.min().map(|until| until.saturating_duration_since(now))
    }

    /// Closes those that have been silent for too long; returns how many.
    pub(crate) fn close_late(&mut self) -> u64 {
        let (before, now) = (self.silent.len(), Instant::now());
        self.silent.retain(|silent| silent.until > now);
        (before - self.silent.len()) as u64
    }

    /// Lets in who waits.
    pub(crate) fn admit(&mut self, public: bool) {
        for _ in 0..TURN {
            let Sockets { listener, public: open, .. } = &self.sockets;
            let listener = open.as_ref().filter(|_| public).unwrap_or(listener);
            match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    self.admitted += 1;
                    self.seat(socket, public);
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                // No descriptors: whoever waits is told.
                Err(Errno::MFILE | Errno::NFILE) if self.spare.take().is_some() => {
                    let listener = self.sockets.public.as_ref().filter(|_| public);
                    let listener = listener.unwrap_or(&self.sockets.listener);
                    if let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                        turn_away(&socket);
                    }
                    self.refused += 1;
                    self.spare = fcntl_dupfd_cloexec(&self.sockets.listener, 3).ok();
                }
                Err(_) => {
                    self.shut_until = Some(Instant::now() + PAUSE);
                    self.spare =
                        self.spare.take().or_else(|| fcntl_dupfd_cloexec(&self.sockets.listener, 3).ok());
                    return;
                }
            }
        }
    }

    /// One more is silent, in the place of another one if there are too many.
    fn seat(&mut self, socket: OwnedFd, public: bool) {
        let peer = Peer::of(&socket);
        self.silent.push(Silent { socket, peer, public, until: Instant::now() + GREETING });
        let user = peer.map(|peer| peer.user);
        let is_known = |user: Option<u32>| user.is_some_and(|user| self.known.contains(&user));
        let known = is_known(user) || peer.is_some_and(Peer::may_join);
        let own = |silent: &Silent| silent.user() == user;
        let strange = |silent: &Silent| !is_known(silent.user()) && !silent.peer.is_some_and(Peer::may_join);
        let count = |is_one: &dyn Fn(&Silent) -> bool| self.silent.iter().filter(|one| is_one(one)).count();
        let own_max = if known { SILENT_MAX } else { STRANGER_MAX };
        let leaves = if count(&own) > own_max {
            self.silent.iter().position(own)
        } else if !known && count(&strange) > STRANGERS_MAX {
            self.silent.iter().position(strange)
        } else {
            None
        };
        if let Some(place) = leaves {
            turn_away(&self.silent.remove(place).socket);
            self.refused += 1;
        }
    }
}

/// Says that there is no place.
pub(crate) fn turn_away(socket: &OwnedFd) {
    let reason = "the broker has no room for more connections: this process continues on the kernel's stack";
    deliver(socket, Reply::no(Refusal::Full, reason).as_bytes(), &[]);
}

//! `overfly run`'s end: a program's place at a broker that several programs may share.

use std::os::fd::{AsFd, OwnedFd};

use overfly_link::messages;
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, shutdown};
use zerocopy::IntoBytes;

use crate::conversation::{dial, hear_with_descriptors, is_ours, tell};
use crate::message::{Hello, Joined, MESSAGE_LEN_MAX, News, Role, Token, Word};
use crate::{Deferral, Error, PeerIdentity, environment, may_return, observer, parse_environment};

/// A program is served as long as this stands. When it is closed, by whatever means, the broker lets go of the program's
/// processes, and of itself if no other program is left.
#[derive(Debug)]
pub struct Lease {
    socket: OwnedFd,
    environment: String,
    in_force: String,
    device_before: Option<Deferral>,
}

impl Lease {
    /// Joins the broker of an interface of this network namespace. `None` if there is none, or if whoever has its name is
    /// another user than this one and root: anybody may take a name, so it proves nothing.
    ///
    /// # Errors
    /// [`Error::Gone`] if it ended meanwhile: try again. [`Error::Refused`], [`Error::Protocol`].
    pub fn at_interface(interface: &str) -> Result<Option<Lease>, Error> {
        Lease::of(interface, Role::Program, observer::PUBLIC)
    }

    /// As [`Lease::at_interface`], if another broker has taken the place of this lease's: the program and its secret are the same.
    ///
    /// # Errors
    /// As [`Lease::at_interface`].
    pub fn again(&self, interface: &str) -> Result<Option<Lease>, Error> {
        let (_, token) = parse_environment(&self.environment)?;
        Lease::of(interface, Role::Return, token)
    }

    fn of(interface: &str, role: Role, token: Token) -> Result<Option<Lease>, Error> {
        match dial(&format!("{}{interface}", observer::PREFIX)) {
            Ok(socket) if is_ours(&socket) => Lease::ask(socket, role, token).map(Some),
            _ => Ok(None),
        }
    }

    /// Joins the broker whose socket has this name.
    ///
    /// # Errors
    /// As [`Lease::at_interface`].
    pub fn at(name: &str) -> Result<Lease, Error> {
        Lease::ask(dial(name)?, Role::Program, observer::PUBLIC)
    }

    fn ask(socket: OwnedFd, role: Role, token: Token) -> Result<Lease, Error> {
        tell(socket.as_fd(), Hello::new(role, token).as_bytes())?;
        let ((name, token, in_force, device_before), _) =
            hear_with_descriptors(socket.as_fd(), RecvFlags::empty(), Joined::parse)?;
        Ok(Lease { socket, environment: environment(&name, token), in_force, device_before })
    }

    /// Whether the broker stands as a service: if it ends, another one may take its place ([`Lease::again`]).
    #[must_use]
    pub fn may_return(&self) -> bool {
        may_return(&self.environment)
    }

    /// The value of `OVERFLY_BROKER` for the program. Whoever has it may use the interface, until the lease ends.
    #[must_use]
    pub fn environment(&self) -> &str {
        &self.environment
    }

    /// The options that the broker began with, in its host's words.
    #[must_use]
    pub fn in_force(&self) -> &str {
        &self.in_force
    }

    /// What the device's settings were before the broker changed them. It restores them itself, unless it is killed.
    #[must_use]
    pub fn device_before(&self) -> Option<Deferral> {
        self.device_before
    }

    /// Ends the lease, and waits until all that was the program's is undone. True if the broker goes on, for other programs;
    /// otherwise the XDP program is gone too.
    #[must_use]
    pub fn leave(self) -> bool {
        self.begin_to_leave();
        loop {
            match self.hear() {
                Heard::News(_) | Heard::Leash(_) => {}
                Heard::Ended => return false,
                // A broker that does not answer in time is not known to have ended.
                Heard::GoesOn | Heard::Nothing => return true,
            }
        }
    }

    /// Ends the lease, as [`Lease::leave`] does, and does not wait: [`Lease::hear`] then says what comes of it.
    pub fn begin_to_leave(&self) {
        // Where the broker has ended, that is heard.
        let _ = shutdown(&self.socket, Shutdown::Write);
    }

    /// Waits for what the broker says, for some seconds.
    #[must_use]
    pub fn hear(&self) -> Heard {
        let mut bytes = [0_u8; MESSAGE_LEN_MAX];
        match messages::receive(&self.socket, &mut bytes, RecvFlags::empty()) {
            Ok((0, _)) => Heard::Ended,
            Ok((length, descriptors)) => match Word::parse(&bytes[..length]) {
                Some(Word::Leash) => descriptors.into_iter().next().map_or(Heard::Nothing, Heard::Leash),
                _ => News::parse(&bytes[..length]).map_or(Heard::GoesOn, Heard::News),
            },
            Err(Errno::AGAIN) => Heard::Nothing,
            Err(_) => Heard::Ended,
        }
    }
}

/// What a broker says to a lease.
#[derive(Debug)]
pub enum Heard {
    /// What the program's user must know of the interface, in words that somebody else may have chosen.
    News(String),
    /// One end of a leash of one of the program's processes, which dies when it is closed.
    Leash(OwnedFd),
    /// The lease is over, and what was the program's undone; other programs are served.
    GoesOn,
    /// The broker has ended.
    Ended,
    /// It said nothing.
    Nothing,
}

/// Who has the name of an interface's broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Nobody who listens.
    Nobody,
    /// A broker of this process's user, or of root's.
    Ours,
    /// Another user, or somebody who does not answer.
    Stranger,
}

impl Holder {
    /// Asks.
    #[must_use]
    pub fn of(interface: &str) -> Holder {
        match dial(&format!("{}{interface}", observer::PREFIX)) {
            Ok(socket) if is_ours(&socket) => Holder::Ours,
            Err(Error::Gone { errno: Some(Errno::CONNREFUSED), .. }) => Holder::Nobody,
            _ => Holder::Stranger,
        }
    }

    /// Who keeps others from the name of an interface's broker, and what to do about it, in words.
    #[must_use]
    pub fn in_words(interface: &str) -> String {
        let name = format!("{}{interface}", observer::PREFIX);
        let listening = dial(&name).ok().and_then(|socket| PeerIdentity::of(&socket).ok());
        match listening.map(|peer| (peer.user, peer.process)) {
            Some((user, Some(process))) => {
                let process = process.as_raw_nonzero();
                let program = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
                format!(
                    "process {process} ({:?}) of user {user} has the name @{name}, at which programs look for the broker: `kill {process}`",
                    program.trim_end()
                )
            }
            // It takes no connections, or is out of sight.
            other => {
                let user = other.map_or_else(String::new, |(user, _)| format!(" of user {user}"));
                format!(
                    "a program{user} has the name @{name}, at which programs look for the broker: `ss -xap | grep @{name}`, as root, says which: end it"
                )
            }
        }
    }
}

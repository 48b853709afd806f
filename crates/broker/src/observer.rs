//! What anybody on the machine may ask: which programs run over Overfly here, and how they are.
//!
//! Each broker listens at a name that says its interface, an abstract Unix socket in its network namespace. It shows a
//! process to that process's user and to root.

use core::time::Duration;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::net::RecvFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::process::geteuid;
use zerocopy::IntoBytes;

use crate::Error;
use crate::conversation::{dial_within, hear_with_descriptors, tell};
use crate::message::{Hello, LeftPart, Role, Shown, ShownPart, Token};
use crate::watch::View;
use crate::{LeftFrames, PeerIdentity};

/// For how long a broker may speak: longer than it ever takes, since it may be waiting for a neighbour's answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// More processes than a broker has.
const PROCESSES_MAX: usize = 4096;

/// What the names of brokers begin with, before the interface's.
pub const PREFIX: &str = "overfly/";

/// The secret of what is no secret.
pub const PUBLIC: Token = Token([0; 16]);

/// A process that has a stack, or could have one.
#[derive(Debug)]
pub struct Watched {
    /// Its number.
    pub process: u32,
    /// Its user's.
    pub user: u32,
    /// Its stack's, if it has one.
    pub stack: Option<u16>,
    /// What it shows.
    pub view: View,
}

/// What a broker says.
#[derive(Debug, Default)]
pub struct Look {
    /// The processes that the caller may see.
    pub processes: Vec<Watched>,
    /// What no stack was given, if the interface's broker counts it, and tells the caller.
    pub left: Option<LeftFrames>,
}

/// One message of a broker's.
enum Heard {
    Left(LeftFrames),
    Process(Option<Shown>),
}

impl Heard {
    fn parse(bytes: &[u8]) -> Result<Heard, Error> {
        match LeftPart::parse(bytes) {
            Some(left) => Ok(Heard::Left(left)),
            None => ShownPart::parse(bytes).map(Heard::Process),
        }
    }
}

/// The interfaces of this network namespace that programs run over.
///
/// # Errors
/// What the kernel said.
pub fn interfaces() -> Result<Vec<String>, Error> {
    let listing = rustix::fs::open(
        "/proc/net/unix",
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .map_err(|errno| Error::system("/proc/net/unix", errno))?;
    let mut text = Vec::new();
    loop {
        let mut piece = [0; 16_384];
        match rustix::io::read(&listing, &mut piece[..]) {
            Ok(0) => break,
            Ok(length) => text.extend_from_slice(&piece[..length]),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::system("/proc/net/unix", errno)),
        }
    }
    Ok(listed(&String::from_utf8_lossy(&text)))
}

/// The listening sockets in /proc/net/unix whose names are brokers'.
fn listed(text: &str) -> Vec<String> {
    const LISTENS: &str = "00010000"; // __SO_ACCEPTCON in include/linux/net.h
    let mut names: Vec<String> = text
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let [_, _, _, LISTENS, _, _, _, name] = words.as_slice() else { return None };
            Some(name.strip_prefix('@')?.strip_prefix(PREFIX)?.to_owned())
        })
        .collect();
    names.sort();
    names.dedup();
    names
}

/// What runs over an interface, as far as the caller may see it. Anybody can have listened at a broker's name first: what is not
/// root's can speak of its own user's processes only, for a few seconds, and of so many; of the interface only to its own user.
///
/// # Errors
/// [`Error::Gone`], [`Error::Protocol`].
pub fn look(interface: &str) -> Result<Look, Error> {
    let end = Instant::now() + PATIENCE;
    let socket = dial_within(&format!("{PREFIX}{interface}"), PATIENCE)?;
    let speaker = PeerIdentity::of(&socket).map_err(|errno| Error::system("SO_PEERCRED", errno))?.user;
    tell(socket.as_fd(), Hello::new(Role::Observer, PUBLIC).as_bytes())?;
    let mut look = Look::default();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || look.processes.len() == PROCESSES_MAX {
            return Err(Error::Protocol("a list of processes without end"));
        }
        set_socket_timeout(&socket, Timeout::Recv, Some(left.max(Duration::from_millis(1))))
            .map_err(|errno| Error::system("SO_RCVTIMEO", errno))?;
        let (heard, descriptors) = hear_with_descriptors(socket.as_fd(), RecvFlags::empty(), Heard::parse)?;
        let part = match heard {
            Heard::Process(Some(part)) => part,
            Heard::Process(None) => {
                look.left = look.left.filter(|_| speaker == 0 || speaker == geteuid().as_raw());
                return Ok(look);
            }
            Heard::Left(_) if look.left.is_some() => {
                return Err(Error::Protocol("an interface that is counted twice"));
            }
            Heard::Left(left) => {
                look.left = Some(left);
                continue;
            }
        };
        let [Some(memory), Some(doorbell), ..] = descriptors else {
            return Err(Error::Protocol("a process without what it shows"));
        };
        if speaker != 0 && speaker != part.user {
            return Err(Error::Protocol("another user's process"));
        }
        look.processes.push(Watched {
            process: part.process,
            user: part.user,
            stack: part.stack,
            view: View::open(&memory, doorbell)?,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::listed;

    #[test]
    fn brokers_are_found_among_the_sockets_of_the_namespace() {
        let text = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 13 @overfly/eth1\n\
            0000000000000000: 00000003 00000000 00000000 0005 03 14 @overfly/eth2\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 15 /run/overfly/eth3\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 16 @overfly/eth0\n\
            0000000000000000: 00000002 00000000 00000000 0002 01 17\n";
        assert_eq!(listed(text), ["eth0", "eth1"]);
    }
}

//! What anybody on the machine may ask: which programs run over Overfly here, and how they are.
//!
//! Each broker listens at a name that says its interface, an abstract Unix socket in its network namespace. It shows a
//! process to that process's user and to root.

use std::os::fd::AsFd;

use rustix::net::RecvFlags;
use zerocopy::IntoBytes;

use super::client::{dial, hear_with_descriptors, tell};
use super::message::{Hello, Role, ShownPart, Token};
use crate::Error;
use crate::watch::View;

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

/// The processes that run over an interface and that the caller may see.
///
/// # Errors
/// [`Error::BrokerGone`], [`Error::BrokerProtocol`].
pub fn processes(interface: &str) -> Result<Vec<Watched>, Error> {
    let socket = dial(&format!("{PREFIX}{interface}"))?;
    tell(socket.as_fd(), Hello::new(Role::Observer, PUBLIC).as_bytes())?;
    let mut watched = Vec::new();
    loop {
        let (part, descriptors) =
            hear_with_descriptors(socket.as_fd(), RecvFlags::empty(), ShownPart::parse)?;
        let Some(part) = part else { return Ok(watched) };
        let [Some(memory), Some(bell), ..] = descriptors else {
            return Err(Error::BrokerProtocol("a process without what it shows"));
        };
        watched.push(Watched {
            process: part.process,
            user: part.user,
            stack: part.stack,
            view: View::open(&memory, bell)?,
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

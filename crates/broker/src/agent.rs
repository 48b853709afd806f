//! What `overfly run` asks a node's agent (`overfly broker --agent`), which serves network namespaces from outside: where the broker of
//! an interface of its own namespace is. The agent starts that broker if there is none.
//!
//! The agent listens at a path, which is mounted into containers. Who asks says [`Seek`] and hears [`Found`], or a
//! [`Reply`] with the reason why not; then the conversation is over.

use std::os::fd::AsFd;
use std::path::Path;

use overfly_link::messages;
use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix};
use zerocopy::byteorder::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::conversation::{PATIENCE, dial_address, hear_with_descriptors, tell};
use crate::message::{MAGIC, Reply, VERSION};
use crate::{Error, Refusal};

/// Where the agent listens if nobody says otherwise.
pub const PATH: &str = "/run/overfly/agent.sock";
/// The environment variable that says where else.
pub const AGENT_ENVIRONMENT: &str = "OVERFLY_AGENT";

/// "I seek the broker of an interface."
const SEEK: u16 = 16;
/// Where it is.
const FOUND: u16 = 17;
const INTERFACE_MAX: usize = 16; // IFNAMSIZ
const NAME_MAX: usize = 108; // UNIX_PATH_MAX

/// What is asked.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Seek {
    magic: [u8; 4],
    version: U16,
    message: U16,
    interface: [u8; INTERFACE_MAX],
}

impl Seek {
    /// `None` if no interface can have such a name.
    #[must_use]
    pub fn new(interface: &str) -> Option<Seek> {
        let mut seek = Seek::new_zeroed();
        (seek.magic, seek.version, seek.message) = (MAGIC, U16::new(VERSION), U16::new(SEEK));
        fits(interface.as_bytes())
            .then(|| seek.interface[..interface.len()].copy_from_slice(interface.as_bytes()))?;
        Some(seek)
    }

    /// The interface, if this is a question of this version's about a name that an interface may have.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<String> {
        let seek = Seek::read_from_bytes(bytes).ok()?;
        let head = (seek.magic, seek.version.get(), seek.message.get());
        let length = seek.interface.iter().position(|&byte| byte == 0)?;
        let (name, rest) = seek.interface.split_at(length);
        let sound = head == (MAGIC, VERSION, SEEK) && fits(name) && rest.iter().all(|&byte| byte == 0);
        sound.then(|| String::from_utf8(name.to_vec()).ok())?
    }
}

/// A device's name in the kernel (`dev_valid_name()` in net/core/dev.c), of those that can be printed.
fn fits(name: &[u8]) -> bool {
    (1..INTERFACE_MAX).contains(&name.len())
        && name != b"."
        && name != b".."
        && name.iter().all(|&byte| byte.is_ascii_graphic() && byte != b'/' && byte != b':')
}

/// The answer.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Found {
    message: U16,
    name: [u8; NAME_MAX],
}

impl Found {
    /// The abstract name of the broker's socket in the asker's network namespace. Nothing: it is found by its interface's name.
    #[must_use]
    pub fn new(name: Option<&str>) -> Found {
        let mut found = Found { message: U16::new(FOUND), name: [0; NAME_MAX] };
        let name = name.unwrap_or_default().as_bytes();
        let length = name.len().min(NAME_MAX - 1);
        found.name[..length].copy_from_slice(&name[..length]);
        found
    }

    /// # Errors
    /// [`Error::Refused`] if it is a no, [`Error::Protocol`] if it is neither.
    pub fn parse(bytes: &[u8]) -> Result<Option<String>, Error> {
        let found = Found::read_from_bytes(bytes).ok().filter(|found| found.message.get() == FOUND);
        let Some(found) = found else {
            Reply::parse(bytes)?;
            return Err(Error::Protocol("a yes instead of a broker's name"));
        };
        let length = found.name.iter().position(|&byte| byte == 0).unwrap_or(NAME_MAX);
        let name = str::from_utf8(&found.name[..length]).map_err(|_| Error::Protocol("a broker's name"))?;
        Ok((!name.is_empty()).then(|| name.to_owned()))
    }
}

/// The agent's answer: what [`Found::new`] says, or why not. It does not wait: who does not read misses it.
pub fn answer(socket: impl AsFd, found: Result<Option<&str>, &str>) {
    let socket = socket.as_fd();
    let _ = match found {
        Ok(name) => messages::send(socket, Found::new(name).as_bytes(), &[], SendFlags::DONTWAIT),
        Err(reason) => {
            let no = Reply::no(Refusal::Other, reason);
            messages::send(socket, no.as_bytes(), &[], SendFlags::DONTWAIT)
        }
    };
}

/// Asks the agent at `path` for the broker of an interface of this network namespace: the name for [`Lease::at`](crate::Lease::at), or
/// nothing if [`Lease::at_interface`](crate::Lease::at_interface) finds it. Whoever can put something at the path is trusted.
///
/// # Errors
/// [`Error::Refused`] with the agent's reason; [`Error::Gone`] if nobody listens there, [`Error::Protocol`].
pub fn seek(path: &Path, interface: &str) -> Result<Option<String>, Error> {
    let address = SocketAddrUnix::new(path).map_err(|_| no_address(path))?;
    let question = Seek::new(interface).ok_or(Error::Protocol("no interface has such a name"))?;
    let socket = dial_address(&address, PATIENCE, false)?;
    // Who is refused at once may not be able to say it any more, and can hear why.
    let _ = tell(socket.as_fd(), question.as_bytes());
    hear_with_descriptors(socket.as_fd(), RecvFlags::empty(), Found::parse).map(|(found, _)| found)
}

/// That no socket can be at `path`.
pub(crate) fn no_address(path: &Path) -> Error {
    Error::Agent(format!(
        "no socket can be at {}: its path must be 108 bytes at most, and this one has {}",
        path.display(),
        path.as_os_str().len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_understood_if_an_interface_may_be_called_so() {
        for name in ["eth0", "a", "abcdefghijklmno", "net1.7", "e@x"] {
            let seek = Seek::new(name).unwrap();
            assert_eq!(Seek::parse(seek.as_bytes()).as_deref(), Some(name));
        }
        for name in ["", ".", "..", "a/b", "a:b", "a b", "a\nb", "é", "abcdefghijklmnop"] {
            assert!(Seek::new(name).is_none(), "{name}");
        }
        let mut bytes = Seek::new("eth0").unwrap().as_bytes().to_vec();
        for (place, value) in [(0, b'X'), (4, 0xff), (6, 0), (8, b'/'), (8, 0), (13, b'x')] {
            let before = std::mem::replace(&mut bytes[place], value);
            assert_eq!(Seek::parse(&bytes), None, "{place}");
            bytes[place] = before;
        }
        bytes[8..24].fill(b'x');
        assert_eq!(Seek::parse(&bytes), None, "a name without an end");
        bytes.push(0);
        assert_eq!(Seek::parse(&bytes), None);
    }

    #[test]
    fn an_answer_is_a_name_or_a_reason() {
        assert_eq!(
            Found::parse(Found::new(Some("overfly-1-2")).as_bytes()).unwrap().as_deref(),
            Some("overfly-1-2")
        );
        assert_eq!(Found::parse(Found::new(None).as_bytes()).unwrap(), None);
        let no = Reply::no(Refusal::BadRequest, "no rule");
        assert!(matches!(Found::parse(no.as_bytes()), Err(Error::Refused { .. })));
        assert!(Found::parse(Reply::yes(None).as_bytes()).is_err());
        assert!(Found::parse(b"").is_err());
    }
}

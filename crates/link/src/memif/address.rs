//! Where memif peers meet.

use core::fmt;
use core::str::FromStr;

use rustix::net::SocketAddrUnix;

use crate::Error;

/// A control socket's place, and which of the interfaces there is meant: `PATH`, `@NAME` (an abstract socket, which leaves no
/// file behind), either with `,id=N`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// A path, or `@` and a name.
    place: String,
    /// The interface's number at the server.
    pub id: u32,
}

impl Address {
    /// The file, unless the socket is an abstract one.
    pub(crate) fn path(&self) -> Option<&str> {
        (!self.place.starts_with('@')).then_some(self.place.as_str())
    }

    pub(crate) fn socket_address(&self) -> Result<SocketAddrUnix, Error> {
        let made = match self.place.strip_prefix('@') {
            Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()),
            None => SocketAddrUnix::new(self.place.as_str()),
        };
        made.map_err(|_| Error::MemifAddress(self.place.clone()))
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address, Error> {
        let (place, id) = match text.rsplit_once(",id=") {
            Some((place, id)) => (place, id.parse().map_err(|_| Error::MemifAddress(text.to_owned()))?),
            None => (text, 0),
        };
        let address = Address { place: place.to_owned(), id };
        if place.is_empty() || place == "@" || place.contains('\0') {
            return Err(Error::MemifAddress(text.to_owned()));
        }
        address.socket_address()?;
        Ok(address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.place)?;
        if self.id != 0 {
            write!(formatter, ",id={}", self.id)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for text in ["/run/a.sock", "@a name", "relative,id=7", "@x,id=4294967295"] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        assert_eq!("/a,id=0".parse::<Address>().unwrap(), "/a".parse().unwrap());
        assert_eq!("@a".parse::<Address>().unwrap().path(), None);
        for text in ["", "@", "/a,id=", "/a,id=x", "/a,id=4294967296", "a\0b", &"a".repeat(200)] {
            assert_eq!(text.parse::<Address>(), Err(Error::MemifAddress(text.to_owned())), "{text:?}");
        }
    }
}

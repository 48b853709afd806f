//! `wrk.lookup` and `wrk.connect`: what scripts know of addresses.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use mlua::{Error, Lua, MetaMethod, Result, UserData, UserDataMethods, UserDataRef, Value};

/// A listener that has not answered by then is none.
const PATIENCE: Duration = Duration::from_secs(2);

/// An address as a script holds it: it can be printed, connected to and given to a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address(pub(super) SocketAddr);

impl UserData for Address {
    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_meta_method(MetaMethod::ToString, |_, address, ()| Ok(address.0.to_string()));
        methods.add_meta_method(MetaMethod::Eq, |_, address, other: UserDataRef<Address>| {
            Ok(*address == *other)
        });
    }
}

/// The addresses of a host and a service: a port's number, or the name of one of HTTP's.
pub(super) fn lookup(_: &Lua, (host, service): (String, Value)) -> Result<Vec<Address>> {
    let port = match &service {
        Value::Nil => Some(80),
        Value::Integer(port) => u16::try_from(*port).ok(),
        Value::Number(port) => Some(*port as u16),
        Value::String(name) => match name.to_string_lossy().as_str() {
            "http" => Some(80),
            "https" => Some(443),
            digits => digits.parse().ok(),
        },
        _ => None,
    };
    let wrong = || Error::runtime(format!("wrk.lookup: {service:?} is no port and neither http nor https"));
    let port = port.ok_or_else(wrong)?;
    let found = (host.as_str(), port).to_socket_addrs();
    // As in wrk: a host that is not known has no addresses, and the script goes on.
    Ok(found.map(|addresses| addresses.map(Address).collect()).unwrap_or_default())
}

/// Whether somebody accepts connections there, over the kernel.
pub(super) fn connects(address: &Address) -> bool {
    TcpStream::connect_timeout(&address.0, PATIENCE).is_ok()
}

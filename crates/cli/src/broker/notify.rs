//! Tells the service manager how things stand: sd_notify(3).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends `state`, such as `READY=1`, if anybody wants to know.
pub(crate) fn notify(state: &str) {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let place = place.as_encoded_bytes();
    let address = match place.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(String::from_utf8_lossy(place).as_ref()),
    };
    let Ok(address) = address else { return };
    if let Ok(socket) = UnixDatagram::unbound() {
        // Nobody is there to hear that nobody listens.
        let _ = socket.send_to_addr(state.as_bytes(), &address);
    }
}

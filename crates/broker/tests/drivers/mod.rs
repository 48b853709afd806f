//! What a broker hears, and what it says. The driver panics when a parser does, when what was understood is not said again as it
//! was, or when somebody without the secret is understood. It runs from a seed in `fuzz_drivers.rs` and under cargo-fuzz in the folder `fuzz`.

#![allow(unreachable_pub, missing_docs, reason = "a module of tests")]

use overfly_broker::connection::{Connection, Parcel};
use overfly_broker::message::{
    Hello, Joined, MemifPart, PassedMessage, Reply, RequestMessage, Role, ShownPart, StackPart, TapPart,
    Token, Welcome,
};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::pwrite;
use zerocopy::IntoBytes;

const TOKEN: Token = Token(*b"the right secret");

/// Messages both ways, and the file of a connection.
pub fn broker_messages(bytes: &[u8]) {
    assert_eq!(Hello::parse(bytes, TOKEN), bytes.ends_with(&TOKEN.0).then(|| hello(bytes)).flatten());
    // The first message with the right secret, and all else as it comes.
    let mut greeting = Hello::new(Role::Client, TOKEN).as_bytes().to_vec();
    for (to, from) in greeting.iter_mut().zip(bytes).take(8) {
        *to ^= from;
    }
    assert_eq!(Hello::parse(&greeting, TOKEN), hello(&greeting));
    let length =
        RequestMessage::new(&overfly_broker::message::Request::new(overfly_broker::message::Kind::Interface))
            .as_bytes()
            .len();
    for at in [bytes, bytes.get(..length).unwrap_or_default()] {
        if let Some(request) = RequestMessage::parse(at) {
            assert_eq!(RequestMessage::parse(RequestMessage::new(&request).as_bytes()), Some(request));
        }
    }
    let _ = Reply::parse(bytes);
    let _ = Welcome::parse(bytes);
    let _ = StackPart::parse(bytes);
    let _ = MemifPart::parse(bytes);
    let _ = TapPart::parse(bytes);
    let _ = ShownPart::parse(bytes);
    let _ = Joined::parse(bytes);
    let _ = PassedMessage::parse(bytes);
    parcel(bytes);
}

/// What the fixed part of a greeting says.
fn hello(bytes: &[u8]) -> Option<Role> {
    let roles = [Role::Client, Role::Leash, Role::Observer, Role::Program, Role::Return];
    roles.into_iter().find(|&role| Hello::new(role, TOKEN).as_bytes() == bytes)
}

fn parcel(bytes: &[u8]) {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let Ok(file) = memfd_create("fuzz", flags) else { return };
    if pwrite(&file, bytes, 0).is_err()
        || fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE).is_err()
    {
        return;
    }
    if let Ok(parcel) = Parcel::open(&file) {
        let Connection { unread, sent, unsent, .. } = parcel.connection;
        let payload_len = unread as usize + sent as usize + unsent as usize;
        assert_eq!(size_of::<Connection>() + payload_len, bytes.len());
        let mut payload = vec![0; payload_len];
        parcel.read(0, &mut payload).unwrap();
        assert!(bytes.ends_with(&payload) && parcel.read(1, &mut payload).is_err() == (payload_len > 0));
    }
}

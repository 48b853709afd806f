//! The control socket of `overfly load astf` (docs/astf.md).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::eventually;

/// Says one line of JSON, and returns the answer.
///
/// # Panics
/// If nobody answers.
#[must_use]
pub fn order(socket: &str, line: &str) -> Value {
    let mut stream = UnixStream::connect(socket).expect("connect to the control socket");
    stream.write_all(format!("{line}\n").as_bytes()).expect("write an order");
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).expect("read the answer");
    serde_json::from_str(&answer).expect("the answer is JSON")
}

/// Waits until a server side has no flow left, and has it end. `alive` is called at each look.
///
/// # Panics
/// If flows do not end.
pub fn drain(socket: &str, mut alive: impl FnMut()) {
    eventually("the server side's flows end", || {
        alive();
        order(socket, "{}")["active"][1] == 0
    });
    let _ = order(socket, "{\"drain\": true}");
}

//! What `overfly` writes: to whom it says that it could not, and that strangers' text steers no terminal. Needs root, iproute2
//! and nginx.

#![forbid(unsafe_code)]

mod ends;
#[path = "../load/server.rs"]
#[allow(dead_code, reason = "the other tests count its answers")]
mod server;
mod stranger;
mod watched;

use std::process::Command;

use overfly_bench::lab::Lab;

const OVERFLY: &str = env!("CARGO_BIN_EXE_overfly");

/// `overfly` on a machine of its own.
fn inside(lab: &Lab) -> Command {
    let mut command = lab.command("server", OVERFLY);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("EF_") {
            command.env_remove(name);
        }
    }
    command
}

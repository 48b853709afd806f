//! One binary: each would compile and link what is shared anew. `cargo xtask tidy` sees that no file is left out, and `scripts/test.py`
//! runs each file's tests in a process of their own.

mod answers;
mod bench;
mod busy;
mod datagrams;
mod dividing;
mod elsewhere;
mod errnos;
mod handover;
mod interrupts;
mod killed;
mod long_packets;
mod memory;
mod messages;
mod moved;
mod preload;
mod processes;
mod settings;
mod shared_ports;
mod stopped;
mod threads;
mod within_host;

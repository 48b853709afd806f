//! `liboverfly.so`: the BSD sockets interface over the user-level TCP engine, preloaded into an unmodified program.
//!
//! * `hooks`: what stands before libc's functions. Thin, and where C's pointers become Rust's types.
//! * `calls`: what the calls mean. They take the lock of the socket's stack, and wait outside it.
//! * `process`: the stack of the process, or those of its threads; how they come to be, fork and exit.
//! * `options`: what there is to know of each socket option, in one table.
//! * [`stack`]: sockets and epoll sets over an engine and a link. No system calls, no clock: tested in memory.
//! * `overfly_profile`: the EF_* options that the library reads, and the rules and settings that it follows.
//!
//! Nothing here calls libc's or std's I/O, which would meet the hooks again: system calls go through rustix's raw back
//! end, `sys`, or the next symbol of a hook's own name.

mod allocate;
mod bound;
mod cancel;
mod descriptors;
mod environment;
pub mod interest;
mod options;
mod owner;
mod ring;
pub mod socket;
mod socket_table;
pub mod stack;

// What follows is the process's: its descriptors, its signals, and the names that libc's functions have. In the tests of this
// crate `hooks` are not exported by those names, which would stand before the tests' own calls: tests call them by their paths.
mod any_link;
mod calls;
#[cfg_attr(test, allow(dead_code, non_snake_case, reason = "exported by name, but not in tests"))]
#[allow(
    unreachable_pub,
    missing_docs,
    reason = "exported by name, not by path; the manual pages of the names document them"
)]
mod hooks;
mod kernel;
mod lock;
mod memory;
mod numbers;
mod process;
mod signal;
mod sleepers;
mod spins;
mod statistics;
mod sys;
mod table;
mod told;
mod unheard;

#[cfg(test)]
mod tests;

//! One binary: each would compile and link what is shared anew. `cargo xtask tidy` sees that no file is left out.

mod arbitrary;
mod checksum;
mod frames;
mod ipv6;
mod mutations;
mod strategies;
mod tcp;

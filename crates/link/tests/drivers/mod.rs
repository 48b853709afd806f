//! Fuzz drivers: any bytes become what a hostile peer says over memif's control socket, or does to the rings while a link works.
//! They run from a seed in `fuzz_drivers.rs` and under cargo-fuzz in the folder `fuzz`.
//!
//! A driver panics when this end breaks a promise: it panics itself, hands over more or longer frames than it may, writes beside
//! the memory that it was given, believes a peer again whom it found to lie, or turns good clients away.

#![allow(unreachable_pub, missing_docs, reason = "a module of tests")]

mod messages;
mod rings;

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::pwrite;

pub use messages::memif_messages;
pub use rings::memif_rings;

/// `MEMIF_COOKIE` and, in a ring, before what, in bytes.
const COOKIE: u32 = 0x3E3_1F20;
const HEAD: u64 = 6;
const TAIL: u64 = 64;
const DESCRIPTORS: u64 = 128;
const DESCRIPTOR_LEN: u64 = 16;

/// Memory that nobody can cut off.
fn memory(length: u64) -> OwnedFd {
    let memory = memfd_create("fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
    ftruncate(&memory, length).expect("as long as that");
    fcntl_add_seals(&memory, SealFlags::SHRINK).expect("sealed");
    memory
}

fn write(memory: &OwnedFd, at: u64, bytes: &[u8]) {
    assert_eq!(pwrite(memory, bytes, at), Ok(bytes.len()));
}

/// A ring that a good client would make: its buffers are one after the other from `buffers` on.
fn write_ring(memory: &OwnedFd, at: u64, log2_size: u8, buffers: u64, buffer_len: u32) {
    write(memory, at, &COOKIE.to_le_bytes());
    write(memory, at + 4, &[1, 0]);
    for slot in 0..1_u64 << log2_size {
        let offset = (buffers + slot * u64::from(buffer_len)) as u32;
        let descriptor = [&[0; 4][..], &buffer_len.to_le_bytes(), &offset.to_le_bytes(), &[0; 4]].concat();
        write(memory, at + DESCRIPTORS + slot * DESCRIPTOR_LEN, &descriptor);
    }
}

//! Eventfds of the library's own (eventfd(2)), by number: readable from [`raise`] to [`lower`].

use std::os::fd::IntoRawFd;

use rustix::event::EventfdFlags;

use crate::kernel;
use crate::numbers;
use crate::sys;
use crate::table::{self, Entry};

/// A new one, out of the program's way.
pub(super) fn make() -> Option<i32> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let signal = rustix::event::eventfd(0, flags).ok()?;
    Some(numbers::make_internal(signal).into_raw_fd())
}

pub(super) fn raise(signal: i32) {
    let _ = rustix::io::write(kernel::borrow(signal), &1u64.to_ne_bytes());
}

pub(super) fn lower(signal: i32) {
    let _ = rustix::io::read(kernel::borrow(signal), &mut [0u8; 8]);
}

pub(super) fn close(signal: i32) {
    table::enter(signal, Entry::Kernel);
    sys::close(signal);
}

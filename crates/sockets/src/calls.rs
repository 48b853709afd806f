//! The socket calls, in Rust's types. A hook calls one of these for a descriptor of ours, and the kernel for the rest.

pub(crate) mod bind;
pub(crate) mod control;
pub(crate) mod data;
pub(crate) mod datagram;
pub(crate) mod hold;
pub(crate) mod life;
pub(crate) mod options;
pub(crate) mod poll;
pub(crate) mod wait;

use rustix::io::Errno;

use crate::kernel;
use crate::lock::Guard;
use crate::process::contexts::of;
use crate::process::{Process, before_kernel_wait, has_inherited};
use crate::socket::{SocketId, SocketState};
use crate::table::{self, Entry};

/// Who does a call.
#[derive(Debug)]
pub(crate) enum Answer<T> {
    /// Not ours: the kernel does it.
    Kernel,
    /// Done.
    Done(Result<T, Errno>),
}

impl<T> Answer<T> {
    pub(crate) const fn ok(value: T) -> Self {
        Self::Done(Ok(value))
    }

    pub(crate) const fn error(error: Errno) -> Self {
        Self::Done(Err(error))
    }
}

/// The library's own descriptors, and those that it keeps, are not open as far as the program can see.
pub(crate) const CLOSED: Errno = Errno::BADF;

/// What a descriptor is to a call that uses it: an inherited connection is the kernel's from its first use on.
#[inline]
fn used(descriptor: i32) -> Entry {
    match table::lookup(descriptor) {
        Entry::Socket(id) if has_inherited() => of(id).claim(id, descriptor),
        entry => entry,
    }
}

/// The lock, and the socket that a call uses. `Err` is the call's answer.
fn lock_socket<T>(descriptor: i32) -> Result<(Guard<'static, Process>, SocketId), Answer<T>> {
    loop {
        match used(descriptor) {
            Entry::Socket(id) => {
                let mut guard = of(id);
                // Before the lock was ours another thread may have closed it, or handed it over.
                if table::lookup(descriptor) != Entry::Socket(id) {
                    continue;
                }
                if guard.stack.socket(id).wants_kernel && guard.hand_over_as_wanted(id)
                    || guard.hear_broker_sometimes()
                {
                    continue;
                }
                let socket = guard.stack.socket(id);
                if socket.may_be_all_kernels() && guard.leaves_to_all(id) {
                    continue;
                }
                return Ok((guard, id));
            }
            Entry::Cached(_) | Entry::Internal => return Err(Answer::error(CLOSED)),
            Entry::Kernel | Entry::Set(_) => return Err(Answer::Kernel),
        }
    }
}

/// The lock, and the socket that a descriptor is, if it is one: wherever it has moved by then.
fn lock_entry(descriptor: i32) -> Option<(Guard<'static, Process>, SocketId)> {
    loop {
        let Entry::Socket(id) = table::lookup(descriptor) else { return None };
        let guard = of(id);
        if table::lookup(descriptor) == Entry::Socket(id) {
            return Some((guard, id));
        }
    }
}

/// A call has waited for a socket of the kernel's with that cookie, and its descriptor is not the stack's any more: if another thread has left
/// it to the kernel, by a connect() say, the call goes on there.
fn goes_on_elsewhere<T>(descriptor: i32, cookie: Option<u64>) -> Answer<T> {
    let is_same = || cookie.is_some() && cookie == kernel::cookie(descriptor);
    if table::lookup(descriptor) != Entry::Kernel || !is_same() {
        return Answer::error(CLOSED);
    }
    before_kernel_wait();
    Answer::Kernel
}

/// The socket's data moves at user level.
fn is_connection(process: &Process, id: SocketId) -> bool {
    matches!(
        process.stack.socket(id).state,
        SocketState::Connecting | SocketState::Connected | SocketState::Ended | SocketState::Lost
    )
}

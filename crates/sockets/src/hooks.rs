//! What the library puts before libc's functions. Each hook turns C's arguments into Rust's, asks [`crate::calls`], and
//! lets the next function of its name do what is not ours.
//!
//! Every hook is unsafe in the way that the function it stands for is: its pointers must be what that function's manual
//! page asks for. Where a hook only hands its arguments on, that is the whole argument for its soundness.

pub(crate) mod ancillary;
pub(crate) mod data;
pub(crate) mod deaths;
pub(crate) mod descriptors;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod libraries;
pub(crate) mod next;
pub(crate) mod options;
pub(crate) mod pauses;
pub(crate) mod print;
pub(crate) mod processes;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod sockets;
pub(crate) mod splice;
pub(crate) mod syscall;

use core::ffi::c_int;

use rustix::io::Errno;

use crate::calls::Answer;
use crate::cancel;

fn set_errno(error: c_int) {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = error };
}

/// What a function of libc's that failed has said.
fn last_error() -> Errno {
    // SAFETY: the location is this thread's own.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// -1, and errno. What interrupted the call may have been the thread's cancellation.
fn fail(error: Errno) -> c_int {
    if error == Errno::INTR {
        cancel::point();
    }
    set_errno(error.raw_os_error());
    -1
}

/// C's result of a call that returns a count.
fn count(outcome: Result<usize, Errno>) -> isize {
    match outcome {
        Ok(count) => count as isize,
        Err(error) => fail(error) as isize,
    }
}

/// C's result of a call that returns nothing.
fn done(outcome: Result<(), Errno>) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(error) => fail(error),
    }
}

/// C's result of a call that the kernel does if it is not ours.
#[allow(clippy::needless_pass_by_value, reason = "callers have the answer from a call, and no use for it")]
fn count_or(answer: Answer<usize>, kernel: impl FnOnce() -> isize) -> isize {
    match answer {
        Answer::Kernel => kernel(),
        Answer::Done(outcome) => count(outcome),
    }
}

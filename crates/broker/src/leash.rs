//! What ties a process to whoever started it.

use core::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::Error;
use crate::conversation::{greet, hear_with_descriptors, is_silent, move_up};
use crate::message::{Reply, Role};

/// `fcntl` command (include/uapi/asm-generic/fcntl.h).
const F_SETSIG: c_int = 10;

/// A connection that makes the kernel kill this process (SIGKILL) when `overfly run` ends, or, if no service has its place, the
/// broker: nothing is left behind that way, whatever happens to either.
#[derive(Debug)]
pub struct Leash(OwnedFd);

impl Leash {
    /// Connects, given the value of `OVERFLY_BROKER`, and ties the calling process. A forked child is not tied by it.
    ///
    /// # Errors
    /// [`Error::Address`], [`Error::Gone`], [`Error::Protocol`], or what the kernel said.
    pub fn connect(environment: &str) -> Result<Leash, Error> {
        let connection = greet(environment, Role::Leash)?;
        // The kernel wakes who waits for an answer before it signals that there is one: tied to the connection, the process
        // could be killed by the answer that it has just read. Nothing is ever said on the socket that comes with it.
        let (_, [Some(socket), ..]) =
            hear_with_descriptors(connection.as_fd(), RecvFlags::empty(), Reply::parse)?
        else {
            return Err(Error::Protocol("no leash"));
        };
        let process = rustix::process::getpid().as_raw_nonzero().get();
        let descriptor = socket.as_fd();
        control(descriptor, libc::F_SETOWN, process, "F_SETOWN")?;
        control(descriptor, F_SETSIG, libc::SIGKILL, "F_SETSIG")?;
        let flags = rustix::fs::fcntl_getfl(descriptor).map_err(|errno| Error::system("F_GETFL", errno))?;
        control(descriptor, libc::F_SETFL, flags.bits() as c_int | libc::O_ASYNC, "F_SETFL")?;
        // It may have ended in between.
        let leash = Leash(socket);
        if leash.is_cut() { Err(Error::Gone { operation: "leash", errno: None }) } else { Ok(leash) }
    }

    /// Whether nobody has the other end any more. A forked child, which this leash does not tie, can ask it, too.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        !is_silent(&self.0)
    }

    /// Moves its descriptor to the first free number from `least` on, if there is one, out of the program's way.
    pub fn move_up(&mut self, least: i32) {
        // It belongs to what the descriptor refers to who is signalled.
        move_up(&mut self.0, least);
    }

    /// What hangs up when the broker ends.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// `fcntl` with an integer: rustix has no F_SETOWN and F_SETSIG, and libc's fcntl is our own hook in the preloaded library.
fn control(
    descriptor: BorrowedFd<'_>,
    command: c_int,
    value: c_int,
    operation: &'static str,
) -> Result<(), Error> {
    // SAFETY: these commands take an integer and touch no memory.
    let result = unsafe { libc::syscall(libc::SYS_fcntl, descriptor.as_raw_fd(), command, value) };
    if result >= 0 {
        Ok(())
    } else {
        let errno = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL);
        Err(Error::system(operation, errno))
    }
}

//! What ties a process to `overfly run`, or to the broker that this has started.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use overfly_broker::Error;
use overfly_broker::{Leash, may_return};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Signal, getpid, kill_process};

use super::Process;
use super::away::NoStack;
use crate::numbers;
use crate::sys;
use crate::table::{self, Entry};

impl Process {
    /// Ties this process to `overfly run`: it dies with it. So does a child that was forked while `overfly run` was dying,
    /// which is too late to be tied as its `parents` leash tied that.
    pub(super) fn connect_leash(&mut self, parents: Option<&Leash>) {
        let Err(error) = self.try_connect_leash() else { return };
        let returns = self.session.environment.as_deref().is_some_and(may_return);
        // A child in a network namespace of its own (vsftpd, sandboxes) finds no broker there, and may never need one.
        let is_elsewhere = parents.is_some_and(is_in_other_namespace);
        // A broker that is full, or slow, lives: then there is nothing to die for. Nor is there if `overfly run` waits for another one.
        let is_over = |leash: &Leash| {
            if returns || is_elsewhere { leash.is_cut() } else { error.is_end_of_broker() }
        };
        if parents.is_some_and(is_over) {
            let _ = kill_process(getpid(), Signal::KILL);
        }
        if is_elsewhere {
            return;
        }
        // Where there will be a broker again it is tied then.
        if let NoStack::Ever(reason) = self.session.no_stack(&error) {
            self.fall_back(&reason);
        }
    }

    /// As [`Process::connect_leash`].
    ///
    /// # Errors
    /// The broker's, or that there is none.
    pub(super) fn try_connect_leash(&mut self) -> Result<(), Error> {
        let Some(environment) = &self.session.environment else { return Ok(()) };
        let mut leash = Leash::connect(environment)?;
        numbers::out_of_the_way(|least| leash.move_up(least));
        table::enter(leash.as_fd().as_raw_fd(), Entry::Internal);
        self.session.leash = Some(leash);
        Ok(())
    }
}

/// Whether this process is in another network namespace than the broker, whose end of the leash it is.
fn is_in_other_namespace(leash: &Leash) -> bool {
    let Ok(own) =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
    else {
        return false;
    };
    let [own, brokers] = [own.as_fd(), leash.as_fd()].map(network_namespace);
    own.zip(brokers).is_some_and(|(own, brokers)| own != brokers)
}

/// What tells a socket's network namespace from others, until the system starts anew (Linux 5.14).
fn network_namespace(socket: BorrowedFd<'_>) -> Option<u64> {
    /// include/uapi/asm-generic/socket.h.
    const SO_NETNS_COOKIE: usize = 71;
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    let (at, length_at) = ((&raw mut cookie).addr(), (&raw mut length).addr());
    let words = [socket.as_raw_fd() as usize, libc::SOL_SOCKET as usize, SO_NETNS_COOKIE, at, length_at, 0];
    // SAFETY: the kernel writes the eight bytes and the length, which are lent.
    unsafe { sys::call(libc::SYS_getsockopt, words) }.ok().map(|_| cookie)
}

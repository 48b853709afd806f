//! What ties a process to `overfly run`, or to the broker that this has started.

use std::os::fd::AsRawFd;

use overfly_broker::Error;
use overfly_broker::{Leash, may_return};
use rustix::process::{Signal, getpid, kill_process};

use super::Process;
use super::away::NoStack;
use crate::kernel;
use crate::table::{self, Entry};

impl Process {
    /// Ties this process to `overfly run`: it dies with it. So does a child that was forked while `overfly run` was dying,
    /// which is too late to be tied as its `parents` leash tied that.
    pub(super) fn connect_leash(&mut self, parents: Option<&Leash>) {
        let Err(error) = self.try_connect_leash() else { return };
        let returns = self.session.environment.as_deref().is_some_and(may_return);
        // A broker that is full, or slow, lives: then there is nothing to die for. Nor is there if `overfly run` waits for another one.
        let is_over = |leash: &Leash| if returns { leash.is_cut() } else { error.is_end_of_broker() };
        if parents.is_some_and(is_over) {
            let _ = kill_process(getpid(), Signal::KILL);
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
        leash.move_up(kernel::high_number());
        table::enter(leash.as_fd().as_raw_fd(), Entry::Internal);
        self.session.leash = Some(leash);
        Ok(())
    }
}

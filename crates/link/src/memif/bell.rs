//! What ends the sleep of a stack that has many descriptors to wait for.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;

use super::Keeper;
use crate::Error;

/// A descriptor that the keeper watches over.
#[derive(Debug)]
pub(crate) struct Kept {
    descriptor: OwnedFd,
    keeper: Keeper,
}

/// Nobody watches.
const NOBODY: Keeper = Keeper { adopt: |descriptor| descriptor, release: |_| {} };

impl Kept {
    /// As [`Kept::new`], where there may be no keeper.
    pub(super) fn by(keeper: Option<Keeper>, descriptor: OwnedFd) -> Kept {
        Kept::new(descriptor, keeper.unwrap_or(NOBODY))
    }

    pub(crate) fn new(descriptor: OwnedFd, keeper: Keeper) -> Kept {
        Kept { descriptor: (keeper.adopt)(descriptor), keeper }
    }
}

impl AsFd for Kept {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        (self.keeper.release)(self.descriptor.as_fd());
    }
}

/// A descriptor that is readable while one of those is that it rings for.
#[derive(Debug)]
pub(super) struct Bell(Kept);

impl Bell {
    /// # Errors
    /// What the kernel said.
    pub(super) fn new(keeper: Keeper) -> Result<Bell, Error> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC);
        let set = set.map_err(|errno| Error::system("epoll_create1", errno))?;
        Ok(Bell(Kept::new(set, keeper)))
    }

    /// It rings for this one, from now on if it did not before.
    pub(super) fn ring_for(&self, descriptor: BorrowedFd<'_>) {
        let _ = epoll::add(&self.0, descriptor, epoll::EventData::new_u64(0), epoll::EventFlags::IN);
    }

    /// It does not any more.
    pub(super) fn ring_no_more_for(&self, descriptor: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.0, descriptor);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

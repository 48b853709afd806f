//! What ends the sleep of a stack that has many descriptors to wait for.

use core::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};

use super::Registry;
use crate::Error;

/// A descriptor that the registry watches over.
#[derive(Debug)]
pub(crate) struct Registered {
    descriptor: OwnedFd,
    registry: Registry,
}

/// Descriptors that are looked at in one go.
const LOOKS: usize = 32;

/// Nobody watches.
const NOBODY: Registry = Registry { adopt: |descriptor| descriptor, release: |_| {} };

impl Registered {
    /// As [`Registered::new`], where there may be no registry.
    pub(super) fn by(registry: Option<Registry>, descriptor: OwnedFd) -> Registered {
        Registered::new(descriptor, registry.unwrap_or(NOBODY))
    }

    pub(crate) fn new(descriptor: OwnedFd, registry: Registry) -> Registered {
        Registered { descriptor: (registry.adopt)(descriptor), registry }
    }
}

impl AsFd for Registered {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        (self.registry.release)(self.descriptor.as_fd());
    }
}

/// A descriptor that is readable while one of those is that it rings for.
#[derive(Debug)]
pub(super) struct Doorbell(Registered);

impl Doorbell {
    /// # Errors
    /// What the kernel said.
    pub(super) fn new(registry: Registry) -> Result<Doorbell, Error> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC);
        let set = set.map_err(|errno| Error::system("epoll_create1", errno))?;
        Ok(Doorbell(Registered::new(set, registry)))
    }

    /// It rings for this one, from now on if it did not before.
    pub(super) fn ring_for(&self, descriptor: BorrowedFd<'_>) {
        let number = u64::from(descriptor.as_raw_fd().cast_unsigned());
        let _ = epoll::add(&self.0, descriptor, epoll::EventData::new_u64(number), epoll::EventFlags::IN);
    }

    /// The numbers of those for which it rings now. Where they are many it goes on ringing for the others.
    pub(super) fn rings_for(&self, mut each: impl FnMut(i32)) {
        let mut events = [const { MaybeUninit::uninit() }; LOOKS];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((events, _)) = epoll::wait(&self.0, &mut events[..], Some(&at_once)) else { return };
        events.iter().for_each(|event| each((event.data.u64() as u32).cast_signed()));
    }

    /// It does not any more.
    pub(super) fn ring_no_more_for(&self, descriptor: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.0, descriptor);
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

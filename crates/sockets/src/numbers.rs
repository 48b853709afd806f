//! Numbers of the library's own descriptors: above those that the program may have, so that it has all of its own.
//!
//! A descriptor stays open although its number is above RLIMIT_NOFILE; only to get one the limit must be higher (`alloc_fd()` in
//! fs/file.c). So the library raises the soft limit for a moment, where the hard one allows that.

use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

use rustix::process::{Resource, Rlimit, getrlimit, prlimit};

use crate::process::contexts::are_several;
use crate::table::{self, Entry};

/// So many numbers above the program's are the library's.
const ROOM: u64 = 4096;

/// The largest of them: the kernel's table of a process, which a fork copies, is as long as that.
const LARGEST: u64 = 1 << 16;

/// The soft limit while it is raised, else 0.
static RAISED: AtomicU64 = AtomicU64::new(0);

/// The program's soft limit, if there are numbers above it.
fn end_of_programs() -> Option<(u64, Rlimit)> {
    let limits = getrlimit(Resource::Nofile);
    let soft = limits.current.filter(|&soft| soft > 0)?;
    let most = limits.maximum.unwrap_or(u64::MAX).min(LARGEST);
    (soft + ROOM <= most).then_some((soft, limits))
}

/// How many the library may have for something that it could do without.
pub(crate) fn to_spare() -> u64 {
    match end_of_programs() {
        Some(_) => ROOM / 2,
        None => getrlimit(Resource::Nofile).current.unwrap_or(1024) / 16,
    }
}

/// `take` gets descriptors from a number on that programs do not use, if there is such a place.
pub(crate) fn out_of_the_way<T>(take: impl FnOnce(i32) -> T) -> T {
    let raised = end_of_programs().and_then(|(soft, limits)| {
        // Of two threads the other one does as where there is no room.
        RAISED.compare_exchange(0, soft, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        let above = Rlimit { current: Some(soft + ROOM), ..limits };
        let before = prlimit(None, Resource::Nofile, above).ok();
        if before.is_none() {
            RAISED.store(0, Ordering::Release);
        }
        before.map(|before| (soft, above, before))
    });
    let Some((soft, above, before)) = raised else { return take(near_the_end()) };
    let taken = take(i32::try_from(soft).unwrap_or(i32::MAX));
    // What another thread of the program has set meanwhile holds.
    if let Ok(found) = prlimit(None, Resource::Nofile, before)
        && found != above
    {
        let _ = prlimit(None, Resource::Nofile, found);
    }
    RAISED.store(0, Ordering::Release);
    taken
}

/// The last of the program's own.
fn near_the_end() -> i32 {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(1024).min(LARGEST);
    // Each stack has some.
    let room = if are_several() { (limit / 2).min(1024) } else { 128 };
    i32::try_from(limit.saturating_sub(room)).unwrap_or(896)
}

/// In a child: another thread of the parent may have been about to take a number.
pub(crate) fn begin_as_child() {
    let soft = RAISED.swap(0, Ordering::AcqRel);
    if soft != 0 {
        let limits = Rlimit { current: Some(soft), ..getrlimit(Resource::Nofile) };
        let _ = prlimit(None, Resource::Nofile, limits);
    }
}

/// Moves a descriptor to a number that programs do not use, if there is one.
pub(crate) fn move_up(descriptor: OwnedFd) -> OwnedFd {
    match out_of_the_way(|least| rustix::io::fcntl_dupfd_cloexec(&descriptor, least)) {
        Ok(moved) => {
            crate::sys::close(descriptor.into_raw_fd());
            moved
        }
        Err(_) => descriptor,
    }
}

/// Makes a descriptor the library's own, out of the program's way.
pub(crate) fn make_internal(descriptor: OwnedFd) -> OwnedFd {
    let descriptor = move_up(descriptor);
    table::enter(descriptor.as_raw_fd(), Entry::Internal);
    descriptor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_above_the_limit_which_stays_as_it_is() {
        let limits = getrlimit(Resource::Nofile);
        let room = limits.maximum.map(|hard| hard.min(LARGEST) - ROOM);
        let before = Rlimit { current: room.min(limits.current), ..limits };
        prlimit(None, Resource::Nofile, before).unwrap();
        let (soft, _) = end_of_programs().unwrap();
        let make = || move_up(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap());
        let [one, other] = [make(), make()];
        assert!(one.as_raw_fd() as u64 >= soft && other.as_raw_fd() as u64 >= soft);
        assert_eq!(getrlimit(Resource::Nofile), before);
        // What a thread sets meanwhile holds.
        let set = Rlimit { current: Some(soft - 1), ..before };
        out_of_the_way(|_| prlimit(None, Resource::Nofile, set).unwrap());
        assert_eq!(prlimit(None, Resource::Nofile, before), Ok(set));
        // A child that was born meanwhile has the program's limit again.
        RAISED.store(soft, Ordering::Relaxed);
        let raised = Rlimit { current: Some(soft + ROOM), ..before };
        prlimit(None, Resource::Nofile, raised).unwrap();
        begin_as_child();
        assert_eq!((getrlimit(Resource::Nofile), RAISED.load(Ordering::Relaxed)), (before, 0));
    }
}

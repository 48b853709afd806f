//! What a broker or an agent waits for.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// How long to wait where the kernel has no memory.
const PAUSE: Duration = Duration::from_millis(50);

/// Which descriptors of each part can be read or have ended, by number. Waits for one of them, a signal, or `pause`.
#[must_use]
pub fn readable<const N: usize>(parts: [Vec<BorrowedFd<'_>>; N], pause: Option<Duration>) -> [Vec<bool>; N] {
    let timeout = pause
        .map(|pause| Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: i64::from(pause.subsec_nanos()) });
    let lengths = parts.each_ref().map(Vec::len);
    let mut set: Vec<PollFd<'_>> =
        parts.into_iter().flatten().map(|one| PollFd::from_borrowed_fd(one, PollFlags::IN)).collect();
    match poll(&mut set, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(_) => std::thread::sleep(PAUSE), // no memory: later
    }
    let mut ready = set.iter().map(|entry| !entry.revents().is_empty());
    lengths.map(|length| ready.by_ref().take(length).collect())
}

/// Whether it can be read, or has ended: now.
pub(crate) fn is_readable(descriptor: &OwnedFd) -> bool {
    let mut set = [PollFd::new(descriptor, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut set, Some(&now)), Ok(1))
}

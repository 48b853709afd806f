//! Whether descriptor 2 is still what lines are for. A program may have put a connection there (inetd's children, vsftpd), and the
//! peer would read our lines; or have closed it, and the file that it opened next has that number.

use core::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use rustix::net::{AddressFamily, sockopt};

use super::borrow;

const NUMBER: i32 = 2;

/// Device and inode of what the program began with.
static BEGAN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The program begins with what is there now.
pub(crate) fn remember() {
    if let Some((identity, _)) = now() {
        for (place, number) in BEGAN.iter().zip(identity) {
            place.store(number, Ordering::Relaxed);
        }
    }
}

/// Whether whoever runs the program reads what is written there.
pub(super) fn takes_lines() -> bool {
    let Some((identity, kind)) = now() else { return false };
    let began = [0, 1].map(|place: usize| BEGAN[place].load(Ordering::Relaxed));
    let is_as_it_began = began == identity || began == [0, 0];
    match kind {
        // A service manager's, such as systemd's to its journal.
        FileType::Socket => {
            is_as_it_began && sockopt::socket_domain(borrow(NUMBER)) == Ok(AddressFamily::UNIX)
        }
        FileType::RegularFile => {
            is_as_it_began || fcntl_getfl(borrow(NUMBER)).is_ok_and(|flags| flags.contains(OFlags::APPEND))
        }
        _ => true,
    }
}

fn now() -> Option<([u64; 2], FileType)> {
    let file = fstat(borrow(NUMBER)).ok()?;
    Some(([file.st_dev, file.st_ino], FileType::from_raw_mode(file.st_mode)))
}

//! Who is at the other end of a Unix socket, as the kernel says it.

use core::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::Pid;

/// The process that connected, or that listened, and as whom it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// Its number. `None`: it is in a process namespace that cannot be seen from here (the kernel says 0, which rustix's type for this
    /// has no room for).
    pub process: Option<Pid>,
    /// Its user.
    pub user: u32,
    /// Its group.
    pub group: u32,
}

impl PeerIdentity {
    /// Of the peer of `socket` (SO_PEERCRED, unix(7)).
    ///
    /// # Errors
    /// getsockopt(2).
    pub fn of(socket: impl AsFd) -> Result<PeerIdentity, Errno> {
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        // SAFETY: the kernel writes a `struct ucred` at most, and any bytes are one.
        unsafe { read(socket, libc::SO_PEERCRED, (&raw mut peer).cast(), size_of::<libc::ucred>()) }?;
        Ok(PeerIdentity { process: Pid::from_raw(peer.pid), user: peer.uid, group: peer.gid })
    }
}

/// The process that connected, as a descriptor (SO_PEERPIDFD, Linux 6.5): it is that process whoever has its number by now, and readable
/// once it has ended.
///
/// # Errors
/// getsockopt(2): ENOPROTOOPT on an older kernel; ESRCH or EINVAL if the process has ended.
pub fn peer_process(socket: impl AsFd) -> Result<OwnedFd, Errno> {
    const SO_PEERPIDFD: c_int = 77; // include/uapi/asm-generic/socket.h
    let mut process: c_int = -1;
    // SAFETY: the kernel writes an `int` at most, and any bytes are one.
    unsafe { read(socket, SO_PEERPIDFD, (&raw mut process).cast(), size_of::<c_int>()) }?;
    if process < 0 {
        return Err(Errno::SRCH);
    }
    // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(process) })
}

/// getsockopt(2), not as libc has it: in the preloaded library that is our own hook.
///
/// # Safety
/// `value` can be written for `length` bytes, and any bytes are a valid value of it.
unsafe fn read(socket: impl AsFd, name: c_int, value: *mut c_void, length: usize) -> Result<(), Errno> {
    let mut length = length as c_uint;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes no more than `length` bytes, which the caller vouches for.
    let result = unsafe {
        libc::syscall(libc::SYS_getsockopt, socket, libc::SOL_SOCKET, name, value, &raw mut length)
    };
    if result == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn a_peer_is_known_by_number_and_by_itself() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let peer = PeerIdentity::of(&ours).unwrap();
        assert_eq!(peer.process, Some(rustix::process::getpid()));
        assert_eq!(peer.user, rustix::process::geteuid().as_raw());
        match peer_process(&ours) {
            Ok(process) => {
                let mut set = [PollFd::new(&process, PollFlags::IN)];
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                assert_eq!(poll(&mut set, Some(&now)), Ok(0), "it lives");
            }
            Err(errno) => assert_eq!(errno, Errno::NOPROTOOPT, "before Linux 6.5"),
        }
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(PeerIdentity::of(&file), Err(Errno::NOTSOCK));
    }
}

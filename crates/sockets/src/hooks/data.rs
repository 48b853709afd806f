//! What read, write and their kin share.

use core::ffi::c_int;

use libc::{iovec, msghdr, off_t};
use rustix::io::Errno;

use crate::calls::Answer;
use crate::memory::is_plausible;
use crate::process::is_active;
use crate::table::is_ours;

/// IOV_MAX.
pub(super) const VECTORS_MAX: usize = 1024;

/// The offset with which preadv2() and pwritev2() are readv() and writev(): a socket knows no other.
pub(super) const CURRENT: off_t = -1;

/// What the two of a socket do at flags (include/uapi/linux/fs.h): as MSG_DONTWAIT, or nothing. All others, and an offset, the
/// kernel refuses whatever the socket's state.
pub(super) const fn message_flags(offset: off_t, flags: c_int) -> Option<c_int> {
    const IGNORED: c_int = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_APPEND;
    if offset != CURRENT || flags & !(IGNORED | libc::RWF_NOWAIT) != 0 {
        return None;
    }
    Some(if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 })
}

/// How many vectors there are, if the kernel would take so many from there.
pub(super) fn count_vectors(vectors: *const iovec, number: c_int) -> Result<usize, Errno> {
    let number = usize::try_from(number).ok().filter(|&number| number <= VECTORS_MAX).ok_or(Errno::INVAL)?;
    is_plausible(vectors, number * size_of::<iovec>()).then_some(number).ok_or(Errno::FAULT)
}

/// The descriptors that a message brings along (SCM_RIGHTS, unix(7)).
///
/// # Safety
/// As for sendmsg(2).
pub(super) unsafe fn each_passed(
    message: *const msghdr,
    mut each: impl FnMut(c_int) -> Result<(), Errno>,
) -> Result<(), Errno> {
    // SAFETY: the program lends the header for the call if it is not null.
    let Some(message) = (unsafe { message.as_ref() }) else { return Ok(()) };
    if message.msg_controllen == 0 || message.msg_control.is_null() || !is_active() {
        return Ok(());
    }
    // SAFETY: the program lends `msg_controllen` bytes of control messages; the macros stay within them.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: as above.
    while let Some(control) = unsafe { header.as_ref() } {
        if (control.cmsg_level, control.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: as above.
            let data = unsafe { libc::CMSG_DATA(header) }.cast::<c_int>();
            // SAFETY: CMSG_LEN only computes.
            let length = control.cmsg_len.saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
            for index in 0..length / size_of::<c_int>() {
                // SAFETY: within the control message.
                each(unsafe { data.add(index).read_unaligned() })?;
            }
        }
        // SAFETY: as above.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    Ok(())
}

pub(crate) fn is_connection(descriptor: c_int) -> bool {
    is_ours(descriptor) && matches!(crate::calls::options::connection(descriptor), Answer::Done(Ok(_)))
}

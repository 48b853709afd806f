//! Options of AF_XDP sockets that rustix does not know.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::Error;

const SOL_XDP: c_int = 283;
/// Frames that one `sendto` may hand to the driver in copy mode (Linux 6.17; include/uapi/linux/if_xdp.h).
const XDP_MAX_TX_SKB_BUDGET: c_int = 9;
const SO_BUSY_POLL: c_int = 46;
const SO_PREFER_BUSY_POLL: c_int = 69;
const SO_BUSY_POLL_BUDGET: c_int = 70;
const SO_INCOMING_NAPI_ID: c_int = 56;

/// How a socket polls its queue's device itself (Documentation/networking/napi.rst, "Busy polling").
///
/// It works where the kernel knows which NAPI fills the socket. Since Linux 6.13 that is so for zero-copy sockets only
/// (xsk_bind sets it, from 6.14 on), and hence never on veth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPoll {
    /// `SO_BUSY_POLL`, in microseconds: what a blocking call would poll for. Any value above 0 enables polling.
    pub duration_us: u32,
    /// `SO_BUSY_POLL_BUDGET`: frames that one call may process.
    pub budget: u32,
}

impl Default for BusyPoll {
    fn default() -> BusyPoll {
        BusyPoll { duration_us: 20, budget: 64 }
    }
}

/// `setsockopt` with a 32-bit value.
fn set_option(socket: BorrowedFd<'_>, level: c_int, option: c_int, value: u32) -> Result<(), Errno> {
    let length = size_of::<u32>();
    // SAFETY: `value` is alive and as long as stated; the kernel only reads it. libc's setsockopt is not called because
    // inside the preloaded library that name is our own hook.
    let result = unsafe {
        libc::syscall(libc::SYS_setsockopt, socket.as_raw_fd(), level, option, &raw const value, length)
    };
    if result == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
    }
}

/// Lets one `sendto` take the whole transmit ring. Kernels before 6.17 stay with 32 frames a call.
pub(crate) fn raise_transmit_budget(socket: BorrowedFd<'_>, frames: u32) {
    let _ = set_option(socket, SOL_XDP, XDP_MAX_TX_SKB_BUDGET, frames);
}

/// Whether the kernel knows which device queue's NAPI to poll for the socket.
pub(crate) fn knows_napi(socket: BorrowedFd<'_>) -> bool {
    let mut napi = 0_u32;
    let mut length = size_of::<u32>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes of `napi`, and `length` itself; both are alive. Not libc's getsockopt
    // for the same reason as above.
    let result = unsafe {
        libc::syscall(
            libc::SYS_getsockopt,
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_INCOMING_NAPI_ID,
            &raw mut napi,
            &raw mut length,
        )
    };
    result == 0 && napi != 0
}

/// Polls the device of the socket's queue once (busy polling), or wakes its driver (zero-copy without busy polling).
pub(crate) fn poll_device(socket: BorrowedFd<'_>) {
    let nothing: &mut [MaybeUninit<u8>] = &mut [];
    let _ = recv(socket, nothing, RecvFlags::DONTWAIT);
}

/// Makes the kernel take what the socket's transmit ring shows it.
///
/// # Errors
/// EAGAIN if that was not all. EBUSY: the device's queue was full, and a frame is lost. Others as `xsk_sendmsg` has them
/// (net/xdp/xsk.c).
pub fn kick(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    #[cfg(test)]
    if let Some(answer) = pretended::kick() {
        return answer;
    }
    send(socket, &[], SendFlags::DONTWAIT).map(drop)
}

/// Needs CAP_NET_ADMIN.
pub(crate) fn enable_busy_poll(socket: BorrowedFd<'_>, busy_poll: BusyPoll) -> Result<(), Error> {
    for (option, value, operation) in [
        (SO_PREFER_BUSY_POLL, 1, "SO_PREFER_BUSY_POLL"),
        (SO_BUSY_POLL, busy_poll.duration_us, "SO_BUSY_POLL"),
        (SO_BUSY_POLL_BUDGET, busy_poll.budget, "SO_BUSY_POLL_BUDGET"),
    ] {
        set_option(socket, libc::SOL_SOCKET, option, value).map_err(|errno| match errno {
            Errno::PERM => Error::NoPrivilege { operation, capability: "CAP_NET_ADMIN" },
            errno => Error::system(operation, errno),
        })?;
    }
    Ok(())
}

/// A kernel of a test's own in place of the real one.
#[cfg(test)]
pub(super) mod pretended {
    use std::cell::RefCell;

    use rustix::io::Errno;

    type Kick = Box<dyn FnMut() -> Result<(), Errno>>;

    thread_local! {
        static KICK: RefCell<Option<Kick>> = const { RefCell::new(None) };
    }

    /// What this thread's kicks do from now on.
    pub(in crate::xdp) fn kicks_with(kick: impl FnMut() -> Result<(), Errno> + 'static) {
        KICK.set(Some(Box::new(kick)));
    }

    pub(in crate::xdp) fn kick() -> Option<Result<(), Errno>> {
        KICK.with_borrow_mut(|kick| kick.as_mut().map(|kick| kick()))
    }
}

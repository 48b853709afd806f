//! syscall(2): programs and libraries that name a system call by its number. The socket calls among them are those of the
//! other hooks.

use core::ffi::{c_int, c_long, c_uint, c_ulong};
use core::sync::atomic::Ordering;

use rustix::io::Errno;

use super::{deaths, descriptors, events, exec, fail, options, processes, receive, send, sockets, splice};
use crate::cancel;
use crate::process::{is_active, process};

/// # Safety
/// As for syscall(2). Its variadic arguments are where those of a function with so many named ones are; a call that has
/// fewer ignores the others.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let arguments = [a, b, c, d, e, f];
    // What the library itself calls this way, it calls with the lock in its hands.
    if is_active()
        && !crate::sys::sleep_control(|sleep_control| sleep_control.holding.load(Ordering::Relaxed))
    {
        // SAFETY: the program's arguments, handed on.
        if let Some(result) = cancel::without(|| unsafe { hooked(number, arguments) }) {
            return result;
        }
    }
    // SAFETY: the program's arguments, handed on.
    match unsafe { crate::sys::call(number, arguments) } {
        Ok(result) => result as c_long,
        Err(error) => c_long::from(fail(error)),
    }
}

/// What a hook answers, if there is one for the call.
///
/// # Safety
/// As for syscall(2).
unsafe fn hooked(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Option<c_long> {
    let (one, two, three, four) = (a as c_int, b as c_int, c as c_int, d as c_int);
    // SAFETY: the program's arguments, as the types that the call gives them.
    let result = unsafe {
        match number {
            libc::SYS_socket => sockets::socket(one, two, three).into(),
            libc::SYS_bind => sockets::bind(one, b as _, c as c_uint).into(),
            libc::SYS_listen => sockets::listen(one, two).into(),
            libc::SYS_accept => sockets::accept(one, b as _, c as _).into(),
            libc::SYS_accept4 => sockets::accept4(one, b as _, c as _, four).into(),
            libc::SYS_connect => sockets::connect(one, b as _, c as c_uint).into(),
            libc::SYS_shutdown => sockets::shutdown(one, two).into(),
            libc::SYS_getsockname => sockets::getsockname(one, b as _, c as _).into(),
            libc::SYS_getpeername => sockets::getpeername(one, b as _, c as _).into(),
            libc::SYS_getsockopt => options::getsockopt(one, two, three, d as _, e as _).into(),
            libc::SYS_setsockopt => options::setsockopt(one, two, three, d as _, e as c_uint).into(),
            libc::SYS_read => receive::read(one, b as _, c) as c_long,
            libc::SYS_readv => receive::readv(one, b as _, three) as c_long,
            // The fifth is the offset's upper half, on machines where one word does not hold it.
            libc::SYS_preadv2 => receive::preadv2(one, b as _, three, d as _, f as c_int) as c_long,
            libc::SYS_recvfrom => receive::recvfrom(one, b as _, c, four, e as _, f as _) as c_long,
            libc::SYS_recvmsg => receive::recvmsg(one, b as _, three) as c_long,
            libc::SYS_recvmmsg => receive::recvmmsg(one, b as _, c as c_uint, four, e as _).into(),
            libc::SYS_write => send::write(one, b as _, c) as c_long,
            libc::SYS_writev => send::writev(one, b as _, three) as c_long,
            libc::SYS_pwritev2 => send::pwritev2(one, b as _, three, d as _, f as c_int) as c_long,
            libc::SYS_sendto => send::sendto(one, b as _, c, four, e as _, f as c_uint) as c_long,
            libc::SYS_sendmsg => send::sendmsg(one, b as _, three) as c_long,
            libc::SYS_sendmmsg => send::sendmmsg(one, b as _, c as c_uint, four).into(),
            libc::SYS_sendfile => send::sendfile(one, two, c as _, d) as c_long,
            libc::SYS_splice => splice::splice(one, b as _, three, d as _, e, f as c_uint) as c_long,
            libc::SYS_close => descriptors::close(one).into(),
            libc::SYS_close_range => descriptors::close_range(a as c_uint, b as c_uint, three).into(),
            libc::SYS_dup => descriptors::dup(one).into(),
            libc::SYS_dup3 => descriptors::dup3(one, two, three).into(),
            libc::SYS_ioctl => descriptors::ioctl(one, b as c_ulong, c as c_ulong).into(),
            libc::SYS_epoll_create1 => events::epoll_create1(one).into(),
            libc::SYS_epoll_ctl => events::epoll_ctl(one, two, three, d as _).into(),
            libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 if events::is_no_mask(e, f) => {
                fail(Errno::INVAL).into()
            }
            libc::SYS_epoll_pwait => events::epoll_pwait(one, b as _, three, four, e as _).into(),
            libc::SYS_epoll_pwait2 => events::epoll_pwait2(one, b as _, three, d as _, e as _).into(),
            libc::SYS_ppoll if events::is_no_mask(d, e) => fail(Errno::INVAL).into(),
            libc::SYS_ppoll => {
                events::saying_what_is_left(c as _, || events::ppoll(a as _, b as _, c as _, d as _)).into()
            }
            libc::SYS_pselect6 => {
                // The kernel's sixth argument is the address of the mask and of its length (select(2)).
                let [mask, size] = (f as *const [usize; 2]).as_ref().copied().unwrap_or_default();
                if events::is_no_mask(mask, size) {
                    fail(Errno::INVAL).into()
                } else {
                    events::saying_what_is_left(e as _, || {
                        events::pselect(one, b as _, c as _, d as _, e as _, mask as _)
                    })
                    .into()
                }
            }
            libc::SYS_execve => exec::execve(a as _, b as _, c as _).into(),
            libc::SYS_execveat => exec::execveat(one, b as _, c as _, d as _, e as c_int).into(),
            libc::SYS_exit_group => processes::_exit(one),
            libc::SYS_kill => deaths::kill(one, b as c_int).into(),
            // A ring would act on our descriptors behind our back.
            libc::SYS_io_uring_setup if process().options.io_uring == 0 => fail(Errno::NOSYS).into(),
            // The child goes on with this stack, or with one of its own, of which nothing is known here.
            libc::SYS_clone if b == 0 => return forked(number, [a, b, c, d, e, f], a),
            libc::SYS_clone3 if b >= CLONE_ARGS_LEN => {
                let record = core::ptr::read(a as *const [u64; CLONE_ARGS_LEN / 8]);
                return if record[5] == 0 {
                    forked(number, [a, b, c, d, e, f], record[0] as usize)
                } else {
                    None
                };
            }
            _ => return older(number, [a, b, c, d, e]),
        }
    };
    Some(result)
}

/// Bytes of the oldest `struct clone_args` (CLONE_ARGS_SIZE_VER0); its flags come first, the stack is its sixth word.
const CLONE_ARGS_LEN: usize = 64;

/// A child with memory of its own is a fork's.
///
/// # Safety
/// As for clone(2).
unsafe fn forked(number: c_long, arguments: [usize; 6], flags: usize) -> Option<c_long> {
    if flags & libc::CLONE_VM as usize != 0 {
        return None;
    }
    // SAFETY: the program's arguments, handed on.
    let outcome = processes::forking(|| match unsafe { crate::sys::call(number, arguments) } {
        Ok(process) => process as c_long,
        Err(error) => -c_long::from(error.raw_os_error()),
    });
    Some(if outcome < 0 { c_long::from(fail(Errno::from_raw_os_error(-outcome as i32))) } else { outcome })
}

/// Calls that newer architectures do not have.
///
/// # Safety
/// As for syscall(2).
#[cfg(target_arch = "x86_64")]
unsafe fn older(number: c_long, [a, b, c, d, e]: [usize; 5]) -> Option<c_long> {
    let (one, two) = (a as c_int, b as c_int);
    // SAFETY: the program's arguments, as the types that the call gives them.
    let result = unsafe {
        match number {
            libc::SYS_poll => events::poll(a as _, b as _, c as c_int),
            libc::SYS_select => events::select(one, b as _, c as _, d as _, e as _),
            libc::SYS_dup2 => descriptors::dup2(one, two),
            libc::SYS_epoll_create => events::epoll_create(one),
            // A vfork's child would go on in its parent's memory: see the hook.
            libc::SYS_fork | libc::SYS_vfork => return forked(libc::SYS_fork, [0; 6], 0),
            libc::SYS_epoll_wait => events::epoll_wait(one, b as _, c as c_int, d as c_int),
            _ => return None,
        }
    };
    Some(result.into())
}

/// Calls that newer architectures do not have.
///
/// # Safety
/// As for syscall(2).
#[cfg(not(target_arch = "x86_64"))]
unsafe fn older(_number: c_long, _arguments: [usize; 5]) -> Option<c_long> {
    None
}

//! epoll, poll, select, and sleeping.

use core::ffi::c_int;
use core::time::Duration;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use overfly_profile::options::Waiting;
use rustix::io::Errno;

use super::{count, done, fail, next};
use crate::calls::{Answer, control, life, poll, wait};
use crate::cancel;
use crate::kernel::now;
use crate::process::before_kernel_wait;
use crate::table::is_ours;

/// A timeout in milliseconds, negative for ever.
fn milliseconds(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// # Safety
/// `time` must be null or valid.
unsafe fn duration(time: *const timespec) -> Result<Option<Duration>, Errno> {
    // SAFETY: the caller's promise.
    let Some(time) = (unsafe { time.as_ref() }) else { return Ok(None) };
    match (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
        (Ok(seconds), Ok(nanoseconds @ 0..1_000_000_000)) => {
            Ok(Some(Duration::new(seconds.min(1 << 32), nanoseconds)))
        }
        _ => Err(Errno::INVAL),
    }
}

/// The kernel's 64 signals of libc's larger set.
///
/// # Safety
/// `mask` must be null or valid.
unsafe fn signals(mask: *const sigset_t) -> Option<u64> {
    // SAFETY: the caller's promise; libc's set begins with the kernel's.
    (!mask.is_null()).then(|| unsafe { mask.cast::<u64>().read_unaligned() })
}

/// # Safety
/// As for epoll_create(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: the program's argument, handed on.
    let descriptor = unsafe { next::epoll_create(size) };
    if descriptor >= 0 {
        life::set_opened(descriptor);
    }
    descriptor
}

/// # Safety
/// As for epoll_create1(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: the program's argument, handed on.
    let descriptor = unsafe { next::epoll_create1(flags) };
    if descriptor >= 0 {
        life::set_opened(descriptor);
    }
    descriptor
}

/// # Safety
/// As for epoll_ctl(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    descriptor: c_int,
    event: *mut epoll_event,
) -> c_int {
    if is_ours(descriptor) {
        // SAFETY: the program lends the record for the call if it is not null.
        let record = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
        if let Answer::Done(outcome) = control::epoll_ctl(epoll, operation, descriptor, record) {
            return done(outcome);
        }
    }
    // SAFETY: the program's arguments, handed on.
    unsafe { next::epoll_ctl(epoll, operation, descriptor, event) }
}

/// # Safety
/// As for epoll_wait(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    cancel::point();
    if is_ours(epoll) {
        // SAFETY: the program lends `most` records for the call.
        let answer = unsafe { wait::epoll_wait(epoll, events, most, milliseconds(timeout), None) };
        if let Answer::Done(outcome) = answer {
            return count(outcome) as c_int;
        }
    }
    before_kernel_wait();
    // SAFETY: the program's arguments, handed on.
    unsafe { next::epoll_wait(epoll, events, most, timeout) }
}

/// # Safety
/// As for epoll_pwait(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    cancel::point();
    if is_ours(epoll) {
        // SAFETY: the program lends the mask, and `most` records, for the call.
        let answer = unsafe { wait::epoll_wait(epoll, events, most, milliseconds(timeout), signals(mask)) };
        if let Answer::Done(outcome) = answer {
            return count(outcome) as c_int;
        }
    }
    before_kernel_wait();
    // SAFETY: the program's arguments, handed on.
    unsafe { next::epoll_pwait(epoll, events, most, timeout, mask) }
}

/// # Safety
/// As for epoll_pwait2(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    cancel::point();
    if is_ours(epoll) {
        // SAFETY: the program lends the timeout for the call.
        let time = match unsafe { duration(timeout) } {
            Ok(time) => time,
            Err(error) => return fail(error),
        };
        // SAFETY: the program lends the mask, and `most` records, for the call.
        if let Answer::Done(outcome) = unsafe { wait::epoll_wait(epoll, events, most, time, signals(mask)) } {
            return count(outcome) as c_int;
        }
    }
    before_kernel_wait();
    // SAFETY: the program's arguments, handed on.
    unsafe { next::epoll_pwait2(epoll, events, most, timeout, mask) }
}

/// A signal mask of another length than the kernel's (set_user_sigmask() in kernel/signal.c).
pub(super) const fn is_no_mask(mask: usize, length: usize) -> bool {
    mask != 0 && length != 8
}

/// A wait by its system call's number: what is left of its time is said, as the kernel does and libc's functions do not
/// (poll_select_finish() in fs/select.c).
///
/// # Safety
/// `timeout` must be null, or the program lends it for the call.
pub(super) unsafe fn saying_what_is_left(timeout: *mut timespec, wait: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the caller's promise.
    let given = unsafe { duration(timeout) };
    let started = now();
    let result = wait();
    if let Ok(Some(given)) = given
        && !given.is_zero()
    {
        let left = given.saturating_sub(now() - started);
        // SAFETY: as above.
        unsafe { (*timeout).tv_sec = left.as_secs() as i64 };
        // SAFETY: as above.
        unsafe { (*timeout).tv_nsec = left.subsec_nanos().into() };
    }
    result
}

/// # Safety
/// As for poll(2).
unsafe fn poll_ours(
    descriptors: *mut pollfd,
    number: nfds_t,
    timeout: Option<Duration>,
    mask: Option<u64>,
) -> Answer<usize> {
    let Ok(number) = usize::try_from(number) else { return Answer::error(Errno::INVAL) };
    if descriptors.is_null() || number == 0 {
        before_kernel_wait();
        return Answer::Kernel;
    }
    // SAFETY: the program lends `number` records for the call.
    poll::poll(unsafe { core::slice::from_raw_parts_mut(descriptors, number) }, timeout, mask, Waiting::Poll)
}

/// # Safety
/// As for poll(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn poll(descriptors: *mut pollfd, number: nfds_t, timeout: c_int) -> c_int {
    cancel::point();
    // SAFETY: the program's arguments, handed on.
    match unsafe { poll_ours(descriptors, number, milliseconds(timeout), None) } {
        Answer::Done(outcome) => count(outcome) as c_int,
        // SAFETY: the program's arguments, handed on.
        Answer::Kernel => unsafe { next::poll(descriptors, number, timeout) },
    }
}

/// # Safety
/// As for poll(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __poll_chk(
    descriptors: *mut pollfd,
    number: nfds_t,
    timeout: c_int,
    _room: libc::size_t,
) -> c_int {
    // SAFETY: the program's arguments, handed on.
    unsafe { poll(descriptors, number, timeout) }
}

/// # Safety
/// As for ppoll(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn ppoll(
    descriptors: *mut pollfd,
    number: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    cancel::point();
    // SAFETY: the program lends the timeout for the call.
    let time = match unsafe { duration(timeout) } {
        Ok(time) => time,
        Err(error) => return fail(error),
    };
    // SAFETY: the program's arguments, handed on.
    match unsafe { poll_ours(descriptors, number, time, signals(mask)) } {
        Answer::Done(outcome) => count(outcome) as c_int,
        // SAFETY: the program's arguments, handed on.
        Answer::Kernel => unsafe { next::ppoll(descriptors, number, timeout, mask) },
    }
}

/// # Safety
/// As for ppoll(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    descriptors: *mut pollfd,
    number: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    _room: libc::size_t,
) -> c_int {
    // SAFETY: the program's arguments, handed on.
    unsafe { ppoll(descriptors, number, timeout, mask) }
}

/// Whether `descriptor` is in a set; sets longer than FD_SETSIZE are as common as they are undefined.
///
/// # Safety
/// `set` must be null, or hold the bit.
unsafe fn is_in(set: *const fd_set, descriptor: c_int) -> bool {
    // SAFETY: the caller's promise.
    !set.is_null()
        && unsafe { *set.cast::<u64>().add(descriptor as usize / 64) } & (1 << (descriptor % 64)) != 0
}

/// # Safety
/// As for [`is_in`].
unsafe fn put(set: *mut fd_set, descriptor: c_int, on: bool) -> usize {
    if set.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    let word = unsafe { &mut *set.cast::<u64>().add(descriptor as usize / 64) };
    let bit = 1 << (descriptor % 64);
    *word = if on { *word | bit } else { *word & !bit };
    usize::from(on)
}

/// select() as poll(): the events that each set stands for are those of the kernel (fs/select.c).
///
/// # Safety
/// As for select(2).
unsafe fn select_ours(
    number: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: Option<Duration>,
    mask: Option<u64>,
) -> Answer<usize> {
    const READ: i16 = libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR;
    const WRITE: i16 = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND | libc::POLLERR;
    const EXCEPT: i16 = libc::POLLPRI;
    // SAFETY: the program lends sets of at least `number` bits for the call.
    let member = |descriptor| unsafe {
        [is_in(read, descriptor), is_in(write, descriptor), is_in(except, descriptor)]
    };
    if !(0..number).any(|descriptor| is_ours(descriptor) && member(descriptor) != [false; 3]) {
        return Answer::Kernel;
    }
    let mut descriptors: Vec<pollfd> = (0..number)
        .filter_map(|fd| {
            let [read, write, except] = member(fd);
            let events =
                if read { READ } else { 0 } | if write { WRITE } else { 0 } | if except { EXCEPT } else { 0 };
            (events != 0).then_some(pollfd { fd, events, revents: 0 })
        })
        .collect();
    match poll::poll(&mut descriptors, timeout, mask, Waiting::Select) {
        Answer::Done(Ok(_)) => {}
        other => return other,
    }
    if descriptors.iter().any(|descriptor| descriptor.revents & libc::POLLNVAL != 0) {
        return Answer::error(Errno::BADF);
    }
    let mut ready = 0;
    for descriptor in &descriptors {
        for (set, events) in [(read, READ), (write, WRITE), (except, EXCEPT)] {
            // SAFETY: as above.
            unsafe {
                if is_in(set, descriptor.fd) {
                    ready += put(set, descriptor.fd, descriptor.revents & events != 0);
                }
            }
        }
    }
    Answer::ok(ready)
}

/// # Safety
/// As for select(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn select(
    number: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    cancel::point();
    // SAFETY: the program lends the timeout for the call if it is not null.
    let time = unsafe { timeout.as_ref() }.map(|time| {
        Duration::from_micros(
            u64::try_from(time.tv_sec).unwrap_or(0).min(1 << 32) * 1_000_000
                + u64::try_from(time.tv_usec).unwrap_or(0),
        )
    });
    let started = now();
    // SAFETY: the program's arguments, handed on.
    match unsafe { select_ours(number, read, write, except, time, None) } {
        Answer::Done(outcome) => {
            if let Some(time) = time.filter(|time| !time.is_zero()) {
                // As libc's says what is left (select(2), NOTES).
                let left = time.saturating_sub(now() - started);
                // SAFETY: as above; a time that is not null.
                unsafe {
                    (*timeout).tv_sec = left.as_secs() as i64;
                    (*timeout).tv_usec = left.subsec_micros().into();
                }
            }
            count(outcome) as c_int
        }
        Answer::Kernel => {
            before_kernel_wait();
            // SAFETY: the program's arguments, handed on.
            unsafe { next::select(number, read, write, except, timeout) }
        }
    }
}

/// # Safety
/// As for pselect(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn pselect(
    number: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    cancel::point();
    // SAFETY: the program lends the timeout for the call.
    let time = match unsafe { duration(timeout) } {
        Ok(time) => time,
        Err(error) => return fail(error),
    };
    // SAFETY: the program's arguments, handed on.
    match unsafe { select_ours(number, read, write, except, time, signals(mask)) } {
        Answer::Done(outcome) => count(outcome) as c_int,
        Answer::Kernel => {
            before_kernel_wait();
            // SAFETY: the program's arguments, handed on.
            unsafe { next::pselect(number, read, write, except, timeout, mask) }
        }
    }
}

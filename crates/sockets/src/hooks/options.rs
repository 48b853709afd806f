//! setsockopt and getsockopt.

use core::ffi::{c_int, c_void};

use libc::socklen_t;
use rustix::io::Errno;

use super::{done, fail, next};
use crate::calls::{Answer, datagram, life, options};
use crate::memory::is_plausible;
use crate::options::{Follow, OptionAccess, OptionArgument, SocketOption, Stream, find};
use crate::socket::SocketId;
use crate::table::is_ours;

/// The program's arguments of setsockopt().
#[derive(Clone, Copy)]
struct SetCall {
    descriptor: c_int,
    level: c_int,
    name: c_int,
    pointer: *const c_void,
    length: socklen_t,
}

impl SetCall {
    /// Reads a value that has at least its type's length.
    ///
    /// # Safety
    /// As for setsockopt(2); `T` must be a plain C record.
    unsafe fn value<T>(self) -> Result<T, Errno> {
        if (self.length as usize) < size_of::<T>() {
            return Err(Errno::INVAL);
        }
        if !is_plausible(self.pointer, self.length as usize) {
            return Err(Errno::FAULT);
        }
        // SAFETY: the program lends `length` bytes, which are enough; `T` is a plain C record.
        Ok(unsafe { self.pointer.cast::<T>().read_unaligned() })
    }

    /// As much of the value as the option has.
    ///
    /// # Safety
    /// As for setsockopt(2).
    unsafe fn given(self, kept: &OptionAccess) -> Result<OptionArgument, Errno> {
        let taken = kept.taken(self.level, self.length as usize)?;
        if !is_plausible(self.pointer, self.length as usize) {
            return Err(Errno::FAULT);
        }
        // SAFETY: the program lends `length` bytes for the call, and `taken` is no more.
        Ok(OptionArgument::new(unsafe { core::slice::from_raw_parts(self.pointer.cast(), taken) }))
    }

    /// The kernel's socket gets it.
    ///
    /// # Safety
    /// As for setsockopt(2).
    unsafe fn pass_on(self) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { next::setsockopt(self.descriptor, self.level, self.name, self.pointer, self.length) }
    }

    /// The kernel's socket does not say whether its time-outs are below zero.
    ///
    /// # Safety
    /// As for setsockopt(2).
    unsafe fn note_timeout(self, option: Option<&SocketOption>) {
        if let Some(SocketOption { stream: Stream::Here(OptionAccess::Time(..)), name, .. }) = option
            // SAFETY: the caller's promise.
            && let Ok(time) = unsafe { self.value::<libc::timeval>() }
        {
            options::timeout_was_set(self.descriptor, *name, time.tv_sec < 0);
        }
    }

    /// The kernel's socket keeps it; and what follows from it.
    ///
    /// # Safety
    /// As for setsockopt(2).
    unsafe fn set_in_kernel(self, option: Option<&SocketOption>) -> c_int {
        // SAFETY: the program's arguments, handed on.
        let result = unsafe { self.pass_on() };
        if result != 0 {
            return result;
        }
        // SAFETY: the kernel took the value: the program lends `length` bytes.
        unsafe { self.note_timeout(option) };
        // SAFETY: as above.
        let number = unsafe {
            match self.length {
                0 => 0,
                1..4 => self.pointer.cast::<u8>().read().into(),
                4.. => self.pointer.cast::<c_int>().read_unaligned(),
            }
        };
        match option {
            Some(SocketOption { stream: Stream::Followed(Follow::Link), .. }) => {
                options::tied_to_link(self.descriptor);
            }
            Some(option) if option.is_for_the_kernel(number) => {
                options::leave_with_option(self.descriptor);
            }
            _ => options::listener_was_given_option(self.descriptor),
        }
        result
    }

    /// The kernel's socket keeps it, behind a connection.
    ///
    /// # Safety
    /// As for setsockopt(2).
    unsafe fn set_behind(self, id: SocketId, option: Option<&SocketOption>) -> c_int {
        // SAFETY: the program lends the value for the call.
        let number = unsafe { self.value::<c_int>() }.ok();
        if option.is_some_and(|option| options::is_refused(id, option, number)) {
            return fail(Errno::INVAL);
        }
        options::customized(id);
        // SAFETY: as above.
        let both = unsafe { self.value::<[c_int; 2]>() }.ok().or(number.map(|number| [number, 0]));
        if let (Some(both), Some(option)) = (both, option)
            && let Some(first) = options::stamps_later(id, option, both, self.length.min(8))
        {
            let both = [first, both[1]];
            // SAFETY: `length` is that of what the program lends: four bytes or eight of these, as no more are looked at.
            return unsafe { Self { pointer: both.as_ptr().cast(), ..self }.set_in_kernel(Some(option)) };
        }
        // SAFETY: the program's arguments, handed on.
        let result = unsafe { self.set_in_kernel(option) };
        if let (0, Some(number), Some(SocketOption { stream: Stream::Followed(follow), .. })) =
            (result, number, option)
        {
            options::follow_forced(id, *follow, number);
        }
        result
    }
}

/// # Safety
/// As for setsockopt(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn setsockopt(
    descriptor: c_int,
    level: c_int,
    name: c_int,
    pointer: *const c_void,
    length: socklen_t,
) -> c_int {
    let wish = SetCall { descriptor, level, name, pointer, length };
    if datagram::is_ours(descriptor) {
        // SAFETY: the program's arguments, handed on.
        let result = unsafe { wish.pass_on() };
        if result == 0 {
            // SAFETY: the kernel took the value: the program lends `length` bytes.
            unsafe { wish.note_timeout(find(level, name)) };
            // SAFETY: as above.
            let number = unsafe { wish.value::<c_int>() }.ok();
            datagram::option_was_set(descriptor, level, name, number);
        }
        return result;
    }
    // A length below zero the kernel refuses, whatever the option (do_sock_setsockopt() in net/socket.c).
    if !is_ours(descriptor) || (length as c_int) < 0 {
        // SAFETY: the program's arguments, handed on.
        return unsafe { wish.pass_on() };
    }
    let option = find(level, name);
    let id = match options::connection(descriptor) {
        Answer::Done(Ok(id)) => id,
        Answer::Done(Err(error)) => return fail(error),
        Answer::Kernel => {
            options::changed_in_kernel(descriptor);
            // SAFETY: the program's arguments, handed on.
            return unsafe { wish.set_in_kernel(option) };
        }
    };
    // SAFETY: the program lends the value for the call.
    if option.is_some_and(|option| options::hands_over_first(id, option, unsafe { wish.value() }.ok())) {
        // If it cannot be, the kernel's answer is that of a socket that is not connected.
        let _ = life::share(descriptor);
        // SAFETY: the program's arguments, handed on.
        return unsafe { wish.pass_on() };
    }
    // An AF_INET socket knows none of these (tcp_setsockopt()).
    if level == libc::IPPROTO_IPV6 && !options::is_v6(id) {
        return fail(Errno::NOPROTOOPT);
    }
    let Some(SocketOption { stream: Stream::Here(kept), .. }) = option else {
        // SAFETY: the program's arguments, handed on.
        return unsafe { wish.set_behind(id, option) };
    };
    // SAFETY: the program lends the value for the call.
    match unsafe { wish.given(kept) }.map(|given| options::set(descriptor, kept, &given)) {
        Ok(Answer::Done(outcome)) => done(outcome),
        // SAFETY: the program's arguments, handed on.
        Ok(Answer::Kernel) => unsafe { wish.pass_on() },
        Err(error) => fail(error),
    }
}

/// getsockopt() of an option that connections have at user level. `None`: the kernel answers.
///
/// # Safety
/// As for getsockopt(2).
unsafe fn told(
    descriptor: c_int,
    level: c_int,
    kept: &OptionAccess,
    pointer: *mut c_void,
    length: *mut socklen_t,
) -> Option<c_int> {
    if !is_plausible(length, size_of::<socklen_t>()) {
        return Some(fail(Errno::FAULT));
    }
    // SAFETY: the program lends the length.
    let room = unsafe { *length };
    let value = match options::get(descriptor, level, kept, room as usize) {
        Answer::Done(Ok(value)) => value,
        Answer::Done(Err(error)) => return Some(fail(error)),
        Answer::Kernel => return None,
    };
    if (room as c_int) < 0 {
        return Some(fail(Errno::INVAL));
    }
    if !is_plausible(pointer, room as usize) {
        return Some(fail(Errno::FAULT));
    }
    // SAFETY: the program lends `length`, and that many bytes at `pointer`.
    unsafe {
        let copied = (room as usize).min(value.len());
        core::ptr::copy_nonoverlapping(value.as_ptr(), pointer.cast::<u8>(), copied);
        *length = copied as socklen_t;
    }
    Some(0)
}

/// # Safety
/// As for getsockopt(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getsockopt(
    descriptor: c_int,
    level: c_int,
    name: c_int,
    pointer: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR)
        && !pointer.is_null()
        && !length.is_null()
        // SAFETY: the program lends the length.
        && unsafe { *length } as usize >= size_of::<c_int>()
        && let Some(error) = datagram::take_error(descriptor)
    {
        // SAFETY: the program lends the length, and that many bytes at `pointer`.
        unsafe {
            pointer.cast::<c_int>().write_unaligned(error.raw_os_error());
            *length = size_of::<c_int>() as socklen_t;
        }
        return 0;
    }
    if is_ours(descriptor) {
        match options::connection(descriptor) {
            Answer::Kernel => {}
            Answer::Done(Err(error)) => return fail(error),
            Answer::Done(Ok(_)) => {
                if let Some(SocketOption { stream: Stream::Here(kept), .. }) = find(level, name)
                    // SAFETY: the program's arguments, handed on.
                    && let Some(result) = unsafe { told(descriptor, level, kept, pointer, length) }
                {
                    return result;
                }
            }
        }
    }
    // SAFETY: the program's arguments, handed on.
    unsafe { next::getsockopt(descriptor, level, name, pointer, length) }
}

//! The functions that the hooks stand before: the next ones of their names in the program's symbol search order.

use core::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    epoll_event, fd_set, id_t, idtype_t, iovec, mmsghdr, msghdr, nfds_t, off_t, pid_t, pollfd,
    posix_spawn_file_actions_t, posix_spawnattr_t, pthread_t, rusage, sigaction as Action, sighandler_t,
    siginfo_t, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};

type Strings = *const *const c_char;
/// What clone() starts.
pub(super) type Started = extern "C" fn(*mut c_void) -> c_int;

macro_rules! next {
    ($($(#[$attribute:meta])* $name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {$(
        /// The next function of this name; ENOSYS if there is none.
        ///
        /// # Safety
        /// As for that function.
        $(#[$attribute])*
        #[inline]
        pub(crate) unsafe fn $name($($argument: $kind),*) -> $result {
            static SYMBOL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
            let mut symbol = SYMBOL.load(Ordering::Relaxed);
            if symbol.is_null() {
                symbol = find(concat!(stringify!($name), "\0").as_ptr().cast(), &SYMBOL);
                if symbol.is_null() {
                    super::set_errno(libc::ENOSYS);
                    return !0 as $result;
                }
            }
            // SAFETY: a symbol of this name has this type (its manual page); the caller answers for the arguments.
            unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($kind),*) -> $result>(symbol)($($argument),*) }
        }
    )*};
}

#[cold]
fn find(name: *const c_char, symbol: &AtomicPtr<c_void>) -> *mut c_void {
    // SAFETY: the name ends with a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name) };
    symbol.store(found, Ordering::Relaxed);
    found
}

/// Where the next dlopen() is: whoever calls that has one.
pub(super) extern "C" fn dlopen_itself() -> *mut c_void {
    static SYMBOL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    let symbol = SYMBOL.load(Ordering::Relaxed);
    if symbol.is_null() { find(c"dlopen".as_ptr(), &SYMBOL) } else { symbol }
}

next! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind(descriptor: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    listen(descriptor: c_int, backlog: c_int) -> c_int;
    accept(descriptor: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    accept4(descriptor: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    connect(descriptor: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    shutdown(descriptor: c_int, how: c_int) -> c_int;
    getsockname(descriptor: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    getpeername(descriptor: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    getsockopt(descriptor: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
    setsockopt(descriptor: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;

    read(descriptor: c_int, buffer: *mut c_void, count: size_t) -> ssize_t;
    readv(descriptor: c_int, vectors: *const iovec, count: c_int) -> ssize_t;
    preadv2(descriptor: c_int, vectors: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    recv(descriptor: c_int, buffer: *mut c_void, count: size_t, flags: c_int) -> ssize_t;
    recvfrom(descriptor: c_int, buffer: *mut c_void, count: size_t, flags: c_int, address: *mut sockaddr, length: *mut socklen_t) -> ssize_t;
    recvmsg(descriptor: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(descriptor: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    write(descriptor: c_int, buffer: *const c_void, count: size_t) -> ssize_t;
    writev(descriptor: c_int, vectors: *const iovec, count: c_int) -> ssize_t;
    pwritev2(descriptor: c_int, vectors: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    send(descriptor: c_int, buffer: *const c_void, count: size_t, flags: c_int) -> ssize_t;
    sendto(descriptor: c_int, buffer: *const c_void, count: size_t, flags: c_int, address: *const sockaddr, length: socklen_t) -> ssize_t;
    sendmsg(descriptor: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(descriptor: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    vdprintf(descriptor: c_int, format: *const c_char, list: *mut c_void) -> c_int;
    __vdprintf_chk(descriptor: c_int, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int;
    sendfile(descriptor: c_int, file: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    splice(from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, count: size_t, flags: c_uint) -> ssize_t;

    close(descriptor: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    dup(descriptor: c_int) -> c_int;
    dup2(old: c_int, new: c_int) -> c_int;
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
    fcntl(descriptor: c_int, command: c_int, argument: c_ulong) -> c_int;
    ioctl(descriptor: c_int, request: c_ulong, argument: c_ulong) -> c_int;

    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(epoll: c_int, operation: c_int, descriptor: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(epoll: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int;
    epoll_pwait(epoll: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(epoll: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    poll(descriptors: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    ppoll(descriptors: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    nanosleep(time: *const timespec, left: *mut timespec) -> c_int;
    clock_nanosleep(clock: c_int, flags: c_int, time: *const timespec, left: *mut timespec) -> c_int;
    usleep(time: c_uint) -> c_int;
    sleep(time: c_uint) -> c_uint;
    wait(status: *mut c_int) -> pid_t;
    waitpid(process: pid_t, status: *mut c_int, options: c_int) -> pid_t;
    wait3(status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t;
    wait4(process: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t;
    waitid(kind: idtype_t, id: id_t, information: *mut siginfo_t, options: c_int) -> c_int;

    sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int;
    signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    fork() -> pid_t;
    #[allow(non_snake_case, reason = "libc's name")]
    _Fork() -> pid_t;
    clone(function: Started, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut c_void, storage: *mut c_void, child: *mut c_void) -> c_int;
    pthread_cancel(thread: pthread_t) -> c_int;
    pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;

    execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int;
    execv(path: *const c_char, arguments: Strings) -> c_int;
    execvp(file: *const c_char, arguments: Strings) -> c_int;
    execvpe(file: *const c_char, arguments: Strings, environment: Strings) -> c_int;
    fexecve(descriptor: c_int, arguments: Strings, environment: Strings) -> c_int;
    execveat(folder: c_int, path: *const c_char, arguments: Strings, environment: Strings, flags: c_int) -> c_int;
    posix_spawn(process: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, arguments: Strings, environment: Strings) -> c_int;
    posix_spawnp(process: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, arguments: Strings, environment: Strings) -> c_int;
    posix_spawn_file_actions_adddup2(actions: *mut posix_spawn_file_actions_t, old: c_int, new: c_int) -> c_int;
    system(command: *const c_char) -> c_int;
    daemon(no_chdir: c_int, no_close: c_int) -> c_int;
    popen(command: *const c_char, mode: *const c_char) -> isize;
    fdopen(descriptor: c_int, mode: *const c_char) -> isize;
    _exit(status: c_int) -> c_long;
    abort() -> c_long;
    raise(signal: c_int) -> c_int;
    kill(process: pid_t, signal: c_int) -> c_int;
}

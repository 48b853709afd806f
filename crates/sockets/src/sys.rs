//! System calls that rustix does not offer in the shape that is needed here.
//!
//! A sleeping thread passes the kernel a timeout that lives in its own [`SleepControl`]. A signal handler's wrapper sets it to
//! zero: if the handler runs before the kernel reads the timeout the call returns at once, if it runs later the call
//! returns EINTR. Either way no signal is slept through, and nothing has to be masked.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;

/// One raw system call.
///
/// # Safety
/// The arguments must be right for the call `number`.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn call(number: i64, arguments: [usize; 6]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the kernel's calling convention on x86-64; rcx and r11 are its only clobbers. The caller answers for the
    // arguments.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") arguments[0], in("rsi") arguments[1],
            in("rdx") arguments[2], in("r10") arguments[3], in("r8") arguments[4], in("r9") arguments[5],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    if result < 0 { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(result as usize) }
}

/// One raw system call.
///
/// # Safety
/// The arguments must be right for the call `number`.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn call(number: i64, arguments: [usize; 6]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the kernel's calling convention on aarch64. The caller answers for the arguments.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") arguments[0] as isize => result, in("x1") arguments[1],
            in("x2") arguments[2], in("x3") arguments[3], in("x4") arguments[4], in("x5") arguments[5], options(nostack));
    }
    if result < 0 { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(result as usize) }
}

/// glibc's `__libc_single_threaded` (since 2.32): not zero while the process has one thread, for certain.
static SINGLE_THREADED: AtomicPtr<AtomicU8> = AtomicPtr::new(core::ptr::null_mut());

/// Looks where libc says how many threads there are; at load, for the loader may be locked later.
pub(crate) fn find_single_threaded() {
    // SAFETY: the name ends with a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    SINGLE_THREADED.store(found.cast(), Ordering::Relaxed);
}

/// Whether the calling thread is the only one. False where libc does not say.
pub(crate) fn is_single_threaded() -> bool {
    let said = SINGLE_THREADED.load(Ordering::Relaxed);
    // SAFETY: a `char` of libc's (sys/single_threaded.h), which stays where it is.
    !said.is_null() && unsafe { (*said).load(Ordering::Relaxed) } != 0
}

/// What a thread's signal handlers and its waiting calls tell each other. All accesses are from one thread and its
/// signal handlers; the atomics keep the compiler honest.
#[repr(C)]
pub(crate) struct SleepControl {
    /// `struct timespec` of the wait under way.
    seconds: AtomicI64,
    nanoseconds: AtomicI64,
    /// Handlers run so far, and those among them that were installed without SA_RESTART.
    signals: AtomicU32,
    interruptions: AtomicU32,
    /// The thread holds, or is about to take, the process lock: handlers must wait.
    pub(crate) holding: AtomicBool,
    /// Signals that are blocked until the lock is released, as the kernel's masks have them: bit 0 is signal 1.
    pub(crate) deferred: AtomicU64,
    /// Of each signal that queues: whether one was put back that is before all that wait (bit 0 is signal 32), and that one.
    pub(crate) first_held: AtomicU64,
    /// Whether the kernel had no room for what stands for that one, but for a signal without anything.
    pub(crate) bare: AtomicU64,
    pub(crate) first: UnsafeCell<[core::mem::MaybeUninit<libc::siginfo_t>; QUEUES]>,
}

/// Signals that queue: 32 to 64.
pub(crate) const QUEUES: usize = 33;

thread_local! {
    static SLEEP_CONTROL: SleepControl = const {
        SleepControl {
            seconds: AtomicI64::new(0),
            nanoseconds: AtomicI64::new(0),
            signals: AtomicU32::new(0),
            interruptions: AtomicU32::new(0),
            holding: AtomicBool::new(false),
            deferred: AtomicU64::new(0),
            first_held: AtomicU64::new(0),
            bare: AtomicU64::new(0),
            first: UnsafeCell::new([core::mem::MaybeUninit::uninit(); QUEUES]),
        }
    };
}

/// This thread's.
#[inline]
pub(crate) fn sleep_control<R>(look: impl FnOnce(&SleepControl) -> R) -> R {
    SLEEP_CONTROL.with(look)
}

/// Handlers that this thread has run, for [`interrupted`].
#[derive(Clone, Copy)]
pub(crate) struct HandlersRun {
    signals: u32,
    interruptions: u32,
}

impl HandlersRun {
    /// The call has gone on after each handler that restarts calls: those that ran so far say nothing any more.
    pub(crate) fn restarted(self) -> HandlersRun {
        HandlersRun { signals: handlers_run().signals, ..self }
    }
}

/// Notes where a call that a signal may interrupt begins.
pub(crate) fn handlers_run() -> HandlersRun {
    sleep_control(|sleep_control| HandlersRun {
        signals: sleep_control.signals.load(Ordering::Relaxed),
        interruptions: sleep_control.interruptions.load(Ordering::Relaxed),
    })
}

/// A handler ran since, or the thread is cancelled: `restartable` calls go on unless the handler was installed without
/// SA_RESTART (signal(7)).
pub(crate) fn interrupted(since: HandlersRun, restartable: bool) -> bool {
    let now = handlers_run();
    let handled =
        if restartable { now.interruptions != since.interruptions } else { now.signals != since.signals };
    handled || crate::cancel::came()
}

/// Only handlers that restart calls have run since: one that can begin anew does.
pub(crate) fn begins_anew(since: HandlersRun) -> bool {
    interrupted(since, false) && !interrupted(since, true)
}

/// A handler is about to run in this thread.
pub(crate) fn note_signal(restarts: bool) {
    sleep_control(|sleep_control| {
        sleep_control.signals.fetch_add(1, Ordering::Relaxed);
        if !restarts {
            sleep_control.interruptions.fetch_add(1, Ordering::Relaxed);
        }
        sleep_control.seconds.store(0, Ordering::Relaxed);
        sleep_control.nanoseconds.store(0, Ordering::Relaxed);
    });
}

/// Longest sleep: stands for "for ever", as the timeout must be in memory to be cut short.
const FOREVER_US: u64 = 1_000_000_000_000;

/// Sets the thread's timeout, unless a handler has run since `since`: then the call must not sleep.
fn arm<'a>(
    sleep_control: &'a SleepControl,
    timeout_us: Option<u64>,
    since: HandlersRun,
) -> *const SleepControl {
    let timeout = timeout_us.unwrap_or(FOREVER_US).min(FOREVER_US);
    sleep_control.seconds.store((timeout / 1_000_000) as i64, Ordering::Relaxed);
    sleep_control.nanoseconds.store((timeout % 1_000_000 * 1000) as i64, Ordering::Relaxed);
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    if sleep_control.signals.load(Ordering::Relaxed) != since.signals {
        sleep_control.seconds.store(0, Ordering::Relaxed);
        sleep_control.nanoseconds.store(0, Ordering::Relaxed);
    }
    let sleep_control: &'a SleepControl = sleep_control;
    sleep_control
}

/// epoll_pwait2() for at most `timeout_us` microseconds (`None`: until something happens).
///
/// # Safety
/// `events` must have room for `max` records.
pub(crate) unsafe fn epoll_wait(
    epoll: i32,
    events: *mut libc::epoll_event,
    max: usize,
    timeout_us: Option<u64>,
    since: HandlersRun,
) -> Result<usize, Errno> {
    sleep_control(|sleep_control| {
        let timeout = arm(sleep_control, timeout_us, since);
        // SAFETY: `seconds` and `nanoseconds` are the first fields of a repr(C)-compatible pair, checked below; the
        // caller answers for `events`.
        let outcome = unsafe {
            call(libc::SYS_epoll_pwait2, [epoll as usize, events as usize, max, timespec(timeout), 0, 8])
        };
        match outcome {
            Err(Errno::NOSYS) => {
                // Before Linux 5.11. A signal that comes in the few instructions before this call is slept through for
                // the timeout, as it would be without the library.
                let milliseconds =
                    timeout_us.map_or(-1, |us| us.div_ceil(1000).min(i32::MAX as u64) as isize);
                // SAFETY: as above.
                unsafe {
                    call(
                        libc::SYS_epoll_pwait,
                        [epoll as usize, events as usize, max, milliseconds as usize, 0, 8],
                    )
                }
            }
            outcome => outcome,
        }
    })
}

/// ppoll() for at most `timeout_us` microseconds (`None`: until something happens).
pub(crate) fn poll(
    descriptors: &mut [libc::pollfd],
    timeout_us: Option<u64>,
    since: HandlersRun,
) -> Result<usize, Errno> {
    sleep_control(|sleep_control| {
        let timeout = arm(sleep_control, timeout_us, since);
        // SAFETY: the slice is valid for its length, and the timeout for the call, which writes what is left of it.
        unsafe {
            call(
                libc::SYS_ppoll,
                [descriptors.as_mut_ptr() as usize, descriptors.len(), timespec(timeout), 0, 8, 0],
            )
        }
    })
}

/// FUTEX_WAIT on a word of this process for at most `timeout_us` microseconds (`None`: until it is woken).
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, timeout_us: Option<u64>, since: HandlersRun) {
    const WAIT: usize = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    sleep_control(|sleep_control| {
        let timeout = arm(sleep_control, timeout_us, since);
        // SAFETY: the word and the timeout are valid for the call.
        let _ = unsafe {
            call(libc::SYS_futex, [word.as_ptr() as usize, WAIT, expected as usize, timespec(timeout), 0, 0])
        };
    });
}

/// epoll_ctl() with the program's own pointer: the kernel judges it.
pub(crate) fn epoll_control(
    epoll: i32,
    operation: i32,
    descriptor: i32,
    event: *const libc::epoll_event,
) -> Result<(), Errno> {
    // SAFETY: the kernel only reads `event`, and answers EFAULT if it cannot.
    unsafe {
        call(
            libc::SYS_epoll_ctl,
            [epoll as usize, operation as usize, descriptor as usize, event as usize, 0, 0],
        )
    }
    .map(drop)
}

/// SIOCATMARK: what is read next is urgent, or comes after such data (sockatmark(3)).
pub(crate) fn is_at_mark(descriptor: i32) -> bool {
    /// asm-generic/sockios.h.
    const SIOCATMARK: usize = 0x8905;
    let mut mark: libc::c_int = 0;
    // SAFETY: the kernel writes a number.
    let asked = unsafe {
        call(libc::SYS_ioctl, [descriptor as usize, SIOCATMARK, (&raw mut mark) as usize, 0, 0, 0])
    };
    asked.is_ok() && mark != 0
}

/// close() past the library's own hooks.
pub(crate) fn close(descriptor: i32) {
    // SAFETY: closing a descriptor is memory-safe; the caller owns it.
    let _ = unsafe { call(libc::SYS_close, [descriptor as usize, 0, 0, 0, 0, 0]) };
}

/// Sets the thread's signal mask (8 bytes, as the kernel has it) and returns the one before.
pub(crate) fn set_signal_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: both pointers are to eight valid bytes.
    let _ = unsafe {
        call(
            libc::SYS_rt_sigprocmask,
            [libc::SIG_SETMASK as usize, &raw const mask as usize, &raw mut before as usize, 8, 0, 0],
        )
    };
    before
}

/// Blocks signals for this thread, besides those that are.
pub(crate) fn block_signals(mask: u64) {
    change_signal_mask(libc::SIG_BLOCK, mask);
}

/// Unblocks signals for this thread: handlers of those that wait run before this returns.
pub(crate) fn unblock_signals(mask: u64) {
    change_signal_mask(libc::SIG_UNBLOCK, mask);
}

fn change_signal_mask(how: i32, mask: u64) {
    // SAFETY: the pointer is to eight valid bytes.
    let _ = unsafe { call(libc::SYS_rt_sigprocmask, [how as usize, &raw const mask as usize, 0, 8, 0, 0]) };
}

/// Sends this thread a signal with all that comes with it. False if the kernel has no room for that any more (RLIMIT_SIGPENDING), of
/// a signal that queues; others come alone then.
///
/// # Safety
/// `details` must be a valid record.
pub(crate) unsafe fn queue_signal(signal: i32, details: *const libc::siginfo_t) -> bool {
    let process = rustix::process::getpid().as_raw_nonzero().get() as usize;
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as usize;
    // SAFETY: the caller's promise. A process may send itself any code (rt_tgsigqueueinfo(2)).
    let outcome = unsafe {
        call(libc::SYS_rt_tgsigqueueinfo, [process, thread, signal as usize, details as usize, 0, 0])
    };
    match outcome {
        Ok(_) => true,
        Err(Errno::AGAIN) => false,
        // SAFETY: the call has no memory arguments.
        Err(_) => unsafe { call(libc::SYS_tgkill, [process, thread, signal as usize, 0, 0, 0]).is_ok() },
    }
}

/// Sends this thread a signal with nothing, for which there is always room: it comes once, or as one of those that wait
/// (`SI_USER` in __send_signal_locked() in kernel/signal.c).
pub(crate) fn send_bare_signal(signal: i32) {
    // SAFETY: an all-zero record is valid.
    let mut details: libc::siginfo_t = unsafe { core::mem::zeroed() };
    details.si_signo = signal;
    details.si_code = libc::SI_USER;
    // SAFETY: the record is valid.
    unsafe { queue_signal(signal, &raw const details) };
}

/// Sends this thread a signal as the kernel does for what the thread itself did (send_sig() in kernel/signal.c).
pub(crate) fn raise_signal(signal: i32) {
    // SAFETY: an all-zero record is valid.
    let mut details: libc::siginfo_t = unsafe { core::mem::zeroed() };
    details.si_signo = signal;
    details.si_code = libc::SI_USER;
    let from: [u32; 2] =
        [rustix::process::getpid().as_raw_nonzero().get() as u32, rustix::process::getuid().as_raw()];
    // SAFETY: with SI_USER the record has the sender's process and user behind its first sixteen bytes (sigaction(2)).
    unsafe { (&raw mut details).cast::<u32>().add(4).cast::<[u32; 2]>().write(from) };
    // SAFETY: a valid record.
    unsafe { queue_signal(signal, &raw const details) };
}

/// The signal's default action is its action from now on.
pub(crate) fn reset_handler(signal: i32) {
    // The kernel's record: handler, flags, restorer, mask; all zero is SIG_DFL.
    let default = [0_u64; 4];
    // SAFETY: the record is valid for the call.
    let _ =
        unsafe { call(libc::SYS_rt_sigaction, [signal as usize, &raw const default as usize, 0, 8, 0, 0]) };
}

/// The address of the timeout in a [`SleepControl`].
fn timespec(sleep_control: *const SleepControl) -> usize {
    use core::mem::offset_of;
    const { assert!(offset_of!(SleepControl, nanoseconds) == offset_of!(SleepControl, seconds) + 8) };
    sleep_control as usize + offset_of!(SleepControl, seconds)
}

/// Ends the process at once.
pub(crate) fn exit(status: i32) -> ! {
    loop {
        // SAFETY: the call has no memory arguments, and does not come back.
        let _ = unsafe { call(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

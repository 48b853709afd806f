//! Handlers, what they interrupt, and the cancellation of threads.

use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use libc::{sigaction as Action, siginfo_t};

use super::*;
use crate::hooks::{pauses, processes};

static CAUGHT: AtomicU32 = AtomicU32::new(0);
static SENDER: AtomicI32 = AtomicI32::new(0);

extern "C" fn caught(_: c_int) {
    CAUGHT.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn told(_: c_int, details: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel's record, of a signal that a process has sent.
    SENDER.store(unsafe { (*details).si_pid() }, Ordering::Relaxed);
}

fn handler() -> usize {
    caught as *const () as usize
}

/// Installs a handler. Returns the one before, and its flags.
fn install(signal: c_int, handler: usize, flags: c_int) -> Result<(usize, c_int), Errno> {
    // SAFETY: all-zero records are valid, and lent; the handler stays.
    unsafe {
        let (mut new, mut old): (Action, Action) = core::mem::zeroed();
        (new.sa_sigaction, new.sa_flags) = (handler, flags);
        said(processes::sigaction(signal, &raw const new, &raw mut old))?;
        Ok((old.sa_sigaction, old.sa_flags & !0x0400_0000))
    }
}

/// Sends the calling thread a signal in a moment, again and again until `done`.
fn in_a_moment(signal: c_int) -> std::thread::JoinHandle<()> {
    // SAFETY: no arguments.
    let thread = unsafe { libc::pthread_self() };
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(40));
        // SAFETY: the thread waits for this one.
        unsafe { libc::pthread_kill(thread, signal) };
    })
}

#[test]
fn handlers_are_installed_and_told() {
    script(|_| {
        assert_eq!(install(libc::SIGUSR1, handler(), libc::SA_RESTART), Ok((libc::SIG_DFL, 0)));
        let info = told as *const () as usize;
        let before = install(libc::SIGUSR1, info, libc::SA_SIGINFO | libc::SA_RESTART);
        assert_eq!(before, Ok((handler(), libc::SA_RESTART)));
        // SAFETY: the process signals itself.
        unsafe { libc::raise(libc::SIGUSR1) };
        assert_eq!(SENDER.load(Ordering::Relaxed), std::process::id() as i32);
        let before = install(libc::SIGUSR1, libc::SIG_IGN, 0);
        assert_eq!(before, Ok((info, libc::SA_SIGINFO | libc::SA_RESTART)));
        assert_eq!(install(libc::SIGKILL, handler(), 0), Err(Errno::INVAL));
        assert_eq!(install(99, handler(), 0), Err(Errno::INVAL));
        assert_eq!(install(libc::SIGUSR1, libc::SIG_DFL, 0).map(|before| before.0), Ok(libc::SIG_IGN));
        // SAFETY: the handler stays; all-zero records are valid.
        unsafe {
            assert_eq!(processes::signal(libc::SIGUSR2, handler()), libc::SIG_DFL);
            assert_eq!(processes::ssignal(libc::SIGUSR2, libc::SIG_IGN), handler());
            assert_eq!(processes::bsd_signal(libc::SIGUSR2, handler()), libc::SIG_IGN);
            assert_eq!(processes::signal(libc::SIGKILL, handler()), libc::SIG_ERR);
            assert_eq!(processes::sysv_signal(libc::SIGKILL, handler()), libc::SIG_ERR);
            let before = CAUGHT.load(Ordering::Relaxed);
            libc::raise(libc::SIGUSR2);
            assert_eq!(processes::__sysv_signal(libc::SIGUSR2, handler()), handler());
            libc::raise(libc::SIGUSR2);
            assert_eq!(CAUGHT.load(Ordering::Relaxed), before + 2);
            assert_eq!(processes::signal(libc::SIGUSR2, libc::SIG_IGN), libc::SIG_DFL, "once");
            assert_eq!(processes::sigset(libc::SIGUSR2, handler()), libc::SIG_IGN);
            // SIG_HOLD.
            assert_eq!(processes::sigset(libc::SIGUSR2, 2), handler());
            assert_eq!(processes::sigset(libc::SIGUSR2, handler()), 2);
            assert_eq!(processes::sigset(99, handler()), libc::SIG_ERR);
            assert_eq!(said(processes::siginterrupt(libc::SIGUSR2, 1)), Ok(0));
            let mut now: Action = core::mem::zeroed();
            assert_eq!(said(processes::__sigaction(libc::SIGUSR2, core::ptr::null(), &raw mut now)), Ok(0));
            assert_eq!(now.sa_flags & libc::SA_RESTART, 0);
            assert_eq!(said(processes::siginterrupt(libc::SIGUSR2, 0)), Ok(0));
            assert_eq!(said(processes::siginterrupt(libc::SIGKILL, 0)), Err(Errno::INVAL));
        }
    });
}

#[test]
fn calls_that_wait_are_interrupted_or_go_on() {
    script(|world| {
        let (descriptor, mut far) = world.dial();
        assert!(install(libc::SIGUSR1, handler(), 0).is_ok());
        let (listener, _) = world.listen();
        let set = epoll();
        assert_eq!(watch(set, descriptor, libc::EPOLLIN), Ok(0));
        let waits: [&dyn Fn() -> Result<(), Errno>; 5] = [
            &|| recv(descriptor, 1, 0).map(drop),
            &|| accept(listener, 0).map(drop),
            &|| {
                let mut asked = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
                // SAFETY: the record is lent.
                said(unsafe { events::poll(&raw mut asked, 1, -1) }).map(drop)
            },
            &|| ask(set, -1).map(drop),
            &|| write(descriptor, &vec![0; 64 << 20]).map(drop),
        ];
        for (index, wait) in waits.iter().enumerate() {
            let before = CAUGHT.load(Ordering::Relaxed);
            let sending = in_a_moment(libc::SIGUSR1);
            // What was written before is what write() says.
            assert_eq!(wait(), if index == 4 { Ok(()) } else { Err(Errno::INTR) }, "{index}");
            sending.join().unwrap();
            assert_eq!(CAUGHT.load(Ordering::Relaxed), before + 1);
        }
        assert!(install(libc::SIGUSR1, handler(), libc::SA_RESTART).is_ok());
        let before = CAUGHT.load(Ordering::Relaxed);
        let sending = in_a_moment(libc::SIGUSR1);
        let writing = std::thread::spawn(move || {
            until(|| (CAUGHT.load(Ordering::Relaxed) > before).then_some(()));
            std::thread::sleep(Duration::from_millis(20));
            far.write(b"at last");
            far
        });
        assert_eq!(recv(descriptor, 10, 0), Ok(b"at last".to_vec()));
        sending.join().unwrap();
        drop(writing.join().unwrap());
        // A handler may make calls itself.
        extern "C" fn calls(_: c_int) {
            CAUGHT.store(
                u32::from(polled(SENDER.load(Ordering::Relaxed), libc::POLLIN, 0) != 0) + 70,
                Ordering::Relaxed,
            );
        }
        SENDER.store(listener, Ordering::Relaxed);
        assert!(install(libc::SIGUSR1, calls as *const () as usize, 0).is_ok());
        let sending = in_a_moment(libc::SIGUSR1);
        assert_eq!(recv(descriptor, 10, 0), Err(Errno::INTR));
        sending.join().unwrap();
        assert_eq!(CAUGHT.load(Ordering::Relaxed), 70);
    });
}

/// After a handler that restarts the call the thread sleeps again, and does not look all the time.
#[test]
fn calls_that_go_on_after_a_handler_sleep() {
    script(|world| {
        assert!(install(libc::SIGUSR1, handler(), libc::SA_RESTART).is_ok());
        let (listener, port) = world.listen();
        let datagrams = socket(libc::AF_INET, libc::SOCK_DGRAM);
        assert_eq!(bind(datagrams, "0.0.0.0:0".parse().unwrap()), Ok(0));
        let to = name(datagrams, false).unwrap().port();
        let accepts = || assert!(accept(listener, 0).is_ok());
        let reads = || assert_eq!(recv(datagrams, 9, 0), Ok(b"x".to_vec()));
        let connects = || {
            world.peer.connect(own(port), 40_000);
        };
        let sends = || {
            std::net::UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"x", ("127.0.0.1", to)).unwrap();
        };
        let waits: [&dyn Fn(); 2] = [&accepts, &reads];
        let ends: [&(dyn Fn() + Sync); 2] = [&connects, &sends];
        for (wait, end) in waits.into_iter().zip(ends) {
            let before = CAUGHT.load(Ordering::Relaxed);
            let sending = in_a_moment(libc::SIGUSR1);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    until(|| (CAUGHT.load(Ordering::Relaxed) > before).then_some(()));
                    let sleeps = || crate::process::process().statistics.sleeps;
                    let first = sleeps();
                    std::thread::sleep(Duration::from_millis(100));
                    let more = sleeps() - first;
                    end();
                    assert!(more < 20, "{more} sleeps");
                });
                wait();
            });
            sending.join().unwrap();
        }
    });
}

/// Signals that come while other threads move frames: none is lost, none is handled with the lock in hand.
#[test]
fn signals_by_the_hundred_do_no_harm() {
    script(|world| {
        let (descriptor, mut far) = world.dial();
        assert!(install(libc::SIGUSR1, handler(), libc::SA_RESTART).is_ok());
        assert!(install(40, told as *const () as usize, libc::SA_RESTART | libc::SA_SIGINFO).is_ok());
        // SAFETY: no arguments.
        let thread = unsafe { libc::pthread_self() };
        let sending = std::thread::spawn(move || {
            for _ in 0..300 {
                // SAFETY: the thread waits for this one.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
                // SAFETY: as above.
                unsafe { libc::pthread_kill(thread, 40) };
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        let before = CAUGHT.load(Ordering::Relaxed);
        let mut bytes = 0;
        while !sending.is_finished() {
            assert_eq!(write(descriptor, b"there"), Ok(5));
            bytes += 5;
            assert_eq!(recv(descriptor, 1, libc::MSG_DONTWAIT), Err(Errno::AGAIN));
        }
        sending.join().unwrap();
        assert!(CAUGHT.load(Ordering::Relaxed) > before);
        assert_eq!(far.read(bytes).len(), bytes);
        assert_eq!(close(descriptor), Ok(0));
    });
}

/// What a thread does that is cancelled while it waits: nothing more. `prepare` makes that possible at any time.
fn cancelled(world: &World, prepare: Option<fn()>, wait: fn(c_int)) {
    let (descriptor, _far) = world.dial();
    extern "C-unwind" fn run(argument: *mut c_void) -> *mut c_void {
        // SAFETY: the other thread's record, which outlives this thread.
        let (descriptor, prepare, wait) = unsafe { *argument.cast::<(c_int, Option<fn()>, fn(c_int))>() };
        if let Some(prepare) = prepare {
            prepare();
        }
        wait(descriptor);
        core::ptr::null_mut()
    }
    type Body = extern "C" fn(*mut c_void) -> *mut c_void;
    let mut record = (descriptor, prepare, wait);
    // SAFETY: the record outlives the thread, which is joined; libc unwinds it if it is cancelled.
    unsafe {
        let body = core::mem::transmute::<*const (), Body>(run as *const ());
        let mut thread: libc::pthread_t = 0;
        assert_eq!(
            libc::pthread_create(&raw mut thread, core::ptr::null(), body, (&raw mut record).cast()),
            0
        );
        if prepare.is_none() {
            std::thread::sleep(Duration::from_millis(40));
        } else {
            // Elsewhere than in a wait nothing here could be unwound at any time.
            until(|| crate::process::process().sleepers.any().then_some(()));
        }
        assert_eq!(processes::pthread_cancel(thread), 0);
        let mut result = core::ptr::null_mut();
        assert_eq!(libc::pthread_join(thread, &raw mut result), 0);
        // PTHREAD_CANCELED.
        assert_eq!(result as isize, -1);
    }
    assert_eq!(write(descriptor, b"x"), Ok(1), "the connection is as it was");
}

#[test]
fn threads_are_cancelled_where_they_wait() {
    script(|world| {
        let waits: [fn(c_int); 4] = [
            |descriptor| drop(recv(descriptor, 1, 0)),
            |descriptor| {
                polled(descriptor, libc::POLLIN, -1);
            },
            |_| {
                // SAFETY: no memory is lent but the kernel's.
                unsafe { pauses::sleep(20) };
            },
            |descriptor| loop {
                let _ = recv(descriptor, 1, libc::MSG_DONTWAIT);
            },
        ];
        for wait in waits {
            cancelled(&world, None, wait);
        }
        fn at_any_time() {
            let mut before = 7;
            // SAFETY: the number is lent.
            assert_eq!(unsafe { processes::pthread_setcanceltype(1, &raw mut before) }, 0);
            assert_eq!(before, 0);
        }
        cancelled(&world, Some(at_any_time), waits[0]);
    });
}

#[test]
fn programs_sleep_and_wait_for_children() {
    script(|_| {
        let time = libc::timespec { tv_sec: 0, tv_nsec: 1000 };
        // SAFETY: what is lent is valid.
        unsafe {
            assert_eq!(said(pauses::nanosleep(&raw const time, core::ptr::null_mut())), Ok(0));
            assert_eq!(
                pauses::clock_nanosleep(libc::CLOCK_MONOTONIC, 0, &raw const time, core::ptr::null_mut()),
                0
            );
            assert_eq!(said(pauses::usleep(10)), Ok(0));
            assert_eq!(pauses::sleep(0), 0);
            let null = core::ptr::null_mut();
            let mut status = 0;
            let waits: [&dyn Fn(*mut c_int) -> c_int; 5] = [
                &|status| pauses::wait(status),
                &|status| pauses::waitpid(-1, status, 0),
                &|status| pauses::wait3(status, 0, core::ptr::null_mut()),
                &|status| pauses::wait4(-1, status, 0, core::ptr::null_mut()),
                &|_| pauses::waitid(libc::P_ALL, 0, core::ptr::null_mut(), libc::WEXITED),
            ];
            for wait in waits {
                assert_eq!(said(wait(&raw mut status)), Err(Errno::CHILD));
            }
            for (index, wait) in waits.iter().enumerate() {
                let child = processes::vfork();
                if child == 0 {
                    processes::_exit(3);
                }
                let waited = wait(&raw mut status);
                assert!(waited == child || (index == 4 && waited == 0), "{index}");
                assert!(index == 4 || status == 3 << 8, "{index}: {status}");
            }
            assert_eq!(said(pauses::waitpid(-1, null, libc::WNOHANG)), Err(Errno::CHILD));
        }
    });
}

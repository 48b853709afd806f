//! epoll, poll and select.

use core::ptr::{null, null_mut};

use std::io::Write;
use std::os::fd::AsRawFd;

use libc::{epoll_event, pollfd, sigset_t, timespec, timeval};

use super::*;
use crate::hooks::syscall::syscall;

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;

fn control(set: c_int, operation: c_int, descriptor: c_int, wanted: u32) -> Said {
    let mut event = epoll_event { events: wanted, u64: 9 };
    // SAFETY: the record is lent.
    said(unsafe { events::epoll_ctl(set, operation, descriptor, &raw mut event) })
}

/// How a set is asked.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    Wait,
    Pwait,
    Pwait2,
    Number,
    OldNumber,
    Number2,
}

const WAYS: [Way; 6] = [Way::Wait, Way::Pwait, Way::Pwait2, Way::Number, Way::OldNumber, Way::Number2];

/// What a set says within so many milliseconds.
fn ask_by(set: c_int, way: Way, timeout: c_int) -> Result<Vec<(u32, u64)>, Errno> {
    let mut records = [epoll_event { events: 0, u64: 0 }; 8];
    let at = records.as_mut_ptr();
    let time = timespec { tv_sec: 0, tv_nsec: i64::from(timeout.max(0)) * 1_000_000 };
    let time = if timeout < 0 { null() } else { &raw const time };
    // SAFETY: the records and the time are lent.
    let count = said(unsafe {
        let (set_word, waiting) = (set as usize, timeout as usize);
        match way {
            Way::Wait => i64::from(events::epoll_wait(set, at, 8, timeout)),
            Way::Pwait => events::epoll_pwait(set, at, 8, timeout, null()).into(),
            Way::Pwait2 => events::epoll_pwait2(set, at, 8, time, null()).into(),
            Way::Number => syscall(libc::SYS_epoll_pwait, set_word, at as usize, 8, waiting, 0, 8),
            Way::OldNumber => syscall(libc::SYS_epoll_wait, set_word, at as usize, 8, waiting, 0, 0),
            Way::Number2 => syscall(libc::SYS_epoll_pwait2, set_word, at as usize, 8, time as usize, 0, 8),
        }
    })?;
    Ok(records[..count as usize].iter().map(|record| (record.events, record.u64)).collect())
}

/// What comes first at the next call matters only if both halves of a set have something.
#[test]
fn the_kernel_is_not_asked_first_for_having_filled_the_room() {
    script(|world| {
        let (descriptor, mut far) = world.dial();
        let set = epoll();
        let crate::table::Entry::Set(id) = crate::table::lookup(set) else { panic!("no set") };
        let (reader, mut writer) = std::io::pipe().unwrap();
        let one = || {
            let mut record = epoll_event { events: 0, u64: 0 };
            // SAFETY: the record is lent.
            assert_eq!(said(unsafe { events::epoll_wait(set, &raw mut record, 1, -1) }), Ok(1));
            crate::process::process().sets[id].full
        };
        assert_eq!(control(set, libc::EPOLL_CTL_ADD, reader.as_raw_fd(), IN), Ok(0));
        assert_eq!(control(set, libc::EPOLL_CTL_ADD, descriptor, IN), Ok(0));
        writer.write_all(b"x").unwrap();
        assert!(!one());
        far.write(b"y");
        until(|| (polled(descriptor, libc::POLLIN, 0) != 0).then_some(()));
        assert!(one(), "ours");
    });
}

#[test]
fn sets_say_what_is_ready_in_each_way_of_asking() {
    script(|world| {
        let mut twins = world.twins();
        let sets = [epoll(), epoll()];
        let ends = twins.ends;
        let of = |end| sets[usize::from(end == ends[1])];
        assert_eq!(twins.same(|end| control(of(end), libc::EPOLL_CTL_MOD, end, IN)), Err(Errno::NOENT));
        assert_eq!(twins.same(|end| control(of(end), libc::EPOLL_CTL_ADD, end, IN)), Ok(0));
        assert_eq!(twins.same(|end| control(of(end), libc::EPOLL_CTL_ADD, end, IN)), Err(Errno::EXIST));
        assert_eq!(twins.same(|end| control(of(end), 77, end, IN)), Err(Errno::INVAL));
        // SAFETY: the call says that there is no record.
        let nowhere = |end| said(unsafe { events::epoll_ctl(of(end), libc::EPOLL_CTL_ADD, end, null_mut()) });
        assert_eq!(twins.same(nowhere), Err(Errno::FAULT));
        for way in WAYS {
            assert_eq!(twins.same(|end| ask_by(of(end), way, 0)), Ok(vec![]), "{way:?}");
            assert_eq!(twins.same(|end| ask_by(of(end), way, 5)), Ok(vec![]), "{way:?}");
            twins.hear(b"news");
            assert_eq!(twins.same(|end| ask_by(of(end), way, -1)), Ok(vec![(IN, 9)]), "{way:?}");
            assert_eq!(twins.same(|end| recv(end, 10, 0)), Ok(b"news".to_vec()));
        }
        assert_eq!(twins.same(|end| control(of(end), libc::EPOLL_CTL_MOD, end, IN | OUT)), Ok(0));
        assert_eq!(twins.same(|end| ask(of(end), 0)), Ok(vec![(OUT, 9)]));
        twins.far_shut();
        let all = IN | OUT | libc::EPOLLRDHUP as u32;
        assert_eq!(twins.same(|end| control(of(end), libc::EPOLL_CTL_MOD, end, all)), Ok(0));
        assert_eq!(twins.same(|end| ask(of(end), 0)), Ok(vec![(all, 9)]));
        assert_eq!(twins.same(|end| control(of(end), libc::EPOLL_CTL_DEL, end, 0)), Ok(0));
        assert_eq!(twins.same(|end| control(of(end), libc::EPOLL_CTL_DEL, end, 0)), Err(Errno::NOENT));
        assert_eq!(twins.same(|end| ask(of(end), 0)), Ok(vec![]));
        twins.close();
        assert_eq!(sets.map(close), [Ok(0), Ok(0)]);
    });
}

#[test]
fn nonsense_is_refused_by_sets() {
    script(|world| {
        let twins = world.twins();
        let sets = [epoll(), epoll()];
        let ends = twins.ends;
        let of = |end| sets[usize::from(end == ends[1])];
        assert_eq!(twins.same(|end| control(of(end), libc::EPOLL_CTL_ADD, end, IN)), Ok(0));
        let mut record = epoll_event { events: 0, u64: 0 };
        let at = &raw mut record;
        // SAFETY: the record is lent, and the call refuses what is nonsense.
        unsafe {
            assert_eq!(twins.same(|end| said(events::epoll_wait(of(end), at, 0, 0))), Err(Errno::INVAL));
            assert_eq!(twins.same(|end| said(events::epoll_wait(of(end), at, -1, 0))), Err(Errno::INVAL));
            let time = timespec { tv_sec: 0, tv_nsec: 1_000_000_000 };
            let late = |end| said(events::epoll_pwait2(of(end), at, 1, &raw const time, null()));
            assert_eq!(twins.same(late), Err(Errno::INVAL));
            let mask = 0_u64;
            let masked = |end: c_int| {
                let mask = &raw const mask as usize;
                said(syscall(libc::SYS_epoll_pwait, of(end) as usize, at as usize, 1, 0, mask, 4))
            };
            assert_eq!(twins.same(masked), Err(Errno::INVAL));
            assert_eq!(twins.same(|end| said(events::epoll_wait(end, at, 1, 0))), Err(Errno::INVAL));
        }
        assert_eq!(twins.same(|end| control(end, libc::EPOLL_CTL_ADD, end, IN)), Err(Errno::INVAL));
        assert_eq!(twins.same(|end| control(of(end), libc::EPOLL_CTL_ADD, -1, IN)), Err(Errno::BADF));
        // SAFETY: no memory is lent.
        assert_eq!(said(unsafe { events::epoll_create(0) }), Err(Errno::INVAL));
        // SAFETY: as above.
        let old = unsafe { events::epoll_create(7) };
        assert_eq!((close(old), close(old)), (Ok(0), Err(Errno::BADF)));
        twins.close();
    });
}

#[test]
fn edges_and_one_shots_are_said_once() {
    script(|world| {
        let mut twins = world.twins();
        let sets = [epoll(), epoll()];
        let ends = twins.ends;
        let of = |end| sets[usize::from(end == ends[1])];
        let edge = IN | libc::EPOLLET as u32;
        assert_eq!(twins.same(|end| control(of(end), libc::EPOLL_CTL_ADD, end, edge)), Ok(0));
        for _ in 0..2 {
            twins.hear(b"1");
            assert_eq!(twins.same(|end| ask(of(end), 1000)), Ok(vec![(IN, 9)]));
            assert_eq!(twins.same(|end| ask(of(end), 0)), Ok(vec![]));
            assert_eq!(twins.same(|end| recv(end, 1, 0)), Ok(b"1".to_vec()));
        }
        let once = IN | libc::EPOLLONESHOT as u32;
        assert_eq!(twins.same(|end| control(of(end), libc::EPOLL_CTL_MOD, end, once)), Ok(0));
        twins.hear(b"2");
        assert_eq!(twins.same(|end| ask(of(end), 1000)), Ok(vec![(IN, 9)]));
        assert_eq!(twins.same(|end| ask(of(end), 0)), Ok(vec![]));
        assert_eq!(twins.same(|end| control(of(end), libc::EPOLL_CTL_MOD, end, once)), Ok(0));
        assert_eq!(twins.same(|end| ask(of(end), 0)), Ok(vec![(IN, 9)]));
        let exclusive = IN | libc::EPOLLEXCLUSIVE as u32;
        assert_eq!(
            twins.same(|end| control(of(end), libc::EPOLL_CTL_MOD, end, exclusive)),
            Err(Errno::INVAL)
        );
        assert_eq!(twins.same(|end| control(of(end), libc::EPOLL_CTL_DEL, end, 0)), Ok(0));
        assert_eq!(twins.same(|end| control(of(end), libc::EPOLL_CTL_ADD, end, exclusive)), Ok(0));
        assert_eq!(twins.same(|end| ask(of(end), 0)), Ok(vec![(IN, 9)]));
        assert_eq!(twins.same(|end| control(of(end), libc::EPOLL_CTL_MOD, end, IN)), Err(Errno::INVAL));
        twins.close();
    });
}

/// A set with a listener, a connection and a pipe: the kernel's part and ours are said together.
#[test]
fn a_set_has_both_kinds_of_descriptors() {
    script(|world| {
        let (listener, port) = world.listen();
        let set = epoll();
        let (from, to) = rustix::pipe::pipe().unwrap();
        assert_eq!(control(set, libc::EPOLL_CTL_ADD, listener, IN), Ok(0));
        assert_eq!(control(set, libc::EPOLL_CTL_ADD, from.as_raw_fd(), IN), Ok(0));
        assert_eq!(ask(set, 0), Ok(vec![]));
        let mut far = world.peer.connect(own(port), 40_001);
        assert_eq!(ask(set, -1), Ok(vec![(IN, 9)]));
        let (descriptor, _) = accept(listener, libc::SOCK_NONBLOCK).unwrap();
        assert_eq!(accept_at_once(listener).err(), Some(Errno::AGAIN));
        assert_eq!(control(set, libc::EPOLL_CTL_ADD, descriptor, IN), Ok(0));
        let writing = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            rustix::io::write(&to, b"pipe").unwrap();
            std::thread::sleep(Duration::from_millis(20));
            far.write(b"net");
            (far, to)
        });
        assert_eq!(ask(set, -1), Ok(vec![(IN, 9)]));
        assert_eq!(rustix::io::read(&from, &mut [0; 10]), Ok(4));
        assert_eq!(ask(set, -1), Ok(vec![(IN, 9)]));
        assert_eq!(recv(descriptor, 10, 0), Ok(b"net".to_vec()));
        let (far, to) = writing.join().unwrap();
        rustix::io::write(&to, b"pipe").unwrap();
        assert_eq!(ask(set, -1), Ok(vec![(IN, 9)]));
        assert_eq!(polled(set, libc::POLLIN, -1), libc::POLLIN, "a set is polled itself");
        // SAFETY: no memory is lent.
        let copy = unsafe { descriptors::dup(set) };
        assert_eq!(ask(copy, -1), Ok(vec![(IN, 9)]));
        let outer = epoll();
        assert_eq!(control(outer, libc::EPOLL_CTL_ADD, set, IN), Ok(0));
        assert_eq!(ask(outer, -1), Ok(vec![(IN, 9)]), "a set within a set");
        assert_eq!(rustix::io::read(&from, &mut [0; 10]), Ok(4));
        assert_eq!(ask(outer, 0), Ok(vec![]));
        far.close();
        assert_eq!(ask(outer, -1), Ok(vec![(IN, 9)]));
        for descriptor in [outer, copy, set, descriptor, listener] {
            assert_eq!(close(descriptor), Ok(0));
        }
    });
}

/// With nobody there, a listener that does not wait says so.
fn accept_at_once(listener: c_int) -> Result<(c_int, SocketAddr), Errno> {
    // SAFETY: no memory is lent.
    let fcntl = |command, argument| said(unsafe { descriptors::fcntl64(listener, command, argument) });
    let flags = fcntl(libc::F_GETFL, 0).unwrap() as c_int;
    assert_eq!(fcntl(libc::F_SETFL, (flags | libc::O_NONBLOCK) as u64), Ok(0));
    accept(listener, libc::SOCK_NONBLOCK)
}

/// How poll() and its kin are asked.
fn poll_in(way: usize, record: &mut pollfd, timeout: c_int) -> Said {
    let mut time = timespec { tv_sec: 0, tv_nsec: i64::from(timeout.max(0)) * 1_000_000 };
    let left = if timeout < 0 { null_mut() } else { &raw mut time };
    let at = &raw mut *record;
    // SAFETY: the record and the time are lent.
    said(unsafe {
        match way {
            0 => i64::from(events::poll(at, 1, timeout)),
            1 => events::__poll_chk(at, 1, timeout, 8).into(),
            2 => events::ppoll(at, 1, left, null()).into(),
            3 => events::__ppoll_chk(at, 1, left, null(), 8).into(),
            4 => syscall(libc::SYS_poll, at as usize, 1, timeout as usize, 0, 0, 0),
            _ => syscall(libc::SYS_ppoll, at as usize, 1, left as usize, 0, 8, 0),
        }
    })
}

#[test]
fn poll_says_the_same_in_each_way_of_asking() {
    script(|world| {
        let mut twins = world.twins();
        for way in 0..6 {
            let asked = |end, events: i16, timeout| {
                let mut record = pollfd { fd: end, events, revents: 0x7f };
                (poll_in(way, &mut record, timeout), record.revents)
            };
            assert_eq!(twins.same(|end| asked(end, libc::POLLIN, 0)), (Ok(0), 0), "{way}");
            assert_eq!(twins.same(|end| asked(end, libc::POLLIN, 5)), (Ok(0), 0), "{way}");
            assert_eq!(twins.same(|end| asked(end, libc::POLLOUT, -1)), (Ok(1), libc::POLLOUT), "{way}");
            twins.hear(b"x");
            assert_eq!(twins.same(|end| asked(end, libc::POLLIN, -1)), (Ok(1), libc::POLLIN), "{way}");
            assert_eq!(twins.same(|end| recv(end, 10, 0)), Ok(b"x".to_vec()));
        }
        let late = timespec { tv_sec: -1, tv_nsec: 0 };
        // SAFETY: the time is lent.
        assert_eq!(said(unsafe { events::ppoll(null_mut(), 0, &raw const late, null()) }), Err(Errno::INVAL));
        let soon = timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        // SAFETY: as above.
        assert_eq!(said(unsafe { events::ppoll(null_mut(), 0, &raw const soon, null()) }), Ok(0));
        let both = twins.ends.map(|fd| pollfd { fd, events: libc::POLLOUT, revents: 0 });
        let mut records = [both[0], both[1], pollfd { fd: -1, ..both[0] }, pollfd { fd: 900, ..both[0] }];
        // SAFETY: the records are lent.
        assert_eq!(said(unsafe { events::poll(records.as_mut_ptr(), 4, -1) }), Ok(3));
        assert_eq!(records.map(|record| record.revents), [libc::POLLOUT, libc::POLLOUT, 0, libc::POLLNVAL]);
        twins.close();
    });
}

/// What select() has of one descriptor in each of three sets, and what it says there.
fn selected(descriptor: c_int, way: usize, wanted: [bool; 3], time_ms: i64) -> (Said, [bool; 3]) {
    // SAFETY: all-zero sets are empty.
    let mut sets: [libc::fd_set; 3] = unsafe { core::mem::zeroed() };
    for (set, wanted) in sets.iter_mut().zip(wanted) {
        if wanted {
            // SAFETY: descriptors of tests are below FD_SETSIZE.
            unsafe { libc::FD_SET(descriptor, set) };
        }
    }
    let mut micro = timeval { tv_sec: 0, tv_usec: time_ms * 1000 };
    let mut nano = timespec { tv_sec: 0, tv_nsec: time_ms * 1_000_000 };
    let [read, write, except] = sets.each_mut().map(|set| &raw mut *set);
    let number = descriptor + 1;
    // SAFETY: the sets and the times are lent.
    let result = said(unsafe {
        let words = [read as usize, write as usize, except as usize];
        match way {
            0 => i64::from(events::select(number, read, write, except, &raw mut micro)),
            1 => events::pselect(number, read, write, except, &raw const nano, null()).into(),
            2 => syscall(
                libc::SYS_select,
                number as usize,
                words[0],
                words[1],
                words[2],
                &raw mut micro as usize,
                0,
            ),
            _ => {
                let mask = [0_usize, 8];
                let (nano, mask) = (&raw mut nano as usize, &raw const mask as usize);
                syscall(libc::SYS_pselect6, number as usize, words[0], words[1], words[2], nano, mask)
            }
        }
    });
    // SAFETY: as above.
    (result, sets.map(|set| unsafe { libc::FD_ISSET(descriptor, &raw const set) }))
}

#[test]
fn select_says_the_same_in_each_way_of_asking() {
    script(|world| {
        let mut twins = world.twins();
        for way in 0..4 {
            let nothing = [false; 3];
            assert_eq!(
                twins.same(|end| selected(end, way, [true, false, true], 0)),
                (Ok(0), nothing),
                "{way}"
            );
            assert_eq!(
                twins.same(|end| selected(end, way, [true, false, true], 5)),
                (Ok(0), nothing),
                "{way}"
            );
            let writable = [false, true, false];
            assert_eq!(twins.same(|end| selected(end, way, [true; 3], 900)), (Ok(1), writable), "{way}");
            twins.hear(b"x");
            let both = [true, true, false];
            assert_eq!(twins.same(|end| selected(end, way, [true; 3], 900)), (Ok(2), both), "{way}");
            assert_eq!(twins.same(|end| recv(end, 10, 0)), Ok(b"x".to_vec()));
        }
        twins.far_shut();
        assert_eq!(twins.same(|end| selected(end, 0, [true; 3], 900)), (Ok(2), [true, true, false]));
        twins.close();
    });
}

#[test]
fn a_closed_descriptor_is_none_to_select() {
    script(|world| {
        let (ours, _far) = world.dial();
        // SAFETY: all-zero sets are empty; the descriptors are below FD_SETSIZE.
        let mut set: libc::fd_set = unsafe { core::mem::zeroed() };
        // SAFETY: as above.
        unsafe { libc::FD_SET(ours, &raw mut set) };
        // SAFETY: as above.
        unsafe { libc::FD_SET(900, &raw mut set) };
        // SAFETY: the set is lent.
        let result = said(unsafe { events::select(901, &raw mut set, null_mut(), null_mut(), null_mut()) });
        assert_eq!(result, Err(Errno::BADF));
        let late = timespec { tv_sec: 0, tv_nsec: -1 };
        // SAFETY: as above.
        let result = said(unsafe {
            events::pselect(901, &raw mut set, null_mut(), null_mut(), &raw const late, null())
        });
        assert_eq!(result, Err(Errno::INVAL));
        assert_eq!(close(ours), Ok(0));
    });
}

/// Linux looks at the time last: a server that sleeps a second at a time hears that it is to end, however late it wakes.
#[test]
fn a_signal_goes_before_the_time() {
    extern "C" fn caught(_: c_int) {}
    script(|world| {
        let mut twins = world.twins();
        let zero = timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the handler does nothing; the masks, the times and the sets are lent.
        unsafe {
            crate::hooks::processes::signal(libc::SIGUSR1, caught as *const () as usize);
            let (mut blocked, mut open): (sigset_t, sigset_t) = core::mem::zeroed();
            libc::sigaddset(&raw mut blocked, libc::SIGUSR1);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, &raw mut open);
            libc::sigdelset(&raw mut open, libc::SIGUSR1);
            let polls = |end| {
                libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1);
                let mut record = pollfd { fd: end, events: libc::POLLIN, revents: 0 };
                said(events::ppoll(&raw mut record, 1, &raw const zero, &raw const open))
            };
            let selects = |end| {
                libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1);
                let mut read: libc::fd_set = core::mem::zeroed();
                libc::FD_SET(end, &raw mut read);
                let (read, none) = (&raw mut read, null_mut());
                said(events::pselect(end + 1, read, none, none, &raw const zero, &raw const open))
            };
            assert_eq!(twins.same(polls), Err(Errno::INTR));
            assert_eq!(twins.same(selects), Err(Errno::INTR));
            // What is ready goes before both.
            twins.hear(b"x");
            assert_eq!(twins.same(polls), Ok(1));
            assert_eq!(twins.same(selects), Ok(1));
        }
        twins.close();
    });
}

#[test]
fn a_mask_lets_a_signal_through_while_a_call_waits() {
    extern "C" fn caught(_: c_int) {}
    script(|world| {
        let mut twins = world.twins();
        let set = epoll();
        assert_eq!(control(set, libc::EPOLL_CTL_ADD, twins.ends[0], IN), Ok(0));
        // SAFETY: the handler does nothing; the masks are lent.
        unsafe {
            crate::hooks::processes::signal(libc::SIGUSR1, caught as *const () as usize);
            let (mut blocked, mut open): (sigset_t, sigset_t) = core::mem::zeroed();
            libc::sigaddset(&raw mut blocked, libc::SIGUSR1);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, &raw mut open);
            libc::sigdelset(&raw mut open, libc::SIGUSR1);
            let raise = || libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1);
            let interrupted = twins.same(|end| {
                raise();
                let mut record = pollfd { fd: end, events: libc::POLLIN, revents: 0 };
                said(events::ppoll(&raw mut record, 1, null(), &raw const open))
            });
            assert_eq!(interrupted, Err(Errno::INTR));
            let interrupted = twins.same(|end| {
                raise();
                let mut read: libc::fd_set = core::mem::zeroed();
                libc::FD_SET(end, &raw mut read);
                said(events::pselect(end + 1, &raw mut read, null_mut(), null_mut(), null(), &raw const open))
            });
            assert_eq!(interrupted, Err(Errno::INTR));
            raise();
            let mut record = epoll_event { events: 0, u64: 0 };
            let interrupted = said(events::epoll_pwait(set, &raw mut record, 1, -1, &raw const open));
            assert_eq!(interrupted, Err(Errno::INTR));
            raise();
            assert_eq!(ask(set, 5), Ok(vec![]), "it is blocked");
            // What is ready comes first.
            twins.hear(b"x");
            assert_eq!(
                said(events::epoll_pwait2(set, &raw mut record, 1, null(), &raw const blocked)),
                Ok(1)
            );
        }
        twins.close();
    });
}

//! Forks, and what becomes of connections then.

use core::ffi::c_void;

use overfly_broker::message::Kind;

use super::*;
use crate::hooks::syscall::syscall;
use crate::hooks::{exec, processes};

/// What a child does; its status is 0 if it comes to its end.
pub(super) fn child(fork: impl FnOnce() -> i64, act: impl FnOnce()) -> libc::pid_t {
    let process = fork();
    assert!(process >= 0);
    if process == 0 {
        act();
        // SAFETY: what has been reached is written at the exit.
        unsafe { libc::exit(0) };
    }
    process as libc::pid_t
}

pub(super) fn waited(process: libc::pid_t) -> c_int {
    let mut status = -1;
    // SAFETY: the status is lent.
    assert_eq!(unsafe { libc::waitpid(process, &raw mut status, 0) }, process);
    status
}

pub(super) fn fork() -> i64 {
    // SAFETY: the child does what children of programs with threads may do, and libc has its locks in order.
    i64::from(unsafe { libc::fork() })
}

/// The kernel goes on with what is handed over, and this is who it then talks to.
fn onward(world: &World) {
    world.told.connect_onward(world.kernel.local_addr().unwrap());
}

/// A connection that the program has accepted: its socket in the kernel can be connected to anywhere.
fn accepted(world: &World) -> (c_int, Far) {
    let (listener, port) = world.listen();
    let far = world.peer.connect(own(port), 40_001);
    let (descriptor, _) = accept(listener, 0).unwrap();
    assert_eq!(close(listener), Ok(0));
    (descriptor, far)
}

#[test]
fn a_child_that_uses_a_connection_has_it_handed_over() {
    script(|world| {
        let (descriptor, _far) = accepted(&world);
        onward(&world);
        let process = child(fork, || {
            assert_eq!(write(descriptor, b"from the child"), Ok(14));
            assert_eq!(recv(descriptor, 10, 0), Ok(b"to it".to_vec()));
        });
        let mut far = Far::Kernel(world.kernel.accept().unwrap().0);
        assert_eq!(far.read(14), b"from the child");
        far.write(b"to it");
        assert_eq!(waited(process), 0);
        assert_eq!(world.told.asked(Kind::HandOver).len(), 1);
        assert_eq!(write(descriptor, b"both have it"), Ok(12));
        assert_eq!(far.read(12), b"both have it");
        assert_eq!(close(descriptor), Ok(0));
        assert_eq!(far.read(1), b"");
    });
}

#[test]
fn a_child_that_only_exits_costs_nothing() {
    script(|world| {
        let (descriptor, mut far) = world.dial();
        for _ in 0..3 {
            assert_eq!(waited(child(fork, || ())), 0);
        }
        assert_eq!(write(descriptor, b"still here"), Ok(10));
        assert_eq!(far.read(10), b"still here");
        assert!(world.told.asked(Kind::HandOver).is_empty());
        assert_eq!(close(descriptor), Ok(0));
    });
}

#[test]
fn a_parent_that_closes_leaves_the_connection_to_its_child() {
    script(|world| {
        let (descriptor, _far) = accepted(&world);
        onward(&world);
        let (from, to) = rustix::pipe::pipe().unwrap();
        let process = child(fork, || {
            let _ = rustix::io::read(&from, &mut [0; 1]);
            assert_eq!(write(descriptor, b"alone"), Ok(5));
        });
        assert_eq!(close(descriptor), Ok(0));
        let mut far = Far::Kernel(world.kernel.accept().unwrap().0);
        rustix::io::write(&to, b"x").unwrap();
        assert_eq!(far.read(100), b"alone", "and its end");
        assert_eq!(waited(process), 0);
    });
}

#[test]
fn a_connection_that_is_over_is_told_to_the_child() {
    script(|world| {
        let (descriptor, far) = world.dial();
        let (gone, other) = world.dial();
        far.reset();
        until(|| (polled(descriptor, libc::POLLERR, 0) != 0).then_some(()));
        let (from, to) = rustix::pipe::pipe().unwrap();
        let process = child(fork, || {
            let _ = rustix::io::read(&from, &mut [0; 1]);
            assert_eq!(recv(descriptor, 10, 0), Err(Errno::CONNRESET));
            assert_eq!(recv(gone, 10, 0), Err(Errno::CONNRESET));
        });
        other.reset();
        until(|| (polled(gone, libc::POLLERR, 0) != 0).then_some(()));
        rustix::io::write(&to, b"x").unwrap();
        assert_eq!(waited(process), 0);
        assert_eq!(recv(descriptor, 10, 0), Ok(vec![]), "the child has been told");
    });
}

#[test]
fn each_way_to_fork_is_one() {
    script(|world| {
        let (descriptor, mut far) = world.dial();
        let number = |number: i64, a: usize, b: usize| {
            // SAFETY: as for fork().
            move || unsafe { syscall(number, a, b, 0, 0, 0, 0) }
        };
        let signal = libc::SIGCHLD as usize;
        let mut record = [0_u64; 8];
        record[4] = signal as u64;
        let at = record.as_ptr() as usize;
        let ends = || assert!(polled(descriptor, libc::POLLOUT, 0) != 0);
        // SAFETY: as for fork().
        assert_eq!(waited(child(|| i64::from(unsafe { processes::_Fork() }), || ())), 0);
        assert_eq!(waited(child(number(libc::SYS_fork, 0, 0), || ())), 0);
        assert_eq!(waited(child(number(libc::SYS_vfork, 0, 0), || ())), 0);
        assert_eq!(waited(child(number(libc::SYS_clone, signal, 0), || ())), 0);
        assert_eq!(waited(child(number(libc::SYS_clone3, at, 64), || ())), 0);
        ends();
        // SAFETY: the flags are none.
        assert_eq!(said(unsafe { syscall(libc::SYS_clone3, at, 8, 0, 0, 0, 0) }), Err(Errno::INVAL));
        extern "C" fn body(argument: *mut c_void) -> c_int {
            argument as usize as c_int
        }
        let mut stack = vec![0_u128; 64 << 10];
        let null = core::ptr::null_mut;
        // SAFETY: the stack is the child's copy; it begins at its top.
        let process = unsafe {
            let top = stack.as_mut_ptr().add(stack.len()).cast();
            processes::clone(body, top, libc::SIGCHLD, 5 as *mut c_void, null(), null(), null())
        };
        assert_eq!(waited(process), 5 << 8);
        assert_eq!(write(descriptor, b"all back"), Ok(8));
        assert_eq!(far.read(8), b"all back");
    });
}

#[test]
fn children_have_stacks_of_their_own() {
    script(|world| {
        let (listener, port) = world.listen();
        assert_eq!(polled(listener, libc::POLLIN, 0), 0);
        let process = child(fork, || {
            let fresh = socket(libc::AF_INET, libc::SOCK_STREAM);
            assert_eq!(bind(fresh, own(0)), Ok(0));
            // SAFETY: no memory is lent.
            assert_eq!(said(unsafe { sockets::listen(fresh, 5) }), Ok(0));
            assert_eq!(polled(fresh, libc::POLLIN, 1), 0);
            assert_eq!(polled(listener, libc::POLLIN, 1), 0, "the listener that both have");
            assert_eq!(close(fresh), Ok(0));
            assert_eq!(close(listener), Ok(0));
        });
        assert_eq!(waited(process), 0);
        let listened = world.told.asked(Kind::Listen).len();
        assert!(listened >= 2, "{listened}");
        let far = world.peer.connect(own(port), 40_001);
        assert!(accept(listener, 0).is_ok());
        far.close();
    });
}

#[test]
fn sets_of_a_parent_are_its_childs_too() {
    script(|world| {
        let (descriptor, _far) = accepted(&world);
        onward(&world);
        let set = epoll();
        assert_eq!(watch(set, descriptor, libc::EPOLLIN), Ok(0));
        let process = child(fork, || {
            assert_eq!(ask(set, 5000), Ok(vec![(libc::EPOLLIN as u32, descriptor as u64)]));
            assert_eq!(recv(descriptor, 10, 0), Ok(b"news".to_vec()));
        });
        let mut far = Far::Kernel(world.kernel.accept().unwrap().0);
        far.write(b"news");
        assert_eq!(waited(process), 0);
    });
}

/// What is started for a program has nothing of the library's: its connections go on in the kernel, or end with it.
#[test]
fn other_programs_are_started() {
    script(|world| {
        let (descriptor, _far) = accepted(&world);
        onward(&world);
        let command = [c"sh".as_ptr(), c"-c".as_ptr(), c"exit 7".as_ptr(), core::ptr::null()];
        let own = [c"A=b".as_ptr(), core::ptr::null()];
        let (arguments, environment) = (command.as_ptr(), own.as_ptr());
        let sh = c"/bin/sh".as_ptr();
        let nowhere = c"/nowhere/at/all".as_ptr();
        let folder = std::fs::File::open("/bin/sh").unwrap();
        let file = std::os::fd::AsRawFd::as_raw_fd(&folder);
        // SAFETY: the strings are lent; so for all.
        let ways: [&dyn Fn() -> c_int; 6] = unsafe {
            [
                &|| exec::execve(sh, arguments, environment),
                &|| exec::execv(sh, arguments),
                &|| exec::execvp(c"sh".as_ptr(), arguments),
                &|| exec::execvpe(c"sh".as_ptr(), arguments, environment),
                &|| exec::fexecve(file, arguments, environment),
                &|| exec::execveat(libc::AT_FDCWD, sh, arguments, environment, 0),
            ]
        };
        for (index, way) in ways.iter().enumerate() {
            let process = child(fork, || {
                way();
            });
            assert_eq!(waited(process), 7 << 8, "{index}");
        }
        // SAFETY: as above.
        unsafe {
            let none = core::ptr::null();
            assert_eq!(said(exec::execve(nowhere, arguments, environment)), Err(Errno::NOENT));
            assert_eq!(said(exec::execv(nowhere, arguments)), Err(Errno::NOENT));
            assert_eq!(said(exec::execvp(nowhere, arguments)), Err(Errno::NOENT));
            assert_eq!(said(exec::execvpe(nowhere, arguments, environment)), Err(Errno::NOENT));
            assert_eq!(said(exec::fexecve(-1, arguments, environment)), Err(Errno::INVAL));
            assert_eq!(said(exec::execveat(libc::AT_FDCWD, nowhere, arguments, none, 0)), Err(Errno::NOENT));
            let number = libc::SYS_execve;
            assert_eq!(
                said(syscall(number, nowhere as usize, arguments as usize, 0, 0, 0, 0)),
                Err(Errno::NOENT)
            );
            let mut process = 0;

            let spawned = exec::posix_spawn(
                &raw mut process,
                sh,
                core::ptr::null(),
                core::ptr::null(),
                arguments,
                environment,
            );
            assert_eq!((spawned, waited(process)), (0, 7 << 8));
            let spawned = exec::posix_spawnp(
                &raw mut process,
                c"sh".as_ptr(),
                core::ptr::null(),
                core::ptr::null(),
                arguments,
                environment,
            );
            assert_eq!((spawned, waited(process)), (0, 7 << 8));
            let spawned = exec::posix_spawn(
                &raw mut process,
                nowhere,
                core::ptr::null(),
                core::ptr::null(),
                arguments,
                environment,
            );
            assert_eq!(spawned, libc::ENOENT);
            assert_eq!(exec::system(c"exit 5".as_ptr()), 5 << 8);
        }
        assert_eq!(close(descriptor), Ok(0));
    });
}

#[test]
fn a_program_that_becomes_another_leaves_its_connections_to_the_kernel() {
    script(|world| {
        let (descriptor, _far) = accepted(&world);
        onward(&world);
        let process = child(fork, || {
            // SAFETY: no memory is lent.
            assert_eq!(said(unsafe { descriptors::dup2(descriptor, 1) }), Ok(1));
            let arguments = [c"sh".as_ptr(), c"-c".as_ptr(), c"echo there".as_ptr(), core::ptr::null()];
            // SAFETY: the strings are lent.
            unsafe { exec::execv(c"/bin/sh".as_ptr(), arguments.as_ptr()) };
        });
        let mut far = Far::Kernel(world.kernel.accept().unwrap().0);
        assert_eq!(far.read(6), b"there\n");
        assert_eq!(waited(process), 0);
    });
}

#[test]
fn a_stream_of_stdios_is_the_kernels() {
    script(|world| {
        let (descriptor, _far) = accepted(&world);
        onward(&world);
        // SAFETY: the string is lent.
        let stream = unsafe { exec::fdopen(descriptor, c"r+".as_ptr()) };
        assert!(!stream.is_null());
        let mut far = Far::Kernel(world.kernel.accept().unwrap().0);
        // SAFETY: the stream is open, and closed once.
        unsafe {
            assert!(libc::fputs(c"by stdio".as_ptr(), stream.cast()) >= 0);
            assert_eq!(libc::fclose(stream.cast()), 0);
        }
        assert_eq!(far.read(100), b"by stdio");
        world.told.forbid(Kind::HandOver, overfly_broker::Refusal::NotMoved);
        let (descriptor, mut far) = world.dial();
        // SAFETY: as above.
        assert!(unsafe { exec::fdopen(descriptor, c"r+".as_ptr()) }.is_null());
        assert_eq!(write(descriptor, b"it stays"), Ok(8));
        assert_eq!(far.read(8), b"it stays");
    });
}

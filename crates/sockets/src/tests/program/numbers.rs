//! Descriptors: dup() and its kin, fcntl(), ioctl(), ranges; and all of it by the numbers of system calls.

use super::*;
use crate::hooks::syscall::syscall;

/// A system call by its number.
fn by_number(number: i64, arguments: [usize; 6]) -> Said {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: what the arguments name is lent.
    said(unsafe { syscall(number, a, b, c, d, e, f) })
}

#[test]
fn duplicates_are_the_same_connection() {
    script(|world| {
        let mut twins = world.twins();
        let ways: [fn(c_int) -> Said; 9] = [
            // SAFETY: no memory is lent; so for all.
            |end| said(unsafe { descriptors::dup(end) }),
            // SAFETY: as above.
            |end| said(unsafe { descriptors::dup2(end, end + 200) }),
            // SAFETY: as above.
            |end| said(unsafe { descriptors::dup3(end, end + 220, libc::O_CLOEXEC) }),
            |end| fcntl(end, libc::F_DUPFD, 300),
            |end| fcntl(end, libc::F_DUPFD_CLOEXEC, 400),
            |end| by_number(libc::SYS_dup, [end as usize, 0, 0, 0, 0, 0]),
            |end| by_number(libc::SYS_dup2, [end as usize, end as usize + 240, 0, 0, 0, 0]),
            |end| by_number(libc::SYS_dup3, [end as usize, end as usize + 260, 0, 0, 0, 0]),
            |end| by_number(libc::SYS_fcntl, [end as usize, libc::F_DUPFD as usize, 500, 0, 0, 0]),
        ];
        for (index, way) in ways.into_iter().enumerate().take(8) {
            twins.hear(b"x");
            let through = twins.same(|end| {
                let copy = way(end).unwrap() as c_int;
                let flags = fcntl(copy, libc::F_GETFD, 0);
                (flags, recv(copy, 10, 0), write(copy, b"y"), close(copy), close(copy))
            });
            let flags = i64::from([2, 4].contains(&index)) * i64::from(libc::FD_CLOEXEC);
            assert_eq!(through, (Ok(flags), Ok(b"x".to_vec()), Ok(1), Ok(0), Err(Errno::BADF)), "{index}");
        }
        assert_eq!(twins.far_read(8), b"yyyyyyyy");
        // SAFETY: no memory is lent.
        let (dup, dup2, dup3) = unsafe {
            (
                |end| said(descriptors::dup(end)),
                |end, to| said(descriptors::dup2(end, to)),
                |end, to, flags| said(descriptors::dup3(end, to, flags)),
            )
        };
        assert_eq!(twins.same(|end| dup2(end, end).map(|same| same == i64::from(end))), Ok(true));
        assert_eq!(twins.same(|end| dup3(end, end, 0)), Err(Errno::INVAL));
        assert_eq!(twins.same(|end| dup3(end, end + 1, 77)), Err(Errno::INVAL));
        assert_eq!(twins.same(|end| dup2(end, -1)), Err(Errno::BADF));
        assert_eq!(twins.same(|end| dup2(-1, end)), Err(Errno::BADF));
        assert_eq!(dup(-1), Err(Errno::BADF));
        assert_eq!(twins.same(|end| fcntl(end, libc::F_DUPFD, u64::from(u32::MAX))), Err(Errno::INVAL));
        twins.close();
    });
}

#[test]
fn a_connection_gives_way_to_what_is_put_at_its_number() {
    script(|world| {
        let mut twins = world.twins();
        let (from, to) = rustix::pipe::pipe().unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&from);
        // SAFETY: no memory is lent.
        let replaced = twins
            .same(|end| said(unsafe { descriptors::dup2(number, end) }).map(|new| new == i64::from(end)));
        assert_eq!(replaced, Ok(true));
        assert_eq!(twins.far_read(1), b"", "its end");
        assert_eq!(twins.same(|end| name(end, true)), Err(Errno::NOTSOCK));
        rustix::io::write(&to, b"pp").unwrap();
        let piped = |end| {
            let mut byte = 0_u8;
            // SAFETY: the byte is lent.
            (said_long(unsafe { receive::read(end, (&raw mut byte).cast(), 1) }), byte)
        };
        assert_eq!(twins.same(piped), (Ok(1), b'p'));
        twins.close();
    });
}

#[test]
fn flags_are_those_of_the_descriptor() {
    script(|world| {
        let twins = world.twins();
        let nonblocking = i64::from(libc::O_RDWR | libc::O_NONBLOCK);
        assert_eq!(twins.same(|end| fcntl(end, libc::F_GETFL, 0)), Ok(i64::from(libc::O_RDWR)));
        assert_eq!(twins.same(|end| fcntl(end, libc::F_SETFL, libc::O_NONBLOCK as u64)), Ok(0));
        assert_eq!(twins.same(|end| fcntl(end, libc::F_GETFL, 0)), Ok(nonblocking));
        assert_eq!(twins.same(|end| recv(end, 1, 0)), Err(Errno::AGAIN));
        let ioctl = |end, request: libc::c_ulong, at: usize| {
            // SAFETY: the call says what it cannot read.
            said(unsafe { descriptors::ioctl(end, request, at as libc::c_ulong) })
        };
        let off = 0_i32;
        assert_eq!(twins.same(|end| ioctl(end, libc::FIONBIO, &raw const off as usize)), Ok(0));
        assert_eq!(twins.same(|end| fcntl(end, libc::F_GETFL, 0)), Ok(i64::from(libc::O_RDWR)));
        for request in [libc::FIONBIO, libc::FIONREAD, libc::TIOCOUTQ, 0x894b] {
            assert_eq!(twins.same(|end| ioctl(end, request, 0)), Err(Errno::FAULT), "{request:x}");
        }
        assert_eq!(twins.same(|end| ioctl(end, libc::TCGETS, 0)), Err(Errno::NOTTY));
        assert_eq!(twins.same(|end| fcntl(end, libc::F_SETFD, 1)), Ok(0));
        assert_eq!(twins.same(|end| fcntl(end, libc::F_GETFD, 0)), Ok(1));
        assert_eq!(twins.same(|end| fcntl(end, 999, 0)), Err(Errno::INVAL));
        assert_eq!(fcntl(-1, libc::F_GETFL, 0), Err(Errno::BADF));
        assert_eq!(ioctl(-1, libc::FIONREAD, 0), Err(Errno::BADF));
        twins.close();
    });
}

#[test]
fn ranges_are_closed_and_the_library_stays() {
    script(|world| {
        let (first, _far) = world.dial();
        let (second, mut other) = world.dial();
        let range = |from: c_int, to: c_int, flags| {
            // SAFETY: no memory is lent.
            said(unsafe { descriptors::close_range(from as u32, to as u32, flags) })
        };
        assert_eq!(range(first, second, 4), Ok(0), "CLOSE_RANGE_CLOEXEC");
        assert_eq!(fcntl(second, libc::F_GETFD, 0), Ok(1));
        assert_eq!(range(second, first, 0), Err(Errno::INVAL));
        assert_eq!(by_number(libc::SYS_close_range, [second as usize, second as usize, 0, 0, 0, 0]), Ok(0));
        assert_eq!(fcntl(second, libc::F_GETFL, 0), Err(Errno::BADF));
        assert_eq!(other.read(1), b"");
        assert_eq!(write(first, b"on"), Ok(2));
        // SAFETY: no memory is lent.
        assert_eq!(range(first, first, 0), Ok(0));
        assert_eq!(write(first, b"on"), Err(Errno::BADF));
        // SAFETY: as above.
        unsafe { descriptors::closefrom(c_int::MAX) };
        let (third, mut far) = world.dial();
        assert_eq!(write(third, b"there"), Ok(5));
        assert_eq!(far.read(5), b"there");
        assert_eq!(by_number(libc::SYS_close, [third as usize, 0, 0, 0, 0, 0]), Ok(0));
    });
}

/// Four bytes by each call that writes.
fn written_by_number(first: usize, far: &mut Far) {
    let data = *b"data";
    let vector = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: 4 };
    let mut vectors = [vector];
    let message = sending::message(&mut vectors);
    let mut records = [libc::mmsghdr { msg_hdr: message, msg_len: 0 }];
    let (data_word, vector_word) = (data.as_ptr() as usize, &raw const vector as usize);
    let (message_word, records_word) = (&raw const message as usize, records.as_mut_ptr() as usize);
    let sent = [
        (libc::SYS_write, [first, data_word, 4, 0, 0, 0], 4),
        (libc::SYS_writev, [first, vector_word, 1, 0, 0, 0], 4),
        (libc::SYS_pwritev2, [first, vector_word, 1, usize::MAX, usize::MAX, 0], 4),
        (libc::SYS_sendto, [first, data_word, 4, 0, 0, 0], 4),
        (libc::SYS_sendmsg, [first, message_word, 0, 0, 0, 0], 4),
        (libc::SYS_sendmmsg, [first, records_word, 1, 0, 0, 0], 1),
    ];
    for (number, arguments, result) in sent {
        assert_eq!(by_number(number, arguments), Ok(result), "{number}");
    }
    assert_eq!(far.read(24), b"data".repeat(6));
}

/// Four bytes by each call that reads.
fn read_by_number(first: usize, far: &mut Far) {
    let mut buffer = [0_u8; 4];
    let vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: 4 };
    let mut vectors = [vector];
    let message = sending::message(&mut vectors);
    let mut records = [libc::mmsghdr { msg_hdr: message, msg_len: 0 }];
    let (buffer_word, vector_word) = (buffer.as_mut_ptr() as usize, &raw const vector as usize);
    let (message_word, records_word) = (&raw const message as usize, records.as_mut_ptr() as usize);
    let received = [
        (libc::SYS_read, [first, buffer_word, 4, 0, 0, 0], 4),
        (libc::SYS_readv, [first, vector_word, 1, 0, 0, 0], 4),
        (libc::SYS_preadv2, [first, vector_word, 1, usize::MAX, usize::MAX, 0], 4),
        (libc::SYS_recvfrom, [first, buffer_word, 4, 0, 0, 0], 4),
        (libc::SYS_recvmsg, [first, message_word, 0, 0, 0, 0], 4),
        (libc::SYS_recvmmsg, [first, records_word, 1, 0, 0, 0], 1),
    ];
    for (number, arguments, result) in received {
        far.write(&(number as u32).to_le_bytes());
        assert_eq!(by_number(number, arguments), Ok(result), "{number}");
        // SAFETY: the buffer is ours; the calls have written there.
        assert_eq!(unsafe { core::ptr::read_volatile(&raw const buffer) }, (number as u32).to_le_bytes());
    }
}

/// A connection by the numbers of system calls, from socket() to shutdown().
#[test]
fn a_connection_by_numbers() {
    script(|world| {
        let (mut at, mut length) = record(own(0));
        let at_word = &raw mut at as usize;
        let length_word = &raw mut length as usize;
        let (inet, stream) = (libc::AF_INET as usize, libc::SOCK_STREAM as usize);
        let listener = by_number(libc::SYS_socket, [inet, stream, 0, 0, 0, 0]).unwrap() as usize;
        assert_eq!(by_number(libc::SYS_bind, [listener, at_word, length as usize, 0, 0, 0]), Ok(0));
        assert_eq!(by_number(libc::SYS_listen, [listener, 5, 0, 0, 0, 0]), Ok(0));
        let port = name(listener as c_int, false).unwrap().port();
        let mut far = world.peer.connect(own(port), 40_001);
        let first = by_number(libc::SYS_accept4, [listener, at_word, length_word, 0, 0, 0]).unwrap() as usize;
        let _second = world.peer.connect(own(port), 40_002);
        let second = by_number(libc::SYS_accept, [listener, 0, 0, 0, 0, 0]).unwrap() as usize;
        assert_eq!(by_number(libc::SYS_getpeername, [second, at_word, length_word, 0, 0, 0]), Ok(0));
        assert_eq!(by_number(libc::SYS_getsockname, [second, at_word, length_word, 0, 0, 0]), Ok(0));
        assert_eq!((name(second as c_int, true).unwrap().port(), length), (40_002, 16));
        written_by_number(first, &mut far);
        read_by_number(first, &mut far);
        let mut value = 1_i32;
        let mut value_length = 4_u32;
        let (value_word, value_length_word) = (&raw mut value as usize, &raw mut value_length as usize);
        let (tcp, no_delay) = (libc::IPPROTO_TCP as usize, libc::TCP_NODELAY as usize);
        assert_eq!(by_number(libc::SYS_setsockopt, [first, tcp, no_delay, value_word, 4, 0]), Ok(0));
        assert_eq!(
            by_number(libc::SYS_getsockopt, [first, tcp, no_delay, value_word, value_length_word, 0]),
            Ok(0)
        );
        assert_eq!(by_number(libc::SYS_ioctl, [first, libc::FIONREAD as usize, value_word, 0, 0, 0]), Ok(0));
        assert_eq!(value, 0);
        let file = std::os::fd::AsRawFd::as_raw_fd(&std::fs::File::open("/proc/self/stat").unwrap());
        assert_eq!(by_number(libc::SYS_sendfile, [first, file as usize, 0, 0, 0, 0]), Ok(0));
        assert_eq!(by_number(libc::SYS_splice, [first, 0, second, 0, 0, 0]), Ok(0));
        assert_eq!(by_number(libc::SYS_shutdown, [first, libc::SHUT_WR as usize, 0, 0, 0, 0]), Ok(0));
        assert_eq!(far.read(1), b"");
        let fresh = by_number(libc::SYS_socket, [inet, stream, 0, 0, 0, 0]).unwrap() as usize;
        let (there, length) = record(FAR);
        assert_eq!(
            by_number(libc::SYS_connect, [fresh, &raw const there as usize, length as usize, 0, 0, 0]),
            Ok(0)
        );
        let set = by_number(libc::SYS_epoll_create1, [0; 6]).unwrap() as usize;
        let other = by_number(libc::SYS_epoll_create, [1, 0, 0, 0, 0, 0]).unwrap() as usize;
        let mut event = libc::epoll_event { events: libc::EPOLLOUT as u32, u64: 3 };
        let add = libc::EPOLL_CTL_ADD as usize;
        assert_eq!(by_number(libc::SYS_epoll_ctl, [set, add, fresh, &raw mut event as usize, 0, 0]), Ok(0));
        assert_eq!(by_number(libc::SYS_epoll_wait, [set, &raw mut event as usize, 1, 0, 0, 0]), Ok(1));
        assert_eq!(by_number(libc::SYS_io_uring_setup, [1, 0, 0, 0, 0, 0]), Err(Errno::NOSYS));
        assert_eq!(by_number(libc::SYS_getpid, [0; 6]), Ok(i64::from(std::process::id())));
        for descriptor in [listener, first, second, fresh, set, other] {
            assert_eq!(by_number(libc::SYS_close, [descriptor, 0, 0, 0, 0, 0]), Ok(0));
        }
    });
}

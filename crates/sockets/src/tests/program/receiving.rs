//! read() and its kin.

use core::ffi::c_void;

use libc::{iovec, mmsghdr, msghdr};

use super::sending::message;
use super::*;

fn vector(data: &mut [u8]) -> iovec {
    iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() }
}

fn read(descriptor: c_int, most: usize) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0_u8; most];
    // SAFETY: the buffer is lent.
    let length =
        said_long(unsafe { receive::__read_chk(descriptor, buffer.as_mut_ptr().cast(), most, most) })?;
    buffer.truncate(length as usize);
    Ok(buffer)
}

#[test]
fn reading_nothing_asks_for_nothing_and_receiving_nothing_waits() {
    script(|world| {
        let mut twins = world.twins();
        assert_eq!(twins.same(|end| read(end, 0)), Ok(vec![]));
        assert_eq!(twins.same(|end| recv(end, 0, libc::MSG_DONTWAIT)), Err(Errno::AGAIN));
        twins.hear(b"x");
        assert_eq!(twins.same(|end| recv(end, 0, 0)), Ok(vec![]));
        assert_eq!(twins.same(|end| read(end, 5)), Ok(b"x".to_vec()));
        twins.close();
    });
}

#[test]
fn vectors_are_filled_one_after_another() {
    script(|world| {
        let mut twins = world.twins();
        twins.hear(b"0123456789");
        let filled = |end, offset, flags| {
            let (mut a, mut b) = ([0; 2], [0; 3]);
            let vectors = [vector(&mut a), vector(&mut []), vector(&mut b)];
            // SAFETY: the vectors and what they name are lent.
            let read = said_long(unsafe {
                if flags < 0 {
                    receive::readv(end, vectors.as_ptr(), 3)
                } else {
                    receive::preadv64v2(end, vectors.as_ptr(), 3, offset, flags)
                }
            });
            (read, a, b)
        };
        assert_eq!(twins.same(|end| filled(end, 0, -1)), (Ok(5), *b"01", *b"234"));
        assert_eq!(twins.same(|end| filled(end, -1, libc::RWF_NOWAIT)), (Ok(5), *b"56", *b"789"));
        assert_eq!(twins.same(|end| filled(end, -1, libc::RWF_NOWAIT).0), Err(Errno::AGAIN));
        assert_eq!(twins.same(|end| filled(end, 5, 0).0), Err(Errno::SPIPE));
        // SAFETY: no vector is looked at.
        let none = |end, number| said_long(unsafe { receive::readv(end, core::ptr::null(), number) });
        assert_eq!(twins.same(|end| none(end, 0)), Ok(0));
        assert_eq!(twins.same(|end| none(end, 2000)), Err(Errno::INVAL));
        assert_eq!(twins.same(|end| none(end, 2)), Err(Errno::FAULT));
        twins.close();
    });
}

#[test]
fn nobody_is_named_by_a_connection() {
    script(|world| {
        let mut twins = world.twins();
        twins.hear(b"data");
        let from = twins.same(|end| {
            let (mut record, mut length) = record(FAR);
            let mut buffer = [0_u8; 10];
            // SAFETY: the buffer, the record and its length are lent.
            let read = said_long(unsafe {
                let record = (&raw mut record).cast();
                receive::__recvfrom_chk(end, buffer.as_mut_ptr().cast(), 3, 10, 0, record, &raw mut length)
            });
            (read, length, buffer)
        });
        assert_eq!(from, (Ok(3), 0, *b"dat\0\0\0\0\0\0\0"));
        let message = twins.same(|end| {
            let (mut name, length) = record(FAR);
            let (mut buffer, mut control) = ([0_u8; 10], [0_u8; 64]);
            let mut vectors = [vector(&mut buffer)];
            let mut message = message(&mut vectors);
            (message.msg_name, message.msg_namelen) = ((&raw mut name).cast(), length);
            (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), 64);
            message.msg_flags = 77;
            // SAFETY: the message and what it names are lent.
            let read = said_long(unsafe { receive::recvmsg(end, &raw mut message, 0) });
            (read, message.msg_namelen, message.msg_controllen, message.msg_flags, buffer[0])
        });
        assert_eq!(message, (Ok(1), 0, 0, 0, b'a'));
        twins.close();
    });
}

/// What recvmsg() returns of so many bytes, and the length and the words of the control messages that it fills so much room with.
fn told(end: c_int, most: usize, room: usize, flags: c_int) -> (Said, usize, c_int, Vec<c_int>) {
    let mut buffer = vec![0_u8; most];
    let mut control = [0_u64; 8];
    let mut vectors = [vector(&mut buffer)];
    let mut message = message(&mut vectors);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), room);
    // SAFETY: the message and what it names are lent.
    let read = said_long(unsafe { receive::recvmsg(end, &raw mut message, flags) });
    let words = control.iter().flat_map(|word| [*word as c_int, (*word >> 32) as c_int]);
    (read, message.msg_controllen, message.msg_flags, words.take(room / 4).collect())
}

/// gRPC reads so: what it is told is left it does not ask for, and what it is not told is there it waits for.
#[test]
fn who_wants_to_be_told_hears_what_is_left_to_read() {
    const TCP_INQ: c_int = 36;
    let left = |read, left| (Ok(read), 24, 0, vec![20, 0, libc::IPPROTO_TCP, TCP_INQ, left, 0]);
    script(|world| {
        let mut twins = world.twins();
        let set = |end, value: c_int| set_option(end, libc::IPPROTO_TCP, TCP_INQ, &value);
        for value in [2, -1] {
            assert_eq!(twins.same(|end| set(end, value)), Err(Errno::INVAL));
        }
        assert_eq!(twins.same(|end| set(end, 1)), Ok(0));
        assert_eq!(twins.same(|end| number(end, libc::IPPROTO_TCP, TCP_INQ)), Ok(1));
        twins.hear(b"0123456789");
        assert_eq!(twins.same(|end| told(end, 4, 24, libc::MSG_PEEK)), left(4, 10));
        assert_eq!(twins.same(|end| told(end, 4, 24, 0)), left(4, 6));
        // Too little room, and none.
        assert_eq!(twins.same(|end| told(end, 1, 18, 0)).2, libc::MSG_CTRUNC);
        assert_eq!(twins.same(|end| told(end, 1, 8, 0)), (Ok(1), 0, libc::MSG_CTRUNC, vec![0; 2]));
        assert_eq!(twins.same(|end| told(end, 9, 24, 0)), left(4, 0));
        assert_eq!(twins.same(|end| told(end, 9, 24, libc::MSG_DONTWAIT)).0, Err(Errno::AGAIN));
        twins.hear(b"end");
        twins.far_shut();
        assert_eq!(twins.same(|end| told(end, 2, 24, 0)), left(2, 2));
        assert_eq!(twins.same(|end| told(end, 2, 24, 0)), left(1, 1));
        assert_eq!(twins.same(|end| told(end, 2, 24, 0)), left(0, 1));
        assert_eq!(twins.same(|end| set(end, 0)), Ok(0));
        assert_eq!(twins.same(|end| told(end, 2, 24, 0)), (Ok(0), 0, 0, vec![0; 6]));
        assert!(crate::hooks::data::is_connection(twins.ends[0]), "it is the kernel's");
        twins.close();
    });
}

/// gRPC sets it on each socket, and asks for it with no call.
#[test]
fn who_may_send_without_copies_stays_until_that_is_asked_for() {
    script(|world| {
        let twins = world.twins();
        let set = |end, value: c_int| set_option(end, libc::SOL_SOCKET, libc::SO_ZEROCOPY, &value);
        for value in [2, -1] {
            assert_eq!(twins.same(|end| set(end, value)), Err(Errno::INVAL));
        }
        for value in [1, 0, 1] {
            assert_eq!(twins.same(|end| set(end, value)), Ok(0));
            assert_eq!(twins.same(|end| number(end, libc::SOL_SOCKET, libc::SO_ZEROCOPY)), Ok(value));
        }
        assert!(crate::hooks::data::is_connection(twins.ends[0]), "it is the kernel's");
        twins.close();
    });
}

#[test]
fn what_is_no_message_is_refused() {
    script(|world| {
        let twins = world.twins();
        // SAFETY: the call says that there is no message.
        let nowhere = |end| said_long(unsafe { receive::recvmsg(end, core::ptr::null_mut(), 0) });
        assert_eq!(twins.same(nowhere), Err(Errno::FAULT));
        let refused = |end, change: fn(&mut msghdr)| {
            let mut buffer = [0; 4];
            let mut vectors = [vector(&mut buffer)];
            let mut message = message(&mut vectors);
            change(&mut message);
            // SAFETY: as above.
            said_long(unsafe { receive::recvmsg(end, &raw mut message, libc::MSG_DONTWAIT) })
        };
        assert_eq!(twins.same(|end| refused(end, |message| message.msg_iovlen = 1025)), Err(Errno::MSGSIZE));
        let null = |message: &mut msghdr| message.msg_iov = core::ptr::null_mut();
        assert_eq!(twins.same(|end| refused(end, null)), Err(Errno::FAULT));
        assert_eq!(twins.same(|end| refused(end, |_| ())), Err(Errno::AGAIN));
        twins.close();
    });
}

/// Receives up to three records of so many bytes.
fn several(end: c_int, length: usize, flags: c_int, timeout: Option<(i64, i64)>) -> (Said, [u32; 3]) {
    let mut buffers = [[0_u8; 8]; 3];
    let mut vectors = buffers.each_mut().map(|buffer| vector(&mut buffer[..length]));
    let mut records = vectors.each_mut().map(|vector| {
        let message = message(core::slice::from_mut(vector));
        mmsghdr { msg_hdr: message, msg_len: 99 }
    });
    let mut time = timeout.map(|(tv_sec, tv_nsec)| libc::timespec { tv_sec, tv_nsec });
    let time = time.as_mut().map_or(core::ptr::null_mut(), |time| &raw mut *time);
    // SAFETY: the records and what they name are lent.
    let count = said(unsafe { receive::recvmmsg(end, records.as_mut_ptr(), 3, flags, time) });
    (count, records.map(|record| record.msg_len))
}

#[test]
fn records_are_taken_one_after_another_from_a_stream_too() {
    script(|world| {
        let mut twins = world.twins();
        assert_eq!(twins.same(|end| several(end, 4, libc::MSG_DONTWAIT, None).0), Err(Errno::AGAIN));
        assert_eq!(twins.same(|end| several(end, 4, 0, Some((0, -1))).0), Err(Errno::INVAL));
        twins.hear(b"0123456");
        assert_eq!(twins.same(|end| several(end, 4, libc::MSG_WAITFORONE, None)), (Ok(2), [4, 3, 99]));
        twins.hear(b"0123456789ab");
        assert_eq!(twins.same(|end| several(end, 4, 0, Some((5, 0)))), (Ok(3), [4; 3]));
        twins.hear(b"0123456789ab");
        assert_eq!(twins.same(|end| several(end, 4, 0, Some((0, 0)))), (Ok(1), [4, 99, 99]));
        twins.far_reset();
        assert_eq!(twins.same(|end| several(end, 4, 0, None).0), Err(Errno::CONNRESET));
        twins.close();
    });
}

#[test]
fn all_is_waited_for_that_was_asked_for() {
    script(|world| {
        let mut twins = world.twins();
        let far: [Far; 2] = twins.far.each_mut().map(|far| far.take().unwrap());
        let writing = std::thread::spawn(move || {
            far.map(|mut far| {
                for piece in [b"01", b"23", b"45"] {
                    std::thread::sleep(Duration::from_millis(20));
                    far.write(piece);
                }
                far
            })
        });
        assert_eq!(twins.same(|end| recv(end, 6, libc::MSG_WAITALL)), Ok(b"012345".to_vec()));
        twins.far = writing.join().unwrap().map(Some);
        twins.hear(b"the end");
        twins.far_shut();
        assert_eq!(twins.same(|end| recv(end, 100, libc::MSG_WAITALL)), Ok(b"the end".to_vec()));
        twins.close();
    });
}

#[test]
fn bytes_are_peeked_at_and_thrown_away() {
    script(|world| {
        let mut twins = world.twins();
        twins.hear(b"0123456789");
        assert_eq!(twins.same(|end| recv(end, 4, libc::MSG_PEEK)), Ok(b"0123".to_vec()));
        // MSG_TRUNC throws away: the buffer stays as it is.
        assert_eq!(twins.same(|end| recv(end, 4, libc::MSG_TRUNC)), Ok(vec![0; 4]));
        assert_eq!(
            twins.same(|end| recv(end, 10, libc::MSG_PEEK | libc::MSG_TRUNC)).map(|data| data.len()),
            Ok(6)
        );
        assert_eq!(twins.same(|end| recv(end, 10, libc::MSG_OOB)), Err(Errno::INVAL));
        assert_eq!(twins.same(|end| recv(end, 10, libc::MSG_ERRQUEUE)), Err(Errno::AGAIN));
        assert_eq!(twins.same(|end| recv(end, 10, 0)), Ok(b"456789".to_vec()));
        // SAFETY: the call says that it cannot write there.
        let nowhere = |end| said_long(unsafe { receive::read(end, 0x10 as *mut c_void, 5) });
        twins.hear(b"kept");
        assert_eq!(twins.same(nowhere), Err(Errno::FAULT));
        assert_eq!(twins.same(|end| recv(end, 10, 0)), Ok(b"kept".to_vec()));
        twins.close();
    });
}

#[test]
fn who_waits_gives_up_after_its_time() {
    script(|world| {
        let mut twins = world.twins();
        let time = libc::timeval { tv_sec: 0, tv_usec: 30_000 };
        let set = |end| set_option(end, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &time);
        assert_eq!(twins.same(set), Ok(0));
        assert_eq!(twins.same(|end| recv(end, 6, 0)), Err(Errno::AGAIN));
        twins.hear(b"two");
        assert_eq!(twins.same(|end| recv(end, 6, libc::MSG_WAITALL)), Ok(b"two".to_vec()));
        twins.close();
    });
}

#[test]
fn who_waits_has_what_comes() {
    script(|world| {
        for wait in [0, 1, 2] {
            let (descriptor, mut far) = world.dial();
            let writing = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(30));
                match wait {
                    0 => far.write(b"late"),
                    1 => far.shut(),
                    _ => return far.reset(),
                }
                std::thread::sleep(Duration::from_millis(10));
            });
            let expected = [Ok(b"late".to_vec()), Ok(vec![]), Err(Errno::CONNRESET)];
            assert_eq!(recv(descriptor, 10, 0), expected[wait]);
            writing.join().unwrap();
            assert_eq!(close(descriptor), Ok(0));
        }
    });
}

#[test]
fn megabytes_come_whole() {
    script(|world| {
        let (descriptor, mut far) = world.dial();
        let data: Vec<u8> = (0..3_000_000_usize).map(|at| (at * 7 + at / 251) as u8).collect();
        let expected = data.clone();
        let writing = std::thread::spawn(move || far.write(&data));
        let mut received = Vec::new();
        while received.len() < expected.len() {
            received.extend(recv(descriptor, 33_333, 0).unwrap());
        }
        assert!(received == expected);
        writing.join().unwrap();
        assert_eq!(close(descriptor), Ok(0));
    });
}

#[test]
fn what_is_no_socket_is_the_kernels() {
    script(|_| {
        let (read_end, write_end) = rustix::pipe::pipe().unwrap();
        let [from, to] = [&read_end, &write_end].map(std::os::fd::AsRawFd::as_raw_fd);
        assert_eq!(write(to, b"pipe"), Ok(4));
        assert_eq!(read(from, 10), Ok(b"pipe".to_vec()));
        assert_eq!(send(to, b"pipe", 0), Err(Errno::NOTSOCK));
        assert_eq!(recv(from, 4, 0), Err(Errno::NOTSOCK));
        assert_eq!(several(from, 4, 0, None).0, Err(Errno::NOTSOCK));
        assert_eq!(name(from, true), Err(Errno::NOTSOCK));
        assert_eq!(connect(from, FAR), Err(Errno::NOTSOCK));
        assert_eq!(bind(from, FAR), Err(Errno::NOTSOCK));
        assert_eq!(accept(from, 0), Err(Errno::NOTSOCK));
        assert_eq!(close(-1), Err(Errno::BADF));
    });
}

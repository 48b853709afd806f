//! write() and its kin, sendfile(), splice(), and printing to a connection.

use core::ffi::{c_char, c_void};
use std::io::Seek;
use std::os::fd::AsRawFd;

use libc::{iovec, mmsghdr, msghdr};

use super::*;
use crate::hooks::{print, splice};

/// Not an address of anybody's.
const NOWHERE: *const c_void = 0x10 as *const c_void;

fn vector(data: &[u8]) -> iovec {
    iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() }
}

/// A message of these pieces.
pub(super) fn message(vectors: &mut [iovec]) -> msghdr {
    // SAFETY: an all-zero record is valid.
    let mut message: msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (vectors.as_mut_ptr(), vectors.len());
    message
}

fn sendmsg(descriptor: c_int, message: &msghdr, flags: c_int) -> Said {
    // SAFETY: the message is lent.
    said_long(unsafe { send::sendmsg(descriptor, message, flags) })
}

#[test]
fn vectors_are_written_one_after_another() {
    script(|world| {
        let mut twins = world.twins();
        let pieces = [vector(b"one "), vector(b""), vector(b"two ")];
        // SAFETY: the vectors are lent; where they are not, the call says so.
        let writev = |end, at: *const iovec, number| said_long(unsafe { send::writev(end, at, number) });
        assert_eq!(twins.same(|end| writev(end, pieces.as_ptr(), 3)), Ok(8));
        assert_eq!(twins.same(|end| writev(end, pieces.as_ptr(), 0)), Ok(0));
        assert_eq!(twins.same(|end| writev(end, pieces.as_ptr(), -1)), Err(Errno::INVAL));
        assert_eq!(twins.same(|end| writev(end, pieces.as_ptr(), 1025)), Err(Errno::INVAL));
        let pwritev2 = |end, offset, flags| {
            // SAFETY: as above.
            said_long(unsafe { send::pwritev64v2(end, pieces.as_ptr(), 3, offset, flags) })
        };
        assert_eq!(twins.same(|end| pwritev2(end, -1, 0)), Ok(8));
        assert_eq!(twins.same(|end| pwritev2(end, -1, libc::RWF_NOWAIT)), Ok(8));
        assert_eq!(twins.same(|end| pwritev2(end, 0, 0)), Err(Errno::SPIPE));
        assert_eq!(twins.same(|end| pwritev2(end, -1, 1 << 30)), Err(Errno::OPNOTSUPP));
        assert_eq!(twins.far_read(24), b"one two one two one two ");
        twins.close();
    });
}

#[test]
fn messages_are_sent_and_what_is_no_message_is_not() {
    script(|world| {
        let mut twins = world.twins();
        let mut pieces = [vector(b"first,"), vector(b"second")];
        let whole = message(&mut pieces);
        assert_eq!(twins.same(|end| sendmsg(end, &whole, 0)), Ok(12));
        let many = msghdr { msg_iovlen: 1025, ..whole };
        assert_eq!(twins.same(|end| sendmsg(end, &many, 0)), Err(Errno::MSGSIZE));
        // SAFETY: the address is looked at by the kernel alone.
        let nowhere = |end| said_long(unsafe { send::sendmsg(end, core::ptr::null(), 0) });
        assert_eq!(twins.same(nowhere), Err(Errno::FAULT));
        let mut records = [mmsghdr { msg_hdr: whole, msg_len: 0 }; 2];
        records[1].msg_hdr.msg_iovlen = 1;
        let both = twins.same(|end| {
            let mut records = records;
            // SAFETY: the records are lent.
            let count = said(unsafe { send::sendmmsg(end, records.as_mut_ptr(), 2, 0) });
            (count, records.map(|record| record.msg_len))
        });
        assert_eq!(both, (Ok(2), [12, 6]));
        records[1].msg_hdr.msg_iovlen = 1025;
        // SAFETY: as above.
        let cut = |end| said(unsafe { send::sendmmsg(end, records.clone().as_mut_ptr(), 2, 0) });
        assert_eq!(twins.same(cut), Ok(1), "the second is none");
        records[0].msg_hdr.msg_iovlen = 1025;
        // SAFETY: as above.
        let none = |end| said(unsafe { send::sendmmsg(end, records.clone().as_mut_ptr(), 2, 0) });
        assert_eq!(twins.same(none), Err(Errno::MSGSIZE));
        assert_eq!(twins.far_read(42), b"first,secondfirst,secondfirst,first,second");
        twins.close();
    });
}

#[test]
fn an_address_does_not_matter_to_a_connection() {
    script(|world| {
        let mut twins = world.twins();
        let (elsewhere, length) = record("10.1.1.1:9".parse().unwrap());
        let sendto = |end, flags| {
            // SAFETY: the data and the address are lent.
            said_long(unsafe {
                send::sendto(end, b"data".as_ptr().cast(), 4, flags, (&raw const elsewhere).cast(), length)
            })
        };
        assert_eq!(twins.same(|end| sendto(end, 0)), Ok(4));
        assert_eq!(twins.same(|end| sendto(end, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)), Ok(4));
        assert_eq!(twins.far_read(8), b"datadata");
        twins.close();
    });
}

#[test]
fn what_cannot_be_read_is_not_sent() {
    script(|world| {
        let twins = world.twins();
        // SAFETY: the call says that it cannot read there.
        let nowhere = |end| said_long(unsafe { send::write(end, NOWHERE, 5) });
        assert_eq!(twins.same(nowhere), Err(Errno::FAULT));
        // SAFETY: nothing is read.
        let nothing = |end| said_long(unsafe { send::write(end, NOWHERE, 0) });
        assert_eq!(twins.same(nothing), Ok(0));
        assert_eq!(twins.same(|end| send(end, b"", 0)), Ok(0));
        twins.close();
    });
}

#[test]
fn more_is_waited_for_with_msg_more() {
    script(|world| {
        let mut twins = world.twins();
        assert_eq!(twins.same(|end| send(end, b"head ", libc::MSG_MORE)), Ok(5));
        assert_eq!(twins.same(|end| send(end, b"body", 0)), Ok(4));
        assert_eq!(twins.far_read(9), b"head body");
        twins.close();
    });
}

#[test]
fn nothing_is_sent_after_shutdown() {
    script(|world| {
        let mut twins = world.twins();
        // SAFETY: no memory is lent.
        let shutdown = |end, how| said(unsafe { sockets::shutdown(end, how) });
        assert_eq!(twins.same(|end| shutdown(end, 7)), Err(Errno::INVAL));
        assert_eq!(twins.same(|end| shutdown(end, libc::SHUT_WR)), Ok(0));
        assert_eq!(twins.same(|end| send(end, b"late", libc::MSG_NOSIGNAL)), Err(Errno::PIPE));
        assert_eq!(twins.far_read(1), b"");
        twins.hear(b"still");
        assert_eq!(twins.same(|end| recv(end, 10, 0)), Ok(b"still".to_vec()));
        assert_eq!(twins.same(|end| shutdown(end, libc::SHUT_RD)), Ok(0));
        assert_eq!(twins.same(|end| recv(end, 10, 0)), Ok(vec![]));
        twins.far_shut();
        assert_eq!(twins.same(|end| polled(end, libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP, 0)), 0x2015);
        twins.close();
    });
}

#[test]
fn after_a_reset_calls_say_so_once() {
    script(|world| {
        let mut twins = world.twins();
        twins.far_reset();
        assert_eq!(twins.same(|end| recv(end, 10, 0)), Err(Errno::CONNRESET));
        assert_eq!(twins.same(|end| recv(end, 10, 0)), Ok(vec![]));
        assert_eq!(twins.same(|end| send(end, b"late", libc::MSG_NOSIGNAL)), Err(Errno::PIPE));
        twins.close();
    });
}

#[test]
fn a_full_queue_is_not_waited_for_and_has_room_again() {
    script(|world| {
        let (descriptor, mut far) = world.dial();
        let data = vec![7; 100_000];
        let mut sent = 0;
        let error = loop {
            match send(descriptor, &data, libc::MSG_DONTWAIT) {
                Ok(count) => sent += count as usize,
                Err(error) => break error,
            }
            assert!(sent < 100 << 20);
        };
        assert_eq!(error, Errno::AGAIN);
        assert_eq!(polled(descriptor, libc::POLLOUT, 0), 0);
        assert_eq!(queued(descriptor, libc::TIOCOUTQ).map(|waiting| waiting > 0), Ok(true));
        let reading = std::thread::spawn(move || (far.read(sent), far));
        // This one waits.
        assert_eq!(send(descriptor, b"end", 0), Ok(3));
        let (received, mut far) = reading.join().unwrap();
        assert!(received.len() == sent && received.iter().all(|&byte| byte == 7));
        assert_eq!(far.read(3), b"end");
        until(|| (queued(descriptor, libc::TIOCOUTQ) == Ok(0)).then_some(()));
        assert_eq!(queued(descriptor, 0x894b), Ok(0), "SIOCOUTQNSD");
        assert_eq!(close(descriptor), Ok(0));
    });
}

#[test]
fn a_call_that_waits_for_room_gives_up_after_its_time() {
    script(|world| {
        let (descriptor, _far) = world.dial();
        let time = libc::timeval { tv_sec: 0, tv_usec: 50_000 };
        assert_eq!(set_option(descriptor, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &time), Ok(0));
        let data = vec![7; 16 << 20];
        let first = write(descriptor, &data).unwrap();
        assert!(first > 0 && (first as usize) < data.len());
        assert_eq!(write(descriptor, &data), Err(Errno::AGAIN));
        let mut vectors = [vector(&data), vector(&data)];
        assert_eq!(sendmsg(descriptor, &message(&mut vectors), 0), Err(Errno::AGAIN));
        assert_eq!(close(descriptor), Ok(0));
    });
}

#[test]
fn files_are_sent() {
    script(|world| {
        let mut twins = world.twins();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        let number = file.as_raw_fd();
        let sendfile = |end, offset: Option<&mut i64>, length| {
            let offset = offset.map_or(core::ptr::null_mut(), |offset| &raw mut *offset);
            // SAFETY: the offset is lent.
            said_long(unsafe { send::sendfile64(end, number, offset, length) })
        };
        let sent = twins.same(|end| {
            let mut offset = 3;
            (sendfile(end, Some(&mut offset), 4), offset)
        });
        assert_eq!(sent, (Ok(4), 7));
        assert_eq!(twins.same(|end| sendfile(end, Some(&mut -1), 4)), Err(Errno::INVAL));
        assert_eq!(twins.same(|end| sendfile(end, Some(&mut 10), 4)), Ok(0));
        let from_position = twins.same(|end| {
            (&file).seek(std::io::SeekFrom::Start(8)).unwrap();
            (sendfile(end, None, 100), (&file).stream_position().unwrap())
        });
        assert_eq!(from_position, (Ok(2), 10));
        // SAFETY: no memory is lent.
        let bad = |end| said_long(unsafe { send::sendfile(end, -1, core::ptr::null_mut(), 4) });
        assert_eq!(twins.same(bad), Err(Errno::BADF));
        assert_eq!(twins.far_read(6), b"345689");
        twins.close();
    });
}

/// A pipe's ends: to read, and to write.
fn pipe() -> [c_int; 2] {
    let (read, write) = rustix::pipe::pipe().unwrap();
    [read, write].map(std::os::fd::IntoRawFd::into_raw_fd)
}

fn spliced(from: c_int, to: c_int, length: usize, flags: u32) -> Said {
    let null = core::ptr::null_mut();
    // SAFETY: no memory is lent.
    said_long(unsafe { splice::splice(from, null, to, null, length, flags) })
}

#[test]
fn pipes_are_spliced_into_connections_and_back() {
    script(|world| {
        let mut twins = world.twins();
        let [read, end_of_pipe] = pipe();
        let there = twins.same(|end| {
            assert_eq!(write(end_of_pipe, b"through a pipe"), Ok(14));
            (spliced(read, end, 7, 0), spliced(read, end, 100, libc::SPLICE_F_NONBLOCK))
        });
        assert_eq!(there, (Ok(7), Ok(7)));
        let at_once = libc::SPLICE_F_NONBLOCK;
        assert_eq!(twins.same(|end| spliced(read, end, 7, at_once)), Err(Errno::AGAIN));
        assert_eq!(twins.same(|end| spliced(read, end, 0, 0)), Ok(0));
        assert_eq!(twins.far_read(14), b"through a pipe");
        let far: [Far; 2] = twins.far.each_mut().map(|far| far.take().unwrap());
        let writing = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            far.map(|mut far| {
                far.write(b"and back");
                far
            })
        });
        // That is about the pipe: the connection is waited for.
        let back = twins.same(|end| (spliced(end, end_of_pipe, 100, at_once), recv_pipe(read)));
        twins.far = writing.join().unwrap().map(Some);
        assert_eq!(back, (Ok(8), b"and back".to_vec()));
        let mut offset = 0;
        let with_offset = |end| {
            // SAFETY: the offset is lent.
            said_long(unsafe {
                splice::splice(end, &raw mut offset, end_of_pipe, core::ptr::null_mut(), 7, 0)
            })
        };
        assert_eq!(twins.same(with_offset), Err(Errno::INVAL));
        let pipe_offset = |end| {
            // SAFETY: as above.
            said_long(unsafe { splice::splice(read, &raw mut offset, end, core::ptr::null_mut(), 7, 0) })
        };
        assert_eq!(twins.same(pipe_offset), Err(Errno::SPIPE));
        assert_eq!(twins.same(|end| spliced(end, end, 7, 0)), Err(Errno::INVAL), "no pipe");
        assert_eq!(close(end_of_pipe), Ok(0));
        assert_eq!(twins.same(|end| spliced(read, end, 7, 0)), Ok(0), "the pipe's end");
        twins.far_shut();
        let [read, end_of_pipe] = pipe();
        assert_eq!(twins.same(|end| spliced(end, end_of_pipe, 7, 0)), Ok(0), "the connection's end");
        assert_eq!((close(read), close(end_of_pipe)), (Ok(0), Ok(0)));
        twins.close();
    });
}

fn recv_pipe(pipe: c_int) -> Vec<u8> {
    let mut buffer = [0; 100];
    let length = rustix::io::read(crate::kernel::borrow(pipe), &mut buffer).unwrap();
    buffer[..length].to_vec()
}

#[test]
fn programs_print_to_connections() {
    type Print = unsafe extern "C" fn(c_int, *const c_char, ...) -> c_int;
    type Checked = unsafe extern "C" fn(c_int, c_int, *const c_char, ...) -> c_int;
    script(|world| {
        let mut twins = world.twins();
        // SAFETY: the functions stand for variadic ones of these types.
        let (print, checked) = unsafe {
            (
                core::mem::transmute::<*const (), Print>(print::dprintf as *const ()),
                core::mem::transmute::<*const (), Checked>(print::__dprintf_chk as *const ()),
            )
        };
        // SAFETY: the arguments are those that the format names.
        let printed =
            twins.same(|end| said(unsafe { print(end, c"%s=%d %.1f;".as_ptr(), c"a".as_ptr(), 7, 2.5) }));
        assert_eq!(printed, Ok(8));
        // SAFETY: as above.
        assert_eq!(twins.same(|end| said(unsafe { checked(end, 1, c"%c%ld".as_ptr(), 66, 123_i64) })), Ok(4));
        assert_eq!(twins.far_read(12), b"a=7 2.5;B123");
        // SAFETY: no memory is lent.
        assert_eq!(twins.same(|end| said(unsafe { sockets::shutdown(end, libc::SHUT_WR) })), Ok(0));
        // SAFETY: libc's own value.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        // SAFETY: no arguments.
        assert_eq!(twins.same(|end| said(unsafe { print(end, c"late".as_ptr()) })), Err(Errno::PIPE));
        twins.close();
    });
}

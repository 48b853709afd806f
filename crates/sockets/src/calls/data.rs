//! read, write and their kin.

mod patience;

use rustix::io::Errno;
use rustix::net::sockopt;

use self::patience::{Patience, Rest, wait_for};
use super::hold::Hold;
use super::{Answer, CLOSED, datagram, is_connection, lock_socket};
use crate::kernel::{self};
use crate::lock::Guard;
use crate::memory::{Source, Target};
use crate::process::{Process, WakeOnDrop, before_kernel_wait, moving};
use crate::socket::{SocketId, SocketState};
use crate::sys::{self};

/// The lock, and the socket, or the call's answer.
type Locked<T> = Result<(Guard<'static, Process>, SocketId), Answer<T>>;

/// Locks the socket for a call that reads from it, and which may make it the calling thread's own.
fn lock_to_read<T>(descriptor: i32) -> Locked<T> {
    loop {
        match lock_socket(descriptor) {
            Ok((guard, id)) => {
                if let Some(guard) = moving::served(guard, id, descriptor) {
                    return Ok((guard, id));
                }
            }
            Err(answer) => {
                before_kernel_wait();
                return Err(answer);
            }
        }
    }
}

/// Locks what the call keeps, if its descriptor is not that any more.
fn lock_kept<T>(hold: &mut Hold) -> Option<Locked<T>> {
    match hold.lock() {
        Some((guard, id)) if is_connection(&guard, id) => Some(Ok((guard, id))),
        Some(_) => Some(Err(Answer::error(Errno::NOTCONN))),
        None if hold.elsewhere().is_some() => Some(Err(Answer::Kernel)),
        None => None,
    }
}

/// What recv() with MSG_OOB says of a connection at user level; urgent data that has come has reset it (tcp_recv_urg() in
/// net/ipv4/tcp.c).
fn has_no_urgent(has_come: bool, descriptor: i32) -> Errno {
    let is_apart = has_come && sockopt::socket_oobinline(kernel::borrow(descriptor)) == Ok(false);
    if is_apart { Errno::NOTCONN } else { Errno::INVAL }
}

/// recv() with MSG_* `flags`; read() has none. It waits for what SO_RCVLOWAT says, but for no more than `most`. A call that receives
/// several times keeps by `hold` what it waited for: [`Hold::elsewhere`] is what the kernel is to be asked about then.
pub(crate) fn receive(
    hold: &mut Hold,
    descriptor: i32,
    target: Target<'_>,
    flags: i32,
    most: usize,
) -> Answer<usize> {
    let (mut guard, id) = match lock_kept(hold).unwrap_or_else(|| lock_to_read(descriptor)) {
        Ok(locked) => locked,
        Err(answer) => return answer,
    };
    if !is_connection(&guard, id) {
        drop(guard);
        return receive_datagram(descriptor, target, flags);
    }
    if flags & libc::MSG_OOB != 0 {
        return Answer::error(has_no_urgent(guard.stack.socket(id).urgent_unread, descriptor));
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Answer::error(Errno::AGAIN);
    }
    guard.stack.socket_mut(id).catch_up();
    let since = sys::handlers_run();
    let (wanted, plausible) = (target.length(), target.is_plausible());
    if !plausible && !target.is_possible() {
        return Answer::error(Errno::FAULT);
    }
    let peek = flags & libc::MSG_PEEK != 0;
    let rest = Rest { descriptor, elsewhere: false, flags, wanted, since };
    if peek {
        guard.look_again();
    }
    let nonblocking = flags & libc::MSG_DONTWAIT != 0 || guard.stack.socket(id).nonblocking;
    // As many as a blocking call waits for (sock_rcvlowat() in include/net/sock.h).
    let enough = match flags & libc::MSG_WAITALL {
        _ if nonblocking => 0,
        0 => guard.stack.socket(id).low_water().min(wanted).min(most),
        _ => wanted,
    };
    let (mut done, mut patience, mut pumped) = (0, None, false);
    loop {
        let pending = guard.stack.socket(id).error;
        let outcome = if flags & libc::MSG_TRUNC != 0 && !guard.stack.socket(id).receive.is_empty() {
            Ok(drop_bytes(&mut guard, id, if peek { wanted } else { wanted - done }, peek))
        } else if plausible || guard.stack.socket(id).receive.is_empty() {
            guard.stack.read(id, target.pieces(if peek { 0 } else { done }), peek)
        } else {
            Err(Errno::FAULT)
        };
        match outcome {
            Ok(count) => {
                done = if peek { count } else { done + count };
                hold.unread = guard.stack.unread_told(id);
                // Who peeks sees what is there, as long as more may come.
                let ends = count == 0 || peek && guard.stack.level(id) & crate::interest::bits::RDHUP != 0;
                if ends || done >= enough {
                    WakeOnDrop(&mut guard).0.has_read();
                    return Answer::ok(done);
                }
                if peek {
                    let patience = patience.get_or_insert_with(|| Patience::begin(&guard, id, true, since));
                    let seen = Some(done);
                    guard = match wait_for(guard, (id, descriptor), hold, seen, patience.after(done)) {
                        Ok(guard) => guard,
                        Err(answer) => return rest.of(hold).receive(answer, *patience, target, done),
                    };
                }
            }
            Err(Errno::AGAIN) => {
                if guard.stack.socket(id).wants_kernel_at_once() && guard.hand_over_as_wanted(id) {
                    return match done {
                        0 if hold.is_last() => Answer::error(CLOSED),
                        0 => Answer::Kernel,
                        done => Answer::ok(done),
                    };
                }
                if !pumped {
                    pumped = true;
                    guard.pump_before_waiting();
                    continue;
                }
                if nonblocking {
                    return Answer::error(Errno::AGAIN);
                }
                let patience = patience.get_or_insert_with(|| Patience::begin(&guard, id, true, since));
                guard = match wait_for(guard, (id, descriptor), hold, Some(0), patience.after(done)) {
                    Ok(guard) => guard,
                    Err(answer) => return rest.of(hold).receive(answer, *patience, target, done),
                };
            }
            Err(_) if done > 0 => return done_in_part(&mut guard, id, pending, done),
            Err(error) => return Answer::error(error),
        }
    }
}

/// tcp(7): with MSG_TRUNC the bytes are dropped instead of copied. Returns how many.
fn drop_bytes(process: &mut Process, id: SocketId, wanted: usize, peek: bool) -> usize {
    if peek { wanted.min(process.stack.socket(id).receive.len()) } else { process.stack.consume(id, wanted) }
}

/// The same of a UDP socket.
fn receive_datagram(descriptor: i32, target: Target<'_>, flags: i32) -> Answer<usize> {
    let in_kernel = |flags| {
        let mut message = target.message();
        // SAFETY: no name, no ancillary data, and the buffers that the program lends.
        unsafe { kernel::receive(descriptor, &raw mut message, flags) }
    };
    match datagram::receive(descriptor, target, flags, in_kernel) {
        Answer::Kernel => Answer::Kernel,
        Answer::Done(outcome) => Answer::Done(outcome.map(|received| match received {
            datagram::Received::Here(datagram) => datagram.length,
            datagram::Received::InKernel(length) => length,
        })),
    }
}

/// A part came, or went, before the connection's error, which the next call says.
fn done_in_part(process: &mut Process, id: SocketId, error: Option<Errno>, done: usize) -> Answer<usize> {
    process.stack.socket_mut(id).error = error;
    Answer::ok(done)
}

/// The wait of a writer that has written nothing has ended with that answer: of a connection that another thread has disconnected
/// it takes the pending error, which a reader leaves (sk_stream_error() in net/core/stream.c).
fn ends_waiting(hold: &mut Hold, descriptor: i32, answer: Answer<usize>, flags: i32) -> Answer<usize> {
    match answer {
        Answer::Done(Err(Errno::PIPE)) => {
            let pending = lock_kept::<()>(hold).unwrap_or_else(|| lock_socket(descriptor)).ok();
            match pending.and_then(|(mut guard, id)| guard.stack.take_error(id)) {
                Some(error) => Answer::error(error),
                None => broken_pipe(flags),
            }
        }
        answer => answer,
    }
}

/// A write to a connection that does not take any more raises SIGPIPE, unless MSG_NOSIGNAL says otherwise.
fn broken_pipe(flags: i32) -> Answer<usize> {
    if flags & libc::MSG_NOSIGNAL == 0 {
        // To this thread: one that blocks it keeps it (sk_stream_error() in net/core/stream.c).
        sys::raise_signal(libc::SIGPIPE);
    }
    Answer::error(Errno::PIPE)
}

/// send() with MSG_* `flags`; write() has none. `hold` is as in [`receive`].
pub(crate) fn send(hold: &mut Hold, descriptor: i32, source: Source<'_>, flags: i32) -> Answer<usize> {
    let (mut guard, id) = match lock_kept(hold).unwrap_or_else(|| lock_socket(descriptor)) {
        Ok(locked) => locked,
        Err(answer) => return answer,
    };
    if !is_connection(&guard, id) {
        drop(guard);
        return datagram::send(descriptor, source, None, datagram::ControlMessages::default(), flags);
    }
    guard.keep_up();
    let since = sys::handlers_run();
    let (wanted, plausible) = (source.length(), source.is_plausible());
    if wanted > 0 {
        guard.stack.more_follows(id, flags & libc::MSG_MORE != 0);
    }
    if !plausible && !source.is_possible() {
        return Answer::error(Errno::FAULT);
    }
    let nonblocking = flags & libc::MSG_DONTWAIT != 0 || guard.stack.socket(id).nonblocking;
    let rest = Rest { descriptor, elsewhere: false, flags, wanted, since };
    let mut done = 0;
    let mut patience = None;
    loop {
        // A connection that was being opened when the call began is looked at again when it is open.
        if done == 0 && wanted > 0 && needs_kernel(&guard, id, flags) {
            let outcome = guard.hand_over(id);
            drop(guard);
            let answer = outcome.map_or_else(Answer::error, |()| Answer::Kernel);
            return match patience {
                None => answer,
                Some(patience) => rest.of(hold).send(hold, answer, patience, source, 0),
            };
        }
        let pending = guard.stack.socket(id).error;
        let outcome = if plausible {
            guard.stack.write(id, source.pieces(done))
        } else {
            guard.stack.write(id, core::iter::empty()).and(Err(Errno::FAULT))
        };
        match outcome {
            Ok(count) => {
                done += count;
                if done >= wanted || nonblocking {
                    WakeOnDrop(&mut guard).0.output();
                    return Answer::ok(done);
                }
            }
            Err(Errno::AGAIN) if wanted == 0 && guard.stack.socket(id).state == SocketState::Connected => {
                return Answer::ok(0);
            }
            Err(Errno::AGAIN) if nonblocking => return send_after_all(guard, id, source, flags),
            Err(Errno::AGAIN) => {
                guard.pump();
                if guard.stack.level(id) & crate::interest::bits::OUT != 0 {
                    continue;
                }
                let patience = patience.get_or_insert_with(|| Patience::begin(&guard, id, false, since));
                guard = match wait_for(guard, (id, descriptor), hold, None, patience.after(done)) {
                    Ok(guard) => guard,
                    Err(answer) => return rest.of(hold).send(hold, answer, *patience, source, done),
                };
            }
            Err(_) if done > 0 => return done_in_part(&mut guard, id, pending, done),
            Err(Errno::PIPE) => {
                drop(guard);
                return broken_pipe(flags);
            }
            Err(error) => return Answer::error(error),
        }
    }
}

/// Whether a call with these flags is better off with the kernel: the engine has no urgent pointer, and tells nobody when it has read a
/// buffer.
#[inline]
fn needs_kernel(process: &Process, id: SocketId, flags: i32) -> bool {
    if flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY) == 0 {
        return false;
    }
    let socket = process.stack.socket(id);
    let promises = flags & libc::MSG_ZEROCOPY != 0 && socket.settings.zerocopy;
    let writes = socket.state == SocketState::Connected && !socket.write_shut && !process.stack.is_over(id);
    (flags & libc::MSG_OOB != 0 || promises) && writes
}

/// A connection was full: looks whether it is so still, and sends what it takes at once. Nothing has been sent.
fn send_after_all(
    mut guard: Guard<'static, Process>,
    id: SocketId,
    source: Source<'_>,
    flags: i32,
) -> Answer<usize> {
    guard.pump_before_waiting();
    guard.hear_own_end(id);
    match guard.stack.write(id, source.pieces(0)) {
        Ok(count) => {
            WakeOnDrop(&mut guard).0.output();
            Answer::ok(count)
        }
        Err(Errno::PIPE) => {
            drop(guard);
            broken_pipe(flags)
        }
        Err(error) => Answer::error(error),
    }
}

/// sendfile() from the file at `offset`, or from its position if there is none. The bytes go from the file straight into
/// the send queue.
pub(crate) fn send_file(descriptor: i32, file: i32, offset: Option<&mut i64>, count: usize) -> Answer<usize> {
    let mut position = match &offset {
        Some(offset) => match u64::try_from(**offset) {
            Ok(position) => Some(position),
            Err(_) => return Answer::error(Errno::INVAL),
        },
        // What has no position, as a pipe, might be waited for (splice_direct_to_actor() in fs/splice.c).
        None if rustix::fs::tell(kernel::borrow(file)) == Err(Errno::SPIPE) => {
            return Answer::error(Errno::INVAL);
        }
        None => None,
    };
    if file < 0 {
        return Answer::error(Errno::BADF);
    }
    let answer = send_from(descriptor, count, false, false, |space| match &mut position {
        Some(position) => {
            let read = rustix::io::pread(kernel::borrow(file), space, *position)?;
            *position += read as u64;
            Ok(read)
        }
        None => rustix::io::read(kernel::borrow(file), space),
    });
    if let (Some(offset), Some(position)) = (offset, position) {
        *offset = position as i64;
    }
    answer
}

/// splice() from a pipe that has something: what is there goes, and no more is waited for. With nothing there, since somebody
/// else has read it, 0. `more` is SPLICE_F_MORE.
pub(crate) fn send_from_pipe(
    descriptor: i32,
    pipe: i32,
    count: usize,
    nonblocking: bool,
    more: bool,
) -> Answer<usize> {
    send_from(descriptor, count, nonblocking, more, |space| match kernel::read_at_once(pipe, space) {
        Err(Errno::AGAIN) => Ok(0),
        outcome => outcome,
    })
}

/// Sends what `produce` writes into the space that it is given, until it has no more. It must not wait: the lock is held. What MSG_MORE has
/// held back goes with it, unless `more` follows.
fn send_from(
    descriptor: i32,
    count: usize,
    dont_wait: bool,
    more: bool,
    mut produce: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
) -> Answer<usize> {
    let mut hold = Hold::new();
    let (mut guard, id) = match lock_socket(descriptor) {
        Ok(locked) => locked,
        Err(answer) => return answer,
    };
    if !is_connection(&guard, id) {
        return Answer::Kernel;
    }
    let since = sys::handlers_run();
    let nonblocking = dont_wait || guard.stack.socket(id).nonblocking;
    let mut done = 0;
    let mut patience = None;
    let outcome = loop {
        match guard.stack.write_with(id, count - done, &mut produce) {
            Ok(0) => break Ok(()),
            Ok(sent) => {
                done += sent;
                guard.stack.more_follows(id, more);
                WakeOnDrop(&mut guard).0.output();
                if done >= count || nonblocking {
                    break Ok(());
                }
            }
            Err(Errno::AGAIN) if !nonblocking => {
                guard.pump();
                if guard.stack.level(id) & crate::interest::bits::OUT != 0 {
                    continue;
                }
                let patience = patience.get_or_insert_with(|| Patience::begin(&guard, id, false, since));
                guard = match wait_for(guard, (id, descriptor), &mut hold, None, patience.after(done)) {
                    Ok(guard) => guard,
                    Err(_) if done > 0 => return Answer::ok(done),
                    // What the number is now is another file's.
                    Err(_) if hold.elsewhere().is_some() => return Answer::error(CLOSED),
                    Err(answer) => return ends_waiting(&mut hold, descriptor, answer, 0),
                };
            }
            Err(error) => break Err(error),
        }
    };
    match outcome {
        Err(Errno::PIPE) if done == 0 => {
            drop(guard);
            broken_pipe(0)
        }
        Err(error) if done == 0 => Answer::error(error),
        _ => Answer::ok(done),
    }
}

/// The error that a connection, or a UDP socket, has to tell, taken (sock_error() in include/net/sock.h).
pub(crate) fn take_error(descriptor: i32) -> Option<Errno> {
    let (mut guard, id) = lock_socket::<()>(descriptor).ok()?;
    guard.pump_before_waiting();
    guard.stack.take_error(id)
}

/// The error is told once more: nobody has heard it.
pub(crate) fn put_back_error(hold: &mut Hold, descriptor: i32, error: Errno) {
    if let Ok((mut guard, id)) = lock_kept::<()>(hold).unwrap_or_else(|| lock_socket(descriptor)) {
        let socket = guard.stack.socket_mut(id);
        (socket.error, socket.error_of_several) = (Some(error), None);
    }
}

/// What an ioctl asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Queue {
    /// FIONREAD: received and not yet read.
    Received,
    /// SIOCOUTQ: written and not acknowledged.
    Unacknowledged,
    /// SIOCOUTQNSD: written and not sent.
    Unsent,
}

/// Bytes in a queue.
pub(crate) fn queued(descriptor: i32, queue: Queue) -> Answer<usize> {
    let (mut process, id) = match lock_socket(descriptor) {
        Ok(locked) => locked,
        Err(answer) => return answer,
    };
    let socket = process.stack.socket(id);
    match socket.state {
        // Whether it listens still its kernel's socket knows: another process may have ended that.
        SocketState::Free | SocketState::Candidate | SocketState::Listening => Answer::Kernel,
        SocketState::Datagram if queue != Queue::Received => Answer::Kernel,
        SocketState::Datagram => {
            drop(process);
            datagram::pending(descriptor)
        }
        _ if queue == Queue::Unacknowledged => {
            process.pump_before_waiting();
            Answer::ok(process.stack.waiting(id).0)
        }
        _ if queue == Queue::Unsent => Answer::ok(process.stack.waiting(id).1),
        _ => {
            process.stack.socket_mut(id).catch_up();
            // Who looks again and again without reading must see what comes.
            if process.stack.socket(id).receive.is_empty() {
                process.pump_before_waiting();
            } else {
                process.look_again();
            }
            Answer::ok(process.stack.socket(id).receive.len())
        }
    }
}

//! read, write and their kin.

use core::time::Duration;

use overfly_engine::Instant;
use overfly_profile::options::Waiting;
use rustix::io::Errno;

use super::hold::Hold;
use super::{Answer, CLOSED, datagram, is_connection, lock_socket};
use crate::kernel::{self, now};
use crate::memory::{Source, Target};
use crate::process::{For, Process, Told, Woken, before_kernel_wait, spin_until, wait};
use crate::socket::{SocketId, State};
use crate::sys::{self, Seen};
use crate::table::{self, Entry};

/// When a call began to wait, and for how long it does: as SO_RCVTIMEO or SO_SNDTIMEO were then, whatever another thread sets meanwhile.
#[derive(Clone, Copy)]
struct Patience {
    started: Instant,
    timeout: Option<Duration>,
}

impl Patience {
    fn begin(process: &Process, id: SocketId, reading: bool) -> Patience {
        let settings = &process.stack.socket(id).settings;
        let timeout = if reading { settings.receive_timeout } else { settings.send_timeout };
        Patience { started: now(), timeout }
    }
}

/// What is left of a call whose connection was handed over while it waited: the kernel's socket has the rest, or will. It goes on here
/// when a part of what it was asked for is done, or when its descriptor was closed.
#[derive(Clone, Copy)]
struct Rest {
    descriptor: i32,
    /// The program has closed its descriptor: this one is the library's, and nothing else of the call can be done with the program's.
    elsewhere: bool,
    flags: i32,
    wanted: usize,
    since: Seen,
}

impl Rest {
    /// As it goes on after a wait.
    fn of(self, hold: &Hold) -> Self {
        let elsewhere = hold.elsewhere();
        Self { descriptor: elsewhere.unwrap_or(self.descriptor), elsewhere: elsewhere.is_some(), ..self }
    }

    /// The wait has ended with that answer: receives into what is not filled yet of `target` if it was for a handover.
    fn receive(
        &self,
        answer: Answer<usize>,
        patience: Patience,
        target: Target<'_>,
        done: usize,
    ) -> Answer<usize> {
        // With MSG_TRUNC nothing is written there.
        let flags = self.flags & (libc::MSG_TRUNC | libc::MSG_PEEK);
        self.go_on(answer, libc::POLLIN, patience, done, |done| {
            let Some(piece) = target.pieces(done).next() else { return Ok(0) };
            kernel::receive_into(self.descriptor, piece, flags)
        })
    }

    /// The same: sends what is left of `source`; what says no more than that is what [`ends_waiting`] says.
    fn send(
        &self,
        answer: Answer<usize>,
        patience: Patience,
        source: Source<'_>,
        done: usize,
    ) -> Answer<usize> {
        if done == 0 && !self.elsewhere {
            return ends_waiting(self.descriptor, answer, self.flags);
        }
        let flags = self.flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let flags = rustix::net::SendFlags::from_bits_retain(flags as u32);
        let answer = self.go_on(answer, libc::POLLOUT, patience, done, |done| {
            let Some(piece) = source.pieces(done).next() else { return Ok(0) };
            rustix::net::send(kernel::borrow(self.descriptor), piece, flags)
        });
        match answer {
            Answer::Done(Err(Errno::PIPE)) => broken_pipe(self.flags),
            answer => answer,
        }
    }

    /// Until all is done or the call may wait no longer. An error is the next call's.
    fn go_on(
        &self,
        answer: Answer<usize>,
        events: i16,
        Patience { started, timeout }: Patience,
        mut done: usize,
        mut step: impl FnMut(usize) -> Result<usize, Errno>,
    ) -> Answer<usize> {
        let moved = matches!(answer, Answer::Kernel);
        // Who peeks finds what it has seen in the kernel, too.
        let peeks = moved && self.flags & libc::MSG_PEEK != 0;
        if (done == 0 || peeks) && !(moved && self.elsewhere) {
            return answer;
        }
        done = if peeks { 0 } else { done };
        if self.elsewhere {
            before_kernel_wait();
        }
        let some = peeks || events == libc::POLLIN && self.flags & libc::MSG_WAITALL == 0;
        let wanted = if done == 0 && some { 1 } else { self.wanted };
        let deadline = timeout.map(|timeout| started + timeout);
        while moved && done < wanted {
            let left = deadline.map(|deadline| deadline.as_micros().saturating_sub(now().as_micros()));
            let mut records = [libc::pollfd { fd: self.descriptor, events, revents: 0 }];
            let outcome = match sys::poll(&mut records, left, self.since) {
                Ok(0) => return if done == 0 { Answer::error(Errno::AGAIN) } else { Answer::ok(done) },
                Ok(_) if done > 0 && records[0].revents & (libc::POLLERR | libc::POLLNVAL) != 0 => break,
                Ok(_) => step(done),
                Err(error) => Err(error),
            };
            match outcome {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::AGAIN) => {}
                Err(error) if done == 0 => return Answer::error(error),
                Err(_) => break,
            }
        }
        Answer::ok(done)
    }
}

/// Waits until a connection may have moved on. `Err` ends the call with that answer.
fn wait_for(
    mut guard: crate::lock::Guard<'static, Process>,
    (id, descriptor): (SocketId, i32),
    hold: &mut Hold,
    reading: bool,
    Patience { started, timeout }: Patience,
    since: Seen,
) -> Result<crate::lock::Guard<'static, Process>, Answer<usize>> {
    guard.leaves_event_loop();
    let spin = spin_until(&guard, if reading { Waiting::Receive } else { Waiting::Send }, started);
    let deadline = timeout.map(|timeout| started + timeout);
    hold.begin(&mut guard, id);
    let (mut guard, woken) =
        wait(guard, For::Sockets(&[id]), &mut [], deadline, spin, since, timeout.is_none());
    let is_open = table::lookup(descriptor) == Entry::Socket(id);
    let is_there = hold.resume(&mut guard, id, is_open);
    if is_open {
        hold.end(&mut guard);
    }
    match woken {
        Woken::Interrupted => Err(Answer::error(Errno::INTR)),
        Woken::TimedOut => Err(Answer::error(Errno::AGAIN)),
        // A handler ran, and the descriptor is not what it was: as long as it may restart the call, the kernel says what it is now.
        Woken::Look if !is_there && sys::interrupted(since, timeout.is_none()) => {
            Err(Answer::error(Errno::INTR))
        }
        // Another thread has handed the connection over.
        Woken::Look if !is_there => Err(Answer::Kernel),
        // Another thread has ended it by connect() to AF_UNSPEC (sk_wait_event() in include/net/sock.h).
        Woken::Look if guard.stack.socket(id).disconnected => Err(Answer::error(Errno::PIPE)),
        Woken::Look => Ok(guard),
    }
}

/// recv() with MSG_* `flags`; read() has none.
pub(crate) fn receive(descriptor: i32, target: Target<'_>, flags: i32) -> Answer<usize> {
    // Before the guard: it goes after it.
    let mut hold = Hold::new();
    let (mut guard, id) = match lock_socket(descriptor) {
        Ok(locked) => locked,
        Err(answer) => {
            before_kernel_wait();
            return answer;
        }
    };
    if !is_connection(&guard, id) {
        drop(guard);
        let in_kernel = |flags| {
            let mut message = target.message();
            // SAFETY: no name, no ancillary data, and the buffers that the program lends.
            unsafe { kernel::receive(descriptor, &raw mut message, flags) }
        };
        return match datagram::receive(descriptor, target, flags, in_kernel) {
            Answer::Kernel => Answer::Kernel,
            Answer::Done(outcome) => Answer::Done(outcome.map(|received| match received {
                datagram::Received::Here(datagram) => datagram.length,
                datagram::Received::InKernel(length) => length,
            })),
        };
    }
    if flags & libc::MSG_OOB != 0 {
        return Answer::error(Errno::INVAL);
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Answer::error(Errno::AGAIN);
    }
    guard.stack.socket_mut(id).catch_up();
    let since = sys::seen();
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
        0 => guard.stack.socket(id).low_water().min(wanted),
        _ => wanted,
    };
    let mut done = 0;
    let mut patience = None;
    let mut pumped = false;
    loop {
        let outcome = if flags & libc::MSG_TRUNC != 0 && !guard.stack.socket(id).receive.is_empty() {
            // tcp(7): with MSG_TRUNC the bytes are dropped instead of copied.
            Ok(if peek {
                wanted.min(guard.stack.socket(id).receive.len())
            } else {
                guard.stack.consume(id, wanted)
            })
        } else if plausible || guard.stack.socket(id).receive.is_empty() {
            guard.stack.read(id, target.pieces(if peek { 0 } else { done }), peek)
        } else {
            Err(Errno::FAULT)
        };
        match outcome {
            Ok(count) => {
                done = if peek { count } else { done + count };
                // Who peeks sees what is there, as long as more may come.
                let ends = count == 0 || peek && guard.stack.level(id) & crate::interest::bits::RDHUP != 0;
                if ends || done >= enough {
                    let told = Told(&mut guard);
                    if told.0.stack.has_output() {
                        // A window update: worth sending when a window's worth was read.
                        told.0.output();
                    }
                    return Answer::ok(done);
                }
                if peek {
                    let patience = *patience.get_or_insert_with(|| Patience::begin(&guard, id, true));
                    guard = match wait_for(guard, (id, descriptor), &mut hold, true, patience, since) {
                        Ok(guard) => guard,
                        Err(answer) => return rest.of(&hold).receive(answer, patience, target, done),
                    };
                    guard.pump();
                }
            }
            Err(Errno::AGAIN) => {
                if guard.stack.socket(id).wants_kernel && guard.hand_over_as_wanted(id) {
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
                let patience = *patience.get_or_insert_with(|| Patience::begin(&guard, id, true));
                guard = match wait_for(guard, (id, descriptor), &mut hold, true, patience, since) {
                    Ok(guard) => guard,
                    Err(answer) => return rest.of(&hold).receive(answer, patience, target, done),
                };
                guard.pump();
            }
            Err(_) if done > 0 => return Answer::ok(done),
            Err(error) => return Answer::error(error),
        }
    }
}

/// The wait of a writer that has written nothing has ended with that answer: of a connection that another thread has disconnected
/// it takes the pending error, which a reader leaves (sk_stream_error() in net/core/stream.c).
fn ends_waiting(descriptor: i32, answer: Answer<usize>, flags: i32) -> Answer<usize> {
    match answer {
        Answer::Done(Err(Errno::PIPE)) => {
            let pending = lock_socket::<()>(descriptor).ok();
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

/// send() with MSG_* `flags`; write() has none.
pub(crate) fn send(descriptor: i32, source: Source<'_>, flags: i32) -> Answer<usize> {
    let mut hold = Hold::new();
    let (mut guard, id) = match lock_socket(descriptor) {
        Ok(locked) => locked,
        Err(answer) => return answer,
    };
    if !is_connection(&guard, id) {
        drop(guard);
        return datagram::send(descriptor, source, None, datagram::Wishes::default(), flags);
    }
    let writes = !guard.stack.is_over(id) && !guard.stack.socket(id).write_shut;
    if flags & libc::MSG_OOB != 0 && writes && guard.stack.socket(id).state == State::Connected {
        // The engine has no urgent pointer: who uses it is better off with the kernel.
        return match guard.hand_over(id) {
            Ok(()) => Answer::Kernel,
            Err(error) => Answer::error(error),
        };
    }
    guard.keep_up();
    guard.stack.more_follows(id, flags & libc::MSG_MORE != 0);
    let since = sys::seen();
    let wanted = source.length();
    let plausible = source.is_plausible();
    if !plausible && !source.is_possible() {
        return Answer::error(Errno::FAULT);
    }
    let nonblocking = flags & libc::MSG_DONTWAIT != 0 || guard.stack.socket(id).nonblocking;
    let rest = Rest { descriptor, elsewhere: false, flags, wanted, since };
    let mut done = 0;
    let mut patience = None;
    loop {
        let outcome = if plausible {
            guard.stack.write(id, source.pieces(done))
        } else {
            guard.stack.write(id, core::iter::empty()).and(Err(Errno::FAULT))
        };
        match outcome {
            Ok(count) => {
                done += count;
                if done >= wanted || nonblocking {
                    Told(&mut guard).0.output();
                    return Answer::ok(done);
                }
            }
            Err(Errno::AGAIN) if wanted == 0 && guard.stack.socket(id).state == State::Connected => {
                return Answer::ok(0);
            }
            Err(Errno::AGAIN) if nonblocking => {
                guard.pump_before_waiting();
                return match guard.stack.write(id, source.pieces(done)) {
                    Ok(count) => {
                        Told(&mut guard).0.output();
                        Answer::ok(count)
                    }
                    Err(error) => Answer::error(error),
                };
            }
            Err(Errno::AGAIN) => {
                guard.pump();
                if guard.stack.level(id) & crate::interest::bits::OUT != 0 {
                    continue;
                }
                let patience = *patience.get_or_insert_with(|| Patience::begin(&guard, id, false));
                guard = match wait_for(guard, (id, descriptor), &mut hold, false, patience, since) {
                    Ok(guard) => guard,
                    Err(answer) => return rest.of(&hold).send(answer, patience, source, done),
                };
                guard.pump();
            }
            Err(_) if done > 0 => return Answer::ok(done),
            Err(Errno::PIPE) => {
                drop(guard);
                return broken_pipe(flags);
            }
            Err(error) => return Answer::error(error),
        }
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
    let answer = send_from(descriptor, count, false, |space| match &mut position {
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
/// else has read it, 0.
pub(crate) fn send_from_pipe(descriptor: i32, pipe: i32, count: usize, nonblocking: bool) -> Answer<usize> {
    send_from(descriptor, count, nonblocking, |space| match kernel::read_at_once(pipe, space) {
        Err(Errno::AGAIN) => Ok(0),
        outcome => outcome,
    })
}

/// Sends what `produce` writes into the space that it is given, until it has no more. It must not wait: the lock is held.
fn send_from(
    descriptor: i32,
    count: usize,
    dont_wait: bool,
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
    let since = sys::seen();
    let nonblocking = dont_wait || guard.stack.socket(id).nonblocking;
    let mut done = 0;
    let mut patience = None;
    let outcome = loop {
        match guard.stack.write_with(id, count - done, &mut produce) {
            Ok(0) => break Ok(()),
            Ok(sent) => {
                done += sent;
                Told(&mut guard).0.output();
                if done >= count || nonblocking {
                    break Ok(());
                }
            }
            Err(Errno::AGAIN) if !nonblocking => {
                guard.pump();
                if guard.stack.level(id) & crate::interest::bits::OUT != 0 {
                    continue;
                }
                let patience = *patience.get_or_insert_with(|| Patience::begin(&guard, id, false));
                guard = match wait_for(guard, (id, descriptor), &mut hold, false, patience, since) {
                    Ok(guard) => guard,
                    Err(_) if done > 0 => return Answer::ok(done),
                    // What the number is now is another file's.
                    Err(_) if hold.elsewhere().is_some() => return Answer::error(CLOSED),
                    Err(answer) => return ends_waiting(descriptor, answer, 0),
                };
                guard.pump();
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
pub(crate) fn put_back_error(descriptor: i32, error: Errno) {
    if let Ok((mut guard, id)) = lock_socket::<()>(descriptor) {
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
        State::Free | State::Candidate | State::Listening => Answer::Kernel,
        State::Datagram if queue != Queue::Received => Answer::Kernel,
        State::Datagram => {
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

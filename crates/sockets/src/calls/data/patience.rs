//! How long a call waits for a stream, and what is left of it when the connection is the kernel's meanwhile.

use core::time::Duration;

use overfly_engine::Instant;
use overfly_profile::options::Waiting;
use rustix::io::Errno;

use super::{broken_pipe, ends_waiting};
use crate::calls::Answer;
use crate::calls::hold::Hold;
use crate::kernel::{self, now};
use crate::memory::{Source, Target};
use crate::process::{For, Process, Woken, before_kernel_wait, spin_until, wait};
use crate::socket::SocketId;
use crate::sys::{self, HandlersRun};
use crate::table::{self, Entry};

/// When a call began to wait, and for how long it does: as SO_RCVTIMEO or SO_SNDTIMEO were then, whatever another thread sets meanwhile.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    started: Instant,
    timeout: Option<Duration>,
}

impl Patience {
    pub(super) fn begin(process: &Process, id: SocketId, reading: bool) -> Patience {
        let settings = &process.stack.socket(id).settings;
        let timeout = if reading { settings.receive_timeout } else { settings.send_timeout };
        Patience { started: now(), timeout }
    }
}

/// What is left of a call whose connection was handed over while it waited: the kernel's socket has the rest, or will. It goes on here
/// when a part of what it was asked for is done, or when its descriptor was closed.
#[derive(Clone, Copy)]
pub(super) struct Rest {
    pub(in crate::calls) descriptor: i32,
    /// The program has closed its descriptor: this one is the library's, and nothing else of the call can be done with the program's.
    pub(in crate::calls) elsewhere: bool,
    pub(in crate::calls) flags: i32,
    pub(in crate::calls) wanted: usize,
    pub(in crate::calls) since: HandlersRun,
}

impl Rest {
    /// As it goes on after a wait.
    pub(super) fn of(self, hold: &Hold) -> Self {
        let elsewhere = hold.elsewhere();
        Self { descriptor: elsewhere.unwrap_or(self.descriptor), elsewhere: elsewhere.is_some(), ..self }
    }

    /// The wait has ended with that answer: receives into what is not filled yet of `target` if it was for a handover.
    pub(super) fn receive(
        &self,
        answer: Answer<usize>,
        patience: Patience,
        target: Target<'_>,
        done: usize,
    ) -> Answer<usize> {
        // With MSG_TRUNC nothing is written there.
        let flags = self.flags & (libc::MSG_TRUNC | libc::MSG_PEEK);
        let peeks = flags & libc::MSG_PEEK != 0;
        self.go_on(answer, libc::POLLIN, patience, done, |done| {
            let mut count = 0;
            for piece in target.pieces(done) {
                let length = piece.len();
                match kernel::receive_into(self.descriptor, piece, flags) {
                    Ok(some) => {
                        count += some;
                        // Who peeks would see the same once more.
                        if some < length || peeks {
                            break;
                        }
                    }
                    Err(error) if count == 0 => return Err(error),
                    // The next call's.
                    Err(_) => break,
                }
            }
            Ok(count)
        })
    }

    /// The same: sends what is left of `source`; what says no more than that is what [`ends_waiting`] says.
    pub(super) fn send(
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
pub(super) fn wait_for(
    mut guard: crate::lock::Guard<'static, Process>,
    (id, descriptor): (SocketId, i32),
    hold: &mut Hold,
    reading: bool,
    Patience { started, timeout }: Patience,
    since: HandlersRun,
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

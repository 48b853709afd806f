//! How long a call waits for a stream, and what is left of it when the connection is the kernel's meanwhile.

use core::time::Duration;

use overfly_engine::Instant;
use overfly_profile::options::Waiting;
use rustix::io::Errno;

use super::{broken_pipe, ends_waiting};
use crate::calls::Answer;
use crate::calls::hold::Hold;
use crate::interest::bits;
use crate::kernel::{self, now};
use crate::lock::Guard;
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
    /// Something has been read, seen or written already: a signal ends the call with that, although its handler restarts calls.
    has_part: bool,
    /// Handlers that have run and do not end the call.
    since: HandlersRun,
}

impl Patience {
    pub(super) fn begin(process: &Process, id: SocketId, reading: bool, since: HandlersRun) -> Patience {
        let settings = &process.stack.socket(id).settings;
        let timeout = if reading { settings.receive_timeout } else { settings.send_timeout };
        Patience { started: now(), timeout, has_part: false, since }
    }

    /// The call has done so many bytes now.
    pub(super) fn after(&mut self, done: usize) -> &mut Patience {
        self.has_part = done > 0;
        self
    }

    /// A signal whose handler restarts calls does not end this one (signal(7)).
    fn restarts(&self) -> bool {
        self.timeout.is_none() && !self.has_part
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
        if self.goes_on_here(&answer) && peeks && self.flags & libc::MSG_WAITALL != 0 {
            return self.peek_all(patience, target);
        }
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
        hold: &mut Hold,
        answer: Answer<usize>,
        patience: Patience,
        source: Source<'_>,
        done: usize,
    ) -> Answer<usize> {
        if done == 0 && !self.goes_on_here(&answer) {
            return ends_waiting(hold, self.descriptor, answer, self.flags);
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

    /// Whether a call that has done nothing yet would not be the same call in the kernel: its descriptor is closed, or another thread has set
    /// O_NONBLOCK since it began.
    fn goes_on_here(&self, answer: &Answer<usize>) -> bool {
        matches!(answer, Answer::Kernel) && (self.elsewhere || kernel::is_nonblocking(self.descriptor))
    }

    /// Peeks until there is all of it, or the end. What is there already is no news to poll(): it is looked for more now and then.
    fn peek_all(&self, Patience { started, timeout, .. }: Patience, target: Target<'_>) -> Answer<usize> {
        const NOW_AND_THEN_US: u64 = 10_000;
        before_kernel_wait();
        let deadline = timeout.map(|timeout| started + timeout);
        let mut events = [libc::pollfd { fd: self.descriptor, events: libc::POLLRDHUP, revents: 0 }];
        loop {
            let mut message = target.message();
            // SAFETY: no name, no ancillary data, and the buffers that the program lends.
            let outcome = unsafe { kernel::receive(self.descriptor, &raw mut message, self.flags) };
            let left = deadline.map_or(u64::MAX, |end| end.as_micros().saturating_sub(now().as_micros()));
            let is_all = match outcome {
                Ok(count) => count == 0 || count >= self.wanted,
                Err(error) => error != Errno::AGAIN,
            };
            if is_all || events[0].revents != 0 || left == 0 {
                return Answer::Done(outcome);
            }
            if let Err(error) = sys::poll(&mut events, Some(left.min(NOW_AND_THEN_US)), self.since) {
                return Answer::Done(outcome.map_err(|_| error));
            }
        }
    }

    /// Until all is done or the call may wait no longer. An error is the next call's.
    fn go_on(
        &self,
        answer: Answer<usize>,
        events: i16,
        Patience { started, timeout, .. }: Patience,
        mut done: usize,
        mut step: impl FnMut(usize) -> Result<usize, Errno>,
    ) -> Answer<usize> {
        let moved = matches!(answer, Answer::Kernel);
        // Who peeks finds what it has seen in the kernel, too.
        let peeks = moved && self.flags & libc::MSG_PEEK != 0;
        if (done == 0 || peeks) && !self.goes_on_here(&answer) {
            return answer;
        }
        done = if peeks { 0 } else { done };
        before_kernel_wait();
        let some = peeks || events == libc::POLLIN && self.flags & libc::MSG_WAITALL == 0;
        let wanted = if done == 0 && some { 1 } else { self.wanted };
        let deadline = timeout.map(|timeout| started + timeout);
        while moved && done < wanted {
            // Urgent data ends a call that has read something before it (tcp_recvmsg_locked() in Linux, net/ipv4/tcp.c).
            if events == libc::POLLIN && done > 0 && sys::is_at_mark(self.descriptor) {
                break;
            }
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

/// A handler has run, and the kernel would begin the call anew (SA_RESTART): whether it has nothing to do now, and another thread has set
/// O_NONBLOCK meanwhile.
fn would_not_wait(process: &Process, id: SocketId, reads: bool) -> bool {
    let socket = process.stack.socket(id);
    let wanted = if reads { bits::IN | bits::RDHUP } else { bits::OUT };
    let has_some = reads && !socket.receive.is_empty();
    socket.nonblocking && !has_some && process.stack.level(id) & (wanted | bits::ERR | bits::HUP) == 0
}

/// Waits until a connection may have moved on; who reads has `seen` so many bytes of what waits there. `Err` ends the call with that answer.
pub(super) fn wait_for(
    mut guard: Guard<'static, Process>,
    (id, descriptor): (SocketId, i32),
    hold: &mut Hold,
    seen: Option<usize>,
    patience: &mut Patience,
) -> Result<Guard<'static, Process>, Answer<usize>> {
    guard.leaves_event_loop();
    let (Patience { started, timeout, .. }, restarts) = (*patience, patience.restarts());
    let spin = spin_until(&guard, if seen.is_some() { Waiting::Receive } else { Waiting::Send }, started);
    let deadline = timeout.map(|timeout| started + timeout);
    loop {
        hold.begin(&mut guard, id);
        let (next, woken) =
            wait(guard, For::Sockets(&[id]), &mut [], deadline, spin, patience.since, restarts);
        guard = next;
        let is_open = table::lookup(descriptor) == Entry::Socket(id);
        let is_there = hold.resume(&mut guard, id, is_open);
        if is_open {
            hold.end(&mut guard);
        }
        // Who has been woken in vain so often takes what came all the same (tcp_recvmsg_locked() in Linux, net/ipv4/tcp.c).
        let news = is_there && seen.is_some_and(|seen| guard.stack.socket(id).receive.len() > seen);
        match woken {
            Woken::Interrupted | Woken::TimedOut if news => return Ok(guard),
            Woken::Interrupted => return Err(Answer::error(Errno::INTR)),
            Woken::TimedOut => return Err(Answer::error(Errno::AGAIN)),
            // A handler ran, and the descriptor is not what it was: as long as it may restart the call, the kernel says what it is now.
            Woken::Look if !is_there && sys::interrupted(patience.since, restarts) => {
                return Err(Answer::error(Errno::INTR));
            }
            // Another thread has handed the connection over.
            Woken::Look if !is_there => return Err(Answer::Kernel),
            // Another thread has ended it by connect() to AF_UNSPEC (sk_wait_event() in include/net/sock.h).
            Woken::Look if guard.stack.socket(id).disconnected => return Err(Answer::error(Errno::PIPE)),
            Woken::Look => {}
        }
        let begins_anew = restarts && sys::begins_anew(patience.since);
        if restarts {
            patience.since = patience.since.restarted();
        }
        guard.pump_for_all(Some(id));
        if begins_anew && would_not_wait(&guard, id, seen.is_some()) {
            return Err(Answer::error(Errno::AGAIN));
        }
        if seen.is_none() || !guard.stack.has_too_little(id) {
            return Ok(guard);
        }
    }
}

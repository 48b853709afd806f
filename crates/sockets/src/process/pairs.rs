//! Connections within the host that the kernel takes over: both ends at once, as their frames never passed the kernel. Who wants
//! it asks the other process for its end, and gives both to the broker; the other waits meanwhile. A thread answers, so the
//! program need not be in a call of ours. It exists while there are links to other processes.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};

use overfly_broker::PairEnd;
use overfly_link::memif::{OtherEnd, Word};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::Process;
use super::contexts::at;
use super::family::{ALL_SIGNALS_BUT_LIBCS, REQUEST_LEN, ends, request};
use super::handover::{shut_beforehand, to_file};
use crate::kernel::{self, now};
use crate::numbers;
use crate::socket::{Arrival, SocketId};
use crate::sys;
use crate::table::{self, Entry};

/// How long the other process may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The connection of which nobody speaks.
pub(super) const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
/// What is said about a connection, and its ends as who says it sees them.
const NOTE_LEN: usize = 1 + REQUEST_LEN;

/// What is said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verb {
    /// The connection is to be the kernel's: give your end.
    Ask = 1,
    /// Here it is, as a [`PairEnd`]. What became of it will be told.
    Give = 2,
    /// It cannot be moved now.
    Refuse = 3,
    /// The ends that were given are the kernel's.
    Done = 4,
    /// They are what they were.
    Failed = 5,
    /// There is no such end any more.
    Gone = 6,
    /// Would you accept a connection that waits where we both listen?
    Offer = 7,
    /// Yes, a thread waits for one; the other answer is [`Verb::Refuse`].
    Wait = 8,
    /// Then take this one, which is the kernel's.
    Accept = 9,
}

impl Verb {
    const ALL: [Self; 9] = [
        Self::Ask,
        Self::Give,
        Self::Refuse,
        Self::Done,
        Self::Failed,
        Self::Gone,
        Self::Offer,
        Self::Wait,
        Self::Accept,
    ];
}

/// Who accepts a connection in this process's place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Heir {
    /// Whom the broker finds at this address.
    Listener(SocketAddr),
    /// The process that said so, which listens at this address.
    Neighbor([u8; 6], SocketAddr),
}

/// One end on its way into the kernel.
struct End {
    id: SocketId,
    /// The kernel's socket that becomes it: the connection's own, or a new one if nobody has accepted it yet.
    socket: Backing,
    file: OwnedFd,
    /// The descriptor that has the end's port in the kernel, if that is another one.
    holder: Option<i32>,
}

impl End {
    fn as_pair_end(&self) -> PairEnd<'_> {
        let socket = self.socket.as_fd();
        let holder = match self.holder {
            Some(descriptor) => kernel::borrow(descriptor),
            None => socket,
        };
        PairEnd { socket, file: self.file.as_fd(), holder }
    }
}

enum Backing {
    Own(i32),
    New(OwnedFd),
}

impl Backing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(descriptor) => kernel::borrow(*descriptor),
            Self::New(socket) => socket.as_fd(),
        }
    }
}

/// An end that another process has got, and has not told yet what became of it.
pub(super) struct PendingTransfer {
    to: [u8; 6],
    end: End,
}

/// What this process waits to be told.
pub(super) struct Asked {
    whom: [u8; 6],
    local: SocketAddr,
    remote: SocketAddr,
    answer: Option<Reply>,
}

enum Reply {
    /// The other end, as a [`PairEnd`].
    End([OwnedFd; 3]),
    Gone,
    Refused,
    /// The other process has moved both.
    Moved,
}

impl Process {
    /// The kernel goes on with both ends of a connection within the host. `heir`: who listens there now accepts this one.
    pub(super) fn hand_over_within_host(&mut self, id: SocketId, heir: Option<Heir>) -> Result<(), String> {
        let outcome = self.try_hand_over_within_host(id, heir);
        self.finish_giving();
        outcome
    }

    fn try_hand_over_within_host(&mut self, id: SocketId, heir: Option<Heir>) -> Result<(), String> {
        let Some((local, remote, next_hop)) = self.stack.way(id) else {
            return self.move_last_end(id, heir);
        };
        match self.loopback().and_then(|loopback| loopback.other_end(next_hop.0)) {
            None => self.move_last_end(id, heir),
            Some(OtherEnd::Own) => {
                // What is on its way from one end to the other arrives.
                for _ in 0..2 {
                    self.pump();
                }
                let Some(other) = self.stack.within_host(remote, local) else {
                    return self.move_last_end(id, heir);
                };
                let (end, others) = (self.end(id)?, self.end(other)?);
                self.move_ends(&[end.as_pair_end(), others.as_pair_end()])?;
                self.end_moved(others, None);
                self.end_moved(end, heir);
                Ok(())
            }
            Some(OtherEnd::Peer(peer)) => {
                let [socket, file, holder] = match self.ask_for(peer, local, remote) {
                    Some(Reply::End(end)) => end,
                    Some(Reply::Moved) => return Ok(()),
                    Some(Reply::Gone) => {
                        self.pump();
                        return self.move_last_end(id, heir);
                    }
                    Some(Reply::Refused) => {
                        return Err("the other process's end cannot be moved".to_owned());
                    }
                    None => return Err("the other process does not answer".to_owned()),
                };
                self.pump();
                let moved = self.end(id).and_then(|end| {
                    let [socket, file, holder] = [&socket, &file, &holder].map(AsFd::as_fd);
                    self.move_ends(&[end.as_pair_end(), PairEnd { socket, file, holder }])?;
                    Ok(end)
                });
                self.tell(peer, if moved.is_ok() { Verb::Done } else { Verb::Failed }, local, remote, &[]);
                self.end_moved(moved?, heir);
                Ok(())
            }
        }
    }

    /// The other end is no more, or neither is.
    pub(super) fn move_last_end(&mut self, id: SocketId, heir: Option<Heir>) -> Result<(), String> {
        let end = self.end(id)?;
        self.move_ends(&[end.as_pair_end()])?;
        self.end_moved(end, heir);
        Ok(())
    }

    pub(super) fn move_ends(&mut self, ends: &[PairEnd<'_>]) -> Result<(), String> {
        // A child that has had no stack yet knows no broker.
        let client = self.take_client().map_err(|error| error.to_string())?;
        self.session.client.insert(client).hand_over_pair(ends).map_err(|error| error.to_string())
    }

    /// This process's end of a connection, as the broker takes it.
    fn end(&mut self, id: SocketId) -> Result<End, String> {
        self.stack.socket_mut(id).catch_up();
        let exported = self.stack.export(now(), id).or_else(|| self.stack.export_ended(id));
        let Some((connection, socket)) = exported else {
            return Err(format!("it is {:?}", self.stack.socket(id).state));
        };
        let file = to_file(&connection, socket)?;
        let backing = if socket.references > 0 {
            if socket.read_shut {
                shut_beforehand(socket.descriptor);
            }
            Backing::Own(socket.descriptor)
        } else {
            Backing::New(
                kernel::new_tcp_socket(socket.v6, SocketFlags::CLOEXEC).map_err(|error| error.to_string())?,
            )
        };
        let local = connection.local();
        let holder = self.stack.listener_at(local).or_else(|| self.shared_ports.holder(local));
        Ok(End { id, socket: backing, file, holder })
    }

    /// The end is the kernel's.
    fn end_moved(&mut self, end: End, heir: Option<Heir>) {
        if self.stack.is_over(end.id) && self.stack.socket(end.id).pending_error().is_none() {
            // The kernel has one to tell, as of a reset that has just come.
            let _ = rustix::net::sockopt::socket_error(end.socket.as_fd());
        }
        let remote = self.stack.way(end.id).map_or(self.stack.socket(end.id).remote, |way| way.1);
        match end.socket {
            // The program has closed it: so does the kernel, when all is said, and calls that wait for it are over.
            Backing::New(socket) if !self.stack.socket(end.id).queued && heir.is_none() => {
                let closed = self.stack.socket(end.id);
                let (held, calls) = ((end.id, closed.generation), closed.holders);
                if calls > 0 {
                    self.elsewhere().add(held, numbers::make_internal(socket), calls);
                }
                self.stack.depart(end.id);
            }
            Backing::Own(_) => {
                if let Some(others) = self.stack.socket(end.id).dissolved_by_several {
                    others.leave_to_kernel();
                }
                self.moved(end.id);
            }
            Backing::New(socket) => {
                let passed = match heir {
                    Some(Heir::Listener(listener)) => {
                        self.pass_on(listener, remote, socket.as_fd());
                        true
                    }
                    Some(Heir::Neighbor(heir, listener)) => {
                        self.can_tell(heir, Verb::Accept, remote, listener, &[socket.as_fd()])
                    }
                    None => false,
                };
                if !passed {
                    let descriptor = numbers::move_up(socket).into_raw_fd();
                    if self.stack.replace_queued(end.id, Arrival { descriptor, remote }) {
                        table::enter(descriptor, Entry::Internal);
                    } else {
                        sys::close(descriptor);
                    }
                }
                self.stack.depart(end.id);
            }
        }
    }

    /// Another process's end of a connection whose ends, seen from here, are these.
    fn ask_for(&mut self, peer: [u8; 6], local: SocketAddr, remote: SocketAddr) -> Option<Reply> {
        let is_it = |asked: &Asked| (asked.whom, asked.local, asked.remote) == (peer, local, remote);
        self.within_host.asked.push(Asked { whom: peer, local, remote, answer: None });
        self.tell(peer, Verb::Ask, local, remote, &[]);
        self.wait_for_words(PATIENCE, |process| {
            let is_answered = |asked: &Asked| is_it(asked) && asked.answer.is_some();
            process.within_host.asked.iter().any(is_answered) || process.has_left(peer)
        });
        let asked = &mut self.within_host.asked;
        let place = asked.iter().position(is_it)?;
        let answer = asked.swap_remove(place).answer;
        answer.or_else(|| self.is_gone(peer).then_some(Reply::Gone))
    }

    /// Whether another process will say nothing any more.
    fn has_left(&mut self, peer: [u8; 6]) -> bool {
        self.loopback().is_none_or(|loopback| loopback.has_left(peer))
    }

    /// Whether another process has gone. What it sent before has been taken then, and its connections have ended.
    fn is_gone(&mut self, peer: [u8; 6]) -> bool {
        const PAUSE_US: u64 = 1_000;
        if !self.has_left(peer) {
            return false;
        }
        let end = now() + PATIENCE;
        // It lets go of the words before the frames: the kernel closes one descriptor after the other.
        while now() < end {
            while self.pump() > 0 {}
            let Some(loopback) = self.loopback() else { return true };
            loopback.check_peers();
            if loopback.other_end(peer).is_none() {
                self.pump();
                return true;
            }
            let _ = sys::poll(&mut [], Some(PAUSE_US), sys::handlers_run());
        }
        false
    }

    /// Hears and answers, with the lock held, until `is_over` or too much time has passed.
    fn wait_for_words(&mut self, patience: Duration, is_over: impl Fn(&mut Self) -> bool) {
        let end = now() + patience;
        loop {
            self.hear_words();
            let time = now();
            if is_over(self) || time >= end {
                return;
            }
            let Some(doorbell) = self.loopback().map(|loopback| loopback.calls_doorbell().as_raw_fd()) else {
                return;
            };
            let mut polled = [libc::pollfd { fd: doorbell, events: libc::POLLIN, revents: 0 }];
            let left = end.as_micros() - time.as_micros();
            let _ = sys::poll(&mut polled, Some(left), sys::handlers_run());
        }
    }

    /// Who does not hear it has gone, or will not answer.
    pub(super) fn tell(
        &mut self,
        peer: [u8; 6],
        verb: Verb,
        local: SocketAddr,
        remote: SocketAddr,
        descriptors: &[BorrowedFd<'_>],
    ) {
        self.can_tell(peer, verb, local, remote, descriptors);
    }

    /// As [`Process::tell`]. False if nobody will hear it.
    pub(super) fn can_tell(
        &mut self,
        peer: [u8; 6],
        verb: Verb,
        local: SocketAddr,
        remote: SocketAddr,
        descriptors: &[BorrowedFd<'_>],
    ) -> bool {
        let mut note = [verb as u8; NOTE_LEN];
        note[1..].copy_from_slice(&request(local, remote));
        self.loopback().is_some_and(|loopback| loopback.say(peer, &note, descriptors).is_ok())
    }

    /// Answers all that has been said.
    fn hear_words(&mut self) {
        while let Some(word) = self.loopback().and_then(|loopback| loopback.hear(NOTE_LEN)) {
            self.answer(word);
        }
    }

    fn answer(&mut self, Word { from, bytes, descriptors }: Word) {
        let Ok([verb, addresses @ ..]) = <[u8; NOTE_LEN]>::try_from(bytes) else { return };
        let Some(verb) = Verb::ALL.into_iter().find(|&known| known as u8 == verb) else { return };
        let [remote, local] = ends(&addresses);
        let is_about = |asked: &Asked| (asked.whom, asked.local, asked.remote) == (from, local, remote);
        match verb {
            Verb::Ask => self.give(from, local, remote),
            Verb::Offer => {
                let verb = if self.would_accept(local) { Verb::Wait } else { Verb::Refuse };
                self.tell(from, verb, local, remote, &[]);
            }
            Verb::Accept => {
                if let Ok([socket]) = <[OwnedFd; 1]>::try_from(descriptors) {
                    self.accept_given(local, remote, socket);
                }
            }
            // What it gets is handed over later: perhaps something is being handed over now.
            Verb::Wait if self.within_host.offered.contains(&(from, remote)) => {
                self.within_host.willing.push((from, remote));
            }
            Verb::Wait => {}
            Verb::Give | Verb::Refuse | Verb::Gone => {
                if let Some(asked) = self.within_host.asked.iter_mut().find(|asked| is_about(asked)) {
                    asked.answer = Some(match (verb, <[OwnedFd; 3]>::try_from(descriptors)) {
                        (Verb::Give, Ok(end)) => Reply::End(end),
                        (Verb::Gone, _) => Reply::Gone,
                        _ => Reply::Refused,
                    });
                } else if verb == Verb::Give {
                    // Too late.
                    self.tell(from, Verb::Failed, local, remote, &[]);
                }
            }
            Verb::Done | Verb::Failed => {
                let given = &mut self.within_host.given;
                let place = given.iter().position(|given| {
                    given.to == from
                        && self.stack.way(given.end.id).is_some_and(|way| (way.0, way.1) == (local, remote))
                });
                let Some(place) = place else { return };
                let given = given.swap_remove(place);
                if verb == Verb::Done {
                    self.statistics.handovers += 1;
                    self.end_moved(given.end, None);
                    // Whoever else wanted it has it.
                    self.within_host.asked.iter_mut().filter(|asked| is_about(asked)).for_each(|asked| {
                        asked.answer = Some(Reply::Moved);
                    });
                }
            }
        }
    }

    /// Gives this process's end away, and waits until it is told what became of it.
    fn give(&mut self, to: [u8; 6], local: SocketAddr, remote: SocketAddr) {
        let mut asked = self.within_host.asked.iter();
        let asked_too = asked.any(|asked| (asked.local, asked.remote) == (local, remote));
        let Some(id) = self.stack.within_host(local, remote) else {
            return self.tell(to, Verb::Gone, local, remote, &[]);
        };
        // Both want it: the passive end gives.
        if asked_too && !self.stack.socket(id).passive {
            return;
        }
        match self.end(id) {
            Ok(end) => {
                let PairEnd { socket, file, holder } = end.as_pair_end();
                self.tell(to, Verb::Give, local, remote, &[socket, file, holder]);
                self.within_host.given.push(PendingTransfer { to, end });
            }
            Err(_) => self.tell(to, Verb::Refuse, local, remote, &[]),
        }
    }

    /// Answers what other processes say, and waits until they have told what became of what they got.
    fn serve_words(&mut self) {
        self.pump();
        self.hear_words();
        self.finish_giving();
        self.give_to_willing();
        self.tell_sleepers();
    }

    /// Nobody uses an end that another process has got before it has told what became of it.
    fn finish_giving(&mut self) {
        if !self.within_host.given.is_empty() {
            self.wait_for_words(PATIENCE, |process| process.within_host.given.is_empty());
            // Who has not told by now has died, or is stopped.
            self.within_host.given.clear();
        }
    }

    /// There are links to other processes: the thread that answers them begins.
    pub(super) fn start_to_answer(&mut self) -> Result<(), Errno> {
        let Some(doorbell) = self.loopback().map(|loopback| loopback.calls_doorbell()) else { return Ok(()) };
        let doorbell = numbers::make_internal(rustix::io::fcntl_dupfd_cloexec(doorbell, 0)?);
        let context = self.context;
        let mask = sys::set_signal_mask(ALL_SIGNALS_BUT_LIBCS);
        let thread = std::thread::Builder::new()
            .name("overfly-host".to_owned())
            .spawn(move || serve(&doorbell, context));
        sys::set_signal_mask(mask);
        thread.map(drop).map_err(|_| Errno::AGAIN)
    }
}

/// The thread.
fn serve(doorbell: &OwnedFd, context: usize) {
    loop {
        let mut polled = [libc::pollfd { fd: doorbell.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        if sys::poll(&mut polled, None, sys::handlers_run()).is_ok() && polled[0].revents != 0 {
            let mut process = at(context);
            if !process.answers() {
                return;
            }
            process.serve_words();
        }
    }
}

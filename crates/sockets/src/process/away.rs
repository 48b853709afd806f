//! A broker that stands as a service ends, and another one takes its place: an upgrade, a restart, a crash.
//!
//! * One that is told to end says so, and waits. Then connections move into the kernel as for a fork or an exec, with every byte, those too
//!   that wait to be accepted or were closed and have something to deliver yet. One that was killed says nothing, and there is nobody to
//!   move them: they end, and their peers hear a reset, by the sockets that this process has still.
//! * Meanwhile the process is *away*. What belongs to the interface is closed. Listeners and UDP sockets stay what they are, and hear what
//!   their kernel sockets hear; what the program opens is the kernel's.
//! * It is looked every second whether there is a broker again, while the program waits, too: where others listen beside it, nothing would
//!   come that woke it. Its stack gives the process a new engine, in which its listeners and UDP sockets have their places.

use core::net::Ipv4Addr;
use core::time::Duration;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};

use overfly_broker::Error;
use overfly_broker::{Client, Greeted, Parting, Protocol};
use overfly_engine::{Config, Instant};
use overfly_wire::MacAddr;
use rustix::net::SocketFlags;

use super::background::wake_background;
use super::handover::to_file;
use super::sleep::readable;
use super::{Process, bound, kernel, now, socket_descriptor, sys, table};
use crate::any_link::AnyLink;
use crate::numbers;
use crate::socket::{Arrival, Side, SocketId, SocketState};
use crate::table::Entry;

/// How often it is looked whether there is a broker again, and after one has said no.
const PAUSE: Duration = Duration::from_secs(1);
const LONG_PAUSE: Duration = Duration::from_secs(30);
/// After which time it is looked first whether one has answered that was greeted; then after longer and longer.
const ANSWER_PAUSE: Duration = Duration::from_millis(1);
/// How often a program that never waits hears what its broker says.
const HEARING_PAUSE: Duration = Duration::from_millis(10);
/// How long handshakes that are under way are waited for when the broker ends: nobody can move them.
const HANDSHAKES: Duration = Duration::from_millis(200);
/// How often it is looked for their last segments, in microseconds.
const HANDSHAKES_PAUSE_US: u64 = 1000;
/// No card has it.
const NO_DEVICE: MacAddr = MacAddr([2, 0, 0, 0, 0, 0]);

/// There is no broker.
pub(super) struct Away {
    /// When it is looked for one next.
    next: Instant,
    /// One has said no, and the reason was told.
    told: bool,
    /// One that has not answered yet, and after which time it is looked again whether it has.
    greeted: Option<(Greeted, Duration)>,
}

impl Away {
    fn begin() -> Away {
        Away { next: now() + PAUSE, told: false, greeted: None }
    }
}

/// Why there is no stack.
pub(super) enum NoStack {
    /// There is no broker, and will be one again, perhaps.
    Yet,
    /// It cannot be had.
    Ever(String),
}

impl From<String> for NoStack {
    fn from(reason: String) -> Self {
        Self::Ever(reason)
    }
}

impl Process {
    /// There is no broker at the moment.
    #[inline]
    pub(crate) const fn is_away(&self) -> bool {
        self.session.away.is_some()
    }

    /// A call that perhaps never waits hears what the broker says. True if the process has left it: no socket is what it was.
    #[inline]
    pub(crate) fn hear_broker_sometimes(&mut self) -> bool {
        self.session.client.is_some()
            && self.pumped - self.session.heard >= HEARING_PAUSE
            && self.hear_broker()
    }

    /// Hears what the broker says. For calls that hold no socket: true if the process has left the broker, and no socket is what it was.
    #[cold]
    pub(crate) fn hear_broker(&mut self) -> bool {
        self.session.heard = self.pumped;
        self.take_given_connections();
        let Some(parting) = self.session.client.as_ref().and_then(Client::parting) else { return false };
        if !self.session.may_return() {
            return false;
        }
        let carries = self.stack.transport(Side::Network).is_some_and(AnyLink::is_interfaces);
        if carries {
            self.leave_broker(parting);
        } else {
            self.let_go_of_link();
        }
        carries
    }

    /// The broker ends, or has ended.
    fn leave_broker(&mut self, parting: Parting) {
        if parting == Parting::Farewell {
            self.evacuate();
        }
        for id in self.stack.held() {
            if self.stack.socket(id).state == SocketState::Connecting {
                self.connect_in_kernel(id);
            }
        }
        // Of one that has said farewell, the broker tells the peers.
        self.stack.lose_network(now(), parting != Parting::Farewell);
        self.after_output();
        self.let_go_of_link();
        self.session.away = Some(Away::begin());
        // Nobody sleeps on what is closed.
        self.wake_set(None);
        wake_background();
    }

    /// Has the kernel go on with all that the network has here.
    fn evacuate(&mut self) {
        for (local, _) in self.stack.places(Side::Network) {
            if let Some(client) = &mut self.session.client {
                let _ = client.unlisten(Protocol::Tcp, local, true);
            }
        }
        let end = now() + HANDSHAKES;
        self.pump();
        while self.stack.handshakes() > 0 && self.pumped < end {
            let mut links: Vec<_> = self.link_descriptors.iter().copied().map(readable).collect();
            let _ = sys::poll(&mut links, Some(HANDSHAKES_PAUSE_US), sys::handlers_run());
            self.pump();
        }
        self.stack.promote_deferred();
        let mut lost = None;
        for id in self.stack.held() {
            if self.stack.socket(id).state == SocketState::Connected && !self.stack.is_over(id) {
                match self.try_hand_over(id) {
                    Ok(()) => self.statistics.handovers += 1,
                    Err(reason) => lost = Some(reason),
                }
            }
        }
        for id in self.stack.orphans() {
            lost = self.hand_over_nobodys(id).err().or(lost);
        }
        // Each that moves gives others time to come.
        let mut tries = self.stack.unaccepted().len() * 2 + 16;
        while let Some(&id) = self.stack.unaccepted().first().filter(|_| tries > 0) {
            tries -= 1;
            if let Err(reason) = self.hand_over_nobodys(id) {
                lost = Some(reason);
                self.stack.abandon(id);
                self.pump();
            }
        }
        if let Some(reason) = lost {
            self.statistics.handovers_refused += 1;
            kernel::complain(&format!("connections end with their broker: {reason}"));
        } else if let Some(client) = &mut self.session.client {
            // No peer has to be told of an end.
            let _ = client.finish();
        }
    }

    /// The kernel goes on with a connection that has no descriptor: one that waits to be accepted does so still, and calls that wait for it
    /// go on with one of the library's.
    pub(super) fn hand_over_nobodys(&mut self, id: SocketId) -> Result<(), String> {
        self.pump();
        let Some((connection, socket)) = self.stack.export(now(), id) else {
            return Err(format!("it is {:?}", self.stack.socket(id).state));
        };
        let (queued, remote, file) = (socket.queued, connection.remote(), to_file(&connection, socket)?);
        let (held, calls) = ((id, socket.generation), socket.holders);
        let backing = kernel::new_tcp_socket(socket.v6, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        let backing = numbers::move_up(backing.map_err(|error| error.to_string())?);
        let client = self.session.client.as_mut().ok_or("there is no broker")?;
        client.hand_over(backing.as_fd(), file.as_fd()).map_err(|error| error.to_string())?;
        self.statistics.handovers += 1;
        if queued {
            let descriptor = backing.into_raw_fd();
            if self.stack.replace_queued(id, Arrival { descriptor, remote }) {
                table::enter(descriptor, Entry::Internal);
            } else {
                sys::close(descriptor);
            }
        } else if calls > 0 {
            self.elsewhere().add(held, numbers::make_internal(backing), calls);
        }
        self.stack.depart(id);
        Ok(())
    }

    /// Everything that belongs to the broker and its interface is closed.
    fn let_go_of_link(&mut self) {
        self.settle();
        self.watch_everywhere();
        let network = self.stack.transport(Side::Network).map_or_else(Vec::new, AnyLink::numbers);
        let private = self.broker_descriptor().into_iter().chain(self.watch_doorbell());
        // The broker may have them open still: by themselves they would not leave.
        for descriptor in private.chain(network.iter().copied()) {
            self.sets.prepared().for_each(|(_, set)| set.leave(descriptor));
        }
        self.link_descriptors.retain(|descriptor| !network.contains(descriptor));
        if let Some(link) = self.stack.replace_network(AnyLink::away()) {
            link.disown();
        }
        self.stop_showing();
        self.session.kept = None;
        if let Some(client) = self.session.client.take() {
            table::enter(client.as_fd().as_raw_fd(), Entry::Kernel);
        }
        self.stack.hands_over(false);
        bound::falls_silent(self.context);
    }

    /// A stack without a network: there is no broker to begin with.
    pub(super) fn start_away(&mut self) -> Result<(), NoStack> {
        self.carry(Side::Network, Config::new(NO_DEVICE, Ipv4Addr::UNSPECIFIED, 32), AnyLink::away())?;
        self.session.away = Some(Away::begin());
        self.watch_new_links();
        Ok(())
    }

    /// When it is looked next whether there is a broker again.
    #[inline]
    pub(super) fn looks_for_broker(&self) -> Option<Instant> {
        self.session.away.as_ref().map(|away| away.next)
    }

    /// Looks whether there is a broker again, if it is time.
    #[cold]
    pub(super) fn look_for_broker(&mut self) {
        let Some(away) = self.session.away.as_mut().filter(|away| away.next <= self.pumped) else { return };
        away.next = self.pumped + PAUSE;
        let outcome = match self.find_broker() {
            Ok(false) => return,
            Ok(true) => self.try_start(),
            Err(error) => Err(self.session.no_stack(&error)),
        };
        match outcome {
            Ok(()) => self.come_back(),
            Err(NoStack::Yet) => {}
            Err(NoStack::Ever(reason)) => {
                let Some(away) = &mut self.session.away else { return };
                away.next = self.pumped + LONG_PAUSE;
                if !core::mem::replace(&mut away.told, true) {
                    kernel::complain(&format!("there is a broker again, but not for this process: {reason}"));
                }
            }
        }
    }

    /// Whether there is a broker that answers. One that has just begun, or is stopped, is not waited for.
    fn find_broker(&mut self) -> Result<bool, Error> {
        let begun = self.session.away.as_mut().and_then(|away| away.greeted.take());
        let (greeted, pause) = match begun {
            Some(begun) => begun,
            None => (self.session.greet()?, ANSWER_PAUSE),
        };
        if greeted.has_answered() {
            self.session.client = Some(self.welcomed(greeted)?);
            return Ok(true);
        }
        if let Some(away) = &mut self.session.away {
            away.next = self.pumped + pause;
            away.greeted = Some((greeted, (pause * 2).min(PAUSE)));
        }
        Ok(false)
    }

    /// There is a stack again: its broker hears where this process listens, and where its UDP sockets are.
    fn come_back(&mut self) {
        self.session.away = None;
        self.stack.move_in();
        for (local, id) in self.stack.places(Side::Network) {
            let descriptor = socket_descriptor(&self.stack, id);
            let Some(client) = &mut self.session.client else { return };
            match client.listen_as(kernel::borrow(descriptor), Protocol::Tcp, local, true) {
                Err(error) if self.session.is_parting(&error) => return,
                // Who accepts there tries again, and says why it cannot be.
                Err(_) => self.part(id),
                Ok(()) => self.follow_listener(id, descriptor),
            }
        }
        let mut placed = Vec::new();
        for id in self.stack.datagram_sockets() {
            let places = self.stack.datagrams(id).map_or_else(Vec::new, |part| part.places.clone());
            for place in places {
                let end = (place.local, place.remote);
                if !placed.contains(&end) && self.ask_for_datagrams(id, end).is_err() {
                    self.displace_datagram(id);
                    break;
                }
                placed.push(end);
            }
        }
    }
}

//! What the machine of [`crate::sleepers`] sees of a process, and does there.

use core::time::Duration;

use overfly_engine::Instant;
use overfly_link::Link;
use rustix::thread::futex;

use super::background::wake_background;
use super::kernel_set::KernelSets;
use super::loopback::WithinHost;
use super::stalled::Stalled;
use super::timers::Timers;
use super::{Process, signal};
use crate::any_link::AnyLink;
use crate::interest::SetId;
use crate::kernel::now;
use crate::sleepers::{Calls, Sleepers, Timer, World};
use crate::socket::SocketId;
use crate::stack::Stack;

/// What the machine sees of a process.
pub(super) struct Around<'a> {
    stack: &'a mut Stack<AnyLink>,
    sets: &'a mut KernelSets,
    /// The broker has said something that nobody has heard.
    unheard: bool,
    /// When it is looked whether there is a broker again, or given back what was kept for the next connection.
    due: Option<Instant>,
    looked: Instant,
    within_host: &'a WithinHost,
    stalled: Option<Stalled>,
    timers: &'a Timers,
}

impl World for Around<'_> {
    fn now(&self) -> Instant {
        now()
    }

    fn looked(&self) -> Instant {
        self.looked
    }

    /// For the stack's timers, for room on the link, or for what is due.
    fn next_look(&self) -> Option<Instant> {
        const FULL_LINK_PAUSE: Duration = Duration::from_millis(1);
        if self.unheard {
            return Some(now());
        }
        if is_blocked(self.stack) {
            return Some(now() + FULL_LINK_PAUSE);
        }
        let stalled = self.stalled.map(|stalled| stalled.until);
        let others = self.within_host.next_deadline().into_iter().chain(stalled).chain(self.due);
        others.chain(self.stack.next_deadline()).min()
    }

    fn arm(&mut self) -> bool {
        self.stack.arm()
    }

    fn take_news(&mut self) -> bool {
        let (news, noted) = (self.stack.take_news(), self.stack.take_noted());
        news || noted
    }

    fn is_urgent(&self) -> bool {
        self.stack.has_urgent()
    }

    fn awaits(&mut self, socket: SocketId) {
        self.stack.awaits(socket);
    }

    fn is_awaited(&self, socket: SocketId) -> bool {
        self.stack.is_awaited(socket)
    }

    fn is_ready(&self, set: SetId) -> bool {
        self.stack.set_is_ready(set)
    }

    fn is_joined(&self, set: SetId) -> bool {
        self.sets[set].prepared
    }

    fn is_exposed(&self, set: SetId) -> bool {
        self.sets[set].exposed
    }

    fn is_shared(&self, set: SetId) -> bool {
        self.sets.shared || self.sets[set].inherited
    }

    fn signal_exposed(&mut self) {
        self.sets.signal_exposed(self.stack);
    }

    fn signal_of(&self, set: SetId) -> Option<i32> {
        Some(self.sets[set].kick).filter(|&kick| kick >= 0)
    }

    fn leaves(&mut self, signal: i32, set: SetId) {
        self.sets[set].leave(signal);
    }

    fn make_signal(&mut self) -> Option<i32> {
        signal::make()
    }

    fn raise(&mut self, signal: i32) {
        signal::raise(signal);
    }

    fn lower(&mut self, signal: i32) {
        signal::lower(signal);
    }

    fn call(&mut self, calls: &Calls) {
        call(calls);
    }

    fn ring(&mut self, timer: Timer, after: Duration) {
        self.timers.ring(timer, after);
    }

    fn silence(&mut self, timer: Timer) {
        self.timers.silence(timer);
    }

    fn wake_background(&mut self) {
        wake_background();
    }
}

impl Process {
    /// The machine, and what is around it.
    #[inline]
    pub(super) fn machine(&mut self) -> (&mut Sleepers, Around<'_>) {
        let expires = self.session.kept.as_ref().and_then(|kept| kept.next_expiry());
        let due = self.looks_for_broker().into_iter().chain(expires).min();
        let unheard = self.session.has_unheard();
        let Self { sleepers, stack, sets, pumped, within_host, stalled, timers, .. } = self;
        let (looked, stalled) = (*pumped, *stalled);
        let around = Around { stack, sets, unheard, due, looked, within_host, stalled, timers };
        (sleepers, around)
    }
}

/// Threads wake that sleep each on a futex.
pub(super) fn call(calls: &Calls) {
    for word in calls.words() {
        let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
    }
}

/// There is output that the link had no frames for, or that the device did not take.
pub(super) fn is_blocked(stack: &Stack<AnyLink>) -> bool {
    stack.has_output() || stack.transports().any(AnyLink::is_busy)
}

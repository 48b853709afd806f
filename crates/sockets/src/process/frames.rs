//! Frames move: what arrived is taken, timers run, what is due leaves.

use core::time::Duration;

use super::session::Session;
use super::{Process, around, contexts, spin};
use crate::interest::NONE;
use crate::kernel::now;
use crate::socket::{Side, SocketId};
use crate::stack::EndsAre;

impl Process {
    /// Takes what has arrived, runs timers, sends what is due.
    pub(crate) fn pump(&mut self) -> usize {
        self.pumped = now();
        if self.session.away.is_some() {
            self.look_for_broker();
        }
        self.heed_kick();
        let received = self.stack.pump(self.pumped);
        if self.sleepers.acceptors() > 0 {
            self.show_acceptors(0);
        }
        self.sleepers.took_frames(received);
        if self.within_host.is_busy() {
            self.look_within_host();
        }
        if self.stack.is_leaving() {
            self.give_away();
        }
        if received > 0 || self.stalled.is_some() {
            self.look_at_queues();
        }
        self.after_output();
        if self.sleepers.any() {
            self.tell_of_news();
        }
        self.show_sometimes();
        received
    }

    /// A call would have to wait: perhaps what it waits for has arrived. Programs that poll without ever waiting make
    /// progress by this; one with an event loop pumps there, and not here every time.
    pub(crate) fn pump_before_waiting(&mut self) {
        if self.stack.is_running() && !(self.event_loop && self.has_just_looked()) {
            self.pump();
        }
    }

    fn has_just_looked(&self) -> bool {
        const EVENT_LOOP_PAUSE: Duration = Duration::from_micros(50);
        now() - self.pumped < EVENT_LOOP_PAUSE
    }

    /// An epoll set that the program waits for has just had the chance to say that the kernel's socket has something.
    pub(crate) fn has_just_heard_of(&self, id: SocketId) -> bool {
        let watched = self.event_loop && self.waits_in_set && self.stack.socket(id).interests != NONE;
        watched && self.has_just_looked()
    }

    /// A call that need not wait, in a program that perhaps never waits: it must hear all the same that its peer is gone.
    pub(crate) fn keep_up(&mut self) {
        const PAUSE: Duration = Duration::from_millis(1);
        let hears_in_its_loop = self.event_loop && spin::loops();
        if !hears_in_its_loop && self.stack.is_running() && now() - self.pumped >= PAUSE {
            self.pump();
        }
    }

    /// A call asks what has come and takes nothing: if the last look for frames is a while ago, there may be more.
    pub(crate) fn look_again(&mut self) {
        const PAUSE: Duration = Duration::from_millis(1);
        if self.stack.is_running() && now() - self.pumped >= PAUSE {
            self.pump();
        }
    }

    /// Sends what is due.
    pub(crate) fn transmit(&mut self) {
        self.heed_kick();
        self.stack.transmit(now());
        if self.stack.holds_back() {
            self.flush();
        } else {
            self.after_output();
        }
    }

    /// The calling thread waits for events, in epoll_wait (`in_set`), poll or select: what it sends before that can wait.
    pub(crate) fn waits_for_events(&mut self, in_set: bool) {
        (self.event_loop, self.waits_in_set) = (true, in_set);
        self.judge_event_loop();
        spin::begins_to_loop();
    }

    /// Sends what is due here and now, and takes what it brings.
    fn flush(&mut self) {
        self.stack.flush();
        self.pump();
    }

    /// Another thread may be kicking the device for this one, too.
    #[inline]
    pub(super) fn heed_kick(&mut self) {
        self.stack.kick_underway = self.stack.defers && contexts::runs_errand(self.context);
    }

    pub(super) fn after_output(&mut self) {
        contexts::set_pending(self.context, false);
        let Self { stack, session: Session { client, kept, .. }, descriptors, options, .. } = self;
        let (mut over, mut released) = (Vec::new(), Vec::new());
        let reuse = options.tcp_shared_local_ports_reuse_fast != 0;
        stack.disconnected(self.pumped, |side, local, remote, are, descriptor| {
            if descriptor >= 0 {
                released.push(descriptor);
            }
            if side != Side::Network || are == EndsAre::Others {
                return;
            }
            let ends = (local.port(), remote);
            let (waits, is_barred) =
                (are == EndsAre::InTimeWait && !reuse, are == EndsAre::LongInTimeWait && !reuse);
            let is_kept = kept.as_mut().is_some_and(|kept| {
                if is_barred {
                    kept.forget(ends);
                }
                !is_barred && kept.ended(now(), ends, waits)
            });
            if !is_kept {
                over.push(ends);
            }
        });
        let ended = over.len();
        if let Some(kept) = kept {
            over.extend(core::iter::from_fn(|| kept.expired(self.pumped, false)));
        }
        let rests = over.len() > ended && kept.as_ref().is_some_and(|kept| kept.next_expiry().is_none());
        let any = !over.is_empty();
        if let Some(client) = client
            && any
        {
            let _ = client.disconnect_flows(&over);
        }
        for descriptor in released {
            descriptors.release(descriptor);
        }
        if any {
            self.sweep_ports(rests);
        }
    }

    /// A call has read: the window that has opened is worth a segment, and after so much it is time to look for more.
    #[inline]
    pub(crate) fn has_read(&mut self) {
        if self.stack.has_taken_much() {
            self.flush();
        } else if self.stack.has_output() {
            self.output();
        }
    }

    /// A call made output: it goes out now if there is enough of it, or if nothing says that the program will soon wait.
    pub(crate) fn output(&mut self) {
        if !self.event_loop {
            self.leaves_event_loop();
        }
        // Whoever is not the stack's own thread may wait elsewhere.
        let waits = self.event_loop && (self.context == 0 || contexts::own_if_any() == Some(self.context));
        // Beside threads that sleep, only one that waits for events itself leaves it to its next wait.
        let others_wait = self.sleepers.any() && !spin::loops();
        if !waits || self.stack.wants_transmit() || others_wait {
            self.transmit();
        } else if !contexts::is_pending(self.context) {
            contexts::set_pending(self.context, true);
        }
    }

    /// How long a spinning call sleeps before it looks again, in microseconds.
    pub(crate) fn nap_us(&mut self, spins: bool) -> u64 {
        let nap_us = if spins { self.options.sleep_spin_usec } else { 0 };
        self.statistics.naps += u64::from(nap_us > 0);
        nap_us
    }

    /// There is output that the link had no frames for, or that the device did not take.
    pub(super) fn is_blocked(&self) -> bool {
        around::is_blocked(&self.stack)
    }

    /// Something that was closed is still to be delivered.
    pub(super) fn unfinished(&self) -> bool {
        self.stack.is_running() && (self.stack.unfinished() > 0 || self.stack.is_leaving())
    }
}

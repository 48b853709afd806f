//! The thread that moves a process's frames while its own threads are elsewhere: the part that the softirq has in the kernel.
//!
//! A stack does nothing by itself: frames, timers and output wait for the next call. This thread moves what there is, and watches the
//! links as a sleeping thread of the program's would, when nobody else does ([`crate::sleepers`] says when). Then it only waits for a
//! timer again.
//!
//! It holds a stack's lock for as long as a call does, and never waits for it. What it does counts as nobody's look at what comes
//! (`link/xdp/pulse.rs`): a program that computes gets no new connections that another one could take.

use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use core::time::Duration;

use overfly_engine::Instant;
use overfly_link::Link;

use super::family::ALL_SIGNALS_BUT_LIBCS;
use super::sleep::readable;
use super::{Process, contexts, signal};
use crate::kernel::{self, now};
use crate::sleepers::{Timer, World};
use crate::socket::Side;
use crate::sys;

/// How long an event loop may be elsewhere and yet do without such a thread, with EF_BACKGROUND=2.
const LATE: Duration = Duration::from_millis(20);
/// How long it waits for a lock that somebody holds.
const PAUSE_US: u64 = 1000;
/// Its stack, in bytes: a program may have a limit.
const STACK_LEN: usize = 256 << 10;

/// The thread runs.
static RUNS: AtomicBool = AtomicBool::new(false);
/// An eventfd that ends its sleep, or -1.
static WAKE_EVENT: AtomicI32 = AtomicI32::new(-1);

/// The thread looks again what it is to do.
pub(super) fn wake_background() {
    let event = WAKE_EVENT.load(Ordering::Relaxed);
    if event >= 0 {
        signal::raise(event);
    }
}

impl Process {
    /// A context has a stack: the thread looks after it from now on, or once the program turns out to need it.
    pub(super) fn look_after(&mut self) {
        // A thread's stack may be nobody's soon.
        if self.options.background == 1 || contexts::are_several() {
            self.begin_background();
        } else {
            self.background_postponed = self.options.background == 2;
        }
    }

    /// The program waits in its event loop: it needs the thread if it has come late, or has another thread already. A process with one
    /// thread alone is faster: libc's malloc() takes no locks, the kernel counts no references to descriptors.
    #[inline]
    pub(super) fn judge_event_loop(&mut self) {
        if self.background_postponed {
            let looked = self.pumped;
            let came_late = looked > Instant::from_micros(0) && now() - looked >= LATE;
            if came_late || !sys::is_single_threaded() {
                self.begin_background();
            }
        }
    }

    /// The program sends or waits elsewhere than in an event loop: what it sent must not wait for its next call.
    #[inline]
    pub(crate) fn leaves_event_loop(&mut self) {
        self.event_loop = false;
        if self.background_postponed {
            self.begin_background();
        }
    }

    /// The thread looks after this context from now on. One that cannot be had is said.
    #[cold]
    pub(super) fn begin_background(&mut self) {
        self.background_postponed = false;
        if self.sleepers.background.is_there {
            return;
        }
        let make = |()| self.timers.make(Timer::Background).map_err(|errno| errno.to_string());
        match may_begin().and_then(|()| begin()).and_then(make) {
            Ok(_) => {
                self.sleepers.background.is_there = true;
                wake_background();
            }
            Err(error) => kernel::complain(&format!(
                "connections stand still while the program makes no calls: no thread for them ({error})"
            )),
        }
    }

    /// What the thread does in a context: what it is to poll, and until when.
    fn attend_in_background(&mut self, polled: &mut Vec<libc::pollfd>) -> Option<Instant> {
        let timer = self.timers.descriptor(Timer::Background)?;
        let (sleepers, mut world) = self.machine();
        let watches = sleepers.attend(&mut world);
        polled.push(readable(timer));
        if !watches {
            return None;
        }
        if let Some(link) = self.stack.transport_mut(Side::Network) {
            link.look_unseen(true);
        }
        self.pump();
        if let Some(link) = self.stack.transport_mut(Side::Network) {
            link.look_unseen(false);
        }
        self.hand_over_urgent(None);
        let next_look = self.look_for_unseen();
        self.tell_sleepers();
        let (sleepers, mut world) = self.machine();
        let armed = sleepers.arm(&mut world);
        let until = world.next_look();
        let at_once = !armed || self.stack.owes();
        polled.extend(self.link_descriptors.iter().copied().map(readable));
        polled.extend(self.broker_descriptor().into_iter().chain(self.watch_doorbell()).map(readable));
        self.sleepers.has_attended(self.pumped);
        if at_once { Some(now()) } else { until.into_iter().chain(next_look).min() }
    }
}

/// A thread's first allocation takes 64 MB of address space (HEAP_MAX_SIZE in glibc's malloc/arena.c), which a limit may not leave.
fn may_begin() -> Result<(), String> {
    match rustix::process::getrlimit(rustix::process::Resource::As).current {
        None => Ok(()),
        Some(_) => Err("it takes address space, which is limited: RLIMIT_AS".to_owned()),
    }
}

/// The thread is there.
fn begin() -> Result<(), String> {
    if RUNS.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let mask = sys::set_signal_mask(ALL_SIGNALS_BUT_LIBCS);
    let begun = match signal::make() {
        None => Err("no eventfd".to_owned()),
        Some(event) => {
            WAKE_EVENT.store(event, Ordering::Relaxed);
            let thread = std::thread::Builder::new()
                .name("overfly-softirq".to_owned())
                .stack_size(STACK_LEN)
                .spawn(run);
            thread.map(drop).map_err(|error| {
                WAKE_EVENT.store(-1, Ordering::Relaxed);
                signal::close(event);
                error.to_string()
            })
        }
    };
    sys::set_signal_mask(mask);
    if begun.is_err() {
        RUNS.store(false, Ordering::Relaxed);
    }
    begun
}

/// In the child of a fork there is none.
pub(super) fn forget_thread() {
    RUNS.store(false, Ordering::Relaxed);
    let event = WAKE_EVENT.swap(-1, Ordering::Relaxed);
    if event >= 0 {
        signal::close(event);
    }
}

fn run() {
    let event = WAKE_EVENT.load(Ordering::Relaxed);
    let mut polled = Vec::new();
    loop {
        let rang = core::mem::take(&mut polled);
        signal::lower(event);
        polled.push(readable(event));
        let mut until: Option<Instant> = None;
        let mut busy = false;
        for context in contexts::all() {
            let Some(mut process) = contexts::visit(context) else {
                busy = true;
                continue;
            };
            process.heed_all(&rang);
            until = process.attend_in_background(&mut polled).into_iter().chain(until).min();
            drop(process);
            contexts::visited(context);
        }
        let pause = until.map(|until| until.as_micros().saturating_sub(now().as_micros()));
        let pause = pause.into_iter().chain(busy.then_some(PAUSE_US)).min();
        let _ = sys::poll(&mut polled, pause, sys::handlers_run());
    }
}

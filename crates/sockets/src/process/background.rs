//! The thread that moves a process's frames while its own threads are elsewhere: the part that the softirq has in the kernel.
//!
//! A stack does nothing by itself: frames, timers and output wait for the next call. So whoever is the last to leave the library sets a
//! timer to [`RELIEF`] from then, once in [`FRESH`] at most: it does not ring, and this thread does not run, while the program comes
//! back. When it rings, this thread takes the program's place: it moves what there is, and watches the links as a sleeping thread of
//! the program's would, until a call comes. Then it only waits for the timer again. Where a thread of the program sleeps in the
//! library, that one watches, and no timer is set.
//!
//! It holds a stack's lock for as long as a call does, and never waits for it. What it does counts as nobody's look at what comes
//! (`link/xdp/pulse.rs`): a program that computes gets no new connections that another one could take.

use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use core::time::Duration;
use std::os::fd::IntoRawFd;

use overfly_engine::Instant;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::family::ALL_SIGNALS_BUT_LIBCS;
use super::sleep::readable;
use super::{Process, contexts, signal};
use crate::kernel::{self, now};
use crate::socket::Side;
use crate::sys;

/// How long the program may be elsewhere before this thread takes its place.
const RELIEF: Duration = Duration::from_millis(2);
/// For how long a timer that was set serves who leaves the library next. Its ring is early for them by no more, and then set again.
const FRESH: Duration = Duration::from_millis(1);
/// How long an event loop may be elsewhere and yet do without such a thread, with EF_BACKGROUND=2.
const LATE: Duration = Duration::from_millis(20);
/// How long it waits for a lock that somebody holds.
const PAUSE_US: u64 = 1000;
/// Its stack, in bytes: a program may have a limit.
const STACK_LEN: usize = 256 << 10;

/// The thread runs.
static RUNS: AtomicBool = AtomicBool::new(false);
/// An eventfd that ends its sleep, or -1.
static BELL: AtomicI32 = AtomicI32::new(-1);

/// What it is to one context.
pub(super) struct Background {
    /// A timerfd. Without it the thread does not look after this context.
    timer: Option<i32>,
    /// It begins once the program turns out to need it (EF_BACKGROUND=2).
    postponed: bool,
    /// When it rings, if it is set.
    rings: Option<Instant>,
    /// Who leaves from then on sets it anew.
    stale_at: Instant,
    /// It watches the links: nobody has been in the library since the timer rang.
    watches: bool,
    /// It is this thread that releases the lock.
    leaves: bool,
}

impl Background {
    pub(super) const fn new() -> Self {
        Self {
            timer: None,
            postponed: false,
            rings: None,
            stale_at: Instant::from_micros(0),
            watches: false,
            leaves: false,
        }
    }

    /// A thread of the program's leaves the library, in which it looked for frames at `looked`, and no other one sleeps there.
    #[inline]
    pub(super) fn is_called(&self, looked: Instant) -> bool {
        self.timer.is_some() && (self.watches || self.rings.is_none() || looked >= self.stale_at)
    }

    fn set(&mut self, at: Instant, time: Instant) {
        let Some(timer) = self.timer else { return };
        let pause = (at - time).max(Duration::from_micros(1));
        let value = Timespec { tv_sec: pause.as_secs().cast_signed(), tv_nsec: pause.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        self.rings = Some(at);
        self.stale_at = time + FRESH;
        let _ = timerfd_settime(kernel::borrow(timer), TimerfdTimerFlags::empty(), &once);
    }

    /// It watches no more.
    fn stand_back(&mut self) {
        if core::mem::take(&mut self.watches) {
            signal::raise(BELL.load(Ordering::Relaxed));
        }
    }

    /// In the child of a fork there is no such thread.
    pub(super) fn forget(self) {
        self.timer.into_iter().for_each(signal::close);
    }
}

impl Process {
    /// A context has a stack: the thread looks after it from now on, or once the program turns out to need it.
    pub(super) fn look_after(&mut self) {
        // A thread's stack may be nobody's soon.
        if self.options.background == 1 || contexts::are_several() {
            self.begin_background();
        } else {
            self.sleepers.background.postponed = self.options.background == 2;
        }
    }

    /// The program waits in its event loop: it needs the thread if it has come late, or has another thread already. A process with one
    /// thread alone is faster: libc's malloc() takes no locks, the kernel counts no references to descriptors.
    #[inline]
    pub(super) fn judge_event_loop(&mut self) {
        if self.sleepers.background.postponed {
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
        if self.sleepers.background.postponed {
            self.begin_background();
        }
    }

    /// The thread looks after this context from now on. One that cannot be had is said.
    #[cold]
    fn begin_background(&mut self) {
        self.sleepers.background.postponed = false;
        if self.sleepers.background.timer.is_some() {
            return;
        }
        let begun = may_begin().and_then(|()| begin()).and_then(|()| {
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            timerfd_create(TimerfdClockId::Monotonic, flags).map_err(|errno| errno.to_string())
        });
        match begun {
            Ok(timer) => {
                self.sleepers.background.timer = Some(kernel::make_internal(timer).into_raw_fd());
                signal::raise(BELL.load(Ordering::Relaxed));
            }
            Err(error) => kernel::complain(&format!(
                "connections stand still while the program makes no calls: no thread for them ({error})"
            )),
        }
    }

    /// The last thread of the program's leaves the library.
    #[cold]
    pub(super) fn call_background(&mut self) {
        let background = &mut self.sleepers.background;
        if core::mem::take(&mut background.leaves) {
            return;
        }
        background.stand_back();
        let time = now();
        if background.rings.is_none() || time >= background.stale_at {
            background.set(time + RELIEF, time);
        }
    }

    /// A thread of the program's is about to sleep here, or the stack is gone.
    #[inline]
    pub(super) fn dismiss_background(&mut self) {
        self.sleepers.background.stand_back();
    }

    /// What the thread does in a context: what it is to poll, and until when.
    fn attend_in_background(&mut self, polled: &mut Vec<libc::pollfd>) -> Option<Instant> {
        let time = now();
        let timer = self.sleepers.background.timer?;
        if self.sleepers.background.rings.is_some_and(|rings| rings <= time) {
            self.sleepers.background.rings = None;
            signal::lower(timer);
            if !self.sleepers.anybody() {
                let relief = self.pumped + RELIEF;
                if time < relief {
                    self.sleepers.background.set(relief, time);
                } else {
                    self.sleepers.background.watches = true;
                }
            }
        }
        polled.push(readable(timer));
        if !self.sleepers.background.watches {
            return None;
        }
        if let Some(link) = self.stack.transport_mut(Side::Network) {
            link.look_unseen(true);
        }
        self.pump();
        if let Some(link) = self.stack.transport_mut(Side::Network) {
            link.look_unseen(false);
        }
        self.tell_sleepers();
        let at_once = !self.arm() || self.stack.owes();
        polled.extend(self.link_descriptors.iter().copied().map(readable));
        polled.extend(self.broker_descriptor().into_iter().chain(self.bell()).map(readable));
        self.sleepers.background.leaves = self.sleepers.are_forgotten(self.pumped);
        if at_once { Some(time) } else { self.next_look() }
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
        Some(bell) => {
            BELL.store(bell, Ordering::Relaxed);
            let thread = std::thread::Builder::new()
                .name("overfly-softirq".to_owned())
                .stack_size(STACK_LEN)
                .spawn(run);
            thread.map(drop).map_err(|error| {
                BELL.store(-1, Ordering::Relaxed);
                signal::close(bell);
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
    let bell = BELL.swap(-1, Ordering::Relaxed);
    if bell >= 0 {
        signal::close(bell);
    }
}

fn run() {
    let bell = BELL.load(Ordering::Relaxed);
    let mut polled = Vec::new();
    loop {
        let rang = core::mem::take(&mut polled);
        signal::lower(bell);
        polled.push(readable(bell));
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
        let _ = sys::poll(&mut polled, pause, sys::seen());
    }
}

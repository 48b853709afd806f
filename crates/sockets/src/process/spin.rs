//! How long a call that waits spins before it sleeps, and whether it does at all (EF_POLL_ADAPT): a thread whose spins were in vain
//! again and again leaves them out for a while, and so does one that has to wait for its processor. A new thread begins as the one is
//! that waited last: where there is one for each connection, none lives long enough to learn it. Where more threads are busy than there
//! are processors, whoever is to send what it waits for may need this one.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use overfly_engine::Instant;
use overfly_profile::options::Waiting;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::read;

use super::Process;
use crate::spins::{Adapt, Scheduled, Spins};

/// What became of the spins of the thread that waited last ([`Spins::note`]).
static LAST: AtomicU64 = AtomicU64::new(Spins::NONE.note());

thread_local! {
    /// `None`: the thread has not waited yet.
    static SPINS: Cell<Option<Spins>> = const { Cell::new(None) };
    static LOOPS: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread is one that waits for events.
#[inline]
pub(super) fn begins_to_loop() {
    LOOPS.set(true);
}

/// Whether the calling thread has waited for events before: others may never look for what has come.
#[inline]
pub(super) fn loops() -> bool {
    LOOPS.get()
}

fn spins() -> Spins {
    SPINS.get().unwrap_or_else(|| Spins::as_of(LAST.load(Ordering::Relaxed)))
}

/// What the program's profile says of spins.
fn adapt(process: &Process) -> Adapt {
    Adapt::of_option(process.options.poll_adapt)
}

/// Until when a call that began to wait at `started` spins.
pub(crate) fn spin_until(process: &Process, call: Waiting, started: Instant) -> Instant {
    let adapt = adapt(process);
    if adapt != Adapt::Never {
        let mut spins = spins();
        if spins.is_look_due(started) {
            spins.look(scheduled(), started);
            note(spins);
        }
        if spins.are_left_out(adapt) {
            return started;
        }
    }
    let spin_us = process.options.spin_us(call, process.is_blocked());
    started + Duration::from_micros(spin_us)
}

/// Whether a call that has found nothing by `time` spins, as it does until then if this process lets it; if not, it sleeps.
pub(crate) fn goes_on<'a>(time: Instant, until: Instant, process: impl FnOnce() -> &'a mut Process) -> bool {
    let mut spins = spins();
    let goes_on = time < until && {
        let process = process();
        let adapt = adapt(process);
        if adapt != Adapt::Never && spins.is_look_due_at(time) {
            spins.look(scheduled(), time);
        }
        process.may_spin() && !spins.are_left_out(adapt)
    };
    spins.count(goes_on, until);
    note(spins);
    goes_on
}

fn note(spins: Spins) {
    let before = SPINS.replace(Some(spins));
    // Each look of a spin comes here: others read the line.
    if before.is_none_or(|before| before.note() != spins.note()) {
        LAST.store(spins.note(), Ordering::Relaxed);
    }
}

/// How the kernel has scheduled the calling thread, where it says so.
#[cold]
fn scheduled() -> Option<Scheduled> {
    let file = open("/proc/thread-self/schedstat", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 64];
    let length = read(&file, &mut text).ok()?;
    Scheduled::parse(&text[..length])
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_kernel_says_how_a_thread_was_scheduled() {
        let is_counted = rustix::fs::access("/proc/thread-self/schedstat", rustix::fs::Access::READ_OK);
        assert_eq!(super::scheduled().is_some(), is_counted.is_ok());
    }
}
